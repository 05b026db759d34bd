/* graph/recompute.c - a node that keeps the inputs of a part of the forward pass, and runs that part again when
 * gradients reach it.
 *
 * The part runs again with the inputs' own history, in the modes and at the place in the random stream of the forward
 * call. What it gives then is an ordinary graph, which the walk (graph/backward.c) goes on into: parameters and
 * captured tensors need no edge here. */
#include <stdlib.h>

#include "graph/autograd.h"

/* What the node keeps besides its inputs. */
typedef struct part {
  gb_recompute_fn fn;
  void *user;
  void (*release)(void *user);
  gb_modes modes;
  bool tf32;
  uint64_t seed, offset;
} part;

static void part_release(void *user) {
  part *p = user;
  if (p->release) p->release(p->user);
  gb_counted_free(p);
}

/* Run the part as it ran in forward, but recording; the random stream stands afterwards where it stood. */
static gb_status run_part(gb_node *node, gb_tensor *const *in, gb_tensor **out) {
  gb_context *context = node->context;
  const part *p = node->user;
  gb_modes *outer = context->modes, inner = p->modes;
  bool tf32 = context->tf32;
  uint64_t seed, offset;
  gb_get_rng_state(context, &seed, &offset);
  gb_set_rng_state(context, p->seed, p->offset);
  inner.grad = inner.recompute = true;
  context->modes = &inner;
  context->tf32 = p->tf32;
  gb_status status = p->fn(context, p->user, in, out);
  context->modes = outer;
  context->tf32 = tf32;
  gb_set_rng_state(context, seed, offset);
  return status;
}

/* Keep input i: an edge to where it came from, and an alias without history, which is an error in backward if it
 * changes until then. */
static gb_status keep_input(gb_node *node, int i, gb_tensor *x) {
  gb_saved *saved = &node->saved[i];
  GB_TRY(gb_view_refresh(x));
  gb_node_edge(node, i, x, (gb_dtype)x->dtype);
  GB_TRY(gb_tensor_detach(x, &saved->tensor));
  saved->kind = GB_SAVED_INPUT;
  saved->version = gb_tensor_version(x);
  gb_storage_hold(saved->tensor->storage);
  return GB_OK;
}

gb_status gb_recompute_begin(gb_context *context, gb_tensor *const *in, int n_in, gb_recompute_fn fn, void *user,
                             void (*release)(void *user),
                             gb_node **out) {
  part *p = gb_counted_alloc(context, sizeof *p);
  gb_node *node = p ? gb_node_new(context, -1, n_in, GB_MAX_OUT, n_in, 0) : NULL;
  if (!node) {
    gb_status failed = context->error_code;
    gb_counted_free(p);
    if (release) release(user);
    return failed;
  }
  *p = (part){ .fn = fn, .user = user, .release = release, .modes = *context->modes, .tf32 = context->tf32 };
  gb_get_rng_state(context, &p->seed, &p->offset);
  node->user = p;
  node->release = part_release;
  node->rerun = run_part;
  node->name = "recompute";
  node->n_out = 0; /* until they are known */
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < n_in; i++) status = keep_input(node, i, in[i]);
  if (status == GB_OK) *out = node;
  else gb_node_release(node);
  return status;
}

gb_status gb_recompute_end(gb_node *node, gb_tensor *const *out, int n_out) {
  if (n_out > GB_MAX_OUT)
    return gb_fail(node->context, GB_EINVAL, "recompute: a function has at most %d floating outputs, not %d",
                   GB_MAX_OUT, n_out);
  node->n_out = (int16_t)n_out;
  for (int i = 0; i < n_out; i++) gb_node_output(node, i, out[i]);
  return GB_OK;
}
