/* io/append.c - see append.h. */
#include "io/append.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/path.h"

struct gb_append {
  gb_context *context;           /* counted */
  char *path;
  int fd;
};

/* Open, and see that it is a regular file: to open a pipe would wait for its reader. */
static gb_status open_regular(gb_append *file, int flags) {
  struct stat info;
  GB_TRY(gb_path_open(file->context, file->path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | flags, &file->fd));
  if (fstat(file->fd, &info)) return gb_fail_errno(file->context, "open", file->path, errno);
  return S_ISREG(info.st_mode) ? GB_OK
      : gb_fail(file->context, GB_EIO, "cannot open '%s': it is no regular file", file->path);
}

gb_status gb_append_open(gb_context *context, const char *path, bool fresh, gb_append **out) {
  gb_append *file = calloc(1, sizeof *file);
  if (!file) return gb_fail_memory(context, sizeof *file);
  file->context = context;
  gb_context_retain(context);
  file->fd = -1;
  file->path = strdup(path);
  gb_status status = file->path ? open_regular(file, fresh ? O_EXCL : 0) : gb_fail_memory(context, strlen(path));
  if (status != GB_OK) { gb_append_close(file); return status; }
  *out = file;
  return GB_OK;
}

gb_status gb_append_write(gb_append *file, const void *data, size_t bytes) {
  const char *at = data;
  GB_TRY(gb_path_charge(file->context, bytes));
  while (bytes) {
    ssize_t done = write(file->fd, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return gb_fail_errno(file->context, "write", file->path, done ? errno : ENOSPC);
    at += done;
    bytes -= (size_t)done;
  }
  return GB_OK;
}

gb_status gb_append_cut(gb_append *file, uint64_t bytes) {
  return ftruncate(file->fd, (off_t)bytes) ? gb_fail_errno(file->context, "cut", file->path, errno) : GB_OK;
}

gb_status gb_append_flush(gb_append *file) {
  if (!fsync(file->fd) || errno == EINVAL || errno == ENOTSUP || errno == EROFS) return GB_OK;
  return gb_fail_errno(file->context, "write", file->path, errno);
}

void gb_append_close(gb_append *file) {
  if (!file) return;
  gb_context *context = file->context;
  if (file->fd >= 0) close(file->fd);
  free(file->path);
  free(file);
  gb_context_release(context);
}
