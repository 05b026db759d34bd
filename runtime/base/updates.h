/* base/updates.h - how each optimizer of optimizers.def changes one element: the formulas, once for all loops that run
 * them.
 *
 * A loop includes this for float and for double, having defined T, M(name) (the name with a suffix for T), the type
 * M(state_room), and in it STATE_AT(room, k, i), state k of element i, and STATE_IN(room, k), whether the step uses
 * that state. It loads and stores: a rule sees the weight w (of 16-bit parameters the float32 master), the gradient g
 * (in its true size, clipped, turned around where maximize is set) and its states, all of them T, and returns the new
 * weight. Choices are written as a ? b : c of numbers, so that the loops vectorise.
 *
 *   NUMBERS(X, a, b)     what is the same for all elements of a parameter, as T (or a type X_numbers of its own)
 *   PER_SEGMENT(X)       makes them in double from the hyperparameters h and the steps that the parameter took before
 *   this one
 *   DIRECTION(X)         of one that is MEASURED or SHAPED: what is measured of an element, or where ops begin, by its
 *   states s and the numbers n
 *   MEASURED_SEGMENT(X)  numbers from h and the norms of the weights and of the directions, which are added in double
 *   PER_ELEMENT(X)       the update, with its states s and the numbers n; a state that the step does not use is 0 */

/* {==== what every rule has ==== */

#define STATE(name) T name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) typedef struct M(NAME##_states) { STATES } M(NAME##_states);
#include "base/optimizers.def"

/* X_load(room, i): the states of element i; 0 for one that the step does not use. */
#define PLACE(name) (offsetof(states, name) / sizeof(T))
#define STATE(name) s.name = STATE_IN(room, PLACE(name)) ? STATE_AT(room, PLACE(name), i) : 0;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                    \
  GB_INLINE M(NAME##_states) M(NAME##_load)(M(state_room) room, int64_t i) {                                    \
    typedef M(NAME##_states) states;                                                                            \
    states s;                                                                                                   \
    (void)room, (void)i;                                                                                        \
    STATES                                                                                                      \
    return s;                                                                                                   \
  }
#include "base/optimizers.def"

/* X_store(room, i, s): the states of element i are s now. */
#define STATE(name) if (STATE_IN(room, PLACE(name))) STATE_AT(room, PLACE(name), i) = s.name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                    \
  GB_INLINE void M(NAME##_store)(M(state_room) room, int64_t i, M(NAME##_states) s) {                           \
    typedef M(NAME##_states) states;                                                                            \
    (void)room, (void)i, (void)s, (void)sizeof(states);                                                         \
    STATES                                                                                                      \
  }
#include "base/optimizers.def"
#undef PLACE

#define NUMBERS(NAME, ...) typedef struct M(NAME##_numbers) { T __VA_ARGS__; } M(NAME##_numbers);
#define PER_SEGMENT(NAME) \
  GB_INLINE void M(NAME##_segment)(const gb_##NAME##_hyper *h, int64_t steps, M(NAME##_numbers) *n)
#define PER_ELEMENT(NAME) GB_INLINE T M(NAME##_element)(T w, T g, M(NAME##_states) *s, const M(NAME##_numbers) *n)

#define DIRECTION(NAME) GB_INLINE T M(NAME##_direction)(T w, T g, M(NAME##_states) *s, const M(NAME##_numbers) *n)
#define MEASURED_SEGMENT(NAME) \
  GB_INLINE void M(NAME##_measured)(const gb_##NAME##_hyper *h, double weights, double directions, M(NAME##_numbers) *n)

#define SQRT(x) (T)(sizeof(T) == 4 ? sqrtf((float)(x)) : sqrt((double)(x)))
/* a goes towards b by `rate`; from the nearer end, so that a rate of 1 gives b itself. */
#define LERP(a, b, rate) ((rate) < (T)0.5 ? (a) + (rate) * ((b) - (a)) : (b) - ((b) - (a)) * (1 - (rate)))

/* The larger one; NaN wins. */
#define MOST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define ABS(x) ((x) < 0 ? -(x) : (x))

/* The gradient with the decay that is part of it. */
#define SLOPE(w, g, decay) ((decay) != 0 ? (g) + (decay) * (w) : (g))

/* -1, 0 or 1; NaN stays NaN. */
#define SIGN(x) ((x) > 0 ? (T)1 : (x) < 0 ? (T)-1 : (x))

/* ====} */

/* {==== SGD ==== */

/* fresh: the buffer takes the gradient as it is, in the first step, and where there is no momentum. */
NUMBERS(SGD, lr, decay, momentum, keep, nesterov, fresh)

PER_SEGMENT(SGD) {
  n->lr = (T)h->lr;
  n->decay = (T)h->weight_decay;
  n->momentum = (T)h->momentum;
  n->keep = (T)(1 - h->dampening);
  n->nesterov = (T)h->nesterov;
  n->fresh = steps == 0 || h->momentum == 0;
}

PER_ELEMENT(SGD) {
  T slope = SLOPE(w, g, n->decay);
  T buffer = n->fresh != 0 ? slope : s->momentum_buffer * n->momentum + slope * n->keep;
  T along = n->nesterov != 0 ? slope + n->momentum * buffer : buffer;
  s->momentum_buffer = buffer;
  return w - n->lr * along;
}

/* ====} */

/* {==== Adam and AdamW ==== */

/* root: of the bias correction of exp_avg_sq. Adam adds decay * w to the gradient, AdamW keeps `keep` of w.
 * largest: amsgrad, which divides by the largest exp_avg_sq so far. */
typedef struct M(adam) { T rate1, beta2, rate2, step, root, eps, decay, keep, largest; } M(adam);

/* Bias is corrected by the parameter's own count of steps. */
GB_INLINE void M(adam_at)(double lr, double beta1, double beta2, double eps, double count, M(adam) *n) {
  n->rate1 = (T)(1 - beta1);
  n->beta2 = (T)beta2;
  n->rate2 = (T)(1 - beta2);
  n->step = (T)(lr / (1 - pow(beta1, count)));
  n->root = (T)(1 / sqrt(1 - pow(beta2, count)));
  n->eps = (T)eps;
}

GB_INLINE T M(adam_update)(T w, T g, T *exp_avg, T *exp_avg_sq, T *max_exp_avg_sq, const M(adam) *n) {
  T slope = SLOPE(w, g, n->decay);
  *exp_avg = LERP(*exp_avg, slope, n->rate1);
  *exp_avg_sq = *exp_avg_sq * n->beta2 + n->rate2 * (slope * slope);
  *max_exp_avg_sq = MOST(*max_exp_avg_sq, *exp_avg_sq);
  T square = n->largest != 0 ? *max_exp_avg_sq : *exp_avg_sq;
  return w * n->keep - n->step * *exp_avg / (SQRT(square) * n->root + n->eps);
}

typedef M(adam) M(Adam_numbers);
typedef M(adam) M(AdamW_numbers);

PER_SEGMENT(Adam) {
  M(adam_at)(h->lr, h->beta1, h->beta2, h->eps, (double)(steps + 1), n);
  n->decay = (T)h->weight_decay, n->keep = 1, n->largest = (T)h->amsgrad;
}

PER_SEGMENT(AdamW) {
  M(adam_at)(h->lr, h->beta1, h->beta2, h->eps, (double)(steps + 1), n);
  n->decay = 0, n->keep = (T)(1 - h->lr * h->weight_decay), n->largest = (T)h->amsgrad;
}

PER_ELEMENT(Adam) { return M(adam_update)(w, g, &s->exp_avg, &s->exp_avg_sq, &s->max_exp_avg_sq, n); }
PER_ELEMENT(AdamW) { return M(adam_update)(w, g, &s->exp_avg, &s->exp_avg_sq, &s->max_exp_avg_sq, n); }

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

/* {==== RMSprop ==== */

NUMBERS(RMSprop, lr, alpha, rate, eps, decay, momentum, centered)

PER_SEGMENT(RMSprop) {
  (void)steps;
  n->lr = (T)h->lr;
  n->alpha = (T)h->alpha;
  n->rate = (T)(1 - h->alpha);
  n->eps = (T)h->eps;
  n->decay = (T)h->weight_decay;
  n->momentum = (T)h->momentum;
  n->centered = (T)h->centered;
}

/* A variance that rounding made negative is 0, where PyTorch's is NaN. */
PER_ELEMENT(RMSprop) {
  T slope = SLOPE(w, g, n->decay);
  s->square_avg = s->square_avg * n->alpha + n->rate * (slope * slope);
  s->grad_avg = LERP(s->grad_avg, slope, n->rate);
  T variance = s->square_avg - s->grad_avg * s->grad_avg;
  T square = n->centered != 0 ? (variance < 0 ? (T)0 : variance) : s->square_avg;
  s->momentum_buffer = n->momentum * s->momentum_buffer + slope / (SQRT(square) + n->eps);
  return w - n->lr * s->momentum_buffer;
}

/* ====} */

/* {==== Adagrad and Adadelta ==== */

/* initial: what the first step finds in the sum. */
NUMBERS(Adagrad, lr, initial, eps, decay)

PER_SEGMENT(Adagrad) {
  n->lr = (T)(h->lr / (1 + (double)steps * h->lr_decay));
  n->initial = steps == 0 ? (T)h->initial_accumulator_value : 0;
  n->eps = (T)h->eps;
  n->decay = (T)h->weight_decay;
}

PER_ELEMENT(Adagrad) {
  T slope = SLOPE(w, g, n->decay);
  s->sum = s->sum + n->initial + slope * slope;
  return w - n->lr * slope / (SQRT(s->sum) + n->eps);
}

NUMBERS(Adadelta, lr, rho, rate, eps, decay)

PER_SEGMENT(Adadelta) {
  (void)steps;
  n->lr = (T)h->lr;
  n->rho = (T)h->rho;
  n->rate = (T)(1 - h->rho);
  n->eps = (T)h->eps;
  n->decay = (T)h->weight_decay;
}

PER_ELEMENT(Adadelta) {
  T slope = SLOPE(w, g, n->decay);
  s->square_avg = s->square_avg * n->rho + n->rate * (slope * slope);
  T delta = SQRT(s->acc_delta + n->eps) / SQRT(s->square_avg + n->eps) * slope;
  s->acc_delta = s->acc_delta * n->rho + n->rate * (delta * delta);
  return w - n->lr * delta;
}

/* ====} */

/* {==== Adamax, NAdam and RAdam ==== */

NUMBERS(Adamax, step, rate1, beta2, eps, decay)

PER_SEGMENT(Adamax) {
  n->step = (T)(h->lr / (1 - pow(h->beta1, (double)(steps + 1))));
  n->rate1 = (T)(1 - h->beta1);
  n->beta2 = (T)h->beta2;
  n->eps = (T)h->eps;
  n->decay = (T)h->weight_decay;
}

PER_ELEMENT(Adamax) {
  T slope = SLOPE(w, g, n->decay);
  T kept = s->exp_inf * n->beta2, size = ABS(slope) + n->eps;
  s->exp_avg = LERP(s->exp_avg, slope, n->rate1);
  s->exp_inf = MOST(kept, size);
  return w - n->step * s->exp_avg / s->exp_inf;
}

/* along, onward: the shares of the gradient and of its average in the step. */
NUMBERS(NAdam, along, onward, rate1, beta2, rate2, root, eps, decay, keep)

/* The product of the momenta of all steps so far is made anew, so that it need not be kept: after some dozens of them
 * it is nothing beside 1. */
PER_SEGMENT(NAdam) {
  double slower = pow(0.96, h->momentum_decay), power = 1, product = 1, momentum = 0;
  int64_t count = steps + 1;
  for (int64_t t = 1; t <= count && product > 0x1p-60; t++) {
    power *= slower;
    product *= h->beta1 * (1 - 0.5 * power);
  }
  power = pow(slower, (double)count);
  momentum = h->beta1 * (1 - 0.5 * power);
  double next = h->beta1 * (1 - 0.5 * power * slower);
  n->along = (T)(h->lr * (1 - momentum) / (1 - product));
  n->onward = (T)(h->lr * next / (1 - product * next));
  n->rate1 = (T)(1 - h->beta1);
  n->beta2 = (T)h->beta2;
  n->rate2 = (T)(1 - h->beta2);
  n->root = (T)(1 / sqrt(1 - pow(h->beta2, (double)count)));
  n->eps = (T)h->eps;
  n->decay = h->decoupled_weight_decay != 0 ? 0 : (T)h->weight_decay;
  n->keep = h->decoupled_weight_decay != 0 ? (T)(1 - h->lr * h->weight_decay) : 1;
}

PER_ELEMENT(NAdam) {
  T slope = SLOPE(w, g, n->decay);
  s->exp_avg = LERP(s->exp_avg, slope, n->rate1);
  s->exp_avg_sq = s->exp_avg_sq * n->beta2 + n->rate2 * (slope * slope);
  return w * n->keep - (n->along * slope + n->onward * s->exp_avg) / (SQRT(s->exp_avg_sq) * n->root + n->eps);
}

/* rectified: the rectification, times the root of the bias correction; 0 in the first steps, which are not adaptive. */
NUMBERS(RAdam, step, rate1, beta2, rate2, rectified, eps, decay, keep)

PER_SEGMENT(RAdam) {
  double count = (double)(steps + 1), power = pow(h->beta2, count), most = 2 / (1 - h->beta2) - 1;
  double length = most - 2 * count * power / (1 - power);
  n->step = (T)(h->lr / (1 - pow(h->beta1, count)));
  n->rate1 = (T)(1 - h->beta1);
  n->beta2 = (T)h->beta2;
  n->rate2 = (T)(1 - h->beta2);
  double share = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
  n->rectified = length > 5 ? (T)sqrt((1 - power) * share) : 0;
  n->eps = (T)h->eps;
  n->decay = h->decoupled_weight_decay != 0 ? 0 : (T)h->weight_decay;
  n->keep = h->decoupled_weight_decay != 0 ? (T)(1 - h->lr * h->weight_decay) : 1;
}

PER_ELEMENT(RAdam) {
  T slope = SLOPE(w, g, n->decay);
  s->exp_avg = LERP(s->exp_avg, slope, n->rate1);
  s->exp_avg_sq = s->exp_avg_sq * n->beta2 + n->rate2 * (slope * slope);
  T adapted = n->rectified / (SQRT(s->exp_avg_sq) + n->eps);
  return w * n->keep - n->step * s->exp_avg * (n->rectified != 0 ? adapted : (T)1);
}

/* ====} */

/* {==== Rprop and ASGD ==== */

/* start: the step size that the first step finds. */
NUMBERS(Rprop, start, fewer, more, least, most)

PER_SEGMENT(Rprop) {
  n->start = steps == 0 ? (T)h->lr : 0;
  n->fewer = (T)h->eta1;
  n->more = (T)h->eta2;
  n->least = (T)h->step_size1;
  n->most = (T)h->step_size2;
}

/* An element whose gradient turned stays, and starts anew. */
PER_ELEMENT(Rprop) {
  T turn = g * s->prev;
  T size = (s->step_size + n->start) * (turn > 0 ? n->more : turn < 0 ? n->fewer : (T)1);
  size = size < n->least ? n->least : size;
  size = size > n->most ? n->most : size;
  T along = turn < 0 ? (T)0 : g;
  s->step_size = size;
  s->prev = along;
  return w - SIGN(along) * size;
}

/* weight: of the new parameter in the average; 1 gives the parameter itself. */
NUMBERS(ASGD, lr, keep, weight, decay)

PER_SEGMENT(ASGD) {
  double late = (double)steps - h->t0, rate = h->lr / pow(1 + h->lambd * h->lr * (double)steps, h->alpha);
  n->lr = (T)rate;
  n->keep = (T)(1 - h->lambd * rate);
  n->weight = (T)(1 / (late > 1 ? late : 1));
  n->decay = (T)h->weight_decay;
}

PER_ELEMENT(ASGD) {
  T slope = SLOPE(w, g, n->decay);
  T after = w * n->keep - n->lr * slope;
  s->ax = LERP(s->ax, after, n->weight);
  return after;
}

/* ====} */

/* {==== LAMB and LARS ==== */

/* step: lr, times the ratio of norms. */
NUMBERS(LAMB, step, rate1, beta2, rate2, first, root, eps, decay)

PER_SEGMENT(LAMB) {
  double count = (double)(steps + 1);
  n->step = (T)h->lr;
  n->rate1 = (T)(1 - h->beta1);
  n->beta2 = (T)h->beta2;
  n->rate2 = (T)(1 - h->beta2);
  n->first = (T)(1 / (1 - pow(h->beta1, count)));
  n->root = (T)(1 / sqrt(1 - pow(h->beta2, count)));
  n->eps = (T)h->eps;
  n->decay = (T)h->weight_decay;
}

DIRECTION(LAMB) {
  s->exp_avg = LERP(s->exp_avg, g, n->rate1);
  s->exp_avg_sq = s->exp_avg_sq * n->beta2 + n->rate2 * (g * g);
  return s->exp_avg * n->first / (SQRT(s->exp_avg_sq) * n->root + n->eps) + n->decay * w;
}

MEASURED_SEGMENT(LAMB) {
  bool trusts = h->use_nvlamb != 0 || h->weight_decay != 0;
  if (trusts && weights != 0 && directions != 0) n->step = (T)(h->lr * (weights / directions));
}

PER_ELEMENT(LAMB) { return w - n->step * M(LAMB_direction)(w, g, s, n); }

/* scale: of the gradient and its decay. */
NUMBERS(LARS, lr, scale, decay, momentum, keep, nesterov, fresh)

PER_SEGMENT(LARS) {
  n->lr = (T)h->lr;
  n->scale = 1;
  n->decay = 0;
  n->momentum = (T)h->momentum;
  n->keep = (T)(1 - h->dampening);
  n->nesterov = (T)h->nesterov;
  n->fresh = steps == 0 || h->momentum == 0;
}

DIRECTION(LARS) {
  (void)w, (void)s, (void)n;
  return g;
}

MEASURED_SEGMENT(LARS) {
  if (h->weight_decay == 0 || weights == 0 || directions == 0) return;
  n->scale = (T)(h->trust_coefficient * weights / (directions + weights * h->weight_decay + h->eps));
  n->decay = (T)h->weight_decay;
}

PER_ELEMENT(LARS) {
  T slope = SLOPE(w, g, n->decay) * n->scale;
  T buffer = n->fresh != 0 ? slope : s->momentum_buffer * n->momentum + slope * n->keep;
  T along = n->nesterov != 0 ? slope + n->momentum * buffer : buffer;
  s->momentum_buffer = buffer;
  return w - n->lr * along;
}

/* ====} */

/* {==== Muon ==== */

NUMBERS(Muon, lr, rate, keep, momentum, nesterov)

PER_SEGMENT(Muon) {
  (void)steps;
  n->lr = (T)h->lr;
  n->rate = (T)(1 - h->momentum);
  n->keep = (T)(1 - h->lr * h->weight_decay);
  n->momentum = (T)h->momentum;
  n->nesterov = (T)h->nesterov;
}

DIRECTION(Muon) {
  (void)w;
  T buffer = LERP(s->momentum_buffer, g, n->rate), ahead = LERP(g, buffer, n->momentum);
  return n->nesterov != 0 ? ahead : buffer;
}

/* update: the direction, made orthogonal. */
PER_ELEMENT(Muon) {
  s->momentum_buffer = LERP(s->momentum_buffer, g, n->rate);
  return w * n->keep - n->lr * s->update;
}

/* ====} */

/* {==== Adafactor ==== */

NUMBERS(Adafactor, step, keep)

PER_SEGMENT(Adafactor) {
  double most = 1 / sqrt((double)(steps + 1));
  n->step = (T)(h->lr < most ? h->lr : most);
  n->keep = (T)(1 - h->lr * h->weight_decay);
}

DIRECTION(Adafactor) {
  (void)w, (void)s, (void)n;
  return g;
}

/* update: the gradient over the root of its variance, clipped and brought to the parameter's size. */
PER_ELEMENT(Adafactor) {
  (void)g;
  return w * n->keep - n->step * s->update;
}

/* ====} */

#undef NUMBERS
#undef PER_SEGMENT
#undef DIRECTION
#undef MEASURED_SEGMENT
#undef PER_ELEMENT
#undef SQRT
#undef LERP
#undef SIGN
#undef MOST
#undef ABS
#undef SLOPE
