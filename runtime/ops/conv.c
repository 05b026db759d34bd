/* ops/conv.c - 2-D convolution and pooling: checks and gradients.
 *
 * Each of these ops is linear in every operand once the window positions of a maximum are known, so the gradients of
 * the gradients are convolutions and poolings again, and every row here can be differentiated twice. Results of
 * convolutions are channels-last in memory; poolings keep the layout of their input. A fused relu keeps its result for
 * backward; without one nothing but the operands is kept. */
#include "ops/conv.h"

#include <inttypes.h>
#include <string.h>

/* {==== What all of them ask ==== */

/* A shape given as an attribute: four sizes that are not negative. */
static gb_status check_shape(gb_op_call *call, const gb_attr *shape) {
  bool fits = shape->count == 4;
  for (int i = 0; fits && i < 4; i++) fits = shape->ints[i] >= 0 && shape->ints[i] <= GB_CONV_LIMIT;
  return fits ? GB_OK : gb_call_fail(call, GB_ESHAPE, "shape must be four sizes: batch, channels, height and width");
}

/* [n, c, h, w] of floats where only n may be 0. */
static gb_status check_images(gb_op_call *call, int input) {
  char text[96];
  GB_TRY(gb_require_ndim(call, input, 4, 4));
  GB_TRY(gb_require_float(call, input));
  const gb_tensor *x = call->in[input];
  for (int i = 1; i < 4; i++)
    if (x->shape[i] == 0 || x->shape[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE,
                          "dimension %d of '%s' (%s) has size %" PRId64 "; only the batch may be empty", i + 1,
                          call->info->in[input].name, gb_shape_text(4, x->shape, text, sizeof text), x->shape[i]);
  return GB_OK;
}

/* Two inputs of one dtype. */
static gb_status check_same_dtype(gb_op_call *call, int a, int b) {
  const gb_tensor *x = call->in[a], *y = call->in[b];
  if (!y || x->dtype == y->dtype) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' is %s and '%s' is %s; convert one with :to(dtype), or use autocast",
                      call->info->in[a].name,
                      gb_dtype_name((gb_dtype)x->dtype), call->info->in[b].name, gb_dtype_name((gb_dtype)y->dtype));
}

/* A tensor must have the sizes that the others imply. */
static gb_status check_sizes(gb_op_call *call, int input, int64_t n, int64_t c, const int64_t hw[2]) {
  char has[96], wants[96];
  const gb_tensor *t = call->in[input];
  const int64_t shape[4] = { n, c, hw[0], hw[1] };
  if (t->ndim == 4 && !memcmp(t->shape, shape, sizeof shape)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, expected %s", call->info->in[input].name,
                      gb_shape_text(t->ndim, t->shape, has, sizeof has), gb_shape_text(4, shape, wants, sizeof wants));
}

/* Allocate output i with the channels last. */
static gb_status output_channels_last(gb_op_call *call, int i, const int64_t *shape, gb_dtype dtype) {
  int64_t strides[4];
  gb_channels_last_strides(shape, strides);
  return gb_call_output_strided(call, i, 4, shape, strides, dtype);
}

/* ====} */

/* {==== Convolution ==== */

/* Shapes of x and weight, as text for every complaint about them. */
typedef struct conv_texts { char x[96], weight[96]; } conv_texts;

static conv_texts texts_of(const int64_t *x, const int64_t *weight) {
  conv_texts t;
  gb_shape_text(4, x, t.x, sizeof t.x);
  gb_shape_text(4, weight, t.weight, sizeof t.weight);
  return t;
}

/* Do x's and weight's shapes fit each other and the attributes? */
static gb_status check_conv(gb_op_call *call, const int64_t *x, const int64_t *weight, gb_conv_attrs attrs,
                            gb_conv_sizes *s) {
  conv_texts t = texts_of(x, weight);
  int64_t groups = attrs.groups->integer;
  if (x[1] % groups || weight[0] % groups)
    return gb_call_fail(call, GB_ESHAPE,
                        "groups = %" PRId64 " must divide the input's %" PRId64 " channels and the weight's %" PRId64
                        " (input %s, weight %s)", groups, x[1], weight[0], t.x, t.weight);
  if (weight[1] * groups != x[1])
    return gb_call_fail(call, GB_ESHAPE,
                        "weight expects %" PRId64 " input channels, input has %" PRId64 " (input %s, weight %s, "
                                                                                        "groups %" PRId64 ")",
                        weight[1] * groups, x[1], t.x, t.weight, groups);
  *s = gb_conv_sizes_of(2, x, weight, attrs);
  for (int i = 0; i < 2; i++)
    if (attrs.padding->exact == GB_WORD_same && s->stride[i] != 1)
      return gb_call_fail(call, GB_EINVAL, "padding = 'same' keeps the size of the input, and stride is %" PRId64
                          "; it must be 1", s->stride[i]);
  if (s->out[0] > 0 && s->out[1] > 0) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE,
            "the kernel does not fit into the padded input (input %s, weight %s, padding %" PRId64 "x%" PRId64
            ", dilation %" PRId64
                      "x%" PRId64 "); use more padding or a smaller kernel",
                      t.x, t.weight, s->padding[0], s->padding[1], s->dilation[0], s->dilation[1]);
}

static bool has_relu(const gb_attr *activation) { return activation->integer == GB_WORD_relu; }

/* x [n, c, h, w], weight [o, c / groups, kh, kw], bias [o] or absent -> y [n, o, oh, ow], channels-last. A second
 * output, y again, is made only where relu's derivative will need it. */
static gb_status conv2d_check(gb_op_call *call) {
  const gb_in_conv2d *in = GB_IN(call, conv2d);
  const gb_attrs_conv2d *attrs = GB_ATTRS(call, conv2d);
  gb_out_conv2d *made = GB_OUT(call, conv2d);
  const gb_tensor *x = in->x, *weight = in->weight, *bias = in->bias;
  gb_conv_sizes s;
  GB_TRY(check_images(call, GB_IN_AT(conv2d, x)));
  GB_TRY(check_images(call, GB_IN_AT(conv2d, weight)));
  GB_TRY(check_same_dtype(call, GB_IN_AT(conv2d, x), GB_IN_AT(conv2d, weight)));
  GB_TRY(check_same_dtype(call, GB_IN_AT(conv2d, x), GB_IN_AT(conv2d, bias)));
  if (weight->shape[0] == 0) return gb_call_fail(call, GB_ESHAPE, "weight has no output channels");
  if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[0])) {
    char text[96];
    return gb_call_fail(call, GB_ESHAPE, "bias has shape %s, weight makes %" PRId64 " channels",
                        gb_shape_text(bias->ndim, bias->shape, text, sizeof text), weight->shape[0]);
  }
  GB_TRY(check_conv(call, x->shape, weight->shape, GB_CONV_ATTRS(attrs), &s));
  const int64_t shape[4] = { s.n, s.o, s.out[0], s.out[1] };
  GB_TRY(output_channels_last(call, GB_OUT_AT(conv2d, y), shape, (gb_dtype)x->dtype));
  return call->needs_grad && has_relu(&attrs->activation) ? gb_tensor_detach(made->y, &made->rectified) : GB_OK;
}

/* grad [n, o, oh, ow], weight -> dx of the attribute `shape`. */
static gb_status conv2d_backward_input_check(gb_op_call *call) {
  const gb_in_conv2d_backward_input *in = GB_IN(call, conv2d_backward_input);
  const gb_attrs_conv2d_backward_input *attrs = GB_ATTRS(call, conv2d_backward_input);
  const int grad = GB_IN_AT(conv2d_backward_input, grad), weight = GB_IN_AT(conv2d_backward_input, weight);
  gb_conv_sizes s;
  GB_TRY(check_shape(call, &attrs->shape));
  GB_TRY(check_images(call, grad));
  GB_TRY(check_images(call, weight));
  GB_TRY(check_same_dtype(call, grad, weight));
  GB_TRY(check_conv(call, attrs->shape.ints, in->weight->shape, GB_CONV_ATTRS(attrs), &s));
  GB_TRY(check_sizes(call, grad, s.n, s.o, s.out));
  return output_channels_last(call, GB_OUT_AT(conv2d_backward_input, dx), attrs->shape.ints, (gb_dtype)in->grad->dtype);
}

/* grad [n, o, oh, ow], x -> dweight of the attribute `shape`, in `dtype` or the operands' dtype. */
static gb_status conv2d_backward_weight_check(gb_op_call *call) {
  const gb_in_conv2d_backward_weight *in = GB_IN(call, conv2d_backward_weight);
  const gb_attrs_conv2d_backward_weight *attrs = GB_ATTRS(call, conv2d_backward_weight);
  const int grad = GB_IN_AT(conv2d_backward_weight, grad), x = GB_IN_AT(conv2d_backward_weight, x);
  gb_dtype dtype = (gb_dtype)(attrs->dtype.given ? attrs->dtype.integer : in->grad->dtype);
  gb_conv_sizes s;
  GB_TRY(check_shape(call, &attrs->shape));
  GB_TRY(check_images(call, grad));
  GB_TRY(check_images(call, x));
  GB_TRY(check_same_dtype(call, grad, x));
  if (!gb_dtype_is_float(dtype))
    return gb_call_fail(call, GB_EDTYPE, "dtype %s is not a floating dtype", gb_dtype_name(dtype));
  GB_TRY(check_conv(call, in->x->shape, attrs->shape.ints, GB_CONV_ATTRS(attrs), &s));
  GB_TRY(check_sizes(call, grad, s.n, s.o, s.out));
  return output_channels_last(call, GB_OUT_AT(conv2d_backward_weight, dweight), attrs->shape.ints, dtype);
}

/* The gradient of x, of the shape it had. */
static gb_status backward_input(gb_context *c, gb_tensor *grad, gb_tensor *weight, const int64_t *shape,
                                gb_conv_attrs conv, gb_tensor **out) {
  return GB_RUN(c, conv2d_backward_input, out, .grad = grad, .weight = weight, .shape = gb_attr_ints(4, shape),
                .stride = *conv.stride, .padding = *conv.padding, .dilation = *conv.dilation, .groups = *conv.groups);
}

/* The gradient of the weight, of the shape it had, in dtype; in `place`, unless that is NULL. */
static gb_status backward_weight(gb_context *c, gb_tensor *grad, gb_tensor *x, const int64_t *shape, gb_conv_attrs conv,
                                 gb_dtype dtype, gb_tensor *place, gb_tensor **out) {
  return GB_RUN_OUT(c, conv2d_backward_weight, place ? &place : NULL, out, .grad = grad, .x = x,
                .shape = gb_attr_ints(4, shape), .stride = *conv.stride, .padding = *conv.padding,
                .dilation = *conv.dilation, .groups = *conv.groups, .dtype = gb_attr_int(dtype));
}

/* A plain convolution, without bias and activation. */
static gb_status forward(gb_context *c, gb_tensor *x, gb_tensor *weight, gb_conv_attrs conv, gb_tensor **out) {
  return GB_RUN(c, conv2d, out, .x = x, .weight = weight, .stride = *conv.stride, .padding = *conv.padding,
                .dilation = *conv.dilation, .groups = *conv.groups);
}

/* Where the weight's gradient is kept, if it is laid out as one is made, so that none is copied; or NULL. */
static gb_status place_of_weight(const gb_grad_call *g, gb_tensor **place) {
  int64_t strides[4];
  gb_tensor *sum = gb_grad_empty_sum(g, GB_IN_AT(conv2d, weight), GB_WANTS(g, conv2d, weight));
  if (!sum || !gb_is_channels_last(sum)) return GB_OK;
  gb_channels_last_strides(sum->shape, strides); /* its own may differ for sizes of 1 */
  return gb_tensor_view(sum, 4, sum->shape, strides, sum->offset, place);
}

static gb_status weight_gradient(gb_grad_call *g, gb_tensor *grad, gb_conv_attrs conv) {
  gb_tensor *place = NULL, **made = &GB_GRAD_IN(g, conv2d)->weight;
  GB_TRY(place_of_weight(g, &place));
  gb_status status = backward_weight(g->context, grad, GB_SAVED(g, conv2d)->x, GB_EDGE(g, conv2d, weight)->shape, conv,
                                     GB_WANTS(g, conv2d, weight), place, made);
  if (place && status == GB_OK) {
    gb_drop(made);
    g->settled |= 1u << GB_IN_AT(conv2d, weight);
  }
  gb_drop(&place);
  return status;
}

/* The three gradients, from the gradient of what came before the activation; the bias' is the sum over batch, height
 * and width. */
static gb_status conv2d_gradients(gb_grad_call *g, gb_tensor *grad) {
  gb_conv_attrs conv = GB_CONV_ATTRS(GB_ATTRS(g, conv2d));
  gb_in_conv2d *to = GB_GRAD_IN(g, conv2d);
  if (GB_NEEDS(g, conv2d, x))
    GB_TRY(backward_input(g->context, grad, GB_SAVED(g, conv2d)->weight, GB_EDGE(g, conv2d, x)->shape, conv, &to->x));
  if (GB_NEEDS(g, conv2d, weight)) GB_TRY(weight_gradient(g, grad, conv));
  if (!GB_NEEDS(g, conv2d, bias)) return GB_OK;
  return GB_RUN(g->context, sum, &to->bias, .x = grad, .dim = gb_attr_ints(3, (int64_t[]){ 0, 2, 3 }),
                .dtype = gb_attr_int(GB_WANTS(g, conv2d, bias)));
}

/* Through the relu first, where there is one. */
static gb_status conv2d_gradient(gb_grad_call *g) {
  gb_tensor *of_y = GB_GRAD_OUT(g, conv2d)->y, *grad = NULL;
  if (!has_relu(&GB_ATTRS(g, conv2d)->activation)) return conv2d_gradients(g, of_y);
  GB_TRY(GB_RUN(g->context, relu_backward, &grad, .grad = of_y, .y = GB_KEPT(g, conv2d)->rectified));
  gb_status status = conv2d_gradients(g, grad);
  gb_drop(&grad);
  return status;
}

/* t in the dtype of `like`: gradients of a weight may come in float32 where the operands have 16 bits. */
static gb_status in_dtype_of(gb_context *c, gb_tensor *t, const gb_tensor *like, gb_tensor **out) {
  if (t->dtype != like->dtype) return gb_op_cast(c, t, (gb_dtype)like->dtype, out);
  gb_tensor_retain(*out = t);
  return GB_OK;
}

/* dx is linear in grad (a convolution of dx's gradient) and in the weight (grad by dx's gradient). */
static gb_status conv2d_backward_input_gradient(gb_grad_call *g) {
  const gb_in_conv2d_backward_input *saved = GB_SAVED(g, conv2d_backward_input);
  gb_in_conv2d_backward_input *to = GB_GRAD_IN(g, conv2d_backward_input);
  gb_conv_attrs conv = GB_CONV_ATTRS(GB_ATTRS(g, conv2d_backward_input));
  gb_tensor *from = GB_GRAD_OUT(g, conv2d_backward_input)->dx, *ddx = NULL;
  GB_TRY(in_dtype_of(g->context, from, saved->grad ? saved->grad : saved->weight, &ddx));
  gb_status status = GB_OK;
  if (GB_NEEDS(g, conv2d_backward_input, grad)) status = forward(g->context, ddx, saved->weight, conv, &to->grad);
  if (GB_NEEDS(g, conv2d_backward_input, weight) && status == GB_OK)
    status = backward_weight(g->context, saved->grad, ddx, GB_EDGE(g, conv2d_backward_input, weight)->shape, conv,
                             GB_WANTS(g, conv2d_backward_input, weight), NULL, &to->weight);
  gb_drop(&ddx);
  return status;
}

/* dweight is linear in grad (a convolution of x by dweight's gradient) and in x (grad through dweight's gradient). */
static gb_status conv2d_backward_weight_gradient(gb_grad_call *g) {
  const gb_in_conv2d_backward_weight *saved = GB_SAVED(g, conv2d_backward_weight);
  gb_in_conv2d_backward_weight *to = GB_GRAD_IN(g, conv2d_backward_weight);
  gb_conv_attrs conv = GB_CONV_ATTRS(GB_ATTRS(g, conv2d_backward_weight));
  gb_tensor *from = GB_GRAD_OUT(g, conv2d_backward_weight)->dweight, *ddw = NULL;
  GB_TRY(in_dtype_of(g->context, from, saved->grad ? saved->grad : saved->x, &ddw));
  gb_status status = GB_OK;
  if (GB_NEEDS(g, conv2d_backward_weight, grad)) status = forward(g->context, saved->x, ddw, conv, &to->grad);
  if (GB_NEEDS(g, conv2d_backward_weight, x) && status == GB_OK)
    status = backward_input(g->context, saved->grad, ddw, GB_EDGE(g, conv2d_backward_weight, x)->shape, conv, &to->x);
  gb_drop(&ddw);
  return status;
}

/* ====} */

/* {==== Pooling ==== */

/* Do the attributes fit x's shape? PyTorch's rule, that padding is at most half the kernel, leaves no window empty. */
static gb_status check_pool(gb_op_call *call, const int64_t *x, gb_pool_attrs attrs, gb_conv_sizes *s) {
  char text[96];
  *s = gb_pool_sizes_of(2, x, attrs);
  for (int i = 0; i < 2; i++) {
    if (s->padding[i] > s->kernel[i] / 2)
      return gb_call_fail(call, GB_EINVAL,
                          "padding is %" PRId64 "; it may be at most half of kernel_size, which is %" PRId64,
          s->padding[i],
                          s->kernel[i]);
    for (int64_t at = -s->padding[i], k = 0; s->dilation[i] > s->in[i] && s->out[i] > 0; at += s->dilation[i], k++) {
      if (at >= 0 && at < s->in[i]) break;
      if (at < 0 && k + 1 < s->kernel[i]) continue;
      return gb_call_fail(call, GB_ESHAPE, "a window has nothing but padding: its elements are %" PRId64
                          " apart, and the input has %" PRId64 "; use a smaller dilation", s->dilation[i], s->in[i]);
    }
  }
  if (s->out[0] > 0 && s->out[1] > 0) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "the window (%" PRId64 "x%" PRId64 ") does not fit into the padded input "
                                                                          "(%s); use a smaller kernel_size",
                      s->kernel[0], s->kernel[1], gb_shape_text(4, x, text, sizeof text));
}

/* Window positions are kept in a byte each, where they fit one. */
static bool fits_byte(const gb_conv_sizes *s) { return s->kernel[0] * s->kernel[1] <= 255; }

/* The input that holds positions is uint8, with one for each window. */
static gb_status check_positions(gb_op_call *call, int input, const gb_conv_sizes *s) {
  if (call->in[input]->dtype != GB_UINT8) return gb_call_fail(call, GB_EDTYPE, "positions must be uint8");
  if (!fits_byte(s)) return gb_call_fail(call, GB_EUNSUPPORTED, "a window has more than 255 elements");
  return check_sizes(call, input, s->n, s->c, s->out);
}

/* Allocate output i of this shape: channels-last when `like` is. */
static gb_status output_in_layout(gb_op_call *call, int i, const int64_t *shape, const gb_tensor *like,
                                  gb_dtype dtype) {
  int64_t strides[4];
  if (!gb_is_channels_last(like)) return gb_call_output(call, i, 4, shape, dtype);
  gb_channels_last_strides(shape, strides);
  return gb_call_output_strided(call, i, 4, shape, strides, dtype);
}

/* x -> y, and for backward where in its window each maximum was; or where in its image, which the caller may have. */
static gb_status max_pool2d_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, max_pool2d)->x;
  const gb_attrs_max_pool2d *attrs = GB_ATTRS(call, max_pool2d);
  gb_conv_sizes s;
  GB_TRY(check_images(call, GB_IN_AT(max_pool2d, x)));
  GB_TRY(check_pool(call, x->shape, GB_MAX_POOL_ATTRS(attrs), &s));
  const int64_t shape[4] = { s.n, s.c, s.out[0], s.out[1] };
  GB_TRY(output_in_layout(call, GB_OUT_AT(max_pool2d, y), shape, x, (gb_dtype)x->dtype));
  if (attrs->return_indices.integer) return output_in_layout(call, GB_OUT_AT(max_pool2d, indices), shape, x, GB_INT64);
  if (!call->needs_grad) return GB_OK;
  bool plain = fits_byte(&s) && s.dilation[0] == 1 && s.dilation[1] == 1 && !attrs->ceil_mode.integer;
  return plain ? output_in_layout(call, GB_OUT_AT(max_pool2d, positions), shape, x, GB_UINT8)
               : output_in_layout(call, GB_OUT_AT(max_pool2d, places), shape, x, GB_INT64);
}

/* The same over windows that the sizes say. */
static gb_status adaptive_max_pool2d_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, adaptive_max_pool2d)->x;
  const gb_attrs_adaptive_max_pool2d *attrs = GB_ATTRS(call, adaptive_max_pool2d);
  GB_TRY(check_images(call, GB_IN_AT(adaptive_max_pool2d, x)));
  const int64_t shape[4] = { x->shape[0], x->shape[1], attrs->size.ints[0], attrs->size.ints[1] };
  const int indices = GB_OUT_AT(adaptive_max_pool2d, indices), places = GB_OUT_AT(adaptive_max_pool2d, places);
  GB_TRY(output_in_layout(call, GB_OUT_AT(adaptive_max_pool2d, y), shape, x, (gb_dtype)x->dtype));
  if (attrs->return_indices.integer) return output_in_layout(call, indices, shape, x, GB_INT64);
  return call->needs_grad ? output_in_layout(call, places, shape, x, GB_INT64) : GB_OK;
}

/* grad and positions -> dx of the attribute `shape`, in the layout of the positions, which is x's: the ops before this
 * one go on in the layout that they have worked in, whatever a flattened image's gradient came in. */
static gb_status max_pool2d_backward_check(gb_op_call *call) {
  const gb_in_max_pool2d_backward *in = GB_IN(call, max_pool2d_backward);
  const gb_attrs_max_pool2d_backward *attrs = GB_ATTRS(call, max_pool2d_backward);
  const int grad = GB_IN_AT(max_pool2d_backward, grad), dx = GB_OUT_AT(max_pool2d_backward, dx);
  gb_conv_sizes s;
  GB_TRY(check_images(call, grad));
  GB_TRY(check_shape(call, &attrs->shape));
  GB_TRY(check_pool(call, attrs->shape.ints, GB_POOL_ATTRS(attrs), &s));
  GB_TRY(check_sizes(call, grad, s.n, s.c, s.out));
  GB_TRY(check_positions(call, GB_IN_AT(max_pool2d_backward, positions), &s));
  return output_in_layout(call, dx, attrs->shape.ints, in->positions, (gb_dtype)in->grad->dtype);
}

/* x and positions -> the elements there. */
static gb_status max_pool2d_gather_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, max_pool2d_gather)->x;
  gb_conv_sizes s;
  GB_TRY(check_images(call, GB_IN_AT(max_pool2d_gather, x)));
  GB_TRY(check_pool(call, x->shape, GB_POOL_ATTRS(GB_ATTRS(call, max_pool2d_gather)), &s));
  GB_TRY(check_positions(call, GB_IN_AT(max_pool2d_gather, positions), &s));
  const int64_t shape[4] = { s.n, s.c, s.out[0], s.out[1] };
  return output_in_layout(call, GB_OUT_AT(max_pool2d_gather, y), shape, x, (gb_dtype)x->dtype);
}

static gb_status avg_pool2d_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, avg_pool2d)->x;
  gb_conv_sizes s;
  GB_TRY(check_images(call, GB_IN_AT(avg_pool2d, x)));
  GB_TRY(check_pool(call, x->shape, GB_MEAN_POOL_ATTRS(GB_ATTRS(call, avg_pool2d)), &s));
  const int64_t shape[4] = { s.n, s.c, s.out[0], s.out[1] };
  return output_in_layout(call, GB_OUT_AT(avg_pool2d, y), shape, x, (gb_dtype)x->dtype);
}

static gb_status avg_pool2d_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, avg_pool2d_backward)->grad;
  const gb_attrs_avg_pool2d_backward *attrs = GB_ATTRS(call, avg_pool2d_backward);
  gb_conv_sizes s;
  GB_TRY(check_images(call, GB_IN_AT(avg_pool2d_backward, grad)));
  GB_TRY(check_shape(call, &attrs->shape));
  GB_TRY(check_pool(call, attrs->shape.ints, GB_MEAN_POOL_ATTRS(attrs), &s));
  GB_TRY(check_sizes(call, GB_IN_AT(avg_pool2d_backward, grad), s.n, s.c, s.out));
  return output_in_layout(call, GB_OUT_AT(avg_pool2d_backward, dx), attrs->shape.ints, grad, (gb_dtype)grad->dtype);
}

static gb_status adaptive_avg_pool2d_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, adaptive_avg_pool2d)->x;
  const int64_t *size = GB_ATTRS(call, adaptive_avg_pool2d)->size.ints;
  GB_TRY(check_images(call, GB_IN_AT(adaptive_avg_pool2d, x)));
  const int64_t shape[4] = { x->shape[0], x->shape[1], size[0], size[1] };
  return output_in_layout(call, GB_OUT_AT(adaptive_avg_pool2d, y), shape, x, (gb_dtype)x->dtype);
}

static gb_status adaptive_avg_pool2d_backward_check(gb_op_call *call) {
  const gb_tensor *grad = GB_IN(call, adaptive_avg_pool2d_backward)->grad;
  const gb_attr *shape = &GB_ATTRS(call, adaptive_avg_pool2d_backward)->shape;
  const int input = GB_IN_AT(adaptive_avg_pool2d_backward, grad);
  GB_TRY(check_images(call, input));
  GB_TRY(check_shape(call, shape));
  GB_TRY(check_sizes(call, input, shape->ints[0], shape->ints[1], grad->shape + 2));
  return output_in_layout(call, GB_OUT_AT(adaptive_avg_pool2d_backward, dx), shape->ints, grad, (gb_dtype)grad->dtype);
}

/* Of max_pool2d and of max_pool2d_gather: the same elements of x that gave the result. */
static gb_status at_positions(gb_grad_call *g, gb_pool_attrs pool, gb_tensor *positions) {
  return GB_RUN(g->context, max_pool2d_backward, &GB_GRAD_IN(g, max_pool2d)->x, .grad = GB_GRAD_OUT(g, max_pool2d)->y,
                .positions = positions, .shape = gb_attr_ints(4, GB_EDGE(g, max_pool2d, x)->shape),
                .kernel_size = *pool.kernel_size, .stride = *pool.stride, .padding = *pool.padding);
}
_Static_assert(GB_IN_AT(max_pool2d, x) == GB_IN_AT(max_pool2d_gather, x), "at_positions reads both");
_Static_assert(GB_OUT_AT(max_pool2d, y) == GB_OUT_AT(max_pool2d_gather, y), "at_positions reads both");

static gb_status max_pool2d_gradient(gb_grad_call *g) {
  const gb_out_max_pool2d *kept = GB_KEPT(g, max_pool2d);
  if (!kept->positions)
    return gb_scatter_places(g->context, GB_GRAD_OUT(g, max_pool2d)->y, kept->indices ? kept->indices : kept->places,
                             GB_EDGE(g, max_pool2d, x)->shape, &GB_GRAD_IN(g, max_pool2d)->x);
  return at_positions(g, GB_POOL_ATTRS(GB_ATTRS(g, max_pool2d)), GB_KEPT(g, max_pool2d)->positions);
}

static gb_status adaptive_max_pool2d_gradient(gb_grad_call *g) {
  const gb_out_adaptive_max_pool2d *kept = GB_KEPT(g, adaptive_max_pool2d);
  return gb_scatter_places(g->context, GB_GRAD_OUT(g, adaptive_max_pool2d)->y,
                           kept->indices ? kept->indices : kept->places, GB_EDGE(g, adaptive_max_pool2d, x)->shape,
                           &GB_GRAD_IN(g, adaptive_max_pool2d)->x);
}

static gb_status max_pool2d_gather_gradient(gb_grad_call *g) {
  return at_positions(g, GB_POOL_ATTRS(GB_ATTRS(g, max_pool2d_gather)), GB_SAVED(g, max_pool2d_gather)->positions);
}

static gb_status max_pool2d_backward_gradient(gb_grad_call *g) {
  const gb_attrs_max_pool2d_backward *attrs = GB_ATTRS(g, max_pool2d_backward);
  return GB_RUN(g->context, max_pool2d_gather, &GB_GRAD_IN(g, max_pool2d_backward)->grad,
                .x = GB_GRAD_OUT(g, max_pool2d_backward)->dx, .positions = GB_SAVED(g, max_pool2d_backward)->positions,
                .kernel_size = attrs->kernel_size, .stride = attrs->stride, .padding = attrs->padding);
}

static gb_status avg_pool2d_gradient(gb_grad_call *g) {
  const gb_attrs_avg_pool2d *attrs = GB_ATTRS(g, avg_pool2d);
  return GB_RUN(g->context, avg_pool2d_backward, &GB_GRAD_IN(g, avg_pool2d)->x, .grad = GB_GRAD_OUT(g, avg_pool2d)->y,
                .shape = gb_attr_ints(4, GB_EDGE(g, avg_pool2d, x)->shape), .kernel_size = attrs->kernel_size,
                .stride = attrs->stride, .padding = attrs->padding, .ceil_mode = attrs->ceil_mode,
                .count_include_pad = attrs->count_include_pad, .divisor_override = attrs->divisor_override);
}

static gb_status avg_pool2d_backward_gradient(gb_grad_call *g) {
  const gb_attrs_avg_pool2d_backward *attrs = GB_ATTRS(g, avg_pool2d_backward);
  return GB_RUN(g->context, avg_pool2d, &GB_GRAD_IN(g, avg_pool2d_backward)->grad,
                .x = GB_GRAD_OUT(g, avg_pool2d_backward)->dx, .kernel_size = attrs->kernel_size,
                .stride = attrs->stride, .padding = attrs->padding, .ceil_mode = attrs->ceil_mode,
                .count_include_pad = attrs->count_include_pad, .divisor_override = attrs->divisor_override);
}

static gb_status adaptive_avg_pool2d_gradient(gb_grad_call *g) {
  return GB_RUN(g->context, adaptive_avg_pool2d_backward, &GB_GRAD_IN(g, adaptive_avg_pool2d)->x,
                .grad = GB_GRAD_OUT(g, adaptive_avg_pool2d)->y,
                .shape = gb_attr_ints(4, GB_EDGE(g, adaptive_avg_pool2d, x)->shape));
}

static gb_status adaptive_avg_pool2d_backward_gradient(gb_grad_call *g) {
  return GB_RUN(g->context, adaptive_avg_pool2d, &GB_GRAD_IN(g, adaptive_avg_pool2d_backward)->grad,
                .x = GB_GRAD_OUT(g, adaptive_avg_pool2d_backward)->dx,
                .size = gb_attr_ints(2, GB_EDGE(g, adaptive_avg_pool2d_backward, grad)->shape + 2));
}

/* ====} */

const gb_op_impl gb_family_conv[] = {
  { .op = GB_OP_conv2d, .check = conv2d_check, .gradient = conv2d_gradient,
    .save_in = GB_SAVE_IN(conv2d, x) | GB_SAVE_IN(conv2d, weight), .save_out = GB_SAVE_OUT(conv2d, rectified),
    .save_other = true },
  { .op = GB_OP_conv2d_backward_input, .check = conv2d_backward_input_check, .gradient = conv2d_backward_input_gradient,
    .save_in = GB_SAVE_IN(conv2d_backward_input, grad) | GB_SAVE_IN(conv2d_backward_input, weight),
    .save_other = true },
  { .op = GB_OP_conv2d_backward_weight, .check = conv2d_backward_weight_check,
    .gradient = conv2d_backward_weight_gradient,
    .save_in = GB_SAVE_IN(conv2d_backward_weight, grad) | GB_SAVE_IN(conv2d_backward_weight, x), .save_other = true },
  { .op = GB_OP_conv1d, .compose = gb_conv1d_compose },
  { .op = GB_OP_conv3d, .compose = gb_conv3d_compose },
  { .op = GB_OP_conv_transpose1d, .compose = gb_conv_transpose1d_compose },
  { .op = GB_OP_conv_transpose2d, .compose = gb_conv_transpose2d_compose },
  { .op = GB_OP_conv_transpose3d, .compose = gb_conv_transpose3d_compose },
  { .op = GB_OP_max_pool2d, .check = max_pool2d_check, .gradient = max_pool2d_gradient,
    .save_out = GB_SAVE_OUT(max_pool2d, positions) | GB_SAVE_OUT(max_pool2d, indices) |
                GB_SAVE_OUT(max_pool2d, places) },
  { .op = GB_OP_adaptive_max_pool2d, .check = adaptive_max_pool2d_check, .gradient = adaptive_max_pool2d_gradient,
    .save_out = GB_SAVE_OUT(adaptive_max_pool2d, indices) | GB_SAVE_OUT(adaptive_max_pool2d, places) },
  { .op = GB_OP_max_pool2d_backward, .check = max_pool2d_backward_check, .gradient = max_pool2d_backward_gradient,
    .save_in = GB_SAVE_IN(max_pool2d_backward, positions) },
  { .op = GB_OP_max_pool2d_gather, .check = max_pool2d_gather_check, .gradient = max_pool2d_gather_gradient,
    .save_in = GB_SAVE_IN(max_pool2d_gather, positions) },
  { .op = GB_OP_avg_pool2d, .check = avg_pool2d_check, .gradient = avg_pool2d_gradient },
  { .op = GB_OP_avg_pool2d_backward, .check = avg_pool2d_backward_check, .gradient = avg_pool2d_backward_gradient },
  { .op = GB_OP_adaptive_avg_pool2d, .check = adaptive_avg_pool2d_check, .gradient = adaptive_avg_pool2d_gradient },
  { .op = GB_OP_adaptive_avg_pool2d_backward, .check = adaptive_avg_pool2d_backward_check,
    .gradient = adaptive_avg_pool2d_backward_gradient },
  { .op = GB_OP_max_pool1d, .compose = gb_max_pool1d_compose },
  { .op = GB_OP_max_pool3d, .compose = gb_max_pool3d_compose },
  { .op = GB_OP_avg_pool1d, .compose = gb_avg_pool1d_compose },
  { .op = GB_OP_avg_pool3d, .compose = gb_avg_pool3d_compose },
  { .op = GB_OP_adaptive_avg_pool1d, .compose = gb_adaptive_avg_pool1d_compose },
  { .op = GB_OP_adaptive_avg_pool3d, .compose = gb_adaptive_avg_pool3d_compose },
  { .op = GB_OP_adaptive_max_pool1d, .compose = gb_adaptive_max_pool1d_compose },
  { .op = GB_OP_adaptive_max_pool3d, .compose = gb_adaptive_max_pool3d_compose },
  { .op = GB_OP_lp_pool1d, .compose = gb_lp_pool1d_compose },
  { .op = GB_OP_lp_pool2d, .compose = gb_lp_pool2d_compose },
  { .op = GB_OP_lp_pool3d, .compose = gb_lp_pool3d_compose },
  { .op = GB_OP_max_unpool1d, .compose = gb_max_unpool1d_compose },
  { .op = GB_OP_max_unpool2d, .compose = gb_max_unpool2d_compose },
  { .op = GB_OP_max_unpool3d, .compose = gb_max_unpool3d_compose },
  { .op = GB_OP_COUNT },
};
