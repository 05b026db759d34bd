/* step/weights.c - 16-bit copies of float32 weights: raw storage that the parameter owns, made on first use and then
 * kept fresh.
 *
 * A copy is right as long as its version is the parameter's; any in-place change of the parameter makes it stale, and
 * the next use casts it again into the same memory. The copies of adopted parameters lie in a slab of their own, where
 * the optimizer's kernel refreshes them in the pass that writes the weights. Of a weight that is shared out between
 * processes the copy may be all that is here (step/split.h): then it cannot be made again. A copy is never part of a
 * graph, so gradient mode cannot matter. */
#include "step/weights.h"

#include <string.h>

#include "step/capture.h"
#include "step/adoption.h"

/* The tensor that owns the copies of t's storage: its root, or for tied parameters the one that the slab knows. */
static gb_tensor *owner_of(const gb_tensor *t) {
  gb_tensor *root = gb_tensor_root(t);
  return root->slab ? root->slab->segments[root->segment].parameter : root;
}

bool gb_weight_is_cached(const gb_tensor *t) {
  const gb_tensor *root = gb_tensor_root(t);
  return t->dtype == GB_FLOAT32 && !root->node && (root->requires_grad || root->is_parameter) && gb_is_dense(root);
}

gb_status gb_weight_copy_values(gb_tensor *to, gb_tensor *from) {
  gb_context *context = gb_tensor_context(to);
  gb_modes *outer = context->modes, plain = *outer;
  plain.grad = plain.autocast = false;
  context->modes = &plain;
  gb_status status = gb_apply_(context, GB_OP_copy, (gb_tensor *[]){ to, from }, 2, NULL);
  context->modes = outer;
  return status;
}

/* Copy k of a parameter has the parameter's present values. */
static void mark_fresh(gb_tensor *parameter, int k) { parameter->copies[k].version = gb_tensor_version(parameter); }

/* The slab's vector of copies, filled by one cast, and every parameter's place in it. */
static gb_status open_copies(gb_context *context, gb_slab *slab, int k, gb_dtype dtype) {
  gb_tensor *vector;
  GB_TRY(gb_tensor_new_as(context, dtype, 1, &slab->elements, NULL, slab->parameters->storage->device,
                          GB_MEM_WEIGHT_COPIES, &vector));
  gb_status status = gb_weight_copy_values(vector, slab->parameters);
  for (int64_t i = 0; status == GB_OK && i < slab->count; i++) {
    gb_tensor *parameter = slab->segments[i].parameter;
    gb_drop(&parameter->copies[k].tensor);
    status = gb_slab_place(vector, slab->segments[i].offset, parameter, &parameter->copies[k].tensor);
    if (status == GB_OK && parameter->storage->away != GB_AWAY) mark_fresh(parameter, k);
    else if (status == GB_OK) parameter->copies[k].version = gb_tensor_version(parameter) - 1;
  }
  if (status == GB_OK) slab->copy[k] = vector;
  else gb_tensor_release(vector); /* the places made so far hold the memory, and serve as copies of their own */
  return status;
}

/* Allocate copy k. Its values are still to be written, unless the whole slab was filled. */
static gb_status open_copy(gb_context *context, gb_tensor *owner, int k, gb_dtype dtype) {
  gb_weight_copy *copy = &owner->copies[k];
  if (!owner->slab) GB_TRY(gb_tensor_new_like(owner, dtype, GB_MEM_WEIGHT_COPIES, &copy->tensor));
  else if (!owner->slab->copy[k]) return open_copies(context, owner->slab, k, dtype);
  else GB_TRY(gb_slab_place(owner->slab->copy[k], owner->slab->segments[owner->segment].offset, owner, &copy->tensor));
  copy->version = gb_tensor_version(owner) - 1;
  return GB_OK;
}

gb_status gb_weight_get(gb_context *context, gb_tensor *t, gb_dtype dtype, gb_tensor **out) {
  gb_tensor *owner = owner_of(t);
  int k = gb_copy_slot(dtype);
  gb_weight_copy *copy = &owner->copies[k];
  GB_TRY(gb_check_loan(t)); /* a copy of what was taken back is not to be used either */
  if (owner->storage->away == GB_AWAY && !(copy->tensor && copy->version == gb_tensor_version(owner)))
    return gb_touch_values(owner);
  GB_TRY(gb_capture_note_weight(context, owner, dtype));
  if (!copy->tensor) GB_TRY(open_copy(context, owner, k, dtype));
  if (copy->version != gb_tensor_version(owner)) {
    gb_away before = owner->storage->away; /* a copy of it is no reading */
    gb_status status = gb_weight_copy_values(copy->tensor, owner);
    owner->storage->away = before;
    GB_TRY(status);
    mark_fresh(owner, k);
  }
  size_t dims = sizeof *t->shape * (size_t)t->ndim;
  bool whole = t->ndim == owner->ndim && t->offset == owner->offset && !memcmp(t->shape, owner->shape, dims) &&
               !memcmp(t->stride, owner->stride, dims);
  if (!whole)
    return gb_tensor_view(copy->tensor, t->ndim, t->shape, t->stride, copy->tensor->offset + t->offset - owner->offset,
                          out);
  gb_tensor_retain(*out = copy->tensor);
  return GB_OK;
}

void gb_weight_drop(gb_tensor *parameter) {
  for (int k = 0; k < GB_COPIES; k++) gb_drop(&parameter->copies[k].tensor);
}
