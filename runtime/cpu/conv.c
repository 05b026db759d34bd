/* cpu/conv.c - 2-D convolution, its gradients by input and by weight, and the ways to compute each.
 *
 * Where the batch has few pixels in all, or the kernel one tap, columns of the whole batch are one product with the
 * weight, in the operands' own dtype; so is the gradient by an input of few channels, of which oneDNN would compute 16.
 * Kernels of 3 x 3, and some others, take fewer multiplications (conv_winograd.h), of few channels not where the CPU
 * has a unit for the operands. oneDNN (conv_onednn.h) takes slices of the batch: float32, or bfloat16 where the CPU has
 * a unit for it and nothing could be as small as what that takes for zero (cpu/gemm_bf16.c says when); else 16-bit
 * operands are widened slice by slice. Results are rounded once on the way out. The plain way is im2col and GEMM on
 * tiles of output pixels: it serves float64, TF32 and whatever oneDNN refuses. All cut their work by shape alone. A
 * weight's gradient is a sum over slices of the batch, each kept apart and added up in the order of the slices, so any
 * number of threads gives the same bits. Operations: 2 * n * oh * ow * o * c / groups * kh * kw; plain im2col moves
 * kh * kw / stride^2 times x. */
#include <string.h>

#include "cpu/conv_onednn.h"
#include "cpu/conv_winograd.h"
#include "cpu/gemm.h"
#include "cpu/scratch.h"
#include "cpu/wide.h"
#include "cpu/walk.h"

/* Elements of a tile of im2col's columns: 256 KiB of float32, which stay in L2 beside the weight's panel. */
#define COLUMN_ELEMENTS 65536
/* Slices that a batch is cut into at most; and where each needs a weight's gradient of its own, that many and that many
 * bytes. */
enum { MOST_SLICES = 16, MOST_PARTIALS = 8 };
#define MOST_PARTIAL_BYTES ((int64_t)64 << 20)

/* A convolution, forward or backward, as all its chunks see it. x, weight and y stand for themselves or for their
 * gradients; one of them is the result. Inside, everything is a lane: float32, or float64 for float64. */
typedef struct conv {
  gb_op_call *call;
  gb_conv_sizes s;
  const gb_tensor *x, *weight, *bias, *y;
  bool relu;
  bool large;                      /* Winograd's tiles are the large ones */
  bool turned;                     /* the weight is used turned about, with its channels in and out exchanged */
  gb_lane lane;
  gb_dtype dtype;                  /* of lanes */
  int64_t bytes;                   /* of a lane */
  gb_dtype operand;                /* what operands are brought into: that of lanes, or bfloat16 */
  int64_t cg, og;                  /* channels of a group, in and out */
  int64_t depth, pixels;           /* of one sum: kh * kw * cg; of one result: oh * ow */
  int64_t tile, tiles;             /* pixels of a tile, tiles of an image */
  const char *krsc, *bias_lanes;   /* weight [o][kh][kw][cg] and bias [o] in lanes */
  char *partials;                  /* gradients of the weight, one per slice */
  int64_t slices, images;          /* slices of the batch; images of a run of oneDNN */
  const gb_onednn_conv *library;
  char *packed;                    /* the weight in oneDNN's layout */
  int64_t skipped, row;            /* of a weight's row, elements before those that are used, and all of them */
  int64_t first;                   /* image of the batch with which the columns at hand begin */
  char *columns;
  size_t room_bytes;               /* of a thread */
  gb_scratch scratch;
  atomic_bool failed;
} conv;

/* {==== Preparing ==== */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The tensors that are multiplied, by conv2d's names: a gradient has grad where x is, or x where the weight is. */
static const gb_in_conv2d *operands(const gb_op_call *call) { return GB_IN(call, conv2d); }
_Static_assert(GB_IN_AT(conv2d_backward_input, grad) == GB_IN_AT(conv2d, x), "");
_Static_assert(GB_IN_AT(conv2d_backward_weight, grad) == GB_IN_AT(conv2d, x), "");
_Static_assert(GB_IN_AT(conv2d_backward_input, weight) == GB_IN_AT(conv2d, weight), "");
_Static_assert(GB_IN_AT(conv2d_backward_weight, x) == GB_IN_AT(conv2d, weight), "");

/* Everything that follows from sizes and dtype. */
static void set_up(conv *v, gb_op_call *call, const gb_tensor *x, const gb_tensor *weight, const gb_tensor *y,
                   gb_conv_attrs attrs) {
  *v = (conv){ .call = call, .x = x, .weight = weight, .y = y };
  v->s = gb_conv_sizes_of(2, x->shape, weight->shape, attrs);
  v->lane = operands(call)->x->dtype == GB_FLOAT64 ? GB_LANE_F64 : GB_LANE_F32;
  v->operand = v->dtype = gb_lane_dtype(v->lane);
  v->bytes = (int64_t)gb_lane_bytes(v->lane);
  v->cg = v->s.c / v->s.groups;
  v->og = v->s.o / v->s.groups;
  v->depth = v->s.kernel[0] * v->s.kernel[1] * v->cg;
  v->pixels = v->s.out[0] * v->s.out[1];
  v->tile = least(most(COLUMN_ELEMENTS / most(v->depth, 1), 32), v->pixels);
  v->tiles = (v->pixels + v->tile - 1) / v->tile;
  atomic_init(&v->failed, false);
}

/* Is t an operand as it is wanted, with the channels last, so that it can be used where it is? */
static bool is_ready(const conv *v, const gb_tensor *t) { return t->dtype == v->operand && gb_is_channels_last(t); }

/* Are these channels side by side, one pixel after the other, though with others between pixels: a part of the channels
 * of a tensor that has them last? */
static bool is_channel_slice(const gb_tensor *t) {
  const int64_t pixel = t->stride[3], row = t->shape[3] * pixel;
  return t->stride[1] == 1 && pixel >= t->shape[1] && t->stride[2] == row && t->stride[0] == t->shape[2] * row;
}

/* `count` pixels of so many bytes each, `step` apart, one after the other. */
static void copy_pixels(char *to, const char *from, int64_t count, int64_t bytes, int64_t step) {
  typedef char block __attribute__((vector_size(32), aligned(1)));
  enum { PIXELS = 1024 };
  for (int64_t i = 0; i < count; i++, to += bytes, from += step) {
    if (i % PIXELS == PIXELS - 1 && gb_work(PIXELS * bytes)) return;
    if (bytes % 32) memcpy(to, from, (size_t)bytes);
    else for (int64_t k = 0; k < bytes; k += 32) *(block *)(to + k) = *(const block *)(from + k);
  }
}

/* Images first .. first + count - 1 of t, as an operand with the channels last: where they are, or copied into room. */
static char *images_in(const conv *v, const gb_tensor *t, int64_t first, int64_t count, char *room) {
  char *from = gb_data(t) + first * t->stride[0] * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype);
  if (is_ready(v, t)) return from;
  if (t->dtype == v->operand && is_channel_slice(t)) {
    const int64_t size = (int64_t)gb_dtype_bytes(v->operand);
    copy_pixels(room, from, count * t->shape[2] * t->shape[3], t->shape[1] * size, t->stride[3] * size);
    return room;
  }
  const int64_t shape[4] = { count, t->shape[2], t->shape[3], t->shape[1] },
      strides[4] = { t->stride[0], t->stride[2], t->stride[3], t->stride[1] };
  int64_t packed[4];
  gb_contiguous_strides(4, shape, packed);
  gb_copy_strided(v->call, 4, shape, room, v->operand, packed, from, (gb_dtype)t->dtype, strides);
  return room;
}

/* The whole weight as [o][kh][kw][cg], as an operand; where it is turned, o and c are what they are to the convolution
 * that it serves then. */
static char *weight_in(const conv *v, char *room) {
  const gb_tensor *w = v->weight;
  if (!v->turned) return images_in(v, w, 0, v->s.o, room);
  const int64_t shape[4] = { w->shape[1], w->shape[2], w->shape[3], w->shape[0] },
      strides[4] = { w->stride[1], -w->stride[2], -w->stride[3], w->stride[0] };
  int64_t packed[4], last = (w->shape[2] - 1) * w->stride[2] + (w->shape[3] - 1) * w->stride[3];
  gb_contiguous_strides(4, shape, packed);
  const char *from = gb_data(w) + last * (int64_t)gb_dtype_bytes((gb_dtype)w->dtype);
  gb_copy_strided(v->call, 4, shape, room, v->operand, packed, from, (gb_dtype)w->dtype, strides);
  return room;
}

/* The bias in lanes, or NULL. */
static char *bias_in(const conv *v, char *room) {
  if (!v->bias) return NULL;
  gb_lane_load(v->lane, room, gb_data(v->bias), (gb_dtype)v->bias->dtype, v->bias->stride[0], v->s.o);
  return room;
}

/* Lanes into a result that has the channels last, from element `at` on. */
static void store(const gb_tensor *t, int64_t at, gb_lane lane, const char *from, int64_t n) {
  gb_lane_store(lane, gb_data(t) + at * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype), (gb_dtype)t->dtype, 1, from, n);
}

/* max(x, 0) that keeps NaN. */
static void relu_row(gb_lane lane, void *row, int64_t n) {
  float *f = row;
  double *d = row;
  for GB_PIECES(at, m, n) {
    if (lane == GB_LANE_F32)
      for (int64_t i = at; i < at + m; i++) f[i] = f[i] < 0.0f ? 0.0f : f[i];
    else
      for (int64_t i = at; i < at + m; i++) d[i] = d[i] < 0.0 ? 0.0 : d[i];
  }
}

/* Run all chunks, free the scratch, and report what failed in one of them. */
static gb_status run_and_free(conv *v, int64_t chunks, gb_chunk_fn fn) {
  gb_parallel(v->call, chunks, fn, v);
  gb_scratch_close(v->call, &v->scratch);
  return atomic_load(&v->failed) ? gb_call_fail(v->call, GB_EMEMORY, "no memory for the working space of a convolution")
      : GB_OK;
}

/* ====} */

/* {==== Columns ==== */

/* Taps q with 0 <= base + q * dilation < size: first .. *end - 1. */
static int64_t taps_inside(int64_t base, int64_t dilation, int64_t size, int64_t kernel, int64_t *end) {
  int64_t first = base < 0 ? (-base + dilation - 1) / dilation : 0;
  int64_t stop = size > base ? (size - base + dilation - 1) / dilation : 0;
  *end = least(stop, kernel);
  return least(first, *end);
}

/* Where one row of taps of one output pixel lies in its image: row `y`, columns x + q * dilation for q in first .. end
 * - 1. */
typedef struct tap_row { int64_t y, x, first, end; } tap_row;

/* Taps of row r of the kernel at output pixel `pixel`; none where the row lies in the padding. */
static tap_row taps_at(const gb_conv_sizes *s, int64_t pixel, int64_t r) {
  tap_row t = { .y = pixel / s->out[1] * s->stride[0] - s->padding[0] + r * s->dilation[0],
                .x = pixel % s->out[1] * s->stride[1] - s->padding[1] };
  if (t.y >= 0 && t.y < s->in[0]) t.first = taps_inside(t.x, s->dilation[1], s->in[1], s->kernel[1], &t.end);
  return t;
}

/* What `rows` output pixels of image n read, group g: one row of operands [kh][kw][cg] for each, zeros in the
 * padding. */
static void im2col(const conv *v, int64_t n, int64_t g, int64_t first, int64_t rows, char *columns) {
  const gb_conv_sizes *s = &v->s;
  const gb_tensor *x = v->x;
  gb_dtype dtype = (gb_dtype)x->dtype;
  int64_t size = (int64_t)gb_dtype_bytes(dtype), step = v->cg * (int64_t)gb_dtype_bytes(v->operand);
  /* a row of taps is one run of memory */
  bool together = (x->stride[1] == 1 || v->cg == 1) && x->stride[3] == v->cg && s->dilation[1] == 1;
  const char *base = gb_data(x) + (n * x->stride[0] + g * v->cg * x->stride[1]) * size;
  for (int64_t p = 0; p < rows && !gb_work(v->depth); p++)
    for (int64_t r = 0; r < s->kernel[0]; r++, columns += s->kernel[1] * step) {
      tap_row t = taps_at(s, first + p, r);
      memset(columns, 0, (size_t)(t.first * step));
      memset(columns + t.end * step, 0, (size_t)((s->kernel[1] - t.end) * step));
      int64_t run = together ? t.end - t.first : 1;
      for (int64_t q = t.first; q < t.end; q += run)
        gb_copy_run(columns + q * step, v->operand, 1,
                    base + (t.y * x->stride[2] + (t.x + q * s->dilation[1]) * x->stride[3]) * size, dtype,
                    together ? 1 : x->stride[1], run * v->cg);
    }
}

/* to += from, of few elements. */
GB_ALWAYS_INLINE void add_short(float *to, const float *from, int64_t n) {
  typedef float four __attribute__((vector_size(16), aligned(4)));
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) *(four *)(to + i) += *(const four *)(from + i);
  for (; i < n; i++) to[i] += from[i];
}

/* Does a row of taps take so few float32 that calls cost more than their sums? */
enum { SHORT_RUN = 32 };
static bool has_short_runs(const conv *v) {
  return v->lane == GB_LANE_F32 && v->s.dilation[1] == 1 && v->s.kernel[1] * v->cg <= SHORT_RUN;
}

/* col2im of pixels first .. end - 1 of one row of y and row r of taps, each of which goes to `to`, a row of the image.
 * Pixels whose taps overlap do not follow one another: an addition would wait for the store before it. */
GB_ALWAYS_INLINE void add_short_runs(const conv *v, int64_t first, int64_t end, const float *columns, float *to,
                                     int64_t run) {
  const gb_conv_sizes *s = &v->s;
  const int64_t kernel = s->kernel[1], stride = s->stride[1], turns = (kernel + stride - 1) / stride;
  for (int64_t turn = 0; turn < turns; turn++)
    for (int64_t i = first + turn; i < end; i += turns) {
      const int64_t x = i * stride - s->padding[1];
      const float *from = columns + (i - first) * v->depth;
      if (x >= 0 && x + kernel <= s->in[1]) {
        add_short(to + x * v->cg, from, run);
        continue;
      }
      int64_t stop, begin = taps_inside(x, 1, s->in[1], kernel, &stop);
      add_short(to + (x + begin) * v->cg, from + begin * v->cg, (stop - begin) * v->cg);
    }
}

/* col2im where runs are short. */
static void col2im_short(const conv *v, float *image, int64_t first, int64_t rows, const float *columns) {
  const gb_conv_sizes *s = &v->s;
  const int64_t width = s->out[1], run = s->kernel[1] * v->cg;
  for (int64_t p = first, n; p < first + rows && !gb_work(width * v->depth); p += n, columns += n * v->depth) {
    const int64_t column = p % width, top = p / width * s->stride[0] - s->padding[0];
    n = least(width - column, first + rows - p);
    for (int64_t r = 0; r < s->kernel[0]; r++) {
      const int64_t y = top + r * s->dilation[0];
      if (y < 0 || y >= s->in[0]) continue;
      float *to = image + y * s->in[1] * v->cg;
      if (run == 4) add_short_runs(v, column, column + n, columns + r * run, to, 4);
      else add_short_runs(v, column, column + n, columns + r * run, to, run);
    }
  }
}

/* Add rows of columns to where im2col would have read them, in one group of one image [h][w][cg]. */
static void col2im(const conv *v, char *image, int64_t first, int64_t rows, const char *columns) {
  const gb_conv_sizes *s = &v->s;
  int64_t step = v->cg * v->bytes;
  if (has_short_runs(v)) {
    col2im_short(v, (float *)(void *)image, first, rows, (const float *)(const void *)columns);
    return;
  }
  for (int64_t p = 0; p < rows && !gb_work(v->depth); p++)
    for (int64_t r = 0; r < s->kernel[0]; r++, columns += s->kernel[1] * step) {
      tap_row t = taps_at(s, first + p, r);
      int64_t run = s->dilation[1] == 1 ? t.end - t.first : 1;
      for (int64_t q = t.first; q < t.end; q += run)
        gb_row_add(v->lane, image + (t.y * s->in[1] + t.x + q * s->dilation[1]) * step, columns + q * step, run * v->cg,
                   1);
    }
}

/* Pixels first .. first + rows - 1 of image n of y's gradient, group g, as rows of og lanes: where they are, or copied
 * into room. */
static gb_matrix grad_rows(const conv *v, int64_t n, int64_t g, int64_t first, int64_t rows, char *room) {
  const gb_tensor *y = v->y;
  int64_t size = (int64_t)gb_dtype_bytes((gb_dtype)y->dtype), row = v->s.out[1];
  const char *base = gb_data(y) + (n * y->stride[0] + g * v->og * y->stride[1]) * size;
  if (is_ready(v, y)) return (gb_matrix){ base + first * v->s.o * size, v->dtype, v->s.o, 1 };
  for (int64_t p = 0; p < rows && !gb_work(v->og); p++)
    gb_copy_run(room + p * v->og * v->bytes, v->dtype, 1,
                base + ((first + p) / row * y->stride[2] + (first + p) % row * y->stride[3]) * size,
                (gb_dtype)y->dtype, y->stride[1], v->og);
  return (gb_matrix){ room, v->dtype, v->og, 1 };
}

/* c = beta * c + a @ b in lanes; a failure is kept for the end. */
static void multiply(conv *v, int64_t m, int64_t n, int64_t k, gb_matrix a, gb_matrix b, float beta, char *c,
                     int64_t ldc) {
  if (GB_CPU_NAME(gemm)(v->call, m, n, k, a, b, beta, c, ldc, v->dtype) != GB_OK) atomic_store(&v->failed, true);
}

/* ====} */

/* {==== The plain way ==== */

/* The weight of group g as a matrix [og, depth], or transposed. */
static gb_matrix group_weight(const conv *v, int64_t g, bool transposed) {
  const char *data = v->krsc + g * v->og * v->depth * v->bytes;
  return transposed ? (gb_matrix){ data, v->dtype, 1, v->depth } : (gb_matrix){ data, v->dtype, v->depth, 1 };
}

/* One tile of pixels of one group of one image. Sums are made in y itself where it has lanes, else beside it and
 * rounded once. */
static void forward_chunk(void *arg, int64_t chunk) {
  conv *v = arg;
  int64_t o = v->s.o, first = chunk % v->tiles * v->tile, rows = least(v->tile, v->pixels - first);
  int64_t g = chunk / v->tiles % v->s.groups, n = chunk / v->tiles / v->s.groups,
      at = (n * v->pixels + first) * o + g * v->og;
  char *columns = gb_scratch_room(&v->scratch), *sums = columns + v->tile * v->depth * v->bytes;
  bool in_place = v->y->dtype == v->dtype;
  int64_t ld = in_place ? o : v->og;
  if (in_place) sums = gb_data(v->y) + at * v->bytes;
  im2col(v, n, g, first, rows, columns);
  for (int64_t p = 0; v->bias_lanes && p < rows; p++)
    memcpy(sums + p * ld * v->bytes, v->bias_lanes + g * v->og * v->bytes, (size_t)(v->og * v->bytes));
  multiply(v, rows, v->og, v->depth, (gb_matrix){ columns, v->dtype, v->depth, 1 }, group_weight(v, g, true),
           v->bias_lanes ? 1 : 0, sums, ld);
  for (int64_t p = 0; p < rows; p++) {
    if (v->relu) relu_row(v->lane, sums + p * ld * v->bytes, v->og);
    if (!in_place) store(v->y, at + p * o, v->lane, sums + p * ld * v->bytes, v->og);
  }
}

static gb_status forward_plain(conv *v) {
  size_t shared = 0, weight = gb_scratch_take(&shared, is_ready(v, v->weight) ? 0 : v->weight->numel * v->bytes);
  size_t bias = gb_scratch_take(&shared, v->bias ? v->s.o * v->bytes : 0);
  gb_scratch_take(&v->room_bytes, v->tile * (v->depth + v->og) * v->bytes);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->krsc = weight_in(v, v->scratch.shared + weight);
  v->bias_lanes = bias_in(v, v->scratch.shared + bias);
  return run_and_free(v, v->s.n * v->s.groups * v->tiles, forward_chunk);
}

/* One group of one image: windows overlap, so its sums are made in lanes as a whole and rounded once. */
static void backward_input_chunk(void *arg, int64_t chunk) {
  conv *v = arg;
  int64_t g = chunk % v->s.groups, n = chunk / v->s.groups, area = v->s.in[0] * v->s.in[1];
  char *columns = gb_scratch_room(&v->scratch), *grad = columns + v->tile * v->depth * v->bytes,
      *image = grad + v->tile * v->og * v->bytes;
  gb_clear_bytes(image, (size_t)(area * v->cg * v->bytes));
  for (int64_t first = 0; first < v->pixels && !gb_was_stopped(v->call); first += v->tile) {
    int64_t rows = least(v->tile, v->pixels - first);
    multiply(v, rows, v->depth, v->og, grad_rows(v, n, g, first, rows, grad), group_weight(v, g, false), 0, columns,
             v->depth);
    col2im(v, image, first, rows, columns);
  }
  if (v->s.groups == 1) store(v->x, n * area * v->s.c, v->lane, image, area * v->s.c);
  else
    for (int64_t p = 0; p < area && !gb_work(v->cg); p++)
      store(v->x, (n * area + p) * v->s.c + g * v->cg, v->lane, image + p * v->cg * v->bytes, v->cg);
}

static gb_status backward_input_plain(conv *v) {
  size_t shared = 0, weight = gb_scratch_take(&shared, is_ready(v, v->weight) ? 0 : v->weight->numel * v->bytes);
  gb_scratch_take(&v->room_bytes, (v->tile * (v->depth + v->og) + v->s.in[0] * v->s.in[1] * v->cg) * v->bytes);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->krsc = weight_in(v, v->scratch.shared + weight);
  return run_and_free(v, v->s.n * v->s.groups, backward_input_chunk);
}

/* One group of one slice of the batch, into the slice's own gradient. */
static void backward_weight_chunk(void *arg, int64_t chunk) {
  conv *v = arg;
  int64_t g = chunk % v->s.groups, slice = chunk / v->s.groups, end = v->s.n * (slice + 1) / v->slices;
  char *columns = gb_scratch_room(&v->scratch), *grad = columns + v->tile * v->depth * v->bytes;
  char *sums = v->partials + (slice * v->s.o + g * v->og) * v->depth * v->bytes;
  float beta = 0;
  for (int64_t n = v->s.n * slice / v->slices; n < end; n++)
    for (int64_t first = 0; first < v->pixels && !gb_was_stopped(v->call); first += v->tile, beta = 1) {
      int64_t rows = least(v->tile, v->pixels - first);
      im2col(v, n, g, first, rows, columns);
      gb_matrix a = grad_rows(v, n, g, first, rows, grad),
          transposed = { a.data, a.dtype, a.column_stride, a.row_stride };
      multiply(v, v->og, v->depth, rows, transposed, (gb_matrix){ columns, v->dtype, v->depth, 1 }, beta, sums,
               v->depth);
    }
}

/* Slices whose gradients of the weight, of `bytes` each, are kept apart. */
static int64_t partial_slices(const conv *v, int64_t bytes) {
  return most(1, least(least(v->s.n, MOST_PARTIALS), MOST_PARTIAL_BYTES / most(bytes, 1)));
}

static gb_status backward_weight_plain(conv *v) {
  int64_t numel = v->weight->numel;
  size_t shared = 0;
  v->slices = partial_slices(v, numel * v->bytes);
  gb_scratch_take(&shared, v->slices * numel * v->bytes);
  gb_scratch_take(&v->room_bytes, v->tile * (v->depth + v->og) * v->bytes);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->partials = v->scratch.shared;
  gb_parallel(v->call, v->slices * v->s.groups, backward_weight_chunk, v);
  gb_sum_parts(v->call, v->lane, v->partials, numel, v->slices);
  store(v->weight, 0, v->lane, v->partials, numel);
  return run_and_free(v, 0, NULL);
}

/* ====} */

/* {==== One product ==== */

/* Elements of columns that are made at once, or as many as the weight has, which is read for each such part; and rows
 * up to which a product is quicker than oneDNN's slices: each of those reads the whole weight, which its kernels of
 * AVX-512 do well, or has a gradient of its own. With more rows, how often a column has to be used, and how long its
 * runs have to be, for columns to pay; and the most elements that those of an image may have. */
enum { PART_ELEMENTS = 1 << 18, FEW_ROWS_OF_SUMS = 1024, FEW_ROWS = GB_VECTOR == 16 ? 128 : FEW_ROWS_OF_SUMS,
       LEAST_USES = 64, LEAST_UNIT_USES = 32, LEAST_RUN = 32, MOST_OF_IMAGE = 1 << 22 };

/* Leave out taps that meet nothing but padding wherever the kernel lies, as most do over a map of one pixel: whole rows
 * of taps, and within a single row those at its ends. */
static void crop_taps(conv *v) {
  gb_conv_sizes *s = &v->s;
  int64_t width = s->kernel[1], first[2] = { 0 };
  v->row = v->depth;
  for (int i = 0; i < 2 && (i == 0 || s->kernel[0] == 1); i++) {
    int64_t last = (s->out[i] - 1) * s->stride[i] - s->padding[i], end = 0;
    taps_inside(-s->padding[i], s->dilation[i], s->in[i], s->kernel[i], &end);
    int64_t before = last < 0 ? (-last + s->dilation[i] - 1) / s->dilation[i] : 0;
    if (before >= end) continue;
    first[i] = before;
    s->kernel[i] = end - before;
    s->padding[i] -= before * s->dilation[i];
  }
  v->skipped = (first[0] * width + first[1]) * v->cg;
  v->depth = s->kernel[0] * s->kernel[1] * v->cg;
}

/* Is every row of columns a pixel of x as it lies? */
static bool is_pointwise(const conv *v) {
  const gb_conv_sizes *s = &v->s;
  for (int i = 0; i < 2; i++)
    if (s->kernel[i] != 1 || s->stride[i] != 1 || s->padding[i] != 0 || s->in[i] != s->out[i]) return false;
  return true;
}

/* Is a product quicker than oneDNN over maps of any size? It is by AVX512_BF16 where oneDNN would take float32, and
 * where oneDNN (2.6, AVX2) runs at half its speed: with strides and along one dimension. Not where channels of x lie
 * apart, which columns take one by one. */
static bool pays_as_product(const conv *v) {
  const gb_conv_sizes *s = &v->s;
  const gb_unit unit = v->operand == GB_BFLOAT16 ? gb_cpu(v->call->context)->unit : GB_UNIT_NONE;
  const int64_t run = s->dilation[1] == 1 ? s->kernel[1] * v->cg : v->cg;
  if (unit == GB_UNIT_TILES || run < LEAST_RUN || v->pixels > MOST_OF_IMAGE / v->depth) return false;
  if (s->kernel[0] > 1 && !gb_is_channels_last(v->x)) return false;
  if (unit == GB_UNIT_DOTS) return s->o >= LEAST_UNIT_USES;
  return s->o >= LEAST_USES && (s->stride[0] > 1 || s->stride[1] > 1 || s->in[0] == 1 || s->in[1] == 1);
}

/* May the convolution be one product, of columns by the weight? As that sees it, then. */
static bool could_be_product(const conv *v, conv *cropped) {
  if (v->s.groups != 1 || v->s.n == 0 || gb_cpu(v->call->context)->plain_convolution) return false;
  *cropped = *v;
  cropped->operand = (gb_dtype)operands(v->call)->x->dtype;
  crop_taps(cropped);
  return true;
}

/* Is a product quicker than anything else: of so few rows, or without columns? */
static bool takes_product(conv *v, int64_t few) {
  conv cropped;
  if (!could_be_product(v, &cropped)) return false;
  if (cropped.s.n > few / cropped.pixels && !is_pointwise(&cropped)) return false;
  *v = cropped;
  return true;
}

/* Is a product quicker than oneDNN in float32? */
static bool takes_large_product(conv *v) {
  conv cropped;
  if (!could_be_product(v, &cropped) || !pays_as_product(&cropped)) return false;
  *v = cropped;
  return true;
}

/* Images whose columns are made at once. */
static int64_t images_at_once(const conv *v) {
  return least(v->s.n, most(1, most(PART_ELEMENTS, v->s.o * v->depth) / (v->pixels * v->depth)));
}

static int64_t operand_bytes(const conv *v) { return (int64_t)gb_dtype_bytes(v->operand); }

/* Bytes of room for the columns of so many images: none where x serves as it lies. */
static int64_t columns_bytes(const conv *v, int64_t count) {
  return is_pointwise(v) && is_ready(v, v->x) ? 0 : count * v->pixels * v->depth * operand_bytes(v);
}

/* Rows of images first .. first + count - 1 of t as a matrix, a pixel a row: where they are, or copied into room. */
static gb_matrix pixels_of(const conv *v, const gb_tensor *t, int64_t first, int64_t count, char *room) {
  return (gb_matrix){ images_in(v, t, first, count, room), v->operand, t->shape[1], 1 };
}

static void columns_chunk(void *arg, int64_t chunk) {
  const conv *v = arg;
  int64_t image = chunk / v->tiles, first = chunk % v->tiles * v->tile, rows = least(v->tile, v->pixels - first);
  im2col(v, v->first + image, 0, first, rows, v->columns + (image * v->pixels + first) * v->depth * operand_bytes(v));
}

/* The columns of these images, a pixel of the result a row; room for them, or for x where that does. */
static gb_matrix columns_of(conv *v, int64_t first, int64_t count, char *room) {
  if (is_pointwise(v)) return pixels_of(v, v->x, first, count, room);
  v->first = first, v->columns = room;
  gb_parallel(v->call, count * v->tiles, columns_chunk, v);
  return (gb_matrix){ room, v->operand, v->depth, 1 };
}

/* The weight, whole rows of it, from the first element that is used on. */
static const char *weight_of(const conv *v, char *room) { return weight_in(v, room) + v->skipped * operand_bytes(v); }

static gb_status forward_product(conv *v) {
  const int64_t size = operand_bytes(v), o = v->s.o, once = images_at_once(v);
  size_t shared = 0, weight = gb_scratch_take(&shared, is_ready(v, v->weight) ? 0 : v->weight->numel * size);
  size_t columns = gb_scratch_take(&shared, columns_bytes(v, once));
  GB_TRY(gb_scratch_open_rooms(v->call, shared, 0, 0, &v->scratch));
  const char *b = weight_of(v, v->scratch.shared + weight);
  gb_status status = GB_OK;
  for (int64_t first = 0; first < v->s.n && status == GB_OK; first += once) {
    int64_t count = least(once, v->s.n - first);
    gb_product p = { .m = count * v->pixels, .n = o, .k = v->depth, .ldc = o, .dtype = (gb_dtype)v->y->dtype,
                     .a = columns_of(v, first, count, v->scratch.shared + columns), .b = { b, v->operand, 1, v->row } };
    p.c = gb_data(v->y) + first * v->pixels * o * (int64_t)gb_dtype_bytes(p.dtype);
    if (v->bias)
      p.epilogue = (gb_epilogue){ .bias = gb_data(v->bias), .bias_dtype = (gb_dtype)v->bias->dtype,
                                  .bias_stride = v->bias->stride[0] };
    if (v->relu) p.epilogue.activation = GB_ACTIVATION_RELU;
    status = gb_product_run(v->call, &p);
  }
  gb_scratch_close(v->call, &v->scratch);
  return status;
}

/* Columns of gradients, in lanes, added up in one image of x's gradient, which is rounded once. */
static void images_chunk(void *arg, int64_t chunk) {
  conv *v = arg;
  int64_t numel = v->s.in[0] * v->s.in[1] * v->s.c, at = (v->first + chunk) * numel;
  bool in_place = v->x->dtype == v->dtype;
  char *image = in_place ? gb_data(v->x) + at * v->bytes : gb_scratch_room(&v->scratch);
  gb_clear_bytes(image, (size_t)(numel * v->bytes));
  col2im(v, image, 0, v->pixels, v->columns + chunk * v->pixels * v->depth * v->bytes);
  if (!in_place) store(v->x, at, v->lane, image, numel);
}

static gb_status backward_input_product(conv *v) {
  const int64_t size = operand_bytes(v), o = v->s.o, once = images_at_once(v);
  const bool direct = is_pointwise(v);
  const int64_t image = v->s.in[0] * v->s.in[1] * v->s.c;
  size_t shared = 0, weight = gb_scratch_take(&shared, is_ready(v, v->weight) ? 0 : v->weight->numel * size);
  size_t columns = gb_scratch_take(&shared, direct ? 0 : once * v->pixels * v->depth * v->bytes);
  size_t grad = gb_scratch_take(&shared, is_ready(v, v->y) ? 0 : once * v->pixels * o * size);
  if (!direct && v->x->dtype != v->dtype) gb_scratch_take(&v->room_bytes, image * v->bytes);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  const char *b = weight_of(v, v->scratch.shared + weight);
  v->columns = v->scratch.shared + columns;
  gb_status status = GB_OK;
  for (v->first = 0; v->first < v->s.n && status == GB_OK; v->first += once) {
    int64_t count = least(once, v->s.n - v->first);
    gb_product p = { .m = count * v->pixels, .n = v->depth, .k = o, .ldc = v->depth, .c = v->columns, .dtype = v->dtype,
                     .a = pixels_of(v, v->y, v->first, count, v->scratch.shared + grad),
                     .b = { b, v->operand, v->row, 1 } };
    if (direct) {
      p.dtype = (gb_dtype)v->x->dtype;
      p.c = gb_data(v->x) + v->first * image * (int64_t)gb_dtype_bytes(p.dtype);
    }
    status = gb_product_run(v->call, &p);
    if (!direct && status == GB_OK) gb_parallel(v->call, count, images_chunk, v);
  }
  gb_scratch_close(v->call, &v->scratch);
  return status;
}

static gb_status backward_weight_product(conv *v) {
  const int64_t size = operand_bytes(v), o = v->s.o, once = images_at_once(v), numel = v->weight->numel;
  const bool in_place = v->weight->dtype == v->dtype;
  size_t shared = 0, sums = gb_scratch_take(&shared, in_place ? 0 : numel * v->bytes);
  size_t columns = gb_scratch_take(&shared, columns_bytes(v, once));
  size_t grad = gb_scratch_take(&shared, is_ready(v, v->y) ? 0 : once * v->pixels * o * size);
  GB_TRY(gb_scratch_open_rooms(v->call, shared, 0, 0, &v->scratch));
  char *krsc = in_place ? gb_data(v->weight) : v->scratch.shared + sums;
  if (v->row != v->depth) gb_zero_bytes(v->call, krsc, (size_t)(numel * v->bytes));
  gb_status status = GB_OK;
  for (int64_t first = 0; first < v->s.n && status == GB_OK; first += once) {
    int64_t count = least(once, v->s.n - first);
    gb_matrix a = pixels_of(v, v->y, first, count, v->scratch.shared + grad);
    gb_product p = { .m = o, .n = v->depth, .k = count * v->pixels, .c = krsc + v->skipped * v->bytes, .ldc = v->row,
                     .dtype = v->dtype, .beta = first == 0 ? 0 : 1, .a = { a.data, a.dtype, 1, a.row_stride },
                     .b = columns_of(v, first, count, v->scratch.shared + columns) };
    status = gb_product_run(v->call, &p);
  }
  if (!in_place && status == GB_OK) store(v->weight, 0, v->lane, krsc, numel);
  gb_scratch_close(v->call, &v->scratch);
  return status;
}

/* ====} */

/* {==== Narrow groups ==== */

/* Groups of 2 or 4 channels in and out, for which oneDNN (2.6) has no kernel of its own: a vector holds the same
 * channels of x and y, several groups of them. Each tap adds, for each channel of a group, x with that channel spread
 * over its group, times a vector of weights. x is read kh * kw times, from the cache; a shuffle to 2 operations. */

/* Pixels of a row whose sums are in registers at once. */
enum { PIXELS_AT_ONCE = 4 };

/* Channel `k` of each group of `of` lanes in all lanes of the group. */
#define LANE(of, k, i) ((i) / (of) * (of) + (k))
#define LANES_4(of, k, i) LANE(of, k, i), LANE(of, k, (i) + 1), LANE(of, k, (i) + 2), LANE(of, k, (i) + 3)
#if GB_VECTOR == 16
#define SPREAD(x, of, k) \
  __builtin_shufflevector(x, x, LANES_4(of, k, 0), LANES_4(of, k, 4), LANES_4(of, k, 8), LANES_4(of, k, 12))
#elif GB_VECTOR == 8
#define SPREAD(x, of, k) __builtin_shufflevector(x, x, LANES_4(of, k, 0), LANES_4(of, k, 4))
#else
#define SPREAD(x, of, k) __builtin_shufflevector(x, x, LANES_4(of, k, 0))
#endif

/* sum += the products of one tap; w: `of` vectors of weights. */
GB_ALWAYS_INLINE gb_vector add_tap(int of, gb_vector sum, const float *from, const gb_vector w[4]) {
  gb_vector x;
  memcpy(&x, from, sizeof x);
  if (of == 2) return sum + SPREAD(x, 2, 0) * w[0] + SPREAD(x, 2, 1) * w[1];
  return (sum + SPREAD(x, 4, 0) * w[0] + SPREAD(x, 4, 1) * w[1]) + (SPREAD(x, 4, 2) * w[2] + SPREAD(x, 4, 3) * w[3]);
}

/* One vector of channels of `count` pixels of y from (row, column) on; inside: no tap of theirs leaves x's columns. */
GB_ALWAYS_INLINE void narrow_pixels(const conv *v, int of, const float *x, const float *w, int64_t row, int64_t column,
                                    int count, bool inside, gb_vector bias, float *y) {
  const gb_conv_sizes *s = &v->s;
  gb_vector sums[PIXELS_AT_ONCE];
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) sums[i] = bias;
  for (int64_t ky = 0; ky < s->kernel[0]; ky++) {
    int64_t at = row * s->stride[0] - s->padding[0] + ky * s->dilation[0];
    for (int64_t kx = 0; at >= 0 && at < s->in[0] && kx < s->kernel[1]; kx++) {
      int64_t first = column * s->stride[1] - s->padding[1] + kx * s->dilation[1];
      if (!inside && (first < 0 || first >= s->in[1])) continue;
      const float *from = x + (at * s->in[1] + first) * s->c;
      const float *tap = w + (ky * s->kernel[1] + kx) * of * GB_VECTOR;
      gb_vector weights[4];
#pragma GCC unroll 4
      for (int i = 0; i < of; i++) memcpy(&weights[i], tap + i * GB_VECTOR, sizeof *weights);
#pragma GCC unroll 4
      for (int i = 0; i < count; i++) sums[i] = add_tap(of, sums[i], from + i * s->stride[1] * s->c, weights);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) memcpy(y + i * s->o, &sums[i], sizeof *sums);
}

/* One row of y: all its vectors of channels. */
GB_ALWAYS_INLINE void narrow_row(const conv *v, int of, const float *x, int64_t row, float *y) {
  const gb_conv_sizes *s = &v->s;
  int64_t reach = (s->kernel[1] - 1) * s->dilation[1], block = v->depth * GB_VECTOR;
  for (int64_t c = 0; c < s->c; c += GB_VECTOR) {
    const float *w = (const float *)(const void *)v->packed + c / GB_VECTOR * block;
    gb_vector bias = { 0 };
    if (v->bias_lanes) memcpy(&bias, (const float *)(const void *)v->bias_lanes + c, sizeof bias);
    for (int64_t column = 0, count; column < s->out[1]; column += count) {
      int64_t first = column * s->stride[1] - s->padding[1];
      bool inside = column + PIXELS_AT_ONCE <= s->out[1] && first >= 0 &&
          first + (PIXELS_AT_ONCE - 1) * s->stride[1] + reach < s->in[1];
      count = inside ? PIXELS_AT_ONCE : 1;
      if (inside) narrow_pixels(v, of, x + c, w, row, column, PIXELS_AT_ONCE, true, bias, y + column * s->o + c);
      else narrow_pixels(v, of, x + c, w, row, column, 1, false, bias, y + column * s->o + c);
    }
  }
}

/* Chunk: an image. */
static void narrow_image(void *arg, int64_t image) {
  const conv *v = arg;
  const int64_t x_size = v->s.in[0] * v->s.in[1] * v->s.c, row = v->s.out[1] * v->s.o, at = image * v->pixels * v->s.o;
  char *room = gb_scratch_room(&v->scratch);
  bool in_place = v->y->dtype == GB_FLOAT32;
  const float *x = (const float *)(void *)images_in(v, v->x, image, 1, room);
  float *y = (float *)(void *)(in_place ? gb_data(v->y) + at * 4 : room + x_size * 4);
  for (int64_t i = 0; i < v->s.out[0] && !gb_work_products(v->s.out[1], v->s.o, v->depth); i++) {
    if (v->cg == 2) narrow_row(v, 2, x, i, y + i * row);
    else narrow_row(v, 4, x, i, y + i * row);
    if (v->relu) relu_row(GB_LANE_F32, y + i * row, row);
  }
  if (!in_place) store(v->y, at, GB_LANE_F32, (char *)y, v->pixels * v->s.o);
}

/* Weights as narrow_pixels reads them, [c / vector][kh][kw][cg][vector], from [o][kh][kw][cg]. */
static void pack_narrow(const conv *v, const float *krsc, float *to) {
  for (int64_t c = 0; c < v->s.o && !gb_work(v->depth * GB_VECTOR); c += GB_VECTOR)
    for (int64_t k = 0; k < v->depth; k++)
      for (int64_t i = 0; i < GB_VECTOR; i++) *to++ = krsc[(c + i) * v->depth + k];
}

/* Is the convolution to go this way? */
static bool takes_narrow(const conv *v) {
  bool narrow = v->cg == v->og && (v->cg == 2 || v->cg == 4) && v->s.c % GB_VECTOR == 0;
  return narrow && v->lane == GB_LANE_F32 && v->s.n > 0 && v->pixels > 0 && !v->call->context->tf32 &&
      !gb_cpu(v->call->context)->plain_convolution;
}

/* All images. */
static gb_status forward_narrow(conv *v) {
  const int64_t numel = v->weight->numel;
  size_t shared = 0, weight = gb_scratch_take(&shared, numel * 4), packed = gb_scratch_take(&shared, numel * 4),
      bias = gb_scratch_take(&shared, v->s.o * 4);
  gb_scratch_take(&v->room_bytes, (v->s.in[0] * v->s.in[1] * v->s.c + v->pixels * v->s.o) * 4);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->packed = v->scratch.shared + packed;
  v->bias_lanes = bias_in(v, v->scratch.shared + bias);
  pack_narrow(v, (const float *)(void *)weight_in(v, v->scratch.shared + weight), (float *)(void *)v->packed);
  return run_and_free(v, v->s.n, narrow_image);
}

/* ====} */

/* {==== Depthwise sums ==== */

/* The weight's gradient where every channel is a group of its own, which oneDNN (2.6) sums in blocks of 16 by 16
 * channels over small maps: a vector of channels at a time, the sums of a row of taps in
 * registers along a row of y. Rows are added to sums of an image, those to a slice's: sums stay short. x is read
 * kh * kw times and y's gradient kh times, from the cache. */

/* Taps of a kernel, at most; and those of one row whose sums are in registers at once. */
enum { MOST_TAPS = 128, TAPS_AT_ONCE = 5 };

/* sums += over row `oy` of y, the products of y's gradient and x at `count` taps from kx on; `at` is the row of x. Both
 * begin with the vector's channels. */
GB_ALWAYS_INLINE void add_tap_row(const conv *v, const float *at, const float *grad, int64_t kx, int count,
                                  gb_vector *sums) {
  const gb_conv_sizes *s = &v->s;
  const int64_t c = s->c, between = s->dilation[1] * c, last = (count - 1) * s->dilation[1];
  gb_vector row[TAPS_AT_ONCE] = { 0 };
  for (int64_t column = 0; column < s->out[1]; column++, grad += c) {
    int64_t first = column * s->stride[1] - s->padding[1] + kx * s->dilation[1];
    gb_vector x, g;
    memcpy(&g, grad, sizeof g);
    if (first < 0 || first + last >= s->in[1]) {
      for (int i = 0; i < count; i++) {
        int64_t place = first + i * s->dilation[1];
        if (place < 0 || place >= s->in[1]) continue;
        memcpy(&x, at + place * c, sizeof x);
        row[i] += x * g;
      }
      continue;
    }
    const float *from = at + first * c;
#pragma GCC unroll 5
    for (int i = 0; i < count; i++) {
      memcpy(&x, from + i * between, sizeof x);
      row[i] += x * g;
    }
  }
#pragma GCC unroll 5
  for (int i = 0; i < count; i++) sums[i] += row[i];
}

/* The sums of one image, a vector of channels: x and grad begin with these channels. */
static void sum_taps(const conv *v, const float *x, const float *grad, gb_vector *sums) {
  const gb_conv_sizes *s = &v->s;
  const int64_t kw = s->kernel[1];
  for (int64_t oy = 0; oy < s->out[0] && !gb_work(s->out[1] * v->depth); oy++, grad += s->out[1] * s->c)
    for (int64_t ky = 0; ky < s->kernel[0]; ky++) {
      int64_t iy = oy * s->stride[0] - s->padding[0] + ky * s->dilation[0];
      if (iy < 0 || iy >= s->in[0]) continue;
      const float *at = x + iy * s->in[1] * s->c;
      int64_t kx = 0;
      for (; kx + 5 <= kw; kx += 5) add_tap_row(v, at, grad, kx, 5, sums + ky * kw + kx);
      for (; kx + 3 <= kw; kx += 3) add_tap_row(v, at, grad, kx, 3, sums + ky * kw + kx);
      for (; kx < kw; kx++) add_tap_row(v, at, grad, kx, 1, sums + ky * kw + kx);
    }
}

/* The images of one slice, into sums of its own [kh][kw][c]. The last vector of channels reads some a second time. */
static void depthwise_slice(void *arg, int64_t slice) {
  conv *v = arg;
  const int64_t c = v->s.c, end = v->s.n * (slice + 1) / v->slices;
  char *room = gb_scratch_room(&v->scratch);
  float *sums = (float *)(void *)v->partials + slice * v->depth * c;
  gb_clear_bytes(sums, (size_t)(v->depth * c) * sizeof *sums);
  for (int64_t n = v->s.n * slice / v->slices; n < end && !gb_stop_long(v->call); n++) {
    const float *x = (const float *)(void *)images_in(v, v->x, n, 1, room);
    const float *grad = (const float *)(void *)images_in(v, v->y, n, 1, room + v->s.in[0] * v->s.in[1] * c * 4);
    for (int64_t first = 0; first < c; first += GB_VECTOR) {
      gb_vector own[MOST_TAPS];
      int64_t from = least(first, c - GB_VECTOR);
      memset(own, 0, (size_t)v->depth * sizeof *own);
      sum_taps(v, x + from, grad + from, own);
      for (int64_t k = 0; k < v->depth; k++)
        for (int64_t i = first - from; i < GB_VECTOR; i++) sums[k * c + from + i] += own[k][i];
    }
  }
}

/* Is the weight's gradient to go this way? */
static bool takes_depthwise(const conv *v) {
  return v->s.groups > 1 && v->cg == 1 && v->og == 1 && v->s.c >= GB_VECTOR && v->depth <= MOST_TAPS &&
      v->lane == GB_LANE_F32 && !v->call->context->tf32 && !gb_cpu(v->call->context)->plain_convolution;
}

static gb_status backward_weight_depthwise(conv *v) {
  const int64_t c = v->s.c, numel = v->weight->numel;
  size_t shared = 0;
  v->slices = partial_slices(v, numel * 4);
  gb_scratch_take(&shared, v->slices * numel * 4);
  size_t weight = gb_scratch_take(&shared, numel * 4);
  gb_scratch_take(&v->room_bytes, (v->s.in[0] * v->s.in[1] + v->pixels) * c * 4);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->partials = v->scratch.shared;
  gb_parallel(v->call, v->slices, depthwise_slice, v);
  gb_sum_parts(v->call, v->lane, v->partials, numel, v->slices);
  const float *sums = (const float *)(void *)v->partials;
  float *rows = (float *)(void *)(v->scratch.shared + weight);
  for (int64_t i = 0; i < c && !gb_work(v->depth); i++)
    for (int64_t k = 0; k < v->depth; k++) rows[i * v->depth + k] = sums[k * c + i];
  store(v->weight, 0, v->lane, (const char *)rows, numel);
  return run_and_free(v, 0, NULL);
}

/* ====} */

/* {==== oneDNN's way ==== */

/* Multiply-adds of one image. */
static double image_products(const conv *v) { return (double)v->pixels * (double)v->s.o * (double)v->depth; }

/* The largest number of images that divides the batch evenly, leaves it in at least `slices` parts (or in single
 * images), and is no more than one piece of work, which a run of oneDNN is to us. */
static int64_t images_of_slice(const conv *v, int64_t slices) {
  int64_t n = v->s.n, images = n / slices;
  while (images > 1 && (n % images || (double)images * image_products(v) > (double)GB_PIECE_PRODUCTS)) images--;
  return most(images, 1);
}

/* Is what oneDNN does without looking for a stop too much for one piece: an image, or the way of a weight into its
 * layout? */
static bool is_too_long(const conv *v) {
  return image_products(v) > (double)GB_PIECE_PRODUCTS || v->weight->numel > 4 * GB_PIECE;
}

/* Are float32 operands to be rounded? The plain way's products do it while packing. */
static bool rounds_operands(const gb_op_call *call) {
  const gb_in_conv2d *in = operands(call);
  return call->context->tf32 && (in->x->dtype == GB_FLOAT32 || in->weight->dtype == GB_FLOAT32);
}

/* Elements that one chunk looks at, and channels of either side from which on tiles are worth it. */
enum { LOOK_ELEMENTS = 65536, LEAST_TILE_CHANNELS = 16 };

/* Runs of elements, `step` from one to the next, the last of which `numel` may cut short; and how many of them a chunk
 * takes. */
typedef struct look_job {
  const uint16_t *data;
  int64_t numel, run, step, runs_of_chunk;
  atomic_uint smallest;
} look_job;

/* The smallest magnitude but 0 of some elements, less 1, as bits. */
static void look_chunk(void *arg, int64_t chunk) {
  look_job *job = arg;
  uint16_t smallest = UINT16_MAX;
  const int64_t first = chunk * job->runs_of_chunk, runs = (job->numel + job->run - 1) / job->run;
  for (int64_t i = first; i < least(first + job->runs_of_chunk, runs); i++) {
    const uint16_t *data = job->data + i * job->step;
    const int64_t n = least(job->run, job->numel - i * job->run);
    for (int64_t k = 0; k < n; k++) {
      uint16_t magnitude = (uint16_t)((data[k] & 0x7fffu) - 1u);
      smallest = magnitude < smallest ? magnitude : smallest;
    }
  }
  unsigned seen = atomic_load(&job->smallest);
  while (smallest < seen && !atomic_compare_exchange_weak(&job->smallest, &seen, smallest)) continue;
}

static bool is_without_holes(const gb_tensor *t) { return gb_is_channels_last(t) || gb_is_contiguous(t); }

/* A power of 2 that no element of a bfloat16 tensor but 0 is below, as its exponent; one far too low where one is
 * subnormal. The tensor has no holes, or is a slice of channels. */
static int least_exponent(const gb_op_call *call, const gb_tensor *t) {
  const bool whole = is_without_holes(t);
  look_job job = { .data = (const uint16_t *)(const void *)gb_data(t), .numel = t->numel };
  job.run = whole ? LOOK_ELEMENTS : t->shape[1], job.step = whole ? LOOK_ELEMENTS : t->stride[3];
  job.runs_of_chunk = most(1, LOOK_ELEMENTS / job.run);
  const int64_t chunk = job.run * job.runs_of_chunk;
  atomic_init(&job.smallest, UINT16_MAX);
  gb_parallel(call, (t->numel + chunk - 1) / chunk, look_chunk, &job);
  unsigned smallest = atomic_load(&job.smallest);
  if (smallest == UINT16_MAX) return 0;
  int exponent = (int)((smallest + 1) >> 7);
  return exponent == 0 ? -1000 : exponent - 127;
}

/* May the unit for bfloat16 multiply these in oneDNN? The last bits of the operands are worth 2^-7 of them; every
 * product and sum is a multiple of their product. Tiles want channels to fill them; groups of few channels are as quick
 * in float32. */
static bool takes_unit(const conv *v) {
  const gb_tensor *a = operands(v->call)->x, *b = operands(v->call)->weight;
  const gb_unit unit = gb_cpu(v->call->context)->unit;
  bool dense = is_without_holes(a) || is_channel_slice(a), other = is_without_holes(b) || is_channel_slice(b);
  if (unit == GB_UNIT_NONE || a->dtype != GB_BFLOAT16 || b->dtype != GB_BFLOAT16 || !dense || !other) return false;
  if ((unit == GB_UNIT_TILES || v->s.groups > 1) && least(v->cg, v->og) < LEAST_TILE_CHANNELS) return false;
  return least_exponent(v->call, a) + least_exponent(v->call, b) - 14 >= -126;
}

/* Find oneDNN's convolution of one slice of a batch that is cut into about `slices`; half: of bfloat16 by its unit.
 * false: there is none. */
static bool find_library(conv *v, gb_onednn_kind kind, int64_t slices, bool half) {
  if (v->lane != GB_LANE_F32 || v->s.n == 0 || rounds_operands(v->call) || is_too_long(v)) return false;
  if (gb_cpu(v->call->context)->plain_convolution || (half && !takes_unit(v))) return false;
  gb_conv_sizes s = v->s;
  s.n = v->images = images_of_slice(v, slices);
  v->library = gb_onednn_find(v->call->context, kind, &s, v->bias != NULL, half);
  if (v->library && half) v->operand = GB_BFLOAT16;
  return v->library != NULL;
}

static int64_t x_image(const conv *v) { return v->s.c * v->s.in[0] * v->s.in[1]; }
static int64_t y_image(const conv *v) { return v->s.o * v->pixels; }

/* A thread's room: a slice of x and one of y, for float32, and oneDNN's own. */
typedef struct slice_room { char *x, *y, *own; } slice_room;

static slice_room room_of(const conv *v) {
  char *room = gb_scratch_room(&v->scratch);
  size_t at = 0, x = gb_scratch_take(&at, v->images * x_image(v) * 4),
      y = gb_scratch_take(&at, v->images * y_image(v) * 4);
  return (slice_room){ room + x, room + y, room + at };
}

/* Size the rooms of the threads. */
static void size_rooms(conv *v) {
  gb_scratch_take(&v->room_bytes, v->images * x_image(v) * 4);
  gb_scratch_take(&v->room_bytes, v->images * y_image(v) * 4);
  gb_scratch_take(&v->room_bytes, (int64_t)gb_onednn_scratch_bytes(v->library));
}

/* Run the convolution of one slice; a failure is kept for the end. */
static void run_library(conv *v, char *x, char *packed, char *y, char *own) {
  if (!gb_onednn_run(v->library, x, packed, (const float *)v->bias_lanes, y, own)) atomic_store(&v->failed, true);
}

static void forward_slice(void *arg, int64_t slice) {
  conv *v = arg;
  int64_t first = slice * v->images, n = v->images * y_image(v), at = first * y_image(v);
  slice_room room = room_of(v);
  bool in_place = v->y->dtype == GB_FLOAT32;
  char *y = in_place ? gb_data(v->y) + at * 4 : room.y;
  run_library(v, images_in(v, v->x, first, v->images, room.x), v->packed, y, room.own);
  if (v->relu) relu_row(GB_LANE_F32, y, n);
  if (!in_place) store(v->y, at, GB_LANE_F32, y, n);
}

static void backward_input_slice(void *arg, int64_t slice) {
  conv *v = arg;
  int64_t first = slice * v->images, n = v->images * x_image(v), at = first * x_image(v);
  slice_room room = room_of(v);
  bool in_place = v->x->dtype == GB_FLOAT32;
  char *x = in_place ? gb_data(v->x) + at * 4 : room.x;
  run_library(v, x, v->packed, images_in(v, v->y, first, v->images, room.y), room.own);
  if (!in_place) store(v->x, at, GB_LANE_F32, x, n);
}

/* Bring the weight into oneDNN's layout, then run the slices. Forward and by the input. */
static gb_status run_slices(conv *v, gb_chunk_fn fn) {
  size_t shared = 0, weight = gb_scratch_take(&shared, v->weight->numel * 4),
      bias = gb_scratch_take(&shared, v->s.o * 4);
  size_t packed = gb_scratch_take(&shared, (int64_t)gb_onednn_weight_bytes(v->library));
  size_rooms(v);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->bias_lanes = bias_in(v, v->scratch.shared + bias);
  v->packed = v->scratch.shared + packed;
  bool good = gb_onednn_pack(v->library, weight_in(v, v->scratch.shared + weight), v->packed, room_of(v).own);
  if (!good) atomic_store(&v->failed, true);
  return run_and_free(v, good ? v->s.n / v->images : 0, fn);
}

/* The runs of one slice of the batch, added up in order: the first writes the slice's gradient, the others go through
 * its second half. */
static void backward_weight_slice(void *arg, int64_t slice) {
  conv *v = arg;
  slice_room room = room_of(v);
  int64_t bytes = (int64_t)gb_onednn_weight_bytes(v->library), runs = v->s.n / v->images;
  int64_t first = runs * slice / v->slices, end = runs * (slice + 1) / v->slices;
  char *sums = v->partials + slice * bytes, *more = v->partials + (v->slices + slice) * bytes;
  for (int64_t run = first; run < end && !gb_stop_long(v->call); run++) {
    char *x = images_in(v, v->x, run * v->images, v->images, room.x),
        *y = images_in(v, v->y, run * v->images, v->images, room.y);
    run_library(v, x, run == first ? sums : more, y, room.own);
    if (run > first) gb_row_add(GB_LANE_F32, sums, more, bytes / 4, 1);
  }
}

static gb_status backward_weight_slices(conv *v) {
  int64_t numel = (int64_t)gb_onednn_weight_bytes(v->library) / 4; /* the gradient is float32 */
  size_t shared = 0;
  v->slices = least(partial_slices(v, 2 * numel * 4), v->s.n / v->images);
  gb_scratch_take(&shared, 2 * v->slices * numel * 4);
  size_t weight = gb_scratch_take(&shared, v->weight->numel * 4);
  size_rooms(v);
  GB_TRY(gb_scratch_open(v->call, shared, v->room_bytes, &v->scratch));
  v->partials = v->scratch.shared;
  gb_parallel(v->call, v->slices, backward_weight_slice, v);
  gb_sum_parts(v->call, v->lane, v->partials, numel, v->slices);
  bool in_place = v->weight->dtype == GB_FLOAT32;
  char *krsc = in_place ? gb_data(v->weight) : v->scratch.shared + weight;
  if (!gb_onednn_unpack(v->library, v->partials, krsc, room_of(v).own)) atomic_store(&v->failed, true);
  if (!in_place) store(v->weight, 0, GB_LANE_F32, krsc, v->weight->numel);
  return run_and_free(v, 0, NULL);
}

/* ====} */

/* {==== Fewer multiplications ==== */

/* The share of a direct sum's multiplications that is worth it: in float32, and beside the unit for bfloat16, which is
 * twice as quick, and of how many channels then. */
#define MOST_SHARE 0.72
#define MOST_SHARE_OF_UNIT 0.31
enum { LEAST_CHANNELS_OF_UNIT = 32 };

/* Is the convolution, or a gradient, to go by conv_winograd.h? first: before anything else, which where the CPU has a
 * unit for the operands, whose products are more but quicker, only large tiles do. */
static bool takes_winograd(conv *v, gb_winograd_kind kind, bool first) {
  const gb_dtype x = (gb_dtype)operands(v->call)->x->dtype, weight = (gb_dtype)operands(v->call)->weight->dtype;
  const gb_unit unit = gb_cpu(v->call->context)->unit;
  const bool taken = gb_unit_takes((gb_product_how){ .unit = unit }, x, weight);
  if (v->lane != GB_LANE_F32 || rounds_operands(v->call) || gb_cpu(v->call->context)->plain_convolution) return false;
  v->large = gb_is_16bit(x) && gb_is_16bit(weight) && (!taken || first);
  if (taken && first)
    return unit == GB_UNIT_DOTS && least(v->s.c, v->s.o) >= LEAST_CHANNELS_OF_UNIT &&
        gb_winograd_takes(&v->s, kind, true, MOST_SHARE_OF_UNIT);
  v->large = v->large && gb_winograd_takes(&v->s, kind, true, MOST_SHARE_OF_UNIT);
  return first != taken && (v->large || gb_winograd_takes(&v->s, kind, false, MOST_SHARE));
}

/* Run it, forward or by the input. *done: false where a result is not finite, which a direct sum keeps apart from its
 * neighbours. */
static gb_status run_winograd(conv *v, bool input, bool *done) {
  size_t shared = 0, weight = gb_scratch_take(&shared, v->weight->numel * 4),
      bias = gb_scratch_take(&shared, v->s.o * 4);
  GB_TRY(gb_scratch_open_rooms(v->call, shared, 0, 0, &v->scratch));
  const float *krsc = (const float *)(void *)weight_in(v, v->scratch.shared + weight),
      *lanes = (const float *)(void *)bias_in(v, v->scratch.shared + bias);
  gb_status status = input ? gb_winograd_input(v->call, &v->s, v->large, v->y, krsc, v->x, done)
      : gb_winograd_forward(v->call, &v->s, v->large, v->x, krsc, lanes, v->relu, v->y, done);
  gb_scratch_close(v->call, &v->scratch);
  return status;
}

static gb_status backward_weight_winograd(conv *v, bool *done) {
  const bool in_place = v->weight->dtype == GB_FLOAT32;
  size_t shared = 0;
  gb_scratch_take(&shared, in_place ? 0 : v->weight->numel * 4);
  GB_TRY(gb_scratch_open_rooms(v->call, shared, 0, 0, &v->scratch));
  char *krsc = in_place ? gb_data(v->weight) : v->scratch.shared;
  gb_status status = gb_winograd_weight(v->call, &v->s, v->large, v->x, v->y, (float *)(void *)krsc, done);
  if (!in_place && status == GB_OK) store(v->weight, 0, GB_LANE_F32, krsc, v->weight->numel);
  gb_scratch_close(v->call, &v->scratch);
  return status;
}

/* ====} */

/* {==== Kernels ==== */

/* Which way each takes: a product where that is quicker than any other, oneDNN by the unit for bfloat16, a product
 * where that is quicker than oneDNN in float32, and the plain way for what oneDNN refuses. */

static gb_status conv2d(gb_op_call *call) {
  const gb_in_conv2d *in = GB_IN(call, conv2d);
  const gb_attrs_conv2d *attrs = GB_ATTRS(call, conv2d);
  conv v;
  set_up(&v, call, in->x, in->weight, GB_OUT(call, conv2d)->y, GB_CONV_ATTRS(attrs));
  v.bias = in->bias;
  v.relu = attrs->activation.integer == GB_WORD_relu;
  bool done = false;
  if (takes_winograd(&v, GB_WINOGRAD_FORWARD, true)) GB_TRY(run_winograd(&v, false, &done));
  if (done) return GB_OK;
  if (takes_product(&v, FEW_ROWS)) return forward_product(&v);
  if (takes_narrow(&v)) return forward_narrow(&v);
  if (find_library(&v, GB_ONEDNN_FORWARD, MOST_SLICES, true)) return run_slices(&v, forward_slice);
  if (takes_winograd(&v, GB_WINOGRAD_FORWARD, false)) GB_TRY(run_winograd(&v, false, &done));
  if (done) return GB_OK;
  if (takes_large_product(&v)) return forward_product(&v);
  if (find_library(&v, GB_ONEDNN_FORWARD, MOST_SLICES, false)) return run_slices(&v, forward_slice);
  return forward_plain(&v);
}

/* With a stride of 1 the gradient by the input is a convolution itself: of y's gradient by the weight turned about,
 * with what padding is left. oneDNN is faster at it. half: as find_library has it. false: it is not, or the library
 * cannot. */
static bool find_turned(conv *v, bool half) {
  const gb_conv_sizes s = v->s;
  conv turned = *v;
  if (s.groups != 1 || s.stride[0] != 1 || s.stride[1] != 1) return false;
  turned.s.c = turned.cg = s.o;
  turned.s.o = turned.og = s.c;
  for (int i = 0; i < 2; i++) {
    turned.s.in[i] = s.out[i];
    turned.s.out[i] = s.in[i];
    turned.s.padding[i] = s.dilation[i] * (s.kernel[i] - 1) - s.padding[i];
    if (turned.s.padding[i] < 0) return false;
  }
  turned.pixels = s.in[0] * s.in[1];
  turned.turned = true;
  turned.x = v->y;
  turned.y = v->x;
  if (!find_library(&turned, GB_ONEDNN_FORWARD, MOST_SLICES, half)) return false;
  *v = turned;
  return true;
}

static gb_status conv2d_backward_input(gb_op_call *call) {
  const gb_in_conv2d_backward_input *in = GB_IN(call, conv2d_backward_input);
  conv v;
  set_up(&v, call, GB_OUT(call, conv2d_backward_input)->dx, in->weight, in->grad,
         GB_CONV_ATTRS(GB_ATTRS(call, conv2d_backward_input)));
  bool narrow = v.cg < LEAST_TILE_CHANNELS; /* of which oneDNN (2.6) computes 16 */
  bool done = false;
  if (takes_winograd(&v, GB_WINOGRAD_INPUT, true)) GB_TRY(run_winograd(&v, true, &done));
  if (done) return GB_OK;
  if (takes_product(&v, narrow ? FEW_ROWS_OF_SUMS : FEW_ROWS) || (narrow && takes_large_product(&v)) ||
      (narrow && has_short_runs(&v) && v.pixels <= MOST_OF_IMAGE / v.depth && takes_product(&v, INT64_MAX)))
    return backward_input_product(&v);
  if (find_turned(&v, true)) return run_slices(&v, forward_slice);
  if (find_library(&v, GB_ONEDNN_BACKWARD_INPUT, MOST_SLICES, true)) return run_slices(&v, backward_input_slice);
  if (takes_winograd(&v, GB_WINOGRAD_INPUT, false)) GB_TRY(run_winograd(&v, true, &done));
  if (done) return GB_OK;
  if (takes_large_product(&v)) return backward_input_product(&v);
  if (find_turned(&v, false)) return run_slices(&v, forward_slice);
  if (find_library(&v, GB_ONEDNN_BACKWARD_INPUT, MOST_SLICES, false)) return run_slices(&v, backward_input_slice);
  return backward_input_plain(&v);
}

static gb_status conv2d_backward_weight(gb_op_call *call) {
  const gb_in_conv2d_backward_weight *in = GB_IN(call, conv2d_backward_weight);
  conv v;
  set_up(&v, call, in->x, GB_OUT(call, conv2d_backward_weight)->dweight, in->grad,
         GB_CONV_ATTRS(GB_ATTRS(call, conv2d_backward_weight)));
  if (v.s.n == 0) {
    gb_zero_bytes(call, gb_data(v.weight), (size_t)v.weight->numel * gb_dtype_bytes((gb_dtype)v.weight->dtype));
    return GB_OK;
  }
  bool done = false;
  if (takes_winograd(&v, GB_WINOGRAD_WEIGHT, true)) GB_TRY(backward_weight_winograd(&v, &done));
  if (done) return GB_OK;
  if (takes_product(&v, FEW_ROWS_OF_SUMS)) return backward_weight_product(&v);
  if (takes_depthwise(&v)) return backward_weight_depthwise(&v);
  if (find_library(&v, GB_ONEDNN_BACKWARD_WEIGHT, MOST_PARTIALS, true)) return backward_weight_slices(&v);
  if (takes_winograd(&v, GB_WINOGRAD_WEIGHT, false)) GB_TRY(backward_weight_winograd(&v, &done));
  if (done) return GB_OK;
  if (takes_large_product(&v)) return backward_weight_product(&v);
  if (find_library(&v, GB_ONEDNN_BACKWARD_WEIGHT, MOST_PARTIALS, false)) return backward_weight_slices(&v);
  return backward_weight_plain(&v);
}

void GB_CPU_FILL(conv)(gb_backend *backend);
void GB_CPU_FILL(pool2d)(gb_backend *backend); /* the rest of the family */

void GB_CPU_FILL(conv)(gb_backend *backend) {
  backend->run[GB_OP_conv2d] = conv2d;
  backend->run[GB_OP_conv2d_backward_input] = conv2d_backward_input;
  backend->run[GB_OP_conv2d_backward_weight] = conv2d_backward_weight;
  GB_CPU_FILL(pool2d)(backend);
}

/* ====} */
