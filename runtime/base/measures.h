/* base/measures.h - the order in which what was measured of the parts of a parameter is added up.
 *
 * It is that of a block of a GPU: part i goes to lane i % 256; the lanes of a warp of 32 are added by halves, and then
 * the warps. So processes that have parts each get the bits of one that has all of them, on every device. */
#ifndef GB_BASE_MEASURES_H
#define GB_BASE_MEASURES_H

#include <stdint.h>

enum { GB_SUM_LANES = 256, GB_SUM_WARP = 32 };

static inline double gb_sum_halves(double *lane, int count) {
  for (int width = count / 2; width > 0; width /= 2)
    for (int k = 0; k < width; k++) lane[k] += lane[k + width];
  return lane[0];
}

/* So many pairs of numbers, one after another, into two sums. */
static inline void gb_sum_parts(const double *pairs, int64_t count, double sum[2]) {
  for (int k = 0; k < 2; k++) {
    double lane[GB_SUM_LANES] = { 0 }, warp[GB_SUM_LANES / GB_SUM_WARP];
    for (int64_t i = 0; i < count; i++) lane[i % GB_SUM_LANES] += pairs[2 * i + k];
    for (int w = 0; w < GB_SUM_LANES / GB_SUM_WARP; w++) warp[w] = gb_sum_halves(lane + w * GB_SUM_WARP, GB_SUM_WARP);
    sum[k] = gb_sum_halves(warp, GB_SUM_LANES / GB_SUM_WARP);
  }
}

#endif
