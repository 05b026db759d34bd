/* libraries.c - stands in for cuDNN behind cuda/conv.h, attention.h, batch_norm.h and pool.h.
 *
 * What cuDNN does is left to our own kernels, but for convolutions, batch norms, poolings and attention forward where
 * GIBBOUS_CUDNN_ON_CPU is set in the environment: these are then the CPU backend's, so that what stands before and
 * behind the library is tested. Where it is "all", so are the gradients of attention, where the same bits are asked for
 * each time. With GIBBOUS_RELU_DROPS_NAN set, its ReLU makes 0 of NaN. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "cuda/attention.h"
#include "cuda/batch_norm.h"
#include "cuda/conv.h"
#include "cuda/cuda.h"
#include "cuda/pool.h"
#include "elements.h"
#include "machine.h"
#include "ops/conv.h"

void gb_dnns_close(struct gb_dnns *dnns) { (void)dnns; }

/* {==== convolutions, batch norms and poolings ==== */

static bool has_cudnn(void) { return getenv("GIBBOUS_CUDNN_ON_CPU") != NULL; }

/* A tensor of the engine over memory that is channels last, or a vector. */
typedef struct wrapped { gb_tensor tensor; gb_storage storage; } wrapped;
static gb_tensor *wrap(wrapped *w, gb_context *context, const void *data, gb_dtype dtype, int ndim,
                       const int64_t *shape) {
  w->storage = (gb_storage){ .context = context, .device = { GB_CPU, 0 }, .data = (void *)data };
  w->tensor = (gb_tensor){ .dtype = (int8_t)dtype, .ndim = (int8_t)ndim, .numel = 1, .storage = &w->storage };
  for (int d = 0; d < ndim; d++) w->tensor.shape[d] = shape[d], w->tensor.numel *= shape[d];
  if (ndim == 4) gb_channels_last_strides(shape, w->tensor.stride);
  else w->tensor.stride[0] = 1;
  return data ? &w->tensor : NULL;
}

/* Run the CPU's kernel of an op; in, out and attrs are the structs of its row. */
static void run_op(gb_context *context, gb_op op, void *in, const void *out, const void *attrs) {
  const gb_op_info *info = gb_op_get(context, op);
  gb_op_call call = { .context = context, .info = info, .op = op, .n_in = info->n_in, .n_out = info->n_out, .in = in,
                   .attrs = attrs };
  memcpy(call.out, out, (size_t)info->n_out * sizeof *call.out);
  if (context->backend[GB_CPU]->run[op](&call) != GB_OK) gb_machine_fail(info->name, "%s", context->error);
}

static gb_attr pair_of(const int64_t *v) { return (gb_attr){ .given = true, .count = 2, .ints = { v[0], v[1] } }; }

typedef struct conv_work { gb_context *context; gb_conv c; } conv_work;

/* The gradients of a convolution, of tensors that are there. */
static void run_conv_backward(const conv_work *w, gb_tensor *x, gb_tensor *weight, gb_tensor *grad,
                              const gb_attr *pads) {
  const gb_conv *c = &w->c;
  gb_attr stride = pair_of(c->stride), dilation = pair_of(c->dilation), groups = gb_attr_int(c->groups);
  if (c->kind == GB_CONV_BACKWARD_INPUT) {
    gb_attrs_conv2d_backward_input attrs = { .shape = gb_attr_ints(4, x->shape), .stride = stride, .padding = *pads,
                                             .dilation = dilation, .groups = groups };
    run_op(w->context, GB_OP_conv2d_backward_input, &(gb_in_conv2d_backward_input){ .grad = grad, .weight = weight },
           &(gb_out_conv2d_backward_input){ .dx = x }, &attrs);
  } else {
    gb_attrs_conv2d_backward_weight attrs = { .shape = gb_attr_ints(4, weight->shape), .stride = stride,
                                              .padding = *pads, .dilation = dilation, .groups = groups };
    run_op(w->context, GB_OP_conv2d_backward_weight, &(gb_in_conv2d_backward_weight){ .grad = grad, .x = x },
           &(gb_out_conv2d_backward_weight){ .dweight = weight }, &attrs);
  }
}

static void run_conv(void *argument) {
  conv_work *w = argument;
  const gb_conv *c = &w->c;
  const int64_t shapes[3][4] = { { c->n, c->c, c->in[0], c->in[1] },
                                 { c->o, c->c / c->groups, c->kernel[0], c->kernel[1] },
                                 { c->n, c->o, c->out[0], c->out[1] } };
  static const int results[] = { [GB_CONV_FORWARD] = 2, [GB_CONV_BACKWARD_INPUT] = 0, [GB_CONV_BACKWARD_WEIGHT] = 1 };
  void *const data[3] = { c->x, c->weight, c->y };
  wrapped room[4];
  gb_tensor *t[3], *bias = wrap(&room[3], w->context, c->bias, c->dtype, 1, &c->o);
  size_t bytes[3];
  for (int i = 0; i < 3; i++) {
    gb_dtype dtype = i == results[c->kind] ? c->result : c->dtype;
    t[i] = wrap(&room[i], w->context, data[i], dtype, 4, shapes[i]);
    bytes[i] = size_of(dtype, t[i]->numel);
  }
  int written = results[c->kind];
  gb_machine_moved(bytes[0] + bytes[1] + bytes[2] - bytes[written] + (bias ? size_of(c->dtype, c->o) : 0),
                   bytes[written]);
  bool uneven = false;
  for (int i = 0; i < 2; i++)
    uneven |= gb_padding_after(c->in[i], c->out[i], c->kernel[i], c->stride[i], c->padding[i], c->dilation[i]) !=
              c->padding[i];
  gb_attr padding = pair_of(c->padding);
  if (uneven) padding.exact = GB_WORD_same;
  if (c->kind != GB_CONV_FORWARD) {
    run_conv_backward(w, t[0], t[1], t[2], &padding);
    return;
  }
  gb_attrs_conv2d attrs = { .stride = pair_of(c->stride), .padding = padding, .dilation = pair_of(c->dilation),
                            .groups = gb_attr_int(c->groups),
                            .activation = gb_attr_word(c->relu ? GB_WORD_relu : GB_WORD_none) };
  run_op(w->context, GB_OP_conv2d, &(gb_in_conv2d){ .x = t[0], .weight = t[1], .bias = bias },
         &(gb_out_conv2d){ .y = t[2] }, &attrs);
  for (int64_t i = 0; c->relu && drops_nan() && i < t[2]->numel; i++)
    if (isnan(load(c->y, c->result, i))) store(c->y, c->result, i, 0);
}

gb_status gb_conv_run(gb_cuda_call *call, const gb_conv *conv, bool *served, char *why, size_t why_size) {
  *served = has_cudnn();
  snprintf(why, why_size, "the emulated device has no cuDNN");
  if (!*served) return GB_OK;
  conv_work *w = malloc(sizeof *w);
  if (!w) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a convolution");
  *w = (conv_work){ call->cuda->context, *conv };
  gb_machine_do(call->stream, "convolution", run_conv, free, w);
  return GB_OK;
}

typedef struct norm_work { gb_context *context; gb_batch_norm b; } norm_work;
enum { SCALE, BIAS, MEAN, RSTD, DSCALE, DBIAS, VECTORS };

static void run_training(const norm_work *w, gb_tensor *x, gb_tensor *residual, gb_tensor *y, gb_tensor **vectors) {
  gb_attrs_batch_norm attrs = { .training = gb_attr_int(true), .momentum = gb_attr_num(0.1),
                                .eps = gb_attr_num((double)w->b.eps),
                                .activation = gb_attr_word(w->b.relu ? GB_WORD_relu : GB_WORD_none) };
  gb_in_batch_norm in = { .x = x, .weight = vectors[SCALE], .bias = vectors[BIAS], .residual = residual };
  gb_out_batch_norm out = { .y = y, .mean = vectors[MEAN], .rstd = vectors[RSTD] };
  run_op(w->context, GB_OP_batch_norm, &in, &out, &attrs);
}

static void run_gradients(const norm_work *w, gb_tensor *x, gb_tensor *dx, gb_tensor *grad, gb_tensor **vectors) {
  gb_attrs_batch_norm_backward attrs = { .training = gb_attr_int(true) };
  gb_in_batch_norm_backward in = { .grad = grad, .x = x, .weight = vectors[SCALE], .mean = vectors[MEAN],
                                   .rstd = vectors[RSTD] };
  gb_out_batch_norm_backward out = { .dx = dx, .dweight = vectors[DSCALE], .dbias = vectors[DBIAS] };
  run_op(w->context, GB_OP_batch_norm_backward, &in, &out, &attrs);
}

/* (x - mean) * scale + bias, and what comes behind */
static void run_inference(const gb_batch_norm *b) {
  for (int64_t i = 0; i < b->n * b->inner * b->c; i++) {
    double y = (load(b->x, b->dtype, i) - (double)b->mean[i % b->c]) * (double)b->scale[i % b->c] +
        (double)b->bias[i % b->c];
    if (b->residual) y += load(b->residual, b->dtype, i);
    store(b->result, b->dtype, i, b->relu && y < 0 ? 0 : y);
  }
}

/* (grad + more) * (rectified > 0), as the library's operations before it. */
static void mask(const gb_batch_norm *b) {
  for (int64_t i = 0; i < b->n * b->inner * b->c; i++) {
    float sum = (float)load(b->grad, b->dtype, i);
    if (b->more) sum += (float)load(b->more, b->dtype, i);
    store(b->masked, b->dtype, i, (double)(sum * (load(b->rectified, b->dtype, i) > 0 ? 1.0f : 0.0f)));
  }
}

static void run_norm(void *argument) {
  norm_work *w = argument;
  const gb_batch_norm *b = &w->b;
  const int64_t shape[4] = { b->n, b->c, b->inner, 1 };
  float *const data[VECTORS] = { [SCALE] = b->scale, [BIAS] = b->bias, [MEAN] = b->mean, [RSTD] = b->rstd,
                                 [DSCALE] = b->dscale, [DBIAS] = b->dbias };
  wrapped room[VECTORS], x_room, result_room, grad_room, residual_room;
  gb_tensor *vectors[VECTORS], *x = wrap(&x_room, w->context, b->x, b->dtype, 4, shape);
  gb_tensor *result = wrap(&result_room, w->context, b->result, b->dtype, 4, shape);
  bool through = b->kind == GB_BATCH_NORM_THROUGH_RELU;
  gb_tensor *residual = wrap(&residual_room, w->context, b->residual, b->dtype, 4, shape);
  gb_tensor *grad = wrap(&grad_room, w->context, through ? b->masked : b->grad, b->dtype, 4, shape);
  for (int i = 0; i < VECTORS; i++) vectors[i] = wrap(&room[i], w->context, data[i], GB_FLOAT32, 1, &b->c);
  /* training and backward read x, and grad, once more after their sums */
  size_t once = size_of(b->dtype, x->numel), reads = b->kind == GB_BATCH_NORM_INFERENCE ? 1 : 2;
  /* through a ReLU the sums read grad, more and rectified and write masked, which is what is read once more */
  reads = reads * (grad ? 2 : 1) + (through ? 1 + (b->more != NULL) : 0) + (residual != NULL);
  gb_machine_moved(once * reads, once * (through ? 2 : 1));
  if (through) mask(b);
  if (b->kind == GB_BATCH_NORM_TRAINING) run_training(w, x, residual, result, vectors);
  else if (grad) run_gradients(w, x, result, grad, vectors);
  else run_inference(b);
  for (int64_t i = 0; b->relu && drops_nan() && i < result->numel; i++)
    if (isnan(load(b->result, b->dtype, i))) store(b->result, b->dtype, i, 0);
}

gb_status gb_batch_norm_has(gb_cuda_call *call, const gb_batch_norm *b, bool *has) {
  (void)call, (void)b;
  *has = has_cudnn();
  return GB_OK;
}

gb_status gb_batch_norm_run(gb_cuda_call *call, const gb_batch_norm *b) {
  norm_work *w = malloc(sizeof *w);
  if (!w) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a batch norm");
  *w = (norm_work){ call->cuda->context, *b };
  gb_machine_do(call->stream, "batch norm", run_norm, free, w);
  return GB_OK;
}

typedef struct pool_work { gb_context *context; gb_pool p; } pool_work;

static void run_pool(void *argument) {
  pool_work *w = argument;
  const gb_pool *p = &w->p;
  const int64_t in[4] = { p->n, p->c, p->in[0], p->in[1] }, out[4] = { p->n, p->c, p->out[0], p->out[1] };
  bool backward = p->kind == GB_POOL_MEAN_BACKWARD;
  size_t large = size_of(p->dtype, p->n * p->c * p->in[0] * p->in[1]),
      small = size_of(p->dtype, p->n * p->c * p->out[0] * p->out[1]);
  gb_machine_moved(backward ? small : large, backward ? large : small);
  wrapped from, to;
  gb_tensor *operand = wrap(&from, w->context, p->from, p->dtype, 4, backward ? out : in),
      *result = wrap(&to, w->context, p->to, p->dtype, 4, backward ? in : out);
  gb_attr kernel = pair_of(p->kernel), stride = pair_of(p->stride), padding = pair_of(p->padding);
  if (p->kind == GB_POOL_MAX) {
    gb_attrs_max_pool2d attrs = { .kernel_size = kernel, .stride = stride, .padding = padding,
                                  .dilation = pair_of((int64_t[]){ 1, 1 }) };
    run_op(w->context, GB_OP_max_pool2d, &(gb_in_max_pool2d){ .x = operand }, &(gb_out_max_pool2d){ .y = result },
           &attrs);
  } else if (!backward) {
    gb_attrs_avg_pool2d attrs = { .kernel_size = kernel, .stride = stride, .padding = padding,
                                  .count_include_pad = gb_attr_int(1) };
    run_op(w->context, GB_OP_avg_pool2d, &(gb_in_avg_pool2d){ .x = operand }, &(gb_out_avg_pool2d){ .y = result },
           &attrs);
  } else {
    gb_attrs_avg_pool2d_backward attrs = { .shape = gb_attr_ints(4, in), .kernel_size = kernel, .stride = stride,
                                           .padding = padding, .count_include_pad = gb_attr_int(1) };
    run_op(w->context, GB_OP_avg_pool2d_backward, &(gb_in_avg_pool2d_backward){ .grad = operand },
           &(gb_out_avg_pool2d_backward){ .dx = result }, &attrs);
  }
}

gb_status gb_pool_run(gb_cuda_call *call, const gb_pool *p, bool *served) {
  pool_work *w = has_cudnn() ? malloc(sizeof *w) : NULL;
  *served = w != NULL;
  if (!w) return has_cudnn() ? gb_cuda_fail(call, GB_EMEMORY, "out of memory for a pooling") : GB_OK;
  *w = (pool_work){ call->cuda->context, *p };
  gb_machine_do(call->stream, "pooling", run_pool, free, w);
  return GB_OK;
}

/* ====} */

/* {==== attention ==== */

typedef struct attention_work { gb_context *context; gb_attention a; } attention_work;

/* One of the operands, [batch, heads, time, columns], as it lies. */
static gb_tensor *wrap_heads(wrapped *w, const attention_work *job, const void *data, int64_t heads, int64_t time,
                             int64_t columns, const int64_t *stride) {
  gb_tensor *t = wrap(w, job->context, data, job->a.dtype, 4, (int64_t[]){ job->a.batch, heads, time, columns });
  memcpy(t->stride, stride, 4 * sizeof *stride);
  return t;
}

static void run_attention(void *argument) {
  attention_work *w = argument;
  const gb_attention *a = &w->a;
  wrapped room[5];
  gb_in_scaled_dot_product_attention in = {
    .query = wrap_heads(&room[0], w, a->query, a->heads, a->tq, a->e, a->query_stride),
    .key = wrap_heads(&room[1], w, a->key, a->key_heads, a->tk, a->e, a->key_stride),
    .value = wrap_heads(&room[2], w, a->value, a->key_heads, a->tk, a->ev, a->value_stride),
  };
  gb_tensor *y = wrap_heads(&room[3], w, a->out, a->heads, a->tq, a->ev, a->y_stride);
  gb_tensor *lse = wrap(&room[4], w->context, a->lse, GB_FLOAT32, 1, (int64_t[]){ a->batch * a->heads * a->tq });
  gb_attrs_scaled_dot_product_attention attrs = { .is_causal = gb_attr_int(a->causal),
                                                  .scale = gb_attr_num((double)a->scale),
                                                  .dropout_p = gb_attr_num(0),
                                                  .enable_gqa = gb_attr_int(a->heads != a->key_heads) };
  if (lse) {
    *lse = (gb_tensor){ .dtype = GB_FLOAT32, .ndim = 3, .shape = { a->batch, a->heads, a->tq }, .numel = lse->numel,
                        .stride = { a->heads * a->tq, a->tq, 1 }, .storage = lse->storage };
  }
  gb_machine_moved(size_of(a->dtype, in.query->numel + in.key->numel + in.value->numel),
                   size_of(a->dtype, y->numel) + (lse ? size_of(GB_FLOAT32, lse->numel) : 0));
  run_op(w->context, GB_OP_scaled_dot_product_attention, &in,
         &(gb_out_scaled_dot_product_attention){ .y = y, .lse = lse }, &attrs);
}

gb_status gb_attention_forward(gb_cuda_call *call, const gb_attention *a, bool *served) {
  *served = has_cudnn() && gb_is_16bit(a->dtype);
  if (!*served) return GB_OK;
  attention_work *w = malloc(sizeof *w);
  if (!w) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for attention");
  *w = (attention_work){ call->cuda->context, *a };
  gb_machine_do(call->stream, "attention", run_attention, free, w);
  return GB_OK;
}

static void run_attention_backward(void *argument) {
  attention_work *w = argument;
  const gb_attention *a = &w->a;
  wrapped room[9];
  int64_t rows = a->batch * a->heads * a->tq;
  gb_tensor *lse = wrap(&room[0], w->context, a->lse, GB_FLOAT32, 1, &rows);
  *lse = (gb_tensor){ .dtype = GB_FLOAT32, .ndim = 3, .shape = { a->batch, a->heads, a->tq }, .numel = rows,
                      .stride = { a->heads * a->tq, a->tq, 1 }, .storage = lse->storage };
  gb_in_scaled_dot_product_attention_backward in = {
    .grad = wrap_heads(&room[1], w, a->grad, a->heads, a->tq, a->ev, a->grad_stride),
    .query = wrap_heads(&room[2], w, a->query, a->heads, a->tq, a->e, a->query_stride),
    .key = wrap_heads(&room[3], w, a->key, a->key_heads, a->tk, a->e, a->key_stride),
    .value = wrap_heads(&room[4], w, a->value, a->key_heads, a->tk, a->ev, a->value_stride),
    .y = wrap_heads(&room[5], w, a->y, a->heads, a->tq, a->ev, a->y_stride),
    .lse = lse,
  };
  gb_out_scaled_dot_product_attention_backward out = {
    .dquery = wrap_heads(&room[6], w, a->dquery, a->heads, a->tq, a->e, a->dquery_stride),
    .dkey = wrap_heads(&room[7], w, a->dkey, a->key_heads, a->tk, a->e, a->dkey_stride),
    .dvalue = wrap_heads(&room[8], w, a->dvalue, a->key_heads, a->tk, a->ev, a->dvalue_stride),
  };
  gb_attrs_scaled_dot_product_attention_backward attrs = { .is_causal = gb_attr_int(a->causal),
                                                           .scale = gb_attr_num((double)a->scale),
                                                           .dropout_p = gb_attr_num(0) };
  run_op(w->context, GB_OP_scaled_dot_product_attention_backward, &in, &out, &attrs);
}

/* Where GIBBOUS_CUDNN_ON_CPU is "all"; else ours serves. The library's limits are those of attention.c's `fits`. */
gb_status gb_attention_backward(gb_cuda_call *call, const gb_attention *a, bool *served) {
  const char *wish = getenv("GIBBOUS_CUDNN_ON_CPU");
  *served = wish && !strcmp(wish, "all") && gb_is_16bit(a->dtype) && a->heads == a->key_heads && a->deterministic;
  if (!*served) return GB_OK;
  attention_work *w = malloc(sizeof *w);
  if (!w) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for the gradient of attention");
  *w = (attention_work){ call->cuda->context, *a };
  gb_machine_do(call->stream, "the gradient of attention", run_attention_backward, free, w);
  return GB_OK;
}

/* ====} */
