/* ops/attention.c - scaled_dot_product_attention: shapes, layout of the results, gradient.
 *
 * Results lie in memory in the order of dims that their counterpart has, dense and head_dim innermost: attention over
 * [b, h, t, d] views of [b, t, h, d] gives such a view again, so that joining the heads afterwards moves nothing. */
#include <inttypes.h>
#include <string.h>

#include "graph/parts.h"
#include "ops/families.h"

/* Size `from_end` dims before the last; 1 where the rank is too low. */
static int64_t size_at(const gb_tensor *t, int from_end) { return t->ndim > from_end ? t->shape[t->ndim - 1 - from_end]
                                                           : 1; }

/* Output i with a shape whose dims lie in memory as those of `like`, dense, the last one innermost. */
static gb_status output_ordered(gb_op_call *call, int i, const gb_tensor *like, const int64_t *shape, gb_dtype dtype) {
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

/* query [..., heads, tq, e], key [..., key_heads, tk, e], value [..., key_heads, tk, ev] belong together; grouped:
 * there may be fewer key heads. */
static gb_status check_shapes(gb_op_call *call, const gb_tensor *query, const gb_tensor *key, const gb_tensor *value,
                              bool grouped) {
  char q[96], k[96], v[96];
  gb_shape_text(query->ndim, query->shape, q, sizeof q);
  gb_shape_text(key->ndim, key->shape, k, sizeof k);
  gb_shape_text(value->ndim, value->shape, v, sizeof v);
  const char *wrong = NULL;
  int64_t heads = size_at(query, 2), key_heads = size_at(key, 2);
  if (query->ndim < 2 || query->ndim > 4 || key->ndim != query->ndim || value->ndim != query->ndim)
    wrong = "query, key and value must all have the dimensions [batch, heads, time, head_dim], or [heads, time, "
            "head_dim]";
  else if (size_at(query, 0) != size_at(key, 0) || size_at(query, 0) == 0)
    wrong = "query and key must have the same head_dim, at least 1";
  else if (size_at(key, 1) != size_at(value, 1)) wrong = "key and value must have the same time";
  else if (size_at(query, 3) != size_at(key, 3) || size_at(query, 3) != size_at(value, 3))
    wrong = "query, key and value must have the same batch";
  else if (key_heads != size_at(value, 2)) wrong = "key and value must have the same number of heads";
  else if (key_heads == 0 ? heads != 0 : heads % key_heads != 0)
    wrong = "the heads of query must be a multiple of the heads of key";
  else if (heads != key_heads && !grouped)
    wrong = "key and value have fewer heads than query: say enable_gqa = true if groups of heads share them";
  return wrong ? gb_call_fail(call, GB_ESHAPE, "%s (query %s, key %s, value %s)", wrong, q, k, v) : GB_OK;
}

/* mask: bool or float, and broadcasts to [batch, heads, tq, tk]. */
static gb_status check_mask(gb_op_call *call, const gb_tensor *mask, const gb_tensor *query, const gb_tensor *key) {
  if (!mask) return GB_OK;
  if (mask->dtype != GB_BOOL && !gb_dtype_is_float((gb_dtype)mask->dtype))
    return gb_call_fail(call, GB_EDTYPE, "mask must be bool (true: attend) or a float that is added to the scores, "
                                         "got %s", gb_dtype_name((gb_dtype)mask->dtype));
  int64_t target[4] = { 0 }, shape[GB_MAX_NDIM];
  int ndim = query->ndim;
  memcpy(target, query->shape, (size_t)ndim * sizeof *target);
  target[ndim - 1] = size_at(key, 1);
  memcpy(shape, target, sizeof target);
  bool fits = gb_broadcast(&ndim, shape, mask->ndim, mask->shape) && ndim == query->ndim;
  if (fits && !memcmp(shape, target, (size_t)ndim * sizeof *shape)) return GB_OK;
  char m[96], t[96];
  return gb_call_fail(call, GB_ESHAPE, "mask %s does not broadcast to %s, [batch, heads, time of query, time of key]",
                      gb_shape_text(mask->ndim, mask->shape, m, sizeof m),
                          gb_shape_text(query->ndim, target, t, sizeof t));
}

/* query [b, h, tq, e], key [b, g, tk, e], value [b, g, tk, ev], g divides h -> y [b, h, tq, ev]; lse [b, h, tq], the
 * log of each query's sum of exponentials, is kept for backward in the dtype of the arithmetic. */
static gb_status attention_check(gb_op_call *call) {
  const gb_in_scaled_dot_product_attention *in = GB_IN(call, scaled_dot_product_attention);
  const gb_tensor *query = in->query, *key = in->key, *value = in->value;
  GB_TRY(gb_require_float(call, GB_IN_AT(scaled_dot_product_attention, query)));
  GB_TRY(gb_require_float(call, GB_IN_AT(scaled_dot_product_attention, key)));
  GB_TRY(gb_require_float(call, GB_IN_AT(scaled_dot_product_attention, value)));
  GB_TRY(check_shapes(call, query, key, value,
                      GB_ATTRS(call, scaled_dot_product_attention)->enable_gqa.integer != 0));
  GB_TRY(check_mask(call, in->mask, query, key));
  if (GB_ATTRS(call, scaled_dot_product_attention)->dropout_p.number > 0) gb_call_random(call);
  int64_t shape[4];
  memcpy(shape, query->shape, (size_t)query->ndim * sizeof *shape);
  shape[query->ndim - 1] = size_at(value, 0);
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, GB_IN_AT(scaled_dot_product_attention, mask)));
  GB_TRY(output_ordered(call, GB_OUT_AT(scaled_dot_product_attention, y), query, shape, dtype));
  if (!call->needs_grad) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(scaled_dot_product_attention, lse), query->ndim - 1, query->shape,
                        dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
}

/* Are query, key and value parts of the rows of one tensor, which has nothing else? *whole: its elements; *first: where
 * they begin in the storage. */
static bool are_packed(const gb_tensor *const of[3], int64_t *whole, int64_t *first) {
  gb_row_part parts[3];
  int64_t row = 0;
  *first = of[0]->offset;
  for (int i = 0; i < 3; i++) {
    if (of[i]->storage != of[0]->storage || of[i]->dtype != of[0]->dtype ||
        !gb_find_row_part(of[i]->ndim, of[i]->shape, of[i]->stride, &parts[i]) || parts[i].rows != parts[0].rows ||
        parts[i].row != parts[0].row) return false;
    row += parts[i].count;
    if (of[i]->offset < *first) *first = of[i]->offset;
  }
  if (parts[0].rows > 1 && parts[0].row != row) return false;
  for (int i = 0; i < 3; i++) {
    int64_t from = of[i]->offset, to = from + parts[i].count;
    if (to - *first > row) return false;
    for (int k = 0; k < i; k++)
      if (of[k]->offset < to && from < of[k]->offset + parts[k].count) return false;
  }
  *whole = parts[0].rows * row;
  return true;
}

/* The gradients of query, key and value. Of parts of one tensor they are parts of one too, laid out alike, so that the
 * walk finds them where it would put them. */
static gb_status like_operands(gb_op_call *call, const gb_tensor *const of[3]) {
  int64_t whole, first;
  gb_tensor *packed;
  if (call->given || !are_packed(of, &whole, &first)) {
    for (int i = 0; i < 3; i++) GB_TRY(output_ordered(call, i, of[i], of[i]->shape, (gb_dtype)of[i]->dtype));
    return GB_OK;
  }
  GB_TRY(gb_tensor_new(call->context, (gb_dtype)of[0]->dtype, 1, &whole, call->device, &packed));
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < 3; i++) {
    gb_tensor *part;
    status = gb_tensor_view(packed, of[i]->ndim, of[i]->shape, of[i]->stride, of[i]->offset - first, &part);
    if (status != GB_OK) break;
    status = gb_tensor_detach(part, &call->out[i]);
    gb_tensor_release(part);
  }
  gb_tensor_release(packed);
  return status;
}

/* grad, and query, key, value, mask, y and lse as forward had them. */
static gb_status attention_backward_check(gb_op_call *call) {
  const gb_in_scaled_dot_product_attention_backward *in = GB_IN(call, scaled_dot_product_attention_backward);
  const gb_tensor *of[] = { in->query, in->key, in->value };
  GB_TRY(check_shapes(call, in->query, in->key, in->value, true));
  GB_TRY(like_operands(call, of));
  if (!GB_ATTRS(call, scaled_dot_product_attention_backward)->with_mask.integer) return GB_OK;
  int64_t shape[4];
  memcpy(shape, in->query->shape, sizeof shape);
  shape[in->query->ndim - 1] = size_at(in->key, 1);
  return gb_call_output(call, GB_OUT_AT(scaled_dot_product_attention_backward, dmask), in->query->ndim, shape,
                        in->y->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
}

/* Hand a gradient over where it is needed. */
static void take(gb_tensor **to, bool need, gb_tensor *made) {
  if (need) *to = made;
  else gb_tensor_release(made);
}

/* All gradients come from one pass; the random numbers are those that forward drew. That of the mask is made for every
 * score, and then summed to the mask's shape. */
static gb_status attention_gradient(gb_grad_call *grad) {
  const gb_in_scaled_dot_product_attention *saved = GB_SAVED(grad, scaled_dot_product_attention);
  const gb_out_scaled_dot_product_attention *kept = GB_KEPT(grad, scaled_dot_product_attention);
  const gb_attrs_scaled_dot_product_attention *attrs = GB_ATTRS(grad, scaled_dot_product_attention);
  gb_in_scaled_dot_product_attention *to = GB_GRAD_IN(grad, scaled_dot_product_attention);
  gb_out_scaled_dot_product_attention_backward made = { 0 };
  bool by_mask = GB_NEEDS(grad, scaled_dot_product_attention, mask);
  GB_TRY(GB_RUN(grad->context, scaled_dot_product_attention_backward, &made.dquery,
                .grad = GB_GRAD_OUT(grad, scaled_dot_product_attention)->y,
                .query = saved->query, .key = saved->key, .value = saved->value, .mask = saved->mask,
                .y = kept->y, .lse = kept->lse,
                .is_causal = attrs->is_causal, .scale = attrs->scale, .dropout_p = attrs->dropout_p,
                .window = attrs->window, .with_mask = gb_attr_int(by_mask),
                .seed = gb_attr_int((int64_t)grad->node->rng_seed),
                .offset = gb_attr_int((int64_t)grad->node->rng_offset)));
  take(&to->query, GB_NEEDS(grad, scaled_dot_product_attention, query), made.dquery);
  take(&to->key, GB_NEEDS(grad, scaled_dot_product_attention, key), made.dkey);
  take(&to->value, GB_NEEDS(grad, scaled_dot_product_attention, value), made.dvalue);
  if (!by_mask) return GB_OK;
  gb_status status = gb_sum_to(grad->context, made.dmask, saved->mask->ndim, saved->mask->shape, &to->mask);
  gb_tensor_release(made.dmask);
  return status;
}

const gb_op_impl gb_family_attention[] = {
  { .op = GB_OP_scaled_dot_product_attention, .check = attention_check, .gradient = attention_gradient,
    .save_in = GB_SAVE_IN(scaled_dot_product_attention, query) | GB_SAVE_IN(scaled_dot_product_attention, key) |
               GB_SAVE_IN(scaled_dot_product_attention, value) | GB_SAVE_IN(scaled_dot_product_attention, mask),
    .save_out = GB_SAVE_OUT(scaled_dot_product_attention, y) | GB_SAVE_OUT(scaled_dot_product_attention, lse) },
  { .op = GB_OP_scaled_dot_product_attention_backward, .check = attention_backward_check },
  { .op = GB_OP_rotary_embedding, .compose = gb_rotary_embedding_compose },
  { .op = GB_OP_COUNT },
};
