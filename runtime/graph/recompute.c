/* graph/recompute.c - a node that keeps the inputs of a part of the forward pass, and runs that part again when
 * gradients reach it.
 *
 * The part runs again with the inputs' own history, in the modes and at the place in the random stream of the forward
 * call. What it gives then is an ordinary graph, which the walk (graph/backward.c) goes on into: parameters and
 * captured tensors need no edge here.
 *
 * Parameters and captured tensors must have the values that they had. So the first run notes the storages that were
 * there before it and that kernels read, with their versions, and the second compares those that it reads and that
 * somebody else has changed in between: what it writes itself before is as it was. What only the first run does, as
 * moving statistics along, is compared with nothing. Storages stay alive with their notes, so
 * that none passes for another one; their memory counts as whose it was. */
#include <stdlib.h>

#include "graph/autograd.h"

/* The versions in which the first run read a storage: its own changes may lie between them; and the one that it left.
 * ours: from when the second run begins on nobody but that has changed it, or that run has written it itself. */
typedef struct reading { gb_storage *storage; uint64_t first, last, left; bool ours; } reading;

/* What a part reads. */
typedef struct gb_reads {
  struct gb_reads *outer;    /* of the part around, while this one runs */
  bool running, again;       /* again: for the second time */
  uint64_t born;             /* of storages that the first run makes, at least */
  reading *places;           /* open addressing by storage, capacity a power of two */
  size_t used, capacity;
} gb_reads;

/* What the node keeps besides its inputs. */
typedef struct part {
  gb_context *context;
  gb_reads reads;
  gb_recompute_fn fn;
  void *user;
  void (*release)(void *user);
  gb_modes modes;
  bool tf32;
  uint64_t seed, offset;
} part;

/* {==== what a part reads ==== */

static reading *find(const gb_reads *r, const gb_storage *storage) {
  size_t at = (size_t)((uintptr_t)storage >> 5) * 0x9E3779B97F4A7C15u >> 20 & (r->capacity - 1);
  while (r->places[at].storage && r->places[at].storage != storage) at = (at + 1) & (r->capacity - 1);
  return &r->places[at];
}

static gb_status widen(gb_context *context, gb_reads *r) {
  gb_reads wide = *r;
  wide.capacity = r->capacity ? 2 * r->capacity : 16;
  wide.places = gb_counted_alloc(context, wide.capacity * sizeof *wide.places);
  if (!wide.places) return context->error_code;
  for (size_t i = 0; i < r->capacity; i++)
    if (r->places[i].storage) *find(&wide, r->places[i].storage) = r->places[i];
  gb_counted_free(r->places);
  *r = wide;
  return GB_OK;
}

/* The first run reads a storage. */
static gb_status note(gb_context *context, gb_reads *r, gb_storage *storage) {
  if (storage->born >= r->born) return GB_OK;
  if (2 * (r->used + 1) > r->capacity) GB_TRY(widen(context, r));
  reading *place = find(r, storage);
  if (!place->storage) {
    gb_storage_retain(storage);
    *place = (reading){ .storage = storage, .first = storage->version };
    r->used++;
  }
  place->last = storage->version;
  return GB_OK;
}

/* The second run reads a tensor. */
static gb_status compare(gb_context *context, const gb_reads *r, const gb_tensor *t) {
  char shape[96];
  const reading *place = r->capacity ? find(r, t->storage) : NULL;
  uint64_t version = gb_tensor_version(t);
  if (!place || !place->storage || place->ours || (version >= place->first && version <= place->last)) return GB_OK;
  return gb_fail(context, GB_EAUTOGRAD,
                 "a %s tensor of shape %s that a recomputed function reads was changed in place since its first run "
                 "(version %llu, now %llu), so the gradient would be of other values; call backward before an "
                 "optimizer steps, or change a clone",
                 gb_dtype_name((gb_dtype)t->dtype), gb_shape_text(t->ndim, t->shape, shape, sizeof shape),
                 (unsigned long long)place->last, (unsigned long long)version);
}

gb_status gb_recompute_note(gb_context *context, const gb_tensor *t) {
  for (gb_reads *r = context->graph->reads; r; r = r->outer)
    GB_TRY(r->again ? compare(context, r, t) : note(context, r, t->storage));
  return GB_OK;
}

void gb_recompute_wrote(gb_context *context, const gb_tensor *t) {
  if ((size_t)t->numel * gb_dtype_bytes((gb_dtype)t->dtype) < t->storage->bytes) return; /* there is more in it */
  for (gb_reads *r = context->graph->reads; r; r = r->outer) {
    reading *place = r->again && r->capacity ? find(r, t->storage) : NULL;
    if (place && place->storage) place->ours = true;
  }
}

/* The first run is over, or the second begins. */
static void look_at_versions(gb_reads *r, bool again) {
  for (size_t i = 0; i < r->capacity; i++) {
    reading *place = &r->places[i];
    if (place->storage && again) place->ours = place->storage->version == place->left;
    else if (place->storage) place->left = place->storage->version;
  }
}

static void enter(gb_context *context, gb_reads *r, bool again) {
  r->running = true;
  r->again = again;
  r->outer = context->graph->reads;
  context->graph->reads = r;
}

/* Nothing where it has been left. Those within may still be there, where a coroutine died in one. */
static void leave(gb_context *context, gb_reads *r) {
  if (!r->running) return;
  gb_reads **at = &context->graph->reads;
  while (*at != r) at = &(*at)->outer;
  *at = r->outer;
  r->running = false;
}

static void forget(gb_reads *r) {
  for (size_t i = 0; i < r->capacity; i++) gb_storage_release(r->places[i].storage);
  gb_counted_free(r->places);
}

/* ====} */

static void part_release(void *user) {
  part *p = user;
  leave(p->context, &p->reads);
  forget(&p->reads);
  if (p->release) p->release(p->user);
  gb_counted_free(p);
}

/* Run the part as it ran in forward, but recording; the random stream stands afterwards where it stood. */
static gb_status run_part(gb_node *node, gb_tensor *const *in, gb_tensor **out) {
  gb_context *context = node->context;
  part *p = node->user;
  gb_modes *outer = context->modes, inner = p->modes;
  bool tf32 = context->tf32;
  uint64_t seed, offset;
  gb_get_rng_state(context, &seed, &offset);
  gb_set_rng_state(context, p->seed, p->offset);
  inner.grad = inner.recompute = true;
  context->modes = &inner;
  context->tf32 = p->tf32;
  look_at_versions(&p->reads, true);
  enter(context, &p->reads, true);
  gb_status status = p->fn(context, p->user, in, out);
  leave(context, &p->reads);
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
  *p = (part){ .context = context, .fn = fn, .user = user, .release = release, .modes = *context->modes,
               .tf32 = context->tf32 };
  gb_get_rng_state(context, &p->seed, &p->offset);
  node->user = p;
  node->release = part_release;
  node->rerun = run_part;
  node->name = "recompute";
  node->n_out = 0; /* until they are known */
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < n_in; i++) status = keep_input(node, i, in[i]);
  if (status != GB_OK) {
    gb_node_release(node);
    return status;
  }
  p->reads.born = atomic_fetch_add_explicit(&context->parts, 1, memory_order_relaxed) + 1;
  enter(context, &p->reads, false);
  *out = node;
  return GB_OK;
}

gb_status gb_recompute_end(gb_node *node, gb_tensor *const *out, int n_out) {
  gb_reads *reads = &((part *)node->user)->reads;
  leave(node->context, reads);
  look_at_versions(reads, false);
  if (n_out > GB_MAX_OUT)
    return gb_fail(node->context, GB_EINVAL, "recompute: a function has at most %d floating outputs, not %d",
                   GB_MAX_OUT, n_out);
  node->n_out = (int16_t)n_out;
  for (int i = 0; i < n_out; i++) gb_node_output(node, i, out[i]);
  return GB_OK;
}
