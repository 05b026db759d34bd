/* cuda/dnn.h - cuDNN's graph API from C: descriptors of tensors and operations, an operation graph of them, and the
 * plan that runs it.
 *
 * A graph is made by calls that remember the first failure: what follows one does nothing, so that a graph is written
 * as a list of steps and looked at once, at its end. Making a graph needs neither a handle nor a device; a plan needs
 * both. Only dnn.c and the seams (conv.c, attention.c, batch_norm.c, pool.c) include this. */
#ifndef GB_CUDA_DNN_H
#define GB_CUDA_DNN_H

#include <cudnn.h>

#include "cuda/call.h"

#define GB_DNN_PIECES 96 /* descriptors of a graph, at most */
#define GB_DNN_OPS 32
#define GB_DNN_BOUND 16  /* tensors that a plan is given memory for, at most */
/* Elements of a tensor, at most: engines that count them in 32 bits went out of bounds beyond, as users of PyTorch met
 * it. Convolutions without groups count in 64 bits since 9.3. */
#define GB_DNN_ELEMENTS INT32_MAX

typedef cudnnBackendDescriptor_t gb_dnn_part;

/* {==== graphs ==== */

typedef struct gb_dnn_graph {
  gb_dnn_part pieces[GB_DNN_PIECES], ops[GB_DNN_OPS], graph;
  int n_pieces, n_ops;
  cudnnHandle_t handle;                /* of the device that engines are chosen for, which older versions of the library
                                          ask for; or NULL */
  gb_dnn_part device;                  /* a description of the device, in the place of a handle; or NULL */
  int64_t next_virtual;                /* the id of the next tensor that only exists inside */
  cudnnStatus_t status;
  char error[256];                     /* what the library said at the first failure */
} gb_dnn_graph;

void gb_dnn_begin(gb_dnn_graph *g);
/* Make the operation graph. False: something failed, g->status and g->error say what. */
bool gb_dnn_end(gb_dnn_graph *g);
void gb_dnn_release(gb_dnn_graph *g);

cudnnDataType_t gb_dnn_type(gb_dtype dtype);
/* A tensor in memory with this id (from 1), aligned to 16 bytes. */
gb_dnn_part gb_dnn_tensor(gb_dnn_graph *g, int64_t id, cudnnDataType_t type, int ndim, const int64_t *shape,
                          const int64_t *stride);
/* The same of [a, b, h, w], dense, its second dimension innermost in memory: channels last. */
gb_dnn_part gb_dnn_image(gb_dnn_graph *g, int64_t id, cudnnDataType_t type, int64_t a, int64_t b, const int64_t hw[2]);
/* A tensor between two operations, in a layout of the library's choice. The strides are those of a row-major tensor, or
 * of `like`. */
gb_dnn_part gb_dnn_virtual(gb_dnn_graph *g, cudnnDataType_t type, int ndim, const int64_t *shape, const int64_t *like);
/* One float32 whose value is given with every run, from host memory. */
gb_dnn_part gb_dnn_scalar(gb_dnn_graph *g, int64_t id, int ndim);

/* y = mode(x), or mode(x, b), or mode(x, b) where t, in float32. b and t may be NULL. */
void gb_dnn_pointwise(gb_dnn_graph *g, cudnnPointwiseMode_t mode, gb_dnn_part x, gb_dnn_part b, gb_dnn_part t,
                      gb_dnn_part y);
/* y = the position of each element along an axis of x. */
void gb_dnn_position(gb_dnn_graph *g, int64_t axis, gb_dnn_part x, gb_dnn_part y);
/* c = a @ b over the last two dims, accumulated in float32. */
void gb_dnn_matmul(gb_dnn_graph *g, gb_dnn_part a, gb_dnn_part b, gb_dnn_part c);
/* y = x reduced to y's shape, in float32. */
void gb_dnn_reduce(gb_dnn_graph *g, cudnnReduceTensorOp_t op, gb_dnn_part x, gb_dnn_part y);
/* y holds x's elements by other strides. */
void gb_dnn_reshape(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part y);

/* The two-dimensional convolutions; compute is the type of the sums. */
typedef enum gb_dnn_convolution { GB_DNN_FORWARD, GB_DNN_BACKWARD_INPUT, GB_DNN_BACKWARD_WEIGHT } gb_dnn_convolution;
/* after: the padding behind the input. */
typedef struct gb_dnn_window { int64_t stride[2], padding[2], dilation[2], after[2]; } gb_dnn_window;
void gb_dnn_convolve(gb_dnn_graph *g, gb_dnn_convolution kind, cudnnDataType_t compute, const gb_dnn_window *window,
                     gb_dnn_part x, gb_dnn_part weight,
                     gb_dnn_part y);

/* Batch normalization of channels: y, mean and 1 / sqrt(variance + epsilon) from x, in training. */
void gb_dnn_norm_forward(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part scale, gb_dnn_part bias, gb_dnn_part epsilon,
                         gb_dnn_part y, gb_dnn_part mean,
                         gb_dnn_part rstd);
/* Its three gradients. */
void gb_dnn_norm_backward(gb_dnn_graph *g, gb_dnn_part x, gb_dnn_part grad, gb_dnn_part scale, gb_dnn_part mean,
                          gb_dnn_part rstd, gb_dnn_part dx,
                          gb_dnn_part dscale, gb_dnn_part dbias);

/* Two-dimensional pooling of `from` into `to`; backward, of the gradient of the result into that of the input. */
typedef struct gb_dnn_pool { int64_t kernel[2], stride[2], padding[2]; } gb_dnn_pool;
void gb_dnn_resample(gb_dnn_graph *g, cudnnResampleMode_t mode, bool backward, const gb_dnn_pool *window,
                     gb_dnn_part from, gb_dnn_part to);

/* ====} */

/* {==== plans ==== */

/* Which engines will not do. */
typedef struct gb_dnn_wish {
  bool deterministic;                  /* the same bits every time */
  bool exact;                          /* float32 operands are not rounded to fewer bits */
  size_t workspace;                    /* at most so much scratch */
} gb_dnn_wish;

/* A graph prepared to run, or the reason why it cannot. */
typedef struct gb_dnn_plan {
  gb_dnn_graph graph;
  gb_dnn_part config, plan;            /* NULL: no engine can */
  size_t workspace;
  char error[256];
} gb_dnn_plan;

/* The key of a plan: everything that its graph is made of, and the wish. The rest is 0. */
typedef struct gb_dnn_key { int64_t values[48]; } gb_dnn_key;

/* Describe the graph in g; gb_dnn_begin was called, gb_dnn_end will be. */
typedef void (*gb_dnn_build)(gb_dnn_graph *g, const void *what);

/* The library's handle and the plans made so far, opened at the first use. */
typedef struct gb_dnns gb_dnns;
gb_status gb_dnns_of(gb_cuda_call *call, gb_dnns **out);

/* The plan for a key. At its first use build(g, what) makes the graph, and the first engine configuration that the
 * heuristics name, that is allowed and that runs is taken. If there is none, plan->plan is NULL and plan->error says
 * why. NULL: out of memory. */
gb_dnn_plan *gb_dnn_plan_of(gb_dnns *dnns, const gb_dnn_key *key, gb_dnn_build build, const void *what,
                            const gb_dnn_wish *wish);
/* The same without a cache, for the device of a handle or, where there is none, for one that is only described: then it
 * can be prepared and not run. The caller releases it. */
gb_dnn_plan *gb_dnn_plan_make(cudnnHandle_t handle, gb_dnn_part device, gb_dnn_build build, const void *what,
                              const gb_dnn_wish *wish);
void gb_dnn_plan_release(void *plan);
/* How many configurations the heuristics name for a graph; this needs no device. */
int gb_dnn_count_configs(gb_dnn_graph *g, cudnnBackendHeurMode_t mode);

/* Memory of the tensors by their ids. */
typedef struct gb_dnn_bound { int n; int64_t id[GB_DNN_BOUND]; void *data[GB_DNN_BOUND]; } gb_dnn_bound;
static inline void gb_dnn_bind(gb_dnn_bound *bound, int64_t id, const void *data) {
  bound->id[bound->n] = id;
  bound->data[bound->n++] = (void *)data;
}
/* Run a plan on the call's stream. */
gb_status gb_dnn_run(gb_cuda_call *call, gb_dnns *dnns, const gb_dnn_plan *plan, const gb_dnn_bound *bound);

/* ====} */

#endif
