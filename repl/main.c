/* main.c - the `gibbous` executable: `lua` with the library at hand as the global gb.
 *
 * The collector runs in generational mode, as in `lua`, and coroutine.resume and coroutine.wrap hand the modes (gradients, autocast) on
 * exactly. The order of things is that of `lua`: version, libraries, arg, LUA_INIT, -e and -l, the script, the prompt. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "binding.h"
#include "script.h"

/* A whole number from 1 on. */
static bool read_count(const char *text, int *out) {
  char *end;
  long value = strtol(text, &end, 10);
  *out = value > 0 && value <= 1 << 16 ? (int)value : 0;
  return *out && !*end;
}

/* What the options say of the engine. */
static bool read_engine(const options *o, gb_context_options *engine) {
  char text[160];
  gb_context_options_init(engine, sizeof *engine);
  if (!o->threads || read_count(o->threads, &engine->threads)) return true;
  snprintf(text, sizeof text, "--threads takes a number of threads from 1 on, not '%.80s'", o->threads);
  options_complain(o, text);
  return false;
}

/* Libraries, the table arg, the collector's mode, and gb. */
static void open_everything(lua_State *L, const options *o, const gb_context_options *engine) {
  if (o->no_environment) {
    lua_pushboolean(L, true);
    lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  }
  luaL_openlibs(L);
  script_set_arg(L, o);
  lua_gc(L, LUA_GCGEN, 0, 0);
  gbl_set_context_options(L, engine);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setglobal(L, "gb");
  gbl_replace_coroutine(L);
}

/* The script, the prompt or standard input: whichever the command line comes to. */
static script_end run_rest(lua_State *L, const options *o) {
  if (o->script < o->argc) {
    script_end end = script_run(L, o);
    if (end != SCRIPT_DONE || !o->interactive) return end;
  }
  if (o->interactive) return SCRIPT_DONE;
  if (o->script < o->argc || o->statements || o->version) return SCRIPT_DONE;
  return script_standard_input(L, o) == SCRIPT_FINISHED ? SCRIPT_FINISHED : SCRIPT_DONE; /* `lua` succeeds here whatever happened */
}

/* The body: leaves true for success. */
static int protected_main(lua_State *L) {
  const options *o = lua_touserdata(L, 1);
  luaL_checkversion(L);
  open_everything(L, o, lua_touserdata(L, 2));
  script_end end = o->no_environment ? SCRIPT_DONE : script_environment(L, o);
  if (end == SCRIPT_DONE) end = script_options(L, o);
  if (end == SCRIPT_DONE) end = run_rest(L, o);
  lua_pushboolean(L, end != SCRIPT_FAILED);
  return 1;
}

/* Run everything in a new state. The body gets two arguments, as that of `lua` does: stacks then overflow at the same depth. */
static bool run(options *o, gb_context_options *engine) {
  lua_State *L = luaL_newstate();
  if (!L) {
    options_complain(o, "cannot create state: not enough memory");
    return false;
  }
  lua_pushcfunction(L, protected_main);
  lua_pushlightuserdata(L, o);
  lua_pushlightuserdata(L, engine);
  bool ok = lua_pcall(L, 2, 1, 0) == LUA_OK;
  if (!ok) options_complain(o, luaL_tolstring(L, -1, NULL));
  ok = ok && lua_toboolean(L, -1);
  lua_close(L);
  return ok;
}

int main(int argc, char **argv) {
  options o;
  gb_context_options engine;
  if (!options_read(&o, argc, argv) || !read_engine(&o, &engine)) return EXIT_FAILURE;
  if (o.help) return options_list(stdout), EXIT_SUCCESS;
  if (o.about) return puts("Gibbous " GB_VERSION ", " LUA_RELEASE), EXIT_SUCCESS;
  if (o.version) puts(LUA_COPYRIGHT), fflush(stdout);
  return run(&o, &engine) ? EXIT_SUCCESS : EXIT_FAILURE;
}
