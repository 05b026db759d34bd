/* progress.h - exchanges that run beside the recipe: a thread of the job takes them one after another, in the order
 * in which they were begun, which is the same on every rank.
 *
 * Calls of the recipe have a queue of their own, since what shards exchange within a step, and when, may differ from
 * rank to rank beside them. Shards have two, so that one's messages are under way while the other adds up. The
 * thread of a queue begins with its first task. A task works on memory of the host and on nothing of the context's:
 * its comm is a view (gb_comm.fault) that writes failures into the task. Calls that are not tasks wait until all
 * calls that are tasks are done (gb_comm_begin), so that the order of exchanges stays the same everywhere. A task
 * that fails breaks the job, unless every rank fails alike (gb_comm.together). */
#ifndef GB_DIST_PROGRESS_H
#define GB_DIST_PROGRESS_H

#include "dist/comm.h"

/* Set run and operation; the memory stays until the task is done. */
typedef struct gb_task {
  struct gb_task *next;
  gb_status (*run)(struct gb_task *task);
  const char *operation;
  gb_comm view;                       /* of the comm that it was begun on: what run uses */
  gb_queue queue;
  gb_status status;
  atomic_bool done;
  char fault[GB_FAULT_BYTES];
} gb_task;

/* Begin; where there is no thread it runs here and now. */
void gb_progress_begin(gb_comm *comm, gb_queue queue, gb_task *task);
/* Wait until it is done; wait also makes its failure the context's. */
gb_status gb_progress_await(gb_task *task);
gb_status gb_progress_wait(gb_context *context, gb_task *task);
/* Wait until all calls are done. */
void gb_progress_drain(gb_comm *job);
/* No task runs or waits to. */
bool gb_progress_is_idle(gb_comm *job);
/* The threads end when all is done. */
void gb_progress_end(gb_comm *job);

#endif
