/* step/firsts.c - which entries of a list of pointers are the same. See firsts.h. */
#include "step/firsts.h"

#include <stdlib.h>

typedef struct entry { const void *pointer; int place; } entry;

/* By pointer, and of equal ones by place. */
static int compare(const void *x, const void *y) {
  const entry *a = x, *b = y;
  uintptr_t p = (uintptr_t)a->pointer, q = (uintptr_t)b->pointer;
  return p != q ? (p > q) - (p < q) : (a->place > b->place) - (a->place < b->place);
}

gb_status gb_find_firsts(gb_context *context, const void *const *pointers, int count, int *first) {
  entry *sorted = malloc(((size_t)count + 1) * sizeof *sorted);
  if (!sorted) return gb_fail_memory(context, ((size_t)count + 1) * sizeof *sorted);
  for (int i = 0; i < count; i++) sorted[i] = (entry){ pointers[i], i };
  qsort(sorted, (size_t)count, sizeof *sorted, compare);
  for (int k = 0; k < count; k++) {
    bool again = k > 0 && sorted[k].pointer == sorted[k - 1].pointer;
    first[sorted[k].place] = again ? first[sorted[k - 1].place] : sorted[k].place;
  }
  free(sorted);
  return GB_OK;
}
