/* main.c - the `gibbous` executable: `lua` with the library at hand as the global gb.
 *
 * The collector runs in generational mode, as in `lua`, and coroutine.resume and coroutine.wrap hand the modes
 * (gradients, autocast) on exactly. The order of things is that of `lua`: version, libraries, arg, LUA_INIT, -e and -l,
 * the script, the prompt. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "binding.h"
#include "ctrl_c.h"
#include "limits.h"
#include "output.h"
#include "prompt.h"
#include "recipes.h"
#include "sandbox.h"

/* Libraries, the table arg, the collector's mode, and gb. */
static void open_everything(lua_State *L, const options *o, limits *l) {
  if (o->no_environment) {
    lua_pushboolean(L, true);
    lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  }
  luaL_openlibs(L);
  script_set_arg(L, o);
  lua_gc(L, LUA_GCGEN, 0, 0);
  lua_gc(L, LUA_GCSTOP); /* what is made here stays */
  gbl_set_context_options(L, &l->engine);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setglobal(L, "gb");
  gbl_replace_coroutine(L);
  ctrl_c_watch(L);
  limits_begin(l, L, o);
  lua_gc(L, LUA_GCRESTART);
}

/* The script, the prompt or standard input: whichever the command line comes to. */
static script_end run_rest(lua_State *L, const options *o) {
  bool has_script = o->script < o->argc;
  script_end end = has_script ? script_run(L, o) : SCRIPT_DONE;
  if (end == SCRIPT_DONE && o->interactive) return prompt_run(L, o);
  if (has_script || o->statements || o->version) return end;
  if (isatty(STDIN_FILENO)) return prompt_run(L, o);
  end = script_standard_input(L, o);
  return end == SCRIPT_FAILED ? SCRIPT_DONE : end; /* `lua` succeeds here whatever happened */
}

/* --doctor: fails where a line of the report is an error. */
static script_end run_doctor(lua_State *L, const options *o) {
  lua_getglobal(L, "gb");
  lua_getfield(L, -1, "doctor");
  lua_createtable(L, 0, 1);
  lua_pushboolean(L, o->json != NULL);
  lua_setfield(L, -2, "json");
  script_end end = script_call(L, o, 1, 1);
  return end == SCRIPT_DONE && !lua_toboolean(L, -1) ? SCRIPT_FAILED : end;
}

/* The body: leaves how it ended. */
static int protected_main(lua_State *L) {
  const options *o = lua_touserdata(L, 1);
  luaL_checkversion(L);
  open_everything(L, o, lua_touserdata(L, 2));
  script_end end = o->no_environment ? SCRIPT_DONE : script_environment(L, o);
  if (end == SCRIPT_DONE) end = script_options(L, o);
  if (end == SCRIPT_DONE) end = o->doctor ? run_doctor(L, o) : run_rest(L, o);
  lua_pushinteger(L, end);
  return 1;
}

/* Run everything in a new state. The body gets two arguments, as that of `lua` does: stacks then overflow at the same
 * depth. */
static script_end run(options *o, limits *l) {
  lua_State *L = luaL_newstate();
  if (!L) return options_complain(o, "cannot create state: not enough memory"), SCRIPT_FAILED;
  limits_watch(l, L);
  lua_pushcfunction(L, protected_main);
  lua_pushlightuserdata(L, o);
  lua_pushlightuserdata(L, l);
  bool ok = lua_pcall(L, 2, 1, 0) == LUA_OK;
  if (!ok) options_complain(o, luaL_tolstring(L, -1, NULL));
  script_end end = ok ? (script_end)lua_tointeger(L, -1) : SCRIPT_FAILED;
  if (end == SCRIPT_FAILED || end == SCRIPT_INTERRUPTED) gbl_note_end(L, true);
  lua_close(L);
  return end;
}

int main(int argc, char **argv) {
  options o;
  limits l;
  output_check_at_exit("gibbous");
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", false); /* cuDNN's recurrent layers repeat their bits only with one */
  if (!options_read(&o, argc, argv) || !limits_read(&l, &o)) return EXIT_FAILURE;
  if (o.help) return options_list(stdout), EXIT_SUCCESS;
  if (o.about) return puts("Gibbous " GB_VERSION ", " LUA_RELEASE), EXIT_SUCCESS;
  if (o.recipes) return recipes_list() ? EXIT_SUCCESS : EXIT_FAILURE;
  if (o.version && !o.interactive) puts(LUA_COPYRIGHT), fflush(stdout);
  script_end end = o.sandbox && !o.doctor ? sandbox_run(&o, &l) : run(&o, &l);
  if (end == SCRIPT_INTERRUPTED) ctrl_c_die();
  return end == SCRIPT_DONE || end == SCRIPT_FINISHED ? EXIT_SUCCESS : EXIT_FAILURE;
}
