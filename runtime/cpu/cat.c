/* cpu/cat.c - joining and reversing: cat and flip, both strided copies. They read and write each element once. */
#include "cpu/walk.h"

/* Each tensor into its place along dim, converted to the joint dtype. */
static gb_status cat(gb_call *call) {
  const gb_tensor *y = call->out[0];
  gb_dtype dtype = (gb_dtype)y->dtype;
  int dim = gb_wrap_dim(call->attrs[0].integer, y->ndim);
  char *to = gb_data(y);
  for (int i = 0; i < call->n_in; i++) {
    const gb_tensor *x = call->in[i];
    gb_copy_strided(call, x->ndim, x->shape, to, dtype, y->stride, gb_data(x), (gb_dtype)x->dtype, x->stride);
    to += x->shape[dim] * y->stride[dim] * (int64_t)gb_dtype_bytes(dtype);
  }
  return GB_OK;
}

/* A copy that starts at the last position of each named dim and walks it backwards. */
static gb_status flip(gb_call *call) {
  const gb_tensor *x = call->in[0], *y = call->out[0];
  int64_t strides[GB_MAX_NDIM], offset = 0;
  if (x->numel == 0) return GB_OK;
  memcpy(strides, x->stride, sizeof strides);
  for (int i = 0; x->ndim && i < call->attrs[0].count; i++) {
    int dim = gb_wrap_dim(call->attrs[0].ints[i], x->ndim);
    offset += (x->shape[dim] - 1) * x->stride[dim];
    strides[dim] = -x->stride[dim];
  }
  gb_dtype dtype = (gb_dtype)x->dtype;
  gb_copy_strided(call, x->ndim, x->shape, gb_data(y), (gb_dtype)y->dtype, y->stride, gb_data(x) + offset * (int64_t)gb_dtype_bytes(dtype), dtype,
                  strides);
  return GB_OK;
}

void GB_CPU_FILL(cat)(gb_backend *backend);
void GB_CPU_FILL(cat)(gb_backend *backend) {
  backend->run[GB_OP_cat] = cat;
  backend->run[GB_OP_flip] = flip;
}
