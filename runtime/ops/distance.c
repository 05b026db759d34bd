/* ops/distance.c - distances and what goes with them, made of other ops: cosine_similarity, pairwise_distance, cdist,
 * normalize, bilinear. PyTorch's formulas, its way of keeping divisors from 0 included, and its choice for cdist:
 * between all differences, exact and with a number in memory for each, and a product of matrices, which cancels. */
#include <inttypes.h>

#include "ops/formula.h"

_Static_assert(GB_IN_AT(cosine_similarity, x1) == GB_IN_AT(pairwise_distance, x1) &&
               GB_IN_AT(cosine_similarity, x2) == GB_IN_AT(pairwise_distance, x2), "read so");

/* The two inputs are floating and broadcast to `shape`. */
static gb_status check_two(gb_op_call *call, int *ndim, int64_t *shape) {
  const gb_tensor *x1 = GB_IN(call, pairwise_distance)->x1, *x2 = GB_IN(call, pairwise_distance)->x2;
  char a[96], b[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(pairwise_distance, x1)));
  GB_TRY(gb_require_float(call, GB_IN_AT(pairwise_distance, x2)));
  *ndim = x1->ndim;
  for (int i = 0; i < x1->ndim; i++) shape[i] = x1->shape[i];
  if (gb_broadcast(ndim, shape, x2->ndim, x2->shape)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x1 has shape %s and x2 %s; they do not broadcast",
                      gb_shape_text(x1->ndim, x1->shape, a, sizeof a), gb_shape_text(x2->ndim, x2->shape, b, sizeof b));
}

/* x seen in a shape that it broadcasts to. */
static gb_tensor *expanded(gb_formula *f, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(&f->chain, expand, .x = x, .shape = gb_attr_ints(ndim, shape));
}

/* x divided by its norm along dim, which is at least eps. */
static gb_tensor *unit(gb_formula *f, gb_tensor *x, int64_t dim, double eps) {
  return gb_over(f, x, gb_at_least(f, gb_norm_along(f, x, 2, dim, true), eps));
}

static gb_status cosine_similarity(gb_op_call *call) {
  const gb_in_cosine_similarity *in = GB_IN(call, cosine_similarity);
  const gb_attrs_cosine_similarity *attrs = GB_ATTRS(call, cosine_similarity);
  gb_formula f;
  int64_t shape[GB_MAX_NDIM];
  int ndim, dim;
  GB_TRY(check_two(call, &ndim, shape));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, ndim, &dim));
  gb_formula_begin(&f, call);
  gb_tensor *x1 = expanded(&f, gb_operand(&f, in->x1), ndim, shape),
            *x2 = expanded(&f, gb_operand(&f, in->x2), ndim, shape);
  gb_tensor *products = gb_times(&f, unit(&f, x1, dim, attrs->eps.number), unit(&f, x2, dim, attrs->eps.number));
  return gb_formula_end(&f, call, gb_sum_of(&f, products, dim, dim));
}

gb_tensor *gb_distance_of(gb_formula *f, gb_tensor *x, gb_tensor *y, double p, double eps, bool keepdim) {
  return gb_norm_along(f, gb_shifted(f, gb_minus(f, x, y), eps), p, -1, keepdim);
}

static gb_status pairwise_distance(gb_op_call *call) {
  const gb_in_pairwise_distance *in = GB_IN(call, pairwise_distance);
  const gb_attrs_pairwise_distance *attrs = GB_ATTRS(call, pairwise_distance);
  gb_formula f;
  int64_t shape[GB_MAX_NDIM];
  int ndim;
  GB_TRY(check_two(call, &ndim, shape));
  gb_formula_begin(&f, call);
  gb_tensor *x1 = gb_operand(&f, in->x1), *x2 = gb_operand(&f, in->x2);
  return gb_formula_end(&f, call,
                        gb_distance_of(&f, x1, x2, attrs->p.number, attrs->eps.number, attrs->keepdim.integer));
}

/* sqrt(|x|^2 + |y|^2 - 2 x y) for each row x of x1 and y of x2, as one product: of (-2 x, |x|^2, 1) by (y, 1, |y|^2).
 * The root of what is not above 0 is 0, and has the gradient 0. */
static gb_tensor *distances_by_product(gb_formula *f, gb_tensor *x1, gb_tensor *x2) {
  gb_tensor *x[2] = { x1, x2 };
  for (int i = 0; i < 2; i++) {
    const int64_t last = -1;
    gb_tensor *square = GB_CHAIN(&f->chain, sum, .x = gb_square(f, x[i]), .dim = gb_attr_ints(1, &last),
                                 .keepdim = gb_attr_int(true));
    gb_tensor *one = square ? gb_chain_full(&f->chain, f->compute, square->ndim, square->shape,
                                            gb_tensor_device(square), 1) : NULL;
    gb_tensor *parts[3] = { i ? x[i] : gb_scaled(f, x[i], -2), i ? one : square, i ? square : one };
    x[i] = GB_CHAIN(&f->chain, cat, .xs = parts, .count = 3, .dim = gb_attr_int(last));
  }
  gb_tensor *columns = GB_CHAIN(&f->chain, transpose, .x = x[1], .first = gb_attr_int(-1), .second = gb_attr_int(-2));
  gb_tensor *squares = GB_CHAIN(&f->chain, matmul, .x = x[0], .y = columns);
  return GB_CHAIN(&f->chain, sqrt, .x = GB_CHAIN(&f->chain, relu, .x = squares));
}

/* Rows of which a side has more than that go by a product where nothing else is said (torch.cdist). */
enum { MOST_DIFFERENCES = 25 };

/* x1 [..., n, size] and x2 [..., m, size]; differences of [..., n, 1, size] and [..., 1, m, size]. */
static gb_status cdist(gb_op_call *call) {
  const gb_in_cdist *in = GB_IN(call, cdist);
  int64_t size = in->x1->ndim ? in->x1->shape[in->x1->ndim - 1] : 0, batch[GB_MAX_NDIM];
  char a[96], b[96];
  gb_formula f;
  GB_TRY(gb_require_float(call, GB_IN_AT(cdist, x1)));
  GB_TRY(gb_require_float(call, GB_IN_AT(cdist, x2)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(cdist, x1), 2, GB_MAX_NDIM - 1));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(cdist, x2), 2, GB_MAX_NDIM - 1));
  int ndim = in->x1->ndim - 2;
  for (int i = 0; i < ndim; i++) batch[i] = in->x1->shape[i];
  if (in->x2->shape[in->x2->ndim - 1] != size || !gb_broadcast(&ndim, batch, in->x2->ndim - 2, in->x2->shape))
    return gb_call_fail(call, GB_ESHAPE,
                        "x1 has shape %s and x2 %s; rows have one size, and what is in front of the last two "
                        "dimensions broadcasts",
                        gb_shape_text(in->x1->ndim, in->x1->shape, a, sizeof a),
                        gb_shape_text(in->x2->ndim, in->x2->shape, b, sizeof b));
  const gb_attrs_cdist *attrs = GB_ATTRS(call, cdist);
  const int64_t way = attrs->compute_mode.integer, *n = in->x1->shape + in->x1->ndim - 2,
                *m = in->x2->shape + in->x2->ndim - 2;
  const bool many = *n > MOST_DIFFERENCES || *m > MOST_DIFFERENCES;
  gb_formula_begin(&f, call);
  gb_tensor *x1 = gb_operand(&f, in->x1), *x2 = gb_operand(&f, in->x2);
  if (attrs->p.number == 2 && (way == GB_WORD_use_mm_for_euclid_dist ||
                               (many && way == GB_WORD_use_mm_for_euclid_dist_if_necessary)))
    return gb_formula_end(&f, call, distances_by_product(&f, x1, x2));
  gb_tensor *differences = gb_minus(&f, gb_unsqueezed(&f, x1, -2), gb_unsqueezed(&f, x2, -3));
  return gb_formula_end(&f, call, gb_norm_along(&f, differences, attrs->p.number, -1, false));
}

static gb_status normalize(gb_op_call *call) {
  const gb_attrs_normalize *attrs = GB_ATTRS(call, normalize);
  gb_formula f;
  int dim;
  GB_TRY(gb_require_float(call, GB_IN_AT(normalize, x)));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, GB_IN(call, normalize)->x->ndim, &dim));
  gb_formula_begin(&f, call);
  gb_tensor *x = gb_operand(&f, GB_IN(call, normalize)->x), *norm = gb_norm_along(&f, x, attrs->p.number, dim, true);
  return gb_formula_end(&f, call,
                        gb_over(&f, x, GB_CHAIN(&f.chain, clamp, .x = norm,
                                                .min = gb_chain_wrap(&f.chain, attrs->eps.number))));
}

/* x1 [..., n], x2 [..., m], weight [out, n, m], bias [out]. */
static gb_status check_bilinear(gb_op_call *call) {
  const gb_in_bilinear *in = GB_IN(call, bilinear);
  const gb_tensor *x1 = in->x1, *x2 = in->x2, *weight = in->weight, *bias = in->bias;
  char a[96], b[96], c[96];
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i]) GB_TRY(gb_require_float(call, i));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(bilinear, x1), 1, GB_MAX_NDIM));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(bilinear, weight), 3, 3));
  bool fits = x1->ndim == x2->ndim;
  for (int i = 0; fits && i < x1->ndim - 1; i++) fits = x1->shape[i] == x2->shape[i];
  fits = fits && x1->shape[x1->ndim - 1] == weight->shape[1] && x2->shape[x2->ndim - 1] == weight->shape[2];
  if (!fits)
    return gb_call_fail(
        call, GB_ESHAPE, "x1 has shape %s, x2 %s and weight %s; x1 [..., n] and x2 [..., m] need a weight [out, n, m]",
        gb_shape_text(x1->ndim, x1->shape, a, sizeof a), gb_shape_text(x2->ndim, x2->shape, b, sizeof b),
        gb_shape_text(weight->ndim, weight->shape, c, sizeof c));
  if (!bias || (bias->ndim == 1 && bias->shape[0] == weight->shape[0])) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE,
                      "bias has shape %s; weight has %" PRId64 " outputs, and there is one bias for each",
                      gb_shape_text(bias->ndim, bias->shape, a, sizeof a), weight->shape[0]);
}

/* x1 by weight is a product of matrices [rows, n] and [n, out * m]; what it gives is multiplied by x2 and summed over
 * m. */
static gb_status bilinear(gb_op_call *call) {
  const gb_in_bilinear *in = GB_IN(call, bilinear);
  gb_formula f;
  GB_TRY(check_bilinear(call));
  int ndim = in->x1->ndim;
  int64_t out = in->weight->shape[0], n = in->weight->shape[1], m = in->weight->shape[2], rows = 1, shape[GB_MAX_NDIM];
  for (int i = 0; i < ndim - 1; i++) rows *= shape[i] = in->x1->shape[i];
  shape[ndim - 1] = out;
  gb_formula_begin(&f, call);
  f.compute = f.dtype; /* products sum in float32 whatever their operands are */
  gb_tensor *matrix =
      GB_CHAIN(&f.chain, permute, .x = gb_operand(&f, in->weight), .dims = gb_attr_ints(3, (int64_t[]){ 1, 0, 2 }));
  matrix = GB_CHAIN(&f.chain, reshape, .x = matrix, .shape = gb_attr_ints(2, (int64_t[]){ n, out * m }));
  gb_tensor *x1 =
      GB_CHAIN(&f.chain, reshape, .x = gb_operand(&f, in->x1), .shape = gb_attr_ints(2, (int64_t[]){ rows, n }));
  gb_tensor *x2 =
      GB_CHAIN(&f.chain, reshape, .x = gb_operand(&f, in->x2), .shape = gb_attr_ints(3, (int64_t[]){ rows, m, 1 }));
  gb_tensor *by_x1 = GB_CHAIN(&f.chain, matmul, .x = x1, .y = matrix);
  by_x1 = GB_CHAIN(&f.chain, reshape, .x = by_x1, .shape = gb_attr_ints(3, (int64_t[]){ rows, out, m }));
  gb_tensor *y = GB_CHAIN(&f.chain, reshape, .x = GB_CHAIN(&f.chain, matmul, .x = by_x1, .y = x2),
                          .shape = gb_attr_ints(ndim, shape));
  return gb_formula_end(&f, call, in->bias ? gb_plus(&f, y, gb_operand(&f, in->bias)) : y);
}

const gb_op_impl gb_family_distance[] = {
  { .op = GB_OP_cosine_similarity, .compose = cosine_similarity },
  { .op = GB_OP_pairwise_distance, .compose = pairwise_distance },
  { .op = GB_OP_cdist, .compose = cdist },
  { .op = GB_OP_normalize, .compose = normalize },
  { .op = GB_OP_bilinear, .compose = bilinear },
  { .op = GB_OP_COUNT }
};
