/* base/float.h - conversions between float32 and the 16-bit formats.
 *
 * Round to nearest even; subnormals kept; overflow to infinity; NaN stays NaN (quiet, sign and top payload bits kept).
 * The scalar functions are the reference; the array functions give the same bits and are vectorised by the level the
 * file is compiled for. */
#ifndef GB_BASE_FLOAT_H
#define GB_BASE_FLOAT_H

#include <stdint.h>
#include <string.h>

/* How functions in headers are declared; a compiler for a device says it in its own way before it includes this. */
#ifndef GB_INLINE
#define GB_INLINE static inline
#endif

GB_INLINE uint32_t gb_float_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
GB_INLINE float gb_bits_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

GB_INLINE float gb_bfloat16_to_float(uint16_t h) { return gb_bits_float((uint32_t)h << 16); }

GB_INLINE uint16_t gb_float_to_bfloat16(float x) {
  uint32_t u = gb_float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN: quiet it */
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Widening shifts the fields into place and lets one multiplication by 2^112 fix the exponent: exact for subnormals
 * too. */
GB_INLINE float gb_float16_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
  if (body >= 0x7c00u)
    return gb_bits_float(sign | 0x7f800000u | ((body & 0x3ffu) << 13) | ((body & 0x3ffu) ? 0x400000u : 0u));
  return gb_bits_float(sign | gb_float_bits(gb_bits_float(body << 13) * 0x1p112f));
}

GB_INLINE uint16_t gb_float_to_float16(float x) {
  uint32_t u = gb_float_bits(x), sign = (u >> 16) & 0x8000u, body = u & 0x7fffffffu;
  if (body > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((body >> 13) & 0x1ffu));
  if (body >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);              /* rounds to 65536 or more */
  /* below 2^-14: adding 0.5 rounds at bit 2^-24 */
  if (body < 0x38800000u) {
    uint32_t r = gb_float_bits(gb_bits_float(body) + 0.5f) - 0x3f000000u;
    return (uint16_t)(sign | r);
  }
  uint32_t odd = (body >> 13) & 1u;
  return (uint16_t)(sign | ((body - 0x38000000u + 0xfffu + odd) >> 13));
}

/* As TensorFloat-32 has it: float32 with 10 bits of mantissa. */
GB_INLINE float gb_float_to_tf32(float x) {
  uint32_t u = gb_float_bits(x), nan = u | 0x400000u, near = u + 0xfffu + ((u >> 13) & 1u);
  return gb_bits_float(((u & 0x7fffffffu) > 0x7f800000u ? nan : near) & 0xffffe000u);
}

/* {---- float64 to 16 bits, rounded once ----
 *
 * Going through float32 would round twice. So the step to float32 rounds to odd: what is cut off leaves its trace in
 * the last bit, and
 * the second rounding then gives what a single one would (Boldo and Melquiond, "Emulation of FMA and correctly rounded
 * sums", IEEE
 * Trans. Comput. 57(4), 2008, section 3). float32 has more than two bits to spare over both formats, subnormals
 * included. */

/* x as a float32, rounded to odd: cut toward zero, with the last bit set when anything was lost. NaN stays NaN. */
GB_INLINE float gb_double_to_odd_float(double x) {
  float f = (float)x;
  if (x != x || (double)f == x) return f;
  uint32_t bits = gb_float_bits(f);
  double size = x < 0 ? -x : x, rounded = f < 0 ? -(double)f : (double)f;
  if (rounded > size) bits--; /* it was rounded away from zero; infinity steps back to the largest float */
  return gb_bits_float(bits | 1u);
}

GB_INLINE uint16_t gb_double_to_float16(double x) { return gb_float_to_float16(gb_double_to_odd_float(x)); }
GB_INLINE uint16_t gb_double_to_bfloat16(double x) { return gb_float_to_bfloat16(gb_double_to_odd_float(x)); }

/* ----} */

#endif
