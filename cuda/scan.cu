/* cuda/scan.cu - running products and extremes along a dim, the gradient of products, positions among sorted values.
 *
 * Products and extremes are scans (scan.cuh), in float64 or int64, by the length of a row. A scan of floats joins
 * products of parts, which may leave the range of float64 where products one by one do not: so rows are looked at
 * first, and such a row is gone through from end to end. Of the gradient a thread goes through a short row from end to
 * end, a block through another one strip by strip: x is read twice, and sums in float64 are written and read. */
#include <float.h>

#include "cuda/families.h"
#include "cuda/scan.cuh"

/* The rows of t along a dim. */
static gb_rows along(const gb_cuda_tensor *t, const gb_attr *dim) {
  int64_t at = dim->integer;
  return gb_rows_of(t, t->ndim ? 1u << (at < 0 ? at + t->ndim : at) : 0);
}

/* {==== products ==== */

template <typename N> struct multiplied {
  typedef N T;
  static GB_DEVICE T nothing() { return 1; }
  static GB_DEVICE T of(T a, T b) { return a * b; }
};
template <> GB_DEVICE int64_t multiplied<int64_t>::of(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}

enum { STRIP = GB_SCAN_THREADS * GB_LANES };

/* A product of some elements of a row lies between 2^-down and 2^up. */
struct product_range { float up, down; };

/* That of the pieces of rows, a block to each. Zeros are left out: they stay what they are. */
static __global__ void __launch_bounds__(GB_SCAN_THREADS) measure_products(gb_rows x, gb_scan_cut cut,
                                                                           product_range *ranges) {
  for (int64_t unit = blockIdx.x; unit < x.count * cut.pieces; unit += gridDim.x) {
    int64_t first = unit % cut.pieces * cut.piece, from = gb_at(x.outer, unit / cut.pieces);
    int64_t last = first + cut.piece < x.length ? first + cut.piece : x.length;
    product_range own = { 0, 0 };
    for (int64_t i = first + threadIdx.x; i < last; i += GB_SCAN_THREADS) {
      double v = fabs(gb_row_load<double>(x, from, i));
      float exponent = v == 0 ? (float)0 : (float)log2(v); /* NaN is neither */
      if (exponent > 0) own.up += exponent;
      if (exponent < 0) own.down -= exponent;
    }
    own.up = gb_block_reduce<gb_sum_of>(own.up, (float)0);
    own.down = gb_block_reduce<gb_sum_of>(own.down, (float)0);
    if (threadIdx.x == 0) ranges[unit] = own;
  }
}

/* Rows whose products may leave the range, a block to each; strips of them come into shared memory, where one thread
 * goes through them. Where nothing is above 1 products only fall, in any order. */
static __global__ void __launch_bounds__(GB_SCAN_THREADS) multiply_one_by_one(gb_rows x, gb_rows out, int64_t pieces,
                                                                              const product_range *ranges, int *done) {
  GB_SHARED(double, part, [STRIP]);
  for (int64_t row = blockIdx.x; row < x.count; row += gridDim.x) {
    int64_t from = gb_at(x.outer, row), to = gb_at(out.outer, row);
    product_range all = { 0, 0 };
    double run = 1;
    for (int64_t k = threadIdx.x; k < pieces; k += GB_SCAN_THREADS)
      all.up += ranges[row * pieces + k].up, all.down += ranges[row * pieces + k].down;
    all.up = gb_block_reduce<gb_sum_of>(all.up, (float)0);
    all.down = gb_block_reduce<gb_sum_of>(all.down, (float)0);
    bool leaves = all.up > 0 && (all.up > 1000 || all.down > 1000);
    if (threadIdx.x == 0) done[row] = leaves;
    for (int64_t first = 0; leaves && first < x.length; first += STRIP) {
      int n = x.length - first < STRIP ? (int)(x.length - first) : (int)STRIP;
      __syncthreads(); /* the strip before has been stored */
      for (int i = (int)threadIdx.x; i < n; i += GB_SCAN_THREADS) part[i] = gb_row_load<double>(x, from, first + i);
      __syncthreads();
      for (int i = 0; threadIdx.x == 0 && i < n; i++) part[i] = run *= part[i];
      __syncthreads();
      for (int i = (int)threadIdx.x; i < n; i += GB_SCAN_THREADS) gb_row_store<double>(out, to, first + i, part[i]);
    }
  }
}

/* A thread goes through a short row by itself. */
static gb_status products_of_floats(gb_cuda_call *call, const gb_rows &x, const gb_rows &out) {
  gb_scan_numbers<multiplied<double>> f = { x, out, NULL };
  gb_scan_cut cut = gb_scan_cut_of(x.count, x.length);
  if (x.length <= GB_SCAN_SHORT) return gb_scan_run(call, f, x.count, x.length);
  int64_t units = x.count * cut.pieces;
  product_range *ranges = (product_range *)gb_cuda_scratch(call, (size_t)units * sizeof *ranges);
  int *done = (int *)gb_cuda_scratch(call, (size_t)x.count * sizeof *done);
  if (!ranges || !done) return GB_EMEMORY;
  GB_LAUNCH(call->stream, measure_products, gb_blocks(units, 1), GB_SCAN_THREADS, 0, x, cut, ranges);
  GB_LAUNCH(call->stream, multiply_one_by_one, gb_blocks(x.count, 1), GB_SCAN_THREADS, 0, x, out, cut.pieces, ranges,
            done);
  f.done = done;
  return gb_scan_run(call, f, x.count, x.length);
}

static gb_status products_of_integers(gb_cuda_call *call, const gb_rows &x, const gb_rows &out) {
  gb_scan_numbers<multiplied<int64_t>> f = { x, out, NULL };
  return gb_scan_run(call, f, x.count, x.length);
}

static gb_status cumprod(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, cumprod)->x, *y = GB_CUDA_OUT(call, cumprod)->y;
  const gb_attr *dim = &GB_ATTRS(call, cumprod)->dim;
  gb_rows from = along(x, dim), to = along(y, dim);
  if (y->numel == 0) return GB_OK;
  return gb_is_float(y->dtype) ? products_of_floats(call, from, to) : products_of_integers(call, from, to);
}

/* Where the sums of a row are kept. */
struct row_sums { double *data; int64_t step; };

/* As the CPU's product_gradient_again. */
static GB_DEVICE void product_gradient_again(const gb_rows &grad, const gb_rows &x, const gb_rows &dx, row_sums s,
                                             int64_t row) {
  int64_t g = gb_at(grad.outer, row), from = gb_at(x.outer, row), to = gb_at(dx.outer, row), zero = x.length;
  double before = 1, sum = 0, next = 0;
  for (int64_t i = 0; i < x.length; i++) {
    double own = gb_row_load<double>(grad, g, i), factor = gb_row_load<double>(x, from, i);
    if (!(fabs(own) <= DBL_MAX && fabs(factor) <= DBL_MAX)) return;
    if (factor == 0 && zero == x.length) zero = i;
  }
  for (int64_t i = x.length - 1; i >= zero; i--) {
    sum = gb_row_load<double>(grad, g, i) + (next != 0 ? next * sum : 0);
    next = gb_row_load<double>(x, from, i);
    gb_row_store<double>(dx, to, i, 0);
  }
  for (int64_t i = 0; i < zero; i++) {
    double own = gb_row_load<double>(grad, g, i);
    before *= gb_row_load<double>(x, from, i);
    s.data[i * s.step] = own != 0 ? own * before : 0;
  }
  if (zero < x.length && before != 0 && sum != 0) gb_row_store<double>(dx, to, zero, before * sum);
  sum = 0;
  for (int64_t i = zero - 1; i >= 0; i--) {
    if (fabs(sum) <= DBL_MAX) sum += s.data[i * s.step];
    gb_row_store<double>(dx, to, i, sum / gb_row_load<double>(x, from, i));
  }
}

/* As the CPU's: s[i] = g[i] + x[i + 1] s[i + 1], in float64, since it may be larger than any element of dx. */
static GB_DEVICE void product_gradient_row(const gb_rows &grad, const gb_rows &x, const gb_rows &dx, row_sums s,
                                           int64_t row) {
  int64_t g = gb_at(grad.outer, row), from = gb_at(x.outer, row), to = gb_at(dx.outer, row);
  double rest = 0, before = 1, factor = 0;
  bool finite = true;
  for (int64_t i = x.length - 1; i >= 0; i--) {
    double own = gb_row_load<double>(grad, g, i);
    rest = i + 1 < x.length ? own + factor * rest : own;
    factor = gb_row_load<double>(x, from, i);
    s.data[i * s.step] = rest;
  }
  for (int64_t i = 0; i < x.length; i++) {
    double own = s.data[i * s.step] * before;
    finite &= fabs(own) <= DBL_MAX;
    gb_row_store<double>(dx, to, i, own);
    before *= gb_row_load<double>(x, from, i);
  }
  if (!finite) product_gradient_again(grad, x, dx, s, row);
}

/* A thread to a row. Of the elements of rows, those at the same place lie beside each other in s. */
static __global__ void product_gradient_short(gb_rows grad, gb_rows x, gb_rows dx, double *s) {
  for (int64_t row = gb_thread<int64_t>(); row < x.count; row += gb_grid_size<int64_t>())
    product_gradient_row(grad, x, dx, row_sums{ s + row, x.count }, row);
}

/* What a part of a row makes of the s behind it: sum + factor * s. */
struct gradient_part { double factor, sum; };

/* What has been seen of a row: products so small that factors may have lost digits in them, and numbers so large that
 * they would bring such a loss to light. A product of parts may be small where none of one by one is. */
struct gradient_range { bool small, large; };

static GB_DEVICE void look_at(gradient_range *seen, double product) {
  seen->small |= fabs(product) < 1e-289;
  seen->large |= fabs(product) > 1e16;
}

static GB_DEVICE gradient_part joined(gradient_part first, gradient_part behind) {
  return gradient_part{ first.factor * behind.factor, first.sum + first.factor * behind.sum };
}

/* s of the strip that begins at `first`, from that behind it in *rest, which becomes the strip's first. Threads join
 * their four with those of the threads behind. */
static __device__ void sum_strip(const gb_rows &grad, int64_t g, const gb_rows &x, int64_t from, int64_t first,
                                 double *s, double *rest, gradient_range *seen) {
  GB_SHARED(gradient_part, part, [GB_SCAN_THREADS]);
  const int thread = (int)threadIdx.x;
  gradient_part own[GB_LANES], all = { 1, 0 };
  for (int l = GB_LANES - 1; l >= 0; l--) {
    int64_t i = first + (int64_t)thread * GB_LANES + l;
    own[l] = gradient_part{ 1, 0 };
    if (i < x.length) {
      own[l].factor = i + 1 < x.length ? gb_row_load<double>(x, from, i + 1) : 1; /* the last one meets 0 */
      own[l].sum = gb_row_load<double>(grad, g, i);
    }
    all = joined(own[l], all);
  }
  look_at(seen, all.factor);
  for (int by = 1; by < GB_SCAN_THREADS; by *= 2) {
    __syncthreads(); /* what was there has been read */
    part[thread] = all;
    __syncthreads();
    if (thread + by < GB_SCAN_THREADS) all = joined(all, part[thread + by]);
    look_at(seen, all.factor);
  }
  __syncthreads();
  part[thread] = all;
  __syncthreads();
  double behind = *rest;
  if (thread + 1 < GB_SCAN_THREADS) behind = part[thread + 1].sum + part[thread + 1].factor * behind;
  *rest = part[0].sum + part[0].factor * *rest;
  for (int l = GB_LANES - 1; l >= 0; l--) {
    int64_t i = first + (int64_t)thread * GB_LANES + l;
    behind = own[l].sum + own[l].factor * behind;
    seen->large |= fabs(behind) > 1e16;
    if (i < x.length) s[i] = behind;
  }
}

/* dx of a strip from its s and the product of all before it, which becomes that of all before the next. */
static __device__ bool multiply_strip(const gb_rows &x, int64_t from, const gb_rows &dx, int64_t to, int64_t first,
                                      const double *s, double *before, gradient_range *seen) {
  double own[GB_LANES], all = 1, total;
  bool finite = true;
  for (int l = 0; l < GB_LANES; l++) {
    int64_t i = first + (int64_t)threadIdx.x * GB_LANES + l;
    own[l] = i < x.length ? gb_row_load<double>(x, from, i) : 1;
    all *= own[l];
  }
  double product = gb_block_scan(all, 1.0, gb_folding<multiplied<double>>(), &total);
  look_at(seen, product);
  product *= *before;
  look_at(seen, product);
  *before *= total;
  for (int l = 0; l < GB_LANES; l++) {
    int64_t i = first + (int64_t)threadIdx.x * GB_LANES + l;
    if (i < x.length) {
      double slope = s[i] * product;
      finite &= fabs(slope) <= DBL_MAX;
      gb_row_store<double>(dx, to, i, slope);
    }
    product *= own[l];
  }
  return finite;
}

/* A block to a row. Products are joined in another order than one by one, and so may leave the range of float64, at
 * either end, where those do not: such a row is done once more by one thread. */
static __global__ void __launch_bounds__(GB_SCAN_THREADS) product_gradient(gb_rows grad, gb_rows x, gb_rows dx,
                                                                           double *sums) {
  for (int64_t row = blockIdx.x; row < x.count; row += gridDim.x) {
    int64_t g = gb_at(grad.outer, row), from = gb_at(x.outer, row), to = gb_at(dx.outer, row);
    double *s = sums + row * x.length, rest = 0, before = 1;
    gradient_range seen = { false, false };
    int broken = 0;
    for (int64_t first = (x.length - 1) / STRIP * STRIP; first >= 0; first -= STRIP)
      sum_strip(grad, g, x, from, first, s, &rest, &seen);
    for (int64_t first = 0; first < x.length; first += STRIP)
      broken |= !multiply_strip(x, from, dx, to, first, s, &before, &seen);
    int small = gb_block_reduce<gb_most_of>((int)seen.small, 0);
    int large = gb_block_reduce<gb_most_of>((int)seen.large, 0);
    broken = gb_block_reduce<gb_most_of>(broken, 0) || (small && large);
    if (broken && threadIdx.x == 0) product_gradient_row(grad, x, dx, row_sums{ s, 1 }, row);
  }
}

static gb_status cumprod_backward(gb_cuda_call *call) {
  const gb_cuda_in_cumprod_backward *in = GB_CUDA_IN(call, cumprod_backward);
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, cumprod_backward)->dx;
  const gb_attr *dim = &GB_ATTRS(call, cumprod_backward)->dim;
  if (dx->numel == 0) return GB_OK;
  gb_rows x = along(in->x, dim);
  double *s = (double *)gb_cuda_scratch(call, (size_t)dx->numel * sizeof(double));
  if (!s) return GB_EMEMORY;
  if (x.length <= GB_SCAN_SHORT) {
    GB_LAUNCH(call->stream, product_gradient_short, gb_blocks(x.count, GB_THREADS), GB_THREADS, 0, along(in->grad, dim),
              x, along(dx, dim), s);
    return GB_OK;
  }
  GB_LAUNCH(call->stream, product_gradient, gb_blocks(x.count, 1), GB_SCAN_THREADS, 0, along(in->grad, dim), x,
            along(dx, dim), s);
  return GB_OK;
}

/* ====} */

/* {==== extremes ==== */

/* Scanned are places in the row, -1 for none, so that a fold looks at x. The last of equal ones; a NaN is taken over by
 * a later NaN only. */
template <typename N> struct extremes {
  typedef int64_t T;
  gb_rows x, values, indices;
  bool largest;
  struct place { int64_t from, to, indices; };
  static GB_DEVICE T nothing() { return -1; }
  static GB_DEVICE bool skips(int64_t) { return false; }
  GB_DEVICE place begin(int64_t row) const {
    return place{ gb_at(x.outer, row), gb_at(values.outer, row), gb_at(indices.outer, row) };
  }
  __device__ __forceinline__ T fold(const place &p, T a, T b) const {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    N best = gb_row_load<N>(x, p.from, a), v = gb_row_load<N>(x, p.from, b);
    return v != v || (best == best && (largest ? v >= best : v <= best)) ? b : a;
  }
  static GB_DEVICE T at(const place &, int64_t i) { return i; }
  GB_DEVICE void set(const place &p, int64_t i, T v) const {
    gb_row_store<N>(values, p.to, i, gb_row_load<N>(x, p.from, v));
    gb_row_store<int64_t>(indices, p.indices, i, v);
  }
  GB_DEVICE void hold(const place &, const gb_share &share, T *v) const {
    int64_t first = gb_four_at(share, 0);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = first + l < x.length ? first + l : -1;
  }
  GB_DEVICE void put(const place &p, const gb_share &share, const T *v) const {
    int64_t first = gb_four_at(share, 0);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++)
      if (first + l < x.length) set(p, first + l, v[l]);
  }
};

template <typename N> static gb_status find_extremes(gb_cuda_call *call, const gb_rows &x, const gb_rows &values,
                                                     const gb_rows &indices, bool largest) {
  extremes<N> f = { x, values, indices, largest };
  return gb_scan_run(call, f, x.count, x.length);
}

static gb_status running_extreme(gb_cuda_call *call, bool largest) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, cummax)->x;
  const gb_cuda_out_cummax *out = GB_CUDA_OUT(call, cummax);
  const gb_attr *dim = &GB_ATTRS(call, cummax)->dim;
  gb_rows from = along(x, dim), values = along(out->values, dim), indices = along(out->indices, dim);
  if (x->numel == 0) return GB_OK;
  return gb_is_float(x->dtype) ? find_extremes<double>(call, from, values, indices, largest)
      : find_extremes<int64_t>(call, from, values, indices, largest);
}

static gb_status cummax(gb_cuda_call *call) { return running_extreme(call, true); }
static gb_status cummin(gb_cuda_call *call) { return running_extreme(call, false); }

/* ====} */

/* {==== positions among sorted values ==== */

/* A thread to each value, in halves of the line that it belongs to. NaN counts as the largest, as in sort. */
template <typename T> __global__ void search_kernel(gb_rows line, gb_rows values, int64_t *to, bool right) {
  for (int64_t i = gb_thread<int64_t>(); i < values.count * values.length; i += gb_grid_size<int64_t>()) {
    int64_t row = i / values.length, start = gb_at(line.outer, line.count == 1 ? 0 : row), low = 0, high = line.length;
    T value = gb_row_load<T>(values, gb_at(values.outer, row), i % values.length);
    while (low < high) {
      int64_t middle = low + (high - low) / 2;
      T x = gb_row_load<T>(line, start, middle);
      bool before = value != value ? right || x == x : right ? x <= value : x < value;
      if (before) low = middle + 1;
      else high = middle;
    }
    to[i] = low;
  }
}

static gb_status search_rows(gb_cuda_call *call) {
  const gb_cuda_in_search_rows *in = GB_CUDA_IN(call, search_rows);
  const gb_cuda_tensor *out = GB_CUDA_OUT(call, search_rows)->indices;
  bool right = GB_ATTRS(call, search_rows)->right.integer != 0;
  if (out->numel == 0) return GB_OK;
  gb_rows line = gb_rows_of(in->x, 1u << (in->x->ndim - 1));
  gb_rows values = gb_rows_of(in->values, 1u << (in->values->ndim - 1));
  unsigned grid = gb_blocks(out->numel, GB_THREADS);
  int64_t *to = (int64_t *)(void *)out->data;
  if (gb_is_float(in->x->dtype) || gb_is_float(in->values->dtype)) {
    GB_LAUNCH(call->stream, search_kernel<double>, grid, GB_THREADS, 0, line, values, to, right);
  } else { GB_LAUNCH(call->stream, search_kernel<int64_t>, grid, GB_THREADS, 0, line, values, to, right); }
  return GB_OK;
}

/* ====} */

const gb_cuda_row gb_cuda_scan[] = {
  { GB_OP_cumprod, cumprod, false }, { GB_OP_cumprod_backward, cumprod_backward, false },
  { GB_OP_cummax, cummax, false }, { GB_OP_cummin, cummin, false }, { GB_OP_search_rows, search_rows, false },
  { GB_OP_COUNT, NULL, false },
};
