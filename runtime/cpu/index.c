/* cpu/index.c - picking and adding by index. Index values are checked before anything is written; every kernel then
 * trusts them.
 *
 * What adds (embedding_backward, scatter_add, index_add) adds in the order of the index: parallel work is cut over
 * elements of the result that no two chunks share, so sums are the same bits for any number of threads. Each kernel
 * reads and writes every element once. */
#include "cpu/walk.h"
#include "cpu/wide.h"

/* What most kernels here share: a shape cut into runs, and up to three tensors walked over it. */
typedef struct index_walk {
  gb_op_call *call;
  gb_runs runs;
  int dim;                            /* the op's dimension */
  int64_t stride[3][GB_MAX_NDIM];     /* of x or y, of the index, of the source */
  gb_sums sums;
  int64_t n;                          /* elements along dim that a run handles itself */
} index_walk;

static inline size_t bytes_of(const gb_tensor *t) { return gb_dtype_bytes((gb_dtype)t->dtype); }

/* n values of an index, a tile at most, from an element of it on: where they lie, or brought to the tile. */
static const int64_t *index_values(const gb_tensor *index, int64_t offset, int64_t stride, int64_t n, int64_t *tile) {
  const char *at = gb_data(index) + offset * (int64_t)bytes_of(index);
  if (index->dtype == GB_INT64 && stride == 1) return (const int64_t *)(const void *)at;
  gb_load_i64(tile, at, (gb_dtype)index->dtype, stride, n);
  return tile;
}

/* {==== embedding ==== */

/* y[i] = weight[index[i]]: rows in parallel. */
static void embedding_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_in_embedding *in = GB_IN(w->call, embedding);
  const gb_tensor *index = in->index, *weight = in->weight, *y = GB_OUT(w->call, embedding)->y;
  int64_t end, at[GB_MAX_NDIM], width = weight->shape[1];
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    gb_run_at(&w->runs, run, at);
    int64_t row = gb_index_value(gb_data(index), (gb_dtype)index->dtype, gb_offset_at(index->ndim, at, w->stride[1]));
    gb_copy_run(gb_data(y) + run * width * (int64_t)bytes_of(y), (gb_dtype)y->dtype, 1,
                gb_data(weight) + row * weight->stride[0] * (int64_t)bytes_of(weight), (gb_dtype)weight->dtype,
                    weight->stride[1], width);
  }
}

/* Runs of one index value each, so many to a chunk that it moves GB_CHUNK_ELEMENTS. */
static gb_runs rows_of_index(const gb_tensor *index, int64_t width) {
  gb_runs r = gb_runs_of(index->ndim, index->shape, 1);
  r.per_chunk = width < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / (width > 0 ? width : 1) : 1;
  r.chunks = (r.count + r.per_chunk - 1) / r.per_chunk;
  return r;
}

static gb_status embedding(gb_op_call *call) {
  const gb_in_embedding *in = GB_IN(call, embedding);
  const gb_tensor *index = in->index, *weight = in->weight;
  GB_TRY(gb_check_index(call, index, weight->shape[0], "index"));
  if (GB_OUT(call, embedding)->y->numel == 0) return GB_OK;
  index_walk w = { .call = call, .runs = rows_of_index(index, weight->shape[1]) };
  gb_broadcast_strides(index, index->ndim, index->shape, w.stride[1]);
  gb_parallel(call, w.runs.chunks, embedding_chunk, &w);
  return GB_OK;
}

/* Elements that lie anywhere, each for about so many of a pass. */
enum { FAR = 4 };

/* Sums of a tile. */
typedef union tile_sums { float f32[GB_TILE]; double f64[GB_TILE]; } tile_sums;

/* Where row i of a bag begins. */
static const char *row_of_bag(const gb_tensor *index, const gb_tensor *weight, int64_t bag, int64_t i) {
  int64_t place = bag * index->stride[0] + i * index->stride[1];
  int64_t row = gb_index_value(gb_data(index), (gb_dtype)index->dtype, place);
  return gb_data(weight) + row * weight->stride[0] * (int64_t)bytes_of(weight);
}

/* Ask for n bytes of memory. */
static void ask_for(const char *from, int64_t n) {
  enum { LINE = 64 };
  for (int64_t at = 0; at < n; at += LINE) __builtin_prefetch(from + at);
}

/* So many rows of a bag, or parts of a row's gradient, are added in float32 before their sum goes to a double, here and
 * in cuda/index.cu. */
enum { ROW_BLOCK = 16 };

/* Add the float32 sums of a block to doubles, and zero them for the next block. */
static void drain_block(double *whole, float *sum, int64_t n) {
  for (int64_t k = 0; k < n; k++) whole[k] += (double)sum[k];
  memset(sum, 0, (size_t)n * sizeof *sum);
}

/* A block's sums, the first one's or added to those before it. */
static void keep_block(double *whole, const float *sum, int64_t n, bool first) {
  if (first) for (int64_t k = 0; k < n; k++) whole[k] = (double)sum[k];
  else for (int64_t k = 0; k < n; k++) whole[k] += (double)sum[k];
}

/* The last block's sums, and what went before them. */
static void close_block(tile_sums *sum, const double *whole, int64_t n) {
  for (int64_t k = 0; k < n; k++) sum->f32[k] = (float)(whole[k] + (double)sum->f32[k]);
}

/* Pairs of vectors whose sums are in registers at once. */
enum { AT_ONCE = 4 };

/* So many rows further on memory is asked for, of this bag or of those behind it: into L2 only, as the requests that
 * wait for memory would else keep those that find their row from L1. */
enum { ROWS_AHEAD = 24 };

GB_ALWAYS_INLINE void ask_ahead(gb_dtype dtype, const char *row, int64_t k) {
  enum { LINE = 64, IN_L2 = 2 };
  const int64_t bytes = dtype == GB_FLOAT32 ? 4 : 2;
  for (int64_t at = k * bytes; at < (k + GB_WIDE) * bytes; at += LINE) __builtin_prefetch(row + at, 0, IN_L2);
}

/* So many pairs of vectors of sum_block from element k on. */
GB_ALWAYS_INLINE void sum_vectors(gb_dtype dtype, const char *const *rows, const char *const *later, int64_t count,
                                  int64_t k, const int pairs, float *sum) {
  gb_wide sums[AT_ONCE] = { 0 };
  for (int64_t i = 0; i < count; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < pairs; j++) {
      gb_wide x = gb_wide_load(dtype, rows[i], k + j * GB_WIDE);
      ask_ahead(dtype, later[i], k + j * GB_WIDE);
      sums[j] = (gb_wide){ sums[j].a + x.a, sums[j].b + x.b };
    }
  }
  memcpy(sum + k, sums, (size_t)pairs * sizeof *sums);
}

/* sum[k] = the sum of rows[i][k] over i, in that order, in float32 from 0 on, in the order of cpu/wide.h. The rows of
 * `later`, as many, are asked for one by one. */
GB_ALWAYS_INLINE void sum_block(gb_dtype dtype, const char *const *rows, const char *const *later, int64_t count,
                                int64_t n, float *sum) {
  int64_t k = 0;
  for (; k + AT_ONCE * GB_WIDE <= n; k += AT_ONCE * GB_WIDE) sum_vectors(dtype, rows, later, count, k, AT_ONCE, sum);
  if (k + 2 * GB_WIDE <= n) sum_vectors(dtype, rows, later, count, k, 2, sum), k += 2 * GB_WIDE;
  if (k + GB_WIDE <= n) sum_vectors(dtype, rows, later, count, k, 1, sum), k += GB_WIDE;
  if (k == n) return;
  gb_wide last = { 0 };
  for (int64_t i = 0; i < count; i++) {
    gb_wide x = gb_wide_load_last(dtype, rows[i], k, n - k, 0);
    ask_ahead(dtype, later[i], k);
    last = (gb_wide){ last.a + x.a, last.b + x.b };
  }
  memcpy(sum + k, &last, (size_t)(n - k) * sizeof *sum);
}

/* A block, as a function of its own: its loops need all registers. */
static __attribute__((noinline)) void sum_rows(gb_dtype dtype, const char *const *rows, const char *const *later,
                                               int64_t count, int64_t n, float *sum) {
  GB_WIDE_FOR(dtype, sum_block, rows, later, count, n, sum);
}

/* The rows at `count` places of the index from `place` of bag `bag` on, which go on in the next bags, from a column of
 * theirs on, which lies at `from` in row 0. Behind the last place the rows are any. */
static void find_rows(const gb_in_embedding_sum *in, const char *from, int64_t bag, int64_t place, int64_t count,
                      const char **rows) {
  const gb_tensor *index = in->index;
  const int64_t ids = index->shape[1], step = index->stride[1];
  const int64_t bytes = in->weight->stride[0] * (int64_t)bytes_of(in->weight);
  for (; place >= ids; place -= ids) bag++;
  for (int64_t k = 0, n; k < count; k += n, bag++, place = 0) {
    const int64_t at = bag * index->stride[0] + place * step;
    const int64_t *places = (const int64_t *)(const void *)gb_data(index) + at;
    n = ids - place < count - k ? ids - place : count - k;
    if (bag >= index->shape[0]) {
      for (; k < count; k++) rows[k] = from;
      return;
    }
    if (index->dtype == GB_INT64)
      for (int64_t i = 0; i < n; i++) rows[k + i] = from + places[i * step] * bytes;
    else
      for (int64_t i = 0; i < n; i++)
        rows[k + i] = from + gb_index_value(gb_data(index), (gb_dtype)index->dtype, at + i * step) * bytes;
  }
}

/* Rows of 32 or 16 bits side by side: a bag's sum block by block, in the order of cpu/wide.h. */
static void sum_plain_bag(const gb_op_call *call, int64_t bag, int64_t first, int64_t n, float *sum, double *whole) {
  const gb_in_embedding_sum *in = GB_IN(call, embedding_sum);
  enum { FOUND_AT_ONCE = 4 * ROW_BLOCK };
  const int64_t ids = in->index->shape[1];
  const char *from = gb_data(in->weight) + first * (int64_t)bytes_of(in->weight), *rows[FOUND_AT_ONCE + ROWS_AHEAD];
  if (ids == 0) memset(sum, 0, (size_t)n * sizeof *sum);
  for (int64_t i = 0; i < ids; i += ROW_BLOCK) {
    const int64_t count = ids - i < ROW_BLOCK ? ids - i : ROW_BLOCK, found = ids - i < FOUND_AT_ONCE ? ids - i
        : FOUND_AT_ONCE;
    const char **at = rows + i % FOUND_AT_ONCE;
    if (at == rows) find_rows(in, from, bag, i, found + ROWS_AHEAD, rows);
    sum_rows((gb_dtype)in->weight->dtype, at, at + ROWS_AHEAD, count, n, sum);
    if (i + ROW_BLOCK >= ids) break;
    keep_block(whole, sum, n, i == 0);
  }
}

/* The same for rows of any dtype that lie anyhow, in their own order. */
static void sum_any_bag(const gb_op_call *call, int64_t bag, int64_t first, int64_t n, tile_sums *sum, double *whole) {
  const gb_in_embedding_sum *in = GB_IN(call, embedding_sum);
  const gb_tensor *index = in->index, *weight = in->weight;
  enum { AHEAD = 4 };
  int64_t bytes = (int64_t)bytes_of(weight), stride = weight->stride[1], ids = index->shape[1], asked = 0;
  bool wide = weight->dtype == GB_FLOAT64;
  tile_sums part;
  memset(sum, 0, (size_t)n * (wide ? sizeof *sum->f64 : sizeof *sum->f32));
  for (int64_t i = 0; i < ids; i++) {
    if (!wide && i > 0 && i % ROW_BLOCK == 0) drain_block(whole, sum->f32, n);
    for (; asked < ids && asked <= i + AHEAD && stride == 1; asked++)
      ask_for(row_of_bag(index, weight, bag, asked) + first * bytes, n * bytes);
    const char *from = row_of_bag(index, weight, bag, i) + first * stride * bytes;
    if (wide) gb_load_f64(part.f64, from, GB_FLOAT64, stride, n);
    else gb_load_f32(part.f32, from, (gb_dtype)weight->dtype, stride, n);
    if (wide) for (int64_t k = 0; k < n; k++) sum->f64[k] += part.f64[k];
    else for (int64_t k = 0; k < n; k++) sum->f32[k] += part.f32[k];
  }
}

/* Columns first .. first + n - 1 of one bag's sum, n at most a tile. The rows lie anywhere, so those to come are asked
 * for. */
static void sum_bag(const gb_op_call *call, int64_t bag, int64_t first, int64_t n) {
  const gb_tensor *weight = GB_IN(call, embedding_sum)->weight, *y = GB_OUT(call, embedding_sum)->y;
  bool wide = weight->dtype == GB_FLOAT64, blocks = !wide && GB_IN(call, embedding_sum)->index->shape[1] > ROW_BLOCK;
  bool plain = !wide && weight->stride[1] == 1;
  double whole[GB_TILE];
  tile_sums sum;
  if (blocks && !plain) memset(whole, 0, (size_t)n * sizeof *whole);
  if (plain) sum_plain_bag(call, bag, first, n, sum.f32, whole);
  else sum_any_bag(call, bag, first, n, &sum, whole);
  if (blocks) close_block(&sum, whole, n);
  if (plain) gb_wide_sort((gb_dtype)weight->dtype, sum.f32, n, true);
  char *to = gb_data(y) + (bag * y->stride[0] + first * y->stride[1]) * (int64_t)bytes_of(y);
  if (wide) gb_store_f64(to, (gb_dtype)y->dtype, y->stride[1], sum.f64, n);
  else gb_store_f32(to, (gb_dtype)y->dtype, y->stride[1], sum.f32, n);
}

/* The bags of one chunk: as many as read GB_CHUNK_ELEMENTS, one at least. */
static int64_t bags_of_chunk(const gb_op_call *call) {
  int64_t each = GB_IN(call, embedding_sum)->index->shape[1] * GB_IN(call, embedding_sum)->weight->shape[1];
  return each < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / (each > 0 ? each : 1) : 1;
}

static void embedding_sum_chunk(void *arg, int64_t chunk) {
  const gb_op_call *call = arg;
  const gb_tensor *index = GB_IN(call, embedding_sum)->index, *weight = GB_IN(call, embedding_sum)->weight;
  int64_t bags = bags_of_chunk(call), end = (chunk + 1) * bags, width = weight->shape[1];
  if (end > index->shape[0]) end = index->shape[0];
  for (int64_t bag = chunk * bags; bag < end; bag++)
    for (int64_t column = 0; column < width; column += GB_TILE) {
      int64_t n = width - column < GB_TILE ? width - column : GB_TILE;
      if (gb_work(index->shape[1] * (FAR + n))) return;
      sum_bag(call, bag, column, n);
    }
}

/* y[b] = the sum of weight[index[b, i]] over i: every row is read once, every sum written once. */
static gb_status embedding_sum(gb_op_call *call) {
  const gb_in_embedding_sum *in = GB_IN(call, embedding_sum);
  GB_TRY(gb_check_index(call, in->index, in->weight->shape[0], "index"));
  int64_t bags = bags_of_chunk(call);
  if (GB_OUT(call, embedding_sum)->y->numel == 0) return GB_OK;
  gb_parallel(call, (in->index->shape[0] + bags - 1) / bags, embedding_sum_chunk, call);
  return GB_OK;
}

/* The gradients of each row, in the order of the index: row r's begin at elements place[first[r]] ..
 * place[first[r + 1] - 1] of grad. */
typedef struct row_lists {
  gb_op_call *call;
  gb_runs runs;                       /* of the index, a tile at most each */
  int64_t grad_strides[GB_MAX_NDIM], index_strides[GB_MAX_NDIM];
  int64_t *first, *place, rows, count, rows_per_chunk;
  const char *grad;
  bool far;                           /* gradients are asked for before they are read */
} row_lists;

/* A run of the index: its values, in the tile or where they lie, and where in grad the first one's gradient begins. */
static const int64_t *run_of_index(const row_lists *lists, const gb_tensor *index, int64_t run, int64_t *tile,
                                   int64_t *n, int64_t *offset) {
  int64_t at[GB_MAX_NDIM];
  const gb_runs *r = &lists->runs;
  *n = gb_run_at(r, run, at);
  *offset = gb_offset_at(r->ndim, at, lists->grad_strides);
  return index_values(index, gb_offset_at(r->ndim, at, lists->index_strides), lists->index_strides[r->ndim - 1], *n,
                      tile);
}

/* Counting sort of the index by its values; equal values keep their order. Unfinished where a stop is asked for. */
static void sort_by_row(row_lists *lists, const gb_tensor *index) {
  int64_t tile[GB_TILE], n, offset, *first = lists->first, step = lists->grad_strides[lists->runs.ndim - 1];
  gb_clear_bytes(first, (size_t)(lists->rows + 1) * sizeof *first);
  for (int64_t run = 0; run < lists->runs.count; run++) {
    const int64_t *ids = run_of_index(lists, index, run, tile, &n, &offset);
    if (gb_work(FAR * n)) return;
    for (int64_t i = 0; i < n; i++) first[ids[i] + 1]++;
  }
  for (int64_t r = 0; r < lists->rows && !gb_long_loop(r); r++) first[r + 1] += first[r];
  if (gb_was_stopped(lists->call)) return; /* these are no places */
  for (int64_t run = 0; run < lists->runs.count; run++) {
    const int64_t *ids = run_of_index(lists, index, run, tile, &n, &offset);
    if (gb_work(FAR * n)) return;
    for (int64_t i = 0; i < n; i++) lists->place[first[ids[i]]++] = offset + i * step;
  }
  /* each had moved on to the next one's start */
  for (int64_t r = lists->rows; r > 0 && !gb_long_loop(r); r--) first[r] = first[r - 1];
  first[0] = 0;
}

/* Sums added to what is there. */
static void add_tile(const gb_tensor *out, char *to, const tile_sums *sum, bool wide, int64_t n) {
  tile_sums before;
  if (out->dtype == GB_FLOAT64) {
    gb_load_f64(before.f64, to, GB_FLOAT64, out->stride[1], n);
    for (int64_t k = 0; k < n; k++) before.f64[k] += wide ? sum->f64[k] : (double)sum->f32[k];
    gb_store_f64(to, GB_FLOAT64, out->stride[1], before.f64, n);
  } else { /* then no part was wider */
    gb_load_f32(before.f32, to, GB_FLOAT32, out->stride[1], n);
    for (int64_t k = 0; k < n; k++) before.f32[k] += sum->f32[k];
    gb_store_f32(to, GB_FLOAT32, out->stride[1], before.f32, n);
  }
}

/* The sum of gradients i .. end - 1 of a list, of rows of 32 or 16 bits side by side, from a column of theirs on, in
 * the order of cpu/wide.h. */
static void sum_plain_places(const row_lists *lists, int64_t i, int64_t end, int64_t column, int64_t n, float *sum,
                             double *whole) {
  const gb_tensor *grad = GB_IN(lists->call, embedding_backward)->grad;
  const int64_t bytes = (int64_t)bytes_of(grad), *place = lists->place, last = lists->count - 1;
  const char *from = gb_data(grad) + column * bytes, *rows[ROW_BLOCK], *later[ROW_BLOCK];
  if (i == end) memset(sum, 0, (size_t)n * sizeof *sum);
  for (int64_t count, begin = i; i < end; i += count) {
    count = end - i < ROW_BLOCK ? end - i : ROW_BLOCK;
    if (gb_work(count * (FAR + n))) return;
    for (int64_t k = 0; k < count; k++) {
      int64_t next = i + k + ROWS_AHEAD < last ? i + k + ROWS_AHEAD : last;
      rows[k] = from + place[i + k] * bytes, later[k] = from + place[next] * bytes;
    }
    sum_rows((gb_dtype)grad->dtype, rows, later, count, n, sum);
    if (i + count < end) keep_block(whole, sum, n, i == begin);
  }
}

/* The same for rows of any dtype that lie anyhow, in their own order. */
static void sum_any_places(const row_lists *lists, int64_t i, int64_t end, int64_t column, int64_t n, tile_sums *sum,
                           double *whole) {
  const gb_tensor *grad = GB_IN(lists->call, embedding_backward)->grad;
  const int64_t stride = grad->stride[grad->ndim - 1], bytes = (int64_t)bytes_of(grad);
  const bool wide = grad->dtype == GB_FLOAT64;
  tile_sums part;
  memset(sum, 0, (size_t)n * (wide ? sizeof *sum->f64 : sizeof *sum->f32));
  if (end - i > ROW_BLOCK) memset(whole, 0, (size_t)n * sizeof *whole);
  for (int64_t parts = 0; i < end && !gb_work(FAR + n); i++, parts++) {
    if (!wide && parts > 0 && parts % ROW_BLOCK == 0) drain_block(whole, sum->f32, n);
    const char *from = gb_data(grad) + (lists->place[i] + column * stride) * bytes;
    if (wide) {
      gb_load_f64(part.f64, from, GB_FLOAT64, stride, n);
      for (int64_t k = 0; k < n; k++) sum->f64[k] += part.f64[k];
    } else {
      gb_load_f32(part.f32, from, (gb_dtype)grad->dtype, stride, n);
      for (int64_t k = 0; k < n; k++) sum->f32[k] += part.f32[k];
    }
  }
}

/* One tile of columns of one row: its gradients summed in order, many of them in blocks, and rounded once. */
static void sum_row_tile(const row_lists *lists, int64_t row, int64_t column, int64_t n) {
  const gb_tensor *grad = GB_IN(lists->call, embedding_backward)->grad;
  const gb_tensor *out = GB_OUT(lists->call, embedding_backward)->dweight;
  const gb_attr *padding = &GB_ATTRS(lists->call, embedding_backward)->padding_idx;
  int64_t i = lists->first[row], end = padding->given && padding->integer == row ? i : lists->first[row + 1];
  char *to = gb_data(out) + (row * out->stride[0] + column * out->stride[1]) * (int64_t)bytes_of(out);
  bool wide = grad->dtype == GB_FLOAT64, add = GB_ATTRS(lists->call, embedding_backward)->add.integer;
  bool blocks = !wide && end - i > ROW_BLOCK, plain = !wide && grad->stride[grad->ndim - 1] == 1;
  double whole[GB_TILE];
  tile_sums sum;
  if (add && i == end) return;
  if (plain && !add && !blocks && grad->dtype == GB_FLOAT32 && out->dtype == GB_FLOAT32 && out->stride[1] == 1) {
    sum_plain_places(lists, i, end, column, n, (float *)(void *)to, NULL);
    return;
  }
  if (plain) sum_plain_places(lists, i, end, column, n, sum.f32, whole);
  else sum_any_places(lists, i, end, column, n, &sum, whole);
  if (blocks) close_block(&sum, whole, n);
  if (plain) gb_wide_sort((gb_dtype)grad->dtype, sum.f32, n, true);
  if (add) add_tile(out, to, &sum, wide, n);
  else if (wide) gb_store_f64(to, (gb_dtype)out->dtype, out->stride[1], sum.f64, n);
  else gb_store_f32(to, (gb_dtype)out->dtype, out->stride[1], sum.f32, n);
}

/* So many pairs of vectors of a row from element k on: gradients i .. end - 1 of the lists, summed in order. */
GB_ALWAYS_INLINE void add_vectors(gb_dtype dtype, const row_lists *lists, int64_t i, int64_t end, int64_t k,
                                  const int pairs, char *to) {
  const int64_t bytes = dtype == GB_FLOAT32 ? 4 : 2, *place = lists->place, last = lists->count - 1;
  gb_wide sums[AT_ONCE] = { 0 };
  for (; i < end; i++) {
    const char *row = lists->grad + place[i] * bytes;
    if (lists->far) {
      const char *later = lists->grad + place[i + ROWS_AHEAD < last ? i + ROWS_AHEAD : last] * bytes;
#pragma GCC unroll 4
      for (int j = 0; j < pairs; j++) ask_ahead(dtype, later, k + j * GB_WIDE);
    }
#pragma GCC unroll 4
    for (int j = 0; j < pairs; j++) {
      gb_wide x = gb_wide_load(dtype, row, k + j * GB_WIDE);
      sums[j] = (gb_wide){ sums[j].a + x.a, sums[j].b + x.b };
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < pairs; j++) gb_wide_store(dtype, to, k + j * GB_WIDE, sums[j], false);
}

/* A row of n elements in whole vectors, of a dtype on both sides: what sum_row_tile does for a short list, without
 * leaving the registers. Rows of an embedding have a gradient or two each, so what is done for each row counts. */
GB_ALWAYS_INLINE int add_row(gb_dtype dtype, const row_lists *lists, int64_t i, int64_t end, int64_t n, char *to) {
  int64_t k = 0;
  for (; k + AT_ONCE * GB_WIDE <= n; k += AT_ONCE * GB_WIDE) add_vectors(dtype, lists, i, end, k, AT_ONCE, to);
  if (k + 2 * GB_WIDE <= n) add_vectors(dtype, lists, i, end, k, 2, to), k += 2 * GB_WIDE;
  if (k + GB_WIDE <= n) add_vectors(dtype, lists, i, end, k, 1, to);
  return 0;
}

/* Do gradients lie further off than in a cache? A view may show the same ones many times. */
static bool lie_far(const gb_tensor *grad) {
  enum { CACHED = 2 << 20 };
  int64_t bytes = (int64_t)bytes_of(grad);
  for (int d = 0; d < grad->ndim; d++) bytes *= grad->stride[d] ? grad->shape[d] : 1;
  return bytes > CACHED;
}

/* May rows go by add_row? */
static bool are_whole(const row_lists *lists) {
  const gb_tensor *grad = GB_IN(lists->call, embedding_backward)->grad;
  const gb_tensor *out = GB_OUT(lists->call, embedding_backward)->dweight;
  return grad->dtype != GB_FLOAT64 && grad->dtype == out->dtype && out->shape[1] % GB_WIDE == 0 &&
         out->shape[1] <= GB_TILE && out->stride[1] == 1 && grad->stride[grad->ndim - 1] == 1 &&
         !GB_ATTRS(lists->call, embedding_backward)->add.integer;
}

static void embedding_backward_chunk(void *arg, int64_t chunk) {
  const row_lists *lists = arg;
  const gb_tensor *out = GB_OUT(lists->call, embedding_backward)->dweight;
  const gb_tensor *grad = GB_IN(lists->call, embedding_backward)->grad;
  const gb_attr *padding = &GB_ATTRS(lists->call, embedding_backward)->padding_idx;
  const gb_dtype dtype = (gb_dtype)grad->dtype;
  const bool whole = are_whole(lists);
  int64_t width = out->shape[1], end = (chunk + 1) * lists->rows_per_chunk, bytes = (int64_t)bytes_of(out);
  if (end > lists->rows) end = lists->rows;
  for (int64_t row = chunk * lists->rows_per_chunk; row < end; row++) {
    const int64_t i = lists->first[row], stop = lists->first[row + 1];
    if (whole && stop - i <= ROW_BLOCK && !(padding->given && padding->integer == row)) {
      GB_WIDE_FOR(dtype, add_row, lists, i, stop, width, gb_data(out) + row * out->stride[0] * bytes);
      continue;
    }
    for (int64_t column = 0; column < width; column += GB_TILE)
      sum_row_tile(lists, row, column, width - column < GB_TILE ? width - column : GB_TILE);
  }
}

static gb_status embedding_backward(gb_op_call *call) {
  const gb_in_embedding_backward *in = GB_IN(call, embedding_backward);
  const gb_tensor *grad = in->grad, *index = in->index, *out = GB_OUT(call, embedding_backward)->dweight;
  row_lists lists = { .call = call, .runs = gb_runs_of(index->ndim, index->shape, GB_TILE), .rows = out->shape[0],
                      .count = index->numel, .grad = gb_data(grad), .far = lie_far(grad) };
  GB_TRY(gb_check_index(call, index, lists.rows, "index"));
  if (out->numel == 0) return GB_OK;
  gb_block *scratch = gb_cpu_scratch(call, (size_t)(lists.rows + 1 + index->numel) * sizeof(int64_t));
  if (!scratch) return GB_EMEMORY;
  lists.first = gb_block_data(scratch);
  lists.place = lists.first + lists.rows + 1;
  if (index->ndim > 0) memcpy(lists.grad_strides, grad->stride, sizeof lists.grad_strides);
  gb_broadcast_strides(index, index->ndim, index->shape, lists.index_strides);
  lists.rows_per_chunk = 1 + 4096 / out->shape[1];
  sort_by_row(&lists, index);
  gb_parallel(call, (lists.rows + lists.rows_per_chunk - 1) / lists.rows_per_chunk, embedding_backward_chunk, &lists);
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

/* ====} */

/* {==== gather, scatter_add: lines along dim, in parallel over all others ==== */

/* Lines along dim of a shape: runs over the other dims, of one element each; `n` elements are left to each run. */
static void lines_along(index_walk *w, int ndim, const int64_t *shape, int dim) {
  int64_t others[GB_MAX_NDIM] = { 1 };
  for (int i = 0; i < ndim; i++) others[i] = i == dim ? 1 : shape[i];
  w->dim = dim;
  w->n = ndim ? shape[dim] : 1;
  w->runs = gb_runs_of(ndim, others, 1);
  w->runs.per_chunk = w->n < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / (w->n > 0 ? w->n : 1) : 1;
  w->runs.chunks = (w->runs.count + w->runs.per_chunk - 1) / w->runs.per_chunk;
}

/* The strides of t over the walk's dims, a 0-d tensor as a vector. */
static void walk_strides(index_walk *w, int i, const gb_tensor *t) {
  memcpy(w->stride[i], t->stride, sizeof w->stride[i]);
  if (t->ndim == 0) w->stride[i][0] = 1;
}

/* to[j] = from[index[j]] for elements of so many bytes; strides in elements. */
static inline void pick(char *to, int64_t to_stride, const char *from, int64_t stride, const int64_t *index,
                        int64_t n, int64_t bytes) {
  for (int64_t j = 0; j < n; j++) memcpy(to + j * to_stride * bytes, from + index[j] * stride * bytes, (size_t)bytes);
}

static void pick_line(char *to, int64_t to_stride, const char *from, int64_t stride, const int64_t *index, int64_t n,
                      size_t bytes) {
  switch (bytes) {
    case 1: pick(to, to_stride, from, stride, index, n, 1); break;
    case 2: pick(to, to_stride, from, stride, index, n, 2); break;
    case 4: pick(to, to_stride, from, stride, index, n, 4); break;
    default: pick(to, to_stride, from, stride, index, n, 8); break;
  }
}

static void gather_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_in_gather *in = GB_IN(w->call, gather);
  const gb_tensor *x = in->x, *index = in->index, *y = GB_OUT(w->call, gather)->y;
  size_t bytes = bytes_of(x);
  int64_t end, at[GB_MAX_NDIM], x_stride = w->stride[0][w->dim], i_stride = w->stride[1][w->dim],
      y_stride = w->stride[2][w->dim], tile[GB_TILE];
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    gb_run_at(&w->runs, run, at);
    const char *from = gb_data(x) + gb_offset_at(w->runs.ndim, at, w->stride[0]) * (int64_t)bytes;
    char *to = gb_data(y) + gb_offset_at(w->runs.ndim, at, w->stride[2]) * (int64_t)bytes;
    int64_t offset = gb_offset_at(w->runs.ndim, at, w->stride[1]);
    for (int64_t j = 0; j < w->n && !(j > 0 && gb_work(FAR * GB_TILE)); j += GB_TILE) {
      int64_t n = w->n - j < GB_TILE ? w->n - j : GB_TILE;
      const int64_t *values = index_values(index, offset + j * i_stride, i_stride, n, tile);
      pick_line(to + j * y_stride * (int64_t)bytes, y_stride, from, x_stride, values, n, bytes);
    }
  }
}

static gb_status gather(gb_op_call *call) {
  const gb_in_gather *in = GB_IN(call, gather);
  const gb_tensor *x = in->x, *index = in->index;
  index_walk w = { .call = call };
  lines_along(&w, index->ndim, index->shape, gb_wrap_dim(GB_ATTRS(call, gather)->dim.integer, x->ndim));
  GB_TRY(gb_check_index(call, index, gb_size_at(x, w.dim), "index"));
  if (index->numel == 0) return GB_OK;
  walk_strides(&w, 0, x), walk_strides(&w, 1, index), walk_strides(&w, 2, GB_OUT(call, gather)->y);
  gb_parallel(call, w.runs.chunks, gather_chunk, &w);
  return GB_OK;
}

/* Add n elements of source, a tile at most, into one line of sums, each at its index. */
static void scatter_line(const index_walk *w, int64_t sum_offset, int64_t index_offset, const char *from, int64_t n) {
  const gb_in_scatter_add *in = GB_IN(w->call, scatter_add);
  const gb_tensor *source = in->source;
  gb_dtype dtype = (gb_dtype)source->dtype;
  int64_t to_stride = w->sums.strides[w->dim], i_stride = w->stride[1][w->dim], s_stride = w->stride[2][w->dim];
  int64_t room[GB_TILE];
  const int64_t *index = index_values(in->index, index_offset, i_stride, n, room);
  if (w->sums.dtype == GB_FLOAT32) {
    float tile[GB_TILE], *to = (float *)w->sums.data + sum_offset;
    const float *values = dtype == GB_FLOAT32 && s_stride == 1 ? (const float *)(const void *)from : tile;
    if (values == tile) gb_load_f32(tile, from, dtype, s_stride, n);
    for (int64_t j = 0; j < n; j++) to[index[j] * to_stride] += values[j];
  } else if (w->sums.dtype == GB_FLOAT64) {
    double tile[GB_TILE], *to = (double *)w->sums.data + sum_offset;
    gb_load_f64(tile, from, dtype, s_stride, n);
    for (int64_t j = 0; j < n; j++) to[index[j] * to_stride] += tile[j];
  } else {
    int64_t tile[GB_TILE];
    uint64_t *to = (uint64_t *)w->sums.data + sum_offset; /* unsigned: integers wrap */
    gb_load_i64(tile, from, dtype, s_stride, n);
    for (int64_t j = 0; j < n; j++) to[index[j] * to_stride] += (uint64_t)tile[j];
  }
}

static void scatter_add_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_tensor *source = GB_IN(w->call, scatter_add)->source;
  int64_t end, at[GB_MAX_NDIM];
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    gb_run_at(&w->runs, run, at);
    int64_t sum_offset = gb_offset_at(w->runs.ndim, at, w->sums.strides),
        index_offset = gb_offset_at(w->runs.ndim, at, w->stride[1]);
    int64_t offset = gb_offset_at(w->runs.ndim, at, w->stride[2]);
    for (int64_t j = 0; j < w->n && !gb_work(FAR * GB_TILE); j += GB_TILE)
      scatter_line(w, sum_offset, index_offset + j * w->stride[1][w->dim],
                   gb_data(source) + (offset + j * w->stride[2][w->dim]) * (int64_t)bytes_of(source),
                       w->n - j < GB_TILE ? w->n - j : GB_TILE);
  }
}

static gb_status scatter_add(gb_op_call *call) {
  const gb_in_scatter_add *in = GB_IN(call, scatter_add);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source, *y = GB_OUT(call, scatter_add)->y;
  index_walk w = { .call = call };
  lines_along(&w, index->ndim, index->shape, gb_wrap_dim(GB_ATTRS(call, scatter_add)->dim.integer, x->ndim));
  GB_TRY(gb_check_index(call, index, gb_size_at(x, w.dim), "index"));
  GB_TRY(gb_sums_begin(call, y, x, &w.sums));
  if (y->ndim == 0) w.sums.strides[0] = 1;
  walk_strides(&w, 1, index), walk_strides(&w, 2, source);
  if (index->numel > 0) gb_parallel(call, w.runs.chunks, scatter_add_chunk, &w);
  gb_sums_end(call, y, &w.sums);
  return GB_OK;
}

/* ====} */

/* {==== index_select, index_add ==== */

/* Runs along the last dimension; where that is dim itself, one line of picked elements. */
static void index_select_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_in_index_select *in = GB_IN(w->call, index_select);
  const gb_tensor *x = in->x, *index = in->index, *y = GB_OUT(w->call, index_select)->y;
  int64_t end, at[GB_MAX_NDIM], last = w->runs.ndim - 1, bytes = (int64_t)bytes_of(x), i_stride = w->stride[1][0];
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    int64_t n = gb_run_at(&w->runs, run, at), start = at[w->dim];
    char *to = gb_data(y) + gb_offset_at(w->runs.ndim, at, w->stride[2]) * bytes;
    if (w->dim != last) {
      at[w->dim] = gb_index_value(gb_data(index), (gb_dtype)index->dtype, start * i_stride);
      gb_copy_run(to, (gb_dtype)y->dtype, w->stride[2][last],
                  gb_data(x) + gb_offset_at(w->runs.ndim, at, w->stride[0]) * bytes, (gb_dtype)x->dtype,
                  w->stride[0][last], n);
      continue;
    }
    at[last] = 0;
    const char *from = gb_data(x) + gb_offset_at(w->runs.ndim, at, w->stride[0]) * bytes;
    for (int64_t j = 0; j < n; j++) {
      int64_t value = gb_index_value(gb_data(index), (gb_dtype)index->dtype, (start + j) * i_stride);
      gb_copy_element(to + j * w->stride[2][last] * bytes, from + value * w->stride[0][last] * bytes, (size_t)bytes);
    }
  }
}

static gb_status index_select(gb_op_call *call) {
  const gb_in_index_select *in = GB_IN(call, index_select);
  const gb_tensor *x = in->x, *index = in->index, *y = GB_OUT(call, index_select)->y;
  index_walk w = { .call = call, .dim = gb_wrap_dim(GB_ATTRS(call, index_select)->dim.integer, x->ndim),
                   .runs = gb_runs_of(y->ndim, y->shape, GB_CHUNK_ELEMENTS) };
  GB_TRY(gb_check_index(call, index, gb_size_at(x, w.dim), "index"));
  if (y->numel == 0) return GB_OK;
  walk_strides(&w, 0, x), walk_strides(&w, 1, index), walk_strides(&w, 2, y);
  gb_parallel(call, w.runs.chunks, index_select_chunk, &w);
  return GB_OK;
}

/* Add n elements of a source run to a run of sums. */
static void add_run(const index_walk *w, int64_t offset, int64_t stride, const char *from, int64_t from_stride,
                    int64_t n) {
  gb_dtype dtype = (gb_dtype)GB_IN(w->call, index_add)->source->dtype;
  if (w->sums.dtype == GB_FLOAT32) {
    float tile[GB_TILE], *to = (float *)w->sums.data + offset;
    gb_load_f32(tile, from, dtype, from_stride, n);
    if (stride == 1) for (int64_t i = 0; i < n; i++) to[i] += tile[i];
    else for (int64_t i = 0; i < n; i++) to[i * stride] += tile[i];
  } else if (w->sums.dtype == GB_FLOAT64) {
    double tile[GB_TILE], *to = (double *)w->sums.data + offset;
    gb_load_f64(tile, from, dtype, from_stride, n);
    for (int64_t i = 0; i < n; i++) to[i * stride] += tile[i];
  } else {
    int64_t tile[GB_TILE];
    uint64_t *to = (uint64_t *)w->sums.data + offset;
    gb_load_i64(tile, from, dtype, from_stride, n);
    for (int64_t i = 0; i < n; i++) to[i * stride] += (uint64_t)tile[i];
  }
}

/* One run of the result's last dimension per slice of the index, in the index's order. */
static void index_add_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_in_index_add *in = GB_IN(w->call, index_add);
  const gb_tensor *index = in->index, *source = in->source;
  int64_t end, at[GB_MAX_NDIM], last = w->runs.ndim - 1, bytes = (int64_t)bytes_of(source), work = 0;
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    int64_t n = gb_run_at(&w->runs, run, at);
    for (int64_t j = 0; j < w->n && !gb_long_work(w->call, &work, n); j++) {
      at[w->dim] = j;
      const char *from = gb_data(source) + gb_offset_at(w->runs.ndim, at, w->stride[2]) * bytes;
      at[w->dim] = gb_index_value(gb_data(index), (gb_dtype)index->dtype, j * w->stride[1][0]);
      add_run(w, gb_offset_at(w->runs.ndim, at, w->sums.strides), w->sums.strides[last], from, w->stride[2][last], n);
    }
  }
}

_Static_assert(GB_IN_AT(index_add, x) == GB_IN_AT(scatter_add, x) &&
               GB_IN_AT(index_add, index) == GB_IN_AT(scatter_add, index) &&
               GB_IN_AT(index_add, source) == GB_IN_AT(scatter_add, source), "scatter_add stands for both");

/* Where dim is the last one, slices are single elements: lines along dim as scatter_add's, all with the same index. */
static void add_lines(index_walk *w) {
  const gb_in_index_add *in = GB_IN(w->call, index_add);
  int64_t step = w->stride[1][0];
  lines_along(w, in->source->ndim, in->source->shape, w->dim);
  memset(w->stride[1], 0, sizeof w->stride[1]);
  w->stride[1][w->dim] = step;
  gb_parallel(w->call, w->runs.chunks, scatter_add_chunk, w);
}

/* The shape with dim as 1, cut into runs: each is added to by all slices, so chunks never share an element. */
static gb_status index_add(gb_op_call *call) {
  const gb_in_index_add *in = GB_IN(call, index_add);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source, *y = GB_OUT(call, index_add)->y;
  index_walk w = { .call = call, .n = index->numel };
  w.dim = gb_wrap_dim(GB_ATTRS(call, index_add)->dim.integer, x->ndim);
  int64_t shape[GB_MAX_NDIM] = { 1 };
  memcpy(shape, x->shape, sizeof *shape * (size_t)x->ndim);
  shape[w.dim] = 1;
  GB_TRY(gb_check_index(call, index, gb_size_at(x, w.dim), "index"));
  GB_TRY(gb_sums_begin(call, y, x, &w.sums));
  if (y->ndim == 0) w.sums.strides[0] = 1;
  walk_strides(&w, 1, index), walk_strides(&w, 2, source);
  w.runs = gb_runs_of(x->ndim, shape, GB_TILE);
  w.runs.per_chunk = 1 + w.runs.per_chunk / (w.n + 1);
  w.runs.chunks = (w.runs.count + w.runs.per_chunk - 1) / w.runs.per_chunk;
  if (source->numel > 0 && w.dim >= x->ndim - 1) add_lines(&w);
  else if (source->numel > 0) gb_parallel(call, w.runs.chunks, index_add_chunk, &w);
  gb_sums_end(call, y, &w.sums);
  return GB_OK;
}

/* ====} */

/* {==== index_put ==== */

typedef struct put_job {
  gb_op_call *call;
  gb_runs index_runs, inner;          /* one index value each; the block x.shape[1:] */
  int64_t index_strides[GB_MAX_NDIM], source_strides[GB_MAX_NDIM]; /* source over index.shape x x.shape[1:] */
  int64_t *last;                      /* of each row that the index names: the last place that does */
} put_job;

/* Place i of the index: its row. */
static int64_t put_row(const put_job *job, int64_t i, int64_t *at) {
  const gb_tensor *index = GB_IN(job->call, index_put)->index;
  gb_run_at(&job->index_runs, i, at);
  return gb_index_value(gb_data(index), (gb_dtype)index->dtype,
                        gb_offset_at(job->index_runs.ndim, at, job->index_strides));
}

static void index_put_chunk(void *arg, int64_t chunk) {
  const put_job *job = arg;
  const gb_in_index_put *in = GB_IN(job->call, index_put);
  const gb_tensor *index = in->index, *source = in->source, *y = GB_OUT(job->call, index_put)->y;
  int64_t end, at[GB_MAX_NDIM], inner[GB_MAX_NDIM];
  int64_t to_bytes = (int64_t)bytes_of(y), from_bytes = (int64_t)bytes_of(source);
  const int64_t *inner_strides = job->source_strides + index->ndim;
  for (int64_t i = gb_chunk_runs(&job->index_runs, chunk, &end); i < end; i++) {
    int64_t row = put_row(job, i, at);
    if (job->last[row] != i) continue;
    char *to = gb_data(y) + row * y->stride[0] * to_bytes;
    const char *from = gb_data(source) + gb_offset_at(index->ndim, at, job->source_strides) * from_bytes;
    for (int64_t run = 0; run < job->inner.count && !gb_work(job->inner.length); run++) {
      int64_t n = gb_run_at(&job->inner, run, inner), last = y->ndim - 1;
      gb_copy_run(to + gb_offset_at(y->ndim - 1, inner, y->stride + 1) * to_bytes, (gb_dtype)y->dtype,
                  last ? y->stride[last] : 1, from + gb_offset_at(y->ndim - 1, inner, inner_strides) * from_bytes,
                  (gb_dtype)source->dtype, last ? inner_strides[last - 1] : 1, n);
    }
  }
}

/* Rows of one element each, in the order of the index, so that the last one stays. */
static void put_elements(const put_job *job) {
  const gb_in_index_put *in = GB_IN(job->call, index_put);
  const gb_tensor *index = in->index, *source = in->source, *y = GB_OUT(job->call, index_put)->y;
  const int64_t bytes = (int64_t)bytes_of(y), step = y->stride[0] * bytes;
  int64_t at[GB_MAX_NDIM] = { 0 };
  for (int64_t i = 0; i < index->numel && !gb_work(FAR); i++, gb_next_at(index->ndim, index->shape, at)) {
    int64_t row = gb_index_value(gb_data(index), (gb_dtype)index->dtype,
                                 gb_offset_at(index->ndim, at, job->index_strides));
    gb_copy_element(gb_data(y) + row * step,
                    gb_data(source) + gb_offset_at(index->ndim, at, job->source_strides) * bytes, (size_t)bytes);
  }
}

static gb_status index_put(gb_op_call *call) {
  const gb_in_index_put *in = GB_IN(call, index_put);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source, *y = GB_OUT(call, index_put)->y;
  put_job job = { .call = call };
  int64_t picked[GB_MAX_NDIM], at[GB_MAX_NDIM], block = x->shape[0] ? x->numel / x->shape[0] : 0;
  GB_TRY(gb_check_index(call, index, x->shape[0], "index"));
  gb_copy_values(call, y, x);
  if (index->numel == 0 || block == 0) return GB_OK;
  memcpy(picked, index->shape, sizeof picked);
  memcpy(picked + index->ndim, x->shape + 1, (size_t)(x->ndim - 1) * sizeof *picked);
  gb_broadcast_strides(index, index->ndim, index->shape, job.index_strides);
  gb_broadcast_strides(source, index->ndim + x->ndim - 1, picked, job.source_strides);
  if (block == 1 && source->dtype == y->dtype) {
    put_elements(&job);
    return GB_OK;
  }
  gb_block *scratch = gb_cpu_scratch(call, (size_t)x->shape[0] * sizeof *job.last);
  if (!scratch) return GB_EMEMORY;
  job.last = gb_block_data(scratch);
  job.index_runs = rows_of_index(index, block);
  job.inner = gb_runs_of(x->ndim - 1, x->shape + 1, GB_CHUNK_ELEMENTS);
  for (int64_t i = 0; i < index->numel && !gb_work(FAR); i++) job.last[put_row(&job, i, at)] = i;
  gb_parallel(call, job.index_runs.chunks, index_put_chunk, &job);
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

/* ====} */

/* {==== masked_select, masked_scatter, nonzero: count per chunk, then each chunk knows where it starts ==== */

typedef struct mask_job {
  gb_op_call *call;
  const gb_tensor *mask;
  gb_runs runs;                       /* of the joint shape, a tile each */
  int64_t mask_strides[GB_MAX_NDIM], x_strides[GB_MAX_NDIM];
  int64_t *start;                     /* of each chunk, in true elements */
} mask_job;

/* The flags of one run. */
static int64_t run_flags(const mask_job *job, int64_t run, int64_t *at, uint8_t *flags) {
  int64_t n = gb_run_at(&job->runs, run, at);
  gb_nonzero_run(flags, gb_data(job->mask) + gb_offset_at(job->runs.ndim, at, job->mask_strides) *
                 (int64_t)bytes_of(job->mask),
                 (gb_dtype)job->mask->dtype, job->mask_strides[job->runs.ndim - 1], n);
  return n;
}

static void count_chunk(void *arg, int64_t chunk) {
  const mask_job *job = arg;
  uint8_t flags[GB_TILE];
  int64_t end, at[GB_MAX_NDIM], count = 0;
  for (int64_t run = gb_chunk_runs(&job->runs, chunk, &end); run < end; run++) {
    int64_t n = run_flags(job, run, at, flags);
    for (int64_t i = 0; i < n; i++) count += flags[i];
  }
  job->start[chunk] = count;
}

/* Count what is true in a mask seen over a shape; *scratch keeps the chunks' starts. */
static gb_status mask_begin(mask_job *job, const gb_tensor *mask, int ndim, const int64_t *shape, gb_block **scratch,
                            int64_t *total) {
  job->mask = mask;
  job->runs = gb_runs_of(ndim, shape, GB_TILE);
  gb_broadcast_strides(mask, ndim, shape, job->mask_strides);
  *total = 0;
  *scratch = gb_cpu_scratch(job->call, (size_t)job->runs.chunks * sizeof *job->start);
  if (!*scratch) return GB_EMEMORY;
  job->start = gb_block_data(*scratch);
  if (job->runs.count > 0) gb_parallel(job->call, job->runs.chunks, count_chunk, job);
  for (int64_t c = 0; c < job->runs.chunks && !gb_was_stopped(job->call) && !gb_long_loop(c); c++) {
    int64_t count = job->start[c];
    job->start[c] = *total;
    *total += count;
  }
  return GB_OK;
}

/* The number of true elements was counted by the check too; a mask that another thread changed since is an error. */
static gb_status require_count(gb_op_call *call, int64_t total, int64_t expected) {
  return total == expected ? GB_OK : gb_call_fail(call, GB_ESTATE, "the input changed while it was read");
}

static void masked_select_chunk(void *arg, int64_t chunk) {
  const mask_job *job = arg;
  const gb_tensor *x = GB_IN(job->call, masked_select)->x, *y = GB_OUT(job->call, masked_select)->y;
  uint8_t flags[GB_TILE];
  size_t bytes = bytes_of(x);
  int64_t end, at[GB_MAX_NDIM], stride = job->x_strides[job->runs.ndim - 1] * (int64_t)bytes;
  char *to = gb_data(y) + job->start[chunk] * (int64_t)bytes;
  for (int64_t run = gb_chunk_runs(&job->runs, chunk, &end); run < end; run++) {
    int64_t n = run_flags(job, run, at, flags);
    const char *from = gb_data(x) + gb_offset_at(job->runs.ndim, at, job->x_strides) * (int64_t)bytes;
    for (int64_t i = 0; i < n; i++) {
      if (!flags[i]) continue;
      gb_copy_element(to, from + i * stride, bytes);
      to += bytes;
    }
  }
}

static gb_status masked_select(gb_op_call *call) {
  const gb_in_masked_select *in = GB_IN(call, masked_select);
  const gb_tensor *x = in->x, *mask = in->mask;
  int64_t shape[GB_MAX_NDIM], total;
  int ndim = x->ndim;
  memcpy(shape, x->shape, sizeof shape);
  gb_broadcast(&ndim, shape, mask->ndim, mask->shape);
  mask_job job = { .call = call };
  gb_block *scratch;
  GB_TRY(mask_begin(&job, mask, ndim, shape, &scratch, &total));
  gb_broadcast_strides(x, ndim, shape, job.x_strides);
  gb_status status = require_count(call, total, GB_OUT(call, masked_select)->y->numel);
  if (status == GB_OK && total > 0) gb_parallel(call, job.runs.chunks, masked_select_chunk, &job);
  gb_cpu_scratch_free(call, scratch);
  return status;
}

/* Element number i of a tensor in row-major order, as a position. */
static void position_of(const gb_tensor *t, int64_t i, int64_t *at) {
  for (int d = t->ndim - 1; d >= 0; d--) {
    at[d] = i % t->shape[d];
    i /= t->shape[d];
  }
}

static void masked_scatter_chunk(void *arg, int64_t chunk) {
  const mask_job *job = arg;
  const gb_tensor *source = GB_IN(job->call, masked_scatter)->source, *y = GB_OUT(job->call, masked_scatter)->y;
  uint8_t flags[GB_TILE];
  int64_t end, at[GB_MAX_NDIM], next[GB_MAX_NDIM], to_bytes = (int64_t)bytes_of(y),
      from_bytes = (int64_t)bytes_of(source);
  int64_t stride = job->x_strides[job->runs.ndim - 1] * to_bytes;
  position_of(source, job->start[chunk], next);
  for (int64_t run = gb_chunk_runs(&job->runs, chunk, &end); run < end; run++) {
    int64_t n = run_flags(job, run, at, flags);
    char *to = gb_data(y) + gb_offset_at(job->runs.ndim, at, job->x_strides) * to_bytes;
    for (int64_t i = 0; i < n; i++) {
      if (!flags[i]) continue;
      gb_copy_run(to + i * stride, (gb_dtype)y->dtype, 1,
                  gb_data(source) + gb_offset_at(source->ndim, next, source->stride) * from_bytes,
                  (gb_dtype)source->dtype, 1, 1);
      gb_next_at(source->ndim, source->shape, next);
    }
  }
}

static gb_status masked_scatter(gb_op_call *call) {
  const gb_in_masked_scatter *in = GB_IN(call, masked_scatter);
  const gb_tensor *x = in->x, *mask = in->mask, *source = in->source, *y = GB_OUT(call, masked_scatter)->y;
  mask_job job = { .call = call };
  gb_block *scratch;
  int64_t total;
  GB_TRY(mask_begin(&job, mask, x->ndim, x->shape, &scratch, &total));
  gb_broadcast_strides(y, y->ndim, y->shape, job.x_strides);
  gb_status status = GB_OK;
  if (total > source->numel)
    status = gb_call_fail(call, GB_ESHAPE, "mask has %lld true elements, source only %lld values for them",
                          (long long)total,
                          (long long)source->numel);
  else gb_copy_values(call, y, x);
  if (status == GB_OK && total > 0) gb_parallel(call, job.runs.chunks, masked_scatter_chunk, &job);
  gb_cpu_scratch_free(call, scratch);
  return status;
}

static void nonzero_chunk(void *arg, int64_t chunk) {
  const mask_job *job = arg;
  int64_t end, at[GB_MAX_NDIM], ndim = job->mask->ndim, last = job->runs.ndim - 1;
  int64_t *to = (int64_t *)gb_data(GB_OUT(job->call, nonzero)->y) + job->start[chunk] * ndim;
  uint8_t flags[GB_TILE];
  for (int64_t run = gb_chunk_runs(&job->runs, chunk, &end); run < end; run++) {
    int64_t n = run_flags(job, run, at, flags), place[GB_TILE], count = 0;
    if (ndim == 1) { /* without a branch for each element */
      for (int64_t i = 0; i < n; i++) place[count] = at[last] + i, count += flags[i];
      memcpy(to, place, (size_t)count * sizeof *to);
      to += count;
      continue;
    }
    for (int64_t i = 0; i < n; i++, at[last]++) {
      if (!flags[i]) continue;
      memcpy(to, at, (size_t)ndim * sizeof *to);
      to += ndim;
    }
  }
}

static gb_status nonzero(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, nonzero)->x;
  mask_job job = { .call = call };
  gb_block *scratch;
  int64_t total;
  GB_TRY(mask_begin(&job, x, x->ndim, x->shape, &scratch, &total));
  const gb_tensor *y = GB_OUT(call, nonzero)->y;
  gb_status status = require_count(call, total, y->shape[0]);
  if (status == GB_OK && y->numel > 0) gb_parallel(call, job.runs.chunks, nonzero_chunk, &job);
  gb_cpu_scratch_free(call, scratch);
  return status;
}

/* ====} */

static void one_hot_chunk(void *arg, int64_t chunk) {
  const index_walk *w = arg;
  const gb_tensor *x = GB_IN(w->call, one_hot)->x;
  int64_t end, at[GB_MAX_NDIM], classes = w->n, *y = (int64_t *)gb_data(GB_OUT(w->call, one_hot)->y);
  for (int64_t run = gb_chunk_runs(&w->runs, chunk, &end); run < end; run++) {
    gb_run_at(&w->runs, run, at);
    gb_clear_bytes(y + run * classes, (size_t)classes * sizeof *y);
    y[run * classes + gb_index_value(gb_data(x), (gb_dtype)x->dtype, gb_offset_at(w->runs.ndim, at, w->stride[1]))] = 1;
  }
}

static gb_status one_hot(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, one_hot)->x;
  int64_t classes = GB_ATTRS(call, one_hot)->classes.integer;
  GB_TRY(gb_check_index(call, x, classes, "index"));
  index_walk w = { .call = call, .n = classes, .runs = rows_of_index(x, classes) };
  gb_broadcast_strides(x, x->ndim, x->shape, w.stride[1]);
  if (x->numel > 0) gb_parallel(call, w.runs.chunks, one_hot_chunk, &w);
  return GB_OK;
}

void GB_CPU_FILL(index)(gb_backend *backend);
void GB_CPU_FILL(index)(gb_backend *backend) {
  static const struct { gb_op op; gb_kernel kernel; } table[] = {
    { GB_OP_embedding, embedding }, { GB_OP_embedding_backward, embedding_backward },
        { GB_OP_embedding_sum, embedding_sum }, { GB_OP_gather, gather }, { GB_OP_scatter_add, scatter_add },
    { GB_OP_index_select, index_select }, { GB_OP_index_add, index_add }, { GB_OP_index_put, index_put },
        { GB_OP_masked_select, masked_select },
    { GB_OP_masked_scatter, masked_scatter }, { GB_OP_nonzero, nonzero }, { GB_OP_one_hot, one_hot },
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) backend->run[table[i].op] = table[i].kernel;
}
