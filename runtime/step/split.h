/* step/split.h - an optimizer whose states are shared out between the processes of a job.
 *
 * Each slab is cut into blocks, and each block into as many runs as there are processes, which step one each. A process
 * has states and masters of its runs alone: its parts, slabs of their own whose weights and gradients lie in the whole
 * one. Runs are cut by offset, where chunks of norms begin, and not by parameter; blocks keep what any few parameters
 * together hold shared out evenly. An update hangs on nothing but its element and the count of steps, so the bits are
 * those of the whole. What was stepped is brought together after it. How processes exchange is not known here.
 *
 * Where an update hangs on the norms of a segment too, processes measure what they have of it, chunk by chunk, and each
 * adds up the numbers of all in their order.
 *
 * An optimizer that works on whole matrices has one part of each slab: parameters that follow each other, as many as
 * make its share of the work. Its gradients are not shared out, since norms are cut elsewhere.
 *
 * Of float32 weights that compute reads by their 16-bit copies alone, those are what is brought together, and the
 * weights themselves stay with who steps them, like masters (gb_storage.away). Which they are is seen in the first two
 * steps, and the processes agree on it. To read one otherwise is an error from then on, until gb_optimizer_gather.
 *
 * Gradients may be shared out too: then a process has those of its runs, and 0 or anything elsewhere. Norms and flags
 * are joined from those of all. */
#ifndef GB_STEP_SPLIT_H
#define GB_STEP_SPLIT_H

#include "step/optim.h"
#include "tensor/slab.h"

struct gb_owned_slab;

typedef struct gb_split {
  int rank, size;
  bool gradients;             /* are shared out too */
  bool narrows;               /* weights may be brought together in 16 bits */
  /* Bring a vector together, of which every process has its own runs in place, on any device. starts: where the
   * run of each process begins, and where the last one ends; NULL: the vector is of all elements of a slab, and its
   * runs are the slab's. */
  gb_status (*gather)(gb_context *context, const struct gb_split *split, gb_tensor *vector, const int64_t *starts);
  /* Numbers of which all but one process have 0 become those of that one, and *flag is whether any process's was up. */
  gb_status (*share)(gb_context *context, const struct gb_split *split, double *numbers, int64_t count, bool *flag);
} gb_split;

/* The blocks of a slab of so many elements; and where the run of a rank begins in one: that of the one past the last is
 * the block's end. */
int64_t gb_split_blocks(int64_t elements, int size);
int64_t gb_split_first(int64_t elements, int size, int64_t block, int rank);
/* The rank that owns an element, and where its run ends. */
int gb_split_owner(int64_t elements, int size, int64_t element, int64_t *end);
/* How the gradient of a parameter is shared out; NULL: it is not, or its elements do not lie in order. */
const gb_split *gb_split_of_gradient(const gb_tensor *parameter);
/* Is it a gradient, or a view of one, that is shared out? */
bool gb_split_is_part(const gb_tensor *tensor);
/* Of each tensor that is a part, copies of the whole gradient, to which every process brings its runs: so every one
 * gives the same tensors, in the same order. Others are themselves. out: counted. */
gb_status gb_split_whole(gb_tensor *const *tensors, int count, gb_tensor **out);
/* Before gradients of the slab are measured, by a call that says which: elements of others become 0, and the call
 * shares what it measures, unless all processes know it already. Nothing where gradients are not shared out. */
gb_status gb_split_prepare(gb_slab *slab, gb_step_call *call);
/* {---- gradients that are measured where they are brought together, so that this needs no message of its own ---- */

/* The slab of a parameter whose gradient is shared out, if norms or flags were asked for in an earlier step; or NULL.
 * It is the same on every process. */
struct gb_owned_slab *gb_split_measured(const gb_tensor *parameter);
/* How many numbers measure a slab: the norms of its chunks, whether any gradient is not finite, and, of a slab on a
 * device, whether each segment's is. */
int64_t gb_split_numbers(const struct gb_owned_slab *owned);
/* Those of the gradients of this process's runs, and 0 elsewhere: of all processes added up they are the slab's. */
gb_status gb_split_measure(struct gb_owned_slab *owned, double *numbers);
/* The sums, which stand for the slab's gradients until one of them is written. */
gb_status gb_split_joined(struct gb_owned_slab *owned, const double *numbers);

/* ----} */
/* Flags that may be up on some processes only. */
gb_status gb_split_share_flag(const struct gb_optimizer *optimizer, bool *flag);

/* Let go of the states and masters of all other processes' elements; where there is none, nothing. */
gb_status gb_optimizer_split(gb_optimizer *optimizer, const gb_split *split);
/* Of an optimizer whose steps measure segments first: how many numbers its slabs have for that. Those that this process
 * has measured go to there, where all else is 0; and the sums over all processes become the measures of its parts. */
int64_t gb_split_measures(const gb_optimizer *optimizer);
gb_status gb_split_take_measures(const gb_optimizer *optimizer, double *numbers);
gb_status gb_split_give_measures(const gb_optimizer *optimizer, const double *numbers);
/* After a step of the slab, which was not skipped: all processes get what compute needs of its weights. */
gb_status gb_split_bring(gb_optimizer *optimizer, struct gb_owned_slab *owned);
/* All float32 weights of all processes again, until the next step; nothing where it is not split. Every process calls
 * it. */
gb_status gb_optimizer_gather(gb_optimizer *optimizer);
/* All states, masters and weights again; nothing where it is not split. Every process calls it. */
gb_status gb_optimizer_join(gb_optimizer *optimizer);
bool gb_optimizer_is_split(const gb_optimizer *optimizer);

#endif
