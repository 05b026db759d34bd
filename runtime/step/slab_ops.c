/* step/slab_ops.c - the checks of the ops that work on whole slabs. They have no tensor inputs: a pointer to a gb_slab_call says everything,
 * so the device is that of the slab, and dispatch, which looks at inputs, leaves loans to the check here. None has a gradient. */
#include "graph/ops.h"
#include "tensor/step_state.h"

/* The call's argument, or an error where a caller from outside gave none. */
static gb_status slab_call(gb_call *call, const gb_slab_call **out) {
  *out = call->attrs[0].pointer;
  if (!*out) return gb_call_fail(call, GB_EINVAL, "is called by optimizers only: it needs a slab");
  return GB_OK;
}

static gb_status check_slab(gb_call *call) {
  const gb_slab_call *c;
  GB_TRY(slab_call(call, &c));
  if (!c->slab || !c->slab->gradients) return gb_call_fail(call, GB_EINVAL, "the slab has no gradients");
  GB_TRY(gb_check_loan(c->slab->gradients)); /* of a parameter that no optimizer holds it may be one */
  if (c->scaled && !c->scale) return gb_call_fail(call, GB_EINVAL, "gradients carry a scale, but the scaler's record is missing");
  call->device = c->slab->gradients->storage->device;
  return GB_OK;
}

/* A look at the gradients may measure their norm too. */
static gb_status check_look(gb_call *call) {
  GB_TRY(check_slab(call));
  const gb_slab_call *c = call->attrs[0].pointer;
  return c->norm_type > 0 && !c->found ? gb_call_fail(call, GB_EINVAL, "a norm needs a record to be written to") : GB_OK;
}

/* A step also needs the weights, and the states that it uses. */
static gb_status check_step(gb_call *call) {
  GB_TRY(check_slab(call));
  const gb_slab_call *c = call->attrs[0].pointer;
  const gb_slab *slab = c->slab;
  if (!c->numbers) return gb_call_fail(call, GB_EINVAL, "the hyperparameters are missing");
  if (!slab->parameters || (gb_is_16bit(slab->dtype) && !slab->masters)) return gb_call_fail(call, GB_EINVAL, "the slab has no weights");
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (c->uses[i] && !slab->state[i]) return gb_call_fail(call, GB_EINVAL, "state %d of the slab is missing", i + 1);
  return GB_OK;
}

static gb_status check_update(gb_call *call) {
  const gb_slab_call *c;
  GB_TRY(slab_call(call, &c));
  if (!c->scale) return gb_call_fail(call, GB_EINVAL, "the scaler's record is missing");
  call->device = c->device;
  return GB_OK;
}

const gb_op_impl gb_family_optim[] = {
  { .op = GB_OP_optim_check, .check = check_look },
  { .op = GB_OP_optim_unscale, .check = check_look },
  { .op = GB_OP_optim_clip, .check = check_slab },
  { .op = GB_OP_optim_step, .check = check_step },
  { .op = GB_OP_scaler_update, .check = check_update },
  { .op = GB_OP_COUNT },
};
