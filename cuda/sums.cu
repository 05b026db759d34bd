/* cuda/sums.cu - pairs of numbers into one, for sums over processes. Reads two and writes one for each. */
#include "cuda/sums.h"

#include <string.h>

#include "cuda/device.cuh"

template <typename T> static GB_DEVICE T sum_of(T left, T right) { return left + right; }
template <> GB_DEVICE int64_t sum_of(int64_t left, int64_t right) {
  return (int64_t)((uint64_t)left + (uint64_t)right);
}

/* NaN wins; of equal numbers the left one stays. */
template <typename T> static GB_DEVICE T most_of(T left, T right) {
  return left != left ? left : right > left || right != right ? right : left;
}

template <typename T> static GB_DEVICE T either_of(T left, T right) { return left | right; }
template <> GB_DEVICE float either_of(float left, float) { return left; } /* of int64 alone */
template <> GB_DEVICE double either_of(double left, double) { return left; }

template <typename T> __global__ void reduce_pairs(int reduction, T *to, const T *left, const T *right, int64_t count) {
  for (int64_t i = gb_thread<int64_t>(); i < count; i += gb_grid_size<int64_t>())
    to[i] = reduction == GB_REDUCE_SUM ? sum_of(left[i], right[i])
        : reduction == GB_REDUCE_MAX   ? most_of(left[i], right[i])
                                       : either_of(left[i], right[i]);
}

template <typename T> static void reduce_of(gb_stream stream, gb_reduction reduction, void *to, const void *left,
                                            const void *right, int64_t count) {
  GB_LAUNCH(stream, GB_KERNEL(reduce_pairs<T>), gb_blocks(count, GB_THREADS), GB_THREADS, 0, (int)reduction, (T *)to,
            (const T *)left, (const T *)right, count);
}

/* Bytes that go along with a launch. */
struct load { unsigned char bytes[GB_CUDA_LOAD]; };

static __global__ void put_load(unsigned char *to, load from, int count) {
  for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) to[i] = from.bytes[i];
}

void gb_cuda_put_bytes(gb_stream stream, void *to, const void *host, size_t bytes) {
  for (size_t done = 0; done < bytes; done += GB_CUDA_LOAD) {
    load piece = {};
    size_t count = bytes - done < GB_CUDA_LOAD ? bytes - done : GB_CUDA_LOAD;
    memcpy(piece.bytes, (const char *)host + done, count);
    GB_LAUNCH(stream, put_load, 1, GB_THREADS, 0, (unsigned char *)to + done, piece, (int)count);
  }
}

void gb_cuda_join_pairs(gb_stream stream, gb_reduction reduction, gb_dtype dtype, void *to, const void *left,
                    const void *right, int64_t count) {
  if (dtype == GB_FLOAT32) reduce_of<float>(stream, reduction, to, left, right, count);
  else if (dtype == GB_FLOAT64) reduce_of<double>(stream, reduction, to, left, right, count);
  else reduce_of<int64_t>(stream, reduction, to, left, right, count);
}
