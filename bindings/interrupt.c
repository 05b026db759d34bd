/* interrupt.c - the hooks behind interrupt.h, and an xpcall whose handler cannot hold up a stop. */
#include "interrupt.h"

#include <stdio.h>
#include <time.h>

#include "binding.h"
#include "reader.h"

#define BYTES_PER_INSTRUCTION 32 /* that a library function moves */
#define PERIOD 1000 /* instructions between two looks of the count hook: about ten microseconds */
/* of strings that they may look through: up to a quarter of a second where each byte is a zero */
#define BYTES_PER_PERIOD ((size_t)16 << 20)

#define MOVES_PER_PERIOD 1.28e8 /* of values on a stack: about as long */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* {==== Hooks ==== */

static void count_hook(lua_State *L, lua_Debug *event);
static void stop_hook(lua_State *L, lua_Debug *event);
static void silence_handler(lua_State *L);

/* Instructions between two looks, when one of them costs `cost` of a `budget`. */
static int looks_for(double budget, double cost) { return cost * PERIOD <= budget ? PERIOD : cost < budget
                                                   ? (int)(budget / cost) : 1; }

/* Instructions between two looks. One of them may compare two strings, or read one as a number, for as long as the
 * longest string there is; or follow a chain of __call, which moves what lies on the stack at each link, for as long as
 * the stack has room. */
static int period_of(const gbl_interrupt *interrupt) {
  int strings = looks_for(BYTES_PER_PERIOD, (double)interrupt->longest),
      stacks = looks_for(MOVES_PER_PERIOD, (double)interrupt->deepest * (double)interrupt->deepest / 2);
  return strings < stacks ? strings : stacks;
}

/* The hook that a coroutine has while nothing was asked for: ours where there are limits, else none, or one that a
 * script has set. */
static void disarm(lua_State *L, const gbl_interrupt *interrupt) {
  if (interrupt->counts) lua_sethook(L, count_hook, LUA_MASKCOUNT, period_of(interrupt));
  else if (lua_gethook(L) == stop_hook || lua_gethook(L) == count_hook) lua_sethook(L, NULL, 0, 0);
}

void gbl_interrupt_text(const gbl_state *state, gb_status reason, char *text, size_t size) {
  const gbl_interrupt *interrupt = &state->interrupt;
  if (reason == GB_EINSTRUCTIONS)
    snprintf(text, size, "the limit of %llu instructions was reached",
             (unsigned long long)interrupt->most_instructions);
  else if (reason == GB_ETIME) snprintf(text, size, "the limit of %g seconds was reached", interrupt->most_seconds);
  else snprintf(text, size, "%s", gb_status_text(reason));
}

/* Raise the error that says why everything stops. */
static int raise_reason(lua_State *L, const gbl_state *state) {
  char text[GBL_REASON_BYTES];
  gbl_interrupt_text(state, (gb_status)atomic_load(&state->interrupt.reason), text, sizeof text);
  return gbl_error(L, "%s", text);
}

/* Armed on what must unwind. A coroutine that was armed and not run in time finds nothing to stop for, and goes on. */
static void stop_hook(lua_State *L, lua_Debug *event) {
  (void)event;
  gbl_state *state = gbl_get_state(L);
  if (atomic_load(&state->interrupt.reason)) {
    silence_handler(L);
    raise_reason(L, state);
  }
  bool deep = state->interrupt.deep;
  state->interrupt.deep = false;
  disarm(L, &state->interrupt);
  state->interrupt.looked = true;
  if (!deep) return;
  silence_handler(L);
  gbl_error(L, "%s", GBL_TOO_DEEP);
}

static void arm(lua_State *L) { lua_sethook(L, stop_hook, LUA_MASKLINE | LUA_MASKCOUNT, 1); }

/* The limits of the outermost call. */
static gb_status check_limits(const gbl_state *state) {
  const gbl_interrupt *interrupt = &state->interrupt;
  double deadline = state->context ? state->context->deadline : 0;
  if (interrupt->most_instructions && interrupt->instructions > interrupt->most_instructions) return GB_EINSTRUCTIONS;
  if (deadline == 0 || now() <= deadline) return GB_OK;
  return interrupt->grace ? GB_EINTERRUPT : GB_ETIME;
}

/* Add to the count; gives the limit that is reached by it. */
static gb_status charge(gbl_state *state, uint64_t instructions) {
  gbl_interrupt *interrupt = &state->interrupt;
  if (interrupt->free) return GB_OK;
  bool full = instructions > UINT64_MAX - interrupt->instructions;
  interrupt->instructions = full ? UINT64_MAX : interrupt->instructions + instructions;
  return interrupt->depth ? check_limits(state) : GB_OK;
}

void gbl_charge(lua_State *L, uint64_t instructions) {
  gbl_state *state = gbl_get_state(L);
  gb_status reached = charge(state, instructions);
  if (reached != GB_OK) gbl_interrupt_post(state, reached);
  if (!state->interrupt.depth || !atomic_load(&state->interrupt.reason)) return;
  arm(L);
  silence_handler(L);
  raise_reason(L, state);
}

void gbl_charge_coroutine(lua_State *L) {
  if (gbl_get_state(L)->interrupt.counts) gbl_charge(L, PERIOD);
}

void gbl_charge_block(gbl_state *state, size_t bytes) {
  gb_status reached = charge(state, bytes / BYTES_PER_INSTRUCTION);
  if (reached != GB_OK) gbl_interrupt_request(state, reached);
}

void gbl_note_longest(gbl_state *state, size_t bytes) {
  gbl_interrupt *interrupt = &state->interrupt;
  int before = period_of(interrupt);
  interrupt->longest = bytes;
  lua_State *L = atomic_load(&interrupt->current);
  if (L && period_of(interrupt) != before && !interrupt->deep && !atomic_load(&interrupt->reason)) disarm(L, interrupt);
}

void gbl_note_deepest(gbl_state *state, size_t places) {
  gbl_interrupt *interrupt = &state->interrupt;
  int before = period_of(interrupt);
  interrupt->deepest = places;
  lua_State *L = atomic_load(&interrupt->current);
  if (L && period_of(interrupt) != before && !interrupt->deep && !atomic_load(&interrupt->reason)) disarm(L, interrupt);
}

void gbl_note_deep(gbl_state *state) {
  lua_State *L = atomic_load(&state->interrupt.current);
  if (!L || atomic_load(&state->interrupt.reason)) return;
  state->interrupt.deep = true;
  arm(L);
}

gbl_hook gbl_hold_hook(lua_State *L) {
  gbl_hook hook = { lua_gethook(L), lua_gethookmask(L), lua_gethookcount(L) };
  lua_sethook(L, NULL, 0, 0);
  gbl_get_state(L)->interrupt.free++;
  return hook;
}

/* The order matters: a request that comes between the two arms the coroutine itself. */
void gbl_restore_hook(lua_State *L, const gbl_hook *hook) {
  gbl_interrupt *interrupt = &gbl_get_state(L)->interrupt;
  interrupt->free--;
  if (interrupt->counts) disarm(L, interrupt); /* the period may be another one by now */
  else lua_sethook(L, hook->function, hook->mask, hook->count);
  if (atomic_load(&interrupt->reason) || interrupt->deep) arm(L);
}

static void count_hook(lua_State *L, lua_Debug *event) {
  (void)event;
  gbl_get_state(L)->interrupt.looked = true;
  gbl_charge(L, (uint64_t)lua_gethookcount(L));
}

/* ====} */

/* {==== Requests ==== */

void gbl_interrupt_post(gbl_state *state, gb_status reason) {
  int none = GB_OK;
  if (!atomic_load(&state->interrupt.current)) return;
  /* the first reason is the one that is told */
  atomic_compare_exchange_strong(&state->interrupt.reason, &none, (int)reason);
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
  else if (state->interrupt.counts && lua_gethookcount(co) != period_of(&state->interrupt))
    disarm(co, &state->interrupt);
}

bool gbl_is_stopping(lua_State *L) { return atomic_load(&gbl_get_state(L)->interrupt.reason) != GB_OK; }

void gbl_interrupt_stick(lua_State *L, gb_status status) {
  gbl_state *state = gbl_get_state(L);
  if (!state->interrupt.depth) return;
  bool full = status == GB_EMEMORY && state->interrupt.limits_tensors && atomic_load(&state->context->budget.refused);
  gb_status reached = full ? GB_ETENSORBYTES : status == GB_EFILEBYTES ? status : check_limits(state);
  if (reached != GB_OK) gbl_interrupt_post(state, reached);
  if (atomic_load(&state->interrupt.reason)) arm(L);
}

/* ====} */

/* {==== Calls ==== */

void gbl_interrupt_begin(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  if (interrupt->depth++) return;
  atomic_store(&state->context->budget.refused, false);
  interrupt->instructions = 0;
  interrupt->stepped = interrupt->held = interrupt->grace = interrupt->deep = false;
  atomic_store(&interrupt->asked, false);
  atomic_store(&interrupt->has_handler, false);
  atomic_store(&interrupt->takes_saves, false);
  atomic_store(&interrupt->save_asked, false);
  if (interrupt->most_seconds > 0) state->context->deadline = now() + interrupt->most_seconds;
  atomic_store(&interrupt->reason, GB_OK);
  gb_interrupt_clear(state->context); /* a request that came after the end of the last call */
  atomic_store(&interrupt->current, L);
}

gb_status gbl_interrupt_end(lua_State *L, bool succeeded) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  if (--interrupt->depth) return GB_OK;
  atomic_store(&interrupt->current, NULL);
  gb_status reason = (gb_status)atomic_exchange(&interrupt->reason, GB_OK);
  if (reason != GB_OK) gb_interrupt_clear(state->context);
  else if (succeeded) reason = check_limits(state);
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

/* {==== Ending gracefully ==== */

static const char handler_key = 0; /* of the registry: what gb.on_stop was given */

bool gbl_ask_to_stop(gbl_state *state) {
  gbl_interrupt *interrupt = &state->interrupt;
  if (!atomic_load(&interrupt->current) || !atomic_load(&interrupt->has_handler)) return false;
  return !atomic_exchange(&interrupt->asked, true);
}

bool gbl_ask_to_save(gbl_state *state) {
  gbl_interrupt *interrupt = &state->interrupt;
  if (!atomic_load(&interrupt->current) || !atomic_load(&interrupt->takes_saves)) return false;
  atomic_store(&interrupt->save_asked, true);
  return true;
}

int gbl_stop_asked(lua_State *L) {
  lua_pushboolean(L, atomic_load(&gbl_get_state(L)->interrupt.asked));
  return 1;
}

int gbl_pass_on_stop(lua_State *L) {
  (void)gbl_ask_to_stop(gbl_get_state(L));
  return 0;
}

int gbl_take_saves(lua_State *L) {
  gbl_interrupt *interrupt = &gbl_get_state(L)->interrupt;
  lua_pushboolean(L, atomic_exchange(&interrupt->takes_saves, lua_toboolean(L, 1)));
  return 1;
}

int gbl_save_asked(lua_State *L) {
  lua_pushboolean(L, atomic_exchange(&gbl_get_state(L)->interrupt.save_asked, false));
  return 1;
}

int gbl_limits_left(lua_State *L) {
  const gbl_state *state = gbl_get_state(L);
  const gbl_interrupt *interrupt = &state->interrupt;
  double deadline = state->context->deadline;
  uint64_t most = interrupt->most_instructions, used = interrupt->instructions;
  if (deadline > 0) lua_pushnumber(L, deadline - now());
  else lua_pushnil(L);
  if (most) lua_pushinteger(L, used < most ? (lua_Integer)((most - used) & INT64_MAX) : 0);
  else lua_pushnil(L);
  return 2;
}

static int on_stop(lua_State *L, gbl_call *call) {
  const gbl_value *fn = gbl_argument(call, "fn");
  double grace = gbl_number(call, "grace");
  if (!(grace >= 0)) return gbl_refuse(call, "'grace' is a number of seconds, got %g", grace);
  lua_createtable(L, 0, 2);
  if (fn->given) lua_pushvalue(L, fn->index);
  else lua_pushnil(L);
  gbl_set_raw(L, -2, "fn");
  lua_pushnumber(L, grace);
  gbl_set_raw(L, -2, "grace");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &handler_key);
  atomic_store(&call->state->interrupt.has_handler, fn->given);
  return 0;
}

int gbl_stop_handler(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &handler_key) != LUA_TTABLE) lua_pop(L, 1), lua_newtable(L);
  if (!atomic_load(&state->interrupt.has_handler)) lua_pop(L, 1), lua_newtable(L); /* of a call that has ended */
  bool has = gbl_raw_field(L, 1, "fn") != LUA_TNIL;
  lua_pop(L, 1);
  lua_pushvalue(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &handler_key);
  atomic_store(&state->interrupt.has_handler, has);
  return 1;
}

int gbl_hold_stop(lua_State *L) {
  gbl_interrupt *interrupt = &gbl_get_state(L)->interrupt;
  bool before = interrupt->held;
  interrupt->held = lua_toboolean(L, 1);
  lua_pushboolean(L, before);
  return 1;
}

int gbl_offer_stop(lua_State *L) {
  gbl_interrupt *interrupt = &gbl_get_state(L)->interrupt;
  bool held = interrupt->held;
  interrupt->held = false;
  interrupt->stepped = true;
  gbl_step_boundary(L); /* may raise: what runs ends then */
  interrupt->held = held;
  return 0;
}

void gbl_note_step(lua_State *L) { gbl_get_state(L)->interrupt.stepped = true; }

void gbl_step_boundary(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  gbl_interrupt *interrupt = &state->interrupt;
  bool stepped = interrupt->stepped;
  if (interrupt->held) return;
  interrupt->stepped = false;
  if (!stepped || interrupt->grace || !atomic_load(&interrupt->asked)) return;
  luaL_checkstack(L, 4, GBL_NO_STACK);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &handler_key);
  gbl_raw_field(L, -1, "grace");
  double end = now() + lua_tonumber(L, -1);
  if (state->context->deadline == 0 || end < state->context->deadline) {
    interrupt->grace = true;
    state->context->deadline = end;
  }
  /* the end of the grace period must be seen */
  if (!interrupt->counts) lua_sethook(L, count_hook, LUA_MASKCOUNT, PERIOD);
  gbl_raw_field(L, -2, "fn");
  lua_call(L, 0, 0);
  gbl_interrupt_request(state, GB_EINTERRUPT);
  raise_reason(L, state);
}

static const gbl_function functions[] = {
  { on_stop, GB_SANDBOX_STRICT,
    "gb.on_stop(fn?: function; grace: number = 10): When a stop is asked for (Ctrl-C, SIGTERM, a host), fn "
    "runs between two steps of training, for at most grace "
    "seconds, and then the recipe ends. gb.on_stop(nil) interrupts at once again. Lasts as long as the chunk that "
    "runs. Example: "
    "gb.on_stop(function() gb.save(\"stopped.safetensors\", model:state_dict()) end, { grace = 5 })" },
  { NULL, 0, NULL },
};

void gbl_open_interrupt(lua_State *L) { gbl_define(L, functions); }

/* ====} */

/* {==== xpcall ====
 * Lua runs a message handler with hooks off when a hook raised the error, so a handler that loops would hold up a stop.
 * A wrapper around
 * handlers would show in tracebacks and levels. So this xpcall, which is that of the standard library frame by frame,
 * notes where its
 * handler lies on the stack, and a stop puts one there that passes the error on. */

/* One xpcall that runs: a userdata in the first slot of its frame. The coroutine's modes know the innermost. */
typedef struct gbl_handler { lua_Debug frame; struct gbl_handler *outer; } gbl_handler;

/* The call came back, perhaps after yields: what lies above the handler are its results behind a true, or one error
 * value. */
static int finish_xpcall(lua_State *L, int status, lua_KContext context) {
  (void)context;
  const gbl_handler *handler = lua_touserdata(L, 1);
  gbl_modes_of(L)->handler = handler->outer;
  if (status == LUA_OK || status == LUA_YIELD) return lua_gettop(L) - 2;
  lua_pushboolean(L, false);
  lua_insert(L, -2);
  return 2;
}

/* xpcall(f, handler, ...): the stack becomes note, handler, true, f, ... */
static int noted_xpcall(lua_State *L) {
  int arguments = lua_gettop(L) - 2;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  gbl_modes *modes = gbl_modes_of(L);
  lua_pushboolean(L, true);
  lua_pushvalue(L, 1);
  lua_rotate(L, 3, 2);
  gbl_handler *handler = lua_newuserdatauv(L, sizeof *handler, 0);
  lua_replace(L, 1);
  lua_getstack(L, 0, &handler->frame);
  handler->outer = modes->handler;
  modes->handler = handler;
  return finish_xpcall(L, lua_pcallk(L, arguments, LUA_MULTRET, 2, 0, finish_xpcall), 0);
}

/* The handler that passes an error on. */
static int pass_error(lua_State *L) {
  lua_settop(L, 1);
  return 1;
}

static void silence_handler(lua_State *L) {
  gbl_handler *handler = gbl_modes_of(L)->handler;
  if (!handler || !lua_checkstack(L, 2)) return;
  lua_getinfo(L, "f", &handler->frame);
  bool running = lua_tocfunction(L, -1) == noted_xpcall;
  lua_pop(L, 1);
  if (!running) return;
  lua_pushcfunction(L, pass_error);
  lua_setlocal(L, &handler->frame, 2);
}

void gbl_replace_xpcall(lua_State *L) {
  lua_pushcfunction(L, noted_xpcall);
  lua_setglobal(L, "xpcall");
}

/* ====} */
