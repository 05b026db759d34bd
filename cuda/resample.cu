/* cuda/resample.cu - resample and its gradient: every element along one dim a weighted sum of a window of the row.
 *
 * One thread to an element of the result, in the order of its memory, so every element is written once and summed in a
 * fixed order. Windows and weights are computed where they are needed (base/resample.h); backward finds the first
 * window that its element lies in by halving, since they follow one another. */
#include "cuda/device.cuh"
#include "base/resample.h"
#include "cuda/families.h"

/* x [outer, n, inner] -> y [outer, m, inner]. */
typedef struct resample_job {
  gb_resampling r;
  const char *x;
  char *y;
  int x_dtype, y_dtype;
  int64_t n, m, inner, numel;
} resample_job;

/* The first result whose window reaches element i of the row, or r.out. */
static GB_DEVICE int64_t first_with(const gb_resampling &r, int64_t i) {
  int64_t low = 0, high = r.out;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    gb_resample_window w = gb_resample_window_of(&r, middle);
    if (w.first + w.count > i) high = middle;
    else low = middle + 1;
  }
  return low;
}

template <typename T> static GB_DEVICE T from_row(const resample_job &j, int64_t outer, int64_t at, int64_t inner) {
  return gb_load<T>(j.x, j.x_dtype, (outer * j.n + at) * j.inner + inner);
}

template <typename T> struct resampled {
  static GB_DEVICE T of(const resample_job &j, int64_t outer, int64_t o, int64_t inner) {
    gb_resample_window w = gb_resample_window_of(&j.r, o);
    T sum = from_row<T>(j, outer, w.first, inner) * (T)gb_resample_weight(&j.r, &w, w.first); /* -0 stays -0 */
    for (int64_t k = w.first + 1; k < w.first + w.count; k++)
      sum += from_row<T>(j, outer, k, inner) * (T)gb_resample_weight(&j.r, &w, k);
    return sum;
  }
};

template <typename T> struct resampled_backward {
  static GB_DEVICE T of(const resample_job &j, int64_t outer, int64_t i, int64_t inner) {
    T sum = 0;
    for (int64_t o = first_with(j.r, i); o < j.r.out; o++) {
      gb_resample_window w = gb_resample_window_of(&j.r, o);
      if (w.first > i) break;
      sum += from_row<T>(j, outer, o, inner) * (T)gb_resample_weight(&j.r, &w, i);
    }
    return sum;
  }
};

template <template <typename> class F, typename T> __global__ void resample_elements(resample_job j) {
  for (int64_t i = gb_thread<int64_t>(); i < j.numel; i += gb_grid_size<int64_t>())
    gb_store<T>(j.y, j.y_dtype, i, F<T>::of(j, i / j.inner / j.m, i / j.inner % j.m, i % j.inner));
}

/* The dims of x on both sides of the one that is resampled. */
template <template <typename> class F>
static gb_status run(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_cuda_tensor *y, int dim,
                     const gb_resampling &r) {
  resample_job j = {};
  j.r = r;
  j.x = x->data;
  j.y = y->data;
  j.x_dtype = x->dtype;
  j.y_dtype = y->dtype;
  j.n = x->shape[dim];
  j.m = y->shape[dim];
  j.numel = y->numel;
  j.inner = 1;
  for (int d = dim + 1; d < x->ndim; d++) j.inner *= x->shape[d];
  unsigned grid = gb_blocks(j.numel, GB_THREADS);
  if (x->dtype == GB_FLOAT64 || y->dtype == GB_FLOAT64)
    GB_LAUNCH(call->stream, GB_KERNEL(resample_elements<F, double>), grid, GB_THREADS, 0, j);
  else GB_LAUNCH(call->stream, GB_KERNEL(resample_elements<F, float>), grid, GB_THREADS, 0, j);
  return GB_OK;
}

/* A dim that may count from the end. */
static int dim_of(const gb_cuda_tensor *t, int64_t dim) { return (int)(dim < 0 ? dim + t->ndim : dim); }

static gb_status resample(gb_cuda_call *call) {
  const gb_attrs_resample *attrs = GB_ATTRS(call, resample);
  const gb_cuda_tensor *x = GB_CUDA_IN(call, resample)->x, *y = GB_CUDA_OUT(call, resample)->y;
  int dim = dim_of(x, attrs->dim.integer);
  return run<resampled>(call, x, y, dim, GB_RESAMPLING(attrs, x->shape[dim], y->shape[dim]));
}

static gb_status resample_backward(gb_cuda_call *call) {
  const gb_attrs_resample_backward *attrs = GB_ATTRS(call, resample_backward);
  const gb_cuda_tensor *grad = GB_CUDA_IN(call, resample_backward)->grad;
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, resample_backward)->dx;
  int dim = dim_of(grad, attrs->dim.integer);
  return run<resampled_backward>(call, grad, dx, dim, GB_RESAMPLING(attrs, dx->shape[dim], grad->shape[dim]));
}

const gb_cuda_row gb_cuda_resample[] = {
  { GB_OP_resample, resample, false }, { GB_OP_resample_backward, resample_backward, false },
  { GB_OP_COUNT, NULL, false },
};
