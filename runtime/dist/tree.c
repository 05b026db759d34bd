/* tree.c - the fixed tree: what a rank adds by itself, and what ranks exchange. */
#include "dist/tree.h"

#include <string.h>

/* {==== Arithmetic ==== */

#define SUM(left, right) ((left) + (right))
/* NaN wins; of equal numbers the left one stays, so that both sides of an exchange agree on the sign of 0. */
#define MAXIMUM(left, right) ((right) > (left) || (right) != (right) ? (right) : (left))

#define LOOP(name, type, rule)                                                 \
  static void name(void *left, const void *right, int64_t count) {             \
    type *restrict l = left;                                                   \
    const type *restrict r = right;                                            \
    for (int64_t i = 0; i < count; i++) l[i] = (type)rule(l[i], r[i]);         \
  }
#define WRAPPED(left, right) ((uint64_t)(left) + (uint64_t)(right))
#define EITHER(left, right) ((left) | (right))
#define FLOAT_MAXIMUM(left, right) ((left) != (left) ? (left) : MAXIMUM(left, right))
LOOP(sum_f32, float, SUM)
LOOP(sum_f64, double, SUM)
LOOP(sum_i64, int64_t, WRAPPED)
LOOP(max_f32, float, FLOAT_MAXIMUM)
LOOP(max_f64, double, FLOAT_MAXIMUM)
LOOP(max_i64, int64_t, MAXIMUM)
LOOP(or_i64, int64_t, EITHER)

void gb_reduce_into(const gb_lane *lane, void *left, const void *right, int64_t count) {
  typedef void (*loop)(void *, const void *, int64_t);
  static const loop loops[3][3] = { { sum_f32, sum_f64, sum_i64 }, { max_f32, max_f64, max_i64 },
                                    { or_i64, or_i64, or_i64 } };
  int kind = lane->dtype == GB_FLOAT32 ? 0 : lane->dtype == GB_FLOAT64 ? 1 : 2;
  loops[lane->reduction][kind](left, right, count);
}

/* comm NULL: on the thread of the context. */
static gb_status add_up(gb_context *context, gb_comm *comm, const gb_lane *lane, void *left, const void *right,
                        int64_t count) {
  size_t each = gb_dtype_bytes(lane->dtype);
  for (int64_t first = 0; first < count; first += GB_PIECE) {
    size_t skip = (size_t)first * each;
    int64_t some = count - first < GB_PIECE ? count - first : GB_PIECE;
    GB_TRY(comm ? gb_comm_poll(comm) : gb_poll(context));
    gb_reduce_into(lane, (char *)left + skip, (const char *)right + skip, some);
  }
  return GB_OK;
}

gb_status gb_reduce_in_pieces(gb_context *context, const gb_lane *lane, void *left, const void *right, int64_t count) {
  return add_up(context, NULL, lane, left, right, count);
}

/* ====} */

/* {==== What one rank does ==== */

void gb_tree_begin(gb_tree *tree, gb_context *context, gb_comm *comm, const gb_lane *lane, int64_t leaves) {
  *tree = (gb_tree){ .context = context, .comm = comm, .lane = *lane, .leaves = leaves };
}

void gb_tree_reset(gb_tree *tree) {
  while (tree->count) tree->spare[tree->spares++] = tree->nodes[--tree->count].data;
}

void gb_tree_free(gb_tree *tree) {
  for (int i = 0; i < tree->count; i++) gb_comm_free(tree->comm, tree->nodes[i].data);
  for (int i = 0; i < tree->spares; i++) gb_comm_free(tree->comm, tree->spare[i]);
  tree->count = tree->spares = 0;
}

void *gb_tree_leaf(gb_tree *tree) {
  if (tree->spares) return tree->spare[--tree->spares];
  size_t bytes = gb_lane_bytes(&tree->lane);
  return tree->comm ? gb_comm_take(tree->comm, bytes) : gb_counted_resize(tree->context, NULL, bytes);
}

/* More than a tree needs goes. */
void gb_tree_spare(gb_tree *tree, void *data) {
  if (tree->count + tree->spares < GB_TREE_NODES) tree->spare[tree->spares++] = data;
  else gb_counted_free(data);
}

/* The node at place i and its right neighbour become their parent. */
static gb_status join(gb_tree *tree, int i) {
  gb_tree_node *left = &tree->nodes[i], *right = left + 1;
  GB_TRY(add_up(tree->context, tree->comm, &tree->lane, left->data, right->data, tree->lane.count));
  tree->spare[tree->spares++] = right->data;
  memmove(right, right + 1, sizeof *right * (size_t)(tree->count - i - 2));
  tree->count--;
  left->level++;
  left->index /= 2;
  return GB_OK;
}

static bool are_siblings(const gb_tree_node *left, const gb_tree_node *right) {
  return left->level == right->level && left->index % 2 == 0 && right->index == left->index + 1;
}

gb_status gb_tree_add(gb_tree *tree, int64_t leaf, void *data) {
  tree->nodes[tree->count++] = (gb_tree_node){ 0, leaf, data };
  while (tree->count > 1 && are_siblings(&tree->nodes[tree->count - 2], &tree->nodes[tree->count - 1]))
    GB_TRY(join(tree, tree->count - 2));
  return GB_OK;
}

/* ====} */

/* {==== What ranks do together ==== */

static int owner(const gb_tree *tree, int64_t leaf) {
  int size = tree->comm ? tree->comm->size : 1, rank = (int)(leaf * size / tree->leaves);
  while (gb_tree_first(tree->leaves, size, rank + 1) <= leaf) rank++;
  while (gb_tree_first(tree->leaves, size, rank) > leaf) rank--;
  return rank;
}

/* Where this rank holds the node; -1: it does not. */
static int place_of(const gb_tree *tree, int level, int64_t index) {
  for (int i = 0; i < tree->count; i++)
    if (tree->nodes[i].level == level && tree->nodes[i].index == index) return i;
  return -1;
}

/* The pair of children from node i of this level on becomes its parent, on the rank that owns the left one. */
static gb_status join_pair(gb_tree *tree, int level, int64_t i) {
  gb_comm *comm = tree->comm;
  int rank = comm ? comm->rank : 0, left = owner(tree, i << level), at = place_of(tree, level, i);
  int64_t right_leaf = (i + 1) << level;
  if (right_leaf >= tree->leaves) { /* no right child: the left one stands for both */
    if (at >= 0) tree->nodes[at].level++, tree->nodes[at].index /= 2;
    return GB_OK;
  }
  int right = owner(tree, right_leaf), mine = place_of(tree, level, i + 1);
  size_t bytes = gb_lane_bytes(&tree->lane);
  if (left == right) {
    return at >= 0 && mine == at + 1 ? join(tree, at) : GB_OK;
  }
  if (rank == right) {
    GB_TRY(gb_comm_transfer(comm, GB_TAG_REDUCE, true, left, tree->nodes[mine].data, bytes));
    tree->spare[tree->spares++] = tree->nodes[mine].data;
    memmove(&tree->nodes[mine], &tree->nodes[mine + 1], sizeof *tree->nodes * (size_t)(tree->count - mine - 1));
    tree->count--;
  } else if (rank == left) {
    void *data = gb_tree_leaf(tree);
    if (!data) return GB_EMEMORY;
    gb_status status = gb_comm_transfer(comm, GB_TAG_REDUCE, false, right, data, bytes);
    if (status != GB_OK) return gb_comm_free(comm, data), status;
    memmove(&tree->nodes[at + 2], &tree->nodes[at + 1], sizeof *tree->nodes * (size_t)(tree->count - at - 1));
    tree->nodes[at + 1] = (gb_tree_node){ level, i + 1, data };
    tree->count++;
    return join(tree, at);
  }
  return GB_OK;
}

/* Up the tree, level by level, for any number of ranks; the root comes to rank 0, and from there to all. */
static gb_status climb(gb_tree *tree, void **sum) {
  gb_comm *comm = tree->comm;
  for (int level = 0; ((int64_t)1 << level) < tree->leaves; level++)
    for (int64_t i = 0; i << level < tree->leaves; i += 2) GB_TRY(join_pair(tree, level, i));
  if (tree->count == 0) {
    tree->nodes[0].data = gb_tree_leaf(tree);
    if (!tree->nodes[0].data) return GB_EMEMORY;
    tree->count = 1;
  }
  *sum = tree->nodes[0].data;
  return comm && comm->size > 1 ? gb_comm_broadcast(comm, 0, *sum, gb_lane_bytes(&tree->lane)) : GB_OK;
}

/* A part of a lane. */
typedef struct span { int64_t first, end; } span;

static char *at(const gb_lane *lane, void *data, int64_t i) { return (char *)data + (size_t)i *
                                                              gb_dtype_bytes(lane->dtype); }

/* Recursive halving: in each round the partner of rank xor step gets one half of what this rank still adds up, and
 * gives its half of the other. spans[k] is what was left before round k; returns the number of rounds. */
static gb_status halve(gb_comm *comm, const gb_lane *lane, void *data, void *spare, span spans[32], int *rounds) {
  size_t each = gb_dtype_bytes(lane->dtype);
  spans[0] = (span){ 0, lane->count };
  *rounds = 0;
  for (int step = 1; step < comm->size; step *= 2, ++*rounds) {
    span whole = spans[*rounds];
    int64_t middle = whole.first + (whole.end - whole.first) / 2;
    bool is_right = comm->rank & step;
    span keep = is_right ? (span){ middle, whole.end } : (span){ whole.first, middle };
    span give = is_right ? (span){ whole.first, middle } : (span){ middle, whole.end };
    int partner = comm->rank ^ step;
    int64_t count = keep.end - keep.first;
    GB_TRY(gb_comm_swap(comm, GB_TAG_REDUCE, partner, at(lane, data, give.first), (size_t)(give.end - give.first) *
                        each, partner, spare, (size_t)count * each));
    if (!is_right) GB_TRY(add_up(comm->context, comm, lane, at(lane, data, keep.first), spare, count));
    else { /* the partner's node is the left one */
      GB_TRY(add_up(comm->context, comm, lane, spare, at(lane, data, keep.first), count));
      memcpy(at(lane, data, keep.first), spare, (size_t)count * each);
    }
    spans[*rounds + 1] = keep;
  }
  return GB_OK;
}

/* The way back: each rank has a part of the whole, and partners give each other theirs. */
static gb_status join_halves(gb_comm *comm, const gb_lane *lane, void *data, const span *spans, int rounds) {
  size_t each = gb_dtype_bytes(lane->dtype);
  for (int k = rounds - 1; k >= 0; k--) {
    int partner = comm->rank ^ (1 << k);
    span mine = spans[k + 1];
    span other = mine.first == spans[k].first ? (span){ mine.end, spans[k].end } : (span){ spans[k].first, mine.first };
    GB_TRY(gb_comm_swap(comm, GB_TAG_GATHER, partner, at(lane, data, mine.first), (size_t)(mine.end - mine.first) *
                        each, partner, at(lane, data, other.first), (size_t)(other.end - other.first) * each));
  }
  return GB_OK;
}

static bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

gb_status gb_tree_finish(gb_tree *tree, void **sum) {
  gb_comm *comm = tree->comm;
  bool even = comm && comm->size > 1 && is_power_of_two(comm->size) && is_power_of_two(tree->leaves) &&
      tree->leaves >= comm->size;
  if (!even) return climb(tree, sum);
  span spans[33];
  int rounds = 0;
  void *spare = gb_tree_leaf(tree);
  if (!spare) return GB_EMEMORY;
  gb_status status = halve(comm, &tree->lane, tree->nodes[0].data, spare, spans, &rounds);
  if (status == GB_OK) status = join_halves(comm, &tree->lane, tree->nodes[0].data, spans, rounds);
  tree->spare[tree->spares++] = spare;
  *sum = tree->nodes[0].data;
  return status;
}

/* ====} */

/* {==== Where each rank is a leaf ==== */

gb_status gb_comm_all_reduce(gb_comm *comm, const gb_lane *lane, void *data) {
  gb_tree tree;
  void *sum = NULL;
  if (comm->size == 1 || lane->count == 0) return GB_OK;
  gb_tree_begin(&tree, comm->context, comm, lane, comm->size);
  void *leaf = gb_tree_leaf(&tree);
  if (!leaf) return GB_EMEMORY;
  memcpy(leaf, data, gb_lane_bytes(lane));
  gb_status status = gb_tree_add(&tree, comm->rank, leaf);
  if (status == GB_OK) status = gb_tree_finish(&tree, &sum);
  if (status == GB_OK) memcpy(data, sum, gb_lane_bytes(lane));
  gb_tree_free(&tree);
  return status;
}

/* The bits of the number, of which there are so many, in reverse. */
static int reversed(int number, int bits) {
  int out = 0;
  for (; bits; bits--, number >>= 1) out = out << 1 | (number & 1);
  return out;
}

/* Halving leaves rank r with the place that has r's bits in reverse: so part r goes there first. */
static gb_status scatter_evenly(gb_comm *comm, const gb_lane *lane, void *data, void *work, void *out) {
  span spans[33];
  int rounds = 0, bits = 0;
  while (1 << bits < comm->size) bits++;
  size_t part = gb_lane_bytes(lane) / (size_t)comm->size;
  for (int r = 0; r < comm->size; r++)
    memcpy((char *)work + (size_t)reversed(r, bits) * part, (char *)data + (size_t)r * part, part);
  GB_TRY(halve(comm, lane, work, data, spans, &rounds));
  memcpy(out, at(lane, work, spans[rounds].first), part);
  return GB_OK;
}

gb_status gb_comm_reduce_scatter(gb_comm *comm, const gb_lane *lane, void *data, void *out) {
  size_t bytes = gb_lane_bytes(lane), part = bytes / (size_t)comm->size;
  if (bytes == 0) return GB_OK;
  if (!is_power_of_two(comm->size)) {
    GB_TRY(gb_comm_all_reduce(comm, lane, data));
    memcpy(out, (char *)data + (size_t)comm->rank * part, part);
    return GB_OK;
  }
  void *work = gb_comm_take(comm, bytes);
  if (!work) return GB_EMEMORY;
  gb_status status = scatter_evenly(comm, lane, data, work, out);
  gb_comm_free(comm, work);
  return status;
}

/* ====} */
