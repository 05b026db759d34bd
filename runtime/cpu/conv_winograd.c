/* cpu/conv_winograd.c - convolution in fewer multiplications: Winograd's F(2, 3), F(4, 3) and F(3, 2) along each
 * dimension; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), section 4.1.
 *
 * x is cut into tiles of 4 pixels along a dimension, which overlap: with 3 taps by 2, and each gives 2 results; with
 * 2 taps by 1, for 3 results. Tiles and weights are transformed (by sums and differences, and halves of weights),
 * multiplied place by place, which over all channels is one product of matrices for each place, and transformed back:
 * of 3 x 3 taps 16 multiplications where direct sums take 36, of 1 x 3 taps 4 for 6. A kernel of 4 x 4 with a stride
 * of 2 is one of 2 x 2 over the four pixels of a stride as channels: 64 for 144. The gradient by x goes from y's
 * tiles by the weight turned about, to the pixels of a stride as channels; the weight's is the same with products
 * that sum over tiles. All of it is float32, in the mean with the error of a direct sum or less; an element's goes by
 * the largest of its tile.
 *
 * Operands of 16 bits take tiles of 6 by 6 pixels for 3 x 3 taps, which give 4 by 4 results: 36 multiplications for
 * 144. That is quicker than a direct sum by AVX512_BF16's dot products, at half of their rate. Sums have some five
 * times a direct one's error then, 2^-20 of the largest of their tile, of which operands that were rounded to 8 or 11
 * bits show nothing as long as they are alike: where the largest is MOST_RANGE powers of 2 above the others' mean, the
 * result is made in another way. Sums that cancel to 2^-14 of their terms do show it.
 *
 * A chunk takes so many tiles that its matrices stay in the cache; tiles are cut by shape alone, and gradients of
 * slices are added up in their order, so any number of threads gives the same bits. Infinities and NaN spread over a
 * tile here, so who finds any is told. For each tile of 4 x 4, c channels in and o out: 32 c and 24 o operations, 16 c
 * and 16 o written and read, 16 c o multiplied and added; of 6 x 6: 144 c, 100 o, 36 c, 36 o and 36 c o. */
#include "cpu/conv_winograd.h"

#include "cpu/gemm.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"
#include "cpu/wide.h"

/* Tiles side by side that are one unit of work; tiles of a chunk at least and at most, and
 * the bytes that its matrices may take where that is between them; chunks that feed the threads of a small machine. */
enum { UNIT_TILES = 60, LEAST_TILES = 48, MOST_TILES = 240, CHUNK_BYTES = 384 << 10, WANTED_CHUNKS = 8 };
/* Channels of either side from which on the products are worth the transformations: of tiles along both dimensions,
 * where the weight is packed beforehand, and others; tiles that are worth those of the weight, whose results may take
 * so many bytes. */
enum { FEW_CHANNELS = 16, LEAST_CHANNELS = 32, LEAST_OF_ALL = 64, MOST_WEIGHT_BYTES = 32 << 20 };
/* The most that the matrices of the fewest tiles may take, of each thread. */
enum { MOST_ROOM_BYTES = 16 << 20 };
/* Slices of the tiles with a gradient of the weight each, at most, and their bytes in all. */
enum { MOST_SLICES = 8, MOST_SLICE_BYTES = 64 << 20 };
/* Floats between planes of places, so that the same element of all planes does not share a set of the cache. */
enum { APART = 16 };
/* Rows of weights that one chunk transforms, and columns that one packs. */
enum { WEIGHT_ROWS = 32 };
/* By how much the exponent of one element may exceed the mean of all that are not 0, where tiles are large. */
enum { MOST_RANGE = 12 };

/* How a dimension is cut, by what is constant where it is inlined: not at all, or by F(results, taps). */
enum { WHOLE = 1, F_3_2, F_2_3, F_4_3 };
#define TAPS(form) ((form) == WHOLE ? 1 : (form) == F_3_2 ? 2 : 3)
#define RESULTS(form) ((form) == WHOLE ? 1 : (form) == F_3_2 ? 3 : (form) == F_2_3 ? 2 : 4)
#define SPAN(form) (TAPS(form) + RESULTS(form) - 1)
enum { MOST_SPAN = 6, MOST_RESULTS = 4, MOST_TAPS = 3 };

/* One dimension: its form, pixels of a stride, taps for each of them, results and places of a tile. */
typedef struct side { int form; int64_t step, taps, results, span; } side;

/* A convolution, or its gradient by x, as all chunks see it. */
typedef struct winograd {
  gb_op_call *call;
  const gb_tensor *from, *to;  /* what tiles are read from; y, dx, or y's gradient */
  const float *krsc, *bias;
  bool large, turned, relu;
  side side[2];
  int64_t places, steps;       /* of a tile; pixels of a stride */
  int64_t c, o;                /* channels that are multiplied, in and out */
  int64_t in_step[2], start[2];    /* pixels of `from` that are one here, and that at which the first tile begins */
  int64_t out_step[2], first[2];   /* pixels of `to` that a result is, and the first one's place */
  int64_t count[2];            /* results of an image along each dimension */
  int64_t read[2];             /* pixels of x that a window reads: others take no part, though a tile may hold them */
  int64_t down, across;        /* tiles of an image */
  int64_t width, segments;     /* tiles of a unit, and units of a row of tiles */
  int64_t units, chunks;
  int64_t most;                /* tiles of a chunk at most */
  int64_t c_plane, o_plane;    /* floats from a place to the next */
  int64_t rows, row;           /* rows of the weight, and elements of each at a place */
  float *weights, *packed;     /* transformed [place][rows][row], and as products read them */
  size_t packed_bytes;         /* of a place */
  float *sums;                 /* of each slice, [place][rows][row] */
  int64_t slices;
  size_t product_bytes;
  gb_scratch scratch;
  atomic_bool not_finite;                        /* or too uneven for large tiles */
} winograd;

/* A thread's room: rows of pixels around a unit, transformed along the row; a row of pixels, and as it lies; planes of
 * both sides' tiles; rows of results; a product's scratch. */
typedef struct room { float *ring, *line, *raw, *c, *o, *rows; char *product; struct range *ranges; } room;

/* What was seen of elements, in every lane: the bits of the largest magnitude, and of all but 0 the sum of their
 * exponents and their number. A chunk of large tiles has two, of pixels and of gradients. */
typedef struct range { gb_vector_bits most, sum, count; } range;

/* Some tiles side by side, of one row of an image. */
typedef struct unit { int64_t image, row, first, count; } unit;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const gb_product_how plainly = { false, GB_UNIT_NONE };

/* {==== Planning ==== */

/* How a dimension is cut; false: it cannot be. */
static bool side_of(const gb_conv_sizes *s, int i, bool large, side *out) {
  const int64_t kernel = s->kernel[i], stride = s->stride[i];
  int form = 0;
  if (kernel == 1 && stride == 1 && s->padding[i] == 0) form = WHOLE;
  else if (kernel == 3 && stride == 1 && s->dilation[i] == 1) form = large ? F_4_3 : F_2_3;
  else if (kernel == 4 && stride == 2 && s->dilation[i] == 1) form = F_3_2;
  *out = (side){ form, form == F_3_2 ? 2 : 1, TAPS(form), RESULTS(form), SPAN(form) };
  return form != 0;
}

/* Both dimensions are cut alike, or, in small tiles, along the second alone. */
static bool sides_of(const gb_conv_sizes *s, bool large, side out[2]) {
  if (s->groups != 1 || !side_of(s, 0, large, out) || !side_of(s, 1, large, out + 1)) return false;
  if (out[0].form == WHOLE) return out[1].form == F_2_3;
  return out[0].form == out[1].form && large == (out[0].form == F_4_3);
}

/* Results along a dimension: those of y; or, of the gradient by x, as many strides as x's pixels lie in, the first of
 * which is the *begin-th, counted from where y's first window begins. */
static int64_t results_of(const gb_conv_sizes *s, const side *d, int i, bool input, int64_t *begin) {
  *begin = input ? s->padding[i] / d->step : 0;
  return input ? (s->in[i] - 1 + s->padding[i]) / d->step - *begin + 1 : s->out[i];
}

bool gb_winograd_takes(const gb_conv_sizes *s, gb_winograd_kind kind, bool large, double most_share) {
  side d[2];
  if (!sides_of(s, large, d) || s->c % GB_VECTOR || s->o % GB_VECTOR) return false;
  if (least(s->c, s->o) < (d[0].taps == 1 || kind == GB_WINOGRAD_WEIGHT ? LEAST_CHANNELS : FEW_CHANNELS)) return false;
  const int64_t places = d[0].span * d[1].span, steps = d[0].step * d[1].step;
  if (s->c * steps > MOST_WEIGHT_BYTES / 4 / places / s->o) return false;
  if (s->c * steps + s->o > MOST_ROOM_BYTES / 4 / places / LEAST_TILES) return false;
  double tiles = (double)s->n, direct = (double)s->n;
  for (int i = 0; i < 2; i++) {
    int64_t begin;
    if (s->in[i] < 1 || s->out[i] < 1) return false;
    tiles *= (double)divide_up(results_of(s, &d[i], i, kind == GB_WINOGRAD_INPUT, &begin), d[i].results);
    direct *= (double)(s->out[i] * s->kernel[i]);
  }
  return tiles >= LEAST_OF_ALL && tiles * (double)(places * steps) <= most_share * direct;
}

/* Units are numbered down the columns of an image, so that a unit and the next share rows of pixels. */
static unit unit_at(const winograd *w, int64_t i) {
  unit u = { .image = i / w->down / w->segments, .row = i % w->down, .first = i / w->down % w->segments * w->width };
  u.count = least(w->width, w->across - u.first);
  return u;
}

/* Tiles of a chunk: those that fit, and fewer where there would be too few chunks. */
static int64_t tiles_of_chunk(const winograd *w, int64_t all) {
  int64_t fit = CHUNK_BYTES / 4 / w->places / (w->c + w->o), tiles = least(MOST_TILES, most(LEAST_TILES, fit));
  return all < tiles * WANTED_CHUNKS ? most(LEAST_TILES / 2, all / WANTED_CHUNKS) : tiles;
}

/* What follows from sizes: what is read and written, and how it is cut. */
static void plan(winograd *w, const gb_conv_sizes *s) {
  sides_of(s, w->large, w->side);
  w->places = w->side[0].span * w->side[1].span, w->steps = w->side[0].step * w->side[1].step;
  w->rows = s->o, w->row = w->steps * s->c;
  w->c = w->turned ? w->rows : w->row, w->o = w->turned ? w->row : w->rows;
  for (int i = 0; i < 2; i++) {
    const side *d = &w->side[i];
    int64_t begin;
    w->count[i] = results_of(s, d, i, w->turned, &begin);
    w->in_step[i] = w->turned ? 1 : d->step, w->out_step[i] = w->turned ? d->step : 1;
    w->start[i] = w->turned ? begin - (d->taps - 1) : -s->padding[i];
    w->first[i] = w->turned ? begin * d->step - s->padding[i] : 0;
    w->read[i] = least(s->in[i], (s->out[i] - 1) * s->stride[i] + s->kernel[i] - s->padding[i]);
  }
  w->down = divide_up(w->count[0], w->side[0].results), w->across = divide_up(w->count[1], w->side[1].results);
  w->segments = divide_up(w->across, UNIT_TILES);
  w->width = divide_up(w->across, w->segments);
  w->units = s->n * w->segments * w->down;
  w->chunks = least(w->units, most(1, w->units * w->width / tiles_of_chunk(w, s->n * w->down * w->across)));
  w->most = divide_up(w->units, w->chunks) * w->width;
  w->c_plane = w->most * w->c + APART, w->o_plane = w->most * w->o + APART;
  w->product_bytes = gb_block_product_scratch(plainly, GB_LANE_F32, most(w->most, w->o), most(w->c, w->o),
                                              most(w->c, w->most));
  atomic_init(&w->not_finite, false);
}

/* Pixels of a unit's tiles together, and results. */
static int64_t unit_pixels(const winograd *w, int64_t tiles) {
  return tiles * w->side[1].results + w->side[1].taps - 1;
}
static int64_t unit_results(const winograd *w, int64_t tiles) { return tiles * w->side[1].results; }

/* Bytes of a room; where there is a base, the room that begins there. */
static size_t lay_out(const winograd *w, char *base, room *r) {
  const int64_t pixels = unit_pixels(w, w->width);
  const int64_t places = w->width * w->side[1].span, rows = most(w->side[0].results, 1);
  size_t bytes = 0, ring = gb_scratch_take(&bytes, w->side[0].span * places * w->c * 4);
  size_t line = gb_scratch_take(&bytes, most(pixels * w->c, unit_results(w, w->width) * w->o) * 4);
  size_t raw = gb_scratch_take(&bytes, pixels * w->in_step[1] * w->from->shape[1] * 4);
  size_t c = gb_scratch_take(&bytes, w->places * w->c_plane * 4);
  size_t o = gb_scratch_take(&bytes, w->places * w->o_plane * 4);
  size_t results = gb_scratch_take(&bytes, rows * places * w->o * 4);
  size_t product = gb_scratch_take(&bytes, (int64_t)w->product_bytes);
  if (base)
    *r = (room){ (float *)(void *)(base + ring), (float *)(void *)(base + line), (float *)(void *)(base + raw),
                 (float *)(void *)(base + c), (float *)(void *)(base + o), (float *)(void *)(base + results),
                 base + product, NULL };
  return bytes;
}

/* The room of the running thread. */
static room room_of(const winograd *w) {
  room r;
  lay_out(w, gb_scratch_room(&w->scratch), &r);
  return r;
}

/* ====} */

/* {==== Transformations along a dimension ==== */

/* The value of a function of both sides' forms. */
#define FOR_FORMS(w, f, ...)                                                                                           \
  ((w)->side[0].form == WHOLE ? f(WHOLE, F_2_3, __VA_ARGS__) : (w)->side[0].form == F_3_2                              \
       ? f(F_3_2, F_3_2, __VA_ARGS__) : (w)->side[0].form == F_2_3 ? f(F_2_3, F_2_3, __VA_ARGS__)                      \
                                                                   : f(F_4_3, F_4_3, __VA_ARGS__))

GB_ALWAYS_INLINE gb_vector load(const float *from) {
  gb_vector x;
  memcpy(&x, from, sizeof x);
  return x;
}
GB_ALWAYS_INLINE void store(float *to, gb_vector x) { memcpy(to, &x, sizeof x); }

/* F(4, 3) takes its points at 0, A, -A, B, -B and infinity. With 3/4 and 3/2, whose powers are exact, errors are half
 * of what they are with the 1 and 2 of the paper. */
#define A 0.75f
#define B 1.5f
#define A2 (A * A)
#define B2 (B * B)
/* What the taps at both points of A and of B are divided by, and those at 0. */
#define OF_A (1.0f / (2.0f * A2 * (A2 - B2)))
#define OF_B (1.0f / (2.0f * B2 * (B2 - A2)))
#define OF_0 (1.0f / (A2 * B2))

/* Pixels to places. */
GB_ALWAYS_INLINE void enter(int form, const gb_vector d[MOST_SPAN], gb_vector t[MOST_SPAN]) {
  t[0] = d[0];
  if (form == WHOLE) return;
  if (form == F_4_3) {
    const gb_vector even_a = d[4] - B2 * d[2], odd_a = A * d[3] - A * B2 * d[1];
    const gb_vector even_b = d[4] - A2 * d[2], odd_b = B * d[3] - B * A2 * d[1];
    t[0] = (d[4] - (A2 + B2) * d[2]) + A2 * B2 * d[0], t[5] = (d[5] - (A2 + B2) * d[3]) + A2 * B2 * d[1];
    t[1] = even_a + odd_a, t[2] = even_a - odd_a, t[3] = even_b + odd_b, t[4] = even_b - odd_b;
    return;
  }
  t[0] = d[0] - d[2], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[1] - d[3];
}

/* Taps to places. */
GB_ALWAYS_INLINE void enter_taps(int form, const gb_vector g[MOST_TAPS], gb_vector u[MOST_SPAN]) {
  u[0] = g[0];
  if (form == WHOLE) return;
  if (form == F_4_3) {
    const gb_vector even_a = OF_A * g[0] + OF_A * A2 * g[2], odd_a = OF_A * A * g[1];
    const gb_vector even_b = OF_B * g[0] + OF_B * B2 * g[2], odd_b = OF_B * B * g[1];
    u[0] = OF_0 * g[0], u[5] = g[2];
    u[1] = even_a + odd_a, u[2] = even_a - odd_a, u[3] = even_b + odd_b, u[4] = even_b - odd_b;
    return;
  }
  const gb_vector ends = form == F_2_3 ? g[0] + g[2] : g[0];
  u[1] = 0.5f * (ends + g[1]), u[2] = 0.5f * (ends - g[1]), u[3] = g[TAPS(form) - 1];
}

/* Places to results. */
GB_ALWAYS_INLINE void leave(int form, const gb_vector m[MOST_SPAN], gb_vector y[MOST_RESULTS]) {
  y[0] = m[0];
  if (form == WHOLE) return;
  if (form == F_4_3) {
    const gb_vector even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + (even_a + even_b), y[1] = A * odd_a + B * odd_b, y[2] = A2 * even_a + B2 * even_b;
    y[3] = (A2 * A * odd_a + B2 * B * odd_b) + m[5];
    return;
  }
  y[0] = m[0] + (m[1] + m[2]);
  if (form == F_2_3) y[1] = (m[1] - m[2]) - m[3];
  else y[1] = m[1] - m[2], y[2] = (m[1] + m[2]) - m[3];
}

/* Gradients of results to those of places, and of places to those of taps: the last two, turned about. */
GB_ALWAYS_INLINE void enter_gradient(int form, const gb_vector g[MOST_RESULTS], gb_vector t[MOST_SPAN]) {
  t[0] = g[0];
  if (form == WHOLE) return;
  if (form == F_4_3) {
    const gb_vector even_a = g[0] + A2 * g[2], odd_a = A * g[1] + A2 * A * g[3];
    const gb_vector even_b = g[0] + B2 * g[2], odd_b = B * g[1] + B2 * B * g[3];
    t[1] = even_a + odd_a, t[2] = even_a - odd_a, t[3] = even_b + odd_b, t[4] = even_b - odd_b, t[5] = g[3];
    return;
  }
  const gb_vector ends = form == F_2_3 ? g[0] : g[0] + g[2];
  t[1] = ends + g[1], t[2] = ends - g[1], t[3] = -g[form == F_2_3 ? 1 : 2];
}
GB_ALWAYS_INLINE void leave_taps(int form, const gb_vector u[MOST_SPAN], gb_vector g[MOST_TAPS]) {
  g[0] = u[0];
  if (form == WHOLE) return;
  if (form == F_4_3) {
    const gb_vector even_a = OF_A * (u[1] + u[2]), odd_a = OF_A * A * (u[1] - u[2]);
    const gb_vector even_b = OF_B * (u[3] + u[4]), odd_b = OF_B * B * (u[3] - u[4]);
    g[0] = OF_0 * u[0] + (even_a + even_b), g[1] = odd_a + odd_b, g[2] = (A2 * even_a + B2 * even_b) + u[5];
    return;
  }
  const gb_vector sum = 0.5f * (u[1] + u[2]), difference = 0.5f * (u[1] - u[2]);
  g[0] = u[0] + sum;
  if (form == F_2_3) g[1] = difference, g[2] = sum + u[3];
  else g[1] = difference + u[3];
}

/* ====} */

/* {==== Tiles ==== */

/* Pixels column .. column + count - 1 of row `row` of an image of t, [n, c, h, w] in any layout, as float32 with the
 * channels last; zeros outside of its first shape[0] rows and shape[1] columns. */
static void load_row(const winograd *w, const gb_tensor *t, const int64_t shape[2], int64_t image, int64_t row,
                     int64_t column, int64_t count, float *to) {
  const int64_t c = t->shape[1], size = (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
  const bool inside = row >= 0 && row < shape[0];
  const int64_t before = inside ? least(most(-column, 0), count) : count;
  const int64_t end = inside ? most(before, least(shape[1] - column, count)) : count;
  memset(to, 0, (size_t)(before * c) * sizeof *to);
  memset(to + end * c, 0, (size_t)((count - end) * c) * sizeof *to);
  if (end == before) return;
  const char *from = gb_data(t) + (image * t->stride[0] + row * t->stride[2] + (column + before) * t->stride[3]) * size;
  to += before * c;
  if (t->stride[1] == 1 && t->stride[3] == c) {
    gb_copy_run((char *)to, GB_FLOAT32, 1, from, (gb_dtype)t->dtype, 1, (end - before) * c);
    return;
  }
  const int64_t block[2] = { end - before, c }, dense[2] = { c, 1 }, strides[2] = { t->stride[3], t->stride[1] };
  gb_copy_strided(w->call, 2, block, (char *)to, GB_FLOAT32, dense, from, (gb_dtype)t->dtype, strides);
}

/* Look at n elements, a multiple of GB_VECTOR; NULL: nobody wants it. */
static void look(range *seen, const float *from, int64_t n) {
  if (!seen) return;
  range s = *seen;
  for (int64_t i = 0; i < n; i += GB_VECTOR) {
    const gb_vector_bits magnitude = (gb_vector_bits)load(from + i) & 0x7fffffffu, exponent = magnitude >> 23;
    const gb_vector_bits larger = (gb_vector_bits)(magnitude > s.most);
    s.most = (magnitude & larger) | (s.most & ~larger);
    s.sum += exponent;
    s.count -= (gb_vector_bits)(exponent != 0);
  }
  *seen = s;
}

/* Is the largest of them too far above the others? */
static bool is_uneven(const range *seen) {
  uint32_t most = 0;
  uint64_t sum = 0, count = 0;
  for (int i = 0; i < GB_VECTOR; i++) {
    most = seen->most[i] > most ? seen->most[i] : most;
    sum += seen->sum[i];
    count += seen->count[i];
  }
  return count > 0 && most >> 23 > sum / count + MOST_RANGE;
}

/* Row `row` of the pixels of a unit, as its tiles see them: with a stride, the pixels of one are channels side by
 * side. */
static void load_pixels(const winograd *w, unit u, int64_t row, const room *r, float *to) {
  const int64_t step = w->in_step[1], run = step * w->from->shape[1], pixels = unit_pixels(w, u.count);
  const int64_t column = w->start[1] + unit_results(w, u.first) * step;
  for (int64_t k = 0; k < w->in_step[0]; k++, to += run) {
    const int64_t at = w->start[0] + row * w->in_step[0] + k;
    load_row(w, w->from, w->turned ? w->from->shape + 2 : w->read, u.image, at, column, pixels * step,
             step == 1 ? to : r->raw);
    look(r->ranges, step == 1 ? to : r->raw, pixels * step * w->from->shape[1]);
    for (int64_t i = 0; step > 1 && i < pixels; i++)
      memcpy(to + i * w->c, r->raw + i * run, (size_t)run * sizeof *to);
  }
}

/* A row of a unit's pixels as its tiles' places along the row, [tile][place][c]. */
GB_ALWAYS_INLINE void enter_row(int form, const winograd *w, int64_t tiles, const float *from, float *to) {
  const int64_t channels = w->c;
  for (int64_t t = 0; t < tiles; t++, from += RESULTS(form) * channels, to += SPAN(form) * channels)
    for (int64_t c = 0; c < channels; c += GB_VECTOR) {
      gb_vector d[MOST_SPAN], v[MOST_SPAN];
      for (int j = 0; j < SPAN(form); j++) d[j] = load(from + j * channels + c);
      enter(form, d, v);
      for (int j = 0; j < SPAN(form); j++) store(to + j * channels + c, v[j]);
    }
}

/* The tiles of a unit from rows that were transformed so, the first at `to`. */
GB_ALWAYS_INLINE void enter_columns(int ty, int tx, const winograd *w, unit u, const float *const rows[MOST_SPAN],
                                    float *to) {
  const int64_t channels = w->c, plane = w->c_plane;
  for (int64_t at = 0, t = 0; t < u.count; t++, to += channels)
    for (int j = 0; j < SPAN(tx); j++, at += channels)
      for (int64_t c = 0; c < channels; c += GB_VECTOR) {
        gb_vector d[MOST_SPAN], v[MOST_SPAN];
        for (int i = 0; i < SPAN(ty); i++) d[i] = load(rows[i] + at + c);
        enter(ty, d, v);
        for (int i = 0; i < SPAN(ty); i++) store(to + (i * SPAN(tx) + j) * plane + c, v[i]);
      }
}

/* Row `row` of a unit's pixels into the ring. */
GB_ALWAYS_INLINE void enter_pixels(int ty, int tx, const winograd *w, unit u, int64_t row, const room *r, float *to) {
  (void)ty;
  load_pixels(w, u, row, r, r->line);
  enter_row(tx, w, u.count, r->line, to);
}

/* Transform the tiles of units first .. end - 1; how many there are. Rows of pixels lie in a ring, of which a
 * unit below another of the same image needs only those that it does not share. */
static int64_t transform_units(const winograd *w, int64_t first, int64_t end, const room *r) {
  const side *d = &w->side[0];
  const int64_t row_floats = w->width * w->side[1].span * w->c;
  int64_t tiles = 0;
  for (int64_t i = first; i < end; i++) {
    unit u = unit_at(w, i);
    if (gb_work(w->places * u.count * w->c)) return tiles;
    const float *rows[MOST_SPAN] = { NULL };
    for (int64_t k = 0; k < d->span; k++) {
      const int64_t row = u.row * d->results + k;
      float *to = r->ring + row % d->span * row_floats;
      rows[k] = to;
      if (k >= d->span - d->results || i == first || u.row == 0) FOR_FORMS(w, enter_pixels, w, u, row, r, to);
    }
    FOR_FORMS(w, enter_columns, w, u, rows, r->c + tiles * w->c);
    tiles += u.count;
  }
  return tiles;
}

/* ====} */

/* {==== Results ==== */

/* A vector of channels of a tile's rows of the weight as its places. Large ones are turned about here. */
GB_ALWAYS_INLINE void transform_taps(int ty, int tx, const winograd *w, const float *from, float *to) {
  const int64_t channels = w->row / w->steps, plane = w->rows * w->row;
  const bool about = w->turned && ty == F_4_3;
  gb_vector t[MOST_SPAN][MOST_TAPS], g[MOST_TAPS], v[MOST_SPAN];
  for (int j = 0; j < TAPS(tx); j++) {
    for (int i = 0; i < TAPS(ty); i++) {
      const int64_t row = about ? TAPS(ty) - 1 - i : i, column = about ? TAPS(tx) - 1 - j : j;
      g[i] = load(from + (row * w->side[0].step * TAPS(tx) + column) * w->side[1].step * channels);
    }
    enter_taps(ty, g, v);
    for (int i = 0; i < SPAN(ty); i++) t[i][j] = v[i];
  }
  for (int i = 0; i < SPAN(ty); i++) {
    enter_taps(tx, t[i], v);
    for (int j = 0; j < SPAN(tx); j++) store(to + (i * SPAN(tx) + j) * plane, v[j]);
  }
}

/* Where element k of a row at a place comes from: the first of its taps in a row of krsc. */
static int64_t tap_of(const winograd *w, int64_t k) {
  const int64_t channels = w->row / w->steps, across = w->side[1].step, at = k / channels;
  return (at / across * w->side[1].taps * across + at % across) * channels + k % channels;
}

/* Chunk: rows of the weight as places. */
static void transform_weights(void *arg, int64_t chunk) {
  const winograd *w = arg;
  const int64_t taps = w->side[0].taps * w->side[1].taps, end = least(w->rows, (chunk + 1) * WEIGHT_ROWS);
  for (int64_t o = chunk * WEIGHT_ROWS; o < end && !gb_work(w->places * w->row); o++)
    for (int64_t k = 0; k < w->row; k += GB_VECTOR) {
      const float *from = w->krsc + o * taps * w->row + tap_of(w, k);
      FOR_FORMS(w, transform_taps, w, from, w->weights + o * w->row + k);
    }
}

/* A place's weights as the right operand of its product, [c, o], and the sign that they have to be taken with. Turned
 * about, first and last taps change places; so do, of small tiles, the first and the last place, and of 2 taps their
 * difference becomes its opposite. */
static gb_matrix weights_of(const winograd *w, int64_t place, double *sign) {
  const int64_t span = w->side[1].span;
  int64_t at[2] = { place / span, place % span };
  *sign = 1;
  for (int i = 0; i < 2 && w->turned && !w->large; i++) {
    if (w->side[i].taps == 2 && at[i] == 2) *sign = -*sign;
    if (w->side[i].taps > 1 && at[i] % 3 == 0) at[i] = 3 - at[i];
  }
  const float *weights = w->weights + (at[0] * span + at[1]) * w->rows * w->row;
  return w->turned ? (gb_matrix){ weights, GB_FLOAT32, w->row, 1 } : (gb_matrix){ weights, GB_FLOAT32, 1, w->row };
}

/* Chunk: some columns of a place's weights, packed. */
static void pack_weights(void *arg, int64_t chunk) {
  const winograd *w = arg;
  const int64_t parts = divide_up(w->o, WEIGHT_ROWS), place = chunk / parts, first = chunk % parts * WEIGHT_ROWS;
  double sign;
  gb_matrix b = weights_of(w, place, &sign);
  gb_pack_columns(plainly, GB_LANE_F32, first, least(WEIGHT_ROWS, w->o - first), w->c, &b,
                  gb_packed_columns(plainly, GB_LANE_F32, w->o), (char *)w->packed + (size_t)place * w->packed_bytes,
                  room_of(w).product);
}

/* Channels k .. of the tile at `from`: row a of its results to element `at` of to[a], if there is one, `columns` of it;
 * whole: all are wanted. Gives what is seen of them: 0 where all are finite, else NaN. */
GB_ALWAYS_INLINE gb_vector tile_into(gb_dtype dtype, int ty, int tx, bool whole, const winograd *w, const float *from,
                                     int64_t k, char *const to[MOST_RESULTS], int64_t at, int64_t columns) {
  const int64_t o = w->o, plane = w->o_plane;
  const bool relu = w->relu;
  const gb_vector bias = w->bias ? load(w->bias + k) : (gb_vector){ 0 }, zero = { 0 };
  gb_vector s[MOST_RESULTS][MOST_SPAN], m[MOST_SPAN], y[MOST_RESULTS], seen = { 0 };
  for (int j = 0; j < SPAN(tx); j++) {
    for (int i = 0; i < SPAN(ty); i++) m[i] = load(from + (i * SPAN(tx) + j) * plane + k);
    leave(ty, m, y);
    for (int a = 0; a < RESULTS(ty); a++) s[a][j] = y[a];
  }
  for (int a = 0; a < RESULTS(ty); a++) {
    leave(tx, s[a], y);
    for (int b = 0; b < RESULTS(tx); b++) {
      y[b] += bias;
      seen += y[b] * 0.0f;
      if (whole || (to[a] && b < columns))
        gb_vector_store_as(dtype, to[a], at + b * o + k, relu ? gb_vector_max(y[b], zero) : y[b]);
    }
  }
  return seen;
}

/* The results of a unit's tiles, of which the first lies at `from`: row a to to[a], if there is one, `count` columns
 * of it. */
GB_ALWAYS_INLINE gb_vector unit_into(gb_dtype dtype, int ty, int tx, const winograd *w, unit u, const float *from,
                                     char *const to[MOST_RESULTS], int64_t count) {
  const int64_t o = w->o;
  gb_vector seen = { 0 };
  for (int64_t t = 0; t < u.count; t++, from += o) {
    const int64_t first = t * RESULTS(tx), columns = least(RESULTS(tx), count - first);
    const bool whole = to[RESULTS(ty) - 1] && columns == RESULTS(tx);
    for (int64_t k = 0; k < o; k += GB_VECTOR)
      seen += whole ? tile_into(dtype, ty, tx, true, w, from, k, to, first * o, columns)
          : tile_into(dtype, ty, tx, false, w, from, k, to, first * o, columns);
  }
  return seen;
}

/* The same for the dtype that is written. */
GB_ALWAYS_INLINE gb_vector unit_as(int ty, int tx, const winograd *w, gb_dtype dtype, unit u, const float *from,
                                   char *const to[MOST_RESULTS], int64_t count) {
  return GB_WIDE_FOR(dtype, unit_into, ty, tx, w, u, from, to, count);
}

/* A row of `count` results into the pixels that they are: a run of memory, or those of each stride, of which 0 where no
 * window reads. */
static void put_row(const winograd *w, int64_t image, int64_t row, int64_t column, int64_t count, const float *from) {
  const gb_tensor *t = w->to;
  const int64_t c = t->shape[1], size = (int64_t)gb_dtype_bytes((gb_dtype)t->dtype), step = w->out_step[1];
  for (int64_t k = 0; k < w->out_step[0]; k++) {
    const int64_t y = w->first[0] + row * w->out_step[0] + k;
    if (y < 0 || y >= t->shape[2]) continue;
    char *line = gb_data(t) + (image * t->shape[2] + y) * t->shape[3] * c * size;
    if (step == 1) {
      gb_store_f32(line + column * c * size, (gb_dtype)t->dtype, 1, from, count * c);
      continue;
    }
    for (int64_t i = 0; i < count; i++) {
      const int64_t x = w->first[1] + (column + i) * step, before = most(-x, 0), end = least(step, t->shape[3] - x);
      const int64_t known = y < w->read[0] ? most(before, least(end, w->read[1] - x)) : before;
      if (known > before)
        gb_store_f32(line + (x + before) * c * size, (gb_dtype)t->dtype, 1,
                     from + i * w->o + (k * step + before) * c, (known - before) * c);
      if (end > known) memset(line + (x + known) * c * size, 0, (size_t)((end - known) * c * size));
    }
  }
}

/* The tiles of a unit, of which the first lies at `from`, into the result: where its pixels lie, or by way of rows. */
static gb_vector finish_unit(const winograd *w, unit u, const float *from, float *rows) {
  const side *d = w->side;
  const int64_t row = u.row * d->results, column = unit_results(w, u.first);
  const int64_t count = least(unit_results(w, u.count), w->count[1] - column), line = w->count[1] * w->o;
  const bool in_place = w->out_step[1] == 1;
  const gb_dtype dtype = in_place ? (gb_dtype)w->to->dtype : GB_FLOAT32;
  char *to[MOST_RESULTS] = { NULL };
  for (int64_t a = 0; a < d->results && row + a < w->count[0]; a++)
    to[a] = in_place ? gb_data(w->to) + ((u.image * w->count[0] + row + a) * line + column * w->o) *
                           (int64_t)gb_dtype_bytes(dtype)
        : (char *)(rows + a * unit_results(w, w->width) * w->o);
  gb_vector seen = FOR_FORMS(w, unit_as, w, dtype, u, from, to, count);
  for (int64_t a = 0; a < (in_place ? 0 : d->results) && to[a]; a++)
    put_row(w, u.image, row + a, column, count, (const float *)(const void *)to[a]);
  return seen;
}

/* Keep that a sum was not finite; seen: zeros, or NaN. */
static void keep_seen(winograd *w, gb_vector seen) {
  if (!(gb_vector_sum(seen) == 0.0f)) atomic_store(&w->not_finite, true);
}

/* Keep that elements were uneven. */
static void keep_ranges(winograd *w, const range *seen) {
  if (is_uneven(&seen[0]) || is_uneven(&seen[1])) atomic_store(&w->not_finite, true);
}

/* Some units of the result. */
static void result_chunk(void *arg, int64_t chunk) {
  winograd *w = arg;
  const int64_t first = w->units * chunk / w->chunks, end = w->units * (chunk + 1) / w->chunks;
  range ranges[2] = { { { 0 }, { 0 }, { 0 } } };
  room r = room_of(w);
  if (atomic_load(&w->not_finite)) return; /* the result is made in another way */
  if (w->large) r.ranges = ranges;
  const int64_t tiles = transform_units(w, first, end, &r), columns = gb_packed_columns(plainly, GB_LANE_F32, w->o);
  for (int64_t place = 0; place < w->places && !gb_was_stopped(w->call); place++) {
    double sign;
    gb_matrix a = { r.c + place * w->c_plane, GB_FLOAT32, w->c, 1 }, b = weights_of(w, place, &sign);
    gb_packed packed = { (char *)w->packed + (size_t)place * w->packed_bytes, columns, 0 };
    gb_block_product(plainly, GB_LANE_F32, tiles, w->o, w->c, sign, &a, &b, &packed, 0, r.o + place * w->o_plane, w->o,
                     GB_FLOAT32, r.product);
  }
  gb_vector seen = { 0 };
  const float *from = r.o;
  for (int64_t i = first; i < end && !gb_was_stopped(w->call); i++) {
    unit u = unit_at(w, i);
    seen += finish_unit(w, u, from, r.rows);
    from += u.count * w->o;
  }
  if (gb_was_stopped(w->call)) return;
  keep_seen(w, seen);
  keep_ranges(w, ranges);
}

/* Transform the weight, and make the result. */
static gb_status run(winograd *w, const gb_conv_sizes *s, bool *finite) {
  plan(w, s);
  w->packed_bytes = gb_packed_bytes(plainly, GB_LANE_F32, w->o, w->c);
  size_t shared = 0, weights = gb_scratch_take(&shared, w->places * w->rows * w->row * 4);
  size_t packed = gb_scratch_take(&shared, w->places * (int64_t)w->packed_bytes);
  GB_TRY(gb_scratch_open(w->call, shared, lay_out(w, NULL, NULL), &w->scratch));
  w->weights = (float *)(void *)(w->scratch.shared + weights);
  w->packed = (float *)(void *)(w->scratch.shared + packed);
  gb_parallel(w->call, divide_up(w->rows, WEIGHT_ROWS), transform_weights, w);
  gb_parallel(w->call, w->places * divide_up(w->o, WEIGHT_ROWS), pack_weights, w);
  gb_parallel(w->call, w->chunks, result_chunk, w);
  gb_scratch_close(w->call, &w->scratch);
  *finite = !atomic_load(&w->not_finite);
  return GB_OK;
}

gb_status gb_winograd_forward(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *x,
                              const float *krsc, const float *bias, bool relu, const gb_tensor *y, bool *finite) {
  winograd w = { .large = large, .call = call, .from = x, .to = y, .krsc = krsc, .bias = bias, .relu = relu };
  return run(&w, s, finite);
}

gb_status gb_winograd_input(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *grad,
                            const float *krsc, const gb_tensor *dx, bool *finite) {
  winograd w = { .large = large, .call = call, .from = grad, .to = dx, .krsc = krsc, .turned = true };
  return run(&w, s, finite);
}

/* ====} */

/* {==== The weight's gradient ==== */

/* A row of a unit's gradients as its tiles' places along the row, and the tiles from such rows: enter_row and
 * enter_columns for them. */
GB_ALWAYS_INLINE void enter_gradient_row(int form, const winograd *w, int64_t tiles, const float *from, float *to) {
  for (int64_t t = 0; t < tiles; t++, from += RESULTS(form) * w->o, to += SPAN(form) * w->o)
    for (int64_t k = 0; k < w->o; k += GB_VECTOR) {
      gb_vector g[MOST_RESULTS], v[MOST_SPAN];
      for (int j = 0; j < RESULTS(form); j++) g[j] = load(from + j * w->o + k);
      enter_gradient(form, g, v);
      for (int j = 0; j < SPAN(form); j++) store(to + j * w->o + k, v[j]);
    }
}
GB_ALWAYS_INLINE void enter_gradient_columns(int ty, int tx, const winograd *w, unit u, const float *rows, float *to) {
  const int64_t line = w->width * SPAN(tx) * w->o;
  for (int64_t t = 0; t < u.count; t++, to += w->o)
    for (int j = 0; j < SPAN(tx); j++, rows += w->o)
      for (int64_t k = 0; k < w->o; k += GB_VECTOR) {
        gb_vector g[MOST_RESULTS], v[MOST_SPAN];
        for (int i = 0; i < RESULTS(ty); i++) g[i] = load(rows + i * line + k);
        enter_gradient(ty, g, v);
        for (int i = 0; i < SPAN(ty); i++) store(to + (i * SPAN(tx) + j) * w->o_plane + k, v[i]);
      }
}

/* The gradients of a unit's results as its tiles' places, from `to` on. */
GB_ALWAYS_INLINE void gradients_of_unit(int ty, int tx, const winograd *w, unit u, const room *r, float *to) {
  for (int64_t a = 0; a < RESULTS(ty); a++) {
    load_row(w, w->to, w->count, u.image, u.row * RESULTS(ty) + a, unit_results(w, u.first), unit_results(w, u.count),
             r->line);
    look(r->ranges ? r->ranges + 1 : NULL, r->line, unit_results(w, u.count) * w->o);
    enter_gradient_row(tx, w, u.count, r->line, r->rows + a * w->width * SPAN(tx) * w->o);
  }
  enter_gradient_columns(ty, tx, w, u, r->rows, to);
}

/* The same for units first .. end - 1. */
static void transform_gradients(const winograd *w, int64_t first, int64_t end, const room *r) {
  float *to = r->o;
  for (int64_t i = first; i < end; i++) {
    unit u = unit_at(w, i);
    if (gb_work(w->places * u.count * w->o)) return;
    FOR_FORMS(w, gradients_of_unit, w, u, r, to);
    to += u.count * w->o;
  }
}

/* The chunks of one slice, into its own sums. */
static void weight_slice(void *arg, int64_t slice) {
  winograd *w = arg;
  const int64_t begin = w->chunks * slice / w->slices, stop = w->chunks * (slice + 1) / w->slices;
  room r = room_of(w);
  for (int64_t chunk = begin; chunk < stop && !gb_was_stopped(w->call); chunk++) {
    range ranges[2] = { { { 0 }, { 0 }, { 0 } } };
    if (w->large) r.ranges = ranges;
    const int64_t first = w->units * chunk / w->chunks, end = w->units * (chunk + 1) / w->chunks;
    const int64_t tiles = transform_units(w, first, end, &r);
    transform_gradients(w, first, end, &r);
    for (int64_t place = 0; place < w->places && !gb_was_stopped(w->call); place++) {
      gb_matrix a = { r.o + place * w->o_plane, GB_FLOAT32, 1, w->o },
          b = { r.c + place * w->c_plane, GB_FLOAT32, w->c, 1 };
      gb_block_product(plainly, GB_LANE_F32, w->o, w->c, tiles, 1, &a, &b, NULL, chunk > begin,
                       w->sums + (slice * w->places + place) * w->rows * w->row, w->row, GB_FLOAT32, r.product);
    }
    keep_ranges(w, ranges);
  }
}

/* A vector of channels of a row of the weight's gradient from its places; what is seen of it. */
GB_ALWAYS_INLINE gb_vector taps_of(int ty, int tx, const winograd *w, const float *from, float *to) {
  const int64_t channels = w->row / w->steps, plane = w->rows * w->row;
  gb_vector t[MOST_TAPS][MOST_SPAN], u[MOST_SPAN], g[MOST_TAPS], seen = { 0 };
  for (int j = 0; j < SPAN(tx); j++) {
    for (int i = 0; i < SPAN(ty); i++) u[i] = load(from + (i * SPAN(tx) + j) * plane);
    leave_taps(ty, u, g);
    for (int i = 0; i < TAPS(ty); i++) t[i][j] = g[i];
  }
  for (int i = 0; i < TAPS(ty); i++) {
    leave_taps(tx, t[i], g);
    for (int j = 0; j < TAPS(tx); j++) {
      seen += g[j] * 0.0f;
      store(to + (i * w->side[0].step * TAPS(tx) + j) * w->side[1].step * channels, g[j]);
    }
  }
  return seen;
}

/* Chunk: rows of the weight's gradient from their places. */
static void finish_weights(void *arg, int64_t chunk) {
  winograd *w = arg;
  const int64_t taps = w->side[0].taps * w->side[1].taps, end = least(w->rows, (chunk + 1) * WEIGHT_ROWS);
  float *krsc = w->weights;
  gb_vector seen = { 0 };
  for (int64_t o = chunk * WEIGHT_ROWS; o < end && !gb_work(w->places * w->row); o++)
    for (int64_t k = 0; k < w->row; k += GB_VECTOR)
      seen += FOR_FORMS(w, taps_of, w, w->sums + o * w->row + k, krsc + o * taps * w->row + tap_of(w, k));
  if (!gb_was_stopped(w->call)) keep_seen(w, seen);
}

gb_status gb_winograd_weight(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *x,
                             const gb_tensor *grad, float *krsc, bool *finite) {
  winograd w = { .large = large, .call = call, .from = x, .to = grad, .weights = krsc };
  plan(&w, s);
  const int64_t numel = w.places * w.rows * w.row;
  w.slices = most(1, least(least(w.chunks, MOST_SLICES), MOST_SLICE_BYTES / (numel * 4)));
  size_t shared = 0, sums = gb_scratch_take(&shared, w.slices * numel * 4);
  GB_TRY(gb_scratch_open(call, shared, lay_out(&w, NULL, NULL), &w.scratch));
  w.sums = (float *)(void *)(w.scratch.shared + sums);
  gb_parallel(call, w.slices, weight_slice, &w);
  gb_sum_parts(call, GB_LANE_F32, w.sums, numel, w.slices);
  gb_parallel(call, divide_up(w.rows, WEIGHT_ROWS), finish_weights, &w);
  gb_scratch_close(call, &w.scratch);
  *finite = !atomic_load(&w.not_finite);
  return GB_OK;
}

/* ====} */
