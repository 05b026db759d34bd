/* cpu/windows.c - the table of windows, and rows by it.
 *
 * A row of float32 goes by pieces, the fastest that fit: where each element makes two, or two make one, with the same
 * weights throughout (scale factors of 2 and 1/2), by vectors as they lie, put in turn or parted; where windows follow
 * one another closely by permuting one or two vectors of the row; else by gathering. All add in the same order. */
#include "cpu/windows.h"

/* The longest windows that are read by permutations. */
enum { MOST_PERMUTED = 32 };

/* Pieces between two looks for a stop. */
enum { PIECES_AT_ONCE = 64 };

/* Levels that permute a vector by numbers in another. */
#if defined(__AVX512BW__) || defined(GB_WIDE_AVX2)
enum { PERMUTES = 1 };
#else
enum { PERMUTES = 0 };
#endif

/* GATHERED: elements o .. end - 1 one by one.
 * IN_ONE, IN_TWO: GB_VECTOR elements, whose windows of `count` elements begin within one or two vectors from `from`
 * on; the lanes they begin at are pick[0], the weights of element k of each window weight[k].
 * DOUBLED: GB_WIDE elements, of which the even ones have windows from `from` on, each an element after the one before
 * it, and the odd ones from `odd` on; all even ones have the weights w[0 .. count - 1], the odd ones w[count ..].
 * HALVED: GB_VECTOR elements, whose windows begin two elements apart from `from` on and all have the weights w.
 * SINGLE: one element, whose short window begins at `from` and has the weights w. */
typedef enum piece_kind { GATHERED, IN_ONE, IN_TWO, DOUBLED, HALVED, SINGLE } piece_kind;

struct gb_window_piece {
  piece_kind kind;
  int64_t o, end, from, odd, count;
  const gb_vector_bits *pick;
  const gb_vector *weight;
  const float *w;
};
typedef gb_window_piece piece;

/* {==== the table ==== */

/* So many windows and weights of the table: is a stop asked for? What was begun is then left as it is. */
enum { WINDOW_STEP = 8, WEIGHT_STEP = 4 };
static bool table_work(int64_t windows, int64_t weights) {
  return gb_work(windows * WINDOW_STEP + weights * WEIGHT_STEP);
}

/* gb_resample_bounds_of, as one function for all: copies of it in several loops may be contracted to fused operations
 * each in its own way, and where a window ends on an element, would disagree about it. */
static __attribute__((noinline)) gb_resample_window bounds_of(const gb_resampling *r, int64_t o) {
  return gb_resample_bounds_of(r, o);
}

/* gb_resample_window_of, which may be as long as the row. */
static gb_resample_window window_of(const gb_resampling *r, int64_t o) {
  gb_resample_window w = bounds_of(r, o);
  for (int64_t k = 0; r->antialias && k < w.count && !table_work(0, 1); k++)
    w.total += gb_resample_smooth(r, w.centre, w.first + k);
  return w;
}

/* The windows of r in order. */
static void fill_forward(const gb_resampling *r, gb_windows *t) {
  int64_t at = 0;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) {
    gb_resample_window w = window_of(r, o);
    t->first[o] = w.first;
    t->begin[o] = at;
    for (int64_t k = 0; k < w.count && !table_work(0, 1); k++)
      t->weight[at++] = gb_resample_weight(r, &w, w.first + k);
  }
  t->begin[r->out] = at;
}

/* The same turned around: the results whose windows an element of the row lies in, which follow one another. */
static void fill_backward(const gb_resampling *r, gb_windows *t) {
  int64_t low = 0, high = 0, at = 0;
  for (int64_t i = 0; i < r->in; i++) {
    for (; low < r->out; low++) {
      gb_resample_window w = bounds_of(r, low);
      if (table_work(1, 0)) return;
      if (w.first + w.count > i) break;
    }
    for (; high < r->out && bounds_of(r, high).first <= i; high++)
      if (table_work(1, 0)) return;
    t->first[i] = low;
    t->begin[i] = at;
    if (table_work(1, 0)) return;
    if (high > low) at += high - low;
  }
  t->begin[r->in] = at;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) {
    gb_resample_window w = window_of(r, o);
    for (int64_t i = w.first; i < w.first + w.count && !table_work(0, 1); i++)
      t->weight[t->begin[i] + o - t->first[i]] = gb_resample_weight(r, &w, i);
  }
}

/* Elements from o on as a piece by permutations, if their windows lie close enough. */
static bool permuted_piece(gb_windows *t, int64_t o) {
  int64_t count = t->begin[o + 1] - t->begin[o], span = t->first[o + GB_VECTOR - 1] - t->first[o];
  int64_t vectors = span < GB_VECTOR ? 1 : 2;
  int64_t last = t->n - count + 1 - vectors * GB_VECTOR, from = t->first[o] < last ? t->first[o] : last;
  if (count > MOST_PERMUTED || span >= GB_WIDE || last < 0) return false;
  t->pieces[t->count++] = (piece){ .kind = vectors == 1 ? IN_ONE : IN_TWO, .o = o, .end = o + GB_VECTOR, .from = from,
                                   .count = count, .pick = t->pick + t->picks, .weight = t->picked + t->weights };
  for (int64_t lane = 0; lane < GB_VECTOR && !table_work(0, count); lane++) {
    t->pick[t->picks][lane] = (uint32_t)(t->first[o + lane] - from);
    for (int64_t k = 0; k < count; k++)
      t->picked[t->weights + k][lane] = (float)t->weight[t->begin[o + lane] + k];
  }
  t->picks++, t->weights += count;
  return true;
}

/* Do the windows of elements o, o + every, ... before end begin `step` elements apart, and have the same weights? */
static bool is_regular(const gb_windows *t, int64_t o, int64_t end, int64_t every, int64_t step) {
  const int64_t count = t->begin[o + 1] - t->begin[o];
  const float *w = t->weight32 + t->begin[o];
  for (int64_t at = o + every, first = t->first[o] + step; at < end; at += every, first += step)
    if (table_work(1, count) || t->first[at] != first ||
        memcmp(w, t->weight32 + t->begin[at], (size_t)count * sizeof *w))
      return false;
  return true;
}

/* Is there a doubled or halved piece from o on? `stop` is where windows of another length begin. */
static bool find_regular(const gb_windows *t, int64_t o, int64_t stop, piece *p) {
  const int64_t count = t->begin[o + 1] - t->begin[o];
  *p = (piece){ .o = o, .from = t->first[o], .count = count, .w = t->weight32 + t->begin[o] };
  if (stop - o >= GB_WIDE && (count == 1 || count == 2 || count == 4) && is_regular(t, o, o + GB_WIDE, 2, 1) &&
      is_regular(t, o + 1, o + GB_WIDE, 2, 1))
    p->kind = DOUBLED, p->end = o + GB_WIDE, p->odd = t->first[o + 1];
  else if (stop - o >= GB_VECTOR && (count == 2 || count == 4 || count == 8) && is_regular(t, o, o + GB_VECTOR, 1, 2))
    p->kind = HALVED, p->end = o + GB_VECTOR;
  return p->end > o;
}

/* Pieces with the same weights share them, so that a loop over such pieces keeps them in registers. */
static void add_regular(gb_windows *t, piece p) {
  const piece *before = t->count > 0 ? t->pieces + t->count - 1 : NULL;
  const size_t bytes = (size_t)p.count * sizeof *p.w * (p.kind == DOUBLED ? 2 : 1);
  if (before && before->kind == p.kind && before->count == p.count && !memcmp(before->w, p.w, bytes)) p.w = before->w;
  t->pieces[t->count++] = p;
}

/* Elements o .. end - 1 one by one, in pieces of a tile, with those before them if these are too. One between vectors
 * is a piece by itself, as are the first of a row, whose windows often differ. */
enum { MOST_FIRST = 4 };
static void add_gathered(gb_windows *t, int64_t o, int64_t end) {
  piece *p = t->count > 0 ? t->pieces + t->count - 1 : NULL;
  const int64_t count = o < end ? t->begin[o + 1] - t->begin[o] : 0;
  const bool alone = !p || (p->kind == SINGLE ? o < MOST_FIRST : p->kind != GATHERED);
  if (o + 1 == end && count <= MOST_PERMUTED && alone) {
    t->pieces[t->count++] = (piece){ .kind = SINGLE, .o = o, .end = end, .from = t->first[o], .count = count,
                                     .w = t->weight32 + t->begin[o] };
    return;
  }
  if (o < end && p && p->kind == SINGLE) p->kind = GATHERED;
  for (int64_t stop; o < end && !table_work(1, 0); o = stop) {
    p = t->count > 0 ? t->pieces + t->count - 1 : NULL;
    stop = end - o < GB_TILE ? end : o + GB_TILE;
    if (p && p->kind == GATHERED && stop - p->o <= GB_TILE) p->end = stop;
    else t->pieces[t->count++] = (piece){ .kind = GATHERED, .o = o, .end = stop };
  }
}

/* Windows of one length, o .. stop - 1, by vectors, of which the last begins early enough to end with them, and writes
 * some elements a second time. Returns the first element that is left. The first window of a row often differs from
 * those after it, which are regular: then it stands alone. */
static int64_t add_vectors(gb_windows *t, int64_t o, int64_t stop) {
  piece p;
  int64_t at = o;
  if (stop - o > GB_VECTOR && find_regular(t, o + 1, stop, &p) && !find_regular(t, o, stop, &p))
    add_gathered(t, o, o + 1), at = o + 1;
  while (stop - o >= GB_VECTOR && at < stop && !table_work(1, 0)) {
    const int64_t left = stop - at, last = left < GB_VECTOR ? stop - GB_VECTOR : at;
    const bool ends = left > GB_VECTOR && left < GB_WIDE && stop - GB_WIDE >= o;
    if (find_regular(t, ends ? stop - GB_WIDE : last, stop, &p)) add_regular(t, p), at = p.end;
    else if (permuted_piece(t, last)) at = last + GB_VECTOR;
    else break;
  }
  return at;
}

/* The pieces of a row: by runs of windows of one length. */
static void fill_pieces(gb_windows *t) {
  for (int64_t o = 0, stop; o < t->m && !table_work(1, 0); o = stop) {
    stop = t->same[o];
    add_gathered(t, PERMUTES ? add_vectors(t, o, stop) : o, stop);
  }
}

int64_t gb_windows_weights(const gb_resampling *r) {
  int64_t count = 0;
  for (int64_t o = 0; o < r->out && !table_work(1, 0); o++) count += bounds_of(r, o).count;
  return count;
}

gb_windows_room gb_windows_take(size_t *total, int64_t m, int64_t weights, bool cut) {
  gb_windows_room r = { .first = gb_scratch_take(total, m * 8), .begin = gb_scratch_take(total, (m + 1) * 8),
                        .same = gb_scratch_take(total, m * 8), .weight = gb_scratch_take(total, weights * 8),
                        .weight32 = gb_scratch_take(total, weights * 4), .cut = cut };
  const int64_t most = 6 * (m / GB_VECTOR) + 2 * (m / GB_TILE) + 2 + MOST_FIRST;
  if (cut) r.pieces = gb_scratch_take(total, most * (int64_t)sizeof(piece));
  if (cut) r.pick = gb_scratch_take(total, 2 * m * 4), r.picked = gb_scratch_take(total, 2 * weights * 4);
  return r;
}

bool gb_windows_are_doubled(const gb_windows *t) {
  const int64_t last = t->m - 1;
  const float *odd = t->weight32 + 2, *even = t->weight32 + 4;
  if (!PERMUTES || t->m != 2 * t->n || t->n < 3 || t->same[0] < last || t->begin[1] != 2) return false;
  if (t->first[0] != 0 || t->first[1] != 0 || t->first[2] != 0 || even[0] != odd[1] || even[1] != odd[0]) return false;
  return is_regular(t, 1, last, 2, 1) && is_regular(t, 2, last, 2, 1) && t->first[last] >= t->n - 2;
}

bool gb_windows_fill(gb_op_call *call, gb_windows *t, const gb_windows_room *room, char *base, const gb_resampling *r,
                     bool backward) {
  const int64_t m = backward ? r->in : r->out;
  *t = (gb_windows){ .n = backward ? r->out : r->in, .m = m, .longest = 0,
                     .first = (int64_t *)(void *)(base + room->first),
                     .begin = (int64_t *)(void *)(base + room->begin), .same = (int64_t *)(void *)(base + room->same),
                     .weight = (double *)(void *)(base + room->weight),
                     .weight32 = (float *)(void *)(base + room->weight32) };
  if (backward) fill_backward(r, t);
  else fill_forward(r, t);
  if (gb_was_stopped(call)) return false;
  for GB_PIECES(at, n, t->begin[m])
    for (int64_t i = at; i < at + n; i++) t->weight32[i] = (float)t->weight[i];
  for (int64_t o = m - 1; o >= 0 && !gb_long_loop(o); o--) {
    const int64_t count = t->begin[o + 1] - t->begin[o];
    bool alike = o + 1 < m && t->begin[o + 2] - t->begin[o + 1] == count;
    t->same[o] = alike ? t->same[o + 1] : o + 1;
    if (count > t->longest) t->longest = count;
  }
  if (!room->cut || gb_was_stopped(call)) return !gb_was_stopped(call);
  t->pieces = (piece *)(void *)(base + room->pieces);
  t->pick = (gb_vector_bits *)(void *)(base + room->pick), t->picked = (gb_vector *)(void *)(base + room->picked);
  fill_pieces(t);
  return !gb_was_stopped(call);
}

/* ====} */

/* {==== rows ==== */

/* Elements o .. end - 1 of a row y, each so many numbers beside each other, from a row x. Windows of one and two
 * elements, nearly all there are, have loops of their own. */
#define GATHER(name, real, weights)                                                                                    \
  void name(const gb_windows *t, real *restrict y, const real *restrict x, int64_t o, int64_t end, int64_t inner) {    \
    for (int64_t stop; o < end; o = stop) {                                                                            \
      const int64_t *first = t->first, count = t->begin[o + 1] - t->begin[o];                                          \
      const real *restrict w = t->weights + t->begin[o] - o * count;                                                   \
      stop = t->same[o] < end ? t->same[o] : end;                                                                      \
      if (inner == 1 && count == 1)                                                                                    \
        for (int64_t i = o; i < stop; i++) y[i] = 0 + x[first[i]] * w[i];                                              \
      else if (inner == 1 && count == 2)                                                                               \
        for (int64_t i = o; i < stop; i++) y[i] = 0 + x[first[i]] * w[2 * i] + x[first[i] + 1] * w[2 * i + 1];         \
      else                                                                                                             \
        for (int64_t i = o * inner; i < stop * inner; i++) {                                                           \
          const real *from = x + first[i / inner] * inner + i % inner, *weight = w + i / inner * count;                \
          real sum = 0;                                                                                                \
          for GB_PIECES(at, n, count)                                                                                  \
            for (int64_t k = at; k < at + n; k++) sum += from[k * inner] * weight[k];                                  \
          y[i] = sum;                                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
  }
GATHER(gb_windows_gather_f32, float, weight32)
GATHER(gb_windows_gather_f64, double, weight)
#undef GATHER

/* A piece by permutations. */
GB_ALWAYS_INLINE void permute(const piece *p, float *restrict y, const float *restrict x, int64_t count, bool two) {
  gb_vector sum = { 0 }, low, high = { 0 };
  for (int64_t k = 0; k < count; k++) {
    memcpy(&low, x + p->from + k, sizeof low);
    if (two) memcpy(&high, x + p->from + k + GB_VECTOR, sizeof high);
    sum += gb_pick_lanes(low, high, *p->pick, two) * p->weight[k];
  }
  memcpy(y + p->o, &sum, sizeof sum);
}

/* The sum over a window of `count` for each of the elements from x on. */
GB_ALWAYS_INLINE gb_vector sum_windows(const float *x, const gb_vector *weight, int64_t count) {
  gb_vector sum = { 0 }, v;
  for (int64_t k = 0; k < count; k++) {
    memcpy(&v, x + k, sizeof v);
    sum += v * weight[k];
  }
  return sum;
}

/* Doubled pieces from p on with the same weights; returns the first that is another. */
GB_ALWAYS_INLINE const piece *double_alike(const piece *p, const piece *end, float *restrict y,
                                           const float *restrict x, int64_t count) {
  const float *w = p->w;
  gb_vector even[4], odd[4];
  for (int64_t k = 0; k < count; k++) even[k] = gb_vector_of(w[k]), odd[k] = gb_vector_of(w[count + k]);
  for (; p < end && p->kind == DOUBLED && p->w == w; p++) {
    gb_wide sum = { sum_windows(x + p->from, even, count), sum_windows(x + p->odd, odd, count) };
    gb_wide_store(GB_FLOAT32, y, p->o, gb_wide_interleave(sum), false);
  }
  return p;
}

/* The same of halved ones. Two elements of a window at a time: an even and an odd one of all. */
GB_ALWAYS_INLINE const piece *halve_alike(const piece *p, const piece *end, float *restrict y,
                                          const float *restrict x, int64_t count) {
  const float *w = p->w;
  gb_vector weight[8];
  for (int64_t k = 0; k < count; k++) weight[k] = gb_vector_of(w[k]);
  for (; p < end && p->kind == HALVED && p->w == w; p++) {
    gb_vector sum = { 0 };
    for (int64_t k = 0; k < count; k += 2) {
      gb_wide v = gb_wide_part(gb_wide_load(GB_FLOAT32, x + p->from, k));
      sum += v.a * weight[k];
      sum += v.b * weight[k + 1];
    }
    memcpy(y + p->o, &sum, sizeof sum);
  }
  return p;
}

/* Pieces from p on that are alike; returns the first that is not. Nearest and linear modes, nearly all there is, have
 * loops of their own. */
static const piece *permute_alike(const piece *p, const piece *end, float *y, const float *x) {
  const int64_t count = p->count;
  const piece_kind kind = p->kind;
#define ALIKE(loop_count, two) for (; p < end && p->count == count && p->kind == kind; p++) \
    permute(p, y, x, loop_count, two)
  if (kind == IN_ONE && count == 1) ALIKE(1, false);
  else if (kind == IN_ONE && count == 2) ALIKE(2, false);
  else if (kind == IN_ONE) ALIKE(count, false);
  else if (count == 2) ALIKE(2, true);
  else if (count == 4) ALIKE(4, true);
  else ALIKE(count, true);
#undef ALIKE
  return p;
}

static const piece *run_alike(const piece *p, const piece *end, float *y, const float *x) {
  const int64_t count = p->count;
  if (p->kind == DOUBLED)
    return count == 1 ? double_alike(p, end, y, x, 1) : count == 2 ? double_alike(p, end, y, x, 2)
                                                                  : double_alike(p, end, y, x, 4);
  if (p->kind == HALVED)
    return count == 2 ? halve_alike(p, end, y, x, 2) : count == 4 ? halve_alike(p, end, y, x, 4)
                                                                 : halve_alike(p, end, y, x, 8);
  return permute_alike(p, end, y, x);
}

/* One element. Written out, since a compiler would make vectors of a loop that is rarely longer. */
static inline float sum_single(const piece *p, const float *x) {
  const float *w = p->w;
  const int64_t count = p->count;
  float sum = 0;
  x += p->from;
  if (count > 0) sum += x[0] * w[0];
  if (count > 1) sum += x[1] * w[1];
  if (count > 2) sum += x[2] * w[2];
  if (count > 3) sum += x[3] * w[3];
  if (count > 4) sum += x[4] * w[4];
  for (int64_t k = 5; k < count; k++) sum += x[k] * w[k];
  return sum;
}

void gb_windows_row_f32(const gb_windows *t, float *y, const float *x) {
  const piece *p = t->pieces, *end = p + t->count;
  while (p < end) {
    const piece *next = end - p < PIECES_AT_ONCE ? end : p + PIECES_AT_ONCE;
    const int64_t first = p->o;
    while (p < next && p->kind != GATHERED) {
      if (p->kind != SINGLE) {
        p = run_alike(p, next, y, x);
        continue;
      }
      y[p->o] = sum_single(p, x);
      p++;
    }
    if (p < next) gb_windows_gather_f32(t, y, x, p->o, p->end, 1), p++;
    if (gb_work(t->begin[p[-1].end] - t->begin[first])) return;
  }
}

/* ====} */
