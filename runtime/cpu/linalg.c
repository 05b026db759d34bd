/* cpu/linalg.c - linear algebra by LAPACK, one matrix of a batch at a time.
 *
 * A matrix is computed by one thread, and matrices are cut into chunks by shape alone, so any number of threads gives
 * the same bits; an OpenBLAS that serves as LAPACK is told to use one thread. What a matrix costs is counted before its
 * routine begins, which nothing can stop on its way: one that would outlast the limit of time does not begin. Elements
 * are looked at first: NaN or infinity can make a routine run for ever. The first matrix of the batch that fails is the
 * one that is told. */
#include <inttypes.h>

#include "cpu/linalg.h"
#include "cpu/walk.h"

#ifdef GB_HAVE_LAPACK
#include <math.h>

#include "cpu/lapack.h"

enum { LAPACK_BLOCK = 64 }; /* columns that blocked routines of LAPACK take at once */

#define REAL float
#define OF(name) name##_f32
#define LA(name) gb_lapack.s##name
#define LOAD gb_load_f32
#define STORE gb_store_f32
#include "cpu/linalg_of.h"

#define REAL double
#define OF(name) name##_f64
#define LA(name) gb_lapack.d##name
#define LOAD gb_load_f64
#define STORE gb_store_f64
#include "cpu/linalg_of.h"

/* {==== A batch ==== */

enum { AROUND = 32 }; /* what surrounds the work on a matrix, in elements */
#define PRODUCTS_PER_SECOND 1e9 /* of the plain LAPACK on one core */
#define PIECES_PER_SECOND 50

/* The matrices of one chunk, up to the first that fails. */
static void matrices_chunk(void *arg, int64_t chunk) {
  gb_matrix_job *job = arg;
  int64_t first = chunk * job->per_chunk, end = first + job->per_chunk;
  for (int64_t i = first; i < end && i < job->count && !gb_work(AROUND); i++) {
    gb_matrix_fault fault = job->one(job, i, gb_scratch_room(&job->scratch));
    if (fault == GB_MATRIX_FINE) continue;
    int64_t mine = i * GB_MATRIX_FAULTS + fault, seen = atomic_load(&job->bad);
    while ((seen < 0 || mine < seen) && !atomic_compare_exchange_weak(&job->bad, &seen, mine)) continue;
    return;
  }
}

/* What was wrong. */
static gb_status tell(const gb_matrix_job *job) {
  int64_t bad = atomic_load(&job->bad);
  if (bad < 0) return GB_OK;
  const char *text = gb_matrix_fault_text((gb_matrix_fault)(bad % GB_MATRIX_FAULTS));
  if (job->ndim == 0) return gb_call_fail(job->call, GB_EINVAL, "the matrix %s", text);
  return gb_call_fail(job->call, GB_EINVAL, "matrix %" PRId64 " of the batch of %" PRId64 " (from 1) %s",
                      bad / GB_MATRIX_FAULTS + 1, job->count, text);
}

/* Nothing stops a routine on its way, so none begins that would run on after the deadline. */
static gb_status check_time(gb_op_call *call, int64_t m, int64_t n, double products) {
  double seconds = products / PRODUCTS_PER_SECOND, left = gb_seconds_left(call->context);
  if (seconds <= left || seconds < 0.05) return GB_OK; /* short enough to be stopped after it */
  return gb_call_fail(call, GB_EINVAL, "a matrix of %" PRId64 " x %" PRId64 " takes some %.1f seconds, which nothing "
                      "can stop, and the limit of time leaves %.1f; use smaller matrices, or a longer limit", m, n,
                      seconds, left > 0 ? left : 0);
}

/* Run `one` on each matrix: `out` has the batch in front of `own` dims. numbers: elements that it packs or works in.
 * passes: the multiply-adds of a matrix are as many times those of its triangle. */
static gb_status run_batch(gb_op_call *call, const gb_tensor *out, int own, int64_t m, int64_t n, int64_t passes,
                           int64_t numbers, gb_matrix_fault (*one)(const gb_matrix_job *, int64_t, char *)) {
  gb_matrix_job job = { .call = call, .ndim = out->ndim - own, .count = 1, .one = one, .bad = -1 };
  if (!gb_lapack_open())
    return gb_call_fail(call, GB_EUNSUPPORTED, "needs LAPACK, and liblapack.so.3 cannot be loaded; install liblapack3 "
                                               "(Debian and Ubuntu)");
  for (int d = 0; d < job.ndim; d++) job.count *= job.batch[d] = out->shape[d];
  if (job.count == 0) return GB_OK;
  int64_t least = m < n ? m : n, most = m < n ? n : m;
  int64_t products = passes * least * least * most / 3;
  GB_TRY(check_time(call, m, n, (double)products));
  job.work = (int64_t)((double)products / PRODUCTS_PER_SECOND * PIECES_PER_SECOND * GB_PIECE);
  job.per_chunk = 1 + GB_CHUNK_ELEMENTS / (1 + least * most * (1 + least / 8));
  int64_t chunks = (job.count + job.per_chunk - 1) / job.per_chunk;
  size_t bytes = (out->dtype == GB_FLOAT64 ? sizeof(double) : sizeof(float)) * (size_t)numbers;
  size_t rooms = chunks == 1 ? 1 : (size_t)gb_threads_count(call->context->threads); /* one chunk: this thread's */
  GB_TRY(gb_scratch_open_rooms(call, 0, (bytes + 64 * 16 + 63) & ~(size_t)63, rooms, &job.scratch));
  gb_parallel(call, chunks, matrices_chunk, &job);
  gb_scratch_close(call, &job.scratch);
  return tell(&job);
}

#define ONE(name, out) ((out)->dtype == GB_FLOAT64 ? name##_f64 : name##_f32)

/* ====} */

/* {==== The ops ==== */

static int64_t rows_of(const gb_tensor *x) { return x->shape[x->ndim - 2]; }
static int64_t columns_of(const gb_tensor *x) { return x->shape[x->ndim - 1]; }

static gb_status cholesky(gb_op_call *call) {
  const gb_tensor *y = GB_OUT(call, linalg_cholesky)->y;
  int64_t n = rows_of(y);
  return run_batch(call, y, 2, n, n, 1, n * n, ONE(cholesky, y));
}

static gb_status inv(gb_op_call *call) {
  const gb_tensor *y = GB_OUT(call, linalg_inv)->y;
  int64_t n = rows_of(y);
  return run_batch(call, y, 2, n, n, 4, 2 * n * n + n, ONE(inv, y));
}

static gb_status solve(gb_op_call *call) {
  const gb_tensor *x = GB_OUT(call, linalg_solve)->x;
  int64_t n = rows_of(x), columns = columns_of(x);
  return run_batch(call, x, 2, n, columns > n ? columns : n, 4, n * n + n * columns + n, ONE(solve, x));
}

static gb_status solve_triangular(gb_op_call *call) {
  const gb_tensor *x = GB_OUT(call, linalg_solve_triangular)->x;
  int64_t n = rows_of(x), columns = columns_of(x);
  return run_batch(call, x, 2, n, columns > n ? columns : n, 3, n * n + n * columns, ONE(solve_triangular, x));
}

static gb_status ldl_factor(gb_op_call *call) {
  const gb_tensor *ld = GB_OUT(call, linalg_ldl_factor)->ld;
  int64_t n = rows_of(ld);
  return run_batch(call, ld, 2, n, n, 1, n * n + LAPACK_BLOCK * n + n, ONE(ldl_factor, ld));
}

static gb_status ldl_solve(gb_op_call *call) {
  const gb_tensor *x = GB_OUT(call, linalg_ldl_solve)->x;
  int64_t n = rows_of(x), columns = columns_of(x);
  return run_batch(call, x, 2, n, columns > n ? columns : n, 3, n * n + n * columns + 3 * n, ONE(ldl_solve, x));
}

static gb_status det(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_det)->x, *y = GB_OUT(call, linalg_det)->y;
  int64_t n = rows_of(x);
  return run_batch(call, y, 0, n, n, 1, n * n + n, ONE(det, y));
}

static gb_status slogdet(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_slogdet)->x, *sign = GB_OUT(call, linalg_slogdet)->sign;
  int64_t n = rows_of(x);
  return run_batch(call, sign, 0, n, n, 1, n * n + n, ONE(slogdet, sign));
}

static gb_status qr(gb_op_call *call) {
  const gb_tensor *q = GB_OUT(call, linalg_qr)->q, *r = GB_OUT(call, linalg_qr)->r;
  int64_t m = rows_of(q), n = columns_of(r), columns = columns_of(q), most = m > n ? m : n;
  int64_t numbers = m * (columns > n ? columns : n) + columns * n + n + LAPACK_BLOCK * most;
  return run_batch(call, q, 2, m, columns > n ? columns : n, 6, numbers, ONE(qr, q));
}

/* What gesdd works in: integers count as numbers. */
static int64_t svd_room(int64_t m, int64_t n) {
  int64_t k = m < n ? m : n;
  return 4 * k * k + 16 * k + (m > n ? m : n) + LAPACK_BLOCK * (m + n);
}

static gb_status svd(gb_op_call *call) {
  const gb_tensor *u = GB_OUT(call, linalg_svd)->u, *vh = GB_OUT(call, linalg_svd)->vh;
  int64_t m = rows_of(u), n = columns_of(vh), k = m < n ? m : n, left = columns_of(u), right = rows_of(vh);
  int64_t numbers = m * n + k + m * left + right * n + svd_room(m, n);
  return run_batch(call, u, 2, left > k ? left : m, right > k ? right : n, 36, numbers, ONE(svd, u));
}

static gb_status pinv(gb_op_call *call) {
  const gb_tensor *y = GB_OUT(call, linalg_pinv)->y;
  int64_t n = rows_of(y), m = columns_of(y), k = m < n ? m : n;
  return run_batch(call, y, 2, m, n, 39, m * n + k + m * k + k * n + svd_room(m, n), ONE(pinv, y));
}

static gb_status eigh(gb_op_call *call) {
  const gb_tensor *vectors = GB_OUT(call, linalg_eigh)->vectors;
  int64_t n = rows_of(vectors);
  return run_batch(call, vectors, 2, n, n, 15, 3 * n * n + (13 + LAPACK_BLOCK) * n + 4, ONE(eigh, vectors));
}

/* ====} */

#else

/* Without LAPACK every op says so. */
static gb_status absent(gb_op_call *call) {
  return gb_call_fail(call, GB_EUNSUPPORTED, "needs LAPACK, which this build has not; install liblapack-dev (Debian "
                                             "and Ubuntu) and build again");
}
#define cholesky absent
#define inv absent
#define solve absent
#define solve_triangular absent
#define ldl_factor absent
#define ldl_solve absent
#define det absent
#define slogdet absent
#define qr absent
#define svd absent
#define pinv absent
#define eigh absent

#endif

void GB_CPU_FILL(linalg)(gb_backend *backend);
void GB_CPU_FILL(linalg)(gb_backend *backend) {
  backend->run[GB_OP_linalg_cholesky] = cholesky;
  backend->run[GB_OP_linalg_inv] = inv;
  backend->run[GB_OP_linalg_solve] = solve;
  backend->run[GB_OP_linalg_solve_triangular] = solve_triangular;
  backend->run[GB_OP_linalg_ldl_factor] = ldl_factor;
  backend->run[GB_OP_linalg_ldl_solve] = ldl_solve;
  backend->run[GB_OP_linalg_det] = det;
  backend->run[GB_OP_linalg_slogdet] = slogdet;
  backend->run[GB_OP_linalg_qr] = qr;
  backend->run[GB_OP_linalg_svd] = svd;
  backend->run[GB_OP_linalg_pinv] = pinv;
  backend->run[GB_OP_linalg_eigh] = eigh;
}
