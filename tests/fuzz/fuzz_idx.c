/* fuzz_idx.c - any bytes as an idx file, gzipped or not: refused with a text, or an array whose bytes are those of its shape. */
#include "data/data.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  gb_idx idx = { 0 };
  if (gb_idx_read(context, fuzz_file(data, size), &idx) != GB_OK) {
    CLAIM(*gb_error(context));
    return 0;
  }
  size_t bytes = gb_dtype_bytes(idx.dtype);
  for (int i = 0; i < idx.ndim; i++) bytes *= (size_t)idx.shape[i];
  CLAIM(bytes == idx.bytes);
  volatile uint8_t last = bytes ? ((const uint8_t *)idx.data)[bytes - 1] : 0;
  (void)last;
  free(idx.data);
  return 0;
}
