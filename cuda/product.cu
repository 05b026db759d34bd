/* cuda/product.cu - what follows a matrix product where the library cannot fuse it: bias, activation, one rounding.
 * Bound by memory. */
#include "cuda/lanes.cuh"
#include "cuda/product.h"
#include "base/functions.h" /* compiled for the device as device.cuh says */

#define ACTIVATE(type, suffix) \
  static GB_DEVICE type activate(type x, int activation) { \
    switch (activation) { \
      GB_ACTIVATIONS(ACTIVATE_##suffix) \
      default: return x; \
    } \
  }
#define ACTIVATE_f32(NAME, name) case GB_ACTIVATION_##NAME: return gb_##name##_f32(x);
#define ACTIVATE_f64(NAME, name) case GB_ACTIVATION_##NAME: return gb_##name##_f64(x);
ACTIVATE(float, f32)
ACTIVATE(double, f64)

/* The bias of a column: data NULL is 0. */
typedef struct bias_view { const void *data; int dtype; int64_t stride; } bias_view;

template <typename T>
static __global__ void finish_kernel(const T *sums, int64_t rows, int64_t n, bias_view bias, int activation, void *pre,
                                     void *out, int dtype, bool narrow) {
  for (int64_t i = gb_thread<int64_t>(); i < rows * n; i += gb_grid_size<int64_t>()) {
    T x = sums ? sums[i] : 0;
    int64_t column = 0;
    if (bias.data) {
      gb_divide(i, n, narrow, &column);
      x += gb_load<T>(bias.data, bias.dtype, column * bias.stride);
    }
    if (pre) gb_store<T>(pre, dtype, i, x);
    gb_store<T>(out, dtype, i, activate(x, activation));
  }
}

extern "C" void gb_product_finish(gb_cuda_call *call, const void *sums, gb_dtype lane, int64_t rows, int64_t n,
                                  const gb_cuda_tensor *bias,
                                  gb_activation activation, void *pre, void *out, gb_dtype dtype) {
  bias_view view = { bias ? bias->data : NULL, bias ? (int)bias->dtype : 0, bias ? bias->stride[0] : 0 };
  unsigned blocks = gb_blocks(rows * n, GB_THREADS);
  bool narrow = rows * n <= INT32_MAX;
  if (lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, finish_kernel<double>, blocks, GB_THREADS, 0, (const double *)sums, rows, n, view,
              (int)activation, pre, out, (int)dtype, narrow);
  else GB_LAUNCH(call->stream, finish_kernel<float>, blocks, GB_THREADS, 0, (const float *)sums, rows, n, view,
                 (int)activation, pre, out, (int)dtype, narrow);
}
