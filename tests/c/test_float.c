/* test_float.c - base/float.h against an independent definition of the formats.
 *
 * The definition: a value of the format is a multiple of a quantum (a power of two that depends on the binade);
 * rounding is to the nearest multiple, ties to even, which nearbyint does exactly on the quotient. Decoding goes
 * through ldexp. */
#include <math.h>
#include <stdlib.h>

#include "base/float.h"
#include "base/philox.h"
#include "check.h"

typedef struct format {
  const char *name;
  int mantissa, least;             /* mantissa bits, exponent of the smallest normal number */
  uint16_t infinity;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t (*narrow_double)(double);
} format;

static float widen_float16(uint16_t h) { return gb_float16_to_float(h); }
static float widen_bfloat16(uint16_t h) { return gb_bfloat16_to_float(h); }
static uint16_t narrow_float16(float x) { return gb_float_to_float16(x); }
static uint16_t narrow_bfloat16(float x) { return gb_float_to_bfloat16(x); }

static const format float16 = { "float16", 10, -14, 0x7c00, widen_float16, narrow_float16, gb_double_to_float16 };
static const format bfloat16 = { "bfloat16", 7, -126, 0x7f80, widen_bfloat16, narrow_bfloat16, gb_double_to_bfloat16 };

/* The value of a finite pattern, from the fields. */
static double decode(const format *f, uint16_t h) {
  int exponent = (h & 0x7fff) >> f->mantissa, fraction = h & ((1 << f->mantissa) - 1);
  double size = exponent ? ldexp((double)(fraction + (1 << f->mantissa)), exponent - 1 + f->least - f->mantissa)
                         : ldexp((double)fraction, f->least - f->mantissa);
  return (h & 0x8000) ? -size : size;
}

/* x is not NaN: h is the pattern of x rounded to the format. */
static int is_rounded(const format *f, double x, uint16_t h) {
  int exponent;
  if (!!signbit(x) != (h >> 15)) return 0;
  if (x == 0) return (h & 0x7fff) == 0;
  if (isinf(x)) return (h & 0x7fff) == f->infinity;
  frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
  exponent = exponent - 1 < f->least ? f->least : exponent - 1;
  double rounded = ldexp(nearbyint(ldexp(fabs(x), f->mantissa - exponent)), exponent - f->mantissa);
  double largest = fabs(decode(f, (uint16_t)(f->infinity - 1)));
  if (rounded > largest) return (h & 0x7fff) == f->infinity;
  return (h & 0x7fff) < f->infinity && fabs(decode(f, h)) == rounded;
}

/* Every pattern: widening is exact, and comes back; NaN stays NaN with its sign and gets quiet. */
static void test_patterns(const format *f) {
  int exact = 0, back = 0, nan = 0, nans = 0;
  uint16_t quiet = (uint16_t)(1 << (f->mantissa - 1));
  for (uint32_t h = 0; h < 65536; h++) {
    float wide = f->widen((uint16_t)h);
    if ((h & 0x7fff) > f->infinity) {
      nans++;
      nan += isnan(wide) && !!signbit(wide) == (h >> 15) && f->narrow(wide) == (h | quiet) &&
          f->narrow_double((double)wide) == (h | quiet);
      continue;
    }
    exact += (h & 0x7fff) == f->infinity ? isinf(wide) &&
        !!signbit(wide) == (h >> 15) : (double)wide == decode(f, (uint16_t)h);
    back += f->narrow(wide) == h && f->narrow_double((double)wide) == h;
  }
  CHECK(nan == nans && nans > 0);
  CHECK(exact == 65536 - nans);
  CHECK(back == 65536 - nans);
}

/* Halfway between each two neighbours, and one step of the wider type to either side. */
static void test_ties(const format *f) {
  int good = 0, count = 0;
  for (uint16_t h = 0; h < f->infinity; h++) {
    double low = decode(f, h), high = h + 1 == f->infinity ? 2 * low - decode(f, (uint16_t)(h - 1))
        : decode(f, (uint16_t)(h + 1));
    double middle = (low + high) / 2, wide[5] = { middle, nextafter(middle, 0), nextafter(middle, INFINITY), -middle,
                                                  (low + middle) / 2 };
    float narrow[4] = { (float)middle, nextafterf((float)middle, 0), nextafterf((float)middle, INFINITY),
                        -(float)middle };
    for (int i = 0; i < 5; i++, count++) good += is_rounded(f, wide[i], f->narrow_double(wide[i]));
    if ((double)narrow[0] != middle) continue;
    for (int i = 0; i < 4; i++, count++) good += is_rounded(f, narrow[i], f->narrow(narrow[i]));
  }
  CHECK(good == count && count > 100000);
}

/* The whole range of float32, in steps of a prime so that all low bits occur. */
static void test_range(const format *f, uint64_t step) {
  uint64_t good = 0, count = 0;
  for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += step, count++) {
    float x = gb_bits_float((uint32_t)bits);
    uint16_t h = f->narrow(x);
    good += isnan(x) ? (h & 0x7fff) > f->infinity && (h >> 15) == (bits >> 31) : is_rounded(f, (double)x, h);
  }
  CHECK(good == count);
}

/* Random float64 around the range of the format, with all 52 bits. */
static void test_doubles(const format *f) {
  int good = 0, count = 200000;
  for (int i = 0; i < count; i++) {
    uint32_t r[4];
    gb_philox(7, 0, (uint64_t)i, r);
    double x = ldexp(1.0 + gb_uniform64(r[0], r[1]), (int)(r[2] % 300) - 150);
    good += is_rounded(f, (r[3] & 1) ? -x : x, f->narrow_double((r[3] & 1) ? -x : x));
  }
  CHECK(good == count);
}

/* Cases with names: what rounding twice would get wrong, and the edges. */
static void test_named(void) {
  CHECK(gb_double_to_float16(1.0 + 0x1p-11 + 0x1p-40) == 0x3c01);  /* through float32: a tie, to 0x3c00 */
  CHECK(gb_double_to_float16(1.0 + 0x1p-11) == 0x3c00);
  CHECK(gb_double_to_bfloat16(1.0 + 0x1p-8 + 0x1p-40) == 0x3f81);
  CHECK(gb_double_to_float16(65519.999999999) == 0x7bff && gb_double_to_float16(65520.0) == 0x7c00);
  CHECK(gb_float_to_float16(65519.996f) == 0x7bff && gb_float_to_float16(-65520.0f) == 0xfc00);
  CHECK(gb_double_to_float16(0x1p-25) == 0 && gb_double_to_float16(0x1p-25 + 0x1p-70) == 1 &&
        gb_double_to_float16(-0x1p-1000) == 0x8000);
  CHECK(gb_double_to_bfloat16(1e300) == 0x7f80 && gb_double_to_bfloat16(-1e300) == 0xff80 &&
        gb_double_to_bfloat16(0x1p-1074) == 0);
  CHECK(gb_float_to_bfloat16(3.4028235e38f) == 0x7f80 && gb_double_to_bfloat16(3.39e38) == 0x7f7f);
  CHECK(gb_double_to_float16((double)NAN) == 0x7e00 && gb_double_to_bfloat16((double)NAN) == 0x7fc0);
}

int main(int argc, char **argv) {
  const format *formats[] = { &float16, &bfloat16 };
  uint64_t step = argc > 1 ? strtoull(argv[1], NULL, 10) : 1009; /* 1: all of float32 */
  for (int i = 0; i < 2; i++) {
    test_patterns(formats[i]);
    test_ties(formats[i]);
    test_range(formats[i], step ? step : 1009);
    test_doubles(formats[i]);
  }
  test_named();
  return check_report();
}
