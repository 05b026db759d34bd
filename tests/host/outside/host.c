/* host.c - an outside program in C11. */
#include "engine.h"
#include "recipe.h"

int main(void) {
  return try_engine() + try_recipe();
}
