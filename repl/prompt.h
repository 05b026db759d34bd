/* prompt.h - the interactive part of gibbous. */
#ifndef GB_REPL_PROMPT_H
#define GB_REPL_PROMPT_H

#include <lua.h>

#include "script.h"

/* Read, run and print until the input ends or :quit. */
script_end prompt_run(lua_State *L, const options *o);

#endif
