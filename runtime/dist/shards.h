/* shards.h - a training step in virtual shards: the same bits whatever the number of processes.
 *
 * The batch of a step is cut into V shards, a power of two, fixed by the recipe. Each rank runs forward and backward of
 * its shards, one after another; a shard's gradients, what it added to buffers and its loss are a leaf of the fixed
 * tree (tree.h). So is whatever the ranks must agree on, as the leaf's integers. A round:
 *
 *     gb_shards_begin(s, ..., samples);
 *     while (gb_shards_next(s, &first, &count) == GB_OK && count) { forward and backward of these samples }
 *
 * The last call of next exchanges, and leaves in every parameter the gradient of the mean over the whole batch, added
 * to what it had before the round. Random numbers of a shard hang on its number, not on the rank. */
#ifndef GB_DIST_SHARDS_H
#define GB_DIST_SHARDS_H

#include "dist/tensors.h"

enum { GB_SHARDS_MOST = 1024 };

typedef struct gb_shards gb_shards;

/* Gradients are exchanged while backward goes on, where a round before has shown that they do not change after it:
 * never, always, or not where all processes are on one machine and keep its cores busy, since the exchange would take
 * from backward what it saves, and more. The bits are the same. */
typedef enum gb_overlap { GB_OVERLAP_NEVER, GB_OVERLAP_ALWAYS, GB_OVERLAP_WHERE_IT_HIDES } gb_overlap;

/* shards: a power of two, at least as many as there are processes. is_free: a shard for each process, and sums of
 * gradients in the order of the transport, where it has sums; bits hang on the number of processes then. */
typedef struct gb_shards_options { int64_t shards; gb_overlap overlap; bool is_free; } gb_shards_options;
gb_status gb_shards_new(gb_context *context, const gb_shards_options *options, gb_shards **out);
void gb_shards_free(gb_shards *s); /* NULL is fine */

/* Every rank has the same tensors, by name, shape and dtype: their values become those of rank 0, and so does the state
 * of the random stream. A rank that has others is named. */
gb_status gb_shards_agree(gb_shards *s, gb_tensor *const *tensors, const char *const *names, int count);

/* samples: of the whole batch. holds: the round's gradients and buffers stay with the shards, to which the next round
 * adds its own; only what ranks must agree on, and losses, are exchanged. odd: 0, or 1 above this rank, where it was
 * given another number of samples than its shards have: then all ranks are told. loader: where the batch comes from; 0:
 * from nowhere. counted: by this rank, of the elements that losses are the mean of; expected: by all, which all ranks
 * see alike, or 0. Where they expect something, and that is not the sum of what they counted, the round is taken back
 * on all of them (gb_shards_miscounted). */
enum { GB_ROUND_LOADER = 5 };         /* seed, samples of the dataset, batch size, place, order */
typedef struct gb_round {
  int64_t samples, odd, loader[GB_ROUND_LOADER];
  bool holds;
  double counted;
  int64_t expected;
} gb_round;
/* Begin a round. What it changes is retained until it ends. */
gb_status gb_shards_begin(gb_shards *s, gb_tensor *const *parameters, int n_parameters, gb_tensor *const *buffers,
                          int n_buffers, const gb_round *round);
/* The shard before has run; the samples of the next one of this rank, from 0. count 0: the round has ended. */
gb_status gb_shards_next(gb_shards *s, int64_t *first, int64_t *count);
/* End a round that cannot be finished: the random stream, buffers and earlier gradients are what they were, and what
 * is held is forgotten. The other ranks are told at the end of their round, which fails on all of them, and the job
 * stays whole: a task sees to that, for which the next round waits. Nothing where no round is open. */
void gb_shards_abandon(gb_shards *s);

bool gb_shards_is_open(const gb_shards *s);

/* The loss of the shard that runs, the mean over its samples; and that of the last whole round, NaN where none was
 * recorded. */
gb_status gb_shards_record(gb_shards *s, double loss);
double gb_shards_loss(const gb_shards *s);

/* What this rank wishes, until the round ends: one bit each. After it: what any rank does. */
enum { GB_ROUND_WISHES = 6 };
void gb_shards_wish(gb_shards *s, uint32_t wishes);
uint32_t gb_shards_wishes(const gb_shards *s);

/* Was the last round taken back, since its count was not the one that was expected? *counted: that of all ranks. */
bool gb_shards_miscounted(const gb_shards *s, double *counted);

#endif
