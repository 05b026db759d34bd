/* cuda/batch_norm_relu.c - whether a batch norm of the library's passes NaN through the ReLU that it takes in. See
 * relu.h. */
#include <inttypes.h>

#include "cuda/batch_norm.h"
#include "cuda/cuda.h"

/* A batch norm, and the bytes of all its vectors. */
typedef struct trial { const gb_batch_norm *b; size_t bytes; } trial;

/* A bias that is NaN makes every sum NaN. */
static gb_status try_nan(gb_cuda_call *call, const void *what) {
  const trial *t = what;
  if (gb_rt_set(call->stream, t->b->mean, 0xff, t->bytes)) return GB_EDEVICE; /* NaN in every format */
  return gb_batch_norm_run(call, t->b);
}

bool gb_batch_norm_may_rectify(gb_cuda_call *call, const gb_batch_norm *b, size_t bytes) {
  gb_relu_answer *answer = &call->cuda->norm_relu[b->dtype][b->kind == GB_BATCH_NORM_INFERENCE][b->residual != NULL];
  const char *why = gb_relu_refusal(call, answer, try_nan, &(trial){ b, bytes }, b->result, b->dtype);
  if (why)
    gb_cuda_slower(call, GB_SLOWER_EPILOGUE,
                   "a batch norm of [%" PRId64 ", %" PRId64 ", %" PRId64
                   "] with ReLU takes more passes, which is slower: %s", b->n, b->c, b->inner, why);
  return !why;
}
