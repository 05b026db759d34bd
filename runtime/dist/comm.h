/* comm.h - a job of processes: its ranks, waiting with a limit, and what is built of plain messages.
 *
 * Every rank makes the same calls in the same order. A call that fails leaves messages behind, so the job is broken
 * from then on: each later call says so, and processes end and resume from a checkpoint. Where all ranks have found the
 * same fault together, no message is left, and the job goes on. What is sent or received lies
 * in memory that gb_comm_free ends, which waits until no message can reach it.
 *
 * A gb_comm is a job, a group of some of its ranks (gb_comm_group), or a view of either for the thread of progress.h;
 * all go through the transport of the job. */
#ifndef GB_DIST_COMM_H
#define GB_DIST_COMM_H

#include "dist/pulse.h"
#include "dist/transport.h"
#include "tensor/context.h"

typedef struct gb_progress gb_progress;
typedef enum gb_queue { GB_QUEUE_CALLS, GB_QUEUE_SHARDS, GB_QUEUE_SHARDS_ODD, GB_QUEUES } gb_queue;

/* Whoever holds on to a job or a group is told when the job is left. */
typedef struct gb_comm_friend {
  struct gb_comm_friend *before, *after;
  void (*left)(struct gb_comm_friend *it);
} gb_comm_friend;

/* What a rank has sent and received in a job, heartbeats aside. summed: bytes that it gave to sums of the transport,
 * whose messages nobody counts. copied: of gradients, between where they lie and what is summed. direct: bytes sent
 * from the memory of a GPU, without a way through the host's. staged: of gradients, and of tensors in collectives,
 * between the memory of a GPU and the host's. */
typedef struct gb_traffic {
  int64_t messages_sent, bytes_sent, messages_received, bytes_received, bytes_summed, bytes_copied, bytes_direct,
          bytes_staged;
} gb_traffic;

enum { GB_FAULT_BYTES = 512, GB_CHANNELS = 4000, GB_CALLS = 512 };

typedef struct gb_comm {
  gb_context *context;
  struct gb_comm *job;                /* the job itself, or that of the group or view; NULL: it was left */
  int rank, size, local_rank;
  double timeout;                     /* seconds that one message may take */
  int64_t step;                       /* rounds of shards so far, for error texts */
  const char *operation;              /* the call that runs, for error texts; NULL between */
  bool together;                      /* every rank fails in this call, knowingly: the job stays whole */
  const int *members;                 /* of a group: the ranks in the job; NULL: all */
  int holders;                        /* of a group */
  int channel;                        /* of a group, which keeps its messages apart; 0: the job */
  int call;                           /* what the recipe's call does, and of which dtype: its messages meet none of
                                         another; below GB_CALLS, 0: the library's own */
  char *fault;                        /* of a view: where failures are written, GB_FAULT_BYTES; else NULL */
  /* Of a job. */
  uint64_t serial;                    /* from 1, of no other job of the process: a later one may get the same memory */
  gb_transport transport;             /* a job of one has none: its functions are NULL */
  atomic_bool broken, leaving;        /* leaving: tasks need not be waited for */
  atomic_int idlers;                  /* threads that do nothing but wait for tasks: the recipe's, mostly */
  atomic_int messages;                /* of the recipe that are under way: begun, and not waited for yet */
  bool closing;                       /* all wait for all at the end of the job */
  gb_pulse *pulse;                    /* the heartbeat; NULL in a job of one */
  gb_progress *progress[GB_QUEUES];   /* the threads of tasks; NULL: there were none */
  gb_traffic traffic;                 /* under the lock of the heartbeat, as is: */
  uint32_t turns;                     /* waits of the recipe that were long enough to tell the others */
  int channels;                       /* that were given to groups, and to virtual shards */
  gb_comm_friend friends;             /* the ring of them; of a group: itself as one */
  gb_pool *near_pool;                 /* what collectives work in on the transport's device (near.h); NULL: none */
  struct gb_kept *kept;               /* memory that messages of a broken job may still reach */
} gb_comm;

/* Which call a message belongs to: those of different calls never meet. CLOSE: the end of the job, so that who leaves
 * answers no barrier. */
typedef enum gb_tag { GB_TAG_USER, GB_TAG_BARRIER, GB_TAG_BROADCAST, GB_TAG_REDUCE, GB_TAG_GATHER, GB_TAG_SCATTER,
                      GB_TAG_CLOSE } gb_tag;

/* One message under way. */
typedef struct gb_post { void *message; int peer, number; bool sends; size_t bytes; } gb_post;

/* Take over the transport. On failure it is closed. */
gb_status gb_comm_new(gb_context *context, const gb_transport *transport, double timeout, gb_comm **out);
/* A job of this process alone, which needs no end. */
gb_comm gb_comm_alone(gb_context *context);
/* clean: the recipe came to its end; then all ranks are waited for, as long as they live. */
void gb_comm_close(gb_comm *comm, bool clean);
/* Memory for messages, on any thread; NULL: there is none, text set. */
void *gb_comm_take(gb_comm *comm, size_t bytes);
void gb_comm_free(gb_comm *comm, void *memory); /* counted (gb_counted_alloc), or NULL; comm may be NULL */
/* A message is left to itself: its memory stays as long as it may be reached. */
void gb_comm_drop(gb_comm *comm, gb_post *post, void *memory);
/* The same of memory on a device (near.h), so many bytes. comm NULL: no message reaches it. */
struct gb_near;
void gb_comm_free_near(gb_comm *comm, const struct gb_near *near, void *memory, size_t bytes);
/* Does the transport take the device's memory? */
bool gb_comm_is_near(const gb_comm *comm, gb_device device);
/* Let go of a tensor whose memory was sent or received; reached: a message that was left to itself may still do it. */
void gb_comm_release(gb_comm *comm, gb_tensor *tensor, bool reached);

/* A number that keeps messages apart from all others; every rank asks in the same order. */
gb_status gb_comm_channel(gb_comm *job, int *out);
/* Some ranks of a job, in rising order; all ranks of the job call this, with the same ones. The rank of a process that
 * is none of them is -1. It has one holder, and is freed when the last one lets go; a job is held by nobody. */
gb_status gb_comm_group(gb_comm *job, const int *members, int count, gb_comm **out);
void gb_comm_hold(gb_comm *comm);
void gb_comm_let_go(gb_comm *comm); /* NULL is fine */
void gb_comm_befriend(gb_comm *job, gb_comm_friend *it);
void gb_comm_part(gb_comm_friend *it); /* nothing where it was told, or is nobody's */

/* Around a call: GB_ESTATE where the job is broken; a call that fails breaks it. begin waits for tasks (progress.h),
 * check does not. */
gb_status gb_comm_check(gb_comm *comm, const char *operation);
gb_status gb_comm_begin(gb_comm *comm, const char *operation);
gb_status gb_comm_end(gb_comm *comm, gb_status status);
/* Nothing can reach its messages any more: the job is broken, and what they may reach is kept. */
void gb_comm_break(gb_comm *comm);
/* The failure of a call: the context's, or a task's. */
gb_status gb_comm_fail(gb_comm *comm, gb_status status, const char *format, ...) GB_PRINTF(3, 4);
/* gb_poll, on any thread. */
gb_status gb_comm_poll(gb_comm *comm);

/* Within a call. wait ends when every message is done; a message of another length than announced is an error. look
 * does not wait: *left is how many are not done. */
gb_status gb_comm_post(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes, gb_post *out);
gb_status gb_comm_look(gb_comm *comm, gb_post *posts, int count, int *left);
gb_status gb_comm_wait(gb_comm *comm, gb_post *posts, int count);
/* Wait until the transport's device has done all that was asked of it so far. */
gb_status gb_comm_settle(gb_comm *comm);
/* A call of the transport's mover has failed; where it was closed, since a rank is gone, that is told. */
gb_status gb_comm_fail_near(gb_comm *comm, gb_status status);
gb_status gb_comm_transfer(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes);
/* Send to one rank and receive from another at once. */
gb_status gb_comm_swap(gb_comm *comm, gb_tag tag, int to, void *out, size_t out_bytes, int from, void *in,
                       size_t in_bytes);

/* What went over the wire so far; begun and failed messages count too. */
gb_traffic gb_comm_traffic(gb_comm *job);
void gb_comm_count_copy(gb_comm *job, size_t bytes);
void gb_comm_count_staged(gb_comm *comm, size_t bytes);

/* The sum over all ranks of a job, in place, in the order of the transport; false in *done: it has no sums. */
gb_status gb_comm_free_sum(gb_comm *comm, gb_dtype dtype, void *data, int64_t count, bool *done);

gb_status gb_comm_barrier(gb_comm *comm);
gb_status gb_comm_broadcast(gb_comm *comm, int source, void *data, size_t bytes);
/* all has room for `bytes` of every rank, in order; mine NULL: they are there already. */
gb_status gb_comm_gather(gb_comm *comm, const void *mine, size_t bytes, void *all);

#endif
