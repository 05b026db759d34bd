/* machine.h - what the emulated device and its runtime share, in C and C++. */
#ifndef GB_MACHINE_H
#define GB_MACHINE_H

#include <stddef.h>

#include "cuda/runtime.h"

/* Bytes of shared memory of a block that asks for them: an H200's. */
#define GB_EMULATED_SHARED (227u << 10)

#ifdef __cplusplus
extern "C" {
#endif

/* What a library beside the plugin may call. */
#define GB_MACHINE_API __attribute__((visibility("default")))

/* Device memory may be touched between these two, which may be nested: launches, copies and the seams. */
void gb_machine_enter(void);
void gb_machine_leave(void);
/* Note a failure; the first one stays until gb_rt_launch_error asks. */
GB_MACHINE_API void gb_machine_fail(const char *kernel, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The code of a device that an earlier kernel broke, which every call repeats; 0: it works. A device breaks when the
 * file that GIBBOUS_CUDA_BROKEN_BY names comes to be. */
int gb_machine_broken(void);
int gb_machine_captures(gb_stream stream);
/* Do work(copy of the argument's bytes), of that name, now, or with every replay of the graph that the stream
 * captures. */
void gb_machine_do(gb_stream stream, const char *what, void (*work)(void *argument), void (*release)(void *argument),
                   void *argument);
/* Work that waits for something outside of this process: step(argument) is called, whenever time passes, until it gives
 * something else than 0. */
GB_MACHINE_API void gb_machine_await(gb_stream stream, int (*step)(void *argument), void (*release)(void *argument),
                                     void *argument);
/* Of work that stands in for a library: the bytes of device memory that the library reads and writes. Counted by
 * traffic.cc. */
#ifdef GB_MACHINE_TRAFFIC
void gb_machine_moved(size_t read, size_t written);
#else
static inline void gb_machine_moved(size_t read, size_t written) { (void)read, (void)written; }
#endif

#ifdef __cplusplus
}

#include <functional>
void gb_machine_submit(gb_stream stream, const char *what, std::function<void()> work);

/* {---- traffic.cc; in builds without it nothing is counted ---- */
#ifdef GB_MACHINE_TRAFFIC
bool gb_traffic_wanted(void);
void gb_traffic_block(void *data, size_t bytes, bool there); /* memory comes to be, or is freed */
void gb_traffic_push(const char *name);                      /* a range of this thread begins, and ends */
void gb_traffic_pop(void);
std::function<void()> gb_traffic_watch(const char *what, std::function<void()> work); /* the same work, counted */
#else
static inline bool gb_traffic_wanted(void) { return false; }
static inline void gb_traffic_block(void *, size_t, bool) {}
static inline void gb_traffic_push(const char *) {}
static inline void gb_traffic_pop(void) {}
static inline std::function<void()> gb_traffic_watch(const char *, std::function<void()> work) { return work; }
#endif
/* ----} */
#endif
#endif
