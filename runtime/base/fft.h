/* base/fft.h - what a Fourier transform of rows is made of: the plan of one length, its roots of unity, and for float
 * and double the steps of it (fft_of.h). Both backends read these functions.
 *
 * A real row of an even length n is a complex one of h = n / 2, of an odd length one of h = n. A complex row goes
 * through stages of radix 4, 5, 3 and 2 (Stockham: the results come in order); where h has another factor it is a
 * convolution with a chirp (Bluestein), whose length is a power of 2. The plan hangs on the length alone, so the bits
 * of a row do too. Roots of unity are found in float64. A row turned around is one with its parts exchanged before and
 * after. */
#ifndef GB_BASE_FFT_H
#define GB_BASE_FFT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/float.h"

enum { GB_FFT_STAGES = 40, GB_FFT_MOST_RADIX = 5 };
#define GB_FFT_MOST ((int64_t)1 << 40) /* elements of a row, at most */

/* h: of the complex row; m: what the stages transform, h itself or more with a chirp. */
typedef struct gb_fft_plan {
  int64_t n, h, m;
  bool even, chirp;
  int count, radix[GB_FFT_STAGES];
} gb_fft_plan;

/* Put the factors of m that there are stages for into the plan; what is left of m is returned. */
GB_INLINE int64_t gb_fft_factor(gb_fft_plan *p, int64_t m) {
  const int known[4] = { 4, 5, 3, 2 };
  p->count = 0;
  for (int i = 0; i < 4; i++)
    for (; m % known[i] == 0 && m > 1; m /= known[i]) p->radix[p->count++] = known[i];
  return m;
}

GB_INLINE gb_fft_plan gb_fft_plan_of(int64_t n) {
  gb_fft_plan p;
  p.n = n;
  p.even = n % 2 == 0;
  p.h = p.even ? n / 2 : n;
  p.m = p.h;
  p.chirp = gb_fft_factor(&p, p.h) != 1;
  if (!p.chirp) return p;
  for (p.m = 1; p.m < 2 * p.h - 1;) p.m *= 2;
  gb_fft_factor(&p, p.m);
  return p;
}

/* How many numbers a real row of n has as a transform. */
GB_INLINE int64_t gb_fft_half(int64_t n) { return n / 2 + 1; }

/* The cosine and sine of j / n of a turn, 0 <= j <= n: of an angle up to an eighth, so no digits are lost. */
GB_INLINE void gb_fft_root(int64_t j, int64_t n, double *c, double *s) {
  int64_t at = 8 * j, turn = 8 * n;
  bool below = 2 * at > turn, left, steep;
  if (below) at = turn - at;
  left = 4 * at > turn;
  if (left) at = turn / 2 - at;
  steep = 8 * at > turn;
  if (steep) at = turn / 4 - at;
  double angle = 6.283185307179586476925 * ((double)at / (double)turn), x = cos(angle), y = sin(angle);
  *c = steep ? y : x;
  *s = steep ? x : y;
  if (left) *c = -*c;
  if (below) *s = -*s;
}

/* The same of half of j^2 / n of a turn, j < n: a chirp. */
GB_INLINE void gb_fft_chirp(int64_t j, int64_t n, double *c, double *s) {
  uint64_t turn = 2 * (uint64_t)n, x = (uint64_t)j, square = 0;
  if (j < (int64_t)1 << 31) square = x * x % turn;
  else /* by bits: the square does not fit into a word */
    for (int bit = 41; bit >= 0; bit--) square = (2 * square + (x >> bit & 1 ? x : 0)) % turn;
  gb_fft_root((int64_t)square, (int64_t)turn, c, s);
}

/* What a number of the transform counts for: those that stand for two count twice where `doubled`. */
GB_INLINE double gb_fft_weight(int64_t k, int64_t n, bool doubled) { return doubled && k > 0 && 2 * k != n ? 2 : 1; }

#endif
