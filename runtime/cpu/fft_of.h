/* cpu/fft_of.h - rows of Fourier transforms in REAL, float or double: included once for each by fft.c, with OF(name)
 * the name of a function in it. Rows are brought into lanes beside each other, element by element, so that every loop
 * runs along them. */

/* Two complex arrays: what the next stage reads, and where it writes. */
typedef struct OF(arrays) { REAL *a, *b, *c, *d; } OF(arrays);

/* The tables of a plan: roots of m, of n, the chirp and the transform of its inverse. */
typedef struct OF(tables) { REAL *root, *turn, *chirp, *filter; } OF(tables);

static OF(tables) OF(tables_of)(const job *j) {
  REAL *base = (REAL *)(void *)j->scratch.shared, *turn = base + 2 * j->plan.m, *chirp = turn + 2 * (j->plan.h + 1);
  return (OF(tables)){ base, turn, chirp, chirp + 2 * j->plan.h };
}

/* A part of the tables, cosines first. */
static void OF(fill_chunk)(void *arg, int64_t chunk) {
  const job *j = arg;
  const gb_fft_plan *p = &j->plan;
  OF(tables) t = OF(tables_of)(j);
  int64_t end = (chunk + 1) * TABLE_CHUNK;
  for (int64_t i = chunk * TABLE_CHUNK; i < end; i++) {
    double c, s;
    if (i < p->m) gb_fft_root(i, p->m, &c, &s), t.root[i] = (REAL)c, t.root[p->m + i] = (REAL)s;
    if (p->even && i <= p->h) gb_fft_root(i, p->n, &c, &s), t.turn[i] = (REAL)c, t.turn[p->h + 1 + i] = (REAL)s;
    if (p->chirp && i < p->h) gb_fft_chirp(i, p->h, &c, &s), t.chirp[i] = (REAL)c, t.chirp[p->h + i] = (REAL)s;
  }
}

/* A stage of one radix over `length` numbers that are left to transform, of which `beside` lie side by side. */
#define STAGE(R)                                                                                                  \
  for (int64_t i = 0; i < length / R; i++)                                                                        \
    for (int64_t at = 0; at < beside; at += SPAN) {                                                               \
      int64_t n = beside - at < SPAN ? beside - at : SPAN, from = beside * i + at, to = beside * R * i + at;      \
      if (i % look == 0 && gb_work(look * R * n)) return;                                                         \
      _Pragma("omp simd") for (int64_t q = 0; q < n; q++)                                                         \
        OF(fft_step)(R, x->a, x->b, from + q, beside * (length / R), x->c, x->d, to + q, beside, root, root + m,  \
                     i * (m / length));                                                                           \
    }

/* All stages, over `lanes` rows of m: from a and b by way of c and d, and back into a and b by exchanging the names. */
static void OF(stages)(const job *j, OF(arrays) *x, int64_t lanes) {
  const gb_fft_plan *p = &j->plan;
  const REAL *root = OF(tables_of)(j).root;
  int64_t m = p->m, length = m;
  for (int k = 0; k < p->count; k++) {
    int64_t beside = lanes * (m / length), look = 1 + PER_LOOK / beside;
    int radix = p->radix[k];
    if (radix == 2) { STAGE(2) }
    else if (radix == 3) { STAGE(3) }
    else if (radix == 4) { STAGE(4) }
    else { STAGE(5) }
    *x = (OF(arrays)){ x->c, x->d, x->a, x->b };
    length /= radix;
  }
}
#undef STAGE

/* The transform turned around: parts exchanged before and after. */
static void OF(stages_back)(const job *j, OF(arrays) *x, int64_t lanes) {
  OF(arrays) turned = { x->b, x->a, x->d, x->c };
  OF(stages)(j, &turned, lanes);
  *x = (OF(arrays)){ turned.b, turned.a, turned.d, turned.c };
}

/* What a row turned by the chirp is multiplied with: the transform of the chirp turned back, by m. */
static void OF(fill_filter)(const job *j) {
  const gb_fft_plan *p = &j->plan;
  OF(tables) t = OF(tables_of)(j);
  int64_t m = p->m, h = p->h;
  REAL *work = t.filter + 2 * m;
  OF(arrays) x = { work, work + m, t.filter, t.filter + m };
  for GB_PIECES(at, count, m)
    for (int64_t i = at; i < at + count; i++) {
      int64_t k = i < h ? i : i > m - h ? m - i : -1;
      x.a[i] = k < 0 ? 0 : t.chirp[k] / (REAL)m;
      x.b[i] = k < 0 ? 0 : t.chirp[h + k] / (REAL)m;
    }
  OF(stages)(j, &x, 1);
  if (x.a == t.filter) return;
  gb_copy_bytes(t.filter, x.a, (size_t)(2 * m) * sizeof(REAL));
}

/* Numbers `at` .. of each row turned by the roots c, s, or by those turned back. */
static void OF(turn_rows)(REAL *a, REAL *b, int64_t lanes, int64_t n, const REAL *c, const REAL *s) {
  for (int64_t i = 0; i < n && !(i % PER_LOOK == 0 && gb_work(PER_LOOK * lanes)); i++) {
    _Pragma("omp simd") for (int64_t q = 0; q < lanes; q++)
      OF(fft_turn)(&a[i * lanes + q], &b[i * lanes + q], c[i], s[i]);
  }
}

/* a + ib times the filter. */
static void OF(filter_rows)(REAL *a, REAL *b, int64_t lanes, int64_t m, const REAL *filter) {
  for (int64_t i = 0; i < m && !(i % PER_LOOK == 0 && gb_work(PER_LOOK * lanes)); i++) {
    REAL c = filter[i], s = -filter[m + i];
    _Pragma("omp simd") for (int64_t q = 0; q < lanes; q++) OF(fft_turn)(&a[i * lanes + q], &b[i * lanes + q], c, s);
  }
}

/* The transform of complex rows of h. */
static void OF(forward)(const job *j, OF(arrays) *x) {
  const gb_fft_plan *p = &j->plan;
  OF(tables) t = OF(tables_of)(j);
  if (!p->chirp) { OF(stages)(j, x, j->lanes); return; }
  OF(turn_rows)(x->a, x->b, j->lanes, p->h, t.chirp, t.chirp + p->h);
  gb_clear_bytes(x->a + p->h * j->lanes, (size_t)((p->m - p->h) * j->lanes) * sizeof(REAL));
  gb_clear_bytes(x->b + p->h * j->lanes, (size_t)((p->m - p->h) * j->lanes) * sizeof(REAL));
  OF(stages)(j, x, j->lanes);
  OF(filter_rows)(x->a, x->b, j->lanes, p->m, t.filter);
  OF(stages_back)(j, x, j->lanes);
  OF(turn_rows)(x->a, x->b, j->lanes, p->h, t.chirp, t.chirp + p->h);
}

static void OF(backward)(const job *j, OF(arrays) *x) {
  OF(arrays) turned = { x->b, x->a, x->d, x->c };
  OF(forward)(j, &turned);
  *x = (OF(arrays)){ turned.b, turned.a, turned.d, turned.c };
}

/* A real row into lane `lane`. */
static void OF(take_real)(const job *j, const OF(arrays) *x, const REAL *row, int64_t lane) {
  int64_t lanes = j->lanes;
  for GB_PIECES(at, count, j->plan.h)
    for (int64_t i = at; i < at + count; i++) {
      x->a[i * lanes + lane] = j->plan.even ? row[2 * i] : row[i];
      x->b[i * lanes + lane] = j->plan.even ? row[2 * i + 1] : 0;
    }
}

static void OF(give_real)(const job *j, const OF(arrays) *x, REAL *row, int64_t lane) {
  int64_t lanes = j->lanes;
  REAL scale = (REAL)j->scale;
  for GB_PIECES(at, count, j->plan.h)
    for (int64_t i = at; i < at + count; i++) {
      REAL a = x->a[i * lanes + lane] * scale, b = x->b[i * lanes + lane] * scale;
      if (j->plan.even) row[2 * i] = a, row[2 * i + 1] = b;
      else row[i] = a;
    }
}

/* The transform of a real row from that of its lane. */
static void OF(give_half)(const job *j, const OF(arrays) *x, REAL *row, int64_t lane) {
  const gb_fft_plan *p = &j->plan;
  const REAL *turn = OF(tables_of)(j).turn;
  int64_t lanes = j->lanes, h = p->h;
  for GB_PIECES(at, count, gb_fft_half(p->n))
    for (int64_t k = at; k < at + count; k++) {
      int64_t here = (k < h ? k : 0) * lanes + lane, other = (k > 0 && k < h ? h - k : 0) * lanes + lane;
      REAL re = x->a[here], im = x->b[here], scale = (REAL)(j->scale * gb_fft_weight(k, p->n, j->doubled));
      if (p->even) OF(fft_split)(re, im, x->a[other], x->b[other], turn[k], turn[h + 1 + k], &re, &im);
      row[2 * k] = re * scale;
      row[2 * k + 1] = k == 0 || 2 * k == p->n ? 0 : im * scale;
    }
}

/* Number k of the transform that a row is made from: the row of a real signal, whose ends are real. */
static void OF(number_of)(const job *j, const REAL *row, int64_t k, REAL *re, REAL *im) {
  bool end = k == 0 || 2 * k == j->plan.n;
  REAL part = end || j->doubled ? 1 : (REAL)0.5;
  *re = row[2 * k] * part;
  *im = end ? 0 : row[2 * k + 1] * part;
}

/* The transform of a real row into lane `lane`. */
static void OF(take_half)(const job *j, const OF(arrays) *x, const REAL *row, int64_t lane) {
  const gb_fft_plan *p = &j->plan;
  const REAL *turn = OF(tables_of)(j).turn;
  int64_t lanes = j->lanes, h = p->h;
  for GB_PIECES(at, count, h)
    for (int64_t k = at; k < at + count; k++) {
      REAL re, im, ro, io;
      if (p->even) {
        OF(number_of)(j, row, k, &re, &im);
        OF(number_of)(j, row, h - k, &ro, &io);
        OF(fft_join)(re, im, ro, io, turn[k], turn[h + 1 + k], &re, &im);
      } else if (k < gb_fft_half(p->n)) OF(number_of)(j, row, k, &re, &im);
      else OF(number_of)(j, row, p->n - k, &re, &im), im = -im;
      x->a[k * lanes + lane] = re;
      x->b[k * lanes + lane] = im;
    }
}

/* `count` rows from `first` on, up to as many as there are lanes; lanes without a row hold zeros. */
static void OF(run_batch)(const job *j, int64_t first, int64_t count) {
  int64_t size = j->plan.m * j->lanes;
  REAL *room = (REAL *)(void *)gb_scratch_room(&j->scratch), *row = room + 4 * size;
  OF(arrays) x = { room, room + size, room + 2 * size, room + 3 * size };
  int64_t x_bytes = j->x_row * (int64_t)gb_dtype_bytes((gb_dtype)j->x->dtype);
  int64_t y_bytes = j->y_row * (int64_t)gb_dtype_bytes((gb_dtype)j->y->dtype);
  for (int64_t lane = 0; lane < j->lanes && !gb_was_stopped(j->call); lane++) {
    int64_t used = 0;
    if (lane < count)
      for GB_PIECES(at, n, j->x_row) {
        const char *from = gb_data(j->x) + (first + lane) * x_bytes + at * (x_bytes / j->x_row);
        gb_lane_load(j->lane, row + at, from, (gb_dtype)j->x->dtype, 1, n), used += n;
      }
    if (used == 0) gb_clear_bytes(row, (size_t)j->x_row * sizeof(REAL));
    if (j->back) OF(take_half)(j, &x, row, lane);
    else OF(take_real)(j, &x, row, lane);
  }
  if (j->back) OF(backward)(j, &x);
  else OF(forward)(j, &x);
  for (int64_t lane = 0; lane < count && !gb_was_stopped(j->call); lane++) {
    if (j->back) OF(give_real)(j, &x, row, lane);
    else OF(give_half)(j, &x, row, lane);
    for GB_PIECES(at, n, j->y_row)
      gb_lane_store(j->lane, gb_data(j->y) + (first + lane) * y_bytes + at * (y_bytes / j->y_row),
                    (gb_dtype)j->y->dtype, 1, row + at, n);
  }
}

static void OF(run_chunk)(void *arg, int64_t chunk) {
  const job *j = arg;
  int64_t end = (chunk + 1) * j->per_chunk;
  for (int64_t at = chunk * j->per_chunk; at < end && at < j->rows && !gb_was_stopped(j->call); at += j->lanes)
    OF(run_batch)(j, at, j->rows - at < j->lanes ? j->rows - at : j->lanes);
}

/* The tables, and then all rows. */
static gb_status OF(run)(job *j) {
  const gb_fft_plan *p = &j->plan;
  int64_t longest = j->x_row > j->y_row ? j->x_row : j->y_row, entries = p->m > p->h + 1 ? p->m : p->h + 1;
  int64_t tables = 2 * p->m + 2 * (p->h + 1) + (p->chirp ? 2 * p->h + 4 * p->m : 0);
  size_t shared = 0, room = 0;
  gb_scratch_take(&shared, tables * (int64_t)sizeof(REAL));
  gb_scratch_take(&room, (4 * p->m * j->lanes + longest) * (int64_t)sizeof(REAL));
  GB_TRY(gb_scratch_open(j->call, shared, room, &j->scratch));
  gb_parallel(j->call, (entries + TABLE_CHUNK - 1) / TABLE_CHUNK, OF(fill_chunk), j);
  if (p->chirp && !gb_was_stopped(j->call)) OF(fill_filter)(j);
  if (!gb_was_stopped(j->call)) gb_parallel(j->call, (j->rows + j->per_chunk - 1) / j->per_chunk, OF(run_chunk), j);
  gb_scratch_close(j->call, &j->scratch);
  return GB_OK;
}

#undef REAL
#undef OF
