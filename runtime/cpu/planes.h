/* cpu/planes.h - arithmetic of norms by channel on a plane: the elements of one channel of one image, which lie side by
 * side, as in NCHW. Planes are taken in any float dtype, as they lie; what is the same for a whole plane is a number.
 * Traffic: each function reads its planes once. */
#ifndef GB_CPU_PLANES_H
#define GB_CPU_PLANES_H

#include "cpu/norm.h"

/* A number for rows of a dtype. A NaN becomes the usual one, whose lower half is 0, so that rounding need not look for
 * it. */
static inline gb_vector gb_plane_number(double x) {
  return gb_vector_of(x != x ? NAN : (float)x);
}

/* {---- y = (x - mean) * scale + shift, and a residual and a ReLU behind it ---- */

/* What is less than floor becomes 0; -inf: nothing is. */
typedef struct gb_plane_line { double mean, scale, shift, floor; } gb_plane_line;

GB_ALWAYS_INLINE gb_vector gb_plane_floor(gb_vector x, gb_vector floor) {
  return (gb_vector)((gb_vector_bits)x & ~(gb_vector_bits)(x < floor));
}

/* more: the residual, or NULL. bare: nothing comes behind. */
GB_ALWAYS_INLINE void gb_plane_apply_wide(gb_dtype dtype, void *y, const void *x, const void *more, int64_t n,
                                          gb_plane_line l, bool bare) {
  gb_vector mean = gb_plane_number(l.mean), scale = gb_plane_number(l.scale), shift = gb_plane_number(l.shift);
  gb_vector floor = gb_vector_of((float)l.floor);
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    v = (gb_wide){ (v.a - mean) * scale + shift, (v.b - mean) * scale + shift };
    if (!bare && more) {
      gb_wide m = whole ? gb_wide_load(dtype, more, i) : gb_wide_load_last(dtype, more, i, n - i, 0);
      v = (gb_wide){ v.a + m.a, v.b + m.b };
    }
    if (!bare) v = (gb_wide){ gb_plane_floor(v.a, floor), gb_plane_floor(v.b, floor) };
    if (whole) gb_wide_store(dtype, y, i, v, false);
    else gb_wide_store_last(dtype, y, i, n - i, v);
  }
}

static inline void gb_plane_apply(gb_dtype dtype, void *y, const void *x, const void *more, int64_t n,
                                  gb_plane_line l) {
  double *wide = y;
  const double *d = x, *e = more;
  bool bare = !more && l.floor == -INFINITY;
  for GB_PIECES(at, m, n) {
    char *to = (char *)gb_norm_element(dtype, y, at);
    const char *from = gb_norm_element(dtype, x, at), *added = more ? gb_norm_element(dtype, more, at) : NULL;
    if (dtype == GB_FLOAT64) {
      for (int64_t i = at; i < at + m; i++) wide[i] = (d[i] - l.mean) * l.scale + l.shift;
      if (more) for (int64_t i = at; i < at + m; i++) wide[i] += e[i];
      if (!bare) for (int64_t i = at; i < at + m; i++) wide[i] = wide[i] < l.floor ? 0 : wide[i];
    } else if (bare) GB_WIDE_FOR(dtype, gb_plane_apply_wide, to, from, NULL, m, l, true);
    else GB_WIDE_FOR(dtype, gb_plane_apply_wide, to, from, added, m, l, false);
  }
}

/* ----} */

/* {---- gradients ---- */

/* The sums of grad and of grad * (x - mean) over at most a tile, added to sums. */
GB_ALWAYS_INLINE void gb_plane_sums_wide(gb_dtype dtype, const void *grad, const void *x, int64_t n, float mean,
                                         double sums[2]) {
  gb_wide plain[2] = { 0 }, along[2] = { 0 };
  gb_vector center = gb_vector_of(mean);
  int64_t i = 0;
  for (int k = 0; i + GB_WIDE <= n; i += GB_WIDE, k ^= 1) {
    gb_wide g = gb_wide_load(dtype, grad, i), v = gb_wide_load(dtype, x, i);
    plain[k] = (gb_wide){ plain[k].a + g.a, plain[k].b + g.b };
    along[k] = (gb_wide){ along[k].a + g.a * (v.a - center), along[k].b + g.b * (v.b - center) };
  }
  gb_wide g = gb_wide_load_last(dtype, grad, i, n - i, 0), v = gb_wide_load_last(dtype, x, i, n - i, 0);
  float last[2][GB_WIDE];
  memcpy(last[0], &g, sizeof g);
  memcpy(last[1], &v, sizeof v);
  for (int64_t k = 0; k < n - i; k++) {
    sums[0] += last[0][k];
    sums[1] += last[0][k] * (last[1][k] - mean);
  }
  sums[0] += gb_vector_sum((plain[0].a + plain[0].b) + (plain[1].a + plain[1].b));
  sums[1] += gb_vector_sum((along[0].a + along[0].b) + (along[1].a + along[1].b));
}

/* The sums of grad and of grad * (x - mean) over a plane. */
static inline void gb_plane_sums(gb_dtype dtype, const void *grad, const void *x, int64_t n, double mean,
                                 double sums[2]) {
  const double *h = grad, *d = x;
  sums[0] = sums[1] = 0;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) {
        sums[0] += h[i];
        sums[1] += h[i] * (d[i] - mean);
      }
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        GB_WIDE_FOR(dtype, gb_plane_sums_wide, gb_norm_element(dtype, grad, at), gb_norm_element(dtype, x, at),
                    n - at < GB_TILE ? n - at : GB_TILE, (float)mean, sums);
  }
}

GB_ALWAYS_INLINE void gb_plane_mask_wide(gb_dtype dtype, void *masked, const void *grad, const void *more,
                                         const void *rectified, int64_t n) {
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide g = whole ? gb_wide_load(dtype, grad, i) : gb_wide_load_last(dtype, grad, i, n - i, 0);
    gb_wide y = whole ? gb_wide_load(dtype, rectified, i) : gb_wide_load_last(dtype, rectified, i, n - i, 0);
    if (more) {
      gb_wide m = whole ? gb_wide_load(dtype, more, i) : gb_wide_load_last(dtype, more, i, n - i, 0);
      g = (gb_wide){ g.a + m.a, g.b + m.b };
    }
    g.a = (gb_vector)((gb_vector_bits)g.a & ~(gb_vector_bits)(y.a <= 0));
    g.b = (gb_vector)((gb_vector_bits)g.b & ~(gb_vector_bits)(y.b <= 0));
    if (whole) gb_wide_store(dtype, masked, i, g, false);
    else gb_wide_store_last(dtype, masked, i, n - i, g);
  }
}

/* masked = grad, to which more is added if there is any, where the result of a ReLU is not 0 or less, of a plane. */
static inline void gb_plane_mask(gb_dtype dtype, void *masked, const void *grad, const void *more,
                                 const void *rectified, int64_t n) {
  double *to = masked;
  const double *g = grad, *d = more, *y = rectified;
  for GB_PIECES(at, m, n) {
    const char *added = more ? gb_norm_element(dtype, more, at) : NULL;
    if (dtype == GB_FLOAT64)
      for (int64_t i = at; i < at + m; i++) to[i] = y[i] <= 0 ? 0 : d ? g[i] + d[i] : g[i];
    else
      GB_WIDE_FOR(dtype, gb_plane_mask_wide, (char *)gb_norm_element(dtype, masked, at),
                  gb_norm_element(dtype, grad, at), added, gb_norm_element(dtype, rectified, at), m);
  }
}

/* dx = outer * (inner * grad - plain - (x - mean) * along); along 0: whatever x is. */
typedef struct gb_plane_slope { double outer, inner, plain, mean, along; } gb_plane_slope;

/* One vector of it. */
GB_ALWAYS_INLINE gb_vector gb_plane_slope_of(gb_vector grad, gb_vector x, const gb_vector s[5], bool fixed) {
  gb_vector y = s[1] * grad - s[2];
  return s[0] * (fixed ? y : y - (x - s[3]) * s[4]);
}

GB_ALWAYS_INLINE void gb_plane_differentiate_wide(gb_dtype dtype, void *dx, const void *grad, const void *x, int64_t n,
                                                  gb_plane_slope p, bool fixed) {
  const gb_vector s[5] = { gb_plane_number(p.outer), gb_plane_number(p.inner), gb_plane_number(p.plain),
                           gb_plane_number(p.mean), gb_plane_number(p.along) };
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide g = whole ? gb_wide_load(dtype, grad, i) : gb_wide_load_last(dtype, grad, i, n - i, 0), v = g;
    if (!fixed) v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    g = (gb_wide){ gb_plane_slope_of(g.a, v.a, s, fixed), gb_plane_slope_of(g.b, v.b, s, fixed) };
    if (whole) gb_wide_store(dtype, dx, i, g, false);
    else gb_wide_store_last(dtype, dx, i, n - i, g);
  }
}

/* Of a plane. fixed: dx does not depend on x, which is not read. */
static inline void gb_plane_differentiate(gb_dtype dtype, void *dx, const void *grad, const void *x, int64_t n,
                                          gb_plane_slope p, bool fixed) {
  double *wide = dx;
  const double *h = grad, *d = x;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = at; i < at + m; i++)
        wide[i] = p.outer * (p.inner * h[i] - p.plain - (fixed ? 0 : (d[i] - p.mean) * p.along));
    else
      GB_WIDE_FOR(dtype, gb_plane_differentiate_wide, (char *)gb_norm_element(dtype, dx, at),
                  gb_norm_element(dtype, grad, at), gb_norm_element(dtype, x, at), m, p, fixed);
  }
}

/* ----} */

#endif
