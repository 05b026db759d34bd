/* step/optimizer.h - inside of the engine: what an optimizer is made of, for clipping and for the scaler. */
#ifndef GB_STEP_OPTIMIZER_H
#define GB_STEP_OPTIMIZER_H

#include <stdatomic.h>

#include "step/optim.h"
#include "step/passes.h"
#include "step/adoption.h"
#include "step/split.h"
#include "tensor/scalars.h"

typedef struct gb_group {
  gb_optim_options options;
  gb_owned_slab **slabs;
  int n_slabs;
  gb_scalars rates;            /* gb_optim_numbers, open from the first step on a device: replays of a captured one read
                                  them */
  gb_optim_numbers brought;    /* what they hold; its first number is NaN before anything was brought */
  gb_optim_options captured;   /* the settings then */
} gb_group;

struct gb_optimizer {
  _Atomic int32_t refs;
  gb_context *context;         /* counted */
  gb_optimizer_kind kind;
  gb_scalars found;            /* a gb_found_state, since the scaler last looked; open from the first group on, where
                                  its parameters are */
  gb_group **groups;
  int n_groups;
  gb_optim_param *params;      /* one per segment, names owned */
  int n_params;
  gb_tensor **held;            /* every tensor adopted, counted; tied ones too */
  int n_held;
  int measured;                /* gradients whose 2-norm unscale_ has left in found; 0: none. See
                                  gb_optimizer_is_measured */
  uint64_t measured_turn;      /* the room's graph_turns then */
  gb_split split;              /* gather NULL: it is not split */
  bool asks;                   /* norms or flags of gradients that are shared out have been asked for */
  bool guarded;                /* unscale_ has run since found was clear: the scaler's step will look at it */
};

/* A step that clips: the norm of all of the optimizer's gradients, to max_norm. */
typedef struct gb_clip { double max_norm, norm_type; } gb_clip;

/* Is the flag up? On a device this waits for it. */
gb_status gb_optimizer_found(const gb_optimizer *optimizer, bool *found);

/* The first parameter that has a gradient, or -1. */
int gb_optimizer_first_gradient(const gb_optimizer *optimizer);
/* The first parameter whose gradient carries another tag than this one, or -1. */
int gb_optimizer_first_unlike(const gb_optimizer *optimizer, gb_grad_tag tag);
/* What a gradient of this tag, which is GB_TAG_MIXED, adds up, and the cure: the end of a sentence about it. */
const char *gb_mixed_tag_text(gb_grad_tag tag);
/* The name of a parameter for messages. */
const char *gb_optimizer_label(const gb_optimizer *optimizer, int param, char *buffer, size_t size);

/* Clear what was found: no flag, no norm. */
gb_status gb_optimizer_clear_found(gb_optimizer *optimizer);
/* Run GB_STEP_CHECK or GB_STEP_UNSCALE over all gradients, which carry the scalars' scale (NULL: none), and join their
 * norm of a type (0: none) to the one in found; flags are set, never cleared. */
gb_status gb_optimizer_inspect(gb_optimizer *optimizer, gb_step step, gb_scale_state *scale, double norm_type);
/* Divide all gradients by the scalars' scale in place; found, which is clear, gets the flag and the norm. */
gb_status gb_optimizer_unscale(gb_optimizer *optimizer, gb_scale_state *scale);
/* Does found hold the 2-norm of all gradients as they are now? Only where nobody can have written to one since they
 * were unscaled: every gradient's version is the one of then, no graph was captured or replayed in between, and no
 * pointer to them went out of the engine. */
bool gb_optimizer_is_measured(const gb_optimizer *optimizer);
/* The norm of all gradients, which carry the scalars' scale (NULL: none), in found and, as *norm, in a 0-d float64
 * tensor. */
gb_status gb_optimizer_norm(gb_optimizer *optimizer, gb_scale_state *scale, double norm_type, gb_tensor **norm);
/* The norm that a gb_found_state stands for, as a tensor of its own. */
gb_status gb_norm_tensor(const gb_scalars *scalars, double norm_type, gb_tensor **out);
/* One step. scale NULL: no scaler. scaled: gradients carry its scale. guarded: no weight changes when the found flag is
 * up. clip (or NULL): by the norm in found, within the same pass; gradients lose their scale. */
gb_status gb_optimizer_update(gb_optimizer *optimizer, gb_scale_state *scale, bool scaled, bool guarded,
                              const gb_clip *clip);
/* A step that clips, without a scaler. *norm is the norm before, a 0-d float64 tensor; on failure it may be
 * there, for the caller to release. */
gb_status gb_optimizer_step_clipped(gb_optimizer *optimizer, const gb_clip *clip, gb_tensor **norm);
/* Bring learning rate and weight decay of every group to where a captured step reads them. Other settings that have
 * changed since are an error. */
gb_status gb_optimizer_bring_rates(gb_optimizer *optimizer);
/* A captured step was replayed: bump the version of every weight that it may have written. */
void gb_optimizer_replayed(gb_optimizer *optimizer);
/* The scalars of the scale that a gradient carries (NULL for an untagged one), or an error where it is not the scaler's
 * any more. */
gb_status gb_optimizer_scale_of(gb_context *context, gb_grad_tag tag, const char *who, gb_scale_state **out);

#endif
