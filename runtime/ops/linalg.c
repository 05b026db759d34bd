/* ops/linalg.c - linear algebra: checks and gradients of what gb.linalg is made of.
 *
 * A gradient is made of matrix products and of these ops themselves, so it can be differentiated again. Gradients of
 * vectors (of qr, svd and eigh) are those of decompositions without equal values; where singular values or eigenvalues
 * are equal they are infinite or NaN, as in PyTorch. */
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"

/* {==== Checks ==== */

/* Sizes that 32-bit integers of LAPACK can count, with what it works in. */
enum { MOST_ROWS = 16384 };

/* Floats that LAPACK computes in; 16 bits only under autocast, which computes in float32. */
static gb_status check_dtype(gb_op_call *call, int input) {
  const gb_tensor *x = call->in[input];
  GB_TRY(gb_require_float(call, input));
  if (!gb_is_16bit((gb_dtype)x->dtype) || call->result == GB_FLOAT32) return GB_OK;
  return gb_call_fail(call, GB_EDTYPE, "'%s' is %s; this computes in float32 or float64: call x:float() first",
                      call->info->in[input].name, gb_dtype_name((gb_dtype)x->dtype));
}

/* A matrix, or a batch of them. */
static gb_status check_matrix(gb_op_call *call, int input) {
  const gb_tensor *x = call->in[input];
  GB_TRY(check_dtype(call, input));
  GB_TRY(gb_require_ndim(call, input, 2, GB_MAX_NDIM));
  int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
  if (rows <= MOST_ROWS && columns <= MOST_ROWS) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has matrices of %" PRId64 " x %" PRId64 ", and LAPACK takes %d rows or "
                      "columns here at most", call->info->in[input].name, rows, columns, MOST_ROWS);
}

/* A square one. */
static gb_status check_square(gb_op_call *call, int input) {
  const gb_tensor *x = call->in[input];
  char text[96];
  GB_TRY(check_matrix(call, input));
  if (x->shape[x->ndim - 1] == x->shape[x->ndim - 2]) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s; its last two sizes must be equal",
                      call->info->in[input].name, gb_shape_text(x->ndim, x->shape, text, sizeof text));
}

/* What all of the inputs compute in. */
static gb_dtype dtype_of(gb_op_call *call) { return gb_call_dtype(call, gb_result_type(call->in, call->n_in)); }

/* Output i: the first dims of x, of which the last two are replaced by as many of these sizes as are not negative. */
static gb_status matrix_output(gb_op_call *call, int i, const gb_tensor *x, int64_t rows, int64_t columns) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = x->ndim - 2;
  memcpy(shape, x->shape, (size_t)ndim * sizeof *shape);
  if (rows >= 0) shape[ndim++] = rows;
  if (columns >= 0) shape[ndim++] = columns;
  return gb_call_output(call, i, ndim, shape, dtype_of(call));
}

/* Ops of one square matrix x that give one like it. */
static gb_status square_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_inv)->x;
  GB_TRY(check_square(call, GB_IN_AT(linalg_inv, x)));
  return matrix_output(call, GB_OUT_AT(linalg_inv, y), x, x->shape[x->ndim - 1], x->shape[x->ndim - 1]);
}
_Static_assert(GB_IN_AT(linalg_cholesky, x) == GB_IN_AT(linalg_inv, x), "inv stands for both");
_Static_assert(GB_OUT_AT(linalg_cholesky, y) == GB_OUT_AT(linalg_inv, y), "inv stands for both");

/* Output i of a system: a [..., n, n], b [..., n, k] -> x [..., n, k]. name: a's. */
static gb_status solution_output(gb_op_call *call, const gb_tensor *a, const char *name, const gb_tensor *b, int i) {
  char left[96], right[96];
  int ndim = a->ndim - 2;
  int64_t shape[GB_MAX_NDIM], n = a->shape[a->ndim - 1];
  memcpy(shape, a->shape, (size_t)ndim * sizeof *shape);
  if (b->shape[b->ndim - 2] != n || !gb_broadcast(&ndim, shape, b->ndim - 2, b->shape))
    return gb_call_fail(call, GB_ESHAPE, "%s %s and b %s do not fit: b needs as many rows as %s, and batches that "
                        "broadcast", name, gb_shape_text(a->ndim, a->shape, left, sizeof left),
                        gb_shape_text(b->ndim, b->shape, right, sizeof right), name);
  shape[ndim++] = n;
  shape[ndim++] = b->shape[b->ndim - 1];
  return gb_call_output(call, i, ndim, shape, dtype_of(call));
}

static gb_status solve_check(gb_op_call *call) {
  GB_TRY(check_square(call, GB_IN_AT(linalg_solve, a)));
  GB_TRY(check_matrix(call, GB_IN_AT(linalg_solve, b)));
  return solution_output(call, GB_IN(call, linalg_solve)->a, "a", GB_IN(call, linalg_solve)->b,
                         GB_OUT_AT(linalg_solve, x));
}
_Static_assert(GB_IN_AT(linalg_solve_triangular, a) == GB_IN_AT(linalg_solve, a), "solve stands for both");
_Static_assert(GB_IN_AT(linalg_solve_triangular, b) == GB_IN_AT(linalg_solve, b), "solve stands for both");
_Static_assert(GB_OUT_AT(linalg_solve_triangular, x) == GB_OUT_AT(linalg_solve, x), "solve stands for both");

static gb_status ldl_factor_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_ldl_factor)->x;
  int64_t n, shape[GB_MAX_NDIM];
  GB_TRY(check_square(call, GB_IN_AT(linalg_ldl_factor, x)));
  n = x->shape[x->ndim - 1];
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_ldl_factor, ld), x, n, n));
  memcpy(shape, x->shape, (size_t)(x->ndim - 1) * sizeof *shape);
  return gb_call_output(call, GB_OUT_AT(linalg_ldl_factor, pivots), x->ndim - 1, shape, GB_INT32);
}

/* ld [..., n, n], pivots [..., n] of the same batch, b [..., n, k] -> x [..., n, k]. */
static gb_status ldl_solve_check(gb_op_call *call) {
  const gb_in_linalg_ldl_solve *in = GB_IN(call, linalg_ldl_solve);
  char left[96], right[96];
  GB_TRY(check_square(call, GB_IN_AT(linalg_ldl_solve, ld)));
  GB_TRY(gb_require_integer(call, GB_IN_AT(linalg_ldl_solve, pivots)));
  GB_TRY(check_matrix(call, GB_IN_AT(linalg_ldl_solve, b)));
  bool fits = in->pivots->ndim == in->ld->ndim - 1;
  for (int i = 0; fits && i < in->pivots->ndim; i++) fits = in->pivots->shape[i] == in->ld->shape[i];
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "ld %s and pivots %s do not fit; pivots are those of ldl_factor",
                        gb_shape_text(in->ld->ndim, in->ld->shape, left, sizeof left),
                        gb_shape_text(in->pivots->ndim, in->pivots->shape, right, sizeof right));
  return solution_output(call, in->ld, "ld", in->b, GB_OUT_AT(linalg_ldl_solve, x));
}

static gb_status det_check(gb_op_call *call) {
  GB_TRY(check_square(call, GB_IN_AT(linalg_det, x)));
  return matrix_output(call, GB_OUT_AT(linalg_det, y), GB_IN(call, linalg_det)->x, -1, -1);
}

static gb_status slogdet_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_slogdet)->x;
  GB_TRY(check_square(call, GB_IN_AT(linalg_slogdet, x)));
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_slogdet, sign), x, -1, -1));
  return matrix_output(call, GB_OUT_AT(linalg_slogdet, logabsdet), x, -1, -1);
}

static gb_status qr_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_qr)->x;
  GB_TRY(check_matrix(call, GB_IN_AT(linalg_qr, x)));
  int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1];
  int64_t columns = GB_ATTRS(call, linalg_qr)->complete.integer || m < n ? m : n;
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_qr, q), x, m, columns));
  return matrix_output(call, GB_OUT_AT(linalg_qr, r), x, columns, n);
}

static gb_status svd_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_svd)->x;
  GB_TRY(check_matrix(call, GB_IN_AT(linalg_svd, x)));
  int64_t m = x->shape[x->ndim - 2], n = x->shape[x->ndim - 1], k = m < n ? m : n;
  bool full = GB_ATTRS(call, linalg_svd)->full_matrices.integer != 0;
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_svd, u), x, m, full ? m : k));
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_svd, s), x, k, -1));
  return matrix_output(call, GB_OUT_AT(linalg_svd, vh), x, full ? n : k, n);
}

static gb_status pinv_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_pinv)->x;
  GB_TRY(check_matrix(call, GB_IN_AT(linalg_pinv, x)));
  return matrix_output(call, GB_OUT_AT(linalg_pinv, y), x, x->shape[x->ndim - 1], x->shape[x->ndim - 2]);
}

static gb_status eigh_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linalg_eigh)->x;
  GB_TRY(check_square(call, GB_IN_AT(linalg_eigh, x)));
  int64_t n = x->shape[x->ndim - 1];
  GB_TRY(matrix_output(call, GB_OUT_AT(linalg_eigh, values), x, n, -1));
  return matrix_output(call, GB_OUT_AT(linalg_eigh, vectors), x, n, n);
}

/* ====} */

/* {==== Steps of a gradient ==== */

static gb_tensor *turn(gb_chain *c, gb_tensor *x) {
  return GB_CHAIN(c, transpose, .x = x, .first = gb_attr_int(-2), .second = gb_attr_int(-1));
}

static gb_tensor *product(gb_chain *c, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(c, matmul, .x = x, .y = y); }

static gb_tensor *add(gb_chain *c, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(c, add, .x = x, .y = y); }

static gb_tensor *sub(gb_chain *c, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(c, sub, .x = x, .y = y); }

static gb_tensor *mul(gb_chain *c, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(c, mul, .x = x, .y = y); }

/* x + y, where either may be absent. */
static gb_tensor *add_given(gb_chain *c, gb_tensor *x, gb_tensor *y) { return x && y ? add(c, x, y) : x ? x : y; }

static gb_tensor *lower(gb_chain *c, gb_tensor *x, int64_t diagonal) {
  return GB_CHAIN(c, tril, .x = x, .diagonal = gb_attr_int(diagonal));
}

static gb_tensor *upper(gb_chain *c, gb_tensor *x, int64_t diagonal) {
  return GB_CHAIN(c, triu, .x = x, .diagonal = gb_attr_int(diagonal));
}

/* A vector's elements as columns [..., 1, n], or as rows [..., n, 1]. */
static gb_tensor *as_row(gb_chain *c, gb_tensor *x) { return GB_CHAIN(c, unsqueeze, .x = x, .dim = gb_attr_int(-2)); }
static gb_tensor *as_column(gb_chain *c, gb_tensor *x) {
  return GB_CHAIN(c, unsqueeze, .x = x, .dim = gb_attr_int(-1));
}

/* A number of each matrix, beside the matrices. */
static gb_tensor *as_matrix(gb_chain *c, gb_tensor *x) { return as_column(c, as_column(c, x)); }

/* The first n of the last dim, or of the one before. */
static gb_tensor *first_of(gb_chain *c, gb_tensor *x, int64_t dim, int64_t n) {
  return GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(0), .length = gb_attr_int(n));
}

/* The unit matrix of n rows, in x's dtype and on its device. */
static gb_tensor *unit(gb_chain *c, const gb_tensor *x, int64_t n) {
  gb_tensor *ones = gb_chain_full(c, (gb_dtype)x->dtype, 2, (int64_t[]){ n, n }, x->storage->device, 1);
  return upper(c, lower(c, ones, 0), 0);
}

/* The diagonal halved. */
static gb_tensor *half_diagonal_of_lower(gb_chain *c, gb_tensor *x) {
  return gb_chain_number(c, GB_OP_mul, add(c, lower(c, x, 0), lower(c, x, -1)), 0.5);
}

static gb_tensor *solve_upper(gb_chain *c, gb_tensor *a, gb_tensor *b) {
  return GB_CHAIN(c, linalg_solve_triangular, .a = a, .b = b, .upper = gb_attr_int(true));
}

/* End a chain with the gradient of an operand that was broadcast to it. */
static gb_status end_sum(gb_chain *c, gb_tensor *gradient, const gb_edge *edge, gb_tensor **out) {
  gb_tensor *full = NULL;
  GB_TRY(gb_chain_end(c, gradient, &full));
  gb_status status = gb_sum_to(c->context, full, edge->ndim, edge->shape, out);
  gb_tensor_release(full);
  return status;
}

/* ====} */

/* {==== Gradients ==== */

/* x = l l^T: l^-T P(l^T dl) l^-1, symmetric, where P takes the lower triangle and halves the diagonal. */
static gb_status cholesky_gradient(gb_grad_call *grad) {
  bool is_upper = GB_ATTRS(grad, linalg_cholesky)->upper.integer != 0;
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *y = GB_KEPT(grad, linalg_cholesky)->y, *dy = GB_GRAD_OUT(grad, linalg_cholesky)->y;
  gb_tensor *u = is_upper ? y : turn(&c, y), *dl = is_upper ? turn(&c, dy) : dy;
  gb_tensor *inner = half_diagonal_of_lower(&c, product(&c, u, dl));
  gb_tensor *whole = solve_upper(&c, u, turn(&c, solve_upper(&c, u, inner)));
  return gb_chain_end(&c, gb_chain_number(&c, GB_OP_mul, add(&c, whole, turn(&c, whole)), 0.5),
                      &GB_GRAD_IN(grad, linalg_cholesky)->x);
}

/* -y^T dy y^T. */
static gb_status inv_gradient(gb_grad_call *grad) {
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *y = turn(&c, GB_KEPT(grad, linalg_inv)->y);
  gb_tensor *dx = product(&c, product(&c, y, GB_GRAD_OUT(grad, linalg_inv)->y), y);
  return gb_chain_end(&c, GB_CHAIN(&c, neg, .x = dx), &GB_GRAD_IN(grad, linalg_inv)->x);
}

/* db = a^-T dx, da = -db x^T. */
static gb_status solve_gradient(gb_grad_call *grad) {
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *a = turn(&c, gb_chain_widen(&c, GB_SAVED(grad, linalg_solve)->a)), *made = NULL;
  gb_tensor *b = GB_CHAIN(&c, linalg_solve, .a = a, .b = GB_GRAD_OUT(grad, linalg_solve)->x);
  GB_TRY(gb_chain_end(&c, b, &made));
  gb_status status = GB_OK;
  if (GB_NEEDS(grad, linalg_solve, b))
    status = gb_sum_to(grad->context, made, GB_EDGE(grad, linalg_solve, b)->ndim, GB_EDGE(grad, linalg_solve, b)->shape,
                       &GB_GRAD_IN(grad, linalg_solve)->b);
  if (status == GB_OK && GB_NEEDS(grad, linalg_solve, a)) {
    gb_chain_begin(&c, grad->context);
    gb_tensor *da = product(&c, made, turn(&c, GB_KEPT(grad, linalg_solve)->x));
    status = end_sum(&c, GB_CHAIN(&c, neg, .x = da), GB_EDGE(grad, linalg_solve, a),
                     &GB_GRAD_IN(grad, linalg_solve)->a);
  }
  gb_tensor_release(made);
  return status;
}

/* PyTorch has none, neither of the factors nor by them. */
static gb_status ldl_factor_gradient(gb_grad_call *grad) {
  return gb_fail(grad->context, GB_EAUTOGRAD, "linalg.ldl_factor has no gradient; detach its matrix, or use "
                                              "linalg.solve or linalg.lu_factor, which have one");
}

/* db = a^-1 dx: a is symmetric. */
static gb_status ldl_solve_gradient(gb_grad_call *grad) {
  const gb_in_linalg_ldl_solve *saved = GB_SAVED(grad, linalg_ldl_solve);
  const gb_edge *of_b = GB_EDGE(grad, linalg_ldl_solve, b);
  if (GB_NEEDS(grad, linalg_ldl_solve, ld))
    return gb_fail(grad->context, GB_EAUTOGRAD, "linalg.ldl_solve has no gradient of LD; detach it, or use "
                                                "linalg.solve or linalg.lu_solve, which have one");
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *b = GB_CHAIN(&c, linalg_ldl_solve, .ld = gb_chain_widen(&c, saved->ld), .pivots = saved->pivots,
                          .b = GB_GRAD_OUT(grad, linalg_ldl_solve)->x);
  return end_sum(&c, b, of_b, &GB_GRAD_IN(grad, linalg_ldl_solve)->b);
}

/* The same as of solve, of the triangle that was read. */
static gb_status solve_triangular_gradient(gb_grad_call *grad) {
  const gb_attrs_linalg_solve_triangular *attrs = GB_ATTRS(grad, linalg_solve_triangular);
  const gb_edge *of_a = GB_EDGE(grad, linalg_solve_triangular, a), *of_b = GB_EDGE(grad, linalg_solve_triangular, b);
  bool is_upper = attrs->upper.integer != 0, unit_diagonal = attrs->unitriangular.integer != 0;
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *a = turn(&c, gb_chain_widen(&c, GB_SAVED(grad, linalg_solve_triangular)->a)), *made = NULL;
  gb_tensor *b = GB_CHAIN(&c, linalg_solve_triangular, .a = a, .b = GB_GRAD_OUT(grad, linalg_solve_triangular)->x,
                          .upper = gb_attr_int(!is_upper), .unitriangular = attrs->unitriangular);
  GB_TRY(gb_chain_end(&c, b, &made));
  gb_status status = GB_OK;
  if (GB_NEEDS(grad, linalg_solve_triangular, b))
    status = gb_sum_to(grad->context, made, of_b->ndim, of_b->shape, &GB_GRAD_IN(grad, linalg_solve_triangular)->b);
  if (status == GB_OK && GB_NEEDS(grad, linalg_solve_triangular, a)) {
    gb_chain_begin(&c, grad->context);
    gb_tensor *da = product(&c, made, turn(&c, GB_KEPT(grad, linalg_solve_triangular)->x));
    da = is_upper ? upper(&c, da, unit_diagonal) : lower(&c, da, unit_diagonal ? -1 : 0);
    status = end_sum(&c, GB_CHAIN(&c, neg, .x = da), of_a, &GB_GRAD_IN(grad, linalg_solve_triangular)->a);
  }
  gb_tensor_release(made);
  return status;
}

/* The cofactors of x, by its singular values: those of a singular matrix too. */
static gb_tensor *cofactors(gb_chain *c, gb_tensor *x) {
  gb_out_linalg_svd made = { 0 };
  if (c->status != GB_OK) return NULL;
  c->status = GB_RUN(c->context, linalg_svd, &made.u, .x = x);
  gb_tensor *result = NULL;
  if (c->status == GB_OK) {
    gb_tensor *eye = unit(c, made.s, made.s->shape[made.s->ndim - 1]);
    gb_tensor *others = gb_chain_number(c, GB_OP_add, GB_CHAIN(c, neg, .x = eye), 1);
    gb_tensor *rest = GB_CHAIN(c, prod, .x = add(c, mul(c, as_row(c, made.s), others), eye),
                               .dim = gb_attr_ints(1, (int64_t[]){ -1 }));
    gb_tensor *sign = mul(c, GB_CHAIN(c, linalg_det, .x = made.u), GB_CHAIN(c, linalg_det, .x = made.vh));
    result = mul(c, product(c, mul(c, made.u, as_row(c, rest)), made.vh), as_matrix(c, sign));
  }
  gb_tensor_release(made.u);
  gb_tensor_release(made.s);
  gb_tensor_release(made.vh);
  return result;
}

/* The cofactors; for a second derivative y x^-T, which singular matrices do not have. */
static gb_status det_gradient(gb_grad_call *grad) {
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *x = gb_chain_widen(&c, GB_SAVED(grad, linalg_det)->x), *dy = GB_GRAD_OUT(grad, linalg_det)->y;
  gb_tensor *slope = !grad->create_graph ? cofactors(&c, x)
                     : mul(&c, as_matrix(&c, GB_KEPT(grad, linalg_det)->y), turn(&c, GB_CHAIN(&c, linalg_inv, .x = x)));
  return gb_chain_end(&c, mul(&c, as_matrix(&c, dy), slope), &GB_GRAD_IN(grad, linalg_det)->x);
}

/* x^-T. */
static gb_status slogdet_gradient(gb_grad_call *grad) {
  gb_tensor *dy = GB_GRAD_OUT(grad, linalg_slogdet)->logabsdet;
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *x = gb_chain_widen(&c, GB_SAVED(grad, linalg_slogdet)->x);
  if (!dy) return gb_chain_end(&c, gb_chain_zeros(&c, x), &GB_GRAD_IN(grad, linalg_slogdet)->x); /* the sign's is 0 */
  gb_tensor *slope = turn(&c, GB_CHAIN(&c, linalg_inv, .x = x));
  return gb_chain_end(&c, mul(&c, as_matrix(&c, dy), slope), &GB_GRAD_IN(grad, linalg_slogdet)->x);
}

/* With M = dr r^T - q^T dq: of a tall x (dq + q S(M)) r^-T, S the upper triangle mirrored; of a wide one, whose first
 * columns make q, q dr, and to those columns q L(M^T - M) s^-T, L the lower triangle and s the first columns of r
 * (Walter, Lehmann 2012; Roberts, Roberts 2020). */
static gb_status qr_gradient(gb_grad_call *grad) {
  gb_tensor *q = GB_KEPT(grad, linalg_qr)->q, *r = GB_KEPT(grad, linalg_qr)->r;
  gb_tensor *dq = GB_GRAD_OUT(grad, linalg_qr)->q, *dr = GB_GRAD_OUT(grad, linalg_qr)->r, *dx;
  int64_t m = q->shape[q->ndim - 2], n = r->shape[r->ndim - 1], columns = q->shape[q->ndim - 1];
  if (columns > n)
    return gb_fail(grad->context, GB_EAUTOGRAD, "linalg.qr: with mode 'complete' a matrix of more rows than columns "
                                                "has no gradient; use mode 'reduced'");
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *skew = dr ? product(&c, dr, turn(&c, r)) : NULL, *of_q = dq ? product(&c, turn(&c, q), dq) : NULL;
  gb_tensor *inner = skew && of_q ? sub(&c, skew, of_q) : skew ? skew : GB_CHAIN(&c, neg, .x = of_q);
  if (m >= n) {
    gb_tensor *up = upper(&c, inner, 0), *mirrored = add(&c, up, turn(&c, upper(&c, inner, 1)));
    dx = add_given(&c, product(&c, q, mirrored), dq);
    dx = turn(&c, solve_upper(&c, r, turn(&c, dx)));
  } else {
    gb_tensor *turned = half_diagonal_of_lower(&c, sub(&c, turn(&c, inner), inner));
    gb_tensor *square = first_of(&c, r, -1, m), *part = turn(&c, solve_upper(&c, square, turn(&c, turned)));
    gb_tensor *none = gb_chain_zeros(&c, r);
    gb_tensor *rest = none ? GB_CHAIN(&c, narrow, .x = none, .dim = gb_attr_int(-1), .start = gb_attr_int(m),
                                      .length = gb_attr_int(n - m)) : NULL;
    gb_tensor *list[] = { part, rest };
    gb_tensor *whole = part && rest ? GB_CHAIN(&c, cat, .xs = list, .count = 2, .dim = gb_attr_int(-1)) : NULL;
    dx = product(&c, q, add_given(&c, dr, whole));
  }
  return gb_chain_end(&c, dx, &GB_GRAD_IN(grad, linalg_qr)->x);
}

/* y[i, j] = s[j] - s[i], and 1 on the diagonal. */
static gb_tensor *gaps(gb_chain *c, gb_tensor *s, gb_tensor *eye) {
  return add(c, sub(c, as_row(c, s), as_column(c, s)), eye);
}

/* (m - m^T) / gaps of m = a^T da. */
static gb_tensor *turned_by(gb_chain *c, gb_tensor *a, gb_tensor *da, gb_tensor *between) {
  gb_tensor *m = product(c, turn(c, a), da);
  return GB_CHAIN(c, div, .x = sub(c, m, turn(c, m)), .y = between);
}

/* What is left of da when a a^T of it is taken away, a's columns orthonormal. */
static gb_tensor *outside(gb_chain *c, gb_tensor *a, gb_tensor *da) {
  return sub(c, da, product(c, a, product(c, turn(c, a), da)));
}

/* u (diag(ds) + (sk(u^T du) / E) s + s (sk(v^T dv) / E)) v^T with E = s_j^2 - s_i^2, and what lies outside of u and
 * of v (Townsend 2016). */
static gb_status svd_gradient(gb_grad_call *grad) {
  gb_tensor *s = GB_KEPT(grad, linalg_svd)->s, *ds = GB_GRAD_OUT(grad, linalg_svd)->s;
  gb_tensor *du = GB_GRAD_OUT(grad, linalg_svd)->u, *dvh = GB_GRAD_OUT(grad, linalg_svd)->vh;
  int64_t k = s->shape[s->ndim - 1];
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *u = first_of(&c, GB_KEPT(grad, linalg_svd)->u, -1, k);
  gb_tensor *v = turn(&c, first_of(&c, GB_KEPT(grad, linalg_svd)->vh, -2, k)), *eye = unit(&c, s, k);
  if (du) du = first_of(&c, du, -1, k);
  gb_tensor *dv = dvh ? turn(&c, first_of(&c, dvh, -2, k)) : NULL, *inner = ds ? mul(&c, eye, as_row(&c, ds)) : NULL;
  gb_tensor *between = du || dv ? gaps(&c, mul(&c, s, s), eye) : NULL;
  if (du) inner = add_given(&c, mul(&c, turned_by(&c, u, du, between), as_row(&c, s)), inner);
  if (dv) inner = add_given(&c, mul(&c, turned_by(&c, v, dv, between), as_column(&c, s)), inner);
  gb_tensor *dx = product(&c, product(&c, u, inner), turn(&c, v));
  int64_t m = u ? u->shape[u->ndim - 2] : k, n = v ? v->shape[v->ndim - 2] : k;
  if (du && m > k) {
    gb_tensor *rest = GB_CHAIN(&c, div, .x = outside(&c, u, du), .y = as_row(&c, s));
    dx = add(&c, dx, product(&c, rest, turn(&c, v)));
  }
  if (dv && n > k) {
    gb_tensor *rest = GB_CHAIN(&c, div, .x = outside(&c, v, dv), .y = as_row(&c, s));
    dx = add(&c, dx, product(&c, u, turn(&c, rest)));
  }
  return gb_chain_end(&c, dx, &GB_GRAD_IN(grad, linalg_svd)->x);
}

/* The product of m x n, n x m and m x n: what lies between is the smaller square. */
static gb_tensor *of_three(gb_chain *c, gb_tensor *x, gb_tensor *y, gb_tensor *z, bool tall) {
  return tall ? product(c, x, product(c, y, z)) : product(c, product(c, x, y), z);
}

/* -y^T dy y^T + (1 - x y) dy^T y y^T + y^T y dy^T (1 - y x) (Golub, Pereyra 1973). */
static gb_status pinv_gradient(gb_grad_call *grad) {
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *x = gb_chain_widen(&c, GB_SAVED(grad, linalg_pinv)->x), *y = GB_KEPT(grad, linalg_pinv)->y;
  gb_tensor *dy = GB_GRAD_OUT(grad, linalg_pinv)->y, *up = turn(&c, dy), *yt = turn(&c, y);
  bool tall = y->shape[y->ndim - 1] >= y->shape[y->ndim - 2];
  gb_tensor *right = of_three(&c, up, y, yt, tall), *left = of_three(&c, yt, y, up, tall);
  gb_tensor *dx = add(&c, sub(&c, right, of_three(&c, x, y, right, tall)),
                      sub(&c, left, of_three(&c, left, y, x, tall)));
  dx = sub(&c, dx, of_three(&c, yt, dy, yt, tall));
  return gb_chain_end(&c, dx, &GB_GRAD_IN(grad, linalg_pinv)->x);
}

/* v (diag(dw) + sk(v^T dv) / E) v^T with E = w_j - w_i: of the skew part alone, so that the gradient is symmetric
 * whatever function of the vectors it comes from, and the same whichever triangle is read. */
static gb_status eigh_gradient(gb_grad_call *grad) {
  gb_tensor *w = GB_KEPT(grad, linalg_eigh)->values, *v = GB_KEPT(grad, linalg_eigh)->vectors;
  gb_tensor *dw = GB_GRAD_OUT(grad, linalg_eigh)->values, *dv = GB_GRAD_OUT(grad, linalg_eigh)->vectors;
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *eye = unit(&c, w, w->shape[w->ndim - 1]), *inner = dw ? mul(&c, eye, as_row(&c, dw)) : NULL;
  if (dv) inner = add_given(&c, gb_chain_number(&c, GB_OP_mul, turned_by(&c, v, dv, gaps(&c, w, eye)), 0.5), inner);
  return gb_chain_end(&c, product(&c, product(&c, v, inner), turn(&c, v)), &GB_GRAD_IN(grad, linalg_eigh)->x);
}

/* ====} */

/* {==== Devices without a library for it ==== */

static bool is_elsewhere(const gb_op_call *call) {
  const gb_backend *backend = gb_context_backend(call->context, call->device);
  if (call->device.type == GB_CPU || !backend) return false;
  return !backend->run[call->op] || (backend->lacks && backend->lacks(backend->state, call->op));
}

/* The matrices go to the host, are computed there, and the results come back; each way is an op with a gradient. */
static gb_status on_host(gb_op_call *call) {
  gb_tensor *in[3] = { NULL }, *out[GB_MAX_OUT] = { NULL };
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < call->n_in; i++)
    status = gb_op_to_device(call->context, call->in[i], (gb_device){ GB_CPU, 0 }, &in[i]);
  if (status == GB_OK) status = gb_apply(call->context, call->op, in, call->n_in, call->attrs, out);
  for (int i = 0; status == GB_OK && i < call->n_out; i++)
    if (out[i]) status = gb_op_to_device(call->context, out[i], call->device, &call->out[i]);
  for (int i = 0; i < call->n_in; i++) gb_drop(&in[i]);
  for (int i = 0; i < GB_MAX_OUT; i++) gb_drop(&out[i]);
  return status;
}
#define HOST .composed = is_elsewhere, .compose = on_host

/* ====} */

const gb_op_impl gb_family_linalg[] = {
  { .op = GB_OP_linalg_cholesky, HOST, .check = square_check, .gradient = cholesky_gradient,
    .save_out = GB_SAVE_OUT(linalg_cholesky, y) },
  { .op = GB_OP_linalg_inv, HOST, .check = square_check, .gradient = inv_gradient,
    .save_out = GB_SAVE_OUT(linalg_inv, y) },
  { .op = GB_OP_linalg_solve, HOST, .check = solve_check, .gradient = solve_gradient,
    .save_in = GB_SAVE_IN(linalg_solve, a), .save_out = GB_SAVE_OUT(linalg_solve, x) },
  { .op = GB_OP_linalg_solve_triangular, HOST, .check = solve_check,
    .gradient = solve_triangular_gradient,
    .save_in = GB_SAVE_IN(linalg_solve_triangular, a), .save_out = GB_SAVE_OUT(linalg_solve_triangular, x) },
  { .op = GB_OP_linalg_ldl_factor, HOST, .check = ldl_factor_check, .gradient = ldl_factor_gradient },
  { .op = GB_OP_linalg_ldl_solve, HOST, .check = ldl_solve_check, .gradient = ldl_solve_gradient,
    .save_in = GB_SAVE_IN(linalg_ldl_solve, ld) | GB_SAVE_IN(linalg_ldl_solve, pivots) },
  { .op = GB_OP_linalg_det, HOST, .check = det_check, .gradient = det_gradient, .save_in = GB_SAVE_IN(linalg_det, x),
    .save_out = GB_SAVE_OUT(linalg_det, y) },
  { .op = GB_OP_linalg_slogdet, HOST, .check = slogdet_check, .gradient = slogdet_gradient,
    .save_in = GB_SAVE_IN(linalg_slogdet, x) },
  { .op = GB_OP_linalg_qr, HOST, .check = qr_check, .gradient = qr_gradient,
    .save_out = GB_SAVE_OUT(linalg_qr, q) | GB_SAVE_OUT(linalg_qr, r) },
  { .op = GB_OP_linalg_svd, HOST, .check = svd_check, .gradient = svd_gradient,
    .save_out = GB_SAVE_OUT(linalg_svd, u) | GB_SAVE_OUT(linalg_svd, s) | GB_SAVE_OUT(linalg_svd, vh) },
  { .op = GB_OP_linalg_pinv, HOST, .check = pinv_check, .gradient = pinv_gradient,
    .save_in = GB_SAVE_IN(linalg_pinv, x), .save_out = GB_SAVE_OUT(linalg_pinv, y) },
  { .op = GB_OP_linalg_eigh, HOST, .check = eigh_check, .gradient = eigh_gradient,
    .save_out = GB_SAVE_OUT(linalg_eigh, values) | GB_SAVE_OUT(linalg_eigh, vectors) },
  { .op = GB_OP_COUNT }
};
