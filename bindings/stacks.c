/* stacks.c - the set of stacks.h: linear probing, and what follows a hole moves up when an entry goes. */
#include "stacks.h"

#include <stdint.h>
#include <stdlib.h>

/* Where the block is, or the first free place after where it would be. */
static size_t place_of(const gbl_stacks *stacks, const void *block) {
  size_t at = (size_t)(((uint64_t)(uintptr_t)block >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (stacks->room - 1);
  while (stacks->slot[at].block && stacks->slot[at].block != block) at = (at + 1) & (stacks->room - 1);
  return at;
}

/* Lengths are counted by powers of two: that many bits has this one. */
static int bits_of(size_t bytes) {
  int bits = 0;
  for (; bytes; bytes >>= 1) bits++;
  return bits;
}

/* Put an entry where it belongs. */
static void put(gbl_stacks *stacks, const void *block, size_t bytes) {
  size_t at = place_of(stacks, block);
  stacks->slot[at].block = block;
  stacks->slot[at].bytes = bytes;
}

bool gbl_stacks_reserve(gbl_stacks *stacks) {
  if (2 * (stacks->count + 1) <= stacks->room) return true;
  gbl_stacks larger = *stacks;
  larger.room = stacks->room ? 2 * stacks->room : 16;
  larger.slot = calloc(larger.room, sizeof *larger.slot);
  if (!larger.slot) return false;
  for (size_t i = 0; i < stacks->room; i++)
    if (stacks->slot[i].block) put(&larger, stacks->slot[i].block, stacks->slot[i].bytes);
  free(stacks->slot);
  *stacks = larger;
  return true;
}

void gbl_stacks_add(gbl_stacks *stacks, const void *block, size_t bytes) {
  put(stacks, block, bytes);
  stacks->count++;
  stacks->of[bits_of(bytes)]++;
}

bool gbl_stacks_has(const gbl_stacks *stacks, const void *block) {
  return stacks->count && stacks->slot[place_of(stacks, block)].block == block;
}

void gbl_stacks_remove(gbl_stacks *stacks, const void *block) {
  size_t at = place_of(stacks, block);
  stacks->of[bits_of(stacks->slot[at].bytes)]--;
  stacks->count--;
  stacks->slot[at].block = NULL;
  for (size_t next = (at + 1) & (stacks->room - 1); stacks->slot[next].block; next = (next + 1) & (stacks->room - 1)) {
    const void *moved = stacks->slot[next].block;
    size_t bytes = stacks->slot[next].bytes;
    stacks->slot[next].block = NULL;
    put(stacks, moved, bytes);
  }
}

bool gbl_stacks_of(const gbl_stacks *stacks, size_t bytes) {
  if (!stacks->of[bits_of(bytes)]) return false;
  for (size_t i = 0; i < stacks->room; i++)
    if (stacks->slot[i].block && stacks->slot[i].bytes == bytes) return true;
  return false;
}

size_t gbl_stacks_most(const gbl_stacks *stacks) {
  size_t bits = GBL_STACK_BITS - 1;
  while (bits && !stacks->of[bits]) bits--;
  return bits ? ((size_t)1 << (bits - 1)) * 2 - 1 : 0;
}
