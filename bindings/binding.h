/* binding.h - what the files of bindings/ share.
 *
 * A function that Lua calls first does gbl_enter(L): it notes the coroutine that runs and points the context at its
 * modes. Order in every function: check arguments (may raise), push what will release (gbl_new_tensor, gbl_new_object),
 * acquire, gbl_check_status. Nothing raises through engine code: what the engine calls back runs inside gbl_protect,
 * and no lua_State is kept across calls. */
#ifndef GB_BINDINGS_BINDING_H
#define GB_BINDINGS_BINDING_H

#include <lauxlib.h>
#include <lua.h>

#include "interrupt.h"
#include "graph/ops.h"
#include "tensor/print.h"

/* {==== The state: one per Lua universe ==== */

typedef enum gbl_scope_kind { GBL_SCOPE_GRAD, GBL_SCOPE_AUTOCAST, GBL_SCOPE_ANOMALY, GBL_SCOPE_KINDS } gbl_scope_kind;

/* The modes of one coroutine, with the scopes that are open in it. */
typedef struct gbl_modes {
  gb_modes now;                                 /* first: context->modes points here */
  struct gbl_scope *top[GBL_SCOPE_KINDS];       /* innermost open scope of each kind */
  int64_t scopes;                               /* opened so far: the number of the last one */
  struct gbl_handler *handler;                  /* of the innermost xpcall that runs */
  struct gbl_scope *spare;                      /* one that has ended, for the next; or NULL */
} gbl_modes;

/* Handles of tensors that came into being, and bytes of theirs. */
typedef struct gbl_made { int64_t handles; size_t bytes; } gbl_made;

typedef struct gbl_state {
  int64_t refs;                  /* the universe, and callbacks that the engine holds */
  gb_context *context;           /* NULL once the universe has closed */
  lua_State *running;            /* the coroutine that called last; valid during that call */
  lua_State *noted;              /* the coroutine whose modes count; kept alive by the registry */
  gbl_modes *modes;              /* its modes */
  const void *tensor_meta;       /* address of the tensors' metatable, */
  int tensor_reference;          /* and its place in the registry */
  int private_reference;         /* and that of the table of what the Lua half keeps of objects */
  gb_dtype default_dtype;
  gb_device default_device;
  gb_print_options print;
  gbl_made made;                 /* in all, */
  gbl_made collected;            /* when something was collected last: what came after it may be dead */
  gbl_made young;                /* and when a generation was looked at last */
  int64_t young_end;             /* handles made at which the next generation ends */
  int64_t generation;            /* handles in one; 0: Lua's collector is not generational */
  size_t soft_looked;            /* bytes made when the soft mark was looked at */
  size_t soft_mark;              /* live bytes above which everything is collected */
  double full_end, full_cost;    /* the last full collection: when it ended, how long it took; seconds */
  double minor_end;              /* of the last generation */
  gb_tensor **late;              /* freed by finalisers, owned */
  int late_count;
  bool reclaims;                 /* an op waits until what Lua has let go of is collected */
  bool has_error;                /* a callback's error value waits in the registry */
  bool closing;                  /* the host closes: Lua would never finalise what is made now */
  struct gb_host *host;          /* the program around, or NULL: host.h */
  gbl_interrupt interrupt;       /* what runs, and what it must stop for */
  lua_State *audited;            /* the coroutine that called the audit which runs; that keeps it alive */
  lua_State *profiled;           /* the same for a profile */
  gb_tensor *numbers[2];         /* wrapped numbers that no op kept, to be used again: a float and an integer */
} gbl_state;

/* The state of this universe; raises when the library was not opened here. */
gbl_state *gbl_get_state(lua_State *L);
/* Make L's modes the ones that count; part of gbl_enter. */
void gbl_switch(lua_State *L, gbl_state *state);
/* gbl_enter for functions that have the state as an upvalue: two stores and a comparison. */
static inline gbl_state *gbl_note(lua_State *L, gbl_state *state) {
  state->running = L;
  if (state->noted != L) gbl_switch(L, state);
  return state;
}
/* At the start of each function: notes L as running and makes its modes count. */
gbl_state *gbl_enter(lua_State *L);
/* gbl_enter, for those who only need the context. */
gb_context *gbl_context(lua_State *L);

/* Before luaopen_gibbous: the options that its context opens with, instead of the defaults. They must live until it has
 * returned. */
void gbl_set_context_options(lua_State *L, const gb_context_options *options);
/* Open a context for this universe and keep its state in the registry; part of luaopen_gibbous. */
gbl_state *gbl_open_state(lua_State *L);

/* ====} */

/* {==== Errors ==== */

/* Raise a string that begins with the recipe's position: the innermost Lua frame whose chunk is not ours
 * ("=gibbous/..."). */
int gbl_error(lua_State *L, const char *format, ...) GB_PRINTF(2, 3);
/* Push that position ("script.lua:12: ", or ""). */
void gbl_push_where(lua_State *L);
/* Raise where too little of the thread's stack is left for a call into Lua from a large frame. */
void gbl_check_stack(lua_State *L);
/* What luaL_checkstack adds to "stack overflow": it cannot tell the two apart. */
#define GBL_NO_STACK "out of memory, or too many calls within each other"
/* GB_OK: returns 0. Otherwise raises gb_error(context); the error of a Lua callback is raised as it was. */
int gbl_check_status(lua_State *L, gb_status status);
/* As luaL_argerror with the recipe's position: "who: 'name' <text>". */
int gbl_bad_argument(lua_State *L, const char *who, const char *name, const char *text);
/* Is the value at arg a function, or what has __call? Not where __uncallable says that it is there to say why not. */
bool gbl_is_callable(lua_State *L, int arg);
/* "number", "tensor", "gibbous.optimizer", ... of the value at arg. */
const char *gbl_type_name(lua_State *L, int arg);
/* The name in the NULL-ended list that is nearest to `name` (edit distance at most a third of its length, at least 1),
 * or NULL. */
const char *gbl_nearest(const char *name, const char *const *known);
/* The same of the keys of the table at index, which are strings. */
const char *gbl_nearest_key(lua_State *L, int index, const char *name);

/* ====} */

/* {==== Tensors ==== */

/* The Lua value of a tensor. NULL after t:free(). */
typedef struct gbl_box {
  gb_tensor *tensor;
  const void *meta;              /* the metatable it was made with: what tells a box from other userdata of its size */
} gbl_box;

/* Borrowed; raises when the argument is something else, or was freed. */
gb_tensor *gbl_check_tensor(lua_State *L, int arg);
/* NULL when the argument is something else. */
gb_tensor *gbl_test_tensor(lua_State *L, int arg);
gb_tensor *gbl_tensor_at(lua_State *L, const gbl_state *state, int arg); /* the same for who has the state */
/* NULL for nil or none. */
gb_tensor *gbl_opt_tensor(lua_State *L, int arg);
/* Push a box that is empty as yet: fill box->tensor with a new reference, then gbl_finish_tensor when the same tensor
 * may be known already. */
gbl_box *gbl_new_tensor(lua_State *L);
gbl_box *gbl_new_tensor_in(lua_State *L, const gbl_state *state); /* the same for who has the state */
/* The box at the top of the stack was filled. Where its tensor has a Lua value already, that value takes the box's
 * place. */
void gbl_finish_tensor(lua_State *L);
/* Push tensor and take over one reference (released also when Lua has no memory and this raises); NULL pushes nil.
 * Where the tensor has a known Lua value, pushes that one. */
void gbl_push_tensor(lua_State *L, gb_tensor *tensor);
/* As above, and the value becomes the known one: for parameters, gradients, hook arguments, whatever C hands out twice.
 * Takes over one reference too. */
/* The box at the top holds a 0-d measure: on the CPU it becomes a number, on a device, which nobody should wait for, it
 * stays a tensor. */
void gbl_finish_measure(lua_State *L);
void gbl_push_tensor_shared(lua_State *L, gb_tensor *tensor);
/* Make the value at index the known Lua value of its tensor (parameters given to an optimizer, leaves that ask for
 * gradients). */
void gbl_share_tensor(lua_State *L, int index);
/* The table at arg as a list of tensors, borrowed, in a buffer that is pushed on the stack (the table keeps the
 * tensors). A single tensor is a list of one. who and name are for the error text. */
gb_tensor **gbl_check_tensors(lua_State *L, int arg, const char *who, const char *name, int *count);

/* ====} */

/* {==== Other arguments ==== */

/* What PyTorch's option of this name is here, as the rest of a sentence; NULL where it is no such option. */
const char *gbl_ported_option(const char *name);
/* The string at arg as C text, which would end at a NUL and pass for another name: an error where it holds one. */
const char *gbl_check_name(lua_State *L, int arg, const char *who);
/* "float16"; an error names the nearest known one */
gb_dtype gbl_check_dtype(lua_State *L, int arg, const char *who);
void gbl_push_dtype_name(lua_State *L, gb_dtype dtype);
gb_device gbl_check_device(lua_State *L, int arg);
void gbl_push_device_name(lua_State *L, gb_device device);
/* An integer, or a float with an integer value. */
int64_t gbl_check_integer(lua_State *L, int arg, const char *who, const char *name);
bool gbl_test_integer(lua_State *L, int arg, int64_t *out);
double gbl_check_number(lua_State *L, int arg, const char *who, const char *name);
/* Sizes as arguments (2, 3) or one table ({2, 3}) from arg on; returns ndim and sets *next to the first argument after
 * them. */
int gbl_check_shape(lua_State *L, int arg, const char *who, int64_t shape[GB_MAX_NDIM], int *next);
/* The path of a file: a string that holds no NUL, since the system would read only what stands before it. The one way
 * to read a path from a recipe; it lives as long as the argument does. io.c */
const char *gbl_check_path(lua_State *L, int arg, const char *who);
/* Push the value of JSON text; false, and nothing is pushed: it is none, and why
 * says so with the byte. io.c */
bool gbl_push_parsed(lua_State *L, const char *text, size_t length, char *why, size_t why_size);
/* A position counted from 1 (or from the end, -1 is the last) made one from 0 (negative kept); 0 is an error. */
int64_t gbl_position(lua_State *L, int64_t position, const char *who, const char *name);

/* {---- the trailing table of options; an absent or nil one means all defaults ---- */

/* Raises unless arg is nil, none or a table whose keys are all in the NULL-ended list `known`; the error names the
 * nearest known one. */
void gbl_check_options(lua_State *L, int arg, const char *who, const char *const *known);
/* Push the option's value; false (nothing pushed) when it is not given. Raw, as names are looked through: a recipe's
 * function that ran here might free tensors that the caller has read. */
bool gbl_push_option(lua_State *L, int arg, const char *name);
double gbl_option_number(lua_State *L, int arg, const char *who, const char *name, double otherwise);
int64_t gbl_option_integer(lua_State *L, int arg, const char *who, const char *name, int64_t otherwise);
bool gbl_option_boolean(lua_State *L, int arg, const char *who, const char *name, bool otherwise);
gb_dtype gbl_option_dtype(lua_State *L, int arg, const char *who, const char *name, gb_dtype otherwise);
gb_device gbl_option_device(lua_State *L, int arg, const char *who, const char *name, gb_device otherwise);

/* ----} */
/* ====} */


/* {==== Objects: a userdata that releases a C object ==== */

/* What a kind of object is. Keep one constant per kind; its address is the kind. */
typedef struct gbl_type {
  const char *name;                    /* "gibbous.optimizer": unique, shown in errors */
  void (*release)(void *object);       /* by __gc, __close and :close(); NULL: nothing to do */
  const luaL_Reg *methods;             /* ended by {NULL, NULL}, or NULL; names that begin with "__" go into the
                                          metatable (but __gc, __close) */
  const struct gbl_function *functions; /* the methods that recipes see, as reader.h has them, or NULL */
  const char *closes;                  /* the record of close(), where recipes see it, or NULL */
} gbl_type;

/* Register a kind, once per universe. */
void gbl_new_type(lua_State *L, const gbl_type *type);
/* Push an object whose slot is NULL as yet, with `uservalues` user values; acquire into *slot after it. */
void **gbl_new_object(lua_State *L, const gbl_type *type, int uservalues);
/* What an object of ours holds, NULL once it was closed; and count a call that uses it, or one that has returned: what
 * is in use cannot be closed. The value at index is known to be an object. */
void *gbl_held_object(lua_State *L, int index);
void gbl_pin_object(lua_State *L, int index, int by);
/* Raises when the argument is something else, or was closed. */
void *gbl_check_object(lua_State *L, int arg, const gbl_type *type);
void *gbl_test_object(lua_State *L, int arg, const gbl_type *type);

/* ====} */

/* {==== Callbacks from the engine into Lua ==== */

/* A Lua value that the engine keeps as `user`: gbl_callback_release is its `release`. */
typedef struct gbl_callback { gbl_state *state; int reference; } gbl_callback;

/* Keep the value at index. Raises when there is no memory. Give it to the engine with gbl_callback_release. */
gbl_callback *gbl_callback_new(lua_State *L, int index);
void gbl_callback_release(void *callback);
void gbl_callback_push(lua_State *L, const gbl_callback *callback);
/* Run body with a light userdata `argument` as its only argument, protected, on the coroutine that made the call that
 * runs. Modes are afterwards what they were. An error becomes GB_ECALLBACK and is raised again, unchanged, by
 * gbl_check_status. */
gb_status gbl_protect(gbl_state *state, lua_CFunction body, void *argument);
/* For simple callbacks: with a function and n arguments on the stack of L, call it protected for `results` results; as
 * gbl_protect. */
gb_status gbl_call_function(lua_State *L, int arguments, int results);

/* ====} */

/* {==== Collection ==== */

/* A place where little is alive: the start of backward, an optimizer's step, the exit of a no_grad scope. Collects
 * where that is worth it. */
void gbl_collect(lua_State *L);
/* Before tensors are read from arguments, and outputs made: collects everything when live bytes have passed the soft
 * mark, and small tensors while the cache still has them. */
void gbl_soft_mark(lua_State *L, gbl_state *state);
/* Within a finaliser: hold tensor, which whatever made Lua collect may have read already, until gbl_end_late.
 * Elsewhere, or after the universe has closed: nothing. */
void gbl_keep_late(lua_State *L, gbl_state *state, gb_tensor *tensor);
/* Let go of these; where no call has read a tensor as yet. */
void gbl_end_late(gbl_state *state);

/* ====} */

/* {==== Modes: modes.c ==== */

/* An open scope. It belongs to the modes it changes; the value that Lua holds knows only its number, so collecting that
 * value changes nothing. */
typedef struct gbl_scope {
  struct gbl_scope *below;       /* the next open scope of the same kind, outwards */
  int64_t number;
  gb_modes before;               /* what closing restores; only the fields of its kind count */
  const char *what;              /* "gb.no_grad", for the error of a scope left open */
  char where[LUA_IDSIZE + 16];   /* the line that opened it */
} gbl_scope;

/* Close the innermost open scope of a kind: what was before it counts again. */
void gbl_close_top(gbl_modes *modes, gbl_scope_kind kind);
/* Close the scopes with numbers above `before`: those opened since modes->scopes was that. False: there was none. */
bool gbl_close_scopes(gbl_modes *modes, int64_t before);

/* The modes of this coroutine; made, as a copy of those that count now, on first use. */
gbl_modes *gbl_modes_of(lua_State *L);
/* Before L resumes co for the first time: co's modes are a copy of L's. */
void gbl_modes_inherit(lua_State *L, lua_State *co);
/* Push an open scope of gradients on or off; end it (nothing when it has ended). A function that calls Lua inside it
 * makes it to-be-closed. */
void gbl_push_grad_scope(lua_State *L, const char *what, bool grad);
void gbl_end_scope(lua_State *L, int index);
/* Push a text that names an open scope of this coroutine by the line that opened it, or return false. */
bool gbl_push_open_scope(lua_State *L);
/* Replace coroutine.create, resume, wrap and close of this universe by ones that hand modes on exactly and note which
 * coroutine runs, and xpcall by one that cannot hold up a stop; the executable and hosts do. */
void gbl_replace_coroutine(lua_State *L);

/* ====} */

/* {==== The parts of gb: each gets the table gb at the top of the stack, adds its fields, and leaves it there ==== */

void gbl_open_tensor(lua_State *L);    /* tensor.c, index.c: the metatable */
void gbl_open_ops(lua_State *L);       /* ops.c: gb.<op>, methods, gb.nn.functional.<op> */
void gbl_open_random(lua_State *L);    /* random.c: gb.random */
void gbl_open_bytes(lua_State *L);     /* bytes.c: from_bytes, to_bytes */
void gbl_open_create(lua_State *L);    /* create.c */
void gbl_open_autograd(lua_State *L);  /* autograd.c: grad, Function, no_grad, ... */
void gbl_open_recompute(lua_State *L); /* recompute.c: recompute, is_recomputing */
void gbl_open_modes(lua_State *L);     /* modes.c: amp.autocast, ... */
void gbl_open_amp(lua_State *L);       /* amp.c: gb.amp.GradScaler, cache_info, ... */
void gbl_open_optim(lua_State *L);     /* optim.c: the C half of gb.optim */
void gbl_open_data(lua_State *L);      /* data.c */
void gbl_open_images(lua_State *L);    /* images.c */
void gbl_open_samples(lua_State *L);   /* samples.c: what the Lua half of gb.data asks, and NumPy's files */
void gbl_open_io(lua_State *L);        /* io.c */
void gbl_open_dist(lua_State *L);      /* dist.c: gb.dist */
void gbl_open_doctor(lua_State *L);    /* doctor.c: what gb.doctor asks, for the Lua half */
void gbl_open_host(lua_State *L);      /* host.c: what the Lua half tells the host */

/* Set functions into the table at the top, each with the state (a light userdata) as its upvalue 1; and get or make the
 * table `name` in the table at the top (pushed). */
void gbl_set_functions(lua_State *L, const luaL_Reg *functions);
void gbl_push_module(lua_State *L, const char *name);
/* Is the value at index the table gb, as where a function of it was called with a colon? */
bool gbl_is_library(lua_State *L, int index);
/* table[name] = the value at the top, which is popped; past metatables. */
static inline void gbl_set_raw(lua_State *L, int table, const char *name) {
  table = lua_absindex(L, table);
  lua_pushstring(L, name);
  lua_insert(L, -2);
  lua_rawset(L, table);
}
/* A field of the table at the top. */
static inline void gbl_set_integer(lua_State *L, const char *name, int64_t value) {
  lua_pushinteger(L, (lua_Integer)value);
  gbl_set_raw(L, -2, name);
}
static inline void gbl_set_number(lua_State *L, const char *name, double value) {
  lua_pushnumber(L, (lua_Number)value);
  gbl_set_raw(L, -2, name);
}
/* Seed math.random, by the math.randomseed that was there when the library opened. random.c */
void gbl_seed_math(lua_State *L, int64_t seed);
/* What the Lua half of the library uses of Lua's globals is what they are now, whatever becomes of them. */
void gbl_keep_names(lua_State *L);
/* Push one of them, such as the tostring that is in force; and push what the globals have under a name, raw, and tell
 * its type. */
void gbl_push_own_name(lua_State *L, const char *name);
int gbl_push_global(lua_State *L, const char *name);

/* The state, for functions set by gbl_set_functions: cheaper than gbl_enter. */
static inline gbl_state *gbl_upvalue(lua_State *L) { return gbl_note(L, lua_touserdata(L, lua_upvalueindex(1))); }

/* The tensor at index becomes the result of a custom function: where it is an input, or has a history of its own, an
 * alias takes its place. autograd.c */
void gbl_separate_output(lua_State *L, int index);

/* The method table of tensors, pushed: for methods added by other files. */
void gbl_push_methods(lua_State *L);
/* Run an op of one output on borrowed tensors and push the result. */
void gbl_push_op(lua_State *L, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs);
/* Replace the tensor at the top by op(tensor, attrs): a step of a chain. own: the handle that is replaced never reached
 * the recipe, so it ends at once instead of waiting for the collector. */
void gbl_step(lua_State *L, gb_op op, const gb_attr *attrs, bool own);
/* End the handle at index, one that never reached the recipe. */
void gbl_end_handle(lua_State *L, int index);
int gbl_index_get(lua_State *L);       /* index.c: t[key], key no string */
int gbl_index_set(lua_State *L);       /* t[key] = value */

/* Push a tensor made of the number, boolean or nested lists at stack index `arg`; dtype NONE: int64, bool or the
 * default dtype, by what is found. create.c */
void gbl_push_data(lua_State *L, int arg, gb_dtype dtype, gb_device device);

/* Parse the arguments of a row from stack index `first` on and run it; ops.c. in_place: returns the tensor at
 * `first`. */
/* Another name of an op; the i-th, NULL past the last. */
typedef struct gbl_alias { const char *name; gb_op op; } gbl_alias;
const gbl_alias *gbl_alias_at(int i);
/* Is it the name of an op, its own or another? */
bool gbl_is_op(const char *name);
int gbl_call_op(lua_State *L, gbl_state *state, gb_op op, int first, bool in_place);
/* The number or boolean at index as an attribute: an integer keeps all its bits. */
gb_attr gbl_number_attr(lua_State *L, int index);
/* The number at index as text: an integer in full, NaN without its sign. */
const char *gbl_number_text(lua_State *L, int index, char *text, size_t size);

/* ====} */

/* A recipe has ended: after one that failed, the other processes of its job are not waited for when the state closes.
 * dist.c */
void gbl_note_end(lua_State *L, bool failed);

int luaopen_gibbous(lua_State *L);

#endif
