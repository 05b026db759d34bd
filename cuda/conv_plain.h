/* cuda/conv_plain.h - convolutions by kernels of our own, for what the library does not run. See conv_plain.cu. */
#ifndef GB_CUDA_CONV_PLAIN_H
#define GB_CUDA_CONV_PLAIN_H

#include "cuda/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launch conv on tensors of any layout: x [n, c, h, w], weight [o, c / groups, kh, kw], y [n, o, oh, ow], bias [o] or
 * NULL. The addresses in conv itself are not used. */
void gb_conv_plain(gb_cuda_call *call, const gb_conv *conv, const gb_cuda_tensor *x, const gb_cuda_tensor *weight,
                   const gb_cuda_tensor *y,
                   const gb_cuda_tensor *bias);

#ifdef __cplusplus
}
#endif
#endif
