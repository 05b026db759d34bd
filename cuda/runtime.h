/* cuda/runtime.h - the runtime calls that the backend makes: memory, streams, events, copies, graphs.
 *
 * runtime_cuda.c implements it with the CUDA runtime; tests/cuda_on_cpu/runtime.cc stands in for it on machines without
 * a GPU. A call gives 0, or a code whose text is gb_rt_text(code). Everything but what says that it waits returns
 * before the device has done it. */
#ifndef GB_CUDA_RUNTIME_H
#define GB_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *gb_stream;   /* a cudaStream_t */
typedef struct CUevent_st *gb_event;
typedef struct gb_graph gb_graph;        /* launches that were captured, to be run again */

typedef struct gb_device_properties {
  char name[256];
  int major, minor;                      /* compute capability */
  int multiprocessors, driver, runtime;  /* versions as CUDA counts them: 13000 is 13.0 */
  size_t memory, shared_per_block;
  size_t shared_most;                    /* bytes of shared memory that a block may have which asks for them */
} gb_device_properties;

typedef enum gb_copy_kind { GB_COPY_TO_DEVICE, GB_COPY_TO_HOST, GB_COPY_ON_DEVICE } gb_copy_kind;

const char *gb_rt_text(int code);
int gb_rt_device_count(int *count);
int gb_rt_select(int device);            /* select the device for this thread: later opens, allocations and launches go
                                            to it */
int gb_rt_properties(int device, gb_device_properties *out);
int gb_rt_memory(size_t *available, size_t *total);

void *gb_rt_alloc(size_t bytes);         /* device memory, aligned to 256 bytes; NULL: none */
void gb_rt_free(void *block, size_t bytes); /* waits for the device */
void *gb_rt_host_alloc(size_t bytes);    /* pinned host memory, which copies need not wait for */
void gb_rt_host_free(void *block);
bool gb_rt_is_pinned(const void *host);  /* does it lie in such memory? */
bool gb_rt_is_on_device(const void *memory); /* does it lie in memory of a device? */
/* Why the last of these two on this thread gave NULL, where it was not for lack of memory: a code; else 0. */
int gb_rt_alloc_error(void);

int gb_rt_stream_open(gb_stream *out);
void gb_rt_stream_close(gb_stream stream);
int gb_rt_synchronize(gb_stream stream); /* waits */
/* Ordered on the stream. Host memory that is not pinned has been read when a copy to the device returns, which may
 * wait; a copy to the host waits, and fails while the stream captures. Pinned memory is read and written some time
 * later. */
int gb_rt_copy(gb_stream stream, void *to, const void *from, size_t bytes, gb_copy_kind kind);
/* From the memory of one device to another's, on a stream of either; neither host waits. */
int gb_rt_copy_peer(gb_stream stream, void *to, int to_device, const void *from, int from_device, size_t bytes);
int gb_rt_set(gb_stream stream, void *block, int byte, size_t bytes);

int gb_rt_event_open(gb_event *out);
void gb_rt_event_close(gb_event event);
int gb_rt_event_record(gb_event event, gb_stream stream);
int gb_rt_event_synchronize(gb_event event);              /* waits */
int gb_rt_event_done(gb_event event, bool *done);         /* does not */
int gb_rt_event_wait(gb_stream stream, gb_event event);   /* the stream waits, the host does not */

/* An event that notes its time; the seconds between two that have come to pass. */
int gb_rt_event_open_timed(gb_event *out);
int gb_rt_event_elapsed(gb_event from, gb_event to, double *seconds);

/* Between these two nothing runs: launches on the stream are recorded into the graph. */
int gb_rt_capture_begin(gb_stream stream);
int gb_rt_capture_end(gb_stream stream, gb_graph **out);
int gb_rt_graph_launch(gb_graph *graph, gb_stream stream);
void gb_rt_graph_close(gb_graph *graph);

/* The first launch that failed since the last call of this, and its kernel; or 0. GB_LAUNCH records them. A fault of
 * work that was launched before shows at any later launch: then the kernel is NULL. */
void gb_rt_launched(const char *kernel);
int gb_rt_launch_error(const char **kernel);

/* Ranges of this thread in a profiler's timeline, nested. The first tells whether a profiler is attached and wants
 * them. */
bool gb_rt_ranges_wanted(void);
void gb_rt_range_push(const char *name);
void gb_rt_range_pop(void);

#ifdef __cplusplus
}
#endif
#endif
