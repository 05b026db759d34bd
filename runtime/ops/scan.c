/* ops/scan.c - running products, extremes and log-sums along a dim, and positions among sorted values.
 *
 * A product's gradient divides by nothing, so it is the true one beside zeros too. Log-sums are made of other ops: in
 * step k each position takes in what the one 2^k before it has gathered, so that a dim of n takes log2(n) steps, each
 * of them an op with a gradient over all of x. 16-bit floats are kept in float32 on the way. */
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

static gb_tensor *part(gb_chain *chain, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(chain, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *join(gb_chain *chain, gb_tensor *first, gb_tensor *rest, int dim) {
  return GB_CHAIN(chain, cat, .xs = ((gb_tensor *[]){ first, rest }), .count = 2, .dim = gb_attr_int(dim));
}

/* The dim of x that is named, and its size; of a scalar there is one, of size 1. */
static gb_status named_dim(gb_op_call *call, const gb_tensor *x, const gb_attr *named, int *dim, int64_t *n) {
  GB_TRY(gb_call_dim(call, named->integer, x->ndim ? x->ndim : 1, dim));
  *n = x->ndim ? x->shape[*dim] : 1;
  return GB_OK;
}

/* {==== products ==== */

/* Integers give int64, as their sums do; in place a tensor keeps its dtype. */
static gb_status cumprod_check(gb_op_call *call) {
  const gb_attrs_cumprod *attrs = GB_ATTRS(call, cumprod);
  const gb_tensor *x = GB_IN(call, cumprod)->x;
  gb_dtype own = (gb_dtype)x->dtype, dtype = gb_dtype_is_float(own) ? gb_call_dtype(call, own) : GB_INT64;
  int dim;
  int64_t n;
  GB_TRY(named_dim(call, x, &attrs->dim, &dim, &n));
  if (attrs->dtype.given) dtype = (gb_dtype)attrs->dtype.integer;
  return gb_call_output(call, GB_OUT_AT(cumprod, y), x->ndim, x->shape, call->in_place ? own : dtype);
}

static gb_status cumprod_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, cumprod_backward)->grad;
  return gb_call_output(call, GB_OUT_AT(cumprod_backward, dx), grad->ndim, grad->shape, (gb_dtype)grad->dtype);
}

static gb_tensor *product(gb_chain *chain, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(chain, mul, .x = x, .y = y); }

/* The sums s[i] = g[i] + x[i + 1] s[i + 1] by ops that have gradients. In step k each position takes in what the one
 * 2^k behind it has gathered: its sum, times the product of the factors in between. */
static gb_tensor *gathered(gb_chain *chain, gb_tensor *g, gb_tensor *x, int dim, int64_t n) {
  gb_tensor *sums = g, *factors = part(chain, x, dim, 1, n - 1);
  factors = join(chain, factors, part(chain, x, dim, 0, 1), dim); /* the last factor meets no sum */
  for (int64_t step = 1; step < n && chain->status == GB_OK; step *= 2) {
    gb_tensor *near = part(chain, factors, dim, 0, n - step), *far = part(chain, factors, dim, step, n - step);
    gb_tensor *more = product(chain, near, part(chain, sums, dim, step, n - step));
    more = GB_CHAIN(chain, add, .x = part(chain, sums, dim, 0, n - step), .y = more);
    sums = join(chain, more, part(chain, sums, dim, n - step, step), dim);
    factors = join(chain, product(chain, near, far), part(chain, factors, dim, n - step, step), dim);
  }
  return sums;
}

/* dx[i] is the product of all before x[i], times what is gathered behind it. */
static gb_tensor *product_gradient(gb_chain *chain, gb_tensor *g, gb_tensor *x, int dim, int64_t n) {
  if (chain->status != GB_OK || n < 2) return g;
  gb_tensor *products = GB_CHAIN(chain, cumprod, .x = part(chain, x, dim, 0, n - 1), .dim = gb_attr_int(dim));
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  shape[dim] = 1;
  gb_tensor *one = gb_chain_full(chain, (gb_dtype)x->dtype, x->ndim, shape, x->storage->device, 1);
  return product(chain, join(chain, one, products, dim), gathered(chain, g, x, dim, n));
}

static gb_status cumprod_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, cumprod)->y, *x = GB_SAVED(grad, cumprod)->x;
  int ndim = x->ndim, dim = (int)GB_ATTRS(grad, cumprod)->dim.integer;
  if (dim < 0) dim += ndim ? ndim : 1;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  g = gb_chain_widen(&chain, g);
  if (g) x = gb_chain_cast(&chain, x, (gb_dtype)g->dtype);
  if (ndim == 0) return gb_chain_end(&chain, g, &GB_GRAD_IN(grad, cumprod)->x);
  if (grad->create_graph) g = product_gradient(&chain, g, x, dim, x ? x->shape[dim] : 0);
  else g = GB_CHAIN(&chain, cumprod_backward, .grad = g, .x = x, .dim = gb_attr_int(dim));
  return gb_chain_end(&chain, g, &GB_GRAD_IN(grad, cumprod)->x);
}

/* ====} */

/* {==== sums of exponentials ==== */

/* log(exp(later) + exp(before)), both less the larger one, which is a constant to gradients; 0 where that is
 * infinite. */
static gb_tensor *log_sum(gb_chain *chain, gb_tensor *later, gb_tensor *before) {
  gb_tensor *most = gb_chain_detach(chain, GB_CHAIN(chain, maximum, .x = later, .y = before));
  most = GB_CHAIN(chain, masked_fill, .x = most, .mask = GB_CHAIN(chain, isinf, .x = most), .value = gb_attr_num(0));
  gb_tensor *a = GB_CHAIN(chain, exp, .x = GB_CHAIN(chain, sub, .x = later, .y = most));
  gb_tensor *b = GB_CHAIN(chain, exp, .x = GB_CHAIN(chain, sub, .x = before, .y = most));
  return GB_CHAIN(chain, add, .x = most, .y = GB_CHAIN(chain, log, .x = GB_CHAIN(chain, add, .x = a, .y = b)));
}

/* Every position combined with all before it. */
static gb_tensor *running_log_sum(gb_chain *chain, gb_tensor *y, int dim, int64_t n) {
  for (int64_t step = 1; step < n && chain->status == GB_OK; step *= 2) {
    gb_tensor *more = log_sum(chain, part(chain, y, dim, step, n - step), part(chain, y, dim, 0, n - step));
    y = join(chain, part(chain, y, dim, 0, step), more, dim);
  }
  return y;
}

static gb_status logcumsumexp_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, logcumsumexp)->x;
  int dim;
  int64_t n;
  GB_TRY(gb_require_float(call, GB_IN_AT(logcumsumexp, x)));
  GB_TRY(named_dim(call, x, &GB_ATTRS(call, logcumsumexp)->dim, &dim, &n));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = running_log_sum(&chain, gb_chain_widen(&chain, x), dim, n);
  y = gb_chain_cast(&chain, y, (gb_dtype)x->dtype);
  return gb_chain_end(&chain, y == x ? GB_CHAIN(&chain, clone, .x = x) : y, &GB_OUT(call, logcumsumexp)->y);
}

/* ====} */

/* {==== extremes ==== */

/* The running extremes and their indices: of the last of equal ones, and of the first NaN and each one behind it. */
static gb_status extreme_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cummax)->x;
  int dim;
  int64_t n;
  GB_TRY(named_dim(call, x, &GB_ATTRS(call, cummax)->dim, &dim, &n));
  GB_TRY(gb_call_output(call, GB_OUT_AT(cummax, values), x->ndim, x->shape, (gb_dtype)x->dtype));
  return gb_call_output(call, GB_OUT_AT(cummax, indices), x->ndim, x->shape, GB_INT64);
}
_Static_assert(GB_ATTR_AT(cummin, dim) == GB_ATTR_AT(cummax, dim) &&
               GB_OUT_AT(cummin, indices) == GB_OUT_AT(cummax, indices), "read as cummax");

/* Each gradient goes to the element that was picked. */
static gb_status extreme_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, cummax)->values;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  g = gb_chain_widen(&chain, g);
  if (g && g->ndim)
    g = GB_CHAIN(&chain, scatter_add, .x = gb_chain_zeros(&chain, g), .dim = GB_ATTRS(grad, cummax)->dim,
                 .index = GB_KEPT(grad, cummax)->indices, .source = g);
  return gb_chain_end(&chain, g, &GB_GRAD_IN(grad, cummax)->x);
}

/* ====} */

/* {==== positions ==== */

/* Vectors, or alike in all dims but the last; x may be a vector beside values of any shape. */
static gb_status search_rows_check(gb_op_call *call) {
  const gb_in_search_rows *in = GB_IN(call, search_rows);
  bool fits = in->x->ndim > 0 && in->values->ndim > 0 && (in->x->ndim == 1 || in->x->ndim == in->values->ndim);
  for (int i = 0; fits && in->x->ndim > 1 && i + 1 < in->x->ndim; i++) fits = in->x->shape[i] == in->values->shape[i];
  if (!fits) return gb_call_fail(call, GB_ESHAPE, "x is a vector, or like values in all dimensions but the last");
  return gb_call_output(call, GB_OUT_AT(search_rows, indices), in->values->ndim, in->values->shape, GB_INT64);
}

/* ====} */

const gb_op_impl gb_family_scan[] = {
  { .op = GB_OP_cumprod, .check = cumprod_check, .gradient = cumprod_gradient, .save_in = GB_SAVE_IN(cumprod, x) },
  { .op = GB_OP_cumprod_backward, .check = cumprod_backward_check },
  { .op = GB_OP_logcumsumexp, .compose = logcumsumexp_compose },
  { .op = GB_OP_cummax, .check = extreme_check, .gradient = extreme_gradient,
    .save_out = GB_SAVE_OUT(cummax, indices) },
  { .op = GB_OP_cummin, .check = extreme_check, .gradient = extreme_gradient,
    .save_out = GB_SAVE_OUT(cummin, indices) },
  { .op = GB_OP_search_rows, .check = search_rows_check },
  { .op = GB_OP_COUNT },
};
