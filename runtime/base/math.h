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

/* 3.65 ulp. x times a polynomial in the logarithm of 1 - x^2, or in its root where x is near 1 (Giles, "Approximating
 * the erfinv function", 2010). */
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

/* {==== special functions, in float64, which serves float32 too ==== */

#define GB_PI 3.14159265358979323846

/* |sin(pi x)|, by the distance to the nearest integer. */
GB_INLINE double gb_sine_of_half_turns(double x) { return fabs(sin(GB_PI * (x - rint(x)))); }

/* lgamma(2 + e) for |e| <= 1/2: the series whose coefficients are (-1)^k (zeta(k) - 1) / k (Abramowitz, Stegun 6.1.33).
 * It is exact near its zero at e = 0. */
GB_INLINE double gb_log_gamma_near_2(double e) {
  double p = 1.3304764374244489481e-10 - 6.4229645638381000221e-11 * e;
  p = 5.7313672416788620133e-10 + e * (-2.7595228851242331452e-10 + e * p);
  p = 2.4836745438024783172e-9 + e * (-1.1921401405860912074e-9 + e * p);
  p = 1.0838659214896954091e-8 + e * (-5.1834750419700466551e-9 + e * p);
  p = 4.7698101693639805658e-8 + e * (-2.271109460894316491e-8 + e * p);
  p = 2.1207184805554665869e-7 + e * (-1.0043224823968099609e-7 + e * p);
  p = 9.5514121304074198329e-7 + e * (-4.4924691987645660433e-7 + e * p);
  p = 4.3748667899074878042e-6 + e * (-2.0392157538013662368e-6 + e * p);
  p = 0.000020507212775670691553 + e * (-9.439488275268395904e-6 + e * p);
  p = 0.000099457512781808533715 + e * (-0.0000449262367381331417 + e * p);
  p = 0.00050966952474304242234 + e * (-0.00022315475845357937976 + e * p);
  p = 0.0028905103307415232858 + e * (-0.0011927539117032609771 + e * p);
  p = 0.020580808427784547879 + e * (-0.0073855510286739852663 + e * p);
  p = 0.32246703342411321824 + e * (-0.067352301053198095133 + e * p);
  return e * (0.42278433509846713939 + e * p);
}

/* x > 0: near 1 and 2, where it is 0, the series above; up to 10 the recurrence gamma(x + 1) = x gamma(x) down to 2;
 * beyond, Stirling's series. */
GB_INLINE double gb_log_gamma_positive(double x) {
  double product = 1;
  if (x < 0.5) return gb_log_gamma_near_2(x) - log1p(x) - log(x);
  if (x < 1.5) return gb_log_gamma_near_2(x - 1) - log1p(x - 1);
  if (x < 10) {
    for (; x >= 2.5; product *= x) x -= 1;
    return log(product) + gb_log_gamma_near_2(x - 2);
  }
  double r = 1 / x, z = r * r, s = 691.0 / 360360 - z / 156;
  s = 1.0 / 1260 - z * (1.0 / 1680 - z * (1.0 / 1188 - z * s));
  return (x - 0.5) * (log(x) - 1) + (0.41893853320467274178 + r * (1.0 / 12 - z * (1.0 / 360 - z * s)));
}

/* log |gamma(x)|: relative error below 1e-14, but for negative x beside a zero, where it is below 1e-14 of the terms.
 * They come by reflection: gamma(x) gamma(-x) = -pi / (x sin(pi x)). */
GB_INLINE double gb_log_gamma(double x) {
  if (x == 0 || (x < 0 && x == floor(x))) return INFINITY;
  if (!(x < 0)) return gb_log_gamma_positive(x);
  if (x > -1e-17) return -log(-x);
  return log(GB_PI / (-x * gb_sine_of_half_turns(x))) - gb_log_gamma_positive(-x);
}

/* digamma within 0.1 of its zero on the right, whose second half is what a double lost: the Taylor series. */
GB_INLINE double gb_digamma_near_0(double x) {
  double d = (x - 1.4616321449683622) - 9.5499954299656977e-17;
  double p = 0.0049267813957298534464 + d * -0.0033698016554393280828;
  p = 0.010538791616612175388 + d * (-0.007204534386356868241 + d * p);
  p = 0.02259764823221810466 + d * (-0.015424765904948959139 + d * p);
  p = 0.048804288164143107225 + d * (-0.033161126474847359292 + d * p);
  p = 0.10782405069126236576 + d * (-0.072199561256454710926 + d * p);
  p = 0.25849976095565101062 + d * (-0.1639427054424065275 + d * p);
  p = 0.96767224544762117043 + d * (-0.44276316898359210609 + d * p);
  return d * p;
}

/* The derivative: by the recurrence up to 10, then by the asymptotic series (Abramowitz, Stegun 6.3.18); by reflection
 * for negative x. Relative error below 1e-14; beside the zeros on the left, of the terms. Infinite at 0, NaN at -1, -2
 * and so on. */
GB_INLINE double gb_digamma(double x) {
  double y = 0;
  if (x == 0) return copysign(INFINITY, -x);
  if (fabs(x - 1.4616321449683623) < 0.1) return gb_digamma_near_0(x);
  if (x < 0) {
    double turn = x - rint(x);
    if (turn == 0) return NAN;
    y = -GB_PI / tan(GB_PI * turn);
    x = 1 - x;
  }
  for (; x < 10; x += 1) y -= 1 / x;
  double r = 1 / x, z = r * r, s = 691.0 / 32760 - z / 12;
  s = 1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * s));
  return y + (log(x) - 0.5 * r - z * (1.0 / 12 - z * (1.0 / 120 - z * s)));
}

/* The sum of (x + k)^-s over k >= 0, x > 0 and s >= 2: terms up to 10 + s, and Euler and Maclaurin's formula. */
GB_INLINE double gb_zeta_from(double s, double x) {
  double sum = 0;
  for (; x < 10 + s; x += 1) sum += pow(x, -s);
  double power = pow(x, -s), r = 1 / x, t = s * r, z = r * r;
  double e = 1.0 / 1209600 * (s + 5) * (s + 6) * z;
  e = e * (1 - (s + 7) * (s + 8) * z / 39.6 * (1 - (s + 9) * (s + 10) * z * (691.0 / 27300)));
  e = 1.0 / 30240 * (s + 3) * (s + 4) * z - e * (s + 3) * (s + 4) * z;
  e = t * (1.0 / 12 - (s + 1) * (s + 2) * z * (1.0 / 720 - e));
  return sum + pow(x, 1 - s) / (s - 1) + power * (0.5 + e);
}

/* The n-th derivative of digamma, (-1)^(n + 1) n! times the sum of (x + k)^-(n + 1). Where x is negative, that is the
 * sum over all k, which has the period 1, without the terms of negative k. */
GB_INLINE double gb_polygamma(double x, double n) {
  double s = n + 1, part = x - rint(x), size = fabs(part), sum;
  if (n == 0) return gb_digamma(x);
  double sign = n - 2 * floor(n / 2) == 0 ? -1 : 1; /* of (-1)^s too */
  if (x <= 0 && part == 0) return sign * INFINITY;
  if (x < 0) {
    sum = gb_zeta_from(s, size) + sign * gb_zeta_from(s, 1 - size);
    sum = (part < 0 ? sign : 1) * sum - sign * gb_zeta_from(s, 1 - x);
  } else sum = gb_zeta_from(s, x);
  return sign * tgamma(s) * sum;
}

/* The modified Bessel function of order 0 or 1: the power series up to 20, beyond it the asymptotic one, whose terms
 * fall until e^-40 (Abramowitz, Stegun 9.6.10 and 9.7.1). Relative error below 1e-14. */
GB_INLINE double gb_bessel_i(double x, int order) {
  double size = fabs(x), term = 1, sum = 1, y;
  if (size <= 20) {
    for (int k = 1; k < 64; k++) {
      term *= size * size / (4.0 * k * (k + order));
      sum += term;
    }
    y = order == 0 ? sum : 0.5 * size * sum;
  } else {
    for (int k = 1; k < 30; k++) {
      term *= ((2.0 * k - 1) * (2.0 * k - 1) - 4 * order) / (8 * k * size);
      sum += term;
    }
    y = size < INFINITY ? exp(0.5 * size) * (exp(0.5 * size) * (sum / sqrt(2 * GB_PI * size))) : size;
  }
  return order == 0 ? y : copysign(y, x);
}

/* ====} */

/* {==== the incomplete gamma functions ==== */

/* u - log(1 + u), u above -1: near 0, where the difference would lose everything, the series. */
GB_INLINE double gb_less_log1p(double u) {
  double s = 0;
  if (fabs(u) > 0.25) return u - log1p(u);
  for (int k = 30; k >= 2; k--) s = u * s + (k % 2 ? -1.0 : 1.0) / k;
  return u * u * s;
}

/* x^a e^-x / gamma(a + 1), a > 0; from 10 on by Stirling's series, whose terms do not cancel. */
GB_INLINE double gb_gamma_front(double a, double x) {
  double r = 1 / a, z = r * r;
  if (a < 10) return exp(a * log(x) - x - gb_log_gamma_positive(a + 1));
  double stirling = r * (1.0 / 12 - z * (1.0 / 360 - z * (1.0 / 1260 - z * (1.0 / 1680 - z / 1188))));
  return exp(-a * gb_less_log1p((x - a) / a) - stirling) / sqrt(2 * GB_PI * a);
}

/* The coefficients c_0 .. c_3 of Temme's expansion (DLMF 8.12.10), for |e| < 0.17. */
GB_INLINE double gb_temme_0(double e) {
  double s = 1.0261809784240309e-08 + e * -4.382036018453353e-09;
  s = -1.7665952736826078e-07 + e * (6.707853543401498e-09 + e * s);
  s = -1.85406221071516e-06 + e * (8.296711340953087e-07 + e * s);
  s = 3.919263178522438e-05 + e * (-2.185448510679992e-06 + e * s);
  s = 0.0003527336860670194 + e * (-0.0001787551440329218 + e * s);
  s = -0.014814814814814815 + e * (0.0011574074074074073 + e * s);
  s = -0.3333333333333333 + e * (0.08333333333333333 + e * s);
  return s;
}
GB_INLINE double gb_temme_1(double e) {
  double s = 1.378633446915721e-07 + e * -5.752545603517705e-08;
  s = -1.6120900894563446e-06 + e * (4.647127802807434e-09 + e * s);
  s = -1.8098550334489977e-05 + e * (7.64916091608111e-06 + e * s);
  s = 0.00020576131687242798 + e * (-4.018775720164609e-07 + e * s);
  s = 0.0026455026455026454 + e * (-0.0009902263374485596 + e * s);
  s = -0.001851851851851852 + e * (-0.003472222222222222 + e * s);
  return s;
}
GB_INLINE double gb_temme_2(double e) {
  double s = 1.3721957309062934e-06 + e * -6.298992138380055e-07;
  s = -1.2760635188618728e-05 + e * (3.423578734096138e-08 + e * s);
  s = -0.0001073665322636516 + e * (5.2923448829120125e-05 + e * s);
  s = 0.0007716049382716049 + e * (2.0093878600823047e-06 + e * s);
  s = 0.004133597883597883 + e * (-0.0026813271604938273 + e * s);
  return s;
}
GB_INLINE double gb_temme_3(double e) {
  double s = 1.1082654115347302e-05 + e * -5.6749528269915965e-06;
  s = -7.561801671883977e-05 + e * (-2.396505113867297e-07 + e * s);
  s = -0.0004691894943952557 + e * (0.00026772063206283885 + e * s);
  s = 0.0006494341563786008 + e * (0.00022947209362139917 + e * s);
  return s;
}

/* The upper part, or with `lower` the lower one, for a from 1000 on and x within 15 % of it (DLMF 8.12.3): a normal
 * distribution, and what it lacks. */
GB_INLINE double gb_gamma_uniform(double a, double x, int lower) {
  double u = (x - a) / a, half = gb_less_log1p(u), e = copysign(sqrt(2 * half), u), r = 1 / a;
  double rest = gb_temme_0(e) + r * (gb_temme_1(e) + r * (gb_temme_2(e) + r * gb_temme_3(e)));
  rest *= exp(-a * half) / sqrt(2 * GB_PI * a);
  return lower ? 0.5 * erfc(-e * sqrt(a / 2)) - rest : 0.5 * erfc(e * sqrt(a / 2)) + rest;
}

/* The lower part by its power series, for x below a + 1 (DLMF 8.11.4). */
GB_INLINE double gb_gamma_series(double a, double x) {
  double term = 1, sum = 1;
  for (int n = 1; n < 2000 && term > 1e-17 * sum; n++) sum += term *= x / (a + n);
  return gb_gamma_front(a, x) * sum;
}

/* The upper part by Legendre's continued fraction, for x from a + 1 on (DLMF 8.9.2), by Lentz's method. */
GB_INLINE double gb_gamma_fraction(double a, double x) {
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d, step = 0;
  for (int n = 1; n < 2000 && fabs(step - 1) > 1e-16; n++) {
    double t = -n * (n - a);
    b += 2;
    d = t * d + b, c = b + t / c;
    d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
    h *= step = d * (fabs(c) < 1e-300 ? c = 1e-300 : c);
  }
  return gb_gamma_front(a, x) * a * h;
}

/* The upper part where a and x are small and it may be, too: 1 - x^a / gamma(a + 1) (1 + a sum (-x)^n / ((a + n) n!)),
 * without the difference of what is near 1. */
GB_INLINE double gb_gamma_small(double a, double x) {
  double term = 1, sum = 0, power = a * log(x) - gb_log_gamma_positive(a + 1);
  for (int n = 1; n < 40; n++) {
    term *= -x / n;
    sum += term / (a + n);
  }
  return -expm1(power) - exp(power) * a * sum;
}

/* The share of gamma(a) that the integral of t^(a - 1) e^-t has from x on, or with `lower` up to x. Relative error
 * below 1e-13, of the part that was not asked for where that is the smaller one. */
GB_INLINE double gb_gamma_share(double a, double x, int lower) {
  if (!(a >= 0 && x >= 0) || (a == 0 && x == 0) || (a == INFINITY && x == INFINITY)) return NAN;
  if (a == 0 || x == INFINITY) return lower ? 1 : 0;
  if (x == 0 || a == INFINITY) return lower ? 0 : 1;
  if (a >= 1000 && fabs(x - a) < 0.15 * a) return gb_gamma_uniform(a, x, lower);
  if (x < 1.1 && a < 1 && !lower) return gb_gamma_small(a, x);
  if (x < a + 1) return lower ? gb_gamma_series(a, x) : 1 - gb_gamma_series(a, x);
  return lower ? 1 - gb_gamma_fraction(a, x) : gb_gamma_fraction(a, x);
}

/* ====} */

/* {==== the same formulas in both types ==== */

GB_INLINE float gb_sincf(float x) { return x == 0 ? 1 : sinf((float)GB_PI * x) / ((float)GB_PI * x); }
GB_INLINE double gb_sinc(double x) { return x == 0 ? 1 : sin(GB_PI * x) / (GB_PI * x); }

/* log(x / (1 - x)) */
GB_INLINE float gb_logitf(float x) { return gb_logf(x / (1 - x)); }
GB_INLINE double gb_logit(double x) { return log(x / (1 - x)); }

/* log(exp(x) + exp(y)): the larger one, and what the other adds. Equal infinities have no difference. */
#define GB_LN_2 0.69314718055994530942
GB_INLINE float gb_logaddexpf(float x, float y) {
  return x == y ? x + (float)GB_LN_2 : (x > y ? x : y) + gb_log1pf(gb_expf(-fabsf(x - y)));
}
GB_INLINE double gb_logaddexp(double x, double y) {
  return x == y ? x + GB_LN_2 : (x > y ? x : y) + log1p(exp(-fabs(x - y)));
}

/* log2(2^x + 2^y) */
GB_INLINE float gb_logaddexp2f(float x, float y) {
  return x == y ? x + 1 : (x > y ? x : y) + gb_log1pf(exp2f(-fabsf(x - y))) * (float)(1 / GB_LN_2);
}
GB_INLINE double gb_logaddexp2(double x, double y) {
  return x == y ? x + 1 : (x > y ? x : y) + log1p(exp2(-fabs(x - y))) * (1 / GB_LN_2);
}

/* ====} */

/* {==== activations and their derivatives ==== */

/* x tanh(log(1 + e)), e = exp(x): x n / (n + 2) with n = e (e + 2). From 20 on the quotient is 1. */
GB_INLINE float gb_mishf(float x) {
  float e = gb_expf(x > 20 ? 20 : x), n = e * (e + 2);
  return x * (n / (n + 2));
}
GB_INLINE double gb_mish(double x) {
  double e = exp(x > 20 ? 20 : x), n = e * (e + 2);
  return x * (n / (n + 2));
}

/* Those for which selu keeps mean 0 and deviation 1. */
#define GB_SELU_ALPHA 1.6732632423543772848
#define GB_SELU_SCALE 1.0507009873554804934

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
