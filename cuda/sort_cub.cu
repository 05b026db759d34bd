/* cuda/sort_cub.cu - sort.h by CUB's radix sort of a whole device, which is stable and never waits for it, so that a
 * graph can hold it (its sort by segments asks the device how many of them are short). Rows are sorted as all pairs by
 * key, and then by row: 32 bytes a pair for every 8 bits. */
#include <cub/device/device_radix_sort.cuh>

#include "cuda/device.cuh"
#include "cuda/sort.h"

/* One sort by some bits of the keys. */
static gb_status sort_by(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values,
                         int64_t *values_out, int64_t n, int first_bit,
                         int end_bit) {
  size_t bytes = 0;
  int mark = call->scratches;
  cudaError_t code = cub::DeviceRadixSort::SortPairs(NULL, bytes, keys, keys_out, values, values_out, n, first_bit,
                                                     end_bit, call->stream);
  void *room = code == cudaSuccess ? gb_cuda_scratch(call, bytes ? bytes : 1) : NULL;
  if (room)
    code = cub::DeviceRadixSort::SortPairs(room, bytes, keys, keys_out, values, values_out, n, first_bit, end_bit,
                                           call->stream);
  if (code != cudaSuccess) return gb_cuda_fail(call, GB_EDEVICE, "the sort failed: %s", cudaGetErrorString(code));
  if (!room) return GB_EMEMORY;
  gb_cuda_scratch_back(call, mark);
  return GB_OK;
}

static __global__ void number_pairs(int64_t *places, int64_t all) {
  for (int64_t i = gb_thread<int64_t>(); i < all; i += gb_grid_size<int64_t>()) places[i] = i;
}

static __global__ void rows_of_places(const int64_t *places, uint64_t *rows, int64_t n, int64_t all) {
  for (int64_t i = gb_thread<int64_t>(); i < all; i += gb_grid_size<int64_t>()) rows[i] = (uint64_t)(places[i] / n);
}

static __global__ void pick_pairs(const int64_t *places, const uint64_t *keys, uint64_t *keys_out,
                                  const int64_t *values, int64_t *values_out, int64_t all) {
  for (int64_t i = gb_thread<int64_t>(); i < all; i += gb_grid_size<int64_t>()) {
    keys_out[i] = keys[places[i]];
    values_out[i] = values[places[i]];
  }
}

static int bits_of(uint64_t most) {
  int bits = 1;
  while (most >>= 1) bits++;
  return bits;
}

/* The outputs are room for what comes between. */
static gb_status sort_rows(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values,
                           int64_t *values_out, int64_t rows, int64_t n,
                           int first_bit, int end_bit) {
  int64_t all = rows * n, *places = (int64_t *)gb_cuda_scratch(call, (size_t)all * sizeof *places);
  uint64_t *row = (uint64_t *)gb_cuda_scratch(call, (size_t)all * sizeof *row);
  unsigned grid = gb_blocks(all, GB_THREADS);
  if (!places || !row) return GB_EMEMORY;
  GB_LAUNCH(call->stream, number_pairs, grid, GB_THREADS, 0, places, all);
  gb_status status = sort_by(call, keys, keys_out, places, values_out, all, first_bit, end_bit);
  if (status != GB_OK) return status;
  GB_LAUNCH(call->stream, rows_of_places, grid, GB_THREADS, 0, values_out, row, n, all);
  status = sort_by(call, row, keys_out, values_out, places, all, 0, bits_of((uint64_t)rows - 1));
  if (status != GB_OK) return status;
  GB_LAUNCH(call->stream, pick_pairs, grid, GB_THREADS, 0, places, keys, keys_out, values, values_out, all);
  return GB_OK;
}

extern "C" gb_status gb_sort_pairs(gb_cuda_call *call, const uint64_t *keys, uint64_t *keys_out, const int64_t *values,
                                   int64_t *values_out, int64_t rows,
                                   int64_t n, int first_bit, int end_bit) {
  if (rows > 1) return sort_rows(call, keys, keys_out, values, values_out, rows, n, first_bit, end_bit);
  return sort_by(call, keys, keys_out, values, values_out, n, first_bit, end_bit);
}
