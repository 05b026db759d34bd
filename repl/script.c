/* script.c - runs chunks as `lua` does: the same frames below them, so that tracebacks are the same to the letter.
 *
 * Nothing here stands between lua_pcall and what it calls. Beyond `lua`: a chunk that leaves a scope of the library
 * open has failed. */
#include "script.h"

#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>

#include "binding.h"
#include "ctrl_c.h"

/* {==== One call ==== */

bool script_is_finish(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "gibbous.finish");
  bool finish = !lua_isnil(L, -1) && lua_rawequal(L, -1, -2);
  lua_pop(L, 1);
  return finish;
}

/* The message handler: a text gets a traceback, an object its own text or a word about its type; what ends a script
 * passes. */
static int add_traceback(lua_State *L) {
  if (script_is_finish(L)) return 1;
  const char *text = lua_tostring(L, 1);
  if (!text) {
    if (luaL_callmeta(L, 1, "__tostring") && lua_type(L, -1) == LUA_TSTRING) return 1;
    text = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  }
  luaL_traceback(L, L, text, 1);
  return 1;
}

/* Say the error at the top, which is taken off. */
static script_end report(lua_State *L, const options *o) {
  const char *text = lua_tostring(L, -1);
  options_complain(o, text ? text : "(error object is not a string)");
  lua_pop(L, 1);
  return SCRIPT_FAILED;
}

/* A call was stopped for a reason, or went over its limit: the error at the top, if there is one, must name it. */
static void name_reason(lua_State *L, int status, gb_status reason) {
  char why[GBL_REASON_BYTES];
  gbl_interrupt_text(gbl_get_state(L), reason, why, sizeof why);
  const char *text = status != LUA_OK && status != LUA_ERRMEM ? lua_tostring(L, -1) : NULL;
  if (text && strstr(text, why)) return;
  if (text) lua_pushfstring(L, "%s: %s", why, text);
  else lua_pushstring(L, why);
  if (status != LUA_OK) lua_remove(L, -2);
}

script_end script_call(lua_State *L, const options *o, int arguments, int results) {
  int base = lua_gettop(L) - arguments;
  lua_pushcfunction(L, add_traceback);
  lua_insert(L, base);
  ctrl_c_begin(L);
  int status = lua_pcall(L, arguments, results, base);
  gb_status reason = ctrl_c_end(L, status == LUA_OK);
  lua_remove(L, base);
  if (status == LUA_OK && reason != GB_OK) lua_settop(L, base - 1);
  if (reason != GB_OK) name_reason(L, status, reason);
  if (reason == GB_EINTERRUPT) return report(L, o), SCRIPT_INTERRUPTED;
  if (reason != GB_OK) return report(L, o);
  if (status == LUA_OK) return gbl_push_open_scope(L) ? report(L, o) : SCRIPT_DONE;
  if (!script_is_finish(L)) return report(L, o);
  lua_pop(L, 1);
  return SCRIPT_FINISHED;
}

/* Run what was loaded, or say why it was not. */
static script_end run_loaded(lua_State *L, const options *o, int status) {
  return status == LUA_OK ? script_call(L, o, 0, 0) : report(L, o);
}

/* Run a text. */
static script_end run_statement(lua_State *L, const options *o, const char *text, const char *name) {
  return run_loaded(L, o, luaL_loadbuffer(L, text, strlen(text), name));
}

/* ====} */

/* {==== What the command line and the environment ask for ==== */

void script_set_arg(lua_State *L, const options *o) {
  int script = o->script < o->argc ? o->script : 0;
  lua_createtable(L, o->argc - (script + 1), script + 1);
  for (int i = 0; i < o->argc; i++) {
    lua_pushstring(L, o->argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

script_end script_environment(lua_State *L, const options *o) {
  static const char *const names[] = { "=LUA_INIT" "_" LUA_VERSION_MAJOR "_" LUA_VERSION_MINOR, "=LUA_INIT" };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *text = getenv(names[i] + 1);
    if (text && *text == '@') return run_loaded(L, o, luaL_loadfile(L, text + 1));
    if (text) return run_statement(L, o, text, names[i]);
  }
  return SCRIPT_DONE;
}

/* -l name, or -l global=name. */
static script_end require_module(lua_State *L, const options *o, const char *text) {
  const char *equals = strchr(text, '=');
  lua_getglobal(L, "require");
  lua_pushstring(L, equals ? equals + 1 : text);
  script_end end = script_call(L, o, 1, 1);
  if (end != SCRIPT_DONE) return end;
  lua_pushlstring(L, text, equals ? (size_t)(equals - text) : strlen(text));
  lua_insert(L, -2);
  lua_pushglobaltable(L);
  lua_insert(L, -3);
  lua_settable(L, -3);
  lua_pop(L, 1);
  return SCRIPT_DONE;
}

script_end script_options(lua_State *L, const options *o) {
  for (int i = 1; i < o->script; i++) {
    char kind = o->argv[i][1];
    if (kind == 'W') lua_warning(L, "@on", 0);
    const char *value = options_value(o, kind, &i);
    script_end end = kind == 'e' ? run_statement(L, o, value, "=(command line)") : kind == 'l'
        ? require_module(L, o, value) : SCRIPT_DONE;
    if (end != SCRIPT_DONE) return end;
  }
  return SCRIPT_DONE;
}

/* The script's arguments, from the global arg, which statements may have changed; returns how many. */
static int push_arguments(lua_State *L) {
  if (lua_getglobal(L, "arg") != LUA_TTABLE) luaL_error(L, "'arg' is not a table");
  int n = (int)luaL_len(L, -1);
  luaL_checkstack(L, n + 3, "too many arguments to script");
  int table = lua_gettop(L);
  for (int i = 1; i <= n; i++) lua_rawgeti(L, table, i);
  lua_remove(L, table);
  return n;
}

script_end script_run(lua_State *L, const options *o) {
  const char *name = o->argv[o->script];
  bool standard_input = !strcmp(name, "-") && strcmp(o->argv[o->script - 1], "--");
  if (luaL_loadfile(L, standard_input ? NULL : name) != LUA_OK) return report(L, o);
  return script_call(L, o, push_arguments(L), LUA_MULTRET);
}

script_end script_standard_input(lua_State *L, const options *o) { return run_loaded(L, o, luaL_loadfile(L, NULL)); }

/* ====} */
