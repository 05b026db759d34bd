/* elements.h - elements of floating dtypes one by one, for what stands in for libraries. */
#ifndef GB_STAND_IN_ELEMENTS_H
#define GB_STAND_IN_ELEMENTS_H

#include <stdlib.h>

#include "base/math.h"
#include "cuda/call.h"

static const uint8_t bytes_of[] = { [GB_FLOAT64] = 8, [GB_FLOAT32] = 4, [GB_FLOAT16] = 2, [GB_BFLOAT16] = 2 };
static inline char *at(const void *data, gb_dtype dtype, int64_t i) {
  return (char *)data + i * (int64_t)bytes_of[dtype];
}

static inline double load(const void *data, gb_dtype dtype, int64_t i) {
  switch (dtype) {
    case GB_FLOAT64: return ((const double *)data)[i];
    case GB_FLOAT32: return (double)((const float *)data)[i];
    case GB_FLOAT16: return (double)gb_float16_to_float(((const uint16_t *)data)[i]);
    default: return (double)gb_bfloat16_to_float(((const uint16_t *)data)[i]);
  }
}

static inline void store(void *data, gb_dtype dtype, int64_t i, double value) {
  switch (dtype) {
    case GB_FLOAT64: ((double *)data)[i] = value; break;
    case GB_FLOAT32: ((float *)data)[i] = (float)value; break;
    case GB_FLOAT16: ((uint16_t *)data)[i] = gb_float_to_float16((float)value); break;
    default: ((uint16_t *)data)[i] = gb_float_to_bfloat16((float)value); break;
  }
}

/* Bytes of so many elements. */
static inline size_t size_of(gb_dtype dtype, int64_t count) { return (size_t)count * bytes_of[dtype]; }

/* Is the libraries' ReLU to make 0 of NaN? */
static inline bool drops_nan(void) { return getenv("GIBBOUS_RELU_DROPS_NAN") != NULL; }

#endif
