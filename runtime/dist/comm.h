/* comm.h - a job of processes: its ranks, waiting with a limit, and what is built of plain messages.
 *
 * Every rank makes the same calls in the same order. A call that fails leaves messages behind, so the job is broken
 * from then on: each later call says so, and processes end and resume from a checkpoint. Where all ranks have found the
 * same fault together, no message is left, and the job goes on. What is sent or received lies
 * in memory that gb_comm_free ends, which waits until no message can reach it. */
#ifndef GB_DIST_COMM_H
#define GB_DIST_COMM_H

#include "dist/pulse.h"
#include "dist/transport.h"
#include "tensor/context.h"

typedef struct gb_comm {
  gb_context *context;
  gb_transport transport;             /* a job of one has none: its functions are NULL */
  int rank, size, local_rank;
  double timeout;                     /* seconds that one message may take */
  int64_t step;                       /* rounds of shards so far, for error texts */
  const char *operation;              /* the call that runs, for error texts; NULL between */
  bool broken;
  bool together;                      /* every rank fails in this call, knowingly: the job stays whole */
  gb_pulse *pulse;                    /* the heartbeat; NULL in a job of one */
  struct gb_kept *kept;               /* memory that messages of a broken job may still reach */
} gb_comm;

/* Which call a message belongs to: those of different calls never meet. */
typedef enum gb_tag { GB_TAG_USER, GB_TAG_BARRIER, GB_TAG_BROADCAST, GB_TAG_REDUCE, GB_TAG_GATHER, GB_TAG_SCATTER }
  gb_tag;

/* One message under way. */
typedef struct gb_post { void *message; int peer; bool sends; size_t bytes; } gb_post;

/* Take over the transport. On failure it is closed. */
gb_status gb_comm_new(gb_context *context, const gb_transport *transport, double timeout, gb_comm **out);
/* clean: the recipe came to its end; then all ranks are waited for, as long as they live. */
void gb_comm_close(gb_comm *comm, bool clean);
void gb_comm_free(gb_comm *comm, void *memory); /* counted (gb_counted_alloc), or NULL; comm may be NULL */

/* Around a call: GB_ESTATE where the job is broken; a call that fails breaks it. */
gb_status gb_comm_begin(gb_comm *comm, const char *operation);
gb_status gb_comm_end(gb_comm *comm, gb_status status);

/* Within a call. wait ends when every message is done; a message of another length than announced is an error. */
gb_status gb_comm_post(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes, gb_post *out);
gb_status gb_comm_wait(gb_comm *comm, gb_post *posts, int count);
gb_status gb_comm_transfer(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes);
/* Send to one rank and receive from another at once. */
gb_status gb_comm_swap(gb_comm *comm, gb_tag tag, int to, void *out, size_t out_bytes, int from, void *in,
                       size_t in_bytes);

gb_status gb_comm_barrier(gb_comm *comm);
gb_status gb_comm_broadcast(gb_comm *comm, int source, void *data, size_t bytes);
/* all has room for `bytes` of every rank, in order. */
gb_status gb_comm_gather(gb_comm *comm, const void *mine, size_t bytes, void *all);

#endif
