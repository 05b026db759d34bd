/* cuda/linalg.c - linear algebra by the routines of solver.h: matrices are packed column by column, computed one after
 * the other, and copied to the results, whatever their layouts and dtypes are.
 *
 * What was wrong with a matrix is known when all of them are through: one number is read, which waits, so these ops do
 * not fit into a captured graph. The first matrix of the batch that failed is told, in the words of the CPU. A matrix
 * with more columns than rows is decomposed turned around, as the routine wants it; the copies turn it back. A triangle
 * is solved as LU whose other factor is the unit matrix. */
#include "cuda/cuda.h"
#include "cuda/gemm.h"
#include "cuda/matrices.h"
#include "cuda/solver.h"
#include "ops/linalg.h"

#include <inttypes.h>
#include <string.h>

/* One call: the batch that all its matrices have, and their dtype. */
typedef struct job {
  gb_cuda_call *call;
  gb_dtype dtype;
  size_t bytes;                        /* of an element */
  int ndim;                            /* of the batch */
  int64_t batch[GB_MAX_NDIM], count;
  int *fault, *info;                   /* [count] in device memory */
  int info_kind;                       /* what an info above 0 means: a gb_matrix_fault */
} job;

/* A job of the matrices of which `like` has one each, in its last `own` dims. */
static gb_status begin(job *j, gb_cuda_call *call, const gb_cuda_tensor *like, int own) {
  *j = (job){ .call = call, .dtype = like->dtype, .bytes = like->dtype == GB_FLOAT64 ? 8 : 4, .ndim = like->ndim - own,
              .count = 1 };
  for (int d = 0; d < j->ndim; d++) j->count *= j->batch[d] = like->shape[d];
  if (call->cuda->capturing)
    return gb_cuda_fail(call, GB_ESTATE, "reads whether its matrices are sound, which it cannot while a graph is "
                                         "captured; compute it outside of the step");
  j->fault = gb_cuda_scratch(call, 2 * sizeof(int) * (size_t)(j->count ? j->count : 1));
  if (!j->fault) return GB_EMEMORY;
  j->info = j->fault + j->count;
  if (j->count == 0) return GB_OK;
  int code = gb_rt_set(call->stream, j->fault, 0, 2 * sizeof(int) * (size_t)j->count);
  return code ? gb_cuda_fail(call, GB_EDEVICE, "clearing memory: %s", gb_rt_text(code)) : GB_OK;
}

/* Room for a matrix or a vector of so many elements, for each of the batch. */
static gb_status take(const job *j, gb_matrices *out, int64_t rows, int64_t columns) {
  *out = (gb_matrices){ .dtype = j->dtype, .rows = rows, .columns = columns, .count = j->count };
  int64_t n = rows * columns * j->count;
  out->data = gb_cuda_scratch(j->call, j->bytes * (size_t)(n > 0 ? n : 1));
  return out->data ? GB_OK : GB_EMEMORY;
}

/* Matrix i. */
static void *at(const gb_matrices *m, int64_t i) {
  return (char *)m->data + i * m->rows * m->columns * (m->dtype == GB_FLOAT64 ? 8 : 4);
}

/* The packed matrices as a tensor: the first `rows` rows and `columns` columns of each; turned: of its transpose. */
static gb_cuda_tensor view(const job *j, const gb_matrices *m, int64_t rows, int64_t columns, bool turned) {
  gb_cuda_tensor t = { .data = m->data, .dtype = m->dtype, .ndim = j->ndim + 2, .numel = j->count * rows * columns };
  int64_t step = m->rows * m->columns;
  for (int d = j->ndim - 1; d >= 0; d--) {
    t.shape[d] = j->batch[d], t.stride[d] = step;
    step *= j->batch[d];
  }
  t.shape[j->ndim] = rows, t.shape[j->ndim + 1] = columns;
  t.stride[j->ndim] = turned ? m->rows : 1, t.stride[j->ndim + 1] = turned ? 1 : m->rows;
  return t;
}

/* x, broadcast to the batch and converted, into room of its own; turned: its transposes. The faults of elements that
 * are not finite are noted. */
static gb_status pack(const job *j, const gb_cuda_tensor *x, bool turned, gb_matrices *out) {
  int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
  GB_TRY(take(j, out, turned ? columns : rows, turned ? rows : columns));
  gb_cuda_tensor to = view(j, out, rows, columns, turned);
  if (to.numel == 0) return GB_OK;
  GB_TRY(gb_cuda_copy(j->call, &to, x));
  gb_matrices_check(j->call->stream, *out, GB_MATRIX_NOT_FINITE, j->fault);
  return GB_OK;
}

/* Packed matrices into a result; turned: their transposes. */
static gb_status unpack(const job *j, const gb_cuda_tensor *y, const gb_matrices *m, bool turned) {
  if (y->numel == 0) return GB_OK;
  gb_cuda_tensor from = view(j, m, y->shape[y->ndim - 2], y->shape[y->ndim - 1], turned);
  return gb_cuda_copy(j->call, y, &from);
}

/* A vector, or a number, of each matrix into a result; own: how many dims of the result it is. */
static gb_status unpack_vector(const job *j, const gb_cuda_tensor *y, const gb_matrices *m, int own) {
  if (y->numel == 0) return GB_OK;
  gb_cuda_tensor from = view(j, m, m->rows, 1, false);
  from.ndim = j->ndim + own;
  return gb_cuda_copy(j->call, y, &from);
}

/* What one matrix of a packed batch lends to a routine. */
typedef struct operands { const gb_matrices *a, *b, *c, *s; int *pivots; } operands;

/* Run a routine on every matrix. */
static gb_status each(const job *j, gb_solve solve, operands o) {
  solve.dtype = j->dtype;
  solve.a = at(o.a, 0), solve.s = o.s ? at(o.s, 0) : NULL;
  if (j->count == 0) return GB_OK;
  GB_TRY(gb_solver_room(j->call, &solve, &solve.work_size));
  solve.work = gb_cuda_scratch(j->call, j->bytes * (size_t)(solve.work_size > 0 ? solve.work_size : 1));
  if (!solve.work) return GB_EMEMORY;
  for (int64_t i = 0; i < j->count; i++) {
    solve.a = at(o.a, i), solve.b = o.b ? at(o.b, i) : NULL, solve.c = o.c ? at(o.c, i) : NULL;
    solve.s = o.s ? at(o.s, i) : NULL;
    solve.pivots = o.pivots ? o.pivots + i * solve.n : NULL;
    solve.info = j->info + i;
    GB_TRY(gb_solver_run(j->call, &solve));
  }
  return GB_OK;
}

/* Read what was wrong, and tell it. */
static gb_status end(const job *j) {
  int64_t first = -1, *found = gb_cuda_scratch(j->call, sizeof first);
  if (!found) return GB_EMEMORY;
  gb_matrices_first_fault(j->call->stream, j->count, j->fault, j->info_kind ? j->info : NULL, j->info_kind,
                          GB_MATRIX_FAULTS, found);
  GB_TRY(gb_cuda_read(j->call, &first, found, sizeof first));
  if (first < 0) return GB_OK;
  const char *text = gb_matrix_fault_text((gb_matrix_fault)(first % GB_MATRIX_FAULTS));
  if (j->ndim == 0) return gb_cuda_fail(j->call, GB_EINVAL, "the matrix %s", text);
  return gb_cuda_fail(j->call, GB_EINVAL, "matrix %" PRId64 " of the batch of %" PRId64 " (from 1) %s",
                      first / GB_MATRIX_FAULTS + 1, j->count, text);
}

static int64_t rows_of(const gb_cuda_tensor *x) { return x->shape[x->ndim - 2]; }
static int64_t columns_of(const gb_cuda_tensor *x) { return x->shape[x->ndim - 1]; }

static gb_status cholesky(gb_cuda_call *call) {
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, linalg_cholesky)->y;
  bool upper = GB_ATTRS(call, linalg_cholesky)->upper.integer != 0;
  int n = (int)rows_of(y);
  gb_matrices a;
  job j;
  if (y->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, y, 2));
  j.info_kind = GB_MATRIX_NOT_POSITIVE;
  GB_TRY(pack(&j, GB_CUDA_IN(call, linalg_cholesky)->x, false, &a));
  GB_TRY(each(&j, (gb_solve){ .routine = GB_ROUTINE_POTRF, .m = n, .n = n, .upper = upper }, (operands){ .a = &a }));
  GB_TRY(end(&j));
  gb_matrices_triangle(call->stream, a, upper, false);
  return unpack(&j, y, &a, false);
}

/* LU of packed square matrices, in place. */
static gb_status factor(const job *j, const gb_matrices *a, int **pivots) {
  int n = (int)a->rows;
  *pivots = gb_cuda_scratch(j->call, sizeof(int) * (size_t)(j->count * n));
  if (!*pivots) return GB_EMEMORY;
  return each(j, (gb_solve){ .routine = GB_ROUTINE_GETRF, .m = n, .n = n }, (operands){ .a = a, .pivots = *pivots });
}

/* What LU found, then a x = b; b becomes x, and goes to the result. getrs has an info of its own, so this comes
 * first. */
static gb_status solve_packed(const job *j, const gb_matrices *a, int *pivots, bool transposed, gb_matrices *b,
                              const gb_cuda_tensor *x) {
  gb_solve solve = { .routine = GB_ROUTINE_GETRS, .m = (int)a->rows, .n = (int)a->rows, .k = (int)b->columns,
                     .transposed = transposed };
  GB_TRY(end(j));
  GB_TRY(each(j, solve, (operands){ .a = a, .b = b, .pivots = pivots }));
  return unpack(j, x, b, false);
}

static gb_status inv(gb_cuda_call *call) {
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, linalg_inv)->y;
  gb_matrices a, b;
  job j;
  int *pivots;
  if (y->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, y, 2));
  j.info_kind = GB_MATRIX_SINGULAR;
  GB_TRY(pack(&j, GB_CUDA_IN(call, linalg_inv)->x, false, &a));
  GB_TRY(take(&j, &b, a.rows, a.rows));
  gb_matrices_unit(call->stream, b);
  GB_TRY(factor(&j, &a, &pivots));
  return solve_packed(&j, &a, pivots, false, &b, y);
}

static gb_status solve(gb_cuda_call *call) {
  const gb_cuda_in_linalg_solve *in = GB_CUDA_IN(call, linalg_solve);
  const gb_cuda_tensor *x = GB_CUDA_OUT(call, linalg_solve)->x;
  gb_matrices a, b;
  job j;
  int *pivots;
  if (x->numel == 0 && columns_of(in->a) == 0) return GB_OK;
  GB_TRY(begin(&j, call, x, 2));
  if (j.count == 0) return GB_OK;
  j.info_kind = GB_MATRIX_SINGULAR;
  GB_TRY(pack(&j, in->a, false, &a));
  GB_TRY(pack(&j, in->b, false, &b));
  GB_TRY(factor(&j, &a, &pivots));
  return b.columns ? solve_packed(&j, &a, pivots, false, &b, x) : end(&j);
}

/* The transpose of a lower triangle is an upper one, which is the U of an LU without pivots. */
static gb_status solve_triangular(gb_cuda_call *call) {
  const gb_cuda_in_linalg_solve_triangular *in = GB_CUDA_IN(call, linalg_solve_triangular);
  const gb_attrs_linalg_solve_triangular *attrs = GB_ATTRS(call, linalg_solve_triangular);
  const gb_cuda_tensor *x = GB_CUDA_OUT(call, linalg_solve_triangular)->x;
  bool lower = attrs->upper.integer == 0;
  gb_matrices a, b;
  job j;
  if (x->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, x, 2));
  GB_TRY(pack(&j, in->a, lower, &a));
  GB_TRY(pack(&j, in->b, false, &b));
  gb_matrices_triangle(call->stream, a, true, attrs->unitriangular.integer != 0);
  gb_matrices_diagonal(call->stream, a, GB_MATRIX_SINGULAR, j.fault);
  int *pivots = gb_cuda_scratch(call, sizeof(int) * (size_t)(j.count * a.rows));
  if (!pivots) return GB_EMEMORY;
  gb_matrices_no_pivots(call->stream, a.rows, j.count, pivots);
  return solve_packed(&j, &a, pivots, lower, &b, x);
}

/* By LU; sign: NULL for the determinants themselves. */
static gb_status determinant(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_cuda_tensor *sign,
                             const gb_cuda_tensor *value) {
  gb_matrices a, signs = { 0 }, values;
  job j;
  int *pivots = NULL;
  if (value->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, value, 0));
  GB_TRY(pack(&j, x, false, &a));
  if (a.rows > 0) GB_TRY(factor(&j, &a, &pivots)); /* of a singular one a 0 stands on the diagonal */
  GB_TRY(end(&j));
  if (sign) GB_TRY(take(&j, &signs, 1, 1));
  GB_TRY(take(&j, &values, 1, 1));
  gb_matrices_determinant(call->stream, a, pivots, signs.data, values.data);
  if (sign) GB_TRY(unpack_vector(&j, sign, &signs, 0));
  return unpack_vector(&j, value, &values, 0);
}

static gb_status det(gb_cuda_call *call) {
  return determinant(call, GB_CUDA_IN(call, linalg_det)->x, NULL, GB_CUDA_OUT(call, linalg_det)->y);
}

static gb_status slogdet(gb_cuda_call *call) {
  const gb_cuda_out_linalg_slogdet *out = GB_CUDA_OUT(call, linalg_slogdet);
  return determinant(call, GB_CUDA_IN(call, linalg_slogdet)->x, out->sign, out->logabsdet);
}

/* The triangle is copied before the reflections beneath it become q. */
static gb_status qr(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, linalg_qr)->x;
  const gb_cuda_out_linalg_qr *out = GB_CUDA_OUT(call, linalg_qr);
  int64_t m = rows_of(x), n = columns_of(x), k = m < n ? m : n, columns = columns_of(out->q);
  gb_matrices a, r, tau, wide;
  job j;
  GB_TRY(begin(&j, call, out->q, 2));
  if (j.count == 0) return GB_OK;
  GB_TRY(take(&j, &wide, m, columns > n ? columns : n));
  gb_matrices_unit(call->stream, wide);
  if (k == 0) return unpack(&j, out->q, &wide, false); /* r has no element */
  GB_TRY(pack(&j, x, false, &a));
  GB_TRY(take(&j, &tau, k, 1));
  GB_TRY(each(&j, (gb_solve){ .routine = GB_ROUTINE_GEQRF, .m = (int)m, .n = (int)n }, (operands){ .a = &a,
                                                                                                   .s = &tau }));
  GB_TRY(take(&j, &r, columns, n));
  gb_cuda_tensor to = view(&j, &r, columns, n, false), from = view(&j, &a, columns, n, false);
  GB_TRY(gb_cuda_copy(call, &to, &from));
  gb_matrices_triangle(call->stream, r, true, false);
  to = view(&j, &wide, m, n, false), from = view(&j, &a, m, n, false);
  GB_TRY(gb_cuda_copy(call, &to, &from));
  gb_solve solve = { .routine = GB_ROUTINE_ORGQR, .m = (int)m, .n = (int)columns, .k = (int)k };
  GB_TRY(each(&j, solve, (operands){ .a = &wide, .s = &tau }));
  GB_TRY(end(&j));
  GB_TRY(unpack(&j, out->r, &r, false));
  return unpack(&j, out->q, &wide, false);
}

/* The singular values s of x, or of its transpose where it is wide, and its vectors. */
static gb_status decompose(job *j, const gb_cuda_tensor *x, bool full, gb_matrices *u, gb_matrices *s,
                           gb_matrices *vt) {
  bool wide = rows_of(x) < columns_of(x);
  gb_matrices a;
  j->info_kind = GB_MATRIX_NO_CONVERGENCE;
  GB_TRY(pack(j, x, wide, &a));
  GB_TRY(take(j, u, a.rows, full ? a.rows : a.columns));
  GB_TRY(take(j, s, a.columns, 1));
  GB_TRY(take(j, vt, a.columns, a.columns));
  gb_solve solve = { .routine = GB_ROUTINE_GESVD, .m = (int)a.rows, .n = (int)a.columns, .full = full };
  GB_TRY(each(j, solve, (operands){ .a = &a, .b = u, .c = vt, .s = s }));
  return end(j);
}

static gb_status svd(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, linalg_svd)->x;
  const gb_cuda_out_linalg_svd *out = GB_CUDA_OUT(call, linalg_svd);
  bool full = GB_ATTRS(call, linalg_svd)->full_matrices.integer != 0, wide = rows_of(x) < columns_of(x);
  gb_matrices u, s, vt;
  job j;
  GB_TRY(begin(&j, call, out->u, 2));
  if (j.count == 0) return GB_OK;
  if (out->s->numel == 0) {
    GB_TRY(take(&j, &u, rows_of(out->u), columns_of(out->u)));
    GB_TRY(take(&j, &vt, rows_of(out->vh), columns_of(out->vh)));
    gb_matrices_unit(call->stream, u);
    gb_matrices_unit(call->stream, vt);
    GB_TRY(unpack(&j, out->u, &u, false));
    return unpack(&j, out->vh, &vt, false);
  }
  GB_TRY(decompose(&j, x, full, &u, &s, &vt));
  GB_TRY(unpack_vector(&j, out->s, &s, 1));
  GB_TRY(unpack(&j, wide ? out->vh : out->u, &u, wide));
  return unpack(&j, wide ? out->u : out->vh, &vt, wide);
}

/* v / s u^T; of a wide x, whose transpose was decomposed, u / s v^T. */
static gb_status pinv(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, linalg_pinv)->x, *y = GB_CUDA_OUT(call, linalg_pinv)->y;
  const gb_attrs_linalg_pinv *attrs = GB_ATTRS(call, linalg_pinv);
  int64_t m = rows_of(x), n = columns_of(x), k = m < n ? m : n;
  bool wide = m < n;
  gb_matrices u, s, vt, out;
  job j;
  if (y->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, y, 2));
  GB_TRY(decompose(&j, x, false, &u, &s, &vt));
  gb_matrices_divide(call->stream, u, s.data, attrs->rtol.number, attrs->atol.number);
  GB_TRY(take(&j, &out, m, n)); /* column by column: the y's are its transposes, row by row */
  gb_gemm g = { .m = n, .n = m, .k = k, .ldc = m, .dtype = j.dtype, .alpha = 1 };
  g.a_stride = (wide ? n : k) * k, g.b_stride = (wide ? k : m) * k, g.c_stride = m * n;
  for (int64_t i = 0; i < j.count; i += g.batch) {
    g.batch = j.count - i < GB_GEMM_BATCH ? j.count - i : GB_GEMM_BATCH;
    g.a = (gb_gemm_matrix){ at(wide ? &u : &vt, i), j.dtype, wide ? 1 : k, wide ? n : 1 };
    g.b = (gb_gemm_matrix){ at(wide ? &vt : &u, i), j.dtype, wide ? 1 : m, wide ? k : 1 };
    g.c = at(&out, i);
    GB_TRY(gb_gemm_run(call, &g));
  }
  return unpack(&j, y, &out, true);
}

static gb_status eigh(gb_cuda_call *call) {
  const gb_cuda_out_linalg_eigh *out = GB_CUDA_OUT(call, linalg_eigh);
  bool upper = GB_ATTRS(call, linalg_eigh)->upper.integer != 0;
  int n = (int)rows_of(out->vectors);
  gb_matrices a, w;
  job j;
  if (out->vectors->numel == 0) return GB_OK;
  GB_TRY(begin(&j, call, out->vectors, 2));
  j.info_kind = GB_MATRIX_NO_CONVERGENCE;
  GB_TRY(pack(&j, GB_CUDA_IN(call, linalg_eigh)->x, false, &a));
  GB_TRY(take(&j, &w, n, 1));
  gb_solve solve = { .routine = GB_ROUTINE_SYEVD, .m = n, .n = n, .upper = upper };
  GB_TRY(each(&j, solve, (operands){ .a = &a, .s = &w }));
  GB_TRY(end(&j));
  GB_TRY(unpack_vector(&j, out->values, &w, 1));
  return unpack(&j, out->vectors, &a, false);
}

const gb_cuda_row gb_cuda_linalg[] = {
  { GB_OP_linalg_cholesky, cholesky, false }, { GB_OP_linalg_inv, inv, false }, { GB_OP_linalg_solve, solve, false },
  { GB_OP_linalg_solve_triangular, solve_triangular, false }, { GB_OP_linalg_det, det, false },
  { GB_OP_linalg_slogdet, slogdet, false }, { GB_OP_linalg_qr, qr, false }, { GB_OP_linalg_svd, svd, false },
  { GB_OP_linalg_pinv, pinv, false }, { GB_OP_linalg_eigh, eigh, false }, { GB_OP_COUNT, NULL, false },
};
