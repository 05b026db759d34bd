/* cuda/random.cu - random numbers. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_random[] = { { GB_OP_COUNT, NULL, false } };
