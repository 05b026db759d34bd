/* step/split.c - see split.h. */
#include "step/split.h"

#include <string.h>

#include "step/optimizer.h"
#include "step/weights.h"

enum { ALIGNMENT = 64 };              /* where segments begin too */

int64_t gb_split_first(int64_t elements, int size, int rank) {
  if (rank >= size) return elements;
  return (int64_t)((__int128)elements * rank / size) / ALIGNMENT * ALIGNMENT;
}

/* So many elements of the vector, as a vector. */
static gb_status run_of(gb_tensor *vector, int64_t first, int64_t count, gb_tensor **out) {
  const gb_tensor like = { .ndim = 1, .shape = { count }, .stride = { 1 } };
  return gb_slab_place(vector, first, &like, out);
}

/* A copy of a run of the vector, in memory of its own. */
static gb_status copy_run(gb_tensor *vector, int64_t first, int64_t count, gb_tensor **out) {
  gb_tensor *run = NULL;
  GB_TRY(run_of(vector, first, count, &run));
  gb_status status = gb_tensor_new_as(gb_tensor_context(vector), (gb_dtype)vector->dtype, 1, &count, NULL,
                                      vector->storage->device, GB_MEM_OPTIMIZER, out);
  if (status == GB_OK) status = gb_weight_copy_values(*out, run);
  gb_tensor_release(run);
  return status;
}

/* {==== parts ==== */

void gb_part_free(gb_slab *part) {
  if (!part) return;
  gb_tensor_release(part->parameters);
  gb_tensor_release(part->gradients);
  gb_tensor_release(part->masters);
  for (int i = 0; i < GB_OPTIM_STATES; i++) gb_tensor_release(part->state[i]);
  gb_counted_free(part->segments);
  gb_counted_free(part);
}

/* The segments that lie in the run, from its first element on. */
static void cut_segments(const gb_slab *slab, int64_t first, gb_slab *part) {
  int64_t end = first + part->elements;
  for (int64_t s = 0; s < slab->count; s++) {
    gb_segment cut = slab->segments[s];
    int64_t from = cut.offset > first ? cut.offset : first;
    int64_t to = cut.offset + cut.size < end ? cut.offset + cut.size : end;
    if (from >= to) continue;
    cut.offset = from - first;
    cut.size = to - from;
    part->segments[part->count++] = cut;
  }
}

static gb_status make_part(gb_context *context, const gb_slab *slab, const gb_split *split, gb_slab **out) {
  int64_t first = gb_split_first(slab->elements, split->size, split->rank);
  int64_t count = gb_split_first(slab->elements, split->size, split->rank + 1) - first;
  gb_slab *part = gb_counted_alloc(context, sizeof *part);
  if (!part) return GB_EMEMORY;
  *out = part; /* freed by the caller on failure */
  part->dtype = slab->dtype;
  part->elements = count;
  part->segments = gb_counted_alloc(context, (size_t)slab->count * sizeof *part->segments);
  if (!part->segments) return GB_EMEMORY;
  cut_segments(slab, first, part);
  GB_TRY(run_of(slab->parameters, first, count, &part->parameters));
  GB_TRY(run_of(slab->gradients, first, count, &part->gradients));
  if (slab->masters) GB_TRY(copy_run(slab->masters, first, count, &part->masters));
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (slab->state[i]) GB_TRY(copy_run(slab->state[i], first, count, &part->state[i]));
  return GB_OK;
}

void gb_part_bring(gb_owned_slab *owned) {
  for (int64_t s = 0; s < owned->part->count; s++) {
    gb_segment *mine = &owned->part->segments[s];
    const gb_segment *whole = &owned->slab.segments[mine->place];
    mine->has_grad = whole->has_grad;
    mine->steps = whole->steps;
  }
}

/* ====} */

/* {==== splitting and joining ==== */

/* Every slab, one after another; NULL after the last. */
static gb_owned_slab *next_slab(const gb_optimizer *optimizer, int *group, int *i) {
  while (*group < optimizer->n_groups && *i >= optimizer->groups[*group]->n_slabs) ++*group, *i = 0;
  return *group < optimizer->n_groups ? optimizer->groups[*group]->slabs[(*i)++] : NULL;
}

static gb_status check(const gb_optimizer *optimizer) {
  const gb_optimizer_info *info = gb_optimizer_info_of(optimizer->kind);
  if (info->shaped || info->measured)
    return gb_fail(optimizer->context, GB_EUNSUPPORTED, "Sharded: %s %s, and a process would have only a part of some; "
                                                        "use it unsharded, or an optimizer that steps each element by "
                                                        "itself (SGD, Adam, AdamW, Lion, ...)", info->name,
                   info->shaped ? "works on whole matrices" : "measures the norm of whole parameters");
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));)
    if (owned->slab.gradients->storage->device.type != GB_CPU)
      return gb_fail(optimizer->context, GB_EUNSUPPORTED, "Sharded: the parameters are on a GPU, whose processes do "
                                                          "not exchange as yet; move the model to 'cpu'");
  return GB_OK;
}

static void drop_parts(const gb_optimizer *optimizer) {
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) {
    gb_part_free(owned->part);
    owned->part = NULL;
  }
}

gb_status gb_optimizer_split(gb_optimizer *optimizer, const gb_split *split) {
  int group = 0, i = 0;
  gb_status status = check(optimizer);
  if (split->size == 1) return status;
  for (gb_owned_slab *owned; status == GB_OK && (owned = next_slab(optimizer, &group, &i));) {
    status = gb_slab_sync_masters(owned);
    if (status == GB_OK) status = make_part(optimizer->context, &owned->slab, split, &owned->part);
  }
  if (status != GB_OK) return drop_parts(optimizer), status;
  group = i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) {
    gb_drop(&owned->slab.masters);
    for (int k = 0; k < GB_OPTIM_STATES; k++) gb_drop(&owned->slab.state[k]);
  }
  optimizer->split = *split;
  return GB_OK;
}

/* A whole vector of what every process has a part of. */
static gb_status join_vector(gb_optimizer *optimizer, const gb_slab *slab, gb_tensor *mine, gb_tensor **out) {
  const gb_split *split = &optimizer->split;
  gb_tensor *run = NULL;
  GB_TRY(gb_tensor_new_as(optimizer->context, (gb_dtype)mine->dtype, 1, &slab->elements, NULL, mine->storage->device,
                          GB_MEM_OPTIMIZER, out));
  GB_TRY(run_of(*out, gb_split_first(slab->elements, split->size, split->rank), mine->numel, &run));
  gb_status status = gb_weight_copy_values(run, mine);
  gb_tensor_release(run);
  return status == GB_OK ? split->gather(optimizer->context, split, *out) : status;
}

static gb_status join_slab(gb_optimizer *optimizer, gb_owned_slab *owned) {
  gb_slab *slab = &owned->slab;
  if (slab->dtype != GB_FLOAT32 && owned->part->masters) {
    GB_TRY(gb_slab_sync_masters(owned));
    GB_TRY(join_vector(optimizer, slab, owned->part->masters, &slab->masters));
  }
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (owned->part->state[i]) GB_TRY(join_vector(optimizer, slab, owned->part->state[i], &slab->state[i]));
  return GB_OK;
}

gb_status gb_optimizer_join(gb_optimizer *optimizer) {
  int group = 0, i = 0;
  gb_status status = GB_OK;
  if (!gb_optimizer_is_split(optimizer)) return GB_OK;
  for (gb_owned_slab *owned; status == GB_OK && (owned = next_slab(optimizer, &group, &i));)
    if (owned->part) status = join_slab(optimizer, owned);
  if (status == GB_OK) {
    drop_parts(optimizer);
    optimizer->split = (gb_split){ 0 };
    return GB_OK;
  }
  group = i = 0; /* as it was */
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) {
    if (!owned->part) continue;
    gb_drop(&owned->slab.masters);
    for (int k = 0; k < GB_OPTIM_STATES; k++) gb_drop(&owned->slab.state[k]);
  }
  return status;
}

bool gb_optimizer_is_split(const gb_optimizer *optimizer) { return optimizer->split.gather != NULL; }

/* ====} */
