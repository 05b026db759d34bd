/* cpu/narrow.h - contiguous float32 rounded to 16 bits, inline for loops that have just computed it. */
#ifndef GB_CPU_NARROW_H
#define GB_CPU_NARROW_H

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/float.h"

/* To nearest even. */
static inline void gb_narrow_f16(uint16_t *to, const float *from, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4) vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
  for (; i < n; i++) to[i] = gb_float_to_float16(from[i]);
}

#if defined(__AVX512BW__)
/* gb_float_to_bfloat16 for 16 floats: the result is the upper half of each lane. */
static inline __m512i gb_round_bf16(__m512 x) {
  __m512i u = _mm512_castps_si512(x), rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_add_epi32(rounded, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), rounded,
                                  _mm512_set1_epi32(1));
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
}
#endif

/* To nearest even, NaN quiet: on 32-bit lanes, then one packing of their upper halves. */
static inline void gb_narrow_bf16(uint16_t *to, const float *from, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                       23, 21, 19, 17, 15, 13,
                                       11, 9, 7, 5, 3, 1);
  for (; i + 32 <= n; i += 32) {
    __m512i low = gb_round_bf16(_mm512_loadu_ps(from + i)), high = gb_round_bf16(_mm512_loadu_ps(from + i + 16));
    _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(low, odd, high));
  }
#endif
#pragma omp simd
  for (int64_t k = i; k < n; k++) {
    uint32_t u = gb_float_bits(from[k]), rounded = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
    to[k] = (uint16_t)(((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
  }
}

#endif
