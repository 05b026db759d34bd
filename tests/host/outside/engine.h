/* engine.h - what the outside programs in C and in C++ do with the engine: one step of gradient descent by the
 * functions of gibbous.h. It uses nothing that either language lacks. */
#ifndef OUTSIDE_ENGINE_H
#define OUTSIDE_ENGINE_H

#include <gibbous.h>
#include <stdio.h>
#include <string.h>

/* d/dx of sum(x * x) is 2 x; gives how many elements of the gradient are wrong, or -1 where a call failed. */
static int wrong_gradients(gb_context *context) {
  const int64_t shape[1] = { 4 };
  const float values[4] = { 1, -2, 3, 0.5f };
  float gradient[4] = { 0, 0, 0, 0 };
  gb_device cpu = { GB_CPU, 0 };
  gb_tensor *x = NULL, *square = NULL, *sum = NULL, *dx = NULL;
  int wrong = -1;
  if (gb_tensor_new(context, GB_FLOAT32, 1, shape, cpu, &x) == GB_OK &&
      gb_tensor_write(x, values, sizeof values) == GB_OK &&
      gb_tensor_set_requires_grad(x, true) == GB_OK &&
          gb_apply(context, gb_op_named("square"), &x, 1, NULL, &square) == GB_OK &&
      gb_apply(context, gb_op_named("sum"), &square, 1, NULL, &sum) == GB_OK &&
          gb_backward(sum, NULL, false, false) == GB_OK &&
      (dx = gb_tensor_grad(x)) != NULL && gb_tensor_read(dx, gradient, sizeof gradient) == GB_OK) {
    wrong = 0;
    for (int i = 0; i < 4; i++) wrong += gradient[i] != 2 * values[i];
  }
  if (wrong) fprintf(stderr, "%s\n", gb_error(context));
  gb_tensor_release(dx);
  gb_tensor_release(sum);
  gb_tensor_release(square);
  gb_tensor_release(x);
  return wrong;
}

/* Open an engine, try it, and close it; 0 when all went well. */
static int try_engine(void) {
  gb_context_options options;
  gb_context *context;
  gb_context_options_init(&options, sizeof options);
  options.threads = 1;
  if (gb_context_open(&options, &context) != GB_OK) return 1;
  int wrong = wrong_gradients(context);
  gb_context_close(context);
  return wrong != 0;
}

#endif
