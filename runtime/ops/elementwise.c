/* ops/elementwise.c - checks and gradients of the ops that compute each element from the same element of their operands.
 *
 * A check promotes and broadcasts, and lays the result out like the first operand of its shape (so channels-last stays channels-last).
 * The gradient of one operand is a formula, a row of a table; one function runs it for each operand that needs a gradient and sums the
 * result down to the operand's shape. Formulas are made of differentiable ops, except where a fused kernel serves the first derivative. */
#include <math.h>
#include <string.h>

#include "ops/chain.h"
#include "ops/slopes.h"
#include "ops/ops.h"

/* {==== checks ==== */

static gb_status shapes_differ(gb_call *call, int ndim, const int64_t *shape, const gb_tensor *t) {
  char a[96], b[96];
  return gb_call_fail(call, GB_ESHAPE, "shapes %s and %s do not broadcast: counted from the last dim, sizes must be equal or 1",
                      gb_shape_text(ndim, shape, a, sizeof a), gb_shape_text(t->ndim, t->shape, b, sizeof b));
}

static bool has_shape(const gb_tensor *t, int ndim, const int64_t *shape) {
  if (t->ndim != ndim) return false;
  for (int d = 0; d < ndim; d++)
    if (t->shape[d] != shape[d]) return false;
  return true;
}

/* Broadcast all inputs and allocate the result, dense in the order of the first input that is dense and has its shape. */
static gb_status output(gb_call *call, gb_dtype dtype) {
  int ndim = call->in[0]->ndim;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, call->in[0]->shape, sizeof shape);
  for (int i = 1; i < call->n_in; i++) {
    const gb_tensor *t = call->in[i];
    if (t->ndim == 0 || has_shape(t, ndim, shape)) continue;
    if (!gb_broadcast(&ndim, shape, t->ndim, t->shape)) return shapes_differ(call, ndim, shape, t);
  }
  for (int i = 0; i < call->n_in; i++)
    if (has_shape(call->in[i], ndim, shape) && gb_is_dense(call->in[i]))
      return gb_call_output_strided(call, 0, ndim, shape, call->in[i]->stride, dtype);
  return gb_call_output(call, 0, ndim, shape, dtype);
}

static gb_dtype promoted(const gb_call *call) { return gb_result_type(call->in, call->n_in); }

/* The dtype of a function that has no integer form. */
static gb_dtype floating(gb_dtype dtype) { return gb_dtype_is_float(dtype) ? dtype : GB_FLOAT32; }

static gb_status no_bools(gb_call *call, gb_dtype dtype) {
  if (dtype != GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "is not defined for bool tensors; use logical_and, logical_or, logical_xor, logical_not, or x:int()");
}

/* add, mul, maximum, abs, ...: the promoted dtype. */
static gb_status check_promoted(gb_call *call) { return output(call, gb_call_dtype(call, promoted(call))); }

/* sub, neg, ...: as above, but bools are no numbers. */
static gb_status check_numbers(gb_call *call) {
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  return output(call, gb_call_dtype(call, dtype));
}

/* exp, div, ...: integers give float32. */
static gb_status check_floating(gb_call *call) { return output(call, gb_call_dtype(call, floating(promoted(call)))); }

/* silu, lerp, ...: floats only. */
static gb_status check_float_only(gb_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (!call->in[i]->wrapped) GB_TRY(gb_require_float(call, i));
  return check_floating(call);
}

static gb_status check_test(gb_call *call) { return output(call, GB_BOOL); }

static gb_status check_bitwise(gb_call *call) {
  gb_dtype dtype = promoted(call);
  if (gb_dtype_is_float(dtype))
    return gb_call_fail(call, GB_EDTYPE, "works on integer and bool tensors, this would be %s; convert with x:int() or x:bool()",
                        gb_dtype_name(dtype));
  return output(call, dtype);
}

/* As in PyTorch, an integer tensor stays one only if the numbers it meets are integers. */
static gb_dtype with_numbers(const gb_call *call, gb_dtype dtype, int numbers) {
  for (int i = 0; i < numbers; i++)
    if (call->attrs[i].given && !call->attrs[i].whole) return floating(dtype);
  return dtype;
}

/* A bound that an integer dtype cannot hold is an error where it would bind (side: 1 of the lower, -1 of the upper one), and no bound where not. */
static gb_status check_bound(gb_call *call, const gb_attr *bound, const char *name, int side, gb_dtype dtype) {
  char text[40];
  if (gb_dtype_category(dtype) != GB_CATEGORY_INT || gb_number_side(bound, dtype) != side) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "%s is %s, which %s does not hold; convert the tensor with x:float()", name,
                      gb_number_text(bound, text, sizeof text), gb_dtype_name(dtype));
}

static gb_status check_clamp(gb_call *call) {
  const gb_attr *min = &call->attrs[0], *max = &call->attrs[1];
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  if (!min->given && !max->given) return gb_call_fail(call, GB_EINVAL, "needs a bound: give min, max or both");
  dtype = with_numbers(call, dtype, 2);
  if (min->given) GB_TRY(check_bound(call, min, "min", 1, dtype));
  if (max->given) GB_TRY(check_bound(call, max, "max", -1, dtype));
  return output(call, dtype);
}

/* A number beside integers is a bound: the result may be it. */
static gb_status check_limit(gb_call *call, int side) {
  gb_dtype dtype = promoted(call);
  for (int i = 0; i < call->n_in; i++) {
    if (!call->in[i]->wrapped) continue;
    gb_attr number = gb_number_of(call->in[i]);
    GB_TRY(check_bound(call, &number, call->info->in[i].name, side, dtype));
  }
  return check_promoted(call);
}

static gb_status check_maximum(gb_call *call) { return check_limit(call, 1); }
static gb_status check_minimum(gb_call *call) { return check_limit(call, -1); }

static gb_status check_addcmul(gb_call *call) {
  gb_dtype dtype = promoted(call);
  GB_TRY(no_bools(call, dtype));
  return output(call, with_numbers(call, dtype, 1));
}

static gb_status require_bool(gb_call *call, int input) {
  gb_dtype dtype = (gb_dtype)call->in[input]->dtype;
  if (dtype == GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' must be a bool tensor, it is %s; compare it with a number, for example m:ne(0)",
                      call->info->in[input].name,
                      gb_dtype_name(dtype));
}

static gb_status check_where(gb_call *call) {
  GB_TRY(require_bool(call, 0));
  gb_dtype dtype = gb_result_type(call->in + 1, 2);
  for (int i = 1; i < 3; i++) GB_TRY(gb_require_input_fits(call, i, dtype));
  return output(call, dtype);
}

static gb_status check_masked_fill(gb_call *call) {
  GB_TRY(require_bool(call, 1));
  gb_dtype dtype = (gb_dtype)call->in[0]->dtype;
  const gb_attr *value = &call->attrs[0];
  bool whole = value->whole || value->number == floor(value->number);
  char text[40];
  if (!gb_dtype_is_float(dtype) && !whole)
    return gb_call_fail(call, GB_EDTYPE, "the value %s does not fit into %s; convert it with x:float()",
                        gb_number_text(value, text, sizeof text), gb_dtype_name(dtype));
  GB_TRY(gb_require_fits(call, value, dtype));
  return output(call, dtype);
}

static gb_status check_gelu(gb_call *call) {
  const char *how = call->attrs[0].string;
  if (strcmp(how, "none") && strcmp(how, "tanh")) return gb_call_fail(call, GB_EINVAL, "approximate is 'none' or 'tanh', not '%s'", how);
  return check_float_only(call);
}

/* dropout's attributes p and training: is there anything to drop? */
static bool drops(const gb_attr *attrs) { return attrs[1].integer && attrs[0].number > 0; }

static gb_status check_dropout(gb_call *call) {
  double p = call->attrs[0].number;
  GB_TRY(gb_require_float(call, 0));
  if (!(p >= 0 && p <= 1)) return gb_call_fail(call, GB_EINVAL, "p is a probability, 0 to 1, not %g", p);
  if (!drops(call->attrs)) return gb_call_output_alias(call, 0, call->in[0]);
  gb_call_random(call);
  return output(call, (gb_dtype)call->in[0]->dtype);
}

static gb_status check_scale_loss(gb_call *call) {
  GB_TRY(gb_require_float(call, 0));
  return output(call, call->in[0]->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
}

static gb_status check_triangle(gb_call *call) {
  GB_TRY(gb_require_ndim(call, 0, 2, GB_MAX_NDIM));
  return output(call, (gb_dtype)call->in[0]->dtype);
}

/* ====} */

/* {==== gradients ==== */

/* What operand `input` adds to the gradient, in the shape of the result. */
typedef gb_tensor *(*formula)(gb_chain *c, const gb_grad_call *grad, int input);
#define FORMULA(name) static gb_tensor *name##_formula(gb_chain *c, const gb_grad_call *grad, int input)
/* The gradient of the result, the saved operands, the saved result. */
#define G (grad->out[0])
#define X (grad->saved[0])
#define Y (grad->saved[1])
#define Z (grad->saved[2])
#define R GB_SAVED_OUT(grad, 0)
/* Ops in the chain: of tensors, of a tensor and a number, of one tensor. */
#define OP2(op, x, y) gb_chain_2(c, GB_OP_##op, x, y, NULL)
#define OPN(op, x, number) gb_chain_number(c, GB_OP_##op, x, number)
#define OP1(op, x) gb_chain_1(c, GB_OP_##op, x, NULL)

/* x where mask is true, else `other`. */
static gb_tensor *where_else(gb_chain *c, gb_tensor *mask, gb_tensor *x, double other) {
  gb_tensor *number = NULL;
  if (c->status == GB_OK) c->status = gb_tensor_wrap_number(c->context, other, &number);
  gb_tensor *result = gb_chain_3(c, GB_OP_where, mask, x, number, NULL);
  gb_tensor_release(number);
  return result;
}

static gb_tensor *passed(gb_chain *c, gb_tensor *mask, gb_tensor *x) { return where_else(c, mask, x, 0); }

FORMULA(add) { (void)c, (void)input; return G; }
FORMULA(sub) { return input == 0 ? G : OP1(neg, G); }
FORMULA(mul) { return OP2(mul, G, input == 0 ? Y : X); }
/* x / y / y is finite where the quotient of a tiny y and a tinier x is, and y^2 is 0. */
FORMULA(div) { return input == 0 ? OP2(div, G, Y) : OP1(neg, OP2(mul, G, OP2(div, OP2(div, X, Y), Y))); }
FORMULA(remainder) { return input == 0 ? G : OP1(neg, OP2(mul, G, OP2(floor_divide, X, Y))); }

/* What a formula computes in: the dtype of the result, float32 in the place of a 16-bit one. */
static gb_dtype wide(const gb_grad_call *grad) { return gb_is_16bit((gb_dtype)G->dtype) ? GB_FLOAT32 : (gb_dtype)G->dtype; }

/* An operand as the op computed with it, for formulas that put operands together without the gradient. By themselves, numbers would count as
 * float32, integers would wrap or count as float32, and of two narrow floats beside a wide one less would be left than the result has. */
static gb_tensor *as_computed(gb_chain *c, const gb_grad_call *grad, gb_tensor *x) {
  if (!x || c->status != GB_OK) return NULL;
  if (x->wrapped) return gb_chain_full(c, wide(grad), 0, NULL, x->storage->device, gb_number_of(x).number);
  return x->dtype == G->dtype ? x : gb_chain_cast(c, x, wide(grad));
}
#define XC as_computed(c, grad, X)
#define YC as_computed(c, grad, Y)
#define ZC as_computed(c, grad, Z)

/* y x^(y-1), but 0 where y is 0; x^y log x, but 0 where x is 0 and y is not negative. NaN is neither. */
FORMULA(pow) {
  gb_tensor *x = XC, *y = YC;
  if (input == 0) {
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
FORMULA(maximum) { return winner(c, G, input == 0 ? OP2(lt, X, Y) : OP2(lt, Y, X), OP2(eq, X, Y)); }
FORMULA(minimum) { return winner(c, G, input == 0 ? OP2(gt, X, Y) : OP2(gt, Y, X), OP2(eq, X, Y)); }

/* The first operand is the ordinate. Squares leave the range of float16 early, so they are float32; 0 where they are 0 even so. */
FORMULA(atan2) {
  gb_tensor *x = gb_chain_widen(c, XC), *y = gb_chain_widen(c, YC), *squares = OP2(add, OP1(square, x), OP1(square, y));
  gb_tensor *scaled = passed(c, OPN(ne, squares, 0), OP2(div, G, squares));
  return input == 0 ? OP2(mul, scaled, y) : OP1(neg, OP2(mul, scaled, x));
}

FORMULA(neg) { (void)input; return OP1(neg, G); }
FORMULA(abs) { (void)input; return OP2(mul, G, OP1(sign, X)); }
FORMULA(exp) { (void)input; return OP2(mul, G, R); }
FORMULA(expm1) { (void)input; return OP2(mul, G, OPN(add, R, 1)); }
FORMULA(log) { (void)input; return OP2(div, G, X); }
FORMULA(log2) { (void)input; return OP2(div, G, OPN(mul, X, 0.69314718055994530942)); }
FORMULA(log10) { (void)input; return OP2(div, G, OPN(mul, X, 2.30258509299404568402)); }
FORMULA(log1p) { (void)input; return OP2(div, G, OPN(add, X, 1)); }
FORMULA(sqrt) { (void)input; return OP2(div, G, OPN(mul, R, 2)); }
FORMULA(rsqrt) { (void)input; return OP2(mul, OPN(mul, G, -0.5), OPN(pow, R, 3)); }
FORMULA(square) { (void)input; return OP2(mul, G, OPN(mul, X, 2)); }
FORMULA(reciprocal) { (void)input; return OP1(neg, OP2(mul, G, OP1(square, R))); }
FORMULA(sin) { (void)input; return OP2(mul, G, OP1(cos, X)); }
FORMULA(cos) { (void)input; return OP1(neg, OP2(mul, G, OP1(sin, X))); }
FORMULA(tan) { (void)input; return OP2(mul, G, OPN(add, OP1(square, R), 1)); }
FORMULA(erf) { (void)input; return OP2(mul, G, OPN(mul, OP1(exp, OP1(neg, OP1(square, X))), 1.12837916709551257390)); }

FORMULA(tanh) {
  (void)input;
  if (!grad->create_graph) return OP2(tanh_backward, G, R);
  return OP2(sub, G, OP2(mul, G, OP1(square, R)));
}

FORMULA(sigmoid) {
  (void)input;
  if (!grad->create_graph) return OP2(sigmoid_backward, G, R);
  return OP2(mul, G, OP2(sub, R, OP1(square, R)));
}

FORMULA(silu) {
  (void)input;
  if (!grad->create_graph) return OP2(silu_backward, G, X);
  return OP2(mul, G, gb_slope_silu(c, X));
}

FORMULA(gelu) {
  (void)input;
  if (!grad->create_graph) return gb_chain_2(c, GB_OP_gelu_backward, G, X, grad->attrs);
  return OP2(mul, G, grad->attrs[0].string[0] == 't' ? gb_slope_gelu_tanh(c, X) : gb_slope_gelu(c, X));
}
FORMULA(relu) { (void)input; return OP2(relu_backward, G, R); }
/* A step function of y, so that y gets none. */
FORMULA(relu_backward) { return input == 0 ? OP2(relu_backward, G, Y) : NULL; }
FORMULA(leaky_relu) { (void)input; return gb_chain_3(c, GB_OP_where, OPN(gt, X, 0), G, OPN(mul, G, grad->attrs[0].number), NULL); }

/* exp is taken of what is at most 0: what is not used may not overflow, or it would reach the second derivative as 0 * inf. NaN gives NaN, as in
 * the result. */
FORMULA(elu) {
  (void)input;
  gb_tensor *above = OPN(gt, X, 0), *below = passed(c, OP1(logical_not, above), X);
  return gb_chain_3(c, GB_OP_where, above, G, OP2(mul, G, OPN(mul, OP1(exp, below), grad->attrs[0].number)), NULL);
}

FORMULA(softplus) {
  (void)input;
  gb_tensor *scaled = OPN(mul, X, grad->attrs[0].number);
  return gb_chain_3(c, GB_OP_where, OPN(gt, scaled, grad->attrs[1].number), G, OP2(mul, G, OP1(sigmoid, scaled)), NULL);
}

/* Inside the bounds only, as in PyTorch since 2.15: at a bound, as beyond it, a small step changes nothing on one side. */
FORMULA(clamp) {
  (void)input;
  gb_tensor *inside = grad->attrs[0].given ? OPN(gt, X, grad->attrs[0].number) : NULL;
  if (grad->attrs[1].given) {
    gb_tensor *below = OPN(lt, X, grad->attrs[1].number);
    inside = inside ? OP2(logical_and, inside, below) : below;
  }
  return passed(c, inside, G);
}

FORMULA(lerp) {
  if (input == 2) return OP2(mul, G, OP2(sub, YC, XC));
  return OP2(mul, G, input == 0 ? OPN(add, OP1(neg, ZC), 1) : Z);
}

FORMULA(addcmul) {
  if (input == 0) return G;
  return OP2(mul, OPN(mul, G, grad->attrs[0].number), input == 1 ? Z : Y);
}

FORMULA(addcdiv) {
  if (input == 0) return G;
  gb_tensor *dy = OP2(div, OPN(mul, G, grad->attrs[0].number), Z);
  return input == 1 ? dy : OP1(neg, OP2(mul, dy, OP2(div, YC, ZC)));
}

FORMULA(where) { return passed(c, input == 1 ? X : OP1(logical_not, X), G); }

FORMULA(masked_fill) { (void)input; return passed(c, OP1(logical_not, Y), G); }

FORMULA(dropout) {
  (void)input;
  if (!drops(grad->attrs)) return G;
  gb_attr attrs[GB_MAX_ATTRS] = { gb_attr_num(grad->attrs[0].number), gb_attr_int((int64_t)grad->node->rng_seed),
                                  gb_attr_int((int64_t)grad->node->rng_offset) };
  return gb_chain_1(c, GB_OP_dropout_backward, G, attrs);
}

FORMULA(scale_loss) { return input == 0 ? OP2(mul, G, Y) : NULL; }
/* Steps: flat wherever they have a slope. */
FORMULA(step) { (void)input; return gb_chain_zeros(c, G); }
FORMULA(triangle) { (void)input; return gb_chain_1(c, (gb_op)grad->node->op, G, grad->attrs); }

static const formula formulas[GB_OP_COUNT] = {
  [GB_OP_add] = add_formula, [GB_OP_sub] = sub_formula, [GB_OP_mul] = mul_formula, [GB_OP_div] = div_formula,
  [GB_OP_remainder] = remainder_formula, [GB_OP_pow] = pow_formula, [GB_OP_maximum] = maximum_formula, [GB_OP_minimum] = minimum_formula,
  [GB_OP_atan2] = atan2_formula, [GB_OP_neg] = neg_formula, [GB_OP_abs] = abs_formula, [GB_OP_exp] = exp_formula,
  [GB_OP_expm1] = expm1_formula, [GB_OP_log] = log_formula, [GB_OP_log2] = log2_formula, [GB_OP_log10] = log10_formula,
  [GB_OP_log1p] = log1p_formula, [GB_OP_sqrt] = sqrt_formula, [GB_OP_rsqrt] = rsqrt_formula, [GB_OP_square] = square_formula,
  [GB_OP_reciprocal] = reciprocal_formula, [GB_OP_sin] = sin_formula, [GB_OP_cos] = cos_formula, [GB_OP_tan] = tan_formula,
  [GB_OP_tanh] = tanh_formula, [GB_OP_erf] = erf_formula, [GB_OP_clamp] = clamp_formula, [GB_OP_lerp] = lerp_formula,
  [GB_OP_addcmul] = addcmul_formula, [GB_OP_addcdiv] = addcdiv_formula, [GB_OP_where] = where_formula,
  [GB_OP_masked_fill] = masked_fill_formula, [GB_OP_sigmoid] = sigmoid_formula, [GB_OP_relu] = relu_formula,
  [GB_OP_leaky_relu] = leaky_relu_formula, [GB_OP_elu] = elu_formula, [GB_OP_gelu] = gelu_formula, [GB_OP_silu] = silu_formula,
  [GB_OP_softplus] = softplus_formula, [GB_OP_relu_backward] = relu_backward_formula, [GB_OP_dropout] = dropout_formula,
  [GB_OP_sign] = step_formula, [GB_OP_floor] = step_formula, [GB_OP_ceil] = step_formula, [GB_OP_round] = step_formula,
  [GB_OP_trunc] = step_formula, [GB_OP_scale_loss] = scale_loss_formula, [GB_OP_tril] = triangle_formula, [GB_OP_triu] = triangle_formula,
};

/* Run the op's formula for one operand and sum the result down to the operand's shape. NULL from the formula: no gradient. */
static gb_status gradient_of(gb_grad_call *grad, int input) {
  const gb_edge *edge = &grad->node->edges[input];
  gb_chain chain;
  gb_tensor *whole = NULL;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *made = formulas[grad->node->op](&chain, grad, input);
  if (!made && chain.status == GB_OK) return GB_OK;
  GB_TRY(gb_chain_end(&chain, made, &whole));
  gb_status status = gb_sum_to(grad->context, whole, edge->ndim, edge->shape, &grad->in[input]);
  gb_tensor_release(whole);
  return status;
}

/* Under autocast a float32 op read 16-bit operands as they were: its formulas compute from them in float32 too, as from operands cast by hand. */
static gb_status widen_saved(gb_grad_call *grad) {
  if (gb_op_get(grad->context, grad->node->op)->autocast != GB_CLASS_FLOAT32 || grad->out[0]->dtype != GB_FLOAT32) return GB_OK;
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

const gb_op_impl gb_family_elementwise[] = {
  { .op = GB_OP_add, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_sub, .check = check_numbers, .gradient = gradient },
  { .op = GB_OP_mul, .check = check_promoted, .gradient = gradient, .save_in = 3, .save_other = true },
  { .op = GB_OP_div, .check = check_floating, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_floor_divide, .check = check_numbers },
  { .op = GB_OP_remainder, .check = check_numbers, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_pow, .check = check_numbers, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_maximum, .check = check_maximum, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_minimum, .check = check_minimum, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_atan2, .check = check_floating, .gradient = gradient, .save_in = 3 },
  { .op = GB_OP_neg, .check = check_numbers, .gradient = gradient },
  { .op = GB_OP_abs, .check = check_promoted, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_sign, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_exp, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_expm1, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_log, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_log2, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_log10, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_log1p, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_sqrt, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_rsqrt, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_square, .check = check_numbers, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_reciprocal, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_sin, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_cos, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_tan, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_tanh, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_erf, .check = check_floating, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_floor, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_ceil, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_round, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_trunc, .check = check_promoted, .gradient = gradient },
  { .op = GB_OP_clamp, .check = check_clamp, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_lerp, .check = check_float_only, .gradient = gradient, .save_in = 7 },
  { .op = GB_OP_addcmul, .check = check_addcmul, .gradient = gradient, .save_in = 6 },
  { .op = GB_OP_addcdiv, .check = check_floating, .gradient = gradient, .save_in = 6 },
  { .op = GB_OP_where, .check = check_where, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_masked_fill, .check = check_masked_fill, .gradient = gradient, .save_in = 2 },
  { .op = GB_OP_sigmoid, .check = check_floating, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_relu, .check = check_numbers, .gradient = gradient, .save_out = 1 },
  { .op = GB_OP_leaky_relu, .check = check_float_only, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_elu, .check = check_float_only, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_gelu, .check = check_gelu, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_silu, .check = check_float_only, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_softplus, .check = check_float_only, .gradient = gradient, .save_in = 1 },
  { .op = GB_OP_relu_backward, .check = check_float_only, .gradient = gradient, .save_in = 2 },
  { .op = GB_OP_gelu_backward, .check = check_gelu },
  { .op = GB_OP_silu_backward, .check = check_float_only },
  { .op = GB_OP_tanh_backward, .check = check_float_only },
  { .op = GB_OP_sigmoid_backward, .check = check_float_only },
  { .op = GB_OP_eq, .check = check_test },
  { .op = GB_OP_ne, .check = check_test },
  { .op = GB_OP_lt, .check = check_test },
  { .op = GB_OP_le, .check = check_test },
  { .op = GB_OP_gt, .check = check_test },
  { .op = GB_OP_ge, .check = check_test },
  { .op = GB_OP_logical_and, .check = check_test },
  { .op = GB_OP_logical_or, .check = check_test },
  { .op = GB_OP_logical_xor, .check = check_test },
  { .op = GB_OP_logical_not, .check = check_test },
  { .op = GB_OP_bitwise_and, .check = check_bitwise },
  { .op = GB_OP_bitwise_or, .check = check_bitwise },
  { .op = GB_OP_bitwise_xor, .check = check_bitwise },
  { .op = GB_OP_bitwise_not, .check = check_bitwise },
  { .op = GB_OP_isnan, .check = check_test },
  { .op = GB_OP_isinf, .check = check_test },
  { .op = GB_OP_isfinite, .check = check_test },
  { .op = GB_OP_dropout, .check = check_dropout, .gradient = gradient },
  { .op = GB_OP_dropout_backward, .check = check_float_only },
  { .op = GB_OP_scale_loss, .check = check_scale_loss, .gradient = gradient, .save_in = 2 },
  { .op = GB_OP_tril, .check = check_triangle, .gradient = gradient },
  { .op = GB_OP_triu, .check = check_triangle, .gradient = gradient },
  { .op = GB_OP_COUNT },
};
