/* gibbous.c - luaopen_gibbous: opens the engine for this Lua universe, puts the table gb together, and runs the Lua
 * half, which lies inside the binary. A second require in the same universe gives the same table. */
#include <string.h>

#include "embedded.h"
#include "host.h"
#include "late.h"
#include "objects.h"
#include "reader.h"

static const char gb_key = 0; /* of the registry: the table gb */

/* {==== Tables ==== */

bool gbl_is_library(lua_State *L, int index) {
  if (lua_isnone(L, index)) return false; /* what is pushed would lie there */
  index = lua_absindex(L, index);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &gb_key);
  bool is_gb = lua_rawequal(L, -1, index);
  lua_pop(L, 1);
  return is_gb;
}

void gbl_set_functions(lua_State *L, const luaL_Reg *functions) {
  lua_pushlightuserdata(L, gbl_get_state(L));
  luaL_setfuncs(L, functions, 1);
}

void gbl_push_module(lua_State *L, const char *name) {
  if (gbl_raw_field(L, -1, name) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  gbl_set_raw(L, -3, name);
}

int gbl_push_global(lua_State *L, const char *name) {
  lua_pushglobaltable(L);
  int type = gbl_raw_field(L, -1, name);
  lua_remove(L, -2);
  return type;
}

/* ====} */

/* {==== The Lua half ==== */

/* What the Lua half uses of the globals. Left out is what hosts and prompts put something else in the place of, or
 * users to see what is printed. */
static const char *const own_names[] = {
  "assert", "collectgarbage", "coroutine", "debug", "error", "getmetatable", "io", "ipairs", "math", "next", "os",
      "pairs", "pcall", "rawequal", "rawget",
  "rawlen", "rawset", "select", "setmetatable", "string", "table", "tonumber", "tostring", "type", "utf8",
};
static const char *const own_libraries[] = { "math", "string", "table", "utf8" }; /* of these, what is in them too */
static const char names_key = 0; /* of the registry: the table that stands for the globals there */

/* In the table at the top, put a copy of a library in its place. */
static void copy_library(lua_State *L, const char *name) {
  lua_pushstring(L, name);
  lua_rawget(L, -2);
  if (lua_istable(L, -1)) {
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, -3); lua_rawset(L, -4)) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
    }
    lua_pushstring(L, name);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
}

void gbl_keep_names(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_pushglobaltable(L);
  for (size_t i = 0; i < sizeof own_names / sizeof *own_names; i++) {
    lua_pushstring(L, own_names[i]);
    lua_pushvalue(L, -1);
    lua_rawget(L, -3);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
  for (size_t i = 0; i < sizeof own_libraries / sizeof *own_libraries; i++) copy_library(L, own_libraries[i]);
  lua_pop(L, 1);
}

void gbl_push_own_name(lua_State *L, const char *name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  gbl_raw_field(L, -1, name);
  lua_remove(L, -2);
}

/* A table that stands for the globals: with names of its own, so that a script that takes one away takes it from
 * itself, and the globals behind. Methods of strings are found in the table that all share. */
static void open_names(lua_State *L) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushglobaltable(L);
  gbl_set_raw(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &names_key);
  gbl_keep_names(L);
}

/* At build time (late_names.c), tell who looks at what chunks make: observer(name, native, has run). */
static void observe(lua_State *L, bool has_run) {
  if (gbl_raw_field(L, LUA_REGISTRYINDEX, "gibbous.observer") == LUA_TFUNCTION) {
    lua_pushvalue(L, 1);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_pushboolean(L, has_run);
    lua_call(L, 3, 0);
  } else lua_pop(L, 1);
}

/* run(name): runs a chunk of the Lua half with gb and the native functions as its arguments. Upvalues: gb, native. */
static int run_chunk(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const gbl_chunk *chunk = gbl_chunks;
  while (chunk->name && strcmp(chunk->name, name)) chunk++;
  if (!chunk->name) return luaL_error(L, "gibbous: '%s' is not in the binary", name);
  observe(L, false);
  lua_pushfstring(L, "=gibbous/%s.lua", name);
  if (luaL_loadbufferx(L, chunk->text, chunk->size, lua_tostring(L, -1), "bt") != LUA_OK) return lua_error(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_setupvalue(L, -2, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_call(L, 3, 0);
  observe(L, true);
  return 0;
}

/* Run init, which runs the others in its order or says what runs late, with gb at the top of the stack. */
static void run_lua_half(lua_State *L) {
  open_names(L);
  gbl_open_late(L);
  lua_pushvalue(L, -1);
  gbl_push_module(L, "_native");
  lua_pushvalue(L, -2);
  lua_pushvalue(L, -2);
  lua_pushnil(L);
  lua_pushcclosure(L, run_chunk, 3);
  lua_pushvalue(L, -1);
  lua_setupvalue(L, -2, 3); /* chunks get run itself as their third argument */
  gbl_keep_run(L);
  lua_pushliteral(L, "init");
  lua_call(L, 1, 0);
  lua_pop(L, 2);
  lua_pushnil(L);
  gbl_set_raw(L, -2, "_native");
}

/* ====} */

GB_API int luaopen_gibbous(lua_State *L) {
  luaL_checkversion(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &gb_key) == LUA_TTABLE) return 1;
  lua_pop(L, 1);
  gbl_open_state(L);
  lua_newtable(L);
  gbl_open_modules(L);
  gbl_open_reader(L);
  gbl_open_tensor(L);
  gbl_open_settings(L);
  gbl_open_random(L);
  gbl_open_bytes(L);
  gbl_open_ops(L);
  gbl_open_create(L);
  gbl_open_autograd(L);
  gbl_open_recompute(L);
  gbl_open_modes(L);
  gbl_open_amp(L);
  gbl_open_optim(L);
  gbl_open_data(L);
  gbl_open_images(L);
  gbl_open_samples(L);
  gbl_open_io(L);
  gbl_open_interrupt(L);
  gbl_open_host(L);
  gbl_open_native(L);
  gbl_open_capture(L);
  gbl_open_audit(L);
  gbl_open_canvas(L);
  gbl_open_logger(L);
  gbl_open_profile(L);
  gbl_open_dist(L);
  gbl_open_doctor(L);
  run_lua_half(L);
  gbl_open_views(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &gb_key);
  return 1;
}
