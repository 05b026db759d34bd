/* data/shuffle.c - random orders from Philox words, apart from the streams of the ops: the top bits of the offset tell
 * them apart. */
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

void gb_permutation(uint64_t seed, uint64_t epoch, int64_t count, int64_t *out) {
  for (int64_t i = 0; i < count; i++) out[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    int64_t other = bounded(seed, STREAM_PERMUTATION | epoch, (uint64_t)i, i + 1), moved = out[i];
    out[i] = out[other];
    out[other] = moved;
  }
}
