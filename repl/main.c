/* main.c - the `gibbous` executable: runs scripts and statements as `lua` does, with the library at hand as the global gb.
 *
 * The collector runs in generational mode here, and coroutine.resume and coroutine.wrap hand the modes (gradients, autocast) on exactly. A
 * chunk that ends with a scope open is an error. The prompt and the options of later versions say that they are not there yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "binding.h"

/* {==== The command line ==== */

typedef enum action { RUN_STATEMENT, REQUIRE, VERSION, HELP, NO_ENVIRONMENT, WARNINGS, THREADS, DEVICE, LATER } action;

/* One option: how it is written, what follows it, what it does. */
typedef struct option { const char *name; bool argument; action action; const char *value, *doc; } option;

static const option options[] = {
  { "-e", true, RUN_STATEMENT, "stat", "run the statement" },
  { "-l", true, REQUIRE, "name", "require the module into the global of its name" },
  { "-v", false, VERSION, NULL, "show the version" },
  { "-E", false, NO_ENVIRONMENT, NULL, "ignore environment variables" },
  { "-W", false, WARNINGS, NULL, "turn warnings on" },
  { "--threads", true, THREADS, "n", "use n threads for kernels" },
  { "--device", true, DEVICE, "d", "make tensors on device d: cpu, cuda or cuda:N" },
  { "--version", false, VERSION, NULL, "show the version" },
  { "--help", false, HELP, NULL, "show this list" },
  { "-i", false, LATER, NULL, NULL }, { "--sandbox", false, LATER, NULL, NULL },
  { "--memory", true, LATER, NULL, NULL }, { "--time", true, LATER, NULL, NULL }, { "--doctor", false, LATER, NULL, NULL },
  { "--recipes", false, LATER, NULL, NULL },
};

/* What main hands to the protected part, and gets back. */
typedef struct command {
  int argc;
  char **argv;
  int script;       /* index of the script's name in argv, or argc: none */
  bool asked;       /* an option did something, so no script is needed */
  bool no_environment;
  bool ok;
} command;

static const option *find_option(const char *word) {
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    const option *o = &options[i];
    if (!strcmp(word, o->name) || (o->argument && o->name[1] != '-' && !strncmp(word, o->name, 2))) return o; /* -estat too */
  }
  return NULL;
}

static void usage(FILE *to) {
  fputs("usage: gibbous [options] [script [args]]\n", to);
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    const option *o = &options[i];
    if (o->doc) fprintf(to, "  %-10s %-5s %s\n", o->name, o->value ? o->value : "", o->doc);
  }
  fputs("  -                run standard input\n  --               end of options\n", to);
}

static bool complain(const char *text, const char *word) {
  fprintf(stderr, "gibbous: ");
  fprintf(stderr, text, word);
  fputc('\n', stderr);
  return false;
}

/* Check all options before anything runs, and find the script. */
static bool scan(command *c) {
  int i = 1;
  for (; i < c->argc && c->argv[i][0] == '-' && c->argv[i][1]; i++) {
    const char *word = c->argv[i];
    if (!strcmp(word, "--")) { i++; break; }
    const option *o = find_option(word);
    if (!o) {
      complain("unrecognised option '%s'", word);
      usage(stderr);
      return false;
    }
    if (o->action == LATER) return complain("the option '%s' is not built into this version", word);
    if (o->action == NO_ENVIRONMENT) c->no_environment = true;
    else if (o->action != WARNINGS && o->action != REQUIRE && o->action != THREADS && o->action != DEVICE) c->asked = true;
    if (o->argument && !strcmp(word, o->name) && ++i == c->argc) {
      complain("'%s' needs an argument", word);
      usage(stderr);
      return false;
    }
  }
  c->script = i;
  return true;
}

/* ====} */

/* {==== Running ==== */

static bool is_finish(lua_State *L, int index) {
  lua_getfield(L, LUA_REGISTRYINDEX, "gibbous.finish");
  bool finish = !lua_isnil(L, -1) && lua_rawequal(L, -1, index < 0 ? index - 1 : index);
  lua_pop(L, 1);
  return finish;
}

/* Add a traceback to an error; the value that ends a script without failure passes. */
static int add_traceback(lua_State *L) {
  if (is_finish(L, 1)) return 1;
  const char *text = luaL_tolstring(L, 1, NULL);
  luaL_traceback(L, L, text, 1);
  return 1;
}

/* Print the error at the top. */
static bool report(lua_State *L) {
  const char *text = lua_tostring(L, -1);
  fprintf(stderr, "gibbous: %s\n", text ? text : "an error that is no text");
  lua_pop(L, 1);
  return false;
}

/* Run the chunk below its n arguments; a scope that it leaves open is an error. *finished: it asked to end the program. */
static bool run_chunk(lua_State *L, int arguments, bool *finished) {
  int base = lua_gettop(L) - arguments;
  lua_pushcfunction(L, add_traceback);
  lua_insert(L, base);
  int status = lua_pcall(L, arguments, 0, base);
  lua_remove(L, base);
  if (status == LUA_OK) return gbl_push_open_scope(L) ? report(L) : true;
  if (!is_finish(L, -1)) return report(L);
  lua_pop(L, 1);
  *finished = true;
  return true;
}

static bool run_statement(lua_State *L, const char *text, bool *finished) {
  if (luaL_loadbufferx(L, text, strlen(text), "=(command line)", "t") != LUA_OK) return report(L);
  return run_chunk(L, 0, finished);
}

/* The protected body of -l: name = require(name). */
static int require_global(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  lua_setglobal(L, lua_tostring(L, 1));
  return 0;
}

/* The protected body of --threads: gb.set_num_threads(tonumber(n)). */
static int set_threads(lua_State *L) {
  lua_getglobal(L, "gb");
  lua_getfield(L, -1, "set_num_threads");
  if (!lua_stringtonumber(L, lua_tostring(L, 1))) return luaL_error(L, "--threads takes a number, not '%s'", lua_tostring(L, 1));
  lua_call(L, 1, 0);
  return 0;
}

/* gb.set_default_device(device), in the script's order of options. */
static int set_device(lua_State *L) {
  lua_getglobal(L, "gb");
  lua_getfield(L, -1, "set_default_device");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 0);
  return 0;
}

/* Do what the options ask, in order. */
static bool run_options(lua_State *L, const command *c, bool *finished) {
  for (int i = 1; i < c->script && !*finished; i++) {
    const option *o = find_option(c->argv[i]);
    if (!o) continue; /* "--" */
    const char *value = !o->argument ? NULL : strcmp(c->argv[i], o->name) ? c->argv[i] + strlen(o->name) : c->argv[++i];
    bool ok = true;
    switch (o->action) {
      case RUN_STATEMENT: ok = run_statement(L, value, finished); break;
      case REQUIRE:
        lua_pushcfunction(L, require_global);
        lua_pushstring(L, value);
        ok = run_chunk(L, 1, finished);
        break;
      case THREADS:
        lua_pushcfunction(L, set_threads);
        lua_pushstring(L, value);
        ok = run_chunk(L, 1, finished);
        break;
      case DEVICE:
        lua_pushcfunction(L, set_device);
        lua_pushstring(L, value);
        ok = run_chunk(L, 1, finished);
        break;
      case VERSION: printf("Gibbous %s, %s\n", GB_VERSION, LUA_RELEASE); break;
      case HELP: usage(stdout); break;
      case WARNINGS: lua_warning(L, "@on", 0); break;
      case NO_ENVIRONMENT:
      case LATER: break;
    }
    if (!ok) return false;
  }
  return true;
}

/* The global arg: the script's name at 0, its arguments after it, what stood before it at negative indices. */
static void set_arg(lua_State *L, const command *c) {
  int script = c->script < c->argc ? c->script : 0;
  lua_createtable(L, c->argc - script, script + 1);
  for (int i = 0; i < c->argc; i++) {
    lua_pushstring(L, c->argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

static bool run_script(lua_State *L, const command *c, bool *finished) {
  const char *name = c->argv[c->script];
  bool standard_input = !strcmp(name, "-") && strcmp(c->argv[c->script - 1], "--");
  if (luaL_loadfile(L, standard_input ? NULL : name) != LUA_OK) return report(L);
  int arguments = c->argc - c->script - 1;
  luaL_checkstack(L, arguments + 4, "too many arguments to the script");
  for (int i = 1; i <= arguments; i++) lua_pushstring(L, c->argv[c->script + i]);
  return run_chunk(L, arguments, finished);
}

/* No script and nothing asked: standard input is the script, unless somebody sits there. */
static bool run_standard_input(lua_State *L, bool *finished) {
  if (isatty(STDIN_FILENO)) {
    complain("the prompt is not built into this version; run a script, or a statement with %s", "-e");
    usage(stderr);
    return false;
  }
  if (luaL_loadfile(L, NULL) != LUA_OK) return report(L);
  return run_chunk(L, 0, finished);
}

/* Libraries, the collector's mode, and gb. */
static void open_everything(lua_State *L, const command *c) {
  if (c->no_environment) {
    lua_pushboolean(L, true);
    lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  }
  luaL_openlibs(L);
  lua_gc(L, LUA_GCGEN, 0, 0);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setglobal(L, "gb");
  gbl_replace_coroutine(L);
  set_arg(L, c);
}

static int protected_main(lua_State *L) {
  command *c = lua_touserdata(L, 1);
  bool finished = false;
  open_everything(L, c);
  c->ok = run_options(L, c, &finished);
  if (!c->ok || finished) return 0;
  if (c->script < c->argc) c->ok = run_script(L, c, &finished);
  else if (!c->asked) c->ok = run_standard_input(L, &finished);
  return 0;
}

/* ====} */

int main(int argc, char **argv) {
  command c = { .argc = argc, .argv = argv };
  if (!scan(&c)) return EXIT_FAILURE;
  lua_State *L = luaL_newstate();
  if (!L) {
    complain("out of memory%s", "");
    return EXIT_FAILURE;
  }
  lua_pushcfunction(L, protected_main);
  lua_pushlightuserdata(L, &c);
  if (lua_pcall(L, 1, 0, 0) != LUA_OK) c.ok = report(L);
  lua_close(L);
  return c.ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
