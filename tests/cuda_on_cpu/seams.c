/* seams.c - stands in for what CUB does behind cuda/sort.h. cuBLASLt's part is in cublaslt.c, cuDNN's in
 * libraries.c. */
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/sort.h"
#include "machine.h"

/* {==== sort.h ==== */

/* One sort, as a stream is told of it. */
typedef struct sort_work {
  const uint64_t *keys;
  uint64_t *keys_out;
  const int64_t *values;
  int64_t *values_out, rows, n;
  int first_bit, end_bit;
  struct pair *room;
} sort_work;

typedef struct pair { uint64_t key; int64_t value, place; } pair;

/* Pairs of equal keys stay in the order they came in. */
static int compare_pairs(const void *a, const void *b) {
  const pair *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->place < y->place ? -1 : x->place > y->place;
}

/* The bits of a key that count. */
static uint64_t compared(const sort_work *w, uint64_t key) { return key <<
                                                             (64 - w->end_bit) >> (64 - w->end_bit + w->first_bit); }

static void sort_rows(void *argument) {
  const sort_work *w = argument;
  for (int64_t r = 0; r < w->rows; r++) {
    int64_t at = r * w->n;
    for (int64_t i = 0; i < w->n; i++) w->room[i] = (pair){ compared(w, w->keys[at + i]), w->values[at + i], i };
    qsort(w->room, (size_t)w->n, sizeof *w->room, compare_pairs);
    for (int64_t i = 0; i < w->n; i++)
      w->keys_out[at + i] = w->keys[at + w->room[i].place], w->values_out[at + i] = w->room[i].value;
  }
}

static void release_sort(void *argument) {
  sort_work *w = argument;
  free(w->room);
  free(w);
}

gb_status gb_sort_pairs(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values,
                        int64_t *values_out, int64_t rows,
                        int64_t n, int first_bit, int end_bit) {
  sort_work *w = malloc(sizeof *w);
  pair *room = malloc((size_t)(n > 0 ? n : 1) * sizeof *room);
  if (!w || !room) {
    free(w);
    free(room);
    return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a sort of %lld keys", (long long)n);
  }
  *w = (sort_work){ keys, keys_out, values, values_out, rows, n, first_bit, end_bit, room };
  gb_machine_do(call->stream, "sort", sort_rows, release_sort, w);
  return GB_OK;
}

/* ====} */
