/* test_products.c - matrix products at every level of the CPU: each unit that multiplies 16-bit operands, all layouts,
 * sizes on both sides of the kernels' tiles and blocks, and the numbers that such units are known to get wrong.
 *
 * The reference is a sum in double of the same 16-bit numbers. Any order of a float32 sum of k products, each exact in
 * float32, is within k * 2^-24 of the sum of their magnitudes. Levels that this CPU does not run are left out, and
 * said. */
#define _GNU_SOURCE /* sigaltstack */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/float.h"
#include "engine.h"

static const char *const levels[] = { "baseline", "v3", "v4", "v4-bf16", "v4-amx" };
enum { LEVELS = sizeof levels / sizeof *levels };

static double widen(gb_dtype dtype, uint16_t bits) {
  return dtype == GB_FLOAT16 ? (double)gb_float16_to_float(bits) : (double)gb_bfloat16_to_float(bits);
}
static uint16_t narrow(gb_dtype dtype, double value) {
  return dtype == GB_FLOAT16 ? gb_float_to_float16((float)value) : gb_float_to_bfloat16((float)value);
}
/* Half a unit in the last place, of a result of 1. */
static double rounding_of(gb_dtype dtype) { return dtype == GB_FLOAT16 ? 0x1p-11 : dtype == GB_BFLOAT16 ? 0x1p-8
                                            : 0x1p-24; }

/* {==== operands ==== */

/* How a matrix lies in memory: row-major, column-major, rows further apart, or no two elements together. */
typedef enum layout { ROWS, COLUMNS, WIDE_ROWS, SCATTERED, LAYOUTS } layout;

/* A batch of matrices in 16 bits; batch stride 0: all are one. */
typedef struct matrix { gb_tensor *storage, *view; gb_dtype dtype; int64_t stride[3]; } matrix;

static matrix new_matrix(gb_context *c, gb_dtype dtype, int64_t batch, int64_t rows, int64_t columns, layout how,
                         uint64_t key) {
  matrix m = { .dtype = dtype };
  int64_t row = how == COLUMNS ? 1 : how == ROWS ? columns : how == WIDE_ROWS ? columns + 3 : 2 * columns + 1,
      column = how == COLUMNS ? rows : how == SCATTERED ? 2 : 1;
  int64_t one = rows * row + columns * column + 1, shared = key % 3 == 0 ? 0 : one, numel = batch * one;
  m.stride[0] = batch > 1 ? shared : 0, m.stride[1] = row, m.stride[2] = column;
  CHECK(gb_tensor_new(c, dtype, 1, &numel, CPU, &m.storage) == GB_OK);
  for (int64_t i = 0; i < numel; i++)
    ((uint16_t *)gb_data(m.storage))[i] = narrow(dtype, noise(key, i) * (i % 5 == 0 ? 30 : 1));
  CHECK(GB_RUN(c, as_strided, &m.view, .x = m.storage, .shape = gb_attr_ints(3, SHAPE(batch, rows, columns)),
               .strides = gb_attr_ints(3, m.stride), .offset = gb_attr_int(0)) == GB_OK);
  return m;
}

static void free_matrix(matrix *m) { gb_tensor_release(m->view), gb_tensor_release(m->storage); }

static uint16_t *element(const matrix *m, int64_t batch, int64_t row, int64_t column) {
  return (uint16_t *)gb_data(m->storage) + batch * m->stride[0] + row * m->stride[1] + column * m->stride[2];
}
static double value(const matrix *m, int64_t batch, int64_t row,
                    int64_t column) { return widen(m->dtype, *element(m, batch, row, column)); }

/* x @ y in a dtype; the caller's. */
static gb_tensor *product(const matrix *x, const matrix *y, gb_dtype dtype) {
  gb_attr attr = gb_attr_int((int64_t)dtype);
  return run2(GB_OP_matmul, x->view, y->view, &attr);
}

static double result(gb_tensor *z, int64_t i) {
  gb_dtype dtype = gb_tensor_dtype(z);
  return dtype == GB_FLOAT32 ? (double)((const float *)gb_data(z))[i] : widen(dtype, ((const uint16_t *)gb_data(z))[i]);
}

/* ====} */

/* {==== against sums in double ==== */

/* How many results lie outside their bounds. */
static int64_t count_wrong(const matrix *x, const matrix *y, gb_tensor *z, int64_t batch, int64_t m, int64_t k,
                           int64_t n) {
  double rounding = rounding_of(gb_tensor_dtype(z));
  int64_t wrong = 0;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < n; j++) {
        double sum = 0, magnitude = 0;
        for (int64_t p = 0; p < k; p++) {
          double term = value(x, b, i, p) * value(y, b, p, j);
          sum += term, magnitude += fabs(term);
        }
        double bound = (double)k * 0x1p-24 * magnitude + rounding * (fabs(sum) + (double)k * 0x1p-24 * magnitude) +
            0x1p-25;
        wrong += !(fabs(result(z, (b * m + i) * n + j) - sum) <= bound);
      }
  return wrong;
}

/* One product at one level, by one and by two threads. */
static void check_product(gb_context *c, const char *level, gb_dtype dtype, gb_dtype into, int64_t batch, int64_t m,
                          int64_t k, int64_t n,
                          layout left, layout right, uint64_t key) {
  matrix x = new_matrix(c, dtype, batch, m, k, left, key), y = new_matrix(c, dtype, batch, k, n, right, key + 1);
  CHECK(gb_set_num_threads(c, 1) == GB_OK);
  gb_tensor *one = product(&x, &y, into);
  CHECK(gb_set_num_threads(c, 2) == GB_OK);
  gb_tensor *two = product(&x, &y, into);
  int64_t wrong = count_wrong(&x, &y, one, batch, m, k, n);
  if (wrong)
    fprintf(stderr, "%s %s: %d of %d x %d x %d x %d, layouts %d and %d\n", level, gb_dtype_name(dtype), (int)wrong,
            (int)batch, (int)m, (int)k, (int)n, left, right);
  CHECK(wrong == 0);
  CHECK(hash_tensor(one, 1) == hash_tensor(two, 1));
  gb_tensor_release(one), gb_tensor_release(two);
  free_matrix(&x), free_matrix(&y);
}

/* 1 .. most, by a key. */
static int64_t size_by(uint64_t key, int64_t i, int64_t most) { return 1 +
                                                                (int64_t)((noise(key, i) + 1) / 2 * (double)most); }

static void test_sizes(gb_context *c, const char *level) {
  const gb_dtype dtypes[] = { GB_BFLOAT16, GB_FLOAT16 };
  for (int i = 0; i < 256; i++) {
    gb_dtype dtype = dtypes[i % 2], into = i / 2 % 2 ? GB_FLOAT32 : dtype;
    check_product(c, level, dtype, into, i % 7 == 0 ? 3 : 1, size_by(1, i, 70), size_by(2, i, 70), size_by(3, i, 70),
                  (layout)(i / 4 % LAYOUTS),
                  (layout)(i / 16 % LAYOUTS), (uint64_t)i);
  }
  const int64_t large[][3] = { { 300, 70, 530 }, { 33, 1100, 65 }, { 250, 513, 520 }, { 1, 600, 700 }, { 700, 600, 1 },
                               { 257, 257, 33 } };
  for (int i = 0; i < 24; i++) {
    const int64_t *s = large[i / 4];
    check_product(c, level, dtypes[i % 2], i / 2 % 2 ? GB_FLOAT32 : dtypes[i % 2], 1, s[0], s[1], s[2],
                  (layout)(i % 3 % 2), (layout)(i % 5 % 2), (uint64_t)i + 500);
  }
}

/* ====} */

/* {==== hard numbers ==== */

/* Small enough that sums are exact in any order: then every level gives the same bits, subnormal ones too. */
static void check_exact(gb_context *c, gb_dtype dtype, double x_scale, double y_scale) {
  enum { M = 40, K = 50, N = 37 };
  matrix x = new_matrix(c, dtype, 1, M, K, ROWS, 1), y = new_matrix(c, dtype, 1, K, N, ROWS, 2);
  for (int i = 0; i < M; i++)
    for (int p = 0; p < K; p++) *element(&x, 0, i, p) = narrow(dtype, x_scale * ((i * 7 + p * 3) % 17 - 8));
  for (int p = 0; p < K; p++)
    for (int j = 0; j < N; j++) *element(&y, 0, p, j) = narrow(dtype, y_scale * ((p * 5 + j * 11) % 13 - 6));
  gb_tensor *z = product(&x, &y, GB_FLOAT32), *low = product(&x, &y, dtype);
  int wrong = 0, rounded_wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      double sum = 0;
      for (int p = 0; p < K; p++) sum += value(&x, 0, i, p) * value(&y, 0, p, j);
      wrong += (float)sum != ((const float *)gb_data(z))[i * N + j];
      rounded_wrong += widen(dtype, narrow(dtype, sum)) != result(low, i * N + j);
    }
  if (wrong || rounded_wrong)
    fprintf(stderr, "%s scaled by %g and %g: %d and %d\n", gb_dtype_name(dtype), x_scale, y_scale, wrong,
            rounded_wrong);
  CHECK(wrong == 0 && rounded_wrong == 0);
  gb_tensor_release(z), gb_tensor_release(low);
  free_matrix(&x), free_matrix(&y);
}

/* bfloat16: operands below 2^-126, products below it, and both sides of it. The units take all of that for zero.
 * float16: the same of its own subnormals, and the largest. */
static void test_small_numbers(gb_context *c) {
  const double scales[][2] = { { 0x1p-133, 1 }, { 1, 0x1p-133 }, { 0x1p-130, 0x1p20 }, { 0x1p-70, 0x1p-70 },
                               { 0x1p-60, 0x1p-66 }, { 0x1p-63, 0x1p-63 },
                               { 0x1p-59, 0x1p-59 }, { 0x1p-56, 0x1p-56 }, { 1, 1 }, { 0x1p60, 0x1p-133 } };
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) check_exact(c, GB_BFLOAT16, scales[i][0], scales[i][1]);
  check_exact(c, GB_FLOAT16, 0x1p-24, 1);
  check_exact(c, GB_FLOAT16, 0x1p-24, 0x1p-24);
  check_exact(c, GB_FLOAT16, 8188, 0x1p-24);
}

/* One element of x is infinite, NaN, or one whose square overflows; what comes out is what IEEE arithmetic says, and
 * only where it may. */
static void check_special(gb_context *c, gb_dtype dtype, uint16_t bits, double other) {
  enum { M = 35, K = 40, N = 33, ROW = 34, AT = 17 };
  matrix x = new_matrix(c, dtype, 1, M, K, ROWS, 1), y = new_matrix(c, dtype, 1, K, N, COLUMNS, 2);
  *element(&x, 0, ROW, AT) = bits;
  *element(&y, 0, AT, 0) = narrow(dtype, other);
  *element(&y, 0, AT, 1) = 0;
  gb_tensor *z = product(&x, &y, GB_FLOAT32);
  const float *sums = (const float *)gb_data(z);
  int wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      double sum = 0;
      for (int p = 0; p < K; p++) sum += value(&x, 0, i, p) * value(&y, 0, p, j);
      float expected = (float)sum, found = sums[i * N + j];
      wrong += isnan(expected) ? !isnan(found) : isinf(expected) ? expected != found : !isfinite(found);
    }
  CHECK(wrong == 0);
  gb_tensor_release(z);
  free_matrix(&x), free_matrix(&y);
}

static void test_special_numbers(gb_context *c) {
  const uint16_t bfloat16[] = { 0x7f80, 0xff80, 0x7fc0, 0x7f81 }, float16[] = { 0x7c00, 0xfc00, 0x7e00, 0x7c01 };
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 3; j++) {
      const double others[] = { 2, -1, INFINITY };
      check_special(c, GB_BFLOAT16, bfloat16[i], others[j]);
      check_special(c, GB_FLOAT16, float16[i], others[j]);
    }
  check_special(c, GB_BFLOAT16, 0x7f7f, 0x1p100); /* finite operands, a product that is not */
  check_special(c, GB_FLOAT16, 0x7bff, 65504);
}

/* ====} */

/* {==== what is built on products ==== */

/* activation(x @ weight^T + bias), the epilogue before the one rounding, and attention: every level against the first,
 * in 16 bits. */
static void collect(gb_context *c, gb_dtype dtype, double *into, int count) {
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(150, 300), 1),
      *weight = new_noise(c, GB_FLOAT32, 2, SHAPE(70, 300), 2);
  gb_tensor *bias = new_noise(c, GB_FLOAT32, 1, SHAPE(70), 3),
      *heads = new_noise(c, GB_FLOAT32, 4, SHAPE(2, 3, 140, 24), 4), *low[4], *wide[] = { x, weight, bias, heads };
  for (int i = 0; i < 4; i++) CHECK(gb_op_cast(c, wide[i], dtype, &low[i]) == GB_OK);
  gb_tensor *in[] = { low[0], low[1], low[2] }, *all[] = { low[3], low[3], low[3], NULL }, *out[GB_MAX_OUT] = { NULL },
      *y[GB_MAX_OUT] = { NULL };
  gb_attr gelu = { .given = true, .text = "gelu" }, causal[GB_MAX_ATTRS] = { gb_attr_int(1) };
  CHECK(gb_apply(c, GB_OP_linear, in, 3, &gelu, out) == GB_OK);
  CHECK(gb_apply(c, GB_OP_scaled_dot_product_attention, all, 4, causal, y) == GB_OK);
  for (int i = 0; i < count / 2; i++) into[i] = result(out[0], i), into[count / 2 + i] = result(y[0], i);
  for (int i = 0; i < GB_MAX_OUT; i++) gb_tensor_release(out[i]), gb_tensor_release(y[i]);
  for (int i = 0; i < 4; i++) gb_tensor_release(wide[i]), gb_tensor_release(low[i]);
}

static void test_epilogues_and_attention(gb_context *c, const double (*first)[16000], bool is_first,
                                         double (*own)[16000]) {
  const gb_dtype dtypes[] = { GB_BFLOAT16, GB_FLOAT16 };
  for (int d = 0; d < 2; d++) {
    collect(c, dtypes[d], own[d], 16000);
    int wrong = 0;
    /* sums that differ in their last bits may round to neighbours: two units of the 16 bits, near 1 */
    for (int i = 0; !is_first && i < 16000; i++)
      wrong += !(fabs(own[d][i] - first[d][i]) <= 4 * rounding_of(dtypes[d]) * (fabs(first[d][i]) + 0x1p-6));
    CHECK(wrong == 0);
  }
}

/* ====} */

/* {==== tiny products ==== */

/* The upper left corner of a matrix, where it lies. */
static gb_tensor *corner(gb_context *c, gb_tensor *x, int64_t rows, int64_t columns, int64_t row_stride) {
  gb_tensor *view = NULL;
  CHECK(GB_RUN(c, as_strided, &view, .x = x, .shape = gb_attr_ints(2, SHAPE(rows, columns)),
               .strides = gb_attr_ints(2, SHAPE(row_stride, 1)), .offset = gb_attr_int(0)) == GB_OK);
  return view;
}

/* What is too small to be packed has the bits of a corner of what is not, with the fused multiply-adds of a level or
 * without. */
static void test_tiny(gb_context *c, const char *level) {
  enum { LARGE = 70 };
  const int64_t sizes[][3] = { { 2, 1, 2 }, { 3, 5, 7 }, { 8, 8, 8 }, { 5, 16, 9 }, { 2, 128, 8 }, { 4, 200, 4 },
                               { 2, 3, 64 }, { 2, 0, 3 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2], wrong = 0;
    gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(LARGE, k), 1),
        *y = new_noise(c, GB_FLOAT32, 2, SHAPE(k, LARGE), 2);
    gb_tensor *left = corner(c, x, m, k, k), *right = corner(c, y, k, n, LARGE);
    gb_tensor *whole = run2(GB_OP_matmul, x, y, NULL), *part = run2(GB_OP_matmul, left, right, NULL);
    for (int64_t r = 0; r < m; r++)
      wrong += memcmp(gb_data(part) + r * n * 4, gb_data(whole) + r * LARGE * 4, (size_t)n * 4) != 0;
    if (wrong) fprintf(stderr, "%s: %d x %d x %d\n", level, (int)m, (int)k, (int)n);
    CHECK(wrong == 0);
    gb_tensor *all[] = { x, y, left, right, whole, part };
    for (int t = 0; t < 6; t++) gb_tensor_release(all[t]);
  }
}

/* ====} */

/* A thread whose alternate signal stack has no room for tiles: Linux lets the process have none, and the engine opens
 * without. Nor does a level that does not need them ask. In a process of its own, before anything has asked. */
static void test_small_signal_stacks(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    static char room[4096];
    stack_t small = { .ss_sp = room, .ss_size = sizeof room };
    bool possible = sigaltstack(&small, NULL) == 0; /* Linux may be set up to refuse it whatever we do */
    gb_context *best = open_context(1, NULL), *tiles = possible ? open_context(1, "v4-amx") : NULL;
    bool good = best && !tiles && (!possible || sigaltstack(&small, NULL) == 0);
    gb_context_close(best);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  test_small_signal_stacks();
  static double first[2][16000], other[2][16000];
  for (int l = 0; l < LEVELS; l++) {
    gb_context *c = open_context(2, levels[l]);
    if (!c) { fprintf(stderr, "this CPU, or this build, has no level %s: left out\n", levels[l]); continue; }
    test_sizes(c, levels[l]);
    test_small_numbers(c);
    test_special_numbers(c);
    test_tiny(c, levels[l]);
    test_epilogues_and_attention(c, first, l == 0, l == 0 ? first : other);
    gb_context_close(c);
  }
  return check_report();
}
