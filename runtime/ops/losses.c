/* ops/losses.c - losses that are formulas of other ops (ops/formula.h), PyTorch's and torchvision's; ops/loss.c has
 * those that rows are written for, and the formulas that came first.
 *
 * Tensors of a loss have equal shapes: broadcasting [n] against [n, 1] would compare every x with every target. Where
 * PyTorch's formula overflows (soft_margin_loss) ours does not. What PyTorch looks for in the values of a tensor, which
 * would wait for a device, shows in the result: a negative variance gives NaN. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/formula.h"

#define PI 3.14159265358979323846

/* {==== checks ==== */

static bool same_sizes(const gb_tensor *a, const gb_tensor *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim);
}

/* What the rows begin with: two tensors, which checks read as huber_loss's. */
#define GB_SAME_PAIR(op, first, second) \
  _Static_assert(GB_IN_AT(op, first) == GB_IN_AT(huber_loss, x) && GB_IN_AT(op, second) == GB_IN_AT(huber_loss, \
      target), \
                 "read as huber_loss")
GB_SAME_PAIR(soft_margin_loss, x, target);
GB_SAME_PAIR(hinge_embedding_loss, x, target);
GB_SAME_PAIR(margin_ranking_loss, x1, x2);
GB_SAME_PAIR(triplet_margin_loss, anchor, positive);
GB_SAME_PAIR(cosine_embedding_loss, x1, x2);
GB_SAME_PAIR(poisson_nll_loss, x, target);
GB_SAME_PAIR(gaussian_nll_loss, x, target);
GB_SAME_PAIR(multilabel_margin_loss, x, target);
GB_SAME_PAIR(multilabel_soft_margin_loss, x, target);
GB_SAME_PAIR(multi_margin_loss, x, target);
GB_SAME_PAIR(sigmoid_focal_loss, x, target);
GB_SAME_PAIR(dice_loss, x, target);
static gb_tensor *first_of(const gb_op_call *call) { return GB_IN(call, huber_loss)->x; }
enum { FIRST = GB_IN_AT(huber_loss, x), SECOND = GB_IN_AT(huber_loss, target) };

/* An input is shaped like the first one. */
static gb_status require_alike(gb_op_call *call, int input) {
  const gb_tensor *x = first_of(call), *other = call->in[input];
  char a[96], b[96];
  if (same_sizes(x, other)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "%s has shape %s and %s %s; make them equal with view or expand_as",
                      gb_op_input(call->info, FIRST)->name, gb_shape_text(x->ndim, x->shape, a, sizeof a),
                      gb_op_input(call->info, input)->name,
                      gb_shape_text(other->ndim, other->shape, b, sizeof b));
}

/* The first tensor is floating, and the second shaped like it. */
static gb_status check_pair(gb_op_call *call) {
  GB_TRY(gb_require_float(call, FIRST));
  return require_alike(call, SECOND);
}

/* Three tensors of one shape, the first two of them floating. */
static gb_status check_three(gb_op_call *call, int third) {
  GB_TRY(check_pair(call));
  GB_TRY(gb_require_float(call, SECOND));
  return require_alike(call, third);
}

/* x is [n, classes] or [classes], of some classes, and the target integers. */
static gb_status check_classes(gb_op_call *call) {
  const gb_tensor *x = first_of(call);
  GB_TRY(gb_require_float(call, FIRST));
  GB_TRY(gb_require_integer(call, SECOND));
  GB_TRY(gb_require_ndim(call, FIRST, 1, 2));
  if (x->shape[x->ndim - 1]) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x has no classes, which are its last dimension");
}

/* ====} */

/* Reduce the losses and give the result to the call. */
static gb_status reduced(gb_formula *f, gb_op_call *call, gb_tensor *losses, const gb_attr *reduction) {
  if (reduction->integer == GB_WORD_mean) losses = GB_CHAIN(&f->chain, mean, .x = losses);
  if (reduction->integer == GB_WORD_sum) losses = GB_CHAIN(&f->chain, sum, .x = losses);
  return gb_formula_end(f, call, losses);
}

/* The same of losses of whole rows; the mean of none is 0, as in PyTorch. */
static gb_status reduced_rows(gb_formula *f, gb_op_call *call, gb_tensor *losses, const gb_attr *reduction) {
  gb_attr sum = gb_attr_word(GB_WORD_sum);
  bool none = first_of(call)->numel == 0 && reduction->integer == GB_WORD_mean;
  return reduced(f, call, losses, none ? &sum : reduction);
}

/* {==== element by element ==== */

/* 0.5 d^2 where |d| is below delta, delta (|d| - 0.5 delta) beyond. */
static gb_status huber_loss(gb_op_call *call) {
  const gb_in_huber_loss *in = GB_IN(call, huber_loss);
  double delta = GB_ATTRS(call, huber_loss)->delta.number;
  gb_formula f;
  GB_TRY(check_pair(call));
  if (in->weight) GB_TRY(require_alike(call, GB_IN_AT(huber_loss, weight)));
  gb_formula_begin(&f, call);
  gb_tensor *d = gb_minus(&f, gb_operand(&f, in->x), gb_operand(&f, in->target)),
            *size = GB_CHAIN(&f.chain, abs, .x = d);
  gb_tensor *far = gb_chain_number(&f.chain, GB_OP_ge, size, delta);
  /* 0 replaces large values: the slope of their square may be infinite, and 0 times infinity is NaN */
  gb_tensor *near = gb_scaled(&f, gb_square(&f, gb_filled(&f, d, far, 0)), 0.5);
  gb_tensor *line = gb_scaled(&f, gb_shifted(&f, size, -0.5 * delta), delta);
  gb_tensor *losses = GB_CHAIN(&f.chain, where, .condition = far, .x = line, .y = near);
  if (in->weight) losses = gb_times(&f, losses, gb_operand(&f, in->weight));
  return reduced(&f, call, losses, &GB_ATTRS(call, huber_loss)->reduction);
}

static gb_status soft_margin_loss(gb_op_call *call) {
  const gb_in_soft_margin_loss *in = GB_IN(call, soft_margin_loss);
  gb_formula f;
  GB_TRY(check_pair(call));
  gb_formula_begin(&f, call);
  gb_tensor *agreement = gb_times(&f, gb_operand(&f, in->x), gb_operand(&f, in->target));
  return reduced(&f, call, gb_soft(&f, gb_scaled(&f, agreement, -1)), &GB_ATTRS(call, soft_margin_loss)->reduction);
}

/* A target that is neither 1 nor -1 gets both terms, as in PyTorch. */
static gb_status hinge_embedding_loss(gb_op_call *call) {
  const gb_attrs_hinge_embedding_loss *attrs = GB_ATTRS(call, hinge_embedding_loss);
  gb_formula f;
  GB_TRY(check_pair(call));
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, GB_IN(call, hinge_embedding_loss)->x);
  gb_tensor *target = gb_operand(&f, GB_IN(call, hinge_embedding_loss)->target);
  gb_tensor *apart =
      gb_filled(&f, gb_above_zero(&f, gb_from(&f, attrs->margin.number, x)), gb_equals(&f, target, 1), 0);
  gb_tensor *losses = gb_plus(&f, apart, gb_filled(&f, x, gb_equals(&f, target, -1), 0));
  return reduced(&f, call, losses, &attrs->reduction);
}

static gb_status margin_ranking_loss(gb_op_call *call) {
  const gb_in_margin_ranking_loss *in = GB_IN(call, margin_ranking_loss);
  const gb_attrs_margin_ranking_loss *attrs = GB_ATTRS(call, margin_ranking_loss);
  gb_formula f;
  GB_TRY(check_three(call, GB_IN_AT(margin_ranking_loss, target)));
  gb_formula_begin(&f, call);
  gb_tensor *lead =
      gb_times(&f, gb_operand(&f, in->target), gb_minus(&f, gb_operand(&f, in->x1), gb_operand(&f, in->x2)));
  return reduced(&f, call, gb_above_zero(&f, gb_from(&f, attrs->margin.number, lead)), &attrs->reduction);
}

/* t log t - t + 0.5 log(2 pi t) where t exceeds 1, else 0: Stirling's formula. */
static gb_tensor *stirling(gb_formula *f, gb_tensor *target) {
  gb_tensor *small = gb_chain_number(&f->chain, GB_OP_le, target, 1), *t = gb_filled(f, target, small, 1);
  gb_tensor *logs = gb_minus(f, gb_times(f, t, gb_log(f, t)), t);
  return gb_filled(f, gb_plus(f, logs, gb_scaled(f, gb_log(f, gb_scaled(f, t, 2 * PI)), 0.5)), small, 0);
}

static gb_status poisson_nll_loss(gb_op_call *call) {
  const gb_attrs_poisson_nll_loss *attrs = GB_ATTRS(call, poisson_nll_loss);
  gb_formula f;
  GB_TRY(check_pair(call));
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, GB_IN(call, poisson_nll_loss)->x),
            *target = gb_operand(&f, GB_IN(call, poisson_nll_loss)->target);
  gb_tensor *rate = x, *log_rate = x;
  if (attrs->log_input.integer) rate = GB_CHAIN(&f.chain, exp, .x = x);
  else log_rate = gb_log(&f, gb_shifted(&f, x, attrs->eps.number));
  gb_tensor *losses = gb_minus(&f, rate, gb_times(&f, target, log_rate));
  if (attrs->full.integer) losses = gb_plus(&f, losses, stirling(&f, target));
  return reduced(&f, call, losses, &attrs->reduction);
}

/* var is a number, shaped like x, like x without its last dimension, or like x with a size of 1 somewhere. */
static gb_status check_variance(gb_op_call *call) {
  const gb_in_gaussian_nll_loss *in = GB_IN(call, gaussian_nll_loss);
  const gb_tensor *x = in->x, *var = in->var;
  char a[96], b[96];
  int other = 0;
  if (var->wrapped) {
    double value = gb_number_of(var).number;
    return value < 0 ? gb_call_fail(call, GB_EINVAL, "var is %.14g; a variance is not negative", value) : GB_OK;
  }
  GB_TRY(gb_require_float(call, GB_IN_AT(gaussian_nll_loss, var)));
  bool fits = var->ndim == x->ndim || var->ndim + 1 == x->ndim;
  for (int i = 0; fits && i < var->ndim; i++) {
    bool same = var->shape[i] == x->shape[i];
    other += !same;
    fits = same || (var->ndim == x->ndim && var->shape[i] == 1);
  }
  if (fits && other <= 1) return GB_OK;
  return gb_call_fail(
      call, GB_ESHAPE,
      "x has shape %s and var %s; var has the shape of x, without its last dimension, or with a size of 1 in one",
      gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(var->ndim, var->shape, b, sizeof b));
}

/* The variance as it is divided by: at least eps, and NaN where it is negative. */
static gb_tensor *variance(gb_formula *f, gb_op_call *call, double eps) {
  const gb_in_gaussian_nll_loss *in = GB_IN(call, gaussian_nll_loss);
  if (in->var->wrapped) {
    double value = gb_number_of(in->var).number;
    return gb_chain_full(&f->chain, f->compute, 0, NULL, call->device, value < eps ? eps : value);
  }
  gb_tensor *var = gb_operand(f, in->var), *negative = gb_chain_number(&f->chain, GB_OP_lt, var, 0);
  if (in->var->ndim < in->x->ndim) var = gb_unsqueezed(f, var, -1), negative = gb_unsqueezed(f, negative, -1);
  return gb_filled(f, gb_at_least(f, var, eps), negative, (double)NAN);
}

static gb_status gaussian_nll_loss(gb_op_call *call) {
  const gb_in_gaussian_nll_loss *in = GB_IN(call, gaussian_nll_loss);
  const gb_attrs_gaussian_nll_loss *attrs = GB_ATTRS(call, gaussian_nll_loss);
  gb_formula f;
  GB_TRY(check_pair(call));
  GB_TRY(check_variance(call));
  gb_formula_begin(&f, call);
  gb_tensor *var = variance(&f, call, attrs->eps.number);
  gb_tensor *square = gb_square(&f, gb_minus(&f, gb_operand(&f, in->x), gb_operand(&f, in->target)));
  gb_tensor *losses = gb_scaled(&f, gb_plus(&f, gb_log(&f, var), gb_over(&f, square, var)), 0.5);
  if (attrs->full.integer) losses = gb_shifted(&f, losses, 0.5 * log(2 * PI));
  return reduced(&f, call, losses, &attrs->reduction);
}

/* (1 - y) x + log(1 + exp(-x)): binary cross-entropy of logits. */
static gb_tensor *logits_loss(gb_formula *f, gb_tensor *x, gb_tensor *y) {
  return gb_plus(f, gb_times(f, gb_from(f, 1, y), x), gb_soft(f, gb_scaled(f, x, -1)));
}

/* alpha_t (1 - p_t)^gamma times the cross-entropy; 1 - p_t = p + y - 2 p y. */
static gb_status sigmoid_focal_loss(gb_op_call *call) {
  const gb_attrs_sigmoid_focal_loss *attrs = GB_ATTRS(call, sigmoid_focal_loss);
  double alpha = attrs->alpha.number;
  gb_formula f;
  if (alpha < 0 && alpha != -1)
    return gb_call_fail(call, GB_EINVAL, "'alpha' is %.14g, it must be 0 to 1, or -1 for no weights", alpha);
  GB_TRY(check_pair(call));
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, GB_IN(call, sigmoid_focal_loss)->x),
            *y = gb_operand(&f, GB_IN(call, sigmoid_focal_loss)->target);
  gb_tensor *p = GB_CHAIN(&f.chain, sigmoid, .x = x);
  gb_tensor *missed = gb_minus(&f, gb_plus(&f, p, y), gb_scaled(&f, gb_times(&f, p, y), 2));
  gb_tensor *losses =
      gb_times(&f, logits_loss(&f, x, y), gb_chain_number(&f.chain, GB_OP_pow, missed, attrs->gamma.number));
  if (alpha >= 0) losses = gb_times(&f, losses, gb_shifted(&f, gb_scaled(&f, y, 2 * alpha - 1), 1 - alpha));
  return reduced(&f, call, losses, &attrs->reduction);
}

/* ====} */

/* {==== one loss per sample ==== */

static gb_status triplet_margin_loss(gb_op_call *call) {
  const gb_in_triplet_margin_loss *in = GB_IN(call, triplet_margin_loss);
  const gb_attrs_triplet_margin_loss *attrs = GB_ATTRS(call, triplet_margin_loss);
  double p = attrs->p.number, eps = attrs->eps.number;
  gb_formula f;
  GB_TRY(check_three(call, GB_IN_AT(triplet_margin_loss, negative)));
  GB_TRY(gb_require_float(call, GB_IN_AT(triplet_margin_loss, negative)));
  gb_formula_begin(&f, call);
  gb_tensor *anchor = gb_operand(&f, in->anchor), *positive = gb_operand(&f, in->positive),
            *negative = gb_operand(&f, in->negative);
  gb_tensor *near = gb_distance_of(&f, anchor, positive, p, eps, false),
            *far = gb_distance_of(&f, anchor, negative, p, eps, false);
  if (attrs->swap.integer)
    far = GB_CHAIN(&f.chain, minimum, .x = far, .y = gb_distance_of(&f, positive, negative, p, eps, false));
  gb_tensor *losses = gb_above_zero(&f, gb_minus(&f, gb_shifted(&f, near, attrs->margin.number), far));
  return reduced(&f, call, losses, &attrs->reduction);
}

/* x1 and x2 [n, size] and target [n], or x1 and x2 [size] and target 0-d. */
static gb_status check_cosine(gb_op_call *call) {
  const gb_in_cosine_embedding_loss *in = GB_IN(call, cosine_embedding_loss);
  char a[96], b[96];
  GB_TRY(check_pair(call));
  GB_TRY(gb_require_float(call, SECOND));
  GB_TRY(gb_require_ndim(call, FIRST, 1, 2));
  if (in->target->ndim == in->x1->ndim - 1 && (in->target->ndim == 0 || in->target->shape[0] == in->x1->shape[0]))
    return GB_OK;
  return gb_call_fail(call, GB_ESHAPE,
                      "x1 has shape %s and target %s; a target [n] goes with x1 [n, size], a 0-d one with [size]",
                      gb_shape_text(in->x1->ndim, in->x1->shape, a, sizeof a),
                      gb_shape_text(in->target->ndim, in->target->shape, b, sizeof b));
}

/* The sum of squares along dim, which is not 0. */
static gb_tensor *magnitude(gb_formula *f, gb_tensor *x, int dim) {
  return gb_shifted(f, gb_sum_of(f, gb_square(f, x), dim, dim), 1e-12);
}

static gb_status cosine_embedding_loss(gb_op_call *call) {
  const gb_in_cosine_embedding_loss *in = GB_IN(call, cosine_embedding_loss);
  const gb_attrs_cosine_embedding_loss *attrs = GB_ATTRS(call, cosine_embedding_loss);
  gb_formula f;
  GB_TRY(check_cosine(call));
  int dim = in->x1->ndim - 1;
  gb_formula_begin(&f, call);
  gb_tensor *x1 = gb_operand(&f, in->x1), *x2 = gb_operand(&f, in->x2), *target = gb_operand(&f, in->target);
  gb_tensor *norms = GB_CHAIN(&f.chain, sqrt, .x = gb_times(&f, magnitude(&f, x1, dim), magnitude(&f, x2, dim)));
  gb_tensor *cosine = gb_over(&f, gb_sum_of(&f, gb_times(&f, x1, x2), dim, dim), norms);
  gb_tensor *alike = gb_filled(&f, gb_from(&f, 1, cosine), gb_chain_number(&f.chain, GB_OP_ne, target, 1), 0);
  gb_tensor *apart = gb_above_zero(&f, gb_shifted(&f, cosine, -attrs->margin.number));
  apart = gb_filled(&f, apart, gb_chain_number(&f.chain, GB_OP_ne, target, -1), 0);
  return reduced(&f, call, gb_plus(&f, alike, apart), &attrs->reduction);
}

static gb_status multilabel_soft_margin_loss(gb_op_call *call) {
  const gb_in_multilabel_soft_margin_loss *in = GB_IN(call, multilabel_soft_margin_loss);
  const gb_tensor *weight = in->weight;
  gb_formula f;
  char a[96], b[96];
  GB_TRY(check_pair(call));
  GB_TRY(gb_require_ndim(call, FIRST, 1, GB_MAX_NDIM));
  int ndim = in->x->ndim;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, in->x->shape, sizeof *shape * (size_t)ndim);
  bool fits = !weight || (weight->ndim <= ndim && gb_broadcast(&ndim, shape, weight->ndim, weight->shape));
  if (!fits || memcmp(shape, in->x->shape, sizeof *shape * (size_t)ndim))
    return gb_call_fail(call, GB_ESHAPE, "'weight' has shape %s, which does not broadcast to the shape of x, %s",
                        gb_shape_text(weight->ndim, weight->shape, a, sizeof a),
                        gb_shape_text(in->x->ndim, in->x->shape, b, sizeof b));
  gb_formula_begin(&f, call);
  gb_tensor *losses = logits_loss(&f, gb_operand(&f, in->x), gb_operand(&f, in->target));
  if (weight) losses = gb_times(&f, losses, gb_operand(&f, in->weight));
  losses = gb_scaled(&f, gb_sum_of(&f, losses, ndim - 1, ndim - 1), 1.0 / (double)in->x->shape[ndim - 1]);
  return reduced(&f, call, losses, &GB_ATTRS(call, multilabel_soft_margin_loss)->reduction);
}

/* Elements of a row are its classes j and i. Those of the target are what stands in front of its first -1. */
static gb_status multilabel_margin_loss(gb_op_call *call) {
  const gb_in_multilabel_margin_loss *in = GB_IN(call, multilabel_margin_loss);
  gb_formula f;
  GB_TRY(check_classes(call));
  GB_TRY(require_alike(call, GB_IN_AT(multilabel_margin_loss, target)));
  int ndim = in->x->ndim;
  double classes = (double)in->x->shape[ndim - 1];
  gb_attr last = gb_attr_int(-1);
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, in->x);
  gb_tensor *ends =
      GB_CHAIN(&f.chain, cumsum, .x = gb_chain_cast(&f.chain, gb_equals(&f, in->target, -1), GB_INT64), .dim = last);
  gb_tensor *after = gb_chain_number(&f.chain, GB_OP_ne, ends, 0), *index = gb_filled(&f, in->target, after, 0);
  gb_tensor *counts = gb_chain_cast(&f.chain, GB_CHAIN(&f.chain, logical_not, .x = after), f.compute);
  gb_tensor *zeros = gb_chain_full(&f.chain, f.compute, ndim, in->x->shape, call->device, 0);
  counts = GB_CHAIN(&f.chain, scatter_add, .x = zeros, .dim = last, .index = index, .source = counts);
  gb_tensor *own = gb_chain_number(&f.chain, GB_OP_gt, counts, 0);
  gb_tensor *wanted = gb_from(&f, 1, GB_CHAIN(&f.chain, gather, .x = x, .dim = last, .index = index));
  gb_tensor *losses = gb_above_zero(&f, gb_plus(&f, gb_unsqueezed(&f, wanted, -1), gb_unsqueezed(&f, x, -2)));
  losses = gb_filled(&f, gb_filled(&f, losses, gb_unsqueezed(&f, after, -1), 0), gb_unsqueezed(&f, own, -2), 0);
  losses = gb_scaled(&f, gb_sum_of(&f, losses, ndim - 1, ndim), 1 / classes);
  return reduced_rows(&f, call, losses, &GB_ATTRS(call, multilabel_margin_loss)->reduction);
}

/* The element of each row at its target. nll_loss checks the target, which it says is out of range; no class is
 * ignored. */
static gb_tensor *picked(gb_formula *f, gb_tensor *x, gb_tensor *target) {
  gb_attr none = gb_attr_word(GB_WORD_none);
  gb_tensor *negative = GB_CHAIN(&f->chain, nll_loss, .x = x, .target = target, .ignore_index = gb_attr_int(INT64_MIN),
                                 .reduction = none);
  return gb_scaled(f, negative, -1);
}

static gb_status multi_margin_loss(gb_op_call *call) {
  const gb_in_multi_margin_loss *in = GB_IN(call, multi_margin_loss);
  const gb_attrs_multi_margin_loss *attrs = GB_ATTRS(call, multi_margin_loss);
  gb_formula f;
  char text[96];
  GB_TRY(check_classes(call));
  int ndim = in->x->ndim;
  int64_t classes = in->x->shape[ndim - 1];
  if (in->weight && (in->weight->ndim != 1 || in->weight->shape[0] != classes))
    return gb_call_fail(call, GB_ESHAPE, "weight needs one element per class, %" PRId64 " in all; it has shape %s",
                        classes, gb_shape_text(in->weight->ndim, in->weight->shape, text, sizeof text));
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, in->x), *wanted = gb_from(&f, attrs->margin.number, picked(&f, x, in->target));
  gb_tensor *losses = gb_above_zero(&f, gb_plus(&f, gb_unsqueezed(&f, wanted, -1), x));
  if (attrs->p.integer == 2) losses = gb_square(&f, losses);
  gb_tensor *own = GB_CHAIN(&f.chain, one_hot, .x = in->target, .classes = gb_attr_int(classes));
  losses = gb_filled(&f, losses, gb_chain_number(&f.chain, GB_OP_ne, own, 0), 0);
  losses = gb_scaled(&f, gb_sum_of(&f, losses, ndim - 1, ndim - 1), 1.0 / (double)classes);
  if (in->weight) {
    gb_tensor *rows =
        GB_CHAIN(&f.chain, expand, .x = gb_operand(&f, in->weight), .shape = gb_attr_ints(ndim, in->x->shape));
    losses = gb_times(&f, losses, picked(&f, rows, in->target));
  }
  return reduced_rows(&f, call, losses, &attrs->reduction);
}

static gb_status dice_loss(gb_op_call *call) {
  const gb_attrs_dice_loss *attrs = GB_ATTRS(call, dice_loss);
  double smooth = attrs->smooth.number;
  gb_formula f;
  GB_TRY(check_pair(call));
  GB_TRY(gb_require_ndim(call, FIRST, 2, GB_MAX_NDIM));
  int last = first_of(call)->ndim - 1;
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, GB_IN(call, dice_loss)->x), *target = gb_operand(&f, GB_IN(call, dice_loss)->target);
  gb_tensor *both = gb_shifted(&f, gb_scaled(&f, gb_sum_of(&f, gb_times(&f, x, target), 1, last), 2), smooth);
  gb_tensor *each = gb_shifted(&f, gb_plus(&f, gb_sum_of(&f, x, 1, last), gb_sum_of(&f, target, 1, last)), smooth);
  return reduced(&f, call, gb_from(&f, 1, gb_over(&f, both, each)), &attrs->reduction);
}

/* ====} */

const gb_op_impl gb_family_losses[] = {
  { .op = GB_OP_huber_loss, .compose = huber_loss },
  { .op = GB_OP_soft_margin_loss, .compose = soft_margin_loss },
  { .op = GB_OP_hinge_embedding_loss, .compose = hinge_embedding_loss },
  { .op = GB_OP_margin_ranking_loss, .compose = margin_ranking_loss },
  { .op = GB_OP_triplet_margin_loss, .compose = triplet_margin_loss },
  { .op = GB_OP_cosine_embedding_loss, .compose = cosine_embedding_loss },
  { .op = GB_OP_poisson_nll_loss, .compose = poisson_nll_loss },
  { .op = GB_OP_gaussian_nll_loss, .compose = gaussian_nll_loss },
  { .op = GB_OP_multilabel_margin_loss, .compose = multilabel_margin_loss },
  { .op = GB_OP_multilabel_soft_margin_loss, .compose = multilabel_soft_margin_loss },
  { .op = GB_OP_multi_margin_loss, .compose = multi_margin_loss },
  { .op = GB_OP_sigmoid_focal_loss, .compose = sigmoid_focal_loss },
  { .op = GB_OP_dice_loss, .compose = dice_loss },
  { .op = GB_OP_COUNT }
};
