/* cuda/norm.cu - layer_norm, rms_norm, add_layer_norm, batch_norm and their gradients.
 *
 * A row that fits in registers is read once and written once: its mean, then the sum of squares about it, then the
 * result. Gradients of weight and bias are kept by the threads that own the columns, in parts that a second kernel adds
 * up in order. Statistics of batch_norm are folds (fold.cuh): a mean per channel, then squares about it. rms_norm is
 * layer_norm with a mean of 0. Where x lies channels last the library is asked first (batch_norm.h); the running
 * statistics are ours all the same. Traffic: x and y forward, x, grad and dx backward; batch_norm reads its inputs
 * twice more. */
#include "cuda/batch_norm.h"
#include "cuda/elements.cuh"
#include "base/numerics.h"
#include "cuda/families.h"
#include "cuda/fold.cuh"

/* {==== layers: layer_norm, rms_norm, add_layer_norm ==== */

/* One norm: groups of elements that are normalised together are rows. */
typedef struct norm_job {
  gb_rows x, residual, sum, y;       /* residual and sum: of add_layer_norm */
  gb_rows normalised;                /* what is: x, or the sum. Chosen here, since a kernel that chooses copies all of
                                        this into local memory */
  gb_rows weight, bias;              /* one row; data NULL: none */
  bool adds, centre;                 /* x + residual comes first; the mean is taken off */
  double eps;
  void *mean, *rstd;                 /* one per row, in the compute dtype; NULL: not wanted, or (backward) 0 */
} norm_job;

static GB_DEVICE float root_of(float x) { return 1 / sqrtf(x); }
static GB_DEVICE double root_of(double x) { return 1 / sqrt(x); }

/* A parameter at position i, or `absent`. */
template <typename T> static GB_DEVICE T parameter(const gb_rows &p, int64_t i,
                                                   T absent) { return p.data ? gb_row_load<T>(p, 0, i) : absent; }

template <typename T> static GB_DEVICE void keep_statistics(const norm_job &job, int64_t row, T mean, T rstd) {
  if (threadIdx.x) return;
  if (job.mean) ((T *)job.mean)[row] = mean;
  if (job.rstd) ((T *)job.rstd)[row] = rstd;
}

/* This thread's share of a parameter, or `absent`. */
template <typename T, int PER, bool LANES> static GB_DEVICE void hold_parameter(const gb_rows &p, const gb_share &share,
    T *held, T absent) {
  if (p.data) {
    gb_row_hold<T, PER, LANES>(p, 0, share, held, (T)0);
    return;
  }
  GB_UNROLL for (int k = 0; k < PER; k++) held[k] = absent;
}

/* y of a share, from x; four elements of the parameters at a time, which all rows find in the cache. */
template <typename T, int PER, bool LANES> static GB_DEVICE void normalise(const norm_job &job, gb_share share, T mean,
                                                                           T rstd, T *held) {
  GB_UNROLL for (int c = 0; c < PER; c += GB_LANES) {
    T weight[GB_LANES], bias[GB_LANES];
    hold_parameter<T, GB_LANES, LANES>(job.weight, share, weight, (T)1);
    hold_parameter<T, GB_LANES, LANES>(job.bias, share, bias, (T)0);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) held[c + l] = (held[c + l] - mean) * rstd * weight[l] + bias[l];
    share.base += share.threads * GB_LANES;
  }
}

/* x, or x + residual as `sum` holds it, which is written. */
template <typename T, int PER, bool LANES> static GB_DEVICE void hold_input(const norm_job &job, int64_t row,
                                                                            const gb_share &share, T *held) {
  gb_row_hold<T, PER, LANES>(job.x, gb_at(job.x.outer, row), share, held, (T)0);
  if (!job.adds) return;
  T other[PER];
  gb_row_hold<T, PER, LANES>(job.residual, gb_at(job.residual.outer, row), share, other, (T)0);
  GB_UNROLL for (int k = 0; k < PER; k++) held[k] += other[k];
  if (gb_lane_bytes(job.sum.dtype)) {
    GB_UNROLL for (int k = 0; k < PER; k += GB_LANES) gb_lanes_unpack<T,
        GB_LANES>(gb_lanes_pack<T, GB_LANES>(held + k, job.sum.dtype), job.sum.dtype, held + k);
  }
  gb_row_put<T, PER, LANES>(job.sum, gb_at(job.sum.outer, row), share, held);
}

/* PER elements of a row in each thread. With 16 of them the compiler would spill to make room for a second block. */
template <int PER> __global__ void __launch_bounds__(gb_most_threads(PER), PER == 16) norm_held(norm_job job) {
  int64_t n = job.x.length;
  for (int64_t row = gb_first_row(); row < job.x.count; row += gb_rows_at_once()) {
    int64_t to = gb_at(job.y.outer, row);
    gb_share share = gb_share_of(job.y, to);
    float held[PER], mean = 0, squares = 0;
    hold_input<float, PER, true>(job, row, share, held);
    if (job.centre) {
      GB_UNROLL for (int k = 0; k < PER; k++) mean += held[k];
      mean = gb_row_sum(mean) / (float)n;
    }
    GB_UNROLL for (int k = 0; k < PER; k++)
      if (gb_is_held(share, n, k)) squares += (held[k] - mean) * (held[k] - mean);
    float rstd = root_of(gb_row_sum(squares) / (float)n + (float)job.eps);
    normalise<float, PER, true>(job, share, mean, rstd, held);
    gb_row_put<float, PER, true>(job.y, to, share, held);
    keep_statistics<float>(job, row, mean, rstd);
  }
}

/* Rows too long to hold, and those without lanes: read three times, all but the first from the cache where it has room
 * for the rows under way. */
template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) norm_long(norm_job job) {
  int64_t n = job.x.length;
  const gb_rows &from = job.normalised;
  for (int64_t row = gb_first_row(); row < job.x.count; row += gb_rows_at_once()) {
    int64_t at = gb_at(from.outer, row), to = gb_at(job.y.outer, row);
    T held[GB_TILE], mean = 0, squares = 0;
    for (gb_share share = gb_share_of(job.y, to); (job.centre || job.adds) &&
         gb_is_tile(share, n); gb_next_tile(&share)) {
      hold_input<T, GB_TILE, false>(job, row, share, held);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) mean += held[k];
    }
    mean = job.centre ? gb_row_sum(mean) / (T)n : (T)0;
    for (gb_share share = gb_share_of(job.y, to); gb_is_tile(share, n); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(from, at, share, held, mean);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) squares += (held[k] - mean) * (held[k] - mean);
    }
    T rstd = root_of(gb_row_sum(squares) / (T)n + (T)job.eps);
    for (gb_share share = gb_share_of(job.y, to); gb_is_tile(share, n); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(from, at, share, held, (T)0);
      normalise<T, GB_TILE, false>(job, share, mean, rstd, held);
      gb_row_put<T, GB_TILE>(job.y, to, share, held);
    }
    keep_statistics<T>(job, row, mean, rstd);
  }
}

static bool has_lanes_or_none(const gb_rows &r) { return !r.data || gb_has_lanes(r); }

template <typename T> static void launch_norm(gb_cuda_call *call, const norm_job *job) {
  bool lanes = sizeof(T) == 4 && gb_has_lanes(job->x) && gb_has_lanes(job->y) && has_lanes_or_none(job->residual) &&
      has_lanes_or_none(job->sum) &&
               has_lanes_or_none(job->weight) && has_lanes_or_none(job->bias);
  gb_row_shape s = gb_shape_held(job->y, lanes, 32);
  if (s.per == 4) GB_LAUNCH(call->stream, norm_held<4>, s.grid, s.block, 0, *job);
  else if (s.per == 16) GB_LAUNCH(call->stream, norm_held<16>, s.grid, s.block, 0, *job);
  else if (s.per == 32) GB_LAUNCH(call->stream, norm_held<32>, s.grid, s.block, 0, *job);
  else GB_LAUNCH(call->stream, norm_long<T>, s.grid, s.block, 0, *job);
}

/* The last dims of x, from dim `outer` on, as a mask. */
static uint32_t last_dims(const gb_cuda_tensor *x, int outer) { return ((1u << x->ndim) - 1u) & ~((1u << outer) - 1u); }

static gb_rows one_row(const gb_cuda_tensor *t) {
  gb_rows none = {};
  return t ? gb_rows_of(t, (1u << t->ndim) - 1u) : none;
}

static void *data_of(const gb_cuda_tensor *t) { return t ? t->data : NULL; }

/* What the three forward ops share of their arguments. */
static norm_job job_of(const gb_cuda_tensor *x, const gb_cuda_tensor *weight, const gb_cuda_tensor *y,
                       const gb_cuda_tensor *rstd, uint32_t mask, const gb_attr &eps) {
  norm_job job = {};
  job.x = job.normalised = gb_rows_of(x, mask);
  job.y = gb_rows_of(y, mask);
  job.weight = one_row(weight);
  job.rstd = data_of(rstd);
  job.eps = eps.number;
  return job;
}

static gb_status run_norm(gb_cuda_call *call, const norm_job *job) {
  if (job->y.count * job->y.length == 0) return GB_OK;
  gb_dtype compute = gb_compute_dtype((gb_dtype)job->normalised.dtype, (gb_dtype)job->y.dtype);
  if (compute == GB_FLOAT64) launch_norm<double>(call, job);
  else launch_norm<float>(call, job);
  return GB_OK;
}

static gb_status layer_norm(gb_cuda_call *call) {
  const gb_cuda_in_layer_norm *in = GB_CUDA_IN(call, layer_norm);
  const gb_attrs_layer_norm *attrs = GB_ATTRS(call, layer_norm);
  const gb_cuda_out_layer_norm *out = GB_CUDA_OUT(call, layer_norm);
  norm_job job = job_of(in->x, in->weight, out->y, out->rstd, last_dims(in->x, in->x->ndim - attrs->shape.count),
                        attrs->eps);
  job.centre = true;
  job.bias = one_row(in->bias);
  job.mean = data_of(out->mean);
  return run_norm(call, &job);
}

static gb_status rms_norm(gb_cuda_call *call) {
  const gb_cuda_in_rms_norm *in = GB_CUDA_IN(call, rms_norm);
  const gb_attrs_rms_norm *attrs = GB_ATTRS(call, rms_norm);
  const gb_cuda_out_rms_norm *out = GB_CUDA_OUT(call, rms_norm);
  norm_job job = job_of(in->x, in->weight, out->y, out->rstd, last_dims(in->x, in->x->ndim - attrs->shape.count),
                        attrs->eps);
  return run_norm(call, &job);
}

static gb_status add_layer_norm(gb_cuda_call *call) {
  const gb_cuda_in_add_layer_norm *in = GB_CUDA_IN(call, add_layer_norm);
  const gb_attrs_add_layer_norm *attrs = GB_ATTRS(call, add_layer_norm);
  const gb_cuda_out_add_layer_norm *out = GB_CUDA_OUT(call, add_layer_norm);
  uint32_t mask = last_dims(in->x, in->x->ndim - attrs->shape.count);
  norm_job job = job_of(in->x, in->weight, out->y, out->rstd, mask, attrs->eps);
  job.centre = job.adds = true;
  job.residual = gb_rows_of(in->residual, mask);
  job.sum = job.normalised = gb_rows_of(out->sum, mask);
  job.bias = one_row(in->bias);
  job.mean = data_of(out->mean);
  return run_norm(call, &job);
}

/* {---- their gradients ---- */

/* One gradient of a norm. parts: sums by column of grad * normal and of grad, 2 * n of each worker (a row of threads),
 * as rows of n. */
typedef struct norm_backward_job {
  gb_rows grad, x, dx, weight;
  gb_rows low;                       /* dx again, in 16 bits, row after row; data NULL: nobody asks for it */
  bool centre, add;                  /* add: to what dx holds */
  const void *mean, *rstd;
  gb_rows parts;                     /* data NULL: nobody asks for the gradients of parameters */
} norm_backward_job;

/* The two means of a row's gradient: of grad * weight, and of that times the normalised x. */
template <typename T> struct row_means { T plain, along; };

/* dx of one element. */
template <typename T> static GB_DEVICE T slope_of(T grad, T normal, T weight, T rstd, row_means<T> m) {
  return rstd * (grad * weight - m.plain - normal * m.along);
}

template <typename T> static __device__ row_means<T> means_of(T plain, T along, bool centre, int64_t n) {
  row_means<T> m;
  m.plain = centre ? gb_row_sum(plain) / (T)n : (T)0;
  m.along = gb_row_sum(along) / (T)n;
  return m;
}

/* A thread keeps the sums of the columns it owns: so all rows of a worker must begin alike, and a shift that differs is
 * not taken. */
static GB_DEVICE gb_share worker_share(const norm_backward_job &job) {
  bool alike = job.dx.outer.n == 0 || (job.dx.outer.n == 1 && job.dx.outer.step[0] % GB_LANES == 0);
  return gb_share{ alike ? -(int64_t)gb_row_shift(job.dx, 0) : 0, (int)threadIdx.x, (int)blockDim.x };
}

/* A share without its first k elements. */
static GB_DEVICE gb_share later(gb_share share, int k) {
  share.base += (int64_t)share.threads * k;
  return share;
}

/* What dx holds already, added to what is to go there, four elements at a time. */
template <typename T, int PER, bool LANES> static GB_DEVICE void add_before(const norm_backward_job &job, int64_t start,
    const gb_share &share, T *slope) {
  GB_UNROLL for (int k = 0; k < PER; k += GB_LANES) {
    T before[GB_LANES];
    gb_row_hold<T, GB_LANES, LANES>(job.dx, start, later(share, k), before, (T)0);
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) slope[k + l] += before[l];
  }
}

/* The row of dx at `start` again, rounded to 16 bits. */
template <int PER> static GB_DEVICE void put_low(const norm_backward_job &job, int64_t start, const gb_share &share,
                                                 const float *slope) {
  bool half = job.low.dtype == GB_FLOAT16;
  GB_UNROLL for (int c = 0; c < PER; c += GB_LANES) {
    int64_t at = gb_four_at(share, c / GB_LANES);
    gb_span span = gb_span_of(job.low, at);
    gb_bits bits = { { 0, 0, 0, 0 } };
    GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
      uint32_t lane = half ? gb_as<float>::half(slope[c + l]) : gb_as<float>::bfloat(slope[c + l]);
      bits.word[l / 2] |= lane << (l % 2 * 16);
    }
    gb_bits_put<uint16_t, GB_LANES>((uint16_t *)(void *)job.low.data + start + at, span.first, span.last, bits);
  }
}

template <int PER> __global__ void __launch_bounds__(gb_most_threads(PER),
                                                     1) norm_backward_held(norm_backward_job job) {
  int64_t n = job.x.length, worker = gb_first_row();
  gb_share share = worker_share(job);
  float dweight[PER] = {}, dbias[PER] = {};
  for (int64_t row = worker; row < job.x.count; row += gb_rows_at_once()) {
    /* before this row is waited for */
    gb_row_ask(job.grad, row + gb_rows_at_once(), share);
    gb_row_ask(job.x, row + gb_rows_at_once(), share);
    float grad[PER], normal[PER], weight[GB_LANES], plain = 0, along = 0,
        mean = job.mean ? ((const float *)job.mean)[row] : (float)0;
    float rstd = ((const float *)job.rstd)[row];
    gb_row_hold<float, PER, true>(job.grad, gb_at(job.grad.outer, row), share, grad, (float)0);
    gb_row_hold<float, PER, true>(job.x, gb_at(job.x.outer, row), share, normal, mean);
    GB_UNROLL for (int k = 0; k < PER; k++) {
      if (k % GB_LANES == 0) hold_parameter<float, GB_LANES, true>(job.weight, later(share, k), weight, (float)1);
      float weighted = grad[k] * weight[k % GB_LANES];
      normal[k] = (normal[k] - mean) * rstd;
      plain += weighted;
      along += weighted * normal[k];
      dweight[k] += grad[k] * normal[k];
      dbias[k] += grad[k];
    }
    row_means<float> m = means_of(plain, along, job.centre, n);
    GB_UNROLL for (int k = 0; k < PER; k++) {
      /* again: registers are short */
      if (k % GB_LANES == 0) hold_parameter<float, GB_LANES, true>(job.weight, later(share, k), weight, (float)1);
      grad[k] = slope_of(grad[k], normal[k], weight[k % GB_LANES], rstd, m);
    }
    if (job.add) add_before<float, PER, true>(job, gb_at(job.dx.outer, row), share, grad);
    gb_row_put<float, PER, true>(job.dx, gb_at(job.dx.outer, row), share, grad);
    if (job.low.data) put_low<PER>(job, row * n, share, grad);
  }
  if (!job.parts.data) return;
  gb_row_put<float, PER, true>(job.parts, worker * 2 * n, share, dweight);
  gb_row_put<float, PER, true>(job.parts, worker * 2 * n + n, share, dbias);
}

/* Rows too long to hold, and those without lanes: x and grad are read twice, and the columns' sums are kept in
 * memory. */
template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) norm_backward_long(norm_backward_job job) {
  int64_t n = job.x.length, worker = gb_first_row(), part = worker * 2 * n;
  for (int64_t row = worker; row < job.x.count; row += gb_rows_at_once()) {
    int64_t g = gb_at(job.grad.outer, row), x = gb_at(job.x.outer, row), dx = gb_at(job.dx.outer, row);
    T grad[GB_LANES], normal[GB_LANES], weight[GB_LANES], sum[GB_LANES], plain = 0, along = 0;
    T mean = job.mean ? ((const T *)job.mean)[row] : (T)0, rstd = ((const T *)job.rstd)[row];
    for (gb_share share = worker_share(job); gb_is_tile(share, n); share.base += share.threads * GB_LANES) {
      gb_row_hold<T, GB_LANES>(job.grad, g, share, grad, (T)0);
      gb_row_hold<T, GB_LANES>(job.x, x, share, normal, mean);
      hold_parameter<T, GB_LANES, false>(job.weight, share, weight, (T)1);
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
        plain += grad[l] * weight[l];
        along += grad[l] * weight[l] * ((normal[l] - mean) * rstd);
      }
    }
    row_means<T> m = means_of(plain, along, job.centre, n);
    for (gb_share share = worker_share(job); gb_is_tile(share, n); share.base += share.threads * GB_LANES) {
      gb_row_hold<T, GB_LANES>(job.grad, g, share, grad, (T)0);
      gb_row_hold<T, GB_LANES>(job.x, x, share, normal, mean);
      hold_parameter<T, GB_LANES, false>(job.weight, share, weight, (T)1);
      T slope[GB_LANES];
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) {
        normal[l] = (normal[l] - mean) * rstd;
        slope[l] = slope_of(grad[l], normal[l], weight[l], rstd, m);
      }
      if (job.add) add_before<T, GB_LANES, false>(job, dx, share, slope);
      gb_row_put<T, GB_LANES>(job.dx, dx, share, slope);
      if (job.low.data) gb_row_put<T, GB_LANES>(job.low, row * n, share, slope);
      for (int which = 0; job.parts.data && which < 2; which++) { /* a column belongs to one thread of the worker */
        if (row > worker) gb_row_hold<T, GB_LANES>(job.parts, part + which * n, share, sum, (T)0);
        GB_UNROLL for (int l = 0; l < GB_LANES; l++) sum[l] = (row > worker ? sum[l] : (T)0) +
            (which ? grad[l] : grad[l] * normal[l]);
        gb_row_put<T, GB_LANES>(job.parts, part + which * n, share, sum);
      }
    }
  }
}

/* Rows of threads that work at once, each with a part of its own: as many as fill a large device with what a thread of
 * theirs holds, since each costs 2 * n sums that are written and read. By the shape alone, so that the order of the
 * sums is. */
static int64_t workers_of(int64_t rows, int64_t n, const gb_row_shape *s) {
  int64_t most = ((int64_t)1 << 16) / s->block.x;
  if (s->per == 0 && most * n > (int64_t)1 << 22) most = ((int64_t)1 << 22) / n;
  if (most < 64) most = 64;
  return rows < most ? rows : most;
}

/* Launch the gradient of a norm; the sums of its workers are left in job->parts. */
template <typename T> static void launch_backward(gb_cuda_call *call, const norm_backward_job *job,
                                                  const gb_row_shape *s, int64_t workers) {
  dim3 grid((unsigned)workers), block(s->block.x);
  if (s->per == 4) GB_LAUNCH(call->stream, norm_backward_held<4>, grid, block, 0, *job);
  else if (s->per == 16) GB_LAUNCH(call->stream, norm_backward_held<16>, grid, block, 0, *job);
  else GB_LAUNCH(call->stream, norm_backward_long<T>, grid, block, 0, *job);
}

template <typename T> static GB_DEVICE void store_parameter(const gb_rows &to, int64_t i, T x) {
  if (to.data) gb_row_store<T>(to, 0, i, x);
}

enum { PART_LANES = 32 }; /* threads that share a column */

/* The sums of both parameters' columns: thread y of a column adds up every PART_LANES-th worker's, then the threads'
 * sums are joined in order. */
template <typename T> __global__ void __launch_bounds__(GB_WARP *PART_LANES) sum_parts(const T *parts, int64_t workers,
    int64_t n, gb_rows dweight, gb_rows dbias) {
  GB_SHARED(T, sums, [PART_LANES][GB_WARP + 1]);
  int64_t column = (int64_t)blockIdx.x * GB_WARP + threadIdx.x;
  T sum = 0;
  for (int64_t w = threadIdx.y; column < 2 * n && w < workers; w += PART_LANES) sum += parts[w * 2 * n + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= 2 * n) return;
  for (int k = 1; k < PART_LANES; k++) sum += sums[k][threadIdx.x];
  if (column < n) store_parameter(dweight, column, sum);
  else store_parameter(dbias, column - n, sum);
}

template <typename T> static void launch_parts(gb_cuda_call *call, const norm_backward_job *job, int64_t workers,
                                               gb_rows dweight, gb_rows dbias) {
  int64_t n = job->x.length;
  GB_LAUNCH(call->stream, sum_parts<T>, (unsigned)((2 * n + GB_WARP - 1) / GB_WARP), dim3(GB_WARP, PART_LANES), 0,
            (const T *)(const void *)job->parts.data,
            workers, n, dweight, dbias);
}

static gb_status zero(gb_cuda_call *call, const gb_cuda_tensor *t) {
  return t ? gb_cuda_clear(call, t->data, (size_t)t->numel * gb_bytes_of(t->dtype)) : GB_OK;
}

/* Of both; rms_norm has neither a mean nor a bias. */
static gb_status backward(gb_cuda_call *call, const gb_cuda_in_layer_norm_backward *in,
                          const gb_cuda_out_layer_norm_backward *out, bool centre, bool add) {
  const gb_cuda_tensor *grad = in->grad, *x = in->x, *rstd = in->rstd, *dweight = out->dweight, *dbias = out->dbias;
  uint32_t mask = last_dims(x, rstd->ndim);
  gb_dtype compute = gb_compute_dtype(x->dtype, grad->dtype);
  norm_backward_job job = {};
  if (x->numel == 0) {
    gb_status status = zero(call, dweight);
    return status == GB_OK ? zero(call, dbias) : status;
  }
  job.grad = gb_rows_of(grad, mask);
  job.x = gb_rows_of(x, mask);
  job.dx = gb_rows_of(out->dx, mask);
  if (out->low) job.low = gb_rows_of(out->low, mask);
  job.weight = one_row(in->weight);
  job.centre = centre;
  job.add = add;
  job.mean = data_of(in->mean);
  job.rstd = rstd->data;
  int64_t n = job.x.length;
  bool lanes = compute == GB_FLOAT32 && gb_has_lanes(job.grad) && gb_has_lanes(job.x) && gb_has_lanes(job.dx) &&
      has_lanes_or_none(job.weight);
  gb_row_shape s = gb_shape_held(job.dx, lanes, 16);
  int64_t workers = workers_of(job.x.count, n, &s);
  if (dweight || dbias) {
    void *parts = gb_cuda_scratch(call, (size_t)(workers * 2 * n) * gb_bytes_of(compute));
    if (!parts) return GB_EMEMORY;
    job.parts = gb_rows_over(parts, compute, 2 * workers, n);
  }
  if (compute == GB_FLOAT64) launch_backward<double>(call, &job, &s, workers);
  else launch_backward<float>(call, &job, &s, workers);
  if (!job.parts.data) return GB_OK;
  if (compute == GB_FLOAT64) launch_parts<double>(call, &job, workers, one_row(dweight), one_row(dbias));
  else launch_parts<float>(call, &job, workers, one_row(dweight), one_row(dbias));
  return GB_OK;
}

static gb_status layer_norm_backward(gb_cuda_call *call) {
  return backward(call, GB_CUDA_IN(call, layer_norm_backward), GB_CUDA_OUT(call, layer_norm_backward), true,
                  GB_ATTRS(call, layer_norm_backward)->add.integer);
}

static gb_status rms_norm_backward(gb_cuda_call *call) {
  const gb_cuda_in_rms_norm_backward *from = GB_CUDA_IN(call, rms_norm_backward);
  gb_cuda_in_layer_norm_backward in = {};
  gb_cuda_out_layer_norm_backward out = {};
  in.grad = from->grad, in.x = from->x, in.weight = from->weight, in.rstd = from->rstd;
  out.dx = GB_CUDA_OUT(call, rms_norm_backward)->dx, out.dweight = GB_CUDA_OUT(call, rms_norm_backward)->dweight;
  out.low = GB_CUDA_OUT(call, rms_norm_backward)->low;
  return backward(call, &in, &out, false, GB_ATTRS(call, rms_norm_backward)->add.integer);
}

/* ----} */
/* ====} */

/* {==== batch_norm ==== */

/* Per channel, in the compute type. */
typedef struct channels { void *mean, *rstd, *scale, *plain, *along; } channels;

/* Operands of a walk over all elements: the result, x, the channel, and what else is read: the residual, or (backward)
 * the gradient of the result. */
enum { PLACE_OUT, PLACE_X, PLACE_CHANNEL, PLACE_OTHER, PLACES };

/* x's elements in the order of the result's memory, with the number of each one's channel as a place. */
static gb_walk walk_channels(const gb_cuda_tensor *out, const gb_cuda_tensor *x, const gb_cuda_tensor *other) {
  gb_cuda_tensor channel = {};
  channel.ndim = x->ndim - 1;
  for (int d = 0; d < channel.ndim; d++) channel.shape[d] = 1;
  channel.shape[0] = x->shape[1];
  channel.stride[0] = 1;
  const gb_cuda_tensor *operands[PLACES] = { out, x, &channel, other };
  return gb_plan(operands, PLACES, false);
}

/* What comes behind the norm: a residual is added (data NULL: none), then what is less than `floor` becomes 0 (-inf:
 * nothing is). */
struct behind { char *residual; int dtype; float floor; };

/* y = (x - mean) * scale + bias, and what comes behind */
template <typename T> __global__ void apply_channels(gb_walk w, char *x, int x_dtype, char *y, int y_dtype, channels c,
                                                     gb_rows bias, behind b) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t at[PLACES];
    gb_seek<PLACES>(w, i, at);
    T apart = gb_load<T>(x, x_dtype, at[PLACE_X]) - ((const T *)c.mean)[at[PLACE_CHANNEL]];
    T made = apart * ((const T *)c.scale)[at[PLACE_CHANNEL]] + parameter<T>(bias, at[PLACE_CHANNEL], 0);
    if (b.residual) made += gb_load<T>(b.residual, b.dtype, at[PLACE_OTHER]);
    gb_store<T>(y, y_dtype, at[PLACE_OUT], made < (T)b.floor ? (T)0 : made);
  }
}

/* dx = scale * (grad - plain - (x - mean) * along) */
template <typename T>
__global__ void differentiate_channels(gb_walk w, char *x, int x_dtype, char *grad, int grad_dtype, char *dx,
                                       int dx_dtype, channels c) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t at[PLACES];
    gb_seek<PLACES>(w, i, at);
    int64_t k = at[PLACE_CHANNEL];
    T apart = gb_load<T>(x, x_dtype, at[PLACE_X]) - ((const T *)c.mean)[k],
        g = gb_load<T>(grad, grad_dtype, at[PLACE_OTHER]), along = ((const T *)c.along)[k];
    T back = along == 0 ? (T)0 : apart * along; /* in evaluation nothing flows back through the variance, not even from
                                                   an infinite x */
    gb_store<T>(dx, dx_dtype, at[PLACE_OUT], ((const T *)c.scale)[k] * (g - ((const T *)c.plain)[k] - back));
  }
}

/* What comes between the statistics and the elements, for all channels. */
typedef struct channel_job {
  channels c;
  gb_rows weight, bias, running_mean, running_var, mean_out, rstd_out; /* data NULL: none */
  int64_t n;                                                           /* channels */
  double count, eps, momentum;
  bool training, update;
} channel_job;

/* c.mean and c.rstd hold the batch's mean and variance (training), or nothing yet. One block: running statistics move
 * only if all of the batch's are finite, since a batch that overflowed must not leave its mark. */
template <typename T> __global__ void prepare_channels(channel_job job) {
  GB_SHARED(int, broken, [1]);
  T *mean = (T *)job.c.mean, *rstd = (T *)job.c.rstd, *scale = (T *)job.c.scale;
  if (threadIdx.x == 0) broken[0] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < job.n; i += blockDim.x) {
    if (!job.training) mean[i] = gb_row_load<T>(job.running_mean, 0, i),
        rstd[i] = gb_row_load<T>(job.running_var, 0, i);
    else if (!isfinite(mean[i]) || !isfinite(rstd[i])) broken[0] = 1; /* whoever writes it, it is 1 */
  }
  __syncthreads();
  bool update = job.update && !broken[0];
  for (int64_t i = threadIdx.x; i < job.n; i += blockDim.x) {
    if (update && job.running_mean.data) {
      double before = (double)gb_row_load<T>(job.running_mean, 0, i);
      gb_row_store<T>(job.running_mean, 0, i, (T)((1 - job.momentum) * before + job.momentum * (double)mean[i]));
    }
    if (update && job.running_var.data) {
      double before = (double)gb_row_load<T>(job.running_var, 0, i), unbiased = job.count / (job.count - 1);
      gb_row_store<T>(job.running_var, 0, i,
                      (T)((1 - job.momentum) * before + job.momentum * unbiased * (double)rstd[i]));
    }
    rstd[i] = (T)(1 / sqrt((double)rstd[i] + job.eps));
    scale[i] = rstd[i] * parameter<T>(job.weight, i, 1);
    if (job.mean_out.data) gb_row_store<T>(job.mean_out, 0, i, mean[i]);
    if (job.rstd_out.data) gb_row_store<T>(job.rstd_out, 0, i, rstd[i]);
  }
}

/* {---- by the library ---- */

/* What the library is asked with: statistics, where there are some, weights or 1, and biases or 0. */
static __global__ void load_parameters(channels c, gb_rows mean, gb_rows rstd, gb_rows weight, gb_rows bias,
                                       int64_t n) {
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    if (mean.data) ((float *)c.mean)[i] = gb_row_load<float>(mean, 0, i);
    if (rstd.data) ((float *)c.rstd)[i] = gb_row_load<float>(rstd, 0, i);
    ((float *)c.scale)[i] = parameter<float>(weight, i, 1);
    ((float *)c.plain)[i] = parameter<float>(bias, i, 0);
  }
}

/* 1 / sqrt(variance + eps) becomes the variance again: good to some ulp of variance + eps, which is all that is ever
 * made of it. */
static __global__ void find_variances(float *rstd, double eps, int64_t n) {
  for (int64_t i = gb_thread<int64_t>(); i < n; i += gb_grid_size<int64_t>()) {
    double variance = 1 / ((double)rstd[i] * (double)rstd[i]) - eps;
    rstd[i] = variance < 0 ? 0 : (float)variance;
  }
}

/* A tensor of the library's, or none. */
static bool fits_library(const gb_cuda_tensor *t, gb_dtype dtype) {
  return !t || ((gb_dtype)t->dtype == dtype && gb_cuda_is_channels_last(t));
}

/* Does the library have an engine for it? `other` is x again, or the gradient that comes in. */
static gb_status ask_library(gb_cuda_call *call, gb_batch_norm *b, const gb_cuda_tensor *x, const gb_cuda_tensor *other,
                             const gb_cuda_tensor *result,
                             bool *has) {
  *has = false;
  if (x->dtype == GB_FLOAT64 || other->dtype != x->dtype || result->dtype != x->dtype || x->numel == 0) return GB_OK;
  if (!gb_cuda_is_channels_last(x) || !gb_cuda_is_channels_last(other) || !gb_cuda_is_channels_last(result))
    return GB_OK;
  b->n = x->shape[0];
  b->c = x->shape[1];
  b->inner = x->numel / (b->n * b->c);
  b->dtype = x->dtype;
  b->x = x->data;
  b->grad = b->kind >= GB_BATCH_NORM_BACKWARD ? other->data : NULL;
  b->result = result->data;
  return gb_batch_norm_has(call, b, has);
}

/* The vectors that it works with. */
static void use_channels(gb_batch_norm *b, const channels *c) {
  b->mean = (float *)c->mean;
  b->rstd = (float *)c->rstd;
  b->scale = (float *)c->scale;
  b->bias = (float *)c->plain;
}

/* ----} */

/* Bytes of a number per channel, aligned for the library. */
static size_t channel_bytes(int64_t n, gb_dtype compute) {
  return ((size_t)n * gb_bytes_of(compute) + 255) / 256 * 256;
}

/* Scratch for five numbers per channel. */
static gb_status take_channels(gb_cuda_call *call, int64_t n, gb_dtype compute, channels *c) {
  size_t bytes = channel_bytes(n, compute);
  char *at = (char *)gb_cuda_scratch(call, 5 * bytes);
  if (!at) return GB_EMEMORY;
  c->mean = at;
  c->rstd = at + bytes;
  c->scale = at + 2 * bytes;
  c->plain = at + 3 * bytes;
  c->along = at + 4 * bytes;
  return GB_OK;
}

/* The fold of x over all dims but the channels'. */
static gb_fold over_channels(const gb_cuda_tensor *x, gb_dtype compute, gb_map_kind map, const void *center,
                             void *out) {
  gb_fold f = {};
  f.x = gb_rows_of(x, ((1u << x->ndim) - 1u) & ~2u);
  f.map = map;
  f.center = center;
  f.out = out;
  f.out_dtype = f.compute = compute;
  return f;
}

/* The mean of each channel, and its variance (divided by the number of elements). */
static gb_status moments(gb_cuda_call *call, const gb_cuda_tensor *x, gb_dtype compute, const channels *c) {
  gb_fold mean = over_channels(x, compute, GB_MAP_PLAIN, NULL, c->mean),
      spread = over_channels(x, compute, GB_MAP_CENTERED_SQUARE, c->mean, c->rstd);
  mean.finish = spread.finish = GB_FINISH_SCALED;
  mean.a = spread.a = (double)mean.x.length;
  gb_status status = gb_fold_run(call, &mean);
  return status == GB_OK ? gb_fold_run(call, &spread) : status;
}

/* By the library; in training what it finds becomes statistics as ours do. */
static gb_status run_library(gb_cuda_call *call, const channel_job *job, gb_batch_norm *b) {
  gb_rows none = {};
  unsigned blocks = gb_blocks(job->n, GB_THREADS);
  use_channels(b, &job->c);
  GB_LAUNCH(call->stream, load_parameters, blocks, GB_THREADS, 0, job->c, none, none, job->weight,
            one_row(GB_CUDA_IN(call, batch_norm)->bias), job->n);
  if (job->training) {
    gb_status status = gb_batch_norm_run(call, b);
    if (status != GB_OK) return status;
    GB_LAUNCH(call->stream, find_variances, blocks, GB_THREADS, 0, b->rstd, job->eps, job->n);
  }
  GB_LAUNCH(call->stream, prepare_channels<float>, 1, GB_THREADS, 0, *job);
  return job->training ? GB_OK : gb_batch_norm_run(call, b);
}

/* Statistics, then elements. */
static gb_status run_ours(gb_cuda_call *call, const channel_job *job, gb_dtype compute, bool relu) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, batch_norm)->x, *y = GB_CUDA_OUT(call, batch_norm)->y;
  const gb_cuda_tensor *residual = GB_CUDA_IN(call, batch_norm)->residual;
  gb_status status = job->training ? moments(call, x, compute, &job->c) : GB_OK;
  if (status != GB_OK) return status;
  gb_walk w = walk_channels(y, x, residual ? residual : y);
  behind b = { residual ? residual->data : NULL, residual ? (int)residual->dtype : 0,
               relu ? (float)gb_negative_below((gb_dtype)y->dtype) : -INFINITY };
  gb_rows bias = one_row(GB_CUDA_IN(call, batch_norm)->bias);
  if (compute == GB_FLOAT64) {
    GB_LAUNCH(call->stream, prepare_channels<double>, 1, GB_THREADS, 0, *job);
    GB_LAUNCH(call->stream, apply_channels<double>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, x->data, x->dtype,
              y->data, y->dtype, job->c, bias, b);
  } else {
    GB_LAUNCH(call->stream, prepare_channels<float>, 1, GB_THREADS, 0, *job);
    GB_LAUNCH(call->stream, apply_channels<float>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, x->data, x->dtype,
              y->data, y->dtype, job->c, bias, b);
  }
  return GB_OK;
}

/* Is it the library's? If so, *apart: but for a ReLU, which then runs behind it. A residual goes with a ReLU in the
 * library or not at all, so that the sum is rounded once. */
static gb_status ask_forward(gb_cuda_call *call, const channel_job *job, gb_batch_norm *b, bool relu, bool *has,
                             bool *apart) {
  const gb_cuda_in_batch_norm *in = GB_CUDA_IN(call, batch_norm);
  const gb_cuda_tensor *x = in->x, *y = GB_CUDA_OUT(call, batch_norm)->y;
  *has = *apart = false;
  if (in->residual && (!relu || !fits_library(in->residual, (gb_dtype)x->dtype))) return GB_OK;
  b->residual = data_of(in->residual);
  b->relu = relu;
  gb_status status = ask_library(call, b, x, x, y, has);
  if (status != GB_OK || !relu) return status;
  use_channels(b, &job->c);
  if (*has) *has = gb_batch_norm_may_rectify(call, b, 5 * channel_bytes(job->n, GB_FLOAT32));
  if (*has || in->residual) return GB_OK;
  b->relu = false;
  status = ask_library(call, b, x, x, y, has);
  *apart = *has;
  return status;
}

/* y becomes ReLU of y. */
static gb_status rectify(gb_cuda_call *call, const gb_cuda_tensor *y) {
  return gb_cuda_run_op(call, GB_OP_relu, &y, 1, y, NULL);
}

static gb_status batch_norm(gb_cuda_call *call) {
  const gb_cuda_in_batch_norm *in = GB_CUDA_IN(call, batch_norm);
  const gb_attrs_batch_norm *attrs = GB_ATTRS(call, batch_norm);
  const gb_cuda_out_batch_norm *out = GB_CUDA_OUT(call, batch_norm);
  const gb_cuda_tensor *x = in->x, *y = out->y;
  gb_dtype compute = gb_compute_dtype(x->dtype, y->dtype);
  channel_job job = {};
  job.n = x->shape[1];
  if (job.n == 0) return GB_OK;
  job.training = attrs->training.integer;
  job.momentum = attrs->momentum.number;
  job.eps = attrs->eps.number;
  job.count = (double)(x->numel / job.n);
  job.update = job.training && job.count >= 2 && !gb_cuda_recomputing(call);
  job.running_mean = one_row(in->running_mean);
  job.running_var = one_row(in->running_var);
  job.weight = one_row(in->weight);
  job.mean_out = one_row(out->mean);
  job.rstd_out = one_row(out->rstd);
  gb_batch_norm by_library = {};
  by_library.kind = job.training ? GB_BATCH_NORM_TRAINING : GB_BATCH_NORM_INFERENCE;
  by_library.eps = (float)job.eps;
  bool has = false, apart = false, relu = attrs->activation.integer == GB_WORD_relu;
  gb_status status = take_channels(call, job.n, compute, &job.c);
  if (status == GB_OK) status = ask_forward(call, &job, &by_library, relu, &has, &apart);
  if (status != GB_OK) return status;
  if (has) status = run_library(call, &job, &by_library);
  else status = run_ours(call, &job, compute, relu);
  if (status == GB_OK && apart) status = rectify(call, y);
  if (status != GB_OK || !job.update) return status;
  gb_cuda_changed(call, in->running_mean);
  gb_cuda_changed(call, in->running_var);
  return GB_OK;
}

/* One gradient of batch_norm: the vectors of forward and where the sums go. */
typedef struct channel_backward_job {
  /* plain and along hold the sums of grad and of grad * (x - mean) */
  channels c;
  gb_rows mean, rstd, weight, dweight, dbias;
  int64_t n;
  double count;
  bool training;
} channel_backward_job;

template <typename T> __global__ void load_means(channel_backward_job job) {
  for (int64_t i = gb_thread<int64_t>(); i < job.n; i += gb_grid_size<int64_t>())
    ((T *)job.c.mean)[i] = gb_row_load<T>(job.mean, 0, i);
}

/* dbias is the sum of grad, dweight that of grad * normal; with the batch's own statistics both also flow back through
 * mean and variance. */
template <typename T> __global__ void prepare_gradients(channel_backward_job job) {
  T *plain = (T *)job.c.plain, *along = (T *)job.c.along, *scale = (T *)job.c.scale;
  for (int64_t i = gb_thread<int64_t>(); i < job.n; i += gb_grid_size<int64_t>()) {
    double rstd = (double)gb_row_load<T>(job.rstd, 0, i), sum = (double)plain[i];
    double weighted = job.count > 0 ? (double)along[i] * rstd : 0; /* an empty batch has no deviation to divide by */
    if (job.dweight.data) gb_row_store<T>(job.dweight, 0, i, (T)weighted);
    gb_row_store<T>(job.dbias, 0, i, (T)sum);
    plain[i] = job.training ? (T)(sum / job.count) : (T)0;
    along[i] = job.training ? (T)(weighted * rstd / job.count) : (T)0;
    scale[i] = (T)rstd * parameter<T>(job.weight, i, 1);
  }
}

template <typename T> static void launch_load(gb_cuda_call *call, const channel_backward_job *job) {
  GB_LAUNCH(call->stream, load_means<T>, gb_blocks(job->n, GB_THREADS), GB_THREADS, 0, *job);
}

template <typename T> static void launch_gradients(gb_cuda_call *call, const channel_backward_job *job,
                                                   const gb_cuda_tensor *grad) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, batch_norm_backward)->x;
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, batch_norm_backward)->dx;
  gb_walk w = walk_channels(dx, x, grad);
  GB_LAUNCH(call->stream, prepare_gradients<T>, gb_blocks(job->n, GB_THREADS), GB_THREADS, 0, *job);
  GB_LAUNCH(call->stream, differentiate_channels<T>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, x->data,
            x->dtype, grad->data, grad->dtype,
            dx->data, dx->dtype, job->c);
}

/* By the library, which has the gradients of training only; sums that nobody asked for go where ours would go. It wants
 * dweight and dbias to begin at 16 bytes: they are whole tensors, or segments of a slab (GB_SLAB_ALIGNMENT). */
static gb_status differentiate_by_library(gb_cuda_call *call, const channel_backward_job *job, gb_batch_norm *b) {
  const gb_cuda_out_batch_norm_backward *out = GB_CUDA_OUT(call, batch_norm_backward);
  gb_rows none = {};
  use_channels(b, &job->c);
  b->dscale = (float *)(out->dweight ? (void *)out->dweight->data : job->c.along);
  b->dbias = (float *)(out->dbias ? (void *)out->dbias->data : job->c.plain);
  GB_LAUNCH(call->stream, load_parameters, gb_blocks(job->n, GB_THREADS), GB_THREADS, 0, job->c, job->mean, job->rstd,
            job->weight, none, job->n);
  return gb_batch_norm_run(call, b);
}

/* The same behind a ReLU, if it has that in one. */
static gb_status ask_through_relu(gb_cuda_call *call, const channel_backward_job *job, gb_batch_norm *b, bool *has) {
  const gb_cuda_in_batch_norm_backward *in = GB_CUDA_IN(call, batch_norm_backward);
  const gb_cuda_out_batch_norm_backward *out = GB_CUDA_OUT(call, batch_norm_backward);
  gb_dtype dtype = (gb_dtype)in->x->dtype;
  *has = false;
  if (!job->training || !fits_library(in->rectified, dtype) || !fits_library(in->more, dtype) ||
      !fits_library(out->masked, dtype)) return GB_OK;
  b->kind = GB_BATCH_NORM_THROUGH_RELU;
  b->more = data_of(in->more);
  b->rectified = in->rectified->data;
  b->masked = out->masked->data;
  return ask_library(call, b, in->x, in->grad, out->dx, has);
}

/* What goes into the ReLU, by itself: the sum of its gradients where it is positive. */
static gb_status go_through_relu(gb_cuda_call *call) {
  const gb_cuda_in_batch_norm_backward *in = GB_CUDA_IN(call, batch_norm_backward);
  const gb_cuda_tensor *masked = GB_CUDA_OUT(call, batch_norm_backward)->masked, *grad = in->grad;
  const gb_cuda_tensor *summands[] = { grad, in->more }, *operands[] = { in->more ? masked : grad, in->rectified };
  gb_attrs_add attrs = {};
  attrs.alpha.number = 1;
  gb_status status = in->more ? gb_cuda_run_op(call, GB_OP_add, summands, 2, masked, &attrs) : GB_OK;
  return status == GB_OK ? gb_cuda_run_op(call, GB_OP_relu_backward, operands, 2, masked, NULL) : status;
}

static gb_status batch_norm_backward(gb_cuda_call *call) {
  const gb_cuda_in_batch_norm_backward *in = GB_CUDA_IN(call, batch_norm_backward);
  const gb_cuda_out_batch_norm_backward *out = GB_CUDA_OUT(call, batch_norm_backward);
  const gb_cuda_tensor *grad = in->rectified ? out->masked : in->grad, *x = in->x;
  gb_dtype compute = gb_compute_dtype(x->dtype, grad->dtype);
  channel_backward_job job = {};
  job.n = x->shape[1];
  if (job.n == 0) return GB_OK;
  if (x->numel == 0) { /* an empty batch has no statistics, and its gradients are 0 */
    gb_status status = zero(call, out->dweight);
    return status == GB_OK ? zero(call, out->dbias) : status;
  }
  job.training = GB_ATTRS(call, batch_norm_backward)->training.integer;
  job.count = (double)(x->numel / job.n);
  job.weight = one_row(in->weight);
  job.mean = one_row(in->mean);
  job.rstd = one_row(in->rstd);
  job.dweight = one_row(out->dweight);
  job.dbias = one_row(out->dbias);
  gb_batch_norm by_library = {};
  by_library.kind = GB_BATCH_NORM_BACKWARD;
  bool has = false;
  gb_status status = take_channels(call, job.n, compute, &job.c);
  if (status == GB_OK && in->rectified) {
    status = ask_through_relu(call, &job, &by_library, &has);
    if (status != GB_OK) return status;
    if (has) return differentiate_by_library(call, &job, &by_library);
    by_library.kind = GB_BATCH_NORM_BACKWARD;
    by_library.more = by_library.rectified = by_library.masked = NULL;
    status = go_through_relu(call);
  }
  if (status == GB_OK && job.training) status = ask_library(call, &by_library, x, grad, out->dx, &has);
  if (status != GB_OK) return status;
  if (has) return differentiate_by_library(call, &job, &by_library);
  if (compute == GB_FLOAT64) launch_load<double>(call, &job);
  else launch_load<float>(call, &job);
  gb_fold plain = over_channels(grad, compute, GB_MAP_PLAIN, NULL, job.c.plain);
  gb_fold along = over_channels(x, compute, GB_MAP_TIMES_CENTERED, job.c.mean, job.c.along);
  along.other = gb_rows_of(grad, ((1u << x->ndim) - 1u) & ~2u);
  status = gb_fold_run(call, &plain);
  if (status == GB_OK) status = gb_fold_run(call, &along);
  if (status != GB_OK) return status;
  if (compute == GB_FLOAT64) launch_gradients<double>(call, &job, grad);
  else launch_gradients<float>(call, &job, grad);
  return GB_OK;
}

/* ====} */

const gb_cuda_row gb_cuda_norm[] = {
  { GB_OP_layer_norm, layer_norm, false }, { GB_OP_layer_norm_backward, layer_norm_backward, false },
      { GB_OP_rms_norm, rms_norm, false },
  { GB_OP_rms_norm_backward, rms_norm_backward, false }, { GB_OP_add_layer_norm, add_layer_norm, false },
      { GB_OP_batch_norm, batch_norm, false },
  { GB_OP_batch_norm_backward, batch_norm_backward, false }, { GB_OP_COUNT, NULL, false },
};
