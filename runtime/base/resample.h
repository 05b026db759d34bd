/* base/resample.h - what one element of a resampled row is made of: a window of the row and a weight for each element
 * in it.
 *
 * PyTorch's rules for interpolate, one dimension at a time. Windows begin and end no earlier than those of the elements
 * before them, which the gradient relies on. Both backends read these functions. */
#ifndef GB_BASE_RESAMPLE_H
#define GB_BASE_RESAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/float.h"

typedef enum gb_resample_mode {
  GB_RESAMPLE_NEAREST, GB_RESAMPLE_NEAREST_EXACT, GB_RESAMPLE_LINEAR, GB_RESAMPLE_CUBIC, GB_RESAMPLE_AREA
} gb_resample_mode;

/* A row of `in` elements made one of `out`; scale: elements of the input by those of the result. */
typedef struct gb_resampling {
  gb_resample_mode mode;
  bool align_corners, antialias;
  int64_t in, out;
  double scale;
} gb_resampling;

/* Elements first .. first + count - 1 of the row. centre: where the result lies between them. */
typedef struct gb_resample_window { int64_t first, count; double centre, total; } gb_resample_window;

/* The scale that the sizes say, unless one is given (> 0). */
GB_INLINE double gb_resample_scale(int64_t in, int64_t out, bool align_corners, double given) {
  if (align_corners) return out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
  return given > 0 ? given : (double)in / (double)out;
}

/* A row of `in` elements made one of `out`. */
GB_INLINE gb_resampling gb_resampling_of(gb_resample_mode mode, bool align_corners, bool antialias, double scale,
                                         int64_t in,
                                         int64_t out) {
  gb_resampling r = { mode, align_corners, antialias, in, out, gb_resample_scale(in, out, align_corners, scale) };
  return r;
}

/* The same of the attributes of resample or resample_backward, in files that know the words of ops. */
#define GB_RESAMPLE_MODE(word)                                   \
  ((word) == GB_WORD_nearest         ? GB_RESAMPLE_NEAREST       \
   : (word) == GB_WORD_nearest_exact ? GB_RESAMPLE_NEAREST_EXACT \
   : (word) == GB_WORD_linear        ? GB_RESAMPLE_LINEAR        \
   : (word) == GB_WORD_bicubic       ? GB_RESAMPLE_CUBIC         \
                                     : GB_RESAMPLE_AREA)
#define GB_RESAMPLING(attrs, in, out)                                                            \
  gb_resampling_of(GB_RESAMPLE_MODE((attrs)->mode.integer), (attrs)->align_corners.integer != 0, \
                   (attrs)->antialias.integer != 0, (attrs)->scale.number, (in), (out))

GB_INLINE int64_t gb_resample_clamp(int64_t i, int64_t size) { return i < 0 ? 0 : i < size ? i : size - 1; }

/* Keys' cubic at a distance from its centre. */
GB_INLINE double gb_resample_cubic(double x, double a) {
  x = fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* How far a filter reaches, and its value there, where a result is an average over what it covers. */
GB_INLINE double gb_resample_stretch(const gb_resampling *r) { return r->scale > 1 ? r->scale : 1; }
GB_INLINE double gb_resample_filter(const gb_resampling *r, double x) {
  if (r->mode == GB_RESAMPLE_CUBIC) return gb_resample_cubic(x, -0.5);
  return fabs(x) < 1 ? 1 - fabs(x) : 0;
}

/* The filter at element `at` of the row. */
GB_INLINE double gb_resample_smooth(const gb_resampling *r, double centre, int64_t at) {
  return gb_resample_filter(r, ((double)at - centre + 0.5) / gb_resample_stretch(r));
}

/* A place along the row, which a scale that does not belong to it may put anywhere: within it, or where it ends. */
GB_INLINE double gb_resample_inside(const gb_resampling *r, double place) {
  return place < (double)r->in ? place : (double)r->in; /* also of NaN */
}

/* The window of an average: all that the filter covers, at least an element. Its total is left 0. */
GB_INLINE gb_resample_window gb_resample_covered(const gb_resampling *r, int64_t o) {
  double support = (r->mode == GB_RESAMPLE_CUBIC ? 2 : 1) * gb_resample_stretch(r);
  gb_resample_window w = { 0, 0, gb_resample_inside(r, r->scale * ((double)o + 0.5)), 0 };
  double first = w.centre - support + 0.5, end = w.centre + support + 0.5;
  w.first = first > 0 ? gb_resample_clamp((int64_t)first, r->in) : 0;
  w.count = (end < (double)r->in ? (int64_t)end : r->in) - w.first;
  if (w.count < 1) w.count = 1;
  return w;
}

/* PyTorch finds nearest elements in float32. */
GB_INLINE int64_t gb_resample_nearest(const gb_resampling *r, int64_t o) {
  if (r->mode == GB_RESAMPLE_NEAREST && r->out == r->in) return o;
  if (r->mode == GB_RESAMPLE_NEAREST && r->out == 2 * r->in) return o / 2;
  float place = r->mode == GB_RESAMPLE_NEAREST ? (float)o : (float)o + 0.5f;
  return gb_resample_clamp((int64_t)gb_resample_inside(r, floorf(place * (float)r->scale)), r->in);
}

/* The window of element o of the result, without its total. */
GB_INLINE gb_resample_window gb_resample_bounds_of(const gb_resampling *r, int64_t o) {
  gb_resample_window w = { 0, 1, 0, 1 };
  if (r->antialias) return gb_resample_covered(r, o);
  if (r->mode == GB_RESAMPLE_AREA) {
    w.first = o * r->in / r->out;
    w.count = ((o + 1) * r->in + r->out - 1) / r->out - w.first;
    return w;
  }
  if (r->mode == GB_RESAMPLE_NEAREST || r->mode == GB_RESAMPLE_NEAREST_EXACT) {
    w.first = gb_resample_nearest(r, o);
    return w;
  }
  w.centre = gb_resample_inside(r, r->align_corners ? r->scale * (double)o : r->scale * ((double)o + 0.5) - 0.5);
  if (r->mode == GB_RESAMPLE_LINEAR && w.centre < 0) w.centre = 0;
  int64_t low = (int64_t)floor(w.centre), before = r->mode == GB_RESAMPLE_CUBIC ? 1 : 0;
  w.first = gb_resample_clamp(low - before, r->in);
  w.count = gb_resample_clamp(low + 1 + before, r->in) - w.first + 1;
  return w;
}

/* The window of element o of the result. */
GB_INLINE gb_resample_window gb_resample_window_of(const gb_resampling *r, int64_t o) {
  gb_resample_window w = gb_resample_bounds_of(r, o);
  for (int64_t k = 0; r->antialias && k < w.count; k++) w.total += gb_resample_smooth(r, w.centre, w.first + k);
  return w;
}

/* The weight of element `at` of the row, which lies in window w. What would lie beyond an end of the row counts for its
 * last. */
GB_INLINE double gb_resample_weight(const gb_resampling *r, const gb_resample_window *w, int64_t at) {
  if (r->antialias) return gb_resample_smooth(r, w->centre, at) / w->total;
  if (r->mode == GB_RESAMPLE_AREA) return 1 / (double)w->count;
  if (r->mode == GB_RESAMPLE_NEAREST || r->mode == GB_RESAMPLE_NEAREST_EXACT) return 1;
  bool cubic = r->mode == GB_RESAMPLE_CUBIC;
  int64_t low = (int64_t)floor(w->centre);
  double sum = 0;
  for (int64_t k = low - cubic; k <= low + 1 + cubic; k++) {
    if (gb_resample_clamp(k, r->in) != at) continue;
    double away = fabs(w->centre - (double)k);
    sum += cubic ? gb_resample_cubic(away, -0.75) : 1 - away;
  }
  return sum;
}

#endif
