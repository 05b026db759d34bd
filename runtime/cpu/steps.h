/* cpu/steps.h - the steps of all optimizers in the precision T; cpu/optim.c includes this once for float and once for
 * double.
 *
 * A tile's gradients are brought to their true size first. Then one vectorised loop runs the rule of base/updates.h,
 * and the new weights are rounded into their 16-bit forms while they are still in the cache. */

/* Where the states of a tile lie; by value, so that a loop has the pointers in registers. lacks: bits of states that
 * the step does not use, a constant in each loop. */
typedef struct M(state_room) { T *state[GB_OPTIM_STATES]; unsigned lacks; } M(state_room);
#define STATE_AT(room, k, i) (room).state[k][i]
#define STATE_IN(room, k) !((room).lacks >> (k) & 1)

#include "base/updates.h"
#undef STATE_AT
#undef STATE_IN

/* Gradients of a tile, without their scale and with the sign that descends. They are clipped in two products, as by
 * unscale_ and then by a clip, so that the bits are those of one after the other. */
static void M(look)(const pass *p, int64_t at, int64_t n, T *restrict g) {
  const T *from = (const T *)p->gradients + at, factor = (T)p->factor, inverse = (T)p->inverse, clip = (T)p->clip;
  if (p->writes)
    for (int64_t i = 0; i < n; i++) g[i] = from[i] * inverse * clip * factor;
  else
    for (int64_t i = 0; i < n; i++) g[i] = from[i] * factor;
}

/* The same; a step that clips leaves them clipped. */
static void M(read)(const pass *p, int64_t at, int64_t n, T *restrict g) {
  T *from = (T *)p->gradients + at, factor = (T)p->factor, inverse = (T)p->inverse, clip = (T)p->clip;
  if (p->writes)
    for (int64_t i = 0; i < n; i++) from[i] = from[i] * inverse * clip;
  for (int64_t i = 0; i < n; i++) g[i] = from[i] * factor;
}

/* What is left of a step that clips when it is skipped: gradients are written all the same. */
static void M(skipped_run)(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) {
  (void)chunk, (void)segment;
  T g[GB_TILE];
  for (int64_t end = at + n; at < end; at += GB_TILE) M(read)(p, at, least(GB_TILE, end - at), g);
}

/* Part of a run. */
typedef struct M(tile) {
  int64_t at, n, end;
  T *w, g[GB_TILE];
  M(state_room) room;
} M(tile);

/* The tiles of a run begin. */
static void M(open_tile)(const pass *p, M(tile) *t, int64_t at, int64_t n) {
  t->at = at;
  t->end = at + n;
  t->room.lacks = 0;
  for (unsigned k = 0; k < GB_OPTIM_STATES; k++) t->room.lacks |= (unsigned)!p->state[k] << k;
}

/* Load the tile at t->at, its gradients by `get`; false: the run is at its end. */
static bool M(load_tile)(const pass *p, M(tile) *t, void (*get)(const pass *p, int64_t at, int64_t n, T *restrict g)) {
  t->n = least(GB_TILE, t->end - t->at);
  if (t->n <= 0) return false;
  t->w = (T *)p->weights + t->at;
  for (int k = 0; k < GB_OPTIM_STATES; k++) t->room.state[k] = p->state[k] ? (T *)p->state[k] + t->at : NULL;
  get(p, t->at, t->n, t->g);
  return true;
}

/* The rule has changed the tile. */
static void M(store_tile)(const pass *p, M(tile) *t) {
  if (sizeof(T) == sizeof(float)) write_16bit(p, t->at, t->n, (const float *)t->w);
  t->at += GB_TILE;
}

/* X_at: one element; a function of its own, since a struct that is declared in a simd loop keeps it from vectorising.
 * X_rule: one tile, by a loop for each choice of states that a step may do without. X_along and X_directions: the same
 * for directions. */
#define STATE(name) | 1 << offsetof(states, name) / sizeof(T)
#define STATE_WHERE(name, condition) | 0x101 << offsetof(states, name) / sizeof(T)
#define LOOP(without, line)                                         \
  case without:                                                     \
    if (!(without & ~(have >> 8))) {                                \
      room.lacks = without;                                         \
      _Pragma("omp simd") for (int64_t i = 0; i < count; i++) line; \
    }                                                               \
    return;
#define LOOPS(NAME, STATES, line)                                                                                   \
  typedef M(NAME##_states) states;                                                                                  \
  enum { have = 0 STATES };                                                                                         \
  const M(NAME##_numbers) n = *numbers;                                                                             \
  M(state_room) room = t->room;                                                                                     \
  const int64_t count = t->n;                                                                                       \
  switch (room.lacks & have & 0xff) {                                                                               \
    LOOP(0, line) LOOP(1, line) LOOP(2, line) LOOP(3, line) LOOP(4, line) LOOP(5, line) LOOP(6, line) LOOP(7, line) \
  }
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                           \
  static inline T M(NAME##_at)(T w, T g, M(state_room) room, int64_t i, const M(NAME##_numbers) *n) {                  \
    M(NAME##_states) s = M(NAME##_load)(room, i);                                                                      \
    w = M(NAME##_element)(w, g, &s, n);                                                                                \
    M(NAME##_store)(room, i, s);                                                                                       \
    return w;                                                                                                          \
  }                                                                                                                    \
  static void M(NAME##_rule)(T *restrict w, const T *restrict g, const M(tile) *t, const M(NAME##_numbers) *numbers) { \
    LOOPS(NAME, STATES, w[i] = M(NAME##_at)(w[i], g[i], room, i, &n))                                                  \
  }
#define MEASURED(NAME, HYPERS, STATES, DOC)                                                                    \
  OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                         \
  static inline T M(NAME##_along)(T w, T g, M(state_room) room, int64_t i, const M(NAME##_numbers) *n) {       \
    M(NAME##_states) s = M(NAME##_load)(room, i);                                                              \
    return M(NAME##_direction)(w, g, &s, n);                                                                   \
  }                                                                                                            \
  static void M(NAME##_directions)(T *restrict to, const T *restrict w, const T *restrict g, const M(tile) *t, \
                                   const M(NAME##_numbers) *numbers) {                                         \
    LOOPS(NAME, STATES, to[i] = M(NAME##_along)(w[i], g[i], room, i, &n))                                      \
  }
#define SHAPED MEASURED
#include "base/optimizers.def"
#undef LOOPS
#undef LOOP

/* X_run: a run of a segment. X_measure: what a run adds to the measures of its segment. X_direct: its directions. */
#define RUN(NAME, measured)                                                                             \
  static void M(NAME##_run)(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) { \
    (void)chunk;                                                                                        \
    const gb_##NAME##_hyper *h = &p->call->numbers->NAME;                                               \
    M(NAME##_numbers) numbers;                                                                          \
    M(NAME##_segment)(h, segment->steps, &numbers);                                                     \
    measured                                                                                            \
    M(tile) t;                                                                                          \
    for (M(open_tile)(p, &t, at, n); M(load_tile)(p, &t, M(read)); M(store_tile)(p, &t))                \
      M(NAME##_rule)(t.w, t.g, &t, &numbers);                                                           \
  }
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) RUN(NAME, )
#define MEASURED(NAME, HYPERS, STATES, DOC)                                                                 \
  RUN(NAME, const double *sum = p->measures + 2 * (segment - p->slab->segments);                            \
            M(NAME##_measured)(h, sqrt(sum[0]), sqrt(sum[1]), &numbers);)                                   \
  static void M(NAME##_measure)(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) { \
    M(NAME##_numbers) numbers;                                                                              \
    M(NAME##_segment)(&p->call->numbers->NAME, segment->steps, &numbers);                                   \
    double *part = p->parts + 2 * (chunk + (segment - p->slab->segments));                                  \
    T along[GB_TILE];                                                                                       \
    M(tile) t;                                                                                              \
    part[0] = part[1] = 0;                                                                                  \
    for (M(open_tile)(p, &t, at, n); M(load_tile)(p, &t, M(look)); t.at += GB_TILE) {                       \
      M(NAME##_directions)(along, t.w, t.g, &t, &numbers);                                                  \
      part[0] += M(squares)(t.w, t.n);                                                                      \
      part[1] += M(squares)(along, t.n);                                                                    \
    }                                                                                                       \
  }
#define SHAPED(NAME, HYPERS, STATES, DOC)                                                                  \
  RUN(NAME, )                                                                                              \
  static void M(NAME##_direct)(pass *p, int64_t chunk, const gb_segment *segment, int64_t at, int64_t n) { \
    (void)chunk;                                                                                           \
    T *to = (T *)p->state[sizeof(M(NAME##_states)) / sizeof(T) - 1];                                       \
    M(NAME##_numbers) numbers;                                                                             \
    M(NAME##_segment)(&p->call->numbers->NAME, segment->steps, &numbers);                                  \
    M(tile) t;                                                                                             \
    for (M(open_tile)(p, &t, at, n); M(load_tile)(p, &t, M(look)); t.at += GB_TILE)                        \
      M(NAME##_directions)(to + t.at, t.w, t.g, &t, &numbers);                                             \
  }
#include "base/optimizers.def"
#undef RUN
