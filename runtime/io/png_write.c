/* io/png_write.c - PNG by libpng: see png_write.h.
 *
 * libpng reports errors by longjmp from a handler of ours, and never ends the process. What it writes goes to counted
 * memory; only a whole picture reaches a file. */
#include "io/png_write.h"

#include <inttypes.h>
#include <string.h>

#include "io/file.h"

#ifdef GB_HAVE_PNG

#include <png.h>
#include <setjmp.h>
#include <stdio.h>

/* The PNG as it grows, and why it could not be written. */
typedef struct sink {
  gb_context *context;
  uint8_t *data;
  size_t bytes, capacity;
  bool failed;                   /* the context has the text */
  char why[160];
} sink;

/* libpng's error handler: must not return. */
static void on_error(png_structp png, png_const_charp text) {
  sink *to = png_get_error_ptr(png);
  snprintf(to->why, sizeof to->why, "%s", text);
  png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

/* Take a piece of the file. */
static void take(png_structp png, png_bytep data, size_t bytes) {
  sink *to = png_get_io_ptr(png);
  if (bytes > to->capacity - to->bytes) {
    size_t capacity = 2 * to->capacity > to->bytes + bytes ? 2 * to->capacity : to->bytes + bytes + 4096;
    uint8_t *longer = gb_counted_resize(to->context, to->data, capacity);
    if (!longer) {
      to->failed = true;
      png_longjmp(png, 1);
    }
    to->data = longer;
    to->capacity = capacity;
  }
  memcpy(to->data + to->bytes, data, bytes);
  to->bytes += bytes;
}

static void flush(png_structp png) { (void)png; }

/* Write all rows; an interrupt ends it between two. */
static void write_rows(png_structp png, sink *to, const uint8_t *pixels, int64_t height, size_t row) {
  int64_t work = 0;
  for (int64_t y = 0; y < height; y++) {
    if (gb_poll_work(to->context, &work, (int64_t)row * 16) != GB_OK) {
      to->failed = true;
      png_longjmp(png, 1);
    }
    png_write_row(png, pixels + (size_t)y * row);
  }
}

/* Write the picture that info describes. False: libpng jumped back. */
static bool write_all(png_structp png, png_infop info, sink *to, const uint8_t *pixels, int64_t height, size_t row) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_write_info(png, info);
  write_rows(png, to, pixels, height, row);
  png_write_end(png, NULL);
  return true;
}

/* Say what the picture is. False: libpng jumped back. */
static bool describe(png_structp png, png_infop info, int64_t width, int64_t height, int channels) {
  static const int types[] = { 0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                               PNG_COLOR_TYPE_RGB_ALPHA };
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, types[channels], PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  return true;
}

gb_status gb_png_encode(gb_context *context, const uint8_t *pixels, int64_t width, int64_t height, int channels,
                        uint8_t **data, size_t *bytes) {
  if (width < 1 || height < 1 || width > GB_PNG_MOST_SIDE || height > GB_PNG_MOST_SIDE || channels < 1 || channels > 4)
    return gb_fail(context, GB_ESHAPE, "a PNG has sides from 1 to %d and 1 to 4 channels, not %" PRId64 " x %" PRId64
                   " and %d", GB_PNG_MOST_SIDE, width, height, channels);
  sink to = { .context = context };
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &to, on_error, on_warning);
  png_infop info = png ? png_create_info_struct(png) : NULL;
  if (!info) {
    png_destroy_write_struct(&png, NULL);
    return gb_fail_memory(context, sizeof to);
  }
  png_set_write_fn(png, &to, take, flush);
  bool whole = describe(png, info, width, height, channels) &&
      write_all(png, info, &to, pixels, height, (size_t)width * (size_t)channels);
  png_destroy_write_struct(&png, &info);
  if (!whole) {
    gb_counted_free(to.data);
    return to.failed ? context->error_code : gb_fail(context, GB_EIO, "libpng: %s", to.why);
  }
  *data = to.data;
  *bytes = to.bytes;
  return GB_OK;
}

#else

gb_status gb_png_encode(gb_context *context, const uint8_t *pixels, int64_t width, int64_t height, int channels,
                        uint8_t **data, size_t *bytes) {
  (void)pixels, (void)width, (void)height, (void)channels, (void)data, (void)bytes;
  return gb_fail(context, GB_EUNSUPPORTED, "PNG is not built in: install libpng (Debian and Ubuntu: libpng-dev) and "
                                           "build again");
}

#endif

gb_status gb_png_save(gb_context *context, const char *path, const uint8_t *pixels, int64_t width, int64_t height,
                      int channels) {
  uint8_t *data = NULL;
  size_t bytes = 0;
  gb_file_writer *file = NULL;
  GB_TRY(gb_png_encode(context, pixels, width, height, channels, &data, &bytes));
  gb_status status = gb_file_create(context, path, &file);
  if (status == GB_OK) status = gb_file_write(file, data, bytes);
  if (status == GB_OK) status = gb_file_commit(file);
  else gb_file_abandon(file);
  gb_counted_free(data);
  return status;
}
