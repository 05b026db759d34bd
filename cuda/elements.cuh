/* cuda/elements.cuh - the walk over the elements that several tensors have in common, for kernels that compute element
 * by element.
 *
 * A plan broadcasts the inputs to the result's shape, orders the dims by the result's strides (or keeps row-major order
 * where the place of an element counts), and merges dims wherever all operands allow it. elements_kernel takes any
 * dtype and layout; strips_kernel is the fast one: operands of floats up to 32 bits and of bytes that run along the
 * last dim of the walk, or are one element there, 16 bytes at a time. The walk divides by 32-bit numbers wherever they
 * hold every offset, by a branch that all threads take alike: instances for both widths would double what nvcc
 * compiles, and a 64-bit division costs more than the branch. */
#ifndef GB_CUDA_ELEMENTS_CUH
#define GB_CUDA_ELEMENTS_CUH

#include "cuda/lanes.cuh"

#define GB_OPERANDS 4 /* the result and three inputs */

/* {==== planning, on the host ==== */

/* Operand 0 is the result. */
struct gb_walk {
  int ndim;                        /* at least 1 */
  bool narrow;                     /* 31 bits hold every index and every offset */
  int64_t numel;
  int64_t shape[GB_MAX_NDIM], stride[GB_OPERANDS][GB_MAX_NDIM];
};

/* The dims of the result other than 1, in the order of the walk: as they are, or by falling stride. */
static inline int gb_order_dims(const gb_cuda_tensor *out, bool logical, int *order) {
  int n = 0;
  for (int d = 0; d < out->ndim; d++) {
    if (out->shape[d] == 1) continue;
    int at = n++;
    for (; !logical && at > 0 && out->stride[order[at - 1]] < out->stride[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
  return n;
}

/* The stride of x along dim d of the result: 0 where x is broadcast. */
static inline int64_t gb_stride_along(const gb_cuda_tensor *x, const gb_cuda_tensor *out, int d) {
  int own = d - (out->ndim - x->ndim);
  return own < 0 || x->shape[own] == 1 ? 0 : x->stride[own];
}

/* Every index and every offset of the walk fits in 31 bits. */
static inline bool gb_is_narrow(const gb_walk &w, int count) {
  const int64_t most = INT32_MAX;
  for (int k = 0; k < count; k++) {
    int64_t reach = 0;
    for (int d = 0; d < w.ndim; d++)
      reach += (w.shape[d] - 1) * (w.stride[k][d] < 0 ? -w.stride[k][d] : w.stride[k][d]);
    if (reach > most) return false;
  }
  return w.numel <= most;
}

/* Plan the walk over operands[0] (the result) and the others. logical: in row-major order of the result's shape,
 * whatever its layout. */
static inline gb_walk gb_plan(const gb_cuda_tensor *const *operands, int count, bool logical) {
  const gb_cuda_tensor *out = operands[0];
  gb_walk w = {};
  int order[GB_MAX_NDIM], n = gb_order_dims(out, logical, order);
  w.numel = out->numel;
  for (int i = 0; i < n; i++) {
    int64_t size = out->shape[order[i]];
    bool merge = w.ndim > 0;
    for (int k = 0; k < count && merge; k++)
      merge = w.stride[k][w.ndim - 1] == gb_stride_along(operands[k], out, order[i]) * size;
    if (!merge) w.shape[w.ndim++] = 1;
    w.shape[w.ndim - 1] *= size;
    for (int k = 0; k < count; k++) w.stride[k][w.ndim - 1] = gb_stride_along(operands[k], out, order[i]);
  }
  if (w.ndim == 0) w.shape[w.ndim++] = 1;
  w.narrow = gb_is_narrow(w, count);
  return w;
}

/* Operand k is read or written in one piece, in the order of the walk. */
static inline bool gb_is_flat(const gb_walk &w, int k) { return w.ndim == 1 &&
                                                         (w.stride[k][0] == 1 || w.shape[0] == 1); }

/* ====} */

/* {==== walking, on the device ==== */

/* As gb_seek, in numbers of a width. */
template <int count, typename Index> static GB_DEVICE void gb_seek_by(const gb_walk &w, Index i, int64_t *offset) {
  Index at[count] = { 0 };
  for (int d = w.ndim - 1; d >= 0; d--) {
    Index rest = d > 0 ? i / (Index)w.shape[d] : 0, here = i - rest * (Index)w.shape[d];
    for (int k = 0; k < count; k++) at[k] += here * (Index)w.stride[k][d];
    i = rest;
  }
  for (int k = 0; k < count; k++) offset[k] = (int64_t)at[k];
}

/* The offsets of element i of the walk in the first `count` operands. */
template <int count> static GB_DEVICE void gb_seek(const gb_walk &w, int64_t i, int64_t *offset) {
  if (w.narrow) gb_seek_by<count, int32_t>(w, (int32_t)i, offset);
  else gb_seek_by<count, int64_t>(w, i, offset);
}

/* What element functions get besides their operands. The meaning of a and b is up to the op. */
template <typename T> struct gb_numbers {
  T a, b;
  gb_cuda_fault *fault;
  int op, function;                /* function: which one, for functors that are several */
};

/* The operands of a launch: memory, or (data NULL) one number for all elements. through: a dtype that a single element
 * is converted to on the way, or -1. */
template <typename T> struct gb_operands {
  char *data[GB_OPERANDS];
  int dtype[GB_OPERANDS], through[GB_OPERANDS];
  T number[GB_OPERANDS];
};

/* out = F(x, y, z) for every element of the walk; inputs of them. Moves each operand's bytes once. */
template <class F, typename T, int inputs> static __global__ void elements_kernel(gb_walk w, gb_operands<T> o,
    gb_numbers<T> numbers) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t offset[inputs + 1];
    T v[3] = { 0, 0, 0 };
    gb_seek<inputs + 1>(w, i, offset);
    for (int k = 1; k <= inputs; k++) {
      v[k - 1] = o.data[k] ? gb_load<T>(o.data[k], o.dtype[k], offset[k]) : o.number[k];
      if (o.through[k] >= 0) v[k - 1] = gb_through(v[k - 1], o.through[k]);
    }
    gb_store<T>(o.data[0], o.dtype[0], offset[0], F::of(v[0], v[1], v[2], numbers));
  }
}

/* Strips of a row of `length` elements: wherever the row begins, strips but its first and last are aligned. */
static GB_DEVICE int64_t gb_strips_of(int64_t length, int width) { return (length + 2 * width - 2) / width; }

/* As elements_kernel for operands that run along the last dim of the walk or stand still there (gb_strip_width says
 * where). A thread makes W elements of one row at once. shift: how many elements the result's memory lies beyond W
 * aligned ones; it is cut where those begin. */
template <class F, int inputs, int W>
static __global__ void strips_kernel(gb_walk w, gb_operands<float> o, gb_numbers<float> numbers, int shift) {
  int last = w.ndim - 1, bytes = gb_lane_bytes(o.dtype[0]);
  int64_t length = w.shape[last], each = gb_strips_of(length, W), rows = w.ndim == 1 ? 1 : w.numel / length;
  for (int64_t i = gb_thread<int64_t>(); i < rows * each; i += gb_grid_size<int64_t>()) {
    int64_t offset[inputs + 1] = { 0 }, strip = i;
    if (w.ndim > 1) gb_seek<inputs + 1>(w, gb_divide(i, each, w.narrow, &strip) * length, offset);
    int64_t from = strip * W - ((shift + offset[0]) & (W - 1));
    int first = from < 0 ? (int)-from : 0, end = length - from < W ? (int)(length - from) : W;
    if (end <= first) continue; /* a row that begins aligned has fewer strips */
    gb_bits bits[inputs > 0 ? inputs : 1];
    float v[inputs > 0 ? inputs : 1][W], result[W];
    GB_UNROLL for (int k = 1; k <= inputs; k++)
      if (o.data[k] && w.stride[k][last])
        bits[k - 1] = gb_lanes_load<W>(o.data[k], gb_lane_bytes(o.dtype[k]), offset[k] + from, first, end);
    GB_UNROLL for (int k = 1; k <= inputs; k++) {
      if (o.data[k] && w.stride[k][last]) {
        gb_lanes_unpack<float, W>(bits[k - 1], o.dtype[k], v[k - 1]);
        continue;
      }
      float x = o.data[k] ? gb_load<float>(o.data[k], o.dtype[k], offset[k]) : o.number[k];
      if (o.through[k] >= 0) x = gb_through(x, o.through[k]);
      GB_UNROLL for (int l = 0; l < W; l++) v[k - 1][l] = x;
    }
    GB_UNROLL for (int l = 0; l < W; l++)
      result[l] = F::of(inputs > 0 ? v[0][l] : 0.0f, inputs > 1 ? v[inputs > 1 ? 1 : 0][l] : 0.0f,
                        inputs > 2 ? v[inputs > 2 ? 2 : 0][l] : 0.0f, numbers);
    gb_lanes_store<W>(o.data[0], bytes, offset[0] + from, first, end, gb_lanes_pack<float, W>(result, o.dtype[0]));
  }
}

/* ====} */

/* {==== launching ==== */

/* One run over elements: the operands, and what else the function is told. */
struct gb_elements {
  gb_cuda_call *call;
  const gb_cuda_tensor *operand[GB_OPERANDS];
  int through[GB_OPERANDS];
  gb_attr number[2];        /* a and b of the functions */
  int function;             /* of functors that are several */
  bool logical;
};

/* A run of `out` over the first `inputs` inputs of a call. */
static inline gb_elements gb_elements_of(gb_cuda_call *call, const gb_cuda_tensor *out, int inputs) {
  gb_elements e = {};
  e.call = call;
  e.operand[0] = out;
  for (int k = 1; k <= inputs; k++) e.operand[k] = call->in[k - 1];
  for (int k = 0; k < GB_OPERANDS; k++) e.through[k] = -1;
  return e;
}

/* A number as a function that computes in T is told it. */
static inline void gb_pick(const gb_attr &number, float *a) { *a = gb_number_float(&number); }
static inline void gb_pick(const gb_attr &number, double *a) { *a = number.number; }
static inline void gb_pick(const gb_attr &number, int64_t *a) { *a = gb_number_integer(&number); }

/* What the kernel is told of the operands. */
template <typename T> static gb_operands<T> gb_operands_of(const gb_elements &e, int count) {
  gb_operands<T> o = {};
  for (int k = 0; k < count; k++) {
    const gb_cuda_tensor *t = e.operand[k];
    o.data[k] = t->host ? NULL : t->data;
    o.dtype[k] = t->dtype;
    o.through[k] = e.through[k];
    if (!t->host) continue;
    o.number[k] = gb_load<T>(t->data, t->dtype, 0);
    if (o.through[k] >= 0) o.number[k] = gb_through(o.number[k], o.through[k]);
    o.through[k] = -1;
  }
  return o;
}

/* Elements of a strip that suit the operands: 4, or 8 where all that run along it have at most 2 bytes; 0: the walk is
 * not for strips. */
static inline int gb_strip_width(const gb_elements &e, const gb_walk &w, int count) {
  int last = w.ndim - 1, widest = 0;
  for (int k = 0; k < count; k++) {
    const gb_cuda_tensor *t = e.operand[k];
    if (t->host || (k > 0 && w.stride[k][last] == 0)) continue;
    if (w.stride[k][last] != 1 || gb_lane_bytes(t->dtype) == 0) return 0;
    if (gb_lane_bytes(t->dtype) > widest) widest = gb_lane_bytes(t->dtype);
  }
  int width = widest == 4 ? 4 : 8;
  return w.shape[last] >= 4 * width ? width : 0; /* shorter rows would be mostly heads and tails */
}

template <class F, int W> static void gb_run_strips(const gb_elements &e, const gb_walk &w,
                                                    const gb_numbers<float> &numbers) {
  const gb_cuda_tensor *out = e.operand[0];
  int64_t length = w.shape[w.ndim - 1], strips = w.numel / length * gb_strips_of(length, W);
  int shift = (int)((uintptr_t)out->data / gb_bytes_of(out->dtype) % W);
  gb_operands<float> o = gb_operands_of<float>(e, F::inputs + 1);
  GB_LAUNCH(e.call->stream, GB_KERNEL(strips_kernel<F, F::inputs, W>), gb_blocks(strips, GB_THREADS), GB_THREADS, 0, w,
            o, numbers, shift);
}

/* What makes a function's results where they have 16 bits, as those of strips of 8 do: itself, or one that is as good
 * there and costs less. */
template <class F> struct gb_short { typedef F type; };

template <class F> static bool gb_try_strips(const gb_elements &e, const gb_walk &w, const gb_numbers<float> &numbers) {
  int width = gb_strip_width(e, w, F::inputs + 1);
  if (width == 4) gb_run_strips<F, 4>(e, w, numbers);
  else if (width == 8) gb_run_strips<typename gb_short<F>::type, 8>(e, w, numbers);
  return width > 0;
}

/* What the functions of a run are told. */
template <typename T> static gb_numbers<T> gb_numbers_of(const gb_elements &e) {
  gb_numbers<T> numbers = {};
  gb_pick(e.number[0], &numbers.a);
  gb_pick(e.number[1], &numbers.b);
  numbers.fault = e.call->fault;
  numbers.op = e.call->op;
  numbers.function = e.function;
  return numbers;
}

/* Run a function F that computes in T over a walk of any layout. F has `inputs` and of(x, y, z, numbers). */
template <class F, typename T> static void gb_run_walk(const gb_elements &e, const gb_walk &w) {
  gb_operands<T> o = gb_operands_of<T>(e, F::inputs + 1);
  GB_LAUNCH(e.call->stream, GB_KERNEL(elements_kernel<F, T, F::inputs>), gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0,
            w, o, gb_numbers_of<T>(e));
}

/* As gb_run_walk, over strips where the layout allows. F says by `vector` that T is float. */
template <class F, typename T> static void gb_run_elements(const gb_elements &e) {
  gb_walk w = gb_plan(e.operand, F::inputs + 1, e.logical);
  if constexpr (F::vector)
    if (gb_try_strips<F>(e, w, gb_numbers_of<float>(e))) return;
  gb_run_walk<F, T>(e, w);
}

/* ====} */

#endif
