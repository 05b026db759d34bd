/* ops/norm.c - layer_norm, rms_norm, add_layer_norm and batch_norm: checks and gradients.
 *
 * A norm keeps its input as it is (16 bits where it has 16) with the mean and 1 / sqrt(var + eps) of each row or channel, and one fused row
 * computes all its gradients from them. For a graph of the gradient, layer_norm and rms_norm are computed again from x by ops that can be
 * differentiated; batch_norm and add_layer_norm can be differentiated once. */
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"

/* {==== What all of them ask ==== */

/* Statistics and gradients of parameters are float32, for float64 input float64. */
static gb_dtype statistic_dtype(const gb_tensor *x) { return x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

/* A float tensor, or none, of the shape that another one implies. `rule` says which. */
static gb_status check_like(gb_call *call, int input, int ndim, const int64_t *shape, const char *rule) {
  const gb_tensor *t = call->in[input];
  char has[96], wants[96];
  if (!t) return GB_OK;
  GB_TRY(gb_require_float(call, input));
  if (t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, expected %s (%s)", call->info->in[input].name,
                      gb_shape_text(t->ndim, t->shape, has, sizeof has), gb_shape_text(ndim, shape, wants, sizeof wants), rule);
}

/* Does the attribute `shape` name x's last dims? *outer: how many come before them. */
static gb_status check_last_dims(gb_call *call, const gb_attr *shape, int *outer) {
  const gb_tensor *x = call->in[0];
  char has[96], wants[96];
  GB_TRY(gb_require_float(call, 0));
  *outer = x->ndim - shape->count;
  if (shape->count > 0 && *outer >= 0 && !memcmp(x->shape + *outer, shape->ints, (size_t)shape->count * sizeof *shape->ints)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x (%s) does not end in the shape to normalise, %s; name its last dimensions",
                      gb_shape_text(x->ndim, x->shape, has, sizeof has),
                      shape->count > 0 ? gb_shape_text(shape->count, shape->ints, wants, sizeof wants) : "which is empty");
}

static gb_status check_eps(gb_call *call, double eps) {
  return eps >= 0 ? GB_OK : gb_call_fail(call, GB_EINVAL, "eps is %g, it must not be negative", eps);
}

/* ====} */

/* {==== layer_norm, rms_norm, add_layer_norm ==== */

/* The dtype of y where it would naturally be x's: under autocast float32 or, as `out` asks, the scope's, rounded to once, at the store. */
static gb_status find_out(gb_call *call, gb_dtype natural, gb_dtype *dtype) {
  bool lower = call->attrs[2].integer == GB_WORD_autocast;
  *dtype = lower && call->result != GB_DTYPE_NONE ? call->context->modes->lower : gb_call_dtype(call, natural);
  return GB_OK;
}

static const char of_last_dims[] = "the dimensions that are normalised";

/* x [..., shape], weight and bias [shape] or absent -> y like x; mean and rstd [...] are kept for backward. */
static gb_status layer_norm_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  const gb_attr *shape = &call->attrs[0];
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, shape, &outer));
  GB_TRY(check_like(call, 1, shape->count, shape->ints, of_last_dims));
  GB_TRY(check_like(call, 2, shape->count, shape->ints, of_last_dims));
  GB_TRY(check_eps(call, call->attrs[1].number));
  GB_TRY(find_out(call, (gb_dtype)x->dtype, &dtype));
  GB_TRY(gb_call_output(call, 0, x->ndim, x->shape, dtype));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, 1, outer, x->shape, statistic_dtype(x)));
  return gb_call_output(call, 2, outer, x->shape, statistic_dtype(x));
}

/* x [..., shape], weight [shape] or absent -> y like x; rstd [...] is kept for backward. */
static gb_status rms_norm_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  const gb_attr *shape = &call->attrs[0];
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, shape, &outer));
  GB_TRY(check_like(call, 1, shape->count, shape->ints, of_last_dims));
  GB_TRY(check_eps(call, call->attrs[1].number));
  GB_TRY(find_out(call, (gb_dtype)x->dtype, &dtype));
  GB_TRY(gb_call_output(call, 0, x->ndim, x->shape, dtype));
  return call->needs_grad ? gb_call_output(call, 1, outer, x->shape, statistic_dtype(x)) : GB_OK;
}

/* x and residual of one shape -> layer_norm of their sum as it was rounded, and the sum, in the dtype both promote to or float32 under autocast. */
static gb_status add_layer_norm_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *residual = call->in[1];
  const gb_attr *shape = &call->attrs[0];
  gb_dtype dtype;
  int outer;
  GB_TRY(check_last_dims(call, shape, &outer));
  GB_TRY(check_like(call, 1, x->ndim, x->shape, "x's shape"));
  GB_TRY(check_like(call, 2, shape->count, shape->ints, of_last_dims));
  GB_TRY(check_like(call, 3, shape->count, shape->ints, of_last_dims));
  GB_TRY(check_eps(call, call->attrs[1].number));
  gb_dtype sum = gb_promote((gb_dtype)x->dtype, (gb_dtype)residual->dtype);
  GB_TRY(find_out(call, sum, &dtype));
  GB_TRY(gb_call_output(call, 0, x->ndim, x->shape, dtype));
  GB_TRY(gb_call_output(call, 1, x->ndim, x->shape, gb_call_dtype(call, sum)));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, 2, outer, x->shape, statistic_dtype(call->out[1])));
  return gb_call_output(call, 3, outer, x->shape, statistic_dtype(call->out[1]));
}

/* The shapes of grad, x, weight and statistics fit each other; the statistics' dims are those of x that are not normalised. */
static gb_status check_backward(gb_call *call, int first_statistic, int *outer) {
  const gb_tensor *x = call->in[1];
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_float(call, 1));
  *outer = call->in[first_statistic]->ndim;
  if (*outer >= x->ndim) return gb_call_fail(call, GB_ESHAPE, "'%s' has as many dimensions as x", call->info->in[first_statistic].name);
  GB_TRY(check_like(call, 0, x->ndim, x->shape, "x's shape"));
  GB_TRY(check_like(call, 2, x->ndim - *outer, x->shape + *outer, of_last_dims));
  for (int i = first_statistic; i < call->n_in; i++) GB_TRY(check_like(call, i, *outer, x->shape, "the other dimensions of x"));
  return GB_OK;
}

/* grad, x, weight, mean, rstd -> dx in x's dtype, dweight if there is a weight, dbias if there was a bias. */
static gb_status layer_norm_backward_check(gb_call *call) {
  const gb_tensor *x = call->in[1];
  int outer;
  GB_TRY(check_backward(call, 3, &outer));
  GB_TRY(gb_call_output(call, 0, x->ndim, x->shape, (gb_dtype)x->dtype));
  if (call->in[2]) GB_TRY(gb_call_output(call, 1, x->ndim - outer, x->shape + outer, statistic_dtype(x)));
  return call->attrs[0].integer ? gb_call_output(call, 2, x->ndim - outer, x->shape + outer, statistic_dtype(x)) : GB_OK;
}

/* grad, x, weight, rstd -> dx in x's dtype, dweight if there is a weight. */
static gb_status rms_norm_backward_check(gb_call *call) {
  const gb_tensor *x = call->in[1];
  int outer;
  GB_TRY(check_backward(call, 3, &outer));
  GB_TRY(gb_call_output(call, 0, x->ndim, x->shape, (gb_dtype)x->dtype));
  return call->in[2] ? gb_call_output(call, 1, x->ndim - outer, x->shape + outer, statistic_dtype(x)) : GB_OK;
}

/* Give each gradient that is needed to its input, and let go of the others. inputs[i]: where made[i] belongs. */
static void hand_out(gb_grad_call *g, gb_tensor **made, const int *inputs, int count) {
  for (int i = 0; i < count; i++) {
    if (made[i] && g->need[inputs[i]]) g->in[inputs[i]] = made[i];
    else gb_tensor_release(made[i]);
  }
}

/* The mean over the last `count` dims, kept as dims of size 1. */
static gb_tensor *mean_of_last(gb_chain *c, gb_tensor *x, int count) {
  gb_attr attrs[3] = { { .given = true, .count = (int8_t)count }, gb_attr_int(true), { 0 } };
  for (int i = 0; i < count; i++) attrs[0].ints[i] = i - count;
  return x ? gb_chain_1(c, GB_OP_mean, x, attrs) : NULL;
}

/* The norm's gradients as ops that have gradients themselves. centre: layer_norm, else rms_norm. The results are owned by the chain. */
typedef struct norm_gradients { gb_tensor *dx, *dnormal, *dy; } norm_gradients;

static norm_gradients compose(gb_chain *c, gb_tensor *grad, gb_tensor *input, gb_tensor *weight, int dims, double eps, bool centre) {
  gb_tensor *x = gb_chain_widen(c, input), *dy = gb_chain_cast(c, grad, (gb_dtype)(x ? x->dtype : input->dtype));
  gb_tensor *centred = centre ? gb_chain_2(c, GB_OP_sub, x, mean_of_last(c, x, dims), NULL) : x;
  gb_tensor *variance = mean_of_last(c, gb_chain_2(c, GB_OP_mul, centred, centred, NULL), dims);
  gb_tensor *rstd = gb_chain_1(c, GB_OP_rsqrt, gb_chain_number(c, GB_OP_add, variance, eps), NULL);
  gb_tensor *normal = gb_chain_2(c, GB_OP_mul, centred, rstd, NULL);
  gb_tensor *dn = weight ? gb_chain_2(c, GB_OP_mul, dy, gb_chain_widen(c, weight), NULL) : dy;
  gb_tensor *along = gb_chain_2(c, GB_OP_mul, normal, mean_of_last(c, gb_chain_2(c, GB_OP_mul, dn, normal, NULL), dims), NULL);
  gb_tensor *across = gb_chain_2(c, GB_OP_sub, dn, along, NULL);
  if (centre) across = gb_chain_2(c, GB_OP_sub, across, mean_of_last(c, dn, dims), NULL);
  return (norm_gradients){ gb_chain_2(c, GB_OP_mul, across, rstd, NULL), gb_chain_2(c, GB_OP_mul, dy, normal, NULL), dy };
}

/* Run compose and take what is needed: x's gradient, weight's, and (layer_norm) bias's. */
static gb_status composed_gradient(gb_grad_call *g, bool centre) {
  gb_chain c;
  gb_chain_begin(&c, g->context);
  gb_tensor *dx = NULL, *sums[2] = { NULL, NULL };
  norm_gradients n = compose(&c, g->out[0], g->saved[0], g->saved[1], g->attrs[0].count, g->attrs[1].number, centre);
  gb_tensor *full[2] = { n.dnormal, n.dy };
  for (int i = 0; i < (centre ? 2 : 1) && c.status == GB_OK; i++)
    if (g->need[1 + i]) c.status = gb_sum_to(g->context, full[i], g->attrs[0].count, g->attrs[0].ints, &sums[i]);
  gb_status status = gb_chain_end(&c, n.dx, &dx);
  if (status == GB_OK) hand_out(g, (gb_tensor *[]){ dx, sums[0], sums[1] }, (int[]){ 0, 1, 2 }, centre ? 3 : 2);
  else for (int i = 0; i < 2; i++) gb_drop(&sums[i]);
  return status;
}

static gb_status layer_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_gradient(g, true);
  gb_tensor *in[] = { g->out[0], g->saved[0], g->saved[1], GB_SAVED_OUT(g, 1), GB_SAVED_OUT(g, 2) }, *made[3] = { NULL };
  gb_attr has_bias = gb_attr_int(g->need[2]);
  GB_TRY(gb_apply(g->context, GB_OP_layer_norm_backward, in, 5, &has_bias, made));
  hand_out(g, made, (int[]){ 0, 1, 2 }, 3);
  return GB_OK;
}

static gb_status rms_norm_gradient(gb_grad_call *g) {
  if (g->create_graph) return composed_gradient(g, false);
  gb_tensor *in[] = { g->out[0], g->saved[0], g->saved[1], GB_SAVED_OUT(g, 1) }, *made[2] = { NULL };
  GB_TRY(gb_apply(g->context, GB_OP_rms_norm_backward, in, 4, NULL, made));
  hand_out(g, made, (int[]){ 0, 1 }, 2);
  return GB_OK;
}

/* x and residual have one gradient: that of the sum by itself and that through the norm. */
static gb_status add_layer_norm_gradient(gb_grad_call *g) {
  gb_tensor *made[3] = { NULL }, *dy = g->out[0], *dsum = g->out[1], *total = NULL;
  gb_tensor *in[] = { dy, GB_SAVED_OUT(g, 1), g->saved[2], GB_SAVED_OUT(g, 2), GB_SAVED_OUT(g, 3) };
  gb_attr has_bias = gb_attr_int(g->need[3]);
  if (!dy) GB_TRY(gb_op_zeros_like(g->context, GB_SAVED_OUT(g, 1), &in[0]));
  gb_status status = gb_apply(g->context, GB_OP_layer_norm_backward, in, 5, &has_bias, made);
  if (!dy) gb_drop(&in[0]);
  GB_TRY(status);
  if (dsum) {
    status = gb_op_2(g->context, GB_OP_add, made[0], dsum, NULL, &total);
    gb_drop(&made[0]);
    made[0] = total;
  }
  if (status != GB_OK) {
    for (int i = 1; i < 3; i++) gb_drop(&made[i]);
    return status;
  }
  gb_tensor_retain(made[0]);
  hand_out(g, (gb_tensor *[]){ made[0], made[0], made[1], made[2] }, (int[]){ 0, 1, 2, 3 }, 4);
  return GB_OK;
}

/* ====} */

/* {==== batch_norm ==== */

static const char of_channels[] = "the channels, dimension 2 of x";

/* A tensor of running statistics: a vector by channel that asks for no gradient, since it is written here. */
static gb_status check_running(gb_call *call, int input) {
  const gb_tensor *t = call->in[input];
  if (!t) return GB_OK;
  GB_TRY(check_like(call, input, 1, call->in[0]->shape + 1, of_channels));
  if (!gb_tensor_in_graph(t)) return GB_OK;
  return gb_call_fail(call, GB_EAUTOGRAD, "'%s' requires gradients; running statistics are buffers, detach it", call->info->in[input].name);
}

/* The statistics come from the batch, which must have two values per channel, or from the running ones, which must exist. */
static gb_status check_source(gb_call *call) {
  const gb_tensor *x = call->in[0];
  char text[96];
  bool training = call->attrs[0].integer;
  if (!training && (!call->in[1] || !call->in[2]))
    return gb_call_fail(call, GB_EINVAL, "running_mean and running_var are needed when not training; pass them, or training = true");
  if (!training || x->shape[1] == 0 || x->numel / x->shape[1] != 1) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "training needs more than one value per channel, x is %s; use a larger batch, or eval()",
                      gb_shape_text(x->ndim, x->shape, text, sizeof text));
}

/* x [n, c, ...], four vectors [c] or absent -> y like x, in x's layout; mean and rstd [c] are kept for backward. */
static gb_status batch_norm_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 2, GB_MAX_NDIM));
  GB_TRY(check_running(call, 1));
  GB_TRY(check_running(call, 2));
  GB_TRY(check_like(call, 3, 1, x->shape + 1, of_channels));
  GB_TRY(check_like(call, 4, 1, x->shape + 1, of_channels));
  GB_TRY(check_eps(call, call->attrs[2].number));
  GB_TRY(check_source(call));
  GB_TRY(gb_call_output_like(call, 0, x, gb_call_dtype(call, (gb_dtype)x->dtype)));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, 1, 1, x->shape + 1, statistic_dtype(x)));
  return gb_call_output(call, 2, 1, x->shape + 1, statistic_dtype(x));
}

/* grad, x, weight, mean, rstd -> dx like x, dweight if there is a weight, dbias. */
static gb_status batch_norm_backward_check(gb_call *call) {
  const gb_tensor *x = call->in[1];
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_float(call, 1));
  GB_TRY(gb_require_ndim(call, 1, 2, GB_MAX_NDIM));
  GB_TRY(check_like(call, 0, x->ndim, x->shape, "x's shape"));
  for (int i = 2; i < 5; i++) GB_TRY(check_like(call, i, 1, x->shape + 1, of_channels));
  GB_TRY(gb_call_output_like(call, 0, x, (gb_dtype)x->dtype));
  if (call->in[2]) GB_TRY(gb_call_output(call, 1, 1, x->shape + 1, statistic_dtype(x)));
  return gb_call_output(call, 2, 1, x->shape + 1, statistic_dtype(x));
}

static gb_status batch_norm_gradient(gb_grad_call *g) {
  gb_tensor *in[] = { g->out[0], g->saved[0], g->saved[3], GB_SAVED_OUT(g, 1), GB_SAVED_OUT(g, 2) }, *made[3] = { NULL };
  GB_TRY(gb_apply(g->context, GB_OP_batch_norm_backward, in, 5, g->attrs, made));
  hand_out(g, made, (int[]){ 0, 3, 4 }, 3);
  return GB_OK;
}

/* ====} */

const gb_op_impl gb_family_norm[] = {
  { .op = GB_OP_layer_norm, .check = layer_norm_check, .gradient = layer_norm_gradient, .save_in = 3, .save_out = 6 },
  { .op = GB_OP_layer_norm_backward, .check = layer_norm_backward_check },
  { .op = GB_OP_rms_norm, .check = rms_norm_check, .gradient = rms_norm_gradient, .save_in = 3, .save_out = 2 },
  { .op = GB_OP_rms_norm_backward, .check = rms_norm_backward_check },
  { .op = GB_OP_add_layer_norm, .check = add_layer_norm_check, .gradient = add_layer_norm_gradient, .save_in = 4, .save_out = 14 },
  { .op = GB_OP_batch_norm, .check = batch_norm_check, .gradient = batch_norm_gradient, .save_in = 9, .save_out = 6 },
  { .op = GB_OP_batch_norm_backward, .check = batch_norm_backward_check },
  { .op = GB_OP_COUNT },
};
