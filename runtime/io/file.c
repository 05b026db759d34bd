/* io/file.c - temporary file, sync, rename; and plain reads. See file.h. */
#define _DEFAULT_SOURCE /* flock, realpath */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/path.h"

#define TEMPORARY_NAMES 16

struct gb_file_writer {
  gb_context *context;
  gb_path place;
  char *temporary;               /* a name in the place's folder */
  int fd;
  int64_t work;                  /* bytes since the last look for a stop */
};

struct gb_file_reader {
  gb_context *context;
  char *path;
  int fd;
  uint64_t size;
};

/* {==== Writing ==== */

/* Where links are followed, the file that the name names in the end takes its place. */
static void follow_links(gb_path *place) {
  char *real = place->confined ? NULL : realpath(place->name, NULL);
  if (!real) return;
  free(place->name);
  place->name = real;
}

/* Is the open temporary file still the one that its name names? Another writer may have renamed it before we locked
 * it. */
static bool is_ours(int fd, int folder, const char *name) {
  struct stat open_file, named;
  return !fstat(fd, &open_file) && !fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) &&
      open_file.st_dev == named.st_dev &&
         open_file.st_ino == named.st_ino && S_ISREG(open_file.st_mode);
}

/* Open and lock a temporary file; -1 with errno when that cannot be, EWOULDBLOCK when another writer has it. */
static int open_temporary(int folder, const char *name) {
  int fd = openat(folder, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd < 0) return -1;
  int error = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK ? EWOULDBLOCK : !is_ours(fd, folder, name)
      ? EWOULDBLOCK : 0;
  if (!error) {
    if (!ftruncate(fd, 0)) return fd;
    error = errno;
    unlinkat(folder, name, 0);
  }
  close(fd);
  errno = error;
  return -1;
}

/* Try "name.tmp", "name.tmp1", ... until one is free. */
static gb_status choose_temporary(gb_file_writer *file) {
  size_t size = strlen(file->place.name) + 16;
  file->temporary = malloc(size);
  if (!file->temporary) return gb_fail_memory(file->context, size);
  for (int i = 0; i < TEMPORARY_NAMES; i++) {
    snprintf(file->temporary, size, i ? "%s.tmp%d" : "%s.tmp", file->place.name, i);
    file->fd = open_temporary(file->place.folder, file->temporary);
    if (file->fd >= 0) return GB_OK;
    if (errno != EWOULDBLOCK) break;
  }
  return gb_fail_errno(file->context, "write", file->temporary, errno);
}

/* The new file gets the permissions of the one it replaces; what is no file must not be replaced. */
static gb_status look_at_target(gb_file_writer *file) {
  struct stat target;
  const gb_path *at = &file->place;
  if (fstatat(at->folder, at->name, &target, at->confined ? AT_SYMLINK_NOFOLLOW : 0)) return GB_OK;
  if (!S_ISREG(target.st_mode))
    return gb_fail(file->context, GB_EIO, "cannot write '%s': it exists and is no regular file", at->name);
  return fchmod(file->fd, target.st_mode & 07777) ? gb_fail_errno(file->context, "write", file->temporary, errno)
      : GB_OK;
}

gb_status gb_file_create(gb_context *context, const char *path, gb_file_writer **out) {
  gb_file_writer *file = calloc(1, sizeof *file);
  if (!file) return gb_fail_memory(context, sizeof *file);
  file->context = context;
  file->fd = -1;
  file->place.folder = AT_FDCWD;
  gb_status status = gb_path_find(context, path, true, &file->place);
  if (status == GB_OK) status = gb_path_charge(context, GB_FILE_BLOCK);
  if (status == GB_OK) {
    follow_links(&file->place);
    status = choose_temporary(file);
  }
  if (status == GB_OK) status = look_at_target(file);
  if (status != GB_OK) { gb_file_abandon(file); return status; }
  *out = file;
  return GB_OK;
}

gb_status gb_file_write(gb_file_writer *file, const void *data, size_t bytes) {
  const char *at = data;
  GB_TRY(gb_path_charge(file->context, bytes));
  while (bytes) {
    ssize_t done = write(file->fd, at, bytes < GB_PIECE ? bytes : GB_PIECE);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return gb_fail_errno(file->context, "write", file->temporary, done ? errno : ENOSPC);
    GB_TRY(gb_poll_work(file->context, &file->work, done));
    at += done;
    bytes -= (size_t)done;
  }
  return GB_OK;
}

/* Make the rename last: sync the folder, where the file system can do that. */
static gb_status sync_folder(gb_file_writer *file) {
  char *name = file->place.name, *slash = strrchr(name, '/');
  if (slash) *(slash == name ? slash + 1 : slash) = 0; /* the name is not needed any more */
  int fd = openat(file->place.folder, slash ? name : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno == EACCES ? GB_OK : gb_fail_errno(file->context, "open the folder of", file->temporary, errno);
  int error = fsync(fd) && errno != EINVAL && errno != ENOTSUP && errno != EROFS ? errno : 0;
  close(fd);
  return error ? gb_fail_errno(file->context, "sync the folder of", file->temporary, error) : GB_OK;
}

gb_status gb_file_commit(gb_file_writer *file) {
  gb_status status = GB_OK;
  if (fsync(file->fd)) status = gb_fail_errno(file->context, "sync", file->temporary, errno);
  else if (renameat(file->place.folder, file->temporary, file->place.folder, file->place.name))
    status = gb_fail_errno(file->context, "replace", file->place.name, errno);
  if (status != GB_OK) { gb_file_abandon(file); return status; }
  close(file->fd);
  file->fd = -1;
  status = sync_folder(file);
  gb_file_abandon(file);
  return status;
}

void gb_file_abandon(gb_file_writer *file) {
  if (!file) return;
  if (file->fd >= 0) {
    unlinkat(file->place.folder, file->temporary, 0);
    close(file->fd);
  }
  free(file->temporary);
  gb_path_close(&file->place);
  free(file);
}

/* ====} */

/* {==== Reading ==== */

gb_status gb_file_open_regular(gb_context *context, const char *path, int *fd, uint64_t *size) {
  struct stat info;
  gb_status status = GB_OK;
  GB_TRY(gb_path_open(context, path, O_RDONLY | O_NONBLOCK, fd));
  if (fstat(*fd, &info)) status = gb_fail_errno(context, "open", path, errno);
  else if (!S_ISREG(info.st_mode))
    status = gb_fail(context, GB_EIO, "cannot open '%s': it is %s", path, S_ISDIR(info.st_mode)
                     ? "a folder, no regular file; name a file in it" : "no regular file");
  else if (size) *size = (uint64_t)info.st_size;
  if (status == GB_OK) return GB_OK;
  close(*fd);
  *fd = -1;
  return status;
}

gb_status gb_file_open(gb_context *context, const char *path, gb_file_reader **out) {
  gb_file_reader *file = calloc(1, sizeof *file);
  if (!file) return gb_fail_memory(context, sizeof *file);
  file->context = context;
  file->fd = -1;
  file->path = strdup(path);
  gb_status status = file->path ? gb_file_open_regular(context, path, &file->fd, &file->size)
                                : gb_fail_memory(context, strlen(path));
  if (status != GB_OK) { gb_file_close(file); return status; }
  *out = file;
  return GB_OK;
}

uint64_t gb_file_size(const gb_file_reader *file) { return file->size; }

gb_status gb_file_read_plain(const gb_file_reader *file, uint64_t offset, void *data, size_t bytes, char *error,
                             size_t error_size) {
  char *at = data, reason[128] = "unknown error";
  while (bytes) {
    ssize_t done = pread(file->fd, at, bytes, (off_t)offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0)
      return snprintf(error, error_size, "cannot read '%s': %s", file->path,
                      gb_reason_of(errno, reason, sizeof reason)), GB_EIO;
    if (done == 0)
      return snprintf(error, error_size, "'%s' ends at byte %" PRIu64 ", where %zu more were expected", file->path,
                      offset, bytes), GB_EFORMAT;
    at += done;
    offset += (uint64_t)done;
    bytes -= (size_t)done;
  }
  return GB_OK;
}

gb_status gb_file_read(gb_file_reader *file, uint64_t offset, void *data, size_t bytes) {
  char error[512], *at = data;
  int64_t work = 0;
  for (size_t piece; bytes; at += piece, offset += piece, bytes -= piece) {
    piece = bytes < GB_PIECE ? bytes : GB_PIECE;
    gb_status status = gb_file_read_plain(file, offset, at, piece, error, sizeof error);
    if (status != GB_OK) return gb_fail(file->context, status, "%s", error);
    GB_TRY(gb_poll_work(file->context, &work, (int64_t)piece));
  }
  return GB_OK;
}

void gb_file_close(gb_file_reader *file) {
  if (!file) return;
  if (file->fd >= 0) close(file->fd);
  free(file->path);
  free(file);
}

gb_status gb_file_load(gb_context *context, const char *path, char **data, size_t *bytes) {
  gb_file_reader *file;
  GB_TRY(gb_file_open(context, path, &file));
  size_t size = (size_t)file->size;
  char *all = gb_counted_alloc(context, size + 1);
  gb_status status = all ? gb_file_read(file, 0, all, size) : context->error_code;
  gb_file_close(file);
  if (status != GB_OK) { gb_counted_free(all); return status; }
  all[size] = 0;
  *data = all;
  *bytes = size;
  return GB_OK;
}

/* ====} */
