/* step/optim.h - optimizers over slabs: one pass that unscales, checks, updates and refreshes 16-bit copies. */
#ifndef GB_STEP_OPTIM_H
#define GB_STEP_OPTIM_H

#include "graph/ops.h"
#include "tensor/slab.h"

struct gb_scaler;

typedef struct gb_optimizer gb_optimizer;
/* Hyperparameters of one group: options.numbers.AdamW.lr and so on, as base/optimizers.def declares them. */
typedef struct gb_optim_options {
  size_t size;               /* set by gb_optim_options_init */
  gb_optim_numbers numbers;
} gb_optim_options;

void gb_optim_options_init(gb_optimizer_kind kind, gb_optim_options *options, size_t size);

/* {---- what base/optimizers.def declares, as data ---- */

typedef enum gb_hyper_type { GB_HYPER_NUMBER, GB_HYPER_LIST, GB_HYPER_FLAG, GB_HYPER_CHOICE } gb_hyper_type;

/* Finite values from `least` on, below `below`; whole ones only. */
typedef struct gb_bound { double least, below; bool whole; const char *text; } gb_bound;

typedef struct gb_hyper {
  const char *name;          /* as recipes write it */
  gb_hyper_type type;
  bool rate;                 /* it may change between replays of a captured step */
  int at, count;             /* its place among the numbers, and how many it takes */
  double preset[3];
  const char *preset_text;   /* as a recipe would write it; of a choice all words: "first|second" */
  const gb_bound *bound;     /* NULL of a flag and of a choice */
} gb_hyper;

/* A state of another shape than the parameter's. */
typedef struct gb_factor_info { const char *name; gb_factor_form form; } gb_factor_info;

typedef struct gb_optimizer_info {
  const char *name, *doc;
  const gb_hyper *hypers;
  int n_hypers;
  const char *const *states;
  int n_states;
  const gb_factor_info *factors;
  int n_factors;
  bool measured;             /* a step needs norms of each parameter first */
  bool shaped;               /* a step brings the last state, which ops change */
} gb_optimizer_info;

const gb_optimizer_info *gb_optimizer_info_of(gb_optimizer_kind kind);
/* The hyperparameter of that name; NULL: this kind has none. */
const gb_hyper *gb_optimizer_hyper(gb_optimizer_kind kind, const char *name);
/* Can the hyperparameter have this value? NULL: yes; else what it must be. */
const char *gb_hyper_refuses(const gb_hyper *hyper, double value);
/* What these hyperparameters lack together, or NULL. */
const char *gb_optimizer_needs(gb_optimizer_kind kind, const gb_optim_numbers *numbers);
/* Does a step with these hyperparameters use that state? */
bool gb_optimizer_uses(gb_optimizer_kind kind, const gb_optim_numbers *numbers, int state);

/* ----} */

gb_status gb_optimizer_new(gb_context *context, gb_optimizer_kind kind, gb_optimizer **out);
void gb_optimizer_retain(gb_optimizer *optimizer);
void gb_optimizer_release(gb_optimizer *optimizer);
/* Adopt parameters as a new group: their storages move into slabs, and their gradients are kept there (float32 for
 * 16-bit ones, which also get float32 masters). names may be NULL, or holds one name (may be NULL) per parameter, for
 * reports. A tensor that is no leaf, or that is in this optimizer already (other than tied within this call), is an
 * error. */
gb_status gb_optimizer_add_group(gb_optimizer *optimizer, gb_tensor *const *parameters, const char *const *names,
                                 int count,
                                 const gb_optim_options *options);
int gb_optimizer_groups(const gb_optimizer *optimizer);
gb_optim_options *gb_optimizer_group(gb_optimizer *optimizer, int group);      /* may be changed between steps */
gb_optimizer_kind gb_optimizer_get_kind(const gb_optimizer *optimizer);

gb_status gb_optimizer_step(gb_optimizer *optimizer);  /* gradients that carry a scale are divided by it first */
gb_status gb_optimizer_zero_grad(gb_optimizer *optimizer);

/* Every parameter in order of adoption, with its group and place: for state_dict and for clipping. */
typedef struct gb_optim_param { gb_tensor *parameter; gb_slab *slab; gb_segment *segment; int group; const char *name;
                                } gb_optim_param;
int gb_optimizer_params(gb_optimizer *optimizer, const gb_optim_param **out);

/* State of one parameter as tensors (views of the slabs, new references): the names that the kind declares, and
 * "master". Returns how many; -1: out of memory, text set. steps: taken by the segment. */
enum { GB_OPTIM_STATE_TENSORS = GB_OPTIM_STATES + GB_OPTIM_FACTORS + 1 };
typedef struct gb_optim_state { const char *name; gb_tensor *tensor; } gb_optim_state;
int gb_optimizer_state(gb_optimizer *optimizer, int param, gb_optim_state out[GB_OPTIM_STATE_TENSORS], int64_t *steps);
gb_status gb_optimizer_set_steps(gb_optimizer *optimizer, int param, int64_t steps);

/* {---- clipping: over any parameters, adopted or not; gradients that carry a scale are treated by their true size ----
 * */

/* *norm is the total norm of the unscaled gradients before clipping. One that is not finite counts as non-finite
 * gradients for the scaler, which skips the step; without a scaler gradients are multiplied by max_norm / norm as ever,
 * which makes them 0 or NaN: no step goes unclipped. */
gb_status gb_clip_grad_norm(gb_context *context, gb_tensor *const *parameters, int count, double max_norm,
                            double norm_type, double *norm);
/* The same without waiting for a device: the norm is a 0-d float64 tensor where the gradients are. finite: one that is
 * not finite is an error, and no gradient is changed; this waits. */
gb_status gb_clip_grad_norm_tensor(gb_context *context, gb_tensor *const *parameters, int count, double max_norm,
                                   double norm_type, bool finite,
                                   gb_tensor **norm);
gb_status gb_clip_grad_value(gb_context *context, gb_tensor *const *parameters, int count, double value);

/* ----} */

#endif
