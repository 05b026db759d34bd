/* cuda/group_norm.cu - group_norm and its gradients, in any layout.
 *
 * A cell is one channel of one image, a group some cells of one image, one after another. Sums are folds over the
 * places of a group or of a cell (fold.cuh), in a fixed order; what an element needs is brought to its cell first, so
 * that a pass over the elements reads them, the cell's numbers, and writes the result. Two passes over x for the
 * statistics, one for the result; backward two over grad and x each. */
#include "cuda/elements.cuh"
#include "cuda/families.h"
#include "cuda/fold.cuh"

/* One number per cell in the compute type each. */
typedef struct cells { void *mean, *scale, *plain, *along, *sums, *products; } cells;

typedef struct group_job {
  cells c;
  gb_rows mean, rstd, weight, bias, dweight, dbias; /* data NULL: none. mean and rstd: one per group */
  void *means, *variances;                          /* forward: of the groups, as they were folded */
  int64_t images, channels, per, places;            /* per: channels of a group */
  double eps;
} group_job;

enum { PLACE_OUT, PLACE_X, PLACE_CELL, PLACE_GRAD, PLACES };

static gb_rows one_row(const gb_cuda_tensor *t) {
  gb_rows none = {};
  return t ? gb_rows_of(t, (1u << t->ndim) - 1u) : none;
}

template <typename T> static GB_DEVICE T parameter(const gb_rows &p, int64_t i,
                                                   T absent) { return p.data ? gb_row_load<T>(p, 0, i) : absent; }

/* x's elements in the order of the result's memory, with the number of each one's cell as a place. */
static gb_walk walk_cells(const gb_cuda_tensor *out, const gb_cuda_tensor *x, const gb_cuda_tensor *grad) {
  gb_cuda_tensor cell = {};
  cell.ndim = x->ndim;
  for (int d = 0; d < cell.ndim; d++) cell.shape[d] = 1;
  cell.shape[0] = x->shape[0];
  cell.shape[1] = x->shape[1];
  cell.stride[0] = x->shape[1];
  cell.stride[1] = 1;
  const gb_cuda_tensor *operands[PLACES] = { out, x, &cell, grad };
  return gb_plan(operands, PLACES, false);
}

/* The rows of a cell's elements (per 1), or of a group's. */
static gb_rows rows_of(const gb_cuda_tensor *x, int64_t per) {
  gb_cuda_tensor apart = *x; /* [images, groups, per, places...] */
  apart.ndim = 3;
  apart.shape[1] = x->shape[1] / per;
  apart.stride[1] = x->stride[1] * per;
  apart.shape[2] = per;
  apart.stride[2] = x->stride[1];
  gb_rows r = gb_rows_of(&apart, 4u);
  for (int d = 2; d < x->ndim; d++) {
    r.length *= x->shape[d];
    gb_axes_push(&r.inner, x->shape[d], x->stride[d]);
  }
  return r;
}

static gb_status fold(gb_cuda_call *call, gb_rows x, gb_map_kind map, const void *center, double divisor,
                      gb_dtype compute, void *out,
                      const gb_rows *other) {
  gb_fold f = {};
  f.x = x;
  f.map = map;
  f.center = center;
  f.finish = divisor > 0 ? GB_FINISH_SCALED : GB_FINISH_AS_IS;
  f.a = divisor;
  f.out = out;
  f.out_dtype = f.compute = compute;
  if (other) f.other = *other;
  return gb_fold_run(call, &f);
}

/* What the sizes of x say, and scratch for six numbers per cell. */
static gb_status open_job(gb_cuda_call *call, const gb_cuda_tensor *x, int64_t groups, gb_dtype compute,
                          group_job *job) {
  job->images = x->shape[0];
  job->channels = x->shape[1];
  job->per = job->channels / groups;
  job->places = x->numel / (job->images * job->channels);
  size_t bytes = ((size_t)(job->images * job->channels) * gb_bytes_of(compute) + 255) / 256 * 256;
  char *at = (char *)gb_cuda_scratch(call, 6 * bytes);
  if (!at) return GB_EMEMORY;
  void **arrays[] = { &job->c.mean, &job->c.scale, &job->c.plain, &job->c.along, &job->c.sums, &job->c.products };
  for (int i = 0; i < 6; i++) *arrays[i] = at + (size_t)i * bytes;
  return GB_OK;
}

/* {==== forward ==== */

/* A group's statistics to its cells, and out. */
template <typename T> __global__ void prepare_cells(group_job job) {
  for (int64_t i = gb_thread<int64_t>(); i < job.images * job.channels; i += gb_grid_size<int64_t>()) {
    int64_t group = i / job.per, channel = i % job.channels;
    T mean = ((const T *)job.means)[group], rstd = (T)(1 / sqrt((double)((const T *)job.variances)[group] + job.eps));
    ((T *)job.c.mean)[i] = mean;
    ((T *)job.c.scale)[i] = rstd * parameter<T>(job.weight, channel, 1);
    ((T *)job.c.plain)[i] = parameter<T>(job.bias, channel, 0);
    if (i % job.per == 0 && job.mean.data) gb_row_store<T>(job.mean, 0, group, mean);
    if (i % job.per == 0 && job.rstd.data) gb_row_store<T>(job.rstd, 0, group, rstd);
  }
}

/* y = (x - mean) * scale + bias */
template <typename T> __global__ void apply_cells(gb_walk w, char *x, int x_dtype, char *y, int y_dtype, cells c) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t at[PLACES];
    gb_seek<PLACES>(w, i, at);
    int64_t cell = at[PLACE_CELL];
    T apart = gb_load<T>(x, x_dtype, at[PLACE_X]) - ((const T *)c.mean)[cell];
    gb_store<T>(y, y_dtype, at[PLACE_OUT], apart * ((const T *)c.scale)[cell] + ((const T *)c.plain)[cell]);
  }
}

template <typename T> static void launch_forward(gb_cuda_call *call, const group_job *job, const gb_cuda_tensor *x,
                                                 const gb_cuda_tensor *y) {
  gb_walk w = walk_cells(y, x, y);
  GB_LAUNCH(call->stream, prepare_cells<T>, gb_blocks(job->images * job->channels, GB_THREADS), GB_THREADS, 0, *job);
  GB_LAUNCH(call->stream, apply_cells<T>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, x->data, x->dtype, y->data,
            y->dtype, job->c);
}

static gb_status group_norm(gb_cuda_call *call) {
  const gb_cuda_in_group_norm *in = GB_CUDA_IN(call, group_norm);
  const gb_cuda_out_group_norm *out = GB_CUDA_OUT(call, group_norm);
  const gb_cuda_tensor *x = in->x;
  gb_dtype compute = gb_compute_dtype(x->dtype, out->y->dtype);
  if (x->numel == 0) return GB_OK;
  group_job job = {};
  gb_status status = open_job(call, x, GB_ATTRS(call, group_norm)->groups.integer, compute, &job);
  if (status != GB_OK) return status;
  job.eps = GB_ATTRS(call, group_norm)->eps.number;
  job.weight = one_row(in->weight);
  job.bias = one_row(in->bias);
  job.mean = one_row(out->mean);
  job.rstd = one_row(out->rstd);
  job.means = job.c.sums;
  job.variances = job.c.products;
  gb_rows groups = rows_of(x, job.per);
  status = fold(call, groups, GB_MAP_PLAIN, NULL, (double)groups.length, compute, job.means, NULL);
  if (status == GB_OK)
    status = fold(call, groups, GB_MAP_CENTERED_SQUARE, job.means, (double)groups.length, compute, job.variances, NULL);
  if (status != GB_OK) return status;
  if (compute == GB_FLOAT64) launch_forward<double>(call, &job, x, out->y);
  else launch_forward<float>(call, &job, x, out->y);
  return GB_OK;
}

/* ====} */

/* {==== backward ==== */

template <typename T> __global__ void load_means(group_job job) {
  for (int64_t i = gb_thread<int64_t>(); i < job.images * job.channels; i += gb_grid_size<int64_t>())
    ((T *)job.c.mean)[i] = gb_row_load<T>(job.mean, 0, i / job.per);
}

/* c.sums and c.products hold each cell's sum of grad and of grad * (x - mean). A thread per group makes what its cells
 * need of them. */
template <typename T> __global__ void prepare_gradients(group_job job) {
  for (int64_t group = gb_thread<int64_t>(); group < job.images * job.channels /
       job.per; group += gb_grid_size<int64_t>()) {
    double rstd = (double)gb_row_load<T>(job.rstd, 0, group), plain = 0, along = 0,
        size = (double)(job.per * job.places);
    for (int64_t i = group * job.per; i < (group + 1) * job.per; i++) {
      double weight = (double)parameter<T>(job.weight, i % job.channels, 1);
      plain += weight * (double)((const T *)job.c.sums)[i];
      along += weight * (double)((const T *)job.c.products)[i];
    }
    for (int64_t i = group * job.per; i < (group + 1) * job.per; i++) {
      ((T *)job.c.scale)[i] = (T)rstd * parameter<T>(job.weight, i % job.channels, 1);
      ((T *)job.c.plain)[i] = (T)(rstd * plain / size);
      ((T *)job.c.along)[i] = (T)(rstd * rstd * rstd * along / size);
    }
  }
}

/* dbias is the sum of grad, dweight that of grad * normal, over the images. */
template <typename T> __global__ void sum_images(group_job job) {
  for (int64_t channel = gb_thread<int64_t>(); channel < job.channels; channel += gb_grid_size<int64_t>()) {
    double plain = 0, along = 0;
    for (int64_t i = channel; i < job.images * job.channels; i += job.channels) {
      plain += (double)((const T *)job.c.sums)[i];
      along += (double)((const T *)job.c.products)[i] * (double)gb_row_load<T>(job.rstd, 0, i / job.per);
    }
    if (job.dweight.data) gb_row_store<T>(job.dweight, 0, channel, (T)along);
    if (job.dbias.data) gb_row_store<T>(job.dbias, 0, channel, (T)plain);
  }
}

/* dx = scale * grad - plain - (x - mean) * along */
template <typename T>
__global__ void differentiate_cells(gb_walk w, char *x, int x_dtype, char *grad, int grad_dtype, char *dx, int dx_dtype,
                                    cells c) {
  for (int64_t i = gb_thread<int64_t>(); i < w.numel; i += gb_grid_size<int64_t>()) {
    int64_t at[PLACES];
    gb_seek<PLACES>(w, i, at);
    int64_t cell = at[PLACE_CELL];
    T apart = gb_load<T>(x, x_dtype, at[PLACE_X]) - ((const T *)c.mean)[cell],
        g = gb_load<T>(grad, grad_dtype, at[PLACE_GRAD]);
    T value = ((const T *)c.scale)[cell] * g - ((const T *)c.plain)[cell] - apart * ((const T *)c.along)[cell];
    gb_store<T>(dx, dx_dtype, at[PLACE_OUT], value);
  }
}

template <typename T> static gb_status launch_backward(gb_cuda_call *call, const group_job *job, gb_dtype compute) {
  const gb_cuda_in_group_norm_backward *in = GB_CUDA_IN(call, group_norm_backward);
  const gb_cuda_tensor *x = in->x, *grad = in->grad, *dx = GB_CUDA_OUT(call, group_norm_backward)->dx;
  int64_t n = job->images * job->channels;
  gb_rows grads = rows_of(grad, 1);
  gb_walk w = walk_cells(dx, x, grad);
  GB_LAUNCH(call->stream, load_means<T>, gb_blocks(n, GB_THREADS), GB_THREADS, 0, *job);
  gb_status status = fold(call, grads, GB_MAP_PLAIN, NULL, 0, compute, job->c.sums, NULL);
  if (status == GB_OK)
    status = fold(call, rows_of(x, 1), GB_MAP_TIMES_CENTERED, job->c.mean, 0, compute, job->c.products, &grads);
  if (status != GB_OK) return status;
  GB_LAUNCH(call->stream, prepare_gradients<T>, gb_blocks(n / job->per, GB_THREADS), GB_THREADS, 0, *job);
  GB_LAUNCH(call->stream, sum_images<T>, gb_blocks(job->channels, GB_THREADS), GB_THREADS, 0, *job);
  GB_LAUNCH(call->stream, differentiate_cells<T>, gb_blocks(w.numel, GB_THREADS), GB_THREADS, 0, w, x->data, x->dtype,
            grad->data, grad->dtype,
            dx->data, dx->dtype, job->c);
  return GB_OK;
}

static gb_status zero(gb_cuda_call *call, const gb_cuda_tensor *t) {
  return t ? gb_cuda_clear(call, t->data, (size_t)t->numel * gb_bytes_of(t->dtype)) : GB_OK;
}

static gb_status group_norm_backward(gb_cuda_call *call) {
  const gb_cuda_in_group_norm_backward *in = GB_CUDA_IN(call, group_norm_backward);
  const gb_cuda_out_group_norm_backward *out = GB_CUDA_OUT(call, group_norm_backward);
  gb_dtype compute = gb_compute_dtype(in->x->dtype, in->grad->dtype);
  if (in->x->numel == 0) {
    gb_status status = zero(call, out->dweight);
    return status == GB_OK ? zero(call, out->dbias) : status;
  }
  group_job job = {};
  gb_status status = open_job(call, in->x, in->mean->shape[1], compute, &job);
  if (status != GB_OK) return status;
  job.weight = one_row(in->weight);
  job.mean = one_row(in->mean);
  job.rstd = one_row(in->rstd);
  job.dweight = one_row(out->dweight);
  job.dbias = one_row(out->dbias);
  return compute == GB_FLOAT64 ? launch_backward<double>(call, &job, compute)
      : launch_backward<float>(call, &job, compute);
}

/* ====} */

const gb_cuda_row gb_cuda_group_norm[] = {
  { GB_OP_group_norm, group_norm, false }, { GB_OP_group_norm_backward, group_norm_backward, false },
      { GB_OP_COUNT, NULL, false },
};
