/* shards.c - rounds of virtual shards: leaves of the tree are made of a shard's gradients, buffers, loss and integers.
 *
 * Three lanes go through the tree. FLOATS (float32): a flag for each parameter that has a gradient, then gradients and
 * changes of buffers of up to 32 bits. DOUBLES: the loss and the weight it counts with, then what is float64. WHOLE:
 * the larger of two integers, for what ranks must agree on, and how far buffers of integers grew. A shard counts by its
 * share of the samples, so shards of unequal size, or empty ones, still make the mean over the batch. */
#include "dist/shards.h"

#include <math.h>
#include <string.h>

#include "dist/room.h"
#include "graph/autograd.h"
#include "tensor/slab.h"

enum { FLOATS, DOUBLES, WHOLE, LANES };

/* Of the lane WHOLE. SAME ones stand twice, as the number and its complement: their maxima tell whether all agree. */
enum { NEXT_OFFSET, TAG_SCALER, TAG_UPDATE, SEED, OFFSET = SEED + 2, SAMPLES = OFFSET + 2, SHARDS = SAMPLES + 2,
       BUFFERS = SHARDS + 2 };
/* Of the lane DOUBLES. */
enum { LOSS, LOSS_WEIGHT, WIDE };

struct gb_shards {
  gb_context *context;
  int64_t shards;
  const gb_comm *agreed;              /* the job that gb_shards_agree compared with */
  double loss;
  gb_tree trees[LANES];
  bool open;                          /* a round is */
  gb_comm *comm;                      /* of the round; NULL: one process */
  int n_parameters, n_buffers;
  gb_tensor **parameters, **before;   /* with the gradients that they had, or NULL */
  gb_tensor **buffers;
  void **values;                      /* of the buffers when the round began, in their lane's dtype */
  uint64_t *versions;
  int64_t samples, shard, end;        /* shard: the one that runs */
  int64_t work;                       /* since the last look for a stop */
  bool runs;
  uint64_t seed, offset, next_offset; /* of the random stream: at the beginning, and the furthest that a shard came */
  double sum, weight;                 /* of the losses of the shard that runs */
  gb_grad_tag tag;                    /* of every gradient of the round, once there is one */
  bool tagged;
};

gb_status gb_shards_new(gb_context *context, int64_t shards, gb_shards **out) {
  const gb_comm *comm = gb_dist_comm(context);
  if (shards < 1 || shards > GB_SHARDS_MOST || (shards & (shards - 1)))
    return gb_fail(context, GB_EINVAL, "DataParallel: shards is %lld; it must be a power of two up to %d",
                   (long long)shards, GB_SHARDS_MOST);
  if (comm && comm->size > shards)
    return gb_fail(context, GB_EINVAL, "DataParallel: %lld shards for %d processes; each needs one at least",
                   (long long)shards, comm->size);
  gb_shards *s = gb_counted_alloc(context, sizeof *s);
  if (!s) return GB_EMEMORY;
  gb_context_retain(s->context = context);
  s->shards = shards;
  s->loss = NAN;
  *out = s;
  return GB_OK;
}

/* {==== Where things lie in the lanes ==== */

static gb_lane lane_for(int which, int64_t count) {
  static const gb_dtype dtypes[LANES] = { GB_FLOAT32, GB_FLOAT64, GB_INT64 };
  return (gb_lane){ dtypes[which], which == WHOLE ? GB_REDUCE_MAX : GB_REDUCE_SUM, count };
}

static int lane_number(const gb_tensor *t) {
  gb_dtype dtype = gb_lane_dtype((gb_dtype)t->dtype);
  return dtype == GB_FLOAT32 ? FLOATS : dtype == GB_FLOAT64 ? DOUBLES : WHOLE;
}

/* Where the values of each tensor begin, going through all of them in the same order each time. */
typedef struct layout { int64_t used[LANES]; } layout;

static layout layout_begin(const gb_shards *s) { return (layout){ { s->n_parameters, WIDE, BUFFERS } }; }

static int64_t layout_next(layout *l, const gb_tensor *t) {
  int64_t first = l->used[lane_number(t)];
  l->used[lane_number(t)] += t->numel;
  return first;
}

/* No trees. A job that has been left since needs no memory for messages any more. */
static void fell(gb_shards *s) {
  for (int k = 0; k < LANES; k++) {
    if (s->trees[k].comm != gb_dist_comm(s->context)) s->trees[k].comm = NULL;
    gb_tree_free(&s->trees[k]);
  }
}

/* Trees for this round; those of the last one serve where their lanes have the same size. */
static void plant(gb_shards *s) {
  layout l = layout_begin(s);
  for (int i = 0; i < s->n_parameters; i++) layout_next(&l, s->parameters[i]);
  for (int i = 0; i < s->n_buffers; i++) layout_next(&l, s->buffers[i]);
  bool fits = true;
  for (int k = 0; k < LANES; k++) {
    const gb_tree *tree = &s->trees[k];
    fits &= tree->comm == s->comm && tree->lane.count == l.used[k] && tree->leaves == s->shards;
  }
  if (!fits) fell(s);
  for (int k = 0; k < LANES; k++) {
    gb_lane lane = lane_for(k, l.used[k]);
    if (fits) gb_tree_reset(&s->trees[k]);
    else gb_tree_begin(&s->trees[k], s->context, s->comm, &lane, s->shards);
  }
}

/* ====} */

/* {==== Beginning and ending a round ==== */

/* What a round holds goes; the trees stay for the next one. */
static void let_go(gb_shards *s) {
  for (int i = 0; i < s->n_parameters; i++) {
    gb_tensor_release(s->parameters[i]);
    gb_tensor_release(s->before[i]);
  }
  for (int i = 0; i < s->n_buffers; i++) {
    gb_tensor_release(s->buffers[i]);
    gb_counted_free(s->values[i]);
  }
  void *const lists[] = { s->parameters, s->before, s->buffers, s->values, s->versions };
  for (int i = 0; i < 5; i++) gb_counted_free(lists[i]);
  s->parameters = s->before = s->buffers = NULL;
  s->values = NULL;
  s->versions = NULL;
  s->n_parameters = s->n_buffers = 0;
  s->open = s->runs = false;
}

void gb_shards_free(gb_shards *s) {
  if (!s) return;
  let_go(s);
  fell(s);
  gb_context *context = s->context;
  gb_counted_free(s);
  gb_context_release(context);
}

static gb_status allocate(gb_shards *s, int n_parameters, int n_buffers) {
  size_t p = (size_t)n_parameters, b = (size_t)n_buffers;
  s->parameters = gb_counted_alloc(s->context, p * sizeof *s->parameters);
  if (s->parameters) s->before = gb_counted_alloc(s->context, p * sizeof *s->before);
  if (s->before) s->buffers = gb_counted_alloc(s->context, b * sizeof *s->buffers);
  if (s->buffers) s->values = gb_counted_alloc(s->context, b * sizeof *s->values);
  if (s->values) s->versions = gb_counted_alloc(s->context, b * sizeof *s->versions);
  return s->versions ? GB_OK : GB_EMEMORY;
}

/* What the parameter's gradient is so far, as a tensor that the round will not write. */
static gb_status keep_gradient(gb_shards *s, gb_tensor *parameter, gb_tensor **out) {
  gb_tensor *grad = gb_tensor_grad(parameter);
  if (!grad) return GB_OK;
  bool before = gb_set_grad_enabled(s->context, false);
  gb_status status = GB_RUN(s->context, clone, out, .x = grad);
  gb_set_grad_enabled(s->context, before);
  if (status == GB_OK) (*out)->tag = grad->tag;
  gb_tensor_release(grad);
  return status;
}

static gb_status keep_buffer(gb_shards *s, int i) {
  gb_tensor *buffer = s->buffers[i];
  gb_dtype dtype = gb_lane_dtype((gb_dtype)buffer->dtype);
  s->values[i] = gb_counted_resize(s->context, NULL, (size_t)buffer->numel * gb_dtype_bytes(dtype));
  if (!s->values[i]) return GB_EMEMORY;
  s->versions[i] = gb_tensor_version(buffer);
  return gb_dist_read(buffer, dtype, s->values[i]);
}

/* Parameters that are not trained, and buffers of bools, which are masks, take no part. */
static gb_status take_all(gb_shards *s, gb_tensor *const *parameters, int n_parameters, gb_tensor *const *buffers,
                          int n_buffers) {
  GB_TRY(allocate(s, n_parameters, n_buffers));
  for (int i = 0; i < n_parameters; i++)
    if (parameters[i]->requires_grad) gb_tensor_retain(s->parameters[s->n_parameters++] = parameters[i]);
  for (int i = 0; i < n_buffers; i++)
    if (buffers[i]->dtype != GB_BOOL) gb_tensor_retain(s->buffers[s->n_buffers++] = buffers[i]);
  for (int i = 0; i < s->n_buffers; i++) GB_TRY(keep_buffer(s, i));
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(keep_gradient(s, s->parameters[i], &s->before[i]));
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(gb_tensor_set_grad(s->parameters[i], NULL));
  return GB_OK;
}

gb_status gb_shards_begin(gb_shards *s, gb_tensor *const *parameters, int n_parameters, gb_tensor *const *buffers,
                          int n_buffers, int64_t samples) {
  gb_comm *comm = gb_dist_comm(s->context);
  if (s->open)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the shards of another batch are still being run; end "
                                          "that loop first");
  if (samples < 1)
    return gb_fail(s->context, GB_ESHAPE, "DataParallel:shards: the batch has no samples");
  if (comm && comm->size > 1 && s->agreed != comm)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the model was wrapped before gb.dist.init(); wrap it "
                                          "after that, so that all ranks begin with the same weights");
  s->comm = comm && comm->size > 1 ? comm : NULL;
  if (s->comm) GB_TRY(gb_comm_begin(s->comm, "DataParallel:shards"));
  gb_status status = take_all(s, parameters, n_parameters, buffers, n_buffers);
  if (status != GB_OK) return let_go(s), status;
  plant(s);
  gb_get_rng_state(s->context, &s->seed, &s->offset);
  int size = s->comm ? s->comm->size : 1, rank = s->comm ? s->comm->rank : 0;
  s->next_offset = s->offset;
  s->samples = samples;
  s->shard = gb_tree_first(s->shards, size, rank) - 1;
  s->end = gb_tree_first(s->shards, size, rank + 1);
  s->tag = (gb_grad_tag){ 0, 0 };
  s->tagged = false;
  s->open = true;
  if (s->comm) s->comm->step++;
  return GB_OK;
}

void gb_shards_abandon(gb_shards *s) {
  if (!s->open) return;
  gb_set_rng_state(s->context, s->seed, s->offset);
  for (int i = 0; i < s->n_parameters; i++) (void)gb_tensor_set_grad(s->parameters[i], s->before[i]);
  for (int i = 0; i < s->n_buffers; i++)
    if (gb_tensor_version(s->buffers[i]) != s->versions[i])
      (void)gb_dist_write(s->buffers[i], gb_lane_dtype((gb_dtype)s->buffers[i]->dtype), s->values[i]);
  if (s->comm && s->comm == gb_dist_comm(s->context) && s->comm->broken) fell(s); /* messages may reach the trees */
  let_go(s);
}

/* ====} */

/* {==== One shard ==== */

/* The seed of a shard's random numbers: another one for each, the same on whatever rank it runs. */
static uint64_t shard_seed(uint64_t seed, int64_t shard) {
  uint64_t z = seed + ((uint64_t)shard + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* The first sample of a shard; that of the shard past the last is the number of samples. */
static int64_t first_sample(const gb_shards *s, int64_t shard) {
  return (int64_t)((__int128)s->samples * shard / s->shards);
}

/* A shard's share of the samples, times the number of shards: 1 where all are equal. */
static double weight_of(const gb_shards *s, int64_t shard) {
  return (double)(first_sample(s, shard + 1) - first_sample(s, shard)) * (double)s->shards / (double)s->samples;
}

/* What is done to `count` values of a lane, from `place` on. */
typedef void (*lane_pass)(int which, void *place, const void *before, int64_t count, double weight);

static size_t lane_each(int which) { return which == FLOATS ? sizeof(float) : sizeof(double); }

/* The pass over so many values, piece by piece, with a look for a stop between them. before: as many, or NULL. */
static gb_status in_pieces(gb_shards *s, lane_pass pass, int which, void *place, const void *before, int64_t count,
                           double weight) {
  for (int64_t first = 0; first < count; first += GB_PIECE) {
    int64_t some = count - first < GB_PIECE ? count - first : GB_PIECE;
    size_t skip = (size_t)first * lane_each(which);
    GB_TRY(gb_poll_work(s->context, &s->work, some));
    pass(which, (char *)place + skip, before ? (const char *)before + skip : NULL, some, weight);
  }
  return GB_OK;
}

/* A pass: integers have no weight. */
static void weigh(int which, void *place, const void *before, int64_t count, double weight) {
  (void)before;
  if (weight == 1 || which == WHOLE) return;
  for (int64_t i = 0; i < count; i++)
    if (which == FLOATS) ((float *)place)[i] *= (float)weight;
    else ((double *)place)[i] *= weight;
}

/* A pass: zeros. */
static void clear(int which, void *place, const void *before, int64_t count, double weight) {
  (void)before, (void)weight;
  memset(place, 0, (size_t)count * lane_each(which));
}

/* The gradient goes into its leaf and from the parameter. */
static gb_status take_gradient(gb_shards *s, int i, void *const *leaves, int64_t first, double weight) {
  gb_tensor *parameter = s->parameters[i], *grad = gb_tensor_grad(parameter);
  int which = lane_number(parameter);
  gb_dtype dtype = gb_lane_dtype((gb_dtype)parameter->dtype);
  char *place = (char *)leaves[which] + (size_t)first * gb_dtype_bytes(dtype);
  ((float *)leaves[FLOATS])[i] = grad != NULL;
  if (!grad) return in_pieces(s, clear, which, place, NULL, parameter->numel, 1);
  gb_grad_tag tag = grad->tag;
  gb_status status = gb_dist_read(grad, dtype, place);
  gb_tensor_release(grad);
  GB_TRY(status);
  if (s->tagged && (s->tag.scaler != tag.scaler || s->tag.update != tag.update))
    return gb_fail(s->context, GB_EAUTOGRAD, "DataParallel:shards: gradients of two scalers, or scaled and unscaled "
                                             "ones, in one batch; scale every loss with the same scaler");
  s->tag = tag;
  s->tagged = true;
  GB_TRY(in_pieces(s, weigh, which, place, NULL, parameter->numel, weight));
  return gb_tensor_set_grad(parameter, NULL);
}

/* A pass: now - before for every element whose bits have changed; 0 where they have not, as of an infinite mask. */
static void change_of(int which, void *now, const void *before, int64_t count, double weight) {
  (void)weight;
  for (int64_t i = 0; i < count; i++)
    if (which == FLOATS) {
      float *n = (float *)now + i;
      const float *b = (const float *)before + i;
      *n = memcmp(n, b, sizeof *n) ? *n - *b : 0;
    } else if (which == DOUBLES) {
      double *n = (double *)now + i;
      const double *b = (const double *)before + i;
      *n = memcmp(n, b, sizeof *n) ? *n - *b : 0;
    } else ((int64_t *)now)[i] -= ((const int64_t *)before)[i];
}

/* What the shard did to a buffer goes into its leaf, and the buffer is what it was for the next shard. */
static gb_status take_buffer(gb_shards *s, int i, void *const *leaves, int64_t first, double weight) {
  gb_tensor *buffer = s->buffers[i];
  int which = lane_number(buffer);
  gb_dtype dtype = gb_lane_dtype((gb_dtype)buffer->dtype);
  char *place = (char *)leaves[which] + (size_t)first * gb_dtype_bytes(dtype);
  if (gb_tensor_version(buffer) == s->versions[i])
    return in_pieces(s, clear, which, place, NULL, buffer->numel, 1);
  GB_TRY(gb_dist_read(buffer, dtype, place));
  GB_TRY(in_pieces(s, change_of, which, place, s->values[i], buffer->numel, 1));
  GB_TRY(in_pieces(s, weigh, which, place, NULL, buffer->numel, weight));
  GB_TRY(gb_dist_write(buffer, dtype, s->values[i]));
  s->versions[i] = gb_tensor_version(buffer);
  return GB_OK;
}

/* What every rank must have alike, and the furthest place in the random stream. */
static void fill_whole(const gb_shards *s, int64_t *whole) {
  whole[NEXT_OFFSET] = (int64_t)s->next_offset;
  whole[TAG_SCALER] = s->tag.scaler;
  whole[TAG_UPDATE] = s->tag.update;
  const int64_t same[] = { (int64_t)s->seed, (int64_t)s->offset, s->samples, s->shards };
  for (int i = 0; i < 4; i++) whole[SEED + 2 * i] = same[i], whole[SEED + 2 * i + 1] = ~same[i];
}

static gb_status fill_leaves(gb_shards *s, void *const *leaves) {
  layout l = layout_begin(s);
  double weight = weight_of(s, s->shard), *doubles = leaves[DOUBLES];
  for (int i = 0; i < s->n_parameters; i++)
    GB_TRY(take_gradient(s, i, leaves, layout_next(&l, s->parameters[i]), weight));
  for (int i = 0; i < s->n_buffers; i++)
    GB_TRY(take_buffer(s, i, leaves, layout_next(&l, s->buffers[i]), weight));
  doubles[LOSS] = s->weight > 0 ? weight * (s->sum / s->weight) : 0;
  doubles[LOSS_WEIGHT] = s->weight > 0 ? weight : 0;
  fill_whole(s, leaves[WHOLE]);
  return GB_OK;
}

/* The shard that ran, or an empty one, becomes a leaf of each tree. */
static gb_status add_leaf(gb_shards *s) {
  void *leaves[LANES] = { NULL };
  uint64_t seed, offset;
  gb_status status = GB_OK;
  if (s->runs) {
    gb_get_rng_state(s->context, &seed, &offset);
    if (offset > s->next_offset) s->next_offset = offset;
  }
  for (int k = 0; k < LANES && status == GB_OK; k++)
    if (!(leaves[k] = gb_tree_leaf(&s->trees[k]))) status = GB_EMEMORY;
  if (status == GB_OK) status = fill_leaves(s, leaves);
  for (int k = 0; k < LANES; k++)
    if (status == GB_OK) status = gb_tree_add(&s->trees[k], s->shard, leaves[k]);
    else gb_counted_free(leaves[k]);
  return status;
}

/* ====} */

/* {==== The exchange ==== */

/* Have all ranks brought the same? */
static gb_status check_same(gb_shards *s, const int64_t *whole) {
  static const char *const names[] = { "seed of the random stream", "place in the random stream", "number of samples",
                                       "number of shards" };
  const int64_t mine[] = { (int64_t)s->seed, (int64_t)s->offset, s->samples, s->shards };
  for (int i = 0; i < 4; i++) {
    int64_t most = whole[SEED + 2 * i], least = ~whole[SEED + 2 * i + 1];
    if (s->comm) s->comm->together = most != least;
    if (most != least)
      return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the ranks do not agree on the %s: rank %d has %lld, "
                                            "the others from %lld to %lld; every rank runs the same recipe on the same "
                                            "batches", names[i], s->comm ? s->comm->rank : 0, (long long)mine[i],
                     (long long)least, (long long)most);
  }
  gb_grad_tag tag = { (uint32_t)whole[TAG_SCALER], (uint32_t)whole[TAG_UPDATE] };
  if (s->tagged && (s->tag.scaler != tag.scaler || s->tag.update != tag.update))
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: rank %d has scaled its loss by another scaler than "
                                          "another rank, or after another number of updates", s->comm->rank);
  s->tag = tag;
  return GB_OK;
}

/* The mean gradient of a parameter that some shard has used. */
static gb_status put_gradient(gb_shards *s, int i, void *place) {
  gb_tensor *parameter = s->parameters[i], *before = s->before[i], *made = NULL;
  gb_dtype dtype = gb_lane_dtype((gb_dtype)parameter->dtype);
  GB_TRY(in_pieces(s, weigh, lane_number(parameter), place, NULL, parameter->numel, 1 / (double)s->shards));
  gb_segment *segment = parameter->slab ? &parameter->slab->segments[parameter->segment] : NULL;
  if (segment && !before) { /* straight into the slab */
    GB_TRY(gb_dist_write(segment->grad, dtype, place));
    segment->grad->tag = s->tag;
    segment->has_grad = true;
    return GB_OK;
  }
  GB_TRY(gb_tensor_new(s->context, (gb_dtype)parameter->dtype, parameter->ndim, parameter->shape,
                       parameter->storage->device, &made));
  gb_status status = gb_dist_write(made, dtype, place);
  made->tag = s->tag;
  if (status == GB_OK && before) status = gb_tensor_set_grad(parameter, before);
  if (status == GB_OK) status = gb_accumulate_leaf(s->context, parameter, made, false);
  gb_tensor_release(made);
  return status;
}

/* The buffer, changed by the mean of what the shards did; integers grow by the most that one shard made of them. */
static gb_status put_buffer(gb_shards *s, int i, const void *place) {
  gb_tensor *buffer = s->buffers[i];
  int which = lane_number(buffer);
  bool changed = false;
  for (int64_t k = 0; k < buffer->numel; k++) {
    if (k % GB_PIECE == 0) GB_TRY(gb_poll(s->context));
    if (which == FLOATS) {
      float change = ((const float *)place)[k];
      if (change == 0) continue;
      ((float *)s->values[i])[k] += change / (float)s->shards;
    } else if (which == DOUBLES) {
      double change = ((const double *)place)[k];
      if (change == 0) continue;
      ((double *)s->values[i])[k] += change / (double)s->shards;
    } else {
      int64_t change = ((const int64_t *)place)[k];
      if (change == 0) continue;
      ((int64_t *)s->values[i])[k] += change;
    }
    changed = true;
  }
  return changed ? gb_dist_write(buffer, gb_lane_dtype((gb_dtype)buffer->dtype), s->values[i]) : GB_OK;
}

/* Sums of all ranks into parameters and buffers. */
static gb_status put_all(gb_shards *s, void *const *sums) {
  layout l = layout_begin(s);
  const float *used = sums[FLOATS];
  const double *doubles = sums[DOUBLES];
  for (int i = 0; i < s->n_parameters; i++) {
    gb_tensor *p = s->parameters[i];
    size_t first = (size_t)layout_next(&l, p) * gb_dtype_bytes(gb_lane_dtype((gb_dtype)p->dtype));
    GB_TRY(used[i] > 0 ? put_gradient(s, i, (char *)sums[lane_number(p)] + first)
                       : gb_tensor_set_grad(p, s->before[i]));
  }
  for (int i = 0; i < s->n_buffers; i++) {
    gb_tensor *b = s->buffers[i];
    size_t first = (size_t)layout_next(&l, b) * gb_dtype_bytes(gb_lane_dtype((gb_dtype)b->dtype));
    GB_TRY(put_buffer(s, i, (char *)sums[lane_number(b)] + first));
  }
  s->loss = doubles[LOSS_WEIGHT] > 0 ? doubles[LOSS] / doubles[LOSS_WEIGHT] : NAN;
  return GB_OK;
}

/* Integers first: where ranks disagree, nothing else is exchanged. */
static gb_status exchange(gb_shards *s) {
  static const int order[LANES] = { WHOLE, FLOATS, DOUBLES };
  void *sums[LANES];
  for (int k = 0; k < LANES; k++) {
    GB_TRY(gb_tree_finish(&s->trees[order[k]], &sums[order[k]]));
    if (order[k] == WHOLE) GB_TRY(check_same(s, sums[WHOLE]));
  }
  uint64_t next = (uint64_t)((int64_t *)sums[WHOLE])[NEXT_OFFSET];
  GB_TRY(put_all(s, sums));
  gb_set_rng_state(s->context, s->seed, next);
  return GB_OK;
}

static gb_status finish(gb_shards *s) {
  if (s->comm) GB_TRY(gb_comm_begin(s->comm, "DataParallel:shards"));
  gb_status status = exchange(s);
  if (s->comm) gb_comm_end(s->comm, status);
  if (status == GB_OK) let_go(s);
  return status;
}

/* ====} */

/* Is the job that the round began in still joined? */
static gb_status check_job(gb_shards *s) {
  if (!s->comm || s->comm == gb_dist_comm(s->context)) return GB_OK;
  return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the job was left in the loop over shards; call "
                                        "gb.dist.finalize() after it");
}

gb_status gb_shards_next(gb_shards *s, int64_t *first, int64_t *count) {
  *count = 0;
  if (!s->open) return GB_OK;
  gb_status status = check_job(s);
  if (status == GB_OK && s->runs) status = add_leaf(s);
  s->runs = false;
  for (s->shard++; status == GB_OK && s->shard < s->end; s->shard++) {
    *first = first_sample(s, s->shard);
    *count = first_sample(s, s->shard + 1) - *first;
    if (*count) break;
    s->sum = s->weight = 0;
    status = add_leaf(s);
  }
  if (status == GB_OK && s->shard < s->end) {
    s->runs = true;
    s->sum = s->weight = 0;
    gb_set_rng_state(s->context, shard_seed(s->seed, s->shard), s->offset);
    return GB_OK;
  }
  *count = 0;
  if (status == GB_OK) status = finish(s);
  if (status != GB_OK) gb_shards_abandon(s);
  return status;
}

gb_status gb_shards_record(gb_shards *s, double loss) {
  if (!s->runs)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:record: no shard runs; call it in the loop over shards");
  s->sum += loss;
  s->weight += 1;
  return GB_OK;
}

double gb_shards_loss(const gb_shards *s) { return s->loss; }

/* {==== The beginning ==== */

/* A number that tells lists of tensors apart, by names, shapes and dtypes (FNV-1a). */
static uint64_t fingerprint(gb_tensor *const *tensors, const char *const *names, int count, int64_t shards) {
  uint64_t hash = 0xCBF29CE484222325u ^ (uint64_t)shards;
  for (int i = 0; i < count; i++) {
    char shape[128];
    const char *texts[] = { names[i] ? names[i] : "", gb_dtype_name((gb_dtype)tensors[i]->dtype),
                            gb_shape_text(tensors[i]->ndim, tensors[i]->shape, shape, sizeof shape) };
    for (int k = 0; k < 3; k++)
      for (const char *at = texts[k];; at++) {
        hash = (hash ^ (unsigned char)*at) * 0x100000001B3u;
        if (!*at) break;
      }
  }
  return hash;
}

static gb_status compare(gb_shards *s, gb_comm *comm, uint64_t mine) {
  uint64_t *all = gb_counted_alloc(s->context, (size_t)comm->size * sizeof *all);
  if (!all) return GB_EMEMORY;
  gb_status status = gb_comm_gather(comm, &mine, sizeof mine, all);
  for (int r = 1; r < comm->size && status == GB_OK; r++)
    if ((comm->together = all[r] != all[0]))
      status = gb_fail(s->context, GB_ESHAPE, "DataParallel: the model of rank %d is not that of rank 0: its "
                                              "parameters or buffers have other names, shapes or dtypes, or there are "
                                              "other shards", r);
  gb_comm_free(comm, all);
  return status;
}

/* The state of the random stream, then the tensors. */
static gb_status adopt(gb_shards *s, gb_comm *comm, gb_tensor *const *tensors, int count) {
  uint64_t *random = gb_counted_alloc(s->context, 2 * sizeof *random);
  if (!random) return GB_EMEMORY;
  gb_get_rng_state(s->context, &random[0], &random[1]);
  gb_status status = gb_comm_broadcast(comm, 0, random, 2 * sizeof *random);
  if (status == GB_OK) gb_set_rng_state(s->context, random[0], random[1]);
  gb_comm_free(comm, random);
  for (int i = 0; i < count && status == GB_OK; i++) status = gb_dist_broadcast(comm, tensors[i], 0);
  return status;
}

gb_status gb_shards_agree(gb_shards *s, gb_tensor *const *tensors, const char *const *names, int count) {
  gb_comm *comm = gb_dist_comm(s->context);
  if (!comm || comm->size == 1) return GB_OK;
  GB_TRY(gb_comm_begin(comm, "DataParallel"));
  gb_status status = compare(s, comm, fingerprint(tensors, names, count, s->shards));
  if (status == GB_OK) status = adopt(s, comm, tensors, count);
  if (status == GB_OK) s->agreed = comm;
  return gb_comm_end(comm, status);
}

/* ====} */
