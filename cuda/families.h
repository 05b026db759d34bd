/* cuda/families.h - the tables of kernels, one per file: cuda/NAME.cu, or cuda/NAME.c for what a library does, defines
 * gb_cuda_NAME.
 *
 * matmul, convolve, sdpa, layers and linalg bring their ops to the seams of cuBLASLt, cuDNN and cuSOLVER: gemm.h,
 * conv.h, attention.h, rnn.h and solver.h. */
#ifndef GB_CUDA_FAMILIES_H
#define GB_CUDA_FAMILIES_H

#include "cuda/call.h"

#define GB_CUDA_FAMILIES(X) \
  X(elementwise) X(create) X(random) X(reduce) X(softmax) X(norm) X(group_norm) X(loss) X(index) X(cat) \
  X(pool2d) X(sort) X(scan) X(numerics) \
  X(matmul) X(linear_loss) X(convolve) X(sdpa) X(recurrent) X(layers) X(ctc) X(resample) X(fft) X(linalg)

#ifdef __cplusplus
extern "C" {
#endif
#define GB_CUDA_DECLARE(name) extern const gb_cuda_row gb_cuda_##name[];
GB_CUDA_FAMILIES(GB_CUDA_DECLARE)
#undef GB_CUDA_DECLARE

/* create.cu: copy 8 bytes from the host to device memory, without waiting. */
void gb_cuda_put(gb_stream stream, void *to, uint64_t bits);
/* create.cu: copy the elements of `in`, broadcast and converted, to `out`; either may be any view. */
gb_status gb_cuda_copy(gb_cuda_call *call, const gb_cuda_tensor *out, const gb_cuda_tensor *in);
#ifdef __cplusplus
}
#endif
#endif
