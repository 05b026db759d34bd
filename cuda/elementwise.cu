/* cuda/elementwise.cu - kernels that compute each element of the result from the same element of their operands.
 *
 * A row of the table holds the functions of one op for float32 (which serves 16-bit floats too), float64 and int64; elements.cuh brings any
 * dtype, layout and broadcast to them. Each moves its operands' bytes once in and once out, so at size all of them are bound by memory. */
#include "cuda/elements.cuh"
#include "cuda/families.h"

typedef float f32;
typedef double f64;
typedef int64_t i64;

/* {==== the functions ==== */

/* The one place where functions are made: name_type computes `value` of the operands x, y, z and the op's numbers a, b. */
#define FUNCTION(name, type, count, value)                                                                           \
  struct name##_##type {                                                                                             \
    static constexpr int inputs = count;                                                                             \
    static constexpr bool vector = sizeof(type) == 4;                                                                \
    static __device__ __forceinline__ type of(type x, type y, type z, const gb_numbers<type> &n) {                   \
      const type a = n.a, b = n.b;                                                                                   \
      (void)x, (void)y, (void)z, (void)a, (void)b;                                                                   \
      return (type)(value);                                                                                          \
    }                                                                                                                \
  };
#define F32(name, count, value) FUNCTION(name, f32, count, value)
#define F64(name, count, value) FUNCTION(name, f64, count, value)
#define I64(name, count, value) FUNCTION(name, i64, count, value)
/* The same text for both float types. */
#define FLOAT(name, count, value) F32(name, count, value) F64(name, count, value)
/* From any type to bool; the result is stored as anything but 0. */
#define TEST(name, count, value) F32(name, count, value) F64(name, count, value) I64(name, count, value)

/* Integers wrap, and so are computed without sign where they may. */
#define U(v) ((uint64_t)(v))

FLOAT(add, 2, x + y)
I64(add, 2, U(x) + U(y))
FLOAT(sub, 2, x - y)
I64(sub, 2, U(x) - U(y))
FLOAT(mul, 2, x *y)
I64(mul, 2, U(x) * U(y))
FLOAT(div, 2, x / y)
FLOAT(maximum, 2, x > y || x != x ? x : y)
I64(maximum, 2, x > y ? x : y)
FLOAT(minimum, 2, x < y || x != x ? x : y)
I64(minimum, 2, x < y ? x : y)
FLOAT(floor_divide, 2, floor(x / y))
FLOAT(pow, 2, pow(x, y))
FLOAT(cube, 1, x *x *x)
FLOAT(atan2, 2, atan2(x, y))
FLOAT(neg, 1, -x)
I64(neg, 1, 0 - U(x))
FLOAT(abs, 1, fabs(x))
I64(abs, 1, x < 0 ? (i64)(0 - U(x)) : x)
FLOAT(sign, 1, (x > 0) - (x < 0))
I64(sign, 1, (x > 0) - (x < 0))
FLOAT(square, 1, x *x)
I64(square, 1, U(x) * U(x))
FLOAT(reciprocal, 1, 1 / x)
FLOAT(sqrt, 1, sqrt(x))
FLOAT(rsqrt, 1, 1 / sqrt(x))
F32(exp, 1, gb_expf(x))
F64(exp, 1, exp(x))
F32(expm1, 1, gb_expm1f(x))
F64(expm1, 1, expm1(x))
F32(log, 1, gb_logf(x))
F64(log, 1, log(x))
FLOAT(log2, 1, log2(x))
FLOAT(log10, 1, log10(x))
F32(log1p, 1, gb_log1pf(x))
F64(log1p, 1, log1p(x))
FLOAT(sin, 1, sin(x))
FLOAT(cos, 1, cos(x))
FLOAT(tan, 1, tan(x))
F32(tanh, 1, gb_tanhf(x))
F64(tanh, 1, tanh(x))
F32(erf, 1, gb_erff(x))
F64(erf, 1, erf(x))
FLOAT(floor, 1, floor(x))
FLOAT(ceil, 1, ceil(x))
FLOAT(round, 1, rint(x))
FLOAT(trunc, 1, trunc(x))
I64(same, 1, x)
/* NaN stays, and a bound that is NaN leaves nothing else; where the bounds cross, the upper one counts. */
#define AT_LEAST(x, a) ((x) >= (a) || (x) != (x) ? (x) : (a))
#define AT_MOST(x, b) ((x) <= (b) || (x) != (x) ? (x) : (b))
FLOAT(clamp, 1, AT_MOST(AT_LEAST(x, a), b))
I64(clamp, 1, (x < a ? a : x) > b ? b : x < a ? a : x)
/* From the nearer end, so that weight 1 gives y exactly. */
FLOAT(lerp, 3, z > -0.5f && z < 0.5f ? x + z * (y - x) : y - (y - x) * (1 - z))
FLOAT(addcmul, 3, x + a * y * z)
I64(addcmul, 3, U(x) + U(a) * U(y) * U(z))
FLOAT(addcdiv, 3, x + a * y / z)

static GB_DEVICE double sigmoid_of(double v) { return v < 0 ? exp(v) / (1 + exp(v)) : 1 / (1 + exp(-v)); }
static GB_DEVICE double gelu_of(double v) { return 0.5 * v * (1 + erf(v * 0.70710678118654752440)); }
static GB_DEVICE double gelu_slope_of(double v) { return 0.5 * (1 + erf(v * 0.70710678118654752440)) + v * 0.39894228040143267794 * exp(-0.5 * v * v); }
static GB_DEVICE double gelu_tanh_inner_of(double v) { return 0.79788456080286535588 * (v + 0.044715 * v * v * v); }
static GB_DEVICE double gelu_tanh_slope_of(double v) {
  double t = tanh(gelu_tanh_inner_of(v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.79788456080286535588 * (1 + 0.134145 * v * v);
}
static GB_DEVICE double silu_slope_of(double v) { return sigmoid_of(v) * (1 + v * (1 - sigmoid_of(v))); }
static GB_DEVICE double softplus_of(double v) { return fmax(v, 0.0) + log1p(exp(-fabs(v))); }

F32(sigmoid, 1, gb_sigmoidf(x))
F64(sigmoid, 1, sigmoid_of(x))
FLOAT(relu, 1, x < 0 ? 0 : x)
I64(relu, 1, x < 0 ? 0 : x)
FLOAT(leaky_relu, 1, x > 0 ? x : x * a)
F32(elu, 1, x > 0 ? x : a * gb_expm1f(x))
F64(elu, 1, x > 0 ? x : a * expm1(x))
F32(silu, 1, gb_siluf(x))
F64(silu, 1, x *sigmoid_of(x))
F32(gelu, 1, gb_geluf(x))
F64(gelu, 1, gelu_of(x))
F32(gelu_tanh, 1, gb_gelu_tanhf(x))
F64(gelu_tanh, 1, 0.5 * x * (1 + tanh(gelu_tanh_inner_of(x))))
F32(softplus, 1, x *a > b ? x : gb_softplusf(x * a) / a)
F64(softplus, 1, x *a > b ? x : softplus_of(x * a) / a)

/* Backward: x is the gradient that comes in, y the saved input or result. */
FLOAT(relu_backward, 2, y <= 0 ? 0 : x)
FLOAT(tanh_backward, 2, x *(1 - y * y))
FLOAT(sigmoid_backward, 2, x *(y * (1 - y)))
F32(silu_backward, 2, x *gb_silu_slopef(y))
F64(silu_backward, 2, x *silu_slope_of(y))
F32(gelu_backward, 2, x *gb_gelu_slopef(y))
F64(gelu_backward, 2, x *gelu_slope_of(y))
F32(gelu_tanh_backward, 2, x *gb_gelu_tanh_slopef(y))
F64(gelu_tanh_backward, 2, x *gelu_tanh_slope_of(y))

TEST(eq, 2, x == y)
TEST(ne, 2, x != y)
TEST(lt, 2, x < y)
TEST(le, 2, x <= y)
TEST(gt, 2, x > y)
TEST(ge, 2, x >= y)
TEST(logical_and, 2, x != 0 && y != 0)
TEST(logical_or, 2, x != 0 || y != 0)
TEST(logical_xor, 2, (x != 0) != (y != 0))
TEST(logical_not, 1, x == 0)
TEST(isnan, 1, x != x)
F32(isinf, 1, fabs(x) == (f32)INFINITY)
F64(isinf, 1, fabs(x) == (f64)INFINITY)
I64(isinf, 1, 0)
F32(isfinite, 1, fabs(x) < (f32)INFINITY)
F64(isfinite, 1, fabs(x) < (f64)INFINITY)
I64(isfinite, 1, 1)

I64(bitwise_and, 2, x &y)
I64(bitwise_or, 2, x | y)
I64(bitwise_xor, 2, x ^ y)
I64(bitwise_not, 1, ~x)

/* The condition comes first. */
FLOAT(where, 3, x != 0 ? y : z)
I64(where, 3, x != 0 ? y : z)
FLOAT(masked_fill, 2, y != 0 ? a : x)
I64(masked_fill, 2, y != 0 ? a : x)

/* {---- more than an expression ---- */

/* The remainder with the sign of the divisor, as in Lua. */
template <typename T> static GB_DEVICE T remainder_of(T x, T y) {
  T r = fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
FLOAT(remainder, 2, remainder_of(x, y))

/* Integer division that rounds down, or its remainder. 0 as a divisor is reported; -1 is apart, since INT64_MIN / -1 overflows. */
static __device__ __forceinline__ i64 divide_integers(i64 a, i64 b, bool want_remainder, const gb_numbers<i64> &n) {
  if (b == 0) gb_report(n.fault, GB_FAULT_DIVISION, n.op, a, 0);
  if (b == 0 || b == -1) return want_remainder || b == 0 ? 0 : (i64)(0 - U(a));
  i64 quotient = a / b, rest = a % b;
  bool down = rest != 0 && (rest < 0) != (b < 0);
  return want_remainder ? rest + (down ? b : 0) : quotient - down;
}
I64(floor_divide, 2, divide_integers(x, y, false, n))
I64(remainder, 2, divide_integers(x, y, true, n))

/* By squaring, wrapping; a negative exponent gives the reciprocal cut to an integer, and is reported for 0. */
static __device__ __forceinline__ i64 integer_power(i64 base, i64 exponent, const gb_numbers<i64> &n) {
  uint64_t power = 1, factor = U(base);
  if (exponent < 0) {
    if (base == 0) gb_report(n.fault, GB_FAULT_DIVISION, n.op, 1, 0);
    return base == 1 || (base == -1 && exponent % 2 == 0) ? 1 : base == -1 ? -1 : 0;
  }
  for (; exponent > 0; exponent >>= 1, factor *= factor)
    if (exponent & 1) power *= factor;
  return (i64)power;
}
I64(pow, 2, integer_power(x, y, n))

/* ----} */
/* ====} */

/* {==== the table ==== */

/* The runs of one op by type, and which input (from 1; 0 is none) is a bool mask. Without the last, the result
 * is a float, and integers are computed as float32. */
typedef void (*run_fn)(const gb_elements &e);
struct row { gb_op op; run_fn run_f32, run_f64, run_i64; bool gives_bool; int mask; };

#define RUN(name, type) gb_run_elements<name##_##type, type>
#define ALL(name) { GB_OP_##name, RUN(name, f32), RUN(name, f64), RUN(name, i64), false, 0 }
#define FLOATS(name) { GB_OP_##name, RUN(name, f32), RUN(name, f64), NULL, false, 0 }
#define TESTS(name) { GB_OP_##name, RUN(name, f32), RUN(name, f64), RUN(name, i64), true, 0 }
#define ROUNDS(name) { GB_OP_##name, RUN(name, f32), RUN(name, f64), RUN(same, i64), false, 0 }
#define INTEGERS(name) { GB_OP_##name, NULL, NULL, RUN(name, i64), false, 0 }
#define MASKED(name, mask) { GB_OP_##name, RUN(name, f32), RUN(name, f64), RUN(name, i64), false, mask }

static const row rows[] = {
  ALL(add), ALL(sub), ALL(mul), FLOATS(div), ALL(floor_divide), ALL(remainder), ALL(pow), ALL(maximum), ALL(minimum), FLOATS(atan2), ALL(neg),
  ALL(abs), ALL(sign), FLOATS(exp), FLOATS(expm1), FLOATS(log), FLOATS(log2), FLOATS(log10), FLOATS(log1p), FLOATS(sqrt), FLOATS(rsqrt),
  ALL(square), FLOATS(reciprocal), FLOATS(sin), FLOATS(cos), FLOATS(tan), FLOATS(tanh), FLOATS(erf), ROUNDS(floor), ROUNDS(ceil), ROUNDS(round),
  ROUNDS(trunc), ALL(clamp), FLOATS(lerp), ALL(addcmul), FLOATS(addcdiv), MASKED(where, 1), MASKED(masked_fill, 2), FLOATS(sigmoid), ALL(relu),
  FLOATS(leaky_relu), FLOATS(elu), FLOATS(gelu), FLOATS(silu), FLOATS(softplus), FLOATS(relu_backward), FLOATS(gelu_backward),
  FLOATS(silu_backward), FLOATS(tanh_backward), FLOATS(sigmoid_backward), TESTS(eq), TESTS(ne), TESTS(lt), TESTS(le), TESTS(gt), TESTS(ge),
  TESTS(logical_and), TESTS(logical_or), TESTS(logical_xor), TESTS(logical_not), INTEGERS(bitwise_and), INTEGERS(bitwise_or),
  INTEGERS(bitwise_xor), INTEGERS(bitwise_not), TESTS(isnan), TESTS(isinf), TESTS(isfinite),
  { GB_OP_scale_loss, RUN(mul, f32), RUN(mul, f64), NULL, false, 0 },
};

/* Rows that an attribute chooses. */
static const row cube_row = { GB_OP_pow, RUN(cube, f32), RUN(cube, f64), NULL, false, 0 };
static const row gelu_tanh_row = { GB_OP_gelu, RUN(gelu_tanh, f32), RUN(gelu_tanh, f64), NULL, false, 0 };
static const row gelu_tanh_backward_row = { GB_OP_gelu_backward, RUN(gelu_tanh_backward, f32), RUN(gelu_tanh_backward, f64), NULL, false, 0 };

static const row *row_of(gb_op op) {
  for (const row &r : rows)
    if (r.op == op) return &r;
  return NULL;
}

/* ====} */

/* {==== running a row ==== */

/* A 0-d operand of another dtype than the common one is converted to it first where that shows: among integers, where it may wrap (a
 * plain number does not), and in tests, which see it in the 16-bit dtype of what it meets. */
static void convert_constants(gb_elements *e, const row *r, gb_dtype common, int inputs) {
  bool integer = common == GB_INT64 || common == GB_INT32 || common == GB_UINT8, test = r->gives_bool && (common == GB_FLOAT16 || common == GB_BFLOAT16);
  for (int k = 1; k <= inputs; k++) {
    const gb_cuda_tensor *t = e->operand[k];
    if (t->numel == 1 && t->dtype != common && k != r->mask && (test || (integer && !t->wrapped))) e->through[k] = common;
  }
}

/* What a row computes in: the promoted dtype of the inputs, the mask left aside; float32 where integers give a float. */
static gb_dtype common_dtype(const gb_cuda_call *call, const row *r) {
  gb_dtype dtype = gb_cuda_common(call, r->mask - 1);
  return !r->gives_bool && gb_is_float(call->out[0]->dtype) && !gb_is_float(dtype) ? GB_FLOAT32 : dtype;
}

/* Run a row over the first `inputs` inputs with the numbers a and b (NULL: none). */
static gb_status run_row(gb_cuda_call *call, const row *r, int inputs, const gb_attr *a, const gb_attr *b) {
  gb_elements e = gb_elements_of(call, inputs);
  gb_dtype common = common_dtype(call, r);
  if (a) e.number[0] = *a;
  if (b) e.number[1] = *b;
  convert_constants(&e, r, common, inputs);
  run_fn run = common == GB_FLOAT64 ? r->run_f64 : gb_is_float(common) ? r->run_f32 : r->run_i64;
  run(e);
  return GB_OK;
}

/* A number that no attribute is. */
static gb_attr number_of(double value) {
  gb_attr number = {};
  number.given = true;
  number.number = value;
  return number;
}

/* No attributes that are numbers. */
static gb_status run_plain(gb_cuda_call *call) {
  return run_row(call, row_of(call->op), call->n_in, NULL, NULL);
}

/* One attribute that is a number. */
static gb_status run_number(gb_cuda_call *call) { return run_row(call, row_of(call->op), call->n_in, &call->attrs[0], NULL); }

static gb_status run_softplus(gb_cuda_call *call) {
  return run_row(call, row_of(call->op), 1, &call->attrs[0], &call->attrs[1]);
}

/* A bound that is not given is infinite. */
static gb_status run_clamp(gb_cuda_call *call) {
  gb_attr least = number_of(-INFINITY), most = number_of(INFINITY);
  if (call->attrs[0].given) least = call->attrs[0];
  if (call->attrs[1].given) most = call->attrs[1];
  return run_row(call, row_of(call->op), 1, &least, &most);
}

/* The exponents 2 and 3 are multiplications where the host knows them. */
static gb_status run_pow(gb_cuda_call *call) {
  const gb_cuda_tensor *y = call->in[1];
  double exponent = y->host && gb_is_float(gb_cuda_common(call, -1)) ? gb_load<double>(y->data, y->dtype, 0) : 0;
  if (exponent == 2) return run_row(call, row_of(GB_OP_square), 1, NULL, NULL);
  if (exponent == 3) return run_row(call, &cube_row, 1, NULL, NULL);
  return run_row(call, row_of(GB_OP_pow), 2, NULL, NULL);
}

/* A finite value that x's dtype cannot hold becomes the largest one it can. */
static gb_status run_masked_fill(gb_cuda_call *call) {
  gb_dtype dtype = call->out[0]->dtype;
  double value = call->attrs[0].number;
  double most = dtype == GB_FLOAT16 ? 65504.0 : dtype == GB_BFLOAT16 ? 0x1.fep127 : 0x1.fffffep127;
  bool limit = gb_is_float(dtype) && dtype != GB_FLOAT64 && isfinite(value);
  gb_attr stored = call->attrs[0];
  if (limit && fabs(value) > most) stored = number_of(value > 0 ? most : -most);
  return run_row(call, row_of(call->op), 2, &stored, NULL);
}

static gb_status run_gelu(gb_cuda_call *call) {
  bool by_tanh = call->attrs[0].string[0] == 't';
  const row *r = !by_tanh ? row_of(call->op) : call->op == GB_OP_gelu ? &gelu_tanh_row : &gelu_tanh_backward_row;
  return run_row(call, r, call->n_in, NULL, NULL);
}

/* Flipping the bits of a bool would leave it true. */
static gb_status run_bitwise_not(gb_cuda_call *call) {
  return run_row(call, row_of(call->in[0]->dtype == GB_BOOL ? GB_OP_logical_not : GB_OP_bitwise_not), 1, NULL, NULL);
}

/* ====} */

#define PLAIN(name) { GB_OP_##name, run_plain, true }
#define NUMBER(name) { GB_OP_##name, run_number, true }

const gb_cuda_row gb_cuda_elementwise[] = {
  PLAIN(add), PLAIN(sub), PLAIN(mul), PLAIN(div), PLAIN(floor_divide), PLAIN(remainder), { GB_OP_pow, run_pow, true }, PLAIN(maximum),
  PLAIN(minimum), PLAIN(atan2), PLAIN(neg), PLAIN(abs), PLAIN(sign), PLAIN(exp), PLAIN(expm1), PLAIN(log), PLAIN(log2), PLAIN(log10),
  PLAIN(log1p), PLAIN(sqrt), PLAIN(rsqrt), PLAIN(square), PLAIN(reciprocal), PLAIN(sin), PLAIN(cos), PLAIN(tan), PLAIN(tanh), PLAIN(erf),
  PLAIN(floor), PLAIN(ceil), PLAIN(round), PLAIN(trunc), { GB_OP_clamp, run_clamp, true }, PLAIN(lerp), NUMBER(addcmul), NUMBER(addcdiv),
  PLAIN(where), { GB_OP_masked_fill, run_masked_fill, true }, PLAIN(sigmoid), PLAIN(relu), NUMBER(leaky_relu), NUMBER(elu),
  { GB_OP_gelu, run_gelu, true }, PLAIN(silu), { GB_OP_softplus, run_softplus, true }, PLAIN(relu_backward),
  { GB_OP_gelu_backward, run_gelu, true }, PLAIN(silu_backward), PLAIN(tanh_backward), PLAIN(sigmoid_backward), PLAIN(eq), PLAIN(ne),
  PLAIN(lt), PLAIN(le), PLAIN(gt), PLAIN(ge), PLAIN(logical_and), PLAIN(logical_or), PLAIN(logical_xor), PLAIN(logical_not),
  PLAIN(bitwise_and), PLAIN(bitwise_or), PLAIN(bitwise_xor), { GB_OP_bitwise_not, run_bitwise_not, true }, PLAIN(isnan), PLAIN(isinf),
  PLAIN(isfinite), PLAIN(scale_loss), { GB_OP_COUNT, NULL, false },
};
