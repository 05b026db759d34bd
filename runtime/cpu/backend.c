/* cpu/backend.c - opens the CPU backend: picks the level, collects the kernels, and serves memory, scratch and bad
 * index values.
 *
 * A level is a set of instructions the kernel files were compiled for. baseline is any x86-64; or any ARMv8-A, whose
 * vectors, fused products and float16 conversions every such CPU has; or whatever the compiler's target is. v3 and v4
 * are the levels of the x86-64 psABI. Levels that were not compiled are left out by GB_HAVE_LEVEL_V3 and
 * GB_HAVE_LEVEL_V4. v4-bf16 and v4-amx are v4 with a unit that multiplies 16-bit operands. */
#define _GNU_SOURCE /* madvise, syscall */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef GB_HAVE_LEVEL_V4
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "base/sanitizer.h"
#include "cpu/conv_onednn.h"
#include "cpu/cpu.h"

/* {==== levels ==== */

/* Every function that fills a part of the table, once per level. */
#define FILLS(X, level) \
  X(elementwise, level) X(create, level) X(reduce, level) X(softmax, level) X(norm, level) \
  X(channel_norm, level) X(loss, level) X(matmul, level) X(conv, level) X(pool2d, level) X(attention, level) \
  X(recurrent, level) \
  X(index, level) X(cat, level) X(sort, level) X(view, level) X(optim, level) X(numerics, level) X(ctc, level) \
  X(resample, level) X(resample_planes, level) X(taps, level) X(linalg, level) X(fft, level)
#define DECLARE(family, level) void gb_cpu_fill_##family##_##level(gb_backend *backend);
#define CALL(family, level) gb_cpu_fill_##family##_##level(backend);

FILLS(DECLARE, baseline)
static void fill_baseline(gb_backend *backend) { FILLS(CALL, baseline) }

#ifdef GB_HAVE_LEVEL_V3
FILLS(DECLARE, v3)
static void fill_v3(gb_backend *backend) { FILLS(CALL, v3) }
static bool has_v3(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt");
}
#endif

#ifdef GB_HAVE_LEVEL_V4
FILLS(DECLARE, v4)
static void fill_v4(gb_backend *backend) { FILLS(CALL, v4) }
static bool has_v4(void) {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

static bool has_v4_bf16(void) { return has_v4() && __builtin_cpu_supports("avx512bf16"); }

/* Are dot products faster than float32's multiply-adds? Published tables say so of AMD's Zen 4 and later: as many per
 * cycle, each of twice the products. On Sapphire Rapids a product of matrices by them had 0.7 of float32's rate
 * (tests/bench/NOTES.md): there they are for who asks. */
static bool dots_pay(void) { return __builtin_cpu_is("amd"); }

/* Tiles are 8 KiB of state of every thread, which Linux gives to processes that ask (Documentation/arch/x86/xstate.rst,
 * since 5.16); it refuses where a thread's alternate signal stack is too small for them, or a filter of system calls
 * does not know the question. */
static bool may_use_tiles(void) {
  enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, which older headers do not have */
#ifdef SYS_arch_prctl
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}

static bool has_v4_amx(void) {
  enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
  unsigned a, b, c, d;
  if (!has_v4() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (d & AMX_BF16) && (d & AMX_TILE) && may_use_tiles();
}
#endif

static bool always(void) { return true; }

/* The levels that were compiled, best first. pays: is it faster here than those below? */
typedef struct cpu_level { const char *name; bool (*pays)(void),
                           (*runs)(void); void (*fill)(gb_backend *backend); gb_unit unit; } cpu_level;
static const cpu_level levels[] = {
#ifdef GB_HAVE_LEVEL_V4
  { "v4-amx", always, has_v4_amx, fill_v4, GB_UNIT_TILES },
  { "v4-bf16", dots_pay, has_v4_bf16, fill_v4, GB_UNIT_DOTS },
  { "v4", always, has_v4, fill_v4, GB_UNIT_NONE },
#endif
#ifdef GB_HAVE_LEVEL_V3
  { "v3", always, has_v3, fill_v3, GB_UNIT_NONE },
#endif
  { "baseline", always, always, fill_baseline, GB_UNIT_NONE },
};

/* The level of that name, or the best one this CPU runs. */
static gb_status pick_level(gb_context *context, const char *name, const cpu_level **out) {
  size_t count = sizeof levels / sizeof *levels, i = 0;
  if (!name) {
    while (!levels[i].pays() || !levels[i].runs()) i++;
    *out = &levels[i];
    return GB_OK;
  }
  while (i < count && strcmp(levels[i].name, name)) i++;
  if (i == count)
    return gb_fail(context, GB_EINVAL, "cpu_level '%s' is not part of this build; the best one it has is '%s'", name,
                   levels[0].name);
  if (!levels[i].runs())
    return gb_fail(context, GB_EUNSUPPORTED, "this CPU does not run level '%s'; leave cpu_level out to get the best "
                                             "it runs",
                                        name);
  *out = &levels[i];
  return GB_OK;
}

/* ====} */

/* {==== parallel work that can be stopped ==== */

typedef struct stoppable { const gb_op_call *call; gb_chunk_fn fn; void *arg; } stoppable;

bool gb_stop_long(const gb_op_call *call) {
  if (gb_was_stopped(call)) return true; /* there may be many chunks left to skip */
  if (!gb_is_stopping(call->context)) return false;
  atomic_store_explicit(&((gb_op_call *)call)->stopped, true, memory_order_relaxed); /* no call is a constant */
  return true;
}

bool gb_work(int64_t amount) {
  gb_running *here = &gb_running_here;
  if (!here->call) return false;
  if (gb_was_stopped(here->call)) return true;
  if ((here->work += amount) < GB_PIECE) return false;
  here->work = 0;
  return gb_stop_long(here->call);
}

int64_t gb_piece_of_long(int64_t at, int64_t n) {
  int64_t left = n - at, count = left < GB_PIECE / 8 ? left : GB_PIECE / 8;
  return count > 0 && gb_work(count) ? 0 : count;
}

/* One chunk, unless a stop is asked for. */
static void run_unless_stopped(void *arg, int64_t chunk) {
  const stoppable *job = arg;
  if (gb_stop_long(job->call)) return;
  gb_running outer = gb_running_here;
  gb_running_here = (gb_running){ (gb_op_call *)job->call, 0 }; /* no call is a constant */
  job->fn(job->arg, chunk);
  gb_running_here = outer;
}

void gb_parallel(const gb_op_call *call, int64_t chunks, gb_chunk_fn fn, void *arg) {
  if (chunks > 1) gb_threads_run(call->context->threads, chunks, run_unless_stopped, &(stoppable){ call, fn, arg });
  else if (chunks == 1 && !gb_was_stopped(call)) gb_threads_run(call->context->threads, 1, fn, arg);
}

/* ====} */

/* {==== memory ==== */

#if GB_ADDRESS_SANITIZER

/* The sanitizer sees what its own allocator gave, and nothing else. */
static void *host_alloc(void *state, size_t bytes, size_t alignment) {
  void *block;
  (void)state;
  return posix_memalign(&block, alignment, bytes) ? NULL : memset(block, 0, bytes);
}

static void host_free(void *state, void *block, size_t bytes) {
  (void)state, (void)bytes;
  free(block);
}

#else

/* The size of a large page on x86-64, and on aarch64 with pages of 4 KiB. */
#define LARGE_PAGE ((size_t)2 << 20)

/* Whole pages from the system, which gives them as zeros: what malloc gives may still hold what another host of the
 * process wrote, and a recipe can look at it with gb.empty. Large memory asks for large pages: kernels walk arrays of
 * megabytes, and the processor's table of pages is short. What is too much for their alignment goes back at once. */
static void *host_alloc(void *state, size_t bytes, size_t alignment) {
  (void)state, (void)alignment; /* a page is aligned for anything */
  size_t extra = bytes >= LARGE_PAGE ? LARGE_PAGE : 0, page = (size_t)sysconf(_SC_PAGESIZE);
  if (bytes > SIZE_MAX / 2) return NULL;
  bytes = (bytes + page - 1) / page * page;
  char *all = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return NULL;
  size_t before = extra ? -(uintptr_t)all % LARGE_PAGE : 0;
  if (before) munmap(all, before);
  if (extra > before) munmap(all + before + bytes, extra - before);
#ifdef MADV_HUGEPAGE
  /* a wish: nothing depends on the answer */
  if (extra) (void)madvise(all + before, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
  return all + before;
}

static void host_free(void *state, void *block, size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  (void)state;
  munmap(block, (bytes + page - 1) / page * page);
}

#endif

static gb_status host_copy_in(void *state, void *device, const void *host, size_t bytes) {
  (void)state;
  if (bytes) memcpy(device, host, bytes);
  return GB_OK;
}

static gb_status host_clear(void *state, void *device, size_t bytes) {
  (void)state;
  memset(device, 0, bytes);
  return GB_OK;
}

static gb_status host_copy_out(void *state, void *host, const void *device,
                               size_t bytes) { return host_copy_in(state, host, device, bytes); }

/* Kernels have finished when they return. */
static gb_status host_synchronize(void *state) {
  (void)state;
  return GB_OK;
}

/* Let go of what kernels kept; the state is the context. */
static void host_close(void *state) {
  gb_cpu_room *room = state;
  gb_onednn_close(room->onednn);
  free(room);
}

gb_block *gb_cpu_scratch(const gb_op_call *call,
                         size_t bytes) { return gb_context_alloc(call->context, (gb_device){ GB_CPU, 0 }, bytes,
                                                                 GB_MEM_SCRATCH); }

void gb_cpu_scratch_free(const gb_op_call *call, gb_block *block) { gb_pool_free(call->context->pool[GB_CPU], block); }

/* ====} */

void gb_bad_index_report(gb_bad_index *bad, int64_t value, int64_t limit) {
  if (atomic_exchange(&bad->set, true)) return;
  bad->value = value;
  bad->limit = limit;
}

gb_status gb_bad_index_status(gb_op_call *call, const gb_bad_index *bad, const char *what) {
  if (!atomic_load(&bad->set)) return GB_OK;
  return gb_call_fail(call, GB_EINDEX, "%s %lld is out of range 0 .. %lld", what, (long long)bad->value,
                      (long long)bad->limit - 1);
}

gb_status gb_cpu_open(gb_context *context, const char *level, gb_backend *out) {
  const cpu_level *picked = NULL;
  GB_TRY(pick_level(context, level, &picked));
  gb_cpu_room *room = calloc(1, sizeof *room);
  if (!room) return GB_EMEMORY;
  *room = (gb_cpu_room){ .level = picked->name, .unit = picked->unit };
  *out = (gb_backend){ .name = "cpu", .state = room, .context = context, .close = host_close, .alloc = host_alloc,
                       .free = host_free, .copy = host_copy_in, .write = host_copy_in,
                       .read = host_copy_out, .clear = host_clear, .synchronize = host_synchronize };
  picked->fill(out);
  return GB_OK;
}
