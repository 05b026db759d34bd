/* base/threads.h - a pool of worker threads with a fixed partition.
 *
 * The caller cuts its work into chunks by the shape of the problem, never by the number of threads, so results are the
 * same bits for any number of threads. A thread that cannot be created means fewer threads, not a failure. Workers spin
 * briefly, then sleep. */
#ifndef GB_BASE_THREADS_H
#define GB_BASE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gb_threads gb_threads;
typedef void (*gb_chunk_fn)(void *arg, int64_t chunk);

/* threads counts the caller; 0 means one per core this process may use. NULL when there is no memory. */
gb_threads *gb_threads_open(int threads);
void gb_threads_close(gb_threads *pool);
int gb_threads_count(const gb_threads *pool);
int gb_threads_cores(void); /* of the machine, also those that this process may not use; at least 1 */
/* Run fn(arg, 0 .. chunks-1), each once, in any order, on the workers and the caller; returns when all have run. Not
 * reentrant: a call from inside a chunk runs its chunks on that thread alone. */
void gb_threads_run(gb_threads *pool, int64_t chunks, gb_chunk_fn fn, void *arg);
/* Would a call from here run its chunks on this thread alone? One from inside a chunk would. */
bool gb_threads_is_alone(const gb_threads *pool);
/* The number of the running thread, 0 (the caller) .. count - 1: an index for scratch buffers. */
int gb_threads_current(const gb_threads *pool);

#endif
