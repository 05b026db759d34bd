/* cpu/ctc.c - ctc_loss (Graves et al. 2006), forward, and its derivative where backward wants one.
 *
 * A target of S labels has 2 S + 1 states: its labels, and a blank before, between and behind them. alpha[t][s] is the
 * logarithm of the probability of all beginnings that are at state s after step t, beta[t][s] that of all ends from
 * there. The derivative with respect to log_probs[t][c] is minus the probability of being at c at step t. All of it is
 * float64. A sample is a chunk of work: steps * (classes + 6 exponentials a state), twice with the derivative. */
#include <math.h>

#include "cpu/scratch.h"

/* What a call says, and room. */
typedef struct ctc_job {
  const gb_tensor *x, *targets;  /* log_probs, and the labels */
  gb_tensor *slope;              /* NULL: not wanted */
  int64_t steps, samples, classes, blank;
  int64_t *input_lengths, *target_lengths,
      *first;                    /* by sample; first: the place of a target's first label in `targets` */
  int64_t states;                /* of the longest target */
  double *losses;
  bool zero_infinity, mean;
  gb_scratch scratch;            /* rooms for a sample */
  gb_bad_index bad;
} ctc_job;

/* One sample. */
typedef struct ctc_sample {
  int64_t n, steps, states;
  int64_t *label;                /* of each state */
  double *alpha, *beta;          /* [steps or 2, states], [2, states] */
  double *probs;                 /* log-probabilities of the states' labels in a step */
  double *sums;                  /* [classes]: the derivative of a step; 0 between steps */
} ctc_sample;

/* log(exp(a) + exp(b) + exp(c)) */
static double log_add(double a, double b, double c) {
  double most = a > b ? a : b;
  if (c > most) most = c;
  return most == -(double)INFINITY ? most : most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

/* May an alignment go from state s - 2 to s? Not over a blank between two equal labels. */
static bool skips(const ctc_sample *q, int64_t s) { return s % 2 == 1 && s > 1 && q->label[s] != q->label[s - 2]; }

/* The log-probabilities of a step. */
static void load_step(const ctc_job *job, const ctc_sample *q, int64_t t) {
  const gb_tensor *x = job->x;
  int64_t bytes = (int64_t)gb_dtype_bytes((gb_dtype)x->dtype), along = x->stride[x->ndim - 1];
  int64_t at = t * x->stride[0] + (x->ndim == 3 ? q->n * x->stride[1] : 0);
  for (int64_t s = 0; s < q->states; s++)
    gb_load_f64(&q->probs[s], gb_data(x) + (at + q->label[s] * along) * bytes, (gb_dtype)x->dtype, 1, 1);
}

/* The derivative of a step, which is 0 but for the classes of the target. */
static void store_step(const ctc_job *job, const ctc_sample *q, int64_t t) {
  int64_t at = (t * job->samples + q->n) * job->classes;
  gb_dtype dtype = (gb_dtype)job->slope->dtype;
  char *to = gb_data(job->slope) + (size_t)at * gb_dtype_bytes(dtype);
  for (int64_t s = 0; s < q->states; s++)
    gb_store_f64(to + (size_t)q->label[s] * gb_dtype_bytes(dtype), dtype, 1, &q->sums[q->label[s]], 1);
  for (int64_t s = 0; s < q->states; s++) q->sums[q->label[s]] = 0;
}

/* The labels of the states. false: one of them is no class. */
static bool read_labels(ctc_job *job, ctc_sample *q) {
  const gb_tensor *targets = job->targets;
  int64_t stride = targets->stride[targets->ndim - 1], bytes = (int64_t)gb_dtype_bytes((gb_dtype)targets->dtype);
  int64_t first = targets->ndim == 2 ? q->n * targets->stride[0] : job->first[q->n] * stride;
  for (int64_t s = 0; s < q->states; s++) {
    q->label[s] = job->blank;
    if (s % 2 == 0) continue;
    gb_load_i64(&q->label[s], gb_data(targets) + (first + s / 2 * stride) * bytes, (gb_dtype)targets->dtype, 1, 1);
    if (q->label[s] >= 0 && q->label[s] < job->classes) continue;
    gb_bad_index_report(&job->bad, q->label[s], job->classes);
    return false;
  }
  return true;
}

/* All alpha, in as many rows as are kept. Returns minus the logarithm of the probability of the target. */
static double forward(const ctc_job *job, ctc_sample *q) {
  const double none = -(double)INFINITY;
  int64_t rows = job->slope ? q->steps : 2, states = q->states;
  for (int64_t t = 0; t < q->steps; t++) {
    if (gb_work(16 * states)) return 0;
    double *to = q->alpha + t % rows * states;
    const double *from = t ? q->alpha + (t - 1) % rows * states : NULL;
    load_step(job, q, t);
    for (int64_t s = 0; s < states; s++) {
      double sum = s < 2 ? 0 : none;
      if (from) sum = log_add(from[s], s > 0 ? from[s - 1] : none, skips(q, s) ? from[s - 2] : none);
      to[s] = sum + q->probs[s];
    }
  }
  if (q->steps == 0) return states == 1 ? 0 : (double)INFINITY;
  const double *last = q->alpha + (q->steps - 1) % rows * states;
  return -log_add(last[states - 1], states > 1 ? last[states - 2] : none, none);
}

/* Steps from the last one back: beta, and minus the probability of each class, times scale. */
static void backward(const ctc_job *job, ctc_sample *q, double loss, double scale) {
  const double none = -(double)INFINITY;
  int64_t states = q->states;
  for (int64_t t = q->steps - 1; t >= 0; t--) {
    if (gb_work(24 * states)) return;
    double *to = q->beta + t % 2 * states;
    const double *from = q->beta + (t + 1) % 2 * states, *alpha = q->alpha + t * states;
    bool last = t == q->steps - 1;
    for (int64_t s = 0; s < states; s++) {
      double same = last ? s >= states - 2 ? 0 : none : from[s] + q->probs[s];
      double next = last || s + 1 >= states ? none : from[s + 1] + q->probs[s + 1];
      double skip = last || s + 2 >= states || !skips(q, s + 2) ? none : from[s + 2] + q->probs[s + 2];
      to[s] = log_add(same, next, skip);
      q->sums[q->label[s]] -= exp(alpha[s] + to[s] + loss) * scale;
    }
    store_step(job, q, t);
    load_step(job, q, t);
  }
}

static void run_sample(void *arg, int64_t n) {
  ctc_job *job = arg;
  int64_t most = job->states, rows = job->slope ? job->steps : 2;
  char *room = gb_scratch_room_of(&job->scratch, n);
  ctc_sample q = {
    .n = n, .steps = job->input_lengths[n], .states = 2 * job->target_lengths[n] + 1, .label = (int64_t *)room
  };
  q.alpha = (double *)(q.label + most);
  q.beta = q.alpha + rows * most;
  q.probs = q.beta + 2 * most;
  q.sums = q.probs + most;
  job->losses[n] = 0;
  if (!read_labels(job, &q)) return;
  double loss = forward(job, &q),
         scale = job->mean ? 1 / (double)(q.states > 1 ? q.states / 2 : 1) / (double)job->samples : 1;
  bool impossible = loss == (double)INFINITY;
  job->losses[n] = impossible && job->zero_infinity ? 0 : loss * scale;
  if (!job->slope || (impossible && job->zero_infinity)) return;
  gb_clear_bytes(q.sums, (size_t)job->classes * sizeof *q.sums);
  backward(job, &q, loss, scale);
}

/* Read a tensor of lengths, each of them 0 .. most. */
static gb_status read_lengths(gb_op_call *call, int input, int64_t samples, int64_t most, int64_t *to) {
  const gb_tensor *lengths = call->in[input];
  gb_load_i64(to, gb_data(lengths), (gb_dtype)lengths->dtype, lengths->ndim ? lengths->stride[0] : 1, samples);
  for (int64_t n = 0; n < samples; n++)
    if (to[n] < 0 || to[n] > most)
      return gb_call_fail(call, GB_EINDEX, "%s: a length of %lld is out of range 0 .. %lld",
                          gb_op_input(call->info, input)->name, (long long)to[n], (long long)most);
  return GB_OK;
}

/* Both lengths of all samples, and where their targets begin. */
static gb_status read_all_lengths(gb_op_call *call, ctc_job *job) {
  const gb_tensor *targets = job->targets;
  int64_t most = targets->shape[targets->ndim - 1], at = 0;
  GB_TRY(read_lengths(call, GB_IN_AT(ctc_loss, input_lengths), job->samples, job->steps, job->input_lengths));
  GB_TRY(read_lengths(call, GB_IN_AT(ctc_loss, target_lengths), job->samples, most, job->target_lengths));
  job->states = 1;
  for (int64_t n = 0; n < job->samples; n++) {
    int64_t length = job->target_lengths[n];
    if (targets->ndim == 1 && at + length > most)
      return gb_call_fail(call, GB_EINDEX, "target_lengths: a length of %lld is out of range 0 .. %lld",
                          (long long)length, (long long)(most - at));
    job->first[n] = at;
    at += length;
    if (2 * length + 1 > job->states) job->states = 2 * length + 1;
  }
  return GB_OK;
}

/* Run the samples, and reduce their losses in order. */
static gb_status run_samples(gb_op_call *call, ctc_job *job) {
  const gb_tensor *loss = GB_OUT(call, ctc_loss)->loss;
  int64_t rows = job->slope ? job->steps : 2;
  size_t room_bytes = (size_t)((rows + 4) * job->states + job->classes) * sizeof(double);
  GB_TRY(gb_scratch_open_chunks(call, 0, room_bytes, job->samples, &job->scratch));
  const gb_tensor *slope = job->slope;
  if (slope) gb_clear_bytes(gb_data(slope), (size_t)slope->numel * gb_dtype_bytes((gb_dtype)slope->dtype));
  gb_parallel(call, job->samples, run_sample, job);
  gb_scratch_close(call, &job->scratch);
  if (GB_ATTRS(call, ctc_loss)->reduction.integer == GB_WORD_none) {
    gb_store_f64(gb_data(loss), (gb_dtype)loss->dtype, 1, job->losses, job->samples);
    return gb_bad_index_status(call, &job->bad, "target");
  }
  double sum = job->mean && job->samples == 0 ? (double)NAN : 0;
  for (int64_t n = 0; n < job->samples; n++) sum += job->losses[n];
  gb_store_f64(gb_data(loss), (gb_dtype)loss->dtype, 1, &sum, 1);
  return gb_bad_index_status(call, &job->bad, "target");
}

static gb_status ctc_loss(gb_op_call *call) {
  const gb_in_ctc_loss *in = GB_IN(call, ctc_loss);
  const gb_attrs_ctc_loss *attrs = GB_ATTRS(call, ctc_loss);
  const gb_tensor *x = in->log_probs;
  ctc_job job = { .x = x,
                  .targets = in->targets,
                  .slope = GB_OUT(call, ctc_loss)->slope,
                  .steps = x->shape[0],
                  .samples = x->ndim == 3 ? x->shape[1] : 1,
                  .classes = x->shape[x->ndim - 1],
                  .blank = attrs->blank.integer,
                  .zero_infinity = attrs->zero_infinity.integer,
                  .mean = attrs->reduction.integer == GB_WORD_mean };
  gb_block *lists = gb_cpu_scratch(call, 4 * sizeof(int64_t) * (size_t)(job.samples + 1));
  if (!lists) return GB_EMEMORY;
  job.input_lengths = gb_block_data(lists);
  job.target_lengths = job.input_lengths + job.samples;
  job.first = job.target_lengths + job.samples;
  job.losses = (double *)(job.first + job.samples);
  gb_status status = read_all_lengths(call, &job);
  if (status == GB_OK) status = run_samples(call, &job);
  gb_cpu_scratch_free(call, lists);
  return status;
}

void GB_CPU_FILL(ctc)(gb_backend *backend);
void GB_CPU_FILL(ctc)(gb_backend *backend) { backend->run[GB_OP_ctc_loss] = ctc_loss; }
