/* watch/products.c - see products.h. A convolution is treated as the equivalent matrix product: rows are positions of the
 * result, columns are output channels. */
#include "watch/products.h"

#include <stdio.h>
#include <string.h>

#include "ops/conv.h"
#include "ops/operands.h"

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

static void of_matmul(const gb_call *call, gb_product_list *list) {
  const gb_tensor *x = call->in[0], *y = call->in[1], *z = call->out[0];
  gb_batched b = gb_batched_of(operand_of(x), operand_of(y), z->shape, z->ndim);
  int64_t batch = 1;
  for (int i = 0; i < b.ndim; i++) batch *= b.batch[i];
  set_dtype(list, x, y);
  list->copied = !gb_operand_is_regular(b.m, b.k, b.x.row, b.x.column) || !gb_operand_is_regular(b.k, b.n, b.y.row, b.y.column);
  add_plain(list, batch, b.m, b.n, b.k);
}

/* The rows of x [..., features]; notes where they do not lie evenly. */
static int64_t rows_of(const gb_tensor *x, gb_product_list *list) {
  int64_t rows, stride, columns = x->shape[x->ndim - 1];
  if (!gb_operand_rows(operand_of(x), &rows, &stride) || !gb_operand_is_regular(rows, columns, stride, x->stride[x->ndim - 1])) list->copied = true;
  return rows;
}

static void check_matrix(const gb_tensor *w, gb_product_list *list) {
  if (!gb_operand_is_regular(w->shape[0], w->shape[1], w->stride[0], w->stride[1])) list->copied = true;
}

/* One layer, or the two of mlp: weights at in[1] and in[3]. */
static void of_linear(const gb_call *call, gb_product_list *list) {
  int64_t rows = rows_of(call->in[0], list);
  set_dtype(list, call->in[0], call->in[1]);
  for (int i = 1; i <= (call->op == GB_OP_mlp ? 3 : 1); i += 2) {
    check_matrix(call->in[i], list);
    add_plain(list, 1, rows, call->in[i]->shape[0], call->in[i]->shape[1]);
  }
}

/* grad, x?, weight?: the products for the gradients of x and of the weight. */
static void of_linear_backward(const gb_call *call, gb_product_list *list) {
  const gb_tensor *g = call->in[0], *x = call->in[1], *weight = call->in[2];
  int64_t rows = rows_of(g, list), out = g->shape[g->ndim - 1];
  if (x || weight) set_dtype(list, g, x ? x : weight);
  if (call->attrs[1].given && weight) {
    check_matrix(weight, list);
    add_plain(list, 1, rows, weight->shape[1], out);
  }
  if (call->attrs[2].given && x) {
    rows_of(x, list);
    add_plain(list, 1, out, x->shape[x->ndim - 1], rows);
  }
}

/* x [n, features], weight [classes, features]: the logits, and where backward will come both gradients at once. */
static void of_linear_loss(const gb_call *call, gb_product_list *list) {
  const gb_tensor *x = call->in[0], *weight = call->in[1];
  int64_t rows = rows_of(x, list), classes = weight->shape[0], features = weight->shape[1];
  set_dtype(list, x, weight);
  check_matrix(weight, list);
  add_plain(list, 1, rows, classes, features);
  if (call->out[1]) add_plain(list, 1, rows, features, classes);
  if (call->out[2]) add_plain(list, 1, classes, features, rows);
}

/* ====} */

/* {==== convolutions ==== */

/* Channels are innermost in memory, so they must be multiples. */
static void add_conv(gb_product_list *list, const gb_conv_sizes *s, int64_t m, int64_t n, int64_t k) {
  gb_product_shape *p = add(list, s->groups, m, n, k);
  check(p, "channels in", s->c / s->groups);
  check(p, "out", s->o / s->groups);
}

static void of_conv(const gb_call *call, gb_product_list *list) {
  const gb_tensor *a = call->in[0], *b = call->in[1];
  set_dtype(list, a, b);
  list->copied = !gb_is_channels_last(a) || !gb_is_channels_last(b);
  if (call->op == GB_OP_conv2d) {
    gb_conv_sizes s = gb_conv_sizes_of(a->shape, b->shape, call->attrs);
    add_conv(list, &s, s.n * s.out[0] * s.out[1], s.o / s.groups, s.c / s.groups * s.kernel[0] * s.kernel[1]);
    return;
  }
  bool by_input = call->op == GB_OP_conv2d_backward_input;
  const int64_t *shape = call->attrs[0].ints;
  gb_conv_sizes s = by_input ? gb_conv_sizes_of(shape, b->shape, call->attrs + 1) : gb_conv_sizes_of(b->shape, shape, call->attrs + 1);
  int64_t places = s.n * s.out[0] * s.out[1], window = s.c / s.groups * s.kernel[0] * s.kernel[1];
  if (by_input) add_conv(list, &s, places, window, s.o / s.groups);
  else add_conv(list, &s, s.o / s.groups, window, places);
}

/* ====} */

/* {==== attention ==== */

/* Scores and values; in backward the scores again, and the gradients of both products. Tiles pad the time, so only
 * head_dim must be a multiple. */
static void of_attention(const gb_call *call, gb_product_list *list) {
  bool backward = call->op == GB_OP_scaled_dot_product_attention_backward;
  const gb_tensor *query = call->in[backward], *key = call->in[backward + 1], *value = call->in[backward + 2];
  int64_t tq = gb_tensor_size(query, -2), tk = gb_tensor_size(key, -2), e = gb_tensor_size(query, -1), ev = gb_tensor_size(value, -1), batch = 1;
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
    const gb_tensor *t = call->in[backward + i];
    if (t->stride[t->ndim - 1] != 1 && t->shape[t->ndim - 1] > 1) list->copied = true;
  }
}

/* ====} */

void gb_products_of(const gb_call *call, gb_product_list *list) {
  switch (call->op) {
    case GB_OP_matmul: of_matmul(call, list); break;
    case GB_OP_linear:
    case GB_OP_mlp: of_linear(call, list); break;
    case GB_OP_linear_backward: of_linear_backward(call, list); break;
    case GB_OP_linear_cross_entropy: of_linear_loss(call, list); break;
    case GB_OP_conv2d:
    case GB_OP_conv2d_backward_input:
    case GB_OP_conv2d_backward_weight: of_conv(call, list); break;
    case GB_OP_scaled_dot_product_attention:
    case GB_OP_scaled_dot_product_attention_backward: of_attention(call, list); break;
    default: break;
  }
}
