/* sharded.c - bringing the runs of a slab together: round the ring, in place; and what was measured of gradients. */
#include "dist/sharded.h"

#include "dist/room.h"
#include "dist/tree.h"
#include "graph/ops.h"

/* A run of a vector, in bytes. */
typedef struct run { char *data; size_t bytes; } run;

/* What is brought together, and where the runs of ranks begin in it: see gb_split. data: its values, or of what lies on
 * a device a copy in the host's memory. */
typedef struct whole { const gb_split *split; gb_tensor *vector; const int64_t *starts; int64_t blocks; char *data; }
  whole;

static run run_of(const whole *w, int64_t block, int rank) {
  gb_tensor *vector = w->vector;
  size_t each = gb_dtype_bytes((gb_dtype)vector->dtype);
  int64_t first = w->starts ? w->starts[rank] : gb_split_first(vector->numel, w->split->size, block, rank);
  int64_t end = w->starts ? w->starts[rank + 1] : gb_split_first(vector->numel, w->split->size, block, rank + 1);
  return (run){ w->data + (size_t)first * each, (size_t)(end - first) * each };
}

/* The runs of all blocks under way at once: those of one rank go to the next one, and those of another come. */
static gb_status pass_runs(gb_comm *comm, const whole *w, int out, int in, gb_post *posts) {
  int size = comm->size, count = 0;
  gb_status status = GB_OK;
  for (int64_t b = 0; b < 2 * w->blocks && status == GB_OK; b++) {
    bool sends = b % 2;
    run r = run_of(w, b / 2, sends ? out : in);
    if (!r.bytes) continue;
    status = gb_comm_post(comm, GB_TAG_GATHER, sends, (comm->rank + (sends ? 1 : size - 1)) % size, r.data, r.bytes,
                          &posts[count]);
    count += status == GB_OK;
  }
  if (status == GB_OK) return gb_comm_wait(comm, posts, count);
  while (count--) gb_comm_drop(comm, &posts[count], NULL);
  return status;
}

/* Each rank hands on the runs that it received last. */
static gb_status pass_all(gb_comm *comm, const whole *w) {
  gb_post *posts = gb_comm_take(comm, (size_t)(2 * w->blocks + 1) * sizeof *posts);
  if (!posts) return GB_EMEMORY;
  gb_status status = GB_OK;
  for (int i = 0; i < comm->size - 1 && status == GB_OK; i++) {
    int out = (comm->rank - i + comm->size) % comm->size;
    status = pass_runs(comm, w, out, (out - 1 + comm->size) % comm->size, posts);
  }
  gb_counted_free(posts);
  return status;
}

/* The job whose processes share the states. */
static gb_status find_job(gb_context *context, const gb_split *split, gb_comm **out) {
  *out = gb_dist_comm(context);
  if (*out && (*out)->size == split->size && (*out)->rank == split->rank) return GB_OK;
  return gb_fail(context, GB_ESTATE, "Sharded: the job of %d processes that shares the optimizer's states was left; "
                                     "call gb.dist.finalize() after the last step and save", split->size);
}

/* This process's runs of a vector on a device, at their places in the host's memory. */
static gb_status fetch(const whole *w) {
  int64_t each = (int64_t)gb_dtype_bytes((gb_dtype)w->vector->dtype), stride = 1;
  gb_status status = GB_OK;
  for (int64_t b = 0; b < w->blocks && status == GB_OK; b++) {
    run r = run_of(w, b, w->split->rank);
    int64_t first = (r.data - w->data) / each, count = (int64_t)r.bytes / each;
    gb_tensor *mine = NULL;
    if (count == 0) continue;
    status = gb_tensor_view(w->vector, 1, &count, &stride, first, &mine);
    if (status == GB_OK) status = gb_tensor_read(mine, r.data, r.bytes);
    gb_tensor_release(mine);
  }
  return status;
}

/* Through the host's memory: this process's runs out, and all of it back. */
static gb_status pass_staged(gb_comm *comm, whole *w) {
  size_t bytes = (size_t)w->vector->numel * gb_dtype_bytes((gb_dtype)w->vector->dtype);
  w->data = gb_comm_take(comm, bytes);
  if (!w->data) return GB_EMEMORY;
  gb_status status = fetch(w);
  if (status == GB_OK) status = pass_all(comm, w);
  if (status == GB_OK) status = gb_tensor_write(w->vector, w->data, bytes);
  gb_comm_count_staged(comm, bytes);
  gb_comm_free(comm, w->data);
  return status;
}

/* Where it lies on a device: what was launched there comes before, and all that was received is there after. */
static gb_status pass_near(gb_comm *comm, const whole *w) {
  GB_TRY(gb_synchronize(comm->context, w->vector->storage->device));
  GB_TRY(pass_all(comm, w));
  return gb_comm_settle(comm);
}

/* After a failure messages may still reach the slab: it stays until the job is left. */
static gb_status gather(gb_context *context, const gb_split *split, gb_tensor *vector, const int64_t *starts) {
  gb_comm *comm;
  gb_device device = vector->storage->device;
  GB_TRY(find_job(context, split, &comm));
  bool is_near = gb_comm_is_near(comm, device), in_place = is_near || device.type == GB_CPU;
  whole w = { split, vector, starts, starts ? 1 : gb_split_blocks(vector->numel, split->size),
              in_place ? gb_data(vector) : NULL };
  GB_TRY(gb_comm_begin(comm, "Sharded (weights)"));
  gb_status status = gb_comm_end(comm, is_near ? pass_near(comm, &w) : in_place ? pass_all(comm, &w)
                                                                                : pass_staged(comm, &w));
  if (status != GB_OK && in_place) {
    gb_tensor_retain(vector);
    gb_comm_release(comm, vector, true);
  }
  return status;
}

/* One message of all: where the others have 0, a sum is what one process has. */
static gb_status share(gb_context *context, const gb_split *split, double *numbers, int64_t count, bool *flag) {
  gb_comm *comm;
  GB_TRY(find_job(context, split, &comm));
  GB_TRY(gb_comm_begin(comm, "Sharded (norms)"));
  double *all = gb_comm_take(comm, (size_t)(count + 1) * sizeof *all);
  if (!all) return gb_comm_end(comm, GB_EMEMORY);
  for (int64_t i = 0; i < count; i++) all[i] = numbers[i];
  all[count] = *flag;
  gb_status status = gb_comm_all_reduce(comm, &(gb_lane){ GB_FLOAT64, GB_REDUCE_SUM, count + 1, NULL, NULL }, all);
  for (int64_t i = 0; i < count && status == GB_OK; i++) numbers[i] = all[i];
  if (status == GB_OK) *flag = all[count] > 0;
  gb_comm_free(comm, all);
  return gb_comm_end(comm, status);
}

gb_status gb_optimizer_shard(gb_context *context, gb_optimizer *optimizer, bool gradients, bool narrows) {
  gb_comm *comm = gb_dist_comm(context);
  const gb_split split = { comm ? comm->rank : 0, comm ? comm->size : 1, gradients, narrows, gather, share };
  if (gb_optimizer_is_split(optimizer))
    return gb_fail(context, GB_ESTATE, "Sharded: the optimizer's states are shared out already");
  return gb_optimizer_split(optimizer, &split);
}
