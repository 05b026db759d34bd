/* cuda/index.cu - picking and adding by index.
 *
 * Index values are checked where they are used: one that is out of range is reported, and position 0 is read in its
 * place (nothing is written for it). What adds goes through ordered.cuh: sums in the order of the index. Masks are
 * counted block by block, then every block knows where its elements go. Every element is read and written once; sorting
 * keys reads 16 bytes a key eight times more. */
#include "cuda/elements.cuh"
#include "cuda/families.h"
#include "cuda/ordered.cuh"

/* Element i of an index in row-major order. */
static GB_DEVICE int64_t index_at(const gb_rows &index,
                                  int64_t i) { return gb_load<int64_t>(index.data, index.dtype, gb_at(index.outer, i));
                                               }

/* A dim from 0 for one that may count from the end. */
static int wrap(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim); }

/* Run a kernel template instance for the size of an element. */
#define BY_SIZE(dtype, kernel, n, ...)                                                                               \
  switch (gb_bytes_of(dtype)) {                                                                                      \
    case 1: GB_LAUNCH(call->stream, kernel<uint8_t>, gb_blocks(n, GB_THREADS), GB_THREADS, 0, __VA_ARGS__); break;   \
    case 2: GB_LAUNCH(call->stream, kernel<uint16_t>, gb_blocks(n, GB_THREADS), GB_THREADS, 0, __VA_ARGS__); break;  \
    case 4: GB_LAUNCH(call->stream, kernel<uint32_t>, gb_blocks(n, GB_THREADS), GB_THREADS, 0, __VA_ARGS__); break;  \
    default: GB_LAUNCH(call->stream, kernel<uint64_t>, gb_blocks(n, GB_THREADS), GB_THREADS, 0, __VA_ARGS__); break; \
  }

/* {==== sums in order (ordered.cuh) ==== */

static __global__ void number_rows(int64_t *positions, int64_t n) {
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) positions[i] = i;
}

template <typename T> static GB_DEVICE T plus(T a, T b) { return a + b; }
template <> GB_DEVICE int64_t plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

/* The first place from `at` on whose key is another than at `at`. */
static GB_DEVICE int64_t end_of_key(const uint64_t *keys, int64_t at, int64_t n) {
  uint64_t key = keys[at];
  int64_t step = 1, low = at + 1, high;
  while (at + step < n && keys[at + step] == key) low = at + step + 1, step *= 2; /* short runs end soon */
  high = at + step < n ? at + step : n;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (keys[middle] == key) low = middle + 1;
    else high = middle;
  }
  return low;
}

enum { AHEAD = 8 }; /* parts that a sum has under way */

/* So many rows of a table are added as T before their sum goes to a double, as in cpu/index.c. */
enum { ROW_BLOCK = 16 };

/* Keys and positions are sorted. The thread of a key's first place and a column adds up all of that key's parts, in
 * order; blocks: so many of them at a time, of sums that begin at 0. */
template <typename T> __global__ void sum_sorted(gb_rows to, gb_rows from, const uint64_t *keys,
                                                 const int64_t *positions, int64_t n, bool narrow, bool apart,
                                                 bool blocks) {
  int64_t width = to.length;
  for (int64_t i = gb_thread<int64_t>(); i < n * width; i += gb_grid_size<int64_t>()) {
    int64_t column, first = gb_divide(i, width, narrow, &column);
    uint64_t key = keys[first];
    if (key == GB_NO_ROW || (first > 0 && keys[first - 1] == key)) continue;
    int64_t start = gb_at(to.outer, (int64_t)key), at = first, end = end_of_key(keys, first, n);
    T before = gb_row_load<T>(to, start, column), sum = apart ? (T)0 : before, part[AHEAD];
    double whole = 0;
    for (; at + AHEAD <= end; at += AHEAD) {
      if (blocks && (at - first) % ROW_BLOCK == 0) whole += (double)sum, sum = 0;
      GB_UNROLL for (int k = 0; k < AHEAD; k++) part[k] = gb_row_load<T>(from, gb_at(from.outer, positions[at + k]),
                                                                         column);
      GB_UNROLL for (int k = 0; k < AHEAD; k++) sum = plus(sum, part[k]);
    }
    if (blocks && (at - first) % ROW_BLOCK == 0) whole += (double)sum, sum = 0;
    for (; at < end; at++) sum = plus(sum, gb_row_load<T>(from, gb_at(from.outer, positions[at]), column));
    if (blocks) sum = (T)(whole + (double)sum);
    gb_row_store<T>(to, start, column, apart ? plus(before, sum) : sum);
  }
}

gb_status gb_ordered_sum_run(gb_cuda_call *call, const gb_ordered_sum *sum) {
  int64_t n = sum->n, all = n * sum->to.length;
  if (all == 0) return GB_OK;
  uint64_t *keys = (uint64_t *)gb_cuda_scratch(call, (size_t)n * sizeof *keys);
  int64_t *positions = (int64_t *)gb_cuda_scratch(call, 2 * (size_t)n * sizeof *positions);
  if (!keys || !positions) return GB_EMEMORY;
  GB_LAUNCH(call->stream, number_rows, gb_blocks(n, GB_THREADS), GB_THREADS, 0, positions, n);
  int bits = 1;
  while (bits < 64 && sum->limit >> bits) bits++; /* of a number above all keys, such as the low bits of GB_NO_ROW
                                                     make */
  gb_status status = gb_sort_pairs(call, sum->keys, keys, positions, positions + n, 1, n, 0, bits);
  if (status != GB_OK) return status;
  unsigned grid = gb_blocks(all, GB_THREADS);
  bool narrow = all <= INT32_MAX;
  if (sum->to.dtype == GB_FLOAT64)
    GB_LAUNCH(call->stream, sum_sorted<double>, grid, GB_THREADS, 0, sum->to, sum->from, keys, positions + n, n,
              narrow, sum->apart, false);
  else if (gb_is_float((gb_dtype)sum->to.dtype))
    GB_LAUNCH(call->stream, sum_sorted<float>, grid, GB_THREADS, 0, sum->to, sum->from, keys, positions + n, n, narrow,
              sum->apart, sum->blocks);
  else GB_LAUNCH(call->stream, sum_sorted<int64_t>, grid, GB_THREADS, 0, sum->to, sum->from, keys, positions + n, n,
                 narrow, sum->apart, false);
  return GB_OK;
}

/* ====} */

/* {==== embedding ==== */

/* 16 bytes that are moved together. */
struct alignas(16) quad { uint64_t half[2]; };

/* y[i] = weight[index[i]] */
template <typename S> __global__ void pick_rows(gb_rows weight, gb_rows index, gb_rows y, bool narrow,
                                                gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < y.count * y.length; i += gb_grid_size<int64_t>()) {
    int64_t column, place = gb_divide(i, y.length, narrow, &column),
        row = gb_checked_index(fault, op, index_at(index, place), weight.count);
    if (weight.count)
      ((S *)y.data)[gb_at(y.outer, place) + gb_at(y.inner, column)] =
          ((const S *)weight.data)[gb_at(weight.outer, row) + gb_at(weight.inner, column)];
  }
}

/* Are all rows whole quads in memory, one quad after another? */
static bool in_quads(const gb_rows *r) {
  int64_t bytes = (int64_t)gb_bytes_of((gb_dtype)r->dtype), joint = (int64_t)(uintptr_t)r->data | r->length * bytes;
  for (int i = 0; i < r->outer.n; i++) joint |= r->outer.step[i] * bytes;
  return r->inner.n == 1 && r->inner.step[0] == 1 && joint % (int64_t)sizeof(quad) == 0;
}

/* Make rows of elements rows of quads. */
static void widen(gb_rows *r) {
  int64_t per = (int64_t)(sizeof(quad) / gb_bytes_of((gb_dtype)r->dtype));
  r->length /= per;
  r->inner.size[0] /= per;
  for (int i = 0; i < r->outer.n; i++) r->outer.step[i] /= per;
}

static gb_status embedding(gb_cuda_call *call) {
  const gb_cuda_in_embedding *in = GB_CUDA_IN(call, embedding);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, embedding)->y;
  gb_rows from = gb_rows_of(in->weight, 2u), index = gb_rows_of(in->index, 0), to = gb_rows_of(y, 1u << (y->ndim - 1));
  bool narrow = y->numel <= INT32_MAX;
  if (in_quads(&from) && in_quads(&to)) {
    widen(&from), widen(&to);
    GB_LAUNCH(call->stream, pick_rows<quad>, gb_blocks(to.count * to.length, GB_THREADS), GB_THREADS, 0, from, index,
              to, narrow, call->fault, (int)call->op);
    return GB_OK;
  }
  BY_SIZE(y->dtype, pick_rows, y->numel, from, index, to, narrow, call->fault, call->op);
  return GB_OK;
}

/* The rows that n index values name, as keys; `skip` (-1: none) and what is out of range name none. */
static __global__ void rows_named(gb_rows index, int64_t limit, int64_t skip, uint64_t *keys, gb_cuda_fault *fault,
                                  int op) {
  for (int64_t i = gb_thread<int64_t>(); i < index.count; i += gb_grid_size<int64_t>()) {
    int64_t value = index_at(index, i);
    bool fits = value >= 0 && value < limit;
    if (!fits) gb_report(fault, GB_FAULT_INDEX, op, value, limit);
    keys[i] = fits && value != skip ? (uint64_t)value : GB_NO_ROW;
  }
}

/* The keys of an index whose values name rows below `limit`. NULL: no memory. */
static uint64_t *keys_of(gb_cuda_call *call, const gb_cuda_tensor *index, int64_t limit, int64_t skip) {
  uint64_t *keys = (uint64_t *)gb_cuda_scratch(call, (size_t)(index->numel > 0 ? index->numel : 1) * sizeof *keys);
  gb_rows values = gb_rows_of(index, 0);
  if (keys)
    GB_LAUNCH(call->stream, rows_named, gb_blocks(index->numel, GB_THREADS), GB_THREADS, 0, values, limit, skip, keys,
              call->fault, call->op);
  return keys;
}

static gb_status embedding_backward(gb_cuda_call *call) {
  const gb_cuda_in_embedding_backward *in = GB_CUDA_IN(call, embedding_backward);
  const gb_attr *padding = &GB_ATTRS(call, embedding_backward)->padding_idx;
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, embedding_backward)->dweight;
  gb_ordered_sum sum = {};
  gb_status status = GB_OK;
  if (out->numel == 0) return GB_OK;
  sum.apart = GB_ATTRS(call, embedding_backward)->add.integer;
  sum.blocks = true;
  if (!sum.apart) status = gb_cuda_clear(call, out->data, (size_t)out->numel * gb_bytes_of(out->dtype));
  if (status != GB_OK) return status;
  sum.to = gb_rows_of(out, 2u);
  sum.from = gb_rows_of(in->grad, 1u << (in->grad->ndim - 1));
  sum.n = in->index->numel;
  sum.limit = out->shape[0];
  sum.keys = keys_of(call, in->index, sum.limit, padding->given ? padding->integer : -1);
  return sum.keys ? gb_ordered_sum_run(call, &sum) : GB_EMEMORY;
}

/* ====} */

/* {==== embedding_sum ==== */

/* y[b] = the sum of weight[index[b][k]] over k, in that order: a thread per element. */
template <typename T> __global__ void sum_bags(gb_rows weight, gb_rows index, int64_t ids, gb_rows y, bool narrow,
                                               gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < y.count * y.length; i += gb_grid_size<int64_t>()) {
    int64_t column, bag = gb_divide(i, y.length, narrow, &column);
    T sum = 0;
    double whole = 0;
    for (int64_t k = 0; k < ids; k++) {
      if (sizeof sum < sizeof whole && k % ROW_BLOCK == 0) whole += (double)sum, sum = 0;
      int64_t row = gb_checked_index(fault, op, index_at(index, bag * ids + k), weight.count);
      if (weight.count) sum += gb_row_load<T>(weight, gb_at(weight.outer, row), column);
    }
    gb_row_store<T>(y, gb_at(y.outer, bag), column, (T)(whole + (double)sum));
  }
}

static gb_status embedding_sum(gb_cuda_call *call) {
  const gb_cuda_in_embedding_sum *in = GB_CUDA_IN(call, embedding_sum);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, embedding_sum)->y;
  gb_rows from = gb_rows_of(in->weight, 2u), index = gb_rows_of(in->index, 0), to = gb_rows_of(y, 2u);
  unsigned grid = gb_blocks(y->numel, GB_THREADS);
  bool narrow = y->numel <= INT32_MAX;
  int64_t ids = in->index->shape[1];
  if (y->numel == 0) return GB_OK;
  if (y->dtype == GB_FLOAT64)
    GB_LAUNCH(call->stream, sum_bags<double>, grid, GB_THREADS, 0, from, index, ids, to, narrow, call->fault,
              (int)call->op);
  else
    GB_LAUNCH(call->stream, sum_bags<float>, grid, GB_THREADS, 0, from, index, ids, to, narrow, call->fault,
              (int)call->op);
  return GB_OK;
}

/* ====} */

/* {==== gather, scatter_add, index_select, index_add ==== */

/* y[i] = x at i's place with index[i] along dim. index has y's shape; step: of x along dim. others: x's other dims,
 * over y's shape. */
template <typename S>
__global__ void gather_elements(const char *x, gb_axes others, int64_t step, int64_t limit, gb_rows index, gb_rows y,
                                gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < y.count; i += gb_grid_size<int64_t>()) {
    int64_t value = gb_checked_index(fault, op, index_at(index, i), limit);
    if (limit) ((S *)y.data)[gb_at(y.outer, i)] = ((const S *)x)[gb_at(others, i) + value * step];
  }
}

/* Loops over a shape, with t's strides but 0 along dim; nothing is merged over dim. */
static gb_axes axes_without(const gb_cuda_tensor *t, int ndim, const int64_t *shape, int dim) {
  gb_axes a = {};
  for (int d = 0; d < ndim; d++) gb_axes_push(&a, shape[d], d == dim ? 0 : t->stride[d]);
  return a;
}

static gb_status gather(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, gather)->x, *y = GB_CUDA_OUT(call, gather)->y;
  int dim = wrap(GB_ATTRS(call, gather)->dim.integer, x->ndim);
  int64_t limit = x->ndim ? x->shape[dim] : 1, step = x->ndim ? x->stride[dim] : 0;
  gb_rows values = gb_rows_of(GB_CUDA_IN(call, gather)->index, 0), to = gb_rows_of(y, 0);
  gb_axes others = axes_without(x, y->ndim, y->shape, dim);
  BY_SIZE(x->dtype, gather_elements, y->numel, (const char *)x->data, others, step, limit, values, to, call->fault,
          call->op);
  return GB_OK;
}

/* Where each element of the source goes, as an element of memory: its place with index[i] along dim. */
static __global__ void places_named(gb_rows index, gb_axes others, int64_t step, int64_t limit, uint64_t *keys,
                                    gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < index.count; i += gb_grid_size<int64_t>()) {
    int64_t value = index_at(index, i);
    bool fits = value >= 0 && value < limit;
    if (!fits) gb_report(fault, GB_FAULT_INDEX, op, value, limit);
    keys[i] = fits ? (uint64_t)(gb_at(others, i) + value * step) : GB_NO_ROW;
  }
}

/* The element of y is named by its offset in memory, so rows of `to` are single elements one after another. */
static gb_status scatter_add(gb_cuda_call *call) {
  const gb_cuda_in_scatter_add *in = GB_CUDA_IN(call, scatter_add);
  const gb_cuda_tensor *index = in->index, *y = GB_CUDA_OUT(call, scatter_add)->y;
  int dim = wrap(GB_ATTRS(call, scatter_add)->dim.integer, y->ndim);
  gb_cuda_tensor reached = *in->source; /* the part that index covers */
  gb_ordered_sum sum = {};
  gb_status status = gb_cuda_copy(call, y, in->x);
  if (status != GB_OK || index->numel == 0) return status;
  for (int d = 0; d < index->ndim; d++) reached.shape[d] = index->shape[d];
  sum.to.data = y->data;
  sum.to.dtype = y->dtype;
  sum.to.count = INT64_MAX;
  sum.to.length = 1;
  sum.to.outer.n = 1;
  sum.to.outer.step[0] = 1;
  sum.from = gb_rows_of(&reached, 0);
  sum.n = index->numel;
  sum.limit = 1;
  for (int d = 0; d < y->ndim; d++) sum.limit += (y->shape[d] - 1) * y->stride[d];
  sum.keys = (uint64_t *)gb_cuda_scratch(call, (size_t)sum.n * sizeof *sum.keys);
  if (!sum.keys) return GB_EMEMORY;
  gb_axes others = axes_without(y, index->ndim, index->shape, dim);
  GB_LAUNCH(call->stream, places_named, gb_blocks(sum.n, GB_THREADS), GB_THREADS, 0, gb_rows_of(index, 0), others,
            y->ndim ? y->stride[dim] : 0,
            y->ndim ? y->shape[dim] : 1, sum.keys, call->fault, call->op);
  return gb_ordered_sum_run(call, &sum);
}

/* Slices of x along dim, picked by a vector: rows of x and y are the other dims. */
template <typename S> __global__ void select_slices(gb_rows x, gb_rows index, gb_rows y, bool narrow,
                                                    gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < y.count * y.length; i += gb_grid_size<int64_t>()) {
    int64_t at, row = gb_divide(i, y.length, narrow, &at),
        value = gb_checked_index(fault, op, index_at(index, at), x.length);
    if (x.length)
      ((S *)y.data)[gb_at(y.outer, row) + gb_at(y.inner, at)] =
          ((const S *)x.data)[gb_at(x.outer, row) + gb_at(x.inner, value)];
  }
}

static gb_status index_select(gb_cuda_call *call) {
  const gb_cuda_in_index_select *in = GB_CUDA_IN(call, index_select);
  const gb_cuda_tensor *x = in->x, *y = GB_CUDA_OUT(call, index_select)->y;
  uint32_t mask = x->ndim ? 1u << wrap(GB_ATTRS(call, index_select)->dim.integer, x->ndim) : 0;
  gb_rows from = gb_rows_of(x, mask), to = gb_rows_of(y, mask), index = gb_rows_of(in->index, 0);
  BY_SIZE(y->dtype, select_slices, y->numel, from, index, to, y->numel <= INT32_MAX, call->fault, call->op);
  return GB_OK;
}

/* Rows are the positions along dim, their elements all other dims. */
static gb_status index_add(gb_cuda_call *call) {
  const gb_cuda_in_index_add *in = GB_CUDA_IN(call, index_add);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, index_add)->y;
  int64_t dim = GB_ATTRS(call, index_add)->dim.integer;
  uint32_t others = y->ndim ? ((1u << y->ndim) - 1u) & ~(1u << wrap(dim, y->ndim)) : 0;
  gb_ordered_sum sum = {};
  gb_status status = gb_cuda_copy(call, y, in->x);
  if (status != GB_OK || in->source->numel == 0) return status;
  sum.to = gb_rows_of(y, others);
  sum.from = gb_rows_of(in->source, others);
  sum.n = in->index->numel;
  sum.limit = sum.to.count;
  sum.keys = keys_of(call, in->index, sum.limit, -1);
  return sum.keys ? gb_ordered_sum_run(call, &sum) : GB_EMEMORY;
}

/* ====} */

/* {==== index_put: the last of equal indices wins ==== */

/* last[row]: the largest place that names it, and one more. */
static __global__ void find_last(gb_rows index, int64_t limit, unsigned long long *last, gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < index.count; i += gb_grid_size<int64_t>()) {
    int64_t value = index_at(index, i);
    if (value >= 0 && value < limit) atomicMax(&last[value], (unsigned long long)i + 1);
    else gb_report(fault, GB_FAULT_INDEX, op, value, limit);
  }
}

/* y[index[i]] = source[i] where i is the last place that names the row. */
template <typename T> __global__ void put_rows(gb_rows index, const unsigned long long *last, gb_rows source,
                                               gb_rows y) {
  for (int64_t i = gb_thread<int64_t>(); i < index.count * y.length; i += gb_grid_size<int64_t>()) {
    int64_t place = i / y.length, column = i % y.length, row = index_at(index, place);
    if (row < 0 || row >= y.count || last[row] != (unsigned long long)place + 1) continue;
    gb_row_store<T>(y, gb_at(y.outer, row), column, gb_row_load<T>(source, gb_at(source.outer, place), column));
  }
}

/* The strides of a tensor over a shape that it broadcasts to. */
static gb_cuda_tensor broadcast(const gb_cuda_tensor *t, int ndim, const int64_t *shape) {
  gb_cuda_tensor b = *t;
  b.ndim = ndim;
  for (int d = 0; d < ndim; d++) {
    int own = d - (ndim - t->ndim);
    b.shape[d] = shape[d];
    b.stride[d] = own < 0 || (t->shape[own] == 1 && shape[d] != 1) ? 0 : t->stride[own];
  }
  return b;
}

static gb_status index_put(gb_cuda_call *call) {
  const gb_cuda_in_index_put *in = GB_CUDA_IN(call, index_put);
  const gb_cuda_tensor *x = in->x, *index = in->index, *y = GB_CUDA_OUT(call, index_put)->y;
  int64_t picked[GB_MAX_NDIM], block = x->shape[0] ? x->numel / x->shape[0] : 0;
  gb_status status = gb_cuda_copy(call, y, x);
  if (status != GB_OK || index->numel == 0) return status;
  for (int d = 0; d < index->ndim; d++) picked[d] = index->shape[d];
  for (int d = 1; d < x->ndim; d++) picked[index->ndim + d - 1] = x->shape[d];
  int ndim = index->ndim + x->ndim - 1;
  gb_cuda_tensor spread = broadcast(in->source, ndim, picked);
  gb_rows values = gb_rows_of(index, 0), to = gb_rows_of(y, ((1u << y->ndim) - 1u) & ~1u);
  gb_rows from = gb_rows_of(&spread, ((1u << ndim) - 1u) & ~((1u << index->ndim) - 1u));
  size_t bytes = (size_t)(x->shape[0] > 0 ? x->shape[0] : 1) * sizeof(unsigned long long);
  unsigned long long *last = (unsigned long long *)gb_cuda_scratch(call, bytes);
  if (!last) return GB_EMEMORY;
  status = gb_cuda_clear(call, last, bytes);
  if (status != GB_OK) return status;
  GB_LAUNCH(call->stream, find_last, gb_blocks(index->numel, GB_THREADS), GB_THREADS, 0, values, x->shape[0], last,
            call->fault, call->op);
  unsigned grid = gb_blocks(index->numel * block, GB_THREADS);
  if (y->dtype == GB_FLOAT64) GB_LAUNCH(call->stream, put_rows<double>, grid, GB_THREADS, 0, values, last, from, to);
  else if (gb_is_float(y->dtype)) GB_LAUNCH(call->stream, put_rows<float>, grid, GB_THREADS, 0, values, last, from, to);
  else GB_LAUNCH(call->stream, put_rows<int64_t>, grid, GB_THREADS, 0, values, last, from, to);
  return GB_OK;
}

/* ====} */

/* {==== masks ==== */

enum { MASK_THREADS = 256, MASK_EACH = 8, MASK_BLOCK = MASK_THREADS * MASK_EACH };

/* Element i of the mask, over the joint shape. */
static GB_DEVICE bool flag_at(const gb_rows &mask, int64_t i) {
  return gb_is_float(mask.dtype) ? gb_load<double>(mask.data, mask.dtype, gb_at(mask.outer, i)) != 0
                                   : gb_load<int64_t>(mask.data, mask.dtype, gb_at(mask.outer, i)) != 0;
}

/* How many of a block's threads before this one say yes, and (total) how many in all. */
static __device__ int rank_in_block(bool yes, int *parts, int *total) {
  unsigned votes = __ballot_sync(GB_ALL_LANES, yes), lane = threadIdx.x % GB_WARP, warp = threadIdx.x / GB_WARP;
  if (lane == 0) parts[warp] = __popc(votes);
  __syncthreads();
  int before = 0, all = 0;
  for (unsigned w = 0; w < blockDim.x / GB_WARP; w++) {
    if (w < warp) before += parts[w];
    all += parts[w];
  }
  __syncthreads();
  *total = all;
  return before + __popc(votes & ((1u << lane) - 1u));
}

/* True elements of each block of MASK_BLOCK. */
static __global__ void count_flags(gb_rows mask, int64_t n, int64_t blocks, int64_t *counts) {
  GB_SHARED(int, parts, [GB_WARP]);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    int64_t count = 0;
    for (int k = 0; k < MASK_EACH; k++) {
      int64_t i = block * MASK_BLOCK + k * MASK_THREADS + threadIdx.x;
      int total;
      rank_in_block(i < n && flag_at(mask, i), parts, &total);
      count += total;
    }
    if (threadIdx.x == 0) counts[block] = count;
  }
}

enum { START_THREADS = 1024 };

/* Counts become starts; counts[blocks] is the sum of all. One block: there is one count to 2,048 elements. */
static __global__ void __launch_bounds__(START_THREADS) start_blocks(int64_t *counts, int64_t blocks) {
  int64_t sum = 0;
  for (int64_t first = 0; first < blocks; first += blockDim.x) {
    int64_t b = first + threadIdx.x, all;
    int64_t before = gb_block_scan(b < blocks ? counts[b] : (int64_t)0, (int64_t)0, gb_folding<gb_sum_of>(), &all);
    if (b < blocks) counts[b] = sum + before;
    sum += all;
  }
  if (threadIdx.x == 0) counts[blocks] = sum;
}

/* A mask over a shape, counted; starts holds blocks + 1 numbers. */
typedef struct mask_job { gb_rows mask; int64_t n, blocks, *starts; } mask_job;

static gb_status mask_begin(gb_cuda_call *call, const gb_cuda_tensor *mask, int ndim, const int64_t *shape,
                            mask_job *job) {
  gb_cuda_tensor spread = broadcast(mask, ndim, shape);
  job->mask = gb_rows_of(&spread, 0);
  job->n = job->mask.count;
  job->blocks = (job->n + MASK_BLOCK - 1) / MASK_BLOCK;
  job->starts = (int64_t *)gb_cuda_scratch(call, (size_t)(job->blocks + 1) * sizeof *job->starts);
  if (!job->starts) return GB_EMEMORY;
  GB_LAUNCH(call->stream, count_flags, gb_blocks(job->blocks, 1), MASK_THREADS, 0, job->mask, job->n, job->blocks,
            job->starts);
  GB_LAUNCH(call->stream, start_blocks, 1, START_THREADS, 0, job->starts, job->blocks);
  return GB_OK;
}

/* The elements of x where the mask is true, in order; no more than there is room for. */
template <typename S> __global__ void take_masked(mask_job job, gb_rows x, char *y, int64_t room) {
  GB_SHARED(int, parts, [GB_WARP]);
  for (int64_t block = blockIdx.x; block < job.blocks; block += gridDim.x) {
    int64_t to = job.starts[block];
    for (int k = 0; k < MASK_EACH; k++) {
      int64_t i = block * MASK_BLOCK + k * MASK_THREADS + threadIdx.x;
      int total;
      bool yes = i < job.n && flag_at(job.mask, i);
      int64_t at = to + rank_in_block(yes, parts, &total);
      if (yes && at < room) ((S *)y)[at] = ((const S *)x.data)[gb_at(x.outer, i)];
      to += total;
    }
  }
}

static gb_status masked_select(gb_cuda_call *call) {
  const gb_cuda_in_masked_select *in = GB_CUDA_IN(call, masked_select);
  const gb_cuda_tensor *x = in->x, *mask = in->mask, *y = GB_CUDA_OUT(call, masked_select)->y;
  int64_t shape[GB_MAX_NDIM];
  int ndim = x->ndim > mask->ndim ? x->ndim : mask->ndim;
  for (int d = 0; d < ndim; d++) {
    int a = d - (ndim - x->ndim), b = d - (ndim - mask->ndim);
    shape[d] = a >= 0 && x->shape[a] != 1 ? x->shape[a] : b >= 0 ? mask->shape[b] : 1;
  }
  mask_job job;
  gb_status status = mask_begin(call, mask, ndim, shape, &job);
  if (status != GB_OK) return status;
  gb_cuda_tensor spread = broadcast(x, ndim, shape);
  gb_rows from = gb_rows_of(&spread, 0);
  unsigned grid = gb_blocks(job.blocks, 1);
  switch (gb_bytes_of(x->dtype)) {
    case 1: GB_LAUNCH(call->stream, take_masked<uint8_t>, grid, MASK_THREADS, 0, job, from, y->data, y->numel); break;
    case 2: GB_LAUNCH(call->stream, take_masked<uint16_t>, grid, MASK_THREADS, 0, job, from, y->data, y->numel); break;
    case 4: GB_LAUNCH(call->stream, take_masked<uint32_t>, grid, MASK_THREADS, 0, job, from, y->data, y->numel); break;
    default: GB_LAUNCH(call->stream, take_masked<uint64_t>, grid, MASK_THREADS, 0, job, from, y->data, y->numel); break;
  }
  return GB_OK;
}

/* The next element of source wherever the mask is true. */
template <typename T> __global__ void put_masked(mask_job job, gb_rows source, gb_rows y) {
  GB_SHARED(int, parts, [GB_WARP]);
  for (int64_t block = blockIdx.x; block < job.blocks; block += gridDim.x) {
    int64_t from = job.starts[block];
    for (int k = 0; k < MASK_EACH; k++) {
      int64_t i = block * MASK_BLOCK + k * MASK_THREADS + threadIdx.x;
      int total;
      bool yes = i < job.n && flag_at(job.mask, i);
      int64_t at = from + rank_in_block(yes, parts, &total);
      if (yes && at < source.count)
        gb_store<T>(y.data, y.dtype, gb_at(y.outer, i), gb_load<T>(source.data, source.dtype, gb_at(source.outer, at)));
      from += total;
    }
  }
}

/* The count comes to the host: a source that is too short is an error before anything is written. */
static gb_status masked_scatter(gb_cuda_call *call) {
  const gb_cuda_in_masked_scatter *in = GB_CUDA_IN(call, masked_scatter);
  const gb_cuda_tensor *x = in->x, *source = in->source, *y = GB_CUDA_OUT(call, masked_scatter)->y;
  mask_job job;
  int64_t total = 0;
  gb_status status = mask_begin(call, in->mask, x->ndim, x->shape, &job);
  if (status != GB_OK) return status;
  int code = gb_rt_copy(call->stream, &total, job.starts + job.blocks, sizeof total, GB_COPY_TO_HOST);
  if (code) return gb_cuda_fail(call, GB_EDEVICE, "the mask could not be counted: %s", gb_rt_text(code));
  if (total > source->numel)
    return gb_cuda_fail(call, GB_ESHAPE, "mask has %lld true elements, source only %lld values for them",
                        (long long)total, (long long)source->numel);
  status = gb_cuda_copy(call, y, x);
  if (status != GB_OK) return status;
  gb_rows from = gb_rows_of(source, 0), to = gb_rows_of(y, 0);
  unsigned grid = gb_blocks(job.blocks, 1);
  if (y->dtype == GB_FLOAT64) GB_LAUNCH(call->stream, put_masked<double>, grid, MASK_THREADS, 0, job, from, to);
  else if (gb_is_float(y->dtype)) GB_LAUNCH(call->stream, put_masked<float>, grid, MASK_THREADS, 0, job, from, to);
  else GB_LAUNCH(call->stream, put_masked<int64_t>, grid, MASK_THREADS, 0, job, from, to);
  return GB_OK;
}

/* A shape, to turn the number of an element into its position. */
typedef struct dims { int n; int64_t size[GB_MAX_NDIM]; } dims;

static __global__ void place_nonzero(mask_job job, dims shape, int64_t *y, int64_t room) {
  GB_SHARED(int, parts, [GB_WARP]);
  for (int64_t block = blockIdx.x; block < job.blocks; block += gridDim.x) {
    int64_t to = job.starts[block];
    for (int k = 0; k < MASK_EACH; k++) {
      int64_t i = block * MASK_BLOCK + k * MASK_THREADS + threadIdx.x, rest = i;
      int total;
      bool yes = i < job.n && flag_at(job.mask, i);
      int64_t at = to + rank_in_block(yes, parts, &total);
      for (int d = shape.n - 1; yes && at < room && d >= 0; d--) {
        y[at * shape.n + d] = rest % shape.size[d];
        rest /= shape.size[d];
      }
      to += total;
    }
  }
}

static gb_status nonzero(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, nonzero)->x, *y = GB_CUDA_OUT(call, nonzero)->y;
  mask_job job;
  dims shape = {};
  gb_status status = mask_begin(call, x, x->ndim, x->shape, &job);
  if (status != GB_OK || y->numel == 0) return status;
  shape.n = x->ndim;
  for (int d = 0; d < x->ndim; d++) shape.size[d] = x->shape[d];
  GB_LAUNCH(call->stream, place_nonzero, gb_blocks(job.blocks, 1), MASK_THREADS, 0, job, shape, (int64_t *)y->data,
            y->shape[0]);
  return GB_OK;
}

/* ====} */

static __global__ void one_hot_elements(gb_rows index, int64_t classes, int64_t *y, gb_cuda_fault *fault, int op) {
  for (int64_t i = gb_thread<int64_t>(); i < index.count * classes; i += gb_grid_size<int64_t>()) {
    int64_t value = index_at(index, i / classes);
    if (i % classes == 0) gb_checked_index(fault, op, value, classes);
    y[i] = value == i % classes;
  }
}

static gb_status one_hot(gb_cuda_call *call) {
  gb_rows index = gb_rows_of(GB_CUDA_IN(call, one_hot)->x, 0);
  int64_t classes = GB_ATTRS(call, one_hot)->classes.integer;
  GB_LAUNCH(call->stream, one_hot_elements, gb_blocks(index.count * classes, GB_THREADS), GB_THREADS, 0, index, classes,
            (int64_t *)GB_CUDA_OUT(call, one_hot)->y->data, call->fault, call->op);
  return GB_OK;
}

const gb_cuda_row gb_cuda_index[] = {
  { GB_OP_embedding, embedding, false }, { GB_OP_embedding_backward, embedding_backward, false },
      { GB_OP_embedding_sum, embedding_sum, false }, { GB_OP_gather, gather, false },
  { GB_OP_scatter_add, scatter_add, false }, { GB_OP_index_select, index_select, false },
      { GB_OP_index_add, index_add, false },
  { GB_OP_index_put, index_put, false }, { GB_OP_masked_select, masked_select, false },
      { GB_OP_masked_scatter, masked_scatter, false },
  { GB_OP_nonzero, nonzero, false }, { GB_OP_one_hot, one_hot, false }, { GB_OP_COUNT, NULL, false },
};
