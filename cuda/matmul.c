/* cuda/matmul.c - matmul, linear and mlp, and their gradients: brings operands to what the library multiplies, and lets
 * it fuse what it can.
 *
 * 16-bit operands are multiplied as they are and added up in float32. Bias, ReLU and the tanh form of GELU go into the
 * product's epilogue; other activations, and results that the library does not write, take a second pass over the sums
 * (product.cu), and a ReLU that would lose NaN one over the result (relu.h). In backward the derivative of tanh-GELU
 * goes into the product that makes its argument, rounded once where apart it is rounded twice, and a bias gradient into
 * the product that makes the weight's; what the library refuses runs as kernels of their own, and GIBBOUS_CUDA_VERBOSE
 * says so. Floor: 2 m n k operations; each operand read once, each result written once. */
#include "cuda/cuda.h"
#include "cuda/product.h"
#include "cuda/relu.h"
#include "ops/operands.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* sums that exist at once, where they cannot be rounded at once; at least of so many rows */
#define SUMS_BYTES ((int64_t)128 << 20)
#define SUMS_ROWS 256
#define HIDDEN_BYTES ((int64_t)256 << 20) /* of mlp's hidden layer that exist at once */
#define HIDDEN_ROWS 8192                  /* fewer would leave the device idle */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static size_t bytes_of(gb_cuda_call *call, gb_dtype dtype) { return call->cuda->engine->dtype_bytes(dtype); }
static char *offset(gb_cuda_call *call, const void *data, gb_dtype dtype, int64_t elements) {
  return (char *)data + elements * (int64_t)bytes_of(call, dtype);
}

/* {==== operands ==== */

gb_dtype gb_product_dtype(gb_dtype a, gb_dtype b, gb_dtype result) {
  if (a == GB_FLOAT64 || b == GB_FLOAT64 || result == GB_FLOAT64) return GB_FLOAT64;
  return a == b ? a : GB_FLOAT32;
}

/* A dense, row-major tensor of dtype with a shape, in scratch. */
static gb_status dense_like(gb_cuda_call *call, const gb_cuda_tensor *like, gb_dtype dtype, gb_cuda_tensor *to) {
  int64_t step = 1;
  *to = *like;
  to->dtype = dtype;
  for (int i = to->ndim - 1; i >= 0; i--) {
    to->stride[i] = step;
    step *= to->shape[i];
  }
  to->data = gb_cuda_scratch(call, (size_t)to->numel * bytes_of(call, dtype));
  return to->data ? GB_OK : GB_EMEMORY;
}

/* A tensor so, in dtype. */
static gb_status dense_copy(gb_cuda_call *call, const gb_cuda_tensor *from, gb_dtype dtype, gb_cuda_tensor *to) {
  GB_TRY(dense_like(call, from, dtype, to));
  return gb_cuda_copy(call, to, from);
}

/* Does the library take a matrix as it lies? */
static bool is_regular(const gb_gemm_matrix *m, int64_t rows, int64_t columns) {
  return gb_operand_is_regular(rows, columns, m->row_stride, m->column_stride);
}

/* A batch of matrices in dtype and a layout that the library takes. What is broadcast stays so; the rest is copied
 * where it must be. */
static gb_status prepare_batch(gb_cuda_call *call, gb_gemm_matrix *m, int64_t rows, int64_t columns, gb_dtype dtype,
                               int ndim, const int64_t *batch,
                               int64_t *stride) {
  if (m->dtype == dtype && is_regular(m, rows, columns)) return GB_OK;
  gb_cuda_tensor from = { .data = (char *)m->data, .dtype = m->dtype, .ndim = ndim + 2, .numel = rows * columns }, to;
  for (int i = 0; i < ndim; i++) {
    from.shape[i] = stride[i] ? batch[i] : 1;
    from.stride[i] = stride[i];
    from.numel *= from.shape[i];
  }
  from.shape[ndim] = rows, from.stride[ndim] = m->row_stride;
  from.shape[ndim + 1] = columns, from.stride[ndim + 1] = m->column_stride;
  GB_TRY(dense_copy(call, &from, dtype, &to));
  for (int i = 0; i < ndim; i++) stride[i] = stride[i] ? to.stride[i] : 0;
  *m = (gb_gemm_matrix){ to.data, dtype, columns, 1 };
  return GB_OK;
}

gb_status gb_product_prepare(gb_cuda_call *call, gb_gemm_matrix *matrix, int64_t rows, int64_t columns,
                             gb_dtype dtype) {
  return prepare_batch(call, matrix, rows, columns, dtype, 0, NULL, NULL);
}

/* A bias as the library reads it: dense, in dtype, from a multiple of 16 bytes on (gb_gemm_fuses). */
static gb_status prepare_bias(gb_cuda_call *call, const gb_cuda_tensor *bias, gb_dtype dtype, const void **out) {
  gb_cuda_tensor copy;
  *out = bias->data;
  bool is_dense = (bias->stride[0] == 1 || bias->shape[0] == 1) && (uintptr_t)bias->data % 16 == 0;
  if (bias->dtype == dtype && is_dense) return GB_OK;
  GB_TRY(dense_copy(call, bias, dtype, &copy));
  *out = copy.data;
  return GB_OK;
}

/* ====} */

/* {==== products ==== */

/* Launch `count` products an even distance apart, of which g is the first. */
static gb_status run_row(gb_cuda_call *call, const gb_gemm *g, int64_t count) {
  for (int64_t done = 0; done < count; done += GB_GEMM_BATCH) {
    gb_gemm part = *g;
    part.batch = least(count - done, GB_GEMM_BATCH);
    part.a.data = offset(call, g->a.data, g->a.dtype, done * g->a_stride);
    part.b.data = offset(call, g->b.data, g->b.dtype, done * g->b_stride);
    part.c = offset(call, g->c, g->dtype, done * g->c_stride);
    GB_TRY(gb_gemm_run(call, &part));
  }
  return GB_OK;
}

/* Launch a product of every matrix of the batch: the last batch dim goes to the library at once, the others one after
 * another. */
static gb_status run_batches(gb_cuda_call *call, const gb_product *p, gb_gemm *g) {
  int64_t at[GB_MAX_NDIM] = { 0 }, count = 1, size = p->m * p->n;
  int outer = p->batch_ndim > 0 ? p->batch_ndim - 1 : 0;
  const void *a = g->a.data, *b = g->b.data;
  char *c = g->c;
  int64_t row = p->batch_ndim > 0 ? p->batch[outer] : 1;
  g->a_stride = p->a_stride[outer], g->b_stride = p->b_stride[outer], g->c_stride = size;
  for (int i = 0; i < outer; i++) count *= p->batch[i];
  for (int64_t done = 0; done < count; done++) {
    int64_t a_at = 0, b_at = 0;
    for (int i = 0; i < outer; i++) a_at += at[i] * p->a_stride[i], b_at += at[i] * p->b_stride[i];
    g->a.data = offset(call, a, g->a.dtype, a_at);
    g->b.data = offset(call, b, g->b.dtype, b_at);
    g->c = offset(call, c, g->dtype, done * row * size);
    GB_TRY(run_row(call, g, row));
    for (int i = outer - 1; i >= 0 && ++at[i] == p->batch[i]; i--) at[i] = 0;
  }
  return GB_OK;
}

static gb_gemm gemm_of(const gb_product *p, gb_dtype result) {
  return (gb_gemm){ .m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b, .c = p->c, .ldc = p->n, .dtype = result,
                    .batch = 1,
                    .alpha = p->alpha != 0 ? p->alpha : 1 };
}

/* Does the library write this dtype from these operands? */
static bool writes(const gb_gemm *g) { return g->dtype == g->a.dtype ||
                                       (g->dtype == GB_FLOAT32 && gb_is_16bit(g->a.dtype)); }

/* Test whether ReLU passes NaN on, by a product whose sums are all NaN; the kernel that writes c here will write it
 * again. */
static gb_status try_nan(gb_cuda_call *call, const void *what) {
  gb_gemm g = *(const gb_gemm *)what;
  g.alpha = NAN;
  return gb_gemm_run(call, &g);
}

/* Why the library's ReLU is not used here, or NULL. */
static const char *relu_refusal(gb_cuda_call *call, const gb_gemm *g) {
  bool other = g->dtype != g->a.dtype || (g->tf32 && g->a.dtype == GB_FLOAT32);
  return gb_relu_refusal(call, &call->cuda->product_relu[g->a.dtype][other][g->bias != NULL], try_nan, g, g->c,
                         g->dtype);
}

/* Run the product with what the library fuses. False: it cannot or may not, and nothing was done. Told if asked
 * for. */
static bool run_fused(gb_cuda_call *call, const gb_product *p, gb_gemm *g, gb_status *status) {
  static const char *const names[GB_GEMM_EPILOGUES] = { "the bias", "ReLU", "GELU", "the derivative of GELU",
                                                        "the gradient of the bias" };
  const char *why = p->batch_ndim > 0 || !gb_gemm_fuses(g) ? "cuBLASLt does not take its dtype or layout" : NULL;
  if (!why && g->epilogue == GB_GEMM_RELU) why = relu_refusal(call, g);
  if (!why) {
    *status = run_batches(call, p, g);
    if (*status != GB_EUNSUPPORTED) return true;
    why = "cuBLASLt has no algorithm for it";
  }
  *status = GB_OK;
  gb_cuda_slower(call, GB_SLOWER_EPILOGUE,
                 "%s beside a product of [%" PRId64 ", %" PRId64 "] by [%" PRId64 ", %" PRId64 "] runs apart, which is "
                 "slower: %s",
                 names[g->epilogue], g->m, g->k, g->k, g->n, why);
  return false;
}

/* The library's product with the bias, then ReLU in place. False: it has no such product, and nothing was done. */
static bool run_then_relu(gb_cuda_call *call, const gb_product *p, gb_gemm *g, gb_status *status) {
  gb_cuda_tensor c = { .data = p->c, .dtype = p->dtype, .ndim = 2, .shape = { p->m, p->n }, .stride = { p->n, 1 },
                       .numel = p->m * p->n };
  g->epilogue = GB_GEMM_PLAIN;
  if (p->batch_ndim > 0 || !gb_gemm_fuses(g)) return false;
  *status = run_batches(call, p, g);
  bool done = *status != GB_EUNSUPPORTED;
  *status = *status == GB_OK ? gb_relu_in_place(call, &c) : done ? *status : GB_OK;
  return done;
}

/* Let the library do what it can besides the product. */
static bool fuse_extra(gb_cuda_call *call, const gb_product *p, const gb_gemm *plain, gb_status *status) {
  gb_gemm g = *plain;
  if (p->extra == GB_GEMM_PLAIN || !writes(&g)) return false;
  g.epilogue = p->extra;
  g.aux = (void *)p->kept;
  g.sums = p->sums;
  return *p->fused = run_fused(call, p, &g, status);
}

/* Let the library do all of it. False: it cannot, and nothing was done. */
static bool fuse(gb_cuda_call *call, const gb_product *p, gb_gemm *g, gb_status *status) {
  bool epilogue = p->bias || p->activation != GB_ACTIVATION_NONE ||
      p->pre, gelu = p->activation == GB_ACTIVATION_GELU_TANH;
  bool known = gelu || ((p->activation == GB_ACTIVATION_NONE || p->activation == GB_ACTIVATION_RELU) && !p->pre);
  if (fuse_extra(call, p, g, status)) return true;
  g->epilogue = gelu ? GB_GEMM_GELU : p->activation == GB_ACTIVATION_RELU ? GB_GEMM_RELU : GB_GEMM_PLAIN;
  g->aux = p->pre;
  g->bias = p->bias ? p->bias->data : NULL;
  if (!writes(g) || (epilogue && !known)) return false;
  *status = p->bias ? prepare_bias(call, p->bias, p->dtype, &g->bias) : GB_OK;
  if (*status != GB_OK) return true;
  if (epilogue) return run_fused(call, p, g, status) ||
      (g->epilogue == GB_GEMM_RELU && run_then_relu(call, p, g, status));
  *status = run_batches(call, p, g);
  return true;
}

/* Sums in float32 or float64 first, rounded afterwards: some rows at a time where there is one matrix. */
static gb_status finish_apart(gb_cuda_call *call, const gb_product *p, gb_dtype lane) {
  int64_t batches = 1, rows = p->m;
  for (int i = 0; i < p->batch_ndim; i++) batches *= p->batch[i];
  int64_t piece = call->cuda->piece;
  if (p->batch_ndim == 0)
    rows = piece > 0 ? least(p->m, most(1, piece / p->n)) : least(p->m, most(SUMS_ROWS, SUMS_BYTES / (8 * p->n)));
  bool in_place = p->dtype == lane;
  char *sums = in_place ? p->c : gb_cuda_scratch(call, (size_t)(batches * rows * p->n) * bytes_of(call, lane));
  if (!sums) return GB_EMEMORY;
  for (int64_t row = 0; row < p->m; row += rows) {
    gb_product part = *p;
    part.m = least(rows, p->m - row);
    part.a.data = offset(call, p->a.data, p->a.dtype, row * p->a.row_stride);
    part.c = in_place ? offset(call, p->c, p->dtype, row * p->n) : sums;
    gb_gemm g = gemm_of(&part, lane);
    g.tf32 = call->tf32;
    if (p->k > 0) GB_TRY(run_batches(call, &part, &g));
    gb_product_finish(call, p->k > 0 ? part.c : NULL, lane, batches * part.m, p->n, p->bias, p->activation,
                      p->pre ? offset(call, p->pre, p->dtype, row * p->n) : NULL,
                          offset(call, p->c, p->dtype, row * p->n), p->dtype);
  }
  return GB_OK;
}

gb_status gb_product_run(gb_cuda_call *call, const gb_product *product) {
  gb_product p = *product;
  gb_dtype operand = gb_product_dtype(p.a.dtype, p.b.dtype, p.dtype),
      lane = operand == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  bool empty = p.m == 0 || p.n == 0;
  for (int i = 0; i < p.batch_ndim; i++) empty = empty || p.batch[i] == 0;
  if (empty || (p.accumulate && p.k == 0)) return GB_OK;
  if (p.k == 0) return finish_apart(call, &p, lane);
  GB_TRY(prepare_batch(call, &p.a, p.m, p.k, operand, p.batch_ndim, p.batch, p.a_stride));
  GB_TRY(prepare_batch(call, &p.b, p.k, p.n, operand, p.batch_ndim, p.batch, p.b_stride));
  gb_gemm g = gemm_of(&p, p.dtype);
  gb_status status = GB_OK;
  g.accumulate = p.accumulate;
  g.tf32 = call->tf32;
  return fuse(call, &p, &g, &status) ? status : finish_apart(call, &p, lane);
}

/* ====} */

/* {==== matmul ==== */

static gb_operand operand(const gb_cuda_tensor *t) { return (gb_operand){ t->ndim, t->shape, t->stride }; }

static gb_status matmul(gb_cuda_call *call) {
  const gb_cuda_in_matmul *in = GB_CUDA_IN(call, matmul);
  const gb_cuda_tensor *x = in->x, *y = in->y, *z = GB_CUDA_OUT(call, matmul)->z;
  gb_batched b = gb_batched_of(operand(x), operand(y), z->shape, z->ndim);
  gb_product p = { .m = b.m, .n = b.n, .k = b.k, .c = z->data, .dtype = z->dtype, .batch_ndim = b.ndim };
  p.a = (gb_gemm_matrix){ x->data, x->dtype, b.x.row, b.x.column };
  p.b = (gb_gemm_matrix){ y->data, y->dtype, b.y.row, b.y.column };
  memcpy(p.batch, b.batch, sizeof p.batch);
  memcpy(p.a_stride, b.x_stride, sizeof p.a_stride);
  memcpy(p.b_stride, b.y_stride, sizeof p.b_stride);
  return gb_product_run(call, &p);
}

/* ====} */

/* {==== linear and mlp ==== */

/* x as a matrix of rows; where its layout has no such view, a dense copy. */
static gb_status fold(gb_cuda_call *call, const gb_cuda_tensor *x, gb_gemm_matrix *m, int64_t *rows) {
  int64_t n = x->shape[x->ndim - 1];
  *m = (gb_gemm_matrix){ .data = x->data, .dtype = x->dtype, .column_stride = x->stride[x->ndim - 1] };
  if (gb_operand_rows(operand(x), rows, &m->row_stride)) return GB_OK;
  gb_cuda_tensor copy;
  GB_TRY(dense_copy(call, x, x->dtype, &copy));
  *m = (gb_gemm_matrix){ copy.data, x->dtype, n, 1 };
  return GB_OK;
}

/* A weight [out, in], as the operand that rows are multiplied by. */
static gb_gemm_matrix weight_of(const gb_cuda_tensor *weight) {
  return (gb_gemm_matrix){ weight->data, weight->dtype, weight->stride[1], weight->stride[0] };
}

static gb_status linear(gb_cuda_call *call) {
  const gb_cuda_in_linear *in = GB_CUDA_IN(call, linear);
  const gb_cuda_tensor *weight = in->weight, *y = GB_CUDA_OUT(call, linear)->y, *pre = GB_CUDA_OUT(call, linear)->pre;
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, linear)->activation);
  bool keep = pre && gb_activation_needs_argument(activation); /* otherwise pre, if any, is y itself */
  gb_product p = { .n = weight->shape[0], .k = weight->shape[1], .b = weight_of(weight), .c = y->data,
                   .dtype = y->dtype, .bias = in->bias, .pre = keep ? pre->data : NULL, .activation = activation };
  GB_TRY(fold(call, in->x, &p.a, &p.m));
  return gb_product_run(call, &p);
}

/* Both layers for some rows at a time; hidden holds their hidden layer, or all rows' where it is kept. */
static gb_status mlp_rows(gb_cuda_call *call, gb_product *first, gb_product *second, int64_t rows, int64_t at_once) {
  const gb_cuda_out_mlp *out = GB_CUDA_OUT(call, mlp);
  const gb_cuda_tensor *y = out->y, *pre = out->pre, *kept = out->hidden;
  gb_gemm_matrix x = first->a;
  for (int64_t row = 0; row < rows; row += at_once) {
    int mark = call->scratches;
    first->m = second->m = least(at_once, rows - row);
    first->a.data = offset(call, x.data, x.dtype, row * x.row_stride);
    first->pre = pre ? offset(call, pre->data, pre->dtype, row * first->n) : NULL;
    if (kept) second->a.data = first->c = offset(call, kept->data, kept->dtype, row * first->n);
    second->c = offset(call, y->data, y->dtype, row * second->n);
    GB_TRY(gb_product_run(call, first));
    GB_TRY(gb_product_run(call, second));
    gb_cuda_scratch_back(call, mark);
  }
  return GB_OK;
}

static gb_status mlp(gb_cuda_call *call) {
  const gb_cuda_in_mlp *in = GB_CUDA_IN(call, mlp);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, mlp)->y, *kept = GB_CUDA_OUT(call, mlp)->hidden;
  gb_product first = { .n = in->weight1->shape[0], .k = in->weight1->shape[1], .b = weight_of(in->weight1),
                       .dtype = y->dtype, .bias = in->bias1,
                       .activation = gb_activation_of(&GB_ATTRS(call, mlp)->activation) };
  gb_product second = { .n = in->weight2->shape[0], .k = first.n, .b = weight_of(in->weight2), .dtype = y->dtype,
                        .bias = in->bias2 };
  int64_t rows, bytes = (int64_t)bytes_of(call, y->dtype);
  GB_TRY(fold(call, in->x, &first.a, &rows));
  int64_t width = most(first.n, 1), piece = call->cuda->piece;
  int64_t at_once = least(most(rows, 1), piece > 0 ? most(piece / width, 1)
                          : most(HIDDEN_ROWS, HIDDEN_BYTES / (bytes * width)));
  void *hidden = kept ? kept->data : gb_cuda_scratch(call, (size_t)(at_once * first.n * bytes));
  if (!hidden) return GB_EMEMORY;
  first.c = hidden;
  second.a = (gb_gemm_matrix){ hidden, y->dtype, first.n, 1 };
  return mlp_rows(call, &first, &second, rows, at_once);
}

/* {---- gradients ---- */

/* What the gradients of activations have in common: two inputs, the gradient first. */
#define TWO_INPUTS(op)                                                              \
  _Static_assert(sizeof(gb_cuda_in_##op) == sizeof(gb_cuda_in_gelu_backward), #op); \
  _Static_assert(offsetof(gb_cuda_in_##op, grad) == 0, #op)
TWO_INPUTS(relu_backward);
TWO_INPUTS(gelu_backward);
TWO_INPUTS(silu_backward);
TWO_INPUTS(tanh_backward);
TWO_INPUTS(sigmoid_backward);

/* grad @ weight, then before the activation that made x: in the product, or in place after it. */
static gb_status input_gradient(gb_cuda_call *call, gb_gemm_matrix grad, int64_t rows) {
  const gb_cuda_in_linear_backward *in = GB_CUDA_IN(call, linear_backward);
  const gb_cuda_tensor *weight = in->weight, *kept = in->kept, *dx = GB_CUDA_OUT(call, linear_backward)->dx;
  gb_attrs_gelu_backward attrs;
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, linear_backward)->activation);
  gb_op backward = gb_activation_backward(activation, &attrs.approximate);
  bool fused = false, like_dx = kept && kept->dtype == dx->dtype &&
      !memcmp(kept->stride, dx->stride, sizeof *dx->stride * (size_t)dx->ndim);
  gb_product p = { .m = rows, .n = weight->shape[1], .k = weight->shape[0], .a = grad, .c = dx->data,
                   .dtype = dx->dtype, .fused = &fused };
  p.b = (gb_gemm_matrix){ weight->data, weight->dtype, weight->stride[0], weight->stride[1] };
  if (activation == GB_ACTIVATION_GELU_TANH && like_dx) p.extra = GB_GEMM_GELU_SLOPE, p.kept = kept->data;
  GB_TRY(gb_product_run(call, &p));
  if (fused || backward == GB_OP_COUNT) return GB_OK;
  return GB_CUDA_RUN(call, backward, gelu_backward, dx, &attrs, .grad = dx, .x = kept);
}

/* grad^T @ x, or that added to a sum; with the sum of grad's rows, if the library has that and it is wanted in the same
 * dtype. */
static gb_status weight_gradient(gb_cuda_call *call, const gb_cuda_tensor *x, gb_gemm_matrix grad, int64_t rows,
                                 bool *with_bias) {
  const gb_cuda_out_linear_backward *out = GB_CUDA_OUT(call, linear_backward);
  const gb_cuda_tensor *dweight = out->dweight, *dbias = out->dbias;
  gb_product p = { .m = dweight->shape[0], .n = dweight->shape[1], .k = rows,
                   .a = { grad.data, grad.dtype, grad.column_stride, grad.row_stride },
                   .c = dweight->data, .dtype = dweight->dtype,
                   .accumulate = GB_ATTRS(call, linear_backward)->add.integer, .fused = with_bias };
  GB_TRY(fold(call, x, &p.b, &p.k));
  if (dbias && dbias->dtype == dweight->dtype) p.extra = GB_GEMM_ROW_SUMS, p.sums = dbias->data;
  return gb_product_run(call, &p);
}

/* The sum of grad's rows, by itself. */
static gb_status bias_gradient(gb_cuda_call *call, gb_gemm_matrix grad, int64_t rows) {
  const gb_cuda_tensor *dbias = GB_CUDA_OUT(call, linear_backward)->dbias;
  int64_t columns = dbias->shape[0];
  gb_cuda_tensor matrix = { .data = (char *)grad.data, .dtype = grad.dtype, .ndim = 2, .shape = { rows, columns },
                            .stride = { grad.row_stride, grad.column_stride }, .numel = rows * columns };
  const gb_attrs_sum attrs = { .dim = { .given = true, .count = 1 } };
  return GB_CUDA_RUN(call, GB_OP_sum, sum, dbias, &attrs, .x = &matrix);
}

/* The x that an activation made, from the argument that was kept of it. */
static gb_status activated(gb_cuda_call *call, gb_cuda_tensor *x) {
  const gb_cuda_tensor *kept = GB_CUDA_IN(call, linear_backward)->kept;
  gb_attrs_gelu attrs;
  gb_op op = gb_activation_forward(gb_activation_of(&GB_ATTRS(call, linear_backward)->activation), &attrs.approximate);
  GB_TRY(dense_like(call, kept, kept->dtype, x));
  return GB_CUDA_RUN(call, op, gelu, x, &attrs, .x = kept);
}

static gb_status linear_backward(gb_cuda_call *call) {
  const gb_cuda_tensor *g = GB_CUDA_IN(call, linear_backward)->grad, *x = GB_CUDA_IN(call, linear_backward)->x;
  const gb_cuda_out_linear_backward *out = GB_CUDA_OUT(call, linear_backward);
  gb_cuda_tensor made;
  gb_gemm_matrix grad;
  int64_t rows;
  bool with_bias = false;
  GB_TRY(fold(call, g, &grad, &rows));
  GB_TRY(gb_product_prepare(call, &grad, rows, g->shape[g->ndim - 1], g->dtype));
  if (out->dx) GB_TRY(input_gradient(call, grad, rows));
  if (out->dweight && !x) GB_TRY(activated(call, &made));
  if (out->dweight) GB_TRY(weight_gradient(call, x ? x : &made, grad, rows, &with_bias));
  return out->dbias && !with_bias ? bias_gradient(call, grad, rows) : GB_OK;
}

/* ----} */

/* ====} */

const gb_cuda_row gb_cuda_matmul[] = {
  { GB_OP_matmul, matmul, false }, { GB_OP_linear, linear, false }, { GB_OP_mlp, mlp, false },
  { GB_OP_linear_backward, linear_backward, false }, { GB_OP_COUNT, NULL, false },
};
