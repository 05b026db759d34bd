/* streams.c - the standard streams, for the Lua inside libgibbous.
 *
 * Static libraries of Lua refer to stdin, stdout and stderr as a program does, by an address that a shared library
 * cannot have. While libgibbous is put together these references are turned to the three pointers below
 * (cmake/library.cmake); the executable does not use them. They are set when the library is loaded, before any of its
 * functions can be called, and never again. */
#include <stdio.h>

extern FILE *gbl_stdin, *gbl_stdout, *gbl_stderr;
FILE *gbl_stdin, *gbl_stdout, *gbl_stderr;

/* Note what the C library opened. */
__attribute__((constructor)) static void note_streams(void) {
  gbl_stdin = stdin;
  gbl_stdout = stdout;
  gbl_stderr = stderr;
}
