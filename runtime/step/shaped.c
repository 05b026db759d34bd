/* step/shaped.c - see shaped.h. Ops are recorded by no graph and cast by no autocast; they run before any weight
 * changes. */
#include "step/shaped.h"

#include <math.h>

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
static gb_status orthogonalise(gb_context *c, const gb_optim_numbers *numbers, gb_tensor *x) {
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

static const struct {
  gb_status (*check)(gb_context *context, const gb_tensor *parameter, const char *label);
  gb_status (*apply)(gb_context *context, const gb_optim_numbers *numbers, gb_tensor *directions);
} shaped[GB_OPTIMIZERS] = { [GB_Muon] = { check_matrix, orthogonalise } };

gb_status gb_shaped_check(gb_context *context, gb_optimizer_kind kind, const gb_tensor *parameter, const char *label) {
  return shaped[kind].check ? shaped[kind].check(context, parameter, label) : GB_OK;
}

gb_status gb_shaped_apply(gb_context *context, gb_optimizer_kind kind, const gb_optim_numbers *numbers,
                          gb_tensor *directions) {
  gb_modes *outer = context->modes, plain = *outer;
  if (directions->numel == 0) return GB_OK;
  plain.grad = plain.autocast = false;
  context->modes = &plain;
  gb_status status = shaped[kind].apply(context, numbers, directions);
  context->modes = outer;
  return status;
}
