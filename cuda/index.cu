/* cuda/index.cu - gather, scatter, embedding and the other ops that move elements by index. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_index[] = { { GB_OP_COUNT, NULL, false } };
