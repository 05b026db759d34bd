/* cpu/walk.c - copies, running sums and index checks that the view and index kernels share; see walk.h. */
#include "cpu/walk.h"

#include "cpu/tile.h"

/* {==== Copies ==== */

/* At most a tile of elements, through the type that holds both dtypes, so that each value is rounded once. */
static void convert_tile(char *to, gb_dtype to_dtype, int64_t to_stride, const char *from, gb_dtype from_dtype,
                         int64_t from_stride, int64_t n) {
  if (to_dtype == GB_FLOAT64 || from_dtype == GB_FLOAT64) {
    double tile[GB_TILE];
    gb_load_f64(tile, from, from_dtype, from_stride, n);
    gb_store_f64(to, to_dtype, to_stride, tile, n);
  } else if (!gb_dtype_is_float(to_dtype) && !gb_dtype_is_float(from_dtype)) {
    int64_t tile[GB_TILE];
    gb_load_i64(tile, from, from_dtype, from_stride, n);
    gb_store_i64(to, to_dtype, to_stride, tile, n);
  } else {
    float tile[GB_TILE];
    gb_load_f32(tile, from, from_dtype, from_stride, n);
    gb_store_f32(to, to_dtype, to_stride, tile, n);
  }
}

void gb_copy_run(char *to, gb_dtype to_dtype, int64_t to_stride, const char *from, gb_dtype from_dtype,
                 int64_t from_stride, int64_t n) {
  int64_t to_bytes = (int64_t)gb_dtype_bytes(to_dtype), from_bytes = (int64_t)gb_dtype_bytes(from_dtype);
  for GB_PIECES(first, m, n) {
    if (to_dtype == from_dtype) {
      gb_move_run(to + first * to_stride * to_bytes, to_stride, from + first * from_stride * from_bytes, from_stride,
                  (size_t)to_bytes, m);
      continue;
    }
    for (int64_t i = first; i < first + m; i += GB_TILE)
      convert_tile(to + i * to_stride * to_bytes, to_dtype, to_stride, from + i * from_stride * from_bytes, from_dtype,
                   from_stride,
                   n - i < GB_TILE ? n - i : GB_TILE);
  }
}

void gb_copy_strided(const gb_op_call *call, int ndim, const int64_t *shape, char *to, gb_dtype to_dtype,
                     const int64_t *to_strides, const char *from,
                     gb_dtype from_dtype, const int64_t *from_strides) {
  gb_tile_job job = { .loop = NULL };
  gb_tiles_plan_copy(&job.tiles, ndim, shape, to, to_dtype, to_strides, from, from_dtype, from_strides);
  gb_tiles_run(call, &job);
}

/* The same elements in the same places. */
static bool same_place(const gb_tensor *a, const gb_tensor *b) {
  if (a == b) return true;
  return gb_data(a) == gb_data(b) && a->dtype == b->dtype && a->ndim == b->ndim &&
      !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape)
         && !memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride);
}

void gb_copy_values(const gb_op_call *call, const gb_tensor *to, const gb_tensor *x) {
  if (same_place(to, x)) return;
  int64_t strides[GB_MAX_NDIM];
  gb_broadcast_strides(x, to->ndim, to->shape, strides);
  gb_copy_strided(call, to->ndim, to->shape, gb_data(to), (gb_dtype)to->dtype, to->stride, gb_data(x),
                  (gb_dtype)x->dtype, strides);
}

typedef struct zero_job { char *data; size_t bytes; } zero_job;
enum { ZERO_CHUNK = 1 << 16 };

static void zero_chunk(void *arg, int64_t chunk) {
  const zero_job *job = arg;
  size_t start = (size_t)chunk * ZERO_CHUNK, left = job->bytes - start;
  memset(job->data + start, 0, left < ZERO_CHUNK ? left : ZERO_CHUNK);
}

void gb_zero_bytes(const gb_op_call *call, char *data, size_t bytes) {
  zero_job job = { data, bytes };
  if (bytes > 0) gb_parallel(call, (int64_t)((bytes + ZERO_CHUNK - 1) / ZERO_CHUNK), zero_chunk, &job);
}

/* ====} */

/* {==== Reading masks and indices ==== */

void gb_nonzero_run(uint8_t *flags, const char *data, gb_dtype dtype, int64_t stride, int64_t n) {
  bool is_float = gb_dtype_is_float(dtype); /* of a float the sign does not count */
  uint16_t mask16 = is_float ? INT16_MAX : UINT16_MAX;
  uint32_t mask32 = is_float ? UINT32_MAX >> 1 : UINT32_MAX;
  uint64_t mask64 = is_float ? UINT64_MAX >> 1 : UINT64_MAX;
  switch (gb_dtype_bytes(dtype)) {
    case 1: for (int64_t i = 0; i < n; i++) flags[i] = data[i * stride] != 0; break;
    case 2: for (int64_t i = 0; i < n; i++) flags[i] = (((const uint16_t *)data)[i * stride] & mask16) != 0; break;
    case 4: for (int64_t i = 0; i < n; i++) flags[i] = (((const uint32_t *)data)[i * stride] & mask32) != 0; break;
    default: for (int64_t i = 0; i < n; i++) flags[i] = (((const uint64_t *)data)[i * stride] & mask64) != 0; break;
  }
}

typedef struct index_job {
  gb_runs runs;
  const gb_tensor *index;
  int64_t strides[GB_MAX_NDIM], limit;
  gb_bad_index bad;
} index_job;

/* Are n values that lie side by side all below the limit, and none below 0? */
static bool all_within(const int64_t *values, int64_t n, int64_t limit) {
  uint64_t beyond = 0;
  for (int64_t i = 0; i < n; i++) beyond |= (uint64_t)values[i] >= (uint64_t)limit;
  return !beyond;
}

static void index_chunk(void *arg, int64_t chunk) {
  index_job *job = arg;
  const gb_runs *r = &job->runs;
  const char *data = gb_data(job->index);
  int64_t end, at[GB_MAX_NDIM], stride = job->strides[r->ndim - 1];
  for (int64_t run = gb_chunk_runs(r, chunk, &end); run < end; run++) {
    int64_t n = gb_run_at(r, run, at), offset = gb_offset_at(r->ndim, at, job->strides);
    if (job->index->dtype == GB_INT64 && stride == 1 &&
        all_within((const int64_t *)(const void *)data + offset, n, job->limit)) continue;
    for (int64_t i = 0; i < n; i++) {
      int64_t value = gb_index_value(data, (gb_dtype)job->index->dtype, offset + i * stride);
      if (value < 0 || value >= job->limit) gb_bad_index_report(&job->bad, value, job->limit);
    }
  }
}

gb_status gb_check_index(gb_op_call *call, const gb_tensor *index, int64_t limit, const char *what) {
  index_job job = { .index = index, .limit = limit };
  int64_t shape[GB_MAX_NDIM] = { 0 }; /* what a view shows many times is looked at once */
  for (int d = 0; d < index->ndim; d++) shape[d] = index->stride[d] == 0 && index->shape[d] > 0 ? 1 : index->shape[d];
  job.runs = gb_runs_of(index->ndim, shape, GB_CHUNK_ELEMENTS);
  gb_broadcast_strides(index, index->ndim, index->shape, job.strides);
  if (job.runs.count > 0) gb_parallel(call, job.runs.chunks, index_chunk, &job);
  /* the rest was not checked */
  return gb_was_stopped(call) ? GB_EINTERRUPT : gb_bad_index_status(call, &job.bad, what);
}

/* ====} */

/* {==== Sums ==== */

static gb_dtype sum_dtype(gb_dtype dtype) {
  if (dtype == GB_FLOAT64 || !gb_dtype_is_float(dtype)) return dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_INT64;
  return GB_FLOAT32;
}

gb_status gb_sums_begin(gb_op_call *call, const gb_tensor *out, const gb_tensor *x, gb_sums *sums) {
  *sums = (gb_sums){ .data = gb_data(out), .dtype = sum_dtype((gb_dtype)out->dtype) };
  memcpy(sums->strides, out->stride, sizeof sums->strides);
  if (sums->dtype == (gb_dtype)out->dtype) {
    gb_copy_values(call, out, x);
    return GB_OK;
  }
  sums->scratch = gb_cpu_scratch(call, (size_t)out->numel * gb_dtype_bytes(sums->dtype));
  if (!sums->scratch) return GB_EMEMORY;
  sums->data = gb_block_data(sums->scratch);
  gb_contiguous_strides(out->ndim, out->shape, sums->strides);
  int64_t strides[GB_MAX_NDIM];
  gb_broadcast_strides(x, out->ndim, out->shape, strides);
  gb_copy_strided(call, out->ndim, out->shape, sums->data, sums->dtype, sums->strides, gb_data(x), (gb_dtype)x->dtype,
                  strides);
  return GB_OK;
}

void gb_sums_end(gb_op_call *call, const gb_tensor *out, gb_sums *sums) {
  if (!sums->scratch) return;
  gb_copy_strided(call, out->ndim, out->shape, gb_data(out), (gb_dtype)out->dtype, out->stride, sums->data, sums->dtype,
                  sums->strides);
  gb_cpu_scratch_free(call, sums->scratch);
  sums->scratch = NULL;
}

/* ====} */
