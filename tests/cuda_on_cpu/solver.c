/* solver.c - stands in for cuSOLVER behind cuda/solver.h, with the system's LAPACK. GIBBOUS_CUSOLVER=0, or a build
 * without LAPACK: the library is absent. */
#include "cuda/solver.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "machine.h"

struct gb_solvers { char opened; };

void gb_solvers_close(gb_solvers *solvers) { free(solvers); }

bool gb_solvers_have(gb_cuda *cuda) {
  if (cuda->solvers || cuda->no_solvers) return cuda->solvers != NULL;
#ifdef GB_HAVE_LAPACK
  const char *wish = getenv("GIBBOUS_CUSOLVER");
  if (!wish || strcmp(wish, "0")) cuda->solvers = malloc(sizeof *cuda->solvers);
#endif
  cuda->no_solvers = !cuda->solvers;
  if (cuda->no_solvers) gb_cuda_no_solvers(cuda, "the emulated device has no cuSOLVER");
  return cuda->solvers != NULL;
}

#ifdef GB_HAVE_LAPACK
#include "cpu/lapack.h"

/* {==== One routine, now ==== */

/* The room that a routine of LAPACK wants, in elements, with its integers behind. */
static int room_of(const gb_solve *q) {
  int most = q->m > q->n ? q->m : q->n;
  switch (q->routine) {
    case GB_ROUTINE_GEQRF: case GB_ROUTINE_ORGQR: return 64 * most;
    case GB_ROUTINE_GESVD: return 5 * q->n + 2 * most + 64 * (q->m + q->n);
    case GB_ROUTINE_SYEVD: return 1 + 70 * q->n + 2 * q->n * q->n + 3 + 5 * q->n;
    default: return 0;
  }
}

/* Info is below 0 where an argument is wrong, which is a mistake of the caller. */
#define BODY(p, REAL)                                                                                                \
  static int run_##p(const gb_solve *q) {                                                                            \
    REAL *a = q->a, *b = q->b, *c = q->c, *s = q->s, *work = q->work;                                                \
    const char *triangle = q->upper ? "U" : "L";                                                                     \
    int info = 0, size = q->work_size, m = q->m, n = q->n, k = q->k, integers = 3 + 5 * n, floats = size - integers; \
    switch (q->routine) {                                                                                            \
      case GB_ROUTINE_POTRF: p##potrf_(triangle, &n, a, &n, &info, 1); break;                                        \
      case GB_ROUTINE_GETRF: p##getrf_(&n, &n, a, &n, q->pivots, &info); break;                                      \
      case GB_ROUTINE_GETRS:                                                                                         \
        p##getrs_(q->transposed ? "T" : "N", &n, &k, a, &n, q->pivots, b, &n, &info, 1);                             \
        break;                                                                                                       \
      case GB_ROUTINE_GEQRF: p##geqrf_(&m, &n, a, &m, s, work, &size, &info); break;                                 \
      case GB_ROUTINE_ORGQR: p##orgqr_(&m, &n, &k, a, &m, s, work, &size, &info); break;                             \
      case GB_ROUTINE_GESVD:                                                                                         \
        p##gesvd_(q->full ? "A" : "S", "S", &m, &n, a, &m, s, b, &m, c, &n, work, &size, &info, 1, 1);               \
        break;                                                                                                       \
      case GB_ROUTINE_SYEVD:                                                                                         \
        p##syevd_("V", triangle, &n, a, &n, s, work, &floats, (int *)(void *)(work + floats), &integers, &info, 1,   \
                  1);                                                                                                \
        break;                                                                                                       \
      case GB_ROUTINES: break;                                                                                       \
    }                                                                                                                \
    return info;                                                                                                     \
  }
BODY(s, float)
BODY(d, double)
#undef BODY

static void run(void *argument) {
  const gb_solve *q = argument;
  int info = q->dtype == GB_FLOAT64 ? run_d(q) : run_s(q);
  if (info < 0) gb_machine_fail("cuSOLVER", "argument %d of routine %d is wrong", -info, (int)q->routine);
  *q->info = info;
}

/* ====} */

gb_status gb_solver_room(gb_cuda_call *call, const gb_solve *solve, int *size) {
  (void)call;
  *size = room_of(solve);
  return GB_OK;
}

gb_status gb_solver_run(gb_cuda_call *call, const gb_solve *solve) {
  gb_solve *own = malloc(sizeof *own);
  if (!own) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a routine");
  *own = *solve;
  gb_machine_do(call->stream, "cusolver", run, free, own);
  return GB_OK;
}

#else

gb_status gb_solver_room(gb_cuda_call *call, const gb_solve *solve, int *size) {
  (void)solve, (void)size;
  return gb_cuda_fail(call, GB_EUNSUPPORTED, "this build has no LAPACK");
}

gb_status gb_solver_run(gb_cuda_call *call, const gb_solve *solve) { return gb_solver_room(call, solve, NULL); }

#endif
