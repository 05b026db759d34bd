/* cuda/create.cu - kernels that fill tensors, and copies between dtypes and layouts.
 *
 * A copy moves its bytes once in and once out. Equal dtypes are copied as they are, by size; a copy in one piece is
 * left to the runtime. */
#include "cuda/elements.cuh"
#include "cuda/families.h"

/* {==== fill ==== */

template <typename T> struct constant_of {
  static constexpr int inputs = 0;
  static constexpr bool vector = sizeof(T) == 4;
  static __device__ __forceinline__ T of(T, T, T, const gb_numbers<T> &n) { return n.a; }
};

/* A bool is filled through float64, since 0.5 is true. */
static gb_status fill(gb_cuda_call *call) {
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, fill)->y;
  gb_elements e = gb_elements_of(call, y, 0);
  e.number[0] = GB_ATTRS(call, fill)->value;
  if (y->dtype == GB_FLOAT64 || y->dtype == GB_BOOL) gb_run_elements<constant_of<double>, double>(e);
  else if (gb_is_float(y->dtype)) gb_run_elements<constant_of<float>, float>(e);
  else gb_run_elements<constant_of<int64_t>, int64_t>(e);
  return GB_OK;
}

/* start + i * step for element i of the row-major order; floats in float64, rounded once, integers wrapping. */
static GB_DEVICE double term_of(double start, double step, int64_t i) { return start + (double)i * step; }
static GB_DEVICE int64_t term_of(int64_t start, int64_t step,
                                 int64_t i) { return (int64_t)((uint64_t)start + (uint64_t)i * (uint64_t)step); }

template <typename T> static __global__ void sequence_kernel(gb_walk w, char *out, int dtype, T start, T step) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t offset[1];
    gb_seek<1>(w, i, offset);
    gb_store<T>(out, dtype, offset[0], term_of(start, step, i));
  }
}

static gb_status sequence(gb_cuda_call *call) {
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, sequence)->y;
  const gb_attr *first = &GB_ATTRS(call, sequence)->start, *distance = &GB_ATTRS(call, sequence)->step;
  double start = first->number, step = distance->number;
  bool whole = !gb_is_float(out->dtype) && start == floor(start) && step == floor(step);
  gb_walk w = gb_plan(&out, 1, true);
  unsigned grid = gb_blocks(w.numel, GB_THREADS);
  if (whole) {
    int64_t from = gb_number_integer(first), by = gb_number_integer(distance);
    GB_LAUNCH(call->stream, sequence_kernel<int64_t>, grid, GB_THREADS, 0, w, out->data, out->dtype, from, by);
  } else {
    GB_LAUNCH(call->stream, sequence_kernel<double>, grid, GB_THREADS, 0, w, out->data, out->dtype, start, step);
  }
  return GB_OK;
}

/* ====} */

/* {==== copies ==== */

template <typename T> struct same_of {
  static constexpr int inputs = 1;
  static constexpr bool vector = sizeof(T) == 4;
  static __device__ __forceinline__ T of(T x, T, T, const gb_numbers<T> &) { return x; }
};

/* Elements moved as they are: S is any type of their size. */
template <typename S> static __global__ void move_kernel(gb_walk w, S *to, const S *from) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t offset[2];
    gb_seek<2>(w, i, offset);
    to[offset[0]] = from[offset[1]];
  }
}

/* A source whose memory runs across the rows of the result is read and written by tiles of shared memory, so that both
 * sides are coalesced. Dims `across` (where the source runs) and the last (where the result runs); the others are the
 * batch. */
template <typename S> static __global__ void turn_kernel(gb_walk w, int across, S *to, const S *from) {
  GB_SHARED(S, tile, [GB_WARP][GB_WARP + 1]);
  int last = w.ndim - 1;
  int64_t batch = blockIdx.z, to_offset = 0, from_offset = 0;
  for (int d = last - 1; d >= 0; d--) {
    if (d == across) continue;
    to_offset += batch % w.shape[d] * w.stride[0][d];
    from_offset += batch % w.shape[d] * w.stride[1][d];
    batch /= w.shape[d];
  }
  int64_t row = (int64_t)blockIdx.y * GB_WARP, column = (int64_t)blockIdx.x * GB_WARP;
  for (int k = threadIdx.y; k < GB_WARP; k += blockDim.y)
    if (row + threadIdx.x < w.shape[across] && column + k < w.shape[last])
      tile[k][threadIdx.x] = from[from_offset + (row + threadIdx.x) * w.stride[1][across] + (column + k) *
                                  w.stride[1][last]];
  __syncthreads();
  for (int k = threadIdx.y; k < GB_WARP; k += blockDim.y)
    if (row + k < w.shape[across] && column + threadIdx.x < w.shape[last])
      to[to_offset + (row + k) * w.stride[0][across] + (column + threadIdx.x) * w.stride[0][last]] =
          tile[threadIdx.x][k];
}

/* The dim along which the source's memory runs while the result's runs along the last, both worth tiles; -1: none. */
static int dim_across(const gb_walk &w) {
  int last = w.ndim - 1;
  if (last == 0 || w.stride[0][last] != 1 || w.stride[1][last] <= 1 || w.shape[last] < 8) return -1;
  for (int d = 0; d < last; d++)
    if (w.stride[1][d] == 1 && w.shape[d] >= 8) return d;
  return -1;
}

/* 16 bytes that are moved together. */
struct alignas(16) quad { uint64_t half[2]; };

/* How many bytes can be moved together where both sides run along the last dim: the walk is made one over units of so
 * many. */
static size_t widen(gb_walk *w, const char *to, const char *from, size_t bytes) {
  int last = w->ndim - 1;
  if (w->stride[0][last] != 1 || w->stride[1][last] != 1) return bytes;
  /* its lowest bit says what divides all */
  int64_t joint = (int64_t)((uintptr_t)to | (uintptr_t)from) | w->shape[last] * (int64_t)bytes;
  for (int k = 0; k < 2; k++)
    for (int d = 0; d < last; d++) joint |= w->stride[k][d] * (int64_t)bytes;
  size_t unit = 16;
  while (unit > bytes && (joint & (int64_t)(unit - 1))) unit /= 2;
  int64_t per = (int64_t)(unit / bytes);
  w->numel /= per;
  w->shape[last] /= per;
  for (int k = 0; k < 2; k++)
    for (int d = 0; d < last; d++) w->stride[k][d] /= per;
  return unit;
}

template <typename S> static void copy_as_stored(gb_cuda_call *call, const gb_walk &w, char *to, const char *from) {
  int across = dim_across(w);
  int64_t batch = across < 0 || w.numel == 0 ? 0 : w.numel / (w.shape[across] * w.shape[w.ndim - 1]);
  int64_t rows = across < 0 ? 0 : (w.shape[across] + GB_WARP - 1) / GB_WARP;
  if (batch == 0 || batch > 65535 || rows > 65535) { /* what a grid's y and z hold */
    GB_LAUNCH(call->stream, move_kernel<S>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, (S *)to, (const S *)from);
    return;
  }
  dim3 grid((unsigned)((w.shape[w.ndim - 1] + GB_WARP - 1) / GB_WARP), (unsigned)rows, (unsigned)batch);
  GB_LAUNCH(call->stream, turn_kernel<S>, grid, dim3(GB_WARP, 8), 0, w, across, (S *)to, (const S *)from);
}

/* Elements of one dtype, as they are stored. */
static gb_status copy_same(gb_cuda_call *call, const gb_cuda_tensor *out, const gb_cuda_tensor *in) {
  const gb_cuda_tensor *operands[] = { out, in };
  gb_walk w = gb_plan(operands, 2, false);
  size_t bytes = gb_bytes_of(out->dtype);
  if (gb_is_flat(w, 0) && gb_is_flat(w, 1)) {
    int code = gb_rt_copy(call->stream, out->data, in->data, (size_t)w.numel * bytes, GB_COPY_ON_DEVICE);
    return code ? gb_cuda_fail(call, GB_EDEVICE, "the copy failed: %s", gb_rt_text(code)) : GB_OK;
  }
  switch (widen(&w, out->data, in->data, bytes)) {
    case 1: copy_as_stored<uint8_t>(call, w, out->data, in->data); break;
    case 2: copy_as_stored<uint16_t>(call, w, out->data, in->data); break;
    case 4: copy_as_stored<uint32_t>(call, w, out->data, in->data); break;
    case 8: copy_as_stored<uint64_t>(call, w, out->data, in->data); break;
    default:
      GB_LAUNCH(call->stream, move_kernel<quad>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, (quad *)out->data,
                (const quad *)in->data);
      break;
  }
  return GB_OK;
}

/* Converted through the type that the CPU converts them through; uint8 and bool through float32, which holds them, by
 * strips. */
extern "C" gb_status gb_cuda_copy(gb_cuda_call *call, const gb_cuda_tensor *out, const gb_cuda_tensor *in) {
  bool same_place = out->data == in->data && out->dtype == in->dtype && out->ndim == in->ndim;
  for (int d = 0; same_place && d < out->ndim; d++)
    same_place = out->shape[d] == in->shape[d] && out->stride[d] == in->stride[d];
  if (same_place) return GB_OK;
  if (out->dtype == in->dtype && !in->host) return copy_same(call, out, in);
  gb_elements e = gb_elements_of(call, out, 0);
  e.operand[1] = in;
  if (in->dtype == GB_FLOAT64) gb_run_elements<same_of<double>, double>(e);
  else if (gb_is_float(in->dtype) || gb_is_byte(in->dtype)) gb_run_elements<same_of<float>, float>(e);
  else gb_run_elements<same_of<int64_t>, int64_t>(e);
  return GB_OK;
}

static gb_status cast(gb_cuda_call *call) {
  return gb_cuda_copy(call, GB_CUDA_OUT(call, cast)->y, GB_CUDA_IN(call, cast)->x);
}
static gb_status clone_(gb_cuda_call *call) {
  return gb_cuda_copy(call, GB_CUDA_OUT(call, clone)->y, GB_CUDA_IN(call, clone)->x);
}
static gb_status contiguous(gb_cuda_call *call) {
  return gb_cuda_copy(call, GB_CUDA_OUT(call, contiguous)->y, GB_CUDA_IN(call, contiguous)->x);
}
static gb_status copy(gb_cuda_call *call) {
  return gb_cuda_copy(call, GB_CUDA_OUT(call, copy)->y, GB_CUDA_IN(call, copy)->source);
}

static __global__ void put_kernel(uint64_t *to, uint64_t bits) { *to = bits; }

extern "C" void gb_cuda_put(gb_stream stream, void *to,
                            uint64_t bits) { GB_LAUNCH(stream, put_kernel, 1, 1, 0, (uint64_t *)to, bits); }

/* ====} */

const gb_cuda_row gb_cuda_create[] = {
  { GB_OP_fill, fill, true }, { GB_OP_sequence, sequence, true }, { GB_OP_cast, cast, true },
  { GB_OP_clone, clone_, true }, { GB_OP_contiguous, contiguous, true }, { GB_OP_copy, copy, true },
  { GB_OP_COUNT, NULL, false },
};
