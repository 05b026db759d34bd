/* host.cpp - an outside program in C++17. */
#include "engine.h"
#include "recipe.h"

int main() {
  return try_engine() + try_recipe();
}
