/* tree.c - the fixed tree: what a rank adds by itself, and what ranks exchange. */
#include "dist/plan.h"

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

/* Lanes one after another in memory, each from a multiple of 8 bytes on. */
struct gb_mix { int count; gb_lane lanes[GB_MIX_MOST]; };

static size_t room_of(const gb_lane *lane) { return (gb_lane_bytes(lane) + 7) / 8 * 8; }

static void reduce_mix(const gb_lane *lane, char *left, const char *right) {
  for (int i = 0; i < lane->mix->count; i++) {
    const gb_lane *one = &lane->mix->lanes[i];
    gb_reduce_into(one, left, right, one->count);
    left += room_of(one);
    right += room_of(one);
  }
}

void gb_reduce_into(const gb_lane *lane, void *left, const void *right, int64_t count) {
  if (lane->mix) { reduce_mix(lane, left, right); return; }
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
  if (lane->near) {
    GB_TRY(comm ? gb_comm_poll(comm) : gb_poll(context));
    return gb_near_reduce(lane->near, comm, lane->reduction, lane->dtype, left, left, right, count);
  }
  int64_t piece = lane->mix ? count : GB_PIECE;
  for (int64_t first = 0; first < count; first += piece) {
    size_t skip = (size_t)first * each;
    int64_t some = count - first < piece ? count - first : piece;
    GB_TRY(comm ? gb_comm_poll(comm) : gb_poll(context));
    gb_reduce_into(lane, (char *)left + skip, (const char *)right + skip, some);
  }
  return GB_OK;
}

/* The same, but it is the right one that becomes the sum; left is lost. */
static gb_status add_up_right(gb_comm *comm, const gb_lane *lane, void *left, void *right, int64_t count) {
  if (lane->near) {
    GB_TRY(gb_comm_poll(comm));
    return gb_near_reduce(lane->near, comm, lane->reduction, lane->dtype, right, left, right, count);
  }
  GB_TRY(add_up(comm->context, comm, lane, left, right, count));
  memcpy(right, left, (size_t)count * gb_dtype_bytes(lane->dtype));
  return GB_OK;
}

static gb_status copy(gb_comm *comm, const gb_lane *lane, void *to, const void *from, size_t bytes) {
  if (lane->near) return gb_near_copy(lane->near, comm, to, from, bytes);
  memcpy(to, from, bytes);
  return GB_OK;
}

void gb_multiply(gb_dtype dtype, void *data, int64_t count, double factor) {
  if (dtype == GB_FLOAT32)
    for (int64_t i = 0; i < count; i++) ((float *)data)[i] *= (float)factor;
  else
    for (int64_t i = 0; i < count; i++) ((double *)data)[i] *= factor;
}

/* So many elements of the root, which this rank has made, are multiplied by the tree's factor. */
static gb_status end_root(const gb_tree *tree, void *data, int64_t first, int64_t count) {
  size_t each = gb_dtype_bytes(tree->lane.dtype);
  for (int64_t end = first + count; tree->factor != 0 && first < end; first += GB_PIECE) {
    GB_TRY(tree->comm ? gb_comm_poll(tree->comm) : gb_poll(tree->context));
    gb_multiply(tree->lane.dtype, (char *)data + (size_t)first * each, end - first < GB_PIECE ? end - first : GB_PIECE,
                tree->factor);
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

void gb_tree_drop(gb_tree *tree, void *leaf) {
  const gb_near *near = tree->lane.near;
  if (near) gb_comm_free_near(tree->comm, near, leaf, gb_lane_bytes(&tree->lane));
  else gb_comm_free(tree->comm, leaf);
}

void gb_tree_free(gb_tree *tree) {
  for (int i = 0; i < tree->count; i++) gb_tree_drop(tree, tree->nodes[i].data);
  for (int i = 0; i < tree->spares; i++) gb_tree_drop(tree, tree->spare[i]);
  tree->count = tree->spares = 0;
}

void *gb_tree_leaf(gb_tree *tree) {
  if (tree->spares) return tree->spare[--tree->spares];
  size_t bytes = gb_lane_bytes(&tree->lane);
  if (tree->lane.near) return gb_near_take(tree->lane.near, tree->comm, bytes);
  return tree->comm ? gb_comm_take(tree->comm, bytes) : gb_counted_resize(tree->context, NULL, bytes);
}

/* More than a tree needs goes. */
void gb_tree_spare(gb_tree *tree, void *data) {
  if (tree->count + tree->spares < GB_TREE_NODES) tree->spare[tree->spares++] = data;
  else gb_tree_drop(tree, data); /* a message may still reach it */
}

gb_status gb_tree_sum(const gb_tree *tree, void *left, const void *right, int64_t count) {
  return add_up(tree->context, tree->comm, &tree->lane, left, right, count);
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

int gb_tree_owner(const gb_tree *tree, int64_t leaf) {
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
  int rank = comm ? comm->rank : 0, left = gb_tree_owner(tree, i << level), at = place_of(tree, level, i);
  int64_t right_leaf = (i + 1) << level;
  if (right_leaf >= tree->leaves) { /* no right child: the left one stands for both */
    if (at >= 0) tree->nodes[at].level++, tree->nodes[at].index /= 2;
    return GB_OK;
  }
  int right = gb_tree_owner(tree, right_leaf), mine = place_of(tree, level, i + 1);
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
    if (status != GB_OK) return gb_tree_drop(tree, data), status;
    memmove(&tree->nodes[at + 2], &tree->nodes[at + 1], sizeof *tree->nodes * (size_t)(tree->count - at - 1));
    tree->nodes[at + 1] = (gb_tree_node){ level, i + 1, data };
    tree->count++;
    return join(tree, at);
  }
  return GB_OK;
}

/* Up the tree, level by level, for any number of ranks; the root comes to rank 0, and the others have memory for it. */
static gb_status climb(gb_tree *tree) {
  for (int level = 0; ((int64_t)1 << level) < tree->leaves; level++)
    for (int64_t i = 0; i << level < tree->leaves; i += 2) GB_TRY(join_pair(tree, level, i));
  if (tree->count) return GB_OK;
  tree->nodes[0].data = gb_tree_leaf(tree);
  if (!tree->nodes[0].data) return GB_EMEMORY;
  tree->count = 1;
  return GB_OK;
}

/* A lane in so many parts: part i goes from cut i to the next. at NULL: parts of about the same size. */
typedef struct cuts { int parts; int64_t count; const int64_t *at; } cuts;

static int64_t cut(const cuts *c, int i) { return c->at ? c->at[i] : (int64_t)((__int128)c->count * i / c->parts); }

/* Some parts that follow each other. */
typedef struct span { int first, end; } span;

static char *at(const gb_lane *lane, void *data, int64_t i) { return (char *)data + (size_t)i *
                                                              gb_dtype_bytes(lane->dtype); }
static int64_t count_in(const cuts *c, span s) { return cut(c, s.end) - cut(c, s.first); }

/* Send these parts of the data to the partner, and receive those. */
static gb_status swap_spans(gb_comm *comm, gb_tag tag, const gb_lane *lane, const cuts *c, int partner, void *data,
                            span out, void *place, span in) {
  size_t each = gb_dtype_bytes(lane->dtype);
  return gb_comm_swap(comm, tag, partner, at(lane, data, cut(c, out.first)), (size_t)count_in(c, out) * each, partner,
                      place, (size_t)count_in(c, in) * each);
}

/* Recursive halving: in each round the partner of rank xor step gets one half of the parts that this rank still adds
 * up, and gives its half of the other. There are as many parts as ranks, and each rank ends with one. spans[k] is what
 * was left before round k; returns the number of rounds. */
static gb_status halve(gb_comm *comm, const gb_lane *lane, const cuts *c, void *data, void *spare, span spans[32],
                       int *rounds) {
  spans[0] = (span){ 0, c->parts };
  *rounds = 0;
  for (int step = 1; step < comm->size; step *= 2, ++*rounds) {
    span whole = spans[*rounds];
    int middle = (whole.first + whole.end) / 2;
    bool is_right = comm->rank & step;
    span keep = is_right ? (span){ middle, whole.end } : (span){ whole.first, middle };
    span give = is_right ? (span){ whole.first, middle } : (span){ middle, whole.end };
    int64_t count = count_in(c, keep);
    void *mine = at(lane, data, cut(c, keep.first));
    GB_TRY(swap_spans(comm, GB_TAG_REDUCE, lane, c, comm->rank ^ step, data, give, spare, keep));
    if (!is_right) GB_TRY(add_up(comm->context, comm, lane, mine, spare, count));
    else GB_TRY(add_up_right(comm, lane, spare, mine, count)); /* the partner's node is the left one */
    spans[*rounds + 1] = keep;
  }
  return GB_OK;
}

/* The way back: each rank has a part of the whole, and partners give each other theirs. */
static gb_status join_halves(gb_comm *comm, const gb_lane *lane, const cuts *c, void *data, const span *spans,
                             int rounds) {
  for (int k = rounds - 1; k >= 0; k--) {
    span mine = spans[k + 1];
    span other = mine.first == spans[k].first ? (span){ mine.end, spans[k].end } : (span){ spans[k].first, mine.first };
    GB_TRY(swap_spans(comm, GB_TAG_GATHER, lane, c, comm->rank ^ (1 << k), data, mine,
                      at(lane, data, cut(c, other.first)), other));
  }
  return GB_OK;
}

static bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* Does halving do? Then each rank owns one node of one level. */
static bool is_even(const gb_tree *tree) {
  const gb_comm *comm = tree->comm;
  return comm && comm->size > 1 && is_power_of_two(comm->size) && is_power_of_two(tree->leaves) &&
      tree->leaves >= comm->size;
}

/* Partners give each other all that they have: half as many messages as halving and doubling. */
static gb_status swap_whole(gb_comm *comm, const gb_lane *lane, void *data, void *spare) {
  size_t bytes = gb_lane_bytes(lane);
  for (int step = 1; step < comm->size; step *= 2) {
    int partner = comm->rank ^ step;
    GB_TRY(gb_comm_swap(comm, GB_TAG_REDUCE, partner, data, bytes, partner, spare, bytes));
    if (!(comm->rank & step)) GB_TRY(add_up(comm->context, comm, lane, data, spare, lane->count));
    else GB_TRY(add_up_right(comm, lane, spare, data, lane->count)); /* the partner's node is the left one */
  }
  return GB_OK;
}

/* Each rank gets the sum of a part by a plan, and then all parts go round the ring. */
static gb_status finish_planned(gb_tree *tree, void **sum) {
  gb_comm *comm = tree->comm;
  const gb_lane *lane = &tree->lane;
  const cuts c = { comm->size, lane->count, NULL };
  int64_t *all = gb_comm_take(comm, (size_t)(comm->size + 1) * sizeof *all);
  if (!all) return GB_EMEMORY;
  for (int i = 0; i <= comm->size; i++) all[i] = cut(&c, i);
  gb_status status = gb_plan_sum(tree, all);
  int64_t first = all[comm->rank], count = all[comm->rank + 1] - first;
  gb_comm_free(comm, all);
  GB_TRY(status);
  *sum = tree->nodes[0].data;
  GB_TRY(end_root(tree, *sum, first, count));
  size_t each = gb_dtype_bytes(lane->dtype);
  int next = (comm->rank + 1) % comm->size, before = (comm->rank + comm->size - 1) % comm->size;
  for (int i = 0; i < comm->size - 1; i++) {
    int out = (comm->rank - i + comm->size) % comm->size, in = (out + comm->size - 1) % comm->size;
    GB_TRY(gb_comm_swap(comm, GB_TAG_GATHER, next, at(lane, *sum, cut(&c, out)),
                        (size_t)count_in(&c, (span){ out, out + 1 }) * each, before, at(lane, *sum, cut(&c, in)),
                        (size_t)count_in(&c, (span){ in, in + 1 }) * each));
  }
  return GB_OK;
}

gb_status gb_tree_finish(gb_tree *tree, void **sum) {
  gb_comm *comm = tree->comm;
  if (!is_even(tree) && gb_plan_serves(tree)) return finish_planned(tree, sum);
  if (!is_even(tree)) {
    GB_TRY(climb(tree));
    *sum = tree->nodes[0].data;
    if (!comm || comm->rank == 0) GB_TRY(end_root(tree, *sum, 0, tree->lane.count));
    return comm && comm->size > 1 ? gb_comm_broadcast(comm, 0, *sum, gb_lane_bytes(&tree->lane)) : GB_OK;
  }
  const cuts c = { comm->size, tree->lane.count, NULL };
  span spans[33];
  int rounds = 0;
  void *spare = gb_tree_leaf(tree);
  if (!spare) return GB_EMEMORY;
  bool whole = tree->lane.mix || gb_lane_bytes(&tree->lane) <= GB_TREE_SMALL;
  gb_status status = whole ? swap_whole(comm, &tree->lane, tree->nodes[0].data, spare)
                           : halve(comm, &tree->lane, &c, tree->nodes[0].data, spare, spans, &rounds);
  span made = whole ? (span){ 0, c.parts } : spans[rounds];
  if (status == GB_OK) status = end_root(tree, tree->nodes[0].data, cut(&c, made.first), count_in(&c, made));
  if (status == GB_OK && !whole) status = join_halves(comm, &tree->lane, &c, tree->nodes[0].data, spans, rounds);
  tree->spare[tree->spares++] = spare;
  *sum = tree->nodes[0].data;
  return status;
}

/* ====} */

/* {==== Several trees at once ==== */

/* The nodes at place i, side by side, or a sum back to where it came from. */
static void pack(gb_tree *const trees[], int count, int i, char *packed, bool back) {
  for (int k = 0; k < count; k++) {
    size_t bytes = gb_lane_bytes(&trees[k]->lane);
    memcpy(back ? trees[k]->nodes[i].data : packed, back ? packed : trees[k]->nodes[i].data, bytes);
    packed += room_of(&trees[k]->lane);
  }
}

/* A rank that gave all of its nodes away has memory for the sum. */
static gb_status need_root(gb_tree *tree) {
  if (tree->count) return GB_OK;
  tree->nodes[0] = (gb_tree_node){ 0, 0, gb_tree_leaf(tree) };
  tree->count = tree->nodes[0].data != NULL;
  return tree->count ? GB_OK : GB_EMEMORY;
}

static gb_status finish_mix(gb_tree *all, gb_tree *const trees[], int count) {
  void *sum;
  for (int i = 0; i < trees[0]->count; i++) {
    gb_tree_node node = trees[0]->nodes[i];
    node.data = gb_tree_leaf(all);
    if (!node.data) return GB_EMEMORY;
    pack(trees, count, i, node.data, false);
    all->nodes[all->count++] = node;
  }
  GB_TRY(gb_tree_finish(all, &sum));
  for (int k = 0; k < count; k++) GB_TRY(need_root(trees[k]));
  pack(trees, count, 0, sum, true);
  return GB_OK;
}

gb_status gb_trees_finish(gb_tree *const trees[], int count, void *sums[]) {
  struct gb_mix mix = { .count = count };
  gb_lane lane = { GB_UINT8, GB_REDUCE_SUM, 0, &mix, NULL };
  gb_tree all;
  for (int k = 0; k < count; k++) {
    mix.lanes[k] = trees[k]->lane;
    lane.count += (int64_t)room_of(&trees[k]->lane);
  }
  gb_tree_begin(&all, trees[0]->context, trees[0]->comm, &lane, trees[0]->leaves);
  gb_status status = finish_mix(&all, trees, count);
  for (int k = 0; k < count && status == GB_OK; k++) sums[k] = trees[k]->nodes[0].data;
  gb_tree_free(&all);
  return status;
}

/* ====} */

/* {==== Pieces ==== */

/* The bits of the number, of which there are so many, in reverse. */
static int reversed(int number, int bits) {
  int out = 0;
  for (; bits; bits--, number >>= 1) out = out << 1 | (number & 1);
  return out;
}

/* The part that halving leaves with a rank is the one whose number has its bits in reverse. */
static int part_of(const gb_comm *comm, int rank, bool halves) {
  int bits = 0;
  while (halves && 1 << bits < comm->size) bits++;
  return halves ? reversed(rank, bits) : rank;
}

/* Pieces of a lane by parts, each of one rank's pieces in their order. cuts: where parts begin; next: where each is
 * filled on; both have size + 1 numbers. */
typedef struct packing { gb_tree *tree; const gb_piece *pieces; int64_t count; bool halves; int64_t *cuts, *next; }
  packing;

static void lay_parts(packing *p) {
  int size = p->tree->comm->size;
  memset(p->cuts, 0, (size_t)(size + 1) * sizeof *p->cuts);
  for (int64_t i = 0; i < p->count; i++)
    p->cuts[part_of(p->tree->comm, p->pieces[i].owner, p->halves) + 1] += p->pieces[i].count;
  for (int i = 0; i < size; i++) p->cuts[i + 1] += p->cuts[i];
  memcpy(p->next, p->cuts, (size_t)(size + 1) * sizeof *p->cuts);
}

/* Copy the pieces of one rank (-1: all) from the lane to their parts, or back. */
static gb_status move_pieces(packing *p, int rank, bool back, void *data, void *parts) {
  const gb_lane *of = &p->tree->lane;
  size_t each = gb_dtype_bytes(of->dtype), place = 0;
  for (int64_t i = 0; i < p->count; i++) {
    const gb_piece *piece = &p->pieces[i];
    size_t bytes = (size_t)piece->count * each;
    if (rank < 0 || piece->owner == rank) {
      int64_t *next = &p->next[part_of(p->tree->comm, piece->owner, p->halves)];
      char *lane = (char *)data + place, *part = (char *)parts + (size_t)*next * each;
      GB_TRY(copy(p->tree->comm, of, back ? lane : part, back ? part : lane, bytes));
      *next += piece->count;
    }
    place += bytes;
  }
  return GB_OK;
}

/* The lane gets the sums of this rank's pieces, and 0 elsewhere. */
static gb_status bring_own(packing *p, void *data, void *parts) {
  const gb_lane *lane = &p->tree->lane;
  if (lane->near) GB_TRY(gb_near_clear(lane->near, p->tree->comm, data, gb_lane_bytes(lane)));
  else memset(data, 0, gb_lane_bytes(lane));
  lay_parts(p);
  return move_pieces(p, p->tree->comm->rank, true, data, parts);
}

/* From rank 0, which has all parts, each to its rank, at the same place. */
static gb_status hand_out(packing *p, void *parts) {
  gb_comm *comm = p->tree->comm;
  for (int r = 1; r < comm->size; r++) {
    int64_t first = p->cuts[r], count = p->cuts[r + 1] - first;
    if (count == 0 || (comm->rank && comm->rank != r)) continue;
    GB_TRY(gb_comm_transfer(comm, GB_TAG_SCATTER, comm->rank == 0, comm->rank ? 0 : r,
                            at(&p->tree->lane, parts, first), (size_t)count * gb_dtype_bytes(p->tree->lane.dtype)));
  }
  return GB_OK;
}

/* The sum of this rank's part, in `parts`. data is lost. */
static gb_status sum_parts(packing *p, void *data, void *parts) {
  gb_comm *comm = p->tree->comm;
  span spans[33];
  int rounds;
  if (p->halves || comm->rank == 0) GB_TRY(move_pieces(p, -1, false, data, parts));
  if (!p->halves && comm->rank == 0) GB_TRY(end_root(p->tree, parts, 0, p->tree->lane.count));
  if (!p->halves) return hand_out(p, parts);
  const cuts c = { comm->size, p->tree->lane.count, p->cuts };
  GB_TRY(halve(comm, &p->tree->lane, &c, parts, data, spans, &rounds));
  return end_root(p->tree, parts, cut(&c, spans[rounds].first), count_in(&c, spans[rounds]));
}

/* All that this rank has lies by parts, and their sums are found by a plan. */
static gb_status scatter_planned(packing *p, void **sum) {
  gb_tree *tree = p->tree;
  for (int i = 0; i < tree->count; i++) {
    void *parts = gb_tree_leaf(tree), *data = tree->nodes[i].data;
    if (!parts) return GB_EMEMORY;
    lay_parts(p);
    gb_status status = move_pieces(p, -1, false, data, parts);
    tree->nodes[i].data = parts;
    gb_tree_spare(tree, data);
    GB_TRY(status);
  }
  GB_TRY(gb_plan_sum(tree, p->cuts));
  int64_t first = p->cuts[tree->comm->rank];
  GB_TRY(end_root(tree, tree->nodes[0].data, first, p->cuts[tree->comm->rank + 1] - first));
  void *data = gb_tree_leaf(tree), *parts = tree->nodes[0].data;
  if (!data) return GB_EMEMORY;
  gb_status status = bring_own(p, data, parts);
  *sum = tree->nodes[0].data = data;
  gb_tree_spare(tree, parts);
  return status;
}

static gb_status scatter_pieces(packing *p, void **sum) {
  gb_tree *tree = p->tree;
  if (!p->halves && gb_plan_serves(tree)) return lay_parts(p), scatter_planned(p, sum);
  if (!p->halves) GB_TRY(climb(tree));
  void *data = tree->nodes[0].data, *parts = gb_tree_leaf(tree);
  if (!parts) return GB_EMEMORY;
  lay_parts(p);
  gb_status status = sum_parts(p, data, parts);
  if (status == GB_OK) status = bring_own(p, data, parts);
  tree->spare[tree->spares++] = parts;
  *sum = data;
  return status;
}

gb_status gb_tree_finish_pieces(gb_tree *tree, const gb_piece *pieces, int64_t count, void **sum) {
  gb_comm *comm = tree->comm;
  if (!comm || comm->size == 1) return gb_tree_finish(tree, sum);
  packing p = { tree, pieces, count, is_even(tree), NULL, NULL };
  p.cuts = gb_comm_take(comm, 2 * (size_t)(comm->size + 1) * sizeof *p.cuts);
  if (!p.cuts) return GB_EMEMORY;
  p.next = p.cuts + comm->size + 1;
  gb_status status = scatter_pieces(&p, sum);
  gb_comm_free(comm, p.cuts);
  return status;
}

/* ====} */

/* {==== Where each rank is a leaf ==== */

/* The device is through with what was asked of it, so that the memory may go to others, on any thread: or else the job
 * is broken, and keeps it. */
static gb_status settle(gb_comm *comm, const gb_lane *lane, gb_status status) {
  if (!lane->near) return status;
  if (status == GB_OK) status = gb_comm_settle(comm);
  if (status != GB_OK) gb_comm_break(comm);
  return status;
}

gb_status gb_comm_all_reduce(gb_comm *comm, const gb_lane *lane, void *data) {
  gb_tree tree;
  void *sum = NULL;
  if (comm->size == 1 || lane->count == 0) return GB_OK;
  gb_tree_begin(&tree, comm->context, comm, lane, comm->size);
  void *leaf = gb_tree_leaf(&tree);
  if (!leaf) return GB_EMEMORY;
  gb_status status = copy(comm, lane, leaf, data, gb_lane_bytes(lane));
  if (status == GB_OK) status = gb_tree_add(&tree, comm->rank, leaf);
  else gb_tree_spare(&tree, leaf);
  if (status == GB_OK) status = gb_tree_finish(&tree, &sum);
  if (status == GB_OK) status = copy(comm, lane, data, sum, gb_lane_bytes(lane));
  status = settle(comm, lane, status);
  gb_tree_free(&tree);
  return status;
}

/* Halving leaves part r elsewhere than with rank r: so it goes there first. */
static gb_status scatter_evenly(gb_comm *comm, const gb_lane *lane, void *data, void *work, void *out) {
  const cuts c = { comm->size, lane->count, NULL };
  span spans[33];
  int rounds = 0;
  size_t part = gb_lane_bytes(lane) / (size_t)comm->size;
  for (int r = 0; r < comm->size; r++)
    GB_TRY(copy(comm, lane, (char *)work + (size_t)part_of(comm, r, true) * part, (char *)data + (size_t)r * part,
                part));
  GB_TRY(halve(comm, lane, &c, work, data, spans, &rounds));
  return copy(comm, lane, out, at(lane, work, cut(&c, spans[rounds].first)), part);
}

gb_status gb_comm_reduce_scatter(gb_comm *comm, const gb_lane *lane, void *data, void *out) {
  size_t bytes = gb_lane_bytes(lane), part = bytes / (size_t)comm->size;
  if (bytes == 0) return GB_OK;
  if (!is_power_of_two(comm->size)) {
    GB_TRY(gb_comm_all_reduce(comm, lane, data));
    return settle(comm, lane, copy(comm, lane, out, (char *)data + (size_t)comm->rank * part, part));
  }
  gb_tree tree;
  gb_tree_begin(&tree, comm->context, comm, lane, comm->size);
  void *work = gb_tree_leaf(&tree);
  if (!work) return GB_EMEMORY;
  gb_status status = settle(comm, lane, scatter_evenly(comm, lane, data, work, out));
  gb_tree_drop(&tree, work);
  return status;
}

/* ====} */
