/* gibbous_lua.h - Gibbous inside another program: the host API.
 *
 * A host opens a gb_host, which is one Lua universe with its engine, runs recipes in it, calls their functions, hands
 * them tensors without a copy, and closes it. This header is the manual; gibbous.h, which it includes, is that of
 * tensors and operations.
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
 *   - Threads. A process may hold any number of hosts, and they share nothing. One thread at a time uses a host, with
 *     its tensors and its context; which thread that is may change between calls. It needs 256 KB of stack: with less
 *     left for them, ops and calls within calls fail with an error. A function of this header that is called while
 *     another thread's call of the same host runs does nothing and returns GB_ETHREAD, which is also the text that
 *     gb_host_error then gives that thread. (With functions of gibbous.h on the host's context nobody looks: that is a
 *     fault.) gb_host_interrupt, gb_host_request_stop and gb_tensor_release may be called by any thread, the first two
 *     by a signal handler too.
 *   - Status. A function that can fail returns a gb_status; the text is then in gb_host_error(host), out parameters are
 *     untouched, nothing leaks, and the host can be used on, whatever the status was: out of memory, a limit, an
 *     interrupt.
 *   - Misuse. Where a pointer is NULL and nothing is said of NULL, a count is negative, or a value is of no kind or of
 *     another host, a function returns GB_EINVAL with a text (no text where the host itself is NULL), and one that
 *     returns no status gives nothing: NULL, 0. What cannot be seen is a fault, that is, anything may happen: a host
 *     that was closed, a gb_call whose function has returned, a tensor that was released once too often, memory that is
 *     shorter than was said.
 *   - Ownership. What you pass in stays yours and may end as soon as the call has returned. What you get out is yours:
 *     see gb_value_release.
 *   - Callbacks run on the thread that made the call they run in. They must not longjmp or throw through us. Host
 *     functions, on_print, on_error and on_event may call the host again, but for gb_host_close, which is GB_ESTATE
 *     there; what fails within on_error is not told to it. In on_file and lua_alloc every call of the host is
 *     GB_ESTATE. In tensor_alloc, tensor_free and the release of gb_tensor_wrap, which may run in the middle of
 *     anything, a call of the engine or the host is a fault, but for gb_tensor_release in the last.
 *   - Nothing here prints, exits, handles signals, changes the locale or reads the environment, unless an option says
 *     so. */
#ifndef GIBBOUS_LUA_H
#define GIBBOUS_LUA_H

#include <gibbous.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One Lua universe with its engine. */
typedef struct gb_host gb_host;
/* What a host function was called with; it ends when that function returns. */
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
  GB_VALUE_OBJECT    /* a handle of anything else a recipe made, an optimizer for example: to be kept and passed back */
} gb_value_type;

/* A value on its way between the host and a recipe.
 *   Passed in: a string is copied, a tensor gets one more reference, a handle goes on standing for the same Lua value.
 *   Got out: `owned` is set. A string is a copy with a NUL behind it that length does not count; a tensor is a new
 *   reference, which may outlive
 *   the host; a handle keeps its Lua value alive. gb_value_release ends each of them. */
typedef struct gb_value {
  gb_value_type type;
  bool owned; /* gb_value_release has something to end */
  union {
    bool boolean;
    int64_t integer;
    double number;
    struct { const char *data; size_t length; } string; /* any bytes, NUL too */
    gb_tensor *tensor;
    struct { int64_t number; const gb_host *host; } handle; /* of the host that gave it, and of no other; not to be
                                                               looked into */
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
/* End what the value owns and make it nil; a value that owns nothing only becomes nil. NULL is fine. A copy of a value
 * is no second owner: a string or tensor that is released by both is a fault, a handle is not. A handle is released
 * with its own host and before that closes; with another host, or while another thread uses it, it stays as it is. host
 * NULL: a handle of a host that is closed becomes nil. */
GB_API void gb_value_release(gb_host *host, gb_value *value);

/* ====} */

/* {==== Opening ==== */

/* What recipes may do. */
typedef enum gb_sandbox {
  GB_SANDBOX_NONE,  /* stock Lua: all of its libraries, native modules, every file; for recipes you would run as a
                       program */
  GB_SANDBOX_FILES, /* the allowed functions of Lua and gb, and files beneath options.root */
  GB_SANDBOX_STRICT /* computation only: no files at all */
} gb_sandbox;

/* How far a recipe has come: given by gb.progress at each update, so that a host need not ask; by a Trainer after each
 * step, and, with the title "validate", after each validation. Valid during the callback. */
typedef struct gb_event {
  size_t size;         /* of this struct: it may grow */
  const char *title;   /* of the bar: "epoch 3" */
  int64_t step, total; /* steps done, and to be done */
  double loss;         /* the value named loss, or NAN */
  double scale;        /* of the GradScaler among the values, or NAN */
  int64_t skipped;     /* steps that this scaler has skipped, or -1 */
  int64_t count;       /* of all values that are numbers, by names in their order: lr, norm, val_loss, ... */
  const char *const *names;
  const double *values;
} gb_event;

/* A text that a recipe prints: one call of print, without the end of the line. */
typedef void (*gb_print_fn)(void *user, const char *text, size_t length);
/* A run or a call has failed; text is that of gb_host_error. */
typedef void (*gb_error_fn)(void *user, gb_status status, const char *text);
typedef void (*gb_event_fn)(void *user, const gb_event *event);
/* A recipe wants to open a file, to read or to write it. GB_OK lets it; anything else refuses. Without a sandbox only
 * the functions of gb ask: Lua's own io library is the stock one. */
typedef gb_status (*gb_file_fn)(void *user, const char *path, bool write);
/* As Lua's allocator: block NULL: allocate `bytes`; bytes 0: free; else resize. NULL: no memory. Shrinking must not
 * fail. */
typedef void *(*gb_lua_alloc_fn)(void *user, void *block, size_t before, size_t bytes);

/* Zero, NULL and false are the defaults of every field. */
typedef struct gb_host_options {
  size_t size;                /* set by gb_host_options_init; it is the version: old hosts keep working, and 0 is
                                 refused */

  gb_sandbox sandbox;
  const char *root;           /* with GB_SANDBOX_FILES: the folder; no path leads out of it, and no symbolic link is
                                 followed. Copied */
  bool environment;           /* recipes and the library may read environment variables */
  bool interruptible;         /* recipes heed gb_host_interrupt in Lua code too; always so with a sandbox or a limit on
                                 instructions or seconds. Costs loops of plain Lua about a third, ops nothing */
  const char *device;         /* "cpu", "cuda", "cuda:N": what gb.best_device() says; opening fails where it is missing.
                                 NULL: the best. Copied */
  int threads;                /* for kernels, the caller included; 0: one per core. They start with the first work for
                                 them */
  uint64_t seed;              /* of the random stream */

  /* Limits, 0 for none; a sandbox has 256 MiB for Lua and 1 GiB for tensors where these are 0. Instructions and seconds
   * count from the start of each outermost call. A limit that is reached ends that call with a status of its own, and
   * neither pcall nor coroutines of the recipe can hold it up; a finaliser can, which is why a sandbox has none. A step
   * of an optimizer runs to its end whatever the limit is: about 30 to 40 ms for 100 MB of parameters on one core, so
   * tensor_bytes bounds it. */
  size_t lua_bytes;           /* GB_ELUABYTES: tables, strings, functions, coroutines, handles of tensors */
  size_t tensor_bytes;        /* GB_ETENSORBYTES: tensors, gradients, optimizer state, graph nodes, scratch */
  uint64_t instructions;      /* GB_EINSTRUCTIONS: of the Lua machine; work inside library functions is charged alike */
  double seconds;             /* GB_ETIME: of the wall clock. Ops stop half way, a convolution between two slices of its
                                 batch; a tensor that one was changing in place is then changed in part. The step of an
                                 optimizer goes to its end */

  /* Memory. Each may be called by whichever thread uses the host; tensor_free by any thread that releases a tensor. */
  gb_lua_alloc_fn lua_alloc;  /* NULL: realloc and free */
  gb_alloc_fn tensor_alloc;   /* with tensor_free: both or neither */
  gb_free_fn tensor_free;
  void *alloc_user;           /* passed to the three above */

  /* Callbacks, NULL: not called. */
  gb_print_fn on_print;       /* NULL: what recipes print is dropped */
  gb_error_fn on_error;
  gb_event_fn on_event;       /* NULL: gb.progress prints lines instead */
  gb_file_fn on_file;
  void *user;                 /* passed to the four above */

  /* One more limit, with GB_SANDBOX_FILES only: GB_EFILEBYTES; 0 for 4 GiB. Counted from the opening of the host on,
   * whatever was overwritten or replaced meanwhile; each file that is opened to be written counts as 4096 bytes
   * besides. It bounds what a recipe can fill of a disk. */
  uint64_t file_bytes;
} gb_host_options;

/* Set the defaults. size is sizeof(gb_host_options) of the caller. */
GB_API void gb_host_options_init(gb_host_options *options, size_t size);

/* Open a host. options NULL: the defaults. On failure *out is NULL and `error`, if it is not NULL, holds a text cut to
 * `size` bytes. */
GB_API gb_status gb_host_open(const gb_host_options *options, gb_host **out, char *error, size_t size);
/* End the universe: finalisers run, handles die, and the engine goes with the last tensor that somebody holds. Such a
 * tensor keeps its values; its gradient, its graph and its hooks go now, as gb_context_close says, so nothing that a
 * recipe tied to it outlives the host. NULL is fine. Where a call of the host runs it stays open: GB_ESTATE where that
 * is this thread's, which calls from a callback, GB_ETHREAD where it is another's. */
GB_API gb_status gb_host_close(gb_host *host);

/* The engine: make tensors with it, run ops. Lives as long as the host, or a tensor of it. */
GB_API gb_context *gb_host_context(gb_host *host);

/* Why the last call failed: message, the recipe's line, traceback; "" when none has failed yet. Valid until the next
 * call that fails. While another thread's call runs, the text of GB_ETHREAD. */
GB_API const char *gb_host_error(const gb_host *host);

/* What a host has used. */
typedef struct gb_host_usage {
  size_t lua_bytes, lua_peak; /* now, and at most */
  uint64_t instructions;      /* charged in the last outermost call, in steps of about a thousand; 0 where nothing is
                                 counted */
} gb_host_usage;
/* Zeros while another thread's call runs. */
GB_API void gb_host_get_usage(const gb_host *host, gb_host_usage *out);

/* ====} */

/* {==== Running ====
 * Every function here may run Lua code, for as long as the recipe pleases and the limits allow. They nest: a host
 * function may call them.
 * GB_ERECIPE is an error of the recipe's own, in syntax or while it ran. Bytecode is refused, at every level. */

/* Run a file of Lua text. The path is the host's: neither the sandbox nor on_file is asked. */
GB_API gb_status gb_host_run_file(gb_host *host, const char *path);
/* Run Lua text. name: what errors call it, NULL: "recipe". */
GB_API gb_status gb_host_run_string(gb_host *host, const char *text, const char *name);

/* Call the global function `name` ("train", or a path: "model.predict") with n_in values. The first n_out results go to
 * out, nil where there are fewer; out may be NULL when n_out is 0. */
GB_API gb_status gb_host_call(gb_host *host, const char *name, const gb_value *in, int n_in, gb_value *out, int n_out);
/* The same with a function handle, or any value that can be called. */
GB_API gb_status gb_host_call_value(gb_host *host, const gb_value *function, const gb_value *in, int n_in,
                                    gb_value *out, int n_out);

/* A global, or a field by its path ("config.lr"). What is missing is nil. A field is looked for in the table itself,
 * then in the tables that metatables name as __index, as methods are; no function runs for it. */
GB_API gb_status gb_host_get(gb_host *host, const char *name, gb_value *out);
/* Set it; every table on the path must be there. */
GB_API gb_status gb_host_set(gb_host *host, const char *name, const gb_value *value);

/* A new table. */
GB_API gb_status gb_table_new(gb_host *host, gb_value *out);
/* table[key] of a table handle, without metamethods. */
GB_API gb_status gb_table_get(gb_host *host, const gb_value *table, const gb_value *key, gb_value *out);
GB_API gb_status gb_table_set(gb_host *host, const gb_value *table, const gb_value *key, const gb_value *value);
/* #table, without metamethods. */
GB_API gb_status gb_table_length(gb_host *host, const gb_value *table, int64_t *out);
/* The entry after the one of *key, in no order of note; *key nil begins, and is nil again at the end. The old *key is
 * released. */
GB_API gb_status gb_table_next(gb_host *host, const gb_value *table, gb_value *key, gb_value *value);

/* ====} */

/* {==== Host functions ====
 * A function of the host's that recipes call. It gets its arguments by gb_call_get, returns values by gb_call_return,
 * and its status:
 * GB_OK, or a failure that becomes a Lua error with the recipe's line and the text of gb_call_error. */

typedef gb_status (*gb_host_fn)(gb_call *call, void *user);

/* Make fn the global `name`, or a field by its path ("robot.move"), whose tables are made where they are missing. */
GB_API gb_status gb_host_register(gb_host *host, const char *name, gb_host_fn fn, void *user);

GB_API gb_host *gb_call_host(gb_call *call);
GB_API int gb_call_count(const gb_call *call);
/* Argument i, from 0. The value is lent: it ends with the call, whatever the recipe does with it meanwhile (t:free() in
 * a function that is called back), and must not be released; retain a tensor to keep it. nil where there is no argument
 * i. */
GB_API gb_status gb_call_get(gb_call *call, int i, gb_value *out);
/* Add a result. The value stays yours. */
GB_API gb_status gb_call_return(gb_call *call, const gb_value *value);
/* The text of a failure, cut to some 500 bytes; returns status, so that `return gb_call_error(...)` reads well. */
GB_API gb_status gb_call_error(gb_call *call, gb_status status, const char *format, ...) GB_PRINTF(3, 4);

/* ====} */

/* {==== Stopping: any thread, any signal handler ====
 * NULL does nothing, and so does a host whose close has begun; one whose close has returned is a fault. So another
 * thread must be done with the
 * host before it is closed, and a handler must not find its address afterwards. */

/* Stop the call that runs, if one does: it ends with GB_EINTERRUPT, within a thousand instructions or one op. Lua code
 * heeds it in a host that is interruptible, ops always. A recipe cannot hold it up. */
GB_API void gb_host_interrupt(gb_host *host);
/* Ask the recipe to end by itself: where it set gb.on_stop, that function runs between two steps of training and the
 * call then ends with GB_EINTERRUPT. A recipe that set none is interrupted, and so is one that is asked a second
 * time. */
GB_API void gb_host_request_stop(gb_host *host);

/* ====} */

#ifdef __cplusplus
}
#endif
#endif
