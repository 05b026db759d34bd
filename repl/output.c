/* output.c - the end of standard output. See output.h. */
#include "output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

/* Runs after everything else that the program does at its end; _exit, since its status is settled by then. */
static void check(void) {
  bool failed = ferror(stdout);
  errno = 0;
  failed |= fflush(stdout) != 0;
  if (!failed) return;
  fprintf(stderr, "%s: cannot write standard output%s%s\n", name, errno ? ": " : "", errno ? strerror(errno) : "");
  fflush(NULL);
  _exit(EXIT_FAILURE);
}

void output_check_at_exit(const char *program) {
  if (isatty(STDOUT_FILENO)) return;
  name = program;
  atexit(check);
}
