/* cuda/solver.h - the seam to the library of linear algebra: one routine on one matrix.
 *
 * solver.c implements it with cuSOLVER, which is opened when it is first asked for: it is large, and few recipes need
 * it. tests/cuda_on_cpu/solver.c stands in for it with LAPACK. Matrices go column by column, without gaps. linalg.c
 * brings ops to them. */
#ifndef GB_CUDA_SOLVER_H
#define GB_CUDA_SOLVER_H

#include "cuda/call.h"

typedef enum gb_routine {
  GB_ROUTINE_POTRF,        /* a [n, n] -> its factor in the triangle that `upper` says */
  GB_ROUTINE_GETRF,        /* a [n, n] -> LU, and pivots */
  GB_ROUTINE_GETRS,        /* a, pivots: LU; b [n, k] -> x of a x = b, or with `transposed` of a^T x = b */
  GB_ROUTINE_GEQRF,        /* a [m, n] -> r and reflections, whose factors go to s */
  GB_ROUTINE_ORGQR,        /* a [m, n], s: of the first k reflections -> q [m, n] */
  GB_ROUTINE_GESVD,        /* a [m, n], m at least n -> b: u [m, m or n], s [n], c: v^T [n, n]; a is lost */
  GB_ROUTINE_SYEVD,        /* a [n, n], of which one triangle is read -> vectors; s: values, rising */
  GB_ROUTINES
} gb_routine;

/* A call of a routine. What it leaves in info: above 0 where it could not do it. */
typedef struct gb_solve {
  gb_routine routine;
  gb_dtype dtype;          /* float32 or float64 */
  int m, n, k;
  bool upper, transposed, full; /* full: u is [m, m] */
  void *a, *b, *c, *s;
  int *pivots, *info;
  void *work;
  int work_size;           /* in elements of dtype */
} gb_solve;

struct gb_cuda;
typedef struct gb_solvers gb_solvers;

#ifdef __cplusplus
extern "C" {
#endif

/* Is the library there? Where it is not, this is told once. */
bool gb_solvers_have(struct gb_cuda *cuda);
void gb_solvers_close(gb_solvers *solvers); /* NULL is fine */
/* How large `work` has to be, as work_size counts it. */
gb_status gb_solver_room(gb_cuda_call *call, const gb_solve *solve, int *size);
/* Launch the routine on the call's stream. */
gb_status gb_solver_run(gb_cuda_call *call, const gb_solve *solve);

#ifdef __cplusplus
}
#endif
#endif
