/* gibbous.h - the public C API of the Gibbous engine.
 *
 * The engine knows tensors, operations, gradients, mixed precision and optimizers; it knows neither Lua nor CUDA. Rules
 * that hold for every function here, unless its comment says otherwise:
 *   - It returns a gb_status. On failure the text is in gb_error(context), outputs are untouched and nothing leaks.
 *   - Tensors are reference counted. An out parameter receives a new reference, which the caller ends with
 *     gb_tensor_release. Inputs are borrowed.
 *   - One thread at a time runs the operations of a context. Other threads may release tensors and set the interrupt
 *     flag.
 *   - Sizes, strides and positions are int64_t, counted in elements and from 0. Rank is at most GB_MAX_NDIM.
 *   - Nothing prints, exits, aborts or keeps a global. */
#ifndef GIBBOUS_H
#define GIBBOUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GB_VERSION "0.1.0"
#define GB_MAX_NDIM 8

#if defined(__GNUC__)
#define GB_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GB_API __attribute__((visibility("default")))
#else
#define GB_PRINTF(text, first)
#define GB_API
#endif

/* {==== Status ==== */

#define GB_STATUS_LIST(X)                                                       \
  X(OK, "ok")                                                                   \
  X(EINVAL, "invalid argument")                                                 \
  X(ESHAPE, "shapes do not fit")                                                \
  X(EDTYPE, "dtype not supported")                                              \
  X(EDEVICE, "device not available")                                            \
  X(EINDEX, "index out of range")                                               \
  X(EMEMORY, "out of memory")                                                   \
  X(EAUTOGRAD, "gradient cannot be computed")                                   \
  X(EAUTOCAST, "not allowed under autocast")                                    \
  X(ESTATE, "wrong order of calls")                                             \
  X(EOVERFLOW, "gradients keep overflowing")                                    \
  X(EINTERRUPT, "interrupted")                                                  \
  X(ECALLBACK, "a callback failed")                                             \
  X(EIO, "input or output failed")                                              \
  X(EFORMAT, "malformed file")                                                  \
  X(EUNSUPPORTED, "not supported")                                              \
  X(ERECIPE, "the recipe failed")                                               \
  X(ELUABYTES, "the limit of Lua bytes was reached")                            \
  X(ETENSORBYTES, "the limit of tensor bytes was reached")                      \
  X(EINSTRUCTIONS, "the limit of instructions was reached")                     \
  X(ETIME, "the limit of seconds was reached")                                  \
  X(EFILEBYTES, "the limit of bytes written to files was reached")              \
  X(ETHREAD, "another thread is using it")

typedef enum gb_status {
#define GB_STATUS_ENUM(name, text) GB_##name,
  GB_STATUS_LIST(GB_STATUS_ENUM)
#undef GB_STATUS_ENUM
} gb_status;

/* The text of the table above; never NULL. */
GB_API const char *gb_status_text(gb_status status);

/* ====} */

/* {==== Dtypes and devices ==== */

/* What there is to know of each dtype; base/formats.h makes of it what the engine uses. Its name; the C type that an
 * element is stored as, and how its bits are read (formats.h has the readings); its category (FLOAT, INT, BOOL); its
 * significant bits; its range: the least and the largest value, or of a float the exponents of the least and the
 * largest normal number; its name in safetensors files; its code in DLPack. The numbers of the enum are part of the
 * binary interface, so a new row goes to the end. */
#define GB_DTYPE_LIST(X)                                                                    \
  X(FLOAT64, float64, double, PLAIN, FLOAT, 53, -1022, 1023, "F64", FLOAT)                  \
  X(FLOAT32, float32, float, PLAIN, FLOAT, 24, -126, 127, "F32", FLOAT)                     \
  X(FLOAT16, float16, uint16_t, HALF, FLOAT, 11, -14, 15, "F16", FLOAT)                     \
  X(BFLOAT16, bfloat16, uint16_t, UPPER, FLOAT, 8, -126, 127, "BF16", BFLOAT)               \
  X(INT64, int64, int64_t, WHOLE, INT, 63, INT64_MIN, INT64_MAX, "I64", INT)                \
  X(INT32, int32, int32_t, WHOLE, INT, 31, INT32_MIN, INT32_MAX, "I32", INT)                \
  X(UINT8, uint8, uint8_t, WHOLE, INT, 8, 0, UINT8_MAX, "U8", UINT)                         \
  X(BOOL, bool, uint8_t, TRUTH, BOOL, 1, 0, 1, "BOOL", BOOL)                                \
  X(INT16, int16, int16_t, WHOLE, INT, 15, INT16_MIN, INT16_MAX, "I16", INT)                \
  X(INT8, int8, int8_t, WHOLE, INT, 7, INT8_MIN, INT8_MAX, "I8", INT)

typedef enum gb_dtype {
#define GB_DTYPE_ENUM(NAME, ...) GB_##NAME,
  GB_DTYPE_LIST(GB_DTYPE_ENUM)
#undef GB_DTYPE_ENUM
  GB_DTYPE_COUNT,
  GB_DTYPE_NONE = -1 /* not given: the op decides */
} gb_dtype;

GB_API const char *gb_dtype_name(gb_dtype dtype);                 /* "float32" */
GB_API size_t gb_dtype_bytes(gb_dtype dtype);
GB_API bool gb_dtype_is_float(gb_dtype dtype);
GB_API gb_dtype gb_dtype_from_name(const char *name);             /* GB_DTYPE_NONE when unknown */

typedef enum gb_device_type { GB_CPU, GB_CUDA, GB_PLUGIN, GB_DEVICE_TYPES } gb_device_type;
typedef struct gb_device { int16_t type, index; } gb_device;      /* {GB_CPU, 0} */

/* ====} */

/* {==== Contexts ==== */

typedef struct gb_context gb_context;
typedef struct gb_tensor gb_tensor;

typedef void *(*gb_alloc_fn)(void *user, size_t bytes, size_t alignment); /* NULL: no memory */
typedef void (*gb_free_fn)(void *user, void *block, size_t bytes);

typedef struct gb_context_options {
  size_t size;             /* of this struct, set by gb_context_options_init: old callers keep working */
  int threads;             /* for kernels, the caller included; 0: one per core */
  size_t tensor_bytes;     /* limit on bytes in tensors; 0: none */
  uint64_t seed;           /* of the random stream */
  gb_alloc_fn alloc;       /* both or neither; what they give is cleared before recipes see it. NULL: pages of the
                              system */
  gb_free_fn free;
  void *alloc_user;
  const char *cpu_level;   /* "baseline", "v3", "v4", "v4-bf16", "v4-amx", or NULL: the fastest on this CPU. The last
                              two multiply 16-bit matrices by AVX512_BF16 and by AMX. v4-amx asks Linux to let the
                              process use AMX; alternate signal stacks of its threads then need 12 KiB or more */
  const char *plugins;     /* folders to look for backends in, separated by ':', before the executable's own folder and
                              the installed one */
} gb_context_options;

GB_API void gb_context_options_init(gb_context_options *options, size_t size);

/* Open an engine. On failure *out is NULL, and only the status says why. */
GB_API gb_status gb_context_open(const gb_context_options *options, gb_context **out);
/* Drop the caller's reference. Tensors may outlive it, but only as values: closing takes the gradient, the graph and
 * the hooks from every tensor of the engine (gb_tensor_grad then gives NULL, and gb_backward fails), so that tensors
 * which hold each other in a ring are freed too. Retain a gradient first if you still want it. Memory that a tensor's
 * own values need stays until it is released. */
GB_API void gb_context_close(gb_context *context);

/* The text of the last failure ("conv2d: weight expects 3 input channels, ..."); "" when there was none. */
GB_API const char *gb_error(const gb_context *context);
GB_API gb_status gb_error_code(const gb_context *context);
/* The op that failed last, or "". */
GB_API const char *gb_error_op(const gb_context *context);

/* Ask the context to stop: the running op, and each op after it, returns GB_EINTERRUPT. A stopped op gives no output; a
 * tensor that it was changing in place may be changed in part. An optimizer step runs to its end. Any thread, any
 * signal handler. */
GB_API void gb_interrupt(gb_context *context);
GB_API void gb_interrupt_clear(gb_context *context);

GB_API gb_status gb_set_num_threads(gb_context *context, int threads);
GB_API int gb_get_num_threads(const gb_context *context);

/* The random stream: Philox4x32-10, keyed by seed, at an offset that every random op advances. */
GB_API void gb_manual_seed(gb_context *context, uint64_t seed);
GB_API void gb_get_rng_state(const gb_context *context, uint64_t *seed, uint64_t *offset);
GB_API void gb_set_rng_state(gb_context *context, uint64_t seed, uint64_t offset);

/* Open a backend plugin (a shared library that exports gb_backend_open) as the context's device of its type. */
GB_API gb_status gb_context_load_backend(gb_context *context, const char *path);

/* Bytes by category. */
typedef enum gb_memory_category {
  GB_MEM_PARAMETERS, GB_MEM_GRADIENTS, GB_MEM_OPTIMIZER, GB_MEM_WEIGHT_COPIES, GB_MEM_SAVED, GB_MEM_OTHER,
  GB_MEM_SCRATCH, GB_MEM_CATEGORIES
} gb_memory_category;

typedef struct gb_memory_stats {
  size_t current[GB_MEM_CATEGORIES], peak[GB_MEM_CATEGORIES]; /* of blocks in use, padding included */
  size_t current_total, peak_total;
  size_t reserved, peak_reserved;                             /* segments taken from the system, in use or cached */
  uint64_t allocations, system_allocations;
} gb_memory_stats;

/* Over all devices of the context. A peak is the sum of the devices' own peaks. */
GB_API void gb_memory_get_stats(gb_context *context, gb_memory_stats *out);
/* Of one device; zeros if it is not open. */
GB_API void gb_memory_get_device_stats(gb_context *context, gb_device device, gb_memory_stats *out);
GB_API void gb_memory_reset_peaks(gb_context *context);
GB_API void gb_memory_empty_cache(gb_context *context);
/* Wait until the device has finished. Fails if one of its kernels found bad data, such as an index out of range. */
GB_API gb_status gb_synchronize(gb_context *context, gb_device device);

/* ====} */

/* {==== Tensors ==== */

/* Make a contiguous tensor with unset elements. shape is copied. */
GB_API gb_status gb_tensor_new(gb_context *context, gb_dtype dtype, int ndim, const int64_t *shape, gb_device device,
                               gb_tensor **out);
/* Make a 0-d tensor that holds value. */
GB_API gb_status gb_tensor_scalar(gb_context *context, gb_dtype dtype, double value, gb_tensor **out);
/* Make a tensor over your memory, which is contiguous, on the CPU, and aligned for its dtype. With `release`, the
 * memory must stay until release(user) is called, by the thread that ends the last use. Without it, the tensor is a
 * loan: end it with gb_tensor_revoke before you free the memory. On failure release is not called. */
GB_API gb_status gb_tensor_wrap(gb_context *context, void *data, gb_dtype dtype, int ndim, const int64_t *shape,
                                void (*release)(void *user), void *user, gb_tensor **out);
/* End a loan. The next use of the tensor, of a view of it, or of a graph that saved it fails with GB_ESTATE, and the
 * memory is yours again. Call it on the thread that uses the context. GB_EINVAL if the tensor is not a loan. */
GB_API gb_status gb_tensor_revoke(gb_tensor *tensor);

/* DLPack, ABI version 1; your own <dlpack/dlpack.h> declares the struct. Export shares the memory of a CPU tensor until
 * the struct's deleter is called, from any thread; until then no optimizer adopts the tensor. Import shares your memory
 * and calls the deleter after the last use; on failure the struct stays yours. */
struct DLManagedTensorVersioned;
GB_API gb_status gb_tensor_to_dlpack(gb_tensor *tensor, struct DLManagedTensorVersioned **out);
GB_API gb_status gb_tensor_from_dlpack(gb_context *context, struct DLManagedTensorVersioned *managed, gb_tensor **out);

GB_API void gb_tensor_retain(gb_tensor *tensor);
GB_API void gb_tensor_release(gb_tensor *tensor);                 /* NULL is allowed; any thread */

GB_API gb_context *gb_tensor_context(const gb_tensor *tensor);
GB_API gb_dtype gb_tensor_dtype(const gb_tensor *tensor);
GB_API gb_device gb_tensor_device(const gb_tensor *tensor);
GB_API int gb_tensor_ndim(const gb_tensor *tensor);
GB_API const int64_t *gb_tensor_shape(const gb_tensor *tensor);   /* gb_tensor_ndim elements */
GB_API const int64_t *gb_tensor_strides(const gb_tensor *tensor); /* in elements */
GB_API int64_t gb_tensor_numel(const gb_tensor *tensor);
/* a negative dim counts from the end; 0 where there is no such dim */
GB_API int64_t gb_tensor_size(const gb_tensor *tensor, int dim);
GB_API bool gb_tensor_is_contiguous(const gb_tensor *tensor);
/* The address of the first element, in the device's memory. */
GB_API void *gb_tensor_data(const gb_tensor *tensor);

/* Copy all elements, contiguous and in the tensor's dtype, from or to `bytes` bytes of host memory. */
GB_API gb_status gb_tensor_write(gb_tensor *tensor, const void *host, size_t bytes);
GB_API gb_status gb_tensor_read(gb_tensor *tensor, void *host, size_t bytes);
/* The value of a one-element tensor, as a double and, exactly, as an integer. */
GB_API gb_status gb_tensor_item(gb_tensor *tensor, double *number, int64_t *integer);

GB_API bool gb_tensor_requires_grad(const gb_tensor *tensor);
GB_API gb_status gb_tensor_set_requires_grad(gb_tensor *tensor, bool requires_grad);
/* A new reference to the accumulated gradient, or NULL if there is none. */
GB_API gb_tensor *gb_tensor_grad(gb_tensor *tensor);
GB_API gb_status gb_tensor_set_grad(gb_tensor *tensor, gb_tensor *grad); /* NULL: none */

/* ====} */

/* {==== Operations and gradients ==== */

/* An op in this process. Ids change from version to version: look one up by its name, once. */
typedef int32_t gb_op;
GB_API gb_op gb_op_named(const char *name); /* -1: there is none */

/* The value of one attribute of an op. The op's signature says which member holds it. */
typedef struct gb_attr {
  bool given;                 /* false: the default of the signature */
  bool whole;                 /* of a number: it came as an integer, `exact` */
  int8_t count;               /* of ints */
  int64_t exact;              /* a whole number with all its bits; `number` is then the double next to it */
  union {
    int64_t integer;          /* int, bool, dtype, dim (a position from 0, negative from the end) */
    double number;            /* number */
    int64_t ints[GB_MAX_NDIM];/* ints, dims, shape */
    const char *text;         /* text, or the word of a choice: NUL-terminated, read during the call */
  };
} gb_attr;
#define GB_MAX_ATTRS 16

static inline gb_attr gb_attr_empty(void) {
  gb_attr a;
  memset(&a, 0, sizeof a);
  a.given = true;
  return a;
}
static inline gb_attr gb_attr_int(int64_t value) { gb_attr a = gb_attr_empty(); a.integer = value; return a; }
static inline gb_attr gb_attr_num(double value) { gb_attr a = gb_attr_empty(); a.number = value; return a; }
/* A number that is an integer. */
static inline gb_attr gb_attr_whole(int64_t value) {
  gb_attr a = gb_attr_num((double)value);
  a.whole = true;
  a.exact = value;
  return a;
}
/* At most GB_MAX_NDIM of them. */
static inline gb_attr gb_attr_ints(int count, const int64_t *values) {
  gb_attr a = gb_attr_empty();
  a.count = (int8_t)count;
  if (count > 0) memcpy(a.ints, values, sizeof *values * (size_t)count);
  return a;
}
static inline gb_attr gb_attr_text(const char *text) { gb_attr a = gb_attr_empty(); a.text = text; return a; }

/* Run an op: autocast, check, kernel, record, observe. in[] has the op's tensor inputs in order, NULL where an optional
 * one is absent. attrs has one gb_attr per attribute of the signature, or is NULL for all defaults. out[] receives the
 * outputs, as new references. gibbous_ops.h has typed calls with arguments by name. */
GB_API gb_status gb_apply(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs,
                          gb_tensor **out);
/* Run an op in place: the result is written into in[0], which keeps its dtype and shape. */
GB_API gb_status gb_apply_(gb_context *context, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs);

/* Add d(tensor)/d(leaf) * gradient to the grad of every leaf. gradient NULL: 1, for a one-element tensor. After a
 * failure some gradients have been added to, one of them perhaps in part: zero them. With create_graph a leaf's grad
 * refers to the leaf: a cycle until gb_tensor_set_grad(leaf, NULL). */
GB_API gb_status gb_backward(gb_tensor *tensor, gb_tensor *gradient, bool retain_graph, bool create_graph);
/* The gradients of tensors[] with respect to inputs[], into grads[]: new references. With allow_unused, NULL for an
 * input that was not used. */
GB_API gb_status gb_grad(gb_tensor *const *tensors, gb_tensor *const *gradients, int n_tensors,
                         gb_tensor *const *inputs, int n_inputs, bool retain_graph, bool create_graph,
                         bool allow_unused, gb_tensor **grads);

GB_API bool gb_set_grad_enabled(gb_context *context, bool enabled); /* returns the previous setting */
GB_API bool gb_is_grad_enabled(const gb_context *context);

/* ====} */

#ifdef __cplusplus
}
#endif
#endif
