/* cpu/gemm_kernel.c - the product of two blocks of matrices, serial: packing, and a kernel that holds a tile of c in
 * registers.
 *
 * The scheme is that of Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), as BLIS has it:
 * panels of a and b are packed so that the kernel reads both in order, and packing widens any dtype and takes any
 * strides; rows of a which are lanes already are read where they lie. It is our own because it must be called from many
 * threads at once, with scratch that was allocated before: a serial BLAS keeps its buffers in a table without a lock.
 * The kernel does 2 * MR * NR operations per MR + NR lanes read from cache; packing moves each operand once per
 * block. */
#include <string.h>

#include "base/float.h"
#include "cpu/gemm.h"
#include "cpu/wide.h"

/* Bytes of a vector register, and rows of c that the kernel holds with two registers to a row; and fewer, of which
 * there are kernels for the rows that are left. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
enum { MR = 12, SOME_ROWS = 8, FEW_ROWS = 4 };
#elif defined(__AVX__)
#define VECTOR_BYTES 32
enum { MR = 6, SOME_ROWS = 4, FEW_ROWS = 2 };
#elif defined(__aarch64__) /* 32 registers */
#define VECTOR_BYTES 16
enum { MR = 8, SOME_ROWS = 6, FEW_ROWS = 4 };
#else
#define VECTOR_BYTES 16
enum { MR = 4, SOME_ROWS = 3, FEW_ROWS = 2 };
#endif
typedef float f32x __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef double f64x __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
enum { NR_F32 = 2 * VECTOR_BYTES / 4, NR_F64 = 2 * VECTOR_BYTES / 8, MOST_LINES = NR_F32 };

/* Lanes of a cache line, and steps along k ahead of the one that is multiplied. */
enum { LINE_F32 = 64 / 4, STEPS_AHEAD = 16 };

/* Lanes that packing and products by a vector use on the way. */
enum { WORK_LANES = MOST_LINES * GB_BLOCK_K > 3 * GB_BLOCK_N ? MOST_LINES * GB_BLOCK_K : 3 * GB_BLOCK_N };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
static int columns_of(gb_lane lane) { return lane == GB_LANE_F32 ? NR_F32 : NR_F64; }

/* {==== packing ==== */

/* An operand as lines (rows of a, columns of b) that run along k. */
typedef struct lines { const char *data; gb_dtype dtype; int64_t bytes, line_stride, depth_stride; bool tf32; } lines;

static lines rows_of(const gb_matrix *m) {
  return (lines){ m->data, m->dtype, (int64_t)gb_dtype_bytes(m->dtype), m->row_stride, m->column_stride, false };
}
static lines columns_as_lines(const gb_matrix *m) {
  return (lines){ m->data, m->dtype, (int64_t)gb_dtype_bytes(m->dtype), m->column_stride, m->row_stride, false };
}

static const char *line_at(const lines *l, int64_t line, int64_t depth) {
  return l->data + (line * l->line_stride + depth * l->depth_stride) * l->bytes;
}

/* n elements from a stride apart, as lanes: where they lie if they are lanes side by side to be taken as they are, else
 * brought to work. */
static const char *run_of(gb_lane lane, const lines *l, const char *from, int64_t stride, int64_t n, char *work) {
  if (stride == 1 && l->dtype == gb_lane_dtype(lane) && !l->tf32) return from;
  gb_lane_load(lane, work, from, l->dtype, stride, n);
  float *lanes = (float *)(void *)work;
  for (int64_t i = 0; l->tf32 && i < n; i++) lanes[i] = gb_float_to_tf32(lanes[i]);
  return work;
}

/* to[p * width + i] = line[i][p] for four lines: transposed in registers. */
static void interleave_4(float *to, int64_t width, const float *const *line, int64_t depth) {
  int64_t p = 0;
  for (; p + 4 <= depth; p += 4, to += 4 * width) {
    f32x4 a = *(const f32x4 *)(line[0] + p), b = *(const f32x4 *)(line[1] + p);
    f32x4 c = *(const f32x4 *)(line[2] + p), d = *(const f32x4 *)(line[3] + p);
    f32x4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    f32x4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(f32x4 *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(f32x4 *)(to + width) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(f32x4 *)(to + 2 * width) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
    *(f32x4 *)(to + 3 * width) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
  }
  for (; p < depth; p++, to += width)
    for (int i = 0; i < 4; i++) to[i] = line[i][p];
}

static void interleave_f32(float *to, int width, const float *const *line, int64_t depth) {
  int fours = width / 4 * 4;
  for (int i = 0; i < fours; i += 4) interleave_4(to + i, width, line + i, depth);
  for (int64_t p = 0; p < depth && fours < width; p++, to += width)
    for (int i = fours; i < width; i++) to[i] = line[i][p];
}

static void interleave_f64(double *to, int width, const double *const *line, int64_t depth) {
  for (int64_t p = 0; p < depth; p++)
    for (int i = 0; i < width; i++) to[p * width + i] = line[i][p];
}

/* One panel of `width` lines whose elements along k lie together (or nowhere together). Lines from `count` on are
 * zero. */
static void pack_along_depth(gb_lane lane, const lines *l, int64_t first, int64_t count, int64_t from, int64_t depth,
                             int width, char *to,
                             char *work) {
  const void *line[MOST_LINES];
  int64_t bytes = depth * (int64_t)gb_lane_bytes(lane);
  for (int i = 0; i < width; i++) {
    char *own = work + i * bytes;
    if (i < count) line[i] = run_of(lane, l, line_at(l, first + i, from), l->depth_stride, depth, own);
    else line[i] = memset(own, 0, (size_t)bytes);
  }
  if (lane == GB_LANE_F32) interleave_f32((float *)(void *)to, width, (const float *const *)(const void *)line, depth);
  else interleave_f64((double *)(void *)to, width, (const double *const *)(const void *)line, depth);
}

/* A few lanes, 16 bytes at a time: a call of memcpy would cost more than the copy. */
static inline void copy_lanes(char *to, const char *from, size_t bytes) {
  size_t i = 0;
  for (; i + 16 <= bytes; i += 16) *(f32x4 *)(void *)(to + i) = *(const f32x4 *)(const void *)(from + i);
  for (; i < bytes; i += 4) memcpy(to + i, from + i, 4);
}

/* Runs ahead of the one that is packed: they are short and leap, so a processor's own prefetching does not follow. */
enum { RUNS_AHEAD = 8, CACHE_LINE = 64 };

/* Ask for so much memory. */
static inline void ask_for(const char *from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += CACHE_LINE) __builtin_prefetch(from + at);
}

/* All panels of lines that lie side by side: each step along k is one run, cut into the panels. */
static void pack_across(gb_lane lane, const lines *l, int64_t first, int64_t count, int64_t from, int64_t depth,
                        int width, char *to,
                        char *work) {
  size_t size = gb_lane_bytes(lane), panel = (size_t)(depth * width) * size, row = (size_t)width * size;
  for (int64_t p = 0; p < depth; p++, to += row) {
    if (p + RUNS_AHEAD < depth) ask_for(line_at(l, first, from + p + RUNS_AHEAD), count * l->bytes);
    const char *run = run_of(lane, l, line_at(l, first, from + p), 1, count, work);
    int64_t i = 0;
    char *at = to;
    for (; i + width <= count; i += width, at += panel) copy_lanes(at, run + (size_t)i * size, row);
    if (i == count) continue;
    size_t rest = (size_t)(count - i) * size;
    memcpy(at, run + (size_t)i * size, rest);
    memset(at + rest, 0, row - rest);
  }
}

#if (defined(__AVX512BW__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__F16C__))
#define HAVE_SQUARES

/* Squares of SIDE x SIDE elements, a row in a vector: to widen `count` elements (SIDE and more: all of it, others are
 * 0), to transpose, and to store the first `count`. */
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
enum { SIDE = 16 };
typedef __m512 square_row;

static inline __mmask16 first_of_16(int64_t n) { return (__mmask16)(n < 16 ? (1u << (n < 0 ? 0 : n)) - 1 : 0xffffu); }

static inline __attribute__((always_inline)) __m512 widen_row(gb_dtype dtype, const char *from, int64_t count) {
  const __mmask16 inside = first_of_16(count);
  if (dtype == GB_FLOAT32) return _mm512_maskz_loadu_ps(inside, from);
  __m256i bits = _mm256_maskz_loadu_epi16(inside, from);
  return dtype == GB_FLOAT16 ? _mm512_cvtph_ps(bits)
      : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline __attribute__((always_inline)) void store_row(float *to, __m512 x, int64_t count) {
  _mm512_mask_storeu_ps(to, first_of_16(count), x);
}

/* By 32 bits, by 64, and twice by 128. */
static inline __attribute__((always_inline)) void transpose(__m512 *t) {
  __m512 u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2)
    u[i] = _mm512_unpacklo_ps(t[i], t[i + 1]), u[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 4)
    for (int c = 0; c < 2; c++) {
      t[i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(u[i + c]), _mm512_castps_pd(u[i + c + 2])));
      t[i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(u[i + c]),
                                                             _mm512_castps_pd(u[i + c + 2])));
    }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    __m512 even = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88), odd = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd);
    __m512 even2 = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88),
        odd2 = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
    u[c] = _mm512_shuffle_f32x4(even, even2, 0x88), u[8 + c] = _mm512_shuffle_f32x4(even, even2, 0xdd);
    u[4 + c] = _mm512_shuffle_f32x4(odd, odd2, 0x88), u[12 + c] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) t[i] = u[i];
}
#else
enum { SIDE = 8 };
typedef __m256 square_row;

static inline __attribute__((always_inline)) __m256 widen_row(gb_dtype dtype, const char *from, int64_t count) {
  char some[32] = { 0 };
  if (count < SIDE) {
    for (int64_t i = 0; i < count; i++)
      memcpy(some + i * (dtype == GB_FLOAT32 ? 4 : 2), from + i * (dtype == GB_FLOAT32 ? 4 : 2),
             dtype == GB_FLOAT32 ? 4 : 2);
    from = some;
  }
  if (dtype == GB_FLOAT32) return _mm256_loadu_ps((const float *)(const void *)from);
  __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)from);
  return dtype == GB_FLOAT16 ? _mm256_cvtph_ps(bits)
      : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* Without stores by a mask, which some processors take apart. */
static inline __attribute__((always_inline)) void store_row(float *to, __m256 x, int64_t count) {
  if (count >= SIDE) { _mm256_storeu_ps(to, x); return; }
  __m128 part = _mm256_castps256_ps128(x);
  if (count & 4) {
    _mm_storeu_ps(to, part);
    part = _mm256_extractf128_ps(x, 1), to += 4;
  }
  if (count & 2) {
    _mm_storel_pi((__m64 *)(void *)to, part);
    part = _mm_movehl_ps(part, part), to += 2;
  }
  if (count & 1) _mm_store_ss(to, part);
}

/* By 32 bits, by 64, and by 128. */
static inline __attribute__((always_inline)) void transpose(__m256 *t) {
  __m256 u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2)
    u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]), u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
    for (int c = 0; c < 2; c++) {
      t[i + 2 * c] = _mm256_shuffle_ps(u[i + c], u[i + c + 2], 0x44);
      t[i + 2 * c + 1] = _mm256_shuffle_ps(u[i + c], u[i + c + 2], 0xee);
    }
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    u[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
    u[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) t[i] = u[i];
}
#endif

/* One panel of float32 from lines whose elements along k lie together, a square at a time: no float32 copy of 16-bit
 * lines comes in between. */
static inline __attribute__((always_inline)) void pack_squares_along(gb_dtype dtype, const lines *l, int64_t first,
                                                                     int64_t count, int64_t from, int64_t depth,
                                                                     int width, float *to) {
  for (int line = 0; line < width; line += SIDE) {
    for (int64_t p = 0; p < depth; p += SIDE) {
      const char *at = line_at(l, first + line, from + p);
      square_row t[SIDE];
#pragma GCC unroll 16
      for (int i = 0; i < SIDE; i++)
        t[i] = line + i < count ? widen_row(dtype, at + i * l->line_stride * l->bytes, depth - p) : (square_row){ 0 };
      transpose(t);
      float *row = to + p * width + line;
      if (depth - p >= SIDE) {
#pragma GCC unroll 16
        for (int i = 0; i < SIDE; i++) store_row(row + i * width, t[i], width - line);
      } else {
        for (int i = 0; i < depth - p; i++) store_row(row + i * width, t[i], width - line);
      }
    }
  }
}

/* All panels of lines that lie side by side. */
static inline __attribute__((always_inline)) void pack_squares_across(gb_dtype dtype, const lines *l, int64_t first,
                                                                      int64_t count, int64_t from, int64_t depth,
                                                                      int width, float *to) {
  for (int64_t p = 0; p < depth; p++, to += width) {
    const char *run = line_at(l, first, from + p);
    float *at = to;
    if (p + RUNS_AHEAD < depth) ask_for(line_at(l, first, from + p + RUNS_AHEAD), count * l->bytes);
    for (int64_t i = 0; i < count; i += width, at += depth * width)
      for (int j = 0; j < width; j += SIDE)
        store_row(at + j, widen_row(dtype, run + (i + j) * l->bytes, count - i - j), width - j);
  }
}

static inline __attribute__((always_inline)) void pack_squares_of(gb_dtype dtype, const lines *l, int64_t first,
                                                                  int64_t count, int64_t from, int64_t depth,
                                                                  int width, float *to) {
  if (l->depth_stride != 1) { pack_squares_across(dtype, l, first, count, from, depth, width, to); return; }
  for (int64_t i = 0; i < count; i += width, to += depth * width)
    pack_squares_along(dtype, l, first + i, least(width, count - i), from, depth, width, to);
}

/* The same as pack() does for any lanes, by squares; false where the lines are not of a kind that it takes. */
static bool pack_squares(gb_lane lane, const lines *l, int64_t first, int64_t count, int64_t from, int64_t depth,
                         int width, char *to) {
  float *lanes = (float *)(void *)to;
  if (lane != GB_LANE_F32 || l->tf32 || (l->depth_stride != 1 && l->line_stride != 1)) return false;
  if (l->dtype == GB_FLOAT32) pack_squares_of(GB_FLOAT32, l, first, count, from, depth, width, lanes);
  else if (l->dtype == GB_BFLOAT16) pack_squares_of(GB_BFLOAT16, l, first, count, from, depth, width, lanes);
  else if (l->dtype == GB_FLOAT16) pack_squares_of(GB_FLOAT16, l, first, count, from, depth, width, lanes);
  else return false;
  return true;
}

#endif

/* Lines first .. first + count - 1, k from .. from + depth - 1, into panels of `width` lines. */
static void pack(gb_lane lane, const lines *l, int64_t first, int64_t count, int64_t from, int64_t depth, int width,
                 char *to, char *work) {
#if defined(HAVE_SQUARES)
  if (pack_squares(lane, l, first, count, from, depth, width, to)) return;
#endif
  if (l->line_stride == 1 && (l->depth_stride != 1 || depth == 1)) {
    pack_across(lane, l, first, count, from, depth, width, to, work);
    return;
  }
  size_t panel = (size_t)(depth * width) * gb_lane_bytes(lane);
  for (int64_t i = 0; i < count; i += width, to += panel)
    pack_along_depth(lane, l, first + i, least(width, count - i), from, depth, width, to, work);
}

/* ====} */

/* {==== kernels ==== */

/* MR rows of a as the kernel reads them, lane by lane: from row to row and from step to step along k. Packed, or where
 * they lie. asks: nothing has read them yet, so that what comes next is asked for. */
typedef struct panel_rows { const char *data; int64_t row, step; bool asks; } panel_rows;

/* sum[i] += row i of a times two registers of b, or the first alone, along k; a's rows and its steps along k are that
 * far apart, one of them 1. asks: the next rows, or steps, are asked for while these are multiplied; a processor's own
 * prefetching does not follow so many short runs. */
static inline __attribute__((always_inline)) void add_products_f32(int rows, bool both, bool asks, int64_t k,
                                                                   const float *a, int64_t row, int64_t step,
                                                                   const float *b, f32x sum[MR][2]) {
  for (int64_t p = 0, end = k; p < k;) {
    if (asks && row != 1) {
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++) __builtin_prefetch(a + (rows + i) * row);
      end = least(k, p + LINE_F32);
    }
    for (; p < end; p++, a += step, b += NR_F32) {
      if (asks && row == 1) __builtin_prefetch(a + STEPS_AHEAD * step + rows - 1);
      f32x left = *(const f32x *)b, right = *(const f32x *)(b + NR_F32 / 2);
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++) {
        sum[i][0] += a[i * row] * left;
        if (both) sum[i][1] += a[i * row] * right;
      }
    }
  }
}

/* c[rows, NR] = beta * c + alpha * a @ b for a packed panel of b of depth k; without `both` the first half of the
 * columns. What c holds is asked for first: stores go to a cache in their order, and each would wait for its line. */
static inline __attribute__((always_inline)) void rows_f32(int rows, bool both, bool asks, int64_t k, float alpha,
                                                           const float *a, int64_t row, int64_t step, const float *b,
                                                           float beta, float *c, int64_t ldc) {
  f32x sum[MR][2] = { 0 };
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    __builtin_prefetch(c + i * ldc);
    if (both) __builtin_prefetch(c + i * ldc + NR_F32 / 2);
  }
  if (row == 1) add_products_f32(rows, both, asks, k, a, 1, step, b, sum);
  else add_products_f32(rows, both, asks, k, a, row, 1, b, sum);
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++, c += ldc) {
    f32x *to = (f32x *)c, *next = (f32x *)(c + NR_F32 / 2);
    *to = beta == 0 ? alpha * sum[i][0] : beta * *to + alpha * sum[i][0];
    if (both) *next = beta == 0 ? alpha * sum[i][1] : beta * *next + alpha * sum[i][1];
  }
}

/* The same for so many rows, each a function of its own for the sake of registers. */
#define ROWS_F32(name, rows, both, asks)                                                                              \
  static __attribute__((noinline)) void name(int64_t k, float alpha, const float *a, int64_t row, int64_t step,        \
                                             const float *b, float beta, float *c, int64_t ldc) {                      \
    rows_f32(rows, both, asks, k, alpha, a, row, step, b, beta, c, ldc);                                               \
  }
ROWS_F32(kernel_f32, MR, true, false)
ROWS_F32(first_kernel_f32, MR, true, true)
ROWS_F32(some_rows_f32, SOME_ROWS, true, false)
ROWS_F32(few_rows_f32, FEW_ROWS, true, false)
ROWS_F32(half_kernel_f32, MR, false, false)
ROWS_F32(half_of_some_rows_f32, SOME_ROWS, false, false)
ROWS_F32(half_of_few_rows_f32, FEW_ROWS, false, false)
#undef ROWS_F32

typedef void rows_kernel(int64_t k, float alpha, const float *a, int64_t row, int64_t step, const float *b, float beta,
                         float *c, int64_t ldc);

static void kernel_f64(int64_t k, double alpha, const double *a, const double *b, double beta, double *c, int64_t ldc) {
  f64x sum[MR][2] = { 0 };
  for (int64_t p = 0; p < k; p++, a += MR, b += NR_F64) {
    f64x left = *(const f64x *)b, right = *(const f64x *)(b + NR_F64 / 2);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) sum[i][0] += a[i] * left, sum[i][1] += a[i] * right;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++, c += ldc) {
    f64x *to = (f64x *)c, *next = (f64x *)(c + NR_F64 / 2);
    *to = beta == 0 ? alpha * sum[i][0] : beta * *to + alpha * sum[i][0];
    *next = beta == 0 ? alpha * sum[i][1] : beta * *next + alpha * sum[i][1];
  }
}

/* Rows that the kernel for `rows` of them computes. */
static int64_t kernel_rows(gb_lane lane, int64_t rows) {
  if (lane == GB_LANE_F64 || rows > SOME_ROWS) return MR;
  return rows > FEW_ROWS ? SOME_ROWS : FEW_ROWS;
}

/* Columns that the kernel for `columns` of them computes: a half of a float32 panel is quicker than all of it. */
static int64_t kernel_columns(gb_lane lane, int64_t columns) {
  return lane == GB_LANE_F32 && columns <= NR_F32 / 2 ? NR_F32 / 2 : columns_of(lane);
}

/* a: the first of so many rows, as kernel_rows has them, for as many columns as kernel_columns has. The rows go in
 * registers: a struct on the stack would be read before it is written. */
static void kernel(gb_lane lane, int64_t count, int64_t columns, int64_t k, double alpha, const panel_rows *rows,
                   const void *a, const void *b, double beta, void *c, int64_t ldc) {
  if (lane == GB_LANE_F64) { kernel_f64(k, alpha, a, b, beta, c, ldc); return; }
  const bool half = columns < NR_F32;
  rows_kernel *run = count == MR ? half ? half_kernel_f32 : rows->asks ? first_kernel_f32 : kernel_f32
      : count == SOME_ROWS ? half ? half_of_some_rows_f32 : some_rows_f32
      : half ? half_of_few_rows_f32 : few_rows_f32;
  run(k, (float)alpha, a, rows->row, rows->step, b, (float)beta, c, ldc);
}

/* beta * c + rows x columns of lanes, dense, into c. */
static void combine(gb_lane lane, int64_t rows, int64_t columns, const char *from, int64_t ld, double beta, char *c,
                    int64_t ldc) {
  size_t size = gb_lane_bytes(lane);
  for (int64_t i = 0; i < rows; i++, from += (size_t)ld * size, c += (size_t)ldc * size) {
    if (beta == 0) { copy_lanes(c, from, (size_t)columns * size); continue; }
    if (beta != 1) gb_row_scale(lane, c, columns, beta);
    gb_row_add(lane, c, from, columns, 1);
  }
}

/* rows x columns of sums, NR_F32 apart, rounded into c. */
static void round_tile(gb_dtype dtype, int64_t rows, int64_t columns, const float *from, uint16_t *c, int64_t ldc) {
  for (int64_t i = 0; i < rows; i++, from += NR_F32, c += ldc) {
    if (columns < NR_F32) gb_store_f32(c, dtype, 1, from, columns);
    else if (dtype == GB_FLOAT16) gb_narrow_f16(c, from, NR_F32);
    else gb_narrow_bf16(c, from, NR_F32);
  }
}

/* Rows of a times packed panels of b; at the edges of c, and where it is to be rounded, the kernel works beside it.
 * Rows that do not fill a kernel were packed with zeros, or are the last of as many rows that lie in a. */
static void multiply_panels(gb_lane lane, int64_t m, int64_t n, int64_t k, double alpha, panel_rows a, const char *b,
                            double beta, char *c,
                            int64_t ldc, gb_dtype dtype) {
  size_t size = gb_lane_bytes(lane);
  int nr = columns_of(lane);
  bool rounded = gb_is_16bit(dtype), in_place = a.step != MR;
  float edge[MR * NR_F32] __attribute__((aligned(64)));
  for (int64_t j = 0; j < n; j += nr, a.asks = false)
    for (int64_t i = 0; i < m; i += MR) {
      int64_t rows = least(MR, m - i), count = kernel_rows(lane, rows), back = in_place ? count - rows : 0;
      int64_t across = least(nr, n - j), wide = kernel_columns(lane, across);
      const char *panel = a.data + (in_place ? (i - back) * a.row : i * k) * (int64_t)size;
      const char *columns = b + (size_t)(j * k) * size;
      char *to = c + (size_t)(i * ldc + j) * gb_dtype_bytes(dtype);
      if (rows == count && across == wide && !rounded) {
        kernel(lane, count, wide, k, alpha, &a, panel, columns, beta, to, ldc);
        continue;
      }
      kernel(lane, count, wide, k, alpha, &a, panel, columns, 0, edge, nr);
      const char *from = (const char *)edge + (size_t)(back * nr) * size;
      if (rounded)
        round_tile(dtype, rows, across, (const float *)(const void *)from, (uint16_t *)(void *)to, ldc);
      else combine(lane, rows, across, from, nr, beta, to, ldc);
    }
}

/* Is a read where it lies? Float32 as it is, at least one panel of it, side by side one way; not where its lines are a
 * page or more apart, or steps along k a half of one: their heads would share few sets of the cache. */
static bool lies_well(gb_lane lane, const lines *a, int64_t m) {
  if (lane != GB_LANE_F32 || a->dtype != GB_FLOAT32 || a->tf32 || m < MR) return false;
  int64_t apart = a->depth_stride == 1 ? a->line_stride : a->depth_stride;
  return (a->depth_stride == 1 || a->line_stride == 1) && apart > 0 && apart < 4096 / 4 &&
      (a->depth_stride == 1 || (apart != MR && apart % (2048 / 4) != 0));
}

/* ====} */

/* {==== products by a vector ==== */

/* sums += scale * n elements of 16 bits, widened on the way; false where this level has no instruction for it. */
static bool add_16bit(float *restrict sums, const uint16_t *restrict from, gb_dtype dtype, int64_t n, float scale) {
  int64_t i = 0;
  if (dtype == GB_BFLOAT16)
    for (; i < n; i++) sums[i] += scale * gb_bfloat16_to_float(from[i]);
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
    _mm512_storeu_ps(sums + i, _mm512_fmadd_ps(_mm512_set1_ps(scale), x, _mm512_loadu_ps(sums + i)));
  }
#endif
#if defined(__F16C__) && defined(__FMA__)
  for (; i + 8 <= n; i += 8) {
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    _mm256_storeu_ps(sums + i, _mm256_fmadd_ps(_mm256_set1_ps(scale), x, _mm256_loadu_ps(sums + i)));
  }
#endif
  if (i == 0) return false;
  for (; i < n; i++) sums[i] += scale * gb_float16_to_float(from[i]);
  return true;
}

/* sums[i] += line i @ v where lines are so few vectors that a call for each would cost more. */
enum { SHORT_LINE = 8 * GB_VECTOR };

GB_ALWAYS_INLINE int add_short_lines_as(gb_dtype dtype, const char *from, int64_t apart, int64_t count, int64_t depth,
                                        const float *v, float *sums) {
  for (int64_t i = 0; i < count; i++, from += apart) {
    gb_vector sum = { 0 };
    for (int64_t p = 0; p < depth; p += GB_VECTOR)
      sum += gb_vector_load(dtype, from, p) * gb_vector_load(GB_FLOAT32, v, p);
    sums[i] += gb_vector_sum(sum);
  }
  return 0;
}
static void add_short_lines(const lines *l, const char *from, int64_t count, int64_t depth, const float *v,
                            float *sums) {
  (void)GB_WIDE_FOR(l->dtype, add_short_lines_as, from, l->line_stride * l->bytes, count, depth, v, sums);
}

/* sums[i] += line i @ v over k from .. from + depth - 1. Lines side by side are added up run by run, others are
 * dotted. */
static void add_lines(gb_lane lane, const lines *l, int64_t first, int64_t count, int64_t from, int64_t depth,
                      const char *v, char *sums,
                      char *work) {
  if (l->line_stride == 1 && l->depth_stride != 1) {
    for (int64_t p = 0; p < depth; p++) {
      const char *run = line_at(l, first, from + p);
      double scale = gb_row_get(lane, v, p);
      if (lane == GB_LANE_F32 && gb_is_16bit(l->dtype) &&
          add_16bit((float *)(void *)sums, (const uint16_t *)(const void *)run, l->dtype, count,
                    (float)scale)) continue;
      gb_row_add(lane, sums, run_of(lane, l, run, 1, count, work), count, scale);
    }
    return;
  }
  const bool single = lane == GB_LANE_F32 && (gb_is_16bit(l->dtype) || (l->dtype == GB_FLOAT32 && !l->tf32));
  if (single && l->depth_stride == 1 && depth % GB_VECTOR == 0 && depth <= SHORT_LINE) {
    add_short_lines(l, line_at(l, first, from), count, depth, (const float *)(const void *)v,
                    (float *)(void *)sums);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    double sum = gb_row_dot(lane, run_of(lane, l, line_at(l, first + i, from), l->depth_stride, depth, work), v, depth);
    gb_row_put(lane, sums, i, gb_row_get(lane, sums, i) + sum);
  }
}

/* c[i * stride] = beta * c + alpha * line i @ v, v one line: one of the operands is a vector, and nothing is packed. */
static void multiply_vector(gb_lane lane, const lines *l, int64_t count, const lines *v, int64_t k, double alpha,
                            double beta, char *c,
                            int64_t stride, char *work) {
  size_t size = gb_lane_bytes(lane);
  char *sums = work, *lanes = sums + GB_BLOCK_N * size, *run = lanes + GB_BLOCK_N * size;
  for (int64_t i = 0; i < count; i += GB_BLOCK_N) {
    int64_t n = least(GB_BLOCK_N, count - i);
    memset(sums, 0, (size_t)n * size);
    for (int64_t p = 0; p < k; p += GB_BLOCK_K) {
      int64_t depth = least(GB_BLOCK_K, k - p);
      if (gb_work(n * depth)) return;
      add_lines(lane, l, i, n, p, depth, run_of(lane, v, line_at(v, 0, p), v->depth_stride, depth, lanes), sums, run);
    }
    if (stride == 1 && beta == 0 && alpha == 1) {
      memcpy(c + (size_t)i * size, sums, (size_t)n * size);
      continue;
    }
    for (int64_t j = 0; j < n; j++) {
      double before = beta == 0 ? 0 : beta * gb_row_get(lane, c, (i + j) * stride);
      gb_row_put(lane, c, (i + j) * stride, before + alpha * gb_row_get(lane, sums, j));
    }
  }
}

/* ====} */

/* Without a unit. */
static size_t plain_scratch(gb_lane lane, int64_t m, int64_t n, int64_t k) {
  int64_t depth = least(k, GB_BLOCK_K), rows = round_up(least(m, GB_BLOCK_M), MR),
      columns = round_up(least(n, GB_BLOCK_N), columns_of(lane));
  int64_t packed = m == 1 || n == 1 ? 0 : round_up(rows * depth, 64) + round_up(columns * depth, 64);
  return (size_t)(packed + WORK_LANES) * gb_lane_bytes(lane);
}

size_t gb_block_product_scratch(gb_product_how how, gb_lane lane, int64_t m, int64_t n, int64_t k) {
  size_t bytes = plain_scratch(lane, m, n, k);
#if GB_HAVE_BF16_UNITS
  if (how.unit != GB_UNIT_NONE && lane == GB_LANE_F32) bytes += gb_bf16_product_scratch(m, n, k);
#else
  (void)how;
#endif
  return bytes;
}

void gb_block_product(gb_product_how how, gb_lane lane, int64_t m, int64_t n, int64_t k, double alpha,
                      const gb_matrix *a, const gb_matrix *b,
                      const gb_packed *packed, double beta, void *c, int64_t ldc, gb_dtype dtype, void *scratch) {
  lines rows = rows_of(a), columns = columns_as_lines(b);
  rows.tf32 = how.tf32 && lane == GB_LANE_F32 && a->dtype == GB_FLOAT32;
  columns.tf32 = how.tf32 && lane == GB_LANE_F32 && b->dtype == GB_FLOAT32;
  size_t size = gb_lane_bytes(lane);
  char *work = scratch, *a_room = work + WORK_LANES * size;
  if (m == 1 && !gb_is_16bit(dtype)) { multiply_vector(lane, &columns, n, &rows, k, alpha, beta, c, 1, work); return; }
  if (n == 1 && !gb_is_16bit(dtype))
    { multiply_vector(lane, &rows, m, &columns, k, alpha, beta, c, ldc, work); return; }
#if GB_HAVE_BF16_UNITS
  if (k > 0 && lane == GB_LANE_F32 && gb_unit_takes(how, a->dtype, b->dtype)) {
    gb_bf16_product(how, m, n, k, alpha, a, b, packed, beta, c, ldc, dtype, scratch);
    return;
  }
#endif
  int64_t most_rows = round_up(least(m, GB_BLOCK_M), MR);
  char *b_room = a_room + (size_t)round_up(most_rows * least(k, GB_BLOCK_K), 64) * size;
  for (int64_t j = 0; j < n; j += GB_BLOCK_N)
    for (int64_t p = 0; p == 0 || p < k; p += GB_BLOCK_K) { /* also once for no k at all: c = beta * c */
      int64_t across = least(GB_BLOCK_N, n - j), depth = least(GB_BLOCK_K, k - p);
      const char *b_panels = packed ? packed->data + (size_t)(p * packed->columns + (packed->first + j) * depth) * size
          : b_room;
      if (!packed) pack(lane, &columns, j, across, p, depth, columns_of(lane), b_room, work);
      for (int64_t i = 0; i < m; i += GB_BLOCK_M) {
        int64_t down = least(GB_BLOCK_M, m - i);
        if (gb_work_products(down, across, depth)) return;
        panel_rows panels = { line_at(&rows, i, p), rows.line_stride, rows.depth_stride, true };
        if (!lies_well(lane, &rows, down)) {
          pack(lane, &rows, i, down, p, depth, MR, a_room, work);
          panels = (panel_rows){ a_room, 1, MR, false };
        }
        multiply_panels(lane, down, across, depth, alpha, panels, b_panels, p == 0 ? beta : 1,
                        (char *)c + (size_t)(i * ldc + j) * gb_dtype_bytes(dtype), ldc, dtype);
      }
    }
}

size_t gb_packed_bytes(gb_product_how how, gb_lane lane, int64_t n, int64_t k) {
#if GB_HAVE_BF16_UNITS
  if (how.unit != GB_UNIT_NONE) return gb_bf16_packed_bytes(n, k);
#endif
  return (size_t)(gb_packed_columns(how, lane, n) * k) * gb_lane_bytes(lane);
}

int64_t gb_packed_columns(gb_product_how how, gb_lane lane, int64_t n) {
#if GB_HAVE_BF16_UNITS
  if (how.unit != GB_UNIT_NONE) return gb_bf16_packed_columns(n);
#else
  (void)how;
#endif
  return round_up(n, columns_of(lane));
}

void gb_pack_columns(gb_product_how how, gb_lane lane, int64_t first, int64_t count, int64_t k, const gb_matrix *b,
                     int64_t columns, void *to,
                     void *scratch) {
#if GB_HAVE_BF16_UNITS
  if (how.unit != GB_UNIT_NONE) {
    gb_bf16_pack_columns(first, count, k, b, columns, to);
    return;
  }
#endif
  lines l = columns_as_lines(b);
  l.tf32 = how.tf32 && lane == GB_LANE_F32 && b->dtype == GB_FLOAT32;
  for (int64_t p = 0; p < k; p += GB_BLOCK_K) {
    int64_t depth = least(GB_BLOCK_K, k - p);
    if (gb_work(count * depth)) return;
    pack(lane, &l, first, count, p, depth, columns_of(lane),
         (char *)to + (size_t)(p * columns + first * depth) * gb_lane_bytes(lane), scratch);
  }
}
