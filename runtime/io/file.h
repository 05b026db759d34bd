/* io/file.h - whole files, written so that a reader meets the old one or the new one, and read without mapping.
 *
 * A writer fills a temporary file beside the target ("name.tmp") and puts it in the target's place only when all of it
 * has reached the disk. What a killed process leaves behind is reused by the next writer of the same name; two writers
 * at once use two names. */
#ifndef GB_IO_FILE_H
#define GB_IO_FILE_H

#include "tensor/context.h"

typedef struct gb_file_writer gb_file_writer;
typedef struct gb_file_reader gb_file_reader;

/* Begin to write path. A symbolic link is followed; a target that exists and is no regular file is an error. */
gb_status gb_file_create(gb_context *context, const char *path, gb_file_writer **out);
gb_status gb_file_write(gb_file_writer *file, const void *data, size_t bytes);
/* Sync, rename, sync the folder. Ends the writer, whatever comes out; on failure the old file is untouched. */
gb_status gb_file_commit(gb_file_writer *file);
/* End the writer and leave the old file as it was. NULL is fine. */
void gb_file_abandon(gb_file_writer *file);

/* A descriptor to read a regular file by, which the caller closes, and its size (NULL: not wanted). Anything else is an
 * error, and is not waited for: to open a pipe that nobody writes would take for ever. */
gb_status gb_file_open_regular(gb_context *context, const char *path, int *fd, uint64_t *size);

gb_status gb_file_open(gb_context *context, const char *path, gb_file_reader **out);
uint64_t gb_file_size(const gb_file_reader *file);
/* All of [offset, offset + bytes), or an error (a file that ends before is GB_EFORMAT). */
gb_status gb_file_read(gb_file_reader *file, uint64_t offset, void *data, size_t bytes);
/* The same without the context, for any thread and several at once: on failure the text goes to error. */
gb_status gb_file_read_plain(const gb_file_reader *file, uint64_t offset, void *data, size_t bytes, char *error,
                             size_t error_size);
void gb_file_close(gb_file_reader *file);     /* NULL is fine */

/* The whole file, with a NUL behind it that is not counted; the caller ends it by gb_counted_free. */
gb_status gb_file_load(gb_context *context, const char *path, char **data, size_t *bytes);

#endif
