/* cuda/attention.c - attention as one cuDNN graph of primitive operations, which the library recognises and runs as one
 * kernel.
 *
 * The order of the operations is the one that the library's pattern matcher looks for (products, scale, causal mask,
 * maximum, difference, exponential, sum, quotient, product), and the types too: scores in float32, probabilities in the
 * dtype of the operands. Backward, dquery is a sum over blocks of keys, which different multiprocessors have. Where the
 * order of that sum may change they add to it in float32; else the graph has dquery as one product, and the library's
 * engine for Hopper keeps the gradients of the scores, 2 bytes each, in its workspace and multiplies them when all are
 * there (cudnn-frontend asks for determinism that way, for Hopper alone). That workspace may take 1/32 of the device's
 * memory; for GPT-2's 16 x 12 heads of 1,024 positions it is 403 MB. Floor: 4 tq tk head_dim operations a head forward
 * and 10 backward, half of it when causal; the operands read once, the results written once. */
#include "cuda/attention.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cuda/attention_graph.h"
#include "cuda/cuda.h"

/* The tensors that are bound to memory when a graph runs. */
enum { QUERY = 1, KEY, VALUE, OUT, STATS, SCALE, UNSEEN, GRAD, DQUERY, DKEY, DVALUE, ONE, ROW_SUMS,
       DQUERY_SUMS };

/* {==== forward ==== */

/* [batch, heads, rows, columns], as an array. */
typedef struct shape4 { int64_t size[4]; } shape4;
static shape4 shape_of(const gb_attention *a, int64_t heads, int64_t rows,
                       int64_t columns) { return (shape4){ { a->batch, heads, rows, columns } }; }

/* A tensor in memory with its last two dimensions exchanged. */
static gb_dnn_part transposed(gb_dnn_graph *g, int64_t id, gb_dtype dtype, shape4 shape, const int64_t *stride) {
  int64_t turned[4] = { stride[0], stride[1], stride[3], stride[2] };
  return gb_dnn_tensor(g, id, gb_dnn_type(dtype), 4,
                       (int64_t[]){ shape.size[0], shape.size[1], shape.size[3], shape.size[2] }, turned);
}

/* scale * query @ key^T, with the value for it where a query may not look. */
static gb_dnn_part scores(gb_dnn_graph *g, const gb_attention *a, gb_dnn_part query, gb_dnn_part key,
                          gb_dnn_part scale) {
  shape4 s = shape_of(a, a->heads, a->tq, a->tk);
  gb_dnn_part product = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL),
      scaled = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL);
  gb_dnn_matmul(g, query, key, product);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, product, scale, NULL, scaled);
  if (!a->causal) return scaled;
  gb_dnn_part row = gb_dnn_virtual(g, CUDNN_DATA_INT32, 4, s.size, NULL),
      column = gb_dnn_virtual(g, CUDNN_DATA_INT32, 4, s.size, NULL);
  gb_dnn_part seen = gb_dnn_virtual(g, CUDNN_DATA_BOOLEAN, 4, s.size, NULL),
      masked = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL);
  gb_dnn_position(g, 2, scaled, row);
  gb_dnn_position(g, 3, scaled, column);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_CMP_GE, row, column, NULL, seen);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, scaled, gb_dnn_scalar(g, UNSEEN, 4), seen, masked);
  return masked;
}

void gb_attention_forward_graph(gb_dnn_graph *g, const void *what) {
  const gb_attention *a = what;
  cudnnDataType_t type = gb_dnn_type(a->dtype);
  shape4 s = shape_of(a, a->heads, a->tq, a->tk), one = shape_of(a, a->heads, a->tq, 1),
      y = shape_of(a, a->heads, a->tq, a->ev);
  gb_dnn_part query = gb_dnn_tensor(g, QUERY, type, 4, shape_of(a, a->heads, a->tq, a->e).size, a->query_stride);
  gb_dnn_part key = transposed(g, KEY, a->dtype, shape_of(a, a->key_heads, a->tk, a->e), a->key_stride);
  gb_dnn_part value = gb_dnn_tensor(g, VALUE, type, 4, shape_of(a, a->key_heads, a->tk, a->ev).size, a->value_stride);
  gb_dnn_part masked = scores(g, a, query, key, gb_dnn_scalar(g, SCALE, 4));
  gb_dnn_part largest = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, one.size, NULL),
      sum = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, one.size, NULL);
  gb_dnn_part less = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL),
      powers = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL);
  gb_dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, masked, largest);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_SUB, masked, largest, NULL, less);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_EXP, less, NULL, NULL, powers);
  gb_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  /* The library's pattern has the log-sum-exp also where nobody asks for it. */
  const int64_t stats_stride[4] = { a->heads * a->tq, a->tq, 1, 1 };
  gb_dnn_part log = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, one.size, NULL);
  gb_dnn_part stats = a->lse ? gb_dnn_tensor(g, STATS, CUDNN_DATA_FLOAT, 4, one.size, stats_stride)
      : gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, one.size, stats_stride);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, NULL, log);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, largest, log, NULL, stats);
  gb_dnn_part shares = gb_dnn_virtual(g, type, 4, s.size, NULL);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_DIV, powers, sum, NULL, shares);
  gb_dnn_matmul(g, shares, value, gb_dnn_tensor(g, OUT, type, 4, y.size, a->y_stride));
}

/* ====} */

/* {==== backward ==== */

/* A row-major virtual tensor whose memory is that of x with its last two dimensions exchanged. */
static gb_dnn_part turned(gb_dnn_graph *g, cudnnDataType_t type, const gb_attention *a, gb_dnn_part x) {
  shape4 t = shape_of(a, a->heads, a->tk, a->tq);
  gb_dnn_part y = gb_dnn_virtual(g, type, 4, t.size, (int64_t[]){ a->heads * a->tq * a->tk, a->tq * a->tk, 1, a->tk });
  gb_dnn_reshape(g, x, y);
  return y;
}

void gb_attention_backward_graph(gb_dnn_graph *g, const void *what) {
  const gb_attention *a = what;
  cudnnDataType_t type = gb_dnn_type(a->dtype);
  shape4 q = shape_of(a, a->heads, a->tq, a->e), k = shape_of(a, a->key_heads, a->tk, a->e),
      v = shape_of(a, a->key_heads, a->tk, a->ev);
  shape4 s = shape_of(a, a->heads, a->tq, a->tk), one = shape_of(a, a->heads, a->tq, 1),
      y = shape_of(a, a->heads, a->tq, a->ev);
  const int64_t one_stride[4] = { a->heads * a->tq, a->tq, 1, 1 };
  gb_dnn_part grad = gb_dnn_tensor(g, GRAD, type, 4, y.size, a->grad_stride),
      out = gb_dnn_tensor(g, OUT, type, 4, y.size, a->y_stride);
  gb_dnn_part query = gb_dnn_tensor(g, QUERY, type, 4, q.size, a->query_stride),
      key = transposed(g, KEY, a->dtype, k, a->key_stride);
  gb_dnn_part value = transposed(g, VALUE, a->dtype, v, a->value_stride);
  gb_dnn_part stats = gb_dnn_tensor(g, STATS, CUDNN_DATA_FLOAT, 4, one.size, one_stride);

  /* row sums of grad * y: what softmax's gradient subtracts */
  gb_dnn_part both = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, y.size, NULL),
      sums = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, one.size, NULL);
  gb_dnn_part row_sums = gb_dnn_tensor(g, ROW_SUMS, CUDNN_DATA_FLOAT, 4, one.size, one_stride);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, grad, out, NULL, both);
  gb_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, sums);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, sums, gb_dnn_scalar(g, ONE, 4), NULL, row_sums);

  /* probabilities again, and dvalue from them */
  gb_dnn_part scale = gb_dnn_scalar(g, SCALE, 4), masked = scores(g, a, query, key, scale);
  gb_dnn_part less = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL),
      shares = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_SUB, masked, stats, NULL, less);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_EXP, less, NULL, NULL, shares);
  gb_dnn_matmul(g, turned(g, type, a, shares), grad, gb_dnn_tensor(g, DVALUE, type, 4, v.size, a->dvalue_stride));

  /* the gradient of the scores */
  gb_dnn_part d = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL),
      d_less = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL);
  gb_dnn_part d_shares = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, s.size, NULL),
      d_scores = gb_dnn_virtual(g, type, 4, s.size, NULL);
  gb_dnn_matmul(g, grad, value, d);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_SUB, d, row_sums, NULL, d_less);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, d_less, shares, NULL, d_shares);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, d_shares, scale, NULL, d_scores);

  /* dkey; and dquery, from gradients of scores that the library keeps, or added up in float32 block by block */
  gb_dnn_matmul(g, turned(g, type, a, d_scores), query, gb_dnn_tensor(g, DKEY, type, 4, k.size, a->dkey_stride));
  gb_dnn_part key_rows = gb_dnn_virtual(g, type, 4, k.size, a->key_stride);
  gb_dnn_part dquery = gb_dnn_tensor(g, DQUERY, type, 4, q.size, a->dquery_stride);
  gb_dnn_reshape(g, key, key_rows);
  if (a->deterministic) {
    gb_dnn_matmul(g, d_scores, key_rows, dquery);
    return;
  }
  gb_dnn_part query_sums = gb_dnn_tensor(g, DQUERY_SUMS, CUDNN_DATA_FLOAT, 4, q.size,
                                         (int64_t[]){ a->heads * a->tq * a->e, a->tq * a->e, a->e, 1 });
  gb_dnn_matmul(g, d_scores, key_rows, query_sums);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, query_sums, NULL, NULL, dquery);
}

/* ====} */

/* {==== running ==== */

/* What the graph can run: 16 bits, sizes and addresses in multiples of 16 bytes, head_dim innermost; in backward, as
 * many key heads as query heads. */
static bool fits(const gb_attention *a, bool backward) {
  const int64_t *strides[] = { a->query_stride, a->key_stride, a->value_stride, a->y_stride, a->grad_stride,
                               a->dquery_stride, a->dkey_stride,
                               a->dvalue_stride };
  const void *memory[] = { a->query, a->key, a->value, backward ? a->y : a->out, a->grad, a->dquery, a->dkey,
                           a->dvalue };
  if (!gb_is_16bit(a->dtype) || a->e > 256 || a->ev > 256 || a->e % 8 || a->ev % 8) return false;
  if (backward && a->heads != a->key_heads) return false;
  if (cudnnGetVersion() < 91600 && a->tk % 128) return false; /* before 9.16 keys beyond the last whole tile were not
                                                                 masked */
  for (int i = 0; i < (backward ? 8 : 4); i++) {
    if (strides[i][3] != 1 || (uintptr_t)memory[i] % 16) return false;
    for (int d = 0; d < 3; d++)
      if (strides[i][d] % 8) return false;
  }
  return true;
}

/* Everything that the graph is made of, but no address. */
static gb_dnn_key key_of(const gb_attention *a, bool backward) {
  gb_dnn_key key;
  memset(&key, 0, sizeof key);
  int64_t *at = key.values;
  const int64_t sizes[] = { backward ? 2 : 1, a->batch, a->heads, a->key_heads, a->tq, a->tk, a->e, a->ev, a->dtype,
                            a->causal, a->lse != NULL, backward && a->deterministic };
  const int64_t *strides[] = { a->query_stride, a->key_stride, a->value_stride, a->y_stride, a->grad_stride,
                               a->dquery_stride, a->dkey_stride,
                               a->dvalue_stride };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *at++ = sizes[i];
  for (int i = 0; i < (backward ? 8 : 4); i++)
    for (int d = 0; d < 4; d++) *at++ = strides[i][d];
  return key;
}

/* The operands that both directions have. */
static void bind_operands(gb_dnn_bound *bound, const gb_attention *a) {
  /* As NVIDIA's frontend fills it: engines before 9.10 want a number there. */
  static const float minus_infinity = -INFINITY, lowest = -FLT_MAX;
  const float *unseen = cudnnGetVersion() < 91000 ? &lowest : &minus_infinity;
  gb_dnn_bind(bound, QUERY, a->query);
  gb_dnn_bind(bound, KEY, a->key);
  gb_dnn_bind(bound, VALUE, a->value);
  gb_dnn_bind(bound, SCALE, &a->scale);
  if (a->causal) gb_dnn_bind(bound, UNSEEN, unseen);
  if (a->lse) gb_dnn_bind(bound, STATS, a->lse);
}

/* The library has no engine for the graph, so products do it, which is slower. It is told. */
static gb_status leave_it(const gb_cuda_call *call, const gb_attention *a, const gb_dnn_plan *plan) {
  gb_cuda_slower(call, GB_SLOWER_ATTENTION,
                 "attention of %" PRId64 " x %" PRId64 " heads, %" PRId64 " by %" PRId64 " positions, head_dim %" PRId64
                 " runs as products, which is slow: %s",
                 a->batch, a->heads, a->tq, a->tk, a->e, plan->error);
  return GB_OK;
}

gb_status gb_attention_forward(gb_cuda_call *call, const gb_attention *a, bool *served) {
  gb_dnns *dnns = NULL;
  static const gb_dnn_wish wish = { .deterministic = true, .workspace = (size_t)256 << 20 };
  *served = false;
  if (!fits(a, false)) return GB_OK;
  gb_dnn_key key = key_of(a, false);
  GB_TRY(gb_dnns_of(call, &dnns));
  gb_dnn_plan *plan = gb_dnn_plan_of(dnns, &key, gb_attention_forward_graph, a, &wish);
  if (!plan) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
  if (!plan->plan) return leave_it(call, a, plan);
  gb_dnn_bound bound = { 0 };
  bind_operands(&bound, a);
  gb_dnn_bind(&bound, OUT, a->out);
  *served = true;
  return gb_dnn_run(call, dnns, plan, &bound);
}

/* What only the sum whose order changes has: room for it, zeroed. */
static gb_status bind_sums(gb_cuda_call *call, const gb_attention *a, size_t rows, gb_dnn_bound *bound) {
  size_t bytes = rows * (size_t)a->e * sizeof(float);
  void *query_sums = gb_cuda_scratch(call, bytes);
  if (!query_sums) return GB_EMEMORY;
  if (gb_rt_set(call->stream, query_sums, 0, bytes))
    return gb_cuda_fail(call, GB_EDEVICE, "scratch could not be cleared");
  gb_dnn_bind(bound, DQUERY_SUMS, query_sums);
  return GB_OK;
}

/* No engine, or no memory for its workspace: our own passes do it, of 14 products of a tile where the engine has 10. */
static gb_status leave_gradient(const gb_cuda_call *call, const gb_attention *a, const char *why) {
  gb_cuda_slower(call, GB_SLOWER_EPILOGUE,
                 "the gradient of attention of %" PRId64 " x %" PRId64 " heads, %" PRId64 " by %" PRId64
                 " positions, head_dim %" PRId64 " runs by our own kernels: %s", a->batch, a->heads, a->tq, a->tk,
                 a->e, why);
  return GB_OK;
}

gb_status gb_attention_backward(gb_cuda_call *call, const gb_attention *a, bool *served) {
  gb_dnns *dnns = NULL;
  const gb_dnn_wish wish = { .deterministic = a->deterministic,
                             .workspace = a->deterministic ? call->cuda->memory / 32 : (size_t)1 << 30 };
  static const float one = 1;
  *served = false;
  if (!fits(a, true) || (a->deterministic && call->cuda->major != 9)) return GB_OK;
  gb_dnn_key key = key_of(a, true);
  GB_TRY(gb_dnns_of(call, &dnns));
  gb_dnn_plan *plan = gb_dnn_plan_of(dnns, &key, gb_attention_backward_graph, a, &wish);
  if (!plan) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
  if (!plan->plan) return leave_gradient(call, a, plan->error);
  size_t rows = (size_t)(a->batch * a->heads * a->tq);
  void *row_sums = gb_cuda_scratch(call, rows * sizeof(float));
  if (!row_sums) return GB_EMEMORY;
  gb_dnn_bound bound = { 0 };
  if (!a->deterministic) GB_TRY(bind_sums(call, a, rows, &bound));
  bind_operands(&bound, a);
  gb_dnn_bind(&bound, OUT, a->y);
  gb_dnn_bind(&bound, GRAD, a->grad);
  gb_dnn_bind(&bound, DQUERY, a->dquery);
  gb_dnn_bind(&bound, DKEY, a->dkey);
  gb_dnn_bind(&bound, DVALUE, a->dvalue);
  gb_dnn_bind(&bound, ONE, &one);
  gb_dnn_bind(&bound, ROW_SUMS, row_sums);
  gb_status status = gb_dnn_run(call, dnns, plan, &bound);
  *served = status == GB_OK;
  return status == GB_EMEMORY ? leave_gradient(call, a, "there is no memory for its workspace") : status;
}

/* ====} */
