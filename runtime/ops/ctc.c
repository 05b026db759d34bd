/* ops/ctc.c - ctc_loss: its check and its gradient. The kernel is in cpu/ctc.c.
 *
 * Where a gradient is wanted, forward makes the derivative of the reduced loss with respect to each log-probability,
 * which backward only multiplies by what comes in. It is the derivative itself, not PyTorch's, which adds
 * exp(log_probs): behind log_softmax, whose gradient takes that away again, both are the same. */
#include <inttypes.h>

#include "graph/chain.h"
#include "graph/ops.h"

/* The lengths of n samples, or of the one there is. */
static gb_status check_lengths(gb_op_call *call, int input, int64_t n, bool batched) {
  const gb_tensor *lengths = call->in[input];
  char text[96];
  GB_TRY(gb_require_integer(call, input));
  bool one = !batched && lengths->ndim <= 1 && lengths->numel == 1;
  if (one || (lengths->ndim == 1 && lengths->shape[0] == n)) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "'%s' has shape %s; it holds one length for each of %" PRId64 " samples",
                      gb_op_input(call->info, input)->name,
                      gb_shape_text(lengths->ndim, lengths->shape, text, sizeof text), n);
}

/* log_probs [time, n, classes] or [time, classes]; targets [n, length], or one after another. */
static gb_status ctc_loss_check(gb_op_call *call) {
  const gb_in_ctc_loss *in = GB_IN(call, ctc_loss);
  const gb_attrs_ctc_loss *attrs = GB_ATTRS(call, ctc_loss);
  const gb_tensor *x = in->log_probs, *targets = in->targets;
  char text[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(ctc_loss, log_probs)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(ctc_loss, log_probs), 2, 3));
  bool batched = x->ndim == 3;
  int64_t n = batched ? x->shape[1] : 1, classes = x->shape[x->ndim - 1];
  GB_TRY(gb_require_integer(call, GB_IN_AT(ctc_loss, targets)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(ctc_loss, targets), 1, batched ? 2 : 1));
  if (targets->ndim == 2 && targets->shape[0] != n)
    return gb_call_fail(call, GB_ESHAPE, "'targets' has shape %s; log_probs has %" PRId64 " samples",
                        gb_shape_text(targets->ndim, targets->shape, text, sizeof text), n);
  GB_TRY(check_lengths(call, GB_IN_AT(ctc_loss, input_lengths), n, batched));
  GB_TRY(check_lengths(call, GB_IN_AT(ctc_loss, target_lengths), n, batched));
  if (attrs->blank.integer >= classes)
    return gb_call_fail(call, GB_EINVAL, "'blank' is %" PRId64 "; log_probs has %" PRId64 " classes, from 0",
                        attrs->blank.integer, classes);
  int ndim = batched && attrs->reduction.integer == GB_WORD_none;
  gb_dtype dtype = x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  GB_TRY(gb_call_output(call, GB_OUT_AT(ctc_loss, loss), ndim, &n, gb_call_dtype(call, (gb_dtype)x->dtype)));
  return call->needs_grad ? gb_call_output(call, GB_OUT_AT(ctc_loss, slope), x->ndim, x->shape, dtype) : GB_OK;
}

static bool lies_elsewhere(const gb_op_call *call, const gb_tensor *lengths) {
  gb_device device = lengths->storage->device;
  return device.type != call->device.type || device.index != call->device.index;
}

static bool has_lengths_elsewhere(const gb_op_call *call) {
  const gb_in_ctc_loss *in = GB_IN(call, ctc_loss);
  return lies_elsewhere(call, in->input_lengths) || lies_elsewhere(call, in->target_lengths);
}

/* The lengths come to the other tensors. */
static gb_status bring_lengths(gb_op_call *call) {
  const gb_in_ctc_loss *in = GB_IN(call, ctc_loss);
  gb_tensor *given[2] = { in->input_lengths, in->target_lengths }, *here[2] = { NULL };
  gb_status status = GB_OK;
  for (int i = 0; status == GB_OK && i < 2; i++)
    status = gb_op_to_device(call->context, given[i], call->device, &here[i]);
  gb_tensor *all[] = { in->log_probs, in->targets, here[0], here[1] };
  if (status == GB_OK) status = gb_apply(call->context, call->op, all, 4, call->attrs, call->out);
  for (int i = 0; i < 2; i++) gb_drop(&here[i]);
  return status;
}

static gb_status ctc_loss_gradient(gb_grad_call *grad) {
  gb_tensor *g = GB_GRAD_OUT(grad, ctc_loss)->loss, *slope = GB_KEPT(grad, ctc_loss)->slope;
  gb_chain chain;
  gb_chain_begin(&chain, grad->context);
  if (g->ndim == 1) g = GB_CHAIN(&chain, unsqueeze, .x = g, .dim = gb_attr_int(-1));
  return gb_chain_end(&chain, GB_CHAIN(&chain, mul, .x = slope, .y = g), &GB_GRAD_IN(grad, ctc_loss)->log_probs);
}

const gb_op_impl gb_family_ctc[] = { { .op = GB_OP_ctc_loss,
                                       .check = ctc_loss_check,
                                       .composed = has_lengths_elsewhere,
                                       .compose = bring_lengths,
                                       .gradient = ctc_loss_gradient,
                                       .save_out = GB_SAVE_OUT(ctc_loss, slope) },
                                     { .op = GB_OP_COUNT } };
