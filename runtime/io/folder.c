/* io/folder.c - listing folders, and reading their files from any thread. See folder.h. */
#define _DEFAULT_SOURCE /* d_type */
#include "io/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/path.h"

#define FILE_MOST ((size_t)1 << 31)  /* bytes */
#define FILE_LITTLE ((size_t)32 << 10) /* bytes and more are read by their size */
#define NAME_WORK 256                /* of a name that is listed, towards a piece */

gb_status gb_folder_open(gb_context *context, const char *path, gb_folder *out) {
  gb_path place;
  gb_folder made = { .fd = -1, .path = gb_counted_alloc(context, strlen(path) + 1) };
  if (!made.path) return context->error_code;
  strcpy(made.path, path);
  size_t length = strlen(made.path);
  while (length > 1 && made.path[length - 1] == '/') made.path[--length] = 0; /* a name, to whoever walks there */
  gb_status status = gb_path_find_folder(context, made.path, &place);
  if (status == GB_OK) {
    made.confined = place.confined;
    made.fd = openat(place.folder, place.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (place.confined ? O_NOFOLLOW : 0));
    if (made.fd < 0) status = gb_fail_errno(context, "open the folder", path, errno);
    gb_path_close(&place);
  }
  if (status == GB_OK) *out = made;
  else gb_folder_close(&made);
  return status;
}

void gb_folder_close(gb_folder *folder) {
  if (folder->fd >= 0) close(folder->fd);
  gb_counted_free(folder->path);
  *folder = (gb_folder){ .fd = -1 };
}

/* {==== Listing ==== */

void gb_names_free(gb_names *names) {
  gb_counted_free(names->text);
  gb_counted_free(names->at);
  *names = (gb_names){ NULL };
}

/* A block that has room for more, twice as large where it has none. */
static gb_status grow(gb_context *context, void **block, size_t *room, size_t wanted) {
  if (wanted <= *room) return GB_OK;
  size_t bytes = 2 * wanted + 256;
  void *grown = gb_counted_resize(context, *block, bytes);
  if (!grown) return context->error_code;
  *block = grown, *room = bytes;
  return GB_OK;
}

/* Put below/name at the end. */
static gb_status add_name(gb_context *context, gb_names *names, const char *below, const char *name) {
  size_t before = below ? strlen(below) + 1 : 0, length = before + strlen(name) + 1;
  void *text = names->text, *at = names->at;
  gb_status status = grow(context, &text, &names->text_room, names->bytes + length);
  names->text = text;
  if (status == GB_OK) status = grow(context, &at, &names->at_room, (size_t)(names->count + 1) * sizeof *names->at);
  names->at = at;
  if (status != GB_OK) return status;
  char *to = names->text + names->bytes;
  if (below) snprintf(to, length, "%s/%s", below, name);
  else memcpy(to, name, length);
  names->at[names->count++] = names->bytes;
  names->bytes += length;
  return GB_OK;
}

/* Sort at[0 .. n-1] by the names there; room is as long. */
static gb_status sort_names(gb_context *context, const char *text, size_t *at, int64_t n, size_t *room, int64_t *work) {
  int64_t half = n / 2, i = 0, j = half;
  if (n < 2) return GB_OK;
  GB_TRY(sort_names(context, text, at, half, room, work));
  GB_TRY(sort_names(context, text, at + half, n - half, room, work));
  for (int64_t k = 0; k < n; k++) {
    bool left = i < half && (j == n || strcmp(text + at[i], text + at[j]) <= 0);
    room[k] = at[left ? i++ : j++];
    GB_TRY(gb_poll_work(context, work, NAME_WORK));
  }
  memcpy(at, room, (size_t)n * sizeof *at);
  return GB_OK;
}

/* Is the entry of this kind? What its entry does not tell, the file does. */
static bool is_part(const gb_folder *folder, int fd, const struct dirent *entry, gb_folder_part part) {
  struct stat info;
  if (entry->d_type == DT_DIR) return part == GB_FOLDER_FOLDERS;
  if (entry->d_type == DT_REG) return part == GB_FOLDER_FILES;
  if (fstatat(fd, entry->d_name, &info, folder->confined ? AT_SYMLINK_NOFOLLOW : 0)) return false;
  return part == GB_FOLDER_FILES ? S_ISREG(info.st_mode) : S_ISDIR(info.st_mode);
}

/* Put a file to the policy, by the path that a recipe would write. */
static gb_status ask(gb_context *context, const gb_folder *folder, const char *below, const char *name) {
  const gb_file_policy *files = &context->files;
  char path[4096];
  if (!files->ask) return GB_OK;
  int length = snprintf(path, sizeof path, "%s/%s%s%s", folder->path, below ? below : "", below ? "/" : "", name);
  if (length >= 0 && length < (int)sizeof path && files->ask(files->user, path, false) == GB_OK) return GB_OK;
  return gb_fail(context, GB_EIO, "cannot read '%s': the program around does not allow it", path);
}

gb_status gb_folder_list(gb_context *context, const gb_folder *folder, const char *below, gb_folder_part part,
                         bool (*wanted)(const char *name), gb_names *names) {
  int64_t first = names->count, work = 0;
  int fd = openat(folder->fd, below ? below : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC |
                  (folder->confined ? O_NOFOLLOW : 0));
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  gb_status status = GB_OK;
  if (!dir) {
    status = gb_fail_errno(context, "list the folder", below ? below : folder->path, errno);
    if (fd >= 0) close(fd);
    return status;
  }
  for (struct dirent *entry; status == GB_OK && (entry = readdir(dir));) {
    status = gb_poll_work(context, &work, NAME_WORK);
    if (status != GB_OK || entry->d_name[0] == '.' || (wanted && !wanted(entry->d_name))) continue;
    if (!is_part(folder, fd, entry, part)) continue;
    if (part == GB_FOLDER_FILES) status = ask(context, folder, below, entry->d_name);
    if (status == GB_OK) status = add_name(context, names, below, entry->d_name);
  }
  closedir(dir);
  if (status != GB_OK) return status;
  int64_t n = names->count - first;
  size_t *room = gb_counted_alloc(context, (size_t)(n + 1) * sizeof *room);
  if (!room) return context->error_code;
  status = sort_names(context, names->text, names->at + first, n, room, &work);
  gb_counted_free(room);
  return status;
}

/* ====} */

/* {==== Reading ==== */

/* The file, below the folder. */
static int open_file(const gb_folder *folder, const char *name) {
  const char *slash = strchr(name, '/');
  int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  if (!folder->confined) return openat(folder->fd, name, flags);
  if (!slash) return openat(folder->fd, name, flags | O_NOFOLLOW);
  char below[256];
  if ((size_t)(slash - name) >= sizeof below) return errno = ENAMETOOLONG, -1;
  snprintf(below, sizeof below, "%.*s", (int)(slash - name), name);
  int between = openat(folder->fd, below, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (between < 0) return -1;
  int fd = openat(between, slash + 1, flags | O_NOFOLLOW), error = errno;
  close(between);
  errno = error;
  return fd;
}

/* Read from the file's beginning until it ends or the room is full: bytes, or -1 and errno. */
static ssize_t read_until(int fd, char *to, size_t room) {
  size_t at = 0;
  while (at < room) {
    ssize_t done = pread(fd, to + at, room - at, (off_t)at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return -1;
    if (done == 0) break;
    at += (size_t)done;
  }
  return (ssize_t)at;
}

/* Everything that the open file holds, by its size. */
static gb_status read_by_size(int fd, gb_workroom *room, int block, void **data, size_t *bytes, char *error,
                              size_t error_size) {
  struct stat info;
  char reason[128] = "unknown error";
  if (fstat(fd, &info) || !S_ISREG(info.st_mode))
    return snprintf(error, error_size, "it is no regular file"), GB_EIO;
  size_t size = (size_t)info.st_size;
  if (size > FILE_MOST) return snprintf(error, error_size, "it has %zu bytes; at most %zu are read", size,
                                        FILE_MOST), GB_EFORMAT;
  *data = gb_workroom_get(room, block, size + 1);
  if (!*data) return snprintf(error, error_size, "out of memory: %zu bytes were asked for", size), GB_EMEMORY;
  ssize_t done = read_until(fd, *data, size);
  if (done < 0)
    return snprintf(error, error_size, "cannot read it: %s", gb_reason_of(errno, reason, sizeof reason)), GB_EIO;
  *bytes = (size_t)done;
  return GB_OK;
}

/* The same. To ask for the size costs a tenth of reading a small file, so what ends within FILE_LITTLE is not asked. */
static gb_status read_all(int fd, gb_workroom *room, int block, void **data, size_t *bytes, char *error,
                          size_t error_size) {
  *data = gb_workroom_get(room, block, FILE_LITTLE);
  ssize_t done = *data ? read_until(fd, *data, FILE_LITTLE) : 0;
  if (done <= 0 || (size_t)done == FILE_LITTLE)
    return read_by_size(fd, room, block, data, bytes, error, error_size);
  *bytes = (size_t)done;
  return GB_OK;
}

gb_status gb_folder_read(const gb_folder *folder, const char *name, gb_workroom *room, int block, void **data,
                         size_t *bytes, char *error, size_t error_size) {
  char reason[128] = "unknown error";
  int fd = open_file(folder, name);
  if (fd < 0) return snprintf(error, error_size, "cannot open it: %s", gb_reason_of(errno, reason, sizeof reason)),
                     GB_EIO;
  gb_status status = read_all(fd, room, block, data, bytes, error, error_size);
  close(fd);
  return status;
}

size_t gb_folder_read_little(const gb_folder *folder, const char *name, void *to, size_t room) {
  int fd = open_file(folder, name);
  if (fd < 0) return 0;
  ssize_t done = read_until(fd, to, room);
  close(fd);
  return done > 0 ? (size_t)done : 0;
}

/* ====} */
