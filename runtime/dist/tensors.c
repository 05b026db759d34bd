/* tensors.c - collectives of tensors. A call has three parts: prepare reads the tensor, run exchanges memory, on any
 * thread, and finish writes the results. Values go through the host's memory, but where the transport takes the GPU's:
 * then through a tensor beside it, which other threads and streams may use, and sums are taken there (near.h). */
#include "dist/tensors.h"

#include <stddef.h>

#include "dist/progress.h"
#include "graph/room.h"

const char *const gb_dist_op_names[GB_DIST_OPS] = { "sum", "mean", "max", "or" };

/* {==== Values ==== */

gb_dtype gb_lane_dtype(gb_dtype dtype) {
  return dtype == GB_FLOAT64 ? GB_FLOAT64 : gb_dtype_is_float(dtype) ? GB_FLOAT32 : GB_INT64;
}

gb_status gb_dist_read(gb_tensor *tensor, gb_dtype dtype, void *host) {
  gb_context *context = gb_tensor_context(tensor);
  gb_beneath beneath;
  gb_tensor *cast = NULL;
  gb_beneath_begin(context, &beneath);
  gb_status status = gb_op_cast(context, tensor, dtype, &cast);
  if (status == GB_OK) status = gb_tensor_read(cast, host, (size_t)cast->numel * gb_dtype_bytes(dtype));
  gb_tensor_release(cast);
  gb_beneath_end(context, &beneath);
  return status;
}

gb_status gb_dist_write(gb_tensor *tensor, gb_dtype dtype, const void *host) {
  gb_context *context = gb_tensor_context(tensor);
  gb_beneath beneath;
  gb_tensor *made = NULL;
  if (tensor->dtype == (int8_t)dtype) return gb_tensor_write(tensor, host, (size_t)tensor->numel *
                                                             gb_dtype_bytes(dtype));
  gb_beneath_begin(context, &beneath);
  gb_status status = gb_tensor_new(context, dtype, tensor->ndim, tensor->shape, tensor->storage->device, &made);
  if (status == GB_OK) status = gb_tensor_write(made, host, (size_t)made->numel * gb_dtype_bytes(dtype));
  if (status == GB_OK) status = GB_RUN(context, copy, NULL, .x = tensor, .source = made);
  gb_tensor_release(made);
  gb_beneath_end(context, &beneath);
  return status;
}

/* ====} */

/* {==== The parts of each call ==== */

/* A call under way, or over. */
struct gb_handle {
  gb_comm_friend friend;              /* first: the job tells it */
  gb_context *context;                /* counted */
  gb_comm *comm;                      /* NULL: the job was left */
  gb_dist_call call;                  /* the tensor is counted */
  gb_lane lane;                       /* of the values in memory */
  void *host, *more;                  /* NULL where these tensors hold the values: */
  gb_tensor *near, *near_all;
  gb_near place;                      /* of these */
  gb_task task;
  gb_post post;                       /* of a message */
  gb_tensor **made;                   /* new tensors, counted */
  int n_made, rank, size;
  bool over, orphan;                  /* it was waited for; nobody will */
  bool counted;                       /* among the job's messages under way */
  gb_status status;                   /* once it is over */
};

static bool is_message(const gb_handle *h) { return h->call.kind >= GB_DIST_SEND; }

/* A message of the recipe is under way until it was waited for, or the job is left. */
static void count_message(gb_handle *h, bool begins) {
  if (h->counted == begins || !h->comm || !h->comm->job) return;
  atomic_fetch_add(&h->comm->job->messages, begins ? 1 : -1);
  h->counted = begins;
}
static size_t bytes_of(const gb_handle *h) { return gb_lane_bytes(&h->lane); }

/* Memory for so many values. */
static gb_status take(gb_handle *h, int64_t count, void **out) {
  *out = gb_comm_take(h->comm, (size_t)count * gb_dtype_bytes(h->lane.dtype));
  return *out ? GB_OK : GB_EMEMORY;
}

/* Does the tensor's device send and receive the values itself? */
static bool is_near(const gb_handle *h) {
  return bytes_of(h) > GB_NEAR_LEAST && gb_comm_is_near(h->comm, h->call.tensor->storage->device);
}

static void count_staged(const gb_handle *h, const gb_tensor *t) {
  if (t->storage->device.type != GB_CPU)
    gb_comm_count_staged(h->comm, (size_t)t->numel * gb_dtype_bytes(h->lane.dtype));
}

/* Copy on the device, whatever the layouts. */
static gb_status copy_over(gb_handle *h, gb_tensor *to, gb_tensor *from) {
  gb_beneath beneath;
  gb_beneath_begin(h->context, &beneath);
  gb_status status = GB_RUN(h->context, copy, NULL, .x = to, .source = from);
  gb_beneath_end(h->context, &beneath);
  return status;
}

/* Part r of the values of all ranks, as a tensor of the call's shape. */
static gb_status part_of_all(gb_handle *h, int r, gb_tensor **out) {
  const gb_tensor *like = h->call.tensor;
  int64_t strides[GB_MAX_NDIM];
  gb_contiguous_strides(like->ndim, like->shape, strides);
  return gb_tensor_view(h->near_all, like->ndim, like->shape, strides, r * like->numel, out);
}

/* What was launched on the device is over, so that others may use the memory. */
static gb_status settle_device(gb_handle *h) { return gb_synchronize(h->context, h->call.tensor->storage->device); }

static gb_status read_near(gb_handle *h, bool gives) {
  const gb_tensor *like = h->call.tensor;
  GB_TRY(gb_tensor_new(h->context, h->lane.dtype, like->ndim, like->shape, like->storage->device, &h->near));
  h->place = (gb_near){ h->context, like->storage->device, true, true };
  h->lane.near = &h->place;
  if (gives) GB_TRY(copy_over(h, h->near, h->call.tensor));
  return settle_device(h);
}

/* Memory for the values, with these in it, where the rank has them to give. */
static gb_status read_values(gb_handle *h, bool gives) {
  if (is_near(h)) return read_near(h, gives);
  GB_TRY(take(h, h->lane.count, &h->host));
  if (gives) count_staged(h, h->call.tensor);
  return gives ? gb_dist_read(h->call.tensor, h->lane.dtype, h->host) : GB_OK;
}

static void *data_of(const gb_handle *h) { return h->near ? gb_data(h->near) : h->host; }

static gb_status write_values(gb_handle *h) {
  if (h->near) return copy_over(h, h->call.tensor, h->near);
  count_staged(h, h->call.tensor);
  return gb_dist_write(h->call.tensor, h->lane.dtype, h->host);
}

/* The numbers of a tensor of floats over the number of ranks. */
static gb_status divide_near(gb_handle *h, gb_tensor *numbers) {
  gb_beneath beneath;
  gb_tensor *by = NULL;
  gb_beneath_begin(h->context, &beneath);
  gb_status status = gb_tensor_wrap_number(h->context, h->size, &by);
  if (status == GB_OK) status = GB_RUN(h->context, div, NULL, .x = numbers, .y = by);
  gb_tensor_release(by);
  gb_beneath_end(h->context, &beneath);
  return status;
}

/* The numbers of a lane over their count. */
static void divide(const gb_lane *lane, void *data, int64_t count, int by) {
  for (int64_t i = 0; i < count; i++)
    if (lane->dtype == GB_FLOAT32) ((float *)data)[i] /= (float)by;
    else ((double *)data)[i] /= by;
}

static gb_status prepare_broadcast(gb_handle *h) { return read_values(h, h->rank == h->call.peer); }
static gb_status run_broadcast(gb_handle *h, gb_comm *comm) {
  return gb_comm_broadcast(comm, h->call.peer, data_of(h), bytes_of(h));
}
static gb_status finish_broadcast(gb_handle *h) { return h->rank == h->call.peer ? GB_OK : write_values(h); }

static gb_status prepare_reduce(gb_handle *h) { return read_values(h, true); }
static gb_status run_reduce(gb_handle *h, gb_comm *comm) {
  return gb_comm_all_reduce(comm, &h->lane, data_of(h));
}
static gb_status finish_reduce(gb_handle *h) {
  if (h->call.op == GB_DIST_MEAN && h->near) GB_TRY(divide_near(h, h->near));
  else if (h->call.op == GB_DIST_MEAN) divide(&h->lane, h->host, h->lane.count, h->size);
  return write_values(h);
}

/* A new tensor like the given one, but for its first dimension, with these values. */
static gb_status make(gb_handle *h, int64_t first, const void *values) {
  const gb_tensor *like = h->call.tensor;
  int64_t shape[GB_MAX_NDIM];
  gb_tensor **out = &h->made[h->n_made];
  for (int i = 0; i < like->ndim; i++) shape[i] = i ? like->shape[i] : first;
  GB_TRY(gb_tensor_new(h->context, (gb_dtype)like->dtype, like->ndim, shape, like->storage->device, out));
  h->n_made++;
  if (h->near) return gb_near_write(&h->place, *out, h->lane.dtype, (void *)(uintptr_t)values);
  count_staged(h, *out);
  return gb_dist_write(*out, h->lane.dtype, values);
}

/* The values of all ranks in one tensor, this one's among them. */
static gb_status read_all_near(gb_handle *h) {
  const gb_tensor *like = h->call.tensor;
  gb_tensor *mine = NULL;
  int64_t count = like->numel * h->size;
  GB_TRY(gb_tensor_new(h->context, (gb_dtype)like->dtype, 1, &count, like->storage->device, &h->near_all));
  gb_status status = part_of_all(h, h->rank, &mine);
  if (status == GB_OK) status = copy_over(h, mine, h->call.tensor);
  gb_tensor_release(mine);
  return status == GB_OK ? settle_device(h) : status;
}

/* New tensors of them. */
static gb_status make_near(gb_handle *h) {
  const gb_tensor *like = h->call.tensor;
  gb_status status = GB_OK;
  for (int r = 0; r < h->size && status == GB_OK; r++) {
    gb_tensor *part = NULL, **out = &h->made[h->n_made];
    GB_TRY(gb_tensor_new(h->context, (gb_dtype)like->dtype, like->ndim, like->shape, like->storage->device, out));
    h->n_made++;
    status = part_of_all(h, r, &part);
    if (status == GB_OK) status = copy_over(h, *out, part);
    gb_tensor_release(part);
  }
  return status;
}

static gb_status prepare_gather(gb_handle *h) {
  if (is_near(h)) return read_all_near(h);
  GB_TRY(take(h, h->lane.count * h->size, &h->more));
  return read_values(h, true);
}
static gb_status run_gather(gb_handle *h, gb_comm *comm) {
  return h->near_all ? gb_comm_gather(comm, NULL, bytes_of(h), gb_data(h->near_all))
                     : gb_comm_gather(comm, h->host, bytes_of(h), h->more);
}
static gb_status finish_gather(gb_handle *h) {
  if (h->near_all) return make_near(h);
  const gb_tensor *t = h->call.tensor;
  for (int r = 0; r < h->size; r++) GB_TRY(make(h, t->ndim ? t->shape[0] : 0, (char *)h->more + (size_t)r *
                                                bytes_of(h)));
  return GB_OK;
}

static gb_status prepare_scatter(gb_handle *h) {
  int64_t count = h->lane.count / h->size;
  if (is_near(h))
    GB_TRY(gb_tensor_new(h->context, h->lane.dtype, 1, &count, h->call.tensor->storage->device, &h->near_all));
  else GB_TRY(take(h, count, &h->more));
  return read_values(h, true);
}
static void *part_data(const gb_handle *h) { return h->near_all ? gb_data(h->near_all) : h->more; }
static gb_status run_scatter(gb_handle *h, gb_comm *comm) {
  return gb_comm_reduce_scatter(comm, &h->lane, data_of(h), part_data(h));
}
static gb_status finish_scatter(gb_handle *h) {
  if (h->call.op == GB_DIST_MEAN && h->near) GB_TRY(divide_near(h, h->near_all));
  else if (h->call.op == GB_DIST_MEAN) divide(&h->lane, h->more, h->lane.count / h->size, h->size);
  return make(h, h->call.tensor->shape[0] / h->size, part_data(h));
}

static gb_status prepare_send(gb_handle *h) { return read_values(h, true); }
static gb_status prepare_recv(gb_handle *h) { return read_values(h, false); }
static gb_status run_message(gb_handle *h, gb_comm *comm) { return gb_comm_wait(comm, &h->post, 1); }
static gb_status finish_send(gb_handle *h) { return (void)h, GB_OK; }

/* widens: values are those of sums; makes: new tensors, one of each rank or one. */
static const struct {
  const char *name;
  gb_status (*prepare)(gb_handle *h), (*run)(gb_handle *h, gb_comm *comm), (*finish)(gb_handle *h);
  bool widens, makes;
} calls[] = {
  [GB_DIST_BROADCAST] = { "dist.broadcast", prepare_broadcast, run_broadcast, finish_broadcast, false, false },
  [GB_DIST_ALL_REDUCE] = { "dist.all_reduce", prepare_reduce, run_reduce, finish_reduce, true, false },
  [GB_DIST_ALL_GATHER] = { "dist.all_gather", prepare_gather, run_gather, finish_gather, false, true },
  [GB_DIST_REDUCE_SCATTER] = { "dist.reduce_scatter", prepare_scatter, run_scatter, finish_scatter, true, true },
  [GB_DIST_SEND] = { "dist.send", prepare_send, run_message, finish_send, false, false },
  [GB_DIST_RECV] = { "dist.recv", prepare_recv, run_message, write_values, false, false },
};

/* ====} */

/* {==== Calls ==== */

/* Can the op be taken of this dtype? */
static gb_status check_op(gb_context *context, const char *who, gb_dtype dtype, gb_dist_op op) {
  bool is_float = gb_dtype_is_float(dtype);
  if (is_float ? op != GB_DIST_OR : op != GB_DIST_MEAN && (dtype != GB_BOOL || op != GB_DIST_SUM)) return GB_OK;
  return gb_fail(context, GB_EDTYPE, "%s: the %s of %s tensors: floats have sum, mean and max, integers sum, max and "
                                     "or, bools max and or", who, gb_dist_op_names[op], gb_dtype_name(dtype));
}

/* What can be told before anything is exchanged. */
static gb_status check_call(const gb_comm *comm, const gb_dist_call *call) {
  const gb_tensor *t = call->tensor;
  const char *who = calls[call->kind].name + sizeof "dist." - 1;
  if (calls[call->kind].widens) GB_TRY(check_op(comm->context, who, (gb_dtype)t->dtype, call->op));
  if (call->kind == GB_DIST_REDUCE_SCATTER && t->ndim == 0)
    return gb_fail(comm->context, GB_ESHAPE, "%s: the tensor has no dimensions, so that there is none to share; "
                                             "all_reduce gives every rank the whole", who);
  if (call->kind == GB_DIST_REDUCE_SCATTER && t->shape[0] % comm->size)
    return gb_fail(comm->context, GB_ESHAPE, "%s: dimension 1 has %lld elements, which %d ranks cannot share evenly; "
                                             "pad it", who, (long long)t->shape[0], comm->size);
  return GB_OK;
}

static void fill(gb_handle *h, gb_comm *comm, const gb_dist_call *call) {
  static const gb_reduction reductions[GB_DIST_OPS] = { GB_REDUCE_SUM, GB_REDUCE_SUM, GB_REDUCE_MAX, GB_REDUCE_OR };
  gb_dtype dtype = (gb_dtype)call->tensor->dtype;
  *h = (gb_handle){ .context = comm->context, .comm = comm, .call = *call, .rank = comm->rank,
                    .size = comm->size };
  h->lane = (gb_lane){ calls[call->kind].widens ? gb_lane_dtype(dtype) : dtype, reductions[call->op],
                       call->tensor->numel, NULL, NULL };
}

/* The call as a number, by which its messages know each other: of both sides of a message it is the same. */
static int number_of(const gb_dist_call *call) {
  int kind = call->kind == GB_DIST_RECV ? GB_DIST_SEND : call->kind;
  return 1 + (kind * GB_DIST_OPS + (int)call->op) * GB_DTYPE_COUNT + call->tensor->dtype;
}

/* Room for new tensors, and the message. */
static gb_status prepare(gb_handle *h) {
  if (calls[h->call.kind].makes) {
    h->made = gb_counted_alloc(h->context, (size_t)h->size * sizeof(gb_tensor *));
    if (!h->made) return GB_EMEMORY;
  }
  GB_TRY(calls[h->call.kind].prepare(h));
  if (!is_message(h)) return GB_OK;
  return gb_comm_post(h->comm, GB_TAG_USER, h->call.kind == GB_DIST_SEND, h->call.peer, data_of(h), bytes_of(h),
                      &h->post);
}

/* Memory for messages goes. */
static void free_memory(gb_handle *h) {
  bool reached = h->post.message != NULL;
  gb_comm_release(h->comm, h->near, reached);
  gb_comm_release(h->comm, h->near_all, false);
  h->near = h->near_all = NULL;
  if (reached) gb_comm_drop(h->comm, &h->post, h->host);
  else gb_comm_free(h->comm, h->host);
  gb_comm_free(h->comm, h->more);
  h->host = h->more = NULL;
}

static void drop_made(gb_handle *h) {
  while (h->n_made) gb_drop(&h->made[--h->n_made]);
  gb_counted_free(h->made);
  h->made = NULL;
}

gb_status gb_dist_call_now(gb_comm *comm, const gb_dist_call *call, gb_tensor **out) {
  gb_handle h;
  GB_TRY(check_call(comm, call));
  GB_TRY(gb_comm_begin(comm, calls[call->kind].name));
  fill(&h, comm, call);
  comm->call = number_of(call);
  gb_status status = prepare(&h);
  if (status == GB_OK) status = calls[call->kind].run(&h, comm);
  if (status == GB_OK) status = calls[call->kind].finish(&h);
  for (int i = 0; status == GB_OK && i < h.n_made; i++) gb_tensor_retain(out[i] = h.made[i]);
  drop_made(&h);
  free_memory(&h);
  return gb_comm_end(comm, status);
}

/* ====} */

/* {==== Calls that are waited for later ==== */

static gb_status run_task(gb_task *task) {
  gb_handle *h = (gb_handle *)((char *)task - offsetof(gb_handle, task));
  return calls[h->call.kind].run(h, &task->view);
}

static void destroy(gb_handle *h) {
  gb_context *context = h->context;
  count_message(h, false);
  gb_comm_part(&h->friend);
  free_memory(h);
  drop_made(h);
  gb_tensor_release(h->call.tensor);
  gb_comm_let_go(h->comm);
  gb_counted_free(h);
  gb_context_release(context);
}

/* The job is left: tasks are done, messages are not waited for. */
static void leave(gb_comm_friend *it) {
  gb_handle *h = (gb_handle *)it;
  count_message(h, false);
  if (!h->over && (is_message(h) || h->task.status != GB_OK)) h->over = true, h->status = GB_ESTATE;
  if (h->over) free_memory(h);
  gb_comm_let_go(h->comm);
  h->comm = NULL;
  if (h->orphan) destroy(h);
}

/* Those that nobody waits for go once they are done. */
static void bury_orphans(gb_comm *job) {
  for (gb_comm_friend *it = job->friends.after, *next; it != &job->friends; it = next) {
    gb_handle *h = (gb_handle *)it;
    next = it->after;
    if (it->left == leave && h->orphan && atomic_load(&h->task.done)) destroy(h);
  }
}

gb_status gb_dist_call_begin(gb_comm *comm, const gb_dist_call *call, gb_handle **out) {
  const char *name = calls[call->kind].name;
  GB_TRY(check_call(comm, call));
  GB_TRY(gb_comm_check(comm, name));
  if (comm->job) bury_orphans(comm->job);
  gb_handle *h = gb_counted_alloc(comm->context, sizeof *h);
  if (!h) return GB_EMEMORY;
  fill(h, comm, call);
  gb_context_retain(h->context);
  gb_tensor_retain(call->tensor);
  gb_comm_hold(comm);
  h->friend.left = leave;
  comm->operation = name;
  comm->call = number_of(call);
  gb_status status = prepare(h);
  if (status != GB_OK) return destroy(h), gb_comm_end(comm, status);
  comm->operation = NULL;
  h->task.run = run_task;
  h->task.operation = name;
  if (comm->job) gb_comm_befriend(comm->job, &h->friend);
  if (comm->job && comm->size > 1) {
    if (!is_message(h)) gb_progress_begin(comm, GB_QUEUE_CALLS, &h->task);
    else count_message(h, true);
    comm->call = 0;
  } else { /* alone: it is done at once */
    h->over = true;
    status = h->status = calls[call->kind].run(h, comm);
    if (status == GB_OK) status = h->status = calls[call->kind].finish(h);
    free_memory(h);
    gb_comm_let_go(comm);
    h->comm = NULL;
    if (status != GB_OK) return destroy(h), status;
  }
  *out = h;
  return GB_OK;
}

/* The exchange itself. A job that was left has ended tasks. */
static gb_status settle(gb_handle *h) {
  if (!h->comm) return h->task.status;
  if (!is_message(h)) return gb_progress_wait(h->context, &h->task);
  GB_TRY(gb_comm_check(h->comm, calls[h->call.kind].name));
  h->comm->operation = calls[h->call.kind].name;
  return gb_comm_end(h->comm, calls[h->call.kind].run(h, h->comm));
}

gb_status gb_handle_wait(gb_handle *h) {
  if (h->over && h->status != GB_OK)
    return gb_fail(h->context, h->status, "%s: the exchange failed, or the job was left before it was waited for",
                   calls[h->call.kind].name);
  if (h->over) return GB_OK;
  h->status = settle(h);
  h->over = true;
  count_message(h, false);
  if (h->status == GB_OK) h->status = calls[h->call.kind].finish(h);
  free_memory(h);
  return h->status;
}

bool gb_handle_is_done(gb_handle *h) {
  int left = 0;
  if (h->over || !h->comm) return true;
  if (!is_message(h)) return atomic_load(&h->task.done);
  return gb_comm_look(h->comm, &h->post, 1, &left) != GB_OK || left == 0;
}

gb_tensor *const *gb_handle_results(const gb_handle *h, int *count) {
  *count = h->made ? h->n_made : 1;
  return h->made ? h->made : &h->call.tensor;
}

const gb_dist_call *gb_handle_call(const gb_handle *h) { return &h->call; }

void gb_handle_free(gb_handle *h) {
  if (!h) return;
  if (h->comm && !h->over && !is_message(h) && !atomic_load(&h->task.done)) h->orphan = true;
  else destroy(h);
}

/* ====} */
