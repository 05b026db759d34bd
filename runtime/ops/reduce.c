/* ops/reduce.c - reductions, running sums and softmax: checks, shapes, dtypes and gradients. The kernels are in
 * cpu/reduce.c and cpu/softmax.c.
 *
 * A 0-d tensor is reduced as a vector of one element. 16-bit inputs accumulate in float32, and a `dtype` option lets
 * that result out unrounded. Gradients are made of differentiable ops, except softmax's first one, which has a fused
 * row. */
#include "ops/reduce.h"

#include <math.h>
#include <string.h>

#include "base/numerics.h"
#include "graph/chain.h"

/* In every row but those of backward x and the result stand where sum has them, so they are read as sum's. */
#define LIKE_SUM(op, result) \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(sum, x) && GB_OUT_AT(op, result) == GB_OUT_AT(sum, y), "as in sum")
LIKE_SUM(mean, y); LIKE_SUM(prod, y); LIKE_SUM(var, y); LIKE_SUM(std, y); LIKE_SUM(amax, y); LIKE_SUM(amin, y);
LIKE_SUM(max, values); LIKE_SUM(min, values); LIKE_SUM(argmax, y); LIKE_SUM(argmin, y); LIKE_SUM(norm, y);
LIKE_SUM(logsumexp, y); LIKE_SUM(all, y); LIKE_SUM(any, y); LIKE_SUM(cumsum, y); LIKE_SUM(softmax, y);
LIKE_SUM(log_softmax, y);
enum { X = GB_IN_AT(sum, x), Y = GB_OUT_AT(sum, y) };

/* Rows that share what else they have. */
_Static_assert(GB_ATTR_AT(min, dim) == GB_ATTR_AT(max, dim), "min has dim where max has it");
_Static_assert(GB_OUT_AT(min, indices) == GB_OUT_AT(max, indices), "min has indices where max has them");
_Static_assert(GB_ATTR_AT(std, correction) == GB_ATTR_AT(var, correction), "std has correction where var has it");
_Static_assert(GB_IN_AT(log_softmax_backward, grad) == GB_IN_AT(softmax_backward, grad), "grad as in softmax_backward");
_Static_assert(GB_IN_AT(log_softmax_backward, y) == GB_IN_AT(softmax_backward, y), "y as in softmax_backward");
_Static_assert(GB_OUT_AT(log_softmax_backward, dx) == GB_OUT_AT(softmax_backward, dx), "dx as in softmax_backward");

/* {==== checks ==== */

/* Every dim that the caller named is in range of a tensor of so many dims, and named once. */
static gb_status check_dims(gb_op_call *call, int ndim) {
  const gb_attr *dims = gb_reduce_attr(call->info, call->attrs, GB_ARG_DIMS),
      *dim = gb_reduce_attr(call->info, call->attrs, GB_ARG_DIM);
  int at;
  if (ndim == 0) ndim = 1;
  if (dim && dim->given) return gb_call_dim(call, dim->integer, ndim, &at);
  uint32_t seen = 0;
  for (int i = 0; dims && dims->given && i < dims->count; i++) {
    GB_TRY(gb_call_dim(call, dims->ints[i], ndim, &at));
    if (seen >> at & 1u) return gb_call_fail(call, GB_EINVAL, "dim %d is named twice; name every dim once", at + 1);
    seen |= 1u << at;
  }
  return GB_OK;
}

/* Allocate output i: x without the reduced dims, or with them of size 1. */
static gb_status reduced_output(gb_op_call *call, int i, gb_dtype dtype) {
  const gb_tensor *x = GB_IN(call, sum)->x;
  uint32_t mask = gb_reduce_mask(call->info, call->attrs, x->ndim);
  bool keepdim = gb_reduce_keepdim(call->info, call->attrs);
  int64_t shape[GB_MAX_NDIM];
  int ndim = 0;
  for (int d = 0; d < x->ndim; d++) {
    bool reduced = mask >> d & 1u;
    if (!reduced || keepdim) shape[ndim++] = reduced ? 1 : x->shape[d];
  }
  return gb_call_output(call, i, ndim, shape, dtype);
}

/* A maximum of zero elements does not exist: fail if the result would come from no elements. */
static gb_status require_elements(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, sum)->x;
  uint32_t mask = gb_reduce_mask(call->info, call->attrs, x->ndim);
  int64_t outputs = gb_reduce_length(~mask, x->ndim, x->shape);
  if (gb_reduce_length(mask, x->ndim, x->shape) > 0 || outputs == 0) return GB_OK;
  char text[96];
  return gb_call_fail(call, GB_ESHAPE, "cannot reduce zero elements (x has shape %s); reduce dims that have a size "
                                       "above 0",
                      gb_shape_text(x->ndim, x->shape, text, sizeof text));
}

/* The dtype of sums: the one named, else int64 for integers, else x's. */
static gb_dtype sum_dtype(const gb_op_call *call) {
  gb_dtype named = gb_reduce_dtype(call->info, call->attrs), dtype = (gb_dtype)GB_IN(call, sum)->x->dtype;
  if (named != GB_DTYPE_NONE) return named;
  return gb_dtype_is_float(dtype) ? gb_call_dtype(call, dtype) : GB_INT64;
}

/* sum and prod. */
static gb_status sum_check(gb_op_call *call) {
  GB_TRY(check_dims(call, GB_IN(call, sum)->x->ndim));
  return reduced_output(call, Y, sum_dtype(call));
}

/* A floating result of a floating x or, where the caller names one, of any x. */
static gb_status float_dtype(gb_op_call *call, gb_dtype *out) {
  gb_dtype named = gb_reduce_dtype(call->info, call->attrs), dtype = (gb_dtype)GB_IN(call, mean)->x->dtype;
  *out = named != GB_DTYPE_NONE ? named : gb_call_dtype(call, dtype);
  if (named != GB_DTYPE_NONE ? gb_dtype_is_float(named) : gb_dtype_is_float(dtype)) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "gives a float, and %s is %s; name a float with {dtype = \"float32\"}, or "
                                       "convert x with x:float()",
                      named != GB_DTYPE_NONE ? "dtype" : "x", gb_dtype_name(named != GB_DTYPE_NONE ? named : dtype));
}

static gb_status mean_check(gb_op_call *call) {
  gb_dtype dtype;
  GB_TRY(check_dims(call, GB_IN(call, mean)->x->ndim));
  GB_TRY(float_dtype(call, &dtype));
  return reduced_output(call, Y, dtype);
}

/* var and std. */
static gb_status var_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, var)->x;
  GB_TRY(gb_require_float(call, X));
  GB_TRY(check_dims(call, x->ndim));
  return reduced_output(call, Y, gb_call_dtype(call, (gb_dtype)x->dtype));
}

/* amax and amin. */
static gb_status extreme_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, amax)->x;
  GB_TRY(check_dims(call, x->ndim));
  GB_TRY(require_elements(call));
  return reduced_output(call, Y, (gb_dtype)x->dtype);
}

/* max and min: the indices exist only where a dim is named. */
static gb_status extreme_with_index_check(gb_op_call *call) {
  GB_TRY(extreme_check(call));
  return GB_ATTRS(call, max)->dim.given ? reduced_output(call, GB_OUT_AT(max, indices), GB_INT64) : GB_OK;
}

/* argmax and argmin. */
static gb_status index_check(gb_op_call *call) {
  GB_TRY(check_dims(call, GB_IN(call, argmax)->x->ndim));
  GB_TRY(require_elements(call));
  return reduced_output(call, Y, GB_INT64);
}

/* Norms without a value for zero elements: those that are a maximum or minimum, and negative powers. */
static gb_status norm_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, norm)->x;
  double p = GB_ATTRS(call, norm)->p.number;
  if (isnan(p)) return gb_call_fail(call, GB_EINVAL, "p is not a number; give 2, 1, 0, math.huge or any other power");
  GB_TRY(gb_require_float(call, X));
  GB_TRY(check_dims(call, x->ndim));
  if (p < 0 || isinf(p)) GB_TRY(require_elements(call));
  return reduced_output(call, Y, gb_call_dtype(call, (gb_dtype)x->dtype));
}

/* Integers give float32. */
static gb_status logsumexp_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, logsumexp)->x;
  gb_dtype dtype = (gb_dtype)x->dtype;
  GB_TRY(check_dims(call, x->ndim));
  return reduced_output(call, Y, gb_dtype_is_float(dtype) ? gb_call_dtype(call, dtype) : GB_FLOAT32);
}

/* all and any. */
static gb_status truth_check(gb_op_call *call) {
  GB_TRY(check_dims(call, GB_IN(call, all)->x->ndim));
  return reduced_output(call, Y, GB_BOOL);
}

static gb_status cumsum_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cumsum)->x;
  GB_TRY(check_dims(call, x->ndim));
  return gb_call_output(call, Y, x->ndim, x->shape, call->in_place ? (gb_dtype)x->dtype : sum_dtype(call));
}

/* Counts and range, whatever the shape of x. */
static gb_status numerics_check(gb_op_call *call) {
  gb_dtype dtype = (gb_dtype)GB_ATTRS(call, numerics)->dtype.integer;
  GB_TRY(gb_require_float(call, GB_IN_AT(numerics, x)));
  if (!gb_dtype_is_float(dtype))
    return gb_call_fail(call, GB_EDTYPE, "needs a floating format, and %s is not one; there are float16, bfloat16, "
                                         "float32 and float64",
                        gb_dtype_name(dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(numerics, counts), 1, (int64_t[]){ GB_NUMERICS_COUNTS }, GB_INT64));
  return gb_call_output(call, GB_OUT_AT(numerics, range), 1, (int64_t[]){ GB_NUMERICS_RANGE }, GB_FLOAT64);
}

/* softmax and log_softmax keep the layout of x. */
static gb_status softmax_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, softmax)->x;
  gb_dtype dtype;
  GB_TRY(check_dims(call, x->ndim));
  GB_TRY(float_dtype(call, &dtype));
  return gb_call_output_like(call, Y, x, dtype);
}

/* grad and the result y have one shape; dx is like y. */
static gb_status softmax_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, softmax_backward)->grad, *y = GB_IN(call, softmax_backward)->y;
  char a[96], b[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(softmax_backward, grad)));
  GB_TRY(gb_require_float(call, GB_IN_AT(softmax_backward, y)));
  GB_TRY(check_dims(call, grad->ndim));
  if (grad->ndim != y->ndim || memcmp(grad->shape, y->shape, sizeof *y->shape * (size_t)y->ndim))
    return gb_call_fail(call, GB_ESHAPE, "grad has shape %s, y has %s; both must be the result's",
                        gb_shape_text(grad->ndim, grad->shape, a, sizeof a),
                        gb_shape_text(y->ndim, y->shape, b, sizeof b));
  return gb_call_output_like(call, GB_OUT_AT(softmax_backward, dx), y, (gb_dtype)y->dtype);
}

/* ====} */

/* {==== gradients ==== */

/* What the gradients of this family share: x's shape, which dims were reduced, the tensors that they read, and the
 * chain that they build. */
typedef struct reverse {
  gb_chain chain;
  gb_grad_call *grad;
  const gb_edge *x;          /* its shape */
  uint32_t mask;
  int64_t length;            /* elements that became one */
  gb_attr dims;              /* the same dims, as an attribute */
  gb_tensor *g;              /* the gradient of the result */
} reverse;

static void reverse_begin(reverse *r, gb_grad_call *grad) {
  const gb_op_info *info = gb_op_get(grad->context, grad->node->op);
  int64_t dims[GB_MAX_NDIM];
  int count = 0;
  gb_chain_begin(&r->chain, grad->context);
  r->grad = grad;
  r->x = &grad->node->edges[X];
  r->g = GB_GRAD_OUT(grad, sum)->y;
  r->mask = gb_reduce_mask(info, grad->attrs, r->x->ndim);
  r->length = gb_reduce_length(r->mask, r->x->ndim, r->x->shape);
  for (int i = 0; i < r->x->ndim; i++)
    if (r->mask >> i & 1u) dims[count++] = i;
  r->dims = gb_attr_ints(count, dims);
}

/* A result of the op (its gradient, or its value) with the reduced dims back, of size 1. */
static gb_tensor *with_dims(reverse *r, gb_tensor *y) {
  if (!y || y->ndim == r->x->ndim) return y;
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < r->x->ndim; i++) shape[i] = r->mask >> i & 1u ? 1 : r->x->shape[i];
  return GB_CHAIN(&r->chain, view, .x = y, .shape = gb_attr_ints(r->x->ndim, shape));
}

/* ... repeated to x's shape. */
static gb_tensor *spread(reverse *r, gb_tensor *y) {
  gb_tensor *kept = with_dims(r, y);
  if (!kept || r->x->ndim == 0) return kept;
  return GB_CHAIN(&r->chain, expand, .x = kept, .shape = gb_attr_ints(r->x->ndim, r->x->shape));
}

static gb_status reverse_end(reverse *r, gb_tensor *dx) {
  return gb_chain_end(&r->chain, dx, &GB_GRAD_IN(r->grad, sum)->x);
}

/* Shorter names for the steps of the formulas below. */
static gb_tensor *multiply(reverse *r, gb_tensor *a,
                           gb_tensor *b) { return gb_chain_2(&r->chain, GB_OP_mul, a, b, NULL); }
static gb_tensor *divide(reverse *r, gb_tensor *a,
                         gb_tensor *b) { return gb_chain_2(&r->chain, GB_OP_div, a, b, NULL); }

/* `value` where the mask is true, else x. */
static gb_tensor *fill_where(reverse *r, gb_tensor *x, gb_tensor *mask, double value) {
  return GB_CHAIN(&r->chain, masked_fill, .x = x, .mask = mask, .value = gb_attr_num(value));
}

/* The sum over the dims that were reduced, which stay with size 1. */
static gb_tensor *sum_over(reverse *r, gb_tensor *x) {
  return GB_CHAIN(&r->chain, sum, .x = x, .dim = r->dims, .keepdim = gb_attr_int(true));
}

static gb_status sum_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  return reverse_end(&r, spread(&r, r.g));
}

static gb_status mean_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  return reverse_end(&r, spread(&r, gb_chain_number(&r.chain, GB_OP_div, r.g, (double)r.length)));
}

/* {---- prod ---- */

/* length positions of the last dim from start. */
static gb_tensor *part(reverse *r, gb_tensor *x, int64_t start, int64_t length) {
  return GB_CHAIN(&r->chain, narrow, .x = x, .dim = gb_attr_int(-1), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

/* Up to three tensors joined along the last dim; a NULL last is left out. */
static gb_tensor *join(reverse *r, gb_tensor *a, gb_tensor *b, gb_tensor *rest) {
  gb_tensor *xs[] = { a, b, rest };
  return GB_CHAIN(&r->chain, cat, .xs = xs, .count = rest ? 3 : 2, .dim = gb_attr_int(-1));
}

/* The gradient of the product of each row of x [..., n]. The product is a tree of pairs, and a gradient runs down it: a
 * factor's is that of the pair times the other factor. No division, so zeros are exact, and every step can be
 * differentiated again. */
static gb_tensor *product_gradient(reverse *r, gb_tensor *x, gb_tensor *g) {
  gb_tensor *first[64], *second[64];
  int64_t sizes[64], n = r->length;
  int levels = 0;
  for (gb_tensor *level = x; n > 1; levels++) {
    int64_t half = n / 2;
    sizes[levels] = n;
    first[levels] = part(r, level, 0, half);
    second[levels] = part(r, level, half, half);
    gb_tensor *pairs = multiply(r, first[levels], second[levels]);
    level = n % 2 ? join(r, pairs, part(r, level, n - 1, 1), NULL) : pairs;
    n = n - half;
  }
  while (levels-- > 0) {
    int64_t half = sizes[levels] / 2;
    bool odd = sizes[levels] % 2;
    gb_tensor *pairs = odd ? part(r, g, 0, half) : g;
    g = join(r, multiply(r, pairs, second[levels]), multiply(r, pairs, first[levels]),
             odd ? part(r, g, half, 1) : NULL);
  }
  return g;
}

/* Bring the reduced dims to the end and make them one; then the product's gradient; then back. */
static gb_status prod_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  int ndim = r.x->ndim, kept = 0, at = 0;
  int64_t order[GB_MAX_NDIM], back[GB_MAX_NDIM], shape[GB_MAX_NDIM], rows[GB_MAX_NDIM];
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < ndim; i++)
      if ((int)(r.mask >> i & 1u) == pass) order[at++] = i;
  for (int i = 0; i < ndim; i++) {
    back[order[i]] = i;
    shape[i] = r.x->shape[order[i]];
    if (!(r.mask >> order[i] & 1u)) rows[kept++] = shape[i];
  }
  gb_tensor *g = gb_chain_widen(&r.chain, r.g), *x = gb_chain_widen(&r.chain, GB_SAVED(grad, prod)->x);
  if (r.length == 0 || ndim == 0) return reverse_end(&r, spread(&r, g));
  rows[kept] = r.length;
  x = GB_CHAIN(&r.chain, permute, .x = x, .dims = gb_attr_ints(ndim, order));
  x = GB_CHAIN(&r.chain, reshape, .x = x, .shape = gb_attr_ints(kept + 1, rows));
  rows[kept] = 1;
  g = product_gradient(&r, x, GB_CHAIN(&r.chain, reshape, .x = g, .shape = gb_attr_ints(kept + 1, rows)));
  g = GB_CHAIN(&r.chain, reshape, .x = g, .shape = gb_attr_ints(ndim, shape));
  return reverse_end(&r, GB_CHAIN(&r.chain, permute, .x = g, .dims = gb_attr_ints(ndim, back)));
}

/* ----} */

/* The gradient of the variance: 2 / (n - correction) * (x - mean). */
static gb_tensor *var_step(reverse *r, gb_tensor *x, gb_tensor *g) {
  double left = (double)r->length - GB_ATTRS(r->grad, var)->correction.number;
  gb_tensor *mean = GB_CHAIN(&r->chain, mean, .x = x, .dim = r->dims, .keepdim = gb_attr_int(true));
  gb_tensor *centered = gb_chain_2(&r->chain, GB_OP_sub, x, mean, NULL);
  return multiply(r, centered, with_dims(r, gb_chain_number(&r->chain, GB_OP_mul, g, 2.0 / (left < 0 ? 0 : left))));
}

static gb_status var_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  gb_tensor *x = gb_chain_widen(&r.chain, GB_SAVED(grad, var)->x);
  return reverse_end(&r, var_step(&r, x, gb_chain_widen(&r.chain, r.g)));
}

/* d std = d var / (2 std), and 0 where std is 0. */
static gb_status std_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  gb_tensor *x = gb_chain_widen(&r.chain, GB_SAVED(grad, std)->x), *y = gb_chain_widen(&r.chain, GB_KEPT(grad, std)->y);
  gb_tensor *zero = gb_chain_number(&r.chain, GB_OP_eq, y, 0);
  gb_tensor *g = divide(&r, gb_chain_widen(&r.chain, r.g), gb_chain_number(&r.chain, GB_OP_mul, y, 2));
  return reverse_end(&r, var_step(&r, x, fill_where(&r, g, zero, 0)));
}

/* The elements that are marked share the gradient of the result evenly. */
static gb_tensor *share_among(reverse *r, gb_tensor *marked, gb_tensor *g) {
  return multiply(r, divide(r, with_dims(r, g), sum_over(r, marked)), marked);
}

/* The elements of x that equal the result y. */
static gb_tensor *equals(reverse *r, gb_tensor *x,
                         gb_tensor *y) { return gb_chain_2(&r->chain, GB_OP_eq, x, with_dims(r, y), NULL); }

static gb_status extreme_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  return reverse_end(&r, share_among(&r, equals(&r, GB_SAVED(grad, amax)->x, GB_KEPT(grad, amax)->y), r.g));
}

/* With a dim the gradient goes to the element at the index alone; without, to all that are equal, where NaN, which then
 * is the result, equals NaN: PyTorch's rule for max, not for amax. */
static gb_status extreme_with_index_gradient(gb_grad_call *grad) {
  const gb_out_max *kept = GB_KEPT(grad, max);
  const gb_attr *dim = &GB_ATTRS(grad, max)->dim;
  gb_tensor *g = GB_GRAD_OUT(grad, max)->values, *x = GB_SAVED(grad, max)->x;
  reverse r;
  reverse_begin(&r, grad);
  if (!dim->given) {
    gb_tensor *equal = equals(&r, x, kept->values), *nan = gb_chain_1(&r.chain, GB_OP_isnan, x, NULL);
    return reverse_end(&r, share_among(&r, gb_chain_2(&r.chain, GB_OP_logical_or, equal, nan, NULL), g));
  }
  gb_tensor *zeros = gb_chain_full(&r.chain, (gb_dtype)g->dtype, r.x->ndim, r.x->shape, g->storage->device, 0);
  return reverse_end(&r, GB_CHAIN(&r.chain, scatter_add, .x = zeros, .dim = *dim, .index = with_dims(&r, kept->indices),
                                  .source = with_dims(&r, g)));
}

/* {---- norm ---- */

/* The derivative of |x|^p / p for p other than 0, 1, 2 and infinity: sign(x) |x|^(p - 1), and 0 at 0 where that would
 * be infinite. */
static gb_tensor *power_slope(reverse *r, gb_tensor *x, double p) {
  gb_tensor *size = gb_chain_1(&r->chain, GB_OP_abs, x, NULL);
  gb_tensor *slope = multiply(r, gb_chain_number(&r->chain, GB_OP_pow, size, p - 1),
                              gb_chain_1(&r->chain, GB_OP_sign, x, NULL));
  return p < 1 ? fill_where(r, slope, gb_chain_number(&r->chain, GB_OP_eq, x, 0), 0) : slope;
}

/* d norm = sign(x) |x|^(p - 1) / norm^(p - 1), and 0 where the norm is 0. */
static gb_status norm_gradient(gb_grad_call *grad) {
  reverse r;
  double p = GB_ATTRS(grad, norm)->p.number;
  reverse_begin(&r, grad);
  gb_tensor *x = gb_chain_widen(&r.chain, GB_SAVED(grad, norm)->x);
  gb_tensor *y = gb_chain_widen(&r.chain, GB_KEPT(grad, norm)->y);
  gb_tensor *g = gb_chain_widen(&r.chain, r.g);
  if (p == 0) return reverse_end(&r, gb_chain_number(&r.chain, GB_OP_mul, x, 0));
  if (p == 1) return reverse_end(&r, multiply(&r, gb_chain_1(&r.chain, GB_OP_sign, x, NULL), with_dims(&r, g)));
  if (isinf(p)) {
    gb_tensor *shared = share_among(&r, equals(&r, gb_chain_1(&r.chain, GB_OP_abs, x, NULL), y), g);
    return reverse_end(&r, multiply(&r, shared, gb_chain_1(&r.chain, GB_OP_sign, x, NULL)));
  }
  gb_tensor *slope = p == 2 ? x : power_slope(&r, x, p), *below = p == 2 ? y
      : gb_chain_number(&r.chain, GB_OP_pow, y, p - 1);
  gb_tensor *scale = fill_where(&r, divide(&r, g, below), gb_chain_number(&r.chain, GB_OP_eq, y, 0), 0);
  return reverse_end(&r, multiply(&r, slope, with_dims(&r, scale)));
}

/* ----} */

/* d logsumexp = exp(x - y). */
static gb_status logsumexp_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  gb_tensor *x = gb_chain_widen(&r.chain, GB_SAVED(grad, logsumexp)->x);
  gb_tensor *y = gb_chain_widen(&r.chain, GB_KEPT(grad, logsumexp)->y);
  gb_tensor *share = gb_chain_1(&r.chain, GB_OP_exp, gb_chain_2(&r.chain, GB_OP_sub, x, with_dims(&r, y), NULL), NULL);
  return reverse_end(&r, multiply(&r, share, with_dims(&r, gb_chain_widen(&r.chain, r.g))));
}

/* An element is in every later sum: the gradient is a running sum from the end. */
static gb_status cumsum_gradient(gb_grad_call *grad) {
  reverse r;
  reverse_begin(&r, grad);
  if (r.x->ndim == 0) return reverse_end(&r, r.g);
  const gb_attr *dim = &GB_ATTRS(grad, cumsum)->dim;
  gb_attr dims = gb_attr_ints(1, &dim->integer);
  gb_tensor *turned = GB_CHAIN(&r.chain, flip, .x = gb_chain_widen(&r.chain, r.g), .dim = dims);
  gb_tensor *sums = GB_CHAIN(&r.chain, cumsum, .x = turned, .dim = *dim);
  return reverse_end(&r, GB_CHAIN(&r.chain, flip, .x = sums, .dim = dims));
}

/* dx = y * (g - sum(g * y)). */
static gb_status softmax_gradient(gb_grad_call *grad) {
  reverse r;
  gb_tensor *y = GB_KEPT(grad, softmax)->y;
  reverse_begin(&r, grad);
  if (!grad->create_graph)
    return reverse_end(&r, GB_CHAIN(&r.chain, softmax_backward, .grad = r.g, .y = y,
                                    .dim = GB_ATTRS(grad, softmax)->dim));
  gb_tensor *weighted = multiply(&r, r.g, y);
  gb_tensor *shift = multiply(&r, y, sum_over(&r, weighted));
  return reverse_end(&r, gb_chain_2(&r.chain, GB_OP_sub, weighted, shift, NULL));
}

/* dx = g - exp(y) * sum(g). */
static gb_status log_softmax_gradient(gb_grad_call *grad) {
  reverse r;
  gb_tensor *y = GB_KEPT(grad, log_softmax)->y;
  reverse_begin(&r, grad);
  if (!grad->create_graph)
    return reverse_end(&r, GB_CHAIN(&r.chain, log_softmax_backward, .grad = r.g, .y = y,
                                    .dim = GB_ATTRS(grad, log_softmax)->dim));
  gb_tensor *shift = multiply(&r, gb_chain_1(&r.chain, GB_OP_exp, y, NULL), sum_over(&r, r.g));
  return reverse_end(&r, gb_chain_2(&r.chain, GB_OP_sub, r.g, shift, NULL));
}

/* ====} */

const gb_op_impl gb_family_reduce[] = {
  { .op = GB_OP_sum, .check = sum_check, .gradient = sum_gradient },
  { .op = GB_OP_mean, .check = mean_check, .gradient = mean_gradient },
  { .op = GB_OP_prod, .check = sum_check, .gradient = prod_gradient, .save_in = GB_SAVE_IN(prod, x) },
  { .op = GB_OP_var, .check = var_check, .gradient = var_gradient, .save_in = GB_SAVE_IN(var, x) },
  { .op = GB_OP_std, .check = var_check, .gradient = std_gradient,
    .save_in = GB_SAVE_IN(std, x), .save_out = GB_SAVE_OUT(std, y) },
  { .op = GB_OP_amax, .check = extreme_check, .gradient = extreme_gradient,
    .save_in = GB_SAVE_IN(amax, x), .save_out = GB_SAVE_OUT(amax, y) },
  { .op = GB_OP_amin, .check = extreme_check, .gradient = extreme_gradient,
    .save_in = GB_SAVE_IN(amin, x), .save_out = GB_SAVE_OUT(amin, y) },
  { .op = GB_OP_max, .check = extreme_with_index_check, .gradient = extreme_with_index_gradient,
    .save_in = GB_SAVE_IN(max, x), .save_out = GB_SAVE_OUT(max, values) | GB_SAVE_OUT(max, indices) },
  { .op = GB_OP_min, .check = extreme_with_index_check, .gradient = extreme_with_index_gradient,
    .save_in = GB_SAVE_IN(min, x), .save_out = GB_SAVE_OUT(min, values) | GB_SAVE_OUT(min, indices) },
  { .op = GB_OP_argmax, .check = index_check },
  { .op = GB_OP_argmin, .check = index_check },
  { .op = GB_OP_norm, .check = norm_check, .gradient = norm_gradient,
    .save_in = GB_SAVE_IN(norm, x), .save_out = GB_SAVE_OUT(norm, y) },
  { .op = GB_OP_logsumexp, .check = logsumexp_check, .gradient = logsumexp_gradient,
    .save_in = GB_SAVE_IN(logsumexp, x), .save_out = GB_SAVE_OUT(logsumexp, y) },
  { .op = GB_OP_all, .check = truth_check },
  { .op = GB_OP_any, .check = truth_check },
  { .op = GB_OP_numerics, .check = numerics_check },
  { .op = GB_OP_cumsum, .check = cumsum_check, .gradient = cumsum_gradient },
  { .op = GB_OP_softmax, .check = softmax_check, .gradient = softmax_gradient, .save_out = GB_SAVE_OUT(softmax, y) },
  { .op = GB_OP_log_softmax, .check = softmax_check, .gradient = log_softmax_gradient,
    .save_out = GB_SAVE_OUT(log_softmax, y) },
  { .op = GB_OP_softmax_backward, .check = softmax_backward_check },
  { .op = GB_OP_log_softmax_backward, .check = softmax_backward_check },
  { .op = GB_OP_COUNT }
};
