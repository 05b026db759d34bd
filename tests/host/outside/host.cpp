/* host.cpp - an outside program in C++17. */
#include "engine.h"

int main() {
  return try_engine();
}
