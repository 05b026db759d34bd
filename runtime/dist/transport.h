/* transport.h - how the processes of a job send each other bytes: the table that a transport fills.
 *
 * There are three: MPI, in a plugin that is opened at run time (mpi/transport.c); pairs (pairs.h), which moves bytes by
 * NCCL, out of the CUDA plugin; and an in-process stand-in whose ranks are threads (local.h), for tests. Messages go
 * from one rank to another: every sum is ours, in a fixed order (tree.h), but where a recipe asks for the sums of the
 * transport. Messages of one tag between two ranks arrive in the order in which they were sent. Calls of one transport
 * come from one thread at a time. */
#ifndef GB_DIST_TRANSPORT_H
#define GB_DIST_TRANSPORT_H

#include "base/reduction.h"
#include "gibbous.h"

typedef struct gb_mover gb_mover;
typedef struct gb_transport gb_transport;
struct gb_transport {
  const char *name;                   /* "mpi" */
  int rank, size;
  int local_rank;                     /* among those of this machine; -1: the transport does not know */
  int local_size;                     /* how many of the ranks are on this machine; 0: the transport does not know */
  int tag_most;                       /* the highest tag that it takes; 0: any */
  bool lingers;                       /* dropped messages may reach their memory even after an unclean close */
  gb_mover *mover;                    /* whose device's memory it takes too; NULL: none */
  void *state;
  /* Begin to send or to receive; *message stands for it until test says that it is done, or drop. The memory must stay
   * until then, and after a drop until the transport has closed. A message longer than `bytes` is an error. */
  gb_status (*post)(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **message);
  /* Is it done? Then *bytes is its length. This is also where messages under way make progress. A message that fails
   * has ended too, and is not dropped. */
  gb_status (*test)(gb_transport *t, void *message, size_t *bytes, bool *done);
  void (*drop)(gb_transport *t, void *message);
  /* Begin to add up the numbers of all ranks, in place, in an order of the transport's own; NULL: it has none. All
   * ranks call it in the same order. */
  gb_status (*sum)(gb_transport *t, gb_dtype dtype, void *data, int64_t count, void **message);
  /* May wait for the other ranks where the end is clean; otherwise nobody is waited for. */
  void (*close)(gb_transport *t, bool clean);
  char error[256];                    /* of what failed last */
};

/* What a plugin exports as gb_transport_open. It fills *out; on failure out->error says why. */
#define GB_TRANSPORT_ABI 6u
typedef gb_status (*gb_transport_open_fn)(uint32_t abi, gb_transport *out);

/* {---- a library that moves bytes between GPUs, once both sides are ready, and knows neither tags nor limits ---- */

enum { GB_MOVER_ID = 128 };           /* bytes that one rank makes, and all need */

/* One message, as one of its two ranks sees it. bytes is the same on both. */
typedef struct gb_move { bool sends; int peer; void *data; size_t bytes; } gb_move;

/* Calls come from one thread at a time, and none waits. One thing is under way at a time: join, start or sum begin it,
 * and test says when it is done. */
struct gb_mover {
  const char *name;                   /* "nccl" */
  void *state;                        /* NULL: it was closed, and every call fails */
  int near;                           /* 1 above the number of the CUDA device whose memory it takes as it takes the
                                         host's; 0: none */
  int64_t near_sent;                  /* bytes that it has sent from such memory */
  gb_status (*identify)(gb_mover *m, void *id);
  gb_status (*join)(gb_mover *m, int rank, int size, const void *id);
  /* Messages that run at once. All ranks start those that are theirs in one order over the job. */
  gb_status (*start)(gb_mover *m, const gb_move *moves, int count);
  gb_status (*sum)(gb_mover *m, gb_dtype dtype, void *data, int64_t count); /* as gb_transport.sum */
  gb_status (*test)(gb_mover *m, bool *done);
  /* What sums need of the device's memory beside messages. It comes to pass later, in the order of these calls and of
   * the messages: those before them that are done, and those that begin after them. */
  bool (*holds)(gb_mover *m, const void *data); /* is it such memory? */
  void *(*take)(gb_mover *m, size_t bytes); /* the backend frees it; NULL: there is none */
  gb_status (*put)(gb_mover *m, void *to, const void *host, size_t bytes);
  gb_status (*copy)(gb_mover *m, void *to, const void *from, size_t bytes);
  gb_status (*clear)(gb_mover *m, void *data, size_t bytes);
  /* to, which may be one of them, = left with right. Of float32, float64 or int64. */
  gb_status (*reduce)(gb_mover *m, gb_reduction reduction, gb_dtype dtype, void *to, const void *left,
                      const void *right, int64_t count);
  gb_status (*follow)(gb_mover *m, void *mark); /* after what came before this mark of the backend */
  /* Where all so far ends. Once *done, or after a failure, the end is gone; done NULL: nobody waits for it any more. */
  gb_status (*settle)(gb_mover *m, void **end);
  gb_status (*settled)(gb_mover *m, void *end, bool *done);
  void (*close)(gb_mover *m, bool clean); /* not clean: what is under way is given up. A second one does nothing */
  char error[256];
};

/* What the CUDA plugin exports as gb_mover_open. On failure out->error says why. */
#define GB_MOVER_ABI 2u
typedef gb_status (*gb_mover_open_fn)(uint32_t abi, int device, gb_mover *out);

/* ----} */

#endif
