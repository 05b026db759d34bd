/* test_host_faults.c - a host whose n-th allocation fails, Lua's or the engine's, for every n of opening, a small
 * recipe, a call, and closing: a status, an error that says so, a host that goes on, and nothing left. And hosts by the
 * hundred, which leave the memory flat.
 *
 * Lua and the pool both try a failed allocation again after collecting; `twice` makes that second try fail too. Without
 * an argument a part of Lua's allocations is tried and some hundred hosts are opened; `test_host_faults all` tries each
 * and opens ten thousand. */
#include <malloc.h>
#include <stdlib.h>

#include "open_host.h"

static const char recipe[] =
  "local model = gb.nn.Sequential(gb.nn.Linear(4, 4, { activation = 'relu' }), gb.nn.Linear(4, 1))\n"
  "local opt = gb.optim.AdamW(model:parameters(), { lr = 1e-2 })\n"
  "function train(x, config)\n"
  "  opt:zero_grad()\n"
  "  local loss = gb.amp.autocast(function() return model(x):sum() end)\n"
  "  loss:backward() opt:step()\n"
  "  return loss, 'step ' .. config.step, config, coroutine.wrap(function() return helper(7) end)()\n"
  "end\n";

/* An allocator that counts what it has given out and fails one request, and its repetition where `twice` is set. */
typedef struct faulty {
  uint64_t requests, fail_at;   /* counted from 1; 0: never */
  bool twice;
  size_t again;                 /* bytes of the request that failed; 0: its repetition is not waited for */
  int64_t live;
} faulty;

static bool fails_now(faulty *f, size_t bytes) {
  f->requests++;
  if (f->requests == f->fail_at) {
    f->again = f->twice ? bytes : 0;
    return true;
  }
  if (f->again != bytes || !bytes) return false;
  f->again = 0;
  return true;
}

/* Both allocators of a host, told apart by who asks. */
typedef struct memory { faulty lua, engine; } memory;

static void *lua_memory(void *user, void *block, size_t before, size_t bytes) {
  faulty *f = &((memory *)user)->lua;
  if (bytes > before && fails_now(f, bytes)) return NULL;
  f->live += (int64_t)bytes - (int64_t)before;
  if (bytes) return realloc(block, bytes);
  free(block);
  return NULL;
}

static void *engine_alloc(void *user, size_t bytes, size_t alignment) {
  faulty *f = &((memory *)user)->engine;
  void *block = NULL;
  if (fails_now(f, bytes) || posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
    return NULL;
  f->live += (int64_t)bytes;
  return block;
}

static void engine_free(void *user, void *block, size_t bytes) {
  ((memory *)user)->engine.live -= block ? (int64_t)bytes : 0;
  free(block);
}

/* helper(n): n + 1, by the host. */
static gb_status helper(gb_call *call, void *user) {
  gb_value n, out;
  (void)user;
  gb_status status = gb_call_get(call, 0, &n);
  if (status != GB_OK) return status;
  out = gb_value_integer(n.as.integer + 1);
  return gb_call_return(call, &out);
}

/* Register, run, and call with a tensor and a table; the first status that is no success. */
static gb_status use(gb_host *host) {
  gb_tensor *x = NULL;
  gb_value table = gb_value_nil(), key = gb_value_string("step"), step = gb_value_integer(1), out[4];
  gb_status status = gb_host_register(host, "helper", helper, NULL);
  if (status == GB_OK) status = gb_host_run_string(host, recipe, NULL);
  if (status == GB_OK)
    status = gb_tensor_new(gb_host_context(host), GB_FLOAT32, 2, (int64_t[]){ 3, 4 }, (gb_device){ GB_CPU, 0 }, &x);
  if (status == GB_OK) status = gb_tensor_write(x, (float[12]){ 0 }, 48);
  if (status == GB_OK) status = gb_table_new(host, &table);
  if (status == GB_OK) status = gb_table_set(host, &table, &key, &step);
  if (status == GB_OK) status = gb_host_call(host, "train", (gb_value[]){ gb_value_tensor(x), table }, 2, out, 4);
  if (status == GB_OK) {
    CHECK(out[0].type == GB_VALUE_TENSOR && !strcmp(out[1].as.string.data, "step 1") && out[2].type == GB_VALUE_TABLE &&
          out[3].as.integer == 8);
    for (int i = 0; i < 4; i++) gb_value_release(host, &out[i]);
  }
  gb_value_release(host, &table);
  gb_tensor_release(x);
  return status;
}

static bool is_memory(gb_status status) { return status == GB_EMEMORY || status == GB_ELUABYTES; }

/* One host from open to close, with the n-th request of one of the two failing. False, and a line, when something is
 * not as it must be. */
static bool one_run(memory *m, bool sandboxed) {
  gb_host_options o = options_of(sandboxed ? GB_SANDBOX_STRICT : GB_SANDBOX_NONE);
  char why[256] = "";
  gb_host *host = NULL;
  o.lua_alloc = lua_memory;
  o.tensor_alloc = engine_alloc;
  o.tensor_free = engine_free;
  o.alloc_user = m;
  gb_status status = gb_host_open(&o, &host, why, sizeof why);
  bool failed = m->lua.fail_at || m->engine.fail_at, clean = status == GB_OK || (failed && !host && *why);
  if (host) {
    status = use(host);
    clean = status == GB_OK || (failed && is_memory(status) && *gb_host_error(host));
    if (!clean) fprintf(stderr, "  %s: %s\n", gb_status_text(status), gb_host_error(host));
    m->lua.fail_at = m->engine.fail_at = m->lua.again = m->engine.again = 0;
    clean &= use(host) == GB_OK; /* it goes on as if nothing had been */
    gb_host_close(host);
  }
  if (m->lua.live || m->engine.live)
    fprintf(stderr, "  %lld bytes of Lua's and %lld of the engine's are left\n", (long long)m->lua.live,
            (long long)m->engine.live);
  return clean && !m->lua.live && !m->engine.live;
}

static void sweep(bool engine, bool twice, bool sandboxed, uint64_t each, uint64_t stride) {
  memory whole = { .lua = { 0 } };
  CHECK(one_run(&whole, sandboxed));
  uint64_t count = engine ? whole.engine.requests : whole.lua.requests, tried = 0, dirty = 0;
  for (uint64_t n = 1; n <= count; n += n < each ? 1 : stride, tried++) {
    memory m = { .lua = { 0 } };
    faulty *f = engine ? &m.engine : &m.lua;
    f->fail_at = n;
    f->twice = twice;
    if (one_run(&m, sandboxed)) continue;
    if (dirty++ < 10)
      fprintf(stderr, "  when allocation %llu of %s failed%s\n", (unsigned long long)n, engine ? "the engine" : "Lua",
              twice ? ", twice" : "");
  }
  printf("%s%s: %llu of %llu allocations failed in turn\n", engine ? "the engine" : "Lua", twice ? ", twice each" : "",
         (unsigned long long)tried,
         (unsigned long long)count);
  CHECK(count > 0 && dirty == 0);
}

/* {==== Many hosts, one after the other ==== */

/* Bytes that the C library has given out. */
static size_t in_use(void) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33) && !defined(__SANITIZE_ADDRESS__)
  return mallinfo2().uordblks;
#else
  return 0;
#endif
}

static void test_many(int count) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  size_t early = 0, late = 0;
  for (int i = 0; i < count; i++) {
    gb_host *host = NULL;
    char why[128];
    if (gb_host_open(&o, &host, why, sizeof why) != GB_OK) break;
    if (i % 10 == 0) CHECK(use(host) == GB_OK);
    gb_host_close(host);
    if (i == 20) early = in_use();
    late = in_use();
  }
  printf("%d hosts: %lld bytes in use after the first ones, %lld at the end\n", count, (long long)early,
         (long long)late);
  CHECK(late <= early + 4096); /* the C library may keep a buffer of its own; one host leaking a byte would be more */
}

/* ====} */

int main(int argc, char **argv) {
  bool all = argc > 1 && !strcmp(argv[1], "all");
  for (int twice = 0; twice < 2; twice++) {
    sweep(true, twice, false, UINT64_MAX, 1);
    sweep(true, twice, true, UINT64_MAX, 1);
    sweep(false, twice, false, all ? UINT64_MAX : 50, 31);
    sweep(false, twice, true, all ? UINT64_MAX : 50, 29);
  }
  test_many(all ? 10000 : 300);
  return check_report();
}
