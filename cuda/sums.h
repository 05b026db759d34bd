/* cuda/sums.h - what sums by the tree of processes (dist/tree.h) do in a device's memory. */
#ifndef GB_CUDA_SUMS_H
#define GB_CUDA_SUMS_H

#include "cuda/runtime.h"
#include "base/reduction.h"
#include "gibbous.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to = left with right, of float32, float64 or int64, as gb_reduce_into has it; to may be one of them. */
void gb_cuda_join_pairs(gb_stream stream, gb_reduction reduction, gb_dtype dtype, void *to, const void *left,
                        const void *right, int64_t count);

/* A few bytes of the host's, which have been read on return: without waiting, as a copy of memory that is not pinned
 * would. */
#define GB_CUDA_LOAD ((size_t)1024) /* of one launch */
void gb_cuda_put_bytes(gb_stream stream, void *to, const void *host, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
