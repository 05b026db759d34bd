/* cpu/cpu.h - what the CPU kernels share. Every kernel file is compiled once per level (baseline, v3, v4) with GB_LEVEL
 * set to the level's name; each defines one function that puts its kernels into a backend table:
 *     void GB_CPU_FILL(elementwise)(gb_backend *backend) { backend->run[GB_OP_add] = add; ... }
 * Arithmetic is float32 for 16- and 32-bit floats, float64 for float64, int64 for integers (which wrap at their width
 * on storing). */
#ifndef GB_CPU_CPU_H
#define GB_CPU_CPU_H

#include <string.h>

#include "graph/ops.h"

#ifndef GB_LEVEL
#define GB_LEVEL baseline
#endif
#define GB_CPU_PASTE_(a, b, c) a##b##_##c
#define GB_CPU_PASTE(a, b, c) GB_CPU_PASTE_(a, b, c)
/* gb_cpu_fill_elementwise_v3 and so on; also for helpers that files share: GB_CPU_NAME(gemm) is gb_cpu_gemm_v3. */
#define GB_CPU_FILL(family) GB_CPU_PASTE(gb_cpu_fill_, family, GB_LEVEL)
#define GB_CPU_NAME(name) GB_CPU_PASTE(gb_cpu_, name, GB_LEVEL)

/* Elements a tile holds: three float32 tiles of it fit in L1. Chunks of parallel work are cut in multiples of it, by
 * shape alone. */
#define GB_TILE 1024

/* {---- cpu/tile.c: bring any dtype and stride into an array of the compute type, and back (strides in elements) ----
 * */

#define gb_load_f32 GB_CPU_NAME(load_f32)
#define gb_load_f64 GB_CPU_NAME(load_f64)
#define gb_load_i64 GB_CPU_NAME(load_i64)
#define gb_store_f32 GB_CPU_NAME(store_f32)
#define gb_store_f64 GB_CPU_NAME(store_f64)
#define gb_store_i64 GB_CPU_NAME(store_i64)
void gb_load_f32(float *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n);
void gb_load_f64(double *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n);
void gb_load_i64(int64_t *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n);
void gb_store_f32(void *to, gb_dtype dtype, int64_t stride, const float *from, int64_t n);
void gb_store_f64(void *to, gb_dtype dtype, int64_t stride, const double *from, int64_t n);
void gb_store_i64(void *to, gb_dtype dtype, int64_t stride, const int64_t *from, int64_t n);

/* ----} */

/* {---- cpu/backend.c ---- */

/* What multiplies 16-bit operands: the kernels for float32 after they were widened, AVX512_BF16's dot products, or the
 * tiles of AMX. */
typedef enum gb_unit { GB_UNIT_NONE, GB_UNIT_DOTS, GB_UNIT_TILES } gb_unit;

/* What the backend keeps: the state of its table. */
typedef struct gb_cpu_room {
  const char *level;           /* "v4-amx", ... */
  gb_unit unit;                /* what multiplies 16-bit operands */
  struct gb_onednn *onednn;    /* convolutions that cpu/conv_onednn.c compiled; NULL until the first */
  bool plain_convolution;      /* convolve by im2col and GEMM even where oneDNN could: for tests */
} gb_cpu_room;

static inline gb_cpu_room *gb_cpu(const gb_context *context) { return context->backend[GB_CPU]->state; }

/* Run fn over chunks on the context's threads. Chunks that have not begun when a stop is asked for are left out, and
 * the op fails with GB_EINTERRUPT; later chunks of the same op are left out too. What they would have written stays
 * unset: code between two runs that takes it for an index, or keeps it beyond the op, asks gb_was_stopped first. One
 * chunk alone is not looked after: it is short, or asks by itself. */
void gb_parallel(const gb_op_call *call, int64_t chunks, gb_chunk_fn fn, void *arg);
/* Is a stop asked for? Then the op fails, and the chunk that asks may leave. */
bool gb_stop_long(const gb_op_call *call);
/* Was a chunk of this op left out? */
static inline bool gb_was_stopped(const gb_op_call *call) { return atomic_load_explicit(&call->stopped,
    memory_order_relaxed); }
/* The same inside a chunk, asked once in so many elements of work: *work counts them, from 0. */
static inline bool gb_long_work(const gb_op_call *call, int64_t *work, int64_t elements) {
  *work += elements;
  if (*work < GB_PIECE / 16) return false;
  *work = 0;
  return gb_stop_long(call);
}
/* So much more is about to be done for the call that runs on this thread: is a stop asked for? Looks once in
 * GB_PIECE. */
bool gb_work(int64_t amount);
/* The same for the multiply-adds of a block of a product, and for bringing its operands into panels. */
static inline bool gb_work_products(int64_t m, int64_t n,
                                    int64_t k) { return gb_work(m * n * k / (GB_PIECE_PRODUCTS / GB_PIECE) + (m + n) *
                                                                k); }
/* As many elements from `at` on as a loop over n does at once; 0 at the end, and where a stop is asked for: then what
 * is left is left out. Rows up to GB_SHORT_ROW are done whole and not counted, since chunks have few of them. Pieces
 * are whole tiles. */
#define GB_SHORT_ROW (4 * GB_TILE)
int64_t gb_piece_of_long(int64_t at, int64_t n);
static inline int64_t gb_piece(int64_t at, int64_t n) { return n <= GB_SHORT_ROW ? n - at : gb_piece_of_long(at, n); }
#define GB_PIECES(at, count, n) (int64_t at = 0, count; (count = gb_piece(at, n)) > 0; at += count)
/* Within a loop over single elements, before element i, at which a stop may end it. */
static inline bool gb_long_loop(int64_t i) { return i % GB_SHORT_ROW == GB_SHORT_ROW - 1 && gb_work(GB_SHORT_ROW); }
/* Bytes from `to` on become 0, or are copied, piece by piece. */
static inline void gb_clear_bytes(void *to, size_t bytes) {
  for GB_PIECES(at, count, (int64_t)bytes) memset((char *)to + at, 0, (size_t)count);
}
static inline void gb_copy_bytes(void *to, const void *from, size_t bytes) {
  for GB_PIECES(at, count, (int64_t)bytes) memcpy((char *)to + at, (const char *)from + at, (size_t)count);
}
/* Scratch memory for a kernel, from the pool (category scratch). NULL: out of memory, text set: return GB_EMEMORY. */
gb_block *gb_cpu_scratch(const gb_op_call *call, size_t bytes);
void gb_cpu_scratch_free(const gb_op_call *call, gb_block *block);

/* A kernel met a bad value in data (a label, a token id) inside a parallel loop: kept here, turned into an error at its
 * end. */
typedef struct gb_bad_index { atomic_bool set; int64_t value, limit; } gb_bad_index;
void gb_bad_index_report(gb_bad_index *bad, int64_t value, int64_t limit);
/* GB_OK, or GB_EINDEX with "index 12 is out of range 0 .. 9". */
gb_status gb_bad_index_status(gb_op_call *call, const gb_bad_index *bad, const char *what);

/* The CPU backend of the best level this CPU runs, or of `level`. */
gb_status gb_cpu_open(gb_context *context, const char *level, gb_backend *out);

/* ----} */

/* {---- base/math.h: inline float32 functions that the compiler can vectorise, accurate to 2 ulp ---- gb_expf gb_logf
 * gb_tanhf gb_erff ... */
/* ----} */

/* {---- cpu/gemm.c ---- */

/* One matrix operand in memory: element (r, c) at data + r * row_stride + c * column_stride; one of the strides is 1
 * (others are packed). */
typedef struct gb_matrix { const void *data; gb_dtype dtype; int64_t row_stride, column_stride; } gb_matrix;
/* c[m, n] (row-major, leading dimension ldc, dtype) = beta * c + a[m, k] @ b[k, n], accumulated in float32 (float64 for
 * float64), rounded once. Serial: callable from a chunk. */
gb_status GB_CPU_NAME(gemm)(gb_op_call *call, int64_t m, int64_t n, int64_t k, gb_matrix a, gb_matrix b, float beta,
                            void *c, int64_t ldc, gb_dtype dtype);

/* ----} */

#endif
