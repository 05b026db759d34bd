/* embedded.h - the Lua half of the library inside the binary: as bytecode where the binary contains the Lua that reads
 * it, else as text. */
#ifndef GB_BINDINGS_EMBEDDED_H
#define GB_BINDINGS_EMBEDDED_H

#include <stddef.h>

/* name: the path below bindings/gibbous, without .lua */
typedef struct gbl_chunk { const char *name, *text; size_t size; } gbl_chunk;

extern const gbl_chunk gbl_chunks[]; /* ended by a NULL name */

/* A name that a chunk makes: in which table ("gb.nn", "native", "tensor"), the first chunk of the unit that makes it,
 * and the strictest sandbox that has it, -1 without a record. */
typedef struct gbl_late_row { const char *path, *name, *unit; int level; } gbl_late_row;

/* All names of late chunks, sorted by path and name; made by cmake/late_names.lua, or empty. */
extern const gbl_late_row gbl_late_rows[];
extern const int gbl_late_count;

#endif
