/* sharded.c - bringing the parts of a slab together: round the ring, in place. */
#include "dist/sharded.h"

#include "dist/room.h"
#include "graph/ops.h"

static size_t byte_of(const gb_split *split, const gb_tensor *vector, int rank) {
  return (size_t)gb_split_first(vector->numel, split->size, rank) * gb_dtype_bytes((gb_dtype)vector->dtype);
}

/* Each rank hands on the run that it received last. */
static gb_status pass_runs(gb_comm *comm, const gb_split *split, gb_tensor *vector) {
  int size = comm->size, to = (comm->rank + 1) % size, from = (comm->rank - 1 + size) % size;
  char *data = gb_data(vector);
  for (int i = 0; i < size - 1; i++) {
    int out = (comm->rank - i + size) % size, in = (out - 1 + size) % size;
    size_t out_first = byte_of(split, vector, out), in_first = byte_of(split, vector, in);
    GB_TRY(gb_comm_swap(comm, GB_TAG_GATHER, to, data + out_first, byte_of(split, vector, out + 1) - out_first, from,
                        data + in_first, byte_of(split, vector, in + 1) - in_first));
  }
  return GB_OK;
}

/* The memory of a slab outlives the job's messages only where these are done: a failure leaves it to them. */
static gb_status gather(gb_context *context, const gb_split *split, gb_tensor *vector) {
  gb_comm *comm = gb_dist_comm(context);
  if (!comm || comm->size != split->size || comm->rank != split->rank)
    return gb_fail(context, GB_ESTATE, "Sharded: the job of %d processes that shares the optimizer's states was left; "
                                       "call gb.dist.finalize() after the last step and save", split->size);
  GB_TRY(gb_comm_begin(comm, "Sharded"));
  gb_status status = gb_comm_end(comm, pass_runs(comm, split, vector));
  if (status != GB_OK) gb_tensor_retain(vector);
  return status;
}

gb_status gb_optimizer_shard(gb_context *context, gb_optimizer *optimizer) {
  gb_comm *comm = gb_dist_comm(context);
  const gb_split split = { comm ? comm->rank : 0, comm ? comm->size : 1, gather };
  if (gb_optimizer_is_split(optimizer))
    return gb_fail(context, GB_ESTATE, "Sharded: the optimizer's states are shared out already");
  return gb_optimizer_split(optimizer, &split);
}
