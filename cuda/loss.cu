/* cuda/loss.cu - cross_entropy and nll_loss, forward and backward.
 *
 * Forward reads a row of logits once: its largest element and the sum of exponentials come from one pass. Backward
 * reads it once more and writes the gradient. Losses of rows are kept apart and added up by one block, in an order that
 * depends on their number alone. A target may be ignored, smoothed and weighted; all of that is a mass per class: loss
 * = sum of mass * (lse - x), and its gradient is sum(mass) * softmax(x) - mass. A target that is no class is reported,
 * and does not count. */
#include <string.h>

#include "cuda/families.h"
#include "cuda/rows.cuh"

/* {==== what cross_entropy and nll_loss share ==== */

typedef enum loss_reduction { LOSS_NONE, LOSS_MEAN, LOSS_SUM } loss_reduction;

typedef struct loss_job {
  int op;
  gb_rows x, target, dx, grad, weight; /* target: class indices, one a row, or rows of probabilities; weight: one row,
                                          data NULL: none */
  bool indices;
  int64_t ignore, classes, rows;
  double smoothing;
  loss_reduction reduction;
  void *losses, *totals, *lse;         /* one a row in the compute dtype; totals: the weight of the row's target; lse
                                          NULL: not wanted */
  const void *total;                   /* backward: what a mean was divided by */
  gb_cuda_fault *fault;
} loss_job;

static loss_reduction reduction_of(const gb_attr &name) {
  return name.integer == GB_WORD_none ? LOSS_NONE : name.integer == GB_WORD_mean ? LOSS_MEAN : LOSS_SUM;
}

static uint32_t class_mask(const gb_cuda_tensor *x) { return x->ndim > 1 ? 2u : 1u; }

template <typename T> static GB_DEVICE T weight_of(const loss_job &job,
                                                   int64_t i) { return job.weight.data
                                                                ? gb_row_load<T>(job.weight, 0, i) : (T)1; }

/* The class of a row, or -1 where the row does not count: its target is ignored, or no class (which one thread of the
 * row reports). */
static __device__ int64_t class_of(const loss_job &job, int64_t row) {
  int64_t index = gb_load<int64_t>(job.target.data, job.target.dtype, gb_at(job.target.outer, row));
  if (index == job.ignore) return -1;
  if (index >= 0 && index < job.classes) return index;
  if (threadIdx.x == 0) gb_report(job.fault, GB_FAULT_INDEX, job.op, index, job.classes);
  return -1;
}

/* The gradient of one row's loss: its own, or the one there is, divided by the total for a mean. */
template <typename T> static GB_DEVICE T row_gradient(const loss_job &job, int64_t row) {
  if (job.reduction == LOSS_NONE) return gb_load<T>(job.grad.data, job.grad.dtype, gb_at(job.grad.outer, row));
  T grad = gb_load<T>(job.grad.data, job.grad.dtype, 0);
  return job.reduction == LOSS_MEAN ? grad / *(const T *)job.total : grad;
}

/* One block adds up the rows' losses and weights. */
template <typename T> __global__ void __launch_bounds__(gb_most_threads(0)) finish_loss(loss_job job, void *out,
    int out_dtype, void *total_out) {
  double loss = 0, total = 0;
  for (int64_t i = threadIdx.x; i < job.rows; i += blockDim.x) {
    loss += (double)((const T *)job.losses)[i];
    total += (double)((const T *)job.totals)[i];
    if (job.reduction == LOSS_NONE) gb_store<T>(out, out_dtype, i, ((const T *)job.losses)[i]);
  }
  loss = gb_row_sum(loss);
  total = gb_row_sum(total);
  if (threadIdx.x) return;
  if (total_out) *(T *)total_out = (T)total;
  if (job.reduction != LOSS_NONE) gb_store<T>(out, out_dtype, 0, (T)(job.reduction == LOSS_MEAN ? loss / total : loss));
}

/* Scratch for the rows' losses and weights. */
static gb_status take_losses(gb_cuda_call *call, loss_job *job, gb_dtype compute) {
  size_t bytes = (size_t)job->rows * gb_bytes_of(compute);
  job->losses = gb_cuda_scratch(call, 2 * bytes);
  job->totals = (char *)job->losses + bytes;
  return job->losses ? GB_OK : GB_EMEMORY;
}

/* out: the loss; total: receives what a mean was divided by, or NULL. */
template <typename T>
static void launch_finish(gb_cuda_call *call, const loss_job *job, const gb_cuda_tensor *out,
                          const gb_cuda_tensor *total) {
  int64_t threads = (job->rows + GB_WARP - 1) / GB_WARP * GB_WARP;
  threads = threads < GB_WARP ? GB_WARP : threads > 1024 ? 1024 : threads;
  GB_LAUNCH(call->stream, finish_loss<T>, 1, (unsigned)threads, 0, *job, out->data, out->dtype,
            total ? total->data : NULL);
}

static gb_rows row_or_none(const gb_cuda_tensor *t) {
  gb_rows none = {};
  return t ? gb_rows_of(t, (1u << t->ndim) - 1u) : none;
}

/* What every job says of x (or of its gradient), the target and the weights. */
static loss_job job_of(gb_cuda_call *call, const gb_cuda_tensor *x, const gb_cuda_tensor *target,
                       const gb_cuda_tensor *weight, int64_t ignore) {
  loss_job job = {};
  job.op = call->op;
  job.x = gb_rows_of(x, class_mask(x));
  job.rows = job.x.count;
  job.classes = job.x.length;
  job.indices = !gb_is_float(target->dtype);
  job.target = gb_rows_of(target, job.indices ? 0 : class_mask(x));
  job.weight = row_or_none(weight);
  job.ignore = ignore;
  job.fault = call->fault;
  return job;
}

/* ====} */

/* {==== cross_entropy ==== */

/* The mass of class i from its probability. */
template <typename T> static GB_DEVICE T mass_of(const loss_job &job, int64_t start, int64_t i) {
  T p = gb_row_load<T>(job.target, start, i);
  if (job.smoothing > 0) p = p * (T)(1 - job.smoothing) + (T)(job.smoothing / (double)job.classes);
  return p * weight_of<T>(job, i);
}

/* The sum of mass over the classes, and of mass * (x - most): for smoothing the mass of a class is its weight. */
template <typename T> static __device__ void mass_sums(const loss_job &job, int64_t x, int64_t target, T most, T *mass,
                                                       T *weighted) {
  T sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < job.classes; i += blockDim.x) {
    T m = job.indices ? weight_of<T>(job, i) : mass_of<T>(job, target, i);
    sum += m;
    dot += m * (gb_row_load<T>(job.x, x, i) - most);
  }
  *mass = gb_row_sum(sum);
  *weighted = gb_row_sum(dot);
}

static GB_DEVICE float log_of(float x) { return logf(x); }
static GB_DEVICE double log_of(double x) { return log(x); }

template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) cross_entropy_rows(loss_job job) {
  for (int64_t row = gb_first_row(); row < job.rows; row += gb_rows_at_once()) {
    int64_t index = job.indices ? class_of(job, row) : 0, x = gb_at(job.x.outer, row),
        target = job.indices ? 0 : gb_at(job.target.outer, row);
    T loss = 0, total = 0, lse = 0, mass, weighted;
    if (index >= 0) { /* the same for all threads of the row */
      gb_max_sum<T> s = { (T)-INFINITY, 0 };
      T held[GB_TILE];
      for (gb_share share = gb_share_of(job.x, x); gb_is_tile(share, job.classes); gb_next_tile(&share)) {
        gb_row_hold<T, GB_TILE>(job.x, x, share, held, (T)-INFINITY);
        gb_max_sum_add_all<T, GB_TILE>(&s, held);
      }
      s = gb_max_sum_join(s);
      T log_sum = log_of(s.sum);
      lse = s.max + log_sum;
      total = job.indices ? weight_of<T>(job, index) : (T)1;
      if (job.indices) loss = (T)(1 - job.smoothing) * total * (log_sum - (gb_row_load<T>(job.x, x, index) - s.max));
      if (!job.indices || job.smoothing > 0) {
        mass_sums<T>(job, x, target, s.max, &mass, &weighted);
        loss = job.indices ? loss + (T)(job.smoothing / (double)job.classes) * (mass * log_sum - weighted)
            : mass * log_sum - weighted;
      }
    }
    if (threadIdx.x == 0) {
      ((T *)job.losses)[row] = loss;
      ((T *)job.totals)[row] = total;
      if (job.lse) ((T *)job.lse)[row] = lse;
    }
  }
}

template <typename T> static void launch_forward(gb_cuda_call *call, const loss_job *job) {
  gb_row_shape s = gb_shape_tiles(job->rows, job->classes);
  GB_LAUNCH(call->stream, cross_entropy_rows<T>, s.grid, s.block, 0, *job);
  launch_finish<T>(call, job, GB_CUDA_OUT(call, cross_entropy)->loss, GB_CUDA_OUT(call, cross_entropy)->total);
}

static gb_status cross_entropy(gb_cuda_call *call) {
  const gb_cuda_in_cross_entropy *in = GB_CUDA_IN(call, cross_entropy);
  const gb_attrs_cross_entropy *attrs = GB_ATTRS(call, cross_entropy);
  const gb_cuda_tensor *lse = GB_CUDA_OUT(call, cross_entropy)->lse;
  gb_dtype compute = gb_compute_dtype(in->x->dtype, GB_FLOAT32);
  loss_job job = job_of(call, in->x, in->target, in->weight, attrs->ignore_index.integer);
  job.reduction = reduction_of(attrs->reduction);
  job.smoothing = attrs->label_smoothing.number;
  job.lse = lse ? lse->data : NULL;
  gb_status status = take_losses(call, &job, compute);
  if (status != GB_OK) return status;
  if (compute == GB_FLOAT64) launch_forward<double>(call, &job);
  else launch_forward<float>(call, &job);
  return GB_OK;
}

/* dx = g * (sum(mass) * exp(x - lse) - mass); rows that do not count get 0. */
template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) cross_entropy_backward_rows(loss_job job) {
  for (int64_t row = gb_first_row(); row < job.rows; row += gb_rows_at_once()) {
    int64_t index = job.indices ? class_of(job, row) : 0, x = gb_at(job.x.outer, row), to = gb_at(job.dx.outer, row);
    int64_t target = job.indices ? 0 : gb_at(job.target.outer, row);
    T g = row_gradient<T>(job, row), lse = ((const T *)job.lse)[row], each = (T)(job.smoothing / (double)job.classes),
        own = 0, mass = 0;
    T held[GB_TILE] = {};
    if (index < 0) {
      for (gb_share share = gb_share_of(job.dx, to); gb_is_tile(share, job.classes); gb_next_tile(&share))
        gb_row_put<T, GB_TILE>(job.dx, to, share, held);
      continue; /* all threads of the row do */
    }
    if (job.indices) own = (T)(1 - job.smoothing) * weight_of<T>(job, index);
    if (!job.indices || job.smoothing > 0) {
      for (int64_t i = threadIdx.x; i < job.classes; i += blockDim.x)
        mass += job.indices ? weight_of<T>(job, i) : mass_of<T>(job, target, i);
      mass = gb_row_sum(mass);
    }
    T factor = g * (job.indices ? own + each * mass : mass);
    for (gb_share share = gb_share_of(job.dx, to); gb_is_tile(share, job.classes); gb_next_tile(&share)) {
      gb_row_hold<T, GB_TILE>(job.x, x, share, held, (T)-INFINITY);
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) {
        int64_t i = gb_four_at(share, k / GB_LANES) + k % GB_LANES;
        T slope = gb_row_exp(held[k] - lse) * factor;
        if (job.indices && i == index) slope -= g * own;
        if ((!job.indices || job.smoothing > 0) && i >= 0 && i < job.classes)
          slope -= job.indices ? g * each * weight_of<T>(job, i) : g * mass_of<T>(job, target, i);
        held[k] = slope;
      }
      gb_row_put<T, GB_TILE>(job.dx, to, share, held);
    }
  }
}

template <typename T> static void launch_backward(gb_cuda_call *call, const loss_job *job) {
  gb_row_shape s = gb_shape_tiles(job->rows, job->classes);
  GB_LAUNCH(call->stream, cross_entropy_backward_rows<T>, s.grid, s.block, 0, *job);
}

static gb_status cross_entropy_backward(gb_cuda_call *call) {
  const gb_cuda_in_cross_entropy_backward *in = GB_CUDA_IN(call, cross_entropy_backward);
  const gb_attrs_cross_entropy_backward *attrs = GB_ATTRS(call, cross_entropy_backward);
  const gb_cuda_tensor *x = in->x;
  if (x->numel == 0) return GB_OK;
  loss_job job = job_of(call, x, in->target, in->weight, attrs->ignore_index.integer);
  job.dx = gb_rows_of(GB_CUDA_OUT(call, cross_entropy_backward)->dx, class_mask(x));
  job.grad = gb_rows_of(in->grad, 0);
  job.lse = in->lse->data;
  job.total = in->total->data;
  job.reduction = reduction_of(attrs->reduction);
  job.smoothing = attrs->label_smoothing.number;
  if (gb_compute_dtype(x->dtype, GB_FLOAT32) == GB_FLOAT64) launch_backward<double>(call, &job);
  else launch_backward<float>(call, &job);
  return GB_OK;
}

/* ====} */

/* {==== nll_loss ==== */

/* One thread to a row. */
template <typename T> __global__ void nll_rows(loss_job job) {
  for (int64_t row = gb_thread<int64_t>(); row < job.rows; row += gb_grid_size<int64_t>()) {
    int64_t index = gb_load<int64_t>(job.target.data, job.target.dtype, gb_at(job.target.outer, row));
    bool counted = index >= 0 && index < job.classes && index != job.ignore;
    if (!counted && index != job.ignore) gb_report(job.fault, GB_FAULT_INDEX, job.op, index, job.classes);
    T weight = counted ? weight_of<T>(job, index) : (T)0;
    ((T *)job.losses)[row] = counted ? -weight * gb_row_load<T>(job.x, gb_at(job.x.outer, row), index) : (T)0;
    ((T *)job.totals)[row] = weight;
  }
}

template <typename T> static void launch_nll(gb_cuda_call *call, const loss_job *job) {
  GB_LAUNCH(call->stream, nll_rows<T>, gb_blocks(job->rows, GB_THREADS), GB_THREADS, 0, *job);
  launch_finish<T>(call, job, GB_CUDA_OUT(call, nll_loss)->loss, GB_CUDA_OUT(call, nll_loss)->total);
}

static gb_status nll_loss(gb_cuda_call *call) {
  const gb_cuda_in_nll_loss *in = GB_CUDA_IN(call, nll_loss);
  const gb_attrs_nll_loss *attrs = GB_ATTRS(call, nll_loss);
  gb_dtype compute = gb_compute_dtype(in->x->dtype, GB_FLOAT32);
  loss_job job = job_of(call, in->x, in->target, in->weight, attrs->ignore_index.integer);
  job.reduction = reduction_of(attrs->reduction);
  gb_status status = take_losses(call, &job, compute);
  if (status != GB_OK) return status;
  if (compute == GB_FLOAT64) launch_nll<double>(call, &job);
  else launch_nll<float>(call, &job);
  return GB_OK;
}

/* -weight * g at the target's element, 0 elsewhere. */
template <typename T> __global__ void __launch_bounds__(GB_TILE_THREADS, 1) nll_backward_rows(loss_job job) {
  for (int64_t row = gb_first_row(); row < job.rows; row += gb_rows_at_once()) {
    int64_t index = class_of(job, row), to = gb_at(job.dx.outer, row);
    T slope = index < 0 ? (T)0 : -weight_of<T>(job, index) * row_gradient<T>(job, row);
    for (gb_share share = gb_share_of(job.dx, to); gb_is_tile(share, job.classes); gb_next_tile(&share)) {
      T held[GB_TILE];
      GB_UNROLL for (int k = 0; k < GB_TILE; k++) held[k] = gb_four_at(share, k / GB_LANES) + k % GB_LANES == index
          ? slope : (T)0;
      gb_row_put<T, GB_TILE>(job.dx, to, share, held);
    }
  }
}

template <typename T> static void launch_nll_backward(gb_cuda_call *call, const loss_job *job) {
  gb_row_shape s = gb_shape_tiles(job->rows, job->classes);
  GB_LAUNCH(call->stream, nll_backward_rows<T>, s.grid, s.block, 0, *job);
}

static gb_status nll_loss_backward(gb_cuda_call *call) {
  const gb_cuda_in_nll_loss_backward *in = GB_CUDA_IN(call, nll_loss_backward);
  const gb_attrs_nll_loss_backward *attrs = GB_ATTRS(call, nll_loss_backward);
  const gb_cuda_tensor *dx = GB_CUDA_OUT(call, nll_loss_backward)->dx;
  if (dx->numel == 0) return GB_OK;
  loss_job job = job_of(call, dx, in->target, in->weight, attrs->ignore_index.integer);
  job.dx = job.x;
  job.grad = gb_rows_of(in->grad, 0);
  job.total = in->total->data;
  job.reduction = reduction_of(attrs->reduction);
  if (in->total->dtype == GB_FLOAT64) launch_nll_backward<double>(call, &job);
  else launch_nll_backward<float>(call, &job);
  return GB_OK;
}

/* ====} */

const gb_cuda_row gb_cuda_loss[] = {
  { GB_OP_cross_entropy, cross_entropy, false }, { GB_OP_cross_entropy_backward, cross_entropy_backward, false },
      { GB_OP_nll_loss, nll_loss, false },
  { GB_OP_nll_loss_backward, nll_loss_backward, false }, { GB_OP_COUNT, NULL, false },
};
