/* data/readers.c - the table of readers, and how they find their options. */
#include "data/readers.h"

#include <string.h>

#define DECLARE(name) extern const gb_reader gb_reader_##name;
GB_READERS(DECLARE)

#define ROW(name) &gb_reader_##name,
const gb_reader *const gb_readers[] = { GB_READERS(ROW) NULL };

const gb_option *gb_reading_option(const gb_reading *given, const char *name) {
  static const gb_option none = { .kind = GB_OPTION_NONE };
  for (int i = 0; i < given->options.count; i++)
    if (given->options.list[i].name && !strcmp(given->options.list[i].name, name)) return &given->options.list[i];
  return &none;
}
