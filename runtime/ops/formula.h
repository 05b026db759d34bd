/* ops/formula.h - composites that are a formula over tensors: their steps in one dtype, and arithmetic as it is written
 * down.
 *
 * The result has the dtype that the inputs promote to. Steps are computed in it, or in float32 where it has 16 bits, so
 * that a formula of many steps rounds to 16 bits once. */
#ifndef GB_OPS_FORMULA_H
#define GB_OPS_FORMULA_H

#include "graph/chain.h"

typedef struct gb_formula {
  gb_chain chain;
  gb_dtype dtype, compute; /* of the result, and of the steps */
} gb_formula;

/* Begin a formula of the call's inputs, one of which at least is floating. */
static inline void gb_formula_begin(gb_formula *f, gb_op_call *call) {
  f->dtype = gb_result_type(call->in, call->n_in);
  f->compute = gb_is_16bit(f->dtype) ? GB_FLOAT32 : f->dtype;
  gb_chain_begin(&f->chain, call->context);
}

/* An input in the dtype of the steps; NULL stays NULL. */
static inline gb_tensor *gb_operand(gb_formula *f, gb_tensor *x) {
  return x ? gb_chain_cast(&f->chain, x, f->compute) : NULL;
}

/* Let go of the steps and give y, in the dtype of the result, to the call, of which it is the only output. */
static inline gb_status gb_formula_end(gb_formula *f, gb_op_call *call, gb_tensor *y) {
  return gb_chain_end(&f->chain, y ? gb_chain_cast(&f->chain, y, f->dtype) : NULL, call->out);
}

static inline gb_tensor *gb_plus(gb_formula *f, gb_tensor *x, gb_tensor *y) {
  return gb_chain_2(&f->chain, GB_OP_add, x, y, NULL);
}
static inline gb_tensor *gb_minus(gb_formula *f, gb_tensor *x, gb_tensor *y) {
  return gb_chain_2(&f->chain, GB_OP_sub, x, y, NULL);
}
static inline gb_tensor *gb_times(gb_formula *f, gb_tensor *x, gb_tensor *y) {
  return gb_chain_2(&f->chain, GB_OP_mul, x, y, NULL);
}
static inline gb_tensor *gb_over(gb_formula *f, gb_tensor *x, gb_tensor *y) {
  return gb_chain_2(&f->chain, GB_OP_div, x, y, NULL);
}
static inline gb_tensor *gb_shifted(gb_formula *f, gb_tensor *x, double by) {
  return gb_chain_number(&f->chain, GB_OP_add, x, by);
}
static inline gb_tensor *gb_scaled(gb_formula *f, gb_tensor *x, double by) {
  return gb_chain_number(&f->chain, GB_OP_mul, x, by);
}

/* number - x */
static inline gb_tensor *gb_from(gb_formula *f, double number, gb_tensor *x) {
  return gb_shifted(f, gb_scaled(f, x, -1), number);
}
static inline gb_tensor *gb_square(gb_formula *f, gb_tensor *x) { return GB_CHAIN(&f->chain, square, .x = x); }
static inline gb_tensor *gb_log(gb_formula *f, gb_tensor *x) { return GB_CHAIN(&f->chain, log, .x = x); }
static inline gb_tensor *gb_equals(gb_formula *f, gb_tensor *x, double number) {
  return gb_chain_number(&f->chain, GB_OP_eq, x, number);
}

/* max(x, 0) */
static inline gb_tensor *gb_above_zero(gb_formula *f, gb_tensor *x) {
  return GB_CHAIN(&f->chain, clamp, .x = x, .min = gb_chain_wrap(&f->chain, 0));
}

/* log(1 + exp(x)), which overflows nowhere; beyond 40 the difference from x is lost in float64 too. */
static inline gb_tensor *gb_soft(gb_formula *f, gb_tensor *x) {
  return GB_CHAIN(&f->chain, softplus, .x = x, .threshold = gb_attr_num(40));
}

/* `number` where the mask is true, else x. */
static inline gb_tensor *gb_filled(gb_formula *f, gb_tensor *x, gb_tensor *mask, double number) {
  return GB_CHAIN(&f->chain, masked_fill, .x = x, .mask = mask, .value = gb_attr_num(number));
}

static inline gb_tensor *gb_unsqueezed(gb_formula *f, gb_tensor *x, int64_t dim) {
  return GB_CHAIN(&f->chain, unsqueeze, .x = x, .dim = gb_attr_int(dim));
}

/* The sum over dimensions first .. last. */
static inline gb_tensor *gb_sum_of(gb_formula *f, gb_tensor *x, int first, int last) {
  int64_t dims[GB_MAX_NDIM], count = 0;
  for (int i = first; i <= last; i++) dims[count++] = i;
  return GB_CHAIN(&f->chain, sum, .x = x, .dim = gb_attr_ints((int)count, dims));
}

/* x, but at least `least`, and its gradient passes as if nothing had been done to it: x is changed without its history,
 * as PyTorch does where something is divided by a norm or a variance. */
static inline gb_tensor *gb_at_least(gb_formula *f, gb_tensor *x, double least) {
  gb_tensor *small = gb_chain_number(&f->chain, GB_OP_lt, x, least);
  gb_tensor *history = gb_minus(f, x, gb_chain_detach(&f->chain, x));
  return GB_CHAIN(&f->chain, where, .condition = small, .x = gb_shifted(f, history, least), .y = x);
}

/* The p-norm along dim. */
static inline gb_tensor *gb_norm_along(gb_formula *f, gb_tensor *x, double p, int64_t dim, bool keepdim) {
  return GB_CHAIN(&f->chain, norm, .x = x, .p = gb_attr_num(p), .dim = gb_attr_ints(1, &dim),
                  .keepdim = gb_attr_int(keepdim));
}

/* ops/distance.c: the p-norm of x - y + eps over the last dimension. */
gb_tensor *gb_distance_of(gb_formula *f, gb_tensor *x, gb_tensor *y, double p, double eps, bool keepdim);

#endif
