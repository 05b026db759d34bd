/* ops/rnn.h - what the checks of recurrent layers, kernels and the bindings share: whether a device has a library for
 * layers, what calls say of them, and the order of their weights. Nothing here is a function of the engine, but for the
 * first. */
#ifndef GB_OPS_RNN_H
#define GB_OPS_RNN_H

#include "graph/ops.h"

/* Does a library of this device run these layers? Then what it takes. */
bool gb_rnn_is_served(gb_context *context, gb_device device, const gb_rnn *rnn, gb_rnn_room *room);

/* {==== weights: those of each layer and direction one after the other ==== */

/* Sums of a unit. */
static inline int64_t gb_rnn_gates(int64_t cell) { return cell == GB_WORD_lstm ? 4 : cell == GB_WORD_gru ? 3 : 1; }
static inline int64_t gb_rnn_directions(const gb_rnn *rnn) { return rnn->bidirectional ? 2 : 1; }

/* Weights of one layer in one direction: those of the input and of the state, their biases, and the projection. */
static inline int64_t gb_rnn_each(const gb_rnn *rnn) {
  return 2 + (rnn->bias ? 2 : 0) + (rnn->state != rnn->hidden ? 1 : 0);
}
static inline int64_t gb_rnn_weights(const gb_rnn *rnn) {
  return rnn->layers * gb_rnn_directions(rnn) * gb_rnn_each(rnn);
}

typedef enum gb_rnn_kind { GB_RNN_INPUT, GB_RNN_STATE, GB_RNN_INPUT_BIAS, GB_RNN_STATE_BIAS,
                           GB_RNN_PROJECTION } gb_rnn_kind;

/* Weight `which`, from 0. layer: of all layers and directions, from 0; columns is 0 of a vector. */
typedef struct gb_rnn_weight { gb_rnn_kind kind; int64_t layer, rows, columns; } gb_rnn_weight;
static inline gb_rnn_weight gb_rnn_weight_of(const gb_rnn *rnn, int64_t which) {
  const int64_t each = gb_rnn_each(rnn), k = which % each, directions = gb_rnn_directions(rnn);
  gb_rnn_weight w = { k >= 2 && k == each - 1 && each % 2 ? GB_RNN_PROJECTION : (gb_rnn_kind)k, which / each,
                      gb_rnn_gates(rnn->cell) * rnn->hidden, 0 };
  if (w.kind == GB_RNN_INPUT) w.columns = w.layer < directions ? rnn->input : directions * rnn->state;
  if (w.kind == GB_RNN_STATE) w.columns = rnn->state;
  if (w.kind == GB_RNN_PROJECTION) w.rows = rnn->state, w.columns = rnn->hidden;
  return w;
}

/* ====} */

/* {==== what calls say ==== */

/* Attributes that the ops have in common, by name. */
#define GB_RNN_ATTRS(attrs) .cell = (attrs)->cell.integer, .layers = (attrs)->layers.integer, \
  .bidirectional = (attrs)->bidirectional.integer != 0, .bias = (attrs)->bias.integer != 0
/* And of those that run layers. What forward keeps hangs on them all, so backward has forward's. */
#define GB_RNN_RUN_ATTRS(attrs) GB_RNN_ATTRS(attrs), .tf32 = (attrs)->tf32.integer != 0

/* The weights' own part of a network, on which alone what is packed hangs. */
static inline gb_rnn gb_rnn_packed(gb_rnn rnn) {
  rnn.time = rnn.batch = 1;
  rnn.lengths = rnn.tf32 = false;
  return rnn;
}

/* What the first two weights say. */
static inline gb_rnn gb_rnn_of_weights(gb_rnn rnn, const gb_tensor *of_input, const gb_tensor *of_state) {
  rnn.input = of_input->shape[1], rnn.state = of_state->shape[1];
  rnn.hidden = of_input->shape[0] / gb_rnn_gates(rnn.cell);
  return rnn;
}

/* What x [time, batch, input] says, and whether there are lengths. */
static inline gb_rnn gb_rnn_of_x(gb_rnn rnn, const gb_tensor *x, const gb_tensor *lengths) {
  rnn.time = x->shape[0], rnn.batch = x->shape[1], rnn.input = x->shape[2];
  rnn.lengths = lengths != NULL;
  return rnn;
}

static inline gb_rnn gb_rnn_of_forward(const gb_attrs_rnn *attrs, const gb_in_rnn *in, gb_tensor *const *weights) {
  const gb_rnn rnn = { GB_RNN_RUN_ATTRS(attrs), .dtype = in->packed->dtype };
  return gb_rnn_of_x(gb_rnn_of_weights(rnn, weights[0], weights[1]), in->x, in->lengths);
}

/* y is forward's, [time, batch, directions * state]. */
static inline gb_rnn gb_rnn_of_backward(const gb_attrs_rnn_backward *attrs, const gb_in_rnn_backward *in) {
  gb_rnn rnn = { GB_RNN_RUN_ATTRS(attrs), .hidden = attrs->hidden.integer, .dtype = in->packed->dtype };
  rnn.state = in->y->shape[2] / gb_rnn_directions(&rnn);
  return gb_rnn_of_x(rnn, in->x, in->lengths);
}

static inline gb_rnn gb_rnn_of_unpack(const gb_attrs_rnn_unpack *attrs, gb_dtype dtype) {
  return gb_rnn_packed((gb_rnn){ GB_RNN_ATTRS(attrs), .input = attrs->input.integer, .hidden = attrs->hidden.integer,
                                 .state = attrs->state.integer, .dtype = dtype });
}

/* ====} */

#endif
