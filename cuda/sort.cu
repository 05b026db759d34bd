/* cuda/sort.cu - sort and topk along a dim: elements become integer keys in the order of their values (NaN the largest,
 * -0 equal to 0), and keys with their positions are sorted stably. Descending order is ascending order of the inverted
 * keys. The sort itself is sort.h's. */
#include <string.h>

#include "cuda/families.h"
#include "cuda/rows.cuh"
#include "cuda/sort.h"

/* The bits of a float64 in the order of its value. */
static GB_DEVICE uint64_t float_key(double x) {
  uint64_t bits;
  if (x != x) return UINT64_MAX;
  x += 0.0; /* -0 becomes 0 */
  memcpy(&bits, &x, sizeof bits);
  return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Keys and positions of all rows, side by side. */
static __global__ void make_keys(gb_rows x, bool is_float, bool descending, uint64_t *keys, int64_t *positions) {
  for (int64_t i = gb_thread<int64_t>(); i < x.count * x.length; i += gb_grid_size<int64_t>()) {
    int64_t row = i / x.length, at = i % x.length, start = gb_at(x.outer, row);
    uint64_t key = is_float ? float_key(gb_row_load<double>(x, start, at))
        : (uint64_t)gb_row_load<int64_t>(x, start, at) ^ (uint64_t)1 << 63;
    keys[i] = descending ? ~key : key;
    positions[i] = at;
  }
}

/* The first k of each row: elements moved as they are, and where they were. */
template <typename S> __global__ void pick_sorted(gb_rows x, gb_rows values, gb_rows indices,
                                                  const int64_t *positions) {
  for (int64_t i = gb_thread<int64_t>(); i < values.count * values.length; i += gb_grid_size<int64_t>()) {
    int64_t row = i / values.length, at = i % values.length, position = positions[row * x.length + at];
    S *to = (S *)values.data + gb_at(values.outer, row) + gb_at(values.inner, at);
    *to = ((const S *)x.data)[gb_at(x.outer, row) + gb_at(x.inner, position)];
    ((int64_t *)indices.data)[gb_at(indices.outer, row) + gb_at(indices.inner, at)] = position;
  }
}

/* The lowest bit in which keys of a dtype differ: a float64 holds narrower floats with zeros below. */
static int first_bit_of(gb_dtype dtype) {
  return gb_is_float(dtype) ? gb_format_of(GB_FLOAT64)->digits - gb_format_of(dtype)->digits : 0;
}

/* The bit above those in which they differ: bytes without a sign are not negative. */
static int end_bit_of(gb_dtype dtype) { return gb_is_byte(dtype) ? 8 : 64; }

static gb_status order(gb_cuda_call *call, const gb_cuda_tensor *t, int64_t dim, bool descending,
                       const gb_cuda_tensor *sorted, const gb_cuda_tensor *places) {
  uint32_t mask = t->ndim ? 1u << (dim < 0 ? dim + t->ndim : dim) : 0;
  gb_rows x = gb_rows_of(t, mask), values = gb_rows_of(sorted, mask), indices = gb_rows_of(places, mask);
  int64_t n = t->numel;
  if (values.count * values.length == 0) return GB_OK;
  uint64_t *keys = (uint64_t *)gb_cuda_scratch(call, 2 * (size_t)n * sizeof *keys);
  int64_t *positions = (int64_t *)gb_cuda_scratch(call, 2 * (size_t)n * sizeof *positions);
  if (!keys || !positions) return GB_EMEMORY;
  GB_LAUNCH(call->stream, make_keys, gb_blocks(n, GB_THREADS), GB_THREADS, 0, x, gb_is_float(t->dtype), descending,
            keys, positions);
  gb_status status = gb_sort_pairs(call, keys, keys + n, positions, positions + n, x.count, x.length,
                                   first_bit_of(t->dtype), end_bit_of(t->dtype));
  if (status != GB_OK) return status;
  unsigned grid = gb_blocks(values.count * values.length, GB_THREADS);
  switch (gb_bytes_of(t->dtype)) {
    case 1: GB_LAUNCH(call->stream, pick_sorted<uint8_t>, grid, GB_THREADS, 0, x, values, indices, positions + n);
    break;
    case 2: GB_LAUNCH(call->stream, pick_sorted<uint16_t>, grid, GB_THREADS, 0, x, values, indices, positions + n);
    break;
    case 4: GB_LAUNCH(call->stream, pick_sorted<uint32_t>, grid, GB_THREADS, 0, x, values, indices, positions + n);
    break;
    default: GB_LAUNCH(call->stream, pick_sorted<uint64_t>, grid, GB_THREADS, 0, x, values, indices, positions + n);
    break;
  }
  return GB_OK;
}

static gb_status sort(gb_cuda_call *call) {
  const gb_attrs_sort *attrs = GB_ATTRS(call, sort);
  const gb_cuda_out_sort *out = GB_CUDA_OUT(call, sort);
  return order(call, GB_CUDA_IN(call, sort)->x, attrs->dim.integer, attrs->descending.integer != 0, out->values,
               out->indices);
}

static gb_status topk(gb_cuda_call *call) {
  const gb_attrs_topk *attrs = GB_ATTRS(call, topk);
  const gb_cuda_out_topk *out = GB_CUDA_OUT(call, topk);
  return order(call, GB_CUDA_IN(call, topk)->x, attrs->dim.integer, attrs->largest.integer != 0, out->values,
               out->indices);
}

const gb_cuda_row gb_cuda_sort[] = { { GB_OP_sort, sort, false }, { GB_OP_topk, topk, false },
                                     { GB_OP_COUNT, NULL, false } };
