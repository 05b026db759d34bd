/* cuda/functions.cuh - the functions of base/functions.def as elements.cuh takes them, and how the kernels made of them
 * are cut into files.
 *
 * What is hot has a kernel per function: strips of float32 and of 16-bit floats, those of one input in
 * elementwise_one.cu, the others in elementwise_more.cu. What is cold shares kernels, whose threads all take one way
 * through a switch over the functions: float64, int64, and float32 in layouts that are not for strips, in
 * elementwise_any.cu. */
#ifndef GB_CUDA_FUNCTIONS_CUH
#define GB_CUDA_FUNCTIONS_CUH

#include "cuda/elements.cuh"
#include "base/near.h"
#include "base/functions.h" /* compiled for the device as device.cuh says */

typedef float f32;
typedef double f64;
typedef int64_t i64;

/* What a function is given of the inputs x, y, z and the numbers n. */
#define GB_VALUES_X x
#define GB_VALUES_XY x, y
#define GB_VALUES_XYZ x, y, z
#define GB_VALUES_XA x, n.a
#define GB_VALUES_XAB x, n.a, n.b
#define GB_VALUES_XYA x, y, n.a
#define GB_VALUES_XYZA x, y, z, n.a
#define GB_VALUES_CXY x != 0, y, z
#define GB_VALUES_XCA x, y != 0, n.a

/* name_type: the row's function of that type. The result of a test is stored as anything but 0. */
#define GB_FUNCTOR(name, type, operands, price, report, ...) \
  struct name##_##type { \
    static constexpr int inputs = GB_INPUTS_##operands, cost = price; \
    static constexpr bool vector = sizeof(type) == 4; \
    static __device__ __forceinline__ type of(type x, type y, type z, const gb_numbers<type> &n) { \
      (void)x, (void)y, (void)z, (void)n; \
      report; \
      return (type)gb_##name##_##type(__VA_ARGS__); \
    } \
  };
#define GB_REPORT_FLOAT(name)
#define GB_REPORT_FORM(name)
#define GB_REPORT_ALL(name)
#define GB_REPORT_INT(name)
#define GB_REPORT_CHECKED(name) if (gb_##name##_fault(x, y)) gb_report(n.fault, GB_FAULT_DIVISION, n.op, 0, 0)

#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_FLOATS_##types(GB_FUNCTOR(name, f32, operands, cost, , GB_VALUES_##operands)) \
  GB_WHERE_FLOATS_##types(GB_FUNCTOR(name, f64, operands, cost, , GB_VALUES_##operands)) \
  GB_WHERE_INTS_##types(GB_FUNCTOR(name, i64, operands, cost, GB_REPORT_##types(name), GB_VALUES_##operands))
#include "base/functions.def"

/* Those of base/near.h, for results of 16 bits. */
#define GB_NEAR(name) \
  struct name##_near { \
    static constexpr int inputs = name##_f32::inputs, cost = name##_f32::cost; \
    static __device__ __forceinline__ float of(float x, float, float, const gb_numbers<float> &) { \
      return gb_near_##name(x); \
    } \
  }; \
  template <> struct gb_short<name##_f32> { typedef name##_near type; };
GB_NEAR(tanh)
GB_NEAR(sigmoid)
GB_NEAR(silu)
GB_NEAR(gelu_tanh)
#undef GB_NEAR

/* Run a function over strips, if the walk is for strips; else false. NULL in the other file's table, and where a
 * function serves no floats. */
typedef bool (*gb_strips_run)(const gb_elements &e, const gb_walk &w);
extern const gb_strips_run gb_strips_one[GB_FUNCTION_COUNT], gb_strips_more[GB_FUNCTION_COUNT];

/* A row of these tables: the run of a function for the inputs that the file has. */
template <class F> static bool gb_strips_of(const gb_elements &e, const gb_walk &w) {
  return gb_try_strips<F>(e, w, gb_numbers_of<float>(e));
}
template <class F, bool here> static constexpr gb_strips_run gb_strips_if(void) {
  if constexpr (here) return gb_strips_of<F>;
  else return NULL;
}

/* Run e.function over a walk of any layout, in one of the types. inputs: of the function; dear: it costs much. */
void gb_run_any_f32(const gb_elements &e, const gb_walk &w, int inputs, bool dear);
void gb_run_any_f64(const gb_elements &e, const gb_walk &w, int inputs);
void gb_run_any_i64(const gb_elements &e, const gb_walk &w, int inputs);

/* From this cost on a function counts as dear, as pow and sin do: it takes registers and local memory, which would slow
 * down the cheap ones beside it in a kernel. */
enum { GB_DEAR = 8 };

#endif
