/* cpu/sort_of.h - entries of one kind put in order: cpu/sort.c includes this once for each kind, with
 *     OF(name)        the name of a function or type of this kind; OF(entry) is the type, OF(load) makes entries
 *     BEFORE(a, b)    does an entry come before another? No two are equal
 *     DIGITS          bytes of a key; DIGIT(e, i) is byte i of it, from the lowest
 *     POSITION(e)     where the element lies in its line
 *     OF(value)       writes the element by its key alone, without a look at its line; false: it has to be looked up
 * Short lines are merged; long ones go byte by byte of the key from bin to bin, which keeps the order of equal keys. */

static void OF(insertion_sort)(OF(entry) *e, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    OF(entry) moving = e[i];
    int64_t at = i;
    for (; at > 0 && BEFORE(moving, e[at - 1]); at--) e[at] = e[at - 1];
    e[at] = moving;
  }
}

/* Two sorted runs from[0 .. a), from[a .. n) into one. */
static void OF(merge)(OF(entry) *to, const OF(entry) *from, int64_t a, int64_t n) {
  int64_t i = 0, j = a;
  for (int64_t k = 0; k < n; k++) to[k] = j >= n || (i < a && BEFORE(from[i], from[j])) ? from[i++] : from[j++];
}

/* Sort a short line, with room for as many; returns which of the two holds the result. */
static OF(entry) *OF(merge_sort)(OF(entry) *e, OF(entry) *room, int64_t n) {
  for (int64_t i = 0; i < n; i += INSERTION) OF(insertion_sort)(e + i, least(n - i, INSERTION));
  for (int64_t width = INSERTION; width < n; width *= 2) {
    for (int64_t i = 0; i < n; i += 2 * width)
      OF(merge)(room + i, e + i, least(n - i, width), least(n - i, 2 * width));
    OF(entry) *sorted = room;
    room = e, e = sorted;
  }
  return e;
}

/* The same for a long line; NULL: a stop is asked for. A byte that all keys share costs no pass. */
static OF(entry) *OF(radix_sort)(OF(entry) *e, OF(entry) *room, int64_t n) {
  int64_t bins[DIGITS][256] = { { 0 } };
  for (int64_t at = 0; at < n; at += RADIX_BLOCK) {
    if (gb_work(RADIX_BLOCK * DIGITS)) return NULL;
    for (int64_t i = at; i < least(n, at + RADIX_BLOCK); i++)
      for (int d = 0; d < DIGITS; d++) bins[d][DIGIT(e[i], d)]++;
  }
  for (int d = 0; d < DIGITS; d++) {
    int64_t *next = bins[d], begin = 0;
    if (next[DIGIT(e[0], d)] == n) continue;
    for (int i = 0; i < 256; i++) {
      int64_t count = next[i];
      next[i] = begin;
      begin += count;
    }
    for (int64_t at = 0; at < n; at += RADIX_BLOCK) {
      if (gb_work(RADIX_BLOCK * SORT_STEP)) return NULL;
      for (int64_t i = at; i < least(n, at + RADIX_BLOCK); i++) room[next[DIGIT(e[i], d)]++] = e[i];
    }
    OF(entry) *sorted = room;
    room = e, e = sorted;
  }
  return e;
}

/* Sort e, with room for as many; returns which of the two holds the result, or NULL: a stop is asked for. */
static OF(entry) *OF(sort_all)(OF(entry) *e, OF(entry) *room, int64_t n) {
  if (n > LONGEST_MERGED) return OF(radix_sort)(e, room, n);
  return gb_work(n * SORT_STEP) ? NULL : OF(merge_sort)(e, room, n);
}

/* Let the entry at `at` sink to its place in a heap whose root comes last in order. */
static void OF(sift_down)(OF(entry) *heap, int64_t n, int64_t at) {
  OF(entry) moving = heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && BEFORE(heap[child], heap[child + 1])) child++;
    if (!BEFORE(moving, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moving;
}

/* Does any of the next LOOK_AHEAD entries come before another? Without a branch for each, so by vectors. */
static inline bool OF(any_before)(const OF(entry) *e, OF(entry) limit) {
  int any = 0;
  for (int i = 0; i < LOOK_AHEAD; i++) any |= BEFORE(e[i], limit);
  return any != 0;
}

/* The first k of the entries of a heap and n others stay in the heap. false: a stop is asked for. */
static bool OF(keep_first)(OF(entry) *heap, int64_t k, const OF(entry) *e, int64_t n) {
  for GB_PIECES(at, count, n)
    for (int64_t i = at, end = at + count; i < end; i++) {
      while (end - i > LOOK_AHEAD && !OF(any_before)(e + i, heap[0])) i += LOOK_AHEAD;
      if (!BEFORE(e[i], heap[0])) continue;
      heap[0] = e[i];
      if (gb_work(32 * SORT_STEP)) return false; /* as deep as a heap may be */
      OF(sift_down)(heap, k, 0);
    }
  return !gb_work(0);
}

/* Leave of n entries few that the first k are among, in the order that they have; returns how many. An entry belongs to
 * one of LANES lanes, and k lanes begin (have their first entry) at or before the k-th of all beginnings: so no entry
 * behind that one is wanted. Of entries in any order 1.4 k are left if k is half of LANES. */
static int64_t OF(sift)(OF(entry) *e, int64_t n, int64_t k) {
  OF(entry) first[LANES], order[LANES];
  memcpy(first, e, sizeof first);
  int64_t whole = n - n % LANES, count = 0;
  for (int64_t at = LANES; at < whole; at += LANES)
    for (int i = 0; i < LANES; i++) first[i] = BEFORE(e[at + i], first[i]) ? e[at + i] : first[i];
  memcpy(order, first, sizeof order);
  OF(insertion_sort)(order, LANES);
  const OF(entry) last = order[k - 1];
  for (int64_t at = 0; at < whole; at += LOOK_AHEAD) {
    int any = 0;
    for (int i = 0; i < LOOK_AHEAD; i++) any |= !BEFORE(last, e[at + i]);
    for (int i = 0; any && i < LOOK_AHEAD; i++) {
      e[count] = e[at + i];
      count += !BEFORE(last, e[count]);
    }
  }
  for (int64_t i = whole; i < n; i++) {
    e[count] = e[i];
    count += !BEFORE(last, e[count]);
  }
  return count;
}

/* The first k of n entries in order; returns where they are, or NULL: a stop is asked for. A heap finds them. Those
 * that are too many to be merged are taken in the order of their positions, which bins keep. */
static OF(entry) *OF(select_first)(OF(entry) *e, OF(entry) *room, int64_t n, int64_t k) {
  if (k == 0) return e;
  if (k <= LANES / 2 && n >= 4 * LANES && n <= LONGEST_SIFTED) {
    if (gb_work(2 * n)) return NULL;
    n = OF(sift)(e, n, k);
  }
  if (k > n / SELECTED_SHARE) return OF(sort_all)(e, room, n);
  OF(entry) *heap = room;
  gb_copy_bytes(heap, e, (size_t)k * sizeof *heap);
  for (int64_t i = k / 2 - 1; i >= 0; i--) {
    if (gb_work(4 * SORT_STEP)) return NULL;
    OF(sift_down)(heap, k, i);
  }
  if (!OF(keep_first)(heap, k, e + k, n - k)) return NULL;
  if (k <= LONGEST_MERGED) return OF(sort_all)(heap, e, k);
  int64_t count = 0;
  const OF(entry) last = heap[0];
  for (int64_t i = 0; count < k; i++) {
    if (gb_long_loop(i)) return NULL;
    if (!BEFORE(last, e[i])) e[count++] = e[i];
  }
  return OF(sort_all)(e, room, k);
}

/* The first k elements of a line in order, and where they lay: an element has so many bytes, strides count elements.
 * entries: room for twice the line. */
static void OF(order_line)(const sort_line *line, OF(entry) *entries) {
  if (!OF(load)(entries, line)) return;
  const OF(entry) *sorted = OF(select_first)(entries, entries + line->n, line->n, line->k);
  if (!sorted) return;
  const int64_t bytes = line->bytes;
  for (int64_t i = 0; i < line->k && !gb_long_loop(i); i++) {
    line->positions[i * line->position_stride] = POSITION(sorted[i]);
    char *to = line->to + i * line->to_stride * bytes;
    if (!OF(value)(sorted[i], line, to))
      gb_copy_element(to, line->from + POSITION(sorted[i]) * line->stride * bytes, (size_t)bytes);
  }
}

#undef OF
#undef BEFORE
#undef DIGITS
#undef DIGIT
#undef POSITION
