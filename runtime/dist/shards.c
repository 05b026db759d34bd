/* shards.c - rounds of virtual shards: leaves of trees are made of a shard's gradients, buffers, loss and integers.
 *
 * What is exchanged together is a unit, with a tree of its own. CONTROL: what ranks must agree on, as the larger of two
 * integers. LOSSES: the loss and the weight it counts with, and how many elements losses are the mean of. INTEGERS: a
 * flag for each parameter that has a gradient, and how far buffers of integers grew. BUFFERS32 and BUFFERS64: changes
 * of buffers. NORMS: what each process has measured of gradients that are shared out. From BUCKETS on gradients, the
 * parameters in reverse order. A shard counts by its share of the samples, so shards of unequal size, or empty ones,
 * still make the mean over the batch.
 *
 * CONTROL also tells whether the ranks have alike what they must; where they do not, the round is taken back on all of
 * them; and what ranks wish to be done after the step. So a step has one message beside its gradients, to each partner,
 * after the sums of these where they are measured (step/split.h). In a job of many, the sums run beside the
 * recipe (progress.h). Once a round has shown that the loop's body leaves a gradient as it is when it is final, a
 * bucket of the last shard goes out as soon as its gradients are final, while backward goes on; buckets go out in
 * order, so that all ranks exchange the same ones. That changes when they are summed up, and not how.
 *
 * A bucket lies as its parameters do in a slab. Where a rank has one shard, the slab's gradients are its leaf, and
 * become the sum, so that nothing is copied (find_home). Where all of a bucket's gradients are on one GPU, whose memory
 * the transport takes if there is one, the bucket lies there too (near.h); else in the host's memory.
 *
 * A round that holds exchanges CONTROL and LOSSES alone. Its other leaves stay with the shards of this rank, and the
 * next round adds to them: shard by shard, so that the sums do not depend on who runs which shard. Of buffers a held
 * leaf has the values themselves, from which the shard goes on. */
#include "dist/shards.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dist/progress.h"
#include "dist/room.h"
#include "graph/autograd.h"
#include "graph/finals.h"
#include "step/optimizer.h"
#include "step/split.h"
#include "tensor/slab.h"

enum { CONTROL, LOSSES, INTEGERS, BUFFERS32, BUFFERS64, NORMS, BUCKETS };

/* Of CONTROL. UNSTEADY: a gradient changed after it was final; SPOILED: and its bucket had gone out. LEFT: 1
 * above a rank that abandoned the round. */
enum { NEXT_OFFSET, TAG_SCALER, TAG_UPDATE, UNSTEADY, SPOILED, LEFT, WISHES,
       SAME = WISHES + GB_ROUND_WISHES };
/* From SAME on what must be the same: each stands twice, as the number and its complement, whose maxima tell whether
 * all agree. */
enum { SEED, OFFSET, LOADER, SAMPLES = LOADER + GB_ROUND_LOADER, PART, SHARDS, EXPECTED,
       WEIGHTS, SAME_COUNT,
       CONTROLS = SAME + 2 * SAME_COUNT };
/* Of LOSSES. */
enum { LOSS, LOSS_WEIGHT, COUNTED, WIDE };
/* Of NORMS: how many ranks have measured, and then the numbers of each slab. */
enum { MEASURED, NUMBERS };

#define SMALL_BYTES ((size_t)64 << 10)  /* a unit that goes with others in one message */
#define BUCKET_BYTES ((int64_t)1 << 20) /* of gradients, about; a larger parameter has a bucket nearly of its own */

/* The leaf that is being filled, and the sum of all; both are the tree's. waits: gradients of a bucket that are not
 * final yet. */
typedef struct unit {
  gb_shards *of;
  gb_lane lane;
  gb_tree tree;
  void *leaf, *sum;
  int waits;
  gb_task task;
  bool shared;                        /* a bucket whose sums are shared out between the ranks (step/split.h) */
  gb_piece *pieces;                   /* by whom: in order */
  int64_t n_pieces, most_pieces;
  int low, high;                      /* of a bucket: the first and the last parameter */
  gb_tensor *home;                    /* a slab's gradients, counted, in which the leaf lies; NULL: it is the tree's */
  gb_near near;                       /* where it lies, if lane.near is this */
  void *mark;                         /* its leaves are filled; of a bucket that is near and has gone out */
} unit;

/* All that units depend on in a tensor. elements: of the slab, where its gradient is shared out, else 0. near: 1 above
 * the device on which its gradient can be summed up, or 0. */
typedef struct kind { int64_t numel, dtype, elements, offset, measured, near; } kind;

/* A parameter, to be found by its address. */
typedef struct entry { const gb_tensor *parameter; int i; } entry;

/* A gradient when it was final, which is retained, so that no other one gets its address; NULL: it was not. */
typedef struct note { gb_tensor *grad; uint64_t version; } note;

/* Where the values of a tensor lie: from which number of which unit on. */
typedef struct spot { int unit; int64_t first; } spot;

/* What a shard of this rank holds from rounds before. */
typedef struct hold { void **leaves; double weight; } hold;

struct gb_shards {
  gb_context *context;
  int64_t shards;
  uint64_t agreed;                    /* the serial number of the job that gb_shards_agree compared in; 0: none */
  double loss;
  unit *units;                        /* NULL: none yet */
  int n_units;
  int64_t begin, own;                 /* the first shard of this rank, and how many it has */
  gb_comm *comm;                      /* of the units; NULL: one process */
  uint64_t job;                       /* its serial number, by which it is known once it may have been left; 0: none */
  kind *planted;                      /* the tensors that units were made for, parameters first */
  spot *spots;                        /* where these lie */
  int n_planted, n_planted_parameters;
  hold *held;                         /* of each shard of this rank; NULL: nothing is held */
  int64_t rounds_held;
  bool open, holds;                   /* a round is; it holds */
  int channels[2];                    /* of its messages: of every second bucket, and of all others */
  bool is_free;                       /* gradients are summed by the transport */
  bool observes, overlaps;            /* buckets may go out early once that was seen to be safe; and they do */
  bool may_crowd, crowded;            /* not where that hides nothing; which is so in this round */
  gb_comm_friend left;                /* where this was freed while a task of it ran */
  gb_leaf_watch watch;
  gb_task last;                       /* of all but the buckets */
  bool last_began;
  bool complete;                      /* this rank has begun all exchanges of the round */
  int out, rest;                      /* the next bucket to go out; and when the round was abandoned */
  bool unsteady, spoiled;
  entry *sorted;                      /* the parameters */
  note *noted;                        /* of each parameter */
  bool *early;                        /* it was taken then */
  bool *put;                          /* the parameter has the sum already */
  struct gb_owned_slab **slabs;       /* whose gradients are measured, in the order of their parameters */
  int n_slabs;
  int n_parameters, n_buffers;
  gb_tensor **parameters, **before;   /* with the gradients that they had, or NULL */
  gb_tensor **buffers;
  void **values;                      /* of the buffers when the round began, in their lane's dtype */
  uint64_t *versions;
  gb_round round;
  int64_t samples, shard;             /* shard: the one that runs */
  int64_t work;                       /* since the last look for a stop */
  bool runs;
  uint64_t weights;                   /* a digest of them when the round began */
  uint64_t seed, offset, next_offset; /* of the random stream: at the beginning, and the furthest that a shard came */
  double sum, weight;                 /* of the losses of the shard that runs */
  uint32_t wishes;                    /* of this rank in the round; then of all ranks in the last whole one */
  double counted;                     /* by all ranks, in the last round */
  bool miscounted;                    /* that was not what they had expected, and the round was taken back */
  gb_grad_tag tag;                    /* of every gradient of the round, once there is one */
  bool tagged;
};

static gb_status note_final(void *user, gb_tensor *leaf);

gb_status gb_shards_new(gb_context *context, const gb_shards_options *options, gb_shards **out) {
  const gb_comm *comm = gb_dist_comm(context);
  int64_t shards = options->is_free ? comm ? comm->size : 1 : options->shards;
  if (options->is_free) shards = shards > GB_SHARDS_MOST ? GB_SHARDS_MOST : shards;
  else if (shards < 1 || shards > GB_SHARDS_MOST || (shards & (shards - 1)))
    return gb_fail(context, GB_EINVAL, "DataParallel: shards is %lld; it must be a power of two up to %d",
                   (long long)shards, GB_SHARDS_MOST);
  if (comm && comm->size > shards)
    return gb_fail(context, GB_EINVAL, "DataParallel: %lld shards for %d processes; each needs one at least",
                   (long long)shards, comm->size);
  gb_shards *s = gb_counted_alloc(context, sizeof *s);
  if (!s) return GB_EMEMORY;
  gb_context_retain(s->context = context);
  s->shards = shards;
  s->observes = options->overlap != GB_OVERLAP_NEVER;
  s->may_crowd = options->overlap == GB_OVERLAP_WHERE_IT_HIDES;
  s->is_free = options->is_free;
  s->watch = (gb_leaf_watch){ note_final, s };
  s->loss = NAN;
  *out = s;
  return GB_OK;
}

/* {==== Where things lie ==== */

static int64_t last_shard(const gb_shards *s) { return s->begin + s->own - 1; }

/* The tensors of a round, parameters first. */
static gb_tensor *tensor_at(const gb_shards *s, int i) {
  return i < s->n_parameters ? s->parameters[i] : s->buffers[i - s->n_parameters];
}

static uint64_t serial_of(const gb_comm *comm) { return comm ? comm->serial : 0; }

/* Is the job of the units the one that is joined now? */
static bool is_joined(const gb_shards *s) { return s->comm && s->job == serial_of(gb_dist_comm(s->context)); }

/* No message reaches what is held. */
static void free_held(const unit *u, void *leaf) {
  if (!u->lane.near) gb_counted_free(leaf);
  else gb_comm_free_near(NULL, &u->near, leaf, gb_lane_bytes(&u->lane));
}

/* What is held goes. */
static void forget_held(gb_shards *s) {
  for (int64_t i = 0; s->held && i < s->own; i++) {
    for (int k = 0; s->held[i].leaves && k < s->n_units; k++) free_held(&s->units[k], s->held[i].leaves[k]);
    gb_counted_free(s->held[i].leaves);
  }
  gb_counted_free(s->held);
  s->held = NULL;
  s->rounds_held = 0;
}

/* No units. A job that has been left since needs no memory for messages any more. */
static void fell(gb_shards *s) {
  forget_held(s);
  for (int k = 0; k < s->n_units; k++) {
    gb_tree *tree = &s->units[k].tree;
    if (!is_joined(s)) tree->comm = NULL;
    gb_tree_drop(tree, s->units[k].leaf);
    gb_tree_free(tree);
    gb_near_unmark(&s->units[k].near, s->units[k].mark);
    gb_counted_free(s->units[k].pieces);
  }
  void *const lists[] = { s->units, s->planted, s->spots };
  for (int i = 0; i < 3; i++) gb_counted_free(lists[i]);
  s->units = NULL;
  s->planted = NULL;
  s->spots = NULL;
  s->n_units = s->n_planted = 0;
}

/* Is the gradient of a parameter shared out between the ranks of this job? */
static bool is_shared(const gb_comm *comm, const gb_tensor *parameter) {
  const gb_split *split = comm ? gb_split_of_gradient(parameter) : NULL;
  return split && split->size == comm->size && split->rank == comm->rank;
}

static kind kind_at(const gb_shards *s, const gb_comm *comm, int i) {
  const gb_tensor *t = tensor_at(s, i);
  gb_device device = t->storage->device;
  kind it = { .numel = t->numel, .dtype = t->dtype };
  if (i < s->n_parameters && gb_near_serves(s->context, comm, device)) it.near = device.index + 1;
  if (i >= s->n_parameters || s->is_free || !is_shared(comm, t)) return it;
  it.elements = t->slab->elements;
  it.measured = gb_split_measured(t) != NULL;
  it.offset = t->slab->segments[t->segment].offset;
  return it;
}

/* Were the units made for these tensors, in this job? */
static bool are_planted(const gb_shards *s, const gb_comm *comm) {
  int count = s->n_parameters + s->n_buffers, size = comm ? comm->size : 1, rank = comm ? comm->rank : 0;
  bool same = s->units && s->job == serial_of(comm) && s->n_planted == count &&
      s->n_planted_parameters == s->n_parameters;
  same = same && s->begin == gb_tree_first(s->shards, size, rank) &&
      s->begin + s->own == gb_tree_first(s->shards, size, rank + 1);
  for (int i = 0; same && i < count; i++) {
    kind now = kind_at(s, comm, i);
    if (s->held) now.measured = s->planted[i].measured; /* which may have changed meanwhile */
    same = memcmp(&s->planted[i], &now, sizeof now) == 0;
  }
  return same;
}

/* The bucket that a gradient of this dtype and size goes to, which may be a new one. One that is less than half full
 * takes what comes, or a bias would be sent by itself where the next weight fills a bucket. open: that of each kind. */
static int bucket_for(gb_shards *s, gb_dtype dtype, bool shared, int64_t count, int open[4]) {
  int *at = &open[2 * shared + (dtype == GB_FLOAT64)];
  int64_t most = BUCKET_BYTES / (int64_t)gb_dtype_bytes(dtype);
  count = gb_slab_room(count);
  int64_t has = *at ? s->units[*at].lane.count : 0;
  if (*at && (has + count <= most || 2 * has < most)) return *at;
  s->units[*at = s->n_units++].lane = (gb_lane){ dtype, GB_REDUCE_SUM, 0, NULL, NULL };
  s->units[*at].shared = shared;
  return *at;
}

static spot take_place(gb_shards *s, int k, int64_t count) {
  spot found = { k, s->units[k].lane.count };
  s->units[k].lane.count += count;
  return found;
}

/* In a bucket parameters lie in their order, as they do in slabs. */
static void place_parameters(gb_shards *s) {
  for (int k = BUCKETS; k < s->n_units; k++) s->units[k].lane.count = 0, s->units[k].low = -1;
  for (int i = 0; i < s->n_parameters; i++) {
    unit *u = &s->units[s->spots[i].unit];
    s->spots[i].first = u->lane.count;
    u->lane.count += gb_slab_room(s->parameters[i]->numel);
    if (u->low < 0) u->low = i;
    u->high = i;
  }
}

/* A bucket lies on a device where all of its gradients do. */
static void find_device(gb_shards *s, int k) {
  unit *u = &s->units[k];
  int64_t near = s->planted[u->low].near;
  for (int i = u->low; i <= u->high; i++)
    if (s->spots[i].unit == k && s->planted[i].near != near) near = 0;
  if (u->lane.count == 0) near = 0;
  u->near = (gb_near){ .context = s->context, .device = { GB_CUDA, (int16_t)(near - 1) } };
  u->lane.near = near ? &u->near : NULL;
}

/* Fill the lanes of the units, and find a place for each tensor. */
static void lay_out(gb_shards *s) {
  int open[4] = { 0, 0, 0, 0 };
  s->n_units = BUCKETS;
  s->units[CONTROL].lane = (gb_lane){ GB_INT64, GB_REDUCE_MAX, CONTROLS, NULL, NULL };
  s->units[LOSSES].lane = (gb_lane){ GB_FLOAT64, GB_REDUCE_SUM, WIDE, NULL, NULL };
  s->units[INTEGERS].lane = (gb_lane){ GB_INT64, GB_REDUCE_MAX, s->n_parameters, NULL, NULL };
  s->units[BUFFERS32].lane = (gb_lane){ GB_FLOAT32, GB_REDUCE_SUM, 0, NULL, NULL };
  s->units[BUFFERS64].lane = (gb_lane){ GB_FLOAT64, GB_REDUCE_SUM, 0, NULL, NULL };
  s->units[NORMS].lane = (gb_lane){ GB_FLOAT64, GB_REDUCE_SUM, s->n_slabs ? NUMBERS : 0, NULL, NULL };
  for (int i = 0; i < s->n_slabs; i++) s->units[NORMS].lane.count += gb_split_numbers(s->slabs[i]);
  for (int i = s->n_parameters - 1; i >= 0; i--) {
    int64_t count = s->parameters[i]->numel;
    gb_dtype dtype = gb_lane_dtype((gb_dtype)s->parameters[i]->dtype);
    s->spots[i] = take_place(s, bucket_for(s, dtype, s->planted[i].elements > 0, count, open), gb_slab_room(count));
  }
  place_parameters(s);
  for (int k = BUCKETS; k < s->n_units; k++) find_device(s, k);
  for (int i = 0; i < s->n_buffers; i++) {
    gb_dtype dtype = gb_lane_dtype((gb_dtype)s->buffers[i]->dtype);
    int k = dtype == GB_FLOAT32 ? BUFFERS32 : dtype == GB_FLOAT64 ? BUFFERS64 : INTEGERS;
    s->spots[s->n_parameters + i] = take_place(s, k, s->buffers[i]->numel);
  }
}

/* As many buckets as there may be: of each kind all but the last are half full. */
static size_t most_buckets(const gb_shards *s) {
  int64_t bytes = 0;
  for (int i = 0; i < s->n_parameters; i++) bytes += gb_slab_room(s->parameters[i]->numel) * (int64_t)sizeof(double);
  int64_t most = 2 * (bytes / BUCKET_BYTES) + 8;
  return (size_t)(most < s->n_parameters ? most : s->n_parameters);
}

/* {---- who gets what of the sums ---- */

/* So many more elements for that rank. */
static gb_status add_piece(gb_shards *s, unit *u, int64_t count, int owner) {
  if (u->n_pieces && u->pieces[u->n_pieces - 1].owner == owner) return u->pieces[u->n_pieces - 1].count += count, GB_OK;
  if (u->n_pieces == u->most_pieces) {
    int64_t most = 2 * u->most_pieces + 16;
    gb_piece *more = gb_counted_resize(s->context, u->pieces, (size_t)most * sizeof *more);
    if (!more) return GB_EMEMORY;
    u->pieces = more;
    u->most_pieces = most;
  }
  u->pieces[u->n_pieces++] = (gb_piece){ count, owner };
  return GB_OK;
}

/* The pieces of every bucket whose sums are shared out; what lies between parameters belongs to anyone. */
static gb_status cut_buckets(gb_shards *s, const gb_comm *comm) {
  for (int i = 0; i < s->n_parameters; i++) {
    const kind *it = &s->planted[i];
    int64_t end = it->offset + gb_slab_room(it->numel);
    for (int64_t from = it->offset, next; it->elements && from < end; from = next) {
      int owner = gb_split_owner(it->elements, comm->size, from, &next);
      if (next > end) next = end;
      GB_TRY(add_piece(s, &s->units[s->spots[i].unit], next - from, owner));
    }
  }
  return GB_OK;
}

/* ----} */

static gb_status make_units(gb_shards *s, gb_comm *comm) {
  int count = s->n_parameters + s->n_buffers, size = comm ? comm->size : 1, rank = comm ? comm->rank : 0;
  fell(s);
  s->units = gb_counted_alloc(s->context, (BUCKETS + most_buckets(s)) * sizeof *s->units);
  if (s->units) s->spots = gb_counted_alloc(s->context, (size_t)count * sizeof *s->spots);
  if (s->spots) s->planted = gb_counted_alloc(s->context, (size_t)count * sizeof *s->planted);
  if (!s->planted) return GB_EMEMORY;
  s->comm = comm;
  s->job = serial_of(comm);
  s->begin = gb_tree_first(s->shards, size, rank);
  s->own = gb_tree_first(s->shards, size, rank + 1) - s->begin;
  s->n_planted_parameters = s->n_parameters;
  for (int i = 0; i < count; i++) s->planted[s->n_planted++] = kind_at(s, comm, i);
  lay_out(s);
  for (int k = 0; k < s->n_units; k++) {
    s->units[k].of = s;
    gb_tree_begin(&s->units[k].tree, s->context, s->comm, &s->units[k].lane, s->shards);
    if (k >= BUCKETS && !s->is_free && !s->units[k].lane.near) s->units[k].tree.factor = 1 / (double)s->shards;
  }
  gb_status status = cut_buckets(s, comm);
  if (status != GB_OK) fell(s);
  return status;
}

/* Units for this round; those of the last one serve where the tensors are alike. */
static gb_status plant(gb_shards *s, gb_comm *comm) {
  bool same = are_planted(s, comm);
  if (!same && s->held)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: what no_sync has held is of other parameters or "
                                          "buffers; change them after a batch that exchanges");
  if (!same) return make_units(s, comm);
  for (int k = 0; k < s->n_units; k++) gb_tree_reset(&s->units[k].tree);
  return GB_OK;
}

/* ====} */

/* {==== Beginning and ending a round ==== */

/* Do the job's processes, all of them on this machine, compute on every core of it? */
static bool is_crowded(const gb_shards *s) {
  const gb_comm *comm = s->comm;
  if (!s->may_crowd || !comm || comm->transport.local_size < comm->size) return false;
  for (int i = 0; i < s->n_parameters; i++)
    if (s->parameters[i]->storage->device.type != GB_CPU) return false;
  return (int64_t)comm->size * gb_threads_count(s->context->threads) >= gb_threads_cores();
}

/* Gradients are watched while a shard of a job runs, by one model at a time. */
static void start_watching(gb_shards *s) {
  gb_graph_room *graph = s->context->graph;
  if (s->comm && s->observes && !s->crowded && !graph->watch) graph->watch = &s->watch;
}

static void stop_watching(gb_shards *s) {
  gb_graph_room *graph = s->context->graph;
  if (graph->watch == &s->watch) graph->watch = NULL;
}

/* Everything that goes on beside the recipe is done; the first failure, whose text is the context's where `says`. */
static gb_status await_all(gb_shards *s, bool says) {
  gb_status status = GB_OK;
  int count = s->comm ? s->out - BUCKETS : 0;
  for (int i = 0; i <= count; i++) {
    gb_task *task = i < count ? &s->units[BUCKETS + i].task : &s->last;
    if (i == count && !s->last_began) continue;
    if (status == GB_OK) status = says ? gb_progress_wait(s->context, task) : gb_progress_await(task);
    else (void)gb_progress_await(task);
  }
  for (int k = BUCKETS; k < s->n_units; k++) {
    gb_near_unmark(&s->units[k].near, s->units[k].mark);
    s->units[k].mark = NULL;
  }
  s->last_began = false;
  s->out = BUCKETS;
  return status;
}

static void forget_note(gb_shards *s, int i) {
  gb_tensor_release(s->noted[i].grad);
  s->noted[i] = (note){ NULL, 0 };
}

/* No leaf lies in a slab any more. Messages of a broken job may still reach it. */
static void leave_slabs(gb_shards *s) {
  for (int k = BUCKETS; k < s->n_units; k++) {
    unit *u = &s->units[k];
    if (!u->home) continue;
    u->leaf = NULL;
    u->tree.count = 0;
    if (!is_joined(s) || !s->comm->broken) gb_tensor_release(u->home);
    u->home = NULL;
  }
}

/* What a round keeps goes; the units stay for the next one. */
static void let_go(gb_shards *s) {
  stop_watching(s);
  leave_slabs(s);
  for (int i = 0; i < s->n_parameters; i++) {
    gb_tensor_release(s->parameters[i]);
    gb_tensor_release(s->before[i]);
    forget_note(s, i);
  }
  for (int i = 0; i < s->n_buffers; i++) {
    gb_tensor_release(s->buffers[i]);
    gb_counted_free(s->values[i]);
  }
  void *const lists[] = { s->parameters, s->before, s->buffers, s->values, s->versions, s->sorted, s->noted,
                          s->early, s->put, s->slabs };
  for (int i = 0; i < 10; i++) gb_counted_free(lists[i]);
  s->parameters = s->before = s->buffers = NULL;
  s->values = NULL;
  s->versions = NULL;
  s->sorted = NULL;
  s->noted = NULL;
  s->early = s->put = NULL;
  s->slabs = NULL;
  s->n_parameters = s->n_buffers = s->n_slabs = 0;
  s->open = s->runs = false;
}

static void free_units(gb_shards *s) {
  fell(s);
  gb_counted_free(s);
}

/* The job is left, and so its tasks are done. */
static void free_late(gb_comm_friend *it) { free_units((gb_shards *)((char *)it - offsetof(gb_shards, left))); }

/* Nobody waits for what tells the others that a round was abandoned, which they may never come to: it goes with the
 * job. */
void gb_shards_free(gb_shards *s) {
  if (!s) return;
  gb_context *context = s->context;
  if (is_joined(s) && !s->open && s->last_began && !atomic_load(&s->last.done)) {
    s->left.left = free_late;
    gb_comm_befriend(s->comm, &s->left);
  } else {
    (void)await_all(s, false);
    let_go(s);
    free_units(s);
  }
  gb_context_release(context);
}

static gb_status allocate(gb_shards *s, int n_parameters, int n_buffers) {
  size_t p = (size_t)n_parameters, b = (size_t)n_buffers;
  s->parameters = gb_counted_alloc(s->context, p * sizeof *s->parameters);
  if (s->parameters) s->before = gb_counted_alloc(s->context, p * sizeof *s->before);
  if (s->before) s->buffers = gb_counted_alloc(s->context, b * sizeof *s->buffers);
  if (s->buffers) s->values = gb_counted_alloc(s->context, b * sizeof *s->values);
  if (s->values) s->versions = gb_counted_alloc(s->context, b * sizeof *s->versions);
  if (s->versions) s->sorted = gb_counted_alloc(s->context, p * sizeof *s->sorted);
  if (s->sorted) s->noted = gb_counted_alloc(s->context, p * sizeof *s->noted);
  if (s->noted) s->early = gb_counted_alloc(s->context, p * sizeof *s->early);
  if (s->early) s->put = gb_counted_alloc(s->context, p * sizeof *s->put);
  if (s->put) s->slabs = gb_counted_alloc(s->context, p * sizeof *s->slabs);
  return s->slabs ? GB_OK : GB_EMEMORY;
}

/* What the parameter's gradient is so far, as a tensor that the round will not write. */
static gb_status keep_gradient(gb_shards *s, gb_tensor *parameter, gb_tensor **out) {
  gb_tensor *grad = gb_tensor_grad(parameter);
  if (!grad) return GB_OK;
  bool before = gb_set_grad_enabled(s->context, false);
  gb_status status = GB_RUN(s->context, clone, out, .x = grad);
  gb_set_grad_enabled(s->context, before);
  if (status == GB_OK) gb_tensor_copy_tag(*out, grad);
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

static int by_address(const void *a, const void *b) {
  uintptr_t left = (uintptr_t)((const entry *)a)->parameter, right = (uintptr_t)((const entry *)b)->parameter;
  return left < right ? -1 : left > right;
}

/* Parameters that are not trained, and buffers of bools, which are masks, take no part. */
static gb_status take_all(gb_shards *s, gb_tensor *const *parameters, int n_parameters, gb_tensor *const *buffers,
                          int n_buffers) {
  GB_TRY(allocate(s, n_parameters, n_buffers));
  for (int i = 0; i < n_parameters; i++)
    if (parameters[i]->requires_grad) gb_tensor_retain(s->parameters[s->n_parameters++] = parameters[i]);
  for (int i = 0; i < n_buffers; i++)
    if (buffers[i]->dtype != GB_BOOL) gb_tensor_retain(s->buffers[s->n_buffers++] = buffers[i]);
  for (int i = 0; i < s->n_parameters; i++) s->sorted[i] = (entry){ s->parameters[i], i };
  if (s->n_parameters) qsort(s->sorted, (size_t)s->n_parameters, sizeof *s->sorted, by_address);
  for (int i = 0; i < s->n_buffers; i++) GB_TRY(keep_buffer(s, i));
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(keep_gradient(s, s->parameters[i], &s->before[i]));
  return GB_OK;
}

/* {---- what must be the same ---- */

static const uint64_t FIRST_HASH = 0xCBF29CE484222325u;

/* FNV-1a, word by word. */
static uint64_t hash_word(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x100000001B3u; }

/* Of bytes that are a whole number of words, or less than one. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, (const char *)bytes + at, count - at < sizeof word ? count - at : sizeof word);
    hash = hash_word(hash, word);
  }
  return hash;
}

/* A number of the first and one more element of each parameter, another one in each round: it tells processes apart
 * whose weights have come to differ, as by other steps. Weights on a GPU would have to be waited for, and those that
 * other processes keep are not here. */
static uint64_t digest_weights(const gb_shards *s) {
  uint64_t hash = FIRST_HASH;
  for (int i = 0; i < s->n_parameters; i++) {
    const gb_tensor *t = s->parameters[i];
    size_t each = gb_dtype_bytes((gb_dtype)t->dtype);
    if (t->storage->device.type != GB_CPU || t->storage->away == GB_AWAY || !t->numel) continue;
    int64_t other = gb_tensor_is_contiguous(t) ? (int64_t)((uint64_t)s->comm->step * 0x9E3779B1u) % t->numel : 0;
    hash = hash_bytes(hash, gb_data(t), each);
    hash = hash_bytes(hash, (const char *)gb_data(t) + (size_t)other * each, each);
  }
  return hash;
}

/* In the order of SEED, OFFSET, ... */
static void list_same(const gb_shards *s, int64_t same[SAME_COUNT]) {
  const gb_round *round = &s->round;
  same[SEED] = (int64_t)s->seed;
  same[OFFSET] = (int64_t)s->offset;
  memcpy(&same[LOADER], round->loader, sizeof round->loader);
  same[SAMPLES] = round->samples;
  same[PART] = round->odd;
  same[SHARDS] = s->shards;
  same[EXPECTED] = round->expected;
  same[WEIGHTS] = (int64_t)s->weights;
}

/* Have all ranks brought the same? Where they have not, all know it, and the job stays whole. */
static gb_status check_same(gb_shards *s, const int64_t *control) {
  static const char *const names[SAME_COUNT] = {
    "seed of the random stream (in a loop over shards it is the shard's own: loops over two models do not nest)",
    "place in the random stream", "seed of the DataLoader",
    "number of samples of the DataLoader's dataset", "batch_size of the DataLoader",
    "place of the DataLoader (2^32 times the epoch, and the batch)", "order of the DataLoader's samples (a digest)",
    "number of samples",
    "batch (0: it has the samples of the rank's shards; give what a DataLoader with parts = model gave)",
    "number of shards",
    "number of elements that the loss is the mean of (0: it is not known before; every rank's targets have one shape)",
    "weights when the batch began (a digest of some of them: one rank has stepped, skipped or written them otherwise, "
    "or by another optimizer or rate)",
  };
  int64_t mine[SAME_COUNT];
  list_same(s, mine);
  for (int i = 0; i < SAME_COUNT; i++) {
    int64_t most = control[SAME + 2 * i], least = ~control[SAME + 2 * i + 1];
    if (most == least) continue;
    s->comm->together = true;
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the ranks do not agree on the %s: rank %d has %lld, "
                                          "the others from %lld to %lld; every rank runs the same recipe on the same "
                                          "batches", names[i], s->comm->rank, (long long)mine[i], (long long)least,
                   (long long)most);
  }
  return GB_OK;
}

/* Every second bucket has a thread and messages of its own, so that the network is not idle while one adds up or waits
 * for its partner. Sums of the transport keep one order. */
static int lane_of(const gb_shards *s, int k) { return k >= BUCKETS && !s->is_free && (k - BUCKETS) % 2; }

/* A task begins, with messages of its own. k: its unit. */
static void begin_task(gb_shards *s, gb_task *task, int k, gb_status (*run)(gb_task *task)) {
  int lane = lane_of(s, k);
  gb_comm own = { .context = s->context, .job = s->comm, .rank = s->comm->rank, .size = s->comm->size,
                  .timeout = s->comm->timeout, .channel = s->channels[lane] };
  task->run = run;
  task->operation = "DataParallel:shards";
  gb_progress_begin(&own, lane ? GB_QUEUE_SHARDS_ODD : GB_QUEUE_SHARDS, task);
}

/* ----} */

/* The slabs whose gradients are measured in the round, each once. */
static void find_slabs(gb_shards *s, const gb_comm *comm) {
  for (int i = 0; i < s->n_parameters; i++) {
    bool is_measured = s->held ? i < s->n_planted && s->planted[i].measured : kind_at(s, comm, i).measured;
    struct gb_owned_slab *owned = is_measured ? gb_split_measured(s->parameters[i]) : NULL;
    int k = 0;
    if (!owned) continue;
    while (k < s->n_slabs && s->slabs[k] != owned) k++;
    if (k == s->n_slabs) s->slabs[s->n_slabs++] = owned;
  }
}

/* What a round of these tensors needs. */
static gb_status prepare(gb_shards *s, gb_comm *comm, gb_tensor *const *parameters, int n_parameters,
                         gb_tensor *const *buffers, int n_buffers) {
  GB_TRY(take_all(s, parameters, n_parameters, buffers, n_buffers));
  find_slabs(s, comm);
  GB_TRY(plant(s, comm));
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(gb_tensor_set_grad(s->parameters[i], NULL));
  return GB_OK;
}

gb_status gb_shards_begin(gb_shards *s, gb_tensor *const *parameters, int n_parameters, gb_tensor *const *buffers,
                          int n_buffers, const gb_round *round) {
  gb_comm *comm = gb_dist_comm(s->context);
  if (s->open)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the shards of another batch are still being run; end "
                                          "that loop first");
  if (round->samples < 1)
    return gb_fail(s->context, GB_ESHAPE, "DataParallel:shards: the batch has no samples");
  if (comm && comm->size > 1 && s->agreed != comm->serial)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the model was wrapped before gb.dist.init(); wrap it "
                                          "after that, so that all ranks begin with the same weights");
  comm = comm && comm->size > 1 ? comm : NULL;
  (void)await_all(s, false); /* the end of a round that was abandoned */
  if (comm) GB_TRY(gb_comm_begin(comm, "DataParallel:shards"));
  s->holds = round->holds;
  gb_status status = prepare(s, comm, parameters, n_parameters, buffers, n_buffers);
  if (status != GB_OK) return let_go(s), status;
  gb_get_rng_state(s->context, &s->seed, &s->offset);
  s->next_offset = s->offset;
  s->round = *round;
  s->samples = round->samples;
  s->wishes = 0;
  s->counted = 0;
  s->miscounted = false;
  s->shard = s->begin - 1;
  if (!s->held) s->tag = (gb_grad_tag){ 0, 0 }, s->tagged = false;
  s->open = true;
  s->out = BUCKETS;
  s->crowded = is_crowded(s);
  s->overlaps &= !s->crowded;
  s->unsteady = s->spoiled = s->complete = false;
  for (int k = BUCKETS; k < s->n_units; k++) s->units[k].waits = 0;
  for (int i = 0; i < s->n_parameters; i++) s->units[s->spots[i].unit].waits++;
  if (!s->comm) return GB_OK;
  s->comm->step++;
  s->weights = s->is_free ? 0 : digest_weights(s); /* sums of the transport may differ from rank to rank */
  return GB_OK;
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
typedef void (*lane_pass)(gb_dtype dtype, void *place, const void *before, int64_t count, double weight);

/* The pass over so many values, piece by piece, with a look for a stop between them. before: as many, or NULL. */
static gb_status in_pieces(gb_shards *s, lane_pass pass, gb_dtype dtype, void *place, const void *before,
                           int64_t count, double weight) {
  for (int64_t first = 0; first < count; first += GB_PIECE) {
    int64_t some = count - first < GB_PIECE ? count - first : GB_PIECE;
    size_t skip = (size_t)first * gb_dtype_bytes(dtype);
    GB_TRY(gb_poll_work(s->context, &s->work, some));
    pass(dtype, (char *)place + skip, before ? (const char *)before + skip : NULL, some, weight);
  }
  return GB_OK;
}

/* A pass: integers have no weight. */
static void weigh(gb_dtype dtype, void *place, const void *before, int64_t count, double weight) {
  (void)before;
  if (weight != 1 && dtype != GB_INT64) gb_multiply(dtype, place, count, weight);
}

/* A pass: zeros. */
static void clear(gb_dtype dtype, void *place, const void *before, int64_t count, double weight) {
  (void)before, (void)weight;
  memset(place, 0, (size_t)count * gb_dtype_bytes(dtype));
}

/* A pass: a copy. */
static void copy_of(gb_dtype dtype, void *place, const void *before, int64_t count, double weight) {
  (void)weight;
  memcpy(place, before, (size_t)count * gb_dtype_bytes(dtype));
}

/* A pass: now - before for every element whose bits have changed; 0 where they have not, as of an infinite mask. */
static void change_of(gb_dtype dtype, void *now, const void *before, int64_t count, double weight) {
  (void)weight;
  for (int64_t i = 0; i < count; i++)
    if (dtype == GB_FLOAT32) {
      float *n = (float *)now + i;
      const float *b = (const float *)before + i;
      *n = memcmp(n, b, sizeof *n) ? *n - *b : 0;
    } else if (dtype == GB_FLOAT64) {
      double *n = (double *)now + i;
      const double *b = (const double *)before + i;
      *n = memcmp(n, b, sizeof *n) ? *n - *b : 0;
    } else ((int64_t *)now)[i] = (int64_t)(((uint64_t *)now)[i] - ((const uint64_t *)before)[i]);
}

/* Where a unit's values begin among so many places in memory. */
static void *place_in(const gb_shards *s, spot at, void *data) {
  return (char *)data + (size_t)at.first * gb_dtype_bytes(s->units[at.unit].lane.dtype);
}

/* Multiply so many values of a unit. */
static gb_status scale(gb_shards *s, spot at, void *place, int64_t count, double weight) {
  const gb_lane *lane = &s->units[at.unit].lane;
  if (lane->near) return gb_near_scale(lane->near, lane->dtype, place, count, weight);
  return in_pieces(s, weigh, lane->dtype, place, NULL, count, weight);
}

static gb_status clear_values(gb_shards *s, spot at, void *place, int64_t count) {
  const gb_lane *lane = &s->units[at.unit].lane;
  if (lane->near) return gb_near_clear(lane->near, NULL, place, (size_t)count * gb_dtype_bytes(lane->dtype));
  return in_pieces(s, clear, lane->dtype, place, NULL, count, 1);
}

static void *leaf_at(const gb_shards *s, spot at) { return place_in(s, at, s->units[at.unit].leaf); }

/* All gradients of a round carry one tag. */
static gb_status take_tag(gb_shards *s, gb_grad_tag tag) {
  if (tag.scaler == GB_TAG_MIXED)
    return gb_fail(s->context, GB_EAUTOGRAD, "DataParallel:shards: a gradient %s", gb_mixed_tag_text(tag));
  if (s->tagged && (s->tag.scaler != tag.scaler || s->tag.update != tag.update))
    return gb_fail(s->context, GB_EAUTOGRAD, "DataParallel:shards: gradients of two scalers, or scaled and unscaled "
                                             "ones, in one batch; scale every loss with the same scaler");
  s->tag = tag;
  s->tagged = true;
  return GB_OK;
}

/* Of gradients, so many numbers were copied. */
static void count_copy(const gb_shards *s, gb_dtype dtype, int64_t count) {
  if (s->comm) gb_comm_count_copy(s->comm, (size_t)count * gb_dtype_bytes(dtype));
}

/* Between a GPU and the host's memory. */
static void count_staged(const gb_shards *s, const gb_tensor *grad, gb_dtype dtype) {
  if (s->comm && grad->storage->device.type != GB_CPU)
    gb_comm_count_staged(s->comm, (size_t)grad->numel * gb_dtype_bytes(dtype));
}

/* The values of a gradient go into its leaf, or back. */
static gb_status copy_in(gb_shards *s, spot at, gb_tensor *grad, void *place) {
  const gb_lane *lane = &s->units[at.unit].lane;
  count_copy(s, lane->dtype, grad->numel);
  if (lane->near) return gb_near_read(lane->near, grad, lane->dtype, place);
  count_staged(s, grad, lane->dtype);
  return gb_dist_read(grad, lane->dtype, place);
}

static gb_status copy_out(gb_shards *s, spot at, gb_tensor *grad, void *place) {
  const gb_lane *lane = &s->units[at.unit].lane;
  count_copy(s, lane->dtype, grad->numel);
  if (lane->near) return gb_near_write(lane->near, grad, lane->dtype, place);
  count_staged(s, grad, lane->dtype);
  return gb_dist_write(grad, lane->dtype, place);
}

/* The values of a gradient go into its leaf, if they do not lie there. */
static gb_status take_values(gb_shards *s, int i, gb_tensor *grad, double weight) {
  spot at = s->spots[i];
  void *place = leaf_at(s, at);
  GB_TRY(take_tag(s, gb_tensor_tag(grad)));
  if (gb_data(grad) != place) GB_TRY(copy_in(s, at, grad, place));
  return scale(s, at, place, s->parameters[i]->numel, weight);
}

/* Another tensor may well have the same version. */
static bool is_as_noted(const note *noted, const gb_tensor *grad) {
  return grad == noted->grad && gb_tensor_version(grad) == noted->version;
}

/* The gradient goes into its leaf, if it is not there yet, and from the parameter. */
static gb_status take_gradient(gb_shards *s, int i, double weight) {
  gb_tensor *parameter = s->parameters[i], *grad = gb_tensor_grad(parameter);
  bool changed = s->noted[i].grad && !is_as_noted(&s->noted[i], grad);
  ((int64_t *)s->units[INTEGERS].leaf)[i] = grad != NULL;
  s->unsteady |= changed;
  s->spoiled |= changed && s->early[i];
  forget_note(s, i);
  gb_status status = GB_OK;
  int64_t spare = gb_slab_room(parameter->numel) - parameter->numel; /* between parameters there are zeros */
  spot end = { s->spots[i].unit, s->spots[i].first + parameter->numel };
  if (!s->early[i] && spare) status = clear_values(s, end, leaf_at(s, end), spare);
  if (status == GB_OK && !s->early[i] && !grad)
    status = clear_values(s, s->spots[i], leaf_at(s, s->spots[i]), parameter->numel);
  else if (status == GB_OK && !s->early[i]) status = take_values(s, i, grad, weight);
  gb_tensor_release(grad);
  GB_TRY(status);
  return gb_tensor_set_grad(parameter, NULL);
}

/* The values of the buffer go into its leaf, and the buffer is what it was for the next shard. */
static gb_status take_buffer(gb_shards *s, int i) {
  gb_tensor *buffer = s->buffers[i];
  gb_dtype dtype = gb_lane_dtype((gb_dtype)buffer->dtype);
  void *place = leaf_at(s, s->spots[s->n_parameters + i]);
  if (gb_tensor_version(buffer) == s->versions[i])
    return in_pieces(s, copy_of, dtype, place, s->values[i], buffer->numel, 1);
  GB_TRY(gb_dist_read(buffer, dtype, place));
  GB_TRY(gb_dist_write(buffer, dtype, s->values[i]));
  s->versions[i] = gb_tensor_version(buffer);
  return GB_OK;
}

static void fill_control(const gb_shards *s, int64_t *control) {
  const int64_t values[SAME] = { (int64_t)s->next_offset, s->tag.scaler, s->tag.update, s->unsteady, s->spoiled, 0 };
  int64_t same[SAME_COUNT];
  memcpy(control, values, sizeof values);
  for (int i = 0; i < GB_ROUND_WISHES; i++) control[WISHES + i] = s->wishes >> i & 1;
  list_same(s, same);
  for (int i = 0; i < SAME_COUNT; i++) control[SAME + 2 * i] = same[i], control[SAME + 2 * i + 1] = ~same[i];
}

static gb_status fill_leaves(gb_shards *s) {
  double weight = weight_of(s, s->shard), *losses = s->units[LOSSES].leaf;
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(take_gradient(s, i, weight));
  for (int i = 0; i < s->n_buffers; i++) GB_TRY(take_buffer(s, i));
  losses[LOSS] = s->weight > 0 ? weight * (s->sum / s->weight) : 0;
  losses[LOSS_WEIGHT] = s->weight > 0 ? weight : 0;
  losses[COUNTED] = s->shard == last_shard(s) ? s->round.counted : 0;
  fill_control(s, s->units[CONTROL].leaf);
  return GB_OK;
}

/* {---- what a shard holds from rounds before ---- */

/* A shard goes on from the buffers that it left in the round before. */
static gb_status bring_buffers(gb_shards *s) {
  void **held = s->held ? s->held[s->shard - s->begin].leaves : NULL;
  for (int i = 0; held && i < s->n_buffers; i++) {
    gb_tensor *buffer = s->buffers[i];
    gb_dtype dtype = gb_lane_dtype((gb_dtype)buffer->dtype);
    spot at = s->spots[s->n_parameters + i];
    const void *place = place_in(s, at, held[at.unit]);
    if (memcmp(place, s->values[i], (size_t)buffer->numel * gb_dtype_bytes(dtype)))
      GB_TRY(gb_dist_write(buffer, dtype, place));
  }
  return GB_OK;
}

/* Gradients and flags of this round are added to what is held; of buffers the later values count, and those that are
 * held where the shard was empty. */
static gb_status add_held(gb_shards *s, hold *h, bool empty) {
  for (int i = 0; i < s->n_parameters; i++) {
    int64_t *now = (int64_t *)s->units[INTEGERS].leaf + i;
    *now |= ((const int64_t *)h->leaves[INTEGERS])[i];
  }
  for (int i = 0; empty && i < s->n_buffers; i++) {
    spot at = s->spots[s->n_parameters + i];
    GB_TRY(in_pieces(s, copy_of, s->units[at.unit].lane.dtype, leaf_at(s, at), place_in(s, at, h->leaves[at.unit]),
                     s->buffers[i]->numel, 1));
  }
  for (int k = BUCKETS; k < s->n_units; k++) {
    unit *u = &s->units[k];
    void *now = u->leaf;
    GB_TRY(gb_reduce_in_pieces(s->context, &u->lane, h->leaves[k], now, u->lane.count));
    u->leaf = h->leaves[k];
    h->leaves[k] = now;
  }
  return GB_OK;
}

/* The leaves stay with the shard, which has none yet or gives its own for them. */
static gb_status hold_leaves(gb_shards *s, hold *h) {
  if (!h->leaves && !(h->leaves = gb_counted_alloc(s->context, (size_t)s->n_units * sizeof *h->leaves)))
    return GB_EMEMORY;
  for (int k = INTEGERS; k < s->n_units; k++) {
    unit *u = &s->units[k];
    void *other = h->leaves[k];
    h->leaves[k] = u->leaf;
    u->leaf = NULL;
    if (other) gb_tree_spare(&u->tree, other);
  }
  return GB_OK;
}

/* Values of buffers become what the shard changed, by its share of the samples. */
static gb_status find_changes(gb_shards *s, double weight) {
  for (int i = 0; i < s->n_buffers; i++) {
    gb_dtype dtype = gb_lane_dtype((gb_dtype)s->buffers[i]->dtype);
    void *place = leaf_at(s, s->spots[s->n_parameters + i]);
    GB_TRY(in_pieces(s, change_of, dtype, place, s->values[i], s->buffers[i]->numel, 1));
    GB_TRY(in_pieces(s, weigh, dtype, place, NULL, s->buffers[i]->numel, weight));
  }
  return GB_OK;
}

/* ----} */

/* A bucket that has gone out is the task's. */
static bool is_out(const gb_shards *s, int k) { return k >= BUCKETS && k < s->out; }

/* The filled leaf of a shard goes into its tree. */
static gb_status plant_leaf(unit *u, int64_t shard) {
  void *leaf = u->leaf;
  u->leaf = NULL;
  return leaf ? gb_tree_add(&u->tree, shard, leaf) : GB_OK;
}

/* Filled leaves go to where they belong: into the trees, or to what is held. */
static gb_status settle_leaves(gb_shards *s, bool empty) {
  hold *h = s->held ? &s->held[s->shard - s->begin] : NULL;
  double weight = weight_of(s, s->shard);
  if (h && h->leaves) GB_TRY(add_held(s, h, empty));
  if (h) h->weight += weight;
  if (s->holds) GB_TRY(hold_leaves(s, h));
  else GB_TRY(find_changes(s, h ? h->weight / (double)(s->rounds_held + 1) : weight));
  for (int k = 0; k < s->n_units; k++)
    if (!is_out(s, k)) GB_TRY(plant_leaf(&s->units[k], s->shard)); /* not that of NORMS, which comes last */
  return GB_OK;
}

/* The unit has memory for the leaf of this shard. */
static gb_status need_leaf(unit *u) {
  if (u->lane.near && u->near.context->capturing)
    return gb_fail(u->near.context, GB_ESTATE, "DataParallel:shards: gradients cannot be summed up while a graph is "
                                               "captured; capture no loop over shards");
  if (!u->leaf) u->leaf = gb_tree_leaf(&u->tree);
  return u->leaf ? GB_OK : GB_EMEMORY;
}

/* May a leaf be summed up where it lies? Then the tree has no other node, and keeps that one where it is. */
static bool sums_in_place(const gb_shards *s) {
  if (!s->comm || s->own > 1 || s->holds || s->held) return false;
  if (s->is_free) return s->comm->transport.sum != NULL;
  return s->shards == s->comm->size;
}

/* Where the bucket's gradients lie as in its leaf: from the element *first on of a slab's; NULL: they do not. */
static gb_tensor *find_home(const gb_shards *s, int k, int64_t *first) {
  gb_slab *slab = NULL;
  const unit *u = &s->units[k];
  for (int i = u->low; sums_in_place(s) && i <= u->high; i++) {
    const gb_tensor *parameter = s->parameters[i];
    if (s->spots[i].unit != k) continue;
    if (!parameter->slab || s->before[i] || !gb_is_contiguous(parameter)) return NULL;
    int64_t begin = parameter->slab->segments[parameter->segment].offset - s->spots[i].first;
    if (slab && (slab != parameter->slab || begin != *first)) return NULL;
    slab = parameter->slab;
    *first = begin;
  }
  bool fits = slab && slab->gradients->dtype == (int8_t)u->lane.dtype &&
      (u->lane.near || slab->gradients->storage->device.type == GB_CPU);
  return fits ? slab->gradients : NULL;
}

/* The unit has a leaf for this shard. */
static gb_status open_leaf(gb_shards *s, int k) {
  unit *u = &s->units[k];
  int64_t first = 0;
  gb_tensor *home = k >= BUCKETS && !u->leaf ? find_home(s, k, &first) : NULL;
  if (!home) return need_leaf(u);
  gb_tensor_retain(u->home = home);
  u->leaf = gb_data(home) + (size_t)first * gb_dtype_bytes(u->lane.dtype);
  return GB_OK;
}

/* The shard that ran, or an empty one, becomes a leaf of each tree. */
static gb_status add_leaf(gb_shards *s) {
  uint64_t seed, offset;
  bool empty = !s->runs;
  gb_status status = GB_OK;
  if (s->runs) {
    gb_get_rng_state(s->context, &seed, &offset);
    if (offset > s->next_offset) s->next_offset = offset;
  }
  if (s->holds && !s->held) {
    s->held = gb_counted_alloc(s->context, (size_t)s->own * sizeof *s->held);
    if (!s->held) return GB_EMEMORY;
  }
  stop_watching(s);
  for (int k = 0; k < s->n_units && status == GB_OK; k++)
    if (k != NORMS && !is_out(s, k)) status = open_leaf(s, k);
  if (status == GB_OK) status = fill_leaves(s);
  if (status == GB_OK) status = settle_leaves(s, empty);
  for (int k = 0; k < s->n_units; k++)
    if (!is_out(s, k) && s->units[k].leaf && !s->units[k].home) {
      gb_tree_spare(&s->units[k].tree, s->units[k].leaf);
      s->units[k].leaf = NULL;
    }
  return status;
}

/* ====} */

/* {==== The exchange ==== */

/* What ranks have told each other of the gradients. */
static gb_status check_control(gb_shards *s) {
  const int64_t *control = s->units[CONTROL].sum;
  gb_grad_tag tag = { (uint32_t)control[TAG_SCALER], (uint32_t)control[TAG_UPDATE] };
  if (control[LEFT]) {
    s->comm->together = true;
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: rank %lld left the loop over shards before its end, "
                                          "by an error or a break", (long long)control[LEFT] - 1);
  }
  GB_TRY(check_same(s, control));
  s->wishes = 0;
  for (int i = 0; i < GB_ROUND_WISHES; i++) s->wishes |= (uint32_t)(control[WISHES + i] > 0) << i;
  if (s->tagged && (s->tag.scaler != tag.scaler || s->tag.update != tag.update))
    return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: rank %d has scaled its loss by another scaler than "
                                          "another rank, or after another number of updates", s->comm->rank);
  s->tag = tag;
  if (control[UNSTEADY]) s->observes = s->overlaps = false;
  if (!control[SPOILED]) return s->overlaps = s->observes && !s->crowded, GB_OK;
  if (s->comm) s->comm->together = true;
  return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: a gradient changed after it had been sent: the loop's "
                                        "body ran backward again, or wrote to a gradient, as it had not in batches "
                                        "before; give DataParallel overlap = false");
}

/* The mean gradient of a parameter that some shard has used; where the tree has not made it a mean, it is made here. */
static gb_status put_gradient(gb_shards *s, int i, void *place) {
  gb_tensor *parameter = s->parameters[i], *before = s->before[i], *made = NULL;
  spot at = s->spots[i];
  if (s->units[at.unit].tree.factor == 0) GB_TRY(scale(s, at, place, parameter->numel, 1 / (double)s->shards));
  gb_segment *segment = parameter->slab ? &parameter->slab->segments[parameter->segment] : NULL;
  if (segment && !before) { /* straight into the slab */
    if (gb_data(segment->grad) == place) gb_tensor_bump(segment->grad);
    else GB_TRY(copy_out(s, at, segment->grad, place));
    segment->grad->tag = s->tag;
    segment->has_grad = true;
    return GB_OK;
  }
  GB_TRY(gb_tensor_new(s->context, (gb_dtype)parameter->dtype, parameter->ndim, parameter->shape,
                       parameter->storage->device, &made));
  gb_status status = copy_out(s, at, made, place);
  made->tag = s->tag;
  if (status == GB_OK && before) status = gb_tensor_set_grad(parameter, before);
  if (status == GB_OK) status = gb_accumulate_leaf(s->context, parameter, made, false);
  gb_tensor_release(made);
  return status;
}

/* The buffer, changed by the mean of what the shards did; integers grow by the most that one shard made of them. */
static gb_status put_buffer(gb_shards *s, int i, const void *place) {
  gb_tensor *buffer = s->buffers[i];
  gb_dtype dtype = gb_lane_dtype((gb_dtype)buffer->dtype);
  bool changed = false;
  for (int64_t k = 0; k < buffer->numel; k++) {
    if (k % GB_PIECE == 0) GB_TRY(gb_poll(s->context));
    if (dtype == GB_FLOAT32) {
      float change = ((const float *)place)[k];
      if (change == 0) continue;
      ((float *)s->values[i])[k] += change / (float)s->shards;
    } else if (dtype == GB_FLOAT64) {
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
  return changed ? gb_dist_write(buffer, dtype, s->values[i]) : GB_OK;
}

static gb_status put_sum(gb_shards *s, int i) {
  spot at = s->spots[i];
  s->put[i] = true;
  return put_gradient(s, i, place_in(s, at, s->units[at.unit].sum));
}

/* Sums of all ranks into parameters and buffers. */
static gb_status put_all(gb_shards *s) {
  const int64_t *used = s->units[INTEGERS].sum;
  const double *norms = s->units[NORMS].sum;
  for (int i = 0; i < s->n_parameters; i++)
    if (used[i] <= 0) GB_TRY(gb_tensor_set_grad(s->parameters[i], s->before[i]));
    else if (!s->put[i]) GB_TRY(put_sum(s, i));
  int measured = s->n_slabs && norms[MEASURED] == s->comm->size ? s->n_slabs : 0;
  int64_t from = NUMBERS;
  for (int i = 0; i < measured; from += gb_split_numbers(s->slabs[i++]))
    GB_TRY(gb_split_joined(s->slabs[i], norms + from));
  for (int i = 0; i < s->n_buffers; i++) {
    spot at = s->spots[s->n_parameters + i];
    GB_TRY(put_buffer(s, i, place_in(s, at, s->units[at.unit].sum)));
  }
  return GB_OK;
}

/* {---- sums, which tasks do in a job ---- */

/* The sum of the ranks' leaves, one each, by the transport if it has sums. */
static gb_status sum_freely(unit *u, gb_comm *view) {
  bool done;
  u->sum = u->tree.nodes[0].data;
  GB_TRY(gb_comm_free_sum(view, u->lane.dtype, u->sum, u->lane.count, &done));
  return done ? GB_OK : gb_tree_finish(&u->tree, &u->sum);
}

/* What lies on a device follows the messages from here on. */
static gb_status depart(unit *u, gb_comm *view) {
  if (!u->lane.near || !view) return GB_OK;
  if (!u->mark) return gb_comm_fail(view, GB_EDEVICE, "DataParallel:shards: the device failed before the exchange");
  return gb_near_follow(&u->near, view, u->mark);
}

/* The sum is there for the context. */
static gb_status arrive(unit *u, gb_comm *view, gb_status status) {
  if (u->near.moves && status == GB_OK) status = gb_comm_settle(view);
  u->near.moves = false;
  return status;
}

/* A leaf of the last shard that waits goes into the tree, and the sum over all ranks is taken. view: of the task that
 * does it, or NULL. */
static gb_status sum_unit(unit *u, gb_comm *view) {
  gb_shards *s = u->of;
  u->tree.comm = view;
  gb_status status = depart(u, view);
  if (status == GB_OK) status = plant_leaf(u, last_shard(s));
  bool is_free = s->is_free && view && u - s->units >= BUCKETS;
  if (status == GB_OK && u->lane.count)
    status = is_free ? sum_freely(u, view)
        : u->shared && view ? gb_tree_finish_pieces(&u->tree, u->pieces, u->n_pieces, &u->sum)
                            : gb_tree_finish(&u->tree, &u->sum);
  u->tree.comm = s->comm;
  return arrive(u, view, status);
}

static gb_status run_bucket(gb_task *task) {
  unit *u = (unit *)((char *)task - offsetof(unit, task));
  return sum_unit(u, &task->view);
}

/* The units that are not buckets, as many as are exchanged; a round that holds exchanges two. */
static int others(const gb_shards *s) { return s->holds ? INTEGERS : BUCKETS; }

/* All but the buckets: in one message what is small, and other units by themselves. */
static gb_status sum_others(gb_shards *s, gb_comm *view) {
  gb_tree *trees[BUCKETS];
  unit *small[BUCKETS];
  void *sums[BUCKETS];
  int count = 0;
  gb_status status = GB_OK;
  for (int k = CONTROL; k < others(s) && status == GB_OK; k++) {
    unit *u = &s->units[k];
    if (gb_lane_bytes(&u->lane) > SMALL_BYTES) { status = sum_unit(u, view); continue; }
    u->tree.comm = view;
    status = plant_leaf(u, last_shard(s));
    if (u->lane.count) small[count] = u, trees[count++] = &u->tree;
  }
  if (status == GB_OK) status = gb_trees_finish(trees, count, sums);
  for (int i = 0; i < count && status == GB_OK; i++) small[i]->sum = sums[i];
  for (int k = CONTROL; k < others(s); k++) s->units[k].tree.comm = s->comm;
  return status;
}

static gb_status run_others(gb_task *task) {
  gb_shards *s = (gb_shards *)((char *)task - offsetof(gb_shards, last));
  return sum_others(s, &task->view);
}

/* The next bucket goes out. */
static gb_status send_bucket(gb_shards *s) {
  unit *u = &s->units[s->out];
  if (s->comm && u->lane.near) GB_TRY(gb_near_mark(&u->near, &u->mark));
  int k = s->out++;
  if (!s->comm) return sum_unit(u, NULL);
  begin_task(s, &u->task, k, run_bucket);
  return GB_OK;
}

/* Zeros in this rank's leaves; the last one waits. */
static gb_status plant_zeros(unit *u) {
  gb_shards *s = u->of;
  for (int64_t shard = s->begin; shard <= last_shard(s); shard++) {
    if (!u->leaf && !(u->leaf = gb_tree_leaf(&u->tree))) return GB_EMEMORY;
    if (u->lane.near) GB_TRY(gb_near_clear(&u->near, u->tree.comm, u->leaf, gb_lane_bytes(&u->lane)));
    else memset(u->leaf, 0, gb_lane_bytes(&u->lane));
    if (shard < last_shard(s)) GB_TRY(plant_leaf(u, shard));
  }
  return GB_OK;
}

/* Are there gradients that tell the scale of all, in the slabs that they were in when the round began? */
static bool can_measure(const gb_shards *s) {
  bool can = s->tagged;
  for (int i = 0; can && i < s->n_parameters; i++) {
    int k = 0;
    if (!s->planted[i].measured) continue;
    struct gb_owned_slab *owned = gb_split_measured(s->parameters[i]);
    kind now = kind_at(s, s->comm, i);
    while (k < s->n_slabs && s->slabs[k] != owned) k++;
    can = k < s->n_slabs && memcmp(&now, &s->planted[i], sizeof now) == 0;
  }
  return can;
}

/* Gradients get their sums, as if all of them were used, and those that are shared out are measured. */
static gb_status measure(gb_shards *s) {
  unit *u = &s->units[NORMS];
  GB_TRY(plant_zeros(u));
  if (!can_measure(s)) return GB_OK;
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(put_sum(s, i)); /* whole ones may lie in the same slab */
  double *at = u->leaf;
  at[MEASURED] = 1;
  at += NUMBERS;
  for (int i = 0; i < s->n_slabs; at += gb_split_numbers(s->slabs[i++])) GB_TRY(gb_split_measure(s->slabs[i], at));
  return GB_OK;
}

/* The sums of the buckets are there. */
static gb_status await_buckets(gb_shards *s) {
  gb_status status = GB_OK;
  for (int k = BUCKETS; k < s->out; k++) {
    gb_status one = status == GB_OK ? gb_progress_wait(s->context, &s->units[k].task)
                                    : gb_progress_await(&s->units[k].task);
    if (status == GB_OK) status = one;
  }
  return status;
}

/* Everything that has not gone out, and then all sums are there. */
static gb_status sum_up(gb_shards *s) {
  while (!s->holds && s->out < s->n_units) GB_TRY(send_bucket(s));
  if (!s->comm) return sum_others(s, NULL);
  if (!s->holds && s->n_slabs) {
    GB_TRY(await_buckets(s));
    GB_TRY(measure(s));
  }
  s->last_began = s->complete = true;
  begin_task(s, &s->last, CONTROL, run_others);
  return await_all(s, true);
}

/* A gradient is final: it goes into its leaf, and its bucket goes out if it was the last of it, where this is safe. */
static gb_status note_final(void *user, gb_tensor *leaf) {
  gb_shards *s = user;
  entry key = { leaf, 0 };
  const entry *found = s->n_parameters ? bsearch(&key, s->sorted, (size_t)s->n_parameters, sizeof key, by_address)
      : NULL;
  gb_tensor *grad = found ? gb_tensor_grad(leaf) : NULL;
  if (!grad) return GB_OK;
  int i = found->i;
  unit *u = &s->units[s->spots[i].unit];
  gb_status status = GB_OK;
  bool again = s->noted[i].grad != NULL;
  s->unsteady |= again;
  s->spoiled |= again && s->early[i];
  forget_note(s, i);
  s->noted[i] = (note){ grad, gb_tensor_version(grad) };
  if (s->overlaps && !again && !s->holds && !s->held && s->shard == last_shard(s)) {
    status = need_leaf(u); /* not where it lies: the recipe may read a gradient until the body ends */
    if (status == GB_OK) status = take_values(s, i, grad, weight_of(s, s->shard));
    s->early[i] = status == GB_OK;
    if (s->early[i]) u->waits--;
    while (status == GB_OK && s->out < s->n_units && !s->units[s->out].waits) status = send_bucket(s);
  }
  return status;
}

/* ----} */

/* {---- a round that is abandoned ---- */

/* The unit has zeros, and word of who left. */
static gb_status blank(unit *u, gb_comm *view) {
  gb_shards *s = u->of;
  u->tree.comm = view;
  gb_tree_reset(&u->tree);
  gb_status status = depart(u, view);
  if (status == GB_OK) status = plant_zeros(u);
  if (status == GB_OK && u == &s->units[CONTROL]) ((int64_t *)u->leaf)[LEFT] = view->rank + 1;
  u->tree.comm = s->comm;
  return status;
}

/* What this rank has not exchanged yet, in the order of the others. */
static gb_status run_rest(gb_task *task) {
  gb_shards *s = (gb_shards *)((char *)task - offsetof(gb_shards, last));
  for (int k = s->rest; !s->holds && k < s->n_units; k++) {
    task->view.channel = s->channels[lane_of(s, k)];
    GB_TRY(blank(&s->units[k], &task->view));
    GB_TRY(sum_unit(&s->units[k], &task->view));
  }
  task->view.channel = s->channels[lane_of(s, CONTROL)];
  for (int k = CONTROL; k < others(s); k++) GB_TRY(blank(&s->units[k], &task->view));
  return sum_others(s, &task->view);
}

/* The others come to the end of their round, where they learn of it; nobody waits for them here. */
static void tell_others(gb_shards *s) {
  for (int k = s->rest; !s->holds && k < s->n_units; k++)
    if (s->units[k].lane.near) (void)gb_near_mark(&s->units[k].near, &s->units[k].mark); /* else the task fails */
  s->last_began = s->complete = true;
  begin_task(s, &s->last, CONTROL, run_rest);
}

void gb_shards_abandon(gb_shards *s) {
  gb_failure before; /* the reason, which is still to be told */
  if (!s->open) return;
  gb_failure_keep(s->context, &before);
  s->rest = s->out;
  (void)await_all(s, false);
  gb_set_rng_state(s->context, s->seed, s->offset);
  for (int i = 0; i < s->n_parameters; i++) (void)gb_tensor_set_grad(s->parameters[i], s->before[i]);
  for (int i = 0; i < s->n_buffers; i++)
    if (gb_tensor_version(s->buffers[i]) != s->versions[i])
      (void)gb_dist_write(s->buffers[i], gb_lane_dtype((gb_dtype)s->buffers[i]->dtype), s->values[i]);
  leave_slabs(s);
  if (is_joined(s) && s->comm->broken) fell(s); /* messages may reach the trees */
  forget_held(s);
  let_go(s);
  if (is_joined(s) && !s->comm->broken && !s->complete) tell_others(s);
  gb_failure_bring_back(s->context, &before);
}

/* ----} */

/* Nothing but the earlier gradients is seen of a round that holds. */
static gb_status hold_round(gb_shards *s) {
  s->rounds_held++;
  for (int i = 0; i < s->n_parameters; i++) GB_TRY(gb_tensor_set_grad(s->parameters[i], s->before[i]));
  return GB_OK;
}

static gb_status exchange(gb_shards *s) {
  GB_TRY(sum_up(s));
  GB_TRY(check_control(s));
  const double *losses = s->units[LOSSES].sum;
  int64_t expected = s->round.expected;
  s->counted = losses[COUNTED];
  s->miscounted = expected > 0 && (double)expected != s->counted;
  if (s->miscounted) return GB_OK;
  GB_TRY(s->holds ? hold_round(s) : put_all(s));
  if (!s->holds) forget_held(s);
  s->loss = losses[LOSS_WEIGHT] > 0 ? losses[LOSS] / losses[LOSS_WEIGHT] : NAN;
  gb_set_rng_state(s->context, s->seed, (uint64_t)((int64_t *)s->units[CONTROL].sum)[NEXT_OFFSET]);
  return GB_OK;
}

static gb_status finish(gb_shards *s) {
  if (s->comm) GB_TRY(gb_comm_begin(s->comm, "DataParallel:shards"));
  gb_status status = exchange(s);
  if (s->comm) gb_comm_end(s->comm, status);
  if (status == GB_OK && s->miscounted) gb_shards_abandon(s);
  else if (status == GB_OK) let_go(s);
  return status;
}

/* ====} */

/* Is the job that the round began in still joined? */
static gb_status check_job(gb_shards *s) {
  if (!s->comm || is_joined(s)) return GB_OK;
  return gb_fail(s->context, GB_ESTATE, "DataParallel:shards: the job was left in the loop over shards; call "
                                        "gb.dist.finalize() after it");
}

/* The next shard of this rank that has samples begins; *count 0: there is none. */
static gb_status begin_shard(gb_shards *s, int64_t *first, int64_t *count) {
  for (s->shard++; s->shard < s->begin + s->own; s->shard++) {
    s->sum = s->weight = 0;
    *first = first_sample(s, s->shard);
    *count = first_sample(s, s->shard + 1) - *first;
    if (*count) break;
    GB_TRY(add_leaf(s));
  }
  if (s->shard == s->begin + s->own) return *count = 0, GB_OK;
  s->runs = true;
  for (int i = 0; i < s->n_parameters; i++) forget_note(s, i), s->early[i] = false;
  start_watching(s);
  gb_set_rng_state(s->context, shard_seed(s->seed, s->shard), s->offset);
  return bring_buffers(s);
}

gb_status gb_shards_next(gb_shards *s, int64_t *first, int64_t *count) {
  *count = 0;
  if (!s->open) return GB_OK;
  gb_status status = check_job(s);
  if (status == GB_OK && s->runs) status = add_leaf(s);
  s->runs = false;
  if (status == GB_OK) status = begin_shard(s, first, count);
  if (status == GB_OK && !*count) status = finish(s);
  if (status != GB_OK) *count = 0, gb_shards_abandon(s);
  return status;
}

gb_status gb_shards_record(gb_shards *s, double loss) {
  if (!s->runs)
    return gb_fail(s->context, GB_ESTATE, "DataParallel:record: no shard runs; call it in the loop over shards");
  s->sum += loss;
  s->weight += 1;
  return GB_OK;
}

void gb_shards_wish(gb_shards *s, uint32_t wishes) { s->wishes = wishes; }
uint32_t gb_shards_wishes(const gb_shards *s) { return s->wishes; }

bool gb_shards_miscounted(const gb_shards *s, double *counted) {
  *counted = s->counted;
  return s->miscounted;
}

double gb_shards_loss(const gb_shards *s) { return s->loss; }
bool gb_shards_is_open(const gb_shards *s) { return s->open; }

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
  for (int i = 0; i < 2; i++) GB_TRY(gb_comm_channel(comm, &s->channels[i]));
  GB_TRY(gb_comm_begin(comm, "DataParallel"));
  gb_status status = compare(s, comm, fingerprint(tensors, names, count, s->shards));
  if (status == GB_OK) status = adopt(s, comm, tensors, count);
  if (status == GB_OK) s->agreed = comm->serial;
  return gb_comm_end(comm, status);
}

/* ====} */
