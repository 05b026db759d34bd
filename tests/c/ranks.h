/* ranks.h - a job within one test: each rank is a thread with a context of its own, over the stand-in transport. */
#ifndef GB_TESTS_RANKS_H
#define GB_TESTS_RANKS_H

#include <pthread.h>

#include "dist/local.h"
#include "dist/room.h"
#include "engine.h"

enum { RANKS_MOST = 8 };

/* What a rank does. It counts its own expectations in `bad`, since CHECK belongs to the main thread. */
typedef struct rank_job {
  gb_context *context;
  gb_comm *comm;
  int rank, size, bad;
  const void *what;
  void (*body)(struct rank_job *job);
  bool clean;
} rank_job;

static inline void *rank_thread(void *argument) {
  rank_job *job = argument;
  job->body(job);
  gb_dist_finalize(job->context, job->clean);
  return NULL;
}

/* Run body on `size` ranks, and return how many expectations failed on all of them. The contexts are the caller's. */
static inline int run_ranks(gb_context *const *contexts, int size, double timeout, void (*body)(rank_job *),
                            const void *what) {
  rank_job jobs[RANKS_MOST];
  pthread_t threads[RANKS_MOST];
  gb_local_world *world = gb_local_open(size);
  int bad = 0;
  for (int r = 0; r < size; r++) {
    gb_transport transport;
    gb_launch launch = { -1, -1, -1, timeout };
    gb_local_transport(world, r, &transport);
    gb_dist_give(contexts[r], &transport);
    bad += gb_dist_init(contexts[r], &launch) != GB_OK;
    jobs[r] = (rank_job){ .context = contexts[r], .comm = gb_dist_comm(contexts[r]), .rank = r, .size = size,
                          .what = what, .body = body, .clean = true };
  }
  for (int r = 0; r < size; r++) bad += pthread_create(&threads[r], NULL, rank_thread, &jobs[r]) != 0;
  for (int r = 0; r < size; r++) pthread_join(threads[r], NULL), bad += jobs[r].bad;
  gb_local_close(world);
  return bad;
}

#endif
