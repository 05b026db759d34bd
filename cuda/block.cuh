/* cuda/block.cuh - reductions over the threads of a warp and of a block, in one fixed order, with the result in every
 * thread.
 *
 * Threads of a block are counted along x (and y, z after it); a block has whole warps. Every thread of the block takes
 * part. */
#ifndef GB_CUDA_BLOCK_CUH
#define GB_CUDA_BLOCK_CUH

#include "cuda/device.cuh"

struct gb_sum_of { template <typename T> static GB_DEVICE T of(T a, T b) { return a + b; } };
/* NaN wins */
struct gb_most_of { template <typename T> static GB_DEVICE T of(T a, T b) { return a > b || a != a ? a : b; } };
struct gb_least_of { template <typename T> static GB_DEVICE T of(T a, T b) { return a < b || a != a ? a : b; } };

static __device__ __forceinline__ unsigned gb_thread_of_block(void) { return threadIdx.x + blockDim.x *
                                                                      (threadIdx.y + blockDim.y * threadIdx.z); }

/* A fold of two, as an object. */
template <class Op> struct gb_folding { template <typename T> GB_DEVICE T operator()(T a,
    T b) const { return Op::of(a, b); } };

/* Lanes fold in halves: lane l with l + 16, then l + 8, ...; lane 0's result goes to all. T has at most 8 bytes. */
template <typename T, class Fold> static __device__ __forceinline__ T gb_warp_fold(T value, Fold fold) {
  for (int by = GB_WARP / 2; by > 0; by /= 2) value = fold(value, __shfl_down_sync(GB_ALL_LANES, value, (unsigned)by));
  return __shfl_sync(GB_ALL_LANES, value, 0);
}

/* Warps first, then their results. `nothing` leaves every value as it is (0 for a sum). May be called again and
 * again. */
template <typename T, class Fold> static __device__ __forceinline__ T gb_block_fold(T value, T nothing, Fold fold) {
  GB_SHARED(T, part, [GB_WARP]);
  unsigned thread = gb_thread_of_block(), warps = blockDim.x * blockDim.y * blockDim.z / GB_WARP;
  value = gb_warp_fold(value, fold);
  __syncthreads(); /* what an earlier call left has been read */
  if (thread % GB_WARP == 0) part[thread / GB_WARP] = value;
  __syncthreads();
  T mine = thread % GB_WARP < warps ? part[thread % GB_WARP] : nothing;
  return gb_warp_fold(mine, fold);
}

template <class Op,
    typename T> static __device__ __forceinline__ T gb_warp_reduce(T value) { return gb_warp_fold(value,
    gb_folding<Op>()); }
template <class Op, typename T> static __device__ __forceinline__ T gb_block_reduce(T value, T nothing) {
  return gb_block_fold(value, nothing, gb_folding<Op>());
}

/* The sums of what the threads before this one bring, and of what all bring (*total), joined by `add`: lanes by
 * shuffles, then warp by warp. May be called again and again; T has at most 8 bytes. */
template <typename T, class Fold> static __device__ __forceinline__ T gb_block_scan(T mine, T nothing, Fold add,
    T *total) {
  GB_SHARED(T, part, [GB_WARP]);
  unsigned thread = gb_thread_of_block(), lane = thread % GB_WARP, warp = thread / GB_WARP,
      warps = blockDim.x * blockDim.y * blockDim.z / GB_WARP;
  T sum = mine;
  for (unsigned d = 1; d < GB_WARP; d *= 2) {
    T other = __shfl_up_sync(GB_ALL_LANES, sum, d);
    if (lane >= d) sum = add(other, sum);
  }
  T before = __shfl_up_sync(GB_ALL_LANES, sum, 1u), lower = nothing, all = nothing;
  __syncthreads(); /* what an earlier call left has been read */
  if (lane == GB_WARP - 1) part[warp] = sum;
  __syncthreads();
  for (unsigned w = 0; w < warps; w++) {
    if (w == warp) lower = all;
    all = add(all, part[w]);
  }
  *total = all;
  return lane ? add(lower, before) : lower;
}

#endif
