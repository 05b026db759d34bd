/* cpu/sort.c - sort and topk, line by line along dim.
 *
 * A line's elements become integer keys in the order of the values (NaN the largest, -0 equal to 0), paired with their
 * positions; pairs are all different, so that their order is stable and topk is unique. Descending order is ascending
 * order of the inverted keys. Keys of up to 32 bits share a word with their position, as do those of 64-bit integers
 * whose distances from the first in order need no more than 40. */
#include "cpu/scratch.h"
#include "cpu/walk.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Runs that are sorted by insertion, lines that are sorted by merging and not by bins, entries between looks for a
 * stop, and what a step of sorting costs, in elements of a pass. More than one in SELECTED_SHARE elements are not
 * selected: all are sorted. LOOK_AHEAD entries at once are passed over by a selection. A line of up to LONGEST_SIFTED
 * entries, which stay in the caches, is sifted by LANES lanes before. */
enum {
  INSERTION = 16, LONGEST_MERGED = 192, RADIX_BLOCK = 4096, SORT_STEP = 8, SELECTED_SHARE = 8, LOOK_AHEAD = 16,
  LANES = 32, LONGEST_SIFTED = 16384
};

/* A line along dim, and where its result goes. */
typedef struct sort_line {
  const char *from;
  char *to;
  int64_t *positions;
  gb_dtype dtype;
  int64_t bytes, stride, to_stride, position_stride;
  int64_t n, k;                       /* elements of a line, and of its result */
  bool flip;                          /* descending */
  int64_t base;                       /* packed entries: the first element in order */
} sort_line;

/* The bits of a float in the order of its value; and back, where they are neither NaN's nor those of both zeros. */
#define FLOAT_KEY(name, real, word, high)                                                                              \
  static inline word name(real x) {                                                                                    \
    word bits;                                                                                                         \
    x += 0; /* -0 becomes 0 */                                                                                         \
    memcpy(&bits, &x, sizeof bits);                                                                                    \
    bits ^= bits & (high) ? (word)-1 : (high);                                                                         \
    return x == x ? bits : (word)-1;                                                                                   \
  }                                                                                                                    \
  static inline bool name##_bits(word key, word *bits) {                                                               \
    *bits = key & (high) ? key ^ (high) : ~key;                                                                        \
    return key != (high) && key != (word)-1;                                                                           \
  }
FLOAT_KEY(float_key, float, uint32_t, UINT32_C(1) << 31)
FLOAT_KEY(double_key, double, uint64_t, UINT64_C(1) << 63)

/* {==== Keys of 32 bits, above positions of 32 bits ==== */

typedef uint64_t narrow_entry;

/* The entries of a line. false: a stop is asked for. */
static bool narrow_load(narrow_entry *entries, const sort_line *line) {
  union { float f32[GB_TILE]; int64_t i64[GB_TILE]; } tile;
  const uint32_t flip = line->flip ? UINT32_MAX : 0;
  for (int64_t start = 0; start < line->n; start += GB_TILE, entries += GB_TILE) {
    if (gb_work(GB_TILE)) return false;
    int64_t count = least(line->n - start, GB_TILE);
    const char *from = line->from + start * line->stride * line->bytes;
    if (gb_dtype_is_float(line->dtype)) {
      const float *x = tile.f32;
      if (line->dtype == GB_FLOAT32 && line->stride == 1) x = (const float *)(const void *)from;
      else gb_load_f32(tile.f32, from, line->dtype, line->stride, count);
      for (int64_t i = 0; i < count; i++)
        entries[i] = (uint64_t)(float_key(x[i]) ^ flip) << 32 | (uint64_t)(start + i);
    } else {
      gb_load_i64(tile.i64, from, line->dtype, line->stride, count);
      for (int64_t i = 0; i < count; i++)
        entries[i] = (uint64_t)((uint32_t)tile.i64[i] ^ UINT32_C(1) << 31 ^ flip) << 32 | (uint64_t)(start + i);
    }
  }
  return true;
}

/* The element itself, where its key tells it: of 32 bits. */
static inline bool narrow_value(narrow_entry e, const sort_line *line, void *to) {
  uint32_t bits, key = (uint32_t)(e >> 32) ^ (line->flip ? UINT32_MAX : 0);
  bool known = float_key_bits(key, &bits);
  if (line->dtype == GB_INT32) bits = key ^ UINT32_C(1) << 31;
  else if (!known || line->dtype != GB_FLOAT32) return false;
  memcpy(to, &bits, sizeof bits);
  return true;
}

#define OF(name) narrow_##name
#define BEFORE(a, b) ((a) < (b))
#define DIGITS 4
#define DIGIT(e, i) ((e) >> (32 + 8 * (i)) & 255)
#define POSITION(e) ((int64_t)((e) & UINT32_MAX))
#include "cpu/sort_of.h"

/* ====} */

/* {==== Keys of 64 bits ==== */

typedef struct wide_entry { uint64_t key; int64_t position; } wide_entry;

/* The entries of a line. false: a stop is asked for. */
static bool wide_load(wide_entry *entries, const sort_line *line) {
  union { double f64[GB_TILE]; int64_t i64[GB_TILE]; } tile;
  const uint64_t flip = line->flip ? UINT64_MAX : 0;
  for (int64_t start = 0; start < line->n; start += GB_TILE, entries += GB_TILE) {
    if (gb_work(GB_TILE)) return false;
    int64_t count = least(line->n - start, GB_TILE);
    const char *from = line->from + start * line->stride * line->bytes;
    if (gb_dtype_is_float(line->dtype)) {
      gb_load_f64(tile.f64, from, line->dtype, line->stride, count);
      for (int64_t i = 0; i < count; i++) entries[i] = (wide_entry){ double_key(tile.f64[i]) ^ flip, start + i };
    } else {
      gb_load_i64(tile.i64, from, line->dtype, line->stride, count);
      for (int64_t i = 0; i < count; i++)
        entries[i] = (wide_entry){ (uint64_t)tile.i64[i] ^ UINT64_C(1) << 63 ^ flip, start + i };
    }
  }
  return true;
}

/* The element itself, where its key tells it: of 64 bits. */
static inline bool wide_value(wide_entry e, const sort_line *line, void *to) {
  uint64_t bits, key = e.key ^ (line->flip ? UINT64_MAX : 0);
  bool known = double_key_bits(key, &bits);
  if (line->dtype == GB_INT64) bits = key ^ UINT64_C(1) << 63;
  else if (!known || line->dtype != GB_FLOAT64) return false;
  memcpy(to, &bits, sizeof bits);
  return true;
}

#define OF(name) wide_##name
#define BEFORE(a, b) ((a).key < (b).key || ((a).key == (b).key && (a).position < (b).position))
#define DIGITS 8
#define DIGIT(e, i) ((e).key >> 8 * (i) & 255)
#define POSITION(e) ((e).position)
#include "cpu/sort_of.h"

/* ====} */

/* {==== Distances of 64-bit integers from the first in order, of 40 bits, above positions of 24 bits ==== */

typedef uint64_t packed_entry;
enum { PACKED_POSITION = 24 };

/* Can a line go so? Finds its base. What a stop leaves out, the load leaves out as well. */
static bool can_be_packed(sort_line *line) {
  int64_t tile[GB_TILE], low = INT64_MAX, high = INT64_MIN;
  if (line->dtype != GB_INT64 || line->n <= LONGEST_MERGED || line->n > (int64_t)1 << PACKED_POSITION) return false;
  for (int64_t start = 0; start < line->n; start += GB_TILE) {
    if (gb_work(GB_TILE)) return true;
    int64_t count = least(line->n - start, GB_TILE);
    gb_load_i64(tile, line->from + start * line->stride * line->bytes, line->dtype, line->stride, count);
    for (int64_t i = 0; i < count; i++) {
      low = tile[i] < low ? tile[i] : low;
      high = tile[i] > high ? tile[i] : high;
    }
  }
  line->base = line->flip ? high : low;
  return (uint64_t)high - (uint64_t)low < UINT64_C(1) << (64 - PACKED_POSITION);
}

/* The entries of a line. false: a stop is asked for. */
static bool packed_load(packed_entry *entries, const sort_line *line) {
  int64_t tile[GB_TILE];
  const uint64_t base = (uint64_t)line->base;
  for (int64_t start = 0; start < line->n; start += GB_TILE, entries += GB_TILE) {
    if (gb_work(GB_TILE)) return false;
    int64_t count = least(line->n - start, GB_TILE);
    gb_load_i64(tile, line->from + start * line->stride * line->bytes, line->dtype, line->stride, count);
    for (int64_t i = 0; i < count; i++) {
      uint64_t key = line->flip ? base - (uint64_t)tile[i] : (uint64_t)tile[i] - base;
      entries[i] = key << PACKED_POSITION | (uint64_t)(start + i);
    }
  }
  return true;
}

/* The element itself: its key always tells it. */
static inline bool packed_value(packed_entry e, const sort_line *line, void *to) {
  uint64_t base = (uint64_t)line->base, key = e >> PACKED_POSITION, bits = line->flip ? base - key : base + key;
  memcpy(to, &bits, sizeof bits);
  return true;
}

#define OF(name) packed_##name
#define BEFORE(a, b) ((a) < (b))
#define DIGITS 5
#define DIGIT(e, i) ((e) >> (PACKED_POSITION + 8 * (i)) & 255)
#define POSITION(e) ((int64_t)((e) & (((uint64_t)1 << PACKED_POSITION) - 1)))
#include "cpu/sort_of.h"

/* ====} */

/* Lines along dim: all positions of the other dims. */
typedef struct sort_job {
  gb_op_call *call;
  gb_runs lines;
  sort_line line;                     /* what all of them share */
  bool narrow;
  gb_scratch scratch;                 /* rooms for the entries of twice a line */
} sort_job;

static void sort_chunk(void *arg, int64_t chunk) {
  const sort_job *job = arg;
  const gb_out_sort *out = GB_OUT(job->call, sort);
  const gb_tensor *x = GB_IN(job->call, sort)->x, *values = out->values, *indices = out->indices;
  void *entries = gb_scratch_room_of(&job->scratch, chunk);
  int64_t end, at[GB_MAX_NDIM];
  for (int64_t i = gb_chunk_runs(&job->lines, chunk, &end); i < end; i++) {
    sort_line line = job->line;
    gb_run_at(&job->lines, i, at);
    line.from = gb_data(x) + gb_offset_at(x->ndim, at, x->stride) * line.bytes;
    line.to = gb_data(values) + gb_offset_at(x->ndim, at, values->stride) * line.bytes;
    line.positions = (int64_t *)gb_data(indices) + gb_offset_at(x->ndim, at, indices->stride);
    if (job->narrow) narrow_order_line(&line, entries);
    else if (can_be_packed(&line)) packed_order_line(&line, entries);
    else wide_order_line(&line, entries);
  }
}

_Static_assert(GB_OUT_AT(sort, values) == GB_OUT_AT(topk, values), "sort stands for both");
_Static_assert(GB_OUT_AT(sort, indices) == GB_OUT_AT(topk, indices), "sort stands for both");

/* The first k of each line in order, ascending or (flip) descending. */
static gb_status order_lines(gb_op_call *call, int64_t named, int64_t k, bool flip) {
  const gb_tensor *x = GB_IN(call, sort)->x;
  const gb_out_sort *out = GB_OUT(call, sort);
  if (out->values->numel == 0) return GB_OK;
  int64_t others[GB_MAX_NDIM] = { 1 };
  int dim = gb_wrap_dim(named, x->ndim);
  for (int i = 0; i < x->ndim; i++) others[i] = i == dim ? 1 : x->shape[i];
  const int64_t n = gb_size_at(x, dim), bytes = (int64_t)gb_dtype_bytes((gb_dtype)x->dtype);
  sort_job job = { .call = call, .narrow = bytes <= 4 && n <= (int64_t)UINT32_MAX };
  job.line = (sort_line){ .dtype = (gb_dtype)x->dtype, .bytes = bytes, .stride = gb_stride_at(x, dim),
                          .to_stride = gb_stride_at(out->values, dim), .n = n, .k = k < 0 ? n : k, .flip = flip,
                          .position_stride = gb_stride_at(out->indices, dim) };
  job.lines = gb_runs_of(x->ndim, others, 1);
  job.lines.per_chunk = 1 + 4096 / n;
  job.lines.chunks = (job.lines.count + job.lines.per_chunk - 1) / job.lines.per_chunk;
  size_t room_bytes = 2 * (size_t)n * (job.narrow ? sizeof(narrow_entry) : sizeof(wide_entry));
  GB_TRY(gb_scratch_open_chunks(call, 0, room_bytes, job.lines.chunks, &job.scratch));
  gb_parallel(call, job.lines.chunks, sort_chunk, &job);
  gb_scratch_close(call, &job.scratch);
  return GB_OK;
}

static gb_status sort(gb_op_call *call) {
  const gb_attrs_sort *attrs = GB_ATTRS(call, sort);
  return order_lines(call, attrs->dim.integer, -1, attrs->descending.integer != 0);
}

static gb_status topk(gb_op_call *call) {
  const gb_attrs_topk *attrs = GB_ATTRS(call, topk);
  return order_lines(call, attrs->dim.integer, attrs->k.integer, attrs->largest.integer != 0);
}

void GB_CPU_FILL(sort)(gb_backend *backend);
void GB_CPU_FILL(sort)(gb_backend *backend) {
  backend->run[GB_OP_sort] = sort;
  backend->run[GB_OP_topk] = topk;
}
