/* call.c - functions of the host's that recipes call.
 *
 * The public gb_call is opaque; here it stands for a host_call, a userdata that ends with the function, or by its __gc
 * where that raises. (The engine has a struct of that name too, one run of one op; the two never meet.) The function
 * runs where nothing raises: its arguments were made before, what it asks of Lua goes through gbl_host_protect, and its
 * failure is raised after it has returned. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

/* What a registered function is: the payload of its closure's userdata. */
typedef struct registered { gb_host_fn fn; void *user; } registered;

typedef struct host_call {
  gb_host *host;
  int count, results, room;
  int few[4], *result;           /* references into the registry; result is few until there are more */
  char error[512];
  gb_value arguments[];          /* lent; the call owns their handles */
} host_call;

/* Ends a call, with what it holds; once. */
static void release_call(lua_State *L, host_call *c) {
  for (int i = 0; i < c->count; i++) gb_value_release(c->host, &c->arguments[i]);
  for (int i = 0; i < c->results; i++) luaL_unref(L, LUA_REGISTRYINDEX, c->result[i]);
  if (c->result != c->few) free(c->result);
  c->count = c->results = 0;
  c->result = c->few;
}

static int call_gc(lua_State *L) {
  release_call(L, lua_touserdata(L, 1));
  return 0;
}

/* {==== What the function asks ==== */

gb_host *gb_call_host(gb_call *call) { return call ? ((host_call *)call)->host : NULL; }
int gb_call_count(const gb_call *call) { return call ? ((const host_call *)call)->count : 0; }

gb_status gb_call_get(gb_call *call, int i, gb_value *out) {
  const host_call *c = (const host_call *)call;
  if (!c || !out) return gbl_host_do(c ? c->host : NULL, "gb_call_get: out is NULL", NULL, NULL);
  *out = i >= 0 && i < c->count ? c->arguments[i] : gb_value_nil();
  out->owned = false;
  return GB_OK;
}

/* A result on its way into the registry. */
typedef struct transfer { host_call *call; const gb_value *value; } transfer;

static int keep_result(lua_State *L) {
  const transfer *t = lua_touserdata(L, 1);
  gbl_push_value(L, t->value);
  t->call->result[t->call->results] = luaL_ref(L, LUA_REGISTRYINDEX);
  t->call->results++;
  return 0;
}

/* Room for one more result. */
static gb_status make_room(host_call *c) {
  if (c->results < c->room) return GB_OK;
  int *longer = realloc(c->result == c->few ? NULL : c->result, sizeof *longer * (size_t)(c->room + 8));
  if (!longer) return gbl_host_fail(c->host, GB_EMEMORY, "there is no memory for a result");
  if (c->result == c->few) memcpy(longer, c->few, sizeof c->few);
  c->result = longer;
  c->room += 8;
  return GB_OK;
}

gb_status gb_call_return(gb_call *call, const gb_value *value) {
  host_call *c = (host_call *)call;
  gb_status status = gbl_host_enter(c ? c->host : NULL);
  if (status != GB_OK) return status;
  status = make_room(c);
  if (status == GB_OK) status = gbl_host_protect(c->host, keep_result, &(transfer){ c, value });
  gbl_host_leave(c->host);
  return status;
}

gb_status gb_call_error(gb_call *call, gb_status status, const char *format, ...) {
  host_call *c = (host_call *)call;
  if (!c || !format) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(c->error, sizeof c->error, format, arguments);
  va_end(arguments);
  return status;
}

/* ====} */

/* {==== The call ==== */

/* Make a value of the argument at index that lasts as long as the call does: a string by the stack, a tensor, which the
 * recipe may free meanwhile, by a reference of its own. */
static void lend(lua_State *L, int index, gb_value *out) {
  size_t length;
  gb_tensor *tensor = gbl_test_tensor(L, index);
  if (tensor) {
    gbl_share_tensor(L, index); /* handed back, it is the same Lua value */
    gb_tensor_retain(tensor);
    *out = gb_value_tensor(tensor);
    out->owned = true;
  } else if (lua_type(L, index) == LUA_TSTRING) {
    const char *text = lua_tolstring(L, index, &length);
    *out = gb_value_bytes(text, length);
  } else gbl_take_value(L, index, out);
}

/* A call, pushed, with the arguments at 1 .. count. Upvalue 2: the metatable. */
static host_call *new_call(lua_State *L, gb_host *host, int count) {
  host_call *c = lua_newuserdatauv(L, sizeof *c + sizeof *c->arguments * (size_t)count, 0);
  c->host = host;
  c->count = c->results = 0;
  c->result = c->few;
  c->room = (int)(sizeof c->few / sizeof *c->few);
  *c->error = 0;
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_setmetatable(L, -2);
  for (; c->count < count; c->count++) lend(L, c->count + 1, &c->arguments[c->count]);
  return c;
}

/* What a recipe calls. Upvalue 1: the registered function. */
static int call_host(lua_State *L) {
  const registered *r = lua_touserdata(L, lua_upvalueindex(1));
  gbl_state *state = gbl_enter(L);
  gb_host *host = state->host;
  host_call *c = new_call(L, host, lua_gettop(L));
  lua_State *outer = host->current;
  host->current = L;
  gb_status status = r->fn((gb_call *)c, r->user);
  host->current = outer;
  gbl_note(L, state);
  if (status != GB_OK)
    return gbl_check_status(L, gb_fail(state->context, status, "%s", *c->error ? c->error : gb_status_text(status)));
  int results = c->results;
  luaL_checkstack(L, results + 4, "too many results");
  for (int i = 0; i < results; i++) lua_rawgeti(L, LUA_REGISTRYINDEX, c->result[i]);
  release_call(L, c);
  return results;
}

/* A function to be registered. */
typedef struct registration { const char *name; registered function; } registration;

static int register_body(lua_State *L) {
  const registration *r = lua_touserdata(L, 1);
  registered *function = lua_newuserdatauv(L, sizeof *function, 0);
  *function = r->function;
  if (luaL_newmetatable(L, "gibbous.host_call")) {
    lua_pushcfunction(L, call_gc);
    gbl_set_raw(L, -2, "__gc");
  }
  lua_pushcclosure(L, call_host, 2);
  gbl_set_path(L, r->name, true);
  return 0;
}

gb_status gb_host_register(gb_host *host, const char *name, gb_host_fn fn, void *user) {
  return gbl_host_do(host, name && fn ? NULL : "gb_host_register: name or fn is NULL", register_body,
                     &(registration){ name, { fn, user } });
}

/* ====} */
