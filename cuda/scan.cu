/* cuda/scan.cu - running products and extremes along a dim, the gradient of products, positions among sorted values.
 *
 * Products and extremes are scans (scan.cuh), in float64 or int64, by the length of a row. Of the gradient a thread
 * goes through a row from end to end: x is read twice, and sums in float64 are written and read. */
#include <float.h>

#include "cuda/families.h"
#include "cuda/scan.cuh"

/* The rows of t along a dim. */
static gb_rows along(const gb_cuda_tensor *t, const gb_attr *dim) {
  int64_t at = dim->integer;
  return gb_rows_of(t, t->ndim ? 1u << (at < 0 ? at + t->ndim : at) : 0);
}

/* {==== products ==== */

template <typename N> struct multiplied {
  typedef N T;
  static GB_DEVICE T nothing() { return 1; }
  static GB_DEVICE T of(T a, T b) { return a * b; }
};
template <> GB_DEVICE int64_t multiplied<int64_t>::of(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}

template <typename T> static gb_status products(gb_cuda_call *call, const gb_rows &x, const gb_rows &out) {
  gb_scan_numbers<multiplied<T>> f = { x, out, 0, 0 };
  return gb_scan_run(call, f, x.count, x.length);
}

static gb_status cumprod(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, cumprod)->x, *y = GB_CUDA_OUT(call, cumprod)->y;
  const gb_attr *dim = &GB_ATTRS(call, cumprod)->dim;
  gb_rows from = along(x, dim), to = along(y, dim);
  if (y->numel == 0) return GB_OK;
  return gb_is_float(y->dtype) ? products<double>(call, from, to) : products<int64_t>(call, from, to);
}

/* As the CPU's product_gradient_again. Of the elements of rows, those at the same place lie beside each other in s. */
static GB_DEVICE void product_gradient_again(const gb_rows &grad, const gb_rows &x, const gb_rows &dx, double *s,
                                             int64_t row) {
  int64_t g = gb_at(grad.outer, row), from = gb_at(x.outer, row), to = gb_at(dx.outer, row), zero = x.length;
  double before = 1, sum = 0, next = 0;
  for (int64_t i = 0; i < x.length; i++) {
    double own = gb_row_load<double>(grad, g, i), factor = gb_row_load<double>(x, from, i);
    if (!(fabs(own) <= DBL_MAX && fabs(factor) <= DBL_MAX)) return;
    if (factor == 0 && zero == x.length) zero = i;
  }
  for (int64_t i = x.length - 1; i >= zero; i--) {
    sum = gb_row_load<double>(grad, g, i) + (next != 0 ? next * sum : 0);
    next = gb_row_load<double>(x, from, i);
    gb_row_store<double>(dx, to, i, 0);
  }
  for (int64_t i = 0; i < zero; i++) {
    double own = gb_row_load<double>(grad, g, i);
    before *= gb_row_load<double>(x, from, i);
    s[i * x.count + row] = own != 0 ? own * before : 0;
  }
  if (zero < x.length && before != 0 && sum != 0) gb_row_store<double>(dx, to, zero, before * sum);
  sum = 0;
  for (int64_t i = zero - 1; i >= 0; i--) {
    if (fabs(sum) <= DBL_MAX) sum += s[i * x.count + row];
    gb_row_store<double>(dx, to, i, sum / gb_row_load<double>(x, from, i));
  }
}

/* As the CPU's: s[i] = g[i] + x[i + 1] s[i + 1], in float64, since it may be larger than any element of dx. */
static __global__ void product_gradient(gb_rows grad, gb_rows x, gb_rows dx, double *s) {
  for (int64_t row = gb_thread<int64_t>(); row < x.count; row += gb_grid_size<int64_t>()) {
    int64_t g = gb_at(grad.outer, row), from = gb_at(x.outer, row), to = gb_at(dx.outer, row);
    double rest = 0, before = 1, factor = 0;
    bool finite = true;
    for (int64_t i = x.length - 1; i >= 0; i--) {
      double own = gb_row_load<double>(grad, g, i);
      rest = i + 1 < x.length ? own + factor * rest : own;
      factor = gb_row_load<double>(x, from, i);
      s[i * x.count + row] = rest;
    }
    for (int64_t i = 0; i < x.length; i++) {
      double own = s[i * x.count + row] * before;
      finite &= fabs(own) <= DBL_MAX;
      gb_row_store<double>(dx, to, i, own);
      before *= gb_row_load<double>(x, from, i);
    }
    if (!finite) product_gradient_again(grad, x, dx, s, row);
  }
}

static gb_status cumprod_backward(gb_cuda_call *call) {
  const gb_cuda_in_cumprod_backward *in = GB_CUDA_IN(call, cumprod_backward);
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, cumprod_backward)->dx;
  const gb_attr *dim = &GB_ATTRS(call, cumprod_backward)->dim;
  if (dx->numel == 0) return GB_OK;
  gb_rows x = along(in->x, dim);
  double *s = (double *)gb_cuda_scratch(call, (size_t)dx->numel * sizeof(double));
  if (!s) return GB_EMEMORY;
  GB_LAUNCH(call->stream, product_gradient, gb_blocks(x.count, GB_THREADS), GB_THREADS, 0, along(in->grad, dim), x,
            along(dx, dim), s);
  return GB_OK;
}

/* ====} */

/* {==== extremes ==== */

/* Scanned are places in the row, -1 for none, so that a fold looks at x. The last of equal ones; a NaN is taken over by
 * a later NaN only. */
template <typename N> struct extremes {
  typedef int64_t T;
  gb_rows x, values, indices;
  bool largest;
  int64_t from, to, places;
  static GB_DEVICE T nothing() { return -1; }
  GB_DEVICE void begin(int64_t row) {
    from = gb_at(x.outer, row), to = gb_at(values.outer, row), places = gb_at(indices.outer, row);
  }
  __device__ __forceinline__ T fold(T a, T b) const {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    N best = gb_row_load<N>(x, from, a), v = gb_row_load<N>(x, from, b);
    return v != v || (best == best && (largest ? v >= best : v <= best)) ? b : a;
  }
  static GB_DEVICE T at(int64_t i) { return i; }
  GB_DEVICE void set(int64_t i, T v) const {
    gb_row_store<N>(values, to, i, gb_row_load<N>(x, from, v));
    gb_row_store<int64_t>(indices, places, i, v);
  }
  GB_DEVICE void hold(const gb_share &share, T *v) const {
    int64_t first = gb_four_at(share, 0);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = first + l < x.length ? first + l : -1;
  }
  GB_DEVICE void put(const gb_share &share, const T *v) const {
    int64_t first = gb_four_at(share, 0);
    for (int l = 0; l < GB_LANES && first + l < x.length; l++) set(first + l, v[l]);
  }
};

template <typename N> static gb_status find_extremes(gb_cuda_call *call, const gb_rows &x, const gb_rows &values,
                                                     const gb_rows &indices, bool largest) {
  extremes<N> f = { x, values, indices, largest, 0, 0, 0 };
  return gb_scan_run(call, f, x.count, x.length);
}

static gb_status running_extreme(gb_cuda_call *call, bool largest) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, cummax)->x;
  const gb_cuda_out_cummax *out = GB_CUDA_OUT(call, cummax);
  const gb_attr *dim = &GB_ATTRS(call, cummax)->dim;
  gb_rows from = along(x, dim), values = along(out->values, dim), indices = along(out->indices, dim);
  if (x->numel == 0) return GB_OK;
  return gb_is_float(x->dtype) ? find_extremes<double>(call, from, values, indices, largest)
      : find_extremes<int64_t>(call, from, values, indices, largest);
}

static gb_status cummax(gb_cuda_call *call) { return running_extreme(call, true); }
static gb_status cummin(gb_cuda_call *call) { return running_extreme(call, false); }

/* ====} */

/* {==== positions among sorted values ==== */

/* A thread to each value, in halves of the line that it belongs to. NaN counts as the largest, as in sort. */
template <typename T> __global__ void search_kernel(gb_rows line, gb_rows values, int64_t *to, bool right) {
  for (int64_t i = gb_thread<int64_t>(); i < values.count * values.length; i += gb_grid_size<int64_t>()) {
    int64_t row = i / values.length, start = gb_at(line.outer, line.count == 1 ? 0 : row), low = 0, high = line.length;
    T value = gb_row_load<T>(values, gb_at(values.outer, row), i % values.length);
    while (low < high) {
      int64_t middle = low + (high - low) / 2;
      T x = gb_row_load<T>(line, start, middle);
      bool before = value != value ? right || x == x : right ? x <= value : x < value;
      if (before) low = middle + 1;
      else high = middle;
    }
    to[i] = low;
  }
}

static gb_status search_rows(gb_cuda_call *call) {
  const gb_cuda_in_search_rows *in = GB_CUDA_IN(call, search_rows);
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, search_rows)->indices;
  bool right = GB_ATTRS(call, search_rows)->right.integer != 0;
  if (out->numel == 0) return GB_OK;
  gb_rows line = gb_rows_of(in->x, 1u << (in->x->ndim - 1));
  gb_rows values = gb_rows_of(in->values, 1u << (in->values->ndim - 1));
  unsigned grid = gb_blocks(out->numel, GB_THREADS);
  int64_t *to = (int64_t *)(void *)out->data;
  if (gb_is_float(in->x->dtype) || gb_is_float(in->values->dtype)) {
    GB_LAUNCH(call->stream, search_kernel<double>, grid, GB_THREADS, 0, line, values, to, right);
  } else { GB_LAUNCH(call->stream, search_kernel<int64_t>, grid, GB_THREADS, 0, line, values, to, right); }
  return GB_OK;
}

/* ====} */

const gb_cuda_row gb_cuda_scan[] = {
  { GB_OP_cumprod, cumprod, false }, { GB_OP_cumprod_backward, cumprod_backward, false },
  { GB_OP_cummax, cummax, false }, { GB_OP_cummin, cummin, false }, { GB_OP_search_rows, search_rows, false },
  { GB_OP_COUNT, NULL, false },
};
