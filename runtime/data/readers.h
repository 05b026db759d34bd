/* data/readers.h - readers: what turns files into a dataset. A reader is one file: a record (the text of its public
 * function, in the grammar of bindings/reader.h; its positional arguments are paths), a function that opens, and
 * whatever these need. A host finds readers by name in the table; the bindings make the public functions from the
 * records. */
#ifndef GB_DATA_READERS_H
#define GB_DATA_READERS_H

#include "data/dataset.h"

/* Every reader, by the name of its constant: gb_reader_NAME. */
#define GB_READERS(READER) READER(csv) READER(idx) READER(images)

enum { GB_READER_PATHS = 4 };

typedef enum gb_option_kind {
  GB_OPTION_NONE, GB_OPTION_NUMBER, GB_OPTION_BOOL, GB_OPTION_STRING, GB_OPTION_DATASET, GB_OPTION_LIST,
  GB_OPTION_TRANSFORM
} gb_option_kind;

/* One option, or one element of a list: by its name, or by its position from 1 where it has none. */
typedef struct gb_option {
  const char *name;
  int64_t position;
  gb_option_kind kind;
  double number;                     /* of a bool 0 or 1 */
  const char *string;                /* ends with NUL, may hold more */
  size_t length;
  gb_dataset *dataset;               /* borrowed */
  struct gb_transform *transform;    /* borrowed */
  const struct gb_option *list;
  int count;                         /* of list */
} gb_option;

/* What a reader was given: its paths, NULL where one was left out, and its options with their defaults. */
typedef struct gb_reading {
  const char *path[GB_READER_PATHS];
  gb_option options;                 /* a list */
} gb_reading;

typedef struct gb_reader {
  const char *text;
  gb_status (*open)(gb_context *context, const gb_reading *given, gb_dataset **out);
} gb_reader;

/* NULL behind the last. */
extern const gb_reader *const gb_readers[];

/* The option of that name; of kind GB_OPTION_NONE where it was not given and has no default. */
const gb_option *gb_reading_option(const gb_reading *given, const char *name);
static inline double gb_reading_number(const gb_reading *given, const char *name) {
  return gb_reading_option(given, name)->number;
}
static inline bool gb_reading_bool(const gb_reading *given, const char *name) {
  return gb_reading_option(given, name)->number != 0;
}

#endif
