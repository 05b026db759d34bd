/* test_faults.c - a recipe whose n-th allocation fails, for every n: of the memory beneath the pool, of the pool, of
 * the engine's own small structures, and of Lua.
 *
 * The recipe opens the library, builds two layers, trains two steps in 16-mixed, one of them with recomputed
 * activations, audits a pass through them, and writes a checkpoint. Wherever memory ends, it must end in a Lua error
 * that says so, or go on unharmed; the universe stays usable, and once it is closed nothing is left of it, nor counted
 * towards the limit on tensor bytes. The engine's calls of malloc and its kin are caught by the linker (--wrap); those
 * of other libraries are not. Lua and the pool both try a failed allocation again, after collecting: `retry` says
 * whether that second try fails as well. Without an argument only some n of Lua's are tried, the first ones and every
 * few; `test_faults few` does so with all, `test_faults all` tries each. */
#include <lualib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "binding.h"
#include "check.h"
#include "device.h"

static const char recipe[] =
  ON_TEST_DEVICE
  "local gb = require 'gibbous'\n"
  "local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim\n"
  "gb.manual_seed(1)\n"
  "local model = nn.Sequential(nn.Linear(8, 8, { activation = 'relu' }), nn.Linear(8, 8))\n"
  "local precision = amp.precision('16-mixed')\n"
  "local opt, scaler = optim.AdamW(model:parameters(), { lr = 1e-2 }), amp.GradScaler(precision)\n"
  "local x, y = gb.randn(4, 8), gb.tensor({ 0, 1, 2, 3 })\n"
  "for step = 1, 2 do\n"
  "  opt:zero_grad()\n"
  "  local loss = amp.autocast(precision, function() return F.cross_entropy(step == 1 and model(x) or "
  "gb.recompute(model, x), y) end)\n"
  "  scaler:scale(loss):backward()\n"
  "  scaler:unscale_(opt)\n"
  "  nn.utils.clip_grad_norm_(model:parameters(), 1.0)\n"
  "  scaler:step(opt)\n"
  "  scaler:update()\n"
  "end\n"
  "amp.audit(model, function(m) m(x):sum():backward() end, { precision = precision, print = false })\n"
  "gb.io.save_checkpoint(checkpoint, { model = model, optimizer = opt, scaler = scaler })\n"
  "leaf = gb.tensor({ 1.0, 2.0, 3.0 }):requires_grad_()\n"
  "base = leaf * 1\n"
  "part = base:narrow(1, 2, 1)\n"
  "part:exp_()\n";

/* What must still work in a universe that has run out of memory once: an op, a gradient, no scope left open; the
 * checkpoint is whole, and a view that was changed in place has the history of what it holds. */
static const char after[] =
  "local gb = require 'gibbous'\n"
  ON_TEST_DEVICE
  "gb.set_rng_state { seed = 1, offset = 0 }\n"
  "assert(not gb.amp.is_enabled() and gb.is_grad_enabled(), 'a scope was left open')\n"
  "local x = gb.tensor({ 1.0, 2.0 }):requires_grad_()\n"
  ";(x * x):sum():backward()\n"
  "assert(x.grad[2]:item() == 4 and (x + x).dtype == 'float32')\n"
  "assert(#gb.amp.audit(gb.nn.Identity(), function() return x + x end, { print = false }).rows == 1, 'an audit was "
  "left behind')\n"
  "local file = io.open(checkpoint)\n"
  "if file then file:close() gb.load(checkpoint) end\n"
  "if part then\n"
  "  local value, slope = base[2]:item(), gb.grad(base:sum(), { leaf })[1][2]:item()\n"
  "  assert(slope == (value == 2 and 1 or value), 'the values of a view changed, its history did not')\n"
  "end\n";

/* An allocator that counts what it has given out, and fails the n-th request from now, and its repetition where `retry`
 * is set. */
typedef struct faulty {
  uint64_t requests, fail_at;   /* counted from 1; fail_at 0: never */
  bool retry;
  size_t again;                 /* bytes of the request that failed, to know its repetition; 0: done */
  int64_t live;                 /* bytes given out */
} faulty;

/* Does this request fail? */
static bool fails(faulty *f, size_t bytes) {
  f->requests++;
  if (f->requests == f->fail_at) {
    f->again = f->retry ? bytes : 0;
    return true;
  }
  if (f->again != bytes || !bytes) return false;
  f->again = 0;
  return true;
}

/* {---- the engine's malloc: the linker leads its calls here, and ours too; only those of an armed run are counted ----
 * */

static faulty *heap;            /* of the run at work, or NULL */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
char *__wrap_strdup(const char *text);

static bool heap_fails(void) { return heap && fails(heap, 0); }

void *__wrap_malloc(size_t bytes) { return heap_fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return heap_fails() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *block, size_t bytes) { return heap_fails() ? NULL : __real_realloc(block, bytes); }
char *__wrap_strdup(const char *text) { return heap_fails() ? NULL : __real_strdup(text); }

/* ----} */

/* lua_Alloc; shrinking never fails, as Lua asks. */
static void *lua_memory(void *user, void *block, size_t before, size_t bytes) {
  faulty *f = user;
  if (!block) before = 0;
  if (bytes == 0) {
    free(block);
    f->live -= (int64_t)before;
    return NULL;
  }
  if (bytes > before && fails(f, bytes)) return NULL;
  void *fresh = __real_realloc(block, bytes);
  if (fresh) f->live += (int64_t)bytes - (int64_t)before;
  return fresh;
}

static void *engine_alloc(void *user, size_t bytes, size_t alignment) {
  faulty *f = user;
  void *block = NULL;
  if (fails(f, bytes) || posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
    return NULL;
  f->live += (int64_t)bytes;
  return block;
}

static void engine_free(void *user, void *block, size_t bytes) {
  ((faulty *)user)->live -= block ? (int64_t)bytes : 0;
  free(block);
}

/* What fails in a run, and how. */
typedef enum fault { IN_LUA, IN_SYSTEM, IN_POOL, IN_HEAP, SOURCES } fault;
typedef struct run {
  fault source;
  bool retry;
  uint64_t n;                   /* which allocation; 0: none */
  faulty lua, engine, heap;
  gb_context_options options;
  const char *checkpoint;
  gb_context *context;          /* held beyond the universe; NULL: it never opened */
  bool clean;                   /* out: is everything as it must be */
  uint64_t count;               /* out: allocations of that kind in the whole run */
} run;

/* Asked when the pool has failed, before it tries again: let that fail too. */
static void fail_again(void *state) { gb_pool_fail_after(((gbl_state *)state)->context->pool[test_device().type], 1); }

/* luaopen_gibbous with the run's options; the pool, which is younger than the universe, is armed as soon as it is
 * there. */
static int open_armed(lua_State *L) {
  run *r = lua_touserdata(L, lua_upvalueindex(1));
  gbl_set_context_options(L, &r->options);
  luaopen_gibbous(L);
  gb_context *context = gbl_context(L);
  gb_context_retain(r->context = context);
  context->cells.most = 0; /* so that every struct comes from the heap, and may fail to */
  if (r->source != IN_POOL || !r->n) return 1;
  need_test_device(context);
  if (r->retry) context->reclaim = fail_again; /* its user stays the state, which the bindings find there */
  gb_pool_fail_after(context->pool[test_device().type], r->n);
  return 1;
}

/* Open Lua's own library and make require "gibbous" find ours; a protected call, since all of it allocates. */
static int prepare(lua_State *L) {
  run *r = lua_touserdata(L, 1);
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushlightuserdata(L, r);
  lua_pushcclosure(L, open_armed, 1);
  lua_setfield(L, -2, "gibbous");
  lua_pushstring(L, r->checkpoint);
  lua_setglobal(L, "checkpoint");
  return 0;
}

static int status_of(lua_State *L, lua_CFunction function, void *argument) {
  lua_pushcfunction(L, function);
  lua_pushlightuserdata(L, argument);
  return lua_pcall(L, 1, 0, 0);
}

static int do_text(lua_State *L) {
  if (luaL_loadstring(L, lua_touserdata(L, 1)) != LUA_OK) return lua_error(L);
  lua_call(L, 0, 0);
  return 0;
}

/* The text of the error at the top of the stack, shown where it is not about memory. */
static bool about_memory(lua_State *L) {
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is no text";
  bool right = strstr(text, "memory") != NULL;
  if (!right) fprintf(stderr, "  the error says '%s'\n", text);
  return right;
}

/* Nothing fails any more. */
static int disarm(lua_State *L) {
  run *r = lua_touserdata(L, 1);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  bool open = lua_getfield(L, -1, "gibbous") == LUA_TTABLE;
  lua_pop(L, 2);
  if (r->source != IN_POOL || !open) return 0;
  gb_context *context = gbl_context(L);
  gb_memory_stats stats;
  gb_memory_get_device_stats(context, test_device(), &stats);
  r->count = stats.allocations;
  gb_pool_fail_after(context->pool[test_device().type], 0);
  return 0;
}

/* One universe, from its first allocation to its last. */
static void one_run(run *r) {
  int status = LUA_ERRMEM;
  r->engine.retry = r->lua.retry = r->retry;
  faulty *sources[SOURCES] = { [IN_LUA] = &r->lua, [IN_SYSTEM] = &r->engine, [IN_HEAP] = &r->heap };
  if (sources[r->source]) sources[r->source]->fail_at = r->n;
  gb_context_options_init(&r->options, sizeof r->options);
  r->options.threads = 1;
  r->options.plugins = getenv("GIBBOUS_PLUGINS");
  r->options.tensor_bytes = (size_t)1 << 40; /* so that bytes are counted */
  r->options.alloc = engine_alloc;
  r->options.free = engine_free;
  r->options.alloc_user = &r->engine;
  r->clean = true;
  unlink(r->checkpoint);
  heap = &r->heap;
  lua_State *L = lua_newstate(lua_memory, &r->lua);
  if (L) {
    status = status_of(L, prepare, r);
    bool prepared = status == LUA_OK;
    if (prepared) status = status_of(L, do_text, (void *)recipe);
    if (status != LUA_OK) r->clean &= about_memory(L);
    lua_settop(L, 0);
    heap = NULL;
    r->lua.fail_at = r->engine.fail_at = 0;
    r->lua.again = r->engine.again = 0;
    r->clean &= status_of(L, disarm, r) == LUA_OK;
    if (prepared && status_of(L, do_text, (void *)after) != LUA_OK) {
      fprintf(stderr, "  afterwards: %s\n", lua_tostring(L, -1));
      r->clean = false;
    }
    lua_close(L);
  }
  heap = NULL;
  if (r->context) {
    size_t counted = atomic_load(&r->context->budget.used);
    if (counted) fprintf(stderr, "  %zu bytes are still counted towards the limit\n", counted);
    r->clean &= counted == 0;
    gb_context_release(r->context);
  }
  if (r->lua.live || r->engine.live) {
    fprintf(stderr, "  %lld bytes of Lua's and %lld of the engine's are left\n", (long long)r->lua.live,
            (long long)r->engine.live);
    r->clean = false;
  }
  if (sources[r->source]) r->count = sources[r->source]->requests;
  /* the second try serves it, or fails too */
  if (r->source == IN_POOL && r->n) r->clean &= (status == LUA_OK) == !r->retry;
  if (!r->n) r->clean &= status == LUA_OK;
}

/* Fail the first `each` allocations one by one, and then every stride-th. */
static void sweep(fault source, bool retry, uint64_t each, uint64_t stride) {
  static const char *const names[SOURCES] = { "Lua", "the system", "the pool", "the engine's heap" };
  char path[] = "/tmp/gibbous-faults-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  if (fd < 0) return;
  close(fd);
  run whole = { .source = source, .checkpoint = path };
  one_run(&whole);
  CHECK(whole.clean && whole.count > 0);
  uint64_t tried = 0, dirty = 0;
  for (uint64_t n = 1; n <= whole.count; n += n < each ? 1 : stride, tried++) {
    run r = { .source = source, .retry = retry, .n = n, .checkpoint = path };
    one_run(&r);
    if (r.clean) continue;
    if (dirty++ < 10)
      fprintf(stderr, "  when allocation %llu of %s failed%s\n", (unsigned long long)n, names[source],
              retry ? ", twice" : "");
  }
  printf("%s%s: %llu of %llu allocations failed in turn\n", names[source], retry ? ", twice each" : "",
         (unsigned long long)tried,
         (unsigned long long)whole.count);
  CHECK(dirty == 0);
  char temporary[sizeof path + 4];
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  CHECK(access(temporary, F_OK)); /* no failed save has left one */
  unlink(path);
}

int main(int argc, char **argv) {
  /* how many at first one by one, then every how many, of Lua's and of the others */
  static const struct {
    const char *name;
    uint64_t each, stride, lua_stride, lua_twice_stride;
  } extents[] = { { "usual", 50, 1, 29, 11 }, { "few", 10, 7, 97, 97 }, { "all", 0, 1, 1, 1 } };
  size_t e = 0;
  while (argc > 1 && e < 3 && strcmp(argv[1], extents[e].name)) e++;
  CHECK(e < 3);
  if (e == 3) return check_report();
  for (fault source = IN_SYSTEM; source <= IN_HEAP; source++)
    for (int retry = 0; retry <= (source != IN_HEAP); retry++)
      sweep(source, retry, extents[e].each, extents[e].stride);
  sweep(IN_LUA, false, extents[e].each, extents[e].lua_stride);
  sweep(IN_LUA, true, 4 * extents[e].each, extents[e].lua_twice_stride);
  return check_report();
}
