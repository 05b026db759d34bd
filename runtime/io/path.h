/* io/path.h - where a path leads, under the context's policy on files: anywhere, beneath one folder, or nowhere.
 *
 * Beneath a folder a path is walked name by name from an open descriptor: it may not begin with '/', hold '..', or meet
 * a symbolic link, so nothing that is renamed meanwhile leads out. Whoever opens, renames or looks uses the *at
 * functions with the place's folder, name, flags. */
#ifndef GB_IO_PATH_H
#define GB_IO_PATH_H

#include "tensor/context.h"

typedef struct gb_path {
  int folder;                    /* AT_FDCWD, or a descriptor of ours */
  char *name;                    /* in that folder, or as the caller wrote it */
  bool confined;
} gb_path;

/* Ask the policy, and find the folder. write: the file is to be written or made. */
gb_status gb_path_find(gb_context *context, const char *path, bool write, gb_path *out);
/* The same of a folder that is to be read, which may be the policy's own, as ".". */
gb_status gb_path_find_folder(gb_context *context, const char *path, gb_path *out);
void gb_path_close(gb_path *place);

/* open(2) under the policy; flags are those of open. GB_EIO where it cannot be. */
gb_status gb_path_open(gb_context *context, const char *path, int flags, int *fd);
/* So many bytes are about to be written to a file; each that is opened to be written counts as a block of GB_FILE_BLOCK
 * besides. GB_EFILEBYTES, and nothing is counted, where the policy does not allow them. */
enum { GB_FILE_BLOCK = 4096 };
gb_status gb_path_charge(gb_context *context, uint64_t bytes);
/* Is there a file that may be read? */
bool gb_path_exists(gb_context *context, const char *path);

/* Remove a file; one that is not there is none. Make a folder, and those above it, unless it is there. GB_EIO where
 * that cannot be. */
gb_status gb_path_remove(gb_context *context, const char *path);
gb_status gb_path_make_folder(gb_context *context, const char *path);

/* What an errno means, in buffer or in memory that stays; any thread. */
const char *gb_reason_of(int error, char *buffer, size_t size);
/* "cannot <what> '<path>': <reason>" for an errno. */
gb_status gb_fail_errno(gb_context *context, const char *what, const char *path, int error);

#endif
