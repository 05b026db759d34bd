/* cuda/elementwise.cu - kernels that compute each element of the result from the same element of their operands.
 *
 * What they compute stands in base/functions.def, of which the tables here are made. functions.cuh says where the
 * kernels are; elements.cuh brings any dtype, layout and broadcast to them. Each moves its operands' bytes once in and
 * once out, so at size all of them are bound by memory. */
#include "cuda/families.h"
#include "cuda/functions.cuh"

/* {==== the table ==== */

/* Of a function: its inputs and numbers, which input (from 1; 0 is none) is a bool mask, what an element costs, and
 * whether the result is bool. */
struct row { int8_t inputs, numbers, mask, cost; bool gives_bool; };

static const row rows[GB_FUNCTION_COUNT] = {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  { GB_INPUTS_##operands, GB_NUMBERS_##operands, GB_MASK_##operands, cost, GB_IS_TEST_##result },
#include "base/functions.def"
};

/* ====} */

/* {==== running a row ==== */

/* A 0-d operand of another dtype than the common one is converted to it first where that shows: among integers, where
 * it may wrap (a plain number in divisions only), and in tests, which see it in the 16-bit dtype of what it meets. */
static void convert_constants(gb_elements *e, const row *r, gb_dtype common, int inputs) {
  bool integer = gb_is_int(common), test = r->gives_bool && gb_is_16bit(common);
  bool wraps = gb_wraps_numbers(e->function);
  for (int k = 1; k <= inputs; k++) {
    const gb_cuda_tensor *t = e->operand[k];
    if (t->numel == 1 && t->dtype != common && k != r->mask && (test || (integer && (wraps || !t->wrapped))))
      e->through[k] = common;
  }
}

/* What a row computes in: the promoted dtype of the inputs, the mask left aside; float32 where integers give a
 * float. */
static gb_dtype common_dtype(const gb_cuda_call *call, const row *r, gb_dtype result) {
  gb_dtype dtype = gb_cuda_common(call, r->mask - 1);
  return !r->gives_bool && gb_is_float(result) && !gb_is_float(dtype) ? GB_FLOAT32 : dtype;
}

/* Each op of a function has one output, so that the name of any of them serves. */
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_OP_##types(static_assert(sizeof(gb_cuda_out_##name) == sizeof(gb_cuda_out_add), #name " has one output");)
#include "base/functions.def"

/* Run a function, its inputs the first ones of the call, with the numbers a and b (NULL: none). */
static gb_status run_function(gb_cuda_call *call, gb_function function, const gb_attr *a, const gb_attr *b) {
  const row *r = &rows[function];
  gb_elements e = gb_elements_of(call, GB_CUDA_OUT(call, add)->z, r->inputs);
  gb_dtype common = common_dtype(call, r, e.operand[0]->dtype);
  if (a) e.number[0] = *a;
  if (b) e.number[1] = *b;
  e.function = function;
  convert_constants(&e, r, common, r->inputs);
  gb_walk w = gb_plan(e.operand, r->inputs + 1, false);
  if (common == GB_FLOAT64) gb_run_any_f64(e, w, r->inputs);
  else if (!gb_is_float(common)) gb_run_any_i64(e, w, r->inputs);
  else {
    gb_strips_run strips = r->inputs == 1 ? gb_strips_one[function] : gb_strips_more[function];
    if (!strips || !strips(e, w)) gb_run_any_f32(e, w, r->inputs, r->cost >= GB_DEAR);
  }
  return GB_OK;
}

/* A number that no attribute is. */
static gb_attr number_of(double value) {
  gb_attr number = {};
  number.given = true;
  number.number = value;
  return number;
}

/* The op of a function. Its numbers are the op's first attributes; a bound that is not given is infinite. */
template <gb_function function> static gb_status run(gb_cuda_call *call) {
  gb_attr number[2] = { number_of(-INFINITY), number_of(INFINITY) };
  for (int i = 0; i < rows[function].numbers; i++)
    if (call->attrs[i].given) number[i] = call->attrs[i];
  return run_function(call, function, &number[0], &number[1]);
}

/* {---- ops that prepare something ---- */

/* The exponents 2 and 3 are multiplications where the host knows them. */
template <> gb_status run<GB_FUNCTION_pow>(gb_cuda_call *call) {
  const gb_cuda_tensor *y = GB_CUDA_IN(call, pow)->y;
  double exponent = y->host && gb_is_float(gb_cuda_common(call, -1)) ? gb_load<double>(y->data, y->dtype, 0) : 0;
  if (exponent == 2) return run_function(call, GB_FUNCTION_square, NULL, NULL);
  if (exponent == 3) return run_function(call, GB_FUNCTION_cube, NULL, NULL);
  return run_function(call, GB_FUNCTION_pow, NULL, NULL);
}

/* A bound of clamp as a number; `absent` where it is not given. */
static gb_attr bound_of(const gb_cuda_tensor *bound, double absent) {
  if (!bound) return number_of(absent);
  if (bound->dtype == GB_INT64) return gb_attr_whole(gb_load<int64_t>(bound->data, bound->dtype, 0));
  return number_of(gb_load<double>(bound->data, bound->dtype, 0));
}

/* Numbers bound in one pass. Tensors take one for each bound, the second over the result of the first. */
template <> gb_status run<GB_FUNCTION_clamp>(gb_cuda_call *call) {
  gb_cuda_in_clamp pass = *GB_CUDA_IN(call, clamp), given = pass;
  const gb_cuda_tensor **all = call->in;
  gb_status status = GB_OK;
  if ((!given.min || given.min->wrapped) && (!given.max || given.max->wrapped)) {
    gb_attr least = bound_of(given.min, -INFINITY), most = bound_of(given.max, INFINITY);
    return run_function(call, GB_FUNCTION_clamp, &least, &most);
  }
  call->in = (const gb_cuda_tensor **)(void *)&pass;
  if (given.min) {
    status = run_function(call, GB_FUNCTION_maximum, NULL, NULL);
    pass.x = GB_CUDA_OUT(call, clamp)->y;
  }
  pass.min = given.max;
  if (given.max && status == GB_OK) status = run_function(call, GB_FUNCTION_minimum, NULL, NULL);
  call->in = all;
  return status;
}

/* A finite value that x's dtype cannot hold becomes the largest one it can. */
template <> gb_status run<GB_FUNCTION_masked_fill>(gb_cuda_call *call) {
  gb_dtype dtype = GB_CUDA_OUT(call, masked_fill)->y->dtype;
  gb_attr value = GB_ATTRS(call, masked_fill)->value;
  bool limit = gb_is_float(dtype) && dtype != GB_FLOAT64 && isfinite(value.number);
  double largest = limit ? gb_largest_of(dtype) : INFINITY;
  if (fabs(value.number) > largest) value = number_of(copysign(largest, value.number));
  return run_function(call, GB_FUNCTION_masked_fill, &value, NULL);
}

/* The approximate form is another function. */
static gb_status run_gelu(gb_cuda_call *call, const gb_attr &approximate, gb_function exact, gb_function by_tanh) {
  return run_function(call, approximate.integer == GB_WORD_tanh ? by_tanh : exact, NULL, NULL);
}
template <> gb_status run<GB_FUNCTION_gelu>(gb_cuda_call *call) {
  return run_gelu(call, GB_ATTRS(call, gelu)->approximate, GB_FUNCTION_gelu, GB_FUNCTION_gelu_tanh);
}
template <> gb_status run<GB_FUNCTION_gelu_backward>(gb_cuda_call *call) {
  const gb_attr &approximate = GB_ATTRS(call, gelu_backward)->approximate;
  return run_gelu(call, approximate, GB_FUNCTION_gelu_backward, GB_FUNCTION_gelu_tanh_backward);
}

/* Flipping the bits of a bool would leave it true. */
template <> gb_status run<GB_FUNCTION_bitwise_not>(gb_cuda_call *call) {
  bool flags = GB_CUDA_IN(call, bitwise_not)->x->dtype == GB_BOOL;
  return run_function(call, flags ? GB_FUNCTION_logical_not : GB_FUNCTION_bitwise_not, NULL, NULL);
}

/* ----} */
/* ====} */

const gb_cuda_row gb_cuda_elementwise[] = {
#define GB_FUNCTION(name, operands, cost, types, result, of_floats, of_ints, fault) \
  GB_WHERE_OP_##types({ GB_OP_##name, run<GB_FUNCTION_##name>, true },)
#include "base/functions.def"
  { GB_OP_COUNT, NULL, false },
};
