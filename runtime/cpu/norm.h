/* cpu/norm.h - what the norms over last dims (norm.c) and those by channel (channel_norm.c) share. */
#ifndef GB_CPU_NORM_H
#define GB_CPU_NORM_H

#include <math.h>

#include "cpu/scratch.h"
#include "cpu/wide.h"

/* Rows are taken in any dtype, as they lie; weight, bias and their gradients are lanes, in the order of cpu/wide.h. */


/* Where element `at` of a row lies. */
static inline const char *gb_norm_element(gb_dtype dtype, const void *x,
                                          int64_t at) { return (const char *)x + (size_t)at * gb_dtype_bytes(dtype); }

GB_ALWAYS_INLINE void gb_norm_wide(gb_dtype dtype, void *y, const void *x, int64_t n, gb_vector mean, gb_vector rstd,
                                   const float *weight,
                                     const float *bias, bool stream) {
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    gb_wide w = whole ? gb_wide_load(GB_FLOAT32, weight, i) : gb_wide_load_last(GB_FLOAT32, weight, i, n - i, 0);
    gb_wide b = whole ? gb_wide_load(GB_FLOAT32, bias, i) : gb_wide_load_last(GB_FLOAT32, bias, i, n - i, 0);
    gb_wide_ahead(dtype, x, i);
    v = (gb_wide){ (v.a - mean) * rstd * w.a + b.a, (v.b - mean) * rstd * w.b + b.b };
    if (whole) gb_wide_store(dtype, y, i, v, stream);
    else gb_wide_store_last(dtype, y, i, n - i, v);
  }
}

/* y = (x - mean) * rstd * weight + bias; y may be x. */
static inline void gb_norm_row(gb_dtype dtype, void *y, const void *x, int64_t n, double mean, double rstd,
                               const void *weight, const void *bias,
                      bool stream) {
  double *wide = y;
  const double *d = x, *v = weight, *c = bias;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64) {
#pragma omp simd
      for (int64_t i = at; i < at + m; i++) wide[i] = (d[i] - mean) * rstd * v[i] + c[i];
    } else
      GB_WIDE_FOR(dtype, gb_norm_wide, (char *)gb_norm_element(dtype, y, at), gb_norm_element(dtype, x, at), m,
                  gb_vector_of((float)mean),
                  gb_vector_of((float)rstd), (const float *)weight + at, (const float *)bias + at, stream);
  }
}

/* sum + (x - mean)^2 */
GB_ALWAYS_INLINE gb_wide gb_norm_add_square(gb_wide sum, gb_wide x, gb_vector mean) {
  x = (gb_wide){ x.a - mean, x.b - mean };
  return (gb_wide){ sum.a + x.a * x.a, sum.b + x.b * x.b };
}

/* The sum of (x - mean)^2 over at most a tile. */
GB_ALWAYS_INLINE float gb_norm_squares_wide(gb_dtype dtype, const void *x, int64_t n, float mean) {
  gb_wide sum[2] = { 0 };
  int64_t i = 0;
  for (; i + 2 * GB_WIDE <= n; i += 2 * GB_WIDE)
    for (int k = 0; k < 2; k++)
      sum[k] = gb_norm_add_square(sum[k], gb_wide_load(dtype, x, i + k * GB_WIDE), gb_vector_of(mean));
  for (; i < n; i += GB_WIDE)
    sum[0] = gb_norm_add_square(sum[0], i + GB_WIDE <= n ? gb_wide_load(dtype, x, i)
                                : gb_wide_load_last(dtype, x, i, n - i, mean), gb_vector_of(mean));
  return gb_vector_sum((sum[0].a + sum[0].b) + (sum[1].a + sum[1].b));
}

/* The sum of (x - mean)^2 over a row. */
static inline double gb_norm_squares(gb_dtype dtype, const void *x, double mean, int64_t n) {
  double total = 0;
  const double *d = x;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) total += (d[i] - mean) * (d[i] - mean);
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        total += GB_WIDE_FOR(dtype, gb_norm_squares_wide, gb_norm_element(dtype, x, at),
                             n - at < GB_TILE ? n - at : GB_TILE, (float)mean);
  }
  return total;
}

/* Rows of n elements that are brought into lanes at once: a few tiles of them. */
static inline int64_t gb_norm_batch(int64_t n) { return n > 4 * GB_TILE ? 1 : 4 * GB_TILE / (n > 0 ? n : 1); }

/* A parameter in lanes, or `fill` n times where it is absent: row-major, or for rows of 16 bits in the order of their
 * vectors. Any NaN becomes the usual one, whose lower half is 0, so that rounding need not look for it. */
static inline void gb_norm_parameter(gb_lane lane, gb_dtype dtype, const gb_tensor *t, double fill, int64_t n,
                                     void *to) {
  float *lanes = to;
  if (t) {
    gb_rows rows = gb_rows_of(t, t->ndim - 1);
    gb_rows_load(&rows, lane, 0, rows.count, to);
  } else
    for GB_PIECES(at, m, n)
      for (int64_t i = at; i < at + m; i++) gb_row_put(lane, to, i, fill);
  if (dtype == gb_lane_dtype(lane)) return;
  for GB_PIECES(at, m, n)
    for (int64_t i = at; i < at + m; i++) lanes[i] = lanes[i] != lanes[i] ? NAN : lanes[i];
  for GB_PIECES(at, m, n) gb_wide_sort(dtype, lanes + at, m, false);
}

/* One double per group of a batch, from or to a statistic. */
static inline void gb_norm_statistics(const gb_tensor *t, int64_t first, int64_t count, double *values, bool store) {
  if (!t) {
    if (!store) gb_clear_bytes(values, (size_t)count * sizeof *values);
    return;
  }
  gb_rows rows = gb_rows_of(t, GB_ROWS_EACH);
  if (store) gb_rows_store(&rows, GB_LANE_F64, first, count, values);
  else gb_rows_load(&rows, GB_LANE_F64, first, count, values);
}

/* The lanes of a norm of x whose result is y. */
static inline gb_lane gb_norm_lane(const gb_tensor *x,
                                   const gb_tensor *y) { return gb_lane_of((gb_dtype)x->dtype, (gb_dtype)y->dtype); }

#endif
