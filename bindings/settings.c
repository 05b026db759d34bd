/* settings.c - what a recipe asks of the engine as a whole: random state, threads, devices, defaults, printing, memory,
 * the last error. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host.h"
#include "io/file.h"
#include "objects.h"
#include "reader.h"

/* {==== Random state, threads, devices, settings ==== */

static const char *const category_names[] = { "parameters", "gradients", "optimizer", "weight_copies", "saved", "other",
                                              "scratch" };

static int is_tensor(lua_State *L, gbl_call *call) {
  (void)call;
  lua_pushboolean(L, gbl_test_tensor(L, 1) != NULL);
  return 1;
}

static int manual_seed(lua_State *L, gbl_call *call) {
  (void)L;
  gb_manual_seed(call->state->context, (uint64_t)gbl_integer(call, "seed"));
  gbl_seed_math(L, gbl_integer(call, "seed"));
  return 0;
}

static int seed(lua_State *L, gbl_call *call) {
  uint64_t key, offset;
  gb_get_rng_state(call->state->context, &key, &offset);
  lua_pushinteger(L, (lua_Integer)key);
  return 1;
}

static int get_rng_state(lua_State *L, gbl_call *call) {
  uint64_t key, offset;
  gb_get_rng_state(call->state->context, &key, &offset);
  lua_createtable(L, 0, 2);
  lua_pushinteger(L, (lua_Integer)key);
  gbl_set_raw(L, -2, "seed");
  lua_pushinteger(L, (lua_Integer)offset);
  gbl_set_raw(L, -2, "offset");
  return 1;
}

static int set_rng_state(lua_State *L, gbl_call *call) {
  (void)L;
  gb_set_rng_state(call->state->context, (uint64_t)gbl_integer(call, "seed"), (uint64_t)gbl_integer(call, "offset"));
  return 0;
}

static int set_num_threads(lua_State *L, gbl_call *call) {
  int64_t threads = gbl_integer(call, "threads");
  gbl_check_status(L, gb_set_num_threads(call->state->context, threads < INT32_MAX && threads > 0 ? (int)threads : 0));
  return 0;
}

static int get_num_threads(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, gb_get_num_threads(call->state->context));
  return 1;
}

static int device(lua_State *L, gbl_call *call) {
  gbl_push_device_name(L, gbl_argument(call, "name")->device);
  return 1;
}

static int best_device(lua_State *L, gbl_call *call) {
  const gbl_state *state = call->state;
  const char *chosen = state->host ? state->host->options.device : NULL, *why;
  lua_pushstring(L, chosen ? chosen : gb_context_has_device(state->context, GB_CUDA, &why) ? "cuda" : "cpu");
  return 1;
}

/* How many devices of a kind there are. */
static int count_devices(gb_context *context, int type) {
  const char *why;
  if (!gb_context_has_device(context, type, &why)) return 0;
  return type == GB_CPU ? 1 : context->devices[type];
}

static int devices(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  lua_newtable(L);
  for (int type = 0; type < GB_DEVICE_TYPES; type++)
    for (int i = 0, count = count_devices(context, type); i < count; i++) {
      gbl_push_device_name(L, (gb_device){ (int16_t)type, (int16_t)i });
      lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
  return 1;
}

static int cuda_is_available(lua_State *L, gbl_call *call) {
  const char *why;
  bool there = gb_context_has_device(call->state->context, GB_CUDA, &why);
  lua_pushboolean(L, there);
  if (there) return 1;
  lua_pushstring(L, why);
  return 2;
}

static int cuda_device_count(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, count_devices(call->state->context, GB_CUDA));
  return 1;
}

/* The CUDA device that the argument `device` names, open: "cuda:N" or N; where there is none the default device if that
 * is one, else cuda:0. */
static gb_device check_cuda(lua_State *L, const gbl_call *call) {
  const gbl_value *given = gbl_argument(call, "device");
  gb_context *context = call->state->context;
  gb_device device = call->state->default_device;
  const char *why;
  char name[32] = "cuda";
  if (!gb_context_has_device(context, GB_CUDA, &why)) gbl_refuse(call, "there is no CUDA device: %s", why);
  if (given->given && !strcmp(given->kind, "device")) device = given->device;
  else if (given->given) snprintf(name, sizeof name, "cuda:%" PRId64, given->integer);
  if (given->given ? !strcmp(given->kind, "int") : device.type != GB_CUDA)
    gbl_check_status(L, gb_device_parse(context, name, &device));
  if (device.type != GB_CUDA) gbl_refuse(call, "expects a CUDA device, got '%s'", lua_tostring(L, given->index));
  return device;
}

static int set_default_device(lua_State *L, gbl_call *call) {
  (void)L;
  call->state->default_device = gbl_argument(call, "device")->device;
  return 0;
}

static int get_default_device(lua_State *L, gbl_call *call) {
  gbl_push_device_name(L, call->state->default_device);
  return 1;
}

static int cuda_properties(lua_State *L, gbl_call *call) {
  gb_device device = check_cuda(L, call);
  gb_device_info info = { .name = "" };
  gb_backend *backend = gb_context_backend(call->state->context, device);
  gbl_check_status(L, backend->describe(backend->state, &info));
  lua_createtable(L, 0, 8);
  lua_pushstring(L, info.name);
  gbl_set_raw(L, -2, "name");
  const struct { const char *name; int64_t value; } numbers[] = {
    { "major", info.major }, { "minor", info.minor }, { "multiprocessors", info.multiprocessors },
        { "driver", info.driver },
    { "runtime", info.runtime }, { "total_memory", info.total_memory }, { "free_memory", info.free_memory },
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    lua_pushinteger(L, numbers[i].value);
    gbl_set_raw(L, -2, numbers[i].name);
  }
  return 1;
}

static int cuda_synchronize(lua_State *L, gbl_call *call) {
  const char *why;
  gb_context *context = call->state->context;
  if (!gbl_given(call, "device") && !gb_context_has_device(context, GB_CUDA, &why)) return 0;
  gbl_check_status(L, gb_synchronize(context, check_cuda(L, call)));
  return 0;
}

/* Without a device there is nothing in its memory. */
static gb_memory_stats cuda_stats(lua_State *L, const gbl_call *call) {
  gb_memory_stats stats = { .current_total = 0 };
  const char *why;
  gb_context *context = call->state->context;
  if (gbl_given(call, "device") || gb_context_has_device(context, GB_CUDA, &why))
    gb_memory_get_device_stats(context, check_cuda(L, call), &stats);
  return stats;
}

static int cuda_memory_allocated(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, (lua_Integer)cuda_stats(L, call).current_total);
  return 1;
}

static int cuda_max_memory_allocated(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, (lua_Integer)cuda_stats(L, call).peak_total);
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

static int cuda_memory_summary(lua_State *L, gbl_call *call) {
  gb_device device = check_cuda(L, call);
  gb_context *context = call->state->context;
  gb_backend *backend = gb_context_backend(context, device);
  gb_device_info info = { .name = "" };
  gb_memory_stats stats;
  gb_memory_get_device_stats(context, device, &stats);
  gbl_check_status(L, backend->describe(backend->state, &info));
  char line[128], name[24];
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  snprintf(line, sizeof line, "MiB on %-13s %10s %10s\n", gb_device_text(context, device, name, sizeof name), "now",
           "peak");
  luaL_addstring(&text, line);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++)
    add_row(&text, category_names[i], (double)stats.current[i], (double)stats.peak[i]);
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

/* {---- algorithms of products ---- */

/* What is told of the table, as a table. */
static int push_tuned(lua_State *L, const gb_tuned *tuned) {
  const struct { const char *name; int64_t value; } numbers[] = {
    { "choices", tuned->choices }, { "taken", tuned->taken }, { "refused", tuned->refused },
    { "timed", tuned->timed }, { "improved", tuned->improved },
  };
  lua_createtable(L, 0, 7);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    gbl_set_integer(L, numbers[i].name, numbers[i].value);
  lua_pushnumber(L, tuned->first * 1e-6);
  gbl_set_raw(L, -2, "before");
  lua_pushnumber(L, tuned->best * 1e-6);
  gbl_set_raw(L, -2, "after");
  return 1;
}

static int cuda_tuned(lua_State *L, gbl_call *call) {
  gb_context *context = call->state->context;
  gb_backend *backend = gb_context_backend(context, check_cuda(L, call));
  gb_tuned tuned;
  char *text = NULL;
  size_t bytes = 0;
  if (!backend->tuned) gbl_refuse(call, "the backend of %s has no table of algorithms", backend->name);
  if (gbl_given(call, "file"))
    gbl_check_status(L, gb_file_load(context, gbl_string(call, "file"), &text, &bytes));
  gb_status status = backend->tuned(backend->state, text, bytes, &tuned); /* until text is freed nothing raises */
  if (text) gb_counted_free(text);
  gbl_check_status(L, status);
  return push_tuned(L, &tuned);
}

/* The backend of a device that times products. */
static gb_backend *check_tunable(lua_State *L) {
  gb_backend *backend = gb_context_backend(gbl_context(L), gbl_check_device(L, 1));
  if (!backend->tune) gbl_error(L, "cuda.tune: expects a CUDA device, got '%s'", lua_tostring(L, 1));
  return backend;
}

/* tune(device, on): from now on new products are timed, or no longer. */
static int tune(lua_State *L) {
  gb_backend *backend = check_tunable(L);
  return gbl_check_status(L, backend->tune(backend->state, lua_toboolean(L, 2)));
}

/* tuned_write(device, path): write the table to a file, and tell of it. */
static int tuned_write(lua_State *L) {
  gb_backend *backend = check_tunable(L);
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 2, "cuda.tune");
  gb_file_writer *file = NULL;
  gb_tuned tuned;
  gbl_check_status(L, backend->tuned(backend->state, NULL, 0, &tuned));
  size_t bytes = backend->tuned_text(backend->state, NULL, 0);
  char *text = lua_newuserdatauv(L, bytes + 1, 0);
  backend->tuned_text(backend->state, text, bytes + 1);
  gbl_check_status(L, gb_file_create(context, path, &file));
  gb_status status = gb_file_write(file, text, bytes);
  if (status == GB_OK) status = gb_file_commit(file);
  else gb_file_abandon(file);
  gbl_check_status(L, status);
  return push_tuned(L, &tuned);
}

/* ----} */

static int set_default_dtype(lua_State *L, gbl_call *call) {
  (void)L;
  gb_dtype dtype = gbl_argument(call, "dtype")->dtype;
  if (!gb_dtype_is_float(dtype)) return gbl_refuse(call, "expects a floating dtype, got '%s'", gb_dtype_name(dtype));
  call->state->default_dtype = dtype;
  return 0;
}

static int get_default_dtype(lua_State *L, gbl_call *call) {
  gbl_push_dtype_name(L, call->state->default_dtype);
  return 1;
}

static int set_deterministic(lua_State *L, gbl_call *call) {
  (void)L;
  call->state->context->nondeterministic = !gbl_boolean(call, "value");
  return 0;
}

static int set_float32_matmul_precision(lua_State *L, gbl_call *call) {
  (void)L;
  call->state->context->tf32 = !strcmp(gbl_string(call, "name"), "high");
  return 0;
}

static int get_float32_matmul_precision(lua_State *L, gbl_call *call) {
  lua_pushstring(L, call->state->context->tf32 ? "high" : "highest");
  return 1;
}

/* An option, or what holds where it is not given. */
static int64_t given_or(const gbl_call *call, const char *name, int64_t otherwise) {
  return gbl_given(call, name) ? gbl_integer(call, name) : otherwise;
}

static int set_printoptions(lua_State *L, gbl_call *call) {
  (void)L;
  gb_print_options options = call->state->print, *print = &options;
  const char *profile = gbl_given(call, "profile") ? gbl_string(call, "profile") : NULL;
  if (profile) { /* PyTorch's, which the other options change */
    bool is_short = !strcmp(profile, "short");
    print->precision = is_short ? 2 : 4;
    print->threshold = !strcmp(profile, "full") ? INT64_MAX : 1000;
    print->edge_items = is_short ? 2 : 3;
    print->line_width = 80;
  }
  int64_t precision = given_or(call, "precision", print->precision),
      width = given_or(call, "line_width", print->line_width);
  int64_t threshold = given_or(call, "threshold", print->threshold),
      edge = given_or(call, "edge_items", print->edge_items);
  if (precision < 0 || precision > 17)
    return gbl_refuse(call, "'precision' is 0 .. 17 digits, got %" PRId64, precision);
  if (width < 10 || width > 10000) return gbl_refuse(call, "'line_width' is 10 .. 10000, got %" PRId64, width);
  if (threshold < 0) return gbl_refuse(call, "'threshold' is 0 or more elements, got %" PRId64, threshold);
  if (edge < 1 || edge > 1000000) return gbl_refuse(call, "'edge_items' is 1 .. 1000000, got %" PRId64, edge);
  print->precision = (int)precision;
  print->line_width = (int)width;
  print->threshold = threshold;
  print->edge_items = edge;
  const gbl_value *scientific = gbl_argument(call, "scientific");
  if (scientific->given && strcmp(scientific->kind, "bool")) print->scientific = GB_SCIENTIFIC_AUTO;
  else if (scientific->given) print->scientific = scientific->integer ? GB_SCIENTIFIC_ALWAYS : GB_SCIENTIFIC_NEVER;
  call->state->print = options;
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

static int last_error(lua_State *L, gbl_call *call) {
  const gb_context *context = call->state->context;
  if (gb_error_code(context) == GB_OK) return 0;
  lua_createtable(L, 0, 3);
  lua_pushstring(L, status_code(gb_error_code(context)));
  gbl_set_raw(L, -2, "code");
  lua_pushstring(L, gb_error_op(context));
  gbl_set_raw(L, -2, "op");
  lua_pushstring(L, gb_error(context));
  gbl_set_raw(L, -2, "message");
  return 1;
}

static int is_oom(lua_State *L, gbl_call *call) {
  (void)call;
  const char *text = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : "";
  lua_pushboolean(L, strstr(text, "out of memory: ") || strstr(text, "not enough memory"));
  return 1;
}

static void push_categories(lua_State *L, const size_t bytes[GB_MEM_CATEGORIES]) {
  lua_createtable(L, 0, GB_MEM_CATEGORIES);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) gbl_set_integer(L, category_names[i], (int64_t)bytes[i]);
}

static int memory_stats(lua_State *L, gbl_call *call) {
  gb_memory_stats stats;
  const gbl_value *device = gbl_argument(call, "device");
  if (device->given) gb_memory_get_device_stats(call->state->context, device->device, &stats);
  else gb_memory_get_stats(call->state->context, &stats);
  lua_createtable(L, 0, 8);
  push_categories(L, stats.current);
  gbl_set_raw(L, -2, "current");
  push_categories(L, stats.peak);
  gbl_set_raw(L, -2, "peak");
  gbl_set_integer(L, "current_total", (int64_t)stats.current_total);
  gbl_set_integer(L, "peak_total", (int64_t)stats.peak_total);
  gbl_set_integer(L, "reserved", (int64_t)stats.reserved);
  gbl_set_integer(L, "peak_reserved", (int64_t)stats.peak_reserved);
  gbl_set_integer(L, "allocations", (int64_t)stats.allocations);
  gbl_set_integer(L, "system_allocations", (int64_t)stats.system_allocations);
  return 1;
}

static int reset_peak_memory_stats(lua_State *L, gbl_call *call) {
  (void)L;
  gb_memory_reset_peaks(call->state->context);
  return 0;
}

static int empty_cache(lua_State *L, gbl_call *call) {
  (void)L;
  gb_memory_empty_cache(call->state->context);
  return 0;
}

static int interrupt(lua_State *L, gbl_call *call) {
  (void)L;
  if (gbl_boolean(call, "on")) gb_interrupt(call->state->context);
  else gb_interrupt_clear(call->state->context);
  return 0;
}

/* ====} */

static const gbl_function functions[] = {
  { is_tensor, GB_SANDBOX_STRICT,
    "gb.is_tensor(value?: any) -> bool: Is value a tensor that was not freed? Example: "
    "print(gb.is_tensor(gb.zeros(2)))" },
  { manual_seed, GB_SANDBOX_STRICT,
    "gb.manual_seed(seed: int): Begin the random stream anew from seed: the same seed gives the same bits. It seeds "
    "math.random too, whose state no checkpoint can keep; gb.random draws from the stream. "
    "Example: gb.manual_seed(1)" },
  { seed, GB_SANDBOX_STRICT,
    "gb.seed() -> int: The seed of the random stream. Example: print(gb.seed())" },
  { get_rng_state, GB_SANDBOX_STRICT,
    "gb.get_rng_state() -> table: The random stream, which is two integers: { seed =, offset = }. Example: local "
    "state = gb.get_rng_state()" },
  { set_rng_state, GB_SANDBOX_STRICT,
    "gb.set_rng_state(; seed: int, offset: int): Go on from where get_rng_state was asked. Example: "
    "gb.set_rng_state(gb.get_rng_state())" },
  { set_num_threads, GB_SANDBOX_NONE,
    "gb.set_num_threads(threads: int): How many threads run the kernels; results do not depend on it. Errors: fewer "
    "than 1. Example: gb.set_num_threads(2)" },
  { get_num_threads, GB_SANDBOX_STRICT,
    "gb.get_num_threads() -> int: How many threads run the kernels. Example: print(gb.get_num_threads())" },
  { device, GB_SANDBOX_STRICT,
    "gb.device(name: device) -> string: The full name of a device, such as cuda:0 for cuda. Errors: a device that "
    "is not there, with the reason. Example: print(gb.device(\"cpu\"))" },
  { best_device, GB_SANDBOX_STRICT,
    "gb.best_device() -> string: The host's choice if it made one, else cuda if there is one, else "
    "cpu. Example: local x = gb.zeros(2, { device = gb.best_device() })" },
  { devices, GB_SANDBOX_STRICT,
    "gb.devices() -> list: The names of the devices that are there. Example: print(table.concat(gb.devices(), \", "
    "\"))" },
  { set_default_device, GB_SANDBOX_STRICT,
    "gb.set_default_device(device: device): Make tensors on this device by default. Example: "
    "gb.set_default_device(\"cpu\")" },
  { get_default_device, GB_SANDBOX_STRICT,
    "gb.get_default_device() -> string: The device where tensors are made by default. Example: "
    "print(gb.get_default_device())" },
  { set_default_dtype, GB_SANDBOX_STRICT,
    "gb.set_default_dtype(dtype: dtype): The dtype that new floating tensors have; float32 at first. Errors: a "
    "dtype that is not floating. Example: gb.set_default_dtype(\"float32\")" },
  { get_default_dtype, GB_SANDBOX_STRICT,
    "gb.get_default_dtype() -> string: The dtype that new floating tensors have. Example: "
    "print(gb.get_default_dtype())" },
  { set_deterministic, GB_SANDBOX_STRICT,
    "gb.set_deterministic(value: bool): Whether only kernels that give the same bits each time may run, as is so "
    "from the start. With false some gradients on CUDA, such as those of 16-bit attention, come from kernels of cuDNN "
    "that take less memory and add up in an order that changes. Example: gb.set_deterministic(true)" },
  { set_float32_matmul_precision, GB_SANDBOX_STRICT,
    "gb.set_float32_matmul_precision(name: \"highest\"|\"high\"): \"highest\", or \"high\": matmul, linear, mlp, "
    "conv2d and attention, and their gradients, round float32 operands to 10 bits of mantissa (TF32) and sum in "
    "float32. Example: gb.set_float32_matmul_precision(\"highest\")" },
  { get_float32_matmul_precision, GB_SANDBOX_STRICT,
    "gb.get_float32_matmul_precision() -> string: \"highest\" or \"high\". Example: "
    "print(gb.get_float32_matmul_precision())" },
  { set_printoptions, GB_SANDBOX_NONE,
    "gb.set_printoptions(; precision?: int, threshold?: int, edge_items?: int, line_width?: int, scientific?: "
    "bool|\"auto\", profile?: \"default\"|\"short\"|\"full\"): How tensors are printed: precision in digits, threshold "
    "the elements that are shown in full. "
    "profile: several at once, before the others: full shows all elements, short few digits and few of them. "
    "Example: gb.set_printoptions { precision = 4 }" },
  { last_error, GB_SANDBOX_STRICT,
    "gb.last_error() -> table: The engine's last failure: { code = \"ESHAPE\", op = \"matmul\", message = }, or "
    "nil. Example: local failure = gb.last_error()" },
  { is_oom, GB_SANDBOX_STRICT,
    "gb.is_oom(message?: any) -> bool: Is this the error of an allocation that failed, the engine's or Lua's? "
    "Example: local ok, why = pcall(gb.zeros, 2) if not ok and gb.is_oom(why) then gb.empty_cache() end" },
  { memory_stats, GB_SANDBOX_STRICT,
    "gb.memory_stats(device?: device) -> table: Bytes in tensors now and at the peak, by category, and what the "
    "pool holds of the system's memory, of one device or of all together: current, peak (tables by category), "
    "current_total, peak_total, reserved, peak_reserved, allocations, system_allocations. Example: "
    "print(gb.memory_stats().peak_total)" },
  { reset_peak_memory_stats, GB_SANDBOX_STRICT,
    "gb.reset_peak_memory_stats(): Reset the peaks of memory_stats to what is in use now. Example: "
    "gb.reset_peak_memory_stats()" },
  { empty_cache, GB_SANDBOX_STRICT,
    "gb.empty_cache(): Return unused cached memory to the system. Example: gb.empty_cache()" },
  { interrupt, GB_SANDBOX_NONE,
    "gb.interrupt(on: bool = true): The next op fails with \"interrupted\", and every one after it, until "
    "gb.interrupt(false). Example: gb.interrupt(false)" },
  { NULL, 0, NULL },
};

static const gbl_function cuda_functions[] = {
  { cuda_is_available, GB_SANDBOX_STRICT,
    "gb.cuda.is_available() -> bool, string: Can a CUDA device be used? Where not, also why. Example: "
    "print(gb.cuda.is_available())" },
  { cuda_device_count, GB_SANDBOX_STRICT,
    "gb.cuda.device_count() -> int: How many CUDA devices can be used. Example: print(gb.cuda.device_count())" },
  { cuda_properties, GB_SANDBOX_STRICT,
    "gb.cuda.properties(device?: int|device) -> table: What the device is: name, major and minor (of its compute "
    "capability), multiprocessors, driver, runtime, total_memory and free_memory in bytes. The device is \"cuda:N\" "
    "or N; else the default one, where that is a CUDA device, or cuda:0. Errors: there is no CUDA device. Example: "
    "if gb.cuda.is_available() then print(gb.cuda.properties().name) end" },
  { cuda_synchronize, GB_SANDBOX_STRICT,
    "gb.cuda.synchronize(device?: int|device): Wait until the device has finished. Errors: what a "
    "kernel found wrong in data, by its op; what else failed on the device since the last wait. Example: if "
    "gb.cuda.is_available() then gb.cuda.synchronize() end" },
  { cuda_memory_allocated, GB_SANDBOX_STRICT,
    "gb.cuda.memory_allocated(device?: int|device) -> int: Bytes in tensors on the device. Example: "
    "print(gb.cuda.memory_allocated())" },
  { cuda_max_memory_allocated, GB_SANDBOX_STRICT,
    "gb.cuda.max_memory_allocated(device?: int|device) -> int: The most bytes that were in tensors on the device at "
    "once. Example: print(gb.cuda.max_memory_allocated())" },
  { cuda_memory_summary, GB_SANDBOX_STRICT,
    "gb.cuda.memory_summary(device?: int|device) -> string: Where the device's memory is, for people: MiB in "
    "tensors now and at the peak, by category; what the pool has of the system, what of that is cached and what "
    "belongs to captured graphs; what uploads pass through; what the whole device has left; and how often memory "
    "was asked for. Example: if gb.cuda.is_available() then print(gb.cuda.memory_summary()) end" },
  { cuda_tuned, GB_SANDBOX_NONE,
    "gb.cuda.tuned(file?: path; device?: int|device) -> table: Take algorithms of products from a file that "
    "gb.cuda.tune wrote, from the next product on, and tell what there is: choices (of the library's version and the "
    "device at hand; those for others are passed over), taken and refused (by shapes that were multiplied since; one "
    "that the library says does not run is refused, and its own choice runs). GIBBOUS_CUDA_TUNED names a file from "
    "outside. Errors: a file that is no such table, and why; there is no CUDA device. Example: if "
    "gb.cuda.is_available() then print(gb.cuda.tuned().choices) end" },
  { reset_peak_memory_stats, GB_SANDBOX_STRICT,
    "gb.cuda.reset_peak_memory_stats(): max_memory_allocated begins again from what is held now. Example: "
    "gb.cuda.reset_peak_memory_stats()" },
  { empty_cache, GB_SANDBOX_STRICT,
    "gb.cuda.empty_cache(): Return unused cached memory to the device. Example: gb.cuda.empty_cache()" },
  { NULL, 0, NULL },
};

static const char *const field_records[] = {
  "gb.version -> string: The version, such as \"0.1.0\". Example: print(gb.version)",
  "gb._VERSION -> string: The name and the version. Example: print(gb._VERSION)", NULL,
};

void gbl_open_settings(lua_State *L) {
  gbl_define(L, functions);
  gbl_push_module(L, "cuda");
  gbl_define(L, cuda_functions);
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "tune", tune }, { "tuned_write", tuned_write }, { NULL, NULL } });
  lua_pop(L, 1);
  lua_pushliteral(L, GB_VERSION);
  gbl_set_raw(L, -2, "version");
  lua_pushliteral(L, "Gibbous " GB_VERSION);
  gbl_set_raw(L, -2, "_VERSION");
  gbl_describe(L, field_records);
}
