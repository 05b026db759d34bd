/* libraries.c - stands in for cuBLASLt and cuDNN behind cuda/gemm.h, conv.h and attention.h: products are the CPU backend's; convolutions and
 * attention are left to our own kernels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/math.h"
#include "cuda/attention.h"
#include "cuda/conv.h"
#include "cuda/cuda.h"
#include "cuda/gemm.h"
#include "machine.h"

void gb_gemms_close(gb_gemms *gemms) { (void)gemms; }
void gb_dnns_close(struct gb_dnns *dnns) { (void)dnns; }

gb_status gb_conv_run(gb_cuda_call *call, const gb_conv *conv, bool *served, char *why, size_t why_size) {
  (void)call, (void)conv;
  *served = false;
  snprintf(why, why_size, "the emulated device has no cuDNN");
  return GB_OK;
}

gb_status gb_attention_forward(gb_cuda_call *call, const gb_attention *a, bool *served) {
  (void)call, (void)a;
  *served = false;
  return GB_OK;
}

gb_status gb_attention_backward(gb_cuda_call *call, const gb_attention *a, bool *served) { return gb_attention_forward(call, a, served); }

/* {==== products ==== */

/* One launch, as a stream is told of it. */
typedef struct product_work {
  gb_context *context;
  gb_gemm gemm;
  double *sums;                        /* of one matrix, as float32 where the operands are no float64 */
} product_work;

/* A matrix of the batch as the engine's tensor over its memory. */
static gb_tensor tensor_over(gb_storage *storage, gb_context *context, void *data, gb_dtype dtype, int64_t rows, int64_t columns, int64_t row_stride,
                             int64_t column_stride) {
  *storage = (gb_storage){ .context = context, .device = { GB_CPU, 0 }, .data = data };
  return (gb_tensor){ .dtype = (int8_t)dtype, .ndim = 2, .shape = { rows, columns }, .stride = { row_stride, column_stride }, .numel = rows * columns,
                      .storage = storage };
}

static const uint8_t bytes_of[] = { [GB_FLOAT64] = 8, [GB_FLOAT32] = 4, [GB_FLOAT16] = 2, [GB_BFLOAT16] = 2 };
static char *at(const void *data, gb_dtype dtype, int64_t i) { return (char *)data + i * (int64_t)bytes_of[dtype]; }

static double load(const void *data, gb_dtype dtype, int64_t i) {
  switch (dtype) {
    case GB_FLOAT64: return ((const double *)data)[i];
    case GB_FLOAT32: return (double)((const float *)data)[i];
    case GB_FLOAT16: return (double)gb_float16_to_float(((const uint16_t *)data)[i]);
    default: return (double)gb_bfloat16_to_float(((const uint16_t *)data)[i]);
  }
}

static void store(void *data, gb_dtype dtype, int64_t i, double value) {
  switch (dtype) {
    case GB_FLOAT64: ((double *)data)[i] = value; break;
    case GB_FLOAT32: ((float *)data)[i] = (float)value; break;
    case GB_FLOAT16: ((uint16_t *)data)[i] = gb_float_to_float16((float)value); break;
    default: ((uint16_t *)data)[i] = gb_float_to_bfloat16((float)value); break;
  }
}

/* What the library does to a sum before it is rounded. */
static double finish(const gb_gemm *g, double sum, int64_t column, int64_t i) {
  sum = g->dtype == GB_FLOAT64 ? sum * g->alpha : (double)((float)sum * (float)g->alpha);
  if (g->accumulate) sum = g->dtype == GB_FLOAT64 ? sum + load(g->c, g->dtype, i) : (double)((float)sum + (float)load(g->c, g->dtype, i));
  if (g->bias) sum = g->dtype == GB_FLOAT64 ? sum + load(g->bias, g->dtype, column) : (double)((float)sum + (float)load(g->bias, g->dtype, column));
  if (g->epilogue == GB_GEMM_GELU_SLOPE) return (float)sum * gb_gelu_tanh_slopef((float)load(g->aux, g->dtype, i));
  if (g->aux) store(g->aux, g->dtype, i, sum);
  if (g->epilogue == GB_GEMM_RELU) return sum < 0 ? 0 : sum;
  return g->epilogue == GB_GEMM_GELU ? gb_gelu_tanhf((float)sum) : sum;
}

/* The sums of the rows of a, as the library's ROW_SUMS. */
static void sum_rows(const gb_gemm *g) {
  for (int64_t r = 0; r < g->m; r++) {
    float sum = 0;
    for (int64_t i = 0; i < g->k; i++) sum += (float)load(g->a.data, g->a.dtype, r * g->a.row_stride + i * g->a.column_stride);
    store(g->sums, g->dtype, r, (double)sum);
  }
}

/* Every matrix of the batch by the CPU backend's matmul, in float32 or float64; then what the library fuses. */
static void run_product(void *argument) {
  product_work *w = argument;
  gb_gemm *g = &w->gemm;
  gb_dtype lane = g->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  for (int64_t i = 0; i < g->batch; i++) {
    gb_storage storage[3];
    gb_tensor a = tensor_over(&storage[0], w->context, at(g->a.data, g->a.dtype, i * g->a_stride), g->a.dtype, g->m, g->k, g->a.row_stride,
                              g->a.column_stride);
    gb_tensor b = tensor_over(&storage[1], w->context, at(g->b.data, g->b.dtype, i * g->b_stride), g->b.dtype, g->k, g->n, g->b.row_stride,
                              g->b.column_stride);
    gb_tensor c = tensor_over(&storage[2], w->context, w->sums, lane, g->m, g->n, g->n, 1), *in[] = { &a, &b };
    gb_call call = { .context = w->context, .info = gb_op_get(w->context, GB_OP_matmul), .op = GB_OP_matmul, .n_in = 2, .n_out = 1, .in = in, .out = { &c } };
    if (w->context->backend[GB_CPU]->run[GB_OP_matmul](&call) != GB_OK) gb_machine_fail("gemm", "%s", w->context->error);
    for (int64_t r = 0; r < g->m; r++)
      for (int64_t j = 0; j < g->n; j++) {
        int64_t to = i * g->c_stride + r * g->ldc + j;
        store(g->c, g->dtype, to, finish(g, load(w->sums, lane, r * g->n + j), j, to));
      }
  }
  if (g->epilogue == GB_GEMM_ROW_SUMS) sum_rows(g);
}

static void release_product(void *argument) {
  product_work *w = argument;
  free(w->sums);
  free(w);
}

gb_status gb_gemm_run(gb_cuda_call *call, const gb_gemm *gemm) {
  if (!gb_gemm_fuses(gemm)) return gb_cuda_fail(call, GB_EINVAL, "the library was asked for an epilogue that it does not have");
  product_work *w = malloc(sizeof *w);
  double *sums = malloc((size_t)(gemm->m * gemm->n) * sizeof *sums);
  if (!w || !sums) {
    free(w);
    free(sums);
    return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a product");
  }
  *w = (product_work){ call->cuda->context, *gemm, sums };
  gb_machine_do(call->stream, run_product, release_product, w);
  return GB_OK;
}

/* ====} */
