/* cuda/product.cu - what follows a matrix product where the library cannot fuse it: bias, activation, one rounding. Bound by memory. */
#include "cuda/device.cuh"
#include "cuda/product.h"

static GB_DEVICE float activate(float x, int activation) {
  switch (activation) {
    case GB_ACTIVATION_RELU: return x < 0 ? 0 : x;
    case GB_ACTIVATION_GELU: return gb_geluf(x);
    case GB_ACTIVATION_GELU_TANH: return gb_gelu_tanhf(x);
    case GB_ACTIVATION_SILU: return gb_siluf(x);
    case GB_ACTIVATION_TANH: return gb_tanhf(x);
    case GB_ACTIVATION_SIGMOID: return gb_sigmoidf(x);
    default: return x;
  }
}

static GB_DEVICE double sigmoid_of(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

static GB_DEVICE double activate(double x, int activation) {
  switch (activation) {
    case GB_ACTIVATION_RELU: return x < 0 ? 0 : x;
    case GB_ACTIVATION_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case GB_ACTIVATION_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case GB_ACTIVATION_SILU: return x * sigmoid_of(x);
    case GB_ACTIVATION_TANH: return tanh(x);
    case GB_ACTIVATION_SIGMOID: return sigmoid_of(x);
    default: return x;
  }
}

/* The bias of a column: data NULL is 0. */
typedef struct bias_view { const void *data; int dtype; int64_t stride; } bias_view;

template <typename T>
static __global__ void finish_kernel(const T *sums, int64_t rows, int64_t n, bias_view bias, int activation, void *pre, void *out, int dtype) {
  for (int64_t i = gb_thread<int64_t>(); i < rows * n; i += gb_grid_size<int64_t>()) {
    T x = sums ? sums[i] : 0;
    if (bias.data) x += gb_load<T>(bias.data, bias.dtype, i % n * bias.stride);
    if (pre) gb_store<T>(pre, dtype, i, x);
    gb_store<T>(out, dtype, i, activate(x, activation));
  }
}

extern "C" void gb_product_finish(gb_cuda_call *call, const void *sums, gb_dtype lane, int64_t rows, int64_t n, const gb_cuda_tensor *bias,
                                  gb_activation activation, void *pre, void *out, gb_dtype dtype) {
  bias_view view = { bias ? bias->data : NULL, bias ? (int)bias->dtype : 0, bias ? bias->stride[0] : 0 };
  unsigned blocks = gb_blocks(rows * n, GB_THREADS);
  if (lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, finish_kernel<double>, blocks, GB_THREADS, 0, (const double *)sums, rows, n, view, (int)activation, pre, out, (int)dtype);
  else GB_LAUNCH(call->stream, finish_kernel<float>, blocks, GB_THREADS, 0, (const float *)sums, rows, n, view, (int)activation, pre, out, (int)dtype);
}
