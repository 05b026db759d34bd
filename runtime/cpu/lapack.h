/* cpu/lapack.h - the routines of LAPACK and BLAS that kernels call, and what stands in for cuSOLVER, in float32 (s...)
 * and float64 (d...).
 *
 * Fortran: every argument is an address, matrices go column by column, and the length of each text follows at the end.
 * A wrong argument would end the process (XERBLA), so shapes and values are checked before.
 *
 * The library is loaded when the first of them is wanted: with what it needs itself it takes a seventh of the time in
 * which a program starts, and most programs never call it. */
#ifndef GB_CPU_LAPACK_H
#define GB_CPU_LAPACK_H

#include <stdbool.h>
#include <stddef.h>

#define GB_LAPACK_OF(p, real)                                                                                          \
  void p##potrf_(const char *uplo, const int *n, real *a, const int *lda, int *info, size_t);                          \
  void p##getrf_(const int *m, const int *n, real *a, const int *lda, int *pivots, int *info);                         \
  void p##getrs_(const char *trans, const int *n, const int *columns, const real *a, const int *lda,                   \
                 const int *pivots, real *b, const int *ldb, int *info, size_t);                                       \
  void p##trtrs_(const char *uplo, const char *trans, const char *diag, const int *n, const int *columns,              \
                 const real *a, const int *lda, real *b, const int *ldb, int *info, size_t, size_t, size_t);           \
  void p##sytrf_(const char *uplo, const int *n, real *a, const int *lda, int *pivots, real *work, const int *lwork,   \
                 int *info, size_t);                                                                                   \
  void p##sytrs_(const char *uplo, const int *n, const int *columns, const real *a, const int *lda,                    \
                 const int *pivots, real *b, const int *ldb, int *info, size_t);                                       \
  void p##geqrf_(const int *m, const int *n, real *a, const int *lda, real *tau, real *work, const int *lwork,         \
                 int *info);                                                                                           \
  void p##orgqr_(const int *m, const int *n, const int *k, real *a, const int *lda, const real *tau, real *work,       \
                 const int *lwork, int *info);                                                                         \
  void p##gesdd_(const char *job, const int *m, const int *n, real *a, const int *lda, real *s, real *u,               \
                 const int *ldu, real *vt, const int *ldvt, real *work, const int *lwork, int *iwork, int *info,       \
                 size_t);                                                                                              \
  void p##gesvd_(const char *jobu, const char *jobvt, const int *m, const int *n, real *a, const int *lda, real *s,    \
                 real *u, const int *ldu, real *vt, const int *ldvt, real *work, const int *lwork, int *info, size_t,  \
                 size_t);                                                                                              \
  void p##syevd_(const char *job, const char *uplo, const int *n, real *a, const int *lda, real *w, real *work,        \
                 const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);                          \
  void p##gemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k, const real *alpha,           \
                const real *a, const int *lda, const real *b, const int *ldb, const real *beta, real *c,               \
                const int *ldc, size_t, size_t);
GB_LAPACK_OF(s, float)
GB_LAPACK_OF(d, double)

#define GB_LAPACK_ROUTINES(X, p) \
  X(p, potrf) X(p, getrf) X(p, getrs) X(p, trtrs) X(p, sytrf) X(p, sytrs) X(p, geqrf) X(p, orgqr) X(p, gesdd)          \
  X(p, syevd) X(p, gemm)

/* Where they are, once gb_lapack_open has found them. */
#define GB_LAPACK_POINTER(p, name) __typeof__(p##name##_) *p##name;
typedef struct gb_lapack_table {
  GB_LAPACK_ROUTINES(GB_LAPACK_POINTER, s)
  GB_LAPACK_ROUTINES(GB_LAPACK_POINTER, d)
} gb_lapack_table;
extern gb_lapack_table gb_lapack;

/* Load the library, once. False: there is none. Any thread. */
bool gb_lapack_open(void);

#endif
