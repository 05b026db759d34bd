/* cpu/gemm.h - matrix products over batches, cut into chunks for the context's threads, with a fused epilogue. */
#ifndef GB_CPU_GEMM_H
#define GB_CPU_GEMM_H

#include "cpu/cpu.h"
#include "cpu/rows.h"
#include "ops/activation.h"

/* {---- cpu/gemm_kernel.c ---- */

/* Blocks that packed panels cover: an a panel of 240 KB and a b panel of 512 KB of float32. */
enum { GB_BLOCK_M = 240, GB_BLOCK_N = 512, GB_BLOCK_K = 256 };

/* How operands are read and multiplied. */
typedef struct gb_product_how {
  bool tf32;                   /* float32 operands are rounded to 10 bits of mantissa as they are read, where lanes are
                                  float32 */
  gb_unit unit;                /* what multiplies two bfloat16 or two float16 operands where it is faster */
} gb_product_how;

static inline gb_product_how gb_product_how_of(const gb_context *context) { return (gb_product_how){ context->tf32,
    gb_cpu(context)->unit }; }

#define gb_block_product GB_CPU_NAME(block_product)
#define gb_block_product_scratch GB_CPU_NAME(block_product_scratch)
#define gb_packed_columns GB_CPU_NAME(packed_columns)
#define gb_packed_bytes GB_CPU_NAME(packed_bytes)
#define gb_pack_columns GB_CPU_NAME(pack_columns)
/* The whole of b[k, n] packed beforehand, for many products of rows with it: bytes it takes, and columns with those
 * that fill the last panel. Columns first .. first + count - 1 of it are written to their place in `to`, aligned to 64,
 * first a multiple of 32; scratch as for a product of these. how.unit: what is to take both operands, of bfloat16, or
 * none; the same in all of these and in the products. */
typedef struct gb_packed {
  const char *data;
  int64_t columns;             /* gb_packed_columns */
  int64_t first;               /* column of it at which b begins, a multiple of 32 */
} gb_packed;
int64_t gb_packed_columns(gb_product_how how, gb_lane lane, int64_t n);
size_t gb_packed_bytes(gb_product_how how, gb_lane lane, int64_t n, int64_t k);
void gb_pack_columns(gb_product_how how, gb_lane lane, int64_t first, int64_t count, int64_t k, const gb_matrix *b,
                     int64_t columns, void *to,
                     void *scratch);

/* c[m, n] = beta * c + alpha * a @ b with c in lanes (float32 or float64), a and b of any float dtype and any strides;
 * serial. What beta 0 finds in c does not count; with beta 0 and k at most GB_BLOCK_K, dtype may also be one of 16
 * bits, to which sums are rounded. packed: b as gb_pack_columns left it for the same `how`, or NULL.
 * scratch: that many bytes, aligned to 64. */
size_t gb_block_product_scratch(gb_product_how how, gb_lane lane, int64_t m, int64_t n, int64_t k);
void gb_block_product(gb_product_how how, gb_lane lane, int64_t m, int64_t n, int64_t k, double alpha,
                      const gb_matrix *a, const gb_matrix *b,
                      const gb_packed *packed, double beta, void *c, int64_t ldc, gb_dtype dtype, void *scratch);

/* ----} */

/* {---- cpu/gemm_bf16.c ---- */

/* Files of level v4 have them; whether the CPU does is asked when a context opens. */
#if defined(__x86_64__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define GB_HAVE_BF16_UNITS 1
#else
#define GB_HAVE_BF16_UNITS 0
#endif

/* Does the unit multiply operands of these dtypes? */
static inline bool gb_unit_takes(gb_product_how how, gb_dtype a, gb_dtype b) {
  return a == b && ((a == GB_BFLOAT16 && how.unit != GB_UNIT_NONE) || (a == GB_FLOAT16 && how.unit == GB_UNIT_TILES));
}

#define gb_bf16_product GB_CPU_NAME(bf16_product)
#define gb_bf16_product_scratch GB_CPU_NAME(bf16_product_scratch)
#define gb_bf16_packed_columns GB_CPU_NAME(bf16_packed_columns)
#define gb_bf16_packed_bytes GB_CPU_NAME(bf16_packed_bytes)
#define gb_bf16_pack_columns GB_CPU_NAME(bf16_pack_columns)
/* gb_block_product where the unit takes the operands, lanes are float32 and k is not 0: the same but for the order of
 * the sums. packed: NULL, or b as gb_bf16_pack_columns left it, of bfloat16. scratch: that many bytes, then those that
 * gb_block_product itself needs. */
size_t gb_bf16_product_scratch(int64_t m, int64_t n, int64_t k);
void gb_bf16_product(gb_product_how how, int64_t m, int64_t n, int64_t k, double alpha, const gb_matrix *a,
                     const gb_matrix *b, const gb_packed *packed, double beta, void *c, int64_t ldc, gb_dtype dtype,
                     void *scratch);
int64_t gb_bf16_packed_columns(int64_t n);
size_t gb_bf16_packed_bytes(int64_t n, int64_t k);
void gb_bf16_pack_columns(int64_t first, int64_t count, int64_t k, const gb_matrix *b, int64_t columns, void *to);

/* ----} */

/* {---- cpu/gemm.c ---- */

/* What happens to an element between the sum over k and the one rounding: + bias[column], keep it in pre, apply the
 * activation. */
typedef struct gb_epilogue {
  const void *bias;            /* [n], or NULL */
  gb_dtype bias_dtype;
  int64_t bias_stride;
  void *pre;                   /* like c, receives the argument of the activation; or NULL */
  gb_activation activation;
} gb_epilogue;

/* c[i] = beta * c[i] + a[i] @ b[i] for every i of a batch of any rank (strides in elements, 0 where broadcast). The
 * results are row-major, m * ldc elements apart. Sums are float32 (float64 for a float64 result) and are rounded once.
 * beta other than 0 is for float32 and float64 results; it meets the sum of every piece of k, so what is large in c
 * costs bits of each. add meets the whole sum alone, with the bits of a product and an addition. */
typedef struct gb_product {
  int64_t m, n, k;
  gb_matrix a, b;              /* of the first of the batch; here both strides may be anything */
  void *c;
  int64_t ldc;                 /* from row to row of c and of pre, at least n */
  gb_dtype dtype;
  float beta;
  bool add;                    /* add the whole sums to what c holds, float32 or float64; without beta and epilogue */
  bool over_rows;              /* k counts rows of a batch, of which nobody knows single sums: it may be cut */
  gb_epilogue epilogue;
  int batch_ndim;
  int64_t batch[GB_MAX_NDIM], a_stride[GB_MAX_NDIM], b_stride[GB_MAX_NDIM];
} gb_product;

#define gb_product_run GB_CPU_NAME(product_run)
/* Run a product on the context's threads. The partition depends on the shape alone, and splits k only over_rows. */
gb_status gb_product_run(gb_op_call *call, const gb_product *product);

/* ----} */

#endif
