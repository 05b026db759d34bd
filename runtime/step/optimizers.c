/* step/optimizers.c - base/optimizers.def as data: names, defaults, bounds and states, for the engine and for
 * bindings. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "step/optim.h"

static const gb_bound from_0 = { 0, HUGE_VAL, false, "0 or more" }, from_1 = { 1, HUGE_VAL, false, "1 or more" },
                      to_0 = { -DBL_MAX, DBL_TRUE_MIN, false, "0 or less" },
                      unit = { 0, 1, false, "0 or more and below 1" },
                      to_1 = { 0, 1 + DBL_EPSILON, false, "0 to 1" },
                          any = { -DBL_MAX, HUGE_VAL, false, "a finite number" },
                      count_to_99 = { 0, 100, true, "a whole number from 0 to 99" };

/* X_measured, X_shaped: a step of X measures first, or brings a state that ops change. */
enum {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) NAME##_measured = false, NAME##_shaped = false,
#define MEASURED(NAME, HYPERS, STATES, DOC) NAME##_measured = true, NAME##_shaped = false,
#define SHAPED(NAME, HYPERS, STATES, DOC) NAME##_measured = false, NAME##_shaped = true,
#include "base/optimizers.def"
};

/* The factors of X: states of other shapes. */
#define STATE(name)
#define FACTOR(name, form) { #name, GB_FACTOR_##form },
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  static const gb_factor_info NAME##_factors[] = { STATES { NULL, GB_FACTOR_WHOLE } };
#include "base/optimizers.def"

#define FROM_0 from_0
#define FROM_1 from_1
#define TO_0 to_0
#define UNIT unit
#define TO_1 to_1
#define ANY any
#define COUNT count_to_99
#define PLACE(name) (int)(offsetof(numbers, name) / sizeof(double))
#define HYPER(name, preset, bound) { #name, GB_HYPER_NUMBER, false, PLACE(name), 1, { preset }, #preset, &bound },
#define RATE(name, preset, bound) { #name, GB_HYPER_NUMBER, true, PLACE(name), 1, { preset }, #preset, &bound },
#define PAIR(name, first, second, bound)                                                                              \
  { #name "s", GB_HYPER_LIST, false, PLACE(name##1), 2, { first, second }, "{ " #first ", " #second " }", &bound },
#define TRIPLE(name, first, second, third, bound)                                                                     \
  { #name "s", GB_HYPER_LIST, false, PLACE(name##1), 3, { first, second, third },                                     \
    "{ " #first ", " #second ", " #third " }", &bound },
#define FLAG(name) { #name, GB_HYPER_FLAG, false, PLACE(name), 1, { 0 }, "false", NULL },
#define FLAG_ON(name) { #name, GB_HYPER_FLAG, false, PLACE(name), 1, { 1 }, "true", NULL },
#define CHOICE(name, words) { #name, GB_HYPER_CHOICE, false, PLACE(name), 1, { 0 }, words, NULL },
#define STATE(name) #name,
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                          \
  static const gb_optimizer_info *NAME##_info(void) {                                                                 \
    typedef gb_##NAME##_hyper numbers;                                                                                \
    static const gb_hyper hypers[] = { HYPERS FLAG(maximize) };                                                       \
    static const char *const states[] = { STATES NULL };                                                              \
    static const gb_optimizer_info info = { #NAME, DOC, hypers, sizeof hypers / sizeof *hypers, states,               \
                                            sizeof states / sizeof *states - 1, NAME##_factors,                       \
                                            sizeof NAME##_factors / sizeof *NAME##_factors - 1, NAME##_measured,      \
                                            NAME##_shaped };                                                          \
    return &info;                                                                                                     \
  }
#include "base/optimizers.def"

const gb_optimizer_info *gb_optimizer_info_of(gb_optimizer_kind kind) {
  static const gb_optimizer_info *(*const infos[])(void) = {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) [GB_##NAME] = NAME##_info,
#include "base/optimizers.def"
  };
  return infos[kind]();
}

const gb_hyper *gb_optimizer_hyper(gb_optimizer_kind kind, const char *name) {
  const gb_optimizer_info *info = gb_optimizer_info_of(kind);
  for (int i = 0; i < info->n_hypers; i++)
    if (!strcmp(info->hypers[i].name, name)) return &info->hypers[i];
  return NULL;
}

const char *gb_hyper_refuses(const gb_hyper *hyper, double value) {
  const gb_bound *bound = hyper->bound;
  if (!bound) return NULL;
  return value >= bound->least && value < bound->below && (!bound->whole || value == floor(value)) ? NULL : bound->text;
}

const char *gb_optimizer_needs(gb_optimizer_kind kind, const gb_optim_numbers *numbers) {
  switch (kind) {
#define NEEDS(condition, text) if (!(condition)) return text;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                          \
  case GB_##NAME: {                                                                                                   \
    const gb_##NAME##_hyper *h = &numbers->NAME;                                                                      \
    (void)h;                                                                                                          \
    HYPERS                                                                                                            \
    return NULL;                                                                                                      \
  }
#include "base/optimizers.def"
    case GB_OPTIMIZERS: break;
  }
  return NULL;
}

bool gb_optimizer_uses(gb_optimizer_kind kind, const gb_optim_numbers *numbers, int state) {
  switch (kind) {
#define STATE(name) if (state-- == 0) return true;
#define STATE_WHERE(name, condition) if (state-- == 0) return condition;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC)                                                                          \
  case GB_##NAME: {                                                                                                   \
    const gb_##NAME##_hyper *h = &numbers->NAME;                                                                      \
    (void)h;                                                                                                          \
    STATES                                                                                                            \
    return false;                                                                                                     \
  }
#include "base/optimizers.def"
    case GB_OPTIMIZERS: break;
  }
  return false;
}

void gb_optim_options_init(gb_optimizer_kind kind, gb_optim_options *options, size_t size) {
  const gb_optimizer_info *info = gb_optimizer_info_of(kind);
  gb_optim_options all = { .size = size };
  for (int i = 0; i < info->n_hypers; i++)
    for (int k = 0; k < info->hypers[i].count; k++)
      all.numbers.number[info->hypers[i].at + k] = info->hypers[i].preset[k];
  memcpy(options, &all, size < sizeof all ? size : sizeof all);
}
