/* io/path.c - paths under a policy. See place.h. */
#include "io/path.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *gb_reason_of(int error, char *buffer, size_t size) {
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
  return strerror_r(error, buffer, size);
#else
  if (strerror_r(error, buffer, size)) snprintf(buffer, size, "error %d", error);
  return buffer;
#endif
}

gb_status gb_fail_errno(gb_context *context, const char *what, const char *path, int error) {
  char reason[128] = "unknown error";
  return gb_fail(context, error == ENOMEM ? GB_EMEMORY : GB_EIO, "cannot %s '%s': %s", what, path,
                 gb_reason_of(error, reason, sizeof reason));
}

/* The same beneath a folder, where some reasons are the policy's. */
static gb_status fail_beneath(gb_context *context, const char *what, const char *path, int error) {
  const char *why = NULL;
  if (error == EXDEV) why = "it leads out of the folder that recipes may use; paths begin there, without '/' and '..'";
  if (error == ELOOP) why = "it meets a symbolic link, and none is followed here";
  if (error == ENOTSUP || error == ENXIO) why = "it is no regular file"; /* ENXIO: a pipe that nobody reads, a socket */
  return why ? gb_fail(context, GB_EIO, "cannot %s '%s': %s", what, path, why)
             : gb_fail_errno(context, what, path, error);
}

/* One step down: the folder `name` in `from`, which is closed. */
static int descend(int from, const char *name) {
  struct stat info;
  int fd = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int error = errno;
  if (fd < 0 && !fstatat(from, name, &info, AT_SYMLINK_NOFOLLOW) && S_ISLNK(info.st_mode)) error = ELOOP;
  close(from);
  errno = error;
  return fd;
}

/* Walk all but the last name of the path, which is cut into pieces; the last one goes to *last. A path that ends in the
 * folder itself is none of a file: whole says that it may, as ".". */
static int walk(int root, char *path, bool whole, char **last) {
  int folder = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  *last = path;
  while (folder >= 0) {
    char *slash = strchr(*last, '/');
    if (slash) *slash = 0;
    bool parent = !strcmp(*last, ".."), nothing = !**last || !strcmp(*last, ".");
    if (parent || (nothing && !slash && !whole)) {
      close(folder);
      errno = parent ? EXDEV : EISDIR;
      return -1;
    }
    if (nothing && !slash) *last = ".";
    if (!slash) break;
    if (!nothing) folder = descend(folder, *last);
    *last = slash + 1;
  }
  return folder;
}

/* The place of a path beneath the policy's folder. */
static gb_status find_beneath(gb_context *context, const char *path, bool whole, gb_path *out) {
  size_t length = strlen(path) + 1;
  char *copy = malloc(length + 1), *last; /* "" may become "." */
  if (!copy) return gb_fail_memory(context, length + 1);
  memcpy(copy, path, length);
  errno = EXDEV;
  int folder = *path == '/' ? -1 : walk(context->files.root, copy, whole, &last);
  if (folder < 0) {
    int error = errno;
    free(copy);
    return fail_beneath(context, "find", path, error);
  }
  memmove(copy, last, strlen(last) + 1);
  *out = (gb_path){ .folder = folder, .name = copy, .confined = true };
  return GB_OK;
}

/* gb_path_find; whole: the path may be the policy's folder itself. */
static gb_status find(gb_context *context, const char *path, bool write, bool whole, gb_path *out) {
  const gb_file_policy *files = &context->files;
  if (files->root == GB_FILES_NONE)
    return gb_fail(context, GB_EIO, "cannot %s '%s': files are not allowed here", write ? "write" : "read", path);
  if (files->ask && files->ask(files->user, path, write) != GB_OK)
    return gb_fail(context, GB_EIO, "cannot %s '%s': the program around does not allow it", write ? "write" : "read",
                   path);
  if (files->root != GB_FILES_ANY) return find_beneath(context, path, whole, out);
  *out = (gb_path){ .folder = AT_FDCWD, .name = strdup(path) };
  return out->name ? GB_OK : gb_fail_memory(context, strlen(path) + 1);
}

gb_status gb_path_find(gb_context *context, const char *path, bool write, gb_path *out) {
  return find(context, path, write, false, out);
}

gb_status gb_path_find_folder(gb_context *context, const char *path, gb_path *out) {
  return find(context, path, false, true, out);
}

void gb_path_close(gb_path *place) {
  if (place->folder >= 0) close(place->folder);
  free(place->name);
  *place = (gb_path){ .folder = AT_FDCWD };
}

gb_status gb_path_open(gb_context *context, const char *path, int flags, int *fd) {
  gb_path place;
  bool write = (flags & O_ACCMODE) != O_RDONLY;
  GB_TRY(gb_path_find(context, path, write, &place));
  gb_status charged = write ? gb_path_charge(context, GB_FILE_BLOCK) : GB_OK;
  if (charged != GB_OK) { gb_path_close(&place); return charged; }
  int opened = openat(place.folder, place.name, flags | O_CLOEXEC | (place.confined ? O_NOFOLLOW | O_NONBLOCK : 0),
                      0666), error = errno;
  struct stat info;
  if (opened >= 0 && place.confined && (fstat(opened, &info) || !S_ISREG(info.st_mode))) {
    close(opened); /* no device, no pipe */
    opened = -1;
    error = ENOTSUP;
  }
  bool confined = place.confined;
  gb_path_close(&place);
  if (opened < 0) return (confined ? fail_beneath : gb_fail_errno)(context, "open", path, error);
  *fd = opened;
  return GB_OK;
}

gb_status gb_path_charge(gb_context *context, uint64_t bytes) {
  gb_file_policy *files = &context->files;
  if (files->most && bytes > files->most - files->written)
    return gb_fail(context, GB_EFILEBYTES, "the limit of %" PRIu64 " bytes written to files was reached", files->most);
  if (files->most) files->written += bytes;
  return GB_OK;
}

bool gb_path_exists(gb_context *context, const char *path) {
  gb_path place;
  struct stat info;
  if (gb_path_find(context, path, false, &place) != GB_OK) return false;
  bool exists = !fstatat(place.folder, place.name, &info, place.confined ? AT_SYMLINK_NOFOLLOW : 0);
  gb_path_close(&place);
  return exists;
}

gb_status gb_path_remove(gb_context *context, const char *path) {
  gb_path place;
  GB_TRY(gb_path_find(context, path, true, &place));
  int error = unlinkat(place.folder, place.name, 0) ? errno : 0;
  gb_path_close(&place);
  return error && error != ENOENT ? gb_fail_errno(context, "remove", path, error) : GB_OK;
}

/* Make one folder, where there is none of that name. */
static gb_status make_one(gb_context *context, const char *path) {
  gb_path place;
  struct stat info;
  GB_TRY(gb_path_charge(context, GB_FILE_BLOCK));
  GB_TRY(gb_path_find(context, path, true, &place));
  int error = mkdirat(place.folder, place.name, 0777) ? errno : 0;
  int flags = place.confined ? AT_SYMLINK_NOFOLLOW : 0;
  bool is_there = error == EEXIST && !fstatat(place.folder, place.name, &info, flags) && S_ISDIR(info.st_mode);
  if (error == EEXIST && !is_there) error = ENOTDIR;
  gb_path_close(&place);
  return error && !is_there ? gb_fail_errno(context, "make the folder", path, error) : GB_OK;
}

gb_status gb_path_make_folder(gb_context *context, const char *path) {
  if (gb_path_exists(context, path)) return GB_OK; /* "." and "/" as well */
  size_t length = strlen(path);
  char *part = malloc(length + 1);
  if (!part) return gb_fail_memory(context, length + 1);
  memcpy(part, path, length + 1);
  gb_status status = GB_OK;
  for (size_t i = 1; i <= length && status == GB_OK; i++) {
    bool ends = path[i] == '/' || !path[i], here = path[i - 1] == '.' && (i == 1 || path[i - 2] == '/');
    if (!ends || path[i - 1] == '/' || here) continue;
    part[i] = 0;
    status = make_one(context, part);
    part[i] = path[i];
  }
  free(part);
  return status;
}
