/* cuda/optim.cu - the optimizers, clipping and scaling over slabs. */
#include "cuda/device.cuh"
#include "cuda/families.h"

const gb_cuda_row gb_cuda_optim[] = { { GB_OP_COUNT, NULL, false } };
