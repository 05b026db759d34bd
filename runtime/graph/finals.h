/* graph/finals.h - tells, while backward walks, when the gradient of a leaf is final: no node of the walk adds to it
 * any more. So an exchange can begin before the walk has ended.
 *
 * Before the walk the uses of every leaf in its graph are counted; each node that has run takes away its own. A leaf
 * that not every use reaches is not told of, nor one with hooks, which run at the end of the walk. Nothing is told of a
 * graph with parts that are recomputed: what those use shows only when they run again. */
#ifndef GB_GRAPH_FINALS_H
#define GB_GRAPH_FINALS_H

#include "graph/node.h"
#include "graph/places.h"

/* Who wants to know (gb_graph_room.watch): of gb_backward, the outermost one, without create_graph. */
typedef struct gb_leaf_watch { gb_status (*final)(void *user, gb_tensor *leaf); void *user; } gb_leaf_watch;

/* Begins as zeros. */
typedef struct gb_finals { gb_places uses; /* by leaf; none: nobody is told */ } gb_finals;

/* Count the uses in the graph of this tensor. */
gb_status gb_finals_count(gb_context *context, gb_finals *f, const gb_tensor *root);
/* The node has run: tell of what is final now. */
gb_status gb_finals_pass(gb_context *context, gb_finals *f, const gb_node *node);
void gb_finals_close(gb_finals *f);

#endif
