/* base/functions.h - the functions of functions.def as inline functions, one for each type that a row serves.
 *
 * gb_NAME_f32, _f64 and _i64 take what the row's operands name, in order: inputs and numbers in that type, bools as
 * bytes. They give that type or, where the row is a test, a byte. gb_NAME_fault says where a CHECKED row has no value.
 * This is C that gcc, clang and nvcc compile: kernels and epilogues of every backend call these functions. */
#ifndef GB_BASE_FUNCTIONS_H
#define GB_BASE_FUNCTIONS_H

#include <stdbool.h>

#include "base/math.h"

/* {==== what rows are made of ==== */

/* The remainder with the sign of the divisor, as in Lua. */
GB_INLINE float gb_remainderf(float x, float y) {
  float r = fmodf(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
GB_INLINE double gb_remainder(double x, double y) {
  double r = fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* The whole quotient by what the remainder leaves, so that x = quotient * y + remainder as near as floats can: 1 / 0.1
 * rounds to 10, and ten times the float next to 0.1 is above 1. The rest of the division may be a little off a whole
 * number. As PyTorch's: NaN of an infinite x, and what x / y is where y is 0. */
GB_INLINE float gb_floor_quotientf(float x, float y) {
  if (y == 0) return x / y;
  float rest = fmodf(x, y), quotient = (x - rest) / y - (rest != 0 && (rest < 0) != (y < 0));
  float whole = floorf(quotient);
  return quotient == 0 ? copysignf(0.0f, x / y) : whole + (quotient - whole > 0.5f);
}
GB_INLINE double gb_floor_quotient(double x, double y) {
  if (y == 0) return x / y;
  double rest = fmod(x, y), quotient = (x - rest) / y - (rest != 0 && (rest < 0) != (y < 0));
  double whole = floor(quotient);
  return quotient == 0 ? copysign(0.0, x / y) : whole + (quotient - whole > 0.5);
}

/* Integer division that rounds down, and its remainder; 0 where y is 0. -1 is apart, since INT64_MIN / -1 traps. */
GB_INLINE int64_t gb_floor_divide(int64_t x, int64_t y) {
  if (y == 0 || y == -1) return y == 0 ? 0 : (int64_t)(0 - (uint64_t)x);
  int64_t quotient = x / y, rest = x % y;
  return quotient - (rest != 0 && (rest < 0) != (y < 0));
}
/* By Euclid; without sign, since the magnitude of INT64_MIN is no int64. */
GB_INLINE int64_t gb_gcd(int64_t x, int64_t y) {
  uint64_t a = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, b = y < 0 ? 0 - (uint64_t)y : (uint64_t)y;
  while (b) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return (int64_t)a;
}
GB_INLINE int64_t gb_lcm(int64_t x, int64_t y) {
  uint64_t a = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, b = y < 0 ? 0 - (uint64_t)y : (uint64_t)y;
  uint64_t common = (uint64_t)gb_gcd(x, y);
  return common ? (int64_t)(a / common * b) : 0;
}
GB_INLINE int64_t gb_integer_remainder(int64_t x, int64_t y) {
  if (y == 0 || y == -1) return 0;
  int64_t rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* The remainder with the sign of the dividend, as in C; 0 where y is 0. */
GB_INLINE int64_t gb_integer_fmod(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }

/* By squaring, wrapping; a negative exponent gives the reciprocal cut to an integer, and 0 for 0. */
GB_INLINE int64_t gb_integer_power(int64_t base, int64_t exponent) {
  uint64_t power = 1, factor = (uint64_t)base;
  if (exponent < 0) return base == 1 || (base == -1 && exponent % 2 == 0) ? 1 : base == -1 ? -1 : 0;
  for (; exponent > 0; exponent >>= 1, factor *= factor)
    if (exponent & 1) power *= factor;
  return (int64_t)power;
}

/* ====} */

/* {==== reading the list: what a GB_FUNCTION makes of a row's columns ==== */

/* As parameters, for a type and whatever holds a bool. */
#define GB_PARAMETERS_X(type, flag) type x
#define GB_PARAMETERS_XY(type, flag) type x, type y
#define GB_PARAMETERS_XYZ(type, flag) type x, type y, type z
#define GB_PARAMETERS_XA(type, flag) type x, type a
#define GB_PARAMETERS_XYA(type, flag) type x, type y, type a
#define GB_PARAMETERS_XAB(type, flag) type x, type a, type b
#define GB_PARAMETERS_XYZA(type, flag) type x, type y, type z, type a
#define GB_PARAMETERS_CXY(type, flag) flag c, type x, type y
#define GB_PARAMETERS_XCA(type, flag) type x, flag c, type a

/* How many inputs and numbers there are, and which input (from 1; 0 is none) holds bools. */
enum {
  GB_INPUTS_X = 1, GB_INPUTS_XY = 2, GB_INPUTS_XYZ = 3, GB_INPUTS_XA = 1, GB_INPUTS_XAB = 1, GB_INPUTS_XYZA = 3,
  GB_INPUTS_CXY = 3, GB_INPUTS_XCA = 2, GB_INPUTS_XYA = 2,
  GB_NUMBERS_X = 0, GB_NUMBERS_XY = 0, GB_NUMBERS_XYZ = 0, GB_NUMBERS_XA = 1, GB_NUMBERS_XAB = 2, GB_NUMBERS_XYZA = 1,
  GB_NUMBERS_CXY = 0, GB_NUMBERS_XCA = 1, GB_NUMBERS_XYA = 1,
  GB_MASK_X = 0, GB_MASK_XY = 0, GB_MASK_XYZ = 0, GB_MASK_XA = 0, GB_MASK_XAB = 0, GB_MASK_XYZA = 0, GB_MASK_CXY = 1,
  GB_MASK_XCA = 2, GB_MASK_XYA = 0,
  GB_IS_TEST_SAME = 0, GB_IS_TEST_BOOL = 1
};

/* Text for rows that serve floats, or integers, that are an op whose kernel is made of the row, that have faults. */
#define GB_WHERE_FLOATS_FLOAT(...) __VA_ARGS__
#define GB_WHERE_FLOATS_FORM(...) __VA_ARGS__
#define GB_WHERE_FLOATS_ALL(...) __VA_ARGS__
#define GB_WHERE_FLOATS_CHECKED(...) __VA_ARGS__
#define GB_WHERE_FLOATS_INT(...)
#define GB_WHERE_FLOATS_OWN(...)
#define GB_WHERE_INTS_FLOAT(...)
#define GB_WHERE_INTS_FORM(...)
#define GB_WHERE_INTS_ALL(...) __VA_ARGS__
#define GB_WHERE_INTS_CHECKED(...) __VA_ARGS__
#define GB_WHERE_INTS_INT(...) __VA_ARGS__
#define GB_WHERE_INTS_OWN(...)
#define GB_WHERE_OP_FLOAT(...) __VA_ARGS__
#define GB_WHERE_OP_FORM(...)
#define GB_WHERE_OP_ALL(...) __VA_ARGS__
#define GB_WHERE_OP_CHECKED(...) __VA_ARGS__
#define GB_WHERE_OP_INT(...) __VA_ARGS__
#define GB_WHERE_OP_OWN(...)
#define GB_WHERE_CHECKED_FLOAT(...)
#define GB_WHERE_CHECKED_FORM(...)
#define GB_WHERE_CHECKED_ALL(...)
#define GB_WHERE_CHECKED_CHECKED(...) __VA_ARGS__
#define GB_WHERE_CHECKED_INT(...)
#define GB_WHERE_CHECKED_OWN(...)

#define GB_RESULT_SAME(type) type
#define GB_RESULT_BOOL(type) uint8_t

/* ====} */

/* {==== the functions ==== */

#define U(v) ((uint64_t)(v))
/* NaN stays, as x and as a bound. */
#define AT_LEAST(x, a) ((x) >= (a) || (x) != (x) ? (x) : (a))
#define AT_MOST(x, b) ((x) <= (b) || (x) != (x) ? (x) : (b))
#define DEFINE(name, type, suffix, operands, result, value) \
  GB_INLINE GB_RESULT_##result(type) gb_##name##_##suffix(GB_PARAMETERS_##operands(type, uint8_t)) { \
    return (GB_RESULT_##result(type))(value); \
  }

#define T float
#define M(name) name##f
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(DEFINE(name, float, f32, operands, result, of_floats))
#include "base/functions.def"
#undef T
#undef M

#define T double
#define M(name) name
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(DEFINE(name, double, f64, operands, result, of_floats))
#include "base/functions.def"
#undef T
#undef M

#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_INTS_##types(DEFINE(name, int64_t, i64, operands, result, of_ints))
#include "base/functions.def"

#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_CHECKED_##types(GB_INLINE bool gb_##name##_fault(int64_t x, int64_t y) { return (void)x, fault; })
#include "base/functions.def"

#undef U
#undef AT_LEAST
#undef AT_MOST
#undef DEFINE

/* A number for each row. */
typedef enum gb_function {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) GB_FUNCTION_##name,
#include "base/functions.def"
  GB_FUNCTION_COUNT
} gb_function;

/* Does a plain number beside integers wrap to their dtype first, as a 0-d tensor does? A quotient hangs on it: PyTorch
 * divides uint8 by 253 where it is given -3. Elsewhere only the result wraps, which is the same, or the number is an
 * exponent, a bound or a shift. */
GB_INLINE bool gb_wraps_numbers(int function) {
  return function == GB_FUNCTION_floor_divide || function == GB_FUNCTION_remainder || function == GB_FUNCTION_fmod;
}

/* ====} */

#endif
