/* cpu/matmul.c - kernels of matmul, linear and mlp, and of their gradients: they describe their products to cpu/gemm.c.
 *
 * mlp goes in slabs of rows: its hidden layer never exists whole unless backward needs it or its argument. Products too
 * small to be packed are computed here. */
#include <string.h>

#include "base/math.h"
#include "cpu/gemm.h"
#include "cpu/tile.h"
#include "cpu/walk.h"
#include "ops/operands.h"

/* Elements of mlp's hidden layer that exist at once. */
#define HIDDEN_ELEMENTS ((int64_t)1 << 20)

/* {==== tiny products ==== */

/* Lanes of a register, elements of one b on the stack, its rows filled up to whole registers, and multiplications up to
 * which packing costs more than the product. */
#if defined(__AVX__)
#define TINY_LANES 8
#else
#define TINY_LANES 4
#endif
enum { TINY_ELEMENTS = 1024, TINY_OPERATIONS = 4096 };
typedef float tiny_lanes __attribute__((vector_size(4 * TINY_LANES), aligned(4), may_alias));

/* All in float32, with nothing to do after the sum but the bias. A vector has a kernel of its own, which sums in
 * another order. */
static bool is_tiny(const gb_op_call *call, const gb_product *p) {
  const gb_epilogue *e = &p->epilogue;
  if (p->m < 2 || p->n < 2 || p->m > TINY_ELEMENTS || p->n > TINY_ELEMENTS || p->k > TINY_ELEMENTS) return false;
  if (p->m * p->n * p->k > TINY_OPERATIONS || (p->n + TINY_LANES - 1) / TINY_LANES * TINY_LANES * p->k > TINY_ELEMENTS)
    return false;
  if (p->a.dtype != GB_FLOAT32 || p->b.dtype != GB_FLOAT32 || p->dtype != GB_FLOAT32 ||
      (e->bias && e->bias_dtype != GB_FLOAT32)) return false;
  return p->batch_ndim == 0 && p->beta == 0 && !e->pre && e->activation == GB_ACTIVATION_NONE && !call->context->tf32;
}

/* b[k][n] side by side, each row filled up with zeros to `width`. */
static void gather(const gb_product *p, int64_t width, float *to) {
  for (int64_t i = 0; i < p->k; i++, to += width) {
    const float *from = (const float *)p->b.data + i * p->b.row_stride;
    for (int64_t j = 0; j < p->n; j++) to[j] = from[j * p->b.column_stride];
    for (int64_t j = p->n; j < width; j++) to[j] = 0;
  }
}

/* Add the products along k, from the first on, of this many rows of a and one register's width of b's columns. Rows
 * share what is read of b. */
static inline void add_tiny(const gb_product *p, int64_t row, int rows, const float *b, int64_t width,
                            tiny_lanes *sums) {
  const float *a = (const float *)p->a.data + row * p->a.row_stride;
  for (int64_t k = 0; k < p->k; k++, a += p->a.column_stride, b += width)
    for (int i = 0; i < rows; i++) sums[i] += a[i * p->a.row_stride] * *(const tiny_lanes *)b;
}

/* Sums, bias and what is added to go into c as cpu/gemm_kernel.c forms them: the size of a product does not show in its
 * bits. */
static void run_tiny(const gb_product *p) {
  enum { ROWS = 4 };
  float gathered[TINY_ELEMENTS];
  const gb_epilogue *e = &p->epilogue;
  const float *b = p->b.data;
  int64_t width = p->b.row_stride;
  if (p->b.column_stride != 1 || p->n % TINY_LANES) {
    width = (p->n + TINY_LANES - 1) / TINY_LANES * TINY_LANES;
    gather(p, width, gathered);
    b = gathered;
  }
  for (int64_t j = 0; j < p->n; j += TINY_LANES) {
    tiny_lanes bias = { 0 };
    int64_t count = p->n - j < TINY_LANES ? p->n - j : TINY_LANES;
    for (int64_t t = 0; e->bias && t < count; t++) bias[t] = ((const float *)e->bias)[(j + t) * e->bias_stride];
    for (int64_t first = 0, rows; first < p->m; first += rows) {
      tiny_lanes sums[ROWS] = { { 0 } };
      rows = p->m - first < ROWS ? 1 : ROWS;
      if (rows == ROWS) add_tiny(p, first, ROWS, b + j, width, sums);
      else add_tiny(p, first, 1, b + j, width, sums);
      for (int64_t i = 0; i < rows; i++) {
        float *c = (float *)p->c + (first + i) * p->ldc + j;
        if (e->bias) sums[i] += bias;
        if (p->add) for (int64_t t = 0; t < count; t++) sums[i][t] += c[t];
        if (count == TINY_LANES) *(tiny_lanes *)c = sums[i];
        else for (int64_t t = 0; t < count; t++) c[t] = sums[i][t];
      }
    }
  }
}

static gb_status run_product(gb_op_call *call, const gb_product *p) {
  if (!is_tiny(call, p)) return gb_product_run(call, p);
  run_tiny(p);
  return GB_OK;
}

/* ====} */

/* {==== matmul ==== */

static gb_operand operand(const gb_tensor *t) { return (gb_operand){ t->ndim, t->shape, t->stride }; }

/* Elements up to which matrices that lie between one another are read so from the first cache. */
enum { FEW_TANGLED = 8192 };

/* Do matrices of a batch lie between one another, an element of each in turn? Not where memory is shown many times. */
static bool is_tangled(const gb_tensor *t) {
  bool beside = false;
  if (t->ndim < 3 || t->numel <= FEW_TANGLED) return false;
  for (int d = 0; d < t->ndim; d++) {
    if (t->shape[d] > 1 && t->stride[d] == 0) return false;
    if (t->shape[d] > 1 && t->stride[d] == 1) beside = d < t->ndim - 2;
  }
  return beside && t->shape[t->ndim - 2] > 1 && t->shape[t->ndim - 1] > 1;
}

/* t as an operand, whose strides lie in `stride`. Tangled matrices are copied into *copy, which the caller frees: a
 * product would bring in the lines of all of them for each. */
static gb_status untangled(gb_op_call *call, const gb_tensor *t, int64_t *stride, gb_operand *out, const void **data,
                           gb_block **copy) {
  memcpy(stride, t->stride, sizeof t->stride);
  *out = (gb_operand){ t->ndim, t->shape, stride };
  *data = gb_data(t), *copy = NULL;
  if (!is_tangled(t)) return GB_OK;
  *copy = gb_cpu_scratch(call, (size_t)t->numel * gb_dtype_bytes((gb_dtype)t->dtype));
  if (!*copy) return GB_EMEMORY;
  gb_contiguous_strides(t->ndim, t->shape, stride);
  gb_copy_strided(call, t->ndim, t->shape, gb_block_data(*copy), (gb_dtype)t->dtype, stride, *data,
                  (gb_dtype)t->dtype, t->stride);
  *data = gb_block_data(*copy);
  return GB_OK;
}

static gb_status matmul(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, matmul)->x, *y = GB_IN(call, matmul)->y, *z = GB_OUT(call, matmul)->z;
  int64_t x_stride[GB_MAX_NDIM], y_stride[GB_MAX_NDIM];
  gb_operand from, by;
  gb_block *copy = NULL, *other = NULL;
  const void *data, *others;
  GB_TRY(untangled(call, x, x_stride, &from, &data, &copy));
  gb_status status = untangled(call, y, y_stride, &by, &others, &other);
  if (status == GB_OK) {
    gb_batched b = gb_batched_of(from, by, z->shape, z->ndim);
    gb_product p = { .m = b.m, .n = b.n, .k = b.k, .c = gb_data(z), .ldc = b.n, .dtype = (gb_dtype)z->dtype,
                     .batch_ndim = b.ndim };
    p.a = (gb_matrix){ data, (gb_dtype)x->dtype, b.x.row, b.x.column };
    p.b = (gb_matrix){ others, (gb_dtype)y->dtype, b.y.row, b.y.column };
    memcpy(p.batch, b.batch, sizeof p.batch);
    memcpy(p.a_stride, b.x_stride, sizeof p.a_stride);
    memcpy(p.b_stride, b.y_stride, sizeof p.b_stride);
    status = run_product(call, &p);
  }
  if (copy) gb_cpu_scratch_free(call, copy);
  if (other) gb_cpu_scratch_free(call, other);
  return status;
}

/* ====} */

/* {==== linear and mlp ==== */

/* x as a matrix of rows. Where its layout has no such view it is copied, in its dtype, into *copy, which the caller
 * frees. */
static gb_status fold(gb_op_call *call, const gb_tensor *x, gb_matrix *m, int64_t *rows, gb_block **copy) {
  int64_t n = x->shape[x->ndim - 1];
  *m = (gb_matrix){ .data = gb_data(x), .dtype = (gb_dtype)x->dtype, .column_stride = x->stride[x->ndim - 1] };
  *copy = NULL;
  if (gb_operand_rows(operand(x), rows, &m->row_stride)) return GB_OK;
  *copy = gb_cpu_scratch(call, (size_t)x->numel * gb_dtype_bytes(m->dtype));
  if (!*copy) return GB_EMEMORY;
  int64_t strides[GB_MAX_NDIM];
  gb_contiguous_strides(x->ndim, x->shape, strides);
  gb_copy_strided(call, x->ndim, x->shape, gb_block_data(*copy), m->dtype, strides, m->data, m->dtype, x->stride);
  *m = (gb_matrix){ .data = gb_block_data(*copy), .dtype = m->dtype, .row_stride = n, .column_stride = 1 };
  return GB_OK;
}

/* activation(x @ weight^T + bias) for rows x [rows, in], into c [rows, out]; the activation's argument into pre, or
 * NULL. */
static gb_product layer(gb_matrix x, int64_t rows, const gb_tensor *weight, const gb_tensor *bias,
                        gb_activation activation, void *pre,
                        void *c, gb_dtype dtype) {
  gb_product p = { .m = rows, .n = weight->shape[0], .k = weight->shape[1], .a = x, .c = c, .ldc = weight->shape[0],
                   .dtype = dtype };
  p.b = (gb_matrix){ gb_data(weight), (gb_dtype)weight->dtype, weight->stride[1], weight->stride[0] };
  if (bias)
    p.epilogue = (gb_epilogue){ .bias = gb_data(bias), .bias_dtype = (gb_dtype)bias->dtype,
                                .bias_stride = bias->stride[0] };
  p.epilogue.activation = activation;
  p.epilogue.pre = pre;
  return p;
}

static gb_status linear(gb_op_call *call) {
  const gb_in_linear *in = GB_IN(call, linear);
  const gb_tensor *y = GB_OUT(call, linear)->y, *pre = GB_OUT(call, linear)->pre;
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, linear)->activation);
  bool keep = pre && gb_activation_needs_argument(activation); /* otherwise pre, if any, is y itself */
  gb_matrix x;
  int64_t rows;
  gb_block *copy;
  GB_TRY(fold(call, in->x, &x, &rows, &copy));
  gb_product p = layer(x, rows, in->weight, in->bias, activation, keep ? gb_data(pre) : NULL, gb_data(y),
                       (gb_dtype)y->dtype);
  gb_status status = run_product(call, &p);
  if (copy) gb_cpu_scratch_free(call, copy);
  return status;
}

/* Both layers, slab of rows by slab of rows; hidden holds one slab, or all of it where it is kept. */
static gb_status mlp_slabs(gb_op_call *call, gb_matrix x, int64_t rows, int64_t slab, char *hidden) {
  const gb_in_mlp *in = GB_IN(call, mlp);
  const gb_tensor *y = GB_OUT(call, mlp)->y, *pre = GB_OUT(call, mlp)->pre;
  gb_dtype dtype = (gb_dtype)y->dtype;
  size_t bytes = gb_dtype_bytes(dtype);
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, mlp)->activation);
  int64_t width = in->weight1->shape[0];
  bool keep = GB_OUT(call, mlp)->hidden != NULL;
  for (int64_t row = 0; row < rows; row += slab) {
    int64_t n = rows - row < slab ? rows - row : slab;
    char *activated = hidden + (keep ? (size_t)(row * width) * bytes : 0);
    gb_matrix from = x, middle = { .data = activated, .dtype = dtype, .row_stride = width, .column_stride = 1 };
    from.data = (const char *)x.data + row * x.row_stride * (int64_t)gb_dtype_bytes(x.dtype);
    char *argument = pre ? gb_data(pre) + (size_t)(row * width) * bytes : NULL;
    gb_product first = layer(from, n, in->weight1, in->bias1, activation, argument, activated, dtype);
    GB_TRY(run_product(call, &first));
    char *to = gb_data(y) + (size_t)(row * in->weight2->shape[0]) * bytes;
    gb_product second = layer(middle, n, in->weight2, in->bias2, GB_ACTIVATION_NONE, NULL, to, dtype);
    GB_TRY(run_product(call, &second));
  }
  return GB_OK;
}

static gb_status mlp(gb_op_call *call) {
  const gb_in_mlp *in = GB_IN(call, mlp);
  const gb_out_mlp *out = GB_OUT(call, mlp);
  gb_matrix x;
  int64_t rows, width = in->weight1->shape[0];
  gb_block *copy, *hidden;
  GB_TRY(fold(call, in->x, &x, &rows, &copy));
  int64_t slab = width > 0 ? HIDDEN_ELEMENTS / width : rows;
  slab = slab < 256 ? 256 : slab;
  slab = rows < slab ? (rows > 0 ? rows : 1) : slab;
  size_t bytes = gb_dtype_bytes((gb_dtype)out->y->dtype);
  hidden = out->hidden ? NULL : gb_cpu_scratch(call, (size_t)(slab * width) * bytes);
  char *to = out->hidden ? gb_data(out->hidden) : hidden ? gb_block_data(hidden) : NULL;
  gb_status status = hidden || out->hidden ? mlp_slabs(call, x, rows, slab, to) : GB_EMEMORY;
  if (hidden) gb_cpu_scratch_free(call, hidden);
  if (copy) gb_cpu_scratch_free(call, copy);
  return status;
}

/* {---- gradients ---- */

/* Run the kernel of another op within this one; attrs: its struct of attributes. */
static gb_status run_op(gb_op_call *call, gb_op op, gb_tensor **in, int n_in, gb_tensor *out, const void *attrs) {
  gb_op_call inner = { .context = call->context, .info = gb_op_get(call->context, op), .op = op, .n_in = n_in,
                       .n_out = 1,
                    .in = in, .out = { out },
                    .attrs = attrs, .device = call->device, .result = GB_DTYPE_NONE };
  gb_status status = call->context->backend[GB_CPU]->run[op](&inner);
  if (atomic_load(&inner.stopped)) atomic_store(&call->stopped, true);
  return status;
}

/* Elements before an activation, the gradients of its results, which become those of the elements, and its results. */
typedef struct unactivated { char *kept, *dx, *hidden; gb_dtype dtype,
                             dx_dtype; int64_t n; gb_activation activation; } unactivated;
enum { UNACTIVATED_CHUNK = 16 * GB_TILE };

/* x has what both functions of it share computed once. */
static void unactivate_f32(gb_activation activation, const float *restrict x, float *restrict dx,
                           float *restrict hidden, int64_t n) {
  switch (activation) {
    case GB_ACTIVATION_GELU:
#pragma omp simd
      for (int64_t i = 0; i < n; i++) dx[i] *= gb_gelu_slopef(x[i]), hidden[i] = gb_geluf(x[i]);
      break;
    case GB_ACTIVATION_GELU_TANH:
#pragma omp simd
      for (int64_t i = 0; i < n; i++) dx[i] *= gb_gelu_tanh_slopef(x[i]), hidden[i] = gb_gelu_tanhf(x[i]);
      break;
    default:
#pragma omp simd
      for (int64_t i = 0; i < n; i++) dx[i] *= gb_silu_slopef(x[i]), hidden[i] = gb_siluf(x[i]);
  }
}

static void unactivate_chunk(void *arg, int64_t chunk) {
  const unactivated *u = arg;
  float x[GB_TILE], dx[GB_TILE], hidden[GB_TILE];
  int64_t at = chunk * UNACTIVATED_CHUNK, end = at + UNACTIVATED_CHUNK < u->n ? at + UNACTIVATED_CHUNK : u->n;
  bool lanes = u->dtype == GB_FLOAT32 && u->dx_dtype == GB_FLOAT32;
  for (int64_t n; at < end; at += n) {
    n = end - at < GB_TILE ? end - at : GB_TILE;
    char *from = u->kept + at * (int64_t)gb_dtype_bytes(u->dtype),
        *to = u->hidden + at * (int64_t)gb_dtype_bytes(u->dtype);
    char *gradient = u->dx + at * (int64_t)gb_dtype_bytes(u->dx_dtype);
    if (lanes)
      { unactivate_f32(u->activation, (float *)(void *)from, (float *)(void *)gradient, (float *)(void *)to, n);
        continue; }
    gb_load_f32(x, from, u->dtype, 1, n);
    gb_load_f32(dx, gradient, u->dx_dtype, 1, n);
    unactivate_f32(u->activation, x, dx, hidden, n);
    gb_store_f32(gradient, u->dx_dtype, 1, dx, n);
    gb_store_f32(to, u->dtype, 1, hidden, n);
  }
}

/* Take dx, in place, before the activation that made x, and compute x if there is room for it: in one pass, or op by
 * op. */
static gb_status unactivate(gb_op_call *call, gb_tensor *hidden) {
  gb_tensor *dx = GB_OUT(call, linear_backward)->dx, *kept = GB_IN(call, linear_backward)->kept;
  gb_attr approximate;
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, linear_backward)->activation);
  gb_op backward = gb_activation_backward(activation, &approximate);
  bool plain = hidden && dx->dtype != GB_FLOAT64 && kept->dtype != GB_FLOAT64 && gb_is_contiguous(kept) &&
      gb_is_contiguous(dx);
  if (backward == GB_OP_COUNT) return GB_OK;
  if (plain) {
    unactivated u = { gb_data(kept), gb_data(dx), gb_data(hidden), (gb_dtype)kept->dtype, (gb_dtype)dx->dtype,
                      dx->numel, activation };
    gb_parallel(call, (u.n + UNACTIVATED_CHUNK - 1) / UNACTIVATED_CHUNK, unactivate_chunk, &u);
    return GB_OK;
  }
  if (hidden) GB_TRY(run_op(call, gb_activation_forward(activation, &approximate), &kept, 1, hidden, &approximate));
  return run_op(call, backward, (gb_tensor *[]){ dx, kept }, 2, dx, &approximate);
}

/* grad @ weight. */
static gb_status input_gradient(gb_op_call *call, gb_matrix grad, int64_t rows) {
  gb_tensor *dx = GB_OUT(call, linear_backward)->dx, *weight = GB_IN(call, linear_backward)->weight;
  gb_product p = { .m = rows, .n = weight->shape[1], .k = weight->shape[0], .a = grad, .c = gb_data(dx),
                   .ldc = weight->shape[1], .dtype = (gb_dtype)dx->dtype };
  p.b = (gb_matrix){ gb_data(weight), (gb_dtype)weight->dtype, weight->stride[0], weight->stride[1] };
  return run_product(call, &p);
}

/* grad^T @ x, or that added to a sum. */
static gb_status weight_gradient(gb_op_call *call, const gb_tensor *x, gb_matrix grad, int64_t rows) {
  gb_tensor *dweight = GB_OUT(call, linear_backward)->dweight;
  gb_block *copy;
  gb_product p = { .m = dweight->shape[0], .n = dweight->shape[1], .k = rows,
                   .a = { grad.data, grad.dtype, grad.column_stride, grad.row_stride }, .c = gb_data(dweight),
                   .ldc = dweight->shape[1], .dtype = (gb_dtype)dweight->dtype,
                   .add = GB_ATTRS(call, linear_backward)->add.integer, .over_rows = true };
  GB_TRY(fold(call, x, &p.b, &p.k, &copy));
  gb_status status = run_product(call, &p);
  if (copy) gb_cpu_scratch_free(call, copy);
  return status;
}

/* Both; x may have to be computed from what was kept, which then lies as it did. */
static gb_status matrix_gradients(gb_op_call *call, gb_matrix grad, int64_t rows) {
  const gb_in_linear_backward *in = GB_IN(call, linear_backward);
  const gb_out_linear_backward *out = GB_OUT(call, linear_backward);
  const gb_tensor *kept = in->kept;
  gb_storage storage = { .context = call->context, .device = call->device };
  gb_tensor hidden;
  gb_block *room = NULL;
  if (out->dweight && !in->x) {
    room = gb_cpu_scratch(call, (size_t)kept->numel * gb_dtype_bytes((gb_dtype)kept->dtype));
    if (!room) return GB_EMEMORY;
    storage.data = gb_block_data(room);
    hidden = (gb_tensor){ .dtype = kept->dtype, .ndim = kept->ndim, .numel = kept->numel, .storage = &storage };
    memcpy(hidden.shape, kept->shape, sizeof hidden.shape);
    gb_contiguous_strides(hidden.ndim, hidden.shape, hidden.stride);
  }
  gb_status status = out->dx ? input_gradient(call, grad, rows) : GB_OK;
  if (status == GB_OK && out->dx) status = unactivate(call, room ? &hidden : NULL);
  if (status == GB_OK && out->dweight) status = weight_gradient(call, room ? &hidden : in->x, grad, rows);
  if (room) gb_cpu_scratch_free(call, room);
  return status;
}

/* The sum of grad's rows. */
static gb_status bias_gradient(gb_op_call *call, gb_matrix grad, int64_t rows, gb_tensor *dbias) {
  gb_storage storage = { .context = call->context, .device = call->device, .data = (void *)grad.data };
  int64_t columns = dbias->shape[0];
  gb_tensor matrix = { .dtype = (int8_t)grad.dtype, .ndim = 2, .shape = { rows, columns },
                       .stride = { grad.row_stride, grad.column_stride },
                       .numel = rows * columns, .storage = &storage }, *in = &matrix;
  gb_attrs_sum attrs = { .dim = { .given = true, .count = 1 } };
  return run_op(call, GB_OP_sum, &in, 1, dbias, &attrs);
}

static gb_status linear_backward(gb_op_call *call) {
  gb_matrix grad;
  int64_t rows;
  gb_block *copy;
  GB_TRY(fold(call, GB_IN(call, linear_backward)->grad, &grad, &rows, &copy));
  gb_tensor *dbias = GB_OUT(call, linear_backward)->dbias;
  gb_status status = matrix_gradients(call, grad, rows);
  if (status == GB_OK && dbias) status = bias_gradient(call, grad, rows, dbias);
  if (copy) gb_cpu_scratch_free(call, copy);
  return status;
}

/* ----} */

/* ====} */

void GB_CPU_FILL(matmul)(gb_backend *backend);
void GB_CPU_FILL(matmul)(gb_backend *backend) {
  backend->run[GB_OP_matmul] = matmul;
  backend->run[GB_OP_linear] = linear;
  backend->run[GB_OP_mlp] = mlp;
  backend->run[GB_OP_linear_backward] = linear_backward;
}
