/* graph/number.h - numbers among an op's attributes, as checks and the kernels of every backend read them.
 *
 * A number that came as an integer keeps all its 64 bits (gb_attr.whole and .exact); `number` is then the double next
 * to it. What computes in integers reads gb_number_integer, everything else `number`. */
#ifndef GB_GRAPH_NUMBER_H
#define GB_GRAPH_NUMBER_H

#include "base/formats.h"

/* The integer that a number is; a fraction is cut off, NaN is 0, and what is beyond int64 its nearest end. */
static inline int64_t gb_number_integer(const gb_attr *a) {
  return a->whole ? a->exact : gb_f64_to_integer(a->number);
}

/* In float32, rounded once. */
static inline float gb_number_float(const gb_attr *a) { return a->whole ? (float)a->exact : (float)a->number; }

/* Where a number's whole part lies: -1 below the range of an integer dtype, 0 in it, 1 above it. NaN lies in none:
 * 2. */
static inline int gb_number_side(const gb_attr *a, gb_dtype dtype) {
  if (!a->whole && a->number != a->number) return 2;
  if (!a->whole && !(a->number >= -0x1p63 && a->number < 0x1p63)) return a->number > 0 ? 1 : -1;
  int64_t value = gb_number_integer(a);
  return value < gb_format_of(dtype)->least ? -1 : value > gb_format_of(dtype)->most;
}

#endif
