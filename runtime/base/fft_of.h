/* base/fft_of.h - the steps of a Fourier transform in REAL, float or double: included once for each, with OF(name) the
 * name of a step in it. See fft.h. Real and imaginary parts lie in arrays of their own. */

/* Transforms of 2 to 5 numbers in place: the sum over k of a[k] e^(-2 pi i j k / r). */

GB_INLINE void OF(fft_2)(REAL *a, REAL *b) {
  REAL a1 = a[1], b1 = b[1];
  a[1] = a[0] - a1, b[1] = b[0] - b1;
  a[0] += a1, b[0] += b1;
}

GB_INLINE void OF(fft_3)(REAL *a, REAL *b) {
  const REAL sine = (REAL)0.86602540378443864676;
  REAL at = a[1] + a[2], bt = b[1] + b[2], ad = (a[1] - a[2]) * sine, bd = (b[1] - b[2]) * sine;
  REAL am = a[0] - at / 2, bm = b[0] - bt / 2;
  a[0] += at, b[0] += bt;
  a[1] = am + bd, b[1] = bm - ad;
  a[2] = am - bd, b[2] = bm + ad;
}

GB_INLINE void OF(fft_4)(REAL *a, REAL *b) {
  REAL as = a[0] + a[2], bs = b[0] + b[2], ad = a[0] - a[2], bd = b[0] - b[2];
  REAL at = a[1] + a[3], bt = b[1] + b[3], ae = a[1] - a[3], be = b[1] - b[3];
  a[0] = as + at, b[0] = bs + bt;
  a[1] = ad + be, b[1] = bd - ae;
  a[2] = as - at, b[2] = bs - bt;
  a[3] = ad - be, b[3] = bd + ae;
}

GB_INLINE void OF(fft_5)(REAL *a, REAL *b) {
  const REAL c1 = (REAL)0.30901699437494742410, c2 = (REAL)-0.80901699437494742410;
  const REAL s1 = (REAL)0.95105651629515357212, s2 = (REAL)0.58778525229247312917;
  REAL at = a[1] + a[4], bt = b[1] + b[4], ad = a[1] - a[4], bd = b[1] - b[4];
  REAL au = a[2] + a[3], bu = b[2] + b[3], ae = a[2] - a[3], be = b[2] - b[3];
  REAL am = a[0] + c1 * at + c2 * au, bm = b[0] + c1 * bt + c2 * bu;
  REAL an = a[0] + c2 * at + c1 * au, bn = b[0] + c2 * bt + c1 * bu;
  REAL ap = s1 * ad + s2 * ae, bp = s1 * bd + s2 * be, aq = s2 * ad - s1 * ae, bq = s2 * bd - s1 * be;
  a[0] += at + au, b[0] += bt + bu;
  a[1] = am + bp, b[1] = bm - ap;
  a[4] = am - bp, b[4] = bm + ap;
  a[2] = an + bq, b[2] = bn - aq;
  a[3] = an - bq, b[3] = bn + aq;
}

GB_INLINE void OF(fft_any)(int radix, REAL *a, REAL *b) {
  if (radix == 2) OF(fft_2)(a, b);
  else if (radix == 3) OF(fft_3)(a, b);
  else if (radix == 4) OF(fft_4)(a, b);
  else OF(fft_5)(a, b);
}

/* (a + ib) (c - is): turned back by a root. */
GB_INLINE void OF(fft_turn)(REAL *a, REAL *b, REAL c, REAL s) {
  REAL x = *a * c + *b * s;
  *b = *b * c - *a * s;
  *a = x;
}

/* One step of a stage: `radix` numbers, `apart` from each other, from x + at to y + to, where they lie `step` apart.
 * Number j is turned by the root j * turn, of which c and s are the tables. */
GB_INLINE void OF(fft_step)(int radix, const REAL *xa, const REAL *xb, int64_t at, int64_t apart, REAL *ya, REAL *yb,
                            int64_t to, int64_t step, const REAL *c, const REAL *s, int64_t turn) {
  REAL a[GB_FFT_MOST_RADIX], b[GB_FFT_MOST_RADIX];
  for (int k = 0; k < radix; k++) a[k] = xa[at + k * apart], b[k] = xb[at + k * apart];
  OF(fft_any)(radix, a, b);
  ya[to] = a[0], yb[to] = b[0];
  for (int j = 1; j < radix; j++) {
    OF(fft_turn)(&a[j], &b[j], c[j * turn], s[j * turn]);
    ya[to + j * step] = a[j], yb[to + j * step] = b[j];
  }
}

/* Number k of the transform of a real row of even length, from those of its halves' at k and at h - k, k's root being
 * (c, s). */
GB_INLINE void OF(fft_split)(REAL a, REAL b, REAL ao, REAL bo, REAL c, REAL s, REAL *re, REAL *im) {
  REAL ea = (a + ao) / 2, eb = (b - bo) / 2, da = (b + bo) / 2, db = (ao - a) / 2;
  OF(fft_turn)(&da, &db, c, s);
  *re = ea + da;
  *im = eb + db;
}

/* The other way: number k of what the halves' row is made of, from the numbers k and h - k of the transform. */
GB_INLINE void OF(fft_join)(REAL a, REAL b, REAL ao, REAL bo, REAL c, REAL s, REAL *re, REAL *im) {
  REAL ea = a + ao, eb = b - bo, da = a - ao, db = b + bo;
  OF(fft_turn)(&da, &db, c, -s);
  *re = ea - db;
  *im = eb + da;
}
