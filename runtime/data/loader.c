/* data/loader.c - a ring of finished batches between one producer and one consumer.
 *
 * The producer runs ahead of the consumer, over the ends of epochs. A jump of the position, or an error, starts a new
 * run: the ring is emptied, and a batch that was being made for an older run is thrown away. After an error the
 * producer waits until the consumer has seen it. Buffers hold the loader's memory, so that tensors may outlive
 * gb_loader_close; spare ones are kept, as many as the ring needs. */
#define _DEFAULT_SOURCE /* pthread_sigmask, posix_memalign */
#include "data/loader.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALIGNMENT 256

/* One column of one batch: this head, and the elements ALIGNMENT bytes on. */
typedef struct buffer {
  gb_loader *loader;                   /* counted while the buffer is out */
  int column;
  bool pinned;                         /* of the loader's `pins`; made when it is opened, and kept until it is closed */
  struct buffer *next;                 /* among the spare ones */
} buffer;
_Static_assert(sizeof(buffer) <= ALIGNMENT, "the head of a buffer fits in front of its elements");

typedef struct batch {
  int64_t n;
  buffer *buffer[GB_MAX_COLUMNS];      /* NULL after a failure */
  gb_status status;
  char error[512];
} batch;

struct gb_loader {
  _Atomic int64_t refs;                /* the opener, and one per buffer in a tensor */
  gb_context *context;                 /* the consumer's, for error texts; counted until close */
  gb_dataset *dataset;
  gb_loader_options options;
  int64_t batches, most;               /* batches of an epoch; most samples of a batch */
  gb_loader_position position;         /* the consumer's */

  int64_t *order, *indices;            /* the producer's: the epoch's permutation, the batch's samples */
  int64_t order_epoch;                 /* of order; -1: none */

  gb_threads *helpers;                 /* the producer's; NULL: it works alone */
  pthread_t thread;
  bool has_thread;                     /* the thread is the producer; otherwise the consumer makes what it needs */
  pthread_mutex_t mutex;               /* guards what follows */
  pthread_cond_t ready, space;
  batch *ring;                         /* of options.prefetch */
  int first, used;
  gb_loader_position produce;          /* what the producer makes next */
  uint64_t run;                        /* number of the run */
  bool halted, stop, closed;           /* halted: an error waits to be seen */
  buffer *spare[GB_MAX_COLUMNS];
  int spares[GB_MAX_COLUMNS];
  gb_backend *pins;                    /* whose page-locked memory spare buffers are of; NULL: ordinary memory */
};

/* {==== Buffers ==== */

static void *buffer_data(buffer *b) { return (char *)b + ALIGNMENT; }

/* Bytes of a buffer of this column. */
static size_t buffer_bytes(const gb_loader *loader, int column) { return ALIGNMENT + (size_t)loader->most *
                                                                  loader->dataset->column[column].bytes; }

/* A new buffer, which counts towards the limit on tensor bytes; NULL: no memory. */
static buffer *buffer_new(gb_loader *loader, int column, gb_backend *pins) {
  gb_budget *budget = &loader->context->budget;
  size_t bytes = buffer_bytes(loader, column);
  void *memory = NULL;
  if (!gb_budget_take(budget, bytes)) return NULL;
  if (pins) memory = pins->pin(pins->state, bytes);
  else if (posix_memalign(&memory, ALIGNMENT, bytes)) memory = NULL;
  if (!memory) { gb_budget_give_back(budget, bytes); return NULL; }
  *(buffer *)memory = (buffer){ .loader = loader, .column = column, .pinned = pins };
  return memory;
}

/* The context is still there: the loader, or the tensor over the buffer, holds it. */
static void buffer_free(buffer *b) {
  gb_backend *pins = b->loader->pins;
  gb_budget_give_back(&b->loader->context->budget, buffer_bytes(b->loader, b->column));
  if (b->pinned) pins->unpin(pins->state, b);
  else free(b);
}

/* A spare buffer or a new one; NULL: no memory. */
static buffer *buffer_take(gb_loader *loader, int column) {
  pthread_mutex_lock(&loader->mutex);
  buffer *b = loader->spare[column];
  if (b) {
    loader->spare[column] = b->next;
    loader->spares[column]--;
  }
  pthread_mutex_unlock(&loader->mutex);
  return b ? b : buffer_new(loader, column, NULL);
}

/* Keep it for the next batch, or free it when there are enough. NULL is fine; the mutex is held. */
static void buffer_give(gb_loader *loader, buffer *b) {
  if (!b) return;
  bool surplus = loader->pins ? !b->pinned : loader->spares[b->column] > loader->options.prefetch + 1;
  if (loader->closed || surplus) { buffer_free(b); return; }
  b->next = loader->spare[b->column];
  loader->spare[b->column] = b;
  loader->spares[b->column]++;
}

/* The buffers of a batch that nobody gets; the mutex is held. */
static void batch_drop(gb_loader *loader, batch *b) {
  for (int c = 0; c < GB_MAX_COLUMNS; c++) {
    buffer_give(loader, b->buffer[c]);
    b->buffer[c] = NULL;
  }
}

/* Make the page-locked buffers, on the consumer's thread, as a device is asked for them: those of the ring, one that is
 * filled, and one that crosses to the device. What the recipe keeps beyond that lies in ordinary memory. */
static gb_status pin_buffers(gb_loader *loader) {
  const char *why;
  gb_context *context = loader->context;
  if (!gb_context_has_device(context, GB_CUDA, &why)) return GB_OK;
  gb_backend *pins = gb_context_backend(context, gb_context_own_cuda(context));
  if (!pins || !pins->pin) return GB_OK;
  loader->pins = pins;
  for (int c = 0; c < loader->dataset->columns; c++)
    for (int i = 0; i < loader->options.prefetch + 2; i++) {
      buffer *b = buffer_new(loader, c, pins);
      if (!b)
        return gb_fail(context, GB_EMEMORY, "out of page-locked memory for %d buffers of %zu bytes; make batch_size or "
                       "prefetch smaller, or leave pin_memory out", loader->options.prefetch + 2,
                       buffer_bytes(loader, c));
      buffer_give(loader, b);
    }
  return GB_OK;
}

/* Free the spare buffers. The mutex is held, or nobody else has the loader. */
static void free_spares(gb_loader *loader) {
  for (int c = 0; c < GB_MAX_COLUMNS; c++)
    while (loader->spare[c]) {
      buffer *next = loader->spare[c]->next;
      buffer_free(loader->spare[c]);
      loader->spare[c] = next;
    }
}

/* The last reference frees the loader. */
static void unref(gb_loader *loader) {
  if (atomic_fetch_sub_explicit(&loader->refs, 1, memory_order_acq_rel) != 1) return;
  gb_dataset_release(loader->dataset);
  pthread_cond_destroy(&loader->space);
  pthread_cond_destroy(&loader->ready);
  pthread_mutex_destroy(&loader->mutex);
  gb_counted_free(loader->ring);
  gb_counted_free(loader->order);
  gb_counted_free(loader->indices);
  gb_counted_free(loader);
}

/* The tensor over a buffer is gone; any thread. */
static void buffer_release(void *user) {
  buffer *b = user;
  gb_loader *loader = b->loader;
  pthread_mutex_lock(&loader->mutex);
  buffer_give(loader, b);
  pthread_mutex_unlock(&loader->mutex);
  unref(loader);
}

/* ====} */

/* {==== Producer ==== */

static gb_loader_position after(const gb_loader *loader, gb_loader_position at) {
  return at.batch + 1 < loader->batches ? (gb_loader_position){ at.epoch, at.batch + 1 }
      : (gb_loader_position){ at.epoch + 1, 0 };
}

/* The loader's thread ends when the loader is closed; where the consumer makes a batch, its wish to stop counts. */
static bool is_to_stop(void *user) {
  gb_loader *loader = user;
  if (!loader->has_thread) return gb_is_stopping(loader->context);
  pthread_mutex_lock(&loader->mutex);
  bool stop = loader->stop;
  pthread_mutex_unlock(&loader->mutex);
  return stop;
}

/* Fill indices[] with the samples of a batch; gives their number, or -1: it is to end. */
static int64_t choose_samples(gb_loader *loader, gb_loader_position at) {
  const gb_loader_options *options = &loader->options;
  int64_t count = loader->dataset->count, first = at.batch * options->batch_size;
  int64_t n = options->random_batches || count - first > options->batch_size ? options->batch_size : count - first;
  if (options->shuffle && loader->order_epoch != at.epoch) {
    loader->order_epoch = -1;
    if (!gb_permutation(options->seed, (uint64_t)at.epoch, count, loader->order, &(gb_stopper){ is_to_stop, loader }))
      return -1;
    loader->order_epoch = at.epoch;
  }
  for (int64_t i = 0; i < n; i++) {
    if (options->random_batches)
      loader->indices[i] = gb_sample(options->seed, (uint64_t)at.epoch, (uint64_t)(first + i), count);
    else loader->indices[i] = options->shuffle ? loader->order[first + i] : first + i;
  }
  return n;
}

/* A batch that several threads fill, each a row of samples at a time. */
typedef struct filling {
  gb_loader *loader;
  batch *b;
  gb_draw draw;
  void *const *data;
  int64_t chunks, failed;              /* failed: the first chunk that could not be read; guarded by the mutex */
} filling;

static void fill_chunk(void *arg, int64_t chunk) {
  filling *f = arg;
  gb_loader *loader = f->loader;
  void *at[GB_MAX_COLUMNS];
  char error[sizeof f->b->error] = "";
  int64_t first = f->b->n * chunk / f->chunks, end = f->b->n * (chunk + 1) / f->chunks;
  for (int c = 0; c < loader->dataset->columns; c++)
    at[c] = (char *)f->data[c] + (size_t)first * loader->dataset->column[c].bytes;
  gb_status status = gb_dataset_draw(loader->dataset, &f->draw, loader->indices + first, end - first, at, error,
                                     sizeof error);
  if (status == GB_OK) return;
  pthread_mutex_lock(&loader->mutex);
  if (chunk < f->failed) {
    f->failed = chunk;
    f->b->status = status;
    memcpy(f->b->error, error, sizeof error);
  }
  pthread_mutex_unlock(&loader->mutex);
}

/* Read the samples of a batch. Only where the consumer makes it does its wish to stop count: the loader's thread has
 * nothing to do with what the consumer runs meanwhile. */
static void fill(gb_loader *loader, gb_loader_position at, batch *b, void *const *data) {
  filling f = { loader, b, { loader->options.seed, (uint64_t)at.epoch, loader->has_thread ? NULL : loader->context },
                data, 1, INT64_MAX };
  if (!loader->helpers) { fill_chunk(&f, 0); return; }
  f.chunks = b->n < 4 * loader->options.workers ? b->n : 4 * loader->options.workers;
  gb_threads_run(loader->helpers, f.chunks, fill_chunk, &f);
}

/* Make one batch; a failure is part of it. */
static void make_batch(gb_loader *loader, gb_loader_position at, batch *b) {
  void *data[GB_MAX_COLUMNS];
  *b = (batch){ .n = choose_samples(loader, at) };
  if (b->n < 0) { *b = (batch){ .status = GB_EINTERRUPT, .error = "interrupted" }; return; }
  for (int c = 0; c < loader->dataset->columns && b->status == GB_OK; c++) {
    b->buffer[c] = buffer_take(loader, c);
    if (b->buffer[c]) data[c] = buffer_data(b->buffer[c]);
    else b->status = GB_EMEMORY;
  }
  if (b->status == GB_EMEMORY)
    snprintf(b->error, sizeof b->error, "out of memory for a batch of %" PRId64 " samples", loader->most);
  else fill(loader, at, b, data);
  if (b->status == GB_OK) return;
  pthread_mutex_lock(&loader->mutex);
  batch_drop(loader, b);
  pthread_mutex_unlock(&loader->mutex);
}

/* Put a batch into the ring, unless the position jumped while it was made; the mutex is held. */
static void push(gb_loader *loader, batch *b, uint64_t run) {
  if (run != loader->run) { batch_drop(loader, b); return; }
  loader->ring[(loader->first + loader->used++) % loader->options.prefetch] = *b;
  loader->halted = b->status != GB_OK;
  pthread_cond_signal(&loader->ready);
}

/* The life of the loader's thread. */
static void *produce(void *arg) {
  gb_loader *loader = arg;
  batch b;
  pthread_mutex_lock(&loader->mutex);
  while (!loader->stop) {
    if (loader->halted || loader->used == loader->options.prefetch) {
      pthread_cond_wait(&loader->space, &loader->mutex);
      continue;
    }
    gb_loader_position at = loader->produce;
    uint64_t run = loader->run;
    loader->produce = after(loader, at);
    pthread_mutex_unlock(&loader->mutex);
    make_batch(loader, at, &b);
    pthread_mutex_lock(&loader->mutex);
    push(loader, &b, run);
  }
  pthread_mutex_unlock(&loader->mutex);
  return NULL;
}

/* Begin a new run at the consumer's position. */
static void restart(gb_loader *loader) {
  gb_loader_position at = loader->position;
  pthread_mutex_lock(&loader->mutex);
  for (; loader->used; loader->used--) {
    batch_drop(loader, &loader->ring[loader->first]);
    loader->first = (loader->first + 1) % loader->options.prefetch;
  }
  loader->run++;
  loader->halted = false;
  loader->produce = at.batch < loader->batches ? at : (gb_loader_position){ at.epoch + 1, 0 };
  pthread_cond_signal(&loader->space);
  pthread_mutex_unlock(&loader->mutex);
}

/* Start the threads, with signals blocked; what one that cannot be created would do, others do. */
static void start(gb_loader *loader) {
  sigset_t all, before;
  if (!loader->helpers && loader->options.workers > 1) loader->helpers = gb_threads_open(loader->options.workers);
  if (!loader->options.prefetch) return;
  sigfillset(&all);
  restart(loader);
  if (pthread_sigmask(SIG_SETMASK, &all, &before)) return;
  loader->has_thread = true; /* the thread reads it */
  if (pthread_create(&loader->thread, NULL, produce, loader)) loader->has_thread = false;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ====} */

/* {==== Consumer ==== */

void gb_loader_options_init(gb_loader_options *options) { *options = (gb_loader_options){ .batch_size = 32,
    .prefetch = 2 }; }

/* Options that make sense, for this dataset. */
static gb_status check_options(gb_context *context, const gb_dataset *dataset, const gb_loader_options *options) {
  if (options->batch_size < 1)
    return gb_fail(context, GB_EINVAL, "batch_size must be at least 1, not %" PRId64, options->batch_size);
  if (options->prefetch < 0 || options->prefetch > GB_LOADER_MOST_PREFETCH)
    return gb_fail(context, GB_EINVAL, "prefetch is 0 .. %d batches, not %d", GB_LOADER_MOST_PREFETCH,
                   options->prefetch);
  if (options->workers < 0 || options->workers > GB_LOADER_MOST_WORKERS)
    return gb_fail(context, GB_EINVAL, "workers is 0 .. %d threads, not %d", GB_LOADER_MOST_WORKERS, options->workers);
  if (options->random_batches < 0)
    return gb_fail(context, GB_EINVAL, "an epoch cannot have %" PRId64 " batches", options->random_batches);
  if (options->random_batches && options->shuffle)
    return gb_fail(context, GB_EINVAL, "shuffle visits every sample once, a random sampler draws with replacement: "
                                       "choose one of them");
  if (options->random_batches && !dataset->count)
    return gb_fail(context, GB_EINVAL, "nothing can be drawn from an empty dataset");
  if (options->drop_last && !options->random_batches && dataset->count < options->batch_size)
    return gb_fail(context, GB_EINVAL,
                   "%" PRId64 " samples make no full batch of %" PRId64 ": use a smaller batch_size, or drop_last = "
                                                                        "false",
                   dataset->count,
                   options->batch_size);
  return GB_OK;
}

/* How many batches and samples there are, and the bytes of a batch; false: it does not fit memory. */
static bool measure(gb_loader *loader, size_t *batch_bytes) {
  int64_t count = loader->dataset->count, size = loader->options.batch_size, last;
  loader->most = loader->options.random_batches || size < count ? size : count;
  loader->batches = loader->options.random_batches ? loader->options.random_batches
      : count / size + (!loader->options.drop_last && count % size);
  if (__builtin_mul_overflow(loader->batches, size, &last)) return false;
  for (int c = 0; c < loader->dataset->columns; c++) {
    size_t bytes;
    if (__builtin_mul_overflow((size_t)loader->most, loader->dataset->column[c].bytes, &bytes) ||
        bytes > PTRDIFF_MAX - ALIGNMENT) return false;
    *batch_bytes = bytes > SIZE_MAX - *batch_bytes ? SIZE_MAX : *batch_bytes + bytes;
  }
  return (size_t)loader->most <= PTRDIFF_MAX / sizeof(int64_t);
}

/* Mutex and conditions: all of them or none. */
static bool init_locks(gb_loader *loader) {
  if (pthread_mutex_init(&loader->mutex, NULL)) return false;
  if (!pthread_cond_init(&loader->ready, NULL)) {
    if (!pthread_cond_init(&loader->space, NULL)) return true;
    pthread_cond_destroy(&loader->ready);
  }
  pthread_mutex_destroy(&loader->mutex);
  return false;
}

gb_status gb_loader_open(gb_context *context, gb_dataset *dataset, const gb_loader_options *options, gb_loader **out) {
  GB_TRY(check_options(context, dataset, options));
  gb_loader *loader = gb_counted_alloc(context, sizeof *loader);
  if (!loader) return context->error_code;
  atomic_init(&loader->refs, 1);
  loader->context = context;
  loader->dataset = dataset;
  loader->options = *options;
  loader->order_epoch = -1;
  gb_status status = GB_OK;
  size_t batch_bytes = 0;
  if (!measure(loader, &batch_bytes))
    status = gb_fail(context, GB_EINVAL, "batches of %" PRId64 " samples are too large for memory",
                     options->batch_size);
  else status = gb_context_expect(context, batch_bytes);
  if (status == GB_OK) {
    loader->indices = gb_counted_alloc(context, ((size_t)loader->most + 1) * sizeof *loader->indices);
    loader->ring = loader->indices ? gb_counted_alloc(context, ((size_t)options->prefetch + 1) * sizeof *loader->ring)
        : NULL;
    if (loader->ring && options->shuffle)
      loader->order = gb_counted_alloc(context, ((size_t)dataset->count + 1) * sizeof *loader->order);
    if (!loader->ring) status = context->error_code;
    else if (options->shuffle && !loader->order)
      status = gb_fail(context, context->error_code, "out of memory for the order of %" PRId64 " samples, 8 bytes "
                       "each, that shuffle = true needs; with batches = n an epoch is n batches drawn at random, "
                       "without one",
                       dataset->count);
    if (status == GB_OK && options->pinned) status = pin_buffers(loader);
    if (status == GB_OK && !init_locks(loader)) status = gb_fail_memory(context, sizeof *loader);
  }
  if (status != GB_OK) {
    free_spares(loader);
    gb_counted_free(loader->indices);
    gb_counted_free(loader->ring);
    gb_counted_free(loader->order);
    gb_counted_free(loader);
    return status;
  }
  gb_dataset_retain(dataset);
  gb_context_retain(context);
  *out = loader;
  return GB_OK;
}

void gb_loader_close(gb_loader *loader) {
  if (!loader) return;
  pthread_mutex_lock(&loader->mutex);
  loader->stop = true;
  pthread_cond_signal(&loader->space);
  pthread_mutex_unlock(&loader->mutex);
  if (loader->has_thread) pthread_join(loader->thread, NULL);
  gb_threads_close(loader->helpers);
  pthread_mutex_lock(&loader->mutex);
  loader->closed = true;
  for (int i = 0; i < loader->used; i++)
    batch_drop(loader, &loader->ring[(loader->first + i) % loader->options.prefetch]);
  free_spares(loader);
  pthread_mutex_unlock(&loader->mutex);
  gb_context *context = loader->context;
  unref(loader);
  gb_context_release(context);
}

int64_t gb_loader_batches(const gb_loader *loader) { return loader->batches; }
gb_dataset *gb_loader_dataset(const gb_loader *loader) { return loader->dataset; }
bool gb_loader_is_pinned(const gb_loader *loader) { return loader->pins != NULL; }
const gb_loader_options *gb_loader_get_options(const gb_loader *loader) { return &loader->options; }
gb_loader_position gb_loader_get_position(const gb_loader *loader) { return loader->position; }

gb_status gb_loader_set_position(gb_loader *loader, gb_loader_position position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch > loader->batches)
    return gb_fail(loader->context, GB_EINVAL,
                   "no position: epoch %" PRId64 ", batch %" PRId64 " of an epoch of %" PRId64 " batches",
        position.epoch,
                   position.batch, loader->batches);
  loader->position = position;
  if (loader->has_thread) restart(loader);
  return GB_OK;
}

/* Wait until the ring holds a batch; false: the consumer is to stop, which is asked every 50 ms. The mutex is held. */
static bool await_batch(gb_loader *loader) {
  while (!loader->used) {
    struct timespec until;
    if (gb_is_stopping(loader->context)) return false;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&loader->ready, &loader->mutex, &until);
  }
  return true;
}

/* The batch at the consumer's position: from the ring, or made now. */
static void fetch(gb_loader *loader, batch *b) {
  if (!loader->has_thread) start(loader);
  if (!loader->has_thread) { make_batch(loader, loader->position, b); return; }
  pthread_mutex_lock(&loader->mutex);
  if (!await_batch(loader)) {
    pthread_mutex_unlock(&loader->mutex);
    *b = (batch){ .status = GB_EINTERRUPT, .error = "interrupted" };
    return;
  }
  *b = loader->ring[loader->first];
  loader->ring[loader->first] = (batch){ 0 };
  loader->first = (loader->first + 1) % loader->options.prefetch;
  loader->used--;
  pthread_cond_signal(&loader->space);
  pthread_mutex_unlock(&loader->mutex);
}

/* A tensor over one buffer of a batch, which it takes. */
static gb_status wrap_column(gb_loader *loader, batch *b, int c, gb_tensor **out) {
  const gb_column *column = &loader->dataset->column[c];
  int64_t shape[GB_MAX_NDIM] = { b->n };
  memcpy(shape + 1, column->shape, (size_t)column->ndim * sizeof *shape);
  GB_TRY(gb_tensor_over(loader->context, buffer_data(b->buffer[c]), column->dtype, column->ndim + 1, shape,
                        buffer_release, b->buffer[c], out));
  atomic_fetch_add_explicit(&loader->refs, 1, memory_order_relaxed);
  b->buffer[c] = NULL;
  return GB_OK;
}

/* Tensors over the buffers of a batch, all of them or none. */
static gb_status wrap(gb_loader *loader, batch *b, gb_tensor **out) {
  gb_tensor *made[GB_MAX_COLUMNS] = { NULL };
  gb_status status = GB_OK;
  for (int c = 0; c < loader->dataset->columns && status == GB_OK; c++) status = wrap_column(loader, b, c, &made[c]);
  if (status == GB_OK) {
    memcpy(out, made, (size_t)loader->dataset->columns * sizeof *out);
    return GB_OK;
  }
  for (int c = 0; c < GB_MAX_COLUMNS; c++) gb_tensor_release(made[c]);
  pthread_mutex_lock(&loader->mutex);
  batch_drop(loader, b);
  pthread_mutex_unlock(&loader->mutex);
  return status;
}

gb_status gb_loader_next(gb_loader *loader, gb_tensor **out) {
  batch b;
  if (loader->position.batch >= loader->batches) {
    loader->position = (gb_loader_position){ loader->position.epoch + 1, 0 };
    out[0] = NULL;
    return GB_OK;
  }
  fetch(loader, &b);
  if (b.status == GB_EMEMORY) { /* once more, when what can go has gone: on the loader's thread nothing may */
    gb_context_reclaim(loader->context);
    if (loader->has_thread) restart(loader);
    fetch(loader, &b);
  }
  gb_status status = b.status == GB_OK ? wrap(loader, &b, out)
      : gb_fail(loader->context, b.status, "data loader: %s", b.error);
  if (status == GB_OK) loader->position.batch++;
  else if (loader->has_thread) restart(loader);
  return status;
}

/* ====} */
