/* step/shaped.c - see shaped.h. Ops are recorded by no graph and cast by no autocast; they run before any weight
 * changes. */
#include "step/shaped.h"

#include <float.h>
#include <math.h>

#include "graph/chain.h"
#include "tensor/modes.h"
#include "graph/room.h"
#include "step/weights.h"

/* {==== Muon ==== */

/* A matrix is a step's direction: nothing else has singular values. */
static gb_status check_matrix(gb_context *context, const gb_tensor *parameter, const char *label) {
  if (parameter->ndim == 2) return GB_OK;
  return gb_fail(context, GB_EINVAL, "Muon: %s has %d dimensions; Muon steps matrices, so give this one to an "
                                     "optim.AdamW", label,
                 parameter->ndim);
}

/* x = a x + (b s + c s s) x with s = x x', which brings singular values from 0 .. 1 towards 1. */
static gb_status iterate(gb_context *c, const gb_Muon_hyper *h, gb_tensor **x) {
  gb_tensor *turned = NULL, *gram = NULL, *factor = NULL, *next = NULL;
  gb_status status = GB_RUN(c, t, &turned, .x = *x);
  if (status == GB_OK) status = GB_RUN(c, matmul, &gram, .x = *x, .y = turned);
  if (status == GB_OK)
    status = GB_RUN(c, addmm, &factor, .x = gram, .a = gram, .b = gram, .beta = gb_attr_num(h->ns_coefficient2),
                    .alpha = gb_attr_num(h->ns_coefficient3));
  if (status == GB_OK)
    status = GB_RUN(c, addmm, &next, .x = *x, .a = factor, .b = *x, .beta = gb_attr_num(h->ns_coefficient1),
                    .alpha = gb_attr_num(1));
  gb_drop(&turned);
  gb_drop(&gram);
  gb_drop(&factor);
  if (status != GB_OK) return status;
  gb_drop(x);
  *x = next;
  return GB_OK;
}

/* *out: x in the dtype of the products, no taller than wide, and of norm 1. */
static gb_status normalise(gb_context *c, const gb_Muon_hyper *h, gb_tensor *x, bool tall, gb_tensor **out) {
  gb_tensor *narrow = NULL, *wide = NULL, *norm = NULL, *least = NULL;
  gb_status status = gb_op_cast(c, x, x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_BFLOAT16, &narrow);
  if (status == GB_OK && tall) status = GB_RUN(c, t, &wide, .x = narrow);
  if (status == GB_OK && !tall) gb_tensor_retain(wide = narrow);
  if (status == GB_OK) status = GB_RUN(c, norm, &norm, .x = wide, .p = gb_attr_num(2));
  if (status == GB_OK) status = gb_op_number(c, GB_OP_maximum, norm, h->eps, &least);
  if (status == GB_OK) status = GB_RUN(c, div, out, .x = wide, .y = least);
  gb_drop(&narrow);
  gb_drop(&wide);
  gb_drop(&norm);
  gb_drop(&least);
  return status;
}

/* What the learning rate of a matrix is multiplied by, in the order of the choice's words. */
static double adjustment(const gb_Muon_hyper *h, double rows, double columns) {
  const double factors[] = { sqrt(fmax(1, rows / columns)), 0.2 * sqrt(fmax(rows, columns)), sqrt(rows / columns) };
  return factors[(int)h->adjust_lr_fn];
}

/* As torch.optim.Muon, whose products are bfloat16 for any dtype. */
static gb_status orthogonalise(gb_context *c, const gb_optim_numbers *numbers, const gb_shaped_room *room) {
  gb_tensor *x = room->directions;
  const gb_Muon_hyper *h = &numbers->Muon;
  bool tall = x->shape[0] > x->shape[1];
  gb_tensor *unit = NULL, *turned = NULL, *wide = NULL, *scaled = NULL;
  gb_status status = normalise(c, h, x, tall, &unit);
  for (int i = 0; status == GB_OK && i < (int)h->ns_steps; i++) status = iterate(c, h, &unit);
  if (status == GB_OK && tall) status = GB_RUN(c, t, &turned, .x = unit);
  if (status == GB_OK) status = gb_op_cast(c, tall ? turned : unit, (gb_dtype)x->dtype, &wide);
  double factor = adjustment(h, (double)x->shape[0], (double)x->shape[1]);
  if (status == GB_OK) status = gb_op_number(c, GB_OP_mul, wide, factor, &scaled);
  if (status == GB_OK) status = gb_weight_copy_values(x, scaled);
  gb_drop(&unit);
  gb_drop(&turned);
  gb_drop(&wide);
  gb_drop(&scaled);
  return status;
}

/* ====} */

/* {==== Adafactor ==== */

/* The factor goes towards the means of g * g along a dim, and is what it gives. */
static gb_tensor *follow(gb_chain *chain, gb_tensor *factor, gb_tensor *g, int dim, gb_tensor *rate) {
  int64_t along = dim < 0 ? dim + g->ndim : 0;
  gb_tensor *squares = GB_CHAIN(chain, square, .x = g);
  if (dim < 0) squares = GB_CHAIN(chain, mean, .x = squares, .dim = gb_attr_ints(1, &along),
                                  .keepdim = gb_attr_int(true));
  gb_tensor *next = GB_CHAIN(chain, lerp, .x = factor, .y = squares, .weight = rate);
  if (chain->status == GB_OK) chain->status = gb_weight_copy_values(factor, next);
  return factor;
}

/* What g * g is on average, by the factors. The row's is divided by the mean of all before the two are multiplied, so
 * that their product leaves the range of float32 only where the variance itself does. */
static gb_tensor *variance_of(gb_chain *chain, const gb_shaped_room *room, gb_tensor *rate, double eps) {
  gb_tensor *g = room->directions;
  if (g->ndim < 2) return follow(chain, room->factors[GB_FACTOR_WHOLE], g, 0, rate);
  int64_t rows = g->ndim - 2;
  gb_tensor *row = follow(chain, room->factors[GB_FACTOR_ROWS], g, -1, rate);
  gb_tensor *column = follow(chain, room->factors[GB_FACTOR_COLUMNS], g, -2, rate);
  gb_tensor *all = GB_CHAIN(chain, mean, .x = row, .dim = gb_attr_ints(1, &rows), .keepdim = gb_attr_int(true));
  row = GB_CHAIN(chain, div, .x = row, .y = gb_chain_number(chain, GB_OP_maximum, all, eps));
  return GB_CHAIN(chain, mul, .x = row, .y = column);
}

/* The root of the mean of x * x. */
static gb_tensor *size_of(gb_chain *chain, gb_tensor *x) {
  gb_tensor *norm = GB_CHAIN(chain, norm, .x = x, .p = gb_attr_num(2));
  return gb_chain_number(chain, GB_OP_div, norm, sqrt((double)x->numel));
}

/* As torch.optim.Adafactor; the factors are declared in the order of their forms. */
static gb_status factorise(gb_context *context, const gb_optim_numbers *numbers, const gb_shaped_room *room) {
  const gb_Adafactor_hyper *h = &numbers->Adafactor;
  gb_tensor *g = room->directions, *made = NULL;
  gb_dtype dtype = (gb_dtype)g->dtype;
  double eps = h->ep1 != 0 ? h->ep1 : dtype == GB_FLOAT64 ? DBL_EPSILON : (double)FLT_EPSILON;
  gb_chain chain;
  gb_chain_begin(&chain, context);
  gb_tensor *count = gb_chain_number(&chain, GB_OP_add, gb_chain_cast(&chain, room->steps, GB_FLOAT64), 1);
  gb_tensor *rate = gb_chain_cast(&chain, gb_chain_number(&chain, GB_OP_pow, count, h->beta2_decay), dtype);
  gb_tensor *variance = gb_chain_number(&chain, GB_OP_maximum, variance_of(&chain, room, rate, eps), eps * eps);
  gb_tensor *update = GB_CHAIN(&chain, mul, .x = GB_CHAIN(&chain, rsqrt, .x = variance), .y = g);
  gb_tensor *over = chain.status == GB_OK ? gb_chain_number(&chain, GB_OP_div, size_of(&chain, update), h->d) : NULL;
  gb_tensor *size = gb_chain_number(&chain, GB_OP_maximum, size_of(&chain, room->weights), h->ep2);
  size = GB_CHAIN(&chain, div, .x = size, .y = gb_chain_number(&chain, GB_OP_maximum, over, 1));
  gb_status status = gb_chain_end(&chain, GB_CHAIN(&chain, mul, .x = update, .y = size), &made);
  if (status == GB_OK) status = gb_weight_copy_values(g, made);
  gb_drop(&made);
  return status;
}

/* ====} */

static const struct {
  gb_status (*check)(gb_context *context, const gb_tensor *parameter, const char *label);
  gb_status (*apply)(gb_context *context, const gb_optim_numbers *numbers, const gb_shaped_room *room);
} shaped[GB_OPTIMIZERS] = { [GB_Muon] = { check_matrix, orthogonalise }, [GB_Adafactor] = { NULL, factorise } };

gb_status gb_shaped_check(gb_context *context, gb_optimizer_kind kind, const gb_tensor *parameter, const char *label) {
  return shaped[kind].check ? shaped[kind].check(context, parameter, label) : GB_OK;
}

gb_status gb_shaped_apply(gb_context *context, gb_optimizer_kind kind, const gb_optim_numbers *numbers,
                          const gb_shaped_room *room) {
  gb_modes *outer = context->modes, plain = *outer;
  if (room->directions->numel == 0) return GB_OK;
  plain.grad = plain.autocast = false;
  context->modes = &plain;
  gb_status status = shaped[kind].apply(context, numbers, room);
  context->modes = outer;
  return status;
}

gb_status gb_shaped_choose(gb_context *context, gb_tensor *found, gb_tensor *old, gb_tensor *next, gb_tensor **out) {
  gb_modes *outer = context->modes, plain = *outer;
  if (!found) {
    gb_tensor_retain(*out = next);
    return GB_OK;
  }
  plain.grad = plain.autocast = false;
  context->modes = &plain;
  gb_chain chain;
  gb_chain_begin(&chain, context);
  gb_tensor *skips = gb_chain_number(&chain, GB_OP_ne, found, 0);
  gb_status status = gb_chain_end(&chain, GB_CHAIN(&chain, where, .condition = skips, .x = old, .y = next), out);
  context->modes = outer;
  return status;
}
