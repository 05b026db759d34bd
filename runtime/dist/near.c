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

static void *from_driver(void *user, size_t bytes, size_t alignment) {
  gb_comm *job = user;
  (void)alignment; /* 256 bytes, as the pool asks */
  gb_pulse_lock(job->pulse);
  void *memory = job->transport.mover->take(job->transport.mover, bytes);
  gb_pulse_unlock(job->pulse);
  return memory;
}

/* The device is through with all that was asked of it before the driver gives memory to others. */
static void to_driver(void *user, void *memory, size_t bytes) {
  gb_comm *job = user;
  const gb_backend *backend = gb_context_backend(job->context, job->context->job_device);
  backend->free(backend->state, memory, bytes);
}

gb_status gb_near_open(gb_comm *job) {
  gb_context *context = job->context;
  const gb_mover *mover = job->size > 1 ? job->transport.mover : NULL;
  if (!mover || !mover->near) return GB_OK;
  job->near_pool = gb_pool_open(from_driver, to_driver, job, &context->budget);
  if (!job->near_pool) return gb_fail_memory(context, 0);
  context->job_pool = job->near_pool;
  context->job_device = (gb_device){ GB_CUDA, (int16_t)(mover->near - 1) };
  return GB_OK;
}

void gb_near_close(gb_comm *job) {
  if (!job->near_pool) return;
  job->context->job_pool = NULL;
  gb_pool_close(job->near_pool);
  job->near_pool = NULL;
}

/* On a thread beside the context's nothing but caches can be reclaimed. */
static void make_room(const gb_near *near, const gb_comm *comm) {
  if (!comm->fault) gb_context_reclaim(near->context);
  gb_context_flush(near->context, near->device);
}

static bool is_over_limit(gb_context *context, size_t bytes) {
  bool fits = gb_budget_take(&context->budget, bytes);
  if (fits) gb_budget_give_back(&context->budget, bytes);
  return !fits;
}

static void *fail_over_limit(gb_comm *comm, size_t bytes) {
  gb_comm_fail(comm, GB_EMEMORY, "out of memory: %zu bytes of the device are over the limit", bytes);
  return NULL;
}

static void *take_brief(const gb_near *near, gb_comm *comm, size_t bytes) {
  gb_block *block = gb_pool_alloc(comm->job->near_pool, bytes, GB_MEM_SCRATCH);
  if (!block) {
    make_room(near, comm);
    block = gb_pool_alloc(comm->job->near_pool, bytes, GB_MEM_SCRATCH);
  }
  if (block) return gb_block_data(block);
  if (is_over_limit(near->context, bytes)) return fail_over_limit(comm, bytes);
  gb_comm_fail_near(comm, GB_EMEMORY);
  return NULL;
}

static void *take_beside(const gb_near *near, gb_comm *comm, size_t bytes) {
  gb_context *context = near->context;
  if (context->budget.limit && !gb_budget_take(&context->budget, bytes)) return fail_over_limit(comm, bytes);
  void *memory = from_driver(comm->job, bytes, 256);
  if (!memory) {
    make_room(near, comm);
    memory = from_driver(comm->job, bytes, 256);
  }
  if (memory) return memory;
  gb_context_uncount(context, bytes);
  gb_comm_fail_near(comm, GB_EMEMORY);
  return NULL;
}

void *gb_near_take(const gb_near *near, gb_comm *comm, size_t bytes) {
  if (near->brief) return take_brief(near, comm, bytes);
  if (comm && comm->fault) return take_beside(near, comm, bytes);
  gb_context *context = near->context;
  const gb_backend *backend = backend_of(near);
  if (!gb_context_count(context, bytes)) return NULL;
  context->error_code = GB_OK;
  void *memory = backend->alloc(backend->state, bytes, 256);
  if (!memory && context->error_code == GB_OK) {
    gb_context_reclaim(context);
    gb_context_flush(context, near->device);
    memory = backend->alloc(backend->state, bytes, 256);
    if (!memory && context->error_code == GB_OK)
      gb_fail(context, GB_EMEMORY, "out of memory on the device: %zu bytes are needed for sums of gradients", bytes);
  }
  if (!memory) gb_context_uncount(context, bytes);
  return memory;
}

/* Too much that lies idle goes back to the driver. */
static void give_brief(gb_pool *pool, void *memory) {
  gb_memory_stats now;
  gb_pool_free(pool, gb_pool_find(pool, memory));
  gb_pool_stats(pool, &now);
  if (now.reserved - now.current_total > GB_NEAR_IDLE_MOST) gb_pool_flush(pool);
}

void gb_near_give(const gb_near *near, gb_comm *job, void *memory, size_t bytes) {
  const gb_backend *backend = backend_of(near);
  if (near->brief) { give_brief(job->near_pool, memory); return; }
  backend->free(backend->state, memory, bytes);
  gb_context_uncount(near->context, bytes);
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
