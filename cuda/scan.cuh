/* cuda/scan.cuh - running folds along rows: a thread goes through a short row, a block through another one strip by
 * strip, and a long row is cut into pieces, all by the shape alone. So one long row keeps a device busy, and the bits
 * do not hang on a launch.
 *
 * What is folded says an object: T, `nothing` (which leaves every T as it is), how a row begins, how one element and
 * GB_LANES neighbours are read and written, and the fold of an earlier T with a later one. Each element is read once
 * where there is one piece, else twice, and written once. */
#ifndef GB_CUDA_SCAN_CUH
#define GB_CUDA_SCAN_CUH

#include "cuda/block.cuh"
#include "cuda/rows.cuh"

/* Rows of up to GB_SCAN_SHORT elements would leave most threads of a block without one. */
enum { GB_SCAN_THREADS = 256, GB_SCAN_SHORT = 64 };

/* The fold of an object, as one of its own: blocks scan with it. */
template <class F> struct gb_scan_fold {
  F f;
  GB_DEVICE typename F::T operator()(typename F::T a, typename F::T b) const { return f.fold(a, b); }
};

/* Rows in pieces, a block to each: their running folds, on top of what the pieces before hold (totals[unit - 1]; NULL:
 * there is one piece); or (sum_up) each piece's fold alone, into totals[unit]. A thread takes four neighbours at a
 * time. */
template <class F>
static __global__ void __launch_bounds__(GB_SCAN_THREADS) gb_scan_pieces(F f, int64_t count, int64_t length,
    int64_t piece, int64_t pieces, typename F::T *totals, bool sum_up) {
  typedef typename F::T T;
  for (int64_t unit = blockIdx.x; unit < count * pieces; unit += gridDim.x) {
    int64_t first = unit % pieces * piece, last = first + piece < length ? first + piece : length;
    f.begin(unit / pieces);
    const gb_scan_fold<F> own = { f };
    T before = !sum_up && first > 0 ? totals[unit - 1] : f.nothing();
    for (; first < last; first += GB_SCAN_THREADS * GB_LANES) {
      gb_share share = { first, (int)threadIdx.x, GB_SCAN_THREADS };
      T v[GB_LANES], all;
      f.hold(share, v);
      if (gb_four_at(share, 0) >= last) /* pieces are whole strips, so this is beyond the row */
        GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = f.nothing();
      GB_UNROLL for (int l = 1; l < GB_LANES; l++) v[l] = f.fold(v[l - 1], v[l]);
      T lower = gb_block_scan(v[GB_LANES - 1], f.nothing(), own, &all);
      if (!sum_up) {
        lower = f.fold(before, lower);
        GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = f.fold(lower, v[l]);
        f.put(share, v);
      }
      before = f.fold(before, all);
    }
    if (sum_up && threadIdx.x == 0) totals[unit] = before;
  }
}

/* The totals of the pieces of a row become their running folds, a block to a row. */
template <class F>
static __global__ void __launch_bounds__(GB_SCAN_THREADS) gb_scan_totals(F f, int64_t count, int64_t pieces,
    typename F::T *totals) {
  typedef typename F::T T;
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    f.begin(row);
    const gb_scan_fold<F> own = { f };
    T *of_row = totals + row * pieces, before = f.nothing();
    for (int64_t first = 0; first < pieces; first += GB_SCAN_THREADS * GB_LANES) {
      int64_t at = first + (int64_t)threadIdx.x * GB_LANES;
      T v[GB_LANES], all;
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = at + l < pieces ? of_row[at + l] : f.nothing();
      GB_UNROLL for (int l = 1; l < GB_LANES; l++) v[l] = f.fold(v[l - 1], v[l]);
      T lower = f.fold(before, gb_block_scan(v[GB_LANES - 1], f.nothing(), own, &all));
      GB_UNROLL for (int l = 0; l < GB_LANES; l++)
        if (at + l < pieces) of_row[at + l] = f.fold(lower, v[l]);
      before = f.fold(before, all);
    }
  }
}

/* A thread to a row, from end to end. */
template <class F> static __global__ void gb_scan_short(F f, int64_t count, int64_t length) {
  for (int64_t row = gb_thread<int64_t>(); row < count; row += gb_grid_size<int64_t>()) {
    f.begin(row);
    typename F::T run = f.nothing();
    for (int64_t i = 0; i < length; i++) {
      run = f.fold(run, f.at(i));
      f.set(i, run);
    }
  }
}

/* A long row is cut where that keeps a device busy, by the shape alone: folds of pieces, their running folds, and every
 * piece on top of those before. */
template <class F> static gb_status gb_scan_run(gb_cuda_call *call, const F &f, int64_t count, int64_t length) {
  typedef typename F::T T;
  if (length <= GB_SCAN_SHORT) {
    GB_LAUNCH(call->stream, gb_scan_short<F>, gb_blocks(count, GB_THREADS), GB_THREADS, 0, f, count, length);
    return GB_OK;
  }
  const int64_t strip = GB_SCAN_THREADS * GB_LANES;
  int64_t pieces = count >= 1024 ? 1 : (length + 8 * strip - 1) / (8 * strip);
  if (pieces > 1024) pieces = 1024;
  int64_t piece = (length + pieces - 1) / pieces;
  piece = (piece + strip - 1) / strip * strip;
  pieces = (length + piece - 1) / piece;
  unsigned grid = gb_blocks(count * pieces, 1);
  T *totals = NULL;
  if (pieces > 1) {
    totals = (T *)gb_cuda_scratch(call, (size_t)(count * pieces) * sizeof(T));
    if (!totals) return GB_EMEMORY;
    GB_LAUNCH(call->stream, gb_scan_pieces<F>, grid, GB_SCAN_THREADS, 0, f, count, length, piece, pieces, totals, true);
    GB_LAUNCH(call->stream, gb_scan_totals<F>, gb_blocks(count, 1), GB_SCAN_THREADS, 0, f, count, pieces, totals);
  }
  GB_LAUNCH(call->stream, gb_scan_pieces<F>, grid, GB_SCAN_THREADS, 0, f, count, length, piece, pieces, totals, false);
  return GB_OK;
}

/* What is written goes by rows of one dtype: a fold of numbers, with four neighbours moved at once. FOLD has `T
 * nothing()` and `T of(a, b)`. */
template <class FOLD> struct gb_scan_numbers {
  typedef typename FOLD::T T;
  gb_rows x, out;
  int64_t from, to;
  static GB_DEVICE T nothing() { return FOLD::nothing(); }
  static GB_DEVICE T fold(T a, T b) { return FOLD::of(a, b); }
  GB_DEVICE void begin(int64_t row) { from = gb_at(x.outer, row), to = gb_at(out.outer, row); }
  GB_DEVICE T at(int64_t i) const { return gb_row_load<T>(x, from, i); }
  GB_DEVICE void set(int64_t i, T v) const { gb_row_store<T>(out, to, i, v); }
  __device__ __forceinline__ void hold(const gb_share &share, T *v) const {
    gb_row_hold<T, GB_LANES>(x, from, share, v, nothing());
  }
  __device__ __forceinline__ void put(const gb_share &share, T *v) const {
    gb_row_put<T, GB_LANES>(out, to, share, v);
  }
};

#endif
