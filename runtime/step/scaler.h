/* step/scaler.h - the gradient scaler: PyTorch's names, stages, defaults, errors and state, without host waits.
 *
 * Stages per optimizer: ready -> unscaled (unscale) -> stepped (step) -> ready (update). Four modes: dynamic; static;
 * scheduled (gb_scaler_set_schedule); and one scaler per loss (per_loss), whose gradients lose their scale as they
 * reach parameters, so that losses with scales of their own may share an optimizer: step it by any one of the scalers,
 * then update each. */
#ifndef GB_STEP_SCALER_H
#define GB_STEP_SCALER_H

#include "step/optim.h"

typedef struct gb_scaler gb_scaler;

typedef struct gb_scaler_options {
  size_t size;               /* set by gb_scaler_options_init */
  bool enabled;              /* false: every call does nothing, as PyTorch's */
  bool dynamic;              /* false: the scale stays init_scale */
  double init_scale;         /* 65536 */
  double growth_factor;      /* 2 */
  double backoff_factor;     /* 0.5 */
  int64_t growth_interval;   /* 2000 */
  double min_scale;          /* 2^-14; 0: none */
  double max_scale;          /* 0: none */
  int64_t max_skips;         /* 64 skips in a row are an error that carries the report; 0: never */
  int64_t hysteresis;        /* 1: the scale shrinks from this many skips in a row on; a finite step refills the
                                tolerance, a backoff does not */
  bool per_loss;             /* gradients are unscaled as they reach the parameters of an optimizer */
} gb_scaler_options;

void gb_scaler_options_init(gb_scaler_options *options, size_t size);
gb_status gb_scaler_new(gb_context *context, const gb_scaler_options *options, gb_scaler **out);
void gb_scaler_retain(gb_scaler *scaler);
void gb_scaler_release(gb_scaler *scaler);

/* loss * scale in float32 (loss itself, retained, when disabled). Gradients that come back through it carry the
 * scaler's tag. */
gb_status gb_scaler_scale(gb_scaler *scaler, gb_tensor *loss, gb_tensor **out);
/* Divide the optimizer's gradients by the scale in place, and note whether they are finite and their 2-norm: while
 * nothing has written to them, it is what a clip over all of them would measure. */
gb_status gb_scaler_unscale(gb_scaler *scaler, gb_optimizer *optimizer);
/* Step, unless a gradient is not finite; the kernel decides. */
gb_status gb_scaler_step(gb_scaler *scaler, gb_optimizer *optimizer);
/* Unscale (where that was not done yet), clip the norm of all the optimizer's gradients to max_norm, and step, bit for
 * bit as by those calls: one pass checks and measures, the step clips. Gradients are in their true size and clipped
 * afterwards, also where the step was skipped. *norm (may be NULL) is the norm before, a 0-d float64 tensor where the
 * gradients are; one that is not finite skips the step. Also clips when the scaler is disabled. */
gb_status gb_scaler_step_clipped(gb_scaler *scaler, gb_optimizer *optimizer, double max_norm, double norm_type,
                                 gb_tensor **norm);
/* New scale from the flags of every optimizer stepped since the last update; new_scale above 0 sets it instead. */
gb_status gb_scaler_update(gb_scaler *scaler, double new_scale);

/* The scale of the step to come. step counts from 1 the steps that happened: after a skip the same number is asked for
 * again. */
typedef gb_status (*gb_scale_schedule)(gb_context *context, void *user, int64_t step, double *scale);
/* Ask fn for the scale, now and at every update that is given none. The scaler owns user from here on, also if this
 * fails; release (may be NULL) frees it. Meant for static scalers: a dynamic one would change its scale before fn is
 * asked. */
gb_status gb_scaler_set_schedule(gb_scaler *scaler, gb_scale_schedule fn, void *user, void (*release)(void *user));

/* Wait until the result of the last update is known. Call it before a graph is replayed, which overwrites the
 * result. */
gb_status gb_scaler_settle(gb_scaler *scaler);
/* For captured steps: look at the device's result if it has arrived. again: an update was replayed since. */
gb_status gb_scaler_heed(gb_scaler *scaler, bool again);

typedef struct gb_scaler_stats { double scale; int64_t steps, skipped, skipped_in_a_row,
                                 growth_tracker; bool last_skipped; } gb_scaler_stats;
gb_status gb_scaler_get_stats(gb_scaler *scaler, gb_scaler_stats *out);
const gb_scaler_options *gb_scaler_get_options(const gb_scaler *scaler);
/* Change what may change between steps: growth_factor, backoff_factor, growth_interval, min_scale, max_scale,
 * max_skips, hysteresis. */
gb_status gb_scaler_set_options(gb_scaler *scaler, const gb_scaler_options *options);
gb_status gb_scaler_set_state(gb_scaler *scaler, double scale, int64_t growth_tracker);
/* Restore the counters, which schedules and hysteresis go on from; gb_scaler_set_state has set skipped_in_a_row to
 * 0. */
gb_status gb_scaler_set_counts(gb_scaler *scaler, int64_t steps, int64_t skipped, int64_t skipped_in_a_row);
/* Names of the parameters whose gradients were not finite at the last skip, ", " between them; "" when there was
 * none. */
const char *gb_scaler_report(gb_scaler *scaler);
/* What made the first value that was not finite at the last skip: the op, the recipe's line, and whether it is finite
 * at half the scale. A skip arms the trace that finds it, so it is known from the second skip in a row on; ""
 * before. */
const char *gb_scaler_cause(gb_scaler *scaler);
/* Find a scaler by the id in a gradient's tag; NULL if it is gone. Not counted. */
gb_scaler *gb_scaler_find(const gb_context *context, uint32_t id);
gb_scale_state *gb_scaler_scale_state(gb_scaler *scaler); /* in the memory of the device that the losses are on */
uint32_t gb_scaler_id(const gb_scaler *scaler);
/* Do gradients with this tag lose their scale before they are added to a parameter of an optimizer? */
bool gb_scaler_receives(const gb_context *context, gb_grad_tag tag);
/* A gradient with this tag is about to be added to a parameter of an optimizer. Where its scaler is one per loss, *out
 * is the gradient without scale (new reference, untagged, of this dtype), and the scaler knows whether it was finite;
 * otherwise *out is grad itself, retained. */
gb_status gb_scaler_receive(gb_context *context, gb_tensor *grad, gb_dtype dtype, gb_tensor **out);
/* The tag of gradients that come back through gb_scaler_scale now. */
gb_grad_tag gb_scaler_tag(const gb_scaler *scaler);

#endif
