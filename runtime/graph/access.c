/* graph/access.c - moving elements between tensors and host memory; these may need an op to bring a strided tensor into
 * order. */
#include <string.h>

#include "graph/autograd.h"

/* A buffer of the right size, and memory that is still there. */
static gb_status expect_bytes(const gb_tensor *t, const char *what, const void *host, size_t bytes) {
  if (!t || (bytes && !host)) return gb_refuse(gb_tensor_context(t), "the buffer is NULL");
  size_t needed = (size_t)t->numel * gb_dtype_bytes((gb_dtype)t->dtype);
  GB_TRY(gb_touch_values(t));
  if (bytes == needed) return GB_OK;
  return gb_fail(gb_tensor_context(t), GB_EINVAL, "%s: the tensor has %zu bytes, the buffer %zu", what, needed, bytes);
}

typedef gb_status (*copy_fn)(void *state, void *to, const void *from, size_t bytes);

/* Copy by a function of a backend; on the CPU in pieces, between which a stop is heeded. */
static gb_status copy_pieces(gb_context *context, gb_device device, copy_fn copy, void *to, const void *from,
                             size_t bytes) {
  void *state = gb_context_backend(context, device)->state;
  size_t most = device.type == GB_CPU ? (size_t)GB_PIECE : bytes;
  for (size_t at = 0, piece; at < bytes; at += piece) {
    if (at) GB_TRY(gb_poll(context));
    piece = bytes - at < most ? bytes - at : most;
    GB_TRY(copy(state, (char *)to + at, (const char *)from + at, piece));
  }
  return GB_OK;
}

gb_status gb_tensor_write(gb_tensor *tensor, const void *host, size_t bytes) {
  GB_TRY(expect_bytes(tensor, "write", host, bytes));
  gb_context *context = gb_tensor_context(tensor);
  gb_device device = tensor->storage->device;
  gb_backend *backend = gb_context_backend(context, device);
  if (gb_is_contiguous(tensor)) {
    GB_TRY(copy_pieces(context, device, backend->write, gb_data(tensor), host, bytes));
    gb_tensor_bump(tensor);
    return GB_OK;
  }
  gb_tensor *ordered;
  GB_TRY(gb_tensor_new(context, (gb_dtype)tensor->dtype, tensor->ndim, tensor->shape, device, &ordered));
  gb_status status = copy_pieces(context, device, backend->write, gb_data(ordered), host, bytes);
  bool grad = gb_set_grad_enabled(context, false);
  if (status == GB_OK) status = GB_RUN(context, copy, NULL, .x = tensor, .source = ordered);
  gb_set_grad_enabled(context, grad);
  gb_tensor_release(ordered);
  return status;
}

gb_status gb_tensor_read(gb_tensor *tensor, void *host, size_t bytes) {
  GB_TRY(expect_bytes(tensor, "read", host, bytes));
  gb_context *context = gb_tensor_context(tensor);
  gb_backend *backend = gb_context_backend(context, tensor->storage->device);
  GB_TRY(gb_recompute_note(context, tensor));
  bool grad = gb_set_grad_enabled(context, false);
  gb_tensor *ordered;
  gb_status status = gb_op_contiguous(context, tensor, &ordered);
  gb_set_grad_enabled(context, grad);
  GB_TRY(status);
  status = copy_pieces(context, tensor->storage->device, backend->read, host, gb_data(ordered), bytes);
  gb_tensor_release(ordered);
  return status;
}

/* Bytes from one device's memory to another's; one side is host memory, or a buffer of it stands between. */
static gb_status move_bytes(gb_context *context, gb_device to_device, void *to, gb_device from_device, const void *from,
                            size_t bytes) {
  gb_backend *target = gb_context_backend(context, to_device), *source = gb_context_backend(context, from_device);
  if (from_device.type == GB_CPU) return target->write(target->state, to, from, bytes);
  if (to_device.type == GB_CPU) return source->read(source->state, to, from, bytes);
  if (to_device.type == from_device.type && target->fetch)
    return target->fetch(target->state, to, source->state, from, bytes);
  gb_block *buffer = gb_context_alloc(context, (gb_device){ GB_CPU, 0 }, bytes, GB_MEM_SCRATCH);
  if (!buffer) return GB_EMEMORY;
  gb_status status = source->read(source->state, gb_block_data(buffer), from, bytes);
  if (status == GB_OK) status = target->write(target->state, to, gb_block_data(buffer), bytes);
  gb_pool_free(context->pool[GB_CPU], buffer);
  return status;
}

gb_status gb_tensor_on(gb_tensor *x, gb_device device, gb_tensor **out) {
  gb_context *context = gb_tensor_context(x);
  gb_tensor *dense = x;
  *out = NULL;
  gb_tensor_retain(dense);
  if (!gb_is_dense(x)) {
    bool grad = gb_set_grad_enabled(context, false);
    gb_status status = gb_op_contiguous(context, x, &dense);
    gb_set_grad_enabled(context, grad);
    gb_tensor_release(x);
    GB_TRY(status);
  }
  size_t bytes = (size_t)x->numel * gb_dtype_bytes((gb_dtype)x->dtype);
  gb_status status = gb_tensor_new_as(context, (gb_dtype)x->dtype, x->ndim, x->shape, dense->stride, device,
                                      GB_MEM_OTHER, out);
  if (status == GB_OK)
    status = move_bytes(context, device, (*out)->storage->data, x->storage->device, gb_data(dense), bytes);
  if (status != GB_OK && *out) gb_drop(out);
  gb_tensor_release(dense);
  return status;
}

gb_status gb_op_to_device(gb_context *c, gb_tensor *x, gb_device device, gb_tensor **out) {
  GB_TRY(gb_tensor_new_as(c, (gb_dtype)x->dtype, x->ndim, x->shape, gb_is_dense(x) ? x->stride : NULL, device,
                          GB_MEM_OTHER, out));
  gb_modes *outer = c->modes, plain = *outer;
  plain.autocast = false;
  c->modes = &plain;
  gb_status status = GB_RUN(c, copy, NULL, .x = *out, .source = x);
  c->modes = outer;
  if (status != GB_OK) gb_drop(out);
  return status;
}

gb_status gb_tensor_item(gb_tensor *tensor, double *number, int64_t *integer) {
  gb_context *context = gb_tensor_context(tensor);
  if (!tensor) return GB_EINVAL;
  if (tensor->numel != 1) {
    char text[96];
    return gb_fail(context, GB_ESHAPE, "item: the tensor has shape %s; only one element can become a number",
                   gb_shape_text(tensor->ndim, tensor->shape, text, sizeof text));
  }
  bool is_float = gb_dtype_is_float((gb_dtype)tensor->dtype);
  bool grad = gb_set_grad_enabled(context, false);
  gb_tensor *wide;
  gb_status status = gb_op_cast(context, tensor, is_float ? GB_FLOAT64 : GB_INT64, &wide);
  gb_set_grad_enabled(context, grad);
  GB_TRY(status);
  union { double number; int64_t integer; } value;
  status = gb_tensor_read(wide, &value, sizeof value);
  gb_tensor_release(wide);
  GB_TRY(status);
  if (number) *number = is_float ? value.number : (double)value.integer;
  bool fits = !is_float || (value.number >= -0x1p63 && value.number < 0x1p63);
  if (integer) *integer = !fits ? 0 : is_float ? (int64_t)value.number : value.integer;
  return GB_OK;
}

gb_status gb_tensor_scalar(gb_context *context, gb_dtype dtype, double value, gb_tensor **out) {
  GB_TRY(gb_tensor_new(context, dtype, 0, NULL, (gb_device){ GB_CPU, 0 }, out));
  gb_status status = GB_RUN(context, fill, NULL, .x = *out, .value = gb_attr_num(value));
  if (status != GB_OK) gb_drop(out);
  return status;
}
