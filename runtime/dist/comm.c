/* comm.c - waiting for messages, and what needs no arithmetic: barrier, broadcast, gather. */
#define _GNU_SOURCE /* sched_yield */
#include "dist/comm.h"

#include "dist/near.h"
#include "dist/progress.h"
#include "tensor/counted.h"
#include "tensor/tensor.h"

#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* memory: the host's, or so many bytes on a device, at near. */
struct gb_kept {
  struct gb_kept *next;
  void *memory;
  gb_tensor *tensor;
  gb_near near;
  size_t bytes;
};

/* No message can reach it any more. */
static void let_go_of(gb_comm *job, const struct gb_kept *kept) {
  if (kept->bytes) gb_near_give(&kept->near, job, kept->memory, kept->bytes);
  else gb_counted_free(kept->memory);
  gb_tensor_release(kept->tensor);
}


/* {==== The job and its groups ==== */

gb_status gb_comm_new(gb_context *context, const gb_transport *transport, double timeout, gb_comm **out) {
  static atomic_uint_fast64_t jobs;
  gb_comm *comm = calloc(1, sizeof *comm);
  if (!comm) {
    gb_transport gone = *transport;
    if (gone.close) gone.close(&gone, false);
    return gb_fail_memory(context, sizeof *comm);
  }
  *comm = (gb_comm){ .context = context, .job = comm, .transport = *transport, .rank = transport->rank,
                     .size = transport->size, .timeout = timeout,
                     .local_rank = transport->local_rank < 0 ? transport->rank : transport->local_rank,
                     .serial = atomic_fetch_add(&jobs, 1) + 1 };
  comm->friends.before = comm->friends.after = &comm->friends;
  if (gb_near_open(comm) != GB_OK) {
    if (comm->transport.close) comm->transport.close(&comm->transport, false);
    free(comm);
    return GB_EMEMORY;
  }
  if (comm->size > 1) comm->pulse = gb_pulse_begin(&comm->transport);
  *out = comm;
  return GB_OK;
}

gb_comm gb_comm_alone(gb_context *context) { return (gb_comm){ .context = context, .size = 1, .timeout = 1 }; }

/* The friends hear that the job is left. */
static void tell_friends(gb_comm *comm) {
  gb_comm_friend *ring = &comm->friends;
  while (ring->after != ring) {
    gb_comm_friend *it = ring->after;
    gb_comm_part(it);
    it->left(it);
  }
}

/* In round k every rank tells the one 2^k further on, and hears from the one 2^k behind: then all have heard of all. */
static gb_status meet(gb_comm *comm, gb_tag tag) {
  for (int step = 1; step < comm->size; step *= 2)
    GB_TRY(gb_comm_swap(comm, tag, (comm->rank + step) % comm->size, NULL, 0,
                        (comm->rank - step + comm->size) % comm->size, NULL, 0));
  return GB_OK;
}

void gb_comm_close(gb_comm *comm, bool clean) {
  if (!comm) return;
  comm->timeout = INFINITY;
  if (!clean) atomic_store(&comm->leaving, true);
  gb_progress_end(comm);
  clean = clean && !comm->broken;
  if (clean && comm->size > 1) {
    gb_pulse_lock(comm->pulse);
    gb_pulse_say_farewell(comm->pulse);
    gb_pulse_unlock(comm->pulse);
    comm->closing = true;
    (void)meet(comm, GB_TAG_CLOSE);
  }
  clean = clean && !comm->broken;
  tell_friends(comm);
  gb_pulse_end(comm->pulse);
  if (comm->transport.close) comm->transport.close(&comm->transport, clean);
  if (clean || !comm->transport.lingers) gb_pulse_free(comm->pulse); /* else a late heartbeat may reach it */
  while (comm->kept) {
    struct gb_kept *next = comm->kept->next;
    if (!comm->transport.lingers) let_go_of(comm, comm->kept);
    free(comm->kept);
    comm->kept = next;
  }
  gb_near_close(comm);
  free(comm);
}

/* Every rank of the job has named the same ranks? */
static gb_status compare_members(gb_comm *job, const int *members, int count) {
  size_t bytes = (size_t)(job->size + 1) * sizeof(int);
  int *all = gb_comm_take(job, (size_t)(job->size + 1) * bytes);
  if (!all) return GB_EMEMORY;
  int *mine = all + (size_t)job->size * (size_t)(job->size + 1);
  memset(mine, 0, bytes);
  mine[0] = count;
  memcpy(mine + 1, members, (size_t)count * sizeof *members);
  gb_status status = gb_comm_gather(job, mine, bytes, all);
  for (int r = 1; r < job->size && status == GB_OK; r++)
    if ((job->together = memcmp(all, all + (size_t)r * (size_t)(job->size + 1), bytes) != 0))
      status = gb_comm_fail(job, GB_ESTATE, "dist.new_group: rank %d names other ranks than rank 0; every process of "
                                            "the job makes every group, in the same order", r);
  gb_comm_free(job, all);
  return status;
}

static gb_comm *group_of(gb_comm_friend *it) {
  return (gb_comm *)((char *)it - offsetof(gb_comm, friends));
}

static void forget_job(gb_comm_friend *it) { group_of(it)->job = NULL; }

gb_status gb_comm_channel(gb_comm *job, int *out) {
  if (job->channels == GB_CHANNELS)
    return gb_fail(job->context, GB_EUNSUPPORTED, "dist: a job has room for %d groups, and a DataParallel model "
                                                  "takes that of two; make them once, not at every step", GB_CHANNELS);
  *out = ++job->channels;
  return GB_OK;
}

gb_status gb_comm_group(gb_comm *job, const int *members, int count, gb_comm **out) {
  int channel = 0;
  GB_TRY(gb_comm_begin(job, "dist.new_group"));
  GB_TRY(gb_comm_end(job, job->size > 1 ? compare_members(job, members, count) : GB_OK));
  GB_TRY(gb_comm_channel(job, &channel));
  gb_comm *comm = gb_counted_alloc(job->context, sizeof *comm + (size_t)count * sizeof *members);
  if (!comm) return GB_EMEMORY;
  *comm = (gb_comm){ .context = job->context, .job = job, .rank = -1, .size = count, .timeout = job->timeout,
                     .members = memcpy(comm + 1, members, (size_t)count * sizeof *members), .holders = 1,
                     .channel = channel };
  for (int i = 0; i < count; i++)
    if (members[i] == job->rank) comm->rank = i;
  gb_context_retain(comm->context);
  comm->friends.left = forget_job;
  gb_comm_befriend(job, &comm->friends);
  *out = comm;
  return GB_OK;
}

void gb_comm_hold(gb_comm *comm) { comm->holders++; }

void gb_comm_let_go(gb_comm *comm) {
  if (!comm || !comm->channel || --comm->holders) return;
  gb_context *context = comm->context;
  gb_comm_part(&comm->friends);
  gb_counted_free(comm);
  gb_context_release(context);
}

void gb_comm_befriend(gb_comm *job, gb_comm_friend *it) {
  gb_comm_friend *ring = &job->friends;
  it->before = ring;
  it->after = ring->after;
  it->after->before = ring->after = it;
}

void gb_comm_part(gb_comm_friend *it) {
  if (!it->before) return;
  it->before->after = it->after;
  it->after->before = it->before;
  it->before = it->after = NULL;
}

/* ====} */

/* {==== Memory ==== */

void *gb_comm_take(gb_comm *comm, size_t bytes) {
  if (!comm->fault) return gb_counted_resize(comm->context, NULL, bytes);
  void *memory = gb_counted_try(comm->context, bytes);
  if (!memory) gb_comm_fail(comm, GB_EMEMORY, "out of memory: %zu bytes were asked for", bytes);
  return memory;
}

/* The memory stays until the job is left. */
static void keep(gb_comm *job, const struct gb_kept *what) {
  struct gb_kept *kept = malloc(sizeof *kept);
  if (!kept) return; /* better lost than written to */
  gb_pulse_lock(job->pulse);
  *kept = *what;
  kept->next = job->kept;
  job->kept = kept;
  gb_pulse_unlock(job->pulse);
}

void gb_comm_free(gb_comm *comm, void *memory) {
  if (!memory) return;
  if (!comm || !comm->job || !comm->job->broken) gb_counted_free(memory);
  else keep(comm->job, &(struct gb_kept){ .memory = memory });
}

void gb_comm_free_near(gb_comm *comm, const gb_near *near, void *memory, size_t bytes) {
  gb_comm *job = comm ? comm->job : NULL;
  if (!memory) return;
  if (!job || !job->broken) gb_near_give(near, job, memory, bytes);
  else keep(job, &(struct gb_kept){ .memory = memory, .near = *near, .bytes = bytes });
}

bool gb_comm_is_near(const gb_comm *comm, gb_device device) {
  const gb_mover *mover = comm->job && comm->size > 1 ? comm->job->transport.mover : NULL;
  return mover && device.type == GB_CUDA && mover->near == device.index + 1;
}

void gb_comm_release(gb_comm *comm, gb_tensor *tensor, bool reached) {
  if (!tensor || !comm || !comm->job || !(comm->job->broken || reached)) gb_tensor_release(tensor);
  else keep(comm->job, &(struct gb_kept){ .tensor = tensor });
}

void gb_comm_drop(gb_comm *comm, gb_post *post, void *memory) {
  gb_comm *job = comm->job;
  gb_pulse_lock(job->pulse);
  if (post->message) job->transport.drop(&job->transport, post->message);
  gb_pulse_unlock(job->pulse);
  if (post->message) keep(job, &(struct gb_kept){ .memory = memory });
  else gb_comm_free(comm, memory);
  post->message = NULL;
}

/* ====} */

/* {==== Around a call ==== */

gb_status gb_comm_fail(gb_comm *comm, gb_status status, const char *format, ...) {
  char text[GB_FAULT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (!comm->fault) return gb_fail(comm->context, status, "%s", text);
  memcpy(comm->fault, text, sizeof text);
  return status;
}

gb_status gb_comm_poll(gb_comm *comm) {
  return gb_is_stopping(comm->context) ? gb_comm_fail(comm, GB_EINTERRUPT, "interrupted") : GB_OK;
}

gb_status gb_comm_check(gb_comm *comm, const char *operation) {
  if (comm->job && comm->job->broken)
    return gb_comm_fail(comm, GB_ESTATE, "%s: an earlier exchange between the processes failed; end them, and "
                                         "resume from the last checkpoint", operation);
  return GB_OK;
}

gb_status gb_comm_begin(gb_comm *comm, const char *operation) {
  if (comm->job) gb_progress_drain(comm->job);
  GB_TRY(gb_comm_check(comm, operation));
  comm->operation = operation;
  comm->together = false;
  return GB_OK;
}

void gb_comm_break(gb_comm *comm) {
  if (comm->job) atomic_store(&comm->job->broken, true);
}

gb_status gb_comm_end(gb_comm *comm, gb_status status) {
  comm->operation = NULL;
  comm->call = 0;
  if (status != GB_OK && comm->size > 1 && !comm->together) gb_comm_break(comm);
  return status;
}

static const char *operation_of(const gb_comm *comm) { return comm->operation ? comm->operation : "dist"; }

/* ====} */

/* {==== Messages ==== */

/* The rank in the job, as error texts name it. */
static int in_job(const gb_comm *comm, int rank) { return comm->members ? comm->members[rank] : rank; }

/* A view has that of when it was made. */
static int64_t step_of(const gb_comm *comm) { return comm->fault ? comm->step : comm->job->step; }

/* The failure of a transport, with what was asked of it. */
static gb_status failed(gb_comm *comm, gb_status status, const gb_post *post) {
  return gb_comm_fail(comm, status, "%s: %s rank %d failed at step %lld on rank %d: %s", operation_of(comm),
                      post->sends ? "sending to" : "receiving from", in_job(comm, post->peer), (long long)step_of(comm),
                      comm->job->rank, comm->job->transport.error);
}

/* Under the lock. */
static void count_message(gb_comm *job, bool sends, size_t bytes) {
  gb_traffic *t = &job->traffic;
  *(sends ? &t->messages_sent : &t->messages_received) += 1;
  *(sends ? &t->bytes_sent : &t->bytes_received) += (int64_t)bytes;
}

gb_traffic gb_comm_traffic(gb_comm *job) {
  gb_pulse_lock(job->pulse);
  gb_traffic now = job->traffic;
  now.bytes_direct = job->transport.mover ? job->transport.mover->near_sent : 0;
  gb_pulse_unlock(job->pulse);
  return now;
}

void gb_comm_count_copy(gb_comm *job, size_t bytes) {
  gb_pulse_lock(job->pulse);
  job->traffic.bytes_copied += (int64_t)bytes;
  gb_pulse_unlock(job->pulse);
}

void gb_comm_count_staged(gb_comm *comm, size_t bytes) {
  if (!comm->job || comm->size == 1) return;
  gb_pulse_lock(comm->job->pulse);
  comm->job->traffic.bytes_staged += (int64_t)bytes;
  gb_pulse_unlock(comm->job->pulse);
}

/* What keeps messages apart: the kind of message, the channel and the recipe's call, as far as the transport has tags
 * for that. MPI promises 32767. */
static int number_of(const gb_comm *comm, gb_tag tag) {
  const int each = GB_PULSE_TAGS * (GB_CHANNELS + 1), most = comm->job->transport.tag_most;
  int calls = most ? (int)(((int64_t)most + 1) / each) : GB_CALLS;
  return (calls > 1 ? comm->call % calls : 0) * each + comm->channel * GB_PULSE_TAGS + (int)tag;
}

gb_status gb_comm_post(gb_comm *comm, gb_tag tag, bool sends, int peer, void *data, size_t bytes, gb_post *out) {
  gb_comm *job = comm->job;
  *out = (gb_post){ NULL, peer, number_of(comm, tag), sends, bytes };
  gb_pulse_lock(job->pulse);
  count_message(job, sends, bytes);
  gb_status status = job->transport.post(&job->transport, sends, in_job(comm, peer), out->number, data, bytes,
                                         &out->message);
  if (status != GB_OK) {
    gb_comm_break(comm);
    failed(comm, status, out);
  }
  gb_pulse_unlock(job->pulse);
  return status;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Look at every message once; *left is how many are not done. */
static gb_status look(gb_comm *comm, gb_post *posts, int count, int *left) {
  gb_transport *transport = &comm->job->transport;
  *left = 0;
  for (int i = 0; i < count; i++) {
    gb_post *post = &posts[i];
    size_t bytes = 0;
    bool done = false;
    if (!post->message) continue;
    gb_status status = transport->test(transport, post->message, &bytes, &done);
    if (status != GB_OK) return post->message = NULL, failed(comm, status, post);
    if (!done) { ++*left; continue; }
    post->message = NULL;
    if (!post->sends && bytes != post->bytes)
      return gb_comm_fail(comm, GB_EIO, "%s: rank %d sent %zu bytes where rank %d expected %zu at step %lld; every "
                                        "rank must make the same calls, with tensors of the same shape and dtype",
                          operation_of(comm), in_job(comm, post->peer), bytes, comm->job->rank, post->bytes,
                          (long long)step_of(comm));
  }
  return GB_OK;
}

gb_status gb_comm_look(gb_comm *comm, gb_post *posts, int count, int *left) {
  gb_pulse_lock(comm->job->pulse);
  gb_status status = look(comm, posts, count, left);
  gb_pulse_unlock(comm->job->pulse);
  if (status != GB_OK) gb_comm_break(comm);
  return status;
}

/* Give the processor away: at first for a moment, later for longer. Beside a recipe that computes a task sleeps: who
 * yields to a thread that computes gets the core back after that one's whole slice, milliseconds later, but who sleeps
 * gets it on waking up, so that a message goes on while backward does. */
static void nap(gb_comm *comm, int turn) {
  bool beside = comm->fault && atomic_load(&comm->job->idlers) == 0;
  if (turn < 200 && !beside) { sched_yield(); return; }
  nanosleep(&(struct timespec){ 0, turn < 1000 ? 20000 : 200000 }, NULL);
}

/* A rank whose heartbeat has stopped, or a job that is being left. */
static gb_status check_pulse(gb_comm *comm) {
  gb_comm *job = comm->job;
  double silent = 0;
  if (job->leaving)
    return gb_comm_fail(comm, GB_ESTATE, "%s: the job was left before the exchange was done", operation_of(comm));
  gb_pulse_lock(job->pulse);
  int rank = gb_pulse_lost(job->pulse, &silent);
  gb_pulse_unlock(job->pulse);
  if (rank < 0) return GB_OK;
  return gb_comm_fail(comm, GB_EIO, "%s: rank %d has given no sign of life for %.1f s: it is gone or stopped (rank "
                                    "%d waits at step %lld); resume from the last checkpoint",
                      operation_of(comm), rank, silent, job->rank, (long long)step_of(comm));
}

/* The first rank of whom something is waited for, and who has said farewell; -1: none. */
static int find_leaver(gb_comm *comm, const gb_post *posts, int count) {
  gb_comm *job = comm->job;
  int found = -1;
  if (job->closing) return -1;
  gb_pulse_lock(job->pulse);
  for (int i = 0; i < count && found < 0; i++)
    if (posts[i].message && gb_pulse_has_left(job->pulse, in_job(comm, posts[i].peer))) found = i;
  gb_pulse_unlock(job->pulse);
  return found < 0 ? -1 : in_job(comm, posts[found].peer);
}

/* What it sent before it left may still be on its way: for a second. *since: when it was first found to have left; 0:
 * not yet. */
static gb_status check_leavers(gb_comm *comm, const gb_post *posts, int count, double now, double *since) {
  int rank = find_leaver(comm, posts, count);
  if (rank < 0) return GB_OK;
  if (*since == 0) *since = now;
  if (now - *since < 1) return GB_OK;
  return gb_comm_fail(comm, GB_EIO, "%s: rank %d has left the job, by the end of its recipe or gb.dist.finalize() "
                                    "(rank %d waits at step %lld); every rank must make the same calls, also after an "
                                    "error that one of them caught", operation_of(comm), rank, comm->job->rank,
                      (long long)step_of(comm));
}

#define TELL_SECONDS 1.0       /* that a wait takes until the others are told */
#define CROSSED_SECONDS 5.0    /* that both ranks stand there: what one has sent may be on its way to the other */

/* What a wait of the recipe knows. turn: its own, 0 until the others are told; other: that of the rank that waits for
 * this one in another call, since when. */
typedef struct stay { double since, crossed; uint32_t turn, other; } stay;

/* The others are told where this rank waits. */
static gb_pulse_wait tell_wait(gb_comm *comm, const gb_post *post, stay *s) {
  gb_comm *job = comm->job;
  gb_pulse_wait mine = { in_job(comm, post->peer) + 1, post->number, 0, "" };
  snprintf(mine.operation, sizeof mine.operation, "%s", operation_of(comm));
  gb_pulse_lock(job->pulse);
  if (!s->turn) s->turn = ++job->turns;
  mine.turn = s->turn;
  gb_pulse_say_waiting(job->pulse, &mine);
  gb_pulse_wait other = gb_pulse_where(job->pulse, in_job(comm, post->peer));
  gb_pulse_unlock(job->pulse);
  return other;
}

/* The recipe waits no longer. */
static void end_stay(gb_comm *comm, const stay *s) {
  if (!s->turn) return;
  gb_pulse_lock(comm->job->pulse);
  gb_pulse_say_waiting(comm->job->pulse, &(gb_pulse_wait){ 0 });
  gb_pulse_unlock(comm->job->pulse);
}

/* Is a message of this number awaited, too? */
static bool awaits(const gb_post *posts, int count, int peer, int number) {
  for (int i = 0; i < count; i++)
    if (posts[i].message && posts[i].peer == peer && posts[i].number == number) return true;
  return false;
}

/* Two ranks that wait for each other in different calls would do so until the timeout. A rank that has tasks, or
 * messages under way that the recipe will wait for later, may still serve the other by them, however slow the network,
 * so it says nothing of its wait; and what a task waits for is the recipe's wait only where that waits for tasks. */
static gb_status check_crossed(gb_comm *comm, const gb_post *posts, int count, double now, stay *s) {
  gb_comm *job = comm->job;
  int i = 0;
  while (i < count - 1 && !posts[i].message) i++;
  bool serves = comm->fault ? atomic_load(&job->idlers) == 0 : !gb_progress_is_idle(job);
  if (serves || atomic_load(&job->messages)) return s->since = 0, GB_OK;
  if (s->since == 0) s->since = now;
  if (now - s->since < TELL_SECONDS || !posts[i].message) return GB_OK;
  gb_pulse_wait other = tell_wait(comm, &posts[i], s);
  bool crossed = !comm->fault && other.peer == job->rank + 1 && !awaits(posts, count, posts[i].peer, other.number);
  if (!crossed || other.turn != s->other) return s->other = crossed ? other.turn : 0, s->crossed = now, GB_OK;
  if (now - s->crossed < CROSSED_SECONDS) return GB_OK;
  other.operation[sizeof other.operation - 1] = 0;
  return gb_comm_fail(comm, GB_EIO, "%s: rank %d waits for rank %d at step %lld, which waits for it in another call, "
                                    "%s; every rank must make the same calls, with tensors of the same dtype",
                      operation_of(comm), job->rank, in_job(comm, posts[i].peer), (long long)step_of(comm),
                      other.operation);
}

static gb_status too_long(gb_comm *comm, const gb_post *posts, int count) {
  int i = 0;
  while (i < count - 1 && !posts[i].message) i++;
  return gb_comm_fail(comm, GB_EIO, "%s: rank %d waited %g s for rank %d at step %lld; that rank stands still, or "
                                    "makes other calls (gb.dist.init takes a longer timeout)",
                      operation_of(comm), comm->job->rank, comm->timeout, in_job(comm, posts[i].peer),
                      (long long)step_of(comm));
}

gb_status gb_comm_wait(gb_comm *comm, gb_post *posts, int count) {
  gb_comm *job = comm->job;
  gb_status status = GB_OK;
  int left = 0;
  double until = 0, left_since = 0;
  stay here = { 0 };
  for (int turn = 0;; turn++) {
    gb_pulse_lock(job->pulse);
    status = look(comm, posts, count, &left);
    gb_pulse_unlock(job->pulse);
    if (status != GB_OK || left == 0) break;
    nap(comm, turn);
    if (turn % 64) continue;
    if ((status = gb_comm_poll(comm)) != GB_OK || (status = check_pulse(comm)) != GB_OK) break;
    double now = seconds();
    if ((status = check_leavers(comm, posts, count, now, &left_since)) != GB_OK) break;
    if ((status = check_crossed(comm, posts, count, now, &here)) != GB_OK) break;
    if (turn == 0) until = now + comm->timeout;
    else if (now > until) { status = too_long(comm, posts, count); break; }
  }
  if (status != GB_OK) gb_comm_break(comm);
  end_stay(comm, &here);
  gb_pulse_lock(job->pulse);
  for (int i = 0; i < count; i++)
    if (posts[i].message) job->transport.drop(&job->transport, posts[i].message), posts[i].message = NULL;
  gb_pulse_unlock(job->pulse);
  return status;
}

gb_status gb_comm_fail_near(gb_comm *comm, gb_status status) {
  gb_comm *job = comm->job;
  gb_mover *mover = job->transport.mover;
  char error[sizeof mover->error];
  gb_post post;
  gb_pulse_lock(job->pulse);
  bool closed = !mover->state;
  memcpy(error, mover->error, sizeof error);
  gb_pulse_unlock(job->pulse);
  if (closed) { /* a message finds the reason */
    status = gb_comm_post(comm, GB_TAG_USER, false, (comm->rank + 1) % comm->size, NULL, 0, &post);
    if (status == GB_OK) status = gb_comm_wait(comm, &post, 1);
    if (status != GB_OK) return status;
    status = GB_EIO;
  }
  gb_comm_break(comm);
  return gb_comm_fail(comm, status, "%s: rank %d at step %lld: %s", operation_of(comm), job->rank,
                      (long long)step_of(comm), error);
}

gb_status gb_comm_settle(gb_comm *comm) {
  gb_comm *job = comm->job;
  gb_mover *mover = job->transport.mover;
  void *end = NULL;
  bool done = false;
  gb_status status = GB_OK;
  for (int turn = 0; status == GB_OK && !done; turn++) {
    if (turn % 64 == 63 && ((status = gb_comm_poll(comm)) != GB_OK || (status = check_pulse(comm)) != GB_OK)) break;
    gb_pulse_lock(job->pulse);
    status = end ? mover->settled(mover, end, &done) : mover->settle(mover, &end);
    gb_pulse_unlock(job->pulse);
    if (status != GB_OK) return gb_comm_fail_near(comm, status);
    if (!done && turn) nap(comm, turn);
  }
  if (status == GB_OK) return GB_OK;
  gb_comm_break(comm);
  gb_pulse_lock(job->pulse);
  if (end) mover->settled(mover, end, NULL);
  gb_pulse_unlock(job->pulse);
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
  gb_pulse_lock(comm->job->pulse);
  comm->job->transport.drop(&comm->job->transport, posts[0].message);
  gb_pulse_unlock(comm->job->pulse);
  return status;
}

/* ====} */

/* {==== What is built of messages ==== */

gb_status gb_comm_free_sum(gb_comm *comm, gb_dtype dtype, void *data, int64_t count, bool *done) {
  gb_comm *job = comm->job;
  gb_post post = { NULL, (comm->rank + 1) % comm->size, -1, true, 0 };
  *done = job->transport.sum != NULL;
  if (!*done) return GB_OK;
  gb_pulse_lock(job->pulse);
  job->traffic.bytes_summed += count * (int64_t)gb_dtype_bytes(dtype);
  gb_status status = job->transport.sum(&job->transport, dtype, data, count, &post.message);
  if (status != GB_OK) {
    gb_comm_break(comm);
    failed(comm, status, &post);
  }
  gb_pulse_unlock(job->pulse);
  return status == GB_OK ? gb_comm_wait(comm, &post, 1) : status;
}

gb_status gb_comm_barrier(gb_comm *comm) { return meet(comm, GB_TAG_BARRIER); }

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
  if (bytes && mine) memcpy(places + (size_t)comm->rank * bytes, mine, bytes);
  for (int i = 0; i < size - 1; i++) {
    int out = (comm->rank - i + size) % size, in = (out - 1 + size) % size;
    GB_TRY(gb_comm_swap(comm, GB_TAG_GATHER, to, places + (size_t)out * bytes, bytes, from,
                        places + (size_t)in * bytes, bytes));
  }
  return GB_OK;
}

/* ====} */
