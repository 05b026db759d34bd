/* cuda/product.h - a matrix product as ops need it: any float dtypes, any layouts, any activation, batches of any rank.
 *
 * matmul.c converts it to what the library takes (gemm.h) and does what the library cannot. */
#ifndef GB_CUDA_PRODUCT_H
#define GB_CUDA_PRODUCT_H

#include "cuda/gemm.h"
#include "ops/activation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c[i] = activation(alpha * a[i] @ b[i] + bias) for every i of the batch (strides in elements, 0 where broadcast);
 * results lie one behind the other, row-major. Sums are float32 (float64 where an operand or the result is) and rounded
 * once. */
typedef struct gb_product {
  int64_t m, n, k;
  gb_gemm_matrix a, b;                 /* of the first of the batch; both strides may be anything */
  void *c;
  gb_dtype dtype;                      /* of c and pre */
  const gb_cuda_tensor *bias;          /* [n], or NULL */
  void *pre;                           /* like c: receives the activation's argument; or NULL */
  gb_activation activation;
  double alpha;                        /* 0 stands for 1 */
  bool accumulate;                     /* add to what c holds; without bias, pre and activation; float32 or float64, in
                                          which the operands fit */
  gb_gemm_epilogue extra;              /* what the library may do beside, or leave: GELU_SLOPE at kept, or ROW_SUMS of a
                                          into sums; or PLAIN */
  const void *kept;                    /* like c */
  void *sums;                          /* [m], of dtype */
  bool *fused;                         /* set where the library did the extra */
  int batch_ndim;
  int64_t batch[GB_MAX_NDIM], a_stride[GB_MAX_NDIM], b_stride[GB_MAX_NDIM];
} gb_product;

/* Run a product. */
gb_status gb_product_run(gb_cuda_call *call, const gb_product *product);
/* The dtype to compute this product in: float64 if any of the three is float64; else the dtype that holds both operands
 * exactly. */
gb_dtype gb_product_dtype(gb_dtype a, gb_dtype b, gb_dtype result);
/* A matrix [rows, columns] in dtype and in a layout that the library takes: as it is, or a copy in scratch. */
gb_status gb_product_prepare(gb_cuda_call *call, gb_gemm_matrix *matrix, int64_t rows, int64_t columns, gb_dtype dtype);

/* {---- product.cu ---- */

/* out = activation(sums + bias), and pre = sums + bias, each rounded once to dtype: rows of n. sums are float32 or
 * float64 (lane) and may be out itself, or NULL for zeros. Moves sums once in, and pre and out once out. */
void gb_product_finish(gb_cuda_call *call, const void *sums, gb_dtype lane, int64_t rows, int64_t n,
                       const gb_cuda_tensor *bias, gb_activation activation,
                       void *pre, void *out, gb_dtype dtype);

/* ----} */

#ifdef __cplusplus
}
#endif
#endif
