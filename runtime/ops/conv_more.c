/* ops/conv_more.c - convolutions of one and three dimensions, and transposed ones, out of those of two.
 *
 * One dimension is two of which the first has size 1. Of three, the depth is taken apart: the slices that a tap of the
 * kernel reads become channels, so that one product sums over all taps, and the positions along the depth become
 * images. A transposed convolution is the gradient of a convolution by its input. All of them can be differentiated as
 * often as their parts. */
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"
#include "ops/conv.h"

/* {==== What all of them ask ==== */

/* The lists of a convolution over `dims` dimensions, the last ones of three. */
typedef struct lists { int64_t stride[3], padding[3], dilation[3], after[3]; } lists;

/* Sizes of x, weight and bias fit `dims` dimensions: the rest is for the convolution of two to say. */
static gb_status check_dims(gb_op_call *call, int dims) {
  const gb_in_conv1d *in = GB_IN(call, conv1d);
  GB_TRY(gb_require_ndim(call, GB_IN_AT(conv1d, x), dims + 2, dims + 2));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(conv1d, weight), dims + 2, dims + 2));
  GB_TRY(gb_require_float(call, GB_IN_AT(conv1d, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(conv1d, weight)));
  char x[96], weight[96];
  for (int i = 1; i < dims + 2; i++)
    if (in->x->shape[i] == 0 || in->weight->shape[i] == 0 || in->weight->shape[0] == 0 ||
        in->x->shape[i] > GB_CONV_LIMIT || in->weight->shape[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE, "only the batch may be empty (x %s, weight %s)",
                          gb_shape_text(dims + 2, in->x->shape, x, sizeof x),
                          gb_shape_text(dims + 2, in->weight->shape, weight, sizeof weight));
  if (in->x->dtype == in->weight->dtype) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "x is %s and weight is %s; convert one with :to(dtype), or use autocast",
                      gb_dtype_name((gb_dtype)in->x->dtype), gb_dtype_name((gb_dtype)in->weight->dtype));
}
#define GB_SAME_CONV(op)                                                                                               \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(conv1d, x) && GB_IN_AT(op, weight) == GB_IN_AT(conv1d, weight) &&         \
                 GB_IN_AT(op, bias) == GB_IN_AT(conv1d, bias) && GB_OUT_AT(op, y) == GB_OUT_AT(conv1d, y),             \
                 "read as conv1d")
GB_SAME_CONV(conv3d);
GB_SAME_CONV(conv_transpose1d);
GB_SAME_CONV(conv_transpose2d);
GB_SAME_CONV(conv_transpose3d);

/* A bias has the dtype of x, and an element for each channel that the weight makes. */
static gb_status check_bias(gb_op_call *call, int64_t channels) {
  const gb_tensor *bias = GB_IN(call, conv1d)->bias;
  char text[96];
  if (bias && bias->dtype != GB_IN(call, conv1d)->x->dtype)
    return gb_call_fail(call, GB_EDTYPE, "x is %s and bias is %s; convert one with :to(dtype), or use autocast",
                        gb_dtype_name((gb_dtype)GB_IN(call, conv1d)->x->dtype), gb_dtype_name((gb_dtype)bias->dtype));
  if (!bias || (bias->ndim == 1 && bias->shape[0] == channels)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "bias has shape %s, weight makes %" PRId64 " channels",
                      gb_shape_text(bias->ndim, bias->shape, text, sizeof text), channels);
}

/* The two last of three values, as an attribute of a pair. */
static gb_attr pair_of(const int64_t *three) { return gb_attr_ints(2, three + 1); }

/* x in this shape. */
static gb_tensor *shaped(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

/* x with its dims in this order. */
static gb_tensor *turned(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *order) {
  return GB_CHAIN(chain, permute, .x = x, .dims = gb_attr_ints(ndim, order));
}

/* The positions outer * a + inner * b, of int64, on x's device. */
static gb_tensor *positions(gb_chain *chain, const gb_tensor *x, int64_t outer, int64_t a, int64_t inner, int64_t b) {
  gb_tensor *parts[2];
  const int64_t count[2] = { outer, inner }, step[2] = { a, b };
  for (int i = 0; i < 2; i++) {
    parts[i] = gb_chain_full(chain, GB_INT64, 1, &count[i], gb_tensor_device(x), 0);
    if (chain->status == GB_OK)
      chain->status = GB_RUN(chain->context, sequence, NULL, .x = parts[i], .step = gb_attr_whole(step[i]));
  }
  gb_tensor *column = GB_CHAIN(chain, unsqueeze, .x = parts[0], .dim = gb_attr_int(1));
  gb_tensor *sum = GB_CHAIN(chain, add, .x = column, .y = parts[1]);
  return GB_CHAIN(chain, flatten, .x = sum);
}

/* ====} */

/* {==== One dimension ==== */

/* A dimension of size 1 before the last one, and without it again. */
static gb_tensor *with_row(gb_chain *chain, gb_tensor *x) {
  return GB_CHAIN(chain, unsqueeze, .x = x, .dim = gb_attr_int(2));
}
static gb_tensor *without_row(gb_chain *chain, gb_tensor *y) {
  return GB_CHAIN(chain, squeeze, .x = y, .dim = gb_attr_ints(1, (int64_t[]){ 2 }));
}

/* The value of a list of one beside `other`, which says nothing about a row. */
static gb_attr beside(int64_t other, const gb_attr *single) {
  gb_attr pair = gb_attr_ints(2, (int64_t[]){ other, single->ints[0] });
  pair.exact = single->exact;
  return pair;
}

gb_status gb_conv1d_compose(gb_op_call *call) {
  const gb_in_conv1d *in = GB_IN(call, conv1d);
  const gb_attrs_conv1d *attrs = GB_ATTRS(call, conv1d);
  GB_TRY(check_dims(call, 1));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = GB_CHAIN(&chain, conv2d, .x = with_row(&chain, in->x), .weight = with_row(&chain, in->weight),
                          .bias = in->bias, .stride = beside(1, &attrs->stride), .padding = beside(0, &attrs->padding),
                          .dilation = beside(1, &attrs->dilation), .groups = attrs->groups,
                          .activation = attrs->activation);
  return gb_chain_end(&chain, without_row(&chain, y), &GB_OUT(call, conv1d)->y);
}

/* ====} */

/* {==== Three dimensions ==== */

gb_status gb_conv3d_compose(gb_op_call *call) {
  const gb_in_conv3d *in = GB_IN(call, conv3d);
  const gb_attrs_conv3d *attrs = GB_ATTRS(call, conv3d);
  GB_TRY(check_dims(call, 3));
  const int64_t *x = in->x->shape, *w = in->weight->shape;
  const int64_t step = attrs->dilation.ints[0], stride = attrs->stride.ints[0];
  const bool same = attrs->padding.exact == GB_WORD_same;
  if (same && stride != 1)
    return gb_call_fail(call, GB_EINVAL, "padding = 'same' keeps the size of the input, and stride is %" PRId64
                        "; it must be 1", stride);
  const int64_t pad = same ? step * (w[2] - 1) / 2 : attrs->padding.ints[0];
  const int64_t depth = same ? x[2] : gb_window_count(x[2], w[2], stride, pad, step);
  const int64_t after = gb_padding_after(x[2], depth, w[2], stride, pad, step);
  char x_text[96], w_text[96];
  if (depth <= 0)
    return gb_call_fail(call, GB_ESHAPE, "the kernel does not fit into the padded input (input %s, weight %s); "
                        "use more padding or a smaller kernel", gb_shape_text(5, x, x_text, sizeof x_text),
                        gb_shape_text(5, w, w_text, sizeof w_text));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *padded = in->x;
  if (pad > 0 || after > 0) {
    const int64_t first[5] = { x[0], x[1], pad, x[3], x[4] }, last[5] = { x[0], x[1], after, x[3], x[4] };
    gb_tensor *parts[] = { gb_chain_full(&chain, (gb_dtype)in->x->dtype, 5, first, gb_tensor_device(in->x), 0), padded,
                           gb_chain_full(&chain, (gb_dtype)in->x->dtype, 5, last, gb_tensor_device(in->x), 0) };
    padded = GB_CHAIN(&chain, cat, .xs = parts, .count = 3, .dim = gb_attr_int(2));
  }
  gb_attr padding = pair_of(attrs->padding.ints);
  padding.exact = attrs->padding.exact;
  gb_tensor *taps = GB_CHAIN(&chain, index_select, .x = padded, .dim = gb_attr_int(2),
                             .index = positions(&chain, in->x, depth, stride, w[2], step));
  taps = shaped(&chain, taps, 6, (int64_t[]){ x[0], x[1], depth, w[2], x[3], x[4] });
  taps = turned(&chain, taps, 6, (int64_t[]){ 0, 2, 1, 3, 4, 5 });
  taps = shaped(&chain, taps, 4, (int64_t[]){ x[0] * depth, x[1] * w[2], x[3], x[4] });
  gb_tensor *weight = shaped(&chain, in->weight, 4, (int64_t[]){ w[0], w[1] * w[2], w[3], w[4] });
  gb_tensor *y = GB_CHAIN(&chain, conv2d, .x = taps, .weight = weight, .bias = in->bias,
                          .stride = pair_of(attrs->stride.ints), .padding = padding,
                          .dilation = pair_of(attrs->dilation.ints), .groups = attrs->groups,
                          .activation = attrs->activation);
  if (chain.status == GB_OK)
    y = shaped(&chain, y, 5, (int64_t[]){ x[0], depth, w[0], y->shape[2], y->shape[3] });
  return gb_chain_end(&chain, turned(&chain, y, 5, (int64_t[]){ 0, 2, 1, 3, 4 }), &GB_OUT(call, conv3d)->y);
}

/* ====} */

/* {==== Transposed ==== */

/* How long a transposed convolution is along one dimension; 0 or less: there is none. */
static int64_t transposed_size(int64_t in, int64_t kernel, const lists *l, int i) {
  return (in - 1) * l->stride[i] - 2 * l->padding[i] + l->dilation[i] * (kernel - 1) + l->after[i] + 1;
}

/* Are the sizes those of a transposed convolution? at: the first of three dimensions that there is. out: its sizes. */
static gb_status check_transposed(gb_op_call *call, int at, const lists *l, int64_t groups, int64_t out[3]) {
  const gb_in_conv1d *in = GB_IN(call, conv1d);
  const int64_t *x = in->x->shape, *w = in->weight->shape;
  char x_text[96], w_text[96];
  GB_TRY(check_dims(call, 3 - at));
  gb_shape_text(in->x->ndim, x, x_text, sizeof x_text);
  gb_shape_text(in->weight->ndim, w, w_text, sizeof w_text);
  if (w[0] != x[1])
    return gb_call_fail(call, GB_ESHAPE, "weight expects %" PRId64 " input channels, input has %" PRId64
                        " (input %s, weight %s)", w[0], x[1], x_text, w_text);
  if (x[1] % groups)
    return gb_call_fail(call, GB_ESHAPE, "groups = %" PRId64 " must divide the input's %" PRId64 " channels", groups,
                        x[1]);
  GB_TRY(check_bias(call, gb_size_times(w[1], groups)));
  for (int i = at; i < 3; i++) {
    if (l->after[i] >= l->stride[i] && l->after[i] >= l->dilation[i])
      return gb_call_fail(call, GB_EINVAL, "output_padding is %" PRId64 "; it must be smaller than stride, which is %"
                          PRId64 ", or than dilation, which is %" PRId64, l->after[i], l->stride[i], l->dilation[i]);
    out[i] = transposed_size(x[2 + i - at], w[2 + i - at], l, i);
    if (out[i] <= 0 || out[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE, "the result would have size %" PRId64 " along dimension %d (input %s, "
                          "weight %s, padding %" PRId64 "); use less padding", out[i], 3 + i - at, x_text, w_text,
                          l->padding[i]);
  }
  return GB_OK;
}

/* The transposed convolution of images by weight, of the two last dimensions. */
static gb_tensor *transposed(gb_chain *chain, gb_tensor *x, gb_tensor *weight, const lists *l, const gb_attr *groups,
                             const int64_t out[3]) {
  for (int i = 1; i < 3 && chain->status == GB_OK; i++) { /* a stride or more at the end: places of x that are 0 */
    int64_t shape[4] = { x->shape[0], x->shape[1], x->shape[2], x->shape[3] };
    if ((shape[1 + i] = l->after[i] / l->stride[i]) == 0) continue;
    gb_tensor *parts[] = { x, gb_chain_full(chain, (gb_dtype)x->dtype, 4, shape, gb_tensor_device(x), 0) };
    x = GB_CHAIN(chain, cat, .xs = parts, .count = 2, .dim = gb_attr_int(1 + i));
  }
  if (chain->status != GB_OK) return NULL;
  const int64_t channels = gb_size_times(weight->shape[1], groups->integer);
  const int64_t shape[4] = { x->shape[0], channels, out[1], out[2] };
  return GB_CHAIN(chain, conv2d_backward_input, .grad = x, .weight = weight, .shape = gb_attr_ints(4, shape),
                  .stride = pair_of(l->stride), .padding = pair_of(l->padding), .dilation = pair_of(l->dilation),
                  .groups = *groups);
}

/* y plus the bias of its channels. */
static gb_tensor *with_bias(gb_chain *chain, gb_tensor *y, gb_tensor *bias) {
  if (!bias || chain->status != GB_OK) return y;
  int64_t shape[5] = { 1, bias->shape[0], 1, 1, 1 };
  return GB_CHAIN(chain, add, .x = y, .y = shaped(chain, bias, y->ndim, shape));
}

/* The attributes of a row of `dims` dimensions, by the last of three. */
static lists lists_of(int dims, const gb_attr *stride, const gb_attr *padding, const gb_attr *dilation,
                      const gb_attr *after) {
  lists l = { { 1, 1, 1 }, { 0 }, { 1, 1, 1 }, { 0 } };
  for (int i = 0; i < dims; i++) {
    int at = 3 - dims + i;
    l.stride[at] = stride->ints[i], l.padding[at] = padding->ints[i], l.dilation[at] = dilation->ints[i];
    l.after[at] = after->ints[i];
  }
  return l;
}
#define LISTS_OF(dims, attrs)                                                                                          \
  lists_of(dims, &(attrs)->stride, &(attrs)->padding, &(attrs)->dilation, &(attrs)->output_padding)

gb_status gb_conv_transpose1d_compose(gb_op_call *call) {
  const gb_in_conv_transpose1d *in = GB_IN(call, conv_transpose1d);
  const gb_attrs_conv_transpose1d *attrs = GB_ATTRS(call, conv_transpose1d);
  const lists l = LISTS_OF(1, attrs);
  int64_t out[3] = { 1, 1, 1 };
  GB_TRY(check_transposed(call, 2, &l, attrs->groups.integer, out));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = transposed(&chain, with_row(&chain, in->x), with_row(&chain, in->weight), &l, &attrs->groups, out);
  y = with_bias(&chain, without_row(&chain, y), in->bias);
  return gb_chain_end(&chain, y, &GB_OUT(call, conv_transpose1d)->y);
}

gb_status gb_conv_transpose2d_compose(gb_op_call *call) {
  const gb_in_conv_transpose2d *in = GB_IN(call, conv_transpose2d);
  const gb_attrs_conv_transpose2d *attrs = GB_ATTRS(call, conv_transpose2d);
  const lists l = LISTS_OF(2, attrs);
  int64_t out[3] = { 1, 1, 1 };
  GB_TRY(check_transposed(call, 1, &l, attrs->groups.integer, out));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = transposed(&chain, in->x, in->weight, &l, &attrs->groups, out);
  return gb_chain_end(&chain, with_bias(&chain, y, in->bias), &GB_OUT(call, conv_transpose2d)->y);
}

/* Every slice along the depth gives a result for each tap of the kernel, which are added where they belong. */
gb_status gb_conv_transpose3d_compose(gb_op_call *call) {
  const gb_in_conv_transpose3d *in = GB_IN(call, conv_transpose3d);
  const gb_attrs_conv_transpose3d *attrs = GB_ATTRS(call, conv_transpose3d);
  const lists l = LISTS_OF(3, attrs);
  const int64_t *x = in->x->shape, *w = in->weight->shape;
  int64_t out[3] = { 1, 1, 1 };
  GB_TRY(check_transposed(call, 0, &l, attrs->groups.integer, out));
  const int64_t channels = w[1] * attrs->groups.integer, depth = out[0] + 2 * l.padding[0];
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *slices = turned(&chain, in->x, 5, (int64_t[]){ 0, 2, 1, 3, 4 });
  slices = shaped(&chain, slices, 4, (int64_t[]){ x[0] * x[2], x[1], x[3], x[4] });
  gb_tensor *weight = shaped(&chain, in->weight, 4, (int64_t[]){ w[0], w[1] * w[2], w[3], w[4] });
  gb_tensor *parts = transposed(&chain, slices, weight, &l, &attrs->groups, out);
  parts = shaped(&chain, parts, 6, (int64_t[]){ x[0], x[2], channels, w[2], out[1], out[2] });
  parts = turned(&chain, parts, 6, (int64_t[]){ 0, 2, 1, 3, 4, 5 });
  parts = shaped(&chain, parts, 5, (int64_t[]){ x[0], channels, x[2] * w[2], out[1], out[2] });
  const int64_t shape[5] = { x[0], channels, depth, out[1], out[2] };
  gb_tensor *y = gb_chain_full(&chain, (gb_dtype)in->x->dtype, 5, shape, gb_tensor_device(in->x), 0);
  y = GB_CHAIN(&chain, index_add, .x = y, .dim = gb_attr_int(2), .source = parts,
               .index = positions(&chain, in->x, x[2], l.stride[0], w[2], l.dilation[0]));
  y = GB_CHAIN(&chain, narrow, .x = y, .dim = gb_attr_int(2), .start = gb_attr_int(l.padding[0]),
               .length = gb_attr_int(out[0]));
  return gb_chain_end(&chain, with_bias(&chain, y, in->bias), &GB_OUT(call, conv_transpose3d)->y);
}

/* ====} */
