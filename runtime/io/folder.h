/* io/folder.h - folders of many files: listed once under the context's policy, and read from then on by any thread.
 *
 * A folder is an open descriptor, and names in it come from the listing: `name`, or `folder/name` one level down.
 * Beneath the policy's folder no symbolic link is followed at either. */
#ifndef GB_IO_FOLDER_H
#define GB_IO_FOLDER_H

#include "base/workroom.h"
#include "tensor/context.h"

typedef struct gb_folder {
  int fd;                              /* -1: not open */
  bool confined;
  char *path;                          /* as it was given, for errors; counted */
} gb_folder;

gb_status gb_folder_open(gb_context *context, const char *path, gb_folder *out);
void gb_folder_close(gb_folder *folder);

/* Names in a folder, sorted by their bytes; each ends with NUL. text: counted, all of them one behind the other. */
typedef struct gb_names { char *text; size_t *at; int64_t count; size_t bytes, text_room, at_room; } gb_names;
static inline const char *gb_name(const gb_names *names, int64_t i) { return names->text + names->at[i]; }
void gb_names_free(gb_names *names);

/* What to list: the folders in it, or the files; names that begin with a dot are not listed. */
typedef enum gb_folder_part { GB_FOLDER_FOLDERS, GB_FOLDER_FILES } gb_folder_part;

/* Add the names of one part that wanted() says yes to (NULL: all), of the folder `below` in it (NULL: of itself), with
 * "below/" before each. Those that are added are sorted among themselves. Every file is put to the policy. */
gb_status gb_folder_list(gb_context *context, const gb_folder *folder, const char *below, gb_folder_part part,
                         bool (*wanted)(const char *name), gb_names *names);

/* A whole file into block `block` of a room; any thread. On failure the text, without the name, goes to error. */
gb_status gb_folder_read(const gb_folder *folder, const char *name, gb_workroom *room, int block, void **data,
                         size_t *bytes, char *error, size_t error_size);
/* A file that ends before so many bytes: how many it has, or room where it goes on; 0 where it is empty or cannot be
 * read, which gb_folder_read says more about. */
size_t gb_folder_read_little(const gb_folder *folder, const char *name, void *to, size_t room);

#endif
