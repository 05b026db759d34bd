/* cpu/elementwise.c - kernels that compute each element of the result from the same element of their operands.
 *
 * What they compute stands in base/functions.def: a row becomes loops for float32 (which serves 16-bit floats too),
 * float64 and int64, and a row of the table below. The walk of cpu/tile.h brings any dtype, layout and broadcast to
 * them and the result back. They move each operand's bytes once and the result's once, so at large sizes arithmetic ops
 * are bound by memory. Loops are marked simd since an operand and the result may be one array. */
#include <math.h>
#include <string.h>

#include "base/functions.h"
#include "base/random.h"
#include "cpu/tile.h"
#include "graph/family.h"

typedef float f32;
typedef double f64;
typedef int64_t i64;
typedef uint8_t u8;

/* {==== the loops ==== */

/* The inputs as arrays, and what the function is given of element i. */
#define X_ARRAYS(type) const type *x = in[0]
#define XY_ARRAYS(type) const type *x = in[0], *y = in[1]
#define XYZ_ARRAYS(type) const type *x = in[0], *y = in[1], *z = in[2]
#define XA_ARRAYS(type) X_ARRAYS(type)
#define XAB_ARRAYS(type) X_ARRAYS(type)
#define XYA_ARRAYS(type) XY_ARRAYS(type)
#define XYZA_ARRAYS(type) XYZ_ARRAYS(type)
#define CXY_ARRAYS(type) const u8 *c = in[0]; const type *x = in[1], *y = in[2]
#define XCA_ARRAYS(type) const type *x = in[0]; const u8 *c = in[1]
#define X_ELEMENTS x[i]
#define XY_ELEMENTS x[i], y[i]
#define XYZ_ELEMENTS x[i], y[i], z[i]
#define XA_ELEMENTS x[i], a
#define XAB_ELEMENTS x[i], a, b
#define XYA_ELEMENTS x[i], y[i], a
#define XYZA_ELEMENTS x[i], y[i], z[i], a
#define CXY_ELEMENTS c[i], x[i], y[i]
#define XCA_ELEMENTS x[i], c[i], a

/* The one place where loops are made: name_type is the row's function of all elements. */
#define LOOP(name, type, operands, result) \
  static void name##_##type(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) { \
    const type a = job->number.type[0], b = job->number.type[1]; \
    const int64_t n = place->n; \
    GB_RESULT_##result(type) *to = out; \
    operands##_ARRAYS(type); \
    (void)a, (void)b; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = gb_##name##_##type(operands##_ELEMENTS); \
  }
/* As LOOP for integers, of which some may have no value. */
#define CHECKED_LOOP(name) \
  static void name##_checked(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) { \
    const i64 *x = in[0], *y = in[1]; \
    bool bad = false; \
    for (int64_t i = 0; i < place->n; i++) bad |= gb_##name##_fault(x[i], y[i]); \
    if (bad) atomic_store_explicit(job->bad, true, memory_order_relaxed); \
    name##_i64(job, place, out, in); \
  }

#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(LOOP(name, f32, operands, result) LOOP(name, f64, operands, result)) \
  GB_WHERE_INTS_##types(LOOP(name, i64, operands, result)) \
  GB_WHERE_CHECKED_##types(CHECKED_LOOP(name))
#include "base/functions.def"

/* ====} */

/* {==== loops that are more than a function ==== */

/* Element i of the result's row-major order has word i of the stream. */
static void dropout_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  const float *x = in[0], p = job->number.f32[0], scale = job->number.f32[1];
  float *y = out;
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
#pragma omp simd
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_dropout_f32(words[i], x[i], p, scale);
}

static void dropout_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  const double *x = in[0], scale = job->number.f64[1];
  const float p = job->number.f32[0];
  double *y = out;
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_dropout_f64(words[i], x[i], p, scale);
}

/* number.i64: rows and columns of a matrix, and the diagonal. Of each row, the columns `from .. to - 1` that stay. */
static void kept_columns(const gb_tile_job *job, int64_t row, bool lower, int64_t *from, int64_t *to) {
  int64_t columns = job->number.i64[1], edge = row + job->number.i64[2];
  edge = edge < -1 ? -1 : edge > columns ? columns : edge;
  *from = lower || edge < 0 ? 0 : edge;
  *to = !lower ? columns : edge + 1 < columns ? edge + 1 : columns;
}

/* Copy the tile, row by row of the matrix, with zeros outside the triangle. */
static void triangle(const gb_tile_job *job, const gb_tile_place *place, char *out, const char *in, size_t bytes,
                     bool lower) {
  int64_t rows = job->number.i64[0], columns = job->number.i64[1];
  for (int64_t done = 0; done < place->n;) {
    int64_t at = place->first + done, column = at % columns, from, to;
    int64_t run = columns - column < place->n - done ? columns - column : place->n - done;
    kept_columns(job, at / columns % rows, lower, &from, &to);
    from = from < column ? column : from > column + run ? column + run : from;
    to = to < from ? from : to > column + run ? column + run : to;
    char *row_out = out + (size_t)done * bytes;
    size_t head = (size_t)(from - column) * bytes, kept = (size_t)(to - from) * bytes;
    memset(row_out, 0, head);
    memmove(row_out + head, in + (size_t)done * bytes + head, kept);
    memset(row_out + head + kept, 0, (size_t)run * bytes - head - kept);
    done += run;
  }
}

static void tril_4(const gb_tile_job *job, const gb_tile_place *p, void *out,
                   const void *const *in) { triangle(job, p, out, in[0], 4, true); }
static void tril_8(const gb_tile_job *job, const gb_tile_place *p, void *out,
                   const void *const *in) { triangle(job, p, out, in[0], 8, true); }
static void triu_4(const gb_tile_job *job, const gb_tile_place *p, void *out,
                   const void *const *in) { triangle(job, p, out, in[0], 4, false); }
static void triu_8(const gb_tile_job *job, const gb_tile_place *p, void *out,
                   const void *const *in) { triangle(job, p, out, in[0], 8, false); }

/* ====} */

/* {==== the table ==== */

/* The loops of one function by type (F32, F64, I64; without the last, the result is a float, and integers are computed
 * as float32), whether it gives bool, which input (from 1; 0 is none) is a bool mask, how many numbers it takes, and
 * what an element costs in additions. */
typedef struct row { gb_tile_loop loop[3]; bool gives_bool; int8_t mask, numbers, cost; } row;

#define FLOAT_LOOPS(name) { name##_f32, name##_f64, NULL }
#define FORM_LOOPS(name) { name##_f32, name##_f64, NULL }
#define ALL_LOOPS(name) { name##_f32, name##_f64, name##_i64 }
#define CHECKED_LOOPS(name) { name##_f32, name##_f64, name##_checked }
#define INT_LOOPS(name) { NULL, NULL, name##_i64 }
#define OWN_LOOPS(name) { NULL, NULL, NULL }

static const row rows[GB_FUNCTION_COUNT] = {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  { types##_LOOPS(name), GB_IS_TEST_##result, GB_MASK_##operands, GB_NUMBERS_##operands, cost },
#include "base/functions.def"
};

/* Rows of the loops above. */
static const row dropout_row = { { dropout_f32, dropout_f64, NULL }, false, 0, 0, 4 };
static const row tril_row = { { tril_4, tril_8, tril_8 }, false, 0, 0, 1 };
static const row triu_row = { { triu_4, triu_8, triu_8 }, false, 0, 0, 1 };

/* The function of each op of the family. An op that has no row in functions.def does not compile here. */
static const int16_t function_of[GB_OP_COUNT] = {
#define FUNCTION_OF(name) [GB_OP_##name] = GB_FUNCTION_##name,
#define GB_FAMILY_elementwise GB_THIS_FAMILY
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OF_FAMILY(family, FUNCTION_OF)(name)
#include "graph/ops.def"
};

/* ====} */

/* {==== running a row ==== */

#define ONE_RESULT(name) _Static_assert(sizeof(gb_out_##name) == sizeof(gb_tensor *), #name " has one result");
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OF_FAMILY(family, ONE_RESULT)(name)
#include "graph/ops.def"

/* What add's stands for in all ops of the family. */
static gb_tensor *result(const gb_op_call *call) { return ((const gb_out_add *)(const void *)call->out)->z; }

/* What the loops compute in: the promoted dtype of the inputs, the mask left aside; float32 where integers give a
 * float. */
static gb_dtype common_dtype(const gb_op_call *call, const row *r) {
  gb_tensor *in[GB_TILE_OPERANDS];
  for (int i = 0; i < call->n_in; i++) in[i] = i + 1 == r->mask ? NULL : call->in[i];
  gb_dtype dtype = gb_result_type(in, call->n_in);
  bool becomes_float = !r->gives_bool && gb_dtype_is_float((gb_dtype)result(call)->dtype) && !gb_dtype_is_float(dtype);
  return becomes_float ? GB_FLOAT32 : dtype;
}

/* The numbers of a row are the op's first attributes; a bound that is not given is infinite. */
static void set_numbers(gb_tile_job *job, const gb_op_call *call, const row *r) {
  for (int i = 0; i < r->numbers; i++) {
    if (call->attrs[i].given) gb_tile_attr(job, i, &call->attrs[i]);
    else gb_tile_number(job, i, i == 0 ? -INFINITY : INFINITY);
  }
}

/* A 0-d operand of another dtype than the common one is converted to it first where that shows: among integers, where
 * it may wrap (a plain number in divisions only), and in tests, which see it in the 16-bit dtype of what it meets. */
static void convert_constants(const gb_op_call *call, const row *r, gb_dtype common, gb_tiles *t) {
  bool integer = gb_is_int(common), test = r->gives_bool && gb_is_16bit(common);
  bool wraps = gb_wraps_numbers((int)(r - rows));
  for (int k = 1; k < t->count; k++) {
    gb_tile_operand *o = &t->operand[k];
    if (o->constant && o->dtype != common && k != r->mask &&
        (test || (integer && (wraps || !call->in[k - 1]->wrapped))))
      o->through = common;
  }
}

/* Is t of that dtype, and laid out as the result, element for element? */
static bool is_alike(const gb_tensor *t, gb_dtype dtype, const gb_tensor *out) {
  if ((gb_dtype)t->dtype != dtype || t->wrapped || t->ndim != out->ndim) return false;
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] != out->shape[d] || t->stride[d] != out->stride[d]) return false;
  return true;
}

/* Most small calls: operands and result lie as the loop takes them, in one piece; one operand may be a number. Then
 * they are the walk's one tile, and need no plan. A number beside floats of the result's dtype counts as one of
 * these. */
static bool run_small(const gb_op_call *call, const row *r, int n_in, gb_tile_job *job) {
  const gb_tensor *out = result(call);
  const void *in[GB_TILE_OPERANDS];
  int64_t room[GB_TILE];
  bool number = false;
  gb_dtype dtype = (gb_dtype)call->in[r->mask == 1]->dtype; /* of what is no mask */
  if (dtype != GB_FLOAT32 && dtype != GB_FLOAT64 && dtype != GB_INT64) return false;
  gb_tile_loop loop = r->loop[gb_tile_as_of(dtype)];
  if (!loop || out->numel > GB_TILE || out->numel == 0 || (gb_dtype)out->dtype != (r->gives_bool ? GB_BOOL : dtype))
    return false;
  for (int i = 0; i < n_in; i++) {
    const gb_tensor *x = call->in[i];
    in[i] = gb_data(x);
    if (is_alike(x, i + 1 == r->mask ? GB_BOOL : dtype, out)) continue;
    if (!x->wrapped || number || r->gives_bool || r->mask || dtype == GB_INT64 || i == 0) return false;
    number = true;
    gb_tile_load(gb_tile_as_of(dtype), room, in[i], (gb_dtype)x->dtype, 0, out->numel);
    in[i] = room;
  }
  if (!gb_is_contiguous(out)) return false;
  const gb_tile_place place = { .n = out->numel };
  loop(job, &place, gb_data(out), in);
  return true;
}

/* Any call: plan the walk, and run it. */
static void run_planned(gb_op_call *call, const row *r, int n_in, gb_tile_job *job, bool logical) {
  gb_tensor *tensors[GB_TILE_OPERANDS] = { result(call) };
  gb_tile_as as[GB_TILE_OPERANDS];
  gb_dtype common = common_dtype(call, r);
  gb_tile_as type = gb_tile_as_of(common);
  as[0] = r->gives_bool ? GB_AS_BYTE : type;
  for (int i = 0; i < n_in; i++) {
    tensors[i + 1] = call->in[i];
    as[i + 1] = i + 1 == r->mask ? GB_AS_BYTE : type;
  }
  gb_tiles_plan(&job->tiles, tensors, n_in + 1, as, logical, type == GB_AS_F64 && r->cost > 1 ? 8 : r->cost);
  convert_constants(call, r, common, &job->tiles);
  job->loop = r->loop[type];
  gb_tiles_run(call, job);
}

/* Run the loops of a row over the first n_in inputs. */
static gb_status run_row(gb_op_call *call, const row *r, int n_in, gb_tile_job *job, bool logical) {
  atomic_bool bad;
  atomic_init(&bad, false);
  job->bad = &bad;
  if (!run_small(call, r, n_in, job)) run_planned(call, r, n_in, job, logical);
  return atomic_load(&bad) ? gb_call_fail(call, GB_EINVAL, "integer division by zero (256 is 0 in uint8); use "
                                                           "floating tensors to get inf or nan") : GB_OK;
}

/* Most ops: the row of the table. */
static gb_status run(gb_op_call *call) {
  const row *r = &rows[function_of[call->op]];
  gb_tile_job job;
  set_numbers(&job, call, r);
  return run_row(call, r, call->n_in, &job, false);
}

/* {---- ops that prepare something ---- */

/* The value of a one-element tensor. */
static double number_of(const gb_tensor *t) {
  double value;
  gb_load_f64(&value, gb_data(t), (gb_dtype)t->dtype, 1, 1);
  return value;
}

/* The exponents 2 and 3 are multiplications. */
static gb_status run_pow(gb_op_call *call) {
  gb_tile_job job;
  const gb_tensor *power = GB_IN(call, pow)->y;
  bool number = power->numel == 1 && gb_dtype_is_float(common_dtype(call, &rows[GB_FUNCTION_pow]));
  double exponent = number ? number_of(power) : 0;
  if (exponent == 2) return run_row(call, &rows[GB_FUNCTION_square], 1, &job, false);
  if (exponent == 3) return run_row(call, &rows[GB_FUNCTION_cube], 1, &job, false);
  return run_row(call, &rows[GB_FUNCTION_pow], 2, &job, false);
}

/* A finite value that x's dtype cannot hold becomes the largest one it can. */
static gb_status run_masked_fill(gb_op_call *call) {
  gb_tile_job job;
  gb_dtype dtype = (gb_dtype)GB_OUT(call, masked_fill)->y->dtype;
  double value = GB_ATTRS(call, masked_fill)->value.number;
  bool limit = gb_dtype_is_float(dtype) && dtype != GB_FLOAT64 && isfinite(value);
  gb_tile_attr(&job, 0, &GB_ATTRS(call, masked_fill)->value);
  if (limit && fabs(value) > gb_largest_of(dtype)) gb_tile_number(&job, 0, copysign(gb_largest_of(dtype), value));
  return run_row(call, &rows[GB_FUNCTION_masked_fill], 2, &job, false);
}

/* Bound i of clamp as a number; infinite where it is not given. */
static void set_bound(gb_tile_job *job, int i, const gb_tensor *bound) {
  if (!bound) { gb_tile_number(job, i, i == 0 ? -INFINITY : INFINITY); return; }
  gb_attr number = gb_number_of(bound);
  gb_tile_attr(job, i, &number);
}

/* Numbers bound in one pass. Tensors take one for each bound, the second over the result of the first. */
static gb_status run_clamp(gb_op_call *call) {
  gb_in_clamp *in = GB_IN(call, clamp), given = *in;
  gb_tile_job job;
  gb_status status = GB_OK;
  if ((!given.min || given.min->wrapped) && (!given.max || given.max->wrapped)) {
    set_bound(&job, 0, given.min);
    set_bound(&job, 1, given.max);
    return run_row(call, &rows[GB_FUNCTION_clamp], 1, &job, false);
  }
  if (given.min) {
    status = run_row(call, &rows[GB_FUNCTION_maximum], 2, &job, false);
    in->x = GB_OUT(call, clamp)->y;
  }
  in->min = given.max;
  if (given.max && status == GB_OK) status = run_row(call, &rows[GB_FUNCTION_minimum], 2, &job, false);
  *in = given;
  return status;
}

/* The approximate form is another function. */
static gb_status run_gelu(gb_op_call *call) {
  gb_tile_job job;
  bool by_tanh = GB_ATTRS(call, gelu)->approximate.integer == GB_WORD_tanh;
  return run_row(call, &rows[by_tanh ? GB_FUNCTION_gelu_tanh : GB_FUNCTION_gelu], 1, &job, false);
}

static gb_status run_gelu_backward(gb_op_call *call) {
  gb_tile_job job;
  bool by_tanh = GB_ATTRS(call, gelu_backward)->approximate.integer == GB_WORD_tanh;
  return run_row(call, &rows[by_tanh ? GB_FUNCTION_gelu_tanh_backward : GB_FUNCTION_gelu_backward], 2, &job, false);
}

/* Drop with probability p, by the words at a place of the stream. */
static gb_status drop(gb_op_call *call, double p, uint64_t seed, uint64_t offset) {
  gb_tile_job job;
  gb_tile_number(&job, 0, p);
  gb_tile_number(&job, 1, p < 1 ? 1 / (1 - p) : 0);
  job.seed = seed;
  job.offset = offset;
  return run_row(call, &dropout_row, 1, &job, true);
}

static gb_status run_dropout(gb_op_call *call) {
  bool same = GB_OUT(call, dropout)->y->storage == GB_IN(call, dropout)->x->storage; /* nothing to drop */
  return same ? GB_OK : drop(call, GB_ATTRS(call, dropout)->p.number, call->rng_seed, call->rng_offset);
}

static gb_status run_dropout_backward(gb_op_call *call) {
  const gb_attrs_dropout_backward *attrs = GB_ATTRS(call, dropout_backward);
  return drop(call, attrs->p.number, (uint64_t)attrs->seed.integer, (uint64_t)attrs->offset.integer);
}

/* Flipping the bits of a bool would leave it true. */
static gb_status run_bitwise_not(gb_op_call *call) {
  gb_tile_job job;
  bool flags = GB_IN(call, bitwise_not)->x->dtype == GB_BOOL;
  return run_row(call, &rows[flags ? GB_FUNCTION_logical_not : GB_FUNCTION_bitwise_not], 1, &job, false);
}

static gb_status run_triangle(gb_op_call *call, const row *r, const gb_tensor *x, int64_t diagonal) {
  gb_tile_job job;
  int64_t height = x->shape[x->ndim - 2], width = x->shape[x->ndim - 1];
  job.number.i64[0] = height;
  job.number.i64[1] = width;
  job.number.i64[2] = diagonal < -height ? -height : diagonal > width ? width : diagonal;
  return run_row(call, r, 1, &job, true);
}

static gb_status run_tril(gb_op_call *call) {
  return run_triangle(call, &tril_row, GB_IN(call, tril)->x, GB_ATTRS(call, tril)->diagonal.integer);
}

static gb_status run_triu(gb_op_call *call) {
  return run_triangle(call, &triu_row, GB_IN(call, triu)->x, GB_ATTRS(call, triu)->diagonal.integer);
}

/* ----} */
/* ====} */

void GB_CPU_FILL(elementwise)(gb_backend *backend);
void GB_CPU_FILL(elementwise)(gb_backend *backend) {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_OP_##types(backend->run[GB_OP_##name] = run;)
#include "base/functions.def"
  backend->run[GB_OP_pow] = run_pow;
  backend->run[GB_OP_clamp] = run_clamp;
  backend->run[GB_OP_masked_fill] = run_masked_fill;
  backend->run[GB_OP_gelu] = run_gelu;
  backend->run[GB_OP_gelu_backward] = run_gelu_backward;
  backend->run[GB_OP_dropout] = run_dropout;
  backend->run[GB_OP_dropout_backward] = run_dropout_backward;
  backend->run[GB_OP_bitwise_not] = run_bitwise_not;
  backend->run[GB_OP_tril] = run_tril;
  backend->run[GB_OP_triu] = run_triu;
}
