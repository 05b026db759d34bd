/* cudnn.c - stands in for cuDNN's recurrent layers, below cuda/rnn.c, through the functions of cudnn.h.
 *
 * Sequences are computed one after the other by plain loops in float64; states and results are rounded to the dtype of
 * the data after each step, operands of TF32 before each product. Gates and weights stand in the library's order, as
 * version 9.26 tells it: of all layers and directions first the matrices, then the biases. Descriptors refuse what the
 * library's refuse; sizes and pointers that its kernels would fault at fail here. Backward writes over the reserve, as
 * the library's does. There is no library unless GIBBOUS_CUDNN_ON_CPU is set; with GIBBOUS_CUDNN_WITHOUT=bfloat16 it is
 * one whose layers do not take that dtype. */
#include <cudnn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats.h"
#include "elements.h"
#include "machine.h"

#define HEADER 2 /* numbers at the begin of a reserve: what has been done with it, and was it in TF32 */
enum { FILLED = 1, SPENT = 2 };

struct stand_in_cudnn { gb_stream stream; };
struct stand_in_dropout { char set; };
struct stand_in_tensor { cudnnDataType_t type; int ndim, shape[3], stride[3]; };
struct stand_in_steps { cudnnDataType_t type; int time, batch, features, *lengths; };
struct stand_in_rnn {
  cudnnRNNMode_t mode;
  cudnnDataType_t type;
  bool bias, tf32;
  int directions, inputs, hidden, state, layers, gates;
};

static _Thread_local char last_error[128];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why) {
  snprintf(last_error, sizeof last_error, "%s", why);
  return status;
}

/* {==== objects ==== */

const char *cudnnGetErrorString(cudnnStatus_t status) {
  static const char *const texts[] = { "success", "the emulated device has no cuDNN", "out of memory",
                                       "an argument is wrong", "not supported", "the run failed" };
  return texts[status];
}

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", last_error); }

static cudnnStatus_t make(void *out, size_t bytes) {
  void *object = calloc(1, bytes);
  if (!object) return CUDNN_STATUS_ALLOC_FAILED;
  memcpy(out, &object, sizeof object);
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t drop(void *object) {
  free(object);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  return getenv("GIBBOUS_CUDNN_ON_CPU") ? make(handle, sizeof **handle) : CUDNN_STATUS_NOT_INITIALIZED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return drop(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor) { return make(tensor, sizeof **tensor); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return drop(tensor); }
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *dropout) {
  return make(dropout, sizeof **dropout);
}
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout) { return drop(dropout); }
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *rnn) { return make(rnn, sizeof **rnn); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn) { return drop(rnn); }
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *steps) { return make(steps, sizeof **steps); }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t steps) {
  free(steps->lengths);
  return drop(steps);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int ndim, const int shape[],
                                         const int stride[]) {
  if (ndim != 3) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a tensor of other than three dimensions");
  *t = (struct stand_in_tensor){ .type = type, .ndim = ndim };
  memcpy(t->shape, shape, sizeof t->shape);
  memcpy(t->stride, stride, sizeof t->stride);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t t, int most, cudnnDataType_t *type, int *ndim,
                                         int shape[], int stride[]) {
  *type = t->type, *ndim = t->ndim;
  memcpy(shape, t->shape, sizeof *shape * (size_t)(most < 3 ? most : 3));
  memcpy(stride, t->stride, sizeof *stride * (size_t)(most < 3 ? most : 3));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float p, void *states,
                                        size_t bytes, unsigned long long seed) {
  (void)states, (void)bytes, (void)seed;
  if (!handle) return refuse(CUDNN_STATUS_BAD_PARAM, "there is no handle");
  if (p != 0) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "dropout"); /* this stand-in draws no random numbers */
  dropout->set = 1;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t directions,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type, cudnnDataType_t compute,
                                       cudnnMathType_t math, int32_t inputs, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  (void)algorithm, (void)input;
  if (inputs < 1 || hidden < 1 || layers < 1 || projected < 1 || projected > hidden || !dropout || !dropout->set)
    return refuse(CUDNN_STATUS_BAD_PARAM, "sizes of a network");
  if (projected != hidden && mode != CUDNN_LSTM) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only LSTMs are projected");
  if (compute != (type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the type of its sums");
  if (flags != CUDNN_RNN_PADDED_IO_ENABLED) return refuse(CUDNN_STATUS_BAD_PARAM, "unpacked sequences need the flag");
  *rnn = (struct stand_in_rnn){ .mode = mode, .type = type, .bias = bias == CUDNN_RNN_DOUBLE_BIAS,
                                .tf32 = type == CUDNN_DATA_FLOAT && math != CUDNN_FMA_MATH,
                                .directions = directions == CUDNN_BIDIRECTIONAL ? 2 : 1, .inputs = inputs,
                                .hidden = hidden, .state = projected, .layers = layers,
                                .gates = mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1 };
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t steps, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int time, int batch, int features,
                                        const int lengths[], void *fill) {
  (void)layout;
  if (time < 1 || batch < 1 || features < 1) return refuse(CUDNN_STATUS_BAD_PARAM, "sizes of a sequence");
  for (int i = 0; i < batch; i++)
    if (lengths[i] < 0 || lengths[i] > time) return refuse(CUDNN_STATUS_BAD_PARAM, "a length is out of range");
  if (!fill || *(const char *)fill) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only zeros behind a sequence");
  int *list = malloc(sizeof *list * (size_t)batch);
  if (!list) return CUDNN_STATUS_ALLOC_FAILED;
  memcpy(list, lengths, sizeof *list * (size_t)batch);
  free(steps->lengths);
  *steps = (struct stand_in_steps){ .type = type, .time = time, .batch = batch, .features = features,
                                    .lengths = list };
  return CUDNN_STATUS_SUCCESS;
}

/* ====} */

/* {==== where things lie ==== */

static gb_dtype dtype_of(cudnnDataType_t type) {
  static const gb_dtype dtypes[] = { GB_FLOAT32, GB_FLOAT64, GB_FLOAT16, GB_BFLOAT16 };
  return dtypes[type];
}

/* Features that go into a layer, whose directions count as layers of their own. */
static int64_t inputs_of(const struct stand_in_rnn *r, int64_t layer) {
  return layer < r->directions ? r->inputs : r->directions * r->state;
}

/* Elements of a layer's matrices. */
static int64_t matrices_of(const struct stand_in_rnn *r, int64_t layer) {
  int64_t projection = r->state != r->hidden ? r->state * (int64_t)r->hidden : 0;
  return (int64_t)r->gates * r->hidden * (inputs_of(r, layer) + r->state) + projection;
}

static int64_t all_matrices(const struct stand_in_rnn *r) {
  int64_t sum = 0;
  for (int64_t i = 0; i < (int64_t)r->layers * r->directions; i++) sum += matrices_of(r, i);
  return sum;
}

/* The first element of a layer's matrices for its input, for its state, its projection, and its two biases. */
typedef struct places { int64_t input, state, projection, input_bias, state_bias; } places;
static places places_of(const struct stand_in_rnn *r, int64_t layer) {
  int64_t at = 0, wide = (int64_t)r->gates * r->hidden;
  for (int64_t i = 0; i < layer; i++) at += matrices_of(r, i);
  places p = { .input = at, .state = at + wide * inputs_of(r, layer) };
  p.projection = p.state + wide * r->state;
  p.input_bias = all_matrices(r) + 2 * layer * wide;
  p.state_bias = p.input_bias + wide;
  return p;
}

static int64_t weights_of(const struct stand_in_rnn *r) {
  int64_t biases = r->bias ? 2 * (int64_t)r->gates * r->hidden * r->layers * r->directions : 0;
  return all_matrices(r) + biases;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *bytes) {
  if (!handle) return refuse(CUDNN_STATUS_BAD_PARAM, "there is no handle");
  *bytes = size_of(dtype_of(rnn->type), weights_of(rnn));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t r, int32_t layer, size_t bytes,
                                      const void *weights, int32_t part, cudnnTensorDescriptor_t matrix,
                                      void **matrix_at, cudnnTensorDescriptor_t bias, void **bias_at) {
  gb_dtype dtype = dtype_of(r->type);
  bool projection = part == 2 * r->gates, of_state = part >= r->gates;
  if (!handle || layer < 0 || layer >= r->layers * r->directions || part < 0 || part > 2 * r->gates ||
      (projection && r->mode != CUDNN_LSTM) || bytes != size_of(dtype, weights_of(r)))
    return refuse(CUDNN_STATUS_BAD_PARAM, "a weight that is not there");
  places p = places_of(r, layer);
  int64_t gate = part % r->gates, columns = of_state ? r->state : inputs_of(r, layer);
  int64_t at = projection ? p.projection : (of_state ? p.state : p.input) + gate * r->hidden * columns;
  bool has_matrix = !projection || r->state != r->hidden, has_bias = !projection && r->bias;
  *matrix = (struct stand_in_tensor){ .type = r->type, .ndim = 3,
                                      .shape = { 1, projection ? r->state : r->hidden,
                                                 projection ? r->hidden : (int)columns } };
  *bias = (struct stand_in_tensor){ .type = r->type, .ndim = 3, .shape = { 1, r->hidden, 1 } };
  *matrix_at = has_matrix ? (char *)weights + size_of(dtype, at) : NULL;
  *bias_at = has_bias ? (char *)weights + size_of(dtype, (of_state ? p.state_bias : p.input_bias) + gate * r->hidden)
      : NULL;
  return CUDNN_STATUS_SUCCESS;
}

/* What a reserve has of a layer, numbers of float64: for each step and sequence the four gates of every unit (of a GRU
 * the state's part of the last as the fourth; of a plain cell the result), the cell states, the states, and after
 * backward the gradients of the sums, of the input and of the state, and those of the states. */
typedef struct kept { double *gates, *c, *h, *of_input, *of_state, *slopes; } kept;
static int64_t kept_by_layer(const struct stand_in_rnn *r, int64_t rows) {
  return rows * (4 * r->hidden + r->hidden + 2 * r->state + 2 * r->gates * r->hidden);
}
static kept kept_of(const struct stand_in_rnn *r, double *reserve, int64_t rows, int64_t layer) {
  double *at = reserve + HEADER + layer * kept_by_layer(r, rows);
  kept k = { .gates = at, .c = at + rows * 4 * r->hidden };
  k.h = k.c + rows * r->hidden;
  k.of_input = k.h + rows * r->state;
  k.of_state = k.of_input + rows * r->gates * r->hidden;
  k.slopes = k.of_state + rows * r->gates * r->hidden;
  return k;
}

static size_t reserve_of(const struct stand_in_rnn *r, const struct stand_in_steps *x) {
  int64_t rows = (int64_t)x->time * x->batch;
  return sizeof(double) * (size_t)(HEADER + r->layers * r->directions * kept_by_layer(r, rows));
}

static size_t workspace_of(const struct stand_in_rnn *r, const struct stand_in_steps *x) {
  return size_of(dtype_of(r->type), (int64_t)x->time * x->batch * r->gates * r->hidden);
}

/* Versions that lack a dtype describe such layers, and say so here. */
static bool is_missing(cudnnDataType_t type) {
  const char *without = getenv("GIBBOUS_CUDNN_WITHOUT");
  return type == CUDNN_DATA_BFLOAT16 && without && !strcmp(without, "bfloat16");
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t *work, size_t *reserve) {
  if (!handle || x->features != rnn->inputs || x->type != rnn->type)
    return refuse(CUDNN_STATUS_BAD_PARAM, "x is not the network's");
  if (is_missing(rnn->type)) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this dtype");
  *work = workspace_of(rnn, x);
  *reserve = mode == CUDNN_FWD_MODE_TRAINING ? reserve_of(rnn, x) : 0;
  return CUDNN_STATUS_SUCCESS;
}

/* ====} */

/* {==== one call ==== */

typedef struct job {
  struct stand_in_rnn r;
  int time, batch, *lengths;
  gb_dtype dtype;
  const void *x, *hx, *cx, *weights, *dy, *dhy, *dcy;
  void *y, *hy, *cy, *dx, *dhx, *dcx, *dweights, *work;
  double *reserve;
  bool inference;
} job;

static void job_free(void *argument) {
  job *j = argument;
  free(j->lengths);
  free(j);
}

static double rounded(gb_dtype dtype, double x) {
  switch (dtype) {
    case GB_FLOAT64: return x;
    case GB_FLOAT32: return (double)(float)x;
    case GB_FLOAT16: return (double)gb_float16_to_float(gb_float_to_float16((float)x));
    default: return (double)gb_bfloat16_to_float(gb_float_to_bfloat16((float)x));
  }
}

static double operand(const job *j, double x) { return j->r.tf32 ? (double)gb_float_to_tf32((float)x) : x; }

static double weight(const job *j, int64_t i) { return load(j->weights, j->dtype, i); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double given(const void *t, const job *j, int64_t i) { return t ? load(t, j->dtype, i) : 0; }

static int64_t rows_of(const job *j) { return (int64_t)j->time * j->batch; }

/* Where the i-th step of a layer's walk over a sequence of so many steps is. */
static int64_t step_at(const job *j, int64_t layer, int64_t i, int64_t length) {
  return j->r.directions == 2 && layer % 2 ? length - 1 - i : i;
}

/* Feature k of what goes into a layer at a row (a step of a sequence): of x, or of the results of the layer before. */
static double input_at(const job *j, int64_t layer, int64_t row, int64_t k) {
  const struct stand_in_rnn *r = &j->r;
  if (layer < r->directions) return load(j->x, j->dtype, row * r->inputs + k);
  int64_t before = layer / r->directions * r->directions - r->directions + k / r->state;
  return kept_of(r, j->reserve, rows_of(j), before).h[row * r->state + k % r->state];
}

/* ====} */

/* {==== forward ==== */

/* The two sums of unit u's gate g: of the input with its bias, and of the state with its. */
static void sums_of(const job *j, const places *p, int64_t layer, int64_t row, const double *h, int64_t gate,
                    double out[2]) {
  const struct stand_in_rnn *r = &j->r;
  int64_t inputs = inputs_of(r, layer);
  out[0] = r->bias ? weight(j, p->input_bias + gate) : 0;
  out[1] = r->bias ? weight(j, p->state_bias + gate) : 0;
  for (int64_t k = 0; k < inputs; k++)
    out[0] += operand(j, weight(j, p->input + gate * inputs + k)) * operand(j, input_at(j, layer, row, k));
  for (int64_t k = 0; k < r->state; k++)
    out[1] += operand(j, weight(j, p->state + gate * r->state + k)) * operand(j, h[k]);
}

/* Unit u of one step: its gates are kept, *c goes on, and the unit's result comes back. */
static double unit(const job *j, const double sums[4][2], double *gates, double *c, double h) {
  double s[4];
  for (int g = 0; g < j->r.gates; g++) s[g] = sums[g][0] + sums[g][1];
  switch (j->r.mode) {
    case CUDNN_RNN_RELU: return gates[0] = s[0] > 0 || isnan(s[0]) ? s[0] : 0;
    case CUDNN_RNN_TANH: return gates[0] = tanh(s[0]);
    case CUDNN_LSTM:
      gates[0] = sigmoid(s[0]), gates[1] = sigmoid(s[1]), gates[2] = tanh(s[2]), gates[3] = sigmoid(s[3]);
      *c = rounded(j->dtype, gates[1] * *c + gates[0] * gates[2]);
      return gates[3] * tanh(*c);
    case CUDNN_GRU:
      gates[0] = sigmoid(s[0]), gates[1] = sigmoid(s[1]), gates[3] = sums[2][1];
      gates[2] = tanh(sums[2][0] + gates[0] * sums[2][1]);
      return (1 - gates[1]) * gates[2] + gates[1] * h;
  }
  return 0;
}

/* One step: h [state] and c [hidden] become those after it. fresh: room for the units. */
static void step_forward(const job *j, const places *p, const kept *keep, int64_t layer, int64_t row, double *h,
                         double *c, double *fresh) {
  const struct stand_in_rnn *r = &j->r;
  for (int64_t u = 0; u < r->hidden; u++) {
    double sums[4][2] = { { 0 } };
    for (int64_t g = 0; g < r->gates; g++) sums_of(j, p, layer, row, h, g * r->hidden + u, sums[g]);
    fresh[u] = unit(j, sums, keep->gates + (row * r->hidden + u) * 4, &c[u], r->mode == CUDNN_GRU ? h[u] : 0);
    keep->c[row * r->hidden + u] = c[u];
  }
  for (int64_t k = 0; k < r->state; k++) {
    double sum = r->state == r->hidden ? fresh[k] : 0;
    for (int64_t u = 0; r->state != r->hidden && u < r->hidden; u++)
      sum += operand(j, weight(j, p->projection + k * r->hidden + u)) * operand(j, rounded(j->dtype, fresh[u]));
    keep->h[row * r->state + k] = rounded(j->dtype, sum);
  }
  memcpy(h, keep->h + row * r->state, sizeof *h * (size_t)r->state);
}

static void sequence_forward(const job *j, int64_t layer, int64_t b, double *room) {
  const struct stand_in_rnn *r = &j->r;
  const places p = places_of(r, layer);
  const kept keep = kept_of(r, j->reserve, rows_of(j), layer);
  const int64_t at = layer * j->batch + b;
  double *h = room, *c = h + r->state, *fresh = c + r->hidden;
  for (int64_t k = 0; k < r->state; k++) h[k] = given(j->hx, j, at * r->state + k);
  for (int64_t k = 0; k < r->hidden; k++) c[k] = given(j->cx, j, at * r->hidden + k);
  for (int64_t i = 0; i < j->lengths[b]; i++)
    step_forward(j, &p, &keep, layer, step_at(j, layer, i, j->lengths[b]) * j->batch + b, h, c, fresh);
  for (int64_t k = 0; j->hy && k < r->state; k++) store(j->hy, j->dtype, at * r->state + k, h[k]);
  for (int64_t k = 0; j->cy && r->mode == CUDNN_LSTM && k < r->hidden; k++)
    store(j->cy, j->dtype, at * r->hidden + k, c[k]);
}

/* The results of the last layer's directions side by side, and zeros behind each sequence. */
static void write_results(const job *j) {
  const struct stand_in_rnn *r = &j->r;
  const int64_t wide = r->directions * r->state, first = (int64_t)(r->layers - 1) * r->directions;
  for (int64_t row = 0; row < rows_of(j); row++)
    for (int64_t k = 0; k < wide; k++) {
      const kept keep = kept_of(r, j->reserve, rows_of(j), first + k / r->state);
      bool goes_on = row / j->batch < j->lengths[row % j->batch];
      store(j->y, j->dtype, row * wide + k, goes_on ? keep.h[row * r->state + k % r->state] : 0);
    }
}

/* Bytes of what goes in and comes out beside x and y: states, weights, and what is kept, in the dtype of the data. */
static size_t states_moved(const job *j, const void *h, const void *c) { /* those that are there */
  const bool has_c = c && j->r.mode == CUDNN_LSTM;
  return size_of(j->dtype, (int64_t)j->r.layers * j->r.directions * j->batch *
                 ((h ? j->r.state : 0) + (has_c ? j->r.hidden : 0)));
}
static size_t kept_moved(const job *j) {
  int64_t each = j->r.gates * j->r.hidden + j->r.state + (j->r.mode == CUDNN_LSTM ? j->r.hidden : 0);
  return size_of(j->dtype, rows_of(j) * j->r.layers * j->r.directions * each);
}
static size_t x_moved(const job *j) { return size_of(j->dtype, rows_of(j) * j->r.inputs); }
static size_t y_moved(const job *j) { return size_of(j->dtype, rows_of(j) * j->r.directions * j->r.state); }
static size_t weights_moved(const job *j) { return size_of(j->dtype, weights_of(&j->r)); }

static void run_forward(void *argument) {
  job *j = argument;
  const struct stand_in_rnn *r = &j->r;
  struct stand_in_steps x = { .time = j->time, .batch = j->batch };
  double *own = j->inference ? calloc(1, reserve_of(r, &x)) : NULL;
  double *room = calloc((size_t)(r->state + 2 * r->hidden), sizeof *room);
  if ((j->inference && !own) || !room) gb_machine_fail("cuDNN", "out of memory");
  else {
    if (own) j->reserve = own;
    memset(j->work, 0xff, workspace_of(r, &x));
    for (int64_t layer = 0; layer < (int64_t)r->layers * r->directions; layer++)
      for (int64_t b = 0; b < j->batch; b++) sequence_forward(j, layer, b, room);
    write_results(j);
    j->reserve[0] = FILLED, j->reserve[1] = r->tf32;
    gb_machine_moved(x_moved(j) + states_moved(j, j->hx, j->cx) + weights_moved(j),
                     y_moved(j) + states_moved(j, j->hy, j->cy) + (own ? 0 : kept_moved(j)));
  }
  free(own), free(room);
}

/* ====} */

/* {==== backward ==== */

/* The gradients of a unit's sums, of the input and of the state, from that of its result; *dc goes on. before: the
 * unit's state before the step, in c where there is one. What the result adds to the state before comes back. */
static double unit_backward(const job *j, const double *gates, double c, double before, double dh, double *dc,
                            double of_input[4], double of_state[4]) {
  switch (j->r.mode) {
    case CUDNN_RNN_RELU: of_input[0] = of_state[0] = gates[0] > 0 ? dh : 0; return 0;
    case CUDNN_RNN_TANH: of_input[0] = of_state[0] = dh * (1 - gates[0] * gates[0]); return 0;
    case CUDNN_LSTM: {
      double bent = tanh(c), slope = *dc + dh * gates[3] * (1 - bent * bent);
      of_input[0] = slope * gates[2] * gates[0] * (1 - gates[0]);
      of_input[1] = slope * before * gates[1] * (1 - gates[1]);
      of_input[2] = slope * gates[0] * (1 - gates[2] * gates[2]);
      of_input[3] = dh * bent * gates[3] * (1 - gates[3]);
      memcpy(of_state, of_input, 4 * sizeof *of_state);
      *dc = slope * gates[1];
      return 0;
    }
    case CUDNN_GRU:
      of_input[2] = dh * (1 - gates[1]) * (1 - gates[2] * gates[2]);
      of_input[1] = of_state[1] = dh * (before - gates[2]) * gates[1] * (1 - gates[1]);
      of_input[0] = of_state[0] = of_input[2] * gates[3] * gates[0] * (1 - gates[0]);
      of_state[2] = of_input[2] * gates[0];
      return dh * gates[1];
  }
  return 0;
}

/* What is not the layer's own of a walk over one sequence. slopes: the gradients of every layer's results, [layers *
 * directions][row][state]; down: those of what goes into a layer, [row][features]. */
typedef struct walk { double *slopes, *down, *dh, *dc, *du; } walk;

static void step_backward(const job *j, const places *p, const kept *keep, int64_t layer, int64_t row, int64_t earlier,
                          const walk *w) {
  const struct stand_in_rnn *r = &j->r;
  const int64_t b = row % j->batch, at = layer * j->batch + b, inputs = inputs_of(r, layer);
  bool projected = r->state != r->hidden;
  for (int64_t k = 0; k < r->state; k++) w->dh[k] += w->slopes[(layer * rows_of(j) + row) * r->state + k];
  for (int64_t u = 0; u < r->hidden; u++) {
    w->du[u] = projected ? 0 : w->dh[u];
    for (int64_t k = 0; projected && k < r->state; k++)
      w->du[u] += operand(j, weight(j, p->projection + k * r->hidden + u)) * operand(j, w->dh[k]);
  }
  for (int64_t k = 0; k < r->state; k++) {
    keep->slopes[row * r->state + k] = rounded(j->dtype, w->dh[k]);
    w->dh[k] = 0;
  }
  for (int64_t u = 0; u < r->hidden; u++) {
    double of_input[4] = { 0 }, of_state[4] = { 0 }, before = 0;
    if (r->mode == CUDNN_LSTM)
      before = earlier < 0 ? given(j->cx, j, at * r->hidden + u) : keep->c[earlier * r->hidden + u];
    if (r->mode == CUDNN_GRU)
      before = earlier < 0 ? given(j->hx, j, at * r->hidden + u) : keep->h[earlier * r->hidden + u];
    double straight = unit_backward(j, keep->gates + (row * r->hidden + u) * 4, keep->c[row * r->hidden + u], before,
                                    w->du[u], &w->dc[u], of_input, of_state);
    if (r->mode == CUDNN_GRU) w->dh[u] += straight;
    for (int64_t g = 0; g < r->gates; g++) {
      int64_t gate = g * r->hidden + u;
      keep->of_input[row * r->gates * r->hidden + gate] = rounded(j->dtype, of_input[g]);
      keep->of_state[row * r->gates * r->hidden + gate] = rounded(j->dtype, of_state[g]);
    }
  }
  for (int64_t gate = 0; gate < (int64_t)r->gates * r->hidden; gate++) {
    double of_input = operand(j, keep->of_input[row * r->gates * r->hidden + gate]);
    double of_state = operand(j, keep->of_state[row * r->gates * r->hidden + gate]);
    for (int64_t k = 0; k < inputs; k++)
      w->down[row * inputs + k] += operand(j, weight(j, p->input + gate * inputs + k)) * of_input;
    for (int64_t k = 0; k < r->state; k++)
      w->dh[k] += operand(j, weight(j, p->state + gate * r->state + k)) * of_state;
  }
}

static void sequence_backward(const job *j, int64_t layer, int64_t b, const walk *w) {
  const struct stand_in_rnn *r = &j->r;
  const places p = places_of(r, layer);
  const kept keep = kept_of(r, j->reserve, rows_of(j), layer);
  const int64_t at = layer * j->batch + b, length = j->lengths[b];
  for (int64_t k = 0; k < r->state; k++) w->dh[k] = given(j->dhy, j, at * r->state + k);
  for (int64_t k = 0; k < r->hidden; k++) w->dc[k] = given(j->dcy, j, at * r->hidden + k);
  for (int64_t i = length - 1; i >= 0; i--) {
    int64_t row = step_at(j, layer, i, length) * j->batch + b;
    int64_t earlier = i ? step_at(j, layer, i - 1, length) * j->batch + b : -1;
    step_backward(j, &p, &keep, layer, row, earlier, w);
  }
  for (int64_t k = 0; j->dhx && k < r->state; k++) store(j->dhx, j->dtype, at * r->state + k, w->dh[k]);
  for (int64_t k = 0; j->dcx && r->mode == CUDNN_LSTM && k < r->hidden; k++)
    store(j->dcx, j->dtype, at * r->hidden + k, w->dc[k]);
}

/* The layers from the last to the first; what goes into one is the result of those before it. */
static void layers_backward(const job *j, const walk *w) {
  const struct stand_in_rnn *r = &j->r;
  const int64_t count = (int64_t)r->layers * r->directions, rows = rows_of(j), wide = r->directions * r->state;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t k = 0; k < wide; k++)
      w->slopes[((count - r->directions + k / r->state) * rows + row) * r->state + k % r->state] =
          load(j->dy, j->dtype, row * wide + k);
  for (int64_t first = count - r->directions; first >= 0; first -= r->directions) {
    const int64_t inputs = inputs_of(r, first);
    memset(w->down, 0, sizeof *w->down * (size_t)(rows * inputs));
    for (int64_t layer = first; layer < first + r->directions; layer++)
      for (int64_t b = 0; b < j->batch; b++) sequence_backward(j, layer, b, w);
    for (int64_t i = 0; i < rows * inputs; i++) {
      double slope = rounded(j->dtype, w->down[i]);
      int64_t row = i / inputs, k = i % inputs;
      if (first == 0) store(j->dx, j->dtype, i, slope);
      else w->slopes[((first - r->directions + k / r->state) * rows + row) * r->state + k % r->state] = slope;
    }
  }
}

static void run_backward_data(void *argument) {
  job *j = argument;
  const struct stand_in_rnn *r = &j->r;
  struct stand_in_steps x = { .time = j->time, .batch = j->batch };
  const int64_t rows = rows_of(j), widest = r->inputs > r->directions * r->state ? r->inputs : r->directions * r->state;
  const int64_t slopes = (int64_t)r->layers * r->directions * rows * r->state;
  double *room = calloc((size_t)(slopes + rows * widest + r->state + 2 * r->hidden), sizeof *room);
  if (!room) gb_machine_fail("cuDNN", "out of memory");
  else if (j->reserve[0] != FILLED)
    gb_machine_fail("cuDNN", "the reserve is not one that forward has filled and no backward has written over");
  else if (j->reserve[1] != r->tf32)
    gb_machine_fail("cuDNN", "the reserve is of forward by another type of mathematics");
  else {
    walk w = { .slopes = room, .down = room + slopes };
    w.dh = w.down + rows * widest, w.dc = w.dh + r->state, w.du = w.dc + r->hidden;
    memset(j->work, 0xff, workspace_of(r, &x));
    layers_backward(j, &w);
    j->reserve[0] = SPENT;
    gb_machine_moved(y_moved(j) + states_moved(j, j->hx, j->cx) + states_moved(j, j->dhy, j->dcy) + weights_moved(j) +
                     kept_moved(j),
                     x_moved(j) + states_moved(j, j->dhx, j->dcx) +
                     size_of(j->dtype, rows * r->layers * r->directions * r->gates * r->hidden));
  }
  free(room);
}

static void add(const job *j, int64_t i, double x) {
  store(j->dweights, j->dtype, i, load(j->dweights, j->dtype, i) + x);
}

/* What a unit gave before its projection. */
static double result_of(const job *j, const kept *keep, int64_t row, int64_t u) {
  const struct stand_in_rnn *r = &j->r;
  return rounded(j->dtype, keep->gates[(row * r->hidden + u) * 4 + 3] * tanh(keep->c[row * r->hidden + u]));
}

/* Sum over all steps of all sequences of slopes(gate) times what the weight met: feature k of the input, or of the
 * state before, or nothing at all. */
enum met { MET_INPUT, MET_STATE, MET_ONE };
static double gradient_of(const job *j, const kept *keep, int64_t layer, const double *slopes, int64_t gate,
                          enum met what, int64_t k) {
  const struct stand_in_rnn *r = &j->r;
  double sum = 0;
  for (int64_t b = 0; b < j->batch; b++)
    for (int64_t i = 0; i < j->lengths[b]; i++) {
      int64_t row = step_at(j, layer, i, j->lengths[b]) * j->batch + b;
      double slope = slopes[row * r->gates * r->hidden + gate], met = 1;
      if (what == MET_INPUT) met = input_at(j, layer, row, k);
      if (what == MET_STATE)
        met = i ? keep->h[(step_at(j, layer, i - 1, j->lengths[b]) * j->batch + b) * r->state + k]
            : given(j->hx, j, (layer * j->batch + b) * r->state + k);
      sum += what == MET_ONE ? slope : operand(j, slope) * operand(j, met);
    }
  return sum;
}

/* That of the projection, of the states' slopes and what the units gave. */
static void projection_weights(const job *j, const places *p, const kept *keep) {
  const struct stand_in_rnn *r = &j->r;
  for (int64_t row = 0; row < rows_of(j); row++)
    for (int64_t k = 0; row / j->batch < j->lengths[row % j->batch] && k < r->state; k++)
      for (int64_t u = 0; u < r->hidden; u++)
        add(j, p->projection + k * r->hidden + u,
            operand(j, keep->slopes[row * r->state + k]) * operand(j, result_of(j, keep, row, u)));
}

static void layer_weights(const job *j, int64_t layer) {
  const struct stand_in_rnn *r = &j->r;
  const places p = places_of(r, layer);
  const kept keep = kept_of(r, j->reserve, rows_of(j), layer);
  const int64_t inputs = inputs_of(r, layer);
  if (r->state != r->hidden) projection_weights(j, &p, &keep);
  for (int64_t gate = 0; gate < (int64_t)r->gates * r->hidden; gate++) {
    for (int64_t k = 0; k < inputs; k++)
      add(j, p.input + gate * inputs + k, gradient_of(j, &keep, layer, keep.of_input, gate, MET_INPUT, k));
    for (int64_t k = 0; k < r->state; k++)
      add(j, p.state + gate * r->state + k, gradient_of(j, &keep, layer, keep.of_state, gate, MET_STATE, k));
    if (!r->bias) continue;
    add(j, p.input_bias + gate, gradient_of(j, &keep, layer, keep.of_input, gate, MET_ONE, 0));
    add(j, p.state_bias + gate, gradient_of(j, &keep, layer, keep.of_state, gate, MET_ONE, 0));
  }
}

static void run_backward_weights(void *argument) {
  job *j = argument;
  struct stand_in_steps x = { .time = j->time, .batch = j->batch };
  if (j->reserve[0] != SPENT) {
    gb_machine_fail("cuDNN", "the gradients of weights come behind those of the data");
    return;
  }
  memset(j->work, 0xff, workspace_of(&j->r, &x));
  for (int64_t layer = 0; layer < (int64_t)j->r.layers * j->r.directions; layer++) layer_weights(j, layer);
  gb_machine_moved(x_moved(j) + y_moved(j) + states_moved(j, j->hx, NULL) + weights_moved(j) +
                   size_of(j->dtype, rows_of(j) * j->r.layers * j->r.directions * j->r.gates * j->r.hidden),
                   weights_moved(j));
}

/* ====} */

/* {==== calls ==== */

/* Is memory of the device there? NULL only where it is optional. */
static bool is_there(const void *memory, bool optional) { return memory ? gb_rt_is_on_device(memory) : optional; }

static bool is_state(const struct stand_in_rnn *r, const struct stand_in_steps *x, cudnnTensorDescriptor_t t,
                     int size) {
  return t->type == r->type && t->shape[0] == r->layers * r->directions && t->shape[1] == x->batch &&
         t->shape[2] == size && t->stride[0] == x->batch * size && t->stride[1] == size && t->stride[2] == 1;
}

/* What every call is looked at for; the job comes back with the network and the lengths. */
static cudnnStatus_t begin(cudnnHandle_t handle, const struct stand_in_rnn *r, const int32_t *lengths,
                           const struct stand_in_steps *x, const struct stand_in_steps *y, size_t weight_bytes,
                           size_t work_bytes, void *work, job **out) {
  if (!handle || lengths) return refuse(CUDNN_STATUS_BAD_PARAM, "lengths are those of the descriptors");
  if (x->features != r->inputs || y->features != r->directions * r->state || x->type != r->type ||
      y->type != r->type || x->time != y->time || x->batch != y->batch ||
      memcmp(x->lengths, y->lengths, sizeof *x->lengths * (size_t)x->batch))
    return refuse(CUDNN_STATUS_BAD_PARAM, "x and y are not the network's");
  if (weight_bytes != size_of(dtype_of(r->type), weights_of(r)) || work_bytes < workspace_of(r, x) ||
      !is_there(work, false))
    return refuse(CUDNN_STATUS_BAD_PARAM, "the weights or the workspace are too small");
  *out = malloc(sizeof **out);
  int *list = malloc(sizeof *list * (size_t)x->batch);
  if (!*out || !list) {
    free(*out), free(list);
    return CUDNN_STATUS_ALLOC_FAILED;
  }
  memcpy(list, x->lengths, sizeof *list * (size_t)x->batch);
  **out = (job){ .r = *r, .time = x->time, .batch = x->batch, .lengths = list, .dtype = dtype_of(r->type),
                 .work = work };
  return CUDNN_STATUS_SUCCESS;
}

/* Do it, if the pointers are sound. */
static cudnnStatus_t submit(cudnnHandle_t handle, job *j, bool sound, const char *name, void (*run)(void *argument)) {
  if (!sound) {
    job_free(j);
    return refuse(CUDNN_STATUS_BAD_PARAM, "a pointer leaves the device's memory, or h or c is described wrongly");
  }
  gb_machine_do(handle->stream, name, run, job_free, j);
  return CUDNN_STATUS_SUCCESS;
}

static bool are_states(const struct stand_in_rnn *r, const struct stand_in_steps *x, cudnnTensorDescriptor_t h,
                       cudnnTensorDescriptor_t c) {
  return is_state(r, x, h, r->state) && (r->mode != CUDNN_LSTM || is_state(r, x, c, r->hidden));
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const int32_t lengths[], cudnnRNNDataDescriptor_t x_steps, const void *x,
                              cudnnRNNDataDescriptor_t y_steps, void *y, cudnnTensorDescriptor_t h, const void *hx,
                              void *hy, cudnnTensorDescriptor_t c, const void *cx, void *cy, size_t weight_bytes,
                              const void *weights, size_t work_bytes, void *work, size_t reserve_bytes,
                              void *reserve) {
  job *j;
  bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  cudnnStatus_t status = begin(handle, rnn, lengths, x_steps, y_steps, weight_bytes, work_bytes, work, &j);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  j->x = x, j->hx = hx, j->cx = cx, j->weights = weights, j->y = y, j->hy = hy, j->cy = cy, j->reserve = reserve;
  j->inference = !trains;
  bool sound = is_there(x, false) && is_there(y, false) && is_there(hx, true) && is_there(cx, true) &&
      is_there(hy, true) && is_there(cy, true) && is_there(weights, false) && are_states(rnn, x_steps, h, c) &&
      (!trains || (is_there(reserve, false) && reserve_bytes >= reserve_of(rnn, x_steps)));
  return submit(handle, j, sound, "recurrent layers", run_forward);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
                                      cudnnRNNDataDescriptor_t y_steps, const void *y, const void *dy,
                                      cudnnRNNDataDescriptor_t x_steps, void *dx, cudnnTensorDescriptor_t h,
                                      const void *hx, const void *dhy, void *dhx, cudnnTensorDescriptor_t c,
                                      const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                                      const void *weights, size_t work_bytes, void *work, size_t reserve_bytes,
                                      void *reserve) {
  job *j;
  cudnnStatus_t status = begin(handle, rnn, lengths, x_steps, y_steps, weight_bytes, work_bytes, work, &j);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  j->hx = hx, j->cx = cx, j->weights = weights, j->dy = dy, j->dhy = dhy, j->dcy = dcy, j->dx = dx, j->dhx = dhx;
  j->dcx = dcx, j->reserve = reserve;
  bool sound = is_there(y, false) && is_there(dy, false) && is_there(dx, false) && is_there(hx, true) &&
      is_there(cx, true) && is_there(dhy, true) && is_there(dcy, true) && is_there(dhx, true) && is_there(dcx, true) &&
      is_there(weights, false) && is_there(reserve, false) && reserve_bytes >= reserve_of(rnn, x_steps) &&
      are_states(rnn, x_steps, h, c);
  return submit(handle, j, sound, "gradients of recurrent layers", run_backward_data);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t add_to,
                                         const int32_t lengths[], cudnnRNNDataDescriptor_t x_steps, const void *x,
                                         cudnnTensorDescriptor_t h, const void *hx, cudnnRNNDataDescriptor_t y_steps,
                                         const void *y, size_t weight_bytes, void *dweights, size_t work_bytes,
                                         void *work, size_t reserve_bytes, void *reserve) {
  job *j;
  if (add_to != CUDNN_WGRAD_MODE_ADD) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "gradients that are not added");
  cudnnStatus_t status = begin(handle, rnn, lengths, x_steps, y_steps, weight_bytes, work_bytes, work, &j);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  j->x = x, j->hx = hx, j->dweights = dweights, j->reserve = reserve;
  bool sound = is_there(x, false) && is_there(y, false) && is_there(hx, true) && is_there(dweights, false) &&
      is_there(reserve, false) && reserve_bytes >= reserve_of(rnn, x_steps) && is_state(rnn, x_steps, h, rnn->state);
  return submit(handle, j, sound, "gradients of recurrent weights", run_backward_weights);
}

/* ====} */
