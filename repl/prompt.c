/* prompt.c - the loop of the prompt: reads lines until they are a whole chunk, runs it where Ctrl-C can stop it, and
 * shows what came of it.
 *
 * What is a whole chunk, how values, errors and help look, and which names complete is said by the Lua half in lua/,
 * which is embedded into the binary and works on raw values only while a line is being edited: completion runs none of
 * the user's code. */
#include "prompt.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lauxlib.h>

#include "binding.h"
#include "ctrl_c.h"
#include "embedded.h"
#include "line.h"

extern const gbl_chunk repl_chunks[]; /* the files of lua/ */

/* The prompt while it runs. The table of the Lua half lies on the stack of L at index `half`. */
typedef struct prompt { lua_State *L; const options *o; line *line; int half; } prompt;

/* {==== What the Lua half asks for ==== */

/* folder(path): the names in a folder, those of folders with a slash behind; nothing where it cannot be read. */
static int folder(lua_State *L) {
  DIR *stream = opendir(lua_rawlen(L, 1) ? gbl_check_path(L, 1, "folder") : ".");
  lua_newtable(L);
  if (!stream) return 1;
  lua_Integer n = 0;
  for (struct dirent *entry; (entry = readdir(stream));) {
    struct stat info;
    const char *name = entry->d_name;
    if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
    bool is_folder = fstatat(dirfd(stream), name, &info, 0) == 0 && S_ISDIR(info.st_mode);
    lua_pushfstring(L, "%s%s", name, is_folder ? "/" : "");
    lua_rawseti(L, 2, ++n);
  }
  closedir(stream);
  return 1;
}

/* width(): columns of the terminal, 80 where there is none. */
static int width(lua_State *L) {
  struct winsize size;
  bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  lua_pushinteger(L, known ? size.ws_col : 80);
  return 1;
}

/* stopping(): does what runs unwind, since Ctrl-C was pressed? */
static int stopping(lua_State *L) {
  lua_pushboolean(L, gbl_is_stopping(L));
  return 1;
}

/* is_finish(value): the value that ends a script without a failure. */
static int is_finish(lua_State *L) {
  lua_settop(L, 1);
  lua_pushboolean(L, script_is_finish(L));
  return 1;
}

/* methods(): the method table of tensors. */
static int methods(lua_State *L) {
  gbl_push_methods(L);
  return 1;
}

/* An escape sequence may be written: a terminal that knows them, and nobody said NO_COLOR. */
static bool has_colour(void) {
  const char *none = getenv("NO_COLOR"), *kind = getenv("TERM");
  return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) && !(none && *none) && kind && strcmp(kind, "dumb");
}

/* run(name): one file of the Lua half, with the table of all of them as its argument. Upvalue 1: that table. */
static int run_chunk(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const gbl_chunk *chunk = repl_chunks;
  while (chunk->name && strcmp(chunk->name, name)) chunk++;
  if (!chunk->name) return luaL_error(L, "gibbous: '%s' is not in the binary", name);
  lua_pushfstring(L, "=gibbous/repl/%s.lua", name);
  if (luaL_loadbufferx(L, chunk->text, chunk->size, lua_tostring(L, -1), "t") != LUA_OK) return lua_error(L);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_call(L, 1, 0);
  return 0;
}

/* Push the table of the Lua half, filled. */
static void push_half(lua_State *L, bool terminal) {
  static const luaL_Reg natives[] = { { "folder", folder }, { "width", width }, { "stopping", stopping },
                                      { "is_finish", is_finish },
                                      { "methods", methods }, { NULL, NULL } };
  static const char *const parts[] = { "show", "trouble", "scan", "complete", "help", "commands", "prompt" };
  luaL_newlib(L, natives);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setfield(L, -2, "gb");
  lua_pushboolean(L, has_colour());
  lua_setfield(L, -2, "colour");
  lua_pushboolean(L, terminal);
  lua_setfield(L, -2, "terminal");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, run_chunk, 1);
    lua_pushstring(L, parts[i]);
    lua_call(L, 1, 0);
  }
}

/* ====} */

/* {==== Completion ==== */

/* The protected body: complete(text, cursor) of the Lua half. */
static int call_complete(lua_State *L) {
  lua_getfield(L, 1, "complete");
  lua_pushvalue(L, 2);
  lua_pushvalue(L, 3);
  lua_call(L, 2, 2);
  return 2;
}

/* What Tab asks for; nothing where the Lua half fails. */
static line_completion complete(void *user, const char *text, size_t cursor) {
  prompt *p = user;
  lua_State *L = p->L;
  line_completion out = { NULL, NULL };
  lua_pushcfunction(L, call_complete);
  lua_pushvalue(L, p->half);
  lua_pushstring(L, text);
  lua_pushinteger(L, (lua_Integer)cursor);
  if (lua_pcall(L, 3, 2, 0) != LUA_OK) return lua_settop(L, p->half), out;
  if (lua_type(L, -2) == LUA_TSTRING) out.insert = strdup(lua_tostring(L, -2));
  if (lua_type(L, -1) == LUA_TSTRING) out.list = strdup(lua_tostring(L, -1));
  lua_settop(L, p->half);
  return out;
}

/* ====} */

/* {==== The loop ==== */

/* Call a function of the Lua half with the text at the top, protected, where Ctrl-C stops it; one result stays. What
 * fails leaves no scope open. */
static script_end call_half(prompt *p, const char *name) {
  lua_State *L = p->L;
  gbl_modes *modes = gbl_modes_of(L);
  int64_t scopes = modes->scopes;
  lua_getfield(L, p->half, "trouble");
  lua_getfield(L, p->half, name);
  lua_pushvalue(L, -3);
  lua_remove(L, -4);
  ctrl_c_begin(L);
  int status = lua_pcall(L, 1, 1, -3);
  gb_status reason = ctrl_c_end(L, false); /* an input that ended late has shown its results all the same */
  lua_remove(L, -2);
  if (status == LUA_OK) return SCRIPT_DONE;
  gbl_close_scopes(modes, scopes);
  if (lua_isstring(L, -1)) fputs(lua_tostring(L, -1), stderr), fflush(stderr);
  return reason == GB_EINTERRUPT ? SCRIPT_INTERRUPTED : SCRIPT_FAILED;
}

/* Call what lies on the stack with its one argument, for one result, where Ctrl-C stops it. A Ctrl-C that did so counts
 * for the next line. */
static bool call_quietly(lua_State *L) {
  ctrl_c_begin(L);
  int status = lua_pcall(L, 1, 1, 0);
  if (ctrl_c_end(L, false) == GB_EINTERRUPT) raise(SIGINT);
  return status == LUA_OK;
}

/* The text of a global that users may set, or nothing. The table of globals may be guarded by a metatable. */
static int global_text(lua_State *L) {
  lua_pushglobaltable(L);
  lua_pushstring(L, lua_toboolean(L, 1) ? "_PROMPT" : "_PROMPT2");
  lua_rawget(L, -2);
  if (lua_isnil(L, -1)) return 0;
  luaL_tolstring(L, -1, NULL);
  return 1;
}

/* _PROMPT and _PROMPT2, as in `lua`; the usual ones where those have no text. The text stays on the stack. */
static const char *push_prompt(lua_State *L, bool first) {
  lua_pushcfunction(L, global_text);
  lua_pushboolean(L, first);
  const char *text = call_quietly(L) ? lua_tostring(L, -1) : NULL;
  return text ? text : first ? "> " : ">> ";
}

/* Read one line and push it. */
static line_end read_line(prompt *p, bool first) {
  lua_State *L = p->L;
  char *text;
  line_end end = line_read(p->line, push_prompt(L, first), &text);
  lua_settop(L, p->half + !first);
  if (end != LINE_READ) return end;
  lua_pushstring(L, text);
  free(text);
  return LINE_READ;
}

/* Is the text at the top a whole chunk, or wrong already? *end becomes LINE_INTERRUPTED where Ctrl-C came before that
 * was known. */
static bool is_whole(prompt *p, line_end *end) {
  lua_pushvalue(p->L, -1);
  script_end asked = call_half(p, "is_whole");
  bool whole = asked != SCRIPT_DONE || lua_toboolean(p->L, -1);
  if (asked == SCRIPT_INTERRUPTED) *end = LINE_INTERRUPTED;
  lua_pop(p->L, 1);
  return whole;
}

/* Read lines until they are a whole chunk, and push them. */
static line_end read_lines(prompt *p) {
  lua_State *L = p->L;
  line_end end = read_line(p, true);
  while (end == LINE_READ && !is_whole(p, &end)) {
    end = read_line(p, false);
    if (end == LINE_CLOSED) return LINE_READ; /* what is there is run, and fails */
    if (end != LINE_READ) break;
    lua_pushliteral(L, "\n");
    lua_insert(L, -2);
    lua_concat(L, 3);
  }
  return end;
}

/* The same; what was entered is one entry of the history, whole or not. */
static line_end read_chunk(prompt *p) {
  line_end end = read_lines(p);
  if (lua_gettop(p->L) > p->half) line_keep(p->line, lua_tostring(p->L, p->half + 1));
  return end;
}

/* At the prompt little is alive: collect where that is worth it. */
static int collect(lua_State *L) {
  gbl_collect(L);
  return 0;
}

/* The loop itself. Returns when the input ends or a chunk asked for that. */
static void loop(prompt *p) {
  lua_State *L = p->L;
  for (;;) {
    lua_settop(L, p->half);
    lua_pushcfunction(L, collect);
    lua_pushnil(L);
    call_quietly(L);
    lua_settop(L, p->half);
    line_end end = read_chunk(p);
    if (end == LINE_CLOSED) return;
    if (end == LINE_INTERRUPTED) continue;
    if (call_half(p, "run") == SCRIPT_DONE && lua_toboolean(L, -1)) return;
  }
}

/* Gives the line editor back however the prompt ends. */
static int close_line(lua_State *L) {
  line **box = lua_touserdata(L, 1);
  if (*box) line_close(*box);
  *box = NULL;
  return 0;
}

/* Push a value that closes the editor. */
static line **push_line_box(lua_State *L) {
  line **box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, close_line);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  return box;
}

/* After os.exit the terminal would be left as it is, but it is in the editor's mode only while a line is read. */
script_end prompt_run(lua_State *L, const options *o) {
  lua_settop(L, 0);
  prompt p = { .L = L, .o = o, .half = 2 };
  line **box = push_line_box(L);
  *box = p.line = line_open("gibbous", complete, &p);
  if (!p.line) return options_complain(o, "not enough memory for the prompt"), SCRIPT_FAILED;
  push_half(L, line_is_terminal(p.line));
  if (line_is_terminal(p.line)) puts("Gibbous " GB_VERSION ", " LUA_RELEASE ". help() helps, :quit or Ctrl-D leaves."),
      fflush(stdout);
  loop(&p);
  lua_settop(L, 0);
  line_close(*box);
  *box = NULL;
  return SCRIPT_DONE;
}

/* ====} */
