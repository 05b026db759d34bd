/* cpu/transpose.h - elements of 1, 2, 4 or 8 bytes transposed in registers: rows of a matrix that run through memory
 * become its columns.
 *
 * Both sides are touched in squares of a cache line by a cache line, so that a line is fetched once even where rows lie
 * a power of two apart and share a few places of the cache. Vectors of 16 bytes, which every level has: it is memory
 * that takes the time. */
#ifndef GB_CPU_TRANSPOSE_H
#define GB_CPU_TRANSPOSE_H

#include "cpu/cpu.h"

typedef uint8_t gb_transpose_1 __attribute__((vector_size(16)));
typedef uint16_t gb_transpose_2 __attribute__((vector_size(16)));
typedef uint32_t gb_transpose_4 __attribute__((vector_size(16)));
typedef uint64_t gb_transpose_8 __attribute__((vector_size(16)));

/* The lower halves of x and y, an element of each in turn; and the upper ones. */
static inline __attribute__((always_inline)) gb_transpose_1 gb_transpose_low(gb_transpose_1 x, gb_transpose_1 y,
    size_t bytes) {
  switch (bytes) {
    case 1: return __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    case 2: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_2)x, (gb_transpose_2)y, 0, 8, 1, 9, 2, 10, 3,
                                                           11);
    case 4: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_4)x, (gb_transpose_4)y, 0, 4, 1, 5);
    default: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_8)x, (gb_transpose_8)y, 0, 2);
  }
}
static inline __attribute__((always_inline)) gb_transpose_1 gb_transpose_high(gb_transpose_1 x, gb_transpose_1 y,
    size_t bytes) {
  switch (bytes) {
    case 1: return __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    case 2: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_2)x, (gb_transpose_2)y, 4, 12, 5, 13, 6, 14, 7,
                                                           15);
    case 4: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_4)x, (gb_transpose_4)y, 2, 6, 3, 7);
    default: return (gb_transpose_1)__builtin_shufflevector((gb_transpose_8)x, (gb_transpose_8)y, 1, 3);
  }
}

/* A square of side 16 / bytes: each round interleaves the first half of the rows with the second, which after
 * log2(side) rounds is the transpose. */
static inline __attribute__((always_inline)) void gb_transpose_square(char *to, int64_t to_step, const char *from,
                                                                 int64_t from_step, const size_t bytes) {
  const int side = (int)(16 / bytes);
  gb_transpose_1 x[16], y[16];
#pragma GCC unroll 16
  for (int i = 0; i < side; i++) memcpy(&x[i], from + i * from_step, 16);
#pragma GCC unroll 4
  for (int round = side; round > 1; round /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < side / 2; i++) {
      y[2 * i] = gb_transpose_low(x[i], x[i + side / 2], bytes);
      y[2 * i + 1] = gb_transpose_high(x[i], x[i + side / 2], bytes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < side; i++) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < side; i++) memcpy(to + i * to_step, &x[i], 16);
}

/* At most a line by a line of elements. */
static inline __attribute__((always_inline)) void gb_transpose_lines(char *to, int64_t to_step, const char *from,
                                                                int64_t from_step, int64_t runs,
                                                                int64_t length, const size_t bytes) {
  const int64_t side = (int64_t)(16 / bytes), b = (int64_t)bytes;
  int64_t whole_runs = runs / side * side, whole_length = length / side * side;
  for (int64_t c = 0; c < whole_runs; c += side)
    for (int64_t r = 0; r < whole_length; r += side)
      gb_transpose_square(to + r * to_step + c * b, to_step, from + c * from_step + r * b, from_step, bytes);
  for (int64_t c = 0; c < runs; c++)
    for (int64_t r = c < whole_runs ? whole_length : 0; r < length; r++)
      memcpy(to + r * to_step + c * b, from + c * from_step + r * b, bytes);
}

static inline __attribute__((always_inline)) void gb_transpose_of(char *to, int64_t to_step, const char *from,
                                                             int64_t from_step, int64_t runs,
                                                             int64_t length, const size_t bytes) {
  const int64_t line = (int64_t)(64 / bytes), b = (int64_t)bytes;
  for (int64_t c = 0; c < runs; c += line)
    for (int64_t r = 0; r < length; r += line)
      gb_transpose_lines(to + r * to_step + c * b, to_step, from + c * from_step + r * b, from_step,
                    runs - c < line ? runs - c : line,
                    length - r < line ? length - r : line, bytes);
}

/* Element r of run c goes to column c of row r. Steps are in bytes, from one row of `to` to the next and from one run
 * of `from` to the next. */
static inline void gb_transpose(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs,
                                int64_t length,
                           size_t bytes) {
  switch (bytes) {
    case 1: gb_transpose_of(to, to_step, from, from_step, runs, length, 1); break;
    case 2: gb_transpose_of(to, to_step, from, from_step, runs, length, 2); break;
    case 4: gb_transpose_of(to, to_step, from, from_step, runs, length, 4); break;
    default: gb_transpose_of(to, to_step, from, from_step, runs, length, 8); break;
  }
}

#endif
