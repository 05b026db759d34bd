/* emulate.cc - the emulated device: runs the threads of a block as fibers, and checks how they wait for each other.
 *
 * One machine serves the process, under one lock: launches of several contexts follow each other. A fiber runs thread
 * after thread of its block until one of them must wait; then that thread keeps the fiber, and the next fiber goes on
 * with the threads that have not begun. So a kernel without barriers costs two switches a block. The order of threads
 * is shuffled by the number in GIBBOUS_CUDA_ORDER.
 *
 * For the thread sanitizer every thread of a block is a fiber of its own, on a stack that no other thread of the block
 * had; barriers, shuffles, votes and the edges of a block order what they order on a device, and nothing else does.
 * This file itself is then compiled without it (GB_MACHINE_TSAN says so). */
#include "emulate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

#include "machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(GB_MACHINE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

__thread gb_emulated_place *gb_emulated;

namespace {

/* {==== fibers ==== */

#if defined(__SANITIZE_ADDRESS__) || defined(GB_MACHINE_TSAN)
const size_t STACK = 512 << 10;
#else
const size_t STACK = 128 << 10;
#endif

#if defined(__x86_64__)
typedef void *context;
/* Save what a call must keep on the stack, exchange stacks, and return on the other one. */
asm(R"(
.text
.type gb_emulated_switch, @function
gb_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gb_emulated_switch, .-gb_emulated_switch
)");
extern "C" void gb_emulated_switch(context *from, context to);
void swap_to(context *from, context *to) { gb_emulated_switch(from, *to); }
/* A stack on which the first switch returns into entry, which finds it aligned as after a call. */
void prepare(context *c, char *stack, size_t size, void (*entry)(void)) {
  void **top = (void **)(stack + size) - 2;
  *top = (void *)entry;
  top -= 6;
  memset(top, 0, 6 * sizeof *top);
  *c = top;
}
#elif defined(__aarch64__)
typedef void *context;
asm(R"(
.text
.type gb_emulated_switch, %function
gb_emulated_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size gb_emulated_switch, .-gb_emulated_switch
)");
extern "C" void gb_emulated_switch(context *from, context to);
void swap_to(context *from, context *to) { gb_emulated_switch(from, *to); }
void prepare(context *c, char *stack, size_t size, void (*entry)(void)) {
  void **top = (void **)(stack + size) - 20;
  memset(top, 0, 20 * sizeof *top);
  top[11] = (void *)entry;
  *c = top;
}
#else
typedef ucontext_t context;
void swap_to(context *from, context *to) { swapcontext(from, to); }
void prepare(context *c, char *stack, size_t size, void (*entry)(void)) {
  getcontext(c);
  c->uc_stack.ss_sp = stack;
  c->uc_stack.ss_size = size;
  c->uc_link = NULL;
  makecontext(c, entry, 0);
}
#endif

struct fiber {
  context at;
  char *stack;
};

/* ====} */

/* {==== what the thread sanitizer is told ==== */

enum edge { LAUNCH_EDGE, END_EDGE, BARRIER_EDGE, WARP_EDGE, EDGES = WARP_EDGE + 32 };

#if defined(GB_MACHINE_TSAN)
char edges[EDGES];              /* addresses that stand for what threads wait for */
std::vector<void *> identities; /* of the threads of a block */
void *host_identity;

void become(unsigned t) {
  while (identities.size() <= t) identities.push_back(__tsan_create_fiber(0));
  __tsan_switch_to_fiber(identities[t], __tsan_switch_to_fiber_no_sync);
}
void become_host(void) { __tsan_switch_to_fiber(host_identity, __tsan_switch_to_fiber_no_sync); }
void note_host(void) { host_identity = __tsan_get_current_fiber(); }
void leave_edge(int e) { __tsan_release(&edges[e]); }
void meet_edge(int e) { __tsan_acquire(&edges[e]); }
#else
void become(unsigned) {}
void become_host(void) {}
void note_host(void) {}
void leave_edge(int) {}
void meet_edge(int) {}
#endif

/* ====} */

/* {==== the machine ==== */

enum thread_state { UNBEGUN, READY, AT_BARRIER, AT_WARP, FINISHED };

struct thread {
  gb_emulated_place place;
  thread_state state;
  fiber *on;                 /* the fiber it keeps while it waits */
  const char *file;          /* of the barrier it waits at */
  int line;
  unsigned mask, from;       /* of the shuffle or vote it waits in */
  uint64_t value, result;
  bool is_vote;
};

struct shared_array { const void *key; char *data; size_t bytes; };

const size_t ARENA = 256 << 10;
const unsigned THREADS_MOST = 1024;

#if defined(GB_MACHINE_TSAN)
const bool STACK_OF_ITS_OWN = true; /* two threads that use one stack in turn would look like a race */
#else
const bool STACK_OF_ITS_OWN = false;
#endif

struct machine {
  std::recursive_mutex lock;
  std::vector<fiber *> idle, all, spent; /* spent: idle again when the block has ended */
  std::vector<thread> threads;
  std::vector<unsigned> order, ready;  /* of threads: in which they begin; that may go on */
  unsigned count, begun, finished, at_barrier;
  unsigned current;
  fiber *running;
  context scheduler;
  bool broken;
  const char *kernel;
  std::function<void()> *body;
  alignas(64) char arena[ARENA];
  std::vector<shared_array> shared;
  size_t arena_used, shared_bytes, shared_most;
  unsigned char *dynamic;
  uint64_t random;
  char failed_kernel[160], failure[400];
  bool has_failed;
  const void *caller_stack;
  size_t caller_size;

  ~machine() {
    for (fiber *f : all) {
      munmap(f->stack, STACK);
      delete f;
    }
  }
};
machine m;

/* xorshift: an order, no more. */
uint64_t next_random(void) {
  m.random ^= m.random << 13;
  m.random ^= m.random >> 7;
  return m.random ^= m.random << 17;
}

bool is_shuffled(void) {
  static const char *seed = getenv("GIBBOUS_CUDA_ORDER");
  if (seed && !m.random) m.random = strtoull(seed, NULL, 10) * 0x9E3779B97F4A7C15u + 1;
  return seed != NULL;
}

/* {---- switches, told to the sanitizers ---- */

void to_fiber(fiber *f) {
  m.running = f;
#if defined(__SANITIZE_ADDRESS__)
  void *fake;
  __sanitizer_start_switch_fiber(&fake, f->stack, STACK);
  swap_to(&m.scheduler, &f->at);
  __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
  swap_to(&m.scheduler, &f->at);
#endif
}

void to_scheduler(fiber *f) {
#if defined(__SANITIZE_ADDRESS__)
  void *fake;
  __sanitizer_start_switch_fiber(&fake, m.caller_stack, m.caller_size);
  swap_to(&f->at, &m.scheduler);
  __sanitizer_finish_switch_fiber(fake, &m.caller_stack, &m.caller_size);
#else
  swap_to(&f->at, &m.scheduler);
#endif
}

/* ----} */

/* What a fiber does for ever: threads that have not begun, one after another, until there are none. */
void fiber_main(void) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(NULL, &m.caller_stack, &m.caller_size);
#endif
  for (;;) {
    while (m.begun < m.count && !m.broken) {
      unsigned t = m.order[m.begun++];
      m.current = t;
      gb_emulated = &m.threads[t].place;
      become(t);
      meet_edge(LAUNCH_EDGE);
      (*m.body)();
      leave_edge(END_EDGE);
      become_host();
      m.threads[m.current].state = FINISHED; /* it may have waited, but it is the current one again */
      m.finished++;
      if (!m.ready.empty() || STACK_OF_ITS_OWN) break; /* those that wait may go on first */
    }
    (STACK_OF_ITS_OWN ? m.spent : m.idle).push_back(m.running);
    to_scheduler(m.running);
  }
}

fiber *take_fiber(void) {
  if (!m.idle.empty()) {
    fiber *f = m.idle.back();
    m.idle.pop_back();
    return f;
  }
  fiber *f = new fiber;
  f->stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  prepare(&f->at, f->stack, STACK, fiber_main);
  m.all.push_back(f);
  return f;
}

/* The current thread waits until somebody has made it ready; false: the block is given up. */
void wait_here(thread_state state) {
  unsigned me = m.current;
  fiber *mine = m.running;
  m.threads[me].state = state;
  m.threads[me].on = mine;
  leave_edge(END_EDGE); /* where the block is given up, this was its end */
  become_host();
  to_scheduler(mine);
  become(me);
  m.current = me;
  gb_emulated = &m.threads[me].place;
}

void make_ready(unsigned t) {
  m.threads[t].state = READY;
  m.ready.push_back(t);
}

/* Every thread that is not finished waits for one that will not come. */
void report_deadlock(void) {
  const thread *at_barrier = NULL, *at_warp = NULL;
  for (unsigned t = 0; t < m.count; t++) {
    if (m.threads[t].state == AT_BARRIER) at_barrier = &m.threads[t];
    if (m.threads[t].state == AT_WARP) at_warp = &m.threads[t];
  }
  const thread *t = at_barrier ? at_barrier : at_warp;
  const uint3 b = t->place.block, i = t->place.thread;
  if (at_barrier && at_warp)
    gb_machine_fail(m.kernel, "block (%u, %u, %u): thread (%u, %u, %u) waits at the barrier %s:%d while others wait "
                              "in a shuffle or vote", b.x, b.y, b.z,
                    i.x, i.y, i.z, t->file, t->line);
  else if (at_barrier)
    gb_machine_fail(m.kernel, "block (%u, %u, %u): divergent barrier at %s:%d: %u of %u threads reach it", b.x, b.y,
                    b.z, t->file, t->line, m.at_barrier,
                    m.count);
  else
    gb_machine_fail(m.kernel, "block (%u, %u, %u): thread (%u, %u, %u) waits in a shuffle or vote for lanes (mask "
                              "%08x) that do not take part", b.x, b.y, b.z,
                    i.x, i.y, i.z, t->mask);
}

void poison(char *from, size_t bytes, bool on) {
#if defined(__SANITIZE_ADDRESS__)
  if (on) __asan_poison_memory_region(from, bytes);
  else __asan_unpoison_memory_region(from, bytes);
#else
  (void)from, (void)bytes, (void)on;
#endif
}

/* Threads that wait keep their fibers; those of a block that was given up are thrown away, since nothing may run on
 * them again. */
void give_up(void) {
  m.broken = true;
  for (thread &t : m.threads) {
    if (t.state != AT_BARRIER && t.state != AT_WARP && t.state != READY) continue;
    poison(t.on->stack, STACK, false); /* of what its calls kept there */
    prepare(&t.on->at, t.on->stack, STACK, fiber_main);
    m.idle.push_back(t.on);
  }
}

/* {---- shared memory ---- */

/* An array full of rubbish (NaN in every float format), with room behind it that may not be touched. */
char *shared_alloc(size_t bytes) {
  char *data = m.arena + m.arena_used;
  size_t used = (bytes + 63) / 64 * 64 + 64;
  if (m.arena_used + used > ARENA) return NULL;
  m.arena_used += used;
  poison(data, used, false);
  /* no library call: sanitizers see those */
  for (size_t i = 0; i < used / 8; i++)
    ((volatile uint64_t *)(void *)m.arena)[(size_t)(data - m.arena) / 8 + i] = ~(uint64_t)0;
  poison(data + bytes, used - bytes, true);
  return data;
}

void shared_reset(void) {
  poison(m.arena, m.arena_used, true);
  m.shared.clear();
  m.arena_used = 0;
  m.dynamic = (unsigned char *)shared_alloc(m.shared_bytes);
}

/* ----} */

void begin_block(uint3 block, dim3 grid, dim3 size) {
  meet_edge(END_EDGE);
  m.begun = m.finished = m.at_barrier = 0;
  m.ready.clear();
  m.idle.insert(m.idle.end(), m.spent.begin(), m.spent.end());
  m.spent.clear();
  shared_reset();
  for (unsigned t = 0; t < m.count; t++) {
    thread &one = m.threads[t];
    one.state = UNBEGUN;
    one.place.thread = { t % size.x, t / size.x % size.y, t / size.x / size.y };
    one.place.block = block;
    one.place.block_dim = size;
    one.place.grid_dim = grid;
    m.order[t] = t;
  }
  if (is_shuffled())
    for (unsigned t = m.count; t > 1; t--) std::swap(m.order[t - 1], m.order[next_random() % t]);
  leave_edge(LAUNCH_EDGE);
}

/* Run the threads of a block to their end. */
void run_block(void) {
  while (m.finished < m.count && !m.broken) {
    if (!m.ready.empty()) {
      size_t pick = is_shuffled() ? next_random() % m.ready.size() : m.ready.size() - 1;
      unsigned t = m.ready[pick];
      m.ready[pick] = m.ready.back();
      m.ready.pop_back();
      to_fiber(m.threads[t].on);
    } else if (m.begun < m.count) to_fiber(take_fiber());
    else {
      report_deadlock();
      give_up();
    }
  }
}

/* What a real device would turn down, as soon as it is asked. */
bool is_possible(const char *kernel, dim3 grid, dim3 block, size_t shared, size_t most) {
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (threads == 0 || threads > THREADS_MOST || block.z > 64) {
    gb_machine_fail(kernel, "a block of %u x %u x %u threads cannot be launched; it has 1 .. %u", block.x, block.y,
                    block.z, THREADS_MOST);
    return false;
  }
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    gb_machine_fail(kernel, "a grid of %u x %u x %u blocks cannot be launched", grid.x, grid.y, grid.z);
    return false;
  }
  if (shared > most) {
    gb_machine_fail(kernel, "%zu bytes of shared memory are more than a block has (%zu)", shared, most);
    return false;
  }
  return true;
}

void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared, size_t most, std::function<void()> &body) {
  std::lock_guard<std::recursive_mutex> guard(m.lock);
  m.kernel = kernel;
  m.shared_bytes = shared;
  m.shared_most = most;
  m.broken = false;
  m.body = &body;
  m.count = block.x * block.y * block.z;
  m.threads.resize(m.count);
  m.order.resize(m.count);
  gb_machine_enter();
  note_host();
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x && !m.broken; x++) {
        begin_block({ x, y, z }, grid, block);
        run_block();
      }
  meet_edge(END_EDGE);
  gb_machine_leave();
  gb_emulated = NULL;
}

/* ====} */

} /* namespace */

void gb_emulated_launch(gb_stream stream, const char *kernel, dim3 grid, dim3 block, size_t shared, size_t most,
                        std::function<void()> body) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !is_possible(kernel, grid, block, shared, most)) return;
  gb_machine_submit(stream, kernel, [=]() mutable { run_grid(kernel, grid, block, shared, most, body); });
}

void *gb_emulated_shared(const void *key, size_t bytes) {
  for (const shared_array &s : m.shared)
    if (s.key == key) return s.data;
  size_t total = bytes + m.shared_bytes;
  for (const shared_array &s : m.shared) total += s.bytes;
  if (total > m.shared_most)
    gb_machine_fail(m.kernel, "%zu bytes of shared memory are more than a block has (%zu)", total, m.shared_most);
  char *data = shared_alloc(bytes);
  m.shared.push_back({ key, data, bytes });
  return data;
}

unsigned char *gb_emulated_shared_bytes(void) { return m.dynamic; }

void gb_emulated_barrier(const char *file, int line) {
  thread &me = m.threads[m.current];
  me.file = file;
  me.line = line;
  leave_edge(BARRIER_EDGE);
  if (++m.at_barrier < m.count) {
    wait_here(AT_BARRIER);
    meet_edge(BARRIER_EDGE);
    return;
  }
  meet_edge(BARRIER_EDGE);
  m.at_barrier = 0;
  for (unsigned t = 0; t < m.count; t++) {
    if (m.threads[t].state != AT_BARRIER) continue;
    if (m.threads[t].line != line || strcmp(m.threads[t].file, file))
      gb_machine_fail(m.kernel, "divergent barriers: some threads of a block are at %s:%d, others at %s:%d", file, line,
                      m.threads[t].file, m.threads[t].line);
    make_ready(t);
  }
}

unsigned gb_emulated_lane(void) { return m.current % 32; }

/* Wait until all lanes of the mask have come; the last one hands out the results. */
static uint64_t collect(unsigned mask, uint64_t value, unsigned from, bool is_vote) {
  unsigned first = m.current / 32 * 32, lanes = m.count - first < 32 ? m.count - first : 32,
      arrived = 1u << (m.current % 32);
  thread &me = m.threads[m.current];
  if (lanes < 32) mask &= (1u << lanes) - 1; /* a block whose last warp is not full */
  me.mask = mask;
  me.value = value;
  me.from = from;
  me.is_vote = is_vote;
  for (unsigned l = 0; l < lanes; l++) {
    const thread &other = m.threads[first + l];
    if (first + l != m.current && other.state == AT_WARP && other.mask == mask && other.is_vote == is_vote)
      arrived |= 1u << l;
  }
  if (!(mask & (1u << (m.current % 32))))
    gb_machine_fail(m.kernel, "a lane takes part in a shuffle or vote whose mask %08x leaves it out", mask);
  leave_edge(WARP_EDGE + (int)(m.current / 32));
  if ((arrived & mask) != mask) {
    unsigned self = m.current;
    wait_here(AT_WARP);
    meet_edge(WARP_EDGE + (int)(self / 32));
    return m.threads[self].result;
  }
  meet_edge(WARP_EDGE + (int)(m.current / 32));
  uint64_t votes = 0;
  for (unsigned l = 0; l < lanes; l++)
    if ((mask >> l & 1) && m.threads[first + l].value) votes |= 1u << l;
  for (unsigned l = 0; l < lanes; l++) {
    thread &one = m.threads[first + l];
    if (!(mask >> l & 1)) continue;
    unsigned source = one.from % 32; /* a lane that takes no part has no value: rubbish */
    one.result = is_vote ? votes : (mask >> source & 1) ? m.threads[first + source].value : ~(uint64_t)0;
  }
  for (unsigned l = 0; l < lanes; l++)
    if ((mask >> l & 1) && first + l != m.current) make_ready(first + l);
  return me.result;
}

uint64_t gb_emulated_shuffle(unsigned mask, uint64_t value, unsigned from) { return collect(mask, value, from, false); }
unsigned gb_emulated_ballot(unsigned mask, bool vote) { return (unsigned)collect(mask, vote, 0, true); }

extern "C" void gb_machine_fail(const char *kernel, const char *format, ...) {
  if (m.has_failed) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(m.failure, sizeof m.failure, format, arguments);
  va_end(arguments);
  snprintf(m.failed_kernel, sizeof m.failed_kernel, "%s", kernel);
  m.has_failed = true;
}

extern "C" int gb_rt_launch_error(const char **kernel) {
  if (!m.has_failed) {
    *kernel = NULL;
    return gb_machine_broken();
  }
  m.has_failed = false;
  *kernel = m.failed_kernel;
  return 1;
}

extern "C" void gb_rt_launched(const char *kernel) { (void)kernel; }

/* The text of the launch that failed last. */
extern "C" const char *gb_machine_failure(void) { return m.failure; }
