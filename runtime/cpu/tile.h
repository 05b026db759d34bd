/* cpu/tile.h - the walk of elementwise kernels: the elements that several tensors have in common, cut into tiles of at
 * most GB_TILE.
 *
 * A plan broadcasts the operands, orders the dims by the result's strides, merges dims wherever all operands allow it,
 * and cuts. Of each tile every operand is handed out as an array of the type that the loop computes in: the tensor's
 * own memory where it has that type and lies in one piece, else a buffer on the stack that was loaded from it. Operand
 * 0 is the result, stored back the same way. Chunks of parallel work are a fixed number of tiles; what fits in one
 * chunk never leaves the calling thread. Where an operand runs across the rows of the result, gb_tiles_run goes by
 * boxes of rows and columns and turns that operand a box at a time: read along its own memory, each cache line comes in
 * once. */
#ifndef GB_CPU_TILE_H
#define GB_CPU_TILE_H

#include "cpu/cpu.h"

#define GB_TILE_OPERANDS 5
/* Elements of one chunk of work that costs about as much as an addition per element. */
#define GB_TILE_CHUNK 16384

/* What a loop sees of an operand. GB_AS_BYTE is for bool; GB_AS_RAW is any dtype as it is stored, for copies. */
typedef enum gb_tile_as { GB_AS_F32, GB_AS_F64, GB_AS_I64, GB_AS_BYTE, GB_AS_RAW } gb_tile_as;

typedef struct gb_tile_operand {
  char *data;
  gb_dtype dtype;
  gb_tile_as as;
  bool flat;                          /* element i of the walk lies at data + i */
  bool constant;                      /* one element for the whole walk */
  gb_dtype through;                   /* of a constant: convert it to this dtype on the way; GB_DTYPE_NONE: do not */
  int64_t stride[GB_MAX_NDIM];        /* over the plan's dims */
} gb_tile_operand;

typedef struct gb_tiles {
  int count;                          /* of operands, the result included */
  int ndim;                           /* dims after merging, at least 1 */
  int64_t shape[GB_MAX_NDIM], numel;
  bool logical;                       /* the walk is row-major */
  int64_t row;                        /* tiles do not cross rows of this many elements; numel where they may */
  int64_t per_row, tiles, per_chunk;  /* tiles of a row, of all, of a chunk */
  bool streams;                       /* results go to memory past the caches */
  bool halves;                        /* all but constants are of one 16-bit dtype and flat: see cpu/wide.h for the
                                         order within tiles */
  int64_t cost;                       /* of an element, in additions */
  gb_tile_operand operand[GB_TILE_OPERANDS];
} gb_tiles;

/* One tile's elements: first .. first + n - 1 of the walk, the first at `at`. */
typedef struct gb_tile_place { int64_t first, n, at[GB_MAX_NDIM]; } gb_tile_place;

/* What the loops of one op run are told. Which numbers mean what is the op's business. */
typedef struct gb_tile_job gb_tile_job;
typedef void (*gb_tile_loop)(const gb_tile_job *job, const gb_tile_place *place, void *out, const void *const *in);
struct gb_tile_job {
  gb_tiles tiles;
  gb_tile_loop loop;                  /* NULL: a copy of operand 1 */
  struct { float f32[2]; double f64[2]; int64_t i64[3]; } number;
  uint64_t seed, offset;              /* of random numbers */
  atomic_bool *bad;                   /* set by a loop that met what it cannot compute */
};

#define gb_tiles_plan GB_CPU_NAME(tiles_plan)
#define gb_tiles_plan_copy GB_CPU_NAME(tiles_plan_copy)
#define gb_tiles_run GB_CPU_NAME(tiles_run)
#define gb_tile_seek GB_CPU_NAME(tile_seek)
#define gb_tile_read GB_CPU_NAME(tile_read)
#define gb_tile_target GB_CPU_NAME(tile_target)
#define gb_tile_write GB_CPU_NAME(tile_write)
#define gb_tile_load GB_CPU_NAME(tile_load)
#define gb_tile_store GB_CPU_NAME(tile_store)
#define gb_move_run GB_CPU_NAME(move_run)
#define gb_random_words GB_CPU_NAME(random_words)

/* Plan the walk over tensors[0] (the result) and the rest, which broadcast to its shape. as[i] is what the loop sees of
 * tensor i. logical: walk in row-major order of the result's shape, whatever its layout. cost: of one element, in
 * additions. */
void gb_tiles_plan(gb_tiles *t, gb_tensor *const *tensors, int count, const gb_tile_as *as, bool logical, int64_t cost);
/* Plan a copy between any two layouts of a shape, converted where the dtypes differ: each value is rounded once.
 * Strides may be zero or negative; no two elements of `to` share memory. */
void gb_tiles_plan_copy(gb_tiles *t, int ndim, const int64_t *shape, char *to, gb_dtype to_dtype,
                        const int64_t *to_strides, const char *from,
                        gb_dtype from_dtype, const int64_t *from_strides);
/* Run job->loop over all tiles, on the context's threads. */
void gb_tiles_run(const gb_op_call *call, gb_tile_job *job);

/* For kernels that walk by themselves: where a tile lies, an operand's elements (room holds GB_TILE of 8 bytes), where
 * the results go (room, or the tensor's own memory) and their way from there into the tensor. */
void gb_tile_seek(const gb_tiles *t, int64_t tile, gb_tile_place *place);
const void *gb_tile_read(const gb_tiles *t, int operand, const gb_tile_place *place, void *room);
void *gb_tile_target(const gb_tiles *t, const gb_tile_place *place, void *room);
void gb_tile_write(const gb_tiles *t, const gb_tile_place *place, const void *from);
/* n elements of a dtype and stride as a loop sees them, and back. */
void gb_tile_load(gb_tile_as as, void *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n);
void gb_tile_store(gb_tile_as as, void *to, gb_dtype dtype, int64_t stride, const void *from, int64_t n);
/* n elements of a size from one stride to another, as they are. */
void gb_move_run(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t bytes, int64_t n);

/* Set number i of a job in every form that a loop may want: an attribute, or a value. */
static inline void gb_tile_attr(gb_tile_job *job, int i, const gb_attr *value) {
  job->number.f32[i] = gb_number_float(value);
  job->number.f64[i] = value->number;
  job->number.i64[i] = gb_number_integer(value);
}

static inline void gb_tile_number(gb_tile_job *job, int i, double value) {
  gb_attr number = gb_attr_num(value);
  gb_tile_attr(job, i, &number);
}

/* The Philox words of elements first .. first + n - 1: word i % 4 at index i / 4. */
void gb_random_words(uint32_t *to, uint64_t seed, uint64_t offset, int64_t first, int64_t n);

/* float32 for 16- and 32-bit floats, float64, int64 for integers and bool. */
static inline gb_tile_as gb_tile_as_of(gb_dtype dtype) {
  return dtype == GB_FLOAT64 ? GB_AS_F64 : gb_dtype_is_float(dtype) ? GB_AS_F32 : GB_AS_I64;
}

#endif
