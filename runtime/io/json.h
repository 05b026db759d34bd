/* io/json.h - a small strict JSON reader and writer for metadata.
 *
 * The reader refuses what parsers disagree about: duplicate keys, integers beyond 64 bits, numbers that overflow,
 * malformed UTF-8, lone surrogates, anything after the value but white space. Depth and the count of values are capped.
 * Works in memory; what it holds (48 bytes a value, for two of text at the least) counts against the context's limit on
 * tensor bytes until it is freed, and long texts heed a stop. */
#ifndef GB_IO_JSON_H
#define GB_IO_JSON_H

#include "gibbous.h"

#define GB_JSON_MOST_DEPTH 64
#define GB_JSON_MOST_VALUES (1 << 22)

typedef enum gb_json_type { GB_JSON_NULL, GB_JSON_BOOL, GB_JSON_INTEGER, GB_JSON_NUMBER, GB_JSON_STRING, GB_JSON_ARRAY,
                            GB_JSON_OBJECT } gb_json_type;

/* A value; members and elements are linked in the order of the text. */
typedef struct gb_json {
  gb_json_type type;
  bool negative;                     /* of an integer */
  union {
    bool boolean;
    uint64_t magnitude;              /* of an integer: as an int64 it is gb_json_int64 */
    double number;
    struct { const char *text; size_t length; } string; /* UTF-8, NUL-terminated; a NUL inside counts in length */
    struct { struct gb_json *first; int64_t count; } list;
  } as;
  const char *key;                   /* of a member, like a string */
  size_t key_length;
  struct gb_json *next;
} gb_json;

/* Parse all of text. GB_EFORMAT: error says what is wrong at which byte; GB_EMEMORY, GB_EINTERRUPT: it says so, and so
 * does the context. */
gb_status gb_json_parse(gb_context *context, const char *text, size_t bytes, gb_json **out, char *error,
                        size_t error_size);
void gb_json_free(gb_json *root);    /* NULL is fine */

/* A member of an object, or NULL. */
const gb_json *gb_json_get(const gb_json *object, const char *key);
/* The value of an integer that fits. */
bool gb_json_int64(const gb_json *value, int64_t *out);
/* The value of an integer or a number. */
bool gb_json_double(const gb_json *value, double *out);

/* The writer: { .context = context } to begin with. The first failure stays in status (GB_EMEMORY; GB_EINVAL for text
 * that is not UTF-8 and for numbers that are not finite, which JSON cannot hold) and makes the calls that follow do
 * nothing. text is NUL-terminated. */
typedef struct gb_json_writer {
  gb_context *context;
  char *text;
  size_t length, capacity;
  gb_status status;
  bool comma;
} gb_json_writer;

void gb_json_open(gb_json_writer *w, char bracket);    /* '{' or '[' */
void gb_json_close(gb_json_writer *w, char bracket);   /* '}' or ']' */
void gb_json_key(gb_json_writer *w, const char *text, size_t length);
void gb_json_string(gb_json_writer *w, const char *text, size_t length);
void gb_json_integer(gb_json_writer *w, int64_t value);
void gb_json_unsigned(gb_json_writer *w, uint64_t value);
void gb_json_number(gb_json_writer *w, double value);  /* comes back bit for bit; always with a point or an exponent */
void gb_json_bool(gb_json_writer *w, bool value);
void gb_json_null(gb_json_writer *w);
void gb_json_writer_free(gb_json_writer *w);

#endif
