/* ops/norm.c - layer_norm, rms_norm, add_layer_norm, batch_norm and group_norm: checks and gradients.
 *
 * A norm keeps its input as it is (16 bits where it has 16) with the mean and 1 / sqrt(var + eps) of each row or
 * channel, and one fused row computes all its gradients from them. For a graph of the gradient they are computed again
 * from x by ops that can be differentiated; only add_layer_norm can be differentiated once. */
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/gate.h"

/* {==== What all of them ask ==== */

/* Statistics and gradients of parameters are float32, for float64 input float64. */
static gb_dtype statistic_dtype(const gb_tensor *x) { return x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

/* A float tensor, or none, of the shape that another one implies. `rule` says which. */
static gb_status check_like(gb_op_call *call, int input, int ndim, const int64_t *shape, const char *rule) {
  const gb_tensor *t = call->in[input];
  char has[96], wants[96];
  if (!t) return GB_OK;
  GB_TRY(gb_require_float(call, input));
  if (t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, expected %s (%s)", call->info->in[input].name,
                      gb_shape_text(t->ndim, t->shape, has, sizeof has),
                          gb_shape_text(ndim, shape, wants, sizeof wants), rule);
}

/* layer_norm, rms_norm and add_layer_norm have x and the attributes that are read for all of them at one place. */
#define LIKE_LAYER_NORM(op) \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(layer_norm, x), "x as in layer_norm"); \
  _Static_assert(GB_ATTR_AT(op, shape) == GB_ATTR_AT(layer_norm, shape), "shape as in layer_norm"); \
  _Static_assert(GB_ATTR_AT(op, eps) == GB_ATTR_AT(layer_norm, eps), "eps as in layer_norm"); \
  _Static_assert(GB_ATTR_AT(op, out) == GB_ATTR_AT(layer_norm, out), "out as in layer_norm")
LIKE_LAYER_NORM(rms_norm);
LIKE_LAYER_NORM(add_layer_norm);

/* Does the attribute `shape` name x's last dims? *outer: how many come before them. */
static gb_status check_last_dims(gb_op_call *call, int *outer) {
  const gb_tensor *x = GB_IN(call, layer_norm)->x;
  const gb_attr *shape = &GB_ATTRS(call, layer_norm)->shape;
  char has[96], wants[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(layer_norm, x)));
  *outer = x->ndim - shape->count;
  if (shape->count > 0 && *outer >= 0 && !memcmp(x->shape + *outer, shape->ints,
                                                 (size_t)shape->count * sizeof *shape->ints)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x (%s) does not end in the shape to normalise, %s; name its last dimensions",
                      gb_shape_text(x->ndim, x->shape, has, sizeof has),
                      shape->count > 0 ? gb_shape_text(shape->count, shape->ints, wants, sizeof wants)
                          : "which is empty");
}

/* ====} */

/* {==== layer_norm, rms_norm, add_layer_norm ==== */

/* The dtype of y where it would naturally be x's: under autocast float32 or, as `out` asks, the scope's, rounded to
 * once, at the store. */
static gb_status find_out(gb_op_call *call, gb_dtype natural, gb_dtype *dtype) {
  bool lower = GB_ATTRS(call, layer_norm)->out.integer == GB_WORD_autocast;
  *dtype = lower && call->result != GB_DTYPE_NONE ? call->context->modes->lower : gb_call_dtype(call, natural);
  return GB_OK;
}

static const char of_last_dims[] = "the dimensions that are normalised";

/* x [..., shape], weight and bias [shape] or absent -> y like x; mean and rstd [...] are kept for backward. */
static gb_status layer_norm_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, layer_norm)->x;
  const gb_attr *shape = &GB_ATTRS(call, layer_norm)->shape;
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, &outer));
  GB_TRY(check_like(call, GB_IN_AT(layer_norm, weight), shape->count, shape->ints, of_last_dims));
  GB_TRY(check_like(call, GB_IN_AT(layer_norm, bias), shape->count, shape->ints, of_last_dims));
  GB_TRY(find_out(call, (gb_dtype)x->dtype, &dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(layer_norm, y), x->ndim, x->shape, dtype));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, GB_OUT_AT(layer_norm, mean), outer, x->shape, statistic_dtype(x)));
  return gb_call_output(call, GB_OUT_AT(layer_norm, rstd), outer, x->shape, statistic_dtype(x));
}

/* x [..., shape], weight [shape] or absent -> y like x; rstd [...] is kept for backward. */
static gb_status rms_norm_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, rms_norm)->x;
  const gb_attr *shape = &GB_ATTRS(call, rms_norm)->shape;
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, &outer));
  GB_TRY(check_like(call, GB_IN_AT(rms_norm, weight), shape->count, shape->ints, of_last_dims));
  GB_TRY(find_out(call, (gb_dtype)x->dtype, &dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(rms_norm, y), x->ndim, x->shape, dtype));
  if (!call->needs_grad) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(rms_norm, rstd), outer, x->shape, statistic_dtype(x));
}

/* x and residual of one shape -> layer_norm of their sum as it was rounded, and the sum, in the dtype both promote to
 * or float32 under autocast. */
static gb_status add_layer_norm_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, add_layer_norm)->x, *residual = GB_IN(call, add_layer_norm)->residual;
  const gb_attr *shape = &GB_ATTRS(call, add_layer_norm)->shape;
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, &outer));
  GB_TRY(check_like(call, GB_IN_AT(add_layer_norm, residual), x->ndim, x->shape, "x's shape"));
  GB_TRY(check_like(call, GB_IN_AT(add_layer_norm, weight), shape->count, shape->ints, of_last_dims));
  GB_TRY(check_like(call, GB_IN_AT(add_layer_norm, bias), shape->count, shape->ints, of_last_dims));
  gb_dtype sum = gb_promote((gb_dtype)x->dtype, (gb_dtype)residual->dtype);
  GB_TRY(find_out(call, sum, &dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(add_layer_norm, y), x->ndim, x->shape, dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(add_layer_norm, sum), x->ndim, x->shape, gb_call_dtype(call, sum)));
  if (!call->needs_grad) return GB_OK;
  gb_dtype statistics = statistic_dtype(GB_OUT(call, add_layer_norm)->sum);
  GB_TRY(gb_call_output(call, GB_OUT_AT(add_layer_norm, mean), outer, x->shape, statistics));
  return gb_call_output(call, GB_OUT_AT(add_layer_norm, rstd), outer, x->shape, statistics);
}

/* layer_norm_backward and rms_norm_backward have what is read for both at one place. */
#define SAME_PLACE(at, name) \
  _Static_assert(at(rms_norm_backward, name) == at(layer_norm_backward, name), #name " as in layer_norm_backward")
SAME_PLACE(GB_IN_AT, grad);
SAME_PLACE(GB_IN_AT, x);
SAME_PLACE(GB_IN_AT, weight);
SAME_PLACE(GB_OUT_AT, dx);
SAME_PLACE(GB_OUT_AT, dweight);
SAME_PLACE(GB_ATTR_AT, add);

/* The shapes of grad, x, weight and statistics, which are the last inputs, fit each other; the statistics' dims are
 * those of x that are not normalised. */
static gb_status check_backward(gb_op_call *call, int first_statistic, int *outer) {
  const gb_tensor *x = GB_IN(call, layer_norm_backward)->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(layer_norm_backward, grad)));
  GB_TRY(gb_require_float(call, GB_IN_AT(layer_norm_backward, x)));
  *outer = call->in[first_statistic]->ndim;
  if (*outer >= x->ndim)
    return gb_call_fail(call, GB_ESHAPE, "'%s' has as many dimensions as x", call->info->in[first_statistic].name);
  GB_TRY(check_like(call, GB_IN_AT(layer_norm_backward, grad), x->ndim, x->shape, "x's shape"));
  GB_TRY(check_like(call, GB_IN_AT(layer_norm_backward, weight), x->ndim - *outer, x->shape + *outer, of_last_dims));
  for (int i = first_statistic; i < call->n_in; i++)
    GB_TRY(check_like(call, i, *outer, x->shape, "the other dimensions of x"));
  return GB_OK;
}

/* A dx that is added to has float32 or float64, so that a sum is rounded once. */
static bool can_add(const gb_tensor *x) { return x->dtype == GB_FLOAT32 || x->dtype == GB_FLOAT64; }

/* dx in x's dtype, dweight if there is a weight. */
static gb_status backward_outputs(gb_op_call *call, int outer) {
  const gb_in_layer_norm_backward *in = GB_IN(call, layer_norm_backward);
  const gb_tensor *x = in->x;
  bool given = call->given && call->given[GB_OUT_AT(layer_norm_backward, dx)];
  if (GB_ATTRS(call, layer_norm_backward)->add.integer && !(given && can_add(x)))
    return gb_call_fail(call, GB_EINVAL, "add needs memory for dx, which has float32 or float64");
  GB_TRY(gb_call_output(call, GB_OUT_AT(layer_norm_backward, dx), x->ndim, x->shape, (gb_dtype)x->dtype));
  if (!in->weight) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(layer_norm_backward, dweight), x->ndim - outer, x->shape + outer,
                        statistic_dtype(x));
}

/* dx in 16 bits too, where that is asked for. */
static gb_status low_output(gb_op_call *call, const gb_attr *low, int output) {
  const gb_tensor *x = GB_IN(call, layer_norm_backward)->x;
  gb_dtype dtype = (gb_dtype)low->integer;
  if (!low->given) return GB_OK;
  if (x->dtype != GB_FLOAT32 || !gb_is_16bit(dtype))
    return gb_call_fail(call, GB_EDTYPE, "low is float16 or bfloat16, of a float32 x; got %s and %s",
                        gb_dtype_name(dtype), gb_dtype_name((gb_dtype)x->dtype));
  return gb_call_output(call, output, x->ndim, x->shape, dtype);
}

/* dbias too, if there was a bias. */
static gb_status layer_norm_backward_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, layer_norm_backward)->x;
  int outer;
  GB_TRY(check_backward(call, GB_IN_AT(layer_norm_backward, mean), &outer));
  GB_TRY(backward_outputs(call, outer));
  GB_TRY(low_output(call, &GB_ATTRS(call, layer_norm_backward)->low, GB_OUT_AT(layer_norm_backward, low)));
  if (!GB_ATTRS(call, layer_norm_backward)->has_bias.integer) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(layer_norm_backward, dbias), x->ndim - outer, x->shape + outer,
                        statistic_dtype(x));
}

static gb_status rms_norm_backward_check(gb_op_call *call) {
  int outer;
  GB_TRY(check_backward(call, GB_IN_AT(rms_norm_backward, rstd), &outer));
  GB_TRY(low_output(call, &GB_ATTRS(call, rms_norm_backward)->low, GB_OUT_AT(rms_norm_backward, low)));
  return backward_outputs(call, outer);
}

/* Give a gradient to its input if that needs one, else let go of it. */
static void hand(gb_grad_call *g, int input, gb_tensor *made) {
  if (made && g->need[input]) g->in[input] = made;
  else gb_tensor_release(made);
}
#define HAND(g, op, name, made) hand((g), GB_IN_AT(op, name), (made))

/* Hand over a gradient, or say that it was put into its sum. */
static void hand_or_settle(gb_grad_call *g, int input, gb_tensor *sum, gb_tensor *made) {
  if (!sum) {
    hand(g, input, made);
    return;
  }
  g->settled |= 1u << input;
  gb_tensor_release(made);
}
#define PUT(g, op, name, sum, made) hand_or_settle((g), GB_IN_AT(op, name), (sum), (made))

/* Where the gradient of a parameter is written as it is made; NULL: it is handed over. */
#define EMPTY_SUM(g, op, name, x) gb_grad_empty_sum((g), GB_IN_AT(op, name), statistic_dtype(x))

/* The last `count` dims. */
static gb_attr last_dims(int count) {
  gb_attr dims = { .given = true, .count = (int8_t)count };
  for (int i = 0; i < count; i++) dims.ints[i] = i - count;
  return dims;
}

/* The mean over dims, kept as dims of size 1. */
static gb_tensor *mean_over(gb_chain *c, gb_tensor *x, gb_attr dims) {
  return GB_CHAIN(c, mean, .x = x, .dim = dims, .keepdim = gb_attr_int(true));
}

/* The norm's gradients as ops that have gradients themselves. dims: what is normalised; centre: rms_norm does not. The
 * results are owned by the chain. */
typedef struct norm_gradients { gb_tensor *dx, *dnormal, *dy; } norm_gradients;

static norm_gradients compose(gb_chain *c, gb_tensor *grad, gb_tensor *input, gb_tensor *weight, gb_attr dims,
                              double eps, bool centre) {
  gb_tensor *x = gb_chain_widen(c, input);
  if (c->status != GB_OK) return (norm_gradients){ NULL, NULL, NULL };
  gb_tensor *dy = gb_chain_cast(c, grad, (gb_dtype)x->dtype);
  gb_tensor *centred = centre ? gb_chain_2(c, GB_OP_sub, x, mean_over(c, x, dims), NULL) : x;
  gb_tensor *variance = mean_over(c, gb_chain_2(c, GB_OP_mul, centred, centred, NULL), dims);
  gb_tensor *rstd = gb_chain_1(c, GB_OP_rsqrt, gb_chain_number(c, GB_OP_add, variance, eps), NULL);
  gb_tensor *normal = gb_chain_2(c, GB_OP_mul, centred, rstd, NULL);
  gb_tensor *dn = weight ? gb_chain_2(c, GB_OP_mul, dy, gb_chain_widen(c, weight), NULL) : dy;
  gb_tensor *along = gb_chain_2(c, GB_OP_mul, normal, mean_over(c, gb_chain_2(c, GB_OP_mul, dn, normal, NULL), dims),
                                NULL);
  gb_tensor *across = gb_chain_2(c, GB_OP_sub, dn, along, NULL);
  if (centre) across = gb_chain_2(c, GB_OP_sub, across, mean_over(c, dn, dims), NULL);
  return (norm_gradients){ gb_chain_2(c, GB_OP_mul, across, rstd, NULL), gb_chain_2(c, GB_OP_mul, dy, normal, NULL),
                           dy };
}

/* What is saved by layer_norm and rms_norm for this stands at one place. */
_Static_assert(GB_IN_AT(rms_norm, x) == GB_IN_AT(layer_norm, x), "x as in layer_norm");
_Static_assert(GB_IN_AT(rms_norm, weight) == GB_IN_AT(layer_norm, weight), "weight as in layer_norm");
_Static_assert(GB_OUT_AT(rms_norm, y) == GB_OUT_AT(layer_norm, y), "y as in layer_norm");

/* Run compose and take what is needed: x's gradient, weight's, and (layer_norm) bias's. */
static gb_status composed_gradient(gb_grad_call *g, bool centre) {
  gb_chain c;
  gb_chain_begin(&c, g->context);
  gb_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
  const gb_in_layer_norm *saved = GB_SAVED(g, layer_norm);
  const gb_attr *shape = &GB_ATTRS(g, layer_norm)->shape;
  norm_gradients n = compose(&c, GB_GRAD_OUT(g, layer_norm)->y, saved->x, saved->weight,
                             last_dims(shape->count), GB_ATTRS(g, layer_norm)->eps.number, centre);
  if (c.status == GB_OK && GB_NEEDS(g, layer_norm, weight))
    c.status = gb_sum_to(g->context, n.dnormal, shape->count, shape->ints, &dweight);
  if (c.status == GB_OK && centre && GB_NEEDS(g, layer_norm, bias))
    c.status = gb_sum_to(g->context, n.dy, shape->count, shape->ints, &dbias);
  gb_status status = gb_chain_end(&c, n.dx, &dx);
  if (status != GB_OK) {
    gb_drop(&dweight);
    gb_drop(&dbias);
    return status;
  }
  HAND(g, layer_norm, x, dx);
  HAND(g, layer_norm, weight, dweight);
  if (centre) HAND(g, layer_norm, bias, dbias);
  return GB_OK;
}

/* Where layer_norm and rms_norm add x's gradient to what has arrived for x already, if they can; NULL: it is handed
 * over. */
static gb_tensor *sum_for_x(const gb_grad_call *g) {
  const gb_tensor *x = GB_SAVED(g, layer_norm)->x, *grad = GB_GRAD_OUT(g, layer_norm)->y;
  bool need = GB_NEEDS(g, layer_norm, x), holds = false;
  gb_tensor *sum = need && g->accumulator ? g->accumulator(g, GB_IN_AT(layer_norm, x), &holds) : NULL;
  bool fits = sum && holds && sum->dtype == x->dtype && can_add(x) && gb_promote(x->dtype, grad->dtype) == x->dtype;
  return fits && sum->storage != grad->storage && sum->storage != x->storage ? sum : NULL;
}

/* The 16 bits in which x's gradient, which is float32, is wanted too by where it goes on to. */
static gb_attr low_for_x(const gb_grad_call *g) {
  gb_dtype low = g->low && GB_NEEDS(g, layer_norm, x) && GB_SAVED(g, layer_norm)->x->dtype == GB_FLOAT32
                     ? g->low(g, GB_IN_AT(layer_norm, x)) : GB_DTYPE_NONE;
  return (gb_attr){ .given = low != GB_DTYPE_NONE, .integer = low };
}

static gb_status layer_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_gradient(g, true);
  const gb_in_layer_norm *saved = GB_SAVED(g, layer_norm);
  const gb_out_layer_norm *kept = GB_KEPT(g, layer_norm);
  gb_tensor *sum = sum_for_x(g);
  gb_out_layer_norm_backward given = { .dx = sum, .dweight = EMPTY_SUM(g, layer_norm, weight, saved->x),
                                       .dbias = EMPTY_SUM(g, layer_norm, bias, saved->x) }, made = { 0 };
  GB_TRY(GB_RUN_OUT(g->context, layer_norm_backward, &given.dx, &made.dx, .grad = GB_GRAD_OUT(g, layer_norm)->y,
                    .x = saved->x, .weight = saved->weight, .mean = kept->mean, .rstd = kept->rstd,
                    .add = gb_attr_int(sum != NULL), .has_bias = gb_attr_int(GB_NEEDS(g, layer_norm, bias)),
                    .low = low_for_x(g)));
  g->lowered = made.low;
  PUT(g, layer_norm, x, sum, made.dx);
  PUT(g, layer_norm, weight, given.dweight, made.dweight);
  PUT(g, layer_norm, bias, given.dbias, made.dbias);
  return GB_OK;
}

static gb_status rms_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_gradient(g, false);
  const gb_in_rms_norm *saved = GB_SAVED(g, rms_norm);
  gb_tensor *sum = sum_for_x(g);
  gb_out_rms_norm_backward given = { .dx = sum, .dweight = EMPTY_SUM(g, rms_norm, weight, saved->x) }, made = { 0 };
  GB_TRY(GB_RUN_OUT(g->context, rms_norm_backward, &given.dx, &made.dx, .grad = GB_GRAD_OUT(g, rms_norm)->y,
                    .x = saved->x, .weight = saved->weight, .rstd = GB_KEPT(g, rms_norm)->rstd,
                    .add = gb_attr_int(sum != NULL), .low = low_for_x(g)));
  g->lowered = made.low;
  PUT(g, rms_norm, x, sum, made.dx);
  PUT(g, rms_norm, weight, given.dweight, made.dweight);
  return GB_OK;
}

/* May the norm's gradient be added to the sum's own, in the memory of that? */
static bool adds_to_sum(const gb_grad_call *g, const gb_tensor *sum, const gb_tensor *dy, const gb_tensor *dsum) {
  return dy && dsum && gb_grad_may_write(g, GB_OUT_AT(add_layer_norm, sum)) && dsum->dtype == sum->dtype &&
         can_add(sum) && gb_is_contiguous(dsum) && gb_promote(sum->dtype, dy->dtype) == sum->dtype &&
         dsum->storage != dy->storage;
}

/* The 16 bits in which x or residual, or both, take the sum's gradient. */
static gb_attr low_for_operands(const gb_grad_call *g, const gb_tensor *sum) {
  const int inputs[2] = { GB_IN_AT(add_layer_norm, x), GB_IN_AT(add_layer_norm, residual) };
  for (int i = 0; i < 2 && g->low && sum->dtype == GB_FLOAT32; i++)
    if (g->need[inputs[i]] && gb_is_16bit((gb_dtype)g->want[inputs[i]])) return gb_attr_int(g->want[inputs[i]]);
  return (gb_attr){ .given = false };
}

/* Hand the gradient over in the dtype that the input takes, where it was made in that. */
static void hand_either(gb_grad_call *g, int input, gb_tensor *wide, gb_tensor *low) {
  gb_tensor *made = low && g->want[input] == low->dtype ? low : wide;
  gb_tensor_retain(made);
  hand(g, input, made);
}

/* x and residual have one gradient: that of the sum by itself and that through the norm. */
static gb_status add_layer_norm_gradient(gb_grad_call *g) {
  const gb_out_add_layer_norm *kept = GB_KEPT(g, add_layer_norm);
  gb_tensor *dy = GB_GRAD_OUT(g, add_layer_norm)->y, *dsum = GB_GRAD_OUT(g, add_layer_norm)->sum;
  gb_tensor *zero = NULL, *total = NULL;
  bool adds = adds_to_sum(g, kept->sum, dy, dsum);
  gb_out_layer_norm_backward given = { .dx = adds ? dsum : NULL,
                                       .dweight = EMPTY_SUM(g, add_layer_norm, weight, kept->sum),
                                       .dbias = EMPTY_SUM(g, add_layer_norm, bias, kept->sum) }, made = { 0 };
  gb_attr low = dsum && !adds ? (gb_attr){ .given = false } : low_for_operands(g, kept->sum);
  if (!dy) GB_TRY(gb_op_zeros_like(g->context, kept->sum, &zero));
  gb_status status = GB_RUN_OUT(g->context, layer_norm_backward, &given.dx, &made.dx, .grad = dy ? dy : zero,
                                .x = kept->sum, .weight = GB_SAVED(g, add_layer_norm)->weight, .mean = kept->mean,
                                .rstd = kept->rstd, .add = gb_attr_int(adds),
                                .has_bias = gb_attr_int(GB_NEEDS(g, add_layer_norm, bias)), .low = low);
  gb_drop(&zero);
  GB_TRY(status);
  if (dsum && !adds) {
    status = GB_RUN(g->context, add, &total, .x = made.dx, .y = dsum);
    gb_drop(&made.dx);
    made.dx = total;
  }
  if (status != GB_OK) {
    gb_drop(&made.dweight);
    gb_drop(&made.dbias);
    return status;
  }
  hand_either(g, GB_IN_AT(add_layer_norm, x), made.dx, made.low);
  hand_either(g, GB_IN_AT(add_layer_norm, residual), made.dx, made.low);
  gb_drop(&made.dx);
  gb_tensor_release(made.low);
  PUT(g, add_layer_norm, weight, given.dweight, made.dweight);
  PUT(g, add_layer_norm, bias, given.dbias, made.dbias);
  return GB_OK;
}

/* ====} */

/* {==== batch_norm ==== */

static const char of_channels[] = "the channels, dimension 2 of x";

/* A tensor of running statistics: a vector by channel that asks for no gradient, since it is written here. */
static gb_status check_running(gb_op_call *call, int input) {
  const gb_tensor *t = call->in[input];
  if (!t) return GB_OK;
  GB_TRY(check_like(call, input, 1, GB_IN(call, batch_norm)->x->shape + 1, of_channels));
  if (!gb_tensor_in_graph(t)) return GB_OK;
  return gb_call_fail(call, GB_EAUTOGRAD, "'%s' requires gradients; running statistics are buffers, detach it",
                      call->info->in[input].name);
}

/* The statistics come from the batch, which must have two values per channel, or from the running ones, which must
 * exist. */
static gb_status check_source(gb_op_call *call) {
  const gb_in_batch_norm *in = GB_IN(call, batch_norm);
  const gb_tensor *x = in->x;
  char text[96];
  bool training = GB_ATTRS(call, batch_norm)->training.integer;
  if (!training && (!in->running_mean || !in->running_var))
    return gb_call_fail(call, GB_EINVAL, "running_mean and running_var are needed when not training; pass them, or "
                                         "training = true");
  if (!training || x->shape[1] == 0 || x->numel / x->shape[1] != 1) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "training needs more than one value per channel, x is %s; use a larger "
                                       "batch, or eval()",
                      gb_shape_text(x->ndim, x->shape, text, sizeof text));
}

static bool has_relu(const gb_attrs_batch_norm *attrs) { return attrs->activation.integer == GB_WORD_relu; }

/* x [n, c, ...], four vectors [c] or absent, residual like x or absent -> y like x, in x's layout and the dtype that x
 * and the residual promote to; mean and rstd [c] are kept for backward, and y again if relu needs it for that. */
static gb_status batch_norm_check(gb_op_call *call) {
  const gb_in_batch_norm *in = GB_IN(call, batch_norm);
  gb_out_batch_norm *made = GB_OUT(call, batch_norm);
  const gb_tensor *x = in->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(batch_norm, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(batch_norm, x), 2, GB_MAX_NDIM));
  GB_TRY(check_running(call, GB_IN_AT(batch_norm, running_mean)));
  GB_TRY(check_running(call, GB_IN_AT(batch_norm, running_var)));
  GB_TRY(check_like(call, GB_IN_AT(batch_norm, weight), 1, x->shape + 1, of_channels));
  GB_TRY(check_like(call, GB_IN_AT(batch_norm, bias), 1, x->shape + 1, of_channels));
  GB_TRY(check_like(call, GB_IN_AT(batch_norm, residual), x->ndim, x->shape, "x's shape"));
  GB_TRY(check_source(call));
  gb_dtype natural = in->residual ? gb_promote((gb_dtype)x->dtype, (gb_dtype)in->residual->dtype) : (gb_dtype)x->dtype;
  GB_TRY(gb_call_output_like(call, GB_OUT_AT(batch_norm, y), x, gb_call_dtype(call, natural)));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, GB_OUT_AT(batch_norm, mean), 1, x->shape + 1, statistic_dtype(x)));
  GB_TRY(gb_call_output(call, GB_OUT_AT(batch_norm, rstd), 1, x->shape + 1, statistic_dtype(x)));
  return has_relu(GB_ATTRS(call, batch_norm)) ? gb_tensor_detach(made->y, &made->rectified) : GB_OK;
}

/* grad, x, weight, mean, rstd -> dx like x, dweight if there is a weight, dbias. Behind a ReLU also masked, like x. */
static gb_status batch_norm_backward_check(gb_op_call *call) {
  const gb_in_batch_norm_backward *in = GB_IN(call, batch_norm_backward);
  const gb_tensor *x = in->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(batch_norm_backward, grad)));
  GB_TRY(gb_require_float(call, GB_IN_AT(batch_norm_backward, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(batch_norm_backward, x), 2, GB_MAX_NDIM));
  GB_TRY(check_like(call, GB_IN_AT(batch_norm_backward, grad), x->ndim, x->shape, "x's shape"));
  const int more = GB_IN_AT(batch_norm_backward, more);
  for (int i = GB_IN_AT(batch_norm_backward, weight); i < more; i++)
    GB_TRY(check_like(call, i, 1, x->shape + 1, of_channels));
  for (int i = more; i <= GB_IN_AT(batch_norm_backward, rectified); i++) {
    GB_TRY(check_like(call, i, x->ndim, x->shape, "x's shape"));
    if (call->in[i] && (call->in[i]->dtype != x->dtype || in->grad->dtype != x->dtype))
      return gb_call_fail(call, GB_EDTYPE, "grad and '%s' must have x's dtype", call->info->in[i].name);
  }
  if (in->more && !in->rectified) return gb_call_fail(call, GB_EINVAL, "'more' is for a gradient through 'rectified'");
  GB_TRY(gb_call_output_like(call, GB_OUT_AT(batch_norm_backward, dx), x, (gb_dtype)x->dtype));
  if (in->rectified)
    GB_TRY(gb_call_output_like(call, GB_OUT_AT(batch_norm_backward, masked), in->rectified, (gb_dtype)x->dtype));
  gb_dtype sums = statistic_dtype(x);
  if (in->weight) GB_TRY(gb_call_output(call, GB_OUT_AT(batch_norm_backward, dweight), 1, x->shape + 1, sums));
  return gb_call_output(call, GB_OUT_AT(batch_norm_backward, dbias), 1, x->shape + 1, sums);
}

/* A ReLU whose gradient is still to be made, its own or (a gate) one behind it: the sum of grad and more goes in where
 * rectified, its result, is positive. */
typedef struct rectifier { gb_tensor *grad, *more, *rectified; } rectifier;

static rectifier rectifier_of(const gb_grad_call *g) {
  gb_tensor *grad = GB_GRAD_OUT(g, batch_norm)->y;
  if (g->gate) return (rectifier){ grad, g->gate->more, g->gate->y };
  return (rectifier){ grad, g->more, GB_KEPT(g, batch_norm)->rectified };
}

/* What goes in, by ops of its own; grad again, a new reference, where there is no ReLU. */
static gb_status rectify(gb_context *context, const rectifier *r, gb_tensor **out) {
  gb_tensor *sum = NULL;
  if (!r->rectified) {
    gb_tensor_retain(*out = r->grad);
    return GB_OK;
  }
  if (r->more) GB_TRY(GB_RUN(context, add, &sum, .x = r->grad, .y = r->more));
  gb_status status = GB_RUN(context, relu_backward, out, .grad = sum ? sum : r->grad, .y = r->rectified);
  gb_drop(&sum);
  return status;
}

/* The sum of a gradient over all but its channels, a vector; by_channel: the channels as dims that it has. */
static void sum_to_channels(gb_chain *c, gb_tensor *full, const gb_attr *by_channel, const gb_tensor *x,
                            gb_tensor **out) {
  gb_tensor *sum = NULL;
  if (c->status != GB_OK) return;
  c->status = gb_sum_to(c->context, full, by_channel->count, by_channel->ints, &sum);
  if (c->status == GB_OK)
    c->status = GB_RUN(c->context, reshape, out, .x = sum, .shape = gb_attr_ints(1, x->shape + 1));
  gb_drop(&sum);
}

/* By running statistics x is only shifted and scaled. */
static norm_gradients compose_fixed(gb_chain *c, gb_tensor *grad, gb_tensor *input, gb_tensor *weight, gb_tensor *mean,
                                    gb_tensor *rstd) {
  gb_tensor *x = gb_chain_widen(c, input);
  if (c->status != GB_OK) return (norm_gradients){ NULL, NULL, NULL };
  gb_tensor *dy = gb_chain_cast(c, grad, (gb_dtype)x->dtype);
  gb_tensor *normal = gb_chain_2(c, GB_OP_mul, gb_chain_2(c, GB_OP_sub, x, mean, NULL), rstd, NULL);
  gb_tensor *scale = weight ? gb_chain_2(c, GB_OP_mul, rstd, gb_chain_widen(c, weight), NULL) : rstd;
  return (norm_gradients){ gb_chain_2(c, GB_OP_mul, dy, scale, NULL), gb_chain_2(c, GB_OP_mul, dy, normal, NULL), dy };
}

/* Those of the norm out of ops that can be differentiated, and the residual's. */
static gb_status composed_batch_gradient(gb_grad_call *g) {
  const gb_in_batch_norm *saved = GB_SAVED(g, batch_norm);
  const gb_out_batch_norm *kept = GB_KEPT(g, batch_norm);
  const gb_attrs_batch_norm *attrs = GB_ATTRS(g, batch_norm);
  const gb_tensor *x = saved->x;
  gb_attr by_channel = { .given = true, .count = (int8_t)(x->ndim - 1), .ints = { x->shape[1] } };
  gb_attr dims = { .given = true, .count = (int8_t)(x->ndim - 1) };
  gb_tensor *dx = NULL, *sums[2] = { NULL, NULL }, *masked = NULL;
  for (int d = 1; d < x->ndim - 1; d++) by_channel.ints[d] = 1, dims.ints[d] = d + 1;
  rectifier relu = rectifier_of(g);
  GB_TRY(rectify(g->context, &relu, &masked));
  gb_chain c;
  gb_chain_begin(&c, g->context);
  gb_tensor *weight = saved->weight ? GB_CHAIN(&c, reshape, .x = saved->weight, .shape = by_channel) : NULL;
  norm_gradients n = attrs->training.integer ? compose(&c, masked, saved->x, weight, dims, attrs->eps.number, true)
      : compose_fixed(&c, masked, saved->x, weight, GB_CHAIN(&c, reshape, .x = kept->mean, .shape = by_channel),
                      GB_CHAIN(&c, reshape, .x = kept->rstd, .shape = by_channel));
  if (GB_NEEDS(g, batch_norm, weight)) sum_to_channels(&c, n.dnormal, &by_channel, x, &sums[0]);
  if (GB_NEEDS(g, batch_norm, bias)) sum_to_channels(&c, n.dy, &by_channel, x, &sums[1]);
  gb_status status = gb_chain_end(&c, n.dx, &dx);
  if (status != GB_OK) {
    gb_drop(&sums[0]);
    gb_drop(&sums[1]);
    gb_drop(&masked);
    return status;
  }
  HAND(g, batch_norm, x, dx);
  HAND(g, batch_norm, weight, sums[0]);
  HAND(g, batch_norm, bias, sums[1]);
  HAND(g, batch_norm, residual, masked);
  return GB_OK;
}

/* One fused op goes through a ReLU on its way, if that has the dtype of x; what it makes of the gradient there is the
 * residual's, and a gate's. */
static gb_status batch_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_batch_gradient(g);
  const gb_in_batch_norm *saved = GB_SAVED(g, batch_norm);
  const gb_out_batch_norm *kept = GB_KEPT(g, batch_norm);
  gb_out_batch_norm_backward given = { .dweight = EMPTY_SUM(g, batch_norm, weight, saved->x),
                                       .dbias = EMPTY_SUM(g, batch_norm, bias, saved->x) }, made = { 0 };
  gb_tensor *masked = NULL;
  if (g->gate) GB_TRY(gb_gate_check(g->gate));
  rectifier relu = rectifier_of(g);
  bool fused = relu.rectified && relu.grad->dtype == saved->x->dtype;
  if (!fused) {
    GB_TRY(rectify(g->context, &relu, &masked));
    relu = (rectifier){ .grad = masked };
  }
  gb_status status = GB_RUN_OUT(g->context, batch_norm_backward, &given.dx, &made.dx, .grad = relu.grad,
                                .x = saved->x, .weight = saved->weight, .mean = kept->mean, .rstd = kept->rstd,
                                .more = relu.more, .rectified = relu.rectified,
                                .training = GB_ATTRS(g, batch_norm)->training);
  if (fused) masked = made.masked;
  if (status != GB_OK) {
    if (!fused) gb_drop(&masked);
    return status;
  }
  if (g->gate) {
    gb_tensor_retain(masked);
    gb_gate_put(g->gate, masked);
  }
  HAND(g, batch_norm, x, made.dx);
  PUT(g, batch_norm, weight, given.dweight, made.dweight);
  PUT(g, batch_norm, bias, given.dbias, made.dbias);
  HAND(g, batch_norm, residual, masked);
  return GB_OK;
}

/* ====} */

/* {==== group_norm ==== */

_Static_assert(GB_ATTR_AT(group_norm, out) == GB_ATTR_AT(layer_norm, out), "find_out reads it");

/* x [n, c, ...] whose channels fall into groups of one size, weight and bias [c] or absent -> y in x's layout; mean and
 * rstd [n, groups] are kept for backward. */
static gb_status group_norm_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, group_norm)->x;
  int64_t groups = GB_ATTRS(call, group_norm)->groups.integer;
  gb_dtype dtype;
  GB_TRY(gb_require_float(call, GB_IN_AT(group_norm, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(group_norm, x), 2, GB_MAX_NDIM));
  if (x->shape[1] % groups)
    return gb_call_fail(call, GB_ESHAPE,
                        "the %" PRId64 " channels of x cannot be put into %" PRId64 " groups of one size", x->shape[1],
        groups);
  GB_TRY(check_like(call, GB_IN_AT(group_norm, weight), 1, x->shape + 1, of_channels));
  GB_TRY(check_like(call, GB_IN_AT(group_norm, bias), 1, x->shape + 1, of_channels));
  GB_TRY(find_out(call, (gb_dtype)x->dtype, &dtype));
  GB_TRY(gb_call_output_like(call, GB_OUT_AT(group_norm, y), x, dtype));
  if (!call->needs_grad) return GB_OK;
  const int64_t shape[2] = { x->shape[0], groups };
  GB_TRY(gb_call_output(call, GB_OUT_AT(group_norm, mean), 2, shape, statistic_dtype(x)));
  return gb_call_output(call, GB_OUT_AT(group_norm, rstd), 2, shape, statistic_dtype(x));
}

/* grad, x, weight, mean, rstd -> dx like x, dweight if there is a weight, dbias if there was a bias. */
static gb_status group_norm_backward_check(gb_op_call *call) {
  const gb_in_group_norm_backward *in = GB_IN(call, group_norm_backward);
  const gb_tensor *x = in->x, *mean = in->mean;
  GB_TRY(gb_require_float(call, GB_IN_AT(group_norm_backward, grad)));
  GB_TRY(gb_require_float(call, GB_IN_AT(group_norm_backward, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(group_norm_backward, x), 2, GB_MAX_NDIM));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(group_norm_backward, mean), 2, 2));
  if (mean->shape[0] != x->shape[0] || mean->shape[1] < 1 || x->shape[1] % mean->shape[1])
    return gb_call_fail(call, GB_ESHAPE, "'mean' has one element per image and group of channels");
  GB_TRY(check_like(call, GB_IN_AT(group_norm_backward, grad), x->ndim, x->shape, "x's shape"));
  GB_TRY(check_like(call, GB_IN_AT(group_norm_backward, weight), 1, x->shape + 1, of_channels));
  GB_TRY(check_like(call, GB_IN_AT(group_norm_backward, rstd), 2, mean->shape, "mean's shape"));
  GB_TRY(gb_call_output_like(call, GB_OUT_AT(group_norm_backward, dx), x, (gb_dtype)x->dtype));
  if (in->weight)
    GB_TRY(gb_call_output(call, GB_OUT_AT(group_norm_backward, dweight), 1, x->shape + 1, statistic_dtype(x)));
  if (!GB_ATTRS(call, group_norm_backward)->has_bias.integer) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(group_norm_backward, dbias), 1, x->shape + 1, statistic_dtype(x));
}

/* The gradients of layer_norm's ops over the last two dims of [n, groups, channels of a group, places]. */
static gb_status composed_group_gradient(gb_grad_call *g) {
  const gb_in_group_norm *saved = GB_SAVED(g, group_norm);
  const gb_attrs_group_norm *attrs = GB_ATTRS(g, group_norm);
  const gb_tensor *x = saved->x;
  int64_t groups = attrs->groups.integer, per = x->shape[1] / groups, places = 1;
  for (int i = 2; i < x->ndim; i++) places *= x->shape[i];
  gb_attr apart = gb_attr_ints(4, (int64_t[]){ x->shape[0], groups, per, places }),
      whole = gb_attr_ints(x->ndim, x->shape);
  gb_attr by_channel = gb_attr_ints(3, (int64_t[]){ groups, per, 1 });
  gb_tensor *dx = NULL, *sums[2] = { NULL, NULL };
  gb_chain c;
  gb_chain_begin(&c, g->context);
  gb_tensor *weight = saved->weight ? GB_CHAIN(&c, reshape, .x = saved->weight, .shape = by_channel) : NULL;
  norm_gradients n = compose(&c, GB_CHAIN(&c, reshape, .x = GB_GRAD_OUT(g, group_norm)->y, .shape = apart),
                             GB_CHAIN(&c, reshape, .x = saved->x, .shape = apart), weight, last_dims(2),
                             attrs->eps.number, true);
  if (GB_NEEDS(g, group_norm, weight)) sum_to_channels(&c, n.dnormal, &by_channel, x, &sums[0]);
  if (GB_NEEDS(g, group_norm, bias)) sum_to_channels(&c, n.dy, &by_channel, x, &sums[1]);
  gb_status status = gb_chain_end(&c, GB_CHAIN(&c, reshape, .x = n.dx, .shape = whole), &dx);
  if (status != GB_OK) {
    gb_drop(&sums[0]);
    gb_drop(&sums[1]);
    return status;
  }
  HAND(g, group_norm, x, dx);
  HAND(g, group_norm, weight, sums[0]);
  HAND(g, group_norm, bias, sums[1]);
  return GB_OK;
}

static gb_status group_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_group_gradient(g);
  const gb_in_group_norm *saved = GB_SAVED(g, group_norm);
  const gb_out_group_norm *kept = GB_KEPT(g, group_norm);
  gb_out_group_norm_backward given = { .dweight = EMPTY_SUM(g, group_norm, weight, saved->x),
                                      .dbias = EMPTY_SUM(g, group_norm, bias, saved->x) }, made = { 0 };
  GB_TRY(GB_RUN_OUT(g->context, group_norm_backward, &given.dx, &made.dx, .grad = GB_GRAD_OUT(g, group_norm)->y,
                    .x = saved->x, .weight = saved->weight, .mean = kept->mean, .rstd = kept->rstd,
                    .has_bias = gb_attr_int(GB_NEEDS(g, group_norm, bias))));
  HAND(g, group_norm, x, made.dx);
  PUT(g, group_norm, weight, given.dweight, made.dweight);
  PUT(g, group_norm, bias, given.dbias, made.dbias);
  return GB_OK;
}

/* ====} */

const gb_op_impl gb_family_norm[] = {
  { .op = GB_OP_group_norm, .check = group_norm_check, .gradient = group_norm_gradient,
    .save_in = GB_SAVE_IN(group_norm, x) | GB_SAVE_IN(group_norm, weight),
    .save_out = GB_SAVE_OUT(group_norm, mean) | GB_SAVE_OUT(group_norm, rstd) },
  { .op = GB_OP_group_norm_backward, .check = group_norm_backward_check },
  { .op = GB_OP_layer_norm, .check = layer_norm_check, .gradient = layer_norm_gradient,
    .save_in = GB_SAVE_IN(layer_norm, x) | GB_SAVE_IN(layer_norm, weight),
    .save_out = GB_SAVE_OUT(layer_norm, mean) | GB_SAVE_OUT(layer_norm, rstd) },
  { .op = GB_OP_layer_norm_backward, .check = layer_norm_backward_check },
  { .op = GB_OP_rms_norm, .check = rms_norm_check, .gradient = rms_norm_gradient,
    .save_in = GB_SAVE_IN(rms_norm, x) | GB_SAVE_IN(rms_norm, weight), .save_out = GB_SAVE_OUT(rms_norm, rstd) },
  { .op = GB_OP_rms_norm_backward, .check = rms_norm_backward_check },
  { .op = GB_OP_add_layer_norm, .check = add_layer_norm_check, .gradient = add_layer_norm_gradient,
    .save_in = GB_SAVE_IN(add_layer_norm, weight),
    .save_out = GB_SAVE_OUT(add_layer_norm, sum) | GB_SAVE_OUT(add_layer_norm, mean) |
                GB_SAVE_OUT(add_layer_norm, rstd) },
  { .op = GB_OP_batch_norm, .check = batch_norm_check, .gradient = batch_norm_gradient,
    .save_in = GB_SAVE_IN(batch_norm, x) | GB_SAVE_IN(batch_norm, weight),
    .save_out = GB_SAVE_OUT(batch_norm, mean) | GB_SAVE_OUT(batch_norm, rstd) | GB_SAVE_OUT(batch_norm, rectified) },
  { .op = GB_OP_batch_norm_backward, .check = batch_norm_backward_check },
  { .op = GB_OP_COUNT },
};
