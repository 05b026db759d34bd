/* ctrl_c.c - Ctrl-C, SIGTERM and SIGUSR1: a handler asks the universe to stop, or a run to save (bindings/interrupt.h
 * says how that reaches what runs).
 *
 * Where gb.on_stop was given a function, the first signal only asks. What comes after it, or where there is no such
 * function, interrupts (SIGINT) or ends the program at once (SIGTERM). SIGUSR1 asks a Trainer with checkpoints to save
 * one and to go on; where there is none, it ends the program, as it does any. The handler has no other way to the
 * universe than a static. It is set without SA_RESTART, so that io.read ends too.
 *
 * A routine of LAPACK, a pattern or a finaliser heeds no interrupt. So that a terminal is not lost to one, Ctrl-C that
 * comes PATIENCE seconds after one that interrupted ends the program. */
#include "ctrl_c.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "binding.h"

enum { PATIENCE = 2 };

static gbl_state *watched;
static struct sigaction before, before_term, before_save; /* what the signals did outside the call that runs */
static volatile sig_atomic_t asked_by = SIGINT; /* the signal that ended, or will end, what runs */

static volatile sig_atomic_t insisted; /* when what runs was first interrupted, in seconds of some clock; 0: not yet */

void ctrl_c_insist(void) {
  static const char text[] = "\ngibbous: what runs heeds no interrupt; the program ends\n";
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!insisted) insisted = (sig_atomic_t)now.tv_sec + 1;
  if (now.tv_sec + 1 - insisted < PATIENCE) return;
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) { /* there is nobody to tell */ }
  signal(SIGINT, SIG_DFL);
  raise(SIGINT); /* delivered when the handler returns */
}

void ctrl_c_watch(lua_State *L) { watched = gbl_get_state(L); }

/* Ask first where the recipe wants to be asked. */
static void on_interrupt(int signal) {
  (void)signal;
  if (gbl_ask_to_stop(watched)) {
    asked_by = SIGINT;
    return;
  }
  gbl_interrupt_request(watched, GB_EINTERRUPT);
  ctrl_c_insist();
}

static void on_term(int number) {
  if (gbl_ask_to_stop(watched)) {
    asked_by = SIGTERM;
    return;
  }
  signal(number, SIG_DFL);
  raise(number); /* delivered when this handler returns */
}

static void on_save(int number) {
  if (gbl_ask_to_save(watched)) return;
  signal(number, SIG_DFL);
  raise(number);
}

/* What a signal does from now on; what it did goes into *old, which may be NULL. */
static void set_handler(int number, void (*handler)(int), struct sigaction *old) {
  struct sigaction action = { .sa_handler = handler };
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, old);
}

/* Signals that the program was told to ignore are ignored on. */
void ctrl_c_begin(lua_State *L) {
  gbl_interrupt_begin(L);
  asked_by = SIGINT;
  insisted = 0;
  set_handler(SIGINT, on_interrupt, &before);
  set_handler(SIGTERM, on_term, &before_term);
  set_handler(SIGUSR1, on_save, &before_save);
  if (before_term.sa_handler == SIG_IGN) sigaction(SIGTERM, &before_term, NULL);
  if (before_save.sa_handler == SIG_IGN) sigaction(SIGUSR1, &before_save, NULL);
}

gb_status ctrl_c_end(lua_State *L, bool succeeded) {
  sigaction(SIGINT, &before, NULL);
  sigaction(SIGTERM, &before_term, NULL);
  sigaction(SIGUSR1, &before_save, NULL);
  return gbl_interrupt_end(L, succeeded);
}

void ctrl_c_die(void) {
  set_handler(asked_by, SIG_DFL, NULL);
  raise(asked_by);
}
