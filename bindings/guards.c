/* guards.c - library functions in the form that sandboxes have them: work that a short call can make long is checked
 * before it starts, bytecode and finalisers are refused, addresses are not shown, and files are opened under the
 * engine's policy.
 *
 * Most of them check and then call the function of the standard library, which is an upvalue. */
#define _DEFAULT_SOURCE /* fdopen */
#include "guards.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/path.h"
#include "pattern.h"
#include "reader.h"

#define MOST_STEPS 20000000        /* of one call: about a tenth of a second */
#define INDEX_CHAIN 2000           /* tables that Lua follows along __index before it gives up */
#define BYTES_PER_STEP 8           /* of a string that a function looks through */
#define LARGE_HEAP ((size_t)8 << 20) /* bytes of Lua's from which an emptied table may take long to look through */
#define MOST_FILES 64              /* streams of one host that are open at a time */
#define SOURCE_PIECE 4096          /* bytes of source text compiled between two charges */

/* Replace a function of the table at the top by one that has it as upvalue 1. */
static void guard(lua_State *L, const char *name, lua_CFunction function) {
  gbl_raw_field(L, -1, name);
  lua_pushcclosure(L, function, 1);
  gbl_set_raw(L, -2, name);
}

/* Call the function of the standard library with all arguments. */
static int forward(lua_State *L) {
  int arguments = lua_gettop(L);
  gbl_check_stack(L);
  luaL_checkstack(L, 1, GBL_NO_STACK);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, arguments, LUA_MULTRET);
  return lua_gettop(L);
}

/* Charge what a call is going to cost, or refuse it. */
static void expect(lua_State *L, const char *who, double steps) {
  if (!(steps <= MOST_STEPS))
    gbl_error(L, "%s: %.0f steps in one call are more than a sandbox allows (%d)", who, steps, MOST_STEPS);
  gbl_charge(L, steps > 0 ? (uint64_t)steps : 0);
}

/* {==== string ==== */

/* string.rep(s, n, sep) */
static int guarded_rep(lua_State *L) {
  size_t length, between = 0;
  luaL_checklstring(L, 1, &length);
  lua_Integer n = luaL_checkinteger(L, 2);
  luaL_optlstring(L, 3, "", &between);
  if (n > 0 && length + between == 0) {
    lua_pushliteral(L, "");
    return 1;
  }
  if (n > 0) expect(L, "string.rep", ((double)length + (double)between) * (double)n / 8);
  return forward(L);
}

/* Charge all bytes of all strings among the arguments. */
static void charge_strings(lua_State *L) {
  uint64_t bytes = 0;
  for (int i = lua_gettop(L); i > 0; i--)
    if (lua_type(L, i) == LUA_TSTRING) bytes += lua_rawlen(L, i);
  if (bytes >= BYTES_PER_STEP) gbl_charge(L, bytes / BYTES_PER_STEP);
}

/* A function whose time is that of looking through its strings. It runs in this frame, so that its errors keep their
 * names. */
static int charged(lua_State *L) {
  charge_strings(L);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* string.pack: "c" and a number make a string of that length out of nothing. */
static int guarded_pack(lua_State *L) {
  double bytes = 0;
  charge_strings(L);
  for (const char *f = luaL_checkstring(L, 1); *f; f++) {
    double length = 0;
    if (*f != 'c') continue;
    while (f[1] >= '0' && f[1] <= '9') length = length * 10 + (*++f - '0');
    bytes += length;
  }
  expect(L, "string.pack", bytes);
  return forward(L);
}

/* Push the text of the value at index without an address; a value without a text of its own is shown as its type. */
static void push_text(lua_State *L, int index) {
  int type = lua_type(L, index);
  bool plain = type == LUA_TNIL || type == LUA_TBOOLEAN || type == LUA_TNUMBER || type == LUA_TSTRING;
  if (plain || luaL_getmetafield(L, index, "__tostring") != LUA_TNIL) {
    if (!plain) lua_pop(L, 1);
    luaL_tolstring(L, index, NULL);
    return;
  }
  if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) return;
  lua_pushstring(L, luaL_typename(L, index));
}

static int guarded_tostring(lua_State *L) {
  luaL_checkany(L, 1);
  push_text(L, 1);
  return 1;
}

/* string.format: what %s is given becomes text here; %p shows an address. */
static int guarded_format(lua_State *L) {
  int arg = 1;
  size_t length;
  /* it may hold zeros, behind which format goes on */
  const char *f = luaL_checklstring(L, 1, &length), *end = f + length;
  gbl_charge(L, length / BYTES_PER_STEP);
  for (; f < end; f++) {
    if (*f != '%') continue;
    while (f[1] && strchr("-+ #0123456789.", f[1])) f++;
    if (++f == end) break;
    if (*f == '%') continue;
    arg++;
    if (*f == 'p') return gbl_error(L, "string.format: '%%p' shows an address, which a sandbox does not");
    if (*f != 's' || lua_isnone(L, arg)) continue;
    push_text(L, arg);
    lua_replace(L, arg);
  }
  return forward(L);
}

/* string.unpack(format, s, at): only a 'z' looks for its end; what becomes a string of its own is charged as memory. */
static int guarded_unpack_string(lua_State *L) {
  size_t length;
  const char *format = luaL_checklstring(L, 1, &length);
  gbl_charge(L, length / BYTES_PER_STEP);
  if (strchr(format, 'z') && lua_type(L, 2) == LUA_TSTRING) gbl_charge(L, lua_rawlen(L, 2) / BYTES_PER_STEP);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* The iterator of utf8.codes: one step goes over all continuation bytes. */
static int next_code(lua_State *L) {
  size_t length, at = (size_t)lua_tointeger(L, 2), end = at;
  const char *s = luaL_checklstring(L, 1, &length);
  while (end < length && (s[end] & 0xC0) == 0x80) end++;
  if (end - at >= BYTES_PER_STEP) gbl_charge(L, (end - at) / BYTES_PER_STEP);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* utf8.codes(s, lax) */
static int guarded_codes(lua_State *L) {
  forward(L);
  lua_pushvalue(L, 1);
  lua_pushcclosure(L, next_code, 1);
  lua_replace(L, 1);
  return lua_gettop(L);
}

/* Functions that are linear in their strings and make none. "": of the globals; "__": the metamethods by which strings
 * are numbers. */
static void guard_linear(lua_State *L) {
  static const struct { const char *table, *name; } linear[] = {
    { "", "tonumber" }, { "string", "packsize" }, { "utf8", "len" }, { "utf8", "offset" }, { "utf8", "codepoint" },
    { "__", "__add" }, { "__", "__sub" }, { "__", "__mul" }, { "__", "__mod" }, { "__", "__pow" }, { "__", "__div" },
        { "__", "__idiv" }, { "__", "__unm" },
  };
  for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
    lua_pushliteral(L, "");
    if (!strcmp(linear[i].table, "__")) lua_getmetatable(L, -1);
    else if (*linear[i].table) gbl_push_global(L, linear[i].table);
    else lua_pushglobaltable(L);
    guard(L, linear[i].name, charged);
    lua_pop(L, 2);
  }
}

static void guard_string(lua_State *L) {
  gbl_push_global(L, "string");
  guard(L, "rep", guarded_rep);
  guard(L, "pack", guarded_pack);
  guard(L, "unpack", guarded_unpack_string);
  guard(L, "format", guarded_format);
  gbl_replace_patterns(L);
  lua_pop(L, 1);
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1); /* that of all strings: getmetatable must not give it out */
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable");
  lua_pop(L, 2);
  gbl_push_global(L, "utf8");
  guard(L, "codes", guarded_codes);
  lua_pop(L, 1);
  guard_linear(L);
}

/* ====} */

/* {==== table ==== */

/* What one access to the table at index may cost. */
static double access_cost(lua_State *L, int index) {
  bool follows = luaL_getmetafield(L, index, "__index") != LUA_TNIL;
  if (follows) lua_pop(L, 1);
  if (luaL_getmetafield(L, index, "__newindex") != LUA_TNIL) {
    lua_pop(L, 1);
    follows = true;
  }
  return follows ? INDEX_CHAIN : 1;
}

/* The length of the table at 1, which no metamethod may make up. */
static double length_of(lua_State *L, const char *who) {
  luaL_checktype(L, 1, LUA_TTABLE);
  if (luaL_getmetafield(L, 1, "__len") != LUA_TNIL)
    gbl_error(L, "%s: the table has a __len, which a sandbox does not trust", who);
  return (double)lua_rawlen(L, 1);
}

/* table.insert: moves what lies behind pos. */
static int guarded_insert(lua_State *L) {
  double n = length_of(L, "table.insert");
  if (lua_gettop(L) == 3) expect(L, "table.insert", (n - (double)luaL_checkinteger(L, 2)) * access_cost(L, 1));
  return forward(L);
}

/* table.remove: the same. */
static int guarded_remove(lua_State *L) {
  double n = length_of(L, "table.remove");
  if (lua_gettop(L) > 1) expect(L, "table.remove", (n - (double)luaL_checkinteger(L, 2)) * access_cost(L, 1));
  return forward(L);
}

/* table.concat(t, sep, i, j), table.unpack(t, i, j): the range costs. */
static int guarded_range(lua_State *L, const char *who, int first) {
  double n = length_of(L, who), i = (double)luaL_optinteger(L, first, 1), j = n;
  if (!lua_isnoneornil(L, first + 1)) j = (double)luaL_checkinteger(L, first + 1);
  if (access_cost(L, 1) > 1) expect(L, who, (j - i + 1) * INDEX_CHAIN);
  return forward(L);
}

static int guarded_concat(lua_State *L) { return guarded_range(L, "table.concat", 3); }
static int guarded_unpack(lua_State *L) { return guarded_range(L, "table.unpack", 2); }

/* table.move(a, f, e, t[, b]) */
static int guarded_move(lua_State *L) {
  double f = (double)luaL_checkinteger(L, 2), e = (double)luaL_checkinteger(L, 3);
  luaL_checktype(L, 1, LUA_TTABLE);
  int to = lua_isnoneornil(L, 5) ? 1 : 5;
  expect(L, "table.move", (e - f + 1) * (access_cost(L, 1) > 1 || access_cost(L, to) > 1 ? INDEX_CHAIN : 1));
  return forward(L);
}

/* The order that sort has without one of its own; long strings cost. */
static int less(lua_State *L) {
  size_t bytes = lua_type(L, 1) == LUA_TSTRING ? lua_rawlen(L, 1) : 0;
  gbl_charge(L, 1 + bytes / 32);
  lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
  return 1;
}

/* An order that is a C function, upvalue 1, which no hook sees. */
static int charged_order(lua_State *L) {
  gbl_charge(L, 1);
  return forward(L);
}

static int guarded_sort(lua_State *L) {
  double n = length_of(L, "table.sort"), rounds = 1;
  for (double rest = n; rest > 1; rest /= 2) rounds++;
  if (access_cost(L, 1) > 1) expect(L, "table.sort", n * rounds * INDEX_CHAIN);
  if (lua_isnoneornil(L, 2)) {
    lua_settop(L, 1);
    lua_pushcfunction(L, less);
  } else if (lua_iscfunction(L, 2)) {
    lua_pushvalue(L, 2);
    lua_pushcclosure(L, charged_order, 1);
    lua_replace(L, 2);
  }
  return forward(L);
}

static void guard_table(lua_State *L) {
  gbl_push_global(L, "table");
  guard(L, "insert", guarded_insert);
  guard(L, "remove", guarded_remove);
  guard(L, "concat", guarded_concat);
  guard(L, "unpack", guarded_unpack);
  guard(L, "move", guarded_move);
  guard(L, "sort", guarded_sort);
  lua_pop(L, 1);
}

/* ====} */

/* {==== Base library ==== */

/* Lua would call a finaliser where no limit reaches it. */
static int guarded_setmetatable(lua_State *L) {
  if (lua_istable(L, 2)) {
    lua_pushliteral(L, "__gc");
    if (lua_rawget(L, 2) != LUA_TNIL)
      return gbl_error(L, "setmetatable: a sandbox has no finalisers, so the metatable must have no __gc");
    lua_pop(L, 1);
  }
  return forward(L);
}

/* next(t, k) looks through the places that are empty, of which a large table that was emptied has many. Upvalue 2 is
 * the host. */
static int guarded_next(lua_State *L) {
  const gb_host *host = lua_touserdata(L, lua_upvalueindex(2));
  if (host->lua_bytes >= LARGE_HEAP) gbl_charge(L, 1);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* pairs(t), which gives the next above, its second upvalue. */
static int guarded_pairs(lua_State *L) {
  luaL_checkany(L, 1);
  if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
    lua_pop(L, 1);
    return lua_tocfunction(L, lua_upvalueindex(1))(L); /* in this frame, since it may yield */
  }
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, 1);
  lua_pushnil(L);
  return 3;
}

/* Put both at their names; the globals are at the top. */
static void guard_next(lua_State *L) {
  gbl_raw_field(L, -1, "next");
  lua_pushlightuserdata(L, gbl_host_of(L));
  lua_pushcclosure(L, guarded_next, 2);
  gbl_set_raw(L, -2, "next");
  gbl_raw_field(L, -1, "pairs");
  gbl_raw_field(L, -2, "next");
  lua_pushcclosure(L, guarded_pairs, 2);
  gbl_set_raw(L, -2, "pairs");
}

/* A whole collection, which costs what it looks at. */
static void collect(lua_State *L) {
  gbl_charge(L, (uint64_t)lua_gc(L, LUA_GCCOUNT) * (1024 / 32));
  lua_gc(L, LUA_GCCOLLECT);
}

/* collectgarbage: "count" as ever; "collect" and "step" cost what they look at; the collector's settings are the
 * host's. */
static int guarded_collect(lua_State *L) {
  static const char *const allowed[] = { "collect", "step", "count", "isrunning", NULL };
  int choice = luaL_checkoption(L, 1, "collect", allowed);
  if (choice < 2) {
    collect(L);
    lua_pushinteger(L, 0);
    return 1;
  }
  return forward(L);
}

/* Source text on its way to the compiler, in pieces. */
typedef struct source {
  const char *text;              /* what is left; NULL: the next piece comes from the function at 1 */
  size_t length;
  int keep;                      /* where on the stack the piece is kept */
} source;

/* lua_Reader: one small piece at a time, so that a long text can be stopped. */
static const char *read_source(lua_State *L, void *user, size_t *size) {
  source *s = user;
  if (s->length == 0 && s->keep) {
    luaL_checkstack(L, 2, "too many nested functions");
    lua_pushvalue(L, 1);
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      *size = 0;
      return NULL;
    }
    if (!lua_isstring(L, -1)) luaL_error(L, "reader function must return a string");
    s->text = lua_tolstring(L, -1, &s->length);
    lua_replace(L, s->keep);
  }
  const char *piece = s->text;
  *size = s->length < SOURCE_PIECE ? s->length : SOURCE_PIECE;
  s->text += *size;
  s->length -= *size;
  gbl_charge(L, 1 + *size);
  return piece;
}

/* nil and the error at the top; or the function with its environment, which stands at env unless that is 0. */
static int loaded(lua_State *L, int status, int env) {
  if (status != LUA_OK) {
    lua_pushnil(L);
    lua_insert(L, -2);
    return 2;
  }
  if (env) {
    lua_pushvalue(L, env);
    if (!lua_setupvalue(L, -2, 1)) lua_pop(L, 1);
  }
  return 1;
}

/* load(chunk, name, mode, env): text only. */
static int guarded_load(lua_State *L) {
  int env = lua_isnone(L, 4) ? 0 : 4;
  const char *mode = luaL_optstring(L, 3, "t");
  source s = { 0 };
  gbl_check_stack(L);
  if (!strchr(mode, 't')) return gbl_error(L, "load: a sandbox loads text only, so the mode must hold a 't'");
  bool text = lua_isstring(L, 1);
  if (text) s.text = lua_tolstring(L, 1, &s.length);
  else luaL_checktype(L, 1, LUA_TFUNCTION);
  const char *name = luaL_optstring(L, 2, text ? s.text : "=(load)");
  lua_settop(L, 4);
  lua_pushnil(L);
  s.keep = text ? 0 : 5;
  return loaded(L, lua_load(L, read_source, &s, name, "t"), env);
}

/* ====} */

/* {==== math and os ==== */

/* math.randomseed without arguments would take an address for a seed, and return it. */
static int guarded_seed(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_pushinteger(L, (lua_Integer)time(NULL));
  }
  forward(L);
  return 0;
}

/* ====} */

/* {==== Files beneath the host's folder ==== */

static int close_stream(lua_State *L) {
  luaL_Stream *stream = luaL_checkudata(L, 1, LUA_FILEHANDLE);
  gbl_host_of(L)->open_files--;
  return luaL_fileresult(L, fclose(stream->f) == 0, NULL);
}

/* fopen's modes as flags of open. */
static bool flags_of(const char *mode, int *flags) {
  static const struct { const char *mode; int flags; } modes[] = {
    { "r", O_RDONLY }, { "r+", O_RDWR }, { "w", O_WRONLY | O_CREAT | O_TRUNC }, { "w+", O_RDWR | O_CREAT | O_TRUNC },
    { "a", O_WRONLY | O_CREAT | O_APPEND }, { "a+", O_RDWR | O_CREAT | O_APPEND },
  };
  size_t length = strcspn(mode, "b");
  if (mode[length] && mode[length + 1]) return false;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (strlen(modes[i].mode) == length && !strncmp(mode, modes[i].mode, length)) return *flags = modes[i].flags, true;
  return false;
}

/* Open under the policy; an error leaves nil and its text. NULL: it failed. */
static FILE *open_file(lua_State *L, const char *path, const char *mode, int flags) {
  gb_context *context = gbl_context(L);
  int fd;
  FILE *file = NULL;
  gb_status status = gb_path_open(context, path, flags, &fd);
  if (status == GB_EFILEBYTES) gbl_check_status(L, status);
  if (status == GB_OK && !(file = fdopen(fd, mode))) {
    close(fd);
    gb_fail_memory(context, sizeof *file);
  }
  if (!file) {
    lua_pushnil(L);
    lua_pushstring(L, gb_error(context));
  }
  return file;
}

/* file:write(...): what is written counts. */
static int guarded_write(lua_State *L) {
  uint64_t bytes = 0;
  for (int i = lua_gettop(L); i > 1; i--) {
    size_t length = 0;
    if (lua_type(L, i) == LUA_TNUMBER) {
      lua_pushvalue(L, i);
      lua_tolstring(L, -1, &length);
      lua_pop(L, 1);
    } else if (lua_type(L, i) == LUA_TSTRING) length = lua_rawlen(L, i);
    bytes += length;
  }
  gbl_check_status(L, gb_path_charge(gbl_context(L), bytes));
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* May one more stream be open? Those that nobody holds are closed first. False leaves nil and a text. */
static bool has_room(lua_State *L) {
  const gb_host *host = gbl_host_of(L);
  if (host->open_files >= MOST_FILES) collect(L);
  if (host->open_files < MOST_FILES) return true;
  lua_pushnil(L);
  lua_pushfstring(L, "io.open: a sandbox has at most %d files open at a time; close one first", MOST_FILES);
  return false;
}

/* io.open(path[, mode]) */
static int guarded_open(lua_State *L) {
  const char *path = gbl_check_path(L, 1, "io.open"), *mode = luaL_optstring(L, 2, "r");
  int flags = 0;
  luaL_argcheck(L, flags_of(mode, &flags), 2, "invalid mode");
  if (!has_room(L)) return 2;
  luaL_Stream *stream = lua_newuserdatauv(L, sizeof *stream, 0);
  stream->closef = NULL;
  stream->f = NULL;
  luaL_setmetatable(L, LUA_FILEHANDLE);
  stream->f = open_file(L, path, mode, flags);
  if (!stream->f) return 2;
  stream->closef = close_stream;
  gbl_host_of(L)->open_files++;
  return 1;
}

/* Push a method of files. */
static void push_file_method(lua_State *L, const char *name) {
  luaL_getmetatable(L, LUA_FILEHANDLE);
  gbl_raw_field(L, -1, "__index");
  gbl_raw_field(L, -1, name);
  lua_replace(L, -3);
  lua_pop(L, 1);
}

/* io.lines: file:lines of a file that it opens. */
static int guarded_lines(lua_State *L) {
  gbl_check_path(L, 1, "io.lines");
  int formats = lua_gettop(L) - 1;
  lua_pushcfunction(L, guarded_open);
  lua_pushvalue(L, 1);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) return luaL_error(L, "%s", lua_tostring(L, -1));
  lua_pop(L, 1);
  lua_replace(L, 1);
  push_file_method(L, "lines");
  lua_insert(L, 1);
  lua_call(L, formats + 1, 1);
  return 1;
}

/* The whole of a file, pushed; false, with nil and a text pushed, where it cannot be read. */
static bool push_file(lua_State *L, const char *path) {
  lua_pushcfunction(L, guarded_open);
  lua_pushstring(L, path);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) return false;
  lua_pop(L, 1);
  push_file_method(L, "read");
  lua_pushvalue(L, -2);
  lua_pushliteral(L, "a");
  lua_call(L, 2, 1);
  push_file_method(L, "close");
  lua_pushvalue(L, -3);
  lua_call(L, 1, 0);
  lua_remove(L, -2);
  return true;
}

/* Compile the file: the function, or nil and a text. A first line that begins with '#' is none of Lua's. */
static int load_path(lua_State *L, const char *path) {
  size_t length;
  if (!push_file(L, path)) return 2;
  const char *text = luaL_checklstring(L, -1, &length), *start = text;
  if (*start == '#') start += strcspn(start, "\n");
  source s = { .text = start, .length = length - (size_t)(start - text) };
  lua_pushfstring(L, "@%s", path);
  return loaded(L, lua_load(L, read_source, &s, lua_tostring(L, -1), "t"), 0);
}

/* loadfile(path[, mode[, env]]) */
static int guarded_loadfile(lua_State *L) {
  const char *path = gbl_check_path(L, 1, "loadfile");
  bool has_env = !lua_isnone(L, 3);
  lua_settop(L, 3);
  int results = load_path(L, path);
  if (results == 1 && has_env) {
    lua_pushvalue(L, 3);
    if (!lua_setupvalue(L, -2, 1)) lua_pop(L, 1);
  }
  return results;
}

/* dofile(path) */
static int guarded_dofile(lua_State *L) {
  const char *path = gbl_check_path(L, 1, "dofile");
  lua_settop(L, 1);
  if (load_path(L, path) == 2) return lua_error(L);
  lua_call(L, 0, LUA_MULTRET);
  return lua_gettop(L) - 3; /* the path, the text and the name lie below */
}

/* Push the table of the modules that were required, by name. */
static void push_required(lua_State *L) {
  static const char key = 0;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &key) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &key);
}

/* require: "gibbous", and where there are files (upvalue 1) "a.b" as a/b.lua, once. */
static int guarded_require(lua_State *L) {
  const char *name = gbl_check_path(L, 1, "require");
  lua_settop(L, 1);
  if (!strcmp(name, "gibbous")) return luaopen_gibbous(L);
  if (!lua_toboolean(L, lua_upvalueindex(1)))
    return gbl_error(L, "require: there is no module '%s' in a sandbox without files; there is 'gibbous'", name);
  push_required(L);
  if (gbl_raw_field(L, 2, name) != LUA_TNIL) return 1;
  luaL_gsub(L, name, ".", "/");
  lua_pushfstring(L, "%s.lua", lua_tostring(L, -1));
  if (load_path(L, lua_tostring(L, -1)) == 2) return gbl_error(L, "require: %s", lua_tostring(L, -1));
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) lua_pushboolean(L, true);
  lua_pushvalue(L, -1);
  gbl_set_raw(L, 2, name);
  return 1;
}

/* A file is shown without its address. */
static int file_text(lua_State *L) {
  luaL_Stream *stream = luaL_checkudata(L, 1, LUA_FILEHANDLE);
  lua_pushstring(L, stream->closef ? "file" : "file (closed)");
  return 1;
}

static void guard_files(lua_State *L) {
  gbl_push_global(L, "io");
  luaL_setfuncs(L, (const luaL_Reg[]){ { "open", guarded_open }, { "lines", guarded_lines }, { NULL, NULL } }, 0);
  lua_pop(L, 1);
  lua_register(L, "loadfile", guarded_loadfile);
  lua_register(L, "dofile", guarded_dofile);
  luaL_getmetatable(L, LUA_FILEHANDLE);
  gbl_raw_field(L, -1, "__index");
  guard(L, "write", guarded_write);
  lua_pop(L, 1);
  lua_pushcfunction(L, file_text);
  gbl_set_raw(L, -2, "__tostring");
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable");
  lua_pop(L, 1);
}

/* ====} */

void gbl_replace_library(lua_State *L, bool files) {
  guard_string(L);
  guard_table(L);
  gbl_push_global(L, "math");
  guard(L, "randomseed", guarded_seed);
  lua_pop(L, 1);
  lua_pushglobaltable(L);
  guard(L, "setmetatable", guarded_setmetatable);
  guard(L, "collectgarbage", guarded_collect);
  guard_next(L);
  lua_pop(L, 1);
  lua_register(L, "tostring", guarded_tostring);
  lua_register(L, "load", guarded_load);
  lua_pushboolean(L, files);
  lua_pushcclosure(L, guarded_require, 1);
  lua_setglobal(L, "require");
  if (files) guard_files(L);
}
