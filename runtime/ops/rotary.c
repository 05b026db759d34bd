/* ops/rotary.c - rotary_embedding: pairs of features turned by angles that depend on the position (Su et al. 2021).
 *
 * A composite: its gradient turns back by the ops that it is made of. It computes in float32 at least and rounds once,
 * to x's dtype. */
#include <string.h>

#include "graph/chain.h"
#include "ops/families.h"

/* cos and sin have one shape, [..., n], which broadcasts to x [..., dim] without its last dimension, and 2 n features
 * are turned. */
static gb_status check_angles(gb_op_call *call, int64_t *pairs) {
  const gb_in_rotary_embedding *in = GB_IN(call, rotary_embedding);
  const gb_tensor *x = in->x, *cos = in->cos, *sin = in->sin;
  char of_x[96], of_cos[96], of_sin[96];
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < call->n_in; i++) {
    GB_TRY(gb_require_float(call, i));
    GB_TRY(gb_require_ndim(call, i, 1, GB_MAX_NDIM));
  }
  gb_shape_text(x->ndim, x->shape, of_x, sizeof of_x);
  gb_shape_text(cos->ndim, cos->shape, of_cos, sizeof of_cos);
  if (cos->ndim != sin->ndim || memcmp(cos->shape, sin->shape, (size_t)cos->ndim * sizeof *cos->shape))
    return gb_call_fail(call, GB_ESHAPE, "cos %s and sin %s must have one shape", of_cos,
                        gb_shape_text(sin->ndim, sin->shape, of_sin, sizeof of_sin));
  int64_t n = *pairs = cos->shape[cos->ndim - 1];
  if (2 * n > x->shape[x->ndim - 1])
    return gb_call_fail(call, GB_ESHAPE, "cos %s has an angle for each of %lld pairs of features, x %s has %lld "
                                         "features; "
                        "give half as many angles as there are features", of_cos, (long long)n, of_x,
                            (long long)x->shape[x->ndim - 1]);
  int ndim = x->ndim;
  memcpy(shape, x->shape, (size_t)ndim * sizeof *shape);
  shape[ndim - 1] = n;
  bool fits = gb_broadcast(&ndim, shape, cos->ndim, cos->shape) && ndim == x->ndim && shape[ndim - 1] == n;
  for (int i = 0; fits && i < ndim - 1; i++) fits = shape[i] == x->shape[i];
  if (fits) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "cos %s does not broadcast to the dimensions of x %s before the last", of_cos,
                      of_x);
}

/* Half of the features that are turned: the first or the second of each pair. */
static gb_tensor *half(gb_chain *c, gb_tensor *x, int64_t n, int which, bool interleaved) {
  if (!interleaved)
    return GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(-1), .start = gb_attr_int(which * n),
                    .length = gb_attr_int(n));
  gb_tensor *pairs = GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(-1), .start = gb_attr_int(0),
                              .length = gb_attr_int(2 * n));
  return GB_CHAIN(c, select, .x = GB_CHAIN(c, unflatten, .x = pairs, .dim = gb_attr_int(-1),
                                           .shape = gb_attr_ints(2, (int64_t[]){ n, 2 })),
                  .dim = gb_attr_int(-1), .position = gb_attr_int(which));
}

/* The features side by side again, those that are not turned behind them. */
static gb_tensor *joined(gb_chain *c, gb_tensor *x, gb_tensor *first, gb_tensor *second, int64_t n, bool interleaved) {
  gb_tensor *parts[3] = { first, second };
  int count = 2;
  if (!x || c->status != GB_OK) return NULL;
  if (interleaved) {
    gb_tensor *pairs = GB_CHAIN(c, stack, .xs = parts, .count = 2, .dim = gb_attr_int(-1));
    parts[0] = GB_CHAIN(c, flatten, .x = pairs, .first = gb_attr_int(-2), .last = gb_attr_int(-1));
    count = 1;
  }
  int64_t rest = x->shape[x->ndim - 1] - 2 * n;
  if (rest > 0)
    parts[count++] = GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(-1), .start = gb_attr_int(2 * n),
                              .length = gb_attr_int(rest));
  return count == 1 ? parts[0] : GB_CHAIN(c, cat, .xs = parts, .count = count, .dim = gb_attr_int(-1));
}

/* (a, b) becomes (a cos - b sin, b cos + a sin). */
gb_status gb_rotary_embedding_compose(gb_op_call *call) {
  const gb_in_rotary_embedding *in = GB_IN(call, rotary_embedding);
  bool interleaved = GB_ATTRS(call, rotary_embedding)->interleaved.integer;
  int64_t n = 0;
  GB_TRY(check_angles(call, &n));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *x = gb_chain_widen(&c, in->x), *cos = gb_chain_widen(&c, in->cos), *sin = gb_chain_widen(&c, in->sin);
  gb_tensor *a = half(&c, x, n, 0, interleaved), *b = half(&c, x, n, 1, interleaved);
  gb_tensor *first = GB_CHAIN(&c, sub, .x = GB_CHAIN(&c, mul, .x = a, .y = cos),
                              .y = GB_CHAIN(&c, mul, .x = b, .y = sin));
  gb_tensor *second = GB_CHAIN(&c, add, .x = GB_CHAIN(&c, mul, .x = b, .y = cos),
                               .y = GB_CHAIN(&c, mul, .x = a, .y = sin));
  gb_tensor *y = joined(&c, x, first, second, n, interleaved);
  return gb_chain_end(&c, gb_chain_cast(&c, y, (gb_dtype)in->x->dtype), &GB_OUT(call, rotary_embedding)->y);
}
