/* cpu/attention.c - scaled_dot_product_attention, tile by tile (Dao, Fu, Ermon, Rudra, Re: "FlashAttention", 2022,
 * algorithms 1 and 4).
 *
 * Forward keeps a running maximum and sum per query while it walks the keys; backward computes each tile of
 * probabilities again from the log of that sum. No time x time matrix exists. Arithmetic is float32 (float64 for
 * float64); where the result is a 16-bit float, the probabilities and their gradients are rounded to it before they are
 * multiplied, as Tensor Cores need. Forward runs in parallel over blocks of queries, backward over the heads of key and
 * value; inside, tiles go in a fixed order. Memory: query, key, value and result once per block; 4 tq tk head_dim
 * operations forward and 10 backward, half of it when causal. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "cpu/gemm.h"
#include "cpu/scratch.h"
#include "cpu/wide.h"

/* Queries and keys of a tile at most. A tile of scores is 135 KB of float32 forward, 68 KB backward. Where every query
 * may look at all keys, and there are at most MOST_K, they are one tile of up to twice that: nothing is packed twice,
 * and no query's maximum runs on. MANY_ROWS: a multiple of the rows that a product holds in registers. */
enum { FORWARD_Q = 240, BACKWARD_Q = 120, TILE_K = 128, MOST_K = 256, MANY_ROWS = 12 };
_Static_assert(TILE_K % GB_WIDE == 0 && MOST_K % GB_WIDE == 0, "a row of a tile ends with a vector");

/* Lanes from row to row of a tile beyond its keys, one cache line of float32: columns of a tile then share few sets of
 * the cache. */
enum { BETWEEN_ROWS = 16 };

/* Rows of a head are short and leap over those of the other heads, so a processor's own prefetching does not follow:
 * while the rows of one head are softened, those of the head after it are asked for. Up to so many bytes, which leave
 * room in a core's cache. */
enum { AHEAD_BYTES = 1 << 18, CACHE_LINE = 64 };

/* A tensor as [batch, heads, rows, columns]; strides in elements. */
typedef struct view4 { char *data; gb_dtype dtype; int64_t stride[4]; } view4;

/* One call, forward or backward. */
typedef struct attention {
  const gb_op_call *call;
  gb_lane lane;
  size_t size;                                   /* bytes of a lane */
  gb_dtype rounded;                              /* the 16-bit dtype that probabilities are rounded to, or
                                                    GB_DTYPE_NONE */
  int64_t batch, heads, key_heads, tq, tk, e, ev; /* head_dim of query and key, and of value */
  int64_t tile, apart, forward_q, backward_q;    /* keys of a tile, lanes from row to row of it, queries of a block */
  view4 query, key, value, mask, y, grad, dquery, dkey, dvalue, dmask; /* dmask: without data if not wanted */
  int64_t window;                                /* a query sees keys less than so many positions away; 0: any */
  char *lse;                                     /* lanes [batch, heads, tq]; may be NULL forward */
  double scale, dropout;
  bool causal, has_mask, asks_ahead;
  gb_product_how how;
  uint64_t seed, offset;
  gb_scratch scratch;                            /* rooms of blocks, or of heads */
} attention;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* {==== reading the call ==== */

/* t, of rank up to 4, aligned at its last dimension; dims it does not have, or broadcasts, have stride 0. */
static view4 view_of(const gb_tensor *t) {
  view4 v = { .data = gb_data(t), .dtype = (gb_dtype)t->dtype };
  for (int i = 0; i < t->ndim; i++) v.stride[4 - t->ndim + i] = t->shape[i] == 1 ? 0 : t->stride[i];
  return v;
}

/* Size `from_end` dims before the last; 1 where the rank is too low. */
static int64_t size_at(const gb_tensor *t, int from_end) { return t->ndim > from_end ? t->shape[t->ndim - 1 - from_end]
                                                           : 1; }

#define SAME_ATTR(name)                                                         \
  _Static_assert(GB_ATTR_AT(scaled_dot_product_attention, name) ==              \
                 GB_ATTR_AT(scaled_dot_product_attention_backward, name), #name);
SAME_ATTR(is_causal)
SAME_ATTR(scale)
SAME_ATTR(dropout_p)
SAME_ATTR(window)

/* Queries of a block: at most so many, and about as many in the last as in the others. */
static int64_t block_of(int64_t queries, int64_t most_queries) {
  int64_t blocks = most(1, (queries + most_queries - 1) / most_queries), each = (queries + blocks - 1) / blocks;
  return (most(each, 1) + MANY_ROWS - 1) / MANY_ROWS * MANY_ROWS;
}

static void choose_tiles(attention *a) {
  const bool whole = !a->causal && !a->window && a->tk <= MOST_K;
  a->tile = whole ? most(a->tk + GB_WIDE - 1, GB_WIDE) / GB_WIDE * GB_WIDE : TILE_K;
  a->apart = a->tile + BETWEEN_ROWS;
  a->forward_q = block_of(a->tq, FORWARD_Q);
  a->backward_q = block_of(a->tq, BACKWARD_Q);
  a->asks_ahead = (a->tq + a->tk) * (a->e + a->ev) * (int64_t)a->size <= AHEAD_BYTES;
}

/* What forward and backward have in common; result decides the arithmetic. */
static attention attention_of(gb_op_call *call, const gb_tensor *query, const gb_tensor *key, const gb_tensor *value,
                              const gb_tensor *mask, const gb_tensor *result) {
  const gb_attrs_scaled_dot_product_attention *attrs = GB_ATTRS(call, scaled_dot_product_attention);
  attention a = { .call = call, .lane = result->dtype == GB_FLOAT64 ? GB_LANE_F64 : GB_LANE_F32,
                  .rounded = GB_DTYPE_NONE };
  a.size = gb_lane_bytes(a.lane);
  if (gb_is_16bit((gb_dtype)result->dtype)) a.rounded = (gb_dtype)result->dtype;
  a.batch = size_at(query, 3), a.heads = size_at(query, 2), a.tq = size_at(query, 1), a.e = size_at(query, 0);
  a.key_heads = size_at(key, 2), a.tk = size_at(key, 1), a.ev = size_at(value, 0);
  a.query = view_of(query), a.key = view_of(key), a.value = view_of(value);
  a.has_mask = mask != NULL;
  a.how = gb_product_how_of(call->context);
  if (a.rounded == GB_DTYPE_NONE) a.how.unit = GB_UNIT_NONE; /* which takes 16-bit operands only: no scratch for it */
  if (mask) a.mask = view_of(mask);
  a.causal = attrs->is_causal.integer;
  a.scale = attrs->scale.given ? attrs->scale.number : 1 / sqrt((double)a.e);
  a.dropout = attrs->dropout_p.number;
  a.window = attrs->window.given ? least(attrs->window.integer, most(a.tq, a.tk)) : 0;
  choose_tiles(&a);
  return a;
}

static char *row_at(const view4 *v, int64_t b, int64_t h, int64_t row) {
  return v->data + (b * v->stride[0] + h * v->stride[1] + row * v->stride[2]) * (int64_t)gb_dtype_bytes(v->dtype);
}

/* ====} */

/* {==== scratch ==== */

/* Where the next part of a chunk's scratch begins; without memory behind it, how many bytes are needed. */
typedef struct room { char *base; size_t used; } room;

/* Room for n lanes, on a cache line of its own. */
static char *take(room *r, const attention *a, int64_t n) {
  char *p = r->base ? r->base + r->used : NULL;
  r->used += ((size_t)n * a->size + 63) / 64 * 64;
  return p;
}

static room chunk_room(const attention *a, int64_t chunk) {
  return (room){ .base = gb_scratch_room_of(&a->scratch, chunk) };
}

/* Allocate scratch for the chunks that run at once, run them, free it. */
static gb_status run_chunks(gb_op_call *call, attention *a, size_t scratch_bytes, int64_t chunks, gb_chunk_fn fn) {
  GB_TRY(gb_scratch_open_chunks(call, 0, (scratch_bytes + 255) / 256 * 256, chunks, &a->scratch));
  gb_parallel(call, chunks, fn, a);
  gb_scratch_close(call, &a->scratch);
  return GB_OK;
}

/* ====} */

/* {==== tiles ==== */

/* Rows from `row` on of one head, as they lie in the tensor. */
static gb_matrix rows_of(const view4 *v, int64_t b, int64_t h, int64_t row) {
  return (gb_matrix){ row_at(v, b, h, row), v->dtype, v->stride[2], v->stride[3] };
}

/* A tile of probabilities, or of their gradients: lanes, or what round_row() left at the beginning of each row of
 * them. */
static gb_matrix tile_of(const attention *a, const char *data) {
  if (a->rounded == GB_DTYPE_NONE) return (gb_matrix){ data, gb_lane_dtype(a->lane), a->apart, 1 };
  return (gb_matrix){ data, a->rounded, a->apart * (int64_t)(a->size / gb_dtype_bytes(a->rounded)), 1 };
}

static gb_matrix transposed(gb_matrix m) { return (gb_matrix){ m.data, m.dtype, m.column_stride, m.row_stride }; }

/* Where sums for rows of one head are formed: in the result itself where it holds lanes, else in scratch. */
typedef struct head_sums { char *data; int64_t ld; } head_sums;

static bool is_own(const attention *a, const view4 *v) { return v->dtype == gb_lane_dtype(a->lane); }

static head_sums sums_of(const attention *a, const view4 *v, int64_t b, int64_t h, int64_t row, int64_t columns,
                         char *scratch) {
  return is_own(a, v) ? (head_sums){ row_at(v, b, h, row), v->stride[2] } : (head_sums){ scratch, columns };
}

static char *sums_at(const attention *a, const head_sums *s,
                     int64_t row) { return s->data + (size_t)(row * s->ld) * a->size; }

static void clear(const attention *a, const head_sums *s, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows && !gb_work(columns); i++) memset(sums_at(a, s, i), 0, (size_t)columns * a->size);
}

/* Round sums that were formed in scratch into the tensor that they are for. */
static void put(const attention *a, const view4 *v, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t columns,
                const head_sums *from) {
  char *to = row_at(v, b, h, row);
  int64_t bytes = v->stride[2] * (int64_t)gb_dtype_bytes(v->dtype);
  for (int64_t i = 0; i < rows && !is_own(a, v) && !gb_work(columns); i++)
    gb_lane_store(a->lane, to + i * bytes, v->dtype, v->stride[3], sums_at(a, from, i), columns);
}

/* c[m, n] = beta * c + alpha * x @ y over k. */
static void multiply(const attention *a, int64_t m, int64_t n, int64_t k, double alpha, gb_matrix x, gb_matrix y,
                     double beta, char *c, int64_t ldc,
                     char *work) {
  gb_block_product(a->how, a->lane, m, n, k, alpha, &x, &y, NULL, beta, c, ldc, gb_lane_dtype(a->lane), work);
}

/* Lanes of scratch that the largest product of tiles with q queries takes. */
static int64_t product_lanes(const attention *a, int64_t q) {
  int64_t e = most(a->e, a->ev);
  size_t scores = gb_block_product_scratch(a->how, a->lane, q, a->tile, e),
      sums = gb_block_product_scratch(a->how, a->lane, q, e, a->tile);
  size_t keys = gb_block_product_scratch(a->how, a->lane, a->tile, e, q), largest = scores > sums ? scores : sums;
  return (int64_t)((largest > keys ? largest : keys) / a->size);
}

/* -infinity where the mask says no, without a branch. */
static void cover_row(float *restrict scores, const char *restrict may, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) scores[j] = may[j] ? scores[j] : -INFINITY;
}

/* Scores of query i against keys first .. first + n - 1: + mask, or -infinity where the mask says no. */
static void mask_row(const attention *a, int64_t b, int64_t h, int64_t i, int64_t first, int64_t n, char *scores) {
  const view4 *m = &a->mask;
  union { float f32[MOST_K]; double f64[MOST_K]; } added;
  if (!a->has_mask) return;
  const char *from = row_at(m, b, h, i) + first * m->stride[3] * (int64_t)gb_dtype_bytes(m->dtype);
  if (m->dtype != GB_BOOL) {
    gb_lane_load(a->lane, &added, from, m->dtype, m->stride[3], n);
    gb_row_add(a->lane, scores, &added, n, 1);
    return;
  }
  if (a->lane == GB_LANE_F32 && m->stride[3] == 1) { cover_row((float *)(void *)scores, from, n); return; }
  for (int64_t j = 0; j < n; j++)
    if (!from[j * m->stride[3]]) gb_row_put(a->lane, scores, j, -INFINITY);
}

/* Drop elements of query i's row, keys first .. first + n - 1, as the random stream says; keep: what the others are
 * multiplied by. The numbers belong to the element of [batch, heads, tq, tk], so backward finds the same ones. */
static void drop_row(const attention *a, int64_t b, int64_t h, int64_t i, int64_t first, int64_t n, double keep,
                     char *row) {
  uint64_t element = ((uint64_t)(b * a->heads + h) * (uint64_t)a->tq + (uint64_t)i) * (uint64_t)a->tk + (uint64_t)first;
  uint32_t words[4], bound = gb_drop_bound(a->dropout);
  for (int64_t j = 0; j < n; j++, element++) {
    if (j == 0 || element % 4 == 0) gb_philox(a->seed, a->offset, element / 4, words);
    bool dropped = gb_is_dropped(words[element % 4], bound);
    gb_row_put(a->lane, row, j, dropped ? 0 : keep * gb_row_get(a->lane, row, j));
  }
}

/* Round a row to the 16-bit dtype of the result, if that is one, in the first half of its own place. */
static void round_row(const attention *a, char *row, int64_t n) {
  uint16_t low[MOST_K];
  if (a->rounded == GB_DTYPE_NONE) return;
  gb_lane_store(a->lane, low, a->rounded, 1, row, n);
  memcpy(row, low, (size_t)n * sizeof *low);
}

/* Make the elements of a row of scores that are not seen -infinity up to the end of a vector, which costs less than a
 * row that ends within one. */
static int64_t fill_up(const attention *a, char *scores, int64_t seen) {
  float *f = (float *)(void *)scores;
  int64_t whole = a->lane == GB_LANE_F32 ? (seen + GB_WIDE - 1) / GB_WIDE * GB_WIDE : seen;
  for (int64_t j = seen; j < whole; j++) f[j] = -INFINITY;
  return whole;
}

/* Keys from low on to before high are those that query i may look at. */
static int64_t low_key(const attention *a, int64_t i) { return a->window ? most(0, i + 1 - a->window) : 0; }
static int64_t high_key(const attention *a, int64_t i) {
  int64_t high = a->causal ? i + 1 : a->window ? i + a->window : a->tk;
  return least(high, a->tk);
}

/* How many of the n keys from `first` on come before the last that query i may look at, and before the first one. */
static int64_t visible(const attention *a, int64_t i, int64_t first, int64_t n) {
  return most(0, least(n, high_key(a, i) - first));
}
static int64_t hidden(const attention *a, int64_t i, int64_t first, int64_t seen) {
  return most(0, least(seen, low_key(a, i) - first));
}

/* The scores of keys before the first that a query looks at. */
static void hide(const attention *a, char *scores, int64_t n) {
  for (int64_t j = 0; j < n; j++) gb_row_put(a->lane, scores, j, -INFINITY);
}

/* What the surviving probabilities are multiplied by. */
static double keep_factor(const attention *a) { return a->dropout < 1 ? 1 / (1 - a->dropout) : 0; }

/* ====} */

/* {==== reading ahead ==== */

/* Into the second cache. */
static inline void ask_for(const view4 *v, int64_t b, int64_t h, int64_t row, int64_t columns) {
  const char *at = row_at(v, b, h, row);
  int64_t bytes = columns * (int64_t)gb_dtype_bytes(v->dtype);
  for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(at + i, 0, 2);
}

/* Row `row` of what the first products of the head after h read. */
static void ask_ahead(const attention *a, int64_t b, int64_t h, int64_t row) {
  if (!a->asks_ahead || (h + 1 == a->heads && b + 1 == a->batch)) return;
  if (++h == a->heads) h = 0, b++;
  int64_t key_head = h / (a->heads / a->key_heads);
  if (row < a->tk) ask_for(&a->key, b, key_head, row, a->e), ask_for(&a->value, b, key_head, row, a->ev);
  ask_for(&a->query, b, h, row, a->e);
  if (a->grad.data) ask_for(&a->grad, b, h, row, a->ev), ask_for(&a->y, b, h, row, a->ev);
}

/* ====} */

/* {==== forward ==== */

/* The scratch of one block of queries. */
typedef struct forward_room { char *sum, *scores, *high, *total, *work; size_t bytes; } forward_room;

static forward_room forward_room_of(const attention *a, room r) {
  forward_room f;
  f.sum = take(&r, a, is_own(a, &a->y) ? 0 : a->forward_q * a->ev);
  f.scores = take(&r, a, a->forward_q * a->apart);
  f.high = take(&r, a, a->forward_q);
  f.total = take(&r, a, a->forward_q);
  f.work = take(&r, a, product_lanes(a, a->forward_q));
  f.bytes = r.used;
  return f;
}

/* x[n] = exp(x - shift) in whole vectors; returns the sum, in the order of gb_row_sum. */
static float exp_row(float *x, int64_t n, float shift) {
  const gb_vector by = gb_vector_of(shift), lift = gb_vector_of((float)(1 / GB_ROW_LIFT));
  gb_wide sum[2] = { 0 };
  for (int64_t i = 0, k = 0; i < n; i += GB_WIDE, k ^= 1) {
    gb_wide v = gb_wide_load(GB_FLOAT32, x, i);
    v.a = lift * gb_vector_lift_of(GB_FLOAT32, v.a - by), v.b = lift * gb_vector_lift_of(GB_FLOAT32, v.b - by);
    sum[k] = (gb_wide){ sum[k].a + v.a, sum[k].b + v.b };
    gb_wide_store(GB_FLOAT32, x, i, v, false);
  }
  return gb_vector_sum((sum[0].a + sum[0].b) + (sum[1].a + sum[1].b));
}

/* The same for any lanes, of which only float32 fill whole vectors. */
static double exponentials(const attention *a, char *scores, int64_t n, double high) {
  if (a->lane == GB_LANE_F32) return exp_row((float *)(void *)scores, n, (float)high);
  gb_row_exp(a->lane, scores, scores, n, high, 1);
  return gb_row_sum(a->lane, scores, n);
}

/* One query's scores become probabilities that lack their common divisor: the running maximum, total and sum follow. */
static void soften_row(const attention *a, const forward_room *f, const head_sums *sum, int64_t b, int64_t h, int64_t i,
                       int64_t at, int64_t first, int64_t n) {
  char *scores = f->scores + (size_t)(at * a->apart) * a->size;
  int64_t seen = visible(a, i, first, n), whole = fill_up(a, scores, seen);
  mask_row(a, b, h, i, first, seen, scores);
  hide(a, scores, hidden(a, i, first, seen));
  double before = gb_row_get(a->lane, f->high, at), high = gb_wide_max(gb_lane_dtype(a->lane), scores, whole);
  if (high == -INFINITY) high = gb_row_max(a->lane, scores, whole); /* which finds a NaN */
  if (high <= before) high = before;
  if (high == -INFINITY) { memset(scores, 0, (size_t)n * a->size); return; }
  double shrink = before == -INFINITY ? 0 : exp(before - high);
  double sum_of_row = exponentials(a, scores, whole, high);
  gb_row_put(a->lane, f->total, at, gb_row_get(a->lane, f->total, at) * shrink + sum_of_row);
  /* which a NaN has reached, if there is one */
  memset(scores + (size_t)seen * a->size, 0, (size_t)(n - seen) * a->size);
  gb_row_put(a->lane, f->high, at, high);
  /* no sum yet: nothing to shrink */
  if (shrink != 1 && before != -INFINITY) gb_row_scale(a->lane, sums_at(a, sum, at), a->ev, shrink);
  if (a->dropout > 0) drop_row(a, b, h, i, first, seen, 1, scores);
  round_row(a, scores, n);
}

/* Divide by the totals and write result and lse. A query that saw nothing gives 0, and an lse that makes its
 * probabilities 0 in backward. */
static void forward_finish(const attention *a, const forward_room *f, const head_sums *sum, int64_t b, int64_t h,
                           int64_t first, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    double total = gb_row_get(a->lane, f->total, i), high = gb_row_get(a->lane, f->high, i);
    bool empty = high == -INFINITY;
    gb_row_scale(a->lane, sums_at(a, sum, i), a->ev, empty ? 0 : keep_factor(a) / total);
    if (a->lse)
      gb_row_put(a->lane, a->lse, (b * a->heads + h) * a->tq + first + i, empty ? INFINITY : high + log(total));
  }
  put(a, &a->y, b, h, first, rows, a->ev, sum);
}

/* Chunk: one block of queries of one head. */
static void forward_block(void *arg, int64_t chunk) {
  const attention *a = arg;
  forward_room f = forward_room_of(a, chunk_room(a, chunk));
  int64_t blocks = (a->tq + a->forward_q - 1) / a->forward_q, q = chunk % blocks * a->forward_q,
      rows = least(a->forward_q, a->tq - q);
  int64_t h = chunk / blocks % a->heads, b = chunk / blocks / a->heads, key_head = h / (a->heads / a->key_heads);
  head_sums sum = sums_of(a, &a->y, b, h, q, a->ev, f.sum);
  for (int64_t i = 0; i < rows; i++) gb_row_put(a->lane, f.high, i, -INFINITY), gb_row_put(a->lane, f.total, i, 0);
  const int64_t begin = low_key(a, q) / a->tile * a->tile;
  if (high_key(a, q + rows - 1) <= begin) clear(a, &sum, rows, a->ev); /* the window has left the keys */
  for (int64_t k = begin; k < high_key(a, q + rows - 1); k += a->tile) {
    /* queries before the first key see none of the tile */
    int64_t n = least(a->tile, a->tk - k), skip = a->causal ? most(0, k - q) : 0;
    char *scores = f.scores + (size_t)(skip * a->apart) * a->size;
    if (gb_work((rows - skip) * (n + a->ev))) return; /* exponentials; the products count themselves */
    gb_matrix query = rows_of(&a->query, b, h, q + skip), key = rows_of(&a->key, b, key_head, k),
        value = rows_of(&a->value, b, key_head, k);
    multiply(a, rows - skip, n, a->e, a->scale, query, transposed(key), 0, scores, a->apart, f.work);
    for (int64_t i = skip; i < rows; i++) {
      ask_ahead(a, b, h, q + i);
      soften_row(a, &f, &sum, b, h, q + i, i, k, n);
    }
    multiply(a, rows - skip, a->ev, n, 1, tile_of(a, scores), value, k > begin, sums_at(a, &sum, skip), sum.ld, f.work);
  }
  forward_finish(a, &f, &sum, b, h, q, rows);
}

static gb_status scaled_dot_product_attention(gb_op_call *call) {
  const gb_in_scaled_dot_product_attention *in = GB_IN(call, scaled_dot_product_attention);
  const gb_out_scaled_dot_product_attention *out = GB_OUT(call, scaled_dot_product_attention);
  attention a = attention_of(call, in->query, in->key, in->value, in->mask, out->y);
  if (a.batch * a.heads * a.tq == 0) return GB_OK;
  a.y = view_of(out->y);
  a.lse = out->lse ? gb_data(out->lse) : NULL;
  a.seed = call->rng_seed;
  a.offset = call->rng_offset;
  int64_t blocks = (a.tq + a.forward_q - 1) / a.forward_q;
  return run_chunks(call, &a, forward_room_of(&a, (room){ 0 }).bytes, a.batch * a.heads * blocks, forward_block);
}

/* ====} */

/* {==== backward ==== */

/* The scratch of one head of key and value: its gradient sums whole, and tiles. shift: sum(grad * y) per query. */
typedef struct backward_room { char *dkey, *dvalue, *dquery, *scores, *dscores, *shift, *grad_row, *y_row,
                               *work; size_t bytes; } backward_room;

static backward_room backward_room_of(const attention *a, room r) {
  backward_room f;
  f.dkey = take(&r, a, is_own(a, &a->dkey) ? 0 : a->tk * a->e);
  f.dvalue = take(&r, a, is_own(a, &a->dvalue) ? 0 : a->tk * a->ev);
  f.dquery = take(&r, a, is_own(a, &a->dquery) ? 0 : a->backward_q * a->e);
  f.scores = take(&r, a, a->backward_q * a->apart);
  f.dscores = take(&r, a, a->backward_q * a->apart);
  f.shift = take(&r, a, a->backward_q);
  f.grad_row = take(&r, a, a->ev);
  f.y_row = take(&r, a, a->ev);
  f.work = take(&r, a, product_lanes(a, a->backward_q));
  f.bytes = r.used;
  return f;
}

/* ds = p * (ds - shift) */
static void score_gradient(const attention *a, char *ds, const char *p, int64_t n, double shift) {
  if (a->lane == GB_LANE_F32) {
    float *x = (float *)(void *)ds, by = (float)shift;
    const float *y = (const float *)(const void *)p;
    for (int64_t j = 0; j < n; j++) x[j] = y[j] * (x[j] - by);
  } else {
    double *x = (double *)(void *)ds;
    const double *y = (const double *)(const void *)p;
    for (int64_t j = 0; j < n; j++) x[j] = y[j] * (x[j] - shift);
  }
}

/* p = exp(p - lse) and ds = p * (ds - shift) in whole vectors. */
static void slope_row(float *p, float *ds, int64_t n, float lse, float shift) {
  const gb_vector of = gb_vector_of(lse), by = gb_vector_of(shift), lift = gb_vector_of((float)(1 / GB_ROW_LIFT));
  for (int64_t i = 0; i < n; i += GB_WIDE) {
    gb_wide v = gb_wide_load(GB_FLOAT32, p, i), d = gb_wide_load(GB_FLOAT32, ds, i);
    v.a = lift * gb_vector_lift_of(GB_FLOAT32, v.a - of), v.b = lift * gb_vector_lift_of(GB_FLOAT32, v.b - of);
    d.a = v.a * (d.a - by), d.b = v.b * (d.b - by);
    gb_wide_store(GB_FLOAT32, p, i, v, false);
    gb_wide_store(GB_FLOAT32, ds, i, d, false);
  }
}

/* One query's scores become the probabilities that met the values, and the gradients of the probabilities those of the
 * scores. */
static void soften_row_backward(const attention *a, const backward_room *f, int64_t b, int64_t h, int64_t i, int64_t at,
                                int64_t first, int64_t n) {
  char *p = f->scores + (size_t)(at * a->apart) * a->size, *ds = f->dscores + (size_t)(at * a->apart) * a->size;
  int64_t seen = visible(a, i, first, n), whole = fill_up(a, p, seen);
  mask_row(a, b, h, i, first, seen, p);
  int64_t before = hidden(a, i, first, seen);
  hide(a, p, before);
  memset(ds, 0, (size_t)before * a->size);
  double lse = gb_row_get(a->lane, a->lse, (b * a->heads + h) * a->tq + i), shift = gb_row_get(a->lane, f->shift, at);
  bool fused = a->lane == GB_LANE_F32 && !(a->dropout > 0);
  if (fused) slope_row((float *)(void *)p, (float *)(void *)ds, whole, (float)lse, (float)shift);
  else gb_row_exp(a->lane, p, p, whole, lse, 1);
  memset(p + (size_t)seen * a->size, 0, (size_t)(n - seen) * a->size); /* which a NaN has reached, if there is one */
  memset(ds + (size_t)seen * a->size, 0, (size_t)(n - seen) * a->size);
  if (a->dropout > 0) drop_row(a, b, h, i, first, seen, keep_factor(a), ds);
  if (!fused) score_gradient(a, ds, p, seen, shift);
  if (a->dmask.data) memcpy(row_at(&a->dmask, b, h, i) + (size_t)first * a->size, ds, (size_t)n * a->size);
  if (a->dropout > 0) drop_row(a, b, h, i, first, seen, keep_factor(a), p);
  round_row(a, p, n);
  round_row(a, ds, n);
}

/* sum(grad * y) of each query of a block: what the softmax takes off its gradient. */
static void find_shifts(const attention *a, const backward_room *f, int64_t b, int64_t h, int64_t first, int64_t rows) {
  bool alike = a->grad.dtype == a->y.dtype && a->grad.stride[3] == 1 && a->y.stride[3] == 1;
  for (int64_t i = 0; i < rows; i++) {
    const char *grad = row_at(&a->grad, b, h, first + i), *y = row_at(&a->y, b, h, first + i);
    if (alike) { gb_row_put(a->lane, f->shift, i, gb_wide_dot(a->y.dtype, grad, y, a->ev)); continue; }
    gb_lane_load(a->lane, f->grad_row, grad, a->grad.dtype, a->grad.stride[3], a->ev);
    gb_lane_load(a->lane, f->y_row, y, a->y.dtype, a->y.stride[3], a->ev);
    gb_row_put(a->lane, f->shift, i, gb_row_dot(a->lane, f->grad_row, f->y_row, a->ev));
  }
}

/* One block of queries of head h, against all keys: its dquery, and its part of dkey and dvalue, whose sums the first
 * block of the first head of the group that sees a key begins; with a window they begin with zeros. */
static void backward_block(const attention *a, const backward_room *f, const head_sums *dkey, const head_sums *dvalue,
                           int64_t b, int64_t h, int64_t key_head,
                           int64_t q) {
  int64_t rows = least(a->backward_q, a->tq - q);
  head_sums dquery = sums_of(a, &a->dquery, b, h, q, a->e, f->dquery);
  const int64_t begin = low_key(a, q) / a->tile * a->tile;
  if (high_key(a, q + rows - 1) <= begin) clear(a, &dquery, rows, a->e);
  find_shifts(a, f, b, h, q, rows);
  for (int64_t k = begin; k < high_key(a, q + rows - 1); k += a->tile) {
    int64_t n = least(a->tile, a->tk - k), skip = a->causal ? most(0, k - q) : 0, left = rows - skip;
    bool first = !a->window && h % (a->heads / a->key_heads) == 0 && (q == 0 || (a->causal && k >= q));
    char *scores = f->scores + (size_t)(skip * a->apart) * a->size,
        *dscores = f->dscores + (size_t)(skip * a->apart) * a->size;
    if (gb_work(left * (n + a->ev))) return;
    gb_matrix query = rows_of(&a->query, b, h, q + skip), grad = rows_of(&a->grad, b, h, q + skip);
    gb_matrix key = rows_of(&a->key, b, key_head, k), value = rows_of(&a->value, b, key_head, k);
    gb_matrix p = tile_of(a, scores), ds = tile_of(a, dscores);
    multiply(a, left, n, a->e, a->scale, query, transposed(key), 0, scores, a->apart, f->work);
    multiply(a, left, n, a->ev, 1, grad, transposed(value), 0, dscores, a->apart, f->work);
    for (int64_t i = skip; i < rows; i++) {
      ask_ahead(a, b, h, q + i);
      soften_row_backward(a, f, b, h, q + i, i, k, n);
    }
    multiply(a, n, a->ev, left, 1, transposed(p), grad, !first, sums_at(a, dvalue, k), dvalue->ld, f->work);
    multiply(a, n, a->e, left, a->scale, transposed(ds), query, !first, sums_at(a, dkey, k), dkey->ld, f->work);
    multiply(a, left, a->e, n, a->scale, ds, key, k > begin, sums_at(a, &dquery, skip), dquery.ld, f->work);
  }
  put(a, &a->dquery, b, h, q, rows, a->e, &dquery);
}

/* Chunk: one head of key and value, with all the heads of query that look at it; its work grows with the square of a
 * sequence. */
static void backward_head(void *arg, int64_t chunk) {
  const attention *a = arg;
  backward_room f = backward_room_of(a, chunk_room(a, chunk));
  int64_t key_head = chunk % a->key_heads, b = chunk / a->key_heads, group = a->heads / a->key_heads;
  head_sums dkey = sums_of(a, &a->dkey, b, key_head, 0, a->e, f.dkey),
      dvalue = sums_of(a, &a->dvalue, b, key_head, 0, a->ev, f.dvalue);
  /* keys that no query sees */
  if (group == 0 || a->tq == 0 || a->window || (a->causal && a->tq < a->tk))
    clear(a, &dkey, a->tk, a->e), clear(a, &dvalue, a->tk, a->ev);
  for (int64_t h = key_head * group; h < (key_head + 1) * group; h++)
    for (int64_t q = 0; q < a->tq && !gb_stop_long(a->call); q += a->backward_q)
      backward_block(a, &f, &dkey, &dvalue, b, h, key_head, q);
  put(a, &a->dkey, b, key_head, 0, a->tk, a->e, &dkey);
  put(a, &a->dvalue, b, key_head, 0, a->tk, a->ev, &dvalue);
}

static gb_status scaled_dot_product_attention_backward(gb_op_call *call) {
  const gb_in_scaled_dot_product_attention_backward *in = GB_IN(call, scaled_dot_product_attention_backward);
  const gb_attrs_scaled_dot_product_attention_backward *attrs = GB_ATTRS(call, scaled_dot_product_attention_backward);
  const gb_out_scaled_dot_product_attention_backward *out = GB_OUT(call, scaled_dot_product_attention_backward);
  attention a = attention_of(call, in->query, in->key, in->value, in->mask, in->y);
  a.grad = view_of(in->grad);
  a.y = view_of(in->y);
  a.lse = gb_data(in->lse);
  a.seed = (uint64_t)attrs->seed.integer;
  a.offset = (uint64_t)attrs->offset.integer;
  a.dquery = view_of(out->dquery);
  a.dkey = view_of(out->dkey);
  a.dvalue = view_of(out->dvalue);
  if (out->dmask) {
    a.dmask = view_of(out->dmask);
    gb_clear_bytes(a.dmask.data, (size_t)out->dmask->numel * a.size);
  }
  return run_chunks(call, &a, backward_room_of(&a, (room){ 0 }).bytes, a.batch * a.key_heads, backward_head);
}

/* ====} */

void GB_CPU_FILL(attention)(gb_backend *backend);
void GB_CPU_FILL(attention)(gb_backend *backend) {
  backend->run[GB_OP_scaled_dot_product_attention] = scaled_dot_product_attention;
  backend->run[GB_OP_scaled_dot_product_attention_backward] = scaled_dot_product_attention_backward;
}
