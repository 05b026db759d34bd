/* fuzz_image.c - any bytes as a JPEG or PNG file: refused with a text, or an image whose bytes are there; and a
 * transform of it, or the same refused.
 *
 * The first byte of the input chooses what pixels become, the second a transform, the rest is the file. It is decoded
 * twice by one decoder, as in a loader: what the first time leaves in it must not touch the second. */
#include <string.h>
#include <zlib.h>

#include "data/transform.h"
#include "fuzz.h"
#include "io/image.h"

/* What is tried on images: steps that read around a pixel, or whose sizes come from the image. */
static const gb_augment steps[] = {
  { .kind = GB_AUGMENT_RESIZE, .p = 1, .height = 5, .width = 7 },
  { .kind = GB_AUGMENT_RESIZE, .p = 1, .height = 9 },
  { .kind = GB_AUGMENT_RANDOM_CROP, .p = 1, .height = 6, .width = 5, .padding = 9, .reflect = true },
  { .kind = GB_AUGMENT_CENTER_CROP, .p = 1, .height = 12, .width = 3 },
  { .kind = GB_AUGMENT_RESIZED_CROP, .p = 1, .height = 4, .width = 4, .scale = { 0.01, 1 }, .ratio = { 0.1, 10 } },
  { .kind = GB_AUGMENT_AFFINE, .p = 1, .degrees = { -180, 180 }, .scale = { 0.1, 9 }, .shear_x = { -80, 80 },
    .move_x = { -1, 1 }, .bilinear = true },
  { .kind = GB_AUGMENT_ELASTIC, .p = 1, .alpha = 400, .sigma = 1, .bilinear = true },
  { .kind = GB_AUGMENT_RAND_AUGMENT, .p = 1, .count = 3, .magnitude = 30 },
  { .kind = GB_AUGMENT_ERASE, .p = 1, .scale = { 0, 1 }, .ratio = { 0.1, 10 } },
  { .kind = GB_AUGMENT_CUTOUT, .p = 1, .height = 9, .width = 2 },
};
enum { STEPS = sizeof steps / sizeof *steps };

/* A PNG's chunks with their check sums made right, since almost no change would pass them. */
static void mend(uint8_t *file, size_t size) {
  size_t at = 8;
  if (size < 8 || memcmp(file, "\x89PNG\r\n\x1a\n", 8)) return;
  while (size - at >= 12) {
    size_t length = (size_t)file[at] << 24 | (size_t)file[at + 1] << 16 | (size_t)file[at + 2] << 8 | file[at + 3];
    if (length > size - at - 12) return;
    uint32_t sum = (uint32_t)crc32(0, file + at + 4, (uInt)length + 4);
    for (int i = 0; i < 4; i++) file[at + 8 + length + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
    at += length + 12;
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (size > 2 && seed % 4) mend(data + 2, size - 2);
  return size;
}

/* Put a step on the image. */
static void transform(const gb_image *image, const gb_augment *step, uint64_t seed) {
  char error[256] = "";
  gb_transform *t = NULL;
  gb_workroom room = { .budget = &fuzz_context()->budget };
  gb_applying a = { .room = &room, .seed = seed, .error = error, .error_size = sizeof error,
                    .image = { image->height, image->width, image->channels, false, image->pixels } };
  if (image->channels == 1) a.mask = a.image;
  CLAIM(gb_transform_new(fuzz_context(), step, &t) == GB_OK);
  gb_status status = gb_transform_apply(t, &a);
  CLAIM(status == GB_OK || *error);
  volatile uint8_t last = status == GB_OK ? ((uint8_t *)a.image.data)[a.image.height * a.image.width - 1] : 0;
  (void)last;
  gb_transform_release(t);
  gb_workroom_clear(&room);
}

/* Decode, look at every pixel, transform; gives a sum of the pixels, or -1. */
static int64_t look_at(gb_image_decoder *decoder, const uint8_t *data, size_t size) {
  char error[256] = "";
  gb_image image;
  int64_t sum = 0;
  gb_status status = gb_image_decode(decoder, NULL, data + 2, size - 2, (gb_image_mode)(data[0] % 3), &image, error,
                                     sizeof error);
  CLAIM(status == GB_OK || *error);
  if (status != GB_OK) return -1;
  CLAIM(image.height > 0 && image.width > 0 && image.channels == (data[0] % 3 == GB_IMAGE_RGB ? 3 : 1));
  for (int64_t i = 0; i < image.height * image.width * image.channels; i++) sum += image.pixels[i];
  if (image.height * image.width <= 1 << 14) transform(&image, &steps[data[1] % STEPS], size);
  return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t before = atomic_load(&fuzz_context()->budget.used);
  if (size < 2) return 0;
  gb_image_decoder *decoder = gb_image_decoder_open(&fuzz_context()->budget);
  CLAIM(decoder);
  int64_t first = look_at(decoder, data, size);
  CLAIM(look_at(decoder, data, size) == first);
  gb_image_decoder_close(decoder);
  CLAIM(atomic_load(&fuzz_context()->budget.used) == before); /* what was counted is given back */
  return 0;
}
