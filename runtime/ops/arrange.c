/* ops/arrange.c - tensors arranged anew, and reductions in pairs: ops that are made of other ops.
 *
 * They have no kernels and no gradients of their own: what their steps have is theirs, on every device. Results share
 * memory with x where PyTorch's do (movedim, broadcast_to, atleast_1d) and never elsewhere. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

/* {==== steps ==== */

/* `length` positions along dim. */
static gb_tensor *part(gb_chain *chain, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(chain, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *join(gb_chain *chain, gb_tensor *const *parts, int count, int dim) {
  return GB_CHAIN(chain, cat, .xs = parts, .count = count, .dim = gb_attr_int(dim));
}

static gb_tensor *shaped(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *flat(gb_chain *chain, gb_tensor *x) { return shaped(chain, x, 1, (int64_t[]){ -1 }); }

static gb_tensor *swapped(gb_chain *chain, gb_tensor *x, int first, int second) {
  return GB_CHAIN(chain, transpose, .x = x, .first = gb_attr_int(first), .second = gb_attr_int(second));
}

/* Memory of its own for what may still be x's. */
static gb_tensor *own(gb_chain *chain, gb_tensor *x) { return GB_CHAIN(chain, clone, .x = x); }

/* Zeros that x may be joined with. */
static gb_tensor *zeros(gb_chain *chain, const gb_tensor *x, int ndim, const int64_t *shape) {
  return gb_chain_full(chain, (gb_dtype)x->dtype, ndim, shape, x->storage->device, 0);
}

/* x with one of its dims moved. */
static gb_tensor *moved(gb_chain *chain, gb_tensor *x, int64_t from, int64_t to) {
  return GB_CHAIN(chain, movedim, .x = x, .source = gb_attr_ints(1, &from), .destination = gb_attr_ints(1, &to));
}

/* ====} */

/* {==== views by other names ==== */

/* Dims that are listed, each once. */
static gb_status listed(gb_op_call *call, const gb_attr *dims, int ndim, int *out) {
  bool seen[GB_MAX_NDIM] = { false };
  for (int i = 0; i < dims->count; i++) {
    GB_TRY(gb_call_dim(call, dims->ints[i], ndim, &out[i]));
    if (seen[out[i]]) return gb_call_fail(call, GB_EINVAL, "dimension %d is named twice", out[i] + 1);
    seen[out[i]] = true;
  }
  return GB_OK;
}

/* The dims of source go to those of destination; the others keep their order. */
static gb_status movedim_compose(gb_op_call *call) {
  const gb_attrs_movedim *attrs = GB_ATTRS(call, movedim);
  gb_tensor *x = GB_IN(call, movedim)->x;
  int from[GB_MAX_NDIM], to[GB_MAX_NDIM];
  if (attrs->source.count != attrs->destination.count)
    return gb_call_fail(call, GB_EINVAL, "source names %d dimensions and destination %d; they must be as many",
                        (int)attrs->source.count, (int)attrs->destination.count);
  GB_TRY(listed(call, &attrs->source, x->ndim, from));
  GB_TRY(listed(call, &attrs->destination, x->ndim, to));
  int64_t order[GB_MAX_NDIM];
  bool taken[GB_MAX_NDIM] = { false };
  for (int i = 0; i < x->ndim; i++) order[i] = -1;
  for (int i = 0; i < attrs->source.count; i++) order[to[i]] = from[i], taken[from[i]] = true;
  for (int i = 0, next = 0; i < x->ndim; i++) {
    if (order[i] >= 0) continue;
    while (taken[next]) next++;
    order[i] = next++;
  }
  return GB_RUN(call->context, permute, &GB_OUT(call, movedim)->y, .x = x, .dims = gb_attr_ints(x->ndim, order));
}

static gb_status broadcast_to_compose(gb_op_call *call) {
  return GB_RUN(call->context, expand, &GB_OUT(call, broadcast_to)->y, .x = GB_IN(call, broadcast_to)->x,
                .shape = GB_ATTRS(call, broadcast_to)->shape);
}

/* x with dims of size 1 until it has `least`: in front, but for the third, which comes last. */
static gb_tensor *at_least(gb_chain *chain, gb_tensor *x, int least) {
  int64_t shape[3] = { 1, 1, 1 };
  if (x->ndim >= least) return x;
  if (x->ndim == 1) shape[least > 1] = x->shape[0];
  if (x->ndim == 2) shape[0] = x->shape[0], shape[1] = x->shape[1];
  return shaped(chain, x, least, shape);
}

/* A view of x, so that it keeps its own history. */
static gb_status at_least_compose(gb_op_call *call, int least) {
  gb_tensor *x = GB_IN(call, atleast_1d)->x;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = at_least(&chain, x, least);
  if (y == x) y = shaped(&chain, x, x->ndim, x->shape);
  return gb_chain_end(&chain, y, &GB_OUT(call, atleast_1d)->y);
}

static gb_status atleast_1d_compose(gb_op_call *call) { return at_least_compose(call, 1); }
static gb_status atleast_2d_compose(gb_op_call *call) { return at_least_compose(call, 2); }
static gb_status atleast_3d_compose(gb_op_call *call) { return at_least_compose(call, 3); }

/* ====} */

/* {==== turned and rolled ==== */

/* Positions along dim shifted, the last coming first. */
static gb_tensor *rolled(gb_chain *chain, gb_tensor *x, int dim, int64_t size, int64_t shift) {
  int64_t back = size > 0 ? shift % size : 0;
  if (back < 0) back += size;
  if (back == 0) return x;
  gb_tensor *parts[] = { part(chain, x, dim, size - back, back), part(chain, x, dim, 0, size - back) };
  return join(chain, parts, 2, dim);
}

static gb_status roll_compose(gb_op_call *call) {
  const gb_attrs_roll *attrs = GB_ATTRS(call, roll);
  gb_tensor *x = GB_IN(call, roll)->x, *y = x;
  int dims[GB_MAX_NDIM], count = attrs->dim.given ? attrs->dim.count : 1;
  if (attrs->shifts.count != count)
    return gb_call_fail(call, GB_EINVAL, "%d shifts for %d dimensions; give one for each, or one and no dim",
                        (int)attrs->shifts.count, count);
  for (int i = 0; attrs->dim.given && i < count; i++) GB_TRY(gb_call_dim(call, attrs->dim.ints[i], x->ndim, &dims[i]));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (!attrs->dim.given) {
    y = rolled(&chain, flat(&chain, x), 0, x->numel, attrs->shifts.ints[0]);
    y = shaped(&chain, y, x->ndim, x->shape);
  }
  for (int i = 0; attrs->dim.given && i < count; i++)
    y = rolled(&chain, y, dims[i], x->shape[dims[i]], attrs->shifts.ints[i]);
  if (x->numel == 0 || y == x || !attrs->dim.given) y = own(&chain, y);
  return gb_chain_end(&chain, y, &GB_OUT(call, roll)->y);
}

/* flip of one dim of x, which has at least so many. */
static gb_status flip_one(gb_op_call *call, int64_t dim) {
  GB_TRY(gb_require_ndim(call, GB_IN_AT(fliplr, x), (int)dim + 1, GB_MAX_NDIM));
  return GB_RUN(call->context, flip, &GB_OUT(call, fliplr)->y, .x = GB_IN(call, fliplr)->x,
                .dim = gb_attr_ints(1, &dim));
}

static gb_status fliplr_compose(gb_op_call *call) { return flip_one(call, 1); }
static gb_status flipud_compose(gb_op_call *call) { return flip_one(call, 0); }

/* A quarter turn flips one of the dims and swaps both. */
static gb_status rot90_compose(gb_op_call *call) {
  const gb_attrs_rot90 *attrs = GB_ATTRS(call, rot90);
  gb_tensor *x = GB_IN(call, rot90)->x, *y = x;
  gb_attr plane = attrs->dims.given ? attrs->dims : gb_attr_ints(2, (int64_t[]){ 0, 1 });
  int dims[GB_MAX_NDIM], turns = (int)(attrs->k.integer % 4 + 4) % 4;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(rot90, x), 2, GB_MAX_NDIM));
  if (plane.count != 2)
    return gb_call_fail(call, GB_EINVAL, "dims names %d dimensions; it turns two", (int)plane.count);
  GB_TRY(listed(call, &plane, x->ndim, dims));
  int64_t first = dims[turns == 1], both[] = { dims[0], dims[1] };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (turns == 2) y = GB_CHAIN(&chain, flip, .x = x, .dim = gb_attr_ints(2, both));
  else if (turns) y = swapped(&chain, GB_CHAIN(&chain, flip, .x = x, .dim = gb_attr_ints(1, &first)), dims[0], dims[1]);
  else y = own(&chain, x);
  return gb_chain_end(&chain, y, &GB_OUT(call, rot90)->y);
}

/* ====} */

/* {==== joined ==== */

typedef gb_tensor *(*preparation)(gb_chain *chain, gb_tensor *x);

/* Join the tensors, each prepared, along dim. */
static gb_status join_prepared(gb_op_call *call, preparation prepare, int dim) {
  gb_tensor **xs = GB_LIST(call, hstack, xs);
  int count = GB_LIST_COUNT(call, hstack, xs);
  gb_tensor **ready = calloc((unsigned)count, sizeof *ready);
  if (!ready) return gb_fail_memory(call->context, (unsigned)count * sizeof *ready);
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < count; i++) {
    gb_chain chain;
    gb_chain_begin(&chain, call->context);
    status = gb_chain_end(&chain, prepare(&chain, xs[i]), &ready[i]);
  }
  if (status == GB_OK)
    status = GB_RUN(call->context, cat, &GB_OUT(call, hstack)->y, .xs = ready, .count = count, .dim = gb_attr_int(dim));
  for (int i = 0; i < count; i++) gb_drop(&ready[i]);
  free(ready);
  return status;
}

static gb_tensor *as_1d(gb_chain *chain, gb_tensor *x) { return at_least(chain, x, 1); }
static gb_tensor *as_2d(gb_chain *chain, gb_tensor *x) { return at_least(chain, x, 2); }
static gb_tensor *as_3d(gb_chain *chain, gb_tensor *x) { return at_least(chain, x, 3); }

/* Vectors are columns. */
static gb_tensor *as_columns(gb_chain *chain, gb_tensor *x) {
  return x->ndim < 2 ? shaped(chain, x, 2, (int64_t[]){ x->numel, 1 }) : x;
}

static gb_status hstack_compose(gb_op_call *call) {
  return join_prepared(call, as_1d, GB_LIST(call, hstack, xs)[0]->ndim > 1 ? 1 : 0);
}
static gb_status vstack_compose(gb_op_call *call) { return join_prepared(call, as_2d, 0); }
static gb_status dstack_compose(gb_op_call *call) { return join_prepared(call, as_3d, 2); }
static gb_status column_stack_compose(gb_op_call *call) { return join_prepared(call, as_columns, 1); }

/* Each matrix with zeros left and right of it, below the one before. */
static gb_status block_diag_compose(gb_op_call *call) {
  gb_tensor **xs = GB_LIST(call, block_diag, xs);
  int count = GB_LIST_COUNT(call, block_diag, xs);
  int64_t columns = 0, before = 0;
  gb_dtype dtype = gb_result_type(xs, count);
  for (int i = 0; i < count; i++) {
    GB_TRY(gb_require_ndim(call, GB_IN_AT(block_diag, xs) + i, 0, 2));
    columns += xs[i]->ndim == 2 ? xs[i]->shape[1] : xs[i]->numel;
  }
  gb_tensor **rows = calloc((unsigned)count, sizeof *rows);
  if (!rows) return gb_fail_memory(call->context, (unsigned)count * sizeof *rows);
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < count; i++) {
    gb_chain chain;
    gb_chain_begin(&chain, call->context);
    gb_tensor *x = gb_chain_cast(&chain, at_least(&chain, xs[i], 2), dtype);
    int64_t high = x ? x->shape[0] : 0, wide = x ? x->shape[1] : 0;
    gb_tensor *parts[] = { x ? zeros(&chain, x, 2, (int64_t[]){ high, before }) : NULL, x,
                           x ? zeros(&chain, x, 2, (int64_t[]){ high, columns - before - wide }) : NULL };
    status = gb_chain_end(&chain, join(&chain, parts, 3, 1), &rows[i]);
    before += wide;
  }
  if (status == GB_OK)
    status = GB_RUN(call->context, cat, &GB_OUT(call, block_diag)->y, .xs = rows, .count = count);
  for (int i = 0; i < count; i++) gb_drop(&rows[i]);
  free(rows);
  return status;
}

/* ====} */

/* {==== diagonals ==== */

/* x's last dim as the diagonal of two new ones at the end: each element is followed by as many zeros as lie between two
 * neighbours of the diagonal in memory. */
static gb_tensor *on_diagonal(gb_chain *chain, gb_tensor *x, int64_t offset) {
  int last = x->ndim - 1;
  int64_t n = x->shape[last], down = offset < 0 ? -offset : 0, right = offset > 0 ? offset : 0, m = n + down + right;
  size_t bytes;
  if (chain->status == GB_OK)
    chain->status = gb_shape_bytes(chain->context, (gb_dtype)x->dtype, 2, (int64_t[]){ m, m }, &bytes);
  if (chain->status != GB_OK) return NULL;
  int64_t shape[GB_MAX_NDIM + 1], before = down * m + right, behind = m * m - before - n * (m + 1);
  memcpy(shape, x->shape, sizeof x->shape);
  if (n == 0) {
    shape[last] = shape[last + 1] = m;
    return zeros(chain, x, last + 2, shape);
  }
  shape[last] = n, shape[last + 1] = m;
  gb_tensor *gaps = zeros(chain, x, last + 2, shape);
  gb_tensor *spread = join(chain, (gb_tensor *[]){ GB_CHAIN(chain, unsqueeze, .x = x, .dim = gb_attr_int(last + 1)),
                                                   gaps }, 2,
                           last + 1);
  spread = GB_CHAIN(chain, flatten, .x = spread, .first = gb_attr_int(last), .last = gb_attr_int(last + 1));
  shape[last] = before;
  gb_tensor *parts[] = { zeros(chain, x, last + 1, shape), spread, NULL };
  shape[last] = behind > 0 ? behind : 0;
  parts[2] = zeros(chain, x, last + 1, shape);
  gb_tensor *line = part(chain, join(chain, parts, 3, last), last, 0, m * m);
  shape[last] = shape[last + 1] = m;
  return shaped(chain, line, last + 2, shape);
}

/* An offset keeps sizes of matrices countable. */
static gb_status check_offset(gb_op_call *call, const char *name, int64_t offset) {
  if (offset >= -(1 << 30) && offset <= 1 << 30) return GB_OK;
  return gb_call_fail(call, GB_EINVAL, "'%s' is %" PRId64 "; it is -2^30 .. 2^30", name, offset);
}

static gb_status diag_embed_compose(gb_op_call *call) {
  const gb_attrs_diag_embed *attrs = GB_ATTRS(call, diag_embed);
  gb_tensor *x = GB_IN(call, diag_embed)->x;
  int ends[2], from[2] = { x->ndim - 1, x->ndim };
  GB_TRY(gb_require_ndim(call, GB_IN_AT(diag_embed, x), 1, GB_MAX_NDIM - 1));
  GB_TRY(check_offset(call, "offset", attrs->offset.integer));
  GB_TRY(gb_call_dim(call, attrs->first.integer, x->ndim + 1, &ends[0]));
  GB_TRY(gb_call_dim(call, attrs->second.integer, x->ndim + 1, &ends[1]));
  if (ends[0] == ends[1])
    return gb_call_fail(call, GB_EINVAL, "dimension %d is named twice; a diagonal needs two different ones",
                        ends[0] + 1);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = on_diagonal(&chain, x, attrs->offset.integer);
  if (ends[0] != from[0] || ends[1] != from[1])
    y = GB_CHAIN(&chain, movedim, .x = y, .source = gb_attr_ints(2, (int64_t[]){ from[0], from[1] }),
                 .destination = gb_attr_ints(2, (int64_t[]){ ends[0], ends[1] }));
  return gb_chain_end(&chain, y, &GB_OUT(call, diag_embed)->y);
}

/* A vector becomes a matrix, of a matrix the diagonal is taken. */
static gb_status diag_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, diag)->x;
  int64_t offset = GB_ATTRS(call, diag)->diagonal.integer;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(diag, x), 1, 2));
  GB_TRY(check_offset(call, "diagonal", offset));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = x->ndim == 1 ? on_diagonal(&chain, x, offset)
                              : own(&chain, GB_CHAIN(&chain, diagonal, .x = x, .offset = gb_attr_int(offset)));
  return gb_chain_end(&chain, y, &GB_OUT(call, diag)->y);
}

/* ====} */

/* {==== neighbours ==== */

/* Each position along dim without the first, less the one before it; of bools, whether they differ. */
static gb_tensor *differences(gb_chain *chain, gb_tensor *x, int dim, int64_t size) {
  gb_tensor *next = part(chain, x, dim, 1, size - 1), *here = part(chain, x, dim, 0, size - 1);
  if (next && next->dtype == GB_BOOL) return GB_CHAIN(chain, ne, .x = next, .y = here);
  return GB_CHAIN(chain, sub, .x = next, .y = here);
}

static gb_status diff_compose(gb_op_call *call) {
  const gb_in_diff *in = GB_IN(call, diff);
  const gb_attrs_diff *attrs = GB_ATTRS(call, diff);
  gb_tensor *parts[3], *y = in->x;
  int dim, count = 0;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(diff, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, in->x->ndim, &dim));
  if (in->prepend) parts[count++] = in->prepend;
  parts[count++] = in->x;
  if (in->append) parts[count++] = in->append;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (count > 1) y = join(&chain, parts, count, dim);
  int64_t size = y ? y->shape[dim] : 0, times = attrs->n.integer < size ? attrs->n.integer : size;
  if (attrs->n.integer > 0 && times == size) y = part(&chain, y, dim, 0, 0); /* nothing is left */
  else
    for (int64_t i = 0; y && i < times; i++) y = differences(&chain, y, dim, size - i);
  if (attrs->n.integer == 0 || times == size) y = own(&chain, y);
  return gb_chain_end(&chain, y, &GB_OUT(call, diff)->y);
}

/* The areas between neighbours: the mean of both times the step between them. With one step for all, what is summed is
 * every element but half of both ends. */
static gb_tensor *area_of(gb_chain *chain, gb_tensor *y, gb_tensor *x, double dx, int64_t dim, int64_t size) {
  gb_attr along = gb_attr_ints(1, &dim);
  if (!x) {
    gb_tensor *ends = GB_CHAIN(chain, add, .x = GB_CHAIN(chain, select, .x = y, .dim = gb_attr_int(dim),
                                                         .position = gb_attr_int(0)),
                               .y = GB_CHAIN(chain, select, .x = y, .dim = gb_attr_int(dim),
                                             .position = gb_attr_int(-1)));
    gb_tensor *sums = GB_CHAIN(chain, sub, .x = GB_CHAIN(chain, sum, .x = y, .dim = along),
                               .y = gb_chain_number(chain, GB_OP_mul, ends, 0.5));
    return gb_chain_number(chain, GB_OP_mul, sums, dx);
  }
  int at = (int)dim;
  int64_t n = size - 1;
  gb_tensor *sums = GB_CHAIN(chain, add, .x = part(chain, y, at, 1, n), .y = part(chain, y, at, 0, n));
  gb_tensor *steps = GB_CHAIN(chain, sub, .x = part(chain, x, at, 1, n), .y = part(chain, x, at, 0, n));
  gb_tensor *areas = GB_CHAIN(chain, mul, .x = steps, .y = sums);
  return gb_chain_number(chain, GB_OP_div, GB_CHAIN(chain, sum, .x = areas, .dim = along), 2);
}

static gb_status trapezoid_compose(gb_op_call *call) {
  gb_tensor *y = GB_IN(call, trapezoid)->y, *x = GB_IN(call, trapezoid)->x, *area;
  const gb_attrs_trapezoid *attrs = GB_ATTRS(call, trapezoid);
  int dim, count = 0;
  char a[96], b[96];
  GB_TRY(gb_require_ndim(call, GB_IN_AT(trapezoid, y), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, y->ndim, &dim));
  int64_t size = y->shape[dim], shape[GB_MAX_NDIM], rest[GB_MAX_NDIM];
  bool fits = !x || (x->ndim == 1 && x->numel == size) || (x->ndim == y->ndim && x->shape[dim] == size);
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "x is %s, y %s: x is a vector of the points along dimension %d, or shaped "
                                         "like y",
                        gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(y->ndim, y->shape, b, sizeof b),
                        dim + 1);
  for (int i = 0; i < y->ndim; i++) {
    shape[i] = i == dim ? size : 1;
    if (i != dim) rest[count++] = y->shape[i];
  }
  gb_dtype dtype = gb_promote((gb_dtype)y->dtype, (gb_dtype)(x ? x : y)->dtype);
  if (!gb_dtype_is_float(dtype)) dtype = GB_FLOAT32;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (x) x = gb_chain_cast(&chain, x->ndim == 1 ? shaped(&chain, x, y->ndim, shape) : x, dtype);
  if (size > 0) area = area_of(&chain, gb_chain_cast(&chain, y, dtype), x, attrs->dx.number, dim, size);
  else area = gb_chain_full(&chain, dtype, count, rest, y->storage->device, 0);
  return gb_chain_end(&chain, area, &GB_OUT(call, trapezoid)->area);
}

/* ====} */

/* {==== picked and put ==== */

/* gather, of x and index that broadcast against each other in all other dims; without a dim both are flattened. */
static gb_status take_along_dim_compose(gb_op_call *call) {
  const gb_in_take_along_dim *in = GB_IN(call, take_along_dim);
  const gb_attr *named = &GB_ATTRS(call, take_along_dim)->dim;
  gb_tensor *x = in->x, *index = in->index;
  int dim = 0, ndim = 0;
  char a[96], b[96];
  GB_TRY(gb_require_integer(call, GB_IN_AT(take_along_dim, index)));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (!named->given) x = flat(&chain, x), index = flat(&chain, index);
  else {
    GB_TRY(gb_call_dim(call, named->integer, x->ndim, &dim));
    int64_t shape[GB_MAX_NDIM], wide[GB_MAX_NDIM];
    bool fits = x->ndim == index->ndim;
    for (; fits && ndim < x->ndim; ndim++) {
      int64_t n = x->shape[ndim], m = index->shape[ndim];
      fits = ndim == dim || n == m || n == 1 || m == 1;
      wide[ndim] = ndim == dim ? n : n == 1 ? m : n;
      shape[ndim] = ndim == dim ? m : wide[ndim];
    }
    if (!fits)
      return gb_call_fail(call, GB_ESHAPE, "index is %s, x %s: they need as many dimensions, and to broadcast in "
                                           "all but dimension %d",
                          gb_shape_text(index->ndim, index->shape, a, sizeof a),
                          gb_shape_text(x->ndim, x->shape, b, sizeof b), dim + 1);
    x = GB_CHAIN(&chain, expand, .x = x, .shape = gb_attr_ints(ndim, wide));
    index = GB_CHAIN(&chain, expand, .x = index, .shape = gb_attr_ints(ndim, shape));
  }
  gb_tensor *y = GB_CHAIN(&chain, gather, .x = x, .dim = gb_attr_int(dim), .index = index);
  return gb_chain_end(&chain, y, &GB_OUT(call, take_along_dim)->y);
}

/* Of the positions along one dim of size `size`, those that are in index, as bools. */
static gb_tensor *those_in(gb_chain *chain, gb_tensor *index, int64_t size) {
  if (!index) return NULL; /* an earlier step failed */
  gb_device device = index->storage->device;
  gb_tensor *none = gb_chain_full(chain, GB_BOOL, 1, &size, device, 0);
  gb_tensor *yes = gb_chain_full(chain, GB_BOOL, 0, NULL, device, 1);
  return GB_CHAIN(chain, index_put, .x = none, .index = index, .source = yes);
}

static gb_status index_fill_compose(gb_op_call *call) {
  const gb_in_index_fill *in = GB_IN(call, index_fill);
  const gb_attrs_index_fill *attrs = GB_ATTRS(call, index_fill);
  gb_tensor *x = in->x;
  int dim, ndim = x->ndim ? x->ndim : 1;
  GB_TRY(gb_call_dim(call, attrs->dim.integer, ndim, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(index_fill, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_fill, index), 0, 1));
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < x->ndim; i++) shape[i] = i == dim ? x->shape[i] : 1;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *mask = those_in(&chain, flat(&chain, in->index), x->ndim ? x->shape[dim] : 1);
  mask = shaped(&chain, mask, x->ndim, shape);
  gb_tensor *y = GB_CHAIN(&chain, masked_fill, .x = x, .mask = mask, .value = attrs->value);
  return gb_chain_end(&chain, y, &GB_OUT(call, index_fill)->y);
}

/* index_put along another dim than the first. */
static gb_status index_copy_compose(gb_op_call *call) {
  const gb_in_index_copy *in = GB_IN(call, index_copy);
  gb_tensor *x = in->x, *source = in->source;
  int dim;
  char a[96], b[96];
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_copy, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, index_copy)->dim.integer, x->ndim, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(index_copy, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_copy, index), 0, 1));
  bool fits = source->ndim == x->ndim;
  for (int i = 0; fits && i < x->ndim; i++) fits = source->shape[i] == (i == dim ? in->index->numel : x->shape[i]);
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "source is %s, x %s: source has x's shape, and a slice along dimension %d "
                                         "for each of the %"
                        PRId64 " in index", gb_shape_text(source->ndim, source->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b), dim + 1, in->index->numel);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = GB_CHAIN(&chain, index_put, .x = moved(&chain, x, dim, 0), .index = flat(&chain, in->index),
                          .source = moved(&chain, source, dim, 0));
  return gb_chain_end(&chain, moved(&chain, y, 0, dim), &GB_OUT(call, index_copy)->y);
}

/* Put in x's place, along dim, what a slice of it became: the parts before and behind stay. */
static gb_tensor *with_slice(gb_chain *chain, gb_tensor *x, int dim, int64_t size, int64_t at, gb_tensor *slice) {
  gb_tensor *parts[] = { part(chain, x, dim, 0, at), slice, part(chain, x, dim, at + 1, size - at - 1) };
  return gb_chain_cast(chain, join(chain, parts, 3, dim), (gb_dtype)x->dtype);
}

static gb_status select_scatter_compose(gb_op_call *call) {
  const gb_in_select_scatter *in = GB_IN(call, select_scatter);
  const gb_attrs_select_scatter *attrs = GB_ATTRS(call, select_scatter);
  gb_tensor *x = in->x, *source = in->source;
  int dim;
  char a[96];
  GB_TRY(gb_require_ndim(call, GB_IN_AT(select_scatter, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  int64_t size = x->shape[dim], at = attrs->position.integer + (attrs->position.integer < 0 ? size : 0);
  if (at < 0 || at >= size)
    return gb_call_fail(call, GB_EINDEX, "the position is out of range: dimension %d has size %" PRId64, dim + 1, size);
  bool fits = source->ndim == x->ndim - 1;
  for (int i = 0; fits && i < source->ndim; i++) fits = source->shape[i] == x->shape[i + (i >= dim)];
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "source must have the shape of x without dimension %d, it is %s", dim + 1,
                        gb_shape_text(source->ndim, source->shape, a, sizeof a));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *slice = GB_CHAIN(&chain, unsqueeze, .x = gb_chain_cast(&chain, source, (gb_dtype)x->dtype),
                              .dim = gb_attr_int(dim));
  return gb_chain_end(&chain, with_slice(&chain, x, dim, size, at, slice), &GB_OUT(call, select_scatter)->y);
}

/* The elements of source put at index along dim. Of each element of x its number is gathered, which says where in x
 * flattened source goes; the last of equal ones wins. */
static gb_status scatter_compose(gb_op_call *call) {
  const gb_in_scatter *in = GB_IN(call, scatter);
  const gb_attrs_scatter *attrs = GB_ATTRS(call, scatter);
  gb_tensor *x = in->x, *index = in->index, *source = in->source, *y;
  char a[96], b[96];
  int dim, ndim = x->ndim ? x->ndim : 1;
  GB_TRY(gb_call_dim(call, attrs->dim.integer, ndim, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(scatter, index)));
  bool fits = (index->ndim ? index->ndim : 1) == ndim && (source->ndim == 0 || source->ndim == index->ndim);
  for (int i = 0; fits && i < index->ndim; i++)
    fits = (source->ndim == 0 || index->shape[i] <= source->shape[i]) &&
        (i == dim || !x->ndim || index->shape[i] <= x->shape[i]);
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "index is %s, x %s: it needs as many dimensions, none of them larger "
                                         "except dimension %d, "
                        "and no larger than source's", gb_shape_text(index->ndim, index->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b), dim + 1);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (attrs->reduce.integer != GB_WORD_none && source->ndim == 0)
    source = GB_CHAIN(&chain, expand, .x = source, .shape = gb_attr_ints(index->ndim, index->shape));
  if (attrs->reduce.integer == GB_WORD_multiply) {
    y = GB_CHAIN(&chain, scatter_reduce, .x = x, .dim = gb_attr_int(dim), .index = index, .source = source,
                 .reduce = gb_attr_text("prod"));
    return gb_chain_end(&chain, y, &GB_OUT(call, scatter)->y);
  }
  if (attrs->reduce.integer == GB_WORD_add) {
    y = GB_CHAIN(&chain, scatter_add, .x = x, .dim = gb_attr_int(dim), .index = index, .source = source);
    return gb_chain_end(&chain, y, &GB_OUT(call, scatter)->y);
  }
  if (source->ndim > 0) {
    for (int i = 0; i < index->ndim; i++) source = part(&chain, source, i, 0, index->shape[i]);
    source = flat(&chain, source);
  }
  gb_tensor *numbers = gb_chain_full(&chain, GB_INT64, 1, &x->numel, x->storage->device, 0);
  if (numbers) chain.status = GB_RUN(call->context, sequence, NULL, .x = numbers);
  numbers = shaped(&chain, numbers, x->ndim, x->shape);
  gb_tensor *places = flat(&chain, GB_CHAIN(&chain, gather, .x = numbers, .dim = gb_attr_int(dim), .index = index));
  y = GB_CHAIN(&chain, index_put, .x = flat(&chain, x), .index = places, .source = source);
  return gb_chain_end(&chain, shaped(&chain, y, x->ndim, x->shape), &GB_OUT(call, scatter)->y);
}

/* ====} */

/* {==== reductions ==== */

static gb_status count_nonzero_compose(gb_op_call *call) {
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *flags = gb_chain_number(&chain, GB_OP_ne, GB_IN(call, count_nonzero)->x, 0);
  gb_tensor *count = GB_CHAIN(&chain, sum, .x = flags, .dim = GB_ATTRS(call, count_nonzero)->dim);
  return gb_chain_end(&chain, count, &GB_OUT(call, count_nonzero)->count);
}

/* x with 0 for NaN. */
static gb_tensor *without_nan(gb_chain *chain, gb_tensor *x, gb_tensor *nan) {
  return GB_CHAIN(chain, masked_fill, .x = x, .mask = nan, .value = gb_attr_whole(0));
}

/* The sum of what is not NaN, and for a mean how much that is. */
static gb_status nan_aware(gb_op_call *call, bool mean) {
  const gb_attrs_nansum *attrs = GB_ATTRS(call, nansum);
  gb_tensor *x = GB_IN(call, nansum)->x;
  if (mean) GB_TRY(gb_require_float(call, GB_IN_AT(nansum, x)));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (attrs->dtype.given) x = gb_chain_cast(&chain, x, (gb_dtype)attrs->dtype.integer);
  gb_dtype dtype = x ? (gb_dtype)x->dtype : GB_FLOAT32;
  gb_tensor *nan = GB_CHAIN(&chain, isnan, .x = x), *kept = without_nan(&chain, x, nan);
  if (mean) kept = gb_chain_widen(&chain, kept);
  gb_tensor *y = GB_CHAIN(&chain, sum, .x = kept, .dim = attrs->dim, .keepdim = attrs->keepdim);
  if (mean) {
    gb_tensor *there = GB_CHAIN(&chain, logical_not, .x = nan);
    gb_tensor *count = GB_CHAIN(&chain, sum, .x = there, .dim = attrs->dim, .keepdim = attrs->keepdim);
    y = gb_chain_cast(&chain, GB_CHAIN(&chain, div, .x = y, .y = count), dtype);
  }
  return gb_chain_end(&chain, y, &GB_OUT(call, nansum)->y);
}
_Static_assert(GB_ATTR_AT(nanmean, dim) == GB_ATTR_AT(nansum, dim) &&
               GB_ATTR_AT(nanmean, keepdim) == GB_ATTR_AT(nansum, keepdim) &&
                 GB_ATTR_AT(nanmean, dtype) == GB_ATTR_AT(nansum, dtype), "read as nansum");

static gb_status nansum_compose(gb_op_call *call) { return nan_aware(call, false); }
static gb_status nanmean_compose(gb_op_call *call) { return nan_aware(call, true); }

static gb_status var_mean_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, var_mean)->x;
  const gb_attrs_var_mean *attrs = GB_ATTRS(call, var_mean);
  GB_TRY(GB_RUN(call->context, var, &GB_OUT(call, var_mean)->var, .x = x, .dim = attrs->dim,
                .correction = attrs->correction, .keepdim = attrs->keepdim));
  return GB_RUN(call->context, mean, &GB_OUT(call, var_mean)->mean, .x = x, .dim = attrs->dim,
                .keepdim = attrs->keepdim);
}

static gb_status std_mean_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, std_mean)->x;
  const gb_attrs_std_mean *attrs = GB_ATTRS(call, std_mean);
  GB_TRY(GB_RUN(call->context, std, &GB_OUT(call, std_mean)->std, .x = x, .dim = attrs->dim,
                .correction = attrs->correction, .keepdim = attrs->keepdim));
  return GB_RUN(call->context, mean, &GB_OUT(call, std_mean)->mean, .x = x, .dim = attrs->dim,
                .keepdim = attrs->keepdim);
}

static gb_status aminmax_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, aminmax)->x;
  const gb_attrs_aminmax *attrs = GB_ATTRS(call, aminmax);
  gb_attr dim = attrs->dim.given ? gb_attr_ints(1, &attrs->dim.integer) : gb_attr_empty();
  dim.given = attrs->dim.given;
  GB_TRY(GB_RUN(call->context, amin, &GB_OUT(call, aminmax)->min, .x = x, .dim = dim, .keepdim = attrs->keepdim));
  return GB_RUN(call->context, amax, &GB_OUT(call, aminmax)->max, .x = x, .dim = dim, .keepdim = attrs->keepdim);
}

static gb_status dist_compose(gb_op_call *call) {
  const gb_in_dist *in = GB_IN(call, dist);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = GB_CHAIN(&chain, norm, .x = GB_CHAIN(&chain, sub, .x = in->x, .y = in->y),
                          .p = GB_ATTRS(call, dist)->p);
  return gb_chain_end(&chain, y, &GB_OUT(call, dist)->z);
}

/* Slices whose norm is above maxnorm are scaled down to it. */
static gb_status renorm_compose(gb_op_call *call) {
  const gb_attrs_renorm *attrs = GB_ATTRS(call, renorm);
  gb_tensor *x = GB_IN(call, renorm)->x;
  int dim, count = 0;
  int64_t others[GB_MAX_NDIM];
  GB_TRY(gb_require_float(call, GB_IN_AT(renorm, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(renorm, x), 2, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  for (int i = 0; i < x->ndim; i++)
    if (i != dim) others[count++] = i;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *norms = GB_CHAIN(&chain, norm, .x = gb_chain_widen(&chain, x), .p = attrs->p,
                              .dim = gb_attr_ints(count, others), .keepdim = gb_attr_int(true));
  gb_tensor *over = gb_chain_number(&chain, GB_OP_gt, norms, attrs->maxnorm.number);
  gb_tensor *fits = GB_CHAIN(&chain, logical_not, .x = over); /* or is NaN */
  gb_tensor *factor = gb_chain_number(&chain, GB_OP_add, norms, 1e-7);
  factor = GB_CHAIN(&chain, masked_fill, .x = factor, .mask = fits, .value = gb_attr_num(attrs->maxnorm.number));
  factor = gb_chain_number(&chain, GB_OP_mul, GB_CHAIN(&chain, reciprocal, .x = factor), attrs->maxnorm.number);
  factor = GB_CHAIN(&chain, masked_fill, .x = factor, .mask = fits, .value = gb_attr_num(1));
  gb_tensor *y = gb_chain_cast(&chain, GB_CHAIN(&chain, mul, .x = x, .y = factor), (gb_dtype)x->dtype);
  return gb_chain_end(&chain, y, &GB_OUT(call, renorm)->y);
}

/* ====} */

const gb_op_impl gb_family_arrange[] = {
  { .op = GB_OP_movedim, .compose = movedim_compose },
  { .op = GB_OP_broadcast_to, .compose = broadcast_to_compose },
  { .op = GB_OP_atleast_1d, .compose = atleast_1d_compose },
  { .op = GB_OP_atleast_2d, .compose = atleast_2d_compose },
  { .op = GB_OP_atleast_3d, .compose = atleast_3d_compose },
  { .op = GB_OP_roll, .compose = roll_compose },
  { .op = GB_OP_fliplr, .compose = fliplr_compose },
  { .op = GB_OP_flipud, .compose = flipud_compose },
  { .op = GB_OP_rot90, .compose = rot90_compose },
  { .op = GB_OP_hstack, .compose = hstack_compose },
  { .op = GB_OP_vstack, .compose = vstack_compose },
  { .op = GB_OP_dstack, .compose = dstack_compose },
  { .op = GB_OP_column_stack, .compose = column_stack_compose },
  { .op = GB_OP_block_diag, .compose = block_diag_compose },
  { .op = GB_OP_diag, .compose = diag_compose },
  { .op = GB_OP_diag_embed, .compose = diag_embed_compose },
  { .op = GB_OP_diff, .compose = diff_compose },
  { .op = GB_OP_trapezoid, .compose = trapezoid_compose },
  { .op = GB_OP_take_along_dim, .compose = take_along_dim_compose },
  { .op = GB_OP_index_fill, .compose = index_fill_compose },
  { .op = GB_OP_index_copy, .compose = index_copy_compose },
  { .op = GB_OP_select_scatter, .compose = select_scatter_compose },
  { .op = GB_OP_scatter, .compose = scatter_compose },
  { .op = GB_OP_count_nonzero, .compose = count_nonzero_compose },
  { .op = GB_OP_nansum, .compose = nansum_compose },
  { .op = GB_OP_nanmean, .compose = nanmean_compose },
  { .op = GB_OP_var_mean, .compose = var_mean_compose },
  { .op = GB_OP_std_mean, .compose = std_mean_compose },
  { .op = GB_OP_aminmax, .compose = aminmax_compose },
  { .op = GB_OP_dist, .compose = dist_compose },
  { .op = GB_OP_renorm, .compose = renorm_compose },
  { .op = GB_OP_COUNT },
};
