/* ops/vision.c - images and the windows of them, whole channels dropped or normalised, and bags of embeddings.
 *
 * All but resample and sum_taps are made of other ops, so they run on every device and have the gradients of what they
 * are made of. resample computes one dimension of interpolate; it is linear, so its gradient's gradient is itself.
 * sum_taps reads what grid_sample found on the CPU, where sums that many places add to have an order by themselves. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "graph/chain.h"

/* {==== What several ops need ==== */

/* x in another shape. */
static gb_tensor *shaped(gb_chain *c, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(c, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *expanded(gb_chain *c, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(c, expand, .x = x, .shape = gb_attr_ints(ndim, shape));
}

/* length positions along dim from start on. */
static gb_tensor *part(gb_chain *c, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *joined(gb_chain *c, gb_tensor **xs, int count, int dim) {
  return GB_CHAIN(c, cat, .xs = xs, .count = count, .dim = gb_attr_int(dim));
}

/* A new tensor full of one value, made of one element. */
static gb_tensor *constant(gb_chain *c, const gb_tensor *like, int ndim, const int64_t *shape, double value) {
  gb_tensor *one = gb_chain_full(c, (gb_dtype)like->dtype, 0, NULL, like->storage->device, value);
  return expanded(c, one, ndim, shape);
}

static gb_tensor *product(gb_chain *c, gb_tensor *x, gb_tensor *y) { return gb_chain_2(c, GB_OP_mul, x, y, NULL); }
static gb_tensor *total(gb_chain *c, gb_tensor *x, gb_tensor *y) { return gb_chain_2(c, GB_OP_add, x, y, NULL); }
static gb_tensor *scaled(gb_chain *c, gb_tensor *x, double by) { return gb_chain_number(c, GB_OP_mul, x, by); }
static gb_tensor *moved(gb_chain *c, gb_tensor *x, double by) { return gb_chain_number(c, GB_OP_add, x, by); }

/* The dims of x from the outermost in memory to the innermost. */
static void dims_in_memory(const gb_tensor *x, int64_t *order) {
  for (int i = 0; i < x->ndim; i++) {
    int at = i;
    for (; at > 0 && x->stride[order[at - 1]] < x->stride[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
}

/* ====} */

/* {==== pad ==== */

/* What is cut off and put on before and after a dim, and the dim's size once it is cut. */
typedef struct pad_sides { int64_t size, cut[2], put[2]; } pad_sides;

/* The pairs of a pad, by dim; sizes that are left and what a mode can make of them. */
static gb_status pad_sides_of(gb_op_call *call, pad_sides *sides) {
  const gb_tensor *x = GB_IN(call, pad)->x;
  const gb_attr *pad = &GB_ATTRS(call, pad)->pad;
  int64_t mode = GB_ATTRS(call, pad)->mode.integer, padded[GB_MAX_NDIM];
  size_t bytes;
  char text[96];
  if (pad->count % 2 || pad->count / 2 > x->ndim)
    return gb_call_fail(call, GB_EINVAL,
                        "pad has %d values; it takes a pair {before, after} per dimension from the last "
                        "one on, and x (%s) has %d dimensions", (int)pad->count,
                        gb_shape_text(x->ndim, x->shape, text, sizeof text), x->ndim);
  for (int d = 0; d < x->ndim; d++) {
    int at = 2 * (x->ndim - 1 - d);
    pad_sides *s = &sides[d];
    *s = (pad_sides){ .size = x->shape[d] };
    padded[d] = x->shape[d];
    if (at >= pad->count) continue;
    for (int k = 0; k < 2; k++) {
      int64_t n = pad->ints[at + k];
      if (n < -(INT64_C(1) << 40) || n > INT64_C(1) << 40)
        return gb_call_fail(call, GB_EINVAL, "pad of %" PRId64 " is out of range", n);
      s->cut[k] = n < 0 ? -n : 0, s->put[k] = n > 0 ? n : 0;
      s->size -= s->cut[k];
    }
    if (s->size < 0)
      return gb_call_fail(call, GB_ESHAPE, "pad cuts %" PRId64 " and %" PRId64 " elements off dimension %d, which has %"
                          PRId64, s->cut[0], s->cut[1], d + 1, x->shape[d]);
    padded[d] = s->put[0] + s->size + s->put[1];
    int64_t most = s->put[0] > s->put[1] ? s->put[0] : s->put[1];
    if (most == 0 || mode == GB_WORD_constant) continue;
    int64_t reach = mode == GB_WORD_reflect ? s->size - 1 : mode == GB_WORD_circular ? s->size : most;
    if (most > reach || s->size == 0)
      return gb_call_fail(call, GB_ESHAPE, "pad of %" PRId64 " in mode %s, but dimension %d has %" PRId64 " elements",
                          most,
                          gb_word_text(mode), d + 1, s->size);
  }
  return gb_shape_bytes(call->context, (gb_dtype)x->dtype, x->ndim, padded, &bytes);
}

/* n elements that x's own make along dim, for the side before (0) or after (1) it. */
static gb_tensor *pad_side(gb_chain *c, gb_tensor *x, int dim, int64_t size, int side, int64_t n, int64_t mode) {
  int64_t shape[GB_MAX_NDIM];
  if (mode == GB_WORD_circular) return part(c, x, dim, side ? 0 : size - n, n);
  if (mode == GB_WORD_reflect)
    return GB_CHAIN(c, flip, .x = part(c, x, dim, side ? size - 1 - n : 1, n),
                    .dim = gb_attr_ints(1, &(int64_t){ dim }));
  gb_tensor *edge = part(c, x, dim, side ? size - 1 : 0, 1);
  if (!edge) return NULL;
  memcpy(shape, edge->shape, sizeof shape);
  shape[dim] = n;
  return expanded(c, edge, edge->ndim, shape);
}

/* A dim with both of its sides. */
static gb_tensor *pad_dim(gb_chain *c, gb_tensor *x, int dim, const pad_sides *s, int64_t mode, double value) {
  gb_tensor *xs[3];
  int count = 0;
  for (int side = 0; side < 2 && c->status == GB_OK; side++) {
    int64_t shape[GB_MAX_NDIM];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = s->put[side];
    if (side) xs[count++] = x;
    if (s->put[side] == 0) continue;
    xs[count++] = mode == GB_WORD_constant ? constant(c, x, x->ndim, shape, value)
                                           : pad_side(c, x, dim, s->size, side, s->put[side], mode);
  }
  return c->status == GB_OK ? joined(c, xs, count, dim) : NULL;
}

/* x in the middle of zeros, in one pass, in x's order of dims. */
static gb_tensor *pad_zeros(gb_chain *c, gb_tensor *x, const pad_sides *sides) {
  if (!x) return NULL;
  int64_t order[GB_MAX_NDIM], shape[GB_MAX_NDIM], strides[GB_MAX_NDIM], step = 1, offset = 0;
  dims_in_memory(x, order);
  for (int i = x->ndim - 1; i >= 0; i--) {
    int64_t d = order[i];
    shape[d] = sides[d].put[0] + x->shape[d] + sides[d].put[1];
    strides[d] = step;
    offset += sides[d].put[0] * step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
  return GB_CHAIN(c, as_strided_backward, .grad = x, .shape = gb_attr_ints(x->ndim, shape),
                  .strides = gb_attr_ints(x->ndim, strides), .view_shape = gb_attr_ints(x->ndim, x->shape),
                  .view_strides = gb_attr_ints(x->ndim, strides), .view_offset = gb_attr_int(offset));
}

static gb_status pad_compose(gb_op_call *call) {
  const gb_attrs_pad *attrs = GB_ATTRS(call, pad);
  pad_sides sides[GB_MAX_NDIM];
  gb_tensor *x = GB_IN(call, pad)->x, *y = x;
  bool puts = false, zero = attrs->mode.integer == GB_WORD_constant && attrs->value.number == 0;
  GB_TRY(pad_sides_of(call, sides));
  GB_TRY(gb_require_fits(call, &attrs->value, (gb_dtype)x->dtype));
  if (!gb_is_float((gb_dtype)x->dtype) && floor(attrs->value.number) != attrs->value.number)
    return gb_call_fail(call, GB_EDTYPE, "value is %g, x %s; convert x with x:float()", attrs->value.number,
                        gb_dtype_name((gb_dtype)x->dtype));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  for (int d = 0; d < x->ndim; d++) {
    if (sides[d].cut[0] || sides[d].cut[1]) y = part(&c, y, d, sides[d].cut[0], sides[d].size);
    puts = puts || sides[d].put[0] || sides[d].put[1];
  }
  if (!puts) y = GB_CHAIN(&c, clone, .x = y);
  else if (zero && gb_is_float((gb_dtype)x->dtype)) y = pad_zeros(&c, y, sides);
  else
    for (int d = x->ndim - 1; d >= 0; d--)
      if (sides[d].put[0] || sides[d].put[1])
        y = pad_dim(&c, y, d, &sides[d], attrs->mode.integer, attrs->value.number);
  return gb_chain_end(&c, y, &GB_OUT(call, pad)->y);
}

/* ====} */

/* {==== Channels and places exchanged ==== */

/* x [..., c, h, w] with the dims before the last three as one. */
typedef struct image_sizes { int64_t batch, c, h, w; } image_sizes;

static gb_status image_sizes_of(gb_op_call *call, int input, image_sizes *s) {
  const gb_tensor *x = call->in[input];
  GB_TRY(gb_require_ndim(call, input, 3, GB_MAX_NDIM));
  *s = (image_sizes){ 1, x->shape[x->ndim - 3], x->shape[x->ndim - 2], x->shape[x->ndim - 1] };
  for (int i = 0; i < x->ndim - 3; i++) s->batch *= x->shape[i];
  return GB_OK;
}

/* x by way of a shape of six dims and another order of them into its last three sizes. */
static gb_status rearranged(gb_op_call *call, gb_tensor *x, const int64_t *six, const int64_t *order,
                            const int64_t *last,
                            gb_tensor **out) {
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, sizeof shape);
  memcpy(shape + x->ndim - 3, last, 3 * sizeof *last);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *turned = GB_CHAIN(&c, permute, .x = shaped(&c, x, 6, six), .dims = gb_attr_ints(6, order));
  return gb_chain_end(&c, shaped(&c, turned, x->ndim, shape), out);
}

static gb_status pixel_shuffle_compose(gb_op_call *call) {
  int64_t r = GB_ATTRS(call, pixel_shuffle)->factor.integer;
  image_sizes s;
  GB_TRY(image_sizes_of(call, GB_IN_AT(pixel_shuffle, x), &s));
  if (s.c % (r * r))
    return gb_call_fail(call, GB_ESHAPE, "the %" PRId64 " channels of x are no multiple of factor^2, %" PRId64, s.c,
                        r * r);
  const int64_t six[6] = { s.batch, s.c / (r * r), r, r, s.h, s.w };
  const int64_t last[3] = { s.c / (r * r), gb_size_times(s.h, r), gb_size_times(s.w, r) };
  return rearranged(call, GB_IN(call, pixel_shuffle)->x, six, (int64_t[]){ 0, 1, 4, 2, 5, 3 }, last,
                    &GB_OUT(call, pixel_shuffle)->y);
}

static gb_status pixel_unshuffle_compose(gb_op_call *call) {
  int64_t r = GB_ATTRS(call, pixel_unshuffle)->factor.integer;
  image_sizes s;
  GB_TRY(image_sizes_of(call, GB_IN_AT(pixel_unshuffle, x), &s));
  if (s.h % r || s.w % r)
    return gb_call_fail(call, GB_ESHAPE,
                        "height %" PRId64 " and width %" PRId64 " of x are no multiples of factor, %" PRId64,
                        s.h, s.w, r);
  const int64_t six[6] = { s.batch, s.c, s.h / r, r, s.w / r, r };
  const int64_t last[3] = { gb_size_times(s.c, r * r), s.h / r, s.w / r };
  return rearranged(call, GB_IN(call, pixel_unshuffle)->x, six, (int64_t[]){ 0, 1, 3, 5, 2, 4 }, last,
                    &GB_OUT(call, pixel_unshuffle)->y);
}

static gb_status channel_shuffle_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, channel_shuffle)->x;
  int64_t groups = GB_ATTRS(call, channel_shuffle)->groups.integer, places = 1;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(channel_shuffle, x), 3, GB_MAX_NDIM));
  if (x->shape[1] % groups)
    return gb_call_fail(call, GB_ESHAPE,
                        "the %" PRId64 " channels of x cannot be put into %" PRId64 " groups of one size",
                        x->shape[1], groups);
  for (int i = 2; i < x->ndim; i++) places *= x->shape[i];
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *apart = shaped(&c, x, 4, (int64_t[]){ x->shape[0], groups, x->shape[1] / groups, places });
  gb_tensor *turned = GB_CHAIN(&c, transpose, .x = apart, .first = gb_attr_int(1), .second = gb_attr_int(2));
  return gb_chain_end(&c, shaped(&c, turned, x->ndim, x->shape), &GB_OUT(call, channel_shuffle)->y);
}

/* ====} */

/* {==== im2col and col2im ==== */

/* Windows over an image of h x w: by dim. */
typedef struct windows { const int64_t *kernel, *dilation, *padding, *stride; int64_t image[2], count[2]; } windows;

/* How many windows there are along each dim; at least one. */
static gb_status count_windows(gb_op_call *call, windows *w) {
  for (int i = 0; i < 2; i++) {
    int64_t left = w->image[i] + 2 * w->padding[i] - w->dilation[i] * (w->kernel[i] - 1) - 1;
    w->count[i] = left < 0 ? 0 : left / w->stride[i] + 1;
    if (w->count[i] < 1)
      return gb_call_fail(call, GB_ESHAPE, "a window of %" PRId64 " (dilation %" PRId64 ") does not fit into %" PRId64
                          " elements with padding %" PRId64, w->kernel[i], w->dilation[i], w->image[i], w->padding[i]);
  }
  return GB_OK;
}

/* The windows as a view of a padded row-major image: its six dims and their strides. */
static void window_view(const windows *w, int64_t n, int64_t channels, int64_t *shape, int64_t *strides) {
  int64_t height = w->image[0] + 2 * w->padding[0], width = w->image[1] + 2 * w->padding[1];
  const int64_t sizes[6] = { n, channels, w->kernel[0], w->kernel[1], w->count[0], w->count[1] };
  const int64_t plane = gb_size_times(height, width);
  const int64_t steps[6] = { gb_size_times(channels, plane), plane, gb_size_times(w->dilation[0], width),
                             w->dilation[1], gb_size_times(w->stride[0], width), w->stride[1] };
  memcpy(shape, sizes, sizeof sizes);
  memcpy(strides, steps, sizeof steps);
}

static gb_status im2col_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, im2col)->x;
  const gb_attrs_im2col *attrs = GB_ATTRS(call, im2col);
  windows w = { attrs->kernel_size.ints, attrs->dilation.ints, attrs->padding.ints, attrs->stride.ints, { 0 }, { 0 } };
  GB_TRY(gb_require_float(call, GB_IN_AT(im2col, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(im2col, x), 3, 4));
  bool batched = x->ndim == 4;
  memcpy(w.image, x->shape + x->ndim - 2, sizeof w.image);
  GB_TRY(count_windows(call, &w));
  int64_t n = batched ? x->shape[0] : 1, channels = x->shape[x->ndim - 3], shape[6], strides[6];
  int64_t columns[3] = { n, gb_size_times(channels, w.kernel[0] * w.kernel[1]), gb_size_times(w.count[0], w.count[1]) };
  window_view(&w, n, channels, shape, strides);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  const int64_t edges[4] = { w.padding[1], w.padding[1], w.padding[0], w.padding[0] };
  gb_tensor *image = GB_CHAIN(&c, contiguous, .x = x); /* as_strided wants one that begins where its storage does */
  if (w.padding[0] || w.padding[1]) image = GB_CHAIN(&c, pad, .x = image, .pad = gb_attr_ints(4, edges));
  else if (image && image->offset) image = GB_CHAIN(&c, clone, .x = image);
  gb_tensor *view = GB_CHAIN(&c, as_strided, .x = image, .shape = gb_attr_ints(6, shape),
                             .strides = gb_attr_ints(6, strides), .offset = gb_attr_int(0));
  gb_tensor *y = shaped(&c, view, batched ? 3 : 2, batched ? columns : columns + 1);
  return gb_chain_end(&c, y, &GB_OUT(call, im2col)->y);
}

static gb_status col2im_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, col2im)->x;
  const gb_attrs_col2im *attrs = GB_ATTRS(call, col2im);
  windows w = { attrs->kernel_size.ints, attrs->dilation.ints, attrs->padding.ints, attrs->stride.ints,
                { attrs->output_size.ints[0], attrs->output_size.ints[1] }, { 0 } };
  GB_TRY(gb_require_float(call, GB_IN_AT(col2im, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(col2im, x), 2, 3));
  GB_TRY(count_windows(call, &w));
  bool batched = x->ndim == 3;
  int64_t n = batched ? x->shape[0] : 1, rows = x->shape[x->ndim - 2], places = w.kernel[0] * w.kernel[1];
  if (rows % places || x->shape[x->ndim - 1] != gb_size_times(w.count[0], w.count[1]))
    return gb_call_fail(call, GB_ESHAPE,
                        "x has %" PRId64 " rows and %" PRId64 " columns; windows of %" PRId64 " places over "
                        "this output_size are %" PRId64 " columns, and the rows a multiple of the places", rows,
                        x->shape[x->ndim - 1], places, gb_size_times(w.count[0], w.count[1]));
  int64_t channels = rows / places, shape[6], strides[6], dense[4];
  const int64_t padded[4] = { n, channels, w.image[0] + 2 * w.padding[0], w.image[1] + 2 * w.padding[1] };
  window_view(&w, n, channels, shape, strides);
  gb_contiguous_strides(4, padded, dense);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *image = GB_CHAIN(&c, as_strided_backward, .grad = shaped(&c, x, 6, shape),
                              .shape = gb_attr_ints(4, padded),
                              .strides = gb_attr_ints(4, dense), .view_shape = gb_attr_ints(6, shape),
                              .view_strides = gb_attr_ints(6, strides), .view_offset = gb_attr_int(0));
  for (int i = 0; i < 2; i++)
    if (w.padding[i]) image = part(&c, image, 2 + i, w.padding[i], w.image[i]);
  if (!batched) image = GB_CHAIN(&c, squeeze, .x = image, .dim = gb_attr_ints(1, &(int64_t){ 0 }));
  return gb_chain_end(&c, GB_CHAIN(&c, contiguous, .x = image), &GB_OUT(call, col2im)->y);
}

/* ====} */

/* {==== interpolate ==== */

/* resample and resample_backward have their attributes at the same places, and one input and one output. */
#define SAME_ATTR(name) \
  _Static_assert(GB_ATTR_AT(resample_backward, name) == GB_ATTR_AT(resample, name), #name " as in resample")
SAME_ATTR(dim);
SAME_ATTR(size);
SAME_ATTR(scale);
SAME_ATTR(dtype);

/* May `given` elements become `wanted` ones at this scale, or, backward, the other way? Places then lie in the row. */
static gb_status require_scale(gb_op_call *call, double scale, int64_t given, int64_t wanted) {
  const bool backward = call->op == GB_OP_resample_backward || call->op == GB_OP_resample_planes_backward;
  const int64_t in = backward ? wanted : given, out = backward ? given : wanted;
  if (scale * (double)out <= (double)in * (1 + 1e-6)) return GB_OK; /* 1 / factor is rounded */
  return gb_call_fail(call, GB_EINVAL, "scale is %g: %" PRId64 " elements at that scale do not lie within %" PRId64
                      "; it may be %g, or 0", scale, out, in, (double)in / (double)out);
}

/* A contiguous x -> the same with `size` elements along dim. Between no elements and some there is nothing to
 * compute. */
static gb_status resample_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, resample)->x;
  const gb_attrs_resample *attrs = GB_ATTRS(call, resample);
  int64_t shape[GB_MAX_NDIM];
  int dim;
  GB_TRY(gb_require_float(call, GB_IN_AT(resample, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(resample, x), 1, GB_MAX_NDIM));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  if (!gb_is_contiguous(x)) return gb_call_fail(call, GB_EINVAL, "x is not contiguous; use contiguous()");
  if (attrs->size.integer < 1 || x->shape[dim] < 1)
    return gb_call_fail(call, GB_ESHAPE, "%" PRId64 " elements cannot become %" PRId64, x->shape[dim],
                        attrs->size.integer);
  GB_TRY(require_scale(call, attrs->scale.number, x->shape[dim], attrs->size.integer));
  memcpy(shape, x->shape, sizeof shape);
  shape[dim] = attrs->size.integer;
  return gb_call_output(call, GB_OUT_AT(resample, y), x->ndim, shape,
                        (gb_dtype)(attrs->dtype.given ? attrs->dtype.integer : x->dtype));
}

/* Either is the other's gradient. */
static gb_status resample_gradient(gb_grad_call *grad) {
  const gb_attrs_resample *attrs = GB_ATTRS(grad, resample);
  int64_t dim = attrs->dim.integer;
  const gb_edge *edge = GB_EDGE(grad, resample, x);
  gb_attr size = gb_attr_int(edge->shape[dim < 0 ? dim + edge->ndim : dim]);
  gb_attr dtype = gb_attr_int(GB_WANTS(grad, resample, x));
  gb_tensor *g = NULL;
  GB_TRY(gb_op_contiguous(grad->context, GB_GRAD_OUT(grad, resample)->y, &g));
  gb_status status = grad->node->op == GB_OP_resample
      ? GB_RUN(grad->context, resample_backward, &GB_GRAD_IN(grad, resample)->x, .grad = g, .dim = attrs->dim,
               .size = size, .mode = attrs->mode, .align_corners = attrs->align_corners, .antialias = attrs->antialias,
               .scale = attrs->scale, .dtype = dtype)
      : GB_RUN(grad->context, resample, &GB_GRAD_IN(grad, resample)->x, .x = g, .dim = attrs->dim, .size = size,
               .mode = attrs->mode, .align_corners = attrs->align_corners, .antialias = attrs->antialias,
               .scale = attrs->scale, .dtype = dtype);
  gb_drop(&g);
  return status;
}

#define SAME_PLANES_ATTR(name)                                                                                        \
  _Static_assert(GB_ATTR_AT(resample_planes_backward, name) == GB_ATTR_AT(resample_planes, name), \
                 #name " as in resample_planes")
SAME_PLANES_ATTR(size);
SAME_PLANES_ATTR(scale);
SAME_PLANES_ATTR(dtype);

/* Planes of any size that are not empty, in a contiguous x or gradient. */
static gb_status resample_planes_require(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, resample_planes)->x;
  GB_TRY(gb_require_float(call, GB_IN_AT(resample_planes, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(resample_planes, x), 2, GB_MAX_NDIM));
  if (!gb_is_contiguous(x)) return gb_call_fail(call, GB_EINVAL, "x is not contiguous; use contiguous()");
  const gb_attrs_resample_planes *attrs = GB_ATTRS(call, resample_planes);
  for (int i = 0; i < 2; i++) {
    const int64_t given = x->shape[x->ndim - 2 + i];
    if (given < 1) return gb_call_fail(call, GB_ESHAPE, "planes without elements cannot become others");
    GB_TRY(require_scale(call, attrs->scale.number, given, attrs->size.ints[i]));
  }
  return GB_OK;
}

/* -> the same with `size` elements along its last two dims. */
static gb_status resample_planes_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, resample_planes)->x;
  const gb_attrs_resample_planes *attrs = GB_ATTRS(call, resample_planes);
  int64_t shape[GB_MAX_NDIM];
  GB_TRY(resample_planes_require(call));
  memcpy(shape, x->shape, sizeof shape);
  memcpy(shape + x->ndim - 2, attrs->size.ints, 2 * sizeof *shape);
  return gb_call_output(call, GB_OUT_AT(resample_planes, y), x->ndim, shape,
                        (gb_dtype)(attrs->dtype.given ? attrs->dtype.integer : x->dtype));
}

/* Either is the other's gradient. */
static gb_status resample_planes_gradient(gb_grad_call *grad) {
  const gb_attrs_resample_planes *attrs = GB_ATTRS(grad, resample_planes);
  const gb_edge *edge = GB_EDGE(grad, resample_planes, x);
  gb_attr size = gb_attr_ints(2, edge->shape + edge->ndim - 2);
  gb_attr dtype = gb_attr_int(GB_WANTS(grad, resample_planes, x));
  gb_tensor *g = NULL, **out = &GB_GRAD_IN(grad, resample_planes)->x;
  GB_TRY(gb_op_contiguous(grad->context, GB_GRAD_OUT(grad, resample_planes)->y, &g));
  gb_status status = grad->node->op == GB_OP_resample_planes
      ? GB_RUN(grad->context, resample_planes_backward, out, .grad = g, .size = size, .mode = attrs->mode,
               .align_corners = attrs->align_corners, .antialias = attrs->antialias, .scale = attrs->scale,
               .dtype = dtype)
      : GB_RUN(grad->context, resample_planes, out, .x = g, .size = size, .mode = attrs->mode,
               .align_corners = attrs->align_corners, .antialias = attrs->antialias, .scale = attrs->scale,
               .dtype = dtype);
  gb_drop(&g);
  return status;
}

/* Devices resample one dim after the other: the one that shrinks more, or else grows less, first; of those alike the
 * columns, but rows where they shrink. */
static bool is_on_device(const gb_op_call *call) { return call->device.type != GB_CPU; }

static gb_status resample_planes_compose(gb_op_call *call) {
  const gb_attrs_resample_planes *attrs = GB_ATTRS(call, resample_planes);
  gb_tensor *y = GB_IN(call, resample_planes)->x;
  GB_TRY(resample_planes_require(call));
  const int64_t *size = attrs->size.ints, *from = y->shape + y->ndim - 2;
  const double rows = (double)size[0] / (double)from[0], columns = (double)size[1] / (double)from[1];
  const int first = rows < columns || (rows == columns && rows < 1) ? 0 : 1;
  const gb_dtype to = (gb_dtype)(attrs->dtype.given ? attrs->dtype.integer : y->dtype);
  const gb_dtype between = gb_is_16bit((gb_dtype)y->dtype) ? GB_FLOAT32 : (gb_dtype)y->dtype;
  gb_chain c;
  gb_chain_begin(&c, call->context);
  for (int k = 0; k < 2; k++) {
    const int i = k ? 1 - first : first;
    gb_attr dim = gb_attr_int(i - 2), length = gb_attr_int(size[i]), dtype = gb_attr_int(k ? to : between);
    y = call->op == GB_OP_resample_planes
        ? GB_CHAIN(&c, resample, .x = y, .dim = dim, .size = length, .mode = attrs->mode,
                   .align_corners = attrs->align_corners, .antialias = attrs->antialias, .scale = attrs->scale,
                   .dtype = dtype)
        : GB_CHAIN(&c, resample_backward, .grad = y, .dim = dim, .size = length, .mode = attrs->mode,
                   .align_corners = attrs->align_corners, .antialias = attrs->antialias, .scale = attrs->scale,
                   .dtype = dtype);
  }
  return gb_chain_end(&c, y, &GB_OUT(call, resample_planes)->y);
}

/* How a mode resamples one dimension, and of how many it is. */
static const struct { int64_t word; const char *each; int places; bool corners; } interpolations[] = {
  { GB_WORD_nearest, "nearest", 0, false }, { GB_WORD_nearest_exact, "nearest_exact", 0, false },
  { GB_WORD_linear, "linear", 1, true },    { GB_WORD_bilinear, "linear", 2, true },
  { GB_WORD_bicubic, "bicubic", 2, true },  { GB_WORD_trilinear, "linear", 3, true },
  { GB_WORD_area, "area", 0, false },
};

/* Which of them, and do x's dims and the options fit it? */
static gb_status check_interpolation(gb_op_call *call, int places, size_t *which) {
  const gb_attrs_interpolate *attrs = GB_ATTRS(call, interpolate);
  size_t i = 0;
  while (interpolations[i].word != attrs->mode.integer) i++;
  const char *name = gb_word_text(attrs->mode.integer);
  *which = i;
  if (interpolations[i].places && interpolations[i].places != places)
    return gb_call_fail(call, GB_ESHAPE, "mode %s resamples %d dimensions after batch and channels, x has %d", name,
                        interpolations[i].places, places);
  if (attrs->align_corners.integer && !interpolations[i].corners)
    return gb_call_fail(call, GB_EINVAL,
                        "align_corners is for linear, bilinear, bicubic and trilinear, the mode is %s", name);
  if (attrs->antialias.integer && attrs->mode.integer != GB_WORD_bilinear && attrs->mode.integer != GB_WORD_bicubic)
    return gb_call_fail(call, GB_EINVAL, "antialias is for bilinear and bicubic, the mode is %s", name);
  if (attrs->size.given == attrs->scale_factor.given)
    return gb_call_fail(call, GB_EINVAL, "give either size or scale_factor");
  if (attrs->recompute_scale_factor.integer && attrs->size.given)
    return gb_call_fail(call, GB_EINVAL, "recompute_scale_factor is for scale_factor, and size is given");
  if (attrs->size.given && attrs->size.count != 1 && attrs->size.count != places)
    return gb_call_fail(call, GB_EINVAL, "size has %d values; it takes 1 or %d", (int)attrs->size.count, places);
  return GB_OK;
}

/* How many elements dim i of the places becomes. */
static gb_status interpolated_size(gb_op_call *call, int64_t in, int i, int64_t *size) {
  const gb_attrs_interpolate *attrs = GB_ATTRS(call, interpolate);
  double wanted = floor((double)in * attrs->scale_factor.number);
  *size = attrs->size.given ? attrs->size.ints[attrs->size.count == 1 ? 0 : i] : wanted < 1e9 ? (int64_t)wanted : 0;
  if (*size >= 1 && in >= 1) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "dimension %d of x has %" PRId64 " elements and would get %.0f; there may be 1 "
                      "to 10^9", i + 3, in, attrs->size.given ? (double)*size : wanted);
}

/* The places' dims of x in the order in which they are resampled, so that little is read and written between them:
 * those that shrink most first. Of those alike the first of memory goes first if they shrink, the last if they grow:
 * few lines are then gathered along it. */
static void order_places(const gb_tensor *x, const int64_t *sizes, const int64_t *back, int *dims) {
  for (int i = 2, at; i < x->ndim; i++) {
    for (at = i - 2; at > 0; at--) {
      int other = dims[at - 1];
      double here = (double)sizes[i] / (double)x->shape[i], there = (double)sizes[other] / (double)x->shape[other];
      if (here == there ? (back[i] < back[other]) != (here < 1) : here > there) break;
      dims[at] = other;
    }
    dims[at] = i;
  }
}

/* Do the places lie as planes where they are resampled in one pass? */
static bool are_planes(const gb_tensor *x, const int64_t *back) {
  return x->ndim == 4 && back[2] == 2 && back[3] == 3;
}

/* Planes in one pass; else one dim after the other, between which 16-bit x stays float32. x's order of dims in memory
 * is kept. */
static gb_status interpolate_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, interpolate)->x;
  const gb_attrs_interpolate *attrs = GB_ATTRS(call, interpolate);
  int places = x->ndim - 2;
  size_t which;
  int dims[GB_MAX_NDIM];
  int64_t order[GB_MAX_NDIM], back[GB_MAX_NDIM], sizes[GB_MAX_NDIM];
  GB_TRY(gb_require_float(call, GB_IN_AT(interpolate, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(interpolate, x), 3, 5));
  GB_TRY(check_interpolation(call, places, &which));
  for (int i = 0; i < places; i++) GB_TRY(interpolated_size(call, x->shape[2 + i], i, &sizes[2 + i]));
  bool exact = interpolations[which].word == GB_WORD_area || /* windows are by sizes alone */
      attrs->recompute_scale_factor.integer;
  gb_attr mode = gb_attr_text(interpolations[which].each);
  double scale = attrs->scale_factor.given && !exact ? 1 / attrs->scale_factor.number : 0;
  gb_dtype between = gb_is_16bit((gb_dtype)x->dtype) ? GB_FLOAT32 : (gb_dtype)x->dtype;
  dims_in_memory(x, order);
  for (int i = 0; i < x->ndim; i++) back[order[i]] = i;
  order_places(x, sizes, back, dims);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  if (are_planes(x, back)) { /* as they lie: a gradient that comes by way of views is copied to where it belongs */
    gb_tensor *lying = gb_is_contiguous(x) ? x : GB_CHAIN(&c, contiguous, .x = x);
    gb_tensor *y = GB_CHAIN(&c, resample_planes, .x = lying, .size = gb_attr_ints(2, sizes + 2), .mode = mode,
                            .align_corners = attrs->align_corners, .antialias = attrs->antialias,
                            .scale = gb_attr_num(scale));
    return gb_chain_end(&c, y, &GB_OUT(call, interpolate)->y);
  }
  gb_tensor *y = GB_CHAIN(&c, permute, .x = x, .dims = gb_attr_ints(x->ndim, order));
  y = GB_CHAIN(&c, contiguous, .x = y);
  for (int i = 0; i < places; i++)
    y = GB_CHAIN(&c, resample, .x = y, .dim = gb_attr_int(back[dims[i]]), .size = gb_attr_int(sizes[dims[i]]),
                 .mode = mode, .align_corners = attrs->align_corners, .antialias = attrs->antialias,
                 .scale = gb_attr_num(scale),
                 .dtype = gb_attr_int(i == places - 1 ? (int64_t)x->dtype : (int64_t)between));
  y = GB_CHAIN(&c, permute, .x = y, .dims = gb_attr_ints(x->ndim, back));
  return gb_chain_end(&c, y, &GB_OUT(call, interpolate)->y);
}

/* ====} */

/* {==== grid_sample and affine_grid ==== */

/* A grid's places along one dim of x, of `size` elements: what grid_sample reads there. */
enum { MOST_TAPS = 4, MOST_PLACES = 3, MOST_SUMMED = 16 }; /* bicubic has 4 x 4, three dims have 2 x 2 x 2 */
typedef struct taps { int count; gb_tensor *index[MOST_TAPS], *outside[MOST_TAPS], *weight[MOST_TAPS]; } taps;

/* x - floor(x / by) * by for x >= 0, as a triangle that goes up and down again: reflection at 0 and at by. */
static gb_tensor *folded(gb_chain *c, gb_tensor *x, double by) {
  gb_tensor *turns = gb_chain_1(c, GB_OP_floor, scaled(c, x, 1 / by), NULL);
  gb_tensor *rest = gb_chain_2(c, GB_OP_sub, x, scaled(c, turns, by), NULL);
  gb_tensor *odd = gb_chain_number(c, GB_OP_remainder, turns, 2); /* on the way back, by - rest */
  gb_tensor *back = product(c, odd, moved(c, scaled(c, rest, -2), by));
  return total(c, rest, back);
}

/* A coordinate brought onto x where the padding mode asks for it. */
static gb_tensor *brought_in(gb_chain *c, gb_tensor *at, int64_t size, int64_t padding, bool corners) {
  if (padding == GB_WORD_zeros) return at;
  if (padding == GB_WORD_reflection) {
    double low = corners ? 0 : -0.5, span = corners ? (double)(size - 1) : (double)size;
    gb_tensor *away = gb_chain_1(c, GB_OP_abs, moved(c, at, -low), NULL);
    at = span > 0 ? moved(c, folded(c, away, span), low) : scaled(c, at, 0);
  }
  return GB_CHAIN(c, clamp, .x = at, .min = gb_chain_wrap(c, 0),
                  .max = gb_chain_wrap(c, (double)(size - 1)));
}

/* One tap: the element at a whole coordinate, which counts nothing where that is outside of x. weight NULL: 1. */
static void add_tap(gb_chain *c, taps *t, gb_tensor *at, gb_tensor *weight, int64_t size) {
  gb_tensor *held = GB_CHAIN(c, clamp, .x = at, .min = gb_chain_wrap(c, 0),
                             .max = gb_chain_wrap(c, (double)(size - 1)));
  gb_tensor *known = GB_CHAIN(c, where, .condition = gb_chain_2(c, GB_OP_eq, held, held, NULL), .x = held,
                              .y = c->status == GB_OK ? gb_chain_zeros(c, held) : NULL); /* NaN is no index */
  t->outside[t->count] = gb_chain_2(c, GB_OP_ne, held, at, NULL);
  t->index[t->count] = gb_chain_cast(c, known, GB_INT64);
  t->weight[t->count++] = weight;
}

/* Keys' cubic with a = -0.75 at a distance in 0 .. 1 (near) or 1 .. 2. */
static gb_tensor *cubic_weight(gb_chain *c, gb_tensor *x, bool near) {
  const double a = -0.75;
  gb_tensor *y = near ? moved(c, scaled(c, x, a + 2), -(a + 3)) : moved(c, scaled(c, x, a), -5 * a);
  if (near) return moved(c, product(c, product(c, y, x), x), 1);
  return moved(c, product(c, moved(c, product(c, y, x), 8 * a), x), -4 * a);
}

/* The four taps of bicubic, each brought onto x by itself. */
static void add_cubic(gb_chain *c, taps *t, gb_tensor *low, gb_tensor *up, gb_tensor *down, int64_t size,
                      int64_t padding,
                      bool corners) {
  gb_tensor *const weights[MOST_TAPS] = { cubic_weight(c, moved(c, up, 1), false), cubic_weight(c, up, true),
                                          cubic_weight(c, down, true), cubic_weight(c, moved(c, down, 1), false) };
  for (int k = 0; k < MOST_TAPS; k++)
    add_tap(c, t, brought_in(c, moved(c, low, k - 1), size, padding, corners), weights[k], size);
}

/* The taps of a coordinate. Their weights carry the gradient of the grid; places of elements have none. */
static taps taps_of(gb_chain *c, gb_tensor *at, int64_t size, int64_t mode, int64_t padding, bool corners) {
  taps t = { 0 };
  if (mode != GB_WORD_bicubic) at = brought_in(c, at, size, padding, corners);
  gb_tensor *apart = c->status == GB_OK ? gb_chain_detach(c, at) : NULL;
  if (mode == GB_WORD_nearest) {
    add_tap(c, &t, gb_chain_1(c, GB_OP_round, apart, NULL), NULL, size);
    return t;
  }
  gb_tensor *low = gb_chain_1(c, GB_OP_floor, apart, NULL), *up = gb_chain_2(c, GB_OP_sub, at, low, NULL);
  gb_tensor *down = moved(c, scaled(c, up, -1), 1);
  if (mode == GB_WORD_bicubic) {
    add_cubic(c, &t, low, up, down, size, padding, corners);
    return t;
  }
  add_tap(c, &t, low, down, size);
  add_tap(c, &t, moved(c, low, 1), up, size);
  return t;
}

/* The coordinate of dim i of places, of `count` of them, in elements of x: [n, 1, places of the grid]. */
static gb_tensor *coordinate(gb_chain *c, gb_tensor *grid, int i, int count, int64_t size, bool corners) {
  if (!grid) return NULL;
  int64_t n = grid->shape[0], shape[3] = { n, 1, n && count ? grid->numel / n / count : 0 };
  gb_tensor *x = shaped(c, part(c, grid, grid->ndim - 1, count - 1 - i, 1), 3, shape);
  if (corners) return scaled(c, moved(c, x, 1), (double)(size - 1) / 2);
  return scaled(c, moved(c, scaled(c, moved(c, x, 1), (double)size), -1), 0.5);
}

/* The sum over all taps of all dims of what x has there, by the product of their weights. image: [n, c, places of x],
 * or, padded, with one place more, whose zeros stand for what lies outside: then a tap is two passes over all channels
 * instead of three. */
static gb_tensor *gathered(gb_chain *c, gb_tensor *image, bool padded, const taps *by_dim, const int64_t *sizes,
                           int count) {
  gb_tensor *sum = NULL;
  int which[MOST_PLACES] = { 0 };
  if (c->status != GB_OK) return NULL;
  gb_device device = image->storage->device;
  gb_tensor *last = gb_chain_full(c, GB_INT64, 0, NULL, device, (double)(image->shape[2] - 1));
  gb_tensor *nothing = padded ? NULL : gb_chain_full(c, (gb_dtype)image->dtype, 0, NULL, device, 0);
  for (int done = 0; !done && c->status == GB_OK;) {
    gb_tensor *index = by_dim[0].index[which[0]], *weight = by_dim[0].weight[which[0]];
    gb_tensor *outside = by_dim[0].outside[which[0]];
    for (int i = 1; i < count; i++) {
      gb_tensor *own = by_dim[i].weight[which[i]];
      gb_tensor *width = gb_chain_full(c, GB_INT64, 0, NULL, device, (double)sizes[i]);
      index = total(c, product(c, index, width), by_dim[i].index[which[i]]);
      if (own) weight = product(c, weight, own);
      outside = gb_chain_2(c, GB_OP_logical_or, outside, by_dim[i].outside[which[i]], NULL);
    }
    if (padded) index = GB_CHAIN(c, where, .condition = outside, .x = last, .y = index);
    if (c->status != GB_OK) return NULL;
    const int64_t shape[3] = { image->shape[0], image->shape[1], index->shape[2] };
    gb_tensor *value = GB_CHAIN(c, gather, .x = image, .dim = gb_attr_int(2), .index = expanded(c, index, 3, shape));
    if (!padded) value = GB_CHAIN(c, where, .condition = outside, .x = nothing, .y = value);
    if (!sum) sum = weight ? product(c, value, weight) : value;
    else sum = GB_CHAIN(c, addcmul, .x = sum, .y = value, .z = weight, .value = gb_attr_num(1));
    int i = count - 1;
    while (i >= 0 && ++which[i] == by_dim[i].count) which[i--] = 0;
    done = i < 0;
  }
  return sum;
}

/* x [n, c, l], index and weight [n, taps, places]. */
static gb_status taps_check(gb_op_call *call, const gb_tensor *x, const gb_tensor *index, const gb_tensor *weight) {
  if (x->ndim != 3 || index->ndim != 3 || weight->ndim != 3 || index->shape[0] != x->shape[0] || index->shape[1] < 1 ||
      memcmp(index->shape, weight->shape, 3 * sizeof *index->shape))
    return gb_call_fail(call, GB_ESHAPE, "x is [n, c, l], index and weight are [n, t, p] with t from 1 on");
  if ((x->dtype != GB_FLOAT32 && x->dtype != GB_FLOAT64) || weight->dtype != x->dtype || index->dtype != GB_INT64)
    return gb_call_fail(call, GB_EDTYPE, "x and weight are both float32 or float64, index is int64");
  if (!gb_is_contiguous(x) || !gb_is_contiguous(index) || !gb_is_contiguous(weight))
    return gb_call_fail(call, GB_EINVAL, "x, index and weight are contiguous; use contiguous()");
  return GB_OK;
}

static gb_status sum_taps_check(gb_op_call *call) {
  const gb_in_sum_taps *in = GB_IN(call, sum_taps);
  GB_TRY(taps_check(call, in->x, in->index, in->weight));
  const int64_t shape[3] = { in->x->shape[0], in->x->shape[1], in->index->shape[2] };
  return gb_call_output(call, GB_OUT_AT(sum_taps, y), 3, shape, (gb_dtype)in->x->dtype);
}

static gb_status sum_taps_backward_check(gb_op_call *call) {
  const gb_in_sum_taps_backward *in = GB_IN(call, sum_taps_backward);
  const gb_attrs_sum_taps_backward *attrs = GB_ATTRS(call, sum_taps_backward);
  GB_TRY(taps_check(call, in->x, in->index, in->weight));
  const int64_t shape[3] = { in->x->shape[0], in->x->shape[1], in->index->shape[2] };
  if (in->grad->ndim != 3 || memcmp(in->grad->shape, shape, sizeof shape) || in->grad->dtype != in->x->dtype ||
      !gb_is_contiguous(in->grad))
    return gb_call_fail(call, GB_ESHAPE, "grad is contiguous [n, c, p] of x's dtype");
  if (attrs->needs_x.integer)
    GB_TRY(gb_call_output(call, GB_OUT_AT(sum_taps_backward, dx), 3, in->x->shape, (gb_dtype)in->x->dtype));
  if (!attrs->needs_weight.integer) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(sum_taps_backward, dweight), 3, in->weight->shape, (gb_dtype)in->x->dtype);
}

/* Both gradients by ops that have gradients themselves. */
static gb_status taps_composed(gb_grad_call *grad, gb_tensor *g) {
  const gb_in_sum_taps *saved = GB_SAVED(grad, sum_taps);
  gb_tensor *x = saved->x, *index = saved->index, *none = NULL;
  const int64_t n = x->shape[0], channels = x->shape[1], l = x->shape[2], t = index->shape[1], p = index->shape[2];
  const int64_t line[3] = { n, 1, t * p }, all[3] = { n, channels, t * p }, each[4] = { n, channels, t, p };
  const int64_t one[4] = { n, channels, 1, p }, weights[4] = { n, 1, t, p };
  gb_status status = GB_OK;
  gb_chain c, w; /* dx, dweight */
  gb_chain_begin(&c, grad->context);
  gb_tensor *at = expanded(&c, shaped(&c, index, 3, line), 3, all), *up = shaped(&c, g, 4, one);
  if (GB_NEEDS(grad, sum_taps, weight)) {
    gb_chain_begin(&w, grad->context);
    w.status = c.status;
    gb_tensor *zero = constant(&w, x, 3, (int64_t[]){ n, channels, 1 }, 0);
    gb_tensor *value = GB_CHAIN(&w, gather, .x = joined(&w, (gb_tensor *[]){ x, zero }, 2, 2), .dim = gb_attr_int(2),
                                .index = at);
    gb_tensor *y = GB_CHAIN(&w, sum, .x = product(&w, shaped(&w, value, 4, each), up),
                            .dim = gb_attr_ints(1, &(int64_t){ 1 }));
    status = gb_chain_end(&w, y, &GB_GRAD_IN(grad, sum_taps)->weight);
    if (c.status == GB_OK) c.status = status;
  }
  if (!GB_NEEDS(grad, sum_taps, x) || c.status != GB_OK) {
    gb_status end = gb_chain_end(&c, c.status == GB_OK ? g : NULL, &none);
    gb_drop(&none);
    return status != GB_OK ? status : end;
  }
  gb_tensor *zero = GB_CHAIN(&c, contiguous, .x = constant(&c, x, 3, (int64_t[]){ n, channels, l + 1 }, 0));
  gb_tensor *shares = shaped(&c, product(&c, up, shaped(&c, saved->weight, 4, weights)), 3, all);
  gb_tensor *sums = GB_CHAIN(&c, scatter_add, .x = zero, .dim = gb_attr_int(2), .index = at, .source = shares);
  return gb_chain_end(&c, part(&c, sums, 2, 0, l), &GB_GRAD_IN(grad, sum_taps)->x);
}

static gb_status sum_taps_gradient(gb_grad_call *grad) {
  const gb_in_sum_taps *saved = GB_SAVED(grad, sum_taps);
  gb_out_sum_taps_backward made = { 0 };
  gb_tensor *g = NULL;
  if (grad->create_graph) return taps_composed(grad, GB_GRAD_OUT(grad, sum_taps)->y);
  GB_TRY(gb_op_contiguous(grad->context, GB_GRAD_OUT(grad, sum_taps)->y, &g));
  gb_status status = GB_RUN(grad->context, sum_taps_backward, &made.dx, .grad = g, .x = saved->x,
                            .index = saved->index, .weight = saved->weight,
                            .needs_x = gb_attr_int(GB_NEEDS(grad, sum_taps, x)),
                            .needs_weight = gb_attr_int(GB_NEEDS(grad, sum_taps, weight)));
  gb_drop(&g);
  GB_GRAD_IN(grad, sum_taps)->x = made.dx, GB_GRAD_IN(grad, sum_taps)->weight = made.dweight;
  return status;
}

/* The same sum as gathered's, by one op. */
static gb_tensor *tapped(gb_chain *c, gb_tensor *image, const taps *by_dim, const int64_t *sizes, int count) {
  gb_tensor *index[MOST_SUMMED], *weight[MOST_SUMMED];
  int which[MOST_PLACES] = { 0 }, summed = 0;
  if (c->status != GB_OK) return NULL;
  gb_device device = image->storage->device;
  gb_tensor *last = gb_chain_full(c, GB_INT64, 0, NULL, device, (double)image->shape[2]);
  for (int i = 0; i >= 0 && c->status == GB_OK; summed++) {
    gb_tensor *at = by_dim[0].index[which[0]], *share = by_dim[0].weight[which[0]];
    gb_tensor *outside = by_dim[0].outside[which[0]];
    for (i = 1; i < count; i++) {
      gb_tensor *own = by_dim[i].weight[which[i]];
      gb_tensor *width = gb_chain_full(c, GB_INT64, 0, NULL, device, (double)sizes[i]);
      at = total(c, product(c, at, width), by_dim[i].index[which[i]]);
      if (own) share = product(c, share, own);
      outside = gb_chain_2(c, GB_OP_logical_or, outside, by_dim[i].outside[which[i]], NULL);
    }
    index[summed] = GB_CHAIN(c, where, .condition = outside, .x = last, .y = at);
    weight[summed] = !share && at ? constant(c, image, 3, at->shape, 1) : share;
    i = count - 1;
    while (i >= 0 && ++which[i] == by_dim[i].count) which[i--] = 0;
  }
  if (c->status != GB_OK) return NULL;
  gb_tensor *places = joined(c, index, summed, 1), *weights = joined(c, weight, summed, 1);
  return GB_CHAIN(c, sum_taps, .x = GB_CHAIN(c, contiguous, .x = image), .index = places, .weight = weights);
}

/* x [n, c, places...] and grid [n, places..., their number]. */
static gb_status grid_sample_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, grid_sample)->x, *grid = GB_IN(call, grid_sample)->grid;
  char a[96], b[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(grid_sample, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(grid_sample, grid)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(grid_sample, x), 4, 5));
  gb_shape_text(x->ndim, x->shape, a, sizeof a), gb_shape_text(grid->ndim, grid->shape, b, sizeof b);
  if (grid->ndim != x->ndim || grid->shape[0] != x->shape[0] || grid->shape[grid->ndim - 1] != x->ndim - 2)
    return gb_call_fail(call, GB_ESHAPE,
                        "x is %s, grid %s: grid needs x's batch, as many dimensions, and %d coordinates last",
                        a, b, x->ndim - 2);
  for (int i = 2; i < x->ndim; i++)
    if (x->shape[i] < 1) return gb_call_fail(call, GB_ESHAPE, "dimension %d of x (%s) is empty", i + 1, a);
  if (x->ndim == 5 && GB_ATTRS(call, grid_sample)->mode.integer == GB_WORD_bicubic)
    return gb_call_fail(call, GB_EUNSUPPORTED, "bicubic is for images, x is %s; use bilinear or nearest", a);
  return GB_OK;
}

static gb_status grid_sample_compose(gb_op_call *call) {
  GB_TRY(grid_sample_check(call));
  const gb_attrs_grid_sample *attrs = GB_ATTRS(call, grid_sample);
  gb_tensor *x = GB_IN(call, grid_sample)->x, *grid = GB_IN(call, grid_sample)->grid;
  int count = x->ndim - 2;
  bool corners = attrs->align_corners.integer;
  int64_t shape[GB_MAX_NDIM] = { x->shape[0], x->shape[1] }, places = 1, read = 1;
  taps by_dim[MOST_PLACES];
  for (int i = 0; i < count; i++) {
    shape[2 + i] = grid->shape[1 + i];
    places *= x->shape[2 + i], read = gb_size_times(read, shape[2 + i]);
  }
  bool fused = x->storage->device.type == GB_CPU;
  bool padded = !fused && read >= places / 2; /* to copy x for a few places of it costs more than it saves */
  gb_dtype dtype = gb_promote((gb_dtype)x->dtype, (gb_dtype)grid->dtype);
  gb_dtype inner = gb_is_16bit(dtype) ? GB_FLOAT32 : dtype;
  gb_chain c, g; /* what is read where, and what is made of it */
  gb_chain_begin(&c, call->context);
  gb_chain_begin(&g, call->context);
  gb_tensor *wide = gb_chain_cast(&c, grid, inner);
  for (int i = 0; i < count; i++) {
    gb_tensor *at = coordinate(&c, wide, i, count, x->shape[2 + i], corners);
    by_dim[i] = taps_of(&c, at, x->shape[2 + i], attrs->mode.integer, attrs->padding_mode.integer, corners);
  }
  g.status = c.status;
  gb_tensor *image = gb_chain_cast(&g, x, inner);
  image = shaped(&g, image, 3, (int64_t[]){ x->shape[0], x->shape[1], places });
  if (image && padded) {
    gb_tensor *nothing = constant(&g, image, 3, (int64_t[]){ x->shape[0], x->shape[1], 1 }, 0);
    image = joined(&g, (gb_tensor *[]){ image, nothing }, 2, 2);
  }
  gb_tensor *sums = fused ? tapped(&g, image, by_dim, x->shape + 2, count)
                          : gathered(&g, image, padded, by_dim, x->shape + 2, count);
  gb_tensor *y = shaped(&g, sums, x->ndim, shape);
  if (g.status == GB_OK) y = gb_chain_cast(&g, y, dtype);
  gb_status status = gb_chain_end(&g, y, &GB_OUT(call, grid_sample)->y);
  c.status = GB_OK;
  gb_tensor *none = NULL;
  gb_chain_end(&c, x, &none);
  gb_drop(&none);
  return status;
}

/* size numbers from -1 to 1, the corners' centres or the corners themselves. */
static gb_tensor *steps(gb_chain *c, const gb_tensor *like, int64_t size, bool corners) {
  gb_tensor *x = gb_chain_full(c, (gb_dtype)like->dtype, 1, &size, like->storage->device, 0);
  double first = size > 1 ? (corners ? -1 : 1 / (double)size - 1) : 0;
  double step = size > 1 ? (corners ? 2 / (double)(size - 1) : 2 / (double)size) : 0;
  if (x)
    c->status = GB_RUN(c->context, sequence, NULL, .x = x, .start = gb_attr_num(first), .step = gb_attr_num(step));
  return x;
}

/* theta times (x, y, 1) at every place. */
static gb_status affine_grid_compose(gb_op_call *call) {
  gb_tensor *theta = GB_IN(call, affine_grid)->theta;
  const gb_attrs_affine_grid *attrs = GB_ATTRS(call, affine_grid);
  const int64_t *size = attrs->size.ints;
  int count = attrs->size.count - 2;
  char text[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(affine_grid, theta)));
  bool fits = (count == 2 || count == 3) && theta->ndim == 3;
  fits = fits && theta->shape[0] == size[0] && theta->shape[1] == count &&
              theta->shape[2] == count + 1;
  for (int i = 0; fits && i < count; i++) fits = size[2 + i] >= 1 && size[2 + i] <= INT64_C(1) << 30;
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE,
                        "theta is %s; for images of size {n, c, h, w} it is [n, 2, 3], for volumes of size "
                        "{n, c, d, h, w} [n, 3, 4], and no size is 0",
                        gb_shape_text(theta->ndim, theta->shape, text, sizeof text));
  int64_t places = 1, column[GB_MAX_NDIM], all[GB_MAX_NDIM], shape[GB_MAX_NDIM] = { size[0] };
  for (int i = 0; i < count; i++) {
    places = gb_size_times(places, size[2 + i]);
    shape[1 + i] = all[i] = size[2 + i], column[i] = 1;
  }
  shape[1 + count] = count, all[count] = column[count] = 1;
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *parts[MOST_PLACES + 1];
  for (int i = 0; i < count; i++) { /* x first, which is the last dim */
    int dim = count - 1 - i;
    column[dim] = size[2 + dim];
    gb_tensor *along = shaped(&c, steps(&c, theta, size[2 + dim], attrs->align_corners.integer), count + 1, column);
    parts[i] = expanded(&c, along, count + 1, all);
    column[dim] = 1;
  }
  parts[count] = constant(&c, theta, count + 1, all, 1);
  gb_tensor *base = c.status == GB_OK ? joined(&c, parts, count + 1, count) : NULL;
  gb_tensor *turned = GB_CHAIN(&c, transpose, .x = theta, .first = gb_attr_int(1), .second = gb_attr_int(2));
  gb_tensor *y = GB_CHAIN(&c, matmul, .x = shaped(&c, base, 2, (int64_t[]){ places, count + 1 }), .y = turned);
  return gb_chain_end(&c, shaped(&c, y, count + 2, shape), &GB_OUT(call, affine_grid)->y);
}

/* ====} */

/* {==== Norms: instance_norm, local_response_norm ==== */

/* running = (1 - momentum) * running + momentum * the mean of `fresh` over the batch. */
static void update_running(gb_chain *c, gb_tensor *running, gb_tensor *fresh, double momentum) {
  if (!running || c->status != GB_OK) return;
  gb_tensor *mean = GB_CHAIN(c, mean, .x = fresh, .dim = gb_attr_ints(1, &(int64_t){ 0 }));
  gb_tensor *next = total(c, scaled(c, running, 1 - momentum), scaled(c, mean, momentum));
  if (c->status == GB_OK) c->status = GB_RUN(c->context, copy, NULL, .x = running, .source = next);
}

/* The statistics of each image's channels, into the running ones. Not in a second run of the same forward pass. */
static void update_statistics(gb_chain *c, gb_op_call *call) {
  const gb_in_instance_norm *in = GB_IN(call, instance_norm);
  if ((!in->running_mean && !in->running_var) || call->context->modes->recompute) return;
  double momentum = GB_ATTRS(call, instance_norm)->momentum.number;
  gb_attr places = { .given = true, .count = (int8_t)(in->x->ndim - 2) };
  for (int i = 2; i < in->x->ndim; i++) places.ints[i - 2] = i;
  gb_tensor *x = gb_chain_widen(c, gb_chain_detach(c, in->x));
  update_running(c, in->running_mean, GB_CHAIN(c, mean, .x = x, .dim = places), momentum);
  update_running(c, in->running_var, GB_CHAIN(c, var, .x = x, .dim = places), momentum);
}

/* A vector by channel as [channels, 1, ...], which broadcasts to x. */
static gb_tensor *by_channel(gb_chain *c, gb_tensor *vector, const gb_tensor *x) {
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < x->ndim - 1; i++) shape[i] = i ? 1 : x->shape[1];
  gb_dtype dtype = gb_is_16bit((gb_dtype)x->dtype) ? GB_FLOAT32 : (gb_dtype)x->dtype;
  return shaped(c, gb_chain_cast(c, vector, dtype), x->ndim - 1, shape);
}

/* x normalised by the running statistics. */
static gb_status fixed_norm(gb_op_call *call) {
  const gb_in_instance_norm *in = GB_IN(call, instance_norm);
  gb_tensor *x = in->x;
  if (!in->running_mean || !in->running_var)
    return gb_call_fail(call, GB_EINVAL, "without use_input_stats running_mean and running_var are needed");
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *away = gb_chain_2(&c, GB_OP_sub, gb_chain_widen(&c, x), by_channel(&c, in->running_mean, x), NULL);
  gb_tensor *variance = moved(&c, by_channel(&c, in->running_var, x), GB_ATTRS(call, instance_norm)->eps.number);
  gb_tensor *y = product(&c, away, gb_chain_1(&c, GB_OP_rsqrt, variance, NULL));
  if (in->weight) y = product(&c, y, by_channel(&c, in->weight, x));
  if (in->bias) y = total(&c, y, by_channel(&c, in->bias, x));
  return gb_chain_end(&c, c.status == GB_OK ? gb_chain_cast(&c, y, (gb_dtype)x->dtype) : NULL,
                      &GB_OUT(call, instance_norm)->y);
}

static gb_status instance_norm_compose(gb_op_call *call) {
  const gb_in_instance_norm *in = GB_IN(call, instance_norm);
  const gb_attrs_instance_norm *attrs = GB_ATTRS(call, instance_norm);
  gb_tensor *x = in->x, *const running[2] = { in->running_mean, in->running_var };
  char text[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(instance_norm, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(instance_norm, x), 3, GB_MAX_NDIM));
  for (int i = 0; i < 2; i++)
    if (running[i] && (running[i]->ndim != 1 || running[i]->shape[0] != x->shape[1] || gb_tensor_in_graph(running[i])))
      return gb_call_fail(call, GB_ESHAPE,
                          "running_mean and running_var are vectors of the %" PRId64 " channels of x that ask "
                          "for no gradient", x->shape[1]);
  if (!attrs->use_input_stats.integer) return fixed_norm(call);
  if (x->shape[0] && x->shape[1] && x->numel / (x->shape[0] * x->shape[1]) == 1)
    return gb_call_fail(call, GB_ESHAPE, "statistics need more than one value per channel of an image, x is %s",
                        gb_shape_text(x->ndim, x->shape, text, sizeof text));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *y = GB_CHAIN(&c, group_norm, .x = x, .groups = gb_attr_int(x->shape[1] > 0 ? x->shape[1] : 1),
                          .weight = in->weight, .bias = in->bias, .eps = attrs->eps);
  if (c.status == GB_OK && x->numel > 0) update_statistics(&c, call);
  return gb_chain_end(&c, y, &GB_OUT(call, instance_norm)->y);
}

/* The sum of `size` channels around each, of squares that are padded by zeros. One more tensor at a time, so any size
 * may be. */
static gb_status sum_channels(gb_context *c, gb_tensor *padded, int64_t channels, int64_t size, gb_tensor **out) {
  gb_tensor *sum = NULL;
  gb_status status = GB_OK;
  for (int64_t k = 0; status == GB_OK && k < size; k++) {
    gb_tensor *one = NULL, *next = NULL;
    status = GB_RUN(c, narrow, &one, .x = padded, .dim = gb_attr_int(1), .start = gb_attr_int(k),
                    .length = gb_attr_int(channels));
    if (status != GB_OK) break;
    if (sum) {
      status = GB_RUN(c, add, &next, .x = sum, .y = one);
      gb_drop(&one), gb_drop(&sum);
      sum = next;
    } else sum = one;
  }
  if (status != GB_OK) gb_drop(&sum);
  *out = sum;
  return status;
}

static gb_status local_response_norm_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, local_response_norm)->x, *sum = NULL;
  const gb_attrs_local_response_norm *attrs = GB_ATTRS(call, local_response_norm);
  GB_TRY(gb_require_float(call, GB_IN_AT(local_response_norm, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(local_response_norm, x), 3, 5));
  int64_t size = attrs->size.integer, pad[GB_MAX_NDIM] = { 0 }, most = x->shape[1] > 0 ? x->shape[1] - 1 : 0;
  int at = 2 * (x->ndim - 2);
  pad[at] = size / 2 < most ? size / 2 : most; /* what lies farther out is 0 for every channel */
  pad[at + 1] = (size - 1) / 2 < most ? (size - 1) / 2 : most;
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *square = gb_chain_1(&c, GB_OP_square, gb_chain_widen(&c, x), NULL);
  gb_tensor *padded = GB_CHAIN(&c, pad, .x = square, .pad = gb_attr_ints(at + 2, pad));
  if (c.status == GB_OK) c.status = sum_channels(call->context, padded, x->shape[1], pad[at] + pad[at + 1] + 1, &sum);
  gb_tensor *below = moved(&c, scaled(&c, sum, attrs->alpha.number / (double)size), attrs->k.number);
  gb_tensor *y = gb_chain_2(&c, GB_OP_div, x, gb_chain_number(&c, GB_OP_pow, below, attrs->beta.number), NULL);
  gb_status status = gb_chain_end(&c, c.status == GB_OK ? gb_chain_cast(&c, y, (gb_dtype)x->dtype) : NULL,
                                  &GB_OUT(call, local_response_norm)->y);
  gb_drop(&sum);
  return status;
}

/* ====} */

/* {==== Channels dropped ==== */

/* true with probability 1 - p, one for each of x's first `dims` dims. */
static gb_tensor *kept(gb_chain *c, const gb_tensor *x, int dims, double p) {
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < x->ndim; i++) shape[i] = i < dims ? x->shape[i] : 1;
  gb_tensor *ones = gb_chain_full(c, GB_FLOAT32, x->ndim, shape, x->storage->device, 1);
  gb_tensor *drawn = GB_CHAIN(c, dropout, .x = ones, .p = gb_attr_num(p), .training = gb_attr_int(true));
  return gb_chain_number(c, GB_OP_gt, drawn, 0);
}

/* dropout1d, 2d and 3d have p and training at one place. */
#define LIKE_DROPOUT(op) \
  _Static_assert(GB_ATTR_AT(op, p) == GB_ATTR_AT(dropout1d, p), "p as in dropout1d"); \
  _Static_assert(GB_ATTR_AT(op, training) == GB_ATTR_AT(dropout1d, training), "training as in dropout1d")
LIKE_DROPOUT(dropout2d);
LIKE_DROPOUT(dropout3d);
LIKE_DROPOUT(alpha_dropout);
LIKE_DROPOUT(feature_alpha_dropout);

/* x as it is, by a copy that has a history of its own. */
static gb_status unchanged(gb_op_call *call) {
  return GB_RUN(call->context, clone, &GB_OUT(call, dropout1d)->y, .x = GB_IN(call, dropout1d)->x);
}

/* Whole channels of x, which has `places` dims after them, with or without a batch. */
static gb_status drop_channels(gb_op_call *call, int places) {
  gb_tensor *x = GB_IN(call, dropout1d)->x;
  double p = GB_ATTRS(call, dropout1d)->p.number;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(dropout1d, x), places + 1, places + 2));
  if (!GB_ATTRS(call, dropout1d)->training.integer || p == 0) return unchanged(call);
  GB_TRY(gb_require_float(call, GB_IN_AT(dropout1d, x)));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *keep = gb_chain_cast(&c, kept(&c, x, x->ndim - places, p), (gb_dtype)x->dtype);
  gb_tensor *y = p == 1 ? product(&c, x, keep) : scaled(&c, product(&c, x, keep), 1 / (1 - p));
  return gb_chain_end(&c, y, &GB_OUT(call, dropout1d)->y);
}

static gb_status dropout1d_compose(gb_op_call *call) { return drop_channels(call, 1); }
static gb_status dropout2d_compose(gb_op_call *call) { return drop_channels(call, 2); }
static gb_status dropout3d_compose(gb_op_call *call) { return drop_channels(call, 3); }

/* Dropped elements become selu's limit for -inf; what follows brings mean and variance back (Klambauer et al. 2017). */
static gb_status alpha_drop(gb_op_call *call, int dims) {
  const double limit = -1.7580993408473766;
  gb_tensor *x = GB_IN(call, dropout1d)->x;
  double p = GB_ATTRS(call, dropout1d)->p.number;
  if (!GB_ATTRS(call, dropout1d)->training.integer || p == 0) return unchanged(call);
  GB_TRY(gb_require_float(call, GB_IN_AT(dropout1d, x)));
  if (p == 1) return gb_op_number(call->context, GB_OP_mul, x, 0, &GB_OUT(call, dropout1d)->y);
  double scale = 1 / sqrt((1 - p) * (1 + p * limit * limit));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *low = gb_chain_full(&c, (gb_dtype)x->dtype, 0, NULL, x->storage->device, limit);
  gb_tensor *picked = GB_CHAIN(&c, where, .condition = kept(&c, x, dims, p), .x = x, .y = low);
  return gb_chain_end(&c, moved(&c, scaled(&c, picked, scale), -scale * limit * p), &GB_OUT(call, dropout1d)->y);
}

static gb_status alpha_dropout_compose(gb_op_call *call) { return alpha_drop(call, GB_IN(call, alpha_dropout)->x->ndim);
                                                           }
static gb_status feature_alpha_dropout_compose(gb_op_call *call) {
  GB_TRY(gb_require_ndim(call, GB_IN_AT(feature_alpha_dropout, x), 2, GB_MAX_NDIM));
  return alpha_drop(call, 2);
}

/* ====} */

/* {==== embedding_bag ==== */

/* A bag as a row of index: its ids, how many, and which of them count. */
/* at: where the ids of the rows lie in index, if they are not all of it, in order. */
typedef struct bags { gb_tensor *index, *live, *weights, *at; int64_t count, longest; } bags;

/* Which ids are not padding_idx; NULL: all. */
static gb_tensor *live_ids(gb_chain *c, gb_tensor *index, const gb_attr *padding) {
  return padding->given ? gb_chain_number(c, GB_OP_ne, index, (double)padding->integer) : NULL;
}

/* Bags of all lengths as rows of the longest: the ids at offset + 0, 1, ... and whether these belong to the bag. */
static void rows_of_bags(gb_chain *c, gb_op_call *call, gb_tensor *ends, gb_tensor *starts, bags *b) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  gb_tensor *lengths = gb_chain_2(c, GB_OP_sub, ends, starts, NULL);
  gb_tensor *most = b->count ? GB_CHAIN(c, amax, .x = lengths) : NULL;
  if (c->status == GB_OK && most) c->status = gb_tensor_item(most, NULL, &b->longest);
  if (c->status == GB_OK && b->longest < 1) b->longest = 1;
  gb_tensor *steps = gb_chain_full(c, GB_INT64, 1, &b->longest, in->index->storage->device, 0);
  if (c->status == GB_OK) c->status = GB_RUN(c->context, sequence, NULL, .x = steps);
  const int64_t column[2] = { b->count, 1 }, flat = b->count * b->longest, rows[2] = { b->count, b->longest };
  gb_tensor *within = gb_chain_2(c, GB_OP_lt, steps, shaped(c, lengths, 2, column), NULL);
  gb_tensor *at = product(c, total(c, steps, shaped(c, starts, 2, column)), gb_chain_cast(c, within, GB_INT64));
  gb_tensor *where = b->at = shaped(c, at, 1, &flat);
  if (in->index->numel > 0) b->index = GB_CHAIN(c, index_select, .x = in->index, .dim = gb_attr_int(0), .index = where);
  else b->index = gb_chain_full(c, GB_INT64, 1, &flat, in->index->storage->device, 0); /* no bag has any id */
  if (in->per_sample_weights && in->index->numel > 0)
    b->weights = shaped(c, GB_CHAIN(c, index_select, .x = in->per_sample_weights, .dim = gb_attr_int(0),
                                    .index = where), 2, rows);
  b->index = shaped(c, b->index, 2, rows);
  gb_tensor *live = live_ids(c, b->index, &GB_ATTRS(call, embedding_bag)->padding_idx);
  b->live = live ? gb_chain_2(c, GB_OP_logical_and, live, within, NULL) : within;
}

/* Offsets rise from 0 and stay within index. */
static gb_status check_offsets(gb_op_call *call, gb_chain *c, gb_tensor *starts, gb_tensor *ends, int64_t ids,
                               int64_t count) {
  int64_t first = 0, falls = 0;
  if (count == 0) return GB_OK;
  gb_tensor *bad = GB_CHAIN(c, sum, .x = gb_chain_2(c, GB_OP_gt, starts, ends, NULL));
  gb_tensor *head = GB_CHAIN(c, select, .x = starts, .dim = gb_attr_int(0), .position = gb_attr_int(0));
  if (c->status == GB_OK) c->status = gb_tensor_item(bad, NULL, &falls);
  if (c->status == GB_OK) c->status = gb_tensor_item(head, NULL, &first);
  if (c->status != GB_OK || (falls == 0 && first == 0)) return c->status;
  return gb_call_fail(call, GB_EINDEX, "offsets begin at 0, never fall, and stay within the %" PRId64 " ids of index",
                      ids);
}

/* The bags of a vector by its offsets, or the rows of a matrix. */
static gb_status find_bags(gb_op_call *call, gb_chain *c, bags *b) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  const gb_attrs_embedding_bag *attrs = GB_ATTRS(call, embedding_bag);
  if (in->index->ndim == 2) {
    *b = (bags){ in->index, live_ids(c, in->index, &attrs->padding_idx), in->per_sample_weights, NULL,
                 in->index->shape[0], in->index->shape[1] };
    return c->status;
  }
  bool closed = attrs->include_last_offset.integer;
  int64_t given = in->offsets->shape[0], ids = in->index->numel;
  *b = (bags){ .count = given - closed };
  gb_tensor *offsets = gb_chain_cast(c, in->offsets, GB_INT64), *starts = part(c, offsets, 0, 0, b->count), *ends;
  if (closed) ends = part(c, offsets, 0, 1, b->count);
  else {
    gb_tensor *last = gb_chain_full(c, GB_INT64, 1, &(int64_t){ 1 }, in->index->storage->device, (double)ids);
    gb_tensor *both[2] = { b->count ? part(c, offsets, 0, 1, b->count - 1) : offsets, last };
    ends = c->status == GB_OK ? part(c, joined(c, both, 2, 0), 0, 0, b->count) : NULL;
  }
  if (c->status != GB_OK) return c->status;
  GB_TRY(check_offsets(call, c, starts, ends, ids, b->count));
  if (closed && b->count) {
    int64_t end = 0;
    gb_tensor *tail = GB_CHAIN(c, select, .x = ends, .dim = gb_attr_int(0), .position = gb_attr_int(-1));
    if (c->status == GB_OK) c->status = gb_tensor_item(tail, NULL, &end);
    if (c->status == GB_OK && end > ids)
      return gb_call_fail(call, GB_EINDEX, "the last offset is %" PRId64 ", index has %" PRId64 " ids", end, ids);
  }
  rows_of_bags(c, call, ends, starts, b);
  return c->status;
}

/* Shapes of all four, and the modes that take weights. */
static gb_status embedding_bag_check(gb_op_call *call) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  const gb_attrs_embedding_bag *attrs = GB_ATTRS(call, embedding_bag);
  GB_TRY(gb_require_integer(call, GB_IN_AT(embedding_bag, index)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding_bag, index), 1, 2));
  GB_TRY(gb_require_float(call, GB_IN_AT(embedding_bag, weight)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding_bag, weight), 2, 2));
  bool flat = in->index->ndim == 1;
  if (flat != (in->offsets != NULL))
    return gb_call_fail(call, GB_EINVAL, flat ? "a vector of ids needs offsets, where its bags begin"
                                              : "a matrix of ids has a bag per row; offsets are for a vector");
  if (flat) {
    GB_TRY(gb_require_integer(call, GB_IN_AT(embedding_bag, offsets)));
    GB_TRY(gb_require_ndim(call, GB_IN_AT(embedding_bag, offsets), 1, 1));
    if (attrs->include_last_offset.integer && in->offsets->shape[0] == 0)
      return gb_call_fail(call, GB_EINVAL, "include_last_offset needs at least one offset");
  }
  int64_t padding = attrs->padding_idx.given ? attrs->padding_idx.integer : 0, rows = in->weight->shape[0];
  if (attrs->padding_idx.given && (padding < 0 || padding >= rows))
    return gb_call_fail(call, GB_EINDEX,
                        "padding_idx %" PRId64 " is out of range 0 .. %" PRId64 " (the rows of weight)",
                        padding, rows - 1);
  if (attrs->scale_grad_by_freq.integer && attrs->mode.integer == GB_WORD_max)
    return gb_call_fail(call, GB_EINVAL, "scale_grad_by_freq is for the modes sum and mean");
  const gb_tensor *w = in->per_sample_weights;
  if (!w) return GB_OK;
  GB_TRY(gb_require_float(call, GB_IN_AT(embedding_bag, per_sample_weights)));
  if (attrs->mode.integer != GB_WORD_sum) return gb_call_fail(call, GB_EINVAL, "per_sample_weights are for mode sum");
  size_t bytes = (size_t)w->ndim * sizeof *w->shape;
  if (w->ndim == in->index->ndim && !memcmp(w->shape, in->index->shape, bytes)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "per_sample_weights needs the shape of index");
}

/* The largest of the rows of each bag that count; 0 where none does. Of equal ones the first is taken, which then has
 * the whole gradient, as in PyTorch. */
static gb_tensor *bag_max(gb_chain *c, gb_tensor *rows, gb_tensor *live) {
  gb_attr dim = gb_attr_ints(1, &(int64_t){ 1 });
  gb_tensor *dead = live ? gb_chain_1(c, GB_OP_logical_not, live, NULL) : NULL;
  if (live) rows = GB_CHAIN(c, masked_fill, .x = rows, .mask = dead, .value = gb_attr_num(-HUGE_VAL));
  gb_tensor *at = GB_CHAIN(c, argmax, .x = rows, .dim = gb_attr_int(1), .keepdim = gb_attr_int(true));
  gb_tensor *picked = GB_CHAIN(c, gather, .x = rows, .dim = gb_attr_int(1), .index = at);
  gb_tensor *y = GB_CHAIN(c, squeeze, .x = picked, .dim = dim);
  gb_tensor *empty = live ? GB_CHAIN(c, all, .x = dead, .dim = dim) : NULL;
  return live ? GB_CHAIN(c, masked_fill, .x = y, .mask = empty, .value = gb_attr_num(0)) : y;
}

/* Rows that are picked and too long are made shorter in weight, which the op of one row each does. */
static void limit_rows(gb_op_call *call, gb_chain *c) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  const gb_attrs_embedding_bag *attrs = GB_ATTRS(call, embedding_bag);
  GB_CHAIN(c, embedding, .index = in->index, .weight = gb_chain_detach(c, in->weight), .max_norm = attrs->max_norm,
           .norm_type = attrs->norm_type);
}

/* The rows that all ids name, whose gradients are divided by how often an id stands in index, then those at `at`. */
static gb_tensor *scaled_by_frequency(gb_op_call *call, gb_chain *c, gb_tensor *at) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  gb_tensor *ids = shaped(c, in->index, 1, &in->index->numel);
  gb_tensor *rows = GB_CHAIN(c, embedding, .index = ids, .weight = in->weight, .scale_grad_by_freq = gb_attr_int(1));
  return at ? GB_CHAIN(c, index_select, .x = rows, .dim = gb_attr_int(0), .index = at) : rows;
}

/* Rows of weight by bag, [bags, longest, dim], then the sum, mean or maximum over the middle. Sums of whole bags take
 * the rows as they lie. */
static gb_status embedding_bag_compose(gb_op_call *call) {
  const gb_in_embedding_bag *in = GB_IN(call, embedding_bag);
  bool scaled_rows = GB_ATTRS(call, embedding_bag)->scale_grad_by_freq.integer && in->index->numel > 0;
  int64_t mode = GB_ATTRS(call, embedding_bag)->mode.integer, size[3], none[2];
  gb_attr dim = gb_attr_ints(1, &(int64_t){ 1 });
  gb_tensor *y = NULL;
  bags b = { 0 };
  GB_TRY(embedding_bag_check(call));
  gb_chain c;
  gb_chain_begin(&c, call->context);
  if (GB_ATTRS(call, embedding_bag)->max_norm.given) limit_rows(call, &c);
  gb_status status = c.status == GB_OK ? find_bags(call, &c, &b) : c.status;
  if (status != GB_OK) c.status = status;
  size[0] = none[0] = b.count, size[1] = b.longest, size[2] = 1, none[1] = in->weight->shape[1];
  if (c.status == GB_OK && (b.count == 0 || b.longest == 0)) y = constant(&c, in->weight, 2, none, 0);
  else {
    const int64_t flat = b.count * b.longest, each[3] = { b.count, b.longest, in->weight->shape[1] };
    bool plain = !b.live && !b.weights && mode != GB_WORD_max && !scaled_rows;
    gb_tensor *ids = plain ? NULL : shaped(&c, b.index, 1, &flat);
    gb_tensor *picked = plain ? NULL : scaled_rows ? scaled_by_frequency(call, &c, b.at)
        : GB_CHAIN(&c, index_select, .x = in->weight, .dim = gb_attr_int(0), .index = ids);
    gb_tensor *rows = plain ? NULL : shaped(&c, picked, 3, each);
    gb_tensor *live = b.live ? shaped(&c, b.live, 3, size) : NULL;
    if (plain) y = GB_CHAIN(&c, embedding_sum, .index = b.index, .weight = in->weight);
    else if (mode == GB_WORD_max) y = bag_max(&c, rows, live);
    else {
      gb_tensor *dead = live ? gb_chain_1(&c, GB_OP_logical_not, live, NULL) : NULL;
      if (b.weights) rows = product(&c, rows, shaped(&c, b.weights, 3, size));
      if (live) rows = GB_CHAIN(&c, masked_fill, .x = rows, .mask = dead, .value = gb_attr_num(0));
      y = GB_CHAIN(&c, sum, .x = rows, .dim = dim);
    }
    if (mode == GB_WORD_mean && !live) y = scaled(&c, y, 1 / (double)b.longest);
    else if (mode == GB_WORD_mean) {
      gb_tensor *count = GB_CHAIN(&c, sum, .x = live, .dim = dim);
      gb_tensor *known = gb_chain_cast(&c, count, (gb_dtype)in->weight->dtype);
      y = gb_chain_2(&c, GB_OP_div, y, GB_CHAIN(&c, clamp, .x = known, .min = gb_chain_wrap(&c, 1)), NULL);
    }
  }
  return gb_chain_end(&c, y, &GB_OUT(call, embedding_bag)->y);
}

/* ====} */

const gb_op_impl gb_family_vision[] = {
  { .op = GB_OP_pad, .compose = pad_compose },
  { .op = GB_OP_pixel_shuffle, .compose = pixel_shuffle_compose },
  { .op = GB_OP_pixel_unshuffle, .compose = pixel_unshuffle_compose },
  { .op = GB_OP_channel_shuffle, .compose = channel_shuffle_compose },
  { .op = GB_OP_im2col, .compose = im2col_compose },
  { .op = GB_OP_col2im, .compose = col2im_compose },
  { .op = GB_OP_interpolate, .compose = interpolate_compose },
  { .op = GB_OP_resample, .check = resample_check, .gradient = resample_gradient },
  { .op = GB_OP_resample_backward, .check = resample_check, .gradient = resample_gradient },
  { .op = GB_OP_resample_planes, .check = resample_planes_check, .gradient = resample_planes_gradient,
    .composed = is_on_device, .compose = resample_planes_compose },
  { .op = GB_OP_resample_planes_backward, .check = resample_planes_check, .gradient = resample_planes_gradient,
    .composed = is_on_device, .compose = resample_planes_compose },
  { .op = GB_OP_grid_sample, .compose = grid_sample_compose },
  { .op = GB_OP_sum_taps, .check = sum_taps_check, .gradient = sum_taps_gradient,
    .save_in = GB_SAVE_IN(sum_taps, x) | GB_SAVE_IN(sum_taps, index) | GB_SAVE_IN(sum_taps, weight) },
  { .op = GB_OP_sum_taps_backward, .check = sum_taps_backward_check },
  { .op = GB_OP_affine_grid, .compose = affine_grid_compose },
  { .op = GB_OP_instance_norm, .compose = instance_norm_compose },
  { .op = GB_OP_local_response_norm, .compose = local_response_norm_compose },
  { .op = GB_OP_embedding_bag, .compose = embedding_bag_compose },
  { .op = GB_OP_dropout1d, .compose = dropout1d_compose },
  { .op = GB_OP_dropout2d, .compose = dropout2d_compose },
  { .op = GB_OP_dropout3d, .compose = dropout3d_compose },
  { .op = GB_OP_alpha_dropout, .compose = alpha_dropout_compose },
  { .op = GB_OP_feature_alpha_dropout, .compose = feature_alpha_dropout_compose },
  { .op = GB_OP_COUNT },
};
