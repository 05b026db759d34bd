/* optim/optimizer.h - inside of the engine: what an optimizer is made of, for clipping and for the scaler. */
#ifndef GB_OPTIM_OPTIMIZER_H
#define GB_OPTIM_OPTIMIZER_H

#include <stdatomic.h>

#include "optim/optim.h"
#include "optim/slab.h"
#include "tensor/record.h"

typedef struct gb_group {
  gb_optim_options options;
  gb_owned_slab **slabs;
  int n_slabs;
  gb_record rates;             /* gb_step_rates, open from the first step on a device: replays of a captured one read them */
  gb_step_rates brought;       /* what they hold */
  gb_optim_options captured;   /* the settings then */
} gb_group;

struct gb_optimizer {
  _Atomic int32_t refs;
  gb_context *context;         /* counted */
  gb_optimizer_kind kind;
  gb_record found;             /* a gb_found_record, since the scaler last looked; open from the first group on, where its parameters are */
  gb_group **groups;
  int n_groups;
  gb_optim_param *params;      /* one per segment, names owned */
  int n_params;
  gb_tensor **held;            /* every tensor adopted, counted; tied ones too */
  int n_held;
};

static inline bool gb_same_tag(gb_grad_tag a, gb_grad_tag b) { return a.scaler == b.scaler && a.update == b.update; }

/* Is the flag up? On a device this waits for it. */
gb_status gb_optimizer_found(const gb_optimizer *optimizer, bool *found);

/* The first parameter that has a gradient, or -1. */
int gb_optimizer_first_gradient(const gb_optimizer *optimizer);
/* The first parameter whose gradient carries another tag than this one, or -1. */
int gb_optimizer_first_unlike(const gb_optimizer *optimizer, gb_grad_tag tag);
/* The name of a parameter for messages. */
const char *gb_optimizer_label(const gb_optimizer *optimizer, int param, char *buffer, size_t size);

/* Run optim_check or optim_unscale over all gradients, which carry the record's scale (NULL: none); flags are set, never cleared. */
gb_status gb_optimizer_inspect(gb_optimizer *optimizer, gb_op op, gb_scale_record *scale);
/* One step. scale NULL: no scaler. scaled: gradients carry its scale. guarded: nothing happens when the found flag is up. */
gb_status gb_optimizer_update(gb_optimizer *optimizer, gb_scale_record *scale, bool scaled, bool guarded);
/* Bring learning rate and weight decay of every group to where a captured step reads them. Other settings that have changed since are an error. */
gb_status gb_optimizer_bring_rates(gb_optimizer *optimizer);
/* A captured step has run again: every weight it may have written is another one now. */
void gb_optimizer_replayed(gb_optimizer *optimizer);
/* The record of the scale that a gradient carries (NULL for an untagged one), or an error where it is not the scaler's any more. */
gb_status gb_optimizer_scale_of(gb_context *context, gb_grad_tag tag, const char *who, gb_scale_record **out);

#endif
