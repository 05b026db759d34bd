/* cpu/windows.h - the windows of a resampled row as a table, by which rows are computed: what resample and
 * resample_planes share. The gradient's table is the same one turned around, so both directions are one loop that
 * writes every element once, in a fixed order. */
#ifndef GB_CPU_WINDOWS_H
#define GB_CPU_WINDOWS_H

#include "base/resample.h"
#include "cpu/scratch.h"
#include "cpu/wide.h"

typedef struct gb_window_piece gb_window_piece;

/* What element o of m reads of a row of n: elements first[o] .. of it, their weights from weight[begin[o]] to
 * weight[begin[o + 1]]. Windows from o to same[o] - 1 have as many elements; `longest` is how many there are at most.
 * pieces: a float32 row from its start, where the table was taken for such rows. */
typedef struct gb_windows {
  int64_t n, m, longest;
  int64_t *first, *begin, *same;
  double *weight;
  float *weight32;
  gb_window_piece *pieces;
  gb_vector_bits *pick;
  gb_vector *picked;
  int64_t count, picks, weights; /* how many of pieces, pick and picked are filled */
} gb_windows;

/* Where the arrays of a table begin in scratch that is being laid out. cut: it gets pieces. */
typedef struct gb_windows_room {
  size_t first, begin, same, weight, weight32, pieces, pick, picked;
  bool cut;
} gb_windows_room;

#define gb_windows_weights GB_CPU_NAME(windows_weights)
#define gb_windows_take GB_CPU_NAME(windows_take)
#define gb_windows_fill GB_CPU_NAME(windows_fill)
#define gb_windows_are_doubled GB_CPU_NAME(windows_are_doubled)
#define gb_windows_row_f32 GB_CPU_NAME(windows_row_f32)
#define gb_windows_gather_f32 GB_CPU_NAME(windows_gather_f32)
#define gb_windows_gather_f64 GB_CPU_NAME(windows_gather_f64)

/* The weights of all windows together, of some of them once a stop is asked for. */
int64_t gb_windows_weights(const gb_resampling *r);
/* Room for a table of m windows and so many weights. */
gb_windows_room gb_windows_take(size_t *total, int64_t m, int64_t weights, bool cut);
/* Fill a table that lies in `base`: of r, or turned around. false: a stop is asked for. */
bool gb_windows_fill(gb_op_call *call, gb_windows *t, const gb_windows_room *room, char *base, const gb_resampling *r,
                     bool backward);
/* Do elements 2 i + 1 and 2 i + 2 lie between i and i + 1, one near to each, with the same two weights for all i, as
 * those of linear modes and a factor of 2? The first and the last element are any sums of the two next to them. */
bool gb_windows_are_doubled(const gb_windows *t);
/* A row by its pieces. */
void gb_windows_row_f32(const gb_windows *t, float *y, const float *x);
/* Elements o .. end - 1 of a row, each `inner` numbers beside each other, by the table alone. */
void gb_windows_gather_f32(const gb_windows *t, float *y, const float *x, int64_t o, int64_t end, int64_t inner);
void gb_windows_gather_f64(const gb_windows *t, double *y, const double *x, int64_t o, int64_t end, int64_t inner);

/* Lanes of low, or, numbered on, of high. */
GB_ALWAYS_INLINE gb_vector gb_pick_lanes(gb_vector low, gb_vector high, gb_vector_bits pick, bool two) {
#ifdef __clang__
  gb_vector y;
  for (int i = 0; i < GB_VECTOR; i++)
    y[i] = two && pick[i] >= (uint32_t)GB_VECTOR ? high[pick[i] - GB_VECTOR] : low[pick[i]];
  return y;
#else
  return two ? __builtin_shuffle(low, high, pick) : __builtin_shuffle(low, pick);
#endif
}

/* Vectors whose elements stand in turn in x.a and x.b as they follow one another, and back. */
GB_ALWAYS_INLINE gb_wide gb_wide_interleave(gb_wide x) {
  gb_vector_bits low, high;
  for (uint32_t i = 0; i < GB_VECTOR; i++) low[i] = i / 2 + i % 2 * GB_VECTOR, high[i] = low[i] + GB_VECTOR / 2;
  return (gb_wide){ gb_pick_lanes(x.a, x.b, low, true), gb_pick_lanes(x.a, x.b, high, true) };
}
GB_ALWAYS_INLINE gb_wide gb_wide_part(gb_wide x) {
  gb_vector_bits even, odd;
  for (uint32_t i = 0; i < GB_VECTOR; i++) even[i] = 2 * i, odd[i] = 2 * i + 1;
  return (gb_wide){ gb_pick_lanes(x.a, x.b, even, true), gb_pick_lanes(x.a, x.b, odd, true) };
}

#endif
