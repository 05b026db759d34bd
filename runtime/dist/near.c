/* near.c - see near.h. */
#include "dist/near.h"

#include "graph/ops.h"
#include "graph/room.h"

static const gb_backend *backend_of(const gb_near *near) { return gb_context_backend(near->context, near->device); }

bool gb_near_serves(const gb_context *context, const gb_comm *comm, gb_device device) {
  const gb_backend *backend = device.type == GB_CUDA ? gb_context_backend(context, device) : NULL;
  return backend && backend->mark && (!comm || gb_comm_is_near(comm, device));
}

/* {==== Memory ==== */

/* On a thread beside the context's nothing but the pool's cache can be reclaimed. */
static void *take_beside(const gb_near *near, gb_comm *comm, size_t bytes) {
  gb_context *context = near->context;
  gb_mover *mover = comm->job->transport.mover;
  void *memory = NULL;
  if (context->budget.limit && !gb_budget_take(&context->budget, bytes)) {
    gb_comm_fail(comm, GB_EMEMORY, "out of memory: %zu bytes of the device are over the limit", bytes);
    return NULL;
  }
  for (int turn = 0; turn < 2 && !memory; turn++) {
    if (turn) gb_pool_flush(gb_context_pool(context, near->device));
    gb_pulse_lock(comm->job->pulse);
    memory = mover->take(mover, bytes);
    gb_pulse_unlock(comm->job->pulse);
  }
  if (memory) return memory;
  gb_context_uncount(context, bytes);
  gb_comm_fail_near(comm, GB_EMEMORY);
  return NULL;
}

void *gb_near_take(const gb_near *near, gb_comm *comm, size_t bytes) {
  if (comm && comm->fault) return take_beside(near, comm, bytes);
  gb_context *context = near->context;
  const gb_backend *backend = backend_of(near);
  if (!gb_context_count(context, bytes)) return NULL;
  context->error_code = GB_OK;
  void *memory = backend->alloc(backend->state, bytes, 256);
  if (!memory && context->error_code == GB_OK) {
    gb_context_reclaim(context);
    memory = backend->alloc(backend->state, bytes, 256);
    if (!memory && context->error_code == GB_OK)
      gb_fail(context, GB_EMEMORY, "out of memory on the device: %zu bytes are needed for sums of gradients", bytes);
  }
  if (!memory) gb_context_uncount(context, bytes);
  return memory;
}

/* ====} */

/* {==== With the messages ==== */

/* status: of a call of the mover under the lock, which is left. */
static gb_status called(gb_comm *comm, gb_status status) {
  gb_pulse_unlock(comm->job->pulse);
  return status == GB_OK ? GB_OK : gb_comm_fail_near(comm, status);
}

static gb_mover *lock_mover(gb_comm *comm) {
  gb_pulse_lock(comm->job->pulse);
  return comm->job->transport.mover;
}

gb_status gb_near_follow(gb_near *near, gb_comm *comm, void *mark) {
  near->moves = true;
  gb_mover *mover = lock_mover(comm);
  return called(comm, mover->follow(mover, mark));
}

gb_status gb_near_copy(const gb_near *near, gb_comm *comm, void *to, const void *from, size_t bytes) {
  (void)near;
  gb_mover *mover = lock_mover(comm);
  return called(comm, mover->copy(mover, to, from, bytes));
}

/* ====} */

/* {==== With the kernels of the context ==== */

gb_status gb_near_tensor(const gb_near *near, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                         gb_tensor **out) {
  GB_TRY(gb_tensor_over(near->context, data, dtype, ndim, shape, NULL, NULL, out));
  (*out)->storage->device = near->device;
  return GB_OK;
}

/* Ops run beneath what the recipe sees. */
static gb_status copy(gb_context *context, gb_tensor *to, gb_tensor *from) {
  gb_beneath beneath;
  gb_beneath_begin(context, &beneath);
  gb_status status = GB_RUN(context, copy, NULL, .x = to, .source = from);
  gb_beneath_end(context, &beneath);
  return status;
}

gb_status gb_near_read(const gb_near *near, gb_tensor *tensor, gb_dtype dtype, void *data) {
  gb_tensor *place = NULL;
  GB_TRY(gb_near_tensor(near, data, dtype, tensor->ndim, tensor->shape, &place));
  gb_status status = copy(near->context, place, tensor);
  gb_tensor_release(place);
  return status;
}

gb_status gb_near_write(const gb_near *near, gb_tensor *tensor, gb_dtype dtype, void *data) {
  gb_tensor *place = NULL;
  GB_TRY(gb_near_tensor(near, data, dtype, tensor->ndim, tensor->shape, &place));
  gb_status status = copy(near->context, tensor, place);
  gb_tensor_release(place);
  return status;
}

gb_status gb_near_scale(const gb_near *near, gb_dtype dtype, void *data, int64_t count, double factor) {
  gb_tensor *place = NULL, *number = NULL;
  gb_beneath beneath;
  if (factor == 1) return GB_OK;
  gb_beneath_begin(near->context, &beneath);
  gb_status status = gb_near_tensor(near, data, dtype, 1, &count, &place);
  if (status == GB_OK) status = gb_tensor_wrap_number(near->context, factor, &number);
  if (status == GB_OK) status = GB_RUN(near->context, mul, NULL, .x = place, .y = number);
  gb_tensor_release(number);
  gb_tensor_release(place);
  gb_beneath_end(near->context, &beneath);
  return status;
}

static gb_status add(const gb_near *near, gb_dtype dtype, void *left, const void *right, int64_t count) {
  gb_tensor *to = NULL, *from = NULL;
  gb_beneath beneath;
  gb_beneath_begin(near->context, &beneath);
  gb_status status = gb_near_tensor(near, left, dtype, 1, &count, &to);
  if (status == GB_OK) status = gb_near_tensor(near, (void *)(uintptr_t)right, dtype, 1, &count, &from);
  if (status == GB_OK) status = GB_RUN(near->context, add, NULL, .x = to, .y = from);
  gb_tensor_release(from);
  gb_tensor_release(to);
  gb_beneath_end(near->context, &beneath);
  return status;
}

gb_status gb_near_mark(const gb_near *near, void **mark) {
  const gb_backend *backend = backend_of(near);
  return backend->mark(backend->state, mark);
}

void gb_near_unmark(const gb_near *near, void *mark) {
  if (!mark) return;
  const gb_backend *backend = backend_of(near);
  backend->unmark(backend->state, mark);
}

/* ====} */

gb_status gb_near_reduce(const gb_near *near, gb_comm *comm, gb_reduction reduction, gb_dtype dtype, void *to,
                         void *left, const void *right, int64_t count) {
  if (!near->moves) return add(near, dtype, left, right, count);
  gb_mover *mover = lock_mover(comm);
  return called(comm, mover->reduce(mover, reduction, dtype, to, left, right, count));
}

gb_status gb_near_clear(const gb_near *near, gb_comm *comm, void *data, size_t bytes) {
  const gb_backend *backend = backend_of(near);
  if (!near->moves) return backend->clear(backend->state, data, bytes);
  gb_mover *mover = lock_mover(comm);
  return called(comm, mover->clear(mover, data, bytes));
}
