/* cuda/attend.c - attention by matrix products: scores of some heads at a time, their probabilities, and what these are
 * multiplied with.
 *
 * For what the library does not run. Gradients go to attend_backward.cu, which writes no scores down, where it takes
 * them; the products are for the rest: float64, TF32, operands of several dtypes, and heads of more columns than it
 * holds. They write the scores of some heads down, SCORES of them at once, so that they move more bytes; they run on
 * Tensor Cores all the same. Probabilities and their gradients are rounded to the result's dtype where that has 16
 * bits, before they are multiplied; sums over blocks of queries, and over the query heads that share a key head, are
 * float32 (float64 for float64). 4 tq tk head_dim operations forward, 10 backward, whether causal or not. */
#include "cuda/attend.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "cuda/cuda.h"
#include "cuda/product.h"

#define SCORES ((int64_t)1 << 26)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

typedef struct attend {
  gb_cuda_call *call;
  gb_heads_view query, key, value, mask, y, grad, dquery, dkey, dvalue;
  int64_t batch, heads, group, tq, tk, e, ev;    /* group: query heads to a key head */
  int64_t heads_at_once, rows_at_once;
  size_t lane_bytes, rounded_bytes;
  double scale;
  gb_scores s;                                   /* of the part that is worked on */
  char *shares, *slopes;                         /* probabilities and gradients of scores, in s.rounded */
  char *dense;                                   /* [heads_at_once, rows, columns]: what a product makes */
  char *dkey_sum, *dvalue_sum;                   /* lanes [tk, e] and [tk, ev] */
} attend;

/* {==== reading the call ==== */

static int64_t size_at(const gb_cuda_tensor *t, int from_end) { return t->ndim > from_end
                                                                ? t->shape[t->ndim - 1 - from_end] : 1; }

static gb_heads_view view_of(const gb_cuda_tensor *t) {
  gb_heads_view v = { .data = t->data, .dtype = t->dtype };
  for (int i = 0; i < t->ndim; i++) v.stride[4 - t->ndim + i] = t->shape[i] == 1 ? 0 : t->stride[i];
  return v;
}

static size_t bytes_of(const attend *a, gb_dtype dtype) { return a->call->cuda->engine->dtype_bytes(dtype); }

/* Where row `row` of head `head` of a batch begins. */
static char *at(const attend *a, const gb_heads_view *v, int64_t b, int64_t head, int64_t row) {
  return v->data + (b * v->stride[0] + head * v->stride[1] + row * v->stride[2]) * (int64_t)bytes_of(a, v->dtype);
}

/* What forward and backward have in common. */
static attend attend_of(gb_cuda_call *call, gb_attended in, gb_dtype result) {
  const gb_cuda_tensor *query = in.query, *key = in.key, *value = in.value;
  bool is_short = gb_is_16bit(result);
  attend a = { .call = call, .query = view_of(query), .key = view_of(key), .value = view_of(value),
               .batch = size_at(query, 3), .heads = size_at(query, 2), .tq = size_at(query, 1), .tk = size_at(key, 1),
               .e = size_at(query, 0), .ev = size_at(value, 0) };
  a.group = a.heads / most(size_at(key, 2), 1);
  a.s = (gb_scores){ .lane = result == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32, .tk = a.tk, .tq = a.tq,
                     .causal = in.is_causal->integer, .window = gb_attended_window(&in, a.tq, a.tk),
                     .dropout = in.dropout_p->number, .place = call->place };
  a.scale = in.scale->given ? in.scale->number : 1 / sqrt((double)a.e);
  a.s.rounded = is_short ? result : a.s.lane;
  if (in.mask) a.mask = view_of(in.mask);
  a.lane_bytes = bytes_of(&a, a.s.lane);
  a.rounded_bytes = bytes_of(&a, a.s.rounded);
  int64_t head = most(a.tq * a.tk, 1);
  int64_t scores = call->cuda->piece > 0 ? call->cuda->piece : SCORES;
  bool whole = a.group == 1 && head <= scores;
  a.heads_at_once = whole ? least(a.heads, scores / head) : 1;
  a.rows_at_once = whole ? a.tq : least(a.tq, most(scores / most(a.tk, 1), 1));
  return a;
}

/* The part of heads from h and rows from r of batch b. */
static void take_part(attend *a, int64_t b, int64_t h, int64_t r) {
  gb_scores *s = &a->s;
  s->heads = least(a->heads_at_once, a->heads - h);
  s->rows = least(a->rows_at_once, a->tq - r);
  s->first_head = b * a->heads + h;
  s->first_row = r;
  if (!a->mask.data) return;
  s->mask = at(a, &a->mask, b, h, r);
  s->mask_dtype = a->mask.dtype;
  memcpy(s->mask_stride, a->mask.stride + 1, sizeof s->mask_stride);
}

/* ====} */

/* {==== products ==== */

/* A matrix of each of the part's heads, and the way from head to head in elements. */
typedef struct heads { gb_gemm_matrix m; int64_t step; } heads;

/* Rows of an operand; turned: columns and rows exchanged. */
static heads operand(const attend *a, const gb_heads_view *v, int64_t b, int64_t head, int64_t row, bool turned) {
  int64_t down = v->stride[2], across = v->stride[3];
  return (heads){ { at(a, v, b, head, row), v->dtype, turned ? across : down, turned ? down : across }, v->stride[1] };
}

/* Scores' probabilities or gradients, [rows, tk]. */
static heads scores_of(const attend *a, const char *data, bool turned) {
  return (heads){ { data, a->s.rounded, turned ? 1 : a->s.tk, turned ? a->s.tk : 1 }, a->s.rows * a->s.tk };
}

/* A product that is multiplied by 0. */
static gb_status clear_product(const attend *a, void *c, int64_t size, gb_dtype dtype, bool accumulate) {
  int code = accumulate ? 0 : gb_rt_set(a->call->stream, c, 0, (size_t)(a->s.heads * size) * bytes_of(a, dtype));
  return code ? gb_cuda_fail(a->call, GB_EDEVICE, "a product could not be cleared") : GB_OK;
}

/* c[m, n] = alpha * x @ y for each of the part's heads, one behind the other. */
static gb_status multiply(const attend *a, int64_t m, int64_t n, int64_t k, double alpha, heads x, heads y, void *c,
                          gb_dtype dtype, bool accumulate) {
  if (alpha == 0) return clear_product(a, c, m * n, dtype, accumulate);
  gb_product p = { .m = m, .n = n, .k = k, .alpha = alpha, .a = x.m, .b = y.m, .c = c, .dtype = dtype,
                   .accumulate = accumulate };
  if (a->s.heads > 1) {
    p.batch_ndim = 1;
    p.batch[0] = a->s.heads;
    p.a_stride[0] = x.step;
    p.b_stride[0] = y.step;
  }
  return gb_product_run(a->call, &p);
}

/* Copy a dense [heads, rows, columns] into rows of a tensor. */
static gb_status put(const attend *a, const gb_heads_view *v, int64_t b, int64_t head, int64_t row, int64_t rows,
                     int64_t columns, char *dense, gb_dtype dtype) {
  gb_cuda_tensor whole = { .data = dense, .dtype = dtype, .ndim = 3, .shape = { a->s.heads, rows, columns },
                           .stride = { rows * columns, columns, 1 },
                           .numel = a->s.heads * rows * columns };
  gb_cuda_tensor part = whole;
  part.data = at(a, v, b, head, row);
  part.dtype = v->dtype;
  memcpy(part.stride, v->stride + 1, 3 * sizeof *part.stride);
  return gb_cuda_copy(a->call, &part, &whole);
}

/* ====} */

/* {==== scratch ==== */

typedef struct piece { char **to; size_t bytes; } piece;

/* One block of scratch in pieces, each aligned to 256 bytes. */
static gb_status take_room(gb_cuda_call *call, const piece *pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; i++) total += (pieces[i].bytes + 255) / 256 * 256;
  char *block = gb_cuda_scratch(call, total + 256);
  if (!block) return GB_EMEMORY;
  for (int i = 0; i < count; i++) {
    *pieces[i].to = block;
    block += (pieces[i].bytes + 255) / 256 * 256;
  }
  return GB_OK;
}

/* ====} */

/* {==== forward ==== */

static gb_status forward_part(attend *a, int64_t b, int64_t h, int64_t r) {
  gb_scores *s = &a->s;
  int64_t key_head = h / a->group;
  take_part(a, b, h, r);
  heads query = operand(a, &a->query, b, h, r, false), key = operand(a, &a->key, b, key_head, 0, true);
  GB_TRY(multiply(a, s->rows, a->tk, a->e, a->scale, query, key, s->scores, s->lane, false));
  gb_scores_soften(a->call, s, a->shares);
  GB_TRY(multiply(a, s->rows, a->ev, a->tk, 1, scores_of(a, a->shares, false),
                  operand(a, &a->value, b, key_head, 0, false), a->dense, s->lane, false));
  gb_scores_divide(a->call, s, a->dense, a->ev, at(a, &a->y, b, h, r), a->y.dtype, a->y.stride + 1);
  return GB_OK;
}

gb_status gb_attend(gb_cuda_call *call) {
  const gb_cuda_out_scaled_dot_product_attention *out = GB_CUDA_OUT(call, scaled_dot_product_attention);
  attend a = attend_of(call, GB_ATTENDED(call, scaled_dot_product_attention), out->y->dtype);
  if (out->y->numel == 0) return GB_OK;
  a.y = view_of(out->y);
  a.s.lse = out->lse ? out->lse->data : NULL;
  size_t scores = (size_t)(a.heads_at_once * a.rows_at_once * a.tk), rows = (size_t)(a.heads_at_once * a.rows_at_once);
  char *lanes = NULL, *total = NULL;
  const piece pieces[] = { { &lanes, scores * a.lane_bytes }, { &a.shares, scores * a.rounded_bytes },
                           { &a.dense, rows * (size_t)a.ev * a.lane_bytes },
                           { &total, rows * a.lane_bytes } };
  GB_TRY(take_room(call, pieces, 4));
  a.s.scores = lanes, a.s.total = total;
  for (int64_t b = 0; b < a.batch; b++)
    for (int64_t h = 0; h < a.heads; h += a.heads_at_once)
      for (int64_t r = 0; r < a.tq; r += a.rows_at_once) {
        int mark = call->scratches;
        GB_TRY(forward_part(&a, b, h, r));
        gb_cuda_scratch_back(call, mark);
      }
  return GB_OK;
}

/* ====} */

/* {==== backward ==== */

/* The gradient of a key or a value from one part: [tk, columns] = scores^T @ rows of `by`. What is whole goes straight
 * into the tensor; the rest is added up in `sum`. */
static gb_status key_gradient(const attend *a, const char *scores, double alpha, heads by, int64_t columns,
                              const gb_heads_view *to, int64_t b, int64_t h, char *sum,
                              bool first) {
  if (a->group == 1 && a->rows_at_once == a->tq) {
    GB_TRY(multiply(a, a->tk, columns, a->s.rows, alpha, scores_of(a, scores, true), by, a->dense, to->dtype, false));
    return put(a, to, b, h, 0, a->tk, columns, a->dense, to->dtype);
  }
  return multiply(a, a->tk, columns, a->s.rows, alpha, scores_of(a, scores, true), by, sum, a->s.lane, !first);
}

static gb_status backward_part(attend *a, int64_t b, int64_t h, int64_t r, bool first) {
  gb_scores *s = &a->s;
  int64_t key_head = h / a->group;
  take_part(a, b, h, r);
  heads query = operand(a, &a->query, b, h, r, false), grad = operand(a, &a->grad, b, h, r, false);
  GB_TRY(multiply(a, s->rows, a->tk, a->e, a->scale, query, operand(a, &a->key, b, key_head, 0, true), s->scores,
                  s->lane, false));
  GB_TRY(multiply(a, s->rows, a->tk, a->ev, 1, grad, operand(a, &a->value, b, key_head, 0, true), s->gradients, s->lane,
                  false));
  gb_scores_soften_backward(a->call, s, a->shares, a->slopes);
  heads slopes = scores_of(a, a->slopes, false);
  GB_TRY(multiply(a, s->rows, a->e, a->tk, a->scale, slopes, operand(a, &a->key, b, key_head, 0, false), a->dense,
                  a->dquery.dtype, false));
  GB_TRY(put(a, &a->dquery, b, h, r, s->rows, a->e, a->dense, a->dquery.dtype));
  GB_TRY(key_gradient(a, a->shares, 1, grad, a->ev, &a->dvalue, b, key_head, a->dvalue_sum, first));
  return key_gradient(a, a->slopes, a->scale, query, a->e, &a->dkey, b, key_head, a->dkey_sum, first);
}

/* Sums over queries and query heads into the gradients of one key head. */
static gb_status put_sums(attend *a, int64_t b, int64_t key_head) {
  if (a->group == 1 && a->rows_at_once == a->tq) return GB_OK;
  a->s.heads = 1;
  GB_TRY(put(a, &a->dvalue, b, key_head, 0, a->tk, a->ev, a->dvalue_sum, a->s.lane));
  return put(a, &a->dkey, b, key_head, 0, a->tk, a->e, a->dkey_sum, a->s.lane);
}

/* All parts of one batch. */
static gb_status backward_batch(attend *a, int64_t b) {
  for (int64_t h = 0; h < a->heads; h += a->heads_at_once) {
    for (int64_t r = 0; r < a->tq; r += a->rows_at_once) {
      int mark = a->call->scratches;
      GB_TRY(backward_part(a, b, h, r, h % a->group == 0 && r == 0));
      gb_cuda_scratch_back(a->call, mark);
    }
    if ((h + 1) % a->group == 0) GB_TRY(put_sums(a, b, h / a->group));
  }
  return GB_OK;
}

/* Without a query keys and values have no gradient. */
static gb_status clear(gb_cuda_call *call) {
  for (int i = 0; i < call->n_out; i++) {
    const gb_cuda_tensor *t = call->out[i];
    if (t && gb_rt_set(call->stream, t->data, 0, (size_t)t->numel * call->cuda->engine->dtype_bytes(t->dtype)))
      return gb_cuda_fail(call, GB_EDEVICE, "a gradient could not be cleared");
  }
  return GB_OK;
}

/* {---- by tiles ---- */

#define LONG_TIME ((int64_t)1 << 30) /* tiles count positions in 32 bits */

/* Are operands and results what tiles are made for? The gradient of a mask is not. Tests that ask for pieces mean the
 * products. */
static bool fits_tiles(const attend *a) {
  if (a->s.slopes) return false;
  const gb_heads_view *views[] = { &a->key, &a->value, &a->grad, &a->dquery, &a->dkey, &a->dvalue };
  gb_dtype dtype = a->query.dtype;
  for (size_t i = 0; i < sizeof views / sizeof *views; i++)
    if (views[i]->dtype != dtype) return false;
  bool is_short = gb_is_16bit(dtype);
  return (is_short || (dtype == GB_FLOAT32 && !a->call->tf32)) && a->e <= GB_ATTEND_COLUMNS &&
      a->ev <= GB_ATTEND_COLUMNS &&
         a->tq < LONG_TIME && a->tk < LONG_TIME && a->call->cuda->piece == 0;
}

/* The view, and whether its rows may be read 16 bytes at a time. */
static gb_heads_view with_alignment(const attend *a, gb_heads_view v, int64_t columns) {
  int64_t bytes = (int64_t)bytes_of(a, v.dtype);
  v.aligned = (v.stride[3] == 1 || columns == 1) && (uintptr_t)v.data % 16 == 0 && columns * bytes % 16 == 0;
  for (int d = 0; d < 3; d++) v.aligned = v.aligned && v.stride[d] * bytes % 16 == 0;
  return v;
}

/* Tiles read masks of bool and float32: another one is brought to float32, of the shape it has before it is
 * broadcast. */
static gb_status mask_for_tiles(attend *a, const gb_cuda_tensor *mask) {
  if (!mask || mask->dtype == GB_BOOL || mask->dtype == GB_FLOAT32) return GB_OK;
  gb_cuda_tensor dense = *mask;
  int64_t step = 1;
  for (int d = mask->ndim - 1; d >= 0; step *= dense.shape[d--]) dense.stride[d] = step;
  dense.dtype = GB_FLOAT32;
  dense.data = gb_cuda_scratch(a->call, (size_t)mask->numel * sizeof(float));
  if (!dense.data) return GB_EMEMORY;
  a->mask = view_of(&dense);
  return gb_cuda_copy(a->call, &dense, mask);
}

static gb_status run_tiles(attend *a, const gb_cuda_tensor *mask) {
  GB_TRY(mask_for_tiles(a, mask));
  double dropout = a->s.dropout;
  gb_attend_tiles t = { .query = with_alignment(a, a->query, a->e), .key = with_alignment(a, a->key, a->e),
                        .value = with_alignment(a, a->value, a->ev),
                        .grad = a->grad, .mask = a->mask, .dquery = a->dquery, .dkey = a->dkey, .dvalue = a->dvalue,
                        .batch = a->batch, .heads = a->heads, .key_heads = a->heads / a->group, .tq = a->tq,
                            .tk = a->tk, .e = (int)a->e, .ev = (int)a->ev,
                        .causal = a->s.causal, .window = (int)a->s.window, .scale = (float)a->scale,
                            .keep = (float)(dropout < 1 ? 1 / (1 - dropout) : 0),
                        .drop_bound = gb_drop_bound(dropout), .place = a->s.place, .lse = a->s.lse,
                            .shift = a->s.shift };
  gb_attend_run_tiles(a->call, &t);
  return GB_OK;
}

/* ----} */

/* {---- by products ---- */

static gb_status run_products(attend *a) {
  size_t rows = (size_t)(a->heads_at_once * a->rows_at_once), scores = rows * (size_t)a->tk,
      keys = (size_t)(a->heads_at_once * a->tk);
  size_t dense = (rows > keys ? rows : keys) * (size_t)most(a->e, a->ev) * 8;
  char *lanes = NULL, *gradients = NULL;
  const piece pieces[] = { { &lanes, scores * a->lane_bytes }, { &gradients, scores * a->lane_bytes },
                           { &a->shares, scores * a->rounded_bytes },
                           { &a->slopes, scores * a->rounded_bytes }, { &a->dense, dense },
                               { &a->dkey_sum, (size_t)(a->tk * a->e) * a->lane_bytes },
                           { &a->dvalue_sum, (size_t)(a->tk * a->ev) * a->lane_bytes } };
  GB_TRY(take_room(a->call, pieces, 7));
  a->s.scores = lanes, a->s.gradients = gradients;
  for (int64_t b = 0; b < a->batch; b++) GB_TRY(backward_batch(a, b));
  return GB_OK;
}

/* Told, since products are slow. */
static void say_products(const attend *a) {
  gb_cuda_slower(a->call, GB_SLOWER_ATTENTION_BACKWARD,
                 "the gradient of attention of %" PRId64 " x %" PRId64 " heads, %" PRId64 " by %" PRId64
                 " positions, head_dim %" PRId64
                 " runs as products, which is slow: tiles take one dtype of 16 bits, or float32 without TF32, and a "
                 "head_dim of %d at most, and no gradient of a mask",
                 a->batch, a->heads, a->tq, a->tk, most(a->e, a->ev), GB_ATTEND_COLUMNS);
}

/* ----} */

gb_status gb_attend_backward(gb_cuda_call *call) {
  const gb_cuda_in_scaled_dot_product_attention_backward *in = GB_CUDA_IN(call, scaled_dot_product_attention_backward);
  const gb_attrs_scaled_dot_product_attention_backward *attrs = GB_ATTRS(call, scaled_dot_product_attention_backward);
  const gb_cuda_out_scaled_dot_product_attention_backward *out =
      GB_CUDA_OUT(call, scaled_dot_product_attention_backward);
  attend a = attend_of(call, GB_ATTENDED(call, scaled_dot_product_attention_backward), in->y->dtype);
  if (a.batch * a.heads * a.tq * a.tk == 0) return clear(call);
  a.s.slopes = out->dmask ? out->dmask->data : NULL;
  a.grad = with_alignment(&a, view_of(in->grad), a.ev);
  a.y = with_alignment(&a, view_of(in->y), a.ev);
  a.dquery = view_of(out->dquery), a.dkey = view_of(out->dkey), a.dvalue = view_of(out->dvalue);
  a.s.lse = in->lse->data;
  a.s.place = (gb_cuda_place){ (uint64_t)attrs->seed.integer, (uint64_t)attrs->offset.integer, call->place.advance };
  char *shift = gb_cuda_scratch(call, (size_t)(a.batch * a.heads * a.tq) * a.lane_bytes);
  if (!shift) return GB_EMEMORY;
  a.s.shift = shift;
  gb_attend_shift(call, a.s.lane, &a.grad, &a.y, a.batch * a.heads * a.tq, a.heads, a.tq, a.ev, shift);
  if (fits_tiles(&a)) return run_tiles(&a, in->mask);
  say_products(&a);
  return run_products(&a);
}

/* ====} */
