/* test_pool.c - the caching pool: alignment, no overlap, merging, reuse, counts, the limit, failing memory beneath,
 * many threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "base/pool.h"
#include "check.h"

/* The system beneath: counts what is out, and may refuse. */
typedef struct memory { atomic_size_t bytes; size_t most; } memory;

static void *memory_alloc(void *user, size_t bytes, size_t alignment) {
  memory *m = user;
  void *block;
  if (bytes > (size_t)1 << 38 || (m->most && atomic_load(&m->bytes) + bytes > m->most)) return NULL;
  if (posix_memalign(&block, alignment, bytes)) return NULL;
  atomic_fetch_add(&m->bytes, bytes);
  return block;
}

static void memory_free(void *user, void *block, size_t bytes) {
  atomic_fetch_sub(&((memory *)user)->bytes, bytes);
  free(block);
}

static gb_memory_stats stats_of(gb_pool *pool) {
  gb_memory_stats stats;
  gb_pool_stats(pool, &stats);
  return stats;
}

static void test_basics(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  gb_block *empty = gb_pool_alloc(pool, 0, GB_MEM_OTHER), *one = gb_pool_alloc(pool, 257, GB_MEM_PARAMETERS);
  CHECK(empty && gb_block_bytes(empty) == 256 && one && gb_block_bytes(one) == 512);
  CHECK((uintptr_t)gb_block_data(empty) % 256 == 0 && (uintptr_t)gb_block_data(one) % 256 == 0);
  gb_memory_stats s = stats_of(pool);
  CHECK(s.current_total == 768 && s.current[GB_MEM_PARAMETERS] == 512 && s.allocations == 2 &&
        s.system_allocations == 1);
  CHECK(s.reserved == m.bytes && s.reserved >= 768);
  gb_pool_set_category(pool, one, GB_MEM_SAVED);
  s = stats_of(pool);
  CHECK(s.current[GB_MEM_PARAMETERS] == 0 && s.peak[GB_MEM_PARAMETERS] == 512 && s.current[GB_MEM_SAVED] == 512 &&
        s.current_total == 768);
  void *where = gb_block_data(one);
  gb_pool_free(pool, one);
  one = gb_pool_alloc(pool, 400, GB_MEM_OTHER);
  CHECK(gb_block_data(one) == where);
  gb_pool_free(pool, one);
  gb_pool_free(pool, empty);
  gb_pool_free(pool, NULL);
  gb_pool_reset_peaks(pool);
  s = stats_of(pool);
  CHECK(s.current_total == 0 && s.peak_total == 0 && s.reserved > 0);
  gb_pool_flush(pool);
  CHECK(stats_of(pool).reserved == 0 && m.bytes == 0);
  CHECK(!gb_pool_alloc(pool, SIZE_MAX, GB_MEM_OTHER) && !gb_pool_alloc(pool, SIZE_MAX / 2, GB_MEM_OTHER));
  gb_pool_close(pool);
}

/* Freed neighbours become one block again, in any order of freeing. */
static void test_merge(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  const int order[4][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 0, 2, 1, 3 }, { 1, 3, 0, 2 } };
  for (int o = 0; o < 4; o++) {
    gb_block *b[4];
    for (int i = 0; i < 4; i++) b[i] = gb_pool_alloc(pool, 500 << 10, GB_MEM_OTHER);
    for (int i = 0; i < 4; i++) gb_pool_free(pool, b[order[o][i]]);
    gb_block *whole = gb_pool_alloc(pool, 1 << 20, GB_MEM_OTHER);
    CHECK(stats_of(pool).system_allocations == 1);
    gb_pool_free(pool, whole);
  }
  gb_pool_close(pool);
  CHECK(m.bytes == 0);
}

/* Small blocks wait unmerged for requests of their size: not past a request that only the whole segment can serve, and
 * not past a flush. */
static void test_small_wait(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  static gb_block *b[2048]; /* 2 MiB, the whole of a first segment */
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 2048; i++) b[i] = gb_pool_alloc(pool, 1024, GB_MEM_OTHER);
    for (int i = 0; i < 2048; i++) gb_pool_free(pool, b[i]);
    gb_block *first = gb_pool_alloc(pool, 1 << 20, GB_MEM_OTHER), *second = gb_pool_alloc(pool, 1 << 20, GB_MEM_OTHER);
    CHECK(first && second && stats_of(pool).system_allocations == 1);
    gb_pool_free(pool, first);
    gb_pool_free(pool, second);
  }
  gb_block *small = gb_pool_alloc(pool, 256, GB_MEM_OTHER);
  void *place = gb_block_data(small);
  gb_pool_free(pool, small);
  small = gb_pool_alloc(pool, 1, GB_MEM_OTHER);
  CHECK(gb_block_data(small) == place && stats_of(pool).current_total == 256);
  gb_pool_free(pool, small);
  gb_pool_flush(pool);
  CHECK(stats_of(pool).reserved == 0 && m.bytes == 0);
  gb_pool_close(pool);
}

/* A training loop asks for the same sizes again: after the first round nothing comes from the system. */
static void test_steady(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  gb_block *b[64];
  uint64_t after_first = 0;
  for (int round = 0; round < 50; round++) {
    for (size_t i = 0; i < 64; i++) b[i] = gb_pool_alloc(pool, (i * 7919 % 64) * 61234 + 1, GB_MEM_OTHER);
    for (size_t i = 0; i < 64; i++) gb_pool_free(pool, b[(i * 37) % 64]);
    if (round == 1) after_first = stats_of(pool).system_allocations;
  }
  CHECK(stats_of(pool).system_allocations == after_first);
  gb_pool_close(pool);
  CHECK(m.bytes == 0);
}

typedef struct piece { gb_block *block; size_t bytes; unsigned char mark; gb_memory_category category; } piece;

static int holds_mark(const piece *p) {
  const unsigned char *data = gb_block_data(p->block);
  return data[0] == p->mark && data[p->bytes - 1] == p->mark && data[p->bytes / 2] == p->mark;
}

/* Random sizes over six decades: blocks never overlap and the counts are those of a plain account. */
static int churn(gb_pool *pool, uint64_t seed, int steps, int exclusive) {
  piece pieces[128] = { 0 };
  size_t total = 0;
  int good = 0;
  for (int step = 0; step < steps; step++) {
    uint32_t r[4];
    gb_philox(seed, 0, (uint64_t)step, r);
    piece *p = &pieces[r[0] % 128];
    if (p->block) {
      good += holds_mark(p);
      total -= gb_block_bytes(p->block);
      gb_pool_free(pool, p->block);
      p->block = NULL;
    } else {
      *p = (piece){ .bytes = 1 + (r[1] >> (r[2] % 20 + 11)), .mark = (unsigned char)r[3],
                    .category = r[3] % GB_MEM_CATEGORIES };
      p->block = gb_pool_alloc(pool, p->bytes, p->category);
      good += p->block && (uintptr_t)gb_block_data(p->block) % 256 == 0 && gb_block_bytes(p->block) >= p->bytes;
      memset(gb_block_data(p->block), p->mark, p->bytes);
      total += gb_block_bytes(p->block);
    }
    if (exclusive && stats_of(pool).current_total != total) good--;
    if (step % 997 == 0) gb_pool_flush(pool);
  }
  for (int i = 0; i < 128; i++) gb_pool_free(pool, pieces[i].block);
  return good == steps;
}

static void test_churn(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  CHECK(churn(pool, 1, 20000, 1));
  gb_memory_stats s = stats_of(pool);
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) CHECK(s.current[i] == 0);
  CHECK(s.current_total == 0 && s.peak_total > 0 && s.reserved == m.bytes);
  gb_pool_flush(pool);
  CHECK(m.bytes == 0);
  gb_pool_close(pool);
}

typedef struct worker { gb_pool *pool; uint64_t seed; int good; } worker;
static void *churn_thread(void *arg) {
  worker *w = arg;
  w->good = churn(w->pool, w->seed, 3000, 0);
  return NULL;
}

static void test_threads(void) {
  memory m = { 0 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  pthread_t threads[4];
  worker workers[4];
  for (int i = 0; i < 4; i++) {
    workers[i] = (worker){ pool, (uint64_t)i + 10, 0 };
    CHECK(!pthread_create(&threads[i], NULL, churn_thread, &workers[i]));
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    CHECK(workers[i].good);
  }
  CHECK(stats_of(pool).current_total == 0);
  gb_pool_close(pool);
  CHECK(m.bytes == 0);
}

/* The limit counts blocks; memory that runs out beneath flushes the cache first; the n-th allocation fails when told
 * to. */
static void test_failures(void) {
  memory m = { 0 };
  gb_budget budget = { .limit = 1000 << 10 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, &budget),
      *other = gb_pool_open(memory_alloc, memory_free, &m, &budget);
  gb_block *a = gb_pool_alloc(pool, 600 << 10, GB_MEM_OTHER);
  CHECK(a && !gb_pool_alloc(pool, 600 << 10, GB_MEM_OTHER) && !gb_pool_alloc(pool, 2000 << 10, GB_MEM_OTHER) &&
        budget.refused);
  CHECK(!gb_pool_alloc(other, 401 << 10, GB_MEM_OTHER)); /* of another device, and yet the same bytes */
  gb_block *beside = gb_pool_alloc(other, 400 << 10, GB_MEM_OTHER);
  CHECK(beside && budget.used == 1000 << 10);
  gb_pool_free(other, beside);
  gb_pool_free(pool, a);
  a = gb_pool_alloc(pool, 1000 << 10, GB_MEM_OTHER);
  CHECK(a && !gb_pool_alloc(pool, 1, GB_MEM_OTHER) && budget.refused);
  gb_pool_free(pool, a);
  CHECK(gb_budget_take(&budget, 600 << 10)); /* bytes of others */
  CHECK(!gb_budget_take(&budget, 600 << 10) && budget.refused && !gb_pool_alloc(pool, 600 << 10, GB_MEM_OTHER));
  CHECK(!gb_budget_take(&budget, SIZE_MAX) && stats_of(pool).current_total == 0);
  gb_budget_give_back(&budget, 600 << 10);
  a = gb_pool_alloc(pool, 1000 << 10, GB_MEM_OTHER);
  CHECK(a && budget.refused); /* of the request before */
  gb_pool_free(pool, a);
  gb_pool_fail_after(pool, 1);
  CHECK(!gb_pool_alloc(pool, 1, GB_MEM_OTHER) && budget.used == 0); /* what was not had is not counted */
  gb_pool_close(other);
  gb_pool_close(pool);

  m.most = 20 << 20;
  pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  a = gb_pool_alloc(pool, 15 << 20, GB_MEM_OTHER);
  CHECK(a && !gb_pool_alloc(pool, 10 << 20, GB_MEM_OTHER)); /* the system refused */
  CHECK(gb_budget_take(&(gb_budget){ .limit = 0 }, SIZE_MAX)); /* without a limit nothing is counted */
  gb_pool_free(pool, a);
  a = gb_pool_alloc(pool, 19 << 20, GB_MEM_OTHER);
  CHECK(a && stats_of(pool).reserved <= m.most);
  gb_pool_free(pool, a);
  gb_pool_fail_after(pool, 2);
  a = gb_pool_alloc(pool, 1, GB_MEM_OTHER);
  CHECK(a && !gb_pool_alloc(pool, 1, GB_MEM_OTHER));
  gb_block *b = gb_pool_alloc(pool, 1, GB_MEM_OTHER);
  CHECK(b != NULL);
  gb_pool_free(pool, a);
  gb_pool_free(pool, b);
  gb_pool_close(pool);
  CHECK(m.bytes == 0);
}

/* What a graph's replays use has to stay where it is, whoever asks for memory. */
static void test_kept(void) {
  memory m = { .most = 12 << 20 };
  gb_pool *pool = gb_pool_open(memory_alloc, memory_free, &m, NULL);
  gb_pool_keep(pool, true);
  gb_pool_free(pool, gb_pool_alloc(pool, 5 << 20, GB_MEM_OTHER));
  size_t reserved = m.bytes;
  CHECK(reserved >= 5 << 20 && !gb_pool_alloc(pool, 7 << 20, GB_MEM_OTHER) && m.bytes == reserved);
  gb_pool_flush(pool);
  CHECK(m.bytes == reserved);
  gb_pool_keep(pool, false);
  gb_block *block = gb_pool_alloc(pool, 7 << 20, GB_MEM_OTHER);
  CHECK(block && m.bytes < reserved + (7 << 20));
  gb_pool_free(pool, block);
  gb_pool_free(pool, gb_pool_alloc(pool, 1, GB_MEM_OTHER));
  gb_pool_keep(pool, true);
  gb_pool_close(pool); /* then all of it goes */
  CHECK(m.bytes == 0);
}

int main(void) {
  test_kept();
  test_basics();
  test_merge();
  test_small_wait();
  test_steady();
  test_churn();
  test_threads();
  test_failures();
  return check_report();
}
