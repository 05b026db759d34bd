/* cpu/view.c - the one view op that moves data: as_strided_backward, which adds the gradient of a view at its place in
 * zeros.
 *
 * Elements of the view that share memory add up, in the view's row-major order and in float32 (float64); without
 * sharing it is a copy. Moves the bytes of the result (zeros) and twice those of the view. */
#include "base/strides.h"
#include "cpu/walk.h"

/* Add at most a tile of grad to sums, one after another. */
static void add_tile(const gb_sums *sums, int64_t offset, int64_t stride, const char *from, gb_dtype dtype,
                     int64_t from_stride, int64_t n) {
  if (sums->dtype == GB_FLOAT64) {
    double tile[GB_TILE], *to = (double *)sums->data + offset;
    gb_load_f64(tile, from, dtype, from_stride, n);
    for (int64_t i = 0; i < n; i++) to[i * stride] += tile[i];
  } else {
    float tile[GB_TILE], *to = (float *)sums->data + offset;
    gb_load_f32(tile, from, dtype, from_stride, n);
    for (int64_t i = 0; i < n; i++) to[i * stride] += tile[i];
  }
}

/* Add an overlapping view to the zeros in dx: one thread, in order. 16-bit results are added up in float32 scratch,
 * which lies in memory as the result does. */
static gb_status add_overlapping(gb_op_call *call, const int64_t *strides, int64_t offset) {
  const gb_tensor *grad = GB_IN(call, as_strided_backward)->grad, *dx = GB_OUT(call, as_strided_backward)->dx;
  gb_tensor flat = *dx; /* the result as the vector of memory it is */
  flat.ndim = 1, flat.shape[0] = dx->numel, flat.stride[0] = 1;
  gb_sums sums;
  GB_TRY(gb_sums_begin(call, &flat, &flat, &sums));
  gb_runs runs = gb_runs_of(grad->ndim, grad->shape, GB_TILE);
  int64_t at[GB_MAX_NDIM], from_strides[GB_MAX_NDIM], bytes = (int64_t)gb_dtype_bytes((gb_dtype)grad->dtype);
  gb_broadcast_strides(grad, grad->ndim, grad->shape, from_strides);
  for (int64_t run = 0; run < runs.count; run++) {
    int64_t n = gb_run_at(&runs, run, at);
    add_tile(&sums, offset + gb_offset_at(grad->ndim, at, strides), grad->ndim ? strides[grad->ndim - 1] : 0,
             gb_data(grad) + gb_offset_at(grad->ndim, at, from_strides) * bytes, (gb_dtype)grad->dtype,
                 from_strides[runs.ndim - 1], n);
  }
  gb_sums_end(call, &flat, &sums);
  return GB_OK;
}

static gb_status as_strided_backward(gb_op_call *call) {
  const gb_attrs_as_strided_backward *attrs = GB_ATTRS(call, as_strided_backward);
  const gb_tensor *grad = GB_IN(call, as_strided_backward)->grad, *dx = GB_OUT(call, as_strided_backward)->dx;
  const int64_t *strides = attrs->view_strides.ints, offset = attrs->view_offset.integer;
  gb_dtype dtype = (gb_dtype)dx->dtype;
  gb_zero_bytes(call, gb_data(dx), (size_t)dx->numel * gb_dtype_bytes(dtype));
  if (grad->numel == 0) return GB_OK;
  if (!gb_is_disjoint(grad->ndim, grad->shape, strides)) return add_overlapping(call, strides, offset);
  gb_copy_strided(call, grad->ndim, grad->shape, gb_data(dx) + offset * (int64_t)gb_dtype_bytes(dtype), dtype, strides,
                  gb_data(grad),
                  (gb_dtype)grad->dtype, grad->stride);
  return GB_OK;
}

void GB_CPU_FILL(view)(gb_backend *backend);
void GB_CPU_FILL(view)(gb_backend *backend) { backend->run[GB_OP_as_strided_backward] = as_strided_backward; }
