/* plan.h - sums over the tree where halving does not do, as for three ranks: who adds up which node of it, so that as
 * little as possible is sent.
 *
 * The lane is cut into a part for each rank, which gets the sum of it. For each part, every node of the tree that lies
 * on more than one rank is added up where that takes the fewest messages, of which the children must come from
 * somewhere, and the sum go on. All ranks find the same plan. */
#ifndef GB_DIST_PLAN_H
#define GB_DIST_PLAN_H

#include "dist/tree.h"

/* Is a plan worth it: more ranks than one, but not too many, and a lane that can be cut? */
bool gb_plan_serves(const gb_tree *tree);
/* The rank's leaves are in the tree. Then its node 0 is the root, of which the elements from cuts[rank] to
 * cuts[rank + 1] - 1 are the sum, and the others anything. */
gb_status gb_plan_sum(gb_tree *tree, const int64_t *cuts);

#endif
