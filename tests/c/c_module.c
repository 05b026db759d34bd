/* c_module.c - a Lua module in C as others write them: it knows lua.h only and links to no Lua. The executable has to
 * hand it one. */
#include <lauxlib.h>
#include <lua.h>

static int add(lua_State *L) {
  lua_pushnumber(L, luaL_checknumber(L, 1) + luaL_checknumber(L, 2));
  return 1;
}

static int fail(lua_State *L) { return luaL_error(L, "failed in C with %d", 42); }

/* call(f, ...): through a protected call, results or the message. */
static int call(lua_State *L) {
  lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  return lua_gettop(L);
}

static int finalized(lua_State *L) {
  lua_getglobal(L, "print");
  lua_pushliteral(L, "finalized");
  lua_call(L, 1, 0);
  return 0;
}

static int length(lua_State *L) {
  lua_pushinteger(L, 7);
  return 1;
}

static int object(lua_State *L) {
  static const luaL_Reg methods[] = { { "__gc", finalized }, { "__len", length }, { NULL, NULL } };
  lua_newuserdatauv(L, 1, 1);
  if (luaL_newmetatable(L, "c_module.object")) {
    luaL_setfuncs(L, methods, 0);
    lua_pushliteral(L, "c_module.object");
    lua_setfield(L, -2, "name");
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
  }
  lua_setmetatable(L, -2);
  return 1;
}

int luaopen_c_module(lua_State *L);
int luaopen_c_module(lua_State *L) {
  static const luaL_Reg functions[] = { { "add", add }, { "fail", fail }, { "call", call }, { "object", object },
                                        { NULL, NULL } };
  luaL_checkversion(L);
  luaL_newlib(L, functions);
  return 1;
}
