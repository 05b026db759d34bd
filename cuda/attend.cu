/* cuda/attend.cu - what happens to scores between the products of attend.c. A block, or a warp, works on a row of
 * scores. */
#include "cuda/attend.h"
#include "cuda/rows.cuh"

static GB_DEVICE float log_of(float x) { return logf(x); }
static GB_DEVICE double log_of(double x) { return log(x); }

/* How many keys the row may look at. */
static GB_DEVICE int64_t visible(const gb_scores &s, int64_t row) {
  int64_t seen = s.first_row + row % s.rows + 1;
  return s.causal && seen < s.tk ? seen : s.tk;
}

/* Is a key too far from the row's query? */
static GB_DEVICE bool is_far(const gb_scores &s, int64_t row, int64_t j) {
  int64_t i = s.first_row + row % s.rows;
  return s.window && (j > i ? j - i : i - j) >= s.window;
}

/* The score of a key: + mask, or -infinity where the mask or the window says no. */
template <typename T> static GB_DEVICE T score(const gb_scores &s, int64_t row, int64_t j) {
  T x = ((const T *)s.scores)[row * s.tk + j];
  if (is_far(s, row, j)) return (T)-INFINITY;
  if (!s.mask) return x;
  int64_t at = row / s.rows * s.mask_stride[0] + row % s.rows * s.mask_stride[1] + j * s.mask_stride[2];
  if (s.mask_dtype == GB_BOOL) return s.mask[at] ? x : (T)-INFINITY;
  return x + gb_load<T>(s.mask, s.mask_dtype, at);
}

/* Is an element kept? Random numbers belong to the element of [batch, heads, tq, tk], as on the CPU. */
static GB_DEVICE bool is_kept(const gb_scores &s, int64_t row, int64_t j) {
  if (!(s.dropout > 0)) return true;
  uint64_t element = ((uint64_t)(s.first_head + row / s.rows) * (uint64_t)s.tq +
                      (uint64_t)(s.first_row + row % s.rows)) * (uint64_t)s.tk + (uint64_t)j;
  return !gb_is_dropped(gb_random_word(s.place, element), gb_drop_bound(s.dropout));
}

/* What the elements that are kept are multiplied by. */
static GB_DEVICE double keep_factor(const gb_scores &s) { return s.dropout < 1 ? 1 / (1 - s.dropout) : 0; }

static GB_DEVICE int64_t lse_at(const gb_scores &s, int64_t row) { return (s.first_head + row / s.rows) * s.tq +
                                                                   s.first_row + row % s.rows; }

/* A query that saw nothing gives 0, and an lse that makes its probabilities 0 in backward. */
template <typename T> static __global__ void __launch_bounds__(gb_most_threads(0)) soften_kernel(gb_scores s,
    void *out) {
  for (int64_t row = gb_first_row(); row < s.heads * s.rows; row += gb_rows_at_once()) {
    int64_t seen = visible(s, row);
    gb_max_sum<T> sum = { (T)-INFINITY, 0 };
    float any = 0; /* NaN counts as something seen */
    for (int64_t j = threadIdx.x; j < seen; j += blockDim.x) {
      T x = score<T>(s, row, j);
      if (x != (T)-INFINITY) any = 1;
      gb_max_sum_add(&sum, x);
    }
    sum = gb_max_sum_join(sum);
    bool empty = gb_row_largest(any) == 0;
    for (int64_t j = threadIdx.x; j < s.tk; j += blockDim.x) {
      bool counts = j < seen && !empty && is_kept(s, row, j);
      gb_store<T>(out, s.rounded, row * s.tk + j, counts ? gb_row_exp(score<T>(s, row, j) - sum.max) : (T)0);
    }
    if (threadIdx.x == 0) ((T *)s.total)[row] = empty ? (T)1 : sum.sum;
    if (threadIdx.x == 0 && s.lse) ((T *)s.lse)[lse_at(s, row)] = empty ? (T)INFINITY : sum.max + log_of(sum.sum);
    __syncwarp();
  }
}

/* Element by element: out may lie where the scores do not. */
template <typename T> static __global__ void soften_backward_kernel(gb_scores s, void *out, void *gradients_out) {
  for (int64_t i = gb_thread<int64_t>(); i < s.heads * s.rows * s.tk; i += gb_grid_size<int64_t>()) {
    int64_t row = i / s.tk, j = i % s.tk;
    T share = j < visible(s, row) ? gb_row_exp(score<T>(s, row, j) - ((const T *)s.lse)[lse_at(s, row)]) : (T)0;
    T keep = is_kept(s, row, j) ? (T)keep_factor(s) : (T)0;
    T gradient = share == 0 ? (T)0
        : share * (((const T *)s.gradients)[i] * keep - ((const T *)s.shift)[lse_at(s, row)]);
    if (s.slopes) ((T *)s.slopes)[lse_at(s, row) * s.tk + j] = gradient;
    gb_store<T>(out, s.rounded, i, share * keep);
    gb_store<T>(gradients_out, s.rounded, i, gradient);
  }
}

typedef struct strides3 { int64_t by[3]; } strides3;

template <typename T> static __global__ void divide_kernel(gb_scores s, const T *sums, int64_t n, void *y, int dtype,
                                                           strides3 stride) {
  for (int64_t i = gb_thread<int64_t>(); i < s.heads * s.rows * n; i += gb_grid_size<int64_t>()) {
    int64_t row = i / n, to = row / s.rows * stride.by[0] + row % s.rows * stride.by[1] + i % n * stride.by[2];
    gb_store<T>(y, dtype, to, sums[i] * ((T)keep_factor(s) / ((const T *)s.total)[row]));
  }
}

template <typename T>
static __global__ void __launch_bounds__(gb_most_threads(0)) shift_kernel(gb_heads_view grad, gb_heads_view y,
                                                                          int64_t rows, int64_t heads, int64_t tq,
                                                                          int64_t n, T *shift) {
  for (int64_t row = gb_first_row(); row < rows; row += gb_rows_at_once()) {
    int64_t b = row / tq / heads, head = row / tq % heads, i = row % tq;
    int64_t from = b * grad.stride[0] + head * grad.stride[1] + i * grad.stride[2],
        at = b * y.stride[0] + head * y.stride[1] + i * y.stride[2];
    T sum = 0;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
      sum += gb_load<T>(grad.data, grad.dtype, from + j * grad.stride[3]) *
          gb_load<T>(y.data, y.dtype, at + j * y.stride[3]);
    sum = gb_row_sum(sum);
    if (threadIdx.x == 0) shift[row] = sum;
    __syncwarp();
  }
}

/* Eight threads to a row, each with 16 bytes of it at a time, and what they found added in halves. Both tensors have
 * this dtype and rows that begin and end at multiples of 16 bytes. Traffic: both once in, 4 bytes a row out. */
enum { SHIFT_LANES = 8 };
template <int DTYPE>
static __global__ void __launch_bounds__(GB_THREADS) shift_lanes_kernel(gb_heads_view grad, gb_heads_view y,
                                                                        uint32_t rows, uint32_t heads, uint32_t tq,
                                                                        int n, float *shift) {
  const int each = DTYPE == GB_FLOAT32 ? 4 : 8, bytes = 16 / each;
  const uint32_t at_once = GB_THREADS / SHIFT_LANES, lane = threadIdx.x % SHIFT_LANES;
  for (uint32_t first = blockIdx.x * at_once; first < rows; first += gridDim.x * at_once) {
    /* beyond the last row threads look at that again, since all of a warp take part in its sums */
    const uint32_t own = first + threadIdx.x / SHIFT_LANES, row = own < rows ? own : rows - 1;
    const uint32_t line = row / tq, i = row - line * tq, b = line / heads, head = line - b * heads;
    const char *from = grad.data + (b * grad.stride[0] + head * grad.stride[1] + i * grad.stride[2]) * bytes;
    const char *at = y.data + (b * y.stride[0] + head * y.stride[1] + i * y.stride[2]) * bytes;
    float sum = 0;
    for (int c = (int)lane * each; c < n; c += SHIFT_LANES * each) {
      const gb_words<4> words[2] = { *(const gb_words<4> *)(const void *)(from + c * bytes),
                                     *(const gb_words<4> *)(const void *)(at + c * bytes) };
      float value[2][each];
      GB_UNROLL for (int k = 0; k < 2; k++) {
        const gb_bits bits = { { words[k].word[0], words[k].word[1], words[k].word[2], words[k].word[3] } };
        gb_lanes_unpack<float, each>(bits, DTYPE, value[k]);
      }
      GB_UNROLL for (int k = 0; k < each; k++) sum += value[0][k] * value[1][k];
    }
    for (int by = SHIFT_LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(GB_ALL_LANES, sum, by);
    if (lane == 0 && own < rows) shift[own] = sum;
  }
}

extern "C" void gb_scores_soften(gb_cuda_call *call, const gb_scores *s, void *out) {
  gb_row_shape shape = gb_shape_rows(s->heads * s->rows, s->tk);
  if (s->lane == GB_FLOAT64) GB_LAUNCH(call->stream, soften_kernel<double>, shape.grid, shape.block, 0, *s, out);
  else GB_LAUNCH(call->stream, soften_kernel<float>, shape.grid, shape.block, 0, *s, out);
}

extern "C" void gb_scores_divide(gb_cuda_call *call, const gb_scores *s, const void *sums, int64_t n, void *y,
                                 gb_dtype dtype, const int64_t *stride) {
  unsigned blocks = gb_blocks(s->heads * s->rows * n, GB_THREADS);
  strides3 by = { { stride[0], stride[1], stride[2] } };
  if (s->lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, divide_kernel<double>, blocks, GB_THREADS, 0, *s, (const double *)sums, n, y, (int)dtype,
              by);
  else GB_LAUNCH(call->stream, divide_kernel<float>, blocks, GB_THREADS, 0, *s, (const float *)sums, n, y, (int)dtype,
                 by);
}

extern "C" void gb_scores_soften_backward(gb_cuda_call *call, const gb_scores *s, void *out, void *gradients_out) {
  unsigned blocks = gb_blocks(s->heads * s->rows * s->tk, GB_THREADS);
  if (s->lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, soften_backward_kernel<double>, blocks, GB_THREADS, 0, *s, out, gradients_out);
  else GB_LAUNCH(call->stream, soften_backward_kernel<float>, blocks, GB_THREADS, 0, *s, out, gradients_out);
}

template <int DTYPE> static void launch_shift_lanes(gb_cuda_call *call, const gb_heads_view *grad,
                                                    const gb_heads_view *y, int64_t rows, int64_t heads, int64_t tq,
                                                    int64_t n, void *shift) {
  GB_LAUNCH(call->stream, shift_lanes_kernel<DTYPE>, gb_blocks(rows, GB_THREADS / SHIFT_LANES), GB_THREADS, 0, *grad,
            *y, (uint32_t)rows, (uint32_t)heads, (uint32_t)tq, (int)n, (float *)shift);
}

extern "C" void gb_attend_shift(gb_cuda_call *call, gb_dtype lane, const gb_heads_view *grad, const gb_heads_view *y,
                                int64_t rows, int64_t heads, int64_t tq,
                                int64_t n, void *shift) {
  gb_row_shape shape = gb_shape_rows(rows, n);
  const bool lanes = grad->aligned && y->aligned && grad->dtype == y->dtype && rows <= INT32_MAX && n <= INT32_MAX / 2;
  if (lanes && lane == GB_FLOAT32) {
    (y->dtype == GB_FLOAT32 ? launch_shift_lanes<GB_FLOAT32> : y->dtype == GB_BFLOAT16
         ? launch_shift_lanes<GB_BFLOAT16> : launch_shift_lanes<GB_FLOAT16>)(call, grad, y, rows, heads, tq, n, shift);
    return;
  }
  if (lane == GB_FLOAT64)
    GB_LAUNCH(call->stream, shift_kernel<double>, shape.grid, shape.block, 0, *grad, *y, rows, heads, tq, n,
              (double *)shift);
  else GB_LAUNCH(call->stream, shift_kernel<float>, shape.grid, shape.block, 0, *grad, *y, rows, heads, tq, n,
                 (float *)shift);
}
