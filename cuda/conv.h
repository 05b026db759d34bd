/* cuda/conv.h - the seam to the library's two-dimensional convolutions: conv.c runs them as cuDNN graphs;
 * tests/cuda_on_cpu/ has no library, so that there the plain kernels of conv_plain.cu run, but for forward where a test
 * asks for a stand-in.
 *
 * All tensors are channels-last in memory and dense: x [n, h, w, c], weight [o, kh, kw, c / groups], y [n, oh, ow,
 * o]. */
#ifndef GB_CUDA_CONV_H
#define GB_CUDA_CONV_H

#include "cuda/call.h"

typedef enum gb_conv_kind { GB_CONV_FORWARD, GB_CONV_BACKWARD_INPUT, GB_CONV_BACKWARD_WEIGHT } gb_conv_kind;

typedef struct gb_conv {
  gb_conv_kind kind;
  int64_t n, c, in[2], o, kernel[2], out[2], stride[2], padding[2], dilation[2], groups;
  gb_dtype dtype, result;              /* of the operands, and of what is computed: theirs, or float32 for a weight's
                                          gradient */
  void *x, *weight, *y;                /* y is the gradient that came in, backward; one of the three is computed */
  const void *bias;                    /* [o] in dtype, or NULL; forward only */
  bool relu, tf32;                     /* max(y, 0), forward only (NaN: relu.h); float32 operands may be rounded to 10
                                          bits of mantissa */
} gb_conv;

#ifdef __cplusplus
extern "C" {
#endif

/* Launch it. If the library has no engine for it, *served is false, nothing was launched, and `why` (of why_size bytes)
 * says so. */
gb_status gb_conv_run(gb_cuda_call *call, const gb_conv *conv, bool *served, char *why, size_t why_size);
/* Free the library's handle and the plans made for it; convolutions and attention share them. NULL is allowed. */
struct gb_dnns;
void gb_dnns_close(struct gb_dnns *dnns);

#ifdef __cplusplus
}
#endif
#endif
