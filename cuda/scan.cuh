/* cuda/scan.cuh - running folds along rows: a thread goes through a short row, a block through another one strip by
 * strip, and a long row is cut into pieces, all by the shape alone. So one long row keeps a device busy, and the bits
 * do not hang on a launch.
 *
 * What is folded says an object: T, `nothing` (which leaves every T as it is), where a row lies (a `place`), whether it
 * is left as it is, how one element and GB_LANES neighbours are read and written, and the fold of an earlier T with a
 * later one. It is a kernel's argument and stays what it is: one that changes is copied into local memory. Each element
 * is read once where there is one piece, else twice, and written once. */
#ifndef GB_CUDA_SCAN_CUH
#define GB_CUDA_SCAN_CUH

#include "cuda/block.cuh"
#include "cuda/rows.cuh"

/* Rows of up to GB_SCAN_SHORT elements would leave most threads of a block without one. */
enum { GB_SCAN_THREADS = 256, GB_SCAN_SHORT = 64 };

/* The fold of an object in a row, as one of its own: blocks scan with it. */
template <class F> struct gb_scan_fold {
  const F &f;
  typename F::place at;
  GB_DEVICE typename F::T operator()(typename F::T a, typename F::T b) const { return f.fold(at, a, b); }
};

/* Rows in pieces, a block to each: their running folds, on top of what the pieces before hold (totals[unit - 1]; NULL:
 * there is one piece); or (sum_up) each piece's fold alone, into totals[unit]. A thread takes four neighbours at a
 * time. */
template <class F>
static __global__ void __launch_bounds__(GB_SCAN_THREADS, 3) gb_scan_pieces(const F f, int64_t count, int64_t length,
    int64_t piece, int64_t pieces, typename F::T *totals, bool sum_up) {
  typedef typename F::T T;
  for (int64_t unit = blockIdx.x; unit < count * pieces; unit += gridDim.x) {
    int64_t first = unit % pieces * piece, last = first + piece < length ? first + piece : length;
    if (f.skips(unit / pieces)) continue;
    const gb_scan_fold<F> own = { f, f.begin(unit / pieces) };
    T before = !sum_up && first > 0 ? totals[unit - 1] : f.nothing();
    for (; first < last; first += GB_SCAN_THREADS * GB_LANES) {
      gb_share share = { first, (int)threadIdx.x, GB_SCAN_THREADS };
      T v[GB_LANES], all;
      f.hold(own.at, share, v);
      if (gb_four_at(share, 0) >= last) /* pieces are whole strips, so this is beyond the row */
        GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = f.nothing();
      GB_UNROLL for (int l = 1; l < GB_LANES; l++) v[l] = own(v[l - 1], v[l]);
      T lower = gb_block_scan(v[GB_LANES - 1], f.nothing(), own, &all);
      if (!sum_up) {
        lower = own(before, lower);
        GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = own(lower, v[l]);
        f.put(own.at, share, v);
      }
      before = own(before, all);
    }
    if (sum_up && threadIdx.x == 0) totals[unit] = before;
  }
}

/* The totals of the pieces of a row become their running folds, a block to a row. */
template <class F>
static __global__ void __launch_bounds__(GB_SCAN_THREADS) gb_scan_totals(const F f, int64_t count, int64_t pieces,
    typename F::T *totals) {
  typedef typename F::T T;
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    if (f.skips(row)) continue;
    const gb_scan_fold<F> own = { f, f.begin(row) };
    T *of_row = totals + row * pieces, before = f.nothing();
    for (int64_t first = 0; first < pieces; first += GB_SCAN_THREADS * GB_LANES) {
      int64_t at = first + (int64_t)threadIdx.x * GB_LANES;
      T v[GB_LANES], all;
      GB_UNROLL for (int l = 0; l < GB_LANES; l++) v[l] = at + l < pieces ? of_row[at + l] : f.nothing();
      GB_UNROLL for (int l = 1; l < GB_LANES; l++) v[l] = own(v[l - 1], v[l]);
      T lower = own(before, gb_block_scan(v[GB_LANES - 1], f.nothing(), own, &all));
      GB_UNROLL for (int l = 0; l < GB_LANES; l++)
        if (at + l < pieces) of_row[at + l] = own(lower, v[l]);
      before = own(before, all);
    }
  }
}

/* A thread to a row, from end to end. */
template <class F> static __global__ void gb_scan_short(const F f, int64_t count, int64_t length) {
  for (int64_t row = gb_thread<int64_t>(); row < count; row += gb_grid_size<int64_t>()) {
    const typename F::place at = f.begin(row);
    typename F::T run = f.nothing();
    for (int64_t i = 0; i < length; i++) {
      run = f.fold(at, run, f.at(at, i));
      f.set(at, i, run);
    }
  }
}

/* How rows are cut: where that keeps a device busy, by the shape alone, into pieces of whole strips. */
struct gb_scan_cut { int64_t piece, pieces; };

static inline gb_scan_cut gb_scan_cut_of(int64_t count, int64_t length) {
  const int64_t strip = GB_SCAN_THREADS * GB_LANES;
  int64_t pieces = count >= 1024 ? 1 : (length + 8 * strip - 1) / (8 * strip);
  if (pieces > 1024) pieces = 1024;
  int64_t piece = (length + pieces - 1) / pieces;
  piece = (piece + strip - 1) / strip * strip;
  return gb_scan_cut{ piece, (length + piece - 1) / piece };
}

/* Of a row that is cut: folds of pieces, their running folds, and every piece on top of those before. */
template <class F> static gb_status gb_scan_run(gb_cuda_call *call, const F &f, int64_t count, int64_t length) {
  typedef typename F::T T;
  if (length <= GB_SCAN_SHORT) {
    GB_LAUNCH(call->stream, gb_scan_short<F>, gb_blocks(count, GB_THREADS), GB_THREADS, 0, f, count, length);
    return GB_OK;
  }
  const gb_scan_cut cut = gb_scan_cut_of(count, length);
  const int64_t piece = cut.piece, pieces = cut.pieces;
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
 * nothing()` and `T of(a, b)`. done: rows that are left as they are, or NULL. */
template <class FOLD> struct gb_scan_numbers {
  typedef typename FOLD::T T;
  struct place { int64_t from, to; };
  gb_rows x, out;
  const int *done;
  static GB_DEVICE T nothing() { return FOLD::nothing(); }
  static GB_DEVICE T fold(const place &, T a, T b) { return FOLD::of(a, b); }
  GB_DEVICE bool skips(int64_t row) const { return done && done[row]; }
  GB_DEVICE place begin(int64_t row) const { return place{ gb_at(x.outer, row), gb_at(out.outer, row) }; }
  GB_DEVICE T at(const place &p, int64_t i) const { return gb_row_load<T>(x, p.from, i); }
  GB_DEVICE void set(const place &p, int64_t i, T v) const { gb_row_store<T>(out, p.to, i, v); }
  __device__ __forceinline__ void hold(const place &p, const gb_share &share, T *v) const {
    gb_row_hold<T, GB_LANES>(x, p.from, share, v, nothing());
  }
  __device__ __forceinline__ void put(const place &p, const gb_share &share, T *v) const {
    gb_row_put<T, GB_LANES>(out, p.to, share, v);
  }
};

#endif
