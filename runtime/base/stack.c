/* base/stack.c - the bounds of this thread's stack, asked for once per thread. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "base/stack.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* From low up to high; both 0: not known. */
typedef struct bounds { bool asked; uintptr_t low, high; } bounds;

/* The guard pages at the low end belong to what the system tells, but nobody can write there. */
static bounds ask(void) {
  bounds b = { .asked = true };
  pthread_attr_t attributes;
  void *low;
  size_t bytes, guard = 0;
  if (pthread_getattr_np(pthread_self(), &attributes)) return b;
  if (!pthread_attr_getstack(&attributes, &low, &bytes) && !pthread_attr_getguardsize(&attributes, &guard)) {
    b.low = (uintptr_t)low + guard;
    b.high = (uintptr_t)low + bytes;
  }
  pthread_attr_destroy(&attributes);
  return b;
}

size_t gb_stack_left(void) {
  static _Thread_local bounds known;
  if (!known.asked) known = ask();
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  return here >= known.low && here < known.high ? here - known.low : SIZE_MAX;
}
