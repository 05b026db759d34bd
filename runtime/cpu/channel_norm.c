/* cpu/channel_norm.c - norms by channel: batch_norm, group_norm and their gradients, in any layout.
 *
 * A row is the channels at one place of one image. Rows are read in batches, chunks of them are summed up apart, and
 * what they found is put together in the order of the chunks; variances are sums of squares about the mean, never
 * differences of large numbers. batch_norm puts the rows of all images together for one channel, group_norm the rows of
 * one image for `per` channels. x is read twice for the statistics and once for the result; backward reads grad and x
 * twice. A residual is added and a ReLU taken as the result is made; backward takes the ReLU's gradient of a chunk as
 * it comes to it. Rows that lie end to end, channels last, are worked on in registers (cpu/channels.h).
 *
 * Where all tensors are contiguous, a plane is one channel of one image, side by side (cpu/planes.h). Then all planes
 * that share statistics, a unit, go through every step one after another: memory is read once where a unit stays in a
 * core's cache. Two that do are in work at once, of which one is read from memory while the other's result is written:
 * neither waits for the other then. Squares are of distances from the mean of a few thousand elements before. */
#include <math.h>
#include <string.h>

#include "base/numerics.h"
#include "cpu/channels.h"
#include "cpu/nontemporal.h"
#include "cpu/planes.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* {==== Rows of channels, and batch_norm ==== */

/* Elements of a chunk, which is read twice for statistics: they stay in L2. */
#define BATCH_CHUNK_ELEMENTS 65536
/* Rows that are summed in lanes before the sums go on in float64. */
enum { MOST_BATCH_ROWS = 128 };
/* Elements of a row below which several are taken as one. */
enum { LONG_ROW = 512 };
/* Elements of dense rows that sums in lanes run over, and lines of them at most; and those that are changed at once. */
enum { BLOCK_ELEMENTS = 16384, BLOCK_LINES = 512, CHANGED_ELEMENTS = 4096 };
/* Passes over them, towards a piece of work. */
enum { BATCH_PASSES = 4 };

/* A norm as all its chunks see it. A cell is a channel of an image, or (batch_norm: one image) of all of them. */
typedef struct batch {
  gb_op_call *call;
  gb_lane lane;
  int64_t bytes;                        /* of a lane */
  int64_t images, c, per, count;        /* images, channels, channels that share statistics, rows of an image */
  int64_t cells;
  int64_t batch, chunk, chunks;         /* rows read at once, rows of a chunk, chunks of an image */
  int64_t together;                     /* rows that arithmetic takes as one, of so many times the channels */
  bool dense;                           /* rows of all tensors lie end to end, of one dtype; together they are a line */
  int64_t plane;                        /* elements of a plane, or 0: by rows */
  double eps;
  bool fixed;                           /* the statistics are not the batch's: backward, dx does not depend on x */
  bool grouped;                         /* group_norm */
  bool slopes;                          /* backward */
  bool streams;                         /* by planes: the result goes past the caches */
  bool adds;                            /* forward: there is a residual */
  double floor;                         /* forward: what is less becomes 0; -inf: nothing is */
  gb_rows x, other, y;                  /* other: the gradient, or (forward) what is added to the result */
  double *parts;                        /* two sums by channel of each chunk: 2 * c of them */
  double *mean, *rstd;                  /* by cell */
  char *offset, *scale, *weight, *bias; /* by cell, in lanes: the mean, rstd * weight or rstd, the parameters */
  char *plain, *along;                  /* by cell, in lanes: the means of the gradient's two sums */
  struct { gb_rows grad, more, rectified; bool on, adds; } relu; /* backward: other is still to be made of these */
  gb_scratch scratch;
} batch;

/* Planes of fewer elements are read as rows of channels; as are those so large and few that threads would wait. */
enum { LEAST_PLANE = 16, FEW_PLANES = 16 };

/* Has a tensor, if there is one, planes as x has? */
static bool has_planes(const gb_tensor *t, const gb_tensor *x) {
  return !t || (t->dtype == x->dtype && gb_is_contiguous(t));
}

/* Elements of a plane where all tensors have planes of one dtype, else 0. */
static int64_t plane_of(const gb_tensor *x, const gb_tensor *other, const gb_tensor *y) {
  int64_t planes = x->shape[0] * x->shape[1], plane = planes > 0 ? x->numel / planes : 0;
  if (!has_planes(x, x) || !has_planes(other, x) || !has_planes(y, x)) return 0;
  return plane < LEAST_PLANE || (planes < FEW_PLANES && plane > BATCH_CHUNK_ELEMENTS) ? 0 : plane;
}

/* Sizes, and scratch with room for everything above. planes: all other tensors have them. */
static gb_status open_batch(batch *b, gb_op_call *call, const gb_tensor *x, const gb_tensor *other, const gb_tensor *y,
                            int64_t images, int64_t per, bool planes) {
  *b = (batch){ .call = call, .lane = gb_norm_lane(x, other), .images = images, .c = x->shape[1], .per = per,
                .floor = -INFINITY };
  b->cells = images * b->c;
  b->x = gb_rows_of(x, 1);
  b->other = gb_rows_of(other, 1);
  b->y = gb_rows_of(y, 1);
  b->bytes = (int64_t)gb_lane_bytes(b->lane);
  b->count = b->x.count / images;
  b->batch = least(most(gb_norm_batch(b->c), gb_row_plan_for(&b->x).batch), MOST_BATCH_ROWS);
  b->chunk = most(16, BATCH_CHUNK_ELEMENTS / most(b->c, 1));
  b->together = least(most(LONG_ROW / b->c, 1), b->batch);
  b->plane = planes ? plane_of(x, other, y) : 0;
  if (b->plane > 0) b->chunk = b->plane; /* so parts are of planes */
  b->streams = b->plane > 0 && y->dtype != GB_FLOAT64 && 2 * (size_t)y->numel * b->y.bytes >= GB_NONTEMPORAL_BYTES;
  b->chunks = (b->count + b->chunk - 1) / b->chunk;
  size_t shared = 0, at[7], parts = gb_scratch_take(&shared, most(b->chunks, 1) * 2 * b->cells * 8), room = 0;
  size_t mean = gb_scratch_take(&shared, b->cells * 8), rstd = gb_scratch_take(&shared, b->cells * 8);
  for (int i = 0; i < 6; i++) at[i] = gb_scratch_take(&shared, b->cells * b->bytes);
  gb_scratch_take(&room, (2 * b->batch + (2 + 6) * b->together) * b->c * b->bytes);
  GB_TRY(gb_scratch_open(call, shared, room, &b->scratch));
  char *base = b->scratch.shared;
  b->parts = (double *)(base + parts);
  b->mean = (double *)(base + mean);
  b->rstd = (double *)(base + rstd);
  char **lanes[6] = { &b->offset, &b->scale, &b->weight, &b->bias, &b->plain, &b->along };
  for (int i = 0; i < 6; i++) *lanes[i] = base + at[i];
  return GB_OK;
}

/* Do these rows, if there are any, lie end to end as those of x do? */
static bool lies_like_x(const batch *b, const gb_rows *t) {
  return !t->data || (t->dtype == b->x.dtype && gb_rows_own(t, b->x.dtype, 0));
}

/* Take rows as dense, if they are and a line of them is not too long; called when all of them are known. */
static void look_for_lines(batch *b) {
  int64_t line = b->c;
  while (line % GB_WIDE && line < LONG_ROW) line += b->c;
  const bool alike = lies_like_x(b, &b->x) && lies_like_x(b, &b->other) && lies_like_x(b, &b->y) &&
      lies_like_x(b, &b->relu.grad) && lies_like_x(b, &b->relu.more) && lies_like_x(b, &b->relu.rectified);
  b->dense = alike && b->plane == 0 && b->lane == GB_LANE_F32 && line % GB_WIDE == 0 && line <= GB_SHORT_ROW &&
      line <= b->together * b->c; /* lines are done whole, and rooms are for so many rows */
  if (b->dense) b->together = line / b->c;
}

/* The rows of a chunk, and its image. */
typedef struct part_of_rows { int64_t image, first, end; } part_of_rows;

static part_of_rows rows_of_chunk(const batch *b, int64_t chunk) {
  int64_t image = chunk / b->chunks, first = chunk % b->chunks * b->chunk;
  return (part_of_rows){ image, image * b->count + first, image * b->count + least(first + b->chunk, b->count) };
}

/* sums += (x - offset)^2, by channel. */
static void add_squares(gb_lane lane, void *sums, const void *x, const void *offset, int64_t n) {
  float *restrict s = sums;
  const float *restrict f = x, *restrict o = offset;
  double *restrict t = sums;
  const double *restrict d = x, *restrict p = offset;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) s[i] += (f[i] - o[i]) * (f[i] - o[i]);
    else
      for (int64_t i = at; i < at + m; i++) t[i] += (d[i] - p[i]) * (d[i] - p[i]);
  }
}

/* plain += grad, along += grad * (x - offset), by channel. */
static void add_gradients(gb_lane lane, void *plain, void *along, const void *grad, const void *x, const void *offset,
                          int64_t n) {
  float *restrict s = plain, *restrict a = along;
  const float *restrict g = grad, *restrict f = x, *restrict o = offset;
  double *restrict t = plain, *restrict e = along;
  const double *restrict h = grad, *restrict d = x, *restrict p = offset;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) {
        s[i] += g[i];
        a[i] += g[i] * (f[i] - o[i]);
      }
    else
      for (int64_t i = at; i < at + m; i++) {
        t[i] += h[i];
        e[i] += h[i] * (d[i] - p[i]);
      }
  }
}

/* y = (x - offset) * scale + shift, by channel; y may be x. */
static void apply_line(gb_lane lane, void *y, const void *x, const void *offset, const void *scale, const void *shift,
                       int64_t n) {
  float *r = y;
  const float *f = x, *o = offset, *s = scale, *b = shift;
  double *t = y;
  const double *d = x, *p = offset, *u = scale, *c = shift;
  for GB_PIECES(at, m, n) {
    int64_t end = at + m;
    if (lane == GB_LANE_F32) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) r[i] = (f[i] - o[i]) * s[i] + b[i];
    } else {
#pragma omp simd
      for (int64_t i = at; i < end; i++) t[i] = (d[i] - p[i]) * u[i] + c[i];
    }
  }
}

/* y += residual, if there is one; then what is less than `floor` becomes 0. */
static void finish_line(gb_lane lane, void *y, const void *residual, double floor, int64_t n) {
  float *r = y, least = (float)floor;
  const float *f = residual;
  double *t = y;
  const double *d = residual;
  for GB_PIECES(at, m, n) {
    int64_t end = at + m;
    if (lane == GB_LANE_F32) {
      if (f) for (int64_t i = at; i < end; i++) r[i] += f[i];
      for (int64_t i = at; i < end; i++) r[i] = r[i] < least ? 0 : r[i];
    } else {
      if (d) for (int64_t i = at; i < end; i++) t[i] += d[i];
      for (int64_t i = at; i < end; i++) t[i] = t[i] < floor ? 0 : t[i];
    }
  }
}

/* to = x + y; to may be x. */
static void add_line(gb_lane lane, void *to, const void *x, const void *y, int64_t n) {
  float *r = to;
  const float *f = x, *g = y;
  double *t = to;
  const double *d = x, *e = y;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32) for (int64_t i = at; i < at + m; i++) r[i] = f[i] + g[i];
    else for (int64_t i = at; i < at + m; i++) t[i] = d[i] + e[i];
  }
}

/* The gradient of a ReLU: to = grad where the result is not 0 or less; to may be grad. */
static void mask_line(gb_lane lane, void *to, const void *grad, const void *rectified, int64_t n) {
  float *r = to;
  const float *f = grad, *y = rectified;
  double *t = to;
  const double *d = grad, *z = rectified;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32) for (int64_t i = at; i < at + m; i++) r[i] = y[i] <= 0 ? 0 : f[i];
    else for (int64_t i = at; i < at + m; i++) t[i] = z[i] <= 0 ? 0 : d[i];
  }
}

/* Add the lanes of several rows to doubles, and zero them for the next batch. */
static void drain(const batch *b, double *to, void *lanes) {
  const float *f = lanes;
  const double *d = lanes;
  for (int64_t row = 0; row < b->together; row++, f += b->c, d += b->c)
    for GB_PIECES(at, m, b->c) {
      if (b->lane == GB_LANE_F32) for (int64_t i = at; i < at + m; i++) to[i] += (double)f[i];
      else for (int64_t i = at; i < at + m; i++) to[i] += d[i];
    }
  gb_clear_bytes(lanes, (size_t)(b->together * b->c * b->bytes));
}

/* A thread's room: a batch of x, one of grad, two sums by channel, and what is known by channel of one image; all but
 * the batches for the rows that are taken together. */
typedef struct batch_room { char *x, *grad, *sums[2], *offset, *scale, *weight, *bias, *plain, *along; } batch_room;

static batch_room batch_room_of(const batch *b) {
  batch_room r = { .x = gb_scratch_room(&b->scratch) };
  int64_t size = b->batch * b->c * b->bytes, row = b->together * b->c * b->bytes;
  char **rows[] = { &r.sums[0], &r.sums[1], &r.offset, &r.scale, &r.weight, &r.bias, &r.plain, &r.along };
  r.grad = r.x + size;
  for (int i = 0; i < 8; i++) *rows[i] = r.grad + size + i * row;
  gb_clear_bytes(r.sums[0], (size_t)(2 * row));
  return r;
}

/* What is known of an image's channels, as often as rows are taken together. */
static void repeat_channels(const batch *b, int64_t image, const char *channels, char *to) {
  int64_t row = b->c * b->bytes;
  for (int64_t i = 0; i < b->together; i++) gb_copy_bytes(to + i * row, channels + image * row, (size_t)row);
}

/* n rows from `first` on in lanes: where they lie, or brought to room. */
static const char *rows_in_lanes(const batch *b, const gb_rows *rows, int64_t first, int64_t n, char *room) {
  const char *own = gb_rows_own(rows, gb_lane_dtype(b->lane), first);
  if (!own) gb_rows_load(rows, b->lane, first, n, room);
  return own ? own : room;
}

/* Rows from `first` on of tensors that are dense. */
static char *dense_rows(const batch *b, const gb_rows *rows, int64_t first) {
  return rows->data ? rows->data + (size_t)(first * b->c) * rows->bytes : NULL;
}

/* Numbers of a line's channels, in the order of its vectors. A NaN becomes the usual one: rounding to bfloat16 in
 * registers would carry the bits of another into its sign, and make it 0. */
static const float *sort_line(const batch *b, float *line) {
  const int64_t n = b->together * b->c;
  for (int64_t i = 0; i < n; i++) line[i] = line[i] != line[i] ? NAN : line[i];
  gb_wide_sort(b->x.dtype, line, n, false);
  return line;
}

/* What is known of an image's channels, as often as a line has them. */
static const float *sorted_channels(const batch *b, int64_t image, const char *channels, char *to) {
  repeat_channels(b, image, channels, to);
  return sort_line(b, (float *)(void *)to);
}

/* So many rows at once, whole lines, or what is left behind them; towards `elements`. */
static int64_t rows_at_once(const batch *b, int64_t elements, int64_t left) {
  const int64_t line = b->together * b->c, lines = least(most(elements / line, 1), BLOCK_LINES);
  return left < b->together ? left : least(lines, left / b->together) * b->together;
}

/* Sums of lines to their places, and drained. */
static void drain_lines(const batch *b, double *to, void *lanes) {
  gb_wide_sort(b->x.dtype, lanes, b->together * b->c, true);
  drain(b, to, lanes);
}

/* sum_rows of dense rows; offset: by channel. What is left behind whole lines goes row by row. */
static void sum_dense(const batch *b, const batch_room *r, int64_t first, int64_t end, const char *offset, double *to) {
  const float *line = offset ? sorted_channels(b, 0, offset, r->offset) : NULL;
  for (int64_t n; first < end; first += n) {
    n = rows_at_once(b, BLOCK_ELEMENTS, end - first);
    if (gb_work(n * b->c)) return;
    if (n >= b->together) {
      const gb_lines lines = { n / b->together, b->together * b->c };
      gb_sum_lines(b->x.dtype, dense_rows(b, &b->x, first), lines, line, (float *)(void *)r->sums[0]);
      drain_lines(b, to, r->sums[0]);
      continue;
    }
    gb_rows_load(&b->x, b->lane, first, n, r->x);
    for (int64_t i = 0; i < n; i++) {
      const char *x = r->x + i * b->c * b->bytes;
      if (offset) add_squares(b->lane, r->sums[0], x, offset, b->c);
      else gb_row_add(b->lane, r->sums[0], x, b->c, 1);
    }
    drain(b, to, r->sums[0]);
  }
}

/* The sum by channel of rows first .. end - 1 of x, or of the squares of their distance from `offset`, into *to. */
static void sum_rows(const batch *b, const batch_room *r, int64_t first, int64_t end, const char *offset, double *to) {
  for (int64_t n; first < end; first += n) {
    n = least(b->batch, end - first);
    if (gb_work(BATCH_PASSES * n * b->c)) return;
    const char *x = rows_in_lanes(b, &b->x, first, n, r->x);
    for (int64_t i = 0; i < n; i += b->together) {
      int64_t elements = least(b->together, n - i) * b->c;
      if (offset) add_squares(b->lane, r->sums[0], x + i * b->c * b->bytes, offset, elements);
      else gb_row_add(b->lane, r->sums[0], x + i * b->c * b->bytes, elements, 1);
    }
    drain(b, to, r->sums[0]);
  }
}

/* The mean by channel of one chunk, and the sum of squares about it. */
static void moments_chunk(void *arg, int64_t chunk) {
  const batch *b = arg;
  batch_room r = batch_room_of(b);
  part_of_rows rows = rows_of_chunk(b, chunk);
  double *mean = b->parts + chunk * 2 * b->c, *spread = mean + b->c;
  gb_clear_bytes(mean, (size_t)(2 * b->c) * sizeof *mean);
  if (b->dense) sum_dense(b, &r, rows.first, rows.end, NULL, mean);
  else sum_rows(b, &r, rows.first, rows.end, NULL, mean);
  for (int64_t i = 0; i < b->c && !gb_long_loop(i); i++) {
    mean[i] /= (double)(rows.end - rows.first);
    gb_row_put(b->lane, r.scale, i, mean[i]);
  }
  if (b->dense) { sum_dense(b, &r, rows.first, rows.end, r.scale, spread); return; }
  repeat_channels(b, 0, r.scale, r.offset);
  sum_rows(b, &r, rows.first, rows.end, r.offset, spread);
}

/* Moments of the chunks and channels that share statistics, from cell `first` on, put together (Chan, Golub, LeVeque:
 * "Updating formulae and a pairwise algorithm for computing sample variances", 1979). Leaves the variance, divided by
 * the number of elements, in rstd's place. */
static void merge_unit(const batch *b, int64_t first) {
  const double *parts = b->parts + first / b->c * b->chunks * 2 * b->c + first % b->c;
  double mean = b->count ? 0 : NAN, spread = mean, rows = 0;
  for (int64_t i = 0; i < b->per; i++)
    for (int64_t chunk = 0; chunk < b->chunks; chunk++) {
      const double *part = parts + chunk * 2 * b->c + i;
      double more = (double)(least((chunk + 1) * b->chunk, b->count) - chunk * b->chunk), apart = part[0] - mean;
      spread += part[b->c] + apart * apart * rows * more / (rows + more);
      mean += apart * more / (rows + more);
      rows += more;
    }
  for (int64_t i = first; i < first + b->per; i++) {
    b->mean[i] = mean;
    b->rstd[i] = spread / (double)(b->count * b->per);
  }
}

static void merge_moments(const batch *b) {
  for (int64_t first = 0; first < b->cells && !gb_work(4 * b->per * b->chunks); first += b->per) merge_unit(b, first);
}

/* A vector by channel as doubles, from or to a tensor. */
static void channel_values(const gb_tensor *t, double *values,
                           bool store) { gb_norm_statistics(t, 0, t->numel, values, store); }

/* running = (1 - momentum) * running + momentum * value * correction; scratch holds c doubles. */
static void move_towards(gb_tensor *running, const double *values, double correction, double momentum,
                         double *scratch) {
  if (!running) return;
  channel_values(running, scratch, false);
  for (int64_t i = 0; i < running->numel; i++)
    scratch[i] = (1 - momentum) * scratch[i] + momentum * correction * values[i];
  channel_values(running, scratch, true);
  gb_tensor_bump(running);
}

/* Is a value finite in the type of the lanes? */
static bool is_finite(gb_lane lane, double value) { return lane == GB_LANE_F32 ? isfinite((float)value)
                                                    : isfinite(value); }

/* Update the running statistics, unless the batch's are not finite (a batch that overflowed must not leave its mark) or
 * forward did so before. b->parts is free. */
static void update_running(batch *b) {
  const gb_in_batch_norm *in = GB_IN(b->call, batch_norm);
  double momentum = GB_ATTRS(b->call, batch_norm)->momentum.number, n = (double)b->count;
  if (b->count < 2 || b->call->context->modes->recompute || gb_was_stopped(b->call)) return;
  for (int64_t i = 0; i < b->c && !gb_long_loop(i); i++)
    if (!is_finite(b->lane, b->mean[i]) || !is_finite(b->lane, b->rstd[i])) return;
  if (gb_was_stopped(b->call)) return;
  gb_running outer = gb_running_here;
  gb_running_here = (gb_running){ NULL, 0 }; /* both are updated, or none: a few passes over the channels that no stop
                                                ends */
  move_towards(in->running_mean, b->mean, 1, momentum, b->parts);
  move_towards(in->running_var, b->rstd, n / (n - 1), momentum, b->parts);
  gb_running_here = outer;
}

/* apply_chunk of the whole lines of dense rows; *first: the row behind them. */
static void apply_lines(const batch *b, const batch_room *r, part_of_rows rows, int64_t *first) {
  const gb_line_change change = { sorted_channels(b, rows.image, b->offset, r->offset),
                                  sorted_channels(b, rows.image, b->scale, r->scale),
                                  sorted_channels(b, rows.image, b->bias, r->bias), (float)b->floor };
  for (int64_t n; rows.end - *first >= b->together; *first += n) {
    n = rows_at_once(b, CHANGED_ELEMENTS, rows.end - *first);
    if (gb_work(n * b->c)) return;
    gb_change_lines(b->x.dtype, dense_rows(b, &b->y, *first), dense_rows(b, &b->x, *first),
                    b->adds ? dense_rows(b, &b->other, *first) : NULL,
                    (gb_lines){ n / b->together, b->together * b->c }, change);
  }
}

/* Of each row of a chunk: (x - mean) * (rstd * weight) + bias, and what comes behind. */
static void apply_chunk(void *arg, int64_t chunk) {
  const batch *b = arg;
  batch_room r = batch_room_of(b);
  part_of_rows rows = rows_of_chunk(b, chunk);
  if (b->dense) apply_lines(b, &r, rows, &rows.first);
  if (rows.first == rows.end || gb_was_stopped(b->call)) return;
  repeat_channels(b, rows.image, b->offset, r.offset);
  repeat_channels(b, rows.image, b->scale, r.scale);
  repeat_channels(b, rows.image, b->bias, r.bias);
  for (int64_t n, first = rows.first; first < rows.end; first += n) {
    n = least(b->batch, rows.end - first);
    if (gb_work(BATCH_PASSES * n * b->c)) return;
    const char *x = rows_in_lanes(b, &b->x, first, n, r.x);
    char *own = gb_rows_own(&b->y, gb_lane_dtype(b->lane), first), *y = own ? own : r.x;
    for (int64_t i = 0; i < n; i += b->together) {
      int64_t at = i * b->c * b->bytes, elements = least(b->together, n - i) * b->c;
      apply_line(b->lane, y + at, x + at, r.offset, r.scale, r.bias, elements);
    }
    if (b->adds || b->floor > -INFINITY)
      finish_line(b->lane, y, b->adds ? rows_in_lanes(b, &b->other, first, n, r.grad) : NULL, b->floor, n * b->c);
    if (!own) gb_rows_store(&b->y, b->lane, first, n, y);
  }
}

/* A parameter, or `fill` where it is absent, for the cells of every image. */
static void set_parameter(const batch *b, const gb_tensor *parameter, double fill, char *to) {
  for (int64_t image = 0; image < b->images && !gb_work(b->c); image++)
    gb_norm_parameter(b->lane, gb_lane_dtype(b->lane), parameter, fill, b->c, to + image * b->c * b->bytes);
}

/* mean and rstd to lanes; scale is rstd * weight, or rstd. */
static void set_lanes(batch *b, bool weighted) {
  for (int64_t i = 0; i < b->cells && !gb_long_loop(i); i++) {
    gb_row_put(b->lane, b->offset, i, b->mean[i]);
    gb_row_put(b->lane, b->scale, i, b->rstd[i] * (weighted ? gb_row_get(b->lane, b->weight, i) : 1));
  }
}

/* {---- planes ---- */

/* Plane k of the unit whose first cell is `first`: its number, where it lies, and where its two sums go. */
static int64_t plane_at(const batch *b, int64_t first, int64_t k) { return first + k % b->per + k / b->per * b->c; }

static char *plane_data(const batch *b, const gb_rows *t, int64_t plane) {
  return t->data + (size_t)(plane * b->plane) * t->bytes;
}

static double *plane_part(const batch *b, int64_t plane) { return b->parts + plane / b->c * 2 * b->c + plane % b->c; }

/* Units of at most so many bytes overlap: two of them stay in L2. */
#define OVERLAPPED_BYTES ((int64_t)256 << 10)

/* Is the next unit read while one is written? Then a chunk has a few more of them, as its first is read by itself. */
static bool overlaps(const batch *b) {
  int64_t read = b->plane * b->per * b->chunks * (int64_t)b->x.bytes * (b->slopes ? 2 : 1);
  return b->x.dtype != GB_FLOAT64 && !b->fixed && !b->relu.on && read <= OVERLAPPED_BYTES;
}

/* As many units as have the elements of a chunk of rows, or of a few where they overlap and are many. */
static int64_t units_of_chunk(const batch *b) {
  enum { CHUNKS = 4, LEAST_CHUNKS = 32 };
  int64_t units = most(1, BATCH_CHUNK_ELEMENTS / most(1, b->per * b->chunks * b->plane));
  return overlaps(b) ? most(units, least(CHUNKS * units, b->cells / b->per / LEAST_CHUNKS)) : units;
}

/* Run fn over all units, so many to a chunk. */
static void run_units(gb_op_call *call, batch *b, gb_chunk_fn fn) {
  int64_t units = b->cells / b->per, at_once = units_of_chunk(b);
  gb_parallel(call, (units + at_once - 1) / at_once, fn, b);
}

/* A plane's mean, and the sum of squares about it. */
static void put_moments(const batch *b, int64_t plane, gb_plane_moments m) {
  double *part = plane_part(b, plane);
  part[0] = m.mean, part[b->c] = m.spread;
}

/* The mean of a unit, and its variance in rstd's place. */
static void find_moments(const batch *b, int64_t first) {
  for (int64_t k = 0; k < b->per * b->chunks && !gb_work(2 * b->plane); k++) {
    int64_t plane = plane_at(b, first, k);
    put_moments(b, plane, gb_plane_moments_of(b->x.dtype, plane_data(b, &b->x, plane), b->plane));
  }
  merge_unit(b, first);
}

/* (x - mean) * (rstd * weight) + bias, and what comes behind, of a unit; meanwhile the statistics of the one whose
 * first cell is `next`, or of none (-1). */
static void normalise_unit(const batch *b, int64_t first, int64_t next) {
  for (int64_t k = 0; k < b->per * b->chunks && !gb_work(2 * b->plane); k++) {
    int64_t plane = plane_at(b, first, k), cell = plane % b->cells, other = next < 0 ? plane : plane_at(b, next, k);
    double rstd = 1 / sqrt(b->rstd[cell] + b->eps), weight = gb_row_get(b->lane, b->weight, cell);
    gb_plane_line line = { b->mean[cell], rstd * weight, gb_row_get(b->lane, b->bias, cell), b->floor };
    gb_plane_moments m = { 0 };
    if (next >= 0) m = gb_plane_unread(b->x.dtype, plane_data(b, &b->x, other), b->plane);
    gb_plane_apply(b->x.dtype, plane_data(b, &b->y, plane), plane_data(b, &b->x, plane),
                   b->adds ? plane_data(b, &b->other, plane) : NULL, b->plane, line, b->streams, next < 0 ? NULL : &m);
    if (next >= 0) put_moments(b, other, m);
  }
  if (next >= 0) merge_unit(b, next);
}

static void normalise_chunk(void *arg, int64_t chunk) {
  const batch *b = arg;
  const bool overlap = overlaps(b);
  int64_t at_once = units_of_chunk(b) * b->per, start = chunk * at_once, end = least(start + at_once, b->cells);
  for (int64_t first = start; first < end; first += b->per) {
    if (!b->fixed && !(overlap && first > start)) find_moments(b, first);
    normalise_unit(b, first, overlap && first + b->per < end ? first + b->per : -1);
  }
  if (b->streams) gb_nontemporal_end();
}

/* The gradient of a plane behind a ReLU becomes that before it. */
static void mask_plane(const batch *b, int64_t plane) {
  gb_plane_mask(b->x.dtype, plane_data(b, &b->other, plane), plane_data(b, &b->relu.grad, plane),
                b->relu.adds ? plane_data(b, &b->relu.more, plane) : NULL, plane_data(b, &b->relu.rectified, plane),
                b->plane);
}

/* A plane's gradient of which nothing has been read, and its sums. */
static gb_plane_sums unread_sums(const batch *b, int64_t plane) {
  return (gb_plane_sums){ plane_data(b, &b->other, plane), plane_data(b, &b->x, plane),
                          gb_row_get(b->lane, b->offset, plane % b->cells), 0, 0 };
}

static void put_sums(const batch *b, int64_t plane, gb_plane_sums s) {
  double *part = plane_part(b, plane);
  part[0] = s.plain, part[b->c] = s.along;
}

/* The two sums of each plane of a unit's gradient. */
static void find_sums(const batch *b, int64_t first) {
  for (int64_t k = 0; k < b->per * b->chunks && !gb_work(2 * b->plane); k++) {
    int64_t plane = plane_at(b, first, k);
    if (b->relu.on) mask_plane(b, plane);
    gb_plane_sums s = unread_sums(b, plane);
    gb_plane_add_up(b->x.dtype, &s, b->plane);
    put_sums(b, plane, s);
  }
}

/* The unit's dx, once it is known what its elements need; meanwhile the sums of the unit whose first cell is `next`, or
 * of none (-1). */
static void differentiate_unit(const batch *b, int64_t first, int64_t next) {
  for (int64_t k = 0; k < b->per * b->chunks && !gb_work(2 * b->plane); k++) {
    int64_t plane = plane_at(b, first, k), cell = plane % b->cells, other = next < 0 ? plane : plane_at(b, next, k);
    double rstd = gb_row_get(b->lane, b->scale, cell), weight = gb_row_get(b->lane, b->weight, cell);
    gb_plane_slope slope = { b->grouped ? rstd : rstd * weight, b->grouped ? weight : 1,
                             gb_row_get(b->lane, b->plain, cell), gb_row_get(b->lane, b->offset, cell),
                             gb_row_get(b->lane, b->along, cell) };
    gb_plane_sums s = unread_sums(b, other);
    gb_plane_differentiate(b->x.dtype, plane_data(b, &b->y, plane), plane_data(b, &b->other, plane),
                           plane_data(b, &b->x, plane), b->plane, slope, b->fixed, b->streams, next < 0 ? NULL : &s);
    if (next >= 0) put_sums(b, other, s);
  }
}

/* dx of a chunk's units; `found` makes of a unit's sums what its elements need. */
static void differentiate_units(const batch *b, int64_t chunk, void (*found)(const batch *b, int64_t first)) {
  const bool overlap = overlaps(b);
  int64_t at_once = units_of_chunk(b) * b->per, start = chunk * at_once, end = least(start + at_once, b->cells);
  for (int64_t first = start; first < end; first += b->per) {
    if (!(overlap && first > start)) find_sums(b, first);
    found(b, first);
    differentiate_unit(b, first, overlap && first + b->per < end ? first + b->per : -1);
  }
  if (b->streams) gb_nontemporal_end();
}

/* ----} */

/* All rows by the statistics, which are found first unless they are fixed; then rstd is what it says. found, if any, is
 * told while it holds the variance. */
static void normalise(batch *b, void (*found)(batch *b)) {
  look_for_lines(b);
  if (b->plane > 0) run_units(b->call, b, normalise_chunk);
  else if (!b->fixed) {
    gb_parallel(b->call, b->images * b->chunks, moments_chunk, b);
    merge_moments(b);
  }
  if (!b->fixed && found) found(b);
  for (int64_t i = 0; i < b->cells && !gb_long_loop(i); i++) b->rstd[i] = 1 / sqrt(b->rstd[i] + b->eps);
  if (b->plane > 0) return;
  set_lanes(b, true);
  gb_parallel(b->call, b->images * b->chunks, apply_chunk, b);
}

static gb_status batch_norm(gb_op_call *call) {
  const gb_in_batch_norm *in = GB_IN(call, batch_norm);
  const gb_attrs_batch_norm *attrs = GB_ATTRS(call, batch_norm);
  const gb_out_batch_norm *out = GB_OUT(call, batch_norm);
  batch b;
  if (in->x->shape[1] == 0) return GB_OK;
  GB_TRY(open_batch(&b, call, in->x, in->residual ? in->residual : out->y, out->y, 1, 1, true));
  b.fixed = !attrs->training.integer, b.eps = attrs->eps.number;
  b.adds = in->residual != NULL;
  if (attrs->activation.integer == GB_WORD_relu) b.floor = gb_negative_below((gb_dtype)out->y->dtype);
  set_parameter(&b, in->weight, 1, b.weight);
  set_parameter(&b, in->bias, 0, b.bias);
  if (b.fixed) {
    channel_values(in->running_mean, b.mean, false);
    channel_values(in->running_var, b.rstd, false);
  }
  normalise(&b, update_running);
  if (out->mean) channel_values(out->mean, b.mean, true);
  if (out->rstd) channel_values(out->rstd, b.rstd, true);
  gb_scratch_close(call, &b.scratch);
  return GB_OK;
}

/* The gradient of a chunk behind a ReLU becomes that before it. */
static void mask_chunk(const batch *b, const batch_room *r, part_of_rows rows) {
  for (int64_t n, first = rows.first; first < rows.end; first += n) {
    n = least(b->batch, rows.end - first);
    if (gb_work(BATCH_PASSES * n * b->c)) return;
    char *own = gb_rows_own(&b->other, gb_lane_dtype(b->lane), first), *to = own ? own : r->grad;
    const char *grad = rows_in_lanes(b, &b->relu.grad, first, n, r->grad);
    if (b->relu.adds) {
      add_line(b->lane, to, grad, rows_in_lanes(b, &b->relu.more, first, n, r->x), n * b->c);
      grad = to;
    }
    mask_line(b->lane, to, grad, rows_in_lanes(b, &b->relu.rectified, first, n, r->x), n * b->c);
    if (!own) gb_rows_store(&b->other, b->lane, first, n, to);
  }
}

/* gradients_chunk of the whole lines of dense rows; *first: the row behind them. */
static void gradients_of_lines(const batch *b, const batch_room *r, part_of_rows rows, double *part, int64_t *first) {
  const float *offset = sorted_channels(b, rows.image, b->offset, r->offset);
  for (int64_t n; rows.end - *first >= b->together; *first += n) {
    n = rows_at_once(b, BLOCK_ELEMENTS, rows.end - *first);
    if (gb_work(n * b->c)) return;
    const gb_rows *grad = b->relu.on ? &b->relu.grad : &b->other;
    const gb_line_gradient g = { dense_rows(b, grad, *first), dense_rows(b, &b->relu.more, *first),
                                 dense_rows(b, &b->relu.rectified, *first), dense_rows(b, &b->other, *first) };
    gb_sum_gradients(b->x.dtype, g, dense_rows(b, &b->x, *first), (gb_lines){ n / b->together, b->together * b->c },
                     offset, (float *)(void *)r->sums[0], (float *)(void *)r->sums[1]);
    for (int k = 0; k < 2; k++) drain_lines(b, part + k * b->c, r->sums[k]);
  }
}

/* The sums of grad and of grad * (x - mean) of one chunk. */
static void gradients_chunk(void *arg, int64_t chunk) {
  const batch *b = arg;
  batch_room r = batch_room_of(b);
  part_of_rows rows = rows_of_chunk(b, chunk);
  double *part = b->parts + chunk * 2 * b->c;
  gb_clear_bytes(part, (size_t)(2 * b->c) * sizeof *part);
  if (b->dense) gradients_of_lines(b, &r, rows, part, &rows.first);
  if (rows.first == rows.end || gb_was_stopped(b->call)) return;
  if (b->relu.on) mask_chunk(b, &r, rows);
  repeat_channels(b, rows.image, b->offset, r.offset);
  for (int64_t n, first = rows.first; first < rows.end; first += n) {
    n = least(b->batch, rows.end - first);
    if (gb_work(BATCH_PASSES * n * b->c)) return;
    const char *x = rows_in_lanes(b, &b->x, first, n, r.x), *grad = rows_in_lanes(b, &b->other, first, n, r.grad);
    for (int64_t i = 0; i < n; i += b->together) {
      int64_t at = i * b->c * b->bytes, elements = least(b->together, n - i) * b->c;
      add_gradients(b->lane, r.sums[0], r.sums[1], grad + at, x + at, r.offset, elements);
    }
    for (int k = 0; k < 2; k++) drain(b, part + k * b->c, r.sums[k]);
  }
}

/* A cell's sums over its image's chunks. */
static void sum_chunks(const batch *b, int64_t cell, double sums[2]) {
  const double *parts = b->parts + cell / b->c * b->chunks * 2 * b->c + cell % b->c;
  sums[0] = sums[1] = 0;
  for (int64_t chunk = 0; chunk < b->chunks; chunk++)
    for (int k = 0; k < 2; k++) sums[k] += parts[(2 * chunk + k) * b->c];
}

/* dx = scale * weight * (grad - plain - (x - offset) * along) by channel; of groups, whose sums are of grad * weight,
 * scale * (weight * grad - plain - (x - offset) * along). dx may be x or grad. */
static void differentiate_channels(const batch *b, const batch_room *r, void *dx, const void *x, const void *grad,
                                   int64_t n) {
  bool grouped = b->grouped;
  float *y = dx;
  const float *f = x, *g = grad, *o = (float *)(void *)r->offset, *s = (float *)(void *)r->scale,
      *w = (float *)(void *)r->weight, *p = (float *)(void *)r->plain, *a = (float *)(void *)r->along;
  double *z = dx;
  const double *d = x, *h = grad, *q = (double *)(void *)r->offset, *t = (double *)(void *)r->scale,
      *v = (double *)(void *)r->weight, *m = (double *)(void *)r->plain, *e = (double *)(void *)r->along;
  for GB_PIECES(at, count, n) {
    int64_t end = at + count;
    if (b->lane == GB_LANE_F32 && grouped) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) y[i] = s[i] * (w[i] * g[i] - p[i] - (f[i] - o[i]) * a[i]);
    } else if (b->lane == GB_LANE_F32) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) y[i] = s[i] * w[i] * (g[i] - p[i] - (f[i] - o[i]) * a[i]);
    } else if (grouped) {
#pragma omp simd
      for (int64_t i = at; i < end; i++) z[i] = t[i] * (v[i] * h[i] - m[i] - (d[i] - q[i]) * e[i]);
    } else {
#pragma omp simd
      for (int64_t i = at; i < end; i++) z[i] = t[i] * v[i] * (h[i] - m[i] - (d[i] - q[i]) * e[i]);
    }
  }
}

/* backward_rows_chunk of the whole lines of dense rows; *first: the row behind them. */
static void differentiate_lines(const batch *b, const batch_room *r, part_of_rows rows, int64_t *first) {
  float *outer = (float *)(void *)r->scale, *inner = (float *)(void *)r->weight;
  repeat_channels(b, rows.image, b->scale, r->scale);
  repeat_channels(b, rows.image, b->weight, r->weight);
  for (int64_t i = 0; !b->grouped && i < b->together * b->c; i++) outer[i] *= inner[i], inner[i] = 1; /* one line */
  const gb_line_slope slope = { sort_line(b, outer), sort_line(b, inner),
                                sorted_channels(b, rows.image, b->plain, r->plain),
                                sorted_channels(b, rows.image, b->offset, r->offset),
                                sorted_channels(b, rows.image, b->along, r->along) };
  for (int64_t n; rows.end - *first >= b->together; *first += n) {
    n = rows_at_once(b, CHANGED_ELEMENTS, rows.end - *first);
    if (gb_work(n * b->c)) return;
    gb_differentiate_lines(b->x.dtype, dense_rows(b, &b->y, *first), dense_rows(b, &b->other, *first),
                           dense_rows(b, &b->x, *first), (gb_lines){ n / b->together, b->together * b->c }, slope);
  }
}

static void backward_rows_chunk(void *arg, int64_t chunk) {
  const batch *b = arg;
  batch_room r = batch_room_of(b);
  part_of_rows rows = rows_of_chunk(b, chunk);
  if (b->dense && !b->fixed) differentiate_lines(b, &r, rows, &rows.first);
  if (rows.first == rows.end || gb_was_stopped(b->call)) return;
  const char *from[] = { b->offset, b->scale, b->weight, b->plain, b->along };
  char *to[] = { r.offset, r.scale, r.weight, r.plain, r.along };
  for (int k = 0; k < 5; k++) repeat_channels(b, rows.image, from[k], to[k]);
  for (int64_t n, first = rows.first; first < rows.end; first += n) {
    n = least(b->batch, rows.end - first);
    if (gb_work(BATCH_PASSES * n * b->c)) return;
    if (b->fixed) gb_clear_bytes(r.x, (size_t)(n * b->c * b->bytes));
    const char *x = b->fixed ? r.x : rows_in_lanes(b, &b->x, first, n, r.x);
    const char *grad = rows_in_lanes(b, &b->other, first, n, r.grad);
    char *own = gb_rows_own(&b->y, gb_lane_dtype(b->lane), first), *dx = own ? own : r.grad;
    for (int64_t i = 0; i < n; i += b->together) {
      int64_t at = i * b->c * b->bytes, elements = least(b->together, n - i) * b->c;
      differentiate_channels(b, &r, dx + at, x + at, grad + at, elements);
    }
    if (!own) gb_rows_store(&b->y, b->lane, first, n, dx);
  }
}

/* The sums of a channel become what its elements need, and leave the gradients of bias and weight in the places of its
 * mean and rstd, which are in lanes by now. */
static void channel_gradients(const batch *b, int64_t i) {
  double rstd = b->rstd[i], sums[2];
  sum_chunks(b, i, sums);
  b->mean[i] = sums[0];
  b->rstd[i] = b->count ? sums[1] * rstd : 0; /* nothing has no variance */
  if (b->fixed) gb_row_put(b->lane, b->offset, i, 0);
  gb_row_put(b->lane, b->plain, i, b->fixed ? 0 : sums[0] / (double)b->count);
  gb_row_put(b->lane, b->along, i, b->fixed ? 0 : sums[1] * rstd * rstd / (double)b->count);
}

static void batch_gradient_chunk(void *arg, int64_t chunk) { differentiate_units(arg, chunk, channel_gradients); }

/* The gradient comes from behind a ReLU. */
static void begin_behind_relu(batch *b) {
  const gb_in_batch_norm_backward *in = GB_IN(b->call, batch_norm_backward);
  b->relu.on = true, b->relu.adds = in->more != NULL;
  b->relu.grad = gb_rows_of(in->grad, 1);
  b->relu.rectified = gb_rows_of(in->rectified, 1);
  if (in->more) b->relu.more = gb_rows_of(in->more, 1);
}

/* Have the tensors of a ReLU behind it planes as well? */
static bool relu_has_planes(const gb_in_batch_norm_backward *in) {
  return !in->rectified || (has_planes(in->grad, in->x) && has_planes(in->more, in->x) &&
                            has_planes(in->rectified, in->x));
}

/* dbias is the sum of grad, dweight that of grad * normal; with the batch's own statistics both also flow back through
 * mean and variance. */
static gb_status batch_norm_backward(gb_op_call *call) {
  const gb_in_batch_norm_backward *in = GB_IN(call, batch_norm_backward);
  const gb_out_batch_norm_backward *out = GB_OUT(call, batch_norm_backward);
  batch b;
  if (in->x->shape[1] == 0) return GB_OK;
  GB_TRY(open_batch(&b, call, in->x, in->rectified ? out->masked : in->grad, out->dx, 1, 1, relu_has_planes(in)));
  b.slopes = true;
  if (in->rectified) begin_behind_relu(&b);
  channel_values(in->mean, b.mean, false);
  channel_values(in->rstd, b.rstd, false);
  set_parameter(&b, in->weight, 1, b.weight);
  set_lanes(&b, false);
  b.fixed = !GB_ATTRS(call, batch_norm_backward)->training.integer;
  look_for_lines(&b);
  if (b.plane > 0) run_units(call, &b, batch_gradient_chunk);
  else {
    gb_parallel(call, b.chunks, gradients_chunk, &b);
    for (int64_t i = 0; i < b.c && !gb_work(4 * b.chunks); i++) channel_gradients(&b, i);
    gb_parallel(call, b.chunks, backward_rows_chunk, &b);
  }
  if (out->dweight) channel_values(out->dweight, b.rstd, true);
  channel_values(out->dbias, b.mean, true);
  gb_scratch_close(call, &b.scratch);
  return GB_OK;
}

/* ====} */

/* {==== group_norm ==== */

/* One statistic per group, from or to the cells of the group. */
static void group_values(const batch *b, const gb_tensor *t, double *cells, bool store) {
  int64_t groups = b->cells / b->per;
  if (!t) return;
  if (!store) gb_norm_statistics(t, 0, groups, b->parts, false);
  for (int64_t i = 0; i < groups && !gb_work(b->per); i++) {
    if (store) b->parts[i] = cells[i * b->per];
    else for (int64_t k = 0; k < b->per; k++) cells[i * b->per + k] = b->parts[i];
  }
  if (store) gb_norm_statistics(t, 0, groups, b->parts, true);
}

static gb_status group_norm(gb_op_call *call) {
  const gb_in_group_norm *in = GB_IN(call, group_norm);
  const gb_attrs_group_norm *attrs = GB_ATTRS(call, group_norm);
  const gb_out_group_norm *out = GB_OUT(call, group_norm);
  const int64_t *shape = in->x->shape;
  batch b;
  if (in->x->numel == 0) return GB_OK;
  GB_TRY(open_batch(&b, call, in->x, out->y, out->y, shape[0], shape[1] / attrs->groups.integer, true));
  b.eps = attrs->eps.number;
  set_parameter(&b, in->weight, 1, b.weight);
  set_parameter(&b, in->bias, 0, b.bias);
  normalise(&b, NULL);
  group_values(&b, out->mean, b.mean, true);
  group_values(&b, out->rstd, b.rstd, true);
  gb_scratch_close(call, &b.scratch);
  return GB_OK;
}

/* The sums of a group's cells, each weighted, become what its elements need. */
static void group_gradients(const batch *b, int64_t first) {
  double plain = 0, along = 0, rstd = b->rstd[first], size = (double)(b->per * b->count), sums[2];
  for (int64_t i = first; i < first + b->per; i++) {
    sum_chunks(b, i, sums);
    plain += gb_row_get(b->lane, b->weight, i) * sums[0];
    along += gb_row_get(b->lane, b->weight, i) * sums[1];
  }
  for (int64_t i = first; i < first + b->per; i++) {
    gb_row_put(b->lane, b->plain, i, plain / size);
    gb_row_put(b->lane, b->along, i, along * rstd * rstd / size);
  }
}

static void group_gradient_chunk(void *arg, int64_t chunk) { differentiate_units(arg, chunk, group_gradients); }

/* The gradient of a parameter, over images and places: of the bias the sum of grad, of the weight that of grad *
 * normal. b->mean is free. */
static void group_parameter(const batch *b, bool weight, const gb_tensor *to) {
  double sums[2];
  for (int64_t c = 0; to && c < b->c && !gb_work(4 * b->images * b->chunks); c++) {
    b->mean[c] = 0;
    for (int64_t i = c; i < b->cells; i += b->c) {
      sum_chunks(b, i, sums);
      b->mean[c] += weight ? sums[1] * b->rstd[i] : sums[0];
    }
  }
  if (to) channel_values(to, b->mean, true);
}

static gb_status group_norm_backward(gb_op_call *call) {
  const gb_in_group_norm_backward *in = GB_IN(call, group_norm_backward);
  const gb_out_group_norm_backward *out = GB_OUT(call, group_norm_backward);
  const int64_t *shape = in->x->shape;
  batch b;
  if (in->x->numel == 0) {
    const gb_tensor *none[] = { out->dweight, out->dbias };
    for (int i = 0; i < 2; i++)
      if (none[i]) gb_clear_bytes(gb_data(none[i]), (size_t)none[i]->numel * gb_dtype_bytes((gb_dtype)none[i]->dtype));
    return GB_OK;
  }
  GB_TRY(open_batch(&b, call, in->x, in->grad, out->dx, shape[0], shape[1] / in->mean->shape[1], true));
  b.grouped = b.slopes = true;
  group_values(&b, in->mean, b.mean, false);
  group_values(&b, in->rstd, b.rstd, false);
  set_parameter(&b, in->weight, 1, b.weight);
  set_lanes(&b, false);
  look_for_lines(&b);
  if (b.plane > 0) run_units(call, &b, group_gradient_chunk);
  else {
    gb_parallel(call, b.images * b.chunks, gradients_chunk, &b);
    for (int64_t first = 0; first < b.cells && !gb_work(4 * b.per * b.chunks); first += b.per)
      group_gradients(&b, first);
    gb_parallel(call, b.images * b.chunks, backward_rows_chunk, &b);
  }
  group_parameter(&b, true, out->dweight);
  group_parameter(&b, false, out->dbias);
  gb_scratch_close(call, &b.scratch);
  return GB_OK;
}

/* ====} */

void GB_CPU_FILL(channel_norm)(gb_backend *backend);
void GB_CPU_FILL(channel_norm)(gb_backend *backend) {
  backend->run[GB_OP_batch_norm] = batch_norm;
  backend->run[GB_OP_batch_norm_backward] = batch_norm_backward;
  backend->run[GB_OP_group_norm] = group_norm;
  backend->run[GB_OP_group_norm_backward] = group_norm_backward;
}
