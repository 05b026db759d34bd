/* cuda/numerics.cu - how many elements a floating format cannot hold, and a histogram of their exponents.
 *
 * Reads every element once. A block counts in shared memory, in several copies of the histogram, since most lanes of a
 * warp meet in few bins; what it found is added to the result, which was cleared before. All are integers, whose sums
 * and extremes do not depend on who comes first, so the atomics here keep the rule that the same input gives the same
 * bits. */
#include "cuda/block.cuh"
#include "base/numerics.h"
#include "cuda/elements.cuh"
#include "cuda/families.h"

enum {
  COPIES = 8,          /* of the histogram: lanes l, l + 8, ... share one; neighbouring copies lie in neighbouring
                          banks */
  EACH = 4,            /* strips or elements that a thread has at least, where there are enough */
  BLOCKS = 1024,       /* at most: as many as run at once; each has a histogram to clear and to add up */
};

typedef unsigned long long word;

/* What is surveyed, and where the counts go. range holds the bits of float64, which are in the order of what they stand
 * for. */
struct survey {
  gb_walk walk;
  const char *data;
  int dtype, shift;    /* shift: how many elements the first one lies beyond an aligned strip */
  gb_numerics_bounds bounds;
  word *counts, *range;
};

/* {==== one element ==== */

/* Magnitudes as bits, of float32 for all floats that it holds, or of float64. */
static GB_DEVICE int32_t magnitude_of(float x) { return (int32_t)(gb_float_bits(x) & 0x7fffffffu); }
static GB_DEVICE int64_t magnitude_of(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & INT64_MAX;
}

/* The bin of a finite magnitude above 0. A subnormal float32 is its bits, as an integer, times 2^-149. */
static GB_DEVICE int bin_of(int32_t m) {
  int field = m >> 23;
  return field > 0 ? field - 127 - GB_NUMERICS_LEAST : (int)(gb_float_bits((float)m) >> 23) - 127;
}

static GB_DEVICE int bin_of(int64_t m) {
  int bin = (int)(m >> 52) - 1023 - GB_NUMERICS_LEAST;
  return bin < 0 ? 0 : bin < GB_NUMERICS_BINS ? bin : GB_NUMERICS_BINS - 1;
}

/* The bits as float64 of what magnitude m stands for. */
static GB_DEVICE word wide_bits(int32_t m) { return (word)magnitude_of((double)gb_bits_float((uint32_t)m)); }
static GB_DEVICE word wide_bits(int64_t m) { return (word)m; }

/* What one thread found. */
template <typename Bits> struct findings {
  uint32_t count[GB_NUMERICS_FIRST_BIN];
  Bits largest, smallest; /* 0: none */
};

template <typename T, typename Bits> static __device__ __forceinline__ void look_at(const survey &s, T x,
    uint32_t *bins, findings<Bits> *f) {
  Bits m = magnitude_of(x), infinity = (Bits)s.bounds.infinity;
  f->count[GB_NUMERICS_ZERO] += m == 0;
  f->count[GB_NUMERICS_INFINITE] += m == infinity;
  f->count[GB_NUMERICS_NAN] += m > infinity;
  if (m == 0 || m >= infinity) return;
  f->count[GB_NUMERICS_FLUSHED] += m <= (Bits)s.bounds.flushed;
  f->count[GB_NUMERICS_SUBNORMAL] += m > (Bits)s.bounds.flushed && m < (Bits)s.bounds.normal;
  f->count[GB_NUMERICS_OVERFLOWED] += m >= (Bits)s.bounds.overflow;
  f->largest = m > f->largest ? m : f->largest;
  f->smallest = f->smallest == 0 || m < f->smallest ? m : f->smallest;
  atomicAdd(&bins[bin_of(m) * COPIES + (int)(threadIdx.x % COPIES)], 1u);
}

/* ====} */

/* {==== adding up ==== */

/* The smallest of those above 0; 0 where there is none. */
struct least_above_zero {
  template <typename T> static GB_DEVICE T of(T a, T b) { return a == 0 ? b : b == 0 || a < b ? a : b; }
};

static __device__ __forceinline__ void lower_to(word *to, word value) {
  word seen = 0;
  while (seen == 0 || value < seen) {
    word now = atomicCAS(to, seen, value);
    if (now == seen) return;
    seen = now;
  }
}

/* All threads of the block together: its histogram and what they found, added to the result. */
template <typename Bits> static __device__ __forceinline__ void deliver(const survey &s, const uint32_t *bins,
                                                                        const findings<Bits> &f) {
  for (int i = 0; i < GB_NUMERICS_FIRST_BIN; i++) {
    word n = gb_block_reduce<gb_sum_of>((word)f.count[i], (word)0);
    if (threadIdx.x == 0 && n) atomicAdd(&s.counts[i], n);
  }
  Bits largest = gb_block_reduce<gb_most_of>(f.largest, (Bits)0),
      smallest = gb_block_reduce<least_above_zero>(f.smallest, (Bits)0);
  if (threadIdx.x == 0 && largest > 0) {
    atomicMax(&s.range[GB_NUMERICS_AMAX], wide_bits(largest));
    lower_to(&s.range[GB_NUMERICS_AMIN], wide_bits(smallest));
  }
  __syncthreads();
  for (int bin = (int)threadIdx.x; bin < GB_NUMERICS_BINS; bin += (int)blockDim.x) {
    word n = 0;
    for (int c = 0; c < COPIES; c++) n += bins[bin * COPIES + c];
    if (n) atomicAdd(&s.counts[GB_NUMERICS_FIRST_BIN + bin], n);
  }
}

/* ====} */

/* Strips of W elements of rows that lie in one piece, of at most 32 bits each. */
template <int W> static __global__ void __launch_bounds__(GB_THREADS) survey_strips(survey s) {
  GB_SHARED(uint32_t, bins, [GB_NUMERICS_BINS * COPIES]);
  findings<int32_t> f = {};
  for (int i = (int)threadIdx.x; i < GB_NUMERICS_BINS * COPIES; i += (int)blockDim.x) bins[i] = 0;
  __syncthreads();
  int64_t length = s.walk.shape[s.walk.ndim - 1], each = gb_strips_of(length, W), rows = s.walk.numel / length;
  for (int64_t i = gb_thread<int64_t>(); i < rows * each; i += gb_grid_size<int64_t>()) {
    int64_t offset = 0, strip = i;
    if (s.walk.ndim > 1) gb_seek<1>(s.walk, gb_divide(i, each, s.walk.narrow, &strip) * length, &offset);
    int64_t from = strip * W - ((s.shift + offset) & (W - 1));
    int first = from < 0 ? (int)-from : 0, end = length - from < W ? (int)(length - from) : W;
    if (end <= first) continue; /* a row that begins aligned has fewer strips */
    float v[W];
    gb_lanes_unpack<float, W>(gb_lanes_load<W>(s.data, gb_lane_bytes(s.dtype), offset + from, first, end), s.dtype, v);
    GB_UNROLL for (int l = 0; l < W; l++)
      if (l >= first && l < end) look_at(s, v[l], bins, &f);
  }
  deliver(s, bins, f);
}

/* Any dtype and layout. */
template <typename T, typename Bits> static __global__ void __launch_bounds__(GB_THREADS) survey_elements(survey s) {
  GB_SHARED(uint32_t, bins, [GB_NUMERICS_BINS * COPIES]);
  findings<Bits> f = {};
  for (int i = (int)threadIdx.x; i < GB_NUMERICS_BINS * COPIES; i += (int)blockDim.x) bins[i] = 0;
  __syncthreads();
  for (int64_t i = gb_thread<int64_t>(); i < s.walk.numel; i += gb_grid_size<int64_t>()) {
    int64_t offset;
    gb_seek<1>(s.walk, i, &offset);
    look_at(s, gb_load<T>(s.data, s.dtype, offset), bins, &f);
  }
  deliver(s, bins, f);
}

/* Blocks for so many strips or elements. */
static unsigned grid_for(int64_t n) {
  return gb_blocks(n < (int64_t)BLOCKS * GB_THREADS * EACH ? n : (int64_t)BLOCKS * GB_THREADS * EACH,
                   GB_THREADS * EACH);
}

template <int W> static void launch_strips(gb_cuda_call *call, survey *s) {
  int64_t length = s->walk.shape[s->walk.ndim - 1];
  s->shift = (int)((uintptr_t)s->data / gb_bytes_of((gb_dtype)s->dtype) % W);
  GB_LAUNCH(call->stream, survey_strips<W>, grid_for(s->walk.numel / length * gb_strips_of(length, W)), GB_THREADS, 0,
            *s);
}

static gb_status numerics(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, numerics)->x;
  const gb_cuda_tensor *counts = GB_CUDA_OUT(call, numerics)->counts, *range = GB_CUDA_OUT(call, numerics)->range;
  if (gb_rt_set(call->stream, counts->data, 0, GB_NUMERICS_COUNTS * sizeof(word)) ||
      gb_rt_set(call->stream, range->data, 0, GB_NUMERICS_RANGE * sizeof(word)))
    return gb_cuda_fail(call, GB_EDEVICE, "the counts could not be cleared");
  if (x->numel == 0) return GB_OK;
  survey s = {};
  s.walk = gb_plan(&x, 1, false);
  s.data = x->data;
  s.dtype = x->dtype;
  gb_dtype would_hold = (gb_dtype)GB_ATTRS(call, numerics)->dtype.integer;
  s.bounds = gb_numerics_bounds_of(x->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32, would_hold);
  s.counts = (word *)counts->data;
  s.range = (word *)range->data;
  int last = s.walk.ndim - 1, width = gb_lane_bytes(x->dtype) == 4 ? 4 : 8;
  /* as gb_strip_width says */
  bool strips = x->dtype != GB_FLOAT64 && s.walk.stride[0][last] == 1 && s.walk.shape[last] >= 4 * width;
  unsigned grid = grid_for(x->numel);
  if (strips && width == 4) launch_strips<4>(call, &s);
  else if (strips) launch_strips<8>(call, &s);
  else if (x->dtype == GB_FLOAT64)
    GB_LAUNCH(call->stream, GB_KERNEL(survey_elements<double, int64_t>), grid, GB_THREADS, 0, s);
  else GB_LAUNCH(call->stream, GB_KERNEL(survey_elements<float, int32_t>), grid, GB_THREADS, 0, s);
  return GB_OK;
}

const gb_cuda_row gb_cuda_numerics[] = { { GB_OP_numerics, numerics, false }, { GB_OP_COUNT, NULL, false } };
