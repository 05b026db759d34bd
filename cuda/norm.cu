/* cuda/norm.cu - layer, RMS and batch norm and their gradients. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_norm[] = { { GB_OP_COUNT, NULL, false } };
