/* io/image.c - what images of every format share: which format it is, limits, turning them upright, and what pixels
 * become. Pixels are converted as Pillow's convert() does (libImaging/Convert.c), so that networks trained on its
 * images see the same bytes. */
#include "io/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

struct gb_image_decoder {
  gb_workroom room;
  void *jpeg;                        /* kept: it costs as much to make as a small image to decode */
};

gb_image_decoder *gb_image_decoder_open(gb_budget *budget) {
  gb_image_decoder *decoder = calloc(1, sizeof *decoder);
  if (decoder) decoder->room.budget = budget;
  return decoder;
}

void gb_image_decoder_close(gb_image_decoder *decoder) {
  if (!decoder) return;
  gb_jpeg_close(decoder->jpeg);
  gb_workroom_clear(&decoder->room);
  free(decoder);
}

gb_status gb_decoding_fail(gb_decoding *d, gb_status status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(d->error, d->error_size, format, list);
  va_end(list);
  return d->status = status;
}

/* Where the first pixel lies in its block, which begins at a multiple of 16. Rows at a multiple of its vectors' 16 or
 * 32 bytes libjpeg-turbo writes past the caches (jdcolext-avx2.asm, vmovntdq). It then waits for these writes wherever
 * a load meets a narrower store (jdsample-avx2.asm, "insert a dummy sample"), and whoever reads the pixels waits for
 * the memory: of 12 us for an image of 32 x 32 with its augmentation these were 3. */
enum { OFF_VECTORS = 8 };

bool gb_decoding_room(gb_decoding *d, uint64_t height, uint64_t width, int channels, size_t sample_bytes) {
  if (!height || !width || height > GB_IMAGE_MOST_PIXELS || width > GB_IMAGE_MOST_PIXELS / height) {
    gb_decoding_fail(d, GB_EFORMAT, "it says that it is %" PRIu64 " x %" PRIu64 " pixels, and %" PRId64 " are the most "
                     "that are read; make it smaller", width, height, GB_IMAGE_MOST_PIXELS);
    return false;
  }
  size_t bytes = (size_t)(height * width) * (size_t)channels * sample_bytes;
  uint8_t *block = gb_workroom_get(d->room, GB_IMAGE_RAW, OFF_VECTORS + bytes);
  d->found = (gb_image){ (int64_t)height, (int64_t)width, channels, block ? block + OFF_VECTORS : NULL };
  if (block) return true;
  gb_decoding_fail(d, GB_EMEMORY, "out of memory: %zu bytes were asked for, for %" PRIu64 " x %" PRIu64 " pixels",
                   bytes, width, height);
  return false;
}

/* {==== EXIF ==== */

static uint32_t number_at(const uint8_t *at, int bytes, bool big_end) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint32_t)at[i] << 8 * (big_end ? bytes - 1 - i : i);
  return value;
}

/* TIFF 6.0, section 2: "II" or "MM", 42, where the first directory is; there a count, and 12 bytes an entry. */
int gb_exif_orientation(const uint8_t *tiff, size_t bytes) {
  enum { ORIENTATION = 0x0112, SHORT = 3 };
  if (bytes < 10 || (memcmp(tiff, "II", 2) && memcmp(tiff, "MM", 2))) return 1;
  bool big_end = tiff[0] == 'M';
  size_t at = number_at(tiff + 4, 4, big_end);
  if (number_at(tiff + 2, 2, big_end) != 42 || at > bytes - 2) return 1;
  uint32_t entries = number_at(tiff + at, 2, big_end);
  at += 2;
  for (; entries && bytes - at >= 12; entries--, at += 12) {
    if (number_at(tiff + at, 2, big_end) != ORIENTATION || number_at(tiff + at + 2, 2, big_end) != SHORT) continue;
    uint32_t value = number_at(tiff + at + 8, 2, big_end);
    return value >= 1 && value <= 8 ? (int)value : 1;
  }
  return 1;
}

/* Where pixel (y, x) of the upright image comes from: bits of the orientation less one say whether the axes change
 * places, and which of the file's are turned round. */
static const struct { bool swap, flip_y, flip_x; } turns[9] = {
  [2] = { false, false, true }, [3] = { false, true, true }, [4] = { false, true, false }, [5] = { true, false, false },
  [6] = { true, true, false }, [7] = { true, true, true }, [8] = { true, false, true },
};

/* ====} */

/* {==== What pixels become ==== */

static uint8_t luma(const uint8_t *p) { return (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16); }

/* One pixel of so many channels as one of others. */
static void convert_pixel(const uint8_t *from, int have, uint8_t *to, int want) {
  if (want == 1) to[0] = have == 1 ? from[0] : luma(from);
  else if (have == 1) to[0] = to[1] = to[2] = from[0];
  else to[0] = from[0], to[1] = from[1], to[2] = from[2];
}

/* The found image, upright, of the channels that are wanted. */
static gb_status finish(gb_decoding *d, gb_image *out) {
  const gb_image *f = &d->found;
  int want = d->mode == GB_IMAGE_RGB ? 3 : 1, turn = d->orientation;
  if (want == f->channels && turn == 1) return *out = *f, GB_OK;
  bool swap = turns[turn].swap;
  gb_image made = { swap ? f->width : f->height, swap ? f->height : f->width, want, NULL };
  size_t bytes = (size_t)(made.height * made.width) * (size_t)want;
  made.pixels = gb_workroom_get(d->room, GB_IMAGE_MADE, bytes);
  if (!made.pixels) return gb_decoding_fail(d, GB_EMEMORY, "out of memory: %zu bytes were asked for", bytes);
  uint8_t *to = made.pixels;
  for (int64_t y = 0; y < made.height; y++) {
    if (d->stop && (y & 63) == 0 && gb_is_stopping(d->stop)) return gb_decoding_fail(d, GB_EINTERRUPT, "interrupted");
    for (int64_t x = 0; x < made.width; x++, to += want) {
      int64_t row = swap ? x : y, column = swap ? y : x;
      if (turns[turn].flip_y) row = f->height - 1 - row;
      if (turns[turn].flip_x) column = f->width - 1 - column;
      convert_pixel(f->pixels + (row * f->width + column) * f->channels, f->channels, to, want);
    }
  }
  return *out = made, GB_OK;
}

/* ====} */

static bool begins_with(const gb_decoding *d, const char *magic, size_t length) {
  return d->bytes >= length && !memcmp(d->data, magic, length);
}

gb_status gb_image_decode(gb_image_decoder *decoder, const gb_context *stop, const void *data, size_t bytes,
                          gb_image_mode mode, gb_image *out, char *error, size_t error_size) {
  gb_decoding d = { .room = &decoder->room, .stop = stop, .data = data, .bytes = bytes, .mode = mode, .orientation = 1,
                    .error = error, .error_size = error_size };
  if (begins_with(&d, "\xff\xd8\xff", 3)) GB_TRY(gb_jpeg_decode(&decoder->jpeg, &d));
  else if (begins_with(&d, "\x89PNG\r\n\x1a\n", 8)) GB_TRY(gb_png_decode(&d));
  else if (!bytes) return gb_decoding_fail(&d, GB_EFORMAT, "it is empty; copy it again");
  else return gb_decoding_fail(&d, GB_EFORMAT, "it is neither a JPEG nor a PNG file, by its first bytes; save it as "
                               "one of these");
  return finish(&d, out);
}

gb_status gb_image_read(gb_context *context, const void *data, size_t bytes, const char *name, gb_image_mode mode,
                        gb_tensor **out) {
  char error[256] = "";
  gb_image image;
  gb_image_decoder *decoder = gb_image_decoder_open(&context->budget);
  if (!decoder) return gb_fail_memory(context, sizeof *decoder);
  gb_status status = gb_image_decode(decoder, context, data, bytes, mode, &image, error, sizeof error);
  if (status != GB_OK) gb_fail(context, status, "%s: %s", name, error);
  else {
    int64_t shape[3] = { image.height, image.width, image.channels };
    status = gb_tensor_new(context, GB_UINT8, 3, shape, (gb_device){ GB_CPU, 0 }, out);
    if (status == GB_OK) memcpy(gb_data(*out), image.pixels, (size_t)(*out)->numel);
  }
  gb_image_decoder_close(decoder);
  return status;
}
