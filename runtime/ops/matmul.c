/* ops/matmul.c - matrix products: matmul, linear, mlp and the composites that are matmul with a stricter shape.
 *
 * Gradients are products too: dX, and dW over all rows at once, in float32 where the weight is (unrounded). Those of a
 * layer are one op, linear_backward, which adds the weight's to the sum that it belongs to, where backward lets it;
 * with create_graph they are made of matmul, which has a derivative. An activation that linear or mlp fused leaves as
 * little as its derivative needs, in the dtype of the result: relu, tanh and sigmoid their result; gelu and silu their
 * argument. Those two have no second derivative. */
#include <inttypes.h>
#include <string.h>

#include "ops/activation.h"
#include "graph/chain.h"
#include "ops/slopes.h"

/* {==== shapes ==== */

/* Two shapes for an error text. */
typedef struct shapes { char a[96], b[96]; } shapes;

static shapes shapes_of(const gb_tensor *a, const gb_tensor *b) {
  shapes s;
  gb_shape_text(a->ndim, a->shape, s.a, sizeof s.a);
  gb_shape_text(b->ndim, b->shape, s.b, sizeof s.b);
  return s;
}

static gb_status require_floats(gb_op_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i]) GB_TRY(gb_require_float(call, i));
  return GB_OK;
}

/* The dtype attribute of matmul and of sum: float32 where the gradient should leave unrounded, else not given. */
static gb_attr unrounded(gb_dtype want) {
  return want == GB_FLOAT32 ? gb_attr_int(GB_FLOAT32) : (gb_attr){ .given = false };
}

/* ====} */

/* {==== steps of a chain ==== */

static gb_tensor *transposed(gb_chain *chain, gb_tensor *x) {
  return GB_CHAIN(chain, transpose, .x = x, .first = gb_attr_int(-2), .second = gb_attr_int(-1));
}

/* x with all leading dims as rows. */
static gb_tensor *as_rows(gb_chain *chain, gb_tensor *x) {
  if (!x || x->ndim == 2) return x; /* NULL: a step before failed */
  int64_t n = x->shape[x->ndim - 1], rows = 1;
  for (int i = 0; i < x->ndim - 1; i++) rows *= x->shape[i];
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(2, (int64_t[]){ rows, n }));
}

static gb_tensor *product(gb_chain *chain, gb_tensor *x, gb_tensor *y, gb_attr dtype) {
  return GB_CHAIN(chain, matmul, .x = x, .y = y, .dtype = dtype);
}

static gb_tensor *insert_dim(gb_chain *chain, gb_tensor *x, int64_t dim) {
  return GB_CHAIN(chain, unsqueeze, .x = x, .dim = gb_attr_int(dim));
}

/* The sum over all rows. */
static gb_tensor *column_sums(gb_chain *chain, gb_tensor *x, gb_attr dtype) {
  return GB_CHAIN(chain, sum, .x = as_rows(chain, x), .dim = gb_attr_ints(1, (int64_t[]){ 0 }), .dtype = dtype);
}

/* ====} */

/* {==== matmul ==== */

/* The columns of x must be as many as the rows of y. */
static gb_status check_inner(gb_op_call *call, const gb_tensor *x, const gb_tensor *y) {
  int64_t columns = x->shape[x->ndim - 1], rows = y->shape[y->ndim > 1 ? y->ndim - 2 : 0];
  if (columns == rows) return GB_OK;
  shapes s = shapes_of(x, y);
  return gb_call_fail(call, GB_ESHAPE,
                      "%s has %" PRId64 " columns, %s has %" PRId64 " rows; they must be equal: transpose one with t()",
      s.a,
                      columns, s.b, rows);
}

/* x [..., m, k] @ y [..., k, n] -> z [..., m, n], batches broadcast. A vector x is one row, a vector y one column,
 * which z does not show. */
static gb_status matmul_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, matmul)->x, *y = GB_IN(call, matmul)->y;
  const gb_attr *given = &GB_ATTRS(call, matmul)->dtype;
  GB_TRY(require_floats(call));
  if (x->ndim == 0 || y->ndim == 0) {
    shapes s = shapes_of(x, y);
    return gb_call_fail(call, GB_ESHAPE, "needs vectors or matrices, got %s and %s; mul multiplies by a scalar", s.a,
                        s.b);
  }
  GB_TRY(check_inner(call, x, y));
  int ndim = x->ndim > 2 ? x->ndim - 2 : 0, other = y->ndim > 2 ? y->ndim - 2 : 0;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, (size_t)ndim * sizeof *shape);
  if (!gb_broadcast(&ndim, shape, other, y->shape)) {
    shapes s = shapes_of(x, y);
    return gb_call_fail(call, GB_ESHAPE, "the batch dimensions of x %s and y %s do not broadcast; all but the last "
                                         "two must be equal or 1", s.a, s.b);
  }
  if (x->ndim > 1) shape[ndim++] = x->shape[x->ndim - 2];
  if (y->ndim > 1) shape[ndim++] = y->shape[y->ndim - 1];
  gb_dtype dtype = given->given ? (gb_dtype)given->integer : gb_call_dtype(call, gb_result_type(call->in, call->n_in));
  if (!gb_dtype_is_float(dtype))
    return gb_call_fail(call, GB_EDTYPE, "dtype must be a floating type, got %s", gb_dtype_name(dtype));
  return gb_call_output(call, GB_OUT_AT(matmul, z), ndim, shape, dtype);
}

/* End a chain with the gradient of an operand: without the batches that it was broadcast over, and without a vector's
 * extra dimension. */
static gb_status finish_operand(gb_chain *chain, gb_tensor *gradient, const gb_edge *operand, bool as_column,
                                gb_tensor **out) {
  gb_tensor *full, *sum;
  GB_TRY(gb_chain_end(chain, gradient, &full));
  int64_t matrix[GB_MAX_NDIM] = { 1, 1 };
  int ndim = operand->ndim < 2 ? 2 : operand->ndim;
  if (operand->ndim < 2) matrix[as_column ? 0 : 1] = operand->shape[0];
  else memcpy(matrix, operand->shape, (size_t)ndim * sizeof *matrix);
  gb_status status = gb_sum_to(chain->context, full, ndim, matrix, &sum);
  gb_tensor_release(full);
  GB_TRY(status);
  if (operand->ndim == ndim) { *out = sum; return GB_OK; }
  status = GB_RUN(chain->context, reshape, out, .x = sum, .shape = gb_attr_ints(operand->ndim, operand->shape));
  gb_tensor_release(sum);
  return status;
}

/* The gradient of the result, with the dimensions that vectors did not show. */
static gb_tensor *full_gradient(gb_chain *chain, const gb_grad_call *grad) {
  bool row = GB_EDGE(grad, matmul, x)->ndim == 1, column = GB_EDGE(grad, matmul, y)->ndim == 1;
  gb_tensor *g = GB_GRAD_OUT(grad, matmul)->z;
  if (row) g = insert_dim(chain, g, column ? -1 : -2);
  return column ? insert_dim(chain, g, -1) : g;
}

/* dx = g @ y^T. */
static gb_status matmul_gradient_x(gb_grad_call *grad) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *g = full_gradient(&chain, grad), *y = GB_SAVED(grad, matmul)->y;
  if (y->ndim == 1) y = insert_dim(&chain, y, -1);
  gb_tensor *dx = product(&chain, g, transposed(&chain, y), unrounded(GB_WANTS(grad, matmul, x)));
  return finish_operand(&chain, dx, GB_EDGE(grad, matmul, x), false, &GB_GRAD_IN(grad, matmul)->x);
}

/* dy = x^T @ g; where y is one matrix for all of x's batches, in one product over all rows. */
static gb_status matmul_gradient_y(gb_grad_call *grad) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *g = full_gradient(&chain, grad), *x = GB_SAVED(grad, matmul)->x;
  if (x->ndim == 1) x = insert_dim(&chain, x, -2);
  if (GB_EDGE(grad, matmul, y)->ndim <= 2) x = as_rows(&chain, x), g = as_rows(&chain, g);
  gb_tensor *dy = product(&chain, transposed(&chain, x), g, unrounded(GB_WANTS(grad, matmul, y)));
  return finish_operand(&chain, dy, GB_EDGE(grad, matmul, y), true, &GB_GRAD_IN(grad, matmul)->y);
}

static gb_status matmul_gradient(gb_grad_call *grad) {
  if (GB_NEEDS(grad, matmul, x)) GB_TRY(matmul_gradient_x(grad));
  return GB_NEEDS(grad, matmul, y) ? matmul_gradient_y(grad) : GB_OK;
}

/* ====} */

/* {==== composites ==== */

static gb_status same_batches(gb_op_call *call, const gb_tensor *a, const gb_tensor *b) {
  if (a->shape[0] == b->shape[0]) return GB_OK;
  shapes s = shapes_of(a, b);
  return gb_call_fail(call, GB_ESHAPE, "the batches have %" PRId64 " and %" PRId64 " matrices (%s, %s); use matmul, "
                                                                                   "which broadcasts", a->shape[0],
                      b->shape[0], s.a, s.b);
}

/* Rows that are a product of x and y, and no more. */
#define GB_SAME_OPERANDS(op)                                                                                           \
  _Static_assert(GB_IN_AT(op, x) == GB_IN_AT(mm, x) && GB_IN_AT(op, y) == GB_IN_AT(mm, y) &&                           \
                 GB_OUT_AT(op, z) == GB_OUT_AT(mm, z), "read as mm")
GB_SAME_OPERANDS(bmm);
GB_SAME_OPERANDS(mv);
GB_SAME_OPERANDS(dot);

/* matmul of operands with exactly these ranks. */
static gb_status strict_product(gb_op_call *call, int x_ndim, int y_ndim) {
  gb_tensor *x = GB_IN(call, mm)->x, *y = GB_IN(call, mm)->y;
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(mm, x), x_ndim, x_ndim));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(mm, y), y_ndim, y_ndim));
  if (x_ndim == 3) GB_TRY(same_batches(call, x, y));
  GB_TRY(check_inner(call, x, y));
  return GB_RUN(call->context, matmul, &GB_OUT(call, mm)->z, .x = x, .y = y);
}

static gb_status mm_compose(gb_op_call *call) { return strict_product(call, 2, 2); }
static gb_status bmm_compose(gb_op_call *call) { return strict_product(call, 3, 3); }
static gb_status mv_compose(gb_op_call *call) { return strict_product(call, 2, 1); }
static gb_status dot_compose(gb_op_call *call) { return strict_product(call, 1, 1); }

static gb_status outer_compose(gb_op_call *call) {
  const gb_in_outer *in = GB_IN(call, outer);
  GB_TRY(gb_require_ndim(call, GB_IN_AT(outer, x), 1, 1));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(outer, y), 1, 1));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = GB_CHAIN(&chain, mul, .x = insert_dim(&chain, in->x, -1), .y = in->y);
  return gb_chain_end(&chain, z, &GB_OUT(call, outer)->z);
}

/* x must broadcast to the shape of a @ b, which has dimensions `rank`. */
static gb_status check_addend(gb_op_call *call, int rank) {
  const gb_tensor *x = GB_IN(call, addmm)->x, *a = GB_IN(call, addmm)->a, *b = GB_IN(call, addmm)->b;
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(addmm, a), rank, rank));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(addmm, b), rank, rank));
  if (rank == 3) GB_TRY(same_batches(call, a, b));
  GB_TRY(check_inner(call, a, b));
  int64_t shape[3] = { a->shape[0], a->shape[rank - 2] }, sum[GB_MAX_NDIM];
  shape[rank - 1] = b->shape[rank - 1];
  int ndim = rank;
  memcpy(sum, shape, sizeof shape);
  if (gb_broadcast(&ndim, sum, x->ndim, x->shape) && ndim == rank && !memcmp(sum, shape, (size_t)rank * sizeof *sum))
    return GB_OK;
  char text[96], product_text[96];
  return gb_call_fail(call, GB_ESHAPE, "x %s does not broadcast to the shape of a @ b, %s",
                      gb_shape_text(x->ndim, x->shape, text, sizeof text),
                      gb_shape_text(rank, shape, product_text, sizeof product_text));
}

/* beta * x + alpha * (a @ b), in float32 and rounded once. beta 0 means that x is not looked at, NaN or not. */
static gb_status add_product(gb_op_call *call, int rank) {
  GB_TRY(check_addend(call, rank));
  const gb_in_addmm *in = GB_IN(call, addmm);
  double beta = GB_ATTRS(call, addmm)->beta.number, alpha = GB_ATTRS(call, addmm)->alpha.number;
  gb_dtype dtype = gb_result_type(call->in, call->n_in), wide = dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = product(&chain, in->a, in->b, gb_attr_int(wide));
  if (alpha != 1) z = gb_chain_number(&chain, GB_OP_mul, z, alpha);
  if (beta != 0) {
    gb_tensor *x = gb_chain_widen(&chain, in->x);
    if (beta != 1) x = gb_chain_number(&chain, GB_OP_mul, x, beta);
    z = GB_CHAIN(&chain, add, .x = z, .y = x);
  }
  return gb_chain_end(&chain, gb_chain_cast(&chain, z, dtype), &GB_OUT(call, addmm)->z);
}
_Static_assert(GB_IN_AT(addmm, x) == GB_IN_AT(baddbmm, x) && GB_IN_AT(addmm, a) == GB_IN_AT(baddbmm, a) &&
               GB_IN_AT(addmm, b) == GB_IN_AT(baddbmm, b), "baddbmm is read as addmm");
_Static_assert(GB_ATTR_AT(addmm, alpha) == GB_ATTR_AT(baddbmm, alpha) &&
               GB_ATTR_AT(addmm, beta) == GB_ATTR_AT(baddbmm, beta), "baddbmm is read as addmm");

static gb_status addmm_compose(gb_op_call *call) { return add_product(call, 2); }
static gb_status baddbmm_compose(gb_op_call *call) { return add_product(call, 3); }

/* ====} */

/* {==== linear ==== */

/* linear and mlp begin with x. */
static gb_tensor *x_of(const gb_op_call *call) { return GB_IN(call, linear)->x; }
_Static_assert(GB_IN_AT(linear, x) == GB_IN_AT(mlp, x), "x_of reads both");

/* Layer `name`: weight [out, in] over `features` values that come from `source`, and bias [out] or absent. */
static gb_status check_layer(gb_op_call *call, const char *name, int weight_at, int bias_at, int64_t features,
                             const char *source) {
  const gb_tensor *weight = call->in[weight_at], *bias = call->in[bias_at];
  GB_TRY(gb_require_ndim(call, weight_at, 2, 2));
  bool fits = weight->shape[1] == features;
  if (fits && (!bias || (bias->ndim == 1 && bias->shape[0] == weight->shape[0]))) return GB_OK;
  shapes s = shapes_of(x_of(call), weight); /* texts only where they are read: they cost more than a small product */
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE,
                        "weight%s expects %" PRId64 " features, %s has %" PRId64 " (x %s, weight%s %s)", name,
        weight->shape[1],
                        source, features, s.a, name, s.b);
  char text[96];
  return gb_call_fail(call, GB_ESHAPE, "bias%s must be a vector of %" PRId64 " elements, as weight%s %s has rows; "
                                                                             "got %s", name, weight->shape[0],
                      name, s.b, gb_shape_text(bias->ndim, bias->shape, text, sizeof text));
}

/* x's shape with another last dimension. */
static gb_status rows_output(gb_op_call *call, int output, int64_t features, gb_dtype dtype) {
  const gb_tensor *x = x_of(call);
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
  shape[x->ndim - 1] = features;
  return gb_call_output(call, output, x->ndim, shape, dtype);
}

/* x [..., in], weight [out, in], bias [out] or absent -> y [..., out]. pre holds what the activation's derivative is
 * computed from: its argument, or y itself. */
static gb_status linear_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, linear)->x, *weight = GB_IN(call, linear)->weight;
  gb_out_linear *made = GB_OUT(call, linear);
  gb_activation activation = gb_activation_of(&GB_ATTRS(call, linear)->activation);
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear, x), 1, GB_MAX_NDIM));
  GB_TRY(check_layer(call, "", GB_IN_AT(linear, weight), GB_IN_AT(linear, bias), x->shape[x->ndim - 1],
                     "the last dimension of x"));
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, call->n_in));
  GB_TRY(rows_output(call, GB_OUT_AT(linear, y), weight->shape[0], dtype));
  if (!call->needs_grad || activation == GB_ACTIVATION_NONE) return GB_OK;
  if (gb_activation_needs_argument(activation))
    return rows_output(call, GB_OUT_AT(linear, pre), weight->shape[0], dtype);
  gb_tensor_retain(made->pre = made->y);
  return GB_OK;
}

/* The gradient at the activation's argument, from what is kept of it: its argument or its result. */
static gb_tensor *activation_backward(gb_chain *chain, gb_activation activation, gb_tensor *g, gb_tensor *kept) {
  gb_attr approximate;
  gb_op op = gb_activation_backward(activation, &approximate);
  return op == GB_OP_COUNT ? g : gb_chain_2(chain, op, g, kept, &approximate);
}

/* The same out of differentiable ops. y is the result with its history, so that a derivative passes through it. */
static gb_tensor *from_result_twice(gb_chain *chain, gb_activation activation, gb_tensor *g, gb_tensor *y) {
  if (activation == GB_ACTIVATION_RELU) return GB_CHAIN(chain, relu_backward, .grad = g, .y = y);
  gb_tensor *gy = GB_CHAIN(chain, mul, .x = g, .y = y), *gyy = GB_CHAIN(chain, mul, .x = gy, .y = y);
  return GB_CHAIN(chain, sub, .x = activation == GB_ACTIVATION_TANH ? g : gy, .y = gyy);
}

/* The same from the argument, which is the result of the layer without its activation. */
static gb_tensor *from_argument_twice(gb_chain *chain, gb_activation activation, gb_tensor *g, gb_tensor *argument) {
  gb_tensor *slope = activation == GB_ACTIVATION_SILU ? gb_slope_silu(chain, argument)
                   : activation == GB_ACTIVATION_GELU ? gb_slope_gelu(chain, argument)
                                                      : gb_slope_gelu_tanh(chain, argument);
  return GB_CHAIN(chain, mul, .x = g, .y = slope);
}

/* What linear kept, with its history: as the result, or as what it would be without the activation. */
static gb_status kept_with_history(gb_grad_call *grad, gb_activation activation, gb_tensor **out) {
  gb_tensor *y;
  GB_TRY(gb_tensor_detach(GB_KEPT(grad, linear)->pre, &y));
  *out = y;
  gb_tensor_tie(y);
  if (!gb_activation_needs_argument(activation)) {
    gb_node_retain(y->node = grad->node);
    return GB_OK;
  }
  gb_attrs_linear plain = { .activation = gb_attr_word(GB_WORD_none) };
  return (y->node = gb_node_again(grad->node, &plain.activation)) ? GB_OK : grad->context->error_code;
}

/* linear's gradient before its activation; the gradient itself, retained, where there is none. */
static gb_status before_activation(gb_grad_call *grad, gb_tensor **out) {
  gb_activation activation = gb_activation_of(&GB_ATTRS(grad, linear)->activation);
  gb_tensor *g = GB_GRAD_OUT(grad, linear)->y, *kept = GB_KEPT(grad, linear)->pre, *y = NULL;
  if (activation == GB_ACTIVATION_NONE) { gb_tensor_retain(*out = g); return GB_OK; }
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  if (!grad->create_graph) return gb_chain_end(&chain, activation_backward(&chain, activation, g, kept), out);
  gb_status status = kept_with_history(grad, activation, &y);
  bool argument = gb_activation_needs_argument(activation);
  if (status == GB_OK)
    status = gb_chain_end(&chain, argument ? from_argument_twice(&chain, activation, g, y)
                          : from_result_twice(&chain, activation, g, y), out);
  gb_tensor_release(y);
  return status;
}

/* linear's gradient by its weight out of ops that have a derivative: g^T @ x over all rows. */
static gb_status differentiable_weight(gb_grad_call *grad, gb_tensor *g) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *columns = transposed(&chain, as_rows(&chain, g)), *rows = as_rows(&chain, GB_SAVED(grad, linear)->x);
  gb_tensor *dweight = product(&chain, columns, rows, unrounded(GB_WANTS(grad, linear, weight)));
  return gb_chain_end(&chain, dweight, &GB_GRAD_IN(grad, linear)->weight);
}

/* All three so: by x, by the weight, and by the bias, which is g summed over all rows. */
static gb_status differentiable_gradients(gb_grad_call *grad, gb_tensor *g) {
  gb_in_linear *to = GB_GRAD_IN(grad, linear);
  if (GB_NEEDS(grad, linear, x))
    GB_TRY(GB_RUN(grad->context, matmul, &to->x, .x = g, .y = GB_SAVED(grad, linear)->weight,
                  .dtype = unrounded(GB_WANTS(grad, linear, x))));
  if (GB_NEEDS(grad, linear, weight)) GB_TRY(differentiable_weight(grad, g));
  if (!GB_NEEDS(grad, linear, bias)) return GB_OK;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  return gb_chain_end(&chain, column_sums(&chain, g, unrounded(GB_WANTS(grad, linear, bias))), &to->bias);
}

/* One layer of a row, in backward: its weight and its bias are inputs of the row. */
typedef struct layer {
  gb_tensor *g, *x;            /* the gradient of its result; its input */
  int weight, bias;
  gb_tensor *kept;             /* of the row's activation, where that made x; else NULL, */
  gb_attr activation;          /* and not given */
  gb_dtype dx;                 /* NONE: not needed */
} layer;

/* The sum that the gradient of `input` is going to be added to, if a product can write it: in float32 or float64, and
 * nothing that it reads. */
static gb_tensor *sum_of(gb_grad_call *grad, const layer *l, int input, bool *holds) {
  gb_tensor *sum = grad->need[input] && grad->accumulator ? grad->accumulator(grad, input, holds) : NULL;
  const gb_tensor *read[] = { l->g, l->x, grad->saved[l->weight], l->kept };
  if (!sum || (sum->dtype != GB_FLOAT32 && sum->dtype != GB_FLOAT64)) return NULL;
  for (int i = 0; i < 4; i++)
    if (read[i] && (read[i]->storage == sum->storage ||
                    gb_promote((gb_dtype)read[i]->dtype, (gb_dtype)sum->dtype) != sum->dtype)) return NULL;
  return sum;
}

static gb_attr wanted(bool need, int dtype) { return need ? gb_attr_int(dtype) : (gb_attr){ .given = false }; }

/* Hand over a gradient that the op made, or say that it went to its sum. */
static void take(gb_grad_call *grad, int input, gb_tensor *sum, gb_tensor **made) {
  if (sum) grad->settled |= 1u << input;
  else if (grad->need[input]) {
    grad->in[input] = *made;
    *made = NULL;
  }
}

/* The gradients of a layer that are needed. A bias is short: only an empty sum takes its gradient. */
static gb_status layer_gradients(gb_grad_call *grad, const layer *l, gb_tensor **dx) {
  bool weight = grad->need[l->weight], bias = grad->need[l->bias], by_x = l->dx != GB_DTYPE_NONE, add = false,
      bias_holds = false;
  if (!weight && !bias && !by_x) return GB_OK;
  gb_tensor *sum = sum_of(grad, l, l->weight, &add), *bias_sum = sum_of(grad, l, l->bias, &bias_holds);
  if (bias_holds) bias_sum = NULL;
  gb_out_linear_backward given = { .dweight = sum, .dbias = bias_sum }, made = { 0 };
  GB_TRY(GB_RUN_OUT(grad->context, linear_backward, &given.dx, &made.dx, .grad = l->g, .x = weight ? l->x : NULL,
                    .weight = by_x ? grad->saved[l->weight] : NULL, .kept = by_x ? l->kept : NULL,
                    .activation = l->activation, .dx = wanted(by_x, l->dx),
                    .dweight = wanted(weight, grad->want[l->weight]), .dbias = wanted(bias, grad->want[l->bias]),
                    .add = gb_attr_int(sum && add)));
  if (by_x) *dx = made.dx, made.dx = NULL;
  take(grad, l->weight, sum, &made.dweight);
  take(grad, l->bias, bias_sum, &made.dbias);
  gb_tensor_release(made.dx), gb_tensor_release(made.dweight), gb_tensor_release(made.dbias);
  return GB_OK;
}

/* The dtype that the gradient by x leaves in; NONE where it is not needed. */
static gb_dtype dtype_of_dx(const gb_grad_call *grad) {
  return GB_NEEDS(grad, linear, x) ? GB_WANTS(grad, linear, x) : GB_DTYPE_NONE;
}

static gb_status linear_gradient(gb_grad_call *grad) {
  gb_tensor *g;
  GB_TRY(before_activation(grad, &g));
  layer l = { .g = g, .x = GB_SAVED(grad, linear)->x, .weight = GB_IN_AT(linear, weight),
              .bias = GB_IN_AT(linear, bias), .dx = dtype_of_dx(grad) };
  gb_status status =
      grad->create_graph ? differentiable_gradients(grad, g) : layer_gradients(grad, &l, &GB_GRAD_IN(grad, linear)->x);
  gb_tensor_release(g);
  return status;
}

/* {---- linear_backward ---- */

/* A tensor has exactly this shape. */
static gb_status check_shape(gb_op_call *call, int input, int ndim, const int64_t *shape) {
  const gb_tensor *t = call->in[input];
  char a[96], b[96];
  if (!t || (t->ndim == ndim && !memcmp(t->shape, shape, sizeof *shape * (size_t)ndim))) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' must have shape %s, it has %s", call->info->in[input].name,
                      gb_shape_text(ndim, shape, a, sizeof a),
                      gb_shape_text(t->ndim, t->shape, b, sizeof b));
}

static bool is_no_float(const gb_attr *dtype) { return dtype->given && !gb_dtype_is_float((gb_dtype)dtype->integer); }

/* grad [..., out], x [..., in], weight [out, in], kept like x -> dx [..., in], dweight [out, in], dbias [out], those
 * that a dtype is given for. A sum that is added to has the dtype of float32 or float64. */
static gb_status linear_backward_check(gb_op_call *call) {
  const gb_in_linear_backward *in = GB_IN(call, linear_backward);
  const gb_attrs_linear_backward *attrs = GB_ATTRS(call, linear_backward);
  const gb_tensor *g = in->grad, *x = in->x, *weight = in->weight;
  const gb_attr *dx = &attrs->dx, *dweight = &attrs->dweight, *dbias = &attrs->dbias;
  gb_activation activation = gb_activation_of(&attrs->activation);
  int64_t shape[GB_MAX_NDIM], matrix[2];
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_backward, grad), 1, GB_MAX_NDIM));
  if (is_no_float(dx) || is_no_float(dweight) || is_no_float(dbias))
    return gb_call_fail(call, GB_EDTYPE, "gradients have floating types");
  bool again = dx->given && gb_activation_needs_argument(activation); /* x can be computed from what was kept */
  bool lacks_kept = activation != GB_ACTIVATION_NONE && !in->kept;
  if ((dweight->given && !x && !again) || (dx->given && (!weight || lacks_kept)))
    return gb_call_fail(call, GB_EINVAL, "dweight needs x, dx needs weight, and what was kept of the activation");
  memcpy(shape, g->shape, sizeof shape);
  matrix[0] = shape[g->ndim - 1];
  if (weight) GB_TRY(gb_require_ndim(call, GB_IN_AT(linear_backward, weight), 2, 2));
  matrix[1] = shape[g->ndim - 1] = x && x->ndim > 0 ? x->shape[x->ndim - 1] : weight ? weight->shape[1] : 0;
  const int dx_at = GB_OUT_AT(linear_backward, dx), dweight_at = GB_OUT_AT(linear_backward, dweight);
  GB_TRY(check_shape(call, GB_IN_AT(linear_backward, x), g->ndim, shape));
  GB_TRY(check_shape(call, GB_IN_AT(linear_backward, weight), 2, matrix));
  GB_TRY(check_shape(call, GB_IN_AT(linear_backward, kept), g->ndim, shape));
  if (dx->given) GB_TRY(gb_call_output(call, dx_at, g->ndim, shape, (gb_dtype)dx->integer));
  if (attrs->add.integer && !(call->given && call->given[dweight_at]))
    return gb_call_fail(call, GB_EINVAL, "add needs memory for dweight");
  if (dweight->given) GB_TRY(gb_call_output(call, dweight_at, 2, matrix, (gb_dtype)dweight->integer));
  if (!dbias->given) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(linear_backward, dbias), 1, matrix, (gb_dtype)dbias->integer);
}

/* ----} */

/* ====} */

/* {==== mlp ==== */

/* May the activated layer be kept beside its argument? By the device and the shapes alone, so that bits do not hang on
 * what else takes memory: computed again it comes from the argument as that was rounded. */
static bool keeps_both(const gb_op_call *call, int64_t hidden, gb_dtype dtype) {
  const gb_tensor *x = x_of(call);
  const gb_backend *backend = gb_context_backend(call->context, call->device);
  int64_t features = x->shape[x->ndim - 1];
  if (GB_ATTRS(call, mlp)->recompute.integer || !backend || features == 0) return false;
  return (size_t)(x->numel / features * hidden) <= backend->keeps / gb_dtype_bytes(dtype);
}

/* x [..., in], weight1 [hidden, in], weight2 [out, hidden] -> y [..., out]. Kept is one [..., hidden]: pre, the
 * activation's argument, where its derivative needs that, and the activated layer is computed again in backward unless
 * the device keeps it too; else hidden, its result. */
static gb_status mlp_check(gb_op_call *call) {
  const gb_in_mlp *in = GB_IN(call, mlp);
  const gb_tensor *x = in->x;
  bool argument = gb_activation_needs_argument(gb_activation_of(&GB_ATTRS(call, mlp)->activation));
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(mlp, x), 1, GB_MAX_NDIM));
  GB_TRY(check_layer(call, "1", GB_IN_AT(mlp, weight1), GB_IN_AT(mlp, bias1), x->shape[x->ndim - 1],
                     "the last dimension of x"));
  int64_t hidden = in->weight1->shape[0];
  GB_TRY(check_layer(call, "2", GB_IN_AT(mlp, weight2), GB_IN_AT(mlp, bias2), hidden, "the hidden layer"));
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, call->n_in));
  GB_TRY(rows_output(call, GB_OUT_AT(mlp, y), in->weight2->shape[0], dtype));
  if (!call->needs_grad) return GB_OK;
  if (argument) GB_TRY(rows_output(call, GB_OUT_AT(mlp, pre), hidden, dtype));
  if (argument && !keeps_both(call, hidden, dtype)) return GB_OK;
  return rows_output(call, GB_OUT_AT(mlp, hidden), hidden, dtype);
}

/* The hidden layer: as it was kept, or again from its argument. */
static gb_status hidden_layer(gb_grad_call *grad, gb_activation activation, gb_tensor **out) {
  const gb_out_mlp *kept = GB_KEPT(grad, mlp);
  gb_attr approximate;
  gb_op op = gb_activation_forward(activation, &approximate);
  if (!kept->hidden) return gb_apply(grad->context, op, &kept->pre, 1, &approximate, out);
  gb_tensor_retain(*out = kept->hidden);
  return GB_OK;
}

/* The second layer's gradients, down to the argument of the activation; where the hidden layer was not kept, one pass
 * over that gives both its derivative and the hidden layer. */
static gb_status second_layer(gb_grad_call *grad, gb_tensor **g) {
  const gb_attr *attr = &GB_ATTRS(grad, mlp)->activation;
  const gb_out_mlp *kept = GB_KEPT(grad, mlp);
  gb_activation activation = gb_activation_of(attr);
  bool argument = gb_activation_needs_argument(activation);
  gb_tensor *hidden = NULL, *from = GB_GRAD_OUT(grad, mlp)->y, *weight = GB_SAVED(grad, mlp)->weight2;
  bool first = GB_NEEDS(grad, mlp, x) || GB_NEEDS(grad, mlp, weight1) || GB_NEEDS(grad, mlp, bias1);
  if (GB_NEEDS(grad, mlp, weight2) && (kept->hidden || !first)) GB_TRY(hidden_layer(grad, activation, &hidden));
  layer second = { .g = from, .x = hidden, .weight = GB_IN_AT(mlp, weight2), .bias = GB_IN_AT(mlp, bias2),
                   .dx = GB_DTYPE_NONE };
  if (first) {
    second.dx = gb_promote((gb_dtype)from->dtype, (gb_dtype)weight->dtype);
    second.kept = argument ? kept->pre : kept->hidden;
    second.activation = *attr;
  }
  gb_status status = layer_gradients(grad, &second, g);
  gb_drop(&hidden);
  return status;
}

static gb_status mlp_gradient(gb_grad_call *grad) {
  gb_tensor *g = NULL;
  GB_TRY(second_layer(grad, &g));
  layer first = { .g = g, .x = GB_SAVED(grad, mlp)->x, .weight = GB_IN_AT(mlp, weight1), .bias = GB_IN_AT(mlp, bias1),
                  .dx = dtype_of_dx(grad) };
  gb_status status = g ? layer_gradients(grad, &first, &GB_GRAD_IN(grad, mlp)->x) : GB_OK;
  gb_drop(&g);
  return status;
}

/* ====} */

const gb_op_impl gb_family_matmul[] = {
  { .op = GB_OP_matmul, .check = matmul_check, .gradient = matmul_gradient,
    .save_in = GB_SAVE_IN(matmul, x) | GB_SAVE_IN(matmul, y), .save_other = true },
  { .op = GB_OP_mm, .compose = mm_compose },
  { .op = GB_OP_bmm, .compose = bmm_compose },
  { .op = GB_OP_mv, .compose = mv_compose },
  { .op = GB_OP_addmm, .compose = addmm_compose },
  { .op = GB_OP_baddbmm, .compose = baddbmm_compose },
  { .op = GB_OP_dot, .compose = dot_compose },
  { .op = GB_OP_outer, .compose = outer_compose },
  { .op = GB_OP_linear, .check = linear_check, .gradient = linear_gradient,
    .save_in = GB_SAVE_IN(linear, x) | GB_SAVE_IN(linear, weight), .save_out = GB_SAVE_OUT(linear, pre),
    .save_other = true },
  { .op = GB_OP_mlp, .check = mlp_check, .gradient = mlp_gradient,
    .save_in = GB_SAVE_IN(mlp, x) | GB_SAVE_IN(mlp, weight1) | GB_SAVE_IN(mlp, weight2),
    .save_out = GB_SAVE_OUT(mlp, pre) | GB_SAVE_OUT(mlp, hidden), .save_other = true },
  { .op = GB_OP_linear_backward, .check = linear_backward_check },
  { .op = GB_OP_COUNT },
};
