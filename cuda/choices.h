/* cuda/choices.h - which algorithm of cuBLASLt multiplies which shape: what was measured on a device, in memory and as
 * the text of a file.
 *
 *   gibbous products 1
 *   device library=130100 compute=9.0 multiprocessors=132
 *   m=16384 n=2304 k=768 ... first=151.2 best=140.9 algorithm=(128 hexadecimal digits)
 *
 * A device line says which library and device the rows below it were measured on; those of another one are passed over,
 * after they were checked. A row has all fields of gb_product_key by name, in their order, then the microseconds of the
 * library's own first choice and of the best, and the bytes of the algorithm, which cuBLASLt restores in the same
 * version. Lines that begin with # count for nothing. A text that breaks a rule is refused as a whole. */
#ifndef GB_CUDA_CHOICES_H
#define GB_CUDA_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GB_CHOICES_MOST 4096           /* rows of a table */
#define GB_CHOICES_BYTES (4 << 20)     /* of its text */

/* What a product is found by. Zeroed before it is filled: it is compared as bytes. */
typedef struct gb_product_key {
  int64_t m, n, k, batch, lda, ldb, ldc, a_stride, b_stride, c_stride;
  int16_t operands, dtype, a_transposed, b_transposed, tf32, epilogue, bias, aux;
  int16_t a_align, b_align, c_align, aux_align, bias_align;
} gb_product_key;

/* Algorithms as the library keeps them: opaque, and good for one version of it. */
#define GB_ALGORITHM_WORDS 8

typedef struct gb_choice {
  gb_product_key key;
  double first, best;                  /* microseconds */
  uint64_t algorithm[GB_ALGORITHM_WORDS];
} gb_choice;

/* Where choices were measured, and where they hold. */
typedef struct gb_choice_place { int64_t library, major, minor, multiprocessors; } gb_choice_place;

typedef struct gb_choices { gb_choice *rows; int count, room; } gb_choices;

void gb_choices_close(gb_choices *choices);
const gb_choice *gb_choices_find(const gb_choices *choices, const gb_product_key *key); /* NULL: there is none */
bool gb_choices_put(gb_choices *choices, const gb_choice *choice); /* in the place of one of this key; false: no room */
/* Put the rows that hold here; false, with a text in error and nothing changed: the text is no table, or there is no
 * memory. */
bool gb_choices_read(gb_choices *choices, const char *text, size_t bytes, const gb_choice_place *here, char *error,
                     size_t error_size);
/* Write the text of all as snprintf does, so that out may be NULL: its length. */
size_t gb_choices_write(const gb_choices *choices, const gb_choice_place *here, char *out, size_t room);

#endif
