/* cpu/conv_winograd.c - 3 x 3 convolution with a stride of 1 by Winograd's F(2 x 2, 3 x 3): Lavin and Gray, "Fast
 * Algorithms for Convolutional Neural Networks" (2015), section 4.1.
 *
 * x is cut into tiles of 4 x 4 pixels that overlap by 2, each of which gives 2 x 2 pixels of y. Tiles and weights are
 * transformed (by sums and differences, and halves of weights), multiplied place by place, which over all channels is
 * one product of matrices for each of the 16 places, and the results are transformed back: 16 multiplications where
 * direct sums take 36. All of it is float32, with the error of a direct sum or less. The weight's gradient is the same
 * turned about: its products sum over tiles. A chunk takes so many tiles that its matrices stay in the cache; tiles are
 * cut by shape alone, and gradients of slices are added up in their order, so any number of threads gives the same
 * bits. Infinities and NaN spread over a tile here, so who finds any is told.
 *
 * For each tile, c channels in and o out: 32 c (o) operations, 4 c, 16 c and 16 o written and read, 32 c o multiplied
 * and added. */
#include "cpu/conv_winograd.h"

#include "cpu/gemm.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"
#include "cpu/wide.h"

/* Places of a tile; tiles side by side that are one unit of work; tiles of a chunk at least and at most, and the bytes
 * that its matrices may take where that is between them; chunks that feed the threads of a small machine. */
enum { PLACES = 16, UNIT_TILES = 60, LEAST_TILES = 48, MOST_TILES = 240, CHUNK_BYTES = 384 << 10, WANTED_CHUNKS = 8 };
/* Channels of either side, and tiles, from which on the products are worth the transformations; and the most that
 * transformed weights may take. */
enum { LEAST_CHANNELS = 16, LEAST_OF_ALL = 64, MOST_WEIGHT_BYTES = 32 << 20 };
/* Slices of the tiles with a gradient of the weight each, at most, and their bytes in all. */
enum { MOST_SLICES = 8, MOST_SLICE_BYTES = 64 << 20 };
/* Floats between planes of places, so that the same element of all planes does not share a set of the cache. */
enum { APART = 16 };

/* A convolution as all chunks see it. */
typedef struct winograd {
  gb_op_call *call;
  gb_conv_sizes s;
  const gb_tensor *x, *y;      /* y: or its gradient */
  const float *krsc, *bias;
  bool turned, relu;
  int64_t rows, row;           /* rows of the weight, and channels of each */
  int64_t down, across;        /* tiles of an image */
  int64_t width, segments;     /* tiles of a unit, and units of a row of tiles */
  int64_t units, chunks;
  int64_t most;                /* tiles of a chunk at most */
  int64_t x_plane, y_plane;    /* floats from a place to the next */
  float *weights, *packed;     /* transformed [place][rows][row], and as products read them */
  size_t packed_bytes;         /* of a place */
  float *sums;                 /* of each slice, [place][o][c] */
  int64_t slices;
  size_t product_bytes;
  gb_scratch scratch;
  atomic_bool not_finite;
} winograd;

/* A thread's room: rows of pixels around a unit, planes of x's and of y's tiles, rows of y, a product's scratch. */
typedef struct room { float *ring, *x, *y, *rows; char *product; } room;

/* Some tiles side by side, of one row of an image. */
typedef struct unit { int64_t image, row, first, count; } unit;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const gb_product_how plainly = { false, GB_UNIT_NONE };

/* {==== Planning ==== */

bool gb_winograd_takes(const gb_conv_sizes *s) {
  for (int i = 0; i < 2; i++)
    if (s->kernel[i] != 3 || s->stride[i] != 1 || s->dilation[i] != 1) return false;
  if (s->groups != 1 || s->c % GB_VECTOR || s->o % GB_VECTOR || least(s->c, s->o) < LEAST_CHANNELS) return false;
  if (s->c > MOST_WEIGHT_BYTES / 4 / PLACES / s->o) return false;
  double tiles = (double)s->n * (double)divide_up(s->out[0], 2) * (double)divide_up(s->out[1], 2);
  return tiles >= LEAST_OF_ALL;
}

/* Units are numbered down the columns of an image, so that a unit and the next share rows of pixels. */
static unit unit_at(const winograd *w, int64_t i) {
  unit u = { .image = i / w->down / w->segments, .row = i % w->down, .first = i / w->down % w->segments * w->width };
  u.count = least(w->width, w->across - u.first);
  return u;
}

/* How tiles are cut. */
static void plan(winograd *w, int64_t wanted_tiles) {
  const gb_conv_sizes *s = &w->s;
  w->down = divide_up(s->out[0], 2), w->across = divide_up(s->out[1], 2);
  w->segments = divide_up(w->across, UNIT_TILES);
  w->width = divide_up(w->across, w->segments);
  w->units = s->n * w->segments * w->down;
  w->chunks = most(1, w->units * w->width / wanted_tiles);
  w->most = divide_up(w->units, w->chunks) * w->width;
  w->x_plane = w->most * s->c + APART, w->y_plane = w->most * s->o + APART;
  w->product_bytes = gb_block_product_scratch(plainly, GB_LANE_F32, most(w->most, s->o), most(s->c, s->o),
                                              most(s->c, w->most));
}

/* Tiles of a chunk: those that fit, and fewer where there would be too few chunks. */
static int64_t tiles_of_chunk(const gb_conv_sizes *s) {
  int64_t fit = CHUNK_BYTES / (4 * PLACES) / (s->c + s->o), all = s->n * (s->out[0] / 2 + 1) * (s->out[1] / 2 + 1);
  int64_t tiles = least(MOST_TILES, most(LEAST_TILES, fit));
  return all < tiles * WANTED_CHUNKS ? most(LEAST_TILES / 2, all / WANTED_CHUNKS) : tiles;
}

static size_t ring_floats(const winograd *w) { return (size_t)(4 * (2 * w->width + 2) * most(w->s.c, w->s.o)); }

/* Bytes of a room, and the room of this thread. */
static size_t lay_out(const winograd *w, char *base, room *r) {
  size_t bytes = 0, ring = gb_scratch_take(&bytes, (int64_t)ring_floats(w) * 4);
  size_t x = gb_scratch_take(&bytes, PLACES * w->x_plane * 4), y = gb_scratch_take(&bytes, PLACES * w->y_plane * 4);
  size_t rows = gb_scratch_take(&bytes, 2 * 2 * w->width * w->s.o * 4);
  size_t product = gb_scratch_take(&bytes, (int64_t)w->product_bytes);
  if (base)
    *r = (room){ (float *)(void *)(base + ring), (float *)(void *)(base + x), (float *)(void *)(base + y),
                 (float *)(void *)(base + rows), base + product };
  return bytes;
}

/* ====} */

/* {==== Pixels ==== */

GB_ALWAYS_INLINE gb_vector load(const float *from) {
  gb_vector x;
  memcpy(&x, from, sizeof x);
  return x;
}
GB_ALWAYS_INLINE void store(float *to, gb_vector x) { memcpy(to, &x, sizeof x); }

/* Pixels column .. column + count - 1 of row `row` of an image of t, [n, c, h, w] in any layout, as float32 with the
 * channels last; zeros outside of it. */
static void load_row(const winograd *w, const gb_tensor *t, int64_t image, int64_t row, int64_t column, int64_t count,
                     float *to) {
  const int64_t c = t->shape[1], size = (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
  const bool inside = row >= 0 && row < t->shape[2];
  const int64_t before = inside ? least(most(-column, 0), count) : count;
  const int64_t end = inside ? most(before, least(t->shape[3] - column, count)) : count;
  memset(to, 0, (size_t)(before * c) * sizeof *to);
  memset(to + end * c, 0, (size_t)((count - end) * c) * sizeof *to);
  if (end == before) return;
  const char *from = gb_data(t) + (image * t->stride[0] + row * t->stride[2] + (column + before) * t->stride[3]) * size;
  to += before * c;
  if (t->stride[1] == 1 && t->stride[3] == c) {
    gb_copy_run((char *)to, GB_FLOAT32, 1, from, (gb_dtype)t->dtype, 1, (end - before) * c);
    return;
  }
  const int64_t shape[2] = { end - before, c }, dense[2] = { c, 1 }, strides[2] = { t->stride[3], t->stride[1] };
  gb_copy_strided(w->call, 2, shape, (char *)to, GB_FLOAT32, dense, from, (gb_dtype)t->dtype, strides);
}

/* A tile's 4 x 4 pixels, of which row i begins at row[i], as its 16 places: B' d B, where a row of B' takes
 * d0 - d2, d1 + d2, d2 - d1 or d1 - d3. */
GB_ALWAYS_INLINE void transform_tile(const float *const row[4], int64_t channels, float *to, int64_t plane) {
  for (int64_t c = 0; c < channels; c += GB_VECTOR) {
    gb_vector t[4][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const int64_t at = j * channels + c;
      gb_vector d0 = load(row[0] + at), d1 = load(row[1] + at), d2 = load(row[2] + at), d3 = load(row[3] + at);
      t[0][j] = d0 - d2, t[1][j] = d1 + d2, t[2][j] = d2 - d1, t[3][j] = d1 - d3;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      float *out = to + 4 * i * plane + c;
      store(out, t[i][0] - t[i][2]);
      store(out + plane, t[i][1] + t[i][2]);
      store(out + 2 * plane, t[i][2] - t[i][1]);
      store(out + 3 * plane, t[i][1] - t[i][3]);
    }
  }
}

/* A tile's 16 places back to 2 x 2 pixels: A' m A, where the rows of A' take m0 + m1 + m2 and m1 - m2 - m3. */
GB_ALWAYS_INLINE void transform_back(const float *from, int64_t plane, int64_t k, gb_vector y[2][2]) {
  gb_vector s[2][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const float *at = from + j * plane + k;
    gb_vector m1 = load(at + 4 * plane), m2 = load(at + 8 * plane);
    s[0][j] = load(at) + (m1 + m2);
    s[1][j] = (m1 - m2) - load(at + 12 * plane);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    y[i][0] = s[i][0] + (s[i][1] + s[i][2]);
    y[i][1] = (s[i][1] - s[i][2]) - s[i][3];
  }
}

/* The gradient's 2 x 2 pixels as 16 places: A g A'. */
GB_ALWAYS_INLINE void transform_gradient(const float *const row[2], int64_t channels, float *to, int64_t plane) {
  for (int64_t k = 0; k < channels; k += GB_VECTOR) {
    gb_vector t[4][2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      gb_vector g0 = load(row[0] + j * channels + k), g1 = load(row[1] + j * channels + k);
      t[0][j] = g0, t[1][j] = g0 + g1, t[2][j] = g0 - g1, t[3][j] = -g1;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      float *out = to + 4 * i * plane + k;
      store(out, t[i][0]);
      store(out + plane, t[i][0] + t[i][1]);
      store(out + 2 * plane, t[i][0] - t[i][1]);
      store(out + 3 * plane, -t[i][1]);
    }
  }
}

/* Transform x's tiles of units first .. end - 1; how many there are. Rows of pixels lie in a ring of four, of which a
 * unit below another of the same image needs two new ones. */
static int64_t transform_units(const winograd *w, int64_t first, int64_t end, const room *r) {
  const gb_conv_sizes *s = &w->s;
  const int64_t row_floats = (2 * w->width + 2) * s->c;
  int64_t tiles = 0;
  for (int64_t i = first; i < end; i++) {
    unit u = unit_at(w, i);
    if (gb_work(PLACES * u.count * s->c)) return tiles;
    int64_t top = 2 * u.row - s->padding[0], left = 2 * u.first - s->padding[1];
    float *rows[4];
    for (int k = 0; k < 4; k++) {
      rows[k] = r->ring + (2 * u.row + k) % 4 * row_floats;
      if (k < 2 && i > first && u.row > 0) continue;
      load_row(w, w->x, u.image, top + k, left, 2 * u.count + 2, rows[k]);
    }
    for (int64_t t = 0; t < u.count; t++, tiles++) {
      const int64_t at = 2 * t * s->c;
      const float *tile[4] = { rows[0] + at, rows[1] + at, rows[2] + at, rows[3] + at };
      transform_tile(tile, s->c, r->x + tiles * s->c, w->x_plane);
    }
  }
  return tiles;
}

/* ====} */

/* {==== Forward ==== */

/* Rows of weights that one chunk transforms. */
enum { WEIGHT_ROWS = 32 };

/* Chunk: rows of the weight as 16 places, G g G', where the rows of G take g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2
 * and g2. */
static void transform_weights(void *arg, int64_t chunk) {
  const winograd *w = arg;
  const int64_t c = w->row, plane = w->rows * c, end = least(w->rows, (chunk + 1) * WEIGHT_ROWS);
  for (int64_t o = chunk * WEIGHT_ROWS; o < end && !gb_work(PLACES * c); o++)
    for (int64_t k = 0; k < c; k += GB_VECTOR) {
      const float *from = w->krsc + o * 9 * c + k;
      float *to = w->weights + o * c + k;
      gb_vector t[4][3];
#pragma GCC unroll 3
      for (int j = 0; j < 3; j++) {
        gb_vector g0 = load(from + j * c), g1 = load(from + (3 + j) * c), g2 = load(from + (6 + j) * c);
        t[0][j] = g0, t[1][j] = 0.5f * (g0 + g2 + g1), t[2][j] = 0.5f * (g0 + g2 - g1), t[3][j] = g2;
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        store(to + 4 * i * plane, t[i][0]);
        store(to + (4 * i + 1) * plane, 0.5f * (t[i][0] + t[i][2] + t[i][1]));
        store(to + (4 * i + 2) * plane, 0.5f * (t[i][0] + t[i][2] - t[i][1]));
        store(to + (4 * i + 3) * plane, t[i][2]);
      }
    }
}

/* A place's weights as the right operand of its product, [c, o]. Turned about, the weight has its channels out and in
 * exchanged, and its first and last taps: so the places of g0 and g2 are each other's. */
static gb_matrix weights_of(const winograd *w, int64_t place) {
  static const int64_t across[4] = { 3, 1, 2, 0 };
  if (w->turned) place = 4 * across[place / 4] + across[place % 4];
  const float *weights = w->weights + place * w->rows * w->row;
  return w->turned ? (gb_matrix){ weights, GB_FLOAT32, w->row, 1 } : (gb_matrix){ weights, GB_FLOAT32, 1, w->row };
}

/* Chunk: some columns of a place's weights, packed. */
static void pack_weights(void *arg, int64_t chunk) {
  const winograd *w = arg;
  room r;
  lay_out(w, gb_scratch_room(&w->scratch), &r);
  const int64_t parts = divide_up(w->s.o, WEIGHT_ROWS), place = chunk / parts, first = chunk % parts * WEIGHT_ROWS;
  gb_matrix b = weights_of(w, place);
  gb_pack_columns(plainly, GB_LANE_F32, first, least(WEIGHT_ROWS, w->s.o - first), w->s.c, &b,
                  gb_packed_columns(plainly, GB_LANE_F32, w->s.o), (char *)w->packed + (size_t)place * w->packed_bytes,
                  r.product);
}

/* One row of a tile's results, two pixels or one. */
GB_ALWAYS_INLINE void put_pixels(float *to, int64_t channels, const gb_vector y[2], bool relu, bool both) {
  const gb_vector zero = { 0 };
  store(to, relu ? gb_vector_max(y[0], zero) : y[0]);
  if (both) store(to + channels, relu ? gb_vector_max(y[1], zero) : y[1]);
}

/* The results of a tile into its pixels, those of the second row into to[1]; 0 where all are finite, else NaN. */
static gb_vector finish_tile(const winograd *w, const float *from, float *const to[2], bool both) {
  const int64_t o = w->s.o;
  gb_vector seen = { 0 };
  for (int64_t k = 0; k < o; k += GB_VECTOR) {
    gb_vector y[2][2];
    transform_back(from, w->y_plane, k, y);
    const gb_vector bias = w->bias ? load(w->bias + k) : (gb_vector){ 0 };
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      y[i][0] += bias, y[i][1] += bias;
      seen += y[i][0] * 0.0f + y[i][1] * 0.0f;
      if (to[i]) put_pixels(to[i] + k, o, y[i], w->relu, both);
    }
  }
  return seen;
}

/* The tiles of a unit, of which the first lies at `from`, into y. */
static gb_vector finish_unit(const winograd *w, unit u, const float *from, float *rows) {
  const gb_conv_sizes *s = &w->s;
  const int64_t o = s->o, line = s->out[1] * o, count = least(2 * u.count, s->out[1] - 2 * u.first);
  const int64_t at = (u.image * s->out[0] + 2 * u.row) * line + 2 * u.first * o;
  const bool in_place = w->y->dtype == GB_FLOAT32, second = 2 * u.row + 1 < s->out[0];
  float *to[2] = { in_place ? (float *)(void *)gb_data(w->y) + at : rows, NULL };
  if (second) to[1] = to[0] + (in_place ? line : 2 * w->width * o);
  gb_vector seen = { 0 };
  for (int64_t t = 0; t < u.count; t++, from += o) {
    float *pixels[2] = { to[0] + 2 * t * o, second ? to[1] + 2 * t * o : NULL };
    seen += finish_tile(w, from, pixels, 2 * t + 1 < count);
  }
  for (int i = 0; i < (in_place ? 0 : 1 + second); i++)
    gb_store_f32(gb_data(w->y) + (at + i * line) * 2, (gb_dtype)w->y->dtype, 1, to[i], count * o);
  return seen;
}

/* Keep that a sum was not finite; seen: zeros, or NaN. */
static void keep_seen(winograd *w, gb_vector seen) {
  if (!(gb_vector_sum(seen) == 0.0f)) atomic_store(&w->not_finite, true);
}

/* Some units of y. */
static void forward_chunk(void *arg, int64_t chunk) {
  winograd *w = arg;
  const gb_conv_sizes *s = &w->s;
  const int64_t first = w->units * chunk / w->chunks, end = w->units * (chunk + 1) / w->chunks;
  room r;
  lay_out(w, gb_scratch_room(&w->scratch), &r);
  const int64_t tiles = transform_units(w, first, end, &r), columns = gb_packed_columns(plainly, GB_LANE_F32, s->o);
  for (int64_t place = 0; place < PLACES && !gb_was_stopped(w->call); place++) {
    gb_matrix a = { r.x + place * w->x_plane, GB_FLOAT32, s->c, 1 }, b = weights_of(w, place);
    gb_packed packed = { (char *)w->packed + (size_t)place * w->packed_bytes, columns, 0 };
    gb_block_product(plainly, GB_LANE_F32, tiles, s->o, s->c, 1, &a, &b, &packed, 0, r.y + place * w->y_plane, s->o,
                     GB_FLOAT32, r.product);
  }
  gb_vector seen = { 0 };
  const float *from = r.y;
  for (int64_t i = first; i < end && !gb_was_stopped(w->call); i++) {
    unit u = unit_at(w, i);
    seen += finish_unit(w, u, from, r.rows);
    from += u.count * s->o;
  }
  if (!gb_was_stopped(w->call)) keep_seen(w, seen);
}

gb_status gb_winograd_forward(gb_op_call *call, const gb_conv_sizes *s, const gb_tensor *x, const float *krsc,
                              bool turned, const float *bias, bool relu, const gb_tensor *y, bool *finite) {
  winograd w = { .call = call, .s = *s, .x = x, .y = y, .krsc = krsc, .turned = turned, .bias = bias, .relu = relu };
  w.rows = turned ? s->c : s->o, w.row = turned ? s->o : s->c;
  plan(&w, tiles_of_chunk(s));
  atomic_init(&w.not_finite, false);
  w.packed_bytes = gb_packed_bytes(plainly, GB_LANE_F32, s->o, s->c);
  size_t shared = 0, weights = gb_scratch_take(&shared, PLACES * s->o * s->c * 4);
  size_t packed = gb_scratch_take(&shared, PLACES * (int64_t)w.packed_bytes);
  GB_TRY(gb_scratch_open(call, shared, lay_out(&w, NULL, NULL), &w.scratch));
  w.weights = (float *)(void *)(w.scratch.shared + weights);
  w.packed = (float *)(void *)(w.scratch.shared + packed);
  gb_parallel(call, divide_up(w.rows, WEIGHT_ROWS), transform_weights, &w);
  gb_parallel(call, PLACES * divide_up(s->o, WEIGHT_ROWS), pack_weights, &w);
  gb_parallel(call, w.chunks, forward_chunk, &w);
  gb_scratch_close(call, &w.scratch);
  *finite = !atomic_load(&w.not_finite);
  return GB_OK;
}

/* ====} */

/* {==== The weight's gradient ==== */

/* Transform the gradients of these units' pixels. */
static void transform_gradients(const winograd *w, int64_t first, int64_t end, const room *r) {
  const int64_t o = w->s.o, line = 2 * w->width * o;
  float *to = r->y;
  for (int64_t i = first; i < end; i++) {
    unit u = unit_at(w, i);
    if (gb_work(PLACES * u.count * o)) return;
    for (int k = 0; k < 2; k++)
      load_row(w, w->y, u.image, 2 * u.row + k, 2 * u.first, 2 * u.count, r->rows + k * line);
    for (int64_t t = 0; t < u.count; t++, to += o) {
      const float *tile[2] = { r->rows + 2 * t * o, r->rows + line + 2 * t * o };
      transform_gradient(tile, o, to, w->y_plane);
    }
  }
}

/* The chunks of one slice, into its own sums. */
static void weight_slice(void *arg, int64_t slice) {
  winograd *w = arg;
  const gb_conv_sizes *s = &w->s;
  const int64_t begin = w->chunks * slice / w->slices, stop = w->chunks * (slice + 1) / w->slices, numel = s->o * s->c;
  room r;
  lay_out(w, gb_scratch_room(&w->scratch), &r);
  for (int64_t chunk = begin; chunk < stop && !gb_was_stopped(w->call); chunk++) {
    const int64_t first = w->units * chunk / w->chunks, end = w->units * (chunk + 1) / w->chunks;
    const int64_t tiles = transform_units(w, first, end, &r);
    transform_gradients(w, first, end, &r);
    for (int64_t place = 0; place < PLACES && !gb_was_stopped(w->call); place++) {
      gb_matrix a = { r.y + place * w->y_plane, GB_FLOAT32, 1, s->o }, b = { r.x + place * w->x_plane, GB_FLOAT32,
                                                                              s->c, 1 };
      gb_block_product(plainly, GB_LANE_F32, s->o, s->c, tiles, 1, &a, &b, NULL, chunk > begin,
                       w->sums + (slice * PLACES + place) * numel, s->c, GB_FLOAT32, r.product);
    }
  }
}

/* Chunk: rows of the weight's gradient from their places, G' u G. */
static void finish_weights(void *arg, int64_t chunk) {
  winograd *w = arg;
  const int64_t c = w->s.c, plane = w->s.o * c, end = least(w->s.o, (chunk + 1) * WEIGHT_ROWS);
  float *krsc = w->weights;
  gb_vector seen = { 0 };
  for (int64_t o = chunk * WEIGHT_ROWS; o < end && !gb_work(PLACES * c); o++)
    for (int64_t k = 0; k < c; k += GB_VECTOR) {
      const float *from = w->sums + o * c + k;
      float *to = krsc + o * 9 * c + k;
      gb_vector t[3][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        const float *at = from + j * plane;
        gb_vector u0 = load(at), u1 = load(at + 4 * plane), u2 = load(at + 8 * plane), u3 = load(at + 12 * plane);
        t[0][j] = u0 + 0.5f * (u1 + u2), t[1][j] = 0.5f * (u1 - u2), t[2][j] = 0.5f * (u1 + u2) + u3;
      }
#pragma GCC unroll 3
      for (int i = 0; i < 3; i++) {
        gb_vector both = 0.5f * (t[i][1] + t[i][2]);
        gb_vector row[3] = { t[i][0] + both, 0.5f * (t[i][1] - t[i][2]), both + t[i][3] };
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
          seen += row[j] * 0.0f;
          store(to + (3 * i + j) * c, row[j]);
        }
      }
    }
  if (!gb_was_stopped(w->call)) keep_seen(w, seen);
}

gb_status gb_winograd_weight(gb_op_call *call, const gb_conv_sizes *s, const gb_tensor *x, const gb_tensor *grad,
                             float *krsc, bool *finite) {
  winograd w = { .call = call, .s = *s, .x = x, .y = grad, .weights = krsc };
  const int64_t numel = PLACES * s->o * s->c;
  plan(&w, tiles_of_chunk(s));
  atomic_init(&w.not_finite, false);
  w.slices = most(1, least(least(w.chunks, MOST_SLICES), MOST_SLICE_BYTES / (numel * 4)));
  size_t shared = 0, sums = gb_scratch_take(&shared, w.slices * numel * 4);
  GB_TRY(gb_scratch_open(call, shared, lay_out(&w, NULL, NULL), &w.scratch));
  w.sums = (float *)(void *)(w.scratch.shared + sums);
  gb_parallel(call, w.slices, weight_slice, &w);
  gb_sum_parts(call, GB_LANE_F32, w.sums, numel, w.slices);
  gb_parallel(call, divide_up(s->o, WEIGHT_ROWS), finish_weights, &w);
  gb_scratch_close(call, &w.scratch);
  *finite = !atomic_load(&w.not_finite);
  return GB_OK;
}

/* ====} */
