/* test_threads.c - every chunk runs once, whatever the number of threads; calls nest; pools come and go. Meant for the
 * thread sanitizer too. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/threads.h"
#include "check.h"

#define CHUNKS 1000

typedef struct job {
  gb_threads *pool;
  int ran[CHUNKS];                 /* not atomic: each chunk is written by one thread */
  int by[CHUNKS];
  atomic_int nested, signals_open;
} job;

static void mark(void *arg, int64_t chunk) {
  job *j = arg;
  j->ran[chunk]++;
  j->by[chunk] = gb_threads_current(j->pool);
}

static void add_one(void *arg, int64_t chunk) {
  (void)chunk;
  atomic_fetch_add((atomic_int *)arg, 1);
}

/* A call from inside a chunk runs on this thread alone. */
static void nest(void *arg, int64_t chunk) {
  job *j = arg;
  mark(arg, chunk);
  if (!gb_threads_is_alone(j->pool)) j->ran[chunk]++; /* one too many */
  gb_threads_run(j->pool, 10, add_one, &j->nested);
}

static void look_at_signals(void *arg, int64_t chunk) {
  job *j = arg;
  sigset_t set;
  (void)chunk;
  sigemptyset(&set);
  pthread_sigmask(SIG_BLOCK, NULL, &set);
  if (gb_threads_current(j->pool) && !sigismember(&set, SIGINT)) atomic_fetch_add(&j->signals_open, 1);
}

/* All chunks ran once, on threads that exist. */
static int all_once(const job *j, int chunks) {
  int good = 0;
  for (int i = 0; i < chunks; i++) good += j->ran[i] == 1 && j->by[i] >= 0 && j->by[i] < gb_threads_count(j->pool);
  return good == chunks;
}

static void test_count(int threads) {
  gb_threads *pool = gb_threads_open(threads);
  CHECK(pool != NULL && gb_threads_count(pool) >= 1 && (threads == 0 || gb_threads_count(pool) == threads));
  int good = 0, rounds = 300;
  job *j = calloc(1, sizeof *j);
  for (int round = 0; round < rounds; round++) {
    int chunks = round % 7 == 0 ? CHUNKS : round % 17;
    *j = (job){ .pool = pool };
    gb_threads_run(pool, chunks, mark, j);
    good += all_once(j, chunks);
    if (round % 100 == 50) nanosleep(&(struct timespec){ 0, 2000000 }, NULL); /* let the workers fall asleep */
  }
  CHECK(good == rounds);
  *j = (job){ .pool = pool };
  gb_threads_run(pool, 100, nest, j);
  CHECK(all_once(j, 100) && j->nested == 1000);
  gb_threads_run(pool, 100, look_at_signals, j);
  CHECK(j->signals_open == 0);
  CHECK(gb_threads_current(pool) == 0 && gb_threads_is_alone(pool) == (gb_threads_count(pool) == 1));
  free(j);
  gb_threads_close(pool);
}

/* Pools that never ran, ran nothing, or ran once, close. */
static void test_lives(void) {
  for (int i = 0; i < 50; i++) {
    atomic_int sum = 0;
    gb_threads *pool = gb_threads_open(4);
    if (i % 3) gb_threads_run(pool, i % 5, add_one, &sum);
    CHECK(sum == (i % 3 ? i % 5 : 0));
    gb_threads_close(pool);
  }
  gb_threads_close(NULL);
}

int main(void) {
  const int counts[] = { 0, 1, 2, 3, 8, 17 };
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) test_count(counts[i]);
  test_lives();
  return check_report();
}
