/* cpu/resample.c - resample and its gradient: every element along one dim a weighted sum of a window of the row.
 *
 * The windows are found once, as a table; the gradient's table is the same one turned around, so both are one loop that
 * writes every element once, in a fixed order. Where elements beside each other share a window (inner dims) sums run
 * along them; else a row is brought into lanes and its elements are gathered: of float32, where windows follow one
 * another closely, by permuting one or two vectors of the row. Traffic: x is read once per window it lies in, mostly
 * from cache, the result written once. */
#include <string.h>

#include "base/resample.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"
#include "cpu/wide.h"

/* Elements side by side from which sums run along them. */
enum { LEAST_INNER = 16 };

/* The longest windows that are read by permutations. */
enum { MOST_PERMUTED = 32 };

/* Pieces between two looks for a stop. */
enum { PIECES_AT_ONCE = 64 };

/* Levels that permute a vector by numbers in another. */
#if defined(__AVX512BW__) || defined(GB_WIDE_AVX2)
enum { PERMUTES = 1 };
#else
enum { PERMUTES = 0 };
#endif

/* Elements o .. end - 1 of a float32 row. vectors > 0: they are GB_VECTOR, whose windows of `count` elements begin
 * within so many vectors from `from` on; the lanes they begin at are pick[0], the weights of element k of each window
 * weight[k]. 0: gathered one by one. */
typedef struct piece {
  int64_t o, end, from, count;
  const gb_vector_bits *pick;
  const gb_vector *weight;
  int vectors;
} piece;

/* What element o of the result reads: elements first[o] .. of the row, their weights from weight[begin[o]] to
 * weight[begin[o + 1]]. Windows from o to same[o] - 1 have as many elements. pieces: a float32 row from its start. */
typedef struct table {
  int64_t *first, *begin, *same;
  double *weight;
  float *weight32;
  piece *pieces;
  gb_vector_bits *pick;
  gb_vector *picked;
  int64_t count, picks, weights; /* how many of pieces, pick and picked are filled */
} table;

/* One resampling as all its chunks see it: x [outer, n, inner] -> y [outer, m, inner]. */
typedef struct job {
  gb_op_call *call;
  gb_lane lane;
  const gb_tensor *x, *y;
  int64_t outer, n, m, inner, per_chunk, count;  /* count: rows of the result that a chunk has per_chunk of */
  table t;
  gb_scratch scratch;
} job;

/* {==== the table ==== */

/* So many windows and weights of the table: is a stop asked for? What was begun is then left as it is. */
enum { WINDOW_STEP = 8, WEIGHT_STEP = 4 };
static bool table_work(int64_t windows, int64_t weights) {
  return gb_work(windows * WINDOW_STEP + weights * WEIGHT_STEP);
}

/* gb_resample_bounds_of, as one function for all: copies of it in several loops may be contracted to fused operations
 * each in its own way, and where a window ends on an element, would disagree about it. */
static __attribute__((noinline)) gb_resample_window bounds_of(const gb_resampling *r, int64_t o) {
  return gb_resample_bounds_of(r, o);
}

/* gb_resample_window_of, which may be as long as the row. */
static gb_resample_window window_of(const gb_resampling *r, int64_t o) {
  gb_resample_window w = bounds_of(r, o);
  for (int64_t k = 0; r->antialias && k < w.count && !table_work(0, 1); k++)
    w.total += gb_resample_smooth(r, w.centre, w.first + k);
  return w;
}

/* The windows of r in order. */
static void fill_forward(const gb_resampling *r, table *t) {
  int64_t at = 0;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) {
    gb_resample_window w = window_of(r, o);
    t->first[o] = w.first;
    t->begin[o] = at;
    for (int64_t k = 0; k < w.count && !table_work(0, 1); k++)
      t->weight[at++] = gb_resample_weight(r, &w, w.first + k);
  }
  t->begin[r->out] = at;
}

/* The same turned around: the results whose windows an element of the row lies in, which follow one another. */
static void fill_backward(const gb_resampling *r, table *t) {
  int64_t low = 0, high = 0, at = 0;
  for (int64_t i = 0; i < r->in; i++) {
    for (; low < r->out; low++) {
      gb_resample_window w = bounds_of(r, low);
      if (table_work(1, 0)) return;
      if (w.first + w.count > i) break;
    }
    for (; high < r->out && bounds_of(r, high).first <= i; high++)
      if (table_work(1, 0)) return;
    t->first[i] = low;
    t->begin[i] = at;
    if (table_work(1, 0)) return;
    if (high > low) at += high - low;
  }
  t->begin[r->in] = at;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) {
    gb_resample_window w = window_of(r, o);
    for (int64_t i = w.first; i < w.first + w.count && !table_work(0, 1); i++)
      t->weight[t->begin[i] + o - t->first[i]] = gb_resample_weight(r, &w, i);
  }
}

/* The weights of all windows together, of some of them once a stop is asked for. */
static int64_t count_weights(const gb_resampling *r) {
  int64_t count = 0;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) count += bounds_of(r, o).count;
  return count;
}

/* Elements from o on as a piece by permutations, if their windows lie close enough within a row of n. */
static bool permuted_piece(table *t, int64_t n, int64_t o) {
  int64_t count = t->begin[o + 1] - t->begin[o], span = t->first[o + GB_VECTOR - 1] - t->first[o];
  int vectors = span < GB_VECTOR ? 1 : 2;
  int64_t last = n - count + 1 - vectors * GB_VECTOR, from = t->first[o] < last ? t->first[o] : last;
  if (count > MOST_PERMUTED || span >= GB_WIDE || last < 0) return false;
  t->pieces[t->count++] = (piece){ o, o + GB_VECTOR, from, count, t->pick + t->picks, t->picked + t->weights, vectors };
  for (int64_t lane = 0; lane < GB_VECTOR && !table_work(0, count); lane++) {
    t->pick[t->picks][lane] = (uint32_t)(t->first[o + lane] - from);
    for (int64_t k = 0; k < count; k++)
      t->picked[t->weights + k][lane] = (float)t->weight[t->begin[o + lane] + k];
  }
  t->picks++, t->weights += count;
  return true;
}

/* Elements o .. end - 1 one by one, in pieces of a tile, with those before them if these are too. */
static void add_gathered(table *t, int64_t o, int64_t end) {
  for (int64_t stop; o < end && !table_work(1, 0); o = stop) {
    piece *p = t->count > 0 ? t->pieces + t->count - 1 : NULL;
    stop = end - o < GB_TILE ? end : o + GB_TILE;
    if (p && p->vectors == 0 && stop - p->o <= GB_TILE) p->end = stop;
    else t->pieces[t->count++] = (piece){ .o = o, .end = stop };
  }
}

/* Pieces of rows of n for m results: vectors of windows of one length, of which the last of a run begins early enough
 * to end with it, and writes some elements a second time. */
static void fill_pieces(table *t, int64_t n, int64_t m) {
  for (int64_t o = 0, stop; o < m && !table_work(1, 0); o = stop) {
    stop = t->same[o];
    int64_t at = o;
    for (; PERMUTES && stop - o >= GB_VECTOR && at < stop && !table_work(1, 0); at += GB_VECTOR)
      if (!permuted_piece(t, n, stop - at < GB_VECTOR ? stop - GB_VECTOR : at)) break;
    add_gathered(t, at, stop);
  }
}

/* ====} */

/* {==== the loops ==== */

/* n float32 elements of a sum of `count` rows, each `inner` elements after the one before it. */
static void sum_float_rows(float *restrict y, const float *restrict x, int64_t inner, int64_t n,
                           const float *restrict weight, int64_t count) {
  const float *x1 = x + inner, *x2 = x1 + inner, *x3 = x2 + inner;
  if (count == 1)
    for (int64_t i = 0; i < n; i++) y[i] = 0 + x[i] * weight[0];
  else if (count == 2)
    for (int64_t i = 0; i < n; i++) y[i] = 0 + x[i] * weight[0] + x1[i] * weight[1];
  else if (count == 4)
    for (int64_t i = 0; i < n; i++)
      y[i] = 0 + x[i] * weight[0] + x1[i] * weight[1] + x2[i] * weight[2] + x3[i] * weight[3];
  else {
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t k = 0; k < count && !gb_work(n); k++)
      for (int64_t i = 0; i < n; i++) y[i] += x[k * inner + i] * weight[k];
    return;
  }
  gb_work(n * count);
}

/* Row `row` of `inner` elements side by side, a tile of them at a time. */
static void sum_rows(const job *j, int64_t row) {
  double sum[GB_TILE], room[GB_TILE]; /* or that many float32 */
  int64_t outer = row / j->m, o = row % j->m, xb = (int64_t)gb_dtype_bytes((gb_dtype)j->x->dtype);
  int64_t yb = (int64_t)gb_dtype_bytes((gb_dtype)j->y->dtype);
  const double *weight = j->t.weight + j->t.begin[o];
  int64_t count = j->t.begin[o + 1] - j->t.begin[o];
  char *to = gb_data(j->y) + row * j->inner * yb;
  for (int64_t at = 0; at < j->inner; at += GB_TILE) {
    int64_t n = j->inner - at < GB_TILE ? j->inner - at : GB_TILE;
    const char *x = gb_data(j->x) + ((outer * j->n + j->t.first[o]) * j->inner + at) * xb;
    if (j->lane == GB_LANE_F32 && (xb == 4 || count * n <= 2 * GB_TILE)) {
      const float *from = (const float *)(const void *)(xb == 4 ? x : (char *)room);
      float *sums = yb == 4 ? (float *)(void *)to + at : (float *)(void *)sum;
      for (int64_t k = 0; k < count && xb == 2; k++)
        gb_load_f32((float *)(void *)room + k * n, x + k * j->inner * xb, (gb_dtype)j->x->dtype, 1, n);
      sum_float_rows(sums, from, xb == 4 ? j->inner : n, n, j->t.weight32 + j->t.begin[o], count);
      if (yb == 2) gb_store_f32(to + at * yb, (gb_dtype)j->y->dtype, 1, sums, n);
      continue;
    }
    memset(sum, 0, (size_t)n * gb_lane_bytes(j->lane));
    for (int64_t k = 0; k < count && !gb_work(n); k++) {
      const void *from = x + k * j->inner * xb;
      if (j->x->dtype != gb_lane_dtype(j->lane))
        gb_lane_load(j->lane, room, from, (gb_dtype)j->x->dtype, 1, n), from = room;
      gb_row_add(j->lane, sum, from, n, weight[k]);
    }
    gb_lane_store(j->lane, to + at * yb, (gb_dtype)j->y->dtype, 1, sum, n);
  }
}

/* Elements o .. end - 1 of a row y, each so many numbers beside each other, from a row x. Windows of one and two
 * elements, nearly all there are, have loops of their own. */
#define GATHER(name, real, weights)                                                                                    \
  static void name(const table *t, real *restrict y, const real *restrict x, int64_t o, int64_t end, int64_t inner) {  \
    for (int64_t stop; o < end; o = stop) {                                                                            \
      const int64_t *first = t->first, count = t->begin[o + 1] - t->begin[o];                                          \
      const real *restrict w = t->weights + t->begin[o] - o * count;                                                   \
      stop = t->same[o] < end ? t->same[o] : end;                                                                      \
      if (inner == 1 && count == 1)                                                                                    \
        for (int64_t i = o; i < stop; i++) y[i] = 0 + x[first[i]] * w[i];                                              \
      else if (inner == 1 && count == 2)                                                                               \
        for (int64_t i = o; i < stop; i++) y[i] = 0 + x[first[i]] * w[2 * i] + x[first[i] + 1] * w[2 * i + 1];         \
      else                                                                                                             \
        for (int64_t i = o * inner; i < stop * inner; i++) {                                                           \
          const real *from = x + first[i / inner] * inner + i % inner, *weight = w + i / inner * count;                \
          real sum = 0;                                                                                                \
          for GB_PIECES(at, n, count)                                                                                  \
            for (int64_t k = at; k < at + n; k++) sum += from[k * inner] * weight[k];                                  \
          y[i] = sum;                                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
  }
GATHER(gather_f32, float, weight32)
GATHER(gather_f64, double, weight)
#undef GATHER

/* Lanes of low, or, numbered on, of high. */
GB_ALWAYS_INLINE gb_vector pick_lanes(gb_vector low, gb_vector high, gb_vector_bits pick, bool two) {
#ifdef __clang__
  gb_vector y;
  for (int i = 0; i < GB_VECTOR; i++)
    y[i] = two && pick[i] >= (uint32_t)GB_VECTOR ? high[pick[i] - GB_VECTOR] : low[pick[i]];
  return y;
#else
  return two ? __builtin_shuffle(low, high, pick) : __builtin_shuffle(low, pick);
#endif
}

/* A piece by permutations. */
GB_ALWAYS_INLINE void permute(const piece *p, float *restrict y, const float *restrict x, int64_t count, bool two) {
  gb_vector sum = { 0 }, low, high = { 0 };
  for (int64_t k = 0; k < count; k++) {
    memcpy(&low, x + p->from + k, sizeof low);
    if (two) memcpy(&high, x + p->from + k + GB_VECTOR, sizeof high);
    sum += pick_lanes(low, high, *p->pick, two) * p->weight[k];
  }
  memcpy(y + p->o, &sum, sizeof sum);
}

/* Pieces from p on that are alike; returns the first that is not. Nearest and linear modes, nearly all there is, have
 * loops of their own. */
static const piece *permute_alike(const piece *p, const piece *end, float *y, const float *x) {
  const int64_t count = p->count, vectors = p->vectors;
#define ALIKE(loop_count, two) for (; p < end && p->count == count && p->vectors == vectors; p++) \
    permute(p, y, x, loop_count, two)
  if (vectors == 1 && count == 1) ALIKE(1, false);
  else if (vectors == 1 && count == 2) ALIKE(2, false);
  else if (vectors == 1) ALIKE(count, false);
  else if (count == 2) ALIKE(2, true);
  else if (count == 4) ALIKE(4, true);
  else ALIKE(count, true);
#undef ALIKE
  return p;
}

/* A float32 row by its pieces. */
static void gather_pieces(const job *j, float *y, const float *x) {
  const piece *p = j->t.pieces, *end = p + j->t.count;
  while (p < end) {
    const piece *next = end - p < PIECES_AT_ONCE ? end : p + PIECES_AT_ONCE, *first = p;
    if (p->vectors > 0) p = permute_alike(p, next, y, x);
    else gather_f32(&j->t, y, x, p->o, p->end, 1), p++;
    if (gb_work(j->t.begin[p[-1].end] - j->t.begin[first->o])) return;
  }
}

/* A row of m elements, each a few side by side, in lanes. */
static void gather_row(const job *j, char *y, const char *x) {
  if (j->t.pieces) gather_pieces(j, (float *)(void *)y, (const float *)(const void *)x);
  for (int64_t o = j->t.pieces ? j->m : 0, end; o < j->m; o = end) {
    end = j->m - o < GB_TILE ? j->m : o + GB_TILE;
    if (gb_work((j->t.begin[end] - j->t.begin[o]) * j->inner)) return;
    if (j->lane == GB_LANE_F32)
      gather_f32(&j->t, (float *)(void *)y, (const float *)(const void *)x, o, end, j->inner);
    else gather_f64(&j->t, (double *)(void *)y, (const double *)(const void *)x, o, end, j->inner);
  }
}

/* Rows that are brought into lanes and back at once: as many as stay in L1. */
static int64_t rows_at_once(const job *j) {
  enum { MOST_ROWS = 16, ELEMENTS = 4096 };
  int64_t rows = ELEMENTS / ((j->n + j->m) * j->inner);
  return rows < 1 ? 1 : rows < MOST_ROWS ? rows : MOST_ROWS;
}

/* `rows` rows from `first` on: where they lie, or brought into lanes as a whole. */
static void gather_rows(const job *j, int64_t first, int64_t rows, char *room) {
  const gb_dtype lane = gb_lane_dtype(j->lane), from = (gb_dtype)j->x->dtype, to = (gb_dtype)j->y->dtype;
  const int64_t from_count = j->n * j->inner, to_count = j->m * j->inner, bytes = (int64_t)gb_lane_bytes(j->lane);
  char *x = gb_data(j->x) + first * from_count * (int64_t)gb_dtype_bytes(from);
  char *y = gb_data(j->y) + first * to_count * (int64_t)gb_dtype_bytes(to);
  char *sums = to == lane ? y : room + rows * from_count * bytes;
  if (from != lane) gb_lane_load(j->lane, room, x, from, 1, rows * from_count), x = room;
  for (int64_t row = 0; row < rows; row++)
    gather_row(j, sums + row * to_count * bytes, x + row * from_count * bytes);
  if (to != lane && !gb_was_stopped(j->call)) gb_lane_store(j->lane, y, to, 1, sums, rows * to_count);
}

static void run_chunk(void *arg, int64_t chunk) {
  const job *j = arg;
  char *room = gb_scratch_room_of(&j->scratch, chunk);
  int64_t end = (chunk + 1) * j->per_chunk, at_once = j->inner >= LEAST_INNER ? 1 : rows_at_once(j);
  if (end > j->count) end = j->count;
  for (int64_t row = chunk * j->per_chunk; row < end; row += at_once) {
    if (gb_was_stopped(j->call)) return;
    if (j->inner >= LEAST_INNER) sum_rows(j, row);
    else gather_rows(j, row, end - row < at_once ? end - row : at_once, room);
  }
}

/* ====} */

/* Scratch for the table of so many weights, and for rows in lanes. */
static gb_status open_job(job *j, int64_t weights, int64_t chunks) {
  size_t shared = 0, room = 0;
  size_t first = gb_scratch_take(&shared, j->m * 8), begin = gb_scratch_take(&shared, (j->m + 1) * 8);
  size_t same = gb_scratch_take(&shared, j->m * 8);
  size_t weight = gb_scratch_take(&shared, weights * 8), weight32 = gb_scratch_take(&shared, weights * 4);
  const bool cut = j->lane == GB_LANE_F32 && j->inner == 1;
  size_t pieces = 0, pick = 0, picked = 0;
  if (cut) {
    int64_t most = 4 * (j->m / GB_VECTOR) + 2 * (j->m / GB_TILE) + 2;
    pieces = gb_scratch_take(&shared, most * (int64_t)sizeof(piece));
    pick = gb_scratch_take(&shared, 2 * j->m * 4), picked = gb_scratch_take(&shared, 2 * weights * 4);
  }
  if (j->inner < LEAST_INNER)
    gb_scratch_take(&room, rows_at_once(j) * (j->n + j->m) * j->inner * (int64_t)gb_lane_bytes(j->lane));
  GB_TRY(gb_scratch_open_chunks(j->call, shared, room, chunks, &j->scratch));
  char *base = j->scratch.shared;
  j->t = (table){ .first = (int64_t *)(void *)(base + first), .begin = (int64_t *)(void *)(base + begin),
                  .same = (int64_t *)(void *)(base + same), .weight = (double *)(void *)(base + weight),
                  .weight32 = (float *)(void *)(base + weight32) };
  if (!cut) return GB_OK;
  j->t.pieces = (piece *)(void *)(base + pieces);
  j->t.pick = (gb_vector_bits *)(void *)(base + pick), j->t.picked = (gb_vector *)(void *)(base + picked);
  return GB_OK;
}

/* Fill the table. false: a stop is asked for. */
static bool fill_table(job *j, const gb_resampling *r, bool backward) {
  const int64_t *begin = j->t.begin;
  if (backward) fill_backward(r, &j->t);
  else fill_forward(r, &j->t);
  if (gb_was_stopped(j->call)) return false;
  for GB_PIECES(at, n, begin[j->m])
    for (int64_t i = at; i < at + n; i++) j->t.weight32[i] = (float)j->t.weight[i];
  for (int64_t o = j->m - 1; o >= 0 && !gb_long_loop(o); o--) {
    bool alike = o + 1 < j->m && begin[o + 2] - begin[o + 1] == begin[o + 1] - begin[o];
    j->t.same[o] = alike ? j->t.same[o + 1] : o + 1;
  }
  if (j->t.pieces && !gb_was_stopped(j->call)) fill_pieces(&j->t, j->n, j->m);
  return !gb_was_stopped(j->call);
}

/* x along `named` by the table that `backward` asks for. */
static gb_status run(gb_op_call *call, const gb_tensor *x, const gb_tensor *y, int64_t named, const gb_resampling *r,
                     bool backward) {
  if (y->numel == 0) return GB_OK;
  int dim = gb_wrap_dim(named, x->ndim);
  job j = { .call = call, .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)y->dtype), .x = x, .y = y, .outer = 1,
            .n = x->shape[dim], .m = y->shape[dim], .inner = 1 };
  for (int i = 0; i < dim; i++) j.outer *= x->shape[i];
  for (int i = dim + 1; i < x->ndim; i++) j.inner *= x->shape[i];
  int64_t weights = count_weights(r);
  if (gb_was_stopped(call)) return GB_OK;
  bool along = j.inner >= LEAST_INNER;
  int64_t cost = along ? j.inner : (j.n + j.m) * j.inner;
  j.count = along ? j.outer * j.m : j.outer;
  j.per_chunk = cost < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / cost : 1;
  const int64_t chunks = (j.count + j.per_chunk - 1) / j.per_chunk;
  GB_TRY(open_job(&j, weights, chunks));
  if (fill_table(&j, r, backward)) gb_parallel(call, chunks, run_chunk, &j);
  gb_scratch_close(call, &j.scratch);
  return GB_OK;
}

/* The size of a tensor along a dim that an attribute names. */
static int64_t size_along(const gb_tensor *t, int64_t dim) { return t->shape[gb_wrap_dim(dim, t->ndim)]; }

static gb_status resample(gb_op_call *call) {
  const gb_attrs_resample *attrs = GB_ATTRS(call, resample);
  const gb_tensor *x = GB_IN(call, resample)->x, *y = GB_OUT(call, resample)->y;
  int64_t dim = attrs->dim.integer;
  gb_resampling r = GB_RESAMPLING(attrs, size_along(x, dim), size_along(y, dim));
  return run(call, x, y, dim, &r, false);
}

static gb_status resample_backward(gb_op_call *call) {
  const gb_attrs_resample_backward *attrs = GB_ATTRS(call, resample_backward);
  const gb_tensor *grad = GB_IN(call, resample_backward)->grad, *dx = GB_OUT(call, resample_backward)->dx;
  int64_t dim = attrs->dim.integer;
  gb_resampling r = GB_RESAMPLING(attrs, size_along(dx, dim), size_along(grad, dim));
  return run(call, grad, dx, dim, &r, true);
}

void GB_CPU_FILL(resample)(gb_backend *backend);
void GB_CPU_FILL(resample)(gb_backend *backend) {
  backend->run[GB_OP_resample] = resample;
  backend->run[GB_OP_resample_backward] = resample_backward;
}
