/* cuda/linear_loss.cu - between the products of linear_cross_entropy: losses of rows of logits, and the logits' gradient. */
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

template <typename T> static __global__ void logits_kernel(gb_logits l, int op, gb_cuda_fault *fault) {
  for (int64_t row = gb_first_row(); row < l.rows; row += gb_rows_at_once()) {
    int64_t index = class_of(l, row, op, fault);
    const T *x = (const T *)l.logits + row * l.classes;
    gb_max_sum<T> s = { (T)-INFINITY, 0 };
    T loss = 0, own = 0;
    if (index >= 0) { /* the same for all threads of the row */
      own = x[index];
      for (int64_t i = threadIdx.x; i < l.classes; i += blockDim.x) gb_max_sum_add(&s, x[i]);
      s = gb_max_sum_join(s);
      loss = log_of(s.sum) - (own - s.max);
    }
    for (int64_t i = threadIdx.x; l.slope && i < l.classes; i += blockDim.x) {
      T share = index < 0 ? (T)0 : gb_exp(x[i] - s.max) / s.sum;
      gb_store<T>(l.slope, l.slope_dtype, row * l.classes + i, i == index ? share - 1 : share);
    }
    if (threadIdx.x == 0) ((T *)l.losses)[row] = loss;
    __syncwarp(); /* rows of one warp go on together */
  }
}

extern "C" void gb_logits_run(gb_cuda_call *call, const gb_logits *l) {
  gb_row_shape s = gb_shape_rows(l->rows, l->classes);
  if (l->lane == GB_FLOAT64) GB_LAUNCH(call->stream, logits_kernel<double>, s.grid, s.block, 0, *l, (int)call->op, call->fault);
  else GB_LAUNCH(call->stream, logits_kernel<float>, s.grid, s.block, 0, *l, (int)call->op, call->fault);
}

/* A thread per class, rows in order. */
template <typename T> static __global__ void bias_kernel(gb_logits l, T *dbias, bool add) {
  for (int64_t i = gb_thread<int64_t>(); i < l.classes; i += gb_grid_size<int64_t>()) {
    double sum = 0;
    for (int64_t row = 0; row < l.rows; row++) sum += gb_load<double>(l.slope, l.slope_dtype, row * l.classes + i);
    dbias[i] = (T)((add ? (double)dbias[i] : 0) + sum);
  }
}

extern "C" void gb_logits_bias(gb_cuda_call *call, const gb_logits *l, void *dbias, bool add) {
  unsigned blocks = gb_blocks(l->classes, GB_THREADS);
  if (l->lane == GB_FLOAT64) GB_LAUNCH(call->stream, bias_kernel<double>, blocks, GB_THREADS, 0, *l, (double *)dbias, add);
  else GB_LAUNCH(call->stream, bias_kernel<float>, blocks, GB_THREADS, 0, *l, (float *)dbias, add);
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
  if (l->lane == GB_FLOAT64) GB_LAUNCH(call->stream, reduce_kernel<double>, 1, GB_THREADS, 0, *l, mean, out, (int)dtype);
  else GB_LAUNCH(call->stream, reduce_kernel<float>, 1, GB_THREADS, 0, *l, mean, out, (int)dtype);
}
