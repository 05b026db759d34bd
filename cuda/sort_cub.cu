/* cuda/sort_cub.cu - sort.h by CUB's radix sorts, which are stable. */
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include "cuda/device.cuh"
#include "cuda/sort.h"

/* Where row i begins. */
struct row_begin {
  int64_t n;
  __host__ __device__ int64_t operator()(int64_t i) const { return i * n; }
};

static gb_status check(gb_cuda_call *call, cudaError_t code) {
  return code == cudaSuccess ? GB_OK : gb_cuda_fail(call, GB_EDEVICE, "the sort failed: %s", cudaGetErrorString(code));
}

/* One sort, or (room NULL) the bytes of room that it wants. */
static cudaError_t sort_with(void *room, size_t *bytes, const uint64_t *keys, uint64_t *keys_out, const int64_t *values, int64_t *values_out,
                             int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows == 1) return cub::DeviceRadixSort::SortPairs(room, *bytes, keys, keys_out, values, values_out, n, 0, 64, stream);
  auto begins = thrust::make_transform_iterator(thrust::make_counting_iterator<int64_t>(0), row_begin{ n });
  return cub::DeviceSegmentedSort::StableSortPairs(room, *bytes, keys, keys_out, values, values_out, rows * n, rows, begins, begins + 1, stream);
}

extern "C" gb_status gb_sort_pairs(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values, int64_t *values_out,
                                   int64_t rows, int64_t n) {
  size_t bytes = 0;
  gb_status status = check(call, sort_with(NULL, &bytes, keys, keys_out, values, values_out, rows, n, call->stream));
  if (status != GB_OK) return status;
  void *room = gb_cuda_scratch(call, bytes ? bytes : 1);
  return room ? check(call, sort_with(room, &bytes, keys, keys_out, values, values_out, rows, n, call->stream)) : GB_EMEMORY;
}
