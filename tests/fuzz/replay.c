/* replay.c - a fuzz target without a fuzzer: every file of a corpus as it is, and changed at random, the same changes
 * each time.
 *
 *   replay_TARGET MUTATIONS FOLDER... | FILE      what breaks a claim or crashes is kept as replay_TARGET.input; run
 *   the program on it: 0
 * FILE */
#define _DEFAULT_SOURCE /* scandir, alphasort */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

enum { MOST = 1 << 16 };
static uint8_t input[MOST];
static size_t input_size;
static char kept[256];                  /* the path of an input that fails */
static uint64_t state = 1;              /* of the random numbers */
static long inputs;

/* The target's own mutator, if it has one. */
#pragma weak LLVMFuzzerCustomMutator

/* Splitmix64. */
static uint64_t draw(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static size_t below(size_t n) { return n ? (size_t)(draw() % n) : 0; }

/* Write the input down before the process ends. Only what a signal handler may call. */
static void keep(int signal_number) {
  static const char text[] = "the input is kept beside the program\n";
  int fd = open(kept, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && write(fd, input, input_size) == (ssize_t)input_size && write(2, text, sizeof text - 1)) close(fd);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

/* One small change, as fuzzers make them: a bit, a byte, a run of bytes removed, repeated, or moved, the end cut
 * off. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most) {
  static const uint8_t odd[] = { 0, 1, 0x7f, 0x80, 0xff, '0', '9', '-', '"', '[', '{' };
  size_t at = below(size), run = 1 + below(8);
  if (run > size - at) run = size - at;
  switch (draw() % 7) {
    case 0: if (size) data[at] ^= (uint8_t)(1u << below(8)); return size;
    case 1: if (size) data[at] = odd[below(sizeof odd)]; return size;
    case 2: if (size) data[at] = (uint8_t)draw(); return size;
    case 3: return size ? at : 0;
    case 4: memmove(data + at, data + at + run, size - at - run); return size - run;
    case 5: if (size) memmove(data + below(size - run + 1), data + at, run); return size;
    default:
      if (size + run > most) return size;
      memmove(data + at + run, data + at, size - at);
      return size + run;
  }
}

static void run(void) {
  LLVMFuzzerTestOneInput(input, input_size);
  inputs++;
}

/* A file as it is, and changed up to four times in a row, so often. */
static void replay_file(const char *path, long mutations) {
  static uint8_t whole[MOST];
  FILE *file = fopen(path, "rb");
  CLAIM(file);
  size_t size = fread(whole, 1, sizeof whole, file);
  fclose(file);
  for (long i = 0; i <= mutations; i++) {
    memcpy(input, whole, input_size = size);
    for (long k = i ? 1 + (long)below(4) : 0; k > 0; k--)
      input_size = LLVMFuzzerCustomMutator ? LLVMFuzzerCustomMutator(input, input_size, MOST, (unsigned)draw())
          : LLVMFuzzerMutate(input, input_size, MOST);
    run();
  }
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* Every file of a folder, in the order of their names, or a file. */
static void replay(const char *path, long mutations) {
  struct stat about;
  CLAIM(stat(path, &about) == 0);
  if (!S_ISDIR(about.st_mode)) { replay_file(path, mutations); return; }
  struct dirent **list;
  int count = scandir(path, &list, is_visible, alphasort);
  CLAIM(count >= 0);
  for (int i = 0; i < count; i++) {
    char file[4096];
    snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
    replay_file(file, mutations);
    free(list[i]);
  }
  free(list);
}

int main(int argc, char **argv) {
  if (argc < 3) return fprintf(stderr, "%s MUTATIONS FOLDER...\n", argv[0]), 2;
  snprintf(kept, sizeof kept, "%s.input", argv[0]);
  signal(SIGABRT, keep);
  signal(SIGSEGV, keep);
  for (int i = 2; i < argc; i++) replay(argv[i], strtol(argv[1], NULL, 10));
  printf("%ld passed, 0 failed\n", inputs);
  return 0;
}
