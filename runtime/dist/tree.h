/* tree.h - sums over the leaves of a fixed balanced tree, whose bits do not depend on who owns which leaf.
 *
 * The leaves 0 .. n-1 stand in a row. Node i of level k is the sum of the leaves from i * 2^k on, 2^k of them or as
 * many as there are: its left child plus its right child, in this order, without fused multiplications. The ranks own
 * runs of leaves, in order. So one process that owns all, and eight that own one each, add the same pairs of numbers.
 * Processes exchange nothing but sums of nodes: by recursive halving with the nearest partner first, and doubling back,
 * where each rank owns one node of one level, or whole, in half as many messages, where they are small; where ranks own
 * several, by a plan (plan.h), or, what is small, up the tree to rank 0 and back by a broadcast. */
#ifndef GB_DIST_TREE_H
#define GB_DIST_TREE_H

#include "dist/near.h"

enum { GB_TREE_SMALL = 4096 };        /* bytes that are exchanged whole, in as few messages as there can be */

/* Numbers of one kind that are reduced together. GB_FLOAT32, GB_FLOAT64 or GB_INT64. */
typedef struct gb_lane {
  gb_dtype dtype;
  gb_reduction reduction;
  int64_t count;
  const struct gb_mix *mix;           /* the bytes of several lanes, of which each has its own reduction; else NULL */
  gb_near *near;                      /* where they lie on a device, which is its owner's; NULL: in the host's memory */
} gb_lane;
static inline size_t gb_lane_bytes(const gb_lane *lane) { return (size_t)lane->count * gb_dtype_bytes(lane->dtype); }

/* left = left with right, of `count` numbers. */
void gb_reduce_into(const gb_lane *lane, void *left, const void *right, int64_t count);
/* data = data * factor, of `count` float32 or float64. */
void gb_multiply(gb_dtype dtype, void *data, int64_t count, double factor);
/* left = left with right, with a look for a stop before each piece. */
gb_status gb_reduce_in_pieces(gb_context *context, const gb_lane *lane, void *left, const void *right, int64_t count);

/* The nodes that one rank holds so far, from the left, each in memory of its own. */
enum { GB_TREE_NODES = 64 };
typedef struct gb_tree_node { int level; int64_t index; void *data; } gb_tree_node;
typedef struct gb_tree {
  gb_context *context;
  gb_comm *comm;                      /* NULL: one process */
  gb_lane lane;
  int64_t leaves;
  double factor;                      /* of floats in the host's memory, that the root is multiplied by, on the rank
                                         that has made it; 0: it is not */
  int count, spares;
  gb_tree_node nodes[GB_TREE_NODES];
  void *spare[GB_TREE_NODES];         /* memory for one lane each */
} gb_tree;

/* The first leaf of a rank; that of the rank past the last is `leaves`. */
static inline int64_t gb_tree_first(int64_t leaves, int size, int rank) { return leaves * rank / size; }

void gb_tree_begin(gb_tree *tree, gb_context *context, gb_comm *comm, const gb_lane *lane, int64_t leaves);
/* Memory for a leaf, to be filled and given to gb_tree_add; NULL: none, text set in the context. */
void *gb_tree_leaf(gb_tree *tree);
void gb_tree_drop(gb_tree *tree, void *leaf); /* it is needed no more; NULL is fine */
/* Add the next leaf of this rank, in order: nodes whose both children are there are summed at once. The
 * memory is the tree's then, also where a stop ends the sums. */
gb_status gb_tree_add(gb_tree *tree, int64_t leaf, void *data);
/* Every rank has added its leaves, at least one each: *sum is the root, the same on all; it belongs to the tree. */
gb_status gb_tree_finish(gb_tree *tree, void **sum);
/* As gb_tree_finish for several trees over the same leaves, in one exchange: sums[i] is that of trees[i]. */
enum { GB_MIX_MOST = 8 };
gb_status gb_trees_finish(gb_tree *const trees[], int count, void *sums[]);
/* As gb_tree_finish, but a rank gets the sums of its own pieces alone, which make up the lane in order; *sum is 0
 * elsewhere. So less than half as many bytes are exchanged. */
typedef struct gb_piece { int64_t count; int owner; } gb_piece;
gb_status gb_tree_finish_pieces(gb_tree *tree, const gb_piece *pieces, int64_t count, void **sum);
/* A leaf that was not added, or memory of its kind, serves again; it is the tree's. */
void gb_tree_spare(gb_tree *tree, void *data);
/* left = left + right, of `count` numbers of the tree's lane, with a look for a stop before each piece. */
gb_status gb_tree_sum(const gb_tree *tree, void *left, const void *right, int64_t count);
/* The rank that owns a leaf. */
int gb_tree_owner(const gb_tree *tree, int64_t leaf);
/* Empty again, for other leaves; the memory stays. */
void gb_tree_reset(gb_tree *tree);
void gb_tree_free(gb_tree *tree);

/* Each rank is a leaf: data becomes the sum, in place. On a device, too, it is there on return. */
gb_status gb_comm_all_reduce(gb_comm *comm, const gb_lane *lane, void *data);
/* As many equal parts as ranks: part r of the sum comes to rank r, into out. data is lost. */
gb_status gb_comm_reduce_scatter(gb_comm *comm, const gb_lane *lane, void *data, void *out);

#endif
