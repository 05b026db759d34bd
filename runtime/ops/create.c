/* ops/create.c - checks and gradients of the ops that fill, draw and copy.
 *
 * The filling ops write the tensor they are given: the bindings make one and call them in place. */
#include <math.h>
#include <string.h>

#include "graph/ops.h"

/* {==== checks ==== */

/* The result is like x in everything. */
static gb_status check_like(gb_call *call) { return gb_call_output_like(call, 0, call->in[0], (gb_dtype)call->in[0]->dtype); }

/* As in PyTorch, an integer tensor takes the whole part of a number, and refuses what lies outside its range. */
static gb_status check_fill(gb_call *call) {
  GB_TRY(gb_require_fits(call, &call->attrs[0], (gb_dtype)call->in[0]->dtype));
  return check_like(call);
}

/* start + (n - 1) * step as a number, exact where both are integers and the sum is one. */
static gb_attr last_of(const gb_attr *start, const gb_attr *step, int64_t n) {
  __extension__ typedef __int128 wide;
  wide last = (wide)start->exact + (wide)(n - 1) * step->exact;
  bool whole = start->whole && step->whole && last == (int64_t)last;
  return whole ? gb_attr_whole((int64_t)last) : gb_attr_num(start->number + (double)(n - 1) * step->number);
}

/* Both ends fit, and so all between them. */
static gb_status check_sequence(gb_call *call) {
  const gb_tensor *x = call->in[0];
  gb_dtype dtype = (gb_dtype)x->dtype;
  if (x->numel > 0) {
    gb_attr last = last_of(&call->attrs[0], &call->attrs[1], x->numel);
    GB_TRY(gb_require_fits(call, &call->attrs[0], dtype));
    GB_TRY(gb_require_fits(call, &last, dtype));
  }
  return check_like(call);
}

static gb_status check_uniform(gb_call *call) {
  double low = call->attrs[0].number, high = call->attrs[1].number;
  GB_TRY(gb_require_float(call, 0));
  if (!(low <= high) || isinf(low) || isinf(high)) return gb_call_fail(call, GB_EINVAL, "the bounds must be finite and in order, not %g and %g",
                                                                       low, high);
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_normal(gb_call *call) {
  double std = call->attrs[1].number;
  GB_TRY(gb_require_float(call, 0));
  if (!(std >= 0)) return gb_call_fail(call, GB_EINVAL, "the standard deviation must not be negative, it is %g", std);
  gb_call_random(call);
  return check_like(call);
}

/* Integers from low to last are exact in the dtype. */
static bool holds(gb_dtype dtype, int64_t low, int64_t last) {
  const gb_format *f = gb_format_of(dtype);
  bool is_float = gb_is_float(dtype);
  return low >= (is_float ? -gb_whole_of(dtype) : f->least) && last <= (is_float ? gb_whole_of(dtype) : f->most);
}

static gb_status check_random_integers(gb_call *call) {
  int64_t low = call->attrs[0].integer, high = call->attrs[1].integer;
  gb_dtype dtype = (gb_dtype)call->in[0]->dtype;
  if (low >= high) return gb_call_fail(call, GB_EINVAL, "low must be below high, they are %lld and %lld", (long long)low, (long long)high);
  if (!holds(dtype, low, high - 1))
    return gb_call_fail(call, GB_EINVAL, "%s cannot hold every integer from %lld to %lld; choose a wider dtype", gb_dtype_name(dtype),
                        (long long)low, (long long)high - 1);
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_permutation(gb_call *call) {
  GB_TRY(gb_require_ndim(call, 0, 1, 1));
  if (call->in[0]->dtype != GB_INT64)
    return gb_call_fail(call, GB_EDTYPE, "fills an int64 vector, this one is %s", gb_dtype_name((gb_dtype)call->in[0]->dtype));
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_bernoulli(gb_call *call) {
  GB_TRY(gb_require_float(call, 0));
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_multinomial(gb_call *call) {
  const gb_tensor *x = call->in[0];
  int64_t samples = call->attrs[0].integer;
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 1, 2));
  int64_t n = x->shape[x->ndim - 1], shape[2] = { x->shape[0], samples };
  if (samples < 1) return gb_call_fail(call, GB_EINVAL, "samples must be at least 1, it is %lld", (long long)samples);
  if (n == 0) return gb_call_fail(call, GB_ESHAPE, "there are no weights to draw from");
  if (samples > n && !call->attrs[1].integer)
    return gb_call_fail(call, GB_EINVAL, "%lld samples without replacement from %lld weights; pass replacement = true", (long long)samples,
                        (long long)n);
  gb_call_random(call);
  return gb_call_output(call, 0, x->ndim, x->ndim == 2 ? shape : shape + 1, GB_INT64);
}

static gb_status check_cast(gb_call *call) { return gb_call_output_like(call, 0, call->in[0], (gb_dtype)call->attrs[0].integer); }

static gb_status check_contiguous(gb_call *call) {
  gb_tensor *x = call->in[0];
  if (gb_is_contiguous(x)) return gb_call_output_alias(call, 0, x);
  return gb_call_output(call, 0, x->ndim, x->shape, (gb_dtype)x->dtype);
}

static gb_status check_copy(gb_call *call) {
  const gb_tensor *x = call->in[0], *source = call->in[1];
  char a[96], b[96];
  int ndim = x->ndim;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, source->ndim, source->shape) || ndim != x->ndim || memcmp(shape, x->shape, sizeof *shape * (size_t)ndim))
    return gb_call_fail(call, GB_ESHAPE, "a tensor of shape %s cannot be broadcast into one of shape %s", gb_shape_text(source->ndim, source->shape,
                        a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  return check_like(call);
}

/* ====} */

/* {==== gradients ==== */

/* The cast back, to what the edge wants. */
static gb_status cast_gradient(gb_grad_call *grad) { return gb_op_cast(grad->context, grad->out[0], (gb_dtype)grad->want[0], &grad->in[0]); }

static gb_status same_gradient(gb_grad_call *grad) {
  gb_tensor_retain(grad->in[0] = grad->out[0]);
  return GB_OK;
}

/* The overwritten tensor gets no gradient, the source all of it. */
static gb_status copy_gradient(gb_grad_call *grad) {
  if (grad->need[0]) GB_TRY(gb_op_zeros_like(grad->context, grad->out[0], &grad->in[0]));
  if (!grad->need[1]) return GB_OK;
  const gb_edge *edge = &grad->node->edges[1];
  return gb_sum_to(grad->context, grad->out[0], edge->ndim, edge->shape, &grad->in[1]);
}

/* ====} */

const gb_op_impl gb_family_create[] = {
  { .op = GB_OP_fill, .check = check_fill },
  { .op = GB_OP_sequence, .check = check_sequence },
  { .op = GB_OP_uniform, .check = check_uniform },
  { .op = GB_OP_normal, .check = check_normal },
  { .op = GB_OP_random_integers, .check = check_random_integers },
  { .op = GB_OP_permutation, .check = check_permutation },
  { .op = GB_OP_bernoulli, .check = check_bernoulli },
  { .op = GB_OP_multinomial, .check = check_multinomial },
  { .op = GB_OP_cast, .check = check_cast, .gradient = cast_gradient },
  { .op = GB_OP_clone, .check = check_like, .gradient = same_gradient },
  { .op = GB_OP_contiguous, .check = check_contiguous, .gradient = same_gradient },
  { .op = GB_OP_copy, .check = check_copy, .gradient = copy_gradient },
  { .op = GB_OP_COUNT },
};
