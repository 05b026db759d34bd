/* step/passes.c - see passes.h. The checks are for callers of the engine's own: what fails here is a fault of theirs,
 * or of memory that was taken back. */
#include "step/passes.h"

#include "graph/room.h"
#include "step/optim.h"

static gb_status check_slab(const gb_step_call *c) {
  if (!c->slab || !c->slab->gradients) return gb_fail(c->context, GB_EINVAL, "the slab has no gradients");
  GB_TRY(gb_check_loan(c->slab->gradients)); /* of a parameter that no optimizer holds it may be one */
  if (c->scaled && !c->scale)
    return gb_fail(c->context, GB_EINVAL, "gradients carry a scale, but the scaler's scalars are missing");
  return GB_OK;
}

/* A look at the gradients may measure their norm too. */
static gb_status check_look(const gb_step_call *c) {
  GB_TRY(check_slab(c));
  if (c->norm_type > 0 && !c->found && !c->share)
    return gb_fail(c->context, GB_EINVAL, "a norm needs scalars to be written to");
  return GB_OK;
}

/* A step also needs the weights, and the states that it uses. */
static gb_status check_update(const gb_step_call *c) {
  GB_TRY(check_slab(c));
  const gb_slab *slab = c->slab;
  if (!c->numbers) return gb_fail(c->context, GB_EINVAL, "the hyperparameters are missing");
  if (!slab->parameters || (gb_is_16bit(slab->dtype) && !slab->masters))
    return gb_fail(c->context, GB_EINVAL, "the slab has no weights");
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (c->uses[i] && !slab->state[i]) return gb_fail(c->context, GB_EINVAL, "state %d of the slab is missing", i + 1);
  if (gb_optimizer_info_of(c->kind)->measured && !slab->measures)
    return gb_fail(c->context, GB_EINVAL, "the measures of the slab are missing");
  return GB_OK;
}

static gb_status check_rescale(const gb_step_call *c) {
  return c->scale ? GB_OK : gb_fail(c->context, GB_EINVAL, "the scaler's scalars are missing");
}

static const struct { const char *name; gb_status (*check)(const gb_step_call *call); } steps[GB_STEP_COUNT] = {
  [GB_STEP_CHECK] = { "optim_check", check_look }, [GB_STEP_UNSCALE] = { "optim_unscale", check_look },
  [GB_STEP_CLIP] = { "optim_clip", check_slab },   [GB_STEP_UPDATE] = { "optim_step", check_update },
  [GB_STEP_DIRECT] = { "optim_direction", check_update }, [GB_STEP_MEASURE] = { "optim_measure", check_update },
  [GB_STEP_RESCALE] = { "scaler_update", check_rescale },
};

const char *gb_step_name(gb_step step) { return steps[step].name; }

static gb_status travel(gb_step_call *call) {
  gb_context *context = call->context;
  char text[24];
  GB_TRY(steps[call->step].check(call));
  if (call->slab) call->device = call->slab->gradients->storage->device;
  gb_backend *backend = gb_context_backend(context, call->device);
  if (!backend || !backend->step[call->step])
    return gb_fail(context, GB_EUNSUPPORTED, "device %s has no kernel for this step; move the parameters to 'cpu'",
                   gb_device_text(context, call->device, text, sizeof text));
  GB_TRY(backend->step[call->step](call));
  for (const gb_observer *o = context->graph->observers; o; o = o->next)
    if (o->step) GB_TRY(o->step(o->user, call));
  return GB_OK;
}

gb_status gb_step_run(gb_context *context, gb_step step, gb_step_call *call) {
  const char *outer;
  call->context = context;
  call->step = step;
  gb_status status = gb_run_begin(context, gb_step_name(step), &outer);
  if (status == GB_OK) status = travel(call);
  gb_run_end(context, outer);
  return status;
}
