/* cpu/wide.h - two vectors of float32 at a time, from and to rows of float32, float16 or bfloat16 that lie side by
 * side: widened and rounded in registers, so that a kernel of 16-bit rows needs no pass of its own for either.
 *
 * A kernel is written once, for a dtype that is a constant where it is inlined: GB_WIDE_FOR makes the three. Of
 * bfloat16 the first vector holds the even elements and the second the odd ones, which takes no permutation either way;
 * arrays of float32 that are walked along with such rows are put in the same order first (gb_wide_sort). What is left
 * at the end of a row comes in its natural order, filled up. */
#ifndef GB_CPU_WIDE_H
#define GB_CPU_WIDE_H

#include <stdbool.h>

#include "base/math.h"
#include "cpu/narrow.h"
#include "graph/ops.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define GB_ALWAYS_INLINE static inline __attribute__((always_inline))

/* Levels with AVX2 have the conversions of float16 too; a compiler asked for one of them alone gets neither. */
#if defined(__AVX2__) && defined(__F16C__)
#define GB_WIDE_AVX2
#endif

/* Elements of a vector, and of the two. */
#if defined(__AVX512BW__)
#define GB_VECTOR 16
#elif defined(GB_WIDE_AVX2)
#define GB_VECTOR 8
#else
#define GB_VECTOR 4
#endif
#define GB_WIDE (2 * GB_VECTOR)

typedef float gb_vector __attribute__((vector_size(4 * GB_VECTOR)));
typedef uint32_t gb_vector_bits __attribute__((vector_size(4 * GB_VECTOR)));
typedef uint16_t gb_vector_half __attribute__((vector_size(2 * GB_VECTOR)));
typedef struct gb_wide { gb_vector a, b; } gb_wide;

/* The result of kernel(dtype, ...) for the dtype that a row has. */
#define GB_WIDE_FOR(dtype, kernel, ...)                                                                                \
  ((dtype) == GB_BFLOAT16 ? kernel(GB_BFLOAT16, __VA_ARGS__) : (dtype) == GB_FLOAT16 ? kernel(GB_FLOAT16, __VA_ARGS__) \
                                                                                    : kernel(GB_FLOAT32, __VA_ARGS__))

/* {---- vectors ---- */

GB_ALWAYS_INLINE gb_vector gb_vector_of(float x) { return x - (gb_vector){ 0 }; }

/* The larger of both, y where one is NaN. */
GB_ALWAYS_INLINE gb_vector gb_vector_max(gb_vector x, gb_vector y) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(GB_WIDE_AVX2)
  return (gb_vector)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(__SSE2__)
  return (gb_vector)_mm_max_ps((__m128)x, (__m128)y);
#else
  gb_vector_bits larger = (gb_vector_bits)(x > y);
  return (gb_vector)(((gb_vector_bits)x & larger) | ((gb_vector_bits)y & ~larger));
#endif
}

/* The sum of a vector's elements, by pairs, and their largest. */
GB_ALWAYS_INLINE float gb_vector_sum(gb_vector x) {
#if defined(__AVX512BW__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float at[GB_VECTOR];
  memcpy(at, &x, sizeof x);
  for (int half = GB_VECTOR / 2; half > 0; half /= 2)
    for (int k = 0; k < half; k++) at[k] += at[k + half];
  return at[0];
#endif
}
GB_ALWAYS_INLINE float gb_vector_largest(gb_vector x) {
#if defined(__AVX512BW__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float at[GB_VECTOR], most = -INFINITY;
  memcpy(at, &x, sizeof x);
  for (int k = 0; k < GB_VECTOR; k++) most = at[k] > most ? at[k] : most;
  return most;
#endif
}

/* Past the caches, to an aligned place; see cpu/nontemporal.h. */
GB_ALWAYS_INLINE void gb_vector_stream(void *to, gb_vector x) {
#if defined(__AVX512BW__)
  _mm512_stream_ps(to, (__m512)x);
#elif defined(GB_WIDE_AVX2)
  _mm256_stream_ps(to, (__m256)x);
#elif defined(__SSE2__)
  _mm_stream_ps(to, (__m128)x);
#else
  memcpy(to, &x, sizeof x);
#endif
}

/* May rows from here on be written so? */
static inline bool gb_vector_aligned(const void *row) { return (uintptr_t)row % sizeof(gb_vector) == 0; }

/* ----} */

/* {---- elements i .. i + GB_WIDE - 1 of a row ---- */

#if !defined(__AVX512BW__) && !defined(GB_WIDE_AVX2) && !defined(__aarch64__)
/* The functions of base/float.h without their branches. All ones where bits, as a number with sign, are above a limit;
 * a choice by such a mask. */
GB_ALWAYS_INLINE gb_vector_bits gb_vector_above(gb_vector_bits x, int32_t limit) {
  typedef int32_t vector_of_ints __attribute__((vector_size(4 * GB_VECTOR)));
  return (gb_vector_bits)((vector_of_ints)x > limit);
}
GB_ALWAYS_INLINE gb_vector_bits gb_vector_choose(gb_vector_bits mask, gb_vector_bits x,
                                                 gb_vector_bits y) { return (x & mask) | (y & ~mask); }

GB_ALWAYS_INLINE gb_vector_half gb_vector_narrow_f16(gb_vector x) {
  gb_vector_bits u = (gb_vector_bits)x, body = u & 0x7fffffffu;
  gb_vector_bits normal = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  gb_vector_bits small = (gb_vector_bits)((gb_vector)body + 0.5f) - 0x3f000000u,
      nan = 0x7e00u | ((body >> 13) & 0x1ffu);
  gb_vector_bits y = gb_vector_choose(gb_vector_above(body, 0x387fffff), normal, small);
  y = gb_vector_choose(gb_vector_above(body, 0x477fefff), (gb_vector_bits){ 0 } + 0x7c00u, y);
  y = gb_vector_choose(gb_vector_above(body, 0x7f800000), nan, y);
  return __builtin_convertvector(y | ((u >> 16) & 0x8000u), gb_vector_half);
}
#endif

GB_ALWAYS_INLINE gb_vector gb_widen_f16(const uint16_t *from) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
#elif defined(GB_WIDE_AVX2)
  return (gb_vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(__aarch64__)
  return (gb_vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  gb_vector_half half;
  memcpy(&half, from, sizeof half);
  gb_vector_bits h = __builtin_convertvector(half, gb_vector_bits), body = (h & 0x7fffu) << 13;
  gb_vector_bits whole = (gb_vector_bits)((gb_vector)body * 0x1p112f), large = 0x7f800000u | body;
  large |= gb_vector_above(body, 0x7c00 << 13) & 0x400000u;
  return (gb_vector)(((h & 0x8000u) << 16) | gb_vector_choose(gb_vector_above(body, (0x7c00 << 13) - 1), large, whole));
#endif
}

GB_ALWAYS_INLINE gb_wide gb_wide_load(gb_dtype dtype, const void *row, int64_t i) {
  const float *whole = (const float *)row + i;
  const uint16_t *half = (const uint16_t *)row + i;
  gb_vector_bits bits;
  gb_wide x;
  if (dtype == GB_FLOAT32) {
    memcpy(&x.a, whole, sizeof x.a);
    memcpy(&x.b, whole + GB_VECTOR, sizeof x.b);
  } else if (dtype == GB_FLOAT16) {
    x.a = gb_widen_f16(half);
    x.b = gb_widen_f16(half + GB_VECTOR);
  } else {
    memcpy(&bits, half, sizeof bits);
    x.a = (gb_vector)(bits << 16);
    x.b = (gb_vector)(bits & 0xffff0000u);
  }
  return x;
}

/* Ask for what the last pass over a row will not read but the next rows will: a processor's own prefetching ends with
 * the page, and waits while a row is worked on in cache. Further ahead than a row of 1024 float32. */
GB_ALWAYS_INLINE void gb_wide_ahead(gb_dtype dtype, const void *row, int64_t i) {
  enum { AHEAD = 8192, LINE = 64 };
  const uintptr_t bytes = dtype == GB_FLOAT32 ? 4 : 2, at = (uintptr_t)row + (uintptr_t)i * bytes + AHEAD;
  for (uintptr_t k = 0; k < GB_WIDE * bytes; k += LINE) __builtin_prefetch((const void *)(at + k));
}

/* A bfloat16 in the upper half of each element, rounded to nearest even. A NaN must have a lower half of 0: those that
 * come of 16-bit elements and of arithmetic have. */
GB_ALWAYS_INLINE gb_vector_bits gb_round_up_bf16(gb_vector x) {
  gb_vector_bits bits = (gb_vector_bits)x;
#if defined(__AVX512BW__)
  __m512i u = (__m512i)bits, up = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  return (gb_vector_bits)_mm512_mask_add_epi32(up, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), up,
                                               _mm512_set1_epi32(1));
#else
  return bits + 0x7fffu + ((bits >> 16) & 1u);
#endif
}

/* Any NaN as rounding wants it, quiet. */
GB_ALWAYS_INLINE gb_vector gb_vector_nan_bf16(gb_vector x) {
#if defined(__AVX512BW__)
  __m512i u = (__m512i)x, quiet = _mm512_set1_epi32(0x400000), upper = _mm512_set1_epi32((int)0xffff0000);
  return (gb_vector)_mm512_mask_ternarylogic_epi32(u, _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q), quiet,
                                                   upper, 0xec);
#else
  gb_vector_bits bits = (gb_vector_bits)x, nan = (gb_vector_bits)(x != x);
  return (gb_vector)((bits & ~(nan & 0xffffu)) | (nan & 0x400000u));
#endif
}

/* Both vectors as the 16-bit elements that they came from. */
GB_ALWAYS_INLINE gb_vector gb_wide_narrow_bf16(gb_wide x) {
  gb_vector_bits even = gb_round_up_bf16(x.a) >> 16, odd = gb_round_up_bf16(x.b);
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)even, (__m512i)odd);
#else
  return (gb_vector)(even | (odd & 0xffff0000u));
#endif
}

GB_ALWAYS_INLINE gb_vector gb_wide_narrow_f16(gb_wide x) {
  gb_vector packed;
#if defined(__AVX512BW__)
  __m256i low = _mm512_cvtps_ph((__m512)x.a, _MM_FROUND_TO_NEAREST_INT),
      high = _mm512_cvtps_ph((__m512)x.b, _MM_FROUND_TO_NEAREST_INT);
  packed = (gb_vector)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#elif defined(GB_WIDE_AVX2)
  packed = (gb_vector)_mm256_set_m128i(_mm256_cvtps_ph((__m256)x.b, _MM_FROUND_TO_NEAREST_INT),
                                       _mm256_cvtps_ph((__m256)x.a, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  packed = (gb_vector)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)x.a), (float32x4_t)x.b);
#else
  gb_vector_half halves[2] = { gb_vector_narrow_f16(x.a), gb_vector_narrow_f16(x.b) };
  memcpy(&packed, halves, sizeof packed);
#endif
  return packed;
}

GB_ALWAYS_INLINE void gb_vector_store(void *to, gb_vector x, bool stream) {
  if (stream) gb_vector_stream(to, x);
  else memcpy(to, &x, sizeof x);
}

/* stream: past the caches; the row is aligned for it. */
GB_ALWAYS_INLINE void gb_wide_store(gb_dtype dtype, void *row, int64_t i, gb_wide x, bool stream) {
  if (dtype == GB_FLOAT32) {
    gb_vector_store((float *)row + i, x.a, stream);
    gb_vector_store((float *)row + i + GB_VECTOR, x.b, stream);
  } else
    gb_vector_store((uint16_t *)row + i, dtype == GB_FLOAT16 ? gb_wide_narrow_f16(x) : gb_wide_narrow_bf16(x), stream);
}

/* Elements i .. i + GB_VECTOR - 1 of a row in one vector, in their natural order; a NaN as gb_round_up_bf16 has it. */
GB_ALWAYS_INLINE gb_vector gb_vector_load(gb_dtype dtype, const void *row, int64_t i) {
  gb_vector_half half;
  gb_vector x;
  if (dtype == GB_FLOAT16) return gb_widen_f16((const uint16_t *)row + i);
  if (dtype == GB_FLOAT32) memcpy(&x, (const float *)row + i, sizeof x);
  else {
    memcpy(&half, (const uint16_t *)row + i, sizeof half);
    x = (gb_vector)(__builtin_convertvector(half, gb_vector_bits) << 16);
  }
  return x;
}
GB_ALWAYS_INLINE void gb_vector_store_as(gb_dtype dtype, void *row, int64_t i, gb_vector x) {
  if (dtype == GB_FLOAT16) { gb_narrow_f16((uint16_t *)row + i, (const float *)&x, GB_VECTOR); return; }
  if (dtype == GB_FLOAT32) { memcpy((float *)row + i, &x, sizeof x); return; }
  const gb_vector_half half = __builtin_convertvector(gb_round_up_bf16(x) >> 16, gb_vector_half);
  memcpy((uint16_t *)row + i, &half, sizeof half);
}

/* The last n of a row, fewer than GB_WIDE, in their natural order, filled up. */
static inline gb_wide gb_wide_load_last(gb_dtype dtype, const void *row, int64_t i, int64_t n, float fill) {
  float at[GB_WIDE];
  gb_wide x;
  for (int64_t k = 0; k < GB_WIDE; k++) {
    if (k >= n) at[k] = fill;
    else if (dtype == GB_FLOAT32) at[k] = ((const float *)row)[i + k];
    else at[k] = dtype == GB_FLOAT16 ? gb_float16_to_float(((const uint16_t *)row)[i + k])
        : gb_bfloat16_to_float(((const uint16_t *)row)[i + k]);
  }
  memcpy(&x, at, sizeof x);
  return x;
}

static inline void gb_wide_store_last(gb_dtype dtype, void *row, int64_t i, int64_t n, gb_wide x) {
  float at[GB_WIDE];
  memcpy(at, &x, sizeof at);
  if (dtype == GB_FLOAT32) memcpy((float *)row + i, at, (size_t)n * sizeof *at);
  else if (dtype == GB_FLOAT16) gb_narrow_f16((uint16_t *)row + i, at, n);
  else gb_narrow_bf16((uint16_t *)row + i, at, n);
}

/* x with `value` in place of its element k. By masks: a store of one element would hold up the load of the vector
 * around it. */
GB_ALWAYS_INLINE gb_wide gb_wide_put(gb_dtype dtype, gb_wide x, int64_t k, gb_vector value) {
  gb_vector_bits lane, here, bits = (gb_vector_bits)value;
  for (uint32_t i = 0; i < GB_VECTOR; i++) lane[i] = i;
  bool second = dtype == GB_BFLOAT16 ? k % 2 != 0 : k >= GB_VECTOR;
  here = (gb_vector_bits)(lane == (uint32_t)(dtype == GB_BFLOAT16 ? k / 2 : k % GB_VECTOR));
  if (second) x.b = (gb_vector)(((gb_vector_bits)x.b & ~here) | (bits & here));
  else x.a = (gb_vector)(((gb_vector_bits)x.a & ~here) | (bits & here));
  return x;
}

/* n float32 that are walked along with rows of a dtype, put in the order of its vectors; and back. */
static inline void gb_wide_sort(gb_dtype dtype, float *x, int64_t n, bool back) {
  float at[GB_WIDE];
  for (; dtype == GB_BFLOAT16 && n >= GB_WIDE; n -= GB_WIDE, x += GB_WIDE) {
    memcpy(at, x, sizeof at);
    for (int k = 0; k < GB_VECTOR; k++) {
      x[back ? 2 * k : k] = at[back ? k : 2 * k];
      x[back ? 2 * k + 1 : k + GB_VECTOR] = at[back ? k + GB_VECTOR : 2 * k + 1];
    }
  }
}

/* ----} */

/* {---- exponentials ---- */

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
/* The bits of 2^(32 + j/32), less j << 18. */
static const uint32_t gb_roots_of_2[32] = {
  0x4f800000, 0x4f7ecd87, 0x4f7daac3, 0x4f7c980f, 0x4f7b95c2, 0x4f7aa43a, 0x4f79c3d3, 0x4f78f4f0,
  0x4f7837f0, 0x4f778d3a, 0x4f76f532, 0x4f767043, 0x4f75fed7, 0x4f75a15b, 0x4f75583f, 0x4f7523f6,
  0x4f7504f3, 0x4f74fbaf, 0x4f7508a4, 0x4f752c4d, 0x4f75672a, 0x4f75b9be, 0x4f76248c, 0x4f76a81e,
  0x4f7744fd, 0x4f77fbb8, 0x4f78ccdf, 0x4f79b907, 0x4f7ac0c7, 0x4f7be4ba, 0x4f7d257d, 0x4f7e83b3,
};

/* Added to a float32 it leaves the 32nds in the lowest bits. */
#define GB_IN_32NDS 0x1.8p+18f

/* 2^(32 + n + j/32) where `index` is GB_IN_32NDS and n + j/32, which is -151 at least: shifted, its lowest bits are n
 * in the place of an exponent, and j, which the table takes away again. scalef would take two cycles (Zen 4). */
GB_ALWAYS_INLINE gb_vector gb_vector_power(__m512 index) {
  __m512i bits = _mm512_castps_si512(index);
  __m512i root = _mm512_permutex2var_epi32(_mm512_loadu_si512(gb_roots_of_2), bits,
                                           _mm512_loadu_si512(gb_roots_of_2 + 16));
  return (gb_vector)_mm512_add_epi32(root, _mm512_slli_epi32(bits, 18));
}

/* 2^32 * exp(x) = power * (1 + r * p) for x that is not above 0, by x / ln 2 rounded to 32nds. ln 2 as a float32 is off
 * by 2^-28 of itself: a tenth of what x lost when the largest element of its row was taken from it. */
GB_ALWAYS_INLINE gb_vector gb_vector_parts(gb_vector x, gb_vector *r, gb_vector *p) {
  __m512 index = _mm512_fmadd_ps((__m512)x, _mm512_set1_ps(0x1.715476p+0f), _mm512_set1_ps(GB_IN_32NDS));
  __m512 rounded = index - _mm512_set1_ps(GB_IN_32NDS);
  *r = (gb_vector)_mm512_fnmadd_ps(rounded, _mm512_set1_ps(0x1.62e43p-1f), (__m512)x);
  *p = *r * gb_vector_of(0x1.0001p-1f) + gb_vector_of(0x1.0000fcp+0f);
  return gb_vector_power(index);
}

/* exp is 0 from here on down. */
GB_ALWAYS_INLINE __mmask16 gb_vector_counts(gb_vector x) { return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-104.0f),
    _CMP_NLT_UQ); }

/* 2^32 * exp(x) where no x is above 0 but for rounding. */
GB_ALWAYS_INLINE gb_vector gb_vector_lift(gb_vector x) {
  gb_vector r, p, power = gb_vector_parts(x, &r, &p);
  return (gb_vector)_mm512_maskz_fmadd_ps(gb_vector_counts(x), (__m512)(power * r), (__m512)p, (__m512)power);
}

/* The same for an x that comes of 16-bit elements, as power * factor: its distance from the 32nds is taken in the units
 * of a logarithm to base 2, off by |x| * 2^-25 as 1 / ln 2 in float32 is. 16 bits do not show it, and in a sum small
 * elements weigh little. 1 for x = 0. */
GB_ALWAYS_INLINE gb_vector gb_vector_parts_of_16(gb_vector x, gb_vector *factor) {
  __m512 to_2 = _mm512_set1_ps(0x1.715476p+0f);
  __m512 index = _mm512_fmadd_ps((__m512)x, to_2, _mm512_set1_ps(GB_IN_32NDS));
  gb_vector r = (gb_vector)_mm512_fmsub_ps((__m512)x, to_2, index - _mm512_set1_ps(GB_IN_32NDS));
  *factor = r * (r * gb_vector_of(0x1.ebfc02p-3f) + gb_vector_of(0x1.62e584p-1f)) + gb_vector_of(1.0f);
  return gb_vector_power(index);
}

/* 2^32 * exp(x), x of a row of that dtype. */
GB_ALWAYS_INLINE gb_vector gb_vector_lift_of(gb_dtype dtype, gb_vector x) {
  gb_vector factor, power;
  if (dtype == GB_FLOAT32) return gb_vector_lift(x);
  power = gb_vector_parts_of_16(x, &factor);
  return (gb_vector)_mm512_maskz_mul_ps(gb_vector_counts(x), (__m512)power, (__m512)factor);
}

/* sum + gb_vector_lift_of(dtype, x), an operation less. */
GB_ALWAYS_INLINE gb_vector gb_vector_lift_add(gb_dtype dtype, gb_vector sum, gb_vector x) {
  gb_vector r, p, power;
  if (dtype != GB_FLOAT32) power = gb_vector_parts_of_16(x, &p);
  else power = gb_vector_parts(x, &r, &p), p = r * p + gb_vector_of(1.0f);
  return (gb_vector)_mm512_mask3_fmadd_ps((__m512)power, (__m512)p, (__m512)sum, gb_vector_counts(x));
}
#else
GB_ALWAYS_INLINE gb_vector gb_vector_lift(gb_vector x) {
  float at[GB_VECTOR];
  memcpy(at, &x, sizeof x);
#pragma omp simd
  for (int k = 0; k < GB_VECTOR; k++) at[k] = gb_expf_lifted(at[k]);
  memcpy(&x, at, sizeof x);
  return x;
}

GB_ALWAYS_INLINE gb_vector gb_vector_lift_of(gb_dtype dtype, gb_vector x) {
  (void)dtype;
  return gb_vector_lift(x);
}
GB_ALWAYS_INLINE gb_vector gb_vector_lift_add(gb_dtype dtype, gb_vector sum,
                                              gb_vector x) { return sum + gb_vector_lift_of(dtype, x); }
#endif

/* The sum of 2^32 * exp(x - shift) over at most a tile, each also in to, unless that is NULL. */
GB_ALWAYS_INLINE float gb_wide_exp_sum_tile(gb_dtype dtype, float *to, const void *x, int64_t n, gb_vector shift) {
  gb_wide sum = { 0 };
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, -INFINITY);
    gb_wide_ahead(dtype, x, i);
    if (!to) {
      sum = (gb_wide){ gb_vector_lift_add(dtype, sum.a, v.a - shift), gb_vector_lift_add(dtype, sum.b, v.b - shift) };
      continue;
    }
    v = (gb_wide){ gb_vector_lift_of(dtype, v.a - shift), gb_vector_lift_of(dtype, v.b - shift) };
    sum = (gb_wide){ sum.a + v.a, sum.b + v.b };
    if (whole) gb_wide_store(GB_FLOAT32, to, i, v, false);
    else gb_wide_store_last(GB_FLOAT32, to, i, n - i, v);
  }
  return gb_vector_sum(sum.a + sum.b);
}

/* ----} */

#endif
