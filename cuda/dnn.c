/* cuda/dnn.c - descriptors, graphs and plans of cuDNN. See dnn.h. */
#include "cuda/dnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/conv.h"
#include "cuda/cuda.h"

/* {==== pieces ==== */

/* Record a status. The first failure stays, with the library's text. False if anything has failed so far. */
static bool note(gb_dnn_graph *g, cudnnStatus_t status, const char *what) {
  if (g->status != CUDNN_STATUS_SUCCESS) return false;
  if (status == CUDNN_STATUS_SUCCESS) return true;
  char said[160] = "";
  cudnnGetLastErrorString(said, sizeof said);
  g->status = status;
  snprintf(g->error, sizeof g->error, "%s: %s %s", what, cudnnGetErrorString(status), said);
  return false;
}

/* A new descriptor, kept by the graph; NULL after a failure. */
static gb_dnn_part create(gb_dnn_graph *g, cudnnBackendDescriptorType_t type) {
  gb_dnn_part part = NULL;
  if (g->n_pieces == GB_DNN_PIECES) note(g, CUDNN_STATUS_BAD_PARAM, "the graph has too many descriptors");
  if (g->status != CUDNN_STATUS_SUCCESS || !note(g, cudnnBackendCreateDescriptor(type, &part), "a descriptor"))
    return NULL;
  return g->pieces[g->n_pieces++] = part;
}

static void set(gb_dnn_graph *g, gb_dnn_part part, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values) {
  if (g->status == CUDNN_STATUS_SUCCESS)
    note(g, cudnnBackendSetAttribute(part, name, type, count, values), "an attribute");
}

static void set_part(gb_dnn_graph *g, gb_dnn_part part, cudnnBackendAttributeName_t name, gb_dnn_part value) {
  set(g, part, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(gb_dnn_graph *g, gb_dnn_part part, cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  set(g, part, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void finalize(gb_dnn_graph *g, gb_dnn_part part, const char *what) {
  if (g->status == CUDNN_STATUS_SUCCESS) note(g, cudnnBackendFinalize(part), what);
}

/* Finalise an operation and put it behind those before it. */
static void add_op(gb_dnn_graph *g, gb_dnn_part op, const char *what) {
  finalize(g, op, what);
  if (g->n_ops == GB_DNN_OPS) note(g, CUDNN_STATUS_BAD_PARAM, "the graph has too many operations");
  if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->n_ops++] = op;
}

void gb_dnn_begin(gb_dnn_graph *g) { *g = (gb_dnn_graph){ .next_virtual = 1000, .status = CUDNN_STATUS_SUCCESS }; }

bool gb_dnn_end(gb_dnn_graph *g) {
  g->graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (g->handle) set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
  set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
  finalize(g, g->graph, "the operation graph");
  return g->status == CUDNN_STATUS_SUCCESS;
}

void gb_dnn_release(gb_dnn_graph *g) {
  while (g->n_pieces > 0) cudnnBackendDestroyDescriptor(g->pieces[--g->n_pieces]);
}

/* ====} */

/* {==== tensors ==== */

cudnnDataType_t gb_dnn_type(gb_dtype dtype) {
  static const cudnnDataType_t types[] = { [GB_FLOAT64] = CUDNN_DATA_DOUBLE, [GB_FLOAT32] = CUDNN_DATA_FLOAT,
                                           [GB_FLOAT16] = CUDNN_DATA_HALF,
                                           [GB_BFLOAT16] = CUDNN_DATA_BFLOAT16 };
  return types[dtype];
}

static gb_dnn_part tensor(gb_dnn_graph *g, int64_t id, cudnnDataType_t type, int ndim, const int64_t *shape,
                          const int64_t *stride, bool is_virtual,
                          bool by_value) {
  static const int64_t alignment = 16;
  gb_dnn_part t = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set_type(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, ndim, shape);
  set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, ndim, stride);
  set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  finalize(g, t, "a tensor");
  return t;
}

gb_dnn_part gb_dnn_tensor(gb_dnn_graph *g, int64_t id, cudnnDataType_t type, int ndim, const int64_t *shape,
                          const int64_t *stride) {
  return tensor(g, id, type, ndim, shape, stride, false, false);
}

gb_dnn_part gb_dnn_image(gb_dnn_graph *g, int64_t id, cudnnDataType_t type, int64_t a, int64_t b, const int64_t hw[2]) {
  return gb_dnn_tensor(g, id, type, 4, (int64_t[]){ a, b, hw[0], hw[1] },
                       (int64_t[]){ b * hw[0] * hw[1], 1, hw[1] * b, b });
}

gb_dnn_part gb_dnn_virtual(gb_dnn_graph *g, cudnnDataType_t type, int ndim, const int64_t *shape, const int64_t *like) {
  int64_t stride[GB_MAX_NDIM], step = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    stride[i] = step;
    step *= shape[i];
  }
  return tensor(g, g->next_virtual++, type, ndim, shape, like ? like : stride, true, false);
}

gb_dnn_part gb_dnn_scalar(gb_dnn_graph *g, int64_t id, int ndim) {
  static const int64_t ones[GB_MAX_NDIM] = { 1, 1, 1, 1, 1, 1, 1, 1 };
  return tensor(g, id, CUDNN_DATA_FLOAT, ndim, ones, ones, false, true);
}

/* ====} */

/* {==== operations ==== */

/* The descriptor that says what a pointwise operation does. */
static gb_dnn_part pointwise_mode(gb_dnn_graph *g, cudnnPointwiseMode_t mode) {
  static const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  gb_dnn_part part = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(g, part, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  bool compares = mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE;
  cudnnDataType_t math = compares ? CUDNN_DATA_BOOLEAN : mode == CUDNN_POINTWISE_GEN_INDEX ? CUDNN_DATA_INT32
      : CUDNN_DATA_FLOAT;
  set_type(g, part, CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  /* else it drops them */
  if (mode == CUDNN_POINTWISE_RELU_FWD)
    set(g, part, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
  return part;
}

void gb_dnn_pointwise(gb_dnn_graph *g, cudnnPointwiseMode_t mode, gb_dnn_part x, gb_dnn_part b, gb_dnn_part t,
                      gb_dnn_part y) {
  gb_dnn_part how = pointwise_mode(g, mode);
  finalize(g, how, "a pointwise mode");
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t) set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  add_op(g, op, "a pointwise operation");
}

void gb_dnn_position(gb_dnn_graph *g, int64_t axis, gb_dnn_part x, gb_dnn_part y) {
  gb_dnn_part how = pointwise_mode(g, CUDNN_POINTWISE_GEN_INDEX);
  set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  finalize(g, how, "an axis");
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  add_op(g, op, "positions");
}

void gb_dnn_matmul(gb_dnn_graph *g, gb_dnn_part a, gb_dnn_part b, gb_dnn_part c) {
  gb_dnn_part how = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(g, how, "a product's type");
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  set_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  add_op(g, op, "a product");
}

void gb_dnn_reduce(gb_dnn_graph *g, cudnnReduceTensorOp_t reduction, gb_dnn_part x, gb_dnn_part y) {
  gb_dnn_part how = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
  set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(g, how, "a reduction's kind");
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  set_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  add_op(g, op, "a reduction");
}

void gb_dnn_reshape(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part y) {
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_part(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set_part(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  add_op(g, op, "a reshape");
}

/* What each kind of convolution is called, and its operands. */
static const struct {
  cudnnBackendDescriptorType_t op;
  cudnnBackendAttributeName_t how, x, weight, y, alpha, beta;
} convolutions[] = {
  [GB_DNN_FORWARD] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA },
  [GB_DNN_BACKWARD_INPUT] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA },
  [GB_DNN_BACKWARD_WEIGHT] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA },
};

/* Strides, paddings and dilations of two spatial dimensions. */
static gb_dnn_part window_of(gb_dnn_graph *g, cudnnDataType_t compute, const gb_dnn_window *w) {
  static const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  static const int64_t two = 2;
  gb_dnn_part how = create(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  set_type(g, how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, compute);
  set(g, how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set(g, how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
  set(g, how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, w->padding);
  set(g, how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, w->after);
  set(g, how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, w->dilation);
  set(g, how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, w->stride);
  finalize(g, how, "a convolution's window");
  return how;
}

void gb_dnn_convolve(gb_dnn_graph *g, gb_dnn_convolution kind, cudnnDataType_t compute, const gb_dnn_window *window,
                     gb_dnn_part x, gb_dnn_part weight,
                     gb_dnn_part y) {
  static const double one = 1, zero = 0;
  static const float one32 = 1, zero32 = 0;
  bool wide = compute == CUDNN_DATA_DOUBLE;
  gb_dnn_part how = window_of(g, compute, window), op = create(g, convolutions[kind].op);
  set_part(g, op, convolutions[kind].how, how);
  set_part(g, op, convolutions[kind].x, x);
  set_part(g, op, convolutions[kind].weight, weight);
  set_part(g, op, convolutions[kind].y, y);
  cudnnBackendAttributeType_t type = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  set(g, op, convolutions[kind].alpha, type, 1, wide ? (const void *)&one : &one32);
  set(g, op, convolutions[kind].beta, type, 1, wide ? (const void *)&zero : &zero32);
  add_op(g, op, "a convolution");
}

/* ====} */

/* {==== normalization and pooling ==== */

/* Set the operands of an operation, each under its name, and add it. */
typedef struct operand { cudnnBackendAttributeName_t name; gb_dnn_part part; } operand;
static void add_operands(gb_dnn_graph *g, gb_dnn_part op, const operand *operands, int n, const char *what) {
  for (int i = 0; i < n; i++) set_part(g, op, operands[i].name, operands[i].part);
  add_op(g, op, what);
}

static const cudnnBackendNormMode_t by_channels = CUDNN_BATCH_NORM;

void gb_dnn_norm_forward(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part scale, gb_dnn_part bias, gb_dnn_part epsilon,
                         gb_dnn_part y, gb_dnn_part mean,
                         gb_dnn_part rstd) {
  static const cudnnBackendNormFwdPhase_t phase = CUDNN_NORM_FWD_TRAINING;
  const operand operands[] = { { CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x },
                               { CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, scale },
                               { CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, bias },
                                   { CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, epsilon },
                               { CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y },
                                   { CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, mean },
                               { CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, rstd } };
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
  set(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &by_channels);
  set(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &phase);
  add_operands(g, op, operands, 7, "a normalization");
}

void gb_dnn_norm_backward(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part grad, gb_dnn_part scale, gb_dnn_part mean,
                          gb_dnn_part rstd, gb_dnn_part dx,
                          gb_dnn_part dscale, gb_dnn_part dbias) {
  const operand operands[] = { { CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x },
                               { CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, grad },
                               { CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, scale },
                                   { CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, mean },
                               { CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, rstd },
                                   { CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx },
                               { CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, dscale },
                                   { CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, dbias } };
  gb_dnn_part op = create(g, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  set(g, op, CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &by_channels);
  add_operands(g, op, operands, 8, "the gradient of a normalization");
}

/* Describe the pooling window. Padding counts as the smallest number in a maximum, and as 0 in a mean. */
static gb_dnn_part pool_of(gb_dnn_graph *g, cudnnResampleMode_t mode, const gb_dnn_pool *w) {
  static const int64_t two = 2;
  static const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  const cudnnPaddingMode_t padding = mode == CUDNN_RESAMPLE_MAXPOOL ? CUDNN_NEG_INF_PAD : CUDNN_ZERO_PAD;
  gb_dnn_part how = create(g, CUDNN_BACKEND_RESAMPLE_DESCRIPTOR);
  set(g, how, CUDNN_ATTR_RESAMPLE_MODE, CUDNN_TYPE_RESAMPLE_MODE, 1, &mode);
  set_type(g, how, CUDNN_ATTR_RESAMPLE_COMP_TYPE, CUDNN_DATA_FLOAT);
  set(g, how, CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
  set(g, how, CUDNN_ATTR_RESAMPLE_PADDING_MODE, CUDNN_TYPE_PADDING_MODE, 1, &padding);
  set(g, how, CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
  set(g, how, CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, CUDNN_TYPE_INT64, 2, w->kernel);
  set(g, how, CUDNN_ATTR_RESAMPLE_STRIDES, CUDNN_TYPE_INT64, 2, w->stride);
  set(g, how, CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, w->padding);
  set(g, how, CUDNN_ATTR_RESAMPLE_POST_PADDINGS, CUDNN_TYPE_INT64, 2, w->padding);
  finalize(g, how, "a pooling window");
  return how;
}

void gb_dnn_resample(gb_dnn_graph *g, cudnnResampleMode_t mode, bool backward, const gb_dnn_pool *window,
                     gb_dnn_part from, gb_dnn_part to) {
  gb_dnn_part how = pool_of(g, mode, window);
  const operand forward_operands[] = { { CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, from },
                                       { CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, to },
                                       { CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, how } };
  const operand backward_operands[] = { { CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, from },
                                        { CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, to },
                                        { CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC, how } };
  gb_dnn_part op = create(g, backward ? CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR
                          : CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR);
  add_operands(g, op, backward ? backward_operands : forward_operands, 3, "a pooling");
}

/* ====} */

/* {==== plans ==== */

enum { MOST_CONFIGS = 32, MOST_PLANS = 512 };

/* The heuristics' answer for a graph; *out is the caller's to destroy, whatever the status. */
static cudnnStatus_t open_heuristics(gb_dnn_graph *g, cudnnBackendHeurMode_t mode, gb_dnn_part *out) {
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, out);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &g->graph);
  if (status == CUDNN_STATUS_SUCCESS && g->device)
    status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &g->device);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  return status == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(*out) : status;
}

/* Ask the heuristics for engine configurations; *count of them, made here, are the caller's to destroy. */
static void ask_heuristics(gb_dnn_graph *g, cudnnBackendHeurMode_t mode, gb_dnn_part *configs, int *count) {
  gb_dnn_part heuristics = NULL;
  int64_t found = 0;
  *count = 0;
  cudnnStatus_t status = open_heuristics(g, mode, &heuristics);
  while (status == CUDNN_STATUS_SUCCESS && *count < MOST_CONFIGS) {
    status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[*count]);
    *count += status == CUDNN_STATUS_SUCCESS;
  }
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      MOST_CONFIGS, &found, configs);
  if (heuristics) cudnnBackendDestroyDescriptor(heuristics);
  if (status != CUDNN_STATUS_SUCCESS) found = 0;
  while (*count > found) cudnnBackendDestroyDescriptor(configs[--*count]);
}

int gb_dnn_count_configs(gb_dnn_graph *g, cudnnBackendHeurMode_t mode) {
  gb_dnn_part heuristics = NULL;
  int64_t found = 0;
  if (open_heuristics(g, mode, &heuristics) == CUDNN_STATUS_SUCCESS)
    cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &found, NULL);
  if (heuristics) cudnnBackendDestroyDescriptor(heuristics);
  return (int)found;
}

/* May this engine be used? Winograd and FFT sum in orders whose error grows with the tile; what rounds inputs or sums
 * to fewer bits breaks the promise of one rounding. */
static bool may_use(gb_dnn_part config, const gb_dnn_wish *wish) {
  gb_dnn_part engine = NULL;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0;
  if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return false;
  bool good = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                       &engine) == CUDNN_STATUS_SUCCESS &&
              cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                       notes) == CUDNN_STATUS_SUCCESS;
  for (int64_t i = 0; good && i < count; i++) {
    bool short_inputs = notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
        notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    bool other_sums = notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
        notes[i] == CUDNN_NUMERICAL_NOTE_FFT ||
                      (notes[i] >= CUDNN_NUMERICAL_NOTE_WINOGRAD &&
                       notes[i] <= CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
    good = !other_sums && !(wish->exact && short_inputs) &&
        !(wish->deterministic && notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  }
  cudnnBackendDestroyDescriptor(engine);
  return good;
}

/* Make the plan of one configuration. False: the device cannot run it, or not within the wished workspace. */
static bool try_config(gb_dnn_plan *p, gb_dnn_part config, const gb_dnn_wish *wish) {
  gb_dnn_part plan = NULL;
  gb_dnn_graph *g = &p->graph;
  int64_t workspace = 0, count = 0;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
  if (status == CUDNN_STATUS_SUCCESS)
    status = g->device ? cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->device)
        : cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &config);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(plan);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                      &workspace);
  bool good = status == CUDNN_STATUS_SUCCESS && (size_t)workspace <= wish->workspace;
  if (good) p->plan = plan, p->config = config, p->workspace = (size_t)workspace;
  else if (plan) cudnnBackendDestroyDescriptor(plan);
  return good;
}

/* Go through the configurations that the heuristics name until one runs. */
static void choose_config(gb_dnn_plan *p, const gb_dnn_wish *wish) {
  static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
  int seen = 0, refused = 0;
  for (int m = 0; m < 2 && !p->plan; m++) {
    gb_dnn_part configs[MOST_CONFIGS];
    int count = 0;
    ask_heuristics(&p->graph, modes[m], configs, &count);
    for (int i = 0; i < count; i++) {
      bool usable = !p->plan && may_use(configs[i], wish);
      seen += !p->plan, refused += !p->plan && !usable;
      if (!usable || !try_config(p, configs[i], wish)) cudnnBackendDestroyDescriptor(configs[i]);
    }
  }
  if (!p->plan)
    snprintf(p->error, sizeof p->error, "none of cuDNN's %d engines can run it (%d of them round or sum in ways "
                                        "that were not asked for)",
                         seen, refused);
}

void gb_dnn_plan_release(void *value) {
  gb_dnn_plan *p = value;
  if (!p) return;
  if (p->plan) cudnnBackendDestroyDescriptor(p->plan);
  if (p->config) cudnnBackendDestroyDescriptor(p->config);
  gb_dnn_release(&p->graph);
  free(p);
}

struct gb_dnns {
  cudnnHandle_t handle;
  gb_cache *plans;
};

gb_status gb_dnns_of(gb_cuda_call *call, gb_dnns **out) {
  *out = call->cuda->dnns;
  if (*out) return GB_OK;
  GB_TRY(gb_cuda_may_open(call, "cuDNN"));
  gb_dnns *dnns = calloc(1, sizeof *dnns);
  cudnnStatus_t status = CUDNN_STATUS_ALLOC_FAILED;
  if (dnns) dnns->plans = gb_cache_open(sizeof(gb_dnn_key), MOST_PLANS, gb_dnn_plan_release);
  if (dnns && dnns->plans) {
    gb_cache_wait_by(dnns->plans, gb_cuda_settle, call->stream);
    status = cudnnCreate(&dnns->handle);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    *out = call->cuda->dnns = dnns;
    return GB_OK;
  }
  gb_dnns_close(dnns);
  return gb_cuda_fail(call, GB_EDEVICE, "cuDNN could not be opened: %s", cudnnGetErrorString(status));
}

void gb_dnns_close(gb_dnns *dnns) {
  if (!dnns) return;
  gb_cache_close(dnns->plans);
  if (dnns->handle) cudnnDestroy(dnns->handle);
  free(dnns);
}

gb_dnn_plan *gb_dnn_plan_make(cudnnHandle_t handle, gb_dnn_part device, gb_dnn_build build, const void *what,
                              const gb_dnn_wish *wish) {
  gb_dnn_plan *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  gb_dnn_begin(&p->graph);
  p->graph.handle = handle;
  p->graph.device = device;
  build(&p->graph, what);
  if (gb_dnn_end(&p->graph)) choose_config(p, wish);
  else memcpy(p->error, p->graph.error, sizeof p->error);
  return p;
}

gb_dnn_plan *gb_dnn_plan_of(gb_dnns *dnns, const gb_dnn_key *key, gb_dnn_build build, const void *what,
                            const gb_dnn_wish *wish) {
  gb_dnn_plan *p = gb_cache_find(dnns->plans, key);
  if (p) return p;
  p = gb_dnn_plan_make(dnns->handle, NULL, build, what, wish);
  if (p) gb_cache_put(dnns->plans, key, p);
  return p;
}

/* The variant pack of one run. */
static cudnnStatus_t make_pack(gb_dnn_part *pack, const gb_dnn_bound *bound, void *workspace) {
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, pack);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(*pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, bound->n, bound->id);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(*pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, bound->n,
                                      bound->data);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnBackendSetAttribute(*pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  return status == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(*pack) : status;
}

gb_status gb_dnn_run(gb_cuda_call *call, gb_dnns *dnns, const gb_dnn_plan *plan, const gb_dnn_bound *bound) {
  void *workspace = plan->workspace ? gb_cuda_scratch(call, plan->workspace) : NULL;
  if (plan->workspace && !workspace) return GB_EMEMORY;
  gb_dnn_part pack = NULL;
  cudnnStatus_t status = make_pack(&pack, bound, workspace);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(dnns->handle, call->stream);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(dnns->handle, plan->plan, pack);
  if (pack) cudnnBackendDestroyDescriptor(pack);
  return status == CUDNN_STATUS_SUCCESS ? GB_OK : gb_cuda_fail(call, GB_EDEVICE, "cuDNN: %s",
                                                               cudnnGetErrorString(status));
}

/* ====} */
