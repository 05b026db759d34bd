/* tensor/slab.c - a tensor over a part of a slab: a storage without a block, which holds the slab's storage. */
#include "tensor/slab.h"

#include <string.h>

gb_status gb_slab_place(gb_tensor *vector, int64_t offset, const gb_tensor *like, gb_tensor **out) {
  gb_dtype dtype = (gb_dtype)vector->dtype;
  char *data = gb_data(vector) + offset * (int64_t)gb_dtype_bytes(dtype);
  gb_status status = gb_tensor_over(gb_tensor_context(vector), data, dtype, like->ndim, like->shape, NULL, NULL, out);
  if (status != GB_OK) return status;
  gb_tensor *t = *out;
  memcpy(t->stride, like->stride, sizeof t->stride);
  t->storage->device = vector->storage->device;
  t->storage->category = vector->storage->category;
  t->storage->slab = vector->storage;
  gb_storage_retain(vector->storage);
  return GB_OK;
}
