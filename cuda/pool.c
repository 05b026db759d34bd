/* cuda/pool.c - maximum and average pooling, and the gradient of the average, by cuDNN's graph API.
 *
 * Sums are float32. Engines that add in an order that changes are left out unless the context allows them.
 * Floor: each element of the input and of the result moved once. */
#include "cuda/pool.h"

#include <inttypes.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/pool_graph.h"

enum { FROM = 1, TO };

void gb_pool_graph(gb_dnn_graph *g, const void *what) {
  const gb_pool *p = what;
  bool backward = p->kind == GB_POOL_MEAN_BACKWARD;
  gb_dnn_pool window = { { p->kernel[0], p->kernel[1] }, { p->stride[0], p->stride[1] },
                         { p->padding[0], p->padding[1] } };
  gb_dnn_part from = gb_dnn_image(g, FROM, gb_dnn_type(p->dtype), p->n, p->c, backward ? p->out : p->in);
  gb_dnn_part to = gb_dnn_image(g, TO, gb_dnn_type(p->dtype), p->n, p->c, backward ? p->in : p->out);
  gb_dnn_resample(g, p->kind == GB_POOL_MAX ? CUDNN_RESAMPLE_MAXPOOL : CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING, backward,
                  &window, from, to);
}

gb_status gb_pool_run(gb_cuda_call *call, const gb_pool *p, bool *served) {
  gb_dnns *dnns = NULL;
  gb_dnn_plan *plan = NULL;
  const char *why = "an operand does not begin at a multiple of 16 bytes";
  bool deterministic = !call->call->context->nondeterministic;
  gb_dnn_wish wish = { .deterministic = deterministic, .exact = p->dtype == GB_FLOAT32,
                       .workspace = (size_t)256 << 20 };
  gb_dnn_key key;
  memset(&key, 0, sizeof key);
  const int64_t values[] = { 48 + (int64_t)p->kind, p->n, p->c, p->in[0], p->in[1], p->out[0], p->out[1], p->kernel[0],
                             p->kernel[1], p->stride[0], p->stride[1],
                             p->padding[0], p->padding[1], p->dtype, deterministic };
  memcpy(key.values, values, sizeof values);
  int64_t images = p->n * p->c;
  if (images * p->in[0] * p->in[1] > GB_DNN_ELEMENTS || images * p->out[0] * p->out[1] > GB_DNN_ELEMENTS)
    why = "a tensor has more elements than cuDNN counts in 32 bits";
  else if (((uintptr_t)p->from | (uintptr_t)p->to) % 16 == 0) {
    GB_TRY(gb_dnns_of(call, &dnns));
    plan = gb_dnn_plan_of(dnns, &key, gb_pool_graph, p, &wish);
    if (!plan) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
    why = plan->error;
  }
  *served = plan && plan->plan;
  if (!*served)
    gb_cuda_slower(call, GB_SLOWER_POOLING,
                   "a pooling of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] runs on plain CUDA kernels: %s",
                   p->n, p->c, p->in[0], p->in[1], why);
  if (!*served) return GB_OK;
  gb_dnn_bound bound = { 0 };
  gb_dnn_bind(&bound, FROM, p->from);
  gb_dnn_bind(&bound, TO, p->to);
  return gb_dnn_run(call, dnns, plan, &bound);
}
