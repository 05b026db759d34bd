/* fuzz.h - what the fuzz targets share: a context, the input as a file, and a claim whose breach the fuzzer reports.
 *
 * Each target is a program of its own with one thread, so what lives through the whole run is static here. */
#ifndef GB_TESTS_FUZZ_H
#define GB_TESTS_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tensor/context.h"

/* What the fuzzer calls with every input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A target may change inputs in its own way: data has room for `most` bytes; the new size comes back. LLVMFuzzerMutate
 * is the fuzzer's way. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

#define CLAIM(expression)                                                      \
  do {                                                                         \
    if (!(expression)) {                                                       \
      fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #expression); \
      abort();                                                                 \
    }                                                                          \
  } while (0)

/* The context of the run; its tensors hold at most 64 MiB. */
static inline gb_context *fuzz_context(void) {
  static gb_context *context;
  gb_context_options options;
  if (context) return context;
  gb_context_options_init(&options, sizeof options);
  options.threads = 1;
  options.tensor_bytes = (size_t)64 << 20;
  CLAIM(gb_context_open(&options, &context) == GB_OK);
  return context;
}

/* The path of a file with these bytes, until the next call. The file has no name of its own, so nothing is left of it
 * when the run ends; it lies in memory where it can, since a disk is asked to write down what was cut off and written
 * again. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
  static char path[64] = "/dev/shm/gibbous-fuzz-XXXXXX";
  static int fd = -1;
  if (fd < 0) {
    fd = mkstemp(path);
    if (fd < 0) {
      snprintf(path, sizeof path, "/tmp/gibbous-fuzz-XXXXXX");
      fd = mkstemp(path);
    }
    CLAIM(fd >= 0 && unlink(path) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  CLAIM(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
  return path;
}

#endif
