/* step/optim.c - optimizers: groups of parameters in slabs, and a step that is one kernel per slab.
 *
 * The kernel unscales, clips, updates, rounds masters into 16-bit parameters and refreshes weight copies in one pass;
 * here is what surrounds it: options, names, the scale that gradients carry, and the versions of what was written. A
 * step first makes everything that may be missing (moments, masters that follow a parameter changed by hand), so that
 * it fails, if it does, before a weight has changed. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step/capture.h"
#include "step/optimizer.h"
#include "step/room.h"
#include "step/scaler.h"
#include "step/shaped.h"
#include "step/weights.h"

/* {==== options ==== */

static const char *kind_name(const gb_optimizer *optimizer) { return gb_optimizer_info_of(optimizer->kind)->name; }

/* All hyperparameters as text: "lr 0.1, momentum 0, ...". */
static const char *list_numbers(const gb_optimizer_info *info, const gb_optim_numbers *numbers, char *text,
                                size_t size) {
  size_t used = 0;
  for (int i = 0; i < info->n_hypers && used < size; i++) {
    const gb_hyper *hyper = &info->hypers[i];
    const double *at = &numbers->number[hyper->at];
    int n = snprintf(text + used, size - used, "%s%s %g", i ? ", " : "", hyper->name, at[0]);
    for (int k = 1; k < hyper->count && used + (size_t)n < size; k++)
      n += snprintf(text + used + n, size - used - (size_t)n, " and %g", at[k]);
    used += (size_t)n;
  }
  return text;
}

/* Options are read again at every step, since a schedule may have changed them. */
static gb_status check_options(const gb_optimizer *optimizer, const gb_optim_options *o) {
  const gb_optimizer_info *info = gb_optimizer_info_of(optimizer->kind);
  for (int i = 0; i < info->n_hypers; i++) {
    const gb_hyper *hyper = &info->hypers[i];
    static const char *const which[] = { "the first of ", "the second of ", "the third of " };
    for (int k = 0; k < hyper->count; k++) {
      double value = o->numbers.number[hyper->at + k];
      const char *must = gb_hyper_refuses(hyper, value);
      if (must)
        return gb_fail(optimizer->context, GB_EINVAL, "%s: %s%s is %g; it must be %s", info->name,
                       hyper->count > 1 ? which[k] : "", hyper->name, value, must);
    }
  }
  char all[256];
  const char *needs = gb_optimizer_needs(optimizer->kind, &o->numbers);
  if (needs)
    return gb_fail(optimizer->context, GB_EINVAL, "%s: %s (%s)", info->name, needs,
                   list_numbers(info, &o->numbers, all, sizeof all));
  return GB_OK;
}

/* The states that a group's steps use, and the place of what they measure, come into being in its slabs. */
static gb_status open_states(const gb_optimizer *optimizer, const gb_group *group, gb_owned_slab *slab) {
  for (int i = 0; i < gb_optimizer_info_of(optimizer->kind)->n_states; i++)
    if (gb_optimizer_uses(optimizer->kind, &group->options.numbers, i)) GB_TRY(gb_slab_open_state(slab, i));
  GB_TRY(gb_slab_open_factors(slab, gb_optimizer_info_of(optimizer->kind)));
  return gb_optimizer_info_of(optimizer->kind)->measured ? gb_slab_open_measures(slab) : GB_OK;
}

/* ====} */

/* {==== life ==== */

gb_status gb_optimizer_new(gb_context *context, gb_optimizer_kind kind, gb_optimizer **out) {
  gb_optimizer *optimizer = gb_counted_alloc(context, sizeof *optimizer);
  if (!optimizer) return context->error_code;
  atomic_init(&optimizer->refs, 1);
  optimizer->context = context;
  optimizer->kind = kind;
  gb_context_retain(context);
  *out = optimizer;
  return GB_OK;
}

void gb_optimizer_retain(gb_optimizer *optimizer) { atomic_fetch_add_explicit(&optimizer->refs, 1,
    memory_order_relaxed); }

static void free_group(gb_group *group) {
  for (int i = 0; i < group->n_slabs; i++) gb_slab_free(group->slabs[i]);
  gb_counted_free(group->slabs);
  gb_scalars_close(&group->rates);
  gb_counted_free(group);
}

void gb_optimizer_release(gb_optimizer *optimizer) {
  if (!optimizer || atomic_fetch_sub_explicit(&optimizer->refs, 1, memory_order_acq_rel) != 1) return;
  gb_context *context = optimizer->context;
  for (int i = 0; i < optimizer->n_held; i++) gb_slab_leave(optimizer->held[i]);
  for (int i = 0; i < optimizer->n_groups; i++) free_group(optimizer->groups[i]);
  for (int i = 0; i < optimizer->n_held; i++) gb_tensor_release(optimizer->held[i]);
  for (int i = 0; i < optimizer->n_params; i++) gb_counted_free((char *)optimizer->params[i].name);
  gb_counted_free(optimizer->groups);
  gb_counted_free(optimizer->params);
  gb_counted_free(optimizer->held);
  gb_scalars_close(&optimizer->found);
  gb_counted_free(optimizer);
  gb_context_release(context);
}

/* ====} */

/* {==== groups ==== */

/* Room for more elements at the end of a list; false: out of memory, the list is as it was. */
static bool make_room(gb_context *context, void **list, size_t size, int count, int more) {
  void *longer = gb_counted_resize(context, *list, size * ((size_t)count + (size_t)more));
  if (longer) *list = longer;
  return longer;
}

/* Make room for a new group in the optimizer's own lists, before anything changes. */
static gb_status open_group(gb_optimizer *optimizer, int count, const gb_optim_options *options, gb_group **out) {
  gb_context *context = optimizer->context;
  bool room = make_room(context, (void **)&optimizer->groups, sizeof *optimizer->groups, optimizer->n_groups, 1) &&
              make_room(context, (void **)&optimizer->params, sizeof *optimizer->params, optimizer->n_params,
                        count + 1) &&
              make_room(context, (void **)&optimizer->held, sizeof *optimizer->held, optimizer->n_held, count + 1);
  gb_group *group = room ? gb_counted_alloc(context, sizeof *group) : NULL;
  if (group) group->slabs = gb_counted_alloc(context, ((size_t)count + 1) * sizeof *group->slabs);
  if (!group || !group->slabs) {
    gb_counted_free(group);
    return context->error_code;
  }
  gb_optim_options_init(optimizer->kind, &group->options, sizeof group->options);
  if (options) memcpy(&group->options, options, options->size < sizeof *options ? options->size : sizeof *options);
  group->options.size = sizeof group->options;
  *out = group;
  return GB_OK;
}

/* Write the new parameters into params[], names copied; n_params is still as it was. Counts in *added what to take, or
 * to free on failure. */
static gb_status list_params(gb_optimizer *optimizer, const gb_adoption *a, int *added) {
  *added = 0;
  for (int i = 0; i < a->count; i++) {
    if (a->twin[i] != i) continue;
    const char *name = a->names ? a->names[i] : NULL;
    char *copy = name ? gb_counted_alloc(optimizer->context, strlen(name) + 1) : NULL;
    if (name && !copy) return optimizer->context->error_code;
    if (copy) strcpy(copy, name);
    gb_slab *slab = &a->of[i]->slab;
    optimizer->params[optimizer->n_params + (*added)++] =
        (gb_optim_param){ a->parameters[i], slab, &slab->segments[a->segment[i]], optimizer->n_groups, copy };
  }
  return GB_OK;
}

/* Hold every tensor of the call once, so that none goes while its slab points at it. */
static void hold(gb_optimizer *optimizer, gb_tensor *tensor, int from) {
  for (int i = from; i < optimizer->n_held; i++)
    if (optimizer->held[i] == tensor) return;
  gb_tensor_retain(optimizer->held[optimizer->n_held++] = tensor);
}

/* The group becomes the optimizer's. */
static void take_group(gb_optimizer *optimizer, gb_group *group, gb_adoption *a, int added) {
  int first = optimizer->n_held;
  for (int i = 0; i < a->count; i++) {
    if (a->twin[i] == i) gb_tensor_retain(optimizer->held[optimizer->n_held++] = a->parameters[i]);
    else hold(optimizer, a->parameters[i], first);
  }
  group->n_slabs = a->n_slabs;
  memcpy(group->slabs, a->slabs, sizeof *a->slabs * (size_t)a->n_slabs);
  optimizer->groups[optimizer->n_groups++] = group;
  optimizer->n_params += added;
  gb_adoption_commit(a);
}

/* All parameters of an optimizer lie on one device, and its scalars with them. */
static gb_status settle(gb_optimizer *optimizer, gb_tensor *const *parameters, int count) {
  gb_device home = optimizer->n_groups ? optimizer->found.device : parameters[0] ? parameters[0]->storage->device
      : (gb_device){ GB_CPU, 0 };
  for (int i = 0; i < count; i++) {
    if (!parameters[i]) continue;
    gb_device device = parameters[i]->storage->device;
    char a[24], b[24];
    if (device.type != home.type || device.index != home.index)
      return gb_fail(optimizer->context, GB_EDEVICE, "%s: parameters lie on %s and on %s; move the model to one "
                                                     "device before its optimizer is made",
                     kind_name(optimizer), gb_device_text(optimizer->context, home, a, sizeof a),
                     gb_device_text(optimizer->context, device, b, sizeof b));
  }
  if (optimizer->found.data) return gb_scalars_move(&optimizer->found, home);
  return gb_scalars_open(&optimizer->found, optimizer->context, home, NULL, sizeof(gb_found_state));
}

/* A kind may not take every parameter. */
static gb_status check_shapes(const gb_optimizer *optimizer, gb_tensor *const *parameters, const char *const *names,
                              int count) {
  char label[32];
  for (int i = 0; i < count; i++)
    if (parameters[i])
      GB_TRY(gb_shaped_check(optimizer->context, optimizer->kind, parameters[i],
                             gb_parameter_label(names ? names[i] : NULL, i, label, sizeof label)));
  return GB_OK;
}

gb_status gb_optimizer_add_group(gb_optimizer *optimizer, gb_tensor *const *parameters, const char *const *names,
                                 int count,
                                 const gb_optim_options *options) {
  gb_context *context = optimizer->context;
  const char *name = kind_name(optimizer);
  if (count < 1)
    return gb_fail(context, GB_EINVAL, "%s: the list of parameters is empty; pass model:parameters()", name);
  if (gb_optimizer_is_split(optimizer))
    return gb_fail(context, GB_ESTATE, "%s: the optimizer's states are shared out between processes; add its groups "
                                       "before gb.optim.Sharded", name);
  gb_group *group = NULL;
  GB_TRY(open_group(optimizer, count, options, &group));
  gb_adoption a = { .context = context, .owner = optimizer, .parameters = parameters, .names = names, .count = count };
  int added = 0;
  gb_status status = check_options(optimizer, &group->options);
  if (status == GB_OK) status = check_shapes(optimizer, parameters, names, count);
  if (status == GB_OK) status = settle(optimizer, parameters, count);
  if (status == GB_OK) status = gb_adoption_prepare(&a);
  for (int i = 0; status == GB_OK && i < a.n_slabs; i++) status = open_states(optimizer, group, a.slabs[i]);
  if (status == GB_OK) status = list_params(optimizer, &a, &added);
  if (status == GB_OK) take_group(optimizer, group, &a, added);
  else {
    for (int i = 0; i < added; i++) gb_counted_free((char *)optimizer->params[optimizer->n_params + i].name);
    free_group(group);
  }
  gb_adoption_close(&a);
  return status;
}

int gb_optimizer_groups(const gb_optimizer *optimizer) { return optimizer->n_groups; }
gb_optim_options *gb_optimizer_group(gb_optimizer *optimizer, int group) { return &optimizer->groups[group]->options; }
gb_optimizer_kind gb_optimizer_get_kind(const gb_optimizer *optimizer) { return optimizer->kind; }

int gb_optimizer_params(gb_optimizer *optimizer, const gb_optim_param **out) {
  *out = optimizer->params;
  return optimizer->n_params;
}

const char *gb_optimizer_label(const gb_optimizer *optimizer, int param, char *buffer, size_t size) {
  return gb_parameter_label(optimizer->params[param].name, param, buffer, size);
}

/* ====} */

/* {==== state ==== */

/* Give the caller a view of the parameter's place in a vector. */
static bool give_state(gb_optim_state *out, const char *name, gb_tensor *vector, const gb_optim_param *p) {
  out->name = name;
  return gb_slab_place(vector, p->segment->offset, p->parameter, &out->tensor) == GB_OK;
}

/* Steps that a segment took: the host's count, or the device's. */
static gb_status read_steps(const gb_optim_param *p, int64_t *steps) {
  *steps = p->segment->steps;
  if (!p->slab->counters) return GB_OK;
  gb_backend *backend = gb_context_backend(gb_tensor_context(p->parameter), p->slab->counters->storage->device);
  return backend->read(backend->state, steps, (int64_t *)(void *)gb_data(p->slab->counters) + p->segment->place,
                       sizeof *steps);
}

int gb_optimizer_state(gb_optimizer *optimizer, int param, gb_optim_state out[GB_OPTIM_STATE_TENSORS], int64_t *steps) {
  const gb_optim_param *p = &optimizer->params[param];
  const gb_optimizer_info *info = gb_optimizer_info_of(optimizer->kind);
  gb_owned_slab *owned = (gb_owned_slab *)p->slab;
  if (owned->n_parts) return gb_fail(optimizer->context, GB_ESTATE, "the states are shared out; join them first"), -1;
  if (open_states(optimizer, optimizer->groups[p->group], owned) != GB_OK) return -1;
  if (gb_slab_sync_masters(owned) != GB_OK) return -1;
  int count = 0;
  bool fine = true;
  for (int i = 0; fine && i < info->n_states; i++)
    if (p->slab->state[i]) fine = give_state(&out[count], info->states[i], p->slab->state[i], p), count += fine;
  for (int i = 0; fine && i < info->n_factors; i++) {
    fine = gb_slab_factor(p->segment, info, i, p->slab->factors, &out[count].tensor) == GB_OK;
    if (fine && out[count].tensor) out[count++].name = info->factors[i].name;
  }
  if (fine && p->slab->masters) fine = give_state(&out[count], "master", p->slab->masters, p), count += fine;
  if (steps && fine) fine = read_steps(p, steps) == GB_OK;
  while (!fine && count > 0) gb_tensor_release(out[--count].tensor);
  return fine ? count : -1;
}

gb_status gb_optimizer_set_steps(gb_optimizer *optimizer, int param, int64_t steps) {
  const gb_optim_param *p = &optimizer->params[param];
  if (steps < 0 || steps > INT64_C(1) << 53) /* what a double counts, and steps can be added to */
    return gb_fail(optimizer->context, GB_EINVAL, "%" PRId64 " is no number of steps; it is 0 .. 2^53", steps);
  p->segment->steps = steps;
  if (!p->slab->counters) return GB_OK;
  gb_backend *backend = gb_context_backend(optimizer->context, p->slab->counters->storage->device);
  return backend->write(backend->state, (int64_t *)(void *)gb_data(p->slab->counters) + p->segment->place, &steps,
                        sizeof steps);
}

/* ====} */

/* {==== gradients and their tags ==== */

int gb_optimizer_first_gradient(const gb_optimizer *optimizer) {
  int zeroed = -1;
  for (int i = optimizer->n_params - 1; i >= 0; i--)
    if (optimizer->params[i].segment->has_grad) zeroed = i;
  for (int i = 0; i < optimizer->n_params; i++) {
    const gb_segment *segment = optimizer->params[i].segment;
    if (segment->has_grad && gb_tensor_tag(segment->grad).scaler != GB_TAG_ZERO) return i;
  }
  return zeroed;
}

int gb_optimizer_first_unlike(const gb_optimizer *optimizer, gb_grad_tag tag) {
  for (int i = 0; i < optimizer->n_params; i++) {
    const gb_segment *segment = optimizer->params[i].segment;
    if (segment->has_grad && !gb_tags_agree(gb_tensor_tag(segment->grad), tag)) return i;
  }
  return -1;
}

const char *gb_mixed_tag_text(gb_grad_tag tag) {
  switch (tag.update) {
    case GB_MIX_UPDATES:
      return "is a sum over losses that were scaled before and after scaler:update(); call zero_grad() at the start of "
             "a step";
    case GB_MIX_SCALERS:
      return "is a sum over losses of two scalers; scale every loss with the same one, give each loss one of its own "
             "made with per_loss = true and call backward on each, or call zero_grad() in between";
    default:
      return "is a sum over a scaled and an unscaled loss; scale every loss with the same scaler, or call "
             "zero_grad() in between";
  }
}

gb_status gb_optimizer_scale_of(gb_context *context, gb_grad_tag tag, const char *who, gb_scale_state **out) {
  *out = NULL;
  if (!tag.scaler || tag.scaler == GB_TAG_ZERO) return GB_OK;
  if (tag.scaler == GB_TAG_MIXED)
    return gb_fail(context, GB_ESTATE, "%s: a gradient %s", who, gb_mixed_tag_text(tag));
  gb_scaler *scaler = gb_scaler_find(context, tag.scaler);
  if (!scaler)
    return gb_fail(context, GB_ESTATE, "%s: gradients carry the scale of a GradScaler that is gone; keep the "
                                       "scaler, or zero the gradients", who);
  if (tag.update != gb_scaler_tag(scaler).update)
    return gb_fail(context, GB_ESTATE,
                   "%s: gradients carry a scale from before scaler:update(); zero them at the start of a step, and "
                   "call update() after the last use "
                   "of them", who);
  *out = gb_scaler_scale_state(scaler);
  return GB_OK;
}

gb_status gb_optimizer_zero_grad(gb_optimizer *optimizer) {
  for (int i = 0; i < optimizer->n_params; i++) optimizer->params[i].segment->has_grad = false;
  return gb_optimizer_clear_found(optimizer);
}

gb_status gb_optimizer_clear_found(gb_optimizer *optimizer) {
  optimizer->measured = 0;
  optimizer->guarded = false;
  return gb_scalars_clear(&optimizer->found);
}

gb_status gb_optimizer_found(const gb_optimizer *optimizer, bool *found) {
  gb_found_state scalars = { 0 };
  if (optimizer->found.data) GB_TRY(gb_scalars_read(&optimizer->found, &scalars));
  *found = scalars.found_inf != 0;
  return GB_OK;
}

/* ====} */

/* {==== the step ==== */

static bool any_gradient(const gb_slab *slab) {
  for (int64_t s = 0; s < slab->count; s++)
    if (slab->segments[s].has_grad) return true;
  return false;
}

gb_status gb_optimizer_inspect(gb_optimizer *optimizer, gb_step step, gb_scale_state *scale, double norm_type) {
  for (int g = 0; g < optimizer->n_groups; g++)
    for (int i = 0; i < optimizer->groups[g]->n_slabs; i++) {
      gb_slab *slab = &optimizer->groups[g]->slabs[i]->slab;
      if (!any_gradient(slab)) continue;
      gb_step_call call = { .slab = slab, .scale = scale, .found = optimizer->found.data, .scaled = scale != NULL,
                            .norm_type = norm_type };
      GB_TRY(gb_split_prepare(slab, &call));
      GB_TRY(gb_step_run(optimizer->context, step, &call));
    }
  return GB_OK;
}

/* Note that a pass wrote the segment's gradient, which now has its true size. */
static void note_true_size(gb_segment *segment) {
  segment->grad->tag = (gb_grad_tag){ 0, 0 };
  gb_tensor_bump(segment->grad);
}

gb_status gb_optimizer_unscale(gb_optimizer *optimizer, gb_scale_state *scale) {
  GB_TRY(gb_optimizer_inspect(optimizer, GB_STEP_UNSCALE, scale, 2));
  optimizer->guarded = true;
  for (int i = 0; i < optimizer->n_params; i++) {
    gb_segment *segment = optimizer->params[i].segment;
    segment->measured = 0;
    if (!segment->has_grad) continue;
    note_true_size(segment);
    segment->measured = gb_tensor_version(segment->grad) + 1;
    optimizer->measured++;
  }
  optimizer->measured_turn = optimizer->context->step->graph_turns;
  return GB_OK;
}

bool gb_optimizer_is_measured(const gb_optimizer *optimizer) {
  int count = 0;
  for (int i = 0; i < optimizer->n_params; i++) {
    const gb_segment *segment = optimizer->params[i].segment;
    if (!segment->has_grad) continue;
    if (segment->measured != gb_tensor_version(segment->grad) + 1 || gb_tensor_tag(segment->grad).scaler) return false;
    if (atomic_load_explicit(&segment->grad->storage->exposed, memory_order_relaxed)) return false;
    count++;
  }
  return count > 0 && count == optimizer->measured && optimizer->measured_turn == optimizer->context->step->graph_turns;
}

gb_status gb_optimizer_norm(gb_optimizer *optimizer, gb_scale_state *scale, double norm_type, gb_tensor **norm) {
  if (norm_type != 2 || !gb_optimizer_is_measured(optimizer)) {
    optimizer->measured = 0;
    GB_TRY(gb_scalars_clear_part(&optimizer->found, offsetof(gb_found_state, norm_squared), sizeof(double)));
    GB_TRY(gb_optimizer_inspect(optimizer, GB_STEP_CHECK, scale, norm_type));
  }
  return gb_norm_tensor(&optimizer->found, norm_type, norm);
}

/* Allocate what a group's kernel needs and lacks. */
static gb_status prepare_group(gb_optimizer *optimizer, gb_group *group) {
  GB_TRY(check_options(optimizer, &group->options));
  for (int i = 0; i < group->n_slabs; i++) {
    GB_TRY(open_states(optimizer, group, group->slabs[i]));
    GB_TRY(gb_slab_sync_masters(group->slabs[i]));
  }
  return GB_OK;
}

/* The weights were written, and with them every copy that lies in the slab (of one that is shared out, those of narrow
 * weights): publish the new versions. On a device
 * nobody knows here whether the step was skipped; then a copy that was stale may still be. */
static void publish(gb_owned_slab *owned, bool certain) {
  for (int64_t s = 0; s < owned->slab.count; s++) {
    const gb_segment *segment = &owned->slab.segments[s];
    if (!segment->has_grad) continue;
    uint64_t before = gb_tensor_version(segment->parameter);
    gb_tensor_bump(segment->parameter);
    for (int k = 0; k < GB_COPIES; k++) {
      gb_weight_copy *copy = &segment->parameter->copies[k];
      bool written = owned->n_parts ? segment->narrow && k == owned->narrow_slot : owned->slab.copy[k] != NULL;
      if (written && (certain || copy->version == before)) copy->version = gb_tensor_version(segment->parameter);
    }
  }
  gb_slab_masters_synced(owned);
}

/* The settings of a group, for its kernel. */
static gb_step_call call_of(const gb_optimizer *optimizer, const gb_optim_options *o) {
  const gb_hyper *maximize = gb_optimizer_hyper(optimizer->kind, "maximize");
  gb_step_call call = { .kind = optimizer->kind, .numbers = &o->numbers,
                        .maximize = o->numbers.number[maximize->at] != 0 };
  for (int i = 0; i < GB_OPTIM_STATES; i++) call.uses[i] = gb_optimizer_uses(optimizer->kind, &o->numbers, i);
  return call;
}

/* {---- steps that are captured ---- */

/* The rates' place on the device, which a step makes for one that is captured later: a captured one would clear it with
 * every replay. And what the settings are when a step is captured. */
static gb_status open_rates(gb_optimizer *optimizer, gb_group *group, gb_step_call *call) {
  gb_context *context = optimizer->context;
  if (gb_scalars_on_host(&optimizer->found)) return GB_OK;
  if (!group->rates.data && context->capturing)
    return gb_fail(context, GB_ESTATE, "%s: take a step before one is captured", kind_name(optimizer));
  if (!group->rates.data) {
    group->brought.number[0] = NAN;
    return gb_scalars_open(&group->rates, context, optimizer->found.device, NULL, sizeof(gb_optim_numbers));
  }
  if (!context->capturing) return GB_OK;
  GB_TRY(gb_capture_note_optimizer(context, optimizer));
  group->captured = group->options;
  call->live = group->rates.data;
  return GB_OK;
}

/* The first hyperparameter that is no rate and has changed, or NULL. */
static const char *changed_setting(const gb_optimizer *optimizer, const gb_optim_numbers *now,
                                   const gb_optim_numbers *then) {
  const gb_optimizer_info *info = gb_optimizer_info_of(optimizer->kind);
  for (int i = 0; i < info->n_hypers; i++) {
    const gb_hyper *hyper = &info->hypers[i];
    for (int k = 0; k < hyper->count && !hyper->rate; k++)
      if (now->number[hyper->at + k] != then->number[hyper->at + k]) return hyper->name;
  }
  return NULL;
}

gb_status gb_optimizer_bring_rates(gb_optimizer *optimizer) {
  for (int g = 0; g < optimizer->n_groups; g++) {
    gb_group *group = optimizer->groups[g];
    if (group->captured.size == 0) continue;
    GB_TRY(check_options(optimizer, &group->options));
    const char *changed = changed_setting(optimizer, &group->options.numbers, &group->captured.numbers);
    if (changed)
      return gb_fail(optimizer->context, GB_ESTATE, "%s: %s of group %d has changed since the step was captured, "
                                                    "and replays do not read it; "
                     "make a new graph", kind_name(optimizer), changed, g + 1);
    for (int i = 0; i < group->n_slabs; i++) GB_TRY(gb_slab_sync_masters(group->slabs[i]));
    if (!memcmp(&group->options.numbers, &group->brought, sizeof group->brought)) continue;
    GB_TRY(gb_scalars_write(&group->rates, 0, &group->options.numbers, sizeof group->brought));
    group->brought = group->options.numbers;
  }
  return GB_OK;
}

void gb_optimizer_replayed(gb_optimizer *optimizer) {
  for (int g = 0; g < optimizer->n_groups; g++)
    for (int i = 0; i < optimizer->groups[g]->n_slabs; i++) publish(optimizer->groups[g]->slabs[i], false);
}

/* ----} */

/* A step clips within its pass, by the norm in the optimizer's scalars. */
static void clip_in_step(const gb_optimizer *optimizer, const gb_clip *clip, gb_step_call *call) {
  call->norm = call->owner = optimizer->found.data;
  call->max_norm = clip->max_norm;
  call->norm_type = clip->norm_type;
}

/* A step of one group, as the caller's call says. */
static gb_step_call call_for(const gb_optimizer *optimizer, const gb_group *group, const gb_step_call *how,
                             const gb_clip *clip) {
  gb_step_call call = call_of(optimizer, &group->options);
  call.scale = how->scale;
  call.scaled = how->scaled;
  call.found = how->found;
  call.spares = how->spares;
  if (clip) clip_in_step(optimizer, clip, &call);
  return call;
}

/* {---- steps that ops prepare ---- */

/* The place of the state that ops change. */
static int brought_state(const gb_optimizer *optimizer) { return gb_optimizer_info_of(optimizer->kind)->n_states - 1; }

/* A number of a slab's device as a tensor; it is read before the step ends. */
static gb_status number_at(const gb_slab *slab, void *data, gb_dtype dtype, gb_tensor **out) {
  GB_TRY(gb_tensor_over(gb_tensor_context(slab->gradients), data, dtype, 0, NULL, NULL, NULL, out));
  (*out)->storage->device = slab->gradients->storage->device;
  return GB_OK;
}

/* What ops see of a segment; its factors lie in `next`. */
static gb_status open_room(const gb_optimizer *optimizer, gb_slab *slab, gb_tensor *next, gb_segment *segment,
                           gb_shaped_room *room) {
  const gb_optimizer_info *info = gb_optimizer_info_of(optimizer->kind);
  gb_tensor *weights = slab->masters ? slab->masters : slab->parameters;
  int64_t *steps = slab->counters ? (int64_t *)(void *)gb_data(slab->counters) + segment->place : &segment->steps;
  GB_TRY(gb_slab_place(slab->state[brought_state(optimizer)], segment->offset, segment->parameter, &room->directions));
  GB_TRY(gb_slab_place(weights, segment->offset, segment->parameter, &room->weights));
  GB_TRY(number_at(slab, steps, GB_INT64, &room->steps));
  for (int i = 0; i < info->n_factors; i++)
    GB_TRY(gb_slab_factor(segment, info, i, next, &room->factors[i]));
  return GB_OK;
}

static void close_room(gb_shaped_room *room) {
  gb_drop(&room->directions);
  gb_drop(&room->weights);
  gb_drop(&room->steps);
  for (int i = 0; i < GB_OPTIM_FACTORS; i++) gb_drop(&room->factors[i]);
}

/* owned->next is what the factors will be: as they are where the step is skipped. */
static gb_status settle_factors(gb_owned_slab *owned, const gb_slab *slab, const gb_step_call *call) {
  gb_tensor *found = NULL, *chosen = NULL;
  if (!owned->next) return GB_OK;
  if (call->found) GB_TRY(number_at(slab, &call->found->found_inf, GB_FLOAT32, &found));
  gb_status status = gb_shaped_choose(call->context, found, slab->factors, owned->next, &chosen);
  gb_drop(&found);
  if (status != GB_OK) return status;
  gb_drop(&owned->next);
  owned->next = chosen;
  return GB_OK;
}

/* What this process steps of a slab whose parameters stay whole: all of it, or its one part. */
static gb_slab *slab_of_whole(gb_owned_slab *owned) {
  gb_slab *slabs;
  (void)gb_slabs_stepped(owned, &slabs);
  return slabs;
}

/* Write a slab's directions, and let ops change those of each parameter that has a gradient. */
static gb_status direct_slab(gb_optimizer *optimizer, const gb_group *group, gb_owned_slab *owned, gb_step_call *call) {
  gb_slab *slab = slab_of_whole(owned);
  int brought = brought_state(optimizer);
  GB_TRY(gb_parts_bring(owned));
  if (!any_gradient(slab)) return GB_OK;
  GB_TRY(gb_slab_open_state(owned, brought));
  call->slab = slab;
  call->uses[brought] = true;
  GB_TRY(gb_step_run(optimizer->context, GB_STEP_DIRECT, call));
  if (slab->factors) GB_TRY(GB_RUN(optimizer->context, clone, &owned->next, .x = slab->factors));
  for (int64_t s = 0; s < slab->count; s++) {
    gb_shaped_room room = { NULL };
    if (!slab->segments[s].has_grad) continue;
    gb_status status = open_room(optimizer, slab, owned->next, &slab->segments[s], &room);
    if (status == GB_OK) status = gb_shaped_apply(optimizer->context, optimizer->kind, &group->options.numbers, &room);
    close_room(&room);
    GB_TRY(status);
  }
  return settle_factors(owned, slab, call);
}

/* Before any weight changes, everything that may fail. */
static gb_status direct(gb_optimizer *optimizer, const gb_step_call *how, const gb_clip *clip) {
  for (int g = 0; g < optimizer->n_groups; g++) {
    gb_group *group = optimizer->groups[g];
    gb_step_call call = call_for(optimizer, group, how, clip);
    for (int i = 0; i < group->n_slabs; i++) GB_TRY(direct_slab(optimizer, group, group->slabs[i], &call));
  }
  return GB_OK;
}

/* What was brought goes. */
static void drop_directions(gb_optimizer *optimizer) {
  for (int g = 0; g < optimizer->n_groups; g++)
    for (int i = 0; i < optimizer->groups[g]->n_slabs; i++) {
      gb_owned_slab *owned = optimizer->groups[g]->slabs[i];
      gb_drop(&slab_of_whole(owned)->state[brought_state(optimizer)]);
      gb_drop(&owned->next);
    }
}

/* ----} */

/* {---- optimizers that are split ---- */

/* The pass over a slab, or over the parts of it that are this process's. 16-bit copies of weights that come from
 * elsewhere are left to be made again, but where they are what comes. */
static gb_status step_slab(gb_optimizer *optimizer, gb_owned_slab *owned, gb_step_call *call) {
  if (!owned->n_parts) return gb_step_run(optimizer->context, GB_STEP_UPDATE, call);
  gb_status status = GB_OK;
  call->known = gb_optimizer_info_of(optimizer->kind)->measured;
  GB_TRY(gb_parts_bring(owned));
  for (int64_t b = 0; b < owned->n_parts && status == GB_OK; b++) {
    call->slab = &owned->parts[b];
    if (any_gradient(call->slab)) status = gb_step_run(optimizer->context, GB_STEP_UPDATE, call);
  }
  call->slab = &owned->slab;
  return status;
}

/* This process's parts of a slab are measured. */
static gb_status measure_slab(gb_optimizer *optimizer, gb_owned_slab *owned, gb_step_call *call) {
  GB_TRY(gb_parts_bring(owned));
  for (int64_t b = 0; b < owned->n_parts; b++) {
    call->slab = &owned->parts[b];
    if (any_gradient(call->slab)) GB_TRY(gb_step_run(optimizer->context, GB_STEP_MEASURE, call));
  }
  return GB_OK;
}

/* What all processes measure before a step, which is not to be skipped: one message. */
static gb_status measure_parts(gb_optimizer *optimizer, const gb_step_call *how, const gb_clip *clip) {
  const gb_split *split = &optimizer->split;
  bool flag = false;
  if (how->found) GB_TRY(gb_optimizer_found(optimizer, &flag));
  if (flag) return GB_OK;
  for (int g = 0; g < optimizer->n_groups; g++) {
    gb_group *group = optimizer->groups[g];
    gb_step_call call = call_for(optimizer, group, how, clip);
    for (int i = 0; i < group->n_slabs; i++) GB_TRY(measure_slab(optimizer, group->slabs[i], &call));
  }
  int64_t count = gb_split_measures(optimizer);
  double *numbers = gb_counted_alloc(optimizer->context, (size_t)count * sizeof *numbers);
  if (!numbers) return optimizer->context->error_code;
  gb_status status = gb_split_take_measures(optimizer, numbers);
  if (status == GB_OK) status = split->share(optimizer->context, split, numbers, count, &flag);
  if (status == GB_OK) status = gb_split_give_measures(optimizer, numbers);
  gb_counted_free(numbers);
  return status;
}

/* After a step that was not skipped: every process gets the weights of all parts, and counts the step. */
static gb_status bring_together(gb_optimizer *optimizer, gb_owned_slab *owned) {
  if (!owned->n_parts) return GB_OK;
  GB_TRY(gb_parts_count(owned));
  return gb_split_bring(optimizer, owned);
}

/* ----} */

/* One pass over every slab. */
static gb_status update(gb_optimizer *optimizer, const gb_step_call *how, bool guarded, const gb_clip *clip) {
  bool shaped = gb_optimizer_info_of(optimizer->kind)->shaped;
  bool waits = gb_optimizer_is_split(optimizer); /* for a device, since weights come together only after a step */
  if (waits && optimizer->context->capturing)
    return gb_fail(optimizer->context, GB_ESTATE, "%s: a sharded optimizer exchanges weights in its step, which cannot "
                                                  "be captured; step outside of what is captured",
                   kind_name(optimizer));
  for (int g = 0; g < optimizer->n_groups; g++) GB_TRY(prepare_group(optimizer, optimizer->groups[g]));
  if (shaped) GB_TRY(direct(optimizer, how, clip));
  if (gb_optimizer_is_split(optimizer) && gb_optimizer_info_of(optimizer->kind)->measured)
    GB_TRY(measure_parts(optimizer, how, clip));
  for (int g = 0; g < optimizer->n_groups; g++) {
    gb_group *group = optimizer->groups[g];
    gb_step_call call = call_for(optimizer, group, how, clip);
    if (shaped) call.uses[brought_state(optimizer)] = true;
    GB_TRY(open_rates(optimizer, group, &call));
    for (int i = 0; i < group->n_slabs; i++) {
      call.slab = &group->slabs[i]->slab;
      if (!any_gradient(call.slab)) continue;
      GB_TRY(step_slab(optimizer, group->slabs[i], &call));
      if (group->slabs[i]->next)
        GB_TRY(gb_weight_copy_values(slab_of_whole(group->slabs[i])->factors, group->slabs[i]->next));
      for (int64_t s = 0; clip && s < call.slab->count; s++)
        if (call.slab->segments[s].has_grad) note_true_size(&call.slab->segments[s]);
      bool certain = !guarded || waits || gb_scalars_on_host(&optimizer->found), skipped = false;
      if (guarded && certain) GB_TRY(gb_optimizer_found(optimizer, &skipped));
      if (!skipped) GB_TRY(bring_together(optimizer, group->slabs[i]));
      if (!skipped) publish(group->slabs[i], certain);
    }
  }
  return GB_OK;
}

gb_status gb_optimizer_update(gb_optimizer *optimizer, gb_scale_state *scale, bool scaled, bool guarded,
                              const gb_clip *clip) {
  gb_range_push(optimizer->context, "step");
  gb_step_call how = { .scale = scale, .scaled = scaled, .found = guarded ? optimizer->found.data : NULL,
                       .spares = guarded };
  gb_status status = update(optimizer, &how, guarded, clip);
  if (gb_optimizer_info_of(optimizer->kind)->shaped) drop_directions(optimizer);
  optimizer->guarded = false;
  gb_range_pop(optimizer->context);
  GB_TRY(status);
  gb_backend *backend = gb_context_backend(optimizer->context, optimizer->found.device);
  return backend->pace ? backend->pace(backend->state) : GB_OK;
}

/* The scalars of the scale that all gradients carry (NULL: none), or an error where they carry several. first: one that
 * has a gradient. */
static gb_status one_scale(const gb_optimizer *optimizer, int first, gb_scale_state **scale) {
  gb_grad_tag tag = gb_tensor_tag(optimizer->params[first].segment->grad);
  int other = gb_optimizer_first_unlike(optimizer, tag);
  if (other >= 0) {
    char a[32], b[32];
    return gb_fail(optimizer->context, GB_ESTATE, "%s: the gradients of %s and %s carry different scales; scale "
                                                  "every loss with the same scaler, "
                   "or zero the gradients in between", kind_name(optimizer),
                       gb_optimizer_label(optimizer, first, a, sizeof a),
                   gb_optimizer_label(optimizer, other, b, sizeof b));
  }
  return gb_optimizer_scale_of(optimizer->context, tag, kind_name(optimizer), scale);
}

gb_status gb_optimizer_step(gb_optimizer *optimizer) {
  int first = gb_optimizer_first_gradient(optimizer);
  gb_scale_state *scale;
  if (first < 0) return GB_OK;
  GB_TRY(one_scale(optimizer, first, &scale));
  return gb_optimizer_update(optimizer, scale, scale != NULL, false, NULL);
}

gb_status gb_optimizer_step_clipped(gb_optimizer *optimizer, const gb_clip *clip, gb_tensor **norm) {
  int first = gb_optimizer_first_gradient(optimizer);
  gb_scale_state *scale;
  if (first < 0) return gb_tensor_scalar(optimizer->context, GB_FLOAT64, 0, norm);
  GB_TRY(one_scale(optimizer, first, &scale));
  GB_TRY(gb_optimizer_norm(optimizer, scale, clip->norm_type, norm));
  return gb_optimizer_update(optimizer, scale, scale != NULL, false, clip);
}

/* ====} */
