/* history.c - the history file, shared by every prompt that runs.
 *
 * A line is appended by one write under a lock, so two prompts cannot mix or lose lines. When the file has grown to
 * twice what is kept, who holds the lock writes the newer half to a second file, which takes the place of the first by
 * rename: whatever happens, one whole file is there. A prompt sees the lines of others when it starts. Failures are
 * silent: history is a comfort. */
#include "history.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* {==== Where it is ==== */

/* Make the folder `path` and those above it, for this user only. */
static bool make_folders(char *path) {
  for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  struct stat info;
  return (mkdir(path, 0700) == 0 || stat(path, &info) == 0);
}

char *history_path(void) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  bool own = state && *state == '/'; /* the specification ignores relative paths */
  if (!own && (!home || *home != '/')) return NULL;
  const char *base = own ? state : home, *rest = own ? "/gibbous" : "/.local/state/gibbous";
  size_t room = strlen(base) + strlen(rest) + sizeof "/history";
  char *path = malloc(room);
  if (!path) return NULL;
  snprintf(path, room, "%s%s", base, rest);
  if (!make_folders(path)) return free(path), NULL;
  strcat(path, "/history");
  return path;
}

/* ====} */

/* {==== Reading and writing ==== */

enum { SEPARATOR = 31 }; /* of the lines of one entry */

/* One byte for another, all over a text. */
static void exchange(char *text, char from, char to) {
  for (; (text = strchr(text, from)); text++) *text = to;
}

void history_load(const char *path, void (*line)(void *user, const char *text), void *user) {
  FILE *file = fopen(path, "r");
  char *text = NULL;
  size_t room = 0;
  ssize_t n;
  while (file && (n = getline(&text, &room, file)) > 0) {
    if (text[n - 1] == '\n') text[n - 1] = '\0';
    exchange(text, SEPARATOR, '\n');
    if (*text) line(user, text);
  }
  free(text);
  if (file) fclose(file);
}

/* Open the file for appending, locked; again when another prompt has replaced it while this one waited. -1: not
 * possible. */
static int open_locked(const char *path) {
  for (int attempt = 0; attempt < 10; attempt++) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    struct stat opened, there;
    int file = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    if (fcntl(file, F_SETLKW, &lock) == 0 && fstat(file, &opened) == 0 && stat(path, &there) == 0 &&
        opened.st_ino == there.st_ino &&
        opened.st_dev == there.st_dev)
      return file;
    close(file);
  }
  return -1;
}

/* The last HISTORY_LINES lines of a text that has more than twice as many; NULL when it has not. */
static const char *newer_half(const char *text, size_t size) {
  size_t lines = 0;
  for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
  if (lines <= 2 * HISTORY_LINES) return NULL;
  for (lines -= HISTORY_LINES; lines; text++) lines -= *text == '\n';
  return text;
}

/* Write all of it to a new file and give that the place of `path`. */
static void replace(const char *path, const char *text, size_t size) {
  char other[4096];
  if ((size_t)snprintf(other, sizeof other, "%s.new", path) >= sizeof other) return;
  int file = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  bool written = write(file, text, size) == (ssize_t)size && fsync(file) == 0;
  if (close(file) != 0 || !written || rename(other, path) != 0) unlink(other);
}

/* Keep the newer half of a file that has grown; it is locked. */
static void shorten(int file, const char *path) {
  struct stat info;
  if (fstat(file, &info) != 0 || info.st_size < 16 * HISTORY_LINES) return; /* too small to be worth counting */
  size_t size = (size_t)info.st_size;
  char *text = malloc(size + 1);
  if (text && pread(file, text, size, 0) == (ssize_t)size) {
    text[size] = '\0';
    const char *half = newer_half(text, size);
    if (half) replace(path, half, size - (size_t)(half - text));
  }
  free(text);
}

void history_append(const char *path, const char *text) {
  int file = open_locked(path);
  if (file < 0) return;
  size_t size = strlen(text) + 1;
  char *row = malloc(size);
  if (row) {
    memcpy(row, text, size);
    exchange(row, '\n', SEPARATOR);
    row[size - 1] = '\n';
    if (write(file, row, size) == (ssize_t)size) shorten(file, path);
    free(row);
  }
  close(file);
}

/* ====} */
