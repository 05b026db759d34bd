/* cuda/gemm.c - matrix products by cuBLASLt. See gemm.h.
 *
 * cuBLASLt counts columns first: our row-major c = a @ b is its c^T = b^T @ a^T, so its first operand is our b, and a
 * bias along its rows is one along our columns. Descriptors and an algorithm are kept per shape: that of a table which
 * was measured (choices.h; cuda/tuned.def, then the file of GIBBOUS_CUDA_TUNED, then what gb.cuda.tuned reads), if the
 * library says that it runs, else the one that its heuristic names first. Algorithms are timed only where gb.cuda.tune
 * asks for it: another choice in the next run would sum in another order, and the same seed must give the same bits. A
 * product that is split along k may only be added up in the type it is computed in, in a separate step, never in the
 * dtype of the result: the preference asks for that in every mode, and what the heuristic or the table names is looked
 * at before it is taken. Floor: m * n * k multiply-adds, each operand read once, the result written once. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/choices.h"
#include "cuda/cuda.h"

#define MOST_PLANS 512 /* shapes kept; a training step of a large network has fewer */
#define MOST_OFFERS 8  /* algorithms asked for */
#define ROUNDS 5       /* an algorithm's time is the least of so many, of so many launches each */
#define LAUNCHES 4
#define GAIN 0.98      /* of the first offer's time: a smaller gain lies within what two rounds differ */

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(uint64_t) * GB_ALGORITHM_WORDS, "a row holds an algorithm");

/* The table that was measured on devices we had: `./dev gpu tune` writes it. */
static const char shipped[] = "gibbous products 1\n"
#include "cuda/tuned.def"
    "";

struct gb_gemms {
  cublasLtHandle_t handle;
  void *workspace;                     /* device memory that one product after the other uses: they run on one stream */
  size_t bytes;
  gb_cache *plans;
  gb_choices choices;                  /* what was measured */
  gb_choice_place here;
  bool tuning;
  gb_tuned told;
};

typedef struct plan {
  bool refused;                        /* the library has no algorithm; remembered so that it is not asked again */
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t a, b, c;      /* ours */
  cublasLtMatmulAlgo_t algorithm;
} plan;

/* {==== opening ==== */

/* Launches have read all of it when they return, so nothing is waited for. */
static void plan_release(void *value) {
  plan *p = value;
  if (p->product) cublasLtMatmulDescDestroy(p->product);
  cublasLtMatrixLayout_t layouts[] = { p->a, p->b, p->c };
  for (int i = 0; i < 3; i++)
    if (layouts[i]) cublasLtMatrixLayoutDestroy(layouts[i]);
  free(p);
}

/* Read a table; `name` is where it comes from. */
static gb_status read_table(gb_cuda_call *call, gb_gemms *gemms, const char *name, const char *text, size_t bytes) {
  char why[160];
  if (gb_choices_read(&gemms->choices, text, bytes, &gemms->here, why, sizeof why)) return GB_OK;
  return gb_cuda_fail(call, GB_EFORMAT, "%s is no table of algorithms: %s; gb.cuda.tune writes one", name, why);
}

/* The table that the environment names. */
static gb_status read_named_table(gb_cuda_call *call, gb_gemms *gemms) {
  const char *path = getenv("GIBBOUS_CUDA_TUNED");
  if (!path || !*path) return GB_OK;
  FILE *file = fopen(path, "rb");
  char *text = file ? malloc(GB_CHOICES_BYTES + 2) : NULL;
  size_t bytes = text ? fread(text, 1, GB_CHOICES_BYTES + 1, file) : 0;
  bool read = text && !ferror(file);
  if (file) fclose(file);
  if (read) text[bytes] = 0;
  gb_status status = read ? read_table(call, gemms, "the file of GIBBOUS_CUDA_TUNED", text, bytes)
      : gb_cuda_fail(call, GB_EINVAL, "GIBBOUS_CUDA_TUNED names '%s', which cannot be read; unset it, or name a file "
                                      "that gb.cuda.tune wrote", path);
  free(text);
  return status;
}

/* The handle and its workspace: 32 MiB from Hopper on, as NVIDIA advises for cublasSetWorkspace, and 4 MiB before. */
static gb_status open_library(gb_cuda_call *call, gb_gemms **out) {
  gb_device_properties device = { .major = 0 };
  gb_gemms *gemms = calloc(1, sizeof *gemms);
  cublasStatus_t status = CUBLAS_STATUS_ALLOC_FAILED;
  if (gemms) {
    gb_rt_properties(call->cuda->device, &device);
    gemms->bytes = (size_t)(device.major >= 9 ? 32 : 4) << 20;
    gemms->here = (gb_choice_place){ (int64_t)cublasLtGetVersion(), device.major, device.minor,
                                     device.multiprocessors };
    gemms->workspace = gb_rt_alloc(gemms->bytes);
    gemms->plans = gb_cache_open(sizeof(gb_product_key), MOST_PLANS, plan_release);
    if (gemms->plans && gemms->workspace) status = cublasLtCreate(&gemms->handle);
  }
  gb_status told = status == CUBLAS_STATUS_SUCCESS
      ? read_table(call, gemms, "cuda/tuned.def", shipped, sizeof shipped - 1)
      : gb_cuda_fail(call, GB_EDEVICE, "cuBLASLt could not be opened: %s", cublasLtGetStatusString(status));
  if (told == GB_OK) told = read_named_table(call, gemms);
  if (told == GB_OK) *out = gemms;
  else gb_gemms_close(gemms);
  return told;
}

void gb_gemms_close(gb_gemms *gemms) {
  if (!gemms) return;
  gb_cache_close(gemms->plans);
  gb_choices_close(&gemms->choices);
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

static gb_product_key key_of(const gb_gemm *g) {
  gb_product_key key;
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
static cublasStatus_t make_product(cublasLtMatmulDesc_t *out, const gb_gemm *g, const gb_product_key *key) {
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
static cublasStatus_t make_preference(cublasLtMatmulPreference_t preference, size_t workspace,
                                      const gb_product_key *key) {
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

/* Does it keep the rules: scratch that there is, and sums in the type that is computed in? */
static bool keeps_rules(const gb_gemms *gemms, const cublasLtMatmulHeuristicResult_t *offer) {
  return offer->state == CUBLAS_STATUS_SUCCESS && offer->workspaceSize <= gemms->bytes && !sums_roughly(&offer->algo);
}

/* The algorithms that the library offers and that keep the rules, the best by its own estimate first. */
static cublasStatus_t ask_library(gb_gemms *gemms, const plan *p, const gb_product_key *key,
                                  cublasLtMatmulHeuristicResult_t offers[MOST_OFFERS], int *count) {
  cublasLtMatmulPreference_t preference = NULL;
  int all = 0;
  *count = 0;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  if (status == CUBLAS_STATUS_SUCCESS) status = make_preference(preference, gemms->bytes, key);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(gemms->handle, p->product, p->b, p->a, p->c, p->c, preference, MOST_OFFERS,
                                            offers, &all);
  if (preference) cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (int i = 0; i < all; i++)
    if (keeps_rules(gemms, &offers[i])) offers[(*count)++] = offers[i];
  return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Do the addresses suit the algorithm, which the library's check does not see? */
static bool suits_addresses(const cublasLtMatmulAlgo_t *algorithm, const gb_product_key *key) {
  const struct { cublasLtMatmulAlgoCapAttributes_t attribute; uint32_t align; } rows[] = {
    { CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->b_align },
    { CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->a_align },
    { CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->c_align },
    { CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->c_align },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    uint32_t least = 0;
    size_t written;
    if (cublasLtMatmulAlgoCapGetAttribute(algorithm, rows[i].attribute, &least, sizeof least, &written) !=
        CUBLAS_STATUS_SUCCESS || least > rows[i].align) return false;
  }
  return true;
}

/* Take what the table has for this product, if the library says that it runs and it keeps the rules. */
static bool take_choice(gb_gemms *gemms, plan *p, const gb_product_key *key) {
  const gb_choice *choice = gb_choices_find(&gemms->choices, key);
  cublasLtMatmulHeuristicResult_t result = { .state = CUBLAS_STATUS_NOT_SUPPORTED };
  if (!choice) return false;
  memcpy(&result.algo, choice->algorithm, sizeof result.algo);
  const cublasLtMatmulAlgo_t algorithm = result.algo;
  bool runs = cublasLtMatmulAlgoCheck(gemms->handle, p->product, p->b, p->a, p->c, p->c, &algorithm, &result) ==
      CUBLAS_STATUS_SUCCESS;
  result.algo = algorithm; /* which the check leaves open */
  runs = runs && keeps_rules(gemms, &result) && suits_addresses(&algorithm, key);
  if (runs) p->algorithm = algorithm, gemms->told.taken++;
  else gemms->told.refused++;
  return runs;
}

/* The table's algorithm, or the first that the library offers. */
static cublasStatus_t choose_algorithm(gb_gemms *gemms, plan *p, const gb_product_key *key) {
  cublasLtMatmulHeuristicResult_t offers[MOST_OFFERS];
  int count;
  if (take_choice(gemms, p, key)) return CUBLAS_STATUS_SUCCESS;
  cublasStatus_t status = ask_library(gemms, p, key, offers, &count);
  if (status == CUBLAS_STATUS_SUCCESS) p->algorithm = offers[0].algo;
  return status;
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
static plan *make_plan(gb_gemms *gemms, const gb_gemm *g, const gb_product_key *key, cublasStatus_t *status) {
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

/* {==== tuning ==== */

/* Scratch of so many bytes, zeroed, at an address as aligned as `like` is; NULL: there is none. */
static void *scratch_like(gb_cuda_call *call, const void *like, size_t bytes) {
  int16_t align = alignment_of(like);
  char *room = gb_cuda_scratch(call, bytes + 256);
  if (!room || gb_rt_set(call->stream, room, 0, bytes + 256)) return NULL;
  return align < 256 ? room + align : room;
}

/* The same product, with results of its own, so that it may run again and again. */
static bool repeatable(gb_cuda_call *call, const gb_gemm *g, gb_gemm *out) {
  size_t element = call->cuda->engine->dtype_bytes(g->dtype);
  size_t elements = (size_t)((g->batch - 1) * g->c_stride + (g->m - 1) * g->ldc + g->n);
  *out = *g;
  out->c = scratch_like(call, g->c, elements * element);
  if (g->aux && g->epilogue != GB_GEMM_GELU_SLOPE) out->aux = scratch_like(call, g->aux, elements * element);
  if (g->sums) out->sums = scratch_like(call, g->sums, (size_t)g->m * element);
  return out->c && !g->aux == !out->aux && !g->sums == !out->sums;
}

/* Microseconds of a launch, behind one whose time does not count; below 0: it does not run. */
static double time_of(gb_gemms *gemms, const plan *p, const gb_gemm *g, gb_stream stream, gb_event from, gb_event to) {
  double least = -1;
  bool runs = launch(gemms, p, g, stream) == CUBLAS_STATUS_SUCCESS;
  for (int round = 0; runs && round < ROUNDS; round++) {
    double seconds = 0;
    runs = gb_rt_event_record(from, stream) == 0;
    for (int i = 0; runs && i < LAUNCHES; i++) runs = launch(gemms, p, g, stream) == CUBLAS_STATUS_SUCCESS;
    runs = runs && !gb_rt_event_record(to, stream) && !gb_rt_synchronize(stream) &&
        !gb_rt_event_elapsed(from, to, &seconds);
    if (runs && (least < 0 || seconds < least)) least = seconds;
  }
  return runs ? least * 1e6 / LAUNCHES : -1;
}

/* Time what the library offers for a product that was planned, and take and keep the fastest. Where there is no scratch
 * or event for it the plan stays as it is. */
static void tune_plan(gb_cuda_call *call, gb_gemms *gemms, plan *p, const gb_product_key *key, const gb_gemm *g) {
  cublasLtMatmulHeuristicResult_t offers[MOST_OFFERS];
  gb_gemm again;
  gb_event from = NULL, to = NULL;
  gb_choice choice = { .key = *key };
  int count, best = -1, mark = call->scratches;
  bool ready = ask_library(gemms, p, key, offers, &count) == CUBLAS_STATUS_SUCCESS && repeatable(call, g, &again) &&
      !gb_rt_event_open_timed(&from) && !gb_rt_event_open_timed(&to) &&
      set_pointers(p->product, &again) == CUBLAS_STATUS_SUCCESS;
  plan trial = *p;
  for (int i = 0; ready && i < count; i++) {
    trial.algorithm = offers[i].algo;
    double time = time_of(gemms, &trial, &again, call->stream, from, to);
    if (i == 0) choice.first = time;
    if (time >= 0 && (best < 0 || time < choice.best)) choice.best = time, best = i;
  }
  if (best > 0 && choice.first >= 0 && choice.best > GAIN * choice.first) choice.best = choice.first, best = 0;
  if (best >= 0) {
    p->algorithm = offers[best].algo;
    if (choice.first < 0) choice.first = choice.best;
    memcpy(choice.algorithm, &offers[best].algo, sizeof choice.algorithm);
    if (gb_choices_put(&gemms->choices, &choice)) {
      gemms->told.timed++, gemms->told.improved += best > 0;
      gemms->told.first += choice.first, gemms->told.best += choice.best;
    }
  }
  if (from) gb_rt_event_close(from);
  if (to) gb_rt_event_close(to);
  gb_cuda_scratch_back(call, mark);
}

/* Forget all plans, so that the next product of each shape chooses anew. Graphs keep theirs. */
static gb_status drop_plans(gb_cuda_call *call, gb_gemms *gemms) {
  gb_cache *plans = gb_cache_open(sizeof(gb_product_key), MOST_PLANS, plan_release);
  if (!plans) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for the plans of products");
  gb_cache_close(gemms->plans);
  gemms->plans = plans;
  gemms->told.taken = gemms->told.refused = 0;
  return GB_OK;
}

gb_status gb_gemms_tune(gb_cuda_call *call, bool on) {
  if (on) {
    if (!call->cuda->gemms) GB_TRY(open_library(call, &call->cuda->gemms));
    GB_TRY(drop_plans(call, call->cuda->gemms));
    gb_tuned *told = &call->cuda->gemms->told;
    told->timed = told->improved = 0;
    told->first = told->best = 0;
  }
  if (call->cuda->gemms) call->cuda->gemms->tuning = on;
  return GB_OK;
}

gb_status gb_gemms_tuned(gb_cuda_call *call, const char *text, size_t bytes, gb_tuned *out) {
  if (!call->cuda->gemms) GB_TRY(open_library(call, &call->cuda->gemms));
  gb_gemms *gemms = call->cuda->gemms;
  if (text) {
    GB_TRY(read_table(call, gemms, "the file", text, bytes));
    GB_TRY(drop_plans(call, gemms));
  }
  *out = gemms->told;
  out->choices = gemms->choices.count;
  return GB_OK;
}

size_t gb_gemms_table(const gb_gemms *gemms, char *out, size_t room) {
  return gb_choices_write(&gemms->choices, &gemms->here, out, room);
}

/* ====} */

gb_status gb_gemm_run(gb_cuda_call *call, const gb_gemm *g) {
  if (!call->cuda->gemms) {
    GB_TRY(gb_cuda_may_open(call, "cuBLASLt"));
    GB_TRY(open_library(call, &call->cuda->gemms));
  }
  gb_gemms *gemms = call->cuda->gemms;
  gb_product_key key = key_of(g);
  plan *p = gb_cache_find(gemms->plans, &key);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (!p) {
    p = make_plan(gemms, g, &key, &status);
    if (!p) return fail_product(call, g, GB_EDEVICE, cublasLtGetStatusString(status));
    gb_cache_put(gemms->plans, &key, p);
    if (gemms->tuning && !p->refused && !call->cuda->capturing) {
      tune_plan(call, gemms, p, &key, g);
      status = set_pointers(p->product, g);
    }
  } else if (!p->refused) status = set_pointers(p->product, g);
  if (!p->refused && status == CUBLAS_STATUS_SUCCESS) status = launch(gemms, p, g, call->stream);
  p->refused = p->refused || is_refusal(g, status);
  if (p->refused) return fail_product(call, g, GB_EUNSUPPORTED, "it has no algorithm");
  return status == CUBLAS_STATUS_SUCCESS ? GB_OK : fail_product(call, g, GB_EDEVICE, cublasLtGetStatusString(status));
}
