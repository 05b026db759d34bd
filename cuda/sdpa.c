/* cuda/sdpa.c - scaled_dot_product_attention: by the library (attention.h) where it has an engine, else by products (attend.c).
 *
 * The library runs what has 16 bits, no mask and no dropout. Its backward adds parts of a gradient in an order that changes from run to run, so
 * that it is asked only where the context allows that. */
#include "cuda/attend.h"
#include "cuda/attention.h"
#include "cuda/cuda.h"

#include <math.h>
#include <string.h>

enum { QUERY, KEY, VALUE, MASK };

/* Size `from_end` dims before the last; 1 where the rank is too low. */
static int64_t size_at(const gb_cuda_tensor *t, int from_end) { return t->ndim > from_end ? t->shape[t->ndim - 1 - from_end] : 1; }

/* Strides of t as [batch, heads, time, head_dim]: those of missing dimensions step over the whole tensor. */
static void strides_of(const gb_cuda_tensor *t, int64_t *stride) {
  for (int i = 0; i < 4; i++) stride[i] = i < 4 - t->ndim ? t->numel : t->stride[i - (4 - t->ndim)];
}

/* May the library be asked to run this? Operands in: query, key, value, mask. */
static bool is_plain(const gb_cuda_call *call, const gb_cuda_tensor *const *in, gb_dtype result) {
  for (int i = QUERY; i <= VALUE; i++)
    if (in[i]->dtype != result || in[i]->numel == 0) return false;
  return !in[MASK] && call->attrs[2].number == 0;
}

/* What both directions have in common. */
static gb_attention attention_of(const gb_cuda_call *call, const gb_cuda_tensor *const *in) {
  const gb_cuda_tensor *query = in[QUERY], *key = in[KEY], *value = in[VALUE];
  gb_attention a = { .batch = size_at(query, 3), .heads = size_at(query, 2), .key_heads = size_at(key, 2), .tq = size_at(query, 1), .tk = size_at(key, 1),
                     .e = size_at(query, 0), .ev = size_at(value, 0), .dtype = query->dtype, .causal = call->attrs[0].integer,
                     .query = query->data, .key = key->data, .value = value->data };
  a.scale = (float)(call->attrs[1].given ? call->attrs[1].number : 1 / sqrt((double)a.e));
  strides_of(query, a.query_stride);
  strides_of(key, a.key_stride);
  strides_of(value, a.value_stride);
  return a;
}

/* By products. */
static gb_status run_products(gb_cuda_call *call) {
  return call->op == GB_OP_scaled_dot_product_attention ? gb_attend(call) : gb_attend_backward(call);
}

static gb_status attention(gb_cuda_call *call) {
  const gb_cuda_tensor *y = call->out[0];
  bool served = false;
  if (y->numel == 0) return GB_OK;
  if (is_plain(call, call->in, y->dtype)) {
    gb_attention a = attention_of(call, call->in);
    a.out = y->data;
    a.lse = call->out[1] ? (float *)(void *)call->out[1]->data : NULL;
    strides_of(y, a.y_stride);
    GB_TRY(gb_attention_forward(call, &a, &served));
  }
  return served ? GB_OK : run_products(call);
}

/* in: grad, query, key, value, mask, y, lse. */
static gb_status attention_backward(gb_cuda_call *call) {
  const gb_cuda_tensor *grad = call->in[0], *y = call->in[5], *dquery = call->out[0], *dkey = call->out[1], *dvalue = call->out[2];
  bool served = false;
  if (call->call->context->nondeterministic && grad->dtype == y->dtype && y->numel > 0 && is_plain(call, call->in + 1, y->dtype)) {
    gb_attention a = attention_of(call, call->in + 1);
    a.grad = grad->data, a.y = y->data, a.lse = (float *)(void *)call->in[6]->data;
    a.dquery = dquery->data, a.dkey = dkey->data, a.dvalue = dvalue->data;
    strides_of(grad, a.grad_stride);
    strides_of(y, a.y_stride);
    strides_of(dquery, a.dquery_stride);
    strides_of(dkey, a.dkey_stride);
    strides_of(dvalue, a.dvalue_stride);
    GB_TRY(gb_attention_backward(call, &a, &served));
  }
  return served ? GB_OK : run_products(call);
}

const gb_cuda_row gb_cuda_sdpa[] = {
  { GB_OP_scaled_dot_product_attention, attention, false }, { GB_OP_scaled_dot_product_attention_backward, attention_backward, false },
  { GB_OP_COUNT, NULL, false },
};
