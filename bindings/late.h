/* late.h - the modules of the library, and chunks of its Lua half that are read when one of their names is first used.
 *
 * Each module (gb, gb.nn, gb.optim.lr, ...) is two tables: the library's own, which chunks fill and see while they run,
 * and a view of it, which recipes get and may change, and the functions of chunks see. What is there when the library
 * has opened stands in both. A name of a chunk that
 * has not run is found by the metatables: __index runs the chunk and keeps the value in the view; __pairs runs all
 * chunks of a module. A name that the view has had once is the recipe's: where it is taken away, it stays away.
 *
 * Which names a chunk makes is found at build time by running all of them (cmake/late_names.lua) and stands in
 * gbl_late_rows with their sandbox levels. A build without that table (a cross build, the rock) runs all chunks at
 * once. lua_next and rawget see what was used so far. */
#ifndef GB_BINDINGS_LATE_H
#define GB_BINDINGS_LATE_H

#include "binding.h"

/* A key, by its address, that metatables of modules have: found faster than by a name. */
extern const char gbl_module_mark[];

/* Make the modules, with gb, the library's own table, at the top of the stack. */
void gbl_open_modules(lua_State *L);
/* The Lua half has run: replace gb at the top of the stack by its view. */
void gbl_open_views(lua_State *L);
/* Add to native: load(unit), load_all(), waits() -> bool, publish(path, name, value), modules(), view(path), and
 * settle(). */
void gbl_open_late(lua_State *L);

/* The function at the top of the stack, which stays, runs a chunk by its name. */
void gbl_keep_run(lua_State *L);

/* Run what makes path.name, where it is late and has not run; a path is "gb.nn", "native" or "tensor". */
void gbl_load_name(lua_State *L, const char *path, const char *name);
/* Run all chunks that are left. */
void gbl_load_all(lua_State *L);
/* The table at index, where it is a module, gets its late name at the top of the stack, which is popped, as if by use,
 * where this sandbox has it. No error where there is no such name. */
void gbl_use_name(lua_State *L, int index);
/* The host sets or takes away the name at the top of the stack, which is popped, in the table at index. */
void gbl_claim_name(lua_State *L, int index);
/* Does this path, a module, have late names that a sandbox of this level leaves? */
bool gbl_has_late(const char *path, int level);

#endif
