/* plan.c - see plan.h. */
#include "dist/plan.h"

#include <string.h>

enum { RANKS_MOST = 16, LEVELS_MOST = 10, LEAVES_MOST = 1 << LEVELS_MOST };

/* nodes: of all levels, from the leaves up. cost: how many messages it takes until a rank has a node [node, rank].
 * made, wanted: of a part, who adds up a node, or has it all, and who takes it on; -1: neither [part, node]. slots:
 * where this rank has a node, or parts of one. */
typedef struct plan {
  gb_tree *tree;
  const int64_t *cuts;
  int size, rank, levels;
  int first[LEVELS_MOST + 2];         /* the number of the first node of a level */
  int16_t *cost;
  int8_t *made, *wanted;
  void **slots, *extra[4 * RANKS_MOST];
  int n_extra;
  gb_post *posts;
} plan;

bool gb_plan_serves(const gb_tree *tree) {
  const gb_comm *comm = tree->comm;
  return comm && comm->size > 2 && comm->size <= RANKS_MOST && tree->leaves <= LEAVES_MOST && !tree->lane.mix &&
      tree->leaves >= comm->size && gb_lane_bytes(&tree->lane) > GB_TREE_SMALL;
}

/* {==== the plan ==== */

static int count_of(const plan *p, int level) { return p->first[level + 1] - p->first[level]; }

static int left_of(const plan *p, int level, int i) { return p->first[level - 1] + 2 * i; }

/* -1: there is no leaf on that side. */
static int right_of(const plan *p, int level, int i) {
  return 2 * i + 1 < count_of(p, level - 1) ? left_of(p, level, i) + 1 : -1;
}

/* The rank that owns all leaves of the node; -1: several do. */
static int holder_of(const plan *p, int level, int i) {
  int64_t first = (int64_t)i << level, end = first + ((int64_t)1 << level);
  int64_t last = (end < p->tree->leaves ? end : p->tree->leaves) - 1;
  int rank = gb_tree_owner(p->tree, first);
  return rank == gb_tree_owner(p->tree, last) ? rank : -1;
}

/* Messages until the rank has both children. */
static int cost_there(const plan *p, int level, int i, int rank) {
  int left = left_of(p, level, i), right = right_of(p, level, i);
  return p->cost[left * p->size + rank] + (right < 0 ? 0 : p->cost[right * p->size + rank]);
}

static void find_costs(plan *p) {
  for (int level = 0; level <= p->levels; level++)
    for (int i = 0; i < count_of(p, level); i++) {
      int holder = holder_of(p, level, i), least = holder >= 0 ? 0 : INT16_MAX;
      int16_t *cost = &p->cost[(p->first[level] + i) * p->size];
      for (int r = 0; r < p->size && holder < 0; r++)
        if (cost_there(p, level, i, r) < least) least = cost_there(p, level, i, r);
      for (int r = 0; r < p->size; r++) {
        int here = holder < 0 ? cost_there(p, level, i, r) : r == holder ? 0 : 1;
        cost[r] = (int16_t)(here < least + 1 ? here : least + 1);
      }
    }
}

/* The rank that adds up the node of this part for who wants it: of several, others for other parts. */
static int maker_for(const plan *p, int part, int level, int i, int wanted) {
  int cost = p->cost[(p->first[level] + i) * p->size + wanted];
  if (cost_there(p, level, i, wanted) == cost) return wanted;
  int rank = (part + i) % p->size;
  while (cost_there(p, level, i, rank) + 1 != cost) rank = (rank + 1) % p->size;
  return rank;
}

/* Who makes and wants the node and what lies below it, down to what one rank holds. Its depth is the tree's. */
static void find_makers(plan *p, int part, int level, int i, int wanted) {
  int at = part * p->first[p->levels + 1] + p->first[level] + i, holder = holder_of(p, level, i);
  int maker = holder >= 0 ? holder : maker_for(p, part, level, i, wanted);
  p->made[at] = (int8_t)maker;
  p->wanted[at] = (int8_t)wanted;
  if (holder >= 0) return;
  find_makers(p, part, level - 1, 2 * i, maker);
  if (right_of(p, level, i) >= 0) find_makers(p, part, level - 1, 2 * i + 1, maker);
}

/* ====} */

/* {==== following it ==== */

static int64_t count_in(const plan *p, int part) { return p->cuts[part + 1] - p->cuts[part]; }

static void *part_at(const plan *p, int node, int part) {
  return (char *)p->slots[node] + (size_t)p->cuts[part] * gb_dtype_bytes(p->tree->lane.dtype);
}

/* What this rank has by itself, up to nodes that need others. */
static gb_status settle_own(plan *p) {
  gb_tree *tree = p->tree;
  for (int i = 0; i < tree->count; i++)
    p->slots[p->first[tree->nodes[i].level] + tree->nodes[i].index] = tree->nodes[i].data;
  for (int level = 1; level <= p->levels; level++)
    for (int i = 0; i < count_of(p, level); i++) {
      int node = p->first[level] + i, left = left_of(p, level, i), right = right_of(p, level, i);
      if (p->slots[node] || !p->slots[left] || holder_of(p, level, i) != p->rank) continue;
      if (right >= 0) GB_TRY(gb_tree_sum(tree, p->slots[left], p->slots[right], tree->lane.count));
      p->slots[node] = p->slots[left];
    }
  return GB_OK;
}

/* Memory for parts of a node that come from others. */
static gb_status need_slot(plan *p, int node) {
  if (p->slots[node]) return GB_OK;
  p->slots[node] = gb_tree_leaf(p->tree);
  if (!p->slots[node]) return GB_EMEMORY;
  p->extra[p->n_extra++] = p->slots[node];
  return GB_OK;
}

/* The messages of one level are under way at once. */
static gb_status move_level(plan *p, int level) {
  gb_comm *comm = p->tree->comm;
  int count = 0, nodes = p->first[p->levels + 1];
  gb_status status = GB_OK;
  for (int node = p->first[level]; node < p->first[level + 1] && status == GB_OK; node++)
    for (int part = 0; part < p->size && status == GB_OK; part++) {
      int maker = p->made[part * nodes + node], wanted = p->wanted[part * nodes + node];
      size_t bytes = (size_t)count_in(p, part) * gb_dtype_bytes(p->tree->lane.dtype);
      if (maker == wanted || bytes == 0 || (maker != p->rank && wanted != p->rank)) continue;
      bool sends = maker == p->rank;
      if (!sends) status = need_slot(p, node);
      if (status == GB_OK)
        status = gb_comm_post(comm, GB_TAG_REDUCE, sends, sends ? wanted : maker, part_at(p, node, part), bytes,
                              &p->posts[count]);
      count += status == GB_OK;
    }
  if (status == GB_OK) return gb_comm_wait(comm, p->posts, count);
  while (count--) gb_comm_drop(comm, &p->posts[count], NULL);
  return status;
}

/* The nodes of the level that this rank makes are added up, from their children that are here now. */
static gb_status make_level(plan *p, int level) {
  size_t nodes = (size_t)p->first[p->levels + 1];
  for (int i = 0; i < count_of(p, level); i++) {
    int node = p->first[level] + i, left = left_of(p, level, i), right = right_of(p, level, i);
    if (holder_of(p, level, i) >= 0) continue;
    for (int part = 0; part < p->size && right >= 0; part++)
      if (p->made[(size_t)part * nodes + (size_t)node] == p->rank && count_in(p, part))
        GB_TRY(gb_tree_sum(p->tree, part_at(p, left, part), part_at(p, right, part), count_in(p, part)));
    p->slots[node] = p->slots[left] || right < 0 ? p->slots[left] : p->slots[right];
  }
  return GB_OK;
}

/* The root's memory becomes the tree's one node; all other memory is spare. */
static void keep_root(plan *p, void *root) {
  gb_tree *tree = p->tree;
  for (int i = 0; i < tree->count; i++)
    if (tree->nodes[i].data != root) gb_tree_spare(tree, tree->nodes[i].data);
  for (int i = 0; i < p->n_extra; i++)
    if (p->extra[i] != root) gb_tree_spare(tree, p->extra[i]);
  tree->count = root != NULL;
  tree->nodes[0] = (gb_tree_node){ p->levels, 0, root };
}

static gb_status follow(plan *p) {
  int root = p->first[p->levels];
  GB_TRY(settle_own(p));
  for (int level = 0; level <= p->levels; level++) {
    if (level) GB_TRY(make_level(p, level));
    GB_TRY(move_level(p, level));
  }
  return need_slot(p, root);
}

/* ====} */

gb_status gb_plan_sum(gb_tree *tree, const int64_t *cuts) {
  gb_comm *comm = tree->comm;
  plan p = { .tree = tree, .cuts = cuts, .size = comm->size, .rank = comm->rank };
  while ((int64_t)1 << p.levels < tree->leaves) p.levels++;
  for (int level = 0; level <= p.levels; level++)
    p.first[level + 1] = p.first[level] + (int)((tree->leaves + ((int64_t)1 << level) - 1) >> level);
  size_t nodes = (size_t)p.first[p.levels + 1], ranks = (size_t)p.size, posts = 3 * ranks * ranks;
  size_t places = nodes * ranks;
  char *room = gb_comm_take(comm, nodes * sizeof *p.slots + posts * sizeof *p.posts + places * (sizeof *p.cost + 2));
  if (!room) return GB_EMEMORY;
  p.slots = (void **)(void *)room;
  p.posts = (gb_post *)(void *)(room + nodes * sizeof *p.slots);
  p.cost = (int16_t *)(void *)(p.posts + posts);
  p.made = (int8_t *)(p.cost + places);
  p.wanted = p.made + places;
  memset(p.slots, 0, nodes * sizeof *p.slots);
  memset(p.made, -1, 2 * places);
  find_costs(&p);
  for (int part = 0; part < p.size; part++) find_makers(&p, part, p.levels, 0, part);
  gb_status status = follow(&p);
  keep_root(&p, status == GB_OK ? p.slots[p.first[p.levels]] : NULL);
  gb_comm_free(comm, room);
  return status;
}
