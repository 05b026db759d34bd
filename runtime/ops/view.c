/* ops/view.c - views: other shapes, strides and offsets over the same storage.
 *
 * A view is computed on a `layout` by one function, which the check runs on x's layout and, where a gradient has to
 * know which elements the view took, the gradient runs on a row-major layout of x's shape. reshape and flatten take a
 * view where there is one, otherwise they copy. as_strided keeps no trace of x's own strides, so under gradients it
 * wants x row-major from the start of its storage. */
#include <inttypes.h>
#include <string.h>

#include "base/strides.h"
#include "graph/ops.h"

/* {==== Layouts ==== */

typedef struct layout {
  int ndim;
  int64_t shape[GB_MAX_NDIM], stride[GB_MAX_NDIM], offset;
} layout;

/* Change a layout as call->attrs say. */
typedef gb_status (*layout_fn)(gb_op_call *call, layout *l);

/* Where x lies. */
static layout layout_of(const gb_tensor *x) {
  layout l = { .ndim = x->ndim, .offset = x->offset };
  memcpy(l.shape, x->shape, sizeof l.shape);
  memcpy(l.stride, x->stride, sizeof l.stride);
  return l;
}

/* A position as Lua writes it; the largest one, which no tensor has, stays as it is. */
static int64_t in_lua(int64_t position) { return position >= 0 && position < INT64_MAX ? position + 1 : position; }

/* Take a dimension away. */
static void drop_dim(layout *l, int dim) {
  l->ndim--;
  for (int i = dim; i < l->ndim; i++) l->shape[i] = l->shape[i + 1], l->stride[i] = l->stride[i + 1];
}

/* Insert a dimension before `dim`, or at the end. */
static gb_status insert_dim(gb_op_call *call, layout *l, int dim, int64_t size, int64_t stride) {
  if (l->ndim == GB_MAX_NDIM)
    return gb_call_fail(call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
  for (int i = l->ndim++; i > dim; i--) l->shape[i] = l->shape[i - 1], l->stride[i] = l->stride[i - 1];
  l->shape[dim] = size, l->stride[dim] = stride;
  return GB_OK;
}

/* A call's only input and its only output, which every row here has. */
static gb_tensor *only(const gb_op_call *call) { return GB_IN(call, view)->x; }
static gb_tensor **result(gb_op_call *call) { return &GB_OUT(call, view)->y; }

/* The op's view of its input. */
static gb_status view_by(gb_op_call *call, layout_fn change) {
  gb_tensor *x = only(call);
  layout l = layout_of(x);
  GB_TRY(change(call, &l));
  return gb_tensor_view(x, l.ndim, l.shape, l.stride, l.offset, result(call));
}

/* The same of a gradient: of the result, of the input, and the input's shape. */
static gb_tensor *g_of(const gb_grad_call *grad) { return GB_GRAD_OUT(grad, view)->y; }
static gb_tensor **dx_of(gb_grad_call *grad) { return &GB_GRAD_IN(grad, view)->x; }
static const gb_edge *edge_of(const gb_grad_call *grad) { return GB_EDGE(grad, view, x); }

/* Add grad at the view's place to the sum that it belongs to, with nothing made for the elements beside it. *done:
 * there is such a sum. */
static gb_status add_in_place(gb_grad_call *grad, const layout *view, bool *done) {
  gb_tensor *g = g_of(grad), *part;
  bool holds = false;
  gb_tensor *sum = grad->accumulator ? grad->accumulator(grad, GB_IN_AT(view, x), &holds) : NULL;
  *done = sum && holds && sum->dtype == g->dtype && sum->storage != g->storage &&
      gb_is_disjoint(view->ndim, view->shape, view->stride);
  if (!*done) return GB_OK;
  GB_TRY(gb_tensor_view(sum, view->ndim, view->shape, view->stride, sum->offset + view->offset, &part));
  gb_status status = GB_RUN(grad->context, add, NULL, .x = part, .y = g);
  gb_tensor_release(part);
  grad->settled |= GB_SAVE_IN(view, x);
  return status;
}

/* Put grad beside the gradients of x's other parts, if it is one of a part and nothing else has arrived for x. */
static gb_status put_beside(gb_grad_call *grad, const layout *view, bool *done) {
  gb_part part = { .ndim = view->ndim, .shape = view->shape, .strides = view->stride, .offset = view->offset };
  *done = false;
  if (grad->take_part) GB_TRY(grad->take_part(grad, GB_IN_AT(view, x), &part, g_of(grad), done));
  if (*done) grad->settled |= GB_SAVE_IN(view, x);
  return GB_OK;
}

/* Put grad where the view lies in a row-major x: beside other parts, or into a sum; else in a zero tensor of its
 * shape. */
static gb_status put_back(gb_grad_call *grad, const layout *view) {
  const gb_edge *edge = edge_of(grad);
  bool done;
  GB_TRY(put_beside(grad, view, &done));
  if (!done) GB_TRY(add_in_place(grad, view, &done));
  if (done) return GB_OK;
  int64_t strides[GB_MAX_NDIM];
  gb_contiguous_strides(edge->ndim, edge->shape, strides);
  return GB_RUN(grad->context, as_strided_backward, dx_of(grad), .grad = g_of(grad),
                .shape = gb_attr_ints(edge->ndim, edge->shape), .strides = gb_attr_ints(edge->ndim, strides),
                .view_shape = gb_attr_ints(view->ndim, view->shape),
                .view_strides = gb_attr_ints(view->ndim, view->stride), .view_offset = gb_attr_int(view->offset));
}

/* The gradient of a view that takes some of x's elements: what it took, computed again on a row-major x. */
static gb_status taken_gradient(gb_grad_call *grad, layout_fn change) {
  const gb_edge *edge = edge_of(grad);
  layout l = { .ndim = edge->ndim };
  memcpy(l.shape, edge->shape, sizeof l.shape);
  gb_contiguous_strides(l.ndim, l.shape, l.stride);
  gb_op_call call = { .context = grad->context, .op = (gb_op)grad->node->op,
                   .info = gb_op_get(grad->context, grad->node->op), .attrs = grad->attrs };
  GB_TRY(change(&call, &l));
  return put_back(grad, &l);
}

/* The gradient of a view that has all of x's elements in order: x's shape again. */
static gb_status reshape_gradient(gb_grad_call *grad) {
  const gb_edge *edge = edge_of(grad);
  return GB_RUN(grad->context, reshape, dx_of(grad), .x = g_of(grad), .shape = gb_attr_ints(edge->ndim, edge->shape));
}

/* ====} */

/* {==== Other shapes of all elements: view, reshape, flatten, unflatten, squeeze, unsqueeze ==== */

/* Fill in the one -1 of wanted. false: the sizes do not multiply to numel, or the -1 could be anything. */
static bool infer_shape(int64_t numel, int count, const int64_t *wanted, int64_t *shape) {
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < count; i++) {
    shape[i] = wanted[i];
    if (wanted[i] == -1 && unknown < 0) unknown = i;
    else if (wanted[i] < 0 || __builtin_mul_overflow(known, wanted[i], &known)) return false;
  }
  if (unknown < 0) return known == numel;
  if (known == 0 || numel % known) return false;
  shape[unknown] = numel / known;
  return true;
}

/* The shape that view or reshape asks for, its -1 filled in. */
static gb_status wanted_shape(gb_op_call *call, const gb_attr *wanted, int64_t *shape) {
  const gb_tensor *x = only(call);
  if (infer_shape(x->numel, wanted->count, wanted->ints, shape)) return GB_OK;
  char from[96], to[96];
  return gb_call_fail(call, GB_ESHAPE, "x (%s, %" PRId64 " elements) cannot take the shape %s: its sizes must "
                                                         "multiply to %" PRId64 "; one may be -1",
                      gb_shape_text(x->ndim, x->shape, from, sizeof from), x->numel,
                          gb_shape_text(wanted->count, wanted->ints, to, sizeof to),
                      x->numel);
}

/* Strides for `shape` over the elements of x in order, or false where no strides can express it. PyTorch's rule: the
 * dims of x fall into chunks that are one run of memory each, and every dim of the new shape must lie inside one chunk.
 * Dims of size 1 say nothing. */
static bool view_strides(const gb_tensor *x, int ndim, const int64_t *shape, int64_t *strides) {
  layout l = layout_of(x);
  for (int i = l.ndim - 1; i >= 0; i--)
    if (l.shape[i] == 1) drop_dim(&l, i);
  if (x->numel == 0 || l.ndim == 0) {
    gb_contiguous_strides(ndim, shape, strides);
    return true;
  }
  int to = ndim - 1;
  int64_t base = l.stride[l.ndim - 1], have = 1, made = 1;
  for (int from = l.ndim - 1; from >= 0; from--) {
    have *= l.shape[from];
    if (from > 0 && l.stride[from - 1] == have * base) continue; /* the chunk goes on */
    for (; to >= 0 && (made < have || shape[to] == 1); to--) {
      strides[to] = made * base;
      made *= shape[to];
    }
    if (made != have) return false;
    if (from > 0) base = l.stride[from - 1], have = made = 1;
  }
  return to < 0;
}

/* Strict: a view or an error, never a copy. */
static gb_status view_check(gb_op_call *call) {
  gb_tensor *x = only(call);
  const gb_attr *wanted = &GB_ATTRS(call, view)->shape;
  int ndim = wanted->count;
  int64_t shape[GB_MAX_NDIM], strides[GB_MAX_NDIM];
  GB_TRY(wanted_shape(call, wanted, shape));
  if (view_strides(x, ndim, shape, strides))
    return gb_tensor_view(x, ndim, shape, strides, x->offset, result(call));
  char from[96], to[96];
  return gb_call_fail(call, GB_ESHAPE, "no view of x (%s, not contiguous in memory) has the shape %s; use reshape, "
                                       "which copies where it must",
                      gb_shape_text(x->ndim, x->shape, from, sizeof from), gb_shape_text(ndim, shape, to, sizeof to));
}

/* A view where strides can express it, otherwise a view of a row-major copy. */
static gb_status reshape_compose(gb_op_call *call) {
  const gb_attr *wanted = &GB_ATTRS(call, reshape)->shape;
  int ndim = wanted->count;
  gb_tensor *x = only(call), *packed = NULL;
  int64_t shape[GB_MAX_NDIM], strides[GB_MAX_NDIM];
  GB_TRY(wanted_shape(call, wanted, shape));
  gb_attr full = gb_attr_ints(ndim, shape);
  if (view_strides(x, ndim, shape, strides)) return GB_RUN(call->context, view, result(call), .x = x, .shape = full);
  GB_TRY(gb_op_contiguous(call->context, x, &packed));
  gb_status status = GB_RUN(call->context, view, result(call), .x = packed, .shape = full);
  gb_drop(&packed);
  return status;
}

/* Merge dims first .. last; a scalar becomes a vector. */
static gb_status flatten_compose(gb_op_call *call) {
  gb_tensor *x = only(call);
  const gb_attrs_flatten *attrs = GB_ATTRS(call, flatten);
  int first, last, n = 0, ndim = x->ndim ? x->ndim : 1;
  GB_TRY(gb_call_dim(call, attrs->first.integer, ndim, &first));
  GB_TRY(gb_call_dim(call, attrs->last.integer, ndim, &last));
  if (last < first)
    return gb_call_fail(call, GB_EINVAL, "the last dimension %d comes before the first one, %d", last + 1, first + 1);
  int64_t shape[GB_MAX_NDIM] = { 1 };
  for (int i = 0; i < x->ndim; i++) {
    if (i > first && i <= last) shape[n - 1] *= x->shape[i];
    else shape[n++] = x->shape[i];
  }
  return GB_RUN(call->context, reshape, result(call), .x = x, .shape = gb_attr_ints(n ? n : 1, shape));
}

/* Split a dim: the last part keeps its stride, each other one steps over those after it. */
static gb_status unflatten_layout(gb_op_call *call, layout *l) {
  const gb_attrs_unflatten *attrs = GB_ATTRS(call, unflatten);
  const gb_attr *wanted = &attrs->shape;
  int dim;
  int64_t shape[GB_MAX_NDIM];
  GB_TRY(gb_call_dim(call, attrs->dim.integer, l->ndim, &dim));
  int64_t size = l->shape[dim], stride = l->stride[dim];
  if (wanted->count == 0 || !infer_shape(size, wanted->count, wanted->ints, shape)) {
    char to[96];
    return gb_call_fail(call, GB_ESHAPE, "dimension %d of size %" PRId64 " cannot become %s: the sizes must "
                                                                         "multiply to %" PRId64 "; one may be -1",
                        dim + 1, size, gb_shape_text(wanted->count, wanted->ints, to, sizeof to), size);
  }
  drop_dim(l, dim);
  for (int i = wanted->count - 1; i >= 0; i--) {
    GB_TRY(insert_dim(call, l, dim, shape[i], stride));
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return GB_OK;
}

static gb_status unflatten_check(gb_op_call *call) { return view_by(call, unflatten_layout); }

/* Named dims of another size than 1 stay, as in PyTorch. */
static gb_status squeeze_layout(gb_op_call *call, layout *l) {
  const gb_attr *dims = &GB_ATTRS(call, squeeze)->dim;
  bool named[GB_MAX_NDIM] = { false };
  for (int i = 0; dims->given && i < dims->count; i++) {
    int dim;
    GB_TRY(gb_call_dim(call, dims->ints[i], l->ndim ? l->ndim : 1, &dim));
    named[dim] = true;
  }
  for (int i = l->ndim - 1; i >= 0; i--)
    if (l->shape[i] == 1 && (named[i] || !dims->given)) drop_dim(l, i);
  return GB_OK;
}

static gb_status squeeze_check(gb_op_call *call) { return view_by(call, squeeze_layout); }

/* The new dim steps over what lies from there on, so a contiguous x stays contiguous. */
static gb_status unsqueeze_layout(gb_op_call *call, layout *l) {
  int dim;
  GB_TRY(gb_call_dim(call, GB_ATTRS(call, unsqueeze)->dim.integer, l->ndim + 1, &dim));
  return insert_dim(call, l, dim, 1, dim < l->ndim ? l->shape[dim] * l->stride[dim] : 1);
}

static gb_status unsqueeze_check(gb_op_call *call) { return view_by(call, unsqueeze_layout); }

/* ====} */

/* {==== Other orders: transpose, permute, t ==== */

/* Exchange two dims. */
static gb_status transpose_layout(gb_op_call *call, layout *l) {
  int a, b;
  const gb_attrs_transpose *attrs = GB_ATTRS(call, transpose);
  GB_TRY(gb_call_dim(call, attrs->first.integer, l->ndim ? l->ndim : 1, &a));
  GB_TRY(gb_call_dim(call, attrs->second.integer, l->ndim ? l->ndim : 1, &b));
  int64_t shape = l->shape[a], stride = l->stride[a];
  l->shape[a] = l->shape[b], l->stride[a] = l->stride[b];
  l->shape[b] = shape, l->stride[b] = stride;
  return GB_OK;
}

static gb_status transpose_check(gb_op_call *call) { return view_by(call, transpose_layout); }

static gb_status transpose_gradient(gb_grad_call *grad) {
  const gb_attrs_transpose *attrs = GB_ATTRS(grad, transpose);
  return GB_RUN(grad->context, transpose, dx_of(grad), .x = g_of(grad), .first = attrs->first, .second = attrs->second);
}

/* The dims that permute lists, from 0, each of them once. */
static gb_status permutation(gb_op_call *call, int ndim, int *order) {
  const gb_attr *dims = &GB_ATTRS(call, permute)->dims;
  if (dims->count != ndim)
    return gb_call_fail(call, GB_EINVAL, "x has %d dimensions, %d are listed; name each of them once", ndim,
                        (int)dims->count);
  bool seen[GB_MAX_NDIM] = { false };
  for (int i = 0; i < ndim; i++) {
    GB_TRY(gb_call_dim(call, dims->ints[i], ndim, &order[i]));
    if (seen[order[i]])
      return gb_call_fail(call, GB_EINVAL, "dimension %d is listed twice; name each of them once", order[i] + 1);
    seen[order[i]] = true;
  }
  return GB_OK;
}

/* Dim i of the view is the i-th that was listed. */
static gb_status permute_layout(gb_op_call *call, layout *l) {
  layout from = *l;
  int order[GB_MAX_NDIM];
  GB_TRY(permutation(call, l->ndim, order));
  for (int i = 0; i < l->ndim; i++) l->shape[i] = from.shape[order[i]], l->stride[i] = from.stride[order[i]];
  return GB_OK;
}

static gb_status permute_check(gb_op_call *call) { return view_by(call, permute_layout); }

/* The inverse permutation. */
static gb_status permute_gradient(gb_grad_call *grad) {
  const gb_attr *dims = &GB_ATTRS(grad, permute)->dims;
  int64_t inverse[GB_MAX_NDIM];
  for (int i = 0; i < dims->count; i++) inverse[dims->ints[i] < 0 ? dims->ints[i] + dims->count : dims->ints[i]] = i;
  return GB_RUN(grad->context, permute, dx_of(grad), .x = g_of(grad), .dims = gb_attr_ints(dims->count, inverse));
}

/* Transpose a matrix; scalars and vectors stay as they are. */
static gb_status t_layout(gb_op_call *call, layout *l) {
  char text[96];
  if (l->ndim > 2)
    return gb_call_fail(call, GB_ESHAPE, "x (%s) is no matrix; use transpose(first, second)",
                        gb_shape_text(l->ndim, l->shape, text, sizeof text));
  if (l->ndim < 2) return GB_OK;
  layout from = *l;
  for (int i = 0; i < 2; i++) l->shape[i] = from.shape[1 - i], l->stride[i] = from.stride[1 - i];
  return GB_OK;
}

static gb_status t_check(gb_op_call *call) { return view_by(call, t_layout); }
static gb_status t_gradient(gb_grad_call *grad) { return GB_RUN(grad->context, t, dx_of(grad), .x = g_of(grad)); }

/* ====} */

/* {==== Repeated elements: expand ==== */

/* New dims and dims of size 1 get a stride of 0. */
static gb_status expand_layout(gb_op_call *call, layout *l) {
  const gb_attr *wanted = &GB_ATTRS(call, expand)->shape;
  layout from = *l;
  char has[96], wants[96];
  int added = wanted->count - from.ndim;
  bool fits = added >= 0;
  l->ndim = wanted->count;
  for (int i = 0; fits && i < l->ndim; i++) {
    int64_t size = wanted->ints[i], own = i < added ? 1 : from.shape[i - added];
    if (size == -1 && i >= added) size = own;
    fits = size >= 0 && (own == size || own == 1);
    l->shape[i] = size;
    l->stride[i] = i < added || own != size ? 0 : from.stride[i - added];
  }
  if (fits) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x (%s) does not expand to %s: dimensions are matched from the last, and "
                                       "only a size of 1 repeats",
                      gb_shape_text(from.ndim, from.shape, has, sizeof has),
                          gb_shape_text(wanted->count, wanted->ints, wants, sizeof wants));
}

static gb_status expand_check(gb_op_call *call) { return view_by(call, expand_layout); }

/* What was repeated adds up. */
static gb_status expand_gradient(gb_grad_call *grad) {
  const gb_edge *edge = edge_of(grad);
  return gb_sum_to(grad->context, g_of(grad), edge->ndim, edge->shape, dx_of(grad));
}

/* ====} */

/* {==== Some of the elements: narrow, select, slice, diagonal ==== */

/* Turn a position along dim into one from 0, or fail in Lua's counting. */
static gb_status position_in(gb_op_call *call, int64_t position, int dim, int64_t size, int64_t *out) {
  *out = position < 0 ? position + size : position;
  if (*out >= 0 && *out < size) return GB_OK;
  return gb_call_fail(call, GB_EINDEX,
                  "position %" PRId64 " is out of range: dimension %d has size %" PRId64 "; positions are 1 .. %" PRId64
                                       ", or -1 for the last", in_lua(position), dim + 1, size, size);
}

/* The dim that positions are taken along; a 0-d tensor has none. */
static gb_status taken_dim(gb_op_call *call, const gb_attr *named, const layout *l, int *dim) {
  if (l->ndim == 0)
    return gb_call_fail(call, GB_ESHAPE, "x is a scalar (0 dimensions) and has no positions; use item()");
  return gb_call_dim(call, named->integer, l->ndim, dim);
}

/* length positions from start; a start right behind the last one is fine when length is 0. */
static gb_status narrow_layout(gb_op_call *call, layout *l) {
  const gb_attrs_narrow *attrs = GB_ATTRS(call, narrow);
  int dim;
  GB_TRY(taken_dim(call, &attrs->dim, l, &dim));
  int64_t wanted = attrs->start.integer, length = attrs->length.integer, size = l->shape[dim];
  int64_t start = wanted < 0 ? wanted + size : wanted;
  if (start < 0 || length < 0 || start > size || length > size - start)
    return gb_call_fail(call, GB_EINDEX,
                        "%" PRId64 " positions from position %" PRId64 " do not lie in dimension %d of size %" PRId64,
        length,
                        in_lua(wanted), dim + 1, size);
  l->shape[dim] = length;
  l->offset += start * l->stride[dim];
  return GB_OK;
}

static gb_status narrow_check(gb_op_call *call) { return view_by(call, narrow_layout); }
static gb_status narrow_gradient(gb_grad_call *grad) { return taken_gradient(grad, narrow_layout); }

/* One position; its dim goes. */
static gb_status select_layout(gb_op_call *call, layout *l) {
  const gb_attrs_select *attrs = GB_ATTRS(call, select);
  int dim;
  int64_t position;
  GB_TRY(taken_dim(call, &attrs->dim, l, &dim));
  GB_TRY(position_in(call, attrs->position.integer, dim, l->shape[dim], &position));
  l->offset += position * l->stride[dim];
  drop_dim(l, dim);
  return GB_OK;
}

static gb_status select_check(gb_op_call *call) { return view_by(call, select_layout); }
static gb_status select_gradient(gb_grad_call *grad) { return taken_gradient(grad, select_layout); }

/* Both ends are included; an end just before the start (or a whole dimension of size 0) takes nothing. */
static gb_status slice_layout(gb_op_call *call, layout *l) {
  const gb_attrs_slice *attrs = GB_ATTRS(call, slice);
  int dim;
  GB_TRY(taken_dim(call, &attrs->dim, l, &dim));
  int64_t size = l->shape[dim], step = attrs->step.integer, first = attrs->first.integer, last = attrs->last.integer;
  int64_t from = first < 0 ? first + size : first, to = last < 0 ? last + size : last;
  if (from >= 0 && from <= size && to == from - 1) {
    l->shape[dim] = 0;
    return GB_OK;
  }
  GB_TRY(position_in(call, first, dim, size, &from));
  GB_TRY(position_in(call, last, dim, size, &to));
  if (to < from)
    return gb_call_fail(call, GB_EINDEX,
             "the last position %" PRId64 " comes before the first one, %" PRId64 " (dimension %d of size %" PRId64 ")",
                        in_lua(last), in_lua(first), dim + 1, size);
  l->shape[dim] = (to - from) / step + 1;
  l->offset += from * l->stride[dim];
  l->stride[dim] *= step;
  return GB_OK;
}

static gb_status slice_check(gb_op_call *call) { return view_by(call, slice_layout); }
static gb_status slice_gradient(gb_grad_call *grad) { return taken_gradient(grad, slice_layout); }

/* Windows along dim: a new last dim that steps as dim did, which now steps from window to window. */
static gb_status unfold_layout(gb_op_call *call, layout *l) {
  const gb_attrs_unfold *attrs = GB_ATTRS(call, unfold);
  int64_t window = attrs->size.integer, step = attrs->step.integer;
  int dim;
  GB_TRY(taken_dim(call, &attrs->dim, l, &dim));
  int64_t size = l->shape[dim], stride = l->stride[dim], apart;
  if (window > size)
    return gb_call_fail(call, GB_EINDEX, "windows of %" PRId64 " positions do not lie in dimension %d of size %" PRId64,
                        window,
                        dim + 1, size);
  int64_t count = (size - window) / step + 1;
  if (count == 1 || __builtin_mul_overflow(stride, step, &apart)) apart = stride; /* one window steps nowhere */
  l->shape[dim] = count;
  l->stride[dim] = apart;
  return insert_dim(call, l, l->ndim, window, stride);
}

static gb_status unfold_check(gb_op_call *call) { return view_by(call, unfold_layout); }
static gb_status unfold_gradient(gb_grad_call *grad) { return taken_gradient(grad, unfold_layout); }

/* Along a diagonal both dims step together; offset above 0 starts to the right, below 0 further down. */
static gb_status diagonal_layout(gb_op_call *call, layout *l) {
  const gb_attrs_diagonal *attrs = GB_ATTRS(call, diagonal);
  int64_t offset = attrs->offset.integer;
  int first, second;
  if (l->ndim < 2)
    return gb_call_fail(call, GB_ESHAPE, "x has %d dimension%s; a diagonal needs two", l->ndim,
                        l->ndim == 1 ? "" : "s");
  GB_TRY(gb_call_dim(call, attrs->first.integer, l->ndim, &first));
  GB_TRY(gb_call_dim(call, attrs->second.integer, l->ndim, &second));
  if (first == second)
    return gb_call_fail(call, GB_EINVAL, "dimension %d is named twice; a diagonal needs two different ones", first + 1);
  if (offset < -l->shape[first]) offset = -l->shape[first]; /* a diagonal beyond the corner is empty, however far */
  if (offset > l->shape[second]) offset = l->shape[second];
  int64_t down = offset < 0 ? -offset : 0, right = offset > 0 ? offset : 0;
  int64_t rows = l->shape[first] - down, columns = l->shape[second] - right, size = rows < columns ? rows : columns;
  int64_t stride = l->stride[first] + l->stride[second];
  if (size > 0) l->offset += down * l->stride[first] + right * l->stride[second];
  drop_dim(l, first > second ? first : second);
  drop_dim(l, first > second ? second : first);
  return insert_dim(call, l, l->ndim, size > 0 ? size : 0, stride);
}

static gb_status diagonal_check(gb_op_call *call) { return view_by(call, diagonal_layout); }
static gb_status diagonal_gradient(gb_grad_call *grad) { return taken_gradient(grad, diagonal_layout); }

/* ====} */

/* {==== Any strides: as_strided and the op that undoes it ==== */

/* A layout from what attributes say of it, or an error where it is no layout or leaves 0 .. elements - 1. */
static gb_status strided_layout(gb_op_call *call, const gb_attr *shape, const gb_attr *strides, int64_t offset,
                                int64_t elements, layout *l) {
  if (shape->count != strides->count)
    return gb_call_fail(call, GB_EINVAL, "%d sizes but %d strides", (int)shape->count, (int)strides->count);
  *l = (layout){ .ndim = shape->count, .offset = offset };
  int64_t last = l->offset, span;
  bool fits = l->offset >= 0, empty = false;
  for (int i = 0; i < l->ndim; i++) {
    l->shape[i] = shape->ints[i], l->stride[i] = strides->ints[i];
    if (l->shape[i] < 0 || l->stride[i] < 0)
      return gb_call_fail(call, GB_EINVAL, "sizes and strides are 0 or more (dimension %d)", i + 1);
    empty |= l->shape[i] == 0;
    if (__builtin_mul_overflow(l->shape[i] > 0 ? l->shape[i] - 1 : 0, l->stride[i], &span) ||
        __builtin_add_overflow(last, span, &last)) fits = false;
  }
  if (empty) l->offset = 0; /* it reaches nothing, wherever it begins */
  if (empty || (fits && last < elements)) return GB_OK;
  return gb_call_fail(call, GB_EINDEX, "the view reaches past the %" PRId64 " elements that are there", elements);
}

/* Any view that stays inside the storage. */
static gb_status as_strided_check(gb_op_call *call) {
  gb_tensor *x = only(call);
  const gb_attrs_as_strided *attrs = GB_ATTRS(call, as_strided);
  int64_t elements = (int64_t)(x->storage->bytes / gb_dtype_bytes((gb_dtype)x->dtype));
  layout l;
  GB_TRY(strided_layout(call, &attrs->shape, &attrs->strides, attrs->offset.integer, elements, &l));
  if (call->needs_grad && (x->offset != 0 || !gb_is_contiguous(x)))
    return gb_call_fail(call, GB_EAUTOGRAD, "the gradient needs an x that is contiguous from the start of its "
                                            "storage; use contiguous() or clone()");
  return gb_tensor_view(x, l.ndim, l.shape, l.stride, l.offset, result(call));
}

/* Where the view lies in a row-major x: the attributes themselves, by what the check demanded. */
static gb_status as_strided_gradient(gb_grad_call *grad) {
  const gb_attrs_as_strided *attrs = GB_ATTRS(grad, as_strided);
  layout l = { .ndim = attrs->shape.count, .offset = attrs->offset.integer };
  memcpy(l.shape, attrs->shape.ints, sizeof l.shape);
  memcpy(l.stride, attrs->strides.ints, sizeof l.stride);
  return put_back(grad, &l);
}

/* grad has view_shape; the result has shape and strides, which must be dense. */
static gb_status as_strided_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, as_strided_backward)->grad;
  const gb_attrs_as_strided_backward *attrs = GB_ATTRS(call, as_strided_backward);
  const gb_attr *shape = &attrs->shape, *strides = &attrs->strides;
  GB_TRY(gb_require_float(call, GB_IN_AT(as_strided_backward, grad)));
  if (shape->count != strides->count)
    return gb_call_fail(call, GB_EINVAL, "%d sizes but %d strides", (int)shape->count, (int)strides->count);
  size_t bytes;
  GB_TRY(gb_shape_bytes(call->context, (gb_dtype)grad->dtype, shape->count, shape->ints, &bytes));
  gb_tensor dense = { .ndim = shape->count, .numel = 1 };
  for (int i = 0; i < shape->count; i++)
    dense.numel *= dense.shape[i] = shape->ints[i], dense.stride[i] = strides->ints[i];
  if (!gb_is_dense(&dense)) return gb_call_fail(call, GB_EINVAL, "the strides of the result are not dense");
  layout l;
  GB_TRY(strided_layout(call, &attrs->view_shape, &attrs->view_strides, attrs->view_offset.integer, dense.numel, &l));
  if (l.ndim != grad->ndim || memcmp(l.shape, grad->shape, (size_t)l.ndim * sizeof *l.shape)) {
    char has[96], wants[96];
    return gb_call_fail(call, GB_ESHAPE, "grad is %s, the view %s",
                        gb_shape_text(grad->ndim, grad->shape, has, sizeof has),
                        gb_shape_text(l.ndim, l.shape, wants, sizeof wants));
  }
  return gb_call_output_strided(call, GB_OUT_AT(as_strided_backward, dx), shape->count, shape->ints, strides->ints,
                                (gb_dtype)grad->dtype);
}

/* The dims of dense strides from the outermost in memory to the innermost. */
static void dims_by_stride(int ndim, const int64_t *strides, int64_t *order) {
  for (int i = 0; i < ndim; i++) {
    int at = i;
    for (; at > 0 && strides[order[at - 1]] < strides[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
}

/* x's elements in memory of their own where its dims lie in `order`, from the start of the storage. */
static gb_status pack(gb_context *c, gb_tensor *x, int ndim, const int64_t *order, gb_tensor **out) {
  gb_tensor *turned = NULL;
  GB_TRY(GB_RUN(c, permute, &turned, .x = x, .dims = gb_attr_ints(ndim, order)));
  gb_status status = gb_op_contiguous(c, turned, out);
  gb_drop(&turned);
  if (status != GB_OK || (*out)->offset == 0) return status;
  gb_tensor *packed = *out;
  *out = NULL;
  status = GB_RUN(c, clone, out, .x = packed);
  gb_drop(&packed);
  return status;
}

/* What the view takes of a tensor that lies as the result did. */
static gb_status as_strided_backward_gradient(gb_grad_call *grad) {
  const gb_attrs_as_strided_backward *attrs = GB_ATTRS(grad, as_strided_backward);
  int64_t order[GB_MAX_NDIM];
  dims_by_stride(attrs->shape.count, attrs->strides.ints, order);
  gb_tensor *packed = NULL;
  GB_TRY(pack(grad->context, g_of(grad), attrs->shape.count, order, &packed));
  gb_status status = GB_RUN(grad->context, as_strided, dx_of(grad), .x = packed, .shape = attrs->view_shape,
                            .strides = attrs->view_strides, .offset = attrs->view_offset);
  gb_drop(&packed);
  return status;
}

/* ====} */

const gb_op_impl gb_family_view[] = {
  { .op = GB_OP_view, .check = view_check, .gradient = reshape_gradient },
  { .op = GB_OP_reshape, .compose = reshape_compose },
  { .op = GB_OP_flatten, .compose = flatten_compose },
  { .op = GB_OP_unflatten, .check = unflatten_check, .gradient = reshape_gradient },
  { .op = GB_OP_transpose, .check = transpose_check, .gradient = transpose_gradient },
  { .op = GB_OP_permute, .check = permute_check, .gradient = permute_gradient },
  { .op = GB_OP_t, .check = t_check, .gradient = t_gradient },
  { .op = GB_OP_squeeze, .check = squeeze_check, .gradient = reshape_gradient },
  { .op = GB_OP_unsqueeze, .check = unsqueeze_check, .gradient = reshape_gradient },
  { .op = GB_OP_expand, .check = expand_check, .gradient = expand_gradient },
  { .op = GB_OP_narrow, .check = narrow_check, .gradient = narrow_gradient },
  { .op = GB_OP_select, .check = select_check, .gradient = select_gradient },
  { .op = GB_OP_slice, .check = slice_check, .gradient = slice_gradient },
  { .op = GB_OP_diagonal, .check = diagonal_check, .gradient = diagonal_gradient },
  { .op = GB_OP_unfold, .check = unfold_check, .gradient = unfold_gradient },
  { .op = GB_OP_as_strided, .check = as_strided_check, .gradient = as_strided_gradient },
  { .op = GB_OP_as_strided_backward, .check = as_strided_backward_check, .gradient = as_strided_backward_gradient },
  { .op = GB_OP_COUNT },
};
