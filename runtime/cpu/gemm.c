/* cpu/gemm.c - matrix products over batches: cut into tiles for threads, bias and activation in the epilogue, one
 * rounding.
 *
 * A product is cut into tiles of c by its shape alone, so any number of threads gives the same bits. k is not split
 * between chunks, so that rows of c do not depend on those beside them; only where k counts the rows of a batch it may
 * be, in slices that are summed by themselves and added up in order. Operands are widened (exactly) where
 * cpu/gemm_kernel.c packs them, or multiplied as they are by cpu/gemm_bf16.c. A small b that several tiles share is
 * packed before them, in parallel. Lanes of a float32 or float64 result are summed in place; those of a 16-bit result
 * in registers if k is short, else in scratch, and rounded once, after the bias and the activation. Traffic: each
 * operand panel is read once per tile that uses it, each result written once; 2 m n k operations. */
#include "cpu/gemm.h"

#include <string.h>

#include "base/functions.h"

/* Chunks that make enough work for every thread of a small machine, and operations below which a chunk is not worth
 * waking a thread: of the float32 kernels, and of a unit for 16-bit operands, to which packing costs more than
 * multiplying. */
#define WANTED_CHUNKS 8
#define LEAST_OPERATIONS 2e6
#define LEAST_UNIT_OPERATIONS 8e6

/* Columns of b that are packed by one chunk where b is packed before the tiles, and the most that b may take then: a
 * part of a core's cache. */
#define PACKED_COLUMNS 32
#define MOST_PACKED_BYTES ((size_t)1 << 21)

/* Results that are few enough to be summed over slices of k, and the least k that is cut; rows of them that one chunk
 * adds up. */
#define SLICED_RESULTS ((int64_t)1 << 18)
#define SLICED_DEPTH 2048
#define ADDED_ROWS 16

/* A product and how it is cut. */
typedef struct gemm_plan {
  const gb_product *p;
  gb_lane lane;
  gb_product_how how;
  bool staged;                         /* summed in scratch, then rounded into c; else the product writes c as it is */
  int64_t mt, nt, down, across;        /* tiles of c: their size, at most one block, and number */
  int64_t slices, depth;               /* of k, each summed by itself, and their length; 1 slice: the whole */
  int64_t batches, per_chunk;
  size_t product_bytes, sum_bytes;     /* scratch of one thread: of the product, and for sums */
  char *scratch, *packed;              /* packed: the whole of b, before the first tile; or NULL */
  char *parts;                         /* sums of slices, m x n lanes each */
  gb_threads *threads;
} gemm_plan;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
static char *at(const void *data, gb_dtype dtype, int64_t element) { return (char *)data + element *
                                                                     (int64_t)gb_dtype_bytes(dtype); }

/* {==== epilogue ==== */

/* Replace n numbers by an activation of them. */
#define EACH(NAME, name, type) \
  case GB_ACTIVATION_##NAME: for (int64_t i = 0; i < n; i++) v[i] = gb_##name##_##type(v[i]); break;
#define EACH_F32(NAME, name) EACH(NAME, name, f32)
#define EACH_F64(NAME, name) EACH(NAME, name, f64)
static void activate_f32(float *v, int64_t n, gb_activation activation) {
  switch (activation) {
    GB_ACTIVATIONS(EACH_F32)
    default: break;
  }
}

static void activate_f64(double *v, int64_t n, gb_activation activation) {
  switch (activation) {
    GB_ACTIVATIONS(EACH_F64)
    default: break;
  }
}

static void activate(gb_lane lane, void *v, int64_t n, gb_activation activation) {
  if (lane == GB_LANE_F32) activate_f32(v, n, activation);
  else activate_f64(v, n, activation);
}

/* n sums of one row of c, from its element on: + bias, keep, activate, round. */
static void finish_row(const gemm_plan *plan, char *sums, const void *bias, int64_t element, int64_t n) {
  const gb_product *p = plan->p;
  const gb_epilogue *e = &p->epilogue;
  if (e->bias) gb_row_add(plan->lane, sums, bias, n, 1);
  if (p->add) gb_row_add(plan->lane, sums, at(p->c, p->dtype, element), n, 1);
  if (e->pre) gb_lane_store(plan->lane, at(e->pre, p->dtype, element), p->dtype, 1, sums, n);
  if (e->activation != GB_ACTIVATION_NONE) activate(plan->lane, sums, n, e->activation);
  if (plan->staged) gb_lane_store(plan->lane, at(p->c, p->dtype, element), p->dtype, 1, sums, n);
}

/* A block of sums whose first is `element` of the whole result, in column `column` of its matrix. A single column that
 * lies side by side goes as rows of its length. */
static void finish(const gemm_plan *plan, char *sums, int64_t ld, int64_t column, int64_t element, int64_t m,
                   int64_t n) {
  const gb_product *p = plan->p;
  const gb_epilogue *e = &p->epilogue;
  const bool upright = n == 1 && ld == 1 && p->ldc == 1;
  union { float f32[GB_BLOCK_N]; double f64[GB_BLOCK_N]; } bias;
  if (e->bias)
    gb_lane_load(plan->lane, &bias, at(e->bias, e->bias_dtype, column * e->bias_stride), e->bias_dtype,
                 upright ? 0 : e->bias_stride, upright ? least(m, GB_BLOCK_N) : n);
  const int64_t rows = upright ? GB_BLOCK_N : 1, size = (int64_t)gb_lane_bytes(plan->lane);
  for (int64_t i = 0; i < m; i += rows)
    finish_row(plan, sums + i * ld * size, &bias, element + i * p->ldc, upright ? least(GB_BLOCK_N, m - i) : n);
}

static bool has_epilogue(const gb_product *p) { return p->epilogue.bias || p->epilogue.pre ||
                                                p->epilogue.activation != GB_ACTIVATION_NONE; }

/* ====} */

/* {==== plans ==== */

/* Could the whole of b be packed before the tiles, instead of by each tile its own part? For a unit only bfloat16 can,
 * which is not split into two parts. */
static bool could_pack_once(const gemm_plan *plan) {
  const gb_product *p = plan->p;
  if (plan->how.unit != GB_UNIT_NONE && (p->a.dtype != GB_BFLOAT16 || p->b.dtype != GB_BFLOAT16)) return false;
  if (plan->batches > 1 || p->m == 1 || p->n == 1 || p->k == 0) return false;
  return gb_packed_bytes(plan->how, plan->lane, p->n, p->k) <= MOST_PACKED_BYTES;
}

/* The size of parts of `whole`, a multiple of `unit` and at most a block: about that, but so that no 1 is left, which
 * would be a vector's and summed in another order. */
static int64_t part_of(int64_t whole, int64_t about, int64_t unit, int64_t block) {
  int64_t part = round_up(divide_up(whole, divide_up(whole, about)), unit);
  if (part >= whole) return whole;
  for (int64_t other = part; other <= block; other += unit) if (whole % other != 1) return least(whole, other);
  for (int64_t other = part; other >= unit; other -= unit) if (whole % other != 1) return other;
  return part;
}

/* Tiles of c: about as many as there are threads to feed, none too small to pay for a thread; or, where one matrix is
 * too small, several of the batch to a chunk. Sizes are multiples of what the kernels hold in registers. */
static void choose_tiles(gemm_plan *plan) {
  const gb_product *p = plan->p;
  bool by_unit = plan->how.unit != GB_UNIT_NONE;
  double row = 2.0 * (double)(p->k > 0 ? p->k : 1), enough = by_unit ? LEAST_UNIT_OPERATIONS : LEAST_OPERATIONS;
  int64_t rows = by_unit ? 32 : 12;
  bool once = could_pack_once(plan);
  int64_t m = least(p->m, GB_BLOCK_M), n = least(p->n, GB_BLOCK_N);
  while (divide_up(p->m, m) * divide_up(p->n, n) * plan->batches < WANTED_CHUNKS &&
         row * (double)m * (double)n >= 2 * enough) {
    if (m > 2 * rows && (m > n || n <= 64 || (once && m > 96 && p->m > 128))) m = round_up(m / 2, rows);
    else if (n > 64) n = round_up(n / 2, 32);
    else break;
  }
  plan->mt = part_of(p->m, m, rows, GB_BLOCK_M);
  plan->nt = part_of(p->n, n, 32, GB_BLOCK_N);
  plan->down = divide_up(p->m, plan->mt);
  plan->across = divide_up(p->n, plan->nt);
  double operations = row * (double)p->m * (double)p->n;
  plan->per_chunk = plan->down * plan->across == 1 && operations < enough ? (int64_t)(enough / operations) + 1 : 1;
}

/* Where results are few and k is long, as of the gradient of a weight, k is cut instead: each tile of c would bring in
 * strips of rows that it shares with other tiles, and pack them again. */
static void choose_slices(gemm_plan *plan) {
  const gb_product *p = plan->p;
  plan->slices = 1;
  if (!p->over_rows || plan->batches > 1 || p->m == 1 || p->n == 1) return;
  if (p->m * p->n > SLICED_RESULTS || p->k < SLICED_DEPTH || p->k < 4 * p->m || p->k < 4 * p->n) return;
  plan->depth = round_up(divide_up(p->k, WANTED_CHUNKS), 32);
  plan->slices = divide_up(p->k, plan->depth);
}

/* Sums of 16-bit results wait in scratch for the rest of k or the epilogue; those that need neither are rounded in the
 * kernel. So do sums that are added to c. */
static bool is_staged(const gb_product *p) {
  if (p->add) return true;
  return gb_is_16bit(p->dtype) && (p->k > GB_BLOCK_K || has_epilogue(p) || p->m == 1 || p->n == 1);
}

/* A product in tiles of at most m x n. */
static gemm_plan plan_of(const gb_op_call *call, const gb_product *p, int64_t m, int64_t n) {
  gemm_plan plan = { .p = p, .lane = p->dtype == GB_FLOAT64 ? GB_LANE_F64 : GB_LANE_F32, .staged = is_staged(p),
                     .batches = 1 };
  plan.how = gb_product_how_of(call->context);
  /* and no scratch for it */
  if (plan.lane != GB_LANE_F32 || !gb_unit_takes(plan.how, p->a.dtype, p->b.dtype)) plan.how.unit = GB_UNIT_NONE;
  plan.mt = m, plan.nt = n;
  for (int i = 0; i < p->batch_ndim; i++) plan.batches *= p->batch[i];
  return plan;
}

static size_t scratch_bytes(gemm_plan *plan) {
  plan->product_bytes = (gb_block_product_scratch(plan->how, plan->lane, plan->mt, plan->nt, plan->p->k) + 255) / 256 *
      256;
  plan->sum_bytes = plan->staged ? (size_t)round_up(plan->mt * plan->nt * (int64_t)gb_lane_bytes(plan->lane), 256) : 0;
  return plan->product_bytes + plan->sum_bytes;
}

/* ====} */

/* {==== running ==== */

/* m x n of c at (row, column) of the result that begins at element c: a tile. */
static void run_tile(const gemm_plan *plan, gb_matrix a, gb_matrix b, int64_t c, int64_t row, int64_t column,
                     char *scratch) {
  const gb_product *p = plan->p;
  int64_t m = least(plan->mt, p->m - row), n = least(plan->nt, p->n - column), element = c + row * p->ldc + column;
  char *sums = plan->staged ? scratch + plan->product_bytes : at(p->c, p->dtype, element);
  int64_t ld = plan->staged ? n : p->ldc;
  a.data = at(a.data, a.dtype, row * a.row_stride);
  b.data = at(b.data, b.dtype, column * b.column_stride);
  gb_packed packed = { plan->packed, gb_packed_columns(plan->how, plan->lane, p->n), column };
  gb_block_product(plan->how, plan->lane, m, n, p->k, 1, &a, &b, plan->packed ? &packed : NULL,
                   plan->staged ? 0 : (double)p->beta, sums, ld,
                   plan->staged ? gb_lane_dtype(plan->lane) : p->dtype, scratch);
  if (plan->staged || has_epilogue(p)) finish(plan, sums, ld, column, element, m, n);
}

/* The operands of result i of the batch. */
static void find_operands(const gb_product *p, int64_t i, gb_matrix *a, gb_matrix *b) {
  int64_t a_offset = 0, b_offset = 0;
  for (int d = p->batch_ndim - 1; d >= 0; d--, i /= p->batch[d + 1]) {
    a_offset += i % p->batch[d] * p->a_stride[d];
    b_offset += i % p->batch[d] * p->b_stride[d];
  }
  *a = p->a, *b = p->b;
  a->data = at(a->data, a->dtype, a_offset);
  b->data = at(b->data, b->dtype, b_offset);
}

static char *scratch_of_thread(const gemm_plan *plan) {
  return plan->scratch + (size_t)gb_threads_current(plan->threads) * (plan->product_bytes + plan->sum_bytes);
}

/* Chunk: some columns of b, packed. */
static void pack_chunk(void *arg, int64_t chunk) {
  const gemm_plan *plan = arg;
  const gb_product *p = plan->p;
  int64_t first = chunk * PACKED_COLUMNS;
  gb_pack_columns(plan->how, plan->lane, first, least(PACKED_COLUMNS, p->n - first), p->k, &p->b,
                  gb_packed_columns(plan->how, plan->lane, p->n), plan->packed,
                  scratch_of_thread(plan));
}

/* Chunk: one slice of k, all of c. */
static void run_slice(void *arg, int64_t slice) {
  const gemm_plan *plan = arg;
  const gb_product *p = plan->p;
  int64_t first = slice * plan->depth;
  gb_matrix a = p->a, b = p->b;
  a.data = at(a.data, a.dtype, first * a.column_stride);
  b.data = at(b.data, b.dtype, first * b.row_stride);
  gb_block_product(plan->how, plan->lane, p->m, p->n, least(plan->depth, p->k - first), 1, &a, &b, NULL, 0,
                   plan->parts + (size_t)(slice * p->m * p->n) * gb_lane_bytes(plan->lane), p->n,
                   gb_lane_dtype(plan->lane), scratch_of_thread(plan));
}

/* Chunk: some rows of c, from the sums of all slices. */
static void add_slices(void *arg, int64_t chunk) {
  const gemm_plan *plan = arg;
  const gb_product *p = plan->p;
  int64_t row = chunk * ADDED_ROWS, rows = least(ADDED_ROWS, p->m - row);
  size_t bytes = gb_lane_bytes(plan->lane), apart = (size_t)(p->m * p->n) * bytes;
  char *sums = plan->parts + (size_t)(row * p->n) * bytes;
  for (int64_t i = 1; i < plan->slices && !gb_work(rows * p->n); i++)
    gb_row_add(plan->lane, sums, sums + (size_t)i * apart, rows * p->n, 1);
  for (int64_t j = 0; j < p->n; j += GB_BLOCK_N)
    finish(plan, sums + (size_t)j * bytes, p->n, j, row * p->ldc + j, rows, least(GB_BLOCK_N, p->n - j));
}

/* A product of few results and a long k. */
static gb_status run_slices(gb_op_call *call, gemm_plan *plan) {
  const gb_product *p = plan->p;
  size_t parts = (size_t)round_up(plan->slices * p->m * p->n * (int64_t)gb_lane_bytes(plan->lane), 256);
  plan->product_bytes = (gb_block_product_scratch(plan->how, plan->lane, p->m, p->n, plan->depth) + 255) / 256 * 256;
  gb_block *scratch = gb_cpu_scratch(call, parts + plan->product_bytes * (size_t)gb_threads_count(plan->threads));
  if (!scratch) return GB_EMEMORY;
  plan->parts = gb_block_data(scratch);
  plan->scratch = plan->parts + parts;
  plan->staged = true;
  gb_parallel(call, plan->slices, run_slice, plan);
  gb_parallel(call, divide_up(p->m, ADDED_ROWS), add_slices, plan);
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

/* Chunk: one tile of one result, or a few whole small results. */
static void run_chunk(void *arg, int64_t chunk) {
  const gemm_plan *plan = arg;
  const gb_product *p = plan->p;
  int64_t tiles = plan->down * plan->across, tile = chunk % tiles, first = chunk / tiles * plan->per_chunk;
  char *scratch = scratch_of_thread(plan);
  gb_matrix a, b;
  for (int64_t i = first; i < least(first + plan->per_chunk, plan->batches); i++) {
    find_operands(p, i, &a, &b);
    run_tile(plan, a, b, i * p->m * p->ldc, tile / plan->across * plan->mt, tile % plan->across * plan->nt, scratch);
  }
}

gb_status gb_product_run(gb_op_call *call, const gb_product *product) {
  gemm_plan plan = plan_of(call, product, 0, 0);
  if (product->m == 0 || product->n == 0 || plan.batches == 0) return GB_OK;
  plan.threads = call->context->threads;
  choose_slices(&plan);
  if (plan.slices > 1) return run_slices(call, &plan);
  choose_tiles(&plan);
  bool once = plan.down > 1 && could_pack_once(&plan);
  size_t packed = once ? gb_packed_bytes(plan.how, plan.lane, product->n, product->k) : 0;
  size_t rooms = scratch_bytes(&plan) * (size_t)gb_threads_count(plan.threads);
  gb_block *scratch = gb_cpu_scratch(call, rooms + packed);
  if (!scratch) return GB_EMEMORY;
  plan.scratch = gb_block_data(scratch);
  if (packed > 0) {
    plan.packed = plan.scratch + rooms;
    gb_parallel(call, divide_up(product->n, PACKED_COLUMNS), pack_chunk, &plan);
  }
  gb_parallel(call, plan.down * plan.across * divide_up(plan.batches, plan.per_chunk), run_chunk, &plan);
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

/* Scratch comes straight from the pool: a chunk may run on any thread, where neither the error text may be written nor
 * memory reclaimed. */
gb_status GB_CPU_NAME(gemm)(gb_op_call *call, int64_t m, int64_t n, int64_t k, gb_matrix a, gb_matrix b, float beta,
                            void *c, int64_t ldc,
                            gb_dtype dtype) {
  gb_product product = { .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = ldc, .dtype = dtype, .beta = beta };
  gemm_plan plan = plan_of(call, &product, least(m, GB_BLOCK_M), least(n, GB_BLOCK_N));
  gb_block *scratch = gb_pool_alloc(call->context->pool[GB_CPU], scratch_bytes(&plan), GB_MEM_SCRATCH);
  if (!scratch) return GB_EMEMORY;
  for (int64_t column = 0; column < n; column += plan.nt)
    for (int64_t row = 0; row < m; row += plan.mt) run_tile(&plan, a, b, 0, row, column, gb_block_data(scratch));
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

/* ====} */
