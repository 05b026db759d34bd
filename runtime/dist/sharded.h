/* sharded.h - an optimizer whose states are shared out between the ranks of a job (step/split.h). */
#ifndef GB_DIST_SHARDED_H
#define GB_DIST_SHARDED_H

#include "dist/comm.h"
#include "step/split.h"

/* Share out the states, and the gradients too; nothing in a job of one. narrows: weights that compute reads in 16 bits
 * are brought together in these. Every rank calls it, and from then on makes every step, gather, join and call of this,
 * and every clip and unscale where gradients are shared out. */
gb_status gb_optimizer_shard(gb_context *context, gb_optimizer *optimizer, bool gradients, bool narrows);

#endif
