/* cuda/attention.c - scaled dot-product attention by cuDNN. */
#include "cuda/families.h"

const gb_cuda_row gb_cuda_sdpa[] = { { GB_OP_COUNT, NULL, false } };
