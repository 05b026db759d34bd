/* traffic.cc - how much of a device's memory each launch reads and writes, of a build that counts it.
 *
 * The kernels of that build are compiled with -fsanitize=thread, and what the compiler then calls at every access is
 * defined here in the sanitizer's place. A launch is charged with each sector of 32 bytes that it reads, once, and with
 * each that it writes, once: what a device must move at least for it, since caches hold no more than all, with the
 * waste of accesses that use a part of a sector. What libraries would do is told by their stand-ins (gb_machine_moved).
 * GIBBOUS_CUDA_TRAFFIC_FILE names the file that gets a line for each launch, copy and fill: the ranges that it lies in,
 * what it was, bytes read and written. Not counted: shared memory, and arguments. */
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <string>
#include <vector>

#include "machine.h"

namespace {

const size_t SECTOR = 32;

/* A block of device memory, and its sectors that the running launch has touched: [0] read, [1] written. */
struct memory {
  char *from;
  size_t bytes;
  std::vector<bool> touched[2];
  bool dirty;
};

std::map<char *, memory> blocks;
std::vector<memory *> dirty;
memory *last;
bool counting;
size_t moved[2];
thread_local std::vector<std::string> ranges;

const char *file_name(void) {
  static const char *name = getenv("GIBBOUS_CUDA_TRAFFIC_FILE");
  return name && *name ? name : NULL;
}

memory *block_of(char *at) {
  if (last && at >= last->from && at < last->from + last->bytes) return last;
  auto after = blocks.upper_bound(at);
  if (after == blocks.begin()) return NULL;
  memory *m = &(--after)->second;
  if (at >= m->from + m->bytes) return NULL;
  return last = m;
}

void touch(const volatile void *at, size_t bytes, int writes) {
  if (!counting || bytes == 0) return;
  char *from = (char *)at;
  memory *m = block_of(from);
  if (!m) return;
  if (!m->dirty) dirty.push_back(m);
  m->dirty = true;
  for (size_t s = (size_t)(from - m->from) / SECTOR; s <= ((size_t)(from - m->from) + bytes - 1) / SECTOR; s++) {
    if (s >= m->touched[writes].size() || m->touched[writes][s]) continue;
    m->touched[writes][s] = true;
    moved[writes] += SECTOR;
  }
}

void forget_touched(void) {
  for (memory *m : dirty) {
    for (auto &t : m->touched) t.assign(t.size(), false);
    m->dirty = false;
  }
  dirty.clear();
}

/* A name without the arguments of its template. */
std::string plain(const char *what) {
  std::string name = what;
  if (name.compare(0, 10, "GB_KERNEL(") == 0) name = name.substr(10, name.size() - 11);
  return name.substr(0, name.find('<'));
}

} /* namespace */

void gb_traffic_block(void *data, size_t bytes, bool there) {
  last = NULL;
  if (!there) {
    blocks.erase((char *)data);
    return;
  }
  memory m = { (char *)data, bytes, {}, false };
  for (auto &t : m.touched) t.assign((bytes + SECTOR - 1) / SECTOR, false);
  blocks[(char *)data] = m;
}

void gb_traffic_push(const char *name) { ranges.push_back(name); }
void gb_traffic_pop(void) {
  if (!ranges.empty()) ranges.pop_back();
}

bool gb_traffic_wanted(void) { return file_name() != NULL; }

std::function<void()> gb_traffic_watch(const char *what, std::function<void()> work) {
  if (!file_name()) return work;
  std::string line;
  for (const std::string &r : ranges) line += (line.empty() ? "" : "/") + r;
  line = (line.empty() ? "-" : line) + "\t" + plain(what);
  return [line, work]() {
    bool outer = counting;
    size_t before[2] = { moved[0], moved[1] };
    counting = true;
    work();
    counting = outer;
    FILE *file = outer ? NULL : fopen(file_name(), "a"); /* work within work is that of the graph that replays it */
    if (!file) return;
    fprintf(file, "%s\t%zu\t%zu\n", line.c_str(), moved[0] - before[0], moved[1] - before[1]);
    fclose(file);
    forget_touched();
  };
}

extern "C" {

void gb_machine_moved(size_t read, size_t written) {
  if (!counting) return;
  moved[0] += read;
  moved[1] += written;
}

/* {==== what the compiler calls ==== */

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
void __tsan_read_range(void *at, size_t bytes) { touch(at, bytes, 0); }
void __tsan_write_range(void *at, size_t bytes) { touch(at, bytes, 1); }

#define ACCESSES(bytes)                                                   \
  void __tsan_read##bytes(void *at) { touch(at, bytes, 0); }              \
  void __tsan_write##bytes(void *at) { touch(at, bytes, 1); }             \
  void __tsan_unaligned_read##bytes(void *at) { touch(at, bytes, 0); }    \
  void __tsan_unaligned_write##bytes(void *at) { touch(at, bytes, 1); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

/* An atomic operation reads and writes. */
#define FETCH(bits, type, name)                                                       \
  type __tsan_atomic##bits##_fetch_##name(volatile void *at, type value, int) {       \
    touch(at, sizeof(type), 0);                                                       \
    touch(at, sizeof(type), 1);                                                       \
    return __atomic_fetch_##name((volatile type *)at, value, __ATOMIC_SEQ_CST);       \
  }
#define EXCHANGE(bits, type, kind)                                                                                \
  bool __tsan_atomic##bits##_compare_exchange_##kind(volatile void *at, void *expected, type value, int, int) {   \
    touch(at, sizeof(type), 0);                                                                                   \
    touch(at, sizeof(type), 1);                                                                                   \
    return __atomic_compare_exchange_n((volatile type *)at, (type *)expected, value, false, __ATOMIC_SEQ_CST,     \
                                       __ATOMIC_SEQ_CST);                                                         \
  }
#define ATOMICS(bits, type)                                                          \
  FETCH(bits, type, add)                                                             \
  FETCH(bits, type, sub)                                                             \
  FETCH(bits, type, and)                                                             \
  FETCH(bits, type, or)                                                              \
  FETCH(bits, type, xor)                                                             \
  EXCHANGE(bits, type, strong)                                                       \
  EXCHANGE(bits, type, weak)                                                         \
  type __tsan_atomic##bits##_load(const volatile void *at, int) {                    \
    touch(at, sizeof(type), 0);                                                      \
    return __atomic_load_n((const volatile type *)at, __ATOMIC_SEQ_CST);             \
  }                                                                                  \
  void __tsan_atomic##bits##_store(volatile void *at, type value, int) {             \
    touch(at, sizeof(type), 1);                                                      \
    __atomic_store_n((volatile type *)at, value, __ATOMIC_SEQ_CST);                  \
  }                                                                                  \
  type __tsan_atomic##bits##_exchange(volatile void *at, type value, int) {          \
    touch(at, sizeof(type), 0);                                                      \
    touch(at, sizeof(type), 1);                                                      \
    return __atomic_exchange_n((volatile type *)at, value, __ATOMIC_SEQ_CST);        \
  }
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

/* ====} */

} /* extern "C" */
