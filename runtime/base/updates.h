/* base/updates.h - how each optimizer of optimizers.def changes one element: the formulas, once for all loops that run them.
 *
 * A loop includes this for float and for double, having defined T, M(name) (the name with a suffix for T), the type
 * M(state_room) and in it STATE_AT(room, k, i), state k of element i. It loads and stores: a rule sees the weight w (of 16-bit
 * parameters the float32 master), the gradient g (in its true size, clipped, turned around where maximize is set) and its
 * states, all of them T, and returns the new weight. Choices are written as a ? b : c of numbers, so that the loops vectorise.
 *
 *   NUMBERS(X, a, b)     what is the same for all elements of a parameter, as T (or a type X_numbers of its own)
 *   PER_SEGMENT(X)       makes them in double from the hyperparameters h and the steps that the parameter took before this one
 *   PER_ELEMENT(X)       the update, with its states s and the numbers n; s->bare: the step uses none of its states */

/* {==== what every rule has ==== */

#define STATE(name) T name;
#define STATE_WHERE(name, condition) T name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) typedef struct M(NAME##_states) { STATES bool bare; } M(NAME##_states);
#include "base/optimizers.def"
#undef STATE
#undef STATE_WHERE
#undef OPTIMIZER

/* X_load(room, i): the states of element i. */
#define STATE(name) s.name = STATE_AT(room, offsetof(states, name) / sizeof(T), i);
#define STATE_WHERE(name, condition) STATE(name)
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                    \
  GB_INLINE M(NAME##_states) M(NAME##_load)(M(state_room) room, int64_t i) {                                    \
    typedef M(NAME##_states) states;                                                                            \
    states s;                                                                                                   \
    (void)room, (void)i, s.bare = false;                                                                             \
    STATES                                                                                                      \
    return s;                                                                                                   \
  }
#include "base/optimizers.def"
#undef STATE
#undef OPTIMIZER

/* X_store(room, i, s): the states of element i are s now. */
#define STATE(name) STATE_AT(room, offsetof(states, name) / sizeof(T), i) = s.name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                    \
  GB_INLINE void M(NAME##_store)(M(state_room) room, int64_t i, M(NAME##_states) s) {                           \
    typedef M(NAME##_states) states;                                                                            \
    (void)room, (void)i, (void)s, (void)sizeof(states);                                                         \
    STATES                                                                                                      \
  }
#include "base/optimizers.def"
#undef STATE
#undef STATE_WHERE
#undef OPTIMIZER

#define NUMBERS(NAME, ...) typedef struct M(NAME##_numbers) { T __VA_ARGS__; } M(NAME##_numbers);
#define PER_SEGMENT(NAME) GB_INLINE void M(NAME##_segment)(const gb_##NAME##_hyper *h, int64_t steps, M(NAME##_numbers) *n)
#define PER_ELEMENT(NAME) GB_INLINE T M(NAME##_element)(T w, T g, M(NAME##_states) *s, const M(NAME##_numbers) *n)

#define SQRT(x) (T)(sizeof(T) == 4 ? sqrtf((float)(x)) : sqrt((double)(x)))
/* a goes towards b by `rate`; from the nearer end, so that a rate of 1 gives b itself. */
#define LERP(a, b, rate) ((rate) < (T)0.5 ? (a) + (rate) * ((b) - (a)) : (b) - ((b) - (a)) * (1 - (rate)))

/* -1, 0 or 1; NaN stays NaN. */
#define SIGN(x) ((x) > 0 ? (T)1 : (x) < 0 ? (T)-1 : (x))

/* ====} */

/* {==== SGD ==== */

/* fresh: the first step, in which the buffer takes the gradient as it is. */
NUMBERS(SGD, lr, decay, momentum, keep, nesterov, fresh)

PER_SEGMENT(SGD) {
  n->lr = (T)h->lr;
  n->decay = (T)h->weight_decay;
  n->momentum = (T)h->momentum;
  n->keep = (T)(1 - h->dampening);
  n->nesterov = (T)h->nesterov;
  n->fresh = steps == 0;
}

PER_ELEMENT(SGD) {
  T slope = n->decay != 0 ? g + n->decay * w : g;
  T buffer = n->fresh != 0 ? slope : s->momentum_buffer * n->momentum + slope * n->keep;
  T along = n->nesterov != 0 ? slope + n->momentum * buffer : buffer;
  s->momentum_buffer = buffer;
  return w - n->lr * (s->bare ? slope : along);
}

/* ====} */

/* {==== Adam and AdamW ==== */

/* root: of the bias correction of exp_avg_sq. Adam adds decay * w to the gradient, AdamW keeps `keep` of w. */
typedef struct M(adam) { T rate1, beta2, rate2, step, root, eps, decay, keep; } M(adam);

/* Bias is corrected by the parameter's own count of steps. */
GB_INLINE void M(adam_at)(double lr, double beta1, double beta2, double eps, double count, M(adam) *n) {
  n->rate1 = (T)(1 - beta1);
  n->beta2 = (T)beta2;
  n->rate2 = (T)(1 - beta2);
  n->step = (T)(lr / (1 - pow(beta1, count)));
  n->root = (T)(1 / sqrt(1 - pow(beta2, count)));
  n->eps = (T)eps;
}

GB_INLINE T M(adam_update)(T w, T g, T *exp_avg, T *exp_avg_sq, const M(adam) *n) {
  T slope = n->decay != 0 ? g + n->decay * w : g;
  *exp_avg = LERP(*exp_avg, slope, n->rate1);
  *exp_avg_sq = *exp_avg_sq * n->beta2 + n->rate2 * (slope * slope);
  return w * n->keep - n->step * *exp_avg / (SQRT(*exp_avg_sq) * n->root + n->eps);
}

typedef M(adam) M(Adam_numbers);
typedef M(adam) M(AdamW_numbers);

PER_SEGMENT(Adam) {
  M(adam_at)(h->lr, h->beta1, h->beta2, h->eps, (double)(steps + 1), n);
  n->decay = (T)h->weight_decay, n->keep = 1;
}

PER_SEGMENT(AdamW) {
  M(adam_at)(h->lr, h->beta1, h->beta2, h->eps, (double)(steps + 1), n);
  n->decay = 0, n->keep = (T)(1 - h->lr * h->weight_decay);
}

PER_ELEMENT(Adam) { return M(adam_update)(w, g, &s->exp_avg, &s->exp_avg_sq, n); }
PER_ELEMENT(AdamW) { return M(adam_update)(w, g, &s->exp_avg, &s->exp_avg_sq, n); }

/* ====} */

/* {==== Lion ==== */

NUMBERS(Lion, lr, rate1, rate2, keep)

PER_SEGMENT(Lion) {
  (void)steps;
  n->lr = (T)h->lr;
  n->rate1 = (T)(1 - h->beta1);
  n->rate2 = (T)(1 - h->beta2);
  n->keep = (T)(1 - h->lr * h->weight_decay);
}

PER_ELEMENT(Lion) {
  T along = LERP(s->exp_avg, g, n->rate1);
  s->exp_avg = LERP(s->exp_avg, g, n->rate2);
  return w * n->keep - n->lr * SIGN(along);
}

/* ====} */

#undef NUMBERS
#undef PER_SEGMENT
#undef PER_ELEMENT
#undef SQRT
#undef LERP
#undef SIGN
