/* ops/scan.c - running products, extremes and log-sums along a dim, made of other ops.
 *
 * In step k each position takes in what the one 2^k before it has gathered, so that a dim of n takes log2(n) steps,
 * each of them over all of x. That is more work than one pass has, but every step is an op with a gradient: a product
 * has its true gradient beside zeros too. 16-bit floats are kept in float32 on the way. */
#include "graph/chain.h"
#include "graph/ops.h"

static gb_tensor *part(gb_chain *chain, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(chain, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *join(gb_chain *chain, gb_tensor *first, gb_tensor *rest, int dim) {
  return GB_CHAIN(chain, cat, .xs = ((gb_tensor *[]){ first, rest }), .count = 2, .dim = gb_attr_int(dim));
}

/* What two neighbouring stretches make: the later one's and the one's before it. */
typedef gb_tensor *(*combination)(gb_chain *chain, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim);

/* Every position combined with all before it. x is what `combine` may look into. */
static gb_tensor *scan(gb_chain *chain, gb_tensor *y, gb_tensor *x, int dim, int64_t n, combination combine) {
  for (int64_t step = 1; step < n && chain->status == GB_OK; step *= 2) {
    gb_tensor *more = combine(chain, part(chain, y, dim, step, n - step), part(chain, y, dim, 0, n - step), x, dim);
    y = join(chain, part(chain, y, dim, 0, step), more, dim);
  }
  return y;
}

/* The dim of x that is named, and its size; of a scalar there is one, of size 1. */
static gb_status named_dim(gb_op_call *call, const gb_tensor *x, const gb_attr *named, int *dim, int64_t *n) {
  GB_TRY(gb_call_dim(call, named->integer, x->ndim ? x->ndim : 1, dim));
  *n = x->ndim ? x->shape[*dim] : 1;
  return GB_OK;
}

static gb_tensor *product(gb_chain *chain, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim) {
  (void)x, (void)dim;
  return GB_CHAIN(chain, mul, .x = before, .y = later);
}

/* Integers give int64, as their sums do. */
static gb_status cumprod_compose(gb_op_call *call) {
  const gb_attrs_cumprod *attrs = GB_ATTRS(call, cumprod);
  gb_tensor *x = GB_IN(call, cumprod)->x;
  gb_dtype own = (gb_dtype)x->dtype, dtype = gb_dtype_is_float(own) ? own : GB_INT64;
  int dim;
  int64_t n;
  GB_TRY(named_dim(call, x, &attrs->dim, &dim, &n));
  if (attrs->dtype.given) dtype = (gb_dtype)attrs->dtype.integer;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *wide = gb_chain_widen(&chain, gb_chain_cast(&chain, x, dtype));
  gb_tensor *y = gb_chain_cast(&chain, scan(&chain, wide, NULL, dim, n, product), dtype);
  return gb_chain_end(&chain, y == x ? GB_CHAIN(&chain, clone, .x = x) : y, &GB_OUT(call, cumprod)->y);
}

/* log(exp(later) + exp(before)), both less the larger one, which is a constant to gradients; 0 where that is
 * infinite. */
static gb_tensor *log_sum(gb_chain *chain, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim) {
  (void)x, (void)dim;
  gb_tensor *most = gb_chain_detach(chain, GB_CHAIN(chain, maximum, .x = later, .y = before));
  most = GB_CHAIN(chain, masked_fill, .x = most, .mask = GB_CHAIN(chain, isinf, .x = most), .value = gb_attr_num(0));
  gb_tensor *a = GB_CHAIN(chain, exp, .x = GB_CHAIN(chain, sub, .x = later, .y = most));
  gb_tensor *b = GB_CHAIN(chain, exp, .x = GB_CHAIN(chain, sub, .x = before, .y = most));
  return GB_CHAIN(chain, add, .x = most, .y = GB_CHAIN(chain, log, .x = GB_CHAIN(chain, add, .x = a, .y = b)));
}

static gb_status logcumsumexp_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, logcumsumexp)->x;
  int dim;
  int64_t n;
  GB_TRY(gb_require_float(call, GB_IN_AT(logcumsumexp, x)));
  GB_TRY(named_dim(call, x, &GB_ATTRS(call, logcumsumexp)->dim, &dim, &n));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = scan(&chain, gb_chain_widen(&chain, x), NULL, dim, n, log_sum);
  y = gb_chain_cast(&chain, y, (gb_dtype)x->dtype);
  return gb_chain_end(&chain, y == x ? GB_CHAIN(&chain, clone, .x = x) : y, &GB_OUT(call, logcumsumexp)->y);
}

/* Of two positions of x the later one where its element is at least as extreme, or NaN. */
static gb_tensor *choose(gb_chain *chain, gb_op better, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim) {
  gb_tensor *a = GB_CHAIN(chain, gather, .x = x, .dim = gb_attr_int(dim), .index = later);
  gb_tensor *b = GB_CHAIN(chain, gather, .x = x, .dim = gb_attr_int(dim), .index = before);
  gb_tensor *wins = GB_CHAIN(chain, logical_or, .x = gb_chain_2(chain, better, a, b, NULL),
                             .y = GB_CHAIN(chain, isnan, .x = a));
  return GB_CHAIN(chain, where, .condition = wins, .x = later, .y = before);
}

static gb_tensor *larger(gb_chain *chain, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim) {
  return choose(chain, GB_OP_ge, later, before, x, dim);
}

static gb_tensor *smaller(gb_chain *chain, gb_tensor *later, gb_tensor *before, gb_tensor *x, int dim) {
  return choose(chain, GB_OP_le, later, before, x, dim);
}

/* 0 .. n - 1 along dim, in every row of x. */
static gb_tensor *numbered(gb_chain *chain, const gb_tensor *x, int dim, int64_t n) {
  int64_t shape[GB_MAX_NDIM];
  gb_tensor *line = gb_chain_full(chain, GB_INT64, 1, &n, x->storage->device, 0);
  if (line) chain->status = GB_RUN(chain->context, sequence, NULL, .x = line);
  for (int i = 0; i < x->ndim; i++) shape[i] = i == dim ? n : 1;
  line = GB_CHAIN(chain, reshape, .x = line, .shape = gb_attr_ints(x->ndim, shape));
  return GB_CHAIN(chain, expand, .x = line, .shape = gb_attr_ints(x->ndim, x->shape));
}

/* The running extremes and their indices: of the last of equal ones, and of the first NaN and each one behind it. */
static gb_status running_extreme(gb_op_call *call, combination combine) {
  gb_tensor *x = GB_IN(call, cummax)->x;
  gb_out_cummax *out = GB_OUT(call, cummax);
  int dim;
  int64_t n;
  GB_TRY(named_dim(call, x, &GB_ATTRS(call, cummax)->dim, &dim, &n));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *still = gb_chain_detach(&chain, x);
  gb_tensor *at = scan(&chain, numbered(&chain, x, dim, n), still, dim, n, combine);
  GB_TRY(gb_chain_end(&chain, GB_CHAIN(&chain, contiguous, .x = at), &out->indices));
  return GB_RUN(call->context, gather, &out->values, .x = x, .dim = gb_attr_int(dim), .index = out->indices);
}
_Static_assert(GB_ATTR_AT(cummin, dim) == GB_ATTR_AT(cummax, dim) &&
               GB_OUT_AT(cummin, indices) == GB_OUT_AT(cummax, indices), "read as cummax");

static gb_status cummax_compose(gb_op_call *call) { return running_extreme(call, larger); }
static gb_status cummin_compose(gb_op_call *call) { return running_extreme(call, smaller); }

const gb_op_impl gb_family_scan[] = {
  { .op = GB_OP_cumprod, .compose = cumprod_compose },
  { .op = GB_OP_logcumsumexp, .compose = logcumsumexp_compose },
  { .op = GB_OP_cummax, .compose = cummax_compose },
  { .op = GB_OP_cummin, .compose = cummin_compose },
  { .op = GB_OP_COUNT },
};
