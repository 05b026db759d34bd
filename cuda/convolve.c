/* cuda/convolve.c - conv2d and its gradients: brings operands to the layout that the library convolves, and falls back
 * where it has no engine.
 *
 * First as they are, channels last. Where 16-bit channels are no multiple of 8 and the library has no engine for that,
 * once more with channels of zeros beside them. What is left is done by the plain kernels of conv_plain.cu, which are
 * slow: the first one says so, with GIBBOUS_CUDA_VERBOSE=1 in the environment each of them. */
#include "cuda/conv_plain.h"
#include "cuda/cuda.h"
#include "ops/conv.h"

#include <inttypes.h>

/* One convolution with its tensors: the one at [kind's] place is the result. */
enum { X, WEIGHT, Y, TENSORS };
typedef struct work {
  gb_conv conv;
  gb_cuda_tensor t[TENSORS];
  int result;
  const gb_cuda_tensor *bias;
} work;

/* {==== layouts ==== */

static gb_cuda_tensor channels_last_tensor(gb_dtype dtype, const int64_t *shape) {
  gb_cuda_tensor t = { .dtype = dtype, .ndim = 4, .numel = shape[0] * shape[1] * shape[2] * shape[3] };
  for (int d = 0; d < 4; d++) t.shape[d] = shape[d];
  gb_channels_last_strides(shape, t.stride);
  return t;
}

static size_t bytes_of(gb_cuda_call *call, const gb_cuda_tensor *t) { return (size_t)t->numel *
                                                                      call->cuda->engine->dtype_bytes(t->dtype); }

/* An operand as the library reads it: itself or a copy in scratch, which is not filled for the result. */
static gb_status arrange(gb_cuda_call *call, const gb_cuda_tensor *t, gb_cuda_tensor *out, bool fill) {
  *out = *t;
  if (gb_cuda_is_channels_last(t)) return GB_OK;
  *out = channels_last_tensor(t->dtype, t->shape);
  out->data = gb_cuda_scratch(call, bytes_of(call, out));
  if (!out->data) return GB_EMEMORY;
  return fill ? gb_cuda_copy(call, out, t) : GB_OK;
}

/* ====} */

/* {==== the library ==== */

/* Test whether ReLU passes NaN on, by a convolution whose weight, and so every sum, is NaN. */
static gb_status try_nan(gb_cuda_call *call, const void *what) {
  gb_conv conv = *(const gb_conv *)what;
  char why[256];
  bool served = false;
  size_t bytes = (size_t)(conv.o * (conv.c / conv.groups) * conv.kernel[0] * conv.kernel[1]) *
      call->cuda->engine->dtype_bytes(conv.dtype);
  conv.weight = gb_rt_alloc(bytes);
  if (!conv.weight) return GB_EMEMORY;
  /* NaN in every format */
  gb_status status = gb_rt_set(call->stream, conv.weight, 0xff, bytes) ? GB_EDEVICE
      : gb_conv_run(call, &conv, &served, why, sizeof why);
  gb_rt_free(conv.weight, bytes);
  return status == GB_OK && !served ? GB_EUNSUPPORTED : status;
}

/* Report which part of a convolution does not go the fast way, how it goes, and why. */
static void say(const gb_cuda_call *call, gb_slower kind, const gb_conv *conv, const char *what, const char *how,
                const char *why) {
  gb_cuda_slower(call, kind, "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] to %" PRId64
                 " channels runs %s: %s", what, conv->n, conv->c, conv->in[0], conv->in[1], conv->o, how, why);
}

/* With the library's ReLU, if it may be used and there is an engine for it; else with ours behind it. */
static gb_status run_relu(gb_cuda_call *call, gb_conv *conv, const gb_cuda_tensor *y, bool *served, char *why,
                          size_t why_size) {
  const char *refusal = gb_relu_refusal(call, &call->cuda->conv_relu[conv->dtype][conv->tf32][conv->bias != NULL],
                                        try_nan, conv, conv->y, conv->result);
  if (!refusal) GB_TRY(gb_conv_run(call, conv, served, why, why_size));
  if (*served) return GB_OK;
  conv->relu = false;
  GB_TRY(gb_conv_run(call, conv, served, why, why_size));
  if (!*served) return GB_OK;
  say(call, GB_SLOWER_EPILOGUE, conv, "ReLU beside a convolution", "apart, which is slower",
      refusal ? refusal : "cuDNN has no engine for both");
  return gb_relu_in_place(call, y);
}

/* Convolve tensors that lie as the library reads them. */
static gb_status run(gb_cuda_call *call, const work *w, const gb_cuda_tensor *t, const void *bias, bool *served,
                     char *why, size_t why_size) {
  gb_conv conv = w->conv;
  conv.x = t[X].data, conv.weight = t[WEIGHT].data, conv.y = t[Y].data, conv.bias = bias;
  conv.c = t[X].shape[1], conv.o = t[Y].shape[1];
  return conv.relu ? run_relu(call, &conv, &t[Y], served, why, why_size)
      : gb_conv_run(call, &conv, served, why, why_size);
}

/* As it is. */
static gb_status try_plainly(gb_cuda_call *call, const work *w, bool *served, char *why, size_t why_size) {
  gb_cuda_tensor t[TENSORS], bias = { .data = NULL };
  for (int i = 0; i < TENSORS; i++) GB_TRY(arrange(call, &w->t[i], &t[i], i != w->result));
  if (w->bias) {
    bias = *w->bias;
    if (bias.stride[0] != 1) {
      bias.stride[0] = 1;
      bias.data = gb_cuda_scratch(call, bytes_of(call, &bias));
      if (!bias.data) return GB_EMEMORY;
      GB_TRY(gb_cuda_copy(call, &bias, w->bias));
    }
  }
  GB_TRY(run(call, w, t, bias.data, served, why, why_size));
  return *served ? gb_cuda_copy(call, &w->t[w->result], &t[w->result]) : GB_OK;
}

static int64_t round_up(int64_t n) { return (n + 7) / 8 * 8; }

/* Room for t with its channels a multiple of 8 (a weight's on both sides), the new ones 0; *inside is the part that t
 * itself has. */
static gb_status widen(gb_cuda_call *call, const gb_cuda_tensor *t, bool weight, gb_cuda_tensor *out,
                       gb_cuda_tensor *inside) {
  int64_t shape[4] = { weight ? round_up(t->shape[0]) : t->shape[0], round_up(t->shape[1]), t->shape[2], t->shape[3] };
  *out = channels_last_tensor(t->dtype, shape);
  out->data = gb_cuda_scratch(call, bytes_of(call, out));
  if (!out->data) return GB_EMEMORY;
  *inside = *out;
  for (int d = 0; d < 4; d++) inside->shape[d] = t->shape[d];
  inside->numel = t->numel;
  return gb_rt_set(call->stream, out->data, 0, bytes_of(call, out))
      ? gb_cuda_fail(call, GB_EDEVICE, "scratch could not be cleared") : GB_OK;
}

/* With channels of zeros beside those that there are. */
static gb_status try_widened(gb_cuda_call *call, const work *w, bool *served, char *why, size_t why_size) {
  gb_cuda_tensor t[TENSORS], inside[TENSORS], bias = { .data = NULL }, inside_bias;
  for (int i = 0; i < TENSORS; i++) {
    GB_TRY(widen(call, &w->t[i], i == WEIGHT, &t[i], &inside[i]));
    if (i != w->result) GB_TRY(gb_cuda_copy(call, &inside[i], &w->t[i]));
  }
  if (w->bias) {
    gb_cuda_tensor row = *w->bias;
    row.ndim = 4;
    for (int d = 0; d < 4; d++) row.shape[d] = d == 1 ? w->bias->shape[0] : 1,
        row.stride[d] = d == 1 ? w->bias->stride[0] : 1;
    GB_TRY(widen(call, &row, false, &bias, &inside_bias));
    GB_TRY(gb_cuda_copy(call, &inside_bias, &row));
  }
  GB_TRY(run(call, w, t, bias.data, served, why, why_size));
  return *served ? gb_cuda_copy(call, &w->t[w->result], &inside[w->result]) : GB_OK;
}

/* ====} */

/* Whatever can do it. */
static gb_status convolve(gb_cuda_call *call, const work *w) {
  const gb_conv *c = &w->conv;
  bool served = false, odd = gb_is_16bit(c->dtype) && c->groups == 1 && (c->c % 8 || c->o % 8);
  char why[256] = "";
  if (c->n == 0) {
    gb_cuda_tensor result = w->t[w->result];
    return gb_rt_set(call->stream, result.data, 0, bytes_of(call, &result))
        ? gb_cuda_fail(call, GB_EDEVICE, "the result could not be cleared") : GB_OK;
  }
  GB_TRY(try_plainly(call, w, &served, why, sizeof why));
  gb_cuda_scratch_back(call, 0);
  if (!served && odd) GB_TRY(try_widened(call, w, &served, why, sizeof why));
  if (served) return GB_OK;
  say(call, GB_SLOWER_CONVOLUTION, c, "a convolution", "on plain CUDA kernels, which are slow", why);
  gb_conv_plain(call, c, &w->t[X], &w->t[WEIGHT], &w->t[Y], w->bias);
  return GB_OK;
}

/* The sizes as the library wants them. */
static gb_conv conv_of(const gb_cuda_call *call, gb_conv_kind kind, const gb_cuda_tensor *x,
                       const gb_cuda_tensor *weight, gb_conv_attrs attrs) {
  gb_conv_sizes s = gb_conv_sizes_of(2, x->shape, weight->shape, attrs);
  gb_conv c = { .kind = kind, .n = s.n, .c = s.c, .o = s.o, .groups = s.groups, .tf32 = call->tf32 };
  for (int i = 0; i < 2; i++) {
    c.in[i] = s.in[i], c.kernel[i] = s.kernel[i], c.out[i] = s.out[i];
    c.stride[i] = s.stride[i], c.padding[i] = s.padding[i], c.dilation[i] = s.dilation[i];
  }
  return c;
}

static gb_status conv2d(gb_cuda_call *call) {
  const gb_cuda_in_conv2d *in = GB_CUDA_IN(call, conv2d);
  const gb_cuda_tensor *x = in->x, *weight = in->weight, *y = GB_CUDA_OUT(call, conv2d)->y;
  const gb_attrs_conv2d *attrs = GB_ATTRS(call, conv2d);
  gb_conv conv = conv_of(call, GB_CONV_FORWARD, x, weight, GB_CONV_ATTRS(attrs));
  work w = { .conv = conv, .t = { *x, *weight, *y }, .result = Y, .bias = in->bias };
  w.conv.dtype = x->dtype, w.conv.result = y->dtype;
  w.conv.relu = attrs->activation.integer == GB_WORD_relu;
  return convolve(call, &w);
}

static gb_status conv2d_backward_input(gb_cuda_call *call) {
  const gb_cuda_in_conv2d_backward_input *in = GB_CUDA_IN(call, conv2d_backward_input);
  const gb_cuda_tensor *grad = in->grad, *weight = in->weight, *dx = GB_CUDA_OUT(call, conv2d_backward_input)->dx;
  gb_conv_attrs attrs = GB_CONV_ATTRS(GB_ATTRS(call, conv2d_backward_input));
  gb_conv conv = conv_of(call, GB_CONV_BACKWARD_INPUT, dx, weight, attrs);
  work w = { .conv = conv, .t = { *dx, *weight, *grad }, .result = X };
  w.conv.dtype = grad->dtype, w.conv.result = dx->dtype;
  return convolve(call, &w);
}

static gb_status conv2d_backward_weight(gb_cuda_call *call) {
  const gb_cuda_in_conv2d_backward_weight *in = GB_CUDA_IN(call, conv2d_backward_weight);
  const gb_cuda_tensor *grad = in->grad, *x = in->x, *dweight = GB_CUDA_OUT(call, conv2d_backward_weight)->dweight;
  gb_conv_attrs attrs = GB_CONV_ATTRS(GB_ATTRS(call, conv2d_backward_weight));
  gb_conv conv = conv_of(call, GB_CONV_BACKWARD_WEIGHT, x, dweight, attrs);
  work w = { .conv = conv, .t = { *x, *dweight, *grad }, .result = WEIGHT };
  w.conv.dtype = grad->dtype, w.conv.result = dweight->dtype;
  return convolve(call, &w);
}

const gb_cuda_row gb_cuda_convolve[] = {
  { GB_OP_conv2d, conv2d, false }, { GB_OP_conv2d_backward_input, conv2d_backward_input, false },
  { GB_OP_conv2d_backward_weight, conv2d_backward_weight, false }, { GB_OP_COUNT, NULL, false },
};
