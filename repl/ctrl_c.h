/* ctrl_c.h - Ctrl-C and SIGTERM. */
#ifndef GB_REPL_CTRL_C_H
#define GB_REPL_CTRL_C_H

#include <lua.h>

#include "gibbous.h"

/* From now on the universe of L is the one that Ctrl-C stops, while a call of it runs (gbl_interrupt_begin). */
void ctrl_c_watch(lua_State *L);
/* Around a call of Lua code, not nested: SIGINT stops it; outside it does again what it did before. The end tells what
 * the call was stopped for: GB_EINTERRUPT, a limit, or GB_OK; a call that succeeded may have gone over its limit. */
void ctrl_c_begin(lua_State *L);
gb_status ctrl_c_end(lua_State *L, bool succeeded);
/* For a handler of SIGINT that has interrupted what runs: ends the program where that was tried before and some seconds
 * ago. */
void ctrl_c_insist(void);
/* End the program as the signal that stopped it would have (SIGINT, or SIGTERM where a recipe asked to be told), so
 * that a shell's loop around it ends too. Returns only if that is not possible. */
void ctrl_c_die(void);

#endif
