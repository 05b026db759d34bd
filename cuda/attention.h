/* cuda/attention.h - the seam to the library's attention: attention.c runs it as a cuDNN graph,
 * tests/cuda_on_cpu/libraries.c on the CPU. */
#ifndef GB_CUDA_ATTENTION_H
#define GB_CUDA_ATTENTION_H

#include "cuda/call.h"

/* One attention, forward or backward. Tensors are [batch, heads, time, head_dim] with these strides. */
typedef struct gb_attention {
  int64_t batch, heads, key_heads, tq, tk, e, ev; /* e: head_dim of query and key; ev: of value */
  gb_dtype dtype;                                 /* of query, key, value and the result */
  bool causal;
  bool deterministic;                             /* backward: the same bits every time */
  float scale;
  const void *query, *key, *value, *y, *grad;     /* y and grad: backward only */
  void *out, *dquery, *dkey, *dvalue;
  float *lse;                                     /* [batch, heads, tq]; forward: written unless NULL */
  int64_t query_stride[4], key_stride[4], value_stride[4], y_stride[4], grad_stride[4], dquery_stride[4],
      dkey_stride[4], dvalue_stride[4];
} gb_attention;

#ifdef __cplusplus
extern "C" {
#endif

/* Launch the forward pass. If the library has no engine for it, *served is false and nothing was launched: our own
 * kernels run then. */
gb_status gb_attention_forward(gb_cuda_call *call, const gb_attention *a, bool *served);
/* The same for the three gradients. */
gb_status gb_attention_backward(gb_cuda_call *call, const gb_attention *a, bool *served);

#ifdef __cplusplus
}
#endif
#endif
