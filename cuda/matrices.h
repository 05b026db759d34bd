/* cuda/matrices.h - kernels that stand around the routines of cuSOLVER: on `count` matrices that lie one after another,
 * each column by column, of float32 or float64. linalg.c has what they serve. */
#ifndef GB_CUDA_MATRICES_H
#define GB_CUDA_MATRICES_H

#include "cuda/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gb_matrices { void *data; gb_dtype dtype; int64_t rows, columns, count; } gb_matrices;

/* Set the fault of a matrix that has an element which is not finite, and put 0 in its place: some routines would not
 * end. `fault` [count] is 0 before. */
void gb_matrices_check(gb_stream stream, gb_matrices m, int fault_kind, int *fault);
/* The unit matrix. */
void gb_matrices_unit(gb_stream stream, gb_matrices m);
/* 0 in the other triangle; 1 on the diagonal where it is said to be. */
void gb_matrices_triangle(gb_stream stream, gb_matrices m, bool upper, bool ones);
/* Set the fault of square matrices that have a 0 on the diagonal, where they have none yet. */
void gb_matrices_diagonal(gb_stream stream, gb_matrices m, int fault_kind, int *fault);
/* Pivots that exchange nothing: [count, rows], from 1. */
void gb_matrices_no_pivots(gb_stream stream, int64_t rows, int64_t count, int *pivots);
/* Of LU and its pivots: the determinants to `value`, or, with `sign`, their signs and the logarithms of their
 * magnitudes. */
void gb_matrices_determinant(gb_stream stream, gb_matrices lu, const int *pivots, void *sign, void *value);
/* Divide each column by its number of s [count, columns], where that is above atol and rtol times the first; the others
 * become 0. */
void gb_matrices_divide(gb_stream stream, gb_matrices m, const void *s, double rtol, double atol);
/* The first matrix that has a fault, or, where info is above 0, the kind of fault that this means: its place times
 * `kinds` plus the fault; -1: none. */
void gb_matrices_first_fault(gb_stream stream, int64_t count, const int *fault, const int *info, int info_kind,
                             int kinds, int64_t *first);

#ifdef __cplusplus
}
#endif
#endif
