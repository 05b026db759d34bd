/* base/workroom.h - memory that a thread works in: blocks by number that grow and are used again, counted towards a
 * budget.
 *
 * A room serves one thread at a time; which one may change. Nothing in it raises or reclaims, so any thread may use it:
 * NULL says that there is no memory, and whoever runs the context may collect garbage and try again. */
#ifndef GB_BASE_WORKROOM_H
#define GB_BASE_WORKROOM_H

#include <stdlib.h>

#include "base/pool.h"

enum { GB_WORKROOM_BLOCKS = 9 };

typedef struct gb_workroom {
  gb_budget *budget;
  struct { void *data; size_t bytes; } block[GB_WORKROOM_BLOCKS];
} gb_workroom;

/* Block i with room for so many bytes, unset; what it held is lost. NULL: no memory. */
static inline void *gb_workroom_get(gb_workroom *room, int i, size_t bytes) {
  if (bytes <= room->block[i].bytes) return room->block[i].data;
  free(room->block[i].data);
  gb_budget_give_back(room->budget, room->block[i].bytes);
  room->block[i].data = NULL;
  room->block[i].bytes = 0;
  if (!gb_budget_take(room->budget, bytes)) return NULL;
  room->block[i].data = malloc(bytes);
  if (room->block[i].data) room->block[i].bytes = bytes;
  else gb_budget_give_back(room->budget, bytes);
  return room->block[i].data;
}

/* Give all of it back. */
static inline void gb_workroom_clear(gb_workroom *room) {
  for (int i = 0; i < GB_WORKROOM_BLOCKS; i++) {
    free(room->block[i].data);
    gb_budget_give_back(room->budget, room->block[i].bytes);
    room->block[i].data = NULL;
    room->block[i].bytes = 0;
  }
}

#endif
