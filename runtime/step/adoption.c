/* step/adoption.c - adoption: parameters move into slabs, and everything that refers to them follows, since their
 * storages stay the same.
 *
 * A call is prepared first, which may fail and changes nothing, and then committed, which cannot fail. What cannot
 * follow is refused by name: a parameter that is only a part of its memory, memory that the host lent, and parameters
 * that share memory in different shapes. While a slab is alive, the storage of its parameters points at it (user), so
 * that a second adoption is noticed even through a tensor that only shares the memory. So does that of its gradients,
 * for who must know that these are shared out (split.h). */
#include "step/adoption.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step/firsts.h"
#include "step/weights.h"

const char *gb_parameter_label(const char *name, int position, char *buffer, size_t size) {
  if (name) return name;
  snprintf(buffer, size, "parameter %d", position + 1);
  return buffer;
}

/* Contiguous elements of a slab's vector as a tensor. */
static gb_status place_of(gb_tensor *vector, int64_t offset, int ndim, const int64_t *shape, gb_tensor **out) {
  gb_dtype dtype = (gb_dtype)vector->dtype;
  char *data = gb_data(vector) + offset * (int64_t)gb_dtype_bytes(dtype);
  gb_status status = gb_tensor_over(gb_tensor_context(vector), data, dtype, ndim, shape, NULL, NULL, out);
  if (status != GB_OK) return status;
  gb_tensor *t = *out;
  t->storage->device = vector->storage->device;
  t->storage->category = vector->storage->category;
  t->storage->slab = vector->storage;
  gb_storage_retain(vector->storage);
  return GB_OK;
}

gb_status gb_slab_place(gb_tensor *vector, int64_t offset, const gb_tensor *like, gb_tensor **out) {
  GB_TRY(place_of(vector, offset, like->ndim, like->shape, out));
  memcpy((*out)->stride, like->stride, sizeof like->stride);
  return GB_OK;
}

/* {==== what may be adopted ==== */

static const char *label(const gb_adoption *a, int i, char *buffer, size_t size) {
  return gb_parameter_label(a->names ? a->names[i] : NULL, i, buffer, size);
}

/* Does its memory belong to an optimizer that is still open? */
static bool is_held(const gb_tensor *t) {
  const gb_slab *slab = t->storage->slab ? t->storage->slab->user : NULL;
  return slab && slab->parameters->storage == t->storage->slab;
}

static gb_status check_parameter(const gb_adoption *a, int i) {
  const gb_tensor *t = a->parameters[i];
  gb_context *c = a->context;
  char room[32];
  const char *name = label(a, i, room, sizeof room);
  if (!t) return gb_fail(c, GB_EINVAL, "optimizer: %s is missing", name);
  if (!gb_dtype_is_float((gb_dtype)t->dtype))
    return gb_fail(c, GB_EDTYPE, "optimizer: %s is %s; only floating tensors can be trained", name,
                   gb_dtype_name((gb_dtype)t->dtype));
  if (t->node)
    return gb_fail(c, GB_EINVAL, "optimizer: %s was computed from other tensors; only leaves can be trained: give "
                                 "the tensors it comes from, or "
                   "detach it", name);
  if (is_held(t))
    return gb_fail(c, GB_ESTATE, "optimizer: %s (or a tensor tied to it) is held by an optimizer already; list it "
                                 "once, or close() the other "
                   "optimizer first", name);
  if (t->storage->release || t->storage->loan != GB_OWNED || atomic_load(&t->storage->exports))
    return gb_fail(c, GB_EINVAL, "optimizer: %s lies in memory of the host, which an optimizer cannot move; make "
                                 "the parameter from a clone()", name);
  if (t->offset != 0 || (size_t)t->numel * gb_dtype_bytes((gb_dtype)t->dtype) != t->storage->bytes || !gb_is_dense(t))
    return gb_fail(c, GB_EINVAL, "optimizer: %s is a view of a part of a larger tensor; make the parameter from a "
                                 "clone() of it", name);
  return GB_OK;
}

static bool same_geometry(const gb_tensor *a, const gb_tensor *b) {
  size_t dims = sizeof *a->shape * (size_t)a->ndim;
  return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, dims) &&
      !memcmp(a->stride, b->stride, dims);
}

/* Find for each parameter the first one with its memory. */
static gb_status find_twins(gb_adoption *a) {
  const void **storages = malloc(((size_t)a->count + 1) * sizeof *storages);
  if (!storages) return gb_fail_memory(a->context, ((size_t)a->count + 1) * sizeof *storages);
  for (int i = 0; i < a->count; i++) storages[i] = a->parameters[i]->storage;
  gb_status status = gb_find_firsts(a->context, storages, a->count, a->twin);
  free(storages);
  return status;
}

/* May parameter i share its memory with its twin? */
static gb_status check_twin(const gb_adoption *a, int i) {
  int first = a->twin[i];
  if (same_geometry(a->parameters[first], a->parameters[i])) return GB_OK;
  char x[32], y[32];
  return gb_fail(a->context, GB_EINVAL,
                 "optimizer: %s and %s share their memory in different shapes or layouts; make one of them the "
                 "parameter, and take the view of it "
                 "in forward", label(a, first, x, sizeof x), label(a, i, y, sizeof y));
}

/* ====} */

/* {==== building slabs ==== */

/* A vector of zeros. */
static gb_status zero_vector(gb_context *context, gb_dtype dtype, int64_t elements, gb_device device,
                             gb_memory_category category, gb_tensor **out) {
  gb_tensor *vector;
  GB_TRY(gb_tensor_new_as(context, dtype, 1, &elements, NULL, device, category, &vector));
  gb_status status = gb_apply_(context, GB_OP_fill, &vector, 1, &(gb_attr){ .given = true, .number = 0 });
  if (status == GB_OK) *out = vector;
  else gb_tensor_release(vector);
  return status;
}

/* The slab's vectors: all but states and copies, which come when they are needed. */
static gb_status open_vectors(gb_context *context, gb_slab *slab, gb_device device) {
  gb_dtype wide = slab->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32;
  GB_TRY(zero_vector(context, slab->dtype, slab->elements, device, GB_MEM_PARAMETERS, &slab->parameters));
  GB_TRY(zero_vector(context, wide, slab->elements, device, GB_MEM_GRADIENTS, &slab->gradients));
  if (device.type != GB_CPU)
    GB_TRY(zero_vector(context, GB_INT64, 2 * slab->count, device, GB_MEM_OPTIMIZER, &slab->counters));
  if (!gb_is_16bit(slab->dtype)) return GB_OK;
  return gb_tensor_new_as(context, GB_FLOAT32, 1, &slab->elements, NULL, device, GB_MEM_OPTIMIZER, &slab->masters);
}

/* The parameter's values go to its place in the slab. */
static gb_status copy_in(gb_slab *slab, const gb_segment *segment) {
  gb_tensor *place;
  GB_TRY(gb_slab_place(slab->parameters, segment->offset, segment->parameter, &place));
  gb_status status = gb_weight_copy_values(place, segment->parameter);
  gb_tensor_release(place);
  return status;
}

/* A gradient from before the adoption goes to its segment; those of tied parameters add up. */
static gb_status bring_gradient(gb_context *context, gb_segment *segment, gb_tensor *grad) {
  if (!segment->has_grad) {
    GB_TRY(gb_weight_copy_values(segment->grad, grad));
    gb_tensor_copy_tag(segment->grad, grad);
    segment->has_grad = true;
    return GB_OK;
  }
  gb_grad_tag sum = gb_tag_of_sum(gb_tensor_tag(segment->grad), gb_tensor_tag(grad));
  gb_tensor *plain;
  GB_TRY(gb_tensor_detach(grad, &plain));
  gb_status status = gb_apply_(context, GB_OP_add, (gb_tensor *[]){ segment->grad, plain }, 2, NULL);
  if (status == GB_OK) gb_tensor_put_tag(segment->grad, sum, grad);
  gb_tensor_release(plain);
  return status;
}

/* Give every parameter that shares dtype and device with parameter `first` a segment; the slab has no memory yet. */
static gb_status lay_out(gb_adoption *a, int first, gb_owned_slab **out) {
  const gb_tensor *model = a->parameters[first];
  gb_owned_slab *owned = gb_counted_alloc(a->context, sizeof *owned);
  if (owned) *out = owned; /* freed with the adoption */
  gb_slab *slab = owned ? &owned->slab : NULL;
  if (slab) slab->segments = gb_counted_alloc(a->context, (size_t)a->count * sizeof *slab->segments);
  if (slab && slab->segments) owned->synced = gb_counted_alloc(a->context, (size_t)a->count * sizeof *owned->synced);
  if (!slab || !slab->segments || !owned->synced) return a->context->error_code;
  owned->owner = a->owner;
  slab->dtype = (gb_dtype)model->dtype;
  for (int i = first; i < a->count; i++) {
    gb_tensor *t = a->parameters[i];
    gb_device device = t->storage->device;
    if (t->dtype != model->dtype || device.type != model->storage->device.type ||
        device.index != model->storage->device.index) continue;
    a->of[i] = owned;
    a->segment[i] = a->twin[i] == i ? slab->count : a->segment[a->twin[i]];
    if (a->twin[i] != i) continue;
    slab->segments[slab->count] = (gb_segment){ .offset = slab->elements, .size = t->numel, .place = slab->count,
                                                .parameter = t };
    slab->count++;
    slab->elements += gb_slab_room(t->numel);
  }
  return GB_OK;
}

/* Memory for a laid out slab, with the parameters' values in it. */
static gb_status fill_slab(gb_adoption *a, gb_slab *slab) {
  GB_TRY(open_vectors(a->context, slab, slab->segments[0].parameter->storage->device));
  for (int64_t s = 0; s < slab->count; s++) {
    gb_segment *segment = &slab->segments[s];
    GB_TRY(copy_in(slab, segment));
    GB_TRY(gb_slab_place(slab->gradients, segment->offset, segment->parameter, &segment->grad));
  }
  return slab->masters ? gb_weight_copy_values(slab->masters, slab->parameters) : GB_OK;
}

gb_status gb_adoption_prepare(gb_adoption *a) {
  size_t n = (size_t)a->count;
  a->twin = calloc(n + 1, sizeof *a->twin);
  a->of = calloc(n + 1, sizeof *a->of);
  a->segment = calloc(n + 1, sizeof *a->segment);
  a->slabs = calloc(n + 1, sizeof *a->slabs);
  if (!a->twin || !a->of || !a->segment || !a->slabs) return gb_fail_memory(a->context, n * sizeof *a->segment);
  for (int i = 0; i < a->count; i++) GB_TRY(check_parameter(a, i));
  GB_TRY(find_twins(a));
  for (int i = 0; i < a->count; i++) GB_TRY(check_twin(a, i));
  for (int i = 0; i < a->count; i++) {
    if (a->of[i]) continue;
    gb_owned_slab **slab = &a->slabs[a->n_slabs++];
    GB_TRY(lay_out(a, i, slab));
    GB_TRY(fill_slab(a, &(*slab)->slab));
  }
  for (int i = 0; i < a->count; i++) {
    gb_tensor *grad = a->parameters[i]->grad;
    bool again = a->twin[i] != i && a->parameters[i] == a->parameters[a->twin[i]];
    if (grad && !again) GB_TRY(bring_gradient(a->context, &a->of[i]->slab.segments[a->segment[i]], grad));
  }
  return GB_OK;
}

/* Point the storage at its place in the slab; its own memory, or the slab of an optimizer that is gone, is let go. */
static void move_storage(gb_slab *slab, const gb_segment *segment) {
  gb_storage *storage = segment->parameter->storage, *home = slab->parameters->storage;
  if (storage->block) gb_pool_free(gb_context_pool(storage->context, storage->device), storage->block);
  storage->block = NULL;
  gb_storage_retain(home);
  gb_storage_release(storage->slab);
  storage->slab = home;
  storage->data = gb_data(slab->parameters) + segment->offset * (int64_t)gb_dtype_bytes(slab->dtype);
}

void gb_adoption_commit(gb_adoption *a) {
  for (int k = 0; k < a->n_slabs; k++) {
    gb_slab *slab = &a->slabs[k]->slab;
    slab->parameters->storage->user = slab->gradients->storage->user = slab;
    for (int64_t s = 0; s < slab->count; s++) move_storage(slab, &slab->segments[s]);
  }
  for (int i = 0; i < a->count; i++) {
    gb_tensor *t = a->parameters[i];
    t->slab = &a->of[i]->slab;
    t->segment = a->segment[i];
    gb_drop(&t->grad);
    gb_weight_drop(t);
  }
  for (int k = 0; k < a->n_slabs; k++) gb_slab_masters_synced(a->slabs[k]);
  a->n_slabs = 0;
}

void gb_adoption_close(gb_adoption *a) {
  for (int k = 0; k < a->n_slabs; k++) gb_slab_free(a->slabs[k]);
  free(a->twin);
  free(a->of);
  free(a->segment);
  free(a->slabs);
}

/* ====} */

/* {==== leaving ==== */

void gb_slab_leave(gb_tensor *parameter) {
  gb_slab *slab = parameter->slab;
  if (!slab) return;
  gb_segment *segment = &slab->segments[parameter->segment];
  parameter->slab = NULL;
  if (parameter->storage->away != GB_AWAY) parameter->storage->away = GB_HERE;
  if (segment->has_grad && segment->parameter == parameter) {
    gb_tensor_retain(segment->grad);
    gb_tensor_put_grad(parameter, segment->grad);
  }
  gb_weight_drop(parameter);
}

void gb_slab_free(gb_owned_slab *owned) {
  if (!owned) return;
  gb_slab *slab = &owned->slab;
  gb_split_parts_free(owned);
  for (int64_t s = 0; slab->segments && s < slab->count; s++) {
    gb_tensor *grad = slab->segments[s].grad;
    if (grad) grad->storage->away = GB_HERE;
    gb_tensor_release(grad);
  }
  if (slab->parameters) slab->parameters->storage->user = NULL;
  if (slab->gradients) slab->gradients->storage->user = NULL;
  gb_tensor_release(slab->parameters);
  gb_tensor_release(slab->gradients);
  gb_tensor_release(slab->masters);
  for (int k = 0; k < GB_COPIES; k++) gb_tensor_release(slab->copy[k]);
  for (int i = 0; i < GB_OPTIM_STATES; i++) gb_tensor_release(slab->state[i]);
  gb_tensor_release(slab->factors);
  gb_tensor_release(slab->measures);
  gb_tensor_release(slab->counters);
  gb_counted_free(slab->segments);
  gb_counted_free(owned->synced);
  gb_counted_free(owned);
}

/* ====} */

/* {==== states and masters ==== */

gb_status gb_slab_open_state(gb_owned_slab *owned, int i) {
  gb_slab *slabs;
  int64_t count = gb_slabs_stepped(owned, &slabs);
  for (int64_t b = 0; b < count; b++) {
    gb_slab *slab = &slabs[b];
    const gb_tensor *model = slab->gradients;
    if (!slab->state[i])
      GB_TRY(zero_vector(gb_tensor_context(model), (gb_dtype)model->dtype, slab->elements, model->storage->device,
                         GB_MEM_OPTIMIZER, &slab->state[i]));
  }
  return GB_OK;
}

bool gb_factor_shape(gb_factor_form form, const gb_tensor *parameter, int *ndim, int64_t *shape) {
  bool matrix = parameter->ndim > 1;
  *ndim = parameter->ndim;
  memcpy(shape, parameter->shape, sizeof *shape * (size_t)*ndim);
  if (form == GB_FACTOR_WHOLE) return !matrix;
  if (matrix) shape[*ndim - (form == GB_FACTOR_ROWS ? 1 : 2)] = 1;
  return matrix;
}

/* Elements of a factor; 0: the parameter has none of this form. */
static int64_t factor_size(gb_factor_form form, const gb_tensor *parameter) {
  int ndim;
  int64_t shape[GB_MAX_NDIM], size = 1;
  if (!gb_factor_shape(form, parameter, &ndim, shape)) return 0;
  for (int i = 0; i < ndim; i++) size *= shape[i];
  return gb_slab_room(size);
}

gb_status gb_slab_factor(const gb_segment *segment, const gb_optimizer_info *info, int i, gb_tensor *vector,
                         gb_tensor **out) {
  int ndim;
  int64_t shape[GB_MAX_NDIM], at = segment->factors;
  *out = NULL;
  for (int k = 0; k < i; k++) at += factor_size(info->factors[k].form, segment->parameter);
  if (!gb_factor_shape(info->factors[i].form, segment->parameter, &ndim, shape)) return GB_OK;
  return place_of(vector, at, ndim, shape, out);
}

gb_status gb_slab_open_whole_factors(gb_slab *slab, const gb_optimizer_info *info) {
  const gb_tensor *model = slab->gradients;
  int64_t elements = 0;
  if (slab->factors || info->n_factors == 0) return GB_OK;
  for (int64_t s = 0; s < slab->count; s++) {
    slab->segments[s].factors = elements;
    for (int i = 0; i < info->n_factors; i++)
      elements += factor_size(info->factors[i].form, slab->segments[s].parameter);
  }
  return zero_vector(gb_tensor_context(model), (gb_dtype)model->dtype, elements, model->storage->device,
                     GB_MEM_OPTIMIZER, &slab->factors);
}

gb_status gb_slab_open_factors(gb_owned_slab *owned, const gb_optimizer_info *info) {
  gb_slab *slabs;
  int64_t count = gb_slabs_stepped(owned, &slabs);
  for (int64_t b = 0; b < count; b++) GB_TRY(gb_slab_open_whole_factors(&slabs[b], info));
  return GB_OK;
}

gb_status gb_slab_open_measures(gb_owned_slab *owned) {
  gb_slab *slabs;
  int64_t count = gb_slabs_stepped(owned, &slabs);
  for (int64_t b = 0; b < count; b++) {
    gb_slab *slab = &slabs[b];
    const gb_tensor *model = slab->gradients;
    if (slab->measures) continue;
    GB_TRY(zero_vector(gb_tensor_context(model), GB_FLOAT64, gb_measures_of(slab->count, slab->elements),
                       model->storage->device, GB_MEM_OPTIMIZER, &slab->measures));
  }
  return GB_OK;
}

/* master = parameter where the master does not round to it. */
static gb_status sync_master(gb_tensor *parameter, gb_tensor *master) {
  gb_context *context = gb_tensor_context(master);
  gb_tensor *rounded = NULL, *changed = NULL, *wide = NULL, *values = NULL;
  gb_status status = gb_op_cast(context, parameter, GB_FLOAT32, &wide);
  if (status == GB_OK) status = gb_op_cast(context, master, (gb_dtype)parameter->dtype, &rounded);
  if (status == GB_OK) status = GB_RUN(context, ne, &changed, .x = parameter, .y = rounded);
  if (status == GB_OK) status = GB_RUN(context, where, &values, .condition = changed, .x = wide, .y = master);
  if (status == GB_OK) status = gb_weight_copy_values(master, values);
  gb_drop(&rounded);
  gb_drop(&changed);
  gb_drop(&wide);
  gb_drop(&values);
  return status;
}

/* The elements of a segment in a vector of its slab, in the order of memory. */
static gb_status flat_place(gb_tensor *vector, const gb_segment *segment, gb_tensor **out) {
  const gb_tensor like = { .ndim = 1, .shape = { segment->size }, .stride = { 1 } };
  return gb_slab_place(vector, segment->offset, &like, out);
}

/* The masters of one slab; the segments that agree are noted by the caller, since a segment may lie in several. */
static gb_status sync_slab(const gb_owned_slab *owned, const gb_slab *slab) {
  for (int64_t s = 0; slab->masters && s < slab->count; s++) {
    const gb_segment *segment = &slab->segments[s];
    if (owned->synced[segment->place] == gb_tensor_version(segment->parameter)) continue;
    gb_tensor *parameter, *master = NULL;
    GB_TRY(flat_place(slab->parameters, segment, &parameter));
    gb_status status = flat_place(slab->masters, segment, &master);
    if (status == GB_OK) status = sync_master(parameter, master);
    gb_drop(&parameter);
    gb_drop(&master);
    GB_TRY(status);
  }
  return GB_OK;
}

gb_status gb_slab_sync_masters(gb_owned_slab *owned) {
  gb_slab *slabs;
  int64_t count = gb_slabs_stepped(owned, &slabs);
  if (!slabs->masters) return GB_OK;
  for (int64_t b = 0; b < count; b++) GB_TRY(sync_slab(owned, &slabs[b]));
  gb_slab_masters_synced(owned);
  return GB_OK;
}

void gb_slab_masters_synced(gb_owned_slab *owned) {
  for (int64_t s = 0; s < owned->slab.count; s++)
    owned->synced[s] = gb_tensor_version(owned->slab.segments[s].parameter);
}

/* ====} */
