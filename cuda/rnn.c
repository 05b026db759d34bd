/* cuda/rnn.c - recurrent layers by cuDNN. See rnn.h.
 *
 * Descriptors are kept per network and size. Sequences lie unpacked, a step after the other, and the lengths go with
 * the descriptors of x and y, on the host; the library fills y with zeros behind them. A captured graph would keep the
 * lengths of its capture, so there are none in one. The library's dropout between layers stays off, since it would draw
 * random numbers of its own. It computes in float32 (float64 for float64), from operands rounded to TF32 only where
 * that was asked for. Its products have the same bits in each run only where cuBLAS keeps to one size of workspaces,
 * which CUBLAS_WORKSPACE_CONFIG says; else it does not run where the same bits are wanted. Floor: 2 gates hidden (input
 * + state) operations for each step of a sequence, the weights read once. */
#include "cuda/rnn.h"

#include <cudnn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/cuda.h"

enum { MOST_PLANS = 256, MOST_LAYERS = 1024 };

/* Plans are found by the bytes of what they are of, so there are none between its members. */
_Static_assert(sizeof(gb_rnn) == 8 * sizeof(int64_t) + 4 * sizeof(int32_t), "gb_rnn has no gaps");

struct gb_rnns {
  cudnnHandle_t handle;
  cudnnDropoutDescriptor_t dropout;    /* none */
  gb_cache *plans;
};

/* A network of one size, or the reason why the library does not run it. */
typedef struct plan {
  bool refused;
  char why[192];
  cudnnRNNDescriptor_t rnn;
  cudnnRNNDataDescriptor_t x, y;       /* where there are lengths, they are set before each run */
  cudnnTensorDescriptor_t h, c;
  size_t packed, reserve, training, inference; /* bytes: of weights, of what forward keeps, and of workspaces */
} plan;

static cudnnDataType_t type_of(int dtype) {
  return dtype == GB_FLOAT64 ? CUDNN_DATA_DOUBLE : dtype == GB_FLOAT32 ? CUDNN_DATA_FLOAT
      : dtype == GB_FLOAT16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* {==== plans ==== */

static void plan_release(void *value) {
  plan *p = value;
  if (p->rnn) cudnnDestroyRNNDescriptor(p->rnn);
  if (p->x) cudnnDestroyRNNDataDescriptor(p->x);
  if (p->y) cudnnDestroyRNNDataDescriptor(p->y);
  if (p->h) cudnnDestroyTensorDescriptor(p->h);
  if (p->c) cudnnDestroyTensorDescriptor(p->c);
  free(p);
}

static cudnnStatus_t create(plan *p) {
  cudnnStatus_t status = cudnnCreateRNNDescriptor(&p->rnn);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnCreateRNNDataDescriptor(&p->x);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnCreateRNNDataDescriptor(&p->y);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnCreateTensorDescriptor(&p->h);
  return status == CUDNN_STATUS_SUCCESS ? cudnnCreateTensorDescriptor(&p->c) : status;
}

static cudnnStatus_t describe_network(const gb_rnns *rnns, const gb_rnn *rnn, plan *p) {
  static const cudnnRNNMode_t modes[] = { [GB_WORD_lstm] = CUDNN_LSTM, [GB_WORD_gru] = CUDNN_GRU,
                                          [GB_WORD_tanh] = CUDNN_RNN_TANH, [GB_WORD_relu] = CUDNN_RNN_RELU };
  bool narrow = gb_is_16bit((gb_dtype)rnn->dtype);
  cudnnDataType_t compute = rnn->dtype == GB_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  /* the default type of mathematics is TF32 where the device has it */
  cudnnMathType_t math = narrow ? CUDNN_TENSOR_OP_MATH : rnn->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  return cudnnSetRNNDescriptor_v8(p->rnn, CUDNN_RNN_ALGO_STANDARD, modes[rnn->cell],
                                  rnn->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
                                  rnn->bidirectional ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
                                  type_of(rnn->dtype), compute, math, (int32_t)rnn->input, (int32_t)rnn->hidden,
                                  (int32_t)rnn->state, (int32_t)rnn->layers, rnns->dropout,
                                  CUDNN_RNN_PADDED_IO_ENABLED);
}

/* x or y: so many features of each step. lengths: all of `batch`. */
static cudnnStatus_t describe_steps(cudnnRNNDataDescriptor_t to, const gb_rnn *rnn, int64_t features,
                                    const int *lengths) {
  double zero = 0; /* in any dtype */
  return cudnnSetRNNDataDescriptor(to, type_of(rnn->dtype), CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, (int)rnn->time,
                                   (int)rnn->batch, (int)features, lengths, &zero);
}

static cudnnStatus_t describe_state(cudnnTensorDescriptor_t to, const gb_rnn *rnn, int64_t features) {
  const int shape[] = { (int)(rnn->layers * gb_rnn_directions(rnn)), (int)rnn->batch, (int)features };
  const int stride[] = { shape[1] * shape[2], shape[2], 1 };
  return cudnnSetTensorNdDescriptor(to, type_of(rnn->dtype), 3, shape, stride);
}

static cudnnStatus_t describe_data(const gb_rnn *rnn, const int *lengths, plan *p) {
  cudnnStatus_t status = describe_steps(p->x, rnn, rnn->input, lengths);
  return status == CUDNN_STATUS_SUCCESS
      ? describe_steps(p->y, rnn, gb_rnn_directions(rnn) * rnn->state, lengths) : status;
}

static cudnnStatus_t measure(const gb_rnns *rnns, plan *p) {
  size_t none = 0;
  cudnnStatus_t status = cudnnGetRNNWeightSpaceSize(rnns->handle, p->rnn, &p->packed);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnGetRNNTempSpaceSizes(rnns->handle, p->rnn, CUDNN_FWD_MODE_TRAINING, p->x, &p->training, &p->reserve);
  return status == CUDNN_STATUS_SUCCESS
      ? cudnnGetRNNTempSpaceSizes(rnns->handle, p->rnn, CUDNN_FWD_MODE_INFERENCE, p->x, &p->inference, &none) : status;
}

/* The lengths as the library takes them, which the caller frees; NULL: out of memory. */
static int *lengths_of(const gb_rnn *rnn, const int64_t *lengths) {
  int *list = malloc((size_t)rnn->batch * sizeof *list);
  for (int64_t i = 0; list && i < rnn->batch; i++) list[i] = (int)(lengths ? lengths[i] : rnn->time);
  return list;
}

static void refuse(plan *p, const char *what, cudnnStatus_t status) {
  char said[96] = "";
  cudnnGetLastErrorString(said, sizeof said);
  p->refused = true;
  snprintf(p->why, sizeof p->why, "%s: %s %s", what, cudnnGetErrorString(status), said);
}

/* Bytes of the weights, which the library packs without gaps. */
static size_t bytes_of_weights(const gb_rnn *rnn) {
  int64_t elements = 0;
  for (int64_t i = 0; i < gb_rnn_weights(rnn); i++) {
    const gb_rnn_weight w = gb_rnn_weight_of(rnn, i);
    elements += w.rows * (w.columns ? w.columns : 1);
  }
  return (size_t)elements * gb_bytes_of(rnn->dtype);
}

static plan *plan_make(const gb_rnns *rnns, const gb_rnn *rnn) {
  plan *p = calloc(1, sizeof *p);
  int *lengths = lengths_of(rnn, NULL);
  if (!p || !lengths) {
    free(p), free(lengths);
    return NULL;
  }
  cudnnStatus_t status = create(p);
  if (status == CUDNN_STATUS_SUCCESS) status = describe_network(rnns, rnn, p);
  if (status == CUDNN_STATUS_SUCCESS) status = describe_data(rnn, lengths, p);
  if (status == CUDNN_STATUS_SUCCESS) status = describe_state(p->h, rnn, rnn->state);
  if (status == CUDNN_STATUS_SUCCESS) status = describe_state(p->c, rnn, rnn->hidden);
  if (status == CUDNN_STATUS_SUCCESS) status = measure(rnns, p);
  if (status == CUDNN_STATUS_ALLOC_FAILED) plan_release(p), p = NULL;
  else if (status != CUDNN_STATUS_SUCCESS) refuse(p, "cuDNN does not run them", status);
  else if (p->packed != bytes_of_weights(rnn)) refuse(p, "cuDNN packs weights in a way that is not known here", status);
  free(lengths);
  return p;
}

/* NULL: out of memory. */
static plan *plan_of(gb_rnns *rnns, const gb_rnn *rnn) {
  gb_rnn key = *rnn;
  key.tf32 = rnn->dtype == GB_FLOAT32 && rnn->tf32;
  plan *p = gb_cache_find(rnns->plans, &key);
  if (p) return p;
  p = plan_make(rnns, &key);
  if (p) gb_cache_put(rnns->plans, &key, p);
  return p;
}

/* ====} */

/* {==== opening ==== */

void gb_rnns_close(gb_rnns *rnns) {
  if (!rnns) return;
  gb_cache_close(rnns->plans);
  if (rnns->dropout) cudnnDestroyDropoutDescriptor(rnns->dropout);
  if (rnns->handle) cudnnDestroy(rnns->handle);
  free(rnns);
}

/* The library's handle, opened at the first use; NULL: why not. */
static gb_rnns *rnns_of(gb_cuda *cuda, const char **why) {
  if (cuda->rnns || cuda->no_rnns) {
    *why = cuda->no_rnns;
    return cuda->rnns;
  }
  gb_rnns *rnns = calloc(1, sizeof *rnns);
  cudnnStatus_t status = CUDNN_STATUS_ALLOC_FAILED;
  if (rnns) rnns->plans = gb_cache_open(sizeof(gb_rnn), MOST_PLANS, plan_release);
  if (rnns && rnns->plans) {
    gb_cache_wait_by(rnns->plans, gb_cuda_settle, cuda->stream);
    status = cudnnCreate(&rnns->handle);
  }
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnCreateDropoutDescriptor(&rnns->dropout);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnSetDropoutDescriptor(rnns->dropout, rnns->handle, 0, NULL, 0, 0);
  if (status == CUDNN_STATUS_SUCCESS) return cuda->rnns = rnns;
  gb_rnns_close(rnns);
  *why = cudnnGetErrorString(status);
  if (status != CUDNN_STATUS_ALLOC_FAILED) cuda->no_rnns = *why;
  return NULL;
}

/* Does cuBLAS, by which the library multiplies, keep to workspaces of one size, ":SIZE:COUNT"? */
static bool is_repeatable(void) {
  const char *wish = getenv("CUBLAS_WORKSPACE_CONFIG");
  const char *second = wish && *wish == ':' ? strchr(wish + 1, ':') : NULL;
  return second && !strchr(second + 1, ':');
}

/* Sizes that the library counts in ints: those of each layer's sums, matrices and states, too. */
static bool fits(const gb_rnn *rnn) {
  const int64_t sizes[] = { rnn->time, rnn->batch, rnn->input, rnn->hidden, rnn->state };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i] < 1 || sizes[i] > INT_MAX / 8) return false;
  if (rnn->state > rnn->hidden || rnn->layers < 1 || rnn->layers > MOST_LAYERS) return false;
  const int64_t layers = rnn->layers * gb_rnn_directions(rnn), wide = gb_rnn_gates(rnn->cell) * rnn->hidden;
  const int64_t inputs = rnn->input > 2 * rnn->state ? rnn->input : 2 * rnn->state;
  const int64_t widest = inputs > wide ? inputs : wide;
  return rnn->time * rnn->batch <= INT_MAX / widest && layers * rnn->batch <= INT_MAX / rnn->hidden &&
         wide <= INT_MAX / inputs;
}

static bool declines(gb_cuda *cuda, const char *why) {
  const gb_cuda_call call = { .cuda = cuda };
  gb_cuda_slower(&call, GB_SLOWER_RECURRENT, "recurrent layers run step by step: %s", why);
  return false;
}

bool gb_rnns_have(gb_cuda *cuda, const gb_rnn *rnn, gb_rnn_room *room) {
  const char *why = NULL;
  if (rnn->batch < 1 || rnn->time < 1) return false; /* nothing to do */
  if (cuda->capturing && rnn->lengths) return declines(cuda, "a graph would keep the lengths of its capture");
  if (cuda->capturing && !cuda->rnns && !cuda->no_rnns) return declines(cuda, "cuDNN is not opened during a capture");
  gb_rnns *rnns = rnns_of(cuda, &why);
  if (!rnns) return declines(cuda, why);
  if (!cuda->context->nondeterministic && !is_repeatable())
    return declines(cuda, "cuDNN's bits may change from run to run; set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the "
                          "start, or call gb.set_deterministic(false)");
  if (!fits(rnn)) return declines(cuda, "they are too large for cuDNN");
  const plan *p = plan_of(rnns, rnn);
  if (!p) return declines(cuda, "there is no memory for a plan of cuDNN");
  if (p->refused) return declines(cuda, p->why);
  *room = (gb_rnn_room){ .packed = (int64_t)p->packed, .reserve = (int64_t)p->reserve };
  return true;
}

/* ====} */

/* {==== weights ==== */

static gb_status failure(gb_cuda_call *call, cudnnStatus_t status) {
  char said[160] = "";
  cudnnGetLastErrorString(said, sizeof said);
  return gb_cuda_fail(call, status == CUDNN_STATUS_ALLOC_FAILED ? GB_EMEMORY : GB_EDEVICE, "cuDNN's recurrent layers: "
                      "%s %s", cudnnGetErrorString(status), said);
}

/* The plan of a call whose check found that there is one. */
static gb_status find_plan(gb_cuda_call *call, const gb_rnn *rnn, plan **out) {
  plan *p = plan_of(call->cuda->rnns, rnn);
  *out = p;
  if (!p) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for a plan of cuDNN");
  return p->refused ? gb_cuda_fail(call, GB_EUNSUPPORTED, "%s", p->why) : GB_OK;
}

/* Part `part` of a layer in one direction, as the library counts them: a matrix, or its bias. NULL: it is not as large
 * as it should be. */
static cudnnStatus_t part_of(const gb_rnns *rnns, const plan *p, void *packed, const gb_rnn_weight *w, int64_t part,
                             int64_t elements, char **out) {
  cudnnTensorDescriptor_t matrix = NULL, bias = NULL;
  void *matrix_at = NULL, *bias_at = NULL;
  bool is_bias = w->columns == 0;
  cudnnStatus_t status = cudnnCreateTensorDescriptor(&matrix);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnCreateTensorDescriptor(&bias);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnGetRNNWeightParams(rnns->handle, p->rnn, (int32_t)w->layer, p->packed, packed, (int32_t)part, matrix,
                                     &matrix_at, bias, &bias_at);
  int shape[3] = { 0 }, stride[3], ndim = 0;
  cudnnDataType_t type;
  *out = is_bias ? bias_at : matrix_at;
  if (status == CUDNN_STATUS_SUCCESS && *out)
    status = cudnnGetTensorNdDescriptor(is_bias ? bias : matrix, 3, &type, &ndim, shape, stride);
  if ((int64_t)shape[0] * shape[1] * shape[2] != elements) *out = NULL;
  if (matrix) cudnnDestroyTensorDescriptor(matrix);
  if (bias) cudnnDestroyTensorDescriptor(bias);
  return status;
}

/* The parts of a weight, one for each gate, lie behind each other, which is looked at. */
gb_status gb_rnn_place(gb_cuda_call *call, const gb_rnn *rnn, void *packed, int64_t which, char **place) {
  const gb_rnn_weight w = gb_rnn_weight_of(rnn, which);
  const int64_t gates = gb_rnn_gates(rnn->cell), of_state = w.kind == GB_RNN_STATE || w.kind == GB_RNN_STATE_BIAS;
  const int64_t parts = w.kind == GB_RNN_PROJECTION ? 1 : gates, count = w.rows / parts * (w.columns ? w.columns : 1);
  const int64_t first = w.kind == GB_RNN_PROJECTION ? 2 * gates : of_state ? gates : 0;
  plan *p;
  GB_TRY(find_plan(call, rnn, &p));
  for (int64_t k = 0; k < parts; k++) {
    char *at = NULL;
    cudnnStatus_t status = part_of(call->cuda->rnns, p, packed, &w, first + k, count, &at);
    if (status != CUDNN_STATUS_SUCCESS) return failure(call, status);
    if (k == 0) *place = at;
    if (!at || at != *place + k * count * (int64_t)gb_bytes_of(rnn->dtype))
      return gb_cuda_fail(call, GB_EUNSUPPORTED, "this version of cuDNN lays weights of recurrent layers out in a way "
                                                 "that is not known here");
  }
  return GB_OK;
}

/* ====} */

/* {==== running ==== */

/* The plan of a run, with its lengths, on the call's stream. */
static gb_status prepare(gb_cuda_call *call, const gb_rnn_run *run, plan **out) {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  GB_TRY(find_plan(call, &run->rnn, out));
  if (run->lengths) {
    int *lengths = lengths_of(&run->rnn, run->lengths);
    if (!lengths) return gb_cuda_fail(call, GB_EMEMORY, "out of memory for the lengths of a batch");
    status = describe_data(&run->rnn, lengths, *out);
    free(lengths);
  }
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(call->cuda->rnns->handle, call->stream);
  return status == CUDNN_STATUS_SUCCESS ? GB_OK : failure(call, status);
}

gb_status gb_rnn_forward(gb_cuda_call *call, const gb_rnn_run *run) {
  plan *p;
  GB_TRY(prepare(call, run, &p));
  size_t room = run->reserve ? p->training : p->inference;
  void *workspace = room ? gb_cuda_scratch(call, room) : NULL;
  if (room && !workspace) return GB_EMEMORY;
  cudnnStatus_t status =
      cudnnRNNForward(call->cuda->rnns->handle, p->rnn,
                      run->reserve ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, p->x, run->x, p->y,
                      run->y, p->h, run->h, run->last_h, p->c, run->c, run->last_c, p->packed, run->packed, room,
                      workspace, run->reserve ? p->reserve : 0, run->reserve);
  return status == CUDNN_STATUS_SUCCESS ? GB_OK : failure(call, status);
}

/* The library adds to the weights' gradients, so they begin as zeros. */
static cudnnStatus_t backward_weights(gb_cuda_call *call, const gb_rnn_run *run, const plan *p, void *workspace) {
  if (gb_rt_set(call->stream, run->dpacked, 0, p->packed)) return CUDNN_STATUS_EXECUTION_FAILED;
  return cudnnRNNBackwardWeights_v8(call->cuda->rnns->handle, p->rnn, CUDNN_WGRAD_MODE_ADD, NULL, p->x, run->x, p->h,
                                    run->h, p->y, run->y, p->packed, run->dpacked, p->training, workspace, p->reserve,
                                    run->reserve);
}

gb_status gb_rnn_backward(gb_cuda_call *call, const gb_rnn_run *run) {
  plan *p;
  GB_TRY(prepare(call, run, &p));
  void *workspace = p->training ? gb_cuda_scratch(call, p->training) : NULL;
  if (p->training && !workspace) return GB_EMEMORY;
  cudnnStatus_t status =
      cudnnRNNBackwardData_v8(call->cuda->rnns->handle, p->rnn, NULL, p->y, run->y, run->grad, p->x, run->dx, p->h,
                              run->h, run->grad_h, run->dh, p->c, run->c, run->grad_c, run->dc, p->packed, run->packed,
                              p->training, workspace, p->reserve, run->reserve);
  if (status == CUDNN_STATUS_SUCCESS && run->dpacked) status = backward_weights(call, run, p, workspace);
  return status == CUDNN_STATUS_SUCCESS ? GB_OK : failure(call, status);
}

/* ====} */
