/* limits.h - --threads, --memory, --time and --device: what a run may use. */
#ifndef GB_REPL_LIMITS_H
#define GB_REPL_LIMITS_H

#include "binding.h"
#include "options.h"

typedef struct limits {
  gb_context_options engine;
  size_t most;               /* bytes of Lua's; 0: no limit */
  double seconds;            /* of each script, statement and input at the prompt; 0: no limit */
  size_t used, refused;      /* bytes that Lua holds; those of the last request that was refused */
  lua_Alloc next;            /* the allocator that serves */
  void *user;
  gbl_state *state;          /* NULL until the library is open */
} limits;

/* Read the options; false: one is wrong, which has been said. */
bool limits_read(limits *l, const options *o);
/* Count what a new state allocates from now on. The limits must live as long as the state. */
void limits_watch(limits *l, lua_State *L);
/* Once the library is open: the limits hold. Raises when the device is not there. */
void limits_begin(limits *l, lua_State *L, const options *o);

#endif
