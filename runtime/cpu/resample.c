/* cpu/resample.c - resample and its gradient: every element along one dim a weighted sum of a window of the row.
 *
 * Where elements beside each other share a window (inner dims) sums run along them; else a row is brought into lanes
 * and computed by cpu/windows.c. Traffic: x is read once per window it lies in, mostly from cache, the result written
 * once. */
#include <string.h>

#include "cpu/walk.h"
#include "cpu/windows.h"

/* Elements side by side from which sums run along them. */
enum { LEAST_INNER = 16 };

/* One resampling as all its chunks see it: x [outer, n, inner] -> y [outer, m, inner]. */
typedef struct job {
  gb_op_call *call;
  gb_lane lane;
  const gb_tensor *x, *y;
  int64_t outer, n, m, inner, per_chunk, count;  /* count: rows of the result that a chunk has per_chunk of */
  gb_windows t;
  gb_scratch scratch;
} job;

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

/* A row of m elements, each a few side by side, in lanes. */
static void gather_row(const job *j, char *y, const char *x) {
  if (j->t.pieces) gb_windows_row_f32(&j->t, (float *)(void *)y, (const float *)(const void *)x);
  for (int64_t o = j->t.pieces ? j->m : 0, end; o < j->m; o = end) {
    end = j->m - o < GB_TILE ? j->m : o + GB_TILE;
    if (gb_work((j->t.begin[end] - j->t.begin[o]) * j->inner)) return;
    if (j->lane == GB_LANE_F32)
      gb_windows_gather_f32(&j->t, (float *)(void *)y, (const float *)(const void *)x, o, end, j->inner);
    else gb_windows_gather_f64(&j->t, (double *)(void *)y, (const double *)(const void *)x, o, end, j->inner);
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

/* x along `named` by the table that `backward` asks for. */
static gb_status run(gb_op_call *call, const gb_tensor *x, const gb_tensor *y, int64_t named, const gb_resampling *r,
                     bool backward) {
  if (y->numel == 0) return GB_OK;
  int dim = gb_wrap_dim(named, x->ndim);
  job j = { .call = call, .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)y->dtype), .x = x, .y = y, .outer = 1,
            .n = x->shape[dim], .m = y->shape[dim], .inner = 1 };
  for (int i = 0; i < dim; i++) j.outer *= x->shape[i];
  for (int i = dim + 1; i < x->ndim; i++) j.inner *= x->shape[i];
  int64_t weights = gb_windows_weights(r);
  if (gb_was_stopped(call)) return GB_OK;
  bool along = j.inner >= LEAST_INNER;
  int64_t cost = along ? j.inner : (j.n + j.m) * j.inner;
  j.count = along ? j.outer * j.m : j.outer;
  j.per_chunk = cost < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / cost : 1;
  const int64_t chunks = (j.count + j.per_chunk - 1) / j.per_chunk;
  size_t shared = 0, room = 0;
  gb_windows_room table = gb_windows_take(&shared, j.m, weights, j.lane == GB_LANE_F32 && j.inner == 1);
  if (!along) gb_scratch_take(&room, rows_at_once(&j) * (j.n + j.m) * j.inner * (int64_t)gb_lane_bytes(j.lane));
  GB_TRY(gb_scratch_open_chunks(call, shared, room, chunks, &j.scratch));
  if (gb_windows_fill(call, &j.t, &table, j.scratch.shared, r, backward)) gb_parallel(call, chunks, run_chunk, &j);
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
