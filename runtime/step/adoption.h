/* step/adoption.h - inside of step/: how parameters come to lie in slabs, and how they leave. */
#ifndef GB_STEP_ADOPTION_H
#define GB_STEP_ADOPTION_H

#include "step/optim.h"
#include "tensor/slab.h"

struct gb_optimizer;

/* A slab and whose it is. The slab comes first, so that a parameter's slab leads to its optimizer. */
typedef struct gb_owned_slab {
  gb_slab slab;
  struct gb_optimizer *owner;  /* not counted */
  uint64_t *synced;            /* per segment of 16-bit parameters: the version of the parameter that the master agrees
                                  with */
  gb_slab *parts;              /* of an optimizer that is split (split.h): what this process steps; else NULL */
  int64_t n_parts;
  int64_t *bounds;             /* of parts that are whole parameters: the first element of each process, and the end */
  int watched;                 /* steps since its weights were shared out; from 2 on it is known which are narrow */
  int narrow_slot;             /* the 16-bit copy that narrow ones are brought together in */
  gb_tensor *next;             /* within a step: its factors after it; else NULL */
  double *joined;              /* what processes have measured of gradients together: see gb_split_numbers; or NULL */
  double joined_factor;        /* what the gradients were multiplied by on reading */
  int64_t n_joined;            /* of so many segments */
  uint64_t joined_turn;        /* the room's graph_turns then, since replays write gradients without counting */
} gb_owned_slab;

/* What this process steps of the slab, and has states of: so many slabs. */
static inline int64_t gb_slabs_stepped(gb_owned_slab *owned, gb_slab **out) {
  *out = owned->n_parts ? owned->parts : &owned->slab;
  return owned->n_parts ? owned->n_parts : 1;
}

/* One call that adopts parameters. The caller fills the first part. */
typedef struct gb_adoption {
  gb_context *context;
  struct gb_optimizer *owner;
  gb_tensor *const *parameters;
  const char *const *names;    /* NULL, or one (or NULL) per parameter */
  int count;

  int *twin;                   /* the first parameter with the same memory; itself where there is none before it */
  gb_owned_slab **of;          /* where each goes, and as which segment */
  int64_t *segment;
  gb_owned_slab **slabs;       /* one per dtype and device, in order of first appearance */
  int n_slabs;
} gb_adoption;

/* Everything that can fail: check the parameters, build their slabs and copy values and gradients. Nothing changes
 * yet. */
gb_status gb_adoption_prepare(gb_adoption *a);
/* Move every parameter into its slab. The slabs are the caller's now. */
void gb_adoption_commit(gb_adoption *a);
/* Forget what was prepared and not committed, and free the lists. */
void gb_adoption_close(gb_adoption *a);

/* Let a parameter go: it keeps its place in the slab's memory, and its gradient, but belongs to nobody. */
void gb_slab_leave(gb_tensor *parameter);
/* After the last parameter left. */
void gb_slab_free(gb_owned_slab *slab);

/* The elements of `vector`, a slab's, from `offset` on, as a tensor with the shape and the (dense) strides of `like`.
 * It keeps the vector's memory, and counts versions of its own. */
gb_status gb_slab_place(gb_tensor *vector, int64_t offset, const gb_tensor *like, gb_tensor **out);
/* Does a parameter have a factor of this form? Then *ndim and shape are the factor's. */
bool gb_factor_shape(gb_factor_form form, const gb_tensor *parameter, int *ndim, int64_t *shape);
/* Factor i of a segment as a tensor over `vector`, the slab's or one like it; *out NULL: this parameter has none. */
gb_status gb_slab_factor(const gb_segment *segment, const gb_optimizer_info *info, int i, gb_tensor *vector,
                         gb_tensor **out);
/* Make the factors, zero when new, where they are not there; of a slab that is shared out those of its parts. */
gb_status gb_slab_open_factors(gb_owned_slab *slab, const gb_optimizer_info *info);
gb_status gb_slab_open_whole_factors(gb_slab *slab, const gb_optimizer_info *info);
/* Make state i, zero when new, where it is not there. */
gb_status gb_slab_open_state(gb_owned_slab *slab, int i);
/* Make the measures, where they are not there; of a slab that is shared out those of its parts. */
gb_status gb_slab_open_measures(gb_owned_slab *slab);
/* Where a 16-bit parameter was changed by somebody else, its master takes the new value; elsewhere it keeps the bits
 * that rounding drops. */
gb_status gb_slab_sync_masters(gb_owned_slab *slab);
/* The segments of parts are as those of the whole slab: which have gradients, and how many steps they took. */
gb_status gb_parts_bring(gb_owned_slab *owned);
/* After a step of the parts: one more for each segment of the whole slab that took it. */
gb_status gb_parts_count(gb_owned_slab *owned);
void gb_split_parts_free(gb_owned_slab *owned); /* none is fine */
/* The masters agree with the parameters as they are now. */
void gb_slab_masters_synced(gb_owned_slab *slab);

/* "conv1.weight", or "parameter 3" for one without a name. */
const char *gb_parameter_label(const char *name, int position, char *buffer, size_t size);

#endif
