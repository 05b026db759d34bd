/* cpu/cat.c - joining and reversing: cat and flip, both strided copies. They read and write each element once. */
#include "cpu/walk.h"

/* Each tensor into its place along dim, converted to the joint dtype. */
static gb_status cat(gb_op_call *call) {
  const gb_tensor *y = GB_OUT(call, cat)->y;
  gb_dtype dtype = (gb_dtype)y->dtype;
  int dim = gb_wrap_dim(GB_ATTRS(call, cat)->dim.integer, y->ndim);
  char *to = gb_data(y);
  for (int i = 0; i < GB_LIST_COUNT(call, cat, xs); i++) {
    const gb_tensor *x = GB_LIST(call, cat, xs)[i];
    gb_copy_strided(call, x->ndim, x->shape, to, dtype, y->stride, gb_data(x), (gb_dtype)x->dtype, x->stride);
    to += x->shape[dim] * y->stride[dim] * (int64_t)gb_dtype_bytes(dtype);
  }
  return GB_OK;
}

/* A copy that starts at the last position of each named dim and walks it backwards. */
static gb_status flip(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, flip)->x, *y = GB_OUT(call, flip)->y;
  const gb_attr *dims = &GB_ATTRS(call, flip)->dim;
  int64_t strides[GB_MAX_NDIM], offset = 0;
  if (x->numel == 0) return GB_OK;
  memcpy(strides, x->stride, sizeof strides);
  for (int i = 0; x->ndim && i < dims->count; i++) {
    int dim = gb_wrap_dim(dims->ints[i], x->ndim);
    offset += (x->shape[dim] - 1) * x->stride[dim];
    strides[dim] = -x->stride[dim];
  }
  gb_dtype dtype = (gb_dtype)x->dtype;
  gb_copy_strided(call, x->ndim, x->shape, gb_data(y), (gb_dtype)y->dtype, y->stride,
                  gb_data(x) + offset * (int64_t)gb_dtype_bytes(dtype), dtype, strides);
  return GB_OK;
}

void GB_CPU_FILL(cat)(gb_backend *backend);
void GB_CPU_FILL(cat)(gb_backend *backend) {
  backend->run[GB_OP_cat] = cat;
  backend->run[GB_OP_flip] = flip;
}
