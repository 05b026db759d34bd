/* pattern.h - string.find, match, gmatch and gsub for sandboxes. */
#ifndef GB_BINDINGS_PATTERN_H
#define GB_BINDINGS_PATTERN_H

#include "binding.h"

/* Replace the four functions in the table string at the top of the stack. */
void gbl_replace_patterns(lua_State *L);

#endif
