/* cpu/walk.h - ways through tensors that the view and index kernels share: runs along the last dimension, copies
 * between any layouts and dtypes, running sums in a wide type, and the check of index values before anything is
 * written.
 *
 * Work is cut by shape alone, so any number of threads gives the same bits. A 0-d tensor is walked as a vector of one
 * element. */
#ifndef GB_CPU_WALK_H
#define GB_CPU_WALK_H

#include <string.h>

#include "cpu/cpu.h"

/* Elements one chunk of parallel work handles, about: enough to be worth waking a thread. */
#define GB_CHUNK_ELEMENTS 16384

/* A shape cut into runs of at most `length` elements along its last dimension, numbered in row-major order. */
typedef struct gb_runs {
  int ndim;                        /* at least 1 */
  int64_t shape[GB_MAX_NDIM];
  int64_t segments, length;        /* runs per line of the last dimension; elements in a run */
  int64_t count;                   /* runs in all */
  int64_t per_chunk, chunks;       /* for gb_parallel */
} gb_runs;

/* Cut a shape into runs. */
static inline gb_runs gb_runs_of(int ndim, const int64_t *shape, int64_t length) {
  gb_runs r = { .ndim = ndim ? ndim : 1, .shape = { 1 }, .length = length };
  if (ndim) memcpy(r.shape, shape, (size_t)ndim * sizeof *shape);
  int64_t last = r.shape[r.ndim - 1];
  r.segments = (last + length - 1) / length;
  r.count = r.segments;
  for (int i = 0; i < r.ndim - 1; i++) r.count *= r.shape[i];
  int64_t cost = last < length ? last : length;
  r.per_chunk = cost < GB_CHUNK_ELEMENTS ? GB_CHUNK_ELEMENTS / (cost > 0 ? cost : 1) : 1;
  r.chunks = (r.count + r.per_chunk - 1) / r.per_chunk;
  return r;
}

/* The position of the first element of a run; returns how many elements it has. */
static inline int64_t gb_run_at(const gb_runs *r, int64_t run, int64_t *at) {
  int last = r->ndim - 1;
  at[last] = run % r->segments * r->length;
  int64_t line = run / r->segments;
  for (int i = last - 1; i >= 0; i--) {
    at[i] = line % r->shape[i];
    line /= r->shape[i];
  }
  int64_t left = r->shape[last] - at[last];
  return left < r->length ? left : r->length;
}

/* The runs of one chunk: first .. end - 1. */
static inline int64_t gb_chunk_runs(const gb_runs *r, int64_t chunk, int64_t *end) {
  int64_t first = chunk * r->per_chunk;
  *end = first + r->per_chunk < r->count ? first + r->per_chunk : r->count;
  return first;
}

/* Where a position lies, in elements. */
static inline int64_t gb_offset_at(int ndim, const int64_t *at, const int64_t *strides) {
  int64_t offset = 0;
  for (int i = 0; i < ndim; i++) offset += at[i] * strides[i];
  return offset;
}

/* Step a position to the next one in row-major order. */
static inline void gb_next_at(int ndim, const int64_t *shape, int64_t *at) {
  for (int i = ndim - 1; i >= 0; i--) {
    if (++at[i] < shape[i]) return;
    at[i] = 0;
  }
}

/* The strides of t seen as a tensor of a shape that it broadcasts to; for a 0-d shape one stride, of the vector of one
 * element. */
static inline void gb_broadcast_strides(const gb_tensor *t, int ndim, const int64_t *shape, int64_t *strides) {
  strides[0] = 0;
  for (int i = 0; i < ndim; i++) {
    int own = i - (ndim - t->ndim);
    strides[i] = own < 0 || (t->shape[own] == 1 && shape[i] != 1) ? 0 : t->stride[own];
  }
}

/* A dim from 0 for one that may count from the end; a 0-d tensor has one dimension here. */
static inline int gb_wrap_dim(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim); }
/* Size and stride of a dimension; a 0-d tensor has one of size 1. */
static inline int64_t gb_size_at(const gb_tensor *t, int dim) { return t->ndim ? t->shape[dim] : 1; }
static inline int64_t gb_stride_at(const gb_tensor *t, int dim) { return t->ndim ? t->stride[dim] : 1; }

/* One element moved as it is. */
static inline void gb_copy_element(char *to, const char *from, size_t bytes) {
  switch (bytes) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8); break;
  }
}

/* Element `offset` of an integer tensor. */
static inline int64_t gb_index_value(const char *data, gb_dtype dtype, int64_t offset) {
  switch (dtype) {
#define GB_INDEX_FLOAT(NAME, type)
#define GB_INDEX_BOOL(NAME, type)
#define GB_INDEX_INT(NAME, type) case GB_##NAME: return ((const type *)data)[offset];
#define GB_INDEX(NAME, name, type, reading, category, ...) GB_INDEX_##category(NAME, type)
    GB_DTYPE_LIST(GB_INDEX)
#undef GB_INDEX
#undef GB_INDEX_INT
#undef GB_INDEX_BOOL
#undef GB_INDEX_FLOAT
    default: return 0;
  }
}

#define gb_copy_run GB_CPU_NAME(copy_run)
#define gb_copy_strided GB_CPU_NAME(copy_strided)
#define gb_copy_values GB_CPU_NAME(copy_values)
#define gb_zero_bytes GB_CPU_NAME(zero_bytes)
#define gb_nonzero_run GB_CPU_NAME(nonzero_run)
#define gb_check_index GB_CPU_NAME(check_index)
#define gb_sums_begin GB_CPU_NAME(sums_begin)
#define gb_sums_end GB_CPU_NAME(sums_end)

/* n elements from one strided run to another, converted where the dtypes differ. */
void gb_copy_run(char *to, gb_dtype to_dtype, int64_t to_stride, const char *from, gb_dtype from_dtype,
                 int64_t from_stride, int64_t n);
/* A whole block of a shape, in parallel. Strides may be zero or, for from, negative. */
void gb_copy_strided(const gb_op_call *call, int ndim, const int64_t *shape, char *to, gb_dtype to_dtype,
                     const int64_t *to_strides, const char *from,
                     gb_dtype from_dtype, const int64_t *from_strides);
/* The values of x in `to`, broadcast and converted; nothing where x already is `to`. */
void gb_copy_values(const gb_op_call *call, const gb_tensor *to, const gb_tensor *x);
void gb_zero_bytes(const gb_op_call *call, char *data, size_t bytes);
/* flags[i] = element i is not zero (NaN is not, -0 is). */
void gb_nonzero_run(uint8_t *flags, const char *data, gb_dtype dtype, int64_t stride, int64_t n);
/* GB_EINDEX when a value of an integer tensor is not in 0 .. limit - 1. `what` names it in the text. */
gb_status gb_check_index(gb_op_call *call, const gb_tensor *index, int64_t limit, const char *what);

/* Sums being added up for a tensor: float32 for 16- and 32-bit floats, float64, or int64; rounded once at the end. They
 * lie in the tensor itself where its dtype is that type, otherwise in row-major scratch. */
typedef struct gb_sums {
  char *data;
  gb_dtype dtype;
  int64_t strides[GB_MAX_NDIM];
  gb_block *scratch;
} gb_sums;

/* Start with the values of x, broadcast. */
gb_status gb_sums_begin(gb_op_call *call, const gb_tensor *out, const gb_tensor *x, gb_sums *sums);
/* Round into out and free the scratch. */
void gb_sums_end(gb_op_call *call, const gb_tensor *out, gb_sums *sums);

#endif
