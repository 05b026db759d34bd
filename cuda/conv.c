/* cuda/conv.c - convolutions by cuDNN's graph API: forward with bias and ReLU fused behind it, and both gradients.
 *
 * The library counts dimensions as n, c, h, w whatever lies innermost; strides say that the channels do. Sums are
 * float32 (float64 for float64); the weight's gradient may leave in float32 while its operands have 16 bits. Engines
 * that use Winograd's algorithm or FFT, that round float32 operands unasked, or that are not deterministic, are left
 * out (dnn.c). Floor: n oh ow o kh kw c / groups multiply-adds, each operand read once, the result written once. */
#include "cuda/conv.h"

#include <stdio.h>
#include <string.h>

#include "cuda/conv_graph.h"
#include "cuda/cuda.h"
#include "ops/conv.h"

#define MOST_WORKSPACE ((size_t)512 << 20)

enum { X = 1, WEIGHT, Y, BIAS };

/* y before bias and ReLU; y itself if there is neither. */
static gb_dnn_part sums(gb_dnn_graph *g, const gb_conv *conv, gb_dnn_part y, cudnnDataType_t compute) {
  int64_t like[4] = { conv->o * conv->out[0] * conv->out[1], 1, conv->out[1] * conv->o, conv->o };
  if (!conv->bias && !conv->relu) return y;
  return gb_dnn_virtual(g, compute, 4, (int64_t[]){ conv->n, conv->o, conv->out[0], conv->out[1] }, like);
}

/* Add the bias to `from`, then ReLU, into y. */
static void finish(gb_dnn_graph *g, const gb_conv *conv, gb_dnn_part from, gb_dnn_part y, cudnnDataType_t compute) {
  if (conv->bias) {
    gb_dnn_part bias = gb_dnn_image(g, BIAS, gb_dnn_type(conv->dtype), 1, conv->o, (int64_t[]){ 1, 1 });
    gb_dnn_part sum = conv->relu ? sums(g, conv, y, compute) : y;
    gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, from, bias, NULL, sum);
    from = sum;
  }
  if (conv->relu) gb_dnn_pointwise(g, CUDNN_POINTWISE_RELU_FWD, from, NULL, NULL, y);
}

/* The weight's gradient before it is stored. */
static gb_dnn_part sums_of_weight(gb_dnn_graph *g, const gb_conv *conv, cudnnDataType_t compute) {
  int64_t c = conv->c / conv->groups, h = conv->kernel[0], w = conv->kernel[1];
  return gb_dnn_virtual(g, compute, 4, (int64_t[]){ conv->o, c, h, w }, (int64_t[]){ c * h * w, 1, w * c, c });
}

/* The padding behind the input. */
static int64_t after_of(const gb_conv *c, int i) {
  return gb_padding_after(c->in[i], c->out[i], c->kernel[i], c->stride[i], c->padding[i], c->dilation[i]);
}

void gb_conv_graph(gb_dnn_graph *g, const void *what) {
  static const gb_dnn_convolution kinds[] = { [GB_CONV_FORWARD] = GB_DNN_FORWARD,
                                              [GB_CONV_BACKWARD_INPUT] = GB_DNN_BACKWARD_INPUT,
                                              [GB_CONV_BACKWARD_WEIGHT] = GB_DNN_BACKWARD_WEIGHT };
  const gb_conv *conv = what;
  cudnnDataType_t type = gb_dnn_type(conv->dtype), compute = conv->dtype == GB_FLOAT64 ? CUDNN_DATA_DOUBLE
      : CUDNN_DATA_FLOAT;
  gb_dnn_window window = { { conv->stride[0], conv->stride[1] }, { conv->padding[0], conv->padding[1] },
                           { conv->dilation[0], conv->dilation[1] }, { after_of(conv, 0), after_of(conv, 1) } };
  gb_dnn_part x = gb_dnn_image(g, X, conv->kind == GB_CONV_BACKWARD_INPUT ? gb_dnn_type(conv->result) : type, conv->n,
                               conv->c, conv->in);
  bool into_weight = conv->kind == GB_CONV_BACKWARD_WEIGHT, widens = into_weight && conv->result != conv->dtype;
  gb_dnn_part weight = gb_dnn_image(g, WEIGHT, into_weight ? gb_dnn_type(conv->result) : type, conv->o,
                                    conv->c / conv->groups, conv->kernel);
  gb_dnn_part y = gb_dnn_image(g, Y, conv->kind == GB_CONV_FORWARD ? gb_dnn_type(conv->result) : type, conv->n, conv->o,
                               conv->out);
  gb_dnn_part sum = conv->kind == GB_CONV_FORWARD ? sums(g, conv, y, compute) : y;
  gb_dnn_part into = widens ? sums_of_weight(g, conv, compute) : weight;
  gb_dnn_convolve(g, kinds[conv->kind], compute, &window, x, into, sum);
  /* Engines store 16 bits from 16 bits, and what another operation makes of it: a copy gets the float32 out. */
  if (widens) gb_dnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, into, NULL, NULL, weight);
  if (sum != y) finish(g, conv, sum, y, compute);
}

/* Everything that the graph is made of. */
static gb_dnn_key key_of(const gb_conv *conv) {
  gb_dnn_key key;
  memset(&key, 0, sizeof key);
  const int64_t values[] = { 16 + (int64_t)conv->kind, conv->n, conv->c, conv->in[0], conv->in[1], conv->o,
                             conv->kernel[0], conv->kernel[1], conv->out[0],
                             conv->out[1], conv->stride[0], conv->stride[1], conv->padding[0], conv->padding[1],
                                 conv->dilation[0], conv->dilation[1],
                             conv->groups, conv->dtype, conv->result, conv->bias != NULL, conv->relu, conv->tf32 };
  memcpy(key.values, values, sizeof values);
  return key;
}

/* Does the library count the elements of an operand wrongly? */
static bool is_too_large(const gb_conv *conv) {
  bool large = conv->n * conv->c * conv->in[0] * conv->in[1] > GB_DNN_ELEMENTS ||
      conv->n * conv->o * conv->out[0] * conv->out[1] > GB_DNN_ELEMENTS;
  return large && (conv->groups > 1 || cudnnGetVersion() < 90300);
}

gb_status gb_conv_run(gb_cuda_call *call, const gb_conv *conv, bool *served, char *why, size_t why_size) {
  gb_dnns *dnns = NULL;
  gb_dnn_wish wish = { .deterministic = true, .exact = conv->dtype == GB_FLOAT32 && !conv->tf32,
                       .workspace = MOST_WORKSPACE };
  gb_dnn_key key = key_of(conv);
  *served = false;
  if (((uintptr_t)conv->x | (uintptr_t)conv->weight | (uintptr_t)conv->y | (uintptr_t)conv->bias) % 16) {
    snprintf(why, why_size, "an operand does not begin at a multiple of 16 bytes");
    return GB_OK;
  }
  if (is_too_large(conv)) {
    snprintf(why, why_size, "a tensor has more elements than this cuDNN counts in 32 bits; smaller batches help");
    return GB_OK;
  }
  GB_TRY(gb_dnns_of(call, &dnns));
  gb_dnn_plan *plan = gb_dnn_plan_of(dnns, &key, gb_conv_graph, conv, &wish);
  if (!plan) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
  if (!plan->plan) {
    snprintf(why, why_size, "%s", plan->error);
    return GB_OK;
  }
  gb_dnn_bound bound = { 0 };
  gb_dnn_bind(&bound, X, conv->x);
  gb_dnn_bind(&bound, WEIGHT, conv->weight);
  gb_dnn_bind(&bound, Y, conv->y);
  if (conv->bias) gb_dnn_bind(&bound, BIAS, conv->bias);
  *served = true;
  return gb_dnn_run(call, dnns, plan, &bound);
}
