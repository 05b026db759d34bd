/* cpu/planes.h - arithmetic of norms by channel on a plane: the elements of one channel of one image, which lie side by
 * side, as in NCHW. Planes are taken in any float dtype, as they lie; what is the same for a whole plane is a number.
 * Traffic: each function reads its planes once. A function that writes a plane can read another one meanwhile, which
 * takes no longer where memory is what both wait for: one that lies in L2 is written while the next comes. */
#ifndef GB_CPU_PLANES_H
#define GB_CPU_PLANES_H

#include "cpu/norm.h"

/* Elements whose sums are in float32 before they go on in float64: so many that what ends a tile takes little. */
enum { GB_PLANE_TILE = GB_SHORT_ROW };

/* A number for rows of a dtype. A NaN becomes the usual one, whose lower half is 0, so that rounding need not look for
 * it. */
static inline gb_vector gb_plane_number(double x) {
  return gb_vector_of(x != x ? NAN : (float)x);
}

/* {---- steps ---- */

/* A loop goes by steps of two vectors, or of one that fills a cache line, in a; then b is not read, summed up or
 * written. So lines of what it reads and writes take turns: see gb_plane_ahead. A plane's sums are the same bits
 * whether another one is written meanwhile or not. */
GB_ALWAYS_INLINE bool gb_plane_single(gb_dtype dtype) { return dtype == GB_FLOAT32 && sizeof(gb_vector) == 64; }
GB_ALWAYS_INLINE int64_t gb_plane_step(gb_dtype dtype) { return gb_plane_single(dtype) ? GB_VECTOR : GB_WIDE; }

/* The step of a plane from element i on. */
GB_ALWAYS_INLINE gb_wide gb_plane_load(gb_dtype dtype, const void *x, int64_t i) {
  gb_wide v = { 0 };
  if (!gb_plane_single(dtype)) return gb_wide_load(dtype, x, i);
  memcpy(&v.a, (const float *)x + i, sizeof v.a);
  return v;
}

GB_ALWAYS_INLINE void gb_plane_store(gb_dtype dtype, void *y, int64_t i, gb_wide v, bool stream) {
  if (gb_plane_single(dtype)) gb_vector_store((float *)y + i, v.a, stream);
  else gb_wide_store(dtype, y, i, v, stream);
}

/* Ask, for the step of a plane that comes from memory while another one, which is in L2, is written, for what comes
 * later: into L2 only and from far ahead, as the processor's own prefetching falls back here. Measured on Zen 4: the
 * time of 1.9 copies without this, of 1.05 with it; into L1, or from a quarter as far, 1.5 and more. Two lines of the
 * plane read in a row, without one of another between them, and all is as slow as before. */
GB_ALWAYS_INLINE void gb_plane_ahead(gb_dtype dtype, const void *x, int64_t i) {
  enum { AHEAD = 16384, IN_L2 = 2 };
  __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)i * (dtype == GB_FLOAT32 ? 4 : 2) + AHEAD), 0, IN_L2);
}

/* The sum of both vectors. */
GB_ALWAYS_INLINE double gb_plane_total(gb_wide x) { return (double)gb_vector_sum(x.a + x.b); }

/* ----} */

/* {---- mean, and the sum of squares about it ---- */

/* A plane x as far as it has been read: `count` elements, their mean, and the sum of squares about it. near: a number
 * among them, the mean of the tile before.
 *
 * One pass: of each tile, the sums of x - near and of its square. What the second loses where near is not the tile's
 * own mean is small beside what two tiles so far apart add to the spread. But of the first tile near is the mean of a
 * few elements, which may lie far from all others, as those of a border do: such a tile is read again. */
typedef struct gb_plane_moments { const void *x; double count, mean, spread; float near; } gb_plane_moments;

static inline float gb_plane_finite(double x) { return isfinite((float)x) ? (float)x : 0; }

/* The moments of a plane of n elements, of which none has been read but those that tell what is near. */
static inline gb_plane_moments gb_plane_unread(gb_dtype dtype, const void *x, int64_t n) {
  gb_wide first = n < GB_WIDE ? gb_wide_load_last(dtype, x, 0, n, 0)
      : GB_WIDE_FOR(dtype, gb_wide_load, x, 0);
  return (gb_plane_moments){ .x = x, .near = gb_plane_finite(gb_plane_total(first) / (double)(n < GB_WIDE ? n
                                                                                               : GB_WIDE)) };
}

GB_ALWAYS_INLINE void gb_plane_add_moments(gb_wide sums[2], gb_wide x, gb_vector near, bool single) {
  x = (gb_wide){ x.a - near, x.b - near };
  sums[0].a += x.a, sums[1].a += x.a * x.a;
  if (!single) sums[0].b += x.b, sums[1].b += x.b * x.b;
}

/* A tile of n elements is read. (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979.) */
static inline void gb_plane_end_tile(gb_plane_moments *m, const gb_wide sums[2], int64_t n) {
  double count = (double)n, sum = gb_plane_total(sums[0]), mean = m->near + sum / count, apart = mean - m->mean;
  double spread = gb_plane_total(sums[1]) - sum * sum / count;
  m->spread += (spread < 0 ? 0 : spread) + apart * apart * m->count * count / (m->count + count);
  m->mean += apart * count / (m->count + count);
  m->count += count;
  m->near = gb_plane_finite(mean);
}

/* The sums of the tile of n elements from `at` on. */
GB_ALWAYS_INLINE void gb_plane_sum_tile(gb_dtype dtype, const gb_plane_moments *m, int64_t at, int64_t n,
                                        gb_wide sums[2]) {
  const void *x = gb_norm_element(dtype, m->x, at);
  const gb_vector near = gb_vector_of(m->near);
  int64_t i = 0;
  for (; i + gb_plane_step(dtype) <= n; i += gb_plane_step(dtype))
    gb_plane_add_moments(sums, gb_plane_load(dtype, x, i), near, gb_plane_single(dtype));
  if (i < n) gb_plane_add_moments(sums, gb_wide_load_last(dtype, x, i, n - i, m->near), near, false);
}

/* The tile, which lies in the caches now, about what is near by now. */
static __attribute__((noinline)) void gb_plane_read_again(gb_dtype dtype, gb_plane_moments *m, int64_t at, int64_t n) {
  gb_wide sums[2] = { 0 };
  GB_WIDE_FOR(dtype, gb_plane_sum_tile, m, at, n, sums);
  gb_plane_end_tile(m, sums, n);
}

/* The tile has these sums. Where its spread is less than an eighth of what the distance of its mean from near adds to
 * the squares, these have lost too much of it. */
GB_ALWAYS_INLINE void gb_plane_take_tile(gb_dtype dtype, gb_plane_moments *m, int64_t at, int64_t n,
                                         const gb_wide sums[2]) {
  double sum = gb_plane_total(sums[0]), common = sum * sum / (double)n, spread = gb_plane_total(sums[1]) - common;
  if (common > 8 * spread) {
    m->near = gb_plane_finite(m->near + sum / (double)n);
    gb_plane_read_again(dtype, m, at, n);
  } else gb_plane_end_tile(m, sums, n);
}

/* Read that tile. */
GB_ALWAYS_INLINE void gb_plane_moments_wide(gb_dtype dtype, gb_plane_moments *m, int64_t at, int64_t n) {
  gb_wide sums[2] = { 0 };
  gb_plane_sum_tile(dtype, m, at, n, sums);
  gb_plane_take_tile(dtype, m, at, n, sums);
}

/* Of a whole plane. */
static inline gb_plane_moments gb_plane_moments_of(gb_dtype dtype, const void *x, int64_t n) {
  if (dtype == GB_FLOAT64) {
    double mean = gb_wide_sum(dtype, x, n) / (double)n;
    return (gb_plane_moments){ x, (double)n, mean, gb_norm_squares(dtype, x, mean, n), 0 };
  }
  gb_plane_moments m = gb_plane_unread(dtype, x, n);
  for GB_PIECES(first, count, n)
    for (int64_t at = first; at < first + count; at += GB_PLANE_TILE)
      GB_WIDE_FOR(dtype, gb_plane_moments_wide, &m, at, n - at < GB_PLANE_TILE ? n - at : GB_PLANE_TILE);
  return m;
}

/* ----} */

/* {---- y = (x - mean) * scale + shift, and a residual and a ReLU behind it ---- */

/* What is less than floor becomes 0; -inf: nothing is. */
typedef struct gb_plane_line { double mean, scale, shift, floor; } gb_plane_line;

GB_ALWAYS_INLINE gb_vector gb_plane_floor(gb_vector x, gb_vector floor) {
  return (gb_vector)((gb_vector_bits)x & ~(gb_vector_bits)(x < floor));
}

/* A line as vectors. */
typedef struct gb_plane_lanes { gb_vector mean, scale, shift, floor; } gb_plane_lanes;

/* Two vectors of it. more: those of the residual, or NULL. bare: nothing comes behind. */
GB_ALWAYS_INLINE gb_wide gb_plane_line_of(gb_wide v, const gb_wide *more, const gb_plane_lanes *l, bool bare) {
  v = (gb_wide){ (v.a - l->mean) * l->scale + l->shift, (v.b - l->mean) * l->scale + l->shift };
  if (more) v = (gb_wide){ v.a + more->a, v.b + more->b };
  return bare ? v : (gb_wide){ gb_plane_floor(v.a, l->floor), gb_plane_floor(v.b, l->floor) };
}

/* A tile of n elements from `at` on. next: a plane to read meanwhile, or NULL. */
GB_ALWAYS_INLINE void gb_plane_apply_wide(gb_dtype dtype, void *y, const void *x, const void *more, int64_t n,
                                          const gb_plane_line *line, bool bare, bool stream, gb_plane_moments *next,
                                          int64_t at) {
  const gb_plane_lanes l = { gb_plane_number(line->mean), gb_plane_number(line->scale), gb_plane_number(line->shift),
                             gb_vector_of((float)line->floor) };
  const float near = next ? next->near : 0;
  const void *other = next ? gb_norm_element(dtype, next->x, at) : NULL;
  gb_wide sums[2] = { 0 }, v, m;
  int64_t i = 0;
  for (; i + gb_plane_step(dtype) <= n; i += gb_plane_step(dtype)) {
    if (more) m = gb_plane_load(dtype, more, i);
    v = gb_plane_line_of(gb_plane_load(dtype, x, i), more ? &m : NULL, &l, bare);
    gb_plane_store(dtype, y, i, v, stream);
    if (!next) continue;
    gb_plane_ahead(dtype, other, i);
    gb_plane_add_moments(sums, gb_plane_load(dtype, other, i), gb_vector_of(near), gb_plane_single(dtype));
  }
  if (i < n) {
    if (more) m = gb_wide_load_last(dtype, more, i, n - i, 0);
    v = gb_plane_line_of(gb_wide_load_last(dtype, x, i, n - i, 0), more ? &m : NULL, &l, bare);
    gb_wide_store_last(dtype, y, i, n - i, v);
    if (next) gb_plane_add_moments(sums, gb_wide_load_last(dtype, other, i, n - i, near), gb_vector_of(near), false);
  }
  if (next) gb_plane_take_tile(dtype, next, at, n, sums);
}

/* The kernels, each as a function of its own: loops of many together lack registers for their constants. */
static __attribute__((noinline)) void gb_plane_apply_bare(gb_dtype dtype, void *y, const void *x, int64_t n,
                                                          const gb_plane_line *l, bool stream) {
  GB_WIDE_FOR(dtype, gb_plane_apply_wide, y, x, NULL, n, l, true, stream, NULL, 0);
}
static __attribute__((noinline)) void gb_plane_apply_bare_next(gb_dtype dtype, void *y, const void *x, int64_t n,
                                                               const gb_plane_line *l, bool stream,
                                                               gb_plane_moments *next, int64_t at) {
  if (stream) GB_WIDE_FOR(dtype, gb_plane_apply_wide, y, x, NULL, n, l, true, true, next, at);
  else GB_WIDE_FOR(dtype, gb_plane_apply_wide, y, x, NULL, n, l, true, false, next, at);
}
static __attribute__((noinline)) void gb_plane_apply_more(gb_dtype dtype, void *y, const void *x, const void *more,
                                                          int64_t n, const gb_plane_line *l, bool stream,
                                                          gb_plane_moments *next, int64_t at) {
  if (next) GB_WIDE_FOR(dtype, gb_plane_apply_wide, y, x, more, n, l, false, stream, next, at);
  else GB_WIDE_FOR(dtype, gb_plane_apply_wide, y, x, more, n, l, false, stream, NULL, at);
}

/* Of a plane, past the caches (stream) where it is aligned for that. next: another one, as long, to read meanwhile, or
 * NULL; never of float64. */
static inline void gb_plane_apply(gb_dtype dtype, void *y, const void *x, const void *more, int64_t n,
                                  gb_plane_line l, bool stream, gb_plane_moments *next) {
  double *wide = y;
  const double *d = x, *e = more;
  const bool bare = !more && l.floor == -INFINITY;
  stream = stream && gb_vector_aligned(y);
  for GB_PIECES(first, count, n) {
    if (dtype == GB_FLOAT64) {
      for (int64_t i = first; i < first + count; i++) wide[i] = (d[i] - l.mean) * l.scale + l.shift;
      if (more) for (int64_t i = first; i < first + count; i++) wide[i] += e[i];
      if (!bare) for (int64_t i = first; i < first + count; i++) wide[i] = wide[i] < l.floor ? 0 : wide[i];
      continue;
    }
    for (int64_t at = first, m; at < first + count; at += m) {
      char *to = (char *)gb_norm_element(dtype, y, at);
      const char *from = gb_norm_element(dtype, x, at), *added = more ? gb_norm_element(dtype, more, at) : NULL;
      m = n - at < GB_PLANE_TILE ? n - at : GB_PLANE_TILE;
      if (!bare) gb_plane_apply_more(dtype, to, from, added, m, &l, stream, next, at);
      else if (next) gb_plane_apply_bare_next(dtype, to, from, m, &l, stream, next, at);
      else gb_plane_apply_bare(dtype, to, from, m, &l, stream);
    }
  }
}

/* ----} */

/* {---- gradients ---- */

/* A plane's gradient, and its sums as far as it has been read: of grad and of grad * (x - mean). */
typedef struct gb_plane_sums { const void *grad, *x; double mean, plain, along; } gb_plane_sums;

GB_ALWAYS_INLINE void gb_plane_add_sums(gb_wide sums[2], gb_wide grad, gb_wide x, gb_vector mean, bool single) {
  sums[0].a += grad.a, sums[1].a += grad.a * (x.a - mean);
  if (!single) sums[0].b += grad.b, sums[1].b += grad.b * (x.b - mean);
}

/* Read the tile of n elements from `at` on. */
GB_ALWAYS_INLINE void gb_plane_sums_wide(gb_dtype dtype, gb_plane_sums *s, int64_t at, int64_t n) {
  const void *grad = gb_norm_element(dtype, s->grad, at), *x = gb_norm_element(dtype, s->x, at);
  const float mean = (float)s->mean;
  gb_wide sums[2] = { 0 };
  int64_t i = 0;
  for (; i + gb_plane_step(dtype) <= n; i += gb_plane_step(dtype))
    gb_plane_add_sums(sums, gb_plane_load(dtype, grad, i), gb_plane_load(dtype, x, i), gb_vector_of(mean),
                      gb_plane_single(dtype));
  if (i < n) gb_plane_add_sums(sums, gb_wide_load_last(dtype, grad, i, n - i, 0),
                               gb_wide_load_last(dtype, x, i, n - i, mean), gb_vector_of(mean), false);
  s->plain += gb_plane_total(sums[0]);
  s->along += gb_plane_total(sums[1]);
}

/* Read a whole plane. */
static inline void gb_plane_add_up(gb_dtype dtype, gb_plane_sums *s, int64_t n) {
  const double *h = s->grad, *d = s->x;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) {
        s->plain += h[i];
        s->along += h[i] * (d[i] - s->mean);
      }
    else
      for (int64_t at = first; at < first + m; at += GB_PLANE_TILE)
        GB_WIDE_FOR(dtype, gb_plane_sums_wide, s, at, n - at < GB_PLANE_TILE ? n - at : GB_PLANE_TILE);
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

/* A tile of n elements from `at` on. next: a plane to read meanwhile, or NULL. */
GB_ALWAYS_INLINE void gb_plane_differentiate_wide(gb_dtype dtype, void *dx, const void *grad, const void *x, int64_t n,
                                                  const gb_plane_slope *p, bool fixed, bool stream,
                                                  gb_plane_sums *next, int64_t at) {
  const gb_vector s[5] = { gb_plane_number(p->outer), gb_plane_number(p->inner), gb_plane_number(p->plain),
                           gb_plane_number(p->mean), gb_plane_number(p->along) };
  const void *other = next ? gb_norm_element(dtype, next->grad, at) : NULL;
  const void *more = next ? gb_norm_element(dtype, next->x, at) : NULL;
  const float mean = next ? (float)next->mean : 0;
  gb_wide sums[2] = { 0 }, g, v;
  int64_t i = 0;
  for (; i + gb_plane_step(dtype) <= n; i += gb_plane_step(dtype)) {
    g = gb_plane_load(dtype, grad, i), v = fixed ? g : gb_plane_load(dtype, x, i);
    g = (gb_wide){ gb_plane_slope_of(g.a, v.a, s, fixed), gb_plane_slope_of(g.b, v.b, s, fixed) };
    gb_plane_store(dtype, dx, i, g, stream);
    if (!next) continue;
    gb_plane_ahead(dtype, other, i);
    gb_plane_ahead(dtype, more, i);
    gb_plane_add_sums(sums, gb_plane_load(dtype, other, i), gb_plane_load(dtype, more, i), gb_vector_of(mean),
                      gb_plane_single(dtype));
  }
  if (i < n) {
    g = gb_wide_load_last(dtype, grad, i, n - i, 0), v = fixed ? g : gb_wide_load_last(dtype, x, i, n - i, 0);
    g = (gb_wide){ gb_plane_slope_of(g.a, v.a, s, fixed), gb_plane_slope_of(g.b, v.b, s, fixed) };
    gb_wide_store_last(dtype, dx, i, n - i, g);
    if (next) gb_plane_add_sums(sums, gb_wide_load_last(dtype, other, i, n - i, 0),
                                gb_wide_load_last(dtype, more, i, n - i, mean), gb_vector_of(mean), false);
  }
  if (!next) return;
  next->plain += gb_plane_total(sums[0]);
  next->along += gb_plane_total(sums[1]);
}

/* The kernels, as functions of their own. */
static __attribute__((noinline)) void gb_plane_slopes(gb_dtype dtype, void *dx, const void *grad, const void *x,
                                                      int64_t n, const gb_plane_slope *p, bool fixed, bool stream) {
  GB_WIDE_FOR(dtype, gb_plane_differentiate_wide, dx, grad, x, n, p, fixed, stream, NULL, 0);
}
static __attribute__((noinline)) void gb_plane_slopes_next(gb_dtype dtype, void *dx, const void *grad, const void *x,
                                                           int64_t n, const gb_plane_slope *p, bool stream,
                                                           gb_plane_sums *next, int64_t at) {
  if (stream) GB_WIDE_FOR(dtype, gb_plane_differentiate_wide, dx, grad, x, n, p, false, true, next, at);
  else GB_WIDE_FOR(dtype, gb_plane_differentiate_wide, dx, grad, x, n, p, false, false, next, at);
}

/* Of a plane, past the caches (stream) where it is aligned for that. fixed: dx does not depend on x, which is not read.
 * next: another one, as long, to read meanwhile, or NULL; never of float64, and none where fixed. */
static inline void gb_plane_differentiate(gb_dtype dtype, void *dx, const void *grad, const void *x, int64_t n,
                                          gb_plane_slope p, bool fixed, bool stream, gb_plane_sums *next) {
  double *wide = dx;
  const double *h = grad, *d = x;
  stream = stream && gb_vector_aligned(dx);
  for GB_PIECES(first, count, n) {
    if (dtype == GB_FLOAT64) {
      for (int64_t i = first; i < first + count; i++)
        wide[i] = p.outer * (p.inner * h[i] - p.plain - (fixed ? 0 : (d[i] - p.mean) * p.along));
      continue;
    }
    for (int64_t at = first, m; at < first + count; at += m) {
      char *to = (char *)gb_norm_element(dtype, dx, at);
      const char *of = gb_norm_element(dtype, grad, at), *from = gb_norm_element(dtype, x, at);
      m = n - at < GB_PLANE_TILE ? n - at : GB_PLANE_TILE;
      if (next) gb_plane_slopes_next(dtype, to, of, from, m, &p, stream, next, at);
      else gb_plane_slopes(dtype, to, of, from, m, &p, fixed, stream);
    }
  }
}

/* ----} */

#endif
