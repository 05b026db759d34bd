/* recipe.h - what the outside programs in C and in C++ do with a host: run a recipe, call its function with a value,
 * get one back. */
#ifndef OUTSIDE_RECIPE_H
#define OUTSIDE_RECIPE_H

#include <gibbous_lua.h>
#include <stdio.h>

/* The recipe's function gives 3 * 14; 0 when it did. */
static int try_recipe(void) {
  gb_host *host;
  char why[256];
  gb_value argument = gb_value_integer(14), result = gb_value_nil();
  if (gb_host_open(NULL, &host, why, sizeof why) != GB_OK) return fprintf(stderr, "%s\n", why), 1;
  bool right = gb_host_run_string(host, "function triple(n) return (gb.tensor{ n } * 3):item() end", "triple") ==
      GB_OK &&
               gb_host_call(host, "triple", &argument, 1, &result, 1) == GB_OK && result.type == GB_VALUE_INTEGER &&
                   result.as.integer == 42;
  if (!right) fprintf(stderr, "%s\n", gb_host_error(host));
  gb_host_close(host);
  return !right;
}

#endif
