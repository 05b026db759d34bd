/* cpu/pool2d.c - maximum and average pooling and their gradients.
 *
 * The inner loop runs over channels, up to a tile of them, at one position of one image: with the channels last in
 * memory it is a run, in any other layout a strided read. Forward, a position gathers its window; backward, it gathers
 * the windows that it lies in, so every element is written once, rounded once, and summed in a fixed order. A chunk is
 * some rows of images. Where channels lie side by side, maxima and their gradients are made a vector of channels at a
 * time, from the first of a window to the last in registers. Where they lie apart, some images at a time are brought
 * into that order and back. Traffic: x (or grad) is read kernel / stride times per dimension, the result written once;
 * one comparison or addition per element read. */
#include <math.h>
#include <string.h>

#include "cpu/scratch.h"
#include "cpu/walk.h"
#include "cpu/wide.h"
#include "ops/conv.h"

/* {==== Windows ==== */

/* One dimension of a pooling. kernel 0: adaptive, where window i is floor(i * in / out) .. ceil((i + 1) * in / out) -
 * 1. */
/* step: how far apart the elements of a window are, which only maxima with places read; else 1. */
typedef struct axis { int64_t in, out, kernel, stride, padding, step; } axis;

/* Positions first .. end - 1. */
typedef struct span { int64_t first, end; } span;

static span clip(int64_t first, int64_t end,
                 int64_t size) { return (span){ first > 0 ? first : 0, end < size ? end : size }; }

/* ceil(a / b) for b > 0 and any a. */
static int64_t divide_up(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

/* The inputs of window `out`. */
static span window_of(const axis *a, int64_t out) {
  if (!a->kernel) return (span){ out * a->in / a->out, divide_up((out + 1) * a->in, a->out) };
  int64_t first = out * a->stride - a->padding, end = first + (a->kernel - 1) * a->step + 1;
  if (first < 0) first += divide_up(-first, a->step) * a->step;
  return clip(first, end, a->in);
}

/* The windows that input `in` lies in. */
static span windows_with(const axis *a, int64_t in) {
  if (!a->kernel) return (span){ in * a->out / a->in, divide_up((in + 1) * a->out, a->in) };
  return clip(divide_up(in + a->padding - a->kernel + 1, a->stride), (in + a->padding) / a->stride + 1, a->out);
}

/* What the mean over window `out` divides by, along this dimension: padding counts unless `bare`, what lies beyond it
 * does not. */
static int64_t divisor_of(const axis *a, int64_t out, bool bare) {
  span w = window_of(a, out);
  if (!a->kernel || bare) return w.end - w.first;
  int64_t first = out * a->stride - a->padding, end = first + a->kernel, most = a->in + a->padding;
  return (end < most ? end : most) - first;
}

/* ====} */

/* {==== Walking ==== */

/* A [n, c, h, w] tensor in memory; data NULL: there is none. */
typedef struct plane { char *data; gb_dtype dtype; int64_t stride[4]; } plane;

/* A row of one image of the result, and what it reads along the height. *work counts for gb_long_work: a window may be
 * as large as the image. */
typedef struct pool_row { int64_t image, y; span reach; int64_t *work; } pool_row;

typedef struct pool pool;
/* Channels first .. first + n - 1 of row r at column x of the result. */
typedef void (*pool_cell)(const pool *p, const pool_row *r, int64_t x, int64_t first, int64_t n);
/* The first `whole` channels, a multiple of GB_VECTOR, of all columns of row r. */
typedef void (*pool_wide)(const pool *p, const pool_row *r, int64_t whole);

/* How one kind of pooling is made. */
typedef struct pool_kind {
  pool_cell cell;
  pool_wide wide;                              /* NULL: by cells alone */
  span (*reach)(const axis *a, int64_t at);    /* what a position of the result reads along one dimension */
  bool marks;                                  /* it writes positions; others read them */
  bool bare;                                   /* of means: padding does not count; */
  int64_t divisor;                             /* and what they divide by, 0: what counts */
} pool_kind;

/* A pooling as all its chunks see it. */
struct pool {
  gb_op_call *call;
  const pool_kind *kind;
  axis axis[2];
  plane from, positions, to;                   /* positions: uint8, written by the forward pass, read by the others */
  int64_t shape[4], whole, rows_of_chunk;      /* of the result; channels that kind->wide makes */
  const span *columns;                         /* kind->reach of every column of the result */
  gb_lane lane;
};

static plane plane_of(const gb_tensor *t) {
  if (!t) return (plane){ .data = NULL };
  return (plane){ gb_data(t), (gb_dtype)t->dtype, { t->stride[0], t->stride[1], t->stride[2], t->stride[3] } };
}

static char *place(const plane *t, int64_t image, int64_t channel, int64_t y, int64_t x) {
  int64_t at = image * t->stride[0] + channel * t->stride[1] + y * t->stride[2] + x * t->stride[3];
  return t->data + at * (int64_t)gb_dtype_bytes(t->dtype);
}

/* n channels of t in lanes: where they lie if that is how they lie, else in room. */
static const void *channels(gb_lane lane, const plane *t, int64_t image, int64_t first, int64_t y, int64_t x, int64_t n,
                            void *room) {
  const char *from = place(t, image, first, y, x);
  if (t->dtype == gb_lane_dtype(lane) && (t->stride[1] == 1 || n == 1)) return from;
  gb_lane_load(lane, room, from, t->dtype, t->stride[1], n);
  return room;
}

static void put_channels(const pool *p, const pool_row *r, int64_t x, int64_t first, const void *from, int64_t n) {
  gb_lane_store(p->lane, place(&p->to, r->image, first, r->y, x), p->to.dtype, p->to.stride[1], from, n);
}

/* n window positions, where they are or brought together in room. */
static const uint8_t *positions_at(const pool *p, int64_t image, int64_t first, int64_t y, int64_t x, int64_t n,
                                   uint8_t *room) {
  const uint8_t *from = (const uint8_t *)place(&p->positions, image, first, y, x);
  if (p->positions.stride[1] == 1) return from;
  for (int64_t i = 0; i < n; i++) room[i] = from[i * p->positions.stride[1]];
  return room;
}

/* Some rows of the result. */
static void pool_chunk(void *arg, int64_t chunk) {
  const pool *p = arg;
  int64_t height = p->shape[2], end = (chunk + 1) * p->rows_of_chunk, count = p->shape[0] * height, work = 0;
  for (int64_t row = chunk * p->rows_of_chunk; row < end && row < count; row++) {
    pool_row r = { .image = row / height, .y = row % height, .work = &work };
    r.reach = p->kind->reach(&p->axis[0], r.y);
    if (p->whole > 0) p->kind->wide(p, &r, p->whole);
    for (int64_t x = 0; x < p->shape[3] && p->whole < p->shape[1]; x++)
      for (int64_t first = p->whole; first < p->shape[1]; first += GB_TILE) {
        int64_t left = p->shape[1] - first;
        if (gb_was_stopped(p->call)) return;
        p->kind->cell(p, &r, x, first, left < GB_TILE ? left : GB_TILE);
      }
  }
}

/* Do the channels of all of them lie side by side, in one float dtype that lanes of float32 widen? */
static bool is_wide(const pool *p) {
  bool together = p->from.stride[1] == 1 && p->to.stride[1] == 1 && (!p->positions.data || p->positions.stride[1] == 1);
  return together && p->lane == GB_LANE_F32 && p->from.dtype == p->to.dtype;
}

static void run_chunks(pool *p) {
  if (p->kind->wide && is_wide(p)) p->whole = p->shape[1] / GB_VECTOR * GB_VECTOR;
  int64_t row = p->shape[1] * p->shape[3], rows = p->shape[0] * p->shape[2];
  p->rows_of_chunk = row < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / row : 1;
  gb_parallel(p->call, (rows + p->rows_of_chunk - 1) / p->rows_of_chunk, pool_chunk, p);
}

/* Do the channels of one of them lie apart, so many that it pays to bring them together? */
static bool is_apart(const pool *p) {
  if (p->positions.data && p->positions.dtype != GB_UINT8) return false;
  if (p->shape[1] < GB_VECTOR) return false;
  return p->from.stride[1] != 1 || p->to.stride[1] != 1 || (p->positions.data && p->positions.stride[1] != 1);
}

/* Images from `image` on; and as many as shape says in *room, with the channels last, which is moved behind them. */
static plane images_of(plane t, int64_t image) {
  if (t.data) t.data += image * t.stride[0] * (int64_t)gb_dtype_bytes(t.dtype);
  return t;
}
static plane images_in_room(const plane *like, const int64_t *shape, char **room) {
  plane t = { .data = NULL, .dtype = like->dtype };
  if (!like->data) return t;
  t.data = *room;
  gb_channels_last_strides(shape, t.stride);
  int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * (int64_t)gb_dtype_bytes(t.dtype);
  *room += (bytes + 63) / 64 * 64;
  return t;
}

static void copy_images(const pool *p, const int64_t *shape, const plane *from, const plane *to) {
  if (from->data)
    gb_copy_strided(p->call, 4, shape, to->data, to->dtype, to->stride, from->data, from->dtype, from->stride);
}

/* A pooling of images whose channels lie apart, some images at a time: they are brought together in scratch. */
enum { TURNED_ELEMENTS = 1 << 18 };
static gb_status run_turned(const pool *all) {
  const axis *a = all->axis;
  const bool back = all->kind->reach == windows_with;
  int64_t windows[4] = { 1, all->shape[1], a[0].out, a[1].out }, to[4] = { 1, all->shape[1], a[0].in, a[1].in };
  int64_t *from = back ? windows : to, *result = back ? to : windows, images = 1;
  const int64_t each = to[1] * (to[2] * to[3] + windows[2] * windows[3]), n = all->shape[0];
  if (each < TURNED_ELEMENTS) images = TURNED_ELEMENTS / each < n ? TURNED_ELEMENTS / each : n;
  const int64_t bytes = to[1] * (from[2] * from[3] * (int64_t)gb_dtype_bytes(all->from.dtype) +
                                 result[2] * result[3] * (int64_t)gb_dtype_bytes(all->to.dtype) +
                                 windows[2] * windows[3]);
  gb_block *block = gb_cpu_scratch(all->call, (size_t)(images * bytes + 3 * 64));
  if (!block) return GB_EMEMORY;
  for (int64_t image = 0; image < n && !gb_was_stopped(all->call); image += images) {
    pool p = *all;
    char *room = gb_block_data(block);
    windows[0] = to[0] = p.shape[0] = n - image < images ? n - image : images;
    p.from = images_in_room(&all->from, from, &room);
    p.to = images_in_room(&all->to, result, &room);
    p.positions = images_in_room(&all->positions, windows, &room);
    const plane given = images_of(all->from, image), made = images_of(all->to, image),
        marked = images_of(all->positions, image);
    copy_images(&p, from, &given, &p.from);
    if (!p.kind->marks) copy_images(&p, windows, &marked, &p.positions);
    run_chunks(&p);
    copy_images(&p, result, &p.to, &made);
    if (p.kind->marks) copy_images(&p, windows, &p.positions, &marked);
  }
  gb_cpu_scratch_free(all->call, block);
  return GB_OK;
}

/* Run a pooling of `from` over the result `to`. sizes NULL: adaptive, between the sizes of `in` and `out`. */
static gb_status run(gb_op_call *call, const pool_kind *kind, const gb_conv_sizes *sizes, const int64_t *in,
                     const int64_t *out, const plane *from, const gb_tensor *positions, const gb_tensor *to) {
  pool p = { .call = call, .kind = kind, .from = *from, .positions = plane_of(positions), .to = plane_of(to) };
  p.lane = gb_lane_of(p.from.dtype, p.to.dtype);
  memcpy(p.shape, to->shape, sizeof p.shape);
  for (int i = 0; i < 2; i++) {
    p.axis[i] = (axis){ .in = in[i], .out = out[i], .step = 1 };
    if (sizes)
      p.axis[i] = (axis){ sizes->in[i], sizes->out[i], sizes->kernel[i], sizes->stride[i], sizes->padding[i],
                          sizes->dilation[i] };
  }
  if (to->numel == 0) return GB_OK;
  gb_block *block = gb_cpu_scratch(call, (size_t)p.shape[3] * sizeof(span));
  if (!block) return GB_EMEMORY;
  span *columns = (span *)(void *)gb_block_data(block);
  for (int64_t x = 0; x < p.shape[3]; x++) columns[x] = kind->reach(&p.axis[1], x);
  p.columns = columns;
  gb_status status = GB_OK;
  if (is_apart(&p)) status = run_turned(&p);
  else run_chunks(&p);
  gb_cpu_scratch_free(call, block);
  return status;
}

/* The same of a tensor as it lies. */
static gb_status run_over(gb_op_call *call, const pool_kind *kind, const gb_conv_sizes *sizes, const gb_tensor *x,
                          const gb_tensor *positions, const gb_tensor *to) {
  plane from = plane_of(x);
  return run(call, kind, sizes, sizes->in, sizes->out, &from, positions, to);
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

/* The position of input (y, x) in the window of output (top, left): row by row, padding counted. */
static int64_t position_in(const pool *p, int64_t top, int64_t left, int64_t y, int64_t x) {
  const axis *a = p->axis;
  return (y - top * a[0].stride + a[0].padding) * a[1].kernel + x - left * a[1].stride + a[1].padding;
}

static void max_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  double best[GB_TILE], room[GB_TILE]; /* or that many float32 */
  uint8_t which[GB_TILE];
  span rows = r->reach, columns = p->columns[at];
  memcpy(best, channels(p->lane, &p->from, r->image, first, rows.first, columns.first, n, room),
         (size_t)n * gb_lane_bytes(p->lane));
  memset(which, (int)position_in(p, r->y, at, rows.first, columns.first), (size_t)n);
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, r->work, n)) return;
      keep_larger(p->lane, best, which, channels(p->lane, &p->from, r->image, first, y, x, n, room),
                  (uint8_t)position_in(p, r->y, at, y, x), n);
    }
  put_channels(p, r, at, first, best, n);
  if (!p->positions.data) return;
  uint8_t *to = (uint8_t *)place(&p->positions, r->image, first, r->y, at);
  for (int64_t i = 0; i < n; i++) to[i * p->positions.stride[1]] = which[i];
}

/* Window positions of the elements of a gb_wide. */
typedef struct wide_positions { gb_vector_bits a, b; } wide_positions;

/* Elements of a vector from and to as many bytes, or 16-bit numbers. By name where a compiler would take one element
 * after the other. */
GB_ALWAYS_INLINE gb_vector_bits widen_bytes(const uint8_t *from) {
#if defined(__AVX512BW__)
  return (gb_vector_bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(GB_WIDE_AVX2)
  return (gb_vector_bits)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
  gb_vector_bits x;
  for (int k = 0; k < GB_VECTOR; k++) x[k] = from[k];
  return x;
#endif
}

GB_ALWAYS_INLINE gb_vector_bits widen_pairs(const uint8_t *from) {
#if defined(__AVX512BW__)
  return (gb_vector_bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from));
#elif defined(GB_WIDE_AVX2)
  return (gb_vector_bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#else
  gb_vector_half half;
  memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, gb_vector_bits);
#endif
}

GB_ALWAYS_INLINE void narrow_to_bytes(uint8_t *to, gb_vector_bits x) {
#if defined(__AVX512BW__)
  _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
  for (int k = 0; k < GB_VECTOR; k++) to[k] = (uint8_t)x[k];
#endif
}

GB_ALWAYS_INLINE void narrow_to_pairs(uint8_t *to, gb_vector_bits x) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16((__m512i)x));
#else
  gb_vector_half half = __builtin_convertvector(x, gb_vector_half);
  memcpy(to, &half, sizeof half);
#endif
}

/* To and from bytes in the order of memory: with bfloat16, elements of both vectors take turns. */
GB_ALWAYS_INLINE void store_positions(gb_dtype dtype, uint8_t *to, wide_positions p) {
  if (dtype == GB_BFLOAT16) narrow_to_pairs(to, p.a | (p.b << 8));
  else {
    narrow_to_bytes(to, p.a);
    narrow_to_bytes(to + GB_VECTOR, p.b);
  }
}

GB_ALWAYS_INLINE wide_positions load_positions(gb_dtype dtype, const uint8_t *from) {
  if (dtype != GB_BFLOAT16) return (wide_positions){ widen_bytes(from), widen_bytes(from + GB_VECTOR) };
  gb_vector_bits both = widen_pairs(from);
  return (wide_positions){ both & 0xffu, both >> 8 };
}

/* keep_larger for a vector. */
GB_ALWAYS_INLINE void keep_larger_vector(gb_vector *best, gb_vector_bits *which, gb_vector x, uint32_t position) {
  gb_vector_bits more = (gb_vector_bits)((x > *best) | (x != x));
  *best = (gb_vector)(((gb_vector_bits)x & more) | ((gb_vector_bits)*best & ~more));
  *which = (position & more) | (*which & ~more);
}

/* Channels i .. i + GB_WIDE - 1 of one cell. Its window is height x width elements at `from`, the first of them at
 * `position`. */
GB_ALWAYS_INLINE void max_of_window(gb_dtype dtype, const pool *p, const char *from, int64_t i, uint32_t position,
                                    int64_t height, int64_t width,
                                    char *to, uint8_t *which) {
  const int64_t size = dtype == GB_FLOAT32 ? 4 : 2, down = p->from.stride[2] * size, right = p->from.stride[3] * size;
  gb_wide best = gb_wide_load(dtype, from, i);
  wide_positions at = { (gb_vector_bits){ 0 } + position, (gb_vector_bits){ 0 } + position };
  for (int64_t y = 0; y < height; y++, from += down, position += (uint32_t)p->axis[1].kernel)
    for (int64_t x = 0; x < width; x++) {
      gb_wide next = gb_wide_load(dtype, from + x * right, i);
      keep_larger_vector(&best.a, &at.a, next.a, position + (uint32_t)x);
      keep_larger_vector(&best.b, &at.b, next.b, position + (uint32_t)x);
    }
  gb_wide_store(dtype, to, i, best, false);
  if (which) store_positions(dtype, which + i, at);
}

/* The same for channels i .. i + GB_VECTOR - 1, in their natural order. */
GB_ALWAYS_INLINE void max_of_half_window(gb_dtype dtype, const pool *p, const char *from, int64_t i, uint32_t position,
                                         int64_t height, int64_t width, char *to, uint8_t *which) {
  const int64_t size = dtype == GB_FLOAT32 ? 4 : 2, down = p->from.stride[2] * size, right = p->from.stride[3] * size;
  gb_vector best = gb_vector_load(dtype, from, i);
  gb_vector_bits at = (gb_vector_bits){ 0 } + position;
  for (int64_t y = 0; y < height; y++, from += down, position += (uint32_t)p->axis[1].kernel)
    for (int64_t x = 0; x < width; x++)
      keep_larger_vector(&best, &at, gb_vector_load(dtype, from + x * right, i), position + (uint32_t)x);
  gb_vector_store_as(dtype, to, i, best);
  if (which) narrow_to_bytes(which + i, at);
}

GB_ALWAYS_INLINE int max_row_of(gb_dtype dtype, const pool *p, const pool_row *r, int64_t whole) {
  span rows = r->reach;
  for (int64_t x = 0; x < p->shape[3]; x++) {
    span columns = p->columns[x];
    int64_t height = rows.end - rows.first, width = columns.end - columns.first;
    uint32_t position = (uint32_t)position_in(p, r->y, x, rows.first, columns.first);
    const char *from = place(&p->from, r->image, 0, rows.first, columns.first);
    char *to = place(&p->to, r->image, 0, r->y, x);
    uint8_t *which = p->positions.data ? (uint8_t *)place(&p->positions, r->image, 0, r->y, x) : NULL;
    if (gb_long_work(p->call, r->work, height * width * whole)) return 0;
    int64_t i = 0;
    for (; i + GB_WIDE <= whole; i += GB_WIDE) max_of_window(dtype, p, from, i, position, height, width, to, which);
    if (i < whole) max_of_half_window(dtype, p, from, i, position, height, width, to, which);
  }
  return 0;
}

static void max_row(const pool *p, const pool_row *r,
                    int64_t whole) { (void)GB_WIDE_FOR(p->from.dtype, max_row_of, p, r, whole); }

/* keep_larger with the place in the image. */
static void keep_larger_place(gb_lane lane, void *best, int64_t *which, const void *x, int64_t at, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double b = lane == GB_LANE_F32 ? (double)((float *)best)[i] : ((double *)best)[i];
    double v = lane == GB_LANE_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
    if (!(v > b || v != v)) continue;
    gb_row_put(lane, best, i, v);
    which[i] = at;
  }
}

/* max_cell over windows with gaps, or adaptive ones; positions: the places in the image, of int64, if wanted. */
static void place_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  double best[GB_TILE], room[GB_TILE];
  int64_t which[GB_TILE];
  span rows = r->reach, columns = p->columns[at];
  const void *start = channels(p->lane, &p->from, r->image, first, rows.first, columns.first, n, room);
  memcpy(best, start, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t i = 0; i < n; i++) which[i] = rows.first * p->axis[1].in + columns.first;
  for (int64_t y = rows.first; y < rows.end; y += p->axis[0].step)
    for (int64_t x = columns.first; x < columns.end; x += p->axis[1].step) {
      if (gb_long_work(p->call, r->work, n)) return;
      keep_larger_place(p->lane, best, which, channels(p->lane, &p->from, r->image, first, y, x, n, room),
                        y * p->axis[1].in + x, n);
    }
  put_channels(p, r, at, first, best, n);
  if (!p->positions.data) return;
  int64_t *to = (int64_t *)(void *)place(&p->positions, r->image, first, r->y, at);
  for (int64_t i = 0; i < n; i++) to[i * p->positions.stride[1]] = which[i];
}

static const pool_kind places = { .cell = place_cell, .reach = window_of };

/* With places where somebody wants them, or windows have gaps. */
static gb_status max_pool2d(gb_op_call *call) {
  static const pool_kind kind = { .cell = max_cell, .wide = max_row, .reach = window_of, .marks = true };
  const gb_tensor *x = GB_IN(call, max_pool2d)->x;
  const gb_out_max_pool2d *out = GB_OUT(call, max_pool2d);
  const gb_tensor *wanted = out->indices ? out->indices : out->places;
  gb_conv_sizes s = gb_pool_sizes_of(2, x->shape, GB_MAX_POOL_ATTRS(GB_ATTRS(call, max_pool2d)));
  if (wanted || s.dilation[0] > 1 || s.dilation[1] > 1) return run_over(call, &places, &s, x, wanted, out->y);
  return run_over(call, &kind, &s, x, out->positions, out->y);
}

static gb_status adaptive_max_pool2d(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, adaptive_max_pool2d)->x;
  const gb_out_adaptive_max_pool2d *out = GB_OUT(call, adaptive_max_pool2d);
  plane from = plane_of(x);
  return run(call, &places, NULL, x->shape + 2, out->y->shape + 2, &from, out->indices ? out->indices : out->places,
             out->y);
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
static void max_backward_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  double sums[GB_TILE], room[GB_TILE];
  uint8_t which_room[GB_TILE];
  span rows = r->reach, columns = p->columns[at];
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, r->work, n)) return;
      const void *grad = channels(p->lane, &p->from, r->image, first, y, x, n, room);
      const uint8_t *which = positions_at(p, r->image, first, y, x, n, which_room);
      add_where(p->lane, sums, grad, which, (uint8_t)position_in(p, y, x, r->y, at), n);
    }
  put_channels(p, r, at, first, sums, n);
}

GB_ALWAYS_INLINE int max_backward_row_of(gb_dtype dtype, const pool *p, const pool_row *r, int64_t whole) {
  const int64_t size = dtype == GB_FLOAT32 ? 4 : 2, height = r->reach.end - r->reach.first;
  const int64_t down = p->from.stride[2] * size, right = p->from.stride[3] * size, which_down = p->positions.stride[2],
      which_right = p->positions.stride[3];
  /* by how much the position in a window is less than in the one above, and in the one to the left */
  const uint32_t less_down = (uint32_t)(p->axis[0].stride * p->axis[1].kernel),
      less_right = (uint32_t)p->axis[1].stride;
  const char *grads = place(&p->from, r->image, 0, r->reach.first, 0);
  const uint8_t *positions = (const uint8_t *)place(&p->positions, r->image, 0, r->reach.first, 0);
  char *to = place(&p->to, r->image, 0, r->y, 0);
  for (int64_t at = 0; at < p->shape[3]; at++, to += p->to.stride[3] * size) {
    span columns = p->columns[at];
    int64_t width = columns.end - columns.first;
    uint32_t position = (uint32_t)position_in(p, r->reach.first, columns.first, r->y, at);
    const char *grad = grads + columns.first * right;
    const uint8_t *which = positions + columns.first * which_right;
    if (gb_long_work(p->call, r->work, (height * width + 1) * whole)) return 0;
    int64_t i = 0;
    for (; i + GB_WIDE <= whole; i += GB_WIDE) {
      gb_wide sums = { { 0 }, { 0 } };
      for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++) {
          gb_wide g = gb_wide_load(dtype, grad + y * down + x * right, i);
          wide_positions w = load_positions(dtype, which + y * which_down + x * which_right + i);
          uint32_t here = position - (uint32_t)y * less_down - (uint32_t)x * less_right;
          sums.a += (gb_vector)((gb_vector_bits)g.a & (gb_vector_bits)(w.a == here));
          sums.b += (gb_vector)((gb_vector_bits)g.b & (gb_vector_bits)(w.b == here));
        }
      gb_wide_store(dtype, to, i, sums, false);
    }
    if (i == whole) continue;
    gb_vector sums = { 0 };
    for (int64_t y = 0; y < height; y++)
      for (int64_t x = 0; x < width; x++) {
        gb_vector g = gb_vector_load(dtype, grad + y * down + x * right, i);
        gb_vector_bits w = widen_bytes(which + y * which_down + x * which_right + i);
        uint32_t here = position - (uint32_t)y * less_down - (uint32_t)x * less_right;
        sums += (gb_vector)((gb_vector_bits)g & (gb_vector_bits)(w == here));
      }
    gb_vector_store_as(dtype, to, i, sums);
  }
  return 0;
}

static void max_backward_row(const pool *p, const pool_row *r, int64_t whole) {
  (void)GB_WIDE_FOR(p->from.dtype, max_backward_row_of, p, r, whole);
}

static gb_status max_pool2d_backward(gb_op_call *call) {
  static const pool_kind kind = { .cell = max_backward_cell, .wide = max_backward_row, .reach = windows_with };
  const gb_attrs_max_pool2d_backward *attrs = GB_ATTRS(call, max_pool2d_backward);
  gb_conv_sizes s = gb_pool_sizes_of(2, attrs->shape.ints, GB_POOL_ATTRS(attrs));
  const gb_in_max_pool2d_backward *in = GB_IN(call, max_pool2d_backward);
  plane from = plane_of(in->grad);
  return run(call, &kind, &s, s.in, s.out, &from, in->positions, GB_OUT(call, max_pool2d_backward)->dx);
}

/* The element of x at each window's position. */
static void gather_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  const axis *a = p->axis;
  double taken[GB_TILE];
  uint8_t which_room[GB_TILE];
  if (gb_long_work(p->call, r->work, n)) return;
  const uint8_t *which = positions_at(p, r->image, first, r->y, at, n, which_room);
  for (int64_t i = 0; i < n; i++) {
    int64_t y = r->y * a[0].stride - a[0].padding + which[i] / a[1].kernel,
        x = at * a[1].stride - a[1].padding + which[i] % a[1].kernel;
    char *to = (char *)taken + i * (int64_t)gb_lane_bytes(p->lane);
    bool inside = y >= 0 && y < a[0].in && x >= 0 && x < a[1].in;
    if (inside) gb_lane_load(p->lane, to, place(&p->from, r->image, first + i, y, x), p->from.dtype, 1, 1);
    else gb_row_put(p->lane, taken, i, 0);
  }
  put_channels(p, r, at, first, taken, n);
}

static gb_status max_pool2d_gather(gb_op_call *call) {
  static const pool_kind kind = { .cell = gather_cell, .reach = window_of };
  const gb_in_max_pool2d_gather *in = GB_IN(call, max_pool2d_gather);
  gb_conv_sizes s = gb_pool_sizes_of(2, in->x->shape, GB_POOL_ATTRS(GB_ATTRS(call, max_pool2d_gather)));
  return run_over(call, &kind, &s, in->x, in->positions, GB_OUT(call, max_pool2d_gather)->y);
}

/* ====} */

/* {==== Mean ==== */

/* What one element of window (y, x) has of its mean. */
static double share_of(const pool *p, int64_t y, int64_t x) {
  const pool_kind *k = p->kind;
  if (k->divisor) return 1.0 / (double)k->divisor;
  return 1.0 / (double)(divisor_of(&p->axis[0], y, k->bare) * divisor_of(&p->axis[1], x, k->bare));
}

static void mean_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  double sums[GB_TILE], room[GB_TILE];
  span rows = r->reach, columns = p->columns[at];
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, r->work, n)) return;
      gb_row_add(p->lane, sums, channels(p->lane, &p->from, r->image, first, y, x, n, room), n, 1);
    }
  gb_row_scale(p->lane, sums, n, share_of(p, r->y, at));
  put_channels(p, r, at, first, sums, n);
}

static void mean_backward_cell(const pool *p, const pool_row *r, int64_t at, int64_t first, int64_t n) {
  double sums[GB_TILE], room[GB_TILE];
  span rows = r->reach, columns = p->columns[at];
  memset(sums, 0, (size_t)n * gb_lane_bytes(p->lane));
  for (int64_t y = rows.first; y < rows.end; y++)
    for (int64_t x = columns.first; x < columns.end; x++) {
      if (gb_long_work(p->call, r->work, n)) return;
      gb_row_add(p->lane, sums, channels(p->lane, &p->from, r->image, first, y, x, n, room), n, share_of(p, y, x));
    }
  put_channels(p, r, at, first, sums, n);
}

static const pool_kind mean = { .cell = mean_cell, .reach = window_of };
static const pool_kind mean_backward = { .cell = mean_backward_cell, .reach = windows_with };

/* Means with what the options of avg_pool2d say of their divisor. */
static pool_kind divided(pool_kind kind, const gb_attr *count_include_pad, const gb_attr *divisor) {
  kind.bare = !count_include_pad->integer;
  kind.divisor = divisor->given ? divisor->integer : 0;
  return kind;
}

static gb_status avg_pool2d(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, avg_pool2d)->x;
  const gb_attrs_avg_pool2d *attrs = GB_ATTRS(call, avg_pool2d);
  gb_conv_sizes s = gb_pool_sizes_of(2, x->shape, GB_MEAN_POOL_ATTRS(attrs));
  pool_kind kind = divided(mean, &attrs->count_include_pad, &attrs->divisor_override);
  return run_over(call, &kind, &s, x, NULL, GB_OUT(call, avg_pool2d)->y);
}

static gb_status avg_pool2d_backward(gb_op_call *call) {
  const gb_attrs_avg_pool2d_backward *attrs = GB_ATTRS(call, avg_pool2d_backward);
  gb_conv_sizes s = gb_pool_sizes_of(2, attrs->shape.ints, GB_MEAN_POOL_ATTRS(attrs));
  pool_kind kind = divided(mean_backward, &attrs->count_include_pad, &attrs->divisor_override);
  return run_over(call, &kind, &s, GB_IN(call, avg_pool2d_backward)->grad, NULL,
                  GB_OUT(call, avg_pool2d_backward)->dx);
}

static gb_status adaptive_avg_pool2d(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, adaptive_avg_pool2d)->x, *y = GB_OUT(call, adaptive_avg_pool2d)->y;
  plane from = plane_of(x);
  return run(call, &mean, NULL, x->shape + 2, y->shape + 2, &from, NULL, y);
}

static gb_status adaptive_avg_pool2d_backward(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, adaptive_avg_pool2d_backward)->grad;
  const gb_tensor *dx = GB_OUT(call, adaptive_avg_pool2d_backward)->dx;
  plane from = plane_of(grad);
  return run(call, &mean_backward, NULL, dx->shape + 2, grad->shape + 2, &from, NULL, dx);
}

/* ====} */

void GB_CPU_FILL(pool2d)(gb_backend *backend);
void GB_CPU_FILL(pool2d)(gb_backend *backend) {
  backend->run[GB_OP_max_pool2d] = max_pool2d;
  backend->run[GB_OP_adaptive_max_pool2d] = adaptive_max_pool2d;
  backend->run[GB_OP_max_pool2d_backward] = max_pool2d_backward;
  backend->run[GB_OP_max_pool2d_gather] = max_pool2d_gather;
  backend->run[GB_OP_avg_pool2d] = avg_pool2d;
  backend->run[GB_OP_avg_pool2d_backward] = avg_pool2d_backward;
  backend->run[GB_OP_adaptive_avg_pool2d] = adaptive_avg_pool2d;
  backend->run[GB_OP_adaptive_avg_pool2d_backward] = adaptive_avg_pool2d_backward;
}
