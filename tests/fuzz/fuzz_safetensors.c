/* fuzz_safetensors.c - any bytes as a safetensors file: opened or refused with a text, and whatever is listed can be
 * asked for. */
#include <string.h>

#include "fuzz.h"
#include "io/safetensors.h"
#include "mutate_parts.h"

/* A tensor that loads has the shape that the file gives it; it is found by its name. */
static void load(gb_context *context, gb_safetensors *file, int64_t i) {
  gb_tensor *t = NULL;
  int ndim;
  const int64_t *shape = gb_safetensors_shape(file, i, &ndim);
  CLAIM(gb_safetensors_find(file, gb_safetensors_name(file, i)) == i);
  CLAIM(gb_safetensors_dtype_name(file, i) != NULL);
  if (gb_safetensors_load(file, i, &t) != GB_OK) {
    CLAIM(t == NULL && *gb_error(context));
    return;
  }
  CLAIM(gb_tensor_dtype(t) == gb_safetensors_dtype(file, i) && gb_tensor_ndim(t) == ndim);
  CLAIM(ndim == 0 || !memcmp(gb_tensor_shape(t), shape, sizeof *shape * (size_t)ndim));
  gb_tensor_release(t);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                               unsigned seed) { return mutate_parts(data, size, most, seed); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  gb_safetensors *file = NULL;
  if (gb_safetensors_open(context, fuzz_file(data, size), &file) != GB_OK) {
    CLAIM(file == NULL && *gb_error(context));
    return 0;
  }
  for (int64_t i = 0; i < gb_safetensors_count(file); i++) load(context, file, i);
  for (int64_t i = 0; i < gb_safetensors_metadata_count(file); i++)
    CLAIM(gb_safetensors_metadata(file, gb_safetensors_metadata_key(file, i)) ==
          gb_safetensors_metadata_value(file, i));
  gb_safetensors_close(file);
  return 0;
}
