/* cuda/linear_loss.cu - between the products of linear_cross_entropy: losses of rows of logits, and the logits'
 * gradient. */
#include "cuda/linear_loss.h"
#include "cuda/rows.cuh"

static GB_DEVICE float log_of(float x) { return logf(x); }
static GB_DEVICE double log_of(double x) { return log(x); }

/* The class of a row, or -1 where it does not count: ignored, or no class, which is reported. */
static __device__ int64_t class_of(const gb_logits &l, int64_t row, int op, gb_cuda_fault *fault) {
  int64_t index = gb_load<int64_t>(l.target, l.target_dtype, row * l.target_stride);
  if (index == l.ignore) return -1;
  if (index >= 0 && index < l.classes) return index;
  if (threadIdx.x == 0) gb_report(fault, GB_FAULT_INDEX, op, index, l.classes);
  return -1;
}

/* Fours of a row's elements that stay in shared memory from the first look at them to the second: as many as there is
 * room for, counted as the threads take them. A thread finds there what it put there itself, so that nobody waits. */
struct stash { gb_words<4> *four; int room; };

static __device__ __forceinline__ void put_aside(const stash &s, int at, const float *held) {
  GB_UNROLL for (int c = 0; c < GB_TILE / GB_LANES; c++) {
    int i = at + c * (int)blockDim.x + (int)threadIdx.x;
    gb_words<4> four;
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) four.word[l] = gb_float_bits(held[c * GB_LANES + l]);
    if (i < s.room) s.four[i] = four;
  }
}

static __device__ __forceinline__ void take_back(const stash &s, int at, float *held) {
  GB_UNROLL for (int c = 0; c < GB_TILE / GB_LANES; c++) {
    int i = at + c * (int)blockDim.x + (int)threadIdx.x;
    gb_words<4> four = { { 0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u } }; /* -infinity: beyond the row */
    if (i < s.room) four = s.four[i];
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) held[c * GB_LANES + l] = gb_bits_float(four.word[l]);
  }
}

/* float64 is read again. */
static __device__ __forceinline__ void put_aside(const stash &, int, const double *) {}
static __device__ __forceinline__ void take_back(const stash &, int, double *) {}

/* The largest logit of a row and the sum; every tile is on its way while the one before it is added. */
template <typename T> static __device__ __forceinline__ gb_max_sum<T> look(const gb_rows &logits, int64_t start,
                                                                           const stash &aside) {
  const bool lanes = sizeof(T) == sizeof(float);
  const int step = GB_TILE / GB_LANES * (int)blockDim.x;
  gb_max_sum<T> s = { (T)-INFINITY, 0 };
  T held[GB_TILE], ahead[GB_TILE];
  gb_share share = gb_share_of(logits, start);
  gb_row_hold<T, GB_TILE, lanes>(logits, start, share, ahead, (T)-INFINITY);
  for (int at = 0; gb_is_tile(share, logits.length); at += step) {
    GB_UNROLL for (int k = 0; k < GB_TILE; k++) held[k] = ahead[k];
    gb_next_tile(&share);
    if (gb_is_tile(share, logits.length))
      gb_row_hold<T, GB_TILE, lanes>(logits, start, share, ahead, (T)-INFINITY);
    gb_max_sum_add_all<T, GB_TILE>(&s, held);
    put_aside(aside, at, held);
  }
  return gb_max_sum_join(s);
}

/* Once for the largest logit and the sum, once for the slope: the second time a row comes from shared memory, and what
 * had no room there from the cache. */
template <typename T> static __global__ void __launch_bounds__(GB_TILE_THREADS) logits_kernel(gb_logits l,
    gb_rows logits, gb_rows slope, int room, int op, gb_cuda_fault *fault) {
  GB_SHARED_BYTES(memory);
  const bool lanes = sizeof(T) == sizeof(float);
  const int step = GB_TILE / GB_LANES * (int)blockDim.x;
  const stash aside = { (gb_words<4> *)(void *)memory + (int)threadIdx.y * room, room };
  for (int64_t row = gb_first_row(); row < l.rows; row += gb_rows_at_once()) {
    int64_t index = class_of(l, row, op, fault), start = row * l.classes;
    gb_max_sum<T> s = { (T)-INFINITY, 0 };
    T loss = 0, held[GB_TILE];
    if (index >= 0) { /* the same for all threads of the row */
      T own = ((const T *)l.logits)[start + index];
      s = look<T>(logits, start, aside);
      loss = log_of(s.sum) - (own - s.max);
    }
    T scale = 1 / s.sum;
    gb_share share = gb_share_of(logits, start);
    const bool whole = (l.classes - share.base + GB_LANES - 1) / GB_LANES <= room;
    for (int at = 0; l.slope && gb_is_tile(share, l.classes); gb_next_tile(&share), at += step) {
      if (index < 0) {
        GB_UNROLL for (int k = 0; k < GB_TILE; k++) held[k] = 0;
      } else if (whole || at + step <= room) take_back(aside, at, held);
      else gb_row_hold<T, GB_TILE, lanes>(logits, start, share, held, (T)-INFINITY);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) {
        int64_t i = gb_four_at(share, k / GB_LANES) + k % GB_LANES;
        T part = index < 0 ? (T)0 : gb_row_exp(held[k] - s.max) * scale;
        held[k] = i == index ? part - 1 : part;
      }
      gb_row_put<T, GB_TILE, lanes>(slope, start, share, held);
    }
    if (threadIdx.x == 0) ((T *)l.losses)[row] = loss;
    __syncwarp(); /* rows of one warp go on together */
  }
}

#define OTHERS_SHARED 2048 /* bytes: more than the arrays of the sums take */

/* Fours of a row that a block's shared memory has room for: all of them, even if no second block has room beside it on
 * a multiprocessor of today; else what leaves room for one. */
static int stash_room(const gb_logits *l, unsigned together) {
  if (!l->slope || l->lane != GB_FLOAT32) return 0;
  int64_t fours = (l->classes + 2 * (GB_LANES - 1)) / GB_LANES, bytes = fours * 16 * together,
      most = (int64_t)l->shared - OTHERS_SHARED;
  if (bytes <= most) return (int)fours;
  if (most > (int64_t)GB_LARGE_SHARED - OTHERS_SHARED) most = (int64_t)GB_LARGE_SHARED - OTHERS_SHARED;
  return most > 0 ? (int)(most / (16 * together)) : 0;
}

extern "C" void gb_logits_run(gb_cuda_call *call, const gb_logits *l) {
  gb_row_shape s = gb_shape_tiles(l->rows, l->classes);
  int room = stash_room(l, s.block.y), op = (int)call->op;
  size_t bytes = (size_t)room * 16 * s.block.y;
  gb_rows logits = gb_rows_over(l->logits, l->lane, l->rows, l->classes),
      slope = gb_rows_over(l->slope, l->slope_dtype, l->rows, l->classes);
  if (l->lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, logits_kernel<double>, s.grid, s.block, 0, *l, logits, slope, 0, op, call->fault);
  else
    GB_LAUNCH_MOST(call->stream, logits_kernel<float>, s.grid, s.block, bytes, *l, logits, slope, room, op,
                   call->fault);
}

enum { BIAS_LANES = 16 }; /* threads that share a class */

/* Thread y of a class adds up every BIAS_LANES-th row, then the threads' sums are joined in order. */
template <typename T> static __global__ void __launch_bounds__(GB_WARP *BIAS_LANES) bias_kernel(gb_logits l, T *dbias,
    bool add) {
  GB_SHARED(double, sums, [BIAS_LANES][GB_WARP + 1]);
  int64_t i = (int64_t)blockIdx.x * GB_WARP + threadIdx.x;
  double sum = 0;
  for (int64_t row = threadIdx.y; i < l.classes && row < l.rows; row += BIAS_LANES)
    sum += gb_load<double>(l.slope, l.slope_dtype, row * l.classes + i);
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || i >= l.classes) return;
  for (int k = 1; k < BIAS_LANES; k++) sum += sums[k][threadIdx.x];
  dbias[i] = (T)((add ? (double)dbias[i] : 0) + sum);
}

extern "C" void gb_logits_bias(gb_cuda_call *call, const gb_logits *l, void *dbias, bool add) {
  unsigned blocks = (unsigned)((l->classes + GB_WARP - 1) / GB_WARP);
  dim3 block(GB_WARP, BIAS_LANES);
  if (l->lane == GB_FLOAT64) GB_LAUNCH(call->stream, bias_kernel<double>, blocks, block, 0, *l, (double *)dbias, add);
  else GB_LAUNCH(call->stream, bias_kernel<float>, blocks, block, 0, *l, (float *)dbias, add);
}

/* One block. */
template <typename T> static __global__ void reduce_kernel(gb_logits l, bool mean, void *out, int dtype) {
  double sum = 0, count = 0;
  for (int64_t i = threadIdx.x; i < l.rows; i += blockDim.x) {
    sum += (double)((const T *)l.losses)[i];
    count += gb_load<int64_t>(l.target, l.target_dtype, i * l.target_stride) != l.ignore;
  }
  sum = gb_block_reduce<gb_sum_of>(sum, 0.0);
  count = gb_block_reduce<gb_sum_of>(count, 0.0);
  if (threadIdx.x == 0) gb_store<double>(out, dtype, 0, mean ? sum / count : sum);
}

extern "C" void gb_logits_reduce(gb_cuda_call *call, const gb_logits *l, bool mean, void *out, gb_dtype dtype) {
  if (l->lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, reduce_kernel<double>, 1, GB_THREADS, 0, *l, mean, out, (int)dtype);
  else GB_LAUNCH(call->stream, reduce_kernel<float>, 1, GB_THREADS, 0, *l, mean, out, (int)dtype);
}
