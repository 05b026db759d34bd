/* cuda/ordered.cuh - rows added to rows of a result, many to one, each sum in the order of its parts and rounded once.
 *
 * Keys say to which row of the result each row of the source goes. They are sorted, stably; then one thread owns a sum
 * from the first of its parts to the last. So there are no atomics, and the bits do not depend on who came first. */
#ifndef GB_CUDA_ORDERED_CUH
#define GB_CUDA_ORDERED_CUH

#include "cuda/rows.cuh"
#include "cuda/sort.h"

/* A key that stands for no row: its part is left out. */
#define GB_NO_ROW UINT64_MAX

typedef struct gb_ordered_sum {
  gb_rows to, from;      /* rows of one length; `to` holds what the sums begin with */
  uint64_t *keys;        /* n rows of `to`, or GB_NO_ROW, in device memory */
  int64_t n, limit;      /* rows of `from`; keys are below `limit`, or GB_NO_ROW */
  bool apart;            /* each sum is formed by itself, and then added to what it would begin with */
  bool blocks;           /* of sums that begin at 0: their parts in blocks, and those in double */
} gb_ordered_sum;

gb_status gb_ordered_sum_run(gb_cuda_call *call, const gb_ordered_sum *sum);

#endif
