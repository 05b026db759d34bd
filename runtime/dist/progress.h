/* progress.h - exchanges that run beside the recipe: a thread of the job takes them one after another, in the order in
 * which they were begun, which is the same on every rank.
 *
 * It begins with the first task. A task works on memory of the host and on nothing of the context's: its comm is a view
 * (gb_comm.fault) that writes failures into the task. Calls that are not tasks wait until all tasks are done
 * (gb_comm_begin), so that the order of exchanges stays the same everywhere. A task that fails breaks the job. */
#ifndef GB_DIST_PROGRESS_H
#define GB_DIST_PROGRESS_H

#include "dist/comm.h"

/* Set run and operation; the memory stays until the task is done. */
typedef struct gb_task {
  struct gb_task *next;
  gb_status (*run)(struct gb_task *task);
  const char *operation;
  gb_comm view;                       /* of the comm that it was begun on: what run uses */
  gb_status status;
  atomic_bool done;
  char fault[GB_FAULT_BYTES];
} gb_task;

/* Begin; where there is no thread it runs here and now. */
void gb_progress_begin(gb_comm *comm, gb_task *task);
/* Wait until it is done. Its failure is the context's then. */
gb_status gb_progress_wait(gb_comm *comm, gb_task *task);
/* Wait until all are done. */
void gb_progress_drain(gb_comm *job);
/* The thread ends; tasks that were not done have failed. */
void gb_progress_end(gb_comm *job);

#endif
