/* cuda/pool2d.cu - maximum and average pooling and their gradients.
 *
 * One thread to an element of the result, in the order of its memory. Forward it gathers its window; backward, the
 * windows that it lies in, so every element is written once, rounded once, and summed in a fixed order. Where tensors
 * lie channels last the library is asked first (pool.h), but for a maximum whose positions somebody needs. Traffic: x
 * (or grad) is read kernel / stride times per dimension, mostly from cache, the result written once. */
#include "cuda/elements.cuh"
#include "cuda/families.h"
#include "cuda/pool.h"

/* {==== windows ==== */

/* One dimension of a pooling. kernel 0: adaptive, where window i is floor(i * in / out) .. ceil((i + 1) * in / out) -
 * 1. */
/* step: how far apart the elements of a window are, which only maxima with places read; else 1. */
typedef struct window_axis { int64_t in, out, kernel, stride, padding, step; } window_axis;

/* Positions first .. end - 1. */
typedef struct span { int64_t first, end; } span;

static GB_DEVICE span clip(int64_t first, int64_t end, int64_t size) {
  span s = { first > 0 ? first : 0, end < size ? end : size };
  return s;
}

/* ceil(a / b) for b > 0 and any a. */
static GB_DEVICE int64_t divide_up(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

/* The inputs of window `out`. */
static GB_DEVICE span window_of(const window_axis &a, int64_t out) {
  span adaptive = { out * a.in / a.out, divide_up((out + 1) * a.in, a.out) };
  int64_t first = out * a.stride - a.padding, end = first + (a.kernel - 1) * a.step + 1;
  if (first < 0) first += divide_up(-first, a.step) * a.step;
  return a.kernel ? clip(first, end, a.in) : adaptive;
}

/* The windows that input `in` lies in. */
static GB_DEVICE span windows_with(const window_axis &a, int64_t in) {
  if (a.kernel) return clip(divide_up(in + a.padding - a.kernel + 1, a.stride), (in + a.padding) / a.stride + 1, a.out);
  span adaptive = { in * a.out / a.in, divide_up((in + 1) * a.out, a.in) };
  return adaptive;
}

/* What the mean over window `out` divides by, along this dimension: padding counts unless `bare`, what lies beyond it
 * does not. */
static GB_DEVICE int64_t divisor_of(const window_axis &a, int64_t out, bool bare) {
  span w = window_of(a, out);
  int64_t first = out * a.stride - a.padding, end = first + a.kernel, most = a.in + a.padding;
  return !a.kernel || bare ? w.end - w.first : (end < most ? end : most) - first;
}

/* ====} */

/* {==== walking ==== */

/* A [n, c, h, w] tensor in memory. */
typedef struct plane { char *data; int dtype; int64_t stride[4]; } plane;

typedef struct pool {
  window_axis axis[2];
  plane from, positions, to;       /* positions: uint8, written by the forward pass, read by the others; data NULL:
                                      none */
  int64_t shape[4];                /* of the result */
  int order[4];                    /* its dims from the largest stride to the smallest */
  int64_t numel;
  bool bare;                       /* of means: padding does not count; */
  int64_t divisor;                 /* and what they divide by, 0: what counts */
} pool;

/* The place of an element of the result: image, channel, row, column. */
typedef struct place { int64_t at[4]; } place;

static GB_DEVICE place place_of(const pool &p, int64_t i) {
  place r;
  for (int k = 3; k >= 0; k--) {
    r.at[p.order[k]] = i % p.shape[p.order[k]];
    i /= p.shape[p.order[k]];
  }
  return r;
}

static GB_DEVICE int64_t offset_of(const plane &t, const place &r, int64_t y, int64_t x) {
  return r.at[0] * t.stride[0] + r.at[1] * t.stride[1] + y * t.stride[2] + x * t.stride[3];
}

template <typename T> static GB_DEVICE T load_at(const plane &t, const place &r, int64_t y, int64_t x) {
  return gb_load<T>(t.data, t.dtype, offset_of(t, r, y, x));
}

/* The position of input (y, x) in the window of output (row, column): row by row, padding counted. */
static GB_DEVICE int position_in(const pool &p, int64_t row, int64_t column, int64_t y, int64_t x) {
  return (int)((y - row * p.axis[0].stride + p.axis[0].padding) * p.axis[1].kernel + x - column * p.axis[1].stride +
               p.axis[1].padding);
}

/* ====} */

/* {==== one element each ==== */

/* The largest of the window, NaN above all, and the position of the first of equal ones. */
template <typename T> struct largest {
  static GB_DEVICE T of(const pool &p, const place &r) {
    span rows = window_of(p.axis[0], r.at[2]), columns = window_of(p.axis[1], r.at[3]);
    T best = load_at<T>(p.from, r, rows.first, columns.first);
    int which = position_in(p, r.at[2], r.at[3], rows.first, columns.first);
    for (int64_t y = rows.first; y < rows.end; y++)
      for (int64_t x = columns.first; x < columns.end; x++) {
        T value = load_at<T>(p.from, r, y, x);
        if (!(value > best || value != value)) continue;
        best = value;
        which = position_in(p, r.at[2], r.at[3], y, x);
      }
    if (p.positions.data) ((uint8_t *)p.positions.data)[offset_of(p.positions, r, r.at[2], r.at[3])] = (uint8_t)which;
    return best;
  }
};

/* The same over windows with gaps, or adaptive ones; positions: the places in the image, of int64. */
template <typename T> struct placed {
  static GB_DEVICE T of(const pool &p, const place &r) {
    span rows = window_of(p.axis[0], r.at[2]), columns = window_of(p.axis[1], r.at[3]);
    T best = load_at<T>(p.from, r, rows.first, columns.first);
    int64_t which = rows.first * p.axis[1].in + columns.first;
    for (int64_t y = rows.first; y < rows.end; y += p.axis[0].step)
      for (int64_t x = columns.first; x < columns.end; x += p.axis[1].step) {
        T value = load_at<T>(p.from, r, y, x);
        if (!(value > best || value != value)) continue;
        best = value;
        which = y * p.axis[1].in + x;
      }
    if (p.positions.data) ((int64_t *)p.positions.data)[offset_of(p.positions, r, r.at[2], r.at[3])] = which;
    return best;
  }
};

/* The gradients of the windows whose maximum was here. */
template <typename T> struct largest_backward {
  static GB_DEVICE T of(const pool &p, const place &r) {
    span rows = windows_with(p.axis[0], r.at[2]), columns = windows_with(p.axis[1], r.at[3]);
    T sum = 0;
    for (int64_t y = rows.first; y < rows.end; y++)
      for (int64_t x = columns.first; x < columns.end; x++) {
        int which = ((const uint8_t *)p.positions.data)[offset_of(p.positions, r, y, x)];
        if (which == (uint8_t)position_in(p, y, x, r.at[2], r.at[3])) sum += load_at<T>(p.from, r, y, x);
      }
    return sum;
  }
};

/* The element of x at each window's position; 0 where that is padding. */
template <typename T> struct gathered {
  static GB_DEVICE T of(const pool &p, const place &r) {
    int64_t which = ((const uint8_t *)p.positions.data)[offset_of(p.positions, r, r.at[2], r.at[3])];
    int64_t y = r.at[2] * p.axis[0].stride - p.axis[0].padding + which / p.axis[1].kernel;
    int64_t x = r.at[3] * p.axis[1].stride - p.axis[1].padding + which % p.axis[1].kernel;
    bool inside = y >= 0 && y < p.axis[0].in && x >= 0 && x < p.axis[1].in;
    return inside ? load_at<T>(p.from, r, y, x) : (T)0;
  }
};

/* What one element of window (y, x) has of its mean. */
static GB_DEVICE double share_of(const pool &p, int64_t y, int64_t x) {
  if (p.divisor) return 1.0 / (double)p.divisor;
  return 1.0 / (double)(divisor_of(p.axis[0], y, p.bare) * divisor_of(p.axis[1], x, p.bare));
}

template <typename T> struct averaged {
  static GB_DEVICE T of(const pool &p, const place &r) {
    span rows = window_of(p.axis[0], r.at[2]), columns = window_of(p.axis[1], r.at[3]);
    T sum = 0;
    for (int64_t y = rows.first; y < rows.end; y++)
      for (int64_t x = columns.first; x < columns.end; x++) sum += load_at<T>(p.from, r, y, x);
    return sum * (T)share_of(p, r.at[2], r.at[3]);
  }
};

template <typename T> struct averaged_backward {
  static GB_DEVICE T of(const pool &p, const place &r) {
    span rows = windows_with(p.axis[0], r.at[2]), columns = windows_with(p.axis[1], r.at[3]);
    T sum = 0;
    for (int64_t y = rows.first; y < rows.end; y++)
      for (int64_t x = columns.first; x < columns.end; x++)
        sum += load_at<T>(p.from, r, y, x) * (T)share_of(p, y, x);
    return sum;
  }
};

template <template <typename> class F, typename T> __global__ void pool_elements(pool p) {
  for (int64_t i = gb_thread<int64_t>(); i < p.numel; i += gb_grid_size<int64_t>()) {
    place r = place_of(p, i);
    gb_store<T>(p.to.data, p.to.dtype, offset_of(p.to, r, r.at[2], r.at[3]), F<T>::of(p, r));
  }
}

/* ====} */

/* {==== launches ==== */

static plane plane_of(const gb_cuda_tensor *t) {
  plane p = {};
  if (!t) return p;
  p.data = t->data;
  p.dtype = t->dtype;
  for (int d = 0; d < 4; d++) p.stride[d] = t->stride[d];
  return p;
}

static int64_t pair_at(const gb_attr *attr, int i) { return attr->ints[i < attr->count ? i : 0]; }

/* The windows that a row is told of; NULL: adaptive, or no such option. bare, divisor: as of a pool. */
struct told { const gb_attr *kernel_size, *stride, *padding, *dilation; bool bare; int64_t divisor; };
template <typename A> static told told_by(const A *attrs) {
  return told{ &attrs->kernel_size, &attrs->stride, &attrs->padding, NULL, false, 0 };
}
/* Of means. */
template <typename A> static told told_of_mean(const A *attrs) {
  told t = told_by(attrs);
  t.bare = !attrs->count_include_pad.integer;
  t.divisor = attrs->divisor_override.given ? attrs->divisor_override.integer : 0;
  return t;
}

/* The dims of a pooling of an input of [.., in, in] into [.., out, out]. */
static void set_axes(pool *p, const int64_t *in, const int64_t *out, const told &windows) {
  for (int i = 0; i < 2; i++) {
    window_axis a = { in[i], out[i], 0, 0, 0, 1 };
    if (windows.kernel_size) {
      a.kernel = pair_at(windows.kernel_size, i);
      a.stride = pair_at(windows.stride->given ? windows.stride : windows.kernel_size, i);
      a.padding = pair_at(windows.padding, i);
      if (windows.dilation) a.step = pair_at(windows.dilation, i);
    }
    p->axis[i] = a;
  }
  p->bare = windows.bare;
  p->divisor = windows.divisor;
}

/* Run F over the result `to`; backward `from` is the gradient of what the windows of `to` made. */
template <template <typename> class F>
static gb_status run(gb_cuda_call *call, const gb_cuda_tensor *from, const gb_cuda_tensor *to, bool backward,
                     const told &windows, const gb_cuda_tensor *positions) {
  pool p = {};
  set_axes(&p, (backward ? to : from)->shape + 2, (backward ? from : to)->shape + 2, windows);
  p.from = plane_of(from);
  p.to = plane_of(to);
  p.positions = plane_of(positions);
  p.numel = to->numel;
  for (int d = 0; d < 4; d++) {
    int at = d;
    p.shape[d] = to->shape[d];
    for (; at > 0 && to->stride[p.order[at - 1]] < to->stride[d]; at--) p.order[at] = p.order[at - 1];
    p.order[at] = d;
  }
  unsigned grid = gb_blocks(p.numel, GB_THREADS);
  if (from->dtype == GB_FLOAT64 || to->dtype == GB_FLOAT64)
    GB_LAUNCH(call->stream, GB_KERNEL(pool_elements<F, double>), grid, GB_THREADS, 0, p);
  else GB_LAUNCH(call->stream, GB_KERNEL(pool_elements<F, float>), grid, GB_THREADS, 0, p);
  return GB_OK;
}

/* The windows of one size that a pooling has; an adaptive one has them where the results divide the inputs. */
static bool describe_windows(gb_pool *p, const pool *windows) {
  for (int i = 0; i < 2; i++) {
    const window_axis *a = &windows->axis[i];
    bool adaptive = a->kernel == 0;
    if (adaptive && (a->out == 0 || a->in % a->out)) return false;
    p->in[i] = a->in;
    p->out[i] = a->out;
    p->kernel[i] = adaptive ? a->in / a->out : a->kernel;
    p->stride[i] = adaptive ? p->kernel[i] : a->stride;
    p->padding[i] = a->padding;
    /* the library's windows all end in the padding, which counts */
    if (!adaptive && (a->out - 1) * a->stride + a->kernel > a->in + 2 * a->padding) return false;
  }
  return !windows->bare && !windows->divisor;
}

/* By the library where it can, else by ourselves. */
template <template <typename> class F>
static gb_status run_either(gb_cuda_call *call, gb_pool_kind kind, const gb_cuda_tensor *from,
                            const gb_cuda_tensor *to, const told &asked) {
  gb_pool p = {};
  pool windows = {};
  bool served = false, backward = kind == GB_POOL_MEAN_BACKWARD;
  p.kind = kind;
  p.n = from->shape[0];
  p.c = from->shape[1];
  p.dtype = from->dtype;
  p.from = from->data;
  p.to = to->data;
  set_axes(&windows, (backward ? to : from)->shape + 2, (backward ? from : to)->shape + 2, asked);
  bool fits = from->dtype != GB_FLOAT64 && gb_is_float(from->dtype) && to->dtype == from->dtype && from->numel > 0 &&
      to->numel > 0;
  if (fits && gb_cuda_is_channels_last(from) && gb_cuda_is_channels_last(to) && describe_windows(&p, &windows)) {
    gb_status status = gb_pool_run(call, &p, &served);
    if (status != GB_OK) return status;
  }
  return served ? GB_OK : run<F>(call, from, to, backward, asked, NULL);
}

static gb_status max_pool2d(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, max_pool2d)->x;
  const gb_cuda_out_max_pool2d *out = GB_CUDA_OUT(call, max_pool2d);
  const gb_attrs_max_pool2d *attrs = GB_ATTRS(call, max_pool2d);
  const gb_cuda_tensor *wanted = out->indices ? out->indices : out->places;
  if (wanted || pair_at(&attrs->dilation, 0) > 1 || pair_at(&attrs->dilation, 1) > 1) {
    told windows = told_by(attrs);
    windows.dilation = &attrs->dilation;
    return run<placed>(call, x, out->y, false, windows, wanted);
  }
  if (!out->positions) return run_either<largest>(call, GB_POOL_MAX, x, out->y, told_by(attrs));
  return run<largest>(call, x, out->y, false, told_by(GB_ATTRS(call, max_pool2d)), out->positions);
}
static gb_status adaptive_max_pool2d(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, adaptive_max_pool2d)->x;
  const gb_cuda_out_adaptive_max_pool2d *out = GB_CUDA_OUT(call, adaptive_max_pool2d);
  return run<placed>(call, x, out->y, false, told{}, out->indices ? out->indices : out->places);
}
static gb_status max_pool2d_backward(gb_cuda_call *call) {
  const gb_cuda_in_max_pool2d_backward *in = GB_CUDA_IN(call, max_pool2d_backward);
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, max_pool2d_backward)->dx;
  return run<largest_backward>(call, in->grad, dx, true, told_by(GB_ATTRS(call, max_pool2d_backward)), in->positions);
}
static gb_status max_pool2d_gather(gb_cuda_call *call) {
  const gb_cuda_in_max_pool2d_gather *in = GB_CUDA_IN(call, max_pool2d_gather);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, max_pool2d_gather)->y;
  return run<gathered>(call, in->x, y, false, told_by(GB_ATTRS(call, max_pool2d_gather)), in->positions);
}
static gb_status avg_pool2d(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, avg_pool2d)->x, *y = GB_CUDA_OUT(call, avg_pool2d)->y;
  return run_either<averaged>(call, GB_POOL_MEAN, x, y, told_of_mean(GB_ATTRS(call, avg_pool2d)));
}
static gb_status avg_pool2d_backward(gb_cuda_call *call) {
  const gb_cuda_tensor *grad = GB_CUDA_IN(call, avg_pool2d_backward)->grad;
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, avg_pool2d_backward)->dx;
  const told windows = told_of_mean(GB_ATTRS(call, avg_pool2d_backward));
  return run_either<averaged_backward>(call, GB_POOL_MEAN_BACKWARD, grad, dx, windows);
}
static gb_status adaptive_avg_pool2d(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, adaptive_avg_pool2d)->x, *y = GB_CUDA_OUT(call, adaptive_avg_pool2d)->y;
  return run_either<averaged>(call, GB_POOL_MEAN, x, y, told{});
}
static gb_status adaptive_avg_pool2d_backward(gb_cuda_call *call) {
  const gb_cuda_tensor *grad = GB_CUDA_IN(call, adaptive_avg_pool2d_backward)->grad;
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, adaptive_avg_pool2d_backward)->dx;
  return run_either<averaged_backward>(call, GB_POOL_MEAN_BACKWARD, grad, dx, told{});
}

const gb_cuda_row gb_cuda_pool2d[] = {
  { GB_OP_adaptive_max_pool2d, adaptive_max_pool2d, false },
  { GB_OP_max_pool2d, max_pool2d, false }, { GB_OP_max_pool2d_backward, max_pool2d_backward, false },
  { GB_OP_max_pool2d_gather, max_pool2d_gather, false }, { GB_OP_avg_pool2d, avg_pool2d, false },
  { GB_OP_avg_pool2d_backward, avg_pool2d_backward, false }, { GB_OP_adaptive_avg_pool2d, adaptive_avg_pool2d, false },
  { GB_OP_adaptive_avg_pool2d_backward, adaptive_avg_pool2d_backward, false }, { GB_OP_COUNT, NULL, false },
};
