/* graph/chain.c - several ops in a row: what a chain's steps make, and its first failure. */
#include "graph/chain.h"

void gb_chain_begin(gb_chain *chain, gb_context *context) {
  chain->context = context;
  chain->status = GB_OK;
  chain->count = 0;
}

gb_status gb_chain_end(gb_chain *chain, gb_tensor *result, gb_tensor **out) {
  if (chain->status == GB_OK) gb_tensor_retain(*out = result);
  while (chain->count > 0) gb_tensor_release(chain->made[--chain->count]);
  return chain->status;
}

/* May the next step run? Only if nothing failed and there is room for what it makes. */
static bool ready(gb_chain *chain) {
  if (chain->status == GB_OK && chain->count == GB_CHAIN_ROOM)
    chain->status = gb_fail(chain->context, GB_EUNSUPPORTED, "more than %d steps in one expression", GB_CHAIN_ROOM);
  return chain->status == GB_OK;
}

/* Own what a step made, or remember that it failed. */
static gb_tensor *keep(gb_chain *chain, gb_status status, gb_tensor *made) {
  chain->status = status;
  return status == GB_OK ? (chain->made[chain->count++] = made) : NULL;
}

/* Any op with one visible output. */
static gb_tensor *chain_op(gb_chain *chain, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs) {
  if (!ready(chain)) return NULL;
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gb_status status = gb_apply(chain->context, op, in, n_in, attrs, out);
  return keep(chain, status, *out);
}

gb_tensor *gb_chain_run(gb_chain *chain, gb_op op, const void *arguments) {
  if (!ready(chain)) return NULL;
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gb_status status = gb_run(chain->context, op, arguments, out);
  return keep(chain, status, *out);
}

gb_tensor *gb_chain_pair(gb_chain *chain, gb_op op, const void *arguments, gb_tensor **second) {
  *second = NULL;
  if (chain->count + 1 == GB_CHAIN_ROOM) keep(chain, chain->status, NULL); /* no room for both */
  if (!ready(chain)) return NULL;
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gb_status status = gb_run(chain->context, op, arguments, out);
  *second = keep(chain, status, out[1]);
  return keep(chain, status, out[0]);
}

gb_tensor *gb_chain_1(gb_chain *chain, gb_op op, gb_tensor *x, const gb_attr *attrs) {
  return chain_op(chain, op, (gb_tensor *[]){ x }, 1, attrs);
}

gb_tensor *gb_chain_2(gb_chain *chain, gb_op op, gb_tensor *x, gb_tensor *y, const gb_attr *attrs) {
  return chain_op(chain, op, (gb_tensor *[]){ x, y }, 2, attrs);
}

gb_tensor *gb_chain_wrap(gb_chain *chain, double number) {
  if (!ready(chain)) return NULL;
  gb_tensor *out = NULL;
  gb_status status = gb_tensor_wrap_number(chain->context, number, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_number(gb_chain *chain, gb_op op, gb_tensor *x, double number) {
  if (!ready(chain)) return NULL;
  gb_tensor *out = NULL;
  gb_status status = gb_op_number(chain->context, op, x, number, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_cast(gb_chain *chain, gb_tensor *x, gb_dtype dtype) {
  if (!ready(chain) || x->dtype == dtype) return x;
  gb_tensor *out = NULL;
  gb_status status = gb_op_cast(chain->context, x, dtype, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_widen(gb_chain *chain, gb_tensor *x) {
  return x && gb_is_16bit((gb_dtype)x->dtype) ? gb_chain_cast(chain, x, GB_FLOAT32) : x;
}

gb_tensor *gb_chain_zeros(gb_chain *chain, const gb_tensor *x) {
  if (!ready(chain)) return NULL;
  gb_tensor *out = NULL;
  gb_status status = gb_op_zeros_like(chain->context, x, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_detach(gb_chain *chain, gb_tensor *x) {
  if (!ready(chain)) return NULL;
  gb_tensor *out = NULL;
  gb_status status = gb_tensor_detach(x, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_here(gb_chain *chain, const gb_op_call *call, gb_tensor *x) {
  gb_device device = x->storage->device;
  if (!ready(chain) || (device.type == call->device.type && device.index == call->device.index)) return x;
  gb_tensor *out = NULL;
  gb_status status = gb_op_to_device(chain->context, x, call->device, &out);
  return keep(chain, status, out);
}

gb_tensor *gb_chain_full(gb_chain *chain, gb_dtype dtype, int ndim, const int64_t *shape, gb_device device,
                         double value) {
  if (!ready(chain)) return NULL;
  gb_tensor *made = NULL;
  gb_status status = gb_tensor_new(chain->context, dtype, ndim, shape, device, &made);
  gb_tensor *out = keep(chain, status, made);
  if (out) chain->status = GB_RUN(chain->context, fill, NULL, .x = out, .value = gb_attr_num(value));
  return chain->status == GB_OK ? out : NULL;
}
