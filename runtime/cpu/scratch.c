/* cpu/scratch.c - adding up sums that chunks made apart. The order is that of the parts, whoever made them. */
#include "cpu/scratch.h"

/* Elements that one chunk adds up. */
#define SUM_ELEMENTS 16384

typedef struct part_sum { gb_lane lane; char *data; int64_t numel, count; } part_sum;

static void sum_chunk(void *arg, int64_t chunk) {
  const part_sum *p = arg;
  int64_t bytes = (int64_t)gb_lane_bytes(p->lane), at = chunk * SUM_ELEMENTS, left = p->numel - at,
      n = left < SUM_ELEMENTS ? left : SUM_ELEMENTS;
  for (int64_t i = 1; i < p->count; i++)
    gb_row_add(p->lane, p->data + at * bytes, p->data + (i * p->numel + at) * bytes, n, 1);
}

void gb_sum_parts(const gb_op_call *call, gb_lane lane, void *parts, int64_t numel, int64_t count) {
  part_sum p = { lane, parts, numel, count };
  gb_parallel(call, (numel + SUM_ELEMENTS - 1) / SUM_ELEMENTS, sum_chunk, &p);
}
