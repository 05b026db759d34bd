/* cpu/pool2d.c - maximum and average pooling and their gradients.
 *
 * The inner loop runs over channels, up to a tile of them, at one position of one image: with the channels last in memory it is a run, in
 * any other layout a strided read. Forward, a position gathers its window; backward, it gathers the windows that it lies in, so every
 * element is written once, rounded once, and summed in a fixed order. A chunk is one row of one image.
 * Traffic: x (or grad) is read kernel / stride times per dimension, the result written once; one comparison or addition per element read. */
#include <math.h>
#include <string.h>

#include "cpu/rows.h"
#include "ops/conv.h"

/* {==== Windows ==== */

/* One dimension of a pooling. kernel 0: adaptive, where window i is floor(i * in / out) .. ceil((i + 1) * in / out) - 1. */
typedef struct axis { int64_t in, out, kernel, stride, padding; } axis;

/* Positions first .. end - 1. */
typedef struct span { int64_t first, end; } span;

static span clip(int64_t first, int64_t end, int64_t size) { return (span){ first > 0 ? first : 0, end < size ? end : size }; }

/* ceil(a / b) for b > 0 and any a. */
static int64_t divide_up(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

/* The inputs of window `out`. */
static span window_of(const axis *a, int64_t out) {
  if (!a->kernel) return (span){ out * a->in / a->out, divide_up((out + 1) * a->in, a->out) };
  int64_t first = out * a->stride - a->padding;
  return clip(first, first + a->kernel, a->in);
}

/* The windows that input `in` lies in. */
static span windows_with(const axis *a, int64_t in) {
  if (!a->kernel) return (span){ in * a->out / a->in, divide_up((in + 1) * a->out, a->in) };
  return clip(divide_up(in + a->padding - a->kernel + 1, a->stride), (in + a->padding) / a->stride + 1, a->out);
}

/* What the mean over window `out` divides by, along this dimension: padding counts. */
static int64_t divisor_of(const axis *a, int64_t out) {
  span w = window_of(a, out);
  return a->kernel ? a->kernel : w.end - w.first;
}

/* ====} */

/* {==== Walking ==== */

typedef struct pool pool;
/* Channels first .. first + n - 1 at row `at[0]`, column `at[1]` of image `image` of the result. *work counts for gb_long_work: a window may be as
 * large as the image. */
typedef void (*pool_cell)(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work);

/* A pooling as all its chunks see it. */
struct pool {
  gb_call *call;
  axis axis[2];
  const gb_tensor *from, *positions, *to;      /* positions: uint8, written by the forward pass, read by the others; may be NULL there */
  gb_lane lane;
  pool_cell cell;
};

static char *place(const gb_tensor *t, int64_t image, int64_t channel, int64_t y, int64_t x) {
  int64_t at = image * t->stride[0] + channel * t->stride[1] + y * t->stride[2] + x * t->stride[3];
  return gb_data(t) + at * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
}

/* n channels of t in lanes: where they lie if that is how they lie, else in room. */
static const void *channels(gb_lane lane, const gb_tensor *t, int64_t image, int64_t first, int64_t y, int64_t x, int64_t n, void *room) {
  const char *from = place(t, image, first, y, x);
  if (t->dtype == gb_lane_dtype(lane) && (t->stride[1] == 1 || n == 1)) return from;
  gb_lane_load(lane, room, from, (gb_dtype)t->dtype, t->stride[1], n);
  return room;
}

static void put_channels(const pool *p, int64_t image, int64_t first, const int64_t at[2], const void *from, int64_t n) {
  gb_lane_store(p->lane, place(p->to, image, first, at[0], at[1]), (gb_dtype)p->to->dtype, p->to->stride[1], from, n);
}

/* n window positions, where they are or brought together in room. */
static const uint8_t *positions_at(const pool *p, int64_t image, int64_t first, int64_t y, int64_t x, int64_t n, uint8_t *room) {
  const uint8_t *from = (const uint8_t *)place(p->positions, image, first, y, x);
  if (p->positions->stride[1] == 1) return from;
  for (int64_t i = 0; i < n; i++) room[i] = from[i * p->positions->stride[1]];
  return room;
}

/* One row of one image of the result. */
static void pool_row(void *arg, int64_t chunk) {
  const pool *p = arg;
  int64_t height = p->to->shape[2], image = chunk / height, at[2] = { chunk % height, 0 }, work = 0;
  for (; at[1] < p->to->shape[3]; at[1]++)
    for (int64_t first = 0; first < p->to->shape[1]; first += GB_TILE) {
      int64_t left = p->to->shape[1] - first;
      if (gb_was_stopped(p->call)) return;
      p->cell(p, image, at, first, left < GB_TILE ? left : GB_TILE, &work);
    }
}

/* Run a pooling over the result `to`. sizes NULL: adaptive, between the sizes of `in` and `out`. */
static gb_status run(gb_call *call, pool_cell cell, const gb_conv_sizes *sizes, const int64_t *in, const int64_t *out, const gb_tensor *positions) {
  pool p = { .call = call, .from = call->in[0], .positions = positions, .to = call->out[0], .cell = cell };
  p.lane = gb_lane_of((gb_dtype)p.from->dtype, (gb_dtype)p.to->dtype);
  for (int i = 0; i < 2; i++) {
    p.axis[i] = (axis){ .in = in[i], .out = out[i] };
    if (sizes) p.axis[i] = (axis){ sizes->in[i], sizes->out[i], sizes->kernel[i], sizes->stride[i], sizes->padding[i] };
  }
  gb_parallel(call, p.to->shape[0] * p.to->shape[2], pool_row, &p);
  return GB_OK;
}

/* ====} */

/* {==== Maximum ==== */

/* best = the larger of best and x, NaN above all; which: the position it came from, the first of equal ones. */
static void keep_larger(gb_lane lane, void *best, uint8_t *which, const void *x, uint8_t position, int64_t n) {
  float *b = best;
  const float *f = x;
  double *c = best;
  const double *d = x;
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) {
      bool more = (f[i] > b[i]) | (f[i] != f[i]);
      b[i] = more ? f[i] : b[i];
      which[i] = more ? position : which[i];
    }
  else
    for (int64_t i = 0; i < n; i++) {
      bool more = (d[i] > c[i]) | (d[i] != d[i]);
      c[i] = more ? d[i] : c[i];
      which[i] = more ? position : which[i];
    }
}

/* The position of input (y, x) in the window of output `at`: row by row, padding counted. */
static int64_t position_in(const pool *p, const int64_t at[2], int64_t y, int64_t x) {
  const axis *a = p->axis;
  return (y - at[0] * a[0].stride + a[0].padding) * a[1].kernel + x - at[1] * a[1].stride + a[1].padding;
}

static void max_cell(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work) {
  double best[GB_TILE], room[GB_TILE]; /* or that many float32 */
  uint8_t which[GB_TILE];
  span rows = window_of(&p->axis[0], at[0]), columns = window_of(&p->axis[1], at[1]);
  memcpy(best, channels(p->lane, p->from, image, first, rows.first, columns.first, n, room), (size_t)n * gb_lane_bytes(p->lane));
  memset(which, (int)position_in(p, at, rows.first, columns.first), (size_t)n);
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, work, n)) return;
      keep_larger(p->lane, best, which, channels(p->lane, p->from, image, first, y, x, n, room), (uint8_t)position_in(p, at, y, x), n);
    }
  put_channels(p, image, first, at, best, n);
  if (!p->positions) return;
  uint8_t *to = (uint8_t *)place(p->positions, image, first, at[0], at[1]);
  for (int64_t i = 0; i < n; i++) to[i * p->positions->stride[1]] = which[i];
}

static gb_status max_pool2d(gb_call *call) {
  gb_conv_sizes s = gb_pool_sizes_of(call->in[0]->shape, call->attrs);
  return run(call, max_cell, &s, s.in, s.out, call->out[1]);
}

/* sums += grad where the window's position is this one. */
static void add_where(gb_lane lane, void *sums, const void *grad, const uint8_t *which, uint8_t position, int64_t n) {
  float *s = sums;
  const float *f = grad;
  double *t = sums;
  const double *d = grad;
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) s[i] += which[i] == position ? f[i] : 0.0f;
  else
    for (int64_t i = 0; i < n; i++) t[i] += which[i] == position ? d[i] : 0.0;
}

/* dx at one position: the gradients of the windows whose maximum was here. */
static void max_backward_cell(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work) {
  double sums[GB_TILE], room[GB_TILE];
  uint8_t which_room[GB_TILE];
  span rows = windows_with(&p->axis[0], at[0]), columns = windows_with(&p->axis[1], at[1]);
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, work, n)) return;
      const void *grad = channels(p->lane, p->from, image, first, y, x, n, room);
      const uint8_t *which = positions_at(p, image, first, y, x, n, which_room);
      add_where(p->lane, sums, grad, which, (uint8_t)position_in(p, (int64_t[]){ y, x }, at[0], at[1]), n);
    }
  put_channels(p, image, first, at, sums, n);
}

static gb_status max_pool2d_backward(gb_call *call) {
  gb_conv_sizes s = gb_pool_sizes_of(call->attrs[0].ints, call->attrs + 1);
  return run(call, max_backward_cell, &s, s.in, s.out, call->in[1]);
}

/* The element of x at each window's position. */
static void gather_cell(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work) {
  const axis *a = p->axis;
  double taken[GB_TILE];
  uint8_t which_room[GB_TILE];
  if (gb_long_work(p->call, work, n)) return;
  const uint8_t *which = positions_at(p, image, first, at[0], at[1], n, which_room);
  for (int64_t i = 0; i < n; i++) {
    int64_t y = at[0] * a[0].stride - a[0].padding + which[i] / a[1].kernel, x = at[1] * a[1].stride - a[1].padding + which[i] % a[1].kernel;
    char *to = (char *)taken + i * (int64_t)gb_lane_bytes(p->lane);
    bool inside = y >= 0 && y < a[0].in && x >= 0 && x < a[1].in;
    if (inside) gb_lane_load(p->lane, to, place(p->from, image, first + i, y, x), (gb_dtype)p->from->dtype, 1, 1);
    else gb_row_put(p->lane, taken, i, 0);
  }
  put_channels(p, image, first, at, taken, n);
}

static gb_status max_pool2d_gather(gb_call *call) {
  gb_conv_sizes s = gb_pool_sizes_of(call->in[0]->shape, call->attrs);
  return run(call, gather_cell, &s, s.in, s.out, call->in[1]);
}

/* ====} */

/* {==== Mean ==== */

static void mean_cell(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work) {
  double sums[GB_TILE], room[GB_TILE];
  span rows = window_of(&p->axis[0], at[0]), columns = window_of(&p->axis[1], at[1]);
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, work, n)) return;
      gb_row_add(p->lane, sums, channels(p->lane, p->from, image, first, y, x, n, room), n, 1);
    }
  gb_row_scale(p->lane, sums, n, 1.0 / (double)(divisor_of(&p->axis[0], at[0]) * divisor_of(&p->axis[1], at[1])));
  put_channels(p, image, first, at, sums, n);
}

static void mean_backward_cell(const pool *p, int64_t image, const int64_t at[2], int64_t first, int64_t n, int64_t *work) {
  double sums[GB_TILE], room[GB_TILE];
  span rows = windows_with(&p->axis[0], at[0]), columns = windows_with(&p->axis[1], at[1]);
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, work, n)) return;
      gb_row_add(p->lane, sums, channels(p->lane, p->from, image, first, y, x, n, room), n,
                 1.0 / (double)(divisor_of(&p->axis[0], y) * divisor_of(&p->axis[1], x)));
    }
  put_channels(p, image, first, at, sums, n);
}

static gb_status avg_pool2d(gb_call *call) {
  gb_conv_sizes s = gb_pool_sizes_of(call->in[0]->shape, call->attrs);
  return run(call, mean_cell, &s, s.in, s.out, NULL);
}

static gb_status avg_pool2d_backward(gb_call *call) {
  gb_conv_sizes s = gb_pool_sizes_of(call->attrs[0].ints, call->attrs + 1);
  return run(call, mean_backward_cell, &s, s.in, s.out, NULL);
}

static gb_status adaptive_avg_pool2d(gb_call *call) { return run(call, mean_cell, NULL, call->in[0]->shape + 2, call->out[0]->shape + 2, NULL); }

static gb_status adaptive_avg_pool2d_backward(gb_call *call) {
  return run(call, mean_backward_cell, NULL, call->out[0]->shape + 2, call->in[0]->shape + 2, NULL);
}

/* ====} */

void GB_CPU_FILL(pool2d)(gb_backend *backend);
void GB_CPU_FILL(pool2d)(gb_backend *backend) {
  backend->run[GB_OP_max_pool2d] = max_pool2d;
  backend->run[GB_OP_max_pool2d_backward] = max_pool2d_backward;
  backend->run[GB_OP_max_pool2d_gather] = max_pool2d_gather;
  backend->run[GB_OP_avg_pool2d] = avg_pool2d;
  backend->run[GB_OP_avg_pool2d_backward] = avg_pool2d_backward;
  backend->run[GB_OP_adaptive_avg_pool2d] = adaptive_avg_pool2d;
  backend->run[GB_OP_adaptive_avg_pool2d_backward] = adaptive_avg_pool2d_backward;
}
