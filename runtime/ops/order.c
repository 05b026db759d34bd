/* ops/order.c - what sorting tells: medians, quantiles, positions among sorted values, unique elements, histograms; and
 * covariances. All are made of other ops and have their gradients.
 *
 * NaN sorts as the largest value, so that one at the end says that there is one. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

/* {==== steps ==== */

static gb_tensor *shaped(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *flat(gb_chain *chain, gb_tensor *x) { return shaped(chain, x, 1, (int64_t[]){ -1 }); }

static gb_tensor *part(gb_chain *chain, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(chain, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *sorted(gb_chain *chain, gb_tensor *x, int dim, gb_tensor **indices) {
  return gb_chain_pair(chain, GB_OP_sort, &(gb_arguments_sort){ .x = x, .dim = gb_attr_int(dim) }, indices);
}

static gb_tensor *picked(gb_chain *chain, gb_tensor *x, int dim, gb_tensor *index) {
  return GB_CHAIN(chain, gather, .x = x, .dim = gb_attr_int(dim), .index = index);
}

static gb_tensor *full(gb_chain *chain, const gb_tensor *like, gb_dtype dtype, int ndim, const int64_t *shape,
                       double value) {
  return gb_chain_full(chain, dtype, ndim, shape, like->storage->device, value);
}

/* Sums over dim, which stays. */
static gb_tensor *summed(gb_chain *chain, gb_tensor *x, int64_t dim) {
  return GB_CHAIN(chain, sum, .x = x, .dim = gb_attr_ints(1, &dim), .keepdim = gb_attr_int(true));
}

/* x op an integer, which keeps the dtype of an integer x, and all bits. */
static gb_tensor *whole(gb_chain *chain, gb_op op, gb_tensor *x, int64_t number) {
  gb_tensor *wrapped = NULL;
  if (chain->status == GB_OK) chain->status = gb_tensor_wrap_integer(chain->context, number, &wrapped);
  gb_tensor *made = gb_chain_2(chain, op, x, wrapped, NULL);
  gb_tensor_release(wrapped);
  return made;
}

static bool is_float(const gb_tensor *x) { return gb_dtype_is_float((gb_dtype)x->dtype); }

/* ====} */

/* {==== sorted, and picked by rank ==== */

static gb_status argsort_compose(gb_op_call *call) {
  const gb_attrs_argsort *attrs = GB_ATTRS(call, argsort);
  gb_out_sort made = { NULL };
  GB_TRY(GB_RUN(call->context, sort, &made.values, .x = GB_IN(call, argsort)->x, .dim = attrs->dim,
                .descending = attrs->descending));
  gb_tensor_release(made.values);
  GB_OUT(call, argsort)->indices = made.indices;
  return GB_OK;
}

static gb_status msort_compose(gb_op_call *call) {
  gb_out_sort made = { NULL };
  GB_TRY(GB_RUN(call->context, sort, &made.values, .x = GB_IN(call, msort)->x, .dim = gb_attr_int(0)));
  gb_tensor_release(made.indices);
  GB_OUT(call, msort)->values = made.values;
  return GB_OK;
}

/* The rank that an op picks: k - 1, or the middle of all or of what is not NaN. */
typedef enum rank { RANK_K, RANK_MIDDLE, RANK_MIDDLE_OF_NUMBERS } rank;

/* Where the picked element lies among sorted values, along dim, which has n. */
static gb_tensor *position_of(gb_chain *chain, gb_tensor *values, int dim, int64_t n, rank rule) {
  gb_tensor *nans = summed(chain, GB_CHAIN(chain, isnan, .x = values), dim);
  gb_tensor *numbers = whole(chain, GB_OP_add, GB_CHAIN(chain, neg, .x = nans), n);
  if (rule == RANK_MIDDLE_OF_NUMBERS) {
    gb_tensor *middle = whole(chain, GB_OP_floor_divide, whole(chain, GB_OP_sub, numbers, 1), 2);
    return whole(chain, GB_OP_maximum, middle, 0);
  }
  return GB_CHAIN(chain, masked_fill, .x = numbers, .mask = GB_CHAIN(chain, logical_not, .x = nans),
                  .value = gb_attr_whole((n - 1) / 2));
}

/* The element of a rank along dim and its index, or of all (named not given) the element alone. */
static gb_status pick_rank(gb_op_call *call, const gb_attr *named, bool keepdim, rank rule, int64_t k) {
  gb_tensor *x = GB_IN(call, kthvalue)->x, *indices;
  gb_out_kthvalue *out = GB_OUT(call, kthvalue);
  int dim = 0, ndim = x->ndim;
  bool all = !named->given;
  if (!all) GB_TRY(gb_call_dim(call, named->integer, ndim ? ndim : 1, &dim));
  int64_t n = all ? x->numel : ndim ? x->shape[dim] : 1, shape[GB_MAX_NDIM];
  if (n == 0 && !(all && is_float(x))) return gb_call_fail(call, GB_ESHAPE, "there are no elements to choose from");
  if (k > n)
    return gb_call_fail(call, GB_EINVAL, "k is %" PRId64 ", dimension %d has %" PRId64 " elements", k, dim + 1, n);
  int count = 0;
  for (int i = 0; !all && i < ndim; i++)
    if (i != dim) shape[count++] = x->shape[i];
    else if (keepdim) shape[count++] = 1;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (n == 0) return gb_chain_end(&chain, full(&chain, x, (gb_dtype)x->dtype, 0, NULL, (double)NAN), &out->values);
  gb_tensor *values = sorted(&chain, all || !ndim ? flat(&chain, x) : x, dim, &indices);
  if (rule == RANK_K || !is_float(x)) {
    int64_t at = rule == RANK_K ? k - 1 : (n - 1) / 2;
    values = part(&chain, values, dim, at, 1), indices = part(&chain, indices, dim, at, 1);
  } else {
    gb_tensor *at = position_of(&chain, values, dim, n, rule);
    values = picked(&chain, values, dim, at), indices = picked(&chain, indices, dim, at);
  }
  values = shaped(&chain, values, count, shape), indices = shaped(&chain, indices, count, shape);
  if (!all && chain.status == GB_OK) gb_tensor_retain(out->indices = indices);
  return gb_chain_end(&chain, values, &out->values);
}
_Static_assert(GB_OUT_AT(median, indices) == GB_OUT_AT(kthvalue, indices) &&
               GB_OUT_AT(nanmedian, indices) == GB_OUT_AT(kthvalue, indices),
               "read as kthvalue");

static gb_status kthvalue_compose(gb_op_call *call) {
  const gb_attrs_kthvalue *attrs = GB_ATTRS(call, kthvalue);
  gb_attr dim = attrs->dim;
  dim.given = true;
  return pick_rank(call, &dim, attrs->keepdim.integer, RANK_K, attrs->k.integer);
}

static gb_status median_compose(gb_op_call *call) {
  const gb_attrs_median *attrs = GB_ATTRS(call, median);
  return pick_rank(call, &attrs->dim, attrs->keepdim.integer, RANK_MIDDLE, 0);
}

static gb_status nanmedian_compose(gb_op_call *call) {
  const gb_attrs_nanmedian *attrs = GB_ATTRS(call, nanmedian);
  return pick_rank(call, &attrs->dim, attrs->keepdim.integer, RANK_MIDDLE_OF_NUMBERS, 0);
}

/* Of the sorted elements, how long the run is that ends at each: its position less that of the last start. */
static gb_status mode_compose(gb_op_call *call) {
  const gb_attrs_mode *attrs = GB_ATTRS(call, mode);
  gb_tensor *x = GB_IN(call, mode)->x, *indices, *starts_at = NULL;
  gb_out_mode *out = GB_OUT(call, mode);
  int dim, ndim = x->ndim ? x->ndim : 1, count = 0;
  GB_TRY(gb_call_dim(call, attrs->dim.integer, ndim, &dim));
  int64_t n = x->ndim ? x->shape[dim] : 1, shape[GB_MAX_NDIM], ones[GB_MAX_NDIM];
  if (n == 0) return gb_call_fail(call, GB_ESHAPE, "there are no elements to choose from");
  for (int i = 0; i < x->ndim; i++) {
    ones[i] = i == dim ? n : 1;
    if (i != dim) shape[count++] = x->shape[i];
    else if (attrs->keepdim.integer) shape[count++] = 1;
  }
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *all = x->ndim ? x : flat(&chain, x);
  gb_tensor *values = sorted(&chain, gb_chain_detach(&chain, all), dim, &indices);
  gb_tensor *line = full(&chain, x, GB_INT64, 1, &n, 0);
  if (line) chain.status = GB_RUN(call->context, sequence, NULL, .x = line);
  if (x->ndim) line = shaped(&chain, line, ndim, ones);
  gb_tensor *same = GB_CHAIN(&chain, eq, .x = part(&chain, values, dim, 1, n - 1),
                             .y = part(&chain, values, dim, 0, n - 1));
  gb_tensor *begin = GB_CHAIN(&chain, masked_fill, .x = GB_CHAIN(&chain, expand, .x = part(&chain, line, dim, 1, n - 1),
                              .shape = same ? gb_attr_ints(same->ndim, same->shape) : gb_attr_int(0)), .mask = same,
                              .value = gb_attr_whole(0));
  gb_chain_pair(&chain, GB_OP_cummax, &(gb_arguments_cummax){ .x = begin, .dim = gb_attr_int(dim) }, &starts_at);
  gb_tensor *last = GB_CHAIN(&chain, sub, .x = part(&chain, line, dim, 1, n - 1),
                             .y = picked(&chain, begin, dim, starts_at));
  int64_t first[GB_MAX_NDIM];
  for (int i = 0; i < ndim; i++) first[i] = i == dim ? 1 : all ? all->shape[i] : 1;
  gb_tensor *parts[] = { full(&chain, x, GB_INT64, ndim, first, 0), last };
  gb_tensor *lengths = GB_CHAIN(&chain, cat, .xs = parts, .count = 2, .dim = gb_attr_int(dim));
  gb_tensor *at = GB_CHAIN(&chain, argmax, .x = lengths, .dim = gb_attr_int(dim), .keepdim = gb_attr_int(true));
  gb_tensor *index = picked(&chain, indices, dim, at), *value = picked(&chain, all, dim, index);
  index = shaped(&chain, index, count, shape);
  if (chain.status == GB_OK) gb_tensor_retain(out->indices = index);
  return gb_chain_end(&chain, shaped(&chain, value, count, shape), &out->values);
}

/* ====} */

/* {==== quantiles ==== */

/* All of q lies in 0 .. 1. */
static gb_status check_q(gb_op_call *call, gb_tensor *q) {
  gb_tensor *fits = NULL;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *low = gb_chain_number(&chain, GB_OP_ge, q, 0), *high = gb_chain_number(&chain, GB_OP_le, q, 1);
  gb_tensor *all = GB_CHAIN(&chain, all, .x = GB_CHAIN(&chain, logical_and, .x = low, .y = high));
  GB_TRY(gb_chain_end(&chain, all, &fits));
  int64_t yes = 0;
  gb_status status = gb_tensor_item(fits, NULL, &yes);
  gb_drop(&fits);
  if (status != GB_OK || yes) return status;
  return gb_call_fail(call, GB_EINVAL, "'q' must lie in 0 .. 1");
}

/* The ranks, with a fraction, that q means among the n sorted values of each row. */
static gb_tensor *ranks_of(gb_chain *chain, gb_tensor *values, gb_tensor *q, int64_t n, bool ignore_nan) {
  int last = values ? values->ndim - 1 : 0;
  if (ignore_nan) {
    gb_tensor *numbers = summed(chain, GB_CHAIN(chain, logical_not, .x = GB_CHAIN(chain, isnan, .x = values)), last);
    numbers = gb_chain_cast(chain, gb_chain_number(chain, GB_OP_sub, numbers, 1), q ? (gb_dtype)q->dtype : GB_FLOAT32);
    return gb_chain_number(chain, GB_OP_maximum, GB_CHAIN(chain, mul, .x = q, .y = numbers), 0);
  }
  gb_tensor *nan = GB_CHAIN(chain, isnan, .x = part(chain, values, last, n - 1, 1));
  gb_tensor *ranks = gb_chain_number(chain, GB_OP_mul, q, (double)(n - 1));
  if (chain->status != GB_OK) return NULL;
  gb_tensor *end = full(chain, values, q ? (gb_dtype)q->dtype : GB_FLOAT32, 0, NULL, (double)(n - 1));
  return GB_CHAIN(chain, where, .condition = nan, .x = end, .y = ranks);
}

/* The values at ranks with a fraction. */
static gb_tensor *between(gb_chain *chain, gb_tensor *values, gb_tensor *ranks, int64_t how) {
  int last = values ? values->ndim - 1 : 0;
  gb_tensor *low = GB_CHAIN(chain, floor, .x = ranks), *high = GB_CHAIN(chain, ceil, .x = ranks);
  if (how == GB_WORD_nearest) low = GB_CHAIN(chain, round, .x = ranks);
  if (how == GB_WORD_higher) low = high;
  gb_tensor *below = picked(chain, values, last, gb_chain_cast(chain, low, GB_INT64));
  if (how != GB_WORD_linear && how != GB_WORD_midpoint) return below;
  gb_tensor *above = picked(chain, values, last, gb_chain_cast(chain, high, GB_INT64));
  gb_tensor *weight = GB_CHAIN(chain, sub, .x = ranks, .y = low);
  if (how == GB_WORD_midpoint && weight)
    weight = full(chain, weight, (gb_dtype)weight->dtype, weight->ndim, weight->shape, 0.5);
  return GB_CHAIN(chain, lerp, .x = below, .y = above, .weight = weight);
}

static gb_status quantile_of(gb_op_call *call, bool ignore_nan) {
  const gb_attrs_quantile *attrs = GB_ATTRS(call, quantile);
  gb_tensor *x = GB_IN(call, quantile)->x, *q = GB_IN(call, quantile)->q, *indices, *values = x;
  int dim = 0, count = 0, ndim = x->ndim;
  bool all = !attrs->dim.given || !ndim;
  GB_TRY(gb_require_float(call, GB_IN_AT(quantile, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(quantile, q), 0, 1));
  if (q->ndim) GB_TRY(gb_require_float(call, GB_IN_AT(quantile, q)));
  if (attrs->dim.given) GB_TRY(gb_call_dim(call, attrs->dim.integer, ndim ? ndim : 1, &dim));
  int64_t n = all ? x->numel : x->shape[dim], shape[GB_MAX_NDIM + 1];
  if (n == 0) return gb_call_fail(call, GB_ESHAPE, "there are no elements to choose from");
  if (ndim + q->ndim > GB_MAX_NDIM)
    return gb_call_fail(call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
  GB_TRY(check_q(call, q));
  if (q->ndim) shape[count++] = q->numel;
  for (int i = 0; i < ndim; i++) {
    if (!all && i != dim) shape[count++] = x->shape[i];
    else if (attrs->keepdim.integer) shape[count++] = 1;
  }
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (all) values = flat(&chain, x);
  else if (dim != ndim - 1)
    values = GB_CHAIN(&chain, movedim, .x = x, .source = gb_attr_ints(1, (int64_t[]){ dim }),
                      .destination = gb_attr_ints(1, (int64_t[]){ -1 }));
  values = gb_chain_widen(&chain, sorted(&chain, values, -1, &indices));
  q = flat(&chain, gb_chain_here(&chain, call, q));
  q = gb_chain_cast(&chain, q, x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32);
  gb_tensor *ranks = ranks_of(&chain, values, q, n, ignore_nan);
  int64_t wide[GB_MAX_NDIM], last = -1, first = 0;
  if (chain.status == GB_OK) {
    memcpy(wide, values->shape, sizeof values->shape);
    wide[values->ndim - 1] = q->numel;
    ranks = GB_CHAIN(&chain, expand, .x = ranks, .shape = gb_attr_ints(values->ndim, wide));
  }
  gb_tensor *y = between(&chain, values, ranks, attrs->interpolation.integer);
  y = GB_CHAIN(&chain, movedim, .x = y, .source = gb_attr_ints(1, &last), .destination = gb_attr_ints(1, &first));
  y = gb_chain_cast(&chain, shaped(&chain, y, count, shape), (gb_dtype)x->dtype);
  return gb_chain_end(&chain, y, &GB_OUT(call, quantile)->y);
}
_Static_assert(GB_ATTR_AT(nanquantile, interpolation) == GB_ATTR_AT(quantile, interpolation), "read as quantile");

static gb_status quantile_compose(gb_op_call *call) { return quantile_of(call, false); }
static gb_status nanquantile_compose(gb_op_call *call) { return quantile_of(call, true); }

/* ====} */

/* {==== positions among sorted values ==== */

/* How many of each row of `line` are smaller than each of `values` (right: not larger). */
static gb_tensor *positions(gb_chain *chain, gb_tensor *line, gb_tensor *values, bool right) {
  return GB_CHAIN(chain, search_rows, .x = line, .values = values, .right = gb_attr_int(right));
}

/* Positions of values of any shape in a vector; else rows of both match. */
static gb_status find_positions(gb_op_call *call, gb_tensor *line, gb_tensor *values, bool right, gb_tensor **out) {
  char a[96], b[96];
  bool fits = line->ndim == 1 || (line->ndim == values->ndim && line->ndim > 0);
  for (int i = 0; fits && line->ndim > 1 && i + 1 < line->ndim; i++) fits = line->shape[i] == values->shape[i];
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "the sorted tensor is %s, the values %s: it is a vector, or alike in all "
                                         "dimensions but the last",
                        gb_shape_text(line->ndim, line->shape, a, sizeof a),
                        gb_shape_text(values->ndim, values->shape, b, sizeof b));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  values = gb_chain_here(&chain, call, values);
  gb_tensor *found = positions(&chain, line, line->ndim == 1 ? flat(&chain, values) : values, right);
  return gb_chain_end(&chain, shaped(&chain, found, values->ndim, values->shape), out);
}

/* The same as int32 where that is asked for. */
static gb_status find_positions_as(gb_op_call *call, gb_tensor *line, gb_tensor *values, bool right, bool narrow,
                                   gb_tensor **out) {
  gb_tensor *wide = NULL;
  if (!narrow) return find_positions(call, line, values, right, out);
  GB_TRY(find_positions(call, line, values, right, &wide));
  gb_status status = gb_op_cast(call->context, wide, GB_INT32, out);
  gb_drop(&wide);
  return status;
}

static gb_status searchsorted_compose(gb_op_call *call) {
  const gb_in_searchsorted *in = GB_IN(call, searchsorted);
  const gb_attrs_searchsorted *attrs = GB_ATTRS(call, searchsorted);
  bool right = attrs->right.integer || attrs->side.integer == GB_WORD_right;
  gb_tensor *line = in->x, *made = NULL;
  if (in->sorter) {
    bool fits = in->sorter->ndim == line->ndim && line->ndim > 0;
    for (int i = 0; fits && i < line->ndim; i++) fits = in->sorter->shape[i] == line->shape[i];
    if (!fits) return gb_call_fail(call, GB_ESHAPE, "sorter needs the shape of x, which it sorts");
    GB_TRY(GB_RUN(call->context, gather, &made, .x = line, .dim = gb_attr_int(-1), .index = in->sorter));
    line = made;
  }
  gb_status status = find_positions_as(call, line, in->values, right, attrs->out_int32.integer != 0,
                                       &GB_OUT(call, searchsorted)->indices);
  gb_drop(&made);
  return status;
}

static gb_status bucketize_compose(gb_op_call *call) {
  const gb_in_bucketize *in = GB_IN(call, bucketize);
  GB_TRY(gb_require_ndim(call, GB_IN_AT(bucketize, boundaries), 1, 1));
  const gb_attrs_bucketize *attrs = GB_ATTRS(call, bucketize);
  return find_positions_as(call, in->boundaries, in->values, attrs->right.integer != 0,
                           attrs->out_int32.integer != 0, &GB_OUT(call, bucketize)->indices);
}

/* The first of the sorted values that is not smaller is equal, or none is. */
static gb_status isin_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, isin)->x, *values = GB_IN(call, isin)->values, *order, *y;
  bool invert = GB_ATTRS(call, isin)->invert.integer;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (values->numel == 0) y = full(&chain, x, GB_BOOL, x->ndim, x->shape, invert);
  else {
    gb_tensor *line = sorted(&chain, flat(&chain, gb_chain_here(&chain, call, values)), 0, &order);
    gb_tensor *all = flat(&chain, x);
    gb_tensor *at = whole(&chain, GB_OP_minimum, positions(&chain, line, all, false), values->numel - 1);
    gb_tensor *nearest = picked(&chain, line, 0, at);
    y = invert ? GB_CHAIN(&chain, ne, .x = all, .y = nearest) : GB_CHAIN(&chain, eq, .x = all, .y = nearest);
    y = shaped(&chain, y, x->ndim, x->shape);
  }
  return gb_chain_end(&chain, y, &GB_OUT(call, isin)->y);
}

/* ====} */

/* {==== counting ==== */

/* An integer that is known on the host. */
static gb_status read_integer(gb_chain *chain, gb_tensor *x, int64_t *out) {
  if (chain->status == GB_OK) chain->status = gb_tensor_item(x, NULL, out);
  return chain->status;
}

/* `weights` (NULL: ones) added at index in a vector of n. */
static gb_tensor *tally(gb_chain *chain, gb_tensor *index, gb_tensor *weights, int64_t n, gb_dtype dtype) {
  if (chain->status != GB_OK) return NULL;
  gb_tensor *none = full(chain, index, dtype, 1, &n, 0);
  if (!weights) weights = full(chain, index, dtype, 1, index->shape, 1);
  return GB_CHAIN(chain, index_add, .x = none, .dim = gb_attr_int(0), .index = index, .source = weights);
}

static gb_status bincount_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, bincount)->x, *weights = GB_IN(call, bincount)->weights;
  int64_t n = GB_ATTRS(call, bincount)->minlength.integer, most = -1, least = 0;
  GB_TRY(gb_require_integer(call, GB_IN_AT(bincount, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(bincount, x), 1, 1));
  if (weights && (weights->ndim != 1 || weights->numel != x->numel))
    return gb_call_fail(call, GB_ESHAPE, "weights must be a vector of %" PRId64 " elements, one for each of x",
                        x->numel);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (x->numel > 0) {
    read_integer(&chain, GB_CHAIN(&chain, amax, .x = x), &most);
    read_integer(&chain, GB_CHAIN(&chain, amin, .x = x), &least);
  }
  if (chain.status == GB_OK && least < 0)
    chain.status = gb_call_fail(call, GB_EINVAL, "x has the element %" PRId64 "; it counts integers from 0", least);
  if (most == INT64_MAX) most--; /* no memory holds so many; the allocation says so */
  gb_dtype dtype = !weights ? GB_INT64 : weights->dtype == GB_FLOAT32 ? GB_FLOAT32 : GB_FLOAT64;
  if (weights) weights = gb_chain_cast(&chain, weights, dtype);
  gb_tensor *counts = tally(&chain, gb_chain_cast(&chain, x, GB_INT64), weights, most + 1 > n ? most + 1 : n, dtype);
  return gb_chain_end(&chain, counts, &GB_OUT(call, bincount)->counts);
}

/* The smallest and the largest element, for a histogram of all. */
static void read_span(gb_chain *chain, gb_tensor *x, double *least, double *most) {
  int64_t whole;
  gb_tensor *low = GB_CHAIN(chain, amin, .x = x), *high = GB_CHAIN(chain, amax, .x = x);
  if (chain->status == GB_OK) chain->status = gb_tensor_item(low, least, &whole);
  if (chain->status == GB_OK) chain->status = gb_tensor_item(high, most, &whole);
}

static gb_status histc_compose(gb_op_call *call) {
  const gb_attrs_histc *attrs = GB_ATTRS(call, histc);
  gb_tensor *x = GB_IN(call, histc)->x;
  int64_t bins = attrs->bins.integer;
  double least = attrs->min.number, most = attrs->max.number;
  GB_TRY(gb_require_float(call, GB_IN_AT(histc, x)));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (least == most && x->numel > 0) read_span(&chain, x, &least, &most);
  if (least == most) least -= 1, most += 1;
  if (chain.status == GB_OK && !(least < most && isfinite(most - least)))
    chain.status = gb_call_fail(call, GB_EINVAL, "the range %g .. %g is empty or not finite", least, most);
  gb_tensor *wide = gb_chain_widen(&chain, flat(&chain, x));
  gb_tensor *low = gb_chain_number(&chain, GB_OP_ge, wide, least),
      *high = gb_chain_number(&chain, GB_OP_le, wide, most);
  gb_tensor *inside = GB_CHAIN(&chain, masked_select, .x = wide,
                               .mask = GB_CHAIN(&chain, logical_and, .x = low, .y = high));
  gb_tensor *at = gb_chain_number(&chain, GB_OP_mul, gb_chain_number(&chain, GB_OP_sub, inside, least), (double)bins);
  at = GB_CHAIN(&chain, floor, .x = gb_chain_number(&chain, GB_OP_div, at, most - least));
  at = whole(&chain, GB_OP_minimum, gb_chain_cast(&chain, at, GB_INT64), bins - 1);
  gb_tensor *counts = gb_chain_cast(&chain, tally(&chain, at, NULL, bins, GB_INT64), (gb_dtype)x->dtype);
  return gb_chain_end(&chain, counts, &GB_OUT(call, histc)->counts);
}

/* Give a chain's tensor to the next output that is asked for. */
static void hand_out(gb_op_call *call, gb_chain *chain, int *output, gb_tensor *made) {
  if (chain->status == GB_OK) gb_tensor_retain(call->out[(*output)++] = made);
}

/* How far each place that is marked lies before the next one; the last place only ends the one before it. */
static gb_tensor *distances(gb_chain *chain, gb_tensor *marks) {
  gb_tensor *places = flat(chain, GB_CHAIN(chain, nonzero, .x = marks));
  if (!places || places->numel == 0) return places;
  const int64_t count = places->numel - 1;
  return GB_CHAIN(chain, sub, .x = part(chain, places, 0, 1, count), .y = part(chain, places, 0, 0, count));
}

/* The parts of x along dim as rows, or all of it (dim not given) as a vector. */
static gb_tensor *parts_of(gb_chain *chain, gb_tensor *x, const gb_attr *dim, int at) {
  if (!dim->given) return flat(chain, x);
  gb_tensor *first = GB_CHAIN(chain, movedim, .x = x, .source = gb_attr_ints(1, (int64_t[]){ at }),
                              .destination = gb_attr_ints(1, (int64_t[]){ 0 }));
  int64_t n = x->shape[at], shape[] = { n, 1 };
  for (int i = 0; i < x->ndim; i++)
    if (i != at) shape[1] *= x->shape[i];
  return shaped(chain, first, 2, shape);
}

/* Rows back to parts along dim. */
static gb_tensor *rows_to_parts(gb_chain *chain, gb_tensor *rows, const gb_tensor *x, int at) {
  int64_t shape[GB_MAX_NDIM] = { rows ? rows->shape[0] : 0 };
  for (int i = 0, k = 1; i < x->ndim; i++)
    if (i != at) shape[k++] = x->shape[i];
  return GB_CHAIN(chain, movedim, .x = shaped(chain, rows, x->ndim, shape), .source = gb_attr_ints(1, (int64_t[]){ 0 }),
                  .destination = gb_attr_ints(1, (int64_t[]){ at }));
}

/* Whether the elements of an integer x are to be counted instead of sorted: where a table of all from the least to the
 * largest has no more places than x has elements. A GPU sorts to add them up, too. */
static bool is_dense(gb_chain *chain, gb_tensor *x, int64_t *least, int64_t *places) {
  int64_t most = 0;
  if (is_float(x) || x->dtype == GB_BOOL || x->storage->device.type != GB_CPU || x->numel == 0) return false;
  read_integer(chain, GB_CHAIN(chain, amin, .x = x), least);
  if (read_integer(chain, GB_CHAIN(chain, amax, .x = x), &most) != GB_OK) return false;
  uint64_t span = (uint64_t)most - (uint64_t)*least; /* without overflow */
  *places = (int64_t)span + 1;
  return span < (uint64_t)x->numel;
}

/* The different integers of x by a table of how often each number from `least` on stands in it. */
static gb_status counted_of(gb_op_call *call, gb_chain *chain, int64_t least, int64_t places) {
  const gb_attrs_unique *attrs = GB_ATTRS(call, unique);
  gb_tensor *x = GB_IN(call, unique)->x, *done;
  int output = 0;
  gb_tensor *at = flat(chain, gb_chain_cast(chain, x, GB_INT64));
  if (least != 0) at = whole(chain, GB_OP_sub, at, least);
  gb_tensor *counts = tally(chain, at, NULL, places, GB_INT64), *there = whole(chain, GB_OP_ne, counts, 0);
  gb_tensor *values = whole(chain, GB_OP_add, flat(chain, GB_CHAIN(chain, nonzero, .x = there)), least);
  hand_out(call, chain, &output, gb_chain_cast(chain, values, (gb_dtype)x->dtype));
  if (attrs->return_inverse.integer) {
    gb_tensor *numbers = whole(chain, GB_OP_sub, GB_CHAIN(chain, cumsum, .x = there, .dim = gb_attr_int(0)), 1);
    hand_out(call, chain, &output, shaped(chain, picked(chain, numbers, 0, at), x->ndim, x->shape));
  }
  if (attrs->return_counts.integer)
    hand_out(call, chain, &output, GB_CHAIN(chain, masked_select, .x = counts, .mask = there));
  GB_TRY(gb_chain_end(chain, x, &done));
  gb_tensor_release(done);
  return GB_OK;
}

/* Runs of equal rows (or elements of a vector): the first of each, and if asked for the number of each row's run and
 * the lengths. `order` (NULL: none) says where the rows stand in x. at: the dim of x that they lie along. */
static gb_status runs_of(gb_op_call *call, gb_chain *chain, gb_tensor *line, gb_tensor *order, int at) {
  bool by_parts = call->op == GB_OP_unique ? GB_ATTRS(call, unique)->dim.given
                                           : GB_ATTRS(call, unique_consecutive)->dim.given;
  bool inverted = call->op == GB_OP_unique ? GB_ATTRS(call, unique)->return_inverse.integer
                                           : GB_ATTRS(call, unique_consecutive)->return_inverse.integer;
  bool counted = call->op == GB_OP_unique ? GB_ATTRS(call, unique)->return_counts.integer
                                          : GB_ATTRS(call, unique_consecutive)->return_counts.integer;
  gb_tensor *x = *call->in;
  int64_t n = by_parts ? x->shape[at] : x->numel, one = n > 0, row = 1;
  int output = 0;
  gb_tensor *changes = n > 1 ? GB_CHAIN(chain, ne, .x = part(chain, line, 0, 1, n - 1),
                                        .y = part(chain, line, 0, 0, n - 1)) : NULL;
  if (changes && by_parts) changes = GB_CHAIN(chain, any, .x = changes, .dim = gb_attr_ints(1, &row));
  gb_tensor *mark = full(chain, x, GB_BOOL, 1, &one, 1), *pieces[] = { mark, mark, mark };
  if (changes) pieces[1] = changes;
  gb_tensor *marks = n > 1 || counted /* where the last run ends is a place too */
      ? GB_CHAIN(chain, cat, .xs = pieces, .count = (n > 1) + 1 + counted, .dim = gb_attr_int(0)) : mark;
  gb_tensor *starts = counted ? part(chain, marks, 0, 0, n) : marks;
  gb_tensor *values;
  if (by_parts) {
    values = GB_CHAIN(chain, index_select, .x = line, .dim = gb_attr_int(0),
                      .index = flat(chain, GB_CHAIN(chain, nonzero, .x = starts)));
    values = rows_to_parts(chain, values, x, at);
  } else values = GB_CHAIN(chain, masked_select, .x = line, .mask = starts);
  gb_tensor *counts = counted ? distances(chain, marks) : NULL;
  hand_out(call, chain, &output, by_parts ? GB_CHAIN(chain, contiguous, .x = values) : values);
  if (inverted) {
    gb_tensor *inverse = GB_CHAIN(chain, cumsum, .x = starts, .dim = gb_attr_int(0)); /* from 1 on */
    if (!order) inverse = whole(chain, GB_OP_sub, inverse, 1);
    else inverse = GB_CHAIN(chain, scatter_add, .x = full(chain, x, GB_INT64, 1, &n, -1), .dim = gb_attr_int(0),
                            .index = order, .source = inverse); /* each place is named once */
    if (!by_parts) inverse = shaped(chain, inverse, x->ndim, x->shape);
    hand_out(call, chain, &output, inverse);
  }
  if (counted) hand_out(call, chain, &output, counts);
  gb_tensor *done;
  GB_TRY(gb_chain_end(chain, x, &done));
  gb_tensor_release(done);
  return GB_OK;
}

/* One step of ordering rows: `order` sorted by the column, where equal ones stay in the order that they have. */
static gb_status sort_by_column(gb_context *context, gb_tensor *rows, int64_t column, gb_tensor **order) {
  gb_tensor *place, *next = NULL;
  gb_chain chain;
  gb_chain_begin(&chain, context);
  gb_tensor *line = GB_CHAIN(&chain, select, .x = rows, .dim = gb_attr_int(1), .position = gb_attr_int(column));
  if (*order) line = GB_CHAIN(&chain, index_select, .x = line, .dim = gb_attr_int(0), .index = *order);
  sorted(&chain, line, 0, &place);
  if (*order) place = GB_CHAIN(&chain, index_select, .x = *order, .dim = gb_attr_int(0), .index = place);
  GB_TRY(gb_chain_end(&chain, place, &next));
  gb_drop(order);
  *order = next;
  return GB_OK;
}

/* The order of rows as of words: by their last column, then by the one before it. Sorting keeps equal ones in order. */
static gb_status order_rows(gb_context *context, gb_tensor *rows, gb_tensor **order) {
  gb_status status = GB_OK;
  *order = NULL;
  for (int64_t c = rows->shape[1] - 1; status == GB_OK && c >= 0; c--) {
    status = sort_by_column(context, rows, c, order);
    if (status == GB_OK) status = gb_poll(context);
  }
  if (status != GB_OK) gb_drop(order);
  return status;
}

/* The dim that x is cut along, 0 where none is given. */
static gb_status named_part(gb_op_call *call, const gb_attr *dim, int *at) {
  *at = 0;
  if (!dim->given) return GB_OK;
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  return gb_call_dim(call, dim->integer, (*call->in)->ndim, at);
}

static gb_status unique_compose(gb_op_call *call) {
  const gb_attr *dim = &GB_ATTRS(call, unique)->dim;
  gb_tensor *order = NULL, *own = NULL;
  int64_t least, places;
  int at;
  GB_TRY(named_part(call, dim, &at));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (!dim->given && is_dense(&chain, GB_IN(call, unique)->x, &least, &places))
    return counted_of(call, &chain, least, places);
  gb_tensor *line = parts_of(&chain, GB_IN(call, unique)->x, dim, at);
  if (!dim->given) line = sorted(&chain, line, 0, &order);
  else if (chain.status == GB_OK && line->shape[1] > 0) {
    chain.status = order_rows(call->context, line, &own);
    line = GB_CHAIN(&chain, index_select, .x = line, .dim = gb_attr_int(0), .index = own);
  }
  gb_status status = runs_of(call, &chain, line, dim->given ? own : order, at);
  gb_drop(&own);
  return status;
}

static gb_status unique_consecutive_compose(gb_op_call *call) {
  const gb_attr *dim = &GB_ATTRS(call, unique_consecutive)->dim;
  int at;
  GB_TRY(named_part(call, dim, &at));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  return runs_of(call, &chain, parts_of(&chain, GB_IN(call, unique_consecutive)->x, dim, at), NULL, at);
}

/* ====} */

/* {==== covariances ==== */

/* The covariances of the rows of x [rows, n]. */
static gb_tensor *covariances(gb_chain *chain, gb_tensor *x, double divisor) {
  int64_t last = 1;
  gb_tensor *mean = GB_CHAIN(chain, mean, .x = x, .dim = gb_attr_ints(1, &last), .keepdim = gb_attr_int(true));
  gb_tensor *centred = GB_CHAIN(chain, sub, .x = x, .y = mean);
  gb_tensor *products = GB_CHAIN(chain, matmul, .x = centred, .y = GB_CHAIN(chain, t, .x = centred));
  return gb_chain_number(chain, GB_OP_div, products, divisor);
}

/* x as rows of observations; a vector is one row, and gives a scalar. */
static gb_status rows_of(gb_op_call *call, int64_t *shape) {
  const gb_tensor *x = GB_IN(call, cov)->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(cov, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(cov, x), 0, 2));
  shape[0] = x->ndim == 2 ? x->shape[0] : 1;
  shape[1] = x->ndim == 2 ? x->shape[1] : x->numel;
  return GB_OK;
}

/* The weights of n columns: a vector of them, integers or floats. */
static gb_status check_weights(gb_op_call *call, int input, int64_t n) {
  const gb_tensor *w = call->in[input];
  char text[96];
  if (!w || (w->ndim <= 1 && w->numel == n)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "%s has shape %s; it is a vector of %" PRId64 ", one for each column of x",
                      call->info->in[input].name, gb_shape_text(w->ndim, w->shape, text, sizeof text), n);
}

/* The same where columns have weights w, which sum up to more than 0. As in NumPy, what a column counts for takes
 * correction times its own weight off. */
static gb_tensor *weighted_covariances(gb_chain *chain, gb_tensor *x, gb_tensor *w, gb_tensor *own, double correction) {
  int64_t last = 1;
  gb_attr rows = gb_attr_ints(1, &last);
  gb_tensor *total = GB_CHAIN(chain, sum, .x = w), *off = NULL;
  gb_tensor *mean = GB_CHAIN(chain, div, .x = GB_CHAIN(chain, sum, .x = GB_CHAIN(chain, mul, .x = x, .y = w),
                                                       .dim = rows, .keepdim = gb_attr_int(true)), .y = total);
  gb_tensor *centred = GB_CHAIN(chain, sub, .x = x, .y = mean);
  gb_tensor *products = GB_CHAIN(chain, matmul, .x = centred,
                                 .y = GB_CHAIN(chain, t, .x = GB_CHAIN(chain, mul, .x = centred, .y = w)));
  if (own) {
    gb_tensor *squares = GB_CHAIN(chain, sum, .x = GB_CHAIN(chain, mul, .x = w, .y = own));
    off = gb_chain_number(chain, GB_OP_mul, GB_CHAIN(chain, div, .x = squares, .y = total), correction);
  }
  gb_tensor *divisor = own ? GB_CHAIN(chain, sub, .x = total, .y = off)
                           : gb_chain_number(chain, GB_OP_sub, total, correction);
  return GB_CHAIN(chain, div, .x = products, .y = gb_chain_number(chain, GB_OP_maximum, divisor, 0));
}

static gb_status cov_compose(gb_op_call *call) {
  int64_t shape[2];
  gb_tensor *x = GB_IN(call, cov)->x, *f = GB_IN(call, cov)->fweights, *a = GB_IN(call, cov)->aweights, *y;
  GB_TRY(rows_of(call, shape));
  GB_TRY(check_weights(call, GB_IN_AT(cov, fweights), shape[1]));
  GB_TRY(check_weights(call, GB_IN_AT(cov, aweights), shape[1]));
  if (f) GB_TRY(gb_require_integer(call, GB_IN_AT(cov, fweights)));
  if (a) GB_TRY(gb_require_float(call, GB_IN_AT(cov, aweights)));
  double correction = GB_ATTRS(call, cov)->correction.number, divisor = (double)shape[1] - correction;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *rows = shaped(&chain, x, 2, shape);
  if (f) f = gb_chain_cast(&chain, f, (gb_dtype)x->dtype);
  if (a) a = gb_chain_cast(&chain, a, (gb_dtype)x->dtype);
  gb_tensor *w = f && a ? GB_CHAIN(&chain, mul, .x = f, .y = a) : f ? f : a;
  if (w) y = weighted_covariances(&chain, rows, w, a, correction);
  else y = covariances(&chain, rows, divisor > 0 ? divisor : 0);
  if (shape[0] == 1) y = shaped(&chain, y, 0, NULL);
  return gb_chain_end(&chain, y, &GB_OUT(call, cov)->y);
}

static gb_status corrcoef_compose(gb_op_call *call) {
  int64_t shape[2];
  GB_TRY(rows_of(call, shape));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *wide = gb_chain_widen(&chain, shaped(&chain, GB_IN(call, corrcoef)->x, 2, shape));
  gb_tensor *c = covariances(&chain, wide, shape[1] > 1 ? (double)shape[1] - 1 : 0);
  gb_tensor *deviation = GB_CHAIN(&chain, sqrt, .x = GB_CHAIN(&chain, diagonal, .x = c));
  gb_tensor *y = GB_CHAIN(&chain, div, .x = c, .y = GB_CHAIN(&chain, unsqueeze, .x = deviation, .dim = gb_attr_int(1)));
  y = GB_CHAIN(&chain, div, .x = y, .y = deviation);
  if (shape[0] == 1) y = shaped(&chain, y, 0, NULL);
  else y = whole(&chain, GB_OP_maximum, whole(&chain, GB_OP_minimum, y, 1), -1);
  y = gb_chain_cast(&chain, y, (gb_dtype)GB_IN(call, corrcoef)->x->dtype);
  return gb_chain_end(&chain, y, &GB_OUT(call, corrcoef)->y);
}

/* ====} */

const gb_op_impl gb_family_order[] = {
  { .op = GB_OP_argsort, .compose = argsort_compose },
  { .op = GB_OP_msort, .compose = msort_compose },
  { .op = GB_OP_kthvalue, .compose = kthvalue_compose },
  { .op = GB_OP_median, .compose = median_compose },
  { .op = GB_OP_nanmedian, .compose = nanmedian_compose },
  { .op = GB_OP_mode, .compose = mode_compose },
  { .op = GB_OP_quantile, .compose = quantile_compose },
  { .op = GB_OP_nanquantile, .compose = nanquantile_compose },
  { .op = GB_OP_searchsorted, .compose = searchsorted_compose },
  { .op = GB_OP_bucketize, .compose = bucketize_compose },
  { .op = GB_OP_isin, .compose = isin_compose },
  { .op = GB_OP_bincount, .compose = bincount_compose },
  { .op = GB_OP_histc, .compose = histc_compose },
  { .op = GB_OP_unique, .compose = unique_compose },
  { .op = GB_OP_unique_consecutive, .compose = unique_consecutive_compose },
  { .op = GB_OP_cov, .compose = cov_compose },
  { .op = GB_OP_corrcoef, .compose = corrcoef_compose },
  { .op = GB_OP_COUNT },
};
