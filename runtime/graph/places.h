/* graph/places.h - a number for each of many pointers, by open addressing. Nothing is taken out. */
#ifndef GB_GRAPH_PLACES_H
#define GB_GRAPH_PLACES_H

#include "tensor/context.h"

typedef struct gb_place { const void *key; int64_t number; } gb_place;
/* Begins as zeros. capacity is a power of two, or 0. */
typedef struct gb_places { gb_place *list; size_t used, capacity; } gb_places;

/* The place of a pointer, made with `number` where there is none; it holds until the next one is made. */
gb_status gb_places_make(gb_context *context, gb_places *places, const void *key, int64_t number, gb_place **out);
/* The same, or NULL where none was made. */
gb_place *gb_places_find(const gb_places *places, const void *key);
void gb_places_close(gb_places *places);

#endif
