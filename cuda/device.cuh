/* cuda/device.cuh - what every kernel file includes: the built-ins of CUDA, launches, conversions of dtypes, and
 * reports of bad data.
 *
 * The same text is compiled by nvcc and, with GB_CUDA_EMULATE, as plain C++ for the CPU (tests/cuda_on_cpu/). So
 * kernels are written in a small subset: GB_SHARED for shared memory, GB_LAUNCH for launches, 16-bit floats stored as
 * uint16_t, no float atomics, no inline PTX outside this file, mma.cuh and base/near.h. Whatever gives a number has one
 * fixed order, so that the same seed gives the same bits. */
#ifndef GB_CUDA_DEVICE_CUH
#define GB_CUDA_DEVICE_CUH

#include <math.h>
#include <stdint.h>

#ifdef GB_CUDA_EMULATE
#include "emulate.h"
#define GB_DEVICE inline
#define GB_UNROLL
#define GB_ROLLED
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GB_DEVICE __host__ __device__ __forceinline__

/* Before a loop with a constant count over an array that is to stay in registers. */
#define GB_UNROLL _Pragma("unroll")
/* Before a loop whose body is long and need not be repeated. */
#define GB_ROLLED _Pragma("unroll 1")
/* An array in shared memory: GB_SHARED(float, tile, [32][33]). */
#define GB_SHARED(type, name, size) __shared__ type name size
/* The shared memory whose bytes the launch gives, as an array of bytes aligned to 16. */
#define GB_SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
/* Launch a kernel on a stream: GB_LAUNCH(stream, kernel, grid, block, shared_bytes, arguments...). An empty grid
 * launches nothing. */
#define GB_LAUNCH(stream, kernel, grid, block, shared, ...)                                        \
  do {                                                                                             \
    dim3 gb_grid(grid), gb_block(block);                                                           \
    if (gb_grid.x == 0 || gb_grid.y == 0 || gb_grid.z == 0) break;                                 \
    kernel<<<gb_grid, gb_block, (shared), (stream)>>>(__VA_ARGS__);                                \
    gb_rt_launched(#kernel);                                                                       \
  } while (0)
/* The same with more than 48 KB of shared memory, up to GB_LARGE_SHARED; and up to what the device's properties say. */
#define GB_LAUNCH_LARGE(stream, kernel, grid, block, shared, ...)                                  \
  do {                                                                                             \
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(shared));      \
    GB_LAUNCH(stream, GB_KERNEL(kernel), grid, block, shared, __VA_ARGS__);                        \
  } while (0)
#define GB_LAUNCH_MOST GB_LAUNCH_LARGE
#endif

#include "cuda/call.h"
#include "base/formats.h"
#include "base/math.h"
#include "base/random.h"

/* A name with commas in it, such as a template with its arguments, as one argument of GB_LAUNCH. */
#define GB_KERNEL(...) __VA_ARGS__

/* bytes that a block may have, on every device since compute capability 8.0, where its launch asks for them */
#define GB_LARGE_SHARED (99u << 10)
#define GB_THREADS 256 /* of a block, unless a kernel has a reason */
#define GB_WARP 32
#define GB_ALL_LANES 0xffffffffu

/* The number of blocks for n elements, `each` to a block; at most 2^20, so kernels step by the size of the grid. */
static inline unsigned gb_blocks(int64_t n, int64_t each) {
  int64_t blocks = (n + each - 1) / each;
  return (unsigned)(blocks < (1 << 20) ? blocks : 1 << 20);
}

/* This thread's index in the grid, and the number of threads in the grid. */
template <typename Index> static __device__ __forceinline__ Index gb_thread(void) { return (Index)blockIdx.x *
    (Index)blockDim.x + (Index)threadIdx.x; }
template <typename Index> static __device__ __forceinline__ Index gb_grid_size(void) { return (Index)gridDim.x *
    (Index)blockDim.x; }

/* {==== 16-bit floats ==== */

static GB_DEVICE float gb_half_value(uint16_t h) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(h));
#else
  return gb_float16_to_float(h);
#endif
}

static GB_DEVICE uint16_t gb_half_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(x));
#else
  return gb_float_to_float16(x);
#endif
}

static GB_DEVICE uint16_t gb_bfloat_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  return gb_float_to_bfloat16(x);
#endif
}

/* ====} */

/* {==== any dtype to what a kernel computes in (float, double or int64_t), and back ====
 *
 * By the readings of base/formats.h, as on the CPU. */

template <typename T> struct gb_as;
template <> struct gb_as<float> {
  static GB_DEVICE float from(double x) { return (float)x; }
  static GB_DEVICE float from(float x) { return x; }
  static GB_DEVICE float from(int64_t x) { return (float)x; }
  static GB_DEVICE double f64(float x) { return x; }
  static GB_DEVICE float f32(float x) { return x; }
  static GB_DEVICE int64_t i64(float x) { return gb_f32_to_integer(x); }
  static GB_DEVICE uint16_t half(float x) { return gb_half_bits(x); }
  static GB_DEVICE uint16_t bfloat(float x) { return gb_bfloat_bits(x); }
};
template <> struct gb_as<double> {
  static GB_DEVICE double from(double x) { return x; }
  static GB_DEVICE double from(float x) { return (double)x; }
  static GB_DEVICE double from(int64_t x) { return (double)x; }
  static GB_DEVICE double f64(double x) { return x; }
  static GB_DEVICE float f32(double x) { return (float)x; }
  static GB_DEVICE int64_t i64(double x) { return gb_f64_to_integer(x); }
  static GB_DEVICE uint16_t half(double x) { return gb_double_to_float16(x); }
  static GB_DEVICE uint16_t bfloat(double x) { return gb_double_to_bfloat16(x); }
};
template <> struct gb_as<int64_t> {
  static GB_DEVICE int64_t from(double x) { return gb_f64_to_integer(x); }
  static GB_DEVICE int64_t from(float x) { return gb_f32_to_integer(x); }
  static GB_DEVICE int64_t from(int64_t x) { return x; }
  static GB_DEVICE double f64(int64_t x) { return (double)x; }
  static GB_DEVICE float f32(int64_t x) { return (float)x; }
  static GB_DEVICE int64_t i64(int64_t x) { return x; }
  static GB_DEVICE uint16_t half(int64_t x) { return gb_i64_to_half(x); }
  static GB_DEVICE uint16_t bfloat(int64_t x) { return gb_i64_to_upper(x); }
};

#undef GB_VALUE_HALF
#define GB_VALUE_HALF(x) gb_half_value(x)

/* A number as what gb_as takes, by the category of its dtype. */
#define GB_TAKEN_FLOAT(v) (v)
#define GB_TAKEN_INT(v) (int64_t)(v)
#define GB_TAKEN_BOOL(v) (int64_t)(v)

/* Element i of memory of a dtype. */
template <typename T> static GB_DEVICE T gb_load(const void *from, int dtype, int64_t i) {
  switch (dtype) {
#define GB_LOAD(NAME, name, type, reading, category, ...) \
  case GB_##NAME: return gb_as<T>::from(GB_TAKEN_##category(GB_VALUE_##reading(((const type *)from)[i])));
    GB_DTYPE_LIST(GB_LOAD)
#undef GB_LOAD
    default: return 0;
  }
}

/* What base/formats.h stores, of any type that a kernel computes in. */
template <typename T> static GB_DEVICE int64_t gb_any_to_integer(T x) { return gb_as<T>::i64(x); }
template <typename T> static GB_DEVICE uint16_t gb_any_to_half(T x) { return gb_as<T>::half(x); }
template <typename T> static GB_DEVICE uint16_t gb_any_to_upper(T x) { return gb_as<T>::bfloat(x); }

template <typename T> static GB_DEVICE void gb_store(void *to, int dtype, int64_t i, T x) {
  switch (dtype) {
#define GB_STORE(NAME, name, type, reading, ...) \
  case GB_##NAME: ((type *)to)[i] = GB_STORED_##reading(type, any, x); return;
    GB_DTYPE_LIST(GB_STORE)
#undef GB_STORE
    default: return;
  }
}

/* x rounded to the dtype. */
template <typename T> static GB_DEVICE T gb_through(T x, int dtype) {
  double room;
  gb_store<T>(&room, dtype, 0, x);
  return gb_load<T>(&room, dtype, 0);
}

/* ====} */

/* {==== random words ==== */

static GB_DEVICE uint64_t gb_random_offset(const gb_cuda_place &place) { return place.offset +
                                                                         (place.advance ? place.advance[0] : 0); }
static GB_DEVICE uint64_t gb_random_seed(const gb_cuda_place &place) { return place.seed +
                                                                       (place.advance ? place.advance[1] : 0); }

/* Word i of the stream at a place: the same one that the CPU gives the element. */
static GB_DEVICE uint32_t gb_random_word(const gb_cuda_place &place, uint64_t i) {
  uint32_t words[4];
  gb_philox(gb_random_seed(place), gb_random_offset(place), i / 4, words);
  return words[i % 4];
}

/* ====} */

/* {==== reports of bad data ==== */

/* The first report stays. `value` and `limit` are read by the host after the kernel, so they need no fence. */
static __device__ __forceinline__ void gb_report(gb_cuda_fault *fault, int kind, int op, int64_t value, int64_t limit) {
  if (atomicCAS(&fault->kind, (int32_t)GB_FAULT_NONE, (int32_t)kind) != GB_FAULT_NONE) return;
  fault->op = op;
  fault->value = value;
  fault->limit = limit;
}

/* Check an index value from data: returns it if it is in 0 .. limit - 1; else reports it and returns 0. */
static __device__ __forceinline__ int64_t gb_checked_index(gb_cuda_fault *fault, int op, int64_t value, int64_t limit) {
  if (value >= 0 && value < limit) return value;
  gb_report(fault, GB_FAULT_INDEX, op, value, limit);
  return 0;
}

/* ====} */

#endif
