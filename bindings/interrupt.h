/* interrupt.h - stopping what runs: on request, or because a limit was reached.
 *
 * Which coroutine runs is noted by coroutine.resume, wrap and close (modes.c), so a request reaches the Lua code that
 * really runs. It arms a hook on that coroutine that raises before every instruction, and on each that control comes
 * back to, until the outermost call has unwound: neither a loop of pcalls nor a coroutine can swallow it. The hook has
 * no CALL event, so C functions that close scopes still run. Where there are limits, or requests come from other
 * threads, a count hook is armed on every coroutine from the start: it charges instructions to the universe, looks at
 * the clock, and polls. No other thread ever touches a lua_State. Left out: finalisers, which Lua runs with hooks off,
 * and C functions that loop without asking gbl_charge. */
#ifndef GB_BINDINGS_INTERRUPT_H
#define GB_BINDINGS_INTERRUPT_H

#include <lua.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gibbous.h"

struct gbl_state;

#define GBL_REASON_BYTES 96

typedef struct gbl_interrupt {
  _Atomic(lua_State *) current;  /* the coroutine whose code runs; NULL: no call has begun */
  atomic_int reason;             /* the gb_status that everything unwinds for; GB_OK: nothing was asked */
  int depth;                     /* calls that have begun and not ended */
  bool counts;                   /* the count hook is armed on every coroutine */
  uint64_t instructions;         /* charged since the outermost call began */
  size_t longest;                /* bytes that no string has more of, where the allocator tells: the hook then looks
                                    more often */
  size_t deepest;                /* places that no stack has more of, where the allocator tells: likewise */
  bool deep;                     /* a stack has become too deep for a sandbox, and the next instruction says so */
  bool looked;                   /* the hook ran since a deep stack last grew: it is calls that deepen it, not one
                                    instruction */
  bool limits_tensors;           /* the limit on tensor bytes is one that everything unwinds for */
  uint64_t most_instructions;    /* 0: no limit */
  double most_seconds;           /* 0: no limit; the deadline stands in the context, where ops look too */
  atomic_bool has_handler;       /* the recipe set gb.on_stop */
  atomic_bool asked;             /* to end at the next step boundary */
  atomic_bool takes_saves;       /* a run saves when it is asked to */
  atomic_bool save_asked;        /* to save after the step that is under way, and to go on */
  bool stepped;                  /* an optimizer stepped since the last boundary */
  bool held;                     /* boundaries are only where offer_stop says so */
  bool grace;                    /* the handler runs: the deadline is that of its grace period */
  int free;                      /* chunks of the library run, within each other, which are charged to nobody */
} gbl_interrupt;

/* {==== For who calls Lua code: the executable, the host API ==== */

/* Before and after each call into Lua; they nest. Limits count from the outermost one, whose end gives the reason it
 * was stopped for, or GB_OK, and forgets it. A call that succeeded, but over a limit that nothing looked at in time,
 * has reached it. The end must follow on the same L whatever came of the call. */
void gbl_interrupt_begin(lua_State *L);
gb_status gbl_interrupt_end(lua_State *L, bool succeeded);
/* What is said of a reason: limits with their numbers. */
void gbl_interrupt_text(const struct gbl_state *state, gb_status reason, char *text, size_t size);

/* Stop what runs. From the thread that runs it: a signal handler, an allocator, a binding. Nothing when nothing
 * runs. */
void gbl_interrupt_request(struct gbl_state *state, gb_status reason);
/* The same from any thread; takes effect where the count hook is armed, and at the next op. */
void gbl_interrupt_post(struct gbl_state *state, gb_status reason);

/* Ask a recipe that set gb.on_stop to end at the next boundary between two steps of training: true. False where it did
 * not, or was asked already, or nothing runs: then who wants it stopped must interrupt. Any thread, any signal
 * handler. */
bool gbl_ask_to_stop(struct gbl_state *state);
/* Ask a run that takes such requests to save after its step, and to go on: true. Any thread, any signal handler. */
bool gbl_ask_to_save(struct gbl_state *state);

/* Arm the count hook on L and every coroutine made from now on, with these limits (0: none) for each outermost call. */
void gbl_interrupt_count(lua_State *L, uint64_t instructions, double seconds);

/* ====} */

/* {==== For functions of the library ==== */

/* Charge work that a C function did or is about to do, in the cost of instructions; raises when a limit is reached or a
 * stop was asked for. */
void gbl_charge(lua_State *L, uint64_t instructions);
/* One element of many that a C function goes through; they are charged an instruction each, GBL_STEPS together, since
 * charging takes longer than most of them. *steps counts them, from 0. */
#define GBL_STEPS 1024
static inline void gbl_charge_step(lua_State *L, uint64_t *steps) {
  if (++*steps % GBL_STEPS == 0) gbl_charge(L, GBL_STEPS);
}
/* A block of Lua's memory was allocated: the work behind it is charged. Called by an allocator, so a limit is not
 * raised here; it is armed. */
void gbl_charge_block(struct gbl_state *state, size_t bytes);
/* No string that lives has more than so many bytes. Called by an allocator. */
void gbl_note_longest(struct gbl_state *state, size_t bytes);
/* No stack has more than so many places; and: the stack of what runs has become too deep. Called by an allocator. */
void gbl_note_deepest(struct gbl_state *state, size_t places);
void gbl_note_deep(struct gbl_state *state);
#define GBL_TOO_DEEP \
  "stack overflow: in a sandbox a stack has room for some 40000 values, of all calls that have not returned"
/* A coroutine is made: where instructions are counted, what it runs before its first look is charged now, so that many
 * short ones buy nothing. */
void gbl_charge_coroutine(lua_State *L);
/* Around a chunk of the library that runs late: the hook of L is taken off and put back, and nothing is charged. A stop
 * that is asked for in between raises there, or at the next instruction behind. They nest. */
typedef struct gbl_hook { lua_Hook function; int mask, count; } gbl_hook;
gbl_hook gbl_hold_hook(lua_State *L);
void gbl_restore_hook(lua_State *L, const gbl_hook *hook);
/* Was a stop asked for and not yet unwound? */
bool gbl_is_stopping(lua_State *L);
/* The coroutine co runs from now on; it is armed if a stop was asked for. Raises nothing. */
void gbl_note_current(struct gbl_state *state, lua_State *co);
/* The engine failed with a status that a stop, the deadline or a limit on bytes may be behind: then make it stick. */
void gbl_interrupt_stick(lua_State *L, gb_status status);
/* An optimizer stepped; and: one step of training ends and the next begins here, which is where a recipe that was asked
 * to stop does. May raise. The boundary is the first call of zero_grad or of a loader after a step, so that what a
 * handler saves is a whole step. */
void gbl_note_step(lua_State *L);
void gbl_step_boundary(lua_State *L);
/* stop_handler(handler) -> table: For the Lua half. What gb.on_stop keeps is { fn =, grace = } from now on; returns
 * what it was, or an empty table. */
int gbl_stop_handler(lua_State *L);
/* hold_stop(bool) -> bool: while it is held, no zero_grad and no loader is a boundary, since steps end elsewhere;
 * returns what it was; and offer_stop(): one ends here. */
int gbl_hold_stop(lua_State *L);
int gbl_offer_stop(lua_State *L);
/* For a run on many processes: stop_asked() -> bool, and pass_on_stop(): another process was asked. take_saves(bool) ->
 * bool: whether requests to save are taken from now on; returns what it was. save_asked() -> bool: was there one? */
int gbl_stop_asked(lua_State *L);
int gbl_pass_on_stop(lua_State *L);
int gbl_take_saves(lua_State *L);
int gbl_save_asked(lua_State *L);
/* limits_left() -> number?, int?: seconds and instructions until the limits of the outermost call; nil: none. */
int gbl_limits_left(lua_State *L);
/* gb.on_stop. */
void gbl_open_interrupt(lua_State *L);
/* Replace xpcall by one whose message handler a stop can take away: Lua would run it with hooks off. */
void gbl_replace_xpcall(lua_State *L);

/* ====} */

#endif
