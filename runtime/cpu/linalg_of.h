/* cpu/linalg_of.h - the kernels of linear algebra for one matrix, in one type. cpu/linalg.c includes it for float32 and
 * float64: REAL is the type, OF(name) a name that ends in it, LA(name) LAPACK's routine.
 *
 * Matrices are packed column by column into the room of a thread. A matrix of no elements goes to no routine. */

/* A room that is handed out piece by piece. */
static REAL *OF(take)(char **room, int64_t n) {
  REAL *at = (REAL *)(void *)*room;
  *room += ((size_t)(n > 0 ? n : 1) * sizeof(REAL) + 63) & ~(size_t)63;
  return at;
}

/* Pack matrix i of x; false: an element is not finite. */
static bool OF(load)(const gb_matrix_job *job, const gb_tensor *x, int64_t i, REAL *to) {
  int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
  const char *from = gb_matrix_at(job, x, 2, i);
  int64_t step = x->stride[x->ndim - 1] * (int64_t)gb_dtype_bytes((gb_dtype)x->dtype);
  bool finite = true;
  for (int64_t j = 0; j < columns && !gb_work(rows); j++, to += rows) {
    LOAD(to, from + j * step, (gb_dtype)x->dtype, x->stride[x->ndim - 2], rows);
    for (int64_t k = 0; k < rows; k++) finite &= to[k] - to[k] == 0;
  }
  return finite;
}

/* Unpack into matrix i of y; `lead` elements from one column to the next. */
static void OF(store)(const gb_matrix_job *job, const gb_tensor *y, int64_t i, const REAL *from, int64_t lead) {
  int64_t rows = y->shape[y->ndim - 2], columns = y->shape[y->ndim - 1];
  char *to = gb_matrix_at(job, y, 2, i);
  int64_t step = y->stride[y->ndim - 1] * (int64_t)gb_dtype_bytes((gb_dtype)y->dtype);
  for (int64_t j = 0; j < columns && !gb_work(rows); j++, from += lead)
    STORE(to + j * step, (gb_dtype)y->dtype, y->stride[y->ndim - 2], from, rows);
}

/* Unpack a vector that belongs to matrix i. */
static void OF(store_vector)(const gb_matrix_job *job, const gb_tensor *y, int64_t i, const REAL *from) {
  STORE(gb_matrix_at(job, y, 1, i), (gb_dtype)y->dtype, y->stride[y->ndim - 1], from, y->shape[y->ndim - 1]);
}

/* A number that belongs to matrix i. */
static void OF(store_number)(const gb_matrix_job *job, const gb_tensor *y, int64_t i, REAL value) {
  STORE(gb_matrix_at(job, y, 0, i), (gb_dtype)y->dtype, 1, &value, 1);
}

/* The unit matrix, or the first columns of it. */
static void OF(unit)(REAL *to, int64_t rows, int64_t columns) {
  for (int64_t j = 0; j < columns && !gb_work(rows); j++, to += rows) {
    memset(to, 0, (size_t)rows * sizeof *to);
    if (j < rows) to[j] = 1;
  }
}

static gb_matrix_fault OF(cholesky)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_cholesky)->x;
  bool upper = GB_ATTRS(job->call, linalg_cholesky)->upper.integer != 0;
  int n = (int)x->shape[x->ndim - 1], info = 0;
  REAL *a = OF(take)(&room, (int64_t)n * n);
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (n && !gb_work(job->work)) LA(potrf)(upper ? "U" : "L", &n, a, &n, &info, 1);
  if (info > 0) return GB_MATRIX_NOT_POSITIVE;
  for (int64_t j = 0; j < n; j++)
    for (int64_t k = upper ? j + 1 : 0; k < (upper ? n : j); k++) a[j * n + k] = 0;
  OF(store)(job, GB_OUT(job->call, linalg_cholesky)->y, i, a, n);
  return GB_MATRIX_FINE;
}

/* LU in place; false: an element on the diagonal of U is 0. */
static bool OF(factor)(const gb_matrix_job *job, int n, REAL *a, int *pivots) {
  int info = 0;
  if (n && !gb_work(job->work)) LA(getrf)(&n, &n, a, &n, pivots, &info);
  return info == 0;
}

/* a x = b by LU; b becomes x. */
static gb_matrix_fault OF(solve_packed)(const gb_matrix_job *job, int n, int columns, REAL *a, int *pivots, REAL *b) {
  int info = 0;
  if (!OF(factor)(job, n, a, pivots)) return GB_MATRIX_SINGULAR;
  if (n && columns && !gb_work(job->work)) LA(getrs)("N", &n, &columns, a, &n, pivots, b, &n, &info, 1);
  return GB_MATRIX_FINE;
}

static gb_matrix_fault OF(inv)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_inv)->x;
  int n = (int)x->shape[x->ndim - 1];
  REAL *a = OF(take)(&room, (int64_t)n * n), *b = OF(take)(&room, (int64_t)n * n);
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  OF(unit)(b, n, n);
  gb_matrix_fault fault = OF(solve_packed)(job, n, n, a, (int *)(void *)room, b);
  if (fault == GB_MATRIX_FINE) OF(store)(job, GB_OUT(job->call, linalg_inv)->y, i, b, n);
  return fault;
}

static gb_matrix_fault OF(solve)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_in_linalg_solve *in = GB_IN(job->call, linalg_solve);
  int n = (int)in->a->shape[in->a->ndim - 1], columns = (int)in->b->shape[in->b->ndim - 1];
  REAL *a = OF(take)(&room, (int64_t)n * n), *b = OF(take)(&room, (int64_t)n * columns);
  bool finite = OF(load)(job, in->a, i, a);
  if (!OF(load)(job, in->b, i, b) || !finite) return GB_MATRIX_NOT_FINITE;
  gb_matrix_fault fault = OF(solve_packed)(job, n, columns, a, (int *)(void *)room, b);
  if (fault == GB_MATRIX_FINE) OF(store)(job, GB_OUT(job->call, linalg_solve)->x, i, b, n);
  return fault;
}

static gb_matrix_fault OF(solve_triangular)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_in_linalg_solve_triangular *in = GB_IN(job->call, linalg_solve_triangular);
  const gb_attrs_linalg_solve_triangular *attrs = GB_ATTRS(job->call, linalg_solve_triangular);
  int n = (int)in->a->shape[in->a->ndim - 1], columns = (int)in->b->shape[in->b->ndim - 1], info = 0;
  REAL *a = OF(take)(&room, (int64_t)n * n), *b = OF(take)(&room, (int64_t)n * columns);
  bool finite = OF(load)(job, in->a, i, a);
  if (!OF(load)(job, in->b, i, b) || !finite) return GB_MATRIX_NOT_FINITE;
  if (n && columns && !gb_work(job->work))
    LA(trtrs)(attrs->upper.integer ? "U" : "L", "N", attrs->unitriangular.integer ? "U" : "N", &n, &columns, a, &n, b,
              &n, &info, 1, 1, 1);
  if (info > 0) return GB_MATRIX_SINGULAR;
  OF(store)(job, GB_OUT(job->call, linalg_solve_triangular)->x, i, b, n);
  return GB_MATRIX_FINE;
}

/* L and D of a symmetric matrix, by Bunch and Kaufman's pivots; above the diagonal stands 0. */
static gb_matrix_fault OF(ldl_factor)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_ldl_factor)->x;
  const gb_out_linalg_ldl_factor *out = GB_OUT(job->call, linalg_ldl_factor);
  int n = (int)x->shape[x->ndim - 1], lwork = LAPACK_BLOCK * n, info = 0;
  REAL *a = OF(take)(&room, (int64_t)n * n), *work = OF(take)(&room, lwork);
  int *pivots = (int *)(void *)room;
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (n && !gb_work(job->work)) LA(sytrf)("L", &n, a, &n, pivots, work, &lwork, &info, 1);
  if (info > 0) return GB_MATRIX_SINGULAR;
  for (int64_t j = 0; j < n; j++) memset(a + j * n, 0, (size_t)j * sizeof *a);
  OF(store)(job, out->ld, i, a, n);
  if (n && !gb_work(n)) memcpy(gb_matrix_at(job, out->pivots, 1, i), pivots, (size_t)n * sizeof *pivots);
  return GB_MATRIX_FINE;
}

/* Is an element of D, or a square of two rows of it, 0? n pivots are such that LAPACK follows them. */
static gb_matrix_fault OF(check_factors)(int n, const REAL *a, const int *pivots) {
  gb_matrix_fault fault = GB_MATRIX_FINE;
  for (int64_t j = 0; j < n; j++) {
    const REAL *d = a + j * n + j;
    int row = pivots[j] < 0 ? -pivots[j] : pivots[j];
    if (row < 1 || row > n) return GB_MATRIX_NO_PIVOTS;
    if (pivots[j] > 0) {
      if (d[0] == 0) fault = GB_MATRIX_SINGULAR;
      continue;
    }
    if (++j == n || pivots[j] != pivots[j - 1]) return GB_MATRIX_NO_PIVOTS;
    if (d[1] == 0 || d[0] / d[1] * (d[n + 1] / d[1]) == 1) fault = GB_MATRIX_SINGULAR;
  }
  return fault;
}

static gb_matrix_fault OF(ldl_solve)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_in_linalg_ldl_solve *in = GB_IN(job->call, linalg_ldl_solve);
  const gb_tensor *ids = in->pivots;
  int n = (int)in->ld->shape[in->ld->ndim - 1], columns = (int)in->b->shape[in->b->ndim - 1], info = 0;
  REAL *a = OF(take)(&room, (int64_t)n * n), *b = OF(take)(&room, (int64_t)n * columns);
  int64_t *wide = (int64_t *)(void *)OF(take)(&room, 2 * (int64_t)n);
  int *pivots = (int *)(void *)room;
  bool finite = OF(load)(job, in->ld, i, a);
  if (!OF(load)(job, in->b, i, b) || !finite) return GB_MATRIX_NOT_FINITE;
  if (n) gb_load_i64(wide, gb_matrix_at(job, ids, 1, i), (gb_dtype)ids->dtype, ids->stride[ids->ndim - 1], n);
  for (int64_t j = 0; j < n && !gb_work(1); j++) pivots[j] = wide[j] < -n || wide[j] > n ? 0 : (int)wide[j];
  gb_matrix_fault fault = OF(check_factors)(n, a, pivots);
  if (fault != GB_MATRIX_FINE) return fault;
  if (n && columns && !gb_work(job->work)) LA(sytrs)("L", &n, &columns, a, &n, pivots, b, &n, &info, 1);
  OF(store)(job, GB_OUT(job->call, linalg_ldl_solve)->x, i, b, n);
  return GB_MATRIX_FINE;
}

/* The sign of the permutation that LU made; after it a holds LU. false: not finite. */
static bool OF(factored)(const gb_matrix_job *job, const gb_tensor *x, int64_t i, char *room, REAL **a, REAL *sign) {
  int n = (int)x->shape[x->ndim - 1];
  *a = OF(take)(&room, (int64_t)n * n);
  int *pivots = (int *)(void *)room;
  if (!OF(load)(job, x, i, *a)) return false;
  OF(factor)(job, n, *a, pivots); /* of a singular one it goes on, and a 0 stands on the diagonal */
  *sign = 1;
  for (int j = 0; j < n; j++)
    if (pivots[j] != j + 1) *sign = -*sign;
  return true;
}

static gb_matrix_fault OF(det)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_det)->x;
  int64_t n = x->shape[x->ndim - 1];
  REAL *a, det;
  if (!OF(factored)(job, x, i, room, &a, &det)) return GB_MATRIX_NOT_FINITE;
  for (int64_t j = 0; j < n; j++) det *= a[j * n + j];
  OF(store_number)(job, GB_OUT(job->call, linalg_det)->y, i, det);
  return GB_MATRIX_FINE;
}

static gb_matrix_fault OF(slogdet)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_slogdet)->x;
  int64_t n = x->shape[x->ndim - 1];
  REAL *a, sign, total = 0;
  if (!OF(factored)(job, x, i, room, &a, &sign)) return GB_MATRIX_NOT_FINITE;
  for (int64_t j = 0; j < n; j++) {
    REAL d = a[j * n + j];
    sign = d == 0 ? 0 : d < 0 ? -sign : sign;
    total += (REAL)log(d < 0 ? -(double)d : (double)d);
  }
  OF(store_number)(job, GB_OUT(job->call, linalg_slogdet)->sign, i, sign);
  OF(store_number)(job, GB_OUT(job->call, linalg_slogdet)->logabsdet, i, total);
  return GB_MATRIX_FINE;
}

/* Householder's reflections, whose product's first columns are q; the triangle that they leave is r. */
static gb_matrix_fault OF(qr)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_qr)->x;
  const gb_out_linalg_qr *out = GB_OUT(job->call, linalg_qr);
  int m = (int)x->shape[x->ndim - 2], n = (int)x->shape[x->ndim - 1], k = m < n ? m : n, info = 0;
  int columns = (int)out->q->shape[out->q->ndim - 1], lwork = LAPACK_BLOCK * (m > n ? m : n);
  REAL *a = OF(take)(&room, (int64_t)m * (columns > n ? columns : n)), *r = OF(take)(&room, (int64_t)columns * n);
  REAL *tau = OF(take)(&room, k), *work = OF(take)(&room, lwork);
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (k && !gb_work(job->work)) LA(geqrf)(&m, &n, a, &m, tau, work, &lwork, &info);
  for (int64_t j = 0; j < n && !gb_work(columns); j++)
    for (int64_t row = 0; row < columns; row++) r[j * columns + row] = row <= j ? a[j * m + row] : 0;
  OF(store)(job, out->r, i, r, columns);
  if (!k) OF(unit)(a, m, columns);
  else if (!gb_work(job->work)) LA(orgqr)(&m, &columns, &k, a, &m, tau, work, &lwork, &info);
  OF(store)(job, out->q, i, a, m);
  return GB_MATRIX_FINE;
}

/* Singular values in s, vectors in u and vt where job is not 'N': of both `left` and `right` many. */
static gb_matrix_fault OF(decompose)(const gb_matrix_job *job, const char *which, int m, int n, REAL *a, REAL *s,
                                     REAL *u, REAL *vt, int rows_of_vt, char *room) {
  int k = m < n ? m : n, info = 0, most = m > n ? m : n;
  int lwork = 4 * k * k + 7 * k + most + LAPACK_BLOCK * (m + n);
  int *iwork = (int *)(void *)OF(take)(&room, 8 * (int64_t)k);
  REAL *work = OF(take)(&room, lwork);
  if (!gb_work(job->work))
    LA(gesdd)(which, &m, &n, a, &m, s, u, &m, vt, &rows_of_vt, work, &lwork, iwork, &info, 1);
  return info > 0 ? GB_MATRIX_NO_CONVERGENCE : GB_MATRIX_FINE;
}

static gb_matrix_fault OF(svd)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_svd)->x;
  const gb_out_linalg_svd *out = GB_OUT(job->call, linalg_svd);
  int m = (int)x->shape[x->ndim - 2], n = (int)x->shape[x->ndim - 1];
  int left = (int)out->u->shape[out->u->ndim - 1], right = (int)out->vh->shape[out->vh->ndim - 2];
  bool full = GB_ATTRS(job->call, linalg_svd)->full_matrices.integer != 0;
  REAL *a = OF(take)(&room, (int64_t)m * n), *s = OF(take)(&room, m < n ? m : n);
  REAL *u = OF(take)(&room, (int64_t)m * left), *vt = OF(take)(&room, (int64_t)right * n);
  gb_matrix_fault fault = GB_MATRIX_FINE;
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (m && n) fault = OF(decompose)(job, full ? "A" : "S", m, n, a, s, u, vt, right, room);
  else OF(unit)(u, m, left), OF(unit)(vt, right, n);
  if (fault != GB_MATRIX_FINE) return fault;
  OF(store)(job, out->u, i, u, m);
  OF(store_vector)(job, out->s, i, s);
  OF(store)(job, out->vh, i, vt, right);
  return GB_MATRIX_FINE;
}

/* v / s u^T over the singular values above atol and rtol times the largest. */
static gb_matrix_fault OF(pinv)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_pinv)->x;
  const gb_attrs_linalg_pinv *attrs = GB_ATTRS(job->call, linalg_pinv);
  int m = (int)x->shape[x->ndim - 2], n = (int)x->shape[x->ndim - 1], k = m < n ? m : n, rank = 0;
  REAL *a = OF(take)(&room, (int64_t)m * n), *s = OF(take)(&room, k), one = 1, none = 0;
  REAL *u = OF(take)(&room, (int64_t)m * k), *vt = OF(take)(&room, (int64_t)k * n);
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (!k) return GB_MATRIX_FINE; /* no element to write */
  gb_matrix_fault fault = OF(decompose)(job, "S", m, n, a, s, u, vt, k, room);
  if (fault != GB_MATRIX_FINE) return fault;
  double least = attrs->rtol.number * (double)s[0];
  if (attrs->atol.number > least) least = attrs->atol.number;
  while (rank < k && (double)s[rank] > least && s[rank] > 0) rank++;
  for (int64_t j = 0; j < rank && !gb_work(m); j++)
    for (int64_t row = 0; row < m; row++) u[j * m + row] /= s[j];
  if (rank && !gb_work(job->work)) LA(gemm)("T", "T", &n, &m, &rank, &one, vt, &k, u, &m, &none, a, &n, 1, 1);
  else memset(a, 0, (size_t)m * (size_t)n * sizeof *a);
  OF(store)(job, GB_OUT(job->call, linalg_pinv)->y, i, a, n);
  return GB_MATRIX_FINE;
}

static gb_matrix_fault OF(eigh)(const gb_matrix_job *job, int64_t i, char *room) {
  const gb_tensor *x = GB_IN(job->call, linalg_eigh)->x;
  const gb_out_linalg_eigh *out = GB_OUT(job->call, linalg_eigh);
  const char *half = GB_ATTRS(job->call, linalg_eigh)->upper.integer ? "U" : "L";
  int n = (int)x->shape[x->ndim - 1], info = 0;
  int lwork = 1 + (6 + LAPACK_BLOCK) * n + 2 * n * n, liwork = 3 + 5 * n;
  REAL *a = OF(take)(&room, (int64_t)n * n), *w = OF(take)(&room, n), *work = OF(take)(&room, lwork);
  if (!OF(load)(job, x, i, a)) return GB_MATRIX_NOT_FINITE;
  if (n && !gb_work(job->work))
    LA(syevd)("V", half, &n, a, &n, w, work, &lwork, (int *)(void *)room, &liwork, &info, 1, 1);
  if (info > 0) return GB_MATRIX_NO_CONVERGENCE;
  OF(store_vector)(job, out->values, i, w);
  OF(store)(job, out->vectors, i, a, n);
  return GB_MATRIX_FINE;
}

#undef REAL
#undef OF
#undef LA
#undef LOAD
#undef STORE
