/* ops/create.c - checks and gradients of the ops that fill, draw and copy.
 *
 * The filling ops write the tensor they are given: the bindings make one and call them in place. */
#include <math.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/family.h"
#include "graph/ops.h"

/* {==== checks ==== */

/* In every row of the family x and y stand where clone has them. */
#define LIKE_CLONE(op) \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(clone, x) && GB_OUT_AT(op, y) == GB_OUT_AT(clone, y), "as in clone");
#define GB_FAMILY_create GB_THIS_FAMILY
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OF_FAMILY(family, LIKE_CLONE)(name)
#include "graph/ops.def"
enum { X = GB_IN_AT(clone, x), Y = GB_OUT_AT(clone, y) };

/* The result is like x in everything. */
static gb_status check_like(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, clone)->x;
  return gb_call_output_like(call, Y, x, (gb_dtype)x->dtype);
}

/* As in PyTorch, an integer tensor takes the whole part of a number, and refuses what lies outside its range. */
static gb_status check_fill(gb_op_call *call) {
  GB_TRY(gb_require_fits(call, &GB_ATTRS(call, fill)->value, (gb_dtype)GB_IN(call, fill)->x->dtype));
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
static gb_status check_sequence(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, sequence)->x;
  const gb_attr *start = &GB_ATTRS(call, sequence)->start, *step = &GB_ATTRS(call, sequence)->step;
  gb_dtype dtype = (gb_dtype)x->dtype;
  if (x->numel > 0) {
    gb_attr last = last_of(start, step, x->numel);
    GB_TRY(gb_require_fits(call, start, dtype));
    GB_TRY(gb_require_fits(call, &last, dtype));
  }
  return check_like(call);
}

static gb_status check_uniform(gb_op_call *call) {
  double low = GB_ATTRS(call, uniform)->low.number, high = GB_ATTRS(call, uniform)->high.number;
  GB_TRY(gb_require_float(call, X));
  if (!(low <= high) || isinf(low) || isinf(high))
    return gb_call_fail(call, GB_EINVAL, "the bounds must be finite and in order, not %g and %g", low, high);
  gb_call_random(call);
  return check_like(call);
}

/* normal and bernoulli. */
static gb_status check_drawn(gb_op_call *call) {
  GB_TRY(gb_require_float(call, X));
  gb_call_random(call);
  return check_like(call);
}

/* Integers from low to last are exact in the dtype. */
static bool holds(gb_dtype dtype, int64_t low, int64_t last) {
  const gb_format *f = gb_format_of(dtype);
  bool is_float = gb_is_float(dtype);
  return low >= (is_float ? -gb_whole_of(dtype) : f->least) && last <= (is_float ? gb_whole_of(dtype) : f->most);
}

static gb_status check_random_integers(gb_op_call *call) {
  const gb_attrs_random_integers *attrs = GB_ATTRS(call, random_integers);
  int64_t low = attrs->low.integer, high = attrs->high.integer;
  gb_dtype dtype = (gb_dtype)GB_IN(call, random_integers)->x->dtype;
  if (low >= high)
    return gb_call_fail(call, GB_EINVAL, "low must be below high, they are %lld and %lld", (long long)low,
                        (long long)high);
  if (!holds(dtype, low, high - 1))
    return gb_call_fail(call, GB_EINVAL, "%s cannot hold every integer from %lld to %lld; choose a wider dtype",
                        gb_dtype_name(dtype),
                        (long long)low, (long long)high - 1);
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_permutation(gb_op_call *call) {
  gb_dtype dtype = (gb_dtype)GB_IN(call, permutation)->x->dtype;
  GB_TRY(gb_require_ndim(call, X, 1, 1));
  if (dtype != GB_INT64)
    return gb_call_fail(call, GB_EDTYPE, "fills an int64 vector, this one is %s", gb_dtype_name(dtype));
  gb_call_random(call);
  return check_like(call);
}

static gb_status check_multinomial(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, multinomial)->x;
  const gb_attrs_multinomial *attrs = GB_ATTRS(call, multinomial);
  int64_t samples = attrs->samples.integer;
  GB_TRY(gb_require_float(call, X));
  GB_TRY(gb_require_ndim(call, X, 1, 2));
  int64_t n = x->shape[x->ndim - 1], shape[2] = { x->shape[0], samples };
  if (n == 0) return gb_call_fail(call, GB_ESHAPE, "there are no weights to draw from");
  if (samples > n && !attrs->replacement.integer)
    return gb_call_fail(call, GB_EINVAL, "%lld samples without replacement from %lld weights; pass replacement = true",
                        (long long)samples,
                        (long long)n);
  gb_call_random(call);
  return gb_call_output(call, Y, x->ndim, x->ndim == 2 ? shape : shape + 1, GB_INT64);
}

static gb_status check_cast(gb_op_call *call) {
  return gb_call_output_like(call, Y, GB_IN(call, cast)->x, (gb_dtype)GB_ATTRS(call, cast)->dtype.integer);
}

static gb_status check_contiguous(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, contiguous)->x;
  if (gb_is_contiguous(x)) return gb_call_output_alias(call, Y, x);
  return gb_call_output(call, Y, x->ndim, x->shape, (gb_dtype)x->dtype);
}

static gb_status check_copy(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, copy)->x, *source = GB_IN(call, copy)->source;
  char a[96], b[96];
  int ndim = x->ndim;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, source->ndim, source->shape) || ndim != x->ndim ||
      memcmp(shape, x->shape, sizeof *shape * (size_t)ndim))
    return gb_call_fail(call, GB_ESHAPE, "a tensor of shape %s cannot be broadcast into one of shape %s",
                        gb_shape_text(source->ndim, source->shape,
                        a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  return check_like(call);
}

/* ====} */

/* {==== gradients ==== */

/* The cast back, to what the edge wants. */
static gb_status cast_gradient(gb_grad_call *grad) {
  return gb_op_cast(grad->context, GB_GRAD_OUT(grad, cast)->y, GB_WANTS(grad, cast, x), &GB_GRAD_IN(grad, cast)->x);
}

/* clone and contiguous. */
static gb_status same_gradient(gb_grad_call *grad) {
  gb_tensor_retain(GB_GRAD_IN(grad, clone)->x = GB_GRAD_OUT(grad, clone)->y);
  return GB_OK;
}

/* The overwritten tensor gets no gradient, the source all of it. */
static gb_status copy_gradient(gb_grad_call *grad) {
  gb_tensor *dy = GB_GRAD_OUT(grad, copy)->y;
  gb_in_copy *to = GB_GRAD_IN(grad, copy);
  if (GB_NEEDS(grad, copy, x)) GB_TRY(gb_op_zeros_like(grad->context, dy, &to->x));
  if (!GB_NEEDS(grad, copy, source)) return GB_OK;
  const gb_edge *edge = &grad->node->edges[GB_IN_AT(copy, source)];
  return gb_sum_to(grad->context, dy, edge->ndim, edge->shape, &to->source);
}

/* ====} */

static bool has_p(const gb_op_call *call) { return GB_ATTRS(call, bernoulli)->p.given; }

/* One p for all elements, of any dtype. */
static gb_status bernoulli_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, bernoulli)->x;
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *like = gb_chain_cast(&c, gb_chain_detach(&c, x), x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
  gb_tensor *p = c.status == GB_OK
      ? gb_chain_number(&c, GB_OP_add, gb_chain_zeros(&c, like), GB_ATTRS(call, bernoulli)->p.number) : NULL;
  gb_tensor *y = gb_chain_cast(&c, GB_CHAIN(&c, bernoulli, .x = p), (gb_dtype)x->dtype);
  return gb_chain_end(&c, y, &GB_OUT(call, bernoulli)->y);
}

const gb_op_impl gb_family_create[] = {
  { .op = GB_OP_fill, .check = check_fill },
  { .op = GB_OP_sequence, .check = check_sequence },
  { .op = GB_OP_uniform, .check = check_uniform },
  { .op = GB_OP_normal, .check = check_drawn },
  { .op = GB_OP_random_integers, .check = check_random_integers },
  { .op = GB_OP_permutation, .check = check_permutation },
  { .op = GB_OP_bernoulli, .check = check_drawn, .composed = has_p, .compose = bernoulli_compose },
  { .op = GB_OP_multinomial, .check = check_multinomial },
  { .op = GB_OP_cast, .check = check_cast, .gradient = cast_gradient },
  { .op = GB_OP_clone, .check = check_like, .gradient = same_gradient },
  { .op = GB_OP_contiguous, .check = check_contiguous, .gradient = same_gradient },
  { .op = GB_OP_copy, .check = check_copy, .gradient = copy_gradient },
  { .op = GB_OP_COUNT },
};
