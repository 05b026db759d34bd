/* cuda/relu.c - whether a library's ReLU passes NaN on, and ReLU by itself where it does not. See relu.h. */
#include "cuda/relu.h"

#include <string.h>

#include "base/numerics.h"
#include "cuda/cuda.h"

/* Is any element NaN, that is beyond infinity without its sign? */
static bool is_nan(uint64_t bits, gb_dtype dtype, size_t bytes) {
  size_t sign_out = 65 - 8 * bytes;
  return bits << sign_out > (uint64_t)gb_numerics_bounds_of(dtype, dtype).infinity << sign_out;
}

const char *gb_relu_refusal(gb_cuda_call *call, gb_relu_answer *answer, gb_relu_trial trial, const void *what,
                            const void *result, gb_dtype dtype) {
  if (answer->known) return answer->why;
  size_t bytes = call->cuda->engine->dtype_bytes(dtype);
  int mark = call->scratches;
  uint64_t bits = 0;
  if (call->cuda->capturing) { /* for good, as relu.h says: later steps are to give the bits of this graph */
    *answer = (gb_relu_answer){ true, "its first use was in a graph, where nobody could see what it makes of NaN" };
    return answer->why;
  }
  gb_status status = trial(call, what);
  gb_cuda_scratch_back(call, mark);
  if (status == GB_EUNSUPPORTED) return NULL;
  if (status == GB_OK && gb_rt_copy(call->stream, &bits, result, bytes, GB_COPY_TO_HOST)) status = GB_EDEVICE;
  *answer = (gb_relu_answer){ true, status != GB_OK ? "what the library makes of NaN could not be tried"
                                    : is_nan(bits, dtype, bytes) ? NULL : "the library makes 0 of NaN" };
  return answer->why;
}

gb_status gb_relu_in_place(gb_cuda_call *call, const gb_cuda_tensor *y) {
  return GB_CUDA_RUN(call, GB_OP_relu, relu, y, NULL, .x = y);
}
