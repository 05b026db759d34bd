/* base/optimizers.h - the optimizers of optimizers.def as types: kinds, and the hyperparameters of each by name.
 *
 * All hyperparameters are doubles, so that those of any optimizer are also a plain row of numbers. */
#ifndef GB_BASE_OPTIMIZERS_H
#define GB_BASE_OPTIMIZERS_H

/* GB_SGD, GB_Adam, ... */
typedef enum gb_optimizer_kind {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) GB_##NAME,
#include "base/optimizers.def"
  GB_OPTIMIZERS
} gb_optimizer_kind;

/* gb_SGD_hyper, gb_Adam_hyper, ... */
#define HYPER(name, preset, bound) double name;
#define PAIR(name, first, second, bound) double name##1, name##2;
#define TRIPLE(name, first, second, third, bound) double name##1, name##2, name##3;
#define FLAG(name) double name;
#define CHOICE(name, words) double name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) \
  typedef struct gb_##NAME##_hyper { HYPERS FLAG(maximize) } gb_##NAME##_hyper;
#include "base/optimizers.def"

typedef union gb_optim_longest {
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) gb_##NAME##_hyper NAME;
#include "base/optimizers.def"
} gb_optim_longest;

/* The hyperparameters of one group: numbers.AdamW.lr, or number[i] in the order of the declaration. */
enum { GB_OPTIM_NUMBERS = sizeof(gb_optim_longest) / sizeof(double) };
typedef union gb_optim_numbers {
  double number[GB_OPTIM_NUMBERS];
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) gb_##NAME##_hyper NAME;
#include "base/optimizers.def"
} gb_optim_numbers;

/* The most states that an optimizer has. */
typedef union gb_optim_most_states {
#define STATE(name) char name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) struct { STATES char end; } NAME;
#include "base/optimizers.def"
} gb_optim_most_states;
enum { GB_OPTIM_STATES = sizeof(gb_optim_most_states) - 1 };

/* The most factors that an optimizer has, and the forms of theirs. */
typedef union gb_optim_most_factors {
#define STATE(name)
#define FACTOR(name, form) char name;
#define OPTIMIZER(NAME, HYPERS, STATES, DOC) struct { STATES char end; } NAME;
#include "base/optimizers.def"
} gb_optim_most_factors;
enum { GB_OPTIM_FACTORS = sizeof(gb_optim_most_factors) - 1 };
typedef enum gb_factor_form { GB_FACTOR_ROWS, GB_FACTOR_COLUMNS, GB_FACTOR_WHOLE } gb_factor_form;

/* A backend cuts a slab into chunks of at least so many elements. */
enum { GB_LEAST_CHUNK = 4096 };
/* Gradients are measured by chunks of so many elements of a slab, counted from its first one. */
enum { GB_NORM_CHUNK = 1 << 14 };

#endif
