/* base/near.h - tanh, sigmoid, SiLU and the tanh form of GELU for results that are rounded to 16 bits, without a
 * division.
 *
 * 2^x and 1 / x are the GPU's own approximations, which are within 2^-22 of the value, a thousandth of the least ulp of
 * a 16-bit result; elsewhere they are the C library's and a division. With errors of that size, of either sign, every
 * float16 and bfloat16 argument gives a result within 0.505 ulp of the true value, where 0.5 is the least possible
 * (tests/c/test_near.c goes through all). Infinities, NaN and the sign of zero are as in base/math.h. GELU by way of
 * sigmoid, x sigmoid(2 u) = x (1 + tanh u) / 2, loses nothing where tanh comes near -1. */
#ifndef GB_BASE_NEAR_H
#define GB_BASE_NEAR_H

#include "base/math.h"

/* A test may have others, with errors. */
#ifndef GB_NEAR_EXP2
#if defined __CUDA_ARCH__
GB_INLINE float gb_near_exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GB_INLINE float gb_near_reciprocal(float x) { /* x is 1 or more */
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
GB_INLINE float gb_near_exp2(float x) { return exp2f(x); }
GB_INLINE float gb_near_reciprocal(float x) { return 1.0f / x; }
#endif
#define GB_NEAR_EXP2 gb_near_exp2
#define GB_NEAR_RECIPROCAL gb_near_reciprocal
#endif

#define GB_LOG2_E 1.44269504088896340736

GB_INLINE float gb_near_sigmoid(float x) {
  float e = GB_NEAR_EXP2(-(float)GB_LOG2_E * fabsf(x)), y = GB_NEAR_RECIPROCAL(1.0f + e);
  return x < 0.0f ? e * y : y;
}

/* Near 0, where 1 - 2 / (e^2x + 1) would lose what it has, a polynomial: gb_tanhf's, with fewer terms. */
GB_INLINE float gb_near_tanh(float x) {
  float size = fabsf(x), s = x * x;
  float p = 0x1.11075ep-3f - s * 0x1.a1e4dap-5f;
  p = -0x1.555534p-2f + s * p;
  float outer = 1.0f - 2.0f * GB_NEAR_RECIPROCAL(GB_NEAR_EXP2((float)(2 * GB_LOG2_E) * size) + 1.0f);
  return size < 0.25f ? x + x * (s * p) : copysignf(outer, x);
}

GB_INLINE float gb_near_silu(float x) { return x * gb_near_sigmoid(x); }
GB_INLINE float gb_near_gelu_tanh(float x) { return x * gb_near_sigmoid(2.0f * gb_gelu_innerf(x)); }

#endif
