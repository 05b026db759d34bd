/* cuda/softmax.cu - softmax and log_softmax along a dim, and their gradients. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_softmax[] = { { GB_OP_COUNT, NULL, false } };
