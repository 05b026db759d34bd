/* cuda/softmax.cu - softmax, log_softmax and their gradients, along any one dim.
 *
 * A row that fits in the registers of its threads (8,192 elements) is read once and written once; a longer one is read twice (its largest
 * element and its sum come from one pass). Traffic: x and y forward; grad, y and dx backward. One exponential per element. */
#include "cuda/families.h"
#include "cuda/rows.cuh"

/* {==== forward ==== */

template <typename T> static GB_DEVICE T softmax_value(T x, T most, T sum, T log_sum, bool log) {
  return log ? x - most - log_sum : gb_exp(x - most) / sum;
}
static GB_DEVICE float log_of(float x) { return logf(x); }
static GB_DEVICE double log_of(double x) { return log(x); }

/* PER elements of a row in each thread. */
template <typename T, int PER> __global__ void __launch_bounds__(gb_most_threads(PER)) softmax_held(gb_rows x, gb_rows y, bool log) {
  int first = (int)threadIdx.x, threads = (int)blockDim.x;
  for (int64_t row = gb_first_row(); row < x.count; row += gb_rows_at_once()) {
    T held[PER], most = (T)-INFINITY, sum = 0;
    gb_row_hold<T, PER>(x, gb_at(x.outer, row), first, threads, held, (T)-INFINITY);
    GB_UNROLL for (int k = 0; k < PER; k++) most = gb_most_of::of(most, held[k]);
    most = gb_row_largest(most);
    GB_UNROLL for (int k = 0; k < PER; k++) {
      if (first + k * threads >= x.length) continue;
      T share = gb_exp(held[k] - most);
      sum += share;
      if (!log) held[k] = share;
    }
    sum = gb_row_sum(sum);
    T log_sum = log ? log_of(sum) : (T)0, scale = 1 / sum;
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = log ? held[k] - most - log_sum : held[k] * scale;
    gb_row_put<T, PER>(y, gb_at(y.outer, row), first, threads, held);
  }
}

/* Rows too long to hold. */
template <typename T> __global__ void __launch_bounds__(gb_most_threads(0)) softmax_long(gb_rows x, gb_rows y, bool log) {
  for (int64_t row = gb_first_row(); row < x.count; row += gb_rows_at_once()) {
    int64_t from = gb_at(x.outer, row), to = gb_at(y.outer, row);
    gb_max_sum<T> s = { (T)-INFINITY, 0 };
    for (int64_t i = threadIdx.x; i < x.length; i += blockDim.x) gb_max_sum_add(&s, gb_row_load<T>(x, from, i));
    s = gb_max_sum_join(s);
    T log_sum = log ? log_of(s.sum) : (T)0;
    for (int64_t i = threadIdx.x; i < x.length; i += blockDim.x)
      gb_row_store<T>(y, to, i, softmax_value(gb_row_load<T>(x, from, i), s.max, s.sum, log_sum, log));
  }
}

template <typename T> static void launch_forward(gb_cuda_call *call, const gb_rows *x, const gb_rows *y, bool log) {
  gb_row_shape s = gb_shape_rows(x->count, x->length);
  if (s.per == 4) GB_LAUNCH(call->stream, GB_KERNEL(softmax_held<T, 4>), s.grid, s.block, 0, *x, *y, log);
  else if (s.per == 16) GB_LAUNCH(call->stream, GB_KERNEL(softmax_held<T, 16>), s.grid, s.block, 0, *x, *y, log);
  else GB_LAUNCH(call->stream, softmax_long<T>, s.grid, s.block, 0, *x, *y, log);
}

/* The dim of the row's `dim` attribute, as a mask. */
static uint32_t dim_mask(const gb_cuda_tensor *x, const gb_attr *dim) {
  return x->ndim ? 1u << (dim->integer < 0 ? dim->integer + x->ndim : dim->integer) : 0;
}

static gb_status forward(gb_cuda_call *call, bool log) {
  const gb_cuda_tensor *x = call->in[0], *y = call->out[0];
  uint32_t mask = dim_mask(x, &call->attrs[0]);
  gb_rows from = gb_rows_of(x, mask), to = gb_rows_of(y, mask);
  if (y->numel == 0) return GB_OK;
  if (gb_compute_dtype(x->dtype, y->dtype) == GB_FLOAT64) launch_forward<double>(call, &from, &to, log);
  else launch_forward<float>(call, &from, &to, log);
  return GB_OK;
}

static gb_status softmax(gb_cuda_call *call) { return forward(call, false); }
static gb_status log_softmax(gb_cuda_call *call) { return forward(call, true); }

/* ====} */

/* {==== backward ==== */

/* dx = y * (g - sum(g * y)), or of the logarithm g - exp(y) * sum(g). */
template <typename T, int PER> __global__ void __launch_bounds__(gb_most_threads(PER)) softmax_backward_held(gb_rows g, gb_rows y, gb_rows dx, bool log) {
  int first = (int)threadIdx.x, threads = (int)blockDim.x;
  for (int64_t row = gb_first_row(); row < y.count; row += gb_rows_at_once()) {
    T grad[PER], held[PER], sum = 0;
    gb_row_hold<T, PER>(g, gb_at(g.outer, row), first, threads, grad, (T)0);
    gb_row_hold<T, PER>(y, gb_at(y.outer, row), first, threads, held, (T)0);
    GB_UNROLL for (int k = 0; k < PER; k++) sum += log ? grad[k] : grad[k] * held[k];
    sum = gb_row_sum(sum);
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = log ? grad[k] - gb_exp(held[k]) * sum : held[k] * (grad[k] - sum);
    gb_row_put<T, PER>(dx, gb_at(dx.outer, row), first, threads, held);
  }
}

template <typename T> __global__ void __launch_bounds__(gb_most_threads(0)) softmax_backward_long(gb_rows g, gb_rows y, gb_rows dx, bool log) {
  for (int64_t row = gb_first_row(); row < y.count; row += gb_rows_at_once()) {
    int64_t from = gb_at(g.outer, row), by = gb_at(y.outer, row), to = gb_at(dx.outer, row);
    T sum = 0;
    for (int64_t i = threadIdx.x; i < y.length; i += blockDim.x)
      sum += log ? gb_row_load<T>(g, from, i) : gb_row_load<T>(g, from, i) * gb_row_load<T>(y, by, i);
    sum = gb_row_sum(sum);
    for (int64_t i = threadIdx.x; i < y.length; i += blockDim.x) {
      T grad = gb_row_load<T>(g, from, i), value = gb_row_load<T>(y, by, i);
      gb_row_store<T>(dx, to, i, log ? grad - gb_exp(value) * sum : value * (grad - sum));
    }
  }
}

template <typename T> static void launch_backward(gb_cuda_call *call, const gb_rows *g, const gb_rows *y, const gb_rows *dx, bool log) {
  gb_row_shape s = gb_shape_rows(y->count, y->length);
  if (s.per == 4) GB_LAUNCH(call->stream, GB_KERNEL(softmax_backward_held<T, 4>), s.grid, s.block, 0, *g, *y, *dx, log);
  else if (s.per == 16) GB_LAUNCH(call->stream, GB_KERNEL(softmax_backward_held<T, 16>), s.grid, s.block, 0, *g, *y, *dx, log);
  else GB_LAUNCH(call->stream, softmax_backward_long<T>, s.grid, s.block, 0, *g, *y, *dx, log);
}

static gb_status backward(gb_cuda_call *call, bool log) {
  const gb_cuda_tensor *g = call->in[0], *y = call->in[1], *dx = call->out[0];
  uint32_t mask = dim_mask(y, &call->attrs[0]);
  gb_rows grad = gb_rows_of(g, mask), value = gb_rows_of(y, mask), to = gb_rows_of(dx, mask);
  if (dx->numel == 0) return GB_OK;
  if (gb_compute_dtype(g->dtype, dx->dtype) == GB_FLOAT64) launch_backward<double>(call, &grad, &value, &to, log);
  else launch_backward<float>(call, &grad, &value, &to, log);
  return GB_OK;
}

static gb_status softmax_backward(gb_cuda_call *call) { return backward(call, false); }
static gb_status log_softmax_backward(gb_cuda_call *call) { return backward(call, true); }

/* ====} */

const gb_cuda_row gb_cuda_softmax[] = {
  { GB_OP_softmax, softmax, false }, { GB_OP_log_softmax, log_softmax, false }, { GB_OP_softmax_backward, softmax_backward, false },
  { GB_OP_log_softmax_backward, log_softmax_backward, false }, { GB_OP_COUNT, NULL, false },
};
