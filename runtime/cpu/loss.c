/* cpu/loss.c - cross_entropy and nll_loss, forward and backward, and linear_cross_entropy.
 *
 * A row of logits is read once from memory, where it lies if it lies as lanes: its largest element, the sum of
 * exponentials and the loss come from cache. Backward reads it once more, takes its exponentials and writes the
 * gradient. One exponential per element each way. Losses of rows are kept apart and added up in a fixed order. A target
 * may be ignored, smoothed and weighted; all of that is a mass per class: loss = sum of mass * (lse - x), and its
 * gradient is sum(mass) * softmax(x) - mass. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "cpu/nontemporal.h"
#include "cpu/scratch.h"

/* {==== what cross_entropy and nll_loss share ==== */

/* One run over the rows of x. */
typedef struct loss_job {
  gb_lane lane;
  gb_dtype dtype;                  /* of rows as the kernel sees them: what x and dx are as they lie, or the lane's */
  bool streams;                    /* dx goes past the caches */
  size_t bytes;                    /* of a lane */
  int64_t classes, rows;
  gb_rows x, target, dx, grad;     /* target: class indices, an element each, or rows of probabilities */
  bool indices, grad_per_row;
  int64_t ignore;
  double smoothing;
  bool changes_x;                  /* forward works on rows of its own, less their largest element */
  char *weight;                    /* lanes [classes], or NULL */
  double weight_sum;               /* of all classes */
  double scale;                    /* backward: of every row, 1 / total for a mean */
  char *losses, *totals;           /* forward: a lane per row; totals: the weight of the row's target */
  char *lse;                       /* a lane per row, written by forward; or NULL */
  gb_row_plan plan;
  gb_scratch scratch;              /* rooms: a batch of x, one of probabilities, one of indices */
  size_t row_bytes;                /* of a row of x or of probabilities in a room, 0 where rows are used as they are */
  gb_bad_index bad;
  void (*row)(struct loss_job *job, int64_t row, const char *x, char *out, char *mass, int64_t index);
} loss_job;

static int class_dim(const gb_tensor *x) { return x->ndim > 1 ? 1 : 0; }
static bool is_reduction(const gb_attr *reduction, int word) { return reduction->integer == word; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A number as one lane, and back. */
static void put(const loss_job *job, char *lanes, int64_t i, double value) { gb_row_put(job->lane, lanes, i, value); }
static double get(const loss_job *job, const char *lanes, int64_t i) { return gb_row_get(job->lane, lanes, i); }

/* One element of a row of logits. */
static double element(const loss_job *job, const char *x, int64_t i) {
  double value;
  gb_load_f64(&value, x + (size_t)i * gb_dtype_bytes(job->dtype), job->dtype, 1, 1);
  return value;
}

/* Where one class is the target and nothing is spread over the others, rows that lie end to end are used as they
 * are. */
static bool are_used_as_they_are(const loss_job *job) {
  gb_dtype dtype = job->x.dtype;
  bool plain = job->indices && job->smoothing == 0 && gb_dtype_is_float(dtype) && gb_rows_own(&job->x, dtype, 0);
  return plain && (!job->dx.data || gb_rows_own(&job->dx, dtype, 0));
}

/* Describe the rows and take scratch: weights, losses and totals of rows, and buffers for `batched` rows of x at a
 * time. */
static gb_status open_job(gb_op_call *call, loss_job *job, const gb_tensor *target, const gb_tensor *weight,
                          bool batched) {
  int64_t classes = job->classes;
  job->bytes = gb_lane_bytes(job->lane);
  job->indices = !gb_dtype_is_float((gb_dtype)target->dtype);
  bool as_they_are = are_used_as_they_are(job);
  job->dtype = as_they_are ? job->x.dtype : gb_lane_dtype(job->lane);
  if (as_they_are) job->plan.batch = job->plan.chunk;
  job->streams = as_they_are && job->dx.data && (size_t)(job->rows * classes) * job->dx.bytes >= GB_NONTEMPORAL_BYTES;
  job->row_bytes = as_they_are ? 0 : (size_t)classes * job->bytes;
  size_t room_bytes = batched ? (size_t)job->plan.batch * (2 * job->row_bytes + 8) : 0;
  size_t weight_bytes = ((size_t)classes * job->bytes + 7) / 8 * 8,
      row_bytes = ((size_t)job->rows * job->bytes + 7) / 8 * 8;
  GB_TRY(gb_scratch_open_chunks(call, weight_bytes + 2 * row_bytes, room_bytes, job->plan.chunks, &job->scratch));
  char *at = job->scratch.shared;
  job->losses = at + weight_bytes;
  job->totals = job->losses + row_bytes;
  job->weight_sum = (double)classes;
  if (!weight) return GB_OK;
  job->weight = at;
  gb_lane_load(job->lane, at, gb_data(weight), (gb_dtype)weight->dtype, weight->stride[0], classes);
  job->weight_sum = gb_row_sum(job->lane, at, classes);
  return GB_OK;
}

/* The weight of a class. */
static double weight_of(const loss_job *job, int64_t class) { return job->weight ? get(job, job->weight, class) : 1; }

/* Does the row count? Not if its target is ignored; a target that is no class is reported and does not count either. */
static bool counts(loss_job *job, int64_t index) {
  if (index == job->ignore) return false;
  if (index >= 0 && index < job->classes) return true;
  gb_bad_index_report(&job->bad, index, job->classes);
  return false;
}

/* Run job->row over the rows of one chunk, each with its logits, the place of its result, and its probabilities or its
 * class index. Logits are read, and gradients written, where they lie if they lie as lanes or are used as they are;
 * else in a buffer that serves both. */
static void run_rows(void *arg, int64_t chunk) {
  loss_job *job = arg;
  int64_t batch = job->plan.batch, first = chunk * job->plan.chunk, end = least(first + job->plan.chunk, job->rows);
  char *room = gb_scratch_room_of(&job->scratch, chunk);
  char *mass = room + (size_t)batch * job->row_bytes;
  int64_t *index = (int64_t *)(mass + (size_t)batch * job->row_bytes);
  size_t bytes = (size_t)job->classes * gb_dtype_bytes(job->dtype);
  for (int64_t count; first < end; first += count) {
    count = least(batch, end - first);
    const char *x = job->changes_x ? NULL : gb_rows_own(&job->x, job->dtype, first);
    char *own = job->dx.data ? gb_rows_own(&job->dx, job->dtype, first) : NULL, *out = own ? own : room;
    if (!x) gb_rows_load(&job->x, job->lane, first, count, room), x = room;
    if (job->indices) gb_rows_load(&job->target, GB_LANE_I64, first, count, index);
    else gb_rows_load(&job->target, job->lane, first, count, mass);
    for (size_t i = 0; i < (size_t)count; i++)
      job->row(job, first + (int64_t)i, x + i * bytes, out + i * (own ? bytes : job->row_bytes),
               mass + i * job->row_bytes, job->indices ? index[i] : 0);
    if (job->dx.data && !own) gb_rows_store(&job->dx, job->lane, first, count, room);
  }
  if (job->streams) gb_nontemporal_end();
}

/* Reduce the rows' losses into out, and their weights into total where that is kept. */
static void finish_loss(const loss_job *job, const gb_attr *reduction, const gb_tensor *out,
                        const gb_tensor *total_out) {
  char result[8];
  double total = gb_row_sum(job->lane, job->totals, job->rows), sum = gb_row_sum(job->lane, job->losses, job->rows);
  if (total_out) put(job, gb_data(total_out), 0, total);
  if (is_reduction(reduction, GB_WORD_none)) {
    gb_lane_store(job->lane, gb_data(out), (gb_dtype)out->dtype, 1, job->losses, job->rows);
    return;
  }
  put(job, result, 0, is_reduction(reduction, GB_WORD_mean) ? sum / total : sum);
  gb_lane_store(job->lane, gb_data(out), (gb_dtype)out->dtype, 1, result, 1);
}

/* What backward multiplies the gradient of the loss with: 1, or 1 / total for a mean. A loss that was reduced has one
 * gradient. */
static void read_gradient(loss_job *job, const gb_attr *reduction, const gb_tensor *grad, const gb_tensor *total) {
  char value[8];
  job->grad_per_row = is_reduction(reduction, GB_WORD_none);
  job->grad = gb_rows_of(grad, GB_ROWS_EACH);
  job->scale = 1;
  if (job->grad_per_row) return;
  gb_rows_load(&job->grad, job->lane, 0, 1, value);
  job->scale = is_reduction(reduction, GB_WORD_mean) ? get(job, value, 0) / get(job, gb_data(total), 0)
      : get(job, value, 0);
}

/* The gradient of one row's loss. */
static double row_gradient(const loss_job *job, int64_t row) {
  char value[8];
  if (!job->grad_per_row) return job->scale;
  gb_rows_load(&job->grad, job->lane, row, 1, value);
  return get(job, value, 0);
}

/* End a run: give back the scratch, and report a class that does not exist. */
static gb_status close_job(gb_op_call *call, loss_job *job, gb_status status) {
  if (job->scratch.block) gb_scratch_close(call, &job->scratch);
  return status == GB_OK ? gb_bad_index_status(call, &job->bad, "target") : status;
}

/* ====} */

/* {==== cross_entropy ==== */

/* Probabilities become masses: (p * (1 - smoothing) + smoothing / classes) * weight. Returns their sum. */
static double make_mass(const loss_job *job, char *mass) {
  int64_t n = job->classes;
  if (job->smoothing > 0) {
    gb_row_scale(job->lane, mass, n, 1 - job->smoothing);
    gb_row_shift(job->lane, mass, n, -job->smoothing / (double)n);
  }
  if (job->weight)
    for (int64_t i = 0; i < n && !gb_long_loop(i); i++) put(job, mass, i, get(job, mass, i) * get(job, job->weight, i));
  return gb_row_sum(job->lane, mass, n);
}

/* The sum over classes of weight * (log_sum - x): what smoothing spreads over all classes. */
static double spread_loss(const loss_job *job, const char *x, double log_sum) {
  double weighted = job->weight ? gb_row_dot(job->lane, job->weight, x, job->classes)
      : gb_row_sum(job->lane, x, job->classes);
  return job->weight_sum * log_sum - weighted;
}

/* One row: the logarithm of the sum of exponentials, the loss. Sums of logits are made of those less the largest, which
 * take their place. */
static void forward_row(loss_job *job, int64_t row, const char *x, char *shifted, char *mass, int64_t index) {
  int64_t n = job->classes;
  double loss = 0, total = 1, lse = 0;
  if (job->indices && !counts(job, index)) total = 0;
  else {
    double most = gb_wide_max(job->dtype, x, n),
        log_sum = log(gb_wide_exp_sum(job->dtype, NULL, x, n, most) / GB_ROW_LIFT);
    lse = most + log_sum;
    if (job->indices)
      total = weight_of(job, index), loss = (1 - job->smoothing) * total * (log_sum - (element(job, x, index) - most));
    if (job->changes_x) gb_row_shift(job->lane, shifted, n, most);
    if (job->indices && job->smoothing > 0) loss += job->smoothing / (double)n * spread_loss(job, shifted, log_sum);
    if (!job->indices) loss = make_mass(job, mass) * log_sum - gb_row_dot(job->lane, mass, shifted, n);
  }
  put(job, job->losses, row, loss);
  put(job, job->totals, row, total);
  if (job->lse) put(job, job->lse, row, lse);
}

static gb_status cross_entropy(gb_op_call *call) {
  const gb_in_cross_entropy *in = GB_IN(call, cross_entropy);
  const gb_attrs_cross_entropy *attrs = GB_ATTRS(call, cross_entropy);
  const gb_out_cross_entropy *out = GB_OUT(call, cross_entropy);
  const gb_tensor *x = in->x, *target = in->target;
  loss_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, GB_FLOAT32), .x = gb_rows_of(x, class_dim(x)),
                   .classes = x->shape[class_dim(x)], .ignore = attrs->ignore_index.integer,
                   .smoothing = attrs->label_smoothing.number, .row = forward_row };
  job.rows = job.x.count;
  job.plan = gb_row_plan_for(&job.x);
  job.lse = out->lse ? gb_data(out->lse) : NULL;
  GB_TRY(open_job(call, &job, target, in->weight, true));
  job.target = gb_rows_of(target, job.indices ? GB_ROWS_EACH : class_dim(x));
  job.changes_x = !job.indices || job.smoothing > 0;
  gb_parallel(call, job.plan.chunks, run_rows, &job);
  finish_loss(&job, &attrs->reduction, out->loss, out->total);
  return close_job(call, &job, GB_OK);
}

/* dx = g * (sum(mass) * exp(x - lse) - mass); dx may be x. */
static void backward_row(loss_job *job, int64_t row, const char *x, char *dx, char *mass, int64_t index) {
  int64_t n = job->classes;
  double g = row_gradient(job, row), lse = get(job, job->lse, row), share = job->smoothing / (double)n;
  if (!job->indices) {
    gb_row_exp(job->lane, dx, x, n, lse, g * make_mass(job, mass));
    gb_row_add(job->lane, dx, mass, n, -g);
    return;
  }
  if (!counts(job, index)) {
    gb_clear_bytes(dx, (size_t)n * gb_dtype_bytes(job->dtype));
    return;
  }
  double own = (1 - job->smoothing) * weight_of(job, index), scale = g * (own + share * job->weight_sum);
  double slope = scale * exp(element(job, x, index) - lse) - g * own;
  gb_wide_exp(job->dtype, dx, x, n, lse, scale, index, slope, job->streams);
  if (job->smoothing > 0 && job->weight) gb_row_add(job->lane, dx, job->weight, n, -g * share);
  if (job->smoothing > 0 && !job->weight) gb_row_shift(job->lane, dx, n, g * share);
}

static gb_status cross_entropy_backward(gb_op_call *call) {
  const gb_in_cross_entropy_backward *in = GB_IN(call, cross_entropy_backward);
  const gb_attrs_cross_entropy_backward *attrs = GB_ATTRS(call, cross_entropy_backward);
  const gb_tensor *x = in->x, *target = in->target, *dx = GB_OUT(call, cross_entropy_backward)->dx;
  if (x->numel == 0) return GB_OK;
  loss_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, GB_FLOAT32), .x = gb_rows_of(x, class_dim(x)),
                   .classes = x->shape[class_dim(x)], .dx = gb_rows_of(dx, class_dim(x)),
                   .ignore = attrs->ignore_index.integer, .smoothing = attrs->label_smoothing.number,
                   .lse = gb_data(in->lse), .row = backward_row };
  job.rows = job.x.count;
  job.plan = gb_row_plan_for(&job.x);
  GB_TRY(open_job(call, &job, target, in->weight, true));
  job.target = gb_rows_of(target, job.indices ? GB_ROWS_EACH : class_dim(x));
  read_gradient(&job, &attrs->reduction, in->grad, in->total);
  gb_parallel(call, job.plan.chunks, run_rows, &job);
  return close_job(call, &job, GB_OK);
}

/* ====} */

/* {==== nll_loss ==== */

/* Rows of a chunk of nll_loss: only the element of the target is touched. */
enum { PICK_ROWS = 4096 };

static int64_t pick_chunks(const loss_job *job) { return (job->rows + PICK_ROWS - 1) / PICK_ROWS; }

/* The class index of a row. */
static int64_t index_of(const loss_job *job, int64_t row) {
  int64_t index;
  gb_rows_load(&job->target, GB_LANE_I64, row, 1, &index);
  return index;
}

static void pick_forward(void *arg, int64_t chunk) {
  loss_job *job = arg;
  int64_t end = least((chunk + 1) * PICK_ROWS, job->rows);
  for (int64_t row = chunk * PICK_ROWS; row < end; row++) {
    int64_t index = index_of(job, row);
    bool counted = counts(job, index);
    double total = counted ? weight_of(job, index) : 0;
    char x[8];
    put(job, x, 0, 0);
    if (counted)
      gb_lane_load(job->lane, x, gb_rows_at(&job->x, row) + index * job->x.stride * (int64_t)job->x.bytes, job->x.dtype,
                   1, 1);
    put(job, job->losses, row, counted ? -total * get(job, x, 0) : 0);
    put(job, job->totals, row, total);
  }
}

static gb_status nll_loss(gb_op_call *call) {
  const gb_in_nll_loss *in = GB_IN(call, nll_loss);
  const gb_attrs_nll_loss *attrs = GB_ATTRS(call, nll_loss);
  const gb_tensor *x = in->x, *target = in->target;
  loss_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, GB_FLOAT32), .x = gb_rows_of(x, class_dim(x)),
                   .classes = x->shape[class_dim(x)], .target = gb_rows_of(target, GB_ROWS_EACH),
                   .ignore = attrs->ignore_index.integer };
  job.rows = job.x.count;
  GB_TRY(open_job(call, &job, target, in->weight, false));
  gb_parallel(call, pick_chunks(&job), pick_forward, &job);
  finish_loss(&job, &attrs->reduction, GB_OUT(call, nll_loss)->loss, GB_OUT(call, nll_loss)->total);
  return close_job(call, &job, GB_OK);
}

/* -weight * g at the target's element of rows that were zeroed. */
static void pick_backward(void *arg, int64_t chunk) {
  loss_job *job = arg;
  int64_t end = least((chunk + 1) * PICK_ROWS, job->rows);
  for (int64_t row = chunk * PICK_ROWS; row < end; row++) {
    int64_t index = index_of(job, row);
    char dx[8];
    if (!counts(job, index)) continue;
    put(job, dx, 0, -weight_of(job, index) * row_gradient(job, row));
    gb_lane_store(job->lane, gb_rows_at(&job->dx, row) + index * job->dx.stride * (int64_t)job->dx.bytes, job->dx.dtype,
                  1, dx, 1);
  }
}

static gb_status nll_loss_backward(gb_op_call *call) {
  const gb_in_nll_loss_backward *in = GB_IN(call, nll_loss_backward);
  const gb_attrs_nll_loss_backward *attrs = GB_ATTRS(call, nll_loss_backward);
  const gb_tensor *target = in->target, *total = in->total, *dx = GB_OUT(call, nll_loss_backward)->dx;
  gb_clear_bytes(gb_data(dx), (size_t)dx->numel * gb_dtype_bytes((gb_dtype)dx->dtype));
  if (dx->numel == 0) return GB_OK;
  loss_job job = { .lane = gb_lane_of((gb_dtype)total->dtype, GB_FLOAT32), .dx = gb_rows_of(dx, class_dim(dx)),
                   .classes = dx->shape[class_dim(dx)], .target = gb_rows_of(target, GB_ROWS_EACH),
                   .ignore = attrs->ignore_index.integer };
  job.rows = job.dx.count;
  GB_TRY(open_job(call, &job, target, in->weight, false));
  read_gradient(&job, &attrs->reduction, in->grad, total);
  gb_parallel(call, pick_chunks(&job), pick_backward, &job);
  return close_job(call, &job, GB_OK);
}

/* ====} */

/* {==== linear_cross_entropy ==== */

/* Logits of a chunk of rows: about 16 MiB in float32, and enough rows for the products to be worth their traffic. */
enum { LOGITS = 1 << 22, FEWEST_ROWS = 128, MOST_ROWS = 4096 };

/* The chunk of rows that is being worked on. */
typedef struct linear_job {
  gb_lane lane;
  size_t bytes;
  gb_dtype operand;                /* dtype of x and weight, to which the gradient of the logits is rounded */
  int64_t classes, features, rows; /* rows of the chunk */
  int64_t ignore;
  const int64_t *target;           /* of the chunk */
  char *losses;                    /* a lane per row of the chunk */
  char *logits;                    /* lanes [rows, classes] */
  char *slope;                     /* their gradient, [rows, classes] of the operand's dtype; the logits themselves
                                      where that is the lane's */
  char *dbias;                     /* lanes [classes], or NULL */
  bool needs_grad;
  int64_t per_chunk;
} linear_job;

/* Losses of rows and, in place of the logits, softmax(x) less 1 at the target. */
static void linear_rows(void *arg, int64_t chunk) {
  linear_job *job = arg;
  int64_t n = job->classes, end = least((chunk + 1) * job->per_chunk, job->rows);
  for (int64_t row = chunk * job->per_chunk; row < end; row++) {
    char *x = job->logits + (size_t)(row * n) * job->bytes,
        *slope = job->slope + (size_t)(row * n) * gb_dtype_bytes(job->operand);
    int64_t index = job->target[row];
    double loss = 0;
    if (index == job->ignore) gb_clear_bytes(x, (size_t)n * job->bytes);
    else {
      double most = gb_row_max(job->lane, x, n), own = gb_row_get(job->lane, x, index) - most;
      double sum = gb_row_exp_sum(job->lane, x, x, n, most);
      loss = log(sum / GB_ROW_LIFT) - own;
      if (job->needs_grad) gb_row_scale(job->lane, x, n, 1 / sum);
      gb_row_put(job->lane, x, index, gb_row_get(job->lane, x, index) - 1);
    }
    gb_row_put(job->lane, job->losses, row, loss);
    if (job->needs_grad && slope != x) gb_lane_store(job->lane, slope, job->operand, 1, x, n);
  }
}

/* Add the columns of the slope to dbias, a tile of classes per chunk of work. */
static void linear_bias(void *arg, int64_t chunk) {
  const linear_job *job = arg;
  int64_t first = chunk * GB_TILE, n = least(GB_TILE, job->classes - first);
  double sums[GB_TILE] = { 0 }, row[GB_TILE];
  for (int64_t i = 0; i < job->rows; i++) {
    gb_load_f64(row, job->slope + (size_t)(i * job->classes + first) * gb_dtype_bytes(job->operand), job->operand, 1,
                n);
    for (int64_t k = 0; k < n; k++) sums[k] += row[k];
  }
  for (int64_t k = 0; k < n; k++)
    gb_row_put(job->lane, job->dbias, first + k, gb_row_get(job->lane, job->dbias, first + k) + sums[k]);
}

/* A matrix as it lies in a tensor, from a row of it. */
static gb_matrix matrix_of(const gb_tensor *t, int64_t row) {
  return (gb_matrix){ gb_data(t) + row * t->stride[0] * (int64_t)gb_dtype_bytes((gb_dtype)t->dtype), (gb_dtype)t->dtype,
                      t->stride[0], t->stride[1] };
}

static gb_matrix transposed(gb_matrix m) { return (gb_matrix){ m.data, m.dtype, m.column_stride, m.row_stride }; }

/* logits = x @ weight^T + bias */
static gb_status linear_logits(gb_op_call *call, const linear_job *job, int64_t first) {
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  const gb_tensor *bias = in->bias;
  gb_product p = { .m = job->rows, .n = job->classes, .k = job->features, .a = matrix_of(in->x, first),
                   .b = transposed(matrix_of(in->weight, 0)),
                   .c = job->logits, .ldc = job->classes, .dtype = gb_lane_dtype(job->lane) };
  if (bias)
    p.epilogue = (gb_epilogue){ .bias = gb_data(bias), .bias_dtype = (gb_dtype)bias->dtype,
                                .bias_stride = bias->stride[0] };
  return gb_product_run(call, &p);
}

/* dx = slope @ weight; dweight += slope^T @ x; dbias += column sums of slope. */
static gb_status linear_gradients(gb_op_call *call, const linear_job *job, int64_t first) {
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  const gb_out_linear_cross_entropy *out = GB_OUT(call, linear_cross_entropy);
  gb_tensor *dx = out->dx, *dweight = out->dweight;
  gb_matrix slope = { job->slope, job->operand, job->classes, 1 };
  gb_product by_x = { .m = job->rows, .n = job->features, .k = job->classes, .a = slope,
                      .b = matrix_of(in->weight, 0),
                      .c = gb_data(dx) + (size_t)(first * job->features) * gb_dtype_bytes((gb_dtype)dx->dtype),
                          .ldc = job->features,
                      .dtype = (gb_dtype)dx->dtype };
  gb_product by_weight = { .m = job->classes, .n = job->features, .k = job->rows, .a = transposed(slope),
                           .b = matrix_of(in->x, first),
                           .c = gb_data(dweight), .ldc = job->features, .dtype = (gb_dtype)dweight->dtype,
                               .beta = first > 0 ? 1.0f : 0.0f };
  GB_TRY(gb_product_run(call, &by_x));
  GB_TRY(gb_product_run(call, &by_weight));
  if (job->dbias) gb_parallel(call, (job->classes + GB_TILE - 1) / GB_TILE, linear_bias, (void *)job);
  return GB_OK;
}

/* Class indices of all rows, checked; *counted is how many are not ignored. */
static gb_status read_targets(gb_op_call *call, int64_t classes, int64_t ignore, int64_t *to, int64_t *counted) {
  const gb_tensor *target = GB_IN(call, linear_cross_entropy)->target;
  gb_bad_index bad = { .set = false };
  gb_lane_load(GB_LANE_I64, to, gb_data(target), (gb_dtype)target->dtype, target->stride[0], target->numel);
  for (int64_t i = 0; i < target->numel && !gb_was_stopped(call) && !gb_long_loop(i); i++) {
    if (to[i] == ignore) continue;
    if (to[i] < 0 || to[i] >= classes) gb_bad_index_report(&bad, to[i], classes);
    ++*counted;
  }
  return gb_was_stopped(call) ? GB_EINTERRUPT : gb_bad_index_status(call, &bad, "target"); /* the rest was not read */
}

/* Walk over the rows in chunks. */
static gb_status linear_chunks(gb_op_call *call, linear_job *job, int64_t rows, int64_t chunk_rows) {
  const int64_t *target = job->target;
  char *losses = job->losses;
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    job->rows = least(chunk_rows, rows - first);
    job->target = target + first;
    job->losses = losses + (size_t)first * job->bytes;
    GB_TRY(linear_logits(call, job, first));
    gb_parallel(call, (job->rows + job->per_chunk - 1) / job->per_chunk, linear_rows, job);
    if (job->needs_grad) GB_TRY(linear_gradients(call, job, first));
  }
  return GB_OK;
}

/* A sum over rows that nothing has been added to yet. */
static void linear_zero(const gb_tensor *sum) {
  if (sum) gb_clear_bytes(gb_data(sum), (size_t)sum->numel * gb_dtype_bytes((gb_dtype)sum->dtype));
}

/* x [n, features], weight [classes, features], target [n]. The gradients are those of the sum of the losses; backward
 * scales them. */
static gb_status linear_cross_entropy(gb_op_call *call) {
  const gb_in_linear_cross_entropy *in = GB_IN(call, linear_cross_entropy);
  const gb_attrs_linear_cross_entropy *attrs = GB_ATTRS(call, linear_cross_entropy);
  const gb_out_linear_cross_entropy *out = GB_OUT(call, linear_cross_entropy);
  const gb_tensor *x = in->x, *weight = in->weight, *loss = out->loss;
  linear_job job = { .lane = gb_lane_of((gb_dtype)x->dtype, GB_FLOAT32), .operand = (gb_dtype)x->dtype,
                     .classes = weight->shape[0],
                     .features = weight->shape[1], .ignore = attrs->ignore_index.integer,
                     .needs_grad = out->dx != NULL };
  int64_t rows = x->shape[0], n = job.classes > 0 ? job.classes : 1, counted = 0, chunk_rows = LOGITS / n;
  bool narrow = gb_lane_dtype(job.lane) != job.operand;
  if (chunk_rows > MOST_ROWS) chunk_rows = MOST_ROWS;
  if (chunk_rows < FEWEST_ROWS) chunk_rows = FEWEST_ROWS;
  if (chunk_rows > rows) chunk_rows = rows;
  job.bytes = gb_lane_bytes(job.lane);
  job.per_chunk = n < 8 * GB_TILE ? 8 * GB_TILE / n : 1;
  job.dbias = out->dbias ? gb_data(out->dbias) : NULL;
  linear_zero(out->dweight);
  linear_zero(out->dbias);
  size_t logits = (size_t)(chunk_rows * n), logits_bytes = logits * job.bytes;
  size_t slope_bytes = narrow && job.needs_grad ? logits * gb_dtype_bytes(job.operand) : 0;
  gb_block *scratch = gb_cpu_scratch(call, (size_t)rows * 16 + logits_bytes + slope_bytes);
  if (!scratch) return GB_EMEMORY;
  int64_t *targets = gb_block_data(scratch);
  job.target = targets;
  job.losses = (char *)(targets + rows);
  job.logits = job.losses + (size_t)rows * 8;
  job.slope = slope_bytes ? job.logits + logits_bytes : job.logits;
  char *losses = job.losses, result[8];
  gb_status status = read_targets(call, job.classes, job.ignore, targets, &counted);
  if (status == GB_OK) status = linear_chunks(call, &job, rows, chunk_rows);
  if (status == GB_OK) {
    double sum = gb_row_sum(job.lane, losses, rows);
    gb_row_put(job.lane, result, 0, is_reduction(&attrs->reduction, GB_WORD_mean) ? sum / (double)counted : sum);
    gb_lane_store(job.lane, gb_data(loss), (gb_dtype)loss->dtype, 1, result, 1);
  }
  gb_cpu_scratch_free(call, scratch);
  return status;
}

/* ====} */

void GB_CPU_FILL(loss)(gb_backend *backend);
void GB_CPU_FILL(loss)(gb_backend *backend) {
  backend->run[GB_OP_cross_entropy] = cross_entropy;
  backend->run[GB_OP_cross_entropy_backward] = cross_entropy_backward;
  backend->run[GB_OP_nll_loss] = nll_loss;
  backend->run[GB_OP_nll_loss_backward] = nll_loss_backward;
  backend->run[GB_OP_linear_cross_entropy] = linear_cross_entropy;
}
