/* host.c - an outside program in C11. */
#include "engine.h"

int main(void) {
  return try_engine();
}
