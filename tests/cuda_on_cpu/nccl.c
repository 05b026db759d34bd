/* nccl.c - stands in for libnccl.so.2 on the emulated device: a library of its own, which cuda/nccl.c opens.
 *
 * The ranks are processes of one machine, each pair joined by a socket. What is asked for runs on the stream that it
 * was given to, after what was there before; a call that does not block goes on where its state is asked for. As in
 * NCCL a message leaves only as fast as the other side takes it (beyond what a socket holds), messages have no tags,
 * and what one rank asks for is done in order: ranks that ask in different orders wait for ever. Both sides must name
 * the same length; the true one would hang or worse, this one fails the machine. Its sums go by rank from the last one
 * down, which is no order of ours. */
#define _GNU_SOURCE /* SOCK_NONBLOCK, accept4 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cuda/nccl.h"
#include "machine.h"

#define API __attribute__((visibility("default")))
#define DECLARE(result, name, arguments) API result nccl##name arguments;
GB_NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
enum { GROUP_MOST = 4096 };

/* joined: the sockets of all others are there. */
struct ncclComm {
  int rank, size;
  atomic_int refs;                    /* the caller, and what runs on streams */
  ncclUniqueId id;
  int listener, joined, *sockets;
  int *callers, n_callers;            /* sockets whose rank is not known yet */
  atomic_int state;                   /* an ncclResult_t */
  atomic_bool aborted;
};

/* One message, or one side of a sum. The length goes ahead of it. */
typedef struct part { bool sends; int peer; char *data; uint64_t bytes, said; size_t done, told; bool over; } part;

/* What one group of calls does. A sum has a part for each way to each other rank. */
typedef struct job {
  ncclComm_t comm;
  part *parts;
  int count;
  char *to;                           /* of a sum: where it goes */
  char *room;                         /* what the others sent, each in its place */
  size_t numbers;
  ncclDataType_t type;
} job;

static _Thread_local struct { int depth, count; job *jobs[GROUP_MOST]; gb_stream streams[GROUP_MOST]; } group;

static void fail(ncclComm_t comm, ncclResult_t code) {
  int none = ncclSuccess, later = ncclInProgress;
  if (!atomic_compare_exchange_strong(&comm->state, &none, (int)code))
    atomic_compare_exchange_strong(&comm->state, &later, (int)code);
}

static void release(ncclComm_t comm) {
  if (--comm->refs) return;
  for (int r = 0; r < comm->size; r++)
    if (comm->sockets[r] >= 0) close(comm->sockets[r]);
  for (int i = 0; i < comm->n_callers; i++) close(comm->callers[i]);
  if (comm->listener >= 0) close(comm->listener);
  free(comm->sockets);
  free(comm->callers);
  free(comm);
}

/* {==== Joining: each rank listens, and calls those below it ==== */

static socklen_t address_of(const ncclUniqueId *id, int rank, struct sockaddr_un *out) {
  *out = (struct sockaddr_un){ .sun_family = AF_UNIX }; /* a name that begins with 0 is of no file */
  int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "gibbous-nccl-%.60s-%d", id->internal, rank);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void call_lower(ncclComm_t c, int rank) {
  struct sockaddr_un there;
  socklen_t length = address_of(&c->id, rank, &there);
  int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s < 0) return;
  if (connect(s, (struct sockaddr *)&there, length) == 0 && send(s, &c->rank, sizeof c->rank, MSG_NOSIGNAL) > 0) {
    c->sockets[rank] = s;
    c->joined++;
  } else close(s); /* it does not listen yet */
}

static void hear_callers(ncclComm_t c) {
  int s, rank;
  while (c->n_callers < c->size && (s = accept4(c->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
    c->callers[c->n_callers++] = s;
  for (int i = 0; i < c->n_callers;) {
    if (recv(c->callers[i], &rank, sizeof rank, 0) != sizeof rank) { i++; continue; }
    c->sockets[rank] = c->callers[i];
    c->callers[i] = c->callers[--c->n_callers];
    c->joined++;
  }
}

static void go_on_joining(ncclComm_t c) {
  for (int r = 0; r < c->rank; r++)
    if (c->sockets[r] < 0) call_lower(c, r);
  hear_callers(c);
  int later = ncclInProgress;
  if (c->joined == c->size - 1) atomic_compare_exchange_strong(&c->state, &later, ncclSuccess);
}

ncclResult_t ncclGetVersion(int *version) { return *version = 22005, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static atomic_int made;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *id = (ncclUniqueId){ "" };
  snprintf(id->internal, sizeof id->internal, "%d-%d-%ld", (int)getpid(), atomic_fetch_add(&made, 1), now.tv_nsec);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  struct sockaddr_un here;
  if (config->size < sizeof *config || config->magic != 0xcafebeefu || config->blocking) return ncclInvalidArgument;
  ncclComm_t c = calloc(1, sizeof *c);
  *c = (struct ncclComm){ .rank = rank, .size = size, .refs = 1, .id = id, .state = ncclInProgress };
  c->sockets = malloc((size_t)size * sizeof *c->sockets);
  c->callers = malloc((size_t)size * sizeof *c->callers);
  for (int r = 0; r < size; r++) c->sockets[r] = -1;
  socklen_t length = address_of(&id, rank, &here);
  c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (bind(c->listener, (struct sockaddr *)&here, length) != 0 || listen(c->listener, size) != 0)
    atomic_store(&c->state, ncclSystemError);
  *out = c;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
  if (comm->joined < comm->size - 1 && atomic_load(&comm->state) == ncclInProgress) go_on_joining(comm);
  *state = (ncclResult_t)atomic_load(&comm->state);
  return ncclSuccess;
}

/* ====} */

/* {==== Moving ==== */

/* One end of a connection that has ended. */
static bool is_over(ssize_t n) { return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR); }

/* Send, or receive, what goes, but no more than so much at once; false: the other side is gone. */
#define STRIDE ((size_t)1 << 20)
static bool push_on(const part *p, int s, void *data, size_t bytes, size_t *done) {
  size_t end = bytes - *done < STRIDE ? bytes : *done + STRIDE;
  while (*done < end) {
    ssize_t n = p->sends ? send(s, (char *)data + *done, end - *done, MSG_NOSIGNAL)
                         : recv(s, (char *)data + *done, end - *done, 0);
    if (n <= 0) return !is_over(n);
    *done += (size_t)n;
  }
  return true;
}

static bool move_part(ncclComm_t c, part *p) {
  int s = c->sockets[p->peer];
  if (p->sends) p->said = p->bytes;
  if (!push_on(p, s, &p->said, sizeof p->said, &p->told)) return false;
  if (p->told < sizeof p->said) return true;
  if (p->said != p->bytes) {
    gb_machine_fail("NCCL", "rank %d sends %llu bytes, and rank %d wants %llu", p->peer, (unsigned long long)p->said,
                    c->rank, (unsigned long long)p->bytes);
    return false;
  }
  bool good = push_on(p, s, p->data, (size_t)p->bytes, &p->done);
  p->over = p->done == p->bytes;
  return good;
}

#define ADD(type)                                                                                 \
  for (size_t i = 0; i < j->numbers; i++) {                                                       \
    type sum = 0;                                                                                 \
    for (size_t r = (size_t)c->size; r-- > 0;)                                                    \
      sum = (type)(sum + ((type *)(void *)j->room)[r * j->numbers + i]);                          \
    ((type *)(void *)j->to)[i] = sum;                                                             \
  }

static void add_up(ncclComm_t c, const job *j) {
  if (j->type == ncclFloat32) { ADD(float) }
  else if (j->type == ncclFloat64) { ADD(double) }
  else { ADD(uint64_t) }
}

/* Of one peer the parts of each way go one after another, and ways beside each other. */
static bool is_next(const job *j, int i) {
  for (int k = 0; k < i; k++)
    if (!j->parts[k].over && j->parts[k].peer == j->parts[i].peer && j->parts[k].sends == j->parts[i].sends)
      return false;
  return true;
}

/* Memory of the device may be touched now. What has failed ends at once. */
static int step(void *argument) {
  job *j = argument;
  ncclComm_t c = j->comm;
  bool over = true;
  if (atomic_load(&c->aborted) || atomic_load(&c->state) == ncclRemoteError) return 1;
  if (j->to && !j->parts[0].told) /* the numbers are there only now */
    memcpy(j->room + (size_t)c->rank * (size_t)j->parts[0].bytes, j->parts[0].data, (size_t)j->parts[0].bytes);
  for (int i = 0; i < j->count; i++) {
    part *p = &j->parts[i];
    if (!p->over && is_next(j, i) && !move_part(c, p)) return fail(c, ncclRemoteError), 1;
    over = over && p->over;
  }
  if (over && j->to) add_up(c, j);
  return over;
}

static void free_job(void *argument) {
  job *j = argument;
  release(j->comm);
  free(j->parts);
  free(j->room);
  free(j);
}

/* What a group does waits for its end. */
static job *new_job(ncclComm_t comm, gb_stream stream, int parts) {
  job *j = calloc(1, sizeof *j);
  j->comm = comm;
  j->parts = calloc((size_t)parts, sizeof *j->parts);
  j->count = parts;
  comm->refs++;
  group.jobs[group.count] = j;
  group.streams[group.count++] = stream;
  return j;
}

static ncclResult_t message(bool sends, void *data, size_t count, int peer, ncclComm_t comm, gb_stream stream) {
  if (!group.depth || group.count == GROUP_MOST || peer < 0 || peer >= comm->size || peer == comm->rank)
    return ncclInvalidArgument;
  new_job(comm, stream, 1)->parts[0] = (part){ .sends = sends, .peer = peer, .data = data, .bytes = count };
  return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      gb_stream stream) {
  return type == ncclUint8 ? message(true, (void *)(uintptr_t)data, count, peer, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, gb_stream stream) {
  return type == ncclUint8 ? message(false, data, count, peer, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, gb_stream stream) {
  size_t bytes = count * (type == ncclFloat32 ? 4 : 8);
  if (!group.depth || group.count == GROUP_MOST || op != ncclSum) return ncclInvalidArgument;
  job *j = new_job(comm, stream, 2 * (comm->size - 1));
  j->to = to;
  j->room = malloc(bytes * (size_t)comm->size);
  j->numbers = count;
  j->type = type;
  for (int r = 0, i = 0; r < comm->size; r++) {
    if (r == comm->rank) continue;
    j->parts[i++] = (part){ .sends = true, .peer = r, .data = (char *)(uintptr_t)from, .bytes = bytes };
    j->parts[i++] = (part){ .peer = r, .data = j->room + (size_t)r * bytes, .bytes = bytes };
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { return group.depth++, ncclSuccess; }

/* All calls of a group become one: its messages run beside each other. */
ncclResult_t ncclGroupEnd(void) {
  if (--group.depth || !group.count) return ncclSuccess;
  job *all = group.jobs[0];
  for (int i = 1; i < group.count && !all->to; i++) {
    job *j = group.jobs[i];
    all->parts = realloc(all->parts, (size_t)(all->count + 1) * sizeof *all->parts);
    all->parts[all->count++] = j->parts[0];
    free_job(j);
  }
  group.count = 0;
  gb_machine_await(group.streams[0], step, free_job, all);
  return ncclSuccess;
}

/* ====} */

/* {==== The end ==== */

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return (void)comm, ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return release(comm), ncclSuccess; }

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  atomic_store(&comm->aborted, true);
  return ncclCommDestroy(comm);
}

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error",
                                       "invalid argument", "invalid usage", "remote process exited or there was a "
                                                                            "network error", "NCCL operation in "
                                                                                             "progress" };
  return texts[result];
}

const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, ""; }

/* ====} */
