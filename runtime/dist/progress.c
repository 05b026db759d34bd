/* progress.c - the thread that runs tasks. */
#include "dist/progress.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct gb_progress {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t more, less;          /* a task came; a task is done */
  gb_task *first, **last;             /* the first one is the one that runs */
  bool ends;
};

/* Run one task; after a failure no other does. */
static void run(gb_task *task) {
  gb_comm *job = task->view.job;
  task->status = gb_comm_check(&task->view, task->operation);
  if (task->status == GB_OK) task->status = task->run(task);
  if (task->status != GB_OK && !task->view.together) atomic_store(&job->broken, true);
}

/* Call what has finished done, and let the waiting look. */
static void finish(gb_progress *p, gb_task *task) {
  p->first = task->next;
  if (!p->first) p->last = &p->first;
  atomic_store(&task->done, true); /* from here on it is the waiting one's */
  pthread_cond_broadcast(&p->less);
}

static void *work(void *argument) {
  gb_progress *p = argument;
  pthread_mutex_lock(&p->lock);
  while (p->first || !p->ends) {
    gb_task *task = p->first;
    if (!task) { pthread_cond_wait(&p->more, &p->lock); continue; }
    pthread_mutex_unlock(&p->lock);
    run(task);
    pthread_mutex_lock(&p->lock);
    finish(p, task);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* The thread takes no signals: those of the recipe belong to the thread that runs it. */
static bool start(gb_progress *p) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&p->thread, NULL, work, p) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void close_all(gb_progress *p) {
  pthread_mutex_destroy(&p->lock);
  pthread_cond_destroy(&p->more);
  pthread_cond_destroy(&p->less);
  free(p);
}

/* NULL: there is no memory or no thread. Without a heartbeat no lock keeps two threads apart. */
static gb_progress *open_progress(const gb_comm *job) {
  gb_progress *p = job->pulse ? calloc(1, sizeof *p) : NULL;
  if (!p) return NULL;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->more, NULL);
  pthread_cond_init(&p->less, NULL);
  p->last = &p->first;
  if (start(p)) return p;
  close_all(p);
  return NULL;
}

void gb_progress_begin(gb_comm *comm, gb_queue queue, gb_task *task) {
  gb_comm *job = comm->job;
  task->next = NULL;
  task->queue = queue;
  task->view = (gb_comm){ .context = comm->context, .job = job, .rank = comm->rank, .size = comm->size,
                          .timeout = comm->timeout, .step = job->step, .operation = task->operation,
                          .members = comm->members, .channel = comm->channel, .call = comm->call,
                          .fault = task->fault };
  task->fault[0] = 0;
  atomic_store(&task->done, false);
  if (!job->progress[queue]) job->progress[queue] = open_progress(job);
  gb_progress *p = job->progress[queue];
  if (!p) {
    run(task);
    atomic_store(&task->done, true);
    return;
  }
  pthread_mutex_lock(&p->lock);
  *p->last = task;
  p->last = &task->next;
  pthread_cond_signal(&p->more);
  pthread_mutex_unlock(&p->lock);
}

gb_status gb_progress_await(gb_task *task) {
  gb_comm *job = atomic_load(&task->done) ? NULL : task->view.job; /* a task that is done may outlive its job */
  gb_progress *p = job ? job->progress[task->queue] : NULL;
  if (p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&job->idlers, 1);
    while (!atomic_load(&task->done)) pthread_cond_wait(&p->less, &p->lock);
    atomic_fetch_sub(&job->idlers, 1);
    pthread_mutex_unlock(&p->lock);
  }
  return task->status;
}

gb_status gb_progress_wait(gb_context *context, gb_task *task) {
  gb_status status = gb_progress_await(task);
  return status == GB_OK ? GB_OK : gb_fail(context, status, "%s", task->fault);
}

void gb_progress_drain(gb_comm *job) {
  gb_progress *p = job->progress[GB_QUEUE_CALLS];
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  atomic_fetch_add(&job->idlers, 1);
  while (p->first) pthread_cond_wait(&p->less, &p->lock);
  atomic_fetch_sub(&job->idlers, 1);
  pthread_mutex_unlock(&p->lock);
}

bool gb_progress_is_idle(gb_comm *job) {
  bool idle = true;
  for (int i = 0; i < GB_QUEUES; i++) {
    gb_progress *p = job->progress[i];
    if (!p) continue;
    pthread_mutex_lock(&p->lock);
    idle = idle && !p->first;
    pthread_mutex_unlock(&p->lock);
  }
  return idle;
}

static void end_queue(gb_progress *p) {
  pthread_mutex_lock(&p->lock);
  p->ends = true;
  pthread_cond_signal(&p->more);
  pthread_mutex_unlock(&p->lock);
  pthread_join(p->thread, NULL);
  close_all(p);
}

void gb_progress_end(gb_comm *job) {
  for (int i = 0; i < GB_QUEUES; i++) {
    if (job->progress[i]) end_queue(job->progress[i]);
    job->progress[i] = NULL;
  }
}
