/* cuda/elementwise_more.cu - kernels of functions of two and three inputs, over strips of float32 and 16-bit floats;
 * see functions.cuh. */
#include "cuda/functions.cuh"

#define STRIPS(name) gb_strips_if<name##_f32, name##_f32::inputs != 1>()
#define FLOAT_STRIPS(name) STRIPS(name)
#define FORM_STRIPS(name) STRIPS(name)
#define ALL_STRIPS(name) STRIPS(name)
#define CHECKED_STRIPS(name) STRIPS(name)
#define INT_STRIPS(name) NULL
#define OWN_STRIPS(name) NULL

const gb_strips_run gb_strips_more[GB_FUNCTION_COUNT] = {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) types##_STRIPS(name),
#include "base/functions.def"
};
