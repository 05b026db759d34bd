/* cpu/sort.c - sort and topk, line by line along dim.
 *
 * A line's elements become integer keys in the order of the values (NaN the largest, -0 equal to 0), paired with their
 * positions; pairs are all different, so sorting them is stable and topk is unique. Descending order is ascending order
 * of the inverted keys. */
#include "cpu/walk.h"

typedef struct entry { uint64_t key; int64_t position; } entry;

static inline bool before(const entry *a, const entry *b) { return a->key < b->key ||
                                                            (a->key == b->key && a->position < b->position); }

/* {==== Keys ==== */

/* The bits of a float64 in the order of its value. */
static uint64_t float_key(double x) {
  if (x != x) return UINT64_MAX;
  x += 0.0; /* -0 becomes 0 */
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* The entries of one line; flip inverts the order. */
static void load_keys(entry *entries, const char *from, gb_dtype dtype, int64_t stride, int64_t n, bool flip) {
  union { double f64[GB_TILE]; int64_t i64[GB_TILE]; } tile;
  bool is_float = gb_dtype_is_float(dtype);
  int64_t bytes = (int64_t)gb_dtype_bytes(dtype);
  for (int64_t start = 0; start < n && !gb_work(GB_TILE); start += GB_TILE) {
    int64_t count = n - start < GB_TILE ? n - start : GB_TILE;
    if (is_float) gb_load_f64(tile.f64, from + start * stride * bytes, dtype, stride, count);
    else gb_load_i64(tile.i64, from + start * stride * bytes, dtype, stride, count);
    for (int64_t i = 0; i < count; i++) {
      uint64_t key = is_float ? float_key(tile.f64[i]) : (uint64_t)tile.i64[i] ^ (uint64_t)1 << 63;
      entries[start + i] = (entry){ flip ? ~key : key, start + i };
    }
  }
}

/* ====} */

/* {==== Orders ==== */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

enum { INSERTION = 16 }; /* shorter runs are sorted by insertion */

static void insertion_sort(entry *e, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    entry moving = e[i];
    int64_t at = i;
    for (; at > 0 && before(&moving, &e[at - 1]); at--) e[at] = e[at - 1];
    e[at] = moving;
  }
}

/* A step of sorting, a comparison whose outcome nobody foresees, takes as long as so many elements of a pass. */
enum { SORT_STEP = 8 };

/* Two sorted runs from[0 .. a), from[a .. n) into one. */
static void merge(entry *to, const entry *from, int64_t a, int64_t n) {
  int64_t i = 0, j = a, piece = GB_PIECE / (8 * SORT_STEP);
  for (int64_t k = 0; k < n; k++) {
    if (k % piece == piece - 1 && gb_work(piece * SORT_STEP)) return;
    to[k] = j >= n || (i < a && before(&from[i], &from[j])) ? from[i++] : from[j++];
  }
}

/* Sort e, with room for as many; returns which of the two holds the result, or NULL: a stop is asked for. Short runs
 * count as a whole. */
static entry *merge_sort(entry *e, entry *room, int64_t n) {
  for (int64_t i = 0; i < n; i += INSERTION) {
    if (gb_work(INSERTION * SORT_STEP)) return NULL;
    insertion_sort(e + i, n - i < INSERTION ? n - i : INSERTION);
  }
  for (int64_t width = INSERTION; width < n; width *= 2) {
    for (int64_t i = 0; i < n; i += 2 * width) {
      int64_t left = n - i;
      if (gb_work(least(left, least(2 * width, GB_PIECE / (8 * SORT_STEP))) * SORT_STEP)) return NULL;
      merge(room + i, e + i, left < width ? left : width, left < 2 * width ? left : 2 * width);
    }
    entry *sorted = room;
    room = e, e = sorted;
  }
  return gb_work(0) ? NULL : e; /* the last merge may have ended early */
}

/* Let the entry at `at` sink to its place in a heap whose root comes last in order. */
static void sift_down(entry *heap, int64_t n, int64_t at) {
  entry moving = heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
    if (!before(&moving, &heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moving;
}

/* Bring the first k of n entries in order to the front, sorted; returns where they are, or NULL: a stop is asked
 * for. */
static entry *select_first(entry *e, entry *room, int64_t n, int64_t k) {
  if (k == 0) return e;
  for (int64_t i = k / 2 - 1; i >= 0; i--) {
    if (gb_work(4 * SORT_STEP)) return NULL;
    sift_down(e, k, i);
  }
  for (int64_t i = k; i < n; i++) {
    if (gb_long_loop(i)) return NULL;
    if (!before(&e[i], &e[0])) continue;
    e[0] = e[i];
    if (gb_work(32 * SORT_STEP)) return NULL; /* as deep as a heap may be */
    sift_down(e, k, 0);
  }
  return merge_sort(e, room, k);
}

/* ====} */

/* Lines along dim: all positions of the other dims. */
typedef struct sort_job {
  gb_op_call *call;
  gb_runs lines;
  int dim;
  bool flip;
  int64_t n, k;                       /* elements of a line, and of its result */
  entry *room;                        /* 2 * n entries per thread */
} sort_job;

static void sort_chunk(void *arg, int64_t chunk) {
  const sort_job *job = arg;
  const gb_out_sort *out = GB_OUT(job->call, sort);
  const gb_tensor *x = GB_IN(job->call, sort)->x, *values = out->values, *indices = out->indices;
  size_t bytes = gb_dtype_bytes((gb_dtype)x->dtype);
  entry *entries = job->room + 2 * job->n * gb_threads_current(job->call->context->threads);
  int64_t stride = gb_stride_at(x, job->dim), v_stride = gb_stride_at(values, job->dim),
      i_stride = gb_stride_at(indices, job->dim);
  int64_t end, at[GB_MAX_NDIM];
  for (int64_t line = gb_chunk_runs(&job->lines, chunk, &end); line < end; line++) {
    gb_run_at(&job->lines, line, at);
    const char *from = gb_data(x) + gb_offset_at(x->ndim, at, x->stride) * (int64_t)bytes;
    char *to = gb_data(values) + gb_offset_at(x->ndim, at, values->stride) * (int64_t)bytes;
    int64_t *positions = (int64_t *)gb_data(indices) + gb_offset_at(x->ndim, at, indices->stride);
    load_keys(entries, from, (gb_dtype)x->dtype, stride, job->n, job->flip);
    const entry *sorted = job->k < job->n ? select_first(entries, entries + job->n, job->n, job->k)
                                          : merge_sort(entries, entries + job->n, job->n);
    if (!sorted) return;
    for (int64_t i = 0; i < job->k && !gb_long_loop(i); i++) {
      positions[i * i_stride] = sorted[i].position;
      gb_copy_element(to + i * v_stride * (int64_t)bytes, from + sorted[i].position * stride * (int64_t)bytes, bytes);
    }
  }
}

_Static_assert(GB_OUT_AT(sort, values) == GB_OUT_AT(topk, values), "sort stands for both");
_Static_assert(GB_OUT_AT(sort, indices) == GB_OUT_AT(topk, indices), "sort stands for both");

/* The first k of each line in order, ascending or (flip) descending. */
static gb_status order_lines(gb_op_call *call, int64_t dim, int64_t k, bool flip) {
  const gb_tensor *x = GB_IN(call, sort)->x;
  if (GB_OUT(call, sort)->values->numel == 0) return GB_OK;
  int64_t others[GB_MAX_NDIM] = { 1 };
  sort_job job = { .call = call, .dim = gb_wrap_dim(dim, x->ndim), .flip = flip };
  for (int i = 0; i < x->ndim; i++) others[i] = i == job.dim ? 1 : x->shape[i];
  job.n = gb_size_at(x, job.dim);
  job.k = k < 0 ? job.n : k;
  job.lines = gb_runs_of(x->ndim, others, 1);
  job.lines.per_chunk = 1 + 4096 / job.n;
  job.lines.chunks = (job.lines.count + job.lines.per_chunk - 1) / job.lines.per_chunk;
  gb_block *scratch = gb_cpu_scratch(call, 2 * sizeof *job.room * (size_t)job.n *
                                     (size_t)gb_threads_count(call->context->threads));
  if (!scratch) return GB_EMEMORY;
  job.room = gb_block_data(scratch);
  gb_parallel(call, job.lines.chunks, sort_chunk, &job);
  gb_cpu_scratch_free(call, scratch);
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
