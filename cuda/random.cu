/* cuda/random.cu - kernels that draw random numbers: the words of Philox are those that the CPU gives the same
 * elements.
 *
 * Numbers depend on (seed, offset, logical element) alone; what is made of a word stands in base/random.h. One call of
 * Philox makes four words, so a thread computes what they are for. */
#include "cuda/block.cuh"
#include "cuda/elements.cuh"
#include "cuda/families.h"
#include "cuda/sort.h"

/* {==== numbers from words ==== */

/* What a draw is made with. Which numbers mean what is the draw's business. */
struct draw_numbers {
  double a = 0, b = 0;
  uint64_t low = 0, range = 0;
  int dtype = 0, digits = 0, op = 0;
  gb_cuda_fault *fault = NULL;
};

/* As the dtype stores it. */
struct uniform_f32 {
  typedef float type;
  static constexpr int words = 1, inputs = 0;
  static __device__ __forceinline__ float of(const uint32_t *word, double, const draw_numbers &n) {
    float low = (float)n.a, high = (float)n.b;
    return gb_below_f32(gb_through(gb_uniform_f32(word[0], n.digits, low, high), n.dtype), low, high);
  }
};

struct uniform_f64 {
  typedef double type;
  static constexpr int words = 2, inputs = 0;
  static __device__ __forceinline__ double of(const uint32_t *word, double, const draw_numbers &n) {
    return gb_uniform_f64(word, n.a, n.b);
  }
};

struct integers_i64 {
  typedef int64_t type;
  static constexpr int words = 2, inputs = 0;
  static __device__ __forceinline__ int64_t of(const uint32_t *word, double, const draw_numbers &n) {
    return (int64_t)(n.low + gb_random_below(word, n.range));
  }
};

/* 1 with the probability that the input holds. */
struct bernoulli_f64 {
  typedef double type;
  static constexpr int words = 1, inputs = 1;
  static __device__ __forceinline__ double of(const uint32_t *word, double p, const draw_numbers &n) {
    if (!gb_is_probability(p)) gb_report(n.fault, GB_FAULT_PROBABILITY, n.op, 0, 0);
    return gb_bernoulli(word[0], p);
  }
};

static GB_DEVICE float dropped(uint32_t word, float x, float p, float scale) {
  return gb_dropout_f32(word, x, p, scale);
}
static GB_DEVICE double dropped(uint32_t word, double x, float p, double scale) {
  return gb_dropout_f64(word, x, p, scale);
}

template <typename T> struct dropout_of {
  typedef T type;
  static constexpr int words = 1, inputs = 1;
  static __device__ __forceinline__ T of(const uint32_t *word, T x, const draw_numbers &n) {
    return dropped(word[0], x, (float)n.a, (T)n.b);
  }
};

/* ====} */

/* {==== element by element ==== */

/* Both lie in memory in the order of the draw, and lanes move them: four elements to a block of words. */
template <class D> static __global__ void draw_four_kernel(int64_t n, gb_operands<float> o, gb_cuda_place place,
                                                           draw_numbers numbers) {
  uint64_t offset = gb_random_offset(place);
  for (int64_t block = gb_thread<int64_t>(); block * GB_LANES < n; block += gb_grid_size<int64_t>()) {
    int last = n - block * GB_LANES < GB_LANES ? (int)(n - block * GB_LANES) : GB_LANES;
    float x[GB_LANES] = { 0, 0, 0, 0 };
    gb_bits bits = {};
    uint32_t word[4];
    if (D::inputs) bits = gb_lanes_load<GB_LANES>(o.data[1], gb_lane_bytes(o.dtype[1]), block * GB_LANES, 0, last);
    gb_philox(gb_random_seed(place), offset, (uint64_t)block, word);
    if (D::inputs) gb_lanes_unpack<float, GB_LANES>(bits, o.dtype[1], x);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) x[l] = D::of(word + l, x[l], numbers);
    gb_lanes_store<GB_LANES>(o.data[0], gb_lane_bytes(o.dtype[0]), block * GB_LANES, 0, last, gb_lanes_pack<float,
                             GB_LANES>(x, o.dtype[0]));
  }
}

/* One thread makes the 4 / D::words elements of one block of words. */
template <class D> static __global__ void draw_kernel(gb_walk w, gb_operands<typename D::type> o, gb_cuda_place place,
                                                      draw_numbers numbers) {
  typedef typename D::type T;
  const int each = 4 / D::words;
  uint64_t offset = gb_random_offset(place);
  for (int64_t block = gb_thread<int64_t>(); block * each < w.numel; block += gb_grid_size<int64_t>()) {
    uint32_t word[4];
    gb_philox(gb_random_seed(place), offset, (uint64_t)block, word);
    for (int j = 0; j < each; j++) {
      int64_t at[2], i = block * each + j;
      if (i >= w.numel) break;
      gb_seek<2>(w, i, at);
      T x = D::inputs ? gb_load<T>(o.data[1], o.dtype[1], at[1]) : (T)0;
      gb_store<T>(o.data[0], o.dtype[0], at[0], D::of(word + j * D::words, x, numbers));
    }
  }
}

/* Draw for every element of y, in the row-major order of its shape. */
template <class D>
static gb_status draw(gb_cuda_call *call, const gb_cuda_tensor *y, const gb_cuda_place &place, draw_numbers numbers) {
  gb_elements e = gb_elements_of(call, y, D::inputs);
  gb_walk w = gb_plan(e.operand, D::inputs + 1, true);
  numbers.dtype = y->dtype;
  numbers.op = call->op;
  numbers.fault = call->fault;
  if constexpr (sizeof(typename D::type) == 4) {
    bool lanes = true;
    for (int k = 0; k <= D::inputs; k++) lanes = lanes && gb_is_flat(w, k) && gb_lane_bytes(e.operand[k]->dtype);
    if (lanes) {
      GB_LAUNCH(call->stream, draw_four_kernel<D>, gb_blocks(w.numel, GB_THREADS * GB_LANES), GB_THREADS, 0, w.numel,
                gb_operands_of<float>(e, D::inputs + 1), place, numbers);
      return GB_OK;
    }
  }
  GB_LAUNCH(call->stream, draw_kernel<D>, gb_blocks(w.numel, GB_THREADS * (4 / D::words)), GB_THREADS, 0, w,
            gb_operands_of<typename D::type>(e, D::inputs + 1), place, numbers);
  return GB_OK;
}

static gb_status uniform(gb_cuda_call *call) {
  const gb_attrs_uniform *attrs = GB_ATTRS(call, uniform);
  const gb_cuda_tensor *y = GB_CUDA_OUT(call, uniform)->y;
  draw_numbers n = { attrs->low.number, attrs->high.number };
  n.digits = gb_format_of(y->dtype)->digits;
  if (y->dtype == GB_FLOAT64) return draw<uniform_f64>(call, y, call->place, n);
  return draw<uniform_f32>(call, y, call->place, n);
}

static gb_status random_integers(gb_cuda_call *call) {
  const gb_attrs_random_integers *attrs = GB_ATTRS(call, random_integers);
  draw_numbers n = {};
  n.low = (uint64_t)attrs->low.integer;
  n.range = (uint64_t)attrs->high.integer - n.low;
  return draw<integers_i64>(call, GB_CUDA_OUT(call, random_integers)->y, call->place, n);
}

static gb_status bernoulli(gb_cuda_call *call) {
  return draw<bernoulli_f64>(call, GB_CUDA_OUT(call, bernoulli)->y, call->place, draw_numbers{});
}

static gb_status dropout_at(gb_cuda_call *call, const gb_cuda_tensor *y, double p, const gb_cuda_place &place) {
  draw_numbers n = { p, p < 1 ? 1 / (1 - p) : 0 };
  if (y->dtype == GB_FLOAT64) return draw<dropout_of<double>>(call, y, place, n);
  return draw<dropout_of<float>>(call, y, place, n);
}

/* Forward draws from the call's place in the stream; nothing to drop: the input itself. */
static gb_status dropout(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, dropout)->x, *y = GB_CUDA_OUT(call, dropout)->y;
  return y->data == x->data ? GB_OK : dropout_at(call, y, GB_ATTRS(call, dropout)->p.number, call->place);
}

/* Backward draws again from the place that it is told. */
static gb_status dropout_backward(gb_cuda_call *call) {
  const gb_attrs_dropout_backward *attrs = GB_ATTRS(call, dropout_backward);
  gb_cuda_place place = { (uint64_t)attrs->seed.integer, (uint64_t)attrs->offset.integer, call->place.advance };
  return dropout_at(call, GB_CUDA_OUT(call, dropout_backward)->dx, attrs->p.number, place);
}

/* {---- normals: two at a time ---- */

static GB_DEVICE void normal_pair(const uint32_t *word, float mean, float std, float *pair) {
  gb_normal_pair_f32(word, mean, std, pair);
}
static GB_DEVICE void normal_pair(const uint32_t *word, double mean, double std, double *pair) {
  gb_normal_pair_f64(word, mean, std, pair);
}

/* A thread makes as many pairs as four words are good for. */
template <typename T> static __global__ void normal_kernel(gb_walk w, char *out, int dtype, gb_cuda_place place, T mean,
                                                           T std) {
  const int each = sizeof(T) == 4 ? 4 : 2;
  uint64_t offset = gb_random_offset(place);
  for (int64_t block = gb_thread<int64_t>(); block * each < w.numel; block += gb_grid_size<int64_t>()) {
    uint32_t word[4];
    T normal[each];
    gb_philox(gb_random_seed(place), offset, (uint64_t)block, word);
    for (int j = 0; j < each; j += 2) normal_pair(word + j, mean, std, normal + j);
    for (int j = 0; j < each && block * each + j < w.numel; j++) {
      int64_t at[1];
      gb_seek<1>(w, block * each + j, at);
      gb_store<T>(out, dtype, at[0], normal[j]);
    }
  }
}

static gb_status normal(gb_cuda_call *call) {
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, normal)->y;
  double mean = GB_ATTRS(call, normal)->mean.number, std = GB_ATTRS(call, normal)->std.number;
  gb_walk w = gb_plan(&out, 1, true);
  if (out->dtype == GB_FLOAT64) {
    GB_LAUNCH(call->stream, normal_kernel<double>, gb_blocks(w.numel, 2 * GB_THREADS), GB_THREADS, 0, w, out->data,
              out->dtype, call->place, mean, std);
  } else {
    GB_LAUNCH(call->stream, normal_kernel<float>, gb_blocks(w.numel, 4 * GB_THREADS), GB_THREADS, 0, w, out->data,
              out->dtype, call->place, (float)mean,
              (float)std);
  }
  return GB_OK;
}

/* ----} */
/* ====} */

/* {==== what draws one thing after another ==== */

/* Fisher and Yates, from the inside out: element i goes to a place j(i) <= i, and what was there moves to place i. So
 * what a place holds at the end is the last i that came to it, or, where none did, what moved there at its own step:
 * what place j held just before, which is the last i' < i with j(i') = j(i), or what j got at its own step, and so on:
 * a few steps back, log(n) at most to be expected. Sorting the i by j(i) tells them all at once; one after another
 * would take a memory latency each. */

/* Keys j(i) and values i; no place holds anything yet. */
static __global__ void choose_places(uint64_t *keys, int64_t *values, int64_t *p, int64_t stride, int64_t n,
                                     gb_cuda_place place) {
  uint64_t offset = gb_random_offset(place);
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    uint32_t word[4];
    gb_philox(gb_random_seed(place), offset, (uint64_t)i / 2, word);
    keys[i] = gb_random_below(word + 2 * (i % 2), (uint64_t)i + 1);
    values[i] = i;
    p[i * stride] = -1;
  }
}

/* Sorted: the last that came to each place stays there. rank[i]: where i is among the sorted. */
static __global__ void settle_last(const uint64_t *keys, const int64_t *values, int64_t *rank, int64_t *p,
                                   int64_t stride, int64_t n) {
  for (int64_t r = gb_thread<int64_t>(); r < n; r += gb_grid_size<int64_t>()) {
    rank[values[r]] = r;
    if (r + 1 == n || keys[r + 1] != keys[r]) p[(int64_t)keys[r] * stride] = values[r];
  }
}

/* Places to which nobody came hold what moved there. */
static __global__ void settle_moved(const uint64_t *keys, const int64_t *values, const int64_t *rank, int64_t *p,
                                    int64_t stride, int64_t n) {
  for (int64_t c = gb_thread<int64_t>(); c < n; c += gb_grid_size<int64_t>()) {
    if (p[c * stride] >= 0) continue;
    int64_t at = c, r = rank[c];
    /* nobody came to j(at) between its own step and this one */
    while ((int64_t)keys[r] != at && (r == 0 || keys[r - 1] != keys[r])) {
      at = (int64_t)keys[r];
      r = rank[at];
    }
    p[c * stride] = (int64_t)keys[r] == at ? at : values[r - 1];
  }
}

static gb_status permutation(gb_cuda_call *call) {
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, permutation)->y;
  int64_t n = out->numel, stride = out->stride[0], *p = (int64_t *)out->data;
  int bits = 1;
  if (n == 0) return GB_OK;
  uint64_t *keys = (uint64_t *)gb_cuda_scratch(call, 2 * (size_t)n * sizeof *keys);
  int64_t *values = (int64_t *)gb_cuda_scratch(call, 2 * (size_t)n * sizeof *values);
  if (!keys || !values) return GB_EMEMORY;
  while ((n - 1) >> bits) bits++;
  unsigned grid = gb_blocks(n, GB_THREADS);
  GB_LAUNCH(call->stream, choose_places, grid, GB_THREADS, 0, keys, values, p, stride, n, call->place);
  gb_status status = gb_sort_pairs(call, keys, keys + n, values, values + n, 1, n, 0, bits);
  if (status != GB_OK) return status;
  /* the unsorted are not needed any more */
  GB_LAUNCH(call->stream, settle_last, grid, GB_THREADS, 0, keys + n, values + n, values, p, stride, n);
  GB_LAUNCH(call->stream, settle_moved, grid, GB_THREADS, 0, keys + n, values + n, values, p, stride, n);
  return GB_OK;
}

/* {---- multinomial: weights at the leaves of a tree of sums, so that a draw and a removal take log(n) steps ---- */

/* A multinomial draw: rows of n weights, trees of 2 * size numbers with the root at 1. */
struct lottery {
  const char *weights;
  int dtype;
  int64_t n, size, row_stride, stride, samples;
  bool replacement;
  double *trees;
  int64_t *out;
};

/* One block per row: plant the tree level by level; then draws that put back go at once, others one after another. */
static __global__ void multinomial_kernel(lottery l, gb_cuda_place place, gb_cuda_fault *fault) {
  double *tree = l.trees + (int64_t)blockIdx.x * 2 * l.size;
  const int op = GB_OP_multinomial;
  int64_t positive = 0, bad = 0;
  for (int64_t i = threadIdx.x; i < l.size; i += blockDim.x) {
    double weight = i < l.n ? gb_load<double>(l.weights, l.dtype, (int64_t)blockIdx.x * l.row_stride + i * l.stride)
        : 0;
    bool sound = weight >= 0 && weight < (double)INFINITY;
    tree[l.size + i] = sound ? weight : 0;
    positive += sound && weight > 0;
    bad += !sound;
  }
  positive = gb_block_reduce<gb_sum_of>(positive, (int64_t)0);
  bad = gb_block_reduce<gb_sum_of>(bad, (int64_t)0);
  for (int64_t level = l.size / 2; level > 0; level /= 2) {
    for (int64_t i = level + threadIdx.x; i < 2 * level; i += blockDim.x) tree[i] = tree[2 * i] + tree[2 * i + 1];
    __syncthreads();
  }
  if (threadIdx.x == 0 && bad) gb_report(fault, GB_FAULT_WEIGHTS, op, 0, 0);
  else if (threadIdx.x == 0 && positive == 0) gb_report(fault, GB_FAULT_ZERO_WEIGHTS, op, 0, 0);
  else if (threadIdx.x == 0 && !l.replacement && positive < l.samples)
    gb_report(fault, GB_FAULT_FEW_WEIGHTS, op, l.samples, positive);
  bool alone = !l.replacement;
  for (int64_t s = alone ? 0 : threadIdx.x; s < l.samples && (!alone || threadIdx.x == 0); s += alone ? 1 : blockDim.x)
    {
    uint64_t index = 2 * ((uint64_t)blockIdx.x * (uint64_t)l.samples + (uint64_t)s);
    double u = gb_uniform64(gb_random_word(place, index), gb_random_word(place, index + 1));
    int64_t leaf = gb_draw_leaf(tree, l.size, u);
    l.out[(int64_t)blockIdx.x * l.samples + s] = leaf < l.n ? leaf : 0;
    if (alone) gb_fell_leaf(tree, l.size, leaf);
  }
}

static gb_status multinomial(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, multinomial)->x;
  const gb_attrs_multinomial *attrs = GB_ATTRS(call, multinomial);
  int64_t rows = x->ndim == 2 ? x->shape[0] : 1, size = 1;
  lottery l = { x->data, x->dtype, x->shape[x->ndim - 1], 0, x->ndim == 2 ? x->stride[0] : 0, x->stride[x->ndim - 1],
                attrs->samples.integer, attrs->replacement.integer != 0, NULL,
                (int64_t *)GB_CUDA_OUT(call, multinomial)->y->data };
  while (size < l.n) size *= 2;
  if (rows == 0) return GB_OK;
  l.size = size;
  l.trees = (double *)gb_cuda_scratch(call, (size_t)(rows * 2 * size) * sizeof(double));
  if (!l.trees) return GB_EMEMORY;
  GB_LAUNCH(call->stream, multinomial_kernel, (unsigned)rows, GB_THREADS, 0, l, call->place, call->fault);
  return GB_OK;
}

/* ----} */
/* ====} */

const gb_cuda_row gb_cuda_random[] = {
  { GB_OP_uniform, uniform, false }, { GB_OP_normal, normal, false }, { GB_OP_random_integers, random_integers, false },
  { GB_OP_permutation, permutation, false }, { GB_OP_bernoulli, bernoulli, false },
      { GB_OP_multinomial, multinomial, false },
  { GB_OP_dropout, dropout, false }, { GB_OP_dropout_backward, dropout_backward, false }, { GB_OP_COUNT, NULL, false },
};
