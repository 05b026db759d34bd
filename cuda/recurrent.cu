/* cuda/recurrent.cu - a layer of recurrent cells over a sequence, forward and backward: a product of the state with
 * weight for each step (product.h), and one kernel for its gates.
 *
 * A thread has one unit of one sequence in a step; nobody else touches its state, so one buffer of states serves all
 * steps. h meets weight in the dtype of y, as do the gradients of the sums; sums, gates, cell states and the gradients
 * of states are float32 (float64 for float64). Work of a step: 2 batch gates size^2 operations in the product. */
#include "cuda/device.cuh"
#include "base/gates.h"
#include "cuda/families.h"
#include "cuda/product.h"

/* A tensor as [time, batch, columns], or [batch, columns] with a stride of 0 over time; without data where absent. */
struct steps { char *data; int dtype; int64_t time, row, column; };

/* One call, forward or backward. */
struct recurrent {
  int64_t cell, gates, time, batch, hidden; /* cell: a word */
  bool backwards;
  steps lengths, x, bias, y, units, cells, first_h, first_c, grad, dgates, dsums, before;
  steps h;                           /* the state, in the dtype of y */
  void *sums, *c, *dh, *dc;          /* lanes: [batch, gates * hidden], and [batch, hidden] */
  steps slopes;                      /* gradients of sums, [time or 1, batch, gates * hidden], in the dtype of y */
};

/* {==== reading ==== */

static steps steps_of(const gb_cuda_tensor *t) {
  steps s = {};
  if (!t) return s;
  s.data = t->data;
  s.dtype = t->dtype;
  s.time = t->ndim == 3 ? t->stride[0] : 0;
  s.row = t->ndim > 1 ? t->stride[t->ndim - 2] : 0;
  s.column = t->stride[t->ndim - 1];
  return s;
}

/* Rows of so many elements, one behind the other. */
static steps dense(void *data, gb_dtype dtype, int64_t columns) {
  steps s = { (char *)data, dtype, 0, columns, 1 };
  return s;
}

template <typename T> static GB_DEVICE T load(const steps &s, int64_t t, int64_t row, int64_t column) {
  return gb_load<T>(s.data, s.dtype, t * s.time + row * s.row + column * s.column);
}
template <typename T> static GB_DEVICE void store(const steps &s, int64_t t, int64_t row, int64_t column, T x) {
  if (s.data) gb_store<T>(s.data, s.dtype, t * s.time + row * s.row + column * s.column, x);
}

static GB_DEVICE bool goes_on(const recurrent &r, int64_t t, int64_t row) {
  return !r.lengths.data || t < gb_load<int64_t>(r.lengths.data, r.lengths.dtype, row * r.lengths.column);
}

/* ====} */

/* {==== base/gates.h in either type ==== */

#define GB_OF_TYPES(T, suffix)                                                                                        \
  static GB_DEVICE void lstm(T *p, T *c, T *h) { gb_lstm_##suffix(&p[0], &p[1], &p[2], &p[3], c, h); }                \
  static GB_DEVICE void gru(T *p, T *h) { gb_gru_##suffix(&p[0], &p[1], &p[2], p[3], h); }                            \
  static GB_DEVICE T plain(T x, bool bent) { return bent ? gb_tanh_##suffix(x) : gb_relu_##suffix(x); }               \
  static GB_DEVICE void lstm_backward(T *p, T c, T before, T dh, T *dc) {                                             \
    gb_lstm_backward_##suffix(&p[0], &p[1], &p[2], &p[3], c, before, dh, dc);                                         \
  }                                                                                                                   \
  static GB_DEVICE void gru_backward(T *p, T before, T *dh) {                                                         \
    gb_gru_backward_##suffix(&p[0], &p[1], &p[2], &p[3], before, dh);                                                 \
  }                                                                                                                   \
  static GB_DEVICE T plain_backward(T dh, T h, bool bent) {                                                           \
    return bent ? gb_tanh_backward_##suffix(dh, h) : gb_relu_backward_##suffix(dh, h);                                \
  }
GB_OF_TYPES(float, f32)
GB_OF_TYPES(double, f64)
#undef GB_OF_TYPES

/* ====} */

/* {==== forward ==== */

/* The sums of a unit: the input's part, the state's, and the bias. Of a GRU the state's part of the last gate stays
 * apart, behind the others. */
template <typename T> static GB_DEVICE void complete(const recurrent &r, int64_t t, int64_t row, int64_t j, T *p) {
  for (int64_t k = 0; k < r.gates; k++) {
    int64_t column = k * r.hidden + j;
    T state = ((const T *)r.sums)[row * r.gates * r.hidden + column];
    if (r.bias.data) state += load<T>(r.bias, 0, 0, column);
    p[k] = load<T>(r.x, t, row, column);
    if (r.cell == GB_WORD_gru && k == 2) p[3] = state;
    else p[k] += state;
  }
}

template <typename T> static __global__ void forward_kernel(recurrent r, int64_t t) {
  for (int64_t i = gb_thread<int64_t>(); i < r.batch * r.hidden; i += gb_grid_size<int64_t>()) {
    int64_t row = i / r.hidden, j = i % r.hidden, units = r.gates > 1 ? 4 : 0;
    T p[4] = { 0, 0, 0, 0 }, c = r.c ? ((const T *)r.c)[i] : (T)0, h = 0;
    if (goes_on(r, t, row)) {
      complete(r, t, row, j, p);
      if (r.cell == GB_WORD_gru) h = load<T>(r.h, 0, row, j);
      if (r.cell == GB_WORD_lstm) lstm(p, &c, &h);
      else if (r.cell == GB_WORD_gru) gru(p, &h);
      else h = plain(p[0], r.cell == GB_WORD_tanh);
      store<T>(r.h, 0, row, j, h);
      if (r.c) ((T *)r.c)[i] = c;
    }
    store<T>(r.y, t, row, j, h);
    for (int64_t k = 0; k < units; k++) store<T>(r.units, t, row, k * r.hidden + j, p[k]);
    store<T>(r.cells, t, row, j, c);
  }
}

/* ====} */

/* {==== backward ==== */

/* The state before step t: its own, where it has one, or that which the sequence begins with. */
template <typename T> static GB_DEVICE T before_of(const recurrent &r, const steps &own, const steps &first, int64_t t,
                                                   int64_t row, int64_t j) {
  int64_t before = r.backwards ? t + 1 : t - 1;
  bool begins = before < 0 || before >= r.time || !goes_on(r, before, row);
  return begins ? load<T>(first, 0, row, j) : load<T>(own, before, row, j);
}

template <typename T> static __global__ void backward_kernel(recurrent r, int64_t t) {
  const bool is_gru = r.cell == GB_WORD_gru, is_lstm = r.cell == GB_WORD_lstm;
  for (int64_t i = gb_thread<int64_t>(); i < r.batch * r.hidden; i += gb_grid_size<int64_t>()) {
    int64_t row = i / r.hidden, j = i % r.hidden;
    T p[4] = { 0, 0, 0, 0 }, before = 0, *dh = (T *)r.dh + i;
    if (goes_on(r, t, row)) {
      if (r.grad.data) *dh += load<T>(r.grad, t, row, j);
      for (int64_t k = 0; r.units.data && k < 4; k++) p[k] = load<T>(r.units, t, row, k * r.hidden + j);
      before = before_of<T>(r, r.y, r.first_h, t, row, j);
      if (is_lstm)
        lstm_backward(p, load<T>(r.cells, t, row, j), before_of<T>(r, r.cells, r.first_c, t, row, j), *dh,
                      (T *)r.dc + i);
      else if (is_gru) gru_backward(p, before, dh);
      else p[0] = plain_backward(*dh, load<T>(r.y, t, row, j), r.cell == GB_WORD_tanh);
      if (!is_gru) *dh = 0;
    }
    store<T>(r.before, t, row, j, before);
    for (int64_t k = 0; k < r.gates; k++) {
      T sum = is_gru && k == 2 ? p[3] : p[k];
      store<T>(r.dgates, t, row, k * r.hidden + j, p[k]);
      store<T>(r.slopes, t, row, k * r.hidden + j, sum);
    }
  }
}

/* ====} */

/* {==== running ==== */

static gb_dtype lane_of(gb_dtype dtype) { return dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32; }

/* What forward and backward have in common. */
static recurrent recurrent_of(gb_cuda_call *call, const gb_cuda_tensor *y, const gb_cuda_tensor *lengths) {
  const gb_attrs_recurrent *attrs = GB_ATTRS(call, recurrent);
  recurrent r = {};
  r.cell = attrs->cell.integer;
  r.backwards = attrs->backwards.integer;
  r.gates = r.cell == GB_WORD_lstm ? 4 : r.cell == GB_WORD_gru ? 3 : 1;
  r.time = y->shape[0], r.batch = y->shape[1], r.hidden = y->shape[2];
  r.y = steps_of(y);
  r.lengths = steps_of(lengths);
  return r;
}

/* A dense matrix [batch, hidden] in scratch, of a state's numbers, or of zeros. NULL: out of memory. */
static void *state_of(gb_cuda_call *call, const recurrent &r, const gb_cuda_tensor *from, gb_dtype dtype,
                      gb_status *status) {
  gb_cuda_tensor to = {};
  size_t bytes = (size_t)(r.batch * r.hidden) * gb_bytes_of(dtype);
  to.data = (char *)gb_cuda_scratch(call, bytes);
  to.dtype = dtype, to.ndim = 2, to.numel = r.batch * r.hidden;
  to.shape[0] = r.batch, to.shape[1] = to.stride[0] = r.hidden, to.stride[1] = 1;
  if (!to.data) *status = GB_EMEMORY;
  else if (from) *status = gb_cuda_copy(call, &to, from);
  else if (gb_rt_set(call->stream, to.data, 0, bytes))
    *status = gb_cuda_fail(call, GB_EDEVICE, "a state could not be cleared");
  return *status == GB_OK ? to.data : NULL;
}

/* Copy a dense [batch, hidden] into a result. */
static gb_status put_state(gb_cuda_call *call, const gb_cuda_tensor *to, void *from, gb_dtype dtype) {
  gb_cuda_tensor dense = *to;
  dense.data = (char *)from;
  dense.dtype = dtype;
  dense.stride[0] = to->shape[1], dense.stride[1] = 1;
  return gb_cuda_copy(call, to, &dense);
}

/* weight [gates * hidden, hidden] as the library takes it. */
static gb_status prepare(gb_cuda_call *call, const recurrent &r, const gb_cuda_tensor *weight, gb_gemm_matrix *out) {
  gb_gemm_matrix m = { weight->data, weight->dtype, weight->stride[0], weight->stride[1] };
  *out = m;
  return gb_product_prepare(call, out, r.gates * r.hidden, r.hidden, weight->dtype);
}

/* c [batch, n] = a [batch, k] @ b, or added to it. */
static gb_status multiply(gb_cuda_call *call, const recurrent &r, int64_t n, int64_t k, const void *a, int dtype,
                          gb_gemm_matrix b, void *c, gb_dtype lane, bool accumulate) {
  gb_product p = {};
  int mark = call->scratches;
  p.m = r.batch, p.n = n, p.k = k;
  p.a.data = a, p.a.dtype = (gb_dtype)dtype, p.a.row_stride = k, p.a.column_stride = 1;
  p.b = b;
  p.c = c, p.dtype = lane;
  p.accumulate = accumulate;
  gb_status status = gb_product_run(call, &p);
  gb_cuda_scratch_back(call, mark);
  return status;
}

static gb_status recurrent_forward(gb_cuda_call *call) {
  const gb_cuda_in_recurrent *in = GB_CUDA_IN(call, recurrent);
  const gb_cuda_out_recurrent *out = GB_CUDA_OUT(call, recurrent);
  recurrent r = recurrent_of(call, out->y, in->lengths);
  const gb_dtype dtype = out->y->dtype, lane = lane_of(dtype);
  const int64_t size = r.batch * r.hidden, wide = r.gates * r.hidden;
  gb_status status = GB_OK;
  gb_gemm_matrix w;
  if (size == 0) return GB_OK;
  r.x = steps_of(in->gates), r.bias = steps_of(in->bias);
  r.units = steps_of(out->units), r.cells = steps_of(out->cells);
  status = prepare(call, r, in->weight, &w);
  if (status != GB_OK) return status;
  gb_gemm_matrix turned = { w.data, w.dtype, w.column_stride, w.row_stride };
  r.h = dense(state_of(call, r, in->h, dtype, &status), dtype, r.hidden);
  if (status != GB_OK) return status;
  if (in->c) r.c = state_of(call, r, in->c, lane, &status);
  if (status != GB_OK) return status;
  r.sums = gb_cuda_scratch(call, (size_t)(r.batch * wide) * gb_bytes_of(lane));
  if (!r.sums) return GB_EMEMORY;
  for (int64_t i = 0; i < r.time; i++) {
    int64_t t = r.backwards ? r.time - 1 - i : i;
    status = multiply(call, r, wide, r.hidden, r.h.data, dtype, turned, r.sums, lane, false);
    if (status != GB_OK) return status;
    if (lane == GB_FLOAT64)
      GB_LAUNCH(call->stream, forward_kernel<double>, gb_blocks(size, GB_THREADS), GB_THREADS, 0, r, t);
    else GB_LAUNCH(call->stream, forward_kernel<float>, gb_blocks(size, GB_THREADS), GB_THREADS, 0, r, t);
  }
  status = put_state(call, out->last_h, r.h.data, dtype);
  if (status != GB_OK) return status;
  return in->c ? put_state(call, out->last_c, r.c, lane) : GB_OK;
}

/* Where the gradients of sums go: into a result if they have one of their own, or into scratch for one step. */
static gb_status place_slopes(gb_cuda_call *call, recurrent *r, gb_dtype dtype) {
  r->slopes = r->dsums.data ? r->dsums : r->dgates;
  if (r->dsums.data || r->cell != GB_WORD_gru) return GB_OK;
  size_t bytes = (size_t)(r->batch * r->gates * r->hidden) * gb_bytes_of(dtype);
  r->slopes = dense(gb_cuda_scratch(call, bytes), dtype, r->gates * r->hidden);
  return r->slopes.data ? GB_OK : GB_EMEMORY;
}

static gb_status recurrent_backward(gb_cuda_call *call) {
  const gb_cuda_in_recurrent_backward *in = GB_CUDA_IN(call, recurrent_backward);
  const gb_cuda_out_recurrent_backward *out = GB_CUDA_OUT(call, recurrent_backward);
  recurrent r = recurrent_of(call, in->y, in->lengths);
  const gb_dtype dtype = in->y->dtype, lane = lane_of(dtype);
  const int64_t size = r.batch * r.hidden, wide = r.gates * r.hidden;
  gb_status status = GB_OK;
  gb_gemm_matrix w;
  if (size == 0) return GB_OK;
  r.units = steps_of(in->units), r.cells = steps_of(in->cells), r.grad = steps_of(in->grad);
  r.first_h = steps_of(in->h), r.first_c = steps_of(in->c);
  r.dgates = steps_of(out->dgates), r.dsums = steps_of(out->dsums), r.before = steps_of(out->before);
  status = prepare(call, r, in->weight, &w);
  if (status != GB_OK) return status;
  status = place_slopes(call, &r, dtype);
  if (status != GB_OK) return status;
  r.dh = state_of(call, r, in->grad_h, lane, &status);
  if (status != GB_OK) return status;
  if (in->c) r.dc = state_of(call, r, in->grad_c, lane, &status);
  if (status != GB_OK) return status;
  for (int64_t i = 0; i < r.time; i++) {
    int64_t t = r.backwards ? i : r.time - 1 - i;
    const char *slopes = r.slopes.data + t * r.slopes.time * (int64_t)gb_bytes_of(dtype);
    if (lane == GB_FLOAT64)
      GB_LAUNCH(call->stream, backward_kernel<double>, gb_blocks(size, GB_THREADS), GB_THREADS, 0, r, t);
    else GB_LAUNCH(call->stream, backward_kernel<float>, gb_blocks(size, GB_THREADS), GB_THREADS, 0, r, t);
    status = multiply(call, r, r.hidden, wide, slopes, dtype, w, r.dh, lane, true);
    if (status != GB_OK) return status;
  }
  status = put_state(call, out->dh, r.dh, lane);
  if (status != GB_OK) return status;
  return in->c ? put_state(call, out->dc, r.dc, lane) : GB_OK;
}

/* ====} */

const gb_cuda_row gb_cuda_recurrent[] = {
  { GB_OP_recurrent, recurrent_forward, false },
  { GB_OP_recurrent_backward, recurrent_backward, false },
  { GB_OP_COUNT, NULL, false },
};
