/* base/formats.h - what the table of dtypes (gibbous.h) says, as the engine and the kernels of every backend use it:
 * sets of dtypes, their sizes and ranges, and the conversions of elements.
 *
 * A conversion goes by how bits are read: PLAIN is what C computes with, HALF and UPPER are the 16-bit floats (IEEE's,
 * and the upper half of a float32), WHOLE is an integer, TRUTH anything but 0. Floats become integers by cutting the
 * fraction, NaN becomes 0 and what is beyond int64 its nearest end; integers wrap at the width of their dtype; every
 * value is rounded once. */
#ifndef GB_BASE_FORMATS_H
#define GB_BASE_FORMATS_H

#include <math.h>

#include "base/float.h"
#include "gibbous.h"

/* {==== what a dtype is ==== */

enum { GB_CATEGORY_BOOL, GB_CATEGORY_INT, GB_CATEGORY_FLOAT };

#define GB_FLOAT_BIT(NAME, name, type, reading, category, ...) \
  | ((uint32_t)(GB_CATEGORY_##category == GB_CATEGORY_FLOAT) << GB_##NAME)
#define GB_INT_BIT(NAME, name, type, reading, category, ...) \
  | ((uint32_t)(GB_CATEGORY_##category == GB_CATEGORY_INT) << GB_##NAME)
#define GB_16BIT_BIT(NAME, name, type, reading, category, ...) \
  | ((uint32_t)(GB_CATEGORY_##category == GB_CATEGORY_FLOAT && sizeof(type) == 2) << GB_##NAME)
#define GB_BYTE_BIT(NAME, name, type, reading, category, digits, least, ...) \
  | ((uint32_t)(GB_CATEGORY_##category != GB_CATEGORY_FLOAT && sizeof(type) == 1 && (least) == 0) << GB_##NAME)

/* Is a dtype in a set, which has a bit for each? */
GB_INLINE bool gb_is_among(uint32_t set, int dtype) { return dtype >= 0 && (set >> dtype & 1u); }

GB_INLINE bool gb_is_float(int dtype) { return gb_is_among(0u GB_DTYPE_LIST(GB_FLOAT_BIT), dtype); }
GB_INLINE bool gb_is_int(int dtype) { return gb_is_among(0u GB_DTYPE_LIST(GB_INT_BIT), dtype); }
/* A float of 16 bits. */
GB_INLINE bool gb_is_16bit(int dtype) { return gb_is_among(0u GB_DTYPE_LIST(GB_16BIT_BIT), dtype); }
/* Whole numbers without a sign in one byte, bool among them. */
GB_INLINE bool gb_is_byte(int dtype) { return gb_is_among(0u GB_DTYPE_LIST(GB_BYTE_BIT), dtype); }

/* The numbers of a row. Every value of a dtype fits in another of its category where digits, least and most do. */
typedef struct gb_format { uint8_t bytes, category, digits; int64_t least, most; } gb_format;

/* Of a dtype that there is. */
static inline const gb_format *gb_format_of(gb_dtype dtype) {
#define GB_FORMAT(NAME, name, type, reading, category, digits, least, most, ...) \
  { sizeof(type), GB_CATEGORY_##category, digits, least, most },
  static const gb_format formats[GB_DTYPE_COUNT] = { GB_DTYPE_LIST(GB_FORMAT) };
#undef GB_FORMAT
  return &formats[dtype];
}

/* Bytes of an element. */
static inline size_t gb_bytes_of(int dtype) {
#define GB_BYTES(NAME, name, type, ...) sizeof(type),
  static const uint8_t bytes[GB_DTYPE_COUNT] = { GB_DTYPE_LIST(GB_BYTES) };
#undef GB_BYTES
  return bytes[dtype];
}

/* All whole numbers from -n to n are exact in a float with so many digits. */
static inline int64_t gb_whole_of(gb_dtype dtype) { return (int64_t)1 << gb_format_of(dtype)->digits; }

/* The largest finite number of a float. */
static inline double gb_largest_of(gb_dtype dtype) {
  const gb_format *f = gb_format_of(dtype);
  return ldexp(2 - ldexp(1, 1 - f->digits), (int)f->most);
}

/* ====} */

/* {==== weight copies ====
 *
 * The dtypes that a float32 weight is copied to once and kept in. Each has its slot. */

#define GB_COPY_LIST(X) X(FLOAT16) X(BFLOAT16)

enum {
#define GB_COPY_SLOT(NAME) GB_COPY_##NAME,
  GB_COPY_LIST(GB_COPY_SLOT)
#undef GB_COPY_SLOT
  GB_COPIES
};

static inline gb_dtype gb_copy_dtype(int slot) {
#define GB_COPY_DTYPE(NAME) GB_##NAME,
  static const gb_dtype dtypes[GB_COPIES] = { GB_COPY_LIST(GB_COPY_DTYPE) };
#undef GB_COPY_DTYPE
  return dtypes[slot];
}

/* The slot of a dtype that has one. */
static inline int gb_copy_slot(gb_dtype dtype) {
  int slot = 0;
  while (slot < GB_COPIES - 1 && gb_copy_dtype(slot) != dtype) slot++;
  return slot;
}

/* ====} */

/* {==== conversions ==== */

GB_INLINE int64_t gb_f64_to_integer(double x) {
  if (x >= -0x1p63 && x < 0x1p63) return (int64_t)x;
  return x > 0 ? INT64_MAX : x < 0 ? INT64_MIN : 0;
}
GB_INLINE int64_t gb_f32_to_integer(float x) { return gb_f64_to_integer((double)x); }
GB_INLINE int64_t gb_i64_to_integer(int64_t x) { return x; }

/* An integer as a float64 that rounds to 16 bits as the integer would: bits that do not fit leave their trace in the
 * last one. */
GB_INLINE double gb_sticky_double(int64_t v) {
  bool large = v >= ((int64_t)1 << 53) || v <= -((int64_t)1 << 53);
  return (double)(large ? (int64_t)(((uint64_t)v & ~(uint64_t)0x7ff) | ((v & 0x7ff) ? 0x400u : 0u)) : v);
}

GB_INLINE uint16_t gb_f32_to_half(float x) { return gb_float_to_float16(x); }
GB_INLINE uint16_t gb_f64_to_half(double x) { return gb_double_to_float16(x); }
GB_INLINE uint16_t gb_i64_to_half(int64_t x) { return gb_double_to_float16(gb_sticky_double(x)); }
GB_INLINE uint16_t gb_f32_to_upper(float x) { return gb_float_to_bfloat16(x); }
GB_INLINE uint16_t gb_f64_to_upper(double x) { return gb_double_to_bfloat16(x); }
GB_INLINE uint16_t gb_i64_to_upper(int64_t x) { return gb_double_to_bfloat16(gb_sticky_double(x)); }

/* The number that the stored x stands for, by its reading. A device with an instruction for it defines its own HALF. */
#define GB_VALUE_PLAIN(x) (x)
#define GB_VALUE_HALF(x) gb_float16_to_float(x)
#define GB_VALUE_UPPER(x) gb_bfloat16_to_float(x)
#define GB_VALUE_WHOLE(x) (x)
#define GB_VALUE_TRUTH(x) ((x) != 0)

/* That number as an integer, by its category. As a float or double it is a cast away. */
#define GB_INTEGER_FLOAT(v) gb_f64_to_integer((double)(v))
#define GB_INTEGER_INT(v) (v)
#define GB_INTEGER_BOOL(v) (v)

/* v, of what a kernel computes in (from: f32, f64 or i64), as it is stored. */
#define GB_STORED_PLAIN(type, from, v) (type)(v)
#define GB_STORED_HALF(type, from, v) gb_##from##_to_half(v)
#define GB_STORED_UPPER(type, from, v) gb_##from##_to_upper(v)
#define GB_STORED_WHOLE(type, from, v) (type)gb_##from##_to_integer(v)
#define GB_STORED_TRUTH(type, from, v) (type)((v) != 0)

/* Element i of memory of a dtype. */
static inline double gb_element_f64(const void *data, gb_dtype dtype, int64_t i) {
  switch (dtype) {
#define GB_ELEMENT(NAME, name, type, reading, ...) \
  case GB_##NAME: return (double)GB_VALUE_##reading(((const type *)data)[i]);
    GB_DTYPE_LIST(GB_ELEMENT)
#undef GB_ELEMENT
    default: return 0;
  }
}
static inline int64_t gb_element_i64(const void *data, gb_dtype dtype, int64_t i) {
  switch (dtype) {
#define GB_ELEMENT(NAME, name, type, reading, category, ...) \
  case GB_##NAME: return (int64_t)GB_INTEGER_##category(GB_VALUE_##reading(((const type *)data)[i]));
    GB_DTYPE_LIST(GB_ELEMENT)
#undef GB_ELEMENT
    default: return 0;
  }
}

/* ====} */

#endif
