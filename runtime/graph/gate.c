/* graph/gate.c - a gradient on its way through a ReLU. See gate.h. */
#include "graph/gate.h"

#include <stdlib.h>

gb_gate *gb_gate_new(gb_context *context, gb_tensor *grad, gb_tensor *more, gb_tensor *y) {
  gb_gate *gate = malloc(sizeof *gate);
  if (!gate) {
    gb_fail_memory(context, sizeof *gate);
    return NULL;
  }
  *gate = (gb_gate){ .refs = 1, .context = context, .grad = grad, .more = more, .y = y,
                     .version = gb_tensor_version(y) };
  gb_tensor_retain(grad);
  gb_tensor_retain(y);
  if (more) gb_tensor_retain(more);
  return gate;
}

/* Its operands are not needed any more. */
static void forget_operands(gb_gate *gate) {
  gb_drop(&gate->grad);
  gb_drop(&gate->more);
  gb_drop(&gate->y);
}

void gb_gate_release(gb_gate *gate) {
  if (!gate || --gate->refs > 0) return;
  forget_operands(gate);
  gb_drop(&gate->made);
  free(gate);
}

gb_status gb_gate_check(const gb_gate *gate) {
  if (gb_tensor_version(gate->y) == gate->version) return GB_OK;
  return gb_fail(gate->context, GB_EAUTOGRAD, "backward: the result of relu was changed in place while its gradient "
                                              "was on its way; use the form without '_' or clone it first");
}

void gb_gate_put(gb_gate *gate, gb_tensor *made) {
  made->tag = gate->grad->tag;
  gate->made = made;
  forget_operands(gate);
}

gb_status gb_gate_open(gb_gate *gate, gb_tensor **out) {
  if (!gate->made) {
    gb_tensor *sum = NULL, *made = NULL;
    GB_TRY(gb_gate_check(gate));
    if (gate->more) GB_TRY(GB_RUN(gate->context, add, &sum, .x = gate->grad, .y = gate->more));
    gb_status status = GB_RUN(gate->context, relu_backward, &made, .grad = sum ? sum : gate->grad, .y = gate->y);
    gb_drop(&sum);
    GB_TRY(status);
    gb_gate_put(gate, made);
  }
  gb_tensor_retain(*out = gate->made);
  return GB_OK;
}
