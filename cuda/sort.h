/* cuda/sort.h - the seam to CUB: stable sorts of pairs. sort_cub.cu implements it; an emulated build takes
 * tests/cuda_on_cpu/seams.c. */
#ifndef GB_CUDA_SORT_H
#define GB_CUDA_SORT_H

#include "cuda/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each of `rows` rows of n keys in ascending order into keys_out, the values with them; equal keys keep their order.
 * All in device memory. Keys are compared by their bits from first_bit up to end_bit (not in): the fewer, the faster.
 * Never waits, and can be captured. */
gb_status gb_sort_pairs(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values,
                        int64_t *values_out, int64_t rows,
                        int64_t n, int first_bit, int end_bit);

#ifdef __cplusplus
}
#endif
#endif
