/* cuda/batch_norm.c - batch normalization by cuDNN's graph API: in training and its gradients as the library's own
 * operation, in evaluation as three element-by-element ones that it fuses. It takes in a ReLU behind it, and a sum in
 * front of that, where the ReLU is its own operation: for a maximum in its place, and for a sum without ReLU, there is
 * no engine (9.19). What rounds to -0 leaves such a ReLU as 0. Its gradient behind a ReLU has the ReLU's in
 * front, and the sum of the two gradients that reached that; the library wants what goes in in memory. A gradient that
 * is not finite gives NaN where the ReLU was 0, and ours by itself 0.
 *
 * Running statistics are not the library's: it would move them whatever the batch holds, and ours stay where they are
 * when a batch overflowed (norm.cu). Images are [n, c, inner, 1] to the library, channels innermost; parameters and
 * statistics are float32. Floor: x in and y out; backward, x and grad in and dx out; what is larger than the L2 cache
 * is read twice, as sums must be whole first. A residual in; through a ReLU, its result and more in and masked out
 * beside these. */
#include "cuda/batch_norm.h"

#include <inttypes.h>
#include <string.h>

#include "cuda/batch_norm_graph.h"
#include "cuda/cuda.h"

enum { X = 1, GRAD, RESULT, SCALE, BIAS, MEAN, RSTD, DSCALE, DBIAS, EPSILON, MORE, RECTIFIED, MASKED, ZERO,
       RESIDUAL };

/* How a constant gets into a plan: it is read when the plan runs. */
static const float zero = 0;

static gb_dnn_part vector(gb_dnn_graph *g, int64_t id, const gb_batch_norm *b) {
  return gb_dnn_image(g, id, CUDNN_DATA_FLOAT, 1, b->c, (int64_t[]){ 1, 1 });
}

static gb_dnn_part image(gb_dnn_graph *g, int64_t id, const gb_batch_norm *b) {
  return gb_dnn_image(g, id, gb_dnn_type(b->dtype), b->n, b->c, (int64_t[]){ b->inner, 1 });
}

/* An image of float32 between two operations. */
static gb_dnn_part between(gb_dnn_graph *g, const gb_batch_norm *b) {
  const int64_t shape[4] = { b->n, b->c, b->inner, 1 }, like[4] = { b->c * b->inner, 1, b->c, b->c };
  return gb_dnn_virtual(g, CUDNN_DATA_FLOAT, 4, shape, like);
}

/* What the norm itself makes, which goes through what comes behind. */
static gb_dnn_part normalised(gb_dnn_graph *g, const gb_batch_norm *b) {
  return b->relu ? between(g, b) : image(g, RESULT, b);
}

/* The sum with the residual, and the ReLU, into the result. */
static void finish_graph(gb_dnn_graph *g, const gb_batch_norm *b, gb_dnn_part made) {
  if (!b->relu) return;
  if (b->residual) {
    gb_dnn_part sum = between(g, b);
    gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, made, image(g, RESIDUAL, b), NULL, sum);
    made = sum;
  }
  gb_dnn_pointwise(g, CUDNN_POINTWISE_RELU_FWD, made, NULL, NULL, image(g, RESULT, b));
}

/* (x - mean) * scale + bias, in float32 until the end. */
static void inference_graph(gb_dnn_graph *g, const gb_batch_norm *b) {
  gb_dnn_part apart = between(g, b), scaled = between(g, b), made = normalised(g, b);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_SUB, image(g, X, b), vector(g, MEAN, b), NULL, apart);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, apart, vector(g, SCALE, b), NULL, scaled);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, scaled, vector(g, BIAS, b), NULL, made);
  finish_graph(g, b, made);
}

/* The library's own operation. */
static void training_graph(gb_dnn_graph *g, const gb_batch_norm *b) {
  gb_dnn_part made = normalised(g, b);
  gb_dnn_norm_forward(g, image(g, X, b), vector(g, SCALE, b), vector(g, BIAS, b), gb_dnn_scalar(g, EPSILON, 4), made,
                      vector(g, MEAN, b), vector(g, RSTD, b));
  finish_graph(g, b, made);
}

/* (grad + more) * (rectified > 0), in memory. The engines want a product with the comparison: for a selection, or the
 * library's own gradient of ReLU, there is none (9.19). */
static gb_dnn_part through_relu(gb_dnn_graph *g, const gb_batch_norm *b) {
  const int64_t shape[4] = { b->n, b->c, b->inner, 1 }, like[4] = { b->c * b->inner, 1, b->c, b->c };
  gb_dnn_part grad = image(g, GRAD, b), positive = gb_dnn_virtual(g, CUDNN_DATA_BOOLEAN, 4, shape, like);
  if (b->more) {
    gb_dnn_part sum = between(g, b);
    gb_dnn_pointwise(g, CUDNN_POINTWISE_ADD, grad, image(g, MORE, b), NULL, sum);
    grad = sum;
  }
  gb_dnn_part masked = image(g, MASKED, b);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_CMP_GT, image(g, RECTIFIED, b), gb_dnn_scalar(g, ZERO, 4), NULL, positive);
  gb_dnn_pointwise(g, CUDNN_POINTWISE_MUL, grad, positive, NULL, masked);
  return masked;
}

void gb_batch_norm_graph(gb_dnn_graph *g, const void *what) {
  const gb_batch_norm *b = what;
  if (b->kind == GB_BATCH_NORM_TRAINING) training_graph(g, b);
  else if (b->kind == GB_BATCH_NORM_BACKWARD || b->kind == GB_BATCH_NORM_THROUGH_RELU)
    gb_dnn_norm_backward(g, image(g, X, b), b->rectified ? through_relu(g, b) : image(g, GRAD, b),
                         vector(g, SCALE, b), vector(g, MEAN, b), vector(g, RSTD, b), image(g, RESULT, b),
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
  const int64_t values[] = { 32 + (int64_t)b->kind, b->n, b->c, b->inner, b->dtype, deterministic, b->more != NULL,
                             b->residual != NULL, b->relu };
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
  uintptr_t places = (uintptr_t)b->x | (uintptr_t)b->grad | (uintptr_t)b->result | (uintptr_t)b->more |
                     (uintptr_t)b->rectified | (uintptr_t)b->masked | (uintptr_t)b->residual;
  if (b->n * b->c * b->inner > GB_DNN_ELEMENTS) why = "a tensor has more elements than cuDNN counts in 32 bits";
  else if (places % 16 == 0) {
    GB_TRY(plan_of(call, b, &dnns, &plan));
    *has = plan->plan != NULL;
    why = plan->error;
  }
  bool apart = b->kind == GB_BATCH_NORM_THROUGH_RELU || (b->relu && !b->residual); /* so it may have it */
  if (!*has && !apart)
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
  const void *of_relu[] = { b->rectified, b->masked, &zero };
  static const int64_t relu_ids[] = { RECTIFIED, MASKED, ZERO };
  static const int64_t training_ids[] = { X, RESULT, SCALE, BIAS, MEAN, RSTD, EPSILON },
      backward_ids[] = { X, RESULT, SCALE, GRAD, MEAN, RSTD, DSCALE, DBIAS };
  bool backward = b->kind >= GB_BATCH_NORM_BACKWARD, training = b->kind == GB_BATCH_NORM_TRAINING;
  const void **data = backward ? of_backward : training ? of_training : of_inference;
  int n = backward ? 8 : training ? 7 : 5; /* evaluation has the first five of training */
  GB_TRY(plan_of(call, b, &dnns, &plan));
  gb_dnn_bound bound = { 0 };
  for (int i = 0; i < n; i++) gb_dnn_bind(&bound, (backward ? backward_ids : training_ids)[i], data[i]);
  for (int i = 0; i < 3 && b->kind == GB_BATCH_NORM_THROUGH_RELU; i++) gb_dnn_bind(&bound, relu_ids[i], of_relu[i]);
  if (b->more) gb_dnn_bind(&bound, MORE, b->more);
  if (b->residual) gb_dnn_bind(&bound, RESIDUAL, b->residual);
  return gb_dnn_run(call, dnns, plan, &bound);
}
