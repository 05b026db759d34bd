/* ops/activation.h - the activations that a row may fuse into its epilogue, by its `activation` attribute. */
#ifndef GB_OPS_ACTIVATION_H
#define GB_OPS_ACTIVATION_H

#include <stdbool.h>

#include "op_ids.h"

/* Each with the name of its function (base/functions.def). */
#define GB_ACTIVATIONS(X) \
  X(RELU, relu) X(GELU, gelu) X(GELU_TANH, gelu_tanh) X(SILU, silu) X(TANH, tanh) X(SIGMOID, sigmoid)

typedef enum gb_activation {
  GB_ACTIVATION_NONE,
#define GB_ENUMERATOR(NAME, name) GB_ACTIVATION_##NAME,
  GB_ACTIVATIONS(GB_ENUMERATOR)
#undef GB_ENUMERATOR
  GB_ACTIVATION_COUNT
} gb_activation;

/* That an attribute `activation` names. */
static inline gb_activation gb_activation_of(const gb_attr *activation) {
#define GB_CASE(NAME, name) case GB_WORD_##name: return GB_ACTIVATION_##NAME;
  switch (activation->integer) {
    GB_ACTIVATIONS(GB_CASE)
    default: return GB_ACTIVATION_NONE;
  }
#undef GB_CASE
}

/* The derivative is a function of the argument (gelu, silu), not of the result alone (relu, tanh, sigmoid). */
static inline bool gb_activation_needs_argument(gb_activation a) {
  return a == GB_ACTIVATION_GELU || a == GB_ACTIVATION_GELU_TANH || a == GB_ACTIVATION_SILU;
}

/* What tells gelu's two forms apart. */
static inline void gb_activation_attribute(gb_activation a, gb_attr *approximate) {
  *approximate = gb_attr_word(a == GB_ACTIVATION_GELU_TANH ? GB_WORD_tanh : GB_WORD_none);
}

/* The op that computes the gradient at the activation's argument from (the gradient of its result, what is kept), with
 * its attribute; GB_OP_COUNT where there is no activation. */
static inline gb_op gb_activation_backward(gb_activation a, gb_attr *approximate) {
  static const gb_op ops[] = { GB_OP_COUNT, GB_OP_relu_backward, GB_OP_gelu_backward, GB_OP_gelu_backward,
                               GB_OP_silu_backward, GB_OP_tanh_backward,
                               GB_OP_sigmoid_backward };
  gb_activation_attribute(a, approximate);
  return ops[a];
}

/* The op that an activation is by itself. */
static inline gb_op gb_activation_forward(gb_activation a, gb_attr *approximate) {
  static const gb_op ops[] = { GB_OP_COUNT, GB_OP_relu, GB_OP_gelu, GB_OP_gelu, GB_OP_silu, GB_OP_tanh, GB_OP_sigmoid };
  gb_activation_attribute(a, approximate);
  return ops[a];
}

#endif
