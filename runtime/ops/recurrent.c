/* ops/recurrent.c - recurrent layers over whole sequences: their checks and gradients.
 *
 * `recurrent` is a layer of cells in one direction. The input's part of all steps is one product before the op, and the
 * gradient of weight one product behind its backward. `rnn` is all layers at once, where a device has a library for
 * them; its weights are packed once for each version of them (rnn_pack), and their gradients come out of one packed
 * gradient (rnn_unpack). With create_graph layers run by `recurrent`, and the steps of `recurrent` as ops of their own,
 * whose gradients have gradients. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"
#include "ops/rnn.h"

/* {==== checks ==== */

static int64_t gates_of(const gb_attr *cell) { return gb_rnn_gates(cell->integer); }

/* What backward wants to know of a unit: its gates, and of a GRU the state's part of the last; of a plain cell nothing
 * but its result. */
static int64_t units_of(const gb_attr *cell) { return gates_of(cell) == 1 ? 0 : 4; }

/* Input i has this shape; an absent one has any. */
static gb_status expect(gb_op_call *call, int i, int ndim, const int64_t *shape) {
  const gb_tensor *t = call->in[i];
  char is[96], wanted[96];
  if (!t || (t->ndim == ndim && !memcmp(t->shape, shape, sizeof *shape * (size_t)ndim))) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s, expected %s", gb_op_input(call->info, i)->name,
                      gb_shape_text(t->ndim, t->shape, is, sizeof is),
                      gb_shape_text(ndim, shape, wanted, sizeof wanted));
}

/* A cell state where there is one, and nowhere else. */
static gb_status check_state(gb_op_call *call, const gb_attr *cell, const gb_tensor *c) {
  if ((cell->integer == GB_WORD_lstm) != (c != NULL))
    return gb_call_fail(call, GB_EINVAL, "'c' is for the cell 'lstm', which needs it; the cell is '%s'",
                        gb_word_text(cell->integer));
  return GB_OK;
}

/* The type that a result is computed in. */
static gb_dtype lane_of(gb_dtype dtype) { return dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

/* gates [time, batch, gates * size], weight [gates * size, size], bias [gates * size], h and c [batch, size], lengths
 * [batch] -> y [time, batch, size], last_h and last_c [batch, size]; kept are units [time, batch, 4 * size], and the
 * cell states [time, batch, size] in the type of the arithmetic. */
static gb_status recurrent_check(gb_op_call *call) {
  const gb_in_recurrent *in = GB_IN(call, recurrent);
  const gb_attr *cell = &GB_ATTRS(call, recurrent)->cell;
  const int lengths = GB_IN_AT(recurrent, lengths), floats[] = { GB_IN_AT(recurrent, gates),
                                                                 GB_IN_AT(recurrent, weight), GB_IN_AT(recurrent, bias),
                                                                 GB_IN_AT(recurrent, h), GB_IN_AT(recurrent, c) };
  for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
    if (call->in[floats[i]]) GB_TRY(gb_require_float(call, floats[i]));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(recurrent, gates), 3, 3));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(recurrent, weight), 2, 2));
  GB_TRY(check_state(call, cell, in->c));
  int64_t count = gates_of(cell), size = in->weight->shape[1], time = in->gates->shape[0], batch = in->gates->shape[1];
  GB_TRY(expect(call, GB_IN_AT(recurrent, weight), 2, (int64_t[]){ count * size, size }));
  GB_TRY(expect(call, GB_IN_AT(recurrent, gates), 3, (int64_t[]){ time, batch, count * size }));
  GB_TRY(expect(call, GB_IN_AT(recurrent, bias), 1, (int64_t[]){ count * size }));
  GB_TRY(expect(call, GB_IN_AT(recurrent, h), 2, (int64_t[]){ batch, size }));
  GB_TRY(expect(call, GB_IN_AT(recurrent, c), 2, (int64_t[]){ batch, size }));
  GB_TRY(expect(call, lengths, 1, &batch));
  if (in->lengths) GB_TRY(gb_require_integer(call, lengths));
  const int64_t steps[] = { time, batch, size }, units[] = { time, batch, units_of(cell) * size };
  gb_dtype dtype = gb_result_type(call->in, lengths);
  GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent, y), 3, steps, dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent, last_h), 2, steps + 1, dtype));
  if (in->c) GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent, last_c), 2, steps + 1, dtype));
  if (call->needs_grad && units[2] > 0) GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent, units), 3, units, dtype));
  if (!call->needs_grad || !in->c) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(recurrent, cells), 3, steps, lane_of(dtype));
}

/* grad, grad_h and grad_c are those of y, last_h and last_c; the rest is as forward had it -> dgates [time, batch,
 * gates * size], dh and dc [batch, size]; before [time, batch, size], dsums like dgates. */
static gb_status recurrent_backward_check(gb_op_call *call) {
  const gb_in_recurrent_backward *in = GB_IN(call, recurrent_backward);
  const gb_attrs_recurrent_backward *attrs = GB_ATTRS(call, recurrent_backward);
  const gb_attr *cell = &attrs->cell;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(recurrent_backward, y), 3, 3));
  GB_TRY(check_state(call, cell, in->c));
  const int64_t *steps = in->y->shape, count = gates_of(cell), size = steps[2];
  const int64_t gates[] = { steps[0], steps[1], count * size }, units[] = { steps[0], steps[1], units_of(cell) * size };
  if (!in->units != (units[2] == 0) || !in->cells != !in->c)
    return gb_call_fail(call, GB_EINVAL, "units or cells are missing, or too many, for the cell '%s'",
                        gb_word_text(cell->integer));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, grad), 3, steps));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, grad_h), 2, steps + 1));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, grad_c), 2, steps + 1));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, weight), 2, (int64_t[]){ count * size, size }));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, h), 2, steps + 1));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, c), 2, steps + 1));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, lengths), 1, steps + 1));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, units), 3, units));
  GB_TRY(expect(call, GB_IN_AT(recurrent_backward, cells), 3, steps));
  gb_dtype dtype = (gb_dtype)in->y->dtype;
  GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent_backward, dgates), 3, gates, dtype));
  GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent_backward, dh), 2, steps + 1, lane_of(dtype)));
  if (in->c) GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent_backward, dc), 2, steps + 1, lane_of(dtype)));
  if (!attrs->products.integer) return GB_OK;
  GB_TRY(gb_call_output(call, GB_OUT_AT(recurrent_backward, before), 3, steps, dtype));
  if (cell->integer != GB_WORD_gru) return GB_OK;
  return gb_call_output(call, GB_OUT_AT(recurrent_backward, dsums), 3, gates, dtype);
}

/* ====} */

/* {==== gradient ==== */

/* Hand a gradient over where it is needed. */
static void take(gb_tensor **to, bool need, gb_tensor **made) {
  if (!need) return;
  *to = *made;
  *made = NULL;
}

static gb_attr wanted(bool need, gb_dtype dtype) { return need ? gb_attr_int(dtype) : (gb_attr){ .given = false }; }

/* The gradients of weight and bias: one product, and sums, over all steps. */
static gb_status weight_gradients(gb_grad_call *grad, const gb_out_recurrent_backward *made) {
  gb_in_recurrent *to = GB_GRAD_IN(grad, recurrent);
  gb_out_linear_backward sums = { 0 };
  GB_TRY(GB_RUN(grad->context, linear_backward, &sums.dx, .grad = made->dsums ? made->dsums : made->dgates,
                .x = made->before,
                .dweight = wanted(GB_NEEDS(grad, recurrent, weight), GB_WANTS(grad, recurrent, weight)),
                .dbias = wanted(GB_NEEDS(grad, recurrent, bias), GB_WANTS(grad, recurrent, bias))));
  take(&to->weight, GB_NEEDS(grad, recurrent, weight), &sums.dweight);
  take(&to->bias, GB_NEEDS(grad, recurrent, bias), &sums.dbias);
  gb_drop(&sums.dweight), gb_drop(&sums.dbias);
  return GB_OK;
}

static gb_status fused_gradient(gb_grad_call *grad) {
  const gb_in_recurrent *saved = GB_SAVED(grad, recurrent);
  const gb_out_recurrent *kept = GB_KEPT(grad, recurrent), *out = GB_GRAD_OUT(grad, recurrent);
  const gb_attrs_recurrent *attrs = GB_ATTRS(grad, recurrent);
  gb_in_recurrent *to = GB_GRAD_IN(grad, recurrent);
  gb_out_recurrent_backward made = { 0 };
  bool products = GB_NEEDS(grad, recurrent, weight) || GB_NEEDS(grad, recurrent, bias);
  GB_TRY(GB_RUN(grad->context, recurrent_backward, &made.dgates, .grad = out->y, .grad_h = out->last_h,
                .grad_c = out->last_c, .weight = saved->weight, .h = saved->h, .c = saved->c,
                .lengths = saved->lengths, .y = kept->y, .units = kept->units, .cells = kept->cells,
                .cell = attrs->cell, .backwards = attrs->backwards, .products = gb_attr_int(products)));
  gb_status status = products ? weight_gradients(grad, &made) : GB_OK;
  if (status == GB_OK) {
    take(&to->gates, GB_NEEDS(grad, recurrent, gates), &made.dgates);
    take(&to->h, GB_NEEDS(grad, recurrent, h), &made.dh);
    take(&to->c, saved->c && GB_NEEDS(grad, recurrent, c), &made.dc);
  }
  gb_drop(&made.dgates), gb_drop(&made.dh), gb_drop(&made.dc), gb_drop(&made.before), gb_drop(&made.dsums);
  return status;
}

/* {---- by steps, each of ops ---- */

/* Part i of the last dimension of sums. */
static gb_tensor *part(gb_chain *chain, gb_tensor *sums, int64_t i, int64_t size) {
  return GB_CHAIN(chain, narrow, .x = sums, .dim = gb_attr_int(-1), .start = gb_attr_int(i * size),
                  .length = gb_attr_int(size));
}

static gb_tensor *sigmoid(gb_chain *chain, gb_tensor *x) { return GB_CHAIN(chain, sigmoid, .x = x); }
static gb_tensor *bend(gb_chain *chain, gb_tensor *x) { return GB_CHAIN(chain, tanh, .x = x); }
static gb_tensor *times(gb_chain *chain, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(chain, mul, .x = x, .y = y); }
static gb_tensor *plus(gb_chain *chain, gb_tensor *x, gb_tensor *y) { return GB_CHAIN(chain, add, .x = x, .y = y); }

/* The state after a step, from the input's part of its sums and that of the state. *c is replaced, in an LSTM. */
static gb_tensor *step(gb_chain *chain, int64_t cell, gb_tensor *x, gb_tensor *sums, gb_tensor *h, gb_tensor **c,
                       int64_t size) {
  if (cell == GB_WORD_gru) {
    gb_tensor *reset = sigmoid(chain, plus(chain, part(chain, x, 0, size), part(chain, sums, 0, size)));
    gb_tensor *update = sigmoid(chain, plus(chain, part(chain, x, 1, size), part(chain, sums, 1, size)));
    gb_tensor *past = times(chain, reset, part(chain, sums, 2, size));
    gb_tensor *fresh = bend(chain, plus(chain, part(chain, x, 2, size), past));
    return plus(chain, fresh, times(chain, update, GB_CHAIN(chain, sub, .x = h, .y = fresh)));
  }
  gb_tensor *all = plus(chain, x, sums);
  if (cell == GB_WORD_tanh) return bend(chain, all);
  if (cell == GB_WORD_relu) return GB_CHAIN(chain, relu, .x = all);
  gb_tensor *kept = times(chain, sigmoid(chain, part(chain, all, 1, size)), *c);
  gb_tensor *fresh = bend(chain, part(chain, all, 2, size));
  *c = plus(chain, kept, times(chain, sigmoid(chain, part(chain, all, 0, size)), fresh));
  return times(chain, sigmoid(chain, part(chain, all, 3, size)), bend(chain, *c));
}

/* Replace a tensor that a step made by a later one; NULL where a step failed. */
static void follow(gb_tensor **to, gb_tensor *later) {
  if (later) gb_tensor_retain(later);
  gb_tensor_release(*to);
  *to = later;
}

/* One step of the forward pass: y [batch, size], and the state after it in place of that before it. projection: of h to
 * fewer features; or NULL. */
static gb_status run_step(gb_context *context, const gb_attrs_recurrent *attrs, const gb_in_recurrent *in,
                          gb_tensor *projection, int64_t t, gb_tensor **h, gb_tensor **c, gb_tensor **y) {
  gb_chain chain;
  gb_chain_begin(&chain, context);
  gb_tensor *x = GB_CHAIN(&chain, select, .x = in->gates, .dim = gb_attr_int(0), .position = gb_attr_int(t));
  gb_tensor *sums = GB_CHAIN(&chain, linear, .x = *h, .weight = in->weight, .bias = in->bias), *cell = *c;
  int64_t size = in->weight->shape[0] / gates_of(&attrs->cell);
  gb_tensor *made = step(&chain, attrs->cell.integer, x, sums, *h, &cell, size);
  if (projection) made = GB_CHAIN(&chain, linear, .x = made, .weight = projection);
  gb_tensor *shown = made;
  if (in->lengths && chain.status == GB_OK) {
    gb_tensor *goes_on = GB_CHAIN(&chain, unsqueeze,
                                  .x = GB_CHAIN(&chain, gt, .x = in->lengths, .y = gb_chain_wrap(&chain, (double)t)),
                                  .dim = gb_attr_int(-1));
    shown = GB_CHAIN(&chain, where, .condition = goes_on, .x = made, .y = gb_chain_wrap(&chain, 0));
    made = GB_CHAIN(&chain, where, .condition = goes_on, .x = made, .y = *h);
    if (cell) cell = GB_CHAIN(&chain, where, .condition = goes_on, .x = cell, .y = *c);
  }
  if (chain.status == GB_OK) {
    follow(h, made);
    if (cell) follow(c, cell);
  }
  return gb_chain_end(&chain, shown, y);
}

/* The whole forward pass by steps: y, last_h and last_c. */
static gb_status run_steps(gb_context *context, const gb_attrs_recurrent *attrs, const gb_in_recurrent *in,
                           gb_tensor *projection, gb_out_recurrent *out) {
  int64_t time = in->gates->shape[0];
  gb_tensor **rows = calloc((size_t)time + 1, sizeof *rows);
  if (!rows) return gb_fail(context, GB_EMEMORY, "out of memory for %" PRId64 " steps", time);
  gb_status status = GB_OK;
  follow(&out->last_h, in->h);
  if (in->c) follow(&out->last_c, in->c);
  for (int64_t i = 0; status == GB_OK && i < time; i++) {
    int64_t t = attrs->backwards.integer ? time - 1 - i : i;
    status = run_step(context, attrs, in, projection, t, &out->last_h, &out->last_c, &rows[t]);
  }
  if (status == GB_OK)
    status = GB_RUN(context, stack, &out->y, .xs = rows, .dim = gb_attr_int(0), .count = (int)time);
  for (int64_t t = 0; t < time; t++) gb_tensor_release(rows[t]);
  free(rows);
  return status;
}

/* An input as a result of its own: two of them may be one tensor, whose gradients are asked for apart. */
static gb_status set_apart(gb_context *context, gb_tensor *from, gb_tensor **to) {
  return from ? GB_RUN(context, reshape, to, .x = from, .shape = gb_attr_ints(from->ndim, from->shape)) : GB_OK;
}

/* Gradients by the inputs, of which those that need one have their place in inputs[], of the results that an op has:
 * results of ops themselves. */
static gb_status differentiate(gb_grad_call *grad, gb_tensor *const inputs[], gb_tensor *const results[3],
                               gb_tensor *const slopes[3]) {
  gb_tensor *of[3], *slope[3], **by = calloc(2 * (size_t)grad->n_in, sizeof *by);
  if (!by) return gb_fail(grad->context, GB_EMEMORY, "out of memory for %d gradients", grad->n_in);
  gb_tensor **found = by + grad->n_in;
  int n = 0, n_by = 0;
  for (int i = 0; i < 3; i++)
    if (results[i] && slopes[i]) of[n] = results[i], slope[n++] = slopes[i];
  for (int i = 0; i < grad->n_in; i++)
    if (inputs[i] && grad->need[i]) by[n_by++] = inputs[i];
  gb_status status = gb_grad(of, slope, n, by, n_by, true, true, true, found);
  for (int i = 0, k = 0; status == GB_OK && i < grad->n_in; i++)
    if (inputs[i] && grad->need[i]) grad->in[i] = found[k++];
  free(by);
  return status;
}

static gb_status gradient_by_steps(gb_grad_call *grad) {
  const gb_in_recurrent *saved = GB_SAVED(grad, recurrent);
  const gb_out_recurrent *out = GB_GRAD_OUT(grad, recurrent);
  gb_in_recurrent in = { .lengths = saved->lengths };
  gb_out_recurrent made = { 0 };
  gb_tensor *const from[] = { saved->gates, saved->weight, saved->bias, saved->h, saved->c };
  gb_tensor **to[] = { &in.gates, &in.weight, &in.bias, &in.h, &in.c };
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < 5; i++) status = set_apart(grad->context, from[i], to[i]);
  if (status == GB_OK) status = run_steps(grad->context, GB_ATTRS(grad, recurrent), &in, NULL, &made);
  gb_tensor *const inputs[] = { in.gates, in.weight, in.bias, in.h, in.c, NULL };
  if (status == GB_OK)
    status = differentiate(grad, inputs, (gb_tensor *[]){ made.y, made.last_h, made.last_c },
                           (gb_tensor *[]){ out->y, out->last_h, out->last_c });
  for (int i = 0; i < 5; i++) gb_drop(to[i]);
  gb_drop(&made.y), gb_drop(&made.last_h), gb_drop(&made.last_c);
  return status;
}

_Static_assert(GB_IN_AT(recurrent, gates) == 0 && GB_IN_AT(recurrent, lengths) == 5,
               "as gradient_by_steps has them");

/* ----} */

static gb_status recurrent_gradient(gb_grad_call *grad) {
  return grad->create_graph ? gradient_by_steps(grad) : fused_gradient(grad);
}

/* ====} */

/* {==== all layers, by a library ==== */

bool gb_rnn_is_served(gb_context *context, gb_device device, const gb_rnn *rnn, gb_rnn_room *room) {
  const gb_backend *backend = gb_context_backend(context, device);
  return backend && backend->runs_rnn && backend->runs_rnn(backend->state, rnn, room);
}

/* The room that a library wants. What it runs hangs on settings, too: forward may have found other ones. */
static gb_status room_of(gb_op_call *call, const gb_rnn *rnn, gb_rnn_room *room) {
  if (gb_rnn_is_served(call->context, call->device, rnn, room)) return GB_OK;
  char text[24];
  if (call->op == GB_OP_rnn_backward)
    return gb_call_fail(call, GB_EUNSUPPORTED, "the library of device %s ran these recurrent layers forward and does "
                                               "not run them back as things are now: call set_deterministic, and begin "
                                               "or end the capture of a graph, before forward or after backward",
                        gb_device_text(call->context, call->device, text, sizeof text));
  return gb_call_fail(call, GB_EUNSUPPORTED, "device %s has no library for these recurrent layers; nn's layers run "
                                             "them by other ops",
                      gb_device_text(call->context, call->device, text, sizeof text));
}

/* Weight `which` of a network, at its place in the list. */
static gb_status check_weight(gb_op_call *call, const gb_rnn *rnn, gb_tensor *const *weights, int64_t which) {
  const gb_tensor *w = weights[which];
  gb_rnn_weight is = gb_rnn_weight_of(rnn, which);
  const int64_t shape[] = { is.rows, is.columns };
  int ndim = is.columns ? 2 : 1;
  char has[96], wanted[96];
  if (w->ndim == ndim && !memcmp(w->shape, shape, sizeof *shape * (size_t)ndim)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "weight %" PRId64 " has shape %s, expected %s", which + 1,
                      gb_shape_text(w->ndim, w->shape, has, sizeof has),
                      gb_shape_text(ndim, shape, wanted, sizeof wanted));
}

/* What the weights say of their network, and that they are as many, and as large, as this has. */
static gb_status read_weights(gb_op_call *call, gb_tensor **weights, int count, gb_rnn *rnn) {
  if (count < 2 || weights[0]->ndim != 2 || weights[1]->ndim != 2)
    return gb_call_fail(call, GB_EINVAL, "weights begin with two matrices, those of the input and of the state");
  *rnn = gb_rnn_of_weights(*rnn, weights[0], weights[1]);
  rnn->dtype = (int32_t)gb_result_type(weights, count);
  if (rnn->input < 1 || rnn->state < 1 || rnn->hidden < rnn->state)
    return gb_call_fail(call, GB_ESHAPE, "weights of %" PRId64 " features, %" PRId64 " units and %" PRId64 " outputs "
                        "are none of a recurrent layer", rnn->input, rnn->hidden, rnn->state);
  if (rnn->layers > count || count != gb_rnn_weights(rnn))
    return gb_call_fail(call, GB_EINVAL, "%" PRId64 " layers have %" PRId64 " weights for each direction, got %d in "
                        "all", rnn->layers, gb_rnn_each(rnn), count);
  for (int64_t i = 0; i < count; i++) GB_TRY(check_weight(call, rnn, weights, i));
  return GB_OK;
}

static gb_status count_packed(gb_op_call *call, const gb_rnn *rnn, int64_t *count) {
  gb_rnn alone = gb_rnn_packed(*rnn);
  gb_rnn_room room;
  GB_TRY(room_of(call, &alone, &room));
  *count = room.packed / (int64_t)gb_bytes_of((gb_dtype)rnn->dtype);
  return GB_OK;
}

static gb_status rnn_pack_check(gb_op_call *call) {
  gb_rnn rnn = { GB_RNN_ATTRS(GB_ATTRS(call, rnn_pack)) };
  int64_t count;
  for (int i = 0; i < call->n_in; i++) GB_TRY(gb_require_float(call, i));
  GB_TRY(read_weights(call, call->in, call->n_in, &rnn));
  GB_TRY(count_packed(call, &rnn, &count));
  return gb_call_output(call, GB_OUT_AT(rnn_pack, packed), 1, &count, (gb_dtype)rnn.dtype);
}

/* Packed weights of a network have as many elements as its library says. */
static gb_status check_packed(gb_op_call *call, const gb_tensor *packed, const gb_rnn *rnn) {
  int64_t count;
  GB_TRY(count_packed(call, rnn, &count));
  if (packed->ndim == 1 && packed->numel == count && packed->dtype == rnn->dtype && gb_is_contiguous(packed))
    return GB_OK;
  return gb_call_fail(call, GB_EINVAL, "'packed' are no packed weights of these layers, %" PRId64 " elements of %s; "
                      "rnn_pack makes them", count, gb_dtype_name((gb_dtype)rnn->dtype));
}

static gb_status rnn_unpack_check(gb_op_call *call) {
  const gb_attrs_rnn_unpack *attrs = GB_ATTRS(call, rnn_unpack);
  gb_tensor *packed = GB_IN(call, rnn_unpack)->packed;
  GB_TRY(gb_require_float(call, GB_IN_AT(rnn_unpack, packed)));
  gb_rnn rnn = gb_rnn_of_unpack(attrs, (gb_dtype)packed->dtype);
  GB_TRY(check_packed(call, packed, &rnn));
  if (attrs->which.integer >= gb_rnn_weights(&rnn))
    return gb_call_fail(call, GB_EINDEX, "weight %" PRId64 " is out of range 0 .. %" PRId64, attrs->which.integer,
                        gb_rnn_weights(&rnn) - 1);
  gb_rnn_weight w = gb_rnn_weight_of(&rnn, attrs->which.integer);
  gb_dtype dtype = attrs->dtype.given ? (gb_dtype)attrs->dtype.integer : (gb_dtype)packed->dtype;
  return gb_call_output(call, GB_OUT_AT(rnn_unpack, y), w.columns ? 2 : 1, (int64_t[]){ w.rows, w.columns }, dtype);
}

/* Lengths on the host, a whole number of steps each. */
static gb_status check_lengths(gb_op_call *call, int i, int64_t time, int64_t batch) {
  const gb_tensor *lengths = call->in[i];
  if (!lengths) return GB_OK;
  GB_TRY(expect(call, i, 1, &batch));
  if (lengths->dtype != GB_INT64 || lengths->storage->device.type != GB_CPU || !gb_is_contiguous(lengths))
    return gb_call_fail(call, GB_EINVAL, "'lengths' is an int64 vector on the CPU");
  const int64_t *length = (const int64_t *)(const void *)gb_data(lengths);
  for (int64_t b = 0; b < batch; b++)
    if (length[b] < 0 || length[b] > time)
      return gb_call_fail(call, GB_EINDEX, "a length of %" PRId64 " is out of range 0 .. %" PRId64, length[b], time);
  return GB_OK;
}

/* The first states of all layers come together, c of an LSTM alone, or are 0. */
static gb_status check_first(gb_op_call *call, const gb_attr *cell, const gb_tensor *h, const gb_tensor *c) {
  if (!h && c) return gb_call_fail(call, GB_EINVAL, "'c' comes with 'h', which is absent");
  return h ? check_state(call, cell, c) : GB_OK;
}

/* x and the states have the sizes of the network. */
static gb_status check_states(gb_op_call *call, const gb_rnn *rnn, int x, int h, int c) {
  const int64_t count = rnn->layers * gb_rnn_directions(rnn);
  GB_TRY(expect(call, x, 3, (int64_t[]){ rnn->time, rnn->batch, rnn->input }));
  GB_TRY(expect(call, h, 3, (int64_t[]){ count, rnn->batch, rnn->state }));
  return expect(call, c, 3, (int64_t[]){ count, rnn->batch, rnn->hidden });
}

static gb_status rnn_check(gb_op_call *call) {
  const gb_in_rnn *in = GB_IN(call, rnn);
  const gb_attrs_rnn *attrs = GB_ATTRS(call, rnn);
  const int lengths = GB_IN_AT(rnn, lengths);
  gb_rnn rnn = { GB_RNN_ATTRS(attrs) };
  gb_rnn_room room;
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i] && i != lengths) GB_TRY(gb_require_float(call, i));
  GB_TRY(check_first(call, &attrs->cell, in->h, in->c));
  GB_TRY(read_weights(call, GB_LIST(call, rnn, weights), GB_LIST_COUNT(call, rnn, weights), &rnn));
  GB_TRY(check_packed(call, in->packed, &rnn));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(rnn, x), 3, 3));
  const int64_t input = rnn.input; /* the weights' */
  rnn = gb_rnn_of_forward(attrs, in, GB_LIST(call, rnn, weights));
  rnn.input = input;
  GB_TRY(check_states(call, &rnn, GB_IN_AT(rnn, x), GB_IN_AT(rnn, h), GB_IN_AT(rnn, c)));
  GB_TRY(check_lengths(call, lengths, rnn.time, rnn.batch));
  GB_TRY(room_of(call, &rnn, &room));
  const int64_t steps[] = { rnn.time, rnn.batch, gb_rnn_directions(&rnn) * rnn.state };
  GB_TRY(gb_call_output(call, GB_OUT_AT(rnn, y), 3, steps, (gb_dtype)rnn.dtype));
  const int64_t states[] = { rnn.layers * gb_rnn_directions(&rnn), rnn.batch, rnn.state };
  const int64_t cells[] = { states[0], rnn.batch, rnn.hidden };
  GB_TRY(gb_call_output(call, GB_OUT_AT(rnn, last_h), 3, states, (gb_dtype)rnn.dtype));
  if (rnn.cell == GB_WORD_lstm)
    GB_TRY(gb_call_output(call, GB_OUT_AT(rnn, last_c), 3, cells, (gb_dtype)rnn.dtype));
  return call->needs_grad ? gb_call_output(call, GB_OUT_AT(rnn, reserve), 1, &room.reserve, GB_UINT8) : GB_OK;
}

static gb_status rnn_backward_check(gb_op_call *call) {
  const gb_in_rnn_backward *in = GB_IN(call, rnn_backward);
  const gb_attrs_rnn_backward *attrs = GB_ATTRS(call, rnn_backward);
  const int x = GB_IN_AT(rnn_backward, x), h = GB_IN_AT(rnn_backward, h), c = GB_IN_AT(rnn_backward, c);
  gb_rnn_room room;
  GB_TRY(check_first(call, &attrs->cell, in->h, in->c));
  GB_TRY(gb_require_ndim(call, x, 3, 3));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(rnn_backward, y), 3, 3));
  const gb_rnn rnn = gb_rnn_of_backward(attrs, in);
  const int64_t steps[] = { rnn.time, rnn.batch, gb_rnn_directions(&rnn) * rnn.state };
  const int of_h = GB_IN_AT(rnn_backward, grad_h), of_c = GB_IN_AT(rnn_backward, grad_c);
  if (rnn.cell != GB_WORD_lstm && in->grad_c) GB_TRY(check_state(call, &attrs->cell, in->grad_c));
  GB_TRY(check_states(call, &rnn, x, h, c));
  GB_TRY(check_states(call, &rnn, x, of_h, of_c));
  GB_TRY(expect(call, GB_IN_AT(rnn_backward, y), 3, steps));
  GB_TRY(expect(call, GB_IN_AT(rnn_backward, grad), 3, steps));
  GB_TRY(check_lengths(call, GB_IN_AT(rnn_backward, lengths), rnn.time, rnn.batch));
  GB_TRY(check_packed(call, in->packed, &rnn));
  GB_TRY(room_of(call, &rnn, &room));
  if (in->y->dtype != rnn.dtype || in->reserve->dtype != GB_UINT8 || in->reserve->numel != room.reserve)
    return gb_call_fail(call, GB_EINVAL, "'y' and 'reserve' are not what forward gave: %" PRId64 " bytes are kept",
                        room.reserve);
  gb_dtype dtype = (gb_dtype)rnn.dtype;
  GB_TRY(gb_call_output(call, GB_OUT_AT(rnn_backward, dx), 3, in->x->shape, dtype));
  if (in->h) GB_TRY(gb_call_output(call, GB_OUT_AT(rnn_backward, dh), 3, in->h->shape, dtype));
  if (in->c) GB_TRY(gb_call_output(call, GB_OUT_AT(rnn_backward, dc), 3, in->c->shape, dtype));
  return attrs->weights.integer ? gb_call_output(call, GB_OUT_AT(rnn_backward, dpacked), 1, in->packed->shape, dtype)
                                : GB_OK;
}

/* The gradient of one weight out of the packed one, where its sum is kept if it has none yet. */
static gb_status take_weight(gb_grad_call *grad, const gb_rnn *rnn, gb_tensor *dpacked, int which) {
  const gb_attrs_rnn *attrs = GB_ATTRS(grad, rnn);
  const int i = GB_IN_AT(rnn, weights) + which;
  gb_tensor *made = NULL, *sum = i < 32 ? gb_grad_empty_sum(grad, i, (gb_dtype)grad->want[i]) : NULL;
  GB_TRY(GB_RUN_OUT(grad->context, rnn_unpack, sum ? &sum : NULL, &made, .packed = dpacked, .cell = attrs->cell,
                    .input = gb_attr_int(rnn->input), .hidden = gb_attr_int(rnn->hidden),
                    .state = gb_attr_int(rnn->state), .layers = attrs->layers, .bidirectional = attrs->bidirectional,
                    .bias = attrs->bias, .which = gb_attr_int(which), .dtype = gb_attr_int(grad->want[i])));
  if (!sum) {
    grad->in[i] = made;
    return GB_OK;
  }
  gb_drop(&made);
  grad->settled |= 1u << i;
  return GB_OK;
}

static gb_status library_gradient(gb_grad_call *grad) {
  const gb_in_rnn *saved = GB_SAVED(grad, rnn);
  const gb_out_rnn *kept = GB_KEPT(grad, rnn), *out = GB_GRAD_OUT(grad, rnn);
  const gb_attrs_rnn *attrs = GB_ATTRS(grad, rnn);
  gb_in_rnn *to = GB_GRAD_IN(grad, rnn);
  gb_out_rnn_backward made = { 0 };
  const int first = GB_IN_AT(rnn, weights), n = grad->n_in - first;
  const gb_rnn rnn = gb_rnn_of_forward(attrs, saved, grad->saved + first);
  bool any = false;
  for (int i = 0; i < n; i++) any |= grad->need[first + i];
  GB_TRY(GB_RUN(grad->context, rnn_backward, &made.dx, .grad = out->y, .grad_h = out->last_h, .grad_c = out->last_c,
                .x = saved->x, .h = saved->h, .c = saved->c, .lengths = saved->lengths, .packed = saved->packed,
                .y = kept->y, .reserve = kept->reserve, .cell = attrs->cell, .hidden = gb_attr_int(rnn.hidden),
                .layers = attrs->layers, .bidirectional = attrs->bidirectional, .bias = attrs->bias,
                .tf32 = attrs->tf32, .weights = gb_attr_int(any), .again = gb_attr_int(grad->again)));
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < n; i++)
    if (grad->need[first + i]) status = take_weight(grad, &rnn, made.dpacked, i);
  if (status == GB_OK) {
    take(&to->x, GB_NEEDS(grad, rnn, x), &made.dx);
    take(&to->h, saved->h && GB_NEEDS(grad, rnn, h), &made.dh);
    take(&to->c, saved->c && GB_NEEDS(grad, rnn, c), &made.dc);
  }
  gb_drop(&made.dx), gb_drop(&made.dh), gb_drop(&made.dc), gb_drop(&made.dpacked);
  return status;
}

/* {---- by layers, each of ops ---- */

/* One layer in one direction from the states `at` of h and c. */
static gb_status run_layer(gb_context *context, const gb_attrs_rnn *attrs, const gb_in_rnn *in, gb_tensor *lengths,
                           gb_tensor *const *weights, gb_tensor *x, int64_t at, gb_out_recurrent *out) {
  const gb_attr dim = gb_attr_int(0), place = gb_attr_int(at);
  const gb_rnn rnn = gb_rnn_of_weights((gb_rnn){ GB_RNN_ATTRS(attrs) }, weights[0], weights[1]);
  const int64_t each = gb_rnn_each(&rnn);
  gb_tensor *w[GB_RNN_PROJECTION + 1] = { NULL }, *gates = NULL, *h = NULL, *c = NULL;
  for (int64_t i = at * each; i < (at + 1) * each; i++) w[gb_rnn_weight_of(&rnn, i).kind] = weights[i];
  gb_status status = GB_RUN(context, linear, &gates, .x = x, .weight = w[GB_RNN_INPUT], .bias = w[GB_RNN_INPUT_BIAS]);
  if (status == GB_OK) status = GB_RUN(context, select, &h, .x = in->h, .dim = dim, .position = place);
  if (status == GB_OK && in->c) status = GB_RUN(context, select, &c, .x = in->c, .dim = dim, .position = place);
  gb_attr backwards = gb_attr_int(attrs->bidirectional.integer && at % 2);
  if (status == GB_OK && !w[GB_RNN_PROJECTION])
    status = GB_RUN(context, recurrent, &out->y, .gates = gates, .weight = w[GB_RNN_STATE],
                    .bias = w[GB_RNN_STATE_BIAS], .h = h, .c = c, .lengths = lengths, .cell = attrs->cell,
                    .backwards = backwards);
  else if (status == GB_OK) {
    gb_attrs_recurrent of_steps = { .cell = attrs->cell, .backwards = backwards };
    gb_in_recurrent of_layer = { .gates = gates, .weight = w[GB_RNN_STATE], .bias = w[GB_RNN_STATE_BIAS], .h = h,
                                 .c = c, .lengths = lengths };
    status = run_steps(context, &of_steps, &of_layer, w[GB_RNN_PROJECTION], out);
  }
  gb_drop(&gates), gb_drop(&h), gb_drop(&c);
  return status;
}

/* The states of all layers side by side. */
static gb_status stack_states(gb_context *context, gb_tensor **states, int64_t count, gb_tensor **out) {
  return states[0] ? GB_RUN(context, stack, out, .xs = states, .dim = gb_attr_int(0), .count = (int)count) : GB_OK;
}

/* All layers: y, last_h and last_c. states has room for 2 * count of them, and 0 in it. */
static gb_status run_layers(gb_context *context, const gb_attrs_rnn *attrs, const gb_in_rnn *in, gb_tensor *lengths,
                            gb_tensor *const *weights, gb_tensor **states, int64_t count, gb_out_rnn *out) {
  const int64_t directions = attrs->bidirectional.integer ? 2 : 1;
  gb_tensor *sides[2] = { NULL };
  gb_status status = GB_OK;
  follow(&out->y, in->x);
  for (int64_t at = 0; status == GB_OK && at < count; at++) {
    gb_out_recurrent one = { 0 };
    status = run_layer(context, attrs, in, lengths, weights, out->y, at, &one);
    states[at] = one.last_h, states[count + at] = one.last_c;
    sides[at % directions] = one.y;
    if (status != GB_OK || at % directions != directions - 1) continue;
    gb_drop(&out->y);
    if (directions == 1) out->y = sides[0], sides[0] = NULL;
    else status = GB_RUN(context, cat, &out->y, .xs = sides, .dim = gb_attr_int(-1), .count = 2);
    gb_drop(&sides[0]), gb_drop(&sides[1]);
  }
  gb_drop(&sides[0]), gb_drop(&sides[1]);
  if (status == GB_OK) status = stack_states(context, states, count, &out->last_h);
  return status == GB_OK ? stack_states(context, states + count, count, &out->last_c) : status;
}

/* First states that were absent: zeros in the dtype of x. */
static gb_status first_states(gb_context *context, const gb_rnn *rnn, gb_in_rnn *in) {
  gb_tensor **to[] = { &in->h, &in->c };
  const int64_t sizes[] = { rnn->state, rnn->hidden };
  for (int i = 0; i < (rnn->cell == GB_WORD_lstm ? 2 : 1); i++) {
    const int64_t shape[] = { rnn->layers * gb_rnn_directions(rnn), rnn->batch, sizes[i] };
    if (*to[i]) continue;
    GB_TRY(gb_tensor_new(context, (gb_dtype)in->x->dtype, 3, shape, in->x->storage->device, to[i]));
    GB_TRY(GB_RUN(context, fill, NULL, .x = *to[i], .value = gb_attr_num(0)));
  }
  return GB_OK;
}

static gb_status gradient_by_layers(gb_grad_call *grad) {
  const gb_attrs_rnn *attrs = GB_ATTRS(grad, rnn);
  const gb_out_rnn *out = GB_GRAD_OUT(grad, rnn);
  gb_context *context = grad->context;
  int64_t count = attrs->layers.integer * (attrs->bidirectional.integer ? 2 : 1);
  gb_tensor **inputs = calloc((size_t)(grad->n_in + 2 * count), sizeof *inputs), *lengths = NULL;
  if (!inputs) return gb_fail(context, GB_EMEMORY, "out of memory for %d inputs", grad->n_in);
  gb_tensor **states = inputs + grad->n_in, *of_host = GB_SAVED(grad, rnn)->lengths;
  gb_out_rnn made = { 0 };
  gb_status status = of_host ? gb_tensor_on(of_host, GB_SAVED(grad, rnn)->x->storage->device, &lengths) : GB_OK;
  for (int i = 0; status == GB_OK && i < grad->n_in; i++)
    if (i != GB_IN_AT(rnn, lengths) && i != GB_IN_AT(rnn, packed))
      status = set_apart(context, grad->saved[i], &inputs[i]);
  gb_in_rnn *in = (gb_in_rnn *)(void *)inputs;
  const gb_rnn rnn = gb_rnn_of_forward(attrs, GB_SAVED(grad, rnn), grad->saved + GB_IN_AT(rnn, weights));
  if (status == GB_OK) status = first_states(context, &rnn, in);
  if (status == GB_OK)
    status = run_layers(context, attrs, in, lengths,
                        inputs + GB_IN_AT(rnn, weights), states, count, &made);
  if (status == GB_OK)
    status = differentiate(grad, inputs, (gb_tensor *[]){ made.y, made.last_h, made.last_c },
                           (gb_tensor *[]){ out->y, out->last_h, out->last_c });
  for (int64_t i = 0; i < grad->n_in + 2 * count; i++) gb_drop(&inputs[i]);
  gb_drop(&made.y), gb_drop(&made.last_h), gb_drop(&made.last_c), gb_drop(&lengths);
  free(inputs);
  return status;
}

/* ----} */

static gb_status rnn_gradient(gb_grad_call *grad) {
  return grad->create_graph ? gradient_by_layers(grad) : library_gradient(grad);
}

/* ====} */

const gb_op_impl gb_family_recurrent[] = {
  { .op = GB_OP_recurrent, .check = recurrent_check, .gradient = recurrent_gradient, .takes_no_grad = true,
    .save_in = GB_SAVE_IN(recurrent, gates) | GB_SAVE_IN(recurrent, weight) | GB_SAVE_IN(recurrent, bias) |
               GB_SAVE_IN(recurrent, h) | GB_SAVE_IN(recurrent, c) | GB_SAVE_IN(recurrent, lengths),
    .save_out = GB_SAVE_OUT(recurrent, y) | GB_SAVE_OUT(recurrent, units) | GB_SAVE_OUT(recurrent, cells) },
  { .op = GB_OP_recurrent_backward, .check = recurrent_backward_check },
  { .op = GB_OP_rnn_pack, .check = rnn_pack_check },
  { .op = GB_OP_rnn_unpack, .check = rnn_unpack_check },
  { .op = GB_OP_rnn, .check = rnn_check, .gradient = rnn_gradient, .takes_no_grad = true,
    .save_in = GB_SAVE_IN(rnn, x) | GB_SAVE_IN(rnn, h) | GB_SAVE_IN(rnn, c) | GB_SAVE_IN(rnn, lengths) |
               GB_SAVE_IN(rnn, packed) | GB_SAVE_IN(rnn, weights),
    .save_out = GB_SAVE_OUT(rnn, y) | GB_SAVE_OUT(rnn, reserve) },
  { .op = GB_OP_rnn_backward, .check = rnn_backward_check },
  { .op = GB_OP_COUNT },
};
