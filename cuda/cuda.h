/* cuda/cuda.h - the backend's state, for its C files. */
#ifndef GB_CUDA_CUDA_H
#define GB_CUDA_CUDA_H

#include "cuda/families.h"
#include "cuda/relu.h"
#include "graph/ops.h"

/* What may run slower than it should. Of those before GB_SLOWER_UNASKED the first one is told unasked. */
typedef enum gb_slower { GB_SLOWER_CONVOLUTION, GB_SLOWER_ATTENTION, GB_SLOWER_ATTENTION_BACKWARD, GB_SLOWER_BATCH_NORM,
                         GB_SLOWER_POOLING, GB_SLOWER_RECURRENT, GB_SLOWER_LINALG, GB_SLOWER_UNASKED,
                         GB_SLOWER_EPILOGUE = GB_SLOWER_UNASKED,
                         GB_SLOWER_KINDS } gb_slower;

typedef struct gb_cuda {
  const gb_engine_table *engine;
  gb_context *context;                    /* not counted: the backend goes with it */
  int device;                             /* whose this is, from 0; every entrance selects it */
  gb_stream stream;                       /* where everything is computed */
  struct gb_uploads *uploads;             /* what the host writes goes through it: upload.h */
  gb_event posted;                        /* the last copy that was posted */
  gb_event crossed;                       /* event of the last wait between this device's stream and another's */
  gb_event step[2];                       /* the ends of the last two steps, by turns */
  uint64_t steps;
  gb_cuda_fault *fault, *fault_seen;      /* in device memory, and where the host reads it */
  uint64_t *advance;                      /* in device memory: places and seeds that a replay is ahead of its capture */
  bool capturing;
  struct gb_keeper *keeper;               /* of the capture that runs: the plans that it uses */
  bool blocking;                          /* wait after every op, so that the op at fault reports it:
                                             GIBBOUS_CUDA_BLOCKING */
  bool silent, verbose;                   /* gb_cuda_slower prints nothing, or everything: GIBBOUS_CUDA_VERBOSE is 0,
                                             or else */
  bool said[GB_SLOWER_KINDS];
  int64_t piece;                          /* elements per piece, for ops that work in pieces; 0: the best number.
                                             GIBBOUS_CUDA_PIECE, for tests */
  int major;                              /* of the device's compute capability */
  size_t memory, shared_most;             /* bytes of the device, and of shared memory that a block may have */
  int64_t logits_bytes;                   /* that a chunk of linear_cross_entropy may take; 0: none was made yet */
  struct gb_gemms *gemms;                 /* state of gemm.h and dnn.h; NULL until the first use */
  struct gb_dnns *dnns;
  struct gb_solvers *solvers;             /* of solver.h; NULL until the first use, and where the library is absent */
  bool no_solvers;                        /* it was looked for, and is absent */
  struct gb_rnns *rnns;                   /* of rnn.h; NULL until the first use, and where the library does not open, */
  const char *no_rnns;                    /* and why it does not */
  gb_relu_answer product_relu[GB_DTYPE_COUNT][2][2]; /* by the operands' dtype, [another result or tf32], [bias] */
  gb_relu_answer conv_relu[GB_DTYPE_COUNT][2][2];    /* [tf32], [bias] */
  gb_relu_answer norm_relu[GB_DTYPE_COUNT][2][2];    /* [evaluation], [residual] */
  const gb_cuda_row *row[GB_OP_COUNT];
} gb_cuda;

/* Tell standard error, as a line, that something runs slower than it should: the first time of each kind, or each time
 * where it was asked for. */
void gb_cuda_slower(const gb_cuda_call *call, gb_slower kind, const char *format, ...) GB_PRINTF(3, 4);

/* The same for a library of linear algebra that is absent, and why. */
void gb_cuda_no_solvers(gb_cuda *cuda, const char *why);
/* May a library be opened now? Not in a capture: opening allocates, and may wait for the device, of which no document
 * says what that makes of the capture. */
gb_status gb_cuda_may_open(gb_cuda_call *call, const char *library);
/* Wait for all that was launched on a stream, before plans of cuDNN are released (cache.h): they may have code of their
 * own, and no document says that destroying them waits for kernels that run it. A failure stays with the stream, and
 * the next wait tells it. */
void gb_cuda_settle(void *stream);
/* Read device memory, in order with what was launched; this waits. */
gb_status gb_cuda_read(gb_cuda_call *call, void *host, const void *device, size_t bytes);
/* Write it, in order with what is launched; the host's memory is free on return. */
gb_status gb_cuda_write(gb_cuda_call *call, void *device, const void *host, size_t bytes);

/* optim.c: launch a step of the engine's. `call` has the stream, and gives scratch. */
typedef gb_status (*gb_cuda_step)(gb_cuda_call *call, const struct gb_step_call *step);
extern const gb_cuda_step gb_cuda_steps[GB_STEP_COUNT];

#endif
