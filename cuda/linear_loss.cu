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

/* Once for the largest logit and the sum, once for the slope: the second time a row comes from the cache, where it was
 * a moment ago. */
template <typename T> static __global__ void __launch_bounds__(GB_TILE_THREADS) logits_kernel(gb_logits l,
    gb_rows logits, gb_rows slope, int op, gb_cuda_fault *fault) {
  for (int64_t row = gb_first_row(); row < l.rows; row += gb_rows_at_once()) {
    int64_t index = class_of(l, row, op, fault), start = row * l.classes;
    gb_max_sum<T> s = { (T)-INFINITY, 0 };
    T loss = 0, held[GB_TILE];
    if (index >= 0) { /* the same for all threads of the row */
      T own = ((const T *)l.logits)[start + index];
      for (gb_share share = gb_share_of(logits, start); gb_is_tile(share, l.classes); gb_next_tile(&share)) {
        gb_row_hold<T, GB_TILE>(logits, start, share, held, (T)-INFINITY);
        gb_max_sum_add_all<T, GB_TILE>(&s, held);
      }
      s = gb_max_sum_join(s);
      loss = log_of(s.sum) - (own - s.max);
    }
    T scale = 1 / s.sum;
    for (gb_share share = gb_share_of(logits, start); l.slope && gb_is_tile(share, l.classes); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(logits, start, share, held, (T)-INFINITY);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) {
        int64_t i = gb_four_at(share, k / GB_LANES) + k % GB_LANES;
        T part = index < 0 ? (T)0 : gb_row_exp(held[k] - s.max) * scale;
        held[k] = i == index ? part - 1 : part;
      }
      gb_row_put<T, GB_TILE>(slope, start, share, held);
    }
    if (threadIdx.x == 0) ((T *)l.losses)[row] = loss;
    __syncwarp(); /* rows of one warp go on together */
  }
}

extern "C" void gb_logits_run(gb_cuda_call *call, const gb_logits *l) {
  gb_row_shape s = gb_shape_tiles(l->rows, l->classes);
  gb_rows logits = gb_rows_over(l->logits, l->lane, l->rows, l->classes),
      slope = gb_rows_over(l->slope, l->slope_dtype, l->rows, l->classes);
  if (l->lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, logits_kernel<double>, s.grid, s.block, 0, *l, logits, slope, (int)call->op, call->fault);
  else GB_LAUNCH(call->stream, logits_kernel<float>, s.grid, s.block, 0, *l, logits, slope, (int)call->op, call->fault);
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
