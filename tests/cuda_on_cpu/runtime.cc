/* runtime.cc - stands in for the CUDA runtime behind cuda/runtime.h: devices whose memory is host memory.
 *
 * A stream is a queue. What is asked of it runs at some later time that a seeded generator picks, and streams overtake
 * each other wherever no event holds them; at the latest it runs when the host waits. So a missing wait shows as wrong
 * numbers: memory that is used before it is written, or written while it is still read. GIBBOUS_CUDA_LATE=N is the seed
 * (1), 0 runs everything at once, "random" picks one and prints it.
 *
 * While a stream captures, its work is noted and runs with every replay. What a capture forbids is an error, spoils the
 * capture, and is told as a failure of the machine too, since nobody may make such a call. Under the address sanitizer
 * the memory of a device is poisoned except in work of that device, so that a host or another device that touches it is
 * found. */
#include "cuda/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define QUEUE_MOST 1024 /* items that a stream may be behind */

enum code { DONE, LAUNCH_FAILED, NO_SUCH_DEVICE, IN_CAPTURE, NOT_IN_CAPTURE, NO_MEMORY, OTHER_DEVICE, STUCK, BROKEN };

typedef std::function<void()> action;

/* How often an event was recorded: asked for, and come to pass. Outlives its event while a queue holds it. */
struct event_state { int device; uint64_t asked, done; bool captured; double when; gb_stream stream; };
struct item {
  action work;                           /* empty: a record of an event, or a wait for one, or: */
  std::shared_ptr<event_state> event;
  uint64_t number;
  bool waits;
  std::function<bool()> outside;         /* is what this waits for, outside of the process, over? */
  bool over;
};
typedef std::vector<action> work_list;
struct gb_graph { std::shared_ptr<work_list> work; int device; };

struct CUstream_st {
  int device;
  std::deque<item> queue;
  std::thread::id owner;                 /* who used it last: work runs on its own thread */
  gb_graph *capture;
  bool violated;
};
struct CUevent_st { std::shared_ptr<event_state> state; };

extern "C" const char *gb_machine_failure(void);

namespace {

struct block { size_t bytes; int device; };

struct machine {
  std::recursive_mutex lock;
  std::map<char *, block> blocks;
  std::map<char *, size_t> pinned;
  std::vector<gb_stream> streams;
  int open;                              /* nested guards */
  unsigned running;                      /* the devices whose work runs, as bits */
  uint64_t random;
  unsigned tempo;                        /* 0: nothing runs before it must, 1: something now and then, 2: everything at
                                            once */
  bool seeded, at_once;
};
machine device;
thread_local int current, captures, depth;

typedef std::lock_guard<std::recursive_mutex> holding;

void poison_block(char *data, size_t bytes, bool on) {
#if defined(__SANITIZE_ADDRESS__)
  if (on) __asan_poison_memory_region(data, bytes);
  else __asan_unpoison_memory_region(data, bytes);
#else
  (void)data, (void)bytes, (void)on;
#endif
}

void poison_all(bool on) {
  for (auto &b : device.blocks)
    if (on || device.running >> b.second.device & 1) poison_block(b.first, b.second.bytes, on);
}

struct guard {
  guard() { gb_machine_enter(); }
  ~guard() { gb_machine_leave(); }
};

/* {==== when what runs ==== */

void seed(void) {
  const char *text = getenv("GIBBOUS_CUDA_LATE");
  if (text && !*text) text = NULL;
  device.random = text && strcmp(text, "random") ? strtoull(text, NULL, 10) : 1;
  if (text && !strcmp(text, "random")) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    device.random = (uint64_t)t.tv_nsec % 1000000 + 2;
    fprintf(stderr, "GIBBOUS_CUDA_LATE=%llu\n", (unsigned long long)device.random);
  }
  device.at_once = device.random == 0;
  device.tempo = (unsigned)(device.random % 3);
  device.random = device.random * 0x9e3779b97f4a7c15u + 1;
  device.seeded = true;
}

/* Vigna's xorshift64*: its high bits. */
unsigned next_random(void) {
  device.random ^= device.random >> 12;
  device.random ^= device.random << 25;
  device.random ^= device.random >> 27;
  return (unsigned)(device.random * 0x2545f4914f6cdd1du >> 33);
}

bool is_ready(const gb_stream stream) {
  if (stream->queue.empty()) return false;
  item &first = stream->queue.front();
  if (first.outside) {
    unsigned outer = device.running;
    device.running = 1u << stream->device;
    first.over = first.over || first.outside();
    device.running = outer;
    return first.over;
  }
  return !first.waits || first.event->done >= first.number;
}

double seconds_now() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void run_first(gb_stream stream) {
  item first = stream->queue.front();
  stream->queue.pop_front();
  if (first.work) {
    unsigned outer = device.running;
    device.running = 1u << stream->device;
    first.work();
    device.running = outer;
  } else if (first.event && !first.waits && first.event->done < first.number) {
    first.event->done = first.number;
    first.event->when = seconds_now();
  }
}

/* One item of some stream that is ready: of this thread's, or of anybody's. */
bool run_some(bool anybody) {
  std::vector<gb_stream> ready;
  for (gb_stream s : device.streams)
    if ((anybody || s->owner == std::this_thread::get_id()) && is_ready(s)) ready.push_back(s);
  if (ready.empty()) return false;
  run_first(ready[next_random() % ready.size()]);
  return true;
}

/* Let time pass. */
void pass(void) {
  if (depth) return;
  depth++;
  if (!device.seeded) seed();
  if (next_random() % 8 == 0) device.tempo = next_random() % 3;
  unsigned most = device.at_once || device.tempo == 2 ? ~0u : device.tempo == 1 ? next_random() % 4 : 0;
  while (most-- && run_some(false)) continue;
  depth--;
}

/* Does some stream wait for what is outside of this process? */
bool waits_outside(void) {
  for (gb_stream s : device.streams)
    if (!s->queue.empty() && s->queue.front().outside) return true;
  return false;
}

/* Run what there is until the condition holds. */
int run_until(const std::function<bool()> &holds) {
  depth++;
  int code = DONE;
  while (!code && !holds())
    if (!run_some(false) && !run_some(true)) {
      if (waits_outside()) {
        std::this_thread::yield();
        continue;
      }
      gb_machine_fail("stream", "streams wait for each other's events for ever");
      code = STUCK;
    }
  depth--;
  return code;
}

void use(gb_stream stream) { stream->owner = std::this_thread::get_id(); }

void push(gb_stream stream, const item &one) {
  holding hold(device.lock);
  use(stream);
  stream->queue.push_back(one);
  if (stream->queue.size() > QUEUE_MOST) run_until([=]() { return stream->queue.size() < QUEUE_MOST / 2; });
  pass();
}

/* What frees memory waits for all that this thread asked for. */
void run_out(void) {
  run_until([]() {
    for (gb_stream s : device.streams)
      if (s->owner == std::this_thread::get_id() && !s->queue.empty()) return false;
    return true;
  });
}

/* ====} */

/* Who captures on this thread; NULL: nobody. */
gb_stream capturing(void) {
  if (!captures) return NULL;
  for (gb_stream s : device.streams)
    if (s->capture && s->owner == std::this_thread::get_id()) return s;
  return NULL;
}

/* A call that a capture forbids to the thread that captures. */
int refuse_in_capture(const char *call) {
  holding hold(device.lock);
  gb_stream stream = capturing();
  if (!stream) return DONE;
  stream->violated = true;
  gb_machine_fail("capture", "%s is forbidden while a graph is captured", call);
  return IN_CAPTURE;
}

/* Work on a stream that takes no part in the capture of this thread runs at another time than it was meant to. */
int refuse_beside_capture(gb_stream stream, const char *call) { return captures &&
                                                                !stream->capture ? refuse_in_capture(call) : DONE; }

bool is_pinned(const void *host) {
  auto after = device.pinned.upper_bound((char *)host);
  if (after == device.pinned.begin()) return false;
  --after;
  return (char *)host < after->first + after->second;
}

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

void gb_machine_do(gb_stream stream, const char *what, void (*work)(void *), void (*release)(void *), void *argument) {
  struct holder {
    void (*release)(void *);
    void *argument;
    ~holder() { release(argument); }
  };
  std::shared_ptr<holder> held(new holder{ release, argument });
  gb_machine_submit(stream, what, [work, held]() {
    guard open;
    work(held->argument);
  });
}

void gb_machine_await(gb_stream stream, int (*step)(void *), void (*release)(void *), void *argument) {
  std::shared_ptr<void> held(argument, release);
  if (stream->capture || refuse_beside_capture(stream, "waiting on another stream")) {
    gb_machine_fail("capture", "a wait for what is outside of the process cannot be replayed");
    return;
  }
  push(stream, { nullptr, nullptr, 0, false, [step, held]() {
    guard open;
    return step(held.get()) != 0;
  }, false });
}

const char *gb_rt_text(int code) {
  static const char *const texts[] = { "no error", NULL, "there is no such device", "not allowed while a graph is "
                                                                                    "captured",
                                       "the stream does not capture a graph", "out of memory",
                                           "the stream or event belongs to another device",
                                       "streams wait for each other", "an illegal memory access was encountered" };
  return code == LAUNCH_FAILED ? gb_machine_failure() : texts[code];
}

int gb_rt_device_count(int *count) {
  const char *text = getenv("GIBBOUS_CUDA_DEVICES");
  *count = text ? atoi(text) : 2;
  return DONE;
}

static int check_device(int index) {
  int count;
  gb_rt_device_count(&count);
  return index >= 0 && index < count && index < 32 ? DONE : NO_SUCH_DEVICE;
}

int gb_rt_select(int index) {
  int code = check_device(index);
  if (!code) current = index;
  return code;
}

static size_t most_memory(void) {
  static const char *text = getenv("GIBBOUS_CUDA_MEMORY");
  return text ? (size_t)strtoull(text, NULL, 10) : (size_t)8 << 30;
}

/* Of the device that is selected. Under the lock. */
static size_t memory_in_use(void) {
  size_t bytes = 0;
  for (auto &b : device.blocks)
    if (b.second.device == current) bytes += b.second.bytes;
  return bytes;
}

int gb_rt_properties(int index, gb_device_properties *out) {
  if (int code = check_device(index)) return code;
  *out = {};
  strcpy(out->name, "emulated on the CPU");
  out->multiprocessors = 4; /* so that kernels sized by it run more than one block */
  out->memory = most_memory();
  out->shared_per_block = 48 << 10;
  out->shared_most = GB_EMULATED_SHARED;
  return DONE;
}

int gb_rt_memory(size_t *available, size_t *total) {
  holding hold(device.lock);
  *total = most_memory();
  *available = *total - memory_in_use();
  return DONE;
}

int gb_machine_broken(void) {
  static const char *name = getenv("GIBBOUS_CUDA_BROKEN_BY");
  return name && *name && access(name, F_OK) == 0 ? BROKEN : DONE;
}

static thread_local int alloc_code;

int gb_rt_alloc_error(void) { return alloc_code; }

/* A line for each block that the driver gives. Under the lock. */
static void note_allocation(size_t bytes) {
  static const char *name = getenv("GIBBOUS_CUDA_ALLOCATION_FILE");
  static FILE *file = name ? fopen(name, "a") : NULL;
  if (!file) return;
  fprintf(file, "%zu\n", bytes);
  fflush(file);
}

/* Fresh memory holds rubbish, NaN in every float format. */
void *gb_rt_alloc(size_t bytes) {
  void *data;
  alloc_code = gb_machine_broken();
  if (alloc_code) return NULL;
  holding hold(device.lock);
  if (bytes > most_memory() - memory_in_use() || posix_memalign(&data, 256, bytes ? bytes : 1)) return NULL;
  memset(data, 0xff, bytes);
  note_allocation(bytes);
  device.blocks[(char *)data] = { bytes, current };
  gb_traffic_block(data, bytes, true);
  if (!device.open) poison_block((char *)data, bytes, true);
  return data;
}

void gb_rt_free(void *data, size_t bytes) {
  holding hold(device.lock);
  run_out();
  device.blocks.erase((char *)data);
  gb_traffic_block(data, bytes, false);
  poison_block((char *)data, bytes, false);
  free(data);
}

void *gb_rt_host_alloc(size_t bytes) {
  alloc_code = gb_machine_broken();
  if (alloc_code) return NULL;
  char *data = (char *)malloc(bytes);
  holding hold(device.lock);
  if (data) device.pinned[data] = bytes;
  return data;
}

void gb_rt_host_free(void *data) {
  holding hold(device.lock);
  run_out();
  device.pinned.erase((char *)data);
  free(data);
}

bool gb_rt_is_pinned(const void *host) {
  holding hold(device.lock);
  return is_pinned(host);
}

bool gb_rt_is_on_device(const void *memory) {
  holding hold(device.lock);
  auto after = device.blocks.upper_bound((char *)memory);
  if (after == device.blocks.begin()) return false;
  --after;
  return (char *)memory < after->first + after->second.bytes;
}

int gb_rt_stream_open(gb_stream *out) {
  holding hold(device.lock);
  *out = new CUstream_st{ current, {}, std::this_thread::get_id(), NULL, false };
  device.streams.push_back(*out);
  return DONE;
}

void gb_rt_stream_close(gb_stream stream) {
  holding hold(device.lock);
  use(stream);
  run_until([=]() { return stream->queue.empty(); });
  for (size_t i = 0; i < device.streams.size(); i++)
    if (device.streams[i] == stream) device.streams.erase(device.streams.begin() + (long)i);
  delete stream;
}

int gb_rt_synchronize(gb_stream stream) {
  if (int code = refuse_in_capture("cudaStreamSynchronize")) return code;
  holding hold(device.lock);
  use(stream);
  return run_until([=]() { return stream->queue.empty(); });
}

int gb_rt_copy(gb_stream stream, void *to, const void *from, size_t bytes, gb_copy_kind kind) {
  holding hold(device.lock);
  bool pageable = (kind == GB_COPY_TO_HOST && !is_pinned(to)) || (kind == GB_COPY_TO_DEVICE && !is_pinned(from));
  if (int code = pageable ? refuse_in_capture("cudaMemcpyAsync of memory that is not pinned")
      : refuse_beside_capture(stream, "cudaMemcpyAsync")) return code;
  if (bytes == 0) return DONE;
  if (kind == GB_COPY_TO_DEVICE && pageable) {
    auto read = std::make_shared<std::string>((const char *)from, bytes);
    gb_machine_submit(stream, "copy to the device", [=]() {
      guard open;
      gb_machine_moved(0, bytes);
      memcpy(to, read->data(), bytes);
    });
    return DONE;
  }
  gb_machine_submit(stream, kind == GB_COPY_ON_DEVICE ? "copy" : kind == GB_COPY_TO_HOST ? "copy to the host"
                                                              : "copy to the device", [=]() {
    guard open;
    gb_machine_moved(kind == GB_COPY_TO_DEVICE ? 0 : bytes, kind == GB_COPY_TO_HOST ? 0 : bytes);
    memmove(to, from, bytes);
  });
  return kind == GB_COPY_TO_HOST && pageable ? gb_rt_synchronize(stream) : DONE;
}

int gb_rt_copy_peer(gb_stream stream, void *to, int to_device, const void *from, int from_device, size_t bytes) {
  if (stream->device != to_device && stream->device != from_device) return OTHER_DEVICE;
  if (int code = refuse_in_capture("cudaMemcpyPeerAsync")) return code;
  if (bytes == 0) return DONE;
  gb_machine_submit(stream, "copy from another device", [=]() {
    device.running = 1u << to_device | 1u << from_device;
    guard open;
    memmove(to, from, bytes);
  });
  return DONE;
}

int gb_rt_set(gb_stream stream, void *data, int byte, size_t bytes) {
  if (int code = gb_machine_broken()) return code;
  if (bytes == 0) return DONE;
  gb_machine_submit(stream, "fill", [=]() {
    guard open;
    gb_machine_moved(0, bytes);
    memset(data, byte, bytes);
  });
  return DONE;
}

int gb_rt_event_open(gb_event *out) {
  *out = new CUevent_st{ std::make_shared<event_state>(event_state{ current, 0, 0, false, 0, NULL }) };
  return DONE;
}

void gb_rt_event_close(gb_event event) { delete event; }

int gb_rt_event_record(gb_event event, gb_stream stream) {
  if (event->state->device != stream->device) return OTHER_DEVICE;
  if (int code = refuse_beside_capture(stream, "cudaEventRecord on another stream")) return code;
  event->state->captured = stream->capture != NULL;
  event->state->stream = stream;
  if (!stream->capture) push(stream, { nullptr, event->state, ++event->state->asked, false, nullptr, false });
  return DONE;
}

static int check_event(gb_event event, const char *call) {
  if (int code = refuse_in_capture(call)) return code;
  if (!event->state->captured) return DONE;
  gb_machine_fail("capture", "%s of an event that was recorded in a capture", call);
  return IN_CAPTURE;
}

int gb_rt_event_synchronize(gb_event event) {
  if (int code = check_event(event, "cudaEventSynchronize")) return code;
  holding hold(device.lock);
  std::shared_ptr<event_state> state = event->state;
  uint64_t number = state->asked;
  return run_until([=]() { return state->done >= number; });
}

int gb_rt_event_open_timed(gb_event *out) { return gb_rt_event_open(out); }

int gb_rt_event_elapsed(gb_event from, gb_event to, double *seconds) {
  if (int code = gb_rt_event_synchronize(to)) return code;
  *seconds = to->state->when - from->state->when;
  return DONE;
}

int gb_rt_event_done(gb_event event, bool *done) {
  *done = false;
  if (int code = check_event(event, "cudaEventQuery")) return code;
  holding hold(device.lock);
  /* it comes to pass also where another thread asks than those which gave the work that it hangs on */
  gb_stream next = event->state->stream;
  for (size_t i = 0; next && i <= device.streams.size(); i++) {
    gb_stream s = next;
    next = NULL;
    for (gb_stream known : device.streams)
      if (known == s && s->device == current) {
        use(s);
        if (!s->queue.empty() && s->queue.front().waits) next = s->queue.front().event->stream;
      }
  }
  pass();
  *done = event->state->done >= event->state->asked;
  return DONE;
}

int gb_rt_event_wait(gb_stream stream, gb_event event) {
  if (stream->capture ? !event->state->captured : event->state->captured) {
    stream->violated = true;
    gb_machine_fail("capture", "cudaStreamWaitEvent between a stream that captures and one that does not");
    return IN_CAPTURE;
  }
  if (int code = refuse_beside_capture(stream, "cudaStreamWaitEvent on another stream")) return code;
  if (!stream->capture && event->state->asked)
    push(stream, { nullptr, event->state, event->state->asked, true, nullptr, false });
  return DONE;
}

int gb_rt_capture_begin(gb_stream stream) {
  holding hold(device.lock);
  if (stream->capture) return IN_CAPTURE;
  use(stream);
  stream->capture = new gb_graph{ std::make_shared<work_list>(), stream->device };
  stream->violated = false;
  captures++;
  return DONE;
}

int gb_rt_capture_end(gb_stream stream, gb_graph **out) {
  holding hold(device.lock);
  *out = NULL;
  if (!stream->capture) return NOT_IN_CAPTURE;
  gb_graph *graph = stream->capture;
  stream->capture = NULL;
  captures--;
  if (!stream->violated) {
    *out = graph;
    return DONE;
  }
  delete graph;
  return IN_CAPTURE;
}

int gb_rt_graph_launch(gb_graph *graph, gb_stream stream) {
  if (graph->device != stream->device) return OTHER_DEVICE;
  if (int code = refuse_in_capture("cudaGraphLaunch")) return code;
  std::shared_ptr<work_list> work = graph->work;
  gb_machine_submit(stream, "graph", [work]() {
    for (auto &one : *work) one();
  });
  return DONE;
}

void gb_rt_graph_close(gb_graph *graph) { delete graph; }

/* {==== ranges: a tool that notes them ==== */

static const char *range_file(void) { return getenv("GIBBOUS_CUDA_RANGE_FILE"); }
static thread_local int range_depth;

bool gb_rt_ranges_wanted(void) { return range_file() != NULL || gb_traffic_wanted(); }

void gb_rt_range_push(const char *name) {
  gb_traffic_push(name);
  FILE *file = range_file() ? fopen(range_file(), "a") : NULL;
  if (!file) return;
  fprintf(file, "%*s%s\n", 2 * range_depth++, "", name);
  fclose(file);
}

void gb_rt_range_pop(void) {
  gb_traffic_pop();
  range_depth--;
}

/* ====} */

} /* extern "C" */

void gb_machine_submit(gb_stream stream, const char *what, std::function<void()> work) {
  if (refuse_beside_capture(stream, "work on another stream")) return;
  work = gb_traffic_watch(what, work);
  if (stream->capture) stream->capture->work->push_back(work);
  else if (stream->device != current)
    gb_machine_fail("stream", "work for device %d while device %d is this thread's", stream->device, current);
  else push(stream, { work, nullptr, 0, false, nullptr, false });
}
