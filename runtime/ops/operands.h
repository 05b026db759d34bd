/* ops/operands.h - the operands of a matrix product: pure functions of shapes and strides, shared by all backends.
 *
 * Batches that share one second operand become rows of the first, so that a product with one matrix is one large
 * product. */
#ifndef GB_OPS_OPERANDS_H
#define GB_OPS_OPERANDS_H

#include "gibbous.h"

typedef struct gb_operand { int ndim; const int64_t *shape, *stride; } gb_operand;

/* x [..., m, k] @ y [..., k, n], with the batch dims that remain. A stride is 0 where an operand is broadcast. */
typedef struct gb_batched {
  int64_t m, n, k;
  struct { int64_t row, column; } x, y; /* strides within a matrix */
  int ndim;
  int64_t batch[GB_MAX_NDIM], x_stride[GB_MAX_NDIM], y_stride[GB_MAX_NDIM];
} gb_batched;

/* The stride of batch dim i of ndim (aligned at the end) in t; 0 where broadcast. */
static inline int64_t gb_operand_batch_stride(gb_operand t, int i, int ndim) {
  int own = i - (ndim - (t.ndim > 2 ? t.ndim - 2 : 0));
  return own < 0 || t.shape[own] == 1 ? 0 : t.stride[own];
}

/* Append a batch dim, or make it one with the last where both operands allow. */
static inline void gb_batched_add(gb_batched *b, int64_t size, int64_t x_stride, int64_t y_stride) {
  if (size == 1) return;
  int last = b->ndim - 1;
  if (last >= 0 && b->x_stride[last] == size * x_stride && b->y_stride[last] == size * y_stride) b->batch[last] *= size;
  else b->batch[last = b->ndim++] = size;
  b->x_stride[last] = x_stride;
  b->y_stride[last] = y_stride;
}

/* Batches over which y stays the same become rows of x, where x's rows lie evenly. */
static inline void gb_batched_fold(gb_batched *b) {
  while (b->ndim > 0) {
    int last = b->ndim - 1;
    if (b->y_stride[last] != 0 || (b->m > 1 && b->x_stride[last] != b->m * b->x.row)) return;
    if (b->m == 1) b->x.row = b->x_stride[last];
    b->m *= b->batch[last];
    b->ndim--;
  }
}

/* matmul of x and y, whose result has z_ndim dims: a vector x is one row, a vector y one column. */
static inline gb_batched gb_batched_of(gb_operand x, gb_operand y, const int64_t *z_shape, int z_ndim) {
  bool row = x.ndim < 2, column = y.ndim < 2;
  int ndim = z_ndim - !row - !column;
  gb_batched b = { .m = row ? 1 : x.shape[x.ndim - 2], .n = column ? 1 : y.shape[y.ndim - 1],
                   .k = x.shape[x.ndim - 1] };
  b.x.row = row ? 0 : x.stride[x.ndim - 2], b.x.column = x.stride[x.ndim - 1];
  b.y.row = y.stride[column ? 0 : y.ndim - 2], b.y.column = column ? 0 : y.stride[y.ndim - 1];
  for (int i = 0; i < ndim; i++)
    gb_batched_add(&b, z_shape[i], gb_operand_batch_stride(x, i, ndim), gb_operand_batch_stride(y, i, ndim));
  gb_batched_fold(&b);
  return b;
}

/* The leading dims of x as evenly spaced rows; false if they are not. */
static inline bool gb_operand_rows(gb_operand x, int64_t *rows, int64_t *row_stride) {
  bool even = true;
  *rows = 1;
  *row_stride = 0;
  for (int i = x.ndim - 2; i >= 0; i--) {
    if (x.shape[i] == 1) continue;
    if (*rows == 1) *row_stride = x.stride[i];
    else even = even && x.stride[i] == *rows * *row_stride;
    *rows *= x.shape[i];
  }
  return even || *rows == 0 || x.shape[x.ndim - 1] == 0;
}

/* Can a BLAS library take this matrix as it lies: row by row or column by column, with or without a gap? */
static inline bool gb_operand_is_regular(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  bool by_rows = (columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns);
  bool by_columns = (rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows);
  return by_rows || by_columns;
}

#endif
