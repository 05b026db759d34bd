/* other_lua.c - an outside program that embeds another Lua (5.1 or LuaJIT) beside Gibbous, with functions of the same
 * names in one process. Each must run its own: chunks in turn, errors in each, and a recipe that calls into the other
 * Lua while it runs. */
#include <gibbous_lua.h>
#include <stdio.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#if LUA_VERSION_NUM != 501
#error "this program is about a Lua that is not 5.4"
#endif

/* The function `other` of recipes: runs a text in the other Lua and returns its result, a number. */
static gb_status run_other(gb_call *call, void *user) {
  lua_State *L = user;
  gb_value text, result;
  gb_status status = gb_call_get(call, 0, &text);
  if (status != GB_OK) return status;
  if (luaL_loadbuffer(L, text.as.string.data, text.as.string.length, "other") || lua_pcall(L, 0, 1, 0)) {
    status = gb_call_error(call, GB_EINVAL, "the other Lua: %s", lua_tostring(L, -1));
    lua_pop(L, 1);
    return status;
  }
  result = gb_value_number(lua_tonumber(L, -1));
  lua_pop(L, 1);
  return gb_call_return(call, &result);
}

/* Each row is run in one of the two and must succeed. */
static const struct { bool other; const char *text; } steps[] = {
  { true, "assert(_VERSION == 'Lua 5.1' and unpack and not table.unpack)" },
  { false, "assert(_VERSION == 'Lua 5.4' and table.unpack and not unpack)" },
  { true, "assert(not pcall(error, { 'a table' }))" },
  { false, "local ok, text = pcall(function() return require 'gibbous'.zeros(2, 3):matmul(require "
           "'gibbous'.zeros(2, 3)) end)\n"
           "assert(not ok and text:find('matmul'))" },
  { true, "for i = 1, 100 do assert(coroutine.wrap(function() return i end)() == i) end" },
  { false, "assert(other('return 6 * 7') == 42)" },
  { false, "local ok, text = pcall(other, 'error(\"from below\")')\nassert(not ok and text:find('from below'))" },
  { false, "local x = require 'gibbous'.tensor{ 1.0, 2.0 }:requires_grad_()\n"
           "local y = (x * other('return 3')):sum()\ny:backward()\nassert(x.grad:sum():item() == 6)" },
  { true, "collectgarbage() assert(string.rep('ab', 3) == 'ababab')" },
};

/* Run all rows; gives how many failed. */
static int run_steps(lua_State *L, gb_host *host) {
  int failed = 0;
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    const char *error = NULL;
    if (!steps[i].other && gb_host_run_string(host, steps[i].text, "step") != GB_OK) error = gb_host_error(host);
    if (steps[i].other && (luaL_loadstring(L, steps[i].text) || lua_pcall(L, 0, 0, 0))) error = lua_tostring(L, -1);
    if (error) fprintf(stderr, "step %d: %s\n", (int)i + 1, error);
    failed += error != NULL;
  }
  return failed;
}

int main(void) {
  gb_host_options options;
  gb_host *host;
  char why[256];
  lua_State *L = luaL_newstate();
  if (!L) return 1;
  luaL_openlibs(L);
  gb_host_options_init(&options, sizeof options);
  options.threads = 1;
  if (gb_host_open(&options, &host, why, sizeof why) != GB_OK) return fprintf(stderr, "%s\n", why), 1;
  int failed = gb_host_register(host, "other", run_other, L) != GB_OK;
  failed += run_steps(L, host);
  gb_host_close(host);
  lua_close(L);
  return failed != 0;
}
