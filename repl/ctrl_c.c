/* ctrl_c.c - Ctrl-C: a handler of SIGINT asks the universe to stop (bindings/interrupt.h says how that reaches what
 * runs).
 *
 * Where gb.on_stop was given a function, the first one only asks. The handler has no other way to the universe than a
 * static. It is set without SA_RESTART, so that io.read ends too. */
#include "ctrl_c.h"

#include <signal.h>

#include "binding.h"

static gbl_state *watched;
static struct sigaction before; /* what SIGINT did outside the call that runs */

void ctrl_c_watch(lua_State *L) { watched = gbl_get_state(L); }

/* Ask first where the recipe wants to be asked. */
static void on_interrupt(int signal) {
  (void)signal;
  if (!gbl_ask_to_stop(watched)) gbl_interrupt_request(watched, GB_EINTERRUPT);
}

/* What SIGINT does from now on; what it did goes into *old, which may be NULL. */
static void set_handler(void (*handler)(int), struct sigaction *old) {
  struct sigaction action = { .sa_handler = handler };
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, old);
}

void ctrl_c_begin(lua_State *L) {
  gbl_interrupt_begin(L);
  set_handler(on_interrupt, &before);
}

gb_status ctrl_c_end(lua_State *L, bool succeeded) {
  sigaction(SIGINT, &before, NULL);
  return gbl_interrupt_end(L, succeeded);
}

void ctrl_c_die(void) {
  set_handler(SIG_DFL, NULL);
  raise(SIGINT);
}
