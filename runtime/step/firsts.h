/* step/firsts.h - which entries of a list of pointers are the same. A list of parameters may hold a hundred thousand,
 * so it is sorted; to look each up among those before it would take seconds that no interrupt ends. */
#ifndef GB_STEP_FIRSTS_H
#define GB_STEP_FIRSTS_H

#include "tensor/context.h"

/* first[i]: the first place with the pointer of place i, so i itself where it has not come before. */
gb_status gb_find_firsts(gb_context *context, const void *const *pointers, int count, int *first);

#endif
