/* ops/attention.c - scaled_dot_product_attention: shapes, layout of the results, gradient.
 *
 * Results lie in memory in the order of dims that their counterpart has, dense and head_dim innermost: attention over [b, h, t, d] views of
 * [b, t, h, d] gives such a view again, so that joining the heads afterwards moves nothing. */
#include <inttypes.h>
#include <string.h>

#include "graph/ops.h"

enum { QUERY, KEY, VALUE, MASK };

/* Size `from_end` dims before the last; 1 where the rank is too low. */
static int64_t size_at(const gb_tensor *t, int from_end) { return t->ndim > from_end ? t->shape[t->ndim - 1 - from_end] : 1; }

/* Output i with a shape whose dims lie in memory as those of `like`, dense, the last one innermost. */
static gb_status output_ordered(gb_call *call, int i, const gb_tensor *like, const int64_t *shape, gb_dtype dtype) {
  int order[GB_MAX_NDIM], n = 0;
  for (int d = like->ndim - 2; d >= 0; d--) { /* by stride, the smallest first; equal ones stay */
    int at = n++;
    for (; at > 0 && like->stride[order[at - 1]] > like->stride[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
  int64_t strides[GB_MAX_NDIM], step = shape[like->ndim - 1];
  strides[like->ndim - 1] = 1;
  for (int k = 0; k < n; k++) {
    strides[order[k]] = step;
    step *= shape[order[k]];
  }
  return gb_call_output_strided(call, i, like->ndim, shape, strides, dtype);
}

/* query [..., heads, tq, e], key [..., key_heads, tk, e], value [..., key_heads, tk, ev] belong together. */
static gb_status check_shapes(gb_call *call, const gb_tensor *query, const gb_tensor *key, const gb_tensor *value) {
  char q[96], k[96], v[96];
  gb_shape_text(query->ndim, query->shape, q, sizeof q);
  gb_shape_text(key->ndim, key->shape, k, sizeof k);
  gb_shape_text(value->ndim, value->shape, v, sizeof v);
  const char *wrong = NULL;
  int64_t heads = size_at(query, 2), key_heads = size_at(key, 2);
  if (query->ndim < 2 || query->ndim > 4 || key->ndim != query->ndim || value->ndim != query->ndim)
    wrong = "query, key and value must all have the dimensions [batch, heads, time, head_dim], or [heads, time, head_dim]";
  else if (size_at(query, 0) != size_at(key, 0) || size_at(query, 0) == 0) wrong = "query and key must have the same head_dim, at least 1";
  else if (size_at(key, 1) != size_at(value, 1)) wrong = "key and value must have the same time";
  else if (size_at(query, 3) != size_at(key, 3) || size_at(query, 3) != size_at(value, 3)) wrong = "query, key and value must have the same batch";
  else if (key_heads != size_at(value, 2)) wrong = "key and value must have the same number of heads";
  else if (key_heads == 0 ? heads != 0 : heads % key_heads != 0) wrong = "the heads of query must be a multiple of the heads of key";
  return wrong ? gb_call_fail(call, GB_ESHAPE, "%s (query %s, key %s, value %s)", wrong, q, k, v) : GB_OK;
}

/* mask: bool or float, and broadcasts to [batch, heads, tq, tk]. It has no gradient. */
static gb_status check_mask(gb_call *call, const gb_tensor *mask, const gb_tensor *query, const gb_tensor *key) {
  if (!mask) return GB_OK;
  if (mask->dtype != GB_BOOL && !gb_dtype_is_float((gb_dtype)mask->dtype))
    return gb_call_fail(call, GB_EDTYPE, "mask must be bool (true: attend) or a float that is added to the scores, got %s", gb_dtype_name((gb_dtype)mask->dtype));
  if (call->needs_grad && gb_tensor_in_graph(mask))
    return gb_call_fail(call, GB_EAUTOGRAD, "mask requires a gradient, which attention does not compute; detach it");
  int64_t target[4] = { 0 }, shape[GB_MAX_NDIM];
  int ndim = query->ndim;
  memcpy(target, query->shape, (size_t)ndim * sizeof *target);
  target[ndim - 1] = size_at(key, 1);
  memcpy(shape, target, sizeof target);
  bool fits = gb_broadcast(&ndim, shape, mask->ndim, mask->shape) && ndim == query->ndim;
  if (fits && !memcmp(shape, target, (size_t)ndim * sizeof *shape)) return GB_OK;
  char m[96], t[96];
  return gb_call_fail(call, GB_ESHAPE, "mask %s does not broadcast to %s, [batch, heads, time of query, time of key]",
                      gb_shape_text(mask->ndim, mask->shape, m, sizeof m), gb_shape_text(query->ndim, target, t, sizeof t));
}

/* query [b, h, tq, e], key [b, g, tk, e], value [b, g, tk, ev], g divides h -> y [b, h, tq, ev]; lse [b, h, tq], the log of each query's sum
 * of exponentials, is kept for backward in the dtype of the arithmetic. */
static gb_status attention_check(gb_call *call) {
  const gb_tensor *query = call->in[QUERY], *key = call->in[KEY], *value = call->in[VALUE];
  for (int i = QUERY; i <= VALUE; i++) GB_TRY(gb_require_float(call, i));
  GB_TRY(check_shapes(call, query, key, value));
  GB_TRY(check_mask(call, call->in[MASK], query, key));
  double dropout = call->attrs[2].number;
  if (!(dropout >= 0 && dropout <= 1)) return gb_call_fail(call, GB_EINVAL, "dropout_p must be from 0 to 1, got %g", dropout);
  if (dropout > 0) gb_call_random(call);
  int64_t shape[4];
  memcpy(shape, query->shape, (size_t)query->ndim * sizeof *shape);
  shape[query->ndim - 1] = size_at(value, 0);
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, 3));
  GB_TRY(output_ordered(call, 0, query, shape, dtype));
  if (!call->needs_grad) return GB_OK;
  return gb_call_output(call, 1, query->ndim - 1, query->shape, dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
}

/* in: grad, query, key, value, mask, y, lse, as forward had them. */
static gb_status attention_backward_check(gb_call *call) {
  gb_tensor **operands = call->in + 1;
  GB_TRY(check_shapes(call, operands[QUERY], operands[KEY], operands[VALUE]));
  for (int i = QUERY; i <= VALUE; i++) GB_TRY(output_ordered(call, i, operands[i], operands[i]->shape, (gb_dtype)operands[i]->dtype));
  return GB_OK;
}

/* All three gradients come from one pass; the random numbers are those that forward drew. */
static gb_status attention_gradient(gb_grad_call *grad) {
  if (grad->need[MASK])
    return gb_fail(grad->context, GB_EAUTOGRAD,
                   "scaled_dot_product_attention: mask requires a gradient, which attention does not compute; detach it");
  gb_tensor **saved = grad->saved;
  gb_tensor *in[] = { grad->out[0], saved[QUERY], saved[KEY], saved[VALUE], saved[MASK], GB_SAVED_OUT(grad, 0), GB_SAVED_OUT(grad, 1) };
  gb_attr seed = gb_attr_int((int64_t)grad->node->rng_seed), offset = gb_attr_int((int64_t)grad->node->rng_offset);
  gb_attr attrs[] = { grad->attrs[0], grad->attrs[1], grad->attrs[2], seed, offset };
  gb_tensor *out[3];
  GB_TRY(gb_apply(grad->context, GB_OP_scaled_dot_product_attention_backward, in, 7, attrs, out));
  for (int i = QUERY; i <= VALUE; i++) {
    if (grad->need[i]) grad->in[i] = out[i];
    else gb_tensor_release(out[i]);
  }
  return GB_OK;
}

const gb_op_impl gb_family_attention[] = {
  { .op = GB_OP_scaled_dot_product_attention, .check = attention_check, .gradient = attention_gradient, .save_in = 0xf, .save_out = 0x3 },
  { .op = GB_OP_scaled_dot_product_attention_backward, .check = attention_backward_check },
  { .op = GB_OP_COUNT },
};
