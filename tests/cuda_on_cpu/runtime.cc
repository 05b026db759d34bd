/* runtime.cc - stands in for the CUDA runtime behind cuda/runtime.h: one device whose memory is host memory.
 *
 * Everything happens at once, in order, except while a stream captures: then launches and copies are noted, and run with every replay. Under
 * the address sanitizer device memory is poisoned except in launches, copies and seams, so that a host that touches it is found. */
#include "cuda/runtime.h"

#include <stdlib.h>
#include <string.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum code { DONE, LAUNCH_FAILED, NO_SUCH_DEVICE, IN_CAPTURE, NOT_IN_CAPTURE, NO_MEMORY };

struct gb_graph { std::vector<std::function<void()>> work; };
struct CUstream_st { gb_graph *capture; bool violated; };
struct CUevent_st { int unused; };

extern "C" const char *gb_machine_failure(void);

namespace {

struct memory {
  std::recursive_mutex lock;
  std::map<char *, size_t> blocks, pinned;
  int open;
};
memory device;

void poison_block(char *block, size_t bytes, bool on) {
#if defined(__SANITIZE_ADDRESS__)
  if (on) __asan_poison_memory_region(block, bytes);
  else __asan_unpoison_memory_region(block, bytes);
#else
  (void)block, (void)bytes, (void)on;
#endif
}

void poison_all(bool on) {
  for (auto &b : device.blocks) poison_block(b.first, b.second, on);
}

struct guard {
  guard() { gb_machine_enter(); }
  ~guard() { gb_machine_leave(); }
};

} /* namespace */

extern "C" {

void gb_machine_enter(void) {
  device.lock.lock();
  if (device.open++ == 0) poison_all(false);
}

void gb_machine_leave(void) {
  if (--device.open == 0) poison_all(true);
  device.lock.unlock();
}

int gb_machine_captures(gb_stream stream) { return stream->capture != NULL; }

void gb_machine_do(gb_stream stream, void (*work)(void *), void (*release)(void *), void *argument) {
  struct holder {
    void (*release)(void *);
    void *argument;
    ~holder() { release(argument); }
  };
  std::shared_ptr<holder> held(new holder{ release, argument });
  gb_machine_submit(stream, [work, held]() {
    guard open;
    work(held->argument);
  });
}

const char *gb_rt_text(int code) {
  static const char *const texts[] = { "no error", NULL, "there is no such device", "not allowed while a graph is captured",
                                       "the stream does not capture a graph", "out of memory" };
  return code == LAUNCH_FAILED ? gb_machine_failure() : texts[code];
}

int gb_rt_device_count(int *count) {
  *count = 1;
  return DONE;
}

int gb_rt_open(int index) { return index == 0 ? DONE : NO_SUCH_DEVICE; }

int gb_rt_properties(int index, gb_device_properties *out) {
  if (index != 0) return NO_SUCH_DEVICE;
  *out = {};
  strcpy(out->name, "emulated on the CPU");
  out->multiprocessors = 4; /* so that kernels sized by it run more than one block */
  out->memory = (size_t)8 << 30;
  out->shared_per_block = 48 << 10;
  return DONE;
}

int gb_rt_memory(size_t *available, size_t *total) {
  *available = *total = (size_t)8 << 30;
  return DONE;
}

/* Fresh memory holds rubbish, NaN in every float format. */
void *gb_rt_alloc(size_t bytes) {
  void *block;
  if (posix_memalign(&block, 256, bytes ? bytes : 1)) return NULL;
  memset(block, 0xff, bytes);
  std::lock_guard<std::recursive_mutex> hold(device.lock);
  device.blocks[(char *)block] = bytes;
  if (!device.open) poison_block((char *)block, bytes, true);
  return block;
}

void gb_rt_free(void *block, size_t bytes) {
  std::lock_guard<std::recursive_mutex> hold(device.lock);
  device.blocks.erase((char *)block);
  poison_block((char *)block, bytes, false);
  free(block);
}

void *gb_rt_host_alloc(size_t bytes) {
  char *block = (char *)malloc(bytes);
  std::lock_guard<std::recursive_mutex> hold(device.lock);
  if (block) device.pinned[block] = bytes;
  return block;
}

void gb_rt_host_free(void *block) {
  std::lock_guard<std::recursive_mutex> hold(device.lock);
  device.pinned.erase((char *)block);
  free(block);
}

int gb_rt_stream_open(gb_stream *out) { return (*out = (gb_stream)calloc(1, sizeof **out)) ? DONE : NO_MEMORY; }
void gb_rt_stream_close(gb_stream stream) { free(stream); }

/* Waiting for what has only been noted would wait for ever. */
static int refuse_in_capture(gb_stream stream) {
  if (!stream->capture) return DONE;
  stream->violated = true;
  return IN_CAPTURE;
}

int gb_rt_synchronize(gb_stream stream) { return refuse_in_capture(stream); }

int gb_rt_copy(gb_stream stream, void *to, const void *from, size_t bytes, gb_copy_kind kind) {
  if (kind == GB_COPY_TO_HOST && !device.pinned.count((char *)to))
    if (int code = refuse_in_capture(stream)) return code;
  if (bytes == 0) return DONE;
  gb_machine_submit(stream, [=]() {
    guard open;
    memmove(to, from, bytes);
  });
  return DONE;
}

int gb_rt_set(gb_stream stream, void *block, int byte, size_t bytes) {
  if (bytes == 0) return DONE;
  gb_machine_submit(stream, [=]() {
    guard open;
    memset(block, byte, bytes);
  });
  return DONE;
}

int gb_rt_event_open(gb_event *out) { return (*out = (gb_event)calloc(1, sizeof **out)) ? DONE : NO_MEMORY; }
void gb_rt_event_close(gb_event event) { free(event); }
int gb_rt_event_record(gb_event, gb_stream) { return DONE; }
int gb_rt_event_synchronize(gb_event) { return DONE; }
int gb_rt_event_done(gb_event, bool *done) { return *done = true, DONE; }
int gb_rt_event_wait(gb_stream, gb_event) { return DONE; }

int gb_rt_capture_begin(gb_stream stream) {
  if (stream->capture) return IN_CAPTURE;
  stream->capture = new gb_graph;
  stream->violated = false;
  return DONE;
}

int gb_rt_capture_end(gb_stream stream, gb_graph **out) {
  *out = NULL;
  if (!stream->capture) return NOT_IN_CAPTURE;
  gb_graph *graph = stream->capture;
  stream->capture = NULL;
  if (!stream->violated) {
    *out = graph;
    return DONE;
  }
  delete graph;
  return IN_CAPTURE;
}

int gb_rt_graph_launch(gb_graph *graph, gb_stream stream) {
  if (stream->capture) return IN_CAPTURE;
  for (auto &work : graph->work) work();
  return DONE;
}

void gb_rt_graph_close(gb_graph *graph) { delete graph; }

} /* extern "C" */

void gb_machine_submit(gb_stream stream, std::function<void()> work) {
  if (stream->capture) stream->capture->work.push_back(work);
  else work();
}
