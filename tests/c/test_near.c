/* test_near.c - base/near.h: every float16 and bfloat16 argument of each function against the C library's float64, with
 * errors in 2^x and 1 / x as large as PTX allows its own, of either sign and none. */
#include <math.h>

static float exp2_error, reciprocal_error;

static float exp2_with_error(float x) { return exp2f(x) * (1 + exp2_error); }
static float reciprocal_with_error(float x) { return 1 / x * (1 + reciprocal_error); }
#define GB_NEAR_EXP2 exp2_with_error
#define GB_NEAR_RECIPROCAL reciprocal_with_error

#include "base/near.h"
#include "check.h"

#define BOUND 0.505                    /* ulps: half of one by rounding, and what is lost before it */

typedef struct format {
  const char *name;
  int mantissa, least;                 /* mantissa bits, exponent of the smallest normal number */
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
} format;

static float widen_float16(uint16_t h) { return gb_float16_to_float(h); }
static float widen_bfloat16(uint16_t h) { return gb_bfloat16_to_float(h); }
static uint16_t narrow_float16(float x) { return gb_float_to_float16(x); }
static uint16_t narrow_bfloat16(float x) { return gb_float_to_bfloat16(x); }

static const format formats[] = { { "float16", 10, -14, widen_float16, narrow_float16 },
                                  { "bfloat16", 7, -126, widen_bfloat16, narrow_bfloat16 } };

static double true_tanh(double x) { return tanh(x); }
static double true_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double true_silu(double x) { return x * true_sigmoid(x); }
/* As x sigmoid(2 u), which float64 holds where 1 + tanh u is 0 to it. */
static double true_gelu(double x) { return x * true_sigmoid(2 * gb_gelu_inner(x)); }

static float near_tanh(float x) { return gb_near_tanh(x); }
static float near_sigmoid(float x) { return gb_near_sigmoid(x); }
static float near_silu(float x) { return gb_near_silu(x); }
static float near_gelu(float x) { return gb_near_gelu_tanh(x); }
static float plain_tanh(float x) { return gb_tanhf(x); }
static float plain_sigmoid(float x) { return gb_sigmoidf(x); }
static float plain_silu(float x) { return gb_siluf(x); }
static float plain_gelu(float x) { return gb_gelu_tanhf(x); }

static const struct {
  const char *name;
  double (*truth)(double x);
  float (*near)(float x), (*plain)(float x);
} functions[] = {
  { "tanh", true_tanh, near_tanh, plain_tanh },
  { "sigmoid", true_sigmoid, near_sigmoid, plain_sigmoid },
  { "silu", true_silu, near_silu, plain_silu },
  { "gelu_tanh", true_gelu, near_gelu, plain_gelu },
};

/* The distance between neighbours of the format around a value. */
static double ulp_of(const format *f, double value) {
  int exponent = value == 0 ? f->least : ilogb(value);
  return ldexp(1, (exponent < f->least ? f->least : exponent) - f->mantissa);
}

/* The largest error of a function over all finite arguments of a format, in its ulps. */
static double worst_of(const format *f, int i) {
  double worst = 0;
  for (uint32_t h = 0; h < 65536; h++) {
    float x = f->widen((uint16_t)h);
    if (!isfinite(x)) continue;
    double truth = functions[i].truth((double)x);
    double got = (double)f->widen(f->narrow(functions[i].near(x)));
    double error = fabs(got - truth) / ulp_of(f, truth);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

static void test_errors(void) {
  static const float errors[] = { 0, 0x1p-22f, -0x1p-22f };
  for (int f = 0; f < 2; f++)
    for (int i = 0; i < 4; i++) {
      double worst = 0;
      for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
          exp2_error = errors[a], reciprocal_error = errors[b];
          double error = worst_of(&formats[f], i);
          if (!(error <= worst)) worst = error;
        }
      printf("%s, %s: %.4f ulp\n", functions[i].name, formats[f].name, worst);
      CHECK(worst <= BOUND);
    }
}

/* Infinities, NaN and zeros: what the functions of base/math.h give, sign included. */
static void test_special_values(void) {
  static const float values[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN };
  exp2_error = reciprocal_error = 0;
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 5; j++) {
      float got = functions[i].near(values[j]), plain = functions[i].plain(values[j]);
      CHECK(isnan(plain) ? isnan(got) : got == plain && signbit(got) == signbit(plain));
    }
}

int main(void) {
  test_errors();
  test_special_values();
  return check_report();
}
