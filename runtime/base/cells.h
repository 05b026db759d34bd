/* base/cells.h - small structs that come and go with every op: tensors, storages, nodes.
 *
 * Those that were let go of wait for the next of their size, which is then warm in the cache. A collector frees a hundred of them at once, more
 * than malloc keeps at hand: it merges them, and cuts them again. Only the thread that opened the context has what waits, so nothing is locked;
 * others go to malloc. The address sanitizer would not see a use of what waits, so with it nothing does. */
#ifndef GB_BASE_CELLS_H
#define GB_BASE_CELLS_H

#include <pthread.h>
#include <stddef.h>

#define GB_CELL_UNIT 64  /* bytes: a line of the cache */
#define GB_CELL_SIZES 16 /* units in the largest that waits */
#define GB_CELLS_MOST 192 /* that wait, of each size */

typedef struct gb_cell { struct gb_cell *next; } gb_cell;
typedef struct gb_cells {
  pthread_t owner;
  int most;              /* 0: none waits */
  struct { gb_cell *first; int count; } waiting[GB_CELL_SIZES];
} gb_cells;

/* Begin with none. */
void gb_cells_open(gb_cells *cells);
/* Give what waits back to the system; on the owner's thread, elsewhere it does nothing. */
void gb_cells_flush(gb_cells *cells);
/* The same at the end, when nobody else has any, on whatever thread. */
void gb_cells_close(gb_cells *cells);
/* So many bytes, unset; NULL: no memory. */
void *gb_cell_new(gb_cells *cells, size_t bytes);
/* What gb_cell_new gave for as many bytes; on any thread. */
void gb_cell_free(gb_cells *cells, void *cell, size_t bytes);

#endif
