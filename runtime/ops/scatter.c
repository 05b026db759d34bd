/* ops/scatter.c - elements put, gathered and combined by their places in a tensor. All are made of other ops and have
 * their gradients.
 *
 * A place is the number of an element in row-major order. What goes to one place is brought side by side by a stable
 * sort, and combined as a running result in log2(n) steps (scan.c), so products have their true gradients beside zeros
 * too, and the order of sums and products is fixed. Sums go the way of scatter_add. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "graph/chain.h"

/* {==== steps ==== */

static gb_tensor *shaped(gb_chain *c, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(c, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *flat(gb_chain *c, gb_tensor *x) { return shaped(c, x, 1, (int64_t[]){ -1 }); }

static gb_tensor *like(gb_chain *c, gb_tensor *x, const gb_tensor *of) { return shaped(c, x, of->ndim, of->shape); }

static gb_tensor *part(gb_chain *c, gb_tensor *x, int64_t start, int64_t length) {
  return GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(0), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *picked(gb_chain *c, gb_tensor *x, gb_tensor *index) {
  return GB_CHAIN(c, index_select, .x = x, .dim = gb_attr_int(0), .index = index);
}

/* 0 .. n - 1, on x's device. */
static gb_tensor *counted(gb_chain *c, const gb_tensor *x, int64_t n) {
  gb_tensor *line = gb_chain_full(c, GB_INT64, 1, &n, x->storage->device, 0);
  if (line) c->status = GB_RUN(c->context, sequence, NULL, .x = line);
  return line;
}

/* ====} */

/* {==== scatter_reduce and index_reduce ==== */

/* The op that combines two elements. */
static gb_op pair_op(int64_t reduce) {
  return reduce == GB_WORD_prod ? GB_OP_mul : reduce == GB_WORD_amax ? GB_OP_maximum : GB_OP_minimum;
}

/* Of elements in the order of their places, the last of each place: all of that place combined. An element of another
 * place counts as 1 to products, and to extremes as what is there already. */
static gb_tensor *combined(gb_chain *c, gb_tensor *values, gb_tensor *places, int64_t n, int64_t reduce) {
  for (int64_t step = 1; step < n && c->status == GB_OK; step *= 2) {
    gb_tensor *same = GB_CHAIN(c, eq, .x = part(c, places, step, n - step), .y = part(c, places, 0, n - step));
    gb_tensor *later = part(c, values, step, n - step), *before = part(c, values, 0, n - step);
    gb_tensor *other = reduce == GB_WORD_prod ? gb_chain_full(c, (gb_dtype)values->dtype, 0, NULL,
                                                              values->storage->device, 1) : later;
    before = GB_CHAIN(c, where, .condition = same, .x = before, .y = other);
    gb_tensor *xs[] = { part(c, values, 0, step), gb_chain_2(c, pair_op(reduce), before, later, NULL) };
    values = GB_CHAIN(c, cat, .xs = xs, .count = 2, .dim = gb_attr_int(0));
  }
  return values;
}

/* y, with what goes to each place combined there; `own`: with the element that is there. */
static gb_tensor *put_combined(gb_chain *c, gb_tensor *y, gb_tensor *places, gb_tensor *values, int64_t n,
                               int64_t reduce, bool own) {
  gb_tensor *order = NULL;
  gb_tensor *sorted = gb_chain_pair(c, GB_OP_sort, &(gb_arguments_sort){ .x = places, .dim = gb_attr_int(0) }, &order);
  gb_tensor *made = combined(c, picked(c, values, order), sorted, n, reduce);
  if (own) made = gb_chain_2(c, pair_op(reduce), picked(c, y, sorted), made, NULL);
  return GB_CHAIN(c, index_put, .x = y, .index = sorted, .source = made); /* the last of equal places wins */
}

/* Where `chosen`, a number whose gradient is x's and whose value is 0, or x itself if that is infinite; 0 elsewhere. */
static gb_tensor *only_gradient(gb_chain *c, gb_tensor *x, gb_tensor *still, gb_tensor *chosen) {
  gb_tensor *none = still ? gb_chain_full(c, (gb_dtype)still->dtype, 0, NULL, still->storage->device, 0) : NULL;
  gb_tensor *moved = GB_CHAIN(c, where, .condition = gb_chain_1(c, GB_OP_isinf, still, NULL), .x = x,
                              .y = gb_chain_2(c, GB_OP_sub, x, still, NULL));
  return GB_CHAIN(c, where, .condition = chosen, .x = moved, .y = none);
}

/* As put_combined, for extremes: equal ones share the gradient evenly, as PyTorch has it. */
static gb_tensor *put_extremes(gb_chain *c, gb_tensor *y, gb_tensor *places, gb_tensor *values, int64_t n,
                               int64_t reduce, bool own) {
  gb_attr first = gb_attr_int(0);
  gb_tensor *still = gb_chain_detach(c, y), *given = gb_chain_detach(c, values);
  gb_tensor *best = put_combined(c, still, places, given, n, reduce, own);
  if (c->status != GB_OK || !gb_dtype_is_float((gb_dtype)y->dtype)) return best;
  gb_dtype dtype = (gb_dtype)y->dtype;
  gb_device device = y->storage->device;
  gb_tensor *won = gb_chain_2(c, GB_OP_eq, given, picked(c, best, places), NULL), *stays;
  if (own) stays = gb_chain_2(c, GB_OP_eq, still, best, NULL);
  else /* where nothing goes */
    stays = GB_CHAIN(c, index_put, .x = gb_chain_full(c, GB_BOOL, y->ndim, y->shape, device, 1), .index = places,
                     .source = gb_chain_full(c, GB_BOOL, 0, NULL, device, 0));
  gb_tensor *equals = GB_CHAIN(c, scatter_add, .x = gb_chain_cast(c, stays, dtype), .dim = first, .index = places,
                               .source = gb_chain_cast(c, won, dtype));
  equals = GB_CHAIN(c, maximum, .x = equals, .y = gb_chain_full(c, dtype, 0, NULL, device, 1));
  best = GB_CHAIN(c, where, .condition = gb_chain_1(c, GB_OP_isinf, best, NULL),
                  .x = gb_chain_full(c, dtype, 0, NULL, device, 0), .y = best);
  gb_tensor *shares = gb_chain_2(c, GB_OP_div, only_gradient(c, values, given, won), picked(c, equals, places), NULL);
  gb_tensor *kept = gb_chain_2(c, GB_OP_div, only_gradient(c, y, still, stays), equals, NULL);
  return gb_chain_2(c, GB_OP_add, best, GB_CHAIN(c, scatter_add, .x = kept, .dim = first, .index = places,
                                                 .source = shares), NULL);
}

/* y, with what goes to each place added there, or the mean of it. */
static gb_tensor *put_sums(gb_chain *c, gb_tensor *y, gb_tensor *places, gb_tensor *values, bool mean, bool own) {
  if (c->status != GB_OK) return NULL;
  gb_attr first = gb_attr_int(0);
  gb_device device = y->storage->device;
  if (!own) y = GB_CHAIN(c, index_put, .x = y, .index = places, .source = gb_chain_full(c, (gb_dtype)y->dtype, 0, NULL,
                                                                                     device, 0));
  gb_tensor *sums = GB_CHAIN(c, scatter_add, .x = y, .dim = first, .index = places, .source = values);
  if (!mean || c->status != GB_OK) return sums;
  gb_tensor *counts = gb_chain_full(c, GB_INT64, y->ndim, y->shape, device, own);
  gb_tensor *ones = gb_chain_full(c, GB_INT64, values->ndim, values->shape, device, 1);
  counts = GB_CHAIN(c, scatter_add, .x = counts, .dim = first, .index = places, .source = ones);
  counts = GB_CHAIN(c, maximum, .x = counts, .y = gb_chain_full(c, GB_INT64, 0, NULL, device, 1));
  if (!gb_dtype_is_float((gb_dtype)y->dtype)) return GB_CHAIN(c, floor_divide, .x = sums, .y = counts);
  return GB_CHAIN(c, div, .x = sums, .y = gb_chain_cast(c, counts, (gb_dtype)y->dtype));
}

/* index and source fit x, as scatter wants them. */
static gb_status check_scatter(gb_op_call *call, const gb_tensor *x, const gb_tensor *index, const gb_tensor *source,
                               int dim) {
  char a[96], b[96], s[96];
  bool fits = (index->ndim ? index->ndim : 1) == (x->ndim ? x->ndim : 1) && source->ndim == index->ndim;
  for (int i = 0; fits && i < index->ndim; i++)
    fits = index->shape[i] <= source->shape[i] && (i == dim || !x->ndim || index->shape[i] <= x->shape[i]);
  if (fits) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "index is %s, source %s, x %s: they need as many dimensions, and index is no "
                      "larger than source, nor than x except in dimension %d",
                      gb_shape_text(index->ndim, index->shape, a, sizeof a),
                      gb_shape_text(source->ndim, source->shape, s, sizeof s),
                      gb_shape_text(x->ndim, x->shape, b, sizeof b), dim + 1);
}

static gb_status scatter_reduce_compose(gb_op_call *call) {
  const gb_in_scatter_reduce *in = GB_IN(call, scatter_reduce);
  const gb_attrs_scatter_reduce *attrs = GB_ATTRS(call, scatter_reduce);
  gb_tensor *x = in->x, *index = in->index, *source = in->source, *y;
  int64_t reduce = attrs->reduce.integer;
  bool own = attrs->include_self.integer != 0;
  int dim;
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim ? x->ndim : 1, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(scatter_reduce, index)));
  GB_TRY(check_scatter(call, x, index, source, dim));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  for (int i = 0; i < index->ndim; i++)
    source = GB_CHAIN(&c, narrow, .x = source, .dim = gb_attr_int(i), .start = gb_attr_int(0),
                      .length = gb_attr_int(index->shape[i]));
  gb_tensor *base = gb_chain_widen(&c, flat(&c, x)), *values = flat(&c, source);
  if (x->dtype == GB_BOOL) base = gb_chain_cast(&c, base, GB_INT64); /* true is 1, and what is not 0 is true */
  values = base ? gb_chain_cast(&c, values, (gb_dtype)base->dtype) : NULL;
  gb_tensor *places = GB_CHAIN(&c, gather, .x = like(&c, counted(&c, x, x->numel), x), .dim = gb_attr_int(dim),
                               .index = index);
  places = flat(&c, places);
  if (reduce == GB_WORD_sum || reduce == GB_WORD_mean)
    y = put_sums(&c, base, places, values, reduce == GB_WORD_mean, own);
  else if (reduce == GB_WORD_prod) y = put_combined(&c, base, places, values, index->numel, reduce, own);
  else y = put_extremes(&c, base, places, values, index->numel, reduce, own);
  y = gb_chain_cast(&c, like(&c, y, x), (gb_dtype)x->dtype);
  return gb_chain_end(&c, y, &GB_OUT(call, scatter_reduce)->y);
}

static gb_status index_reduce_compose(gb_op_call *call) {
  const gb_in_index_reduce *in = GB_IN(call, index_reduce);
  const gb_attrs_index_reduce *attrs = GB_ATTRS(call, index_reduce);
  gb_tensor *x = in->x, *source = in->source;
  int64_t column[GB_MAX_NDIM];
  char a[96], b[96];
  int dim;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_reduce, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(index_reduce, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_reduce, index), 0, 1));
  bool fits = source->ndim == x->ndim;
  for (int i = 0; fits && i < x->ndim; i++) {
    fits = source->shape[i] == (i == dim ? in->index->numel : x->shape[i]);
    column[i] = i == dim ? in->index->numel : 1;
  }
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "source is %s, x %s: source has x's shape, and a slice along dimension %d for "
                        "each of the %" PRId64 " in index", gb_shape_text(source->ndim, source->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b), dim + 1, in->index->numel);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *index = GB_CHAIN(&c, expand, .x = shaped(&c, in->index, x->ndim, column),
                              .shape = gb_attr_ints(source->ndim, source->shape));
  gb_tensor *y = GB_CHAIN(&c, scatter_reduce, .x = x, .dim = gb_attr_int(dim), .index = index, .source = source,
                          .reduce = gb_attr_text(gb_word_text(attrs->reduce.integer)),
                          .include_self = gb_attr_int(attrs->include_self.integer));
  return gb_chain_end(&c, y, &GB_OUT(call, index_reduce)->y);
}

/* ====} */

/* {==== views with other elements ==== */

/* x with source at the places of a view of x, whose shape source has. */
static gb_status put_in_view(gb_op_call *call, gb_chain *c, gb_tensor *x, gb_tensor *places, gb_tensor *source,
                             gb_tensor **out) {
  char a[96], b[96];
  bool fits = places && places->ndim == source->ndim;
  for (int i = 0; fits && i < source->ndim; i++) fits = source->shape[i] == places->shape[i];
  if (places && !fits)
    c->status = gb_call_fail(call, GB_ESHAPE, "source must have the shape of what it replaces, %s, it has %s",
                             gb_shape_text(places->ndim, places->shape, a, sizeof a),
                             gb_shape_text(source->ndim, source->shape, b, sizeof b));
  gb_tensor *values = flat(c, gb_chain_cast(c, source, (gb_dtype)x->dtype));
  gb_tensor *y = GB_CHAIN(c, index_put, .x = flat(c, x), .index = flat(c, places), .source = values);
  return gb_chain_end(c, like(c, y, x), out);
}

static gb_status slice_scatter_compose(gb_op_call *call) {
  const gb_in_slice_scatter *in = GB_IN(call, slice_scatter);
  const gb_attrs_slice_scatter *attrs = GB_ATTRS(call, slice_scatter);
  gb_chain c;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(slice_scatter, x), 1, GB_MAX_NDIM));
  gb_chain_begin(&c, call->context);
  gb_tensor *places = GB_CHAIN(&c, slice, .x = like(&c, counted(&c, in->x, in->x->numel), in->x), .dim = attrs->dim,
                               .first = attrs->first, .last = attrs->last, .step = attrs->step);
  return put_in_view(call, &c, in->x, places, in->source, &GB_OUT(call, slice_scatter)->y);
}

static gb_status diagonal_scatter_compose(gb_op_call *call) {
  const gb_in_diagonal_scatter *in = GB_IN(call, diagonal_scatter);
  const gb_attrs_diagonal_scatter *attrs = GB_ATTRS(call, diagonal_scatter);
  gb_chain c;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(diagonal_scatter, x), 2, GB_MAX_NDIM));
  gb_chain_begin(&c, call->context);
  gb_tensor *places = GB_CHAIN(&c, diagonal, .x = like(&c, counted(&c, in->x, in->x->numel), in->x),
                               .offset = attrs->offset, .first = attrs->first, .second = attrs->second);
  return put_in_view(call, &c, in->x, places, in->source, &GB_OUT(call, diagonal_scatter)->y);
}

/* ====} */

/* {==== take and put ==== */

static gb_status take_compose(gb_op_call *call) {
  const gb_in_take *in = GB_IN(call, take);
  gb_chain c;
  GB_TRY(gb_require_integer(call, GB_IN_AT(take, index)));
  gb_chain_begin(&c, call->context);
  gb_tensor *y = picked(&c, flat(&c, in->x), flat(&c, in->index));
  return gb_chain_end(&c, like(&c, y, in->index), &GB_OUT(call, take)->y);
}

static gb_status put_compose(gb_op_call *call) {
  const gb_in_put *in = GB_IN(call, put);
  gb_tensor *x = in->x, *y;
  gb_chain c;
  GB_TRY(gb_require_integer(call, GB_IN_AT(put, index)));
  if (in->index->numel != in->source->numel)
    return gb_call_fail(call, GB_ESHAPE, "index has %" PRId64 " elements, source %" PRId64 "; they need as many",
                        in->index->numel, in->source->numel);
  gb_chain_begin(&c, call->context);
  gb_tensor *index = flat(&c, in->index), *values = flat(&c, gb_chain_cast(&c, in->source, (gb_dtype)x->dtype));
  if (GB_ATTRS(call, put)->accumulate.integer)
    y = GB_CHAIN(&c, index_add, .x = flat(&c, x), .dim = gb_attr_int(0), .index = index, .source = values);
  else y = GB_CHAIN(&c, index_put, .x = flat(&c, x), .index = index, .source = values);
  return gb_chain_end(&c, like(&c, y, x), &GB_OUT(call, put)->y);
}

/* ====} */

const gb_op_impl gb_family_scatter[] = {
  { .op = GB_OP_scatter_reduce, .compose = scatter_reduce_compose },
  { .op = GB_OP_index_reduce, .compose = index_reduce_compose },
  { .op = GB_OP_slice_scatter, .compose = slice_scatter_compose },
  { .op = GB_OP_diagonal_scatter, .compose = diagonal_scatter_compose },
  { .op = GB_OP_take, .compose = take_compose },
  { .op = GB_OP_put, .compose = put_compose },
  { .op = GB_OP_COUNT },
};
