/* cpu/gemm_bf16.c - products of 16-bit operands by the processor's own bfloat16 instructions, serial: AMX tiles, or
 * AVX512_BF16's dot products.
 *
 * Both multiply pairs of bfloat16 exactly and add in float32, but take what is below 2^-126 for zero, in operands and
 * in sums. The numbers must not depend on that: packing looks at every operand, and a block in which anything could
 * become that small goes the way of gemm_kernel.c. That is known beforehand: where the last bits of all elements of a
 * are worth at least x, and those of b y, every product and every rounded sum is 0 or at least x * y. What is left is
 * another order of the sums. float16 is split into two bfloat16 numbers, of 8 and of 3 bits, exactly; their four
 * products are exact too and cannot be small (2^-48), but an infinity times the 0 of a second part would be NaN: blocks
 * with infinities or NaN take the other way. Four products of tiles are still several times as fast as float32; four
 * dot products are not.
 *
 * Packed operands are tiles of 16 lines (rows of a, columns of b) by 32 steps along k, 1 KiB each. Tiles of a hold line
 * after line. Tiles of b, as the instructions want them, hold pairs: two steps of line 0, of line 1 and so on, then the
 * next two steps. */
#include "cpu/gemm.h"

#if GB_HAVE_BF16_UNITS

#include <immintrin.h>
#include <string.h>

#include "cpu/narrow.h"

/* Lines and steps of a tile, its elements, and lines of the two tiles that a kernel takes from either side. */
enum { LINES = 16, STEPS = 32, TILE_ELEMENTS = LINES * STEPS, SIDE = 2 * LINES };
/* Blocks that packed panels cover: 256 KiB of a, 512 KiB of b. Depth is halved where elements have two parts. */
enum { BLOCK_M = 256, BLOCK_N = GB_BLOCK_N, BLOCK_K = 512 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/* {==== packing ==== */

/* An operand as lines that run along k. */
typedef struct operand {
  const uint16_t *data;
  int64_t line_stride, depth_stride;
  int parts;                       /* 2: float16, to be split */
  bool pairs;                      /* tiles are wanted as b has them */
} operand;

/* What was seen while packing, in every lane: the smallest magnitude but 0, less 1, and the largest, as bits. */
typedef struct sizes { __m512i smallest, largest; } sizes;

static inline sizes nothing_seen(void) { return (sizes){ _mm512_set1_epi16(-1), _mm512_setzero_si512() }; }

static inline void look(sizes *s, __m512i x) {
  __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
  s->smallest = _mm512_min_epu16(s->smallest, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
  s->largest = _mm512_max_epu16(s->largest, magnitude);
}

/* A 16 x 16 matrix of pairs, transposed: lines become pairs and pairs lines. */
static inline void transpose(__m512i *t) {
  __m512i u[LINES];
#pragma GCC unroll 8
  for (int i = 0; i < LINES; i += 2) {
    u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
    u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < LINES; i += 4) {
    t[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
    t[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
    t[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
    t[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
  }
  /* Quarter q of t[4 * g + c] has rows 4 * g .. 4 * g + 3 of column 4 * q + c. */
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    __m512i even = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88), odd = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
    __m512i even2 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88),
        odd2 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    u[c] = _mm512_shuffle_i32x4(even, even2, 0x88);
    u[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
    u[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
    u[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
  }
  memcpy(t, u, sizeof u);
}

/* A tile from lines whose steps lie together. What lies beyond `lines` and `steps` is zero. */
static inline void load_lines(__m512i *t, const uint16_t *from, int64_t stride, int64_t lines, int64_t steps) {
  __mmask32 inside = steps < STEPS ? (__mmask32)((1u << steps) - 1) : (__mmask32)-1;
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++)
    t[i] = i < lines ? _mm512_maskz_loadu_epi16(inside, from + i * stride) : _mm512_setzero_si512();
}

/* Two lines of 16 elements as pairs of one of each. */
static inline __m512i pairs_of(__m256i first, __m256i second) {
  const __m512i by_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(by_turns, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}

/* A tile of pairs from lines that lie side by side. */
static inline void load_pairs(__m512i *t, const uint16_t *from, int64_t stride, int64_t lines, int64_t steps) {
  __mmask16 inside = (__mmask16)(lines < LINES ? (1u << lines) - 1 : 0xffffu);
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) {
    __m256i first = _mm256_maskz_loadu_epi16(2 * i < steps ? inside : 0, from + 2 * i * stride);
    __m256i second = _mm256_maskz_loadu_epi16(2 * i + 1 < steps ? inside : 0, from + (2 * i + 1) * stride);
    t[i] = pairs_of(first, second);
  }
}

/* A tile from elements that lie nowhere together. */
static void gather_lines(__m512i *t, const uint16_t *from, const operand *o, int64_t lines, int64_t steps) {
  uint16_t room[TILE_ELEMENTS] __attribute__((aligned(64))) = { 0 };
  for (int64_t i = 0; i < lines; i++)
    for (int64_t p = 0; p < steps; p++) room[i * STEPS + p] = from[i * o->line_stride + p * o->depth_stride];
  memcpy(t, room, sizeof room);
}

/* 32 float16 numbers as sums of two bfloat16: the upper 8 bits of each, and the 3 that are left. */
static inline void split(__m512i x, __m512i *high, __m512i *low) {
  const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13,
                                         11, 9, 7, 5, 3, 1);
  const __m512i eight_bits = _mm512_set1_epi32((int)0xffff0000u);
  __m512 a = _mm512_cvtph_ps(_mm512_castsi512_si256(x)), b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
  __m512 a8 = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), eight_bits));
  __m512 b8 = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(b), eight_bits));
  *high = _mm512_permutex2var_epi16(_mm512_castps_si512(a8), upper, _mm512_castps_si512(b8));
  *low = _mm512_permutex2var_epi16(_mm512_castps_si512(_mm512_sub_ps(a, a8)), upper,
                                   _mm512_castps_si512(_mm512_sub_ps(b, b8)));
}

static inline void store_tile(uint16_t *to, __m512i *t, bool turn) {
  if (turn) transpose(t);
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) _mm512_store_si512(to + i * STEPS, t[i]);
}

/* Up to 16 lines, and up to 32 steps of them, into one tile per part. */
static void pack_tile(const operand *o, int64_t line, int64_t lines, int64_t step, int64_t steps, uint16_t *to,
                      sizes *seen) {
  __m512i t[LINES], low[LINES];
  const uint16_t *from = o->data + line * o->line_stride + step * o->depth_stride;
  bool pairs = o->line_stride == 1 && o->depth_stride != 1;
  if (pairs) load_pairs(t, from, o->depth_stride, lines, steps);
  else if (o->depth_stride == 1 || steps == 1) load_lines(t, from, o->line_stride, lines, steps);
  else gather_lines(t, from, o, lines, steps);
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) look(seen, t[i]);
  if (o->parts == 2) {
#pragma GCC unroll 4
    for (int i = 0; i < LINES; i++) split(t[i], &t[i], &low[i]);
    store_tile(to + TILE_ELEMENTS, low, pairs != o->pairs);
  }
  store_tile(to, t, pairs != o->pairs);
}

/* A whole tile of one part, from lines that lie side by side (pairs) or whose steps do. Always inlined, so that each of
 * four forms is a row of instructions without a branch or a mask. */
__attribute__((always_inline)) static inline void pack_whole(const uint16_t *from, int64_t stride, bool pairs,
                                                             bool turn, uint16_t *to, sizes *seen) {
  __m512i t[LINES];
  sizes s = *seen;
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++)
    t[i] = pairs ? pairs_of(_mm256_loadu_si256((const void *)(from + 2 * i * stride)),
                            _mm256_loadu_si256((const void *)(from + (2 * i + 1) * stride)))
        : _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) look(&s, t[i]);
  *seen = s;
  store_tile(to, t, turn);
}

/* Pack a tile that is whole and whose elements lie together one way or the other; false: it is not. */
static bool pack_whole_tile(const operand *o, int64_t line, int64_t lines, int64_t step, int64_t steps, uint16_t *to,
                             sizes *seen) {
  if (lines < LINES || steps < STEPS || o->parts != 1) return false;
  const uint16_t *from = o->data + line * o->line_stride + step * o->depth_stride;
  if (o->depth_stride == 1) {
    if (o->pairs) pack_whole(from, o->line_stride, false, true, to, seen);
    else pack_whole(from, o->line_stride, false, false, to, seen);
  } else if (o->line_stride == 1) {
    if (o->pairs) pack_whole(from, o->depth_stride, true, false, to, seen);
    else pack_whole(from, o->depth_stride, true, true, to, seen);
  } else return false;
  return true;
}

/* Elements that a panel of 16 lines takes. */
static int64_t panel_elements(int64_t depth, int parts) { return round_up(depth, STEPS) * LINES * parts; }

/* Lines first .. first + count - 1, steps from .. from + depth - 1, into panels, an even number of them. */
static sizes pack(const operand *o, int64_t first, int64_t count, int64_t from, int64_t depth, uint16_t *to) {
  sizes seen = nothing_seen();
  for (int64_t i = 0; i < round_up(count, SIDE); i += LINES) {
    int64_t lines = least(LINES, count - i);
    if (lines <= 0) { memset(to, 0, (size_t)panel_elements(depth, o->parts) * sizeof *to); continue; }
    for (int64_t p = 0; p < depth; p += STEPS, to += TILE_ELEMENTS * o->parts) {
      int64_t steps = least(STEPS, depth - p);
      if (!pack_whole_tile(o, first + i, lines, from + p, steps, to, &seen))
        pack_tile(o, first + i, lines, from + p, steps, to, &seen);
    }
  }
  return seen;
}

/* What was seen in either. */
static sizes both(sizes a, sizes b) {
  return (sizes){ _mm512_min_epu16(a.smallest, b.smallest), _mm512_max_epu16(a.largest, b.largest) };
}

/* Of all 32 lanes. */
static int smallest_of(const sizes *s) {
  uint16_t lane[32], smallest = 0xffff;
  memcpy(lane, &s->smallest, sizeof lane);
  for (int i = 0; i < 32; i++) smallest = lane[i] < smallest ? lane[i] : smallest;
  return smallest + 1;
}
static int largest_of(const sizes *s) {
  uint16_t lane[32], largest = 0;
  memcpy(lane, &s->largest, sizeof lane);
  for (int i = 0; i < 32; i++) largest = lane[i] > largest ? lane[i] : largest;
  return largest;
}

/* Does the product of such operands come out as float32 arithmetic has it, but for the order? bfloat16 of exponent e
 * (biased by 127) is a multiple of 2^(e - 134), so products and sums are multiples of 2^(ea + eb - 268), which is to be
 * at least 2^-126. Only zeros: e is 512. */
static bool is_exact(gb_dtype dtype, const sizes *a, const sizes *b) {
  if (dtype == GB_FLOAT16) return largest_of(a) < 0x7c00 && largest_of(b) < 0x7c00;
  int ea = smallest_of(a) >> 7, eb = smallest_of(b) >> 7;
  return ea > 0 && eb > 0 && ea + eb >= 268 - 126;
}

/* ====} */

/* {==== kernels ==== */

/* Two packed panels of a and of b that follow one another, and the place of their 32 x 32 sums. */
typedef struct quad { const uint16_t *a, *b; int64_t panel, depth; int parts; float *sums; int64_t ld; } quad;

/* The registers of AMX: 0 to 3 for sums, 4 and 5 for a, 6 and 7 for b. */
#define AMX __attribute__((target("amx-tile,amx-bf16")))

/* All eight have 16 rows of 64 bytes. gcc's intrinsics for loading do not say that they read memory: hence a constant,
 * and the barrier. */
AMX static void begin_tiles(void) {
  static const struct { uint8_t palette, start_row, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } config = {
    .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

/* Without tiles in use a switch of threads and a signal frame stay small. */
AMX static void end_tiles(void) { _tile_release(); }

AMX static inline void load_a(const quad *q, int64_t at) {
  _tile_loadd(4, q->a + at, 64);
  _tile_loadd(5, q->a + q->panel + at, 64);
}
AMX static inline void load_b(const quad *q, int64_t at) {
  _tile_loadd(6, q->b + at, 64);
  _tile_loadd(7, q->b + q->panel + at, 64);
}
AMX static inline void add_products(void) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

AMX static void multiply_tiles(const quad *q) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int64_t end = panel_elements(q->depth, q->parts);
  for (int64_t at = 0; q->parts == 1 && at < end; at += TILE_ELEMENTS) {
    load_a(q, at), load_b(q, at);
    add_products();
  }
  for (int64_t at = 0; q->parts == 2 && at < end; at += 2 * TILE_ELEMENTS) {
    load_a(q, at + TILE_ELEMENTS), load_b(q, at + TILE_ELEMENTS);
    add_products();
    load_b(q, at);
    add_products();
    load_a(q, at);
    add_products();
    load_b(q, at + TILE_ELEMENTS);
    add_products();
  }
  size_t row = (size_t)q->ld * sizeof *q->sums;
  _tile_stored(0, q->sums, row);
  _tile_stored(1, q->sums + LINES, row);
  _tile_stored(2, q->sums + LINES * q->ld, row);
  _tile_stored(3, q->sums + LINES * q->ld + LINES, row);
}

/* Half a tile of a, from a line of it on, by two tiles of b: each pair of a's is multiplied with a row of either. */
__attribute__((target("avx512bf16"))) static void multiply_pairs(const quad *q, const uint16_t *a, float *sums) {
  __m512 sum[LINES / 2][2] = { 0 };
  const uint16_t *b = q->b;
  for (int64_t p = 0; p < (q->depth + 1) / 2; p++, b += 2 * LINES) {
    const uint16_t *pair = a + p / LINES * TILE_ELEMENTS + p % LINES * 2;
    __m512bh left = (__m512bh)_mm512_load_si512(b), right = (__m512bh)_mm512_load_si512(b + q->panel);
#pragma GCC unroll 8
    for (int i = 0; i < LINES / 2; i++) {
      int both;
      memcpy(&both, pair + i * STEPS, sizeof both);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], (__m512bh)_mm512_set1_epi32(both), left);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], (__m512bh)_mm512_set1_epi32(both), right);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < LINES / 2; i++, sums += q->ld) {
    _mm512_storeu_ps(sums, sum[i][0]);
    _mm512_storeu_ps(sums + LINES, sum[i][1]);
  }
}

/* Rows from m on are left out. */
static void multiply_dots(const quad *q, int64_t m) {
  for (int64_t i = 0; i < least(m, SIDE); i += LINES / 2)
    multiply_pairs(q, q->a + i / LINES * q->panel + i % LINES * STEPS, q->sums + i * q->ld);
}

/* ====} */

/* {==== blocks ==== */

/* Up to 16 results: beta * c + alpha * sums, rounded. */
static inline void put_row(__m512 sums, __mmask16 inside, float alpha, float beta, char *c, gb_dtype dtype) {
  __m512 x = _mm512_mul_ps(sums, _mm512_set1_ps(alpha));
  if (dtype == GB_FLOAT32) {
    if (beta != 0) x = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(inside, c), x);
    _mm512_mask_storeu_ps(c, inside, x);
    return;
  }
  __m256i low = dtype == GB_FLOAT16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
      : _mm512_cvtepi32_epi16(_mm512_srli_epi32(gb_round_bf16(x), 16));
  _mm256_mask_storeu_epi16(c, inside, low);
}

/* rows x columns (at most 32 each) of sums that lie 32 apart, into c. */
static void put(const float *sums, int64_t rows, int64_t columns, float alpha, float beta, char *c, int64_t ldc,
                gb_dtype dtype) {
  int64_t bytes = (int64_t)gb_dtype_bytes(dtype);
  for (int64_t j = 0; j < columns; j += LINES) {
    __mmask16 inside = (__mmask16)(columns - j < LINES ? (1u << (columns - j)) - 1 : 0xffffu);
    for (int64_t i = 0; i < rows; i++)
      put_row(_mm512_load_ps(sums + i * SIDE + j), inside, alpha, beta, c + (i * ldc + j) * bytes, dtype);
  }
}

/* Packed panels times packed panels. What needs nothing more than the sums is stored by the kernel. */
static void multiply_packed(gb_unit unit, int64_t m, int64_t n, quad q, float alpha, float beta, char *c, int64_t ldc,
                            gb_dtype dtype) {
  float sums[SIDE * SIDE] __attribute__((aligned(64)));
  const uint16_t *a = q.a, *b = q.b;
  bool plain = dtype == GB_FLOAT32 && alpha == 1 && beta == 0;
  if (unit == GB_UNIT_TILES) begin_tiles();
  for (int64_t j = 0; j < n; j += SIDE)
    for (int64_t i = 0; i < m; i += SIDE) {
      char *to = c + (i * ldc + j) * (int64_t)gb_dtype_bytes(dtype);
      bool direct = plain && m - i >= SIDE && n - j >= SIDE;
      q.a = a + i / LINES * q.panel, q.b = b + j / LINES * q.panel;
      q.sums = direct ? (float *)(void *)to : sums, q.ld = direct ? ldc : SIDE;
      if (unit == GB_UNIT_TILES) multiply_tiles(&q);
      else multiply_dots(&q, m - i);
      if (!direct) put(sums, least(SIDE, m - i), least(SIDE, n - j), alpha, beta, to, ldc, dtype);
    }
  if (unit == GB_UNIT_TILES) end_tiles();
}

/* How many bytes packed panels of a take, of b, and of both. */
static size_t packed_bytes(int64_t lines, int64_t most, int64_t k) {
  return (size_t)(round_up(least(lines, most), SIDE) * round_up(least(k, BLOCK_K), 2 * STEPS)) * sizeof(uint16_t);
}

size_t gb_bf16_product_scratch(int64_t m, int64_t n,
                               int64_t k) { return packed_bytes(m, BLOCK_M, 2 * k) + packed_bytes(n, BLOCK_N, 2 * k); }

/* The whole of b packed once: the panels of its first BLOCK_K steps, then those of the next ones; behind them what was
 * seen in every SIDE columns of either. */
int64_t gb_bf16_packed_columns(int64_t n) { return round_up(n, SIDE); }

static int64_t packed_elements(int64_t columns, int64_t k) { return columns * round_up(k, STEPS); }

size_t gb_bf16_packed_bytes(int64_t n, int64_t k) {
  int64_t columns = round_up(n, SIDE), groups = columns / SIDE * (round_up(k, BLOCK_K) / BLOCK_K);
  return (size_t)packed_elements(columns, k) * sizeof(uint16_t) + (size_t)groups * sizeof(sizes);
}

/* Where the panels of SIDE columns begin, step p on; and what was seen in them. */
static const uint16_t *panels_at(const char *packed, int64_t columns, int64_t column, int64_t p, int64_t depth) {
  return (const uint16_t *)(const void *)packed + p * columns + column * round_up(depth, STEPS);
}
static const sizes *seen_at(const char *packed, int64_t columns, int64_t k, int64_t column, int64_t p) {
  const sizes *all = (const sizes *)(const void *)(packed + packed_elements(columns, k) * (int64_t)sizeof(uint16_t));
  return all + p / BLOCK_K * (columns / SIDE) + column / SIDE;
}

void gb_bf16_pack_columns(int64_t first, int64_t count, int64_t k, const gb_matrix *b, int64_t columns, void *to) {
  operand o = { b->data, b->column_stride, b->row_stride, 1, true };
  for (int64_t p = 0; p < k; p += BLOCK_K) {
    int64_t depth = least(BLOCK_K, k - p);
    if (gb_work(count * depth)) return;
    for (int64_t j = 0; j < count; j += SIDE) {
      sizes seen = pack(&o, first + j, least(SIDE, count - j), p, depth,
                        (uint16_t *)(uintptr_t)panels_at(to, columns, first + j, p, depth));
      *(sizes *)(uintptr_t)seen_at(to, columns, k, first + j, p) = seen;
    }
  }
}

/* Panels of `across` columns of b from column j on, packed already or now. Of what is packed already all columns count
 * as seen, so that those who share it out have the same bits however they do. */
static const uint16_t *columns_of_b(const gb_packed *packed, const operand *columns, int64_t j, int64_t across,
                                    int64_t p, int64_t depth, int64_t k, uint16_t *room, sizes *seen) {
  if (!packed) {
    *seen = pack(columns, j, across, p, depth, room);
    return room;
  }
  *seen = nothing_seen();
  for (int64_t i = 0; i < packed->columns; i += SIDE)
    *seen = both(*seen, *seen_at(packed->data, packed->columns, k, i, p));
  return panels_at(packed->data, packed->columns, packed->first + j, p, depth);
}

void gb_bf16_product(gb_product_how how, int64_t m, int64_t n, int64_t k, double alpha, const gb_matrix *a,
                     const gb_matrix *b, const gb_packed *packed, double beta, void *c, int64_t ldc, gb_dtype dtype,
                     void *scratch) {
  int parts = a->dtype == GB_FLOAT16 ? 2 : 1;
  operand rows = { a->data, a->row_stride, a->column_stride, parts, false },
      columns = { b->data, b->column_stride, b->row_stride, parts, true };
  uint16_t *a_room = scratch, *b_room = (uint16_t *)(void *)((char *)scratch + packed_bytes(m, BLOCK_M, 2 * k));
  char *rest = (char *)scratch + gb_bf16_product_scratch(m, n, k);
  for (int64_t j = 0; j < n; j += BLOCK_N)
    for (int64_t p = 0; p < k; p += BLOCK_K / parts) {
      int64_t across = least(BLOCK_N, n - j), depth = least(BLOCK_K / parts, k - p);
      sizes b_seen;
      const uint16_t *panels = columns_of_b(packed, &columns, j, across, p, depth, k, b_room, &b_seen);
      for (int64_t i = 0; i < m; i += BLOCK_M) {
        int64_t down = least(BLOCK_M, m - i);
        if (gb_work_products(down, across, depth)) return;
        sizes a_seen = pack(&rows, i, down, p, depth, a_room);
        char *to = (char *)c + (i * ldc + j) * (int64_t)gb_dtype_bytes(dtype);
        double before = p == 0 ? beta : 1;
        if (is_exact(a->dtype, &a_seen, &b_seen)) {
          quad q = { a_room, panels, panel_elements(depth, parts), depth, parts, NULL, 0 };
          multiply_packed(how.unit, down, across, q, (float)alpha, (float)before, to, ldc, dtype);
          continue;
        }
        gb_matrix left = *a, right = *b;
        left.data = rows.data + i * rows.line_stride + p * rows.depth_stride;
        right.data = columns.data + j * columns.line_stride + p * columns.depth_stride;
        gb_product_how without = how;
        without.unit = GB_UNIT_NONE;
        gb_block_product(without, GB_LANE_F32, down, across, depth, alpha, &left, &right, NULL, before, to, ldc, dtype,
                         rest);
      }
    }
}

/* ====} */

#endif
