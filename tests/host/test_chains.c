/* test_chains.c - chains and rings that a recipe builds: they take no more of a thread's stack than one link does, and
 * end with their host.
 *
 * Every recipe here runs in a strict sandbox on a thread with 256 KB of stack. The memory of tensors comes from this
 * file, so that what a closed host still has is counted to the byte. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/sanitizer.h"
#include "open_host.h"

/* The sanitizer's frames are larger. */
#define STACK_BYTES ((size_t)(GB_ADDRESS_SANITIZER ? 1024 : 256) << 10)

/* {==== Memory that is counted ==== */

static atomic_size_t lent;

static void *lend(void *user, size_t bytes, size_t alignment) {
  void *block;
  (void)user;
  if (posix_memalign(&block, alignment, bytes)) return NULL;
  atomic_fetch_add(&lent, bytes);
  return memset(block, 0xa5, bytes);
}

static void take_back(void *user, void *block, size_t bytes) {
  (void)user;
  atomic_fetch_sub(&lent, bytes);
  free(block);
}

/* A strict sandbox over it, without the limits of one: chains are long. */
static gb_host *open_counted(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.tensor_alloc = lend;
  o.tensor_free = take_back;
  o.lua_bytes = o.tensor_bytes = (size_t)4 << 30;
  return open_host(&o);
}

/* ====} */

/* {==== A thread with a small stack ==== */

static void small_stack(void *(*body)(void *), const void *argument) {
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
  CHECK(pthread_create(&thread, &attributes, body, (void *)argument) == 0);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attributes);
}

/* The recipe runs, its host closes, and nothing is left. */
static void *run_and_close(void *text) {
  gb_host *host = open_counted();
  if (!host) return NULL;
  CHECK(runs(host, text));
  gb_host_close(host);
  CHECK(atomic_load(&lent) == 0);
  if (atomic_load(&lent)) fprintf(stderr, "  %zu bytes are left of\n%s\n", atomic_load(&lent), (const char *)text);
  atomic_store(&lent, 0);
  return NULL;
}

/* ====} */

/* {==== Chains ==== */

static const char *const chains[] = {
  /* gradients of gradients, let go of by the collector, and by the end of the host */
  "local x = gb.zeros(1) for i = 1, 400000 do local t = gb.zeros(1) t.grad = x x = t end x = nil collectgarbage()",
  "x = gb.zeros(1) for i = 1, 400000 do local t = gb.zeros(1) t.grad = x x = t end",
  /* through views and their bases */
  "local x = gb.zeros(1) for i = 1, 100000 do local t = gb.zeros(2) local v = t:narrow(1, 1, 1) t.grad = gb.zeros(2) "
  "v.grad = x x = v end\n"
  "x = nil collectgarbage()",
  "local x = gb.zeros(2) for i = 1, 100000 do local t = gb.zeros(2) t.grad = x x = t:narrow(1, 1, 2) end x = nil "
  "collectgarbage()",
  /* gradients that have graphs, whose leaves have gradients */
  "local g = gb.zeros(1) for i = 1, 50000 do local w = gb.zeros(1, { requires_grad = true }) w.grad = g g = w * 2 "
  "end g = nil collectgarbage()",
  /* a long graph with hooks */
  "local x = gb.zeros(1, { requires_grad = true }) for i = 1, 100000 do x = x + 1 x:register_hook(function(g) return "
  "g end) end\n"
  "x = nil collectgarbage()",
  "x = gb.zeros(1, { requires_grad = true }) for i = 1, 100000 do x = x + 1 x:register_hook(function(g) return x and "
  "g end) end",
  /* contexts that hold the result before */
  "local F = gb.Function { forward = function(ctx, a) ctx.held = held return a * 2 end, backward = function(ctx, g) "
  "return g end }\n"
  "local x = gb.zeros(1, { requires_grad = true }) for i = 1, 50000 do x = F(x) held = x end x, held = nil, nil "
  "collectgarbage()",
  /* recomputed parts, each an input of the next */
  "local x = gb.zeros(1, { requires_grad = true }) for i = 1, 20000 do x = gb.recompute(function(a) return a + 1 "
  "end, x) end\n"
  "x:backward() x = nil collectgarbage()",
  /* views of views; parts of parts of datasets, and a loader over them */
  "local x = gb.zeros(4) for i = 1, 200000 do x = x:narrow(1, 1, 4) end x = nil collectgarbage()",
  "local s = gb.data.TensorDataset(gb.arange(10)) for i = 1, 200000 do s = s:subset(1, 10) end "
  "assert(s:get(3):item() == 2)\n"
  "for b in gb.data.DataLoader(s, { batch_size = 5 }):iter() do assert(b:size(1) == 5) end",
  "local s = gb.data.TensorDataset(gb.arange(10)) for i = 1, 100001 do s = s:subset { 10, 9, 8, 7, 6, 5, 4, 3, 2, 1 "
  "} end\n"
  "assert(s:get(1):item() == 9) s = nil collectgarbage()",
};

static void test_chains(void) {
  for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) small_stack(run_and_close, chains[i]);
}

/* ====} */

/* {==== Calls within each other ==== */

/* Each ends with an error that pcall sees, and the recipe goes on. */
static const char *const nested[] = {
  "local function f() string.gsub('a', 'a', f) end assert(not pcall(f))",
  "local m = setmetatable({}, {}) getmetatable(m).__index = function(t) return (string.gsub('a', 'a', t)) end\n"
  "assert(not pcall(string.gsub, 'a', 'a', m))",
  "local m m = setmetatable({}, { __index = function(t) return table.concat(t, '', 1, 1) end }) assert(not "
  "pcall(table.concat, m, '', 1, 1))",
  "local m m = setmetatable({}, { __tostring = function() return string.format('%s', m) end }) assert(not "
  "pcall(tostring, m))",
  "local e local function f() local g, why = load(f) e = e or why end load(f) assert(e)",
  "local function f() table.sort({ 3, 2, 1 }, f) end assert(not pcall(f))",
  "local function f() gb.no_grad(f) end assert(not pcall(f))",
  "local function f() return coroutine.wrap(f)() end assert(not pcall(f))",
  "local x = gb.ones(2, { requires_grad = true }) local function f(x) return gb.recompute(f, x) * 2 end assert(not "
  "pcall(f, x))",
  "local x = gb.ones(2, { requires_grad = true }) local F F = gb.Function { forward = function(c, x) return F(x) "
  "end, backward = print }\n"
  "assert(not pcall(F, x))",
  /* backward within backward, by hooks and by functions */
  "local x = gb.ones(2, { requires_grad = true })\n"
  "local function f() gb.enable_grad(function() local y = (x * 2):sum() y:register_hook(f) y:backward() end) end "
  "assert(not pcall(f))",
  "local x, F = gb.ones(2, { requires_grad = true })\n"
  "F = gb.Function { forward = function(c, x) return x * 2 end,\n"
  "  backward = function(c, g) gb.enable_grad(function() F(x):sum():backward() end) return g end }\n"
  "assert(not pcall(function() F(x):sum():backward() end))",
  /* what takes much of the stack by itself, at every depth of what takes little */
  "local x = gb.rand(300, 300) local ran, refused = 0, 0\n"
  "local function work()\n"
  "  local list = { gb.matmul(x, x), x:sum(1), gb.softmax(x, 1), x:max(1), x:to('float16'):float(), gb.randn(50, 50, "
  "{ dtype = 'float64' }),\n"
  "    gb.nn.functional.max_pool2d(gb.rand(2, 3, 40, 40), 2), gb.sort(x), x:std() }\n"
  "end\n"
  "work() local function f(n) if pcall(work) then ran = ran + 1 else refused = refused + 1 end pcall(f) end f()\n"
  "assert(ran > 50) local function g() xpcall(g, print) pcall(work) end g()",
};

static void test_nesting(void) {
  for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) small_stack(run_and_close, nested[i]);
}

/* ====} */

/* {==== Rings ==== */

/* Each leaves megabytes that hold themselves. */
static const char *const rings[] = {
  "for i = 1, 20 do local x = gb.zeros(500000) x.grad = x end",
  "for i = 1, 20 do local x, y = gb.zeros(500000), gb.zeros(500000) x.grad = y y.grad = x end",
  "local first = gb.zeros(1000) local last = first for i = 1, 10000 do local x = gb.zeros(1000) x.grad = last last = "
  "x end first.grad = last",
  "local x = gb.zeros(1000000) local v = x:narrow(1, 1, 500000) x.grad = x v.grad = v",
  "local w = gb.ones(1000, 1000, { requires_grad = true }) local l = (w * w):sum() l:backward { create_graph = true }",
  "local w = gb.ones(1000, 1000, { requires_grad = true }) local y = w * 2 y:retain_grad() y:backward(gb.ones(1000, "
  "1000), { create_graph = true })\n"
  "y.grad.grad = y",
  "local w = gb.ones(1000, 1000, { requires_grad = true }) w.grad = w * 2",
  "local w = gb.ones(1000, 1000, { requires_grad = true }) local y = w * 2 y:register_hook(function(g) return g + y "
  "end) w.grad = y",
  "local w = gb.ones(1000, 1000, { requires_grad = true }) w:register_hook(function(g) return w end)",
  "local F = gb.Function { forward = function(ctx, a) ctx.own = held return a * 2 end, backward = function(ctx, g) "
  "return ctx.own end }\n"
  "held = gb.ones(1000, 1000, { requires_grad = true }) held.grad = F(held)",
  "local w = gb.nn.Parameter(gb.ones(1000, 1000)) local opt = gb.optim.SGD({ w }, { lr = 0.1 }) local l = (w * "
  "w):sum() l:backward() opt:step()\n"
  "w.grad.grad = w",
  "local w = gb.nn.Parameter(gb.ones(1000, 1000)) local opt = gb.optim.AdamW({ w }, { lr = 0.1 }) local s = "
  "gb.amp.GradScaler()\n"
  "s:scale((w * w):sum()):backward() s:step(opt) s:update() w:register_hook(function() return s and opt and w end)",
  "local x = gb.ones(1000, 1000, { requires_grad = true }) local y y = gb.recompute(function(a) return a * 2, y end, "
  "x) x.grad = y",
  /* a frozen weight that is changed by what was computed from it */
  "local x = gb.ones(100, 100, { requires_grad = true }) local p = gb.nn.Parameter(gb.ones(100, 100), false)\n"
  "gb.amp.autocast('bfloat16', function() local y = gb.matmul(x, p) pcall(p.add_, p, y:float()) end)",
};

static void test_rings(void) {
  for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) small_stack(run_and_close, rings[i]);
}

/* What the program around holds stays: the values, but neither gradient, graph nor hooks. */
static void test_held(void) {
  gb_host *host = open_counted();
  gb_value x = gb_value_nil(), y = gb_value_nil(), grad = gb_value_nil();
  CHECK(runs(host, "x = gb.full({ 1000 }, 3.0, { requires_grad = true }) y = x * x x.grad = y\n"
                   "local function hook(g) return x end x:register_hook(hook) y:register_hook(hook)\n"
                   "big = gb.zeros(1000000) big.grad = big g = gb.full({ 1000 }, 7.0) z = gb.zeros(1000) z.grad = g"));
  CHECK(gb_host_get(host, "x", &x) == GB_OK && gb_host_get(host, "y", &y) == GB_OK);
  CHECK(gb_host_get(host, "g", &grad) == GB_OK);
  gb_host_close(host);
  CHECK(lent > 0 && lent <= (size_t)4 << 20);
  CHECK(((float *)gb_tensor_data(x.as.tensor))[999] == 3 && ((float *)gb_tensor_data(y.as.tensor))[999] == 9);
  CHECK(((float *)gb_tensor_data(grad.as.tensor))[0] == 7);
  CHECK(!gb_tensor_grad(x.as.tensor) && !gb_tensor_requires_grad(y.as.tensor));
  CHECK(gb_backward(y.as.tensor, NULL, false, false) == GB_EAUTOGRAD);
  gb_tensor_release(x.as.tensor);
  gb_tensor_release(y.as.tensor);
  gb_tensor_release(grad.as.tensor);
  CHECK(lent == 0);
}

/* Without a sandbox recipes have finalisers, which run while the host closes; Lua never finalises what they make. */
static void test_finalisers(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.tensor_alloc = lend;
  o.tensor_free = take_back;
  gb_host *host = open_host(&o);
  CHECK(runs(host, "keep = gb.ones(4, { requires_grad = true }) local try = pcall\n"
                   "last = setmetatable({}, { __gc = function()\n"
                   "  try(function() left = gb.zeros(1000000) end)\n"
                   "  try(function() left2 = gb.data.TensorDataset(keep) end)\n"
                   "  try(function() keep.grad = keep end)\n"
                   "  try(function() left3 = gb.amp.GradScaler() end)\n"
                   "  try(function() left4 = gb.optim.SGD({ keep }, { lr = 0.1 }) end)\n"
                   "  try(function() left5 = (keep * 2):sum() left5:backward() end)\n"
                   "end })"));
  gb_host_close(host);
  CHECK(lent == 0);
}

/* An engine without Lua: closing it does the same. */
static void test_engine(void) {
  gb_context_options o;
  gb_context *context;
  gb_tensor *a, *b;
  gb_context_options_init(&o, sizeof o);
  o.alloc = lend;
  o.free = take_back;
  CHECK(gb_context_open(&o, &context) == GB_OK);
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, (int64_t[]){ 1000 }, (gb_device){ GB_CPU, 0 }, &a) == GB_OK);
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, (int64_t[]){ 1000 }, (gb_device){ GB_CPU, 0 }, &b) == GB_OK);
  CHECK(gb_tensor_set_grad(a, b) == GB_OK && gb_tensor_set_grad(b, a) == GB_OK);
  gb_tensor_release(b);
  gb_context_close(context);
  CHECK(!gb_tensor_grad(a) && lent > 0);
  gb_tensor_release(a);
  CHECK(lent == 0);
}

/* ====} */

/* {==== What one host wrote, another does not see ==== */

static const char writes[] =
  "local pattern = 123456789\n"
  "for _, n in ipairs { 1, 60, 1000, 30000, 300000, 1000000, 5000000 } do\n"
  "  local list = {} for i = 1, 12 do list[i] = gb.full({ n }, pattern, { dtype = 'int64' }) end\n"
  "end\n"
  "local w = gb.nn.Linear(300, 300) local o = gb.optim.AdamW(w:parameters(), { lr = 0.1 })\n"
  "w.weight:detach():fill_(123456789) w(gb.ones(2, 300)):sum():backward() o:step()\n"
  "gb.softmax(gb.full({ 300, 300 }, pattern, { dtype = 'float32' }), 1)";

static const char searches[] =
  "local function count(t) return t:eq(123456789):sum():item() end\n"
  "assert(count(gb.full({ 3 }, 123456789, { dtype = 'int64' })) == 3) collectgarbage()\n"
  "for _, dtype in ipairs { 'int64', 'float32' } do\n"
  "  for _, n in ipairs { 5000000, 1000000, 300000, 30000, 1000, 61, 1 } do\n"
  "    local held = {}\n"
  "    for i = 1, 12 do\n"
  "      held[i] = gb.empty_like(gb.empty(n, { dtype = dtype }))\n"
  "      assert(count(held[i]) == 0, 'gb.empty shows what another host wrote')\n"
  "    end\n"
  "  end\n"
  "end";

static void in_turn(const gb_host_options *o) {
  gb_host *first = open_host(o);
  CHECK(runs(first, writes));
  gb_host_close(first);
  gb_host *second = open_host(o);
  CHECK(runs(second, searches));
  gb_host_close(second);
}

/* With the library's memory, and with the program's own, which is not clean. */
static void test_memory(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.seconds = 300;
  for (int round = 0; round < 2; round++) in_turn(&o);
  o.tensor_alloc = lend;
  o.tensor_free = take_back;
  in_turn(&o);
  CHECK(lent == 0);
}

/* ====} */

int main(void) {
  test_chains();
  test_nesting();
  test_rings();
  test_held();
  test_finalisers();
  test_engine();
  test_memory();
  return check_report();
}
