/* cuda/layers.c - recurrent layers by the library (rnn.h): what the ops bring and take, in the dtype and the layout
 * that it wants. */
#include "cuda/cuda.h"
#include "cuda/rnn.h"

#include <string.h>

/* A tensor's elements one behind the other in this dtype: its own memory, or a copy in scratch. t NULL: *out is
 * NULL. */
static gb_status dense(gb_cuda_call *call, const gb_cuda_tensor *t, gb_dtype dtype, const void **out) {
  int64_t step = 1;
  bool is_dense = t && t->dtype == dtype;
  *out = t ? t->data : NULL;
  for (int d = t ? t->ndim - 1 : -1; d >= 0; d--) {
    is_dense &= t->shape[d] == 1 || t->stride[d] == step;
    step *= t->shape[d];
  }
  if (!t || (is_dense && (uintptr_t)t->data % 16 == 0)) return GB_OK;
  gb_cuda_tensor copy = *t;
  copy.dtype = dtype;
  copy.data = gb_cuda_scratch(call, (size_t)(step > 0 ? step : 1) * gb_bytes_of(dtype));
  if (!copy.data) return GB_EMEMORY;
  step = 1;
  for (int d = t->ndim - 1; d >= 0; d--) copy.stride[d] = step, step *= t->shape[d];
  *out = copy.data;
  return gb_cuda_copy(call, &copy, t);
}

/* Weight `which` among packed ones, as a tensor. */
static gb_status weight_at(gb_cuda_call *call, const gb_rnn *rnn, const gb_cuda_tensor *packed, int64_t which,
                           gb_cuda_tensor *out) {
  const gb_rnn_weight w = gb_rnn_weight_of(rnn, which);
  *out = (gb_cuda_tensor){ .dtype = (gb_dtype)rnn->dtype, .ndim = w.columns ? 2 : 1, .shape = { w.rows, w.columns },
                           .stride = { w.columns ? w.columns : 1, 1 },
                           .numel = w.rows * (w.columns ? w.columns : 1) };
  return gb_rnn_place(call, rnn, packed->data, which, &out->data);
}

static gb_status pack(gb_cuda_call *call) {
  const gb_cuda_tensor *packed = GB_CUDA_OUT(call, rnn_pack)->packed;
  gb_rnn rnn = { GB_RNN_ATTRS(GB_ATTRS(call, rnn_pack)), .dtype = packed->dtype };
  gb_tensor **weights = GB_LIST(call->call, rnn_pack, weights);
  rnn = gb_rnn_packed(gb_rnn_of_weights(rnn, weights[0], weights[1]));
  for (int i = 0; i < call->n_in; i++) {
    gb_cuda_tensor to;
    GB_TRY(weight_at(call, &rnn, packed, i, &to));
    GB_TRY(gb_cuda_copy(call, &to, call->in[i]));
  }
  return GB_OK;
}

static gb_status unpack(gb_cuda_call *call) {
  const gb_attrs_rnn_unpack *attrs = GB_ATTRS(call, rnn_unpack);
  const gb_cuda_tensor *packed = GB_CUDA_IN(call, rnn_unpack)->packed;
  const gb_rnn rnn = gb_rnn_of_unpack(attrs, packed->dtype);
  gb_cuda_tensor from;
  GB_TRY(weight_at(call, &rnn, packed, attrs->which.integer, &from));
  return gb_cuda_copy(call, GB_CUDA_OUT(call, rnn_unpack)->y, &from);
}

/* Lengths are the host's. */
static const int64_t *lengths_of(const gb_cuda_tensor *lengths) {
  return lengths ? (const int64_t *)(const void *)lengths->data : NULL;
}

static gb_status forward(gb_cuda_call *call) {
  const gb_cuda_in_rnn *in = GB_CUDA_IN(call, rnn);
  const gb_cuda_out_rnn *out = GB_CUDA_OUT(call, rnn);
  const gb_rnn rnn = gb_rnn_of_forward(GB_ATTRS(call, rnn), GB_IN(call->call, rnn),
                                       GB_LIST(call->call, rnn, weights));
  const gb_dtype dtype = (gb_dtype)rnn.dtype;
  gb_rnn_run run = { .rnn = rnn, .lengths = lengths_of(in->lengths), .packed = in->packed->data, .y = out->y->data,
                     .last_h = out->last_h->data, .last_c = out->last_c ? out->last_c->data : NULL,
                     .reserve = out->reserve ? out->reserve->data : NULL };
  GB_TRY(dense(call, in->x, dtype, &run.x));
  GB_TRY(dense(call, in->h, dtype, &run.h));
  GB_TRY(dense(call, in->c, dtype, &run.c));
  return gb_rnn_forward(call, &run);
}

/* What forward kept, in memory that may be written over. */
static gb_status reserve_of(gb_cuda_call *call, const gb_cuda_tensor *reserve, bool again, void **out) {
  *out = reserve->data;
  if (!again) return GB_OK;
  *out = gb_cuda_scratch(call, (size_t)reserve->numel);
  if (!*out) return GB_EMEMORY;
  int code = gb_rt_copy(call->stream, *out, reserve->data, (size_t)reserve->numel, GB_COPY_ON_DEVICE);
  return code ? gb_cuda_fail(call, GB_EDEVICE, "copying what forward kept: %s", gb_rt_text(code)) : GB_OK;
}

static gb_status backward(gb_cuda_call *call) {
  const gb_cuda_in_rnn_backward *in = GB_CUDA_IN(call, rnn_backward);
  const gb_cuda_out_rnn_backward *out = GB_CUDA_OUT(call, rnn_backward);
  const gb_attrs_rnn_backward *attrs = GB_ATTRS(call, rnn_backward);
  const gb_rnn rnn = gb_rnn_of_backward(attrs, GB_IN(call->call, rnn_backward));
  const gb_dtype dtype = (gb_dtype)rnn.dtype;
  gb_rnn_run run = { .rnn = rnn, .lengths = lengths_of(in->lengths), .packed = in->packed->data, .y = in->y->data,
                     .dx = out->dx->data, .dh = out->dh ? out->dh->data : NULL,
                     .dc = out->dc ? out->dc->data : NULL,
                     .dpacked = out->dpacked ? out->dpacked->data : NULL };
  GB_TRY(dense(call, in->x, dtype, &run.x));
  GB_TRY(dense(call, in->h, dtype, &run.h));
  GB_TRY(dense(call, in->c, dtype, &run.c));
  GB_TRY(dense(call, in->grad, dtype, &run.grad));
  GB_TRY(dense(call, in->grad_h, dtype, &run.grad_h));
  GB_TRY(dense(call, in->grad_c, dtype, &run.grad_c));
  GB_TRY(reserve_of(call, in->reserve, attrs->again.integer != 0, &run.reserve));
  if (!run.grad) {
    size_t bytes = (size_t)in->y->numel * gb_bytes_of(dtype);
    void *zeros = gb_cuda_scratch(call, bytes);
    if (!zeros) return GB_EMEMORY;
    if (gb_rt_set(call->stream, zeros, 0, bytes)) return gb_cuda_fail(call, GB_EDEVICE, "clearing a gradient");
    run.grad = zeros;
  }
  return gb_rnn_backward(call, &run);
}

const gb_cuda_row gb_cuda_layers[] = {
  { GB_OP_rnn_pack, pack, false }, { GB_OP_rnn_unpack, unpack, false },
  { GB_OP_rnn, forward, true }, { GB_OP_rnn_backward, backward, true }, /* which take lengths on the host */
  { GB_OP_COUNT, NULL, false },
};
