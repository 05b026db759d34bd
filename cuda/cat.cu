/* cuda/cat.cu - joining, reversing, triangles, and the gradient of a view at its place: strided copies, but for
 * overlapping views.
 *
 * Each element is read and written once. */
#include "base/strides.h"
#include "cuda/elements.cuh"
#include "cuda/families.h"
#include "cuda/ordered.cuh"

/* Each tensor into its place along dim, converted to the joint dtype. */
static gb_status cat(gb_cuda_call *call) {
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, cat)->y;
  int64_t named = GB_ATTRS(call, cat)->dim.integer, dim = named < 0 ? named + y->ndim : named;
  char *to = y->data;
  for (int i = 0; i < call->n_in; i++) {
    const gb_cuda_tensor *x = call->in[i];
    gb_cuda_tensor place = *x; /* x's shape in y's memory */
    place.data = to;
    place.dtype = y->dtype;
    for (int d = 0; d < x->ndim; d++) place.stride[d] = y->stride[d];
    if (x->numel) {
      gb_status status = gb_cuda_copy(call, &place, x);
      if (status != GB_OK) return status;
    }
    to += x->shape[dim] * y->stride[dim] * (int64_t)gb_bytes_of(y->dtype);
  }
  return GB_OK;
}

/* A copy that starts at the last position of each named dim and walks it backwards. */
static gb_status flip(gb_cuda_call *call) {
  gb_cuda_tensor x = *GB_CUDA_IN(call, flip)->x;
  const gb_attr *named = &GB_ATTRS(call, flip)->dim;
  if (x.numel == 0) return GB_OK;
  for (int i = 0; x.ndim && i < named->count; i++) {
    int64_t dim = named->ints[i] < 0 ? named->ints[i] + x.ndim : named->ints[i];
    x.data += (x.shape[dim] - 1) * x.stride[dim] * (int64_t)gb_bytes_of(x.dtype);
    x.stride[dim] = -x.stride[dim];
  }
  return gb_cuda_copy(call, GB_CUDA_OUT(call, flip)->y, &x);
}

/* {==== tril, triu ==== */

/* Elements on one side of a diagonal as they are, zeros on the other: column - row is at most `diagonal` (lower) or at
 * least. */
template <typename S> __global__ void triangle(gb_walk w, S *y, const S *x, int64_t rows, int64_t columns,
                                               int64_t diagonal, bool lower) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t offset[2], apart = i % columns - i / columns % rows;
    gb_seek<2>(w, i, offset);
    y[offset[0]] = (lower ? apart <= diagonal : apart >= diagonal) ? x[offset[1]] : (S)0;
  }
}

template <typename S>
static void launch_triangle(gb_cuda_call *call, const gb_cuda_tensor *y, const gb_cuda_tensor *x, int64_t diagonal,
                            bool lower) {
  const gb_cuda_tensor *operands[] = { y, x };
  gb_walk w = gb_plan(operands, 2, true);
  GB_LAUNCH(call->stream, triangle<S>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, (S *)y->data,
            (const S *)x->data, x->shape[x->ndim - 2], x->shape[x->ndim - 1], diagonal, lower);
}

static gb_status keep_triangle(gb_cuda_call *call, const gb_cuda_tensor *y, const gb_cuda_tensor *x, int64_t diagonal,
                               bool lower) {
  switch (gb_bytes_of(x->dtype)) {
    case 1: launch_triangle<uint8_t>(call, y, x, diagonal, lower); break;
    case 2: launch_triangle<uint16_t>(call, y, x, diagonal, lower); break;
    case 4: launch_triangle<uint32_t>(call, y, x, diagonal, lower); break;
    default: launch_triangle<uint64_t>(call, y, x, diagonal, lower); break;
  }
  return GB_OK;
}

static gb_status tril(gb_cuda_call *call) {
  return keep_triangle(call, GB_CUDA_OUT(call, tril)->y, GB_CUDA_IN(call, tril)->x,
                       GB_ATTRS(call, tril)->diagonal.integer, true);
}
static gb_status triu(gb_cuda_call *call) {
  return keep_triangle(call, GB_CUDA_OUT(call, triu)->y, GB_CUDA_IN(call, triu)->x,
                       GB_ATTRS(call, triu)->diagonal.integer, false);
}

/* ====} */

/* {==== as_strided_backward ==== */

/* The place of each element of the view in the result's memory. */
static __global__ void view_places(gb_axes view, int64_t offset, int64_t n, uint64_t *keys) {
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>())
    keys[i] = (uint64_t)(offset + gb_at(view, i));
}

/* grad of a view added at its place in zeros: elements that share memory add up in the view's row-major order. */
static gb_status as_strided_backward(gb_cuda_call *call) {
  const gb_cuda_tensor *grad = GB_CUDA_IN(call, as_strided_backward)->grad;
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, as_strided_backward)->dx;
  const gb_attrs_as_strided_backward *attrs = GB_ATTRS(call, as_strided_backward);
  const int64_t *strides = attrs->view_strides.ints, offset = attrs->view_offset.integer;
  gb_status status = gb_cuda_clear(call, dx->data, (size_t)dx->numel * gb_bytes_of(dx->dtype));
  if (status != GB_OK || grad->numel == 0) return status;
  if (gb_is_disjoint(grad->ndim, grad->shape, strides)) {
    gb_cuda_tensor place = *grad;
    place.data = dx->data + offset * (int64_t)gb_bytes_of(dx->dtype);
    place.dtype = dx->dtype;
    for (int d = 0; d < grad->ndim; d++) place.stride[d] = strides[d];
    return gb_cuda_copy(call, &place, grad);
  }
  gb_ordered_sum sum = {};
  gb_axes view = {};
  for (int d = 0; d < grad->ndim; d++) gb_axes_push(&view, grad->shape[d], strides[d]);
  sum.to = gb_rows_over(dx->data, dx->dtype, dx->numel, 1);
  sum.from = gb_rows_of(grad, 0);
  sum.n = grad->numel;
  sum.limit = dx->numel;
  sum.keys = (uint64_t *)gb_cuda_scratch(call, (size_t)sum.n * sizeof(uint64_t));
  if (!sum.keys) return GB_EMEMORY;
  GB_LAUNCH(call->stream, view_places, gb_blocks(sum.n, GB_THREADS), GB_THREADS, 0, view, offset, sum.n, sum.keys);
  return gb_ordered_sum_run(call, &sum);
}

/* ====} */

const gb_cuda_row gb_cuda_cat[] = {
  { GB_OP_cat, cat, false }, { GB_OP_flip, flip, false }, { GB_OP_as_strided_backward, as_strided_backward, false },
  { GB_OP_tril, tril, false }, { GB_OP_triu, triu, false }, { GB_OP_COUNT, NULL, false },
};
