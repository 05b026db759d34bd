/* cuda/linear_loss.c - linear_cross_entropy: products of some rows at a time, so that the logits need not exist whole;
 * the gradients, which are those of the sum of the losses, are made with them, and backward scales them.
 *
 * Floor: 2 rows classes features operations forward and twice that for the gradients; x and weight read once, dx and
 * dweight written once. What is above it are the logits: written once, read once, and their gradient written once and
 * read twice; and, for every chunk but the first, dweight read and written again. So chunks are large where the device
 * is. How large they are shows in the order of dweight's sums: it is settled by the device's memory and the shapes, and
 * made smaller, for as long as the device is open, only where the call would fail otherwise. */
#include "cuda/linear_loss.h"

#include <string.h>

#include "cuda/cuda.h"
#include "cuda/product.h"

/* A chunk takes a part of the device's memory, 1 / MEMORY_SHARE, and 192 MiB at least: GPT-2's 16,384 rows of 50,304
 * classes are 2 chunks on a device of 80 GB and more, and 7 on one of 24 GB. */
#define MEMORY_SHARE 32
#define LEAST_BYTES ((int64_t)192 << 20)
#define FEWEST_ROWS 128           /* rows of a chunk at least, and their step: fewer would leave the device idle */

/* One call. */
typedef struct linear_loss {
  gb_logits chunk;
  gb_gemm_matrix x, weight;
  gb_dtype operand;                /* dtype of x and weight, to which the gradient of the logits is rounded */
  int64_t rows, features, at_once;
  size_t lane_bytes, operand_bytes;
  bool gradients;                  /* are wanted */
} linear_loss;

static gb_gemm_matrix transposed(gb_gemm_matrix m) { return (gb_gemm_matrix){ m.data, m.dtype, m.column_stride,
    m.row_stride }; }

/* Rows of x from `first` on. */
static gb_gemm_matrix rows_from(const linear_loss *j, int64_t first) {
  gb_gemm_matrix m = j->x;
  m.data = (const char *)m.data + first * m.row_stride * (int64_t)j->operand_bytes;
  return m;
}

/* dx = slope @ weight; dweight and dbias grow by slope^T @ x and by the slope's column sums. */
static gb_status gradients(gb_cuda_call *call, const linear_loss *j, int64_t first) {
  const gb_cuda_out_linear_cross_entropy *out = GB_CUDA_OUT(call, linear_cross_entropy);
  const gb_cuda_tensor *dx = out->dx, *dweight = out->dweight;
  const gb_logits *l = &j->chunk;
  gb_gemm_matrix slope = { l->slope, j->operand, l->classes, 1 };
  gb_product by_x = { .m = l->rows, .n = j->features, .k = l->classes, .a = slope, .b = j->weight, .dtype = dx->dtype };
  gb_product by_weight = { .m = l->classes, .n = j->features, .k = l->rows, .a = transposed(slope),
                           .b = rows_from(j, first), .c = dweight->data,
                           .dtype = dweight->dtype, .accumulate = first > 0 };
  by_x.c = dx->data + first * j->features * (int64_t)j->operand_bytes;
  GB_TRY(gb_product_run(call, &by_x));
  GB_TRY(gb_product_run(call, &by_weight));
  if (out->dbias) gb_logits_bias(call, l, out->dbias->data, first > 0);
  return GB_OK;
}

/* Walk over the rows in chunks. */
static gb_status run_chunks(gb_cuda_call *call, linear_loss *j, char *losses) {
  gb_logits *l = &j->chunk;
  const char *target = l->target;
  size_t target_bytes = call->cuda->engine->dtype_bytes(l->target_dtype);
  for (int64_t first = 0; first < j->rows; first += j->at_once) {
    int mark = call->scratches;
    l->rows = j->rows - first < j->at_once ? j->rows - first : j->at_once;
    l->target = target + first * l->target_stride * (int64_t)target_bytes;
    l->losses = losses + (size_t)first * j->lane_bytes;
    gb_product p = { .m = l->rows, .n = l->classes, .k = j->features, .a = rows_from(j, first),
                     .b = transposed(j->weight), .c = l->logits,
                     .dtype = l->lane, .bias = GB_CUDA_IN(call, linear_cross_entropy)->bias };
    GB_TRY(gb_product_run(call, &p));
    gb_logits_run(call, l);
    if (l->slope) GB_TRY(gradients(call, j, first));
    gb_cuda_scratch_back(call, mark);
  }
  l->rows = j->rows;
  l->target = target;
  l->losses = losses;
  return GB_OK;
}

/* Without rows there are no gradients of weight and bias. */
static gb_status clear_gradients(gb_cuda_call *call) {
  const gb_cuda_out_linear_cross_entropy *out = GB_CUDA_OUT(call, linear_cross_entropy);
  const gb_cuda_tensor *both[] = { out->dweight, out->dbias };
  for (int i = 0; i < 2; i++) {
    const gb_cuda_tensor *t = both[i];
    if (t && gb_rt_set(call->stream, t->data, 0, (size_t)t->numel * call->cuda->engine->dtype_bytes(t->dtype)))
      return gb_cuda_fail(call, GB_EDEVICE, "a gradient could not be cleared");
  }
  return GB_OK;
}

/* {==== the size of a chunk ==== */

/* What a row of a chunk takes. */
static int64_t row_bytes(const linear_loss *j) {
  bool apart = j->gradients && j->chunk.slope_dtype != j->chunk.lane;
  int64_t classes = j->chunk.classes > 0 ? j->chunk.classes : 1;
  return classes * (int64_t)(j->lane_bytes + (apart ? j->operand_bytes : 0));
}

/* Rows of a chunk of so many bytes; they are shared out evenly. */
static int64_t rows_of(const linear_loss *j, int64_t bytes) {
  int64_t most = bytes / row_bytes(j) / FEWEST_ROWS * FEWEST_ROWS;
  if (most < FEWEST_ROWS) most = FEWEST_ROWS;
  if (j->rows <= most) return j->rows;
  int64_t chunks = (j->rows + most - 1) / most, even = (j->rows + chunks - 1) / chunks;
  return (even + FEWEST_ROWS - 1) / FEWEST_ROWS * FEWEST_ROWS;
}

/* Scratch for a chunk and for the losses of all rows. */
static gb_status take_chunk(gb_cuda_call *call, linear_loss *j, char **losses) {
  gb_logits *l = &j->chunk;
  size_t logits = (size_t)(j->at_once * l->classes);
  *losses = gb_cuda_scratch(call, (size_t)(j->rows + 1) * j->lane_bytes);
  l->logits = *losses ? gb_cuda_scratch(call, logits * j->lane_bytes) : NULL;
  if (!l->logits) return GB_EMEMORY;
  if (!j->gradients) return GB_OK;
  l->slope = l->slope_dtype == l->lane ? l->logits : gb_cuda_scratch(call, logits * j->operand_bytes);
  return l->slope ? GB_OK : GB_EMEMORY;
}

/* The same, by fewer rows at a time where the device has no memory for them; later calls begin with what was found. */
static gb_status take_room(gb_cuda_call *call, linear_loss *j, char **losses) {
  gb_cuda *cuda = call->cuda;
  int mark = call->scratches;
  int64_t piece = cuda->piece;
  if (!cuda->logits_bytes) {
    cuda->logits_bytes = (int64_t)(cuda->memory / MEMORY_SHARE);
    if (cuda->logits_bytes < LEAST_BYTES) cuda->logits_bytes = LEAST_BYTES;
  }
  for (;;) {
    j->at_once = piece > 0 ? piece / (j->chunk.classes > 0 ? j->chunk.classes : 1) : rows_of(j, cuda->logits_bytes);
    if (j->at_once < 1) j->at_once = 1;
    gb_status status = take_chunk(call, j, losses);
    bool may_do_with_less = cuda->context->error_code == GB_EMEMORY && piece == 0 && j->at_once > FEWEST_ROWS;
    if (status == GB_OK || !may_do_with_less) return status;
    gb_cuda_scratch_back(call, mark);
    cuda->logits_bytes = j->at_once * row_bytes(j) / 2;
    cuda->context->error_code = GB_OK;
  }
}

/* ====} */

/* x [n, features], weight [classes, features], target [n], bias [classes] or absent. */
static gb_status linear_cross_entropy(gb_cuda_call *call) {
  const gb_cuda_in_linear_cross_entropy *in = GB_CUDA_IN(call, linear_cross_entropy);
  const gb_attrs_linear_cross_entropy *attrs = GB_ATTRS(call, linear_cross_entropy);
  const gb_cuda_tensor *x = in->x, *weight = in->weight, *target = in->target;
  const gb_cuda_tensor *loss = GB_CUDA_OUT(call, linear_cross_entropy)->loss;
  gb_dtype lane = x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  linear_loss j = { .x = { x->data, x->dtype, x->stride[0], x->stride[1] },
                    .weight = { weight->data, weight->dtype, weight->stride[0], weight->stride[1] },
                    .operand = x->dtype, .rows = x->shape[0], .features = x->shape[1] };
  j.chunk = (gb_logits){ .classes = weight->shape[0], .ignore = attrs->ignore_index.integer, .lane = lane,
                         .slope_dtype = x->dtype, .target_dtype = target->dtype, .target = target->data,
                         .target_stride = target->stride[0], .shared = call->cuda->shared_most };
  j.lane_bytes = call->cuda->engine->dtype_bytes(lane);
  j.operand_bytes = call->cuda->engine->dtype_bytes(x->dtype);
  j.gradients = GB_CUDA_OUT(call, linear_cross_entropy)->dx != NULL;
  char *losses = NULL;
  GB_TRY(gb_product_prepare(call, &j.x, j.rows, j.features, x->dtype));
  GB_TRY(gb_product_prepare(call, &j.weight, j.chunk.classes, j.features, weight->dtype));
  GB_TRY(take_room(call, &j, &losses));
  if (j.rows == 0) GB_TRY(clear_gradients(call));
  GB_TRY(run_chunks(call, &j, losses));
  gb_logits_reduce(call, &j.chunk, attrs->reduction.integer == GB_WORD_mean, loss->data, loss->dtype);
  return GB_OK;
}

const gb_cuda_row gb_cuda_linear_loss[] = { { GB_OP_linear_cross_entropy, linear_cross_entropy, false },
                                            { GB_OP_COUNT, NULL, false } };
