/* graph/node.h - a node of the graph that backward walks.
 *
 * Nodes are numbered in the order they were made; a node's inputs come from nodes with smaller numbers, so walking in
 * decreasing order meets every node after all that use it. An edge carries the dtype of the original input: the
 * gradient is converted to it there. */
#ifndef GB_GRAPH_NODE_H
#define GB_GRAPH_NODE_H

#include "tensor/tensor.h"

#define GB_MAX_OUT 6

/* Where the gradient of one input goes: to another node's output, or into a leaf. */
typedef struct gb_edge {
  struct gb_node *node;      /* counted, or NULL */
  gb_tensor *leaf;           /* counted, or NULL; both NULL: no gradient is wanted */
  int output;
  int8_t dtype;              /* of the original input */
  int8_t cast;               /* the dtype autocast gave the op, or the same */
  int8_t ndim;
  gb_device device;          /* of the original input: its gradient goes back there */
  int64_t shape[GB_MAX_NDIM];
} gb_edge;

typedef enum gb_saved_kind { GB_SAVED_NONE, GB_SAVED_INPUT, GB_SAVED_OUTPUT, GB_SAVED_WEIGHT } gb_saved_kind;

typedef struct gb_saved {
  gb_saved_kind kind;
  int8_t dtype;              /* GB_SAVED_WEIGHT: of the copy that forward used */
  gb_tensor *tensor;         /* counted: an alias without history (so no cycle through the node); a weight itself */
  uint64_t version;          /* of the tensor when it was saved */
} gb_saved;

struct gb_grad_call;
/* Compute grad->in[i] for every i with grad->need[i]. */
typedef gb_status (*gb_gradient_fn)(struct gb_grad_call *grad);
/* Make the outputs of a node again from its inputs, with a graph from these: new references, NULL for an output that is
 * no longer one. */
struct gb_node;
typedef gb_status (*gb_rerun_fn)(struct gb_node *node, gb_tensor *const *in, gb_tensor **out);

/* What an output looks like, for zeros where no gradient comes. */
typedef struct gb_node_out { bool live; int8_t dtype, ndim; gb_device device; int64_t shape[GB_MAX_NDIM]; } gb_node_out;

typedef struct gb_node {
  _Atomic int32_t refs;
  int16_t op, n_out;         /* gb_op, or -1: a custom function */
  int32_t n_in, n_saved;     /* a list of tensors may be long */
  int8_t room_out;           /* at most GB_MAX_OUT */
  bool ran;                  /* backward passed and freed what was saved, if anything was */
  bool running;              /* recompute: its part of the forward pass runs again just now */
  uint64_t sequence;
  gb_context *context;       /* not counted: edges, saved tensors or the run keep it */
  gb_gradient_fn gradient;
  gb_rerun_fn rerun;         /* recompute: in place of a gradient; NULL: none */
  const char *name;          /* of a custom function; NULL: the op's */
  char *where;               /* under gb.anomaly the recipe's line that made it, owned; or NULL */
  void *user;                /* of a custom function */
  void (*release)(void *user);
  gb_edge *edges;            /* n_in */
  gb_saved *saved;           /* n_saved: first the op's inputs, then its outputs; kind NONE where not saved */
  gb_attr *attrs;
  int n_attrs;
  uint64_t rng_seed, rng_offset;                 /* of the random numbers forward drew */
  gb_node_out *out;                              /* room_out, of which n_out are in use */
  gb_hook *hooks[GB_MAX_OUT];                    /* of the outputs, owned */
  gb_tensor *retain[GB_MAX_OUT];                 /* an output that keeps its gradient, not counted; NULL: none */
  gb_grave grave;                                /* once the last reference went */
} gb_node;

/* Where a walk is, for who looks on. */
typedef struct gb_walk_place {
  const gb_node *node;       /* the one that runs; NULL: the walk's own beginning or end */
  gb_grad_tag tag;           /* of the gradients that it makes */
  bool settling;             /* a gradient is being added to the sum of a leaf */
  bool hook;                 /* a hook on the gradient of a result runs, which may compute anything */
} gb_walk_place;

/* Tells the present history of a base from earlier ones; 0: none. */
static inline uint64_t gb_node_history(const gb_node *node) { return node->sequence + 1; }
static inline uint64_t gb_history(const gb_tensor *base) { return base->node ? gb_node_history(base->node) : 0; }

void gb_node_retain(gb_node *node);
/* The same op over the same inputs, with what was saved of these, but other attributes; one reference. NULL: out of
 * memory (text set). */
gb_node *gb_node_again(const gb_node *node, const gb_attr *attrs);
void gb_node_release(gb_node *node);             /* iterative: a long chain does not recurse */
void gb_node_drop_saved(gb_node *node);
/* The op's, or that of a custom function. */
const char *gb_node_name(const gb_node *node);
/* Round a gradient as casting by hand would, then to the dtype of the edge's original input, and bring it to that
 * input's device: what is sent on. */
gb_status gb_edge_convert(gb_context *context, const gb_edge *edge, gb_tensor **grad);

#endif
