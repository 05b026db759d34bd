/* cuda/fold.cuh - folds over rows (sum, product, largest, smallest of mapped elements), for the kernel files that need
 * one on their way. */
#ifndef GB_CUDA_FOLD_CUH
#define GB_CUDA_FOLD_CUH

#include "cuda/rows.cuh"

typedef enum gb_fold_kind { GB_FOLD_SUM, GB_FOLD_PRODUCT, GB_FOLD_LARGEST, GB_FOLD_SMALLEST } gb_fold_kind;
/* CENTERED: about a number per row. TIMES_CENTERED: the element of a second tensor times the distance of this one. */
typedef enum gb_map_kind { GB_MAP_PLAIN, GB_MAP_ABSOLUTE, GB_MAP_SQUARE, GB_MAP_POWER, GB_MAP_NONZERO,
                           GB_MAP_CENTERED_SQUARE, GB_MAP_CENTERED_EXP,
                           GB_MAP_TIMES_CENTERED } gb_map_kind;
/* What is left to do to a result; `a` is a factor or a power. FINITE: an infinite one becomes 0. */
typedef enum gb_finish_kind { GB_FINISH_AS_IS, GB_FINISH_SCALED, GB_FINISH_ROOT, GB_FINISH_SCALED_ROOT,
                              GB_FINISH_POWER_ROOT, GB_FINISH_LOG_PLUS_CENTER,
                              GB_FINISH_FINITE } gb_finish_kind;

/* One fold: what it reads, does and writes. Results are side by side in the order of the rows. */
typedef struct gb_fold {
  gb_rows x, other;               /* other: of TIMES_CENTERED, rows like x's */
  gb_fold_kind fold;
  gb_map_kind map;
  gb_finish_kind finish;
  double power, a;
  const void *center;             /* one per row, in the compute dtype; NULL: none */
  void *out;
  gb_dtype compute, out_dtype;    /* float32, float64 or int64; any */
} gb_fold;

/* Launch it. */
gb_status gb_fold_run(gb_cuda_call *call, const gb_fold *fold);

#endif
