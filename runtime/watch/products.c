/* watch/products.c - see products.h. A convolution is treated as the equivalent matrix product: rows are positions of
 * the result, columns are output channels. */
#include "watch/products.h"

#include <stdio.h>
#include <string.h>

#include "ops/conv.h"
#include "ops/operands.h"
#include "ops/rnn.h"

static gb_operand operand_of(const gb_tensor *t) { return (gb_operand){ t->ndim, t->shape, t->stride }; }

/* {==== building a list ==== */

static gb_product_shape *add(gb_product_list *list, int64_t batch, int64_t m, int64_t n, int64_t k) {
  gb_product_shape *p = &list->shapes[list->count++];
  p->batch = batch, p->m = m, p->n = n, p->k = k;
  return p;
}

static void check(gb_product_shape *p, const char *name, int64_t size) {
  snprintf(p->checked[p->n_checked].name, sizeof p->checked->name, "%s", name);
  p->checked[p->n_checked++].size = size;
}

/* A plain product: each of its sizes counts. */
static void add_plain(gb_product_list *list, int64_t batch, int64_t m, int64_t n, int64_t k) {
  gb_product_shape *p = add(list, batch, m, n, k);
  check(p, "M", m);
  check(p, "N", n);
  check(p, "K", k);
}

/* The dtype that these operands are multiplied in. */
static void set_dtype(gb_product_list *list, const gb_tensor *a, const gb_tensor *b) {
  list->mixed = a->dtype != b->dtype;
  list->dtype = a->dtype == GB_FLOAT64 || b->dtype == GB_FLOAT64 ? GB_FLOAT64 : list->mixed ? GB_FLOAT32 : a->dtype;
}

/* ====} */

/* {==== matrices ==== */

static void of_matmul(const gb_op_call *call, gb_product_list *list) {
  const gb_tensor *x = GB_IN(call, matmul)->x, *y = GB_IN(call, matmul)->y, *z = GB_OUT(call, matmul)->z;
  gb_batched b = gb_batched_of(operand_of(x), operand_of(y), z->shape, z->ndim);
  int64_t batch = 1;
  for (int i = 0; i < b.ndim; i++) batch *= b.batch[i];
  set_dtype(list, x, y);
  list->copied = !gb_operand_is_regular(b.m, b.k, b.x.row, b.x.column) ||
      !gb_operand_is_regular(b.k, b.n, b.y.row, b.y.column);
  add_plain(list, batch, b.m, b.n, b.k);
}

/* The rows of x [..., features]; notes where they do not lie evenly. */
static int64_t rows_of(const gb_tensor *x, gb_product_list *list) {
  int64_t rows, stride, columns = x->shape[x->ndim - 1];
  if (!gb_operand_rows(operand_of(x), &rows, &stride) ||
      !gb_operand_is_regular(rows, columns, stride, x->stride[x->ndim - 1])) list->copied = true;
  return rows;
}

static void check_matrix(const gb_tensor *w, gb_product_list *list) {
  if (!gb_operand_is_regular(w->shape[0], w->shape[1], w->stride[0], w->stride[1])) list->copied = true;
}

/* A layer of these rows. */
static void add_layer(gb_product_list *list, int64_t rows, const gb_tensor *weight) {
  check_matrix(weight, list);
  add_plain(list, 1, rows, weight->shape[0], weight->shape[1]);
}

static void of_linear(const gb_op_call *call, gb_product_list *list) {
  const gb_in_linear *in = GB_IN(call, linear);
  set_dtype(list, in->x, in->weight);
  add_layer(list, rows_of(in->x, list), in->weight);
}

static void of_mlp(const gb_op_call *call, gb_product_list *list) {
  const gb_in_mlp *in = GB_IN(call, mlp);
  int64_t rows = rows_of(in->x, list);
  set_dtype(list, in->x, in->weight1);
  add_layer(list, rows, in->weight1);
  add_layer(list, rows, in->weight2);
}

/* The products for the gradients of x and of the weight. */
static void of_linear_backward(const gb_op_call *call, gb_product_list *list) {
  const gb_in_linear_backward *in = GB_IN(call, linear_backward);
  const gb_attrs_linear_backward *attrs = GB_ATTRS(call, linear_backward);
  const gb_tensor *g = in->grad, *x = in->x, *weight = in->weight;
  int64_t rows = rows_of(g, list), out = g->shape[g->ndim - 1];
  if (x || weight) set_dtype(list, g, x ? x : weight);
  if (attrs->dx.given && weight) {
    check_matrix(weight, list);
    add_plain(list, 1, rows, weight->shape[1], out);
  }
  if (attrs->dweight.given && x) {
    rows_of(x, list);
    add_plain(list, 1, out, x->shape[x->ndim - 1], rows);
  }
}

/* x [n, features], weight [classes, features]: the logits, and where backward will come both gradients at once. */
static void of_linear_loss(const gb_op_call *call, gb_product_list *list) {
  const gb_tensor *x = GB_IN(call, linear_cross_entropy)->x, *weight = GB_IN(call, linear_cross_entropy)->weight;
  const gb_out_linear_cross_entropy *made = GB_OUT(call, linear_cross_entropy);
  int64_t rows = rows_of(x, list), classes = weight->shape[0], features = weight->shape[1];
  set_dtype(list, x, weight);
  add_layer(list, rows, weight);
  if (made->dx) add_plain(list, 1, rows, features, classes);
  if (made->dweight) add_plain(list, 1, classes, features, rows);
}

/* ====} */

/* {==== convolutions ==== */

/* Channels are innermost in memory, so they must be multiples. */
static void add_conv(gb_product_list *list, const gb_conv_sizes *s, int64_t m, int64_t n, int64_t k) {
  gb_product_shape *p = add(list, s->groups, m, n, k);
  check(p, "channels in", s->c / s->groups);
  check(p, "out", s->o / s->groups);
}

/* The two operands: their dtype, and whether they lie as they should. */
static void set_conv_operands(gb_product_list *list, const gb_tensor *a, const gb_tensor *b) {
  set_dtype(list, a, b);
  list->copied = !gb_is_channels_last(a) || !gb_is_channels_last(b);
}

static int64_t places_of(const gb_conv_sizes *s) { return s->n * s->out[0] * s->out[1]; }
static int64_t window_of(const gb_conv_sizes *s) { return s->c / s->groups * s->kernel[0] * s->kernel[1]; }

static void of_conv(const gb_op_call *call, gb_product_list *list) {
  const gb_tensor *x = GB_IN(call, conv2d)->x, *weight = GB_IN(call, conv2d)->weight;
  gb_conv_sizes s = gb_conv_sizes_of(2, x->shape, weight->shape, GB_CONV_ATTRS(GB_ATTRS(call, conv2d)));
  set_conv_operands(list, x, weight);
  add_conv(list, &s, places_of(&s), s.o / s.groups, window_of(&s));
}

static void of_conv_input(const gb_op_call *call, gb_product_list *list) {
  const gb_in_conv2d_backward_input *in = GB_IN(call, conv2d_backward_input);
  const gb_attrs_conv2d_backward_input *attrs = GB_ATTRS(call, conv2d_backward_input);
  gb_conv_sizes s = gb_conv_sizes_of(2, attrs->shape.ints, in->weight->shape, GB_CONV_ATTRS(attrs));
  set_conv_operands(list, in->grad, in->weight);
  add_conv(list, &s, places_of(&s), window_of(&s), s.o / s.groups);
}

static void of_conv_weight(const gb_op_call *call, gb_product_list *list) {
  const gb_in_conv2d_backward_weight *in = GB_IN(call, conv2d_backward_weight);
  const gb_attrs_conv2d_backward_weight *attrs = GB_ATTRS(call, conv2d_backward_weight);
  gb_conv_sizes s = gb_conv_sizes_of(2, in->x->shape, attrs->shape.ints, GB_CONV_ATTRS(attrs));
  set_conv_operands(list, in->grad, in->x);
  add_conv(list, &s, s.o / s.groups, window_of(&s), places_of(&s));
}

/* ====} */

/* {==== attention ==== */

/* Scores and values; in backward the scores again, and the gradients of both products. Tiles pad the time, so only
 * head_dim must be a multiple. */
static void add_attention(gb_product_list *list, const gb_tensor *query, const gb_tensor *key, const gb_tensor *value,
                          bool backward) {
  const gb_tensor *operands[] = { query, key, value };
  int64_t tq = gb_tensor_size(query, -2), tk = gb_tensor_size(key, -2), e = gb_tensor_size(query, -1),
      ev = gb_tensor_size(value, -1), batch = 1;
  for (int i = 0; i < query->ndim - 2; i++) batch *= query->shape[i];
  const int64_t forward[2][3] = { { tq, tk, e }, { tq, ev, tk } };
  const int64_t gradient[5][3] = { { tq, tk, e }, { tk, ev, tq }, { tq, tk, ev }, { tq, e, tk }, { tk, e, tq } };
  set_dtype(list, query, key);
  for (int i = 0; i < (backward ? 5 : 2); i++) {
    const int64_t *size = backward ? gradient[i] : forward[i];
    gb_product_shape *p = add(list, batch, size[0], size[1], size[2]);
    check(p, "head_dim", e);
    if (ev != e) check(p, "of values", ev);
  }
  for (int i = 0; i < 3; i++) {
    const gb_tensor *t = operands[i];
    if (t->stride[t->ndim - 1] != 1 && t->shape[t->ndim - 1] > 1) list->copied = true;
  }
}

static void of_attention(const gb_op_call *call, gb_product_list *list) {
  const gb_in_scaled_dot_product_attention *in = GB_IN(call, scaled_dot_product_attention);
  add_attention(list, in->query, in->key, in->value, false);
}

static void of_attention_backward(const gb_op_call *call, gb_product_list *list) {
  const gb_in_scaled_dot_product_attention_backward *in = GB_IN(call, scaled_dot_product_attention_backward);
  add_attention(list, in->query, in->key, in->value, true);
}

/* ====} */

/* {==== recurrent layers ==== */

/* One layer: in each step the product by which h enters the gates' sums, or in backward is taken back out of them.
 * Sequences that end early count as whole ones. */
static void add_cells(gb_product_list *list, const gb_tensor *y, const gb_tensor *weight, bool backward) {
  int64_t sums = weight->shape[0], state = weight->shape[1];
  check_matrix(weight, list);
  add_plain(list, y->shape[0], y->shape[1], backward ? state : sums, backward ? sums : state);
}

static void of_recurrent(const gb_op_call *call, gb_product_list *list) {
  const gb_in_recurrent *in = GB_IN(call, recurrent);
  set_dtype(list, in->gates, in->weight);
  add_cells(list, in->gates, in->weight, false);
}

static void of_recurrent_backward(const gb_op_call *call, gb_product_list *list) {
  const gb_in_recurrent_backward *in = GB_IN(call, recurrent_backward);
  set_dtype(list, in->y, in->weight);
  add_cells(list, in->y, in->weight, true);
}

/* `layers` products of weights [rows, columns] with m inputs in each of `steps` calls: forward, for the gradients of
 * the inputs, and for those of the weights, which are one product over all steps. */
typedef enum rnn_pass { RNN_FORWARD, RNN_INPUTS, RNN_WEIGHTS } rnn_pass;
static void add_weights(gb_product_list *list, rnn_pass pass, int64_t layers, int64_t steps, int64_t m, int64_t rows,
                        int64_t columns) {
  if (layers == 0) return;
  if (pass == RNN_FORWARD) add_plain(list, layers * steps, m, rows, columns);
  else if (pass == RNN_INPUTS) add_plain(list, layers * steps, m, columns, rows);
  else add_plain(list, layers, rows, columns, m * steps);
}

/* All layers of a network. What layers have from below is one product over all steps. */
static void add_rnn(gb_product_list *list, const gb_rnn *rnn, rnn_pass pass) {
  int64_t directions = gb_rnn_directions(rnn), all = rnn->layers * directions;
  int64_t sums = gb_rnn_gates(rnn->cell) * rnn->hidden, whole = rnn->time * rnn->batch;
  add_weights(list, pass, directions, 1, whole, sums, rnn->input);
  add_weights(list, pass, all - directions, 1, whole, sums, directions * rnn->state);
  add_weights(list, pass, all, rnn->time, rnn->batch, sums, rnn->state);
  if (rnn->state != rnn->hidden) add_weights(list, pass, all, rnn->time, rnn->batch, rnn->state, rnn->hidden);
}

static void of_rnn(const gb_op_call *call, gb_product_list *list) {
  const gb_in_rnn *in = GB_IN(call, rnn);
  const gb_rnn rnn = gb_rnn_of_forward(GB_ATTRS(call, rnn), in, GB_LIST(call, rnn, weights));
  set_dtype(list, in->x, in->packed);
  add_rnn(list, &rnn, RNN_FORWARD);
}

static void of_rnn_backward(const gb_op_call *call, gb_product_list *list) {
  const gb_in_rnn_backward *in = GB_IN(call, rnn_backward);
  const gb_attrs_rnn_backward *attrs = GB_ATTRS(call, rnn_backward);
  const gb_rnn rnn = gb_rnn_of_backward(attrs, in);
  set_dtype(list, in->x, in->packed);
  add_rnn(list, &rnn, RNN_INPUTS);
  if (attrs->weights.integer) add_rnn(list, &rnn, RNN_WEIGHTS);
}

/* ====} */

void gb_products_of(const gb_op_call *call, gb_product_list *list) {
  switch (call->op) {
    case GB_OP_matmul: of_matmul(call, list); break;
    case GB_OP_linear: of_linear(call, list); break;
    case GB_OP_mlp: of_mlp(call, list); break;
    case GB_OP_linear_backward: of_linear_backward(call, list); break;
    case GB_OP_linear_cross_entropy: of_linear_loss(call, list); break;
    case GB_OP_conv2d: of_conv(call, list); break;
    case GB_OP_conv2d_backward_input: of_conv_input(call, list); break;
    case GB_OP_conv2d_backward_weight: of_conv_weight(call, list); break;
    case GB_OP_scaled_dot_product_attention: of_attention(call, list); break;
    case GB_OP_scaled_dot_product_attention_backward: of_attention_backward(call, list); break;
    case GB_OP_recurrent: of_recurrent(call, list); break;
    case GB_OP_recurrent_backward: of_recurrent_backward(call, list); break;
    case GB_OP_rnn: of_rnn(call, list); break;
    case GB_OP_rnn_backward: of_rnn_backward(call, list); break;
    default: break;
  }
}
