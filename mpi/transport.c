/* transport.c - the transport between processes, by MPI: a plugin that the engine opens where a job has many of them.
 *
 * It uses point-to-point messages, and sums where it is asked for some, on a communicator of its own. It links to
 * nothing of the engine's. A process can start MPI once and end it once: who joins again, after leaving, is told so.
 * Where the host has started MPI, it is the host that ends it, and jobs may be joined again until then. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/transport.h"

/* MPI counts in int: longer messages go in pieces, in order. */
#define PIECE ((size_t)1 << 30)

/* ours: MPI was started here, and not by the host. */
typedef struct job { MPI_Comm comm; bool ours; } job;

/* sends: also of a sum. */
typedef struct message { bool sends, sums; size_t bytes, length; int count, done; MPI_Request requests[]; } message;

/* The text of an MPI error. */
static gb_status fail(gb_transport *t, int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, class = MPI_SUCCESS;
  MPI_Error_class(code, &class);
  if (class == MPI_ERR_TRUNCATE) {
    snprintf(t->error, sizeof t->error, "the message is longer than what it was to fill; every rank must make the same "
                                        "calls, with tensors of the same shape and dtype");
    return GB_EIO;
  }
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  snprintf(t->error, sizeof t->error, "MPI: %.*s", length < 200 ? length : 200, text);
  return GB_EIO;
}

static gb_status post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **out) {
  const job *j = t->state;
  int count = (int)(bytes / PIECE) + 1;
  message *m = malloc(sizeof *m + (size_t)count * sizeof *m->requests);
  if (!m) {
    snprintf(t->error, sizeof t->error, "out of memory for a message");
    return GB_EMEMORY;
  }
  *m = (message){ .sends = sends, .bytes = bytes };
  for (; m->count < count; m->count++) {
    size_t first = (size_t)m->count * PIECE, size = bytes - first < PIECE ? bytes - first : PIECE;
    char *place = (char *)data + (bytes ? first : 0);
    MPI_Request *request = &m->requests[m->count];
    int code = sends ? MPI_Isend(place, (int)size, MPI_BYTE, peer, tag, j->comm, request)
                     : MPI_Irecv(place, (int)size, MPI_BYTE, peer, tag, j->comm, request);
    if (code == MPI_SUCCESS) continue;
    if (m->count == 0) free(m); /* else pieces are under way that would write into it */
    return fail(t, code);
  }
  *out = m;
  return GB_OK;
}

static gb_status sum(gb_transport *t, gb_dtype dtype, void *data, int64_t numbers, void **out) {
  const job *j = t->state;
  MPI_Datatype type = dtype == GB_FLOAT32 ? MPI_FLOAT : dtype == GB_FLOAT64 ? MPI_DOUBLE : MPI_INT64_T;
  size_t each = dtype == GB_FLOAT32 ? 4 : 8, bytes = (size_t)numbers * each;
  int count = (int)(bytes / PIECE) + 1;
  message *m = malloc(sizeof *m + (size_t)count * sizeof *m->requests);
  if (!m) {
    snprintf(t->error, sizeof t->error, "out of memory for a sum");
    return GB_EMEMORY;
  }
  *m = (message){ .sends = true, .sums = true, .bytes = bytes };
  for (; m->count < count; m->count++) {
    size_t first = (size_t)m->count * PIECE, size = bytes - first < PIECE ? bytes - first : PIECE;
    int code = MPI_Iallreduce(MPI_IN_PLACE, (char *)data + first, (int)(size / each), type, MPI_SUM, j->comm,
                              &m->requests[m->count]);
    if (code == MPI_SUCCESS) continue;
    if (m->count == 0) free(m);
    return fail(t, code);
  }
  *out = m;
  return GB_OK;
}

static gb_status test(gb_transport *t, void *which, size_t *bytes, bool *done) {
  message *m = which;
  *done = false;
  while (m->done < m->count) {
    int flag = 0, length = 0;
    MPI_Status status;
    int code = MPI_Test(&m->requests[m->done], &flag, &status);
    if (code == MPI_SUCCESS && flag && !m->sends) code = MPI_Get_count(&status, MPI_BYTE, &length);
    if (code != MPI_SUCCESS) return fail(t, code);
    if (!flag) return GB_OK;
    m->length += (size_t)length;
    m->done++;
  }
  *bytes = m->sends ? m->bytes : m->length;
  *done = true;
  free(m);
  return GB_OK;
}

/* What was to be received is taken back; what is being sent goes on, from memory that stays. MPI lets nobody give up a
 * sum, so that its requests stay too. */
static void drop(gb_transport *t, void *which) {
  message *m = which;
  (void)t;
  for (int i = m->done; i < m->count && !m->sums; i++) {
    if (!m->sends) MPI_Cancel(&m->requests[i]);
    MPI_Request_free(&m->requests[i]);
  }
  free(m);
}

/* At a clean end every rank has come here. Without one MPI is not finalised, which would wait for processes that may
 * wait for this one: mpirun sees it end, and ends the others. */
static void close_all(gb_transport *t, bool clean) {
  job *j = t->state;
  if (clean) MPI_Comm_free(&j->comm);
  if (clean && j->ours) MPI_Finalize();
  free(j);
}

/* MPI runs: at that level at least, since the heartbeat is a thread, whose calls take turns with the recipe's? */
static gb_status check_level(gb_transport *out, bool ours) {
  int level = MPI_THREAD_SINGLE;
  int code = MPI_Query_thread(&level);
  if (code != MPI_SUCCESS) return fail(out, code);
  if (level >= MPI_THREAD_SERIALIZED) return GB_OK;
  snprintf(out->error, sizeof out->error, "MPI runs with thread level %s, and calls come from two threads in turn: %s",
           level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED",
           ours ? "use an MPI library that offers MPI_THREAD_SERIALIZED"
                : "the host must start it by MPI_Init_thread with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  return GB_EUNSUPPORTED;
}

/* Start MPI, unless the host has. The rest of the process goes on making its calls from one thread at a time. */
static gb_status start(gb_transport *out, bool *ours) {
  int ready = 0, over = 0, level = 0;
  MPI_Finalized(&over);
  if (over) {
    snprintf(out->error, sizeof out->error, "MPI was finalised in this process, and cannot be started again; call "
                                            "gb.dist.finalize() once, at the end");
    return GB_ESTATE;
  }
  MPI_Initialized(&ready);
  *ours = !ready;
  int code = ready ? MPI_SUCCESS : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  return code == MPI_SUCCESS ? check_level(out, *ours) : fail(out, code);
}

/* A communicator of our own, whose errors come back from its calls. An error of this very call does too: the host's way
 * with errors is put aside for it. */
static int duplicate_world(MPI_Comm *out) {
  MPI_Errhandler hosts;
  int code = MPI_Comm_get_errhandler(MPI_COMM_WORLD, &hosts);
  if (code != MPI_SUCCESS) return code;
  code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, out);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, hosts);
  MPI_Errhandler_free(&hosts);
  return code;
}

/* How many ranks this machine has, and how many of them come before this one. */
static void find_neighbours(MPI_Comm comm, gb_transport *out) {
  MPI_Comm near;
  out->local_rank = -1;
  if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near) != MPI_SUCCESS) return;
  MPI_Comm_rank(near, &out->local_rank);
  MPI_Comm_size(near, &out->local_size);
  MPI_Comm_free(&near);
}

/* The highest tag. */
static int find_tag_most(MPI_Comm comm) {
  int *most = NULL, found = 0;
  int code = MPI_Comm_get_attr(comm, MPI_TAG_UB, &most, &found);
  return code == MPI_SUCCESS && found ? *most : 32767;
}

__attribute__((visibility("default"))) gb_status gb_transport_open(uint32_t abi, gb_transport *out);
gb_status gb_transport_open(uint32_t abi, gb_transport *out) {
  *out = (gb_transport){ .name = "mpi", .lingers = true, .post = post, .test = test, .drop = drop, .sum = sum,
                         .close = close_all };
  if (abi != GB_TRANSPORT_ABI) {
    snprintf(out->error, sizeof out->error, "it was built for another version of the engine; build both together");
    return GB_EDEVICE;
  }
  bool ours;
  gb_status status = start(out, &ours);
  if (status != GB_OK) return status;
  job *j = malloc(sizeof *j);
  if (!j) return snprintf(out->error, sizeof out->error, "out of memory"), GB_EMEMORY;
  j->ours = ours;
  int code = duplicate_world(&j->comm);
  if (code != MPI_SUCCESS) return free(j), fail(out, code);
  MPI_Comm_rank(j->comm, &out->rank);
  MPI_Comm_size(j->comm, &out->size);
  find_neighbours(j->comm, out);
  out->tag_most = find_tag_most(j->comm);
  out->state = j;
  return GB_OK;
}
