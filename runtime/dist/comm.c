/* comm.c - waiting for messages, and what needs no arithmetic: barrier, broadcast, gather. */
#define _GNU_SOURCE /* sched_yield */
#include "dist/comm.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct gb_kept { struct gb_kept *next; void *memory; };

gb_status gb_comm_new(gb_context *context, const gb_transport *transport, double timeout, gb_comm **out) {
  gb_comm *comm = calloc(1, sizeof *comm);
  if (!comm) {
    gb_transport gone = *transport;
    if (gone.close) gone.close(&gone, false);
    return gb_fail_memory(context, sizeof *comm);
  }
  *comm = (gb_comm){ .context = context, .transport = *transport, .rank = transport->rank, .size = transport->size,
                     .local_rank = transport->local_rank < 0 ? transport->rank : transport->local_rank,
                     .timeout = timeout };
  if (comm->size > 1) comm->pulse = gb_pulse_begin(&comm->transport);
  *out = comm;
  return GB_OK;
}

void gb_comm_close(gb_comm *comm, bool clean) {
  if (!comm) return;
  comm->timeout = INFINITY;
  if (clean && !comm->broken && comm->size > 1) (void)gb_comm_barrier(comm);
  clean = clean && !comm->broken;
  gb_pulse_end(comm->pulse);
  if (comm->transport.close) comm->transport.close(&comm->transport, clean);
  if (clean || !comm->transport.lingers) gb_pulse_free(comm->pulse); /* else a late heartbeat may reach it */
  while (comm->kept) {
    struct gb_kept *next = comm->kept->next;
    if (!comm->transport.lingers) gb_counted_free(comm->kept->memory);
    free(comm->kept);
    comm->kept = next;
  }
  free(comm);
}

void gb_comm_free(gb_comm *comm, void *memory) {
  if (!memory) return;
  if (!comm || !comm->broken) { gb_counted_free(memory); return; }
  struct gb_kept *kept = malloc(sizeof *kept);
  if (!kept) return; /* better lost than written to */
  *kept = (struct gb_kept){ comm->kept, memory };
  comm->kept = kept;
}

gb_status gb_comm_begin(gb_comm *comm, const char *operation) {
  if (comm->broken)
    return gb_fail(comm->context, GB_ESTATE, "%s: an earlier exchange between the processes failed; end them, and "
                                             "resume from the last checkpoint", operation);
  comm->operation = operation;
  comm->together = false;
  return GB_OK;
}

gb_status gb_comm_end(gb_comm *comm, gb_status status) {
  comm->operation = NULL;
  if (status != GB_OK && comm->size > 1 && !comm->together) comm->broken = true;
  return status;
}

/* The failure of a transport, with what was asked of it. */
static gb_status failed(gb_comm *comm, gb_status status, const gb_post *post) {
  return gb_fail(comm->context, status, "%s: %s rank %d failed at step %lld on rank %d: %s",
                 comm->operation ? comm->operation : "dist", post->sends ? "sending to" : "receiving from", post->peer,
                 (long long)comm->step, comm->rank, comm->transport.error);
}

gb_status gb_comm_post(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes, gb_post *out) {
  *out = (gb_post){ NULL, peer, sends, bytes };
  gb_pulse_lock(comm->pulse);
  gb_status status = comm->transport.post(&comm->transport, sends, peer, (int)tag, data, bytes, &out->message);
  if (status != GB_OK) {
    comm->broken = true;
    failed(comm, status, out);
  }
  gb_pulse_unlock(comm->pulse);
  return status;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Look at every message once; *left is how many are not done. */
static gb_status look(gb_comm *comm, gb_post *posts, int count, int *left) {
  *left = 0;
  for (int i = 0; i < count; i++) {
    gb_post *post = &posts[i];
    size_t bytes = 0;
    bool done = false;
    if (!post->message) continue;
    gb_status status = comm->transport.test(&comm->transport, post->message, &bytes, &done);
    if (status != GB_OK) return post->message = NULL, failed(comm, status, post);
    if (!done) { ++*left; continue; }
    post->message = NULL;
    if (!post->sends && bytes != post->bytes)
      return gb_fail(comm->context, GB_EIO, "%s: rank %d sent %zu bytes where rank %d expected %zu at step %lld; every "
                                            "rank must make the same calls, with tensors of the same shape and dtype",
                     comm->operation ? comm->operation : "dist", post->peer, bytes, comm->rank, post->bytes,
                     (long long)comm->step);
  }
  return GB_OK;
}

/* Give the processor away: at first for a moment, later for longer. */
static void nap(int turn) {
  if (turn < 200) { sched_yield(); return; }
  nanosleep(&(struct timespec){ 0, turn < 1000 ? 20000 : 200000 }, NULL);
}

/* A rank whose heartbeat has stopped. */
static gb_status check_pulse(gb_comm *comm) {
  double silent = 0;
  gb_pulse_lock(comm->pulse);
  int rank = gb_pulse_lost(comm->pulse, &silent);
  gb_pulse_unlock(comm->pulse);
  if (rank < 0) return GB_OK;
  return gb_fail(comm->context, GB_EIO, "%s: rank %d has given no sign of life for %.1f s: it is gone or stopped (rank "
                                        "%d waits at step %lld); resume from the last checkpoint",
                 comm->operation ? comm->operation : "dist", rank, silent, comm->rank, (long long)comm->step);
}

static gb_status too_long(gb_comm *comm, const gb_post *posts, int count) {
  int i = 0;
  while (i < count - 1 && !posts[i].message) i++;
  return gb_fail(comm->context, GB_EIO, "%s: rank %d waited %g s for rank %d at step %lld; that rank stands still, or "
                                        "makes other calls (gb.dist.init takes a longer timeout)",
                 comm->operation ? comm->operation : "dist", comm->rank, comm->timeout, posts[i].peer,
                 (long long)comm->step);
}

gb_status gb_comm_wait(gb_comm *comm, gb_post *posts, int count) {
  gb_status status = GB_OK;
  int left = 0;
  double until = 0;
  for (int turn = 0;; turn++) {
    gb_pulse_lock(comm->pulse);
    status = look(comm, posts, count, &left);
    gb_pulse_unlock(comm->pulse);
    if (status != GB_OK || left == 0) break;
    nap(turn);
    if (turn % 64) continue;
    if ((status = gb_poll(comm->context)) != GB_OK || (status = check_pulse(comm)) != GB_OK) break;
    double now = seconds();
    if (turn == 0) until = now + comm->timeout;
    else if (now > until) { status = too_long(comm, posts, count); break; }
  }
  if (status != GB_OK) comm->broken = true;
  gb_pulse_lock(comm->pulse);
  for (int i = 0; i < count; i++)
    if (posts[i].message) comm->transport.drop(&comm->transport, posts[i].message), posts[i].message = NULL;
  gb_pulse_unlock(comm->pulse);
  return status;
}

gb_status gb_comm_transfer(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes) {
  gb_post post;
  GB_TRY(gb_comm_post(comm, tag, sends, peer, data, bytes, &post));
  return gb_comm_wait(comm, &post, 1);
}

gb_status gb_comm_swap(gb_comm *comm, gb_tag tag, int to, void *out, size_t out_bytes, int from, void *in,
                       size_t in_bytes) {
  gb_post posts[2];
  GB_TRY(gb_comm_post(comm, tag, false, from, in, in_bytes, &posts[0]));
  gb_status status = gb_comm_post(comm, tag, true, to, out, out_bytes, &posts[1]);
  if (status == GB_OK) return gb_comm_wait(comm, posts, 2);
  gb_pulse_lock(comm->pulse);
  comm->transport.drop(&comm->transport, posts[0].message);
  gb_pulse_unlock(comm->pulse);
  return status;
}

/* In round k every rank tells the one 2^k further on, and hears from the one 2^k behind: then all have heard of all. */
gb_status gb_comm_barrier(gb_comm *comm) {
  for (int step = 1; step < comm->size; step *= 2)
    GB_TRY(gb_comm_swap(comm, GB_TAG_BARRIER, (comm->rank + step) % comm->size, NULL, 0,
                        (comm->rank - step + comm->size) % comm->size, NULL, 0));
  return GB_OK;
}

/* By a binomial tree over the ranks, counted from the source. */
gb_status gb_comm_broadcast(gb_comm *comm, int source, void *data, size_t bytes) {
  int size = comm->size, place = (comm->rank - source + size) % size, step = 1;
  for (; step < size; step *= 2)
    if (place & step) {
      GB_TRY(gb_comm_transfer(comm, GB_TAG_BROADCAST, false, (comm->rank - step + size) % size, data, bytes));
      break;
    }
  for (step /= 2; step > 0; step /= 2)
    if (place + step < size)
      GB_TRY(gb_comm_transfer(comm, GB_TAG_BROADCAST, true, (comm->rank + step) % size, data, bytes));
  return GB_OK;
}

/* Round the ring: each rank hands on what it received last. */
gb_status gb_comm_gather(gb_comm *comm, const void *mine, size_t bytes, void *all) {
  int size = comm->size, to = (comm->rank + 1) % size, from = (comm->rank - 1 + size) % size;
  char *places = all;
  if (bytes) memcpy(places + (size_t)comm->rank * bytes, mine, bytes);
  for (int i = 0; i < size - 1; i++) {
    int out = (comm->rank - i + size) % size, in = (out - 1 + size) % size;
    GB_TRY(gb_comm_swap(comm, GB_TAG_GATHER, to, places + (size_t)out * bytes, bytes, from,
                        places + (size_t)in * bytes, bytes));
  }
  return GB_OK;
}
