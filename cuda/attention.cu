/* cuda/attention.cu - attention kernels of our own. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_attention[] = { { GB_OP_COUNT, NULL, false } };
