/* near.h - numbers in the memory of a CUDA device, which are added up there.
 *
 * What is done to them goes in one of two orders. Where the context's thread works on them, with the kernels of the
 * context; where they are exchanged (moves), with the messages of the transport, on any thread. From the first order to
 * the second leads a mark; back, that all is done (gb_comm_settle). So they are the same sums, of the same pairs of
 * numbers, as in the host's memory. */
#ifndef GB_DIST_NEAR_H
#define GB_DIST_NEAR_H

#include "dist/comm.h"
#include "tensor/tensor.h"

/* brief: of a call that moves from its beginning, and gives all memory back at its end, when the device is through with
 * it. Such memory comes from a pool of the job, on any thread. From the context's pool it may not: what is freed there
 * may be in use by kernels that the context has launched, which come before its next user in their order alone. */
typedef struct gb_near { gb_context *context; gb_device device; bool moves, brief; } gb_near;

enum { GB_NEAR_LEAST = 1024 };        /* bytes of a collective's tensor: less goes through the host, with a packet */
enum { GB_NEAR_IDLE_MOST = 1 << 30 }; /* bytes that lie idle in the job's pool between two calls */

/* Can gradients of this device be added up there? comm NULL: one process. */
bool gb_near_serves(const gb_context *context, const gb_comm *comm, gb_device device);

/* Memory, which holds anything; NULL: there is none, text set. The counterpart is gb_comm_free_near. */
void *gb_near_take(const gb_near *near, gb_comm *comm, size_t bytes);
/* to = left with right; to may be one of them. Where nothing moves a sum of floats alone, into `left`. */
gb_status gb_near_reduce(const gb_near *near, gb_comm *comm, gb_reduction reduction, gb_dtype dtype, void *to,
                         void *left, const void *right, int64_t count);
gb_status gb_near_clear(const gb_near *near, gb_comm *comm, void *data, size_t bytes);
/* While it moves. */
gb_status gb_near_copy(const gb_near *near, gb_comm *comm, void *to, const void *from, size_t bytes);

/* {---- the job's pool ---- */

/* Its memory counts as the context's. Nothing where the transport takes the memory of no device. */
gb_status gb_near_open(gb_comm *job);
void gb_near_close(gb_comm *job);     /* no task runs any more, and no message reaches what was taken */
/* Memory goes back to where it came from; job NULL: it is not brief. */
void gb_near_give(const gb_near *near, gb_comm *job, void *memory, size_t bytes);

/* ----} */

/* {---- on the context's thread ---- */

/* The memory as a tensor, which does not keep it. */
gb_status gb_near_tensor(const gb_near *near, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                         gb_tensor **out);
/* Copies between a tensor and so many numbers in memory, converted. */
gb_status gb_near_read(const gb_near *near, gb_tensor *tensor, gb_dtype dtype, void *data);
gb_status gb_near_write(const gb_near *near, gb_tensor *tensor, gb_dtype dtype, void *data);
gb_status gb_near_scale(const gb_near *near, gb_dtype dtype, void *data, int64_t count, double factor);

/* What the kernels of the context have been asked so far; moves begin after it. */
gb_status gb_near_mark(const gb_near *near, void **mark);
void gb_near_unmark(const gb_near *near, void *mark); /* NULL is fine */

/* ----} */

/* Numbers move from here on, after the mark. */
gb_status gb_near_follow(gb_near *near, gb_comm *comm, void *mark);

#endif
