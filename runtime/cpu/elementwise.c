/* cpu/elementwise.c - kernels that compute each element of the result from the same element of their operands.
 *
 * A row of the table below holds the loops of one op: for float32 (which serves 16-bit floats too), float64 and int64. The walk of
 * cpu/tile.h brings any dtype, layout and broadcast to them and the result back. They move each operand's bytes once and the result's
 * once, so at large sizes arithmetic ops are bound by memory. Loops are marked simd since an operand and the result may be one array. */
#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "base/math.h"
#include "cpu/tile.h"

typedef float f32;
typedef double f64;
typedef int64_t i64;
typedef uint8_t u8;

/* {==== the loops ==== */

/* The one place where loops are made: name_type computes `value` of the operands x, y, z and the op's numbers a, b, as `to`. */
#define LOOP(name, type, to, operands, value)                                                                             \
  static void name##_##type(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {       \
    const type a = job->number.type[0], b = job->number.type[1];                                                          \
    const int64_t n = place->n;                                                                                           \
    to *result = out;                                                                                                     \
    (void)a, (void)b;                                                                                                     \
    operands##_ARRAYS(type);                                                                                              \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                                 \
      operands##_ELEMENTS(type);                                                                                          \
      result[i] = (to)(value);                                                                                            \
    }                                                                                                                     \
  }
#define X_ARRAYS(type) const type *px = in[0]
#define X_ELEMENTS(type) const type x = px[i]
#define XY_ARRAYS(type) const type *px = in[0], *py = in[1]
#define XY_ELEMENTS(type) const type x = px[i], y = py[i]
#define XYZ_ARRAYS(type) const type *px = in[0], *py = in[1], *pz = in[2]
#define XYZ_ELEMENTS(type) const type x = px[i], y = py[i], z = pz[i]
#define WHERE_ARRAYS(type) const u8 *pc = in[0]; const type *px = in[1], *py = in[2]
#define WHERE_ELEMENTS(type) const u8 condition = pc[i]; const type x = px[i], y = py[i]
#define MASKED_ARRAYS(type) const type *px = in[0]; const u8 *pm = in[1]
#define MASKED_ELEMENTS(type) const type x = px[i]; const u8 masked = pm[i]

#define LOOP1(name, type, value) LOOP(name, type, type, X, value)
#define LOOP2(name, type, value) LOOP(name, type, type, XY, value)
#define LOOP3(name, type, value) LOOP(name, type, type, XYZ, value)
/* The same text for both float types. */
#define FLOATS1(name, value) LOOP1(name, f32, value) LOOP1(name, f64, value)
#define FLOATS2(name, value) LOOP2(name, f32, value) LOOP2(name, f64, value)
#define FLOATS3(name, value) LOOP3(name, f32, value) LOOP3(name, f64, value)
/* From any type to bool. */
#define TESTS1(name, value) LOOP(name, f32, u8, X, value) LOOP(name, f64, u8, X, value) LOOP(name, i64, u8, X, value)
#define TESTS2(name, value) LOOP(name, f32, u8, XY, value) LOOP(name, f64, u8, XY, value) LOOP(name, i64, u8, XY, value)

/* Integers wrap, and so are computed without sign where they may. */
#define WRAP(expression) (int64_t)(expression)
#define U(v) ((uint64_t)(v))

FLOATS2(add, x + y)
LOOP2(add, i64, WRAP(U(x) + U(y)))
FLOATS2(sub, x - y)
LOOP2(sub, i64, WRAP(U(x) - U(y)))
FLOATS2(mul, x * y)
LOOP2(mul, i64, WRAP(U(x) * U(y)))
FLOATS2(div, x / y)
LOOP2(maximum, f32, x > y || x != x ? x : y)
LOOP2(maximum, f64, x > y || x != x ? x : y)
LOOP2(maximum, i64, x > y ? x : y)
LOOP2(minimum, f32, x < y || x != x ? x : y)
LOOP2(minimum, f64, x < y || x != x ? x : y)
LOOP2(minimum, i64, x < y ? x : y)
LOOP2(floor_divide, f32, floorf(x / y))
LOOP2(floor_divide, f64, floor(x / y))
LOOP2(pow, f32, powf(x, y))
LOOP2(pow, f64, pow(x, y))
FLOATS1(cube, x * x * x)
LOOP2(atan2, f32, atan2f(x, y))
LOOP2(atan2, f64, atan2(x, y))

FLOATS1(neg, -x)
LOOP1(neg, i64, WRAP(0 - U(x)))
LOOP1(abs, f32, fabsf(x))
LOOP1(abs, f64, fabs(x))
LOOP1(abs, i64, x < 0 ? WRAP(0 - U(x)) : x)
FLOATS1(sign, (x > 0) - (x < 0))
LOOP1(sign, i64, (x > 0) - (x < 0))
FLOATS1(square, x * x)
LOOP1(square, i64, WRAP(U(x) * U(x)))
FLOATS1(reciprocal, 1 / x)
LOOP1(sqrt, f32, sqrtf(x))
LOOP1(sqrt, f64, sqrt(x))
LOOP1(rsqrt, f32, 1 / sqrtf(x))
LOOP1(rsqrt, f64, 1 / sqrt(x))
LOOP1(exp, f32, gb_expf(x))
LOOP1(exp, f64, exp(x))
LOOP1(expm1, f32, gb_expm1f(x))
LOOP1(expm1, f64, expm1(x))
LOOP1(log, f32, gb_logf(x))
LOOP1(log, f64, log(x))
LOOP1(log2, f32, log2f(x))
LOOP1(log2, f64, log2(x))
LOOP1(log10, f32, log10f(x))
LOOP1(log10, f64, log10(x))
LOOP1(log1p, f32, gb_log1pf(x))
LOOP1(log1p, f64, log1p(x))
LOOP1(sin, f32, sinf(x))
LOOP1(sin, f64, sin(x))
LOOP1(cos, f32, cosf(x))
LOOP1(cos, f64, cos(x))
LOOP1(tan, f32, tanf(x))
LOOP1(tan, f64, tan(x))
LOOP1(tanh, f32, gb_tanhf(x))
LOOP1(tanh, f64, tanh(x))
LOOP1(erf, f32, gb_erff(x))
LOOP1(erf, f64, erf(x))
LOOP1(floor, f32, floorf(x))
LOOP1(floor, f64, floor(x))
LOOP1(ceil, f32, ceilf(x))
LOOP1(ceil, f64, ceil(x))
LOOP1(round, f32, rintf(x))
LOOP1(round, f64, rint(x))
LOOP1(trunc, f32, truncf(x))
LOOP1(trunc, f64, trunc(x))
LOOP1(same, i64, x)
/* NaN stays, and a bound that is NaN leaves nothing else; where the bounds cross, the upper one counts. */
#define AT_LEAST(x, a) ((x) >= (a) || (x) != (x) ? (x) : (a))
#define AT_MOST(x, b) ((x) <= (b) || (x) != (x) ? (x) : (b))
FLOATS1(clamp, AT_MOST(AT_LEAST(x, a), b))
LOOP1(clamp, i64, (x < a ? a : x) > b ? b : x < a ? a : x)
/* From the nearer end, so that weight 1 gives y exactly. */
FLOATS3(lerp, z > -0.5f && z < 0.5f ? x + z * (y - x) : y - (y - x) * (1 - z))
FLOATS3(addcmul, x + a * y * z)
LOOP3(addcmul, i64, WRAP(U(x) + U(a) * U(y) * U(z)))
FLOATS3(addcdiv, x + a * y / z)

static inline double sigmoid(double v) { return v < 0 ? exp(v) / (1 + exp(v)) : 1 / (1 + exp(-v)); }
static inline double gelu(double v) { return 0.5 * v * (1 + erf(v * 0.70710678118654752440)); }
static inline double gelu_slope(double v) { return 0.5 * (1 + erf(v * 0.70710678118654752440)) + v * 0.39894228040143267794 * exp(-0.5 * v * v); }
static inline double gelu_tanh_inner(double v) { return 0.79788456080286535588 * (v + 0.044715 * v * v * v); }
static inline double gelu_tanh_slope(double v) {
  double t = tanh(gelu_tanh_inner(v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.79788456080286535588 * (1 + 0.134145 * v * v);
}
static inline double silu_slope(double v) { return sigmoid(v) * (1 + v * (1 - sigmoid(v))); }
static inline double softplus(double v) { return fmax(v, 0) + log1p(exp(-fabs(v))); }

LOOP1(sigmoid, f32, gb_sigmoidf(x))
LOOP1(sigmoid, f64, sigmoid(x))
FLOATS1(relu, x < 0 ? 0 : x)
LOOP1(relu, i64, x < 0 ? 0 : x)
FLOATS1(leaky_relu, x > 0 ? x : x * a)
LOOP1(elu, f32, x > 0 ? x : a * gb_expm1f(x))
LOOP1(elu, f64, x > 0 ? x : a * expm1(x))
LOOP1(silu, f32, gb_siluf(x))
LOOP1(silu, f64, x * sigmoid(x))
LOOP1(gelu, f32, gb_geluf(x))
LOOP1(gelu, f64, gelu(x))
LOOP1(gelu_tanh, f32, gb_gelu_tanhf(x))
LOOP1(gelu_tanh, f64, 0.5 * x * (1 + tanh(gelu_tanh_inner(x))))
LOOP1(softplus, f32, x * a > b ? x : gb_softplusf(x * a) / a)
LOOP1(softplus, f64, x * a > b ? x : softplus(x * a) / a)

/* Backward: x is the gradient that comes in, y the saved input or result. */
FLOATS2(relu_backward, y <= 0 ? 0 : x)
FLOATS2(tanh_backward, x * (1 - y * y))
FLOATS2(sigmoid_backward, x * (y * (1 - y)))
LOOP2(silu_backward, f32, x * gb_silu_slopef(y))
LOOP2(silu_backward, f64, x * silu_slope(y))
LOOP2(gelu_backward, f32, x * gb_gelu_slopef(y))
LOOP2(gelu_backward, f64, x * gelu_slope(y))
LOOP2(gelu_tanh_backward, f32, x * gb_gelu_tanh_slopef(y))
LOOP2(gelu_tanh_backward, f64, x * gelu_tanh_slope(y))

TESTS2(eq, x == y)
TESTS2(ne, x != y)
TESTS2(lt, x < y)
TESTS2(le, x <= y)
TESTS2(gt, x > y)
TESTS2(ge, x >= y)
TESTS2(logical_and, x != 0 && y != 0)
TESTS2(logical_or, x != 0 || y != 0)
TESTS2(logical_xor, (x != 0) != (y != 0))
TESTS1(logical_not, x == 0)
TESTS1(isnan, x != x)
LOOP(isinf, f32, u8, X, fabsf(x) == INFINITY)
LOOP(isinf, f64, u8, X, fabs(x) == (f64)INFINITY)
LOOP(isfinite, f32, u8, X, fabsf(x) < INFINITY)
LOOP(isfinite, f64, u8, X, fabs(x) < (f64)INFINITY)
LOOP(never, i64, u8, X, x != x)
LOOP(always, i64, u8, X, x == x)

LOOP2(bitwise_and, i64, x & y)
LOOP2(bitwise_or, i64, x | y)
LOOP2(bitwise_xor, i64, x ^ y)
LOOP1(bitwise_not, i64, ~x)

LOOP(where, f32, f32, WHERE, condition ? x : y)
LOOP(where, f64, f64, WHERE, condition ? x : y)
LOOP(where, i64, i64, WHERE, condition ? x : y)
LOOP(masked_fill, f32, f32, MASKED, masked ? a : x)
LOOP(masked_fill, f64, f64, MASKED, masked ? a : x)
LOOP(masked_fill, i64, i64, MASKED, masked ? a : x)

/* ====} */

/* {==== loops that are more than an expression ==== */

/* The remainder with the sign of the divisor, as in Lua. */
static inline float remainder_f32_of(float x, float y) {
  float r = fmodf(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static inline double remainder_f64_of(double x, double y) {
  double r = fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static void remainder_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  (void)job;
  for (int64_t i = 0; i < place->n; i++) ((float *)out)[i] = remainder_f32_of(((const float *)in[0])[i], ((const float *)in[1])[i]);
}

static void remainder_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  (void)job;
  for (int64_t i = 0; i < place->n; i++) ((double *)out)[i] = remainder_f64_of(((const double *)in[0])[i], ((const double *)in[1])[i]);
}

/* Integer division that rounds down, and its remainder. 0 as a divisor is reported; -1 is apart, since INT64_MIN / -1 traps. */
static void divide_integers(const gb_tile_job *job, int64_t n, int64_t *out, const int64_t *x, const int64_t *y, bool want_remainder) {
  for (int64_t i = 0; i < n; i++) {
    int64_t a = x[i], b = y[i];
    if (b == 0) atomic_store_explicit(job->bad, true, memory_order_relaxed);
    if (b == 0 || b == -1) { out[i] = want_remainder || b == 0 ? 0 : (int64_t)(0 - (uint64_t)a); continue; }
    int64_t quotient = a / b, rest = a % b;
    bool down = rest != 0 && (rest < 0) != (b < 0);
    out[i] = want_remainder ? rest + (down ? b : 0) : quotient - down;
  }
}

static void floor_divide_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  divide_integers(job, place->n, out, in[0], in[1], false);
}

static void remainder_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  divide_integers(job, place->n, out, in[0], in[1], true);
}

/* By squaring, wrapping; a negative exponent gives the reciprocal cut to an integer, and is reported for 0. */
static int64_t integer_power(const gb_tile_job *job, int64_t base, int64_t exponent) {
  uint64_t power = 1, factor = (uint64_t)base;
  if (exponent < 0) {
    if (base == 0) atomic_store_explicit(job->bad, true, memory_order_relaxed);
    return base == 1 || (base == -1 && exponent % 2 == 0) ? 1 : base == -1 ? -1 : 0;
  }
  for (; exponent > 0; exponent >>= 1, factor *= factor)
    if (exponent & 1) power *= factor;
  return (int64_t)power;
}

static void pow_i64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  for (int64_t i = 0; i < place->n; i++) ((int64_t *)out)[i] = integer_power(job, ((const int64_t *)in[0])[i], ((const int64_t *)in[1])[i]);
}

/* Element i of the result's row-major order is kept where word i of the stream, as a number in [0, 1), is at least p. */
static void dropout_f32(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  const float *x = in[0], p = job->number.f32[0], scale = job->number.f32[1];
  float *y = out;
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
#pragma omp simd
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_uniform(words[i]) >= p ? x[i] * scale : 0.0f;
}

static void dropout_f64(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in) {
  uint32_t words[GB_TILE];
  const double *x = in[0], scale = job->number.f64[1];
  const float p = job->number.f32[0];
  double *y = out;
  gb_random_words(words, job->seed, job->offset, place->first, place->n);
  for (int64_t i = 0; i < place->n; i++) y[i] = gb_uniform(words[i]) >= p ? x[i] * scale : 0.0;
}

/* number.i64: rows and columns of a matrix, and the diagonal. Of each row, the columns `from .. to - 1` that stay. */
static void kept_columns(const gb_tile_job *job, int64_t row, bool lower, int64_t *from, int64_t *to) {
  int64_t columns = job->number.i64[1], edge = row + job->number.i64[2];
  edge = edge < -1 ? -1 : edge > columns ? columns : edge;
  *from = lower || edge < 0 ? 0 : edge;
  *to = !lower ? columns : edge + 1 < columns ? edge + 1 : columns;
}

/* Copy the tile, row by row of the matrix, with zeros outside the triangle. */
static void triangle(const gb_tile_job *job, const gb_tile_place *place, char *out, const char *in, size_t bytes, bool lower) {
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

static void tril_4(const gb_tile_job *job, const gb_tile_place *p, void *out, const void *const *in) { triangle(job, p, out, in[0], 4, true); }
static void tril_8(const gb_tile_job *job, const gb_tile_place *p, void *out, const void *const *in) { triangle(job, p, out, in[0], 8, true); }
static void triu_4(const gb_tile_job *job, const gb_tile_place *p, void *out, const void *const *in) { triangle(job, p, out, in[0], 4, false); }
static void triu_8(const gb_tile_job *job, const gb_tile_place *p, void *out, const void *const *in) { triangle(job, p, out, in[0], 8, false); }

/* ====} */

/* {==== the table ==== */

/* The loops of one op by type (F32, F64, I64; without the last, the result is a float, and integers are computed as float32), whether it gives bool, which
 * input (from 1; 0 is none) is a bool mask, and what an element costs in additions. */
typedef struct row { gb_tile_loop loop[3]; bool gives_bool; int8_t mask, cost; } row;

#define FLOATS(name) { name##_f32, name##_f64, NULL }
#define ALL(name) { name##_f32, name##_f64, name##_i64 }

static const row rows[GB_OP_COUNT] = {
  [GB_OP_add] = { ALL(add), false, 0, 1 },
  [GB_OP_sub] = { ALL(sub), false, 0, 1 },
  [GB_OP_mul] = { ALL(mul), false, 0, 1 },
  [GB_OP_div] = { FLOATS(div), false, 0, 1 },
  [GB_OP_floor_divide] = { ALL(floor_divide), false, 0, 2 },
  [GB_OP_remainder] = { ALL(remainder), false, 0, 16 },
  [GB_OP_pow] = { ALL(pow), false, 0, 16 },
  [GB_OP_maximum] = { ALL(maximum), false, 0, 1 },
  [GB_OP_minimum] = { ALL(minimum), false, 0, 1 },
  [GB_OP_atan2] = { FLOATS(atan2), false, 0, 16 },
  [GB_OP_neg] = { ALL(neg), false, 0, 1 },
  [GB_OP_abs] = { ALL(abs), false, 0, 1 },
  [GB_OP_sign] = { ALL(sign), false, 0, 1 },
  [GB_OP_exp] = { FLOATS(exp), false, 0, 2 },
  [GB_OP_expm1] = { FLOATS(expm1), false, 0, 2 },
  [GB_OP_log] = { FLOATS(log), false, 0, 2 },
  [GB_OP_log2] = { FLOATS(log2), false, 0, 8 },
  [GB_OP_log10] = { FLOATS(log10), false, 0, 8 },
  [GB_OP_log1p] = { FLOATS(log1p), false, 0, 2 },
  [GB_OP_sqrt] = { FLOATS(sqrt), false, 0, 1 },
  [GB_OP_rsqrt] = { FLOATS(rsqrt), false, 0, 1 },
  [GB_OP_square] = { ALL(square), false, 0, 1 },
  [GB_OP_reciprocal] = { FLOATS(reciprocal), false, 0, 1 },
  [GB_OP_sin] = { FLOATS(sin), false, 0, 8 },
  [GB_OP_cos] = { FLOATS(cos), false, 0, 8 },
  [GB_OP_tan] = { FLOATS(tan), false, 0, 16 },
  [GB_OP_tanh] = { FLOATS(tanh), false, 0, 2 },
  [GB_OP_erf] = { FLOATS(erf), false, 0, 2 },
  [GB_OP_floor] = { { floor_f32, floor_f64, same_i64 }, false, 0, 1 },
  [GB_OP_ceil] = { { ceil_f32, ceil_f64, same_i64 }, false, 0, 1 },
  [GB_OP_round] = { { round_f32, round_f64, same_i64 }, false, 0, 1 },
  [GB_OP_trunc] = { { trunc_f32, trunc_f64, same_i64 }, false, 0, 1 },
  [GB_OP_clamp] = { ALL(clamp), false, 0, 1 },
  [GB_OP_lerp] = { FLOATS(lerp), false, 0, 1 },
  [GB_OP_addcmul] = { ALL(addcmul), false, 0, 1 },
  [GB_OP_addcdiv] = { FLOATS(addcdiv), false, 0, 1 },
  [GB_OP_where] = { ALL(where), false, 1, 1 },
  [GB_OP_masked_fill] = { ALL(masked_fill), false, 2, 1 },
  [GB_OP_sigmoid] = { FLOATS(sigmoid), false, 0, 2 },
  [GB_OP_relu] = { ALL(relu), false, 0, 1 },
  [GB_OP_leaky_relu] = { FLOATS(leaky_relu), false, 0, 1 },
  [GB_OP_elu] = { FLOATS(elu), false, 0, 2 },
  [GB_OP_gelu] = { FLOATS(gelu), false, 0, 4 },
  [GB_OP_silu] = { FLOATS(silu), false, 0, 2 },
  [GB_OP_softplus] = { FLOATS(softplus), false, 0, 4 },
  [GB_OP_relu_backward] = { FLOATS(relu_backward), false, 0, 1 },
  [GB_OP_gelu_backward] = { FLOATS(gelu_backward), false, 0, 4 },
  [GB_OP_silu_backward] = { FLOATS(silu_backward), false, 0, 2 },
  [GB_OP_tanh_backward] = { FLOATS(tanh_backward), false, 0, 1 },
  [GB_OP_sigmoid_backward] = { FLOATS(sigmoid_backward), false, 0, 1 },
  [GB_OP_eq] = { ALL(eq), true, 0, 1 },
  [GB_OP_ne] = { ALL(ne), true, 0, 1 },
  [GB_OP_lt] = { ALL(lt), true, 0, 1 },
  [GB_OP_le] = { ALL(le), true, 0, 1 },
  [GB_OP_gt] = { ALL(gt), true, 0, 1 },
  [GB_OP_ge] = { ALL(ge), true, 0, 1 },
  [GB_OP_logical_and] = { ALL(logical_and), true, 0, 1 },
  [GB_OP_logical_or] = { ALL(logical_or), true, 0, 1 },
  [GB_OP_logical_xor] = { ALL(logical_xor), true, 0, 1 },
  [GB_OP_logical_not] = { ALL(logical_not), true, 0, 1 },
  [GB_OP_bitwise_and] = { { NULL, NULL, bitwise_and_i64 }, false, 0, 1 },
  [GB_OP_bitwise_or] = { { NULL, NULL, bitwise_or_i64 }, false, 0, 1 },
  [GB_OP_bitwise_xor] = { { NULL, NULL, bitwise_xor_i64 }, false, 0, 1 },
  [GB_OP_bitwise_not] = { { NULL, NULL, bitwise_not_i64 }, false, 0, 1 },
  [GB_OP_isnan] = { ALL(isnan), true, 0, 1 },
  [GB_OP_isinf] = { { isinf_f32, isinf_f64, never_i64 }, true, 0, 1 },
  [GB_OP_isfinite] = { { isfinite_f32, isfinite_f64, always_i64 }, true, 0, 1 },
  [GB_OP_dropout] = { FLOATS(dropout), false, 0, 4 },
  [GB_OP_dropout_backward] = { FLOATS(dropout), false, 0, 4 },
  [GB_OP_scale_loss] = { FLOATS(mul), false, 0, 1 },
  [GB_OP_tril] = { { tril_4, tril_8, tril_8 }, false, 0, 1 },
  [GB_OP_triu] = { { triu_4, triu_8, triu_8 }, false, 0, 1 },
};

/* Rows that an attribute chooses. */
static const row gelu_tanh_row = { FLOATS(gelu_tanh), false, 0, 4 };
static const row gelu_tanh_backward_row = { FLOATS(gelu_tanh_backward), false, 0, 4 };
static const row cube_row = { FLOATS(cube), false, 0, 1 };

/* ====} */

/* {==== running a row ==== */

/* What the loops compute in: the promoted dtype of the inputs, the mask left aside; float32 where integers give a float. */
static gb_dtype common_dtype(const gb_call *call, const row *r) {
  gb_tensor *in[GB_TILE_OPERANDS];
  for (int i = 0; i < call->n_in; i++) in[i] = i + 1 == r->mask ? NULL : call->in[i];
  gb_dtype dtype = gb_result_type(in, call->n_in);
  bool becomes_float = !r->gives_bool && gb_dtype_is_float((gb_dtype)call->out[0]->dtype) && !gb_dtype_is_float(dtype);
  return becomes_float ? GB_FLOAT32 : dtype;
}

/* The first two attributes as numbers; a bound that is not given is infinite. What has no attributes does not look at them. */
static void set_numbers(gb_tile_job *job, const gb_call *call) {
  if (call->info->n_attrs == 0) return;
  gb_tile_number(job, 0, -INFINITY);
  gb_tile_number(job, 1, INFINITY);
  for (int i = 0; i < 2 && i < call->info->n_attrs; i++)
    if (call->info->attrs[i].type == GB_ARG_NUMBER && call->attrs[i].given) gb_tile_attr(job, i, &call->attrs[i]);
}

/* A 0-d operand of another dtype than the common one is converted to it first where that shows: among integers, where it may wrap (a
 * plain number does not), and in tests, which see it in the 16-bit dtype of what it meets. */
static void convert_constants(const gb_call *call, const row *r, gb_dtype common, gb_tiles *t) {
  bool integer = gb_dtype_category(common) == GB_CATEGORY_INT, test = r->gives_bool && gb_is_16bit(common);
  for (int k = 1; k < t->count; k++) {
    gb_tile_operand *o = &t->operand[k];
    if (o->constant && o->dtype != common && k != r->mask && (test || (integer && !call->in[k - 1]->wrapped))) o->through = common;
  }
}

/* Is t of that dtype, and laid out as the result, element for element? */
static bool is_alike(const gb_tensor *t, gb_dtype dtype, const gb_tensor *out) {
  if ((gb_dtype)t->dtype != dtype || t->wrapped || t->ndim != out->ndim) return false;
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] != out->shape[d] || t->stride[d] != out->stride[d]) return false;
  return true;
}

/* Most small calls: operands and result lie as the loop takes them, in one piece; one operand may be a number. Then they are the walk's one tile, and
 * need no plan. A number beside floats of the result's dtype counts as one of these. */
static bool run_small(const gb_call *call, const row *r, int n_in, gb_tile_job *job) {
  const gb_tensor *out = call->out[0];
  const void *in[GB_TILE_OPERANDS];
  int64_t room[GB_TILE];
  bool number = false;
  gb_dtype dtype = (gb_dtype)call->in[r->mask == 1]->dtype; /* of what is no mask */
  if (dtype != GB_FLOAT32 && dtype != GB_FLOAT64 && dtype != GB_INT64) return false;
  gb_tile_loop loop = r->loop[gb_tile_as_of(dtype)];
  if (!loop || out->numel > GB_TILE || out->numel == 0 || (gb_dtype)out->dtype != (r->gives_bool ? GB_BOOL : dtype)) return false;
  for (int i = 0; i < n_in; i++) {
    const gb_tensor *x = call->in[i];
    in[i] = gb_data(x);
    if (is_alike(x, i + 1 == r->mask ? GB_BOOL : dtype, out)) continue;
    if (!x->wrapped || number || r->gives_bool || r->mask || dtype == GB_INT64 || call->in[0] == x) return false;
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
static void run_planned(gb_call *call, const row *r, int n_in, gb_tile_job *job, bool logical) {
  gb_tensor *tensors[GB_TILE_OPERANDS] = { call->out[0] };
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
static gb_status run_row(gb_call *call, const row *r, int n_in, gb_tile_job *job, bool logical) {
  atomic_bool bad;
  atomic_init(&bad, false);
  job->bad = &bad;
  if (!run_small(call, r, n_in, job)) run_planned(call, r, n_in, job, logical);
  return atomic_load(&bad) ? gb_call_fail(call, GB_EINVAL, "integer division by zero; use floating tensors to get inf or nan") : GB_OK;
}

/* Most ops: the row of the table. */
static gb_status run(gb_call *call) {
  gb_tile_job job;
  set_numbers(&job, call);
  return run_row(call, &rows[call->op], call->n_in, &job, false);
}

/* {---- ops that prepare something ---- */

/* The value of a one-element tensor. */
static double number_of(const gb_tensor *t) {
  double value;
  gb_load_f64(&value, gb_data(t), (gb_dtype)t->dtype, 1, 1);
  return value;
}

/* The exponents 2 and 3 are multiplications. */
static gb_status run_pow(gb_call *call) {
  gb_tile_job job;
  bool number = call->in[1]->numel == 1 && gb_dtype_is_float(common_dtype(call, &rows[GB_OP_pow]));
  double exponent = number ? number_of(call->in[1]) : 0;
  if (exponent == 2) return run_row(call, &rows[GB_OP_square], 1, &job, false);
  if (exponent == 3) return run_row(call, &cube_row, 1, &job, false);
  return run_row(call, &rows[GB_OP_pow], 2, &job, false);
}

/* A finite value that x's dtype cannot hold becomes the largest one it can. */
static gb_status run_masked_fill(gb_call *call) {
  gb_tile_job job;
  gb_dtype dtype = (gb_dtype)call->out[0]->dtype;
  double value = call->attrs[0].number;
  double most = dtype == GB_FLOAT16 ? 65504.0 : dtype == GB_BFLOAT16 ? 0x1.fep127 : 0x1.fffffep127;
  bool limit = gb_dtype_is_float(dtype) && dtype != GB_FLOAT64 && isfinite(value);
  gb_tile_attr(&job, 0, &call->attrs[0]);
  if (limit && fabs(value) > most) gb_tile_number(&job, 0, value > 0 ? most : -most);
  gb_tile_number(&job, 1, 0);
  return run_row(call, &rows[GB_OP_masked_fill], 2, &job, false);
}

static gb_status run_gelu(gb_call *call) {
  gb_tile_job job;
  bool by_tanh = !strcmp(call->attrs[0].string, "tanh");
  gb_tile_number(&job, 0, 0);
  gb_tile_number(&job, 1, 0);
  const row *r = !by_tanh ? &rows[call->op] : call->op == GB_OP_gelu ? &gelu_tanh_row : &gelu_tanh_backward_row;
  return run_row(call, r, call->n_in, &job, false);
}

/* Forward draws from the call's place in the stream, backward from the place it is told. */
static gb_status run_dropout(gb_call *call) {
  gb_tile_job job;
  bool backward = call->op == GB_OP_dropout_backward;
  double p = call->attrs[0].number;
  if (call->out[0]->storage == call->in[0]->storage) return GB_OK; /* nothing to drop: the input itself */
  gb_tile_number(&job, 0, p);
  gb_tile_number(&job, 1, p < 1 ? 1 / (1 - p) : 0);
  job.seed = backward ? (uint64_t)call->attrs[1].integer : call->rng_seed;
  job.offset = backward ? (uint64_t)call->attrs[2].integer : call->rng_offset;
  return run_row(call, &rows[call->op], 1, &job, true);
}

/* Flipping the bits of a bool would leave it true. */
static gb_status run_bitwise_not(gb_call *call) {
  gb_tile_job job;
  set_numbers(&job, call);
  return run_row(call, &rows[call->in[0]->dtype == GB_BOOL ? GB_OP_logical_not : GB_OP_bitwise_not], 1, &job, false);
}

static gb_status run_triangle(gb_call *call) {
  gb_tile_job job;
  const gb_tensor *in = call->in[0];
  int64_t height = in->shape[in->ndim - 2], width = in->shape[in->ndim - 1], diagonal = call->attrs[0].integer;
  job.number.i64[0] = height;
  job.number.i64[1] = width;
  job.number.i64[2] = diagonal < -height ? -height : diagonal > width ? width : diagonal;
  return run_row(call, &rows[call->op], 1, &job, true);
}

/* ----} */
/* ====} */

void GB_CPU_FILL(elementwise)(gb_backend *backend);
void GB_CPU_FILL(elementwise)(gb_backend *backend) {
  for (int op = 0; op < GB_OP_COUNT; op++)
    if (rows[op].cost) backend->run[op] = run;
  backend->run[GB_OP_pow] = run_pow;
  backend->run[GB_OP_masked_fill] = run_masked_fill;
  backend->run[GB_OP_gelu] = backend->run[GB_OP_gelu_backward] = run_gelu;
  backend->run[GB_OP_dropout] = backend->run[GB_OP_dropout_backward] = run_dropout;
  backend->run[GB_OP_bitwise_not] = run_bitwise_not;
  backend->run[GB_OP_tril] = backend->run[GB_OP_triu] = run_triangle;
}
