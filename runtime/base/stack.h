/* base/stack.h - how much of this thread's stack is left.
 *
 * A recipe decides how deep calls nest, the host on which stack: a thread may have 256 KB. What nests asks here and
 * fails with an error where too little is left for what may follow. */
#ifndef GB_BASE_STACK_H
#define GB_BASE_STACK_H

#include <stddef.h>

#include "base/sanitizer.h"

/* Bytes that must be left where an op begins, or a function with more than a few hundred bytes on the stack calls into
 * Lua: kernels have arrays of up to 124 KB, and as many calls as Lua lets nest then (200) take less. The sanitizer's
 * frames are larger. */
#define GB_STACK_LEAST ((size_t)(GB_ADDRESS_SANITIZER ? 448 : 144) << 10)

/* Bytes that are left; SIZE_MAX where the stack is none that the system made for this thread. */
size_t gb_stack_left(void);

#endif
