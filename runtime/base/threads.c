/* base/threads.c - worker threads that take chunks from a shared counter.
 *
 * A job is published through one word, the gate: (job number, open, workers inside). A worker enters a job at most
 * once, by adding itself to an open gate, and reads the job only while it is counted there; the caller closes the gate
 * when no chunk is left to take and waits until the last worker has gone. So a worker that wakes late misses the job
 * instead of delaying it, and nothing is overwritten under a reader. Whether a chunk runs here or there changes no
 * result: what a chunk is was decided by the caller.
 *
 * Workers spin before they sleep, for a time that adapts between SPIN_LEAST and SPIN_MOST nanoseconds to what has paid
 * off lately, and not at all where there are more threads than cores. They are created by the first call that has work
 * for them, with signals blocked. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/threads.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SPIN_LEAST 500
#define SPIN_MOST 16000
#define MOST_THREADS 1024

#define GATE_OPEN ((uint64_t)1 << 31)
#define GATE_INSIDE (GATE_OPEN - 1)
#define GATE_JOB(gate) ((gate) >> 32)

struct gb_threads {
  int count;                     /* the caller included */
  int started;                   /* workers that exist */
  bool created;                  /* workers were created, as many as could be */
  bool spins;                    /* a core for each thread */
  pthread_t *workers;            /* count - 1 of them at most */
  atomic_bool running;           /* a job is on: a call now comes from inside a chunk */

  gb_chunk_fn fn;                /* the job, written while the gate is closed and nobody is inside */
  void *arg;
  int64_t chunks;
  _Atomic int64_t next;          /* the first chunk nobody has taken */
  _Atomic uint64_t gate;

  pthread_mutex_t mutex;         /* guards only the sleeping and the waking */
  pthread_cond_t work, done;
  atomic_int sleepers;           /* workers that wait for work */
  atomic_bool waiting;           /* the caller waits for done */
  atomic_bool stop;
};

/* {==== Spinning ==== */

/* Nanoseconds of a clock that only goes forward. */
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Let the other hardware thread of this core run for a moment. */
static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

typedef bool (*spin_test)(gb_threads *pool, uint64_t job);

/* Try the test again and again for up to `time` nanoseconds. */
static bool spin(gb_threads *pool, spin_test test, uint64_t job, int64_t time) {
  int64_t end = pool->spins ? now() + time : 0;
  do {
    for (int i = 0; i < 16; i++) {
      if (test(pool, job)) return true;
      pause_briefly();
    }
  } while (end && now() < end);
  return false;
}

/* ====} */

/* {==== Workers ==== */

/* Take chunks until none is left. */
static void take_chunks(gb_threads *pool) {
  for (;;) {
    int64_t chunk = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (chunk >= pool->chunks) return;
    pool->fn(pool->arg, chunk);
  }
}

/* There is something to do: a job other than the one just done, or the end. */
static bool has_work(gb_threads *pool, uint64_t job) {
  uint64_t gate = atomic_load(&pool->gate);
  return ((gate & GATE_OPEN) && GATE_JOB(gate) != job) || atomic_load(&pool->stop);
}

/* The gate is closed and the last worker has gone. */
static bool is_empty(gb_threads *pool, uint64_t job) {
  (void)job;
  return !(atomic_load(&pool->gate) & (GATE_OPEN | GATE_INSIDE));
}

/* Sleep until there is work. The count of sleepers goes up before the last look, so the caller either is seen or
 * sees. */
static void sleep_for_work(gb_threads *pool, uint64_t job) {
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!has_work(pool, job)) pthread_cond_wait(&pool->work, &pool->mutex);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->mutex);
}

/* Enter the open job, if it is not the one just done; gives its number. */
static bool enter(gb_threads *pool, uint64_t *job) {
  uint64_t gate = atomic_load(&pool->gate);
  do {
    if (!(gate & GATE_OPEN) || GATE_JOB(gate) == *job) return false;
  } while (!atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1));
  *job = GATE_JOB(gate);
  return true;
}

/* Leave the job; the last one out wakes a caller that sleeps. */
static void leave(gb_threads *pool) {
  uint64_t gate = atomic_fetch_sub(&pool->gate, 1) - 1;
  if ((gate & (GATE_OPEN | GATE_INSIDE)) || !atomic_load(&pool->waiting)) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_signal(&pool->done);
  pthread_mutex_unlock(&pool->mutex);
}

/* The life of a worker. */
static void *work(void *arg) {
  gb_threads *pool = arg;
  uint64_t job = 0; /* jobs count from 1 */
  int64_t patience = SPIN_MOST;
  while (!atomic_load(&pool->stop)) {
    if (spin(pool, has_work, job, patience)) patience = patience * 2 < SPIN_MOST ? patience * 2 : SPIN_MOST;
    else {
      patience = patience / 2 > SPIN_LEAST ? patience / 2 : SPIN_LEAST;
      sleep_for_work(pool, job);
    }
    if (!enter(pool, &job)) continue;
    take_chunks(pool);
    leave(pool);
  }
  return NULL;
}

/* Create the workers, once; those that cannot be created are done without. */
static void create_workers(gb_threads *pool) {
  sigset_t all, before;
  sigfillset(&all);
  pool->created = true;
  if (pthread_sigmask(SIG_SETMASK, &all, &before)) return;
  while (pool->started < pool->count - 1 && !pthread_create(&pool->workers[pool->started], NULL, work, pool))
    pool->started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pool->count = pool->started + 1;
}

/* ====} */

/* {==== The pool ==== */

/* How many cores this process may use. */
static int usable_cores(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 && online < MOST_THREADS ? (int)online : 1;
}

int gb_threads_cores(void) {
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 && online < INT_MAX ? (int)online : 1;
}

gb_threads *gb_threads_open(int threads) {
  int cores = usable_cores();
  gb_threads *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  pool->count = threads > 0 ? threads : cores;
  if (pool->count > MOST_THREADS) pool->count = MOST_THREADS;
  pool->spins = pool->count <= cores;
  pool->workers = calloc((size_t)pool->count, sizeof *pool->workers);
  if (!pool->workers) { free(pool); return NULL; }
  if (!pthread_mutex_init(&pool->mutex, NULL)) {
    if (!pthread_cond_init(&pool->work, NULL)) {
      if (!pthread_cond_init(&pool->done, NULL)) return pool;
      pthread_cond_destroy(&pool->work);
    }
    pthread_mutex_destroy(&pool->mutex);
  }
  free(pool->workers);
  free(pool);
  return NULL;
}

void gb_threads_close(gb_threads *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->mutex);
  atomic_store(&pool->stop, true);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->mutex);
  free(pool->workers);
  free(pool);
}

int gb_threads_count(const gb_threads *pool) { return pool->count; }

/* Open the gate for a new job, and wake as many sleepers as have a chunk to take. */
static void publish(gb_threads *pool, int64_t chunks, gb_chunk_fn fn, void *arg) {
  pool->fn = fn;
  pool->arg = arg;
  pool->chunks = chunks;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  uint64_t job = (GATE_JOB(atomic_load(&pool->gate)) + 1) & 0xffffffffu;
  atomic_store(&pool->gate, ((job ? job : 1) << 32) | GATE_OPEN);
  if (!atomic_load(&pool->sleepers)) return;
  pthread_mutex_lock(&pool->mutex);
  int64_t sleepers = atomic_load(&pool->sleepers);
  if (sleepers < chunks) pthread_cond_broadcast(&pool->work);
  else for (int64_t i = 1; i < chunks; i++) pthread_cond_signal(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
}

/* Close the gate and wait for the workers inside. */
static void finish(gb_threads *pool) {
  atomic_fetch_and(&pool->gate, ~GATE_OPEN);
  if (spin(pool, is_empty, 0, SPIN_MOST)) return;
  pthread_mutex_lock(&pool->mutex);
  atomic_store(&pool->waiting, true);
  while (!is_empty(pool, 0)) pthread_cond_wait(&pool->done, &pool->mutex);
  atomic_store(&pool->waiting, false);
  pthread_mutex_unlock(&pool->mutex);
}

void gb_threads_run(gb_threads *pool, int64_t chunks, gb_chunk_fn fn, void *arg) {
  if (chunks <= 1 || pool->count == 1 || atomic_exchange(&pool->running, true)) {
    for (int64_t chunk = 0; chunk < chunks; chunk++) fn(arg, chunk);
    return;
  }
  if (!pool->created) create_workers(pool);
  publish(pool, chunks, fn, arg);
  take_chunks(pool);
  finish(pool);
  atomic_store(&pool->running, false);
}

bool gb_threads_is_alone(const gb_threads *pool) { return pool->count == 1 || atomic_load(&pool->running); }

int gb_threads_current(const gb_threads *pool) {
  pthread_t self = pthread_self();
  for (int i = 0; i < pool->started; i++)
    if (pthread_equal(pool->workers[i], self)) return i + 1;
  return 0;
}

/* ====} */
