/* open.c - puts the house together: opens a context with its rooms, its pool, its threads and the CPU backend. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "dist/room.h"
#include "ops/families.h"
#include "step/room.h"
#include "tensor/context.h"
#include "watch/room.h"

void gb_context_options_init(gb_context_options *options, size_t size) {
  if (!options || size < sizeof options->size) return;
  memset(options, 0, size);
  options->size = size;
}

/* The rooms that keep something with a context, from the lowest up. */
static gb_status open_rooms(gb_context *context) {
  static const gb_op_impl *const families[] = {
#define ADDRESS(name) gb_family_##name,
    GB_FAMILIES(ADDRESS) NULL,
#undef ADDRESS
  };
  GB_TRY(gb_graph_open(context, families));
  GB_TRY(gb_step_open(context));
  GB_TRY(gb_dist_open(context));
  return gb_watch_open(context);
}

static void close_rooms(gb_context *context) {
  gb_watch_close(context);
  gb_dist_close(context);
  gb_step_close(context);
  gb_graph_close(context);
}

/* The pool of a device, over its backend's allocator or the caller's. */
static gb_status open_pool(gb_context *context, int type, const gb_context_options *options) {
  gb_backend *backend = context->backend[type];
  bool own = type == GB_CPU && options && options->alloc && options->free;
  context->pool[type] = gb_pool_open(own ? options->alloc : backend->alloc, own ? options->free : backend->free,
                                     own ? options->alloc_user : backend->state, &context->budget);
  if (!context->pool[type]) return GB_EMEMORY;
  if (own) gb_pool_clear(context->pool[type]); /* it may have served another context before */
  return GB_OK;
}

static gb_status open_parts(gb_context *context, const gb_context_options *options) {
  context->close_rooms = close_rooms;
  GB_TRY(open_rooms(context));
  context->threads = gb_threads_open(options->threads);
  if (!context->threads) return GB_EMEMORY;
  context->backend[GB_CPU] = calloc(1, sizeof(gb_backend));
  if (!context->backend[GB_CPU]) return GB_EMEMORY;
  GB_TRY(gb_cpu_open(context, options->cpu_level, context->backend[GB_CPU]));
  return open_pool(context, GB_CPU, options);
}

/* What cannot be meant: a size that is none of such a struct, half an allocator, a number of threads out of range. */
static bool is_sound(const gb_context_options *o) {
  if (o->size < offsetof(gb_context_options, tensor_bytes) || o->size % _Alignof(gb_context_options)) return false;
  if (o->threads < 0 || o->threads > 1024) return false;
  return o->size <= offsetof(gb_context_options, free) || !o->alloc == !o->free;
}

gb_status gb_context_open(const gb_context_options *options, gb_context **out) {
  if (!out) return GB_EINVAL;
  *out = NULL;
  if (options && !is_sound(options)) return GB_EINVAL;
  gb_context_options all; /* a caller compiled against an older, shorter struct keeps working */
  gb_context_options_init(&all, sizeof all);
  if (options) memcpy(&all, options, options->size < sizeof all ? options->size : sizeof all);
  gb_context *context = calloc(1, sizeof *context);
  if (!context) return GB_EMEMORY;
  atomic_init(&context->refs, 1);
  atomic_init(&context->interrupt, false);
  atomic_init(&context->dead, NULL);
  atomic_init(&context->burying, false);
  atomic_init(&context->tying, false);
  gb_cells_open(&context->cells);
  context->default_modes = (gb_modes){ .grad = true, .lower = GB_BFLOAT16 };
  context->modes = &context->default_modes;
  context->seed = all.seed;
  context->budget.limit = all.tensor_bytes;
  context->files.root = GB_FILES_ANY;
  if (all.plugins) context->plugin_folders = strdup(all.plugins);
  gb_status status = all.plugins && !context->plugin_folders ? GB_EMEMORY : open_parts(context, &all);
  if (status != GB_OK) { gb_context_release(context); return status; }
  *out = context;
  return GB_OK;
}
