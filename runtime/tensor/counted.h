/* tensor/counted.h - memory that counts towards the limit on tensor bytes (gb_counted_alloc), for threads beside that
 * of the context: nothing is reclaimed for it, and no text is set. */
#ifndef GB_TENSOR_COUNTED_H
#define GB_TENSOR_COUNTED_H

#include "tensor/context.h"

/* A new block, for gb_counted_free; NULL: there is none. */
void *gb_counted_try(gb_context *context, size_t bytes);

#endif
