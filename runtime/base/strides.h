/* base/strides.h - sizes, and what strides alone say of a view, for the engine and its backends. */
#ifndef GB_BASE_STRIDES_H
#define GB_BASE_STRIDES_H

#include <stdbool.h>
#include <stdint.h>

#include "gibbous.h"

/* The most elements that a tensor or a view may have: their bytes, and working memory for some of them in each thread,
 * can be counted in 64 bits, and a double holds every position. */
#define GB_MAX_NUMEL (INT64_C(1) << 53)

/* a * b of sizes; what 64 bits cannot count is a size that no tensor may have. */
static inline int64_t gb_size_times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

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
