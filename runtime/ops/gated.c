/* ops/gated.c - elementwise functions made of other ops: gated units, prelu, softmin, nan_to_num, isclose.
 *
 * Their gradients, their dtypes under autocast and their devices are those of the ops they are made of. */
#include <inttypes.h>

#include "base/formats.h"
#include "graph/chain.h"

#define OP2(op, x, y) gb_chain_2(&chain, GB_OP_##op, x, y, NULL)
#define OPN(op, x, number) gb_chain_number(&chain, GB_OP_##op, x, number)
#define OP1(op, x) gb_chain_1(&chain, GB_OP_##op, x, NULL)

/* x, or value where mask is true. */
static gb_tensor *filled(gb_chain *chain, gb_tensor *x, gb_tensor *mask, double value) {
  gb_attr number = gb_attr_num(value);
  return gb_chain_2(chain, GB_OP_masked_fill, x, mask, &number);
}

/* {==== gated units: one half of dim decides how much of the other passes ==== */

static gb_tensor *half(gb_chain *chain, gb_tensor *x, int dim, int which) {
  int64_t length = x->shape[dim] / 2;
  gb_attr part[] = { gb_attr_int(dim), gb_attr_int(which * length), gb_attr_int(length) };
  return gb_chain_1(chain, GB_OP_narrow, x, part);
}

/* a sigmoid(b), silu(a) b, gelu(a) b. */
static gb_status gated(gb_op_call *call) {
  gb_chain chain;
  gb_tensor *x = GB_IN(call, glu)->x;
  int dim;
  GB_TRY(gb_require_float(call, GB_IN_AT(glu, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(glu, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, glu)->dim.integer, x->ndim, &dim));
  if (x->shape[dim] % 2)
    return gb_call_fail(call, GB_ESHAPE, "dimension %d of x has %" PRId64 " elements; it is halved, so it must be even",
                        dim + 1,
                        x->shape[dim]);
  gb_chain_begin(&chain, call->context);
  gb_tensor *a = half(&chain, x, dim, 0), *b = half(&chain, x, dim, 1);
  gb_tensor *y = call->op == GB_OP_glu      ? OP2(mul, a, OP1(sigmoid, b))
                 : call->op == GB_OP_swiglu ? OP2(mul, OP1(silu, a), b)
                                            : OP2(mul, OP1(gelu, a), b);
  return gb_chain_end(&chain, y, &GB_OUT(call, glu)->y);
}
_Static_assert(GB_ATTR_AT(swiglu, dim) == GB_ATTR_AT(glu, dim) && GB_ATTR_AT(geglu, dim) == GB_ATTR_AT(glu, dim),
               "alike");

/* ====} */

/* {==== the others ==== */

/* One weight per channel, shaped so that it broadcasts to x; one weight for all stays as it is. */
static gb_tensor *per_channel(gb_chain *chain, gb_tensor *x, gb_tensor *weight) {
  if (weight->numel == 1) return weight;
  int64_t shape[GB_MAX_NDIM] = { weight->numel };
  for (int d = 1; d < x->ndim - 1; d++) shape[d] = 1;
  gb_attr to = gb_attr_ints(x->ndim - 1, shape);
  return gb_chain_1(chain, GB_OP_view, weight, &to);
}

/* x, or weight * x where it is not positive. What is not used is 0 there: 0 times its infinity would be NaN in the
 * gradient of weight. */
static gb_status prelu(gb_op_call *call) {
  gb_chain chain;
  gb_tensor *x = GB_IN(call, prelu)->x, *weight = GB_IN(call, prelu)->weight;
  GB_TRY(gb_require_float(call, GB_IN_AT(prelu, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(prelu, weight)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(prelu, weight), 0, 1));
  int64_t channels = x->ndim >= 2 ? x->shape[1] : 1;
  if (weight->numel != 1 && weight->numel != channels)
    return gb_call_fail(call, GB_ESHAPE, "weight has %" PRId64 " elements and x %" PRId64
                        " channels (dimension 2); give one for each, or one for all", weight->numel, channels);
  gb_chain_begin(&chain, call->context);
  gb_tensor *above = OPN(gt, x, 0), *below = filled(&chain, x, above, 0);
  below = OP2(mul, per_channel(&chain, x, weight), below);
  gb_tensor *y = GB_CHAIN(&chain, where, .condition = above, .x = x, .y = below);
  return gb_chain_end(&chain, y, &GB_OUT(call, prelu)->y);
}

/* softmax(-x) */
static gb_status softmin(gb_op_call *call) {
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  const gb_attrs_softmin *attrs = GB_ATTRS(call, softmin);
  gb_tensor *y = GB_CHAIN(&chain, softmax, .x = OP1(neg, GB_IN(call, softmin)->x), .dim = attrs->dim,
                          .dtype = attrs->dtype);
  return gb_chain_end(&chain, y, &GB_OUT(call, softmin)->y);
}

/* Infinities become the largest number of the dtype unless another is given. Integers have nothing to replace. */
static gb_status nan_to_num(gb_op_call *call) {
  gb_chain chain;
  gb_tensor *x = GB_IN(call, nan_to_num)->x;
  const gb_attrs_nan_to_num *attrs = GB_ATTRS(call, nan_to_num);
  gb_chain_begin(&chain, call->context);
  gb_dtype dtype = (gb_dtype)x->dtype;
  if (!gb_dtype_is_float(dtype)) return gb_chain_end(&chain, OP1(clone, x), &GB_OUT(call, nan_to_num)->y);
  double most = attrs->posinf.given ? attrs->posinf.number : gb_largest_of(dtype);
  double least = attrs->neginf.given ? attrs->neginf.number : -gb_largest_of(dtype);
  gb_tensor *y = filled(&chain, x, OP1(isnan, x), attrs->nan.number);
  y = filled(&chain, filled(&chain, y, OP1(isposinf, x), most), OP1(isneginf, x), least);
  return gb_chain_end(&chain, y, &GB_OUT(call, nan_to_num)->y);
}

/* x == y, or |x - y| <= atol + rtol |y| where the difference is finite. Integers are compared as float32, as in
 * PyTorch. */
static gb_status isclose(gb_op_call *call) {
  gb_chain chain;
  gb_tensor *x = GB_IN(call, isclose)->x, *y = GB_IN(call, isclose)->y;
  const gb_attrs_isclose *attrs = GB_ATTRS(call, isclose);
  gb_chain_begin(&chain, call->context);
  gb_tensor *close = OP2(eq, x, y);
  if (attrs->equal_nan.integer) close = OP2(logical_or, close, OP2(logical_and, OP1(isnan, x), OP1(isnan, y)));
  if (attrs->rtol.number != 0 || attrs->atol.number != 0) {
    if (x->dtype == GB_BOOL) x = gb_chain_cast(&chain, x, GB_FLOAT32);
    if (!gb_dtype_is_float((gb_dtype)y->dtype)) y = gb_chain_cast(&chain, y, GB_FLOAT32);
    gb_tensor *allowed = OPN(add, OPN(mul, OP1(abs, y), attrs->rtol.number), attrs->atol.number);
    gb_tensor *actual = OP1(abs, OP2(sub, x, y));
    close = OP2(logical_or, close, OP2(logical_and, OP1(isfinite, actual), OP2(le, actual, allowed)));
  }
  return gb_chain_end(&chain, close, &GB_OUT(call, isclose)->z);
}

/* ====} */

const gb_op_impl gb_family_gated[] = {
  { .op = GB_OP_glu, .compose = gated },
  { .op = GB_OP_swiglu, .compose = gated },
  { .op = GB_OP_geglu, .compose = gated },
  { .op = GB_OP_prelu, .compose = prelu },
  { .op = GB_OP_softmin, .compose = softmin },
  { .op = GB_OP_nan_to_num, .compose = nan_to_num },
  { .op = GB_OP_isclose, .compose = isclose },
  { .op = GB_OP_COUNT },
};
