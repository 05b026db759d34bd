/* optim/optim.h - optimizers over slabs: one pass that unscales, checks, updates and refreshes 16-bit copies. */
#ifndef GB_OPTIM_OPTIM_H
#define GB_OPTIM_OPTIM_H

#include "ops/ops.h"
#include "tensor/step_state.h"

struct gb_scaler;

typedef struct gb_optimizer gb_optimizer;
typedef enum gb_optimizer_kind { GB_SGD, GB_ADAM, GB_ADAMW } gb_optimizer_kind;

/* Hyperparameters of one group. */
typedef struct gb_optim_options {
  size_t size;               /* set by gb_optim_options_init */
  double lr;                 /* SGD 1e-3, Adam 1e-3, AdamW 1e-3 */
  double beta1, beta2, eps;  /* 0.9, 0.999, 1e-8 */
  double weight_decay;       /* 0; AdamW 1e-2 */
  double momentum, dampening;
  bool nesterov, maximize;
} gb_optim_options;

void gb_optim_options_init(gb_optimizer_kind kind, gb_optim_options *options, size_t size);

gb_status gb_optimizer_new(gb_context *context, gb_optimizer_kind kind, gb_optimizer **out);
void gb_optimizer_retain(gb_optimizer *optimizer);
void gb_optimizer_release(gb_optimizer *optimizer);
/* Adopt parameters as a new group: their storages move into slabs, and their gradients are kept there (float32 for 16-bit ones, which also
 * get float32 masters). names may be NULL, or holds one name (may be NULL) per parameter, for reports. A tensor that is no leaf, or that is
 * in this optimizer already (other than tied within this call), is an error. */
gb_status gb_optimizer_add_group(gb_optimizer *optimizer, gb_tensor *const *parameters, const char *const *names, int count,
                                 const gb_optim_options *options);
int gb_optimizer_groups(const gb_optimizer *optimizer);
gb_optim_options *gb_optimizer_group(gb_optimizer *optimizer, int group);      /* may be changed between steps */
gb_optimizer_kind gb_optimizer_get_kind(const gb_optimizer *optimizer);

gb_status gb_optimizer_step(gb_optimizer *optimizer);  /* gradients that carry a scale are divided by it first */
gb_status gb_optimizer_zero_grad(gb_optimizer *optimizer);

/* Every parameter in order of adoption, with its group and place: for state_dict and for clipping. */
typedef struct gb_optim_param { gb_tensor *parameter; gb_slab *slab; gb_segment *segment; int group; const char *name; } gb_optim_param;
int gb_optimizer_params(gb_optimizer *optimizer, const gb_optim_param **out);

/* State of one parameter as tensors (views of the slabs, new references): kind-specific names "exp_avg", "exp_avg_sq", "momentum_buffer",
 * "master". Returns how many, at most 4; -1: out of memory, text set. steps: taken by the segment. */
typedef struct gb_optim_state { const char *name; gb_tensor *tensor; } gb_optim_state;
int gb_optimizer_state(gb_optimizer *optimizer, int param, gb_optim_state out[4], int64_t *steps);
gb_status gb_optimizer_set_steps(gb_optimizer *optimizer, int param, int64_t steps);

/* {---- clipping: over any parameters, adopted or not; gradients that carry a scale are treated by their true size ---- */

/* *norm is the total norm of the unscaled gradients before clipping. One that is not finite counts as non-finite gradients for the scaler, which
 * skips the step; without a scaler gradients are multiplied by max_norm / norm as ever, which makes them 0 or NaN: no step goes unclipped. */
gb_status gb_clip_grad_norm(gb_context *context, gb_tensor *const *parameters, int count, double max_norm, double norm_type, double *norm);
/* The same without waiting for a device: the norm is a 0-d float64 tensor where the gradients are. finite: one that is not finite is an error, and
 * no gradient is changed; this waits. */
gb_status gb_clip_grad_norm_tensor(gb_context *context, gb_tensor *const *parameters, int count, double max_norm, double norm_type, bool finite,
                                   gb_tensor **norm);
gb_status gb_clip_grad_value(gb_context *context, gb_tensor *const *parameters, int count, double value);

/* ----} */

#endif
