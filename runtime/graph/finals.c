/* graph/finals.c - counting the uses of leaves, by a worklist over the graph. */
#include "graph/finals.h"

#include <stdlib.h>
#include <string.h>

#include "graph/room.h"

static size_t place_of(const void *key, size_t capacity) {
  return (size_t)((uintptr_t)key >> 5) * 0x9E3779B97F4A7C15u >> 20 & (capacity - 1);
}

static gb_status add_use(gb_context *context, gb_finals *f, const gb_tensor *leaf) {
  gb_place *place;
  GB_TRY(gb_places_make(context, &f->uses, leaf, 0, &place));
  place->number++;
  return GB_OK;
}

void gb_finals_close(gb_finals *f) { gb_places_close(&f->uses); }

/* {==== The worklist ==== */

/* Nodes that were met, in a set and in order. */
typedef struct met { const gb_node **set, **list; size_t used, capacity; } met;

static gb_status widen(gb_context *context, met *m) {
  size_t capacity = m->capacity ? 2 * m->capacity : 256;
  const gb_node **set = calloc(capacity, sizeof *set), **list = realloc(m->list, capacity * sizeof *list);
  if (list) m->list = list;
  if (!set || !list) return free(set), gb_fail_memory(context, capacity * sizeof *set);
  for (size_t i = 0; i < m->used; i++) {
    size_t at = place_of(list[i], capacity);
    while (set[at]) at = (at + 1) & (capacity - 1);
    set[at] = list[i];
  }
  free(m->set);
  m->set = set;
  m->capacity = capacity;
  return GB_OK;
}

static gb_status meet(gb_context *context, met *m, const gb_node *node) {
  if (2 * (m->used + 1) > m->capacity) GB_TRY(widen(context, m));
  size_t at = place_of(node, m->capacity);
  while (m->set[at] && m->set[at] != node) at = (at + 1) & (m->capacity - 1);
  if (m->set[at]) return GB_OK;
  m->set[at] = m->list[m->used++] = node;
  return GB_OK;
}

/* Every node that the first one's graph has, and the leaves that they use. */
static gb_status go_through(gb_context *context, gb_finals *f, met *m, const gb_node *first, bool *recomputes) {
  GB_TRY(meet(context, m, first));
  for (size_t i = 0; i < m->used; i++) {
    const gb_node *node = m->list[i];
    if (i % 4096 == 0) GB_TRY(gb_poll(context));
    *recomputes |= node->rerun != NULL;
    for (int k = 0; k < node->n_in; k++) {
      const gb_edge *edge = &node->edges[k];
      if (edge->leaf) GB_TRY(add_use(context, f, edge->leaf));
      if (edge->node) GB_TRY(meet(context, m, edge->node));
    }
  }
  return GB_OK;
}

gb_status gb_finals_count(gb_context *context, gb_finals *f, const gb_tensor *root) {
  met m = { NULL, NULL, 0, 0 };
  bool recomputes = false;
  if (!root->node) return GB_OK;
  gb_status status = go_through(context, f, &m, root->node, &recomputes);
  free(m.set);
  free(m.list);
  if (recomputes) gb_finals_close(f);
  return status;
}

/* ====} */

gb_status gb_finals_pass(gb_context *context, gb_finals *f, const gb_node *node) {
  for (int k = 0; k < node->n_in; k++) {
    gb_tensor *leaf = node->edges[k].leaf;
    gb_place *uses = leaf ? gb_places_find(&f->uses, leaf) : NULL;
    const gb_leaf_watch *watch = context->graph->watch;
    if (uses && --uses->number == 0 && watch && !leaf->hooks) GB_TRY(watch->final(watch->user, leaf));
  }
  return GB_OK;
}
