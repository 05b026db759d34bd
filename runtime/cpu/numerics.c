/* cpu/numerics.c - how many elements a floating format cannot hold, and a histogram of their exponents.
 *
 * A tile is looked at twice while it lies in L1: comparisons of its bits, all lanes at once, then an addition to a bin
 * per element. Four histograms take turns, since neighbours often share a bin and an addition must wait for the one
 * before it to the same place. No more than bits is looked at, so that a host which runs with subnormals off is counted
 * right too. Counts are integers: any order gives them. */
#include <stdatomic.h>
#include <string.h>

#include "base/float.h"
#include "base/numerics.h"
#include "cpu/tile.h"

enum {
  LANES = 4,                              /* histograms that take turns */
  FIELDS_32 = 1 << 8, FIELDS_64 = 1 << 11, /* values of the field of the exponent */
  LEAP = FIELDS_64 + 16,                  /* from a histogram to the next: places 4 KiB apart would be taken for the
                                             same one by the processor */
  PER_CHUNK = 4,                          /* of the walk's own chunks, so that adding a histogram up costs little */
};

/* Of the whole tensor: chunks add to it as they finish. */
typedef struct survey {
  gb_tiles tiles;
  gb_numerics_bounds bounds;
  bool wide;                            /* float64 */
  _Atomic int64_t counts[GB_NUMERICS_COUNTS], largest, smallest; /* the last two as bits */
} survey;

/* Of a chunk. at_least[i]: elements whose bits are at least those of limit i. */
enum { PRESENT, ABOVE_FLUSHED, NORMAL, OVERFLOW, INFINITE, ABOVE_INFINITE, LIMITS };
typedef struct share {
  int64_t n, at_least[LIMITS], largest, smallest;
  uint32_t subnormal[23], fields[LANES * LEAP]; /* float32: by the place of the first bit; by the field of the
                                                   exponent */
} share;

/* What the comparisons of one tile found. */
static void note(share *s, const int64_t found[LIMITS], int64_t largest, int64_t smallest) {
  for (int i = 0; i < LIMITS; i++) s->at_least[i] += found[i];
  if (largest > s->largest) s->largest = largest;
  if (smallest < s->smallest) s->smallest = smallest;
}

/* {==== bits of float32: what 16- and 32-bit floats are looked at as ==== */

static inline int32_t magnitude_32(float x) { return (int32_t)(gb_float_bits(x) & 0x7fffffffu); }

/* The comparisons of one tile. Returns whether one of its elements is subnormal. */
static bool compare_32(share *s, const gb_numerics_bounds *b, const float *x, int64_t n) {
  const int32_t flushed = (int32_t)b->flushed, normal = (int32_t)(b->normal - 1), overflow = (int32_t)(b->overflow - 1),
      infinity = 0x7f800000;
  int32_t present = 0, above = 0, normals = 0, over = 0, infinite = 0, nan = 0, largest = 0, smallest = INT32_MAX;
#pragma omp simd reduction(+ : present, above, normals, over, infinite, nan) reduction(max : largest) \
  reduction(min : smallest)
  for (int64_t i = 0; i < n; i++) {
    int32_t m = magnitude_32(x[i]), finite = m < infinity ? m : 0, here = m > 0 ? m : INT32_MAX;
    present += m > 0;
    above += m > flushed;
    normals += m > normal;
    over += m > overflow;
    infinite += m >= infinity;
    nan += m > infinity;
    largest = finite > largest ? finite : largest;
    smallest = here < smallest ? here : smallest;
  }
  note(s, (int64_t[LIMITS]){ present, above, normals, over, infinite, nan }, largest, smallest);
  return smallest < 1 << 23;
}

static void add_fields_32(share *s, const float *x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) s->fields[l * LEAP + (gb_float_bits(x[i + l]) >> 23 & (FIELDS_32 - 1))]++;
  for (; i < n; i++) s->fields[gb_float_bits(x[i]) >> 23 & (FIELDS_32 - 1)]++;
}

/* Subnormal elements have their bins by the place of their first bit. */
static void add_subnormals_32(share *s, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t m = (uint32_t)magnitude_32(x[i]);
    if (m > 0 && m < 1u << 23) s->subnormal[31 - __builtin_clz(m)]++;
  }
}

/* ====} */

/* {==== bits of float64 ==== */

static inline int64_t magnitude_64(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return (int64_t)(u & INT64_MAX);
}

/* 1 where a >= b, of two magnitudes: by the sign of a difference, which all levels have for 64 bits. */
static inline int64_t at_least_64(int64_t a, int64_t b) { return 1 - (int64_t)((uint64_t)(a - b) >> 63); }

static void compare_64(share *s, const gb_numerics_bounds *b, const double *x, int64_t n) {
  const int64_t flushed = b->flushed + 1, normal = b->normal, overflow = b->overflow, infinity = b->infinity;
  int64_t present = 0, above = 0, normals = 0, over = 0, infinite = 0, nan = 0, largest = 0, smallest = INT64_MAX;
#pragma omp simd reduction(+ : present, above, normals, over, infinite, nan) reduction(max : largest) \
  reduction(min : smallest)
  for (int64_t i = 0; i < n; i++) {
    int64_t m = magnitude_64(x[i]), finite = m < infinity ? m : 0, here = m > 0 ? m : INT64_MAX;
    present += at_least_64(m, 1);
    above += at_least_64(m, flushed);
    normals += at_least_64(m, normal);
    over += at_least_64(m, overflow);
    infinite += at_least_64(m, infinity);
    nan += at_least_64(m, infinity + 1);
    largest = finite > largest ? finite : largest;
    smallest = here < smallest ? here : smallest;
  }
  note(s, (int64_t[LIMITS]){ present, above, normals, over, infinite, nan }, largest, smallest);
}

static void add_fields_64(share *s, const double *x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) s->fields[l * LEAP + (magnitude_64(x[i + l]) >> 52)]++;
  for (; i < n; i++) s->fields[magnitude_64(x[i]) >> 52]++;
}

/* ====} */

static void survey_tile(const survey *all, share *s, const void *x, int64_t n) {
  s->n += n;
  if (all->wide) {
    compare_64(s, &all->bounds, x, n);
    add_fields_64(s, x, n);
    return;
  }
  add_fields_32(s, x, n);
  if (compare_32(s, &all->bounds, x, n)) add_subnormals_32(s, x, n);
}

/* {==== adding up ==== */

static void add(_Atomic int64_t *to, int64_t n) {
  if (n) atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static void raise_to(_Atomic int64_t *to, int64_t value) {
  int64_t now = atomic_load_explicit(to, memory_order_relaxed);
  while (value > now && !atomic_compare_exchange_weak_explicit(to, &now, value, memory_order_relaxed,
                                                               memory_order_relaxed)) { }
}

static void lower_to(_Atomic int64_t *to, int64_t value) {
  int64_t now = atomic_load_explicit(to, memory_order_relaxed);
  while (value < now && !atomic_compare_exchange_weak_explicit(to, &now, value, memory_order_relaxed,
                                                               memory_order_relaxed)) { }
}

/* The elements of the fields in their bins. The last field is that of infinities and NaN; the first that of 0 and of
 * subnormals, of which those of float64 are far below the first bin. */
static void deliver_fields(survey *all, const share *s, int64_t zeros) {
  int fields = all->wide ? FIELDS_64 : FIELDS_32;
  for (int e = 0; e < fields - 1; e++) {
    int64_t n = e == 0 ? -zeros : 0;
    for (int l = 0; l < LANES; l++) n += s->fields[l * LEAP + e];
    if (e == 0 && !all->wide) continue;
    int bin = e - fields / 2 + 1 - GB_NUMERICS_LEAST;
    bin = bin < 0 ? 0 : bin < GB_NUMERICS_BINS ? bin : GB_NUMERICS_BINS - 1;
    add(&all->counts[GB_NUMERICS_FIRST_BIN + bin], n);
  }
  for (int i = 0; i < 23; i++) add(&all->counts[GB_NUMERICS_FIRST_BIN + i], s->subnormal[i]);
}

/* What a chunk found, added to the whole. */
static void deliver(survey *all, const share *s) {
  const int64_t *m = s->at_least;
  int64_t zeros = s->n - m[PRESENT];
  add(&all->counts[GB_NUMERICS_ZERO], zeros);
  add(&all->counts[GB_NUMERICS_INFINITE], m[INFINITE] - m[ABOVE_INFINITE]);
  add(&all->counts[GB_NUMERICS_NAN], m[ABOVE_INFINITE]);
  add(&all->counts[GB_NUMERICS_FLUSHED], m[PRESENT] - m[ABOVE_FLUSHED]);
  add(&all->counts[GB_NUMERICS_SUBNORMAL], m[ABOVE_FLUSHED] - m[NORMAL]);
  add(&all->counts[GB_NUMERICS_OVERFLOWED], m[OVERFLOW] - m[INFINITE]);
  deliver_fields(all, s, zeros);
  raise_to(&all->largest, s->largest);
  lower_to(&all->smallest, s->smallest);
}

static void survey_chunk(void *arg, int64_t chunk) {
  survey *all = arg;
  const gb_tiles *t = &all->tiles;
  int64_t tile = chunk * t->per_chunk, end = tile + t->per_chunk < t->tiles ? tile + t->per_chunk : t->tiles;
  double room[GB_TILE];
  share s;
  memset(&s, 0, sizeof s);
  s.smallest = INT64_MAX;
  for (; tile < end; tile++) {
    gb_tile_place place;
    gb_tile_seek(t, tile, &place);
    survey_tile(all, &s, gb_tile_read(t, 0, &place, room), place.n);
  }
  deliver(all, &s);
}

/* The number that bits of a magnitude stand for; those of no finite number count as 0. */
static double value_of(const survey *all, int64_t bits) {
  double value;
  if (bits >= all->bounds.infinity) return 0;
  if (!all->wide) return (double)gb_bits_float((uint32_t)bits);
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ====} */

/* Reads every element once; about nine comparisons and one addition each. */
static gb_status numerics(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, numerics)->x;
  survey all = { .wide = x->dtype == GB_FLOAT64, .smallest = INT64_MAX };
  gb_dtype dtype = (gb_dtype)GB_ATTRS(call, numerics)->dtype.integer;
  all.bounds = gb_numerics_bounds_of(all.wide ? GB_FLOAT64 : GB_FLOAT32, dtype);
  gb_tiles_plan(&all.tiles, &x, 1, (gb_tile_as[]){ all.wide ? GB_AS_F64 : GB_AS_F32 }, false, 1);
  all.tiles.per_chunk *= PER_CHUNK;
  all.tiles.halves = all.tiles.operand[0].flat && gb_is_16bit((gb_dtype)x->dtype);
  gb_parallel(call, (all.tiles.tiles + all.tiles.per_chunk - 1) / all.tiles.per_chunk, survey_chunk, &all);
  int64_t *counts = (int64_t *)gb_data(GB_OUT(call, numerics)->counts);
  double *range = (double *)gb_data(GB_OUT(call, numerics)->range);
  for (int i = 0; i < GB_NUMERICS_COUNTS; i++) counts[i] = atomic_load_explicit(&all.counts[i], memory_order_relaxed);
  range[GB_NUMERICS_AMAX] = value_of(&all, all.largest);
  range[GB_NUMERICS_AMIN] = value_of(&all, all.smallest);
  return GB_OK;
}

void GB_CPU_FILL(numerics)(gb_backend *backend);
void GB_CPU_FILL(numerics)(gb_backend *backend) { backend->run[GB_OP_numerics] = numerics; }
