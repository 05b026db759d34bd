/* ops/loss.c - losses: checks, gradients, and those that are made of other ops. The kernels are in cpu/loss.c.
 *
 * cross_entropy and nll_loss keep what their gradient needs (log-sums, the total weight) in float32. Their first
 * gradient is a fused row; with create_graph it is built again of softmax, so that it can be differentiated.
 * linear_cross_entropy computes its gradients in forward, for the sum of the losses, and backward only scales them: the
 * logits never exist whole, and a 16-bit gradient is not rounded while it is still divided by the number of targets. */
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
static gb_status check_indices(gb_op_call *call, const gb_tensor *x, const gb_tensor *target) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = target_shape(x, shape);
  char a[96], b[96], c[96];
  if (target->ndim == ndim && !memcmp(target->shape, shape, sizeof *shape * (size_t)ndim)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "class indices for x of shape %s have shape %s, target has %s; the classes "
                                       "are dimension %d of x",
                      gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(ndim, shape, b, sizeof b),
                      gb_shape_text(target->ndim, target->shape, c, sizeof c), class_dim(x->ndim) + 1);
}

static bool is_integer(const gb_tensor *t) { return gb_dtype_category((gb_dtype)t->dtype) == GB_CATEGORY_INT; }

static gb_status check_weight(gb_op_call *call, const gb_tensor *x, int input) {
  const gb_tensor *weight = call->in[input];
  int64_t classes = x->shape[class_dim(x->ndim)];
  char text[96];
  if (!weight) return GB_OK;
  GB_TRY(gb_require_float(call, input));
  if (weight->ndim == 1 && weight->shape[0] == classes) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "weight needs one element per class, %" PRId64 " in all; it has shape %s",
                      classes,
                      gb_shape_text(weight->ndim, weight->shape, text, sizeof text));
}

/* The loss: one per target, or one in all. */
static gb_status loss_output(gb_op_call *call, int output, const gb_tensor *x, const gb_attr *reduction) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = is_reduction(reduction, GB_WORD_none) ? target_shape(x, shape) : 0;
  return gb_call_output(call, output, ndim, shape, gb_call_dtype(call, (gb_dtype)x->dtype));
}

/* What sums are kept in. */
static gb_dtype sum_dtype(const gb_tensor *x) { return x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

static gb_status cross_entropy_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cross_entropy)->x, *target = GB_IN(call, cross_entropy)->target;
  char a[96], b[96];
  int64_t shape[GB_MAX_NDIM];
  GB_TRY(gb_require_float(call, GB_IN_AT(cross_entropy, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(cross_entropy, x), 1, GB_MAX_NDIM));
  if (is_integer(target)) GB_TRY(check_indices(call, x, target));
  else if (!gb_dtype_is_float((gb_dtype)target->dtype))
    return gb_call_fail(call, GB_EDTYPE, "target is %s; give class indices (target:long()) or probabilities "
                        "(target:float())", gb_dtype_name((gb_dtype)target->dtype));
  else if (!same_sizes(x, target))
    return gb_call_fail(call, GB_ESHAPE,
                        "a floating target holds probabilities and needs the shape of x, %s; it has %s (class "
                        "indices are integers: target:long())",
                        gb_shape_text(x->ndim, x->shape, a, sizeof a),
                            gb_shape_text(target->ndim, target->shape, b, sizeof b));
  GB_TRY(check_weight(call, x, GB_IN_AT(cross_entropy, weight)));
  GB_TRY(loss_output(call, GB_OUT_AT(cross_entropy, loss), x, &GB_ATTRS(call, cross_entropy)->reduction));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, GB_OUT_AT(cross_entropy, lse), target_shape(x, shape), shape, sum_dtype(x)));
  return gb_call_output(call, GB_OUT_AT(cross_entropy, total), 0, NULL, sum_dtype(x));
}

/* Inputs come from cross_entropy itself. */
static gb_status cross_entropy_backward_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cross_entropy_backward)->x;
  return gb_call_output_like(call, GB_OUT_AT(cross_entropy_backward, dx), x, (gb_dtype)x->dtype);
}

static gb_status nll_loss_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, nll_loss)->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(nll_loss, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(nll_loss, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_require_integer(call, GB_IN_AT(nll_loss, target)));
  GB_TRY(check_indices(call, x, GB_IN(call, nll_loss)->target));
  GB_TRY(check_weight(call, x, GB_IN_AT(nll_loss, weight)));
  GB_TRY(loss_output(call, GB_OUT_AT(nll_loss, loss), x, &GB_ATTRS(call, nll_loss)->reduction));
  return call->needs_grad ? gb_call_output(call, GB_OUT_AT(nll_loss, total), 0, NULL, sum_dtype(x)) : GB_OK;
}

static gb_status nll_loss_backward_check(gb_op_call *call) {
  const gb_attr *shape = &GB_ATTRS(call, nll_loss_backward)->shape;
  gb_dtype dtype = (gb_dtype)GB_IN(call, nll_loss_backward)->grad->dtype;
  return gb_call_output(call, GB_OUT_AT(nll_loss_backward, dx), shape->count, shape->ints, dtype);
}

/* The shapes of x [n, features], weight [classes, features], target [n], bias [classes]. */
static gb_status check_linear_shapes(gb_op_call *call) {
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  const gb_tensor *x = in->x, *weight = in->weight, *target = in->target, *bias = in->bias;
  char a[96], b[96];
  if (x->shape[1] != weight->shape[1])
    return gb_call_fail(call, GB_ESHAPE, "x has %" PRId64 " features, weight expects %" PRId64 " (x %s, weight %s)",
                        x->shape[1], weight->shape[1],
                        gb_shape_text(2, x->shape, a, sizeof a), gb_shape_text(2, weight->shape, b, sizeof b));
  if (target->shape[0] != x->shape[0])
    return gb_call_fail(call, GB_ESHAPE, "x has %" PRId64 " rows, target %" PRId64 " elements; give one class index "
                                                                                   "per row", x->shape[0],
                        target->shape[0]);
  if (bias && bias->shape[0] != weight->shape[0])
    return gb_call_fail(call, GB_ESHAPE,
                        "bias has %" PRId64 " elements, weight %" PRId64 " rows; there is one bias per class",
        bias->shape[0],
                        weight->shape[0]);
  return GB_OK;
}

static gb_status linear_cross_entropy_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linear_cross_entropy)->x, *weight = GB_IN(call, linear_cross_entropy)->weight;
  const gb_tensor *bias = GB_IN(call, linear_cross_entropy)->bias;
  GB_TRY(gb_require_float(call, GB_IN_AT(linear_cross_entropy, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(linear_cross_entropy, weight)));
  GB_TRY(gb_require_integer(call, GB_IN_AT(linear_cross_entropy, target)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, x), 2, 2));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, weight), 2, 2));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, target), 1, 1));
  if (bias) GB_TRY(gb_require_float(call, GB_IN_AT(linear_cross_entropy, bias)));
  if (bias) GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, bias), 1, 1));
  if (x->dtype != weight->dtype)
    return gb_call_fail(call, GB_EDTYPE, "x is %s and weight %s; convert one, or open an autocast scope",
                        gb_dtype_name((gb_dtype)x->dtype),
                        gb_dtype_name((gb_dtype)weight->dtype));
  GB_TRY(check_linear_shapes(call));
  GB_TRY(gb_call_output(call, GB_OUT_AT(linear_cross_entropy, loss), 0, NULL, sum_dtype(x)));
  if (!call->needs_grad) return GB_OK;
  GB_TRY(gb_call_output(call, GB_OUT_AT(linear_cross_entropy, dx), 2, x->shape, (gb_dtype)x->dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(linear_cross_entropy, dweight), 2, weight->shape, sum_dtype(x)));
  return bias ? gb_call_output(call, GB_OUT_AT(linear_cross_entropy, dbias), 1, bias->shape, sum_dtype(x)) : GB_OK;
}

/* Options that only the two ops know which linear_cross_entropy is in one. */
static bool is_unfused(const gb_op_call *call) {
  const gb_attrs_linear_cross_entropy *attrs = GB_ATTRS(call, linear_cross_entropy);
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  return attrs->label_smoothing.number != 0 || is_reduction(&attrs->reduction, GB_WORD_none) || in->class_weight ||
      gb_dtype_is_float((gb_dtype)in->target->dtype);
}

static gb_status linear_cross_entropy_compose(gb_op_call *call) {
  const gb_attrs_linear_cross_entropy *attrs = GB_ATTRS(call, linear_cross_entropy);
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  gb_chain chain;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, x), 2, 2));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_cross_entropy, weight), 2, 2));
  gb_chain_begin(&chain, call->context);
  gb_tensor *logits = GB_CHAIN(&chain, linear, .x = in->x, .weight = in->weight, .bias = in->bias);
  gb_tensor *loss = GB_CHAIN(&chain, cross_entropy, .x = logits, .target = in->target, .weight = in->class_weight,
                             .ignore_index = attrs->ignore_index, .reduction = attrs->reduction,
                             .label_smoothing = attrs->label_smoothing);
  return gb_chain_end(&chain, loss, &GB_OUT(call, linear_cross_entropy)->loss);
}

/* ====} */

/* {==== gradients ==== */

/* The gradient of the loss, made to broadcast against x: one per target, or one in all. */
static gb_tensor *per_class(gb_chain *chain, gb_tensor *g, const gb_edge *x) {
  bool many = g->ndim + 1 == x->ndim && g->ndim > 0;
  return many ? GB_CHAIN(chain, unsqueeze, .x = g, .dim = gb_attr_int(class_dim(x->ndim))) : g;
}

/* ... and divided by the number of targets where probabilities are averaged. */
static gb_tensor *per_probability(gb_chain *chain, const gb_grad_call *grad) {
  const gb_edge *x = GB_EDGE(grad, cross_entropy, x);
  double targets = 1;
  for (int i = 0; i < x->ndim; i++)
    if (i != class_dim(x->ndim)) targets *= (double)x->shape[i];
  gb_tensor *spread = per_class(chain, GB_GRAD_OUT(grad, cross_entropy)->loss, x);
  bool mean = is_reduction(&GB_ATTRS(grad, cross_entropy)->reduction, GB_WORD_mean);
  return mean ? gb_chain_number(chain, GB_OP_div, spread, targets) : spread;
}

/* t * weight, the weight along the classes; t itself where there is none. */
static gb_tensor *weighted(gb_chain *chain, gb_tensor *t, gb_tensor *weight, const gb_edge *x) {
  int64_t shape[GB_MAX_NDIM];
  if (!weight) return t;
  for (int i = 0; i < x->ndim; i++) shape[i] = i == class_dim(x->ndim) ? x->shape[i] : 1;
  return GB_CHAIN(chain, mul, .x = t, .y = GB_CHAIN(chain, view, .x = weight, .shape = gb_attr_ints(x->ndim, shape)));
}

/* The mass that each class of each target has in the loss, from probabilities:
 * (t * (1 - smoothing) + smoothing / classes) * weight. */
static gb_tensor *mass_of_probabilities(gb_chain *chain, const gb_grad_call *grad) {
  const gb_edge *x = GB_EDGE(grad, cross_entropy, x);
  double smoothing = GB_ATTRS(grad, cross_entropy)->label_smoothing.number;
  gb_tensor *t = gb_chain_widen(chain, GB_SAVED(grad, cross_entropy)->target);
  if (smoothing > 0) {
    t = gb_chain_number(chain, GB_OP_mul, t, 1 - smoothing);
    t = gb_chain_number(chain, GB_OP_add, t, smoothing / (double)x->shape[class_dim(x->ndim)]);
  }
  return weighted(chain, t, GB_SAVED(grad, cross_entropy)->weight, x);
}

/* The fused gradient by x, from the gradient of the loss and the log-sums. */
static gb_tensor *fused_gradient(gb_chain *chain, const gb_grad_call *grad, gb_tensor *g, gb_tensor *x,
                                 gb_tensor *lse) {
  const gb_in_cross_entropy *saved = GB_SAVED(grad, cross_entropy);
  const gb_attrs_cross_entropy *attrs = GB_ATTRS(grad, cross_entropy);
  return GB_CHAIN(chain, cross_entropy_backward, .grad = g, .x = x, .target = saved->target, .weight = saved->weight,
                  .lse = lse, .total = GB_KEPT(grad, cross_entropy)->total, .ignore_index = attrs->ignore_index,
                  .reduction = attrs->reduction, .label_smoothing = attrs->label_smoothing);
}

/* The mass from class indices, as the fused gradient gives it when every softmax is 0 (an infinite log-sum) and the
 * loss' gradient is -1. */
static gb_tensor *mass_of_indices(gb_chain *chain, const gb_grad_call *grad, gb_tensor *x) {
  gb_tensor *lse = GB_KEPT(grad, cross_entropy)->lse, *g = GB_GRAD_OUT(grad, cross_entropy)->loss;
  gb_dtype dtype = (gb_dtype)lse->dtype;
  gb_device device = lse->storage->device;
  gb_tensor *minus = gb_chain_full(chain, dtype, g->ndim, g->shape, device, -1);
  gb_tensor *infinite = gb_chain_full(chain, dtype, lse->ndim, lse->shape, device, (double)INFINITY);
  return fused_gradient(chain, grad, minus, x, infinite);
}

/* d loss / dx = g * (sum(mass) * softmax(x) - mass), of ops that can be differentiated again. */
static gb_tensor *cross_entropy_second(gb_chain *chain, const gb_grad_call *grad) {
  const gb_in_cross_entropy *saved = GB_SAVED(grad, cross_entropy);
  const gb_edge *edge = GB_EDGE(grad, cross_entropy, x);
  int64_t dim = class_dim(edge->ndim);
  bool indices = is_integer(saved->target);
  gb_tensor *x = gb_chain_widen(chain, saved->x);
  gb_tensor *g = GB_GRAD_OUT(grad, cross_entropy)->loss;
  g = indices ? per_class(chain, g, edge) : per_probability(chain, grad);
  gb_tensor *mass = indices ? mass_of_indices(chain, grad, x) : mass_of_probabilities(chain, grad);
  gb_tensor *sums = GB_CHAIN(chain, sum, .x = mass, .dim = gb_attr_ints(1, &dim), .keepdim = gb_attr_int(true));
  gb_tensor *shares = GB_CHAIN(chain, mul, .x = GB_CHAIN(chain, softmax, .x = x, .dim = gb_attr_int(dim)), .y = sums);
  return GB_CHAIN(chain, mul, .x = GB_CHAIN(chain, sub, .x = shares, .y = mass), .y = g);
}

/* d loss / dx: fused, unless it is differentiated again. */
static gb_status logit_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, cross_entropy)->loss, *x = GB_SAVED(grad, cross_entropy)->x;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *dx = grad->create_graph ? cross_entropy_second(&chain, grad)
                                     : fused_gradient(&chain, grad, g, x, GB_KEPT(grad, cross_entropy)->lse);
  return gb_chain_end(&chain, dx, &GB_GRAD_IN(grad, cross_entropy)->x);
}

/* d loss / dtarget = -g * (1 - smoothing) * weight * log_softmax(x), for probabilities. */
static gb_status probability_gradient(gb_grad_call *grad) {
  const gb_in_cross_entropy *saved = GB_SAVED(grad, cross_entropy);
  const gb_edge *edge = GB_EDGE(grad, cross_entropy, x);
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  double smoothing = GB_ATTRS(grad, cross_entropy)->label_smoothing.number;
  gb_attr dim = gb_attr_int(class_dim(edge->ndim));
  gb_tensor *logs = GB_CHAIN(&chain, log_softmax, .x = gb_chain_widen(&chain, saved->x), .dim = dim);
  gb_tensor *scaled = gb_chain_number(&chain, GB_OP_mul, logs, smoothing - 1);
  gb_tensor *g = per_probability(&chain, grad);
  gb_tensor *dtarget = GB_CHAIN(&chain, mul, .x = weighted(&chain, scaled, saved->weight, edge), .y = g);
  return gb_chain_end(&chain, dtarget, &GB_GRAD_IN(grad, cross_entropy)->target);
}

static gb_status no_weight_gradient(const gb_grad_call *grad) {
  return gb_fail(grad->context, GB_EAUTOGRAD, "%s has no gradient with respect to its class weights; detach them",
                 gb_op_get(grad->context, grad->node->op)->name);
}

static gb_status cross_entropy_gradient(gb_grad_call *grad) {
  if (GB_NEEDS(grad, cross_entropy, weight)) return no_weight_gradient(grad);
  if (GB_NEEDS(grad, cross_entropy, x)) GB_TRY(logit_gradient(grad));
  return GB_NEEDS(grad, cross_entropy, target) ? probability_gradient(grad) : GB_OK;
}

/* nll_loss is linear in x: its gradient is g times a constant, which the fused row gives for g = 1. */
static gb_status nll_loss_gradient(gb_grad_call *grad) {
  const gb_edge *x = GB_EDGE(grad, nll_loss, x);
  const gb_in_nll_loss *saved = GB_SAVED(grad, nll_loss);
  const gb_attrs_nll_loss *attrs = GB_ATTRS(grad, nll_loss);
  gb_tensor *g = GB_GRAD_OUT(grad, nll_loss)->loss, *total = GB_KEPT(grad, nll_loss)->total, *from = g;
  gb_chain chain;
  if (GB_NEEDS(grad, nll_loss, weight)) return no_weight_gradient(grad);
  gb_chain_begin(&chain, grad->context);
  if (grad->create_graph)
    from = gb_chain_full(&chain, (gb_dtype)total->dtype, g->ndim, g->shape, g->storage->device, 1);
  gb_tensor *dx = GB_CHAIN(&chain, nll_loss_backward, .grad = from, .target = saved->target, .weight = saved->weight,
                           .total = total, .shape = gb_attr_ints(x->ndim, x->shape),
                           .ignore_index = attrs->ignore_index, .reduction = attrs->reduction);
  if (grad->create_graph) dx = GB_CHAIN(&chain, mul, .x = dx, .y = per_class(&chain, g, x));
  return gb_chain_end(&chain, dx, &GB_GRAD_IN(grad, nll_loss)->x);
}

/* A gradient of the summed losses times g, where it is needed: into the memory where it is summed up, as long as that
 * holds nothing. */
static void scale(gb_grad_call *grad, gb_chain *chain, int input, gb_tensor *kept, gb_tensor *g) {
  bool need = chain->status == GB_OK && grad->need[input], holds = false;
  gb_tensor *sum = need && grad->accumulator ? grad->accumulator(grad, input, &holds) : NULL, *made = NULL;
  if (!need) return;
  if (sum && (holds || sum->dtype != kept->dtype || sum->storage == kept->storage)) sum = NULL;
  gb_out_mul given = { .z = sum };
  chain->status = GB_RUN_OUT(grad->context, mul, sum ? &given.z : NULL, &made, .x = kept, .y = g);
  if (sum) {
    if (chain->status == GB_OK) grad->settled |= 1u << input;
    gb_tensor_release(made);
  } else grad->in[input] = made;
}

/* The gradients of the summed losses are there: multiply by g, divided by the number of targets for a mean. Where all
 * targets were ignored the gradients are 0, so dividing by 1 keeps them so. The factor is a vector of one element: it
 * keeps its float32 next to 16-bit gradients. */
static gb_status linear_cross_entropy_gradient(gb_grad_call *grad) {
  const gb_attrs_linear_cross_entropy *attrs = GB_ATTRS(grad, linear_cross_entropy);
  const gb_out_linear_cross_entropy *kept = GB_KEPT(grad, linear_cross_entropy);
  gb_tensor *g = GB_GRAD_OUT(grad, linear_cross_entropy)->loss, *target = GB_SAVED(grad, linear_cross_entropy)->target;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  g = GB_CHAIN(&chain, unsqueeze, .x = g, .dim = gb_attr_int(0));
  if (is_reduction(&attrs->reduction, GB_WORD_mean)) {
    gb_tensor *counts = gb_chain_number(&chain, GB_OP_ne, target, (double)attrs->ignore_index.integer);
    gb_tensor *count = GB_CHAIN(&chain, sum, .x = counts);
    g = GB_CHAIN(&chain, div, .x = g, .y = gb_chain_number(&chain, GB_OP_maximum, count, 1));
  }
  scale(grad, &chain, GB_IN_AT(linear_cross_entropy, x), kept->dx, g);
  scale(grad, &chain, GB_IN_AT(linear_cross_entropy, weight), kept->dweight, g);
  scale(grad, &chain, GB_IN_AT(linear_cross_entropy, bias), kept->dbias, g);
  gb_tensor *done;
  GB_TRY(gb_chain_end(&chain, g, &done));
  gb_tensor_release(done);
  return GB_OK;
}

/* ====} */

/* {==== losses made of other ops ==== */

static gb_tensor *minus(gb_chain *chain, gb_tensor *a, gb_tensor *b) { return GB_CHAIN(chain, sub, .x = a, .y = b); }
static gb_tensor *times(gb_chain *chain, gb_tensor *a, gb_tensor *b) { return GB_CHAIN(chain, mul, .x = a, .y = b); }
static gb_tensor *scaled_by(gb_chain *chain, gb_tensor *x, double a) { return gb_chain_number(chain, GB_OP_mul, x, a); }
static gb_tensor *plus(gb_chain *chain, gb_tensor *x, double a) { return gb_chain_number(chain, GB_OP_add, x, a); }
static gb_tensor *choose(gb_chain *chain, gb_tensor *mask, gb_tensor *a, gb_tensor *b) {
  return GB_CHAIN(chain, where, .condition = mask, .x = a, .y = b);
}

/* All of them begin with x and target, and give a loss; some have a weight then. */
#define GB_SAME_PAIR(op)                                                                                               \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(mse_loss, x) && GB_IN_AT(op, target) == GB_IN_AT(mse_loss, target) &&     \
                 GB_OUT_AT(op, loss) == GB_OUT_AT(mse_loss, loss), "read as mse_loss")
GB_SAME_PAIR(l1_loss);
GB_SAME_PAIR(smooth_l1_loss);
GB_SAME_PAIR(kl_div);
GB_SAME_PAIR(binary_cross_entropy);
GB_SAME_PAIR(binary_cross_entropy_with_logits);

/* Element by element losses ask for equal shapes: broadcasting [n] against [n, 1] would compare every x with every
 * target. */
static gb_status check_pair(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, mse_loss)->x, *target = GB_IN(call, mse_loss)->target;
  char a[96], b[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(mse_loss, x)));
  if (same_sizes(x, target)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x has shape %s and target %s; make them equal with target:view(...) or "
                                       "target:expand_as(x)",
                      gb_shape_text(x->ndim, x->shape, a, sizeof a),
                          gb_shape_text(target->ndim, target->shape, b, sizeof b));
}

/* The weight of mse_loss and l1_loss, if there is one, has the shape of x. */
static gb_status check_alike(gb_op_call *call, int input) {
  const gb_tensor *x = GB_IN(call, mse_loss)->x, *weight = call->in[input];
  char a[96], b[96];
  if (!weight || same_sizes(x, weight)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "weight has shape %s and x %s; they must be equal",
                      gb_shape_text(weight->ndim, weight->shape, a, sizeof a),
                      gb_shape_text(x->ndim, x->shape, b, sizeof b));
}

/* The weight of binary_cross_entropy and the like broadcasts to the losses, not the losses to it. */
static gb_status check_loss_weight(gb_op_call *call, int input) {
  const gb_tensor *x = GB_IN(call, mse_loss)->x, *weight = call->in[input];
  char a[96], b[96];
  bool fits = !weight || weight->ndim <= x->ndim;
  for (int i = 1; weight && fits && i <= weight->ndim; i++) {
    int64_t size = weight->shape[weight->ndim - i];
    fits = size == 1 || size == x->shape[x->ndim - i];
  }
  if (fits) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, which does not broadcast to the shape of x, %s",
                      gb_op_input(call->info, input)->name,
                      gb_shape_text(weight->ndim, weight->shape, a, sizeof a),
                          gb_shape_text(x->ndim, x->shape, b, sizeof b));
}

/* x or the target of a loss in the wider dtype of both, so that no logarithm is taken in the narrower one. A bool or
 * integer target has the dtype of x, or numbers would make it float32. */
static gb_tensor *operand_of(gb_chain *chain, const gb_op_call *call, gb_tensor *operand) {
  gb_dtype x = (gb_dtype)GB_IN(call, mse_loss)->x->dtype, target = (gb_dtype)GB_IN(call, mse_loss)->target->dtype;
  return gb_chain_cast(chain, operand, gb_dtype_is_float(target) ? gb_promote(x, target) : x);
}

/* Reduce the losses, let go of the steps, and give the result to the call. */
static gb_status reduced(gb_op_call *call, gb_chain *chain, gb_tensor *losses, const gb_attr *reduction) {
  const gb_tensor *x = GB_IN(call, mse_loss)->x;
  bool batch = is_reduction(reduction, GB_WORD_batchmean);
  if (is_reduction(reduction, GB_WORD_mean)) losses = GB_CHAIN(chain, mean, .x = losses);
  if (is_reduction(reduction, GB_WORD_sum) || batch) losses = GB_CHAIN(chain, sum, .x = losses);
  if (batch) losses = gb_chain_number(chain, GB_OP_div, losses, x->ndim ? (double)x->shape[0] : 1);
  return gb_chain_end(chain, losses, &GB_OUT(call, mse_loss)->loss);
}

/* Losses times a weight of their shape, and reduced; the mean is divided by the weight's sum, as in PyTorch. */
static gb_status weighed(gb_op_call *call, gb_chain *chain, gb_tensor *losses, gb_tensor *weight,
                         const gb_attr *reduction) {
  gb_attr sum = gb_attr_word(GB_WORD_sum);
  if (!weight) return reduced(call, chain, losses, reduction);
  losses = times(chain, losses, weight);
  if (!is_reduction(reduction, GB_WORD_mean)) return reduced(call, chain, losses, reduction);
  losses = GB_CHAIN(chain, div, .x = GB_CHAIN(chain, sum, .x = losses), .y = GB_CHAIN(chain, sum, .x = weight));
  return reduced(call, chain, losses, &sum);
}

/* x - target. */
static gb_tensor *difference(gb_chain *chain, const gb_op_call *call) {
  return minus(chain, GB_IN(call, mse_loss)->x, GB_IN(call, mse_loss)->target);
}

static gb_status mse_loss(gb_op_call *call) {
  gb_chain chain;
  GB_TRY(check_pair(call));
  GB_TRY(check_alike(call, GB_IN_AT(mse_loss, weight)));
  gb_chain_begin(&chain, call->context);
  gb_tensor *losses = GB_CHAIN(&chain, square, .x = difference(&chain, call));
  return weighed(call, &chain, losses, GB_IN(call, mse_loss)->weight, &GB_ATTRS(call, mse_loss)->reduction);
}

static gb_status l1_loss(gb_op_call *call) {
  gb_chain chain;
  GB_TRY(check_pair(call));
  GB_TRY(check_alike(call, GB_IN_AT(l1_loss, weight)));
  gb_chain_begin(&chain, call->context);
  gb_tensor *losses = GB_CHAIN(&chain, abs, .x = difference(&chain, call));
  return weighed(call, &chain, losses, GB_IN(call, l1_loss)->weight, &GB_ATTRS(call, l1_loss)->reduction);
}

static gb_status smooth_l1_loss(gb_op_call *call) {
  gb_chain chain;
  double beta = GB_ATTRS(call, smooth_l1_loss)->beta.number;
  GB_TRY(check_pair(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *d = difference(&chain, call), *losses = GB_CHAIN(&chain, abs, .x = d);
  if (beta > 0) {
    gb_tensor *far = gb_chain_number(&chain, GB_OP_ge, losses, beta);
    /* 0 replaces large values: the slope of their square may be infinite, and 0 times infinity is NaN */
    gb_tensor *near = GB_CHAIN(&chain, masked_fill, .x = d, .mask = far, .value = gb_attr_num(0));
    gb_tensor *square = scaled_by(&chain, GB_CHAIN(&chain, square, .x = near), 0.5 / beta);
    losses = choose(&chain, far, plus(&chain, losses, -0.5 * beta), square);
  }
  return reduced(call, &chain, losses, &GB_ATTRS(call, smooth_l1_loss)->reduction);
}

/* (1 - y) x + (1 + (pos_weight - 1) y) log(1 + exp(-x)): the last factor is softplus(-x), which overflows nowhere. */
static gb_status binary_cross_entropy_with_logits(gb_op_call *call) {
  const gb_in_binary_cross_entropy_with_logits *in = GB_IN(call, binary_cross_entropy_with_logits);
  gb_chain chain;
  GB_TRY(check_pair(call));
  GB_TRY(check_loss_weight(call, GB_IN_AT(binary_cross_entropy_with_logits, weight)));
  GB_TRY(check_loss_weight(call, GB_IN_AT(binary_cross_entropy_with_logits, pos_weight)));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, in->x), *y = operand_of(&chain, call, in->target), *positive = in->pos_weight;
  gb_tensor *tail = GB_CHAIN(&chain, softplus, .x = GB_CHAIN(&chain, neg, .x = x),
                             .threshold = gb_attr_num(40)); /* beyond 40 the difference is lost in float64 too */
  if (positive) {
    bool wrapped = positive->wrapped;
    if (!wrapped && !gb_is_float(positive->dtype)) positive = gb_chain_cast(&chain, positive, (gb_dtype)in->x->dtype);
    gb_tensor *more = wrapped ? scaled_by(&chain, y, gb_number_of(positive).number - 1)
                              : times(&chain, y, plus(&chain, positive, -1));
    tail = times(&chain, plus(&chain, more, 1), tail);
  }
  gb_tensor *losses = times(&chain, plus(&chain, scaled_by(&chain, y, -1), 1), x);
  losses = GB_CHAIN(&chain, add, .x = losses, .y = tail);
  if (in->weight) losses = times(&chain, losses, in->weight);
  return reduced(call, &chain, losses, &GB_ATTRS(call, binary_cross_entropy_with_logits)->reduction);
}

/* max(log p, -100) by an op that is -infinity at p = 0, where x is `pole`. Its slope is 1 / p, but at most 1e12, as
 * PyTorch's: nearer to the pole the value is taken without its history, and the slope comes from a term that is 0. */
static gb_tensor *limited_log(gb_chain *chain, gb_op log, gb_tensor *x, double pole) {
  const double nearest = 1e-12;
  gb_tensor *p = plus(chain, x, -pole);
  gb_tensor *near = gb_chain_number(chain, GB_OP_le, GB_CHAIN(chain, abs, .x = p), nearest);
  gb_tensor *far = GB_CHAIN(chain, masked_fill, .x = x, .mask = near, .value = gb_attr_num(pole + 1));
  gb_tensor *logs = gb_chain_1(chain, log, far, NULL), *value = gb_chain_1(chain, log, gb_chain_detach(chain, x), NULL);
  value = gb_chain_number(chain, GB_OP_maximum, value, -100);
  gb_tensor *slope = scaled_by(chain, minus(chain, p, gb_chain_detach(chain, p)), 1 / nearest);
  return choose(chain, near, GB_CHAIN(chain, add, .x = value, .y = slope), logs);
}

/* -(y log x + (1 - y) log(1 - x)) */
static gb_status binary_cross_entropy(gb_op_call *call) {
  gb_chain chain;
  const gb_in_binary_cross_entropy *in = GB_IN(call, binary_cross_entropy);
  GB_TRY(check_pair(call));
  GB_TRY(check_loss_weight(call, GB_IN_AT(binary_cross_entropy, weight)));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, in->x), *y = operand_of(&chain, call, in->target);
  gb_tensor *yes = limited_log(&chain, GB_OP_log, x, 0);
  gb_tensor *no = limited_log(&chain, GB_OP_log1p, GB_CHAIN(&chain, neg, .x = x), -1);
  gb_tensor *losses = minus(&chain, times(&chain, plus(&chain, y, -1), no), times(&chain, y, yes));
  if (in->weight) losses = times(&chain, losses, in->weight);
  return reduced(call, &chain, losses, &GB_ATTRS(call, binary_cross_entropy)->reduction);
}

/* target * (log target - x), which is 0 where target is 0. */
static gb_status kl_div(gb_op_call *call) {
  const gb_attrs_kl_div *attrs = GB_ATTRS(call, kl_div);
  gb_chain chain;
  GB_TRY(check_pair(call));
  gb_chain_begin(&chain, call->context);
  gb_tensor *x = operand_of(&chain, call, GB_IN(call, kl_div)->x);
  gb_tensor *target = operand_of(&chain, call, GB_IN(call, kl_div)->target), *logs = target;
  if (attrs->log_target.integer) target = GB_CHAIN(&chain, exp, .x = logs);
  else {
    gb_tensor *zero = gb_chain_number(&chain, GB_OP_eq, target, 0);
    logs = GB_CHAIN(&chain, masked_fill, .x = target, .mask = zero, .value = gb_attr_num(1));
    logs = GB_CHAIN(&chain, log, .x = logs);
  }
  return reduced(call, &chain, times(&chain, target, minus(&chain, logs, x)), &attrs->reduction);
}

/* ====} */

const gb_op_impl gb_family_loss[] = {
  { .op = GB_OP_cross_entropy, .check = cross_entropy_check, .gradient = cross_entropy_gradient,
    .save_in = GB_SAVE_IN(cross_entropy, x) | GB_SAVE_IN(cross_entropy, target) | GB_SAVE_IN(cross_entropy, weight),
    .save_out = GB_SAVE_OUT(cross_entropy, lse) | GB_SAVE_OUT(cross_entropy, total) },
  { .op = GB_OP_cross_entropy_backward, .check = cross_entropy_backward_check },
  { .op = GB_OP_linear_cross_entropy, .check = linear_cross_entropy_check, .gradient = linear_cross_entropy_gradient,
    .composed = is_unfused, .compose = linear_cross_entropy_compose,
    .save_in = GB_SAVE_IN(linear_cross_entropy, target),
    .save_out = GB_SAVE_OUT(linear_cross_entropy, dx) | GB_SAVE_OUT(linear_cross_entropy, dweight) |
                GB_SAVE_OUT(linear_cross_entropy, dbias) },
  { .op = GB_OP_nll_loss, .check = nll_loss_check, .gradient = nll_loss_gradient,
    .save_in = GB_SAVE_IN(nll_loss, target) | GB_SAVE_IN(nll_loss, weight), .save_out = GB_SAVE_OUT(nll_loss, total) },
  { .op = GB_OP_nll_loss_backward, .check = nll_loss_backward_check },
  { .op = GB_OP_mse_loss, .compose = mse_loss },
  { .op = GB_OP_l1_loss, .compose = l1_loss },
  { .op = GB_OP_smooth_l1_loss, .compose = smooth_l1_loss },
  { .op = GB_OP_binary_cross_entropy_with_logits, .compose = binary_cross_entropy_with_logits },
  { .op = GB_OP_binary_cross_entropy, .compose = binary_cross_entropy },
  { .op = GB_OP_kl_div, .compose = kl_div },
  { .op = GB_OP_COUNT }
};
