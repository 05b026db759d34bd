/* ops/product.c - products of tensors over named dims: einsum, tensordot, kron and their like, made of matmul and mul.
 *
 * einsum contracts its operands from left to right, two at a time. Dims are labels there; of a pair each label is in
 * both and kept (a batch), in both and summed (contracted), or in one of them. The pair is permuted to [batch, own,
 * contracted] and [batch, contracted, own] and multiplied as matrices; where nothing is contracted, or of integers,
 * element by element. A label that only one operand has and nobody asks for is summed before. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

static gb_tensor *shaped(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *permuted(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *order) {
  return GB_CHAIN(chain, permute, .x = x, .dims = gb_attr_ints(ndim, order));
}

static gb_tensor *times(gb_chain *chain, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(chain, mul, .x = x, .y = y); }

static gb_status shape_error(gb_op_call *call, const char *what, const gb_tensor *x, const gb_tensor *y) {
  char a[96], b[96];
  return gb_call_fail(call, GB_ESHAPE, "x is %s, y %s: %s", gb_shape_text(x->ndim, x->shape, a, sizeof a),
                      gb_shape_text(y->ndim, y->shape, b, sizeof b), what);
}

/* {==== einsum ==== */

/* Labels are A-Z, a-z, and one for each dim that an ellipsis may stand for, the last dim last. */
enum { LETTERS = 52, DOTS = LETTERS, LABELS = LETTERS + GB_MAX_NDIM };

/* A tensor whose dims have labels. */
typedef struct operand { gb_tensor *x; int ndim, label[GB_MAX_NDIM]; } operand;

/* What an equation says and what is left of it. */
typedef struct plan {
  gb_op_call *call;
  gb_chain chain;
  int count[LABELS];     /* in how many places of the operands the label stands that are still to come */
  bool kept[LABELS];     /* in the result */
  int order[GB_MAX_NDIM], ndim; /* the result's labels */
  int dots;              /* the most dims that an ellipsis stands for */
} plan;

static int label_of(char c) { return c <= 'Z' ? c - 'A' : c - 'a' + 26; }

/* A label as the equation has it; a dim that an ellipsis stands for is a dot. */
static char letter_of(int label) { return (char)(label < 26 ? 'A' + label : label < LETTERS ? 'a' + label - 26 : '.'); }

/* The labels of one operand of ndim dims, or of the result (ndim -1), from the equation up to a comma, an arrow or the
 * end. A result's ellipsis stands for all dims that the operands' did. */
static gb_status read_labels(plan *p, const char **at, int ndim, int *label, int *count) {
  int before[GB_MAX_NDIM + 1], n = 0, dots_at = -1;
  const char *s = *at;
  for (; *s && *s != ',' && *s != '-'; s++) {
    if (*s == ' ') continue;
    if (*s == '.' && dots_at < 0 && s[1] == '.' && s[2] == '.') { dots_at = n; s += 2; continue; }
    if (!isalpha((unsigned char)*s))
      return gb_call_fail(p->call, GB_EINVAL, "the equation has '%c' where a letter, '...', ',' or '->' may stand", *s);
    if (n == GB_MAX_NDIM)
      return gb_call_fail(p->call, GB_ESHAPE, "more than %d labels in one place of the equation", GB_MAX_NDIM);
    before[n++] = label_of(*s);
  }
  *at = s;
  int dots = dots_at < 0 ? 0 : ndim < 0 ? p->dots : ndim - n;
  if (ndim >= 0 && (dots < 0 || (dots_at < 0 && n != ndim)))
    return gb_call_fail(p->call, GB_ESHAPE, "the equation has %d labels for a tensor of %d dimensions", n, ndim);
  if (n + dots > GB_MAX_NDIM)
    return gb_call_fail(p->call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
  if (ndim >= 0 && dots > p->dots) p->dots = dots;
  *count = 0;
  for (int i = 0; i <= n; i++) {
    for (int k = 0; i == dots_at && k < dots; k++) label[(*count)++] = LABELS - dots + k;
    if (i < n) label[(*count)++] = before[i];
  }
  return GB_OK;
}

/* The result's labels: what stands behind the arrow; without one the ellipsis, and every letter that stands once. */
static gb_status read_result(plan *p, const char *at) {
  if (*at) {
    if (at[0] != '-' || at[1] != '>')
      return gb_call_fail(p->call, GB_EINVAL, "the equation has more operands than tensors are given, or a lone '-'");
    at += 2;
    GB_TRY(read_labels(p, &at, -1, p->order, &p->ndim));
    if (*at) return gb_call_fail(p->call, GB_EINVAL, "the equation goes on after its result");
  } else {
    for (int i = LABELS - p->dots; i < LABELS; i++) p->order[p->ndim++] = i;
    for (int i = 0; i < LETTERS; i++) {
      if (p->count[i] != 1) continue;
      if (p->ndim == GB_MAX_NDIM)
        return gb_call_fail(p->call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
      p->order[p->ndim++] = i;
    }
  }
  for (int i = 0; i < p->ndim; i++) {
    int l = p->order[i];
    if (p->kept[l]) return gb_call_fail(p->call, GB_EINVAL, "the result names a label twice");
    if (!p->count[l])
      return gb_call_fail(p->call, GB_EINVAL, "the result has the label '%c', which no operand has", letter_of(l));
    p->kept[l] = true;
  }
  return GB_OK;
}

static int find(const operand *o, int label) {
  for (int i = 0; i < o->ndim; i++)
    if (o->label[i] == label) return i;
  return -1;
}

static void drop(operand *o, int dim) {
  for (int i = dim; i + 1 < o->ndim; i++) o->label[i] = o->label[i + 1];
  o->ndim--;
}

/* A label that stands twice in one operand means its diagonal, which comes last. */
static gb_status take_diagonals(plan *p, operand *o) {
  for (int i = 0; i < o->ndim; i++)
    for (int k = i + 1; k < o->ndim; k++) {
      if (o->label[i] != o->label[k]) continue;
      int label = o->label[i];
      if (o->x->shape[i] != o->x->shape[k])
        return gb_call_fail(p->call, GB_ESHAPE,
                            "the label '%c' stands twice in one operand, for sizes %" PRId64 " and %" PRId64,
                            letter_of(label), o->x->shape[i], o->x->shape[k]);
      o->x = GB_CHAIN(&p->chain, diagonal, .x = o->x, .first = gb_attr_int(i), .second = gb_attr_int(k));
      if (!o->x) return p->chain.status;
      drop(o, k), drop(o, i);
      o->label[o->ndim++] = label;
      i = -1;
      break;
    }
  return GB_OK;
}

/* Sum over the labels that neither the result nor another operand has. */
static gb_status sum_unused(plan *p, operand *o, const operand *other) {
  int64_t dims[GB_MAX_NDIM];
  int count = 0;
  for (int i = o->ndim - 1; i >= 0; i--) {
    int label = o->label[i];
    if (p->kept[label] || p->count[label] || (other && find(other, label) >= 0)) continue;
    dims[count++] = i;
    drop(o, i);
  }
  if (count) o->x = GB_CHAIN(&p->chain, sum, .x = o->x, .dim = gb_attr_ints(count, dims));
  return p->chain.status;
}

/* A dim of size 1 that is longer in the other operand broadcasts: it goes. */
static gb_status drop_single(plan *p, operand *o, const operand *other) {
  for (int i = o->ndim - 1; i >= 0; i--) {
    int at = find(other, o->label[i]);
    if (at < 0 || o->x->shape[i] == other->x->shape[at] || other->x->shape[at] == 1) continue;
    if (o->x->shape[i] != 1)
      return gb_call_fail(p->call, GB_ESHAPE, "the label '%c' stands for sizes %" PRId64 " and %" PRId64,
                          letter_of(o->label[i]), o->x->shape[i], other->x->shape[at]);
    o->x = GB_CHAIN(&p->chain, select, .x = o->x, .dim = gb_attr_int(i), .position = gb_attr_int(0));
    if (!o->x) return p->chain.status;
    drop(o, i);
  }
  return GB_OK;
}

/* The dims of an operand in groups: those of labels in both that stay, its own, and those that are contracted. */
typedef struct groups { int batch[GB_MAX_NDIM], own[GB_MAX_NDIM], inner[GB_MAX_NDIM], n_batch, n_own, n_inner; } groups;

/* Of o, which is x or y; the shared ones in x's order, so that they meet. */
static groups group(const plan *p, const operand *o, const operand *x, const operand *y) {
  const operand *other = o == x ? y : x;
  groups g = { .n_batch = 0 };
  for (int i = 0; i < x->ndim; i++) {
    int label = x->label[i];
    if (find(y, label) < 0) continue;
    if (p->kept[label] || p->count[label]) g.batch[g.n_batch++] = find(o, label);
    else g.inner[g.n_inner++] = find(o, label);
  }
  for (int i = 0; i < o->ndim; i++)
    if (find(other, o->label[i]) < 0) g.own[g.n_own++] = i;
  return g;
}

/* Put the sizes of some dims of x behind shape, their numbers behind order; the product of the sizes. */
static int64_t gather_dims(const gb_tensor *x, const int *dims, int n, int64_t *order, int *at) {
  int64_t product = 1;
  for (int i = 0; i < n; i++) order[(*at)++] = dims[i], product *= x->shape[dims[i]];
  return product;
}

/* x as matrices of two groups of dims: the shared dims stay in front as they lie, so that a view is enough where the
 * dims of a group lie together. Of too many the shared ones become one. */
static gb_tensor *matrices(plan *p, gb_tensor *x, const groups *g, const int *rows, int n_rows, const int *columns,
                           int n_columns) {
  int64_t order[GB_MAX_NDIM], shape[GB_MAX_NDIM];
  int n = 0, ndim = 0;
  int64_t batch = gather_dims(x, g->batch, g->n_batch, order, &n);
  if (g->n_batch + 2 > GB_MAX_NDIM) shape[ndim++] = batch;
  else for (int i = 0; i < g->n_batch; i++) shape[ndim++] = x->shape[g->batch[i]];
  shape[ndim++] = gather_dims(x, rows, n_rows, order, &n);
  shape[ndim++] = gather_dims(x, columns, n_columns, order, &n);
  return shaped(&p->chain, permuted(&p->chain, x, n, order), ndim, shape);
}

/* x and y become one: as matrices. */
static gb_status multiply_matrices(plan *p, operand *x, const operand *y, const groups *a, const groups *b) {
  int64_t shape[GB_MAX_NDIM];
  int label[GB_MAX_NDIM], ndim = 0;
  if (a->n_batch + a->n_own + b->n_own > GB_MAX_NDIM)
    return gb_call_fail(p->call, GB_ESHAPE, "a product on the way would have more than %d dimensions", GB_MAX_NDIM);
  for (int i = 0; i < a->n_batch; i++) shape[ndim] = x->x->shape[a->batch[i]], label[ndim++] = x->label[a->batch[i]];
  for (int i = 0; i < a->n_own; i++) shape[ndim] = x->x->shape[a->own[i]], label[ndim++] = x->label[a->own[i]];
  for (int i = 0; i < b->n_own; i++) shape[ndim] = y->x->shape[b->own[i]], label[ndim++] = y->label[b->own[i]];
  gb_tensor *left = matrices(p, x->x, a, a->own, a->n_own, a->inner, a->n_inner);
  gb_tensor *right = matrices(p, y->x, b, b->inner, b->n_inner, b->own, b->n_own);
  x->x = shaped(&p->chain, GB_CHAIN(&p->chain, matmul, .x = left, .y = right), ndim, shape);
  x->ndim = ndim;
  memcpy(x->label, label, sizeof label);
  return p->chain.status;
}

/* x with dims in the order of labels, of size 1 where it has none. */
static gb_tensor *aligned(plan *p, const operand *x, const int *label, int ndim) {
  int64_t order[GB_MAX_NDIM], shape[GB_MAX_NDIM];
  int n = 0;
  for (int i = 0; i < ndim; i++) {
    int at = find(x, label[i]);
    shape[i] = at < 0 ? 1 : x->x->shape[at];
    if (at >= 0) order[n++] = at;
  }
  return shaped(&p->chain, permuted(&p->chain, x->x, n, order), ndim, shape);
}

/* x and y become one: element by element, and summed over what they contract. */
static gb_status multiply_elements(plan *p, operand *x, const operand *y) {
  int label[GB_MAX_NDIM], ndim = x->ndim;
  memcpy(label, x->label, sizeof label);
  for (int i = 0; i < y->ndim; i++) {
    if (find(x, y->label[i]) >= 0) continue;
    if (ndim == GB_MAX_NDIM)
      return gb_call_fail(p->call, GB_ESHAPE, "a product on the way would have more than %d dimensions", GB_MAX_NDIM);
    label[ndim++] = y->label[i];
  }
  x->x = times(&p->chain, aligned(p, x, label, ndim), aligned(p, y, label, ndim));
  x->ndim = ndim;
  memcpy(x->label, label, sizeof label);
  return p->chain.status == GB_OK ? sum_unused(p, x, NULL) : p->chain.status;
}

/* x becomes x and y contracted. */
static gb_status contract(plan *p, operand *x, operand *y) {
  GB_TRY(drop_single(p, x, y));
  GB_TRY(drop_single(p, y, x));
  GB_TRY(sum_unused(p, x, y));
  GB_TRY(sum_unused(p, y, x));
  groups a = group(p, x, x, y), b = group(p, y, x, y);
  bool floats = gb_dtype_is_float((gb_dtype)x->x->dtype) && gb_dtype_is_float((gb_dtype)y->x->dtype);
  return a.n_inner && floats ? multiply_matrices(p, x, y, &a, &b) : multiply_elements(p, x, y);
}

/* The next operand of the equation, its labels counted or, as it is used, uncounted. */
static gb_status next_operand(plan *p, const char **at, gb_tensor *x, int change, operand *o) {
  *o = (operand){ .x = x };
  GB_TRY(read_labels(p, at, x->ndim, o->label, &o->ndim));
  for (int i = 0; i < o->ndim; i++) p->count[o->label[i]] += change;
  return GB_OK;
}

/* Read what operand i's labels are; `last` has no comma behind it. */
static gb_status step_over(plan *p, const char **at, bool last) {
  if (last) return GB_OK;
  if (**at != ',') return gb_call_fail(p->call, GB_EINVAL, "the equation has fewer operands than tensors are given");
  ++*at;
  return GB_OK;
}

static gb_status einsum_run(plan *p, const char *equation, gb_tensor **xs, int count, operand *result) {
  const char *at = equation;
  operand next;
  for (int i = 0; i < count; i++) {
    GB_TRY(next_operand(p, &at, xs[i], 1, &next));
    GB_TRY(step_over(p, &at, i == count - 1));
  }
  GB_TRY(read_result(p, at));
  at = equation;
  for (int i = 0; i < count; i++) {
    GB_TRY(next_operand(p, &at, xs[i], -1, &next));
    GB_TRY(step_over(p, &at, i == count - 1));
    GB_TRY(take_diagonals(p, &next));
    if (i == 0) *result = next;
    else GB_TRY(contract(p, result, &next));
  }
  return sum_unused(p, result, NULL);
}

static gb_status einsum_compose(gb_op_call *call) {
  plan p = { .call = call };
  operand result = { .x = NULL };
  gb_chain_begin(&p.chain, call->context);
  gb_status status = einsum_run(&p, GB_ATTRS(call, einsum)->equation.text, GB_LIST(call, einsum, xs),
                                GB_LIST_COUNT(call, einsum, xs), &result);
  if (status != GB_OK) p.chain.status = status;
  int64_t order[GB_MAX_NDIM];
  for (int i = 0; status == GB_OK && i < p.ndim; i++) order[i] = find(&result, p.order[i]);
  return gb_chain_end(&p.chain, permuted(&p.chain, result.x, p.ndim, order), &GB_OUT(call, einsum)->y);
}

/* ====} */

/* {==== tensordot, inner, kron, cross ==== */

/* The sum of products over dims x_dims of x and y_dims of y, n of each: the others of x, then those of y. */
static gb_tensor *contracted(gb_chain *chain, gb_tensor *x, gb_tensor *y, const int *x_dims, const int *y_dims, int n) {
  int64_t x_order[GB_MAX_NDIM], y_order[GB_MAX_NDIM], shape[GB_MAX_NDIM], rows = 1, inner = 1, columns = 1;
  int x_at = 0, y_at = 0, ndim = 0;
  bool x_used[GB_MAX_NDIM] = { false }, y_used[GB_MAX_NDIM] = { false };
  for (int i = 0; i < n; i++) x_used[x_dims[i]] = y_used[y_dims[i]] = true, inner *= x->shape[x_dims[i]];
  for (int i = 0; i < x->ndim; i++)
    if (!x_used[i]) x_order[x_at++] = i, rows *= x->shape[i], shape[ndim++] = x->shape[i];
  for (int i = 0; i < n; i++) x_order[x_at++] = x_dims[i], y_order[y_at++] = y_dims[i];
  for (int i = 0; i < y->ndim; i++)
    if (!y_used[i]) y_order[y_at++] = i, columns *= y->shape[i], shape[ndim++] = y->shape[i];
  gb_tensor *left = shaped(chain, permuted(chain, x, x_at, x_order), 2, (int64_t[]){ rows, inner });
  gb_tensor *right = shaped(chain, permuted(chain, y, y_at, y_order), 2, (int64_t[]){ inner, columns });
  return shaped(chain, GB_CHAIN(chain, matmul, .x = left, .y = right), ndim, shape);
}

/* Which dims meet: the last of x and the first of y, or those that are named. */
static gb_status tensordot_dims(gb_op_call *call, int *x_dims, int *y_dims, int *n) {
  const gb_attrs_tensordot *attrs = GB_ATTRS(call, tensordot);
  gb_tensor *x = GB_IN(call, tensordot)->x, *y = GB_IN(call, tensordot)->y;
  if (attrs->x_dims.given != attrs->y_dims.given)
    return gb_call_fail(call, GB_EINVAL, "x_dims and y_dims belong together; give both");
  if (attrs->x_dims.given) {
    *n = attrs->x_dims.count;
    if (attrs->y_dims.count != *n)
      return gb_call_fail(call, GB_EINVAL, "x_dims names %d dimensions and y_dims %d", *n, (int)attrs->y_dims.count);
    for (int i = 0; i < *n; i++) {
      GB_TRY(gb_call_dim(call, attrs->x_dims.ints[i], x->ndim, &x_dims[i]));
      GB_TRY(gb_call_dim(call, attrs->y_dims.ints[i], y->ndim, &y_dims[i]));
      for (int k = 0; k < i; k++)
        if (x_dims[k] == x_dims[i] || y_dims[k] == y_dims[i])
          return gb_call_fail(call, GB_EINVAL, "a dimension is named twice");
    }
    return GB_OK;
  }
  if (attrs->dims.integer > x->ndim || attrs->dims.integer > y->ndim)
    return shape_error(call, "'dims' is more than they have", x, y);
  *n = (int)attrs->dims.integer;
  for (int i = 0; i < *n; i++) x_dims[i] = x->ndim - *n + i, y_dims[i] = i;
  return GB_OK;
}

static gb_status tensordot_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, tensordot)->x, *y = GB_IN(call, tensordot)->y;
  int x_dims[GB_MAX_NDIM], y_dims[GB_MAX_NDIM], n = 0;
  GB_TRY(gb_require_float(call, GB_IN_AT(tensordot, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(tensordot, y)));
  GB_TRY(tensordot_dims(call, x_dims, y_dims, &n));
  if (x->ndim + y->ndim - 2 * n > GB_MAX_NDIM)
    return gb_call_fail(call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
  for (int i = 0; i < n; i++)
    if (x->shape[x_dims[i]] != y->shape[y_dims[i]])
      return shape_error(call, "dimensions that meet must be of one size", x, y);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  return gb_chain_end(&chain, contracted(&chain, x, y, x_dims, y_dims, n), &GB_OUT(call, tensordot)->z);
}

static gb_status inner_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, inner)->x, *y = GB_IN(call, inner)->y;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  if (x->ndim == 0 || y->ndim == 0) return gb_chain_end(&chain, times(&chain, x, y), &GB_OUT(call, inner)->z);
  GB_TRY(gb_require_float(call, GB_IN_AT(inner, x)));
  GB_TRY(gb_require_float(call, GB_IN_AT(inner, y)));
  if (x->shape[x->ndim - 1] != y->shape[y->ndim - 1])
    return shape_error(call, "the last dimensions must be of one size", x, y);
  if (x->ndim + y->ndim - 2 > GB_MAX_NDIM)
    return gb_call_fail(call, GB_ESHAPE, "the result would have more than %d dimensions", GB_MAX_NDIM);
  gb_tensor *z = contracted(&chain, x, y, (int[]){ x->ndim - 1 }, (int[]){ y->ndim - 1 }, 1);
  return gb_chain_end(&chain, z, &GB_OUT(call, inner)->z);
}

static gb_status vdot_compose(gb_op_call *call) {
  return GB_RUN(call->context, dot, &GB_OUT(call, vdot)->z, .x = GB_IN(call, vdot)->x, .y = GB_IN(call, vdot)->y);
}

static gb_status ger_compose(gb_op_call *call) {
  return GB_RUN(call->context, outer, &GB_OUT(call, ger)->z, .x = GB_IN(call, ger)->x, .y = GB_IN(call, ger)->y);
}

/* Every dim of x beside the same of y, which becomes one. */
static gb_status kron_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, kron)->x, *y = GB_IN(call, kron)->y;
  int ndim = x->ndim > y->ndim ? x->ndim : y->ndim;
  int64_t wide[GB_MAX_NDIM], narrow[GB_MAX_NDIM], shape[GB_MAX_NDIM];
  if (2 * ndim > GB_MAX_NDIM)
    return gb_call_fail(call, GB_ESHAPE, "has room for %d dimensions, x or y has %d", GB_MAX_NDIM / 2, ndim);
  for (int i = 0; i < ndim; i++) {
    int64_t n = i < ndim - x->ndim ? 1 : x->shape[i - ndim + x->ndim],
        m = i < ndim - y->ndim ? 1 : y->shape[i - ndim + y->ndim];
    wide[2 * i] = n, wide[2 * i + 1] = 1;
    narrow[2 * i] = 1, narrow[2 * i + 1] = m;
    shape[i] = gb_size_times(n, m);
  }
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = times(&chain, shaped(&chain, x, 2 * ndim, wide), shaped(&chain, y, 2 * ndim, narrow));
  return gb_chain_end(&chain, shaped(&chain, z, ndim, shape), &GB_OUT(call, kron)->z);
}

/* x with its three positions along dim turned by one or two. */
static gb_tensor *turned(gb_chain *chain, gb_tensor *x, int64_t dim, int64_t by) {
  return GB_CHAIN(chain, roll, .x = x, .shifts = gb_attr_ints(1, &by), .dim = gb_attr_ints(1, &dim));
}

static gb_status cross_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, cross)->x, *y = GB_IN(call, cross)->y;
  const gb_attr *named = &GB_ATTRS(call, cross)->dim;
  int dim = 0;
  if (x->ndim != y->ndim) return shape_error(call, "they need as many dimensions", x, y);
  if (named->given) GB_TRY(gb_call_dim(call, named->integer, x->ndim, &dim));
  else
    while (dim < x->ndim && x->shape[dim] != 3) dim++;
  if (dim == x->ndim || x->shape[dim] != 3 || y->shape[dim] != 3)
    return shape_error(call, "the dimension that holds the vectors must have size 3 in both", x, y);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = GB_CHAIN(&chain, sub, .x = times(&chain, turned(&chain, x, dim, -1), turned(&chain, y, dim, -2)),
                          .y = times(&chain, turned(&chain, x, dim, -2), turned(&chain, y, dim, -1)));
  return gb_chain_end(&chain, z, &GB_OUT(call, cross)->z);
}

/* ====} */

/* {==== sums with a product ==== */

/* All of them have x, a and b, beta and alpha. */
_Static_assert(GB_IN_AT(addr, b) == GB_IN_AT(addmv, b) && GB_IN_AT(addbmm, b) == GB_IN_AT(addmv, b) &&
                 GB_ATTR_AT(addr, alpha) == GB_ATTR_AT(addmv, alpha) &&
                     GB_ATTR_AT(addbmm, alpha) == GB_ATTR_AT(addmv, alpha),
               "read as addmv");

/* beta * x + alpha * product, rounded once; beta 0 means that x is not looked at, NaN or not. */
static gb_status add_scaled(gb_op_call *call, gb_chain *chain, gb_tensor *z, int ndim, const int64_t *shape,
                            gb_dtype dtype) {
  const gb_attrs_addmv *attrs = GB_ATTRS(call, addmv);
  gb_tensor *x = GB_IN(call, addmv)->x;
  double beta = attrs->beta.number, alpha = attrs->alpha.number;
  int64_t sum[GB_MAX_NDIM];
  int sum_ndim = ndim;
  memcpy(sum, shape, (size_t)ndim * sizeof *sum);
  if (!gb_broadcast(&sum_ndim, sum, x->ndim, x->shape) || sum_ndim != ndim ||
      memcmp(sum, shape, (size_t)ndim * sizeof *sum)) {
    char a[96], b[96];
    chain->status = gb_call_fail(call, GB_ESHAPE, "x %s does not broadcast to the shape of the product, %s",
                                 gb_shape_text(x->ndim, x->shape, a, sizeof a),
                                     gb_shape_text(ndim, shape, b, sizeof b));
  }
  if (alpha != 1) z = gb_chain_number(chain, GB_OP_mul, z, alpha);
  if (beta != 0) {
    x = gb_chain_widen(chain, x);
    if (beta != 1) x = gb_chain_number(chain, GB_OP_mul, x, beta);
    z = GB_CHAIN(chain, add, .x = z, .y = x);
  }
  return gb_chain_end(chain, gb_chain_cast(chain, z, dtype), &GB_OUT(call, addmv)->z);
}

/* Floating tensors of these ranks. */
static gb_status check_terms(gb_op_call *call, int a_ndim, int b_ndim) {
  for (int i = GB_IN_AT(addmv, x); i <= GB_IN_AT(addmv, b); i++) GB_TRY(gb_require_float(call, i));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(addmv, a), a_ndim, a_ndim));
  return gb_require_ndim(call, GB_IN_AT(addmv, b), b_ndim, b_ndim);
}

/* What products are kept in until they are rounded. */
static gb_dtype wide_dtype(gb_dtype dtype) { return dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

static gb_status addmv_compose(gb_op_call *call) {
  const gb_in_addmv *in = GB_IN(call, addmv);
  GB_TRY(check_terms(call, 2, 1));
  gb_dtype dtype = gb_result_type(call->in, 3);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = GB_CHAIN(&chain, matmul, .x = in->a, .y = in->b, .dtype = gb_attr_int(wide_dtype(dtype)));
  return add_scaled(call, &chain, z, 1, in->a->shape, dtype);
}

static gb_status addr_compose(gb_op_call *call) {
  const gb_in_addr *in = GB_IN(call, addr);
  GB_TRY(check_terms(call, 1, 1));
  gb_dtype dtype = gb_result_type(call->in, 3);
  int64_t shape[] = { in->a->numel, in->b->numel };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = GB_CHAIN(&chain, outer, .x = gb_chain_widen(&chain, in->a), .y = gb_chain_widen(&chain, in->b));
  return add_scaled(call, &chain, z, 2, shape, dtype);
}

/* The sum over the batch is part of the product. */
static gb_status addbmm_compose(gb_op_call *call) {
  const gb_in_addbmm *in = GB_IN(call, addbmm);
  GB_TRY(check_terms(call, 3, 3));
  if (in->a->shape[0] != in->b->shape[0] || in->a->shape[2] != in->b->shape[1])
    return shape_error(call, "these are a and b: [batch, n, k] and [batch, k, m] are needed", in->a, in->b);
  gb_dtype dtype = gb_result_type(call->in, 3);
  int64_t batch = in->a->shape[0], n = in->a->shape[1], k = in->a->shape[2], m = in->b->shape[2], shape[] = { n, m };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *left = shaped(&chain, permuted(&chain, in->a, 3, (int64_t[]){ 1, 0, 2 }), 2, (int64_t[]){ n, batch * k });
  gb_tensor *right = shaped(&chain, in->b, 2, (int64_t[]){ batch * k, m });
  gb_tensor *z = GB_CHAIN(&chain, matmul, .x = left, .y = right, .dtype = gb_attr_int(wide_dtype(dtype)));
  return add_scaled(call, &chain, z, 2, shape, dtype);
}

/* ====} */

const gb_op_impl gb_family_product[] = {
  { .op = GB_OP_einsum, .compose = einsum_compose },
  { .op = GB_OP_tensordot, .compose = tensordot_compose },
  { .op = GB_OP_inner, .compose = inner_compose },
  { .op = GB_OP_vdot, .compose = vdot_compose },
  { .op = GB_OP_ger, .compose = ger_compose },
  { .op = GB_OP_kron, .compose = kron_compose },
  { .op = GB_OP_cross, .compose = cross_compose },
  { .op = GB_OP_addmv, .compose = addmv_compose },
  { .op = GB_OP_addr, .compose = addr_compose },
  { .op = GB_OP_addbmm, .compose = addbmm_compose },
  { .op = GB_OP_COUNT },
};
