/* tensor/context.c - the life of a context, error texts, allocation with one more try, device names. Opening one is
 * runtime/open.c. */
#include "tensor/context.h"

#include "tensor/counted.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "tensor/tensor.h"

void gb_context_retain(gb_context *context) { atomic_fetch_add(&context->refs, 1); }

void gb_context_release(gb_context *context) {
  if (atomic_fetch_sub(&context->refs, 1) != 1) return;
  for (int i = 0; i < GB_DEVICE_SLOTS; i++) /* devices may still use what goes now */
    if (context->backend[i] && context->backend[i]->synchronize)
      (void)context->backend[i]->synchronize(context->backend[i]->state);
  if (context->threads) gb_threads_close(context->threads);
  while (context->graph_pools) {
    gb_graph_pool *next = context->graph_pools->next;
    gb_pool_close(context->graph_pools->pool);
    free(context->graph_pools);
    context->graph_pools = next;
  }
  for (int i = 0; i < GB_DEVICE_SLOTS; i++) {
    if (context->pool[i]) gb_pool_close(context->pool[i]);
    if (context->backend[i] && context->backend[i]->close) context->backend[i]->close(context->backend[i]->state);
    free(context->backend[i]);
  }
  for (int i = 0; i < GB_DEVICE_TYPES; i++)
    if (context->plugin[i]) dlclose(context->plugin[i]);
  free(context->plugin_folders);
  free(context->no_cuda);
  if (context->files.root >= 0) close(context->files.root);
  gb_cells_close(&context->cells);
  if (context->close_rooms) context->close_rooms(context);
  free(context);
}

void gb_context_close(gb_context *context) {
  if (!context) return;
  gb_context_untie(context);
  gb_memory_empty_cache(context); /* tensors that live on keep their own memory, no more */
  gb_context_release(context);
}

gb_status gb_fail(gb_context *context, gb_status status, const char *format, ...) {
  char text[sizeof context->error]; /* apart, since an argument may be the old text */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  gb_text_plain_nan(text);
  context->error_code = status;
  snprintf(context->error_op, sizeof context->error_op, "%s", context->op ? context->op : "");
  int used = snprintf(context->error, sizeof context->error, "%s%s", context->error_op, context->op ? ": " : "");
  memcpy(context->error + used, text, sizeof text - (size_t)used);
  context->error[sizeof context->error - 1] = 0;
  return status;
}

void gb_failure_keep(const gb_context *context, gb_failure *out) {
  out->code = context->error_code;
  memcpy(out->op, context->error_op, sizeof out->op);
  memcpy(out->text, context->error, sizeof out->text);
}

void gb_failure_bring_back(gb_context *context, const gb_failure *kept) {
  context->error_code = kept->code;
  memcpy(context->error_op, kept->op, sizeof kept->op);
  memcpy(context->error, kept->text, sizeof kept->text);
}

/* What a pool could not give, and what it holds. */
static gb_status fail_memory_of(gb_context *context, gb_device device, size_t bytes) {
  gb_memory_stats stats;
  gb_memory_get_device_stats(context, device, &stats);
  return gb_fail(context, GB_EMEMORY, "out of memory: %zu bytes were asked for%s, %zu are live in tensors, %zu are "
                                      "cached", bytes,
                 device.type == GB_CPU ? "" : " on the device", stats.current_total,
                     stats.reserved - stats.current_total);
}

gb_status gb_fail_memory(gb_context *context,
                         size_t bytes) { return fail_memory_of(context, (gb_device){ GB_CPU, 0 }, bytes); }

gb_status gb_refuse(gb_context *context, const char *text) { return context ? gb_fail(context, GB_EINVAL, "%s", text)
                                                             : GB_EINVAL; }

gb_status gb_refuse_tensor(gb_context *context, const gb_tensor *tensor) {
  return gb_refuse(context, tensor ? "a tensor belongs to another context" : "a tensor is NULL");
}

const char *gb_error(const gb_context *context) { return context ? context->error : "there is no context: NULL was "
                                                                                    "passed"; }
gb_status gb_error_code(const gb_context *context) { return context ? context->error_code : GB_EINVAL; }
const char *gb_error_op(const gb_context *context) { return context ? context->error_op : ""; }

void gb_interrupt(gb_context *context) {
  if (context) atomic_store(&context->interrupt, true);
}

void gb_interrupt_clear(gb_context *context) {
  if (context) atomic_store(&context->interrupt, false);
}

double gb_seconds_left(const gb_context *context) {
  struct timespec t;
  if (context->deadline == 0) return INFINITY;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return context->deadline - ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
}

bool gb_is_stopping(const gb_context *context) {
  return atomic_load_explicit(&context->interrupt, memory_order_relaxed) || gb_seconds_left(context) < 0;
}

gb_status gb_poll(gb_context *context) { return gb_is_stopping(context) ? gb_fail(context, GB_EINTERRUPT, "interrupted")
                                         : GB_OK; }

/* Ask the language on top to free what it can; what it collects may call the engine. */
static void reclaim(gb_context *context) {
  gb_modes *modes = context->modes;
  const char *op = context->op;
  if (context->reclaim) context->reclaim(context->reclaim_user);
  context->modes = modes;
  context->op = op;
}

bool gb_context_count_limited(gb_context *context, size_t bytes) {
  if (gb_budget_take(&context->budget, bytes)) return true;
  reclaim(context);
  atomic_store(&context->budget.refused, false);
  if (gb_budget_take(&context->budget, bytes)) return true;
  gb_fail_memory(context, bytes);
  return false;
}

/* What stands before counted memory. */
typedef struct counted { _Alignas(max_align_t) gb_context *context; size_t bytes; } counted;

void *gb_counted_resize(gb_context *context, void *block, size_t bytes) {
  counted *head = block ? (counted *)block - 1 : NULL;
  size_t before = head ? head->bytes : 0;
  if (bytes > SIZE_MAX / 2) return gb_fail_memory(context, bytes), NULL;
  if (!gb_context_count(context, sizeof *head + bytes)) return NULL; /* old and new are there at the same time */
  counted *fresh = realloc(head, sizeof *head + bytes);
  gb_context_uncount(context, fresh ? head ? sizeof *head + before : 0 : sizeof *head + bytes);
  if (!fresh) return gb_fail_memory(context, bytes), NULL;
  *fresh = (counted){ context, bytes };
  return fresh + 1;
}

void *gb_counted_try(gb_context *context, size_t bytes) {
  counted *head = NULL;
  if (bytes > SIZE_MAX / 2 || !gb_budget_take(&context->budget, sizeof *head + bytes)) return NULL;
  if (!(head = malloc(sizeof *head + bytes))) return gb_budget_give_back(&context->budget, sizeof *head + bytes), NULL;
  *head = (counted){ context, bytes };
  return head + 1;
}

void *gb_counted_alloc(gb_context *context, size_t bytes) {
  void *block = gb_counted_resize(context, NULL, bytes);
  return block ? memset(block, 0, bytes) : NULL;
}

void gb_counted_free(void *block) {
  counted *head = block ? (counted *)block - 1 : NULL;
  if (!head) return;
  gb_context_uncount(head->context, sizeof *head + head->bytes);
  free(head);
}

void gb_context_reclaim(gb_context *context) {
  reclaim(context);
  gb_pool_flush(context->pool[GB_CPU]);
}

void gb_context_flush(gb_context *context, gb_device device) {
  gb_pool *pool = gb_context_pool(context, device), *jobs = gb_context_job_pool(context, device);
  if (pool) gb_pool_flush(pool);
  if (jobs) gb_pool_flush(jobs);
}

gb_status gb_context_expect(gb_context *context, uint64_t amount) {
  size_t limit = context->budget.limit;
  if (!limit || amount <= limit) return GB_OK;
  gb_budget_take(&context->budget, SIZE_MAX); /* it was the limit that refused */
  return gb_fail(context, GB_EMEMORY, "out of memory: the limit on tensor bytes, %zu, does not allow work on %llu",
                 limit,
                 (unsigned long long)amount);
}

gb_block *gb_context_alloc(gb_context *context, gb_device device, size_t bytes, gb_memory_category category) {
  gb_pool *pool = gb_context_pool(context, device);
  gb_block *block = gb_pool_alloc(pool, bytes, category);
  if (!block) { /* try once more, after garbage was collected and the cache emptied */
    reclaim(context);
    if (!context->capturing) gb_context_flush(context, device);
    atomic_store(&context->budget.refused, false);
    context->error_code = GB_OK;
    block = gb_pool_alloc(pool, bytes, category);
  }
  /* a device that failed for another reason than lack of memory has said so */
  if (!block && context->error_code == GB_OK) fail_memory_of(context, device, bytes);
  return block;
}

static void add_stats(gb_memory_stats *to, const gb_memory_stats *one) {
  for (int i = 0; i < GB_MEM_CATEGORIES; i++) {
    to->current[i] += one->current[i];
    to->peak[i] += one->peak[i];
  }
  to->current_total += one->current_total;
  to->peak_total += one->peak_total;
  to->reserved += one->reserved;
  to->peak_reserved += one->peak_reserved;
  to->allocations += one->allocations;
  to->system_allocations += one->system_allocations;
}

static void add_stats_of(gb_memory_stats *to, gb_pool *pool) {
  gb_memory_stats one;
  gb_pool_stats(pool, &one);
  add_stats(to, &one);
}

void gb_memory_get_device_stats(gb_context *context, gb_device device, gb_memory_stats *out) {
  if (!out) return;
  memset(out, 0, sizeof *out);
  if (!context) return;
  gb_pool *pool = gb_is_device(device) ? gb_context_pool(context, device) : NULL;
  gb_pool *jobs = gb_context_job_pool(context, device);
  if (pool) gb_pool_stats(pool, out);
  if (jobs) add_stats_of(out, jobs);
  for (gb_graph_pool *g = context->graph_pools; g; g = g->next) {
    if (g->pool == pool || g->device.type != device.type || g->device.index != device.index) continue;
    add_stats_of(out, g->pool);
  }
}

/* Every number of the struct is a count of bytes or of allocations, so they add up. */
void gb_memory_get_stats(gb_context *context, gb_memory_stats *out) {
  if (!out) return;
  memset(out, 0, sizeof *out);
  if (!context) return;
  for (int i = 0; i < GB_DEVICE_SLOTS; i++) {
    gb_memory_stats one;
    if (!context->pool[i]) continue;
    gb_memory_get_device_stats(context, gb_slot_device(i), &one);
    add_stats(out, &one);
  }
}

gb_status gb_synchronize(gb_context *context, gb_device device) {
  if (!context) return GB_EINVAL;
  gb_backend *backend = gb_is_device(device) ? gb_context_backend(context, device) : NULL;
  return backend && backend->synchronize ? backend->synchronize(backend->state) : GB_OK;
}

void gb_memory_reset_peaks(gb_context *context) {
  if (!context) return;
  for (int i = 0; i < GB_DEVICE_SLOTS; i++)
    if (context->pool[i]) gb_pool_reset_peaks(context->pool[i]);
  if (context->job_pool) gb_pool_reset_peaks(context->job_pool);
  for (gb_graph_pool *g = context->graph_pools; g; g = g->next) gb_pool_reset_peaks(g->pool);
}

void gb_memory_empty_cache(gb_context *context) {
  if (!context) return;
  gb_cells_flush(&context->cells);
  if (context->capturing) return; /* captured launches hold addresses of memory that nothing else refers to */
  for (int i = 0; i < GB_DEVICE_SLOTS; i++)
    if (context->pool[i]) gb_context_flush(context, gb_slot_device(i));
  for (gb_graph_pool *g = context->graph_pools; g; g = g->next) gb_pool_flush(g->pool);
}

gb_status gb_set_num_threads(gb_context *context, int threads) {
  if (!context) return GB_EINVAL;
  if (threads < 1 || threads > 1024)
    return gb_fail(context, GB_EINVAL, "the number of threads is 1 .. 1024, not %d", threads);
  gb_threads *pool = gb_threads_open(threads);
  if (!pool) return gb_fail_memory(context, 0);
  gb_threads_close(context->threads);
  context->threads = pool;
  return GB_OK;
}

int gb_get_num_threads(const gb_context *context) { return context ? gb_threads_count(context->threads) : 0; }

void gb_manual_seed(gb_context *context, uint64_t seed) { gb_set_rng_state(context, seed, 0); }

void gb_get_rng_state(const gb_context *context, uint64_t *seed, uint64_t *offset) {
  if (seed) *seed = context ? context->seed : 0;
  if (offset) *offset = context ? context->offset : 0;
}

void gb_set_rng_state(gb_context *context, uint64_t seed, uint64_t offset) {
  if (!context) return;
  context->seed = seed;
  context->offset = offset;
}

uint64_t gb_rng_take(gb_context *context) { return context->offset++; }

bool gb_set_grad_enabled(gb_context *context, bool enabled) {
  if (!context) return false;
  bool before = context->modes->grad;
  context->modes->grad = enabled;
  return before;
}

bool gb_is_grad_enabled(const gb_context *context) { return context && context->modes->grad; }

static const char *device_name(const gb_context *context, int type) {
  if (type == GB_CPU) return "cpu";
  if (type == GB_CUDA) return "cuda";
  return context->backend[type] ? context->backend[type]->name : "plugin";
}

const char *gb_device_text(const gb_context *context, gb_device device, char *buffer, size_t size) {
  if (device.type == GB_CPU) snprintf(buffer, size, "cpu");
  else snprintf(buffer, size, "%s:%d", device_name(context, device.type), device.index);
  return buffer;
}

gb_status gb_device_parse(gb_context *context, const char *text, gb_device *out) {
  for (int type = 0; type < GB_DEVICE_TYPES; type++) {
    const char *name = device_name(context, type);
    size_t length = strlen(name);
    if (strncmp(text, name, length) || (text[length] && text[length] != ':')) continue;
    char *end = NULL;
    long index = text[length] ? strtol(text + length + 1, &end, 10) : type == GB_CUDA ? context->own_cuda : 0;
    if (end && (*end || end == text + length + 1 || index < 0)) break;
    const char *why;
    if (!gb_context_has_device(context, type, &why))
      return gb_fail(context, GB_EDEVICE, "device '%s' is not available: %s; use 'cpu'", text, why);
    int there = type == GB_CPU ? 1 : context->devices[type];
    if (!end && there == 1) index = 0; /* a process that is shown one device has that one */
    if (index >= there && there == 1)
      return gb_fail(context, GB_EDEVICE, "device '%s' does not exist; there is %s:0", text, name);
    if (index >= there)
      return gb_fail(context, GB_EDEVICE, "device '%s' does not exist; there are %s:0 .. %s:%d", text, name, name,
                     there - 1);
    *out = (gb_device){ (int16_t)type, (int16_t)index };
    return gb_context_open_device(context, *out);
  }
  return gb_fail(context, GB_EINVAL, "unknown device '%s'; devices are 'cpu', 'cuda' and 'cuda:N'", text);
}
