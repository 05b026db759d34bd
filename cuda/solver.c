/* cuda/solver.c - linear algebra by cuSOLVER. See solver.h.
 *
 * The library is opened by name, since it brings 200 MB and four libraries more with it. GIBBOUS_CUSOLVER=0 keeps it
 * closed. Built without its headers, it is absent. */
#include "cuda/solver.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

#ifdef GB_HAVE_CUSOLVER
#include <cusolverDn.h>
#include <dlfcn.h>

/* The routines of a type. */
#define ROUTINES(X) \
  X(potrf_bufferSize) X(potrf) X(getrf_bufferSize) X(getrf) X(getrs) X(geqrf_bufferSize) X(geqrf) \
  X(orgqr_bufferSize) X(orgqr) X(gesvd_bufferSize) X(gesvd) X(syevd_bufferSize) X(syevd)

struct gb_solvers {
  void *library;
  cusolverDnHandle_t handle;
  cusolverStatus_t (*create)(cusolverDnHandle_t *handle), (*destroy)(cusolverDnHandle_t handle);
  cusolverStatus_t (*set_stream)(cusolverDnHandle_t handle, cudaStream_t stream);
#define FIELD(name) __typeof__(cusolverDnS##name) *name;
  struct { ROUTINES(FIELD) } s;
#undef FIELD
#define FIELD(name) __typeof__(cusolverDnD##name) *name;
  struct { ROUTINES(FIELD) } d;
#undef FIELD
};

/* {==== Opening ==== */

/* Put the address of a function of the library into what `out` points to; false: there is none. */
static bool find(void *library, const char *name, void *out) {
  void *address = dlsym(library, name);
  memcpy(out, &address, sizeof address);
  return address != NULL;
}

static bool find_all(gb_solvers *solvers) {
  void *library = solvers->library;
  bool found = find(library, "cusolverDnCreate", &solvers->create) &&
      find(library, "cusolverDnDestroy", &solvers->destroy) &&
      find(library, "cusolverDnSetStream", &solvers->set_stream);
#define FIND(name) \
  found = found && find(library, "cusolverDnS" #name, &solvers->s.name) && \
      find(library, "cusolverDnD" #name, &solvers->d.name);
  ROUTINES(FIND)
#undef FIND
  return found;
}

static void *open_library(void) {
  static const char *const names[] = { "libcusolver.so.12", "libcusolver.so.11", "libcusolver.so" };
  const char *wish = getenv("GIBBOUS_CUSOLVER");
  void *library = NULL;
  if (wish && !strcmp(wish, "0")) return NULL;
  for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

void gb_solvers_close(gb_solvers *solvers) {
  if (!solvers) return;
  if (solvers->handle) solvers->destroy(solvers->handle);
  free(solvers); /* the library stays: it may not be unloaded while its kernels may run */
}

bool gb_solvers_have(gb_cuda *cuda) {
  if (cuda->solvers || cuda->no_solvers) return cuda->solvers != NULL;
  gb_solvers *solvers = calloc(1, sizeof *solvers);
  if (solvers) solvers->library = open_library();
  if (solvers && solvers->library && find_all(solvers) &&
      solvers->create(&solvers->handle) == CUSOLVER_STATUS_SUCCESS &&
      solvers->set_stream(solvers->handle, cuda->stream) == CUSOLVER_STATUS_SUCCESS) {
    cuda->solvers = solvers;
    return true;
  }
  gb_solvers_close(solvers);
  cuda->no_solvers = true;
  gb_cuda_no_solvers(cuda, "libcusolver.so.12 was not found, or does not open");
  return false;
}

/* ====} */

/* {==== Routines ==== */

static cublasFillMode_t triangle_of(const gb_solve *q) { return q->upper ? CUBLAS_FILL_MODE_UPPER
                                                         : CUBLAS_FILL_MODE_LOWER; }

/* One text for both types: REAL is the type, and of(name) the library's function. */
#define BODY(letter, REAL)                                                                                            \
  static cusolverStatus_t room_##letter(gb_solvers *l, const gb_solve *q, int *size) {                                \
    REAL *a = q->a, *s = q->s;                                                                                        \
    switch (q->routine) {                                                                                             \
      case GB_ROUTINE_POTRF: return l->letter.potrf_bufferSize(l->handle, triangle_of(q), q->n, a, q->n, size);       \
      case GB_ROUTINE_GETRF: return l->letter.getrf_bufferSize(l->handle, q->n, q->n, a, q->n, size);                 \
      case GB_ROUTINE_GEQRF: return l->letter.geqrf_bufferSize(l->handle, q->m, q->n, a, q->m, size);                 \
      case GB_ROUTINE_ORGQR: return l->letter.orgqr_bufferSize(l->handle, q->m, q->n, q->k, a, q->m, s, size);        \
      case GB_ROUTINE_GESVD: return l->letter.gesvd_bufferSize(l->handle, q->m, q->n, size);                          \
      case GB_ROUTINE_SYEVD:                                                                                          \
        return l->letter.syevd_bufferSize(l->handle, CUSOLVER_EIG_MODE_VECTOR, triangle_of(q), q->n, a, q->n, s,      \
                                          size);                                                                      \
      default: *size = 0; return CUSOLVER_STATUS_SUCCESS;                                                             \
    }                                                                                                                 \
  }                                                                                                                   \
  static cusolverStatus_t run_##letter(gb_solvers *l, const gb_solve *q) {                                            \
    REAL *a = q->a, *b = q->b, *c = q->c, *s = q->s, *work = q->work;                                                 \
    signed char all = q->full ? 'A' : 'S';                                                                            \
    switch (q->routine) {                                                                                             \
      case GB_ROUTINE_POTRF:                                                                                          \
        return l->letter.potrf(l->handle, triangle_of(q), q->n, a, q->n, work, q->work_size, q->info);                \
      case GB_ROUTINE_GETRF: return l->letter.getrf(l->handle, q->n, q->n, a, q->n, work, q->pivots, q->info);        \
      case GB_ROUTINE_GETRS:                                                                                          \
        return l->letter.getrs(l->handle, q->transposed ? CUBLAS_OP_T : CUBLAS_OP_N, q->n, q->k, a, q->n, q->pivots,  \
                               b, q->n, q->info);                                                                     \
      case GB_ROUTINE_GEQRF:                                                                                          \
        return l->letter.geqrf(l->handle, q->m, q->n, a, q->m, s, work, q->work_size, q->info);                       \
      case GB_ROUTINE_ORGQR:                                                                                          \
        return l->letter.orgqr(l->handle, q->m, q->n, q->k, a, q->m, s, work, q->work_size, q->info);                 \
      case GB_ROUTINE_GESVD:                                                                                          \
        return l->letter.gesvd(l->handle, all, 'S', q->m, q->n, a, q->m, s, b, q->m, c, q->n, work, q->work_size,     \
                               NULL, q->info);                                                                        \
      case GB_ROUTINE_SYEVD:                                                                                          \
        return l->letter.syevd(l->handle, CUSOLVER_EIG_MODE_VECTOR, triangle_of(q), q->n, a, q->n, s, work,           \
                               q->work_size, q->info);                                                                \
      case GB_ROUTINES: break;                                                                                        \
    }                                                                                                                 \
    return CUSOLVER_STATUS_INVALID_VALUE;                                                                             \
  }
BODY(s, float)
BODY(d, double)
#undef BODY

/* What the library said. */
static gb_status failure(gb_cuda_call *call, const gb_solve *q, cusolverStatus_t status) {
  return status == CUSOLVER_STATUS_ALLOC_FAILED
      ? gb_cuda_fail(call, GB_EMEMORY, "cuSOLVER is out of memory for a matrix of %d x %d", q->m, q->n)
      : gb_cuda_fail(call, GB_EDEVICE, "cuSOLVER failed on a matrix of %d x %d: status %d", q->m, q->n, (int)status);
}

gb_status gb_solver_room(gb_cuda_call *call, const gb_solve *solve, int *size) {
  gb_solvers *solvers = call->cuda->solvers;
  *size = 0;
  cusolverStatus_t status = solve->dtype == GB_FLOAT64 ? room_d(solvers, solve, size) : room_s(solvers, solve, size);
  return status == CUSOLVER_STATUS_SUCCESS ? GB_OK : failure(call, solve, status);
}

gb_status gb_solver_run(gb_cuda_call *call, const gb_solve *solve) {
  gb_solvers *solvers = call->cuda->solvers;
  cusolverStatus_t status = solve->dtype == GB_FLOAT64 ? run_d(solvers, solve) : run_s(solvers, solve);
  return status == CUSOLVER_STATUS_SUCCESS ? GB_OK : failure(call, solve, status);
}

/* ====} */

#else

void gb_solvers_close(gb_solvers *solvers) { (void)solvers; }

bool gb_solvers_have(gb_cuda *cuda) {
  if (!cuda->no_solvers) gb_cuda_no_solvers(cuda, "the plugin was built without cuSOLVER's headers");
  cuda->no_solvers = true;
  return false;
}

gb_status gb_solver_room(gb_cuda_call *call, const gb_solve *solve, int *size) {
  (void)solve;
  *size = 0;
  return gb_cuda_fail(call, GB_EUNSUPPORTED, "the plugin was built without cuSOLVER");
}

gb_status gb_solver_run(gb_cuda_call *call, const gb_solve *solve) {
  int size;
  return gb_solver_room(call, solve, &size);
}

#endif
