/* cpu/reduce.c - reductions over any set of dims, largest elements with their index, and running sums.
 *
 * A fold (sum, product, largest, smallest) of mapped elements is a fixed tree: tiles of 1024 lanes are added lane by
 * lane, then halves of the lanes onto each other; pieces of long reductions likewise. If the nearest neighbours in
 * memory are reduced together, the lanes run along the reduction ("rows"); otherwise along the result ("columns", as in
 * the gradient of a bias). Rows too short to fill vectors are turned into columns, a tile of them at a time. Either way
 * memory is read in order, once (twice for var, std and logsumexp, which first need a mean or a maximum), with one
 * operation per element. Rows of a tile at most are halved in registers until a few lanes are left, which stand in
 * columns beside those of other rows. The tree depends on shapes and strides, never on the number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "base/math.h"
#include "cpu/scratch.h"
#include "cpu/walk.h"
#include "cpu/wide.h"
#include "ops/reduce.h"

typedef enum fold_kind { SUM, PRODUCT, LARGEST, SMALLEST } fold_kind;
typedef enum map_kind { PLAIN, ABSOLUTE, SQUARE, POWER, NONZERO, CENTERED_SQUARE, CENTERED_EXP } map_kind;

/* One loop over dims of x (neighbours merged): its stride in x and, for a dim that is kept, in the result. */
typedef struct axis { int64_t size, stride, out; } axis;

/* An array of a tile in the compute type. */
typedef union lanes { float f32[GB_TILE]; double f64[GB_TILE]; int64_t i64[GB_TILE]; } lanes;

/* One reduction. Its work is cut into units: a strip of up to `width` columns of one outer position, over one piece of
 * the reduction. */
typedef struct reduction {
  gb_lane lane;
  fold_kind fold;
  map_kind map;
  double power;
  size_t bytes;                    /* of a lane */
  const char *data;
  gb_dtype dtype;
  size_t x_bytes;
  axis kept[GB_MAX_NDIM], reduced[GB_MAX_NDIM], column;
  int n_kept, n_reduced;           /* n_reduced is at least 1 */
  int64_t outer, length;           /* products of the sizes */
  int64_t width, strips;           /* columns in a strip, strips; 1 and 1 for rows */
  int64_t wide;                    /* reduced positions that one load brings: side by side in memory */
  int64_t piece, pieces;           /* reduced positions in a piece */
  int64_t batch;                   /* rows that one unit takes, of a tile at most; 0: rows are longer */
  gb_rows rows;                    /* these, in the order of the results */
  int64_t units, per_chunk;
  const char *center;              /* CENTERED maps: one per result, in the compute type */
  char *partial;                   /* [outer][pieces][columns] */
  char *result;                    /* contiguous */
} reduction;

/* {==== lanes ==== */

/* Two lanes become one. Integers wrap: sums and products go through unsigned. */
#define ONE_OF_REAL(name, T)                                                                                          \
  GB_ALWAYS_INLINE T name(fold_kind fold, T a, T b) {                                                                  \
    switch (fold) {                                                                                                    \
      case SUM: return a + b;                                                                                          \
      case PRODUCT: return a * b;                                                                                      \
      case LARGEST: return ((b > a) | (b != b)) ? b : a;                                                               \
      default: return ((b < a) | (b != b)) ? b : a;                                                                    \
    }                                                                                                                  \
  }
ONE_OF_REAL(one_f32, float)
ONE_OF_REAL(one_f64, double)
#undef ONE_OF_REAL

GB_ALWAYS_INLINE int64_t one_i64(fold_kind fold, int64_t a, int64_t b) {
  switch (fold) {
    case SUM: return (int64_t)((uint64_t)a + (uint64_t)b);
    case PRODUCT: return (int64_t)((uint64_t)a * (uint64_t)b);
    case LARGEST: return b > a ? b : a;
    default: return b < a ? b : a;
  }
}

/* Lanes of a row that are left where its last halves are folded beside those of other rows; and of a block of them. */
enum { FEW = 16 };

/* FEW lanes of x and y from `at` on, mapped and folded. */
#define BLOCK(fold, one, map, out, x, y, at)                                                                          \
  _Pragma("omp simd") for (int j = 0; j < FEW; j++) out[(at) + j] = one(fold, map(x[(at) + j]), map(y[(at) + j]));
#define ITSELF(x) (x)
#define SQUARED(x) ((x) * (x))

/* The later half of `count` lanes, more than 2 FEW, mapped and folded onto the earlier, again and again, until FEW at
 * most are left, which go to `to`. The first time blocks end where x does: the last one overlaps that before it. Later
 * they may go beyond, in `work` and `to`, which have room for FEW - 1 lanes more than half of the lanes, or those that
 * are left. */
#define SHORTEN(fold, T, one, map, x, count, work, to)                                                                \
  {                                                                                                                    \
    int64_t half = (count + 1) / 2, pairs = count / 2;                                                                 \
    for (int64_t i = 0; i + FEW <= pairs; i += FEW) BLOCK(fold, one, map, work, x, (x + half), i)                      \
    if (pairs % FEW) BLOCK(fold, one, map, work, x, (x + half), pairs - FEW)                                           \
    if (pairs < half) work[pairs] = map(x[pairs]);                                                                     \
    while (half > FEW) {                                                                                               \
      pairs = half / 2, half = (half + 1) / 2;                                                                         \
      const T middle = work[pairs];                                                                                    \
      T *out = half <= FEW ? to : work;                                                                                \
      for (int64_t i = 0; i < pairs; i += FEW) BLOCK(fold, one, ITSELF, out, work, (work + half), i)                   \
      if (pairs < half) out[pairs] = middle;                                                                           \
    }                                                                                                                  \
  }
#define FOLD_INTO(fold, one, a, b, n) for (int64_t i = 0; i < n; i++) a[i] = one(fold, a[i], b[i])

/* For each type of lanes: a = fold(a, b), and a row shortened. */
#define FOLDS(T, one, into, shorten)                                                                                  \
  static void into(fold_kind fold, T *restrict a, const T *restrict b, int64_t n) {                                    \
    switch (fold) {                                                                                                    \
      case SUM: FOLD_INTO(SUM, one, a, b, n); break;                                                                   \
      case PRODUCT: FOLD_INTO(PRODUCT, one, a, b, n); break;                                                           \
      case LARGEST: FOLD_INTO(LARGEST, one, a, b, n); break;                                                           \
      case SMALLEST: FOLD_INTO(SMALLEST, one, a, b, n); break;                                                         \
    }                                                                                                                  \
  }                                                                                                                    \
  static void shorten(fold_kind fold, const T *x, int64_t count, T *work, T *to) {                                     \
    switch (fold) {                                                                                                    \
      case SUM: SHORTEN(SUM, T, one, ITSELF, x, count, work, to) break;                                                \
      case PRODUCT: SHORTEN(PRODUCT, T, one, ITSELF, x, count, work, to) break;                                        \
      case LARGEST: SHORTEN(LARGEST, T, one, ITSELF, x, count, work, to) break;                                        \
      case SMALLEST: SHORTEN(SMALLEST, T, one, ITSELF, x, count, work, to) break;                                      \
    }                                                                                                                  \
  }
FOLDS(float, one_f32, fold_f32, shorten_f32)
FOLDS(double, one_f64, fold_f64, shorten_f64)
FOLDS(int64_t, one_i64, fold_i64, shorten_i64)
#undef FOLDS

/* The same of squares of float32, which add up with one rounding. */
static void fold_squares(float *restrict a, const float *restrict b, int64_t n) {
  for (int64_t i = 0; i < n; i++) a[i] += b[i] * b[i];
}
static void shorten_squares(const float *x, int64_t count, float *work, float *to) {
  SHORTEN(SUM, float, one_f32, SQUARED, x, count, work, to)
}
#undef FOLD_INTO
#undef SHORTEN
#undef BLOCK
#undef ITSELF
#undef SQUARED

/* a = fold(a, b), lane by lane. */
static void fold_into(const reduction *r, void *a, const void *b, int64_t n) {
  switch (r->lane) {
    case GB_LANE_F32: fold_f32(r->fold, a, b, n); break;
    case GB_LANE_F64: fold_f64(r->fold, a, b, n); break;
    default: fold_i64(r->fold, a, b, n);
  }
}

/* `count` groups of `width` lanes become one: the later half folded onto the earlier until one is left. */
static void fold_halves(const reduction *r, char *a, int64_t count, int64_t width) {
  while (count > 1) {
    int64_t half = (count + 1) / 2;
    for GB_PIECES(at, n, (count / 2) * width)
      fold_into(r, a + (size_t)at * r->bytes, a + (size_t)(half * width + at) * r->bytes, n);
    count = half;
  }
}

/* What a fold of nothing gives. */
static void fill_identity(const reduction *r, void *to, int64_t n) {
  static const double real[] = { 0, 1, -INFINITY, INFINITY };
  static const int64_t whole[] = { 0, 1, INT64_MIN, INT64_MAX };
  lanes *a = to;
  for (int64_t i = 0; i < n; i++) {
    if (r->lane == GB_LANE_F32) a->f32[i] = (float)real[r->fold];
    else if (r->lane == GB_LANE_F64) a->f64[i] = real[r->fold];
    else a->i64[i] = whole[r->fold];
  }
}

static void map_f32(const reduction *r, float *restrict x, const float *restrict center, int64_t n) {
  float power = (float)r->power;
  switch (r->map) {
    case PLAIN: break;
    case ABSOLUTE: for (int64_t i = 0; i < n; i++) x[i] = fabsf(x[i]); break;
    case SQUARE: for (int64_t i = 0; i < n; i++) x[i] *= x[i]; break;
    case POWER: for (int64_t i = 0; i < n; i++) x[i] = powf(fabsf(x[i]), power); break;
    case NONZERO: for (int64_t i = 0; i < n; i++) x[i] = x[i] != 0.0f; break;
    case CENTERED_SQUARE: for (int64_t i = 0; i < n; i++) x[i] = (x[i] - center[i]) * (x[i] - center[i]); break;
    case CENTERED_EXP: for (int64_t i = 0; i < n; i++) x[i] = gb_expf(x[i] - center[i]); break;
  }
}

static void map_f64(const reduction *r, double *restrict x, const double *restrict center, int64_t n) {
  switch (r->map) {
    case PLAIN: break;
    case ABSOLUTE: for (int64_t i = 0; i < n; i++) x[i] = fabs(x[i]); break;
    case SQUARE: for (int64_t i = 0; i < n; i++) x[i] *= x[i]; break;
    case POWER: for (int64_t i = 0; i < n; i++) x[i] = pow(fabs(x[i]), r->power); break;
    case NONZERO: for (int64_t i = 0; i < n; i++) x[i] = x[i] != 0.0; break;
    case CENTERED_SQUARE: for (int64_t i = 0; i < n; i++) x[i] = (x[i] - center[i]) * (x[i] - center[i]); break;
    case CENTERED_EXP: for (int64_t i = 0; i < n; i++) x[i] = exp(x[i] - center[i]); break;
  }
}

/* The same of a row with one center. */
static void map_around_f32(const reduction *r, float *x, float center, int64_t n) {
  if (r->map == CENTERED_SQUARE) for (int64_t i = 0; i < n; i++) x[i] = (x[i] - center) * (x[i] - center);
  else for (int64_t i = 0; i < n; i++) x[i] = gb_expf(x[i] - center);
}
static void map_around_f64(const reduction *r, double *x, double center, int64_t n) {
  if (r->map == CENTERED_SQUARE) for (int64_t i = 0; i < n; i++) x[i] = (x[i] - center) * (x[i] - center);
  else for (int64_t i = 0; i < n; i++) x[i] = exp(x[i] - center);
}

/* Integers know one map: is it non-zero? */
static void map_lanes(const reduction *r, void *x, const void *center, int64_t n) {
  int64_t *whole = x;
  switch (r->lane) {
    case GB_LANE_F32: map_f32(r, x, center, n); break;
    case GB_LANE_F64: map_f64(r, x, center, n); break;
    default:
      for (int64_t i = 0; i < n && r->map == NONZERO; i++) whole[i] = whole[i] != 0;
  }
}

/* ====} */

/* {==== the plan ==== */

/* Append a loop, merging it into the one before where that makes one loop of both. */
static void push_axis(axis *axes, int *n, axis a) {
  axis *last = &axes[*n - 1];
  if (a.size == 1) return;
  if (*n && last->stride == a.size * a.stride && last->out == a.size * a.out)
    *last = (axis){ last->size * a.size, a.stride, a.out };
  else axes[(*n)++] = a;
}

/* The loops over the reduced dims, largest stride first, so that the last walks memory most closely. */
static void plan_reduced(reduction *r, const gb_tensor *x, uint32_t mask) {
  int dims[GB_MAX_NDIM], n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (!(mask >> d & 1u)) continue;
    int at = n++;
    for (; at > 0 && x->stride[dims[at - 1]] < x->stride[d]; at--) dims[at] = dims[at - 1];
    dims[at] = d;
  }
  for (int i = 0; i < n; i++) {
    r->length *= x->shape[dims[i]];
    push_axis(r->reduced, &r->n_reduced, (axis){ x->shape[dims[i]], x->stride[dims[i]], 0 });
  }
}

/* The loops over the kept dims, in the order of the result. */
static void plan_kept(reduction *r, const gb_tensor *x, uint32_t mask) {
  int64_t out = 1, strides[GB_MAX_NDIM];
  for (int d = x->ndim - 1; d >= 0; d--) {
    strides[d] = out;
    if (!(mask >> d & 1u)) out *= x->shape[d];
  }
  for (int d = 0; d < x->ndim; d++)
    if (!(mask >> d & 1u)) push_axis(r->kept, &r->n_kept, (axis){ x->shape[d], x->stride[d], strides[d] });
}

/* Take out the kept loop that walks memory more closely than every reduced one, if there is such a one, as the
 * columns. */
static void plan_columns(reduction *r) {
  int best = -1;
  for (int i = 0; i < r->n_kept; i++)
    if (best < 0 || r->kept[i].stride < r->kept[best].stride) best = i;
  r->column = (axis){ 1, 0, 1 };
  if (best < 0 || (r->n_reduced && r->kept[best].stride >= r->reduced[r->n_reduced - 1].stride)) return;
  r->column = r->kept[best];
  r->n_kept--;
  for (int i = best; i < r->n_kept; i++) r->kept[i] = r->kept[i + 1];
}

/* The rows that the one reduced loop goes along, by the kept ones. */
static void plan_rows(reduction *r) {
  r->rows = (gb_rows){ .data = (char *)r->data, .dtype = r->dtype, .bytes = r->x_bytes, .length = r->length,
                       .stride = r->reduced[0].stride, .count = r->outer, .n = r->n_kept > 0 ? r->n_kept : 1,
                       .size = { 1 }, .step = { r->length } };
  for (int i = 0; i < r->n_kept; i++) r->rows.size[i] = r->kept[i].size, r->rows.step[i] = r->kept[i].stride;
}

/* Rows of up to so many elements stand in columns from the beginning. Of longer ones the FEW lanes that are left do, of
 * so many rows together as one chunk is worth, which fill a tile at most. */
enum { STANDING = 47, BATCH_LANES = 32 * GB_TILE, BATCH_ROWS = GB_TILE / FEW };
/* Bytes ahead of a row that memory is asked for: its halves are read by turns, which the processor does not foresee. */
enum { AHEAD = 4096 };

/* Cut the work. A lane adds up at most 64 loads in a row before the tree takes over. */
static void plan_units(reduction *r) {
  int64_t columns = r->column.size;
  if (r->n_reduced == 0) r->reduced[r->n_reduced++] = (axis){ r->length, 0, 0 };
  const axis *inner = &r->reduced[r->n_reduced - 1];
  r->outer = 1;
  for (int i = 0; i < r->n_kept; i++) r->outer *= r->kept[i].size;
  r->width = columns < GB_TILE ? columns : GB_TILE;
  r->strips = r->width ? (columns + r->width - 1) / r->width : 0;
  bool rows = columns == 1;
  bool side_by_side = rows || inner->stride == columns * r->column.stride;
  r->wide = side_by_side && r->width > 0 ? GB_TILE / r->width : 1;
  if (!rows && r->wide > inner->size) r->wide = inner->size > 0 ? inner->size : 1;
  r->piece = r->wide * (rows ? 32 : 64);
  r->pieces = (r->length + r->piece - 1) / r->piece;
  if (r->pieces == 0) r->pieces = 1;
  r->units = r->outer * r->strips * r->pieces;
  int64_t cost = r->width * (r->length < r->piece ? r->length : r->piece);
  if (rows && r->n_reduced == 1 && r->length > 0 && r->length <= GB_TILE) {
    plan_rows(r);
    r->batch = r->length <= STANDING ? GB_TILE / r->length : 1 + BATCH_LANES / r->length;
    if (r->length > STANDING && r->batch > BATCH_ROWS) r->batch = BATCH_ROWS;
    r->units = (r->outer + r->batch - 1) / r->batch;
    cost *= r->batch;
  }
  r->per_chunk = cost < 32 * GB_TILE ? 32 * GB_TILE / (cost > 0 ? cost : 1) : 1;
}

/* ====} */

/* {==== the work ==== */

static int64_t offset_in(const axis *axes, int n, int64_t at) {
  int64_t offset = 0;
  for (int i = n - 1; i >= 0; i--) {
    offset += at % axes[i].size * axes[i].stride;
    at /= axes[i].size;
  }
  return offset;
}

/* Where the result of an outer position lies. */
static int64_t result_of(const reduction *r, int64_t outer) {
  int64_t at = 0;
  for (int i = r->n_kept - 1; i >= 0; i--) {
    at += outer % r->kept[i].size * r->kept[i].out;
    outer /= r->kept[i].size;
  }
  return at;
}

/* n lanes from one place to another, `step` lanes apart there, here, or (0) all the same. */
static void copy_lanes(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t bytes) {
  if (bytes == 4)
    for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i * to_step, from + 4 * i * from_step, 4);
  else
    for (int64_t i = 0; i < n; i++) memcpy(to + 8 * i * to_step, from + 8 * i * from_step, 8);
}

/* Put n finished columns from `first` into the result. */
static void deliver(const reduction *r, int64_t outer, int64_t first, int64_t n, const char *from) {
  char *to = r->result + (size_t)(result_of(r, outer) + first * r->column.out) * r->bytes;
  for GB_PIECES(at, some, n)
    copy_lanes(to + at * r->column.out * (int64_t)r->bytes, r->column.out, from + (size_t)at * r->bytes, 1, some,
               r->bytes);
}

/* The centers of `groups` groups of n columns from `first`. */
static void load_centers(const reduction *r, int64_t outer, int64_t first, int64_t n, int64_t groups, char *to) {
  const char *from = r->center + (size_t)(result_of(r, outer) + first * r->column.out) * r->bytes;
  if (n == 1) copy_lanes(to, 1, from, 0, groups, r->bytes);
  else
    for (int64_t g = 0; g < groups; g++)
      copy_lanes(to + (size_t)(g * n) * r->bytes, 1, from, r->column.out, n, r->bytes);
}

/* Are squares of float32 added up as they are read? Elsewhere they are made first. */
static bool squares(const reduction *r, int64_t stride) {
  return r->map == SQUARE && r->fold == SUM && r->lane == GB_LANE_F32 && r->dtype == GB_FLOAT32 && stride == 1;
}

/* n elements from x + offset, mapped: in `tile`, or where they lie if there is nothing to do. */
static const void *read_lanes(const reduction *r, int64_t offset, int64_t stride, int64_t n, const void *centers,
                              void *tile) {
  const char *from = r->data + offset * (int64_t)r->x_bytes;
  if (r->map == PLAIN && stride == 1 && r->dtype == gb_lane_dtype(r->lane)) return from;
  gb_lane_load(r->lane, tile, from, r->dtype, stride, n);
  map_lanes(r, tile, centers, n);
  return tile;
}

/* Fold positions from .. to - 1 of the reduction, lanes along it, into the first lanes of acc; returns how many hold
 * something. */
static int64_t fold_along(const reduction *r, int64_t base, int64_t from, int64_t to, const void *centers, lanes *acc) {
  const axis *inner = &r->reduced[r->n_reduced - 1];
  const bool own_squares = squares(r, inner->stride);
  int64_t lanes_used = to - from < GB_TILE ? to - from : GB_TILE, lane = 0;
  lanes tile;
  if (r->n_reduced == 1 && !own_squares && from < to) { /* the first lanes are there at once */
    const void *first = read_lanes(r, base + from * inner->stride, inner->stride, lanes_used, centers, acc);
    if (first != acc) memcpy(acc, first, (size_t)lanes_used * r->bytes);
    from += lanes_used;
  } else fill_identity(r, acc, lanes_used > 0 ? lanes_used : 1);
  while (from < to) {
    int64_t at = from % inner->size, n = inner->size - at;
    if (n > to - from) n = to - from;
    if (n > lanes_used - lane) n = lanes_used - lane;
    int64_t offset = base + offset_in(r->reduced, r->n_reduced - 1, from / inner->size) + at * inner->stride;
    char *into = (char *)acc + (size_t)lane * r->bytes;
    if (own_squares) fold_squares(acc->f32 + lane, (const float *)(const void *)r->data + offset, n);
    else fold_into(r, into, read_lanes(r, offset, inner->stride, n, centers, &tile), n);
    from += n;
    lane = lane + n < lanes_used ? lane + n : 0;
  }
  return lanes_used;
}

/* The same, lanes along n columns; where several reduced positions lie side by side one load brings them all. Returns
 * the groups of n lanes that hold something. */
static int64_t fold_across(const reduction *r, int64_t base, int64_t n, int64_t from, int64_t to, const void *centers,
                           lanes *acc) {
  const axis *inner = &r->reduced[r->n_reduced - 1];
  int64_t groups = to - from < r->wide ? to - from : r->wide;
  if (groups < 1) groups = 1;
  lanes tile;
  fill_identity(r, acc, groups * n);
  while (from < to) {
    int64_t at = from % inner->size, m = inner->size - at;
    if (m > to - from) m = to - from;
    if (m > groups) m = groups;
    int64_t offset = base + offset_in(r->reduced, r->n_reduced - 1, from / inner->size) + at * inner->stride;
    fold_into(r, acc, read_lanes(r, offset, r->column.stride, m * n, centers, &tile), m * n);
    from += m;
  }
  return groups;
}

static void run_unit(const reduction *r, int64_t unit) {
  lanes acc, centers;
  int64_t piece = unit % r->pieces, strip = unit / r->pieces % r->strips, outer = unit / r->pieces / r->strips;
  int64_t from = piece * r->piece, to = from + r->piece < r->length ? from + r->piece : r->length;
  int64_t first = strip * r->width, n = r->column.size - first < r->width ? r->column.size - first : r->width;
  int64_t base = offset_in(r->kept, r->n_kept, outer) + first * r->column.stride;
  if (r->center) load_centers(r, outer, first, n, to - from < GB_TILE / n ? to - from : GB_TILE / n, (char *)&centers);
  int64_t groups = r->column.size == 1 ? fold_along(r, base, from, to, &centers, &acc)
      : fold_across(r, base, n, from, to, &centers, &acc);
  fold_halves(r, (char *)&acc, groups, n);
  if (r->column.size == 1) { /* which makes 0 of -0, as where lanes begin with it */
    fill_identity(r, &centers, 1);
    fold_into(r, &centers, &acc, 1);
    memcpy(&acc, &centers, r->bytes);
  }
  if (r->pieces == 1) deliver(r, outer, first, n, (const char *)&acc);
  else memcpy(r->partial + (size_t)((outer * r->pieces + piece) * r->column.size + first) * r->bytes, &acc,
              (size_t)n * r->bytes);
}

/* A row of the batch as lanes, mapped: where it lies, or in `tile`. at: which of all rows. */
static const void *read_row(const reduction *r, const char *from, int64_t at, void *tile) {
  if (r->map == PLAIN && r->rows.stride == 1 && r->dtype == gb_lane_dtype(r->lane)) return from;
  gb_lane_load(r->lane, tile, from, r->dtype, r->rows.stride, r->length);
  const char *center = r->center ? r->center + (size_t)at * r->bytes : NULL;
  if (!center) map_lanes(r, tile, NULL, r->length);
  else if (r->lane == GB_LANE_F32) map_around_f32(r, tile, *(const float *)(const void *)center, r->length);
  else map_around_f64(r, tile, *(const double *)(const void *)center, r->length);
  return tile;
}

/* Rows first .. first + n - 1 with FEW lanes left of each at most, side by side in `to`; how many. */
static int64_t shorten_rows(const reduction *r, int64_t first, int64_t n, lanes *to) {
  const int64_t size = r->rows.size[r->rows.n - 1], step = r->rows.step[r->rows.n - 1] * (int64_t)r->x_bytes;
  int64_t left = r->length, row_bytes = r->length * (int64_t)r->x_bytes;
  while (left > FEW) left = (left + 1) / 2;
  const bool own_squares = squares(r, r->rows.stride);
  lanes tile, work;
  const char *from = NULL;
  for (int64_t i = 0; i < n; i++, from += step) {
    if (i == 0 || (first + i) % size == 0) from = gb_rows_at(&r->rows, first + i);
    for (int64_t k = 0; k < row_bytes; k += 64) __builtin_prefetch(from + AHEAD + k);
    if (own_squares) {
      shorten_squares((const float *)(const void *)from, r->length, work.f32, to->f32 + i * left);
      continue;
    }
    const void *x = read_row(r, from, first + i, &tile);
    switch (r->lane) {
      case GB_LANE_F32: shorten_f32(r->fold, x, r->length, work.f32, to->f32 + i * left); break;
      case GB_LANE_F64: shorten_f64(r->fold, x, r->length, work.f64, to->f64 + i * left); break;
      default: shorten_i64(r->fold, x, r->length, work.i64, to->i64 + i * left);
    }
  }
  return left;
}

/* A batch of rows. Their results lie side by side. */
static void run_batch(const reduction *r, int64_t unit) {
  lanes standing, acc;
  int64_t first = unit * r->batch, n = r->outer - first < r->batch ? r->outer - first : r->batch, count = r->length;
  if (count <= STANDING) {
    gb_rows_stand(&r->rows, r->lane, first, n, &standing, n);
    for (int64_t i = 0; i < count && r->center; i++)
      map_lanes(r, (char *)&standing + (size_t)(i * n) * r->bytes, r->center + (size_t)first * r->bytes, n);
    if (!r->center) map_lanes(r, &standing, NULL, n * count);
  } else {
    count = shorten_rows(r, first, n, &acc);
    const gb_rows few = { .data = (char *)&acc, .dtype = gb_lane_dtype(r->lane), .bytes = r->bytes, .length = count,
                          .stride = 1, .count = n, .n = 1, .size = { n }, .step = { count } };
    gb_rows_stand(&few, r->lane, 0, n, &standing, n);
  }
  fold_halves(r, (char *)&standing, count, n);
  fill_identity(r, &acc, n);
  fold_into(r, &acc, &standing, n);
  memcpy(r->result + (size_t)first * r->bytes, &acc, (size_t)n * r->bytes);
}

static void run_units(void *arg, int64_t chunk) {
  const reduction *r = arg;
  int64_t first = chunk * r->per_chunk, end = first + r->per_chunk < r->units ? first + r->per_chunk : r->units;
  for (int64_t unit = first; unit < end; unit++)
    if (r->batch) run_batch(r, unit);
    else run_unit(r, unit);
}

/* The pieces of one outer position become its results. */
static void join_pieces(void *arg, int64_t outer) {
  const reduction *r = arg;
  char *partial = r->partial + (size_t)(outer * r->pieces * r->column.size) * r->bytes;
  fold_halves(r, partial, r->pieces, r->column.size);
  deliver(r, outer, 0, r->column.size, partial);
}

/* Run a planned reduction. */
static gb_status run(gb_op_call *call, reduction *r) {
  gb_block *scratch = NULL;
  if (r->units == 0) return GB_OK;
  if (r->pieces > 1) {
    scratch = gb_cpu_scratch(call, (size_t)(r->outer * r->pieces * r->column.size) * r->bytes);
    if (!scratch) return GB_EMEMORY;
    r->partial = gb_block_data(scratch);
  }
  gb_parallel(call, (r->units + r->per_chunk - 1) / r->per_chunk, run_units, r);
  if (scratch) {
    gb_parallel(call, r->outer, join_pieces, r);
    gb_cpu_scratch_free(call, scratch);
  }
  return GB_OK;
}

/* All rows of the family have x as their only input and their values as the first output: sum stands for them. */
static gb_tensor *source(const gb_op_call *call) { return GB_IN(call, sum)->x; }
static gb_tensor *result(gb_op_call *call) { return GB_OUT(call, sum)->y; }

/* Plan the reduction of x that the call's attributes ask for, in the compute type of lane. */
static reduction plan(const gb_op_call *call, gb_lane lane, fold_kind fold, map_kind map) {
  const gb_tensor *x = source(call);
  reduction r = { .lane = lane, .fold = fold, .map = map, .bytes = gb_lane_bytes(lane), .data = gb_data(x),
                  .dtype = (gb_dtype)x->dtype,
                  .length = 1 };
  uint32_t mask = gb_reduce_mask(call->info, call->attrs, x->ndim);
  r.x_bytes = gb_dtype_bytes(r.dtype);
  plan_reduced(&r, x, mask);
  plan_kept(&r, x, mask);
  plan_columns(&r);
  plan_units(&r);
  return r;
}

/* ====} */

/* {==== results ==== */

typedef enum finish_kind { AS_IS, SCALED, ROOT, SCALED_ROOT, POWER_ROOT, LOG_PLUS_CENTER } finish_kind;

/* What is left to do to one result: `a` is a factor or a power. */
static double finished(finish_kind how, double value, double a, double center) {
  switch (how) {
    case SCALED: return value / a;
    case ROOT: return sqrt(value);
    case SCALED_ROOT: return sqrt(value / a);
    case POWER_ROOT: return pow(value, 1 / a);
    case LOG_PLUS_CENTER: return log(value) + center;
    default: return value;
  }
}

/* The same for float32 where vectors can do it. */
static void finish_f32(finish_kind how, float *x, double a, const float *center, int64_t n) {
  for GB_PIECES(at, m, n) {
    float *y = x + at;
    const float *c = center ? center + at : NULL;
    switch (how) {
      case LOG_PLUS_CENTER: for (int64_t i = 0; i < m; i++) y[i] = gb_logf(y[i]) + c[i]; break;
      case SCALED: for (int64_t i = 0; i < m; i++) y[i] = (float)(y[i] / a); break;
      case ROOT: for (int64_t i = 0; i < m; i++) y[i] = (float)sqrt(y[i]); break;
      default: for (int64_t i = 0; i < m; i++) y[i] = (float)sqrt(y[i] / a); break;
    }
  }
}

static void finish(const reduction *r, finish_kind how, double a, int64_t n) {
  if (r->lane == GB_LANE_F32 && how != AS_IS && how != POWER_ROOT) {
    finish_f32(how, (float *)(void *)r->result, a, (const float *)(const void *)r->center, n);
    return;
  }
  for (int64_t i = 0; how != AS_IS && i < n && !gb_long_loop(i); i++)
    gb_row_put(r->lane, r->result, i, finished(how, gb_row_get(r->lane, r->result, i), a,
                                               r->center ? gb_row_get(r->lane, r->center, i) : 0));
}

/* Reduce into output 0. The result is made in the output itself where it has the compute type. */
static gb_status reduce(gb_op_call *call, reduction *r, finish_kind how, double a) {
  gb_tensor *out = result(call);
  gb_block *scratch = NULL;
  if (out->numel == 0) return GB_OK;
  if (out->dtype != gb_lane_dtype(r->lane)) {
    scratch = gb_cpu_scratch(call, (size_t)out->numel * r->bytes);
    if (!scratch) return GB_EMEMORY;
  }
  r->result = scratch ? gb_block_data(scratch) : gb_data(out);
  gb_status status = run(call, r);
  if (status == GB_OK) finish(r, how, a, out->numel);
  if (status == GB_OK && scratch) gb_lane_store(r->lane, gb_data(out), (gb_dtype)out->dtype, 1, r->result, out->numel);
  if (scratch) gb_cpu_scratch_free(call, scratch);
  return status;
}

static gb_lane call_lane(gb_op_call *call) {
  return gb_lane_of((gb_dtype)source(call)->dtype, (gb_dtype)result(call)->dtype);
}

static gb_status simple(gb_op_call *call, fold_kind fold) {
  reduction r = plan(call, call_lane(call), fold, PLAIN);
  return reduce(call, &r, AS_IS, 0);
}

static gb_status sum(gb_op_call *call) { return simple(call, SUM); }
static gb_status prod(gb_op_call *call) { return simple(call, PRODUCT); }
static gb_status amax(gb_op_call *call) { return simple(call, LARGEST); }
static gb_status amin(gb_op_call *call) { return simple(call, SMALLEST); }

static gb_status mean(gb_op_call *call) {
  reduction r = plan(call, call_lane(call), SUM, PLAIN);
  return reduce(call, &r, SCALED, (double)r.length);
}

/* Are all, or any, elements non-zero? Floats are asked as floats, since 0.5 is. */
static gb_status truth(gb_op_call *call, fold_kind fold) {
  gb_dtype dtype = (gb_dtype)source(call)->dtype;
  reduction r = plan(call, gb_lane_of(dtype, dtype), fold, NONZERO);
  return reduce(call, &r, AS_IS, 0);
}

/* The smallest of no flags counts as true. */
static gb_status all(gb_op_call *call) { return truth(call, SMALLEST); }

/* The largest of no flags would too, so flags are added up. */
static gb_status any(gb_op_call *call) { return truth(call, SUM); }

static gb_status norm(gb_op_call *call) {
  double p = GB_ATTRS(call, norm)->p.number;
  fold_kind fold = isinf(p) ? (p > 0 ? LARGEST : SMALLEST) : SUM;
  map_kind map = p == 2 ? SQUARE : p == 0 ? NONZERO : p == 1 || isinf(p) ? ABSOLUTE : POWER;
  reduction r = plan(call, call_lane(call), fold, map);
  r.power = p;
  return reduce(call, &r, p == 2 ? ROOT : map == POWER ? POWER_ROOT : AS_IS, p);
}

/* 0 in the place of infinite maxima, which would make inf - inf. */
static void replace_infinite(gb_lane lane, char *center, int64_t n) {
  for GB_PIECES(at, m, n) {
    float *x = (float *)(void *)center + at;
    double *wide = (double *)(void *)center + at;
    if (lane == GB_LANE_F32) for (int64_t i = 0; i < m; i++) x[i] = fabsf(x[i]) == INFINITY ? 0 : x[i];
    else for (int64_t i = 0; i < m; i++) wide[i] = fabs(wide[i]) == INFINITY ? 0 : wide[i];
  }
}

/* Two passes: a center per result (a mean, or a maximum), then the sum of a function of the distance to it. */
static gb_status around_center(gb_op_call *call, fold_kind first, map_kind map, finish_kind how, double correction) {
  int64_t n = result(call)->numel;
  reduction center = plan(call, call_lane(call), first, PLAIN), r = plan(call, center.lane, SUM, map);
  if (n == 0) return GB_OK;
  gb_block *scratch = gb_cpu_scratch(call, (size_t)n * r.bytes);
  if (!scratch) return GB_EMEMORY;
  r.center = center.result = gb_block_data(scratch);
  gb_status status = run(call, &center);
  if (status == GB_OK && first == SUM) finish(&center, SCALED, (double)r.length, n);
  if (status == GB_OK && first == LARGEST) replace_infinite(r.lane, center.result, n);
  if (status == GB_OK) status = reduce(call, &r, how, fmax((double)r.length - correction, 0));
  gb_cpu_scratch_free(call, scratch);
  return status;
}

static gb_status var(gb_op_call *call) {
  return around_center(call, SUM, CENTERED_SQUARE, SCALED, GB_ATTRS(call, var)->correction.number);
}

static gb_status std(gb_op_call *call) {
  return around_center(call, SUM, CENTERED_SQUARE, SCALED_ROOT, GB_ATTRS(call, std)->correction.number);
}

static gb_status logsumexp(gb_op_call *call) { return around_center(call, LARGEST, CENTERED_EXP, LOG_PLUS_CENTER, 0); }

/* ====} */

/* {==== largest elements with their index ==== */

/* One run over rows: the first largest element of each, NaN being larger than all. The smallest is found in negated
 * elements. */
typedef struct search {
  gb_lane lane;
  bool smallest;
  gb_rows rows;
  gb_row_plan plan;
  gb_scratch scratch;
  char *values;                    /* one lane per row, or NULL */
  int64_t *indices;                /* one per row */
} search;

/* Turn the order of n lanes around. For integers that is the complement, which, unlike the negative, exists for all of
 * them. */
static void reverse_order(gb_lane lane, void *x, int64_t n) {
  int64_t *whole = x;
  if (lane != GB_LANE_I64) { gb_row_scale(lane, x, n, -1); return; }
  for GB_PIECES(at, m, n)
    for (int64_t i = at; i < at + m; i++) whole[i] = ~whole[i];
}

/* The index of the first largest of n lanes. */
static int64_t find_largest(gb_lane lane, const void *x, int64_t n) {
  const int64_t *whole = x;
  int64_t at = 0;
  if (lane == GB_LANE_I64) {
    for (int64_t i = 1; i < n && !gb_long_loop(i); i++)
      if (whole[i] > whole[at]) at = i;
    return at;
  }
  double most = gb_row_max(lane, x, n);
  if (isnan(most))
    while (at < n - 1 && !isnan(gb_row_get(lane, x, at)) && !gb_long_loop(at)) at++;
  else
    while (at < n - 1 && gb_row_get(lane, x, at) != most && !gb_long_loop(at)) at++;
  return at;
}

/* The same of n short rows that stand beside each other, element by element: what is largest so far, and where. */
#define FIND_SHORT(name, type, place, larger)                                                                          \
  static void name(type *restrict most, place *restrict at, const type *restrict x, int64_t n, int64_t length) {       \
    memcpy(most, x, (size_t)n * sizeof *x);                                                                            \
    memset(at, 0, (size_t)n * sizeof *at);                                                                             \
    for (int64_t k = 1; k < length; k++) {                                                                             \
      const type *y = x + k * n;                                                                                       \
      for (int64_t i = 0; i < n; i++) {                                                                                \
        bool is_larger = larger;                                                                                       \
        most[i] = is_larger ? y[i] : most[i];                                                                          \
        at[i] = is_larger ? (place)k : at[i];                                                                          \
      }                                                                                                                \
    }                                                                                                                  \
  }
FIND_SHORT(find_short_f32, float, int32_t, (y[i] > most[i]) | ((y[i] != y[i]) & (most[i] == most[i])))
FIND_SHORT(find_short_f64, double, int64_t, (y[i] > most[i]) | ((y[i] != y[i]) & (most[i] == most[i])))
FIND_SHORT(find_short_i64, int64_t, int64_t, y[i] > most[i])
#undef FIND_SHORT

/* n short rows from `first` on. room: for as many lanes. */
static void find_in_short(const search *s, int64_t first, int64_t n, char *room) {
  size_t bytes = gb_lane_bytes(s->lane);
  int64_t length = s->rows.length, *indices = s->indices + first;
  lanes most;
  int32_t places[GB_TILE];
  gb_rows_stand(&s->rows, s->lane, first, n, room, n);
  if (s->smallest) reverse_order(s->lane, room, n * length);
  if (s->lane == GB_LANE_F32) find_short_f32(most.f32, places, (const float *)(void *)room, n, length);
  else if (s->lane == GB_LANE_F64) find_short_f64(most.f64, indices, (const double *)(void *)room, n, length);
  else find_short_i64(most.i64, indices, (const int64_t *)(void *)room, n, length);
  for (int64_t i = 0; i < n && s->lane == GB_LANE_F32; i++) indices[i] = places[i];
  if (s->values) memcpy(s->values + (size_t)first * bytes, &most, (size_t)n * bytes);
}

static void search_rows(void *arg, int64_t chunk) {
  const search *s = arg;
  char *x = gb_scratch_room_of(&s->scratch, chunk);
  int64_t n = s->rows.length, first = chunk * s->plan.chunk, end = first + s->plan.chunk;
  size_t bytes = gb_lane_bytes(s->lane);
  if (end > s->rows.count) end = s->rows.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < s->plan.batch ? end - first : s->plan.batch;
    if (n <= GB_STANDING) { find_in_short(s, first, count, x); continue; }
    gb_rows_load(&s->rows, s->lane, first, count, x);
    if (s->smallest) reverse_order(s->lane, x, count * n);
    for (int64_t i = 0; i < count; i++) {
      int64_t at = find_largest(s->lane, x + (size_t)(i * n) * bytes, n);
      s->indices[first + i] = at;
      if (s->values) memcpy(s->values + (size_t)(first + i) * bytes, x + (size_t)(i * n + at) * bytes, bytes);
    }
  }
}

/* Search every row. */
static gb_status search_all(gb_op_call *call, search *s, gb_rows rows) {
  s->rows = rows;
  s->plan = gb_row_plan_for(&s->rows);
  size_t room_bytes = gb_lane_bytes(s->lane) * (size_t)(s->plan.batch * s->rows.length);
  GB_TRY(gb_scratch_open_chunks(call, 0, room_bytes, s->plan.chunks, &s->scratch));
  gb_parallel(call, s->plan.chunks, search_rows, s);
  gb_scratch_close(call, &s->scratch);
  return GB_OK;
}

static search search_for(const gb_op_call *call, bool smallest) {
  gb_dtype dtype = (gb_dtype)source(call)->dtype;
  return (search){ .lane = gb_lane_of(dtype, dtype), .smallest = smallest };
}

/* Rows of length elements of a contiguous x, from one of them on, whatever its dims. */
static gb_rows rows_of_flat(const gb_tensor *x, int64_t from, int64_t length, int64_t count) {
  size_t bytes = gb_dtype_bytes((gb_dtype)x->dtype);
  return (gb_rows){ .data = gb_data(x) + (size_t)from * bytes, .dtype = (gb_dtype)x->dtype, .bytes = bytes,
                    .length = length, .stride = 1,
                    .count = count, .n = 1, .size = { count }, .step = { length } };
}

/* The index in x flattened: search its rows, then their best elements. A contiguous x is cut into rows of a tile, and
 * what is left of one: rows as they come may be as long as x, or of one element, and scratch with them as large as x or
 * larger. */
static gb_status search_flat(gb_op_call *call, bool smallest) {
  const gb_tensor *x = source(call);
  search s = search_for(call, smallest), last = s;
  bool cut = gb_is_contiguous(x) && x->numel > GB_TILE;
  int64_t length = cut ? GB_TILE : x->ndim ? x->shape[x->ndim - 1] : 1, whole = x->numel / length,
      left = x->numel - whole * length;
  gb_block *scratch = gb_cpu_scratch(call, (size_t)(whole + 1) * 16);
  if (!scratch) return GB_EMEMORY;
  s.indices = gb_block_data(scratch);
  s.values = (char *)(s.indices + whole + 1);
  last.indices = s.indices + whole;
  last.values = s.values + (size_t)whole * gb_lane_bytes(s.lane);
  gb_status status = search_all(call, &s, cut ? rows_of_flat(x, 0, length, whole) : gb_rows_of(x, x->ndim - 1));
  if (status == GB_OK && left) status = search_all(call, &last, rows_of_flat(x, whole * length, left, 1));
  int64_t rows = whole + (left > 0), best = status == GB_OK ? find_largest(s.lane, s.values, rows) : 0;
  if (status == GB_OK) *(int64_t *)gb_data(result(call)) = best * length + s.indices[best];
  gb_cpu_scratch_free(call, scratch);
  return status;
}

static gb_status index_of_best(gb_op_call *call, const gb_attr *dim, bool smallest) {
  if (result(call)->numel == 0) return GB_OK;
  if (!dim->given) return search_flat(call, smallest);
  search s = search_for(call, smallest);
  s.indices = (int64_t *)gb_data(result(call));
  return search_all(call, &s, gb_rows_of(source(call), gb_wrap_dim(dim->integer, source(call)->ndim)));
}

/* Without a dim max is amax. With one: search, then bring the values back into their order and dtype. */
static gb_status best_with_index(gb_op_call *call, gb_tensor *indices, const gb_attr *dim, bool smallest) {
  gb_tensor *values = result(call);
  if (!indices) return simple(call, smallest ? SMALLEST : LARGEST);
  if (values->numel == 0) return GB_OK;
  search s = search_for(call, smallest);
  gb_block *scratch = gb_cpu_scratch(call, (size_t)values->numel * gb_lane_bytes(s.lane));
  if (!scratch) return GB_EMEMORY;
  s.values = gb_block_data(scratch);
  s.indices = (int64_t *)gb_data(indices);
  gb_status status = search_all(call, &s, gb_rows_of(source(call), gb_wrap_dim(dim->integer, source(call)->ndim)));
  if (status == GB_OK && smallest) reverse_order(s.lane, s.values, values->numel);
  if (status == GB_OK) gb_lane_store(s.lane, gb_data(values), (gb_dtype)values->dtype, 1, s.values, values->numel);
  gb_cpu_scratch_free(call, scratch);
  return status;
}

static gb_status max(gb_op_call *call) {
  return best_with_index(call, GB_OUT(call, max)->indices, &GB_ATTRS(call, max)->dim, false);
}

static gb_status min(gb_op_call *call) {
  return best_with_index(call, GB_OUT(call, min)->indices, &GB_ATTRS(call, min)->dim, true);
}

static gb_status argmax(gb_op_call *call) { return index_of_best(call, &GB_ATTRS(call, argmax)->dim, false); }
static gb_status argmin(gb_op_call *call) { return index_of_best(call, &GB_ATTRS(call, argmin)->dim, true); }

/* ====} */

/* {==== running sums ==== */

/* Rows of x to rows of running sums, which are kept in float64 (or int64): they are one long chain of additions. Rows
 * that lie side by side go on together, place by place, without being brought into rows. */
typedef struct scan {
  gb_lane lane;
  gb_rows x, out;
  gb_row_plan plan;
  bool together;
  gb_scratch scratch;
} scan;

/* Rows side by side that go on together, at least and at most: a page of float32. And rows in lanes whose chains go on
 * beside one another. */
enum { LEAST_TOGETHER = 16, SCANNED_TOGETHER = 1024, CHAINS = 4 };

/* Running sums of rows of n lanes, from what changes no element, not even -0. */
#define SCAN_ROWS(name, type, none)                                                                                    \
  static void name(type *rows, int64_t count, int64_t n) {                                                             \
    int64_t r = 0;                                                                                                     \
    for (; r + CHAINS <= count; r += CHAINS, rows += CHAINS * n) {                                                     \
      type sums[CHAINS] = { none, none, none, none };                                                                  \
      for GB_PIECES(at, m, n)                                                                                          \
        for (int64_t i = at; i < at + m; i++)                                                                          \
          for (int k = 0; k < CHAINS; k++) rows[k * n + i] = sums[k] += rows[k * n + i];                               \
    }                                                                                                                  \
    for (; r < count; r++, rows += n) {                                                                                \
      type sum = none;                                                                                                 \
      for GB_PIECES(at, m, n) for (int64_t i = at; i < at + m; i++) rows[i] = sum += rows[i];                          \
    }                                                                                                                  \
  }
SCAN_ROWS(scan_f64, double, -0.0)
SCAN_ROWS(scan_i64, uint64_t, 0)
#undef SCAN_ROWS

/* sums += x; x stands for n lanes. */
static void add_lanes(gb_lane lane, void *sums, const void *x, int64_t n) {
  if (lane == GB_LANE_F64) {
    gb_row_add(lane, sums, x, n, 1);
    return;
  }
  uint64_t *s = sums;
  const uint64_t *w = x;
  for (int64_t i = 0; i < n; i++) s[i] += w[i];
}

/* `count` rows side by side, from row `first` on, in a room for twice as many lanes. */
static void scan_side_by_side(const scan *s, int64_t first, int64_t count, char *room) {
  const char *from = gb_rows_at(&s->x, first);
  char *to = gb_rows_at(&s->out, first), *sums = room + count * 8;
  const int64_t step = s->x.stride * (int64_t)s->x.bytes, out_step = s->out.stride * (int64_t)s->out.bytes;
  for (int64_t i = 0; i < s->x.length && !gb_work(count); i++, from += step, to += out_step) {
    gb_lane_load(s->lane, i == 0 ? sums : room, from, s->x.dtype, 1, count);
    if (i > 0) add_lanes(s->lane, sums, room, count);
    gb_lane_store(s->lane, to, s->out.dtype, 1, sums, count);
  }
}

/* The innermost of the other dims of rows that lie side by side, of x and of the result; 0: they do not. */
static int64_t side_by_side(const gb_rows *x, const gb_rows *out) {
  const int last = x->n - 1, other = out->n - 1;
  if (x->stride == 1 || x->step[last] != 1 || out->step[other] != 1) return 0;
  return x->size[last] == out->size[other] ? x->size[last] : 0;
}

static void scan_rows(void *arg, int64_t chunk) {
  const scan *s = arg;
  char *x = gb_scratch_room_of(&s->scratch, chunk);
  if (s->together) {
    const int64_t wide = s->x.size[s->x.n - 1], parts = (wide + SCANNED_TOGETHER - 1) / SCANNED_TOGETHER,
        at = chunk % parts * SCANNED_TOGETHER;
    scan_side_by_side(s, chunk / parts * wide + at, wide - at < SCANNED_TOGETHER ? wide - at : SCANNED_TOGETHER, x);
    return;
  }
  int64_t n = s->x.length, first = chunk * s->plan.chunk, end = first + s->plan.chunk;
  if (end > s->x.count) end = s->x.count;
  for (int64_t count; first < end; first += count) {
    count = end - first < s->plan.batch ? end - first : s->plan.batch;
    gb_rows_load(&s->x, s->lane, first, count, x);
    if (s->lane == GB_LANE_F64) scan_f64((double *)(void *)x, count, n);
    else scan_i64((uint64_t *)(void *)x, count, n);
    gb_rows_store(&s->out, s->lane, first, count, x);
  }
}

static gb_status cumsum(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, cumsum)->x, *out = GB_OUT(call, cumsum)->y;
  int dim = gb_wrap_dim(GB_ATTRS(call, cumsum)->dim.integer, x->ndim);
  if (out->numel == 0) return GB_OK;
  scan s = { .lane = gb_dtype_is_float((gb_dtype)out->dtype) ? GB_LANE_F64 : GB_LANE_I64, .x = gb_rows_of(x, dim),
             .out = gb_rows_of(out, dim) };
  const int64_t beside = side_by_side(&s.x, &s.out);
  s.together = beside >= LEAST_TOGETHER;
  s.plan = gb_row_plan_for(&s.x);
  if (!s.together && s.plan.batch < CHAINS && s.x.length <= GB_SHORT_ROW) s.plan.batch = CHAINS;
  int64_t parts = (beside + SCANNED_TOGETHER - 1) / SCANNED_TOGETHER;
  int64_t chunks = s.together ? s.x.count / beside * parts : s.plan.chunks;
  size_t room_bytes = 8 * (size_t)(s.together ? 2 * SCANNED_TOGETHER : s.plan.batch * s.x.length);
  GB_TRY(gb_scratch_open_chunks(call, 0, room_bytes, chunks, &s.scratch));
  gb_parallel(call, chunks, scan_rows, &s);
  gb_scratch_close(call, &s.scratch);
  return GB_OK;
}

/* ====} */

void GB_CPU_FILL(softmax)(gb_backend *backend);
void GB_CPU_FILL(scan)(gb_backend *backend);
void GB_CPU_FILL(reduce)(gb_backend *backend);
void GB_CPU_FILL(reduce)(gb_backend *backend) {
  backend->run[GB_OP_sum] = sum;
  backend->run[GB_OP_mean] = mean;
  backend->run[GB_OP_prod] = prod;
  backend->run[GB_OP_var] = var;
  backend->run[GB_OP_std] = std;
  backend->run[GB_OP_amax] = amax;
  backend->run[GB_OP_amin] = amin;
  backend->run[GB_OP_max] = max;
  backend->run[GB_OP_min] = min;
  backend->run[GB_OP_argmax] = argmax;
  backend->run[GB_OP_argmin] = argmin;
  backend->run[GB_OP_norm] = norm;
  backend->run[GB_OP_logsumexp] = logsumexp;
  backend->run[GB_OP_all] = all;
  backend->run[GB_OP_any] = any;
  backend->run[GB_OP_cumsum] = cumsum;
  GB_CPU_FILL(softmax)(backend);
  GB_CPU_FILL(scan)(backend);
}
