/* io/append.h - files that grow record by record while a run goes on.
 *
 * A record goes to the system in one call as soon as it is there: what was appended is in the file though the process
 * is killed in the next moment. The last record of a file may be torn by that, never one before it. */
#ifndef GB_IO_APPEND_H
#define GB_IO_APPEND_H

#include "tensor/context.h"

typedef struct gb_append gb_append;

/* Open a file to append to; it is made where there is none. fresh: one that exists is an error. */
gb_status gb_append_open(gb_context *context, const char *path, bool fresh, gb_append **out);
gb_status gb_append_write(gb_append *file, const void *data, size_t bytes);
/* Cut off what stands behind so many bytes. */
gb_status gb_append_cut(gb_append *file, uint64_t bytes);
/* Wait until the disk has it. */
gb_status gb_append_flush(gb_append *file);
void gb_append_close(gb_append *file);         /* NULL is fine */

#endif
