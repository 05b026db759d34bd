/* guards.h - library functions in the form that sandboxes have them. */
#ifndef GB_BINDINGS_GUARDS_H
#define GB_BINDINGS_GUARDS_H

#include "host.h"

/* Put guarded functions in the place of those of Lua's libraries; files: with those that open files beneath the host's
 * folder. */
void gbl_replace_library(lua_State *L, bool files);

#endif
