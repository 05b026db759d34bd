/* cuda/gemm.h - the seam to the library of matrix products: one product, or a batch of them an even distance apart.
 *
 * gemm.c implements it with cuBLASLt, which tests/cuda_on_cpu/cublaslt.c stands in for. What the library cannot do
 * (other layouts, mixed dtypes, other activations) is brought to this form by matmul.c. */
#ifndef GB_CUDA_GEMM_H
#define GB_CUDA_GEMM_H

#include "cuda/call.h"

struct gb_tuned;

/* Products of one launch, at most: with more, cuBLASLt has no algorithm for some shapes from 65,536 on. A power of two,
 * so that where the next launch begins is aligned like the first. */
#define GB_GEMM_BATCH 32768

/* A matrix whose element (r, c) lies at data + r * row_stride + c * column_stride. One stride is 1 and the other at
 * least the size of the dimension that it steps over; strides of a dimension of size 1 do not count. */
typedef struct gb_gemm_matrix { const void *data; gb_dtype dtype; int64_t row_stride, column_stride; } gb_gemm_matrix;

/* What happens to the sums before they are rounded. Left out, of what the library has: the derivative of ReLU, which
 * goes by a bit mask that forward keeps. No document says which bit an argument of 0 gets, or a NaN; CUTLASS sets it at
 * 0 and answers both ways at NaN. Ours is 0 at 0 and passes at NaN, as on the CPU: rows of zeros with a bias of zeros
 * would get another gradient. And sums of the result's columns (a bias gradient) would be rounded to the result's 16
 * bits, where ROW_SUMS of the product after it stay in float32. */
typedef enum gb_gemm_epilogue {
  GB_GEMM_PLAIN,
  GB_GEMM_RELU,           /* max(c, 0); some libraries make 0 of NaN: relu.h finds out */
  GB_GEMM_GELU,           /* gelu_tanh(c); c itself, rounded, goes to aux if there is one */
  GB_GEMM_GELU_SLOPE,     /* c times the derivative of gelu_tanh at aux, without bias */
  GB_GEMM_ROW_SUMS,       /* c; the sums of the rows of a, not scaled by alpha, go to sums; without bias */
  GB_GEMM_EPILOGUES
} gb_gemm_epilogue;

/* c[i] = epilogue(beta * c[i] + alpha * a[i] @ b[i] + bias), row-major, accumulated in float32 (float64 for float64)
 * and rounded once. a and b have one dtype. The dtype of c is theirs, or float32 where they have 16 bits. */
typedef struct gb_gemm {
  int64_t m, n, k;                     /* all at least 1 */
  gb_gemm_matrix a, b;                 /* [m, k] and [k, n] */
  void *c;                             /* [m, n] */
  int64_t ldc;                         /* from row to row of c and of aux, at least n */
  gb_dtype dtype;                      /* of c, bias, aux and sums */
  int64_t batch, a_stride, b_stride, c_stride; /* products, 1 to GB_GEMM_BATCH, and the distances between them in
                                                  elements */
  double alpha;
  bool accumulate, tf32;               /* beta is 1, not 0; float32 operands may be rounded to 10 bits of mantissa */
  gb_gemm_epilogue epilogue;           /* with batch 1 only */
  const void *bias;                    /* [n], or NULL */
  void *aux;                           /* like c, or NULL; read by a slope */
  void *sums;                          /* [m], or NULL */
} gb_gemm;

/* Can the library fuse this product's epilogue? GELU and its slope want 16 bits, and aux in rows of a multiple of 8
 * elements, and the slope sums of more than one product; sums of rows want a to lie column after column. A bias, and
 * sums, begin at a multiple of 16 bytes: the kernels of some versions load them by so many, which no preference tells
 * (Marian, src/tensors/gpu/prod.cpp, met it on an A100). */
static inline bool gb_gemm_fuses(const gb_gemm *gemm) {
  bool short_floats = gb_is_16bit(gemm->dtype);
  if (((uintptr_t)gemm->bias | (uintptr_t)gemm->sums) % 16) return false;
  if (gemm->dtype == GB_FLOAT64) return gemm->epilogue == GB_GEMM_PLAIN && !gemm->bias;
  if (gemm->epilogue == GB_GEMM_ROW_SUMS)
    return gemm->a.row_stride == 1 && gemm->a.column_stride >= gemm->m && gemm->m > 1 && gemm->k > 1;
  if (gemm->epilogue != GB_GEMM_GELU && gemm->epilogue != GB_GEMM_GELU_SLOPE) return true;
  if (gemm->epilogue == GB_GEMM_GELU_SLOPE && gemm->k == 1) return false;
  return short_floats && (!gemm->aux || (gemm->ldc % 8 == 0 && (uintptr_t)gemm->aux % 16 == 0));
}

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gb_gemms gb_gemms;      /* the library's handle, and what was prepared per shape */

void gb_gemms_close(gb_gemms *gemms);  /* NULL is fine */

/* Which algorithms multiply: the library's own choice, or that of a table (choices.h). While tuning is on, what the
 * library offers for a product that is new since then is timed, which waits, and the fastest joins the table. */
gb_status gb_gemms_tune(gb_cuda_call *call, bool on);
/* Read a table, if there is a text, and tell what there is. Where the text is wrong nothing changes. */
gb_status gb_gemms_tuned(gb_cuda_call *call, const char *text, size_t bytes, struct gb_tuned *out);
/* The table as text, as snprintf writes it. */
size_t gb_gemms_table(const gb_gemms *gemms, char *out, size_t room);
/* Launch a product on the call's stream; the first one opens the library. What gb_gemm_fuses refuses is not asked for.
 * GB_EUNSUPPORTED: the library has no algorithm for it, and nothing was launched. */
gb_status gb_gemm_run(gb_cuda_call *call, const gb_gemm *gemm);

#ifdef __cplusplus
}
#endif
#endif
