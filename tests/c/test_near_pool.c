/* test_near_pool.c - the pool that a job's collectives take a device's memory from: on several threads at once, while
 * the context's thread counts and flushes it. The device is the host's memory here. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "dist/near.h"

enum { THREADS = 3, TURNS = 2000, HELD = 4 };

/* Which no two threads call at once; and what is taken from the driver. */
static atomic_int calls, blocks;
static atomic_bool crowded, refuses;

static void *take(gb_mover *mover, size_t bytes) {
  (void)mover;
  if (atomic_fetch_add(&calls, 1)) crowded = true;
  void *memory = refuses ? NULL : malloc(bytes);
  if (memory) blocks++;
  calls--;
  return memory;
}

static void give(void *state, void *memory, size_t bytes) {
  (void)state, (void)bytes;
  blocks--;
  free(memory);
}

/* Messages never arrive: nobody waits for one. */
static gb_status post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **message) {
  (void)t, (void)sends, (void)peer, (void)tag, (void)data, (void)bytes;
  *message = &calls;
  return GB_OK;
}
static gb_status test(gb_transport *t, void *message, size_t *bytes, bool *done) {
  (void)t, (void)message, (void)bytes;
  *done = false;
  return GB_OK;
}
static void drop(gb_transport *t, void *message) { (void)t, (void)message; }
static void close_transport(gb_transport *t, bool clean) { (void)t, (void)clean; }

static const gb_device device = { GB_CUDA, 0 };
static gb_mover mover = { .name = "test", .state = &mover, .near = 1, .take = take,
                          .error = "no memory in the driver" };
static gb_backend backend = { .name = "test", .free = give };

/* As a task sees the job. */
typedef struct worker { gb_comm view; gb_near near; char fault[GB_FAULT_BYTES]; unsigned number, seed; bool fine; }
  worker;

static void make_worker(worker *w, gb_comm *job, unsigned number) {
  *w = (worker){ .near = { job->context, device, true, true }, .number = number, .seed = number, .fine = true };
  w->view = (gb_comm){ .context = job->context, .job = job, .size = job->size, .fault = w->fault };
}

/* Blocks of all sizes, a few at once, which nobody else writes to meanwhile. */
static void *work(void *argument) {
  worker *w = argument;
  struct { unsigned char *memory; size_t bytes; } held[HELD] = { 0 };
  for (int turn = 0; turn < TURNS; turn++) {
    int i = turn % HELD;
    unsigned char mark = (unsigned char)(w->number * HELD + (unsigned)i);
    for (size_t k = 0; k < held[i].bytes; k += 1021) w->fine &= held[i].memory[k] == mark;
    gb_comm_free_near(&w->view, &w->near, held[i].memory, held[i].bytes);
    held[i].bytes = (size_t)1000 << rand_r(&w->seed) % 12;
    held[i].memory = gb_near_take(&w->near, &w->view, held[i].bytes);
    if (!held[i].memory) return w->fine = false, NULL;
    memset(held[i].memory, mark, held[i].bytes);
  }
  for (int i = 0; i < HELD; i++) gb_comm_free_near(&w->view, &w->near, held[i].memory, held[i].bytes);
  return NULL;
}

static gb_memory_stats stats_of(gb_context *context) {
  gb_memory_stats stats;
  gb_memory_get_device_stats(context, device, &stats);
  return stats;
}

static void test_threads(gb_context *context, gb_comm *job) {
  pthread_t threads[THREADS];
  worker workers[THREADS];
  for (unsigned i = 0; i < THREADS; i++) {
    make_worker(&workers[i], job, i + 1);
    pthread_create(&threads[i], NULL, work, &workers[i]);
  }
  for (int i = 0; i < 200; i++) {
    gb_memory_stats now = stats_of(context);
    CHECK(now.current_total <= now.reserved && now.current_total == now.current[GB_MEM_SCRATCH]);
    gb_context_flush(context, device);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    CHECK(workers[i].fine);
  }
  CHECK(!crowded && stats_of(context).current_total == 0 && stats_of(context).peak_total > 0);
  gb_context_flush(context, device);
  CHECK(blocks == 0 && stats_of(context).reserved == 0);
}

/* What was taken stays for later calls, up to a bound. */
static void test_bound(gb_context *context, gb_comm *job) {
  worker w;
  make_worker(&w, job, 1);
  size_t large = (size_t)GB_NEAR_IDLE_MOST / 8 * 5;
  void *one = gb_near_take(&w.near, &w.view, large), *two = gb_near_take(&w.near, &w.view, large);
  CHECK(one && two && blocks == 2 && stats_of(context).current_total == 2 * large);
  gb_comm_free_near(&w.view, &w.near, one, large);
  CHECK(blocks == 2);
  CHECK(gb_near_take(&w.near, &w.view, large) == one && blocks == 2);
  gb_comm_free_near(&w.view, &w.near, one, large);
  gb_comm_free_near(&w.view, &w.near, two, large);
  CHECK(blocks == 0 && stats_of(context).reserved == 0);
}

/* Over the limit of the context, and without memory of the device: both are told, and nothing stays counted. */
static void test_refusals(gb_context *context, gb_comm *job) {
  worker w;
  make_worker(&w, job, 1);
  size_t used = atomic_load(&context->budget.used);
  CHECK(!gb_near_take(&w.near, &w.view, (size_t)3 << 30) && strstr(w.fault, "3221225472 bytes of the device are over"));
  CHECK(atomic_load(&context->budget.used) == used);
  refuses = true;
  CHECK(!gb_near_take(&w.near, &w.view, 1 << 20) && strstr(w.fault, "no memory in the driver"));
  CHECK(atomic_load(&context->budget.used) == used && job->broken);
  refuses = false;
}

/* What messages of a broken job may still reach is kept until the job is left. */
static void test_broken(gb_context *context, gb_comm *job) {
  worker w;
  make_worker(&w, job, 1);
  void *memory = gb_near_take(&w.near, &w.view, 1 << 20);
  gb_comm_free_near(&w.view, &w.near, memory, 1 << 20);
  gb_context_flush(context, device);
  CHECK(job->broken && blocks == 1 && stats_of(context).current_total == 1 << 20);
  gb_comm_close(job, false);
  CHECK(blocks == 0 && stats_of(context).reserved == 0 && atomic_load(&context->budget.used) == 0);
}

int main(void) {
  gb_context_options options;
  gb_context *context;
  gb_comm *job;
  gb_context_options_init(&options, sizeof options);
  options.tensor_bytes = (size_t)2 << 30;
  if (gb_context_open(&options, &context) != GB_OK) return 1;
  gb_transport transport = { .name = "test", .size = 2, .mover = &mover, .post = post, .test = test, .drop = drop,
                             .close = close_transport };
  context->backend[GB_CUDA] = &backend;
  CHECK(gb_comm_new(context, &transport, 10, &job) == GB_OK);
  test_threads(context, job);
  test_bound(context, job);
  test_refusals(context, job);
  test_broken(context, job);
  context->backend[GB_CUDA] = NULL;
  gb_context_close(context);
  return check_report();
}
