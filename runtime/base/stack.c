/* base/stack.c - the bounds of this thread's stack, asked for once per thread. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "base/stack.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* From low on; bytes 0: not known, or not asked yet. */
typedef struct bounds { bool asked; uintptr_t low, bytes; } bounds;

static _Thread_local bounds known;

/* The guard pages at the low end belong to what the system tells, but nobody can write there. */
static bounds ask(void) {
  bounds b = { .asked = true };
  pthread_attr_t attributes;
  void *low;
  size_t bytes, guard = 0;
  if (pthread_getattr_np(pthread_self(), &attributes)) return b;
  if (!pthread_attr_getstack(&attributes, &low, &bytes) && !pthread_attr_getguardsize(&attributes, &guard)) {
    b.low = (uintptr_t)low + guard;
    b.bytes = bytes > guard ? bytes - guard : 0;
  }
  pthread_attr_destroy(&attributes);
  return b;
}

/* The same where what is known does not say. Apart, since every op asks. */
static __attribute__((noinline)) size_t look(uintptr_t here) {
  if (!known.asked) known = ask();
  return here - known.low < known.bytes ? here - known.low : SIZE_MAX;
}

size_t gb_stack_left(void) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0), left = here - known.low;
  return left < known.bytes ? left : look(here);
}
