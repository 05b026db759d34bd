/* graph/helpers.c - what the families share: outputs and requirements of a check, and ops called from gradients and
 * composites.
 *
 * Ops called from here run with autocast off: their dtypes were decided when the outer op was. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/ops.h"

/* {==== for checks ==== */

/* The name that the signature gives an input. */
static const char *input_name(const gb_op_call *call, int input) { return gb_op_input(call->info, input)->name; }

gb_status gb_call_fits_in_place(const gb_op_call *call, gb_dtype dtype) {
  gb_dtype to = (gb_dtype)(*call->in)->dtype;
  if (gb_dtype_category(dtype) <= gb_dtype_category(to)) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "in place, a result of %s cannot be stored in a tensor of %s; use the form "
                                       "without '_', or x:to('%s') first",
                      gb_dtype_name(dtype), gb_dtype_name(to), gb_dtype_name(dtype));
}

/* The result of an in-place call is its first input itself: it must have the result's shape, and a dtype that the
 * result can be rounded to. Apart, as the next one is: most calls need neither. */
static __attribute__((noinline)) gb_status output_in_place(gb_op_call *call, int ndim, const int64_t *shape,
                                                           gb_dtype dtype) {
  gb_tensor *to = *call->in;
  char a[96], b[96];
  if (ndim != to->ndim || memcmp(shape, to->shape, sizeof *shape * (size_t)ndim))
    return gb_call_fail(call, GB_ESHAPE, "in place, the result has shape %s but the tensor it goes into has %s; use "
                                         "the form without '_'",
                        gb_shape_text(ndim, shape, a, sizeof a), gb_shape_text(to->ndim, to->shape, b, sizeof b));
  GB_TRY(gb_call_fits_in_place(call, dtype));
  for (int d = 0; d < ndim; d++)
    if (to->numel && to->stride[d] == 0 && shape[d] > 1)
      return gb_call_fail(call, GB_EINVAL, "in place, the tensor is expanded along dim %d, so that elements share "
                                           "memory; call x:clone() first",
                          d + 1);
  if (to->numel && !gb_is_disjoint(ndim, shape, to->stride))
    return gb_call_fail(call, GB_EINVAL, "in place, the strides %s of the tensor of shape %s let elements share "
                                         "memory, as windows that overlap do; call x:clone() first",
                        gb_shape_text(ndim, to->stride, a, sizeof a), gb_shape_text(ndim, shape, b, sizeof b));
  gb_tensor_retain(*call->out = to);
  return GB_OK;
}

/* The result goes into a tensor that the caller gave. strides NULL: row-major. */
static __attribute__((noinline)) gb_status output_given(gb_op_call *call, int i, int ndim, const int64_t *shape,
                                                        const int64_t *strides, gb_dtype dtype) {
  gb_tensor *to = call->given[i];
  gb_device device = to->storage->device;
  char a[96], b[96];
  GB_TRY(gb_expect_context(call->context, to));
  GB_TRY(gb_touch_values(to));
  if (ndim != to->ndim || memcmp(shape, to->shape, sizeof *shape * (size_t)ndim))
    return gb_call_fail(call, GB_ESHAPE, "the given output %d must have shape %s, it has %s", i + 1,
                        gb_shape_text(ndim, shape, a, sizeof a),
                        gb_shape_text(to->ndim, to->shape, b, sizeof b));
  bool laid_out = strides ? !memcmp(strides, to->stride, sizeof *strides * (size_t)ndim) : gb_is_contiguous(to);
  if (to->dtype != (int8_t)dtype || !laid_out)
    return gb_call_fail(call, GB_EINVAL, "the given output %d must be a %s tensor of %s", i + 1,
                        strides ? "likewise dense" : "contiguous",
                        gb_dtype_name(dtype));
  if (device.type != call->device.type || device.index != call->device.index)
    return gb_call_fail(call, GB_EDEVICE, "the given output %d lies on another device than the inputs", i + 1);
  for (int k = 0; k < call->n_in; k++)
    if (call->in[k] && call->in[k]->storage == to->storage)
      return gb_call_fail(call, GB_EINVAL, "the given output %d shares memory with '%s'", i + 1, input_name(call, k));
  gb_tensor_retain(call->out[i] = to);
  return GB_OK;
}

gb_status gb_call_output_strided(gb_op_call *call, int i, int ndim, const int64_t *shape, const int64_t *strides,
                                 gb_dtype dtype) {
  if (dtype == GB_DTYPE_NONE) dtype = gb_call_dtype(call, gb_result_type(call->in, call->n_in));
  if (call->in_place && i == 0) return output_in_place(call, ndim, shape, dtype);
  if (call->given && call->given[i]) return output_given(call, i, ndim, shape, strides, dtype);
  return gb_tensor_new_as(call->context, dtype, ndim, shape, strides, call->device, GB_MEM_OTHER, &call->out[i]);
}

gb_status gb_call_output(gb_op_call *call, int i, int ndim, const int64_t *shape, gb_dtype dtype) {
  return gb_call_output_strided(call, i, ndim, shape, NULL, dtype);
}

gb_status gb_call_output_like(gb_op_call *call, int i, const gb_tensor *like, gb_dtype dtype) {
  return gb_call_output_strided(call, i, like->ndim, like->shape, gb_is_dense(like) ? like->stride : NULL, dtype);
}

gb_status gb_call_output_alias(gb_op_call *call, int i, gb_tensor *x) {
  if (call->needs_grad) return gb_tensor_view(x, x->ndim, x->shape, x->stride, x->offset, &call->out[i]);
  gb_tensor_retain(call->out[i] = x);
  return GB_OK;
}

gb_dtype gb_call_dtype(const gb_op_call *call, gb_dtype natural) {
  return call->result != GB_DTYPE_NONE && gb_dtype_is_float(natural) ? call->result : natural;
}

void gb_call_random(gb_op_call *call) {
  call->rng_seed = call->context->seed;
  call->rng_offset = gb_rng_take(call->context);
}

gb_status gb_call_dim(gb_op_call *call, int64_t dim, int ndim, int *out) {
  int64_t from_front = dim < 0 ? dim + ndim : dim;
  if (from_front < 0 || from_front >= ndim) {
    long long lua = (long long)(dim < 0 || dim == INT64_MAX ? dim : dim + 1);
    if (ndim == 0) return gb_call_fail(call, GB_EINDEX, "dim %lld does not exist: the tensor is a scalar", lua);
    return gb_call_fail(call, GB_EINDEX, "dim %lld does not exist; the tensor has dims 1 .. %d (or -%d .. -1)", lua,
                        ndim, ndim);
  }
  *out = (int)from_front;
  return GB_OK;
}

gb_status gb_require_float(gb_op_call *call, int input) {
  gb_dtype dtype = (gb_dtype)call->in[input]->dtype;
  if (gb_dtype_is_float(dtype)) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' must be a floating tensor, it is %s; convert it with x:float()",
                      input_name(call, input),
                      gb_dtype_name(dtype));
}

gb_status gb_require_integer(gb_op_call *call, int input) {
  gb_dtype dtype = (gb_dtype)call->in[input]->dtype;
  if (gb_dtype_category(dtype) == GB_CATEGORY_INT) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' must be an integer tensor, it is %s; convert it with x:long()",
                      input_name(call, input),
                      gb_dtype_name(dtype));
}

gb_attr gb_number_of(const gb_tensor *wrapped) {
  if (wrapped->dtype == GB_FLOAT64) return gb_attr_num(*(const double *)(const void *)gb_data(wrapped));
  return gb_attr_whole(*(const int64_t *)(const void *)gb_data(wrapped));
}

const char *gb_number_text(const gb_attr *number, char *buffer, size_t size) {
  double value = number->number;
  if (number->whole) snprintf(buffer, size, "%lld", (long long)number->exact);
  else if (value == floor(value) && fabs(value) < 0x1p63) snprintf(buffer, size, "%.0f", value); /* 2^62 in full */
  else snprintf(buffer, size, "%.14g", value != value ? fabs(value) : value);
  return buffer;
}

gb_status gb_require_fits(gb_op_call *call, const gb_attr *number, gb_dtype dtype) {
  char text[40];
  int side = gb_number_side(number, dtype);
  const gb_format *f = gb_format_of(dtype);
  /* without a sign, it counts down from 0 */
  bool down = f->least == 0 && side < 0 && gb_number_integer(number) >= -f->most;
  if (!gb_is_int(dtype) || side == 0 || down) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "the value %s does not fit into %s; convert the tensor with x:float()",
                      gb_number_text(number, text, sizeof text), gb_dtype_name(dtype));
}

gb_status gb_require_input_fits(gb_op_call *call, int input, gb_dtype dtype) {
  if (!call->in[input]->wrapped) return GB_OK;
  gb_attr number = gb_number_of(call->in[input]);
  return gb_require_fits(call, &number, dtype);
}

gb_status gb_require_ndim(gb_op_call *call, int input, int least, int most) {
  const gb_tensor *t = call->in[input];
  char text[96], wanted[32];
  if (t->ndim >= least && t->ndim <= most) return GB_OK;
  if (least == most) snprintf(wanted, sizeof wanted, "%d", least);
  else if (most >= GB_MAX_NDIM) snprintf(wanted, sizeof wanted, "at least %d", least);
  else snprintf(wanted, sizeof wanted, "%d to %d", least, most);
  return gb_call_fail(call, GB_ESHAPE, "'%s' must have %s dimension%s, it has %d (shape %s)%s", input_name(call, input),
                      wanted,
                      least == 1 && (most == 1 || most >= GB_MAX_NDIM) ? "" : "s", t->ndim,
                          gb_shape_text(t->ndim, t->shape, text, sizeof text),
                      input == 0 && t->ndim < least ? "; unsqueeze(1) adds one in front, such as that of a batch" : "");
}

/* ====} */

/* {==== ops called from ops ==== */

/* gb_apply with autocast off. */
static gb_status apply_plain(gb_context *c, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                             gb_tensor **out) {
  gb_modes *modes = c->modes;
  bool autocast = modes->autocast;
  modes->autocast = false;
  gb_status status = gb_apply(c, op, in, n_in, attrs, out);
  modes->autocast = autocast;
  return status;
}

/* GB_RUN with autocast off. */
#define RUN_PLAIN(c, op, out, ...) run_plain((c), GB_OP_##op, &(gb_arguments_##op){ __VA_ARGS__ }, (out))
static gb_status run_plain(gb_context *c, gb_op op, const void *arguments, gb_tensor **out) {
  gb_modes *modes = c->modes;
  bool autocast = modes->autocast;
  modes->autocast = false;
  gb_status status = gb_run(c, op, arguments, out);
  modes->autocast = autocast;
  return status;
}

gb_status gb_op_number(gb_context *c, gb_op op, gb_tensor *x, double number, gb_tensor **out) {
  gb_tensor *wrapped;
  GB_TRY(gb_tensor_wrap_number(c, number, &wrapped));
  gb_status status = apply_plain(c, op, (gb_tensor *[]){ x, wrapped }, 2, NULL, out);
  gb_tensor_release(wrapped);
  return status;
}

gb_status gb_op_cast(gb_context *c, gb_tensor *x, gb_dtype dtype, gb_tensor **out) {
  if (x->dtype == (int8_t)dtype) {
    gb_tensor_retain(*out = x);
    return GB_OK;
  }
  return RUN_PLAIN(c, cast, out, .x = x, .dtype = gb_attr_int(dtype));
}

gb_status gb_sum_to(gb_context *c, gb_tensor *x, int ndim, const int64_t *shape, gb_tensor **out) {
  gb_attr dims = { .given = true };
  int lead = x->ndim - ndim, inner = 0;
  for (int d = 0; d < x->ndim; d++) {
    bool kept = d >= lead && (shape[d - lead] != 1 || x->shape[d] == 1);
    if (kept) continue;
    dims.ints[dims.count++] = d;
    inner += d >= lead;
  }
  if (dims.count == 0) {
    gb_tensor_retain(*out = x);
    return GB_OK;
  }
  gb_tensor *sum;
  GB_TRY(RUN_PLAIN(c, sum, &sum, .x = x, .dim = dims, .keepdim = gb_attr_int(inner > 0)));
  if (sum->ndim == ndim) {
    *out = sum;
    return GB_OK;
  }
  gb_status status = RUN_PLAIN(c, reshape, out, .x = sum, .shape = gb_attr_ints(ndim, shape));
  gb_tensor_release(sum);
  return status;
}

gb_status gb_op_contiguous(gb_context *c, gb_tensor *x, gb_tensor **out) {
  if (!gb_is_contiguous(x)) return RUN_PLAIN(c, contiguous, out, .x = x);
  gb_tensor_retain(*out = x);
  return GB_OK;
}

gb_status gb_op_zeros_like(gb_context *c, const gb_tensor *like, gb_tensor **out) {
  GB_TRY(gb_tensor_new_like(like, (gb_dtype)like->dtype, GB_MEM_OTHER, out));
  gb_status status = GB_RUN(c, fill, NULL, .x = *out, .value = gb_attr_num(0));
  if (status != GB_OK) gb_drop(out);
  return status;
}

void gb_drop(gb_tensor **tensor) {
  gb_tensor_release(*tensor);
  *tensor = NULL;
}

/* ====} */
