/* ops/slopes.h - derivatives of activations out of ops that have a derivative themselves, for gradients of
 * gradients. */
#ifndef GB_OPS_SLOPES_H
#define GB_OPS_SLOPES_H

#include "graph/chain.h"

/* At x, the activation's argument. */
gb_tensor *gb_slope_silu(gb_chain *chain, gb_tensor *x);
gb_tensor *gb_slope_gelu(gb_chain *chain, gb_tensor *x);
gb_tensor *gb_slope_gelu_tanh(gb_chain *chain, gb_tensor *x);

#endif
