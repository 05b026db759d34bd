/* late_names.c - at build time, opens the library with all of its chunks and lets late_names.lua write which names each
 * of them makes.
 *
 *   late_names SCRIPT OUTPUT */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>

int luaopen_gibbous(lua_State *L);

/* Arguments: SCRIPT, OUTPUT. */
static int run(lua_State *L) {
  luaL_openlibs(L);
  if (luaL_loadfile(L, lua_tostring(L, 1)) != LUA_OK) return lua_error(L);
  lua_pushvalue(L, 2);
  lua_call(L, 1, 2); /* observe, write */
  lua_pushvalue(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, "gibbous.observer");
  luaL_requiref(L, "gibbous", luaopen_gibbous, 0);
  lua_pop(L, 1);
  lua_call(L, 0, 0);
  return 0;
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (!L || argc != 3) return fprintf(stderr, "late_names: late_names SCRIPT OUTPUT\n"), 1;
  lua_pushcfunction(L, run);
  lua_pushstring(L, argv[1]);
  lua_pushstring(L, argv[2]);
  int status = lua_pcall(L, 2, 0, 0);
  if (status != LUA_OK) fprintf(stderr, "late_names: %s\n", lua_tostring(L, -1));
  lua_close(L);
  return status != LUA_OK;
}
