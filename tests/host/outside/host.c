/* host.c - an outside program in C11. */
#include <gibbous_ops.h>

#include "engine.h"
#include "recipe.h"

/* Ops with arguments by name: softmax along the last dim, the largest of it with its index, and a list; and what has to
 * be refused. */
static int try_names(void) {
  gb_context *context;
  const int64_t shape[2] = { 1, 3 };
  const float values[3] = { 1, 3, 2 };
  gb_device cpu = { GB_CPU, 0 };
  gb_tensor *x = NULL, *y = NULL, *joined = NULL;
  gb_out_max best = { 0 };
  int64_t index = -1;
  double number;
  if (gb_context_open(NULL, &context) != GB_OK) return 1;
  bool right = gb_tensor_new(context, GB_FLOAT32, 2, shape, cpu, &x) == GB_OK &&
      gb_tensor_write(x, values, sizeof values) == GB_OK &&
               GB_RUN(context, softmax, &y, .x = x, .dim = gb_attr_int(-1)) == GB_OK &&
               GB_RUN(context, max, &best.values, .x = y, .dim = gb_attr_int(1)) == GB_OK &&
               gb_tensor_item(best.indices, &number, &index) == GB_OK && index == 1 &&
               GB_RUN(context, cat, &joined, .xs = (gb_tensor *[]){ x, y, x }, .count = 3) == GB_OK &&
                   gb_tensor_size(joined, 0) == 3 &&
               GB_RUN(context, add, NULL, .x = y, .y = y) == GB_OK;
  if (!right) fprintf(stderr, "%s\n", gb_error(context));
  gb_tensor *none = NULL;
  int32_t op = 0;
  gb_arguments_softmax given = { .x = x };
  bool refused = GB_RUN(context, gelu, &none, .x = x, .approximate = gb_attr_text("no")) == GB_EINVAL &&
      strstr(gb_error(context), "'none' or 'tanh'") &&
                 GB_RUN(context, softmax, &none, .dim = gb_attr_int(0)) == GB_EINVAL &&
                     strstr(gb_error(context), "'x' is missing") &&
                 gb_run_arguments(context, &op, "softmax", "IN(x)", &given, &none) == GB_EUNSUPPORTED &&
                     strstr(gb_error(context), "gibbous_ops.h") &&
                 gb_run_arguments(context, &op, "softmux", "IN(x)", &given, &none) == GB_EUNSUPPORTED && !none;
  if (!refused) fprintf(stderr, "not refused: %s\n", gb_error(context));
  gb_tensor *all[] = { x, y, joined, best.values, best.indices };
  for (int i = 0; i < 5; i++) gb_tensor_release(all[i]);
  gb_context_close(context);
  return !right || !refused;
}

int main(void) {
  return try_engine() + try_recipe() + try_names();
}
