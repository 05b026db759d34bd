/* graph/room.h - what the graph keeps with a context, and the seams through which the rooms above take part in it.
 *
 * The graph calls nobody above it by name. Who wants to see what runs adds an observer; who steps the weights installs
 * a gb_weight_keeper. */
#ifndef GB_GRAPH_ROOM_H
#define GB_GRAPH_ROOM_H

#include "tensor/context.h"
#include "tensor/tensor.h"

struct gb_op_call;
struct gb_grad_call;
struct gb_op_info;
struct gb_op_impl;
struct gb_step_call;
struct gb_walk_place;

/* Told of what ran, after it did; a failure is that of what ran. Functions that are NULL are not called. */
typedef struct gb_observer {
  const char *name;          /* of one that looks at values of every op, so that no graph may be captured meanwhile;
                                else NULL */
  gb_status (*op)(void *user, const struct gb_op_call *call);
  gb_status (*step)(void *user, const struct gb_step_call *call); /* of a backend: gb_step */
  /* Shall `gradient` be called with gradients of this tag? Then they are handed over whole, and added to no sum on the
   * way. */
  bool (*follows)(void *user, gb_grad_tag tag);
  gb_status (*gradient)(void *user, const struct gb_grad_call *call);
  void *user;
  struct gb_observer *next;
} gb_observer;

/* What the road and the walk ask of whoever steps the weights. */
typedef struct gb_weight_keeper {
  /* Can a 16-bit copy of t be kept? Then `copy` gives it as it is now: a new reference. */
  bool (*keeps)(const gb_tensor *t);
  gb_status (*copy)(gb_context *context, gb_tensor *t, gb_dtype dtype, gb_tensor **out);
  /* Do gradients with this tag lose their scale before they are added to an adopted parameter? `receive` gives one
   * without it, of this dtype, or the gradient itself: a new reference. */
  bool (*receives)(const gb_context *context, gb_grad_tag tag);
  gb_status (*receive)(gb_context *context, gb_tensor *grad, gb_dtype dtype, gb_tensor **out);
} gb_weight_keeper;

typedef struct gb_graph_room {
  const struct gb_op_info *infos;    /* the table of ops, GB_OP_COUNT of them; the process's own */
  const struct gb_op_impl **impl;    /* check and gradient of each op; NULL: none */
  uint64_t sequence;                 /* of the next node */
  uint32_t next_hook;
  struct gb_reads *reads;            /* of the innermost part that recompute runs just now; NULL: none */
  bool untracked;                    /* since it was cleared, an op took an input that requires gradients while these
                                        were off */
  int unseen;                        /* above 0: what runs belongs to a check or to a tool, not to the step */
  struct gb_op_call *casting;           /* the op that autocast casts inputs for just now; NULL: none */
  struct gb_op_call *composite;         /* the outermost op that runs others just now; NULL: none */
  struct gb_walk_place *backward;    /* where the innermost walk is; NULL: none runs */
  gb_observer *observers;
  const struct gb_leaf_watch *watch; /* NULL: nobody waits for gradients to be final */
  const gb_weight_keeper *weights;   /* NULL: nobody steps weights */
} gb_graph_room;

/* families: the lists of what each gives for its ops, ended by NULL. On failure the context has the text. */
gb_status gb_graph_open(gb_context *context, const struct gb_op_impl *const *families);
void gb_graph_close(gb_context *context);

static inline void gb_observer_add(gb_context *context, gb_observer *observer) {
  observer->next = context->graph->observers;
  context->graph->observers = observer;
}
/* Nothing where it is not there. */
static inline void gb_observer_remove(gb_context *context, const gb_observer *observer) {
  gb_observer **at = &context->graph->observers;
  while (*at && *at != observer) at = &(*at)->next;
  if (*at) *at = observer->next;
}

/* Around what runs on a device: its name for error texts (but what the recipe called keeps its own) and for profilers.
 * It does not begin where a stop is asked for, or little of the stack is left; it is left in any case, with what
 * `outer` then is. */
gb_status gb_run_begin(gb_context *context, const char *name, const char **outer);
void gb_run_end(gb_context *context, const char *outer);

/* From one to the other, ops look at a step from beneath: outside its graph and its scopes, and seen by no observer
 * that asks. */
typedef struct gb_beneath { gb_modes *outer, modes; } gb_beneath;
static inline void gb_beneath_begin(gb_context *context, gb_beneath *beneath) {
  beneath->outer = context->modes;
  beneath->modes = *context->modes;
  beneath->modes.grad = beneath->modes.autocast = false;
  context->modes = &beneath->modes;
  context->graph->unseen++;
}
static inline void gb_beneath_end(gb_context *context, const gb_beneath *beneath) {
  context->modes = beneath->outer;
  context->graph->unseen--;
}

#endif
