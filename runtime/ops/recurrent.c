/* ops/recurrent.c - a layer of recurrent cells over a whole sequence, in one direction: its check and its gradient.
 *
 * The input's part of all steps is one product before the op, and the gradient of weight one product behind its
 * backward. With create_graph the steps run as ops of their own, whose gradients have gradients. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/chain.h"
#include "graph/ops.h"

/* {==== checks ==== */

/* Sums of a unit. */
static int64_t gates_of(const gb_attr *cell) {
  return cell->integer == GB_WORD_lstm ? 4 : cell->integer == GB_WORD_gru ? 3 : 1;
}

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

/* One step of the forward pass: y [batch, size], and the state after it in place of that before it. */
static gb_status run_step(gb_context *context, const gb_attrs_recurrent *attrs, const gb_in_recurrent *in, int64_t t,
                          gb_tensor **h, gb_tensor **c, gb_tensor **y) {
  gb_chain chain;
  gb_chain_begin(&chain, context);
  gb_tensor *x = GB_CHAIN(&chain, select, .x = in->gates, .dim = gb_attr_int(0), .position = gb_attr_int(t));
  gb_tensor *sums = GB_CHAIN(&chain, linear, .x = *h, .weight = in->weight, .bias = in->bias), *cell = *c;
  gb_tensor *made = step(&chain, attrs->cell.integer, x, sums, *h, &cell, in->weight->shape[1]), *shown = made;
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
                           gb_out_recurrent *out) {
  int64_t time = in->gates->shape[0];
  gb_tensor **rows = calloc((size_t)time + 1, sizeof *rows);
  if (!rows) return gb_fail(context, GB_EMEMORY, "out of memory for %" PRId64 " steps", time);
  gb_status status = GB_OK;
  follow(&out->last_h, in->h);
  if (in->c) follow(&out->last_c, in->c);
  for (int64_t i = 0; status == GB_OK && i < time; i++) {
    int64_t t = attrs->backwards.integer ? time - 1 - i : i;
    status = run_step(context, attrs, in, t, &out->last_h, &out->last_c, &rows[t]);
  }
  if (status == GB_OK)
    status = GB_RUN(context, stack, &out->y, .xs = rows, .dim = gb_attr_int(0), .count = (int)time);
  for (int64_t t = 0; t < time; t++) gb_tensor_release(rows[t]);
  free(rows);
  return status;
}

/* Each input as a result of its own: two of them may be one tensor, whose gradients are asked for apart. */
static gb_status set_apart(gb_context *context, const gb_in_recurrent *saved, gb_in_recurrent *in) {
  gb_tensor *const from[] = { saved->gates, saved->weight, saved->bias, saved->h, saved->c };
  gb_tensor **to[] = { &in->gates, &in->weight, &in->bias, &in->h, &in->c };
  for (int i = 0; i < 5; i++) {
    if (!from[i]) continue;
    gb_attr shape = gb_attr_ints(from[i]->ndim, from[i]->shape);
    GB_TRY(GB_RUN(context, reshape, to[i], .x = from[i], .shape = shape));
  }
  in->lengths = saved->lengths;
  return GB_OK;
}

/* The gradients of the steps, which are results of ops themselves. */
static gb_status differentiate(gb_grad_call *grad, const gb_in_recurrent *in, const gb_out_recurrent *made) {
  const gb_out_recurrent *out = GB_GRAD_OUT(grad, recurrent);
  gb_tensor *const results[] = { made->y, made->last_h, made->last_c };
  gb_tensor *const slopes[] = { out->y, out->last_h, out->last_c };
  gb_tensor *const inputs[] = { in->gates, in->weight, in->bias, in->h, in->c };
  gb_tensor *of[3], *slope[3], *by[5], *found[5] = { NULL };
  int n = 0, n_by = 0;
  for (int i = 0; i < 3; i++)
    if (results[i] && slopes[i]) of[n] = results[i], slope[n++] = slopes[i];
  for (int i = 0; i < 5; i++)
    if (inputs[i] && grad->need[i]) by[n_by++] = inputs[i];
  GB_TRY(gb_grad(of, slope, n, by, n_by, true, true, true, found));
  for (int i = 0, k = 0; i < 5; i++)
    if (inputs[i] && grad->need[i]) grad->in[i] = found[k++];
  return GB_OK;
}

static gb_status gradient_by_steps(gb_grad_call *grad) {
  gb_in_recurrent in = { 0 };
  gb_out_recurrent made = { 0 };
  gb_status status = set_apart(grad->context, GB_SAVED(grad, recurrent), &in);
  if (status == GB_OK) status = run_steps(grad->context, GB_ATTRS(grad, recurrent), &in, &made);
  if (status == GB_OK) status = differentiate(grad, &in, &made);
  gb_drop(&in.gates), gb_drop(&in.weight), gb_drop(&in.bias), gb_drop(&in.h), gb_drop(&in.c);
  gb_drop(&made.y), gb_drop(&made.last_h), gb_drop(&made.last_c);
  return status;
}

_Static_assert(GB_IN_AT(recurrent, gates) == 0 && GB_IN_AT(recurrent, c) == 4, "floats come first");

/* ----} */

static gb_status recurrent_gradient(gb_grad_call *grad) {
  return grad->create_graph ? gradient_by_steps(grad) : fused_gradient(grad);
}

/* ====} */

const gb_op_impl gb_family_recurrent[] = {
  { .op = GB_OP_recurrent, .check = recurrent_check, .gradient = recurrent_gradient,
    .save_in = GB_SAVE_IN(recurrent, gates) | GB_SAVE_IN(recurrent, weight) | GB_SAVE_IN(recurrent, bias) |
               GB_SAVE_IN(recurrent, h) | GB_SAVE_IN(recurrent, c) | GB_SAVE_IN(recurrent, lengths),
    .save_out = GB_SAVE_OUT(recurrent, y) | GB_SAVE_OUT(recurrent, units) | GB_SAVE_OUT(recurrent, cells) },
  { .op = GB_OP_recurrent_backward, .check = recurrent_backward_check },
  { .op = GB_OP_COUNT },
};
