/* cpu/tile.c - any dtype and stride into arrays of float32, float64 or int64 and back; and the walk of tile.h.
 *
 * Conversions are those of base/formats.h, and give the bits of base/float.h. */
#include "cpu/tile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/float.h"
#include "base/philox.h"
#include "cpu/narrow.h"
#include "cpu/nontemporal.h"
#include "cpu/transpose.h"
#include "cpu/walk.h"
#include "cpu/wide.h"

/* {==== contiguous 16-bit arrays ==== */

static void widen_f16(float *to, const uint16_t *from, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4) vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
  for (; i < n; i++) to[i] = gb_float16_to_float(from[i]);
}

static void widen_bf16(float *to, const uint16_t *from, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = gb_bfloat16_to_float(from[i]);
}

/* A tile of either in the order of cpu/wide.h, where loops need no other. */
GB_ALWAYS_INLINE void widen_tile(gb_dtype dtype, float *to, const void *from, int64_t n) {
  int64_t i = 0;
  for (; i + GB_WIDE <= n; i += GB_WIDE) gb_wide_store(GB_FLOAT32, to, i, gb_wide_load(dtype, from, i), false);
  if (i < n) gb_wide_store_last(GB_FLOAT32, to, i, n - i, gb_wide_load_last(dtype, from, i, n - i, 0));
}

/* Back, past the caches if `stream`. */
GB_ALWAYS_INLINE void narrow_tile(gb_dtype dtype, void *to, const float *from, int64_t n, bool stream) {
  int64_t i = 0;
  for (; i + GB_WIDE <= n; i += GB_WIDE) {
    gb_wide x = gb_wide_load(GB_FLOAT32, from, i);
    if (dtype == GB_BFLOAT16) x = (gb_wide){ gb_vector_nan_bf16(x.a), gb_vector_nan_bf16(x.b) };
    gb_wide_store(dtype, to, i, x, stream);
  }
  if (i < n) gb_wide_store_last(dtype, to, i, n - i, gb_wide_load_last(GB_FLOAT32, from, i, n - i, 0));
}

/* ====} */

/* {==== load and store: a row per dtype ==== */

/* One row: the elements of `type` at p, each converted by `value` (of x). Two loops, since the contiguous one
 * vectorises. */
#define LOAD(DTYPE, type, value)                                                                 \
  case DTYPE: {                                                                                  \
    const type *p = from;                                                                        \
    if (stride == 1) for (int64_t i = 0; i < n; i++) { type x = p[i]; to[i] = value; }           \
    else for (int64_t i = 0; i < n; i++) { type x = p[i * stride]; to[i] = value; }              \
    return;                                                                                      \
  }
#define LOAD_F32(NAME, name, type, reading, ...) LOAD(GB_##NAME, type, (float)GB_VALUE_##reading(x))
#define LOAD_F64(NAME, name, type, reading, ...) LOAD(GB_##NAME, type, (double)GB_VALUE_##reading(x))
#define LOAD_I64(NAME, name, type, reading, category, ...) \
  LOAD(GB_##NAME, type, GB_INTEGER_##category(GB_VALUE_##reading(x)))

#define STORE(DTYPE, type, value)                                                                \
  case DTYPE: {                                                                                  \
    type *p = to;                                                                                \
    if (stride == 1) for (int64_t i = 0; i < n; i++) { p[i] = (value); }                         \
    else for (int64_t i = 0; i < n; i++) p[i * stride] = (value);                                \
    return;                                                                                      \
  }
#define STORE_F32(NAME, name, type, reading, ...) STORE(GB_##NAME, type, GB_STORED_##reading(type, f32, from[i]))
#define STORE_F64(NAME, name, type, reading, ...) STORE(GB_##NAME, type, GB_STORED_##reading(type, f64, from[i]))
#define STORE_I64(NAME, name, type, reading, ...) STORE(GB_##NAME, type, GB_STORED_##reading(type, i64, from[i]))

void gb_load_f32(float *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n) {
  if (stride == 0 && n > 1) {
    gb_load_f32(to, from, dtype, 1, 1);
    for (int64_t i = 1; i < n; i++) to[i] = to[0];
    return;
  }
  if (stride == 1 && dtype == GB_FLOAT16) { widen_f16(to, from, n); return; }
  if (stride == 1 && dtype == GB_BFLOAT16) { widen_bf16(to, from, n); return; }
  switch (dtype) {
    GB_DTYPE_LIST(LOAD_F32)
    default: return;
  }
}

void gb_load_f64(double *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n) {
  if (stride == 0 && n > 1) {
    gb_load_f64(to, from, dtype, 1, 1);
    for (int64_t i = 1; i < n; i++) to[i] = to[0];
    return;
  }
  switch (dtype) {
    GB_DTYPE_LIST(LOAD_F64)
    default: return;
  }
}

void gb_load_i64(int64_t *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n) {
  if (stride == 0 && n > 1) {
    gb_load_i64(to, from, dtype, 1, 1);
    for (int64_t i = 1; i < n; i++) to[i] = to[0];
    return;
  }
  switch (dtype) {
    GB_DTYPE_LIST(LOAD_I64)
    default: return;
  }
}

void gb_store_f32(void *to, gb_dtype dtype, int64_t stride, const float *from, int64_t n) {
  if (stride == 1 && dtype == GB_FLOAT16) { gb_narrow_f16(to, from, n); return; }
  if (stride == 1 && dtype == GB_BFLOAT16) { gb_narrow_bf16(to, from, n); return; }
  switch (dtype) {
    GB_DTYPE_LIST(STORE_F32)
    default: return;
  }
}

void gb_store_f64(void *to, gb_dtype dtype, int64_t stride, const double *from, int64_t n) {
  switch (dtype) {
    GB_DTYPE_LIST(STORE_F64)
    default: return;
  }
}

void gb_store_i64(void *to, gb_dtype dtype, int64_t stride, const int64_t *from, int64_t n) {
  switch (dtype) {
    GB_DTYPE_LIST(STORE_I64)
    default: return;
  }
}

/* One element n times, side by side: by doubling what is there. */
static void repeat_element(char *to, const char *from, int64_t n, size_t bytes) {
  if (n > 0) memcpy(to, from, bytes);
  for (int64_t done = 1; done < n; done *= 2)
    memcpy(to + done * (int64_t)bytes, to, (size_t)(2 * done <= n ? done : n - done) * bytes);
}

void gb_move_run(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t bytes, int64_t n) {
  int64_t a = to_stride * (int64_t)bytes, b = from_stride * (int64_t)bytes;
  if (to_stride == 1 && from_stride == 1) { memcpy(to, from, (size_t)n * bytes); return; }
  if (to_stride == 1 && from_stride == 0) { repeat_element(to, from, n, bytes); return; }
  switch (bytes) {
    case 1: for (int64_t i = 0; i < n; i++) to[i * a] = from[i * b]; return;
    case 2: for (int64_t i = 0; i < n; i++) memcpy(to + i * a, from + i * b, 2); return;
    case 4: for (int64_t i = 0; i < n; i++) memcpy(to + i * a, from + i * b, 4); return;
    default: for (int64_t i = 0; i < n; i++) memcpy(to + i * a, from + i * b, 8); return;
  }
}

void gb_tile_load(gb_tile_as as, void *to, const void *from, gb_dtype dtype, int64_t stride, int64_t n) {
  switch (as) {
    case GB_AS_F32: gb_load_f32(to, from, dtype, stride, n); return;
    case GB_AS_F64: gb_load_f64(to, from, dtype, stride, n); return;
    case GB_AS_I64: gb_load_i64(to, from, dtype, stride, n); return;
    case GB_AS_BYTE: case GB_AS_RAW: gb_move_run(to, 1, from, stride, gb_dtype_bytes(dtype), n); return;
  }
}

void gb_tile_store(gb_tile_as as, void *to, gb_dtype dtype, int64_t stride, const void *from, int64_t n) {
  switch (as) {
    case GB_AS_F32: gb_store_f32(to, dtype, stride, from, n); return;
    case GB_AS_F64: gb_store_f64(to, dtype, stride, from, n); return;
    case GB_AS_I64: gb_store_i64(to, dtype, stride, from, n); return;
    case GB_AS_BYTE: case GB_AS_RAW: gb_move_run(to, stride, from, 1, gb_dtype_bytes(dtype), n); return;
  }
}

/* ====} */

/* {==== planning ==== */

/* The operand is stored as the loop sees it. */
static bool is_native(const gb_tile_operand *o) {
  static const gb_dtype native[] = { GB_FLOAT32, GB_FLOAT64, GB_INT64, GB_BOOL };
  return o->as == GB_AS_RAW || o->dtype == native[o->as];
}

static bool same_numbers(int n, const int64_t *a, const int64_t *b) {
  for (int i = 0; i < n; i++)
    if (a[i] != b[i]) return false;
  return true;
}

/* Operand k is walked in step with the result: the same shape, and both row-major, or (where order does not matter) the
 * same strides. */
static bool in_step(const gb_tensor *out, bool out_contiguous, const gb_tensor *x, bool logical) {
  if (x->ndim != out->ndim || !same_numbers(out->ndim, x->shape, out->shape)) return false;
  if (out_contiguous) return gb_is_contiguous(x);
  return !logical && same_numbers(out->ndim, x->stride, out->stride);
}

/* Most calls: every operand is a constant or in step with a dense result. Then the walk is one row. */
static bool plan_flat(gb_tiles *t, gb_tensor *const *tensors, bool logical) {
  const gb_tensor *out = tensors[0];
  bool contiguous = gb_is_contiguous(out);
  if (!contiguous && (logical || !gb_is_dense(out))) return false;
  for (int k = 1; k < t->count; k++)
    if (!t->operand[k].constant && !in_step(out, contiguous, tensors[k], logical)) return false;
  for (int k = 0; k < t->count; k++) {
    t->operand[k].flat = !t->operand[k].constant;
    t->operand[k].stride[0] = t->operand[k].flat;
  }
  t->ndim = 1;
  t->shape[0] = t->numel;
  return true;
}

/* The dims of a shape other than 1, in the order of the walk: as they are, or by falling stride of the result. */
static int order_dims(int ndim, const int64_t *shape, const int64_t *stride, bool logical, int *order) {
  int n = 0;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 1) continue;
    int at = n++;
    for (; !logical && at > 0 && stride[order[at - 1]] < stride[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
  return n;
}

/* Dim d continues the last planned dim for every operand, so that both are one. */
static bool continues(const gb_tiles *t, int64_t strides[][GB_MAX_NDIM], int d, int64_t size) {
  for (int k = 0; k < t->count; k++)
    if (t->operand[k].stride[t->ndim - 1] != strides[k][d] * size) return false;
  return true;
}

/* Any walk, by the strides of each operand over a shape: order the dims, merge neighbours, and see which operands
 * happen to be in one piece. */
static void plan_strided(gb_tiles *t, int ndim, const int64_t *shape, int64_t strides[][GB_MAX_NDIM], bool logical) {
  int order[GB_MAX_NDIM], n = order_dims(ndim, shape, strides[0], logical, order);
  t->ndim = 0;
  for (int i = 0; i < n; i++) {
    int d = order[i];
    bool merge = t->ndim > 0 && continues(t, strides, d, shape[d]);
    if (!merge) t->shape[t->ndim++] = 1;
    t->shape[t->ndim - 1] *= shape[d];
    for (int k = 0; k < t->count; k++) t->operand[k].stride[t->ndim - 1] = strides[k][d];
  }
  if (t->ndim == 0) {
    t->shape[t->ndim++] = t->numel;
    for (int k = 0; k < t->count; k++) t->operand[k].stride[0] = 0;
  }
  for (int k = 0; k < t->count; k++) {
    gb_tile_operand *o = &t->operand[k];
    int64_t expected = 1;
    o->flat = !o->constant;
    for (int d = t->ndim - 1; d >= 0; d--) {
      o->flat &= o->stride[d] == expected;
      expected *= t->shape[d];
    }
  }
}

/* Rows long enough are cut for themselves, so that tiles lie in one piece; short ones share tiles. */
static void cut(gb_tiles *t, int64_t cost) {
  int64_t inner = t->shape[t->ndim - 1];
  t->row = t->ndim > 1 && inner >= GB_TILE / 4 ? inner : t->numel;
  t->per_row = (t->row + GB_TILE - 1) / GB_TILE;
  t->tiles = t->numel ? t->numel / t->row * t->per_row : 0;
  int64_t size = t->row < GB_TILE ? t->row : GB_TILE;
  t->per_chunk = size * cost < GB_TILE_CHUNK ? GB_TILE_CHUNK / ((size ? size : 1) * cost) : 1;
}

/* Operand k, which has `numel` elements. */
static void describe(gb_tiles *t, int k, char *data, gb_dtype dtype, gb_tile_as as, int64_t numel) {
  gb_tile_operand *o = &t->operand[k];
  o->data = data;
  o->dtype = dtype;
  o->as = as;
  o->through = GB_DTYPE_NONE;
  o->constant = k > 0 && numel == 1;
}

void gb_tiles_plan(gb_tiles *t, gb_tensor *const *tensors, int count, const gb_tile_as *as, bool logical,
                   int64_t cost) {
  const gb_tensor *out = tensors[0];
  t->count = count;
  t->numel = out->numel;
  for (int k = 0; k < count; k++)
    describe(t, k, gb_data(tensors[k]), (gb_dtype)tensors[k]->dtype, as[k], tensors[k]->numel);
  if (!plan_flat(t, tensors, logical)) {
    int64_t strides[GB_TILE_OPERANDS][GB_MAX_NDIM];
    for (int k = 0; k < count; k++) gb_broadcast_strides(tensors[k], out->ndim, out->shape, strides[k]);
    plan_strided(t, out->ndim, out->shape, strides, logical);
  }
  t->streams = t->halves = false;
  t->logical = logical;
  t->cost = cost;
  cut(t, cost);
}

void gb_tiles_plan_copy(gb_tiles *t, int ndim, const int64_t *shape, char *to, gb_dtype to_dtype,
                        const int64_t *to_strides, const char *from,
                        gb_dtype from_dtype, const int64_t *from_strides) {
  gb_tile_as as = to_dtype == from_dtype ? GB_AS_RAW : gb_tile_as_of(from_dtype);
  int64_t strides[2][GB_MAX_NDIM];
  memcpy(strides[0], to_strides, (size_t)ndim * sizeof **strides);
  memcpy(strides[1], from_strides, (size_t)ndim * sizeof **strides);
  t->count = 2;
  t->numel = 1;
  for (int d = 0; d < ndim; d++) t->numel *= shape[d];
  describe(t, 0, to, to_dtype, as, t->numel);
  describe(t, 1, (char *)(uintptr_t)from, from_dtype, as, t->numel);
  plan_strided(t, ndim, shape, strides, false);
  t->streams = t->halves = t->logical = false;
  t->cost = 1;
  cut(t, 1);
}

/* ====} */

/* {==== walking ==== */

void gb_tile_seek(const gb_tiles *t, int64_t tile, gb_tile_place *place) {
  int64_t row = tile / t->per_row, column = tile % t->per_row * GB_TILE, left = t->row - column;
  place->first = row * t->row + column;
  place->n = left < GB_TILE ? left : GB_TILE;
  int64_t rest = place->first;
  for (int d = t->ndim - 1; d > 0; d--) {
    place->at[d] = rest % t->shape[d];
    rest /= t->shape[d];
  }
  place->at[0] = rest;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static size_t bytes_of(const gb_tile_operand *o) { return gb_dtype_bytes(o->dtype); }

/* Where an operand's element at a position lies. */
static char *address(const gb_tiles *t, const gb_tile_operand *o, const int64_t *at) {
  int64_t offset = 0;
  for (int d = 0; d < t->ndim; d++) offset += at[d] * o->stride[d];
  return o->data + offset * (int64_t)bytes_of(o);
}

/* The tile lies in one row of the walk, or the operand is in one piece anyway: elements are `*stride` apart. */
static bool is_one_run(const gb_tiles *t, const gb_tile_operand *o, const gb_tile_place *place, int64_t *stride) {
  int last = t->ndim - 1;
  *stride = o->flat ? 1 : o->stride[last];
  return o->flat || place->at[last] + place->n <= t->shape[last];
}

/* Each of n elements, `step` bytes apart, `times` times: what a small broadcast dim at the end is, as in nearest
 * upsampling. As runs of their own such rows would cost a call for two or three elements. Where numbers are constants,
 * the compiler makes vectors of it. */
#define SPREAD(type, step, times) \
  for (int64_t i = 0; i < n; i++) { \
    type element; \
    memcpy(&element, from + i * (step), sizeof element); \
    for (int64_t k = 0; k < (times); k++) memcpy(to + (i * (times) + k) * (int64_t)sizeof element, &element, \
        sizeof element); \
  }
#define SPREAD_TYPE(type)                                                       \
  if (times == 2 && step == (int64_t)sizeof(type)) SPREAD(type, (int64_t)sizeof(type), 2) \
  else if (times == 2) SPREAD(type, step, 2)                                    \
  else if (times == 3) SPREAD(type, step, 3)                                    \
  else if (times == 4) SPREAD(type, step, 4)                                    \
  else SPREAD(type, step, times)                                                \
  return;
static void spread(char *restrict to, const char *restrict from, int64_t step, size_t bytes, int64_t times, int64_t n) {
  switch (bytes) {
    case 1: SPREAD_TYPE(uint8_t)
    case 2: SPREAD_TYPE(uint16_t)
    case 4: SPREAD_TYPE(uint32_t)
    default: SPREAD_TYPE(uint64_t)
  }
}
#undef SPREAD_TYPE
#undef SPREAD

/* Bring a tile that crosses rows into one piece (scatter: out of it), as it is stored. */
static void copy_rows(const gb_tiles *t, const gb_tile_operand *o, const gb_tile_place *place, char *piece,
                      bool scatter) {
  int last = t->ndim - 1, above = last - 1;
  size_t bytes = bytes_of(o);
  int64_t at[GB_MAX_NDIM], stride = o->stride[last], size = (int64_t)bytes;
  bool repeats = !scatter && stride == 0;
  memcpy(at, place->at, sizeof at);
  for (int64_t done = 0, run; done < place->n;) {
    char *own = address(t, o, at);
    int64_t whole = repeats && at[last] == 0 ? least(t->shape[above] - at[above], (place->n - done) / t->shape[last])
        : 0;
    if (whole > 0) {
      spread(piece, own, o->stride[above] * size, bytes, t->shape[last], whole);
      own += whole * o->stride[above] * size;
      at[above] += whole;
      done += run = whole * t->shape[last];
      piece += run * size;
    }
    for (; at[above] < t->shape[above] && done < place->n; at[above]++, at[last] = 0, done += run, piece += run * size)
      {
      run = least(t->shape[last] - at[last], place->n - done);
      if (scatter) gb_move_run(own, stride, piece, 1, bytes, run);
      else gb_move_run(piece, 1, own, stride, bytes, run);
      own += (o->stride[above] - at[last] * stride) * size;
    }
    for (int d = above; d > 0 && at[d] == t->shape[d]; d--) at[d] = 0, at[d - 1]++;
  }
}

/* n elements at `from` as the loop sees them: where they are, or in room. */
static const void *seen(const gb_tiles *t, const gb_tile_operand *o, const char *from, int64_t stride, int64_t n,
                        void *room) {
  if (stride == 1 && is_native(o)) return from;
  if (t->halves) GB_WIDE_FOR(o->dtype, widen_tile, room, from, n);
  else gb_tile_load(o->as, room, from, o->dtype, stride, n);
  return room;
}

const void *gb_tile_read(const gb_tiles *t, int operand, const gb_tile_place *place, void *room) {
  const gb_tile_operand *o = &t->operand[operand];
  bool native = is_native(o);
  int64_t stride;
  if (is_one_run(t, o, place, &stride))
    return seen(t, o, o->flat ? o->data + place->first * (int64_t)bytes_of(o) : address(t, o, place->at), stride,
                place->n, room);
  double piece[GB_TILE];
  copy_rows(t, o, place, native ? room : (char *)piece, false);
  if (!native) gb_tile_load(o->as, room, piece, o->dtype, 1, place->n);
  return room;
}

void *gb_tile_target(const gb_tiles *t, const gb_tile_place *place, void *room) {
  const gb_tile_operand *o = &t->operand[0];
  int64_t stride;
  if (t->streams || !is_native(o) || !is_one_run(t, o, place, &stride) || stride != 1) return room;
  return o->flat ? o->data + place->first * (int64_t)bytes_of(o) : address(t, o, place->at);
}

void gb_tile_write(const gb_tiles *t, const gb_tile_place *place, const void *from) {
  const gb_tile_operand *o = &t->operand[0];
  int64_t stride;
  if (is_one_run(t, o, place, &stride)) {
    char *to = o->flat ? o->data + place->first * (int64_t)bytes_of(o) : address(t, o, place->at);
    if (t->halves) GB_WIDE_FOR(o->dtype, narrow_tile, to, from, place->n, t->streams && gb_vector_aligned(to));
    else if (t->streams) gb_stream(to, from, (size_t)place->n * bytes_of(o));
    else if (to != from) gb_tile_store(o->as, to, o->dtype, stride, from, place->n);
    return;
  }
  bool native = is_native(o);
  double piece[GB_TILE];
  if (!native) gb_tile_store(o->as, piece, o->dtype, 1, from, place->n);
  copy_rows(t, o, place, native ? (char *)(uintptr_t)from : (char *)piece, true);
}

/* One element for the whole walk, repeated as often as a tile is long. */
static void read_constant(const gb_tiles *t, int operand, void *room) {
  const gb_tile_operand *o = &t->operand[operand];
  int64_t n = t->numel < GB_TILE ? t->numel : GB_TILE;
  if (o->through == GB_DTYPE_NONE) { gb_tile_load(o->as, room, o->data, o->dtype, 0, n); return; }
  double middle;
  gb_tile_load(o->as, room, o->data, o->dtype, 0, 1);
  gb_tile_store(o->as, &middle, o->through, 1, room, 1);
  gb_tile_load(o->as, room, &middle, o->through, 0, n);
}

/* One tile: every operand's elements (those of piece[k] lie there, side by side), the loop, the result. A copy has no
 * loop. */
static void run_tile(const gb_tile_job *job, const gb_tile_place *place, const char *const *piece, const void **in,
                     double (*room)[GB_TILE]) {
  const gb_tiles *t = &job->tiles;
  void *out = gb_tile_target(t, place, room[0]);
  for (int k = 1; k < t->count; k++) {
    void *own = job->loop ? room[k] : out;
    if (piece && piece[k]) in[k - 1] = seen(t, &t->operand[k], piece[k], 1, place->n, own);
    else if (!t->operand[k].constant) in[k - 1] = gb_tile_read(t, k, place, own);
  }
  if (job->loop) job->loop(job, place, out, in);
  gb_tile_write(t, place, job->loop ? out : in[0]);
}

/* Point `in` at what constants are for the whole walk. */
static void read_constants(const gb_tiles *t, const void **in, double (*room)[GB_TILE]) {
  for (int k = 1; k < t->count; k++) {
    in[k - 1] = room[k];
    if (t->operand[k].constant) read_constant(t, k, room[k]);
  }
}

static void run_chunk(void *arg, int64_t chunk) {
  const gb_tile_job *job = arg;
  const gb_tiles *t = &job->tiles;
  double room[GB_TILE_OPERANDS][GB_TILE];
  const void *in[GB_TILE_OPERANDS];
  int64_t tile = chunk * t->per_chunk, end = least(tile + t->per_chunk, t->tiles);
  read_constants(t, in, room);
  for (; tile < end; tile++) {
    gb_tile_place place;
    gb_tile_seek(t, tile, &place);
    run_tile(job, &place, NULL, in, room);
  }
  if (t->streams) gb_nontemporal_end();
}

/* ====} */

/* {==== boxes: where an operand lies in another order than the result ==== */

/* A walk by boxes of rows along one dim (`down`) and columns along the last, which follow one another as such an
 * operand lies in memory. Those whose memory runs along the rows' dim are turned, a box at a time, into scratch from
 * which rows are read; so a run of theirs is read whole. Where none does, but rows are short and leap, a box is a tile
 * of whole rows. 64 MB transposed or permuted cost so what they cost straight; read in the result's order, two to three
 * times that. */
typedef struct boxes {
  const gb_tile_job *job;
  int down;
  int64_t rows, columns;
  int order[GB_MAX_NDIM], n;       /* dims that boxes are counted along, the innermost first */
  int64_t count, per_chunk;
  bool joined;                     /* a box is one run of the walk */
  int turned;                      /* operands, each in `bytes` of scratch per thread */
  bool turns[GB_TILE_OPERANDS];
  size_t bytes;
  char *scratch;
  gb_threads *threads;
  bool alone;                      /* all boxes on this thread, since it runs a chunk of another job */
} boxes;

/* A box's sides in bytes and at most in elements, half of that where a walk is not large: runs of 1 KiB are read nearly
 * as fast as memory in order. */
enum { SIDE_BYTES = 1024, SIDE = 512, LARGE_WALK = 1 << 20 };

/* What a box has of dim d, and boxes along it. */
static int64_t side_of(const boxes *b, int d) { return d == b->down ? b->rows : d == b->job->tiles.ndim - 1 ? b->columns
                                                : 1; }
static int64_t boxes_along(const boxes *b, int d) { return (b->job->tiles.shape[d] + side_of(b, d) - 1) /
                                                    side_of(b, d); }

/* Where a box begins, and its rows and columns. */
static void seek_box(const boxes *b, int64_t box, int64_t *at, int64_t *rows, int64_t *columns) {
  const gb_tiles *t = &b->job->tiles;
  int last = t->ndim - 1;
  for (int i = 0; i < b->n; i++) {
    int d = b->order[i];
    at[d] = box % boxes_along(b, d) * side_of(b, d);
    box /= boxes_along(b, d);
  }
  *rows = least(b->rows, t->shape[b->down] - at[b->down]);
  *columns = least(b->columns, t->shape[last] - at[last]);
}

/* The number of a position in the walk. */
static int64_t number_of(const gb_tiles *t, const int64_t *at) {
  int64_t number = 0;
  for (int d = 0; d < t->ndim; d++) number = number * t->shape[d] + at[d];
  return number;
}

/* Ask for a row to come of the operands that are read where they lie: they leap from row to row, which no processor
 * foresees. */
static void ask_ahead(const boxes *b, const gb_tile_place *place) {
  enum { AHEAD = 4, LINE = 64 };
  const gb_tiles *t = &b->job->tiles;
  for (int k = 1; k < t->count; k++) {
    const gb_tile_operand *o = &t->operand[k];
    if (b->turns[k] || o->constant) continue;
    uintptr_t at = (uintptr_t)address(t, o, place->at) + (uintptr_t)(AHEAD * o->stride[b->down]) * bytes_of(o);
    for (uintptr_t i = 0; i < (uintptr_t)place->n * bytes_of(o); i += LINE) __builtin_prefetch((const void *)(at + i));
  }
}

static void run_box(const boxes *b, int64_t box, const void **in, double (*room)[GB_TILE]) {
  const gb_tiles *t = &b->job->tiles;
  int last = t->ndim - 1;
  char *scratch = b->turned ? b->scratch + b->bytes *
      (size_t)(b->turned * (b->alone ? 0 : gb_threads_current(b->threads))) : NULL;
  char *turned[GB_TILE_OPERANDS] = { 0 };
  gb_tile_place place;
  int64_t start[GB_MAX_NDIM], rows, columns;
  seek_box(b, box, start, &rows, &columns);
  for (int k = 1; k < t->count; k++) {
    const gb_tile_operand *o = &t->operand[k];
    int64_t bytes = (int64_t)bytes_of(o);
    if (!b->turns[k]) continue;
    turned[k] = scratch;
    gb_transpose(scratch, columns * bytes, address(t, o, start), o->stride[last] * bytes, columns, rows, (size_t)bytes);
    scratch += b->bytes;
  }
  memcpy(place.at, start, sizeof start);
  for (int64_t e = 0; e < rows * columns; e += place.n) {
    const char *piece[GB_TILE_OPERANDS];
    place.n = least(b->joined ? GB_TILE : columns, rows * columns - e);
    place.at[b->down] = start[b->down] + e / columns;
    place.at[last] = start[last] + e % columns;
    place.first = number_of(t, place.at);
    if (!b->joined) ask_ahead(b, &place);
    for (int k = 1; k < t->count; k++) piece[k] = turned[k] ? turned[k] + e * (int64_t)bytes_of(&t->operand[k]) : NULL;
    run_tile(b->job, &place, piece, in, room);
  }
}

static void run_boxes(void *arg, int64_t chunk) {
  const boxes *b = arg;
  double room[GB_TILE_OPERANDS][GB_TILE];
  const void *in[GB_TILE_OPERANDS];
  int64_t box = chunk * b->per_chunk, end = least(box + b->per_chunk, b->count);
  read_constants(&b->job->tiles, in, room);
  for (; box < end; box++) run_box(b, box, in, room);
  if (b->job->tiles.streams) gb_nontemporal_end();
}

/* The dim along which an operand's memory runs while the walk's last dim leaps; -1 if there is none. */
static int dim_down(const gb_tiles *t, int k) {
  int last = t->ndim - 1;
  const gb_tile_operand *o = &t->operand[k];
  if (o->constant || o->stride[last] == 0 || o->stride[last] == 1) return -1;
  for (int d = last - 1; d >= 0; d--)
    if (o->stride[d] == 1) return d;
  return -1;
}

/* Count boxes along the dims as operand k lies in memory. */
static void order_boxes(boxes *b, int k) {
  const gb_tiles *t = &b->job->tiles;
  const int64_t *stride = t->operand[k].stride;
  b->n = 0;
  b->count = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    int at = b->n++;
    int64_t step = llabs(stride[d]) * side_of(b, d);
    for (; at > 0 && llabs(stride[b->order[at - 1]]) * side_of(b, b->order[at - 1]) > step; at--)
      b->order[at] = b->order[at - 1];
    b->order[at] = d;
    b->count *= boxes_along(b, d);
  }
}

/* Boxes of an operand that runs along dim `down`, and of all others that do; columns lie in one piece unless they are
 * too few. */
static bool plan_turns(boxes *b, int first, int down) {
  const gb_tiles *t = &b->job->tiles;
  int last = t->ndim - 1;
  if (down < last - 1 && t->shape[last] < 32) return false;
  int64_t side = least(SIDE_BYTES / (int64_t)bytes_of(&t->operand[first]), SIDE) / (t->numel < LARGE_WALK ? 2 : 1);
  b->down = down;
  b->columns = least(t->shape[last], side);
  b->rows = least(t->shape[down], side * side / b->columns);
  if (b->rows * b->columns < GB_TILE / 16) return false;
  for (int k = 1; k < t->count; k++) {
    b->turns[k] = dim_down(t, k) == down;
    b->turned += b->turns[k];
    if (b->turns[k] && bytes_of(&t->operand[k]) > b->bytes) b->bytes = bytes_of(&t->operand[k]);
  }
  b->bytes *= (size_t)(b->rows * b->columns);
  return true;
}

/* Boxes of short rows that an operand has in another order. */
static bool plan_leaps(boxes *b, int first) {
  const gb_tiles *t = &b->job->tiles;
  int last = t->ndim - 1;
  if (last < 2 || t->numel < GB_TILE_CHUNK || t->row < t->numel || t->operand[first].flat) return false;
  b->down = last - 1;
  b->columns = t->shape[last];
  b->rows = least(t->shape[last - 1], GB_TILE / b->columns);
  return b->rows * b->columns >= GB_TILE / 4;
}

/* Is any operand worth boxes? Then plan them. */
static bool plan_boxes(boxes *b, const gb_tile_job *job) {
  const gb_tiles *t = &job->tiles;
  int last = t->ndim - 1, first = 0, down = -1;
  *b = (boxes){ .job = job };
  if (t->logical || t->numel < GB_TILE || last == 0) return false;
  for (int k = 1; k < t->count && down < 0; k++) {
    if (t->operand[k].constant || (first && t->operand[k].flat)) continue;
    first = k;
    down = dim_down(t, k);
  }
  if (first == 0 || !(down < 0 ? plan_leaps(b, first) : plan_turns(b, first, down))) return false;
  b->joined = b->down == last - 1 && b->columns == t->shape[last];
  order_boxes(b, first);
  int64_t cost = b->rows * b->columns * t->cost;
  b->per_chunk = cost < GB_TILE_CHUNK ? GB_TILE_CHUNK / cost : 1;
  return true;
}

/* ====} */

/* {==== running ==== */

/* The result is flat and of 16 bits, computed as float32 from the same and from constants, in any order. */
static bool are_halves(const gb_tiles *t, const bool *turns) {
  const gb_tile_operand *out = &t->operand[0];
  if (t->logical || (out->dtype != GB_FLOAT16 && out->dtype != GB_BFLOAT16)) return false;
  for (int k = 0; k < t->count; k++) {
    const gb_tile_operand *o = &t->operand[k];
    if (o->as != GB_AS_F32 || (!o->constant && (!(o->flat || turns[k]) || o->dtype != out->dtype))) return false;
  }
  return true;
}

/* The result fills a cache, lies as the loop sees it or in halves, and none of it was read. A straight copy is left to
 * memcpy, which decides by itself. */
static bool should_stream(const gb_tile_job *job, bool boxed) {
  const gb_tiles *t = &job->tiles;
  const gb_tile_operand *out = &t->operand[0];
  if (!out->flat || !(is_native(out) || t->halves) || (size_t)t->numel * bytes_of(out) < GB_NONTEMPORAL_BYTES)
    return false;
  for (int k = 1; k < t->count; k++)
    if (t->operand[k].data == out->data) return false;
  return job->loop || boxed;
}

/* Scratch comes straight from the pool: this may run inside a chunk, on any thread, where neither the error text may be
 * written nor memory reclaimed. */
void gb_tiles_run(const gb_op_call *call, gb_tile_job *job) {
  gb_tiles *t = &job->tiles;
  boxes b;
  gb_block *scratch = NULL;
  bool boxed = plan_boxes(&b, job);
  if (boxed && b.turned > 0) {
    b.threads = call->context->threads;
    b.alone = gb_threads_is_alone(b.threads);
    size_t rooms = (size_t)(b.alone ? 1 : gb_threads_count(b.threads));
    scratch = gb_pool_alloc(call->context->pool[GB_CPU], b.bytes * (size_t)b.turned * rooms, GB_MEM_SCRATCH);
    if (scratch) b.scratch = gb_block_data(scratch);
    else boxed = false; /* short of memory, a walk of runs does it too */
  }
  if (!boxed) memset(b.turns, 0, sizeof b.turns);
  t->halves = are_halves(t, b.turns);
  t->streams = should_stream(job, boxed);
  if (boxed) gb_parallel(call, (b.count + b.per_chunk - 1) / b.per_chunk, run_boxes, &b);
  else gb_parallel(call, (t->tiles + t->per_chunk - 1) / t->per_chunk, run_chunk, job);
  if (scratch) gb_cpu_scratch_free(call, scratch);
}

/* ====} */

/* {==== random words ==== */

#define LANES 32

/* A vector of 64-bit lanes, and the product of their lower halves: Philox needs no more, and what the upper halves hold
 * never matters. */
#if defined(__AVX512F__)
typedef __m512i wide;
static inline wide product(wide a, wide b) { return _mm512_mul_epu32(a, b); }
#elif defined(__AVX2__)
typedef __m256i wide;
static inline wide product(wide a, wide b) { return _mm256_mul_epu32(a, b); }
#endif

#if defined(__AVX2__)
#define WIDTH (int)(sizeof(wide) / 8)

/* LANES consecutive blocks of Philox at once: base/philox.h with a block per lane. */
static void philox_lanes(uint64_t seed, uint64_t offset, uint64_t index, uint32_t out[4 * LANES]) {
  typedef uint64_t lanes __attribute__((vector_size(sizeof(wide))));
  lanes c0[LANES / WIDTH], c1[LANES / WIDTH], c2[LANES / WIDTH], c3[LANES / WIDTH], zero = { 0 };
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int v = 0; v < LANES / WIDTH; v++) {
    c0[v] = zero + index;
    for (int l = 0; l < WIDTH; l++) c0[v][l] += (uint64_t)(v * WIDTH + l);
    c1[v] = c0[v] >> 32, c2[v] = zero + offset, c3[v] = zero + (offset >> 32);
  }
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int v = 0; v < LANES / WIDTH; v++) {
      lanes p0 = (lanes)product((wide)c0[v], (wide)(zero + 0xD2511F53u)),
          p1 = (lanes)product((wide)c2[v], (wide)(zero + 0xCD9E8D57u));
      c0[v] = (p1 >> 32) ^ c1[v] ^ k0, c2[v] = (p0 >> 32) ^ c3[v] ^ k1;
      c1[v] = p1, c3[v] = p0;
    }
  for (int v = 0; v < LANES / WIDTH; v++) {
    lanes first = (c0[v] & 0xffffffffu) | (c1[v] << 32), second = (c2[v] & 0xffffffffu) | (c3[v] << 32);
    for (int l = 0; l < WIDTH; l++) {
      memcpy(out + 4 * (v * WIDTH + l), &(uint64_t){ first[l] }, 8);
      memcpy(out + 4 * (v * WIDTH + l) + 2, &(uint64_t){ second[l] }, 8);
    }
  }
}
#else
/* LANES consecutive blocks of Philox. */
static void philox_lanes(uint64_t seed, uint64_t offset, uint64_t index, uint32_t out[4 * LANES]) {
  for (uint32_t l = 0; l < LANES; l++) gb_philox(seed, offset, index + l, out + 4 * l);
}
#endif

void gb_random_words(uint32_t *to, uint64_t seed, uint64_t offset, int64_t first, int64_t n) {
  uint32_t words[4 * LANES];
  int64_t skip = first % 4;
  for (int64_t done = 0, block = first / 4; done < n; block += LANES, skip = 0) {
    if (n - done <= 8) {
      gb_philox(seed, offset, (uint64_t)block, words);
      if (skip + n - done > 4) gb_philox(seed, offset, (uint64_t)block + 1, words + 4);
      if (skip + n - done > 8) gb_philox(seed, offset, (uint64_t)block + 2, words + 8);
    } else philox_lanes(seed, offset, (uint64_t)block, words);
    int64_t run = 4 * LANES - skip < n - done ? 4 * LANES - skip : n - done;
    memcpy(to + done, words + skip, (size_t)run * sizeof *to);
    done += run;
  }
}

/* ====} */
