/* tensors.c - collectives of tensors: their values go through the host's memory. */
#include "dist/tensors.h"

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
  gb_beneath_begin(context, &beneath);
  gb_status status = gb_tensor_new(context, dtype, tensor->ndim, tensor->shape, tensor->storage->device, &made);
  if (status == GB_OK) status = gb_tensor_write(made, host, (size_t)made->numel * gb_dtype_bytes(dtype));
  if (status == GB_OK) status = GB_RUN(context, copy, NULL, .x = tensor, .source = made);
  gb_tensor_release(made);
  gb_beneath_end(context, &beneath);
  return status;
}

/* Memory for that many values, that messages may reach. */
static gb_status take(gb_comm *comm, int64_t count, gb_dtype dtype, void **out) {
  *out = gb_counted_resize(comm->context, NULL, (size_t)count * gb_dtype_bytes(dtype));
  return *out ? GB_OK : GB_EMEMORY;
}

/* ====} */

/* {==== Collectives ==== */

gb_status gb_dist_broadcast(gb_comm *comm, gb_tensor *tensor, int source) {
  gb_dtype dtype = (gb_dtype)tensor->dtype;
  size_t bytes = (size_t)tensor->numel * gb_dtype_bytes(dtype);
  void *host = NULL;
  GB_TRY(gb_comm_begin(comm, "dist.broadcast"));
  gb_status status = take(comm, tensor->numel, dtype, &host);
  if (status == GB_OK && comm->rank == source) status = gb_dist_read(tensor, dtype, host);
  if (status == GB_OK) status = gb_comm_broadcast(comm, source, host, bytes);
  if (status == GB_OK && comm->rank != source) status = gb_dist_write(tensor, dtype, host);
  gb_comm_free(comm, host);
  return gb_comm_end(comm, status);
}

/* The numbers of a lane over their count. */
static void divide(const gb_lane *lane, void *data, int64_t count, int by) {
  for (int64_t i = 0; i < count; i++)
    if (lane->dtype == GB_FLOAT32) ((float *)data)[i] /= (float)by;
    else ((double *)data)[i] /= by;
}

/* Can the op be taken of this dtype? */
static gb_status check_op(gb_context *context, const char *who, gb_dtype dtype, gb_dist_op op) {
  bool is_float = gb_dtype_is_float(dtype);
  if (is_float ? op != GB_DIST_OR : op != GB_DIST_MEAN && (dtype != GB_BOOL || op != GB_DIST_SUM)) return GB_OK;
  return gb_fail(context, GB_EDTYPE, "%s: the %s of %s tensors: floats have sum, mean and max, integers sum, max and "
                                     "or, bools max and or", who, gb_dist_op_names[op], gb_dtype_name(dtype));
}

static gb_lane lane_of(const gb_tensor *tensor, gb_dist_op op) {
  static const gb_reduction reductions[GB_DIST_OPS] = { GB_REDUCE_SUM, GB_REDUCE_SUM, GB_REDUCE_MAX, GB_REDUCE_OR };
  return (gb_lane){ gb_lane_dtype((gb_dtype)tensor->dtype), reductions[op], tensor->numel };
}

gb_status gb_dist_all_reduce(gb_comm *comm, gb_tensor *tensor, gb_dist_op op) {
  gb_lane lane = lane_of(tensor, op);
  void *host = NULL;
  GB_TRY(check_op(comm->context, "all_reduce", (gb_dtype)tensor->dtype, op));
  GB_TRY(gb_comm_begin(comm, "dist.all_reduce"));
  gb_status status = take(comm, lane.count, lane.dtype, &host);
  if (status == GB_OK) status = gb_dist_read(tensor, lane.dtype, host);
  if (status == GB_OK) status = gb_comm_all_reduce(comm, &lane, host);
  if (status == GB_OK && op == GB_DIST_MEAN) divide(&lane, host, lane.count, comm->size);
  if (status == GB_OK) status = gb_dist_write(tensor, lane.dtype, host);
  gb_comm_free(comm, host);
  return gb_comm_end(comm, status);
}

/* The tensor of one rank, made from its place among the values of all. */
static gb_status place_of(gb_tensor *like, const void *all, int rank, gb_tensor **out) {
  size_t bytes = (size_t)like->numel * gb_dtype_bytes((gb_dtype)like->dtype);
  gb_context *context = gb_tensor_context(like);
  GB_TRY(gb_tensor_new(context, (gb_dtype)like->dtype, like->ndim, like->shape, like->storage->device, out));
  gb_status status = gb_tensor_write(*out, (const char *)all + (size_t)rank * bytes, bytes);
  if (status != GB_OK) gb_drop(out);
  return status;
}

gb_status gb_dist_all_gather(gb_comm *comm, gb_tensor *tensor, gb_tensor **out) {
  gb_dtype dtype = (gb_dtype)tensor->dtype;
  size_t bytes = (size_t)tensor->numel * gb_dtype_bytes(dtype);
  void *mine = NULL, *all = NULL;
  int made = 0;
  GB_TRY(gb_comm_begin(comm, "dist.all_gather"));
  gb_status status = take(comm, tensor->numel, dtype, &mine);
  if (status == GB_OK) status = take(comm, tensor->numel * comm->size, dtype, &all);
  if (status == GB_OK) status = gb_dist_read(tensor, dtype, mine);
  if (status == GB_OK) status = gb_comm_gather(comm, mine, bytes, all);
  while (status == GB_OK && made < comm->size) {
    status = place_of(tensor, all, made, &out[made]);
    made += status == GB_OK;
  }
  while (status != GB_OK && made > 0) gb_drop(&out[--made]);
  gb_comm_free(comm, mine);
  gb_comm_free(comm, all);
  return gb_comm_end(comm, status);
}

/* The part of the sum, from the host's memory. */
static gb_status make_part(gb_tensor *like, const gb_lane *lane, const void *host, int size, gb_tensor **out) {
  int64_t shape[GB_MAX_NDIM];
  for (int i = 0; i < like->ndim; i++) shape[i] = i ? like->shape[i] : like->shape[i] / size;
  GB_TRY(gb_tensor_new(gb_tensor_context(like), (gb_dtype)like->dtype, like->ndim, shape, like->storage->device, out));
  gb_status status = gb_dist_write(*out, lane->dtype, host);
  if (status != GB_OK) gb_drop(out);
  return status;
}

gb_status gb_dist_reduce_scatter(gb_comm *comm, gb_tensor *tensor, gb_dist_op op, gb_tensor **out) {
  gb_lane lane = lane_of(tensor, op);
  void *host = NULL, *part = NULL;
  GB_TRY(check_op(comm->context, "reduce_scatter", (gb_dtype)tensor->dtype, op));
  if (tensor->ndim == 0 || tensor->shape[0] % comm->size)
    return gb_fail(comm->context, GB_ESHAPE, "reduce_scatter: dimension 1 has %lld elements, which %d ranks cannot "
                                             "share evenly; pad it", tensor->ndim ? (long long)tensor->shape[0] : 1LL,
                   comm->size);
  GB_TRY(gb_comm_begin(comm, "dist.reduce_scatter"));
  gb_status status = take(comm, lane.count, lane.dtype, &host);
  if (status == GB_OK) status = take(comm, lane.count / comm->size, lane.dtype, &part);
  if (status == GB_OK) status = gb_dist_read(tensor, lane.dtype, host);
  if (status == GB_OK) status = gb_comm_reduce_scatter(comm, &lane, host, part);
  if (status == GB_OK && op == GB_DIST_MEAN) divide(&lane, part, lane.count / comm->size, comm->size);
  if (status == GB_OK) status = make_part(tensor, &lane, part, comm->size, out);
  gb_comm_free(comm, host);
  gb_comm_free(comm, part);
  return gb_comm_end(comm, status);
}

/* One message, from or into a tensor. */
static gb_status transfer(gb_comm *comm, gb_tensor *tensor, bool sends, int peer) {
  gb_dtype dtype = (gb_dtype)tensor->dtype;
  size_t bytes = (size_t)tensor->numel * gb_dtype_bytes(dtype);
  void *host = NULL;
  GB_TRY(gb_comm_begin(comm, sends ? "dist.send" : "dist.recv"));
  gb_status status = take(comm, tensor->numel, dtype, &host);
  if (status == GB_OK && sends) status = gb_dist_read(tensor, dtype, host);
  if (status == GB_OK) status = gb_comm_transfer(comm, GB_TAG_USER, sends, peer, host, bytes);
  if (status == GB_OK && !sends) status = gb_dist_write(tensor, dtype, host);
  gb_comm_free(comm, host);
  return gb_comm_end(comm, status);
}

gb_status gb_dist_send(gb_comm *comm, gb_tensor *tensor, int to) { return transfer(comm, tensor, true, to); }
gb_status gb_dist_recv(gb_comm *comm, gb_tensor *tensor, int from) { return transfer(comm, tensor, false, from); }

/* ====} */
