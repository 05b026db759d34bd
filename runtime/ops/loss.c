/* ops/loss.c - losses: checks, gradients, and those that are made of other ops. The kernels are in cpu/loss.c.
 *
 * cross_entropy and nll_loss keep what their gradient needs (log-sums, the total weight) in float32. Their first gradient is a fused row;
 * with create_graph it is built again of softmax, so that it can be differentiated. linear_cross_entropy computes its gradients in
 * forward, for the sum of the losses, and backward only scales them: the logits never exist whole, and a 16-bit gradient is not rounded
 * while it is still divided by the number of targets. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

/* {==== checks ==== */

static bool is_reduction(const gb_attr *reduction, int word) { return reduction->integer == word; }

static bool same_sizes(const gb_tensor *a, const gb_tensor *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim);
}

/* The dim of the classes in x [classes], [n, classes] or [n, classes, ...]. */
static int class_dim(int ndim) { return ndim > 1 ? 1 : 0; }

/* The shape of x without its classes: one loss per target. */
static int target_shape(const gb_tensor *x, int64_t *shape) {
  int ndim = 0;
  for (int i = 0; i < x->ndim; i++)
    if (i != class_dim(x->ndim)) shape[ndim++] = x->shape[i];
  return ndim;
}

/* Class indices, one for each row of x. */
static gb_status check_indices(gb_call *call, const gb_tensor *x, const gb_tensor *target) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = target_shape(x, shape);
  char a[96], b[96], c[96];
  if (target->ndim == ndim && !memcmp(target->shape, shape, sizeof *shape * (size_t)ndim)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "class indices for x of shape %s have shape %s, target has %s; the classes are dimension %d of x",
                      gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(ndim, shape, b, sizeof b),
                      gb_shape_text(target->ndim, target->shape, c, sizeof c), class_dim(x->ndim) + 1);
}

static bool is_integer(const gb_tensor *t) { return gb_dtype_category((gb_dtype)t->dtype) == GB_CATEGORY_INT; }

static gb_status check_weight(gb_call *call, const gb_tensor *x, int input) {
  const gb_tensor *weight = call->in[input];
  int64_t classes = x->shape[class_dim(x->ndim)];
  char text[96];
  if (!weight) return GB_OK;
  GB_TRY(gb_require_float(call, input));
  if (weight->ndim == 1 && weight->shape[0] == classes) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "weight needs one element per class, %" PRId64 " in all; it has shape %s", classes,
                      gb_shape_text(weight->ndim, weight->shape, text, sizeof text));
}

/* The loss: one per target, or one in all. */
static gb_status loss_output(gb_call *call, const gb_tensor *x, const gb_attr *reduction) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = is_reduction(reduction, GB_WORD_none) ? target_shape(x, shape) : 0;
  return gb_call_output(call, 0, ndim, shape, gb_call_dtype(call, (gb_dtype)x->dtype));
}

/* What sums are kept in. */
static gb_dtype sum_dtype(const gb_tensor *x) { return x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

static gb_status cross_entropy_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *target = call->in[1];
  double smoothing = call->attrs[2].number;
  char a[96], b[96];
  int64_t shape[GB_MAX_NDIM];
  if (!(smoothing >= 0 && smoothing <= 1)) return gb_call_fail(call, GB_EINVAL, "label_smoothing is %g; it must lie in 0 .. 1", smoothing);
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  if (is_integer(target)) GB_TRY(check_indices(call, x, target));
  else if (!gb_dtype_is_float((gb_dtype)target->dtype))
    return gb_call_fail(call, GB_EDTYPE, "target is %s; give class indices (x:long()) or probabilities (x:float())",
                        gb_dtype_name((gb_dtype)target->dtype));
  else if (!same_sizes(x, target))
    return gb_call_fail(call, GB_ESHAPE,
                        "a floating target holds probabilities and needs the shape of x, %s; it has %s (class indices are integers: x:long())",
                        gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(target->ndim, target->shape, b, sizeof b));
  GB_TRY(check_weight(call, x, 2));
  GB_TRY(loss_output(call, x, &call->attrs[1]));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, 1, target_shape(x, shape), shape, sum_dtype(x)));
  return gb_call_output(call, 2, 0, NULL, sum_dtype(x));
}

/* Inputs come from cross_entropy itself. */
static gb_status cross_entropy_backward_check(gb_call *call) {
  const gb_tensor *x = call->in[1];
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

static gb_status nll_loss_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  GB_TRY(gb_require_integer(call, 1));
  GB_TRY(check_indices(call, x, call->in[1]));
  GB_TRY(check_weight(call, x, 2));
  GB_TRY(loss_output(call, x, &call->attrs[1]));
  return call->needs_grad ? gb_call_output(call, 1, 0, NULL, sum_dtype(x)) : GB_OK;
}

static gb_status nll_loss_backward_check(gb_call *call) {
  return gb_call_output(call, 0, call->attrs[0].count, call->attrs[0].ints, (gb_dtype)call->in[0]->dtype);
}

/* The shapes of x [n, features], weight [classes, features], target [n], bias [classes]. */
static gb_status check_linear_shapes(gb_call *call) {
  const gb_tensor *x = call->in[0], *weight = call->in[1], *target = call->in[2], *bias = call->in[3];
  char a[96], b[96];
  if (x->shape[1] != weight->shape[1])
    return gb_call_fail(call, GB_ESHAPE, "x has %" PRId64 " features, weight expects %" PRId64 " (x %s, weight %s)", x->shape[1], weight->shape[1],
                        gb_shape_text(2, x->shape, a, sizeof a), gb_shape_text(2, weight->shape, b, sizeof b));
  if (target->shape[0] != x->shape[0])
    return gb_call_fail(call, GB_ESHAPE, "x has %" PRId64 " rows, target %" PRId64 " elements; give one class index per row", x->shape[0],
                        target->shape[0]);
  if (bias && bias->shape[0] != weight->shape[0])
    return gb_call_fail(call, GB_ESHAPE, "bias has %" PRId64 " elements, weight %" PRId64 " rows; there is one bias per class", bias->shape[0],
                        weight->shape[0]);
  return GB_OK;
}

static gb_status linear_cross_entropy_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *weight = call->in[1], *bias = call->in[3];
  if (is_reduction(&call->attrs[1], GB_WORD_none))
    return gb_call_fail(call, GB_EINVAL, "reduction is 'mean' or 'sum'; for one loss per row use cross_entropy(linear(x, weight, bias), target)");
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_float(call, 1));
  GB_TRY(gb_require_integer(call, 2));
  GB_TRY(gb_require_ndim(call, 0, 2, 2));
  GB_TRY(gb_require_ndim(call, 1, 2, 2));
  GB_TRY(gb_require_ndim(call, 2, 1, 1));
  if (bias) GB_TRY(gb_require_float(call, 3));
  if (bias) GB_TRY(gb_require_ndim(call, 3, 1, 1));
  if (x->dtype != weight->dtype)
    return gb_call_fail(call, GB_EDTYPE, "x is %s and weight %s; convert one, or open an autocast scope", gb_dtype_name((gb_dtype)x->dtype),
                        gb_dtype_name((gb_dtype)weight->dtype));
  GB_TRY(check_linear_shapes(call));
  GB_TRY(gb_call_output(call, 0, 0, NULL, sum_dtype(x)));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, 1, 2, x->shape, (gb_dtype)x->dtype));
  GB_TRY(gb_call_output(call, 2, 2, weight->shape, sum_dtype(x)));
  return bias ? gb_call_output(call, 3, 1, bias->shape, sum_dtype(x)) : GB_OK;
}

/* ====} */

/* {==== gradients ==== */

/* The gradient of the loss, made to broadcast against x: one per target, or one in all. */
static gb_tensor *per_class(gb_chain *chain, gb_tensor *g, const gb_edge *x) {
  gb_attr dim = gb_attr_int(class_dim(x->ndim));
  return g->ndim + 1 == x->ndim && g->ndim > 0 ? gb_chain_1(chain, GB_OP_unsqueeze, g, &dim) : g;
}

/* ... and divided by the number of targets where probabilities are averaged. */
static gb_tensor *per_probability(gb_chain *chain, const gb_grad_call *grad, gb_tensor *g) {
  const gb_edge *x = &grad->node->edges[0];
  double targets = 1;
  for (int i = 0; i < x->ndim; i++)
    if (i != class_dim(x->ndim)) targets *= (double)x->shape[i];
  gb_tensor *spread = per_class(chain, g, x);
  return is_reduction(&grad->attrs[1], GB_WORD_mean) ? gb_chain_number(chain, GB_OP_div, spread, targets) : spread;
}

/* t * weight, the weight along the classes; t itself where there is none. */
static gb_tensor *weighted(gb_chain *chain, gb_tensor *t, gb_tensor *weight, const gb_edge *x) {
  int64_t shape[GB_MAX_NDIM];
  if (!weight) return t;
  for (int i = 0; i < x->ndim; i++) shape[i] = i == class_dim(x->ndim) ? x->shape[i] : 1;
  gb_attr attr = gb_attr_ints(x->ndim, shape);
  return gb_chain_2(chain, GB_OP_mul, t, gb_chain_1(chain, GB_OP_view, weight, &attr), NULL);
}

/* The mass that each class of each target has in the loss, from probabilities: (t * (1 - smoothing) + smoothing / classes) * weight. */
static gb_tensor *mass_of_probabilities(gb_chain *chain, const gb_grad_call *grad) {
  const gb_edge *x = &grad->node->edges[0];
  double smoothing = grad->attrs[2].number;
  gb_tensor *t = gb_chain_widen(chain, grad->saved[1]);
  if (smoothing > 0) {
    t = gb_chain_number(chain, GB_OP_mul, t, 1 - smoothing);
    t = gb_chain_number(chain, GB_OP_add, t, smoothing / (double)x->shape[class_dim(x->ndim)]);
  }
  return weighted(chain, t, grad->saved[2], x);
}

/* The same from class indices, as the fused gradient gives it when every softmax is 0 (an infinite log-sum) and the loss' gradient is -1. */
static gb_tensor *mass_of_indices(gb_chain *chain, const gb_grad_call *grad, gb_tensor *x) {
  gb_tensor *lse = GB_SAVED_OUT(grad, 1), *total = GB_SAVED_OUT(grad, 2), *g = grad->out[0];
  gb_dtype dtype = (gb_dtype)lse->dtype;
  gb_device device = lse->storage->device;
  gb_tensor *minus = gb_chain_full(chain, dtype, g->ndim, g->shape, device, -1);
  gb_tensor *infinite = gb_chain_full(chain, dtype, lse->ndim, lse->shape, device, (double)INFINITY);
  gb_tensor *in[] = { minus, x, grad->saved[1], grad->saved[2], infinite, total };
  return gb_chain_n(chain, GB_OP_cross_entropy_backward, in, 6, grad->attrs);
}

/* d loss / dx = g * (sum(mass) * softmax(x) - mass), of ops that can be differentiated again. */
static gb_status cross_entropy_second(gb_grad_call *grad) {
  gb_chain chain;
  const gb_edge *edge = &grad->node->edges[0];
  int64_t dim = class_dim(edge->ndim);
  gb_chain_begin(&chain, grad->context);
  bool indices = is_integer(grad->saved[1]);
  gb_tensor *x = gb_chain_widen(&chain, grad->saved[0]);
  gb_tensor *g = indices ? per_class(&chain, grad->out[0], edge) : per_probability(&chain, grad, grad->out[0]);
  gb_tensor *mass = indices ? mass_of_indices(&chain, grad, x) : mass_of_probabilities(&chain, grad);
  gb_attr along[] = { gb_attr_int(dim), { .given = false } }, over[] = { gb_attr_ints(1, &dim), gb_attr_int(1), { .given = false } };
  gb_tensor *shares = gb_chain_2(&chain, GB_OP_mul, gb_chain_1(&chain, GB_OP_softmax, x, along), gb_chain_1(&chain, GB_OP_sum, mass, over), NULL);
  return gb_chain_end(&chain, gb_chain_2(&chain, GB_OP_mul, gb_chain_2(&chain, GB_OP_sub, shares, mass, NULL), g, NULL), &grad->in[0]);
}

static gb_status cross_entropy_first(gb_grad_call *grad) {
  gb_tensor *in[] = { grad->out[0], grad->saved[0], grad->saved[1], grad->saved[2], GB_SAVED_OUT(grad, 1), GB_SAVED_OUT(grad, 2) };
  return gb_apply(grad->context, GB_OP_cross_entropy_backward, in, 6, grad->attrs, grad->in);
}

/* d loss / dtarget = -g * (1 - smoothing) * weight * log_softmax(x), for probabilities. */
static gb_status probability_gradient(gb_grad_call *grad) {
  gb_chain chain;
  const gb_edge *edge = &grad->node->edges[0];
  gb_attr along[] = { gb_attr_int(class_dim(edge->ndim)), { .given = false } };
  gb_chain_begin(&chain, grad->context);
  gb_tensor *logs = gb_chain_1(&chain, GB_OP_log_softmax, gb_chain_widen(&chain, grad->saved[0]), along);
  gb_tensor *scaled = gb_chain_number(&chain, GB_OP_mul, logs, grad->attrs[2].number - 1);
  gb_tensor *g = per_probability(&chain, grad, grad->out[0]);
  return gb_chain_end(&chain, gb_chain_2(&chain, GB_OP_mul, weighted(&chain, scaled, grad->saved[2], edge), g, NULL), &grad->in[1]);
}

static gb_status no_weight_gradient(gb_grad_call *grad) {
  if (!grad->need[2]) return GB_OK;
  return gb_fail(grad->context, GB_EAUTOGRAD, "%s has no gradient with respect to its class weights; detach them", gb_op_get(grad->context, grad->node->op)->name);
}

static gb_status cross_entropy_gradient(gb_grad_call *grad) {
  GB_TRY(no_weight_gradient(grad));
  if (grad->need[0]) GB_TRY(grad->create_graph ? cross_entropy_second(grad) : cross_entropy_first(grad));
  return grad->need[1] ? probability_gradient(grad) : GB_OK;
}

/* nll_loss is linear in x: its gradient is g times a constant, which the fused row gives for g = 1. */
static gb_status nll_loss_gradient(gb_grad_call *grad) {
  const gb_edge *x = &grad->node->edges[0];
  gb_tensor *g = grad->out[0], *total = GB_SAVED_OUT(grad, 1);
  gb_attr attrs[] = { gb_attr_ints(x->ndim, x->shape), grad->attrs[0], grad->attrs[1] };
  gb_chain chain;
  GB_TRY(no_weight_gradient(grad));
  gb_chain_begin(&chain, grad->context);
  gb_tensor *from = grad->create_graph ? gb_chain_full(&chain, (gb_dtype)total->dtype, g->ndim, g->shape, g->storage->device, 1) : g;
  gb_tensor *dx = gb_chain_n(&chain, GB_OP_nll_loss_backward, (gb_tensor *[]){ from, grad->saved[1], grad->saved[2], total }, 4, attrs);
  if (grad->create_graph) dx = gb_chain_2(&chain, GB_OP_mul, dx, per_class(&chain, g, x), NULL);
  return gb_chain_end(&chain, dx, &grad->in[0]);
}

/* The gradients of the summed losses are there: multiply by g, divided by the number of targets for a mean. Where all targets were ignored
 * the gradients are 0, so dividing by 1 keeps them so. The factor is a vector of one element: it keeps its float32 next to 16-bit gradients. */
static gb_status linear_cross_entropy_gradient(gb_grad_call *grad) {
  static const int inputs[] = { 0, 1, 3 };
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_attr front = gb_attr_int(0);
  gb_tensor *g = gb_chain_1(&chain, GB_OP_unsqueeze, grad->out[0], &front);
  if (is_reduction(&grad->attrs[1], GB_WORD_mean)) {
    gb_attr over[] = { { .given = false }, gb_attr_int(0), { .given = false } };
    gb_tensor *counts = gb_chain_number(&chain, GB_OP_ne, grad->saved[2], (double)grad->attrs[0].integer);
    gb_tensor *count = gb_chain_1(&chain, GB_OP_sum, counts, over);
    g = gb_chain_2(&chain, GB_OP_div, g, gb_chain_number(&chain, GB_OP_maximum, count, 1), NULL);
  }
  for (int i = 0; i < 3; i++) {
    if (!grad->need[inputs[i]]) continue;
    gb_tensor *scaled = gb_chain_2(&chain, GB_OP_mul, GB_SAVED_OUT(grad, i + 1), g, NULL);
    if (scaled) gb_tensor_retain(grad->in[inputs[i]] = scaled);
  }
  gb_tensor *done;
  GB_TRY(gb_chain_end(&chain, g, &done));
  gb_tensor_release(done);
  return GB_OK;
}

/* ====} */

/* {==== losses made of other ops ==== */

static gb_tensor *minus(gb_chain *chain, gb_tensor *a, gb_tensor *b) { return gb_chain_2(chain, GB_OP_sub, a, b, NULL); }
static gb_tensor *times(gb_chain *chain, gb_tensor *a, gb_tensor *b) { return gb_chain_2(chain, GB_OP_mul, a, b, NULL); }
static gb_tensor *scaled_by(gb_chain *chain, gb_tensor *x, double a) { return gb_chain_number(chain, GB_OP_mul, x, a); }
static gb_tensor *plus(gb_chain *chain, gb_tensor *x, double a) { return gb_chain_number(chain, GB_OP_add, x, a); }
static gb_tensor *choose(gb_chain *chain, gb_tensor *mask, gb_tensor *a, gb_tensor *b) { return gb_chain_3(chain, GB_OP_where, mask, a, b, NULL); }

/* Element by element losses ask for equal shapes: broadcasting [n] against [n, 1] would compare every x with every target. */
static gb_status check_pair(gb_call *call) {
  const gb_tensor *x = call->in[0], *target = call->in[1];
  char a[96], b[96];
  GB_TRY(gb_require_float(call, 0));
  if (same_sizes(x, target)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x has shape %s and target %s; make them equal with target:view(...) or target:expand_as(x)",
                      gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(target->ndim, target->shape, b, sizeof b));
}

/* The weight of binary_cross_entropy and the like broadcasts to the losses, not the losses to it. */
static gb_status check_loss_weight(gb_call *call) {
  const gb_tensor *x = call->in[0], *weight = call->in[2];
  char a[96], b[96];
  bool fits = !weight || weight->ndim <= x->ndim;
  for (int i = 1; weight && fits && i <= weight->ndim; i++) {
    int64_t size = weight->shape[weight->ndim - i];
    fits = size == 1 || size == x->shape[x->ndim - i];
  }
  if (fits) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'weight' has shape %s, which does not broadcast to the shape of x, %s",
                      gb_shape_text(weight->ndim, weight->shape, a, sizeof a), gb_shape_text(x->ndim, x->shape, b, sizeof b));
}

/* Input x (0) or the target (1) of a loss in the wider dtype of both, so that no logarithm is taken in the narrower one. A bool or integer target has
 * the dtype of x, or numbers would make it float32. */
static gb_tensor *operand_of(gb_chain *chain, const gb_call *call, int input) {
  gb_dtype x = (gb_dtype)call->in[0]->dtype, target = (gb_dtype)call->in[1]->dtype;
  return gb_chain_cast(chain, call->in[input], gb_dtype_is_float(target) ? gb_promote(x, target) : x);
}

/* Reduce the losses, let go of the steps, and give the result to the call. */
static gb_status reduced(gb_call *call, gb_chain *chain, gb_tensor *losses, const gb_attr *reduction) {
  gb_attr all[] = { { .given = false }, gb_attr_int(0), { .given = false } };
  if (is_reduction(reduction, GB_WORD_mean)) losses = gb_chain_1(chain, GB_OP_mean, losses, all);
  if (is_reduction(reduction, GB_WORD_sum) || is_reduction(reduction, GB_WORD_batchmean)) losses = gb_chain_1(chain, GB_OP_sum, losses, all);
  if (is_reduction(reduction, GB_WORD_batchmean)) losses = gb_chain_number(chain, GB_OP_div, losses, call->in[0]->ndim ? (double)call->in[0]->shape[0] : 1);
  return gb_chain_end(chain, losses, &call->out[0]);
}

static gb_status mse_loss(gb_call *call) {
  gb_chain chain;
  GB_TRY(check_pair(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *losses = gb_chain_1(&chain, GB_OP_square, minus(&chain, call->in[0], call->in[1]), NULL);
  return reduced(call, &chain, losses, &call->attrs[0]);
}

static gb_status l1_loss(gb_call *call) {
  gb_chain chain;
  GB_TRY(check_pair(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *losses = gb_chain_1(&chain, GB_OP_abs, minus(&chain, call->in[0], call->in[1]), NULL);
  return reduced(call, &chain, losses, &call->attrs[0]);
}

static gb_status smooth_l1_loss(gb_call *call) {
  gb_chain chain;
  double beta = call->attrs[1].number;
  GB_TRY(check_pair(call));
  if (!(beta >= 0)) return gb_call_fail(call, GB_EINVAL, "beta is %g; it must not be negative", beta);
  gb_chain_begin(&chain, call->context);
  gb_tensor *d = minus(&chain, call->in[0], call->in[1]), *losses = gb_chain_1(&chain, GB_OP_abs, d, NULL);
  if (beta > 0) {
    gb_tensor *far = gb_chain_number(&chain, GB_OP_ge, losses, beta);
    gb_attr zero[] = { gb_attr_num(0) }; /* replaces large values: the slope of their square may be infinite, and 0
                                            times infinity is NaN */
    gb_tensor *near = gb_chain_2(&chain, GB_OP_masked_fill, d, far, zero);
    gb_tensor *square = scaled_by(&chain, gb_chain_1(&chain, GB_OP_square, near, NULL), 0.5 / beta);
    losses = choose(&chain, far, plus(&chain, losses, -0.5 * beta), square);
  }
  return reduced(call, &chain, losses, &call->attrs[0]);
}

/* (1 - y) x + (1 + (pos_weight - 1) y) log(1 + exp(-x)): the last factor is softplus(-x), which overflows nowhere. */
static gb_status binary_cross_entropy_with_logits(gb_call *call) {
  gb_chain chain;
  gb_tensor *weight = call->in[2];
  const gb_attr *positive = &call->attrs[0], *reduction = &call->attrs[1];
  gb_attr softplus[] = { gb_attr_num(1), gb_attr_num(40) }; /* beyond 40 the difference is lost in float64 too */
  GB_TRY(check_pair(call));
  GB_TRY(check_loss_weight(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, 0);
  gb_tensor *y = operand_of(&chain, call, 1), *tail = gb_chain_1(&chain, GB_OP_softplus, gb_chain_1(&chain, GB_OP_neg, x, NULL), softplus);
  if (positive->given) tail = times(&chain, plus(&chain, scaled_by(&chain, y, positive->number - 1), 1), tail);
  gb_tensor *losses = gb_chain_2(&chain, GB_OP_add, times(&chain, plus(&chain, scaled_by(&chain, y, -1), 1), x), tail, NULL);
  if (weight) losses = times(&chain, losses, weight);
  return reduced(call, &chain, losses, reduction);
}

/* max(log p, -100) by an op that is -infinity at p = 0, where x is `pole`. Its slope is 1 / p, but at most 1e12, as PyTorch's: nearer to the pole
 * the value is taken without its history, and the slope comes from a term that is 0. */
static gb_tensor *limited_log(gb_chain *chain, gb_op log, gb_tensor *x, double pole) {
  const double nearest = 1e-12;
  gb_attr elsewhere = gb_attr_num(pole + 1), limits[] = { gb_attr_num(-100), { .given = false } };
  gb_tensor *p = plus(chain, x, -pole), *near = gb_chain_number(chain, GB_OP_le, gb_chain_1(chain, GB_OP_abs, p, NULL), nearest);
  gb_tensor *logs = gb_chain_1(chain, log, gb_chain_2(chain, GB_OP_masked_fill, x, near, &elsewhere), NULL);
  gb_tensor *value = gb_chain_1(chain, GB_OP_clamp, gb_chain_1(chain, log, gb_chain_detach(chain, x), NULL), limits);
  gb_tensor *slope = scaled_by(chain, minus(chain, p, gb_chain_detach(chain, p)), 1 / nearest);
  return gb_chain_3(chain, GB_OP_where, near, gb_chain_2(chain, GB_OP_add, value, slope, NULL), logs, NULL);
}

/* -(y log x + (1 - y) log(1 - x)) */
static gb_status binary_cross_entropy(gb_call *call) {
  gb_chain chain;
  gb_tensor *weight = call->in[2];
  GB_TRY(check_pair(call));
  GB_TRY(check_loss_weight(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, 0);
  gb_tensor *y = operand_of(&chain, call, 1), *yes = limited_log(&chain, GB_OP_log, x, 0);
  gb_tensor *no = limited_log(&chain, GB_OP_log1p, gb_chain_1(&chain, GB_OP_neg, x, NULL), -1);
  gb_tensor *losses = minus(&chain, times(&chain, plus(&chain, y, -1), no), times(&chain, y, yes));
  if (weight) losses = times(&chain, losses, weight);
  return reduced(call, &chain, losses, &call->attrs[0]);
}

/* target * (log target - x), which is 0 where target is 0. */
static gb_status kl_div(gb_call *call) {
  gb_chain chain;
  gb_tensor *losses;
  gb_attr one = gb_attr_num(1);
  GB_TRY(check_pair(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, 0);
  gb_tensor *target = operand_of(&chain, call, 1);
  if (call->attrs[1].integer) losses = times(&chain, gb_chain_1(&chain, GB_OP_exp, target, NULL), minus(&chain, target, x));
  else {
    gb_tensor *zero = gb_chain_number(&chain, GB_OP_eq, target, 0);
    gb_tensor *logs = gb_chain_1(&chain, GB_OP_log, gb_chain_2(&chain, GB_OP_masked_fill, target, zero, &one), NULL);
    losses = times(&chain, target, minus(&chain, logs, x));
  }
  return reduced(call, &chain, losses, &call->attrs[0]);
}

/* ====} */

const gb_op_impl gb_family_loss[] = {
  { .op = GB_OP_cross_entropy, .check = cross_entropy_check, .gradient = cross_entropy_gradient, .save_in = 7, .save_out = 6 },
  { .op = GB_OP_cross_entropy_backward, .check = cross_entropy_backward_check },
  { .op = GB_OP_linear_cross_entropy, .check = linear_cross_entropy_check, .gradient = linear_cross_entropy_gradient, .save_in = 4, .save_out = 14 },
  { .op = GB_OP_nll_loss, .check = nll_loss_check, .gradient = nll_loss_gradient, .save_in = 6, .save_out = 2 },
  { .op = GB_OP_nll_loss_backward, .check = nll_loss_backward_check },
  { .op = GB_OP_mse_loss, .compose = mse_loss },
  { .op = GB_OP_l1_loss, .compose = l1_loss },
  { .op = GB_OP_smooth_l1_loss, .compose = smooth_l1_loss },
  { .op = GB_OP_binary_cross_entropy_with_logits, .compose = binary_cross_entropy_with_logits },
  { .op = GB_OP_binary_cross_entropy, .compose = binary_cross_entropy },
  { .op = GB_OP_kl_div, .compose = kl_div },
  { .op = GB_OP_COUNT }
};
