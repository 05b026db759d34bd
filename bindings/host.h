/* host.h - what the files of the host API share: host.c (opening, running, limits on memory), value.c (values, tables,
 * globals), call.c (host functions), sandbox.c (what recipes may reach), guards.c and pattern.c (library functions in
 * the form that sandboxes have them).
 *
 * Everything that may raise runs inside gbl_host_protect; a request struct carries arguments in and results out. */
#ifndef GB_BINDINGS_HOST_H
#define GB_BINDINGS_HOST_H

#include "binding.h"
#include "gibbous_lua.h"
#include "stacks.h"

#define GBL_HOST_ERROR_BYTES 4096
#define GBL_SIZE_BITS (8 * sizeof(size_t) + 1) /* 0 bits and up */

struct gb_host {
  lua_State *main, *current;     /* current: the coroutine that called the host function that runs, or main */
  gbl_state *state;              /* NULL until the library is open */
  gb_context *context;
  gb_host_options options;       /* size is that of ours; root and device are our copies */
  size_t lua_bytes, lua_peak;
  size_t refused;                /* bytes of the last request of Lua's that the limit refused, and 0 after one that was
                                    served */
  struct { const void *block; size_t bytes; } *strings; /* the long ones that live */
  size_t n_strings, room_strings;
  size_t strings_of[GBL_SIZE_BITS]; /* how many of them have lengths of so many bits */
  gbl_stacks stacks;             /* of coroutines, in a sandbox */
  bool thread_made;              /* the block that comes next is the stack of a new coroutine */
  struct { const void *block; size_t bytes; } newest; /* what was allocated, without a type, by the last request */
  bool deep;                     /* a stack was refused more room in the call that runs */
  int open_files;                /* streams of the sandbox that are open */
  bool closing;                  /* the state may be gone, while Lua frees what is left */
  bool barred;                   /* a callback runs that may not call back */
  bool telling;                  /* on_error runs, and is not told of what fails in it */
  _Atomic(gbl_state *) stoppable; /* whom gb_host_interrupt means: the state, or NULL before the host is open and once
                                     it closes */
  _Atomic(uintptr_t) user;        /* the thread whose call uses the host; 0: none */
  int depth;                     /* calls of that thread, nested */
  int64_t next_handle;           /* never used twice */
  bool limited;                  /* the limit refused something in the call that runs */
  gb_status code;                /* of error */
  char error[GBL_HOST_ERROR_BYTES];
};

/* The host of this universe, or NULL. */
static inline gb_host *gbl_host_of(lua_State *L) { return gbl_get_state(L)->host; }

static inline bool gbl_in_sandbox(lua_State *L) {
  const gb_host *host = gbl_host_of(L);
  return host && host->options.sandbox != GB_SANDBOX_NONE;
}

/* A call of the host begins. Anything but GB_OK means that it must not: there is no host (GB_EINVAL), another thread
 * uses it (GB_ETHREAD, and the text of an error is that thread's), or a callback runs that may not call (GB_ESTATE).
 * After GB_OK, gbl_host_leave ends it. */
gb_status gbl_host_enter(gb_host *host);
void gbl_host_leave(gb_host *host);
/* A whole call: enter, run body protected unless `bad` says what is wrong with the arguments, leave. */
gb_status gbl_host_do(gb_host *host, const char *bad, lua_CFunction body, void *request);
/* Run body with a light userdata `request` as its only argument. A failure is kept as the host's error and its status
 * returned. */
gb_status gbl_host_protect(gb_host *host, lua_CFunction body, void *request);
/* Keep a failure that needs no Lua. */
gb_status gbl_host_fail(gb_host *host, gb_status status, const char *format, ...) GB_PRINTF(3, 4);

/* Raise GB_EINVAL: the host passed what cannot be meant. */
int gbl_host_refuse(lua_State *L, const char *format, ...) GB_PRINTF(2, 3);

/* Handles of Lua values that the host holds get their table. */
void gbl_open_handles(lua_State *L, gb_host *host);
/* Push a value; raises where it is no value. */
void gbl_push_value(lua_State *L, const gb_value *value);
/* Push the value of a path of names, "gb.nn.Linear"; nil where something on the way is missing. */
void gbl_push_path(lua_State *L, const char *path);
/* The value at the top goes to a path and is popped; `make`: tables that are missing are made, else raises. */
void gbl_set_path(lua_State *L, const char *path, bool make);
/* The value at index as one the caller owns; raises when there is no memory. */
void gbl_take_value(lua_State *L, int index, gb_value *out);

/* print of this host, at the top of the stack as a function. host.c */
int gbl_host_print(lua_State *L);

/* {==== sandbox.c ==== */

/* Take away what the sandbox of this host does not allow, and confine files. */
void gbl_open_sandbox(lua_State *L, gb_host *host);
/* The strictest level at which table.name ("" for globals) is there; -1: it has no row and no record, and no sandbox
 * has it. */
int gbl_sandbox_level(gb_host *host, const char *table, const char *name, bool is_table);
/* The table of row i of the allow-list, or NULL behind the last. */
const char *gbl_sandbox_table(int i);
/* A sandbox without a limit on bytes gets one. */
void gbl_limit_sandbox(gb_host_options *options);

/* ====} */

#endif
