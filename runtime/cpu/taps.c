/* cpu/taps.c - sum_taps and its gradient: each place of a result a weighted sum of a few elements of a plane, the same
 * places for all channels of an image.
 *
 * Channels are taken 16 at a time, transposed, so that an element of all of them is one vector and nothing is gathered.
 * The transposed block is written once and read once a tap, from a cache that holds it. Where it is too large for one,
 * or most of it would not be read, those vectors are put together from the planes as they lie, and the bits are the
 * same. float64 goes by single planes. Sums of a place run over its taps in
 * their order, those of a tap over channels by blocks, whatever the level; an element that several places read has its
 * gradients added in the order of the places. */
#include <string.h>

#include "cpu/scratch.h"
#include "cpu/transpose.h"
#include "cpu/walk.h"

/* Channels of a block, places between two transpositions, and elements of a plane up to which it is transposed. */
enum { BLOCK = 16, PLACES = 64, MOST_ELEMENTS = 1 << 17 };
/* The parts of a sum over channels, where there are few images to share out. */
enum { PARTS = 8 };

typedef float lanes __attribute__((vector_size(4 * BLOCK)));
typedef float half_lanes __attribute__((vector_size(2 * BLOCK)));
typedef float quarter_lanes __attribute__((vector_size(BLOCK)));

/* x [n, c, l], index and weight [n, taps, places], y or grad [n, c, places]. grad NULL: forward. dx, dweight: NULL
 * where they are not wanted. */
typedef struct job {
  gb_op_call *call;
  int64_t n, c, l, taps, places, blocks, groups; /* groups: of blocks, each summed by itself */
  bool turned;                                   /* planes are transposed */
  const void *x, *weight, *grad;
  const int64_t *index;
  void *y, *dx, *dweight;
  gb_scratch scratch;
} job;

/* Where tap 0 of place 0 of an image has its index and weight. */
static int64_t taps_at(const job *j, int64_t image) { return image * j->taps * j->places; }

/* An index as a row of a transposed plane, of which the last is 0. */
static inline int64_t row_of(const job *j, int64_t index) { return (uint64_t)index < (uint64_t)j->l ? index : j->l; }

/* {==== Blocks of channels ==== */

/* The sum of 16 lanes by halves. */
static inline float sum_of(const lanes *x) {
  half_lanes half[2];
  quarter_lanes quarter[2];
  memcpy(half, x, sizeof half);
  half[0] += half[1];
  memcpy(quarter, half, sizeof quarter);
  quarter[0] += quarter[1];
  return (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
}

/* `count` planes of `length` elements as rows of 16 lanes, of which those without a plane stay as they are. */
static void turn_in(lanes *to, const float *from, int64_t count, int64_t step, int64_t length) {
  for GB_PIECES(at, m, length * BLOCK)
    gb_transpose((char *)(to + at / BLOCK), sizeof *to, (const char *)(from + at / BLOCK), step * 4, count, m / BLOCK,
                 4);
}

/* And back. */
static void turn_out(float *to, const lanes *from, int64_t count, int64_t step, int64_t length) {
  for GB_PIECES(at, m, length * BLOCK)
    gb_transpose((char *)(to + at / BLOCK), step * 4, (const char *)(from + at / BLOCK), sizeof *from, m / BLOCK, count,
                 4);
}

/* Channels first .. first + count - 1 of an image of x in the thread's room, with zeros behind them. */
static lanes *turned_planes(const job *j, lanes *room, int64_t image, int64_t first, int64_t count) {
  if (count < BLOCK) gb_clear_bytes(room, (size_t)j->l * sizeof *room);
  room[j->l] = (lanes){ 0 };
  turn_in(room, (const float *)j->x + (image * j->c + first) * j->l, count, j->l, j->l);
  return room;
}

/* A block of planes, and their transpose, or NULL. */
typedef struct block { const float *planes; const lanes *rows; int64_t count; } block;

/* Element i of all planes of a block: where it lies, or put together in `room`. */
static inline __attribute__((always_inline)) const lanes *row_at(const job *j, const block *b, int64_t index,
                                                                 lanes *room, bool turned) {
  const int64_t i = row_of(j, index);
  if (turned) return b->rows + i;
  *room = (lanes){ 0 };
  for (int64_t k = 0; i < j->l && k < b->count; k++) (*room)[k] = b->planes[k * j->l + i];
  return room;
}

/* The sums of n places from index and weight on. */
static inline __attribute__((always_inline)) void sum_places(const job *j, const block *b, const int64_t *index,
                                                             const float *weight, int64_t n, lanes *sums, bool turned) {
  lanes room;
  for (int64_t p = 0; p < n; p++) {
    lanes sum = *row_at(j, b, index[p], &room, turned) * weight[p];
    for (int64_t t = 1; t < j->taps; t++)
      sum += *row_at(j, b, index[t * j->places + p], &room, turned) * weight[t * j->places + p];
    sums[p] = sum;
  }
}

/* One block of one image. */
static void sum_block(void *arg, int64_t chunk) {
  const job *j = arg;
  const int64_t image = chunk / j->blocks, first = chunk % j->blocks * BLOCK;
  block b = { (const float *)j->x + (image * j->c + first) * j->l, NULL, j->c - first < BLOCK ? j->c - first : BLOCK };
  if (j->turned)
    b.rows = turned_planes(j, (lanes *)(void *)gb_scratch_room_of(&j->scratch, chunk), image, first, b.count);
  float *y = (float *)j->y + (image * j->c + first) * j->places;
  lanes sums[PLACES];
  for (int64_t at = 0; at < j->places; at += PLACES) {
    const int64_t n = j->places - at < PLACES ? j->places - at : PLACES, from = taps_at(j, image) + at;
    if (gb_work(n * j->taps * BLOCK)) return;
    if (j->turned) sum_places(j, &b, j->index + from, (const float *)j->weight + from, n, sums, true);
    else sum_places(j, &b, j->index + from, (const float *)j->weight + from, n, sums, false);
    turn_out(y + at, sums, b.count, j->places, n);
  }
}

/* n places of tap t of a block: their gradients, turned, into those of x, of which dx has the rows or else planes the
 * block's, and of the weights. */
static inline __attribute__((always_inline)) void spread_places(const job *j, const block *b, int64_t from, int64_t n,
                                                                const lanes *grad, lanes *dx, float *planes,
                                                                float *dweight, bool turned) {
  const int64_t *index = j->index + from;
  const float *weight = (const float *)j->weight + from;
  for (int64_t p = 0; p < n && planes; p++) {
    const int64_t i = row_of(j, index[p]);
    if (turned) dx[i] += grad[p] * weight[p];
    else for (int64_t k = 0; i < j->l && k < b->count; k++) planes[k * j->l + i] += grad[p][k] * weight[p];
  }
  for (int64_t p = 0; p < n && dweight; p++) {
    lanes product = grad[p] * *row_at(j, b, index[p], &product, turned);
    dweight[p] += sum_of(&product);
  }
}

/* One block of one image, its part of dweight added. */
static void spread_block(const job *j, int64_t image, int64_t at_block, lanes *room, float *dweight) {
  const int64_t first = at_block * BLOCK, planes_at = (image * j->c + first) * j->l;
  const float *grad = (const float *)j->grad + (image * j->c + first) * j->places;
  float *planes = j->dx ? (float *)j->dx + planes_at : NULL;
  block b = { (const float *)j->x + planes_at, NULL, j->c - first < BLOCK ? j->c - first : BLOCK };
  lanes *dx = room + j->l + 1, turned[PLACES];
  if (j->turned && dweight) b.rows = turned_planes(j, room, image, first, b.count);
  if (j->dx && j->turned) gb_clear_bytes(dx, (size_t)(j->l + 1) * sizeof *dx);
  else if (j->dx) gb_clear_bytes(planes, (size_t)(b.count * j->l) * sizeof *planes);
  memset(turned, 0, sizeof turned);
  for (int64_t at = 0; at < j->places; at += PLACES) {
    const int64_t n = j->places - at < PLACES ? j->places - at : PLACES;
    if (gb_work(2 * n * j->taps * BLOCK)) return;
    turn_in(turned, grad + at, b.count, j->places, n);
    for (int64_t t = 0; t < j->taps; t++) {
      const int64_t own = t * j->places + at, from = taps_at(j, image) + own;
      float *share = dweight ? dweight + own : NULL;
      if (j->turned) spread_places(j, &b, from, n, turned, dx, planes, share, true);
      else spread_places(j, &b, from, n, turned, NULL, planes, share, false);
    }
  }
  if (j->dx && j->turned) turn_out(planes, dx, b.count, j->l, j->l);
}

/* A group of blocks of one image. */
static void spread_group(void *arg, int64_t chunk) {
  const job *j = arg;
  const int64_t image = chunk / j->groups, group = chunk % j->groups, each = j->taps * j->places;
  float *parts = j->groups > 1 ? (float *)(void *)j->scratch.shared : j->dweight;
  float *dweight = j->dweight ? parts + (group * j->n + image) * each : NULL;
  lanes *room = (lanes *)(void *)gb_scratch_room_of(&j->scratch, chunk);
  if (dweight) gb_clear_bytes(dweight, (size_t)each * sizeof *dweight);
  for (int64_t b = j->blocks * group / j->groups, end = j->blocks * (group + 1) / j->groups; b < end; b++)
    spread_block(j, image, b, room, dweight);
}

/* ====} */

/* {==== Single planes of float64 ==== */

static void sum_plane(void *arg, int64_t chunk) {
  const job *j = arg;
  const double *x = (const double *)j->x + chunk * j->l, *weight = j->weight;
  double *y = (double *)j->y + chunk * j->places;
  for (int64_t p = 0, at = taps_at(j, chunk / j->c); p < j->places && !gb_work(j->taps); p++, at++) {
    double sum = 0;
    for (int64_t t = 0, k = at; t < j->taps; t++, k += j->places) {
      const int64_t i = row_of(j, j->index[k]);
      const double share = (i < j->l ? x[i] : 0) * weight[k];
      sum = t ? sum + share : share;
    }
    y[p] = sum;
  }
}

static void spread_plane(const job *j, int64_t image, int64_t channel) {
  const int64_t plane = image * j->c + channel;
  const double *x = (const double *)j->x + plane * j->l, *weight = j->weight;
  const double *grad = (const double *)j->grad + plane * j->places;
  double *dx = j->dx ? (double *)j->dx + plane * j->l : NULL, *dweight = j->dweight;
  for (int64_t t = 0; t < j->taps; t++)
    for (int64_t p = 0, k = taps_at(j, image) + t * j->places; p < j->places && !gb_long_loop(p); p++, k++) {
      const int64_t i = row_of(j, j->index[k]);
      if (i < j->l && dx) dx[i] += grad[p] * weight[k];
      if (dweight) dweight[k] += grad[p] * (i < j->l ? x[i] : 0);
    }
}

/* All channels of an image, in order. */
static void spread_planes(void *arg, int64_t image) {
  const job *j = arg;
  for (int64_t channel = 0; channel < j->c && !gb_work(j->taps * j->places); channel++) spread_plane(j, image, channel);
}

/* ====} */

static job job_of(gb_op_call *call, const gb_tensor *x, const gb_tensor *index, const gb_tensor *weight) {
  const int64_t c = x->shape[1];
  return (job){ .call = call, .n = x->shape[0], .c = c, .l = x->shape[2], .taps = index->shape[1],
                .places = index->shape[2], .blocks = (c + BLOCK - 1) / BLOCK, .x = gb_data(x),
                .weight = gb_data(weight), .index = (const int64_t *)(const void *)gb_data(index) };
}

/* Rooms for so many chunks of blocks: for `each` transposed planes, if they are worth it. */
static gb_status open_rooms(job *j, size_t shared, int64_t each, int64_t chunks) {
  j->turned = j->l <= MOST_ELEMENTS && 2 * j->taps * j->places >= j->l;
  const size_t room = j->turned ? (size_t)(each * (j->l + 1)) * sizeof(lanes) : 0;
  return gb_scratch_open_chunks(j->call, (shared + 63) & ~(size_t)63, room, chunks, &j->scratch);
}

static gb_status sum_taps(gb_op_call *call) {
  const gb_in_sum_taps *in = GB_IN(call, sum_taps);
  const gb_tensor *y = GB_OUT(call, sum_taps)->y;
  job j = job_of(call, in->x, in->index, in->weight);
  j.y = gb_data(y);
  if (y->numel == 0) return GB_OK;
  if (in->x->dtype == GB_FLOAT64) {
    gb_parallel(call, j.n * j.c, sum_plane, &j);
    return GB_OK;
  }
  GB_TRY(open_rooms(&j, 0, 1, j.n * j.blocks));
  gb_parallel(call, j.n * j.blocks, sum_block, &j);
  gb_scratch_close(call, &j.scratch);
  return GB_OK;
}

/* Blocks of channels in groups, whose parts of dweight are then added up. */
static gb_status spread_blocks(job *j) {
  const int64_t parts = j->n * j->taps * j->places;
  j->groups = j->n >= PARTS ? 1 : j->blocks < PARTS ? j->blocks : PARTS;
  const size_t shared = j->dweight && j->groups > 1 ? (size_t)(j->groups * parts) * 4 : 0;
  GB_TRY(open_rooms(j, shared, 2, j->n * j->groups));
  gb_parallel(j->call, j->n * j->groups, spread_group, j);
  if (shared && !gb_was_stopped(j->call)) {
    gb_sum_parts(j->call, GB_LANE_F32, j->scratch.shared, parts, j->groups);
    gb_copy_bytes(j->dweight, j->scratch.shared, (size_t)parts * 4);
  }
  gb_scratch_close(j->call, &j->scratch);
  return GB_OK;
}

static gb_status sum_taps_backward(gb_op_call *call) {
  const gb_in_sum_taps_backward *in = GB_IN(call, sum_taps_backward);
  const gb_out_sum_taps_backward *out = GB_OUT(call, sum_taps_backward);
  job j = job_of(call, in->x, in->index, in->weight);
  j.grad = gb_data(in->grad);
  j.dx = out->dx ? gb_data(out->dx) : NULL, j.dweight = out->dweight ? gb_data(out->dweight) : NULL;
  if (in->grad->numel > 0 && in->x->dtype == GB_FLOAT32) return spread_blocks(&j);
  const size_t bytes = gb_dtype_bytes((gb_dtype)in->x->dtype);
  if (j.dx) gb_zero_bytes(call, j.dx, (size_t)out->dx->numel * bytes);
  if (j.dweight) gb_zero_bytes(call, j.dweight, (size_t)out->dweight->numel * bytes);
  if (in->grad->numel > 0 && !gb_was_stopped(call)) gb_parallel(call, j.n, spread_planes, &j);
  return GB_OK;
}

void GB_CPU_FILL(taps)(gb_backend *backend);
void GB_CPU_FILL(taps)(gb_backend *backend) {
  backend->run[GB_OP_sum_taps] = sum_taps;
  backend->run[GB_OP_sum_taps_backward] = sum_taps_backward;
}
