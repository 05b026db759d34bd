/* ops/index.c - picking elements by integers and masks, joining and ordering: checks and gradients.
 *
 * Indices in tensors are data: they count from 0, negative ones are errors, and the kernels check them before they write anything.
 * A gradient that spreads into zeros (gather, index_select, embedding) is the op that adds at indices, and the other way round. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"

/* {==== What several ops need ==== */

/* The dim of attrs[i]; a 0-d tensor counts as a vector. */
static gb_status dim_of(gb_call *call, int i, const gb_tensor *x, int *dim) {
  return gb_call_dim(call, call->attrs[i].integer, x->ndim ? x->ndim : 1, dim);
}

/* The size of a dim; a scalar has one of size 1. */
static int64_t size_at(const gb_tensor *x, int dim) { return x->ndim ? x->shape[dim] : 1; }

/* source goes into a tensor of `dtype`: its category may not be higher. */
static gb_status require_fits_dtype(gb_call *call, gb_dtype dtype, const gb_tensor *source) {
  if (gb_dtype_category((gb_dtype)source->dtype) <= gb_dtype_category(dtype)) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "%s values do not fit into a %s tensor; convert one of them first", gb_dtype_name((gb_dtype)source->dtype),
                      gb_dtype_name(dtype));
}

static gb_status require_bool(gb_call *call, const gb_tensor *mask) {
  if (mask->dtype == GB_BOOL) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "mask is %s; it must be bool (mask:bool(), or a comparison such as x:gt(0))",
                      gb_dtype_name((gb_dtype)mask->dtype));
}

/* A list of positions: 0-d or one dimension. */
static gb_status require_vector(gb_call *call, int input, const char *name) {
  const gb_tensor *t = call->in[input];
  char text[96];
  if (t->ndim <= 1) return gb_require_integer(call, input);
  return gb_call_fail(call, GB_ESHAPE, "%s must be a vector, it is %s", name, gb_shape_text(t->ndim, t->shape, text, sizeof text));
}

/* index may not be larger than x in any dimension but `free_dim` (-1: in none). */
static gb_status require_within(gb_call *call, const gb_tensor *index, const gb_tensor *x, const char *name, int free_dim) {
  bool fits = (index->ndim ? index->ndim : 1) == (x->ndim ? x->ndim : 1);
  for (int i = 0; fits && i < index->ndim; i++) fits = i == free_dim || index->shape[i] <= size_at(x, i);
  if (fits) return GB_OK;
  char a[96], b[96];
  gb_shape_text(index->ndim, index->shape, a, sizeof a), gb_shape_text(x->ndim, x->shape, b, sizeof b);
  if (free_dim < 0) return gb_call_fail(call, GB_ESHAPE, "index is %s, %s %s: it needs as many dimensions, none of them larger", a, name, b);
  return gb_call_fail(call, GB_ESHAPE, "index is %s, %s %s: it needs as many dimensions, none of them larger except dimension %d", a, name, b,
                      free_dim + 1);
}

/* Zeros of a shape, as one element expanded: for ops that copy their first input anyway. */
static gb_status zeros(gb_context *c, const gb_tensor *like, int ndim, const int64_t *shape, gb_tensor **out) {
  gb_tensor *zero = NULL;
  GB_TRY(gb_tensor_new(c, (gb_dtype)like->dtype, 0, NULL, like->storage->device, &zero));
  gb_attr value = gb_attr_num(0), size = gb_attr_ints(ndim, shape);
  gb_status status = gb_apply_(c, GB_OP_fill, &zero, 1, &value);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_expand, zero, &size, out);
  gb_drop(&zero);
  return status;
}

/* op(zeros of input i's shape, dim, index, g): the gradient of an op that picked from input i. */
static gb_status spread(gb_grad_call *grad, gb_op op, int i, int64_t dim, gb_tensor *index, gb_tensor *g) {
  const gb_edge *edge = &grad->node->edges[i];
  gb_tensor *zero = NULL;
  GB_TRY(zeros(grad->context, g, edge->ndim, edge->shape, &zero));
  gb_attr at = gb_attr_int(dim);
  gb_status status = gb_op_3(grad->context, op, zero, index, g, &at, &grad->in[i]);
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
  gb_attr attrs[] = { gb_attr_ints(ndim, shape), gb_attr_ints(ndim, strides), gb_attr_ints(g->ndim, g->shape), gb_attr_ints(g->ndim, strides),
                      gb_attr_int(0) };
  return gb_op_1(c, GB_OP_as_strided_backward, g, attrs, out);
}

/* The gradient of x in "x with something added": the result's. */
static void pass_on(gb_grad_call *grad, int i) {
  gb_tensor_retain(grad->out[0]);
  grad->in[i] = grad->out[0];
}

/* How many elements of x are not zero. */
static gb_status count_nonzero(gb_call *call, gb_tensor *x, int64_t *count) {
  gb_tensor *flags = NULL, *total = NULL;
  if (x->dtype == GB_BOOL) gb_tensor_retain(flags = x);
  else GB_TRY(gb_op_number(call->context, GB_OP_ne, x, 0, &flags));
  gb_status status = gb_op_1(call->context, GB_OP_sum, flags, NULL, &total);
  if (status == GB_OK) status = gb_tensor_item(total, NULL, count);
  gb_drop(&total);
  gb_drop(&flags);
  return status;
}

/* ====} */

/* {==== embedding ==== */

/* index of any shape, weight [rows, dim] -> index.shape x dim. */
static gb_status embedding_check(gb_call *call) {
  const gb_tensor *index = call->in[0], *weight = call->in[1];
  const gb_attr *padding = &call->attrs[0];
  GB_TRY(gb_require_integer(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 0, GB_MAX_NDIM - 1));
  GB_TRY(gb_require_ndim(call, 1, 2, 2));
  GB_TRY(gb_require_float(call, 1));
  if (padding->given && (padding->integer < 0 || padding->integer >= weight->shape[0]))
    return gb_call_fail(call, GB_EINDEX, "padding_idx %" PRId64 " is out of range 0 .. %" PRId64 " (the rows of weight)", padding->integer,
                        weight->shape[0] - 1);
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, index->shape, sizeof shape);
  shape[index->ndim] = weight->shape[1];
  return gb_call_output(call, 0, index->ndim + 1, shape, (gb_dtype)weight->dtype);
}

/* One dense gradient of the weight, in the dtype that is wanted: float32 for a float32 weight, unrounded. */
static gb_status embedding_gradient(gb_grad_call *grad) {
  gb_attr attrs[] = { gb_attr_int(grad->node->edges[1].shape[0]), grad->attrs[0], gb_attr_int(grad->want[1]) };
  return gb_op_2(grad->context, GB_OP_embedding_backward, grad->out[0], grad->saved[0], attrs, &grad->in[1]);
}

/* grad is index.shape x dim, the result [rows, dim]. */
static gb_status embedding_backward_check(gb_call *call) {
  const gb_tensor *grad = call->in[0], *index = call->in[1];
  GB_TRY(gb_require_float(call, 0));
  GB_TRY(gb_require_integer(call, 1));
  if (grad->ndim != index->ndim + 1 || memcmp(grad->shape, index->shape, (size_t)index->ndim * sizeof *index->shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "grad is %s, index %s: grad needs index's shape and one dimension more",
                        gb_shape_text(grad->ndim, grad->shape, a, sizeof a), gb_shape_text(index->ndim, index->shape, b, sizeof b));
  }
  int64_t shape[] = { call->attrs[0].integer, grad->shape[index->ndim] };
  return gb_call_output(call, 0, 2, shape, call->attrs[2].given ? (gb_dtype)call->attrs[2].integer : (gb_dtype)grad->dtype);
}

/* ====} */

/* {==== gather and scatter_add ==== */

/* The result has index's shape. */
static gb_status gather_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *index = call->in[1];
  int dim;
  GB_TRY(dim_of(call, 0, x, &dim));
  GB_TRY(gb_require_integer(call, 1));
  GB_TRY(require_within(call, index, x, "x", dim));
  return gb_call_output(call, 0, index->ndim, index->shape, (gb_dtype)x->dtype);
}

/* Add each gradient where its element came from. */
static gb_status gather_gradient(gb_grad_call *grad) {
  return spread(grad, GB_OP_scatter_add, 0, grad->attrs[0].integer, grad->saved[1], grad->out[0]);
}

/* The result has x's shape; index may be smaller than source, whose rest is not used. */
static gb_status scatter_add_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *index = call->in[1], *source = call->in[2];
  int dim;
  GB_TRY(dim_of(call, 0, x, &dim));
  GB_TRY(gb_require_integer(call, 1));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  GB_TRY(require_within(call, index, x, "x", dim));
  GB_TRY(require_within(call, index, source, "source", -1));
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

/* x passes its gradient on; source gets it from where it was added, zero where index did not reach. */
static gb_status scatter_add_gradient(gb_grad_call *grad) {
  const gb_edge *source = &grad->node->edges[2];
  if (grad->need[0]) pass_on(grad, 0);
  if (!grad->need[2]) return GB_OK;
  gb_tensor *picked = NULL;
  GB_TRY(gb_op_2(grad->context, GB_OP_gather, grad->out[0], grad->saved[1], grad->attrs, &picked));
  gb_status status = pad_to(grad->context, picked, source->ndim, source->shape, &grad->in[2]);
  gb_drop(&picked);
  return status;
}

/* ====} */

/* {==== index_select and index_add ==== */

/* x's shape, with as many slices along dim as index has elements. */
static gb_status index_select_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *index = call->in[1];
  int dim;
  GB_TRY(dim_of(call, 0, x, &dim));
  GB_TRY(require_vector(call, 1, "index"));
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  if (x->ndim) shape[dim] = index->numel;
  else if (index->numel != 1) return gb_call_fail(call, GB_ESHAPE, "x is a scalar; only one element can be picked, index has %" PRId64, index->numel);
  return gb_call_output(call, 0, x->ndim, shape, (gb_dtype)x->dtype);
}

/* Add each slice where it came from. */
static gb_status index_select_gradient(gb_grad_call *grad) {
  return spread(grad, GB_OP_index_add, 0, grad->attrs[0].integer, grad->saved[1], grad->out[0]);
}

/* source has x's shape, with one slice along dim per element of index. */
static gb_status index_add_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *index = call->in[1], *source = call->in[2];
  int dim;
  GB_TRY(dim_of(call, 0, x, &dim));
  GB_TRY(require_vector(call, 1, "index"));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  bool fits = source->ndim == x->ndim;
  for (int i = 0; fits && i < x->ndim; i++) fits = source->shape[i] == (i == dim ? index->numel : x->shape[i]);
  if (!fits || (x->ndim == 0 && index->numel != 1)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "source is %s, x %s, index has %" PRId64 " elements: source needs x's shape, with %" PRId64
                                         " in dimension %d",
                        gb_shape_text(source->ndim, source->shape, a, sizeof a), gb_shape_text(x->ndim, x->shape, b, sizeof b), index->numel,
                        index->numel, dim + 1);
  }
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

/* x passes its gradient on; source gets the slices it was added to. */
static gb_status index_add_gradient(gb_grad_call *grad) {
  if (grad->need[0]) pass_on(grad, 0);
  if (!grad->need[2]) return GB_OK;
  return gb_op_2(grad->context, GB_OP_index_select, grad->out[0], grad->saved[1], grad->attrs, &grad->in[2]);
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
static gb_status index_put_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *index = call->in[1], *source = call->in[2];
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  GB_TRY(gb_require_integer(call, 1));
  GB_TRY(gb_require_ndim(call, 1, 0, GB_MAX_NDIM - x->ndim + 1));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, source));
  GB_TRY(gb_require_input_fits(call, 2, (gb_dtype)x->dtype));
  int64_t shape[GB_MAX_NDIM], joint[GB_MAX_NDIM];
  int ndim = picked_shape(index, x->ndim, x->shape, shape), joint_ndim = ndim;
  memcpy(joint, shape, sizeof joint);
  if (!gb_broadcast(&joint_ndim, joint, source->ndim, source->shape) || joint_ndim != ndim || memcmp(joint, shape, (size_t)ndim * sizeof *shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "source is %s and does not broadcast to the %s elements that index picks",
                        gb_shape_text(source->ndim, source->shape, a, sizeof a), gb_shape_text(ndim, shape, b, sizeof b));
  }
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

/* For each of n index values (a vector), as a bool column [n, 1 ...] of `ndim` dims: a later one is equal, so this one was written over. */
static gb_status overwritten(gb_context *c, gb_tensor *index, int64_t rows, int ndim, gb_tensor **out) {
  gb_tensor *order = NULL, *table = NULL, *last = NULL, *winner = NULL, *flags = NULL;
  int64_t n = index->numel, column[GB_MAX_NDIM] = { n, 1, 1, 1, 1, 1, 1, 1 };
  gb_attr count[] = { gb_attr_num(0), gb_attr_num(1) }, dim = gb_attr_int(0), shape = gb_attr_ints(ndim, column);
  gb_status status = gb_tensor_new(c, GB_INT64, 1, &n, index->storage->device, &order);
  if (status == GB_OK) status = gb_apply_(c, GB_OP_sequence, &order, 1, count);
  if (status == GB_OK) status = zeros(c, order, 1, &rows, &table);
  if (status == GB_OK) status = gb_op_3(c, GB_OP_index_put, table, index, order, NULL, &last);
  if (status == GB_OK) status = gb_op_2(c, GB_OP_index_select, last, index, &dim, &winner);
  if (status == GB_OK) status = gb_op_2(c, GB_OP_ne, winner, order, NULL, &flags);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_reshape, flags, &shape, out);
  gb_drop(&flags), gb_drop(&winner), gb_drop(&last), gb_drop(&table), gb_drop(&order);
  return status;
}

/* The rows of g that index picks, zero where a later equal index wrote over them, summed to source's shape. */
static gb_status index_put_source_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *x = &grad->node->edges[0], *source = &grad->node->edges[2];
  gb_tensor *g = grad->out[0], *index = grad->saved[1], *flat = NULL, *rows = NULL, *mask = NULL, *kept = NULL, *block = NULL;
  int64_t picked[GB_MAX_NDIM];
  int ndim = picked_shape(index, x->ndim, x->shape, picked);
  gb_attr n = gb_attr_ints(1, &index->numel), dim = gb_attr_int(0), zero = gb_attr_num(0), shape = gb_attr_ints(ndim, picked);
  gb_status status = gb_op_1(c, GB_OP_reshape, index, &n, &flat);
  if (status == GB_OK) status = gb_op_2(c, GB_OP_index_select, g, flat, &dim, &rows);
  if (status == GB_OK) status = overwritten(c, flat, x->shape[0], x->ndim, &mask);
  if (status == GB_OK) status = gb_op_2(c, GB_OP_masked_fill, rows, mask, &zero, &kept);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_reshape, kept, &shape, &block);
  if (status == GB_OK) status = gb_sum_to(c, block, source->ndim, source->shape, &grad->in[2]);
  gb_drop(&block), gb_drop(&kept), gb_drop(&mask), gb_drop(&rows), gb_drop(&flat);
  return status;
}

/* x has no gradient where it was written over. */
static gb_status index_put_gradient(gb_grad_call *grad) {
  if (grad->need[0]) {
    gb_tensor *zero = NULL;
    GB_TRY(zeros(grad->context, grad->out[0], 0, grad->out[0]->shape, &zero));
    gb_status status = gb_op_3(grad->context, GB_OP_index_put, grad->out[0], grad->saved[1], zero, NULL, &grad->in[0]);
    gb_drop(&zero);
    GB_TRY(status);
  }
  return grad->need[2] ? index_put_source_gradient(grad) : GB_OK;
}

/* ====} */

/* {==== Masks: masked_select, masked_scatter, nonzero ==== */

/* x and mask broadcast together -> a vector of the elements where mask is true. */
static gb_status masked_select_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *mask = call->in[1];
  GB_TRY(require_bool(call, mask));
  int64_t shape[GB_MAX_NDIM], count = 0, copies = 1;
  int ndim = x->ndim;
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, mask->ndim, mask->shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "mask is %s and does not broadcast with x (%s)", gb_shape_text(mask->ndim, mask->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  }
  for (int i = 0; i < ndim; i++) copies *= shape[i];
  if (copies > 0) GB_TRY(count_nonzero(call, call->in[1], &count));
  count *= mask->numel ? copies / mask->numel : 0;
  return gb_call_output(call, 0, 1, &count, (gb_dtype)x->dtype);
}

/* grad at the places that were picked, zero elsewhere, in the broadcast shape; summed to x's. */
static gb_status masked_select_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *edge = &grad->node->edges[0];
  gb_tensor *mask = grad->saved[1], *zero = NULL, *placed = NULL;
  int64_t shape[GB_MAX_NDIM];
  int ndim = edge->ndim;
  memcpy(shape, edge->shape, sizeof shape);
  gb_broadcast(&ndim, shape, mask->ndim, mask->shape);
  GB_TRY(zeros(c, grad->out[0], ndim, shape, &zero));
  gb_status status = gb_op_3(c, GB_OP_masked_scatter, zero, mask, grad->out[0], NULL, &placed);
  if (status == GB_OK) status = gb_sum_to(c, placed, edge->ndim, edge->shape, &grad->in[0]);
  gb_drop(&placed), gb_drop(&zero);
  return status;
}

/* The kernel checks that source has enough elements, since it counts them anyway. */
static gb_status masked_scatter_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *mask = call->in[1];
  GB_TRY(require_bool(call, mask));
  GB_TRY(require_fits_dtype(call, (gb_dtype)x->dtype, call->in[2]));
  int64_t shape[GB_MAX_NDIM];
  int ndim = x->ndim;
  memcpy(shape, x->shape, sizeof shape);
  if (!gb_broadcast(&ndim, shape, mask->ndim, mask->shape) || ndim != x->ndim || memcmp(shape, x->shape, (size_t)ndim * sizeof *shape)) {
    char a[96], b[96];
    return gb_call_fail(call, GB_ESHAPE, "mask is %s and does not broadcast to x (%s)", gb_shape_text(mask->ndim, mask->shape, a, sizeof a),
                        gb_shape_text(x->ndim, x->shape, b, sizeof b));
  }
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

/* The elements that the mask took from source, in order; the rest of source gets zero. */
static gb_status masked_scatter_source_gradient(gb_grad_call *grad) {
  gb_context *c = grad->context;
  const gb_edge *source = &grad->node->edges[2];
  gb_tensor *used = NULL, *all = NULL;
  int64_t n = 1;
  for (int i = 0; i < source->ndim; i++) n *= source->shape[i];
  gb_attr shape = gb_attr_ints(source->ndim, source->shape);
  gb_status status = gb_op_2(c, GB_OP_masked_select, grad->out[0], grad->saved[1], NULL, &used);
  if (status == GB_OK) status = pad_to(c, used, 1, &n, &all);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_reshape, all, &shape, &grad->in[2]);
  gb_drop(&all), gb_drop(&used);
  return status;
}

/* x has no gradient where it was written over. */
static gb_status masked_scatter_gradient(gb_grad_call *grad) {
  gb_attr zero = gb_attr_num(0);
  if (grad->need[0]) GB_TRY(gb_op_2(grad->context, GB_OP_masked_fill, grad->out[0], grad->saved[1], &zero, &grad->in[0]));
  return grad->need[2] ? masked_scatter_source_gradient(grad) : GB_OK;
}

/* [count, ndim], so counting comes first. */
static gb_status nonzero_check(gb_call *call) {
  int64_t shape[2] = { 0, call->in[0]->ndim };
  if (call->in[0]->numel > 0) GB_TRY(count_nonzero(call, call->in[0], &shape[0]));
  return gb_call_output(call, 0, 2, shape, GB_INT64);
}

/* One more dimension, of `classes`. */
static gb_status one_hot_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  int64_t classes = call->attrs[0].integer, shape[GB_MAX_NDIM];
  GB_TRY(gb_require_integer(call, 0));
  GB_TRY(gb_require_ndim(call, 0, 0, GB_MAX_NDIM - 1));
  if (classes < 1) return gb_call_fail(call, GB_EINVAL, "classes is %" PRId64 "; it must be 1 or more", classes);
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim] = classes;
  return gb_call_output(call, 0, x->ndim + 1, shape, GB_INT64);
}

/* ====} */

/* {==== Order: topk, sort, flip ==== */

/* Two outputs: x with k along dim, and positions. */
static gb_status topk_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  int64_t k = call->attrs[0].integer, shape[GB_MAX_NDIM];
  int dim;
  GB_TRY(dim_of(call, 1, x, &dim));
  if (k < 0 || k > size_at(x, dim))
    return gb_call_fail(call, GB_EINVAL, "k is %" PRId64 ", dimension %d has %" PRId64 " elements", k, dim + 1, size_at(x, dim));
  memcpy(shape, x->shape, sizeof shape);
  if (x->ndim) shape[dim] = k;
  else if (k == 0) return gb_call_fail(call, GB_EINVAL, "k is 0, but a scalar has one element to take");
  GB_TRY(gb_call_output(call, 0, x->ndim, shape, (gb_dtype)x->dtype));
  return gb_call_output(call, 1, x->ndim, shape, GB_INT64);
}

/* Both outputs lie as x does, so that walking one walks all. */
static gb_status sort_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  int dim;
  GB_TRY(dim_of(call, 0, x, &dim));
  GB_TRY(gb_call_output_like(call, 0, x, (gb_dtype)x->dtype));
  return gb_call_output_like(call, 1, x, GB_INT64);
}

/* Each value's gradient goes back to the element it was. */
static gb_status topk_gradient(gb_grad_call *grad) {
  return spread(grad, GB_OP_scatter_add, 0, grad->attrs[1].integer, GB_SAVED_OUT(grad, 1), grad->out[0]);
}

static gb_status sort_gradient(gb_grad_call *grad) {
  return spread(grad, GB_OP_scatter_add, 0, grad->attrs[0].integer, GB_SAVED_OUT(grad, 1), grad->out[0]);
}

/* Each dim once. */
static gb_status flip_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  const gb_attr *dims = &call->attrs[0];
  bool seen[GB_MAX_NDIM] = { false };
  for (int i = 0; i < dims->count; i++) {
    int dim;
    GB_TRY(gb_call_dim(call, dims->ints[i], x->ndim ? x->ndim : 1, &dim));
    if (seen[dim]) return gb_call_fail(call, GB_EINVAL, "dimension %d is named twice", dim + 1);
    seen[dim] = true;
  }
  return gb_call_output_like(call, 0, x, (gb_dtype)x->dtype);
}

static gb_status flip_gradient(gb_grad_call *grad) { return gb_op_1(grad->context, GB_OP_flip, grad->out[0], grad->attrs, &grad->in[0]); }

/* ====} */

/* {==== Joining: cat, stack, repeat_interleave ==== */

/* Tensor i must have the shape of the first, but for `dim` (-1: no exception). */
static gb_status require_alike(gb_call *call, int i, int dim) {
  const gb_tensor *first = call->in[0], *t = call->in[i];
  bool fits = t->ndim == first->ndim;
  for (int d = 0; fits && d < t->ndim; d++) fits = d == dim || t->shape[d] == first->shape[d];
  if (fits) return GB_OK;
  char a[96], b[96];
  gb_shape_text(t->ndim, t->shape, a, sizeof a), gb_shape_text(first->ndim, first->shape, b, sizeof b);
  if (dim < 0) return gb_call_fail(call, GB_ESHAPE, "tensor %d is %s, tensor 1 is %s; all must have one shape", i + 1, a, b);
  return gb_call_fail(call, GB_ESHAPE, "tensor %d is %s, tensor 1 is %s; they may differ in dimension %d only", i + 1, a, b, dim + 1);
}

/* Sizes along dim add up; all others agree. */
static gb_status cat_check(gb_call *call) {
  const gb_tensor *first = call->in[0];
  int dim;
  if (first->ndim == 0) return gb_call_fail(call, GB_ESHAPE, "tensor 1 is a scalar and has no dimension to join along; use stack");
  GB_TRY(gb_call_dim(call, call->attrs[0].integer, first->ndim, &dim));
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, first->shape, sizeof shape);
  shape[dim] = 0;
  for (int i = 0; i < call->n_in; i++) {
    GB_TRY(require_alike(call, i, dim));
    shape[dim] += call->in[i]->shape[dim];
  }
  return gb_call_output(call, 0, first->ndim, shape, gb_result_type(call->in, call->n_in));
}

/* Each input gets its own stretch of the gradient, as a view. */
static gb_status cat_gradient(gb_grad_call *grad) {
  const gb_edge *edges = grad->node->edges;
  int64_t start = 0;
  int dim = (int)(grad->attrs[0].integer < 0 ? grad->attrs[0].integer + grad->out[0]->ndim : grad->attrs[0].integer);
  for (int i = 0; i < grad->n_in; i++) {
    gb_attr part[] = { gb_attr_int(dim), gb_attr_int(start), gb_attr_int(edges[i].shape[dim]) };
    if (grad->need[i]) GB_TRY(gb_op_1(grad->context, GB_OP_narrow, grad->out[0], part, &grad->in[i]));
    start += edges[i].shape[dim];
  }
  return GB_OK;
}

/* unsqueeze each, then cat. */
static gb_status stack_compose(gb_call *call) {
  int dim;
  GB_TRY(gb_require_ndim(call, 0, 0, GB_MAX_NDIM - 1));
  GB_TRY(gb_call_dim(call, call->attrs[0].integer, call->in[0]->ndim + 1, &dim));
  for (int i = 0; i < call->n_in; i++) GB_TRY(require_alike(call, i, -1));
  gb_tensor **parts = calloc((size_t)call->n_in, sizeof *parts);
  if (!parts) return gb_fail_memory(call->context, (size_t)call->n_in * sizeof *parts);
  gb_attr at = gb_attr_int(dim);
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < call->n_in; i++) status = gb_op_1(call->context, GB_OP_unsqueeze, call->in[i], &at, &parts[i]);
  if (status == GB_OK) status = gb_apply(call->context, GB_OP_cat, parts, call->n_in, &at, &call->out[0]);
  for (int i = 0; i < call->n_in; i++) gb_drop(&parts[i]);
  free(parts);
  return status;
}

/* A new dimension after dim, expanded, then merged into dim. */
static gb_status repeat_interleave_compose(gb_call *call) {
  gb_context *c = call->context;
  gb_tensor *x = call->in[0], *apart = NULL, *wide = NULL;
  int64_t repeats = call->attrs[0].integer, shape[GB_MAX_NDIM + 1];
  int dim;
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM - 1));
  GB_TRY(gb_call_dim(call, call->attrs[1].integer, x->ndim, &dim));
  if (repeats < 0) return gb_call_fail(call, GB_EINVAL, "repeats is %" PRId64 "; it must be 0 or more", repeats);
  for (int i = 0; i <= x->ndim; i++) shape[i] = i <= dim ? x->shape[i] : i == dim + 1 ? repeats : x->shape[i - 1];
  gb_attr at = gb_attr_int(dim + 1), size = gb_attr_ints(x->ndim + 1, shape), merge[] = { gb_attr_int(dim), gb_attr_int(dim + 1) };
  gb_status status = gb_op_1(c, GB_OP_unsqueeze, x, &at, &apart);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_expand, apart, &size, &wide);
  if (status == GB_OK) status = gb_op_1(c, GB_OP_flatten, wide, merge, &call->out[0]);
  gb_drop(&wide), gb_drop(&apart);
  return status;
}

/* ====} */

enum { IN1 = 1u << 1, OUT1 = 1u << 1 }; /* the index or mask; the indices of topk and sort */

const gb_op_impl gb_family_index[] = {
  { .op = GB_OP_embedding, .check = embedding_check, .gradient = embedding_gradient, .save_in = 1u << 0 },
  { .op = GB_OP_embedding_backward, .check = embedding_backward_check },
  { .op = GB_OP_gather, .check = gather_check, .gradient = gather_gradient, .save_in = IN1 },
  { .op = GB_OP_scatter_add, .check = scatter_add_check, .gradient = scatter_add_gradient, .save_in = IN1 },
  { .op = GB_OP_index_select, .check = index_select_check, .gradient = index_select_gradient, .save_in = IN1 },
  { .op = GB_OP_index_add, .check = index_add_check, .gradient = index_add_gradient, .save_in = IN1 },
  { .op = GB_OP_index_put, .check = index_put_check, .gradient = index_put_gradient, .save_in = IN1 },
  { .op = GB_OP_masked_select, .check = masked_select_check, .gradient = masked_select_gradient, .save_in = IN1 },
  { .op = GB_OP_masked_scatter, .check = masked_scatter_check, .gradient = masked_scatter_gradient, .save_in = IN1 },
  { .op = GB_OP_nonzero, .check = nonzero_check },
  { .op = GB_OP_one_hot, .check = one_hot_check },
  { .op = GB_OP_topk, .check = topk_check, .gradient = topk_gradient, .save_out = OUT1 },
  { .op = GB_OP_sort, .check = sort_check, .gradient = sort_gradient, .save_out = OUT1 },
  { .op = GB_OP_cat, .check = cat_check, .gradient = cat_gradient },
  { .op = GB_OP_stack, .compose = stack_compose },
  { .op = GB_OP_flip, .check = flip_check, .gradient = flip_gradient },
  { .op = GB_OP_repeat_interleave, .compose = repeat_interleave_compose },
  { .op = GB_OP_COUNT },
};
