/* cpu/softmax.c - softmax, log_softmax and their gradients, a row at a time in lanes of the compute type.
 *
 * Forward reads and writes every element once and takes one exponential of it; backward reads two and writes one. Rows are read and written
 * where they lie if they lie as lanes, and stay in cache between the passes over them (largest element, exponentials and their sum, scaling). */
#include <math.h>

#include "base/math.h"
#include "cpu/rows.h"
#include "ops/reduce.h"

/* One run over all rows: y from x, or dx from grad and y. */
typedef struct softmax_job {
  gb_lane lane;
  gb_rows first, second, out;      /* second: y, in backward */
  gb_row_plan plan;
  gb_threads *threads;
  char *buffers;                   /* three batches of rows per thread */
  size_t buffer_bytes;             /* of one batch */
  void (*row)(gb_lane lane, void *out, const void *x, const void *y, int64_t n);
} softmax_job;

/* {==== one row; out is none of the inputs ==== */

static void softmax_row(gb_lane lane, void *out, const void *x, const void *unused, int64_t n) {
  (void)unused;
  gb_row_scale(lane, out, n, 1 / gb_row_exp_sum(lane, out, x, n, gb_row_max(lane, x, n)));
}

static void log_softmax_row(gb_lane lane, void *out, const void *x, const void *unused, int64_t n) {
  (void)unused;
  double most = gb_row_max(lane, x, n), log_sum = log(gb_row_exp_sum(lane, NULL, x, n, most) / GB_ROW_LIFT);
  float *to = out, most32 = (float)most, log_sum32 = (float)log_sum;
  const float *f = x;
  if (lane == GB_LANE_F32) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = f[i] - most32 - log_sum32;
  } else
    for (int64_t i = 0; i < n; i++) ((double *)out)[i] = ((const double *)x)[i] - most - log_sum;
}

/* y * (g - sum(g * y)) */
static void softmax_backward_row(gb_lane lane, void *out, const void *g, const void *y, int64_t n) {
  double dot = gb_row_dot(lane, g, y, n);
  float *to = out, dot32 = (float)dot;
  const float *f = g, *e = y;
  if (lane == GB_LANE_F32) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = e[i] * (f[i] - dot32);
  } else
    for (int64_t i = 0; i < n; i++) ((double *)out)[i] = ((const double *)y)[i] * (((const double *)g)[i] - dot);
}

/* g - exp(y) * sum(g) */
static void log_softmax_backward_row(gb_lane lane, void *out, const void *g, const void *y, int64_t n) {
  gb_row_exp(lane, out, y, n, 0, -gb_row_sum(lane, g, n));
  gb_row_add(lane, out, g, n, 1);
}

/* ====} */

/* Rows first .. first + count - 1 where they lie if they are lanes already, else loaded into room. */
static const char *rows_in(const softmax_job *job, const gb_rows *rows, int64_t first, int64_t count, char *room) {
  const char *own = gb_rows_own(rows, job->lane, first);
  if (!own) gb_rows_load(rows, job->lane, first, count, room);
  return own ? own : room;
}

static void run_rows(void *arg, int64_t chunk) {
  const softmax_job *job = arg;
  char *room = job->buffers + 3 * job->buffer_bytes * (size_t)gb_threads_current(job->threads), *room_out = room + 2 * job->buffer_bytes;
  int64_t n = job->out.length, first = chunk * job->plan.chunk, end = first + job->plan.chunk;
  size_t bytes = gb_lane_bytes(job->lane) * (size_t)n;
  if (end > job->out.count) end = job->out.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < job->plan.batch ? end - first : job->plan.batch;
    const char *x = rows_in(job, &job->first, first, count, room), *y = x;
    if (job->second.data) y = rows_in(job, &job->second, first, count, room + job->buffer_bytes);
    char *own = gb_rows_own(&job->out, job->lane, first), *out = own ? own : room_out;
    for (int64_t i = 0; i < count; i++) job->row(job->lane, out + (size_t)i * bytes, x + (size_t)i * bytes, y + (size_t)i * bytes, n);
    if (!own) gb_rows_store(&job->out, job->lane, first, count, out);
  }
}

/* Run `row` over all rows along the call's dim. */
static gb_status run(gb_call *call, void (*row)(gb_lane, void *, const void *, const void *, int64_t)) {
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
  gb_block *scratch = gb_cpu_scratch(call, 3 * job.buffer_bytes * (size_t)gb_threads_count(job.threads));
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
