/* cudnn.h - the part of cuDNN's interface that cuda/rnn.c uses, for builds on machines without the library; cudnn.c
 * stands in for it. Names and types are the library's, numbers of enumerations need not be. */
#ifndef GB_CUDNN_STAND_IN_H
#define GB_CUDNN_STAND_IN_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/runtime.h"

typedef gb_stream cudaStream_t;
typedef enum {
  CUDNN_STATUS_SUCCESS,
  CUDNN_STATUS_NOT_INITIALIZED,
  CUDNN_STATUS_ALLOC_FAILED,
  CUDNN_STATUS_BAD_PARAM,
  CUDNN_STATUS_NOT_SUPPORTED,
  CUDNN_STATUS_EXECUTION_FAILED
} cudnnStatus_t;
typedef enum { CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16 } cudnnDataType_t;
typedef enum { CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH, CUDNN_FMA_MATH } cudnnMathType_t;
typedef enum { CUDNN_RNN_ALGO_STANDARD } cudnnRNNAlgo_t;
typedef enum { CUDNN_FWD_MODE_INFERENCE, CUDNN_FWD_MODE_TRAINING } cudnnForwardMode_t;
typedef enum { CUDNN_RNN_RELU, CUDNN_RNN_TANH, CUDNN_LSTM, CUDNN_GRU } cudnnRNNMode_t;
typedef enum { CUDNN_RNN_NO_BIAS, CUDNN_RNN_DOUBLE_BIAS } cudnnRNNBiasMode_t;
typedef enum { CUDNN_UNIDIRECTIONAL, CUDNN_BIDIRECTIONAL } cudnnDirectionMode_t;
typedef enum { CUDNN_LINEAR_INPUT } cudnnRNNInputMode_t;
typedef enum { CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED } cudnnRNNDataLayout_t;
typedef enum { CUDNN_WGRAD_MODE_ADD, CUDNN_WGRAD_MODE_SET } cudnnWgradMode_t;
#define CUDNN_RNN_PADDED_IO_ENABLED (1U << 0)

typedef struct stand_in_cudnn *cudnnHandle_t;
typedef struct stand_in_rnn *cudnnRNNDescriptor_t;
typedef struct stand_in_steps *cudnnRNNDataDescriptor_t;
typedef struct stand_in_tensor *cudnnTensorDescriptor_t;
typedef struct stand_in_dropout *cudnnDropoutDescriptor_t;

const char *cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char *message, size_t size);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int ndim,
                                         const int shape[], const int stride[]);
cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, int most, cudnnDataType_t *type, int *ndim,
                                         int shape[], int stride[]);
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *dropout);
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout);
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float p, void *states,
                                        size_t bytes, unsigned long long seed);

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *rnn);
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn);
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t directions,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type, cudnnDataType_t compute,
                                       cudnnMathType_t math, int32_t inputs, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags);
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *steps);
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t steps);
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t steps, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int time, int batch, int features,
                                        const int lengths[], void *fill);
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *bytes);
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t *work, size_t *reserve);
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t layer, size_t bytes,
                                      const void *weights, int32_t part, cudnnTensorDescriptor_t matrix,
                                      void **matrix_at, cudnnTensorDescriptor_t bias, void **bias_at);
cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const int32_t lengths[], cudnnRNNDataDescriptor_t x_steps, const void *x,
                              cudnnRNNDataDescriptor_t y_steps, void *y, cudnnTensorDescriptor_t h, const void *hx,
                              void *hy, cudnnTensorDescriptor_t c, const void *cx, void *cy, size_t weight_bytes,
                              const void *weights, size_t work_bytes, void *work, size_t reserve_bytes,
                              void *reserve);
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
                                      cudnnRNNDataDescriptor_t y_steps, const void *y, const void *dy,
                                      cudnnRNNDataDescriptor_t x_steps, void *dx, cudnnTensorDescriptor_t h,
                                      const void *hx, const void *dhy, void *dhx, cudnnTensorDescriptor_t c,
                                      const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                                      const void *weights, size_t work_bytes, void *work, size_t reserve_bytes,
                                      void *reserve);
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t add,
                                         const int32_t lengths[], cudnnRNNDataDescriptor_t x_steps, const void *x,
                                         cudnnTensorDescriptor_t h, const void *hx, cudnnRNNDataDescriptor_t y_steps,
                                         const void *y, size_t weight_bytes, void *dweights, size_t work_bytes,
                                         void *work, size_t reserve_bytes, void *reserve);

#endif
