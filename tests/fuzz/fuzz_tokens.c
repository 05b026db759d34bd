/* fuzz_tokens.c - any bytes as a file of token ids: refused, or ids that can all be read and fit their width.
 *
 * The first byte of the input chooses the width. */
#include "data/data.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t low[GB_TOKEN_KINDS] = { 0, 0, INT32_MIN },
      high[GB_TOKEN_KINDS] = { UINT8_MAX, UINT16_MAX, INT32_MAX };
  gb_context *context = fuzz_context();
  gb_tokens *tokens = NULL;
  char error[256];
  if (size < 1) return 0;
  int kind = data[0] % GB_TOKEN_KINDS;
  if (gb_tokens_open(context, fuzz_file(data + 1, size - 1), (gb_token_kind)kind, &tokens) != GB_OK) {
    CLAIM(tokens == NULL && *gb_error(context));
    return 0;
  }
  int64_t length = gb_tokens_length(tokens), *ids = malloc(sizeof *ids * (size + 1));
  CLAIM(ids && length >= 0 && (uint64_t)length < size);
  CLAIM(gb_tokens_read(tokens, 0, length, ids, NULL, error, sizeof error) == GB_OK);
  for (int64_t i = 0; i < length; i++) CLAIM(ids[i] >= low[kind] && ids[i] <= high[kind]);
  free(ids);
  gb_tokens_release(tokens);
  return 0;
}
