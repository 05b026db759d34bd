/* fuzz_npy.c - any bytes as an array of NumPy, or as an archive of them: refused with a text, or tensors that
 * make sense; and what was counted is given back.
 *
 * The first byte of the input says which of the two it is. */
#include <string.h>

#include "fuzz.h"
#include "io/npy.h"

/* The bytes of a tensor that was read make sense. */
static void check(gb_tensor *t) {
  size_t bytes = (size_t)gb_tensor_numel(t) * gb_dtype_bytes(gb_tensor_dtype(t));
  const uint8_t *data = bytes ? (const uint8_t *)gb_data(t) : NULL;
  CLAIM(gb_is_contiguous(t));
  for (size_t i = 0; gb_tensor_dtype(t) == GB_BOOL && i < bytes; i++) CLAIM(data[i] <= 1);
  gb_tensor_release(t);
}

static void try_archive(const char *path) {
  gb_context *context = fuzz_context();
  gb_zip *zip = NULL;
  if (gb_zip_open(context, path, &zip) != GB_OK) {
    CLAIM(zip == NULL && *gb_error(context));
    return;
  }
  for (int64_t i = 0; i < gb_zip_count(zip); i++) {
    gb_tensor *t = NULL;
    CLAIM(*gb_zip_name(zip, i));
    if (gb_npy_load_member(context, path, zip, i, &t) == GB_OK) check(t);
    else CLAIM(t == NULL && *gb_error(context));
  }
  gb_zip_close(zip);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  size_t before = atomic_load(&context->budget.used);
  gb_tensor *t = NULL;
  if (!size) return 0;
  const char *path = fuzz_file(data + 1, size - 1);
  if (data[0] & 1) try_archive(path);
  else if (gb_npy_load(context, path, &t) == GB_OK) check(t);
  else CLAIM(t == NULL && *gb_error(context));
  gb_memory_empty_cache(context);
  CLAIM(atomic_load(&context->budget.used) == before);
  return 0;
}
