/* object.c - userdata that release a C object: optimizers, scalers, datasets, hooks.
 *
 * The slot is empty when the value is pushed and filled after it, so whatever raises in between leaks nothing. */
#include <string.h>

#include "reader.h"

/* The payload of the userdata; the type stands in the metatable, under its address. pins: calls that use the object
 * now. */
typedef struct object { void *object; int pins; } object;

/* Release once. The type is an upvalue. */
static int object_release(lua_State *L) {
  const gbl_type *type = lua_touserdata(L, lua_upvalueindex(1));
  object *o = luaL_checkudata(L, 1, type->name);
  void *held = o->object;
  o->object = NULL;
  if (!held || !type->release) return 0;
  gbl_state *state = gbl_get_state(L);
  lua_State *outer = state->running;
  state->running = L; /* callbacks that go with the object are let go of here */
  type->release(held);
  state->running = outer;
  return 0;
}

/* Released by the recipe: __close and :close(). Not what a call uses, and not by a finaliser, which may run within any
 * call. */
static int object_close(lua_State *L) {
  const gbl_type *type = lua_touserdata(L, lua_upvalueindex(1));
  const object *o = luaL_checkudata(L, 1, type->name);
  const char *name = type->name + strlen("gibbous.");
  if (o->pins)
    return gbl_error(L, "close: this %s is in use by a call that has not returned; close it after that", name);
  if (o->object && lua_gc(L, LUA_GCISRUNNING) < 0)
    return gbl_error(L, "close: a finaliser cannot close a %s; it goes when it is collected", name);
  return object_release(L);
}

/* The text of an object whose type gives none: what it is, without an address. */
static int object_text(lua_State *L) {
  const gbl_type *type = lua_touserdata(L, lua_upvalueindex(1));
  const object *o = luaL_checkudata(L, 1, type->name);
  lua_pushfstring(L, "%s%s", type->name + strlen("gibbous."), o->object ? "" : " (closed)");
  return 1;
}

/* __index of an object's methods: a name that there is not, where else Lua would say that nil cannot be called. */
static int unknown_method(lua_State *L) {
  const gbl_type *type = lua_touserdata(L, lua_upvalueindex(1));
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
  if (!name) return 0;
  const char *best = gbl_nearest_key(L, 1, name);
  return gbl_error(L, "a %s has no field or method '%s'%s%s%s", type->name + strlen("gibbous."), name,
                   best ? "; did you mean '" : "", best ? best : "", best ? "'?" : "");
}

/* Let the methods at the top raise for other names. */
static void guard_methods(lua_State *L, const gbl_type *type) {
  lua_createtable(L, 0, 2);
  lua_pushlightuserdata(L, (void *)type);
  lua_pushcclosure(L, unknown_method, 1);
  gbl_set_raw(L, -2, "__index");
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable");
  lua_setmetatable(L, -2);
}

/* Put the type's functions where they belong: "__" names into the metatable, methods into its __index (unless the type
 * has one). */
static void set_methods(lua_State *L, const gbl_type *type) {
  lua_newtable(L);
  for (const luaL_Reg *f = type->methods; f && f->name; f++) {
    lua_pushcfunction(L, f->func);
    gbl_set_raw(L, strncmp(f->name, "__", 2) ? -2 : -3, f->name);
  }
  if (type->functions) gbl_define(L, type->functions);
  if (type->closes) gbl_describe(L, (const char *const[]){ type->closes, NULL });
  lua_pushlightuserdata(L, (void *)type);
  lua_pushcclosure(L, object_close, 1);
  if (gbl_raw_field(L, -2, "close") == LUA_TNIL) {
    lua_pushvalue(L, -2);
    gbl_set_raw(L, -4, "close");
  }
  lua_pop(L, 1);
  gbl_set_raw(L, -3, "__close");
  lua_pushlightuserdata(L, (void *)type);
  lua_pushcclosure(L, object_release, 1);
  gbl_set_raw(L, -3, "__gc");
  if (gbl_raw_field(L, -2, "__tostring") == LUA_TNIL) {
    lua_pushlightuserdata(L, (void *)type);
    lua_pushcclosure(L, object_text, 1);
    gbl_set_raw(L, -4, "__tostring");
  }
  lua_pop(L, 1);
  if (gbl_raw_field(L, -2, "__index") == LUA_TNIL) {
    lua_pushvalue(L, -2);
    gbl_set_raw(L, -4, "__index");
    lua_pop(L, 1);
    guard_methods(L, type);
  } else lua_pop(L, 1);
  lua_pop(L, 1);
}

void gbl_new_type(lua_State *L, const gbl_type *type) {
  bool known = luaL_getmetatable(L, type->name) == LUA_TTABLE;
  lua_pop(L, 1);
  if (known) return;
  lua_newtable(L);
  lua_pushstring(L, type->name);
  gbl_set_raw(L, -2, "__name");
  set_methods(L, type);
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable");
  gbl_set_raw(L, LUA_REGISTRYINDEX, type->name); /* now that it is whole: opening may fail anywhere and be tried
                                                    again */
}

void **gbl_new_object(lua_State *L, const gbl_type *type, int uservalues) {
  if (gbl_get_state(L)->closing) gbl_error(L, "the host is closing, so nothing new is made");
  object *o = lua_newuserdatauv(L, sizeof *o, uservalues);
  o->object = NULL;
  o->pins = 0;
  luaL_setmetatable(L, type->name);
  return &o->object;
}

void *gbl_held_object(lua_State *L, int index) { return ((object *)lua_touserdata(L, index))->object; }

void gbl_pin_object(lua_State *L, int index, int by) { ((object *)lua_touserdata(L, index))->pins += by; }

void *gbl_test_object(lua_State *L, int arg, const gbl_type *type) {
  object *o = luaL_testudata(L, arg, type->name);
  return o ? o->object : NULL;
}

void *gbl_check_object(lua_State *L, int arg, const gbl_type *type) {
  object *o = luaL_testudata(L, arg, type->name);
  if (!o) gbl_error(L, "expects a %s, got %s", type->name, gbl_type_name(L, arg));
  if (!o->object) gbl_error(L, "this %s was closed", type->name + strlen("gibbous."));
  return o->object;
}
