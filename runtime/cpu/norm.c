/* cpu/norm.c - layer_norm, rms_norm, add_layer_norm and their gradients.
 *
 * Sums are made in lanes (float32, or float64 for float64) of at most a tile and added up in float64; variances are
 * sums of squares about the mean, never differences of large numbers. Work is cut into chunks of rows by shape alone,
 * and what chunks sum up apart (gradients of parameters, statistics of a batch) is put together in the order of the
 * chunks. rms_norm is layer_norm with a mean of 0. Traffic: x is read once and y written once forward, x and grad read
 * and dx written backward; batch_norm reads its inputs once more. */
#include <math.h>
#include <string.h>

#include "cpu/norm.h"
#include "cpu/nontemporal.h"

/* {==== Arithmetic on a row ==== */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The two sums of a row's gradient: of grad * weight, and of that times the normalised x. */
typedef struct gradient_sum { gb_wide plain, along; } gradient_sum;

GB_ALWAYS_INLINE void add_gradient(gradient_sum *sum, gb_wide grad, gb_wide x, gb_wide weight, gb_vector mean,
                                   gb_vector rstd) {
  gb_wide g = { grad.a * weight.a, grad.b * weight.b };
  sum->plain = (gb_wide){ sum->plain.a + g.a, sum->plain.b + g.b };
  sum->along = (gb_wide){ sum->along.a + g.a * ((x.a - mean) * rstd), sum->along.b + g.b * ((x.b - mean) * rstd) };
}

/* Of at most a tile. */
GB_ALWAYS_INLINE void gradient_wide(gb_dtype dtype, const void *grad, const void *x, const float *weight, float mean,
                                    float rstd, int64_t n,
                                    double sums[2]) {
  gradient_sum sum = { 0 };
  int64_t i = 0;
  for (; i + GB_WIDE <= n; i += GB_WIDE)
    add_gradient(&sum, gb_wide_load(dtype, grad, i), gb_wide_load(dtype, x, i), gb_wide_load(GB_FLOAT32, weight, i),
                 gb_vector_of(mean),
                 gb_vector_of(rstd));
  if (i < n)
    add_gradient(&sum, gb_wide_load_last(dtype, grad, i, n - i, 0), gb_wide_load_last(dtype, x, i, n - i, mean),
                 gb_wide_load_last(GB_FLOAT32, weight, i, n - i, 0), gb_vector_of(mean), gb_vector_of(rstd));
  sums[0] += gb_vector_sum(sum.plain.a + sum.plain.b);
  sums[1] += gb_vector_sum(sum.along.a + sum.along.b);
}

static void gradient_sums(gb_dtype dtype, const void *grad, const void *x, const void *weight, double mean, double rstd,
                          int64_t n,
                          double sums[2]) {
  const float *w = weight;
  const double *h = grad, *d = x, *v = weight;
  sums[0] = sums[1] = 0;
  for GB_PIECES(first, m, n) {
    if (dtype == GB_FLOAT64)
      for (int64_t i = first; i < first + m; i++) {
        sums[0] += h[i] * v[i];
        sums[1] += h[i] * v[i] * ((d[i] - mean) * rstd);
      }
    else
      for (int64_t at = first; at < first + m; at += GB_TILE)
        GB_WIDE_FOR(dtype, gradient_wide, gb_norm_element(dtype, grad, at), gb_norm_element(dtype, x, at), w + at,
                    (float)mean, (float)rstd,
                    least(n - at, GB_TILE), sums);
  }
}

/* What a row's gradient is made with: the row's statistics, and the means of the two sums above. */
typedef struct row_gradient { double mean, rstd, plain, along; } row_gradient;

/* One vector of it. */
GB_ALWAYS_INLINE gb_vector slope_of(gb_vector x, gb_vector grad, gb_vector weight, gb_vector *dweight, gb_vector *dbias,
                                    const float r[4]) {
  gb_vector normal = (x - gb_vector_of(r[0])) * gb_vector_of(r[1]);
  *dweight += grad * normal;
  *dbias += grad;
  return gb_vector_of(r[1]) * (grad * weight - gb_vector_of(r[2]) - normal * gb_vector_of(r[3]));
}

GB_ALWAYS_INLINE void differentiate_wide(gb_dtype dtype, void *dx, const void *x, const void *grad, const float *weight,
                                         float *dweight,
                                         float *dbias, int64_t n, row_gradient g, bool stream) {
  const float r[4] = { (float)g.mean, (float)g.rstd, (float)g.plain, (float)g.along };
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    bool whole = i + GB_WIDE <= n;
    gb_wide v = whole ? gb_wide_load(dtype, x, i) : gb_wide_load_last(dtype, x, i, n - i, 0);
    gb_wide h = whole ? gb_wide_load(dtype, grad, i) : gb_wide_load_last(dtype, grad, i, n - i, 0);
    gb_wide w = whole ? gb_wide_load(GB_FLOAT32, weight, i) : gb_wide_load_last(GB_FLOAT32, weight, i, n - i, 0);
    gb_wide dw = whole ? gb_wide_load(GB_FLOAT32, dweight, i) : gb_wide_load_last(GB_FLOAT32, dweight, i, n - i, 0);
    gb_wide db = whole ? gb_wide_load(GB_FLOAT32, dbias, i) : gb_wide_load_last(GB_FLOAT32, dbias, i, n - i, 0);
    gb_wide_ahead(dtype, x, i);
    gb_wide_ahead(dtype, grad, i);
    v = (gb_wide){ slope_of(v.a, h.a, w.a, &dw.a, &db.a, r), slope_of(v.b, h.b, w.b, &dw.b, &db.b, r) };
    if (whole) {
      gb_wide_store(GB_FLOAT32, dweight, i, dw, false);
      gb_wide_store(GB_FLOAT32, dbias, i, db, false);
      gb_wide_store(dtype, dx, i, v, stream);
    } else {
      gb_wide_store_last(GB_FLOAT32, dweight, i, n - i, dw);
      gb_wide_store_last(GB_FLOAT32, dbias, i, n - i, db);
      gb_wide_store_last(dtype, dx, i, n - i, v);
    }
  }
}

/* dweight += grad * normal, dbias += grad, dx = rstd * (grad * weight - plain - normal * along), where normal is the
 * normalised x; dx may be x. */
static void differentiate(gb_dtype dtype, void *dx, const void *x, const void *grad, const void *weight, void *dweight,
                          void *dbias, int64_t n,
                          row_gradient r, bool stream) {
  double *wide = dx, *dv = dweight, *dc = dbias;
  const double *d = x, *h = grad, *v = weight;
  for GB_PIECES(at, m, n) {
    if (dtype == GB_FLOAT64) {
#pragma omp simd
      for (int64_t i = at; i < at + m; i++) {
        double normal = (d[i] - r.mean) * r.rstd;
        dv[i] += h[i] * normal;
        dc[i] += h[i];
        wide[i] = r.rstd * (h[i] * v[i] - r.plain - normal * r.along);
      }
    } else
      GB_WIDE_FOR(dtype, differentiate_wide, (char *)gb_norm_element(dtype, dx, at), gb_norm_element(dtype, x, at),
                  gb_norm_element(dtype, grad, at),
                  (const float *)weight + at, (float *)dweight + at, (float *)dbias + at, m, r, stream);
  }
}

/* ====} */

/* {==== Layers: layer_norm, rms_norm, add_layer_norm ==== */

/* Elements of a chunk, about. */
#define CHUNK_ELEMENTS (16 * GB_TILE)
/* Gradients of weight and bias are summed in at most this many parts. */
enum { MOST_PARTS = 64 };

/* A norm over the last dims, as all its chunks see it. A group is what is normalised together: `lines` rows of the last
 * dim. */
typedef struct layer {
  gb_op_call *call;
  gb_lane lane;
  gb_dtype dtype;                       /* of rows as kernels see them: what all of them are as they lie, or the
                                           lane's */
  bool streams;                         /* results go past the caches */
  int64_t bytes;                        /* of a lane */
  int64_t n, groups, lines;
  int64_t batch, chunk, chunks;         /* groups read at once, groups of a chunk */
  bool centre;                          /* subtract the mean */
  double eps;
  gb_rows x, other, sum, y;             /* other: the residual, or the gradient of y; y: the result */
  gb_rows low;                          /* backward: the result again, in 16 bits; data NULL: nobody asks for it */
  bool adds;                            /* sum = x + other comes first */
  const gb_tensor *mean, *rstd;         /* one element per group; results forward (NULL: not wanted), inputs backward;
                                           mean NULL: 0 */
  const char *weight, *bias;            /* n lanes each */
  char *parts;                          /* gradients of weight and bias of each chunk */
  int64_t apart, part;                  /* bytes from a chunk's gradient of weight to that of bias, and of both */
  gb_scratch scratch;
} layer;

/* The sizes of a norm of x over its dims from `outer` on. */
static void set_up(layer *l, gb_op_call *call, const gb_tensor *x, int outer, gb_lane lane) {
  *l = (layer){ .call = call, .lane = lane, .bytes = (int64_t)gb_lane_bytes(lane), .n = 1, .groups = 1 };
  for (int i = 0; i < outer; i++) l->groups *= x->shape[i];
  for (int i = outer; i < x->ndim; i++) l->n *= x->shape[i];
  l->lines = x->shape[x->ndim - 1] ? l->n / x->shape[x->ndim - 1] : 0;
  l->batch = gb_norm_batch(l->n);
  l->chunk = l->batch * most(CHUNK_ELEMENTS / most(l->batch * l->n, 1), 1);
  l->chunks = (l->groups + l->chunk - 1) / l->chunk;
  l->x = gb_rows_of(x, x->ndim - 1);
}

/* A row of this many bytes is long: see place. */
enum { LONG_ROW = 2048, PAGE = 4096 };

static int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* Bytes of an array of n lanes with room to be placed. */
static int64_t array_bytes(const layer *l) { return l->n * l->bytes + (l->n * l->bytes < LONG_ROW ? 0 : PAGE); }

/* Room for two batches in lanes and for the statistics of one. */
static size_t room_bytes(const layer *l) {
  int64_t bytes = round_up(2 * 8 * l->batch, 64) + round_up(2 * l->n * l->bytes * l->batch, 64);
  return (size_t)(l->n * l->bytes < LONG_ROW ? bytes : round_up(bytes, PAGE));
}

/* The parts of a thread's room. */
typedef struct layer_room { char *x, *other; double *mean, *rstd; } layer_room;

static layer_room room_of(const layer *l) {
  char *room = gb_scratch_room(&l->scratch);
  layer_room r = { .mean = (double *)room };
  r.rstd = r.mean + l->batch;
  r.x = room + round_up(2 * 8 * l->batch, 64);
  r.other = r.x + l->batch * l->n * l->bytes;
  return r;
}

/* sum = x + residual, and sum as it was rounded takes x's place. */
static void add_residual(const layer *l, int64_t first, int64_t count, const layer_room *r) {
  gb_rows_load(&l->x, l->lane, first * l->lines, count * l->lines, r->x);
  gb_rows_load(&l->other, l->lane, first * l->lines, count * l->lines, r->other);
  gb_row_add(l->lane, r->x, r->other, count * l->n, 1);
  gb_rows_store(&l->sum, l->lane, first * l->lines, count * l->lines, r->x);
  gb_rows_load(&l->sum, l->lane, first * l->lines, count * l->lines, r->x);
}

/* The lines of a batch of groups: where they lie if they are lanes already, else loaded into room. */
static const char *lines_of(const layer *l, const gb_rows *rows, int64_t first, int64_t count, char *room) {
  const char *own = gb_rows_own(rows, l->dtype, first * l->lines);
  if (!own) gb_rows_load(rows, l->lane, first * l->lines, count * l->lines, room);
  return own ? own : room;
}

static void forward_chunk(void *arg, int64_t chunk) {
  const layer *l = arg;
  layer_room r = room_of(l);
  int64_t end = least((chunk + 1) * l->chunk, l->groups), row = l->n * (int64_t)gb_dtype_bytes(l->dtype);
  for (int64_t first = chunk * l->chunk; first < end; first += l->batch) {
    int64_t count = least(l->batch, end - first);
    char *own = gb_rows_own(&l->y, l->dtype, first * l->lines), *results = own ? own : r.x;
    const char *lines = r.x;
    if (l->adds) add_residual(l, first, count, &r);
    else lines = lines_of(l, &l->x, first, count, r.x);
    for (int64_t i = 0; i < count; i++) {
      const char *x = lines + i * row;
      char *y = results + i * row;
      r.mean[i] = l->centre ? gb_wide_sum(l->dtype, x, l->n) / (double)l->n : 0;
      r.rstd[i] = 1 / sqrt(gb_norm_squares(l->dtype, x, r.mean[i], l->n) / (double)l->n + l->eps);
      gb_norm_row(l->dtype, y, x, l->n, r.mean[i], r.rstd[i], l->weight, l->bias, l->streams && gb_vector_aligned(y));
    }
    if (!own) gb_rows_store(&l->y, l->lane, first * l->lines, count * l->lines, r.x);
    gb_norm_statistics(l->mean, first, count, r.mean, true);
    gb_norm_statistics(l->rstd, first, count, r.rstd, true);
  }
  if (l->streams) gb_nontemporal_end();
}

/* Where in its memory an array that is walked along with the result begins: processors tell a load from the stores
 * before it by the lower 12 bits of its address and wait where those agree, so it lies some quarters of a page away
 * from the result, page for page. */
static char *place(const layer *l, char *memory, int quarters) {
  char *own = gb_rows_own(&l->y, l->dtype, 0), *result = own ? own : room_of(l).x;
  if (l->n * l->bytes < LONG_ROW) return memory;
  return memory + (((uintptr_t)result / 64 * 64 + (uintptr_t)quarters * PAGE / 4 - (uintptr_t)memory) & (PAGE - 1));
}

/* Where x, the gradient if there is one and the result lie end to end in one dtype, kernels work on that; else on
 * lanes. */
static void choose_dtype(layer *l) {
  gb_dtype dtype = l->y.dtype;
  bool same = !l->adds && gb_rows_own(&l->x, dtype, 0) && gb_rows_own(&l->y, dtype, 0) &&
      (!l->other.data || gb_rows_own(&l->other, dtype, 0));
  l->dtype = same ? dtype : gb_lane_dtype(l->lane);
  l->streams = gb_rows_own(&l->y, l->dtype, 0) && l->dtype != GB_FLOAT64 &&
      (size_t)(l->groups * l->n) * l->y.bytes >= GB_NONTEMPORAL_BYTES;
}

/* Bring in the parameters, run the chunks. */
static gb_status run_forward(layer *l, const gb_tensor *weight, const gb_tensor *bias, const gb_tensor *y) {
  if (y->numel == 0) return GB_OK;
  size_t shared = 0, w = gb_scratch_take(&shared, array_bytes(l)), b = gb_scratch_take(&shared, array_bytes(l));
  GB_TRY(gb_scratch_open(l->call, shared, room_bytes(l), &l->scratch));
  l->y = gb_rows_of(y, y->ndim - 1);
  choose_dtype(l);
  char *weights = place(l, l->scratch.shared + w, 1), *biases = place(l, l->scratch.shared + b, 2);
  gb_norm_parameter(l->lane, l->dtype, weight, 1, l->n, weights);
  gb_norm_parameter(l->lane, l->dtype, bias, 0, l->n, biases);
  l->weight = weights;
  l->bias = biases;
  gb_parallel(l->call, l->chunks, forward_chunk, l);
  gb_scratch_close(l->call, &l->scratch);
  return GB_OK;
}



static gb_status layer_norm(gb_op_call *call) {
  const gb_in_layer_norm *in = GB_IN(call, layer_norm);
  const gb_attrs_layer_norm *attrs = GB_ATTRS(call, layer_norm);
  const gb_out_layer_norm *out = GB_OUT(call, layer_norm);
  layer l;
  set_up(&l, call, in->x, in->x->ndim - attrs->shape.count, gb_norm_lane(in->x, out->y));
  l.centre = true;
  l.eps = attrs->eps.number;
  l.mean = out->mean;
  l.rstd = out->rstd;
  return run_forward(&l, in->weight, in->bias, out->y);
}

static gb_status rms_norm(gb_op_call *call) {
  const gb_in_rms_norm *in = GB_IN(call, rms_norm);
  const gb_attrs_rms_norm *attrs = GB_ATTRS(call, rms_norm);
  const gb_out_rms_norm *out = GB_OUT(call, rms_norm);
  layer l;
  set_up(&l, call, in->x, in->x->ndim - attrs->shape.count, gb_norm_lane(in->x, out->y));
  l.eps = attrs->eps.number;
  l.rstd = out->rstd;
  return run_forward(&l, in->weight, NULL, out->y);
}

static gb_status add_layer_norm(gb_op_call *call) {
  const gb_in_add_layer_norm *in = GB_IN(call, add_layer_norm);
  const gb_attrs_add_layer_norm *attrs = GB_ATTRS(call, add_layer_norm);
  const gb_out_add_layer_norm *out = GB_OUT(call, add_layer_norm);
  layer l;
  set_up(&l, call, in->x, in->x->ndim - attrs->shape.count, gb_norm_lane(out->sum, out->y));
  l.centre = l.adds = true;
  l.eps = attrs->eps.number;
  l.other = gb_rows_of(in->residual, in->residual->ndim - 1);
  l.sum = gb_rows_of(out->sum, out->sum->ndim - 1);
  l.mean = out->mean;
  l.rstd = out->rstd;
  return run_forward(&l, in->weight, in->bias, out->y);
}

static void backward_chunk(void *arg, int64_t chunk) {
  const layer *l = arg;
  layer_room r = room_of(l);
  int64_t end = least((chunk + 1) * l->chunk, l->groups), row = l->n * (int64_t)gb_dtype_bytes(l->dtype);
  char *dweight = l->parts + chunk * l->part, *dbias = dweight + l->apart;
  gb_clear_bytes(dweight, (size_t)l->part);
  for (int64_t first = chunk * l->chunk; first < end; first += l->batch) {
    int64_t count = least(l->batch, end - first);
    char *own = l->adds ? NULL : gb_rows_own(&l->y, l->dtype, first * l->lines), *results = own ? own : r.x;
    const char *lines = lines_of(l, &l->x, first, count, r.x), *grads = lines_of(l, &l->other, first, count, r.other);
    gb_norm_statistics(l->mean, first, count, r.mean, false);
    gb_norm_statistics(l->rstd, first, count, r.rstd, false);
    for (int64_t i = 0; i < count; i++) {
      const char *x = lines + i * row, *grad = grads + i * row;
      char *dx = results + i * row;
      double sums[2];
      gradient_sums(l->dtype, grad, x, l->weight, r.mean[i], r.rstd[i], l->n, sums);
      row_gradient g = { r.mean[i], r.rstd[i], l->centre ? sums[0] / (double)l->n : 0, sums[1] / (double)l->n };
      differentiate(l->dtype, dx, x, grad, l->weight, dweight, dbias, l->n, g,
                    own && l->streams && gb_vector_aligned(dx));
    }
    if (l->adds) {
      gb_rows_load(&l->y, l->lane, first * l->lines, count * l->lines, r.other);
      gb_row_add(l->lane, r.x, r.other, count * l->n, 1);
    }
    if (!own) gb_rows_store(&l->y, l->lane, first * l->lines, count * l->lines, r.x);
    if (l->low.data) gb_rows_store(&l->low, l->lane, first * l->lines, count * l->lines, results);
  }
  if (l->streams) gb_nontemporal_end();
}

/* n lanes, or zeros where there are none, into a contiguous result that may not be wanted. */
static void put_parameter(gb_lane lane, const gb_tensor *to, const void *lanes) {
  if (!to) return;
  if (lanes) gb_lane_store(lane, gb_data(to), (gb_dtype)to->dtype, 1, lanes, to->numel);
  else gb_clear_bytes(gb_data(to), (size_t)to->numel * gb_dtype_bytes((gb_dtype)to->dtype));
}

#define SAME(at, name) _Static_assert(at(layer_norm_backward, name) == at(rms_norm_backward, name), #name);
SAME(GB_IN_AT, grad)
SAME(GB_IN_AT, x)
SAME(GB_IN_AT, weight)
SAME(GB_OUT_AT, dx)
SAME(GB_OUT_AT, dweight)
SAME(GB_ATTR_AT, add)
#undef SAME

/* The gradients of layer_norm and rms_norm. */
static gb_status backward(gb_op_call *call, const gb_tensor *mean, const gb_tensor *rstd, const gb_tensor *dbias,
                          const gb_tensor *low, bool centre) {
  const gb_in_rms_norm_backward *in = GB_IN(call, rms_norm_backward);
  const gb_out_rms_norm_backward *out = GB_OUT(call, rms_norm_backward);
  const gb_tensor *grad = in->grad, *x = in->x, *dx = out->dx, *dweight = out->dweight;
  layer l;
  set_up(&l, call, x, rstd->ndim, gb_norm_lane(x, grad));
  if (x->numel == 0) {
    put_parameter(l.lane, dweight, NULL);
    put_parameter(l.lane, dbias, NULL);
    return GB_OK;
  }
  l.chunk = most(l.chunk, ((l.groups + MOST_PARTS - 1) / MOST_PARTS + l.batch - 1) / l.batch * l.batch);
  l.chunks = (l.groups + l.chunk - 1) / l.chunk;
  l.centre = centre;
  l.other = gb_rows_of(grad, grad->ndim - 1);
  l.y = gb_rows_of(dx, dx->ndim - 1);
  if (low) l.low = gb_rows_of(low, low->ndim - 1);
  choose_dtype(&l);
  l.adds = GB_ATTRS(call, rms_norm_backward)->add.integer;
  l.mean = mean;
  l.rstd = rstd;
  int64_t row = l.n * l.bytes;
  l.apart = row < LONG_ROW ? row : round_up(row, PAGE) + PAGE / 4;
  l.part = row < LONG_ROW ? 2 * row : 2 * round_up(row, PAGE) + PAGE;
  size_t shared = 0, w = gb_scratch_take(&shared, array_bytes(&l)),
      parts = gb_scratch_take(&shared, l.chunks * l.part + PAGE);
  GB_TRY(gb_scratch_open(call, shared, room_bytes(&l), &l.scratch));
  char *weights = place(&l, l.scratch.shared + w, 3);
  gb_norm_parameter(l.lane, l.dtype, in->weight, 1, l.n, weights);
  l.weight = weights;
  l.parts = place(&l, l.scratch.shared + parts, 1);
  gb_parallel(call, l.chunks, backward_chunk, &l);
  gb_sum_parts(call, l.lane, l.parts, l.part / l.bytes, l.chunks);
  for (int i = 0; i < 2; i++)
    for GB_PIECES(at, m, l.n) gb_wide_sort(l.dtype, (float *)(void *)(l.parts + i * l.apart) + at, m, true);
  put_parameter(l.lane, dweight, l.parts);
  put_parameter(l.lane, dbias, l.parts + l.apart);
  gb_scratch_close(call, &l.scratch);
  return GB_OK;
}

static gb_status layer_norm_backward(gb_op_call *call) {
  const gb_in_layer_norm_backward *in = GB_IN(call, layer_norm_backward);
  const gb_out_layer_norm_backward *out = GB_OUT(call, layer_norm_backward);
  return backward(call, in->mean, in->rstd, out->dbias, out->low, true);
}

static gb_status rms_norm_backward(gb_op_call *call) {
  return backward(call, NULL, GB_IN(call, rms_norm_backward)->rstd, NULL, GB_OUT(call, rms_norm_backward)->low, false);
}

/* ====} */

void GB_CPU_FILL(norm)(gb_backend *backend);
void GB_CPU_FILL(norm)(gb_backend *backend) {
  backend->run[GB_OP_layer_norm] = layer_norm;
  backend->run[GB_OP_layer_norm_backward] = layer_norm_backward;
  backend->run[GB_OP_rms_norm] = rms_norm;
  backend->run[GB_OP_rms_norm_backward] = rms_norm_backward;
  backend->run[GB_OP_add_layer_norm] = add_layer_norm;
}
