/* cuda/reduce.cu - reductions and scans. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_reduce[] = { { GB_OP_COUNT, NULL, false } };
