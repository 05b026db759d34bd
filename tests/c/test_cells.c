/* test_cells.c - small structs that wait for the next of their size: reuse, what is too large or too many, other
 * threads, the end. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cells.h"
#include "check.h"

static int waiting(const gb_cells *cells,
                   size_t bytes) { return cells->waiting[(bytes + GB_CELL_UNIT - 1) / GB_CELL_UNIT - 1].count; }

static void test_reuse(void) {
  gb_cells cells;
  gb_cells_open(&cells);
  cells.most = 2; /* 0 under the address sanitizer */
  char *a = gb_cell_new(&cells, 100), *b = gb_cell_new(&cells, 128);
  CHECK(a && b && a != b);
  memset(a, 1, 128); /* sizes are rounded up to lines */
  gb_cell_free(&cells, a, 100);
  CHECK(waiting(&cells, 128) == 1 && gb_cell_new(&cells, 65) == (void *)a && waiting(&cells, 128) == 0);
  gb_cell_free(&cells, a, 65);
  char *other = gb_cell_new(&cells, 129);
  CHECK(other && other != a && waiting(&cells, 128) == 1);
  gb_cell_free(&cells, other, 129);
  gb_cell_free(&cells, b, 128);
  char *third = malloc(128);
  gb_cell_free(&cells, third, 128); /* one too many */
  CHECK(waiting(&cells, 128) == 2 && waiting(&cells, 129) == 1);
  gb_cells_flush(&cells);
  CHECK(waiting(&cells, 128) == 0 && waiting(&cells, 129) == 0);
  gb_cells_close(&cells);
}

static void test_sizes(void) {
  gb_cells cells;
  gb_cells_open(&cells);
  cells.most = 4;
  for (size_t bytes = 1; bytes <= 2 * GB_CELL_SIZES * GB_CELL_UNIT; bytes += 13) {
    char *cell = gb_cell_new(&cells, bytes);
    CHECK(cell);
    memset(cell, 7, bytes);
    gb_cell_free(&cells, cell, bytes);
  }
  int count = 0;
  for (int i = 0; i < GB_CELL_SIZES; i++) count += cells.waiting[i].count;
  CHECK(count == GB_CELL_SIZES); /* one of each size; the larger ones went back */
  gb_cells_close(&cells);
}

/* Another thread neither takes what waits nor adds to it. NULL: it did not. */
static void *other_thread(void *user) {
  gb_cells *cells = user;
  void *cell = gb_cell_new(cells, 64);
  bool took = !cell || cell == cells->waiting[0].first;
  gb_cell_free(cells, cell, 64);
  gb_cells_flush(cells);
  return took ? user : NULL;
}

static void test_thread(void) {
  gb_cells cells;
  pthread_t thread;
  gb_cells_open(&cells);
  cells.most = 4;
  gb_cell_free(&cells, gb_cell_new(&cells, 64), 64);
  CHECK(waiting(&cells, 64) == 1);
  CHECK(pthread_create(&thread, NULL, other_thread, &cells) == 0);
  void *took = &cells;
  pthread_join(thread, &took);
  CHECK(!took && waiting(&cells, 64) == 1);
  gb_cells_close(&cells);
  CHECK(waiting(&cells, 64) == 0);
}

int main(void) {
  test_reuse();
  test_sizes();
  test_thread();
  return check_report();
}
