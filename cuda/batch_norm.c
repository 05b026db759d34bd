/* cuda/batch_norm.c - batch normalization by cuDNN's graph API: in training and its gradients as the library's own
 * operation, in evaluation as three element-by-element ones that it fuses.
 *
 * Running statistics are not the library's: it would move them whatever the batch holds, and ours stay where they are
 * when a batch overflowed (norm.cu). Images are [n, c, inner, 1] to the library, channels innermost; parameters and
 * statistics are float32. Floor: x in and y out; backward, x and grad in and dx out; what is larger than the L2 cache
 * is read twice, as sums must be whole first. */
#include "cuda/batch_norm.h"

#include <inttypes.h>
#include <string.h>

#include "cuda/batch_norm_graph.h"
#include "cuda/cuda.h"

enum { X = 1, GRAD, RESULT, SCALE, BIAS, MEAN, RSTD, DSCALE, DBIAS, EPSILON };

static gb_dnn_part vector(gb_dnn_graph *g, int64_t id, const gb_batch_norm *b) {
  return gb_dnn_image(g, id, CUDNN_DATA_FLOAT, 1, b->c, (int64_t[]){ 1, 1 });
}

static gb_dnn_part image(gb_dnn_graph *g, int64_t id, const gb_batch_norm *b) {
  return gb_dnn_image(g, id, gb_dnn_type(b->dtype), b->n, b->c, (int64_t[]){ b->inner, 1 });
}

/* (x - mean) * scale + bias, in float32 until the end. */
static void inference_graph(gb_dnn_graph *g, const gb_batch_norm *b) {
  const int64_t shape[4] = { b->n, b->c, b->inner, 1 }, like[4] = { b->c * b->inner, 1, b->c, b->c };
  gb_dnn_part apart = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, shape, like),
      scaled = gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, shape, like);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_SUB, image(g, X, b), vector(g, MEAN, b), NULL, apart);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, apart, vector(g, SCALE, b), NULL, scaled);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, scaled, vector(g, BIAS, b), NULL, image(g, RESULT, b));
}

void gb_batch_norm_graph(gb_dnn_graph *g, const void *what) {
  const gb_batch_norm *b = what;
  if (b->kind == GB_BATCH_NORM_TRAINING)
    gb_dnn_norm_forward(g, image(g, X, b), vector(g, SCALE, b), vector(g, BIAS, b), gb_dnn_scalar(g, EPSILON, 4),
                        image(g, RESULT, b), vector(g, MEAN, b),
                        vector(g, RSTD, b));
  else if (b->kind == GB_BATCH_NORM_BACKWARD)
    gb_dnn_norm_backward(g, image(g, X, b), image(g, GRAD, b), vector(g, SCALE, b), vector(g, MEAN, b),
                         vector(g, RSTD, b), image(g, RESULT, b),
                         vector(g, DSCALE, b), vector(g, DBIAS, b));
  else inference_graph(g, b);
}

/* The plan of its shape, which may hold none of the library's. */
static gb_status plan_of(gb_cuda_call *call, const gb_batch_norm *b, gb_dnns **dnns, gb_dnn_plan **plan) {
  bool deterministic = !call->call->context->nondeterministic;
  gb_dnn_wish wish = { .deterministic = deterministic, .exact = b->dtype == GB_FLOAT32,
                       .workspace = (size_t)256 << 20 };
  gb_dnn_key key;
  memset(&key, 0, sizeof key);
  const int64_t values[] = { 32 + (int64_t)b->kind, b->n, b->c, b->inner, b->dtype, deterministic };
  memcpy(key.values, values, sizeof values);
  GB_TRY(gb_dnns_of(call, dnns));
  *plan = gb_dnn_plan_of(*dnns, &key, gb_batch_norm_graph, b, &wish);
  return *plan ? GB_OK : gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
}

gb_status gb_batch_norm_has(gb_cuda_call *call, const gb_batch_norm *b, bool *has) {
  gb_dnns *dnns = NULL;
  gb_dnn_plan *plan = NULL;
  const char *why = "an operand does not begin at a multiple of 16 bytes";
  *has = false;
  if (((uintptr_t)b->x | (uintptr_t)b->grad | (uintptr_t)b->result) % 16 == 0) {
    GB_TRY(plan_of(call, b, &dnns, &plan));
    *has = plan->plan != NULL;
    why = plan->error;
  }
  if (!*has)
    gb_cuda_slower(call, GB_SLOWER_BATCH_NORM,
                   "a batch norm of [%" PRId64 ", %" PRId64 ", %" PRId64 "] runs on plain CUDA kernels: %s", b->n, b->c,
                   b->inner, why);
  return GB_OK;
}

gb_status gb_batch_norm_run(gb_cuda_call *call, const gb_batch_norm *b) {
  gb_dnns *dnns = NULL;
  gb_dnn_plan *plan = NULL;
  const void *of_training[] = { b->x, b->result, b->scale, b->bias, b->mean, b->rstd, &b->eps };
  const void *of_inference[] = { b->x, b->result, b->scale, b->bias, b->mean };
  const void *of_backward[] = { b->x, b->result, b->scale, b->grad, b->mean, b->rstd, b->dscale, b->dbias };
  static const int64_t training_ids[] = { X, RESULT, SCALE, BIAS, MEAN, RSTD, EPSILON },
      backward_ids[] = { X, RESULT, SCALE, GRAD, MEAN, RSTD, DSCALE, DBIAS };
  bool backward = b->kind == GB_BATCH_NORM_BACKWARD, training = b->kind == GB_BATCH_NORM_TRAINING;
  const void **data = backward ? of_backward : training ? of_training : of_inference;
  int n = backward ? 8 : training ? 7 : 5; /* evaluation has the first five of training */
  GB_TRY(plan_of(call, b, &dnns, &plan));
  gb_dnn_bound bound = { 0 };
  for (int i = 0; i < n; i++) gb_dnn_bind(&bound, (backward ? backward_ids : training_ids)[i], data[i]);
  return gb_dnn_run(call, dnns, plan, &bound);
}
