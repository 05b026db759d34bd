/* tensor/backend.h - the seam between the engine and what computes: a table of function pointers.
 *
 * A backend is filled by the CPU backend inside the engine, or by a plugin that the engine opens at run time. A plugin
 * exports
 *     gb_status gb_backend_open(const gb_engine_table *engine, uint32_t abi, gb_backend *out);
 * and links to nothing of ours: what it needs of the engine is in the table. */
#ifndef GB_TENSOR_BACKEND_H
#define GB_TENSOR_BACKEND_H

#include "base/pool.h"
#include "op_ids.h"

#define GB_BACKEND_ABI 14u

struct gb_op_call;
struct gb_step_call;

/* What gb.cuda.properties tells, and bytes that the backend itself holds between host and device. */
typedef struct gb_device_info { char name[256]; int64_t major, minor, multiprocessors, driver, runtime, total_memory,
                                free_memory, staging; } gb_device_info;

/* What gb.cuda.tuned tells of the table of algorithms of products: rows that hold on this device; products that took
 * one, and whose row was refused; and, since tuning last began, how many were timed, how many got another algorithm
 * than the library's first choice, and the microseconds of one launch of each by that choice and by the best. */
typedef struct gb_tuned { int64_t choices, taken, refused, timed, improved; double first, best; } gb_tuned;

/* Recurrent layers as a library sees them. state: the features of h, fewer than hidden where it is projected. */
typedef struct gb_rnn {
  int64_t cell, layers, time, batch, input, hidden, state; /* cell: a GB_WORD */
  int32_t dtype, bidirectional, bias, lengths;             /* lengths: sequences may end before `time` */
  int64_t tf32;                                            /* operands of float32 products may be rounded */
} gb_rnn;

/* What it takes for them: bytes of packed weights, and of what forward keeps for backward. */
typedef struct gb_rnn_room { int64_t packed, reserve; } gb_rnn_room;

/* Compute call->out from call->in. Shapes, dtypes and devices were checked and the outputs allocated. Never calls
 * dispatch. */
typedef gb_status (*gb_kernel)(struct gb_op_call *call);

/* What a backend does beside its ops: passes over the gradients and weights of a slab, and the scaler's update. */
typedef enum gb_step {
  GB_STEP_CHECK,    /* raise the flags if a gradient is not finite; add up the norm if asked */
  GB_STEP_UNSCALE,  /* divide gradients by the scale in place, and check them alike */
  GB_STEP_CLIP,     /* multiply or clamp gradients in place */
  GB_STEP_DIRECT,   /* write an optimizer's directions into the last state of the segments that have a gradient; all
                       else stays */
  GB_STEP_MEASURE,  /* what a step measures first, of the parts of segments; all else stays as it is */
  GB_STEP_UPDATE,   /* one step of an optimizer over the segments that have a gradient, clipped if asked */
  GB_STEP_RESCALE,  /* the scale grows or backs off by the flags of all optimizers */
  GB_STEP_COUNT
} gb_step;

/* Do what the call says, which was checked. It runs to its end, since a stop half way would leave some weights a step
 * ahead. */
typedef gb_status (*gb_step_kernel)(struct gb_step_call *call);

typedef struct gb_backend {
  const char *name;                              /* "cpu", "cuda", or a plugin's own */
  void *state;
  gb_context *context;                           /* set by the engine before it opens the backend, which goes with it */
  int index;                                     /* of the device, from 0; set by the engine too: each device has a
                                                    table */
  int devices;                                   /* of the kind that there are; 0: one */
  void *(*alloc)(void *state, size_t bytes, size_t alignment);
  void (*free)(void *state, void *block, size_t bytes);
  /* Copy contiguous bytes between host and device memory, in order with the kernels issued so far. */
  gb_status (*write)(void *state, void *device, const void *host, size_t bytes);
  gb_status (*read)(void *state, void *host, const void *device, size_t bytes);
  /* Copy bytes from another device of the kind, whose state is `source`, in order with the kernels of both. NULL: they
   * go through the host. */
  gb_status (*fetch)(void *state, void *to, void *source, const void *from, size_t bytes);
  /* Within the device's memory, ordered as a kernel, like the next one. */
  gb_status (*copy)(void *state, void *to, const void *from, size_t bytes);
  /* zeros; NULL: no optimizers on this device */
  gb_status (*clear)(void *state, void *device, size_t bytes);
  gb_status (*synchronize)(void *state);
  /* A copy to host memory from `pin`, which arrives later; the host looks at what has arrived. NULL: read is used
   * instead. */
  void *(*pin)(void *state, size_t bytes);
  void (*unpin)(void *state, void *host);
  gb_status (*post)(void *state, void *pinned, const void *device, size_t bytes);
  gb_status (*arrive)(void *state, bool wait, bool *there); /* has all that was posted arrived? wait: until it has */
  /* All kernels of a training step were issued: wait for those of the step before, so that the host is at most one step
   * ahead. NULL: the host never is ahead. */
  gb_status (*pace)(void *state);
  /* Between begin and end nothing runs; launches are recorded into *graph (NULL on failure). A replay advances the
   * random stream by `places`, and adds `seeds` to the seed. NULL: this backend has no graphs. */
  gb_status (*capture_begin)(void *state);
  gb_status (*capture_end)(void *state, void **graph);
  gb_status (*replay)(void *state, void *graph, uint64_t places, uint64_t seeds);
  void (*graph_close)(void *state, void *graph);
  gb_status (*describe)(void *state, gb_device_info *out);        /* NULL: nothing to tell */
  /* Ranges in a profiler's timeline, nested, of ops, modules and phases; NULL: no profiler is attached. */
  void (*range_push)(void *state, const char *name);
  void (*range_pop)(void *state);
  /* A mark in the row of the kernels, and, once all of them are through, the seconds from one to another. NULL: kernels
   * end with their call. */
  gb_status (*mark)(void *state, void **mark);
  gb_status (*between)(void *state, void *from, void *to, double *seconds);
  void (*unmark)(void *state, void *mark);
  /* Is the kernel of this op of no use here, since a library is missing? It may open the library. NULL: never. */
  bool (*lacks)(void *state, int op);
  /* Do recurrent layers run in a library, by the ops rnn and those beside it? Where they do not, the reason is told
   * once. NULL: never. */
  bool (*runs_rnn)(void *state, const gb_rnn *rnn, gb_rnn_room *room);
  /* The table of algorithms of products: time new ones while it is on; read a text, if there is one, and tell; write it
   * as snprintf does, once it was told. NULL: there is no choice. */
  gb_status (*tune)(void *state, bool on);
  gb_status (*tuned)(void *state, const char *text, size_t bytes, gb_tuned *out);
  size_t (*tuned_text)(void *state, char *out, size_t room);
  void (*close)(void *state);
  /* Bytes of a result, at most, that an op keeps for backward although it could be computed again; 0: none. */
  size_t keeps;
  gb_step_kernel step[GB_STEP_COUNT];            /* NULL: this backend has no such step */
  gb_kernel run[GB_OP_COUNT];                    /* NULL: this backend has no such kernel */
} gb_backend;

/* What a plugin may use of the engine. */
typedef struct gb_engine_table {
  uint32_t size;
  uint64_t (*op_hash)(void); /* gb_op_table_hash of the engine: a backend that was compiled with another table
                                declines */
  const char *(*op_name)(int op);
  gb_status (*fail)(gb_context *context, gb_status status, const char *format, ...) GB_PRINTF(3, 4);
  size_t (*dtype_bytes)(gb_dtype dtype);
  gb_dtype (*result_type)(gb_tensor *const *tensors, int count);
  /* Blocks of the device's pool; NULL sets the error text. */
  gb_block *(*alloc)(gb_context *context, gb_device device, size_t bytes, gb_memory_category category);
  void (*free)(gb_context *context, gb_device device, gb_block *block);
  void *(*block_data)(const gb_block *block);
} gb_engine_table;

typedef gb_status (*gb_backend_open_fn)(const gb_engine_table *engine, uint32_t abi, gb_backend *out);

#endif
