/* base/random.h - what is made of the words of Philox: uniform and normal numbers, integers, choices, dropout's masks.
 *
 * This is C that gcc, clang and nvcc compile, so that every backend makes the same of a word. 32 bits give an element
 * where a float32 comes out, 64 where a float64 or an integer does. Sums and products are rounded one by one: nvcc is
 * told so here, and files in C that draw uniform or normal numbers are compiled without fused multiply-adds. */
#ifndef GB_BASE_RANDOM_H
#define GB_BASE_RANDOM_H

#include <stdbool.h>

#include "base/math.h"
#include "base/philox.h"

/* x * scale + shift, not fused. */
GB_INLINE float gb_scaled_f32(float x, float scale, float shift) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(x, scale), shift);
#else
  return x * scale + shift;
#endif
}
GB_INLINE double gb_scaled_f64(double x, double scale, double shift) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(__dmul_rn(x, scale), shift);
#else
  return x * scale + shift;
#endif
}

/* A number that rounding brought up to high becomes low. */
GB_INLINE float gb_below_f32(float x, float low, float high) { return x >= high ? low : x; }
GB_INLINE double gb_below_f64(double x, double low, double high) { return x >= high ? low : x; }

/* Uniform in low .. high, of as many bits of the word as the significand of the dtype that will hold it has, so that u
 * never rounds to 1. Rounded to that dtype it goes through gb_below_f32. */
GB_INLINE float gb_uniform_f32(uint32_t word, int digits, float low, float high) {
  return gb_scaled_f32((float)(word >> (32 - digits)) * gb_power_of_2(-digits), high - low, low);
}
/* Uniform in [low, high), of two words. */
GB_INLINE double gb_uniform_f64(const uint32_t *word, double low, double high) {
  return gb_below_f64(gb_scaled_f64(gb_uniform64(word[0], word[1]), high - low, low), low, high);
}

/* Box and Muller: two normals of a word for the radius and one for the angle. */
GB_INLINE void gb_normal_pair_f32(const uint32_t *word, float mean, float std, float *pair) {
  float radius = sqrtf(-2.0f * gb_logf((float)word[0] * 0x1p-32f + 0x1p-33f)), sine, cosine;
  gb_sincos_turns(gb_uniform(word[1]), &sine, &cosine);
  pair[0] = gb_scaled_f32(radius * cosine, std, mean);
  pair[1] = gb_scaled_f32(radius * sine, std, mean);
}
/* As above, of four words. */
GB_INLINE void gb_normal_pair_f64(const uint32_t *word, double mean, double std, double *pair) {
  double radius = sqrt(-2 * log(1 - gb_uniform64(word[0], word[1])));
  double angle = 6.28318530717958647693 * gb_uniform64(word[2], word[3]);
  pair[0] = gb_scaled_f64(radius * cos(angle), std, mean);
  pair[1] = gb_scaled_f64(radius * sin(angle), std, mean);
}

/* 0 .. range - 1 from two words: the upper half of their product with range (Lemire, "Fast random integer generation in
 * an interval", ACM TOMACS 29(1), 2019, without the rejection: the bias is below range / 2^64). */
GB_INLINE uint64_t gb_random_below(const uint32_t *word, uint64_t range) {
  uint64_t bits = (uint64_t)word[0] << 32 | word[1];
#if defined(__CUDA_ARCH__)
  return __umul64hi(bits, range);
#else
  return (uint64_t)(((unsigned __int128)bits * range) >> 64);
#endif
}

/* True with probability p; what is no probability has no meaning here. */
GB_INLINE bool gb_is_probability(double p) { return p >= 0 && p <= 1; }
GB_INLINE bool gb_bernoulli(uint32_t word, double p) { return (double)word * 0x1p-32 < p; }

/* Dropout: kept, and scaled, where the word as a number in [0, 1) is at least p. */
GB_INLINE float gb_dropout_f32(uint32_t word, float x, float p, float scale) {
  return gb_uniform(word) >= p ? x * scale : 0.0f;
}
GB_INLINE double gb_dropout_f64(uint32_t word, double x, float p, double scale) {
  return gb_uniform(word) >= p ? x * scale : 0.0;
}

/* Attention's dropout: dropped where the word as a number in [0, 1) is less than p, which its upper 24 bits tell. */
GB_INLINE uint32_t gb_drop_bound(double p) { return (uint32_t)ceil(p * 0x1p24); }
GB_INLINE bool gb_is_dropped(uint32_t word, uint32_t bound) { return word >> 8 < bound; }

/* {==== weights at the leaves of a tree of sums, so that a draw and a removal take log(n) steps ==== */

/* A tree is 2 * size numbers, the root at 1. The leaf in which u times the total falls; never one of weight 0. */
GB_INLINE int64_t gb_draw_leaf(const double *tree, int64_t size, double u) {
  double target = u * tree[1];
  int64_t at = 1;
  while (at < size) {
    double left = tree[2 * at], right = tree[2 * at + 1];
    bool go_right = left == 0 || (target >= left && right > 0);
    if (go_right) target -= left;
    at = 2 * at + go_right;
  }
  return at - size;
}

/* Take a leaf out; sums are made anew from what is left, so they stay exact. */
GB_INLINE void gb_fell_leaf(double *tree, int64_t size, int64_t leaf) {
  int64_t at = size + leaf;
  tree[at] = 0;
  while (at > 1) {
    at /= 2;
    tree[at] = tree[2 * at] + tree[2 * at + 1];
  }
}

/* ====} */

#endif
