/* cuda/sort.cu - sort and topk. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_sort[] = { { GB_OP_COUNT, NULL, false } };
