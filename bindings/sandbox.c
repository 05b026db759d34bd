/* sandbox.c - what recipes may reach: an allow-list by name.
 *
 * Every name of Lua's libraries has its row here, with the level up to which it is there; of gb the records say it
 * (reader.h). What has neither is taken away in every sandbox, so a function that is new is out of reach until somebody
 * has thought about it (tests/host/test_sandbox.c fails until then). Ops need no records: they come from the table of
 * ops, have no side effects, and count what they allocate. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "guards.h"
#include "host.h"
#include "late.h"
#include "reader.h"

#define LUA_BYTES ((size_t)256 << 20)     /* the limits of a sandbox that was given none */
#define TENSOR_BYTES ((size_t)1 << 30)
#define FILE_BYTES ((uint64_t)4 << 30)

/* Names of one table, "" for the globals; level: the strictest sandbox that has them. */
static const struct { const char *table; gb_sandbox level; const char *names; } rows[] = {
  { "", GB_SANDBOX_STRICT, "_G _VERSION assert collectgarbage error getmetatable ipairs load next pairs pcall print "
                           "rawequal rawget rawlen rawset "
                           "require select setmetatable tonumber tostring type warn xpcall coroutine gb math os "
                           "string table utf8" },
  { "", GB_SANDBOX_FILES, "dofile io loadfile" },
  { "", GB_SANDBOX_NONE, "debug package" },
  { "coroutine", GB_SANDBOX_STRICT, "close create isyieldable resume running status wrap yield" },
  { "math", GB_SANDBOX_STRICT, "abs acos asin atan ceil cos deg exp floor fmod huge log max maxinteger min "
                               "mininteger modf pi rad random "
                              "randomseed sin sqrt tan tointeger type ult atan2 cosh frexp ldexp log10 pow sinh tanh" },
  /* math: the last eight only where Lua was built for compatibility */
  { "os", GB_SANDBOX_STRICT, "clock date difftime time" },
  { "os", GB_SANDBOX_NONE, "execute exit getenv remove rename setlocale tmpname" },
  { "string", GB_SANDBOX_STRICT, "byte char find format gmatch gsub len lower match pack packsize rep reverse sub "
                                 "unpack upper" },
  { "string", GB_SANDBOX_NONE, "dump" },
  { "table", GB_SANDBOX_STRICT, "concat insert move pack remove sort unpack" },
  { "utf8", GB_SANDBOX_STRICT, "char charpattern codepoint codes len offset" },
  { "io", GB_SANDBOX_FILES, "lines open type" },
  { "io", GB_SANDBOX_NONE, "close flush input output popen read stderr stdin stdout tmpfile write" },
  { "debug", GB_SANDBOX_NONE, "debug gethook getinfo getlocal getmetatable getregistry getupvalue getuservalue "
                              "setcstacklimit sethook setlocal "
                              "setmetatable setupvalue setuservalue traceback upvalueid upvaluejoin" },
  { "package", GB_SANDBOX_NONE, "config cpath loaded loadlib path preload searchers searchpath" },
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Does a list of words hold this one? */
static bool holds(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; length && (at = strstr(at, word)); at += length)
    if ((at == words || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
  return false;
}

enum { MOST_DEPTH = 4 };         /* of modules in modules */

/* The level of table.name by the rows of Lua's libraries; -1: there is none. */
static int level_of_row(const char *table, const char *name) {
  for (int i = 0; i < ROWS; i++)
    if (!strcmp(rows[i].table, table) && holds(rows[i].names, name)) return (int)rows[i].level;
  return -1;
}

/* The level of path.name in gb: by the records at index, or as an op, which a table is never (gb.dist is a module, and
 * a method of tensors); -1: there is none. */
static int level_of_record(lua_State *L, int records, const char *path, const char *name, bool is_table) {
  lua_pushfstring(L, "%s.%s", path, name);
  int level = lua_rawget(L, records) == LUA_TNUMBER ? (int)lua_tointeger(L, -1) : -1;
  lua_pop(L, 1);
  bool has_ops = !strcmp(path, "gb") || !strcmp(path, "gb.nn.functional");
  has_ops &= !is_table && gbl_is_op(name);
  return level < 0 && has_ops ? GB_SANDBOX_STRICT : level;
}

int gbl_sandbox_level(gb_host *host, const char *table, const char *name, bool is_table) {
  lua_State *L = host->current;
  if (strcmp(table, "gb") && strncmp(table, "gb.", 3)) return level_of_row(table, name);
  gbl_push_levels(L);
  int level = level_of_record(L, lua_gettop(L), table, name, is_table);
  lua_pop(L, 1);
  return level;
}

const char *gbl_sandbox_table(int i) { return i < ROWS ? rows[i].table : NULL; }

/* Set the key at the top to nil in the table below it; an entry may be cleared on the way of lua_next. */
static void take_away(lua_State *L, int table) {
  lua_pushvalue(L, -1);
  lua_pushnil(L);
  lua_rawset(L, table);
}

/* Take from the table at the top what this level does not have. */
static void filter(lua_State *L, const gb_host *host, const char *table) {
  for (lua_pushnil(L); lua_next(L, -2);) {
    lua_pop(L, 1);
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (level_of_row(table, name) < (int)host->options.sandbox) take_away(L, lua_gettop(L) - 1);
  }
}

/* The same for a module of gb, the table at the top. A table without a record is a module: it stays where something of
 * it does. Returns whether something is left. */
static bool filter_module(lua_State *L, const gb_host *host, int records, const char *path, int depth) {
  int table = lua_gettop(L);
  bool left = false;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  for (lua_pushnil(L); lua_next(L, table);) {
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    int level = level_of_record(L, records, path, name, lua_istable(L, -1));
    bool stays = level >= (int)host->options.sandbox;
    if (level < 0 && lua_istable(L, -1) && depth < MOST_DEPTH) {
      const char *below = lua_pushfstring(L, "%s.%s", path, name);
      lua_insert(L, -2);
      stays = filter_module(L, host, records, below, depth + 1);
    }
    lua_settop(L, table + 1);
    if (!stays) take_away(L, table);
    left |= stays;
  }
  left |= gbl_has_late(path, (int)host->options.sandbox);
  return left;
}

/* The folder of GB_SANDBOX_FILES, or nothing at all. */
static void confine_files(lua_State *L, const gb_host *host) {
  gb_file_policy *files = &host->context->files;
  if (host->options.sandbox == GB_SANDBOX_STRICT) files->root = GB_FILES_NONE;
  else {
    int root = open(host->options.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *why = errno == ENOTDIR ? "it is not a folder" : "it cannot be read";
    if (root < 0) luaL_error(L, "options.root: cannot open the folder '%s': %s", host->options.root, why);
    files->root = root;
    files->most = host->options.file_bytes ? host->options.file_bytes : FILE_BYTES;
  }
}

void gbl_limit_sandbox(gb_host_options *options) {
  if (options->sandbox == GB_SANDBOX_NONE) return;
  if (!options->lua_bytes) options->lua_bytes = LUA_BYTES;
  if (!options->tensor_bytes) options->tensor_bytes = TENSOR_BYTES;
}

void gbl_open_sandbox(lua_State *L, gb_host *host) {
  if (host->options.sandbox == GB_SANDBOX_NONE) return;
  confine_files(L, host);
  gbl_replace_library(L, host->options.sandbox == GB_SANDBOX_FILES);
  gbl_push_global(L, "math"); /* the standard library has seeded itself with an address */
  gbl_raw_field(L, -1, "randomseed");
  lua_pushinteger(L, (lua_Integer)host->options.seed);
  lua_call(L, 1, 0);
  lua_pop(L, 1);
  for (int i = ROWS - 1; i >= 0; i--) { /* the globals last: tables are found through them */
    if (*rows[i].table) gbl_push_path(L, rows[i].table);
    else lua_pushglobaltable(L);
    if (lua_istable(L, -1)) filter(L, host, rows[i].table);
    lua_pop(L, 1);
  }
  gbl_push_levels(L);
  gbl_push_path(L, "gb");
  filter_module(L, host, lua_gettop(L) - 1, "gb", 0);
  lua_pop(L, 2);
  gbl_keep_names(L); /* the guarded ones */
}
