/* tensor/context.h - the one object everything hangs off. */
#ifndef GB_TENSOR_CONTEXT_H
#define GB_TENSOR_CONTEXT_H

#include <stdatomic.h>
#include <stdarg.h>

#include "base/cells.h"
#include "base/piece.h"
#include "base/pool.h"
#include "base/threads.h"
#include "gibbous.h"
#include "tensor/backend.h"
#include "tensor/modes.h"

struct gb_grave;
struct gb_node;
struct gb_tensor;
struct gb_graph_room;
struct gb_step_room;
struct gb_watch_room;
struct gb_dist_room;

/* A pool that served while a graph was captured: what lies there keeps its address for every replay, and none of it
 * goes back while the graph lives (gb_pool_keep), since memory that no tensor holds any more is used by replays too. */
typedef struct gb_graph_pool { gb_pool *pool; gb_device device; struct gb_graph_pool *next; } gb_graph_pool;

/* Devices of one kind, at most. Pools and backends lie by slot: first those of every kind's device 0, by kind, then the
 * other CUDA devices. */
enum { GB_DEVICES_MOST = 16, GB_DEVICE_SLOTS = GB_DEVICE_TYPES + GB_DEVICES_MOST - 1 };
static inline int gb_device_slot(gb_device device) { return device.index ? GB_DEVICE_TYPES + device.index - 1
                                                     : device.type; }
static inline bool gb_is_device(gb_device device) {
  return device.type >= 0 && device.type < GB_DEVICE_TYPES && device.index >= 0 &&
      device.index < (device.type == GB_CUDA ? GB_DEVICES_MOST : 1);
}
static inline gb_device gb_slot_device(int slot) {
  return slot < GB_DEVICE_TYPES ? (gb_device){ (int16_t)slot, 0 }
      : (gb_device){ GB_CUDA, (int16_t)(slot - GB_DEVICE_TYPES + 1) };
}

/* All that tensors ask of the graph that they are part of. */
typedef struct gb_node_calls {
  void (*release)(struct gb_node *node);
  uint64_t (*history)(const struct gb_node *node); /* tells what it computed from earlier results in the same place;
                                                      above 0 */
  void (*leave)(struct gb_tensor *tensor); /* it goes, or leaves its graph: its node puts no gradient into it any
                                              more */
} gb_node_calls;

/* Which files may be opened. */
enum { GB_FILES_ANY = -1, GB_FILES_NONE = -2 };
typedef struct gb_file_policy {
  int root;                                /* a folder's descriptor that every path lies beneath, or GB_FILES_ANY, or
                                              GB_FILES_NONE */
  gb_status (*ask)(void *user, const char *path, bool write); /* or NULL: nobody is asked */
  void *user;
  uint64_t most, written;                  /* bytes that may be written (0: no limit), and that were */
} gb_file_policy;

struct gb_context {
  _Atomic int64_t refs;                    /* the opener, and one per storage */
  gb_pool *pool[GB_DEVICE_SLOTS];          /* NULL: no such device */
  gb_cells cells;                          /* of tensors, storages and nodes */
  gb_budget budget;                        /* of tensor bytes, over every device, with what the engine keeps beside
                                              tensors */
  struct gb_graph_pool *graph_pools;       /* of captured graphs, their devices' memory too; they live as long as the
                                              context */
  gb_pool *job_pool;                       /* of a device's memory that the collectives of a job work in, on any thread;
                                              NULL: none. With: */
  gb_device job_device;
  bool capturing;                          /* launches are recorded and do not run: values are not there, and memory
                                              goes back to no device */
  gb_backend *backend[GB_DEVICE_SLOTS];
  void *plugin[GB_DEVICE_TYPES];           /* handle of the shared library, or NULL */
  int devices[GB_DEVICE_TYPES];            /* of a plugin that is loaded: how many it has, of which some are open */
  char *plugin_folders;                    /* where plugins are looked for first, separated by ':'; or NULL */
  int own_cuda;                            /* the device that "cuda" means: 0, or one for each process of a job */
  char *no_cuda;                           /* why there is no CUDA device; NULL: there is one, or nobody has asked
                                              yet */
  gb_threads *threads;

  gb_modes *modes;                         /* the modes that count now; never NULL */
  gb_modes default_modes;

  uint64_t seed, offset;                   /* the random stream */
  _Atomic uint64_t parts;                  /* parts of forward passes that gb_recompute_begin has begun */
  atomic_bool interrupt;
  double deadline;                         /* seconds of CLOCK_MONOTONIC after which every op is interrupted; 0: none */
  gb_backend *ranges;                      /* tells a profiler of ops, modules and phases; NULL: nobody looks on */
  bool tf32;                               /* float32 operands of products are rounded to 10 bits of mantissa */
  bool nondeterministic;                   /* kernels may sum in an order that changes from run to run, where that is
                                              faster */

  _Atomic(struct gb_grave *) dead;         /* nodes and tensors whose last reference went, on any thread, while one is
                                              being freed */
  atomic_bool burying;
  atomic_bool tying;                       /* the lock of: */
  struct gb_tensor *tied;                  /* every tensor with a gradient, a graph or hooks (gb_tensor_tie) */
  const gb_node_calls *nodes;              /* NULL: there are no nodes */
  struct gb_hook_turn *turn;               /* of the innermost list of hooks that runs; NULL: none */

  /* What the rooms above keep, each in a struct of its own (room.h of each). runtime/open.c opens and closes them. */
  struct gb_graph_room *graph;
  struct gb_step_room *step;
  struct gb_watch_room *watch;
  struct gb_dist_room *dist;
  void (*close_rooms)(gb_context *context);

  gb_file_policy files;                    /* obeyed by io/path.h; the descriptor belongs to the context */

  const char *op;                          /* the op that the recipe called, for error texts, whatever ops run within
                                              it; NULL between */
  gb_status error_code;
  char error_op[64];
  char error[1024];

  /* Asked when an allocation fails, before it is tried once more: the bindings collect garbage here. */
  void (*reclaim)(void *user);
  void *reclaim_user;
  /* The recipe's line that runs, for traces: the bindings know. NULL: nobody does. */
  void (*where)(void *user, char *text, size_t size);
  void *where_user;
};

/* A failure of the context, put aside while what may fail too cleans up behind it. */
typedef struct gb_failure {
  gb_status code;
  char op[sizeof ((gb_context *)0)->error_op], text[sizeof ((gb_context *)0)->error];
} gb_failure;
void gb_failure_keep(const gb_context *context, gb_failure *out);
void gb_failure_bring_back(gb_context *context, const gb_failure *kept);

/* Write the failure text ("op: text") and return status, so that `return gb_fail(...)` reads well. */
gb_status gb_fail(gb_context *context, gb_status status, const char *format, ...) GB_PRINTF(3, 4);
/* GB_EINVAL for a caller from outside that passed what cannot be meant; the text is lost where the context itself is
 * missing. */
gb_status gb_refuse(gb_context *context, const char *text);
/* As gb_fail(GB_EMEMORY): says how much was asked, live, cached. */
gb_status gb_fail_memory(gb_context *context, size_t bytes);

/* Seconds until the deadline; INFINITY where there is none. */
double gb_seconds_left(const gb_context *context);
/* Has somebody asked for a stop, or has the deadline passed? Any thread. */
bool gb_is_stopping(const gb_context *context);
/* GB_OK, or GB_EINTERRUPT with its text when it is so. */
gb_status gb_poll(gb_context *context);
/* The same within a loop, after every piece of work (base/piece.h). *work counts what was done since the last look,
 * from 0. On the thread that runs the context. */
static inline gb_status gb_poll_work(gb_context *context, int64_t *work, int64_t amount) {
  if ((*work += amount) < GB_PIECE) return GB_OK;
  *work = 0;
  return gb_poll(context);
}

void gb_context_retain(gb_context *context);
void gb_context_release(gb_context *context);

/* The recipe's line that runs now, or "". */
static inline void gb_where(const gb_context *context, char *text, size_t size) {
  text[0] = 0;
  if (context->where) context->where(context->where_user, text, size);
}

/* A block from the device's pool; on failure reclaims, flushes and tries once more. NULL sets the error text. */
gb_block *gb_context_alloc(gb_context *context, gb_device device, size_t bytes, gb_memory_category category);

static inline gb_backend *gb_context_backend(const gb_context *context,
                                             gb_device device) { return context->backend[gb_device_slot(device)]; }
/* What "cuda" means; a process that is shown one device has that one. */
static inline gb_device gb_context_own_cuda(const gb_context *context) {
  return (gb_device){ GB_CUDA, (int16_t)(context->devices[GB_CUDA] == 1 ? 0 : context->own_cuda) };
}
static inline gb_pool *gb_context_pool(const gb_context *context,
                                       gb_device device) { return context->pool[gb_device_slot(device)]; }
/* Is there a device of the type? The CUDA backend is opened when this is asked first, with the device that is this
 * process's own, and no other one, whose memory that would cost. false: *why says what is missing. */
bool gb_context_has_device(gb_context *context, int type, const char **why);
/* The path of a plugin of that name, where one is: plugin.c says in which folders. */
bool gb_plugin_find(const gb_context *context, const char *name, char *path, size_t size);
/* Open one more device of the CUDA backend, where it is not open; an error says how many there are. */
gb_status gb_context_open_device(gb_context *context, gb_device device);
/* A range in a profiler's timeline begins or ends; costs a branch where nobody looks on. */
static inline void gb_range_push(const gb_context *context, const char *name) {
  if (context->ranges) context->ranges->range_push(context->ranges->state, name);
}
static inline void gb_range_pop(const gb_context *context) {
  if (context->ranges) context->ranges->range_pop(context->ranges->state);
}
/* Count bytes of the engine's own towards the limit on tensor bytes (gb_budget_take); on failure reclaims and tries
 * once more. False sets the error text. */
bool gb_context_count_limited(gb_context *context, size_t bytes);
static inline bool gb_context_count(gb_context *context, size_t bytes) { return !context->budget.limit ||
                                                                         gb_context_count_limited(context, bytes); }
static inline void gb_context_uncount(gb_context *context, size_t bytes) {
  if (context->budget.limit) gb_budget_give_back(&context->budget, bytes);
}
/* Memory of the engine's own that is counted so for as long as it lives: zeroed, or resized as realloc does (block
 * NULL: new). NULL sets the error text. The context must outlive it. On the thread that runs the context, since what
 * can go is reclaimed. */
void *gb_counted_alloc(gb_context *context, size_t bytes);
void *gb_counted_resize(gb_context *context, void *block, size_t bytes);
void gb_counted_free(void *block);                 /* NULL is fine; any thread */
/* Let go of what can go: garbage of the language on top, and the pool's cache. */
void gb_context_reclaim(gb_context *context);
/* Give the device back what is cached of its memory. */
void gb_context_flush(gb_context *context, gb_device device);
/* The pool beside the context's own that holds memory of this device for a job, or NULL. */
static inline gb_pool *gb_context_job_pool(const gb_context *context, gb_device device) {
  bool is_its = context->job_device.type == device.type && context->job_device.index == device.index;
  return is_its ? context->job_pool : NULL;
}
/* Fail where so many elements, or bytes, are more than the limit on tensor bytes allows at all: work on them would be
 * without bounds. */
gb_status gb_context_expect(gb_context *context, uint64_t amount);

/* "cpu", "cuda:0", ... */
const char *gb_device_text(const gb_context *context, gb_device device, char *buffer, size_t size);
gb_status gb_device_parse(gb_context *context, const char *text, gb_device *out);

/* Reserve the random stream for one op: gives its offset and advances by one. */
uint64_t gb_rng_take(gb_context *context);

#define GB_TRY(expression)                                                      \
  do {                                                                          \
    gb_status gb_try_status = (expression);                                     \
    if (gb_try_status != GB_OK) return gb_try_status;                           \
  } while (0)

#endif
