/* step/split.c - see split.h. */
#include "step/split.h"

#include <stddef.h>
#include <string.h>

#include "base/measures.h"
#include "step/optimizer.h"
#include "step/room.h"
#include "step/weights.h"

#define BLOCK ((int64_t)1 << 20)      /* elements; more where there are more ranks than chunks in it */

enum { SEEN = 1 };                    /* after so many steps it is known how weights are read */

static int64_t block_of(int size) {
  int64_t least = (int64_t)size * GB_SPLIT_ALIGNMENT;
  return least > BLOCK ? least : BLOCK;
}

int64_t gb_split_blocks(int64_t elements, int size) {
  int64_t block = block_of(size);
  return (elements + block - 1) / block;
}

int64_t gb_split_first(int64_t elements, int size, int64_t block, int rank) {
  int64_t first = block * block_of(size), count = elements - first < block_of(size) ? elements - first : block_of(size);
  int64_t chunks = (count + GB_SPLIT_ALIGNMENT - 1) / GB_SPLIT_ALIGNMENT;
  int64_t at = chunks * rank / size * GB_SPLIT_ALIGNMENT;
  return first + (at < count ? at : count);
}

int gb_split_owner(int64_t elements, int size, int64_t element, int64_t *end) {
  int64_t block = element / block_of(size);
  int low = 0, high = size - 1; /* the last whose run begins at or before the element */
  while (low < high) {
    int middle = low + (high - low + 1) / 2;
    if (gb_split_first(elements, size, block, middle) <= element) low = middle;
    else high = middle - 1;
  }
  *end = gb_split_first(elements, size, block, low + 1);
  return low;
}

/* The same of a slab whose parts may be whole parameters. */
static int64_t first_of(const gb_owned_slab *owned, int size, int64_t block, int rank) {
  return owned->bounds ? owned->bounds[rank] : gb_split_first(owned->slab.elements, size, block, rank);
}

static int64_t blocks_of(const gb_owned_slab *owned, int size) {
  return owned->bounds ? 1 : gb_split_blocks(owned->slab.elements, size);
}

static int owner_of(const gb_owned_slab *owned, int size, int64_t element, int64_t *end) {
  if (!owned->bounds) return gb_split_owner(owned->slab.elements, size, element, end);
  int rank = 0;
  while (owned->bounds[rank + 1] <= element) rank++;
  *end = owned->bounds[rank + 1];
  return rank;
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

static void free_part(gb_slab *part) {
  gb_tensor_release(part->parameters);
  gb_tensor_release(part->gradients);
  gb_tensor_release(part->masters);
  for (int k = 0; k < GB_COPIES; k++) gb_tensor_release(part->copy[k]);
  for (int i = 0; i < GB_OPTIM_STATES; i++) gb_tensor_release(part->state[i]);
  gb_tensor_release(part->factors);
  gb_tensor_release(part->measures);
  gb_tensor_release(part->counters);
  gb_counted_free(part->segments);
}

void gb_split_parts_free(gb_owned_slab *owned) {
  while (owned->n_parts) free_part(&owned->parts[--owned->n_parts]);
  gb_counted_free(owned->parts);
  gb_counted_free(owned->bounds);
  gb_counted_free(owned->joined);
  owned->parts = NULL;
  owned->bounds = NULL;
  owned->joined = NULL;
}

/* How many segments lie in a run. */
static int64_t count_segments(const gb_slab *slab, int64_t first, int64_t end) {
  int64_t count = 0;
  for (int64_t s = 0; s < slab->count; s++)
    count += slab->segments[s].offset < end && slab->segments[s].offset + slab->segments[s].size > first;
  return count;
}

/* Where the factors of the segments from this element on begin. */
static int64_t first_factor(const gb_slab *slab, int64_t element) {
  for (int64_t s = 0; s < slab->count; s++)
    if (slab->segments[s].offset >= element) return slab->segments[s].factors;
  return slab->factors->numel;
}

/* The segments that lie in the run, from its first element on. */
static void cut_segments(const gb_slab *slab, int64_t first, gb_slab *part) {
  int64_t factors = slab->factors ? first_factor(slab, first) : 0;
  int64_t end = first + part->elements;
  for (int64_t s = 0; s < slab->count; s++) {
    gb_segment cut = slab->segments[s];
    int64_t from = cut.offset > first ? cut.offset : first;
    int64_t to = cut.offset + cut.size < end ? cut.offset + cut.size : end;
    if (from >= to) continue;
    cut.offset = from - first;
    cut.size = to - from;
    cut.factors -= factors;
    part->segments[part->count++] = cut;
  }
}

/* Does a step write this copy of what it steps? */
static bool is_narrow_slot(const gb_owned_slab *owned, int k) {
  return owned->watched > SEEN && k == owned->narrow_slot && owned->slab.copy[k];
}

static gb_status make_part(gb_context *context, const gb_owned_slab *owned, int64_t first, int64_t count,
                           gb_slab *part) {
  const gb_slab *slab = &owned->slab;
  part->dtype = slab->dtype;
  part->elements = count;
  size_t most = (size_t)count_segments(slab, first, first + count) + 1;
  part->segments = gb_counted_alloc(context, most * sizeof *part->segments);
  if (!part->segments) return GB_EMEMORY;
  cut_segments(slab, first, part);
  GB_TRY(run_of(slab->parameters, first, count, &part->parameters));
  GB_TRY(run_of(slab->gradients, first, count, &part->gradients));
  if (slab->masters) GB_TRY(copy_run(slab->masters, first, count, &part->masters));
  for (int k = 0; k < GB_COPIES; k++)
    if (is_narrow_slot(owned, k)) GB_TRY(run_of(slab->copy[k], first, count, &part->copy[k]));
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (slab->state[i]) GB_TRY(copy_run(slab->state[i], first, count, &part->state[i]));
  if (slab->counters) GB_TRY(copy_run(slab->counters, 0, slab->counters->numel, &part->counters));
  if (!slab->factors) return GB_OK;
  int64_t from = first_factor(slab, first);
  return copy_run(slab->factors, from, first_factor(slab, first + count) - from, &part->factors);
}

/* What a step of a parameter costs: about the products of matrices that make one orthogonal. */
static double cost_of(const gb_segment *segment) {
  const gb_tensor *t = segment->parameter;
  int64_t columns = t->ndim > 1 && t->numel ? t->shape[t->ndim - 1] : 1, rows = t->numel / columns;
  return (double)t->numel * (double)(rows < columns ? rows : columns);
}

/* Give each process parameters that follow each other, by what they cost. */
static gb_status find_bounds(gb_context *context, gb_owned_slab *owned, const gb_split *split) {
  const gb_slab *slab = &owned->slab;
  double total = 0, sum = 0;
  owned->bounds = gb_counted_alloc(context, (size_t)(split->size + 1) * sizeof *owned->bounds);
  if (!owned->bounds) return context->error_code;
  for (int64_t s = 0; s < slab->count; s++) total += cost_of(&slab->segments[s]);
  int rank = 0; /* that of the segments so far */
  for (int64_t s = 0; s < slab->count; s++) {
    double cost = cost_of(&slab->segments[s]), middle = (sum + cost / 2) * split->size;
    while (total > 0 && rank + 1 < split->size && middle >= total * (rank + 1))
      owned->bounds[++rank] = slab->segments[s].offset;
    sum += cost;
  }
  while (rank < split->size) owned->bounds[++rank] = slab->elements;
  return GB_OK;
}

/* A part for each block, which may have no elements. */
static gb_status make_parts(gb_context *context, gb_owned_slab *owned, const gb_split *split, bool shaped) {
  if (shaped) GB_TRY(find_bounds(context, owned, split));
  int64_t blocks = blocks_of(owned, split->size);
  owned->parts = gb_counted_alloc(context, (size_t)(blocks + 1) * sizeof *owned->parts);
  if (!owned->parts) return GB_EMEMORY;
  while (owned->n_parts < blocks) {
    int64_t b = owned->n_parts++, first = first_of(owned, split->size, b, split->rank);
    GB_TRY(make_part(context, owned, first, first_of(owned, split->size, b, split->rank + 1) - first,
                     &owned->parts[b]));
  }
  return GB_OK;
}

gb_status gb_parts_bring(gb_owned_slab *owned) {
  for (int64_t b = 0; b < owned->n_parts; b++) {
    gb_slab *part = &owned->parts[b];
    for (int64_t s = 0; s < part->count; s++) {
      gb_segment *mine = &part->segments[s];
      const gb_segment *whole = &owned->slab.segments[mine->place];
      mine->has_grad = whole->has_grad;
      mine->steps = whole->steps;
    }
    if (part->counters) GB_TRY(gb_weight_copy_values(part->counters, owned->slab.counters));
  }
  return GB_OK;
}

gb_status gb_parts_count(gb_owned_slab *owned) {
  gb_slab *slab = &owned->slab;
  for (int64_t s = 0; s < slab->count; s++) slab->segments[s].steps += slab->segments[s].has_grad;
  if (!slab->counters) return GB_OK;
  gb_context *context = owned->owner->context;
  size_t bytes = (size_t)slab->counters->numel * sizeof(int64_t);
  int64_t *counts = gb_counted_alloc(context, bytes);
  if (!counts) return context->error_code;
  gb_status status = gb_tensor_read(slab->counters, counts, bytes);
  for (int64_t s = 0; s < slab->count; s++) counts[slab->segments[s].place] += slab->segments[s].has_grad;
  if (status == GB_OK) status = gb_tensor_write(slab->counters, counts, bytes);
  gb_counted_free(counts);
  return status;
}

/* ====} */

/* Every slab, one after another; NULL after the last. */
static gb_owned_slab *next_slab(const gb_optimizer *optimizer, int *group, int *i) {
  while (*group < optimizer->n_groups && *i >= optimizer->groups[*group]->n_slabs) ++*group, *i = 0;
  return *group < optimizer->n_groups ? optimizer->groups[*group]->slabs[(*i)++] : NULL;
}

static gb_device device_of(const gb_slab *slab) { return slab->gradients->storage->device; }

static const gb_backend *backend_of(const gb_slab *slab) {
  return gb_context_backend(gb_tensor_context(slab->gradients), device_of(slab));
}

/* Does the slab lie on a device? */
static bool is_on_device(const gb_slab *slab) { return device_of(slab).type != GB_CPU; }

/* The first segment of a pass; NULL: none has a gradient. */
static const gb_segment *first_segment(const gb_slab *slab) {
  for (int64_t s = 0; s < slab->count; s++)
    if (slab->segments[s].has_grad) return &slab->segments[s];
  return NULL;
}

/* The values of a vector in the host's memory, to be read: they lie there, or it is a copy. */
static gb_status open_one(gb_context *context, gb_tensor *vector, char **out) {
  size_t bytes = (size_t)vector->numel * gb_dtype_bytes((gb_dtype)vector->dtype);
  if (vector->storage->device.type == GB_CPU) return *out = gb_data(vector), GB_OK;
  *out = gb_counted_alloc(context, bytes);
  if (!*out) return context->error_code;
  gb_status status = gb_tensor_read(vector, *out, bytes);
  if (status != GB_OK) gb_counted_free(*out);
  return status;
}

static void close_one(const gb_tensor *vector, char *data) {
  if (vector->storage->device.type != GB_CPU) gb_counted_free(data);
}

/* {==== what a step measures first ==== */

/* The slab's numbers: two for each place that gb_measures_of speaks of, here for chunks of GB_NORM_CHUNK. */
static int64_t places_of(const gb_slab *slab) { return slab->elements / GB_NORM_CHUNK + 1 + slab->count; }

int64_t gb_split_measures(const gb_optimizer *optimizer) {
  int group = 0, i = 0;
  int64_t count = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) count += 2 * places_of(&owned->slab);
  return count;
}

/* The chunks that a segment lies in, from the first element of its slab on. */
typedef struct chunks { int64_t first, last; } chunks;
static chunks chunks_in(const gb_segment *segment) {
  return (chunks){ segment->offset / GB_NORM_CHUNK, (segment->offset + segment->size - 1) / GB_NORM_CHUNK };
}

/* A pass counts its chunks, which are smaller ones on a device, from where the chunk of GB_NORM_CHUNK begins that the
 * first segment with a gradient lies in. from: what it measured; chunk: the first one of the part in its slab. */
static void take_part(const gb_slab *part, const double *from, int64_t chunk, double *numbers) {
  int64_t each = is_on_device(part) ? GB_LEAST_CHUNK : GB_NORM_CHUNK, per = GB_NORM_CHUNK / each, start = -1;
  for (int64_t s = 0; s < part->count; s++) {
    const gb_segment *segment = &part->segments[s];
    if (!segment->has_grad) continue;
    if (start < 0) start = chunks_in(segment).first * per;
    int64_t first = segment->offset / each, last = (segment->offset + segment->size - 1) / each;
    for (int64_t c = first; c <= last && segment->size; c++)
      for (int k = 0; k < 2; k++)
        numbers[2 * (chunk + c / per + segment->place) + k] += from[2 * (c - start + s) + k];
  }
}

gb_status gb_split_take_measures(const gb_optimizer *optimizer, double *numbers) {
  const gb_split *split = &optimizer->split;
  int group = 0, i = 0;
  memset(numbers, 0, (size_t)gb_split_measures(optimizer) * sizeof *numbers);
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i)); numbers += 2 * places_of(&owned->slab))
    for (int64_t b = 0; b < owned->n_parts; b++) {
      const gb_slab *part = &owned->parts[b];
      char *measures;
      if (!first_segment(part)) continue;
      GB_TRY(open_one(optimizer->context, part->measures, &measures));
      take_part(part, (const double *)(void *)measures + 2 * part->count,
                first_of(owned, split->size, b, split->rank) / GB_NORM_CHUNK, numbers);
      close_one(part->measures, measures);
    }
  return GB_OK;
}

/* The measures of the part's segments, from those of all parts of them. */
static gb_status give_part(gb_context *context, const gb_owned_slab *owned, gb_slab *part, const double *numbers) {
  size_t bytes = 2 * (size_t)part->count * sizeof *numbers;
  double *sums = gb_counted_alloc(context, bytes);
  if (!sums) return context->error_code;
  for (int64_t s = 0; s < part->count; s++) {
    const gb_segment *whole = &owned->slab.segments[part->segments[s].place];
    chunks in = chunks_in(whole);
    gb_sum_parts(numbers + 2 * (in.first + whole->place), in.last - in.first + 1, sums + 2 * s);
  }
  const gb_backend *backend = backend_of(part);
  gb_status status = backend->write(backend->state, gb_data(part->measures), sums, bytes);
  gb_counted_free(sums);
  return status;
}

gb_status gb_split_give_measures(const gb_optimizer *optimizer, const double *numbers) {
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i)); numbers += 2 * places_of(&owned->slab))
    for (int64_t b = 0; b < owned->n_parts; b++)
      if (owned->parts[b].count) GB_TRY(give_part(optimizer->context, owned, &owned->parts[b], numbers));
  return GB_OK;
}

/* ====} */

/* {==== weights after a step ==== */

/* Narrow weights that were stepped go in 16 bits, those of others in float32. */
typedef enum journey { STEPPED, AWAY } journey;

/* How many bytes each element of the segment has on this journey; 0: it does not go. */
static size_t bytes_each(const gb_segment *segment, journey what) {
  if (what == AWAY) return segment->parameter->storage->away == GB_AWAY ? sizeof(float) : 0;
  return !segment->has_grad ? 0 : segment->narrow ? sizeof(uint16_t) : sizeof(float);
}

typedef enum direction { COUNT, PACK, UNPACK } direction;

static gb_tensor *narrow_of(const gb_owned_slab *owned) {
  return owned->watched > SEEN ? owned->slab.copy[owned->narrow_slot] : NULL;
}

/* Go along the runs of all segments that go: each moves at[owner] on by its bytes, and is copied to that place in
 * `packed`, on the slab's device, where it is this process's, or from there where it is another's. */
static gb_status walk(const gb_owned_slab *owned, const gb_split *split, journey what, direction way, int64_t *at,
                      char *packed) {
  const gb_slab *slab = &owned->slab;
  const gb_backend *backend = backend_of(slab);
  char *narrow = narrow_of(owned) ? gb_data(narrow_of(owned)) : NULL, *weights = gb_data(slab->parameters);
  for (int64_t s = 0; s < slab->count; s++) {
    const gb_segment *segment = &slab->segments[s];
    size_t each = bytes_each(segment, what);
    char *vector = each == sizeof(float) ? weights : narrow;
    int64_t end = segment->offset + segment->size;
    for (int64_t from = segment->offset, next; each && from < end; from = next) {
      int owner = owner_of(owned, split->size, from, &next);
      if (next > end) next = end;
      size_t bytes = (size_t)(next - from) * each;
      if (way == PACK && owner == split->rank)
        GB_TRY(backend->copy(backend->state, packed + at[owner], vector + (size_t)from * each, bytes));
      if (way == UNPACK && owner != split->rank)
        GB_TRY(backend->copy(backend->state, vector + (size_t)from * each, packed + at[owner], bytes));
      at[owner] += (int64_t)bytes;
    }
  }
  return GB_OK;
}

/* Where the bytes of each process begin; at: room for as many. */
static void find_starts(const gb_owned_slab *owned, const gb_split *split, journey what, int64_t *starts, int64_t *at) {
  memset(at, 0, sizeof *at * (size_t)split->size);
  (void)walk(owned, split, what, COUNT, at, NULL);
  starts[0] = 0;
  for (int r = 0; r < split->size; r++) starts[r + 1] = starts[r] + at[r];
}

/* Every process's runs, side by side in one message to the next process. */
static gb_status travel(gb_context *context, const gb_owned_slab *owned, const gb_split *split, journey what) {
  size_t size = (size_t)split->size;
  int64_t *starts = gb_counted_alloc(context, (2 * size + 1) * sizeof *starts), *at = starts + size + 1;
  gb_tensor *packed = NULL;
  if (!starts) return context->error_code;
  find_starts(owned, split, what, starts, at);
  gb_status status = gb_tensor_new_as(context, GB_UINT8, 1, &starts[size], NULL, device_of(&owned->slab),
                                      GB_MEM_SCRATCH, &packed);
  if (status == GB_OK) {
    memcpy(at, starts, size * sizeof *at);
    status = walk(owned, split, what, PACK, at, gb_data(packed));
  }
  if (status == GB_OK) status = split->gather(context, split, packed, starts);
  if (status == GB_OK) {
    memcpy(at, starts, size * sizeof *at);
    status = walk(owned, split, what, UNPACK, at, gb_data(packed));
  }
  gb_tensor_release(packed);
  gb_counted_free(starts);
  return status;
}

/* {---- which weights are narrow ---- */

/* Of each segment: it was read other than by copies; and which copies were read since the step before. */
enum { READ, COPIES, SIGNS = COPIES + GB_COPIES };

/* From now on readers of weights are noted. */
static void begin_watching(gb_owned_slab *owned, const gb_split *split) {
  if (!split->narrows || owned->slab.dtype != GB_FLOAT32 || owned->watched > SEEN) return;
  owned->watched = 0;
  for (int64_t s = 0; s < owned->slab.count; s++) owned->slab.segments[s].parameter->storage->away = GB_WATCHED;
}

/* The numbers of all processes: above 0 where one has seen the sign. */
static void note_signs(const gb_slab *slab, double *signs) {
  for (int64_t s = 0; s < slab->count; s++) {
    gb_tensor *parameter = slab->segments[s].parameter;
    signs[s * SIGNS + READ] = parameter->storage->away == GB_READ;
    for (int k = 0; k < GB_COPIES; k++)
      signs[s * SIGNS + COPIES + k] = slab->segments[s].has_grad && parameter->copies[k].tensor &&
          parameter->copies[k].version == gb_tensor_version(parameter);
    parameter->storage->away = GB_HERE;
  }
}

/* The one copy that was read; -1: none was, or several. */
static int slot_of(const gb_slab *slab, const double *signs) {
  int slot = -1;
  for (int64_t i = 0; i < slab->count * SIGNS; i++) {
    int k = (int)(i % SIGNS) - COPIES;
    if (k < 0 || !(signs[i] > 0) || k == slot) continue;
    if (slot >= 0) return -1;
    slot = k;
  }
  return slot;
}

/* The narrow weights have the copy as they are after the step, also where this process has run nothing that reads
 * it. */
static gb_status open_narrow(gb_context *context, gb_owned_slab *owned) {
  for (int64_t s = 0; s < owned->slab.count; s++) {
    gb_tensor *copy = NULL, *parameter = owned->slab.segments[s].parameter;
    if (!owned->slab.segments[s].narrow) continue;
    parameter->copies[owned->narrow_slot].version = gb_tensor_version(parameter) - 1;
    GB_TRY(gb_weight_get(context, parameter, gb_copy_dtype(owned->narrow_slot), &copy));
    gb_tensor_release(copy);
  }
  return GB_OK;
}

/* A step writes the copies of what is this process's. */
static gb_status add_copies(gb_owned_slab *owned, const gb_split *split) {
  gb_slab *slab = &owned->slab;
  for (int64_t b = 0; b < owned->n_parts; b++)
    if (is_narrow_slot(owned, owned->narrow_slot))
      GB_TRY(run_of(slab->copy[owned->narrow_slot], first_of(owned, split->size, b, split->rank),
                    owned->parts[b].elements, &owned->parts[b].copy[owned->narrow_slot]));
  return GB_OK;
}

/* All processes find together which weights are narrow, after a step, when all are whole. */
static gb_status settle_narrow(gb_optimizer *optimizer, gb_owned_slab *owned) {
  gb_slab *slab = &owned->slab;
  const gb_split *split = &optimizer->split;
  bool flag = false;
  double *signs = gb_counted_alloc(optimizer->context, (size_t)slab->count * SIGNS * sizeof *signs);
  if (!signs) return optimizer->context->error_code;
  note_signs(slab, signs);
  gb_status status = split->share(optimizer->context, split, signs, slab->count * SIGNS, &flag);
  int slot = status == GB_OK ? slot_of(slab, signs) : -1;
  for (int64_t s = 0; slot >= 0 && s < slab->count; s++)
    slab->segments[s].narrow = signs[s * SIGNS + COPIES + slot] > 0 && !(signs[s * SIGNS + READ] > 0);
  gb_counted_free(signs);
  if (slot < 0) return status;
  owned->narrow_slot = slot;
  GB_TRY(open_narrow(optimizer->context, owned));
  return add_copies(owned, split);
}

/* ----} */

static bool any_narrow(const gb_slab *slab) {
  for (int64_t s = 0; s < slab->count; s++)
    if (slab->segments[s].narrow) return true;
  return false;
}

gb_status gb_split_bring(gb_optimizer *optimizer, gb_owned_slab *owned) {
  const gb_split *split = &optimizer->split;
  gb_slab *slab = &owned->slab;
  if (any_narrow(slab)) {
    GB_TRY(travel(optimizer->context, owned, split, STEPPED));
    for (int64_t s = 0; s < slab->count; s++)
      if (slab->segments[s].narrow && slab->segments[s].has_grad)
        slab->segments[s].parameter->storage->away = GB_AWAY;
    return GB_OK;
  }
  GB_TRY(split->gather(optimizer->context, split, slab->parameters, owned->bounds));
  if (!split->narrows || slab->dtype != GB_FLOAT32 || owned->watched > SEEN) return GB_OK;
  return owned->watched++ == SEEN ? settle_narrow(optimizer, owned) : GB_OK;
}

/* Nothing where no weight is away. */
static gb_status gather_slab(gb_optimizer *optimizer, gb_owned_slab *owned) {
  bool any = false;
  for (int64_t s = 0; s < owned->slab.count; s++)
    any |= owned->slab.segments[s].parameter->storage->away == GB_AWAY;
  if (!any) return GB_OK;
  GB_TRY(travel(optimizer->context, owned, &optimizer->split, AWAY));
  for (int64_t s = 0; s < owned->slab.count; s++)
    if (owned->slab.segments[s].parameter->storage->away == GB_AWAY)
      owned->slab.segments[s].parameter->storage->away = GB_HERE;
  return GB_OK;
}

gb_status gb_optimizer_gather(gb_optimizer *optimizer) {
  int group = 0, i = 0;
  gb_status status = GB_OK;
  if (!gb_optimizer_is_split(optimizer)) return GB_OK;
  for (gb_owned_slab *owned; status == GB_OK && (owned = next_slab(optimizer, &group, &i));)
    if (owned->n_parts) status = gather_slab(optimizer, owned);
  return status;
}

/* ====} */

/* {==== splitting and joining ==== */

/* The host may write through a pointer that it has had, and the other processes would not know. */
static gb_status check_pointers(const gb_optimizer *optimizer) {
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));)
    for (int64_t s = 0; s < owned->slab.count; s++)
      if (atomic_load_explicit(&owned->slab.segments[s].grad->storage->exposed, memory_order_relaxed))
        return gb_fail(optimizer->context, GB_ESTATE,
                       "Sharded: the program around has had a pointer to a gradient, which the other processes cannot "
                       "watch; take none, or call gb.optim.Sharded(optimizer, { gradients = 'whole' })");
  return GB_OK;
}

/* From now on gradients are parts, or whole again. */
static void mark_gradients(const gb_optimizer *optimizer, gb_away away) {
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));)
    for (int64_t s = 0; s < owned->slab.count; s++) owned->slab.segments[s].grad->storage->away = away;
}

static void drop_parts(const gb_optimizer *optimizer) {
  int group = 0, i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) gb_split_parts_free(owned);
}

gb_status gb_optimizer_split(gb_optimizer *optimizer, const gb_split *split) {
  int group = 0, i = 0;
  bool shaped = gb_optimizer_info_of(optimizer->kind)->shaped;
  bool gradients = split->gradients && !shaped;
  if (split->size == 1) return GB_OK;
  gb_status status = gradients ? check_pointers(optimizer) : GB_OK;
  for (gb_owned_slab *owned; status == GB_OK && (owned = next_slab(optimizer, &group, &i));) {
    status = gb_slab_sync_masters(owned);
    if (status == GB_OK) status = make_parts(optimizer->context, owned, split, shaped);
  }
  if (status != GB_OK) return drop_parts(optimizer), status;
  group = i = 0;
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) {
    gb_drop(&owned->slab.masters);
    for (int k = 0; k < GB_OPTIM_STATES; k++) gb_drop(&owned->slab.state[k]);
    gb_drop(&owned->slab.factors);
    gb_drop(&owned->slab.measures);
    begin_watching(owned, split);
  }
  optimizer->split = *split;
  optimizer->split.gradients = gradients;
  if (gradients) mark_gradients(optimizer, GB_PART);
  return GB_OK;
}

/* Masters, or state i, of a part. */
static gb_tensor **vector_of(gb_slab *slab, int i) { return i < 0 ? &slab->masters : &slab->state[i]; }

/* A whole vector of what every process has parts of. i: see vector_of. */
static gb_status join_vector(gb_optimizer *optimizer, gb_owned_slab *owned, int i) {
  const gb_split *split = &optimizer->split;
  gb_slab *slab = &owned->slab;
  const gb_tensor *model = *vector_of(&owned->parts[0], i);
  gb_tensor **out = vector_of(slab, i);
  GB_TRY(gb_tensor_new_as(optimizer->context, (gb_dtype)model->dtype, 1, &slab->elements, NULL, model->storage->device,
                          GB_MEM_OPTIMIZER, out));
  for (int64_t b = 0; b < owned->n_parts; b++) {
    gb_tensor *mine = *vector_of(&owned->parts[b], i), *run = NULL;
    GB_TRY(run_of(*out, first_of(owned, split->size, b, split->rank), mine->numel, &run));
    gb_status status = gb_weight_copy_values(run, mine);
    gb_tensor_release(run);
    GB_TRY(status);
  }
  return split->gather(optimizer->context, split, *out, owned->bounds);
}

/* Where each process's factors begin among all. Segments of the whole slab still know it. */
static void factor_bounds(const gb_owned_slab *owned, int size, int64_t elements, int64_t *starts) {
  const gb_slab *slab = &owned->slab;
  int64_t s = 0;
  for (int r = 0; r <= size; r++) {
    while (s < slab->count && slab->segments[s].offset < owned->bounds[r]) s++;
    starts[r] = s < slab->count ? slab->segments[s].factors : elements;
  }
}

/* The factors of all parameters: of each process those of its own. */
static gb_status join_factors(gb_optimizer *optimizer, gb_owned_slab *owned) {
  const gb_split *split = &optimizer->split;
  gb_slab *slab = &owned->slab;
  gb_tensor *mine = owned->parts[0].factors, *run = NULL;
  GB_TRY(gb_slab_open_whole_factors(slab, gb_optimizer_info_of(optimizer->kind)));
  int64_t *starts = gb_counted_alloc(optimizer->context, (size_t)(split->size + 1) * sizeof *starts);
  if (!starts) return optimizer->context->error_code;
  factor_bounds(owned, split->size, slab->factors->numel, starts);
  gb_status status = run_of(slab->factors, starts[split->rank], mine->numel, &run);
  if (status == GB_OK) status = gb_weight_copy_values(run, mine);
  gb_tensor_release(run);
  if (status == GB_OK) status = split->gather(optimizer->context, split, slab->factors, starts);
  gb_counted_free(starts);
  return status;
}

static gb_status join_slab(gb_optimizer *optimizer, gb_owned_slab *owned) {
  if (owned->slab.dtype != GB_FLOAT32 && owned->parts[0].masters) {
    GB_TRY(gb_slab_sync_masters(owned));
    GB_TRY(join_vector(optimizer, owned, -1));
  }
  for (int i = 0; i < GB_OPTIM_STATES; i++)
    if (owned->parts[0].state[i]) GB_TRY(join_vector(optimizer, owned, i));
  return owned->parts[0].factors ? join_factors(optimizer, owned) : GB_OK;
}

gb_status gb_optimizer_join(gb_optimizer *optimizer) {
  int group = 0, i = 0;
  if (!gb_optimizer_is_split(optimizer)) return GB_OK;
  gb_status status = gb_optimizer_gather(optimizer);
  for (gb_owned_slab *owned; status == GB_OK && (owned = next_slab(optimizer, &group, &i));)
    if (owned->n_parts) status = join_slab(optimizer, owned);
  if (status == GB_OK) {
    drop_parts(optimizer);
    mark_gradients(optimizer, GB_HERE);
    optimizer->split = (gb_split){ 0 };
    return GB_OK;
  }
  group = i = 0; /* as it was */
  for (gb_owned_slab *owned; (owned = next_slab(optimizer, &group, &i));) {
    if (!owned->n_parts) continue;
    gb_drop(&owned->slab.masters);
    gb_drop(&owned->slab.factors);
    for (int k = 0; k < GB_OPTIM_STATES; k++) gb_drop(&owned->slab.state[k]);
  }
  return status;
}

bool gb_optimizer_is_split(const gb_optimizer *optimizer) { return optimizer->split.gather != NULL; }

/* ====} */

/* {==== gradients that are shared out ==== */

const gb_split *gb_split_of_gradient(const gb_tensor *parameter) {
  const gb_owned_slab *owned = (const gb_owned_slab *)parameter->slab;
  const gb_split *split = owned && owned->owner ? &owned->owner->split : NULL;
  return split && split->gather && split->gradients && gb_tensor_is_contiguous(parameter) ? split : NULL;
}

/* The slab whose gradients, shared out, the tensor lies in, or NULL. */
static gb_owned_slab *home_of(const gb_tensor *tensor) {
  gb_owned_slab *owned = tensor->storage->slab ? tensor->storage->slab->user : NULL;
  if (!owned || owned->slab.gradients->storage != tensor->storage->slab) return NULL;
  const gb_split *split = owned->owner ? &owned->owner->split : NULL;
  return split && split->gather && split->gradients && tensor->dtype == owned->slab.gradients->dtype ? owned : NULL;
}

bool gb_split_is_part(const gb_tensor *tensor) { return home_of(tensor) != NULL; }

/* The gradients of a slab, those of all processes. */
static gb_status join_gradients(gb_owned_slab *owned, gb_tensor **out) {
  gb_context *context = owned->owner->context;
  const gb_split *split = &owned->owner->split;
  gb_tensor *gradients = owned->slab.gradients;
  GB_TRY(gb_tensor_new_as(context, (gb_dtype)gradients->dtype, 1, &owned->slab.elements, NULL,
                          gradients->storage->device, GB_MEM_OTHER, out));
  gb_status status = gb_weight_copy_values(*out, gradients);
  if (status == GB_OK) status = split->gather(context, split, *out, NULL);
  if (status != GB_OK) gb_drop(out);
  return status;
}

/* What a tensor is in its slab's gradients, in a copy of these. */
static gb_status view_in(gb_tensor *copy, const gb_owned_slab *owned, const gb_tensor *tensor, gb_tensor **out) {
  int64_t each = (int64_t)gb_dtype_bytes((gb_dtype)tensor->dtype);
  int64_t offset = (gb_data(tensor) - gb_data(owned->slab.gradients)) / each;
  return gb_tensor_view(copy, tensor->ndim, tensor->shape, tensor->stride, offset, out);
}

gb_status gb_split_whole(gb_tensor *const *tensors, int count, gb_tensor **out) {
  gb_status status = GB_OK;
  for (int i = 0; i < count; i++) out[i] = NULL;
  for (int i = 0; i < count && status == GB_OK; i++) {
    gb_owned_slab *owned = out[i] ? NULL : home_of(tensors[i]);
    gb_tensor *copy = NULL;
    if (!owned && !out[i]) gb_tensor_retain(out[i] = tensors[i]);
    if (!owned) continue;
    status = join_gradients(owned, &copy);
    for (int k = i; k < count && status == GB_OK; k++)
      if (home_of(tensors[k]) == owned) status = view_in(copy, owned, tensors[k], &out[k]);
    gb_tensor_release(copy);
  }
  for (int i = 0; i < count && status != GB_OK; i++) gb_drop(&out[i]);
  return status;
}

/* Of the gradient of the slab, elements from .. end - 1. */
static gb_status clear_run(gb_slab *slab, int64_t from, int64_t end) {
  size_t each = gb_dtype_bytes((gb_dtype)slab->gradients->dtype), bytes = (size_t)(end - from) * each;
  const gb_backend *backend = backend_of(slab);
  return backend->clear(backend->state, (char *)gb_data(slab->gradients) + (size_t)from * each, bytes);
}

/* What belongs to other processes. */
static gb_status clear_others(gb_slab *slab, const gb_split *split) {
  for (int64_t b = 0; b < gb_split_blocks(slab->elements, split->size); b++) {
    GB_TRY(clear_run(slab, gb_split_first(slab->elements, split->size, b, 0),
                     gb_split_first(slab->elements, split->size, b, split->rank)));
    GB_TRY(clear_run(slab, gb_split_first(slab->elements, split->size, b, split->rank + 1),
                     gb_split_first(slab->elements, split->size, b, split->size)));
  }
  return GB_OK;
}

/* {---- what is measured where gradients are brought together ---- */

gb_owned_slab *gb_split_measured(const gb_tensor *parameter) {
  gb_owned_slab *owned = (gb_owned_slab *)parameter->slab;
  return gb_split_of_gradient(parameter) && owned->owner->asks && owned->n_parts ? owned : NULL;
}

static int64_t chunks_of(const gb_slab *slab) { return (slab->elements + GB_NORM_CHUNK - 1) / GB_NORM_CHUNK; }

int64_t gb_split_numbers(const gb_owned_slab *owned) {
  return chunks_of(&owned->slab) + 1 + (is_on_device(&owned->slab) ? owned->slab.count : 0);
}

/* What gradients with this scale (NULL: none) are multiplied by; a device's is waited for. */
static gb_status factor_of(const gb_slab *slab, const gb_scale_state *scale, double *factor) {
  float inverse = 1;
  const gb_backend *backend = backend_of(slab);
  if (scale) GB_TRY(backend->read(backend->state, &inverse, &scale->inverse, sizeof inverse));
  *factor = (double)inverse;
  return GB_OK;
}

/* A look at one part, whose numbers are kept: bad[0], and what a device says of each segment after it. */
typedef struct look { gb_step_call call; double *norms, *bad; } look;

static gb_status keep_numbers(const gb_step_call *call, double *numbers, int64_t count, int64_t flags, bool *bad) {
  const look *l = (const look *)((const char *)call - offsetof(look, call));
  if (count)
    memcpy(l->norms + first_segment(call->slab)->offset / GB_NORM_CHUNK, numbers, (size_t)count * sizeof *numbers);
  if (flags) memcpy(l->bad + 1, numbers + count, (size_t)flags * sizeof *numbers);
  if (*bad) *l->bad = 1;
  *bad = false;
  return GB_OK;
}

/* This process's runs of all segments, at their places in the slab; *out: counted, room for the parts' segments. */
static gb_status cut_to_runs(const gb_owned_slab *owned, gb_segment **out, int64_t *count) {
  const gb_split *split = &owned->owner->split;
  size_t most = 1;
  for (int64_t b = 0; b < owned->n_parts; b++) most += (size_t)owned->parts[b].count;
  *out = gb_counted_alloc(owned->owner->context, most * sizeof **out);
  if (!*out) return owned->owner->context->error_code;
  for (int64_t b = 0; b < owned->n_parts; b++)
    for (int64_t s = 0; s < owned->parts[b].count; s++) {
      gb_segment *cut = &(*out)[(*count)++];
      *cut = owned->parts[b].segments[s];
      cut->offset += first_of(owned, split->size, b, split->rank);
      cut->has_grad = owned->slab.segments[cut->place].has_grad;
    }
  return GB_OK;
}

/* On a device all parts are looked at by one call, which is waited for. */
static gb_status look_on_device(gb_owned_slab *owned, look *l) {
  gb_slab cut = owned->slab;
  cut.count = 0;
  GB_TRY(cut_to_runs(owned, &cut.segments, &cut.count));
  l->call.slab = &cut;
  gb_status status = first_segment(&cut) ? gb_step_run(owned->owner->context, GB_STEP_CHECK, &l->call) : GB_OK;
  gb_counted_free(cut.segments);
  return status;
}

/* Elsewhere each by itself. */
static gb_status look_at_parts(gb_owned_slab *owned, look *l) {
  gb_optimizer *owner = owned->owner;
  double *norms = l->norms;
  GB_TRY(gb_parts_bring(owned));
  for (int64_t b = 0; b < owned->n_parts; b++) {
    if (!first_segment(&owned->parts[b])) continue;
    int64_t begin = gb_split_first(owned->slab.elements, owner->split.size, b, owner->split.rank);
    l->call.slab = &owned->parts[b];
    l->norms = norms + begin / GB_NORM_CHUNK;
    GB_TRY(gb_step_run(owner->context, GB_STEP_CHECK, &l->call));
  }
  return GB_OK;
}

gb_status gb_split_measure(gb_owned_slab *owned, double *numbers) {
  const gb_segment *first = first_segment(&owned->slab);
  gb_scale_state *scale = NULL;
  memset(numbers, 0, (size_t)gb_split_numbers(owned) * sizeof *numbers);
  if (!first) return GB_OK;
  GB_TRY(gb_optimizer_scale_of(owned->owner->context, gb_tensor_tag(first->grad), "DataParallel:shards", &scale));
  GB_TRY(factor_of(&owned->slab, scale, &owned->joined_factor));
  look l = { .norms = numbers, .bad = numbers + chunks_of(&owned->slab),
             .call = { .scale = scale, .scaled = scale != NULL, .norm_type = 2, .share = keep_numbers } };
  return is_on_device(&owned->slab) ? look_on_device(owned, &l) : look_at_parts(owned, &l);
}

gb_status gb_split_joined(gb_owned_slab *owned, const double *numbers) {
  size_t bytes = (size_t)gb_split_numbers(owned) * sizeof *numbers;
  if (!owned->joined) owned->joined = gb_counted_resize(owned->owner->context, NULL, bytes);
  if (!owned->joined) return GB_EMEMORY;
  memcpy(owned->joined, numbers, bytes);
  owned->n_joined = 0;
  owned->joined_turn = owned->owner->context->step->graph_turns;
  for (int64_t s = 0; s < owned->slab.count; s++) {
    gb_segment *segment = &owned->slab.segments[s];
    segment->joined = segment->has_grad ? gb_tensor_version(segment->grad) + 1 : 0;
    owned->n_joined += segment->has_grad;
  }
  return GB_OK;
}

/* The slab that the call's segments lie in. */
static const gb_owned_slab *slab_of(const gb_step_call *call) {
  const gb_segment *first = first_segment(call->slab);
  return first ? (gb_owned_slab *)first->parameter->slab : NULL;
}

/* Is all that the call asks for known of the gradients as they are? */
static gb_status find_known(const gb_step_call *call, bool *known) {
  const gb_owned_slab *owned = slab_of(call);
  double factor = 1;
  int64_t count = 0;
  *known = false;
  if (!owned || !owned->joined || (call->norm_type > 0 && call->norm_type != 2)) return GB_OK;
  if (owned->joined_turn != owned->owner->context->step->graph_turns) return GB_OK;
  for (int64_t s = 0; s < call->slab->count; s++) {
    const gb_segment *segment = &call->slab->segments[s];
    if (!segment->has_grad) continue;
    if (segment->joined != gb_tensor_version(segment->grad) + 1) return GB_OK;
    count++;
  }
  if (count != owned->n_joined) return GB_OK;
  GB_TRY(factor_of(&owned->slab, call->scaled ? call->scale : NULL, &factor));
  *known = factor == owned->joined_factor;
  return GB_OK;
}

/* ----} */

/* What the pass measured, joined from all processes. */
static gb_status share(const gb_step_call *call, double *numbers, int64_t count, int64_t flags, bool *bad) {
  gb_optimizer *owner = call->sharer;
  if (call->known) {
    const gb_owned_slab *owned = slab_of(call);
    const double *after = owned->joined + chunks_of(&owned->slab);
    if (count)
      memcpy(numbers, owned->joined + first_segment(call->slab)->offset / GB_NORM_CHUNK,
             (size_t)count * sizeof *numbers);
    if (flags) memcpy(numbers + count, after + 1, (size_t)flags * sizeof *numbers);
    *bad = *after > 0;
    return GB_OK;
  }
  owner->asks = true;
  return owner->split.share(owner->context, &owner->split, numbers, count + flags, bad);
}

gb_status gb_split_prepare(gb_slab *slab, gb_step_call *call) {
  gb_optimizer *owner = ((gb_owned_slab *)slab)->owner;
  const gb_split *split = &owner->split;
  if (!split->gather || !split->gradients) return GB_OK;
  if (owner->context->capturing)
    return gb_fail(owner->context, GB_ESTATE,
                   "Sharded: all processes measure gradients together that they share out, which cannot be captured; "
                   "clip and unscale outside of what is captured, or call gb.optim.Sharded(optimizer, { gradients = "
                   "'whole' })");
  call->share = share;
  call->sharer = owner;
  GB_TRY(find_known(call, &call->known));
  return call->known ? GB_OK : clear_others(slab, split);
}

gb_status gb_split_share_flag(const gb_optimizer *optimizer, bool *flag) {
  const gb_split *split = &optimizer->split;
  if (!split->gather || !split->gradients) return GB_OK;
  return split->share(optimizer->context, split, NULL, 0, flag);
}

/* ====} */
