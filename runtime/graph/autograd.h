/* graph/autograd.h - making nodes and walking them. The public entrances are gb_backward and gb_grad. */
#ifndef GB_GRAPH_AUTOGRAD_H
#define GB_GRAPH_AUTOGRAD_H

#include "graph/ops.h"

/* A node with room for its edges and saved tensors, numbered; one reference. NULL: out of memory (text set). */
gb_node *gb_node_new(gb_context *context, int op, int n_in, int n_out, int n_saved, int n_attrs);
/* Point edge i at what computed x (or at x, a leaf). cast: the dtype the op saw. */
void gb_node_edge(gb_node *node, int i, gb_tensor *x, gb_dtype cast);
/* Make t output i of node. */
void gb_node_output(gb_node *node, int i, gb_tensor *t);

/* A custom function: its outputs become results of inputs, and backward calls fn. (fn, user, release) as everywhere;
 * release runs with the node. grads_out has NULL for a zero gradient; fn fills grads_in (new references or NULL). */
typedef gb_status (*gb_custom_backward_fn)(gb_context *context, void *user, gb_tensor *const *grads_out, int n_out,
                                           gb_tensor **grads_in, int n_in);
gb_status gb_custom_function(gb_context *context, const char *name, gb_tensor *const *in, int n_in, gb_tensor **out,
                             int n_out,
                             gb_custom_backward_fn fn, void *user, void (*release)(void *user));

/* Recompute, in two halves around a forward pass that records nothing. begin makes a node that keeps the inputs, the
 * modes and the place in the random stream; one reference. What the pass reads besides the inputs is noted until end,
 * or until the node is freed. end takes the floating tensors that the pass gave as its outputs. In backward fn makes
 * them again from the inputs (new references); release runs when the node is freed. */
typedef gb_status (*gb_recompute_fn)(gb_context *context, void *user, gb_tensor *const *in, gb_tensor **out);
gb_status gb_recompute_begin(gb_context *context, gb_tensor *const *in, int n_in, gb_recompute_fn fn, void *user,
                             void (*release)(void *user),
                             gb_node **out);
gb_status gb_recompute_end(gb_node *node, gb_tensor *const *out, int n_out);
/* While a part runs, first or again: a kernel, or the host, reads t. An error where it runs again and t has other
 * values than it had then. */
gb_status gb_recompute_note(gb_context *context, const gb_tensor *t);
/* The same: all elements of t were written, whatever they were. */
void gb_recompute_wrote(gb_context *context, const gb_tensor *t);

/* Called with each gradient that reaches t, in the order of registration; the id unregisters it. */
gb_status gb_tensor_register_hook(gb_tensor *t, gb_hook_fn fn, void *user, void (*release)(void *), int64_t *id);
/* The same of a leaf, when a backward has added to its gradient: fn gets the leaf, and what it puts in its place is
 * not looked at. */
gb_status gb_tensor_register_after_hook(gb_tensor *t, gb_hook_fn fn, void *user, void (*release)(void *), int64_t *id);
void gb_tensor_remove_hook(gb_tensor *t, int64_t id);
gb_status gb_tensor_retain_grad(gb_tensor *t);

/* Before an in-place op writes t: leaf rules (an error outside no_grad). */
gb_status gb_inplace_prepare(gb_op_call *call, gb_tensor *t);
/* The nodes for the new history of a view and of its base; NULL if t is not a view. */
typedef struct gb_rebase { gb_node *base, *view; } gb_rebase;
/* Before the kernel writes: allocate that history. gb_rebase_end frees it. */
gb_status gb_rebase_reserve(gb_rebase *rebase, gb_op_call *call, const gb_tensor *t);
void gb_rebase_end(gb_rebase *rebase);
/* After the kernel, from that allocation, so that it cannot fail: the history of t and of its base. */
void gb_inplace_record(gb_tensor *t, gb_node *node, gb_rebase *rebase);
/* A view whose base was changed in place since: rebuild its history. Called before an op uses t in the graph. */
gb_status gb_view_refresh(gb_tensor *t);

/* Add grad into leaf->grad, or into its segment of an optimizer's slab. */
gb_status gb_accumulate_leaf(gb_context *context, gb_tensor *leaf, gb_tensor *grad, bool create_graph);
/* Run those hooks of a leaf that come when its gradient is there. */
gb_status gb_run_after_hooks(gb_context *context, gb_tensor *leaf);

#endif
