/* test_engine.c - contexts: many in one process, tensors that outlive them, memory from the caller and memory that runs
 * out, interrupts, levels of the CPU, and the same bits for any number of threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "cpu/cpu.h"
#include "opcases.h"
#include "training.h"

static const training small = { .batch = 8, .inputs = 6, .hidden = 10, .classes = 5, .steps = 3, .kind = GB_AdamW,
                                .lower = GB_DTYPE_NONE };
static const training large = { .batch = 96, .inputs = 130, .hidden = 257, .classes = 40, .steps = 5, .kind = GB_Adam,
                                .lower = GB_DTYPE_NONE };

static training with(training t, gb_dtype lower, gb_optimizer_kind kind) {
  t.lower = lower;
  t.kind = kind;
  return t;
}

/* {==== opening, options ==== */

static void test_options(void) {
  gb_context *c = NULL;
  CHECK(gb_context_open(NULL, &c) == GB_OK && c != NULL);
  CHECK(!strcmp(gb_error(c), "") && gb_error_code(c) == GB_OK && !strcmp(gb_error_op(c), ""));
  CHECK(gb_get_num_threads(c) >= 1 && gb_is_grad_enabled(c));
  gb_context_close(c);
  gb_context_close(NULL);

  gb_context_options options;
  gb_context_options_init(&options, sizeof options);
  options.threads = 3;
  options.cpu_level = "no such level"; /* beyond the size that this caller knows of: not read */
  options.size = offsetof(gb_context_options, tensor_bytes);
  CHECK(gb_context_open(&options, &c) == GB_OK && gb_get_num_threads(c) == 3);
  CHECK(gb_set_num_threads(c, 2) == GB_OK && gb_get_num_threads(c) == 2);
  CHECK(gb_set_num_threads(c, 0) == GB_EINVAL && gb_set_num_threads(c, -1) == GB_EINVAL && gb_get_num_threads(c) == 2);
  gb_context_close(c);

  options.size = sizeof options;
  CHECK(gb_context_open(&options, &c) == GB_EINVAL && c == NULL);
}

static void test_errors_keep_outputs(void) {
  gb_context *c = open_context(1, NULL);
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(2, 3), 1), *y = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 5), 2);
  gb_tensor *sentinel = x, *out[GB_MAX_OUT] = { sentinel };
  CHECK(gb_apply(c, GB_OP_matmul, (gb_tensor *[]){ x, y }, 2, NULL, out) == GB_ESHAPE);
  CHECK(out[0] == sentinel && says(c, "matmul") && says(c, "2x3") && says(c, "4x5"));
  CHECK(gb_error_code(c) == GB_ESHAPE && !strcmp(gb_error_op(c), "matmul"));
  CHECK(gb_apply(c, GB_OP_matmul, &x, 1, NULL, out) == GB_EINVAL && out[0] == sentinel);
  CHECK(gb_apply(c, GB_OP_matmul, (gb_tensor *[]){ x, NULL }, 2, NULL, out) == GB_EINVAL && says(c, "'y' is missing"));
  CHECK(gb_tensor_new(c, GB_FLOAT32, 9, SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), test_device(), out) != GB_OK &&
        out[0] == sentinel);
  CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(-1), test_device(), out) != GB_OK && out[0] == sentinel);
  CHECK(gb_tensor_new(c, GB_FLOAT32, 2, SHAPE(INT64_MAX, 4), test_device(), out) != GB_OK && out[0] == sentinel);
  CHECK(gb_tensor_new(c, GB_FLOAT64, 3, SHAPE((int64_t)1 << 31, (int64_t)1 << 31, 2), test_device(), out) != GB_OK &&
        out[0] == sentinel);
  CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(2), (gb_device){ GB_CUDA, 99 }, out) == GB_EDEVICE && out[0] == sentinel);
  char host[100];
  CHECK(gb_tensor_read(x, host, 5) == GB_EINVAL && says(c, "24") && says(c, "5"));
  CHECK(gb_tensor_write(x, host, 25) == GB_EINVAL);
  CHECK(gb_tensor_item(x, NULL, NULL) == GB_ESHAPE && says(c, "2x3"));
  gb_tensor_release(x);
  gb_tensor_release(y);
  CHECK(live_bytes(c) == 0);
  gb_context_close(c);
}

/* ====} */

/* {==== two contexts, two threads ==== */

typedef struct worker { training training; gb_status status; uint64_t hash; double loss; } worker;

static void *work(void *arg) {
  worker *w = arg;
  gb_context *c = open_context(2, NULL);
  w->status = c ? GB_OK : GB_EMEMORY;
  for (int i = 0; w->status == GB_OK && i < 3; i++) w->status = training_go(c, &w->training, &w->hash, &w->loss);
  gb_context_close(c);
  return NULL;
}

static void test_two_contexts_in_two_threads(void) {
  worker alone = { .training = large }, both[2] = { { .training = large }, { .training = large } };
  pthread_t thread[2];
  work(&alone);
  CHECK(alone.status == GB_OK && isfinite(alone.loss));
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&thread[i], NULL, work, &both[i]) == 0);
  for (int i = 0; i < 2; i++) {
    pthread_join(thread[i], NULL);
    CHECK(both[i].status == GB_OK && both[i].hash == alone.hash);
  }
}

static void *release_elsewhere(void *tensor) {
  gb_tensor_release(tensor);
  return NULL;
}

static void test_tensors_outlive_their_context(void) {
  gb_context *c = open_context(2, NULL);
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(5, 7), 1);
  CHECK(gb_tensor_set_requires_grad(x, true) == GB_OK);
  gb_context_close(c);
  /* the context lives in its tensors */
  gb_tensor *square = run2(GB_OP_mul, x, x, NULL), *sum = run1(GB_OP_sum, square, NULL);
  CHECK(gb_backward(sum, NULL, false, false) == GB_OK);
  gb_tensor *grad = gb_tensor_grad(x);
  CHECK(near(at(grad, 3), 2 * at(x, 3), 1e-6));
  gb_tensor_release(x);
  gb_tensor_release(square);
  gb_tensor_release(sum);
  pthread_t thread;
  /* the last reference goes, and the context with it */
  CHECK(pthread_create(&thread, NULL, release_elsewhere, grad) == 0);
  pthread_join(thread, NULL);

  c = open_context(1, NULL); /* a graph that nobody walked, and an optimizer, outlive it too */
  training_run r = { 0 };
  gb_tensor *loss = NULL;
  CHECK(training_open(c, &small, &r) == GB_OK && training_loss(c, &r, &loss) == GB_OK);
  gb_context_close(c);
  training_close(&r);
  gb_tensor_release(loss);
}

/* ====} */

/* {==== memory ==== */

/* The caller's allocator: counts, and may have no more to give. */
typedef struct accounts { size_t live, blocks, most; bool misaligned, mismatched, empty; } accounts;
typedef struct header { size_t bytes; void *block; } header;

static void *count_alloc(void *user, size_t bytes, size_t alignment) {
  accounts *a = user;
  if (a->empty) return NULL;
  char *block = malloc(bytes + alignment + sizeof(header));
  if (!block) return NULL;
  char *data = block + sizeof(header);
  data += (alignment - (uintptr_t)data % alignment) % alignment;
  memcpy(data - sizeof(header), &(header){ bytes, block }, sizeof(header));
  if (alignment & (alignment - 1)) a->misaligned = true;
  a->live += bytes;
  a->blocks++;
  if (a->live > a->most) a->most = a->live;
  return data;
}

static void count_free(void *user, void *data, size_t bytes) {
  accounts *a = user;
  header h;
  memcpy(&h, (char *)data - sizeof h, sizeof h);
  if (h.bytes != bytes) a->mismatched = true;
  a->live -= bytes;
  a->blocks--;
  free(h.block);
}

static void test_the_callers_allocator(void) {
  accounts a = { 0 };
  gb_context_options options;
  gb_context *c = NULL;
  uint64_t hash, plain;
  double loss;
  gb_context_options_init(&options, sizeof options);
  options.threads = 2;
  options.alloc = count_alloc, options.free = count_free, options.alloc_user = &a;
  CHECK(gb_context_open(&options, &c) == GB_OK);
  CHECK(training_go(c, &large, &hash, &loss) == GB_OK);
  CHECK(a.most > 0 && live_bytes(c) == 0);
  gb_memory_empty_cache(c);
  CHECK(a.live == 0 && a.blocks == 0);

  a.empty = true; /* the system has nothing left: a status, and the context goes on when it has */
  gb_tensor *t = NULL;
  CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(1000), test_device(), &t) == GB_EMEMORY && t == NULL && says(c, "4000"));
  CHECK(training_go(c, &small, &hash, &loss) == GB_EMEMORY && live_bytes(c) == 0);
  a.empty = false;
  CHECK(training_go(c, &large, &hash, &loss) == GB_OK);
  gb_context_close(c);
  CHECK(a.live == 0 && a.blocks == 0 && !a.misaligned && !a.mismatched);

  c = open_context(2, NULL);
  CHECK(training_go(c, &large, &plain, &loss) == GB_OK && plain == hash);
  gb_context_close(c);
}

static void test_the_limit(void) {
  enum { LIMIT = 1 << 20 };
  gb_context_options options;
  gb_context *c = NULL;
  gb_context_options_init(&options, sizeof options);
  options.tensor_bytes = LIMIT;
  options.threads = 1;
  options.plugins = getenv("GIBBOUS_PLUGINS");
  CHECK(gb_context_open(&options, &c) == GB_OK);
  need_test_device(c);
  gb_tensor *big = NULL, *half = NULL, *out[GB_MAX_OUT] = { NULL };
  CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(LIMIT), test_device(), &big) == GB_EMEMORY && big == NULL);
  CHECK(says(c, "4194304") && says(c, "0 are live") && gb_error_code(c) == GB_EMEMORY);
  CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(150000), test_device(), &half) == GB_OK);
  CHECK(gb_apply(c, GB_OP_add, (gb_tensor *[]){ half, half }, 2, NULL, out) == GB_EMEMORY && out[0] == NULL);
  CHECK(says(c, "add") && says(c, "600000"));
  char live[32];
  snprintf(live, sizeof live, "%zu are live", live_bytes(c));
  CHECK(says(c, live));
  CHECK(gb_apply_(c, GB_OP_add, (gb_tensor *[]){ half, half }, 2, NULL) == GB_OK); /* what fits still runs */
  gb_tensor_release(half);
  CHECK(live_bytes(c) == 0);
  uint64_t hash;
  double loss;
  CHECK(training_go(c, &small, &hash, &loss) == GB_OK);
  gb_memory_stats stats;
  gb_memory_get_stats(c, &stats);
  CHECK(stats.peak_total <= LIMIT && stats.reserved >= stats.current_total);
  gb_context_close(c);
}

/* Asked when an allocation has failed, before it is tried again: let that fail too. */
static void fail_again(void *pool) { gb_pool_fail_after(pool, 1); }

/* How many allocations a run makes on the test device. */
static uint64_t allocations_of(gb_context *c, const training *t, uint64_t *hash) {
  gb_memory_stats before, after;
  double loss;
  gb_memory_get_device_stats(c, test_device(), &before);
  CHECK(training_go(c, t, hash, &loss) == GB_OK);
  gb_memory_get_device_stats(c, test_device(), &after);
  return after.allocations - before.allocations;
}

/* Fail every allocation of a run in turn. once: the second try succeeds, so nobody notices. */
static void fail_every_allocation(const training *t, bool once) {
  gb_context *c = open_context(1, NULL);
  uint64_t hash, again;
  double loss;
  uint64_t count = allocations_of(c, t, &hash);
  int statuses = 0, texts = 0, leaks = 0, changed = 0;
  CHECK(count > 20);
  c->reclaim = once ? NULL : fail_again;
  c->reclaim_user = c->pool[test_device().type];
  for (uint64_t n = 1; n <= count; n++) {
    gb_pool_fail_after(c->pool[test_device().type], n);
    gb_status status = training_go(c, t, &again, &loss);
    gb_pool_fail_after(c->pool[test_device().type], 0);
    statuses += status == (once ? GB_OK : GB_EMEMORY);
    texts += once || strstr(gb_error(c), "out of memory") != NULL;
    changed += once && again != hash;
    leaks += live_bytes(c) != 0;
  }
  CHECK(statuses == (int)count);
  CHECK(texts == (int)count);
  CHECK(leaks == 0);
  CHECK(changed == 0);
  CHECK(training_go(c, t, &again, &loss) == GB_OK && again == hash); /* as if nothing had happened */
  CHECK(!c->modes->autocast && c->modes->grad && c->op == NULL);
  gb_context_close(c);
}

static void test_failed_allocations(void) {
  const gb_dtype lower[] = { GB_DTYPE_NONE, GB_BFLOAT16, GB_FLOAT16 };
  for (int i = test_device().type == GB_CPU ? 0 : 2; i < 3; i++) { /* an emulated device is slow: the hardest only */
    for (int kind = GB_SGD; kind <= GB_AdamW; kind++) {
      training t = with(small, lower[i], (gb_optimizer_kind)kind);
      fail_every_allocation(&t, false);
    }
    training t = with(small, lower[i], GB_AdamW);
    fail_every_allocation(&t, true);
  }
}

/* Fail every allocation of each op, forward and backward. On devices a grid is sampled without sum_taps. */
static void test_failed_allocations_of_ops(void) {
  gb_context *c = open_context(1, NULL);
  for (int k = 0; k < OP_CASES; k++) {
    if (op_cases[k].op == GB_OP_sum_taps && test_device().type != GB_CPU) continue;
    gb_memory_stats before, after;
    bag b = { 0 };
    int failed_before = check_failed;
    gb_memory_get_stats(c, &before);
    case_collect(c, &op_cases[k], &b);
    gb_memory_get_stats(c, &after);
    free(b.values);
    CHECK(after.current_total == before.current_total);
    int wrong = 0;
    for (uint64_t n = 1; n <= after.allocations - before.allocations; n++) {
      gb_tensor *in[CASE_INPUTS], *out[GB_MAX_OUT] = { NULL };
      const gb_op_info *info = gb_op_get(c, op_cases[k].op);
      for (int i = 0; i < CASE_INPUTS; i++) in[i] = case_tensor(c, &op_cases[k].in[i], (uint64_t)i + 1);
      c->reclaim = fail_again;
      c->reclaim_user = c->pool[test_device().type];
      gb_pool_fail_after(c->pool[test_device().type], n);
      gb_status status = gb_apply(c, op_cases[k].op, in, info->n_in, op_cases[k].attrs, out);
      if (status == GB_OK && out[0]->node) {
        gb_tensor *up = NULL;
        status = gb_tensor_new_like(out[0], GB_FLOAT32, GB_MEM_OTHER, &up);
        if (status == GB_OK) status = gb_apply_(c, GB_OP_fill, &up, 1, &(gb_attr){ .given = true, .number = 0 });
        if (status == GB_OK) status = gb_backward(out[0], up, false, false);
        gb_tensor_release(up);
      }
      gb_pool_fail_after(c->pool[test_device().type], 0);
      c->reclaim = NULL;
      wrong += status != GB_OK && status != GB_EMEMORY;
      for (int i = 0; i < CASE_INPUTS; i++) gb_tensor_release(in[i]);
      for (int o = 0; o < GB_MAX_OUT; o++) gb_tensor_release(out[o]);
      wrong += live_bytes(c) != after.current_total;
    }
    CHECK(wrong == 0);
    if (check_failed > failed_before) fprintf(stderr, "  in the case '%s'\n", op_cases[k].name);
  }
  gb_context_close(c);
}

static void test_categories(void) {
  gb_context *c = open_context(1, NULL);
  training t = with(large, GB_BFLOAT16, GB_Adam);
  training_run r = { 0 };
  gb_tensor *loss = NULL;
  gb_memory_stats stats;
  double value;
  CHECK(training_open(c, &t, &r) == GB_OK && training_step(c, &t, &r, &value) == GB_OK);
  c->modes->autocast = true;
  c->modes->lower = GB_BFLOAT16;
  CHECK(training_loss(c, &r, &loss) == GB_OK);
  c->modes->autocast = false;
  gb_memory_get_stats(c, &stats);
  size_t parameters = 4 * (size_t)(257 * 130 + 257 + 40 * 257 + 40);
  CHECK(stats.current[GB_MEM_GRADIENTS] >= parameters && stats.current[GB_MEM_GRADIENTS] < parameters + 4096);
  CHECK(stats.current[GB_MEM_OPTIMIZER] >= 2 * parameters);
  CHECK(stats.current[GB_MEM_WEIGHT_COPIES] >= parameters / 2 &&
        stats.current[GB_MEM_WEIGHT_COPIES] < parameters / 2 + 4096);
  CHECK(stats.current[GB_MEM_SAVED] > 0);
  size_t total = 0;
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) {
    total += stats.current[i];
    CHECK(stats.peak[i] >= stats.current[i]);
  }
  CHECK(total == stats.current_total && stats.peak_total >= stats.current_total &&
        stats.reserved >= stats.current_total);
  gb_tensor_release(loss);
  gb_memory_get_stats(c, &stats);
  CHECK(stats.current[GB_MEM_SAVED] == 0);
  gb_memory_reset_peaks(c);
  gb_memory_get_stats(c, &stats);
  CHECK(stats.peak_total == stats.current_total);
  training_close(&r);
  gb_memory_get_stats(c, &stats);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) CHECK(stats.current[i] == 0);
  CHECK(gb_synchronize(c, test_device()) == GB_OK); /* what an emulated device has yet to do takes memory of the
                                                       CPU's */
  gb_memory_empty_cache(c);
  gb_memory_get_stats(c, &stats);
  CHECK(stats.reserved == 0);
  gb_context_close(c);
}

/* What a step takes does not grow with the steps. */
static void test_memory_is_flat(void) {
  gb_context *c = open_context(1, NULL);
  training_run r = { 0 };
  double loss;
  gb_memory_stats early, late;
  training t = with(small, GB_FLOAT16, GB_AdamW);
  CHECK(training_open(c, &t, &r) == GB_OK);
  int failed = 0;
  for (int i = 0; i < 20; i++) failed += training_step(c, &t, &r, &loss) != GB_OK;
  gb_memory_get_stats(c, &early);
  for (int i = 0; i < 500; i++) failed += training_step(c, &t, &r, &loss) != GB_OK;
  gb_memory_get_stats(c, &late);
  CHECK(failed == 0 && late.current_total == early.current_total && late.peak_total == early.peak_total &&
        late.reserved == early.reserved);
  training_close(&r);
  gb_context_close(c);
}

/* ====} */

/* {==== interrupts ==== */

static void test_interrupt(void) {
  gb_context *c = open_context(1, NULL);
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 4), 1), *out[GB_MAX_OUT] = { NULL };
  CHECK(gb_tensor_set_requires_grad(x, true) == GB_OK);
  gb_tensor *y = run2(GB_OP_matmul, x, x, NULL), *sum = run1(GB_OP_sum, y, NULL);
  gb_interrupt(c);
  CHECK(gb_apply(c, GB_OP_exp, &x, 1, NULL, out) == GB_EINTERRUPT && out[0] == NULL);
  CHECK(gb_apply_(c, GB_OP_neg, &y, 1, NULL) == GB_EINTERRUPT);
  CHECK(gb_apply(c, GB_OP_t, &x, 1, NULL, out) == GB_EINTERRUPT); /* views and composites too */
  CHECK(gb_apply(c, GB_OP_mse_loss, (gb_tensor *[]){ x, x }, 2, NULL, out) == GB_EINTERRUPT);
  CHECK(gb_backward(sum, NULL, false, false) == GB_EINTERRUPT && gb_tensor_grad(x) == NULL);
  CHECK(gb_error_code(c) == GB_EINTERRUPT && says(c, "interrupted"));
  CHECK(gb_apply(c, GB_OP_exp, &x, 1, NULL, out) == GB_EINTERRUPT); /* it stays until it is cleared */
  gb_interrupt_clear(c);
  CHECK(gb_apply(c, GB_OP_exp, &x, 1, NULL, out) == GB_OK);
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_tensor_release(sum);
  gb_tensor_release(out[0]);
  CHECK(live_bytes(c) == 0);
  gb_context_close(c);
}

static void *interrupt_later(void *context) {
  nanosleep(&(struct timespec){ 0, 30000000 }, NULL);
  gb_interrupt(context);
  return NULL;
}

static void test_interrupt_from_another_thread(void) {
  gb_context *c = open_context(2, NULL);
  uint64_t hash, before;
  double loss;
  CHECK(training_go(c, &large, &before, &loss) == GB_OK);
  pthread_t thread;
  gb_status status = GB_OK;
  CHECK(pthread_create(&thread, NULL, interrupt_later, c) == 0);
  while (status == GB_OK) status = training_go(c, &large, &hash, &loss);
  pthread_join(thread, NULL);
  CHECK(status == GB_EINTERRUPT && live_bytes(c) == 0);
  gb_interrupt_clear(c);
  CHECK(training_go(c, &large, &hash, &loss) == GB_OK && hash == before);
  gb_context_close(c);
}

/* ====} */

/* {==== threads and levels ==== */

static bool same_numbers(const bag *a, const bag *b) { return a->count == b->count &&
                                                       !memcmp(a->values, b->values,
                                                               sizeof *a->values * (size_t)a->count); }

/* Every case, by 1, 2, 3 and 4 threads, in float32 and under autocast. */
static void test_bits_do_not_depend_on_threads(void) {
  gb_context *c = open_context(1, NULL);
  for (int autocast = 0; autocast < 2; autocast++) {
    for (int k = 0; k < OP_CASES; k++) {
      bag one = { 0 }, other = { 0 };
      c->modes->lower = GB_BFLOAT16;
      for (int threads = 1; threads <= 4; threads++) {
        bag *into = threads == 1 ? &one : &other;
        into->count = 0;
        CHECK(gb_set_num_threads(c, threads) == GB_OK);
        c->modes->autocast = autocast;
        case_collect(c, &op_cases[k], into);
        c->modes->autocast = false;
        bool same = threads == 1 || same_numbers(&one, &other);
        if (!same)
          fprintf(stderr, "%s%s: other bits with %d threads\n", op_cases[k].name, autocast ? " under autocast" : "",
                  threads);
        CHECK(same);
      }
      free(one.values);
      free(other.values);
    }
  }
  gb_context_close(c);
}

static void test_training_bits_do_not_depend_on_threads(void) {
  const gb_dtype lower[] = { GB_DTYPE_NONE, GB_BFLOAT16, GB_FLOAT16 };
  gb_context *c = open_context(1, NULL);
  for (int i = 0; i < 3; i++) {
    training t = with(large, lower[i], i == 0 ? GB_SGD : GB_AdamW);
    uint64_t first = 0, hash;
    double loss;
    for (int threads = 1; threads <= 3; threads++) {
      CHECK(gb_set_num_threads(c, threads) == GB_OK);
      CHECK(training_go(c, &t, &hash, &loss) == GB_OK);
      CHECK(threads == 1 || hash == first);
      first = hash;
    }
  }
  gb_context_close(c);
}

/* Levels differ in the order of sums and in fused multiply-adds: a few hundred roundings of the intermediate values,
 * which are near 1. */
static void test_levels_agree(void) {
  static const char *const levels[] = { "v3", "v4", "v4-bf16", "v4-amx" };
  gb_context *baseline = open_context(2, "baseline");
  CHECK(baseline != NULL);
  for (int l = 0; l < 4; l++) {
    gb_context *c = open_context(2, levels[l]);
    if (!c) { fprintf(stderr, "this CPU, or this build, has no level %s: left out\n", levels[l]); continue; }
    for (int k = 0; k < OP_CASES; k++) {
      bag a = { 0 }, b = { 0 };
      case_collect(baseline, &op_cases[k], &a);
      case_collect(c, &op_cases[k], &b);
      double distance = bag_distance(&b, &a);
      if (!(distance < 2e-5))
        fprintf(stderr, "%s: level %s differs from baseline by %g\n", op_cases[k].name, levels[l], distance);
      CHECK(distance < 2e-5);
      free(a.values);
      free(b.values);
    }
    gb_context_close(c);
  }
  gb_context_close(baseline);
}

/* Conversions have one right answer, so every level gives the same bits: all values of both 16-bit types, and float32
 * of every size. */
static void test_levels_convert_exactly(void) {
  static const char *const levels[] = { "baseline", "v3", "v4" };
  const gb_dtype narrow[] = { GB_FLOAT16, GB_BFLOAT16 };
  uint64_t hash[3];
  int known = 0;
  for (int l = 0; l < 3; l++) {
    gb_context *c = open_context(1, levels[l]);
    if (!c) continue;
    hash[known] = 1;
    for (int d = 0; d < 2; d++) {
      gb_tensor *all = NULL, *wide = NULL, *back = NULL, *many = NULL, *rounded = NULL;
      CHECK(gb_tensor_new(c, narrow[d], 1, SHAPE(65536), CPU, &all) == GB_OK);
      for (int i = 0; i < 65536; i++) ((uint16_t *)gb_data(all))[i] = (uint16_t)i;
      CHECK(gb_op_cast(c, all, GB_FLOAT32, &wide) == GB_OK && gb_op_cast(c, wide, narrow[d], &back) == GB_OK);
      int changed = 0;
      for (int i = 0; i < 65536; i++) {
        float f = ((float *)gb_data(wide))[i];
        changed += !isnan(f) && ((uint16_t *)gb_data(back))[i] != i;
      }
      CHECK(changed == 0);
      CHECK(gb_tensor_new(c, GB_FLOAT32, 1, SHAPE(1 << 20), CPU, &many) == GB_OK);
      for (int i = 0; i < 1 << 20; i++) ((uint32_t *)gb_data(many))[i] = (uint32_t)i * 4093u;
      CHECK(gb_op_cast(c, many, narrow[d], &rounded) == GB_OK);
      hash[known] = hash_tensor(rounded, hash_tensor(wide, hash[known]));
      gb_tensor *list[] = { all, wide, back, many, rounded };
      for (int i = 0; i < 5; i++) gb_tensor_release(list[i]);
    }
    CHECK(known == 0 || hash[known] == hash[0]);
    known++;
    gb_context_close(c);
  }
  CHECK(known >= 1);
}

/* Elements of rows that exponentials have to take. Row 0 is finite, row 1 has -infinity too; the last three are all
 * -infinity, all below 0, and all NaN, whose sign makes 16 bits of it the largest or the least number. */
enum { SPECIAL_ROWS = 8 };
static double special_element(int64_t row, int64_t i, int64_t n) {
  static const double specials[] = { 0, -0.0, 1e-40, -1e-40, 6e-8, -6e-8, 1000, -1000, -88, -104, -21, -INFINITY,
                                     INFINITY, NAN, -NAN };
  if (row == SPECIAL_ROWS - 3) return -INFINITY;
  if (row == SPECIAL_ROWS - 2) return -1 - fabs(noise(5, i));
  if (row == SPECIAL_ROWS - 1) return -NAN;
  int64_t kinds = row == 0 ? 11 : row == 1 ? 12 : 15, at = (7 * i + 5 * row + n) % (3 * kinds);
  return at < kinds ? specials[at] : 3 * noise((uint64_t)row, i);
}

/* Softmax, its logarithm and cross_entropy of rows, and the gradient of the last. */
static void collect_specials(gb_context *c, gb_tensor *x, bag *into) {
  gb_tensor *classes = new_made(c, GB_INT64, 1, SHAPE(SPECIAL_ROWS), make_index, (uint64_t)x->shape[1]),
      *y[5] = { NULL };
  CHECK(gb_tensor_set_requires_grad(x, true) == GB_OK);
  CHECK(GB_RUN(c, softmax, &y[0], .x = x, .dim = gb_attr_int(-1)) == GB_OK);
  CHECK(GB_RUN(c, log_softmax, &y[1], .x = x, .dim = gb_attr_int(-1)) == GB_OK);
  gb_attr each = gb_attr_word(GB_WORD_none);
  CHECK(GB_RUN(c, cross_entropy, &y[2], .x = x, .target = classes, .reduction = each) == GB_OK);
  CHECK(GB_RUN(c, sum, &y[3], .x = y[2]) == GB_OK && gb_backward(y[3], NULL, false, false) == GB_OK);
  y[4] = gb_tensor_grad(x);
  for (int k = 0; k < 5; k++) {
    if (k != 3) bag_add(into, y[k]); /* the sum is NaN */
    gb_tensor_release(y[k]);
  }
  gb_tensor_release(classes);
}

/* Rows with zeros of both signs, subnormals, infinities and NaN, of lengths about those of vectors: what float64 makes
 * of them at the level that has no vectors of its own. Results are rounded to their dtype; in float32 backward reads
 * the logarithm of a sum, which is 1000 +- 2^-15. */
static void test_levels_take_special_values(void) {
  static const char *const levels[] = { "baseline", "v3", "v4" };
  static const struct { gb_dtype dtype; double within; } dtypes[] = { { GB_FLOAT32, 0x1p-14 }, { GB_FLOAT16, 0x1p-10 },
                                                                      { GB_BFLOAT16, 0x1p-7 } };
  static const int64_t lengths[] = { 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 65, 300, 1100 };
  gb_context *baseline = open_context(1, "baseline");
  for (int run = 0; run < 3 * 3 * 13; run++) {
    gb_context *c = open_context(2, levels[run / 39]);
    if (!c) continue;
    gb_dtype dtype = dtypes[run / 13 % 3].dtype;
    int64_t n = lengths[run % 13];
    double *values = malloc(sizeof *values * (size_t)(SPECIAL_ROWS * n));
    for (int64_t i = 0; i < SPECIAL_ROWS * n; i++) values[i] = special_element(i / n, i % n, n);
    bag rounded = { 0 }, got = { 0 }, want = { 0 };
    gb_tensor *x = new_values(c, dtype, 2, SHAPE(SPECIAL_ROWS, n), values);
    bag_add(&rounded, x);
    gb_tensor *wide = new_values(baseline, GB_FLOAT64, 2, SHAPE(SPECIAL_ROWS, n), rounded.values);
    collect_specials(c, x, &got);
    collect_specials(baseline, wide, &want);
    double distance = bag_distance(&got, &want);
    bool near = distance <= dtypes[run / 13 % 3].within;
    if (!near)
      fprintf(stderr, "%d elements of %s: level %s is off by %g\n", (int)n, gb_dtype_name(dtype), levels[run / 39],
              distance);
    CHECK(near);
    gb_tensor_release(x);
    gb_tensor_release(wide);
    free(values);
    free(rounded.values);
    free(got.values);
    free(want.values);
    gb_context_close(c);
  }
  gb_context_close(baseline);
}

/* The convolution that a library does and the plain one: the same up to the order of sums. */
static void test_convolutions_agree(void) {
  gb_context *c = open_context(2, NULL);
  for (int k = 0; k < OP_CASES; k++) {
    if (op_cases[k].op != GB_OP_conv2d) continue;
    bag plain = { 0 }, other = { 0 };
    gb_cpu(c)->plain_convolution = true;
    case_collect(c, &op_cases[k], &plain);
    gb_cpu(c)->plain_convolution = false;
    case_collect(c, &op_cases[k], &other);
    CHECK(bag_distance(&other, &plain) < 2e-5);
    free(plain.values);
    free(other.values);
  }
  gb_context_close(c);
}

/* y, dx and dw of a convolution of x * 2^-down by weight * 2^-down, scaled back; of so many images of a size. */
static void collect_convolution(gb_context *c, gb_dtype dtype, const gb_attr *attrs, const int64_t *x_shape, int x_down,
                                bag *into) {
  gb_tensor *in[3] = { NULL }, *y = NULL, *up = NULL;
  const int64_t shapes[2][4] = { { x_shape[0], 32, x_shape[1], x_shape[2] }, { 48, 32, 3, 3 } };
  const int w_down = x_down, down[2] = { x_down, w_down };
  for (int i = 0; i < 2; i++) {
    int64_t n = shapes[i][0] * shapes[i][1] * shapes[i][2] * shapes[i][3];
    double *values = malloc(sizeof *values * (size_t)n);
    for (int64_t k = 0; k < n; k++) values[k] = ldexp(noise((uint64_t)i + 1, k), -down[i]);
    in[i] = new_values(c, dtype, 4, shapes[i], values);
    free(values);
    CHECK(gb_tensor_set_requires_grad(in[i], true) == GB_OK);
  }
  CHECK(gb_apply(c, GB_OP_conv2d, in, 3, attrs, &y) == GB_OK);
  up = new_noise(c, dtype, 4, y->shape, 99);
  CHECK(gb_backward(y, up, false, false) == GB_OK);
  gb_tensor *all[3] = { y, gb_tensor_grad(in[0]), gb_tensor_grad(in[1]) };
  const int back[3] = { x_down + w_down, w_down, x_down };
  for (int i = 0; i < 3; i++) {
    int64_t first = into->count;
    bag_add(into, all[i]);
    for (int64_t k = first; k < into->count; k++) into->values[k] = ldexp(into->values[k], back[i]);
    gb_tensor_release(all[i]);
  }
  gb_tensor_release(up);
  for (int i = 0; i < 2; i++) gb_tensor_release(in[i]);
}

/* The same with as many channels as the CPU's tiles are used for, where it has any, and with every way to come by the
 * gradient of the input: turned about, or, with a stride or more padding than the kernel reaches, not. Numbers that
 * tiles would take for zero count: with x and the weight about 2^-64, so do nearly all products. Two roundings to
 * bfloat16 may differ by 2^-7; its subnormals are 2^-133, 2^-5 of such a product. Few images are one product, many are
 * slices of a library's; over maps of one pixel or two most taps meet nothing but padding. */
static void test_convolutions_of_many_channels_agree(void) {
  static const int64_t geometries[][6] = { { 1, 1, 1, 1, 1, 1 }, { 1, 1, 2, 2, 1, 1 }, { 1, 1, 3, 1, 1, 1 },
                                           { 2, 2, 1, 1, 1, 1 }, { 1, 1, 2, 1, 2, 1 },
                                           { 1, 1, 1, 0, 1, 2 } };
  static const struct { gb_dtype dtype; int down; double within; } ways[] = {
    { GB_FLOAT32, 0, 2e-5 }, { GB_BFLOAT16, 0, 0x1p-7 }, { GB_BFLOAT16, 64, 0x1p-4 }, { GB_FLOAT16, 0, 0x1p-10 },
  };
  static const struct { int64_t size[3]; int from, to; } maps[] = { /* and which geometries */
    { { 4, 9, 7 }, 0, 6 }, { { 17, 9, 7 }, 0, 6 }, { { 52, 9, 7 }, 3, 4 }, { { 5, 1, 1 }, 0, 5 }, { { 3, 1, 2 }, 0, 5 },
    { { 3, 2, 1 }, 0, 5 },
  };
  gb_context *c = open_context(2, NULL), *alone = open_context(1, NULL);
  for (size_t m = 0; m < sizeof maps / sizeof *maps; m++) for (int k = maps[m].from * 4; k < maps[m].to * 4; k++) {
    const int64_t *g = geometries[k / 4];
    gb_attr attrs[5] = { gb_attr_ints(2, g), gb_attr_ints(2, g + 2), gb_attr_ints(2, g + 4), gb_attr_int(1),
                         gb_attr_text("none") };
    bag plain = { 0 }, other = { 0 }, one = { 0 };
    gb_cpu(c)->plain_convolution = true;
    collect_convolution(c, ways[k % 4].dtype, attrs, maps[m].size, ways[k % 4].down, &plain);
    gb_cpu(c)->plain_convolution = false;
    collect_convolution(c, ways[k % 4].dtype, attrs, maps[m].size, ways[k % 4].down, &other);
    collect_convolution(alone, ways[k % 4].dtype, attrs, maps[m].size, ways[k % 4].down, &one);
    CHECK(bag_distance(&other, &one) == 0); /* whatever the number of threads */
    double distance = bag_distance(&other, &plain);
    if (!(distance <= ways[k % 4].within))
      fprintf(stderr, "maps %zu, geometry %d, way %d: off by %g\n", m, k / 4, k % 4, distance);
    CHECK(distance <= ways[k % 4].within);
    free(plain.values);
    free(other.values);
    free(one.values);
  }
  gb_context_close(alone);
  gb_context_close(c);
}

/* Who asked for memory back, on which thread. */
typedef struct asked { pthread_t caller; atomic_int elsewhere; } asked;

static void note_thread(void *user) {
  asked *a = user;
  atomic_fetch_add(&a->elsewhere, !pthread_equal(a->caller, pthread_self()));
}

/* The threads of a convolution bring their slices of x into order, which takes scratch: a little each, however many
 * threads there are. Where there is none they do without, or the call fails: what the language on top could free may be
 * asked for by the thread that called alone, which its collector runs on. */
static void test_the_scratch_of_a_convolution(void) {
  enum { THREADS = 24, SLICES = 16, LITTLE = 64 << 10 };
  gb_context *c = open_context(THREADS, NULL);
  gb_attr attrs[5] = { gb_attr_ints(2, SHAPE(1, 1)), gb_attr_ints(2, SHAPE(1, 1)), gb_attr_ints(2, SHAPE(1, 1)),
                       gb_attr_int(1), gb_attr_text("none") };
  gb_tensor *in[3] = { new_noise(c, GB_FLOAT32, 4, SHAPE(32, 64, 32, 32), 1),
                       new_noise(c, GB_FLOAT32, 4, SHAPE(16, 64, 1, 1), 2), NULL };
  gb_tensor *permuted = run1(GB_OP_permute, in[0], (gb_attr[]){ gb_attr_ints(4, SHAPE(0, 2, 3, 1)) });
  gb_tensor *dense = run1(GB_OP_contiguous, permuted, NULL),
      *last = run1(GB_OP_permute, dense, (gb_attr[]){ gb_attr_ints(4, SHAPE(0, 3, 1, 2)) });
  gb_tensor *first = in[0], *y = NULL;
  size_t peak[2];
  for (int i = 0; i < 2; i++) {
    in[0] = i == 0 ? last : first;
    gb_tensor_release(y);
    gb_memory_reset_peaks(c);
    CHECK(gb_apply(c, GB_OP_conv2d, in, 3, attrs, &y) == GB_OK);
    gb_memory_stats stats;
    gb_memory_get_stats(c, &stats);
    peak[i] = stats.peak[GB_MEM_SCRATCH];
  }
  CHECK(peak[1] <= peak[0] + SLICES * LITTLE);
  asked a = { .caller = pthread_self() };
  c->reclaim = note_thread;
  c->reclaim_user = &a;
  bag expected = { 0 };
  bag_add(&expected, y);
  int wrong = 0, passed = 0;
  for (uint64_t n = 1; n <= 60; n++) {
    gb_tensor *again = NULL;
    gb_pool_fail_after(c->pool[GB_CPU], n);
    gb_status status = gb_apply(c, GB_OP_conv2d, in, 3, attrs, &again);
    gb_pool_fail_after(c->pool[GB_CPU], 0);
    bag b = { 0 };
    if (again) bag_add(&b, again);
    if (status == GB_OK) wrong += bag_distance(&b, &expected) != 0, passed++;
    else wrong += status != GB_EMEMORY; /* the plain way's products cannot do without theirs */
    free(b.values);
    gb_tensor_release(again);
  }
  CHECK(wrong == 0 && passed > 0 && atomic_load(&a.elsewhere) == 0);
  free(expected.values);
  c->reclaim = NULL;
  gb_tensor *all[] = { first, in[1], permuted, dense, last, y };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) gb_tensor_release(all[i]);
  gb_context_close(c);
}

/* ====} */

/* What is about the CPU: its memory, threads and levels. */
static void test_the_cpu(void) {
  test_options();
  test_the_callers_allocator();
  test_bits_do_not_depend_on_threads();
  test_training_bits_do_not_depend_on_threads();
  test_levels_agree();
  test_levels_convert_exactly();
  test_levels_take_special_values();
  test_convolutions_agree();
  test_convolutions_of_many_channels_agree();
  test_the_scratch_of_a_convolution();
}

int main(void) {
  if (test_device().type == GB_CPU) test_the_cpu();
  test_errors_keep_outputs();
  test_two_contexts_in_two_threads();
  test_tensors_outlive_their_context();
  test_the_limit();
  test_failed_allocations();
  test_failed_allocations_of_ops();
  test_categories();
  test_memory_is_flat();
  test_interrupt();
  test_interrupt_from_another_thread();
  return check_report();
}
