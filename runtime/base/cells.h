/* base/cells.h - free lists for small structs that come and go with every op: tensors, storages, nodes.
 *
 * A freed cell waits for the next request of its size, and is then warm in the cache. A collector frees a hundred at
 * once, more than malloc keeps at hand: malloc would merge them, and then split them again. Only the thread that opened
 * the context uses the lists, so nothing is locked; other threads go to malloc. With the address sanitizer nothing
 * waits, since it could not see a use after free. */
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
/* Give all waiting cells back to the system. Does nothing on a thread other than the owner's. */
void gb_cells_flush(gb_cells *cells);
/* The same at the end, from any thread, when nobody else holds a cell. */
void gb_cells_close(gb_cells *cells);
/* So many bytes, unset; NULL: no memory. */
void *gb_cell_new(gb_cells *cells, size_t bytes);
/* Free what gb_cell_new gave for the same number of bytes; on any thread. */
void gb_cell_free(gb_cells *cells, void *cell, size_t bytes);

#endif
