/* cpu/softmax.c - softmax, log_softmax and their gradients, a row at a time.
 *
 * Forward reads and writes every element once and takes one exponential of it; backward reads two and writes one. Rows
 * that lie end to end are read and written where they lie, 16-bit ones too, others by way of lanes. A row stays in
 * cache between the passes over it (largest element, exponentials and their sum, scaling). Rows too short to fill
 * vectors stand beside each other, so that a vector is of one element of many rows; then sums go from the first element
 * to the last. */
#include <math.h>

#include "base/math.h"
#include "cpu/scratch.h"
#include "cpu/nontemporal.h"
#include "cpu/walk.h"
#include "cpu/wide.h"

/* A kernel of one row: out is none of the inputs; room takes lanes, and is out where that is of lanes and not
 * streamed. */
typedef void row_kernel(gb_dtype dtype, void *out, const void *x, const void *y, void *room, int64_t n, bool stream);

/* The same for several rows that lie end to end, as their results do, where one alone would wait for its own sum and
 * its logarithm. */
typedef void rows_kernel(gb_dtype dtype, void *out, const void *x, float *room, int64_t count, int64_t n,
                         bool stream);

/* The longest rows of which several are taken, and how many. */
enum { SEVERAL_LENGTH = 512, SEVERAL = 16 };

/* The longest row that is short, at most GB_STANDING, and that where rows are columns of memory, which stand as they
 * lie; how many of them stand together, at least. */
enum { SHORT = 32, SHORT_COLUMN = 64, SHORT_ROWS = 64 };

/* A kernel of short rows that stand, n lines of `line` lanes: x, which becomes the result, and y. */
typedef void short_kernel(float *x, const float *y, int64_t n, int64_t line);

/* One run over all rows: y from x, or dx from grad and y. */
typedef struct softmax_job {
  gb_lane lane;
  gb_dtype dtype;                  /* of rows as the kernel sees them: what all of them are as they lie, or the
                                      lane's */
  bool streams;
  gb_rows first, second, out;      /* second: y, in backward */
  gb_row_plan plan;
  gb_scratch scratch;              /* rooms of three batches of rows */
  size_t buffer_bytes;             /* of one batch */
  row_kernel *row;
  rows_kernel *several;            /* NULL: one by one */
  short_kernel *in_short;          /* NULL: rows are not short */
} softmax_job;

/* {==== one row ==== */

GB_ALWAYS_INLINE void scale_wide(gb_dtype dtype, void *out, const float *x, int64_t n, gb_vector scale, bool stream) {
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(GB_FLOAT32, x, i) : gb_wide_load_last(GB_FLOAT32, x, i, n - i, 0);
    v = (gb_wide){ v.a * scale, v.b * scale };
    if (whole) gb_wide_store(dtype, out, i, v, stream);
    else gb_wide_store_last(dtype, out, i, n - i, v);
  }
}

/* Element `at` and those after it. */
static char *from_element(gb_dtype dtype, const void *x,
                          int64_t at) { return (char *)x + (size_t)at * gb_dtype_bytes(dtype); }

static void softmax_row(gb_dtype dtype, void *out, const void *x, const void *unused, void *room, int64_t n,
                        bool stream) {
  double scale = 1 / gb_wide_exp_sum(dtype, room, x, n, gb_wide_max(dtype, x, n));
  (void)unused;
  if (dtype == GB_FLOAT64) { gb_row_scale(GB_LANE_F64, out, n, scale); return; }
  for GB_PIECES(at, m, n)
    GB_WIDE_FOR(dtype, scale_wide, from_element(dtype, out, at), (float *)room + at, m, gb_vector_of((float)scale),
                stream);
}

GB_ALWAYS_INLINE void log_softmax_wide(gb_dtype dtype, void *out, const void *x, int64_t n, gb_vector most,
                                       gb_vector log_sum, bool stream) {
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    v = (gb_wide){ v.a - most - log_sum, v.b - most - log_sum };
    if (whole) gb_wide_store(dtype, out, i, v, stream);
    else gb_wide_store_last(dtype, out, i, n - i, v);
  }
}

static void log_softmax_row(gb_dtype dtype, void *out, const void *x, const void *unused, void *room, int64_t n,
                            bool stream) {
  double most = gb_wide_max(dtype, x, n), log_sum = log(gb_wide_exp_sum(dtype, NULL, x, n, most) / GB_ROW_LIFT);
  (void)unused, (void)room;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = at; i < at + m; i++) ((double *)out)[i] = ((const double *)x)[i] - most - log_sum;
    else
      GB_WIDE_FOR(dtype, log_softmax_wide, from_element(dtype, out, at), from_element(dtype, x, at), m,
                  gb_vector_of((float)most),
                  gb_vector_of((float)log_sum), stream);
  }
}

GB_ALWAYS_INLINE float largest_wide(gb_dtype dtype, const void *x, int64_t n) {
  gb_wide most = { gb_vector_of(-INFINITY), gb_vector_of(-INFINITY) };
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    gb_wide v = i + GB_WIDE <= n ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, -INFINITY);
    gb_wide_ahead(dtype, x, i);
    most = (gb_wide){ gb_vector_max(v.a, most.a), gb_vector_max(v.b, most.b) };
  }
  return gb_vector_largest(gb_vector_max(most.a, most.b));
}

/* {---- four rows in registers ---- */

/* Of 16 floats (v4): rows of two to four whole vectors, of 16-bit ones of whole pairs. What is found of a row stands in
 * a lane of four: one tree for four rows costs half of four. */
enum { FOUR = 4, MOST_VECTORS = 4 };

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
static bool fits_registers(gb_dtype dtype, int64_t n) {
  return n > GB_VECTOR && n <= MOST_VECTORS * GB_VECTOR && n % (dtype == GB_FLOAT32 ? GB_VECTOR : GB_WIDE) == 0;
}

/* Four rows to one vector by a tree: [a b c d] four times. most: the largest, else the sum. */
GB_ALWAYS_INLINE gb_vector fold_pair(gb_vector x, gb_vector y, bool most) {
  return most ? gb_vector_max(x, y) : x + y;
}
GB_ALWAYS_INLINE gb_vector fold_four(const gb_vector *x, bool most) {
  __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
  gb_vector ab = fold_pair((gb_vector)_mm512_unpacklo_ps(a, b), (gb_vector)_mm512_unpackhi_ps(a, b), most);
  gb_vector cd = fold_pair((gb_vector)_mm512_unpacklo_ps(c, d), (gb_vector)_mm512_unpackhi_ps(c, d), most);
  gb_vector all = fold_pair((gb_vector)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd),
                            (gb_vector)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd), most);
  all = fold_pair(all, (gb_vector)_mm512_shuffle_f32x4((__m512)all, (__m512)all, 0x4e), most);
  return fold_pair(all, (gb_vector)_mm512_shuffle_f32x4((__m512)all, (__m512)all, 0xb1), most);
}

/* The four of [a b c d] as vectors of one. */
GB_ALWAYS_INLINE void spread_four(gb_vector x, gb_vector *to) {
  to[0] = (gb_vector)_mm512_permute_ps((__m512)x, 0x00), to[1] = (gb_vector)_mm512_permute_ps((__m512)x, 0x55);
  to[2] = (gb_vector)_mm512_permute_ps((__m512)x, 0xaa), to[3] = (gb_vector)_mm512_permute_ps((__m512)x, 0xff);
}

/* `vectors` of a row. */
GB_ALWAYS_INLINE void load_vectors(gb_dtype dtype, const char *x, int vectors, gb_vector *to) {
  for (int k = 0; k < vectors; k += 2) gb_wide_ahead(dtype, x, k * GB_VECTOR);
#pragma GCC unroll 4
  for (int k = 0; k < vectors; k++)
    if (dtype == GB_FLOAT32) memcpy(to + k, x + (size_t)k * sizeof *to, sizeof *to);
    else if (k % 2 == 0) {
      gb_wide v = gb_wide_load(dtype, x, k * GB_VECTOR);
      to[k] = v.a, to[k + 1] = v.b;
    }
}

/* At most four rows of `vectors` from x on; those that are missing are taken to be the first. */
typedef struct four_rows { const char *row[FOUR]; } four_rows;

GB_ALWAYS_INLINE four_rows rows_from(gb_dtype dtype, const char *x, int64_t count, int vectors) {
  const int64_t bytes = vectors * GB_VECTOR * (dtype == GB_FLOAT32 ? 4 : 2);
  four_rows r;
  for (int i = 0; i < FOUR; i++) r.row[i] = i < count ? x + i * bytes : x;
  return r;
}

/* Their largest elements. */
GB_ALWAYS_INLINE gb_vector largest_of_four(gb_dtype dtype, const four_rows *r, int vectors) {
  gb_vector x[MOST_VECTORS], of_row[FOUR];
#pragma GCC unroll 4
  for (int i = 0; i < FOUR; i++) {
    load_vectors(dtype, r->row[i], vectors, x);
    of_row[i] = x[0];
#pragma GCC unroll 4
    for (int k = 1; k < vectors; k++) of_row[i] = gb_vector_max(x[k], of_row[i]);
  }
  return fold_four(of_row, true);
}

/* Their exponentials, or NULL where these are not wanted, and the sums of them, not yet folded. */
GB_ALWAYS_INLINE void exp_four(gb_dtype dtype, const four_rows *r, int vectors, gb_vector most,
                               gb_vector (*to)[MOST_VECTORS], gb_vector *of_row) {
  gb_vector x[MOST_VECTORS], shift[FOUR];
  spread_four(most, shift);
#pragma GCC unroll 4
  for (int i = 0; i < FOUR; i++) {
    load_vectors(dtype, r->row[i], vectors, x);
    of_row[i] = gb_vector_of(0);
#pragma GCC unroll 4
    for (int k = 0; k < vectors; k++) {
      if (!to) {
        of_row[i] = gb_vector_lift_add(dtype, of_row[i], x[k] - shift[i]);
        continue;
      }
      to[i][k] = gb_vector_lift_of(dtype, x[k] - shift[i]);
      of_row[i] += to[i][k];
    }
  }
}

/* Rows by four. The largest elements of the next four are found before the sums of these are folded, as both are chains
 * of operations that wait for each other. */
GB_ALWAYS_INLINE void softmax_fours(gb_dtype dtype, char *out, const char *x, int64_t count, int vectors, bool stream) {
  const int64_t bytes = vectors * GB_VECTOR * (dtype == GB_FLOAT32 ? 4 : 2);
  four_rows r = rows_from(dtype, x, count, vectors);
  gb_vector e[FOUR][MOST_VECTORS], of_row[FOUR], scale[FOUR], most = largest_of_four(dtype, &r, vectors);
  for (int64_t i = 0; i < count; i += FOUR, out += FOUR * bytes) {
    const int64_t here = count - i < FOUR ? count - i : FOUR, left = count - i - here;
    exp_four(dtype, &r, vectors, most, e, of_row);
    if (left > 0) {
      r = rows_from(dtype, x + (i + FOUR) * bytes, left, vectors);
      most = largest_of_four(dtype, &r, vectors);
    }
    spread_four(1 / fold_four(of_row, false), scale);
#pragma GCC unroll 4
    for (int row = 0; row < FOUR; row++) {
      if (row >= here) return;
#pragma GCC unroll 4
      for (int k = 0; k < vectors; k++)
        if (dtype == GB_FLOAT32)
          gb_vector_store(out + row * bytes + k * (int64_t)sizeof **e, e[row][k] * scale[row], stream);
        else if (k % 2 == 0)
          gb_wide_store(dtype, out + row * bytes, k * GB_VECTOR,
                        (gb_wide){ e[row][k] * scale[row], e[row][k + 1] * scale[row] }, stream);
    }
  }
}

/* Largest elements and sums of exponentials of `count` rows, at most SEVERAL. */
GB_ALWAYS_INLINE void exp_sums_by_four(gb_dtype dtype, const char *x, int64_t count, int vectors, float *most,
                                       float *sum) {
  const int64_t bytes = vectors * GB_VECTOR * (dtype == GB_FLOAT32 ? 4 : 2);
  gb_vector of_row[SEVERAL / FOUR][FOUR];
  for (int64_t i = 0; i < count; i += FOUR) {
    const four_rows r = rows_from(dtype, x + i * bytes, count - i, vectors);
    const gb_vector largest = largest_of_four(dtype, &r, vectors);
    memcpy(most + i, &largest, FOUR * sizeof *most);
  }
  for (int64_t i = 0; i < count; i += FOUR) {
    const four_rows r = rows_from(dtype, x + i * bytes, count - i, vectors);
    exp_four(dtype, &r, vectors, (gb_vector)_mm512_broadcast_f32x4(_mm_loadu_ps(most + i)), NULL, of_row[i / FOUR]);
  }
  for (int64_t i = 0; i < count; i += FOUR) {
    const gb_vector folded = fold_four(of_row[i / FOUR], false);
    memcpy(sum + i, &folded, FOUR * sizeof *sum);
  }
}
#else
/* Levels with fewer registers take row after row. */
static bool fits_registers(gb_dtype dtype, int64_t n) {
  (void)dtype, (void)n;
  return false;
}
GB_ALWAYS_INLINE void softmax_fours(gb_dtype dtype, char *out, const char *x, int64_t count, int vectors, bool stream) {
  (void)dtype, (void)out, (void)x, (void)count, (void)vectors, (void)stream;
}
GB_ALWAYS_INLINE void exp_sums_by_four(gb_dtype dtype, const char *x, int64_t count, int vectors, float *most,
                                       float *sum) {
  (void)dtype, (void)x, (void)count, (void)vectors, (void)most, (void)sum;
}
#endif

GB_ALWAYS_INLINE int softmax_by_four(gb_dtype dtype, char *out, const char *x, int64_t count, int64_t n, bool stream) {
  if (n == 4 * GB_VECTOR) softmax_fours(dtype, out, x, count, 4, stream);
  else if (n == 2 * GB_VECTOR) softmax_fours(dtype, out, x, count, 2, stream);
  else if (dtype == GB_FLOAT32) softmax_fours(dtype, out, x, count, 3, stream);
  return 0;
}

/* ----} */

/* At most SEVERAL rows; room takes their exponentials. */
GB_ALWAYS_INLINE void softmax_several(gb_dtype dtype, char *out, const char *x, float *room, int64_t count, int64_t n,
                                      bool stream) {
  const int64_t bytes = n * (dtype == GB_FLOAT32 ? 4 : 2);
  float scale[SEVERAL];
  for (int64_t i = 0; i < count; i++) {
    gb_vector most = gb_vector_of(largest_wide(dtype, x + i * bytes, n));
    scale[i] = (float)(1 / (double)gb_wide_exp_sum_tile(dtype, room + i * n, x + i * bytes, n, most));
  }
  for (int64_t i = 0; i < count; i++)
    scale_wide(dtype, out + i * bytes, room + i * n, n, gb_vector_of(scale[i]), stream);
}

static void softmax_rows(gb_dtype dtype, void *out, const void *x, float *room, int64_t count, int64_t n,
                         bool stream) {
  const int64_t bytes = n * (int64_t)gb_dtype_bytes(dtype);
  if (fits_registers(dtype, n)) {
    GB_WIDE_FOR(dtype, softmax_by_four, out, x, count, n, stream);
    return;
  }
  for (int64_t i = 0; i < count; i += SEVERAL)
    GB_WIDE_FOR(dtype, softmax_several, (char *)out + i * bytes, (const char *)x + i * bytes, room + i * n,
                count - i < SEVERAL ? count - i : SEVERAL, n, stream);
}

/* At most SEVERAL rows. */
GB_ALWAYS_INLINE void log_softmax_several(gb_dtype dtype, char *out, const char *x, int64_t count, int64_t n,
                                          bool stream) {
  const int64_t bytes = n * (dtype == GB_FLOAT32 ? 4 : 2);
  float most[SEVERAL], log_sum[SEVERAL] = { 0 };
  const bool by_four = fits_registers(dtype, n);
  if (by_four && n == 4 * GB_VECTOR) exp_sums_by_four(dtype, x, count, 4, most, log_sum);
  else if (by_four && n == 2 * GB_VECTOR) exp_sums_by_four(dtype, x, count, 2, most, log_sum);
  else if (by_four && dtype == GB_FLOAT32) exp_sums_by_four(dtype, x, count, 3, most, log_sum);
  for (int64_t i = 0; i < count && !by_four; i++) {
    most[i] = largest_wide(dtype, x + i * bytes, n);
    log_sum[i] = gb_wide_exp_sum_tile(dtype, NULL, x + i * bytes, n, gb_vector_of(most[i]));
  }
  for (int i = 0; i < SEVERAL; i++) log_sum[i] = gb_logf(log_sum[i] * (float)(1 / GB_ROW_LIFT));
  for (int64_t i = 0; i < count; i++)
    log_softmax_wide(dtype, out + i * bytes, x + i * bytes, n, gb_vector_of(most[i]), gb_vector_of(log_sum[i]), stream);
}

static void log_softmax_rows(gb_dtype dtype, void *out, const void *x, float *room, int64_t count, int64_t n,
                             bool stream) {
  (void)room;
  const int64_t bytes = n * (int64_t)gb_dtype_bytes(dtype);
  for (int64_t i = 0; i < count; i += SEVERAL)
    GB_WIDE_FOR(dtype, log_softmax_several, (char *)out + i * bytes, (const char *)x + i * bytes,
                count - i < SEVERAL ? count - i : SEVERAL, n, stream);
}

GB_ALWAYS_INLINE void softmax_backward_wide(gb_dtype dtype, void *out, const void *g, const void *y, int64_t n,
                                            gb_vector dot, bool stream) {
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, g, i) : gb_wide_load_last(dtype, g, i, n - i, 0);
    gb_wide w = whole ? gb_wide_load(dtype, y, i) : gb_wide_load_last(dtype, y, i, n - i, 0);
    gb_wide_ahead(dtype, g, i);
    gb_wide_ahead(dtype, y, i);
    v = (gb_wide){ w.a * (v.a - dot), w.b * (v.b - dot) };
    if (whole) gb_wide_store(dtype, out, i, v, stream);
    else gb_wide_store_last(dtype, out, i, n - i, v);
  }
}

/* y * (g - sum(g * y)) */
static void softmax_backward_row(gb_dtype dtype, void *out, const void *g, const void *y, void *room, int64_t n,
                                 bool stream) {
  double dot = gb_wide_dot(dtype, g, y, n);
  (void)room;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = at; i < at + m; i++)
        ((double *)out)[i] = ((const double *)y)[i] * (((const double *)g)[i] - dot);
    else
      GB_WIDE_FOR(dtype, softmax_backward_wide, from_element(dtype, out, at), from_element(dtype, g, at),
                  from_element(dtype, y, at), m,
                  gb_vector_of((float)dot), stream);
  }
}

GB_ALWAYS_INLINE void log_softmax_backward_wide(gb_dtype dtype, void *out, const void *g, const void *y, int64_t n,
                                                gb_vector sum, bool stream) {
  const gb_vector lift = gb_vector_of((float)(1 / GB_ROW_LIFT));
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, g, i) : gb_wide_load_last(dtype, g, i, n - i, 0);
    gb_wide w = whole ? gb_wide_load(dtype, y, i) : gb_wide_load_last(dtype, y, i, n - i, 0);
    gb_wide_ahead(dtype, g, i);
    gb_wide_ahead(dtype, y, i);
    v = (gb_wide){ v.a - sum * (lift * gb_vector_lift_of(dtype, w.a)),
                   v.b - sum * (lift * gb_vector_lift_of(dtype, w.b)) };
    if (whole) gb_wide_store(dtype, out, i, v, stream);
    else gb_wide_store_last(dtype, out, i, n - i, v);
  }
}

/* g - exp(y) * sum(g) */
static void log_softmax_backward_row(gb_dtype dtype, void *out, const void *g, const void *y, void *room, int64_t n,
                                     bool stream) {
  double sum = gb_wide_sum(dtype, g, n);
  (void)room;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = at; i < at + m; i++)
        ((double *)out)[i] = ((const double *)g)[i] - exp(((const double *)y)[i]) * sum;
    else
      GB_WIDE_FOR(dtype, log_softmax_backward_wide, from_element(dtype, out, at), from_element(dtype, g, at),
                  from_element(dtype, y, at), m,
                  gb_vector_of((float)sum), stream);
  }
}

/* ====} */

/* {==== short rows ==== */

/* A number for each row that stands. */
typedef float numbers[GB_TILE];

static void find_most(float *restrict most, const float *restrict x, int64_t n, int64_t line) {
  memcpy(most, x, (size_t)line * sizeof *x);
  for (int64_t k = 1; k < n; k++)
    for (int64_t i = 0; i < line; i++) most[i] = x[k * line + i] > most[i] ? x[k * line + i] : most[i];
}

static void softmax_short(float *restrict x, const float *unused, int64_t n, int64_t line) {
  numbers most, sum = { 0 };
  (void)unused;
  find_most(most, x, n, line);
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) {
      float e = gb_expf_lifted(x[k * line + i] - most[i]);
      sum[i] += x[k * line + i] = e;
    }
  for (int64_t i = 0; i < line; i++) sum[i] = 1 / sum[i];
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) x[k * line + i] *= sum[i];
}

static void log_softmax_short(float *restrict x, const float *unused, int64_t n, int64_t line) {
  numbers most, ones = { 0 }, sum = { 0 }; /* the largest by themselves: to 1 what is tiny would add nothing */
  (void)unused;
  find_most(most, x, n, line);
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) {
      float below = x[k * line + i] - most[i], e = gb_expf(below);
      ones[i] += below == 0 ? 1.0f : 0.0f;
      sum[i] += below == 0 ? 0.0f : e;
    }
  for (int64_t i = 0; i < line; i++) sum[i] = gb_logf(ones[i] + sum[i]);
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) x[k * line + i] = x[k * line + i] - most[i] - sum[i];
}

static void softmax_backward_short(float *restrict g, const float *restrict y, int64_t n, int64_t line) {
  numbers dot = { 0 };
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) dot[i] += g[k * line + i] * y[k * line + i];
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) g[k * line + i] = y[k * line + i] * (g[k * line + i] - dot[i]);
}

static void log_softmax_backward_short(float *restrict g, const float *restrict y, int64_t n, int64_t line) {
  numbers sum = { 0 };
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) sum[i] += g[k * line + i];
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < line; i++) g[k * line + i] -= gb_expf(y[k * line + i]) * sum[i];
}

/* `count` short rows from `first` on. */
static void run_short(const softmax_job *job, int64_t first, int64_t count, char *room) {
  float *x = (float *)(void *)room, *y = (float *)(void *)(room + job->buffer_bytes);
  gb_rows_stand(&job->first, job->lane, first, count, x, count);
  if (job->second.data) gb_rows_stand(&job->second, job->lane, first, count, y, count);
  job->in_short(x, y, job->out.length, count);
  gb_rows_lay(&job->out, job->lane, first, count, x, count);
}

/* ====} */

/* Rows first .. first + count - 1 where they lie if the kernel can read them there, else loaded into room. */
static const char *rows_in(const softmax_job *job, const gb_rows *rows, int64_t first, int64_t count, char *room) {
  const char *own = gb_rows_own(rows, job->dtype, first);
  if (!own) gb_rows_load(rows, job->lane, first, count, room);
  return own ? own : room;
}

static void run_rows(void *arg, int64_t chunk) {
  const softmax_job *job = arg;
  char *room = gb_scratch_room_of(&job->scratch, chunk), *room_out = room + 2 * job->buffer_bytes;
  int64_t n = job->out.length, first = chunk * job->plan.chunk, end = first + job->plan.chunk;
  size_t bytes = gb_dtype_bytes(job->dtype) * (size_t)n;
  if (end > job->out.count) end = job->out.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < job->plan.batch ? end - first : job->plan.batch;
    if (job->in_short) { run_short(job, first, count, room); continue; }
    const char *x = rows_in(job, &job->first, first, count, room), *y = x;
    if (job->second.data) y = rows_in(job, &job->second, first, count, room + job->buffer_bytes);
    char *own = gb_rows_own(&job->out, job->dtype, first), *out = own ? own : room_out;
    bool in_place = !job->streams && job->dtype == gb_lane_dtype(job->lane);
    if (job->several) {
      bool stream = job->streams && gb_vector_aligned(out) && bytes % sizeof(gb_vector) == 0;
      job->several(job->dtype, out, x, (float *)(void *)(in_place ? out : room_out), count, n, stream);
    } else
    for (int64_t i = 0; i < count; i++, x += bytes, y += bytes, out += bytes)
      job->row(job->dtype, out, x, y, in_place ? out : room_out, n, job->streams && gb_vector_aligned(out));
    if (!own) gb_rows_store(&job->out, job->lane, first, count, room_out);
  }
  if (job->streams) gb_nontemporal_end();
}

/* The dtype that all rows have where they lie, end to end; else the lane's. */
static gb_dtype dtype_of(const softmax_job *job) {
  gb_dtype dtype = job->out.dtype;
  bool same = gb_rows_own(&job->first, dtype, 0) && gb_rows_own(&job->out, dtype, 0) &&
      (!job->second.data || gb_rows_own(&job->second, dtype, 0));
  return same ? dtype : gb_lane_dtype(job->lane);
}

/* Do rows lie side by side as columns? */
static bool stands(const gb_rows *r) { return r->step[r->n - 1] == 1 && r->size[r->n - 1] >= GB_VECTOR; }

/* Run `row`, or several or in_short where there is one and rows are short enough, over all rows of x, and of y where it
 * is given, along the dim that was named. */
static gb_status run(gb_op_call *call, row_kernel *row, rows_kernel *several, short_kernel *in_short,
                     const gb_tensor *x, const gb_tensor *y, const gb_tensor *out, int64_t named) {
  if (out->numel == 0) return GB_OK;
  int dim = gb_wrap_dim(named, x->ndim);
  softmax_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)out->dtype), .first = gb_rows_of(x, dim),
                      .out = gb_rows_of(out, dim),
                      .row = row };
  if (y) job.second = gb_rows_of(y, dim);
  const bool columns = stands(&job.first) && stands(&job.out) && (!y || stands(&job.second));
  if (job.lane == GB_LANE_F32 && job.out.length <= (columns ? SHORT_COLUMN : SHORT)) job.in_short = in_short;
  job.dtype = dtype_of(&job);
  if (job.dtype != GB_FLOAT64 && job.out.length <= SEVERAL_LENGTH) job.several = several;
  job.streams = !job.in_short && gb_rows_own(&job.out, job.dtype, 0) && job.dtype != GB_FLOAT64 &&
      (size_t)out->numel * job.out.bytes >= GB_NONTEMPORAL_BYTES;
  job.plan = gb_row_plan_for(&job.out);
  if (job.in_short && job.plan.batch < SHORT_ROWS) {
    job.plan.batch = SHORT_ROWS;
    job.plan.chunk = (job.plan.chunk + SHORT_ROWS - 1) / SHORT_ROWS * SHORT_ROWS;
    job.plan.chunks = (job.out.count + job.plan.chunk - 1) / job.plan.chunk;
  }
  job.buffer_bytes = gb_lane_bytes(job.lane) * (size_t)(job.plan.batch * job.out.length);
  GB_TRY(gb_scratch_open_chunks(call, 0, 3 * job.buffer_bytes, job.plan.chunks, &job.scratch));
  gb_parallel(call, job.plan.chunks, run_rows, &job);
  gb_scratch_close(call, &job.scratch);
  return GB_OK;
}

#define FORWARD(op, several) \
  static gb_status op(gb_op_call *call) { \
    return run(call, op##_row, several, op##_short, GB_IN(call, op)->x, NULL, GB_OUT(call, op)->y, \
               GB_ATTRS(call, op)->dim.integer); \
  }
#define BACKWARD(op) \
  static gb_status op(gb_op_call *call) { \
    const gb_in_##op *in = GB_IN(call, op); \
    return run(call, op##_row, NULL, op##_short, in->grad, in->y, GB_OUT(call, op)->dx, \
               GB_ATTRS(call, op)->dim.integer); \
  }
FORWARD(softmax, softmax_rows)
FORWARD(log_softmax, log_softmax_rows)
BACKWARD(softmax_backward)
BACKWARD(log_softmax_backward)

void GB_CPU_FILL(softmax)(gb_backend *backend);
void GB_CPU_FILL(softmax)(gb_backend *backend) {
  backend->run[GB_OP_softmax] = softmax;
  backend->run[GB_OP_log_softmax] = log_softmax;
  backend->run[GB_OP_softmax_backward] = softmax_backward;
  backend->run[GB_OP_log_softmax_backward] = log_softmax_backward;
}
