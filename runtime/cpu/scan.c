/* cpu/scan.c - running products and extremes along a dim, the gradient of products, and positions among sorted values.
 *
 * A row is brought into float64 (or int64), gone through once and rounded on the way out, so a product of 16-bit
 * floats is rounded once. Work is cut into rows by shape, so any number of threads gives the same bits. */
#include <float.h>
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"

/* {==== rows ==== */

/* Rows of x to rows of out. `other`: what a row also reads (second), or writes: indices. */
typedef struct job {
  gb_lane lane;
  gb_rows x, other, out;
  bool reads_other, has_other, largest;
  bool (*row)(const struct job *j, void *x, void *other, int64_t n);   /* false: load x again, for `again` */
  void (*again)(void *x, void *other, int64_t n);
  gb_row_plan plan;
  gb_scratch scratch;          /* rooms of two buffers */
} job;

static void run_rows(void *arg, int64_t chunk) {
  const job *j = arg;
  char *x = gb_scratch_room_of(&j->scratch, chunk), *other = x + j->scratch.room_bytes / 2;
  gb_lane lane = j->reads_other ? j->lane : GB_LANE_I64;
  int64_t n = j->x.length, first = chunk * j->plan.chunk, end = first + j->plan.chunk;
  if (end > j->x.count) end = j->x.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < j->plan.batch ? end - first : j->plan.batch;
    gb_rows_load(&j->x, j->lane, first, count, x);
    if (j->reads_other) gb_rows_load(&j->other, lane, first, count, other);
    for (int64_t i = 0; i < count; i++) {
      char *own = x + (size_t)(i * n) * 8, *second = other + (size_t)(i * n) * 8;
      if (j->row(j, own, second, n)) continue;
      gb_rows_load(&j->x, j->lane, first + i, 1, own);
      j->again(own, second, n);
    }
    gb_rows_store(&j->out, j->lane, first, count, x);
    if (j->has_other && !j->reads_other) gb_rows_store(&j->other, lane, first, count, other);
  }
}

static gb_status run(gb_op_call *call, job *j) {
  if (j->x.count * j->x.length == 0) return GB_OK;
  j->plan = gb_row_plan_for(&j->x);
  GB_TRY(gb_scratch_open_chunks(call, 0, 2 * 8 * (size_t)(j->plan.batch * j->x.length), j->plan.chunks, &j->scratch));
  gb_parallel(call, j->plan.chunks, run_rows, j);
  gb_scratch_close(call, &j->scratch);
  return GB_OK;
}

static gb_lane lane_of(const gb_tensor *t) { return gb_dtype_is_float((gb_dtype)t->dtype) ? GB_LANE_F64 : GB_LANE_I64; }

/* ====} */

/* {==== products ==== */

static bool product_row(const job *j, void *x, void *other, int64_t n) {
  double *real = x;
  uint64_t *whole = x;
  (void)other;
  if (j->lane == GB_LANE_I64)
    for (int64_t i = 1; i < n && !gb_long_loop(i); i++) whole[i] *= whole[i - 1];
  else
    for (int64_t i = 1; i < n && !gb_long_loop(i); i++) real[i] *= real[i - 1];
  return true;
}

static gb_status cumprod(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cumprod)->x, *y = GB_OUT(call, cumprod)->y;
  int dim = gb_wrap_dim(GB_ATTRS(call, cumprod)->dim.integer, x->ndim);
  job j = { .lane = lane_of(y), .x = gb_rows_of(x, dim), .out = gb_rows_of(y, dim), .row = product_row };
  return run(call, &j);
}

/* dx[i] is the product of all before x[i], times s[i] = g[i] + x[i + 1] s[i + 1]: no division, so zeros are no
 * exception. */
static bool product_gradient_row(const job *j, void *grad, void *other, int64_t n) {
  double *g = grad, before = 1;
  const double *x = other;
  bool finite = true;
  (void)j;
  for (int64_t i = n - 2; i >= 0 && !gb_long_loop(i); i--) g[i] += x[i + 1] * g[i + 1];
  for (int64_t i = 0; i < n && !gb_long_loop(i); i++) {
    g[i] *= before;
    finite &= fabs(g[i]) <= DBL_MAX;
    before *= x[i];
  }
  return finite;
}

/* The same of a row in which a product overflowed though, perhaps, no gradient does. If all numbers are finite: up to
 * the first 0 dx[i] is the sum of g[k] y[k] from k = i on, divided by x[i], with the products y as forward finds them;
 * there it is as above; after it, it is 0. */
static void product_gradient_again(void *grad, void *other, int64_t n) {
  double *g = grad, before = 1, sum = 0;
  const double *x = other;
  int64_t zero = 0;
  bool finite = true;
  for (int64_t i = 0; i < n && !gb_long_loop(i); i++) finite &= fabs(g[i]) <= DBL_MAX && fabs(x[i]) <= DBL_MAX;
  if (!finite) {
    product_gradient_row(NULL, grad, other, n);
    return;
  }
  while (zero < n && x[zero] != 0 && !gb_long_loop(zero)) zero++;
  for (int64_t i = n - 1; i >= zero && !gb_long_loop(i); i--) {
    sum = g[i] + (i + 1 < n && x[i + 1] != 0 ? x[i + 1] * sum : 0);
    g[i] = 0;
  }
  for (int64_t i = 0; i < zero && !gb_long_loop(i); i++) {
    before *= x[i];
    if (g[i] != 0) g[i] *= before;
  }
  if (zero < n && before != 0 && sum != 0) g[zero] = before * sum;
  sum = 0;
  for (int64_t i = zero - 1; i >= 0 && !gb_long_loop(i); i--) {
    if (fabs(sum) <= DBL_MAX) sum += g[i]; /* inf - inf is none of these sums */
    g[i] = sum / x[i];
  }
}

static gb_status cumprod_backward(gb_op_call *call) {
  const gb_in_cumprod_backward *in = GB_IN(call, cumprod_backward);
  const gb_tensor *dx = GB_OUT(call, cumprod_backward)->dx;
  int dim = gb_wrap_dim(GB_ATTRS(call, cumprod_backward)->dim.integer, dx->ndim);
  job j = { .lane = GB_LANE_F64, .x = gb_rows_of(in->grad, dim), .other = gb_rows_of(in->x, dim),
            .out = gb_rows_of(dx, dim), .reads_other = true, .has_other = true, .row = product_gradient_row,
            .again = product_gradient_again };
  return run(call, &j);
}

/* ====} */

/* {==== extremes ==== */

/* The last of equal ones; a NaN is taken over by a later NaN only. */
#define EXTREME_ROW(T, better)                                            \
  do {                                                                    \
    T *x = values, best = x[0];                                           \
    int64_t at = 0;                                                       \
    for (int64_t i = 0; i < n && !gb_long_loop(i); i++) {                 \
      if (x[i] != x[i] || (best == best && (better))) best = x[i], at = i; \
      x[i] = best, indices[i] = at;                                       \
    }                                                                     \
  } while (0)

static bool extreme_row(const job *j, void *values, void *other, int64_t n) {
  int64_t *indices = other;
  if (j->lane == GB_LANE_I64 && j->largest) EXTREME_ROW(int64_t, x[i] >= best);
  else if (j->lane == GB_LANE_I64) EXTREME_ROW(int64_t, x[i] <= best);
  else if (j->largest) EXTREME_ROW(double, x[i] >= best);
  else EXTREME_ROW(double, x[i] <= best);
  return true;
}

static gb_status running_extreme(gb_op_call *call, bool largest) {
  const gb_tensor *x = GB_IN(call, cummax)->x;
  const gb_out_cummax *out = GB_OUT(call, cummax);
  int dim = gb_wrap_dim(GB_ATTRS(call, cummax)->dim.integer, x->ndim);
  job j = { .lane = lane_of(x), .x = gb_rows_of(x, dim), .other = gb_rows_of(out->indices, dim),
            .out = gb_rows_of(out->values, dim), .has_other = true, .largest = largest, .row = extreme_row };
  return run(call, &j);
}
_Static_assert(GB_ATTR_AT(cummin, dim) == GB_ATTR_AT(cummax, dim) &&
               GB_OUT_AT(cummin, indices) == GB_OUT_AT(cummax, indices), "read as cummax");

static gb_status cummax(gb_op_call *call) { return running_extreme(call, true); }
static gb_status cummin(gb_op_call *call) { return running_extreme(call, false); }

/* ====} */

/* {==== positions among sorted values ==== */

typedef struct finding {
  gb_op_call *call;
  gb_lane lane;
  gb_rows line, values;
  int64_t n, m, per_chunk;     /* elements of a line, of a row of values, and values to a chunk */
} finding;

/* Does element `at` of the line lie before the value, or (right) not behind it? NaN is the largest, as in sort. */
static bool is_before(const finding *f, const char *line, int64_t at, const void *value, bool right) {
  gb_dtype dtype = f->line.dtype;
  const char *from = line + at * f->line.stride * (int64_t)gb_dtype_bytes(dtype);
  union { double f64; int64_t i64; } x, v;
  memcpy(&v, value, sizeof v);
  if (f->lane == GB_LANE_I64) {
    gb_load_i64(&x.i64, from, dtype, 1, 1);
    return right ? x.i64 <= v.i64 : x.i64 < v.i64;
  }
  gb_load_f64(&x.f64, from, dtype, 1, 1);
  if (v.f64 != v.f64) return right || x.f64 == x.f64;
  return right ? x.f64 <= v.f64 : x.f64 < v.f64;
}

/* The first of n elements beside each other that does not lie before v, or n: halves are chosen without a branch. */
#define FIND_IN(name, T, V, is_before)                                         \
  static int64_t name(const T *x, int64_t n, V v) {                            \
    const T *from = x;                                                         \
    for (int64_t half; n > 1; n -= half) {                                     \
      half = n / 2;                                                            \
      const V e = (V)from[half - 1];                                           \
      from += half * (int64_t)(is_before);                                     \
    }                                                                          \
    if (n == 0) return 0;                                                      \
    const V e = (V)from[0];                                                    \
    return from - x + (int64_t)(is_before);                                    \
  }
#define FIND_BOTH(suffix, T, V, left, right) FIND_IN(left_##suffix, T, V, left) FIND_IN(right_##suffix, T, V, right)
FIND_BOTH(i64, int64_t, int64_t, e < v, e <= v)
FIND_BOTH(f32, float, double, (e < v) | ((v != v) & (e == e)), (e <= v) | (v != v))
FIND_BOTH(f64, double, double, (e < v) | ((v != v) & (e == e)), (e <= v) | (v != v))

/* The position of a value in a line, by steps that suit how it lies. */
static int64_t find(const finding *f, const char *line, const void *value, bool right) {
  union { double f64; int64_t i64; } v;
  memcpy(&v, value, sizeof v);
  if (f->line.stride == 1 && f->lane == GB_LANE_I64 && f->line.dtype == GB_INT64)
    return (right ? right_i64 : left_i64)((const int64_t *)(const void *)line, f->n, v.i64);
  if (f->line.stride == 1 && f->lane == GB_LANE_F64 && f->line.dtype == GB_FLOAT32)
    return (right ? right_f32 : left_f32)((const float *)(const void *)line, f->n, v.f64);
  if (f->line.stride == 1 && f->lane == GB_LANE_F64 && f->line.dtype == GB_FLOAT64)
    return (right ? right_f64 : left_f64)((const double *)(const void *)line, f->n, v.f64);
  int64_t low = 0, high = f->n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (is_before(f, line, middle, value, right)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The positions of some values, in the order of the result. */
static void find_chunk(void *arg, int64_t chunk) {
  const finding *f = arg;
  bool right = GB_ATTRS(f->call, search_rows)->right.integer;
  int64_t *to = (int64_t *)(void *)gb_data(GB_OUT(f->call, search_rows)->indices);
  int64_t first = chunk * f->per_chunk, end = first + f->per_chunk, total = f->values.count * f->m;
  if (end > total) end = total;
  for (int64_t i = first, count; i < end; i += count) {
    union { double f64[GB_TILE]; int64_t i64[GB_TILE]; } values;
    int64_t row = i / f->m, begin = i % f->m;
    count = f->m - begin < end - i ? f->m - begin : end - i;
    if (count > GB_TILE) count = GB_TILE;
    if (gb_work(64 * count)) return;
    const char *line = gb_rows_at(&f->line, f->line.count == 1 ? 0 : row);
    const char *at = gb_rows_at(&f->values, row) + begin * f->values.stride *
                     (int64_t)gb_dtype_bytes(f->values.dtype);
    if (f->lane == GB_LANE_I64) gb_load_i64(values.i64, at, f->values.dtype, f->values.stride, count);
    else gb_load_f64(values.f64, at, f->values.dtype, f->values.stride, count);
    for (int64_t k = 0; k < count; k++) to[i + k] = find(f, line, values.i64 + k, right);
  }
}

static gb_status search_rows(gb_op_call *call) {
  const gb_in_search_rows *in = GB_IN(call, search_rows);
  bool real = lane_of(in->x) == GB_LANE_F64 || lane_of(in->values) == GB_LANE_F64;
  finding f = { .call = call, .lane = real ? GB_LANE_F64 : GB_LANE_I64, .line = gb_rows_of(in->x, in->x->ndim - 1),
                .values = gb_rows_of(in->values, in->values->ndim - 1), .per_chunk = GB_CHUNK_ELEMENTS / 16 };
  f.n = f.line.length, f.m = f.values.length;
  int64_t total = f.values.count * f.m;
  gb_parallel(call, (total + f.per_chunk - 1) / f.per_chunk, find_chunk, &f);
  return GB_OK;
}

/* ====} */

void GB_CPU_FILL(scan)(gb_backend *backend);
void GB_CPU_FILL(scan)(gb_backend *backend) {
  backend->run[GB_OP_cumprod] = cumprod;
  backend->run[GB_OP_cumprod_backward] = cumprod_backward;
  backend->run[GB_OP_cummax] = cummax;
  backend->run[GB_OP_cummin] = cummin;
  backend->run[GB_OP_search_rows] = search_rows;
}
