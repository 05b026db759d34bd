/* cuda/nccl.c - moves the messages of a job by NCCL (dist/transport.h, gb_mover).
 *
 * libnccl is opened when a job wants it; GIBBOUS_NCCL names another one. Its communicator does not block, so that no
 * call waits for a rank that may be gone: whoever asks looks whether a call has come to its end, and gives up by
 * ncclCommAbort. Messages of the device's memory go as they are; those of the host through two pieces of staging
 * memory, pinned and on the device. Long ones go in pieces, cut alike on both sides. All of it has a stream of its own,
 * on which sums of the device's memory are added up too. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/nccl.h"
#include "cuda/sums.h"
#include "dist/transport.h"
#include "tensor/context.h"

GB_API gb_status gb_mover_open(uint32_t abi, int device, gb_mover *out);

#define PIECE ((size_t)16 << 20)      /* of one message, that is staged at once: heartbeats wait meanwhile */
#define ALIGNMENT ((size_t)256)
#define CLOSE_SECONDS 10.0            /* that a communicator has to come to its end */

/* IDLE; CALLED: NCCL has not finished the call, as where it opens connections; RUNS: on the stream. */
typedef enum stage { IDLE, CALLED, RUNS } stage;

/* near: it lies on the device. */
typedef struct slot { gb_move move; bool near; } slot;

/* What the last call asked for. Sums are of one move, which both sends and receives. */
typedef struct work {
  slot *slots;
  int count;
  bool sums;
  gb_dtype dtype;
  size_t done, most;                  /* bytes of each message that have been moved, of the longest one */
} work;

typedef struct gb_nccl {
  void *library;
#define FIELD(result, name, arguments) result (*name) arguments;
  GB_NCCL_FUNCTIONS(FIELD)
#undef FIELD
  int device;
  ncclComm_t comm;
  gb_stream stream;
  gb_event ended;
  stage stage;
  bool joins;                         /* the call is that which makes the communicator */
  work work;
  char *pinned, *staged;              /* of `room` bytes each */
  size_t room;
} gb_nccl;

/* {==== Failures ==== */

static gb_status nccl_failure(gb_mover *m, ncclResult_t code, const char *what) {
  gb_nccl *n = m->state;
  const char *more = n->GetLastError(n->comm);
  snprintf(m->error, sizeof m->error, "NCCL, %s: %s%s%.120s%s", what, n->GetErrorString(code),
           more && *more ? ": " : "", more ? more : "",
           code == ncclInvalidUsage ? "; each process needs a GPU of its own" : "");
  return GB_EDEVICE;
}

static gb_status runtime_failure(gb_mover *m, int code, const char *what) {
  snprintf(m->error, sizeof m->error, "NCCL, %s: %.200s", what, gb_rt_text(code));
  return GB_EDEVICE;
}

static gb_status memory_failure(gb_mover *m, size_t bytes, const char *what) {
  int code = gb_rt_alloc_error();
  if (code) return runtime_failure(m, code, what);
  snprintf(m->error, sizeof m->error, "NCCL: out of memory for %zu bytes of %s", bytes, what);
  return GB_EMEMORY;
}

/* ====} */

/* {==== One piece of each message ==== */

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Bytes of this piece of the message; and of those that are staged. */
static size_t part_of(const work *w, int i) {
  const gb_move *move = &w->slots[i].move;
  size_t left = move->bytes > w->done ? move->bytes - w->done : 0;
  return left < PIECE ? left : PIECE;
}
static size_t room_of(const work *w, int i) { return w->slots[i].near ? 0 : aligned(part_of(w, i)); }

static void close_staging(gb_nccl *n) {
  if (n->pinned) gb_rt_host_free(n->pinned);
  if (n->staged) gb_rt_free(n->staged, n->room);
  n->pinned = n->staged = NULL;
  n->room = 0;
}

/* Twice what is needed, so that it grows seldom. */
static gb_status need_staging(gb_mover *m, size_t bytes) {
  gb_nccl *n = m->state;
  if (bytes <= n->room) return GB_OK;
  close_staging(n);
  n->room = 2 * bytes;
  n->pinned = gb_rt_host_alloc(n->room);
  n->staged = gb_rt_alloc(n->room);
  if (n->pinned && n->staged) return GB_OK;
  gb_status status = memory_failure(m, n->room, "staging memory");
  close_staging(n);
  return status;
}

/* BRING: what this rank sends, on its way to the device. TAKE: what it has received, on its way back; PUT: and, once
 * that has come to pass, to where it belongs. */
typedef enum passage { BRING, TAKE, PUT } passage;

static int pass_staging(gb_nccl *n, passage way) {
  const work *w = &n->work;
  size_t at = 0;
  int code = 0;
  for (int i = 0; i < w->count && !code; i++) {
    const gb_move *move = &w->slots[i].move;
    size_t room = room_of(w, i), bytes = part_of(w, i);
    char *data = (char *)move->data + w->done, *pinned = n->pinned + at, *staged = n->staged + at;
    at += room;
    if (!room || (move->sends != (way == BRING) && !w->sums)) continue;
    if (way == BRING) memcpy(pinned, data, bytes);
    if (way == BRING) code = gb_rt_copy(n->stream, staged, pinned, bytes, GB_COPY_TO_DEVICE);
    if (way == TAKE) code = gb_rt_copy(n->stream, pinned, staged, bytes, GB_COPY_TO_HOST);
    if (way == PUT) memcpy(data, pinned, bytes);
  }
  return code;
}

static ncclDataType_t type_of(gb_dtype dtype) {
  return dtype == GB_FLOAT32 ? ncclFloat32 : dtype == GB_FLOAT64 ? ncclFloat64 : ncclInt64;
}

/* Those of one group run beside each other. */
static ncclResult_t call_nccl(gb_nccl *n) {
  const work *w = &n->work;
  size_t at = 0;
  ncclResult_t code = n->GroupStart(), end;
  for (int i = 0; i < w->count && code == ncclSuccess; i++) {
    const gb_move *move = &w->slots[i].move;
    size_t bytes = part_of(w, i);
    char *place = w->slots[i].near ? (char *)move->data + w->done : n->staged + at;
    at += room_of(w, i);
    if (!bytes) continue;
    if (w->sums) {
      size_t each = w->dtype == GB_FLOAT32 ? 4 : 8;
      code = n->AllReduce(place, place, bytes / each, type_of(w->dtype), ncclSum, n->comm, n->stream);
    } else if (move->sends) code = n->Send(place, bytes, ncclUint8, move->peer, n->comm, n->stream);
    else code = n->Recv(place, bytes, ncclUint8, move->peer, n->comm, n->stream);
    if (code == ncclInProgress) code = ncclSuccess;
  }
  end = n->GroupEnd();
  return code != ncclSuccess ? code : end;
}

static gb_status start_piece(gb_mover *m) {
  gb_nccl *n = m->state;
  size_t bytes = 0;
  for (int i = 0; i < n->work.count; i++) bytes += room_of(&n->work, i);
  GB_TRY(need_staging(m, bytes));
  int code = pass_staging(n, BRING);
  if (code) return runtime_failure(m, code, "a copy to the device");
  ncclResult_t result = call_nccl(n);
  if (result != ncclSuccess && result != ncclInProgress) return nccl_failure(m, result, "sending and receiving");
  n->stage = CALLED;
  return GB_OK;
}

static gb_status start_work(gb_mover *m, const gb_move *moves, int count, bool sums, gb_dtype dtype) {
  gb_nccl *n = m->state;
  int code = gb_rt_select(n->device);
  if (code) return runtime_failure(m, code, "choosing the device");
  slot *own = realloc(n->work.slots, (size_t)count * sizeof *own);
  if (!own) return snprintf(m->error, sizeof m->error, "out of memory for %d messages", count), GB_EMEMORY;
  n->work = (work){ .slots = own, .count = count, .sums = sums, .dtype = dtype };
  for (int i = 0; i < count; i++) {
    own[i] = (slot){ moves[i], gb_rt_is_on_device(moves[i].data) };
    if (moves[i].bytes > n->work.most) n->work.most = moves[i].bytes;
    if (own[i].near && moves[i].sends) m->near_sent += (int64_t)moves[i].bytes;
  }
  return start_piece(m);
}

static gb_status start(gb_mover *m, const gb_move *moves, int count) {
  return start_work(m, moves, count, false, GB_UINT8);
}

static gb_status sum(gb_mover *m, gb_dtype dtype, void *data, int64_t count) {
  gb_move all = { .data = data, .bytes = (size_t)count * (dtype == GB_FLOAT32 ? 4 : 8) };
  return start_work(m, &all, 1, true, dtype);
}

/* ====} */

/* {==== Coming to an end ==== */

/* NCCL has finished the call: what it launched is followed by the copies back, and an event. */
static gb_status follow(gb_mover *m) {
  gb_nccl *n = m->state;
  if (n->joins) return n->joins = false, n->stage = IDLE, GB_OK;
  int code = pass_staging(n, TAKE);
  if (!code) code = gb_rt_event_record(n->ended, n->stream);
  if (code) return runtime_failure(m, code, "a copy from the device");
  n->stage = RUNS;
  return GB_OK;
}

/* The piece has been moved; there may be another one. */
static gb_status end_piece(gb_mover *m) {
  gb_nccl *n = m->state;
  pass_staging(n, PUT);
  n->work.done += PIECE;
  n->stage = IDLE;
  return n->work.done < n->work.most ? start_piece(m) : GB_OK;
}

static gb_status test(gb_mover *m, bool *done) {
  gb_nccl *n = m->state;
  ncclResult_t state = ncclSuccess;
  bool ended = false;
  int code = gb_rt_select(n->device);
  *done = false;
  if (code) return runtime_failure(m, code, "choosing the device");
  ncclResult_t result = n->comm ? n->CommGetAsyncError(n->comm, &state) : ncclSuccess;
  if (result == ncclSuccess && state != ncclInProgress) result = state;
  if (result != ncclSuccess) return nccl_failure(m, result, n->joins ? "joining the job" : "an exchange");
  if (n->stage == CALLED && state == ncclSuccess) GB_TRY(follow(m));
  if (n->stage == RUNS) {
    code = gb_rt_event_done(n->ended, &ended);
    if (code) return runtime_failure(m, code, "an exchange");
    if (ended) GB_TRY(end_piece(m));
  }
  *done = n->stage == IDLE;
  return GB_OK;
}

/* {---- what sums need beside messages ---- */

/* The calls of a mover that has given up fail. */
static gb_status enter(gb_mover *m) {
  gb_nccl *n = m->state;
  if (!n) return snprintf(m->error, sizeof m->error, "the job has lost a rank"), GB_EIO;
  int code = gb_rt_select(n->device);
  return code ? runtime_failure(m, code, "choosing the device") : GB_OK;
}

/* Without the device that is chosen first, the question alone would open the first one of the machine. */
static bool holds(gb_mover *m, const void *data) { return enter(m) == GB_OK && gb_rt_is_on_device(data); }

static void *take(gb_mover *m, size_t bytes) {
  if (enter(m) != GB_OK) return NULL;
  void *memory = gb_rt_alloc(bytes);
  if (!memory) memory_failure(m, bytes, "the device, for sums");
  return memory;
}

/* What was launched on the stream may have failed to. */
static gb_status launched(gb_mover *m) {
  const char *kernel = NULL;
  int code = gb_rt_launch_error(&kernel);
  return code ? runtime_failure(m, code, kernel ? kernel : "an earlier kernel") : GB_OK;
}

static gb_status put(gb_mover *m, void *to, const void *host, size_t bytes) {
  GB_TRY(enter(m));
  gb_cuda_put_bytes(((gb_nccl *)m->state)->stream, to, host, bytes);
  return launched(m);
}

static gb_status copy_near(gb_mover *m, void *to, const void *from, size_t bytes) {
  GB_TRY(enter(m));
  int code = bytes ? gb_rt_copy(((gb_nccl *)m->state)->stream, to, from, bytes, GB_COPY_ON_DEVICE) : 0;
  return code ? runtime_failure(m, code, "a copy on the device") : GB_OK;
}

static gb_status clear(gb_mover *m, void *data, size_t bytes) {
  GB_TRY(enter(m));
  int code = bytes ? gb_rt_set(((gb_nccl *)m->state)->stream, data, 0, bytes) : 0;
  return code ? runtime_failure(m, code, "clearing memory") : GB_OK;
}

static gb_status reduce(gb_mover *m, gb_reduction reduction, gb_dtype dtype, void *to, const void *left,
                        const void *right, int64_t count) {
  GB_TRY(enter(m));
  gb_cuda_join_pairs(((gb_nccl *)m->state)->stream, reduction, dtype, to, left, right, count);
  return launched(m);
}

static gb_status follow_mark(gb_mover *m, void *mark) {
  GB_TRY(enter(m));
  int code = gb_rt_event_wait(((gb_nccl *)m->state)->stream, mark);
  return code ? runtime_failure(m, code, "waiting for the gradients") : GB_OK;
}

static gb_status settle(gb_mover *m, void **end) {
  gb_event event = NULL;
  GB_TRY(enter(m));
  int code = gb_rt_event_open(&event);
  if (!code) code = gb_rt_event_record(event, ((gb_nccl *)m->state)->stream);
  if (code && event) gb_rt_event_close(event);
  *end = event;
  return code ? runtime_failure(m, code, "a sum") : GB_OK;
}

static gb_status settled(gb_mover *m, void *end, bool *done) {
  gb_status status = done ? enter(m) : GB_OK;
  int code = done && status == GB_OK ? gb_rt_event_done(end, done) : 0;
  if (!done || *done || code || status != GB_OK) gb_rt_event_close(end);
  return code ? runtime_failure(m, code, "a sum") : status;
}

/* ----} */

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* All ranks have come to the end: is the communicator through with everything? */
static bool finalize(gb_nccl *n) {
  double until = seconds() + CLOSE_SECONDS;
  ncclResult_t state = n->CommFinalize(n->comm);
  while (state == ncclInProgress && seconds() < until) {
    if (n->CommGetAsyncError(n->comm, &state) != ncclSuccess) return false;
    if (state == ncclInProgress) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
  }
  return state == ncclSuccess;
}

static void close_all(gb_mover *m, bool clean) {
  gb_nccl *n = m->state;
  if (!n) return;
  gb_rt_select(n->device);
  if (n->comm && clean && n->stage == IDLE && finalize(n)) n->CommDestroy(n->comm);
  else if (n->comm) n->CommAbort(n->comm);
  if (n->stream) gb_rt_stream_close(n->stream);
  if (n->ended) gb_rt_event_close(n->ended);
  close_staging(n);
  free(n->work.slots);
  free(n); /* the library stays in the process, which may have threads of its own */
  m->state = NULL;
}

/* ====} */

/* {==== The beginning ==== */

static gb_status identify(gb_mover *m, void *id) {
  gb_nccl *n = m->state;
  ncclUniqueId made;
  _Static_assert(sizeof made == GB_MOVER_ID, "an id is handed over as it is");
  int code = gb_rt_select(n->device);
  if (code) return runtime_failure(m, code, "choosing the device");
  ncclResult_t result = n->GetUniqueId(&made);
  if (result != ncclSuccess) return nccl_failure(m, result, "a unique id");
  memcpy(id, &made, sizeof made);
  return GB_OK;
}

static gb_status join(gb_mover *m, int rank, int size, const void *id) {
  gb_nccl *n = m->state;
  ncclUniqueId made;
  ncclConfig_t config = GB_NCCL_CONFIG;
  memcpy(&made, id, sizeof made);
  int code = gb_rt_select(n->device);
  if (code) return runtime_failure(m, code, "choosing the device");
  ncclResult_t result = n->CommInitRankConfig(&n->comm, size, made, rank, &config);
  if (result != ncclSuccess && result != ncclInProgress) return nccl_failure(m, result, "joining the job");
  n->stage = CALLED;
  n->joins = true;
  return GB_OK;
}

static gb_status open_library(gb_nccl *n, gb_mover *out) {
  const char *wish = getenv("GIBBOUS_NCCL"), *missing = NULL;
  int version = 0;
  n->library = dlopen(wish && *wish ? wish : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!n->library) {
    snprintf(out->error, sizeof out->error, "a job on GPUs needs NCCL: %.120s; install it (Debian and Ubuntu, from "
                                            "NVIDIA: libnccl2), or name its file in GIBBOUS_NCCL", dlerror());
    return GB_EDEVICE;
  }
#define FIND(result, name, arguments)                          \
  *(void **)&n->name = dlsym(n->library, "nccl" #name);        \
  if (!n->name) missing = "nccl" #name;
  GB_NCCL_FUNCTIONS(FIND)
#undef FIND
  if (!missing && n->GetVersion(&version) == ncclSuccess && version >= GB_NCCL_LEAST) return GB_OK;
  if (missing) snprintf(out->error, sizeof out->error, "libnccl has no %s; install NCCL 2.14 or later", missing);
  else snprintf(out->error, sizeof out->error, "libnccl is version %d, and 2.14 (21400) is needed; install a later one",
                version);
  return GB_EDEVICE;
}

static gb_status open_all(gb_nccl *n, gb_mover *out) {
  GB_TRY(open_library(n, out));
  int code = gb_rt_select(n->device);
  if (!code) code = gb_rt_stream_open(&n->stream);
  if (!code) code = gb_rt_event_open(&n->ended);
  return code ? runtime_failure(out, code, "a stream") : GB_OK;
}

gb_status gb_mover_open(uint32_t abi, int device, gb_mover *out) {
  *out = (gb_mover){ .name = "nccl", .identify = identify, .join = join, .start = start, .sum = sum, .test = test,
                     .holds = holds, .take = take, .put = put, .copy = copy_near, .clear = clear, .reduce = reduce,
                     .follow = follow_mark, .settle = settle, .settled = settled, .close = close_all };
  if (abi != GB_MOVER_ABI) {
    snprintf(out->error, sizeof out->error, "the CUDA plugin was built for another version; build both together");
    return GB_EDEVICE;
  }
  gb_nccl *n = calloc(1, sizeof *n);
  if (!n) return snprintf(out->error, sizeof out->error, "out of memory"), GB_EMEMORY;
  n->device = device;
  out->near = device + 1;
  out->state = n;
  gb_status status = open_all(n, out);
  if (status != GB_OK) close_all(out, false);
  return status;
}

/* ====} */
