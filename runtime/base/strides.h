/* base/strides.h - what strides alone say of a view, for the engine and its backends. */
#ifndef GB_BASE_STRIDES_H
#define GB_BASE_STRIDES_H

#include <stdbool.h>
#include <stdint.h>

#include "gibbous.h"

/* No two positions of a view are the same element: dims in order of stride, each step beyond all that the smaller ones
 * reach. */
static inline bool gb_is_disjoint(int ndim, const int64_t *shape, const int64_t *strides) {
  int order[GB_MAX_NDIM], n = 0;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] <= 1) continue;
    int at = n++;
    for (; at > 0 && strides[order[at - 1]] > strides[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t reach = 0;
  for (int i = 0; i < n; i++) {
    if (strides[order[i]] <= reach) return false;
    reach += (shape[order[i]] - 1) * strides[order[i]];
  }
  return true;
}

#endif
