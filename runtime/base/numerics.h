/* base/numerics.h - what the op `numerics` counts, and where a floating format begins and ends in the bits of another.
 *
 * The bits of a positive float, taken as an integer, are in the order of its value. So whether an element rounds to
 * zero, to a subnormal or to infinity is one comparison of integers each, exact at every boundary and the same on every
 * device. */
#ifndef GB_BASE_NUMERICS_H
#define GB_BASE_NUMERICS_H

#include <math.h>

#include "base/formats.h"

/* Exponents with a bin of their own: floor(log2 |x|) of all float32, subnormals included. Others fall into the end
 * bins. */
enum { GB_NUMERICS_LEAST = -149, GB_NUMERICS_MOST = 127, GB_NUMERICS_BINS = GB_NUMERICS_MOST - GB_NUMERICS_LEAST + 1 };

/* Indices into `counts`: elements that are 0, infinite or NaN; of the others, those that rounding to the format (to
 * nearest even) makes 0, subnormal or infinite; then the bins of these others. */
enum {
  GB_NUMERICS_ZERO, GB_NUMERICS_INFINITE, GB_NUMERICS_NAN, GB_NUMERICS_FLUSHED, GB_NUMERICS_SUBNORMAL,
      GB_NUMERICS_OVERFLOWED,
  GB_NUMERICS_FIRST_BIN, GB_NUMERICS_COUNTS = GB_NUMERICS_FIRST_BIN + GB_NUMERICS_BINS
};

/* Places in `range`: the largest finite magnitude, and the smallest that is not 0; 0 where there is none. */
enum { GB_NUMERICS_AMAX, GB_NUMERICS_AMIN, GB_NUMERICS_RANGE };

/* A binary format: bits of the significand, the hidden one included; the exponents of the smallest and the largest
 * normal number. */
typedef struct gb_float_format { int bits, least, most; } gb_float_format;

static inline gb_float_format gb_float_format_of(gb_dtype dtype) {
  const gb_format *f = gb_format_of(dtype);
  gb_float_format format = { f->digits, (int)f->least, (int)f->most };
  return format;
}

/* Bounds on the bits of a magnitude, as integers. Up to `flushed` (0 excepted) it rounds to 0 in the other format; from
 * `normal` on it rounds to a normal number or beyond; from `overflow` on to infinity. `infinity` is the infinity of its
 * own format. */
typedef struct gb_numerics_bounds { int64_t flushed, normal, overflow, infinity; } gb_numerics_bounds;

/* The bits of 2^exponent; 0 below the format, infinity's above. */
static inline int64_t gb_power_bits(gb_float_format f, int exponent) {
  int place = exponent - (f.least - f.bits + 1);
  if (exponent > f.most) return (int64_t)(f.most - f.least + 2) << (f.bits - 1);
  if (exponent >= f.least) return (int64_t)(exponent - f.least + 1) << (f.bits - 1);
  return place >= 0 ? (int64_t)1 << place : 0;
}

/* 2^exponent in steps of 2^step; 0 for less than one. */
static inline int64_t gb_power_steps(int exponent, int step) { return exponent >= step ? (int64_t)1 << (exponent - step)
                                                               : 0; }

/* The bounds of format `to` in bits of format `from`. A tie goes to the even neighbour: half the smallest subnormal to
 * 0, half a step below the smallest normal number to that number, half a step above the largest to infinity. */
static inline gb_numerics_bounds gb_numerics_bounds_of(gb_dtype from, gb_dtype to) {
  gb_float_format x = gb_float_format_of(from), y = gb_float_format_of(to);
  int below = y.least - 1 > x.least ? y.least - 1 : x.least; /* the exponent of what lies just below y's normal
                                                                numbers */
  gb_numerics_bounds b;
  b.infinity = gb_power_bits(x, x.most + 1);
  b.flushed = gb_power_bits(x, y.least - y.bits);
  b.normal = gb_power_bits(x, y.least) - gb_power_steps(y.least - y.bits, below - x.bits + 1);
  if (b.normal <= b.flushed) b.normal = b.flushed + 1; /* all that x has is normal in y */
  b.overflow = gb_power_bits(x, y.most + 1);
  if (y.most <= x.most) b.overflow -= gb_power_steps(y.most - y.bits, y.most - x.bits + 1);
  return b;
}

/* Below this a number that is stored in `dtype` is negative there. From it on up to 0 one of a longer format becomes
 * -0, which ReLU passes on: so ReLU by this bound, before a number is rounded, gives the bits of ReLU after it. */
static inline double gb_negative_below(gb_dtype dtype) {
  gb_float_format f = gb_float_format_of(dtype);
  return f.bits < 24 ? -ldexp(1, f.least - f.bits) : 0;
}

#endif
