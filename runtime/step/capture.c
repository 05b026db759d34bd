/* step/capture.c - see capture.h. */
#include "step/capture.h"

#include <stdlib.h>
#include <string.h>

#include "step/optimizer.h"
#include "step/room.h"
#include "step/scaler.h"
#include "step/weights.h"

/* A list of what is held; it grows by doubling. */
typedef struct held { void **items; size_t count, capacity; } held;
typedef struct used_weight { gb_tensor *weight; gb_dtype dtype; } used_weight;

struct gb_capture {
  gb_context *context;           /* counted */
  gb_device device;
  void *graph;                   /* the backend's; NULL: none yet */
  gb_graph_pool *own;            /* the graph's memory */
  gb_pool *outer;                /* the pool that serves otherwise */
  uint64_t seed, offset, places; /* of the random stream when the capture began, and how many the step took */
  gb_observer observer;
  gb_status status;              /* of what observing could not do */
  held storages, optimizers, scalers, weights; /* all counted; weights are used_weights */
  held written;                  /* of the storages those that ops changed in place */
};

static gb_backend *backend_of(const gb_capture *c) { return gb_context_backend(c->context, c->device); }

/* {==== what is held ==== */

static bool holds(const held *list, const void *item) {
  for (size_t i = list->count; i > 0; i--)
    if (list->items[i - 1] == item) return true;
  return false;
}

static gb_status hold(gb_context *context, held *list, void *item) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    void **longer = realloc(list->items, capacity * sizeof *longer);
    if (!longer) return gb_fail_memory(context, capacity * sizeof *longer);
    list->items = longer;
    list->capacity = capacity;
  }
  list->items[list->count++] = item;
  return GB_OK;
}

/* Memory that the step read or wrote and that is not the graph's own, which stays anyway. */
static gb_status hold_storage(gb_capture *c, const gb_tensor *t) {
  if (!t || t->storage->device.type != GB_CUDA) return GB_OK;
  if ((t->storage->block && gb_block_is_from(t->storage->block, c->own->pool)) || holds(&c->storages, t->storage))
    return GB_OK;
  GB_TRY(hold(c->context, &c->storages, t->storage));
  gb_storage_retain(t->storage);
  return GB_OK;
}

/* Keep the memory of every recorded op. A failure is reported when the capture ends. */
static gb_status look(void *user, const gb_op_call *call) {
  gb_capture *c = user;
  for (int i = 0; c->status == GB_OK && i < call->n_in; i++) c->status = hold_storage(c, call->in[i]);
  for (int i = 0; c->status == GB_OK && i < call->info->n_out; i++) c->status = hold_storage(c, call->out[i]);
  gb_storage *changed = call->in_place ? call->in[0]->storage : NULL;
  if (c->status == GB_OK && changed && holds(&c->storages, changed) && !holds(&c->written, changed))
    c->status = hold(c->context, &c->written, changed);
  return GB_OK;
}

gb_status gb_capture_note_weight(gb_context *context, gb_tensor *weight, gb_dtype dtype) {
  gb_capture *c = context->step->capture;
  if (!c) return GB_OK;
  for (size_t i = 0; i < c->weights.count; i++) {
    const used_weight *used = c->weights.items[i];
    if (used->weight == weight && used->dtype == dtype) return GB_OK;
  }
  used_weight *used = malloc(sizeof *used);
  if (!used) return gb_fail_memory(context, sizeof *used);
  *used = (used_weight){ weight, dtype };
  gb_status status = hold(context, &c->weights, used);
  if (status == GB_OK) gb_tensor_retain(weight);
  else free(used);
  return status;
}

gb_status gb_capture_note_optimizer(gb_context *context, gb_optimizer *optimizer) {
  gb_capture *c = context->step->capture;
  if (!c || holds(&c->optimizers, optimizer)) return GB_OK;
  GB_TRY(hold(context, &c->optimizers, optimizer));
  gb_optimizer_retain(optimizer);
  return GB_OK;
}

gb_status gb_capture_note_scaler(gb_context *context, gb_scaler *scaler) {
  gb_capture *c = context->step->capture;
  if (!c || holds(&c->scalers, scaler)) return GB_OK;
  GB_TRY(hold(context, &c->scalers, scaler));
  gb_scaler_retain(scaler);
  return GB_OK;
}

static void let_go(gb_capture *c) {
  for (size_t i = 0; i < c->storages.count; i++) gb_storage_release(c->storages.items[i]);
  for (size_t i = 0; i < c->optimizers.count; i++) gb_optimizer_release(c->optimizers.items[i]);
  for (size_t i = 0; i < c->scalers.count; i++) gb_scaler_release(c->scalers.items[i]);
  for (size_t i = 0; i < c->weights.count; i++) {
    used_weight *used = c->weights.items[i];
    gb_tensor_release(used->weight);
    free(used);
  }
  free(c->storages.items);
  free(c->written.items);
  free(c->optimizers.items);
  free(c->scalers.items);
  free(c->weights.items);
}

/* ====} */

/* {==== capturing ==== */

/* A pool for the graph's memory, which the context keeps. */
static gb_status open_pool(gb_capture *c) {
  gb_backend *backend = backend_of(c);
  gb_graph_pool *own = calloc(1, sizeof *own);
  if (own) own->pool = gb_pool_open(backend->alloc, backend->free, backend->state, &c->context->budget);
  if (!own || !own->pool) {
    free(own);
    return gb_fail_memory(c->context, sizeof *own);
  }
  own->device = c->device;
  gb_pool_keep(own->pool, true);
  own->next = c->context->graph_pools;
  c->context->graph_pools = c->own = own;
  c->outer = gb_context_pool(c->context, c->device);
  c->context->pool[gb_device_slot(c->device)] = own->pool;
  return GB_OK;
}

/* Ops run again from here on. */
static void stop(gb_capture *c) {
  gb_context *context = c->context;
  gb_observer_remove(context, &c->observer);
  context->capturing = false;
  context->step->capture = NULL;
  context->step->graph_turns++;
  context->pool[gb_device_slot(c->device)] = c->outer;
}

/* The name of an observer that looks at values, which a graph hides from it; NULL: there is none. */
static const char *looks_on(const gb_context *context) {
  for (const gb_observer *o = context->graph->observers; o; o = o->next)
    if (o->name) return o->name;
  return NULL;
}

gb_status gb_capture_begin(gb_context *context, gb_device device, gb_capture **out) {
  const char *why;
  if (device.type != GB_CUDA) return gb_fail(context, GB_EDEVICE, "cuda.graph: graphs are of CUDA devices");
  if (!gb_context_has_device(context, GB_CUDA, &why))
    return gb_fail(context, GB_EDEVICE, "cuda.graph: there is no CUDA device: %s", why);
  GB_TRY(gb_context_open_device(context, device));
  if (context->capturing)
    return gb_fail(context, GB_ESTATE, "cuda.graph: a graph is being captured already; graphs cannot be captured "
                                       "within a step");
  const char *looker = looks_on(context);
  if (looker) return gb_fail(context, GB_ESTATE, "cuda.graph: %s runs, which looks at values; capture the step "
                                                 "before or after it", looker);
  gb_capture *c = calloc(1, sizeof *c);
  if (!c) return gb_fail_memory(context, sizeof *c);
  c->context = context;
  c->device = device;
  gb_status status = backend_of(c)->capture_begin ? open_pool(c)
      : gb_fail(context, GB_EUNSUPPORTED, "cuda.graph: the device has no graphs");
  if (status == GB_OK) {
    status = backend_of(c)->capture_begin(backend_of(c)->state);
    if (status != GB_OK) {
      context->pool[gb_device_slot(device)] = c->outer;
      gb_pool_keep(c->own->pool, false);
    }
  }
  if (status != GB_OK) {
    free(c);
    return status;
  }
  c->seed = context->seed;
  c->offset = context->offset;
  c->observer = (gb_observer){ .op = look, .user = c };
  gb_observer_add(context, &c->observer);
  context->capturing = true;
  context->step->capture = c;
  context->step->graph_turns++;
  gb_context_retain(context);
  *out = c;
  return GB_OK;
}

void gb_capture_abandon(gb_capture *c) {
  stop(c);
  gb_backend *backend = backend_of(c);
  if (backend->capture_end(backend->state, &c->graph) == GB_OK) backend->graph_close(backend->state, c->graph);
  c->graph = NULL;
}

/* ====} */

/* {==== running ==== */

/* Copy to the device what changes from step to step. */
static gb_status prepare(gb_capture *c) {
  for (size_t i = 0; i < c->optimizers.count; i++) GB_TRY(gb_optimizer_bring_rates(c->optimizers.items[i]));
  for (size_t i = 0; i < c->weights.count; i++) {
    const used_weight *used = c->weights.items[i];
    gb_tensor *copy;
    GB_TRY(gb_weight_get(c->context, used->weight, used->dtype, &copy)); /* casts it where it is stale */
    gb_tensor_release(copy);
  }
  return GB_OK;
}

/* A scaler may now find that too many steps were skipped. */
static gb_status heed(gb_capture *c, bool again) {
  for (size_t i = 0; i < c->scalers.count; i++) GB_TRY(gb_scaler_heed(c->scalers.items[i], again));
  return GB_OK;
}

/* What ops changed in place has changed, so that copies of weights are made again. */
static void count_changes(gb_capture *c) {
  for (size_t i = 0; i < c->written.count; i++) ((gb_storage *)c->written.items[i])->version++;
}

gb_status gb_capture_end(gb_capture *c) {
  gb_backend *backend = backend_of(c);
  stop(c);
  c->places = c->context->offset - c->offset;
  gb_status status = backend->capture_end(backend->state, &c->graph);
  if (status == GB_OK) status = c->status;
  if (status == GB_OK) status = prepare(c);
  if (status == GB_OK) status = backend->replay(backend->state, c->graph, 0, 0);
  count_changes(c);
  return status == GB_OK ? heed(c, false) : status;
}

gb_status gb_capture_replay(gb_capture *c) {
  gb_backend *backend = backend_of(c);
  gb_context *context = c->context;
  if (!c->graph || context->capturing)
    return gb_fail(context, GB_ESTATE, "cuda.graph: the graph was not captured, or another one is being captured");
  const char *looker = looks_on(context);
  if (looker)
    return gb_fail(context, GB_ESTATE, "cuda.graph: %s runs, and a replay runs no ops that it could see; call the "
                                       "step itself", looker);
  GB_TRY(gb_poll(context));
  GB_TRY(prepare(c));
  for (size_t i = 0; i < c->scalers.count; i++) GB_TRY(gb_scaler_settle(c->scalers.items[i]));
  context->step->graph_turns++;
  GB_TRY(backend->replay(backend->state, c->graph, context->offset - c->offset, context->seed - c->seed));
  context->offset += c->places;
  for (size_t i = 0; i < c->optimizers.count; i++) gb_optimizer_replayed(c->optimizers.items[i]);
  count_changes(c);
  GB_TRY(heed(c, true));
  return backend->pace ? backend->pace(backend->state) : GB_OK;
}

void gb_capture_close(gb_capture *c) {
  if (!c) return;
  gb_context *context = c->context;
  if (context->step->capture == c) gb_capture_abandon(c);
  if (c->graph) {
    bool there; /* what still runs uses the memory that is let go of. A plain wait would be told what is wrong, and
                   nobody here can pass it on */
    (void)backend_of(c)->arrive(backend_of(c)->state, true, &there);
    backend_of(c)->graph_close(backend_of(c)->state, c->graph);
  }
  let_go(c);
  gb_pool_keep(c->own->pool, false);
  if (!context->capturing) gb_pool_flush(c->own->pool); /* while another graph is captured, nobody could wait for what
                                                         runs */
  free(c);
  gb_context_release(context);
}

/* ====} */
