/* emulate.h - the built-ins of CUDA C++ that kernel files use, for compiling them as plain C++ and running them on the
 * CPU.
 *
 * Blocks run one after another. A thread is a plain call until it meets a barrier, a shuffle or a vote: then it keeps
 * its stack as a fiber and the next thread goes on. Every such wait is checked: threads of a block that wait for each
 * other at different places are reported with kernel and block. Shared memory holds rubbish when a block starts. */
#ifndef GB_EMULATE_H
#define GB_EMULATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "cuda/runtime.h"
#include "machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* {==== the thread that runs ==== */

struct gb_emulated_place {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
extern __thread gb_emulated_place *gb_emulated __attribute__((tls_model("initial-exec")));

#define threadIdx (gb_emulated->thread)
#define blockIdx (gb_emulated->block)
#define blockDim (gb_emulated->block_dim)
#define gridDim (gb_emulated->grid_dim)
#define warpSize 32

/* ====} */

/* {==== launches and shared memory ==== */

/* most: bytes of shared memory that a block may have. */
void gb_emulated_launch(gb_stream stream, const char *kernel, dim3 grid, dim3 block, size_t shared, size_t most,
                        std::function<void()> thread);
/* The block's array of that key, made at the first call in a block; and the bytes that the launch gave. */
void *gb_emulated_shared(const void *key, size_t bytes);
unsigned char *gb_emulated_shared_bytes(void);

#define GB_EMULATED_LAUNCH(stream, kernel, grid, block, shared, most, ...) \
  gb_emulated_launch(stream, #kernel, grid, block, shared, most, \
                     gb_emulated_call([](auto... gb_arguments) { kernel(gb_arguments...); } __VA_OPT__(,) __VA_ARGS__))
#define GB_LAUNCH(stream, kernel, grid, block, shared, ...) \
  GB_EMULATED_LAUNCH(stream, GB_KERNEL(kernel), grid, block, shared, 48 << 10 __VA_OPT__(,) __VA_ARGS__)
#define GB_LAUNCH_LARGE(stream, kernel, grid, block, shared, ...) \
  GB_EMULATED_LAUNCH(stream, GB_KERNEL(kernel), grid, block, shared, GB_LARGE_SHARED __VA_OPT__(,) __VA_ARGS__)

#define GB_LAUNCH_MOST(stream, kernel, grid, block, shared, ...) \
  GB_EMULATED_LAUNCH(stream, GB_KERNEL(kernel), grid, block, shared, GB_EMULATED_SHARED __VA_OPT__(,) __VA_ARGS__)

/* A kernel with copies of its arguments, as a launch takes them. */
template <class F, class... A> static std::function<void()> gb_emulated_call(F f, A... arguments) {
  return [f, arguments...]() { f(arguments...); };
}

#define GB_SHARED(type, name, size)                          \
  static const char gb_key_##name = 0;                       \
  typedef type gb_array_##name size;                         \
  gb_array_##name &name = *(gb_array_##name *)gb_emulated_shared(&gb_key_##name, sizeof(gb_array_##name))
#define GB_SHARED_BYTES(name) unsigned char *name = gb_emulated_shared_bytes()

/* ====} */

/* {==== threads that wait for each other ==== */

void gb_emulated_barrier(const char *file, int line);
/* Wait for the lanes of mask; the value that lane `from` brought, or what the lanes voted. */
uint64_t gb_emulated_shuffle(unsigned mask, uint64_t value, unsigned from);
unsigned gb_emulated_ballot(unsigned mask, bool vote);
unsigned gb_emulated_lane(void);

#define __syncthreads() gb_emulated_barrier(__FILE__, __LINE__)
static inline void __syncwarp(unsigned mask = 0xffffffffu) { gb_emulated_ballot(mask, true); }
static inline unsigned __ballot_sync(unsigned mask, int vote) { return gb_emulated_ballot(mask, vote != 0); }
static inline int __any_sync(unsigned mask, int vote) { return gb_emulated_ballot(mask, vote != 0) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return gb_emulated_ballot(mask, vote != 0) == mask; }

template <typename T> static inline T gb_emulated_exchange(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8, "a lane exchanges at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = gb_emulated_shuffle(mask, bits, from);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  unsigned lane = gb_emulated_lane();
  return gb_emulated_exchange(mask, value, (lane & ~(unsigned)(width - 1)) + ((unsigned)from & (unsigned)(width - 1)));
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = gb_emulated_lane(), within = lane & (unsigned)(width - 1);
  return gb_emulated_exchange(mask, value, within + by < (unsigned)width ? lane + by : lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = gb_emulated_lane(), within = lane & (unsigned)(width - 1);
  return gb_emulated_exchange(mask, value, within >= by ? lane - by : lane);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  unsigned lane = gb_emulated_lane(), other = lane ^ (unsigned)by;
  return gb_emulated_exchange(mask, value, (lane & ~(unsigned)(width - 1)) == (other & ~(unsigned)(width - 1)) ? other
                              : lane);
}

/* ====} */

/* {==== single instructions ==== */

template <typename T> static inline T __ldg(const T *p) { return *p; }
static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }

/* Integers and flags only: sums of floats in the order of arrival are forbidden. */
#define GB_EMULATED_ATOMICS(type)                                                                                    \
  static inline type atomicAdd(type *p, type v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }               \
  static inline type atomicExch(type *p, type v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }             \
  static inline type atomicOr(type *p, type v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }                 \
  static inline type atomicAnd(type *p, type v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }               \
  static inline type atomicCAS(type *p, type expected, type v) {                                                     \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                         \
    return expected;                                                                                                 \
  }                                                                                                                  \
  static inline type atomicMax(type *p, type v) {                                                                    \
    type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                                 \
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue; \
    return old;                                                                                                      \
  }                                                                                                                  \
  static inline type atomicMin(type *p, type v) {                                                                    \
    type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                                 \
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue; \
    return old;                                                                                                      \
  }
GB_EMULATED_ATOMICS(int)
GB_EMULATED_ATOMICS(unsigned)
GB_EMULATED_ATOMICS(unsigned long long)

/* ====} */

#endif
