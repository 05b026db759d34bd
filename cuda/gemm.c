/* cuda/gemm.c - matrix products by cuBLASLt. */
#include "cuda/families.h"

const gb_cuda_row gb_cuda_gemm[] = { { GB_OP_COUNT, NULL, false } };
