/* script.h - runs chunks, statements, modules and scripts as `lua` does, with its messages. */
#ifndef GB_REPL_SCRIPT_H
#define GB_REPL_SCRIPT_H

#include <lua.h>

#include "options.h"

/* How running something ended. FINISHED: it asked to end the program without a failure (gb.args showed its list).
 * INTERRUPTED: by Ctrl-C. */
typedef enum script_end { SCRIPT_DONE, SCRIPT_FAILED, SCRIPT_FINISHED, SCRIPT_INTERRUPTED } script_end;

/* Call the function below its n arguments, protected; results are left on the stack, an error has been reported. */
script_end script_call(lua_State *L, const options *o, int arguments, int results);
/* The global arg: the script's name at 0, its arguments after it, what stood before it at negative indices. */
void script_set_arg(lua_State *L, const options *o);
/* LUA_INIT_5_4 or LUA_INIT: a statement, or a file after '@'. */
script_end script_environment(lua_State *L, const options *o);
/* -e, -l and -W, in order. */
script_end script_options(lua_State *L, const options *o);
/* The script that the command line names. */
script_end script_run(lua_State *L, const options *o);
/* Standard input as a script. */
script_end script_standard_input(lua_State *L, const options *o);
/* The value at the top is what ends a script without a failure. */
bool script_is_finish(lua_State *L);

#endif
