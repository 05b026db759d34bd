/* io/kind.h - what a file is that is no safetensors file, by its first bytes, and how its tensors get into one. */
#ifndef GB_IO_KIND_H
#define GB_IO_KIND_H

#include <stddef.h>

enum { GB_KIND_BYTES = 16 }; /* that are looked at */

/* what: "a PNG image"; cure: a clause that says what to do. */
typedef struct gb_kind { const char *what, *cure; } gb_kind;

/* For a file that has no header of safetensors. NULL: the bytes are the beginning of nothing that is known here. */
const gb_kind *gb_kind_of(const unsigned char *bytes, size_t size);

#endif
