/* tensor/tensor.c - the life of storages and tensors.
 *
 * A storage holds a reference to its context; the context's memory goes with the last storage. Releasing is allowed
 * from any thread, so counts are atomic and the pool has a lock. Nothing here runs an op. */
#include "tensor/tensor.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "tensor/context.h"

/* {==== Storage ==== */

/* A storage whose fields are set but which has no memory yet. */
static gb_storage *storage_new(gb_context *context, gb_device device, size_t bytes, gb_memory_category category) {
  gb_storage *s = gb_cell_new(&context->cells, sizeof *s);
  if (!s) return NULL;
  *s = (gb_storage){ .refs = 1, .context = context, .device = device, .bytes = bytes, .category = category,
                     .born = atomic_load_explicit(&context->parts, memory_order_relaxed) };
  gb_context_retain(context);
  return s;
}

void gb_storage_retain(gb_storage *storage) { atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed); }

void gb_storage_release(gb_storage *storage) {
  if (!storage || !gb_refs_drop(&storage->refs)) return;
  gb_context *context = storage->context;
  if (storage->block) gb_pool_free(gb_context_pool(context, storage->device), storage->block);
  if (storage->release) storage->release(storage->user);
  gb_storage_release(storage->slab);
  gb_cell_free(&context->cells, storage, sizeof *storage);
  gb_context_release(context);
}

/* Bytes that backward waits for count as saved, whatever else they were; parameters and slabs stay what they are. */
static void storage_count_as(gb_storage *storage, gb_memory_category category) {
  if (storage->block && storage->category == GB_MEM_OTHER)
    gb_pool_set_category(gb_context_pool(storage->context, storage->device), storage->block, category);
}

void gb_storage_hold(gb_storage *storage) {
  gb_storage_retain(storage);
  if (atomic_fetch_add(&storage->saved, 1) == 0) storage_count_as(storage, GB_MEM_SAVED);
}

void gb_storage_drop(gb_storage *storage) {
  if (atomic_fetch_sub(&storage->saved, 1) == 1) storage_count_as(storage, GB_MEM_OTHER);
  gb_storage_release(storage);
}

/* ====} */

/* {==== Tensors ==== */

void gb_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    strides[i] = stride;
    stride = gb_size_times(stride, shape[i] > 0 ? shape[i] : 1);
  }
}

/* What describes a tensor and its storage, towards the limit: views and small tensors are mostly that. */
#define DESCRIPTION (sizeof(gb_tensor) + sizeof(gb_storage))

/* End a tensor that has no storage. */
static void tensor_discard(gb_context *context, gb_tensor *t) {
  gb_context_uncount(context, DESCRIPTION);
  gb_cell_free(&context->cells, t, sizeof *t);
}

/* A tensor over nothing: its storage is still to come. strides NULL: contiguous. NULL sets the error text. */
static gb_tensor *tensor_shell(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, int64_t offset) {
  if (!gb_context_count(context, DESCRIPTION)) return NULL;
  gb_tensor *t = gb_cell_new(&context->cells, sizeof *t);
  if (!t) {
    gb_context_uncount(context, DESCRIPTION);
    gb_fail_memory(context, sizeof *t);
    return NULL;
  }
  *t = (gb_tensor){ .refs = 1, .dtype = (int8_t)dtype, .ndim = (int8_t)ndim, .offset = offset, .numel = 1 };
  for (int i = 0; i < ndim; i++) t->numel *= t->shape[i] = shape[i];
  if (strides) memcpy(t->stride, strides, (size_t)ndim * sizeof *strides);
  else gb_contiguous_strides(ndim, shape, t->stride);
  return t;
}

gb_status gb_shape_bytes(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, size_t *bytes) {
  if (ndim < 0 || ndim > GB_MAX_NDIM)
    return gb_fail(context, GB_ESHAPE, "a tensor has at most %d dimensions, %d were asked for", GB_MAX_NDIM, ndim);
  if (ndim && !shape) return gb_refuse(context, "the shape is NULL, and there are dimensions");
  if (dtype < 0 || dtype >= GB_DTYPE_COUNT) return gb_fail(context, GB_EDTYPE, "unknown dtype %d", (int)dtype);
  int64_t numel = 1;
  bool empty = false, overflow = false;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] < 0)
      return gb_fail(context, GB_ESHAPE, "dimension %d has the negative size %lld", i + 1, (long long)shape[i]);
    empty |= shape[i] == 0;
    overflow |= __builtin_mul_overflow(numel, shape[i] > 0 ? shape[i] : 1, &numel);
  }
  if (overflow || numel > GB_MAX_NUMEL)
    return gb_fail(context, GB_ESHAPE, "the shape has more elements than memory can hold");
  *bytes = empty ? 0 : (size_t)numel * gb_dtype_bytes(dtype);
  return GB_OK;
}

gb_status gb_tensor_new_as(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                           gb_device device,
                           gb_memory_category category, gb_tensor **out) {
  size_t bytes;
  GB_TRY(gb_shape_bytes(context, dtype, ndim, shape, &bytes));
  if (!gb_is_device(device) || !gb_context_pool(context, device))
    return gb_fail(context, GB_EDEVICE, "the device is not available: no backend of type %d is loaded", device.type);
  gb_tensor *t = tensor_shell(context, dtype, ndim, shape, strides, 0);
  if (!t) return context->error_code;
  t->storage = storage_new(context, device, bytes, category);
  if (t->storage) t->storage->block = gb_context_alloc(context, device, bytes, category);
  if (!t->storage || !t->storage->block) {
    if (!t->storage) gb_fail_memory(context, sizeof(gb_storage));
    gb_status status = context->error_code;
    gb_storage_release(t->storage);
    tensor_discard(context, t);
    return status;
  }
  t->storage->data = gb_block_data(t->storage->block);
  *out = t;
  return GB_OK;
}

gb_status gb_tensor_new(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, gb_device device,
                        gb_tensor **out) {
  if (!context || !out) return gb_refuse(context, "tensor_new: out is NULL");
  return gb_tensor_new_as(context, dtype, ndim, shape, NULL, device, GB_MEM_OTHER, out);
}

gb_status gb_tensor_new_like(const gb_tensor *like, gb_dtype dtype, gb_memory_category category, gb_tensor **out) {
  return gb_tensor_new_as(like->storage->context, dtype, like->ndim, like->shape,
                          gb_is_dense(like) ? like->stride : NULL, like->storage->device,
                          category, out);
}

gb_status gb_tensor_over(gb_context *context, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                         void (*release)(void *), void *user,
                         gb_tensor **out) {
  size_t bytes;
  GB_TRY(gb_shape_bytes(context, dtype, ndim, shape, &bytes));
  gb_tensor *t = tensor_shell(context, dtype, ndim, shape, NULL, 0);
  if (!t) return context->error_code;
  t->storage = storage_new(context, (gb_device){ GB_CPU, 0 }, bytes, GB_MEM_OTHER);
  if (!t->storage) { tensor_discard(context, t); return gb_fail_memory(context, sizeof(gb_storage)); }
  t->storage->data = data;
  t->storage->release = release;
  t->storage->user = user;
  *out = t;
  return GB_OK;
}

gb_status gb_tensor_view(gb_tensor *of, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset,
                         gb_tensor **out) {
  int64_t numel = 1; /* an expanded view may count more elements than memory holds */
  bool overflow = false;
  for (int i = 0; i < ndim; i++) overflow |= __builtin_mul_overflow(numel, shape[i] > 0 ? shape[i] : 1, &numel);
  if (overflow || numel > GB_MAX_NUMEL)
    return gb_fail(of->storage->context, GB_ESHAPE, "the shape has more elements than can be counted");
  GB_TRY(gb_context_expect(of->storage->context, (uint64_t)numel));
  gb_tensor *t = tensor_shell(of->storage->context, (gb_dtype)of->dtype, ndim, shape, strides, offset);
  if (!t) return of->storage->context->error_code;
  t->storage = of->storage;
  gb_storage_retain(t->storage);
  const gb_tensor *base = t->base = gb_tensor_root(of);
  gb_tensor_retain(t->base);
  if (base->node) t->view_version = base->storage->context->nodes->history(base->node);
  *out = t;
  return GB_OK;
}

gb_status gb_tensor_detach(gb_tensor *of, gb_tensor **out) {
  gb_tensor *t = tensor_shell(of->storage->context, (gb_dtype)of->dtype, of->ndim, of->shape, of->stride, of->offset);
  if (!t) return of->storage->context->error_code;
  t->storage = of->storage;
  t->wrapped = of->wrapped;
  gb_storage_retain(t->storage);
  gb_tensor_copy_tag(t, of);
  *out = t;
  return GB_OK;
}

gb_status gb_tensor_set_data(gb_tensor *tensor, gb_tensor *data) {
  gb_context *context = tensor->storage->context;
  if (tensor->slab)
    return gb_fail(context, GB_ESTATE, "the parameter belongs to an optimizer; convert or move the model before the "
                                       "optimizer is made");
  if (tensor->node || tensor->base)
    return gb_fail(context, GB_EAUTOGRAD, "only a leaf that is no view can be converted or moved in place");
  if (tensor->ndim != data->ndim || memcmp(tensor->shape, data->shape, sizeof *data->shape * (size_t)data->ndim))
    return gb_fail(context, GB_ESHAPE, "the data has another shape than the tensor");
  gb_storage *old = tensor->storage;
  gb_storage_retain(data->storage);
  /* so that no saved weight passes for current */
  if (data->storage->version <= old->version) data->storage->version = old->version + 1;
  tensor->storage = data->storage;
  tensor->dtype = data->dtype;
  tensor->offset = data->offset;
  memcpy(tensor->stride, data->stride, sizeof data->stride);
  for (int i = 0; i < GB_COPIES; i++) {
    gb_tensor_release(tensor->copies[i].tensor);
    tensor->copies[i].tensor = NULL;
  }
  gb_tensor_put_grad(tensor, NULL);
  gb_storage_release(old);
  return GB_OK;
}

/* A number of the calling language as a 0-d tensor on the CPU. Its value lies in its storage, so that it costs the pool
 * nothing. */
static gb_status wrap(gb_context *context, gb_dtype dtype, gb_tensor **out) {
  GB_TRY(gb_tensor_over(context, NULL, dtype, 0, NULL, NULL, NULL, out));
  (*out)->storage->data = &(*out)->storage->number;
  (*out)->wrapped = true;
  return GB_OK;
}

gb_status gb_tensor_wrap_number(gb_context *context, double number, gb_tensor **out) {
  GB_TRY(wrap(context, GB_FLOAT64, out));
  (*out)->storage->number = number;
  return GB_OK;
}

gb_status gb_tensor_wrap_integer(gb_context *context, int64_t integer, gb_tensor **out) {
  GB_TRY(wrap(context, GB_INT64, out));
  (*out)->storage->integer = integer;
  return GB_OK;
}

void gb_tensor_retain(gb_tensor *tensor) {
  if (tensor) atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
}

void gb_hook_free(gb_context *context, gb_hook *hook) {
  if (hook->release) hook->release(hook->user);
  free(hook);
  gb_context_uncount(context, GB_HOOK_BYTES);
}

void gb_hooks_free(gb_context *context, gb_hook *hook) {
  while (hook) {
    gb_hook *next = hook->next;
    gb_hook_free(context, hook);
    hook = next;
  }
}

/* Out of the context's list; the lock is held. */
static void untie(gb_context *context, gb_tensor *t) {
  gb_tensor *before = t->tied.before, *after = t->tied.after;
  if (before) before->tied.after = after;
  else context->tied = after;
  if (after) after->tied.before = before;
  t->is_tied = false;
}

void gb_tensor_tie_new(gb_tensor *tensor) {
  gb_context *context = tensor->storage->context;
  gb_lock(&context->tying);
  tensor->tied.before = NULL;
  tensor->tied.after = context->tied;
  if (context->tied) context->tied->tied.before = tensor;
  context->tied = tensor;
  tensor->is_tied = true;
  gb_unlock(&context->tying);
}

void gb_tensor_put_grad(gb_tensor *tensor, gb_tensor *grad) {
  gb_tensor *old = tensor->grad;
  if (grad) gb_tensor_tie(tensor);
  tensor->grad = grad;
  gb_tensor_release(old);
}

/* No node may put a gradient into a tensor that goes, or that leaves its graph. */
static void stop_retaining(gb_tensor *t) {
  if (t->node && t->retain_grad) t->storage->context->nodes->leave(t);
  t->retain_grad = false;
}

static void release_node(gb_context *context, struct gb_node *node) {
  if (node) context->nodes->release(node);
}

/* End a tensor that nobody holds. What it holds ends with it, at most a base deep: whatever may go on from there has a
 * grave of its own. */
static void tensor_end(gb_tensor *tensor) {
  for (int i = 0; i < GB_COPIES; i++)
    if (tensor->copies[i].tensor) gb_tensor_release(tensor->copies[i].tensor);
  if (tensor->grad) gb_tensor_release(tensor->grad);
  if (tensor->base) gb_tensor_release(tensor->base);
  if (tensor->hooks) gb_hooks_free(tensor->storage->context, tensor->hooks);
  release_node(tensor->storage->context, tensor->node);
  gb_storage *storage = tensor->storage;
  tensor_discard(storage->context, tensor);
  gb_storage_release(storage); /* last: the context may go with it */
}

static void tensor_bury(gb_grave *grave) { tensor_end((gb_tensor *)((char *)grave - offsetof(gb_tensor, grave))); }

/* Let go of one reference to a tensor of the list: was it the last? That one goes under the lock, with the tensor's
 * place in the list, so that whoever finds a tensor there may retain it. */
static __attribute__((noinline)) bool drop_tied(gb_tensor *tensor) {
  gb_context *context = tensor->storage->context;
  int32_t refs = atomic_load_explicit(&tensor->refs, memory_order_relaxed);
  while (refs > 1)
    if (atomic_compare_exchange_weak_explicit(&tensor->refs, &refs, refs - 1, memory_order_acq_rel,
                                              memory_order_relaxed)) return false;
  gb_lock(&context->tying);
  bool last = atomic_fetch_sub(&tensor->refs, 1) == 1;
  if (last && tensor->is_tied) untie(context, tensor);
  gb_unlock(&context->tying);
  return last;
}

/* End a tensor, by way of a grave where a gradient goes with it. */
static __attribute__((noinline)) void let_go(gb_tensor *tensor) {
  gb_context *context = tensor->storage->context;
  stop_retaining(tensor);
  if (!tensor->grad) {
    tensor_end(tensor);
    return;
  }
  tensor->grave.bury = tensor_bury;
  gb_context_retain(context); /* which its storage keeps only until it is buried */
  gb_bury(context, &tensor->grave);
  gb_context_release(context);
}

/* Most calls find another reference, and are meant to cost no more than to see that. */
void gb_tensor_release(gb_tensor *tensor) {
  if (tensor && (tensor->is_tied ? drop_tied(tensor) : gb_refs_drop(&tensor->refs))) let_go(tensor);
}

/* The next tensor of the list, out of it and with one reference more. */
static gb_tensor *next_tied(gb_context *context) {
  gb_lock(&context->tying);
  gb_tensor *t = context->tied;
  if (t) {
    gb_tensor_retain(t);
    untie(context, t);
  }
  gb_unlock(&context->tying);
  return t;
}

void gb_context_untie(gb_context *context) {
  for (gb_tensor *t; (t = next_tied(context)); gb_tensor_release(t)) {
    struct gb_node *node = t->node;
    gb_hook *hooks = t->hooks;
    stop_retaining(t);
    t->node = NULL;
    t->hooks = NULL;
    for (gb_hook_turn *turn = context->turn; turn; turn = turn->outer)
      if (turn->list == &t->hooks) turn->next = NULL;
    gb_hooks_free(context, hooks);
    release_node(context, node);
    gb_tensor_put_grad(t, NULL);
  }
}

/* ====} */

/* {==== Burials ==== */

static void leave_dead(gb_context *context, gb_grave *grave) {
  grave->next = atomic_load(&context->dead);
  while (!atomic_compare_exchange_weak(&context->dead, &grave->next, grave)) {}
}

/* Bury what was left, and what is left meanwhile by another thread or by this, as far as it has been left now. */
static void bury_dead(gb_context *context) {
  for (gb_grave *next = atomic_exchange(&context->dead, NULL), *after; next; next = after) {
    after = next->next;
    next->bury(next);
  }
}

void gb_bury(gb_context *context, gb_grave *grave) {
  bool burying = !atomic_exchange(&context->burying, true);
  if (burying) grave->bury(grave);
  else leave_dead(context, grave); /* whoever buries already, further up the stack or on another thread, takes it; */
  /* asked again, since it may just have looked */
  while (burying || (atomic_load(&context->dead) && !atomic_exchange(&context->burying, true))) {
    if (atomic_load(&context->dead)) bury_dead(context);
    atomic_store(&context->burying, false);
    burying = false;
  }
}

/* ====} */

/* {==== What a tensor is ==== */

gb_context *gb_tensor_context(const gb_tensor *tensor) { return tensor ? tensor->storage->context : NULL; }
gb_dtype gb_tensor_dtype(const gb_tensor *tensor) { return tensor ? (gb_dtype)tensor->dtype : GB_DTYPE_NONE; }
gb_device gb_tensor_device(const gb_tensor *tensor) { return tensor ? tensor->storage->device
                                                      : (gb_device){ GB_CPU, 0 }; }
int gb_tensor_ndim(const gb_tensor *tensor) { return tensor ? tensor->ndim : 0; }
const int64_t *gb_tensor_shape(const gb_tensor *tensor) { return tensor ? tensor->shape : NULL; }
const int64_t *gb_tensor_strides(const gb_tensor *tensor) { return tensor ? tensor->stride : NULL; }
int64_t gb_tensor_numel(const gb_tensor *tensor) { return tensor ? tensor->numel : 0; }

int64_t gb_tensor_size(const gb_tensor *tensor, int dim) {
  int ndim = gb_tensor_ndim(tensor);
  return dim < -ndim || dim >= ndim ? 0 : tensor->shape[dim < 0 ? dim + ndim : dim];
}

bool gb_tensor_is_contiguous(const gb_tensor *tensor) { return tensor && gb_is_contiguous(tensor); }

void *gb_tensor_data(const gb_tensor *tensor) {
  if (!tensor || !tensor->storage->data || gb_expose_values(tensor) != GB_OK) return NULL; /* revoked, empty, away */
  return gb_data(tensor);
}

bool gb_tensor_requires_grad(const gb_tensor *tensor) { return tensor && gb_tensor_in_graph(tensor); }

bool gb_is_contiguous(const gb_tensor *t) {
  int64_t expected = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] != 1 && t->stride[i] != expected) return false;
    expected *= t->shape[i];
  }
  return true;
}

bool gb_is_dense(const gb_tensor *t) {
  if (gb_is_contiguous(t)) return true;
  int order[GB_MAX_NDIM], n = 0;
  for (int i = 0; i < t->ndim; i++) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] == 1) continue;
    int at = n++;
    for (; at > 0 && t->stride[order[at - 1]] > t->stride[i]; at--) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t expected = 1;
  for (int i = 0; i < n; i++) {
    if (t->stride[order[i]] != expected) return false;
    expected *= t->shape[order[i]];
  }
  return true;
}

bool gb_is_channels_last(const gb_tensor *t) {
  if (t->ndim != 4) return false;
  static const int order[4] = { 1, 3, 2, 0 };
  int64_t expected = 1;
  for (int i = 0; i < 4; i++) {
    int d = order[i];
    if (t->shape[d] != 1 && t->stride[d] != expected) return false;
    expected *= t->shape[d];
  }
  return true;
}

/* ====} */
