/* ops/index.c - picking elements by integers and masks, joining and ordering: checks and gradients.
 *
 * Indices in tensors are data: they count from 0, negative ones are errors, and the kernels check them before they
 * write anything. A gradient that spreads into zeros (gather, index_select, embedding) is the op that adds at indices,
 * and the other way round. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/chain.h"
#include "ops/conv.h"

/* {==== What several ops need ==== */

/* A dim of x; a 0-d tensor counts as a vector. */
static gb_status dim_of(gb_op_call *call, const gb_attr *named, const gb_tensor *x, int *dim) {
  return gb_call_dim(call, named->integer, x->ndim ? x->ndim : 1, dim);
}

/* The size of a dim; a scalar has one of size 1. */
static int64_t size_at(const gb_tensor *x, int dim) { return x->ndim ? x->shape[dim] : 1; }

/* source goes into a tensor of `dtype`: its category may not be higher. */
static gb_status require_fits_dtype(gb_op_call *call, gb_dtype dtype, const gb_tensor *source) {
  if (gb_dtype_category((gb_dtype)source->dtype) <= gb_dtype_category(dtype)) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "%s values do not fit into a %s tensor; convert one of them first",
                      gb_dtype_name((gb_dtype)source->dtype),
                      gb_dtype_name(dtype));
}

static gb_status require_bool(gb_op_call *call, const gb_tensor *mask) {
  if (mask->dtype == GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "mask is %s; it must be bool (mask:bool(), or a comparison such as x:gt(0))",
                      gb_dtype_name((gb_dtype)mask->dtype));
}

/* A list of positions: 0-d or one dimension. */
static gb_status require_vector(gb_op_call *call, int input) {
  const gb_tensor *t = call->in[input];
  char text[96];
  if (t->ndim <= 1) return gb_require_integer(call, input);
  return gb_call_fail(call, GB_ESHAPE, "%s must be a vector, it is %s", call->info->in[input].name,
                      gb_shape_text(t->ndim, t->shape, text, sizeof text));
}

/* index may not be larger than x in any dimension but `free_dim` (-1: in none). */
static gb_status require_within(gb_op_call *call, const gb_tensor *index, const gb_tensor *x, const char *name,
                                int free_dim) {
  bool fits = (index->ndim ? index->ndim : 1) == (x->ndim ? x->ndim : 1);
  for (int i = 0; fits && i < index->ndim; i++) fits = i == free_dim || index->shape[i] <= size_at(x, i);
  if (fits) return GB_OK;
  char a[96], b[96];
  gb_shape_text(index->ndim, index->shape, a, sizeof a), gb_shape_text(x->ndim, x->shape, b, sizeof b);
  if (free_dim < 0)
    return gb_call_fail(call, GB_ESHAPE, "index is %s, %s %s: it needs as many dimensions, none of them larger", a,
                        name, b);
  return gb_call_fail(call, GB_ESHAPE, "index is %s, %s %s: it needs as many dimensions, none of them larger except "
                                       "dimension %d", a, name, b,
                      free_dim + 1);
}

/* Zeros of a shape, as one element expanded: for ops that copy their first input anyway. */
static gb_status zeros(gb_context *c, const gb_tensor *like, int ndim, const int64_t *shape, gb_tensor **out) {
  gb_tensor *zero = NULL;
  GB_TRY(gb_tensor_new(c, (gb_dtype)like->dtype, 0, NULL, like->storage->device, &zero));
  gb_status status = GB_RUN(c, fill, NULL, .x = zero, .value = gb_attr_num(0));
  if (status == GB_OK) status = GB_RUN(c, expand, out, .x = zero, .shape = gb_attr_ints(ndim, shape));
  gb_drop(&zero);
  return status;
}

/* The gradient of an op that picked from its input: g added at index along dim, in zeros of the input's shape, element
 * by element or slice by slice. */
static gb_status spread(gb_context *c, const gb_edge *edge, bool slices, gb_attr dim, gb_tensor *index, gb_tensor *g,
                        gb_tensor **out) {
  gb_tensor *zero = NULL;
  GB_TRY(zeros(c, g, edge->ndim, edge->shape, &zero));
  gb_status status = slices ? GB_RUN(c, index_add, out, .x = zero, .dim = dim, .index = index, .source = g)
                            : GB_RUN(c, scatter_add, out, .x = zero, .dim = dim, .index = index, .source = g);
  gb_drop(&zero);
  return status;
}

/* g, which fills the front corner of a shape, with zeros behind it. Consumes nothing. */
static gb_status pad_to(gb_context *c, gb_tensor *g, int ndim, const int64_t *shape, gb_tensor **out) {
  if (g->ndim == ndim && !memcmp(g->shape, shape, (size_t)ndim * sizeof *shape)) {
    gb_tensor_retain(g);
    *out = g;
    return GB_OK;
  }
  int64_t strides[GB_MAX_NDIM];
  gb_contiguous_strides(ndim, shape, strides);
  return GB_RUN(c, as_strided_backward, out, .grad = g, .shape = gb_attr_ints(ndim, shape),
                .strides = gb_attr_ints(ndim, strides), .view_shape = gb_attr_ints(g->ndim, g->shape),
                .view_strides = gb_attr_ints(g->ndim, strides), .view_offset = gb_attr_int(0));
}

/* The gradient of x in "x with something added": the result's. */
static void pass_on(gb_tensor *g, gb_tensor **out) { gb_tensor_retain(*out = g); }

/* How many elements of x are not zero. */
static gb_status count_nonzero(gb_op_call *call, gb_tensor *x, int64_t *count) {
  gb_tensor *flags = NULL, *total = NULL;
  if (x->dtype == GB_BOOL) gb_tensor_retain(flags = x);
  else GB_TRY(gb_op_number(call->context, GB_OP_ne, x, 0, &flags));
  gb_status status = GB_RUN(call->context, sum, &total, .x = flags);
  if (status == GB_OK) status = gb_tensor_item(total, NULL, count);
  gb_drop(&total);
  gb_drop(&flags);
  return status;
}

/* ====} */

/* {==== embedding ==== */

/* index of any shape, weight [rows, dim] -> index.shape x dim. */
static gb_status embedding_check(gb_op_call *call) {
  const gb_tensor *index = GB_IN(call, embedding)->index, *weight = GB_IN(call, embedding)->weight;
  const gb_attr *padding = &GB_ATTRS(call, embedding)->padding_idx;
  GB_TRY(gb_require_integer(call, GB_IN_AT(embedding, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding, index), 0, GB_MAX_NDIM - 1));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding, weight), 2, 2));
  GB_TRY(gb_require_float(call, GB_IN_AT(embedding, weight)));
  if (padding->given && (padding->integer < 0 || padding->integer >= weight->shape[0]))
    return gb_call_fail(call, GB_EINDEX,
                        "padding_idx %" PRId64 " is out of range 0 .. %" PRId64 " (the rows of weight)",
        padding->integer,
                        weight->shape[0] - 1);
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, index->shape, sizeof shape);
  shape[index->ndim] = weight->shape[1];
  return gb_call_output(call, GB_OUT_AT(embedding, y), index->ndim + 1, shape, (gb_dtype)weight->dtype);
}

/* A sum that is added to is rounded once. */
static bool can_add_to(gb_dtype sum, const gb_tensor *grad) {
  return (sum == GB_FLOAT32 || sum == GB_FLOAT64) && gb_promote(sum, (gb_dtype)grad->dtype) == sum;
}

static bool is_limited(const gb_op_call *call) { return GB_ATTRS(call, embedding)->max_norm.given; }

/* The rows that are picked are scaled down where they lie, outside of any graph; then they are picked. */
static gb_status embedding_compose(gb_op_call *call) {
  const gb_attrs_embedding *attrs = GB_ATTRS(call, embedding);
  gb_tensor *index = GB_IN(call, embedding)->index, *weight = GB_IN(call, embedding)->weight;
  GB_TRY(embedding_check(call));
  gb_drop(&GB_OUT(call, embedding)->y);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *table = gb_chain_detach(&c, weight);
  gb_tensor *ids = GB_CHAIN(&c, reshape, .x = index, .shape = gb_attr_ints(1, &index->numel));
  gb_tensor *rows = GB_CHAIN(&c, index_select, .x = table, .dim = gb_attr_int(0), .index = ids);
  rows = GB_CHAIN(&c, renorm, .x = rows, .p = attrs->norm_type, .dim = gb_attr_int(0), .maxnorm = attrs->max_norm);
  if (c.status == GB_OK) {
    gb_tensor *in[] = { table, ids, rows };
    c.status = gb_apply_(call->context, GB_OP_index_put, in, 3, &(gb_attr){ .given = true });
  }
  gb_tensor *y = GB_CHAIN(&c, embedding, .index = index, .weight = weight, .padding_idx = attrs->padding_idx,
                          .scale_grad_by_freq = attrs->scale_grad_by_freq);
  return gb_chain_end(&c, y, &GB_OUT(call, embedding)->y);
}

/* Each row of g divided by how often index names its row of the weight. */
static gb_tensor *by_frequency(gb_chain *c, gb_tensor *g, gb_tensor *index, int64_t rows) {
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, index->shape, sizeof shape);
  shape[index->ndim] = 1;
  gb_tensor *ids = GB_CHAIN(c, reshape, .x = index, .shape = gb_attr_ints(1, &index->numel));
  gb_tensor *counts = GB_CHAIN(c, bincount, .x = ids, .minlength = gb_attr_int(rows));
  counts = GB_CHAIN(c, index_select, .x = counts, .dim = gb_attr_int(0), .index = ids);
  counts = gb_chain_cast(c, counts, gb_is_16bit((gb_dtype)g->dtype) ? GB_FLOAT32 : (gb_dtype)g->dtype);
  counts = GB_CHAIN(c, reshape, .x = counts, .shape = gb_attr_ints(index->ndim + 1, shape));
  return gb_chain_2(c, GB_OP_div, g, counts, NULL);
}

/* One dense gradient of the weight, in the dtype that is wanted: float32 for a float32 weight, unrounded. It goes to
 * where it is summed up, and where that holds something already, as with a table that is also the last layer, only the
 * rows that were picked are touched. */
static gb_status embedding_sums(gb_grad_call *grad, gb_tensor *g, gb_tensor *index) {
  gb_tensor *made = NULL;
  bool holds = false;
  gb_tensor *sum = grad->accumulator ? grad->accumulator(grad, GB_IN_AT(embedding, weight), &holds) : NULL;
  if (sum && (sum->storage == g->storage || (holds && !can_add_to((gb_dtype)sum->dtype, g)))) sum = NULL;
  gb_out_embedding_backward given = { .dweight = sum };
  GB_TRY(GB_RUN_OUT(grad->context, embedding_backward, &given.dweight, &made, .grad = g, .index = index,
                    .rows = gb_attr_int(GB_EDGE(grad, embedding, weight)->shape[0]),
                    .padding_idx = GB_ATTRS(grad, embedding)->padding_idx,
                    .dtype = gb_attr_int(GB_WANTS(grad, embedding, weight)), .add = gb_attr_int(sum && holds)));
  if (sum) {
    grad->settled |= GB_SAVE_IN(embedding, weight);
    gb_tensor_release(made);
  } else GB_GRAD_IN(grad, embedding)->weight = made;
  return GB_OK;
}

static gb_status embedding_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, embedding)->y, *index = GB_SAVED(grad, embedding)->index, *shares = NULL;
  if (!GB_ATTRS(grad, embedding)->scale_grad_by_freq.integer) return embedding_sums(grad, g, index);
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  GB_TRY(gb_chain_end(&c, by_frequency(&c, g, index, GB_EDGE(grad, embedding, weight)->shape[0]), &shares));
  gb_status status = embedding_sums(grad, shares, index);
  gb_tensor_release(shares);
  return status;
}

/* grad is index.shape x dim, the result [rows, dim]. */
static gb_status embedding_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, embedding_backward)->grad, *index = GB_IN(call, embedding_backward)->index;
  const gb_attrs_embedding_backward *attrs = GB_ATTRS(call, embedding_backward);
  GB_TRY(gb_require_float(call, GB_IN_AT(embedding_backward, grad)));
  GB_TRY(gb_require_integer(call, GB_IN_AT(embedding_backward, index)));
  if (grad->ndim != index->ndim + 1 || memcmp(grad->shape, index->shape, (size_t)index->ndim * sizeof *index->shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "grad is %s, index %s: grad needs index's shape and one dimension more",
                        gb_shape_text(grad->ndim, grad->shape, a, sizeof a),
                            gb_shape_text(index->ndim, index->shape, b, sizeof b));
  }
  int64_t shape[] = { attrs->rows.integer, grad->shape[index->ndim] };
  const int dweight = GB_OUT_AT(embedding_backward, dweight);
  gb_dtype dtype = (gb_dtype)(attrs->dtype.given ? attrs->dtype.integer : grad->dtype);
  if (attrs->add.integer && !(call->given && call->given[dweight] && can_add_to(dtype, grad)))
    return gb_call_fail(call, GB_EINVAL, "add needs memory for dweight, of float32 or float64 and no narrower than "
                                         "grad");
  return gb_call_output(call, dweight, 2, shape, dtype);
}

/* ====} */

/* {==== embedding_sum ==== */

/* index [bags, n], weight [rows, dim] -> [bags, dim]. */
static gb_status embedding_sum_check(gb_op_call *call) {
  const gb_tensor *index = GB_IN(call, embedding_sum)->index, *weight = GB_IN(call, embedding_sum)->weight;
  GB_TRY(gb_require_integer(call, GB_IN_AT(embedding_sum, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding_sum, index), 2, 2));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding_sum, weight), 2, 2));
  GB_TRY(gb_require_float(call, GB_IN_AT(embedding_sum, weight)));
  const int64_t shape[2] = { index->shape[0], weight->shape[1] };
  return gb_call_output(call, GB_OUT_AT(embedding_sum, y), 2, shape, (gb_dtype)weight->dtype);
}

/* Each bag's gradient goes to all of its rows: a view shows it n times, so nothing is written out. embedding_backward
 * has no gradient itself; index_add has. */
static gb_status embedding_sum_gradient(gb_grad_call *grad) {
  const gb_edge *edge = GB_EDGE(grad, embedding_sum, weight);
  gb_tensor *index = GB_SAVED(grad, embedding_sum)->index, **out = &GB_GRAD_IN(grad, embedding_sum)->weight;
  const int64_t each[3] = { index->shape[0], index->shape[1], edge->shape[1] }, flat[2] = { index->numel, each[2] };
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *g = GB_CHAIN(&c, unsqueeze, .x = GB_GRAD_OUT(grad, embedding_sum)->y, .dim = gb_attr_int(1));
  g = GB_CHAIN(&c, expand, .x = g, .shape = gb_attr_ints(3, each));
  if (!grad->create_graph)
    g = GB_CHAIN(&c, embedding_backward, .grad = g, .index = index, .rows = gb_attr_int(edge->shape[0]),
                 .dtype = gb_attr_int(GB_WANTS(grad, embedding_sum, weight)));
  else {
    gb_tensor *zero = NULL, *rows = GB_CHAIN(&c, reshape, .x = g, .shape = gb_attr_ints(2, flat));
    gb_tensor *line = GB_CHAIN(&c, reshape, .x = index, .shape = gb_attr_ints(1, flat));
    if (c.status == GB_OK) c.status = zeros(grad->context, rows, edge->ndim, edge->shape, &zero);
    g = GB_CHAIN(&c, index_add, .x = zero, .dim = gb_attr_int(0), .index = line, .source = rows);
    gb_drop(&zero);
  }
  return gb_chain_end(&c, g, out);
}

/* ====} */

/* {==== gather and scatter_add ==== */

/* The result has index's shape. */
static gb_status gather_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, gather)->x, *index = GB_IN(call, gather)->index;
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, gather)->dim, x, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(gather, index)));
  GB_TRY(require_within(call, index, x, "x", dim));
  return gb_call_output(call, GB_OUT_AT(gather, y), index->ndim, index->shape, (gb_dtype)x->dtype);
}

/* Add each gradient where its element came from. */
static gb_status gather_gradient(gb_grad_call *grad) {
  return spread(grad->context, GB_EDGE(grad, gather, x), false, GB_ATTRS(grad, gather)->dim,
                GB_SAVED(grad, gather)->index, GB_GRAD_OUT(grad, gather)->y, &GB_GRAD_IN(grad, gather)->x);
}

/* The result has x's shape; index may be smaller than source, whose rest is not used. */
static gb_status scatter_add_check(gb_op_call *call) {
  const gb_in_scatter_add *in = GB_IN(call, scatter_add);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source;
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, scatter_add)->dim, x, &dim));
  GB_TRY(gb_require_integer(call, GB_IN_AT(scatter_add, index)));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  GB_TRY(require_within(call, index, x, "x", dim));
  GB_TRY(require_within(call, index, source, "source", -1));
  return gb_call_output_like(call, GB_OUT_AT(scatter_add, y), x, (gb_dtype)x->dtype);
}

/* x passes its gradient on; source gets it from where it was added, zero where index did not reach. */
static gb_status scatter_add_gradient(gb_grad_call *grad) {
  const gb_edge *source = GB_EDGE(grad, scatter_add, source);
  gb_tensor *g = GB_GRAD_OUT(grad, scatter_add)->y, *index = GB_SAVED(grad, scatter_add)->index, *picked = NULL;
  gb_in_scatter_add *to = GB_GRAD_IN(grad, scatter_add);
  if (GB_NEEDS(grad, scatter_add, x)) pass_on(g, &to->x);
  if (!GB_NEEDS(grad, scatter_add, source)) return GB_OK;
  GB_TRY(GB_RUN(grad->context, gather, &picked, .x = g, .dim = GB_ATTRS(grad, scatter_add)->dim, .index = index));
  gb_status status = pad_to(grad->context, picked, source->ndim, source->shape, &to->source);
  gb_drop(&picked);
  return status;
}

/* ====} */

/* {==== index_select and index_add ==== */

/* x's shape, with as many slices along dim as index has elements. */
static gb_status index_select_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, index_select)->x, *index = GB_IN(call, index_select)->index;
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, index_select)->dim, x, &dim));
  GB_TRY(require_vector(call, GB_IN_AT(index_select, index)));
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  if (x->ndim) shape[dim] = index->numel;
  else if (index->numel != 1)
    return gb_call_fail(call, GB_ESHAPE, "x is a scalar; only one element can be picked, index has %" PRId64,
                        index->numel);
  return gb_call_output(call, GB_OUT_AT(index_select, y), x->ndim, shape, (gb_dtype)x->dtype);
}

/* Add each slice where it came from. */
static gb_status index_select_gradient(gb_grad_call *grad) {
  return spread(grad->context, GB_EDGE(grad, index_select, x), true, GB_ATTRS(grad, index_select)->dim,
                GB_SAVED(grad, index_select)->index, GB_GRAD_OUT(grad, index_select)->y,
                &GB_GRAD_IN(grad, index_select)->x);
}

/* source has x's shape, with one slice along dim per element of index. */
static gb_status index_add_check(gb_op_call *call) {
  const gb_in_index_add *in = GB_IN(call, index_add);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source;
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, index_add)->dim, x, &dim));
  GB_TRY(require_vector(call, GB_IN_AT(index_add, index)));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  bool fits = source->ndim == x->ndim;
  for (int i = 0; fits && i < x->ndim; i++) fits = source->shape[i] == (i == dim ? index->numel : x->shape[i]);
  if (!fits || (x->ndim == 0 && index->numel != 1)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "source is %s, x %s, index has %" PRId64 " elements: source needs x's "
                                                                                  "shape, with %" PRId64
                                         " in dimension %d",
                        gb_shape_text(source->ndim, source->shape, a, sizeof a),
                            gb_shape_text(x->ndim, x->shape, b, sizeof b), index->numel,
                        index->numel, dim + 1);
  }
  return gb_call_output_like(call, GB_OUT_AT(index_add, y), x, (gb_dtype)x->dtype);
}

/* x passes its gradient on; source gets the slices it was added to. */
static gb_status index_add_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, index_add)->y;
  gb_in_index_add *to = GB_GRAD_IN(grad, index_add);
  if (GB_NEEDS(grad, index_add, x)) pass_on(g, &to->x);
  if (!GB_NEEDS(grad, index_add, source)) return GB_OK;
  return GB_RUN(grad->context, index_select, &to->source, .x = g, .dim = GB_ATTRS(grad, index_add)->dim,
                .index = GB_SAVED(grad, index_add)->index);
}

/* ====} */

/* {==== index_put ==== */

/* The shape of x[index]: index.shape x x.shape[1:]. */
static int picked_shape(const gb_tensor *index, int x_ndim, const int64_t *x_shape, int64_t *shape) {
  memcpy(shape, index->shape, (size_t)index->ndim * sizeof *shape);
  memcpy(shape + index->ndim, x_shape + 1, (size_t)(x_ndim - 1) * sizeof *shape);
  return index->ndim + x_ndim - 1;
}

/* source broadcasts to what x[index] would be. */
static gb_status index_put_check(gb_op_call *call) {
  const gb_in_index_put *in = GB_IN(call, index_put);
  const gb_tensor *x = in->x, *index = in->index, *source = in->source;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_put, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_require_integer(call, GB_IN_AT(index_put, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(index_put, index), 0, GB_MAX_NDIM - x->ndim + 1));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  GB_TRY(gb_require_input_fits(call, GB_IN_AT(index_put, source), (gb_dtype)x->dtype));
  int64_t shape[GB_MAX_NDIM], joint[GB_MAX_NDIM];
  int ndim = picked_shape(index, x->ndim, x->shape, shape), joint_ndim = ndim;
  memcpy(joint, shape, sizeof joint);
  if (!gb_broadcast(&joint_ndim, joint, source->ndim, source->shape) || joint_ndim != ndim ||
      memcmp(joint, shape, (size_t)ndim * sizeof *shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "source is %s and does not broadcast to the %s elements that index picks",
                        gb_shape_text(source->ndim, source->shape, a, sizeof a),
                            gb_shape_text(ndim, shape, b, sizeof b));
  }
  return gb_call_output_like(call, GB_OUT_AT(index_put, y), x, (gb_dtype)x->dtype);
}

static bool is_scaled(const gb_op_call *call) { return GB_ATTRS(call, index_add)->alpha.number != 1; }

/* source times alpha, in x's dtype, is added. */
static gb_status index_add_compose(gb_op_call *call) {
  const gb_in_index_add *in = GB_IN(call, index_add);
  double alpha = GB_ATTRS(call, index_add)->alpha.number;
  GB_TRY(index_add_check(call));
  gb_drop(&GB_OUT(call, index_add)->y);
  gb_dtype dtype = (gb_dtype)in->x->dtype;
  if (!gb_dtype_is_float(dtype) && !(floor(alpha) == alpha && fabs(alpha) < 0x1p53))
    return gb_call_fail(call, GB_EDTYPE, "alpha is %g and x %s; it takes a whole number", alpha,
                        gb_dtype_name(dtype));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *source = gb_chain_cast(&chain, in->source, dtype);
  gb_tensor *factor = gb_chain_full(&chain, dtype, 0, NULL, call->device, alpha);
  gb_tensor *y = GB_CHAIN(&chain, index_add, .x = in->x, .dim = GB_ATTRS(call, index_add)->dim, .index = in->index,
                          .source = GB_CHAIN(&chain, mul, .x = source, .y = factor));
  return gb_chain_end(&chain, y, &GB_OUT(call, index_add)->y);
}

static bool is_accumulated(const gb_op_call *call) { return GB_ATTRS(call, index_put)->accumulate.integer; }

/* source, broadcast to what x[index] is, is added at each index. */
static gb_status index_put_compose(gb_op_call *call) {
  const gb_in_index_put *in = GB_IN(call, index_put);
  gb_tensor *x = in->x, *source = in->source;
  int64_t shape[GB_MAX_NDIM], rows[GB_MAX_NDIM];
  GB_TRY(index_put_check(call));
  gb_drop(&GB_OUT(call, index_put)->y);
  int ndim = picked_shape(in->index, x->ndim, x->shape, shape);
  memcpy(rows, x->shape, sizeof rows);
  rows[0] = in->index->numel;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  source = gb_chain_cast(&chain, gb_chain_here(&chain, call, source), (gb_dtype)x->dtype);
  source = GB_CHAIN(&chain, expand, .x = source, .shape = gb_attr_ints(ndim, shape));
  source = GB_CHAIN(&chain, reshape, .x = source, .shape = gb_attr_ints(x->ndim, rows));
  gb_tensor *index = GB_CHAIN(&chain, reshape, .x = in->index, .shape = gb_attr_ints(1, rows));
  gb_tensor *y = GB_CHAIN(&chain, index_add, .x = x, .dim = gb_attr_int(0), .index = index, .source = source);
  return gb_chain_end(&chain, y, &GB_OUT(call, index_put)->y);
}

/* For each of n index values (a vector), as a bool column [n, 1 ...] of `ndim` dims: a later one is equal, so this one
 * was written over. */
static gb_status overwritten(gb_context *c, gb_tensor *index, int64_t rows, int ndim, gb_tensor **out) {
  gb_tensor *order = NULL, *table = NULL, *last = NULL, *winner = NULL, *flags = NULL;
  int64_t n = index->numel, column[GB_MAX_NDIM] = { n, 1, 1, 1, 1, 1, 1, 1 };
  gb_status status = gb_tensor_new(c, GB_INT64, 1, &n, index->storage->device, &order);
  if (status == GB_OK) status = GB_RUN(c, sequence, NULL, .x = order);
  if (status == GB_OK) status = zeros(c, order, 1, &rows, &table);
  if (status == GB_OK) status = GB_RUN(c, index_put, &last, .x = table, .index = index, .source = order);
  if (status == GB_OK) status = GB_RUN(c, index_select, &winner, .x = last, .dim = gb_attr_int(0), .index = index);
  if (status == GB_OK) status = GB_RUN(c, ne, &flags, .x = winner, .y = order);
  if (status == GB_OK) status = GB_RUN(c, reshape, out, .x = flags, .shape = gb_attr_ints(ndim, column));
  gb_drop(&flags), gb_drop(&winner), gb_drop(&last), gb_drop(&table), gb_drop(&order);
  return status;
}

/* The rows of g that index picks, zero where a later equal index wrote over them, summed to source's shape. */
static gb_status index_put_source_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *x = GB_EDGE(grad, index_put, x), *source = GB_EDGE(grad, index_put, source);
  gb_tensor *g = GB_GRAD_OUT(grad, index_put)->y, *index = GB_SAVED(grad, index_put)->index;
  gb_tensor *flat = NULL, *rows = NULL, *mask = NULL, *kept = NULL, *block = NULL;
  int64_t picked[GB_MAX_NDIM];
  int ndim = picked_shape(index, x->ndim, x->shape, picked);
  gb_status status = GB_RUN(c, reshape, &flat, .x = index, .shape = gb_attr_ints(1, &index->numel));
  if (status == GB_OK) status = GB_RUN(c, index_select, &rows, .x = g, .dim = gb_attr_int(0), .index = flat);
  if (status == GB_OK) status = overwritten(c, flat, x->shape[0], x->ndim, &mask);
  if (status == GB_OK) status = GB_RUN(c, masked_fill, &kept, .x = rows, .mask = mask, .value = gb_attr_num(0));
  if (status == GB_OK) status = GB_RUN(c, reshape, &block, .x = kept, .shape = gb_attr_ints(ndim, picked));
  if (status == GB_OK) status = gb_sum_to(c, block, source->ndim, source->shape, &GB_GRAD_IN(grad, index_put)->source);
  gb_drop(&block), gb_drop(&kept), gb_drop(&mask), gb_drop(&rows), gb_drop(&flat);
  return status;
}

/* x has no gradient where it was written over. */
static gb_status index_put_gradient(gb_grad_call *grad) {
  if (GB_NEEDS(grad, index_put, x)) {
    gb_tensor *g = GB_GRAD_OUT(grad, index_put)->y, *zero = NULL;
    GB_TRY(zeros(grad->context, g, 0, g->shape, &zero));
    gb_status status = GB_RUN(grad->context, index_put, &GB_GRAD_IN(grad, index_put)->x, .x = g,
                              .index = GB_SAVED(grad, index_put)->index, .source = zero);
    gb_drop(&zero);
    GB_TRY(status);
  }
  return GB_NEEDS(grad, index_put, source) ? index_put_source_gradient(grad) : GB_OK;
}

/* ====} */

/* {==== Masks: masked_select, masked_scatter, nonzero ==== */

/* x and mask broadcast together -> a vector of the elements where mask is true. */
static gb_status masked_select_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, masked_select)->x;
  gb_tensor *mask = GB_IN(call, masked_select)->mask;
  GB_TRY(require_bool(call, mask));
  int64_t shape[GB_MAX_NDIM], count = 0, copies = 1;
  int ndim = x->ndim;
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, mask->ndim, mask->shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "mask is %s and does not broadcast with x (%s)",
                        gb_shape_text(mask->ndim, mask->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  }
  for (int i = 0; i < ndim; i++) copies *= shape[i];
  if (copies > 0) GB_TRY(count_nonzero(call, mask, &count));
  count *= mask->numel ? copies / mask->numel : 0;
  return gb_call_output(call, GB_OUT_AT(masked_select, y), 1, &count, (gb_dtype)x->dtype);
}

/* grad at the places that were picked, zero elsewhere, in the broadcast shape; summed to x's. */
static gb_status masked_select_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *edge = GB_EDGE(grad, masked_select, x);
  gb_tensor *g = GB_GRAD_OUT(grad, masked_select)->y, *mask = GB_SAVED(grad, masked_select)->mask;
  gb_tensor *zero = NULL, *placed = NULL;
  int64_t shape[GB_MAX_NDIM];
  int ndim = edge->ndim;
  memcpy(shape, edge->shape, sizeof shape);
  gb_broadcast(&ndim, shape, mask->ndim, mask->shape);
  GB_TRY(zeros(c, g, ndim, shape, &zero));
  gb_status status = GB_RUN(c, masked_scatter, &placed, .x = zero, .mask = mask, .source = g);
  if (status == GB_OK) status = gb_sum_to(c, placed, edge->ndim, edge->shape, &GB_GRAD_IN(grad, masked_select)->x);
  gb_drop(&placed), gb_drop(&zero);
  return status;
}

/* The kernel checks that source has enough elements, since it counts them anyway. */
static gb_status masked_scatter_check(gb_op_call *call) {
  const gb_in_masked_scatter *in = GB_IN(call, masked_scatter);
  const gb_tensor *x = in->x, *mask = in->mask;
  GB_TRY(require_bool(call, mask));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, in->source));
  int64_t shape[GB_MAX_NDIM];
  int ndim = x->ndim;
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, mask->ndim, mask->shape) || ndim != x->ndim ||
      memcmp(shape, x->shape, (size_t)ndim * sizeof *shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "mask is %s and does not broadcast to x (%s)",
                        gb_shape_text(mask->ndim, mask->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  }
  return gb_call_output_like(call, GB_OUT_AT(masked_scatter, y), x, (gb_dtype)x->dtype);
}

/* The elements that the mask took from source, in order; the rest of source gets zero. */
static gb_status masked_scatter_source_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *source = GB_EDGE(grad, masked_scatter, source);
  gb_tensor *used = NULL, *all = NULL;
  int64_t n = 1;
  for (int i = 0; i < source->ndim; i++) n *= source->shape[i];
  gb_status status = GB_RUN(c, masked_select, &used, .x = GB_GRAD_OUT(grad, masked_scatter)->y,
                            .mask = GB_SAVED(grad, masked_scatter)->mask);
  if (status == GB_OK) status = pad_to(c, used, 1, &n, &all);
  if (status == GB_OK)
    status = GB_RUN(c, reshape, &GB_GRAD_IN(grad, masked_scatter)->source, .x = all,
                    .shape = gb_attr_ints(source->ndim, source->shape));
  gb_drop(&all), gb_drop(&used);
  return status;
}

/* x has no gradient where it was written over. */
static gb_status masked_scatter_gradient(gb_grad_call *grad) {
  if (GB_NEEDS(grad, masked_scatter, x))
    GB_TRY(GB_RUN(grad->context, masked_fill, &GB_GRAD_IN(grad, masked_scatter)->x,
                  .x = GB_GRAD_OUT(grad, masked_scatter)->y, .mask = GB_SAVED(grad, masked_scatter)->mask,
                  .value = gb_attr_num(0)));
  return GB_NEEDS(grad, masked_scatter, source) ? masked_scatter_source_gradient(grad) : GB_OK;
}

/* [count, ndim], so counting comes first. */
static gb_status nonzero_check(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, nonzero)->x;
  int64_t shape[2] = { 0, x->ndim };
  if (x->numel > 0) GB_TRY(count_nonzero(call, x, &shape[0]));
  return gb_call_output(call, GB_OUT_AT(nonzero, y), 2, shape, GB_INT64);
}

/* One more dimension, of `classes`. */
static gb_status one_hot_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, one_hot)->x;
  int64_t shape[GB_MAX_NDIM];
  GB_TRY(gb_require_integer(call, GB_IN_AT(one_hot, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(one_hot, x), 0, GB_MAX_NDIM - 1));
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim] = GB_ATTRS(call, one_hot)->classes.integer;
  return gb_call_output(call, GB_OUT_AT(one_hot, y), x->ndim + 1, shape, GB_INT64);
}

/* ====} */

/* {==== Order: topk, sort, flip ==== */

/* Two outputs: x with k along dim, and positions. */
static gb_status topk_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, topk)->x;
  int64_t k = GB_ATTRS(call, topk)->k.integer, shape[GB_MAX_NDIM];
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, topk)->dim, x, &dim));
  if (k > size_at(x, dim))
    return gb_call_fail(call, GB_EINVAL, "k is %" PRId64 ", dimension %d has %" PRId64 " elements", k, dim + 1,
                        size_at(x, dim));
  memcpy(shape, x->shape, sizeof shape);
  if (x->ndim) shape[dim] = k;
  else if (k == 0) return gb_call_fail(call, GB_EINVAL, "k is 0, but a scalar has one element to take");
  GB_TRY(gb_call_output(call, GB_OUT_AT(topk, values), x->ndim, shape, (gb_dtype)x->dtype));
  return gb_call_output(call, GB_OUT_AT(topk, indices), x->ndim, shape, GB_INT64);
}

/* Both outputs lie as x does, so that walking one walks all. */
static gb_status sort_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, sort)->x;
  int dim;
  GB_TRY(dim_of(call, &GB_ATTRS(call, sort)->dim, x, &dim));
  GB_TRY(gb_call_output_like(call, GB_OUT_AT(sort, values), x, (gb_dtype)x->dtype));
  return gb_call_output_like(call, GB_OUT_AT(sort, indices), x, GB_INT64);
}

/* Each value's gradient goes back to the element it was. */
static gb_status topk_gradient(gb_grad_call *grad) {
  return spread(grad->context, GB_EDGE(grad, topk, x), false, GB_ATTRS(grad, topk)->dim, GB_KEPT(grad, topk)->indices,
                GB_GRAD_OUT(grad, topk)->values, &GB_GRAD_IN(grad, topk)->x);
}

static gb_status sort_gradient(gb_grad_call *grad) {
  return spread(grad->context, GB_EDGE(grad, sort, x), false, GB_ATTRS(grad, sort)->dim, GB_KEPT(grad, sort)->indices,
                GB_GRAD_OUT(grad, sort)->values, &GB_GRAD_IN(grad, sort)->x);
}

/* Each dim once. */
static gb_status flip_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, flip)->x;
  const gb_attr *dims = &GB_ATTRS(call, flip)->dim;
  bool seen[GB_MAX_NDIM] = { false };
  for (int i = 0; i < dims->count; i++) {
    int dim;
    GB_TRY(gb_call_dim(call, dims->ints[i], x->ndim ? x->ndim : 1, &dim));
    if (seen[dim]) return gb_call_fail(call, GB_EINVAL, "dimension %d is named twice", dim + 1);
    seen[dim] = true;
  }
  return gb_call_output_like(call, GB_OUT_AT(flip, y), x, (gb_dtype)x->dtype);
}

static gb_status flip_gradient(gb_grad_call *grad) {
  return GB_RUN(grad->context, flip, &GB_GRAD_IN(grad, flip)->x, .x = GB_GRAD_OUT(grad, flip)->y,
                .dim = GB_ATTRS(grad, flip)->dim);
}

/* ====} */

/* {==== Joining: cat, stack, repeat_interleave ==== */

/* Tensor i must have the shape of the first, but for `dim` (-1: no exception). */
static gb_status require_alike(gb_op_call *call, gb_tensor *const *list, int i, int dim) {
  const gb_tensor *first = list[0], *t = list[i];
  bool fits = t->ndim == first->ndim;
  for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || t->shape[d] == first->shape[d];
  if (fits) return GB_OK;
  char a[96], b[96];
  gb_shape_text(t->ndim, t->shape, a, sizeof a), gb_shape_text(first->ndim, first->shape, b, sizeof b);
  if (dim < 0)
    return gb_call_fail(call, GB_ESHAPE, "tensor %d is %s, tensor 1 is %s; all must have one shape", i + 1, a, b);
  return gb_call_fail(call, GB_ESHAPE, "tensor %d is %s, tensor 1 is %s; they may differ in dimension %d only", i + 1,
                      a, b, dim + 1);
}

/* Are all of them maps with channels last? One at least is not contiguous as well. */
static bool all_channels_last(gb_tensor **xs, int count) {
  bool contiguous = true;
  for (int i = 0; i < count; i++) {
    if (xs[i]->ndim != 4 || !gb_is_channels_last(xs[i])) return false;
    contiguous = contiguous && gb_is_contiguous(xs[i]);
  }
  return !contiguous;
}

/* Sizes along dim add up; all others agree. */
static gb_status cat_check(gb_op_call *call) {
  gb_tensor **xs = GB_LIST(call, cat, xs);
  const gb_tensor *first = xs[0];
  int dim, count = GB_LIST_COUNT(call, cat, xs);
  if (first->ndim == 0)
    return gb_call_fail(call, GB_ESHAPE, "tensor 1 is a scalar and has no dimension to join along; use stack");
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, cat)->dim.integer, first->ndim, &dim));
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = 0;
  for (int i = 0; i < count; i++) {
    GB_TRY(require_alike(call, xs, i, dim));
    shape[dim] += xs[i]->shape[dim];
  }
  int64_t strides[GB_MAX_NDIM];
  bool maps = all_channels_last(xs, count);
  if (maps) gb_channels_last_strides(shape, strides);
  return gb_call_output_strided(call, GB_OUT_AT(cat, y), first->ndim, shape, maps ? strides : NULL,
                                gb_result_type(xs, count));
}

/* Each input gets its own stretch of the gradient, as a view. */
static gb_status cat_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, cat)->y;
  gb_attr dim = GB_ATTRS(grad, cat)->dim;
  int64_t start = 0, along = dim.integer < 0 ? dim.integer + g->ndim : dim.integer;
  for (int i = 0; i < grad->n_in; i++) {
    int64_t length = grad->node->edges[i].shape[along];
    if (grad->need[i])
      GB_TRY(GB_RUN(grad->context, narrow, &grad->in[i], .x = g, .dim = dim, .start = gb_attr_int(start),
                    .length = gb_attr_int(length)));
    start += length;
  }
  return GB_OK;
}

/* unsqueeze each, then cat. */
static gb_status stack_compose(gb_op_call *call) {
  gb_context *c = call->context;
  gb_tensor **xs = GB_LIST(call, stack, xs);
  int dim, count = GB_LIST_COUNT(call, stack, xs);
  GB_TRY(gb_require_ndim(call, GB_IN_AT(stack, xs), 0, GB_MAX_NDIM - 1));
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, stack)->dim.integer, xs[0]->ndim + 1, &dim));
  for (int i = 0; i < count; i++) GB_TRY(require_alike(call, xs, i, -1));
  gb_tensor **parts = calloc((unsigned)count, sizeof *parts);
  if (!parts) return gb_fail_memory(c, (unsigned)count * sizeof *parts);
  gb_attr at = gb_attr_int(dim);
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < count; i++) status = GB_RUN(c, unsqueeze, &parts[i], .x = xs[i], .dim = at);
  if (status == GB_OK) status = GB_RUN(c, cat, &GB_OUT(call, stack)->y, .xs = parts, .count = count, .dim = at);
  for (int i = 0; i < count; i++) gb_drop(&parts[i]);
  free(parts);
  return status;
}

/* As many of each slice along dim as a number says: one dimension more, expanded and flattened. */
static gb_status repeat_all(gb_op_call *call, gb_tensor *x, int dim, int64_t repeats) {
  gb_context *c = call->context;
  gb_tensor *apart = NULL, *wide = NULL;
  int64_t shape[GB_MAX_NDIM + 1];
  for (int i = 0; i <= x->ndim; i++) shape[i] = i <= dim ? x->shape[i] : i == dim + 1 ? repeats : x->shape[i - 1];
  gb_attr next = gb_attr_int(dim + 1);
  gb_status status = GB_RUN(c, unsqueeze, &apart, .x = x, .dim = next);
  if (status == GB_OK) status = GB_RUN(c, expand, &wide, .x = apart, .shape = gb_attr_ints(x->ndim + 1, shape));
  if (status == GB_OK)
    status = GB_RUN(c, flatten, &GB_OUT(call, repeat_interleave)->y, .x = wide, .first = gb_attr_int(dim),
                    .last = next);
  gb_drop(&wide), gb_drop(&apart);
  return status;
}

/* The sum of `repeats`, none of which is negative. */
static gb_status count_repeats(gb_op_call *call, gb_tensor *repeats, int64_t *total) {
  gb_tensor *least = NULL, *sum = NULL;
  gb_chain c;
  int64_t low = 0;
  double about = 0;
  *total = 0;
  if (repeats->numel == 0) return GB_OK;
  gb_chain_begin(&c, call->context);
  GB_TRY(gb_chain_end(&c, GB_CHAIN(&c, amin, .x = repeats), &least));
  gb_status status = gb_tensor_item(least, NULL, &low);
  gb_drop(&least);
  GB_TRY(status);
  if (low < 0) return gb_call_fail(call, GB_EINVAL, "repeats has %" PRId64 "; it is 0 or more", low);
  gb_chain_begin(&c, call->context);
  GB_TRY(gb_chain_end(&c, GB_CHAIN(&c, sum, .x = gb_chain_cast(&c, repeats, GB_FLOAT64)), &sum));
  status = gb_tensor_item(sum, &about, NULL);
  gb_drop(&sum);
  GB_TRY(status);
  if (about > (double)GB_MAX_NUMEL) /* below that the sum in float64 is exact */
    return gb_call_fail(call, GB_EINVAL, "repeats add up to about %g; a tensor has at most 2^53 elements", about);
  *total = (int64_t)about;
  return GB_OK;
}

/* As many of each slice as the tensor `repeats` says: slice i of the result is the one whose running sum i is below. */
static gb_status repeat_each(gb_op_call *call, gb_tensor *x, int dim, gb_tensor *repeats) {
  int64_t total;
  gb_chain c;
  GB_TRY(count_repeats(call, repeats, &total));
  gb_chain_begin(&c, call->context);
  gb_tensor *ends = GB_CHAIN(&c, cumsum, .x = repeats, .dim = gb_attr_int(0));
  gb_tensor *line = gb_chain_full(&c, GB_INT64, 1, &total, x->storage->device, 0);
  if (line) c.status = GB_RUN(call->context, sequence, NULL, .x = line);
  gb_tensor *from = GB_CHAIN(&c, searchsorted, .x = ends, .values = line, .right = gb_attr_int(true));
  gb_tensor *y = GB_CHAIN(&c, index_select, .x = x, .dim = gb_attr_int(dim), .index = from);
  return gb_chain_end(&c, y, &GB_OUT(call, repeat_interleave)->y);
}

/* The same of a number, or a tensor of one: a float must be whole. */
static gb_status repeat_by_number(gb_op_call *call, gb_tensor *x, int dim, gb_tensor *repeats) {
  double number;
  int64_t times;
  GB_TRY(gb_tensor_item(repeats, &number, &times));
  if (gb_dtype_is_float((gb_dtype)repeats->dtype) && !(floor(number) == number && fabs(number) < 0x1p63))
    return gb_call_fail(call, GB_EINVAL, "'repeats' is %g; it must be a whole number", number);
  if (gb_dtype_is_float((gb_dtype)repeats->dtype)) times = (int64_t)number;
  if (times < 0) return gb_call_fail(call, GB_EINVAL, "'repeats' is %" PRId64 "; it must be at least 0", times);
  return repeat_all(call, x, dim, times);
}

static gb_status repeat_interleave_compose(gb_op_call *call) {
  const gb_in_repeat_interleave *in = GB_IN(call, repeat_interleave);
  gb_tensor *repeats = in->repeats;
  char text[96];
  int dim;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(repeat_interleave, x), 1, GB_MAX_NDIM - 1));
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, repeat_interleave)->dim.integer, in->x->ndim, &dim));
  if (repeats->ndim == 0) return repeat_by_number(call, in->x, dim, repeats);
  GB_TRY(gb_require_integer(call, GB_IN_AT(repeat_interleave, repeats)));
  if (repeats->ndim > 1 || repeats->numel != in->x->shape[dim])
    return gb_call_fail(call, GB_ESHAPE, "repeats has shape %s; it is a number, or a vector of %" PRId64 ", one for "
                        "each position along dimension %d",
                        gb_shape_text(repeats->ndim, repeats->shape, text, sizeof text), in->x->shape[dim], dim + 1);
  return repeat_each(call, in->x, dim, repeats);
}

/* ====} */

const gb_op_impl gb_family_index[] = {
  { .op = GB_OP_embedding, .check = embedding_check, .gradient = embedding_gradient,
    .composed = is_limited, .compose = embedding_compose,
    .save_in = GB_SAVE_IN(embedding, index) },
  { .op = GB_OP_embedding_backward, .check = embedding_backward_check },
  { .op = GB_OP_embedding_sum, .check = embedding_sum_check, .gradient = embedding_sum_gradient,
    .save_in = GB_SAVE_IN(embedding_sum, index) },
  { .op = GB_OP_gather, .check = gather_check, .gradient = gather_gradient, .save_in = GB_SAVE_IN(gather, index) },
  { .op = GB_OP_scatter_add, .check = scatter_add_check, .gradient = scatter_add_gradient,
    .save_in = GB_SAVE_IN(scatter_add, index) },
  { .op = GB_OP_index_select, .check = index_select_check, .gradient = index_select_gradient,
    .save_in = GB_SAVE_IN(index_select, index) },
  { .op = GB_OP_index_add, .check = index_add_check, .gradient = index_add_gradient,
    .composed = is_scaled, .compose = index_add_compose,
    .save_in = GB_SAVE_IN(index_add, index) },
  { .op = GB_OP_index_put, .check = index_put_check, .gradient = index_put_gradient,
    .composed = is_accumulated, .compose = index_put_compose,
    .save_in = GB_SAVE_IN(index_put, index) },
  { .op = GB_OP_masked_select, .check = masked_select_check, .gradient = masked_select_gradient,
    .save_in = GB_SAVE_IN(masked_select, mask) },
  { .op = GB_OP_masked_scatter, .check = masked_scatter_check, .gradient = masked_scatter_gradient,
    .save_in = GB_SAVE_IN(masked_scatter, mask) },
  { .op = GB_OP_nonzero, .check = nonzero_check },
  { .op = GB_OP_one_hot, .check = one_hot_check },
  { .op = GB_OP_topk, .check = topk_check, .gradient = topk_gradient, .save_out = GB_SAVE_OUT(topk, indices) },
  { .op = GB_OP_sort, .check = sort_check, .gradient = sort_gradient, .save_out = GB_SAVE_OUT(sort, indices) },
  { .op = GB_OP_cat, .check = cat_check, .gradient = cat_gradient },
  { .op = GB_OP_stack, .compose = stack_compose },
  { .op = GB_OP_flip, .check = flip_check, .gradient = flip_gradient },
  { .op = GB_OP_repeat_interleave, .compose = repeat_interleave_compose },
  { .op = GB_OP_COUNT },
};
