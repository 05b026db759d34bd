/* fuzz_text.c - any bytes as a text: refused, or a row of ids that decodes to the same bytes.
 *
 * The first byte of the input chooses the kind, the second how many bytes of what follows are a vocabulary (0: the
 * text's own). */
#include <string.h>

#include "data/data.h"
#include "fuzz.h"

/* Its ids are in range; decoded they are the text. */
static void check_text(gb_context *context, const gb_text *text, const char *data, size_t size) {
  int64_t length = gb_text_length(text), count = 0, *ids = malloc(sizeof *ids * (size + 1));
  char *back = NULL;
  size_t bytes = 0;
  CLAIM(ids && length >= 0 && (uint64_t)length <= size);
  for (int64_t i = 0; i < length; i++) CLAIM(gb_text_ids(text)[i] < gb_text_vocabulary_size(text));
  CLAIM(gb_text_encode(context, text, data, size, ids, &count) == GB_OK && count == length);
  for (int64_t i = 0; i < count; i++) CLAIM(ids[i] == gb_text_ids(text)[i]);
  CLAIM(gb_text_decode(context, text, ids, count, &back, &bytes) == GB_OK);
  CLAIM(bytes == size && !memcmp(back, data, size));
  free(back);
  free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  gb_text *text = NULL;
  if (size < 2) return 0;
  gb_text_kind kind = data[0] & 1 ? GB_TEXT_BYTES : GB_TEXT_CHARACTERS;
  size_t words = data[1] < size - 2 ? data[1] : 0;
  const char *vocabulary = words && kind == GB_TEXT_CHARACTERS ? (const char *)data + 2 : NULL,
      *rest = (const char *)data + 2 + words;
  size_t bytes = size - 2 - words;
  if (gb_text_new(context, rest, bytes, kind, vocabulary, vocabulary ? words : 0, &text) != GB_OK) {
    CLAIM(text == NULL && *gb_error(context));
    return 0;
  }
  check_text(context, text, rest, bytes);
  gb_text_release(text);
  return 0;
}
