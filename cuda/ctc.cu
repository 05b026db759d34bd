/* cuda/ctc.cu - ctc_loss (Graves et al. 2006), forward, and its derivative where backward wants one. cpu/ctc.c says
 * what alpha and beta are.
 *
 * A block has a sample, its threads the states of a step; a step waits for the one before it. All of it is float64, and
 * sums have one order. Lengths and labels are checked where they are read: a sample with a wrong one is reported, and
 * its loss is 0. */
#include "cuda/device.cuh"
#include "cuda/families.h"

typedef struct ctc_job {
  gb_cuda_tensor x, targets, input_lengths, target_lengths;
  void *slope;                   /* [steps, samples, classes]; NULL: not wanted */
  int slope_dtype;
  int64_t steps, samples, classes, blank,
      rows;                      /* rows of alpha that are kept: all of them for the derivative, else 2 */
  double *alpha, *beta, *losses; /* beta: [2, states] for each sample */
  bool zero_infinity, mean;
  int op;
  gb_cuda_fault *fault;
} ctc_job;

/* One sample, as every thread of its block sees it. */
typedef struct ctc_sample {
  int64_t n, steps, states, first; /* first: the place of its first label */
  double *alpha, *beta;
} ctc_sample;

/* log(exp(a) + exp(b) + exp(c)) */
static __device__ double log_add(double a, double b, double c) {
  double most = a > b ? a : b;
  if (c > most) most = c;
  return most == -(double)INFINITY ? most : most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

static __device__ int64_t length_at(const gb_cuda_tensor &lengths, int64_t n) {
  return gb_load<int64_t>(lengths.data, lengths.dtype, lengths.ndim ? n * lengths.stride[0] : 0);
}

/* The label of a state. */
static __device__ int64_t label_of(const ctc_job &job, const ctc_sample &q, int64_t s) {
  const gb_cuda_tensor &t = job.targets;
  if (s % 2 == 0) return job.blank;
  return gb_load<int64_t>(t.data, t.dtype, q.first + s / 2 * t.stride[t.ndim - 1]);
}

/* May an alignment go from state s - 2 to s? Not over a blank between two equal labels. */
static __device__ bool skips(const ctc_job &job, const ctc_sample &q, int64_t s) {
  return s % 2 == 1 && s > 1 && label_of(job, q, s) != label_of(job, q, s - 2);
}

/* The log-probability of a state's label. */
static __device__ double log_prob(const ctc_job &job, const ctc_sample &q, int64_t t, int64_t s) {
  const gb_cuda_tensor &x = job.x;
  int64_t sample = x.ndim == 3 ? q.n * x.stride[1] : 0;
  return gb_load<double>(x.data, x.dtype, t * x.stride[0] + sample + label_of(job, q, s) * x.stride[x.ndim - 1]);
}

static __device__ void store_slope(const ctc_job &job, const ctc_sample &q, int64_t t, int64_t c, double value) {
  gb_store<double>(job.slope, job.slope_dtype, (t * job.samples + q.n) * job.classes + c, value);
}

/* Report a length or a label that is none; one thread does. */
static __device__ bool refuse(const ctc_job &job, int kind, int64_t value, int64_t limit) {
  if (threadIdx.x == 0) gb_report(job.fault, kind, job.op, value, limit);
  return false;
}

/* Lengths, labels and room of sample n. false: one of them is wrong, for all threads alike. */
static __device__ bool read_sample(const ctc_job &job, int64_t n, ctc_sample *q) {
  const gb_cuda_tensor &t = job.targets;
  int64_t width = t.shape[t.ndim - 1], before = t.ndim == 2 ? n * width : 0, room = t.ndim == 2 ? width : 0;
  for (int64_t i = 0; t.ndim == 1 && i < n; i++) {
    int64_t length = length_at(job.target_lengths, i);
    if (length < 0 || length > width - before) return refuse(job, GB_FAULT_LENGTH, length, width - before);
    before += length;
  }
  if (t.ndim == 1) room = width - before;
  int64_t steps = length_at(job.input_lengths, n), length = length_at(job.target_lengths, n);
  if (steps < 0 || steps > job.steps) return refuse(job, GB_FAULT_LENGTH, steps, job.steps);
  if (length < 0 || length > room) return refuse(job, GB_FAULT_LENGTH, length, room);
  q->n = n, q->steps = steps, q->states = 2 * length + 1;
  q->first = t.ndim == 2 ? n * t.stride[0] : before * t.stride[0];
  q->alpha = job.alpha + job.rows * (2 * before + n);
  q->beta = job.beta + 2 * (2 * before + n);
  for (int64_t s = 1; s < q->states; s += 2) {
    int64_t label = label_of(job, *q, s);
    if (label < 0 || label >= job.classes) return refuse(job, GB_FAULT_INDEX, label, job.classes);
  }
  return true;
}

/* All alpha, in as many rows as are kept; minus the logarithm of the probability of the target. */
static __device__ double forward(const ctc_job &job, const ctc_sample &q) {
  const double none = -(double)INFINITY;
  for (int64_t t = 0; t < q.steps; t++) {
    double *to = q.alpha + t % job.rows * q.states;
    const double *from = t ? q.alpha + (t - 1) % job.rows * q.states : NULL;
    for (int64_t s = threadIdx.x; s < q.states; s += blockDim.x) {
      double sum = s < 2 ? 0 : none;
      if (from) sum = log_add(from[s], s > 0 ? from[s - 1] : none, skips(job, q, s) ? from[s - 2] : none);
      to[s] = sum + log_prob(job, q, t, s);
    }
    __syncthreads();
  }
  if (q.steps == 0) return q.states == 1 ? 0 : (double)INFINITY;
  const double *last = q.alpha + (q.steps - 1) % job.rows * q.states;
  return -log_add(last[q.states - 1], q.states > 1 ? last[q.states - 2] : none, none);
}

/* beta of a step, and in place of its alpha the probability of each state. */
static __device__ void backward_step(const ctc_job &job, const ctc_sample &q, int64_t t, double loss) {
  const double none = -(double)INFINITY, *from = q.beta + (t + 1) % 2 * q.states;
  double *to = q.beta + t % 2 * q.states, *alpha = q.alpha + t * q.states;
  bool last = t == q.steps - 1;
  for (int64_t s = threadIdx.x; s < q.states; s += blockDim.x) {
    double same = last ? s >= q.states - 2 ? 0 : none : from[s] + log_prob(job, q, t + 1, s);
    double next = last || s + 1 >= q.states ? none : from[s + 1] + log_prob(job, q, t + 1, s + 1);
    double skip =
        last || s + 2 >= q.states || !skips(job, q, s + 2) ? none : from[s + 2] + log_prob(job, q, t + 1, s + 2);
    to[s] = log_add(same, next, skip);
    alpha[s] = exp(alpha[s] + to[s] + loss);
  }
}

/* Minus the probability of each class of a step, times scale: the first state of a class adds up those of all its
 * states, in order. */
static __device__ void store_classes(const ctc_job &job, const ctc_sample &q, int64_t t, double scale) {
  const double *shares = q.alpha + t * q.states;
  for (int64_t s = threadIdx.x; s < q.states; s += blockDim.x) {
    int64_t label = label_of(job, q, s), earlier = 0;
    while (earlier < s && label_of(job, q, earlier) != label) earlier++;
    if (earlier < s) continue;
    double sum = 0;
    for (int64_t i = s; i < q.states; i++)
      if (label_of(job, q, i) == label) sum -= shares[i] * scale;
    store_slope(job, q, t, label, sum);
  }
}

static __global__ void __launch_bounds__(GB_THREADS) ctc_samples(ctc_job job) {
  for (int64_t n = blockIdx.x; n < job.samples; n += gridDim.x) {
    ctc_sample q = {};
    bool sound = read_sample(job, n, &q);
    q.n = n;
    double loss = sound ? forward(job, q) : 0;
    int64_t length = sound && q.states > 1 ? q.states / 2 : 1;
    double scale = job.mean ? 1 / (double)length / (double)job.samples : 1;
    bool impossible = loss == (double)INFINITY;
    if (threadIdx.x == 0) job.losses[n] = impossible && job.zero_infinity ? 0 : loss * scale;
    if (!job.slope) continue;
    for (int64_t i = threadIdx.x; i < job.steps * job.classes; i += blockDim.x)
      store_slope(job, q, i / job.classes, i % job.classes, 0);
    if (!sound || (impossible && job.zero_infinity)) continue;
    __syncthreads();
    for (int64_t t = q.steps - 1; t >= 0; t--) {
      backward_step(job, q, t, loss);
      __syncthreads();
      store_classes(job, q, t, scale);
    }
  }
}

/* The losses of samples, or their sum in order. */
static __global__ void ctc_finish(ctc_job job, void *out, int dtype, bool each) {
  double sum = job.mean && job.samples == 0 ? (double)NAN : 0;
  for (int64_t n = 0; n < job.samples; n++) {
    sum += job.losses[n];
    if (each) gb_store<double>(out, dtype, n, job.losses[n]);
  }
  if (!each) gb_store<double>(out, dtype, 0, sum);
}

static gb_status ctc_loss(gb_cuda_call *call) {
  const gb_cuda_in_ctc_loss *in = GB_CUDA_IN(call, ctc_loss);
  const gb_cuda_out_ctc_loss *out = GB_CUDA_OUT(call, ctc_loss);
  const gb_attrs_ctc_loss *attrs = GB_ATTRS(call, ctc_loss);
  const gb_cuda_tensor *x = in->log_probs;
  ctc_job job = {};
  job.x = *x, job.targets = *in->targets, job.input_lengths = *in->input_lengths,
  job.target_lengths = *in->target_lengths;
  job.slope = out->slope ? out->slope->data : NULL;
  job.slope_dtype = out->slope ? out->slope->dtype : 0;
  job.steps = x->shape[0], job.samples = x->ndim == 3 ? x->shape[1] : 1, job.classes = x->shape[x->ndim - 1];
  job.blank = attrs->blank.integer;
  job.rows = job.slope ? job.steps : 2;
  job.zero_infinity = attrs->zero_infinity.integer, job.mean = attrs->reduction.integer == GB_WORD_mean;
  job.op = call->op, job.fault = call->fault;
  int64_t states = 2 * in->targets->numel + job.samples;
  double *room = (double *)gb_cuda_scratch(call, (size_t)((job.rows + 2) * states + job.samples + 1) * sizeof(double));
  if (!room) return GB_EMEMORY;
  job.alpha = room;
  job.beta = room + job.rows * states;
  job.losses = job.beta + 2 * states;
  GB_LAUNCH(call->stream, ctc_samples, gb_blocks(job.samples, 1), GB_THREADS, 0, job);
  bool each = attrs->reduction.integer == GB_WORD_none;
  GB_LAUNCH(call->stream, ctc_finish, 1, 1, 0, job, out->loss->data, out->loss->dtype, each);
  return GB_OK;
}

const gb_cuda_row gb_cuda_ctc[] = { { GB_OP_ctc_loss, ctc_loss, false }, { GB_OP_COUNT, NULL, false } };
