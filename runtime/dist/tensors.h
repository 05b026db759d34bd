/* tensors.h - collectives of tensors of any dtype and device; every rank makes the same calls, with equal shapes.
 *
 * Sums are of float64, of float32 (16-bit floats too, which are rounded once, at the end), or of int64. Each call can
 * be begun and waited for later: its values are read when it begins, and written when it is waited for. What is begun
 * runs one after another (progress.h), but messages, which are under way at once. */
#ifndef GB_DIST_TENSORS_H
#define GB_DIST_TENSORS_H

#include "dist/tree.h"
#include "graph/ops.h"

typedef enum gb_dist_op { GB_DIST_SUM, GB_DIST_MEAN, GB_DIST_MAX, GB_DIST_OR, GB_DIST_OPS } gb_dist_op;
extern const char *const gb_dist_op_names[GB_DIST_OPS];

/* What a call works on, and where its results come: in the tensor itself, or new ones, one for each rank of a gather,
 * else one. */
typedef enum gb_dist_kind { GB_DIST_BROADCAST, GB_DIST_ALL_REDUCE, GB_DIST_ALL_GATHER, GB_DIST_REDUCE_SCATTER,
                            GB_DIST_SEND, GB_DIST_RECV } gb_dist_kind;
typedef struct gb_dist_call {
  gb_dist_kind kind;
  gb_tensor *tensor;
  gb_dist_op op;              /* of a reduction */
  int peer;                   /* the source, or whom a message goes to or comes from */
} gb_dist_call;

/* Make the call; out has room for its new tensors, if there are any. */
gb_status gb_dist_call_now(gb_comm *comm, const gb_dist_call *call, gb_tensor **out);

typedef struct gb_handle gb_handle;
gb_status gb_dist_call_begin(gb_comm *comm, const gb_dist_call *call, gb_handle **out);
/* Write the results. Again: nothing more happens, and the same is returned. */
gb_status gb_handle_wait(gb_handle *handle);
/* Would waiting end at once? A failure that this finds, wait tells. */
bool gb_handle_is_done(gb_handle *handle);
const gb_dist_call *gb_handle_call(const gb_handle *handle);
/* After waiting: the tensor that was given, or the new ones, as many as count; the handle's. */
gb_tensor *const *gb_handle_results(const gb_handle *handle, int *count);
/* What was not waited for goes on, and its results are lost. NULL is fine. */
void gb_handle_free(gb_handle *handle);

static inline gb_status gb_dist_broadcast(gb_comm *comm, gb_tensor *tensor, int source) {
  return gb_dist_call_now(comm, &(gb_dist_call){ .kind = GB_DIST_BROADCAST, .tensor = tensor, .peer = source }, NULL);
}

/* {---- shared with shards.c: contiguous values of a tensor in a lane's dtype, and back ---- */

gb_dtype gb_lane_dtype(gb_dtype dtype);
gb_status gb_dist_read(gb_tensor *tensor, gb_dtype dtype, void *host);
/* Write them into the tensor, rounded to its dtype. */
gb_status gb_dist_write(gb_tensor *tensor, gb_dtype dtype, const void *host);

/* ----} */

#endif
