/* test_loader.c - data/loader.h and data/dataset.h: the order of batches is a function of the seed and the position
 * alone. */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/piece.h"
#include "check.h"
#include "data/loader.h"
#include "data/readers.h"
#include "data/transform.h"
#include "io/folder.h"
#include "io/image.h"
#include "tensor/context.h"

static gb_context *context;

/* {==== Orders ==== */

static void test_permutation(void) {
  enum { N = 1000 };
  static int64_t a[N], b[N];
  static char seen[N];
  gb_permutation(1, 0, N, a, NULL);
  int once = 0, moved = 0;
  for (int i = 0; i < N; i++) once += a[i] >= 0 && a[i] < N && !seen[a[i]]++;
  for (int i = 0; i < N; i++) moved += a[i] != i;
  CHECK(once == N && moved > N - 20);
  gb_permutation(1, 0, N, b, NULL);
  CHECK(!memcmp(a, b, sizeof a));
  gb_permutation(1, 1, N, b, NULL);
  CHECK(memcmp(a, b, sizeof a));
  gb_permutation(2, 0, N, b, NULL);
  CHECK(memcmp(a, b, sizeof a));
  gb_permutation(5, 0, 0, a, NULL);
  gb_permutation(5, 0, 1, a, NULL);
  CHECK(a[0] == 0);
  /* These orders are in people's checkpoints: they must never change. */
  static const int64_t kept[10] = { 2, 6, 0, 3, 5, 7, 8, 1, 4, 9 };
  gb_permutation(42, 3, 10, a, NULL);
  CHECK(!memcmp(a, kept, sizeof kept));
  CHECK(gb_sample(42, 3, 0, 1000000) == 585200);
}

static bool count_looks(void *looks) { return ++*(int *)looks == 3; }

/* Who may end the making of an order is asked after every piece, and heeded; one who is not asked changes nothing. */
static void test_stops(void) {
  enum { N = 3 * (GB_PIECE / 32) + 5 };
  static int64_t order[N], same[N], lengths[N], more[N];
  static double weights[N], room[N];
  int looks = 0;
  gb_stopper stop = { count_looks, &looks };
  for (int i = 0; i < N; i++) weights[i] = 1, lengths[i] = i % 7;
  CHECK(!gb_permutation(1, 0, N, order, &stop) && looks == 3);
  looks = 3;
  CHECK(gb_permutation(1, 0, N, order, &stop) && looks >= 6 && looks <= 7);
  CHECK(gb_permutation(1, 0, N, same, NULL) && !memcmp(order, same, sizeof order));
  for (int replacement = 0; replacement < 2; replacement++) {
    looks = 0;
    CHECK(!gb_weighted(1, 0, weights, N, room, replacement, N, order, &stop) && looks == 3);
  }
  for (int shuffle = 0; shuffle < 2; shuffle++) {
    looks = shuffle ? 0 : 2;
    CHECK(!gb_bucketed(1, 0, lengths, N, 4, 100, shuffle, more, order, &stop) && looks == 3);
  }
}

/* Every place is as likely as any other, within what 60,000 trials allow. */
static void test_uniform(void) {
  int count[6][6] = { { 0 } }, drawn[7] = { 0 }, good = 0;
  for (uint64_t seed = 0; seed < 60000; seed++) {
    int64_t order[6];
    gb_permutation(seed, 0, 6, order, NULL);
    for (int i = 0; i < 6; i++) count[i][order[i]]++;
    drawn[gb_sample(9, 0, seed, 7)]++;
  }
  for (int i = 0; i < 36; i++) good += abs(count[i / 6][i % 6] - 10000) < 500;
  for (int i = 0; i < 7; i++) good += abs(drawn[i] - 60000 / 7) < 500;
  CHECK(good == 43);
}

/* ====} */

/* {==== Batches ==== */

/* The numbers of the next batch of a loader over gb_dataset_indices; their count, 0 at the end of an epoch, -1: a
 * failure. */
static int64_t next_numbers(gb_loader *loader, int64_t *to) {
  gb_tensor *t;
  if (gb_loader_next(loader, &t) != GB_OK) return -1;
  if (!t) return 0;
  int64_t n = gb_tensor_size(t, 0);
  memcpy(to, gb_tensor_data(t), (size_t)n * sizeof *to);
  gb_tensor_release(t);
  return n;
}

static gb_loader *open_over(gb_dataset *set, gb_loader_options options) {
  gb_loader *loader = NULL;
  CHECK(gb_loader_open(context, set, &options, &loader) == GB_OK);
  return loader;
}

static gb_dataset *numbers(int64_t count) {
  gb_dataset *set = NULL;
  CHECK(gb_dataset_indices(context, count, &set) == GB_OK);
  return set;
}

/* Three epochs as one row of numbers, with -7 at the ends of epochs; gives its length. */
static int64_t three_epochs(gb_loader *loader, int64_t *row) {
  int64_t length = 0;
  for (int ends = 0; ends < 3;) {
    int64_t n = next_numbers(loader, row + length);
    if (n < 0) return -1;
    if (n == 0) row[length++] = -7, ends++;
    length += n;
  }
  return length;
}

/* An order that a wish to stop cut off is made anew, whole, with the next batch. */
static void test_stopped_order(void) {
  enum { N = GB_PIECE / 16 };
  static int64_t order[N];
  int64_t got[4];
  gb_dataset *set = numbers(N);
  gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = 4, .shuffle = true, .seed = 6 });
  gb_permutation(6, 0, N, order, NULL);
  gb_interrupt(context);
  CHECK(next_numbers(loader, got) == -1 && gb_error_code(context) == GB_EINTERRUPT);
  gb_interrupt_clear(context);
  CHECK(next_numbers(loader, got) == 4 && !memcmp(got, order, sizeof got));
  gb_loader_close(loader);
  gb_dataset_release(set);
}

/* Prefetching changes nothing; every order is what it should be. */
static void test_orders(void) {
  static int64_t expected[1000], got[1000];
  const gb_loader_options kinds[] = {
    { .batch_size = 7 }, { .batch_size = 7, .shuffle = true, .seed = 3 }, { .batch_size = 7, .drop_last = true },
        { .batch_size = 100 },
    { .batch_size = 7, .shuffle = true, .drop_last = true, .seed = UINT64_MAX }, { .batch_size = 50, .shuffle = true },
    { .batch_size = 7, .random_batches = 9, .seed = 5 },
  };
  const struct { int prefetch, workers; } ways[] = { { 1, 0 }, { 2, 1 }, { 3, 3 }, { 64, 0 }, { 0, 2 }, { 2, 64 } };
  gb_dataset *set = numbers(50);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    gb_loader *loader = open_over(set, kinds[k]);
    int64_t length = three_epochs(loader, expected), per_epoch = kinds[k].drop_last ? 49 : kinds[k].random_batches ? 63
        : 50;
    CHECK(length == 3 * (per_epoch + 1));
    CHECK(gb_loader_batches(loader) == (kinds[k].random_batches ? 9 : kinds[k].drop_last ? 7
                                        : (50 + kinds[k].batch_size - 1) / kinds[k].batch_size));
    gb_loader_close(loader);
    if (!kinds[k].shuffle && !kinds[k].random_batches)
      CHECK(expected[0] == 0 && expected[per_epoch - 1] == per_epoch - 1 && expected[per_epoch + 1] == 0);
    else
      CHECK(memcmp(expected, expected + per_epoch + 1, (size_t)per_epoch * sizeof *expected));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
      gb_loader_options options = kinds[k];
      options.prefetch = ways[w].prefetch;
      options.workers = ways[w].workers;
      loader = open_over(set, options);
      CHECK(three_epochs(loader, got) == length && !memcmp(got, expected, (size_t)length * sizeof *got));
      gb_loader_close(loader);
    }
  }
  gb_dataset_release(set);
}

/* From every position of two epochs, with a loader that is new or that was elsewhere, the rest is the same. */
static void test_positions(int prefetch, int workers) {
  gb_dataset *set = numbers(23);
  gb_loader_options options = { .batch_size = 4, .shuffle = true, .seed = 11, .prefetch = prefetch,
                                .workers = workers };
  gb_loader *loader = open_over(set, options), *wanderer = open_over(set, options);
  int64_t row[8], other[8], third[8];
  int good = 0, count = 0;
  for (; count < 14; count++) {
    gb_loader_position at = gb_loader_get_position(loader);
    gb_loader *fresh = open_over(set, options);
    int fine = gb_loader_set_position(fresh, at) == GB_OK && gb_loader_set_position(wanderer, at) == GB_OK;
    int64_t n = next_numbers(loader, row);
    fine &= next_numbers(fresh, other) == n && next_numbers(wanderer, third) == n;
    fine &= !memcmp(row, other, (size_t)n * sizeof *row) && !memcmp(row, third, (size_t)n * sizeof *row);
    gb_loader_position after = gb_loader_get_position(fresh);
    fine &= after.epoch == gb_loader_get_position(loader).epoch && after.batch == gb_loader_get_position(loader).batch;
    fine &= at.epoch == count / 7 && at.batch == count % 7;
    good += fine;
    gb_loader_close(fresh);
    next_numbers(wanderer, third);
  }
  CHECK(good == count);
  CHECK(gb_loader_set_position(loader, (gb_loader_position){ 0, 7 }) == GB_EINVAL);
  CHECK(gb_loader_set_position(loader, (gb_loader_position){ -1, 0 }) == GB_EINVAL);
  CHECK(gb_loader_set_position(loader, (gb_loader_position){ 5, 6 }) == GB_OK && next_numbers(loader, row) == 0);
  CHECK(next_numbers(loader, row) == 4 && gb_loader_get_position(loader).epoch == 6);
  gb_loader_close(loader);
  gb_loader_close(wanderer);
  gb_dataset_release(set);
}

/* A dataset of the caller that fails now and then. */
typedef struct fragile { atomic_int failures; int released; } fragile;

static gb_status fragile_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                             size_t error_size) {
  fragile *f = user;
  for (int64_t i = 0; i < n; i++) {
    ((float *)out[0])[i] = (float)indices[i];
    if (indices[i] != 5 || atomic_load(&f->failures) == 0) continue;
    atomic_fetch_sub(&f->failures, 1);
    snprintf(error, error_size, "sample five is broken");
    return GB_EIO;
  }
  return GB_OK;
}

/* A dataset that gives nothing until the gate is open. */
static gb_status gated_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                           size_t error_size) {
  (void)error, (void)error_size;
  while (!atomic_load((atomic_int *)user)) sched_yield();
  for (int64_t i = 0; i < n; i++) ((float *)out[0])[i] = (float)indices[i];
  return GB_OK;
}

/* Who waits for a batch that is long in the making heeds an interrupt, and gets that batch when it asks again. */
static void test_interrupted_wait(int workers) {
  atomic_int open = 0;
  gb_dataset *set, table = { .count = 10, .columns = 1, .column = { { .dtype = GB_FLOAT32 } }, .get_batch = gated_get,
                             .user = &open };
  CHECK(gb_dataset_new(context, &table, &set) == GB_OK);
  gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = 2, .prefetch = 2, .workers = workers });
  gb_dataset_release(set);
  gb_tensor *t = NULL;
  gb_interrupt(context);
  CHECK(gb_loader_next(loader, &t) == GB_EINTERRUPT);
  gb_interrupt_clear(context);
  atomic_store(&open, 1);
  CHECK(gb_loader_next(loader, &t) == GB_OK && t && ((float *)gb_tensor_data(t))[1] == 1);
  gb_tensor_release(t);
  gb_loader_close(loader);
}

static void fragile_release(void *user) { ((fragile *)user)->released++; }

/* A failure comes out as status and text, at its batch; the position stays, and trying again goes on from there. */
static void test_failures(int prefetch, int workers) {
  fragile f = { 2, 0 };
  gb_dataset *set, table = { .count = 10, .columns = 1, .column = { { .dtype = GB_FLOAT32 } }, .get_batch = fragile_get,
                             .release = fragile_release,
                            .user = &f };
  CHECK(gb_dataset_new(context, &table, &set) == GB_OK);
  gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = 2, .prefetch = prefetch, .workers = workers });
  gb_dataset_release(set);
  gb_tensor *t = NULL;
  int good = 0;
  for (int i = 0; i < 2; i++) {
    CHECK(gb_loader_next(loader, &t) == GB_OK);
    gb_tensor_release(t);
  }
  for (int i = 0; i < 2; i++) good += gb_loader_next(loader, &t) == GB_EIO &&
      strstr(gb_error(context), "sample five is broken") &&
      gb_loader_get_position(loader).batch == 2;
  CHECK(good == 2);
  CHECK(gb_loader_next(loader, &t) == GB_OK && t && ((float *)gb_tensor_data(t))[1] == 5);
  gb_tensor_release(t);
  CHECK(f.released == 0);
  gb_loader_close(loader);
  CHECK(f.released == 1);
}

/* Tensors outlive their loader, in any order; buffers are used again. */
static void test_lives(int prefetch, int workers) {
  gb_dataset *set = numbers(4000);
  gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = 10, .prefetch = prefetch, .workers = workers });
  gb_tensor *kept[5];
  void *seen[16];
  int places = 0;
  for (int i = 0; i < 5; i++) CHECK(gb_loader_next(loader, &kept[i]) == GB_OK);
  for (int i = 0; i < 300; i++) {
    gb_tensor *t;
    CHECK(gb_loader_next(loader, &t) == GB_OK);
    int place = 0;
    while (place < places && seen[place] != gb_tensor_data(t)) place++;
    if (place == places && places < 16) seen[places++] = gb_tensor_data(t);
    CHECK((uintptr_t)gb_tensor_data(t) % 256 == 0 && *(int64_t *)gb_tensor_data(t) == (i + 5) * 10);
    gb_tensor_release(t);
  }
  CHECK(places <= prefetch + 4);
  gb_tensor_release(kept[2]);
  gb_loader_close(loader);
  gb_dataset_release(set);
  for (int i = 0; i < 5; i++) {
    if (i == 2) continue;
    CHECK(((int64_t *)gb_tensor_data(kept[i]))[9] == i * 10 + 9);
    gb_tensor_release(kept[i]);
  }
  loader = open_over(set = numbers(10), (gb_loader_options){ .batch_size = 3, .prefetch = prefetch,
                                                                  .workers = workers });
  gb_loader_close(loader); /* never asked */
  gb_dataset_release(set);
}

static void test_options(void) {
  gb_dataset *set = numbers(10), *empty = numbers(0);
  gb_loader *loader;
  gb_loader_options options;
  gb_loader_options_init(&options);
  CHECK(options.batch_size == 32 && options.prefetch == 2 && !options.shuffle);
  const gb_loader_options bad[] = {
    { .batch_size = 0 }, { .batch_size = -1 }, { .batch_size = 1, .prefetch = -1 }, { .batch_size = 1, .prefetch = 65 },
    { .batch_size = 1, .workers = -1 }, { .batch_size = 1, .workers = 65 },
    { .batch_size = 1, .random_batches = -1 }, { .batch_size = 1, .random_batches = 5, .shuffle = true },
        { .batch_size = 11, .drop_last = true },
    { .batch_size = INT64_MAX, .random_batches = 2 }, { .batch_size = INT64_MAX, .random_batches = 1 },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    CHECK(gb_loader_open(context, set, &bad[i], &loader) == GB_EINVAL);
  CHECK(gb_loader_open(context, empty, &(gb_loader_options){ .batch_size = 1, .random_batches = 1 }, &loader) ==
        GB_EINVAL);
  CHECK(gb_loader_open(context, empty, &options, &loader) == GB_OK && gb_loader_batches(loader) == 0);
  int64_t row[1];
  CHECK(next_numbers(loader, row) == 0 && next_numbers(loader, row) == 0 && gb_loader_get_position(loader).epoch == 2);
  gb_loader_close(loader);
  loader = open_over(set, (gb_loader_options){ .batch_size = INT64_MAX, .prefetch = 1 });
  int64_t all[10];
  CHECK(gb_loader_batches(loader) == 1 && next_numbers(loader, all) == 10);
  gb_loader_close(loader);
  gb_loader_close(NULL);
  gb_dataset_release(set);
  gb_dataset_release(empty);
}

/* ====} */

/* {==== Datasets ==== */

static void test_tensors(void) {
  float x[12];
  int64_t y[4] = { 10, 11, 12, 13 }, shape[2] = { 4, 3 };
  for (int i = 0; i < 12; i++) x[i] = (float)i;
  gb_tensor *tensors[2], *turned, *scalar, *out[2];
  CHECK(gb_tensor_over(context, x, GB_FLOAT32, 2, shape, NULL, NULL, &tensors[0]) == GB_OK);
  CHECK(gb_tensor_over(context, y, GB_INT64, 1, shape, NULL, NULL, &tensors[1]) == GB_OK);
  CHECK(gb_tensor_over(context, y, GB_INT64, 0, NULL, NULL, NULL, &scalar) == GB_OK);
  CHECK(gb_tensor_view(tensors[0], 2, (int64_t[]){ 3, 4 }, (int64_t[]){ 1, 3 }, 0, &turned) == GB_OK);
  gb_dataset *set;
  CHECK(gb_dataset_tensors(context, &turned, 1, &set) == GB_EINVAL &&
        gb_dataset_tensors(context, &scalar, 1, &set) == GB_ESHAPE);
  CHECK(gb_dataset_tensors(context, (gb_tensor *[]){ tensors[0], turned }, 2, &set) != GB_OK &&
        gb_dataset_tensors(context, tensors, 0,
      &set) == GB_EINVAL);
  CHECK(gb_dataset_tensors(context, tensors, 2, &set) == GB_OK && set->count == 4);
  gb_tensor_release(tensors[0]);
  gb_tensor_release(tensors[1]);
  gb_tensor_release(turned);
  gb_tensor_release(scalar);

  gb_dataset *range, *subset;
  CHECK(gb_dataset_range(context, set, 1, 3, &range) == GB_OK && range->count == 3);
  CHECK(gb_dataset_range(context, set, 2, 3, &subset) == GB_EINDEX &&
        gb_dataset_range(context, set, -1, 1, &subset) == GB_EINDEX);
  CHECK(gb_dataset_subset(context, range, (int64_t[]){ 3 }, 1, &subset) == GB_EINDEX);
  CHECK(gb_dataset_subset(context, range, (int64_t[]){ 2, 0, 2 }, 3, &subset) == GB_OK && subset->count == 3);
  gb_dataset_release(range);
  gb_dataset_release(set);
  gb_loader *loader = open_over(subset, (gb_loader_options){ .batch_size = 2, .prefetch = 1 });
  gb_dataset_release(subset);
  CHECK(gb_loader_next(loader, out) == GB_OK && gb_tensor_ndim(out[0]) == 2 && gb_tensor_size(out[0], 0) == 2 &&
        gb_tensor_ndim(out[1]) == 1);
  CHECK(((float *)gb_tensor_data(out[0]))[0] == 9 && ((float *)gb_tensor_data(out[0]))[5] == 5);
  CHECK(((int64_t *)gb_tensor_data(out[1]))[0] == 13 && ((int64_t *)gb_tensor_data(out[1]))[1] == 11);
  gb_tensor_release(out[0]);
  gb_tensor_release(out[1]);
  gb_loader_close(loader);
}

/* A part of many samples is translated in pieces. */
static void test_parts(void) {
  gb_dataset *set = numbers(2000), *range, *subset = NULL;
  int64_t list[1000], row[1000];
  for (int i = 0; i < 1000; i++) list[i] = 999 - i;
  CHECK(gb_dataset_range(context, set, 1000, 1000, &range) == GB_OK &&
        gb_dataset_subset(context, range, list, 1000, &subset) == GB_OK);
  gb_loader *loader = open_over(subset, (gb_loader_options){ .batch_size = 1000 });
  int good = 0;
  CHECK(next_numbers(loader, row) == 1000);
  for (int i = 0; i < 1000; i++) good += row[i] == 1999 - i;
  CHECK(good == 1000);
  gb_loader_close(loader);
  gb_dataset_release(subset);
  gb_dataset_release(range);
  gb_dataset_release(set);
}

static void test_windows(void) {
  gb_text *text;
  gb_dataset *set;
  gb_tensor *out[2];
  CHECK(gb_text_new(context, "abcdefgh", 8, GB_TEXT_CHARACTERS, NULL, 0, &text) == GB_OK);
  CHECK(gb_dataset_windows(context, text, 0, 8, 0, &set) == GB_EINVAL &&
        gb_dataset_windows(context, text, 0, 8, 8, &set) == GB_EINVAL);
  CHECK(gb_dataset_windows(context, text, 1, 8, 3, &set) == GB_EINDEX &&
        gb_dataset_windows(context, text, -1, 3, 1, &set) == GB_EINDEX);
  CHECK(gb_dataset_windows(context, text, 0, 8, INT64_MAX, &set) == GB_EINVAL);
  CHECK(gb_dataset_windows(context, text, 2, 6, 3, &set) == GB_OK && set->count == 3);
  gb_text_release(text);
  CHECK(gb_dataset_get(context, set, 2, out) == GB_OK && gb_tensor_size(out[0], 0) == 3);
  CHECK(!memcmp(gb_tensor_data(out[0]), (int64_t[]){ 4, 5, 6 }, 24) &&
        !memcmp(gb_tensor_data(out[1]), (int64_t[]){ 5, 6, 7 }, 24));
  gb_tensor_release(out[0]);
  gb_tensor_release(out[1]);
  gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = 5, .random_batches = 40, .prefetch = 2,
                                                          .seed = 1 });
  int good = 0, starts[3] = { 0 };
  for (int b = 0; b < 40; b++) {
    CHECK(gb_loader_next(loader, out) == GB_OK && gb_tensor_size(out[0], 0) == 5);
    const int64_t *x = gb_tensor_data(out[0]), *y = gb_tensor_data(out[1]);
    for (int i = 0; i < 15; i++) good += y[i] == x[i] + 1;
    for (int i = 0; i < 15; i += 3) starts[x[i] - 2]++;
    gb_tensor_release(out[0]);
    gb_tensor_release(out[1]);
  }
  CHECK(good == 600 && starts[0] > 30 && starts[1] > 30 && starts[2] > 30);
  CHECK(gb_loader_next(loader, out) == GB_OK && !out[0]);
  gb_loader_close(loader);
  gb_dataset_release(set);
}

/* ====} */

/* {==== Random samples ==== */

/* A sample is what it was drawn from: seed, epoch, index. */
static gb_status drawn_get(void *user, const gb_draw *draw, const int64_t *indices, int64_t n, void *const *out,
                           char *error, size_t error_size) {
  (void)user, (void)error, (void)error_size;
  for (int64_t i = 0; i < n; i++)
    memcpy((int64_t *)out[0] + 3 * i, (int64_t[]){ (int64_t)draw->seed, (int64_t)draw->epoch, indices[i] },
           3 * sizeof(int64_t));
  return GB_OK;
}

static gb_status plain_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                           size_t error_size) {
  return drawn_get(user, &(gb_draw){ 0 }, indices, n, out, error, error_size);
}

/* Samples are drawn from the loader's seed, the epoch and their place in the whole, whoever reads them and of whatever
 * part; one that is asked for alone from the context's random stream. */
static void test_draws(void) {
  gb_dataset *set, *part, *shuffled, table = { .count = 40, .columns = 1, .get_batch = plain_get,
    .column = { { .dtype = GB_INT64, .ndim = 1, .shape = { 3 } } }, .get_drawn = drawn_get };
  CHECK(gb_dataset_new(context, &table, &set) == GB_OK && gb_dataset_range(context, set, 10, 20, &part) == GB_OK);
  CHECK(gb_dataset_subset(context, part, (int64_t[]){ 7, 3, 5 }, 3, &shuffled) == GB_OK);
  for (int workers = 0; workers < 6; workers++) {
    gb_loader *loader = open_over(shuffled, (gb_loader_options){ .batch_size = 3, .seed = 99, .workers = workers,
                                                                 .prefetch = workers % 3 });
    gb_tensor *t = NULL;
    CHECK(gb_loader_set_position(loader, (gb_loader_position){ 4, 0 }) == GB_OK);
    CHECK(gb_loader_next(loader, &t) == GB_OK && t);
    CHECK(!memcmp(gb_tensor_data(t), (int64_t[]){ 99, 4, 17, 99, 4, 13, 99, 4, 15 }, 9 * sizeof(int64_t)));
    gb_tensor_release(t);
    gb_loader_close(loader);
  }
  gb_tensor *one, *two;
  CHECK(gb_dataset_get(context, part, 1, &one) == GB_OK && gb_dataset_get(context, part, 1, &two) == GB_OK);
  const int64_t *a = gb_tensor_data(one), *b = gb_tensor_data(two);
  CHECK(a[2] == 11 && b[2] == 11 && a[0] == b[0] && a[1] + 1 == b[1]);
  gb_tensor_release(one);
  gb_tensor_release(two);
  gb_dataset_release(shuffled);
  gb_dataset_release(part);
  gb_dataset_release(set);
}

extern const gb_reader gb_reader_images;

/* Images in files, decoded and transformed by several threads, are those that one makes; a loader that is closed in the
 * middle of its work leaves no thread and no memory. */
static void test_images(void) {
  const gb_augment steps[2] = { { .kind = GB_AUGMENT_ELASTIC, .p = 1, .alpha = 20, .sigma = 1 },
                                { .kind = GB_AUGMENT_RAND_AUGMENT, .p = 1, .count = 2, .magnitude = 9 } };
  gb_transform *parts[2], *transform;
  for (int i = 0; i < 2; i++) CHECK(gb_transform_new(context, &steps[i], &parts[i]) == GB_OK);
  CHECK(gb_transform_compose(context, parts, 2, &transform) == GB_OK);
  gb_option options[] = {
    { .name = "mode", .kind = GB_OPTION_STRING, .string = "rgb", .length = 3 },
    { .name = "size", .kind = GB_OPTION_NUMBER, .number = 12 }, { .name = "skip_bad", .kind = GB_OPTION_BOOL },
    { .name = "transform", .kind = GB_OPTION_TRANSFORM, .transform = transform },
    { .name = "keep", .kind = GB_OPTION_NUMBER, .number = 20000 }, /* some of the files, which threads race to keep */
  };
  gb_reading given = { .path = { "tests/golden/images" },
                       .options = { .kind = GB_OPTION_LIST, .list = options, .count = 5 } };
  gb_dataset *set = NULL;
  gb_status status = gb_reader_images.open(context, &given, &set);
  for (int i = 0; i < 2; i++) gb_transform_release(parts[i]);
  gb_transform_release(transform);
  if (status != GB_OK && strstr(gb_error(context), "this build reads no")) {
    printf("test_loader: this build reads no images, which are not tested\n");
    return;
  }
  CHECK(status == GB_OK && set->count > 30);
  if (status != GB_OK) return;
  enum { BYTES = 12 * 12 * 3, BATCH = 10 };
  static unsigned char want[2][64][BYTES];
  for (int workers = 1; workers < 8; workers += 3) {
    gb_loader *loader = open_over(set, (gb_loader_options){ .batch_size = BATCH, .seed = 5, .shuffle = true,
                                                            .workers = workers, .prefetch = workers / 2 });
    int good = 0, all = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
      gb_tensor *t;
      int64_t at = 0;
      for (; gb_loader_next(loader, &t) == GB_OK && t; gb_tensor_release(t)) {
        size_t n = (size_t)gb_tensor_size(t, 0);
        if (workers == 1) memcpy(want[epoch][at], gb_tensor_data(t), n * BYTES);
        good += !memcmp(want[epoch][at], gb_tensor_data(t), n * BYTES);
        at += (int64_t)n;
        all++;
      }
    }
    CHECK(good == all && all == 2 * (int)((set->count + BATCH - 1) / BATCH));
    gb_loader_close(loader);
    loader = open_over(set, (gb_loader_options){ .batch_size = 3, .workers = workers, .prefetch = 9 });
    gb_tensor *t = NULL;
    CHECK(gb_loader_next(loader, &t) == GB_OK && t);
    gb_loader_close(loader); /* others are being made */
    gb_tensor_release(t);
  }
  CHECK(memcmp(want[0], want[1], sizeof want[0]));
  gb_dataset_release(set);
}

/* What decoders and workers take counts towards the limit on tensor bytes, and is given back. */
static void test_image_limit(void) {
  gb_context *small = NULL;
  gb_context_options how;
  gb_context_options_init(&how, sizeof how);
  how.threads = 1;
  how.tensor_bytes = 300000;
  CHECK(gb_context_open(&how, &small) == GB_OK);
  const gb_augment large = { .kind = GB_AUGMENT_RESIZE, .p = 1, .height = 400, .width = 400 }; /* 480,000 bytes */
  gb_transform *transform;
  CHECK(gb_transform_new(small, &large, &transform) == GB_OK);
  gb_option options[] = {
    { .name = "mode", .kind = GB_OPTION_STRING, .string = "rgb", .length = 3 },
    { .name = "transform", .kind = GB_OPTION_NONE, .transform = transform },
  };
  gb_reading given = { .path = { "tests/golden/images" },
                       .options = { .kind = GB_OPTION_LIST, .list = options, .count = 2 } };
  gb_dataset *set = NULL;
  size_t before = atomic_load(&small->budget.used);
  gb_status status = gb_reader_images.open(small, &given, &set);
  if (status == GB_OK) {
    CHECK(atomic_load(&small->budget.used) > before + 1000);
    gb_dataset_release(set);
    options[1].kind = GB_OPTION_TRANSFORM;
    CHECK(gb_reader_images.open(small, &given, &set) == GB_EMEMORY && strstr(gb_error(small), "out of memory"));
  } else CHECK(strstr(gb_error(small), "this build reads no"));
  CHECK(atomic_load(&small->budget.used) == before);
  gb_transform_release(transform);
  gb_context_close(small);
}

/* Pixels lie off the places where libjpeg-turbo would write them past the caches, in every image that a decoder reads:
 * what io/image.c says. */
static void test_pixels_off_vectors(void) {
  static const char *const names[] = { "progressive.jpg", "rgb.png", "baseline_0.jpg", "cmyk.jpg" };
  gb_workroom room = { .budget = &context->budget };
  gb_image_decoder *decoder = gb_image_decoder_open(&context->budget);
  gb_folder folder;
  CHECK(decoder && gb_folder_open(context, "tests/golden/images", &folder) == GB_OK);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char error[256];
    void *data;
    size_t bytes;
    gb_image image;
    CHECK(gb_folder_read(&folder, names[i], &room, 0, &data, &bytes, error, sizeof error) == GB_OK);
    gb_status status = gb_image_decode(decoder, NULL, data, bytes, GB_IMAGE_RGB, &image, error, sizeof error);
    if (status == GB_EUNSUPPORTED) continue; /* this build reads no such images */
    CHECK(status == GB_OK && (uintptr_t)image.pixels % 16 != 0);
  }
  gb_folder_close(&folder);
  gb_image_decoder_close(decoder);
  gb_workroom_clear(&room);
}

/* ====} */

int main(void) {
  CHECK(gb_context_open(NULL, &context) == GB_OK);
  test_permutation();
  test_uniform();
  test_stops();
  test_stopped_order();
  if (!context) return check_report();
  test_orders();
  test_options();
  test_tensors();
  test_parts();
  test_windows();
  for (int prefetch = 0; prefetch < 4; prefetch++)
    for (int workers = 0; workers < 5; workers += 2) {
      test_positions(prefetch, workers);
      test_failures(prefetch, workers);
      test_lives(prefetch, workers);
    }
  test_interrupted_wait(0);
  test_interrupted_wait(3);
  test_draws();
  test_images();
  test_image_limit();
  test_pixels_off_vectors();
  gb_context_close(context);
  return check_report();
}
