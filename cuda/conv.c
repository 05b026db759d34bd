/* cuda/conv.c - convolutions by cuDNN. */
#include "cuda/families.h"

const gb_cuda_row gb_cuda_conv[] = { { GB_OP_COUNT, NULL, false } };
