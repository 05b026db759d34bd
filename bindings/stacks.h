/* stacks.h - which blocks of Lua's memory are stacks of coroutines, and how deep the deepest is: what one instruction
 * may move depends on it. */
#ifndef GB_BINDINGS_STACKS_H
#define GB_BINDINGS_STACKS_H

#include <stdbool.h>
#include <stddef.h>

#define GBL_STACK_BITS (8 * sizeof(size_t) + 1)

/* A set of blocks, by open addressing. room is a power of two or 0. */
typedef struct gbl_stacks {
  struct { const void *block; size_t bytes; } *slot;
  size_t count, room;
  size_t of[GBL_STACK_BITS];     /* how many have lengths of so many bits */
} gbl_stacks;

/* Make room for one more; false: there is no memory. */
bool gbl_stacks_reserve(gbl_stacks *stacks);
/* Note a stack that is there, after gbl_stacks_reserve. */
void gbl_stacks_add(gbl_stacks *stacks, const void *block, size_t bytes);
bool gbl_stacks_has(const gbl_stacks *stacks, const void *block);
/* Forget one that stacks_has. */
void gbl_stacks_remove(gbl_stacks *stacks, const void *block);
/* Has one of them so many bytes? */
bool gbl_stacks_of(const gbl_stacks *stacks, size_t bytes);
/* No stack has more bytes than this. */
size_t gbl_stacks_most(const gbl_stacks *stacks);

#endif
