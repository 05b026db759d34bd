/* training.h - a small classifier with dropout, trained for a few steps: what the tests of contexts, threads and memory
 * do over and over.
 *
 * Every call is checked and everything is released on every way out, so that a run may be failed at any allocation. */
#ifndef GB_TESTS_TRAINING_H
#define GB_TESTS_TRAINING_H

#include "step/scaler.h"
#include "engine.h"
#include "step/optim.h"

typedef struct training {
  int64_t batch, inputs, hidden, classes;
  int steps;
  gb_optimizer_kind kind;
  gb_dtype lower;                /* autocast in this dtype, with a scaler; GB_DTYPE_NONE: float32 */
} training;

/* The four parameters, what trains them, and one batch. */
typedef struct training_run { gb_tensor *parameter[4], *x,
                              *target; gb_optimizer *optimizer; gb_scaler *scaler; } training_run;

static inline void training_close(training_run *r) {
  gb_scaler_release(r->scaler);
  gb_optimizer_release(r->optimizer);
  for (int i = 0; i < 4; i++) gb_tensor_release(r->parameter[i]);
  gb_tensor_release(r->x);
  gb_tensor_release(r->target);
}

static inline gb_status training_open(gb_context *c, const training *t, training_run *r) {
  int64_t shape[4][2] = { { t->hidden, t->inputs }, { t->hidden }, { t->classes, t->hidden }, { t->classes } };
  gb_scaler_options scaler;
  gb_optim_options options;
  for (int i = 0; i < 4; i++) {
    r->parameter[i] = new_noise(c, GB_FLOAT32, i % 2 ? 1 : 2, shape[i], (uint64_t)i + 1);
    if (!r->parameter[i]) return gb_error_code(c);
    GB_TRY(gb_tensor_set_requires_grad(r->parameter[i], true));
  }
  r->x = new_noise(c, GB_FLOAT32, 2, SHAPE(t->batch, t->inputs), 50);
  if (!r->x) return gb_error_code(c);
  r->target = new_made(c, GB_INT64, 1, &t->batch, make_index, (uint64_t)t->classes);
  if (!r->target) return gb_error_code(c);
  GB_TRY(gb_optimizer_new(c, t->kind, &r->optimizer));
  gb_optim_options_init(t->kind, &options, sizeof options);
  options.numbers.number[gb_optimizer_hyper(t->kind, "lr")->at] = 0.05;
  GB_TRY(gb_optimizer_add_group(r->optimizer, r->parameter, NULL, 4, &options));
  gb_scaler_options_init(&scaler, sizeof scaler);
  scaler.enabled = t->lower == GB_FLOAT16;
  scaler.init_scale = 1024;
  return gb_scaler_new(c, &scaler, &r->scaler);
}

/* loss = cross_entropy(linear(dropout(relu(linear(x))))) */
static inline gb_status training_loss(gb_context *c, const training_run *r, gb_tensor **loss) {
  gb_attr relu = gb_attr_text("relu"), p = gb_attr_num(0.25);
  gb_attr activation[GB_MAX_ATTRS] = { relu }, dropout[GB_MAX_ATTRS] = { p };
  gb_tensor *hidden[GB_MAX_OUT] = { NULL }, *dropped[GB_MAX_OUT] = { NULL }, *logits[GB_MAX_OUT] = { NULL },
      *out[GB_MAX_OUT] = { NULL };
  gb_status status = gb_apply(c, GB_OP_linear, (gb_tensor *[]){ r->x, r->parameter[0], r->parameter[1] }, 3, activation,
                              hidden);
  if (status == GB_OK) status = gb_apply(c, GB_OP_dropout, hidden, 1, dropout, dropped);
  if (status == GB_OK)
    status = gb_apply(c, GB_OP_linear, (gb_tensor *[]){ dropped[0], r->parameter[2], r->parameter[3] }, 3, NULL,
                      logits);
  if (status == GB_OK)
    status = gb_apply(c, GB_OP_cross_entropy, (gb_tensor *[]){ logits[0], r->target, NULL }, 3, NULL, out);
  gb_tensor_release(hidden[0]);
  gb_tensor_release(dropped[0]);
  gb_tensor_release(logits[0]);
  *loss = out[0];
  return status;
}

static inline gb_status training_step(gb_context *c, const training *t, training_run *r, double *loss_value) {
  gb_tensor *loss = NULL, *scaled = NULL;
  double norm;
  gb_modes *modes = c->modes;
  modes->autocast = t->lower != GB_DTYPE_NONE;
  if (modes->autocast) modes->lower = t->lower;
  gb_status status = training_loss(c, r, &loss);
  modes->autocast = false;
  if (status == GB_OK) status = gb_scaler_scale(r->scaler, loss, &scaled);
  if (status == GB_OK) status = gb_optimizer_zero_grad(r->optimizer);
  if (status == GB_OK) status = gb_backward(scaled, NULL, false, false);
  if (status == GB_OK) status = gb_scaler_unscale(r->scaler, r->optimizer);
  if (status == GB_OK) status = gb_clip_grad_norm(c, r->parameter, 4, 1.0, 2, &norm);
  if (status == GB_OK) status = gb_scaler_step(r->scaler, r->optimizer);
  if (status == GB_OK) status = gb_scaler_update(r->scaler, 0);
  if (status == GB_OK) status = gb_tensor_item(loss, loss_value, NULL);
  gb_tensor_release(loss);
  gb_tensor_release(scaled);
  return status;
}

/* Train from the beginning; *hash stands for the bits of every parameter, *loss is the last one. */
static inline gb_status training_go(gb_context *c, const training *t, uint64_t *hash, double *loss) {
  training_run r = { 0 };
  gb_manual_seed(c, 11);
  gb_status status = training_open(c, t, &r);
  for (int i = 0; status == GB_OK && i < t->steps; i++) status = training_step(c, t, &r, loss);
  *hash = 14695981039346656037u;
  for (int i = 0; status == GB_OK && i < 4; i++) *hash = hash_tensor(r.parameter[i], *hash);
  training_close(&r);
  return status;
}

#endif
