/* test_dist.c - jobs of 1 to 8 ranks, as threads: messages, waiting, and sums by the fixed tree, which are compared bit
 * for bit with the same tree on one process; what stops them, what memory they count, and what a transport may still
 * reach. Meant for the thread sanitizer too. */
#include "ranks.h"

#include <sched.h>
#include <threads.h>

#include "dist/shards.h"

#define EXPECT(job, expression)                                                          \
  do {                                                                                   \
    if (expression) break;                                                               \
    (job)->bad++;                                                                        \
    fprintf(stderr, "%s:%d: rank %d failed: %s: %s\n", __FILE__, __LINE__, (job)->rank, #expression,                  \
            gb_error((job)->context));                                                    \
  } while (0)

static gb_context *contexts[RANKS_MOST];

static atomic_int yields; /* how often a thread gave its core away and stayed ready to run */

/* In the place of the library's. */
int sched_yield(void) {
  atomic_fetch_add(&yields, 1);
  thrd_yield();
  return 0;
}

/* {==== Sums ==== */

typedef struct sum_case { uint64_t key; int64_t leaves; gb_lane lane; } sum_case;

/* Numbers of very different sizes, so that every other order of additions gives other bits. */
static double element(const sum_case *c, int64_t leaf, int64_t i) {
  double x = noise(c->key * 1000 + (uint64_t)leaf, i);
  return c->lane.dtype == GB_INT64 ? x * 0x1p62 : ldexp(x, (int)(noise(c->key + 7, leaf * 131 + i) * 20));
}

static void fill_leaf(const sum_case *c, int64_t leaf, void *data) {
  for (int64_t i = 0; i < c->lane.count; i++)
    if (c->lane.dtype == GB_FLOAT32) ((float *)data)[i] = (float)element(c, leaf, i);
    else if (c->lane.dtype == GB_FLOAT64) ((double *)data)[i] = element(c, leaf, i);
    else ((int64_t *)data)[i] = (int64_t)element(c, leaf, i);
}

/* The definition, by recursion: the node over leaves first .. first + 2^level - 1. */
static void serial(const sum_case *c, int level, int64_t first, void *out) {
  if (level == 0) { fill_leaf(c, first, out); return; }
  int64_t half = (int64_t)1 << (level - 1);
  serial(c, level - 1, first, out);
  if (first + half >= c->leaves) return;
  void *right = malloc(gb_lane_bytes(&c->lane) + 1);
  serial(c, level - 1, first + half, right);
  gb_reduce_into(&c->lane, out, right, c->lane.count);
  free(right);
}

static void *expected_sum(const sum_case *c) {
  int level = 0;
  while ((int64_t)1 << level < c->leaves) level++;
  void *out = malloc(gb_lane_bytes(&c->lane) + 1);
  serial(c, level, 0, out);
  return out;
}

/* The tree over leaves that ranks own in runs. */
static void sum_leaves(rank_job *job) {
  const sum_case *c = job->what;
  gb_tree tree;
  void *sum = NULL, *want = expected_sum(c);
  gb_tree_begin(&tree, job->context, job->comm, &c->lane, c->leaves);
  int64_t end = gb_tree_first(c->leaves, job->size, job->rank + 1);
  for (int64_t leaf = gb_tree_first(c->leaves, job->size, job->rank); leaf < end; leaf++) {
    void *data = gb_tree_leaf(&tree);
    fill_leaf(c, leaf, data);
    EXPECT(job, gb_tree_add(&tree, leaf, data) == GB_OK);
  }
  EXPECT(job, gb_tree_finish(&tree, &sum) == GB_OK && !memcmp(sum, want, gb_lane_bytes(&c->lane)));
  gb_tree_free(&tree);
  free(want);
}

/* One of so many, by chance. */
static int64_t pick(uint64_t key, int64_t i, int64_t most) { return (int64_t)((noise(key, i) + 1) / 2 * (double)most); }

enum { PIECES = 40 };

/* The lane in pieces of any lengths, of any ranks; returns how many. */
static int64_t cut_lane(const sum_case *c, int size, gb_piece pieces[PIECES]) {
  int64_t count = 0, left = c->lane.count;
  for (; left && count < PIECES; count++) {
    int64_t some = count == PIECES - 1 ? left : pick(c->key + 9, count, left / 3 + 2);
    pieces[count] = (gb_piece){ some, (int)pick(c->key + 10, count, size) };
    left -= some;
  }
  return count;
}

/* The tree again, where each rank gets the sums of its pieces, and 0 elsewhere. */
static void sum_pieces(rank_job *job) {
  const sum_case *c = job->what;
  gb_piece pieces[PIECES];
  int64_t count = cut_lane(c, job->size, pieces), end = gb_tree_first(c->leaves, job->size, job->rank + 1);
  size_t each = gb_dtype_bytes(c->lane.dtype), at = 0;
  gb_tree tree;
  void *sum = NULL;
  char *want = expected_sum(c);
  for (int64_t i = 0; i < count; at += (size_t)pieces[i++].count * each)
    if (pieces[i].owner != job->rank && job->size > 1) memset(want + at, 0, (size_t)pieces[i].count * each);
  gb_tree_begin(&tree, job->context, job->comm, &c->lane, c->leaves);
  for (int64_t leaf = gb_tree_first(c->leaves, job->size, job->rank); leaf < end; leaf++) {
    void *data = gb_tree_leaf(&tree);
    fill_leaf(c, leaf, data);
    EXPECT(job, gb_tree_add(&tree, leaf, data) == GB_OK);
  }
  EXPECT(job, gb_tree_finish_pieces(&tree, pieces, count, &sum) == GB_OK && !memcmp(sum, want, at));
  gb_tree_free(&tree);
  free(want);
}

/* Three trees of different lanes, summed up together. */
static void sum_together(rank_job *job) {
  sum_case cases[3];
  gb_tree trees[3], *list[3];
  void *sums[3];
  int64_t end;
  for (int k = 0; k < 3; k++) {
    cases[k] = *(const sum_case *)job->what;
    cases[k].key += 50000 * (uint64_t)k;
    if (k) cases[k].lane = (gb_lane){ .dtype = k == 1 ? GB_FLOAT32 : GB_INT64,
                                      .reduction = k == 1 ? GB_REDUCE_SUM : GB_REDUCE_MAX, .count = 5 };
    gb_tree_begin(list[k] = &trees[k], job->context, job->comm, &cases[k].lane, cases[k].leaves);
    end = gb_tree_first(cases[k].leaves, job->size, job->rank + 1);
    for (int64_t leaf = gb_tree_first(cases[k].leaves, job->size, job->rank); leaf < end; leaf++) {
      void *data = gb_tree_leaf(&trees[k]);
      fill_leaf(&cases[k], leaf, data);
      EXPECT(job, gb_tree_add(&trees[k], leaf, data) == GB_OK);
    }
  }
  EXPECT(job, gb_trees_finish(list, 3, sums) == GB_OK);
  for (int k = 0; k < 3; k++) {
    void *want = expected_sum(&cases[k]);
    EXPECT(job, !memcmp(sums[k], want, gb_lane_bytes(&cases[k].lane)));
    gb_tree_free(&trees[k]);
    free(want);
  }
}

/* The same where each rank is a leaf: everything, and each rank's part. */
static void sum_ranks(rank_job *job) {
  sum_case c = *(const sum_case *)job->what;
  c.leaves = job->size;
  c.lane.count -= c.lane.count % job->size;
  size_t bytes = gb_lane_bytes(&c.lane), part = bytes / (size_t)job->size;
  char *want = expected_sum(&c), *data = malloc(bytes + 1), *out = malloc(part + 1);
  fill_leaf(&c, job->rank, data);
  EXPECT(job, gb_comm_all_reduce(job->comm, &c.lane, data) == GB_OK && !memcmp(data, want, bytes));
  fill_leaf(&c, job->rank, data);
  EXPECT(job, gb_comm_reduce_scatter(job->comm, &c.lane, data, out) == GB_OK);
  EXPECT(job, !memcmp(out, want + (size_t)job->rank * part, part));
  free(want), free(data), free(out);
}

/* All of these in one job. */
static void sum_all(rank_job *job) {
  sum_leaves(job);
  sum_ranks(job);
  sum_pieces(job);
  sum_together(job);
}

static void test_sums(int cases) {
  static const gb_dtype dtypes[] = { GB_FLOAT32, GB_FLOAT64, GB_INT64 };
  int good = 0;
  for (int i = 0; i < cases; i++) {
    sum_case c = { .key = (uint64_t)i + 1 };
    int size = 1 + (int)pick(1, i, RANKS_MOST);
    c.leaves = i % 2 ? (int64_t)8 << pick(2, i, 4) : size + pick(2, i, 40);
    int kind = (int)pick(3, i, 3);
    c.lane = (gb_lane){ dtypes[kind], pick(4, i, 4) ? GB_REDUCE_SUM : kind == 2 ? GB_REDUCE_OR : GB_REDUCE_MAX,
                        pick(5, i, i % 50 == 0 ? 20000 : i % 5 == 0 ? 3000 : 70), NULL, NULL };
    int bad = run_ranks(contexts, size, 60, sum_all, &c);
    if (bad) fprintf(stderr, "case %d: %d ranks, %lld leaves, %lld of %s\n", i, size, (long long)c.leaves,
                     (long long)c.lane.count, gb_dtype_name(c.lane.dtype));
    good += !bad;
  }
  CHECK(good == cases);
}

/* A NaN stays one, whichever side it is on. */
static void test_maximum(void) {
  float left[] = { 1, NAN, 1, -0.0f }, right[] = { NAN, 1, 2, -INFINITY };
  gb_reduce_into(&(gb_lane){ GB_FLOAT32, GB_REDUCE_MAX, 4, NULL, NULL }, left, right, 4);
  CHECK(isnan(left[0]) && isnan(left[1]) && left[2] == 2 && left[3] == 0);
}

/* ====} */

/* {==== Messages ==== */

static void exchange(rank_job *job) {
  int64_t mine[3] = { job->rank, 7, 1000 + job->rank }, all[3 * RANKS_MOST];
  for (int turn = 0; turn < 20; turn++) EXPECT(job, gb_comm_barrier(job->comm) == GB_OK);
  EXPECT(job, gb_comm_gather(job->comm, mine, sizeof mine, all) == GB_OK);
  for (int r = 0; r < job->size; r++) EXPECT(job, all[3 * r] == r && all[3 * r + 2] == 1000 + r);
  for (int source = 0; source < job->size; source++) {
    double value = job->rank == source ? source + 0.5 : -1;
    EXPECT(job, gb_comm_broadcast(job->comm, source, &value, sizeof value) == GB_OK && value == source + 0.5);
  }
}

static void test_messages(void) {
  for (int size = 1; size <= RANKS_MOST; size++) CHECK(run_ranks(contexts, size, 60, exchange, NULL) == 0);
}

static atomic_bool looked; /* rank 0 has */

/* Rank 1 comes late twice. Rank 0 computes meanwhile, and its thread that waits for the message beside it sleeps from
 * the first turn on; where rank 0 itself waits, it looks as often as it can at first. */
static void come_late(rank_job *job) {
  const struct timespec late = { 0, 400000000 }, computing = { 0, 200000000 }, moment = { 0, 10000000 };
  const int64_t count = 4;
  int before = atomic_load(&yields);
  gb_tensor *t = NULL;
  gb_handle *handle = NULL;
  while (job->rank == 1 && !atomic_load(&looked)) nanosleep(&moment, NULL);
  EXPECT(job, gb_tensor_new(job->context, GB_FLOAT32, 1, &count, (gb_device){ GB_CPU, 0 }, &t) == GB_OK);
  for (int i = 0; i < count; i++) ((float *)gb_tensor_data(t))[i] = (float)(i + job->rank);
  const gb_dist_call call = { .kind = GB_DIST_ALL_REDUCE, .tensor = t, .op = GB_DIST_SUM };
  EXPECT(job, gb_dist_call_begin(job->comm, &call, &handle) == GB_OK);
  if (job->rank == 0) {
    nanosleep(&computing, NULL);
    EXPECT(job, !gb_handle_is_done(handle) && atomic_load(&yields) == before);
    atomic_store(&looked, true);
  }
  EXPECT(job, gb_handle_wait(handle) == GB_OK && ((float *)gb_tensor_data(t))[3] == 7);
  gb_handle_free(handle);
  gb_tensor_release(t);
  before = atomic_load(&yields);
  if (job->rank == 1) nanosleep(&late, NULL);
  EXPECT(job, gb_comm_barrier(job->comm) == GB_OK);
  EXPECT(job, job->rank == 1 || atomic_load(&yields) > before);
}

static void test_late(void) { CHECK(run_ranks(contexts, 2, 60, come_late, NULL) == 0); }

/* ====} */

/* {==== Faults ==== */

/* Rank 0 waits for rank 1, which makes another call. */
static void stall(rank_job *job) {
  char data[8] = { 0 };
  gb_status status = gb_comm_begin(job->comm, "dist.recv");
  if (job->rank == 1) return;
  job->comm->step = 17;
  status = gb_comm_end(job->comm, gb_comm_transfer(job->comm, GB_TAG_USER, false, 1, data, sizeof data));
  EXPECT(job, status == GB_EIO);
  EXPECT(job, strstr(gb_error(job->context), "dist.recv: rank 0 waited 0.2 s for rank 1 at step 17"));
  EXPECT(job, gb_comm_begin(job->comm, "dist.barrier") == GB_ESTATE);
  EXPECT(job, strstr(gb_error(job->context), "dist.barrier: an earlier exchange"));
}

/* Rank 1 is gone before it sent anything. */
static void leave(rank_job *job) {
  char data[8] = { 0 };
  job->clean = false;
  if (job->rank == 1) return;
  EXPECT(job, gb_comm_transfer(job->comm, GB_TAG_USER, false, 1, data, sizeof data) == GB_EIO);
  EXPECT(job, strstr(gb_error(job->context), "receiving from rank 1 failed at step 0 on rank 0: rank 1 is gone"));
}

/* Rank 1 comes to its end without a fault, where rank 0 still waits for it; what it sent before arrives. */
static void farewell(rank_job *job) {
  char data[8] = { 0 };
  if (job->rank == 1) {
    EXPECT(job, gb_comm_transfer(job->comm, GB_TAG_USER, true, 0, data, sizeof data) == GB_OK);
    return;
  }
  nanosleep(&(struct timespec){ 0, 500000000 }, NULL);
  EXPECT(job, gb_comm_transfer(job->comm, GB_TAG_USER, false, 1, data, sizeof data) == GB_OK);
  EXPECT(job, gb_comm_transfer(job->comm, GB_TAG_USER, false, 1, data, sizeof data) == GB_EIO);
  EXPECT(job, strstr(gb_error(job->context), "rank 1 has left the job"));
}

/* The end of a rank answers no barrier. */
static void farewell_barrier(rank_job *job) {
  if (job->rank == job->size - 1) return;
  nanosleep(&(struct timespec){ 0, 500000000 }, NULL);
  EXPECT(job, gb_comm_end(job->comm, gb_comm_barrier(job->comm)) == GB_EIO);
  EXPECT(job, strstr(gb_error(job->context), "has left the job"));
}

/* Two ranks with tensors of different sizes. */
static void disagree(rank_job *job) {
  float data[8] = { 0 };
  gb_lane lane = { GB_FLOAT32, GB_REDUCE_SUM, job->rank ? 8 : 4, NULL, NULL };
  gb_status status = gb_comm_all_reduce(job->comm, &lane, data);
  EXPECT(job, status == GB_EIO && strstr(gb_error(job->context), "bytes"));
}

/* Calls of the same number of bytes that are not the same, as the two ranks make them: no numbers are mistaken for
 * others. */
typedef struct unlike { gb_dist_kind kind[2]; gb_dtype dtype[2]; gb_dist_op op[2]; } unlike;

static void call_unlike(rank_job *job) {
  const unlike *u = job->what;
  const int64_t count = 4;
  gb_tensor *t = NULL, *out[2] = { NULL, NULL };
  EXPECT(job, gb_tensor_new(job->context, u->dtype[job->rank], 1, &count, (gb_device){ GB_CPU, 0 }, &t) == GB_OK);
  const gb_dist_call call = { u->kind[job->rank], t, u->op[job->rank],
                              u->kind[job->rank] == GB_DIST_BROADCAST ? 0 : 1 - job->rank };
  gb_status status = gb_dist_call_now(job->comm, &call, out);
  EXPECT(job, status == GB_EIO || (job->rank == 0 && status == GB_OK)); /* a message that was sent may lie there */
  const char *text = gb_error(job->context);
  EXPECT(job, status == GB_OK || strstr(text, "makes other calls") || strstr(text, "is gone")); /* who ends first */
  for (int i = 0; i < 2; i++) gb_tensor_release(out[i]);
  gb_tensor_release(t);
}

static void test_unlike(void) {
  static const unlike cases[] = {
    { { GB_DIST_SEND, GB_DIST_RECV }, { GB_FLOAT32, GB_INT32 }, { 0 } },
    { { GB_DIST_BROADCAST, GB_DIST_BROADCAST }, { GB_INT16, GB_BFLOAT16 }, { 0 } },
    { { GB_DIST_ALL_GATHER, GB_DIST_ALL_GATHER }, { GB_FLOAT64, GB_INT64 }, { 0 } },
    { { GB_DIST_ALL_REDUCE, GB_DIST_ALL_REDUCE }, { GB_FLOAT64, GB_INT64 }, { 0 } },
    { { GB_DIST_ALL_REDUCE, GB_DIST_ALL_REDUCE }, { GB_FLOAT32, GB_FLOAT32 }, { GB_DIST_SUM, GB_DIST_MAX } },
    { { GB_DIST_ALL_REDUCE, GB_DIST_REDUCE_SCATTER }, { GB_FLOAT32, GB_FLOAT32 }, { 0 } },
    { { GB_DIST_BROADCAST, GB_DIST_RECV }, { GB_FLOAT32, GB_FLOAT32 }, { 0 } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    CHECK(run_ranks(contexts, 2, 0.3, call_unlike, &cases[i]) == 0);
}

/* Each waits for the other in another call: that is told, long before the timeout. */
static void cross(rank_job *job) {
  float data[2000] = { 0 };
  static float all[2][2 * 2000];
  const gb_lane lane = { GB_FLOAT32, GB_REDUCE_SUM, 2000, NULL, NULL };
  EXPECT(job, gb_comm_begin(job->comm, job->rank ? "dist.all_gather" : "dist.all_reduce") == GB_OK);
  gb_status status = job->rank ? gb_comm_gather(job->comm, data, sizeof data, all[job->rank])
                               : gb_comm_all_reduce(job->comm, &lane, data);
  const char *text = gb_error(job->context);
  EXPECT(job, gb_comm_end(job->comm, status) == GB_EIO);
  EXPECT(job, strstr(text, "which waits for it in another call, dist.all_") || strstr(text, "is gone"));
}

/* A network on which a large message takes seconds to arrive. */
enum { LARGE = 4096, SLOW_SECONDS = 8 };
typedef struct slow_network { gb_transport inner; void *message; struct timespec since; } slow_network;

static gb_status told(gb_transport *t, slow_network *n, gb_status status) {
  memcpy(t->error, n->inner.error, sizeof t->error);
  return status;
}
static gb_status slow_post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **message) {
  slow_network *n = t->state;
  gb_status status = n->inner.post(&n->inner, sends, peer, tag, data, bytes, message);
  if (!sends && bytes >= LARGE) n->message = *message, clock_gettime(CLOCK_MONOTONIC, &n->since);
  return told(t, n, status);
}
static gb_status slow_test(gb_transport *t, void *message, size_t *bytes, bool *done) {
  slow_network *n = t->state;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *bytes = 0, *done = false;
  if (message == n->message && now.tv_sec - n->since.tv_sec < SLOW_SECONDS) return GB_OK;
  if (message == n->message) n->message = NULL;
  return told(t, n, n->inner.test(&n->inner, message, bytes, done));
}
static void slow_drop(gb_transport *t, void *message) {
  slow_network *n = t->state;
  n->inner.drop(&n->inner, message);
}
static void slow_close(gb_transport *t, bool clean) {
  slow_network *n = t->state;
  n->inner.close(&n->inner, clean);
}

/* Rank 0 sends a large tensor beside its recipe and waits for an answer, which rank 1 gives when the tensor has come:
 * longer than two ranks may wait for each other in different calls, but nobody is wrong. */
static void slowly(rank_job *job) {
  static slow_network networks[2];
  slow_network *n = &networks[job->rank];
  const gb_launch launch = { -1, -1, -1, 60 };
  const int64_t many = LARGE / 4, one = 1;
  gb_tensor *question = NULL, *answer = NULL;
  gb_handle *handle = NULL;
  gb_dist_finalize(job->context, true);
  gb_local_transport((gb_local_world *)(uintptr_t)job->what, job->rank, &n->inner);
  gb_transport slow = n->inner;
  slow.state = n, slow.post = slow_post, slow.test = slow_test, slow.drop = slow_drop, slow.close = slow_close;
  slow.sum = NULL;
  gb_dist_give(job->context, &slow);
  EXPECT(job, gb_dist_init(job->context, &launch) == GB_OK);
  gb_comm *comm = gb_dist_comm(job->context);
  EXPECT(job, gb_tensor_new(job->context, GB_FLOAT32, 1, &many, (gb_device){ GB_CPU, 0 }, &question) == GB_OK);
  EXPECT(job, gb_tensor_new(job->context, GB_INT64, 1, &one, (gb_device){ GB_CPU, 0 }, &answer) == GB_OK);
  const gb_dist_call asks = { .kind = job->rank ? GB_DIST_RECV : GB_DIST_SEND, .tensor = question,
                              .peer = 1 - job->rank };
  const gb_dist_call answers = { .kind = job->rank ? GB_DIST_SEND : GB_DIST_RECV, .tensor = answer,
                                 .peer = 1 - job->rank };
  if (job->rank) EXPECT(job, gb_dist_call_now(comm, &asks, NULL) == GB_OK);
  else EXPECT(job, gb_dist_call_begin(comm, &asks, &handle) == GB_OK);
  EXPECT(job, gb_dist_call_now(comm, &answers, NULL) == GB_OK);
  if (handle) EXPECT(job, gb_handle_wait(handle) == GB_OK);
  gb_handle_free(handle);
  gb_tensor_release(question);
  gb_tensor_release(answer);
}

static void test_slow(void) {
  gb_local_world *world = gb_local_open(2);
  CHECK(run_ranks(contexts, 2, 60, slowly, world) == 0);
  gb_local_close(world);
}

/* An interrupt ends a wait. */
static void interrupted(rank_job *job) {
  char data[8];
  if (job->rank == 1) return;
  gb_interrupt(job->context);
  EXPECT(job, gb_comm_transfer(job->comm, GB_TAG_USER, false, 1, data, sizeof data) == GB_EINTERRUPT);
  gb_interrupt_clear(job->context);
}

static void test_faults(void) {
  CHECK(run_ranks(contexts, 2, 0.2, stall, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 60, leave, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 60, farewell, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 60, farewell_barrier, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 2, disagree, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 60, interrupted, NULL) == 0);
  test_unlike();
  CHECK(run_ranks(contexts, 2, 600, cross, NULL) == 0);
  test_slow();
}

/* ====} */

/* {==== Limits ==== */

/* A parameter of so many float32. */
static gb_tensor *new_parameter(gb_context *context, int64_t count) {
  gb_tensor *t = new_noise(context, GB_FLOAT32, 1, &count, 5);
  CHECK(t && gb_tensor_set_requires_grad(t, true) == GB_OK);
  return t;
}

/* A batch of one sample lies in the last of the shards: a stop ends the way through the empty ones before it. */
static void test_stop(void) {
  gb_context *context = contexts[0];
  gb_shards *s = NULL;
  int64_t first = 0, count = 0;
  CHECK(gb_shards_new(context, &(gb_shards_options){ 2 * GB_SHARDS_MOST, GB_OVERLAP_ALWAYS, false }, &s)
        == GB_EINVAL && !s);
  CHECK(gb_shards_new(context, &(gb_shards_options){ GB_SHARDS_MOST, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
  gb_tensor *parameter = new_parameter(context, 1 << 15);
  const gb_round round = { .samples = 1 };
  CHECK(gb_shards_begin(s, &parameter, 1, NULL, 0, &round) == GB_OK);
  gb_interrupt(context);
  CHECK(gb_shards_next(s, &first, &count) == GB_EINTERRUPT && count == 0);
  gb_interrupt_clear(context);
  CHECK(gb_shards_begin(s, &parameter, 1, NULL, 0, &round) == GB_OK); /* the next round works as ever */
  CHECK(gb_shards_next(s, &first, &count) == GB_OK && first == 0 && count == 1);
  CHECK(gb_shards_next(s, &first, &count) == GB_OK && count == 0);
  gb_shards_free(s);
  gb_tensor_release(parameter);
}

/* What a rank may still take of the limit on tensor bytes from now on. */
static void leave_room(gb_context *context, size_t bytes) { context->budget.limit = context->budget.used + bytes; }

/* A buffer that cannot become what it was, when a round is abandoned, hides not why it was. */
static void test_reason(void) {
  gb_context *context = contexts[0];
  const int64_t many = 1 << 12;
  const gb_round round = { .samples = 1 };
  gb_shards *s = NULL;
  int64_t first = 0, count = 0;
  context->budget.limit = (size_t)1 << 30;
  gb_tensor *parameter = new_parameter(context, 4), *buffer = new_noise(context, GB_BFLOAT16, 1, &many, 6);
  CHECK(gb_shards_new(context, &(gb_shards_options){ 1, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
  for (int turn = 0; turn < 2; turn++) { /* the first one leaves memory for leaves to the second */
    CHECK(gb_shards_begin(s, &parameter, 1, &buffer, 1, &round) == GB_OK);
    CHECK(gb_shards_next(s, &first, &count) == GB_OK && count == 1);
    if (turn == 0) CHECK(gb_shards_next(s, &first, &count) == GB_OK && count == 0);
  }
  gb_tensor *grad = new_noise(context, GB_FLOAT32, 1, (const int64_t[]){ 4 }, 7);
  grad->tag.scaler = GB_TAG_MIXED;
  CHECK(gb_tensor_set_grad(parameter, grad) == GB_OK);
  gb_tensor_bump(buffer);
  leave_room(context, 64);
  CHECK(gb_shards_next(s, &first, &count) == GB_EAUTOGRAD && strstr(gb_error(context), "DataParallel:shards"));
  CHECK(gb_error_code(context) == GB_EAUTOGRAD);
  gb_shards_free(s);
  gb_tensor_release(grad);
  gb_tensor_release(buffer);
  gb_tensor_release(parameter);
  context->budget.limit = 0;
}

/* A long sum looks for a stop before each piece. */
static void test_stopped_sum(void) {
  float left[2] = { 1, 2 }, right[2] = { 3, 4 };
  gb_lane lane = { GB_FLOAT32, GB_REDUCE_SUM, 2, NULL, NULL };
  gb_interrupt(contexts[0]);
  CHECK(gb_reduce_in_pieces(contexts[0], &lane, left, right, 2) == GB_EINTERRUPT && left[0] == 1);
  gb_interrupt_clear(contexts[0]);
  CHECK(gb_reduce_in_pieces(contexts[0], &lane, left, right, 2) == GB_OK && left[0] == 4 && left[1] == 6);
}


/* Leaves of the trees, and what is kept of buffers, count until they are freed. */
static void test_counted_shards(void) {
  gb_context *context = contexts[0];
  gb_shards *s = NULL;
  int64_t count = 1 << 14, first = 0, samples = 0, bytes = count * 4;
  const gb_round round = { .samples = 1 };
  context->budget.limit = (size_t)1 << 30;
  size_t before = context->budget.used;
  gb_tensor *parameter = new_parameter(context, count);
  gb_tensor *buffer = new_noise(context, GB_FLOAT32, 1, &count, 6);
  CHECK(gb_shards_new(context, &(gb_shards_options){ 8, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
  leave_room(context, (size_t)bytes / 2);
  CHECK(gb_shards_begin(s, &parameter, 1, &buffer, 1, &round) == GB_EMEMORY); /* the buffer's values */
  leave_room(context, (size_t)bytes * 2);
  CHECK(gb_shards_begin(s, &parameter, 1, &buffer, 1, &round) == GB_OK);
  CHECK(gb_shards_next(s, &first, &samples) == GB_EMEMORY); /* a leaf of a gradient and a buffer's change */
  context->budget.limit = (size_t)1 << 30;
  size_t used = context->budget.used;
  CHECK(gb_shards_begin(s, &parameter, 1, &buffer, 1, &round) == GB_OK);
  CHECK(gb_shards_next(s, &first, &samples) == GB_OK && samples == 1);
  CHECK(context->budget.used > used + (size_t)bytes * 6); /* three leaves of two, at least */
  CHECK(gb_shards_next(s, &first, &samples) == GB_OK && samples == 0);
  gb_shards_free(s);
  gb_tensor_release(parameter);
  gb_tensor_release(buffer);
  CHECK(context->budget.used == before);
  context->budget.limit = 0;
}

/* What collectives copy counts: a rank without room for it says so. Each is the first call of its job. */
static void crowded(rank_job *job) {
  static float data[RANKS_MOST][512], out[RANKS_MOST][512];
  gb_lane lane = { GB_FLOAT32, GB_REDUCE_SUM, 512, NULL, NULL };
  int64_t count = 512;
  gb_tensor *t = NULL;
  const char *what = job->what;
  EXPECT(job, gb_tensor_new(job->context, GB_FLOAT32, 1, &count, (gb_device){ GB_CPU, 0 }, &t) == GB_OK);
  leave_room(job->context, sizeof data[0] - 1);
  gb_status status = *what == 't' ? gb_dist_broadcast(job->comm, t, 0)
                     : *what == 'a' ? gb_comm_all_reduce(job->comm, &lane, data[job->rank])
                                    : gb_comm_reduce_scatter(job->comm, &lane, data[job->rank], out[job->rank]);
  EXPECT(job, status == GB_EMEMORY);
  job->context->budget.limit = 0;
  gb_tensor_release(t);
}

/* The job is left in the loop over shards. */
static void leave_early(rank_job *job) {
  gb_shards *s = NULL;
  int64_t first, count;
  EXPECT(job, gb_shards_new(job->context, &(gb_shards_options){ 8, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
  EXPECT(job, gb_shards_agree(s, NULL, NULL, 0) == GB_OK);
  EXPECT(job, gb_shards_begin(s, NULL, 0, NULL, 0, &(gb_round){ .samples = 8 }) == GB_OK);
  EXPECT(job, gb_shards_next(s, &first, &count) == GB_OK && count == 1);
  gb_dist_finalize(job->context, true);
  EXPECT(job, gb_shards_next(s, &first, &count) == GB_ESTATE && strstr(gb_error(job->context), "the job was left"));
  gb_shards_free(s);
}

/* Rank 1 abandons its round, and frees the shards at once: rank 0 is told, and the job stays whole. */
static void abandon(rank_job *job) {
  gb_shards *s = NULL;
  int64_t first, count, n = 100;
  size_t before = job->context->budget.used;
  gb_tensor *parameter = NULL;
  EXPECT(job, gb_tensor_new(job->context, GB_FLOAT32, 1, &n, (gb_device){ GB_CPU, 0 }, &parameter) == GB_OK);
  EXPECT(job, gb_tensor_set_requires_grad(parameter, true) == GB_OK);
  EXPECT(job, gb_shards_new(job->context, &(gb_shards_options){ 2, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
  EXPECT(job, gb_shards_agree(s, NULL, NULL, 0) == GB_OK);
  EXPECT(job, gb_shards_begin(s, &parameter, 1, NULL, 0, &(gb_round){ .samples = 8 }) == GB_OK);
  EXPECT(job, gb_shards_next(s, &first, &count) == GB_OK && count == 4);
  if (job->rank == 1) gb_shards_abandon(s);
  else EXPECT(job, gb_shards_next(s, &first, &count) == GB_ESTATE);
  EXPECT(job, job->rank == 1 || strstr(gb_error(job->context), "rank 1 left the loop"));
  gb_shards_free(s);
  gb_tensor_release(parameter);
  EXPECT(job, gb_comm_begin(job->comm, "dist.barrier") == GB_OK && gb_comm_barrier(job->comm) == GB_OK);
  gb_dist_finalize(job->context, true);
  EXPECT(job, job->context->budget.used == before);
}

enum { JOBS = 8 };

/* A model of an earlier job is not one of the next, wherever that one lies in memory. */
static void join_again(rank_job *job) {
  gb_local_world *const *worlds = job->what;
  for (int i = 0; i < JOBS; i++) {
    gb_launch launch = { -1, -1, -1, 60 };
    gb_transport transport;
    gb_shards *s = NULL;
    EXPECT(job, gb_shards_new(job->context, &(gb_shards_options){ 8, GB_OVERLAP_ALWAYS, false }, &s) == GB_OK);
    EXPECT(job, gb_shards_agree(s, NULL, NULL, 0) == GB_OK);
    gb_dist_finalize(job->context, true);
    gb_local_transport(worlds[i], job->rank, &transport);
    gb_dist_give(job->context, &transport);
    EXPECT(job, gb_dist_init(job->context, &launch) == GB_OK);
    EXPECT(job, gb_shards_begin(s, NULL, 0, NULL, 0, &(gb_round){ .samples = 8 }) == GB_ESTATE);
    gb_shards_abandon(s);
    gb_shards_free(s);
  }
}

static void test_join_again(void) {
  gb_local_world *worlds[JOBS];
  for (int i = 0; i < JOBS; i++) worlds[i] = gb_local_open(2);
  CHECK(run_ranks(contexts, 2, 60, join_again, worlds) == 0);
  for (int i = 0; i < JOBS; i++) gb_local_close(worlds[i]);
}

static void test_limits(void) {
  test_stop();
  test_reason();
  test_stopped_sum();
  test_counted_shards();
  for (const char *what = "tar"; *what; what++) CHECK(run_ranks(contexts, 2, 60, crowded, what) == 0);
  CHECK(run_ranks(contexts, 2, 60, leave_early, NULL) == 0);
  CHECK(run_ranks(contexts, 2, 60, abandon, NULL) == 0);
  test_join_again();
}

/* ====} */

/* {==== A transport whose messages outlive it ==== */

static void *listened;                /* where a heartbeat was to be received, which is never done */

/* Of two ranks, of which the other one is silent. */
static gb_status silent_post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **message) {
  (void)t, (void)peer, (void)bytes;
  if (!sends && tag == GB_PULSE_TAG) listened = data;
  *message = data;
  return GB_OK;
}
static gb_status silent_test(gb_transport *t, void *message, size_t *bytes, bool *done) {
  (void)t, (void)message;
  *bytes = 0;
  *done = false;
  return GB_OK;
}
static void silent_drop(gb_transport *t, void *message) { (void)t, (void)message; }
static void silent_close(gb_transport *t, bool clean) { (void)t, (void)clean; }

/* Has memory of about that size that is free now become some of these blocks? Then the place lies in one of them. */
static bool is_free_memory(const char *place) {
  enum { BLOCKS = 2000 };
  static char *blocks[BLOCKS];
  bool found = false;
  for (int i = 0; i < BLOCKS; i++) {
    size_t bytes = 16 + (size_t)(i % 64) * 16;
    blocks[i] = malloc(bytes);
    found |= blocks[i] && (uintptr_t)place - (uintptr_t)blocks[i] < bytes;
  }
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  return found;
}

/* After an unclean close a receive that was only cancelled may still write: its memory stays. */
static void test_lingering(void) {
  gb_transport transport = { .name = "silent", .size = 2, .lingers = true, .post = silent_post, .test = silent_test,
                             .drop = silent_drop, .close = silent_close };
  gb_comm *comm = NULL;
  char data[8];
  CHECK(gb_comm_new(contexts[0], &transport, 0.4, &comm) == GB_OK);
  CHECK(gb_comm_transfer(comm, GB_TAG_USER, false, 1, data, sizeof data) == GB_EIO); /* meanwhile the heart beats */
  gb_comm_close(comm, false);
  CHECK(listened != NULL);
  *(volatile char *)listened = 1; /* the sanitizers look on */
  CHECK(!is_free_memory(listened));
}

/* ====} */

/* {==== How a job is started ==== */

/* What joining says in an environment. */
static void refused(const char *const *variables, gb_launch launch, const char *text) {
  for (int i = 0; variables[i]; i += 2) setenv(variables[i], variables[i + 1], 1);
  launch.timeout = 1;
  gb_status status = gb_dist_init(contexts[0], &launch);
  if (status == GB_OK || !strstr(gb_error(contexts[0]), text)) fprintf(stderr, "%s\n", gb_error(contexts[0]));
  CHECK(status != GB_OK && strstr(gb_error(contexts[0]), text));
  for (int i = 0; variables[i]; i += 2) unsetenv(variables[i]);
}

static void test_launch(void) {
  static const char *const variables[] = { "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                                           "SLURM_PROCID", "SLURM_NTASKS" };
  for (int i = 0; i < 6; i++) unsetenv(variables[i]);
  const gb_launch none = { -1, -1, -1, 1 };
  refused((const char *const[]){ "RANK", "0", "WORLD_SIZE", "4", NULL }, none, "torchrun"); /* with and without a GPU */
  refused((const char *const[]){ "OMPI_COMM_WORLD_RANK", "x", NULL }, none, "OMPI_COMM_WORLD_RANK=x");
  refused((const char *const[]){ "WORLD_SIZE", "4", NULL }, none, "WORLD_SIZE is set, and RANK is not");
  refused((const char *const[]){ "RANK", "0", NULL }, none, "RANK is set, and WORLD_SIZE is not");
  refused((const char *const[]){ "RANK", "0", "WORLD_SIZE", "0", NULL }, none, "WORLD_SIZE=0");
  refused((const char *const[]){ "SLURM_PROCID", "4", "SLURM_NTASKS", "4", NULL }, none, "rank 4 of 4");
  refused((const char *const[]){ NULL }, (gb_launch){ 0, -1, -1, 1 }, "rank and world_size go together");
  refused((const char *const[]){ NULL }, (gb_launch){ 3, 2, -1, 1 }, "rank 3 of 2");
  CHECK(gb_dist_init(contexts[0], &none) == GB_OK && gb_dist_comm(contexts[0])->size == 1);
  CHECK(gb_dist_init(contexts[0], &none) == GB_ESTATE);
  CHECK(gb_comm_barrier(gb_dist_comm(contexts[0])) == GB_OK);
  gb_dist_finalize(contexts[0], true);
  setenv("WORLD_SIZE", "1", 1), setenv("RANK", "0", 1); /* a job of one, by whomever */
  CHECK(gb_dist_init(contexts[0], &none) == GB_OK);
  unsetenv("WORLD_SIZE"), unsetenv("RANK");
  gb_dist_finalize(contexts[0], true);
}

/* ====} */

int main(int argc, char **argv) {
  for (int i = 0; i < RANKS_MOST; i++) contexts[i] = open_context(1, "baseline");
  CHECK(contexts[RANKS_MOST - 1] != NULL);
  test_launch();
  test_messages();
  test_late();
  test_maximum();
  test_sums(argc > 1 ? atoi(argv[1]) : 1000);
  test_faults();
  test_limits();
  test_lingering();
  for (int i = 0; i < RANKS_MOST; i++) gb_context_close(contexts[i]);
  return check_report();
}
