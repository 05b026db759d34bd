/* gibbous.c - luaopen_gibbous: opens the engine for this Lua universe, puts the table gb together, and runs the Lua half, which lies inside
 * the binary. A second require in the same universe gives the same table. */
#include <inttypes.h>
#include <string.h>

#include "binding.h"
#include "embedded.h"
#include "host.h"
#include "objects.h"
#include "reader.h"

static const char gb_key = 0; /* of the registry: the table gb */

/* {==== Tables ==== */

void gbl_set_functions(lua_State *L, const luaL_Reg *functions) {
  lua_pushlightuserdata(L, gbl_get_state(L));
  luaL_setfuncs(L, functions, 1);
}

void gbl_push_module(lua_State *L, const char *name) { luaL_getsubtable(L, -1, name); }

/* ====} */

/* {==== Random state, threads, devices, settings ==== */

static const char *const category_names[] = { "parameters", "gradients", "optimizer", "weight_copies", "saved", "other", "scratch" };

/* gb.is_tensor(value) -> bool: Is value a tensor that was not freed? Example: print(gb.is_tensor(gb.zeros(2))) */
static int is_tensor(lua_State *L) {
  lua_pushboolean(L, gbl_test_tensor(L, 1) != NULL);
  return 1;
}

/* gb.manual_seed(seed: int): Begin the random stream anew from seed: the same seed gives the same bits. Example: gb.manual_seed(1) */
static int manual_seed(lua_State *L) {
  gb_manual_seed(gbl_context(L), (uint64_t)gbl_check_integer(L, 1, "manual_seed", "seed"));
  return 0;
}

/* gb.seed() -> int: The seed of the random stream. Example: print(gb.seed()) */
static int seed(lua_State *L) {
  uint64_t key, offset;
  gb_get_rng_state(gbl_context(L), &key, &offset);
  lua_pushinteger(L, (lua_Integer)key);
  return 1;
}

/* gb.get_rng_state() -> table: The random stream, which is two integers: { seed =, offset = }. Example: local state = gb.get_rng_state() */
static int get_rng_state(lua_State *L) {
  uint64_t key, offset;
  gb_get_rng_state(gbl_context(L), &key, &offset);
  lua_createtable(L, 0, 2);
  lua_pushinteger(L, (lua_Integer)key);
  lua_setfield(L, -2, "seed");
  lua_pushinteger(L, (lua_Integer)offset);
  lua_setfield(L, -2, "offset");
  return 1;
}

/* gb.set_rng_state(state: table): Go on from where get_rng_state was asked. Example: gb.set_rng_state(gb.get_rng_state()) */
static int set_rng_state(lua_State *L) {
  static const char *const known[] = { "seed", "offset", NULL };
  gb_context *context = gbl_context(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  gbl_check_options(L, 1, "set_rng_state", known);
  int64_t key = gbl_option_integer(L, 1, "set_rng_state", "seed", 0), offset = gbl_option_integer(L, 1, "set_rng_state", "offset", 0);
  gb_set_rng_state(context, (uint64_t)key, (uint64_t)offset);
  return 0;
}

/* gb.set_num_threads(threads: int): How many threads run the kernels; results do not depend on it. Errors: fewer than 1. Example:
 * gb.set_num_threads(2) */
static int set_num_threads(lua_State *L) {
  gb_context *context = gbl_context(L);
  int64_t threads = gbl_check_integer(L, 1, "set_num_threads", "threads");
  gbl_check_status(L, gb_set_num_threads(context, threads < INT32_MAX && threads > 0 ? (int)threads : 0));
  return 0;
}

/* gb.get_num_threads() -> int: How many threads run the kernels. Example: print(gb.get_num_threads()) */
static int get_num_threads(lua_State *L) {
  lua_pushinteger(L, gb_get_num_threads(gbl_context(L)));
  return 1;
}

/* gb.device(name: string) -> string: The full name of a device, such as cuda:0 for cuda. Errors: a device that is not there, with the reason.
 * Example: print(gb.device("cpu")) */
static int device(lua_State *L) {
  gbl_enter(L);
  gbl_push_device_name(L, gbl_check_device(L, 1));
  return 1;
}

/* gb.best_device() -> string: The one that the program around has chosen, else cuda where there is one, else cpu. Example: local x =
 * gb.zeros(2, { device = gb.best_device() }) */
static int best_device(lua_State *L) {
  const gbl_state *state = gbl_enter(L);
  const char *chosen = state->host ? state->host->options.device : NULL, *why;
  lua_pushstring(L, chosen ? chosen : gb_context_has_device(state->context, GB_CUDA, &why) ? "cuda" : "cpu");
  return 1;
}

/* How many devices of a kind there are. */
static int count_devices(gb_context *context, int type) {
  const char *why;
  if (!gb_context_has_device(context, type, &why)) return 0;
  return context->backend[type]->devices > 1 ? context->backend[type]->devices : 1;
}

/* gb.devices() -> list: The names of the devices that are there. Example: print(table.concat(gb.devices(), ", ")) */
static int devices(lua_State *L) {
  gb_context *context = gbl_context(L);
  lua_newtable(L);
  for (int type = 0; type < GB_DEVICE_TYPES; type++)
    for (int i = 0, count = count_devices(context, type); i < count; i++) {
      gbl_push_device_name(L, (gb_device){ (int16_t)type, (int16_t)i });
      lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
  return 1;
}

/* gb.cuda.is_available() -> bool, string: Can a CUDA device be used? Where not, also why. Example: print(gb.cuda.is_available()) */
static int cuda_is_available(lua_State *L) {
  const char *why;
  bool there = gb_context_has_device(gbl_context(L), GB_CUDA, &why);
  lua_pushboolean(L, there);
  if (there) return 1;
  lua_pushstring(L, why);
  return 2;
}

/* gb.cuda.device_count() -> int: How many CUDA devices can be used. Example: print(gb.cuda.device_count()) */
static int cuda_device_count(lua_State *L) {
  lua_pushinteger(L, count_devices(gbl_context(L), GB_CUDA));
  return 1;
}

/* The CUDA device that argument 1 names, open: "cuda:N" or N; where there is none the default device if that is one, else cuda:0. */
static gb_device check_cuda(lua_State *L, const char *who) {
  gb_device chosen = gbl_enter(L)->default_device;
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    if (chosen.type != GB_CUDA) lua_pushliteral(L, "cuda");
    else gbl_push_device_name(L, chosen);
  } else if (lua_isinteger(L, 1)) lua_pushfstring(L, "cuda:%I", (LUAI_UACINT)lua_tointeger(L, 1)), lua_replace(L, 1);
  const char *why;
  if (!gb_context_has_device(gbl_context(L), GB_CUDA, &why)) gbl_error(L, "cuda.%s: there is no CUDA device: %s", who, why);
  gb_device device = gbl_check_device(L, 1);
  if (device.type != GB_CUDA) gbl_error(L, "cuda.%s: expects a CUDA device, got '%s'", who, lua_tostring(L, 1));
  return device;
}

/* gb.set_default_device(device: string): Where tensors are made that are not told otherwise. Example: gb.set_default_device("cpu") */
static int set_default_device(lua_State *L) {
  gbl_state *state = gbl_enter(L);
  state->default_device = gbl_check_device(L, 1);
  return 0;
}

/* gb.get_default_device() -> string: Where tensors are made that are not told otherwise. Example: print(gb.get_default_device()) */
static int get_default_device(lua_State *L) {
  gbl_push_device_name(L, gbl_enter(L)->default_device);
  return 1;
}

/* gb.cuda.properties(device?) -> table: What the device is: name, major and minor (of its compute capability), multiprocessors, driver, runtime,
 * total_memory and free_memory in bytes. The device is "cuda:N" or N; else the default one, where that is a CUDA device, or cuda:0. Errors: there is
 * no CUDA device. Example: if gb.cuda.is_available() then print(gb.cuda.properties().name) end */
static int cuda_properties(lua_State *L) {
  gb_device device = check_cuda(L, "properties");
  gb_device_info info = { .name = "" };
  gb_backend *backend = gb_context_backend(gbl_context(L), device);
  gbl_check_status(L, backend->describe(backend->state, &info));
  lua_createtable(L, 0, 8);
  lua_pushstring(L, info.name);
  lua_setfield(L, -2, "name");
  const struct { const char *name; int64_t value; } numbers[] = {
    { "major", info.major }, { "minor", info.minor }, { "multiprocessors", info.multiprocessors }, { "driver", info.driver },
    { "runtime", info.runtime }, { "total_memory", info.total_memory }, { "free_memory", info.free_memory },
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    lua_pushinteger(L, numbers[i].value);
    lua_setfield(L, -2, numbers[i].name);
  }
  return 1;
}

/* gb.cuda.synchronize(device?): Wait until the device has done all it was asked. Errors: what a kernel found wrong in data, by its op; what else
 * failed on the device since the last wait. Example: if gb.cuda.is_available() then gb.cuda.synchronize() end */
static int cuda_synchronize(lua_State *L) {
  const char *why;
  if (lua_isnoneornil(L, 1) && !gb_context_has_device(gbl_context(L), GB_CUDA, &why)) return 0;
  gbl_check_status(L, gb_synchronize(gbl_context(L), check_cuda(L, "synchronize")));
  return 0;
}

/* Without a device there is nothing in its memory. */
static gb_memory_stats cuda_stats(lua_State *L, const char *who) {
  gb_memory_stats stats = { .current_total = 0 };
  const char *why;
  if (!lua_isnoneornil(L, 1) || gb_context_has_device(gbl_context(L), GB_CUDA, &why))
    gb_memory_get_device_stats(gbl_context(L), check_cuda(L, who), &stats);
  return stats;
}

/* gb.cuda.memory_allocated(device?) -> int: Bytes in tensors on the device. Example: print(gb.cuda.memory_allocated()) */
static int cuda_memory_allocated(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)cuda_stats(L, "memory_allocated").current_total);
  return 1;
}

/* gb.cuda.max_memory_allocated(device?) -> int: The most bytes that were in tensors on the device at once. Example:
 * print(gb.cuda.max_memory_allocated()) */
static int cuda_max_memory_allocated(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)cuda_stats(L, "max_memory_allocated").peak_total);
  return 1;
}

/* A row of the summary: MiB now and, where it is known, at the peak. */
static void add_row(luaL_Buffer *text, const char *name, double now, double peak) {
  char line[96];
  int used = snprintf(line, sizeof line, "%-20s %10.2f", name, now / 0x1p20);
  if (peak >= 0) snprintf(line + used, sizeof line - (size_t)used, " %10.2f", peak / 0x1p20);
  luaL_addstring(text, line);
  luaL_addchar(text, '\n');
}

/* What captured graphs hold, for as long as they live. */
static size_t bytes_in_graphs(const gb_context *context, gb_device device) {
  size_t bytes = 0;
  for (const gb_graph_pool *g = context->graph_pools; g; g = g->next) {
    gb_memory_stats stats;
    if (g->device.type != device.type || g->device.index != device.index) continue;
    gb_pool_stats(g->pool, &stats);
    bytes += stats.reserved;
  }
  return bytes;
}

/* gb.cuda.memory_summary(device?) -> string: Where the device's memory is, for people: MiB in tensors now and at the peak, by category; what the
 * pool has of the system, what of that is cached and what belongs to captured graphs; what uploads pass through; what the whole device has left;
 * and how often memory was asked for. Example: if gb.cuda.is_available() then print(gb.cuda.memory_summary()) end */
static int cuda_memory_summary(lua_State *L) {
  gb_device device = check_cuda(L, "memory_summary");
  gb_context *context = gbl_context(L);
  gb_backend *backend = gb_context_backend(context, device);
  gb_device_info info = { .name = "" };
  gb_memory_stats stats;
  gb_memory_get_device_stats(context, device, &stats);
  gbl_check_status(L, backend->describe(backend->state, &info));
  char line[128], name[24];
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  snprintf(line, sizeof line, "MiB on %-13s %10s %10s\n", gb_device_text(context, device, name, sizeof name), "now", "peak");
  luaL_addstring(&text, line);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) add_row(&text, category_names[i], (double)stats.current[i], (double)stats.peak[i]);
  add_row(&text, "in tensors", (double)stats.current_total, (double)stats.peak_total);
  add_row(&text, "reserved", (double)stats.reserved, (double)stats.peak_reserved);
  add_row(&text, "  of it cached", (double)(stats.reserved - stats.current_total), -1);
  add_row(&text, "  of it in graphs", (double)bytes_in_graphs(context, device), -1);
  add_row(&text, "uploads pass through", (double)info.staging, -1);
  add_row(&text, "free on the device", (double)info.free_memory, -1);
  add_row(&text, "on the device", (double)info.total_memory, -1);
  snprintf(line, sizeof line, "%llu allocations, %llu of them from the system", (unsigned long long)stats.allocations,
           (unsigned long long)stats.system_allocations);
  luaL_addstring(&text, line);
  luaL_pushresult(&text);
  return 1;
}

/* gb.set_default_dtype(dtype: string): The dtype that new floating tensors have; float32 at first. Errors: a dtype that is not floating. Example:
 * gb.set_default_dtype("float32") */
static int set_default_dtype(lua_State *L) {
  gbl_state *state = gbl_enter(L);
  gb_dtype dtype = gbl_check_dtype(L, 1, "set_default_dtype");
  if (!gb_dtype_is_float(dtype)) return gbl_error(L, "set_default_dtype: expects a floating dtype, got '%s'", gb_dtype_name(dtype));
  state->default_dtype = dtype;
  return 0;
}

/* gb.get_default_dtype() -> string: The dtype that new floating tensors have. Example: print(gb.get_default_dtype()) */
static int get_default_dtype(lua_State *L) {
  gbl_push_dtype_name(L, gbl_enter(L)->default_dtype);
  return 1;
}

/* gb.set_deterministic(value: bool): Whether only kernels that give the same bits each time may run, as is so from the start. With false the
 * gradients of 16-bit attention on CUDA come from cuDNN, which is faster and adds them up in an order that changes. Example:
 * gb.set_deterministic(true) */
static int set_deterministic(lua_State *L) {
  luaL_checktype(L, 1, LUA_TBOOLEAN);
  gbl_context(L)->nondeterministic = !lua_toboolean(L, 1);
  return 0;
}

/* gb.set_float32_matmul_precision(name: string): "highest", or "high": matmul, linear, mlp, conv2d and attention, and their gradients, round
 * float32 operands to 10 bits of mantissa (TF32) and sum in float32. Example: gb.set_float32_matmul_precision("highest") */
static int set_float32_matmul_precision(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  bool high = !strcmp(name, "high");
  if (!high && strcmp(name, "highest")) return gbl_error(L, "set_float32_matmul_precision: expects 'highest' or 'high', got '%s'", name);
  gbl_context(L)->tf32 = high;
  return 0;
}

/* gb.get_float32_matmul_precision() -> string: "highest" or "high". Example: print(gb.get_float32_matmul_precision()) */
static int get_float32_matmul_precision(lua_State *L) {
  lua_pushstring(L, gbl_context(L)->tf32 ? "high" : "highest");
  return 1;
}

/* gb.set_printoptions(options: table): How tensors are printed: precision (digits), threshold (elements shown in full), edge_items, line_width,
 * scientific (true or false). Example: gb.set_printoptions { precision = 4 } */
static int set_printoptions(lua_State *L) {
  static const char who[] = "set_printoptions";
  static const char *const known[] = { "precision", "threshold", "edge_items", "line_width", "scientific", NULL };
  gb_print_options *print = &gbl_enter(L)->print;
  luaL_checktype(L, 1, LUA_TTABLE);
  gbl_check_options(L, 1, who, known);
  int64_t precision = gbl_option_integer(L, 1, who, "precision", print->precision);
  int64_t width = gbl_option_integer(L, 1, who, "line_width", print->line_width);
  if (precision < 0 || precision > 17) return gbl_error(L, "%s: 'precision' is 0 .. 17 digits, got %" PRId64, who, precision);
  if (width < 10 || width > 10000) return gbl_error(L, "%s: 'line_width' is 10 .. 10000, got %" PRId64, who, width);
  int64_t threshold = gbl_option_integer(L, 1, who, "threshold", print->threshold);
  int64_t edge = gbl_option_integer(L, 1, who, "edge_items", print->edge_items);
  if (threshold < 0) return gbl_error(L, "%s: 'threshold' is 0 or more elements, got %" PRId64, who, threshold);
  if (edge < 1 || edge > 1000000) return gbl_error(L, "%s: 'edge_items' is 1 .. 1000000, got %" PRId64, who, edge);
  print->precision = (int)precision;
  print->line_width = (int)width;
  print->threshold = threshold;
  print->edge_items = edge;
  if (lua_getfield(L, 1, "scientific") == LUA_TSTRING && !strcmp(lua_tostring(L, -1), "auto")) print->scientific = GB_SCIENTIFIC_AUTO;
  else if (!lua_isnil(L, -1))
    print->scientific = gbl_option_boolean(L, 1, who, "scientific", false) ? GB_SCIENTIFIC_ALWAYS : GB_SCIENTIFIC_NEVER;
  return 0;
}

/* ====} */

/* {==== Errors, memory, interrupts ==== */

static const char *status_code(gb_status status) {
  static const char *const codes[] = {
#define CODE(name, text) #name,
    GB_STATUS_LIST(CODE)
#undef CODE
  };
  return codes[status];
}

/* gb.last_error() -> table: The engine's last failure: { code = "ESHAPE", op = "matmul", message = }, or nil. Example: local failure =
 * gb.last_error() */
static int last_error(lua_State *L) {
  const gb_context *context = gbl_context(L);
  if (gb_error_code(context) == GB_OK) return 0;
  lua_createtable(L, 0, 3);
  lua_pushstring(L, status_code(gb_error_code(context)));
  lua_setfield(L, -2, "code");
  lua_pushstring(L, gb_error_op(context));
  lua_setfield(L, -2, "op");
  lua_pushstring(L, gb_error(context));
  lua_setfield(L, -2, "message");
  return 1;
}

/* gb.is_oom(message) -> bool: Is this the error of an allocation that failed, the engine's or Lua's? Example: local ok, why = pcall(gb.zeros, 2)
 * if not ok and gb.is_oom(why) then gb.empty_cache() end */
static int is_oom(lua_State *L) {
  const char *text = luaL_tolstring(L, 1, NULL);
  lua_pushboolean(L, strstr(text, "out of memory: ") || strstr(text, "not enough memory"));
  return 1;
}

static void push_categories(lua_State *L, const size_t bytes[GB_MEM_CATEGORIES]) {
  lua_createtable(L, 0, GB_MEM_CATEGORIES);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) gbl_set_integer(L, category_names[i], (int64_t)bytes[i]);
}

/* gb.memory_stats(device?: string) -> table: Bytes in tensors now and at the peak, by category, and what the pool holds of the system's memory, of
 * one device or of all together: current, peak (tables by category), current_total, peak_total, reserved, peak_reserved, allocations,
 * system_allocations. Example: print(gb.memory_stats().peak_total) */
static int memory_stats(lua_State *L) {
  gb_memory_stats stats;
  if (lua_isnoneornil(L, 1)) gb_memory_get_stats(gbl_context(L), &stats);
  else gb_memory_get_device_stats(gbl_context(L), gbl_check_device(L, 1), &stats);
  lua_createtable(L, 0, 8);
  push_categories(L, stats.current);
  lua_setfield(L, -2, "current");
  push_categories(L, stats.peak);
  lua_setfield(L, -2, "peak");
  gbl_set_integer(L, "current_total", (int64_t)stats.current_total);
  gbl_set_integer(L, "peak_total", (int64_t)stats.peak_total);
  gbl_set_integer(L, "reserved", (int64_t)stats.reserved);
  gbl_set_integer(L, "peak_reserved", (int64_t)stats.peak_reserved);
  gbl_set_integer(L, "allocations", (int64_t)stats.allocations);
  gbl_set_integer(L, "system_allocations", (int64_t)stats.system_allocations);
  return 1;
}

/* gb.reset_peak_memory_stats(): The peaks of memory_stats become what is held now. Example: gb.reset_peak_memory_stats()
 * gb.cuda.reset_peak_memory_stats(): max_memory_allocated begins again from what is held now. Example: gb.cuda.reset_peak_memory_stats() */
static int reset_peak_memory_stats(lua_State *L) {
  gb_memory_reset_peaks(gbl_context(L));
  return 0;
}

/* gb.empty_cache(): Give memory that no tensor uses back to the system. Example: gb.empty_cache()
 * gb.cuda.empty_cache(): Give memory that no tensor uses back to the device. Example: gb.cuda.empty_cache() */
static int empty_cache(lua_State *L) {
  gb_memory_empty_cache(gbl_context(L));
  return 0;
}

/* gb.interrupt(on?: bool): The next op fails with "interrupted", and every one after it, until gb.interrupt(false). Example: gb.interrupt(false) */
static int interrupt(lua_State *L) {
  gb_context *context = gbl_context(L);
  if (lua_isboolean(L, 1) && !lua_toboolean(L, 1)) gb_interrupt_clear(context);
  else gb_interrupt(context);
  return 0;
}

/* ====} */

/* {==== Names that are not there ==== */

/* Part of the design, not of this version. */
static const char *const later[] = { "Trainer", "profile", "random", "dist", "linalg", NULL };

/* gb.name for a name that gb does not have; of names equally near the first in the alphabet is shown. */
static int unknown_name(lua_State *L) {
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const char *name = lua_tostring(L, 2), *best = NULL;
  for (int i = 0; later[i]; i++)
    if (!strcmp(later[i], name)) return gbl_error(L, "gb.%s is not built into this version", name);
  for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) continue;
    const char *known = lua_tostring(L, -2), *one = best ? best : known, *two = best ? known : NULL;
    const char *a = gbl_nearest(name, (const char *[]){ one, two, NULL }), *b = two ? gbl_nearest(name, (const char *[]){ two, one, NULL }) : a;
    if (a && b) best = strcmp(a, b) <= 0 ? a : b;
  }
  if (best) return gbl_error(L, "gb has no '%s'; did you mean '%s'?", name, best);
  return gbl_error(L, "gb has no '%s'", name);
}

static void seal(lua_State *L) {
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, unknown_name);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

/* ====} */

/* {==== The Lua half ==== */

/* What the Lua half uses of the globals. Left out is what hosts and prompts put something else in the place of, or users to see what is printed. */
static const char *const own_names[] = {
  "assert", "collectgarbage", "coroutine", "debug", "error", "getmetatable", "io", "ipairs", "math", "next", "os", "pairs", "pcall", "rawequal", "rawget",
  "rawlen", "rawset", "select", "setmetatable", "string", "table", "tonumber", "tostring", "type", "utf8",
};
static const char *const own_libraries[] = { "math", "string", "table", "utf8" }; /* of these, what is in them too */
static const char names_key = 0; /* of the registry: the table that stands for the globals there */

/* In the table at the top, put a copy of a library in its place. */
static void copy_library(lua_State *L, const char *name) {
  lua_pushstring(L, name);
  lua_rawget(L, -2);
  if (lua_istable(L, -1)) {
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, -3); lua_rawset(L, -4)) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
    }
    lua_pushstring(L, name);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
}

void gbl_keep_names(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_pushglobaltable(L);
  for (size_t i = 0; i < sizeof own_names / sizeof *own_names; i++) {
    lua_pushstring(L, own_names[i]);
    lua_pushvalue(L, -1);
    lua_rawget(L, -3);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
  for (size_t i = 0; i < sizeof own_libraries / sizeof *own_libraries; i++) copy_library(L, own_libraries[i]);
  lua_pop(L, 1);
}

/* A table that stands for the globals: with names of its own, so that a script that takes one away takes it from itself, and the globals behind.
 * Methods of strings are found in the table that all share. */
static void open_names(lua_State *L) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushglobaltable(L);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &names_key);
  gbl_keep_names(L);
}

/* run(name): runs a chunk of the Lua half with gb and the native functions as its arguments. Upvalues: gb, native. */
static int run_chunk(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const gbl_chunk *chunk = gbl_chunks;
  while (chunk->name && strcmp(chunk->name, name)) chunk++;
  if (!chunk->name) return luaL_error(L, "gibbous: '%s' is not in the binary", name);
  lua_pushfstring(L, "=gibbous/%s.lua", name);
  if (luaL_loadbufferx(L, chunk->text, chunk->size, lua_tostring(L, -1), "bt") != LUA_OK) return lua_error(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
  lua_setupvalue(L, -2, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_call(L, 3, 0);
  return 0;
}

/* Run init, which runs the others in its order, with gb at the top of the stack. */
static void run_lua_half(lua_State *L) {
  open_names(L);
  lua_pushvalue(L, -1);
  gbl_push_module(L, "_native");
  lua_pushvalue(L, -2);
  lua_pushvalue(L, -2);
  lua_pushnil(L);
  lua_pushcclosure(L, run_chunk, 3);
  lua_pushvalue(L, -1);
  lua_setupvalue(L, -2, 3); /* chunks get run itself as their third argument */
  lua_pushliteral(L, "init");
  lua_call(L, 1, 0);
  lua_pop(L, 2);
  lua_pushnil(L);
  lua_setfield(L, -2, "_native");
}

/* ====} */

/* gb.version -> string: The version, such as "0.1.0". Example: print(gb.version)
 * gb._VERSION -> string: The name and the version. Example: print(gb._VERSION) */
static void open_settings(lua_State *L) {
  static const luaL_Reg functions[] = {
    { "is_tensor", is_tensor }, { "manual_seed", manual_seed }, { "seed", seed }, { "get_rng_state", get_rng_state },
    { "set_rng_state", set_rng_state }, { "set_num_threads", set_num_threads }, { "get_num_threads", get_num_threads }, { "device", device },
    { "best_device", best_device }, { "devices", devices }, { "set_default_dtype", set_default_dtype },
    { "set_default_device", set_default_device }, { "get_default_device", get_default_device },
    { "get_default_dtype", get_default_dtype }, { "set_deterministic", set_deterministic },
    { "set_float32_matmul_precision", set_float32_matmul_precision }, { "get_float32_matmul_precision", get_float32_matmul_precision },
    { "set_printoptions", set_printoptions }, { "last_error", last_error },
    { "is_oom", is_oom }, { "memory_stats", memory_stats }, { "reset_peak_memory_stats", reset_peak_memory_stats },
    { "empty_cache", empty_cache }, { "interrupt", interrupt }, { NULL, NULL },
  };
  static const luaL_Reg cuda[] = {
    { "is_available", cuda_is_available }, { "device_count", cuda_device_count }, { "properties", cuda_properties },
    { "synchronize", cuda_synchronize }, { "memory_allocated", cuda_memory_allocated }, { "max_memory_allocated", cuda_max_memory_allocated },
    { "reset_peak_memory_stats", reset_peak_memory_stats }, { "memory_summary", cuda_memory_summary }, { "empty_cache", empty_cache }, { NULL, NULL },
  };
  gbl_set_functions(L, functions);
  gbl_push_module(L, "cuda");
  gbl_set_functions(L, cuda);
  lua_pop(L, 1);
  lua_pushliteral(L, GB_VERSION);
  lua_setfield(L, -2, "version");
  lua_pushliteral(L, "Gibbous " GB_VERSION);
  lua_setfield(L, -2, "_VERSION");
}

GB_API int luaopen_gibbous(lua_State *L) {
  luaL_checkversion(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &gb_key) == LUA_TTABLE) return 1;
  lua_pop(L, 1);
  gbl_open_state(L);
  lua_newtable(L);
  gbl_open_reader(L);
  gbl_open_tensor(L);
  open_settings(L);
  gbl_open_ops(L);
  gbl_open_create(L);
  gbl_open_autograd(L);
  gbl_open_recompute(L);
  gbl_open_modes(L);
  gbl_open_amp(L);
  gbl_open_optim(L);
  gbl_open_data(L);
  gbl_open_io(L);
  gbl_open_interrupt(L);
  gbl_open_host(L);
  gbl_open_native(L);
  gbl_open_capture(L);
  gbl_open_audit(L);
  gbl_open_doctor(L);
  run_lua_half(L);
  seal(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &gb_key);
  return 1;
}
