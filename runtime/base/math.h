/* base/math.h - float32 functions without branches, which the compiler turns into vector code, the activations built on
 * them, and both in float64, by the C library.
 *
 * Each of float32 is right over the whole range: subnormals, infinities, NaN and the sign of zero included. The comment
 * above a function gives the largest error in ulp that was found against the C library's float64 function over every
 * 13th of all float32 values, at each level. The coefficients are minimax fits made for these intervals, rounded to
 * float32 one after another. */
#ifndef GB_BASE_MATH_H
#define GB_BASE_MATH_H

#include <math.h>

#include "base/float.h"

/* x = n * ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to an integer, whose bits stay in the low
 * mantissa. */
GB_INLINE float gb_reduce_ln2(float x, int32_t *n) {
  float shifted = x * 0x1.715476p+0f + 0x1.8p+23f, k = shifted - 0x1.8p+23f;
  *n = (int32_t)(gb_float_bits(shifted) - 0x4b400000u);
  return (x - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;
}

/* exp(r) - 1 - r for |r| <= ln(2) / 2. */
GB_INLINE float gb_exp_tail(float r) {
  float p = 0x1.6d4ce6p-10f + r * 0x1.a247b8p-13f;
  p = 0x1.111002p-7f + r * p;
  p = 0x1.5554e8p-5f + r * p;
  p = 0x1.555556p-3f + r * p;
  return r * r * (0.5f + r * p);
}

/* 2^n for -126 <= n <= 127. */
GB_INLINE float gb_power_of_2(int32_t n) { return gb_bits_float((uint32_t)(n + 127) << 23); }

/* 0.78 ulp. The scaling by 2^n takes two steps, so that results below 2^-126 are rounded once and those above the range
 * overflow. */
GB_INLINE float gb_expf(float x) {
  int32_t n;
  float limited = x > 89.0f ? 89.0f : x;
  limited = limited < -104.0f ? -104.0f : limited;
  float r = gb_reduce_ln2(limited, &n);
  int32_t half = n >> 1;
  float sum = 1.0f + r, lost = r - (sum - 1.0f);
  return (sum + (lost + gb_exp_tail(r))) * gb_power_of_2(half) * gb_power_of_2(n - half);
}

/* 2^32 exp(x) for x up to 44, where softmax and its kin, whose x is never above 0, spend their time. 0.88 ulp; 1.17 ulp
 * without fused multiply-add. Lifted so far, no result is subnormal but those below e^-104, which are 0; so 2^n is one
 * factor, whose exponent grows in the low bits of what rounds x / ln 2. */
GB_INLINE float gb_expf_lifted(float x) {
  float shifted = x * 0x1.715476p+0f + (0x1.8p+23f + 159.0f), k = shifted - (0x1.8p+23f + 159.0f);
  float r = (x - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;
  float p = 0x1.12399cp-7f + r * 0x1.6a4ecep-10f;
  p = 0x1.5558b0p-5f + r * p;
  p = 0x1.555492p-3f + r * p;
  p = 0x1.fffffcp-2f + r * p;
  p = 1.0f + r * p;
  p = 1.0f + r * p;
  float y = p * gb_bits_float(gb_float_bits(shifted) << 23);
  return x < -104.0f ? 0.0f : y;
}

/* 1.44 ulp. 2^n exp(r) - 1, computed at half its size so that 2^128 does not overflow too early. */
GB_INLINE float gb_expm1f(float x) {
  int32_t n;
  float limited = x > 89.0f ? 89.0f : x;
  limited = limited < -20.0f ? -20.0f : limited;
  float r = gb_reduce_ln2(limited, &n), half = gb_power_of_2(n - 1);
  float y = 2.0f * (half * (r + gb_exp_tail(r)) + (half - 0.5f));
  return fabsf(x) < 0x1p-25f ? x : y;
}

/* log(2^k * (1 + f)) + correction for 1 + f in [sqrt(1/2), sqrt(2)); by the series in s = f / (2 + f), as in the
 * FreeBSD library. */
GB_INLINE float gb_log_parts(float f, float k, float correction) {
  float s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
  float p = 0x1.23d3fep-2f + z * 0x1.f1308ep-3f;
  p = 0x1.999c26p-2f + z * p;
  p = z * (0x1.555554p-1f + z * p);
  return k * 0x1.62e3p-1f + (f - (half - (s * (half + p) + (k * 0x1.2fefa2p-17f + correction))));
}

/* 0.82 ulp. */
GB_INLINE float gb_logf(float x) {
  float scaled = x < 0x1p-126f ? x * 0x1p23f : x, shift = x < 0x1p-126f ? 23.0f : 0.0f;
  uint32_t u = gb_float_bits(scaled) - 0x3f3504f3u;
  float f = gb_bits_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float y = gb_log_parts(f, (float)((int32_t)u >> 23) - shift, 0.0f);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x;
}

/* 0.83 ulp. What 1 + x loses in rounding comes back as a correction. */
GB_INLINE float gb_log1pf(float x) {
  float sum = 1.0f + x;
  uint32_t u = gb_float_bits(sum) - 0x3f3504f3u;
  int32_t k = (int32_t)u >> 23;
  float lost = x > 1.0f ? 1.0f - (sum - x) : x - (sum - 1.0f);
  float f = gb_bits_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float y = gb_log_parts(k == 0 ? x : f, (float)k, k == 0 ? 0.0f : lost / sum);
  y = fabsf(x) < 0x1p-25f ? x : y;
  y = x == -1.0f ? -INFINITY : y;
  y = x < -1.0f ? NAN : y;
  return x < INFINITY ? y : x;
}

/* 1.35 ulp. */
GB_INLINE float gb_tanhf(float x) {
  float size = fabsf(x), s = x * x;
  float p = 0x1.524cccp-6f + s * -0x1.767dc6p-8f;
  p = -0x1.b842cep-5f + s * p;
  p = 0x1.11075ep-3f + s * p;
  p = -0x1.555534p-2f + s * p;
  float inner = x + x * (s * p), outer = 1.0f - 2.0f / (gb_expf(2.0f * size) + 1.0f);
  return size < 0.625f ? inner : copysignf(outer, x);
}

/* 1.12 ulp. Near 0 a polynomial in x^2, further out 1 - exp of a polynomial in |x|; from 4 on it is 1. */
GB_INLINE float gb_erff(float x) {
  float size = fabsf(x), t = size > 4.0f ? 4.0f : size, s = t * t;
  float p = -0x1.a606f8p-11f + s * 0x1.4f578ap-14f;
  p = 0x1.5449e6p-8f + s * p;
  p = -0x1.b80118p-6f + s * p;
  p = 0x1.ce2d64p-4f + s * p;
  p = -0x1.812740p-2f + s * p;
  p = 0x1.06eba8p-3f + s * p;
  float q = -0x1.52795cp-12f + t * 0x1.78d116p-17f;
  q = 0x1.dd6ba8p-9f + t * q;
  q = -0x1.855122p-6f + t * q;
  q = 0x1.b32568p-4f + t * q;
  q = 0x1.45328ep-1f + t * q;
  q = 0x1.0778dcp-3f + t * q;
  float inner = x + x * p, outer = 1.0f - gb_expf(-(t + t * q));
  return size < 0.925f ? inner : copysignf(outer, x);
}

/* 3.65 ulp. x times a polynomial in the logarithm of 1 - x^2, or in its root where x is near 1 (Giles, "Approximating the
 * erfinv function", 2010). */
GB_INLINE float gb_erfinvf(float x) {
  float w = -gb_logf((1.0f - x) * (1.0f + x)), t = w - 2.5f, s = sqrtf(w) - 3.0f;
  float p = 3.43273939e-7f + 2.81022636e-8f * t;
  p = -3.5233877e-6f + p * t;
  p = -4.39150654e-6f + p * t;
  p = 2.1858087e-4f + p * t;
  p = -1.25372503e-3f + p * t;
  p = -4.17768164e-3f + p * t;
  p = 0.246640727f + p * t;
  p = 1.50140941f + p * t;
  float q = 1.00950558e-4f - 2.00214257e-4f * s;
  q = 1.34934322e-3f + q * s;
  q = -3.67342844e-3f + q * s;
  q = 5.73950773e-3f + q * s;
  q = -7.6224613e-3f + q * s;
  q = 9.43887047e-3f + q * s;
  q = 1.00167406f + q * s;
  q = 2.83297682f + q * s;
  float y = (w < 5.0f ? p : q) * x;
  return fabsf(x) == 1.0f ? x * INFINITY : y;
}

/* 1.96 ulp. exp is taken of -|x|, so nothing overflows and small results keep their precision; what 1 + e loses is put
 * back, with 1 / (1 + e) known from y itself. */
GB_INLINE float gb_sigmoidf(float x) {
  float e = gb_expf(-fabsf(x)), sum = 1.0f + e, lost = e - (sum - 1.0f);
  float y = (x < 0.0f ? e : 1.0f) / sum;
  return y - y * (lost * (x < 0.0f ? 1.0f - y : y));
}

/* The sine and cosine of 2 pi u, u in [0, 1]: for random normals. Absolute error below 1e-7. */
GB_INLINE void gb_sincos_turns(float u, float *sine, float *cosine) {
  float shifted = 4.0f * u + 0x1.8p+23f;
  uint32_t quadrant = gb_float_bits(shifted);
  float r = (u - 0.25f * (shifted - 0x1.8p+23f)) * 0x1.921fb6p+2f, z = r * r;
  float s = r + r * z * (-0x1.555546p-3f + z * (0x1.11077cp-7f + z * -0x1.9955b0p-13f));
  float c = 1.0f - 0.5f * z + z * z * (0x1.55554ap-5f + z * (-0x1.6c0c1ap-10f + z * 0x1.99e0e4p-16f));
  float a = (quadrant & 1u) ? c : s, b = (quadrant & 1u) ? s : c;
  *sine = (quadrant & 2u) ? -a : a;
  *cosine = ((quadrant + 1u) & 2u) ? -b : b;
}

/* {==== the same in float64: the C library's ==== */

GB_INLINE double gb_exp(double x) { return exp(x); }
GB_INLINE double gb_expm1(double x) { return expm1(x); }
GB_INLINE double gb_log(double x) { return log(x); }
GB_INLINE double gb_log1p(double x) { return log1p(x); }
GB_INLINE double gb_tanh(double x) { return tanh(x); }
GB_INLINE double gb_erf(double x) { return erf(x); }
/* 1 ulp. A quotient of polynomials, then two steps of Halley's; near 1 with erfc, which keeps what erf loses. */
GB_INLINE double gb_erfinv(double x) {
  double size = fabs(x), z = x * x, y;
  if (size <= 0.7) {
    y = size * (((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899);
    y /= (((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1;
  } else {
    z = sqrt(-log((1 - size) / 2));
    y = (((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454) / ((1.6370678 * z + 3.5438892) * z + 1);
  }
  for (int i = 0; i < 2; i++) {
    double error = size < 0.5 ? erf(y) - size : (1 - size) - erfc(y);
    double step = error / (1.12837916709551257390 * exp(-y * y));
    y -= step / (1 + y * step);
  }
  return size == 1 ? x * INFINITY : copysign(y, x);
}
GB_INLINE double gb_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

/* ====} */

/* {==== activations and their derivatives ==== */

GB_INLINE float gb_siluf(float x) { return x * gb_sigmoidf(x); }
GB_INLINE double gb_silu(double x) { return x * gb_sigmoid(x); }

GB_INLINE float gb_silu_slopef(float x) {
  float s = gb_sigmoidf(x);
  return s * (1.0f + x * (1.0f - s));
}
GB_INLINE double gb_silu_slope(double x) { return gb_sigmoid(x) * (1 + x * (1 - gb_sigmoid(x))); }

/* The normal distribution at x: how dense it is there, and how much of it lies below. Both from one exponential: below
 * -t lies exp(-t^2 / 2) times a polynomial in t / (1 + t/4), whose coefficients take the exponential's lift back.
 * Absolute errors below 1e-7; as x falls the share below loses t^2 / 2 ulp, where 1 + erf would lose all. */
typedef struct gb_normal { float density, below; } gb_normal;
GB_INLINE gb_normal gb_normal_at(float x) {
  float size = fabsf(x), t = size > 16.0f ? 16.0f : size, w = t / (1.0f + 0.25f * t);
  float p = -0x1.3dc47cp-46f + w * 0x1.8beb82p-50f;
  p = 0x1.31d44ep-45f + w * p;
  p = 0x1.b901a0p-41f + w * p;
  p = -0x1.0d779cp-37f + w * p;
  p = 0x1.33bb72p-35f + w * p;
  p = -0x1.988442p-34f + w * p;
  p = 0x1p-33f + w * p;
  float lifted = gb_expf_lifted(-0.5f * t * t), tail = lifted * p;
  gb_normal normal = { 0x1.988454p-34f * lifted, x < 0.0f ? tail : 1.0f - tail };
  return normal;
}

/* Phi(x) + x * phi(x) */
GB_INLINE float gb_gelu_slope_of(float x, gb_normal normal) { return normal.below + x * normal.density; }

GB_INLINE float gb_geluf(float x) { return x * gb_normal_at(x).below; }
GB_INLINE float gb_gelu_slopef(float x) { return gb_gelu_slope_of(x, gb_normal_at(x)); }

#define GB_SQRT_HALF 0.70710678118654752440
GB_INLINE double gb_gelu(double x) { return 0.5 * x * (1 + erf(x * GB_SQRT_HALF)); }
GB_INLINE double gb_gelu_slope(double x) {
  return 0.5 * (1 + erf(x * GB_SQRT_HALF)) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* The approximate gelu takes tanh of sqrt(2 / pi) * (x + GB_GELU_CUBIC x^3); this is the only place of its
 * constants. */
#define GB_SQRT_2_OVER_PI 0.79788456080286535588
#define GB_GELU_CUBIC 0.044715
GB_INLINE float gb_gelu_innerf(float x) { return (float)GB_SQRT_2_OVER_PI * (x + (float)GB_GELU_CUBIC * x * x * x); }
GB_INLINE double gb_gelu_inner(double x) { return GB_SQRT_2_OVER_PI * (x + GB_GELU_CUBIC * x * x * x); }

GB_INLINE float gb_gelu_tanhf(float x) { return 0.5f * x * (1.0f + gb_tanhf(gb_gelu_innerf(x))); }
GB_INLINE double gb_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(gb_gelu_inner(x))); }

GB_INLINE float gb_gelu_tanh_slopef(float x) {
  float t = gb_tanhf(gb_gelu_innerf(x)), inner = (float)GB_SQRT_2_OVER_PI * (1.0f + (float)(3 * GB_GELU_CUBIC) * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}
GB_INLINE double gb_gelu_tanh_slope(double x) {
  double t = tanh(gb_gelu_inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GB_SQRT_2_OVER_PI * (1 + 3 * GB_GELU_CUBIC * x * x);
}

/* log(1 + exp(x)) */
GB_INLINE float gb_softplusf(float x) { return (x > 0.0f ? x : 0.0f) + gb_log1pf(gb_expf(-fabsf(x))); }
GB_INLINE double gb_softplus(double x) { return fmax(x, 0.0) + log1p(exp(-fabs(x))); }

/* ====} */

#endif
