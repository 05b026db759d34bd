/* cublaslt.c - stands in for cuBLASLt, below cuda/gemm.c, through the functions of cublasLt.h.
 *
 * A product is computed by plain loops with sums in float32 (float64 for float64) in one order, whatever its shape, and
 * rounded once behind its epilogue. Four algorithms are offered, which give the same bits: two that gemm.c has to
 * pass over, since one adds up in the dtype of the result and the other wants more scratch than there is, one that does
 * all, and one that wants addresses of 16 bytes. GIBBOUS_PRODUCT_MS names the milliseconds that a launch of each takes,
 * "9,9,5,0" in that order, so that tuning has something to find. What the library would refuse, or what its kernels
 * would fault at, fails here. With GIBBOUS_RELU_DROPS_NAN set its ReLU makes 0 of NaN. */
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/math.h"
#include "cuda/gemm.h"
#include "elements.h"
#include "machine.h"

#define VERSION 1
#define STRICT_ALIGN 16                /* of the vector beside a product, and of what one algorithm wants */

struct cublasLtContext { char opened; };
struct stand_in_product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transposed[2], epilogue;     /* of its a and b */
  void *bias, *aux;
  int64_t aux_ld;
};
struct stand_in_layout { cudaDataType_t type; int64_t rows, columns, ld, stride; int32_t batch; };
struct stand_in_preference { uint64_t workspace; uint32_t schemes, align[4]; };

/* {==== objects ==== */

size_t cublasLtGetVersion(void) { return VERSION; }

const char *cublasLtGetStatusString(cublasStatus_t status) {
  static const char *const texts[] = { "success", "out of memory", "an argument is wrong", "not on this device",
                                       "internal error", "not supported" };
  return texts[status];
}

/* Zeroed memory of an object, with what it starts as. */
static cublasStatus_t make(void *out, const void *start, size_t bytes) {
  void *object = malloc(bytes);
  if (!object) return CUBLAS_STATUS_ALLOC_FAILED;
  memcpy(object, start, bytes);
  memcpy(out, &object, sizeof object);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t drop(void *object) {
  free(object);
  return CUBLAS_STATUS_SUCCESS;
}

/* Set a field to a value of the size that it has. */
static cublasStatus_t set(void *field, size_t size, const void *value, size_t bytes) {
  if (size != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  return make(handle, &(struct cublasLtContext){ 1 }, sizeof **handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return drop(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return make(product, &(struct stand_in_product){ .compute = compute, .scale = scale }, sizeof **product);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return drop(product); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&product->transposed[0], sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&product->transposed[1], sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&product->epilogue, sizeof product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&product->bias, sizeof product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&product->aux, sizeof product->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&product->aux_ld, sizeof product->aux_ld, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  struct stand_in_layout start = { type, (int64_t)rows, (int64_t)columns, ld, 0, 1 };
  return ld < start.rows ? CUBLAS_STATUS_INVALID_VALUE : make(layout, &start, sizeof start);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return drop(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? set(&layout->batch, sizeof layout->batch, value, bytes)
      : set(&layout->stride, sizeof layout->stride, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  struct stand_in_preference start = { 0, ~0u, { 256, 256, 256, 256 } };
  return make(preference, &start, sizeof start);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return drop(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return set(&preference->workspace, sizeof preference->workspace, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return set(&preference->schemes, sizeof preference->schemes, value, bytes);
  return set(&preference->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof(uint32_t), value,
             bytes);
}

/* ====} */

/* {==== what is multiplied ==== */

static gb_dtype dtype_of(cudaDataType_t type) {
  static const gb_dtype dtypes[] = { [CUDA_R_64F] = GB_FLOAT64, [CUDA_R_32F] = GB_FLOAT32, [CUDA_R_16F] = GB_FLOAT16,
                                     [CUDA_R_16BF] = GB_BFLOAT16 };
  return dtypes[type];
}

/* A matrix whose columns lie one after another, as ours, whose element (column, row) it is. */
static gb_gemm_matrix turned(const struct stand_in_layout *layout, bool transposed, const void *data) {
  return (gb_gemm_matrix){ data, dtype_of(layout->type), transposed ? 1 : layout->ld, transposed ? layout->ld : 1 };
}

/* The library's product of columns as one of rows, c^T = b^T @ a^T; false: the library refuses it. */
static bool read_product(const struct stand_in_product *p, const struct stand_in_layout *a,
                         const struct stand_in_layout *b, const struct stand_in_layout *d, gb_gemm *out) {
  static const gb_gemm_epilogue epilogues[] = {
    [CUBLASLT_EPILOGUE_DEFAULT] = GB_GEMM_PLAIN, [CUBLASLT_EPILOGUE_BIAS] = GB_GEMM_PLAIN,
    [CUBLASLT_EPILOGUE_RELU] = GB_GEMM_RELU, [CUBLASLT_EPILOGUE_RELU_BIAS] = GB_GEMM_RELU,
    [CUBLASLT_EPILOGUE_GELU] = GB_GEMM_GELU, [CUBLASLT_EPILOGUE_GELU_BIAS] = GB_GEMM_GELU,
    [CUBLASLT_EPILOGUE_GELU_AUX] = GB_GEMM_GELU, [CUBLASLT_EPILOGUE_GELU_AUX_BIAS] = GB_GEMM_GELU,
    [CUBLASLT_EPILOGUE_DGELU] = GB_GEMM_GELU_SLOPE, [CUBLASLT_EPILOGUE_BGRADB] = GB_GEMM_ROW_SUMS,
  };
  int32_t epilogue = p->epilogue;
  bool biased = epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
      epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  bool has_aux = epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
      epilogue == CUBLASLT_EPILOGUE_DGELU;
  bool at = p->transposed[0] == CUBLAS_OP_T, bt = p->transposed[1] == CUBLAS_OP_T;
  int64_t n = at ? a->columns : a->rows, k = at ? a->rows : a->columns;
  int64_t m = bt ? b->rows : b->columns, other_k = bt ? b->columns : b->rows;
  *out = (gb_gemm){ .m = m, .n = n, .k = k, .a = turned(b, bt, NULL), .b = turned(a, at, NULL), .ldc = d->ld,
                    .dtype = dtype_of(d->type), .batch = d->batch, .a_stride = b->stride, .b_stride = a->stride,
                    .c_stride = d->stride, .tf32 = p->compute == CUBLAS_COMPUTE_32F_FAST_TF32,
                    .epilogue = epilogues[epilogue], .bias = biased ? p->bias : NULL, .aux = has_aux ? p->aux : NULL,
                    .sums = epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->bias : NULL };
  bool wide = out->dtype == GB_FLOAT64, short_in = gb_is_16bit(out->a.dtype);
  return k == other_k && d->rows == n && d->columns == m && a->batch == d->batch && b->batch == d->batch &&
      a->type == b->type && (d->type == a->type || (short_in && out->dtype == GB_FLOAT32)) &&
      (p->compute == CUBLAS_COMPUTE_64F) == wide && (p->scale == CUDA_R_64F) == wide &&
      (!out->tf32 || out->a.dtype == GB_FLOAT32) && (!biased || p->bias) && (!has_aux || p->aux) &&
      ((uintptr_t)out->bias | (uintptr_t)out->sums) % STRICT_ALIGN == 0 &&
      (epilogue != CUBLASLT_EPILOGUE_BGRADB || out->sums) && (!has_aux || p->aux_ld == d->ld) &&
      d->batch >= 1 && d->batch <= GB_GEMM_BATCH && (d->batch == 1 || epilogue == CUBLASLT_EPILOGUE_DEFAULT) &&
      gb_gemm_fuses(out);
}

/* ====} */

/* {==== algorithms ==== */

enum { ROUGH, GREEDY, PLAIN, ALIGNED, ALGORITHMS };
#define MARK 0x6c626361u               /* the library's, in the first word; the number is in the second */

static cublasLtMatmulAlgo_t algorithm_of(uint64_t number) { return (cublasLtMatmulAlgo_t){ { MARK, number } }; }

/* The number of an algorithm, or ALGORITHMS: the bytes are none of the library's. */
static uint64_t number_of(const cublasLtMatmulAlgo_t *algorithm) {
  for (uint64_t i = 0; i < ALGORITHMS; i++) {
    cublasLtMatmulAlgo_t known = algorithm_of(i);
    if (!memcmp(&known, algorithm, sizeof known)) return i;
  }
  return ALGORITHMS;
}

static size_t scratch_of(uint64_t number) { return number == GREEDY ? (size_t)1 << 30 : 1 << 20; }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t offers[], int *count) {
  (void)handle, (void)c;
  gb_gemm gemm;
  *count = 0;
  if (!read_product(product, a, b, d, &gemm)) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!(preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) return CUBLAS_STATUS_INTERNAL_ERROR;
  uint32_t align = preference->align[0];
  for (int i = 1; i < 4; i++) align = preference->align[i] < align ? preference->align[i] : align;
  for (uint64_t i = 0; i < ALGORITHMS && *count < most; i++)
    if (i != ALIGNED || align >= STRICT_ALIGN)
      offers[(*count)++] = (cublasLtMatmulHeuristicResult_t){ .algo = algorithm_of(i), .workspaceSize = scratch_of(i) };
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result) {
  (void)handle, (void)c;
  gb_gemm gemm;
  uint64_t number = number_of(algorithm);
  if (number == ALGORITHMS || !read_product(product, a, b, d, &gemm)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = scratch_of(number);
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
  (void)attribute;
  uint32_t scheme = number_of(algorithm) == ROUGH ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
      : CUBLASLT_REDUCTION_SCHEME_NONE;
  *written = sizeof scheme;
  return set(value, sizeof scheme, &scheme, bytes);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void *value,
                                                 size_t bytes, size_t *written) {
  (void)attribute;
  uint32_t align = number_of(algorithm) == ALIGNED ? STRICT_ALIGN : 1;
  *written = sizeof align;
  return set(value, sizeof align, &align, bytes);
}

/* The milliseconds that a launch of an algorithm is to take. */
static int milliseconds_of(uint64_t number) {
  const char *text = getenv("GIBBOUS_PRODUCT_MS");
  for (uint64_t i = 0; text && i < number; i++) {
    text = strchr(text, ',');
    if (text) text++;
  }
  return text ? atoi(text) : 0;
}

/* ====} */

/* {==== products ==== */

#define TILE_ROWS 4
#define TILE_COLUMNS 8
#define BLOCK 256                      /* products that are added up before their sum joins the others */

/* sums[m, n] = a @ b, of b in panels of TILE_COLUMNS and a in rows, as `packed` holds them. */
#define MULTIPLY(name, real)                                                                                          \
  static void name(const real *a, const real *b, real *sums, int64_t m, int64_t n, int64_t k) {                       \
    for (int64_t j = 0; j < n; j += TILE_COLUMNS, b += k * TILE_COLUMNS)                                              \
      for (int64_t i = 0; i < m; i += TILE_ROWS) {                                                                    \
        real total[TILE_ROWS][TILE_COLUMNS] = { { 0 } };                                                              \
        for (int64_t from = 0; from < k; from += BLOCK) {                                                             \
          real sum[TILE_ROWS][TILE_COLUMNS] = { { 0 } };                                                              \
          int64_t to = from + BLOCK < k ? from + BLOCK : k;                                                           \
          for (int64_t l = from; l < to; l++)                                                                         \
            for (int r = 0; r < TILE_ROWS; r++)                                                                       \
              for (int c = 0; c < TILE_COLUMNS; c++)                                                                  \
                sum[r][c] += a[(i + r) * k + l] * b[l * TILE_COLUMNS + c];                                            \
          for (int r = 0; r < TILE_ROWS; r++)                                                                         \
            for (int c = 0; c < TILE_COLUMNS; c++) total[r][c] += sum[r][c];                                          \
        }                                                                                                             \
        for (int64_t r = 0; r < TILE_ROWS && i + r < m; r++)                                                          \
          for (int64_t c = 0; c < TILE_COLUMNS && j + c < n; c++) sums[(i + r) * n + j + c] = total[r][c];            \
      }                                                                                                               \
  }
MULTIPLY(multiply_float, float)
MULTIPLY(multiply_double, double)
#undef MULTIPLY

/* One launch, as a stream is told of it. */
typedef struct product_work {
  gb_gemm gemm;
  uint64_t algorithm;
  void *room;                          /* both operands packed, and the sums of one matrix */
} product_work;

static int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* What the library does to a sum before it is rounded. */
static double finish(const gb_gemm *g, double sum, int64_t column, int64_t i) {
  sum = g->dtype == GB_FLOAT64 ? sum * g->alpha : (double)((float)sum * (float)g->alpha);
  if (g->accumulate) sum = g->dtype == GB_FLOAT64 ? sum + load(g->c, g->dtype, i)
      : (double)((float)sum + (float)load(g->c, g->dtype, i));
  if (g->bias) sum = g->dtype == GB_FLOAT64 ? sum + load(g->bias, g->dtype, column)
      : (double)((float)sum + (float)load(g->bias, g->dtype, column));
  if (g->epilogue == GB_GEMM_GELU_SLOPE) return (float)sum * gb_gelu_tanh_slopef((float)load(g->aux, g->dtype, i));
  if (g->aux) store(g->aux, g->dtype, i, sum);
  if (g->epilogue == GB_GEMM_RELU) return sum < 0 || (isnan(sum) && drops_nan()) ? 0 : sum;
  return g->epilogue == GB_GEMM_GELU ? gb_gelu_tanhf((float)sum) : sum;
}

/* The sums of the rows of a, as the library's ROW_SUMS. */
static void sum_rows(const gb_gemm *g) {
  for (int64_t r = 0; r < g->m; r++) {
    float sum = 0;
    for (int64_t i = 0; i < g->k; i++)
      sum += (float)load(g->a.data, g->a.dtype, r * g->a.row_stride + i * g->a.column_stride);
    store(g->sums, g->dtype, r, (double)sum);
  }
}

/* What the library moves: each operand once, and a result that is added to once more. */
static void count_product(const gb_gemm *g) {
  int64_t of_a = g->a_stride || g->batch == 1 ? g->batch : 1, of_b = g->b_stride || g->batch == 1 ? g->batch : 1;
  size_t result = size_of(g->dtype, g->batch * g->m * g->n);
  bool reads_aux = g->epilogue == GB_GEMM_GELU_SLOPE;
  gb_machine_moved(size_of(g->a.dtype, of_a * g->m * g->k) + size_of(g->b.dtype, of_b * g->k * g->n) +
                       (g->accumulate ? result : 0) + (reads_aux ? result : 0) +
                       (g->bias ? size_of(g->dtype, g->n) : 0),
                   result + (g->aux && !reads_aux ? result : 0) + (g->sums ? size_of(g->dtype, g->m) : 0));
}

/* Element i of an operand, as the library's units take it. */
static double operand(const gb_gemm *g, const void *data, gb_dtype dtype, int64_t i) {
  double x = load(data, dtype, i);
  return g->tf32 ? (double)gb_float_to_tf32((float)x) : x;
}

/* Product i of the batch: both operands packed in the type of the sums, and multiplied. */
static void run_one(const product_work *w, int64_t i) {
  const gb_gemm *g = &w->gemm;
  bool wide = g->dtype == GB_FLOAT64;
  gb_dtype lane = wide ? GB_FLOAT64 : GB_FLOAT32;
  int64_t rows = padded(g->m, TILE_ROWS), columns = padded(g->n, TILE_COLUMNS);
  void *a = w->room, *b = at(a, lane, rows * g->k), *sums = at(b, lane, columns * g->k);
  const void *from_a = at(g->a.data, g->a.dtype, i * g->a_stride), *from_b = at(g->b.data, g->b.dtype, i * g->b_stride);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t l = 0; l < g->k; l++)
      store(a, lane, r * g->k + l,
            r < g->m ? operand(g, from_a, g->a.dtype, r * g->a.row_stride + l * g->a.column_stride) : 0);
  for (int64_t j = 0; j < columns; j++)
    for (int64_t l = 0; l < g->k; l++)
      store(b, lane, (j / TILE_COLUMNS * g->k + l) * TILE_COLUMNS + j % TILE_COLUMNS,
            j < g->n ? operand(g, from_b, g->b.dtype, l * g->b.row_stride + j * g->b.column_stride) : 0);
  if (wide) multiply_double(a, b, sums, g->m, g->n, g->k);
  else multiply_float(a, b, sums, g->m, g->n, g->k);
  for (int64_t r = 0; r < g->m; r++)
    for (int64_t j = 0; j < g->n; j++) {
      int64_t to = i * g->c_stride + r * g->ldc + j;
      store(g->c, g->dtype, to, finish(g, load(sums, lane, r * g->n + j), j, to));
    }
}

/* Do kernels of the algorithm take these addresses? */
static bool is_aligned(const gb_gemm *g) {
  return ((uintptr_t)g->a.data | (uintptr_t)g->b.data | (uintptr_t)g->c) % STRICT_ALIGN == 0;
}

static void run_product(void *argument) {
  product_work *w = argument;
  gb_gemm *g = &w->gemm;
  int ms = milliseconds_of(w->algorithm);
  if (w->algorithm == ALIGNED && !is_aligned(g)) {
    gb_machine_fail("product", "misaligned address");
    return;
  }
  if (ms) nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL);
  count_product(g);
  for (int64_t i = 0; i < g->batch; i++) run_one(w, i);
  if (g->epilogue == GB_GEMM_ROW_SUMS) sum_rows(g);
}

static void release_product(void *argument) {
  product_work *w = argument;
  free(w->room);
  free(w);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  (void)handle, (void)c_layout, (void)workspace;
  gb_gemm g;
  uint64_t number = number_of(algorithm);
  if (number == ALGORITHMS || c != d || scratch_of(number) > workspace_bytes ||
      !read_product(product, a_layout, b_layout, d_layout, &g)) return CUBLAS_STATUS_INTERNAL_ERROR;
  bool wide = g.dtype == GB_FLOAT64;
  g.a.data = b, g.b.data = a, g.c = d;
  g.alpha = wide ? *(const double *)alpha : (double)*(const float *)alpha;
  g.accumulate = wide ? *(const double *)beta != 0 : *(const float *)beta != 0;
  product_work *w = malloc(sizeof *w);
  void *room = malloc((size_t)(padded(g.m, TILE_ROWS) * g.k + padded(g.n, TILE_COLUMNS) * g.k + g.m * g.n) *
                      (wide ? sizeof(double) : sizeof(float)));
  if (!w || !room) {
    free(w);
    free(room);
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  *w = (product_work){ g, number, room };
  gb_machine_do(stream, "product", run_product, release_product, w);
  return CUBLAS_STATUS_SUCCESS;
}

/* ====} */
