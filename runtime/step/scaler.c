/* step/scaler.c - the gradient scaler: PyTorch's stages over scalars that kernels read and write.
 *
 * Every gradient that comes back through scale() carries a tag (this scaler, its number of updates), so each stage can
 * check that it is handed the gradients it was made for, and can say what went wrong where PyTorch asserts. Differences
 * from PyTorch, all on purpose: the scale has a floor and never reaches 0 or infinity; so many skips in a row are an
 * error that names the parameters; growth compares with >=, so that lowering growth_interval below the count grows at
 * the next good step; 16-bit parameters have float32 gradients, so there is nothing to refuse. Scalers per loss keep no
 * scale in parameters' gradients: a sum over several losses could not carry several. */
#include "step/scaler.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step/capture.h"
#include "step/optimizer.h"
#include "step/room.h"

typedef enum stage { READY, UNSCALED, STEPPED } stage;

/* How far one optimizer got since the last update. */
typedef struct progress { gb_optimizer *optimizer; stage stage; } progress; /* the optimizer is counted */

struct gb_scaler {
  _Atomic int32_t refs;
  gb_context *context;         /* counted */
  uint32_t id, update;         /* the tag that gradients carry now */
  gb_scaler_options options;
  gb_scalars scalars;          /* a gb_scale_state, where the losses are */
  gb_scale_state *posted;      /* off the CPU: pinned memory that a copy of the scalars arrives in some time after an
                                  update; NULL: none yet */
  int64_t counted;             /* updates that the scalars will have counted by then, in steps and skipped */
  bool heeded;                 /* the copy of the last update was looked at */
  bool used;                   /* scale() was called */
  bool received;               /* per loss: gradients came since the last update */
  gb_scale_schedule schedule;  /* NULL: none */
  void *schedule_user;
  void (*schedule_release)(void *user);
  progress *optimizers;        /* all but the ready ones */
  int n_optimizers, capacity;
  progress *past;              /* those of the last update, while it may still be found that it was skipped */
  int n_past, past_capacity;
  char *report;                /* NULL: none yet */
  size_t report_size;
  int64_t report_update;       /* the update that the report is about, as the scalars count them; 0: none */
  char cause[256];             /* what the tracer, armed by a skip, found at the last one */
  gb_scaler *next;             /* of the context's */
};

/* {==== options ==== */

void gb_scaler_options_init(gb_scaler_options *options, size_t size) {
  gb_scaler_options all = { .size = size, .enabled = true, .dynamic = true, .init_scale = 65536, .growth_factor = 2,
                            .backoff_factor = 0.5,
                            .growth_interval = 2000, .min_scale = 0x1p-14, .max_scale = 0, .max_skips = 64,
                                .hysteresis = 1 };
  memcpy(options, &all, size < sizeof all ? size : sizeof all);
}

/* A scale that float32 holds, and whose inverse it holds too. */
static gb_status check_scale(gb_context *context, const char *what, double scale) {
  if (scale >= FLT_MIN && scale <= FLT_MAX) return GB_OK;
  return gb_fail(context, GB_EINVAL, "GradScaler: %s is %g; it must be a positive float32 number", what, scale);
}

static gb_status check_options(gb_context *context, const gb_scaler_options *o) {
  if (!o->enabled) return GB_OK;
  GB_TRY(check_scale(context, "init_scale", o->init_scale));
  if (!(o->growth_factor > 1) || !isfinite(o->growth_factor))
    return gb_fail(context, GB_EINVAL, "GradScaler: growth_factor is %g; it must be above 1", o->growth_factor);
  if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
    return gb_fail(context, GB_EINVAL, "GradScaler: backoff_factor is %g; it must be above 0 and below 1",
                   o->backoff_factor);
  if (o->growth_interval < 1)
    return gb_fail(context, GB_EINVAL, "GradScaler: growth_interval is %lld; it must be 1 or more",
                   (long long)o->growth_interval);
  if (!(o->min_scale >= 0) || !isfinite(o->min_scale) || !(o->max_scale >= 0) ||
      (o->max_scale > 0 && o->max_scale < o->min_scale))
    return gb_fail(context, GB_EINVAL, "GradScaler: min_scale is %g and max_scale %g; both must be 0 (none) or "
                                       "more, and max_scale not below "
                   "min_scale", o->min_scale, o->max_scale);
  if (o->max_skips < 0)
    return gb_fail(context, GB_EINVAL, "GradScaler: max_skips is %lld; it must be 0 (never) or more",
                   (long long)o->max_skips);
  if (o->hysteresis < 1)
    return gb_fail(context, GB_EINVAL, "GradScaler: hysteresis is %lld; it must be 1 (every skip shrinks the scale) "
                                       "or more", (long long)o->hysteresis);
  return GB_OK;
}

/* Options of a caller whose struct may be an older, shorter one. */
static gb_scaler_options complete(const gb_scaler_options *options) {
  gb_scaler_options all;
  gb_scaler_options_init(&all, sizeof all);
  if (options) memcpy(&all, options, options->size < sizeof all ? options->size : sizeof all);
  all.size = sizeof all;
  return all;
}

const gb_scaler_options *gb_scaler_get_options(const gb_scaler *scaler) { return &scaler->options; }

gb_status gb_scaler_set_options(gb_scaler *scaler, const gb_scaler_options *options) {
  gb_scaler_options now = complete(options), *own = &scaler->options;
  GB_TRY(check_options(scaler->context, &now));
  own->growth_factor = now.growth_factor;
  own->backoff_factor = now.backoff_factor;
  own->growth_interval = now.growth_interval;
  own->min_scale = now.min_scale;
  own->max_scale = now.max_scale;
  own->max_skips = now.max_skips;
  own->hysteresis = now.hysteresis;
  return GB_OK;
}

/* ====} */

/* {==== life ==== */

/* A new scale; the inverse is rounded once, from double. */
static gb_status set_scale(gb_scaler *scaler, double scale) {
  float numbers[2] = { (float)scale, (float)(1.0 / (double)(float)scale) };
  return gb_scalars_write(&scaler->scalars, offsetof(gb_scale_state, scale), numbers, sizeof numbers);
}
_Static_assert(offsetof(gb_scale_state, inverse) == sizeof(float), "the scale and its inverse are written at once");

/* The scalars as they are now; on a device this waits. */
static gb_status look(const gb_scaler *scaler, gb_scale_state *out) { return gb_scalars_read(&scaler->scalars, out); }

static gb_status raise_flag(gb_scaler *scaler) {
  float one = 1;
  return gb_scalars_write(&scaler->scalars, offsetof(gb_scale_state, found_inf), &one, sizeof one);
}

static void let_go_of_copy(gb_scaler *scaler) {
  gb_backend *backend = gb_context_backend(scaler->context, scaler->scalars.device);
  if (scaler->posted) backend->unpin(backend->state, scaler->posted);
  scaler->posted = NULL;
}

/* Before gradients are checked: know what became of the last update, and bring the scalars to where they are needed. */
static gb_status settle(gb_scaler *scaler, gb_device device) {
  GB_TRY(gb_scaler_settle(scaler));
  if (scaler->scalars.device.type == device.type && scaler->scalars.device.index == device.index) return GB_OK;
  let_go_of_copy(scaler);
  return gb_scalars_move(&scaler->scalars, device);
}

gb_status gb_scaler_new(gb_context *context, const gb_scaler_options *options, gb_scaler **out) {
  gb_scaler_options all = complete(options);
  GB_TRY(check_options(context, &all));
  gb_scaler *scaler = gb_counted_alloc(context, sizeof *scaler);
  if (!scaler) return context->error_code;
  atomic_init(&scaler->refs, 1);
  scaler->context = context;
  scaler->options = all;
  scaler->id = ++context->step->next_scaler;
  scaler->heeded = true;
  gb_status status = gb_scalars_open(&scaler->scalars, context, (gb_device){ GB_CPU, 0 }, NULL, sizeof(gb_scale_state));
  if (status == GB_OK) status = set_scale(scaler, all.enabled ? all.init_scale : 1);
  if (status != GB_OK) {
    gb_scalars_close(&scaler->scalars);
    gb_counted_free(scaler);
    return status;
  }
  scaler->next = context->step->scalers;
  context->step->scalers = scaler;
  gb_context_retain(context);
  *out = scaler;
  return GB_OK;
}

void gb_scaler_retain(gb_scaler *scaler) { atomic_fetch_add_explicit(&scaler->refs, 1, memory_order_relaxed); }

/* Every optimizer is ready again. */
static void forget_optimizers(gb_scaler *scaler) {
  for (int i = 0; i < scaler->n_optimizers; i++) gb_optimizer_release(scaler->optimizers[i].optimizer);
  scaler->n_optimizers = 0;
}

/* The update that these optimizers made is past. */
static void retire_optimizers(gb_scaler *scaler) {
  progress *list = scaler->past;
  int capacity = scaler->past_capacity;
  for (int i = 0; i < scaler->n_past; i++) gb_optimizer_release(list[i].optimizer);
  scaler->past = scaler->optimizers;
  scaler->n_past = scaler->n_optimizers;
  scaler->past_capacity = scaler->capacity;
  scaler->optimizers = list;
  scaler->n_optimizers = 0;
  scaler->capacity = capacity;
}

static const gb_skip_tracer *tracer_of(const gb_scaler *scaler) { return scaler->context->step->tracer; }

static void end_trace(gb_scaler *scaler) {
  if (tracer_of(scaler)) tracer_of(scaler)->disarm(scaler->context, scaler);
}

void gb_scaler_release(gb_scaler *scaler) {
  if (!scaler || atomic_fetch_sub_explicit(&scaler->refs, 1, memory_order_acq_rel) != 1) return;
  gb_context *context = scaler->context;
  gb_scaler **at = &context->step->scalers;
  while (*at && *at != scaler) at = &(*at)->next;
  if (*at) *at = scaler->next;
  forget_optimizers(scaler);
  retire_optimizers(scaler); /* none take the place of the past ones, */
  retire_optimizers(scaler); /* and the other list comes back */
  if (scaler->schedule_release) scaler->schedule_release(scaler->schedule_user);
  end_trace(scaler);
  let_go_of_copy(scaler);
  gb_scalars_close(&scaler->scalars);
  gb_counted_free(scaler->optimizers);
  gb_counted_free(scaler->past);
  free(scaler->report);
  gb_counted_free(scaler);
  gb_context_release(context);
}

gb_scaler *gb_scaler_find(const gb_context *context, uint32_t id) {
  gb_scaler *scaler = context->step->scalers;
  while (scaler && scaler->id != id) scaler = scaler->next;
  return scaler;
}

gb_scale_state *gb_scaler_scale_state(gb_scaler *scaler) { return scaler->scalars.data; }
uint32_t gb_scaler_id(const gb_scaler *scaler) { return scaler->id; }
gb_grad_tag gb_scaler_tag(const gb_scaler *scaler) { return (gb_grad_tag){ scaler->id, scaler->update }; }

/* ====} */

/* {==== stages ==== */

static stage stage_of(const gb_scaler *scaler, const gb_optimizer *optimizer) {
  for (int i = 0; i < scaler->n_optimizers; i++)
    if (scaler->optimizers[i].optimizer == optimizer) return scaler->optimizers[i].stage;
  return READY;
}

/* Room to note an optimizer, so that noting it cannot fail. */
static gb_status make_room(gb_scaler *scaler) {
  if (scaler->n_optimizers < scaler->capacity) return GB_OK;
  int capacity = scaler->capacity ? 2 * scaler->capacity : 4;
  progress *longer = gb_counted_resize(scaler->context, scaler->optimizers, sizeof *longer * (size_t)capacity);
  if (!longer) return scaler->context->error_code;
  scaler->optimizers = longer;
  scaler->capacity = capacity;
  return GB_OK;
}

static void note_stage(gb_scaler *scaler, gb_optimizer *optimizer, stage now) {
  for (int i = 0; i < scaler->n_optimizers; i++)
    if (scaler->optimizers[i].optimizer == optimizer) { scaler->optimizers[i].stage = now; return; }
  gb_optimizer_retain(optimizer);
  scaler->optimizers[scaler->n_optimizers++] = (progress){ optimizer, now };
}

/* Nothing was ever scaled, here or, as gradients tell, by other processes: the order of calls is wrong. */
static gb_status check_used(gb_scaler *scaler, const gb_optimizer *optimizer, const char *who) {
  int first = gb_optimizer_first_gradient(optimizer);
  scaler->used |= first >= 0 && gb_tensor_tag(optimizer->params[first].segment->grad).scaler == scaler->id;
  if (scaler->used) return GB_OK;
  return gb_fail(scaler->context, GB_ESTATE, "%s: nothing was scaled yet; call scaler:scale(loss):backward() first",
                 who);
}

/* Every gradient carries this scaler's present tag, or the reason why one does not. */
static gb_status check_tags(const gb_scaler *scaler, const gb_optimizer *optimizer, const char *who) {
  gb_grad_tag own = gb_scaler_tag(scaler);
  int odd = gb_optimizer_first_unlike(optimizer, own);
  if (odd < 0) return GB_OK;
  char room[32];
  const char *name = gb_optimizer_label(optimizer, odd, room, sizeof room);
  gb_grad_tag tag = gb_tensor_tag(optimizer->params[odd].segment->grad);
  if (tag.scaler == GB_TAG_MIXED)
    return gb_fail(scaler->context, GB_ESTATE, "%s: the gradient of %s %s", who, name, gb_mixed_tag_text(tag));
  if (!tag.scaler)
    return gb_fail(scaler->context, GB_ESTATE,
                   "%s: the gradient of %s is not scaled: backward was called on a loss that did not go through "
                   "scaler:scale(loss)", who, name);
  if (tag.scaler != own.scaler)
    return gb_fail(scaler->context, GB_ESTATE, "%s: the gradient of %s was scaled by another GradScaler", who, name);
  return gb_fail(scaler->context, GB_ESTATE,
                 "%s: the gradient of %s was scaled before the last scaler:update(); call optimizer:zero_grad() and "
                 "backward after an update",
                 who, name);
}

/* Every gradient has its true size: one that came after unscale_, or through another scaler, would be stepped on at
 * full scale. */
static gb_status check_unscaled(const gb_scaler *scaler, const gb_optimizer *optimizer, const char *who) {
  int odd = gb_optimizer_first_unlike(optimizer, (gb_grad_tag){ 0, 0 });
  if (odd < 0) return GB_OK;
  char room[32];
  const char *name = gb_optimizer_label(optimizer, odd, room, sizeof room);
  gb_grad_tag tag = gb_tensor_tag(optimizer->params[odd].segment->grad);
  if (tag.scaler == GB_TAG_MIXED && (scaler->options.per_loss || tag.update != GB_MIX_UNSCALED))
    return gb_fail(scaler->context, GB_ESTATE, "%s: the gradient of %s %s", who, name, gb_mixed_tag_text(tag));
  if (scaler->options.per_loss)
    return gb_fail(scaler->context, GB_ESTATE, "%s: the gradient of %s was scaled by a GradScaler without per_loss "
                                               "= true; every loss of an optimizer "
                   "needs one, or all losses the same scaler", who, name);
  return gb_fail(scaler->context, GB_ESTATE, "%s: the gradient of %s was computed after unscale_(); call unscale_() "
                                             "after the last backward of a step",
                 who, name);
}

/* PyTorch says "No inf checks were recorded for this optimizer"; this says why. */
static gb_status check_any_gradient(const gb_scaler *scaler, const gb_optimizer *optimizer) {
  if (gb_optimizer_first_gradient(optimizer) >= 0) return GB_OK;
  int frozen = 0, count = optimizer->n_params;
  for (int i = 0; i < count; i++) frozen += !optimizer->params[i].parameter->requires_grad;
  if (frozen == count && count > 0)
    return gb_fail(scaler->context, GB_ESTATE,
                   "scaler:step(): none of the %d parameters of this optimizer has a gradient, since none has "
                   "requires_grad; "
                   "call requires_grad_() on what is to be trained", count);
  return gb_fail(scaler->context, GB_ESTATE,
                 "scaler:step(): none of the %d parameters of this optimizer has a gradient: backward was not "
                 "called since zero_grad, or the "
                 "loss was computed under no_grad, from detached tensors, or with other parameters than these", count);
}

/* ====} */

/* {==== the report ==== */

/* Add a name to the report. */
static gb_status report_add(gb_scaler *scaler, const char *name) {
  size_t used = scaler->report ? strlen(scaler->report) : 0, needed = used + strlen(name) + 3;
  if (needed > scaler->report_size) {
    char *longer = realloc(scaler->report, 2 * needed);
    if (!longer) return gb_fail_memory(scaler->context, 2 * needed);
    scaler->report = longer;
    scaler->report_size = 2 * needed;
  }
  if (used) strcpy(scaler->report + used, ", "), used += 2;
  strcpy(scaler->report + used, name);
  return GB_OK;
}

/* Whether one parameter's gradient is not finite: the check kernel over its segment alone. */
static gb_status is_bad(gb_context *context, const gb_optim_param *param, bool *bad) {
  gb_slab alone = *param->slab;
  alone.segments = param->segment;
  alone.count = 1;
  gb_scalars scalars = { .context = context };
  gb_found_state found = { 0 };
  GB_TRY(gb_scalars_open(&scalars, context, alone.gradients->storage->device, NULL, sizeof found));
  gb_step_call call = { .slab = &alone, .found = scalars.data };
  gb_status status = gb_step_run(context, GB_STEP_CHECK, &call);
  if (status == GB_OK) status = gb_scalars_read(&scalars, &found);
  gb_scalars_close(&scalars);
  *bad = found.found_inf != 0;
  return status;
}

/* As above for a step that is past, on a device: the kernel noted which update found the gradient bad. */
static gb_status was_bad(const gb_optim_param *param, int64_t update, bool *bad) {
  const gb_tensor *counters = param->slab->counters;
  gb_backend *backend = gb_context_backend(gb_tensor_context(counters), counters->storage->device);
  int64_t blamed = 0, *at = (int64_t *)(void *)gb_data(counters) + counters->numel / 2 + param->segment->place;
  GB_TRY(backend->read(backend->state, &blamed, at, sizeof blamed));
  *bad = blamed == update;
  return GB_OK;
}

/* An optimizer's step was skipped: name the parameters that are to blame, and look for the op next time. Several
 * optimizers of one update share the report. past: the update that a device counted it as; 0: gradients are as the step
 * found them. */
static gb_status report_skip(gb_scaler *scaler, const gb_optimizer *optimizer, int64_t past) {
  int64_t about = past ? past : scaler->counted + 1;
  if (scaler->report && scaler->report_update != about) scaler->report[0] = 0;
  scaler->report_update = about;
  const gb_skip_tracer *tracer = tracer_of(scaler);
  snprintf(scaler->cause, sizeof scaler->cause, "%s", tracer ? tracer->cause(scaler->context, scaler) : "");
  for (int i = 0; i < optimizer->n_params; i++) {
    const gb_optim_param *param = &optimizer->params[i];
    bool bad = false;
    if (past && param->slab->counters) GB_TRY(was_bad(param, past, &bad));
    else if (param->segment->has_grad) {
      GB_TRY(is_bad(scaler->context, param, &bad));
      GB_TRY(gb_split_share_flag(optimizer, &bad));
    }
    char room[32];
    if (bad) GB_TRY(report_add(scaler, gb_optimizer_label(optimizer, i, room, sizeof room)));
  }
  if (tracer) tracer->arm(scaler->context, scaler, scaler->options.per_loss ? 0 : scaler->id);
  return GB_OK;
}

const char *gb_scaler_report(gb_scaler *scaler) {
  (void)gb_scaler_settle(scaler); /* what fails by now fails again at the next update, or was too many skips */
  return scaler->report ? scaler->report : "";
}
const char *gb_scaler_cause(gb_scaler *scaler) { return scaler->cause; }

/* ====} */

/* {==== scale, unscale, step, update ==== */

/* The scale as it is now, as a tensor of its own: backward needs it after the scalars have changed. */
static gb_status present_scale(gb_scaler *scaler, gb_tensor **out) {
  gb_context *context = scaler->context;
  gb_tensor *scalars = NULL;
  float *scale = (float *)((char *)scaler->scalars.data + offsetof(gb_scale_state, scale));
  GB_TRY(gb_tensor_over(context, scale, GB_FLOAT32, 0, NULL, NULL, NULL, &scalars));
  scalars->storage->device = scaler->scalars.device;
  gb_status status = GB_RUN(context, clone, out, .x = scalars);
  gb_tensor_release(scalars);
  return status;
}

gb_status gb_scaler_scale(gb_scaler *scaler, gb_tensor *loss, gb_tensor **out) {
  if (!scaler->options.enabled) {
    gb_tensor_retain(*out = loss);
    return GB_OK;
  }
  gb_context *context = scaler->context;
  if (!gb_dtype_is_float((gb_dtype)loss->dtype))
    return gb_fail(context, GB_EDTYPE, "scaler:scale(): the loss is %s; only a floating tensor can be scaled",
                   gb_dtype_name((gb_dtype)loss->dtype));
  if (tracer_of(scaler)) GB_TRY(tracer_of(scaler)->loss(context, scaler->id, loss));
  gb_tensor *factor = NULL;
  GB_TRY(settle(scaler, loss->storage->device));
  GB_TRY(present_scale(scaler, &factor));
  gb_status status = GB_RUN(context, scale_loss, out, .x = loss, .scale = factor);
  gb_tensor_release(factor);
  GB_TRY(status);
  scaler->used = true;
  if ((*out)->node) { /* backward reads the tag here */
    (*out)->node->rng_seed = scaler->id;
    (*out)->node->rng_offset = scaler->update;
  }
  return GB_OK;
}

gb_status gb_scaler_unscale(gb_scaler *scaler, gb_optimizer *optimizer) {
  static const char who[] = "scaler:unscale_()";
  if (!scaler->options.enabled) return GB_OK;
  if (scaler->options.per_loss) return check_unscaled(scaler, optimizer, who); /* done already, at the parameters */
  GB_TRY(check_used(scaler, optimizer, who));
  stage now = stage_of(scaler, optimizer);
  if (now == UNSCALED)
    return gb_fail(scaler->context, GB_ESTATE,
                   "%s: has been called on this optimizer already since the last update(); call it once, after the "
                   "last backward", who);
  if (now == STEPPED)
    return gb_fail(scaler->context, GB_ESTATE, "%s: is called after step(); call it before step(), or update() first",
                   who);
  GB_TRY(check_tags(scaler, optimizer, who));
  GB_TRY(make_room(scaler));
  GB_TRY(settle(scaler, optimizer->found.device));
  GB_TRY(gb_optimizer_clear_found(optimizer));
  GB_TRY(gb_optimizer_unscale(optimizer, scaler->scalars.data));
  note_stage(scaler, optimizer, UNSCALED);
  return GB_OK;
}

/* Other losses' scalers step the same optimizer: only one of them may. */
static gb_status check_unstepped(const gb_scaler *scaler, const gb_optimizer *optimizer, const char *who) {
  for (const gb_scaler *s = scaler->context->step->scalers; s; s = s->next)
    if (s != scaler && s->options.per_loss && stage_of(s, optimizer) == STEPPED)
      return gb_fail(scaler->context, GB_ESTATE, "%s: the scaler of another loss has stepped this optimizer "
                                                 "already; step it once for all its "
                     "losses, then update every scaler", who);
  return GB_OK;
}

/* Some loss's scaler knows that the skip was its own gradients'. */
static gb_status is_explained(const gb_scaler *scaler, bool *explained) {
  gb_scale_state scalars;
  *explained = false;
  for (const gb_scaler *s = scaler->context->step->scalers; s && !*explained; s = s->next) {
    if (!s->options.per_loss) continue;
    GB_TRY(look(s, &scalars));
    *explained = scalars.found_inf != 0;
  }
  return GB_OK;
}

/* The step of an optimizer whose gradients have lost their scales: each scaler knows already what was not finite of its
 * own, so what is found here is the optimizer's alone. A skip that no scaler knows of (a sum that overflows, a norm)
 * counts for the one that steps. */
static gb_status step_unscaled(gb_scaler *scaler, gb_optimizer *optimizer, const char *who, const gb_clip *clip,
                               gb_tensor **norm) {
  GB_TRY(check_unscaled(scaler, optimizer, who));
  GB_TRY(check_unstepped(scaler, optimizer, who));
  GB_TRY(make_room(scaler));
  GB_TRY(clip ? gb_optimizer_norm(optimizer, NULL, clip->norm_type, norm)
         : gb_optimizer_inspect(optimizer, GB_STEP_CHECK, NULL, 0));
  GB_TRY(gb_optimizer_update(optimizer, NULL, false, true, clip));
  note_stage(scaler, optimizer, STEPPED);
  bool skipped, explained;
  GB_TRY(gb_optimizer_found(optimizer, &skipped));
  if (!skipped) return GB_OK;
  GB_TRY(gb_optimizer_clear_found(optimizer));
  GB_TRY(is_explained(scaler, &explained));
  if (!explained) GB_TRY(raise_flag(scaler));
  return report_skip(scaler, optimizer, 0);
}

/* clip: NULL, or the step clips, and *norm is the norm before; on failure it may be there, for the caller to
 * release. */
static gb_status step(gb_scaler *scaler, gb_optimizer *optimizer, const gb_clip *clip, gb_tensor **norm) {
  static const char who[] = "scaler:step()";
  if (!scaler->options.enabled)
    return clip ? gb_optimizer_step_clipped(optimizer, clip, norm) : gb_optimizer_step(optimizer);
  GB_TRY(check_any_gradient(scaler, optimizer));
  GB_TRY(check_used(scaler, optimizer, who));
  stage now = stage_of(scaler, optimizer);
  if (now == STEPPED)
    return gb_fail(scaler->context, GB_ESTATE,
                   "%s: has been called on this optimizer already since the last update(); call scaler:update() "
                   "after the steps", who);
  if (scaler->options.per_loss) return step_unscaled(scaler, optimizer, who, clip, norm);
  GB_TRY(now == READY ? check_tags(scaler, optimizer, who) : check_unscaled(scaler, optimizer, who));
  GB_TRY(make_room(scaler));
  GB_TRY(settle(scaler, optimizer->found.device));
  gb_scale_state *carried = now == READY ? scaler->scalars.data : NULL;
  if (carried) GB_TRY(gb_optimizer_clear_found(optimizer));
  if (clip) GB_TRY(gb_optimizer_norm(optimizer, carried, clip->norm_type, norm));
  else if (carried) GB_TRY(gb_optimizer_inspect(optimizer, GB_STEP_CHECK, carried, 0));
  GB_TRY(gb_optimizer_update(optimizer, scaler->scalars.data, carried != NULL, true, clip));
  note_stage(scaler, optimizer, STEPPED);
  if (!gb_scalars_on_host(&scaler->scalars)) return GB_OK; /* the update asks for what happened, without waiting for
                                                              it */
  bool skipped;
  GB_TRY(gb_optimizer_found(optimizer, &skipped));
  return skipped ? report_skip(scaler, optimizer, 0) : GB_OK;
}

gb_status gb_scaler_step(gb_scaler *scaler, gb_optimizer *optimizer) { return step(scaler, optimizer, NULL, NULL); }

gb_status gb_scaler_step_clipped(gb_scaler *scaler, gb_optimizer *optimizer, double max_norm, double norm_type,
                                 gb_tensor **norm) {
  if (!(max_norm >= 0) || !(norm_type > 0))
    return gb_fail(scaler->context, GB_EINVAL, "scaler:step(): clip is %g and norm_type %g; clip must be 0 or more, "
                                               "and norm_type above 0", max_norm,
                   norm_type);
  gb_tensor *total = NULL;
  gb_status status = step(scaler, optimizer, &(gb_clip){ max_norm, norm_type }, &total);
  if (status == GB_OK && norm) *norm = total;
  else gb_tensor_release(total);
  return status;
}

/* A copy of grad that a kernel may write: dense, of this dtype, outside of any graph. */
static gb_status copy_gradient(gb_context *context, gb_tensor *grad, gb_dtype dtype, gb_tensor **out) {
  GB_TRY(gb_tensor_new(context, dtype, grad->ndim, grad->shape, grad->storage->device, out));
  bool before = gb_set_grad_enabled(context, false);
  gb_status status = gb_apply_(context, GB_OP_copy, (gb_tensor *[]){ *out, grad }, 2, NULL);
  gb_set_grad_enabled(context, before);
  if (status != GB_OK) gb_drop(out);
  return status;
}

bool gb_scaler_receives(const gb_context *context, gb_grad_tag tag) {
  gb_scaler *scaler = tag.scaler ? gb_scaler_find(context, tag.scaler) : NULL;
  return scaler && scaler->options.per_loss;
}

gb_status gb_scaler_receive(gb_context *context, gb_tensor *grad, gb_dtype dtype, gb_tensor **out) {
  gb_scaler *scaler = gb_scaler_find(context, grad->tag.scaler);
  if (!gb_scaler_receives(context, grad->tag)) {
    gb_tensor_retain(*out = grad);
    return GB_OK;
  }
  gb_scale_state *scalars;
  GB_TRY(settle(scaler, grad->storage->device));
  GB_TRY(gb_optimizer_scale_of(context, grad->tag, "backward", &scalars));
  GB_TRY(copy_gradient(context, grad, dtype, out));
  gb_segment segment = { .size = (*out)->numel, .has_grad = true, .parameter = *out, .grad = *out };
  gb_slab alone = { .dtype = dtype, .elements = (*out)->numel, .gradients = *out, .count = 1, .segments = &segment };
  gb_step_call call = { .slab = &alone, .scale = scalars, .scaled = true };
  gb_status status = gb_step_run(context, GB_STEP_UNSCALE, &call);
  if (status != GB_OK) gb_drop(out);
  else scaler->received = true;
  return status;
}

/* The kernel's settings; a static scale neither grows nor shrinks. */
static gb_step_call update_call(gb_scaler *scaler) {
  const gb_scaler_options *o = &scaler->options;
  gb_scale_state *scalars = scaler->scalars.data;
  gb_device device = scaler->scalars.device;
  gb_scale_rule still = { .growth_factor = 1, .backoff_factor = 1, .growth_interval = 1 };
  gb_scale_rule rule = { .growth_factor = o->growth_factor, .backoff_factor = o->backoff_factor,
                         .growth_interval = o->growth_interval,
                         .hysteresis = o->hysteresis, .min_scale = o->min_scale, .max_scale = o->max_scale };
  return (gb_step_call){ .scale = scalars, .device = device, .rule = o->dynamic ? rule : still };
}

/* So many skips in a row mean that something is broken, not that the scale is too large. */
static gb_status check_skips(const gb_scaler *scaler, const gb_scale_state *now) {
  const gb_scaler_options *o = &scaler->options;
  if (!o->max_skips || now->skipped_in_a_row < o->max_skips) return GB_OK;
  const char *names = scaler->report && scaler->report[0] ? scaler->report : "(none now)";
  bool more = strlen(names) > 400;
  return gb_fail(scaler->context, GB_EOVERFLOW,
                 "scaler:update(): %lld steps in a row were skipped, since gradients are not finite even at scale "
                 "%g. Not finite: %.400s%s%s%s. "
                 "Look for inf or NaN in the loss at scale 1, lower the learning rate, or clip gradients",
                 (long long)now->skipped_in_a_row, (double)now->scale, names, more ? " ..." : "",
                 scaler->cause[0] ? ". First: " : "", scaler->cause);
}

/* {---- what an update did, without waiting for the device that did it ----
 *
 * On the CPU it is known at once. On a device a copy of the scalars is on its way; it is looked at once it has arrived,
 * at the end of the
 * same update, or else it is waited for before the next step's gradients are checked, which writes over what tells who
 * was to blame. So a
 * report may come one step late, and the host is at most one step ahead of the device. */

/* Send the copy. */
static gb_status ask_what_happened(gb_scaler *scaler) {
  gb_backend *backend = gb_context_backend(scaler->context, scaler->scalars.device);
  scaler->counted++;
  scaler->heeded = false;
  if (gb_scalars_on_host(&scaler->scalars)) return GB_OK;
  if (!scaler->posted) {
    scaler->posted = backend->pin(backend->state, sizeof *scaler->posted);
    if (!scaler->posted) return gb_fail_memory(scaler->context, sizeof *scaler->posted);
    *scaler->posted = (gb_scale_state){ .steps = -1 };
  }
  return backend->post(backend->state, scaler->posted, scaler->scalars.data, sizeof *scaler->posted);
}

/* Look at what has arrived (wait: it has after that): arm or end the trace, name who is to blame, count skips. */
static gb_status heed(gb_scaler *scaler, bool wait) {
  if (scaler->heeded || scaler->context->capturing) return GB_OK;
  gb_scale_state now;
  bool here = gb_scalars_on_host(&scaler->scalars), arrived = true;
  if (here) GB_TRY(look(scaler, &now));
  else {
    gb_backend *backend = gb_context_backend(scaler->context, scaler->scalars.device);
    GB_TRY(backend->arrive(backend->state, wait, &arrived));
    if (!arrived) return GB_OK;
    memcpy(&now, scaler->posted, sizeof now);
  }
  if (now.steps + now.skipped != scaler->counted) return GB_OK; /* a graph was captured, and did not run yet */
  scaler->heeded = true;
  bool skipped = now.skipped_in_a_row != 0;
  for (int i = 0; skipped && !here && !scaler->options.per_loss && i < scaler->n_past; i++)
    GB_TRY(report_skip(scaler, scaler->past[i].optimizer, scaler->counted));
  if (skipped && tracer_of(scaler)) tracer_of(scaler)->restart(scaler->context, scaler);
  if (!skipped) end_trace(scaler);
  return check_skips(scaler, &now);
}

gb_status gb_scaler_settle(gb_scaler *scaler) { return heed(scaler, true); }

gb_status gb_scaler_heed(gb_scaler *scaler, bool again) {
  if (again) {
    scaler->counted++;
    scaler->heeded = false;
  }
  return heed(scaler, false);
}

/* ----} */

/* The schedule's scale for the step to come. The callback may let go of the scaler, and must not end it. */
static gb_status ask_schedule(gb_scaler *scaler) {
  double scale = 0;
  gb_scale_state now;
  GB_TRY(look(scaler, &now));
  gb_scaler_retain(scaler);
  gb_status status = scaler->schedule(scaler->context, scaler->schedule_user, now.steps + 1, &scale);
  if (status == GB_OK) status = check_scale(scaler->context, "the scheduled scale", scale);
  if (status == GB_OK) status = set_scale(scaler, scale);
  gb_scaler_release(scaler);
  return status;
}

gb_status gb_scaler_set_schedule(gb_scaler *scaler, gb_scale_schedule fn, void *user, void (*release)(void *user)) {
  if (scaler->schedule_release) scaler->schedule_release(scaler->schedule_user);
  scaler->schedule = fn;
  scaler->schedule_user = user;
  scaler->schedule_release = release;
  return fn && scaler->options.enabled ? ask_schedule(scaler) : GB_OK;
}

gb_status gb_scaler_update(gb_scaler *scaler, double new_scale) {
  if (!scaler->options.enabled) return GB_OK;
  bool given = new_scale > 0, worked = scaler->n_optimizers > 0 || scaler->received;
  if (given) GB_TRY(check_scale(scaler->context, "the new scale", new_scale));
  if (!given && !worked)
    return gb_fail(scaler->context, GB_ESTATE, "scaler:update(): no optimizer was stepped since the last update; "
                                               "call scaler:step(optimizer) first");
  gb_scale_state before;
  if (given) GB_TRY(look(scaler, &before));
  GB_TRY(heed(scaler, true));
  if (worked) {
    gb_step_call call = update_call(scaler);
    GB_TRY(gb_step_run(scaler->context, GB_STEP_RESCALE, &call));
    GB_TRY(gb_capture_note_scaler(scaler->context, scaler));
    GB_TRY(ask_what_happened(scaler));
  }
  if (given) {
    GB_TRY(set_scale(scaler, new_scale));
    GB_TRY(gb_scalars_write(&scaler->scalars, offsetof(gb_scale_state, growth_tracker), &before.growth_tracker,
                            sizeof before.growth_tracker));
  }
  retire_optimizers(scaler);
  gb_status status = heed(scaler, false);
  scaler->received = false;
  scaler->update++;
  GB_TRY(status);
  return scaler->schedule && !given ? ask_schedule(scaler) : GB_OK;
}

/* ====} */

/* {==== reading and restoring ==== */

gb_status gb_scaler_get_stats(gb_scaler *scaler, gb_scaler_stats *out) {
  gb_scale_state r;
  GB_TRY(look(scaler, &r));
  *out = (gb_scaler_stats){ .scale = r.scale, .steps = r.steps, .skipped = r.skipped,
                            .skipped_in_a_row = r.skipped_in_a_row,
                            .growth_tracker = (int64_t)r.growth_tracker, .last_skipped = r.skipped_in_a_row > 0 };
  return GB_OK;
}

gb_status gb_scaler_set_state(gb_scaler *scaler, double scale, int64_t growth_tracker) {
  if (!scaler->options.enabled) return GB_OK;
  GB_TRY(check_scale(scaler->context, "the restored scale", scale));
  if (growth_tracker < 0)
    return gb_fail(scaler->context, GB_EINVAL, "GradScaler: the restored _growth_tracker is %lld; it must be 0 or more",
                   (long long)growth_tracker);
  gb_scale_state now;
  GB_TRY(look(scaler, &now));
  now.growth_tracker = (float)growth_tracker;
  now.found_inf = 0;
  now.skipped_in_a_row = 0;
  GB_TRY(gb_scalars_write(&scaler->scalars, 0, &now, sizeof now));
  GB_TRY(set_scale(scaler, scale));
  forget_optimizers(scaler);
  scaler->received = false;
  scaler->update++; /* gradients that are still around carry the scale from before */
  return GB_OK;
}

gb_status gb_scaler_set_counts(gb_scaler *scaler, int64_t steps, int64_t skipped, int64_t skipped_in_a_row) {
  if (!scaler->options.enabled) return GB_OK;
  if (steps < 0 || skipped_in_a_row < 0 || skipped < skipped_in_a_row)
    return gb_fail(scaler->context, GB_EINVAL, "GradScaler: the restored counts are %lld steps, %lld skips and %lld "
                                               "in a row; they must be 0 or more, "
                   "and no more in a row than in all", (long long)steps, (long long)skipped,
                       (long long)skipped_in_a_row);
  gb_scale_state now;
  GB_TRY(look(scaler, &now));
  now.steps = steps;
  now.skipped = skipped;
  now.skipped_in_a_row = skipped_in_a_row;
  scaler->counted = steps + skipped;
  scaler->report_update = 0;
  scaler->heeded = true;
  return gb_scalars_write(&scaler->scalars, 0, &now, sizeof now);
}

/* ====} */
