/* graph/places.c - see places.h. */
#include "graph/places.h"

#include <stdlib.h>

/* The place of a pointer, or the empty one where it would be. */
static gb_place *look(const gb_places *places, const void *key) {
  size_t at = (size_t)((uintptr_t)key * 0x9E3779B97F4A7C15u >> 20) & (places->capacity - 1);
  while (places->list[at].key && places->list[at].key != key) at = (at + 1) & (places->capacity - 1);
  return &places->list[at];
}

static gb_status widen(gb_context *context, gb_places *places) {
  gb_places wide = { .used = places->used, .capacity = places->capacity ? 2 * places->capacity : 64 };
  wide.list = calloc(wide.capacity, sizeof *wide.list);
  if (!wide.list) return gb_fail_memory(context, wide.capacity * sizeof *wide.list);
  for (size_t i = 0; i < places->capacity; i++)
    if (places->list[i].key) *look(&wide, places->list[i].key) = places->list[i];
  free(places->list);
  *places = wide;
  return GB_OK;
}

gb_status gb_places_make(gb_context *context, gb_places *places, const void *key, int64_t number, gb_place **out) {
  if (2 * (places->used + 1) > places->capacity) GB_TRY(widen(context, places));
  gb_place *place = look(places, key);
  if (!place->key) {
    *place = (gb_place){ key, number };
    places->used++;
  }
  *out = place;
  return GB_OK;
}

gb_place *gb_places_find(const gb_places *places, const void *key) {
  gb_place *place = places->capacity ? look(places, key) : NULL;
  return place && place->key ? place : NULL;
}

void gb_places_close(gb_places *places) {
  free(places->list);
  *places = (gb_places){ NULL, 0, 0 };
}
