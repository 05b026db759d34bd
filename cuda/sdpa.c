/* cuda/sdpa.c - scaled_dot_product_attention: by the library (attention.h) where it has an engine, else by products
 * (attend.c).
 *
 * The library runs what has 16 bits, no mask, no window and no dropout. Its backward has two algorithms, of which one
 * adds parts of a gradient in an order that changes from run to run: that one only where the context allows it. */
#include "cuda/attend.h"
#include "cuda/attention.h"
#include "cuda/cuda.h"

#include <math.h>
#include <string.h>

/* Size `from_end` dims before the last; 1 where the rank is too low. */
static int64_t size_at(const gb_cuda_tensor *t, int from_end) { return t->ndim > from_end
                                                                ? t->shape[t->ndim - 1 - from_end] : 1; }

/* Strides of t as [batch, heads, time, head_dim]: those of missing dimensions step over the whole tensor. */
static void strides_of(const gb_cuda_tensor *t, int64_t *stride) {
  for (int i = 0; i < 4; i++) stride[i] = i < 4 - t->ndim ? t->numel : t->stride[i - (4 - t->ndim)];
}

/* May the library be asked to run this? */
static bool is_plain(const gb_attended *in, gb_dtype result) {
  const gb_cuda_tensor *operands[] = { in->query, in->key, in->value };
  for (int i = 0; i < 3; i++)
    if (operands[i]->dtype != result || operands[i]->numel == 0) return false;
  if (gb_attended_window(in, size_at(in->query, 1), size_at(in->key, 1))) return false;
  return !in->mask && in->dropout_p->number == 0;
}

/* What both directions have in common. */
static gb_attention attention_of(const gb_attended *in) {
  const gb_cuda_tensor *query = in->query, *key = in->key, *value = in->value;
  gb_attention a = { .batch = size_at(query, 3), .heads = size_at(query, 2), .key_heads = size_at(key, 2),
                     .tq = size_at(query, 1), .tk = size_at(key, 1),
                     .e = size_at(query, 0), .ev = size_at(value, 0), .dtype = query->dtype,
                     .causal = in->is_causal->integer, .query = query->data, .key = key->data, .value = value->data };
  a.scale = (float)(in->scale->given ? in->scale->number : 1 / sqrt((double)a.e));
  strides_of(query, a.query_stride);
  strides_of(key, a.key_stride);
  strides_of(value, a.value_stride);
  return a;
}

/* By products. */
static gb_status run_products(gb_cuda_call *call) {
  return call->call->op == GB_OP_scaled_dot_product_attention ? gb_attend(call) : gb_attend_backward(call);
}

static gb_status attention(gb_cuda_call *call) {
  const gb_attended in = GB_ATTENDED(call, scaled_dot_product_attention);
  const gb_cuda_out_scaled_dot_product_attention *out = GB_CUDA_OUT(call, scaled_dot_product_attention);
  const gb_cuda_tensor *y = out->y;
  bool served = false;
  if (y->numel == 0) return GB_OK;
  if (is_plain(&in, y->dtype)) {
    gb_attention a = attention_of(&in);
    a.out = y->data;
    a.lse = out->lse ? (float *)(void *)out->lse->data : NULL;
    strides_of(y, a.y_stride);
    GB_TRY(gb_attention_forward(call, &a, &served));
  }
  return served ? GB_OK : run_products(call);
}

static gb_status attention_backward(gb_cuda_call *call) {
  const gb_cuda_in_scaled_dot_product_attention_backward *in = GB_CUDA_IN(call, scaled_dot_product_attention_backward);
  const gb_cuda_out_scaled_dot_product_attention_backward *out =
      GB_CUDA_OUT(call, scaled_dot_product_attention_backward);
  const gb_attended shared = GB_ATTENDED(call, scaled_dot_product_attention_backward);
  const gb_cuda_tensor *grad = in->grad, *y = in->y;
  bool served = false;
  if (grad->dtype == y->dtype && y->numel > 0 && is_plain(&shared, y->dtype)) {
    gb_attention a = attention_of(&shared);
    a.deterministic = !call->call->context->nondeterministic;
    a.grad = grad->data, a.y = y->data, a.lse = (float *)(void *)in->lse->data;
    a.dquery = out->dquery->data, a.dkey = out->dkey->data, a.dvalue = out->dvalue->data;
    strides_of(grad, a.grad_stride);
    strides_of(y, a.y_stride);
    strides_of(out->dquery, a.dquery_stride);
    strides_of(out->dkey, a.dkey_stride);
    strides_of(out->dvalue, a.dvalue_stride);
    GB_TRY(gb_attention_backward(call, &a, &served));
  }
  return served ? GB_OK : run_products(call);
}

const gb_cuda_row gb_cuda_sdpa[] = {
  { GB_OP_scaled_dot_product_attention, attention, false },
      { GB_OP_scaled_dot_product_attention_backward, attention_backward, false },
  { GB_OP_COUNT, NULL, false },
};
