/* host.h - what the files of the host API share: host.c (opening, running, limits on memory), value.c (values, tables, globals), call.c (host
 * functions).
 *
 * Everything that may raise runs inside gbl_host_protect; a request struct carries arguments in and results out. */
#ifndef GB_BINDINGS_HOST_H
#define GB_BINDINGS_HOST_H

#include "binding.h"
#include "gibbous_lua.h"

#define GBL_HOST_ERROR_BYTES 4096

struct gb_host {
  lua_State *main, *current;     /* current: the coroutine that called the host function that runs, or main */
  gbl_state *state;              /* NULL until the library is open */
  gb_context *context;
  gb_host_options options;       /* size is that of ours; root and device are our copies */
  size_t lua_bytes, lua_peak;
  size_t refused;                /* bytes of the last request of Lua's that the limit refused, and 0 after one that was served */
  bool limited;                  /* the limit refused something in the call that runs */
  gb_status code;                /* of error */
  char error[GBL_HOST_ERROR_BYTES];
};

/* The host of this universe, or NULL. */
static inline gb_host *gbl_host_of(lua_State *L) { return gbl_get_state(L)->host; }

/* Run body with a light userdata `request` as its only argument. A failure is kept as the host's error and its status returned. */
gb_status gbl_host_protect(gb_host *host, lua_CFunction body, void *request);
/* Keep a failure that needs no Lua. */
gb_status gbl_host_fail(gb_host *host, gb_status status, const char *format, ...) GB_PRINTF(3, 4);

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
/* Ask on_file. Raises where it refuses. */
void gbl_host_check_file(lua_State *L, const char *path, bool write);

#endif
