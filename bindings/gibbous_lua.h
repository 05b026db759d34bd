/* gibbous_lua.h - Gibbous inside another program: the host API.
 *
 * A program opens a gb_host, which is one Lua state with its engine. It runs recipes in it, calls their functions,
 * hands them tensors without a copy, and closes it. This header is the manual of the host API; gibbous.h, which it
 * includes, is the manual of tensors and operations.
 *
 *   gb_host_options options;
 *   gb_host_options_init(&options, sizeof options);
 *   options.sandbox = GB_SANDBOX_STRICT;
 *   options.seconds = 10;
 *
 *   char why[256];
 *   gb_host *host;
 *   if (gb_host_open(&options, &host, why, sizeof why) != GB_OK) return fputs(why, stderr), 1;
 *   if (gb_host_run_file(host, "adapt.lua") != GB_OK) fprintf(stderr, "%s\n", gb_host_error(host));
 *   gb_host_close(host);
 *
 * Rules that hold for every function here, unless its comment says otherwise:
 *   - Threads. A process may hold any number of hosts, and they share nothing. One thread at a time uses a host, its
 *     tensors and its context; another thread may take over between calls. It needs 256 KB of stack: with less left, ops
 *     and nested calls fail with an error. gb_host_interrupt, gb_host_request_stop and gb_tensor_release may be called
 *     from any thread, the first two also from a signal handler.
 *   - Status. A function that can fail returns a gb_status. The text is then in gb_host_error(host), out parameters are
 *     untouched and nothing leaks. The host stays usable after any failure: out of memory, a limit, an interrupt.
 *   - NULL. Pointers must not be NULL unless the comment says what NULL means.
 *   - Ownership. What you pass in stays yours and may be freed as soon as the call has returned. What you get out is
 *     yours to end: see gb_value_release.
 *   - Callbacks run on the thread that made the call. They must not longjmp or throw through Gibbous, and must not
 *     close the host.
 *   - Nothing here prints, exits, handles signals, changes the locale or reads the environment, unless an option says
 *     so. */
#ifndef GIBBOUS_LUA_H
#define GIBBOUS_LUA_H

#include <gibbous.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One Lua state with its engine. */
typedef struct gb_host gb_host;
/* The call of a host function: its arguments and results. Valid until that function returns. */
typedef struct gb_call gb_call;

/* {==== Values ==== */

typedef enum gb_value_type {
  GB_VALUE_NIL,
  GB_VALUE_BOOLEAN,
  GB_VALUE_INTEGER,
  GB_VALUE_NUMBER,
  GB_VALUE_STRING,
  GB_VALUE_TENSOR,
  GB_VALUE_TABLE,    /* a handle: see gb_table_get */
  GB_VALUE_FUNCTION, /* a handle: see gb_host_call_value */
  GB_VALUE_OBJECT    /* a handle of any other Lua value, such as an optimizer: keep it and pass it back */
} gb_value_type;

/* A value passed between the host and a recipe.
 *   Passed in: a string is copied, a tensor gets one more reference, a handle still stands for the same Lua value.
 *   Got out: `owned` is set. A string is a copy, followed by a NUL that length does not count. A tensor is a new
 *   reference and may outlive the host. A handle keeps its Lua value alive. gb_value_release ends each of them. */
typedef struct gb_value {
  gb_value_type type;
  bool owned; /* gb_value_release must be called */
  union {
    bool boolean;
    int64_t integer;
    double number;
    struct { const char *data; size_t length; } string; /* any bytes, NUL included */
    gb_tensor *tensor;
    int handle; /* valid only in the host that gave it */
  } as;
} gb_value;

GB_API gb_value gb_value_nil(void);
GB_API gb_value gb_value_boolean(bool boolean);
GB_API gb_value gb_value_integer(int64_t integer);
GB_API gb_value gb_value_number(double number);
/* Borrows text, which ends with a NUL. NULL gives nil. */
GB_API gb_value gb_value_string(const char *text);
/* Borrows `length` bytes. */
GB_API gb_value gb_value_bytes(const char *data, size_t length);
/* Borrows the tensor. NULL gives nil. */
GB_API gb_value gb_value_tensor(gb_tensor *tensor);
/* Free what the value owns, if anything, and make it nil. Release handles before gb_host_close. */
GB_API void gb_value_release(gb_host *host, gb_value *value);

/* ====} */

/* {==== Opening ==== */

/* What recipes may do. */
typedef enum gb_sandbox {
  GB_SANDBOX_NONE,  /* stock Lua: all libraries, native modules, every file; for recipes that you trust like a
                       program */
  GB_SANDBOX_FILES, /* the allowed functions of Lua and gb, and files beneath options.root */
  GB_SANDBOX_STRICT /* computation only: no files at all */
} gb_sandbox;

/* The progress of a recipe, reported at each update of gb.progress. Valid during the callback. */
typedef struct gb_event {
  size_t size;         /* of this struct, which may grow */
  const char *title;   /* of the bar: "epoch 3" */
  int64_t step, total; /* steps done, and steps in all */
  double loss;         /* the value named loss, or NAN */
  double scale;        /* the scale of the GradScaler among the values, or NAN */
  int64_t skipped;     /* steps that this scaler has skipped, or -1 */
} gb_event;

/* Called for each call of print in a recipe, with the text and without the end of the line. */
typedef void (*gb_print_fn)(void *user, const char *text, size_t length);
/* Called when a run or a call has failed; text is what gb_host_error returns. */
typedef void (*gb_error_fn)(void *user, gb_status status, const char *text);
typedef void (*gb_event_fn)(void *user, const gb_event *event);
/* Called when a recipe wants to open a file, to read or to write it. GB_OK allows it; anything else refuses. Without a
 * sandbox only the functions of gb ask: the io library is Lua's own. */
typedef gb_status (*gb_file_fn)(void *user, const char *path, bool write);
/* As lua_Alloc. block NULL: allocate `bytes`; bytes 0: free; else resize. Returns NULL for no memory. Shrinking must
 * not fail. */
typedef void *(*gb_lua_alloc_fn)(void *user, void *block, size_t before, size_t bytes);

/* Zero, NULL and false are the defaults of every field. */
typedef struct gb_host_options {
  size_t size;                /* set by gb_host_options_init. It is the version: old hosts keep working. 0 is refused */

  gb_sandbox sandbox;
  const char *root;           /* with GB_SANDBOX_FILES: the folder. No path leads out of it; symbolic links are not
                                 followed. Copied */
  bool environment;           /* recipes and the library may read environment variables */
  bool interruptible;         /* gb_host_interrupt stops Lua code too. Always so with a sandbox, or a limit on
                                 instructions or seconds. Costs loops of plain Lua about a third, ops nothing */
  const char *device;         /* "cpu", "cuda", "cuda:N": what gb.best_device() returns; opening fails if it is missing.
                                 NULL: the best there is. Copied */
  int threads;                /* for kernels, the caller included; 0: one per core. They start with the first work */
  uint64_t seed;              /* of the random stream */

  /* Limits; 0 is none, except that a sandbox then has 256 MiB for Lua and 1 GiB for tensors. Instructions and seconds
   * count from the start of each outermost call. A limit that is reached ends that call with its own status. The recipe
   * cannot catch it with pcall or in a coroutine. A finaliser could, which is why a sandbox has none. */
  size_t lua_bytes;           /* GB_ELUABYTES: tables, strings, functions, coroutines, handles of tensors */
  size_t tensor_bytes;        /* GB_ETENSORBYTES: tensors, gradients, optimizer state, graph nodes, scratch */
  uint64_t instructions;      /* GB_EINSTRUCTIONS: of Lua; work inside library functions is charged alike */
  double seconds;             /* GB_ETIME: of the wall clock. Ops stop half way, a convolution between two slices of its
                                 batch; a tensor that one was changing in place is then changed in part. The step of an
                                 optimizer goes to its end */

  /* Memory. The thread that uses the host calls these; any thread that releases a tensor may call tensor_free. */
  gb_lua_alloc_fn lua_alloc;  /* NULL: realloc and free */
  gb_alloc_fn tensor_alloc;   /* with tensor_free: both or neither */
  gb_free_fn tensor_free;
  void *alloc_user;           /* passed to these three */

  /* Callbacks; NULL: not called. */
  gb_print_fn on_print;       /* NULL: printed text is dropped */
  gb_error_fn on_error;
  gb_event_fn on_event;       /* NULL: gb.progress prints lines instead */
  gb_file_fn on_file;
  void *user;                 /* passed to these four */

  /* GB_EFILEBYTES: bytes written to files, with GB_SANDBOX_FILES only; 0 for 4 GiB. Counted since the host opened, also
   * for files that were overwritten; opening a file for writing counts 4096 bytes more. It bounds how much disk a
   * recipe can fill. */
  uint64_t file_bytes;
} gb_host_options;

/* Set the defaults. size is the caller's sizeof(gb_host_options). */
GB_API void gb_host_options_init(gb_host_options *options, size_t size);

/* Open a host. options NULL: the defaults. On failure *out is NULL and `error`, if it is not NULL, holds a text cut to
 * `size` bytes. */
GB_API gb_status gb_host_open(const gb_host_options *options, gb_host **out, char *error, size_t size);
/* Close the host: finalisers run and handles become invalid. The engine's memory is freed with the last tensor that
 * somebody holds. Such a tensor keeps its values, but loses its gradient, its graph and its hooks now (see
 * gb_context_close), so nothing that a recipe tied to it outlives the host. NULL is allowed. */
GB_API void gb_host_close(gb_host *host);

/* The engine of the host, for making tensors and running ops. Valid while the host is open, or a tensor of it is
 * held. */
GB_API gb_context *gb_host_context(gb_host *host);

/* Why the last call failed: message, the recipe's line, traceback; "" if none has failed yet. Valid until the next call
 * that fails. */
GB_API const char *gb_host_error(const gb_host *host);

/* What a host has used. */
typedef struct gb_host_usage {
  size_t lua_bytes, lua_peak; /* now, and at the peak */
  uint64_t instructions;      /* charged in the last outermost call, in steps of about a thousand; 0 if not counted */
} gb_host_usage;
/* Zeros while another thread's call runs. */
GB_API void gb_host_get_usage(const gb_host *host, gb_host_usage *out);

/* ====} */

/* {==== Running ====
 * Every function here may run Lua code, for as long as the limits allow. They nest: a host function may call them.
 * GB_ERECIPE is an error in the recipe, in its syntax or while it ran. Bytecode is refused at every level. */

/* Run a file of Lua text. The path is the host's own: neither the sandbox nor on_file is asked. */
GB_API gb_status gb_host_run_file(gb_host *host, const char *path);
/* Run Lua text. name is what errors call it; NULL: "recipe". */
GB_API gb_status gb_host_run_string(gb_host *host, const char *text, const char *name);

/* Call the global function `name` ("train", or a path: "model.predict") with n_in values. The first n_out results go to
 * out; missing ones are nil. out may be NULL when n_out is 0. */
GB_API gb_status gb_host_call(gb_host *host, const char *name, const gb_value *in, int n_in, gb_value *out, int n_out);
/* The same with a function handle, or any value that can be called. */
GB_API gb_status gb_host_call_value(gb_host *host, const gb_value *function, const gb_value *in, int n_in,
                                    gb_value *out, int n_out);

/* Read a global, or a field by its path ("config.lr"). What is missing is nil. */
GB_API gb_status gb_host_get(gb_host *host, const char *name, gb_value *out);
/* Write it. Every table on the path must exist. */
GB_API gb_status gb_host_set(gb_host *host, const char *name, const gb_value *value);

/* Make a new table. */
GB_API gb_status gb_table_new(gb_host *host, gb_value *out);
/* Read or write table[key] of a table handle. */
GB_API gb_status gb_table_get(gb_host *host, const gb_value *table, const gb_value *key, gb_value *out);
GB_API gb_status gb_table_set(gb_host *host, const gb_value *table, const gb_value *key, const gb_value *value);
/* #table, without metamethods. */
GB_API gb_status gb_table_length(gb_host *host, const gb_value *table, int64_t *out);
/* The entry after *key, in no particular order. Begin with *key nil; it is nil again at the end. The old *key is
 * released. */
GB_API gb_status gb_table_next(gb_host *host, const gb_value *table, gb_value *key, gb_value *value);

/* ====} */

/* {==== Host functions ====
 * A function of the host that recipes call. It reads its arguments by gb_call_get and returns values by gb_call_return.
 * It returns GB_OK, or a failure that becomes a Lua error with the recipe's line and the text of gb_call_error. */

typedef gb_status (*gb_host_fn)(gb_call *call, void *user);

/* Make fn the global `name`, or a field by its path ("robot.move"). Missing tables on the path are made. */
GB_API gb_status gb_host_register(gb_host *host, const char *name, gb_host_fn fn, void *user);

GB_API gb_host *gb_call_host(gb_call *call);
GB_API int gb_call_count(const gb_call *call);
/* Argument i, from 0; nil past the last one. The value is lent for the call and must not be released. Retain a tensor
 * to keep it. */
GB_API gb_status gb_call_get(gb_call *call, int i, gb_value *out);
/* Add a result. The value stays yours. */
GB_API gb_status gb_call_return(gb_call *call, const gb_value *value);
/* Set the text of a failure, cut to about 500 bytes. Returns status, for `return gb_call_error(...)`. */
GB_API gb_status gb_call_error(gb_call *call, gb_status status, const char *format, ...) GB_PRINTF(3, 4);

/* ====} */

/* {==== Stopping: any thread, any signal handler ====
 * NULL does nothing, and so does a host whose close has begun; one whose close has returned is a fault. So another thread must be done with the
 * host before it is closed, and a handler must not find its address afterwards. */

/* Stop the running call, if there is one. It ends with GB_EINTERRUPT within a thousand instructions or one op. Ops
 * always stop; Lua code stops if the host is interruptible. A recipe cannot catch it. */
GB_API void gb_host_interrupt(gb_host *host);
/* Ask the recipe to stop. If it has set gb.on_stop, that function runs between two training steps, and the call then
 * ends with GB_EINTERRUPT. A recipe without one is interrupted, and so is one that is asked a second time. */
GB_API void gb_host_request_stop(gb_host *host);

/* ====} */

#ifdef __cplusplus
}
#endif
#endif
