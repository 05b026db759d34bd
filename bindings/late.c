/* late.c - the two tables of each module, and the chunks behind names that were not used yet; late.h says what recipes
 * see of it.
 *
 * A unit (the chunks that make names together) runs as a whole or not at all: hooks are held, so that no limit, no
 * hook of a script and no yield comes in between; the collector rests, so no finaliser runs; and what an error leaves,
 * which memory or a stop alone can raise, is taken back before it is raised again. The instructions of a unit are
 * charged to nobody, but those of a unit that failed are, so that a loop around it ends.
 *
 * While a chunk runs it sees the library's own tables, and globals (gibbous.c), with nothing that a recipe or a sandbox
 * has changed. Its last statement, which the build adds, is native.settle(): from then on its local names of modules
 * stand for the views, as if the chunk had run when the library opened. */
#include "late.h"

#include <stdlib.h>
#include <string.h>

#include "embedded.h"
#include "host.h"
#include "objects.h"
#include "reader.h"

/* Of the registry, a table: [i] = { own table, view, names that the view has had } of module i from 1, [own table] =
 * [view] = i, native = the native functions, status = { [unit] = RUNS or DONE }, run = the function that runs a chunk,
 * open = true once the views are filled. */
static const char late_key = 0;
const char gbl_module_mark[] = "module";
enum { OWN = 1, VIEW, SEEN };
enum { RUNS = 1, DONE };
#define FAILURE_INSTRUCTIONS 100000 /* about what a unit takes */

/* Parents stand before their children. */
static const char *const modules[] = {
  "gb", "gb.Logger", "gb.amp", "gb.cuda", "gb.data", "gb.data.transforms", "gb.dist", "gb.io", "gb.linalg", "gb.nn",
  "gb.nn.functional", "gb.nn.init", "gb.nn.parallel", "gb.nn.utils", "gb.nn.utils.rnn", "gb.optim", "gb.optim.lr",
  "gb.random", "gb.test",
};
enum { MODULES = sizeof modules / sizeof *modules };

/* {==== Rows ==== */

typedef struct key { const char *path, *name; } key;

static int compare_rows(const void *given, const void *element) {
  const key *wanted = given;
  const gbl_late_row *row = element;
  int order = strcmp(wanted->path, row->path);
  return order ? order : strcmp(wanted->name, row->name);
}

static const gbl_late_row *find_row(const char *path, const char *name) {
  return bsearch(&(key){ path, name }, gbl_late_rows, (size_t)gbl_late_count, sizeof *gbl_late_rows, compare_rows);
}

/* The rows of a path lie side by side: the first of them, and how many. */
static const gbl_late_row *rows_of(const char *path, int *count) {
  int first = 0;
  while (first < gbl_late_count && strcmp(gbl_late_rows[first].path, path)) first++;
  for (*count = 0; first + *count < gbl_late_count && !strcmp(gbl_late_rows[first + *count].path, path);) ++*count;
  return &gbl_late_rows[first];
}

static bool is_left(const gbl_late_row *row, int level) { return level == GB_SANDBOX_NONE || row->level >= level; }

/* Does the sandbox of this universe have the row's name? */
static bool is_allowed(lua_State *L, const gbl_late_row *row) {
  const gb_host *host = gbl_host_of(L);
  return !host || is_left(row, (int)host->options.sandbox);
}

bool gbl_has_late(const char *path, int level) {
  int count;
  const gbl_late_row *row = rows_of(path, &count);
  for (int i = 0; i < count; i++)
    if (is_left(&row[i], level)) return true;
  return false;
}

/* ====} */

/* {==== The tables of modules ==== */

static void push_late(lua_State *L) { lua_rawgetp(L, LUA_REGISTRYINDEX, &late_key); }

/* Are the views filled? */
static bool is_open(lua_State *L) {
  push_late(L);
  bool open = gbl_raw_field(L, -1, "open") != LUA_TNIL;
  lua_pop(L, 2);
  return open;
}

/* Push one of the three tables of module i. */
static void push_part(lua_State *L, int i, int part) {
  push_late(L);
  lua_rawgeti(L, -1, i);
  lua_rawgeti(L, -1, part);
  lua_replace(L, -3);
  lua_pop(L, 1);
}

/* The number of the module that the table at index is, of which part; 0: it is none. */
static int module_of(lua_State *L, int index, int *part) {
  index = lua_absindex(L, index);
  if (lua_type(L, index) != LUA_TTABLE) return 0;
  push_late(L);
  lua_pushvalue(L, index);
  int i = lua_rawget(L, -2) == LUA_TNUMBER ? (int)lua_tointeger(L, -1) : 0;
  lua_pop(L, 2);
  if (!i) return 0;
  push_part(L, i, OWN);
  *part = lua_rawequal(L, index, -1) ? OWN : VIEW;
  lua_pop(L, 1);
  return i;
}

/* Did the view of module i have this name once? */
static bool was_seen(lua_State *L, int i, const char *name) {
  push_part(L, i, SEEN);
  bool seen = gbl_raw_field(L, -1, name) != LUA_TNIL;
  lua_pop(L, 2);
  return seen;
}

static void note_seen(lua_State *L, int i, const char *name) {
  push_part(L, i, SEEN);
  lua_pushboolean(L, true);
  gbl_set_raw(L, -2, name);
  lua_pop(L, 1);
}

/* Set the field of a part of module i to the value at the top, which is popped. */
static void set_part(lua_State *L, int i, int part, const char *name) {
  push_part(L, i, part);
  lua_insert(L, -2);
  gbl_set_raw(L, -2, name);
  lua_pop(L, 1);
}

/* ====} */

/* {==== Running a unit ==== */

/* Push the table that names of a path are fields of. */
static void push_target(lua_State *L, const char *path) {
  for (int i = 0; i < MODULES; i++)
    if (!strcmp(modules[i], path)) {
      push_part(L, i + 1, OWN);
      return;
    }
  if (!strcmp(path, "tensor")) gbl_push_methods(L);
  else {
    push_late(L);
    gbl_raw_field(L, -1, "native");
    lua_remove(L, -2);
  }
}

/* Protected: take back what a unit has made. Argument: the unit. */
static int take_back(lua_State *L) {
  const char *unit = lua_touserdata(L, 1);
  luaL_checkstack(L, 8, GBL_NO_STACK);
  for (int i = 0; i < gbl_late_count; i++) {
    const gbl_late_row *row = &gbl_late_rows[i];
    if (strcmp(row->unit, unit)) continue;
    push_target(L, row->path);
    lua_pushnil(L);
    gbl_set_raw(L, -2, row->name);
    lua_pop(L, 1);
  }
  return 0;
}

/* Protected: the chunks of a unit, in their order. */
static int run_unit(lua_State *L) {
  const char *unit = lua_touserdata(L, 1);
  luaL_checkstack(L, LUA_MINSTACK, GBL_NO_STACK);
  push_late(L);
  gbl_raw_field(L, 2, "native");
  gbl_raw_field(L, 3, "units");
  if (gbl_raw_field(L, 4, unit) != LUA_TTABLE) return luaL_error(L, "gibbous: there is no unit '%s'", unit);
  int count = (int)lua_rawlen(L, 5);
  for (int i = 1; i <= count; i++) {
    gbl_raw_field(L, 2, "run");
    lua_rawgeti(L, 5, i);
    lua_call(L, 1, 0);
  }
  return 0;
}

static void set_status(lua_State *L, const char *unit, int status) {
  push_late(L);
  gbl_raw_field(L, -1, "status");
  if (status) lua_pushinteger(L, status);
  else lua_pushnil(L);
  gbl_set_raw(L, -2, unit);
  lua_pop(L, 2);
}

static int status_of(lua_State *L, const char *unit) {
  push_late(L);
  gbl_raw_field(L, -1, "status");
  gbl_raw_field(L, -1, unit);
  int status = (int)lua_tointeger(L, -1);
  lua_pop(L, 3);
  return status;
}

/* Run a unit, unless it has run; one that is running, which asks for a name of its own, is let be. */
static void load_unit(lua_State *L, const char *unit) {
  gbl_check_stack(L);
  luaL_checkstack(L, LUA_MINSTACK, GBL_NO_STACK);
  if (status_of(L, unit)) return;
  set_status(L, unit, RUNS);
  int records = gbl_count_records(L);
  bool collects = lua_gc(L, LUA_GCISRUNNING) == 1; /* within a finaliser it answers -1 */
  if (collects) lua_gc(L, LUA_GCSTOP);
  gbl_hook hook = gbl_hold_hook(L);
  lua_pushcfunction(L, run_unit);
  lua_pushlightuserdata(L, (void *)unit);
  int status = lua_pcall(L, 1, 0, 0);
  if (status != LUA_OK) { /* whose error is at the top */
    set_status(L, unit, 0);
    gbl_drop_records(L, records);
    lua_pushcfunction(L, take_back);
    lua_pushlightuserdata(L, (void *)unit);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) lua_pop(L, 1); /* what could not be taken back is made anew */
  }
  if (collects) lua_gc(L, LUA_GCRESTART);
  gbl_restore_hook(L, &hook);
  if (status == LUA_OK) {
    set_status(L, unit, DONE);
    return;
  }
  gbl_charge(L, FAILURE_INSTRUCTIONS);
  lua_error(L);
}

void gbl_load_name(lua_State *L, const char *path, const char *name) {
  const gbl_late_row *row = find_row(path, name);
  if (row) load_unit(L, row->unit);
}

void gbl_load_all(lua_State *L) {
  for (int i = 0; i < gbl_late_count; i++)
    if (!i || strcmp(gbl_late_rows[i].unit, gbl_late_rows[i - 1].unit)) load_unit(L, gbl_late_rows[i].unit);
}

/* ====} */

/* {==== Using names ==== */

/* Push what module i has under a late name, for one of its parts: nil where there is none, or the recipe took it away.
 * A view keeps it. */
static void push_late_name(lua_State *L, int i, int part, const gbl_late_row *row) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  if (part == VIEW && !(is_allowed(L, row) && !was_seen(L, i, row->name))) {
    lua_pushnil(L);
    return;
  }
  load_unit(L, row->unit);
  push_part(L, i, OWN);
  bool has = gbl_raw_field(L, -1, row->name) != LUA_TNIL;
  lua_remove(L, -2);
  if (!has || part == OWN) return;
  lua_pushvalue(L, -1);
  set_part(L, i, VIEW, row->name); /* before it is noted: where memory ends between the two, it is found anew */
  note_seen(L, i, row->name);
}

/* The string at index, unless it has zeros within, as no name has; else NULL. */
static const char *name_at(lua_State *L, int index) {
  const char *name = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : NULL;
  return name && strlen(name) == lua_rawlen(L, index) ? name : NULL;
}

void gbl_use_name(lua_State *L, int index) {
  int part, i = module_of(L, index, &part);
  const char *name = name_at(L, -1);
  const gbl_late_row *row = i && name ? find_row(modules[i - 1], name) : NULL;
  if (row) {
    push_late_name(L, i, part, row);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

void gbl_claim_name(lua_State *L, int index) {
  int part, i = module_of(L, index, &part);
  const char *name = name_at(L, -1);
  if (i && name && part == VIEW && find_row(modules[i - 1], name)) note_seen(L, i, name);
  lua_pop(L, 1);
}

/* Raise: there is no such name. The nearest is looked for among all that the table at 1 could have. */
static int unknown_name(lua_State *L, int i, int part) {
  int count;
  const gbl_late_row *row = rows_of(modules[i - 1], &count);
  luaL_checkstack(L, 8, GBL_NO_STACK);
  gbl_load_name(L, "native", "unknown_name");
  push_late(L);
  gbl_raw_field(L, -1, "native");
  gbl_raw_field(L, -1, "unknown_name");
  lua_pushstring(L, modules[i - 1]);
  lua_pushvalue(L, 2);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
    lua_pushvalue(L, -2);
    lua_pushboolean(L, true);
    lua_rawset(L, -5);
  }
  for (int k = 0; k < count; k++) {
    if (part == VIEW && !(is_allowed(L, &row[k]) && !was_seen(L, i, row[k].name))) continue;
    lua_pushboolean(L, true);
    gbl_set_raw(L, -2, row[k].name);
  }
  lua_call(L, 3, 0);
  lua_pushnil(L);
  return 1;
}

/* What a module does not have as yet, or at all. Upvalue: its number. */
static int index_module(lua_State *L) {
  int part = VIEW, i = (int)lua_tointeger(L, lua_upvalueindex(1));
  lua_settop(L, 2);
  if (lua_type(L, 2) != LUA_TSTRING || module_of(L, 1, &part) != i) return lua_pushnil(L), 1;
  const char *name = name_at(L, 2);
  if (!is_open(L)) { /* chunks that run at once: views are empty, and may ask what is there */
    push_part(L, i, OWN);
    lua_insert(L, 2);
    return lua_rawget(L, 2), 1;
  }
  const gbl_late_row *row = name ? find_row(modules[i - 1], name) : NULL;
  if (row) {
    push_late_name(L, i, part, row);
    if (!lua_isnil(L, -1)) return 1;
  }
  return unknown_name(L, i, part);
}

/* A name that a module has not: set, and of a view the recipe's from now on. */
static int set_in_module(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 3);
  lua_pushvalue(L, 2);
  lua_insert(L, 2);
  lua_rawset(L, 1);
  gbl_claim_name(L, 1);
  return 0;
}

/* Use all late names of a part of module i. */
static void use_all(lua_State *L, int i, int part) {
  int count;
  const gbl_late_row *row = rows_of(modules[i - 1], &count);
  for (int k = 0; k < count; k++) {
    push_late_name(L, i, part, &row[k]);
    lua_pop(L, 1);
  }
}

/* pairs(module): all that it has, used or not. Upvalue: its number. */
static int pairs_of_module(lua_State *L) {
  int part, i = (int)lua_tointeger(L, lua_upvalueindex(1));
  luaL_checktype(L, 1, LUA_TTABLE);
  if (module_of(L, 1, &part) == i) use_all(L, i, part);
  gbl_push_own_name(L, "next");
  lua_pushvalue(L, 1);
  lua_pushnil(L);
  return 3;
}

/* The same for the native functions; what there is not is nil. Upvalue: none. */
static int index_native(lua_State *L) {
  const char *name = name_at(L, 2);
  const gbl_late_row *row = name ? find_row("native", name) : NULL;
  if (!row) return lua_pushnil(L), 1;
  load_unit(L, row->unit);
  lua_settop(L, 2);
  lua_rawget(L, 1);
  return 1;
}

/* ====} */

/* {==== Opening ==== */

/* Push the metatable of module i, for both of its tables. */
static void push_metatable(lua_State *L, int i) {
  static const luaL_Reg events[] = {
    { "__index", index_module }, { "__newindex", set_in_module }, { "__pairs", pairs_of_module },
  };
  lua_createtable(L, 0, 6);
  lua_pushboolean(L, true);
  lua_rawsetp(L, -2, gbl_module_mark);
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable"); /* without it, names that wait would be lost */
  lua_pushstring(L, modules[i - 1]);
  gbl_set_raw(L, -2, "__library"); /* for calls with a colon */
  for (size_t k = 0; k < sizeof events / sizeof *events; k++) {
    lua_pushinteger(L, i);
    lua_pushcclosure(L, events[k].func, 1);
    gbl_set_raw(L, -2, events[k].name);
  }
}

/* The table at the top, which is popped, is a part of module i. */
static void set_module(lua_State *L, int late, int i, int part) {
  lua_rawgeti(L, late, i);
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, part);
  lua_pop(L, 1);
  lua_pushinteger(L, i);
  lua_rawset(L, late);
}

void gbl_open_modules(lua_State *L) {
  int gb = lua_gettop(L);
  luaL_checkstack(L, LUA_MINSTACK, GBL_NO_STACK);
  lua_newtable(L);
  int late = lua_gettop(L);
  lua_pushvalue(L, late);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &late_key);
  lua_newtable(L);
  gbl_set_raw(L, late, "status");
  for (int i = 1; i <= MODULES; i++) {
    lua_createtable(L, 3, 0);
    lua_newtable(L);
    lua_rawseti(L, -2, SEEN);
    lua_rawseti(L, late, i);
    lua_pushvalue(L, gb); /* go down to it */
    for (const char *part = strchr(modules[i - 1], '.'); part; part = strchr(part, '.')) {
      char name[32] = "";
      part++;
      memcpy(name, part, strcspn(part, "."));
      gbl_push_module(L, name);
    }
    push_metatable(L, i);
    lua_pushvalue(L, -1);
    lua_setmetatable(L, -3);
    lua_newtable(L);
    lua_insert(L, -2);
    lua_setmetatable(L, -2);
    set_module(L, late, i, VIEW);
    set_module(L, late, i, OWN);
    lua_settop(L, late);
  }
  lua_settop(L, gb);
}

/* Fill the view of module i: with what the library's own table has, and views in the place of modules. */
static void fill_view(lua_State *L, int i) {
  push_part(L, i, VIEW);
  int view = lua_gettop(L), part;
  push_part(L, i, OWN);
  for (lua_pushnil(L); lua_next(L, view + 1);) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    int module = module_of(L, -1, &part);
    if (module) {
      lua_pop(L, 1);
      push_part(L, module, VIEW);
    }
    lua_rawset(L, view);
  }
  lua_settop(L, view - 1);
}

void gbl_open_views(lua_State *L) {
  luaL_checkstack(L, LUA_MINSTACK, GBL_NO_STACK);
  for (int i = 1; i <= MODULES; i++) fill_view(L, i);
  push_late(L);
  lua_pushboolean(L, true);
  gbl_set_raw(L, -2, "open");
  lua_pop(L, 2);
  push_part(L, 1, VIEW);
}

/* load(unit) */
static int load(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  for (const gbl_chunk *chunk = gbl_chunks; chunk->name; chunk++) /* for a text that stays */
    if (!strcmp(chunk->name, name)) load_unit(L, chunk->name);
  return 0;
}

/* load_all(): every name is made, and stands in the views that have it. */
static int load_all(lua_State *L) {
  gbl_load_all(L);
  for (int i = 1; i <= MODULES; i++) use_all(L, i, VIEW);
  return 0;
}

/* waits() -> bool: do chunks wait until one of their names is used? */
static int waits(lua_State *L) {
  lua_pushboolean(L, gbl_late_count > 0);
  return 1;
}

/* settle(): the local names of the chunk that calls it which stand for the library's own modules stand for the views
 * from now on, for all functions of the chunk. */
static int settle(lua_State *L) {
  lua_Debug frame;
  int part;
  if (!lua_getstack(L, 1, &frame)) return 0;
  for (int n = 1; lua_getlocal(L, &frame, n); n++) {
    int i = module_of(L, -1, &part);
    lua_pop(L, 1);
    if (!i || part != OWN) continue;
    push_part(L, i, VIEW);
    lua_setlocal(L, &frame, n);
  }
  return 0;
}

/* publish(path, name, value): into a module, and into its view unless a unit that runs makes the name, which is used
 * later. */
static int publish(lua_State *L) {
  const char *path = luaL_checkstring(L, 1), *name = luaL_checkstring(L, 2);
  for (int i = 1; i <= MODULES; i++) {
    if (strcmp(modules[i - 1], path)) continue;
    lua_settop(L, 3);
    lua_pushvalue(L, 3);
    set_part(L, i, OWN, name);
    const gbl_late_row *row = find_row(path, name);
    if (row && status_of(L, row->unit) != DONE) break;
    lua_pushvalue(L, 3);
    set_part(L, i, VIEW, name);
    note_seen(L, i, name);
  }
  return 0;
}

/* view(path) -> table: the module as the recipe has it, with what it put there; nil while the library opens. */
static int view(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  lua_pushnil(L);
  for (int i = 1; i <= MODULES; i++)
    if (!strcmp(modules[i - 1], path)) push_part(L, i, VIEW);
  return 1;
}

/* modules() -> { [path] = the library's own table } */
static int own_modules(lua_State *L) {
  lua_createtable(L, 0, MODULES);
  for (int i = 1; i <= MODULES; i++) {
    push_part(L, i, OWN);
    gbl_set_raw(L, -2, modules[i - 1]);
  }
  return 1;
}

void gbl_keep_run(lua_State *L) {
  push_late(L);
  lua_pushvalue(L, -2);
  gbl_set_raw(L, -2, "run");
  lua_pop(L, 1);
}

void gbl_open_late(lua_State *L) {
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "load", load }, { "load_all", load_all }, { "waits", waits },
                                           { "publish", publish }, { "modules", own_modules }, { "view", view },
                                           { "settle", settle },
                                           { NULL, NULL } });
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, index_native);
  gbl_set_raw(L, -2, "__index");
  lua_setmetatable(L, -2);
  push_late(L);
  lua_pushvalue(L, -2);
  gbl_set_raw(L, -2, "native");
  lua_pop(L, 2);
}

/* ====} */
