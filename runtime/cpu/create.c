/* cpu/create.c - kernels that fill tensors, draw random numbers, and copy between dtypes and layouts.
 *
 * Random numbers depend on (seed, offset, logical element) alone; what is made of them stands in base/random.h. This
 * file is compiled without fused multiply-adds, so that they are the same bits at every level.
 * A copy moves its bytes once in and once out. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "cpu/tile.h"

/* {==== fill ==== */

/* Run a loop over the result alone, in row-major order. */
static gb_status run_fill(gb_op_call *call, gb_tile_job *job, gb_tile_loop loop, gb_tile_as as, int64_t cost) {
  job->loop = loop;
  job->seed = call->rng_seed;
  job->offset = call->rng_offset;
  gb_tiles_plan(&job->tiles, call->out, 1, &as, true, cost);
  gb_tiles_run(call, job);
  return GB_OK;
}

static void fill_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  float value = job->number.f32[0];
  (void)in;
  for (int64_t i = 0; i < place->n; i++) ((float *)out)[i] = value;
}

static void fill_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  double value = job->number.f64[0];
  (void)in;
  for (int64_t i = 0; i < place->n; i++) ((double *)out)[i] = value;
}

static void fill_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  int64_t value = job->number.i64[0];
  (void)in;
  for (int64_t i = 0; i < place->n; i++) ((int64_t *)out)[i] = value;
}

/* A bool is filled through float64, since 0.5 is true. */
static gb_status fill(gb_op_call *call) {
  static const gb_tile_loop loops[] = { fill_f32, fill_f64, fill_i64 };
  gb_dtype dtype = (gb_dtype)GB_OUT(call, fill)->y->dtype;
  gb_tile_as as = dtype == GB_BOOL ? GB_AS_F64 : gb_tile_as_of(dtype);
  gb_tile_job job;
  gb_tile_attr(&job, 0, &GB_ATTRS(call, fill)->value);
  return run_fill(call, &job, loops[as], as, 1);
}

/* In float64, rounded once. */
static void sequence_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  double start = job->number.f64[0], step = job->number.f64[1];
  (void)in;
  for (int64_t i = 0; i < place->n; i++) ((double *)out)[i] = start + (double)(place->first + i) * step;
}

static void sequence_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint64_t start = (uint64_t)job->number.i64[0], step = (uint64_t)job->number.i64[1];
  (void)in;
  for (int64_t i = 0; i < place->n; i++) ((int64_t *)out)[i] = (int64_t)(start + (uint64_t)(place->first + i) * step);
}

static gb_status sequence(gb_op_call *call) {
  gb_tile_job job;
  const gb_attr *start = &GB_ATTRS(call, sequence)->start, *step = &GB_ATTRS(call, sequence)->step;
  bool floats = gb_dtype_is_float((gb_dtype)GB_OUT(call, sequence)->y->dtype);
  bool whole = !floats && start->number == floor(start->number) && step->number == floor(step->number);
  gb_tile_attr(&job, 0, start);
  gb_tile_attr(&job, 1, step);
  return run_fill(call, &job, whole ? sequence_i64 : sequence_f64, whole ? GB_AS_I64 : GB_AS_F64, 1);
}

/* ====} */

/* {==== random numbers ==== */

/* As the dtype stores them. */
static void uniform_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  float low = job->number.f32[0], high = job->number.f32[1], *y = out;
  gb_dtype dtype = job->tiles.operand[0].dtype;
  int digits = gb_format_of(dtype)->digits;
  (void)in;
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_uniform_f32(words[i], digits, low, high);
  if (dtype != GB_FLOAT32) { /* the words are no longer needed: their room holds the rounded numbers */
    gb_store_f32(words, dtype, 1, y, place->n);
    gb_load_f32(y, words, dtype, 1, place->n);
  }
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_below_f32(y[i], low, high);
}

static void uniform_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[2 * GB_TILE];
  double low = job->number.f64[0], high = job->number.f64[1], *y = out;
  (void)in;
  gb_random_words(words, job->seed, job->offset, 2 * place->first, 2 * place->n);
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_uniform_f64(words + 2 * i, low, high);
}

static gb_status uniform(gb_op_call *call) {
  gb_tile_job job;
  bool wide = GB_OUT(call, uniform)->y->dtype == GB_FLOAT64;
  gb_tile_number(&job, 0, GB_ATTRS(call, uniform)->low.number);
  gb_tile_number(&job, 1, GB_ATTRS(call, uniform)->high.number);
  return run_fill(call, &job, wide ? uniform_f64 : uniform_f32, wide ? GB_AS_F64 : GB_AS_F32, 4);
}

/* Elements 2k and 2k + 1 are the two normals made of words 2k and 2k + 1. */
static void normal_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE + 2];
  float pairs[GB_TILE + 2], mean = job->number.f32[0], std = job->number.f32[1];
  int64_t skip = place->first % 2, count = (skip + place->n + 1) / 2;
  (void)in;
  gb_random_words(words, job->seed, job->offset, place->first - skip, 2 * count);
#pragma omp simd
  for (int64_t k = 0; k < count; k++) gb_normal_pair_f32(words + 2 * k, mean, std, pairs + 2 * k);
  memcpy(out, pairs + skip, (size_t)place->n * sizeof *pairs);
}

/* As above in float64, from four words for a pair. */
static void normal_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[2 * GB_TILE + 4];
  double pairs[GB_TILE + 2], mean = job->number.f64[0], std = job->number.f64[1];
  int64_t skip = place->first % 2, count = (skip + place->n + 1) / 2;
  (void)in;
  gb_random_words(words, job->seed, job->offset, 2 * (place->first - skip), 4 * count);
  for (int64_t k = 0; k < count; k++) gb_normal_pair_f64(words + 4 * k, mean, std, pairs + 2 * k);
  memcpy(out, pairs + skip, (size_t)place->n * sizeof *pairs);
}

static gb_status normal(gb_op_call *call) {
  gb_tile_job job;
  bool wide = GB_OUT(call, normal)->y->dtype == GB_FLOAT64;
  gb_tile_number(&job, 0, GB_ATTRS(call, normal)->mean.number);
  gb_tile_number(&job, 1, GB_ATTRS(call, normal)->std.number);
  return run_fill(call, &job, wide ? normal_f64 : normal_f32, wide ? GB_AS_F64 : GB_AS_F32, 8);
}

static void random_integers_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[2 * GB_TILE];
  uint64_t low = (uint64_t)job->number.i64[0], range = (uint64_t)job->number.i64[1] - low;
  (void)in;
  gb_random_words(words, job->seed, job->offset, 2 * place->first, 2 * place->n);
  for (int64_t i = 0; i < place->n; i++) ((int64_t *)out)[i] = (int64_t)(low + gb_random_below(words + 2 * i, range));
}

static gb_status random_integers(gb_op_call *call) {
  gb_tile_job job;
  job.number.i64[0] = GB_ATTRS(call, random_integers)->low.integer;
  job.number.i64[1] = GB_ATTRS(call, random_integers)->high.integer;
  return run_fill(call, &job, random_integers_i64, GB_AS_I64, 4);
}

/* Fisher and Yates, from the inside out: element i goes to a place j <= i, what was there moves to i. */
static gb_status permutation(gb_op_call *call) {
  gb_tensor *out = GB_OUT(call, permutation)->y;
  int64_t *p = (int64_t *)(void *)gb_data(out), stride = out->stride[0];
  uint32_t words[2 * GB_TILE];
  for (int64_t i = 0; i < out->numel; i++) {
    int64_t k = i % GB_TILE, left = out->numel - i;
    if (k == 0 && gb_work(8 * GB_TILE)) break; /* places are far apart */
    if (k == 0) gb_random_words(words, call->rng_seed, call->rng_offset, 2 * i, 2 * (left < GB_TILE ? left : GB_TILE));
    int64_t j = (int64_t)gb_random_below(words + 2 * k, (uint64_t)i + 1);
    p[i * stride] = p[j * stride];
    p[j * stride] = i;
  }
  return GB_OK;
}

static void bernoulli_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  const double *p = in[0];
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
  for (int64_t i = 0; i < place->n; i++) {
    if (!gb_is_probability(p[i])) atomic_store_explicit(job->bad, true, memory_order_relaxed);
    ((double *)out)[i] = gb_bernoulli(words[i], p[i]);
  }
}

static gb_status bernoulli(gb_op_call *call) {
  static const gb_tile_as as[] = { GB_AS_F64, GB_AS_F64 };
  gb_tile_job job = { .loop = bernoulli_f64, .seed = call->rng_seed, .offset = call->rng_offset };
  atomic_bool bad;
  atomic_init(&bad, false);
  job.bad = &bad;
  gb_tiles_plan(&job.tiles, (gb_tensor *[]){ GB_OUT(call, bernoulli)->y, GB_IN(call, bernoulli)->x }, 2, as, true, 8);
  gb_tiles_run(call, &job);
  return atomic_load(&bad) ? gb_call_fail(call, GB_EINVAL, "probabilities must be 0 to 1") : GB_OK;
}

/* {---- multinomial: weights at the leaves of a tree of sums, so that a draw and a removal take log(n) steps ---- */

/* Fill the tree (2 * size numbers, the root at 1) with one row of weights; gives how many are not 0, or -1 where one is
 * no weight. */
static int64_t plant(double *tree, int64_t size, const char *weights, gb_dtype dtype, int64_t stride, int64_t n) {
  int64_t positive = 0, bytes = (int64_t)gb_dtype_bytes(dtype);
  for GB_PIECES(at, m, n) gb_load_f64(tree + size + at, weights + at * stride * bytes, dtype, stride, m);
  gb_clear_bytes(tree + size + n, (size_t)(size - n) * sizeof *tree);
  for (int64_t i = size; i < size + n && !gb_long_loop(i); i++) {
    if (!(tree[i] >= 0 && tree[i] < INFINITY)) return -1;
    positive += tree[i] > 0;
  }
  for (int64_t i = size - 1; i > 0 && !gb_long_loop(i); i--) tree[i] = tree[2 * i] + tree[2 * i + 1];
  return positive;
}

/* Of one draw, towards a piece: a way down a tree that lies all over memory. */
enum { DRAW_WORK = 64 };

static gb_status draw_rows(gb_op_call *call, double *tree, int64_t size) {
  const gb_tensor *x = GB_IN(call, multinomial)->x;
  int64_t samples = GB_ATTRS(call, multinomial)->samples.integer;
  int64_t n = x->shape[x->ndim - 1], rows = x->ndim == 2 ? x->shape[0] : 1;
  int64_t *to = (int64_t *)(void *)gb_data(GB_OUT(call, multinomial)->y);
  int64_t element = (int64_t)gb_dtype_bytes((gb_dtype)x->dtype);
  bool replacement = GB_ATTRS(call, multinomial)->replacement.integer;
  for (int64_t row = 0; row < rows; row++) {
    const char *weights = gb_data(x) + (x->ndim == 2 ? row * x->stride[0] : 0) * element;
    if (gb_work(2 * size)) return GB_OK;
    int64_t positive = plant(tree, size, weights, (gb_dtype)x->dtype, x->stride[x->ndim - 1], n);
    if (gb_was_stopped(call)) return GB_OK; /* the op fails; this row was not read to its end */
    if (positive < 0) return gb_call_fail(call, GB_EINVAL, "weights must be finite and not negative");
    if (positive == 0) return gb_call_fail(call, GB_EINVAL, "a row of weights has nothing but zeros");
    if (!replacement && positive < samples)
      return gb_call_fail(call, GB_EINVAL, "%lld samples without replacement, but a row has only %lld weights that "
                                           "are not 0", (long long)samples,
                          (long long)positive);
    for (int64_t s = 0; s < samples; s++, to++) {
      uint32_t words[2];
      if (gb_work(DRAW_WORK)) return GB_OK;
      gb_random_words(words, call->rng_seed, call->rng_offset, 2 * (row * samples + s), 2);
      *to = gb_draw_leaf(tree, size, gb_uniform64(words[0], words[1]));
      if (!replacement) gb_fell_leaf(tree, size, *to);
    }
  }
  return GB_OK;
}

static gb_status multinomial(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, multinomial)->x;
  int64_t n = x->shape[x->ndim - 1], size = 1;
  while (size < n) size *= 2;
  gb_block *block = gb_cpu_scratch(call, 2 * (size_t)size * sizeof(double));
  if (!block) return GB_EMEMORY;
  gb_status status = draw_rows(call, gb_block_data(block), size);
  gb_cpu_scratch_free(call, block);
  return status;
}

/* ----} */
/* ====} */

/* {==== copies ==== */

/* The elements of a tensor, broadcast and converted, into another. Equal dtypes are copied as they are. */
static gb_status copy_from(gb_op_call *call, gb_tensor *out, gb_tensor *in) {
  /* contiguous: the input itself */
  if (out->storage == in->storage && out->offset == in->offset && out->dtype == in->dtype && !call->in_place)
    return GB_OK;
  gb_tile_as type = out->dtype == in->dtype ? GB_AS_RAW : gb_tile_as_of((gb_dtype)in->dtype);
  gb_tile_job job = { .loop = NULL };
  gb_tiles_plan(&job.tiles, (gb_tensor *[]){ out, in }, 2, (gb_tile_as[]){ type, type }, false, 1);
  gb_tiles_run(call, &job);
  return GB_OK;
}

static gb_status cast(gb_op_call *call) { return copy_from(call, GB_OUT(call, cast)->y, GB_IN(call, cast)->x); }
static gb_status clone(gb_op_call *call) { return copy_from(call, GB_OUT(call, clone)->y, GB_IN(call, clone)->x); }
static gb_status contiguous(gb_op_call *call) {
  return copy_from(call, GB_OUT(call, contiguous)->y, GB_IN(call, contiguous)->x);
}
static gb_status copy(gb_op_call *call) { return copy_from(call, GB_OUT(call, copy)->y, GB_IN(call, copy)->source); }

/* ====} */

void GB_CPU_FILL(create)(gb_backend *backend);
void GB_CPU_FILL(create)(gb_backend *backend) {
  backend->run[GB_OP_fill] = fill;
  backend->run[GB_OP_sequence] = sequence;
  backend->run[GB_OP_uniform] = uniform;
  backend->run[GB_OP_normal] = normal;
  backend->run[GB_OP_random_integers] = random_integers;
  backend->run[GB_OP_permutation] = permutation;
  backend->run[GB_OP_bernoulli] = bernoulli;
  backend->run[GB_OP_multinomial] = multinomial;
  backend->run[GB_OP_cast] = cast;
  backend->run[GB_OP_clone] = clone;
  backend->run[GB_OP_contiguous] = contiguous;
  backend->run[GB_OP_copy] = copy;
}
