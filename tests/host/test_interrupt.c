/* test_interrupt.c - one signal stops what runs, wherever it loops: in coroutines, in pcalls, in handlers, in what
 * closes. The program ends only if every loop does; afterwards every scope is closed, no hook is left, and the universe
 * goes on.
 *
 * A thread sends SIGUSR1 to this one, whose handler makes the request, as the executable does with SIGINT. */
#include <lualib.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "binding.h"
#include "check.h"

/* Each runs for ever, and prints nothing. */
static const char *const loops[] = {
  "while true do end",
  "coroutine.wrap(function() while true do end end)()",
  "coroutine.resume(coroutine.create(function() while true do end end)) while true do end",
  "while true do pcall(function() while true do end end) end",
  "while true do coroutine.wrap(function() pcall(coroutine.wrap(function() while true do pcall(error) end end)) "
  "while true do end end)() end",
  "local function nest(n) if n == 0 then while true do end end coroutine.wrap(function() pcall(nest, n - 1) while "
  "true do end end)() end nest(20)",
  "while true do xpcall(function() while true do end end, function() while true do end end) end",
  "xpcall(error, function() while true do end end) while true do end",
  "local function f() local _ <close> = setmetatable({}, { __close = function() while true do end end }) while true "
  "do end end pcall(f) f()",
  "local co = coroutine.create(function() local _ <close> = setmetatable({}, { __close = function() while true do "
  "end end }) coroutine.yield() end)\n"
  "coroutine.resume(co) coroutine.close(co) while true do end",
  "coroutine.wrap(function() local _ <close> = setmetatable({}, { __close = function() while true do end end }) "
  "error() end)()",
  "setmetatable({}, { __index = function() while true do end end })[1]()",
  "table.sort({ 3, 1, 2 }, function() while true do end end)",
  "string.gsub(('a'):rep(10), 'a', function() while true do end end)",
  "while true do load(function() while true do end end) end",
  "gb.no_grad(function() while true do local _ <close> = gb.no_grad() pcall(function() gb.no_grad(function() while "
  "true do end end) end) end end)",
  "local x = gb.ones(16, 16):requires_grad_()\n"
  "while true do pcall(function() while true do gb.matmul(x, x):sum():backward() end end) end",
  "local model = gb.nn.Linear(4, 4)\nlocal opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })\n"
  "while true do opt:zero_grad() local loss = gb.amp.autocast(function() return model(gb.randn(2, 4)):sum() end) "
  "loss:backward() opt:step() end",
  "local f = gb.nn.Module:extend('Loop')\nfunction f:forward(x) while true do pcall(function() while true do end "
  "end) end end\nf()(1)",
};

/* One op each, of hours: it stops half way, or this program does not end in time. */
static const char *const long_ops[] = {
  "gb.nn.functional.avg_pool2d(gb.ones(1, 1, 1, 1):expand(1, 1, 4096, 4096), 2048, { stride = 1 })",
  "gb.nn.functional.adaptive_avg_pool2d(gb.ones(1, 1, 1, 1):expand(1, 1, 2^20, 2^20), 1)", /* one window */
  "gb.ones(1, 1):expand(4e6, 1e6):topk(1)",
  "gb.ones(1, 1):expand(4e6, 1e6):argmax(2)",
};

/* What must hold in a universe that was stopped. */
static const char after[] =
  "assert(gb.is_grad_enabled() and not gb.amp.is_enabled(), 'a scope was left open')\n"
  "assert(select('#', xpcall(function(...) return ... end, debug.traceback, 1, nil, 3)) == 4)\n"
  "local ok, why = xpcall(error, function(text) return text .. '!' end, 'no')\nassert(not ok and why == 'no!')\n"
  "assert(coroutine.wrap(function(a) return xpcall(function() return coroutine.yield(a) end, print) end)(7) == 7)\n"
  "local co = coroutine.create(function() coroutine.yield(1) end)\n"
  "assert(coroutine.resume(co) and coroutine.close(co) and coroutine.status(co) == 'dead' and coroutine.close(co))\n"
  "assert(not pcall(coroutine.close, coroutine.running()))\n"
  "local sum = 0 for i = 1, 1000 do sum = sum + i end\n"
  "assert((gb.ones(2) + 1):sum():item() == 4)\n";

static gbl_state *universe; /* for the handler, which has no other way to it */

static void on_signal(int signal) {
  (void)signal;
  gbl_interrupt_request(universe, GB_EINTERRUPT);
}

/* A signal that arrives just before a coroutine yields. */
static int stop_and_yield(lua_State *L) {
  gbl_interrupt_request(universe, GB_EINTERRUPT);
  return lua_yield(L, 0);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whom to stop, and when that was done. */
typedef struct sender { pthread_t thread; double sent; } sender;

static void *send_later(void *user) {
  sender *s = user;
  nanosleep(&(struct timespec){ 0, 30000000 }, NULL);
  s->sent = now();
  pthread_kill(s->thread, SIGUSR1);
  return NULL;
}

/* Run a text as the outermost call; gives what it was stopped for. */
static gb_status run(lua_State *L, const char *text, int *status) {
  gbl_interrupt_begin(L);
  *status = luaL_loadstring(L, text);
  if (*status == LUA_OK) *status = lua_pcall(L, 0, 0, 0);
  return gbl_interrupt_end(L, *status == LUA_OK);
}

static int open_all(lua_State *L) {
  luaL_openlibs(L);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setglobal(L, "gb");
  gbl_replace_coroutine(L);
  universe = gbl_enter(L);
  return 0;
}

static void stop_one(lua_State *L, const char *text, double *slowest) {
  sender s = { pthread_self(), 0 };
  pthread_t thread;
  int status;
  CHECK(pthread_create(&thread, NULL, send_later, &s) == 0);
  gb_status reason = run(L, text, &status);
  double took = now() - s.sent;
  pthread_join(thread, NULL);
  if (took > *slowest) *slowest = took;
  const char *why = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  bool right = reason == GB_EINTERRUPT && status != LUA_OK && strstr(why, "interrupted");
  if (!right) fprintf(stderr, "  %s\n  gave %s: %s\n", text, gb_status_text(reason), why);
  CHECK(right);
  CHECK(lua_gethook(L) == NULL);
  lua_settop(L, 0);
  reason = run(L, after, &status);
  if (status != LUA_OK) fprintf(stderr, "  after %s\n  %s\n", text, lua_tostring(L, -1));
  CHECK(status == LUA_OK && reason == GB_OK);
  lua_settop(L, 0);
}

/* By a deadline. */
static void outrun(lua_State *L, const char *text) {
  int status;
  gbl_interrupt_count(L, 0, 0.3);
  gb_status reason = run(L, text, &status);
  gbl_interrupt_count(L, 0, 0);
  if (reason != GB_ETIME)
    fprintf(stderr, "  %s\n  gave %s: %s\n", text, gb_status_text(reason),
            status != LUA_OK ? lua_tostring(L, -1) : "a result");
  CHECK(reason == GB_ETIME && status != LUA_OK);
  lua_settop(L, 0);
}

int main(void) {
  lua_State *L = luaL_newstate();
  double slowest = 0;
  int status;
  lua_pushcfunction(L, open_all);
  CHECK(lua_pcall(L, 0, 0, 0) == LUA_OK);
  sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_signal }, NULL);
  for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) stop_one(L, loops[i], &slowest);
  for (size_t i = 0; i < sizeof long_ops / sizeof *long_ops; i++) stop_one(L, long_ops[i], &slowest);

  gbl_interrupt_request(universe, GB_EINTERRUPT); /* nothing runs: nothing is stopped, then or later */
  CHECK(run(L, after, &status) == GB_OK && status == LUA_OK);

  /* The coroutine leaves before its next instruction: what resumed it unwinds, and it goes on later as if nothing had
   * been. */
  lua_register(L, "stop_and_yield", stop_and_yield);
  CHECK(run(L, "kept = coroutine.create(function() stop_and_yield() return 5 end) coroutine.resume(kept)", &status) ==
        GB_EINTERRUPT);
  CHECK(run(L, "assert(select(2, coroutine.resume(kept)) == 5)", &status) == GB_OK && status == LUA_OK);
  printf("the slowest stop took %.4f s\n", slowest);
  for (size_t i = 0; i < sizeof long_ops / sizeof *long_ops; i++) outrun(L, long_ops[i]);
  lua_close(L);
  return check_report();
}
