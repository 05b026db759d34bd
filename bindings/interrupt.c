/* interrupt.c - the hooks behind interrupt.h, and an xpcall that cannot hold up a stop. */
#include "interrupt.h"

#include <time.h>

#include "binding.h"

#define PERIOD 1000 /* instructions between two looks of the count hook: about ten microseconds */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* {==== Hooks ==== */

static void count_hook(lua_State *L, lua_Debug *event);

/* The hook that a coroutine has while nothing was asked for. */
static void disarm(lua_State *L, const gbl_interrupt *interrupt) {
  if (interrupt->counts) lua_sethook(L, count_hook, LUA_MASKCOUNT, PERIOD);
  else lua_sethook(L, NULL, 0, 0);
}

/* Raise the error that says why everything stops. */
static int raise_reason(lua_State *L, const gbl_state *state) {
  const gbl_interrupt *interrupt = &state->interrupt;
  gb_status reason = (gb_status)atomic_load(&interrupt->reason);
  if (reason == GB_EINSTRUCTIONS) return gbl_error(L, "the limit of %llu instructions was reached", (unsigned long long)interrupt->most_instructions);
  if (reason == GB_ETIME) return gbl_error(L, "the limit of %g seconds was reached", interrupt->most_seconds);
  return gbl_error(L, "%s", gb_status_text(reason));
}

/* Armed on what must unwind. A coroutine that was armed and not run in time finds nothing to stop for, and goes on. */
static void stop_hook(lua_State *L, lua_Debug *event) {
  (void)event;
  gbl_state *state = gbl_get_state(L);
  if (atomic_load(&state->interrupt.reason)) raise_reason(L, state);
  disarm(L, &state->interrupt);
}

static void arm(lua_State *L) { lua_sethook(L, stop_hook, LUA_MASKLINE | LUA_MASKCOUNT, 1); }

/* The limits of the outermost call. */
static gb_status check_limits(const gbl_state *state) {
  const gbl_interrupt *interrupt = &state->interrupt;
  double deadline = state->context ? state->context->deadline : 0;
  if (interrupt->most_instructions && interrupt->instructions > interrupt->most_instructions) return GB_EINSTRUCTIONS;
  return deadline > 0 && now() > deadline ? GB_ETIME : GB_OK;
}

void gbl_charge(lua_State *L, uint64_t instructions) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  interrupt->instructions = instructions > UINT64_MAX - interrupt->instructions ? UINT64_MAX : interrupt->instructions + instructions;
  if (!interrupt->depth) return;
  gb_status reached = check_limits(state);
  if (reached != GB_OK) gbl_interrupt_post(state, reached);
  if (!atomic_load(&interrupt->reason)) return;
  arm(L);
  raise_reason(L, state);
}

static void count_hook(lua_State *L, lua_Debug *event) {
  (void)event;
  gbl_charge(L, PERIOD);
}

/* ====} */

/* {==== Requests ==== */

void gbl_interrupt_post(gbl_state *state, gb_status reason) {
  int none = GB_OK;
  if (!atomic_load(&state->interrupt.current)) return;
  atomic_compare_exchange_strong(&state->interrupt.reason, &none, (int)reason); /* the first reason is the one that is told */
  gb_interrupt(state->context);
}

void gbl_interrupt_request(gbl_state *state, gb_status reason) {
  gbl_interrupt_post(state, reason);
  lua_State *L = atomic_load(&state->interrupt.current);
  if (L) arm(L); /* lua_sethook may be called by a signal handler of this thread */
}

/* The order matters: a request between the store and the look arms co itself. */
void gbl_note_current(gbl_state *state, lua_State *co) {
  if (!state->interrupt.depth) return; /* the universe closes, or nobody asks for stops here */
  atomic_store(&state->interrupt.current, co);
  if (atomic_load(&state->interrupt.reason)) arm(co);
}

bool gbl_is_stopping(lua_State *L) { return atomic_load(&gbl_get_state(L)->interrupt.reason) != GB_OK; }

void gbl_interrupt_stick(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  if (!state->interrupt.depth) return;
  gb_status reached = check_limits(state);
  if (reached != GB_OK) gbl_interrupt_post(state, reached);
  if (atomic_load(&state->interrupt.reason)) arm(L);
}

/* ====} */

/* {==== Calls ==== */

void gbl_interrupt_begin(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  if (interrupt->depth++) return;
  interrupt->instructions = 0;
  if (interrupt->most_seconds > 0) state->context->deadline = now() + interrupt->most_seconds;
  atomic_store(&interrupt->reason, GB_OK);
  gb_interrupt_clear(state->context); /* a request that came after the end of the last call */
  atomic_store(&interrupt->current, L);
}

gb_status gbl_interrupt_end(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  if (--interrupt->depth) return GB_OK;
  atomic_store(&interrupt->current, NULL);
  gb_status reason = (gb_status)atomic_exchange(&interrupt->reason, GB_OK);
  if (reason != GB_OK) gb_interrupt_clear(state->context);
  state->context->deadline = 0;
  disarm(L, interrupt);
  return reason;
}

void gbl_interrupt_count(lua_State *L, uint64_t instructions, double seconds) {
  gbl_interrupt *interrupt = &gbl_get_state(L)->interrupt;
  interrupt->counts = true;
  interrupt->most_instructions = instructions;
  interrupt->most_seconds = seconds;
  disarm(L, interrupt);
}

/* ====} */

/* {==== xpcall ==== */

/* The message handler of xpcall: the recipe's own one (an upvalue), unless everything unwinds. */
static int guarded_handler(lua_State *L) {
  if (gbl_is_stopping(L)) return 1;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 1);
  return 1;
}

/* The call came back, perhaps after yields: what lies above the handler are its results behind a true, or one error value. */
static int finish_xpcall(lua_State *L, int status, lua_KContext context) {
  (void)context;
  if (status == LUA_OK || status == LUA_YIELD) return lua_gettop(L) - 2;
  lua_pushboolean(L, false);
  lua_insert(L, -2);
  return 2;
}

/* xpcall(f, handler, ...): the stack becomes f, guarded handler, true, f, ... */
static int guarded_xpcall(lua_State *L) {
  int arguments = lua_gettop(L) - 2;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_pushvalue(L, 2);
  lua_pushcclosure(L, guarded_handler, 1);
  lua_replace(L, 2);
  lua_pushboolean(L, true);
  lua_pushvalue(L, 1);
  lua_rotate(L, 3, 2);
  return finish_xpcall(L, lua_pcallk(L, arguments, LUA_MULTRET, 2, 0, finish_xpcall), 0);
}

void gbl_replace_xpcall(lua_State *L) {
  lua_pushcfunction(L, guarded_xpcall);
  lua_setglobal(L, "xpcall");
}

/* ====} */
