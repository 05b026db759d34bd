/* check.h - the whole test framework of the C tests: CHECK counts, and main ends with `return check_report();`.
 *
 * Each test is a program of its own, so the two counters are static here. CHECK is called from the main thread only. */
#ifndef GB_TESTS_CHECK_H
#define GB_TESTS_CHECK_H

#include <stdio.h>

static int check_passed, check_failed;

/* Count one expectation, and say where it stands when it does not hold. */
#define CHECK(expression)                                                      \
  do {                                                                         \
    if (expression) check_passed++;                                            \
    else {                                                                     \
      check_failed++;                                                          \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #expression); \
    }                                                                          \
  } while (0)

/* The line that counts, and the exit status of the program. */
static inline int check_report(void) {
  printf("%d passed, %d failed\n", check_passed, check_failed);
  return check_failed != 0;
}

#endif
