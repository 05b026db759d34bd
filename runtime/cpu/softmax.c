/* cpu/softmax.c - softmax, log_softmax and their gradients, a row at a time in lanes of the compute type.
 *
 * Forward reads and writes every element once and takes one exponential of it; backward reads two and writes one. The row stays in cache
 * between the passes over it (largest element, sum of exponentials, scaling). */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"
#include "ops/reduce.h"

/* One run over all rows: y from x, or dx from grad and y. */
typedef struct softmax_job {
  gb_lane lane;
  gb_rows first, second, out;      /* second: y, in backward */
  gb_row_plan plan;
  gb_threads *threads;
  char *buffers;                   /* two batches of rows per thread */
  size_t buffer_bytes;             /* of one batch */
  void (*row)(gb_lane lane, void *x, void *y, int64_t n);
} softmax_job;

/* {==== one row: the result replaces x ==== */

static void softmax_row(gb_lane lane, void *x, void *unused, int64_t n) {
  (void)unused;
  gb_row_exp(lane, x, n, gb_row_max(lane, x, n), 1);
  gb_row_scale(lane, x, n, 1 / gb_row_sum(lane, x, n));
}

static void log_softmax_row(gb_lane lane, void *x, void *unused, int64_t n) {
  (void)unused;
  gb_row_shift(lane, x, n, gb_row_max(lane, x, n));
  gb_row_shift(lane, x, n, log(gb_row_exp_sum(lane, x, n)));
}

/* g = y * (g - sum(g * y)) */
static void softmax_backward_row(gb_lane lane, void *g, void *y, int64_t n) {
  double mean = gb_row_dot(lane, g, y, n);
  gb_row_shift(lane, g, n, mean);
  if (lane == GB_LANE_F32)
    for (int64_t i = 0; i < n; i++) ((float *)g)[i] *= ((const float *)y)[i];
  else
    for (int64_t i = 0; i < n; i++) ((double *)g)[i] *= ((const double *)y)[i];
}

/* g = g - exp(y) * sum(g); y is used up. */
static void log_softmax_backward_row(gb_lane lane, void *g, void *y, int64_t n) {
  double sum = gb_row_sum(lane, g, n);
  gb_row_exp(lane, y, n, 0, 1);
  gb_row_add(lane, g, y, n, -sum);
}

/* ====} */

static void run_rows(void *arg, int64_t chunk) {
  const softmax_job *job = arg;
  char *x = job->buffers + 2 * job->buffer_bytes * (size_t)gb_threads_current(job->threads), *y = x + job->buffer_bytes;
  int64_t n = job->out.length, first = chunk * job->plan.chunk, end = first + job->plan.chunk;
  size_t bytes = gb_lane_bytes(job->lane) * (size_t)n;
  if (end > job->out.count) end = job->out.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < job->plan.batch ? end - first : job->plan.batch;
    gb_rows_load(&job->first, job->lane, first, count, x);
    if (job->second.data) gb_rows_load(&job->second, job->lane, first, count, y);
    for (int64_t i = 0; i < count; i++) job->row(job->lane, x + (size_t)i * bytes, y + (size_t)i * bytes, n);
    gb_rows_store(&job->out, job->lane, first, count, x);
  }
}

/* Run `row` over all rows along the call's dim. */
static gb_status run(gb_call *call, void (*row)(gb_lane, void *, void *, int64_t)) {
  const gb_tensor *x = call->in[0], *y = call->n_in > 1 ? call->in[1] : NULL, *out = call->out[0];
  if (out->numel == 0) return GB_OK;
  int64_t named = gb_reduce_attr(call->info, call->attrs, GB_ARG_DIM)->integer;
  int dim = (int)(named < 0 ? named + (x->ndim ? x->ndim : 1) : named);
  softmax_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, (gb_dtype)out->dtype), .first = gb_rows_of(x, dim), .out = gb_rows_of(out, dim),
                      .row = row };
  if (y) job.second = gb_rows_of(y, dim);
  job.plan = gb_row_plan_for(&job.out);
  job.buffer_bytes = gb_lane_bytes(job.lane) * (size_t)(job.plan.batch * job.out.length);
  job.threads = call->context->threads;
  gb_block *scratch = gb_cpu_scratch(call, 2 * job.buffer_bytes * (size_t)gb_threads_count(job.threads));
  if (!scratch) return GB_EMEMORY;
  job.buffers = gb_block_data(scratch);
  gb_parallel(call, job.plan.chunks, run_rows, &job);
  gb_cpu_scratch_free(call, scratch);
  return GB_OK;
}

static gb_status softmax(gb_call *call) { return run(call, softmax_row); }
static gb_status log_softmax(gb_call *call) { return run(call, log_softmax_row); }
static gb_status softmax_backward(gb_call *call) { return run(call, softmax_backward_row); }
static gb_status log_softmax_backward(gb_call *call) { return run(call, log_softmax_backward_row); }

void GB_CPU_FILL(softmax)(gb_backend *backend);
void GB_CPU_FILL(softmax)(gb_backend *backend) {
  backend->run[GB_OP_softmax] = softmax;
  backend->run[GB_OP_log_softmax] = log_softmax;
  backend->run[GB_OP_softmax_backward] = softmax_backward;
  backend->run[GB_OP_log_softmax_backward] = log_softmax_backward;
}
