/* tensors.h - collectives of tensors of any dtype and device; every rank makes the same calls, with equal shapes.
 *
 * Sums are of float64, of float32 (16-bit floats too, which are rounded once, at the end), or of int64. */
#ifndef GB_DIST_TENSORS_H
#define GB_DIST_TENSORS_H

#include "dist/tree.h"
#include "graph/ops.h"

typedef enum gb_dist_op { GB_DIST_SUM, GB_DIST_MEAN, GB_DIST_MAX, GB_DIST_OR, GB_DIST_OPS } gb_dist_op;
extern const char *const gb_dist_op_names[GB_DIST_OPS];

/* In place. */
gb_status gb_dist_broadcast(gb_comm *comm, gb_tensor *tensor, int source);
gb_status gb_dist_all_reduce(gb_comm *comm, gb_tensor *tensor, gb_dist_op op);
/* A new tensor for each rank, in order: out has room for comm->size of them. */
gb_status gb_dist_all_gather(gb_comm *comm, gb_tensor *tensor, gb_tensor **out);
/* The first dimension in equal parts: the rank's part of the sum, a new tensor. */
gb_status gb_dist_reduce_scatter(gb_comm *comm, gb_tensor *tensor, gb_dist_op op, gb_tensor **out);
gb_status gb_dist_send(gb_comm *comm, gb_tensor *tensor, int to);
gb_status gb_dist_recv(gb_comm *comm, gb_tensor *tensor, int from); /* in place */

/* {---- shared with shards.c: contiguous values of a tensor in a lane's dtype, and back ---- */

gb_dtype gb_lane_dtype(gb_dtype dtype);
gb_status gb_dist_read(gb_tensor *tensor, gb_dtype dtype, void *host);
/* Write them into the tensor, rounded to its dtype. */
gb_status gb_dist_write(gb_tensor *tensor, gb_dtype dtype, const void *host);

/* ----} */

#endif
