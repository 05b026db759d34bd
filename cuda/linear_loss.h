/* cuda/linear_loss.h - the kernels between the products of linear_cross_entropy. */
#ifndef GB_CUDA_LINEAR_LOSS_H
#define GB_CUDA_LINEAR_LOSS_H

#include "cuda/call.h"

/* Some rows of logits, in float32 or float64 (lane), and their results. */
typedef struct gb_logits {
  int64_t rows, classes, ignore;
  gb_dtype lane, slope_dtype, target_dtype;
  void *logits, *slope;                /* [rows, classes]; slope: their gradient, may be the logits themselves; NULL:
                                          not wanted */
  const char *target;                  /* of the first of the rows */
  int64_t target_stride;               /* in elements */
  void *losses;                        /* a lane per row */
  size_t shared;                       /* bytes of shared memory that a block may have */
} gb_logits;

#ifdef __cplusplus
extern "C" {
#endif

/* Losses of the rows, and softmax less 1 at the target. Reads the logits once, as far as shared memory holds a row, and
 * writes the slope once. */
void gb_logits_run(gb_cuda_call *call, const gb_logits *l);
/* Set dbias (lanes [classes]) to the sums of the slope's columns, or add them to it. */
void gb_logits_bias(gb_cuda_call *call, const gb_logits *l, void *dbias, bool add);
/* The sum of all rows' losses, or their mean over the targets that are not ignored; l describes all rows. */
void gb_logits_reduce(gb_cuda_call *call, const gb_logits *l, bool mean, void *out, gb_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
