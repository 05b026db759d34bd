/* cuda/pool2d.cu - 2-D pooling. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_pool2d[] = { { GB_OP_COUNT, NULL, false } };
