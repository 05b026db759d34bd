/* cuda/pool.h - the seam to the library's two-dimensional pooling: pool.c runs it as cuDNN graphs; where there is no
 * engine, and on the emulated device, which has no library, the kernels of pool2d.cu run. */
#ifndef GB_CUDA_POOL_H
#define GB_CUDA_POOL_H

#include "cuda/call.h"

/* FORWARD of the maximum has no positions and so no gradient: those of the library are laid out as it likes, and ours
 * are read by other ops. */
typedef enum gb_pool_kind { GB_POOL_MAX, GB_POOL_MEAN, GB_POOL_MEAN_BACKWARD } gb_pool_kind;

/* x [n, c, in, in] into [n, c, out, out]; backward the other way. All is dense, channels innermost in memory. */
typedef struct gb_pool {
  gb_pool_kind kind;
  int64_t n, c, in[2], out[2], kernel[2], stride[2], padding[2];
  gb_dtype dtype;
  const void *from;
  void *to;
} gb_pool;

#ifdef __cplusplus
extern "C" {
#endif

/* Launch it. If the library has no engine for it, *served is false and nothing was launched; the reason is told. */
gb_status gb_pool_run(gb_cuda_call *call, const gb_pool *p, bool *served);

#ifdef __cplusplus
}
#endif
#endif
