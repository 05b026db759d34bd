/* open_host.h - what the tests of the host API share: opening with few words, recipes that must succeed or fail in a
 * certain way. */
#ifndef GB_TESTS_OPEN_HOST_H
#define GB_TESTS_OPEN_HOST_H

#include <gibbous_lua.h>
#include <string.h>
#include <time.h>

#include "check.h"

/* Open with options, or the defaults; NULL, counted as a failure, where that does not work. */
static inline gb_host *open_host(const gb_host_options *options) {
  char why[256] = "";
  gb_host *host = NULL;
  gb_status status = gb_host_open(options, &host, why, sizeof why);
  if (status != GB_OK) fprintf(stderr, "gb_host_open: %s: %s\n", gb_status_text(status), why);
  CHECK(status == GB_OK);
  return host;
}

/* Options with a sandbox and one thread for kernels. */
static inline gb_host_options options_of(gb_sandbox sandbox) {
  gb_host_options o;
  gb_host_options_init(&o, sizeof o);
  o.sandbox = sandbox;
  o.threads = 1;
  return o;
}

/* Does this text run? Shows why not. */
static inline bool runs(gb_host *host, const char *text) {
  gb_status status = gb_host_run_string(host, text, NULL);
  if (status != GB_OK) fprintf(stderr, "  %s\n  %s: %s\n", text, gb_status_text(status), gb_host_error(host));
  return status == GB_OK;
}

/* Does this text end with that status, and an error that says `says`? */
static inline bool fails(gb_host *host, const char *text, gb_status expected, const char *says) {
  gb_status status = gb_host_run_string(host, text, NULL);
  bool right = status == expected && (!says || strstr(gb_host_error(host), says));
  if (!right)
    fprintf(stderr, "  %s\n  gave %s: %s\n", text, gb_status_text(status), status == GB_OK ? "" : gb_host_error(host));
  return right;
}

static inline double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
