/* base/cells.c - lists of small structs that wait for the next of their size; see cells.h. */
#include "base/cells.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/sanitizer.h"

#define WAIT (GB_ADDRESS_SANITIZER ? 0 : GB_CELLS_MOST)

static size_t size_of(size_t bytes) { return (bytes + GB_CELL_UNIT - 1) / GB_CELL_UNIT; }

/* Are there free lists for this size, and does this thread own them? */
static bool is_ours(const gb_cells *cells, size_t size) { return size <= GB_CELL_SIZES &&
                                                          pthread_equal(cells->owner, pthread_self()); }

void gb_cells_open(gb_cells *cells) { *cells = (gb_cells){ .owner = pthread_self(), .most = WAIT }; }

void gb_cells_close(gb_cells *cells) {
  for (int i = 0; i < GB_CELL_SIZES; i++) {
    for (gb_cell *cell = cells->waiting[i].first, *next; cell; cell = next) {
      next = cell->next;
      free(cell);
    }
    cells->waiting[i].first = NULL;
    cells->waiting[i].count = 0;
  }
}

void gb_cells_flush(gb_cells *cells) {
  if (is_ours(cells, 0)) gb_cells_close(cells);
}

void *gb_cell_new(gb_cells *cells, size_t bytes) {
  size_t size = size_of(bytes);
  gb_cell *cell = is_ours(cells, size) ? cells->waiting[size - 1].first : NULL;
  if (!cell) return malloc(size * GB_CELL_UNIT);
  cells->waiting[size - 1].first = cell->next;
  cells->waiting[size - 1].count--;
  return cell;
}

void gb_cell_free(gb_cells *cells, void *cell, size_t bytes) {
  size_t size = size_of(bytes);
  if (!is_ours(cells, size) || cells->waiting[size - 1].count >= cells->most) {
    free(cell);
    return;
  }
  gb_cell *first = cell;
  first->next = cells->waiting[size - 1].first;
  cells->waiting[size - 1].first = first;
  cells->waiting[size - 1].count++;
}
