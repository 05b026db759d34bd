/* cuda/relu.h - may the ReLU that a library fuses be used? Ours gives NaN for NaN, as the CPU's and PyTorch's do: a NaN
 * that became 0 would hide an overflow. No document of cuBLASLt says what its ReLU does there, and NVIDIA's forum has a
 * report of 0 (thread 329783); cuDNN is told to pass NaN on, by an attribute that is deprecated. So it is tried: before
 * the first fused ReLU of each kind the same work runs with NaN in every sum, and the host waits and looks. Later
 * shapes of that kind are trusted to do the same. */
#ifndef GB_CUDA_RELU_H
#define GB_CUDA_RELU_H

#include "cuda/call.h"

/* What is known about one kind: a library, a dtype, and whatever else makes the library choose other kernels. */
typedef struct gb_relu_answer {
  bool known;
  const char *why;                     /* why it is not used, or NULL */
} gb_relu_answer;

/* Launch `what` so that every argument of its ReLU is NaN. GB_EUNSUPPORTED: the library does not have it. */
typedef gb_status (*gb_relu_trial)(gb_cuda_call *call, const void *what);

/* Why the library's ReLU is not to be used, or NULL. The trial overwrites result, of dtype. Nothing can be tried while
 * a graph is captured: what is not known by then stays unused afterwards too, so that the step gives the same bits in
 * the graph and outside. */
const char *gb_relu_refusal(gb_cuda_call *call, gb_relu_answer *answer, gb_relu_trial trial, const void *what,
                            const void *result, gb_dtype dtype);
/* ReLU of y in place, in the dtype of the call's result. Rounding before or after gives the same. */
gb_status gb_relu_in_place(gb_cuda_call *call, const gb_cuda_tensor *y);

#endif
