/* cuda/batch_norm.h - the seam to the library's batch normalization: batch_norm.c runs it as cuDNN graphs; where there
 * is no engine, and on the emulated device, which has no library, the kernels of norm.cu run. */
#ifndef GB_CUDA_BATCH_NORM_H
#define GB_CUDA_BATCH_NORM_H

#include "cuda/call.h"

/* TRAINING: result, mean and rstd from x, scale and bias. INFERENCE: result = (x - mean) * scale + bias. Both with the
 * residual added and a ReLU taken before the result is rounded, where these are asked for. BACKWARD:
 * result (the gradient of x), dscale and dbias from x, grad, scale, mean and rstd. THROUGH_RELU: the same from masked,
 * which it makes: grad, or grad + more, where rectified is positive. */
typedef enum gb_batch_norm_kind { GB_BATCH_NORM_TRAINING, GB_BATCH_NORM_INFERENCE, GB_BATCH_NORM_BACKWARD,
                                  GB_BATCH_NORM_THROUGH_RELU } gb_batch_norm_kind;

typedef struct gb_batch_norm {
  gb_batch_norm_kind kind;
  int64_t n, c, inner;                 /* images, channels, and positions of an image; channels lie innermost,
                                          everything is dense */
  gb_dtype dtype;                      /* of x, residual, grad, more, rectified, result and masked */
  const void *residual;                /* NULL: none */
  bool relu;                           /* a residual has one */
  const void *x, *grad, *more, *rectified; /* more: NULL where there is nothing to be added */
  void *result, *masked;
  float *scale, *bias, *mean, *rstd, *dscale, *dbias; /* [c], aligned to 16 bytes; NULL for what the kind does not
                                                         have */
  float eps;
} gb_batch_norm;

#ifdef __cplusplus
extern "C" {
#endif

/* Can the library run it? If not, *has is false, and the reason is told. scale and the fields after it are not
 * read. */
gb_status gb_batch_norm_has(gb_cuda_call *call, const gb_batch_norm *b, bool *has);
/* Launch it; gb_batch_norm_has must have said that it can run. */
gb_status gb_batch_norm_run(gb_cuda_call *call, const gb_batch_norm *b);
/* May the ReLU that the library takes in be used (relu.h)? If not, the reason is told. A trial overwrites the result
 * and the vectors, for whose floats `bytes` bytes lie from mean on. */
bool gb_batch_norm_may_rectify(gb_cuda_call *call, const gb_batch_norm *b, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
