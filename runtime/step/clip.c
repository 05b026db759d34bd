/* step/clip.c - clipping by norm and by value, over any parameters, in an optimizer or not.
 *
 * Gradients are gathered into batches: those of one slab that carry the same scale are one batch and one kernel call,
 * and the gradient of a parameter without an optimizer is a slab of one segment. Batches stand in order of first
 * appearance, and segments in order of place, so sums are formed in an order that depends on the list of parameters
 * alone. Tied parameters count once. Gradients that unscale_ has measured, and nobody has touched since, are not
 * measured again. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "step/firsts.h"
#include "step/scaler.h"
#include "step/optimizer.h"

/* Some segments of one slab (or one loose gradient), with one scale. */
typedef struct batch {
  gb_slab slab;              /* as the kernel sees it; segments point into the list's room */
  gb_slab *home;             /* the slab they are of; NULL: a loose gradient */
  gb_grad_tag tag;
  gb_scale_state *scale;    /* NULL: unscaled */
} batch;

typedef struct batch_list {
  gb_context *context;
  const char *who;           /* for messages */
  batch *batches;
  gb_segment *segments;      /* room, one per parameter at most */
  int n_batches, n_segments;
} batch_list;

/* The gradient of a parameter, or NULL. */
static gb_tensor *gradient_of(const gb_tensor *parameter) {
  if (!parameter->slab) return parameter->grad;
  const gb_segment *segment = &parameter->slab->segments[parameter->segment];
  return segment->has_grad ? segment->grad : NULL;
}

/* A gradient that is not dense in memory gets memory of its own, so that a kernel can walk it. */
static gb_status make_dense(gb_tensor *parameter) {
  if (gb_is_dense(parameter->grad)) return GB_OK;
  gb_tensor *plain, *dense = NULL;
  GB_TRY(gb_tensor_detach(parameter->grad, &plain));
  gb_status status = GB_RUN(gb_tensor_context(plain), contiguous, &dense, .x = plain);
  gb_tensor_release(plain);
  GB_TRY(status);
  gb_tensor_copy_tag(dense, parameter->grad);
  gb_tensor_release(parameter->grad);
  parameter->grad = dense;
  return GB_OK;
}

static gb_status new_batch(batch_list *list, gb_slab *home, gb_tensor *grad, batch **out) {
  batch *b = &list->batches[list->n_batches];
  *b = (batch){ .home = home, .tag = gb_tensor_tag(grad) };
  if (home) b->slab = *home;
  else b->slab = (gb_slab){ .dtype = (gb_dtype)grad->dtype, .elements = grad->numel, .gradients = grad };
  b->slab.segments = list->segments + list->n_segments;
  b->slab.count = 0;
  GB_TRY(gb_optimizer_scale_of(list->context, b->tag, list->who, &b->scale));
  list->n_batches++;
  *out = b;
  return GB_OK;
}

/* A gradient that was given by hand may be a loan. One that was taken back fails before any gradient is changed. */
static gb_status check_memory(const batch_list *list, const gb_tensor *grad) {
  const char *op = list->context->op;
  list->context->op = list->who;
  gb_status status = gb_check_loan(grad);
  list->context->op = op;
  return status;
}

static gb_status loose_batch(batch_list *list, gb_tensor *parameter) {
  GB_TRY(check_memory(list, parameter->grad));
  GB_TRY(make_dense(parameter));
  batch *b;
  GB_TRY(new_batch(list, NULL, parameter->grad, &b));
  gb_tensor *grad = parameter->grad;
  b->slab.segments[b->slab.count++] = (gb_segment){ .size = grad->numel, .has_grad = true, .parameter = parameter,
                                                    .grad = grad };
  list->n_segments++;
  return GB_OK;
}

static bool is_batched(const batch_list *list, const gb_slab *home, gb_grad_tag tag) {
  for (int i = 0; i < list->n_batches; i++)
    if (list->batches[i].home == home && gb_same_tag(list->batches[i].tag, tag)) return true;
  return false;
}

/* Every listed gradient of one slab that carries one tag, in order of place: chosen[segment] says which are listed. */
static gb_status slab_batch(batch_list *list, gb_slab *home, gb_tensor *grad, gb_tensor *const *parameters, int count) {
  bool *chosen = calloc((size_t)home->count, sizeof *chosen);
  if (!chosen) return gb_fail_memory(list->context, (size_t)home->count);
  for (int i = 0; i < count; i++)
    if (parameters[i]->slab == home) chosen[parameters[i]->segment] = true;
  batch *b;
  gb_status status = new_batch(list, home, grad, &b);
  for (int64_t s = 0; status == GB_OK && s < home->count; s++) {
    const gb_segment *segment = &home->segments[s];
    if (!chosen[s] || !segment->has_grad || !gb_same_tag(gb_tensor_tag(segment->grad), b->tag)) continue;
    b->slab.segments[b->slab.count++] = *segment;
    list->n_segments++;
  }
  free(chosen);
  return status;
}

/* A batch for each slab and tag, and for each gradient outside of slabs; the same tensor twice counts once. */
static gb_status gather_listed(batch_list *list, gb_tensor *const *parameters, int count, const int *first) {
  for (int i = 0; i < count; i++) {
    gb_tensor *p = parameters[i], *grad = gradient_of(p);
    if (!grad) continue;
    if (p->slab && !is_batched(list, p->slab, gb_tensor_tag(grad)))
      GB_TRY(slab_batch(list, p->slab, grad, parameters, count));
    if (!p->slab && first[i] == i) GB_TRY(loose_batch(list, p));
  }
  return GB_OK;
}

static gb_status gather(batch_list *list, gb_tensor *const *parameters, int count) {
  list->batches = calloc((size_t)count + 1, sizeof *list->batches);
  list->segments = calloc((size_t)count + 1, sizeof *list->segments);
  int *first = malloc(((size_t)count + 1) * sizeof *first);
  gb_status status = GB_OK;
  if (!list->batches || !list->segments || !first)
    status = gb_fail_memory(list->context, sizeof(batch) * (size_t)count);
  if (status == GB_OK) status = gb_find_firsts(list->context, (const void *const *)parameters, count, first);
  if (status == GB_OK) status = gather_listed(list, parameters, count, first);
  free(first);
  return status;
}

static void close_list(batch_list *list) {
  free(list->batches);
  free(list->segments);
}

/* Run a step over every batch. call holds the settings. */
static gb_status run_batches(batch_list *list, gb_step step, gb_step_call call) {
  for (int i = 0; i < list->n_batches; i++) {
    batch *b = &list->batches[i];
    call.slab = &b->slab;
    call.scale = b->scale;
    call.scaled = b->scale != NULL;
    call.share = NULL;
    call.known = false;
    if (step == GB_STEP_CHECK && b->home) GB_TRY(gb_split_prepare(b->home, &call));
    GB_TRY(gb_step_run(list->context, step, &call));
  }
  return GB_OK;
}

/* Change gradients in place, and bump the version of any that somebody kept. */
static gb_status clip(batch_list *list, gb_step_call call) {
  GB_TRY(run_batches(list, GB_STEP_CLIP, call));
  for (int i = 0; i < list->n_segments; i++) gb_tensor_bump_scaled(list->segments[i].grad);
  return GB_OK;
}

/* Where the listed gradients lie. */
static gb_status find_device(const batch_list *list, gb_device *out) {
  *out = (gb_device){ GB_CPU, 0 };
  for (int i = 0; i < list->n_batches; i++) {
    gb_device device = list->batches[i].slab.gradients->storage->device;
    if (i > 0 && (device.type != out->type || device.index != out->index))
      return gb_fail(list->context, GB_EDEVICE, "%s: gradients lie on several devices; clip those of each device by "
                                                "themselves", list->who);
    *out = device;
  }
  return GB_OK;
}

static double norm_of(const gb_found_state *found, double norm_type) {
  double sum = found->norm_squared;
  return isinf(norm_type) ? sum : norm_type == 2 ? sqrt(sum) : pow(sum, 1 / norm_type);
}

/* The optimizer whose unscale_ has measured exactly these gradients, and in this order, so that measuring again would
 * give the same bits; or NULL. */
static gb_optimizer *measured_by(const batch_list *list, double norm_type) {
  gb_slab *home = list->n_batches ? list->batches[0].home : NULL;
  gb_optimizer *owner = home ? ((gb_owned_slab *)home)->owner : NULL;
  if (!owner || norm_type != 2 || list->n_segments != owner->measured || !gb_optimizer_is_measured(owner)) return NULL;
  int next = 0;
  for (int g = 0; g < owner->n_groups; g++)
    for (int i = 0; i < owner->groups[g]->n_slabs; i++)
      next += next < list->n_batches && list->batches[next].home == &owner->groups[g]->slabs[i]->slab;
  return next == list->n_batches ? owner : NULL;
}

/* The norm, joined over all batches, in scalars on their device. */
static gb_status measure(batch_list *list, double norm_type, gb_scalars *scalars) {
  gb_device device;
  GB_TRY(find_device(list, &device));
  GB_TRY(gb_scalars_open(scalars, list->context, device, NULL, sizeof(gb_found_state)));
  return run_batches(list, GB_STEP_CHECK, (gb_step_call){ .found = scalars->data, .norm_type = norm_type });
}

/* Scale gradients down by the norm in the scalars. The kernel decides whether; one that is not finite is a non-finite
 * gradient for the scaler of every optimizer concerned: those with scaled gradients heard of it from the check, after
 * unscale_ it is the optimizer's flag that the step reads, and gradients stay as they are, for the scaler to report on.
 * On the CPU, where the norm is known, nothing is written that need not be. */
static gb_status clip_by(batch_list *list, const gb_scalars *scalars, double max_norm, double norm_type) {
  gb_step_call call = { .norm = scalars->data, .max_norm = max_norm, .norm_type = norm_type };
  double total = gb_scalars_on_host(scalars) ? norm_of(scalars->data, norm_type) : 0;
  bool writes = !gb_scalars_on_host(scalars) || !(max_norm / (total + 1e-6) >= 1);
  for (int i = 0; i < list->n_batches; i++) {
    batch *b = &list->batches[i];
    gb_optimizer *owner = b->home ? ((gb_owned_slab *)b->home)->owner : NULL;
    call.owner = owner ? owner->found.data : NULL;
    call.spares = b->scale || (owner && owner->guarded);
    call.slab = &b->slab;
    call.scale = b->scale;
    call.scaled = b->scale != NULL;
    GB_TRY(gb_step_run(list->context, GB_STEP_CLIP, &call));
  }
  for (int i = 0; writes && i < list->n_segments; i++) gb_tensor_bump_scaled(list->segments[i].grad);
  return GB_OK;
}

gb_status gb_norm_tensor(const gb_scalars *scalars, double norm_type, gb_tensor **out) {
  gb_context *context = scalars->context;
  gb_tensor *sum = NULL;
  char *at = (char *)scalars->data + offsetof(gb_found_state, norm_squared);
  GB_TRY(gb_tensor_over(context, at, GB_FLOAT64, 0, NULL, NULL, NULL, &sum));
  sum->storage->device = scalars->device;
  gb_status status = isinf(norm_type) ? GB_RUN(context, clone, out, .x = sum)
                   : norm_type == 2   ? GB_RUN(context, sqrt, out, .x = sum)
                                      : gb_op_number(context, GB_OP_pow, sum, 1 / norm_type, out);
  gb_tensor_release(sum);
  return status;
}

/* The norm in the scalars, which must be finite. */
static gb_status require_finite(const gb_scalars *scalars, double norm_type) {
  gb_tensor *norm = NULL;
  double value = 0;
  GB_TRY(gb_norm_tensor(scalars, norm_type, &norm));
  gb_status status = gb_tensor_item(norm, &value, NULL);
  gb_tensor_release(norm);
  if (status != GB_OK || isfinite(value)) return status;
  return gb_fail(scalars->context, GB_EINVAL, "clip_grad_norm_: the norm of the gradients is %s, and no gradient "
                                              "was changed; look for inf or NaN in "
                 "the loss, or leave error_if_nonfinite out", isnan(value) ? "nan" : "inf");
}

gb_status gb_clip_grad_norm_tensor(gb_context *context, gb_tensor *const *parameters, int count, double max_norm,
                                   double norm_type, bool finite,
                                   gb_tensor **norm) {
  if (!(max_norm >= 0))
    return gb_fail(context, GB_EINVAL, "clip_grad_norm_: max_norm is %g; it must be 0 or more", max_norm);
  if (!(norm_type > 0))
    return gb_fail(context, GB_EINVAL, "clip_grad_norm_: norm_type is %g; it must be above 0 (2, or math.huge for "
                                       "the largest element)", norm_type);
  batch_list list = { .context = context, .who = "clip_grad_norm_" };
  gb_scalars scalars = { .context = context };
  gb_status status = gather(&list, parameters, count);
  gb_optimizer *owner = status == GB_OK ? measured_by(&list, norm_type) : NULL;
  const gb_scalars *known = owner ? &owner->found : &scalars;
  if (status == GB_OK && !owner) status = measure(&list, norm_type, &scalars);
  if (status == GB_OK && finite) status = require_finite(known, norm_type);
  if (status == GB_OK) status = clip_by(&list, known, max_norm, norm_type);
  if (status == GB_OK) status = gb_norm_tensor(known, norm_type, norm);
  gb_scalars_close(&scalars);
  close_list(&list);
  return status;
}

gb_status gb_clip_grad_norm(gb_context *context, gb_tensor *const *parameters, int count, double max_norm,
                            double norm_type, double *norm) {
  gb_tensor *total = NULL;
  GB_TRY(gb_clip_grad_norm_tensor(context, parameters, count, max_norm, norm_type, false, &total));
  gb_status status = norm ? gb_tensor_item(total, norm, NULL) : GB_OK;
  gb_tensor_release(total);
  return status;
}

gb_status gb_clip_grad_value(gb_context *context, gb_tensor *const *parameters, int count, double value) {
  if (!(value > 0)) return gb_fail(context, GB_EINVAL, "clip_grad_value_: the limit is %g; it must be above 0", value);
  batch_list list = { .context = context, .who = "clip_grad_value_" };
  gb_status status = gather(&list, parameters, count);
  if (status == GB_OK) status = clip(&list, (gb_step_call){ .clip_value = value });
  close_list(&list);
  return status;
}
