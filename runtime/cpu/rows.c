/* cpu/rows.c - a tensor as rows along one dimension, and arithmetic on rows.
 *
 * Reading a row moves its bytes once. The sums below keep a partial sum per place of a few vector registers in blocks
 * of 1024 elements, which keeps the error of a long sum small; the blocks are added up in float64. */
#include "cpu/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/transpose.h"
#include "cpu/wide.h"

/* {==== lanes ==== */

/* Elements `at` and on of a run with a stride, and of lanes. */
static const char *run_at(const void *x, gb_dtype dtype, int64_t stride,
                          int64_t at) { return (const char *)x + at * stride * (int64_t)gb_dtype_bytes(dtype); }
static char *lanes_at(gb_lane lane, const void *x, int64_t at) { return (char *)x + at * (int64_t)gb_lane_bytes(lane); }

void gb_lane_load(gb_lane lane, void *lanes, const void *run, gb_dtype dtype, int64_t stride, int64_t n) {
  for GB_PIECES(at, m, n) {
    const char *from = run_at(run, dtype, stride, at);
    void *to = lanes_at(lane, lanes, at);
    switch (lane) {
      case GB_LANE_F32: gb_load_f32(to, from, dtype, stride, m); break;
      case GB_LANE_F64: gb_load_f64(to, from, dtype, stride, m); break;
      default: gb_load_i64(to, from, dtype, stride, m);
    }
  }
}

void gb_lane_store(gb_lane lane, void *run, gb_dtype dtype, int64_t stride, const void *lanes, int64_t n) {
  for GB_PIECES(at, m, n) {
    const void *from = lanes_at(lane, lanes, at);
    char *to = (char *)run_at(run, dtype, stride, at);
    switch (lane) {
      case GB_LANE_F32: gb_store_f32(to, dtype, stride, from, m); break;
      case GB_LANE_F64: gb_store_f64(to, dtype, stride, from, m); break;
      default: gb_store_i64(to, dtype, stride, from, m);
    }
  }
}

/* ====} */

/* {==== rows ==== */

gb_rows gb_rows_of(const gb_tensor *t, int dim) {
  gb_rows r = { .data = gb_data(t), .dtype = (gb_dtype)t->dtype, .bytes = gb_dtype_bytes((gb_dtype)t->dtype),
                .length = 1, .stride = 1, .count = 1 };
  for (int i = 0; i < t->ndim; i++) {
    if (i == dim) {
      r.length = t->shape[i];
      r.stride = t->stride[i];
      continue;
    }
    r.count *= t->shape[i];
    if (t->shape[i] == 1) continue;
    if (r.n && r.step[r.n - 1] == t->shape[i] * t->stride[i]) {
      r.size[r.n - 1] *= t->shape[i];
      r.step[r.n - 1] = t->stride[i];
    } else {
      r.size[r.n] = t->shape[i];
      r.step[r.n++] = t->stride[i];
    }
  }
  if (r.n == 0) {
    r.size[0] = 1;
    r.step[0] = 1;
    r.n = 1;
  }
  return r;
}

char *gb_rows_at(const gb_rows *r, int64_t row) {
  int64_t offset = 0;
  for (int i = r->n - 1; i >= 0; i--) {
    offset += row % r->size[i] * r->step[i];
    row /= r->size[i];
  }
  return r->data + offset * (int64_t)r->bytes;
}

/* Rows are read strip by strip (one position of many rows) when their neighbours are nearer than their own elements. */
static bool by_strips(const gb_rows *r) {
  return r->length == 1 || llabs(r->step[r->n - 1]) < llabs(r->stride);
}

/* Rows of which one begins where the other ends are one long run of elements. */
static bool end_to_end(const gb_rows *r) { return r->stride == 1 && r->step[r->n - 1] == r->length; }

/* Strips are turned into rows, and back, in blocks: a block's worth of every row is one cache line or two. */
enum { BLOCK = 16, BLOCK_ROWS = 64 };

/* How many rows from `first` one step can handle: those of a block that lie a constant distance apart. */
static int64_t run_of(const gb_rows *r, int64_t first, int64_t count) {
  int64_t last = r->size[r->n - 1], left = last - first % last, most = r->length == 1 ||
      end_to_end(r) ? GB_TILE : BLOCK_ROWS;
  if (!by_strips(r) && !end_to_end(r)) return 1;
  if (left > most) left = most;
  return count < left ? count : left;
}

/* Before a run of rows, one of many in a long load or store, each too short to be counted by itself: is a stop asked
 * for? */
static bool is_stopped_before(const gb_rows *r, int64_t run, int64_t count) {
  if (count * r->length <= 16 * GB_SHORT_ROW || run * r->length > GB_SHORT_ROW) return false;
  return gb_work(run * r->length);
}

/* Do strips lie as lanes do, so that they are turned without a block in between? */
static bool is_plain(const gb_rows *r, gb_lane lane) {
  return r->dtype == gb_lane_dtype(lane) && r->step[r->n - 1] == 1;
}

void gb_rows_load(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, void *to) {
  size_t bytes = gb_lane_bytes(lane);
  const bool plain = is_plain(r, lane);
  double block[BLOCK * BLOCK_ROWS];
  char *at = to;
  for (int64_t run; count > 0; count -= run, first += run, at += run * r->length * (int64_t)bytes) {
    const char *from = gb_rows_at(r, first);
    run = run_of(r, first, count);
    if (is_stopped_before(r, run, count)) return;
    if (run == 1 || end_to_end(r)) gb_lane_load(lane, at, from, r->dtype, r->stride, run * r->length);
    else if (r->length == 1) gb_lane_load(lane, at, from, r->dtype, r->step[r->n - 1], run);
    else
      for (int64_t j = 0; j < r->length; j += BLOCK) {
        int64_t n = r->length - j < BLOCK ? r->length - j : BLOCK;
        if (r->length > GB_SHORT_ROW && gb_work(n * run)) return;
        const char *strips = from + j * r->stride * (int64_t)r->bytes;
        int64_t step = r->stride * (int64_t)r->bytes;
        if (!plain) {
          for (int64_t k = 0; k < n; k++)
            gb_lane_load(lane, (char *)block + (size_t)(k * run) * bytes, strips + k * step, r->dtype,
                         r->step[r->n - 1], run);
          strips = (const char *)block, step = run * (int64_t)bytes;
        }
        gb_transpose(at + (size_t)j * bytes, r->length * (int64_t)bytes, strips, step, n, run, bytes);
      }
  }
}

void *gb_rows_own(const gb_rows *r, gb_dtype dtype, int64_t first) {
  if (r->dtype != dtype || r->n != 1 || !end_to_end(r)) return NULL;
  return r->data + first * r->length * (int64_t)r->bytes;
}

void gb_rows_store(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, const void *from) {
  size_t bytes = gb_lane_bytes(lane);
  const bool plain = is_plain(r, lane);
  double block[BLOCK * BLOCK_ROWS];
  const char *at = from;
  for (int64_t run; count > 0; count -= run, first += run, at += run * r->length * (int64_t)bytes) {
    char *to = gb_rows_at(r, first);
    run = run_of(r, first, count);
    if (is_stopped_before(r, run, count)) return;
    if (run == 1 || end_to_end(r)) gb_lane_store(lane, to, r->dtype, r->stride, at, run * r->length);
    else if (r->length == 1) gb_lane_store(lane, to, r->dtype, r->step[r->n - 1], at, run);
    else
      for (int64_t j = 0; j < r->length; j += BLOCK) {
        int64_t n = r->length - j < BLOCK ? r->length - j : BLOCK;
        if (r->length > GB_SHORT_ROW && gb_work(n * run)) return;
        char *strips = plain ? to + j * r->stride * (int64_t)r->bytes : (char *)block;
        int64_t step = plain ? r->stride * (int64_t)r->bytes : run * (int64_t)bytes;
        gb_transpose(strips, step, at + (size_t)j * bytes, r->length * (int64_t)bytes, run, n, bytes);
        for (int64_t k = 0; k < n && !plain; k++)
          gb_lane_store(lane, to + (j + k) * r->stride * (int64_t)r->bytes, r->dtype, r->step[r->n - 1],
                        (char *)block + (size_t)(k * run) * bytes, run);
      }
  }
}

/* How many short rows from `first` stand up, or lie down, in one step: those a constant distance apart, as many as fit
 * into a block where they are not of the lane's dtype, or are no strips. */
static int64_t standing_run(const gb_rows *r, int64_t first, int64_t count, bool direct) {
  int64_t last = r->size[r->n - 1], left = last - first % last, most = direct ? left : GB_TILE / r->length;
  if (left > most) left = most;
  return count < left ? count : left;
}

/* Are short rows turned without a block in between? */
static bool stands_direct(const gb_rows *r, gb_lane lane) {
  return r->step[r->n - 1] == 1 || (r->stride == 1 && r->dtype == gb_lane_dtype(lane));
}

void gb_rows_stand(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, void *to, int64_t line) {
  const int64_t bytes = (int64_t)gb_lane_bytes(lane), own = (int64_t)r->bytes, step = r->step[r->n - 1];
  const bool direct = stands_direct(r, lane);
  double block[GB_TILE];
  char *at = to;
  for (int64_t run; count > 0; count -= run, first += run, at += run * bytes) {
    const char *from = gb_rows_at(r, first);
    run = standing_run(r, first, count, direct);
    if (step == 1) {
      for (int64_t k = 0; k < r->length; k++)
        gb_lane_load(lane, at + k * line * bytes, from + k * r->stride * own, r->dtype, 1, run);
      continue;
    }
    int64_t apart = direct ? step : r->length;
    if (!direct && end_to_end(r)) gb_lane_load(lane, block, from, r->dtype, 1, run * r->length);
    for (int64_t i = 0; i < run && !direct && !end_to_end(r); i++)
      gb_lane_load(lane, (char *)block + i * r->length * bytes, from + i * step * own, r->dtype, r->stride, r->length);
    gb_transpose(at, line * bytes, direct ? from : (const char *)block, apart * bytes, run, r->length, (size_t)bytes);
  }
}

void gb_rows_lay(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, const void *from, int64_t line) {
  const int64_t bytes = (int64_t)gb_lane_bytes(lane), own = (int64_t)r->bytes, step = r->step[r->n - 1];
  const bool direct = stands_direct(r, lane);
  double block[GB_TILE];
  const char *at = from;
  for (int64_t run; count > 0; count -= run, first += run, at += run * bytes) {
    char *to = gb_rows_at(r, first);
    run = standing_run(r, first, count, direct);
    if (step == 1) {
      for (int64_t k = 0; k < r->length; k++)
        gb_lane_store(lane, to + k * r->stride * own, r->dtype, 1, at + k * line * bytes, run);
      continue;
    }
    int64_t apart = direct ? step : r->length;
    gb_transpose(direct ? to : (char *)block, apart * bytes, at, line * bytes, r->length, run, (size_t)bytes);
    if (!direct && end_to_end(r)) gb_lane_store(lane, to, r->dtype, 1, block, run * r->length);
    for (int64_t i = 0; i < run && !direct && !end_to_end(r); i++)
      gb_lane_store(lane, to + i * step * own, r->dtype, r->stride, (char *)block + i * r->length * bytes, r->length);
  }
}

gb_row_plan gb_row_plan_for(const gb_rows *rows) {
  gb_row_plan plan = gb_row_plan_of(rows->count, rows->length);
  int64_t fewest = !by_strips(rows) ? 1 : rows->length <= 4 * GB_TILE ? BLOCK_ROWS : BLOCK;
  if (plan.batch >= fewest) return plan;
  plan.batch = fewest;
  plan.chunk = (plan.chunk + fewest - 1) / fewest * fewest;
  plan.chunks = (rows->count + plan.chunk - 1) / plan.chunk;
  return plan;
}

/* ====} */

/* {==== arithmetic ==== */

static int64_t block_of(int64_t at, int64_t n) { return n - at < GB_TILE ? n - at : GB_TILE; }

/* Where the tile at element `at` of a row begins. */
static const char *tile_at(gb_dtype dtype, const void *x,
                           int64_t at) { return (const char *)x + (size_t)at * gb_dtype_bytes(dtype); }

/* The largest element, or NaN where there is one: looked for beside, so that the maximum is one vector instruction. */
static float max_f32(const float *x, int64_t n) {
  float most = -INFINITY;
  int32_t bad = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
  for (int64_t i = 0; i < n; i++) {
    most = x[i] > most ? x[i] : most;
    bad |= x[i] != x[i];
  }
  return bad ? NAN : most;
}

double gb_row_max(gb_lane lane, const void *x, int64_t n) {
  const double *d = x;
  double most = -INFINITY;
  for GB_PIECES(at, m, n) {
    double some = lane == GB_LANE_F32 ? max_f32((const float *)x + at, m) : -INFINITY;
    for (int64_t i = at; lane != GB_LANE_F32 && i < at + m; i++) some = ((d[i] > some) | (d[i] != d[i])) ? d[i] : some;
    most = some > most || some != some ? some : most;
    if (most != most) break;
  }
  return most;
}

static float max_wide(const float *x, int64_t n) {
  gb_wide most[2] = { { gb_vector_of(-INFINITY), gb_vector_of(-INFINITY) },
                      { gb_vector_of(-INFINITY), gb_vector_of(-INFINITY) } };
  int64_t i = 0;
  for (; i + 2 * GB_WIDE <= n; i += 2 * GB_WIDE)
    for (int k = 0; k < 2; k++) {
      gb_wide v = gb_wide_load(GB_FLOAT32, x, i + k * GB_WIDE);
      most[k] = (gb_wide){ gb_vector_max(v.a, most[k].a), gb_vector_max(v.b, most[k].b) };
    }
  for (; i < n; i += GB_WIDE) {
    gb_wide v = i + GB_WIDE <= n ? gb_wide_load(GB_FLOAT32, x, i)
        : gb_wide_load_last(GB_FLOAT32, x, i, n - i, -INFINITY);
    most[0] = (gb_wide){ gb_vector_max(v.a, most[0].a), gb_vector_max(v.b, most[0].b) };
  }
  return gb_vector_largest(gb_vector_max(gb_vector_max(most[0].a, most[0].b), gb_vector_max(most[1].a, most[1].b)));
}

/* 16-bit floats compare as whole numbers do, but those below 0 the other way round: the largest number with sign is the
 * largest element, unless all are below 0; then it is the least without sign. That takes no widening. */
static uint16_t max_halves(const uint16_t *x, int64_t n, uint16_t minus_infinity) {
  int16_t most = INT16_MIN;
  uint16_t least = minus_infinity;
#pragma omp simd reduction(max : most) reduction(min : least)
  for (int64_t i = 0; i < n; i++) {
    int16_t number = (int16_t)x[i];
    most = number > most ? number : most;
    least = x[i] < least ? x[i] : least;
  }
  return most >= 0 ? (uint16_t)most : least;
}

/* Of a piece of a row. */
static double max_of(gb_dtype dtype, const void *x, int64_t n) {
  switch (dtype) {
    case GB_BFLOAT16: return gb_bfloat16_to_float(max_halves(x, n, 0xff80));
    case GB_FLOAT16: return gb_float16_to_float(max_halves(x, n, 0xfc00));
    case GB_FLOAT64: return gb_row_max(GB_LANE_F64, x, n);
    default: return max_wide(x, n);
  }
}

double gb_wide_max(gb_dtype dtype, const void *x, int64_t n) {
  if (n <= GB_SHORT_ROW) return max_of(dtype, x, n);
  double most = -INFINITY;
  for GB_PIECES(at, m, n) {
    double some = max_of(dtype, tile_at(dtype, x, at), m);
    most = some > most || some != some ? some : most;
  }
  return most;
}

/* The sum of at most a tile: a sum for each place in two pairs of vectors, then those by pairs. */
GB_ALWAYS_INLINE float sum_wide(gb_dtype dtype, const void *x, int64_t n) {
  gb_wide sum[2] = { 0 };
  int64_t i = 0;
  for (; i + 2 * GB_WIDE <= n; i += 2 * GB_WIDE)
    for (int k = 0; k < 2; k++) {
      gb_wide v = gb_wide_load(dtype, x, i + k * GB_WIDE);
      sum[k] = (gb_wide){ sum[k].a + v.a, sum[k].b + v.b };
    }
  for (; i < n; i += GB_WIDE) {
    gb_wide v = i + GB_WIDE <= n ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    sum[0] = (gb_wide){ sum[0].a + v.a, sum[0].b + v.b };
  }
  return gb_vector_sum((sum[0].a + sum[0].b) + (sum[1].a + sum[1].b));
}

double gb_wide_sum(gb_dtype dtype, const void *x, int64_t n) {
  double total = 0;
  const double *d = x;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) total += d[i];
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        total += GB_WIDE_FOR(dtype, sum_wide, tile_at(dtype, x, at), block_of(at, n));
  }
  return total;
}

GB_ALWAYS_INLINE float dot_wide(gb_dtype dtype, const void *x, const void *y, int64_t n) {
  gb_wide sum[2] = { 0 };
  int64_t i = 0;
  for (; i + 2 * GB_WIDE <= n; i += 2 * GB_WIDE)
    for (int k = 0; k < 2; k++) {
      gb_wide v = gb_wide_load(dtype, x, i + k * GB_WIDE), w = gb_wide_load(dtype, y, i + k * GB_WIDE);
      sum[k] = (gb_wide){ sum[k].a + v.a * w.a, sum[k].b + v.b * w.b };
    }
  for (; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    gb_wide w = whole ? gb_wide_load(dtype, y, i) : gb_wide_load_last(dtype, y, i, n - i, 0);
    sum[0] = (gb_wide){ sum[0].a + v.a * w.a, sum[0].b + v.b * w.b };
  }
  return gb_vector_sum((sum[0].a + sum[0].b) + (sum[1].a + sum[1].b));
}

double gb_wide_dot(gb_dtype dtype, const void *x, const void *y, int64_t n) {
  double total = 0;
  const double *d = x, *e = y;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) total += d[i] * e[i];
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        total += GB_WIDE_FOR(dtype, dot_wide, tile_at(dtype, x, at), tile_at(dtype, y, at), block_of(at, n));
  }
  return total;
}

GB_ALWAYS_INLINE float exp_only_sum_wide(gb_dtype dtype, const void *x, int64_t n, gb_vector shift) {
  return gb_wide_exp_sum_tile(dtype, NULL, x, n, shift);
}

double gb_wide_exp_sum(gb_dtype dtype, void *to, const void *x, int64_t n, double shift) {
  double total = 0;
  const double *d = x;
  float *f = to;
  gb_vector shift32 = gb_vector_of((float)shift);
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) {
        double e = GB_ROW_LIFT * exp(d[i] - shift);
        if (to) ((double *)to)[i] = e;
        total += e;
      }
    else if (to)
      for (int64_t at = first; at < first + m; at += GB_TILE)
        total += GB_WIDE_FOR(dtype, gb_wide_exp_sum_tile, f + at, tile_at(dtype, x, at), block_of(at, n), shift32);
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        total += GB_WIDE_FOR(dtype, exp_only_sum_wide, tile_at(dtype, x, at), block_of(at, n), shift32);
  }
  return total;
}

GB_ALWAYS_INLINE void exp_wide(gb_dtype dtype, void *to, const void *x, int64_t n, gb_vector shift, gb_vector scale,
                               int64_t index, gb_vector own,
                               bool stream) {
  const gb_vector lift = gb_vector_of((float)(1 / GB_ROW_LIFT));
  const int64_t owner = index < 0 ? -1 : index / GB_WIDE * GB_WIDE;
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, -INFINITY);
    gb_wide_ahead(dtype, x, i);
    v = (gb_wide){ scale * (lift * gb_vector_lift_of(dtype, v.a - shift)),
                   scale * (lift * gb_vector_lift_of(dtype, v.b - shift)) };
    if (i == owner) v = gb_wide_put(whole ? dtype : GB_FLOAT32, v, index - i, own);
    if (whole) gb_wide_store(dtype, to, i, v, stream);
    else gb_wide_store_last(dtype, to, i, n - i, v);
  }
}

/* A number whose NaN is the usual one: a weight's may have bits that gb_round_up_bf16 does not take. */
static gb_vector vector_of(double x) { return gb_vector_of(x != x ? NAN : (float)x); }

void gb_wide_exp(gb_dtype dtype, void *to, const void *x, int64_t n, double shift, double scale, int64_t index,
                 double own, bool stream) {
  double *d = to;
  const double *e = x;
  for GB_PIECES(at, m, n) {
    int64_t here = index >= at && index < at + m ? index - at : -1;
    if (dtype == GB_FLOAT64) {
      for (int64_t i = at; i < at + m; i++) d[i] = scale * exp(e[i] - shift);
      if (here >= 0) d[index] = own;
    } else
      GB_WIDE_FOR(dtype, exp_wide, (char *)tile_at(dtype, to, at), tile_at(dtype, x, at), m, gb_vector_of((float)shift),
                  vector_of(scale), here,
                  vector_of(own), stream && gb_vector_aligned(to));
  }
}

void gb_row_shift(gb_lane lane, void *x, int64_t n, double shift) {
  float *f = x, shift32 = (float)shift;
  double *d = x;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) f[i] -= shift32;
    else
      for (int64_t i = at; i < at + m; i++) d[i] -= shift;
  }
}

void gb_row_scale(gb_lane lane, void *x, int64_t n, double scale) {
  float *f = x, scale32 = (float)scale;
  double *d = x;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) f[i] *= scale32;
    else
      for (int64_t i = at; i < at + m; i++) d[i] *= scale;
  }
}

void gb_row_add(gb_lane lane, void *x, const void *y, int64_t n, double scale) {
  float *f = x, scale32 = (float)scale;
  const float *g = y;
  double *d = x;
  const double *e = y;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) f[i] += scale32 * g[i];
    else
      for (int64_t i = at; i < at + m; i++) d[i] += scale * e[i];
  }
}

/* ====} */
