/* cuda/elements.cuh - the walk over the elements that several tensors have in common, for kernels that compute element by element.
 *
 * A plan broadcasts the inputs to the result's shape, orders the dims by the result's strides (or keeps row-major order where the place of an
 * element counts), and merges dims wherever all operands allow it. elements_kernel takes any dtype per operand; vector_kernel is the fast
 * one: contiguous operands of one float dtype, 16 bytes at a time. The walk divides by 32-bit numbers wherever they hold every offset, by a branch
 * that all threads take alike: instances for both widths would double what nvcc compiles, and a 64-bit division costs more than the branch. */
#ifndef GB_CUDA_ELEMENTS_CUH
#define GB_CUDA_ELEMENTS_CUH

#include "cuda/device.cuh"

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
    for (int d = 0; d < w.ndim; d++) reach += (w.shape[d] - 1) * (w.stride[k][d] < 0 ? -w.stride[k][d] : w.stride[k][d]);
    if (reach > most) return false;
  }
  return w.numel <= most;
}

/* Plan the walk over operands[0] (the result) and the others. logical: in row-major order of the result's shape, whatever its layout. */
static inline gb_walk gb_plan(const gb_cuda_tensor *const *operands, int count, bool logical) {
  const gb_cuda_tensor *out = operands[0];
  gb_walk w = {};
  int order[GB_MAX_NDIM], n = gb_order_dims(out, logical, order);
  w.numel = out->numel;
  for (int i = 0; i < n; i++) {
    int64_t size = out->shape[order[i]];
    bool merge = w.ndim > 0;
    for (int k = 0; k < count && merge; k++) merge = w.stride[k][w.ndim - 1] == gb_stride_along(operands[k], out, order[i]) * size;
    if (!merge) w.shape[w.ndim++] = 1;
    w.shape[w.ndim - 1] *= size;
    for (int k = 0; k < count; k++) w.stride[k][w.ndim - 1] = gb_stride_along(operands[k], out, order[i]);
  }
  if (w.ndim == 0) w.shape[w.ndim++] = 1;
  w.narrow = gb_is_narrow(w, count);
  return w;
}

/* Operand k is read or written in one piece, in the order of the walk. */
static inline bool gb_is_flat(const gb_walk &w, int k) { return w.ndim == 1 && (w.stride[k][0] == 1 || w.shape[0] == 1); }

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

/* Where element i of the walk lies in the first `count` operands. */
template <int count> static GB_DEVICE void gb_seek(const gb_walk &w, int64_t i, int64_t *offset) {
  if (w.narrow) gb_seek_by<count, int32_t>(w, (int32_t)i, offset);
  else gb_seek_by<count, int64_t>(w, i, offset);
}

/* What the functions of elements are told beside their operands. What a and b mean is the op's business. */
template <typename T> struct gb_numbers {
  T a, b;
  gb_cuda_fault *fault;
  int op;
};

/* The operands of a launch: memory, or (data NULL) one number for all elements. through: a dtype that a single element is converted to on the
 * way, or -1. */
template <typename T> struct gb_operands {
  char *data[GB_OPERANDS];
  int dtype[GB_OPERANDS], through[GB_OPERANDS];
  T number[GB_OPERANDS];
};

/* out = F(x, y, z) for every element of the walk; inputs of them. Moves each operand's bytes once. */
template <class F, typename T, int inputs> static __global__ void elements_kernel(gb_walk w, gb_operands<T> o, gb_numbers<T> numbers) {
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

/* 16 bytes of one dtype. */
template <typename S> struct alignas(16) gb_vector { S lane[16 / sizeof(S)]; };

static GB_DEVICE float gb_lane_value(float x, int) { return x; }
static GB_DEVICE float gb_lane_value(uint16_t bits, int dtype) { return dtype == GB_FLOAT16 ? gb_half_value(bits) : gb_bfloat16_to_float(bits); }
static GB_DEVICE void gb_lane_set(float *lane, int, float x) { *lane = x; }
static GB_DEVICE void gb_lane_set(uint16_t *lane, int dtype, float x) { *lane = dtype == GB_FLOAT16 ? gb_half_bits(x) : gb_bfloat_bits(x); }

/* As elements_kernel where the result and every input that is no single number lie in one piece, in one dtype whose elements are stored as S
 * (float, or uint16_t for both 16-bit floats), aligned to 16 bytes. */
template <class F, typename S, int inputs> static __global__ void vector_kernel(int64_t numel, gb_operands<float> o, gb_numbers<float> numbers) {
  const int width = 16 / sizeof(S), dtype = sizeof(S) == 4 ? (int)GB_FLOAT32 : o.dtype[0];
  int64_t vectors = numel / width;
  for (int64_t i = gb_thread<int64_t>(); i < vectors; i += gb_grid_size<int64_t>()) {
    gb_vector<S> in[inputs > 0 ? inputs : 1], out;
    for (int k = 0; k < inputs; k++)
      if (o.data[k + 1]) in[k] = ((const gb_vector<S> *)o.data[k + 1])[i];
    for (int l = 0; l < width; l++) {
      float v[3] = { 0, 0, 0 };
      for (int k = 0; k < inputs; k++) v[k] = o.data[k + 1] ? gb_lane_value(in[k].lane[l], dtype) : o.number[k + 1];
      gb_lane_set(&out.lane[l], dtype, F::of(v[0], v[1], v[2], numbers));
    }
    ((gb_vector<S> *)o.data[0])[i] = out;
  }
  int64_t i = vectors * width + gb_thread<int64_t>(); /* the rest, less than one vector */
  if (i >= numel) return;
  float v[3] = { 0, 0, 0 };
  for (int k = 0; k < inputs; k++) v[k] = o.data[k + 1] ? gb_lane_value(((const S *)o.data[k + 1])[i], dtype) : o.number[k + 1];
  gb_lane_set(&((S *)o.data[0])[i], dtype, F::of(v[0], v[1], v[2], numbers));
}

/* ====} */

/* {==== launching ==== */

/* One run over elements: the operands, and what else the function is told. */
struct gb_elements {
  gb_cuda_call *call;
  const gb_cuda_tensor *operand[GB_OPERANDS];
  int through[GB_OPERANDS];
  double a, b;
  int64_t whole_a, whole_b; /* the same for integers */
  bool logical;
};

/* A run of out[0] over the first `inputs` inputs of a call. */
static inline gb_elements gb_elements_of(gb_cuda_call *call, int inputs) {
  gb_elements e = {};
  e.call = call;
  e.operand[0] = call->out[0];
  for (int k = 1; k <= inputs; k++) e.operand[k] = call->in[k - 1];
  for (int k = 0; k < GB_OPERANDS; k++) e.through[k] = -1;
  return e;
}

static inline void gb_elements_number(gb_elements *e, double a, double b) {
  e->a = a, e->b = b;
  e->whole_a = gb_to_integer(a), e->whole_b = gb_to_integer(b);
}

static inline void gb_pick(const gb_elements &e, float *a, float *b) { *a = (float)e.a, *b = (float)e.b; }
static inline void gb_pick(const gb_elements &e, double *a, double *b) { *a = e.a, *b = e.b; }
static inline void gb_pick(const gb_elements &e, int64_t *a, int64_t *b) { *a = e.whole_a, *b = e.whole_b; }

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

/* All operands in one piece, of the result's 16- or 32-bit float dtype and aligned, or numbers. */
static inline bool gb_is_vector(const gb_elements &e, const gb_walk &w, int count) {
  gb_dtype dtype = e.operand[0]->dtype;
  if (dtype != GB_FLOAT32 && dtype != GB_FLOAT16 && dtype != GB_BFLOAT16) return false;
  for (int k = 0; k < count; k++) {
    const gb_cuda_tensor *t = e.operand[k];
    if (t->host) continue;
    if (t->dtype != dtype || e.through[k] >= 0 || !gb_is_flat(w, k) || ((uintptr_t)t->data & 15)) return false;
  }
  return true;
}

template <class F, int inputs> static void gb_run_vector(const gb_elements &e, const gb_numbers<float> &numbers) {
  int64_t numel = e.operand[0]->numel;
  gb_operands<float> o = gb_operands_of<float>(e, inputs + 1);
  if (e.operand[0]->dtype == GB_FLOAT32) {
    GB_LAUNCH(e.call->stream, GB_KERNEL(vector_kernel<F, float, inputs>), gb_blocks(numel, GB_THREADS * 4), GB_THREADS, 0, numel, o, numbers);
  } else {
    GB_LAUNCH(e.call->stream, GB_KERNEL(vector_kernel<F, uint16_t, inputs>), gb_blocks(numel, GB_THREADS * 8), GB_THREADS, 0, numel, o, numbers);
  }
}

template <class F> static bool gb_try_vector(const gb_elements &e, const gb_walk &w, const gb_numbers<float> &numbers) {
  if (!gb_is_vector(e, w, F::inputs + 1)) return false;
  gb_run_vector<F, F::inputs>(e, numbers);
  return true;
}
template <class F, typename T> static bool gb_try_vector(const gb_elements &, const gb_walk &, const gb_numbers<T> &) { return false; }

/* Run a function F that computes in T over the elements. F has `inputs`, `vector` (it is worth a fast instance) and of(x, y, z, numbers). */
template <class F, typename T> static void gb_run_elements(const gb_elements &e) {
  const int inputs = F::inputs;
  gb_walk w = gb_plan(e.operand, inputs + 1, e.logical);
  gb_numbers<T> numbers = {};
  gb_pick(e, &numbers.a, &numbers.b);
  numbers.fault = e.call->fault;
  numbers.op = e.call->op;
  if constexpr (F::vector)
    if (gb_try_vector<F>(e, w, numbers)) return;
  gb_operands<T> o = gb_operands_of<T>(e, inputs + 1);
  GB_LAUNCH(e.call->stream, GB_KERNEL(elements_kernel<F, T, inputs>), gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, o, numbers);
}

/* ====} */

#endif
