/* base/philox.h - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
 * section 3.3).
 *
 * A counter-based generator: the words at (seed, offset, index) depend on nothing else, so any thread and any device
 * can make any of them. `index` is the logical element divided by 4 (one call makes four words); `offset` numbers the
 * random op in its stream. */
#ifndef GB_BASE_PHILOX_H
#define GB_BASE_PHILOX_H

#include "base/float.h"

GB_INLINE void gb_philox(uint64_t seed, uint64_t offset, uint64_t index, uint32_t out[4]) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* A word as a float32 in [0, 1): its top 24 bits. */
GB_INLINE float gb_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
/* Two words as a float64 in [0, 1): 53 bits. */
GB_INLINE double gb_uniform64(uint32_t high, uint32_t low) { return (double)((((uint64_t)high << 32) | low) >> 11) *
                                                             0x1p-53; }

#endif
