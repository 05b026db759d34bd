/* test_canvas.c - what is drawn covers the pixels that it should, and a PNG holds the pixels it was made of. The PNG is
 * read here by hand: chunks, zlib, filters. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "io/canvas.h"
#include "io/png_write.h"

static gb_context *context;
static const gb_ink black = { 0, 0, 0, 1 };

/* {==== drawing ==== */

/* The red of a pixel. */
static int at(const gb_canvas *canvas, int x, int y) {
  int width, height;
  const uint8_t *pixels = gb_canvas_pixels(canvas, &width, &height);
  return pixels[3 * (y * width + x)];
}

/* How much ink there is, in pixels. */
static double ink_of(const gb_canvas *canvas) {
  int width, height;
  const uint8_t *pixels = gb_canvas_pixels(canvas, &width, &height);
  double sum = 0;
  for (int i = 0; i < 3 * width * height; i++) sum += (255 - pixels[i]) / 255.0 / 3;
  return sum;
}

static gb_canvas *fresh(int width, int height) {
  gb_canvas *canvas = NULL;
  CHECK(gb_canvas_open(context, width, height, &canvas) == GB_OK);
  return canvas;
}

static void test_fill(void) {
  gb_canvas *canvas = fresh(10, 8);
  gb_canvas_fill(canvas, 2.5, 1, 5, 3, black);
  CHECK(at(canvas, 1, 1) == 255 && at(canvas, 3, 1) == 0 && at(canvas, 4, 2) == 0 && at(canvas, 5, 2) == 255);
  CHECK(abs(at(canvas, 2, 1) - 128) <= 1);
  CHECK(fabs(ink_of(canvas) - 5) < 0.05);
  gb_canvas_fill(canvas, -100, -100, 1e300, NAN, black); /* nothing: it ends at no row */
  CHECK(fabs(ink_of(canvas) - 5) < 0.05);
  gb_canvas_fill(canvas, -1e300, -1e300, 1e300, 1e300, (gb_ink){ 0, 0, 0, 0.5 });
  CHECK(abs(at(canvas, 9, 7) - 128) <= 1);
  gb_canvas_close(canvas);
}

/* A line covers its length times its width, at any angle; joins are not darker than the line. */
static void test_stroke(void) {
  for (int degrees = 0; degrees < 180; degrees += 15) {
    gb_canvas *canvas = fresh(100, 100);
    double x = 30 * cos(degrees * acos(-1) / 180), y = 30 * sin(degrees * acos(-1) / 180);
    double line[] = { 50 - x, 50 - y, 50, 50, 50 + x, 50 + y };
    CHECK(gb_canvas_stroke(canvas, line, 3, 3, black) == GB_OK);
    CHECK(fabs(ink_of(canvas) - (60 * 3 + acos(-1) * 1.5 * 1.5)) < 8);
    CHECK(at(canvas, 50, 50) == 0 || at(canvas, 49, 49) == 0);
    gb_canvas_close(canvas);
  }
  gb_canvas *canvas = fresh(20, 20);
  double twice[] = { 2, 10, 18, 10, 2, 10 };
  CHECK(gb_canvas_stroke(canvas, twice, 3, 1, (gb_ink){ 0, 0, 0, 0.5 }) == GB_OK);
  CHECK(at(canvas, 10, 9) > 180 && at(canvas, 10, 10) > 180); /* half of a half each */
  double odd[] = { NAN, 3, 4, INFINITY, -1e300, 5, 1e300, 5 };
  CHECK(gb_canvas_stroke(canvas, odd, 4, 2, black) == GB_OK);
  CHECK(gb_canvas_stroke(canvas, odd, 0, 2, black) == GB_OK);
  gb_canvas_close(canvas);
}

static void test_clip(void) {
  gb_canvas *canvas = fresh(20, 20);
  double line[] = { -50, 10, 50, 10 }, dot[] = { 5, 5 };
  gb_canvas_clip(canvas, 5, 0, 10, 20);
  CHECK(gb_canvas_stroke(canvas, line, 2, 2, black) == GB_OK);
  CHECK(at(canvas, 4, 10) == 255 && at(canvas, 5, 10) == 0 && at(canvas, 9, 10) == 0 && at(canvas, 10, 10) == 255);
  gb_canvas_clip(canvas, 0, 0, 20, 20);
  CHECK(gb_canvas_stroke(canvas, dot, 1, 6, black) == GB_OK);
  CHECK(at(canvas, 5, 5) == 0 && at(canvas, 5, 1) == 255);
  gb_canvas_close(canvas);
}

/* Every letter leaves ink within its width and its line, and none leaves what the mask had. */
static void test_text(void) {
  for (int letter = 33; letter < 127; letter++) {
    gb_canvas *canvas = fresh(60, 60);
    char text[2] = { (char)letter, 0 };
    double width = gb_canvas_text_width(text, 20);
    CHECK(width >= 0 && width <= 20);
    CHECK(gb_canvas_text(canvas, 20, 40, 20, false, text, black) == GB_OK);
    double all = ink_of(canvas);
    CHECK(all > 2);
    gb_canvas_fill(canvas, 17, 20, 23 + width, 49, (gb_ink){ 255, 255, 255, 1 });
    CHECK(ink_of(canvas) < 0.01);
    CHECK(gb_canvas_text(canvas, 30, 40, 20, true, text, black) == GB_OK);
    CHECK(fabs(ink_of(canvas) - all) < 0.2 * all + 2);
    gb_canvas_close(canvas);
  }
  CHECK(gb_canvas_text_width("", 20) == 0);
  CHECK(gb_canvas_text_width("ab", 20) > gb_canvas_text_width("a", 20));
  CHECK(gb_canvas_text_width("\xc3\xa9", 20) == gb_canvas_text_width("\xff", 20));
  gb_canvas *canvas = fresh(60, 60);
  CHECK(gb_canvas_text(canvas, 10, 40, 20, false, "\xf0\x9f", black) == GB_OK); /* cut */
  CHECK(gb_canvas_text(canvas, NAN, 40, 1e300, false, "a", black) == GB_OK);
  gb_canvas_close(canvas);
}

static void test_image(void) {
  const uint8_t pixels[] = { 1, 2, 3, 4, 5, 6 };
  gb_canvas *canvas = fresh(20, 20);
  gb_canvas_image(canvas, 4, 4, 8, 6, pixels, 2, 1);
  CHECK(at(canvas, 4, 4) == 1 && at(canvas, 5, 5) == 1 && at(canvas, 6, 4) == 4 && at(canvas, 8, 4) == 255);
  gb_canvas_image(canvas, -10, -10, 40, 40, pixels, 2, 1);
  CHECK(at(canvas, 0, 0) == 1 && at(canvas, 19, 19) == 4);
  gb_canvas_close(canvas);
  CHECK(gb_canvas_open(context, 0, 5, &canvas) == GB_EINVAL);
  CHECK(gb_canvas_open(context, 5, GB_CANVAS_MOST_SIDE + 1, &canvas) == GB_EINVAL);
}

/* ====} */

/* {==== PNG ==== */

static uint32_t big(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static int paeth(int a, int b, int c) {
  int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/* The pixels of a PNG of 8 bits that is not interlaced, or NULL. */
static uint8_t *decode(const uint8_t *png, size_t bytes, int width, int height, int channels) {
  static const int types[] = { 0, 0, 4, 2, 6 };
  uint8_t *packed = malloc(bytes), *rows = malloc((size_t)height * ((size_t)width * channels + 1));
  uint8_t *pixels = malloc((size_t)height * width * channels);
  size_t n = 0, at = 8;
  bool fine = bytes > 8 && !memcmp(png, "\x89PNG\r\n\x1a\n", 8);
  for (; fine && at + 12 <= bytes; at += 12 + big(png + at)) {
    uint32_t length = big(png + at);
    fine &= crc32(0, png + at + 4, length + 4) == big(png + at + 8 + length);
    if (!memcmp(png + at + 4, "IHDR", 4))
      fine &= big(png + at + 8) == (uint32_t)width && big(png + at + 12) == (uint32_t)height && png[at + 16] == 8 &&
          png[at + 17] == types[channels] && png[at + 20] == 0;
    if (!memcmp(png + at + 4, "IDAT", 4)) memcpy(packed + n, png + at + 8, length), n += length;
  }
  size_t row = (size_t)width * channels;
  uLongf unpacked = (uLongf)((size_t)height * (row + 1));
  fine = fine && at == bytes && uncompress(rows, &unpacked, packed, (uLong)n) == Z_OK;
  for (int y = 0; fine && y < height; y++)
    for (size_t i = 0; i < row; i++) {
      int filter = rows[y * (row + 1)], value = rows[y * (row + 1) + 1 + i];
      int a = i >= (size_t)channels ? pixels[y * row + i - channels] : 0, b = y ? pixels[(y - 1) * row + i] : 0;
      int c = y && i >= (size_t)channels ? pixels[(y - 1) * row + i - channels] : 0;
      int add[] = { 0, a, b, (a + b) / 2, paeth(a, b, c) };
      pixels[y * row + i] = (uint8_t)(value + add[filter]);
    }
  free(packed);
  free(rows);
  if (!fine) free(pixels);
  return fine ? pixels : NULL;
}

static void test_png(void) {
  uint8_t pixels[37 * 23 * 4], *png = NULL;
  size_t bytes = 0;
  for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * i / 7 + i / 5);
  if (gb_png_encode(context, pixels, 1, 1, 1, &png, &bytes) == GB_EUNSUPPORTED) {
    printf("skipped: there is no libpng\n");
    return;
  }
  gb_counted_free(png);
  for (int channels = 1; channels <= 4; channels++) {
    CHECK(gb_png_encode(context, pixels, 37, 23, channels, &png, &bytes) == GB_OK);
    uint8_t *back = decode(png, bytes, 37, 23, channels);
    CHECK(back && !memcmp(back, pixels, (size_t)(37 * 23 * channels)));
    free(back);
    gb_counted_free(png);
  }
  CHECK(gb_png_encode(context, pixels, 0, 3, 1, &png, &bytes) == GB_ESHAPE);
  CHECK(gb_png_encode(context, pixels, 3, 3, 5, &png, &bytes) == GB_ESHAPE);
}

/* ====} */

int main(void) {
  CHECK(gb_context_open(NULL, &context) == GB_OK);
  test_fill();
  test_stroke();
  test_clip();
  test_text();
  test_image();
  test_png();
  gb_context_close(context);
  return check_report();
}
