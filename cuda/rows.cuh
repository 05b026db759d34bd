/* cuda/rows.cuh - a tensor as rows of elements that belong together, and what the threads of a row compute together.
 *
 * A row is worked on by blockDim.x threads, a multiple of a warp; a block holds blockDim.y rows, more than one only
 * where a row has one warp. Elements are dealt out in turn: to thread t go t, t + threads, ... or, where they are moved
 * by lanes, the t-th four, the one after `threads` more, ..., counted from the aligned element at which the row begins
 * or before it. What threads found is put together as block.cuh does: the order depends on the length of the row, and
 * by lanes on where it begins within four elements. */
#ifndef GB_CUDA_ROWS_CUH
#define GB_CUDA_ROWS_CUH

#include "cuda/block.cuh"
#include "cuda/lanes.cuh"

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

/* Rows of t: the dims in `inner` (bit d: dim d) run along a row, the others from row to row, each in the order of the
 * shape. */
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

/* {==== a row by lanes ==== */

/* True if the elements of rows are contiguous, in a dtype that lanes know. */
static GB_DEVICE bool gb_has_lanes(const gb_rows &r) { return (r.inner.n == 0 ||
                                                               (r.inner.n == 1 && r.inner.step[0] == 1)) &&
    gb_lane_bytes(r.dtype) > 0; }

/* How many elements the row at `start` begins beyond an aligned one. */
static GB_DEVICE int gb_row_shift(const gb_rows &r, int64_t start) {
  int bytes = gb_lane_bytes(r.dtype);
  /* 4, 2, 1 bytes: 2, 1, 0 */
  return gb_has_lanes(r) ? (int)(((uintptr_t)r.data >> (bytes / 2)) + (uint64_t)start) & (GB_LANES - 1) : 0;
}

/* The elements of a row that are among four from `at` on. */
struct gb_span { int first, last; };
static GB_DEVICE gb_span gb_span_of(const gb_rows &r, int64_t at) {
  return gb_span{ at < 0 ? (int)-at : 0, r.length - at < GB_LANES ? (int)(r.length - at) : GB_LANES };
}

/* Which elements of a row a thread has: fours, `threads` of them apart, the first one of all threads at `base` (below 0
 * where the row does not begin aligned). */
struct gb_share { int64_t base; int first, threads; };

static GB_DEVICE int64_t gb_four_at(const gb_share &s,
                                    int k) { return s.base + (int64_t)(k * s.threads + s.first) * GB_LANES; }
/* Is the k-th element of a share within a row that is held whole? */
static GB_DEVICE bool gb_is_held(const gb_share &s, int64_t n, int k) {
  int at = (int)s.base + (k / GB_LANES * s.threads + s.first) * GB_LANES + k % GB_LANES;
  return at >= 0 && at < (int)n;
}

/* PER elements of this thread, those beyond the ends of the row as `fill`. All loads are under way before the first is
 * waited for. LANES: the caller knows that the row has lanes, and nothing is compiled for one that has not. */
template <typename T, int PER, bool LANES = false> static GB_DEVICE void gb_row_hold(const gb_rows &r, int64_t start,
    const gb_share &share, T *held, T fill) {
  if (LANES || gb_has_lanes(r)) {
    int bytes = gb_lane_bytes(r.dtype);
    gb_bits bits[PER / GB_LANES];
    GB_UNROLL for (int c = 0; c < PER / GB_LANES; c++) {
      int64_t at = gb_four_at(share, c);
      gb_span span = gb_span_of(r, at);
      bits[c] = gb_lanes_load<GB_LANES>(r.data, bytes, start + at, span.first, span.last);
    }
    GB_UNROLL for (int c = 0; c < PER / GB_LANES; c++) {
      gb_span span = gb_span_of(r, gb_four_at(share, c));
      gb_lanes_unpack<T, GB_LANES>(bits[c], r.dtype, held + c * GB_LANES);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++)
        if (l < span.first || l >= span.last) held[c * GB_LANES + l] = fill;
    }
    return;
  }
  GB_ROLLED for (int k = 0; k < PER; k++) { /* unrolled, so many divisions and conversions would take all registers and
                                               minutes of nvcc */
    int64_t at = gb_four_at(share, k / GB_LANES) + k % GB_LANES;
    T x = at >= 0 && at < r.length ? gb_row_load<T>(r, start, at) : fill;
    GB_UNROLL for (int j = 0; j < PER; j++) /* indexed, the array would leave the registers */
      if (j == k) held[j] = x;
  }
}

/* Ask for a row of lanes before it is needed, if rows lie at one distance: a line of 128 bytes a thread, which is
 * enough for a row that is held. It comes as far as the L2 cache, and takes no registers meanwhile. */
static GB_DEVICE void gb_row_ask(const gb_rows &r, int64_t row, const gb_share &share) {
#if defined(__CUDA_ARCH__)
  const int bytes = gb_lane_bytes(r.dtype), at = share.first * 128;
  if (row < r.count && r.outer.n == 1 && at < (int)r.length * bytes)
    asm volatile("prefetch.global.L2 [%0];" : : "l"(r.data + row * r.outer.step[0] * bytes + at));
#else
  (void)r, (void)row, (void)share;
#endif
}

/* The share goes where it belongs. */
template <typename T, int PER, bool LANES = false> static GB_DEVICE void gb_row_put(const gb_rows &r, int64_t start,
    const gb_share &share, const T *held) {
  if (LANES || gb_has_lanes(r)) {
    GB_UNROLL for (int c = 0; c < PER / GB_LANES; c++) {
      int64_t at = gb_four_at(share, c);
      gb_span span = gb_span_of(r, at);
      gb_lanes_store<GB_LANES>(r.data, gb_lane_bytes(r.dtype), start + at, span.first, span.last, gb_lanes_pack<T,
                               GB_LANES>(held + c * GB_LANES, r.dtype));
    }
    return;
  }
  GB_ROLLED for (int k = 0; k < PER; k++) { /* as above */
    int64_t at = gb_four_at(share, k / GB_LANES) + k % GB_LANES;
    T x = held[0];
    GB_UNROLL for (int j = 1; j < PER; j++)
      if (j == k) x = held[j];
    if (at >= 0 && at < r.length) gb_row_store<T>(r, start, at, x);
  }
}

/* The share of this thread in a row that is held whole, or in its first tile. `aligned` is the tensor that is written,
 * or the one that is read. */
static __device__ __forceinline__ gb_share gb_share_of(const gb_rows &aligned, int64_t start) {
  return gb_share{ -(int64_t)gb_row_shift(aligned, start), (int)threadIdx.x, (int)blockDim.x };
}

/* Rows of any length are worked on in tiles of GB_TILE elements a thread: for (share = ...; gb_is_tile(share, n);
 * gb_next_tile(&share)). */
enum { GB_TILE = 16 };
static GB_DEVICE bool gb_is_tile(const gb_share &s, int64_t n) { return s.base < n; }
static GB_DEVICE void gb_next_tile(gb_share *s) { s->base += (int64_t)s->threads * GB_TILE; }

/* ====} */

/* {==== together ==== */

/* Fold what the threads of a row bring; every one of them gets the result. */
template <typename T, class Fold> static __device__ T gb_row_fold(T x, T nothing, Fold fold) {
  return blockDim.x == GB_WARP ? gb_warp_fold(x, fold) : gb_block_fold(x, nothing, fold);
}

template <typename T> static __device__ T gb_row_sum(T x) { return gb_row_fold(x, (T)0, gb_folding<gb_sum_of>()); }
template <typename T> static __device__ T gb_row_largest(T x) { return gb_row_fold(x, (T)-INFINITY,
    gb_folding<gb_most_of>()); }

static GB_DEVICE float gb_row_exp(float x) {
#if defined(__CUDA_ARCH__)
  return expf(x);
#else
  return gb_expf(x);
#endif
}
static GB_DEVICE double gb_row_exp(double x) { return exp(x); }

/* The largest element (NaN is the largest), and the sum of exp(x - largest): elements one after another. A row of -inf
 * alone has the sum NaN, as exp(-inf + inf). */
template <typename T> struct gb_max_sum { T max, sum; };

template <typename T> static GB_DEVICE void gb_max_sum_add(gb_max_sum<T> *s, T x) {
  if (x == (T)-INFINITY) return;
  if (x > s->max || x != x) {
    if (s->sum != 0) s->sum *= gb_row_exp(s->max - x);
    s->max = x;
  }
  s->sum += gb_row_exp(x - s->max);
}

/* Several elements, those that are not there as -inf. */
template <typename T, int PER> static GB_DEVICE void gb_max_sum_add_all(gb_max_sum<T> *s, const T *x) {
  T most = s->max, sum = 0;
  GB_UNROLL for (int k = 0; k < PER; k++) most = gb_most_of::of(most, x[k]);
  if (most == (T)-INFINITY) return;
  GB_UNROLL for (int k = 0; k < PER; k++) sum += gb_row_exp(x[k] - most);
  s->sum = (s->sum != 0 ? s->sum * gb_row_exp(s->max - most) : (T)0) + sum;
  s->max = most;
}

template <typename T> static __device__ gb_max_sum<T> gb_max_sum_join(gb_max_sum<T> mine) {
  T most = gb_row_largest(mine.max), part = mine.max == (T)-INFINITY ? (mine.sum != mine.sum ? mine.sum : 0)
      : mine.max == most ? mine.sum
                                                                                                         : mine.sum *
                                                                                            gb_row_exp(mine.max - most);
  gb_max_sum<T> all = { most, gb_row_sum(part) };
  if (most == (T)-INFINITY) all.sum = (T)NAN;
  return all;
}

/* ====} */

/* {==== launches ==== */

/* Threads of a row of n elements, and rows of a block. */
typedef struct gb_row_shape { dim3 grid, block; int per; } gb_row_shape;

/* The most threads of a block whose threads hold so many elements. A multiprocessor has 65,536 registers, and gives
 * them to four warps at a time: 64 for each of 1,024 threads, 128 for each of 512, and 96 for one warp more. Kernels
 * say it with __launch_bounds__, or a compiler that takes more makes launches fail. */
static constexpr int gb_most_threads(int per) { return per == 16 ? 512 : per > 0 ? 128 : 1024; }
/* Of kernels by tiles, __launch_bounds__(GB_TILE_THREADS, 1): without the 1 the compiler spills to make room for a
 * second block of so many threads. */
enum { GB_TILE_THREADS = 512 };

static inline gb_row_shape gb_shape_of(int64_t rows, int64_t threads, int per) {
  gb_row_shape s;
  threads = (threads + GB_WARP - 1) / GB_WARP * GB_WARP;
  if (threads < GB_WARP) threads = GB_WARP;
  int64_t together = threads == GB_WARP ? 4 : 1;
  s.per = per;
  s.block = dim3((unsigned)threads, (unsigned)together);
  s.grid = dim3(gb_blocks(rows, together));
  return s;
}

/* The most elements by which one of the rows begins beyond an aligned one. */
static inline int gb_row_slack(const gb_rows &r) {
  int slack = gb_row_shift(r, 0);
  for (int i = 0; i < r.outer.n; i++) slack |= gb_has_lanes(r) ? (int)(r.outer.step[i] & (GB_LANES - 1)) : 0;
  return slack ? GB_LANES - 1 : 0;
}

/* For rows that are held whole, shared out as gb_share_of(aligned) does: per says how many elements a thread holds, 4
 * or (up to `most` elements to a thread) 32 in one warp to a row, or 16 (up to 8,192 elements, less what the first one
 * lies beyond an aligned one). 0: the row is too long for that, or it is not (`lanes`) float32 that is computed in and
 * operands that all have lanes. */
static inline gb_row_shape gb_shape_held(const gb_rows &aligned, bool lanes, int most) {
  int64_t slots = aligned.length + gb_row_slack(aligned);
  int per = !lanes ? 0 : slots <= 4 * GB_WARP ? 4 : most == 32 && slots > 16 * GB_WARP && slots <= 32 * GB_WARP ? 32
            : slots <= 16 * gb_most_threads(16) ? 16 : 0;
  if (per) return gb_shape_of(aligned.count, (slots + per - 1) / per, per);
  int64_t threads = (slots + GB_TILE - 1) / GB_TILE;
  return gb_shape_of(aligned.count, threads < GB_TILE_THREADS ? threads : (int64_t)GB_TILE_THREADS, 0);
}

/* For rows that are worked on in tiles. */
static inline gb_row_shape gb_shape_tiles(int64_t rows, int64_t n) {
  int64_t threads = (n + GB_LANES - 1 + GB_TILE - 1) / GB_TILE;
  return gb_shape_of(rows, threads < GB_TILE_THREADS ? threads : (int64_t)GB_TILE_THREADS, 0);
}

/* For rows that threads walk element by element. */
static inline gb_row_shape gb_shape_rows(int64_t rows, int64_t n) {
  int64_t threads = n <= 4 * 1024 ? (n + 3) / 4 : n <= 16 * 512 ? (n + 15) / 16 : 1024;
  return gb_shape_of(rows, threads, 0);
}

/* This thread's first row, and the step from one of its rows to the next. */
static __device__ __forceinline__ int64_t gb_first_row(void) { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }
static __device__ __forceinline__ int64_t gb_rows_at_once(void) { return (int64_t)gridDim.x * blockDim.y; }

/* What a result of dtype `out` is computed in, from x. */
static inline gb_dtype gb_compute_dtype(gb_dtype x, gb_dtype out) {
  if (!gb_is_float(out)) return GB_INT64;
  return x == GB_FLOAT64 || out == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
}

/* ====} */

#endif
