/* value.c - gb_value: from the host to Lua and back, tables by handle, globals by path. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host.h"
#include "late.h"

/* {==== Values of the host's ==== */

gb_value gb_value_nil(void) { return (gb_value){ .type = GB_VALUE_NIL }; }
gb_value gb_value_boolean(bool boolean) { return (gb_value){ .type = GB_VALUE_BOOLEAN, .as.boolean = boolean }; }
gb_value gb_value_integer(int64_t integer) { return (gb_value){ .type = GB_VALUE_INTEGER, .as.integer = integer }; }
gb_value gb_value_number(double number) { return (gb_value){ .type = GB_VALUE_NUMBER, .as.number = number }; }
gb_value gb_value_string(const char *text) { return text ? gb_value_bytes(text, strlen(text)) : gb_value_nil(); }
gb_value gb_value_bytes(const char *data, size_t length) { return (gb_value){ .type = GB_VALUE_STRING,
    .as.string = { data, length } }; }
gb_value gb_value_tensor(gb_tensor *tensor) { return tensor ? (gb_value){ .type = GB_VALUE_TENSOR, .as.tensor = tensor }
                                              : gb_value_nil(); }

static bool is_handle(const gb_value *value) { return value->type >= GB_VALUE_TABLE && value->type <= GB_VALUE_OBJECT; }

/* {---- handles ----
 * A table of the registry has the Lua values that the host holds, by numbers that are never used twice: what was
 * released stands for nothing. */

static const char handles_key = 0;

/* Numbers go on from the clock's nanoseconds, so that those of a closed host are none of one that got its address. */
void gbl_open_handles(lua_State *L, gb_host *host) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  host->next_handle = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
  lua_newtable(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &handles_key);
}

/* A handle for the value at the top, which is popped. */
static void take_handle(lua_State *L, gb_value *out) {
  gb_host *host = gbl_host_of(L);
  gb_value_type type = lua_istable(L, -1) ? GB_VALUE_TABLE : lua_isfunction(L, -1) ? GB_VALUE_FUNCTION
      : GB_VALUE_OBJECT;
  int64_t number = ++host->next_handle;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &handles_key);
  lua_insert(L, -2);
  lua_rawseti(L, -2, number);
  lua_pop(L, 1);
  *out = (gb_value){ .type = type, .as.handle = { number, host } };
}

/* Let go of a handle; one that is gone stays gone. Allocates nothing, so raises nothing. */
static void drop_handle(const gb_host *host, int64_t number) {
  lua_State *L = host->current;
  if (!lua_checkstack(L, 4)) return;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &handles_key);
  if (lua_rawgeti(L, -1, number) != LUA_TNIL) {
    lua_pushnil(L);
    lua_rawseti(L, -3, number);
  }
  lua_pop(L, 2);
}

/* ----} */

void gb_value_release(gb_host *host, gb_value *value) {
  if (!value) return;
  gb_value v = *value;
  if (v.owned && is_handle(&v) && host) {
    if (v.as.handle.host != host || gbl_host_enter(host) != GB_OK) return;
    drop_handle(host, v.as.handle.number);
    gbl_host_leave(host);
  } else if (v.owned && v.type == GB_VALUE_STRING) free((char *)v.as.string.data);
  else if (v.owned && v.type == GB_VALUE_TENSOR) gb_tensor_release(v.as.tensor);
  *value = gb_value_nil();
}

/* ====} */

/* {==== To Lua and back ==== */

/* The tensor must be of this host: its memory is counted there, and ops know one context. */
static void push_tensor(lua_State *L, gb_tensor *tensor) {
  if (!tensor) gbl_host_refuse(L, "a gb_value is a tensor that is NULL");
  if (gb_tensor_context(tensor) != gbl_get_state(L)->context) gbl_host_refuse(L, "the tensor belongs to another host");
  gb_tensor_retain(tensor);
  gbl_push_tensor_shared(L, tensor);
}

/* What the handle stands for. */
static void push_handle(lua_State *L, const gb_value *value) {
  static const char *const kinds[] = { [GB_VALUE_TABLE] = "table", [GB_VALUE_FUNCTION] = "function",
                                       [GB_VALUE_OBJECT] = "object" };
  lua_rawgetp(L, LUA_REGISTRYINDEX, &handles_key);
  int type = value->as.handle.host == gbl_host_of(L) ? lua_rawgeti(L, -1, value->as.handle.number) : LUA_TNIL;
  bool right = value->type == GB_VALUE_TABLE ? type == LUA_TTABLE
             : value->type == GB_VALUE_FUNCTION ? type == LUA_TFUNCTION
             : type == LUA_TUSERDATA || type == LUA_TLIGHTUSERDATA || type == LUA_TTHREAD;
  if (!right)
    gbl_host_refuse(L, "the handle stands for no %s; it was released, or is of another host", kinds[value->type]);
  lua_remove(L, -2);
}

/* The bytes of a string value. */
static void push_string(lua_State *L, const gb_value *value) {
  if (!value->as.string.data && value->as.string.length) gbl_host_refuse(L, "a gb_value is a string at NULL");
  lua_pushlstring(L, value->as.string.data, value->as.string.length);
}

void gbl_push_value(lua_State *L, const gb_value *value) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  if (!value) gbl_host_refuse(L, "a gb_value is NULL");
  switch (value->type) {
    case GB_VALUE_NIL: lua_pushnil(L); return;
    case GB_VALUE_BOOLEAN: lua_pushboolean(L, value->as.boolean); return;
    case GB_VALUE_INTEGER: lua_pushinteger(L, value->as.integer); return;
    case GB_VALUE_NUMBER: lua_pushnumber(L, value->as.number); return;
    case GB_VALUE_STRING: push_string(L, value); return;
    case GB_VALUE_TENSOR: push_tensor(L, value->as.tensor); return;
    case GB_VALUE_TABLE:
    case GB_VALUE_FUNCTION:
    case GB_VALUE_OBJECT: push_handle(L, value); return;
  }
  gbl_host_refuse(L, "a gb_value has the type %d, which there is not", (int)value->type);
}

/* A copy of the string at index. */
static void take_string(lua_State *L, int index, gb_value *out) {
  size_t length;
  const char *text = lua_tolstring(L, index, &length);
  char *copy = malloc(length + 1);
  if (!copy) luaL_error(L, "out of memory: a string of %I bytes was to be copied", (lua_Integer)length);
  memcpy(copy, text, length + 1);
  *out = gb_value_bytes(copy, length);
}

void gbl_take_value(lua_State *L, int index, gb_value *out) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  gb_tensor *tensor = NULL;
  switch (lua_type(L, index)) {
    case LUA_TNONE:
    case LUA_TNIL: *out = gb_value_nil(); return;
    case LUA_TBOOLEAN: *out = gb_value_boolean(lua_toboolean(L, index)); return;
    case LUA_TNUMBER: *out = lua_isinteger(L, index) ? gb_value_integer(lua_tointeger(L, index))
        : gb_value_number(lua_tonumber(L, index)); return;
    case LUA_TSTRING: take_string(L, index, out); break;
    case LUA_TUSERDATA: tensor = gbl_test_tensor(L, index); /* fall through */
    default:
      if (tensor) {
        gbl_share_tensor(L, index);
        gb_tensor_retain(tensor);
        *out = gb_value_tensor(tensor);
        break;
      }
      lua_pushvalue(L, index);
      take_handle(L, out);
  }
  out->owned = true;
}

/* The first part of a path goes to *length; returns where the next one begins, or NULL. */
static const char *next_part(const char *path, size_t *length) {
  const char *dot = strchr(path, '.');
  *length = dot ? (size_t)(dot - path) : strlen(path);
  return dot ? dot + 1 : NULL;
}

/* Replace the value at the top by its field; nil where it has none. Looked for in a table itself, then in the tables
 * that metatables name as __index, as methods are; no function runs for it. */
static void push_field(lua_State *L, const char *part, size_t length) {
  luaL_checkstack(L, 4, GBL_NO_STACK);
  for (int most = 100; most > 0; most--) {
    if (lua_istable(L, -1)) {
      lua_pushlstring(L, part, length);
      lua_pushvalue(L, -1);
      if (lua_rawget(L, -3) == LUA_TNIL) {
        lua_pop(L, 1);
        lua_pushvalue(L, -1);
        gbl_use_name(L, -3);
        lua_pushvalue(L, -1);
        lua_rawget(L, -3);
      }
      lua_remove(L, -2);
      if (!lua_isnil(L, -1)) break;
      lua_pop(L, 1);
    }
    int next = luaL_getmetafield(L, -1, "__index");
    if (next == LUA_TTABLE) lua_remove(L, -2);
    else {
      if (next != LUA_TNIL) lua_pop(L, 1);
      lua_pushnil(L);
      break;
    }
    if (most == 1) lua_pushnil(L);
  }
  lua_remove(L, -2);
}

void gbl_push_path(lua_State *L, const char *path) {
  size_t length;
  lua_pushglobaltable(L);
  for (const char *part = path, *next; part; part = next) {
    next = next_part(part, &length);
    push_field(L, part, length);
  }
}

void gbl_set_path(lua_State *L, const char *path, bool make) {
  size_t length;
  const char *part = path, *next;
  lua_pushglobaltable(L);
  while ((next = next_part(part, &length))) {
    lua_pushvalue(L, -1);
    push_field(L, part, length);
    if (lua_isnil(L, -1) && make) {
      lua_pop(L, 1);
      lua_newtable(L);
      lua_pushlstring(L, part, length);
      lua_pushvalue(L, -2);
      lua_rawset(L, -4);
    }
    if (!lua_istable(L, -1)) luaL_error(L, "cannot set '%s': what stands before '%s' is no table", path, next);
    lua_remove(L, -2);
    part = next;
  }
  lua_pushvalue(L, -2);
  gbl_set_raw(L, -2, part);
  lua_pushstring(L, part);
  gbl_claim_name(L, -2);
  lua_pop(L, 2);
}

/* ====} */

/* {==== Calls, globals and tables, each a protected body with its request ==== */

typedef struct request {
  const char *name;              /* a path; or NULL */
  const gb_value *object, *key, *in;
  gb_value *out, *out_key;
  int n_in, n_out;
  int64_t length;
} request;

/* Take the n values from index on; what was taken before one that fails is released. */
static void take_all(lua_State *L, int index, gb_value *out, int n) {
  for (int i = 0; i < n; i++) out[i] = gb_value_nil();
  for (int i = 0; i < n; i++) gbl_take_value(L, index + i, &out[i]);
}

static int call_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  luaL_checkstack(L, r->n_in + r->n_out + 8, "too many values for a call");
  if (r->name) gbl_push_path(L, r->name);
  else gbl_push_value(L, r->object);
  if (r->name && lua_isnil(L, -1)) return luaL_error(L, "there is no function '%s' to call", r->name);
  for (int i = 0; i < r->n_in; i++) gbl_push_value(L, &r->in[i]);
  lua_call(L, r->n_in, r->n_out);
  take_all(L, 2, r->out, r->n_out);
  return 0;
}

/* What is wrong with the arguments of a call; NULL: nothing. */
static const char *bad_call(const request *r) {
  enum { MOST = 250000 }; /* Lua's stack has room for a million */
  if (!r->name && !r->object) return "gb_host_call: what is to be called is NULL";
  if (r->n_in < 0 || r->n_out < 0) return "gb_host_call: n_in and n_out must not be negative";
  if (r->n_in > MOST || r->n_out > MOST) return "gb_host_call: so many values do not fit on Lua's stack; pass a table";
  if (r->n_in && !r->in) return "gb_host_call: in is NULL, and n_in is not 0";
  if (r->n_out && !r->out) return "gb_host_call: out is NULL, and n_out is not 0";
  return NULL;
}

/* Results go through a room of ours, so that a failure leaves the caller's untouched. */
static gb_status call(gb_host *host, request *r) {
  const char *bad = bad_call(r);
  if (bad) return gbl_host_do(host, bad, NULL, NULL);
  gb_status status = gbl_host_enter(host);
  if (status != GB_OK) return status;
  gb_value few[8], *out = r->out, *room = r->n_out <= 8 ? few : calloc((size_t)r->n_out, sizeof *room);
  for (int i = 0; room && i < r->n_out; i++) room[i] = gb_value_nil();
  r->out = room;
  status = room ? gbl_host_protect(host, call_body, r)
      : gbl_host_fail(host, GB_EMEMORY, "there is no memory for %d results", r->n_out);
  for (int i = 0; room && i < r->n_out; i++) {
    if (status == GB_OK) out[i] = room[i];
    else gb_value_release(host, &room[i]);
  }
  if (room != few) free(room);
  gbl_host_leave(host);
  return status;
}

gb_status gb_host_call(gb_host *host, const char *name, const gb_value *in, int n_in, gb_value *out, int n_out) {
  return call(host, &(request){ .name = name, .in = in, .n_in = n_in, .out = out, .n_out = n_out });
}

gb_status gb_host_call_value(gb_host *host, const gb_value *function, const gb_value *in, int n_in, gb_value *out,
                             int n_out) {
  return call(host, &(request){ .object = function, .in = in, .n_in = n_in, .out = out, .n_out = n_out });
}

static int get_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  gbl_push_path(L, r->name);
  gbl_take_value(L, -1, r->out);
  return 0;
}

gb_status gb_host_get(gb_host *host, const char *name, gb_value *out) {
  return gbl_host_do(host, name && out ? NULL : "gb_host_get: name or out is NULL", get_body,
                     &(request){ .name = name, .out = out });
}

static int set_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  gbl_push_value(L, r->in);
  gbl_set_path(L, r->name, false);
  return 0;
}

gb_status gb_host_set(gb_host *host, const char *name, const gb_value *value) {
  return gbl_host_do(host, name ? NULL : "gb_host_set: name is NULL", set_body,
                     &(request){ .name = name, .in = value });
}

static int new_body(lua_State *L) {
  lua_newtable(L);
  gbl_take_value(L, -1, ((const request *)lua_touserdata(L, 1))->out);
  return 0;
}

gb_status gb_table_new(gb_host *host, gb_value *out) {
  return gbl_host_do(host, out ? NULL : "gb_table_new: out is NULL", new_body, &(request){ .out = out });
}

/* Push the table of a request. */
static void push_table(lua_State *L, const request *r) {
  gbl_push_value(L, r->object);
  if (!lua_istable(L, -1)) gbl_host_refuse(L, "a table is needed, this value is a %s", luaL_typename(L, -1));
}

static int table_get_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  push_table(L, r);
  gbl_push_value(L, r->key);
  lua_rawget(L, -2);
  gbl_take_value(L, -1, r->out);
  return 0;
}

gb_status gb_table_get(gb_host *host, const gb_value *table, const gb_value *key, gb_value *out) {
  return gbl_host_do(host, out ? NULL : "gb_table_get: out is NULL", table_get_body,
                     &(request){ .object = table, .key = key, .out = out });
}

static int table_set_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  push_table(L, r);
  gbl_push_value(L, r->key);
  gbl_push_value(L, r->in);
  lua_rawset(L, -3);
  return 0;
}

gb_status gb_table_set(gb_host *host, const gb_value *table, const gb_value *key, const gb_value *value) {
  return gbl_host_do(host, NULL, table_set_body, &(request){ .object = table, .key = key, .in = value });
}

static int table_length_body(lua_State *L) {
  request *r = lua_touserdata(L, 1);
  push_table(L, r);
  r->length = (int64_t)lua_rawlen(L, -1);
  return 0;
}

gb_status gb_table_length(gb_host *host, const gb_value *table, int64_t *out) {
  request r = { .object = table };
  gb_status status = gbl_host_do(host, out ? NULL : "gb_table_length: out is NULL", table_length_body, &r);
  if (status == GB_OK) *out = r.length;
  return status;
}

static int table_next_body(lua_State *L) {
  const request *r = lua_touserdata(L, 1);
  push_table(L, r);
  gbl_push_value(L, r->key);
  if (!lua_next(L, -2)) return 0;
  gbl_take_value(L, -2, r->out_key);
  gbl_take_value(L, -1, r->out);
  return 0;
}

gb_status gb_table_next(gb_host *host, const gb_value *table, gb_value *key, gb_value *value) {
  gb_value next = gb_value_nil(), found = gb_value_nil();
  request r = { .object = table, .key = key, .out_key = &next, .out = &found };
  gb_status status = gbl_host_do(host, key && value ? NULL : "gb_table_next: key or value is NULL", table_next_body,
                                 &r);
  if (status != GB_OK) {
    gb_value_release(host, &next);
    return status;
  }
  gb_value_release(host, key);
  *key = next;
  *value = found;
  return GB_OK;
}

/* ====} */
