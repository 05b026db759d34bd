/* cpu/channels.h - sums and changes by channel of rows of channels that lie end to end, in float32, float16 or
 * bfloat16: widened, rounded and added up in registers.
 *
 * A line is so many rows that it fills whole vectors; what belongs to a channel (its mean, its sums) is as long, once
 * for each row of a line, and in the order of cpu/wide.h. Sums of a column run over lines in a few parts, which are
 * added up in order; callers keep lines few enough for float32. Each element is read once, and written once. */
#ifndef GB_CPU_CHANNELS_H
#define GB_CPU_CHANNELS_H

#include "cpu/wide.h"

/* `count` lines of `length` elements, a multiple of GB_WIDE. */
typedef struct gb_lines { int64_t count, length; } gb_lines;

/* The elements of a dtype from line i, element k on. */
GB_ALWAYS_INLINE gb_wide gb_line_load(gb_dtype dtype, const void *x, gb_lines l, int64_t i, int64_t k) {
  return gb_wide_load(dtype, x, i * l.length + k);
}

/* x where `test` is not less than, or is not up to, `limit`, else 0: NaN counts as neither. */
GB_ALWAYS_INLINE gb_vector gb_vector_unless_less(gb_vector x, gb_vector test, gb_vector limit) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)test, (__m512)limit, _CMP_NLT_UQ), (__m512)x);
#else
  return (gb_vector)((gb_vector_bits)x & ~(gb_vector_bits)(test < limit));
#endif
}
GB_ALWAYS_INLINE gb_vector gb_vector_unless_up_to(gb_vector x, gb_vector test, gb_vector limit) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)test, (__m512)limit, _CMP_NLE_UQ), (__m512)x);
#else
  return (gb_vector)((gb_vector_bits)x & ~(gb_vector_bits)(test <= limit));
#endif
}

/* f(across, down, ...): pairs of vectors side by side whose sums are in registers at once, and parts of each sum: so
 * many that additions need not wait for one another. */
#define GB_LINES_FOR(length, f, ...)                                                                                   \
  do {                                                                                                                 \
    if ((length) % (4 * GB_WIDE) == 0) f(4, 1, __VA_ARGS__);                                                           \
    else if ((length) % (2 * GB_WIDE) == 0) f(2, 2, __VA_ARGS__);                                                      \
    else f(1, 4, __VA_ARGS__);                                                                                         \
  } while (0)
enum { GB_LINE_SUMS = 4 };

/* The sums of the first `across` pairs with those of the other parts, into to. */
GB_ALWAYS_INLINE void gb_put_line_sums(int across, const gb_wide s[GB_LINE_SUMS], float *to) {
  for (int j = 0; j < across; j++) {
    gb_wide sum = s[j];
    for (int d = j + across; d < GB_LINE_SUMS; d += across) sum.a += s[d].a, sum.b += s[d].b;
    gb_wide_store(GB_FLOAT32, to, j * GB_WIDE, sum, false);
  }
}

/* sum += x, or the square of its distance from an offset. */
GB_ALWAYS_INLINE void gb_add_element(bool square, gb_wide *sum, gb_wide x, gb_wide o) {
  if (square) sum->a += (x.a - o.a) * (x.a - o.a), sum->b += (x.b - o.b) * (x.b - o.b);
  else sum->a += x.a, sum->b += x.b;
}

/* sums = the sum of all lines; offset: of the squares of their distances from it, or NULL. */
GB_ALWAYS_INLINE void gb_sum_lines_by(int across, int down, gb_dtype dtype, const void *x, gb_lines l, bool square,
                                      const float *offset, float *sums) {
  for (int64_t k = 0; k < l.length; k += across * GB_WIDE) {
    gb_wide s[GB_LINE_SUMS] = { 0 }, o[GB_LINE_SUMS] = { 0 };
    int64_t i = 0;
    for (int j = 0; square && j < across; j++) o[j] = gb_wide_load(GB_FLOAT32, offset, k + j * GB_WIDE);
    for (; i + down <= l.count; i += down)
      for (int d = 0; d < down; d++)
        for (int j = 0; j < across; j++)
          gb_add_element(square, &s[d * across + j], gb_line_load(dtype, x, l, i + d, k + j * GB_WIDE), o[j]);
    for (; i < l.count; i++)
      for (int j = 0; j < across; j++)
        gb_add_element(square, &s[j], gb_line_load(dtype, x, l, i, k + j * GB_WIDE), o[j]);
    gb_put_line_sums(across, s, sums + k);
  }
}
GB_ALWAYS_INLINE void gb_sum_lines_as(gb_dtype dtype, const void *x, gb_lines l, const float *offset, float *sums) {
  if (offset) GB_LINES_FOR(l.length, gb_sum_lines_by, dtype, x, l, true, offset, sums);
  else GB_LINES_FOR(l.length, gb_sum_lines_by, dtype, x, l, false, NULL, sums);
}
static inline void gb_sum_lines(gb_dtype dtype, const void *x, gb_lines l, const float *offset, float *sums) {
  GB_WIDE_FOR(dtype, gb_sum_lines_as, x, l, offset, sums);
}

/* y = (x - offset) * scale + shift, with `more` added if it is there; what is less than `floor` becomes 0. */
typedef struct gb_line_change { const float *offset, *scale, *shift; float floor; } gb_line_change;

GB_ALWAYS_INLINE void gb_change_lines_as(gb_dtype dtype, void *y, const void *x, const void *more, gb_lines l,
                                         gb_line_change c) {
  const gb_vector floor = gb_vector_of(c.floor);
  for (int64_t k = 0; k < l.length; k += GB_WIDE) {
    const gb_wide o = gb_wide_load(GB_FLOAT32, c.offset, k), s = gb_wide_load(GB_FLOAT32, c.scale, k),
        b = gb_wide_load(GB_FLOAT32, c.shift, k);
    for (int64_t i = 0; i < l.count; i++) {
      gb_wide v = gb_line_load(dtype, x, l, i, k);
      v.a = (v.a - o.a) * s.a + b.a, v.b = (v.b - o.b) * s.b + b.b;
      if (more) {
        const gb_wide add = gb_line_load(dtype, more, l, i, k);
        v.a += add.a, v.b += add.b;
      }
      v.a = gb_vector_unless_less(v.a, v.a, floor), v.b = gb_vector_unless_less(v.b, v.b, floor);
      gb_wide_store(dtype, y, i * l.length + k, v, false);
    }
  }
}
static inline void gb_change_lines(gb_dtype dtype, void *y, const void *x, const void *more, gb_lines l,
                                   gb_line_change c) {
  GB_WIDE_FOR(dtype, gb_change_lines_as, y, x, more, l, c);
}

/* A gradient: as it lies; or behind a ReLU of the result `rectified`, where it is made of grad, and more if that is
 * there, and written to `masked` as its dtype has it. */
typedef struct gb_line_gradient { const void *grad, *more, *rectified; void *masked; } gb_line_gradient;

GB_ALWAYS_INLINE gb_wide gb_gradient_of_line(gb_dtype dtype, bool relu, bool adds, gb_line_gradient g, int64_t at) {
  gb_wide v = gb_wide_load(dtype, g.grad, at);
  if (!relu) return v;
  const gb_wide y = gb_wide_load(dtype, g.rectified, at);
  const gb_vector zero = { 0 };
  if (adds) {
    const gb_wide more = gb_wide_load(dtype, g.more, at);
    v.a += more.a, v.b += more.b;
  }
  v.a = gb_vector_unless_up_to(v.a, y.a, zero), v.b = gb_vector_unless_up_to(v.b, y.b, zero);
  gb_wide_store(dtype, g.masked, at, v, false);
  return adds && dtype != GB_FLOAT32 ? gb_wide_load(dtype, g.masked, at) : v;
}

/* plain = the sum of all lines' gradients, along = of those times the distance of x from offset. */
GB_ALWAYS_INLINE void gb_sum_gradients_by(int across, int down, gb_dtype dtype, bool relu, bool adds,
                                          gb_line_gradient grad, const void *x, gb_lines l, const float *offset,
                                          float *plain, float *along) {
  for (int64_t k = 0; k < l.length; k += across * GB_WIDE) {
    gb_wide s[GB_LINE_SUMS] = { 0 }, a[GB_LINE_SUMS] = { 0 }, o[GB_LINE_SUMS];
    for (int j = 0; j < across; j++) o[j] = gb_wide_load(GB_FLOAT32, offset, k + j * GB_WIDE);
    for (int64_t i = 0; i < l.count; i += down)
      for (int d = 0; d < down && i + d < l.count; d++)
        for (int j = 0; j < across; j++) {
          const int64_t at = (i + d) * l.length + k + j * GB_WIDE;
          const gb_wide v = gb_wide_load(dtype, x, at), g = gb_gradient_of_line(dtype, relu, adds, grad, at);
          gb_wide *sum = &s[d * across + j], *more = &a[d * across + j];
          sum->a += g.a, sum->b += g.b;
          more->a += g.a * (v.a - o[j].a), more->b += g.b * (v.b - o[j].b);
        }
    gb_put_line_sums(across, s, plain + k);
    gb_put_line_sums(across, a, along + k);
  }
}
GB_ALWAYS_INLINE void gb_sum_gradients_as(gb_dtype dtype, gb_line_gradient g, const void *x, gb_lines l,
                                          const float *offset, float *plain, float *along) {
  if (!g.rectified) GB_LINES_FOR(l.length, gb_sum_gradients_by, dtype, false, false, g, x, l, offset, plain, along);
  else if (!g.more) GB_LINES_FOR(l.length, gb_sum_gradients_by, dtype, true, false, g, x, l, offset, plain, along);
  else GB_LINES_FOR(l.length, gb_sum_gradients_by, dtype, true, true, g, x, l, offset, plain, along);
}
static inline void gb_sum_gradients(gb_dtype dtype, gb_line_gradient g, const void *x, gb_lines l, const float *offset,
                                    float *plain, float *along) {
  GB_WIDE_FOR(dtype, gb_sum_gradients_as, g, x, l, offset, plain, along);
}

/* dx = outer * (inner * grad - plain - (x - offset) * along). */
typedef struct gb_line_slope { const float *outer, *inner, *plain, *offset, *along; } gb_line_slope;

GB_ALWAYS_INLINE void gb_differentiate_lines_as(gb_dtype dtype, void *dx, const void *grad, const void *x, gb_lines l,
                                                gb_line_slope s) {
  for (int64_t k = 0; k < l.length; k += GB_WIDE) {
    const gb_wide outer = gb_wide_load(GB_FLOAT32, s.outer, k), inner = gb_wide_load(GB_FLOAT32, s.inner, k),
        p = gb_wide_load(GB_FLOAT32, s.plain, k), o = gb_wide_load(GB_FLOAT32, s.offset, k),
        a = gb_wide_load(GB_FLOAT32, s.along, k);
    for (int64_t i = 0; i < l.count; i++) {
      const gb_wide g = gb_line_load(dtype, grad, l, i, k), v = gb_line_load(dtype, x, l, i, k);
      const gb_wide d = { outer.a * (inner.a * g.a - p.a - (v.a - o.a) * a.a),
                          outer.b * (inner.b * g.b - p.b - (v.b - o.b) * a.b) };
      gb_wide_store(dtype, dx, i * l.length + k, d, false);
    }
  }
}
static inline void gb_differentiate_lines(gb_dtype dtype, void *dx, const void *grad, const void *x, gb_lines l,
                                          gb_line_slope s) {
  GB_WIDE_FOR(dtype, gb_differentiate_lines_as, dx, grad, x, l, s);
}

#endif
