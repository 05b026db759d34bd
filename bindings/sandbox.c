/* sandbox.c - what recipes may reach: an allow-list by name.
 *
 * Every name of Lua's libraries and of gb has its row here, with the level up to which it is there; what has none is taken away in every sandbox,
 * so a function that is new is out of reach until somebody has thought about it (tests/host/test_sandbox.c fails until then). Ops need no rows:
 * they come from the table of ops, have no side effects, and count what they allocate. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "guards.h"
#include "host.h"
#include "reader.h"

#define LUA_BYTES ((size_t)256 << 20)     /* the limits of a sandbox that was given none */
#define TENSOR_BYTES ((size_t)1 << 30)
#define FILE_BYTES ((uint64_t)4 << 30)

/* Names of one table, "" for the globals; level: the strictest sandbox that has them. */
static const struct { const char *table; gb_sandbox level; const char *names; } rows[] = {
  { "", GB_SANDBOX_STRICT, "_G _VERSION assert collectgarbage error getmetatable ipairs load next pairs pcall print rawequal rawget rawlen rawset "
                           "require select setmetatable tonumber tostring type warn xpcall coroutine gb math os string table utf8" },
  { "", GB_SANDBOX_FILES, "dofile io loadfile" },
  { "", GB_SANDBOX_NONE, "debug package" },
  { "coroutine", GB_SANDBOX_STRICT, "close create isyieldable resume running status wrap yield" },
  { "math", GB_SANDBOX_STRICT, "abs acos asin atan ceil cos deg exp floor fmod huge log max maxinteger min mininteger modf pi rad random "
                               "randomseed sin sqrt tan tointeger type ult atan2 cosh frexp ldexp log10 pow sinh tanh" },
  /* math: the last eight only where Lua was built for compatibility */
  { "os", GB_SANDBOX_STRICT, "clock date difftime time" },
  { "os", GB_SANDBOX_NONE, "execute exit getenv remove rename setlocale tmpname" },
  { "string", GB_SANDBOX_STRICT, "byte char find format gmatch gsub len lower match pack packsize rep reverse sub unpack upper" },
  { "string", GB_SANDBOX_NONE, "dump" },
  { "table", GB_SANDBOX_STRICT, "concat insert move pack remove sort unpack" },
  { "utf8", GB_SANDBOX_STRICT, "char charpattern codepoint codes len offset" },
  { "io", GB_SANDBOX_FILES, "lines open type" },
  { "io", GB_SANDBOX_NONE, "close flush input output popen read stderr stdin stdout tmpfile write" },
  { "debug", GB_SANDBOX_NONE, "debug gethook getinfo getlocal getmetatable getregistry getupvalue getuservalue setcstacklimit sethook setlocal "
                              "setmetatable setupvalue setuservalue traceback upvalueid upvaluejoin" },
  { "package", GB_SANDBOX_NONE, "config cpath loaded loadlib path preload searchers searchpath" },

  { "gb", GB_SANDBOX_STRICT, "Function _VERSION amp anomaly args best_device clock cuda data device devices enable_grad get_default_device "
                             "get_default_dtype get_float32_matmul_precision get_num_threads get_rng_state grad io is_grad_enabled is_oom "
                             "is_recomputing is_tensor last_error manual_seed memory_stats nn no_grad on_stop optim plot progress recompute seed "
                             "set_default_device set_default_dtype set_deterministic set_float32_matmul_precision set_grad_enabled set_rng_state "
                             "tensor time version rand randn randint randperm rand_like randn_like zeros ones full empty eye arange linspace "
                             "zeros_like ones_like full_like empty_like bernoulli multinomial reset_peak_memory_stats empty_cache stack meshgrid "
                             "random from_bytes to_bytes" },
  { "gb", GB_SANDBOX_FILES, "load save" },
  { "gb", GB_SANDBOX_NONE, "doctor interrupt set_num_threads set_printoptions test" },
  { "gb.amp", GB_SANDBOX_STRICT, "GradScaler audit autocast cache_info disable dtype fp8 grad initialize is_enabled numerics plan policy precision "
                                 "set_autocast set_global_policy" },
  { "gb.cuda", GB_SANDBOX_STRICT, "device_count empty_cache graph is_available max_memory_allocated memory_allocated memory_summary "
                                  "properties reset_peak_memory_stats synchronize" },
  { "gb.data", GB_SANDBOX_STRICT, "DataLoader TensorDataset" },
  { "gb.data", GB_SANDBOX_FILES, "idx mnist text tokens" },
  { "gb.io", GB_SANDBOX_STRICT, "json_decode json_encode" },
  { "gb.io", GB_SANDBOX_FILES, "load_checkpoint save_checkpoint" },
  { "gb.nn", GB_SANDBOX_STRICT, "AdaptiveAvgPool2d AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d Conv2d CrossEntropyLoss Dropout ELU "
                                "Embedding Flatten GELU Identity KLDivLoss L1Loss LayerNorm LeakyReLU Linear LogSoftmax MLP MSELoss MaxPool2d "
                                "Module ModuleDict ModuleList MultiheadAttention NLLLoss Parameter RMSNorm ReLU Sequential SiLU Sigmoid "
                                "SmoothL1Loss Softmax Softplus Tanh functional init is_module library_class utils" },
  { "gb.nn.functional", GB_SANDBOX_STRICT, "" },
  { "gb.nn.init", GB_SANDBOX_STRICT, "calculate_gain constant_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ trunc_normal_ uniform_ "
                                     "xavier_normal_ xavier_uniform_ zeros_" },
  { "gb.nn.utils", GB_SANDBOX_STRICT, "clip_grad_norm_ clip_grad_value_" },
  { "gb.optim", GB_SANDBOX_STRICT, "Adam AdamW SGD lr" },
  { "gb.optim.lr", GB_SANDBOX_STRICT, "Constant Cosine Lambda Linear" },
  { "gb.random", GB_SANDBOX_STRICT, "integer number shuffle" },
  { "gb.test", GB_SANDBOX_NONE, "describe expect finish help_entry it ops program public_names records" },
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Does a list of words hold this one? */
static bool holds(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; length && (at = strstr(at, word)); at += length)
    if ((at == words || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
  return false;
}

int gbl_sandbox_level(const gb_context *context, const char *table, const char *name) {
  for (int i = 0; i < ROWS; i++)
    if (!strcmp(rows[i].table, table) && holds(rows[i].names, name)) return (int)rows[i].level;
  bool has_ops = !strcmp(table, "gb") || !strcmp(table, "gb.nn.functional");
  return has_ops && gb_op_find(context, name) != GB_OP_COUNT ? GB_SANDBOX_STRICT : -1;
}

const char *gbl_sandbox_table(int i) { return i < ROWS ? rows[i].table : NULL; }

/* Take from the table at the top what this level does not have. */
static void filter(lua_State *L, const gb_host *host, const char *table) {
  for (lua_pushnil(L); lua_next(L, -2);) {
    lua_pop(L, 1);
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (gbl_sandbox_level(host->context, table, name) >= (int)host->options.sandbox) continue;
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4); /* an entry may be cleared on the way */
  }
}

/* The folder of GB_SANDBOX_FILES, or nothing at all. */
static void confine_files(lua_State *L, const gb_host *host) {
  gb_file_policy *files = &host->context->files;
  if (host->options.sandbox == GB_SANDBOX_STRICT) files->root = GB_FILES_NONE;
  else {
    int root = open(host->options.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *why = errno == ENOTDIR ? "it is no folder" : "it cannot be read";
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
  gbl_keep_names(L); /* the guarded ones */
}
