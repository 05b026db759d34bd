/* cpu/rows.h - a tensor as rows along one dimension, and arithmetic on rows, for reductions, softmax and losses.
 *
 * A row is brought into an array of the compute type ("lanes": float32 for 16- and 32-bit floats, float64, int64)
 * whatever its dtype and strides. Where the elements of one row lie far apart but neighbouring rows lie side by side (a
 * dim that is not the last), a batch of rows is read strip by strip, so memory is still walked in order. Sums take a
 * fixed order that depends on the length alone. */
#ifndef GB_CPU_ROWS_H
#define GB_CPU_ROWS_H

#include "cpu/cpu.h"

/* {---- lanes: arrays of the compute type ---- */

typedef enum gb_lane { GB_LANE_F32, GB_LANE_F64, GB_LANE_I64 } gb_lane;

static inline size_t gb_lane_bytes(gb_lane lane) { return lane == GB_LANE_F32 ? 4 : 8; }
static inline gb_dtype gb_lane_dtype(gb_lane lane) { return lane == GB_LANE_F32 ? GB_FLOAT32 : lane == GB_LANE_F64
                                                     ? GB_FLOAT64 : GB_INT64; }
/* What a result of dtype `out` is computed in. */
static inline gb_lane gb_lane_of(gb_dtype x, gb_dtype out) {
  if (!gb_dtype_is_float(out)) return GB_LANE_I64;
  return x == GB_FLOAT64 || out == GB_FLOAT64 ? GB_LANE_F64 : GB_LANE_F32;
}

#define gb_lane_load GB_CPU_NAME(lane_load)
#define gb_lane_store GB_CPU_NAME(lane_store)
void gb_lane_load(gb_lane lane, void *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n);
void gb_lane_store(gb_lane lane, void *to, gb_dtype dtype, int64_t stride, const void *from, int64_t n);

/* ----} */

/* {---- rows ---- */

/* For gb_rows_of: every element is a row of its own. */
enum { GB_ROWS_EACH = -1 };

typedef struct gb_rows {
  char *data;
  gb_dtype dtype;
  size_t bytes;                    /* of an element */
  int64_t length, stride;          /* of a row */
  int64_t count;
  int n;                           /* the other dims, neighbours merged; at least 1 */
  int64_t size[GB_MAX_NDIM], step[GB_MAX_NDIM];
} gb_rows;

#define gb_rows_of GB_CPU_NAME(rows_of)
#define gb_rows_at GB_CPU_NAME(rows_at)
#define gb_rows_load GB_CPU_NAME(rows_load)
#define gb_rows_store GB_CPU_NAME(rows_store)
#define gb_rows_own GB_CPU_NAME(rows_own)
#define gb_rows_stand GB_CPU_NAME(rows_stand)
#define gb_rows_lay GB_CPU_NAME(rows_lay)
/* The rows of t along dim, numbered in row-major order of the other dims. A 0-d tensor is one row of one element. */
gb_rows gb_rows_of(const gb_tensor *t, int dim);
/* Where a row begins. */
char *gb_rows_at(const gb_rows *rows, int64_t row);
/* Rows first .. first + count - 1, one after another, from or to lanes. */
void gb_rows_load(const gb_rows *rows, gb_lane lane, int64_t first, int64_t count, void *to);
void gb_rows_store(const gb_rows *rows, gb_lane lane, int64_t first, int64_t count, const void *from);
/* The same where rows are short, at most GB_STANDING elements: they stand beside each other in lanes, the first element
 * of each, then the second, ..., `line` lanes apart. What fills a vector is then one element of many rows. */
enum { GB_STANDING = 64 };
void gb_rows_stand(const gb_rows *rows, gb_lane lane, int64_t first, int64_t count, void *to, int64_t line);
void gb_rows_lay(const gb_rows *rows, gb_lane lane, int64_t first, int64_t count, const void *from, int64_t line);
/* Row `first` and those after it where they lie end to end in a dtype, so that no load is needed; else NULL. */
void *gb_rows_own(const gb_rows *rows, gb_dtype dtype, int64_t first);

/* How rows of a length are handled: `batch` at a time in a buffer, `chunk` (a multiple of it) by one chunk of parallel
 * work. */
typedef struct gb_row_plan { int64_t batch, chunk, chunks; } gb_row_plan;
/* For rows whose elements lie side by side: count of them, of some length. */
static inline gb_row_plan gb_row_plan_of(int64_t count, int64_t length) {
  int64_t n = length > 0 ? length : 1;
  gb_row_plan plan = { .batch = n < GB_TILE ? GB_TILE / n : 1 };
  int64_t batches = n * plan.batch < 16 * GB_TILE ? 16 * GB_TILE / (n * plan.batch) : 1;
  plan.chunk = plan.batch * batches;
  plan.chunks = (count + plan.chunk - 1) / plan.chunk;
  return plan;
}
#define gb_row_plan_for GB_CPU_NAME(row_plan_for)
/* For rows in any layout: batches are large enough for strips. */
gb_row_plan gb_row_plan_for(const gb_rows *rows);

/* ----} */

/* {---- arithmetic on one row of n elements side by side; of lanes: float32 or float64 ---- */

#define gb_wide_max GB_CPU_NAME(wide_max)
#define gb_wide_sum GB_CPU_NAME(wide_sum)
#define gb_wide_dot GB_CPU_NAME(wide_dot)
#define gb_wide_exp_sum GB_CPU_NAME(wide_exp_sum)
#define gb_wide_exp GB_CPU_NAME(wide_exp)
#define gb_row_max GB_CPU_NAME(row_max)
#define gb_row_shift GB_CPU_NAME(row_shift)
#define gb_row_scale GB_CPU_NAME(row_scale)
#define gb_row_add GB_CPU_NAME(row_add)

/* On rows of any float dtype, as they lie. The largest element; a NaN in float32 or less may be left out, -infinity of
 * none. */
double gb_wide_max(gb_dtype dtype, const void *x, int64_t n);
double gb_wide_sum(gb_dtype dtype, const void *x, int64_t n);
double gb_wide_dot(gb_dtype dtype, const void *x, const void *y, int64_t n);
/* to = GB_ROW_LIFT * exp(x - shift) in lanes, in the order of cpu/wide.h, where no x is above shift; returns their sum.
 * to may be x where x is of lanes, or NULL: only the sum. */
#define GB_ROW_LIFT 0x1p32
double gb_wide_exp_sum(gb_dtype dtype, void *to, const void *x, int64_t n, double shift);
/* to = scale * exp(x - shift), where no x is above shift but for rounding, and `own` at `index` (-1: nowhere); to may
 * be x. stream: past the caches if it can be. A store that came after it would wait for a line that has just gone to
 * memory, and all later ones behind it. */
void gb_wide_exp(gb_dtype dtype, void *to, const void *x, int64_t n, double shift, double scale, int64_t index,
                 double own, bool stream);

/* The largest element, NaN where one is; -infinity of none. */
double gb_row_max(gb_lane lane, const void *x, int64_t n);
static inline double gb_row_sum(gb_lane lane, const void *x,
                                int64_t n) { return gb_wide_sum(gb_lane_dtype(lane), x, n); }
static inline double gb_row_dot(gb_lane lane, const void *x, const void *y,
                                int64_t n) { return gb_wide_dot(gb_lane_dtype(lane), x, y, n); }
static inline double gb_row_exp_sum(gb_lane lane, void *to, const void *x, int64_t n, double shift) {
  return gb_wide_exp_sum(gb_lane_dtype(lane), to, x, n, shift);
}
static inline void gb_row_exp(gb_lane lane, void *to, const void *x, int64_t n, double shift, double scale) {
  gb_wide_exp(gb_lane_dtype(lane), to, x, n, shift, scale, -1, 0, false);
}
/* x = x - shift */
void gb_row_shift(gb_lane lane, void *x, int64_t n, double shift);
/* x = x * scale */
void gb_row_scale(gb_lane lane, void *x, int64_t n, double scale);
/* x = x + scale * y */
void gb_row_add(gb_lane lane, void *x, const void *y, int64_t n, double scale);

/* One element of a row. */
static inline double gb_row_get(gb_lane lane, const void *x, int64_t i) {
  return lane == GB_LANE_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}
static inline void gb_row_put(gb_lane lane, void *x, int64_t i, double value) {
  if (lane == GB_LANE_F32) ((float *)x)[i] = (float)value;
  else ((double *)x)[i] = value;
}

/* ----} */

#endif
