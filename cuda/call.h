/* cuda/call.h - one call of one op as kernel files see it: plain structs, in C and in CUDA C++.
 *
 * backend.c makes a gb_cuda_call from the engine's gb_op_call, runs the kernel of its op, and cleans up. Kernel files
 * (*.cu) include device.cuh, which includes this. They know nothing else of the engine. */
#ifndef GB_CUDA_CALL_H
#define GB_CUDA_CALL_H

#ifdef __CUDACC__ /* how functions in base/ are declared where a GPU may run them */
#define GB_INLINE static __host__ __device__ __forceinline__
#endif

#include "cuda/runtime.h"
#include "gibbous_ops.h"
#include "graph/number.h"
#include "op_ids.h"

#ifdef __cplusplus
extern "C" {
#endif

/* {==== arguments by name: GB_CUDA_IN(call, linear)->weight, GB_CUDA_OUT(call, linear)->y ====
 * Attributes by GB_ATTRS(call, linear)->activation. */

typedef struct gb_cuda_tensor gb_cuda_tensor;

#define GB_TAKE_IN(name, text, flags) const gb_cuda_tensor *name;
#define GB_TAKE_LIST(name, text) const gb_cuda_tensor *name; /* the first of them */
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  __extension__ typedef struct gb_cuda_in_##name { arguments } gb_cuda_in_##name;
#include "graph/ops.def"

#define GB_TAKE_OUT(name, text, kept) const gb_cuda_tensor *name;
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  __extension__ typedef struct gb_cuda_out_##name { arguments } gb_cuda_out_##name;
#include "graph/ops.def"

#define GB_CUDA_IN(call, op) ((const gb_cuda_in_##op *)(const void *)(call)->in)
#define GB_CUDA_OUT(call, op) ((const gb_cuda_out_##op *)(const void *)(call)->out)
#ifndef GB_ATTRS /* graph/ops.h has the same, which kernel files do not know */
#define GB_ATTRS(call, op) ((const gb_attrs_##op *)(const void *)(call)->attrs)
#endif

/* ====} */

#define GB_CUDA_MOST_OUT 8 /* outputs of an op, at most */
#define GB_CUDA_SCRATCH 16 /* pieces of scratch of one call, at most */

struct gb_cuda_tensor {
  char *data;             /* the first element, in device memory */
  gb_dtype dtype;
  int ndim;
  int64_t shape[GB_MAX_NDIM], stride[GB_MAX_NDIM]; /* strides in elements; 0 where broadcast */
  int64_t numel;
  bool host;              /* a number: 0-d, and data is host memory. Only kernels whose row takes numbers meet one */
  bool wrapped;           /* a plain number of the calling language */
};

/* A fault that a kernel found in data. There is one record per device, in its memory. The first report stays until the
 * next synchronisation turns it into an error. Kernels continue with a value in range, so memory is never touched out
 * of bounds. */
typedef enum gb_cuda_fault_kind { GB_FAULT_NONE, GB_FAULT_INDEX, GB_FAULT_DIVISION, GB_FAULT_PROBABILITY,
                                  GB_FAULT_WEIGHTS, GB_FAULT_ZERO_WEIGHTS,
                                  GB_FAULT_FEW_WEIGHTS, GB_FAULT_LENGTH, GB_FAULT_KINDS } gb_cuda_fault_kind;
typedef struct gb_cuda_fault {
  int32_t kind, op;       /* a gb_cuda_fault_kind, set once; the gb_op */
  int64_t value, limit;   /* of an index: the value, and the number of valid ones */
} gb_cuda_fault;

/* The place of a call in the random stream. In a captured graph advance[0] and advance[1] are what a replay adds to
 * offset and seed. */
typedef struct gb_cuda_place { uint64_t seed, offset; const uint64_t *advance; } gb_cuda_place;

/* Is t [n, c, ...] dense with its channels innermost in memory? Strides of dimensions of size 1 do not count. */
static inline bool gb_cuda_is_channels_last(const gb_cuda_tensor *t) {
  int64_t step = t->shape[1];
  if (step > 1 && t->stride[1] != 1) return false;
  for (int i = t->ndim - 1; i >= 1; i--) { /* the last dimension first, the first one last */
    int d = i == 1 ? 0 : i;
    if (t->shape[d] > 1 && t->stride[d] != step) return false;
    step *= t->shape[d];
  }
  return true;
}

struct gb_op_call;
struct gb_cuda;

typedef struct gb_cuda_call {
  gb_op op;                                /* that faults in data are reported by: the outermost that runs */
  int n_in, n_out;
  const gb_cuda_tensor **in;               /* NULL where optional and absent */
  const gb_cuda_tensor *out[GB_CUDA_MOST_OUT];  /* NULL where not asked for; in place, out[0] is in[0]'s memory */
  const gb_attr *attrs;                    /* of the row, defaults filled in */
  gb_stream stream;                        /* where everything is launched */
  gb_cuda_place place;                     /* of ops that draw */
  gb_cuda_fault *fault;                    /* in device memory */
  bool in_place, tf32;
  struct gb_cuda *cuda;                    /* the backend */
  struct gb_op_call *call;                    /* the engine's own, for C files */
  void *scratch[GB_CUDA_SCRATCH];
  int scratches;
} gb_cuda_call;

/* Launch what computes call->out from call->in; never waits. Shapes, dtypes and devices were checked, the outputs
 * allocated. */
typedef gb_status (*gb_cuda_kernel)(gb_cuda_call *call);

/* A row of a family's table, which ends with {GB_OP_COUNT}. A kernel that takes numbers gets 0-d inputs of the host as
 * they are; for the others they are brought to the device first. */
typedef struct gb_cuda_row { gb_op op; gb_cuda_kernel kernel; bool takes_numbers; } gb_cuda_row;

/* {---- backend.c ---- */

/* The failure text (the op's name is put before it) and its status: `return gb_cuda_fail(call, GB_EUNSUPPORTED, "...",
 * ...)`. */
gb_status gb_cuda_fail(gb_cuda_call *call, gb_status status, const char *format, ...) GB_PRINTF(3, 4);
/* Device memory for this call alone, aligned to 256 bytes; it goes back when the kernel function has returned, since
 * the stream keeps the order. NULL: out of memory, text set: return GB_EMEMORY. */
void *gb_cuda_scratch(gb_cuda_call *call, size_t bytes);
/* Free the scratch taken since call->scratches was `mark`, for loops: later launches may use it again. */
void gb_cuda_scratch_back(gb_cuda_call *call, int mark);
/* Zeros in device memory, in order with what is launched. */
gb_status gb_cuda_clear(gb_cuda_call *call, void *data, size_t bytes);
/* The dtype that the inputs promote to, without input `without` (from 0; -1: all of them). */
gb_dtype gb_cuda_common(const gb_cuda_call *call, int without);

/* Run the kernel of another op, of one output, within this one. attrs: its struct of attributes; NULL: it has none. */
gb_status gb_cuda_run_op(gb_cuda_call *call, gb_op op, const gb_cuda_tensor **in, int n_in, const gb_cuda_tensor *out,
                         const void *attrs);
/* The same in C, inputs by name: those of the row `like`, which is op's own or has its inputs at the same places. */
#define GB_CUDA_RUN(call, op, like, out, attrs, ...)                                                 \
  gb_cuda_run_op((call), (op), (const gb_cuda_tensor **)(void *)&(gb_cuda_in_##like){ __VA_ARGS__ }, \
                 (int)(sizeof(gb_cuda_in_##like) / sizeof(gb_cuda_tensor *)), (out), (attrs))
/* Note that the kernel wrote into an input (running statistics), so that graphs which saved it know. NULL is
 * allowed. */
void gb_cuda_changed(gb_cuda_call *call, const gb_cuda_tensor *input);
/* Is forward running a second time, for a gradient? Then side effects of the first time are not repeated. */
bool gb_cuda_recomputing(const gb_cuda_call *call);

/* ----} */

#ifdef __cplusplus
}
#endif
#endif
