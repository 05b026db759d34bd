/* ops/conv.c - 2-D convolution and pooling: checks and gradients.
 *
 * Each of these ops is linear in every operand once the window positions of a maximum are known, so the gradients of the gradients are
 * convolutions and poolings again, and every row here can be differentiated twice. Results of convolutions are channels-last in memory;
 * poolings keep the layout of their input. A fused relu keeps its result for backward; without one nothing but the operands is kept. */
#include "ops/conv.h"

#include <inttypes.h>
#include <string.h>

/* {==== What all of them ask ==== */

/* An attribute of one number or two, each between least and GB_CONV_LIMIT. `name` is the attribute's. */
static gb_status check_pair(gb_call *call, const char *name, const gb_attr *attr, int64_t least) {
  if (attr->count < 1 || attr->count > 2)
    return gb_call_fail(call, GB_EINVAL, "%s takes one number, or {height, width}; it has %d", name, (int)attr->count);
  for (int i = 0; i < attr->count; i++)
    if (attr->ints[i] < least || attr->ints[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_EINVAL, "%s is %" PRId64 ", it must be at least %" PRId64 "%s", name, attr->ints[i], least,
                          attr->ints[i] > 0 ? " and far smaller" : "");
  return GB_OK;
}

/* A shape given as an attribute: four sizes that are not negative. */
static gb_status check_shape(gb_call *call, const gb_attr *shape) {
  bool fits = shape->count == 4;
  for (int i = 0; fits && i < 4; i++) fits = shape->ints[i] >= 0 && shape->ints[i] <= GB_CONV_LIMIT;
  return fits ? GB_OK : gb_call_fail(call, GB_ESHAPE, "shape must be four sizes: batch, channels, height and width");
}

/* [n, c, h, w] of floats where only n may be 0. */
static gb_status check_images(gb_call *call, int input) {
  char text[96];
  GB_TRY(gb_require_ndim(call, input, 4, 4));
  GB_TRY(gb_require_float(call, input));
  const gb_tensor *x = call->in[input];
  for (int i = 1; i < 4; i++)
    if (x->shape[i] == 0 || x->shape[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE, "dimension %d of '%s' (%s) has size %" PRId64 "; only the batch may be empty", i + 1,
                          call->info->in[input].name, gb_shape_text(4, x->shape, text, sizeof text), x->shape[i]);
  return GB_OK;
}

/* Two inputs of one dtype. */
static gb_status check_same_dtype(gb_call *call, int a, int b) {
  const gb_tensor *x = call->in[a], *y = call->in[b];
  if (!y || x->dtype == y->dtype) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' is %s and '%s' is %s; convert one with :to(dtype), or use autocast", call->info->in[a].name,
                      gb_dtype_name((gb_dtype)x->dtype), call->info->in[b].name, gb_dtype_name((gb_dtype)y->dtype));
}

/* A tensor must have the sizes that the others imply. */
static gb_status check_sizes(gb_call *call, int input, int64_t n, int64_t c, const int64_t hw[2]) {
  char has[96], wants[96];
  const gb_tensor *t = call->in[input];
  const int64_t shape[4] = { n, c, hw[0], hw[1] };
  if (t->ndim == 4 && !memcmp(t->shape, shape, sizeof shape)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, expected %s", call->info->in[input].name,
                      gb_shape_text(t->ndim, t->shape, has, sizeof has), gb_shape_text(4, shape, wants, sizeof wants));
}

/* Allocate output 0 with the channels last. */
static gb_status output_channels_last(gb_call *call, const int64_t *shape, gb_dtype dtype) {
  int64_t strides[4];
  gb_channels_last_strides(shape, strides);
  return gb_call_output_strided(call, 0, 4, shape, strides, dtype);
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

/* Stride, padding, dilation and groups, each by itself. */
static gb_status check_conv_attrs(gb_call *call, const gb_attr *attrs) {
  GB_TRY(check_pair(call, "stride", &attrs[0], 1));
  GB_TRY(check_pair(call, "padding", &attrs[1], 0));
  GB_TRY(check_pair(call, "dilation", &attrs[2], 1));
  if (attrs[3].integer >= 1 && attrs[3].integer <= GB_CONV_LIMIT) return GB_OK;
  return gb_call_fail(call, GB_EINVAL, "groups is %" PRId64 ", it must be at least 1", attrs[3].integer);
}

/* Do x's and weight's shapes fit each other and the attributes? */
static gb_status check_conv(gb_call *call, const int64_t *x, const int64_t *weight, const gb_attr *attrs, gb_conv_sizes *s) {
  GB_TRY(check_conv_attrs(call, attrs));
  conv_texts t = texts_of(x, weight);
  int64_t groups = attrs[3].integer;
  if (x[1] % groups || weight[0] % groups)
    return gb_call_fail(call, GB_ESHAPE, "groups = %" PRId64 " must divide the input's %" PRId64 " channels and the weight's %" PRId64
                        " (input %s, weight %s)", groups, x[1], weight[0], t.x, t.weight);
  if (weight[1] * groups != x[1])
    return gb_call_fail(call, GB_ESHAPE, "weight expects %" PRId64 " input channels, input has %" PRId64 " (input %s, weight %s, groups %" PRId64 ")",
                        weight[1] * groups, x[1], t.x, t.weight, groups);
  *s = gb_conv_sizes_of(x, weight, attrs);
  if (s->out[0] > 0 && s->out[1] > 0) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE,
                      "the kernel does not fit into the padded input (input %s, weight %s, padding %" PRId64 "x%" PRId64 ", dilation %" PRId64
                      "x%" PRId64 "); use more padding or a smaller kernel",
                      t.x, t.weight, s->padding[0], s->padding[1], s->dilation[0], s->dilation[1]);
}

static bool has_relu(const gb_attr *activation) { return activation->integer == GB_WORD_relu; }

/* x [n, c, h, w], weight [o, c / groups, kh, kw], bias [o] or absent -> y [n, o, oh, ow], channels-last. A second output, y again, is made
 * only where relu's derivative will need it. */
static gb_status conv2d_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
  const gb_attr *activation = &call->attrs[4];
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_images(call, 1));
  GB_TRY(check_same_dtype(call, 0, 1));
  GB_TRY(check_same_dtype(call, 0, 2));
  if (weight->shape[0] == 0) return gb_call_fail(call, GB_ESHAPE, "weight has no output channels");
  if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[0])) {
    char text[96];
    return gb_call_fail(call, GB_ESHAPE, "bias has shape %s, weight makes %" PRId64 " channels",
                        gb_shape_text(bias->ndim, bias->shape, text, sizeof text), weight->shape[0]);
  }
  GB_TRY(check_conv(call, x->shape, weight->shape, call->attrs, &s));
  GB_TRY(output_channels_last(call, (int64_t[]){ s.n, s.o, s.out[0], s.out[1] }, (gb_dtype)x->dtype));
  return call->needs_grad && has_relu(activation) ? gb_tensor_detach(call->out[0], &call->out[1]) : GB_OK;
}

/* grad [n, o, oh, ow], weight -> dx of the attribute `shape`. */
static gb_status conv2d_backward_input_check(gb_call *call) {
  const gb_attr *shape = &call->attrs[0];
  gb_conv_sizes s;
  GB_TRY(check_shape(call, shape));
  GB_TRY(check_images(call, 0));
  GB_TRY(check_images(call, 1));
  GB_TRY(check_same_dtype(call, 0, 1));
  GB_TRY(check_conv(call, shape->ints, call->in[1]->shape, call->attrs + 1, &s));
  GB_TRY(check_sizes(call, 0, s.n, s.o, s.out));
  return output_channels_last(call, shape->ints, (gb_dtype)call->in[0]->dtype);
}

/* grad [n, o, oh, ow], x -> dweight of the attribute `shape`, in `dtype` or the operands' dtype. */
static gb_status conv2d_backward_weight_check(gb_call *call) {
  const gb_attr *shape = &call->attrs[0], *dtype = &call->attrs[5];
  gb_conv_sizes s;
  GB_TRY(check_shape(call, shape));
  GB_TRY(check_images(call, 0));
  GB_TRY(check_images(call, 1));
  GB_TRY(check_same_dtype(call, 0, 1));
  if (dtype->given && !gb_dtype_is_float((gb_dtype)dtype->integer))
    return gb_call_fail(call, GB_EDTYPE, "dtype %s is not a floating dtype", gb_dtype_name((gb_dtype)dtype->integer));
  GB_TRY(check_conv(call, call->in[1]->shape, shape->ints, call->attrs + 1, &s));
  GB_TRY(check_sizes(call, 0, s.n, s.o, s.out));
  return output_channels_last(call, shape->ints, dtype->given ? (gb_dtype)dtype->integer : (gb_dtype)call->in[0]->dtype);
}

/* The gradient of x, of the shape it had. conv: stride, padding, dilation and groups. */
static gb_status backward_input(gb_context *c, gb_tensor *grad, gb_tensor *weight, const int64_t *shape, const gb_attr *conv, gb_tensor **out) {
  gb_attr attrs[5] = { gb_attr_ints(4, shape), conv[0], conv[1], conv[2], conv[3] };
  return gb_op_2(c, GB_OP_conv2d_backward_input, grad, weight, attrs, out);
}

/* The gradient of the weight, of the shape it had, in dtype. */
static gb_status backward_weight(gb_context *c, gb_tensor *grad, gb_tensor *x, const int64_t *shape, const gb_attr *conv, gb_dtype dtype,
                                 gb_tensor **out) {
  gb_attr attrs[6] = { gb_attr_ints(4, shape), conv[0], conv[1], conv[2], conv[3], gb_attr_int(dtype) };
  return gb_op_2(c, GB_OP_conv2d_backward_weight, grad, x, attrs, out);
}

/* A plain convolution, without bias and activation. */
static gb_status forward(gb_context *c, gb_tensor *x, gb_tensor *weight, const gb_attr *conv, gb_tensor **out) {
  gb_attr attrs[5] = { conv[0], conv[1], conv[2], conv[3], gb_attr_text("none") };
  return gb_op_3(c, GB_OP_conv2d, x, weight, NULL, attrs, out);
}

/* The sum over batch, height and width. */
static gb_status bias_gradient(gb_context *c, gb_tensor *grad, gb_dtype dtype, gb_tensor **out) {
  gb_attr attrs[3] = { gb_attr_ints(3, (int64_t[]){ 0, 2, 3 }), gb_attr_int(false), gb_attr_int(dtype) };
  return gb_op_1(c, GB_OP_sum, grad, attrs, out);
}

/* The three gradients, from the gradient of what came before the activation. */
static gb_status conv2d_gradients(gb_grad_call *g, gb_tensor *grad) {
  const gb_edge *edges = g->node->edges;
  if (g->need[0]) GB_TRY(backward_input(g->context, grad, g->saved[1], edges[0].shape, g->attrs, &g->in[0]));
  if (g->need[1]) GB_TRY(backward_weight(g->context, grad, g->saved[0], edges[1].shape, g->attrs, (gb_dtype)g->want[1], &g->in[1]));
  return g->need[2] ? bias_gradient(g->context, grad, (gb_dtype)g->want[2], &g->in[2]) : GB_OK;
}

/* Through the relu first, where there is one. */
static gb_status conv2d_gradient(gb_grad_call *g) {
  if (!has_relu(&g->attrs[4])) return conv2d_gradients(g, g->out[0]);
  gb_tensor *grad = NULL;
  GB_TRY(gb_op_2(g->context, GB_OP_relu_backward, g->out[0], GB_SAVED_OUT(g, 1), NULL, &grad));
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
  const gb_tensor *like = g->saved[0] ? g->saved[0] : g->saved[1];
  gb_tensor *ddx = NULL;
  GB_TRY(in_dtype_of(g->context, g->out[0], like, &ddx));
  gb_status status = GB_OK;
  if (g->need[0]) status = forward(g->context, ddx, g->saved[1], g->attrs + 1, &g->in[0]);
  if (g->need[1] && status == GB_OK)
    status = backward_weight(g->context, g->saved[0], ddx, g->node->edges[1].shape, g->attrs + 1, (gb_dtype)g->want[1], &g->in[1]);
  gb_drop(&ddx);
  return status;
}

/* dweight is linear in grad (a convolution of x by dweight's gradient) and in x (grad through dweight's gradient). */
static gb_status conv2d_backward_weight_gradient(gb_grad_call *g) {
  const gb_tensor *like = g->saved[0] ? g->saved[0] : g->saved[1];
  gb_tensor *ddw = NULL;
  GB_TRY(in_dtype_of(g->context, g->out[0], like, &ddw));
  gb_status status = GB_OK;
  if (g->need[0]) status = forward(g->context, g->saved[1], ddw, g->attrs + 1, &g->in[0]);
  if (g->need[1] && status == GB_OK) status = backward_input(g->context, g->saved[0], ddw, g->node->edges[1].shape, g->attrs + 1, &g->in[1]);
  gb_drop(&ddw);
  return status;
}

/* ====} */

/* {==== Pooling ==== */

/* Kernel, stride and padding in attrs for x's shape. PyTorch's rule, that padding is at most half the kernel, leaves no window empty. */
static gb_status check_pool(gb_call *call, const int64_t *x, const gb_attr *attrs, gb_conv_sizes *s) {
  char text[96];
  GB_TRY(check_pair(call, "kernel_size", &attrs[0], 1));
  if (attrs[1].given) GB_TRY(check_pair(call, "stride", &attrs[1], 1));
  GB_TRY(check_pair(call, "padding", &attrs[2], 0));
  *s = gb_pool_sizes_of(x, attrs);
  for (int i = 0; i < 2; i++)
    if (s->padding[i] > s->kernel[i] / 2)
      return gb_call_fail(call, GB_EINVAL, "padding is %" PRId64 "; it may be at most half of kernel_size, which is %" PRId64, s->padding[i],
                          s->kernel[i]);
  if (s->out[0] > 0 && s->out[1] > 0) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "the window (%" PRId64 "x%" PRId64 ") does not fit into the padded input (%s); use a smaller kernel_size",
                      s->kernel[0], s->kernel[1], gb_shape_text(4, x, text, sizeof text));
}

/* Window positions are kept in a byte each. */
static gb_status check_window(gb_call *call, const gb_conv_sizes *s) {
  if (s->kernel[0] * s->kernel[1] <= 255) return GB_OK;
  return gb_call_fail(call, GB_EUNSUPPORTED, "a window of %" PRId64 "x%" PRId64 " has more than 255 elements; use a smaller kernel_size, "
                      "or amax over the dimensions", s->kernel[0], s->kernel[1]);
}

/* Input 1, positions, is uint8 of input 0's shape. */
static gb_status check_positions(gb_call *call, const gb_conv_sizes *s) {
  if (call->in[1]->dtype != GB_UINT8) return gb_call_fail(call, GB_EDTYPE, "positions must be uint8");
  GB_TRY(check_window(call, s));
  return check_sizes(call, 1, s->n, s->c, s->out);
}

/* Allocate output i of this shape: channels-last when `like` is. */
static gb_status output_in_layout(gb_call *call, int i, const int64_t *shape, const gb_tensor *like, gb_dtype dtype) {
  int64_t strides[4];
  if (!gb_is_channels_last(like)) return gb_call_output(call, i, 4, shape, dtype);
  gb_channels_last_strides(shape, strides);
  return gb_call_output_strided(call, i, 4, shape, strides, dtype);
}

/* x -> y, and for backward where in its window each maximum was. */
static gb_status max_pool2d_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_pool(call, x->shape, call->attrs, &s));
  GB_TRY(check_window(call, &s));
  const int64_t shape[4] = { s.n, s.c, s.out[0], s.out[1] };
  GB_TRY(output_in_layout(call, 0, shape, x, (gb_dtype)x->dtype));
  return call->needs_grad ? output_in_layout(call, 1, shape, x, GB_UINT8) : GB_OK;
}

/* grad and positions -> dx of the attribute `shape`, in the layout of the positions, which is x's: the ops before this one go on in the layout
 * that they have worked in, whatever a flattened image's gradient came in. */
static gb_status max_pool2d_backward_check(gb_call *call) {
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_shape(call, &call->attrs[0]));
  GB_TRY(check_pool(call, call->attrs[0].ints, call->attrs + 1, &s));
  GB_TRY(check_sizes(call, 0, s.n, s.c, s.out));
  GB_TRY(check_positions(call, &s));
  return output_in_layout(call, 0, call->attrs[0].ints, call->in[1], (gb_dtype)call->in[0]->dtype);
}

/* x and positions -> the elements there. */
static gb_status max_pool2d_gather_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_pool(call, x->shape, call->attrs, &s));
  GB_TRY(check_positions(call, &s));
  return output_in_layout(call, 0, (int64_t[]){ s.n, s.c, s.out[0], s.out[1] }, x, (gb_dtype)x->dtype);
}

static gb_status avg_pool2d_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_pool(call, x->shape, call->attrs, &s));
  return output_in_layout(call, 0, (int64_t[]){ s.n, s.c, s.out[0], s.out[1] }, x, (gb_dtype)x->dtype);
}

static gb_status avg_pool2d_backward_check(gb_call *call) {
  const gb_tensor *grad = call->in[0];
  gb_conv_sizes s;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_shape(call, &call->attrs[0]));
  GB_TRY(check_pool(call, call->attrs[0].ints, call->attrs + 1, &s));
  GB_TRY(check_sizes(call, 0, s.n, s.c, s.out));
  return output_in_layout(call, 0, call->attrs[0].ints, grad, (gb_dtype)grad->dtype);
}

static gb_status adaptive_avg_pool2d_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  int64_t size[2];
  GB_TRY(check_images(call, 0));
  GB_TRY(check_pair(call, "size", &call->attrs[0], 1));
  gb_pair(&call->attrs[0], size);
  return output_in_layout(call, 0, (int64_t[]){ x->shape[0], x->shape[1], size[0], size[1] }, x, (gb_dtype)x->dtype);
}

static gb_status adaptive_avg_pool2d_backward_check(gb_call *call) {
  const gb_tensor *grad = call->in[0];
  const int64_t *shape = call->attrs[0].ints;
  GB_TRY(check_images(call, 0));
  GB_TRY(check_shape(call, &call->attrs[0]));
  GB_TRY(check_sizes(call, 0, shape[0], shape[1], grad->shape + 2));
  return output_in_layout(call, 0, shape, grad, (gb_dtype)grad->dtype);
}

/* attrs of a pooling's backward row: x's shape before the pooling's own. */
static void with_shape(const gb_grad_call *g, const gb_attr *own, gb_attr attrs[4]) {
  attrs[0] = gb_attr_ints(4, g->node->edges[0].shape);
  for (int i = 0; i < 3; i++) attrs[1 + i] = own[i];
}

/* Of max_pool2d and of max_pool2d_gather: the same elements of x that gave the result. */
static gb_status at_positions(gb_grad_call *g, gb_tensor *positions) {
  gb_attr attrs[4];
  with_shape(g, g->attrs, attrs);
  return gb_op_2(g->context, GB_OP_max_pool2d_backward, g->out[0], positions, attrs, &g->in[0]);
}

static gb_status max_pool2d_gradient(gb_grad_call *g) { return at_positions(g, GB_SAVED_OUT(g, 1)); }
static gb_status max_pool2d_gather_gradient(gb_grad_call *g) { return at_positions(g, g->saved[1]); }

static gb_status max_pool2d_backward_gradient(gb_grad_call *g) {
  return gb_op_2(g->context, GB_OP_max_pool2d_gather, g->out[0], g->saved[1], g->attrs + 1, &g->in[0]);
}

static gb_status avg_pool2d_gradient(gb_grad_call *g) {
  gb_attr attrs[4];
  with_shape(g, g->attrs, attrs);
  return gb_op_1(g->context, GB_OP_avg_pool2d_backward, g->out[0], attrs, &g->in[0]);
}

static gb_status avg_pool2d_backward_gradient(gb_grad_call *g) {
  return gb_op_1(g->context, GB_OP_avg_pool2d, g->out[0], g->attrs + 1, &g->in[0]);
}

static gb_status adaptive_avg_pool2d_gradient(gb_grad_call *g) {
  gb_attr shape = gb_attr_ints(4, g->node->edges[0].shape);
  return gb_op_1(g->context, GB_OP_adaptive_avg_pool2d_backward, g->out[0], &shape, &g->in[0]);
}

static gb_status adaptive_avg_pool2d_backward_gradient(gb_grad_call *g) {
  gb_attr size = gb_attr_ints(2, g->node->edges[0].shape + 2);
  return gb_op_1(g->context, GB_OP_adaptive_avg_pool2d, g->out[0], &size, &g->in[0]);
}

/* ====} */

const gb_op_impl gb_family_conv[] = {
  { .op = GB_OP_conv2d, .check = conv2d_check, .gradient = conv2d_gradient, .save_in = 3, .save_out = 2, .save_other = true },
  { .op = GB_OP_conv2d_backward_input, .check = conv2d_backward_input_check, .gradient = conv2d_backward_input_gradient, .save_in = 3,
    .save_other = true },
  { .op = GB_OP_conv2d_backward_weight, .check = conv2d_backward_weight_check, .gradient = conv2d_backward_weight_gradient, .save_in = 3,
    .save_other = true },
  { .op = GB_OP_max_pool2d, .check = max_pool2d_check, .gradient = max_pool2d_gradient, .save_out = 2 },
  { .op = GB_OP_max_pool2d_backward, .check = max_pool2d_backward_check, .gradient = max_pool2d_backward_gradient, .save_in = 2 },
  { .op = GB_OP_max_pool2d_gather, .check = max_pool2d_gather_check, .gradient = max_pool2d_gather_gradient, .save_in = 2 },
  { .op = GB_OP_avg_pool2d, .check = avg_pool2d_check, .gradient = avg_pool2d_gradient },
  { .op = GB_OP_avg_pool2d_backward, .check = avg_pool2d_backward_check, .gradient = avg_pool2d_backward_gradient },
  { .op = GB_OP_adaptive_avg_pool2d, .check = adaptive_avg_pool2d_check, .gradient = adaptive_avg_pool2d_gradient },
  { .op = GB_OP_adaptive_avg_pool2d_backward, .check = adaptive_avg_pool2d_backward_check, .gradient = adaptive_avg_pool2d_backward_gradient },
  { .op = GB_OP_COUNT },
};
