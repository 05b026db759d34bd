/* step/split.h - an optimizer whose states are shared out between the processes of a job.
 *
 * Of each slab every process steps a run of elements, and has states and masters of these alone: its part, a slab
 * of its own whose weights and gradients lie in the whole one. Runs are cut by offset, at multiples of 64 elements,
 * and not by parameter. An update hangs on nothing but its element and the count of steps, so the bits are those of
 * the whole. What was stepped is brought together after it. How processes exchange is not known here. */
#ifndef GB_STEP_SPLIT_H
#define GB_STEP_SPLIT_H

#include "step/optim.h"

typedef struct gb_split {
  int rank, size;
  /* Bring a vector of all elements of a slab together: every process has its own run in place. */
  gb_status (*gather)(gb_context *context, const struct gb_split *split, gb_tensor *vector);
} gb_split;

/* The first element of a process's run; that of the one past the last is the number of elements. */
int64_t gb_split_first(int64_t elements, int size, int rank);

/* Let go of the states and masters of all other processes' elements; where there is none, nothing. Errors: an optimizer
 * that looks at whole parameters, or whose parameters are not on the CPU. */
gb_status gb_optimizer_split(gb_optimizer *optimizer, const gb_split *split);
/* All states and masters again; nothing where it is not split. Every process calls it. */
gb_status gb_optimizer_join(gb_optimizer *optimizer);
bool gb_optimizer_is_split(const gb_optimizer *optimizer);

#endif
