/* cuda/conv_plain.cu - convolutions where the library has no engine: the plain fallback, right for every dtype, layout
 * and size, and slow.
 *
 * One thread for each element of the result adds up its products in one fixed order, in float32 (float64 for float64),
 * and rounds once. Nothing is kept in shared memory, so operands come from the caches again and again: many times the
 * floor of bytes and operations. */
#include "cuda/conv_plain.h"
#include "cuda/device.cuh"

/* A tensor of four dims, in the order in which its shape names them. */
/* tf32: elements are rounded to 10 bits of mantissa */
typedef struct view4 { char *data; int dtype; int64_t stride[4]; bool tf32; } view4;

typedef struct plain_conv {
  gb_conv c;
  view4 x, weight, y, bias;            /* bias has one dim; data NULL: none */
  int64_t per_group_in, per_group_out;
} plain_conv;

static GB_DEVICE double to_tf32(double x) { return x; }
static GB_DEVICE float to_tf32(float x) { return gb_float_to_tf32(x); }

template <typename T> static GB_DEVICE T element(const view4 &v, int64_t a, int64_t b, int64_t c, int64_t d) {
  T x = gb_load<T>(v.data, v.dtype, a * v.stride[0] + b * v.stride[1] + c * v.stride[2] + d * v.stride[3]);
  return v.tf32 ? to_tf32(x) : x;
}

template <typename T> static GB_DEVICE void put(const view4 &v, int64_t a, int64_t b, int64_t c, int64_t d, T value) {
  gb_store<T>(v.data, v.dtype, a * v.stride[0] + b * v.stride[1] + c * v.stride[2] + d * v.stride[3], value);
}

/* The place in x that tap k of window `at` reads; negative or beyond it: padding. */
static GB_DEVICE int64_t tap(const gb_conv &c, int dim, int64_t at,
                             int64_t k) { return at * c.stride[dim] + k * c.dilation[dim] - c.padding[dim]; }

/* y[n, o, i, j]: over the channels of o's group and the taps of the window. */
template <typename T> static __global__ void forward_kernel(plain_conv p) {
  const gb_conv &c = p.c;
  for (int64_t at = gb_thread<int64_t>(); at < c.n * c.o * c.out[0] * c.out[1]; at += gb_grid_size<int64_t>()) {
    int64_t o = at % c.o, j = at / c.o % c.out[1], i = at / c.o / c.out[1] % c.out[0],
        n = at / c.o / c.out[1] / c.out[0], group = o / p.per_group_out;
    T sum = 0;
    for (int64_t a = 0; a < c.kernel[0]; a++) {
      int64_t row = tap(c, 0, i, a);
      for (int64_t b = 0; row >= 0 && row < c.in[0] && b < c.kernel[1]; b++) {
        int64_t column = tap(c, 1, j, b);
        for (int64_t k = 0; column >= 0 && column < c.in[1] && k < p.per_group_in; k++)
          sum += element<T>(p.x, n, group * p.per_group_in + k, row, column) * element<T>(p.weight, o, k, a, b);
      }
    }
    if (p.bias.data) sum += gb_load<T>(p.bias.data, p.bias.dtype, o * p.bias.stride[0]);
    put<T>(p.y, n, o, i, j, c.relu && sum < 0 ? (T)0 : sum);
  }
}

/* The window that reads place `at` of x with tap k; -1: none. */
static GB_DEVICE int64_t window_over(const gb_conv &c, int dim, int64_t at, int64_t k) {
  int64_t from = at + c.padding[dim] - k * c.dilation[dim];
  return from >= 0 && from % c.stride[dim] == 0 && from / c.stride[dim] < c.out[dim] ? from / c.stride[dim] : -1;
}

/* dx[n, k, row, column]: over the windows that read it and the channels out of its group. */
template <typename T> static __global__ void backward_input_kernel(plain_conv p) {
  const gb_conv &c = p.c;
  for (int64_t at = gb_thread<int64_t>(); at < c.n * c.c * c.in[0] * c.in[1]; at += gb_grid_size<int64_t>()) {
    int64_t k = at % c.c, column = at / c.c % c.in[1], row = at / c.c / c.in[1] % c.in[0],
        n = at / c.c / c.in[1] / c.in[0], group = k / p.per_group_in;
    T sum = 0;
    for (int64_t a = 0; a < c.kernel[0]; a++) {
      int64_t i = window_over(c, 0, row, a);
      for (int64_t b = 0; i >= 0 && b < c.kernel[1]; b++) {
        int64_t j = window_over(c, 1, column, b);
        for (int64_t o = 0; j >= 0 && o < p.per_group_out; o++) {
          int64_t channel = group * p.per_group_out + o;
          sum += element<T>(p.y, n, channel, i, j) * element<T>(p.weight, channel, k % p.per_group_in, a, b);
        }
      }
    }
    put<T>(p.x, n, k, row, column, sum);
  }
}

/* dweight[o, k, a, b]: over the batch and all windows. */
template <typename T> static __global__ void backward_weight_kernel(plain_conv p) {
  const gb_conv &c = p.c;
  for (int64_t at = gb_thread<int64_t>(); at < c.o * p.per_group_in * c.kernel[0] *
       c.kernel[1]; at += gb_grid_size<int64_t>()) {
    int64_t k = at % p.per_group_in, b = at / p.per_group_in % c.kernel[1],
        a = at / p.per_group_in / c.kernel[1] % c.kernel[0];
    int64_t o = at / p.per_group_in / c.kernel[1] / c.kernel[0], channel = o / p.per_group_out * p.per_group_in + k;
    T sum = 0;
    for (int64_t n = 0; n < c.n; n++) {
      for (int64_t i = 0; i < c.out[0]; i++) {
        int64_t row = tap(c, 0, i, a);
        for (int64_t j = 0; row >= 0 && row < c.in[0] && j < c.out[1]; j++) {
          int64_t column = tap(c, 1, j, b);
          if (column >= 0 && column < c.in[1])
            sum += element<T>(p.y, n, o, i, j) * element<T>(p.x, n, channel, row, column);
        }
      }
    }
    put<T>(p.weight, o, k, a, b, sum);
  }
}

static view4 view_of(const gb_cuda_tensor *t) {
  view4 v = {};
  if (!t) return v;
  v.data = t->data;
  v.dtype = (int)t->dtype;
  for (int d = 0; d < t->ndim; d++) v.stride[d] = t->stride[d];
  return v;
}

template <typename T> static void launch(gb_cuda_call *call, const plain_conv &p) {
  const gb_conv &c = p.c;
  switch (c.kind) {
    case GB_CONV_FORWARD: GB_LAUNCH(call->stream, forward_kernel<T>,
                                    gb_blocks(c.n * c.o * c.out[0] * c.out[1], GB_THREADS), GB_THREADS, 0, p); break;
    case GB_CONV_BACKWARD_INPUT:
      GB_LAUNCH(call->stream, backward_input_kernel<T>, gb_blocks(c.n * c.c * c.in[0] * c.in[1], GB_THREADS),
                GB_THREADS, 0, p);
      break;
    case GB_CONV_BACKWARD_WEIGHT:
      GB_LAUNCH(call->stream, backward_weight_kernel<T>,
                gb_blocks(c.o * p.per_group_in * c.kernel[0] * c.kernel[1], GB_THREADS), GB_THREADS, 0, p);
      break;
  }
}

extern "C" void gb_conv_plain(gb_cuda_call *call, const gb_conv *conv, const gb_cuda_tensor *x,
                              const gb_cuda_tensor *weight, const gb_cuda_tensor *y,
                              const gb_cuda_tensor *bias) {
  plain_conv p = { *conv, view_of(x), view_of(weight), view_of(y), view_of(bias), conv->c / conv->groups,
                   conv->o / conv->groups };
  p.x.tf32 = p.weight.tf32 = p.y.tf32 = conv->tf32 && conv->dtype == GB_FLOAT32;
  if (conv->dtype == GB_FLOAT64) launch<double>(call, p);
  else launch<float>(call, p);
}
