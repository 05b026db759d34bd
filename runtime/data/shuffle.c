/* data/shuffle.c - random orders from Philox words, apart from the streams of the ops: the top bits of the offset tell
 * them apart. */
#include <math.h>
#include <string.h>

#include "base/piece.h"
#include "base/random.h"
#include "data/data.h"

#define STREAM_SAMPLE ((uint64_t)1 << 63)
#define STREAM_PERMUTATION ((uint64_t)3 << 62)

/* 0 .. limit - 1. */
static int64_t bounded(uint64_t seed, uint64_t offset, uint64_t index, int64_t limit) {
  uint32_t r[4];
  gb_philox(seed, offset, index, r);
  return (int64_t)gb_random_below(r, (uint64_t)limit);
}

int64_t gb_sample(uint64_t seed, uint64_t epoch, uint64_t index,
                  int64_t limit) { return bounded(seed, STREAM_SAMPLE | epoch, index, limit); }

static bool context_asks(void *context) { return gb_is_stopping(context); }

gb_stopper gb_stopper_of(gb_context *context) { return (gb_stopper){ context_asks, context }; }

/* After work that is worth `amount` (base/piece.h): is it to end? */
static bool ends(const gb_stopper *stop, int64_t *work, int64_t amount) {
  if (!stop || (*work += amount) < GB_PIECE) return false;
  *work = 0;
  return stop->asks(stop->user);
}

/* What a number costs that goes to a place far away: a random number, and memory that no cache holds. */
#define FAR 32

bool gb_permutation(uint64_t seed, uint64_t epoch, int64_t count, int64_t *out, const gb_stopper *stop) {
  int64_t work = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ends(stop, &work, 1)) return false;
    out[i] = i;
  }
  for (int64_t i = count - 1; i > 0; i--) {
    if (ends(stop, &work, FAR)) return false;
    int64_t other = bounded(seed, STREAM_PERMUTATION | epoch, (uint64_t)i, i + 1), moved = out[i];
    out[i] = out[other];
    out[other] = moved;
  }
  return true;
}

/* {==== By weights, and by lengths ==== */

#define FINE ((int64_t)1 << 53)

/* Above 0 and below 1. */
static double uniform(uint64_t seed, uint64_t epoch, int64_t index) {
  return ((double)gb_sample(seed, epoch, (uint64_t)index, FINE) + 0.5) / (double)FINE;
}

/* The first of the running sums that is above u; the last that grew is above every u below 1 times it. */
static int64_t find(const double *sums, int64_t n, double u) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (sums[middle] > u) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* A binary heap of positions, the one with the greatest key first; i sinks to its place. */
static void sink(int64_t *heap, int64_t n, int64_t i, const double *keys) {
  for (int64_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && keys[heap[child + 1]] > keys[heap[child]]) child++;
    if (keys[heap[i]] >= keys[heap[child]]) return;
    int64_t moved = heap[i];
    heap[i] = heap[child];
    heap[child] = moved;
  }
}

bool gb_weighted(uint64_t seed, uint64_t epoch, const double *weights, int64_t n, double *room, bool replacement,
                 int64_t count, int64_t *out, const gb_stopper *stop) {
  double sum = 0;
  int64_t work = 0;
  if (replacement) {
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
      if (ends(stop, &work, 1)) return false;
      if (weights[i] > 0) last = i;
      room[i] = sum += weights[i];
    }
    for (int64_t i = 0; i < count; i++) {
      if (ends(stop, &work, FAR)) return false;
      int64_t drawn = find(room, n, uniform(seed, epoch, i) * sum);
      out[i] = drawn < last ? drawn : last; /* sums are rounded */
    }
    return true;
  }
  for (int64_t i = 0; i < n; i++) {
    if (ends(stop, &work, FAR)) return false;
    room[i] = weights[i] > 0 ? log(uniform(seed, epoch, i)) / weights[i] : -INFINITY;
    out[i] = i;
  }
  for (int64_t i = n / 2 - 1; i >= 0; i--) {
    if (ends(stop, &work, FAR)) return false;
    sink(out, n, i, room);
  }
  for (int64_t left = n; left > n - count; left--) { /* the greatest goes to the end */
    if (ends(stop, &work, FAR)) return false;
    int64_t greatest = out[0];
    out[0] = out[left - 1];
    out[left - 1] = greatest;
    sink(out, left - 1, 0, room);
  }
  for (int64_t low = 0, high = n - 1; low < high; low++, high--) {
    int64_t moved = out[low];
    out[low] = out[high];
    out[high] = moved;
  }
  return true;
}

/* Sort by length; equal ones keep their order. false: it is to end. */
static bool sort_by_length(int64_t *at, int64_t n, const int64_t *lengths, int64_t *room, const gb_stopper *stop,
                           int64_t *work) {
  int64_t half = n / 2, i = 0, j = half, k = 0;
  if (n < 2) return true;
  if (!sort_by_length(at, half, lengths, room, stop, work)) return false;
  if (!sort_by_length(at + half, n - half, lengths, room, stop, work)) return false;
  while (i < half || j < n) {
    if (ends(stop, work, 4)) return false;
    bool first = j == n || (i < half && lengths[at[i]] <= lengths[at[j]]);
    room[k++] = first ? at[i++] : at[j++];
  }
  memcpy(at, room, (size_t)n * sizeof *at);
  return true;
}

bool gb_bucketed(uint64_t seed, uint64_t epoch, const int64_t *lengths, int64_t n, int64_t batch_size, int64_t window,
                 bool shuffle, int64_t *room, int64_t *out, const gb_stopper *stop) {
  int64_t work = 0;
  if (!shuffle) {
    for (int64_t i = 0; i < n; i++) out[i] = i;
    return sort_by_length(out, n, lengths, room, stop, &work);
  }
  if (!gb_permutation(seed, epoch, n, out, stop)) return false;
  int64_t step = window > n / batch_size ? n : window * batch_size, full = n / batch_size;
  for (int64_t at = 0; at < n; at += step)
    if (!sort_by_length(out + at, n - at < step ? n - at : step, lengths, room, stop, &work)) return false;
  for (int64_t i = full - 1; i > 0; i--) { /* Fisher and Yates, on batches */
    int64_t other = bounded(~seed, STREAM_PERMUTATION | epoch, (uint64_t)i, i + 1);
    for (int64_t k = 0; k < batch_size && other != i; k++) {
      if (ends(stop, &work, FAR)) return false;
      int64_t moved = out[i * batch_size + k];
      out[i * batch_size + k] = out[other * batch_size + k];
      out[other * batch_size + k] = moved;
    }
  }
  return true;
}

/* ====} */
