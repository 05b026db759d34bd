/* ops/matmul.c - matrix products: matmul, linear, mlp and the composites that are matmul with a stricter shape.
 *
 * Gradients are products too: dX, and dW over all rows at once, in float32 where the weight is (unrounded). Those of a layer are one op,
 * linear_backward, which adds the weight's to the sum that it belongs to, where backward lets it; with create_graph they are made of matmul,
 * which has a derivative. An activation that linear or mlp fused leaves as little as its derivative needs, in the dtype of the result: relu,
 * tanh and sigmoid their result; gelu and silu their argument. Those two have no second derivative. */
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

static gb_status require_floats(gb_call *call) {
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i]) GB_TRY(gb_require_float(call, i));
  return GB_OK;
}

/* The dtype attribute of matmul and of sum: float32 where the gradient should leave unrounded, else not given. */
static gb_attr unrounded(const gb_grad_call *grad, int input) {
  return grad->want[input] == GB_FLOAT32 ? gb_attr_int(GB_FLOAT32) : (gb_attr){ .given = false };
}

/* ====} */

/* {==== steps of a chain ==== */

static gb_tensor *transposed(gb_chain *chain, gb_tensor *x) {
  gb_attr attrs[2] = { gb_attr_int(-2), gb_attr_int(-1) };
  return gb_chain_1(chain, GB_OP_transpose, x, attrs);
}

/* x with all leading dims as rows. */
static gb_tensor *as_rows(gb_chain *chain, gb_tensor *x) {
  if (!x || x->ndim == 2) return x; /* NULL: a step before failed */
  int64_t n = x->shape[x->ndim - 1], rows = 1;
  for (int i = 0; i < x->ndim - 1; i++) rows *= x->shape[i];
  gb_attr shape = gb_attr_ints(2, (int64_t[]){ rows, n });
  return gb_chain_1(chain, GB_OP_reshape, x, &shape);
}

static gb_tensor *product(gb_chain *chain, gb_tensor *x, gb_tensor *y, gb_attr dtype) { return gb_chain_2(chain, GB_OP_matmul, x, y, &dtype); }

static gb_tensor *insert_dim(gb_chain *chain, gb_tensor *x, int64_t dim) {
  gb_attr attr = gb_attr_int(dim);
  return gb_chain_1(chain, GB_OP_unsqueeze, x, &attr);
}

/* The sum over all rows. */
static gb_tensor *column_sums(gb_chain *chain, gb_tensor *x, gb_attr dtype) {
  gb_attr attrs[3] = { gb_attr_ints(1, (int64_t[]){ 0 }), { .given = false }, dtype };
  return gb_chain_1(chain, GB_OP_sum, as_rows(chain, x), attrs);
}

/* ====} */

/* {==== matmul ==== */

/* The columns of x must be as many as the rows of y. */
static gb_status check_inner(gb_call *call, const gb_tensor *x, const gb_tensor *y) {
  int64_t columns = x->shape[x->ndim - 1], rows = y->shape[y->ndim > 1 ? y->ndim - 2 : 0];
  if (columns == rows) return GB_OK;
  shapes s = shapes_of(x, y);
  return gb_call_fail(call, GB_ESHAPE, "%s has %" PRId64 " columns, %s has %" PRId64 " rows; they must be equal: transpose one with t()", s.a,
                      columns, s.b, rows);
}

/* x [..., m, k] @ y [..., k, n] -> z [..., m, n], batches broadcast. A vector x is one row, a vector y one column, which z does not show. */
static gb_status matmul_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *y = call->in[1];
  GB_TRY(require_floats(call));
  if (x->ndim == 0 || y->ndim == 0) {
    shapes s = shapes_of(x, y);
    return gb_call_fail(call, GB_ESHAPE, "needs vectors or matrices, got %s and %s; mul multiplies by a scalar", s.a, s.b);
  }
  GB_TRY(check_inner(call, x, y));
  int ndim = x->ndim > 2 ? x->ndim - 2 : 0, other = y->ndim > 2 ? y->ndim - 2 : 0;
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, (size_t)ndim * sizeof *shape);
  if (!gb_broadcast(&ndim, shape, other, y->shape)) {
    shapes s = shapes_of(x, y);
    return gb_call_fail(call, GB_ESHAPE, "the batch dimensions of x %s and y %s do not broadcast; all but the last two must be equal or 1", s.a, s.b);
  }
  if (x->ndim > 1) shape[ndim++] = x->shape[x->ndim - 2];
  if (y->ndim > 1) shape[ndim++] = y->shape[y->ndim - 1];
  gb_dtype dtype = call->attrs[0].given ? (gb_dtype)call->attrs[0].integer : gb_call_dtype(call, gb_result_type(call->in, 2));
  if (!gb_dtype_is_float(dtype)) return gb_call_fail(call, GB_EDTYPE, "dtype must be a floating type, got %s", gb_dtype_name(dtype));
  return gb_call_output(call, 0, ndim, shape, dtype);
}

/* End a chain with the gradient of an operand: without the batches that it was broadcast over, and without a vector's extra dimension. */
static gb_status finish_operand(gb_chain *chain, gb_tensor *gradient, const gb_edge *operand, bool as_column, gb_tensor **out) {
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
  gb_attr shape = gb_attr_ints(operand->ndim, operand->shape);
  status = gb_op_1(chain->context, GB_OP_reshape, sum, &shape, out);
  gb_tensor_release(sum);
  return status;
}

/* The gradient of the result, with the dimensions that vectors did not show. */
static gb_tensor *full_gradient(gb_chain *chain, const gb_grad_call *grad) {
  bool row = grad->node->edges[0].ndim == 1, column = grad->node->edges[1].ndim == 1;
  gb_tensor *g = grad->out[0];
  if (row) g = insert_dim(chain, g, column ? -1 : -2);
  return column ? insert_dim(chain, g, -1) : g;
}

/* dx = g @ y^T. */
static gb_status matmul_gradient_x(gb_grad_call *grad) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *g = full_gradient(&chain, grad), *y = grad->saved[1];
  if (y->ndim == 1) y = insert_dim(&chain, y, -1);
  gb_tensor *dx = product(&chain, g, transposed(&chain, y), unrounded(grad, 0));
  return finish_operand(&chain, dx, &grad->node->edges[0], false, &grad->in[0]);
}

/* dy = x^T @ g; where y is one matrix for all of x's batches, in one product over all rows. */
static gb_status matmul_gradient_y(gb_grad_call *grad) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *g = full_gradient(&chain, grad), *x = grad->saved[0];
  if (x->ndim == 1) x = insert_dim(&chain, x, -2);
  if (grad->node->edges[1].ndim <= 2) x = as_rows(&chain, x), g = as_rows(&chain, g);
  gb_tensor *dy = product(&chain, transposed(&chain, x), g, unrounded(grad, 1));
  return finish_operand(&chain, dy, &grad->node->edges[1], true, &grad->in[1]);
}

static gb_status matmul_gradient(gb_grad_call *grad) {
  if (grad->need[0]) GB_TRY(matmul_gradient_x(grad));
  return grad->need[1] ? matmul_gradient_y(grad) : GB_OK;
}

/* ====} */

/* {==== composites ==== */

static gb_status same_batches(gb_call *call, const gb_tensor *a, const gb_tensor *b) {
  if (a->shape[0] == b->shape[0]) return GB_OK;
  shapes s = shapes_of(a, b);
  return gb_call_fail(call, GB_ESHAPE, "the batches have %" PRId64 " and %" PRId64 " matrices (%s, %s); use matmul, which broadcasts", a->shape[0],
                      b->shape[0], s.a, s.b);
}

/* matmul of operands with exactly these ranks. */
static gb_status strict_product(gb_call *call, int x_ndim, int y_ndim) {
  gb_tensor *x = call->in[0], *y = call->in[1];
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, 0, x_ndim, x_ndim));
  GB_TRY(gb_require_ndim(call, 1, y_ndim, y_ndim));
  if (x_ndim == 3) GB_TRY(same_batches(call, x, y));
  GB_TRY(check_inner(call, x, y));
  return gb_op_2(call->context, GB_OP_matmul, x, y, NULL, &call->out[0]);
}

static gb_status mm_compose(gb_call *call) { return strict_product(call, 2, 2); }
static gb_status bmm_compose(gb_call *call) { return strict_product(call, 3, 3); }
static gb_status mv_compose(gb_call *call) { return strict_product(call, 2, 1); }
static gb_status dot_compose(gb_call *call) { return strict_product(call, 1, 1); }

static gb_status outer_compose(gb_call *call) {
  GB_TRY(gb_require_ndim(call, 0, 1, 1));
  GB_TRY(gb_require_ndim(call, 1, 1, 1));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *column = insert_dim(&chain, call->in[0], -1);
  return gb_chain_end(&chain, gb_chain_2(&chain, GB_OP_mul, column, call->in[1], NULL), &call->out[0]);
}

/* x must broadcast to the shape of a @ b, which has dimensions `rank`. */
static gb_status check_addend(gb_call *call, int rank) {
  const gb_tensor *x = call->in[0], *a = call->in[1], *b = call->in[2];
  GB_TRY(require_floats(call));
  GB_TRY(gb_require_ndim(call, 1, rank, rank));
  GB_TRY(gb_require_ndim(call, 2, rank, rank));
  if (rank == 3) GB_TRY(same_batches(call, a, b));
  GB_TRY(check_inner(call, a, b));
  int64_t shape[3] = { a->shape[0], a->shape[rank - 2] }, sum[GB_MAX_NDIM];
  shape[rank - 1] = b->shape[rank - 1];
  int ndim = rank;
  memcpy(sum, shape, sizeof shape);
  if (gb_broadcast(&ndim, sum, x->ndim, x->shape) && ndim == rank && !memcmp(sum, shape, (size_t)rank * sizeof *sum)) return GB_OK;
  char text[96], product_text[96];
  return gb_call_fail(call, GB_ESHAPE, "x %s does not broadcast to the shape of a @ b, %s", gb_shape_text(x->ndim, x->shape, text, sizeof text),
                      gb_shape_text(rank, shape, product_text, sizeof product_text));
}

/* beta * x + alpha * (a @ b), in float32 and rounded once. beta 0 means that x is not looked at, NaN or not. */
static gb_status add_product(gb_call *call, int rank) {
  GB_TRY(check_addend(call, rank));
  double beta = call->attrs[0].number, alpha = call->attrs[1].number;
  gb_dtype dtype = gb_result_type(call->in, 3);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *z = product(&chain, call->in[1], call->in[2], gb_attr_int(dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32));
  if (alpha != 1) z = gb_chain_number(&chain, GB_OP_mul, z, alpha);
  if (beta != 0) {
    gb_tensor *x = gb_chain_widen(&chain, call->in[0]);
    if (beta != 1) x = gb_chain_number(&chain, GB_OP_mul, x, beta);
    z = gb_chain_2(&chain, GB_OP_add, z, x, NULL);
  }
  return gb_chain_end(&chain, gb_chain_cast(&chain, z, dtype), &call->out[0]);
}

static gb_status addmm_compose(gb_call *call) { return add_product(call, 2); }
static gb_status baddbmm_compose(gb_call *call) { return add_product(call, 3); }

/* ====} */

/* {==== linear ==== */

/* Layer `name`: weight [out, in] over `features` values that come from `source`, and bias [out] or absent. */
static gb_status check_layer(gb_call *call, const char *name, int weight_at, int bias_at, int64_t features, const char *source) {
  const gb_tensor *weight = call->in[weight_at], *bias = call->in[bias_at];
  GB_TRY(gb_require_ndim(call, weight_at, 2, 2));
  bool fits = weight->shape[1] == features;
  if (fits && (!bias || (bias->ndim == 1 && bias->shape[0] == weight->shape[0]))) return GB_OK;
  shapes s = shapes_of(call->in[0], weight); /* texts only where they are read: they cost more than a small product */
  if (!fits)
    return gb_call_fail(call, GB_ESHAPE, "weight%s expects %" PRId64 " features, %s has %" PRId64 " (x %s, weight%s %s)", name, weight->shape[1],
                        source, features, s.a, name, s.b);
  char text[96];
  return gb_call_fail(call, GB_ESHAPE, "bias%s must be a vector of %" PRId64 " elements, as weight%s %s has rows; got %s", name, weight->shape[0],
                      name, s.b, gb_shape_text(bias->ndim, bias->shape, text, sizeof text));
}

/* x's shape with another last dimension. */
static gb_status rows_output(gb_call *call, int output, int64_t features, gb_dtype dtype) {
  const gb_tensor *x = call->in[0];
  int64_t shape[GB_MAX_NDIM];
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
  shape[x->ndim - 1] = features;
  return gb_call_output(call, output, x->ndim, shape, dtype);
}

/* x [..., in], weight [out, in], bias [out] or absent -> y [..., out]. pre holds what the activation's derivative is computed from: its
 * argument, or y itself. */
static gb_status linear_check(gb_call *call) {
  const gb_tensor *x = call->in[0], *weight = call->in[1];
  gb_activation activation;
  GB_TRY(require_floats(call));
  activation = gb_activation_of(&call->attrs[0]);
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  GB_TRY(check_layer(call, "", 1, 2, x->shape[x->ndim - 1], "the last dimension of x"));
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, 3));
  GB_TRY(rows_output(call, 0, weight->shape[0], dtype));
  if (!call->needs_grad || activation == GB_ACTIVATION_NONE) return GB_OK;
  if (gb_activation_needs_argument(activation)) return rows_output(call, 1, weight->shape[0], dtype);
  gb_tensor_retain(call->out[1] = call->out[0]);
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
  if (activation == GB_ACTIVATION_RELU) return gb_chain_2(chain, GB_OP_relu_backward, g, y, NULL);
  gb_tensor *gy = gb_chain_2(chain, GB_OP_mul, g, y, NULL), *gyy = gb_chain_2(chain, GB_OP_mul, gy, y, NULL);
  return gb_chain_2(chain, GB_OP_sub, activation == GB_ACTIVATION_TANH ? g : gy, gyy, NULL);
}

/* The same from the argument, which is the result of the layer without its activation. */
static gb_tensor *from_argument_twice(gb_chain *chain, gb_activation activation, gb_tensor *g, gb_tensor *argument) {
  gb_tensor *slope = activation == GB_ACTIVATION_SILU ? gb_slope_silu(chain, argument)
                   : activation == GB_ACTIVATION_GELU ? gb_slope_gelu(chain, argument)
                                                      : gb_slope_gelu_tanh(chain, argument);
  return gb_chain_2(chain, GB_OP_mul, g, slope, NULL);
}

/* What linear kept, with its history: as the result, or as what it would be without the activation. */
static gb_status kept_with_history(gb_grad_call *grad, gb_activation activation, gb_tensor **out) {
  gb_tensor *y;
  GB_TRY(gb_tensor_detach(GB_SAVED_OUT(grad, 1), &y));
  *out = y;
  gb_tensor_tie(y);
  if (!gb_activation_needs_argument(activation)) {
    gb_node_retain(y->node = grad->node);
    return GB_OK;
  }
  gb_attr none = gb_attr_word(GB_WORD_none);
  return (y->node = gb_node_again(grad->node, &none)) ? GB_OK : grad->context->error_code;
}

/* linear's gradient before its activation; the gradient itself, retained, where there is none. */
static gb_status before_activation(gb_grad_call *grad, gb_tensor **out) {
  gb_activation activation = gb_activation_of(&grad->attrs[0]);
  gb_tensor *g = grad->out[0], *kept = GB_SAVED_OUT(grad, 1), *y = NULL;
  if (activation == GB_ACTIVATION_NONE) { gb_tensor_retain(*out = g); return GB_OK; }
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  if (!grad->create_graph) return gb_chain_end(&chain, activation_backward(&chain, activation, g, kept), out);
  gb_status status = kept_with_history(grad, activation, &y);
  bool argument = gb_activation_needs_argument(activation);
  if (status == GB_OK)
    status = gb_chain_end(&chain, argument ? from_argument_twice(&chain, activation, g, y) : from_result_twice(&chain, activation, g, y), out);
  gb_tensor_release(y);
  return status;
}

/* linear's gradient by its weight out of ops that have a derivative: g^T @ x over all rows. */
static gb_status differentiable_weight(gb_grad_call *grad, gb_tensor *g) {
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  gb_tensor *columns = transposed(&chain, as_rows(&chain, g)), *rows = as_rows(&chain, grad->saved[0]);
  return gb_chain_end(&chain, product(&chain, columns, rows, unrounded(grad, 1)), &grad->in[1]);
}

/* All three so: by x, by the weight, and by the bias, which is g summed over all rows. */
static gb_status differentiable_gradients(gb_grad_call *grad, gb_tensor *g) {
  gb_attr dtype = unrounded(grad, 0);
  if (grad->need[0]) GB_TRY(gb_op_2(grad->context, GB_OP_matmul, g, grad->saved[1], &dtype, &grad->in[0]));
  if (grad->need[1]) GB_TRY(differentiable_weight(grad, g));
  if (!grad->need[2]) return GB_OK;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  return gb_chain_end(&chain, column_sums(&chain, g, unrounded(grad, 2)), &grad->in[2]);
}

/* One layer of a row, in backward: its weight and its bias are inputs of the row. */
typedef struct layer {
  gb_tensor *g, *x;            /* the gradient of its result; its input */
  int weight, bias;
  gb_tensor *kept;             /* of the row's activation, where that made x; else NULL */
  gb_dtype dx;                 /* NONE: not needed */
} layer;

/* The sum that the gradient of `input` is going to be added to, if a product can write it: in float32 or float64, and nothing that it reads. */
static gb_tensor *sum_of(gb_grad_call *grad, const layer *l, int input, bool *holds) {
  gb_tensor *sum = grad->need[input] && grad->accumulator ? grad->accumulator(grad, input, holds) : NULL;
  const gb_tensor *read[] = { l->g, l->x, grad->saved[l->weight], l->kept };
  if (!sum || (sum->dtype != GB_FLOAT32 && sum->dtype != GB_FLOAT64)) return NULL;
  for (int i = 0; i < 4; i++)
    if (read[i] && (read[i]->storage == sum->storage || gb_promote((gb_dtype)read[i]->dtype, (gb_dtype)sum->dtype) != sum->dtype)) return NULL;
  return sum;
}

static gb_attr wanted(gb_dtype dtype) { return dtype == GB_DTYPE_NONE ? (gb_attr){ .given = false } : gb_attr_int(dtype); }

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
  bool weight = grad->need[l->weight], bias = grad->need[l->bias], by_x = l->dx != GB_DTYPE_NONE, add = false, bias_holds = false;
  if (!weight && !bias && !by_x) return GB_OK;
  gb_tensor *sum = sum_of(grad, l, l->weight, &add), *bias_sum = sum_of(grad, l, l->bias, &bias_holds);
  if (bias_holds) bias_sum = NULL;
  gb_tensor *in[] = { l->g, weight ? l->x : NULL, by_x ? grad->saved[l->weight] : NULL, by_x ? l->kept : NULL }, *out[3] = { NULL };
  gb_tensor *const given[] = { NULL, sum, bias_sum };
  gb_attr attrs[] = { l->kept ? grad->attrs[0] : gb_attr_text("none"), wanted(l->dx), wanted(weight ? (gb_dtype)grad->want[l->weight] : GB_DTYPE_NONE),
                      wanted(bias ? (gb_dtype)grad->want[l->bias] : GB_DTYPE_NONE), gb_attr_int(sum && add) };
  GB_TRY(gb_apply_out(grad->context, GB_OP_linear_backward, in, 4, attrs, given, out));
  if (by_x) *dx = out[0], out[0] = NULL;
  take(grad, l->weight, sum, &out[1]);
  take(grad, l->bias, bias_sum, &out[2]);
  for (int i = 0; i < 3; i++) gb_tensor_release(out[i]);
  return GB_OK;
}

static gb_status linear_gradient(gb_grad_call *grad) {
  gb_tensor *g;
  GB_TRY(before_activation(grad, &g));
  layer l = { .g = g, .x = grad->saved[0], .weight = 1, .bias = 2, .dx = grad->need[0] ? (gb_dtype)grad->want[0] : GB_DTYPE_NONE };
  gb_status status = grad->create_graph ? differentiable_gradients(grad, g) : layer_gradients(grad, &l, &grad->in[0]);
  gb_tensor_release(g);
  return status;
}

/* {---- linear_backward ---- */

/* A tensor has exactly this shape. */
static gb_status check_shape(gb_call *call, int input, int ndim, const int64_t *shape) {
  const gb_tensor *t = call->in[input];
  char a[96], b[96];
  if (!t || (t->ndim == ndim && !memcmp(t->shape, shape, sizeof *shape * (size_t)ndim))) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' must have shape %s, it has %s", call->info->in[input].name, gb_shape_text(ndim, shape, a, sizeof a),
                      gb_shape_text(t->ndim, t->shape, b, sizeof b));
}

/* grad [..., out], x [..., in], weight [out, in], kept like x -> dx [..., in], dweight [out, in], dbias [out], those that a dtype is
 * given for. A sum that is added to has the dtype of float32 or float64. */
static gb_status linear_backward_check(gb_call *call) {
  const gb_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2];
  bool by_x = call->attrs[1].given, by_weight = call->attrs[2].given, by_bias = call->attrs[3].given;
  gb_activation activation;
  int64_t shape[GB_MAX_NDIM], matrix[2];
  GB_TRY(require_floats(call));
  activation = gb_activation_of(&call->attrs[0]);
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  for (int i = 1; i < 4; i++)
    if (call->attrs[i].given && !gb_dtype_is_float((gb_dtype)call->attrs[i].integer)) return gb_call_fail(call, GB_EDTYPE, "gradients have floating types");
  bool again = by_x && gb_activation_needs_argument(activation); /* x can be computed from what was kept */
  if ((by_weight && !x && !again) || (by_x && !weight) || (by_x && activation != GB_ACTIVATION_NONE && !call->in[3]))
    return gb_call_fail(call, GB_EINVAL, "dweight needs x, dx needs weight, and what was kept of the activation");
  memcpy(shape, g->shape, sizeof shape);
  matrix[0] = shape[g->ndim - 1];
  if (weight) GB_TRY(gb_require_ndim(call, 2, 2, 2));
  matrix[1] = shape[g->ndim - 1] = x && x->ndim > 0 ? x->shape[x->ndim - 1] : weight ? weight->shape[1] : 0;
  GB_TRY(check_shape(call, 1, g->ndim, shape));
  GB_TRY(check_shape(call, 2, 2, matrix));
  GB_TRY(check_shape(call, 3, g->ndim, shape));
  if (by_x) GB_TRY(gb_call_output(call, 0, g->ndim, shape, (gb_dtype)call->attrs[1].integer));
  if (call->attrs[4].integer && !(call->given && call->given[1])) return gb_call_fail(call, GB_EINVAL, "add needs memory for dweight");
  if (by_weight) GB_TRY(gb_call_output(call, 1, 2, matrix, (gb_dtype)call->attrs[2].integer));
  return by_bias ? gb_call_output(call, 2, 1, matrix, (gb_dtype)call->attrs[3].integer) : GB_OK;
}

/* ----} */

/* ====} */

/* {==== mlp ==== */

/* x [..., in], weight1 [hidden, in], weight2 [out, hidden] -> y [..., out]. Kept is one [..., hidden]: pre, the activation's argument, where its
 * derivative needs that, and the activated layer is computed again in backward; else hidden, its result. */
static gb_status mlp_check(gb_call *call) {
  const gb_tensor *x = call->in[0];
  gb_activation activation;
  GB_TRY(require_floats(call));
  activation = gb_activation_of(&call->attrs[0]);
  GB_TRY(gb_require_ndim(call, 0, 1, GB_MAX_NDIM));
  GB_TRY(check_layer(call, "1", 1, 2, x->shape[x->ndim - 1], "the last dimension of x"));
  GB_TRY(check_layer(call, "2", 3, 4, call->in[1]->shape[0], "the hidden layer"));
  gb_dtype dtype = gb_call_dtype(call, gb_result_type(call->in, 5));
  GB_TRY(rows_output(call, 0, call->in[3]->shape[0], dtype));
  return call->needs_grad ? rows_output(call, gb_activation_needs_argument(activation) ? 1 : 2, call->in[1]->shape[0], dtype) : GB_OK;
}

/* The hidden layer: as it was kept, or again from its argument. */
static gb_status hidden_layer(gb_grad_call *grad, gb_activation activation, gb_tensor **out) {
  gb_attr approximate;
  gb_op op = gb_activation_forward(activation, &approximate);
  if (gb_activation_needs_argument(activation)) return gb_op_1(grad->context, op, GB_SAVED_OUT(grad, 1), &approximate, out);
  gb_tensor_retain(*out = GB_SAVED_OUT(grad, 2));
  return GB_OK;
}

/* The second layer's gradients, down to the argument of the activation; one pass over that gives both its derivative and the hidden layer. */
static gb_status second_layer(gb_grad_call *grad, gb_tensor **g) {
  gb_activation activation = gb_activation_of(&grad->attrs[0]);
  gb_tensor *hidden = NULL, *from = grad->out[0], *weight = grad->saved[3];
  bool first = grad->need[0] || grad->need[1] || grad->need[2];
  if (grad->need[3] && !(first && gb_activation_needs_argument(activation))) GB_TRY(hidden_layer(grad, activation, &hidden));
  layer second = { .g = from, .x = hidden, .weight = 3, .bias = 4, .dx = GB_DTYPE_NONE };
  if (first) {
    second.dx = gb_promote((gb_dtype)from->dtype, (gb_dtype)weight->dtype);
    second.kept = GB_SAVED_OUT(grad, gb_activation_needs_argument(activation) ? 1 : 2);
  }
  gb_status status = layer_gradients(grad, &second, g);
  gb_drop(&hidden);
  return status;
}

static gb_status mlp_gradient(gb_grad_call *grad) {
  gb_tensor *g = NULL;
  GB_TRY(second_layer(grad, &g));
  layer first = { .g = g, .x = grad->saved[0], .weight = 1, .bias = 2, .dx = grad->need[0] ? (gb_dtype)grad->want[0] : GB_DTYPE_NONE };
  gb_status status = g ? layer_gradients(grad, &first, &grad->in[0]) : GB_OK;
  gb_drop(&g);
  return status;
}

/* ====} */

const gb_op_impl gb_family_matmul[] = {
  { .op = GB_OP_matmul, .check = matmul_check, .gradient = matmul_gradient, .save_in = 0x3, .save_other = true },
  { .op = GB_OP_mm, .compose = mm_compose },
  { .op = GB_OP_bmm, .compose = bmm_compose },
  { .op = GB_OP_mv, .compose = mv_compose },
  { .op = GB_OP_addmm, .compose = addmm_compose },
  { .op = GB_OP_baddbmm, .compose = baddbmm_compose },
  { .op = GB_OP_dot, .compose = dot_compose },
  { .op = GB_OP_outer, .compose = outer_compose },
  { .op = GB_OP_linear, .check = linear_check, .gradient = linear_gradient, .save_in = 0x3, .save_out = 0x2, .save_other = true },
  { .op = GB_OP_mlp, .check = mlp_check, .gradient = mlp_gradient, .save_in = 0xb, .save_out = 0x6, .save_other = true },
  { .op = GB_OP_linear_backward, .check = linear_backward_check },
  { .op = GB_OP_COUNT },
};
