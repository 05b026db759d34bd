/* tensor/wrap.c - memory of others as tensors, and our tensors for others: loans, release callbacks, DLPack.
 *
 * A loan ends by gb_tensor_revoke: the storage has no data from then on, and every way to it fails. Ways to data, and
 * who asks gb_check_loan or gb_touch_values there: inputs of ops (dispatch.c), gradients that ops on slabs get by
 * pointer (step/slab_ops.c), kept 16-bit copies (weights.c), reading and writing (access.c), text (print.c), files
 * (safetensors.c). Datasets, slabs and exports take no loans at all. What was exported is not moved while the other
 * side holds it, so an optimizer refuses to adopt it. Only CPU memory goes either way. */
#include <stdlib.h>
#include <string.h>

#include "tensor/context.h"
#include "tensor/dlpack.h"
#include "tensor/tensor.h"

/* {==== Wrapping ==== */

gb_status gb_tensor_wrap(gb_context *context, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                         void (*release)(void *user), void *user,
                         gb_tensor **out) {
  gb_tensor *t;
  if (!context || !out) return gb_refuse(context, "wrap: out is NULL");
  if (dtype >= 0 && dtype < GB_DTYPE_COUNT && (uintptr_t)data % gb_dtype_bytes(dtype))
    return gb_fail(context, GB_EINVAL, "wrap: the memory is not aligned for %s", gb_dtype_name(dtype));
  GB_TRY(gb_tensor_over(context, data, dtype, ndim, shape, NULL, NULL, &t));
  if (!data && t->numel) {
    gb_tensor_release(t);
    return gb_fail(context, GB_EINVAL, "wrap: there is no memory at NULL");
  }
  t->storage->release = release;
  t->storage->user = user;
  t->storage->loan = release ? GB_OWNED : GB_LENT;
  *out = t;
  return GB_OK;
}

gb_status gb_tensor_revoke(gb_tensor *tensor) {
  if (!tensor) return GB_EINVAL;
  gb_storage *storage = tensor->storage;
  if (storage->loan == GB_OWNED)
    return gb_fail(storage->context, GB_EINVAL, "revoke: the tensor is no loan of gb_tensor_wrap without a release");
  if (storage->context->op) /* a finaliser, run for memory in the middle of an op, called the program around */
    return gb_fail(storage->context, GB_ESTATE, "revoke: an op that may read the memory runs just now; revoke the "
                                                "loan when it has ended");
  storage->loan = GB_REVOKED;
  storage->data = NULL;
  return GB_OK;
}

gb_status gb_check_loan(const gb_tensor *tensor) {
  if (tensor->storage->loan != GB_REVOKED) return GB_OK;
  return gb_fail(tensor->storage->context, GB_ESTATE,
                 "the tensor was a loan of the program around, which has taken its memory back; clone what is to be "
                 "kept");
}

gb_status gb_touch_values(const gb_tensor *tensor) {
  gb_storage *storage = tensor->storage;
  if (storage->away == GB_HERE || storage->away == GB_PART) return gb_check_loan(tensor);
  if (storage->away != GB_AWAY) return storage->away = GB_READ, GB_OK;
  return gb_fail(storage->context, GB_ESTATE,
                 "the float32 values of this weight are shared out between the processes, which read it in 16 bits; "
                 "call optimizer:gather() on every process first, or gb.optim.Sharded(optimizer, { weights = "
                 "'whole' })");
}

gb_status gb_expose_values(const gb_tensor *tensor) {
  gb_storage *storage = tensor->storage;
  GB_TRY(gb_touch_values(tensor));
  if (storage->away == GB_PART)
    return gb_fail(storage->context, GB_ESTATE,
                   "the gradient is shared out between the processes, which must all know when it changes: there is no "
                   "pointer to it; read and write it by ops, gb_tensor_read and gb_tensor_write, or call "
                   "gb.optim.Sharded(optimizer, { gradients = 'whole' })");
  atomic_store_explicit(&storage->exposed, true, memory_order_relaxed);
  return GB_OK;
}

/* ====} */

/* {==== DLPack ==== */

static const gb_dlpack_dtype dtypes[GB_DTYPE_COUNT] = {
#define DLPACK(NAME, name, type, reading, category, digits, least, most, file, code) \
  { GB_DLPACK_##code, 8 * sizeof(type), 1 },
  GB_DTYPE_LIST(DLPACK)
#undef DLPACK
};

/* What a struct that we gave out holds. */
typedef struct export {
  struct DLManagedTensorVersioned managed; /* first: it is what others see */
  gb_tensor *tensor;
  int64_t shape[GB_MAX_NDIM], stride[GB_MAX_NDIM];
} export;

/* The other side is done, on whatever thread. */
static void end_export(struct DLManagedTensorVersioned *managed) {
  export *e = managed->manager_ctx;
  atomic_fetch_sub(&e->tensor->storage->exports, 1);
  gb_tensor_release(e->tensor);
  free(e);
}

gb_status gb_tensor_to_dlpack(gb_tensor *tensor, struct DLManagedTensorVersioned **out) {
  gb_context *context = gb_tensor_context(tensor);
  if (!tensor || !out) return gb_refuse(context, "to_dlpack: out is NULL");
  if (tensor->storage->device.type != GB_CPU)
    return gb_fail(context, GB_EDEVICE, "to_dlpack: only tensors on the cpu can be exported");
  if (tensor->storage->loan != GB_OWNED)
    return gb_fail(context, GB_ESTATE,
                   "to_dlpack: the tensor's memory is a loan and can be taken back; clone it first");
  GB_TRY(gb_expose_values(tensor));
  export *e = calloc(1, sizeof *e);
  gb_tensor *alias;
  if (!e) return gb_fail_memory(context, sizeof *e);
  gb_status status = gb_tensor_detach(tensor, &alias);
  if (status != GB_OK) { free(e); return status; }
  e->tensor = alias;
  atomic_fetch_add(&alias->storage->exports, 1);
  memcpy(e->shape, alias->shape, sizeof e->shape);
  memcpy(e->stride, alias->stride, sizeof e->stride);
  e->managed = (struct DLManagedTensorVersioned){
    .version = { GB_DLPACK_MAJOR, GB_DLPACK_MINOR }, .manager_ctx = e, .deleter = end_export,
    .dl_tensor = { .data = gb_data(alias), .device = { GB_DLPACK_CPU, 0 }, .ndim = alias->ndim,
                   .dtype = dtypes[alias->dtype], .shape = e->shape,
                   .strides = e->stride },
  };
  *out = &e->managed;
  return GB_OK;
}

/* Our dtype of theirs, or GB_DTYPE_NONE. */
static gb_dtype dtype_of(gb_dlpack_dtype theirs) {
  for (int i = 0; i < GB_DTYPE_COUNT; i++)
    if (dtypes[i].code == theirs.code && dtypes[i].bits == theirs.bits && theirs.lanes == 1) return (gb_dtype)i;
  return GB_DTYPE_NONE;
}

/* What we cannot take over. */
static gb_status check_import(gb_context *context, const struct DLManagedTensorVersioned *managed) {
  const gb_dlpack_tensor *t = &managed->dl_tensor;
  if (managed->version.major != GB_DLPACK_MAJOR)
    return gb_fail(context, GB_EUNSUPPORTED, "from_dlpack: the struct is of DLPack %u, version %u is understood",
                   managed->version.major,
                   GB_DLPACK_MAJOR);
  if (managed->flags & GB_DLPACK_READ_ONLY)
    return gb_fail(context, GB_EUNSUPPORTED, "from_dlpack: the memory is read-only; export a copy");
  if (t->device.device_type != GB_DLPACK_CPU)
    return gb_fail(context, GB_EDEVICE, "from_dlpack: only memory of the cpu can be taken over");
  if (t->ndim < 0 || t->ndim > GB_MAX_NDIM)
    return gb_fail(context, GB_ESHAPE, "from_dlpack: a tensor has at most %d dimensions, not %d", GB_MAX_NDIM, t->ndim);
  if (t->ndim && !t->shape)
    return gb_fail(context, GB_EINVAL, "from_dlpack: the shape is NULL, and there are dimensions");
  if (dtype_of(t->dtype) == GB_DTYPE_NONE)
    return gb_fail(context, GB_EDTYPE, "from_dlpack: the dtype (code %d, %d bits, %d lanes) has no counterpart",
                   t->dtype.code, t->dtype.bits,
                   t->dtype.lanes);
  for (int i = 0; t->strides && i < t->ndim; i++)
    if (t->strides[i] < 0) return gb_fail(context, GB_EUNSUPPORTED, "from_dlpack: dimension %d runs backwards", i + 1);
  return GB_OK;
}

/* The elements that shape and strides reach over; false: more than can be counted. */
static bool span_of(const gb_dlpack_tensor *t, int64_t *span) {
  *span = 1;
  for (int i = 0; i < t->ndim; i++) {
    int64_t reach;
    if (t->shape[i] < 0) return false;
    if (t->shape[i] == 0) { *span = 0; return true; }
    if (t->strides && (__builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &reach) ||
                       __builtin_add_overflow(*span, reach, span))) return false;
    if (!t->strides && __builtin_mul_overflow(*span, t->shape[i], span)) return false;
  }
  return true;
}

static void end_import(void *user) {
  struct DLManagedTensorVersioned *managed = user;
  if (managed->deleter) managed->deleter(managed);
}

gb_status gb_tensor_from_dlpack(gb_context *context, struct DLManagedTensorVersioned *managed, gb_tensor **out) {
  if (!context || !managed || !out) return gb_refuse(context, "from_dlpack: the struct or out is NULL");
  const gb_dlpack_tensor *t = &managed->dl_tensor;
  int64_t span, strides[GB_MAX_NDIM];
  gb_tensor *whole;
  GB_TRY(check_import(context, managed));
  if (!span_of(t, &span))
    return gb_fail(context, GB_ESHAPE, "from_dlpack: the shape reaches over more elements than can be counted");
  char *data = t->data ? (char *)t->data + t->byte_offset : NULL;
  GB_TRY(gb_tensor_wrap(context, data, dtype_of(t->dtype), 1, &span, NULL, NULL, &whole));
  gb_contiguous_strides(t->ndim, t->shape, strides);
  gb_status status = gb_tensor_view(whole, t->ndim, t->shape, t->strides ? t->strides : strides, 0, out);
  if (status == GB_OK) { /* from here on it is ours */
    whole->storage->loan = GB_OWNED;
    whole->storage->release = end_import;
    whole->storage->user = managed;
  }
  gb_tensor_release(whole);
  return status;
}

/* ====} */
