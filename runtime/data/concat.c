/* data/concat.c - datasets one behind the other as one. */
#include <inttypes.h>
#include <string.h>

#include "data/dataset.h"

#define SOME 256                       /* samples that are asked for at once, their numbers on the stack */

typedef struct piece { gb_dataset *of; int64_t first; } piece; /* first: its first sample in the whole */
typedef struct chain { int count; piece piece[]; } chain;

/* The piece that a sample lies in: the last that begins at it or before, and has one. */
static const piece *find(const chain *set, int64_t index) {
  int low = 0, high = set->count;
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (set->piece[middle].first <= index) low = middle;
    else high = middle;
  }
  return &set->piece[low];
}

/* Samples of one piece that follow each other are asked for at once. */
static gb_status chain_drawn(void *user, const gb_draw *draw, const int64_t *indices, int64_t n, void *const *out,
                             char *error, size_t error_size) {
  const chain *set = user;
  int64_t inside[SOME];
  void *at[GB_MAX_COLUMNS];
  for (int64_t done = 0, some; done < n; done += some) {
    const piece *p = find(set, indices[done]);
    for (some = 0; some < SOME && done + some < n; some++) {
      inside[some] = indices[done + some] - p->first;
      if (inside[some] < 0 || inside[some] >= p->of->count) break;
    }
    for (int c = 0; c < p->of->columns; c++) at[c] = (char *)out[c] + (size_t)done * p->of->column[c].bytes;
    GB_TRY(gb_dataset_draw(p->of, draw, inside, some, at, error, error_size));
  }
  return GB_OK;
}

static gb_status chain_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                           size_t error_size) {
  return chain_drawn(user, &(gb_draw){ 0 }, indices, n, out, error, error_size);
}

static int64_t chain_skipped(void *user) {
  const chain *set = user;
  int64_t skipped = 0;
  for (int i = 0; i < set->count; i++) {
    gb_dataset *of = set->piece[i].of;
    if (of->skipped) skipped += of->skipped(of->user);
  }
  return skipped;
}

static void chain_release(void *user) {
  chain *set = user;
  for (int i = 0; i < set->count; i++) gb_dataset_release(set->piece[i].of);
  gb_counted_free(set);
}

bool gb_dataset_alike(const gb_dataset *a, const gb_dataset *b) {
  if (a->columns != b->columns) return false;
  for (int c = 0; c < a->columns; c++) {
    const gb_column *x = &a->column[c], *y = &b->column[c];
    if (x->dtype != y->dtype || x->ndim != y->ndim || memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape))
      return false;
  }
  return true;
}

gb_status gb_dataset_concat(gb_context *context, gb_dataset *const *list, int count, gb_dataset **out) {
  if (count < 1) return gb_fail(context, GB_EINVAL, "a dataset of no datasets has no shape");
  for (int i = 1; i < count; i++)
    if (!gb_dataset_alike(list[0], list[i]))
      return gb_fail(context, GB_ESHAPE, "dataset %d has samples of another form than dataset 1", i + 1);
  chain *set = gb_counted_alloc(context, sizeof *set + (size_t)count * sizeof *set->piece);
  if (!set) return context->error_code;
  gb_dataset table = { .columns = list[0]->columns, .get_batch = chain_get, .release = chain_release, .user = set };
  memcpy(table.column, list[0]->column, sizeof table.column);
  for (int i = 0; i < count; i++) {
    if (!list[i]->count) continue;
    set->piece[set->count++] = (piece){ list[i], table.count };
    if (list[i]->get_drawn) table.get_drawn = chain_drawn;
    if (list[i]->skipped) table.skipped = chain_skipped;
    gb_dataset_retain(list[i]);
    if (__builtin_add_overflow(table.count, list[i]->count, &table.count)) {
      chain_release(set);
      return gb_fail(context, GB_EINVAL, "the datasets have more samples than can be counted");
    }
  }
  return gb_dataset_new(context, &table, out);
}
