/* cuda/reduce.cu - reductions over any set of dims, largest elements with their index, and running sums.
 *
 * A fold is a fixed tree: threads take elements in turn, a butterfly joins the threads, long reductions are cut into
 * pieces that are joined by a second fold. Where the nearest neighbours in memory are reduced together, the threads of
 * a row run along the reduction; otherwise they run across the results (as in the gradient of a bias), eight threads to
 * a result. Traffic: every element once, except var, std and logsumexp, which read twice. */
#include "cuda/families.h"
#include "cuda/fold.cuh"
#include "cuda/scan.cuh"

/* {==== one fold ==== */

/* A fold, cut into pieces. */
typedef struct fold_job { gb_fold f; int64_t piece, pieces; } fold_job;

template <typename T> static GB_DEVICE T identity_of(gb_fold_kind fold) {
  switch (fold) {
    case GB_FOLD_PRODUCT: return (T)1;
    case GB_FOLD_LARGEST: return (T)-INFINITY;
    case GB_FOLD_SMALLEST: return (T)INFINITY;
    default: return (T)0;
  }
}
template <> GB_DEVICE int64_t identity_of<int64_t>(gb_fold_kind fold) {
  return fold == GB_FOLD_PRODUCT ? 1 : fold == GB_FOLD_LARGEST ? INT64_MIN : fold == GB_FOLD_SMALLEST ? INT64_MAX : 0;
}

/* Integers wrap: sums and products go through unsigned. */
template <typename T> static GB_DEVICE T wrapping_sum(T a, T b) { return a + b; }
template <typename T> static GB_DEVICE T wrapping_product(T a, T b) { return a * b; }
template <> GB_DEVICE int64_t wrapping_sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
template <> GB_DEVICE int64_t wrapping_product(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* A fold of two; the larger and the smaller are NaN if either is. */
template <typename T> struct folding {
  gb_fold_kind kind;
  GB_DEVICE T operator()(T a, T b) const {
    switch (kind) {
      case GB_FOLD_PRODUCT: return wrapping_product<T>(a, b);
      case GB_FOLD_LARGEST: return b > a || b != b ? b : a;
      case GB_FOLD_SMALLEST: return b < a || b != b ? b : a;
      default: return wrapping_sum<T>(a, b);
    }
  }
};

static GB_DEVICE float magnitude(float x) { return fabsf(x); }
static GB_DEVICE double magnitude(double x) { return fabs(x); }
static GB_DEVICE float power_of(float x, double p) { return powf(x, (float)p); }
static GB_DEVICE double power_of(double x, double p) { return pow(x, p); }

/* Element i of a row, mapped. Integers know one map: is it non-zero? */
template <typename T> struct mapping {
  static GB_DEVICE T load(const gb_fold &f, int64_t start, int64_t other, T center, int64_t i) {
    T x = gb_row_load<T>(f.x, start, i);
    switch (f.map) {
      case GB_MAP_ABSOLUTE: return magnitude(x);
      case GB_MAP_SQUARE: return x * x;
      case GB_MAP_POWER: return power_of(magnitude(x), f.power);
      case GB_MAP_NONZERO: return x != 0 ? (T)1 : (T)0;
      case GB_MAP_CENTERED_SQUARE: return (x - center) * (x - center);
      case GB_MAP_CENTERED_EXP: return gb_row_exp(x - center);
      case GB_MAP_TIMES_CENTERED: return gb_row_load<T>(f.other, other, i) * (x - center);
      default: return x;
    }
  }
};
template <> struct mapping<int64_t> {
  static GB_DEVICE int64_t load(const gb_fold &f, int64_t start, int64_t, int64_t, int64_t i) {
    int64_t x = gb_row_load<int64_t>(f.x, start, i);
    return f.map == GB_MAP_NONZERO ? x != 0 : x;
  }
};

/* Write one result, finished. As on the CPU the last step is made in float64. */
template <typename T> static GB_DEVICE void deliver(const gb_fold &f, int64_t at, T value, T center) {
  double x = (double)value;
  switch (f.finish) {
    case GB_FINISH_SCALED: value = (T)(x / f.a); break;
    case GB_FINISH_ROOT: value = (T)sqrt(x); break;
    case GB_FINISH_SCALED_ROOT: value = (T)sqrt(x / f.a); break;
    case GB_FINISH_POWER_ROOT: value = (T)pow(x, 1 / f.a); break;
    case GB_FINISH_LOG_PLUS_CENTER: value = (T)(log(x) + (double)center); break;
    case GB_FINISH_FINITE: value = isinf(x) ? (T)0 : value; break;
    default: break;
  }
  gb_store<T>(f.out, f.out_dtype, at, value);
}

template <typename T> static GB_DEVICE T center_of(const gb_fold &f,
                                                   int64_t row) { return f.center ? ((const T *)f.center)[row] : (T)0; }

/* The threads of a row run along it. Unit u is piece u % pieces of row u / pieces. */
template <typename T> __global__ void fold_along(fold_job job) {
  const gb_fold &f = job.f;
  folding<T> fold = { f.fold };
  for (int64_t unit = gb_first_row(); unit < f.x.count * job.pieces; unit += gb_rows_at_once()) {
    int64_t row = unit / job.pieces, from = unit % job.pieces * job.piece,
        to = from + job.piece < f.x.length ? from + job.piece : f.x.length;
    int64_t start = gb_at(f.x.outer, row), other = f.map == GB_MAP_TIMES_CENTERED ? gb_at(f.other.outer, row) : 0;
    T center = center_of<T>(f, row), mine = identity_of<T>(f.fold);
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x)
      mine = fold(mine, mapping<T>::load(f, start, other, center, i));
    mine = gb_row_fold(mine, identity_of<T>(f.fold), fold);
    if (threadIdx.x == 0) deliver<T>(f, unit, mine, center);
  }
}

enum { ACROSS_LANES = 8 };

/* The threads of a warp run across results, eight warps share the reduction. */
template <typename T> __global__ void fold_across(fold_job job) {
  GB_SHARED(T, parts, [ACROSS_LANES][GB_WARP + 1]);
  const gb_fold &f = job.f;
  folding<T> fold = { f.fold };
  int64_t strips = (f.x.count + GB_WARP - 1) / GB_WARP;
  for (int64_t unit = blockIdx.x; unit < strips * job.pieces; unit += gridDim.x) {
    int64_t row = unit / job.pieces * GB_WARP + threadIdx.x, piece = unit % job.pieces, from = piece * job.piece;
    int64_t to = from + job.piece < f.x.length ? from + job.piece : f.x.length;
    T mine = identity_of<T>(f.fold), center = 0;
    if (row < f.x.count) {
      int64_t start = gb_at(f.x.outer, row), other = f.map == GB_MAP_TIMES_CENTERED ? gb_at(f.other.outer, row) : 0;
      center = center_of<T>(f, row);
      for (int64_t i = from + threadIdx.y; i < to; i += ACROSS_LANES)
        mine = fold(mine, mapping<T>::load(f, start, other, center, i));
    }
    parts[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y == 0 && row < f.x.count) {
      for (int k = 1; k < ACROSS_LANES; k++) mine = fold(mine, parts[k][threadIdx.x]);
      deliver<T>(f, row * job.pieces + piece, mine, center);
    }
    __syncthreads();
  }
}

/* Neighbours in memory lie in different rows. */
static bool is_across(const gb_rows *x) {
  if (!x->outer.n || !x->inner.n) return false;
  int64_t nearest = x->outer.step[x->outer.n - 1];
  for (int i = 0; i < x->inner.n; i++)
    if (x->inner.step[i] <= nearest) return false;
  return true;
}

/* Elements of a piece, so that a few results still fill a device; by the shape alone. */
static void cut(fold_job *job, bool across) {
  int64_t n = job->f.x.length, results = across ? job->f.x.count / GB_WARP : job->f.x.count,
      least = across ? 256 : 8192, most = 1024;
  job->pieces = results >= 1024 ? 1 : (n + least - 1) / least;
  if (job->pieces > most) job->pieces = most;
  if (job->pieces < 1) job->pieces = 1;
  job->piece = (n + job->pieces - 1) / job->pieces;
  if (job->piece < 1) job->piece = 1;
  job->pieces = n ? (n + job->piece - 1) / job->piece : 1;
}

template <typename T> static void launch_fold(gb_cuda_call *call, const fold_job *job, bool across) {
  if (across) {
    int64_t units = (job->f.x.count + GB_WARP - 1) / GB_WARP * job->pieces;
    GB_LAUNCH(call->stream, fold_across<T>, gb_blocks(units, 1), dim3(GB_WARP, ACROSS_LANES), 0, *job);
    return;
  }
  int64_t threads = (job->piece + 7) / 8; /* eight elements each, at least */
  threads = threads > 256 ? 256 : (threads + GB_WARP - 1) / GB_WARP * GB_WARP;
  unsigned together = threads <= GB_WARP ? 4 : 1;
  if (threads < GB_WARP) threads = GB_WARP;
  GB_LAUNCH(call->stream, fold_along<T>, gb_blocks(job->f.x.count * job->pieces, together),
            dim3((unsigned)threads, together), 0, *job);
}

static void launch_by_dtype(gb_cuda_call *call, const fold_job *job, bool across) {
  if (job->f.compute == GB_FLOAT32) launch_fold<float>(call, job, across);
  else if (job->f.compute == GB_FLOAT64) launch_fold<double>(call, job, across);
  else launch_fold<int64_t>(call, job, across);
}

gb_status gb_fold_run(gb_cuda_call *call, const gb_fold *fold) {
  fold_job job = { *fold, 0, 0 };
  bool across = is_across(&fold->x);
  if (fold->x.count == 0) return GB_OK;
  cut(&job, across);
  if (job.pieces == 1) {
    launch_by_dtype(call, &job, across);
    return GB_OK;
  }
  void *partial = gb_cuda_scratch(call, (size_t)(fold->x.count * job.pieces) * gb_bytes_of(fold->compute));
  if (!partial) return GB_EMEMORY;
  job.f.out = partial;
  job.f.out_dtype = fold->compute;
  job.f.finish = GB_FINISH_AS_IS;
  launch_by_dtype(call, &job, across);
  fold_job joined = { *fold, job.pieces, 1 };
  joined.f.x = gb_rows_over(partial, fold->compute, fold->x.count, job.pieces);
  joined.f.map = GB_MAP_PLAIN;
  launch_by_dtype(call, &joined, false);
  return GB_OK;
}

/* ====} */

/* {==== the ops ==== */

/* What the rows here have in common. */
struct folded { const gb_cuda_tensor *x, *y; const gb_attr *dim; };
#define FOLDED(call, op) (folded{ GB_CUDA_IN(call, op)->x, GB_CUDA_OUT(call, op)->y, &GB_ATTRS(call, op)->dim })

static uint32_t mask_of_dims(const gb_attr *dims, int ndim) {
  if (ndim == 0) return 0;
  if (!dims->given || dims->count == 0) return (1u << ndim) - 1u;
  uint32_t mask = 0;
  for (int i = 0; i < dims->count; i++) mask |= 1u << (dims->ints[i] < 0 ? dims->ints[i] + ndim : dims->ints[i]);
  return mask;
}

static uint32_t mask_of_dim(const gb_attr *dim, int ndim) {
  if (ndim == 0) return 0;
  return 1u << (dim->integer < 0 ? dim->integer + ndim : dim->integer);
}

/* The fold of x over its dims, into y. */
static gb_fold fold_of(const folded &row, gb_fold_kind kind, gb_map_kind map) {
  gb_fold f = {};
  f.x = gb_rows_of(row.x, mask_of_dims(row.dim, row.x->ndim));
  f.fold = kind;
  f.map = map;
  f.out = row.y->data;
  f.out_dtype = row.y->dtype;
  f.compute = gb_compute_dtype(row.x->dtype, f.out_dtype);
  return f;
}

static gb_status simple(gb_cuda_call *call, const folded &row, gb_fold_kind kind) {
  gb_fold f = fold_of(row, kind, GB_MAP_PLAIN);
  return gb_fold_run(call, &f);
}

static gb_status sum(gb_cuda_call *call) { return simple(call, FOLDED(call, sum), GB_FOLD_SUM); }
static gb_status prod(gb_cuda_call *call) { return simple(call, FOLDED(call, prod), GB_FOLD_PRODUCT); }
static gb_status amax(gb_cuda_call *call) { return simple(call, FOLDED(call, amax), GB_FOLD_LARGEST); }
static gb_status amin(gb_cuda_call *call) { return simple(call, FOLDED(call, amin), GB_FOLD_SMALLEST); }

static gb_status mean(gb_cuda_call *call) {
  gb_fold f = fold_of(FOLDED(call, mean), GB_FOLD_SUM, GB_MAP_PLAIN);
  f.finish = GB_FINISH_SCALED;
  f.a = (double)f.x.length;
  return gb_fold_run(call, &f);
}

/* Are all, or any, elements non-zero? Floats are asked as floats, since 0.5 is. The largest of no flags would be true,
 * so `any` adds up. */
static gb_status truth(gb_cuda_call *call, const folded &row, gb_fold_kind kind) {
  gb_fold f = fold_of(row, kind, GB_MAP_NONZERO);
  f.compute = gb_compute_dtype(row.x->dtype, row.x->dtype);
  return gb_fold_run(call, &f);
}

static gb_status all(gb_cuda_call *call) { return truth(call, FOLDED(call, all), GB_FOLD_SMALLEST); }
static gb_status any(gb_cuda_call *call) { return truth(call, FOLDED(call, any), GB_FOLD_SUM); }

static gb_status norm(gb_cuda_call *call) {
  double p = GB_ATTRS(call, norm)->p.number;
  gb_fold_kind kind = isinf(p) ? (p > 0 ? GB_FOLD_LARGEST : GB_FOLD_SMALLEST) : GB_FOLD_SUM;
  gb_map_kind map = p == 2 ? GB_MAP_SQUARE : p == 0 ? GB_MAP_NONZERO : p == 1 ||
      isinf(p) ? GB_MAP_ABSOLUTE : GB_MAP_POWER;
  gb_fold f = fold_of(FOLDED(call, norm), kind, map);
  f.power = f.a = p;
  f.finish = p == 2 ? GB_FINISH_ROOT : map == GB_MAP_POWER ? GB_FINISH_POWER_ROOT : GB_FINISH_AS_IS;
  return gb_fold_run(call, &f);
}

/* Two folds: a center per result (a mean, or a largest element), then the sum of a function of the distance to it. */
static gb_status around_center(gb_cuda_call *call, const folded &row, gb_fold_kind first, gb_map_kind map,
                               gb_finish_kind finish, double correction) {
  gb_fold f = fold_of(row, GB_FOLD_SUM, map);
  gb_fold center = f;
  if (f.x.count == 0) return GB_OK;
  void *scratch = gb_cuda_scratch(call, (size_t)f.x.count * gb_bytes_of(f.compute));
  if (!scratch) return GB_EMEMORY;
  center.fold = first;
  center.map = GB_MAP_PLAIN;
  /* an infinite largest element would make inf - inf */
  center.finish = first == GB_FOLD_SUM ? GB_FINISH_SCALED : GB_FINISH_FINITE;
  center.a = (double)f.x.length;
  center.out = scratch;
  center.out_dtype = f.compute;
  gb_status status = gb_fold_run(call, &center);
  f.center = scratch;
  f.finish = finish;
  f.a = (double)f.x.length > correction ? (double)f.x.length - correction : 0;
  return status == GB_OK ? gb_fold_run(call, &f) : status;
}

static gb_status var(gb_cuda_call *call) {
  double correction = GB_ATTRS(call, var)->correction.number;
  return around_center(call, FOLDED(call, var), GB_FOLD_SUM, GB_MAP_CENTERED_SQUARE, GB_FINISH_SCALED, correction);
}
static gb_status std_(gb_cuda_call *call) {
  double correction = GB_ATTRS(call, std)->correction.number;
  return around_center(call, FOLDED(call, std), GB_FOLD_SUM, GB_MAP_CENTERED_SQUARE, GB_FINISH_SCALED_ROOT, correction);
}
static gb_status logsumexp(gb_cuda_call *call) {
  return around_center(call, FOLDED(call, logsumexp), GB_FOLD_LARGEST, GB_MAP_CENTERED_EXP,
                       GB_FINISH_LOG_PLUS_CENTER, 0);
}

/* ====} */

/* {==== largest elements with their index ==== */

/* One search: the first largest element of each row, NaN being larger than all. The smallest is found among elements in
 * reversed order. */
typedef struct search {
  gb_rows x;
  bool reverse, restore;          /* turn the order around on reading; on writing */
  const int64_t *indices_in;      /* of the elements; NULL: their positions */
  void *values;                   /* or NULL */
  gb_dtype values_dtype;
  int64_t *indices;
  int64_t piece, pieces;
} search;

template <typename T> static GB_DEVICE T reversed(T x) { return -x; }
template <> GB_DEVICE int64_t reversed(int64_t x) { return ~x; } /* the negative does not exist for all of them */

template <typename T> struct found { T value; int64_t at; };

/* Does b come before a? An index below 0 stands for nothing. */
template <typename T> static GB_DEVICE bool is_better(const found<T> &b, const found<T> &a) {
  if (b.at < 0 || a.at < 0) return a.at < 0 && b.at >= 0;
  bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && a.value != b.value) return b.value > a.value;
  return b.at < a.at;
}

template <typename T> __global__ void search_rows(search s) {
  GB_SHARED(T, values, [GB_WARP]);
  GB_SHARED(int64_t, places, [GB_WARP]);
  for (int64_t unit = gb_first_row(); unit < s.x.count * s.pieces; unit += gb_rows_at_once()) {
    int64_t row = unit / s.pieces, from = unit % s.pieces * s.piece,
        to = from + s.piece < s.x.length ? from + s.piece : s.x.length;
    int64_t start = gb_at(s.x.outer, row);
    found<T> best = { (T)0, -1 };
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
      T x = gb_row_load<T>(s.x, start, i);
      found<T> next = { s.reverse ? reversed(x) : x, s.indices_in ? s.indices_in[row * s.x.length + i] : i };
      if (is_better(next, best)) best = next;
    }
    for (int d = GB_WARP / 2; d > 0; d /= 2) {
      found<T> other = { __shfl_xor_sync(GB_ALL_LANES, best.value, d), __shfl_xor_sync(GB_ALL_LANES, best.at, d) };
      if (is_better(other, best)) best = other;
    }
    if (blockDim.x > GB_WARP) {
      if (threadIdx.x % GB_WARP == 0)
        values[threadIdx.x / GB_WARP] = best.value, places[threadIdx.x / GB_WARP] = best.at;
      __syncthreads();
      for (int w = 0; w < (int)blockDim.x / GB_WARP; w++) {
        found<T> other = { values[w], places[w] };
        if (is_better(other, best)) best = other;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (s.values) gb_store<T>(s.values, s.values_dtype, unit, s.restore ? reversed(best.value) : best.value);
      s.indices[unit] = best.at;
    }
  }
}

template <typename T> static void launch_search(gb_cuda_call *call, const search *s) {
  int64_t threads = s->piece >= 1024 ? 256 : GB_WARP;
  unsigned together = threads == GB_WARP ? 4 : 1;
  GB_LAUNCH(call->stream, search_rows<T>, gb_blocks(s->x.count * s->pieces, together),
            dim3((unsigned)threads, together), 0, *s);
}

static void search_by_dtype(gb_cuda_call *call, gb_dtype compute, const search *s) {
  if (compute == GB_FLOAT32) launch_search<float>(call, s);
  else if (compute == GB_FLOAT64) launch_search<double>(call, s);
  else launch_search<int64_t>(call, s);
}

/* Search the rows along the dims in the mask; long rows in pieces, whose best are searched again. */
static gb_status search_run(gb_cuda_call *call, const gb_cuda_tensor *x, uint32_t mask, bool smallest,
                            const gb_cuda_tensor *values, const gb_cuda_tensor *indices) {
  gb_dtype compute = gb_compute_dtype(x->dtype, x->dtype);
  search s = {};
  s.x = gb_rows_of(x, mask);
  if (s.x.count == 0) return GB_OK;
  s.reverse = smallest;
  s.pieces = s.x.count >= 1024 ? 1 : (s.x.length + 8191) / 8192;
  if (s.pieces > 1024) s.pieces = 1024;
  s.piece = (s.x.length + s.pieces - 1) / s.pieces;
  s.pieces = (s.x.length + s.piece - 1) / s.piece;
  search last = s;
  if (s.pieces > 1) {
    size_t n = (size_t)(s.x.count * s.pieces);
    s.values = gb_cuda_scratch(call, n * gb_bytes_of(compute));
    s.indices = (int64_t *)gb_cuda_scratch(call, n * sizeof(int64_t));
    if (!s.values || !s.indices) return GB_EMEMORY;
    s.values_dtype = compute;
    search_by_dtype(call, compute, &s);
    last.x = gb_rows_over(s.values, compute, s.x.count, s.pieces);
    last.indices_in = s.indices;
    last.reverse = false;
    last.piece = s.pieces;
    last.pieces = 1;
  }
  last.restore = smallest;
  last.values = values ? values->data : NULL;
  last.values_dtype = values ? values->dtype : compute;
  last.indices = (int64_t *)indices->data;
  search_by_dtype(call, compute, &last);
  return GB_OK;
}

/* The index along a dim or, without one, in x flattened. */
static gb_status index_of_best(gb_cuda_call *call, const folded &row, bool smallest) {
  uint32_t mask = row.dim->given ? mask_of_dim(row.dim, row.x->ndim) : (1u << row.x->ndim) - 1u;
  return search_run(call, row.x, mask, smallest, NULL, row.y);
}

/* The values are the row's y. Without a dim max is amax. */
static gb_status best_with_index(gb_cuda_call *call, const folded &row, const gb_cuda_tensor *indices, bool smallest) {
  gb_attr every = {};
  if (!indices) return simple(call, folded{ row.x, row.y, &every }, smallest ? GB_FOLD_SMALLEST : GB_FOLD_LARGEST);
  return search_run(call, row.x, mask_of_dim(row.dim, row.x->ndim), smallest, row.y, indices);
}

static gb_status max_(gb_cuda_call *call) {
  const gb_cuda_out_max *out = GB_CUDA_OUT(call, max);
  return best_with_index(call, folded{ GB_CUDA_IN(call, max)->x, out->values, &GB_ATTRS(call, max)->dim },
                         out->indices, false);
}

static gb_status min_(gb_cuda_call *call) {
  const gb_cuda_out_min *out = GB_CUDA_OUT(call, min);
  return best_with_index(call, folded{ GB_CUDA_IN(call, min)->x, out->values, &GB_ATTRS(call, min)->dim },
                         out->indices, true);
}

static gb_status argmax(gb_cuda_call *call) { return index_of_best(call, FOLDED(call, argmax), false); }
static gb_status argmin(gb_cuda_call *call) { return index_of_best(call, FOLDED(call, argmin), true); }

/* ====} */

/* {==== running sums ==== */

/* Integers wrap; a long chain of additions is kept in float64. */
template <typename N> struct added {
  typedef N T;
  static GB_DEVICE T nothing() { return 0; }
  static GB_DEVICE T of(T a, T b) { return a + b; }
};
template <> GB_DEVICE int64_t added<int64_t>::of(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

template <typename T> static gb_status scan(gb_cuda_call *call, const gb_rows *x, const gb_rows *out) {
  gb_scan_numbers<added<T>> f = { *x, *out, NULL };
  return gb_scan_run(call, f, x->count, x->length);
}

static gb_status cumsum(gb_cuda_call *call) {
  const gb_cuda_tensor *x = GB_CUDA_IN(call, cumsum)->x, *out = GB_CUDA_OUT(call, cumsum)->y;
  uint32_t mask = mask_of_dim(&GB_ATTRS(call, cumsum)->dim, x->ndim);
  gb_rows from = gb_rows_of(x, mask), to = gb_rows_of(out, mask);
  if (out->numel == 0) return GB_OK;
  return gb_is_float(out->dtype) ? scan<double>(call, &from, &to) : scan<int64_t>(call, &from, &to);
}

/* ====} */

const gb_cuda_row gb_cuda_reduce[] = {
  { GB_OP_sum, sum, false }, { GB_OP_mean, mean, false }, { GB_OP_prod, prod, false }, { GB_OP_var, var, false },
      { GB_OP_std, std_, false },
  { GB_OP_amax, amax, false }, { GB_OP_amin, amin, false }, { GB_OP_max, max_, false }, { GB_OP_min, min_, false },
      { GB_OP_argmax, argmax, false },
  { GB_OP_argmin, argmin, false }, { GB_OP_norm, norm, false }, { GB_OP_logsumexp, logsumexp, false },
      { GB_OP_all, all, false },
  { GB_OP_any, any, false }, { GB_OP_cumsum, cumsum, false }, { GB_OP_COUNT, NULL, false },
};
