/* embedded.h - the Lua half of the library inside the binary: as bytecode where the binary contains the Lua that reads
 * it, else as text. */
#ifndef GB_BINDINGS_EMBEDDED_H
#define GB_BINDINGS_EMBEDDED_H

#include <stddef.h>

/* name: the path below bindings/gibbous, without .lua */
typedef struct gbl_chunk { const char *name, *text; size_t size; } gbl_chunk;

extern const gbl_chunk gbl_chunks[]; /* ended by a NULL name */

#endif
