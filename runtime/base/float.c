/* base/float.c - float64 to the 16-bit formats with one rounding.
 *
 * Going through float32 would round twice. So the step to float32 rounds to odd: what is cut off leaves its trace in the last bit, and
 * the second rounding then gives what a single one would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE
 * Trans. Comput. 57(4), 2008, section 3). float32 has more than two bits to spare over both formats, subnormals included. */
#include "base/float.h"

/* x as a float32, rounded to odd: cut toward zero, with the last bit set when anything was lost. NaN stays NaN. */
static float double_to_odd_float(double x) {
  float f = (float)x;
  if (x != x || (double)f == x) return f;
  uint32_t bits = gb_float_bits(f);
  double size = x < 0 ? -x : x, rounded = f < 0 ? -(double)f : (double)f;
  if (rounded > size) bits--; /* it was rounded away from zero; infinity steps back to the largest float */
  return gb_bits_float(bits | 1u);
}

uint16_t gb_double_to_float16(double x) { return gb_float_to_float16(double_to_odd_float(x)); }
uint16_t gb_double_to_bfloat16(double x) { return gb_float_to_bfloat16(double_to_odd_float(x)); }
