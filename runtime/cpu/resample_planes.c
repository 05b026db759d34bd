/* cpu/resample_planes.c - resample_planes and its gradient: rows of a plane and columns in one pass.
 *
 * Where a plane grows, each row of x is resampled once, into a ring of rows that stays in cache, and a row of the
 * result is a sum over those of its window; where it shrinks, the sum over a window of x comes first and is resampled
 * as one row. Which of them is less work is found by shapes alone. Elements of 16 bits are widened and rounded in
 * registers where the level has the instructions. nearest copies elements as they are. Traffic: x is read once, the
 * result written once, in float32 20 operations of a vector of results at a factor of 2. */
#include <string.h>

#include "cpu/walk.h"
#include "cpu/windows.h"

/* One resampling as all its chunks see it: x [planes, rows.n, columns.n] -> y [planes, rows.m, columns.m]. */
typedef struct job {
  gb_op_call *call;
  gb_lane lane;
  const gb_tensor *x, *y;
  gb_windows rows, columns;
  bool copies, sums_first, doubled;      /* nearest; the sum over a window of x comes first; columns are doubled: by
                                            double_rows, of nearest each element twice */
  bool direct;                           /* store_wide will do */
  int64_t count, per_chunk;              /* rows of all planes of y, of a chunk */
  int64_t wide, ring, at_once;           /* lanes of a row in a room; rows of its ring, a power of 2; of sums */
  gb_scratch scratch;
} job;

/* A window over rows that lie anywhere: how many, where, and their weights. */
enum { MOST_ROWS = 16 };
typedef struct window { int64_t count; const char *row[MOST_ROWS]; const float *weight; } window;

/* {==== sums over rows ==== */

/* 16-bit elements as they follow one another. Any NaN in x came of 16 bits or of arithmetic. */
GB_ALWAYS_INLINE void store_wide(gb_dtype dtype, void *y, int64_t i, gb_wide x) {
#if defined(__AVX512BW__)
  if (dtype == GB_BFLOAT16) {
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i low = (__m512i)gb_round_up_bf16(x.a), high = (__m512i)gb_round_up_bf16(x.b);
    _mm512_storeu_si512((uint16_t *)y + i, _mm512_permutex2var_epi16(low, odd, high));
    return;
  }
#endif
  gb_wide_store(dtype, y, i, x, false);
}

/* n elements, at least GB_WIDE; the last vectors begin early enough to end with them. */
GB_ALWAYS_INLINE void sum_vectors(gb_dtype from, gb_dtype to, int64_t count, char *y, const window *w, int64_t n) {
  const char *row[MOST_ROWS];
  gb_vector weight[MOST_ROWS];
  for (int64_t k = 0; k < count; k++) row[k] = w->row[k], weight[k] = gb_vector_of(w->weight[k]);
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    const int64_t at = n - i < GB_WIDE ? n - GB_WIDE : i;
    gb_wide sum = { 0 };
    for (int64_t k = 0; k < count; k++) {
      gb_wide x = gb_wide_load(from, row[k], at);
      sum.a += x.a * weight[k];
      sum.b += x.b * weight[k];
    }
    if (from == GB_BFLOAT16) sum = gb_wide_interleave(sum);
    store_wide(to, y, at, sum);
  }
}

/* Windows of one, two and four rows, nearly all there are, have loops of their own. */
GB_ALWAYS_INLINE int sum_counted(gb_dtype from, gb_dtype to, char *y, const window *w, int64_t n) {
  if (w->count == 1) sum_vectors(from, to, 1, y, w, n);
  else if (w->count == 2) sum_vectors(from, to, 2, y, w, n);
  else if (w->count == 4) sum_vectors(from, to, 4, y, w, n);
  else sum_vectors(from, to, w->count, y, w, n);
  return 0;
}
GB_ALWAYS_INLINE int sum_to(gb_dtype to, char *y, const window *w, int64_t n) {
  return sum_counted(GB_FLOAT32, to, y, w, n);
}
GB_ALWAYS_INLINE int sum_from(gb_dtype from, char *y, const window *w, int64_t n) {
  return sum_counted(from, GB_FLOAT32, y, w, n);
}

/* The same of few elements, by rows in lanes. */
static void sum_few(gb_dtype from, gb_dtype to, char *y, const window *w, int64_t n) {
  float sum[GB_WIDE] = { 0 }, x[GB_WIDE];
  for (int64_t k = 0; k < w->count; k++) {
    gb_load_f32(x, w->row[k], from, 1, n);
    for (int64_t i = 0; i < n; i++) sum[i] += x[i] * w->weight[k];
  }
  gb_store_f32(y, to, 1, sum, n);
}

/* At most a tile of elements of rows of `from`, which are float32 or summed up in it. direct: store_wide can. */
static void sum_tile(gb_dtype from, gb_dtype to, bool direct, char *y, const window *w, int64_t n) {
  float room[GB_TILE];
  if (n < GB_WIDE) sum_few(from, to, y, w, n);
  else if (!direct) {
    sum_tile(from, GB_FLOAT32, true, (char *)room, w, n);
    gb_store_f32(y, to, 1, room, n);
  } else if (from == GB_FLOAT32) GB_WIDE_FOR(to, sum_to, y, w, n);
  else GB_WIDE_FOR(from, sum_from, y, w, n);
}

/* Rows for a sum: of a plane of x, or in lanes, of which row i lies in the slot i & mask. */
typedef struct source { const char *data; int64_t bytes, mask, element; gb_dtype dtype; } source;

/* n elements from `at` on of the sum over window o of any length, in lanes. */
static void sum_long(const job *j, void *sum, const source *s, int64_t o, int64_t at, int64_t n) {
  double room[GB_TILE];
  const double *weight = j->rows.weight + j->rows.begin[o];
  const int64_t count = j->rows.begin[o + 1] - j->rows.begin[o];
  memset(sum, 0, (size_t)n * gb_lane_bytes(j->lane));
  for (int64_t k = 0; k < count && !gb_work(n); k++) {
    const void *x = s->data + ((j->rows.first[o] + k) & s->mask) * s->bytes + at * s->element;
    if (s->dtype != gb_lane_dtype(j->lane)) gb_lane_load(j->lane, room, x, s->dtype, 1, n), x = room;
    gb_row_add(j->lane, sum, x, n, weight[k]);
  }
}

/* The sum over window o of n elements side by side -> y of a dtype with so many bytes. */
static void sum_rows(const job *j, char *y, gb_dtype to, int64_t bytes, const source *s, int64_t o, int64_t n) {
  const int64_t count = j->rows.begin[o + 1] - j->rows.begin[o];
  if (j->lane == GB_LANE_F32 && count <= MOST_ROWS) {
    const bool direct = to == GB_FLOAT32 || j->direct;
    window w = { .count = count, .weight = j->rows.weight32 + j->rows.begin[o] };
    for (int64_t k = 0; k < count; k++) w.row[k] = s->data + ((j->rows.first[o] + k) & s->mask) * s->bytes;
    if (n <= GB_TILE) {
      sum_tile(s->dtype, to, direct, y, &w, n);
      gb_work(n * count);
      return;
    }
    for (int64_t at = 0; at < n; at += GB_TILE) {
      const int64_t some = n - at < GB_TILE ? n - at : GB_TILE;
      sum_tile(s->dtype, to, direct, y + at * bytes, &w, some);
      for (int64_t k = 0; k < count; k++) w.row[k] += GB_TILE * s->element;
      if (gb_work(some * count)) return;
    }
    return;
  }
  for (int64_t at = 0; at < n; at += GB_TILE) {
    double room[GB_TILE];
    const int64_t some = n - at < GB_TILE ? n - at : GB_TILE;
    sum_long(j, room, s, o, at, some);
    if (gb_was_stopped(j->call)) return;
    gb_lane_store(j->lane, y + at * bytes, to, 1, room, some);
  }
}

/* ====} */

/* {==== rows of the result ==== */

/* A row of lanes by the table of columns. */
static void resample_row(const job *j, void *y, const void *x) {
  const gb_windows *t = &j->columns;
  if (j->lane == GB_LANE_F32) {
    gb_windows_row_f32(t, y, x);
    return;
  }
  for (int64_t o = 0, end; o < t->m; o = end) {
    end = t->m - o < GB_TILE ? t->m : o + GB_TILE;
    if (gb_work(t->begin[end] - t->begin[o])) return;
    gb_windows_gather_f64(t, y, x, o, end, 1);
  }
}

/* Rows o .. end - 1 of a plane of y. */
typedef struct stretch { const char *x; char *y, *room; int64_t o, end; } stretch;

/* A row of y from one of lanes. room: a row. */
static void resample_to(const job *j, char *y, char *x, char *room) {
  const gb_dtype lane = gb_lane_dtype(j->lane), to = (gb_dtype)j->y->dtype;
  char *result = to == lane ? y : room;
  resample_row(j, result, x);
  if (to != lane && !gb_was_stopped(j->call)) gb_lane_store(j->lane, y, to, 1, result, j->columns.m);
}

/* Ask for as much as rows first .. end - 1 of a plane have, so much further on: while a row is worked on in cache, a
 * processor's own prefetching waits. */
static void ask_ahead(const source *s, int64_t first, int64_t end) {
  enum { AHEAD = 8192, LINE = 64, MOST = 4096 };
  const int64_t bytes = (end - first) * s->bytes;
  const uintptr_t from = (uintptr_t)s->data + (uintptr_t)(first * s->bytes) + AHEAD;
  if (bytes > MOST) return;
  for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch((const void *)(from + (uintptr_t)at));
}

/* Where a plane shrinks: sums over windows of x, resampled; several rows at a time, since a load that overlaps two
 * stores just made waits until both are done. room: a row, and those rows. */
static void sum_first(const job *j, stretch s) {
  const gb_dtype lane = gb_lane_dtype(j->lane), from = (gb_dtype)j->x->dtype;
  const int64_t n = j->columns.n, lane_bytes = (int64_t)gb_lane_bytes(j->lane), row = j->wide * lane_bytes;
  const int64_t bytes = j->columns.m * (int64_t)gb_dtype_bytes((gb_dtype)j->y->dtype);
  const int64_t element = (int64_t)gb_dtype_bytes(from);
  const source plane = { s.x, n * element, -1, element, from };
  char *y = s.y, *sums = s.room + row;
  for (int64_t o = s.o, some; o < s.end; o += some) {
    some = s.end - o < j->at_once ? s.end - o : j->at_once;
    for (int64_t i = 0; i < some; i++) {
      if (o + i + 1 < s.end) ask_ahead(&plane, j->rows.first[o + i], j->rows.first[o + i + 1]);
      sum_rows(j, sums + i * row, lane, lane_bytes, &plane, o + i, n);
    }
    if (gb_was_stopped(j->call)) return;
    for (int64_t i = 0; i < some; i++, y += bytes) resample_to(j, y, sums + i * row, s.room);
  }
}

/* {---- a factor of 2 in linear modes, in registers ---- */

/* Columns that are doubled: element 2 i of a row of the result is far * x[i - 1] + near * x[i], element 2 i + 1 is
 * near * x[i] + far * x[i + 1]; the first is a sum of x[0] and x[1], the last, of x[n - 2] and x[n - 1] or, where there
 * is `one`, x[n - 1] alone. */
typedef struct doubling { float near, far; const float *first, *last; int64_t n; bool one; } doubling;

/* One or two rows of x, each with its weight in one or two rows of y. Behind a row of x is at least a vector more, of
 * any values. */
typedef struct pair { const float *x[2]; float weight[2][2]; char *y[2]; } pair;

/* A vector of the sum over rows of x from element i on. */
GB_ALWAYS_INLINE gb_vector sum_pair(const pair *p, int64_t count, const gb_vector *weight, int64_t i) {
  gb_vector x, sum;
  memcpy(&x, p->x[0] + i, sizeof x);
  sum = x * weight[0];
  if (count == 2) {
    memcpy(&x, p->x[1] + i, sizeof x);
    sum += x * weight[1];
  }
  return sum;
}

/* The vector one element before y, which follows x, and the one after x. */
GB_ALWAYS_INLINE gb_vector lanes_before(gb_vector x, gb_vector y) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_alignr_epi32((__m512i)y, (__m512i)x, GB_VECTOR - 1);
#else
  gb_vector_bits pick;
  for (uint32_t k = 0; k < GB_VECTOR; k++) pick[k] = k + GB_VECTOR - 1;
  return gb_pick_lanes(x, y, pick, true);
#endif
}
GB_ALWAYS_INLINE gb_vector lanes_after(gb_vector x, gb_vector y) {
#if defined(__AVX512BW__)
  return (gb_vector)_mm512_alignr_epi32((__m512i)y, (__m512i)x, 1);
#else
  gb_vector_bits pick;
  for (uint32_t k = 0; k < GB_VECTOR; k++) pick[k] = k + 1;
  return gb_pick_lanes(x, y, pick, true);
#endif
}

/* The first n of two vectors, fewer than there are, in y. */
GB_ALWAYS_INLINE void store_some(gb_dtype to, char *y, gb_wide x, int64_t n) {
#if defined(__AVX512BW__)
  const __mmask32 some = (1u << n) - 1;
  if (to == GB_FLOAT32) {
    _mm512_mask_storeu_ps(y, (__mmask16)some, (__m512)x.a);
    if (n > GB_VECTOR) _mm512_mask_storeu_ps(y + sizeof x.a, (__mmask16)(some >> GB_VECTOR), (__m512)x.b);
  } else
    _mm512_mask_storeu_epi16(y, some, (__m512i)(to == GB_FLOAT16 ? gb_wide_narrow_f16(x) : gb_wide_narrow_bf16(x)));
#else
  char at[sizeof x];
  gb_wide_store(to, at, 0, x, false);
  memcpy(y, at, (size_t)n * (to == GB_FLOAT32 ? 4 : 2));
#endif
}

/* Two vectors of results from those before, at and after a vector of x, in the order in which they are stored. */
GB_ALWAYS_INLINE gb_wide doubled_of(gb_dtype to, gb_vector near_weight, gb_vector far_weight, gb_vector before,
                                    gb_vector x, gb_vector after) {
  const gb_vector near = x * near_weight;
  const gb_wide sum = { near + before * far_weight, near + after * far_weight };
  return to == GB_BFLOAT16 ? sum : gb_wide_interleave(sum);
}

/* The first or the last element of a row: of elements i and i + 1 of x, or of one of them. */
GB_ALWAYS_INLINE void store_end(gb_dtype to, char *y, int64_t o, const pair *p, int64_t count, int64_t row, int64_t i,
                                const float *weight, bool one) {
  float sum = 0;
  for (int64_t k = 0; k < (one ? 1 : 2); k++) {
    float x = p->x[0][i + k] * p->weight[row][0];
    if (count == 2) x += p->x[1][i + k] * p->weight[row][1];
    sum += x * weight[k];
  }
  if (to == GB_FLOAT32) memcpy(y + 4 * o, &sum, 4);
  else {
    const uint16_t half = to == GB_FLOAT16 ? gb_float_to_float16(sum) : gb_float_to_bfloat16(sum);
    memcpy(y + 2 * o, &half, 2);
  }
}

/* `made` rows of y from `count` of x: vectors as they follow one another, of which each is the one before and after
 * its neighbours. */
GB_ALWAYS_INLINE void double_pair(gb_dtype to, const doubling *d, const pair *p, int64_t count, int64_t made) {
  const gb_vector near = gb_vector_of(d->near), far = gb_vector_of(d->far);
  gb_vector weight[2][2], before[2], here[2];
  for (int64_t r = 0; r < made; r++) {
    for (int k = 0; k < 2; k++) weight[r][k] = gb_vector_of(p->weight[r][k]);
    before[r] = here[r] = sum_pair(p, count, weight[r], 0);
  }
  int64_t i = 0;
  for (; i + GB_VECTOR <= d->n; i += GB_VECTOR)
    for (int64_t r = 0; r < made; r++) {
      const gb_vector next = sum_pair(p, count, weight[r], i + GB_VECTOR);
      gb_wide y = doubled_of(to, near, far, lanes_before(before[r], here[r]), here[r], lanes_after(here[r], next));
      gb_wide_store(to, p->y[r], 2 * i, y, false);
      before[r] = here[r], here[r] = next;
    }
  for (int64_t r = 0; r < made; r++) {
    gb_wide y = doubled_of(to, near, far, lanes_before(before[r], here[r]), here[r], lanes_after(here[r], here[r]));
    if (i < d->n) store_some(to, p->y[r] + 2 * i * (to == GB_FLOAT32 ? 4 : 2), y, 2 * (d->n - i));
    store_end(to, p->y[r], 0, p, count, r, 0, d->first, false);
    store_end(to, p->y[r], 2 * d->n - 1, p, count, r, d->n - (d->one ? 1 : 2), d->last, d->one);
  }
}

GB_ALWAYS_INLINE int double_counted(gb_dtype to, const doubling *d, const pair *p, int64_t count, int64_t made) {
  if (count == 2 && made == 2) double_pair(to, d, p, 2, 2);
  else if (count == 2) double_pair(to, d, p, 2, 1);
  else double_pair(to, d, p, 1, 1);
  return 0;
}

static doubling doubling_of(const gb_windows *t) {
  const float *odd = t->weight32 + t->begin[1];
  return (doubling){ .near = odd[0], .far = odd[1], .first = t->weight32, .last = t->weight32 + t->begin[t->m - 1],
                     .n = t->n, .one = t->begin[t->m] - t->begin[t->m - 1] == 1 };
}

/* Rows of 16 bits are widened into a ring in the room, one ahead of where they are read; rows at the end of x, behind
 * which nothing may be read, are copied there. */
static void double_rows(const job *j, stretch s) {
  enum { RING = 4 };
  const gb_dtype to = (gb_dtype)j->y->dtype, from = (gb_dtype)j->x->dtype;
  const int64_t n = j->columns.n, element = (int64_t)gb_dtype_bytes(from);
  const int64_t bytes = j->columns.m * (int64_t)gb_dtype_bytes(to);
  const char *last = gb_data(j->x) + (j->x->numel - n - GB_WIDE) * element;
  const gb_windows *t = &j->rows;
  const doubling d = doubling_of(&j->columns);
  char *y = s.y;
  for (int64_t o = s.o, next = 0, work = 0, made; o < s.end; o += made, y += made * bytes) {
    const int64_t first = t->first[o], count = t->begin[o + 1] - t->begin[o];
    made = count == 2 && o + 1 < s.end && t->first[o + 1] == first && t->same[o] > o + 1 ? 2 : 1;
    if (gb_long_work(j->call, &work, made * count * n)) return;
    pair p = { .y = { y, y + bytes } };
    for (next = next > first ? next : first; next <= first + count && next < t->n; next++)
      if (from != GB_FLOAT32 || s.x + next * n * element > last)
        gb_load_f32((float *)(void *)s.room + (next & (RING - 1)) * j->wide, s.x + next * n * element, from, 1, n);
    for (int64_t k = 0; k < count; k++) {
      const char *x = s.x + (first + k) * n * element;
      const bool direct = from == GB_FLOAT32 && x <= last;
      p.x[k] = (const float *)(const void *)(direct ? x : s.room + ((first + k) & (RING - 1)) * j->wide * 4);
      for (int64_t r = 0; r < made; r++) p.weight[r][k] = t->weight32[t->begin[o + r] + k];
    }
    GB_WIDE_FOR(to, double_counted, &d, &p, count, made);
  }
}

/* ----} */

/* Where it grows: rows of x, resampled, are kept in a ring, of which `next` is the first that is still to come. room:
 * one row and the ring. */
static void sum_last(const job *j, stretch s) {
  const gb_dtype lane = gb_lane_dtype(j->lane), to = (gb_dtype)j->y->dtype, from = (gb_dtype)j->x->dtype;
  const int64_t n = j->columns.n, m = j->columns.m, lane_bytes = (int64_t)gb_lane_bytes(j->lane);
  const int64_t bytes = (int64_t)gb_dtype_bytes(to), element = (int64_t)gb_dtype_bytes(from);
  const source ring = { s.room + j->wide * lane_bytes, j->wide * lane_bytes, j->ring - 1, lane_bytes, lane };
  char *y = s.y;
  for (int64_t o = s.o, next = 0; o < s.end && !gb_was_stopped(j->call); o++, y += m * bytes) {
    const int64_t first = j->rows.first[o], end = first + j->rows.begin[o + 1] - j->rows.begin[o];
    const int64_t ahead = end < j->rows.n && end - first < j->ring ? end + 1 : end;
    for (next = next > first ? next : first; next < ahead && !gb_was_stopped(j->call); next++) {
      const void *x = s.x + next * n * element;
      if (from != lane) gb_lane_load(j->lane, s.room, x, from, 1, n), x = s.room;
      resample_row(j, (char *)ring.data + (next & ring.mask) * ring.bytes, x);
    }
    sum_rows(j, y, to, bytes, &ring, o, m);
  }
}

/* Elements of a row copied to where they are the nearest. */
#define COPY_NEAREST(name, type)                                                                                       \
  static void name(const gb_windows *t, type *restrict y, const type *restrict x) {                                    \
    for GB_PIECES(at, n, t->m)                                                                                         \
      for (int64_t o = at; o < at + n; o++) y[o] = x[t->first[o]];                                                     \
  }
COPY_NEAREST(copy_16, uint16_t)
COPY_NEAREST(copy_32, uint32_t)
COPY_NEAREST(copy_64, uint64_t)

/* Each of n elements twice. */
#define COPY_TWICE(name, type, pair)                                                                                   \
  static void name(char *y, const type *restrict x, int64_t n) {                                                       \
    for GB_PIECES(at, count, n)                                                                                        \
      for (int64_t i = at; i < at + count; i++) {                                                                      \
        const pair both = (pair)x[i] << 8 * sizeof(type) | x[i];                                                       \
        memcpy(y + i * (int64_t)sizeof both, &both, sizeof both);                                                      \
      }                                                                                                                \
  }
COPY_TWICE(twice_16, uint16_t, uint32_t)
COPY_TWICE(twice_32, uint32_t, uint64_t)

/* Bytes of a row, by vectors, of which the last begins early enough to end with it. */
static void copy_row(char *restrict to, const char *restrict from, int64_t bytes) {
  gb_vector x;
  if (bytes < (int64_t)sizeof x) memcpy(to, from, (size_t)bytes);
  else for GB_PIECES(at, n, bytes)
    for (int64_t i = at; i < at + n; i += (int64_t)sizeof x) {
      const int64_t here = i + (int64_t)sizeof x > bytes ? bytes - (int64_t)sizeof x : i;
      memcpy(&x, from + here, sizeof x);
      memcpy(to + here, &x, sizeof x);
    }
}

/* Nearest elements. A row that has the same as the one before it is a copy of that. */
static void copy_nearest(const job *j, stretch s) {
  const gb_windows *t = &j->columns;
  const int64_t element = (int64_t)gb_dtype_bytes((gb_dtype)j->y->dtype), bytes = t->m * element;
  char *y = s.y;
  for (int64_t o = s.o, work = 0; o < s.end && !gb_was_stopped(j->call); o++, y += bytes) {
    const void *x = s.x + j->rows.first[o] * t->n * element;
    if (bytes <= GB_SHORT_ROW && gb_long_work(j->call, &work, t->m)) return;
    if (o > s.o && j->rows.first[o] == j->rows.first[o - 1]) copy_row(y, y - bytes, bytes);
    else if (j->doubled && element == 2) twice_16(y, x, t->n);
    else if (j->doubled && element == 4) twice_32(y, x, t->n);
    else if (element == 2) copy_16(t, (uint16_t *)(void *)y, x);
    else if (element == 4) copy_32(t, (uint32_t *)(void *)y, x);
    else copy_64(t, (uint64_t *)(void *)y, x);
  }
}

static void run_chunk(void *arg, int64_t chunk) {
  const job *j = arg;
  const int64_t rows = j->rows.m, plane = j->rows.n * j->columns.n * (int64_t)gb_dtype_bytes((gb_dtype)j->x->dtype);
  const int64_t bytes = j->columns.m * (int64_t)gb_dtype_bytes((gb_dtype)j->y->dtype);
  int64_t end = (chunk + 1) * j->per_chunk, some;
  if (end > j->count) end = j->count;
  for (int64_t row = chunk * j->per_chunk; row < end && !gb_was_stopped(j->call); row += some) {
    stretch s = { .x = gb_data(j->x) + row / rows * plane, .y = gb_data(j->y) + row * bytes,
                  .room = gb_scratch_room_of(&j->scratch, chunk), .o = row % rows };
    some = rows - s.o < end - row ? rows - s.o : end - row;
    s.end = s.o + some;
    if (j->copies) copy_nearest(j, s);
    else if (j->doubled) double_rows(j, s);
    else if (j->sums_first) sum_first(j, s);
    else sum_last(j, s);
  }
}

/* ====} */

/* Can results be rounded in registers? Those of float32 x may have any NaN. */
static bool is_direct(const job *j) {
#if defined(__AVX512BW__)
  return j->y->dtype != GB_BFLOAT16 || j->x->dtype == GB_BFLOAT16;
#else
  return j->y->dtype != GB_BFLOAT16;
#endif
}

/* Which sum comes first? By their multiply-adds, of which those along a row cost half as much again. A ring of rows
 * stays in cache. */
static bool sums_come_first(const job *j) {
  enum { RING_BYTES = 256 << 10 };
  const double down = (double)j->rows.begin[j->rows.m], along = 1.5 * (double)j->columns.begin[j->columns.m];
  if (j->rows.longest == 0 || j->ring * j->wide * (int64_t)gb_lane_bytes(j->lane) > RING_BYTES) return true;
  return down * (double)j->columns.n + along * (double)j->rows.m <=
         along * (double)j->rows.n + down * (double)j->columns.m;
}

/* Rows of a chunk: whole planes where they are small. */
static int64_t rows_per_chunk(const job *j) {
  const int64_t some = 16 * GB_CHUNK_ELEMENTS / (j->columns.n + j->columns.m);
  return some < 1 ? 1 : some > j->rows.m ? some - some % j->rows.m : some;
}

/* Is each of the nearest elements taken twice? */
static bool are_twice(const gb_windows *t) {
  bool twice = t->m == 2 * t->n;
  for GB_PIECES(at, n, twice ? t->m : 0)
    for (int64_t o = at; o < at + n; o++) twice = twice && t->first[o] == o / 2;
  return twice;
}

static gb_status run_rows(job *j) {
  enum { ROOM_BYTES = 16 << 10, MOST_AT_ONCE = 8 }; /* half of L1 */
  const int64_t m = j->columns.m, n = j->columns.n, most = m > n ? m : n;
  size_t room = 0;
  j->wide = (most + GB_WIDE + 15) / 16 * 16;
  j->count = j->y->numel / m;
  j->at_once = ROOM_BYTES / (j->wide * (int64_t)gb_lane_bytes(j->lane));
  j->at_once = j->at_once < 1 ? 1 : j->at_once < MOST_AT_ONCE ? j->at_once : MOST_AT_ONCE;
  j->per_chunk = rows_per_chunk(j);
  for (j->ring = 1; j->ring < j->rows.longest && !gb_work(1);) j->ring *= 2;
  if (j->copies) j->doubled = are_twice(&j->columns);
  else j->doubled = j->lane == GB_LANE_F32 && is_direct(j) && m <= GB_SHORT_ROW && j->rows.longest <= 2 &&
                    j->rows.same[0] >= j->rows.m - 1 && gb_windows_are_doubled(&j->columns);
  j->sums_first = sums_come_first(j);
  j->direct = is_direct(j);
  const int64_t rows = j->copies ? 0 : j->doubled ? 4 : 1 + (j->sums_first ? j->at_once : j->ring);
  const int64_t chunks = (j->count + j->per_chunk - 1) / j->per_chunk;
  gb_scratch_take(&room, rows * j->wide * (int64_t)gb_lane_bytes(j->lane));
  GB_TRY(gb_scratch_open_chunks(j->call, 0, room, chunks, &j->scratch));
  gb_parallel(j->call, chunks, run_chunk, j);
  gb_scratch_close(j->call, &j->scratch);
  return GB_OK;
}

/* The last two dims of x, by the tables that `backward` asks for. */
static gb_status run(gb_op_call *call, const gb_tensor *x, const gb_tensor *y, const gb_resampling *rows,
                     const gb_resampling *columns, bool backward) {
  if (y->numel == 0) return GB_OK;
  job j = { .call = call, .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)y->dtype), .x = x, .y = y };
  j.copies = !backward && x->dtype == y->dtype &&
             (rows->mode == GB_RESAMPLE_NEAREST || rows->mode == GB_RESAMPLE_NEAREST_EXACT);
  const int64_t weights[2] = { gb_windows_weights(rows), gb_windows_weights(columns) };
  if (gb_was_stopped(call)) return GB_OK;
  size_t bytes = 0;
  const gb_windows_room first = gb_windows_take(&bytes, y->shape[y->ndim - 2], weights[0], false);
  const gb_windows_room second = gb_windows_take(&bytes, y->shape[y->ndim - 1], weights[1], j.lane == GB_LANE_F32);
  gb_block *tables = gb_cpu_scratch(call, bytes);
  if (!tables) return GB_EMEMORY;
  gb_status status = GB_OK;
  if (gb_windows_fill(call, &j.rows, &first, gb_block_data(tables), rows, backward) &&
      gb_windows_fill(call, &j.columns, &second, gb_block_data(tables), columns, backward))
    status = run_rows(&j);
  gb_cpu_scratch_free(call, tables);
  return status;
}

static gb_status resample_planes(gb_op_call *call) {
  const gb_attrs_resample_planes *attrs = GB_ATTRS(call, resample_planes);
  const gb_tensor *x = GB_IN(call, resample_planes)->x, *y = GB_OUT(call, resample_planes)->y;
  const int64_t *in = x->shape + x->ndim - 2, *out = y->shape + y->ndim - 2;
  const gb_resampling rows = GB_RESAMPLING(attrs, in[0], out[0]), columns = GB_RESAMPLING(attrs, in[1], out[1]);
  return run(call, x, y, &rows, &columns, false);
}

static gb_status resample_planes_backward(gb_op_call *call) {
  const gb_attrs_resample_planes_backward *attrs = GB_ATTRS(call, resample_planes_backward);
  const gb_tensor *grad = GB_IN(call, resample_planes_backward)->grad;
  const gb_tensor *dx = GB_OUT(call, resample_planes_backward)->dx;
  const int64_t *out = grad->shape + grad->ndim - 2, *in = dx->shape + dx->ndim - 2;
  const gb_resampling rows = GB_RESAMPLING(attrs, in[0], out[0]), columns = GB_RESAMPLING(attrs, in[1], out[1]);
  return run(call, grad, dx, &rows, &columns, true);
}

void GB_CPU_FILL(resample_planes)(gb_backend *backend);
void GB_CPU_FILL(resample_planes)(gb_backend *backend) {
  backend->run[GB_OP_resample_planes] = resample_planes;
  backend->run[GB_OP_resample_planes_backward] = resample_planes_backward;
}
