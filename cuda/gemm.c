/* cuda/gemm.c - matrix products by cuBLASLt. See gemm.h.
 *
 * cuBLASLt counts columns first: our row-major c = a @ b is its c^T = b^T @ a^T, so its first operand is our b, and a
 * bias along its rows is one along our columns. Descriptors and the algorithm that the library's heuristic names first
 * are kept per shape. Algorithms are not timed against each other: another choice in the next run would sum in another
 * order, and the same seed must give the same bits. A product that is split along k may only be added up in the type it
 * is computed in, in a separate step, never in the dtype of the result: the preference asks for that in every mode, and
 * what the heuristic names is looked at before it is taken. Floor: m * n * k multiply-adds, each operand read once, the
 * result written once. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/cuda.h"

#define MOST_PLANS 512 /* shapes kept; a training step of a large network has fewer */
#define MOST_OFFERS 8  /* algorithms asked for */

struct gb_gemms {
  cublasLtHandle_t handle;
  void *workspace;                     /* device memory that one product after the other uses: they run on one stream */
  size_t bytes;
  gb_cache *plans;
};

/* What a plan is found by. */
typedef struct plan_key {
  int64_t m, n, k, batch, lda, ldb, ldc, a_stride, b_stride, c_stride;
  int16_t operands, dtype, a_transposed, b_transposed, tf32, epilogue, bias, aux;
  int16_t a_align, b_align, c_align, aux_align, bias_align;
} plan_key;

typedef struct plan {
  bool refused;                        /* the library has no algorithm; remembered so that it is not asked again */
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t a, b, c;      /* ours */
  cublasLtMatmulAlgo_t algorithm;
} plan;

/* {==== opening ==== */

static void plan_release(void *value) {
  plan *p = value;
  if (p->product) cublasLtMatmulDescDestroy(p->product);
  cublasLtMatrixLayout_t layouts[] = { p->a, p->b, p->c };
  for (int i = 0; i < 3; i++)
    if (layouts[i]) cublasLtMatrixLayoutDestroy(layouts[i]);
  free(p);
}

/* The handle and its workspace: 32 MiB from Hopper on, as NVIDIA advises for cublasSetWorkspace, and 4 MiB before. */
static gb_status open_library(gb_cuda_call *call, gb_gemms **out) {
  gb_device_properties device = { .major = 0 };
  gb_gemms *gemms = calloc(1, sizeof *gemms);
  cublasStatus_t status = CUBLAS_STATUS_ALLOC_FAILED;
  if (gemms) {
    gb_rt_properties(call->cuda->device, &device);
    gemms->bytes = (size_t)(device.major >= 9 ? 32 : 4) << 20;
    gemms->workspace = gb_rt_alloc(gemms->bytes);
    gemms->plans = gb_cache_open(sizeof(plan_key), MOST_PLANS, plan_release);
    if (gemms->plans && gemms->workspace) status = cublasLtCreate(&gemms->handle);
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    *out = gemms;
    return GB_OK;
  }
  gb_gemms_close(gemms);
  return gb_cuda_fail(call, GB_EDEVICE, "cuBLASLt could not be opened: %s", cublasLtGetStatusString(status));
}

void gb_gemms_close(gb_gemms *gemms) {
  if (!gemms) return;
  gb_cache_close(gemms->plans);
  if (gemms->handle) cublasLtDestroy(gemms->handle);
  if (gemms->workspace) gb_rt_free(gemms->workspace, gemms->bytes);
  free(gemms);
}

/* ====} */

/* {==== shapes ==== */

static cudaDataType_t type_of(gb_dtype dtype) {
  static const cudaDataType_t types[] = { [GB_FLOAT64] = CUDA_R_64F, [GB_FLOAT32] = CUDA_R_32F,
                                          [GB_FLOAT16] = CUDA_R_16F, [GB_BFLOAT16] = CUDA_R_16BF };
  return types[dtype];
}

/* The bytes that an address is a multiple of, up to what cuBLASLt assumes unless told. */
static int16_t alignment_of(const void *address) {
  uintptr_t bits = (uintptr_t)address | 256;
  return (int16_t)(bits & (~bits + 1));
}

/* Does the matrix lie column after column? */
static bool is_transposed(const gb_gemm_matrix *m, int64_t rows, int64_t columns) {
  bool by_rows = columns == 1 || m->column_stride == 1;
  return !(by_rows && (rows == 1 || m->row_stride >= columns));
}

/* From row to row, or from column to column where it is transposed. */
static int64_t leading(const gb_gemm_matrix *m, int64_t rows, int64_t columns) {
  bool transposed = is_transposed(m, rows, columns);
  int64_t step = transposed ? m->column_stride : m->row_stride, least = transposed ? rows : columns;
  return step < least ? least : step; /* smaller only where there is nothing to step over */
}

/* The vector that goes with the product: a bias to read, or sums to write. */
static const void *vector_of(const gb_gemm *g) { return g->epilogue == GB_GEMM_ROW_SUMS ? g->sums : g->bias; }

static plan_key key_of(const gb_gemm *g) {
  plan_key key;
  memset(&key, 0, sizeof key);
  key.m = g->m, key.n = g->n, key.k = g->k, key.batch = g->batch;
  key.lda = leading(&g->a, g->m, g->k), key.ldb = leading(&g->b, g->k, g->n), key.ldc = g->ldc;
  if (g->batch > 1) key.a_stride = g->a_stride, key.b_stride = g->b_stride, key.c_stride = g->c_stride;
  key.operands = (int16_t)g->a.dtype, key.dtype = (int16_t)g->dtype;
  key.a_transposed = is_transposed(&g->a, g->m, g->k), key.b_transposed = is_transposed(&g->b, g->k, g->n);
  key.tf32 = g->tf32 && g->a.dtype == GB_FLOAT32, key.epilogue = (int16_t)g->epilogue;
  key.bias = g->bias != NULL, key.aux = g->aux != NULL;
  key.a_align = alignment_of(g->a.data), key.b_align = alignment_of(g->b.data), key.c_align = alignment_of(g->c);
  key.bias_align = alignment_of(vector_of(g)), key.aux_align = alignment_of(g->aux);
  return key;
}

/* ====} */

/* {==== plans ==== */

static cublasStatus_t set_int(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, int32_t value) {
  return cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value);
}

/* A layout of [rows, columns] in our sense, and its batches. */
static cublasStatus_t make_layout(cublasLtMatrixLayout_t *out, gb_dtype dtype, int64_t rows, int64_t columns,
                                  bool transposed, int64_t ld, int64_t batch,
                                  int64_t stride) {
  int64_t across = transposed ? rows : columns, down = transposed ? columns : rows;
  int32_t count = (int32_t)batch;
  cublasStatus_t status = cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)across, (uint64_t)down, ld);
  if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
    status = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
    status = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride);
  return status;
}

static cublasLtEpilogue_t epilogue_of(const gb_gemm *g) {
  static const struct { cublasLtEpilogue_t plain, biased; } table[GB_GEMM_EPILOGUES] = {
    [GB_GEMM_PLAIN] = { CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS },
    [GB_GEMM_RELU] = { CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS },
    [GB_GEMM_GELU] = { CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS },
    [GB_GEMM_GELU_SLOPE] = { CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU },
    [GB_GEMM_ROW_SUMS] = { CUBLASLT_EPILOGUE_BGRADB, CUBLASLT_EPILOGUE_BGRADB }, /* its B is our a */
  };
  if (g->epilogue == GB_GEMM_GELU && g->aux)
    return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return g->bias ? table[g->epilogue].biased : table[g->epilogue].plain;
}

/* Set the addresses of this call's vector and aux. */
static cublasStatus_t set_pointers(cublasLtMatmulDesc_t product, const gb_gemm *g) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const void *vector = vector_of(g);
  if (vector)
    status = cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
  if (status == CUBLAS_STATUS_SUCCESS && g->aux)
    status = cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
  return status;
}

/* The descriptor: arithmetic, transposes, epilogue. */
static cublasStatus_t make_product(cublasLtMatmulDesc_t *out, const gb_gemm *g, const plan_key *key) {
  bool doubles = g->dtype == GB_FLOAT64;
  cublasComputeType_t compute = doubles ? CUBLAS_COMPUTE_64F : key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
      : CUBLAS_COMPUTE_32F;
  cublasStatus_t status = cublasLtMatmulDescCreate(out, compute, doubles ? CUDA_R_64F : CUDA_R_32F);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_int(*out, CUBLASLT_MATMUL_DESC_TRANSA, key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_int(*out, CUBLASLT_MATMUL_DESC_TRANSB, key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (status == CUBLAS_STATUS_SUCCESS) status = set_int(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)epilogue_of(g));
  if (status == CUBLAS_STATUS_SUCCESS && g->aux)
    status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->ldc, sizeof g->ldc);
  return status == CUBLAS_STATUS_SUCCESS ? set_pointers(*out, g) : status;
}

/* What the library may choose among: so much scratch, these alignments, sums in float32. */
static cublasStatus_t make_preference(cublasLtMatmulPreference_t preference, size_t workspace, const plan_key *key) {
  const struct { cublasLtMatmulPreferenceAttributes_t attribute; uint32_t value; } rows[] = {
    { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->b_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->a_align },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->c_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->c_align },
  };
  uint64_t most = workspace;
  cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                               &most, sizeof most);
  for (size_t i = 0; i < sizeof rows / sizeof *rows && status == CUBLAS_STATUS_SUCCESS; i++)
    status = cublasLtMatmulPreferenceSetAttribute(preference, rows[i].attribute, &rows[i].value, sizeof rows[i].value);
  return status;
}

/* Does the algorithm add up what it splits along k in the output's dtype or place? One that does not tell keeps to the
 * preference. */
static bool sums_roughly(const cublasLtMatmulAlgo_t *algorithm) {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written;
  cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                               &scheme, sizeof scheme, &written);
  return status == CUBLAS_STATUS_SUCCESS &&
      (scheme & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
}

/* The first algorithm that the library offers and that keeps the rules. */
static cublasStatus_t choose_algorithm(gb_gemms *gemms, plan *p, const plan_key *key) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t offers[MOST_OFFERS];
  int count = 0;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  if (status == CUBLAS_STATUS_SUCCESS) status = make_preference(preference, gemms->bytes, key);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(gemms->handle, p->product, p->b, p->a, p->c, p->c, preference, MOST_OFFERS,
                                            offers, &count);
  if (preference) cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (int i = 0; i < count; i++) {
    if (offers[i].state != CUBLAS_STATUS_SUCCESS || offers[i].workspaceSize > gemms->bytes ||
        sums_roughly(&offers[i].algo)) continue;
    p->algorithm = offers[i].algo;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Does the library lack this product? Of an epilogue that it does not have it may also say that a value or the device
 * is wrong. */
static bool is_refusal(const gb_gemm *g, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return true;
  return (g->epilogue != GB_GEMM_PLAIN || g->bias) &&
      (status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_ARCH_MISMATCH);
}

/* Everything about a product that does not change from call to call; refused where no algorithm has it. NULL with
 * *status set: out of memory. */
static plan *make_plan(gb_gemms *gemms, const gb_gemm *g, const plan_key *key, cublasStatus_t *status) {
  plan *p = calloc(1, sizeof *p);
  *status = CUBLAS_STATUS_ALLOC_FAILED;
  if (!p) return NULL;
  *status = make_product(&p->product, g, key);
  if (*status == CUBLAS_STATUS_SUCCESS)
    *status = make_layout(&p->a, g->a.dtype, g->m, g->k, key->a_transposed, key->lda, g->batch, key->a_stride);
  if (*status == CUBLAS_STATUS_SUCCESS)
    *status = make_layout(&p->b, g->b.dtype, g->k, g->n, key->b_transposed, key->ldb, g->batch, key->b_stride);
  if (*status == CUBLAS_STATUS_SUCCESS)
    *status = make_layout(&p->c, g->dtype, g->m, g->n, false, g->ldc, g->batch, key->c_stride);
  if (*status == CUBLAS_STATUS_SUCCESS) *status = choose_algorithm(gemms, p, key);
  p->refused = is_refusal(g, *status);
  if (*status == CUBLAS_STATUS_SUCCESS || p->refused) return p;
  plan_release(p);
  return NULL;
}

/* ====} */

/* What the library said of a product. */
static gb_status fail_product(gb_cuda_call *call, const gb_gemm *g, gb_status status, const char *why) {
  return gb_cuda_fail(call, status,
                      "cuBLASLt cannot multiply [%" PRId64 ", %" PRId64 "] by [%" PRId64 ", %" PRId64
                      "] (batch %" PRId64 "): %s", g->m, g->k,
                      g->k, g->n, g->batch, why);
}

/* Launch what was planned. */
static cublasStatus_t launch(gb_gemms *gemms, const plan *p, const gb_gemm *g, gb_stream stream) {
  const float factors[] = { (float)g->alpha, g->accumulate ? 1 : 0 };
  const double wide_factors[] = { g->alpha, g->accumulate ? 1 : 0 };
  bool wide = g->dtype == GB_FLOAT64;
  const void *alpha = wide ? (const void *)&wide_factors[0] : &factors[0],
      *beta = wide ? (const void *)&wide_factors[1] : &factors[1];
  return cublasLtMatmul(gemms->handle, p->product, alpha, g->b.data, p->b, g->a.data, p->a, beta, g->c, p->c, g->c,
                        p->c, &p->algorithm, gemms->workspace,
                        gemms->bytes, stream);
}

gb_status gb_gemm_run(gb_cuda_call *call, const gb_gemm *g) {
  if (!call->cuda->gemms) GB_TRY(open_library(call, &call->cuda->gemms));
  gb_gemms *gemms = call->cuda->gemms;
  plan_key key = key_of(g);
  plan *p = gb_cache_find(gemms->plans, &key);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (!p) {
    p = make_plan(gemms, g, &key, &status);
    if (!p) return fail_product(call, g, GB_EDEVICE, cublasLtGetStatusString(status));
    gb_cache_put(gemms->plans, &key, p);
  } else if (!p->refused) status = set_pointers(p->product, g);
  if (!p->refused && status == CUBLAS_STATUS_SUCCESS) status = launch(gemms, p, g, call->stream);
  p->refused = p->refused || is_refusal(g, status);
  if (p->refused) return fail_product(call, g, GB_EUNSUPPORTED, "it has no algorithm");
  return status == CUBLAS_STATUS_SUCCESS ? GB_OK : fail_product(call, g, GB_EDEVICE, cublasLtGetStatusString(status));
}
