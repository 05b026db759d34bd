/* ops/linalg.h - what may be wrong with a matrix, for the kernels of all backends. */
#ifndef GB_OPS_LINALG_H
#define GB_OPS_LINALG_H

/* In the order in which it is told. */
typedef enum gb_matrix_fault {
  GB_MATRIX_FINE, GB_MATRIX_NOT_FINITE, GB_MATRIX_NO_PIVOTS, GB_MATRIX_SINGULAR, GB_MATRIX_NOT_POSITIVE,
  GB_MATRIX_NO_CONVERGENCE, GB_MATRIX_FAULTS
} gb_matrix_fault;

/* What is wrong, and the cure. */
static inline const char *gb_matrix_fault_text(gb_matrix_fault fault) {
  static const char *const texts[GB_MATRIX_FAULTS] = {
    [GB_MATRIX_FINE] = "is fine",
    [GB_MATRIX_NOT_FINITE] = "has elements that are NaN or infinite; find where they come from with gb.anomaly, or "
                             "replace them before",
    [GB_MATRIX_NO_PIVOTS] = "has pivots that ldl_factor does not make; give those that came with the matrix",
    [GB_MATRIX_SINGULAR] = "is singular; add a small multiple of the unit matrix, or use linalg.pinv or linalg.lstsq",
    [GB_MATRIX_NOT_POSITIVE] = "is not positive definite; add a small multiple of the unit matrix, and see that it is "
                               "symmetric",
    [GB_MATRIX_NO_CONVERGENCE] = "did not converge; scale it to about 1, or compute in float64",
  };
  return texts[fault];
}

#endif
