/* cpu/rows.c - a tensor as rows along one dimension, and arithmetic on rows.
 *
 * Reading a row moves its bytes once. The sums below keep GB_ROW_LANES partial sums per block of 1024 elements, which is what vector
 * registers want and what keeps the error of a long sum small; the blocks are added up in float64. */
#include "cpu/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "base/math.h"

/* {==== lanes ==== */

void gb_lane_load(gb_lane lane, void *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n) {
  switch (lane) {
    case GB_LANE_F32: gb_load_f32(to, from, dtype, stride, n); break;
    case GB_LANE_F64: gb_load_f64(to, from, dtype, stride, n); break;
    default: gb_load_i64(to, from, dtype, stride, n);
  }
}

void gb_lane_store(gb_lane lane, void *to, gb_dtype dtype, int64_t stride, const void *from, int64_t n) {
  switch (lane) {
    case GB_LANE_F32: gb_store_f32(to, dtype, stride, from, n); break;
    case GB_LANE_F64: gb_store_f64(to, dtype, stride, from, n); break;
    default: gb_store_i64(to, dtype, stride, from, n);
  }
}

/* ====} */

/* {==== rows ==== */

gb_rows gb_rows_of(const gb_tensor *t, int dim) {
  gb_rows r = { .data = gb_data(t), .dtype = (gb_dtype)t->dtype, .bytes = gb_dtype_bytes((gb_dtype)t->dtype), .length = 1, .stride = 1, .count = 1 };
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
  int64_t last = r->size[r->n - 1], left = last - first % last, most = r->length == 1 || end_to_end(r) ? GB_TILE : BLOCK_ROWS;
  if (!by_strips(r) && !end_to_end(r)) return 1;
  if (left > most) left = most;
  return count < left ? count : left;
}

/* rows[i][0 .. n-1] = block[0 .. n-1][i] for `run` rows that lie `length` lanes apart. */
static void block_to_rows(char *rows, const char *block, int64_t length, int64_t run, int64_t n, size_t bytes) {
  for (int64_t i = 0; i < run; i++)
    for (int64_t k = 0; k < n; k++) {
      if (bytes == 4) memcpy(rows + (i * length + k) * 4, block + (k * run + i) * 4, 4);
      else memcpy(rows + (i * length + k) * 8, block + (k * run + i) * 8, 8);
    }
}

static void rows_to_block(char *block, const char *rows, int64_t length, int64_t run, int64_t n, size_t bytes) {
  for (int64_t i = 0; i < run; i++)
    for (int64_t k = 0; k < n; k++) {
      if (bytes == 4) memcpy(block + (k * run + i) * 4, rows + (i * length + k) * 4, 4);
      else memcpy(block + (k * run + i) * 8, rows + (i * length + k) * 8, 8);
    }
}

void gb_rows_load(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, void *to) {
  size_t bytes = gb_lane_bytes(lane);
  double block[BLOCK * BLOCK_ROWS];
  char *at = to;
  for (int64_t run; count > 0; count -= run, first += run, at += run * r->length * (int64_t)bytes) {
    const char *from = gb_rows_at(r, first);
    run = run_of(r, first, count);
    if (run == 1 || end_to_end(r)) gb_lane_load(lane, at, from, r->dtype, r->stride, run * r->length);
    else if (r->length == 1) gb_lane_load(lane, at, from, r->dtype, r->step[r->n - 1], run);
    else
      for (int64_t j = 0; j < r->length; j += BLOCK) {
        int64_t n = r->length - j < BLOCK ? r->length - j : BLOCK;
        for (int64_t k = 0; k < n; k++)
          gb_lane_load(lane, (char *)block + (size_t)(k * run) * bytes, from + (j + k) * r->stride * (int64_t)r->bytes, r->dtype, r->step[r->n - 1],
                       run);
        block_to_rows(at + (size_t)j * bytes, (const char *)block, r->length, run, n, bytes);
      }
  }
}

void *gb_rows_own(const gb_rows *r, gb_lane lane, int64_t first) {
  if (r->dtype != gb_lane_dtype(lane) || r->n != 1 || !end_to_end(r)) return NULL;
  return r->data + first * r->length * (int64_t)r->bytes;
}

void gb_rows_store(const gb_rows *r, gb_lane lane, int64_t first, int64_t count, const void *from) {
  size_t bytes = gb_lane_bytes(lane);
  double block[BLOCK * BLOCK_ROWS];
  const char *at = from;
  for (int64_t run; count > 0; count -= run, first += run, at += run * r->length * (int64_t)bytes) {
    char *to = gb_rows_at(r, first);
    run = run_of(r, first, count);
    if (run == 1 || end_to_end(r)) gb_lane_store(lane, to, r->dtype, r->stride, at, run * r->length);
    else if (r->length == 1) gb_lane_store(lane, to, r->dtype, r->step[r->n - 1], at, run);
    else
      for (int64_t j = 0; j < r->length; j += BLOCK) {
        int64_t n = r->length - j < BLOCK ? r->length - j : BLOCK;
        rows_to_block((char *)block, at + (size_t)j * bytes, r->length, run, n, bytes);
        for (int64_t k = 0; k < n; k++)
          gb_lane_store(lane, to + (j + k) * r->stride * (int64_t)r->bytes, r->dtype, r->step[r->n - 1], (char *)block + (size_t)(k * run) * bytes,
                        run);
      }
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

enum { LANES = GB_ROW_LANES };

/* The sum of at most a tile of float32: partial sums, then pairs of them. */
static float sum_block(const float *x, int64_t n) {
  float lanes[LANES] = { 0 };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
#pragma omp simd
    for (int k = 0; k < LANES; k++) lanes[k] += x[i + k];
  }
  for (int k = 0; i < n; i++, k++) lanes[k] += x[i];
  return gb_lanes_fold(lanes);
}

static float dot_block(const float *x, const float *y, int64_t n) {
  float lanes[LANES] = { 0 };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
#pragma omp simd
    for (int k = 0; k < LANES; k++) lanes[k] += x[i + k] * y[i + k];
  }
  for (int k = 0; i < n; i++, k++) lanes[k] += x[i] * y[i];
  return gb_lanes_fold(lanes);
}

static int64_t block_of(int64_t at, int64_t n) { return n - at < GB_TILE ? n - at : GB_TILE; }

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
  if (lane == GB_LANE_F32) return max_f32(x, n);
  const double *d = x;
  double most = -INFINITY;
  for (int64_t i = 0; i < n; i++) most = ((d[i] > most) | (d[i] != d[i])) ? d[i] : most;
  return most;
}

double gb_row_sum(gb_lane lane, const void *x, int64_t n) {
  double total = 0;
  const float *f = x;
  const double *d = x;
  if (lane == GB_LANE_F32)
    for (int64_t at = 0; at < n; at += GB_TILE) total += sum_block(f + at, block_of(at, n));
  else
    for (int64_t i = 0; i < n; i++) total += d[i];
  return total;
}

double gb_row_dot(gb_lane lane, const void *x, const void *y, int64_t n) {
  double total = 0;
  const float *f = x, *g = y;
  const double *d = x, *e = y;
  if (lane == GB_LANE_F32)
    for (int64_t at = 0; at < n; at += GB_TILE) total += dot_block(f + at, g + at, block_of(at, n));
  else
    for (int64_t i = 0; i < n; i++) total += d[i] * e[i];
  return total;
}

#if defined(__AVX512F__)
/* 2^(j/16), less the bits j that the addition below brings along. */
static const uint32_t sixteenths[16] = {
  0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
  0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d,
};

/* gb_expf_lifted by a table in a register, three multiplications less; 1.06 ulp. x = (n + j/16) * ln 2 + r: the low bits of x * 16 / ln 2,
 * rounded, hold n + 32 and j. */
static inline __m512 lift_vector(__m512 x) {
  __m512 magic = _mm512_set1_ps(0x1.8p+23f + 512.0f), shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(0x1.715476p+4f), magic);
  __m512 k = _mm512_sub_ps(shifted, magic), r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0x1.62e43p-5f), x);
  r = _mm512_fnmadd_ps(k, _mm512_set1_ps(-0x1.05c61p-33f), r);
  __m512i bits = _mm512_castps_si512(shifted), root = _mm512_permutexvar_epi32(bits, _mm512_loadu_si512(sixteenths));
  __m512 power = _mm512_castsi512_ps(_mm512_add_epi32(root, _mm512_slli_epi32(bits, 19)));
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0x1.555556p-3f), _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(1.0f));
  return _mm512_maskz_fmadd_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-104.0f), _CMP_NLT_UQ), _mm512_mul_ps(power, r), p, power);
}

/* to = 2^32 * exp(x - shift) for LANES of them. */
static inline void lift_lanes(float *to, const float *x, float shift) {
  for (int k = 0; k < LANES; k += 16) _mm512_storeu_ps(to + k, lift_vector(_mm512_sub_ps(_mm512_loadu_ps(x + k), _mm512_set1_ps(shift))));
}
#else
/* to = 2^32 * exp(x - shift) for LANES of them. */
static inline void lift_lanes(float *to, const float *x, float shift) {
#pragma omp simd
  for (int k = 0; k < LANES; k++) to[k] = gb_expf_lifted(x[k] - shift);
}
#endif

/* The last of a row, fewer than LANES, filled up with elements whose exponential is 0. */
static void fill_up(float *last, const float *x, int64_t n) {
  for (int k = 0; k < LANES; k++) last[k] = k < n ? x[k] : -INFINITY;
}

/* The sum of 2^32 * exp(x - shift) over at most a tile, each also in to. */
static float exp_block(float *to, const float *x, int64_t n, float shift) {
  float lanes[LANES] = { 0 }, last[LANES];
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    lift_lanes(to + i, x + i, shift);
#pragma omp simd
    for (int k = 0; k < LANES; k++) lanes[k] += to[i + k];
  }
  if (i < n) {
    fill_up(last, x + i, n - i);
    lift_lanes(last, last, shift);
    for (int k = 0; k < LANES; k++) lanes[k] += last[k];
    memcpy(to + i, last, (size_t)(n - i) * sizeof *last);
  }
  return gb_lanes_fold(lanes);
}

double gb_row_exp_sum(gb_lane lane, void *to, const void *x, int64_t n, double shift) {
  double total = 0;
  const double *d = x;
  if (lane == GB_LANE_F64) {
    for (int64_t i = 0; i < n; i++) {
      double e = GB_ROW_LIFT * exp(d[i] - shift);
      if (to) ((double *)to)[i] = e;
      total += e;
    }
    return total;
  }
  float unwanted[GB_TILE], *f = to;
  for (int64_t at = 0; at < n; at += GB_TILE) total += exp_block(f ? f + at : unwanted, (const float *)x + at, block_of(at, n), (float)shift);
  return total;
}

/* LANES of gb_row_exp. */
static inline void exp_lanes(float *to, const float *x, float shift, float scale) {
  lift_lanes(to, x, shift);
#pragma omp simd
  for (int k = 0; k < LANES; k++) to[k] = scale * (to[k] * (float)(1 / GB_ROW_LIFT));
}

void gb_row_exp(gb_lane lane, void *to, const void *x, int64_t n, double shift, double scale) {
  double *d = to;
  const double *e = x;
  if (lane == GB_LANE_F64) {
    for (int64_t i = 0; i < n; i++) d[i] = scale * exp(e[i] - shift);
    return;
  }
  float *f = to, last[LANES];
  const float *g = x;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) exp_lanes(f + i, g + i, (float)shift, (float)scale);
  if (i == n) return;
  fill_up(last, g + i, n - i);
  exp_lanes(last, last, (float)shift, (float)scale);
  memcpy(f + i, last, (size_t)(n - i) * sizeof *last);
}

void gb_row_shift(gb_lane lane, void *x, int64_t n, double shift) {
  float *f = x, shift32 = (float)shift;
  double *d = x;
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) f[i] -= shift32;
  else
    for (int64_t i = 0; i < n; i++) d[i] -= shift;
}

void gb_row_scale(gb_lane lane, void *x, int64_t n, double scale) {
  float *f = x, scale32 = (float)scale;
  double *d = x;
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) f[i] *= scale32;
  else
    for (int64_t i = 0; i < n; i++) d[i] *= scale;
}

void gb_row_add(gb_lane lane, void *x, const void *y, int64_t n, double scale) {
  float *f = x, scale32 = (float)scale;
  const float *g = y;
  double *d = x;
  const double *e = y;
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) f[i] += scale32 * g[i];
  else
    for (int64_t i = 0; i < n; i++) d[i] += scale * e[i];
}

/* ====} */
