/* cuda/softmax.cu - softmax, log_softmax and their gradients, along any one dim.
 *
 * A row that fits in the registers of its threads (8,192 elements, some fewer where it does not begin aligned; up to
 * 1,024 those of one warp) is read once and written once; a longer one is read twice (its largest element and its sum
 * come from one pass). Traffic: x and y forward; grad, y and dx backward. One exponential per element. */
#include "cuda/families.h"
#include "cuda/rows.cuh"

/* {==== forward ==== */

static GB_DEVICE float log_of(float x) { return logf(x); }
static GB_DEVICE double log_of(double x) { return log(x); }

/* PER elements of a row in each thread. */
template <int PER> __global__ void __launch_bounds__(gb_most_threads(PER)) softmax_held(gb_rows x, gb_rows y,
    bool log) {
  for (int64_t row = gb_first_row(); row < x.count; row += gb_rows_at_once()) {
    int64_t to = gb_at(y.outer, row);
    gb_share share = gb_share_of(y, to);
    float held[PER], most = (float)-INFINITY, sum = 0;
    gb_row_hold<float, PER, true>(x, gb_at(x.outer, row), share, held, (float)-INFINITY);
    GB_UNROLL for (int k = 0; k < PER; k++) most = gb_most_of::of(most, held[k]);
    most = gb_row_largest(most);
    GB_UNROLL for (int k = 0; k < PER; k++) {
      if (!gb_is_held(share, x.length, k)) continue;
      float part = gb_row_exp(held[k] - most);
      sum += part;
      if (!log) held[k] = part;
    }
    sum = gb_row_sum(sum);
    float log_sum = log ? log_of(sum) : (float)0, scale = 1 / sum;
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = log ? held[k] - most - log_sum : held[k] * scale;
    gb_row_put<float, PER, true>(y, to, share, held);
  }
}

/* Rows too long to hold, and those without lanes. */
template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) softmax_long(gb_rows x, gb_rows y,
    bool log) {
  for (int64_t row = gb_first_row(); row < x.count; row += gb_rows_at_once()) {
    int64_t from = gb_at(x.outer, row), to = gb_at(y.outer, row);
    gb_max_sum<T> s = { (T)-INFINITY, 0 };
    T held[GB_TILE];
    for (gb_share share = gb_share_of(y, to); gb_is_tile(share, x.length); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(x, from, share, held, (T)-INFINITY);
      gb_max_sum_add_all<T, GB_TILE>(&s, held);
    }
    s = gb_max_sum_join(s);
    T log_sum = log ? log_of(s.sum) : (T)0, scale = 1 / s.sum;
    for (gb_share share = gb_share_of(y, to); gb_is_tile(share, x.length); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(x, from, share, held, (T)-INFINITY);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) held[k] = log ? held[k] - s.max - log_sum
          : gb_row_exp(held[k] - s.max) * scale;
      gb_row_put<T, GB_TILE>(y, to, share, held);
    }
  }
}

template <typename T> static void launch_forward(gb_cuda_call *call, const gb_rows *x, const gb_rows *y, bool log) {
  gb_row_shape s = gb_shape_held(*y, sizeof(T) == 4 && gb_has_lanes(*x) && gb_has_lanes(*y), 32);
  if (s.per == 4) GB_LAUNCH(call->stream, softmax_held<4>, s.grid, s.block, 0, *x, *y, log);
  else if (s.per == 16) GB_LAUNCH(call->stream, softmax_held<16>, s.grid, s.block, 0, *x, *y, log);
  else if (s.per == 32) GB_LAUNCH(call->stream, softmax_held<32>, s.grid, s.block, 0, *x, *y, log);
  else GB_LAUNCH(call->stream, softmax_long<T>, s.grid, s.block, 0, *x, *y, log);
}

/* The dim of the row's `dim` attribute, as a mask. */
static uint32_t dim_mask(const gb_cuda_tensor *x, const gb_attr &dim) {
  return x->ndim ? 1u << (dim.integer < 0 ? dim.integer + x->ndim : dim.integer) : 0;
}

static gb_status forward(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_attr &dim, bool log,
                         const gb_cuda_tensor *y) {
  uint32_t mask = dim_mask(x, dim);
  gb_rows from = gb_rows_of(x, mask), to = gb_rows_of(y, mask);
  if (y->numel == 0) return GB_OK;
  if (gb_compute_dtype(x->dtype, y->dtype) == GB_FLOAT64) launch_forward<double>(call, &from, &to, log);
  else launch_forward<float>(call, &from, &to, log);
  return GB_OK;
}

static gb_status softmax(gb_cuda_call *call) {
  return forward(call, GB_CUDA_IN(call, softmax)->x, GB_ATTRS(call, softmax)->dim, false,
                 GB_CUDA_OUT(call, softmax)->y);
}
static gb_status log_softmax(gb_cuda_call *call) {
  return forward(call, GB_CUDA_IN(call, log_softmax)->x, GB_ATTRS(call, log_softmax)->dim, true,
                 GB_CUDA_OUT(call, log_softmax)->y);
}

/* ====} */

/* {==== backward ==== */

/* dx = y * (g - sum(g * y)), or of the logarithm g - exp(y) * sum(g). */
template <int PER> __global__ void __launch_bounds__(gb_most_threads(PER)) softmax_backward_held(gb_rows g, gb_rows y,
    gb_rows dx, bool log) {
  for (int64_t row = gb_first_row(); row < y.count; row += gb_rows_at_once()) {
    int64_t to = gb_at(dx.outer, row);
    gb_share share = gb_share_of(dx, to);
    float grad[PER], held[PER], sum = 0;
    gb_row_hold<float, PER, true>(g, gb_at(g.outer, row), share, grad, (float)0);
    gb_row_hold<float, PER, true>(y, gb_at(y.outer, row), share, held, (float)0);
    GB_UNROLL for (int k = 0; k < PER; k++) sum += log ? grad[k] : grad[k] * held[k];
    sum = gb_row_sum(sum);
    GB_UNROLL for (int k = 0; k < PER; k++) held[k] = log ? grad[k] - gb_row_exp(held[k]) * sum
        : held[k] * (grad[k] - sum);
    gb_row_put<float, PER, true>(dx, to, share, held);
  }
}

template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) softmax_backward_long(gb_rows g, gb_rows y,
    gb_rows dx, bool log) {
  for (int64_t row = gb_first_row(); row < y.count; row += gb_rows_at_once()) {
    int64_t from = gb_at(g.outer, row), by = gb_at(y.outer, row), to = gb_at(dx.outer, row);
    T grad[GB_TILE], held[GB_TILE], sum = 0;
    for (gb_share share = gb_share_of(dx, to); gb_is_tile(share, y.length); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(g, from, share, grad, (T)0);
      gb_row_hold<T, GB_TILE>(y, by, share, held, (T)0);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) sum += log ? grad[k] : grad[k] * held[k];
    }
    sum = gb_row_sum(sum);
    for (gb_share share = gb_share_of(dx, to); gb_is_tile(share, y.length); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(g, from, share, grad, (T)0);
      gb_row_hold<T, GB_TILE>(y, by, share, held, (T)0);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) held[k] = log ? grad[k] - gb_row_exp(held[k]) * sum
          : held[k] * (grad[k] - sum);
      gb_row_put<T, GB_TILE>(dx, to, share, held);
    }
  }
}

template <typename T> static void launch_backward(gb_cuda_call *call, const gb_rows *g, const gb_rows *y,
                                                  const gb_rows *dx, bool log) {
  gb_row_shape s = gb_shape_held(*dx, sizeof(T) == 4 && gb_has_lanes(*g) && gb_has_lanes(*y) && gb_has_lanes(*dx), 16);
  if (s.per == 4) GB_LAUNCH(call->stream, softmax_backward_held<4>, s.grid, s.block, 0, *g, *y, *dx, log);
  else if (s.per == 16) GB_LAUNCH(call->stream, softmax_backward_held<16>, s.grid, s.block, 0, *g, *y, *dx, log);
  else GB_LAUNCH(call->stream, softmax_backward_long<T>, s.grid, s.block, 0, *g, *y, *dx, log);
}

static gb_status backward(gb_cuda_call *call, const gb_cuda_tensor *g, const gb_cuda_tensor *y, const gb_attr &dim,
                          bool log, const gb_cuda_tensor *dx) {
  uint32_t mask = dim_mask(y, dim);
  gb_rows grad = gb_rows_of(g, mask), value = gb_rows_of(y, mask), to = gb_rows_of(dx, mask);
  if (dx->numel == 0) return GB_OK;
  if (gb_compute_dtype(g->dtype, dx->dtype) == GB_FLOAT64) launch_backward<double>(call, &grad, &value, &to, log);
  else launch_backward<float>(call, &grad, &value, &to, log);
  return GB_OK;
}

static gb_status softmax_backward(gb_cuda_call *call) {
  const gb_cuda_in_softmax_backward *in = GB_CUDA_IN(call, softmax_backward);
  const gb_attr &dim = GB_ATTRS(call, softmax_backward)->dim;
  return backward(call, in->grad, in->y, dim, false, GB_CUDA_OUT(call, softmax_backward)->dx);
}

static gb_status log_softmax_backward(gb_cuda_call *call) {
  const gb_cuda_in_log_softmax_backward *in = GB_CUDA_IN(call, log_softmax_backward);
  const gb_attr &dim = GB_ATTRS(call, log_softmax_backward)->dim;
  return backward(call, in->grad, in->y, dim, true, GB_CUDA_OUT(call, log_softmax_backward)->dx);
}

/* ====} */

const gb_cuda_row gb_cuda_softmax[] = {
  { GB_OP_softmax, softmax, false }, { GB_OP_log_softmax, log_softmax, false },
      { GB_OP_softmax_backward, softmax_backward, false },
  { GB_OP_log_softmax_backward, log_softmax_backward, false }, { GB_OP_COUNT, NULL, false },
};
