/* ops/elementwise.c - checks and gradients of the ops that compute each element from the same element of their
 * operands.
 *
 * A check promotes and broadcasts, and lays the result out like the first operand of its shape (so channels-last stays
 * channels-last). The gradient of one operand is a rule, a line of derivatives.def; one function runs it for each
 * operand that needs a gradient and sums the result down to the operand's shape. */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "graph/chain.h"
#include "graph/family.h"
#include "ops/slopes.h"
#include "graph/ops.h"

/* {==== checks ==== */

static gb_status shapes_differ(gb_op_call *call, int ndim, const int64_t *shape, const gb_tensor *t) {
  char a[96], b[96];
  return gb_call_fail(call, GB_ESHAPE, "shapes %s and %s do not broadcast: counted from the last dim, sizes must be "
                                       "equal or 1",
                      gb_shape_text(ndim, shape, a, sizeof a), gb_shape_text(t->ndim, t->shape, b, sizeof b));
}

static bool has_shape(const gb_tensor *t, int ndim, const int64_t *shape) {
  if (t->ndim != ndim) return false;
  for (int d = 0; d < ndim; d++)
    if (t->shape[d] != shape[d]) return false;
  return true;
}

/* The number of the result: it is the only output of every op here. */
enum { RESULT };
#define ONE_RESULT(name) _Static_assert(sizeof(gb_out_##name) == sizeof(gb_tensor *), "the result is the only output");
#define GB_FAMILY_elementwise GB_THIS_FAMILY
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OF_FAMILY(family, ONE_RESULT)(name)
#include "graph/ops.def"

/* Broadcast all inputs and allocate the result, dense in the order of the first input that is dense and has its
 * shape. */
static gb_status output(gb_op_call *call, gb_dtype dtype) {
  const gb_tensor *first = *call->in;
  int ndim = first->ndim;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, first->shape, sizeof shape);
  for (int i = 1; i < call->n_in; i++) {
    const gb_tensor *t = call->in[i];
    if (!t || t->ndim == 0 || has_shape(t, ndim, shape)) continue;
    if (!gb_broadcast(&ndim, shape, t->ndim, t->shape)) return shapes_differ(call, ndim, shape, t);
  }
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i] && has_shape(call->in[i], ndim, shape) && gb_is_dense(call->in[i]))
      return gb_call_output_strided(call, RESULT, ndim, shape, call->in[i]->stride, dtype);
  return gb_call_output(call, RESULT, ndim, shape, dtype);
}

static gb_dtype promoted(const gb_op_call *call) { return gb_result_type(call->in, call->n_in); }

/* The dtype of a function that has no integer form. */
static gb_dtype floating(gb_dtype dtype) { return gb_dtype_is_float(dtype) ? dtype : GB_FLOAT32; }

static gb_status no_bools(gb_op_call *call, gb_dtype dtype) {
  if (dtype != GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "is not defined for bool tensors; use logical_and, logical_or, logical_xor, "
                                       "logical_not, or x:int()");
}

/* add, mul, maximum, abs, ...: the promoted dtype. */
static gb_status check_promoted(gb_op_call *call) { return output(call, gb_call_dtype(call, promoted(call))); }

/* sub, neg, ...: as above, but bools are no numbers. */
static gb_status check_numbers(gb_op_call *call) {
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  return output(call, gb_call_dtype(call, dtype));
}

/* exp, div, ...: integers give float32. */
static gb_status check_floating(gb_op_call *call) { return output(call, gb_call_dtype(call, floating(promoted(call))));
                                                    }

/* silu, lerp, ...: floats only. */
static gb_status check_float_only(gb_op_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (!call->in[i]->wrapped) GB_TRY(gb_require_float(call, i));
  return check_floating(call);
}

/* hypot, logaddexp, ...: integers beside a float only. */
static gb_status check_float_result(gb_op_call *call) {
  if (!gb_dtype_is_float(promoted(call))) return gb_require_float(call, 0);
  return check_floating(call);
}

static gb_status check_test(gb_op_call *call) { return output(call, GB_BOOL); }

static gb_status check_bitwise(gb_op_call *call) {
  gb_dtype dtype = promoted(call);
  if (gb_dtype_is_float(dtype))
    return gb_call_fail(call, GB_EDTYPE, "works on integer and bool tensors, this would be %s; convert with x:int() "
                                         "or x:bool()",
                        gb_dtype_name(dtype));
  return output(call, dtype);
}

/* gcd, shifts: integers, and no bools. */
static gb_status check_whole(gb_op_call *call) {
  GB_TRY(no_bools(call, promoted(call)));
  return check_bitwise(call);
}

/* 16-bit floats are computed in float32, whose next number rounds back. */
static gb_status check_neighbours(gb_op_call *call) {
  gb_dtype dtype = promoted(call);
  if (dtype == GB_FLOAT32 || dtype == GB_FLOAT64) return output(call, dtype);
  return gb_call_fail(call, GB_EDTYPE, "works on float32 and float64 tensors, this would be %s; convert with x:float()",
                      gb_dtype_name(dtype));
}

/* As in PyTorch, an integer tensor stays one only if a number it meets is an integer. */
static gb_dtype with_number(gb_dtype dtype, const gb_attr *number) {
  return number->given && !number->whole ? floating(dtype) : dtype;
}

/* A bound that an integer dtype cannot hold is an error where it would bind (side: 1 of the lower, -1 of the upper
 * one), and no bound where not. */
static gb_status check_bound(gb_op_call *call, const gb_attr *bound, const char *name, int side, gb_dtype dtype) {
  char text[40];
  if (gb_dtype_category(dtype) != GB_CATEGORY_INT || gb_number_side(bound, dtype) != side) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "%s is %s, which %s does not hold; convert the tensor with x:float()", name,
                      gb_number_text(bound, text, sizeof text), gb_dtype_name(dtype));
}

/* The same of an operand, where it is a number. */
static gb_status check_number(gb_op_call *call, int input, int side, gb_dtype dtype) {
  const gb_tensor *bound = call->in[input];
  if (!bound || !bound->wrapped) return GB_OK;
  gb_attr number = gb_number_of(bound);
  return check_bound(call, &number, call->info->in[input].name, side, dtype);
}

static gb_status check_clamp(gb_op_call *call) {
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  if (!GB_IN(call, clamp)->min && !GB_IN(call, clamp)->max)
    return gb_call_fail(call, GB_EINVAL, "needs a bound: give min, max or both");
  GB_TRY(check_number(call, GB_IN_AT(clamp, min), 1, dtype));
  GB_TRY(check_number(call, GB_IN_AT(clamp, max), -1, dtype));
  return output(call, dtype);
}

/* A number beside integers is a bound: the result may be it. */
static gb_status check_limit(gb_op_call *call, int side) {
  gb_dtype dtype = promoted(call);
  for (int i = 0; i < call->n_in; i++) GB_TRY(check_number(call, i, side, dtype));
  return check_promoted(call);
}

static gb_status check_maximum(gb_op_call *call) { return check_limit(call, 1); }
static gb_status check_minimum(gb_op_call *call) { return check_limit(call, -1); }

static gb_status check_addcmul(gb_op_call *call) {
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  return output(call, with_number(dtype, &GB_ATTRS(call, addcmul)->value));
}

static gb_status require_bool(gb_op_call *call, int input) {
  gb_dtype dtype = (gb_dtype)call->in[input]->dtype;
  if (dtype == GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' must be a bool tensor, it is %s; compare it with a number, for example "
                                       "m:ne(0)",
                      call->info->in[input].name,
                      gb_dtype_name(dtype));
}

static gb_status check_where(gb_op_call *call) {
  GB_TRY(require_bool(call, GB_IN_AT(where, condition)));
  gb_dtype dtype = gb_result_type((gb_tensor *[]){ GB_IN(call, where)->x, GB_IN(call, where)->y }, 2);
  GB_TRY(gb_require_input_fits(call, GB_IN_AT(where, x), dtype));
  GB_TRY(gb_require_input_fits(call, GB_IN_AT(where, y), dtype));
  return output(call, dtype);
}

static gb_status check_masked_fill(gb_op_call *call) {
  GB_TRY(require_bool(call, GB_IN_AT(masked_fill, mask)));
  gb_dtype dtype = (gb_dtype)GB_IN(call, masked_fill)->x->dtype;
  const gb_attr *value = &GB_ATTRS(call, masked_fill)->value;
  bool whole = value->whole || value->number == floor(value->number);
  char text[40];
  if (!gb_dtype_is_float(dtype) && !whole)
    return gb_call_fail(call, GB_EDTYPE, "the value %s does not fit into %s; convert it with x:float()",
                        gb_number_text(value, text, sizeof text), gb_dtype_name(dtype));
  GB_TRY(gb_require_fits(call, value, dtype));
  return output(call, dtype);
}

/* Is there anything to drop? */
static bool drops(const gb_attrs_dropout *attrs) { return attrs->training.integer && attrs->p.number > 0; }

static gb_status check_polygamma(gb_op_call *call) {
  double n = GB_ATTRS(call, polygamma)->n.number;
  if (n != floor(n)) return gb_call_fail(call, GB_EINVAL, "'n' counts derivatives, it is %g; give a whole number", n);
  return check_floating(call);
}

static gb_status check_celu(gb_op_call *call) {
  if (GB_ATTRS(call, celu)->alpha.number == 0)
    return gb_call_fail(call, GB_EINVAL, "'alpha' is 0, and x is divided by it; use relu for the limit");
  return check_float_only(call);
}

static gb_status check_hardtanh(gb_op_call *call) {
  double least = GB_ATTRS(call, hardtanh)->min_val.number, most = GB_ATTRS(call, hardtanh)->max_val.number;
  if (!(least <= most))
    return gb_call_fail(call, GB_EINVAL, "'min_val' is %g and 'max_val' %g; it must not be smaller", least, most);
  return check_float_only(call);
}

static gb_status check_dropout(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, dropout)->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(dropout, x)));
  if (!drops(GB_ATTRS(call, dropout))) return gb_call_output_alias(call, RESULT, x);
  gb_call_random(call);
  return output(call, (gb_dtype)x->dtype);
}

static gb_status check_scale_loss(gb_op_call *call) {
  GB_TRY(gb_require_float(call, GB_IN_AT(scale_loss, x)));
  return output(call, GB_IN(call, scale_loss)->x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
}

/* tril and triu. */
static gb_status check_triangle(gb_op_call *call) {
  _Static_assert(GB_IN_AT(triu, x) == GB_IN_AT(tril, x), "x stands at one place");
  GB_TRY(gb_require_ndim(call, GB_IN_AT(tril, x), 2, GB_MAX_NDIM));
  return output(call, (gb_dtype)GB_IN(call, tril)->x->dtype);
}

/* ====} */

/* {==== gradients ==== */

/* What operand `input` adds to the gradient, in the shape of the result. */
typedef gb_tensor *(*rule)(gb_chain *c, const gb_grad_call *grad, int input);
#define GRADIENT(name) static gb_tensor *name##_gradient(gb_chain *c, const gb_grad_call *grad, int input)
/* What a rule reads of its op: the saved operands, the saved result, the attributes. */
#define READ(name) \
  const gb_in_##name *in = GB_SAVED(grad, name), *at = (const gb_in_##name *)(const void *)grad->in; \
  const gb_out_##name *kept = GB_KEPT(grad, name); \
  const gb_attrs_##name *attrs = GB_ATTRS(grad, name); \
  (void)in, (void)at, (void)kept, (void)attrs, (void)input, (void)c
/* Is it this operand's gradient that is asked for? */
#define BY(operand) (&at->operand == grad->in + input)
/* The gradient of the result, which is the only output; the saved operands; the saved result. */
#define G (grad->out[RESULT])
#define X (in->x)
#define Y (in->y)
#define Z (in->z)
#define R (kept->y)
/* Ops in the chain: of tensors, of a tensor and a number, of one tensor. */
#define OP2(op, x, y) gb_chain_2(c, GB_OP_##op, x, y, NULL)
#define OPN(op, x, number) gb_chain_number(c, GB_OP_##op, x, number)
#define OP1(op, x) gb_chain_1(c, GB_OP_##op, x, NULL)

/* x where mask is true, else `other`. */
static gb_tensor *where_else(gb_chain *c, gb_tensor *mask, gb_tensor *x, double other) {
  gb_tensor *number = NULL;
  if (c->status == GB_OK) c->status = gb_tensor_wrap_number(c->context, other, &number);
  gb_tensor *result = GB_CHAIN(c, where, .condition = mask, .x = x, .y = number);
  gb_tensor_release(number);
  return result;
}

static gb_tensor *passed(gb_chain *c, gb_tensor *mask, gb_tensor *x) { return where_else(c, mask, x, 0); }

/* What a rule computes in: the dtype of the result, float32 in the place of a 16-bit one. */
static gb_dtype wide(const gb_grad_call *grad) { return gb_is_16bit((gb_dtype)G->dtype) ? GB_FLOAT32
                                                 : (gb_dtype)G->dtype; }

/* An operand as the op computed with it, for rules that put operands together without the gradient. By themselves,
 * numbers would count as float32, integers would wrap or count as float32, and of two narrow floats beside a wide one
 * less would be left than the result has. */
static gb_tensor *as_computed(gb_chain *c, const gb_grad_call *grad, gb_tensor *x) {
  if (!x || c->status != GB_OK) return NULL;
  if (x->wrapped) return gb_chain_full(c, wide(grad), 0, NULL, x->storage->device, gb_number_of(x).number);
  return x->dtype == G->dtype ? x : gb_chain_cast(c, x, wide(grad));
}
#define COMPUTED(operand) as_computed(c, grad, in->operand)
/* The same, what has 16 bits in float32. */
#define WIDE(operand) gb_chain_widen(c, COMPUTED(operand))

/* y x^(y-1), but 0 where y is 0; x^y log x, but 0 where x is 0 and y is not negative. NaN is neither. */
GRADIENT(pow) {
  READ(pow);
  gb_tensor *x = COMPUTED(x), *y = COMPUTED(y);
  if (BY(x)) {
    gb_tensor *slope = OP2(mul, OP2(pow, x, OPN(sub, y, 1)), y);
    return OP2(mul, G, passed(c, OPN(ne, y, 0), slope));
  }
  gb_tensor *slope = OP2(mul, OP2(pow, x, y), OP1(log, x)), *flat = OP2(logical_and, OPN(eq, x, 0), OPN(ge, y, 0));
  return OP2(mul, G, passed(c, OP1(logical_not, flat), slope));
}

/* The whole gradient to the operand that won, half where both are equal; beside a NaN nobody lost, so both get it. */
static gb_tensor *winner(gb_chain *c, gb_tensor *g, gb_tensor *lost, gb_tensor *equal) {
  return OP2(sub, passed(c, OP1(logical_not, lost), g), passed(c, equal, OPN(mul, g, 0.5)));
}

/* Did x (else y) of fmax or fmin lose? first: x does where x first y; second: y does where x second y. */
static gb_tensor *number_lost(gb_chain *c, gb_tensor *x, gb_tensor *y, gb_op first, gb_op second, bool of_x) {
  gb_tensor *nan = OP1(isnan, y);
  if (!of_x) return OP2(logical_or, gb_chain_2(c, second, x, y, NULL), nan);
  return OP2(logical_or, gb_chain_2(c, first, x, y, NULL), OP2(logical_and, OP1(isnan, x), OP1(logical_not, nan)));
}

/* 1 - x^2 */
static gb_tensor *one_minus_square(gb_chain *c, gb_tensor *x) { return OPN(add, OP1(neg, OP1(square, x)), 1); }

/* Is x beyond a limit on one side? NaN is not. */
static gb_tensor *beyond(gb_chain *c, gb_tensor *x, double low, double high) {
  return OP2(logical_or, OPN(lt, x, low), OPN(gt, x, high));
}

/* The gradient where x is between the bounds, 0 at them and beyond; NaN is not between. */
static gb_tensor *strictly_inside(gb_chain *c, gb_tensor *g, gb_tensor *x, double low, double high) {
  return passed(c, OP2(logical_and, OPN(gt, x, low), OPN(lt, x, high)), g);
}

/* log y, but 0 where both factors are 0; and x / y. Of xlog1py, the same of 1 + y. */
GRADIENT(xlogy) {
  READ(xlogy);
  bool plain = grad->node->op == GB_OP_xlogy;
  if (BY(y)) return OP2(div, OP2(mul, G, WIDE(x)), plain ? WIDE(y) : OPN(add, WIDE(y), 1));
  gb_tensor *flat = OP2(logical_and, OPN(eq, X, 0), OPN(le, Y, plain ? 0 : -1));
  return OP2(mul, G, passed(c, OP1(logical_not, flat), plain ? OP1(log, WIDE(y)) : OP1(log1p, WIDE(y))));
}
_Static_assert(GB_IN_AT(xlogy, x) == GB_IN_AT(xlog1py, x) && GB_IN_AT(xlogy, y) == GB_IN_AT(xlog1py, y), "one rule");

/* y^(x - 1) e^-y / gamma(x) by y, and the negative of it for the upper part; by x there is no formula. */
GRADIENT(igamma) {
  READ(igamma);
  bool lower = grad->node->op == GB_OP_igamma;
  if (BY(x)) {
    if (c->status == GB_OK)
      c->status = gb_fail(c->context, GB_EAUTOGRAD, "%s has no gradient with respect to its first argument; detach it",
                          lower ? "igamma" : "igammac");
    return NULL;
  }
  gb_tensor *a = WIDE(x), *y = WIDE(y);
  gb_tensor *logs = OP2(sub, OP2(sub, OP2(xlogy, OPN(add, a, -1), y), y), OP1(lgamma, a));
  gb_tensor *slope = OP2(mul, G, OP1(exp, logs));
  return lower ? slope : OP1(neg, slope);
}
_Static_assert(GB_IN_AT(igamma, x) == GB_IN_AT(igammac, x) && GB_IN_AT(igamma, y) == GB_IN_AT(igammac, y), "one rule");

/* (cos(pi x) - sinc(x)) / x, and 0 at 0. */
GRADIENT(sinc) {
  READ(sinc);
  gb_tensor *x = WIDE(x), *slope = OP2(div, OP2(sub, OP1(cos, OPN(mul, x, GB_PI)), OP1(sinc, x)), x);
  return OP2(mul, G, passed(c, OPN(ne, X, 0), slope));
}

/* i0(x) - i1(x) / x, and 1/2 at 0. */
GRADIENT(i1) {
  READ(i1);
  gb_tensor *x = WIDE(x), *slope = OP2(sub, OP1(i0, x), OP2(div, OP1(i1, x), x));
  return OP2(mul, G, where_else(c, OPN(ne, X, 0), slope, 0.5));
}

/* 1 / (x (1 - x)); beyond the bounds 0, and NaN where none are given. */
GRADIENT(logit) {
  READ(logit);
  bool bounded = attrs->eps.given && attrs->eps.number >= 0;
  double low = bounded ? attrs->eps.number : 0;
  gb_tensor *x = WIDE(x), *slope = OP2(div, G, OP2(mul, x, OPN(add, OP1(neg, x), 1)));
  return where_else(c, OP1(logical_not, beyond(c, x, low, 1 - low)), slope, bounded ? 0 : NAN);
}

/* Squares leave the range of float16 early, so they are float32; 0 where they are 0 even so. */
GRADIENT(atan2) {
  READ(atan2);
  gb_tensor *y = gb_chain_widen(c, COMPUTED(y)), *x = gb_chain_widen(c, COMPUTED(x));
  gb_tensor *squares = OP2(add, OP1(square, y), OP1(square, x));
  gb_tensor *scaled = passed(c, OPN(ne, squares, 0), OP2(div, G, squares));
  return BY(y) ? OP2(mul, scaled, x) : OP1(neg, OP2(mul, scaled, y));
}

GRADIENT(gelu) {
  READ(gelu);
  if (!grad->create_graph) return GB_CHAIN(c, gelu_backward, .grad = G, .x = X, .approximate = attrs->approximate);
  return OP2(mul, G, attrs->approximate.integer == GB_WORD_tanh ? gb_slope_gelu_tanh(c, X) : gb_slope_gelu(c, X));
}

/* exp is taken of what is at most 0: what is not used may not overflow, or it would reach the second derivative as 0 *
 * inf. NaN gives NaN, as in the result. */
GRADIENT(elu) {
  READ(elu);
  gb_tensor *above = OPN(gt, X, 0), *below = passed(c, OP1(logical_not, above), X);
  gb_tensor *slope = OPN(mul, OP1(exp, below), attrs->alpha.number);
  return GB_CHAIN(c, where, .condition = above, .x = G, .y = OP2(mul, G, slope));
}

/* As elu's, of above * x and below * (exp(steep * x) - 1) / steep. */
static gb_tensor *exponential_gradient(gb_chain *c, gb_tensor *g, gb_tensor *x, double above, double below,
                                       double steep) {
  gb_tensor *positive = OPN(gt, x, 0), *rest = passed(c, OP1(logical_not, positive), gb_chain_widen(c, x));
  gb_tensor *slope = OPN(mul, OP1(exp, OPN(mul, rest, steep)), below);
  return GB_CHAIN(c, where, .condition = positive, .x = OPN(mul, g, above), .y = OP2(mul, g, slope));
}

/* 0, then x / 3 + 1 / 2, then 1. */
GRADIENT(hardswish) {
  READ(hardswish);
  gb_tensor *slope = OPN(add, OPN(div, WIDE(x), 3), 0.5), *below = passed(c, OPN(gt, X, -3), OP2(mul, G, slope));
  return GB_CHAIN(c, where, .condition = OPN(lt, X, 3), .x = below, .y = G);
}

/* t + x (1 - t^2) sigmoid(x), t = tanh(softplus(x)). */
GRADIENT(mish) {
  READ(mish);
  gb_tensor *x = WIDE(x), *t = OP1(tanh, OP1(softplus, x));
  return OP2(mul, G, OP2(add, t, OP2(mul, OP2(mul, x, OP1(sigmoid, x)), one_minus_square(c, t))));
}

GRADIENT(softplus) {
  READ(softplus);
  gb_tensor *scaled = OPN(mul, X, attrs->beta.number), *above = OPN(gt, scaled, attrs->threshold.number);
  return GB_CHAIN(c, where, .condition = above, .x = G, .y = OP2(mul, G, OP1(sigmoid, scaled)));
}

/* By numbers: inside the bounds only, as in PyTorch since 2.15: at a bound, as beyond it, a small step changes nothing
 * on one side. By tensors: as minimum(maximum(x, min), max), also as in PyTorch. */
GRADIENT(clamp) {
  READ(clamp);
  gb_tensor *least = in->min, *most = in->max;
  bool numbers = (!least || least->wrapped) && (!most || most->wrapped);
  if (numbers && least && most) return passed(c, OP2(logical_and, OP2(gt, X, least), OP2(lt, X, most)), G);
  if (numbers) return passed(c, least ? OP2(gt, X, least) : OP2(lt, X, most), G);
  gb_tensor *raised = least ? OP2(maximum, X, least) : X, *g = G;
  if (BY(max)) return winner(c, g, OP2(lt, raised, most), OP2(eq, raised, most));
  if (most) g = winner(c, g, OP2(gt, raised, most), OP2(eq, raised, most));
  if (!least) return g;
  return winner(c, g, BY(x) ? OP2(lt, X, least) : OP2(gt, X, least), OP2(eq, X, least));
}

GRADIENT(addcdiv) {
  READ(addcdiv);
  if (BY(x)) return G;
  gb_tensor *dy = OP2(div, OPN(mul, G, attrs->value.number), Z);
  return BY(y) ? dy : OP1(neg, OP2(mul, dy, OP2(div, COMPUTED(y), COMPUTED(z))));
}

GRADIENT(dropout) {
  READ(dropout);
  if (!drops(attrs)) return G;
  return GB_CHAIN(c, dropout_backward, .grad = G, .p = attrs->p, .seed = gb_attr_int((int64_t)grad->node->rng_seed),
                  .offset = gb_attr_int((int64_t)grad->node->rng_offset));
}

#define RULE(name, check, reads, gradient) \
  static gb_tensor *name##_rule(gb_chain *c, const gb_grad_call *grad, int input) { \
    READ(name); \
    return gradient; \
  }
#define NO_RULE(name, check)
#include "ops/derivatives.def"
#undef RULE
#undef NO_RULE

static const rule rules[GB_OP_COUNT] = {
#define RULE(name, check, reads, gradient) [GB_OP_##name] = name##_rule,
#define NO_RULE(name, check)
#include "ops/derivatives.def"
#undef RULE
#undef NO_RULE
};

/* Run the op's rule for one operand and sum the result down to the operand's shape. NULL from the rule: no gradient. */
static gb_status gradient_of(gb_grad_call *grad, int input) {
  const gb_edge *edge = &grad->node->edges[input];
  gb_chain chain;
  gb_tensor *whole = NULL;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *made = rules[grad->node->op](&chain, grad, input);
  if (!made && chain.status == GB_OK) return GB_OK;
  GB_TRY(gb_chain_end(&chain, made, &whole));
  gb_status status = gb_sum_to(grad->context, whole, edge->ndim, edge->shape, &grad->in[input]);
  gb_tensor_release(whole);
  return status;
}

/* Under autocast a float32 op read 16-bit operands as they were: its rules compute from them in float32 too, as from
 * operands cast by hand. */
static gb_status widen_saved(gb_grad_call *grad) {
  if (gb_op_get(grad->context, grad->node->op)->autocast != GB_CLASS_FLOAT32 || G->dtype != GB_FLOAT32) return GB_OK;
  for (int i = 0; i < grad->n_in; i++) {
    gb_tensor *narrow = grad->saved[i], *wide;
    if (!narrow || !gb_is_16bit((gb_dtype)narrow->dtype)) continue;
    GB_TRY(gb_op_cast(grad->context, narrow, GB_FLOAT32, &wide));
    gb_tensor_release(narrow);
    grad->saved[i] = wide;
  }
  return GB_OK;
}

static gb_status gradient(gb_grad_call *grad) {
  GB_TRY(widen_saved(grad));
  for (int i = 0; i < grad->n_in; i++)
    if (grad->need[i]) GB_TRY(gradient_of(grad, i));
  return GB_OK;
}

/* ====} */

/* {==== options that other ops make ==== */

/* x + factor * y, by addcmul, which rounds once. */
static gb_status add_scaled(gb_op_call *call, gb_attr factor, gb_op op) {
  gb_tensor *x = GB_IN(call, add)->x, *y = GB_IN(call, add)->y;
  gb_dtype dtype = promoted(call);
  if (!gb_dtype_is_float(dtype) && !factor.whole)
    return gb_call_fail(call, GB_EDTYPE, "alpha is %g, and the result is %s; convert one tensor with x:float(), or "
                                         "give a whole number", factor.number, gb_dtype_name(dtype));
  GB_TRY(no_bools(call, dtype));
  if (op == GB_OP_sub && factor.whole) factor = gb_attr_whole((int64_t)(0 - (uint64_t)factor.exact));
  else if (op == GB_OP_sub) factor = gb_attr_num(-factor.number);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *one = gb_chain_full(&chain, dtype, 0, NULL, call->device, 1);
  return gb_chain_end(&chain, GB_CHAIN(&chain, addcmul, .x = x, .y = y, .z = one, .value = factor),
                      &GB_OUT(call, add)->z);
}
_Static_assert(GB_ATTR_AT(sub, alpha) == GB_ATTR_AT(add, alpha) && GB_IN_AT(sub, y) == GB_IN_AT(add, y),
               "read as add");

static bool is_scaled(const gb_op_call *call) {
  return GB_ATTRS(call, add)->alpha.given && GB_ATTRS(call, add)->alpha.number != 1;
}

static gb_status add_compose(gb_op_call *call) { return add_scaled(call, GB_ATTRS(call, add)->alpha, GB_OP_add); }
static gb_status sub_compose(gb_op_call *call) { return add_scaled(call, GB_ATTRS(call, sub)->alpha, GB_OP_sub); }

static bool is_rounded(const gb_op_call *call) {
  return GB_ATTRS(call, div)->rounding_mode.integer != GB_WORD_none;
}

/* Whole quotients, which are part of no graph: downwards, and of integers exactly, by what the division leaves over. */
static gb_tensor *whole_quotient(gb_chain *chain, gb_tensor *x, gb_tensor *y, bool down, bool is_float) {
  bool grad = gb_set_grad_enabled(chain->context, false);
  if (!down && !is_float) x = GB_CHAIN(chain, sub, .x = x, .y = GB_CHAIN(chain, fmod, .x = x, .y = y));
  gb_tensor *z = down || !is_float ? GB_CHAIN(chain, floor_divide, .x = x, .y = y)
      : GB_CHAIN(chain, trunc, .x = GB_CHAIN(chain, div, .x = x, .y = y));
  gb_set_grad_enabled(chain->context, grad);
  return z;
}

/* The gradient of a whole quotient is 0: that of the sign of x + y, which is passed by. */
static gb_status div_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, div)->x, *y = GB_IN(call, div)->y;
  gb_dtype dtype = promoted(call);
  bool is_float = gb_dtype_is_float(dtype);
  GB_TRY(no_bools(call, dtype));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = whole_quotient(&chain, x, y, GB_ATTRS(call, div)->rounding_mode.integer == GB_WORD_floor, is_float);
  if (is_float && call->context->modes->grad && (gb_tensor_in_graph(x) || gb_tensor_in_graph(y))) {
    gb_tensor *flat = GB_CHAIN(&chain, sign, .x = GB_CHAIN(&chain, add, .x = x, .y = y));
    gb_tensor *always = gb_chain_full(&chain, GB_BOOL, 0, NULL, call->device, 1);
    z = GB_CHAIN(&chain, where, .condition = always, .x = z, .y = flat);
  }
  return gb_chain_end(&chain, z, &GB_OUT(call, div)->z);
}

static bool has_decimals(const gb_op_call *call) { return GB_ATTRS(call, round)->decimals.integer != 0; }

/* As PyTorch's: times a power of ten, rounded, and back. */
static gb_status round_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, round)->x;
  int64_t decimals = GB_ATTRS(call, round)->decimals.integer;
  double power = pow(10, (double)(decimals < 0 ? -decimals : decimals));
  GB_TRY(gb_require_float(call, GB_IN_AT(round, x)));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *wide = gb_chain_widen(&chain, x);
  wide = gb_chain_number(&chain, decimals < 0 ? GB_OP_div : GB_OP_mul, wide, power);
  wide = GB_CHAIN(&chain, round, .x = wide);
  wide = gb_chain_number(&chain, decimals < 0 ? GB_OP_mul : GB_OP_div, wide, power);
  return gb_chain_end(&chain, gb_chain_cast(&chain, wide, (gb_dtype)x->dtype), &GB_OUT(call, round)->y);
}

/* ====} */

/* {==== the table ==== */

/* What backward reads, as the inputs and outputs that are kept. */
#define KEEP_NOTHING(op) .save_in = 0
#define KEEP_X(op) .save_in = GB_SAVE_IN(op, x)
#define KEEP_Y(op) .save_in = GB_SAVE_IN(op, y)
#define KEEP_XY(op) .save_in = GB_SAVE_IN(op, x) | GB_SAVE_IN(op, y)
#define KEEP_YZ(op) .save_in = GB_SAVE_IN(op, y) | GB_SAVE_IN(op, z)
#define KEEP_XY_WEIGHT(op) .save_in = GB_SAVE_IN(op, x) | GB_SAVE_IN(op, y) | GB_SAVE_IN(op, weight)
#define KEEP_CONDITION(op) .save_in = GB_SAVE_IN(op, condition)
#define KEEP_MASK(op) .save_in = GB_SAVE_IN(op, mask)
#define KEEP_BOUNDS(op) KEEP_X(op) | GB_SAVE_IN(op, min) | GB_SAVE_IN(op, max)
#define KEEP_SCALE(op) .save_in = GB_SAVE_IN(op, scale)
#define KEEP_OTHER(op) KEEP_XY(op), .save_other = true
#define KEEP_X_RESULT(op) KEEP_X(op), .save_out = GB_SAVE_OUT(op, z)
#define KEEP_XY_RESULT(op) KEEP_XY(op), .save_out = GB_SAVE_OUT(op, z)
#define KEEP_R(op) .save_out = GB_SAVE_OUT(op, y)

const gb_op_impl gb_family_elementwise[] = {
#define RULE(name, checks, reads, rule) \
  { .op = GB_OP_##name, .check = check_##checks, .gradient = gradient, KEEP_##reads(name) },
#define NO_RULE(name, checks) { .op = GB_OP_##name, .check = check_##checks },
#define RULE_WITH_OPTION(name, checks, reads, rule, when, made) \
  { .op = GB_OP_##name, .check = check_##checks, .gradient = gradient, .composed = when, .compose = made, \
    KEEP_##reads(name) },
#include "ops/derivatives.def"
#undef RULE
#undef NO_RULE
  { .op = GB_OP_COUNT },
};

/* An op of the family that has no line in derivatives.def does not compile here. */
enum {
#define RULE(name, check, reads, gradient) RULE_OF_##name,
#define NO_RULE(name, check) RULE_OF_##name,
#include "ops/derivatives.def"
#undef RULE
#undef NO_RULE
  RULES,
#define COUNT_RULE(name) + (RULE_OF_##name < RULES)
#define GB_FAMILY_elementwise GB_THIS_FAMILY
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OF_FAMILY(family, COUNT_RULE)(name)
  OPS_WITH_RULE = 0
#include "graph/ops.def"
};
_Static_assert(OPS_WITH_RULE == RULES, "derivatives.def has a line for each op of the family, and no other");

/* ====} */
