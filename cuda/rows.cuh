/* cuda/rows.cuh - a tensor as rows of elements that belong together, and what the threads of a row compute together.
 *
 * A row is worked on by blockDim.x threads, a multiple of a warp; a block holds blockDim.y rows, more than one only where a row has one
 * warp. Elements are dealt out in turn (thread t gets t, t + threads, ...), and what threads found is put together as
 * block.cuh does: an order that depends on the length of the row alone. */
#ifndef GB_CUDA_ROWS_CUH
#define GB_CUDA_ROWS_CUH

#include "cuda/block.cuh"

/* {==== where the elements of rows lie ==== */

/* Loops over dims, the last one innermost; neighbours that make one loop are merged. */
typedef struct gb_axes { int n; int64_t size[GB_MAX_NDIM], step[GB_MAX_NDIM]; } gb_axes;

/* `count` rows of `length` elements of memory. */
typedef struct gb_rows {
  char *data;
  int dtype;
  gb_axes outer, inner;
  int64_t count, length;
} gb_rows;

static inline void gb_axes_push(gb_axes *a, int64_t size, int64_t step) {
  if (size == 1) return;
  if (a->n && a->step[a->n - 1] == size * step) {
    a->size[a->n - 1] *= size;
    a->step[a->n - 1] = step;
    return;
  }
  a->size[a->n] = size;
  a->step[a->n++] = step;
}

/* Rows of t: the dims in `inner` (bit d: dim d) run along a row, the others from row to row, each in the order of the shape. */
static inline gb_rows gb_rows_of(const gb_cuda_tensor *t, uint32_t inner) {
  gb_rows r = {};
  r.data = t->data;
  r.dtype = t->dtype;
  r.count = r.length = 1;
  for (int d = 0; d < t->ndim; d++) {
    bool along = inner >> d & 1u;
    if (along) r.length *= t->shape[d];
    else r.count *= t->shape[d];
    gb_axes_push(along ? &r.inner : &r.outer, t->shape[d], t->stride[d]);
  }
  return r;
}

/* n elements of a dtype, one after another, as `count` rows. */
static inline gb_rows gb_rows_over(void *data, gb_dtype dtype, int64_t count, int64_t length) {
  gb_rows r = {};
  r.data = (char *)data;
  r.dtype = dtype;
  r.count = count;
  r.length = length;
  gb_axes_push(&r.outer, count, length);
  gb_axes_push(&r.inner, length, 1);
  return r;
}

/* Where position i of the loops lies, in elements. */
static GB_DEVICE int64_t gb_at(const gb_axes &a, int64_t i) {
  if (a.n <= 1) return a.n ? i * a.step[0] : 0;
  int64_t offset = 0;
  for (int k = a.n - 1; k > 0; k--) {
    offset += i % a.size[k] * a.step[k];
    i /= a.size[k];
  }
  return offset + i * a.step[0];
}

/* Element i of the row that begins at `start`, and the other way. */
template <typename T> static GB_DEVICE T gb_row_load(const gb_rows &r, int64_t start, int64_t i) {
  return gb_load<T>(r.data, r.dtype, start + gb_at(r.inner, i));
}

template <typename T> static GB_DEVICE void gb_row_store(const gb_rows &r, int64_t start, int64_t i, T x) {
  gb_store<T>(r.data, r.dtype, start + gb_at(r.inner, i), x);
}

/* ====} */

/* {==== a row in registers ==== */

/* This thread's share of a row of at most PER * threads elements; `fill` beyond its end. One branch on the dtype for all of it. */
template <typename T, int PER> static GB_DEVICE void gb_row_hold(const gb_rows &r, int64_t start, int first, int threads, T *held, T fill) {
  int n = (int)r.length;
  if (r.inner.n <= 1 && r.dtype == GB_FLOAT32) {
    const float *from = (const float *)r.data + start;
    int64_t step = r.inner.n ? r.inner.step[0] : 0;
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = first + k * threads < n ? gb_as<T>::from(from[(first + k * threads) * step]) : fill;
  } else if (r.inner.n <= 1 && r.dtype == GB_BFLOAT16) {
    const uint16_t *from = (const uint16_t *)r.data + start;
    int64_t step = r.inner.n ? r.inner.step[0] : 0;
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = first + k * threads < n ? gb_as<T>::from(gb_bfloat16_to_float(from[(first + k * threads) * step])) : fill;
  } else if (r.inner.n <= 1 && r.dtype == GB_FLOAT16) {
    const uint16_t *from = (const uint16_t *)r.data + start;
    int64_t step = r.inner.n ? r.inner.step[0] : 0;
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = first + k * threads < n ? gb_as<T>::from(gb_half_value(from[(first + k * threads) * step])) : fill;
  } else {
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = first + k * threads < n ? gb_row_load<T>(r, start, first + k * threads) : fill;
  }
}

/* The share goes where it belongs. */
template <typename T, int PER> static GB_DEVICE void gb_row_put(const gb_rows &r, int64_t start, int first, int threads, const T *held) {
  GB_UNROLL for (int k = 0; k < PER; k++)
    if (first + k * threads < r.length) gb_row_store<T>(r, start, first + k * threads, held[k]);
}

/* ====} */

/* {==== together ==== */

/* All threads of a row get the fold of what each brings. */
template <typename T, class Fold> static __device__ T gb_row_fold(T x, T nothing, Fold fold) {
  return blockDim.x == GB_WARP ? gb_warp_fold(x, fold) : gb_block_fold(x, nothing, fold);
}

template <typename T> static __device__ T gb_row_sum(T x) { return gb_row_fold(x, (T)0, gb_folding<gb_sum_of>()); }
template <typename T> static __device__ T gb_row_largest(T x) { return gb_row_fold(x, (T)-INFINITY, gb_folding<gb_most_of>()); }

static GB_DEVICE float gb_exp(float x) {
#if defined(__CUDA_ARCH__)
  return expf(x);
#else
  return gb_expf(x);
#endif
}
static GB_DEVICE double gb_exp(double x) { return exp(x); }

/* The largest element (NaN is the largest), and the sum of exp(x - largest): elements one after another. A row of -inf alone has the sum NaN,
 * as exp(-inf + inf). */
template <typename T> struct gb_max_sum { T max, sum; };

template <typename T> static GB_DEVICE void gb_max_sum_add(gb_max_sum<T> *s, T x) {
  if (x == (T)-INFINITY) return;
  if (x > s->max || x != x) {
    if (s->sum != 0) s->sum *= gb_exp(s->max - x);
    s->max = x;
  }
  s->sum += gb_exp(x - s->max);
}

template <typename T> static __device__ gb_max_sum<T> gb_max_sum_join(gb_max_sum<T> mine) {
  T most = gb_row_largest(mine.max), part = mine.max == (T)-INFINITY ? (mine.sum != mine.sum ? mine.sum : 0) : mine.max == most ? mine.sum
                                                                                                         : mine.sum * gb_exp(mine.max - most);
  gb_max_sum<T> all = { most, gb_row_sum(part) };
  if (most == (T)-INFINITY) all.sum = (T)NAN;
  return all;
}

/* ====} */

/* {==== launches ==== */

/* Threads of a row of n elements, and rows of a block. */
typedef struct gb_row_shape { dim3 grid, block; int per; } gb_row_shape;

/* The most threads of a block whose threads hold so many elements. A multiprocessor has 65,536 registers: 64 for each of 1,024 threads, 128 for
 * each of 512. Kernels say it with __launch_bounds__, or a compiler that takes more makes launches fail. */
static constexpr int gb_most_threads(int per) { return per == 16 ? 512 : 1024; }

/* per: how many elements a thread may hold in registers (4 or 16), or 0 where the row is too long for that. */
static inline gb_row_shape gb_shape_rows(int64_t rows, int64_t n) {
  gb_row_shape s;
  s.per = n <= 4 * gb_most_threads(4) ? 4 : n <= 16 * gb_most_threads(16) ? 16 : 0;
  int64_t threads = s.per ? (n + s.per - 1) / s.per : 1024;
  threads = (threads + GB_WARP - 1) / GB_WARP * GB_WARP;
  if (threads < GB_WARP) threads = GB_WARP;
  int64_t together = threads == GB_WARP ? 4 : 1;
  s.block = dim3((unsigned)threads, (unsigned)together);
  s.grid = dim3(gb_blocks(rows, together));
  return s;
}

/* The first row of this thread, and how many rows are worked on at once. */
static __device__ __forceinline__ int64_t gb_first_row(void) { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }
static __device__ __forceinline__ int64_t gb_rows_at_once(void) { return (int64_t)gridDim.x * blockDim.y; }

/* What a result of dtype `out` is computed in, from x. */
static inline gb_dtype gb_compute_dtype(gb_dtype x, gb_dtype out) {
  if (!gb_is_float(out)) return GB_INT64;
  return x == GB_FLOAT64 || out == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
}

/* ====} */

#endif
