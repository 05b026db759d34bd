/* ops/slopes.c - derivatives of activations out of differentiable ops. The fused kernels (silu_backward, gelu_backward)
 * give the same numbers faster, but no second derivative. */
#include "ops/slopes.h"

#include "base/math.h"

#define OP1(op, x) gb_chain_1(c, GB_OP_##op, x, NULL)
#define OP2(op, x, y) gb_chain_2(c, GB_OP_##op, x, y, NULL)
#define OPN(op, x, number) gb_chain_number(c, GB_OP_##op, x, number)

/* s (1 + x (1 - s)) with s = sigmoid(x) */
gb_tensor *gb_slope_silu(gb_chain *c, gb_tensor *x) {
  gb_tensor *s = OP1(sigmoid, x), *rest = OP2(mul, x, OPN(add, OP1(neg, s), 1));
  return OP2(mul, s, OPN(add, rest, 1));
}

/* Phi(x) + x phi(x): the normal distribution and its density. */
gb_tensor *gb_slope_gelu(gb_chain *c, gb_tensor *x) {
  gb_tensor *below = OPN(mul, OPN(add, OP1(erf, OPN(mul, x, GB_SQRT_HALF)), 1), 0.5);
  gb_tensor *density = OPN(mul, OP1(exp, OPN(mul, OP1(square, x), -0.5)), 0.39894228040143267794);
  return OP2(add, below, OP2(mul, x, density));
}

/* (1 + t) / 2 + x (1 - t^2) u' / 2 with t = tanh(u), u = sqrt(2 / pi) (x + GB_GELU_CUBIC x^3) */
gb_tensor *gb_slope_gelu_tanh(gb_chain *c, gb_tensor *x) {
  gb_tensor *squares = OP1(square, x);
  gb_tensor *t = OP1(tanh, OP2(mul, x, OPN(mul, OPN(add, OPN(mul, squares, GB_GELU_CUBIC), 1), GB_SQRT_2_OVER_PI)));
  gb_tensor *inner = OPN(mul, OPN(add, OPN(mul, squares, 3 * GB_GELU_CUBIC), 1), GB_SQRT_2_OVER_PI);
  gb_tensor *rise = OP2(mul, OP2(mul, x, OPN(add, OP1(neg, OP1(square, t)), 1)), inner);
  return OPN(mul, OP2(add, OPN(add, t, 1), rise), 0.5);
}
