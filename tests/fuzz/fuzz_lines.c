/* fuzz_lines.c - any bytes as a file of lines, and each line as JSON: the lines are those of a plain walk over the
 * bytes. */
#include <string.h>

#include "data/lines.h"
#include "fuzz.h"
#include "io/json.h"

/* The next line of the text that holds something: *from moves behind it; NULL: there is none. */
static const char *next_line(const char **from, const char *end, size_t *bytes, int64_t *number) {
  while (*from < end) {
    const char *begin = *from, *stop = memchr(begin, '\n', (size_t)(end - begin));
    *from = stop ? stop + 1 : end;
    ++*number;
    *bytes = (size_t)((stop ? stop : end) - begin);
    if (*bytes && begin[*bytes - 1] == '\r') --*bytes;
    for (size_t i = 0; i < *bytes; i++)
      if (!strchr(" \t\r", begin[i])) return begin;
  }
  return NULL;
}

/* Line i is this text. */
static void check_line(gb_lines *lines, int64_t i, const char *text, size_t bytes, int64_t number) {
  char error[160] = "", *copy = malloc(bytes + 1);
  gb_json *value = NULL;
  CLAIM(copy && gb_lines_bytes(lines, i) == bytes && gb_lines_number(lines, i) == number);
  CLAIM(gb_lines_read(lines, i, copy) == GB_OK && !memcmp(copy, text, bytes));
  if (gb_json_parse(fuzz_context(), copy, bytes, &value, error, sizeof error) != GB_OK) CLAIM(*error);
  gb_json_free(value);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  size_t before = atomic_load(&context->budget.used), bytes = 0;
  const char *from = (const char *)data, *end = from + size, *text;
  gb_lines *lines = NULL;
  int64_t count = 0, number = 0;
  if (gb_lines_open(context, fuzz_file(data, size), &lines) != GB_OK) {
    CLAIM(lines == NULL && *gb_error(context) && memchr(data, 0, size));
    CLAIM(atomic_load(&context->budget.used) == before);
    return 0;
  }
  if (size >= 3 && !memcmp(from, "\xef\xbb\xbf", 3)) from += 3;
  while ((text = next_line(&from, end, &bytes, &number))) check_line(lines, count++, text, bytes, number);
  CLAIM(gb_lines_count(lines) == count);
  gb_lines_close(lines);
  CLAIM(atomic_load(&context->budget.used) == before);
  return 0;
}
