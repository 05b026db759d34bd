/* io/canvas.c - see canvas.h. How much of a pixel a line covers is taken from the distance of its middle to the line,
 * which is exact for straight edges along the grid and near it elsewhere. A line covers no pixel twice: all its
 * segments go into a mask first. */
#include "io/canvas.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/font.h"
#include "io/png_write.h"

struct gb_canvas {
  gb_context *context;           /* counted */
  int width, height;
  uint8_t *pixels, *mask;        /* mask: zeros between calls */
  int left, top, right, bottom;  /* the clip box, ends excluded */
  int64_t work;
};

/* {==== life ==== */

gb_status gb_canvas_open(gb_context *context, int width, int height, gb_canvas **out) {
  if (width < 1 || height < 1 || width > GB_CANVAS_MOST_SIDE || height > GB_CANVAS_MOST_SIDE)
    return gb_fail(context, GB_EINVAL, "a picture has sides from 1 to %d pixels, not %d x %d", GB_CANVAS_MOST_SIDE,
                   width, height);
  size_t area = (size_t)width * (size_t)height;
  gb_canvas *canvas = gb_counted_alloc(context, sizeof *canvas + 4 * area);
  if (!canvas) return context->error_code;
  *canvas = (gb_canvas){ .context = context, .width = width, .height = height, .right = width, .bottom = height };
  canvas->pixels = (uint8_t *)(canvas + 1);
  canvas->mask = canvas->pixels + 3 * area;
  memset(canvas->pixels, 255, 3 * area);
  gb_context_retain(context);
  *out = canvas;
  return GB_OK;
}

void gb_canvas_close(gb_canvas *canvas) {
  if (!canvas) return;
  gb_context *context = canvas->context;
  gb_counted_free(canvas);
  gb_context_release(context);
}

const uint8_t *gb_canvas_pixels(const gb_canvas *canvas, int *width, int *height) {
  *width = canvas->width;
  *height = canvas->height;
  return canvas->pixels;
}

/* A coordinate as a pixel from 0 to most; NaN is 0. */
static int clamp(double x, int most) { return x > 0 ? x < most ? (int)x : most : 0; }

void gb_canvas_clip(gb_canvas *canvas, double left, double top, double right, double bottom) {
  canvas->left = clamp(floor(left), canvas->width);
  canvas->top = clamp(floor(top), canvas->height);
  canvas->right = clamp(ceil(right), canvas->width);
  canvas->bottom = clamp(ceil(bottom), canvas->height);
}

/* ====} */

/* {==== ink ==== */

/* Lay ink over a pixel, where share of it is covered. */
static void blend(gb_canvas *canvas, int x, int y, gb_ink ink, double share) {
  uint8_t *p = canvas->pixels + 3 * ((size_t)y * (size_t)canvas->width + (size_t)x);
  const uint8_t color[3] = { ink.red, ink.green, ink.blue };
  double a = share * ink.alpha;
  for (int c = 0; c < 3; c++) p[c] = (uint8_t)(p[c] + a * (color[c] - p[c]) + 0.5);
}

/* How much of the pixel from i to i + 1 lies between two coordinates. */
static double overlap(int i, double from, double to) {
  double low = from > i ? from : i, high = to < i + 1 ? to : i + 1;
  return high > low ? high - low : 0;
}

void gb_canvas_fill(gb_canvas *canvas, double left, double top, double right, double bottom, gb_ink ink) {
  int x0 = clamp(floor(left), canvas->right), x1 = clamp(ceil(right), canvas->right);
  int y0 = clamp(floor(top), canvas->bottom), y1 = clamp(ceil(bottom), canvas->bottom);
  x0 = x0 < canvas->left ? canvas->left : x0;
  y0 = y0 < canvas->top ? canvas->top : y0;
  for (int y = y0; y < y1; y++)
    for (int x = x0; x < x1; x++) blend(canvas, x, y, ink, overlap(x, left, right) * overlap(y, top, bottom));
}

void gb_canvas_image(gb_canvas *canvas, double left, double top, double right, double bottom, const uint8_t *pixels,
                     int width, int height) {
  int x0 = clamp(floor(left + 0.5), canvas->right), x1 = clamp(floor(right + 0.5), canvas->right);
  int y0 = clamp(floor(top + 0.5), canvas->bottom), y1 = clamp(floor(bottom + 0.5), canvas->bottom);
  for (int y = y0 < canvas->top ? canvas->top : y0; y < y1; y++)
    for (int x = x0 < canvas->left ? canvas->left : x0; x < x1; x++) {
      int u = clamp((x + 0.5 - left) / (right - left) * width, width - 1);
      int v = clamp((y + 0.5 - top) / (bottom - top) * height, height - 1);
      memcpy(canvas->pixels + 3 * ((size_t)y * (size_t)canvas->width + (size_t)x),
             pixels + 3 * ((size_t)v * (size_t)width + (size_t)u), 3);
    }
}

/* ====} */

/* {==== lines ==== */

/* A box of pixels, ends excluded, that grows. */
typedef struct box { int left, top, right, bottom; } box;

/* Cover the pixels near the segment, as far as the clip box reaches. */
static void cover(gb_canvas *canvas, const double a[2], const double b[2], double width, box *touched) {
  double reach = width / 2 + 1, dx = b[0] - a[0], dy = b[1] - a[1], length2 = dx * dx + dy * dy;
  box r = { clamp(floor(fmin(a[0], b[0]) - reach), canvas->right), clamp(floor(fmin(a[1], b[1]) - reach),
                                                                         canvas->bottom),
            clamp(ceil(fmax(a[0], b[0]) + reach), canvas->right), clamp(ceil(fmax(a[1], b[1]) + reach),
                                                                        canvas->bottom) };
  r.left = r.left < canvas->left ? canvas->left : r.left;
  r.top = r.top < canvas->top ? canvas->top : r.top;
  for (int y = r.top; y < r.bottom; y++)
    for (int x = r.left; x < r.right; x++) {
      double px = x + 0.5 - a[0], py = y + 0.5 - a[1];
      double t = length2 > 0 ? fmin(1, fmax(0, (px * dx + py * dy) / length2)) : 0;
      double share = fmin(1, fmax(0, width / 2 + 0.5 - hypot(px - t * dx, py - t * dy)));
      if (width < 1) share *= width; /* thinner than a pixel: paler */
      uint8_t *mask = canvas->mask + (size_t)y * (size_t)canvas->width + (size_t)x;
      uint8_t value = (uint8_t)(255 * share + 0.5);
      if (value > *mask) *mask = value;
    }
  if (r.left >= r.right || r.top >= r.bottom) return;
  touched->left = r.left < touched->left ? r.left : touched->left;
  touched->top = r.top < touched->top ? r.top : touched->top;
  touched->right = r.right > touched->right ? r.right : touched->right;
  touched->bottom = r.bottom > touched->bottom ? r.bottom : touched->bottom;
}

/* Blend what the mask covers, and clear it. */
static void press(gb_canvas *canvas, const box *r, gb_ink ink) {
  for (int y = r->top; y < r->bottom; y++) {
    uint8_t *mask = canvas->mask + (size_t)y * (size_t)canvas->width;
    for (int x = r->left; x < r->right; x++) {
      if (mask[x]) blend(canvas, x, y, ink, mask[x] / 255.0);
      mask[x] = 0;
    }
  }
}

gb_status gb_canvas_stroke(gb_canvas *canvas, const double *points, size_t n, double width, gb_ink ink) {
  box touched = { canvas->width, canvas->height, 0, 0 };
  gb_status status = GB_OK;
  for (size_t i = 0; status == GB_OK && i + (n > 1) < n; i++) {
    const double *a = points + 2 * i, *b = n > 1 ? a + 2 : a;
    if (!isfinite(a[0]) || !isfinite(a[1]) || !isfinite(b[0]) || !isfinite(b[1])) continue;
    cover(canvas, a, b, width, &touched);
    int64_t area = (int64_t)(fmin(fabs(b[0] - a[0]), canvas->width) + 4) *
        (int64_t)(fmin(fabs(b[1] - a[1]), canvas->height) + 4);
    status = gb_poll_work(canvas->context, &canvas->work, area * 8);
  }
  press(canvas, &touched, ink);
  return status;
}

/* ====} */

/* {==== text ==== */

enum { STEPS = 6, MOST_POINTS = 160 }; /* of a curve between two control points; of a stroke */

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* The strokes of a letter. */
static const char *glyph_of(uint32_t code) { return code >= 32 && code < 127 ? gb_font[code - 32] : gb_font_other; }

static int glyph_width(const char *glyph) {
  int width = 0;
  for (const char *at = glyph; *at; at++) {
    if (*at == ' ' || *at == '~') continue;
    width = digit(*at) > width ? digit(*at) : width;
    at++;
  }
  return width;
}

/* The next letter of UTF-8, and past it; what is none counts as one byte. */
static uint32_t next_code(const char **text) {
  const unsigned char *at = (const unsigned char *)*text;
  int more = *at < 0x80 ? 0 : *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : *at >= 0xc0 ? 1 : 0;
  uint32_t code = *at < 0x80 ? *at : 0xfffd;
  (*text)++;
  while (more-- > 0 && ((unsigned char)**text & 0xc0) == 0x80) (*text)++;
  return code;
}

double gb_canvas_text_width(const char *text, double size) {
  double units = 0;
  while (*text) units += glyph_width(glyph_of(next_code(&text))) + 2;
  return units > 0 ? (units - 2) * size / 10 : 0;
}

/* Where a letter stands: its units become pixels. */
typedef struct frame { double x, y, scale; bool turned; } frame;

static void place(const frame *f, double x, double y, double out[2]) {
  double along = x * f->scale, up = (y - 3) * f->scale;
  out[0] = f->turned ? f->x - up : f->x + along;
  out[1] = f->turned ? f->y - along : f->y - up;
}

/* The points of a stroke, curves in steps; *at moves to its end. */
static size_t trace(const char **at, const frame *f, double out[][2]) {
  double p[40][2] = { { 0 } };
  size_t n = 0, count = 0;
  bool curve = **at == '~';
  if (curve) (*at)++;
  for (; **at && **at != ' '; *at += 2) place(f, digit((*at)[0]), digit((*at)[1]), p[n++]);
  if (!curve) {
    memcpy(out, p, n * sizeof *p);
    return n;
  }
  bool closed = p[0][0] == p[n - 1][0] && p[0][1] == p[n - 1][1];
  for (size_t i = closed ? 0 : 1; i + 1 < n; i++) { /* each control point */
    const double *before = p[i ? i - 1 : n - 2], *now = p[i], *after = p[i + 1];
    for (int k = 0; k <= STEPS; k++) {
      double t = (double)k / STEPS;
      for (int c = 0; c < 2; c++) {
        double from = !closed && i == 1 ? before[c] : (before[c] + now[c]) / 2;
        double to = !closed && i == n - 2 ? after[c] : (now[c] + after[c]) / 2;
        out[count][c] = (1 - t) * (1 - t) * from + 2 * t * (1 - t) * now[c] + t * t * to;
      }
      count++;
    }
  }
  return count;
}

gb_status gb_canvas_text(gb_canvas *canvas, double x, double y, double size, bool turned, const char *text,
                         gb_ink ink) {
  frame f = { x, y, size / 10, turned };
  double points[MOST_POINTS][2], weight = fmax(1, size * 0.1);
  while (*text) {
    const char *at = glyph_of(next_code(&text)), *glyph = at;
    int width = glyph_width(glyph);
    for (bool blank = glyph == gb_font[0]; *at && !blank; at += *at == ' ') {
      size_t n = trace(&at, &f, points);
      GB_TRY(gb_canvas_stroke(canvas, points[0], n, weight, ink));
    }
    if (turned) f.y -= (width + 2) * f.scale;
    else f.x += (width + 2) * f.scale;
  }
  return GB_OK;
}

/* ====} */

/* {==== terminals ==== */

/* Text that grows in counted memory; a failure is kept and makes what follows do nothing. */
typedef struct stream { gb_context *context; char *text; size_t bytes, capacity; gb_status status; } stream;

static void put(stream *s, const char *text, size_t bytes) {
  if (s->status != GB_OK) return;
  if (bytes > s->capacity - s->bytes) {
    size_t capacity = 2 * s->capacity + bytes + 4096;
    char *longer = gb_counted_resize(s->context, s->text, capacity);
    if (!longer) {
      s->status = s->context->error_code;
      return;
    }
    s->text = longer;
    s->capacity = capacity;
  }
  memcpy(s->text + s->bytes, text, bytes);
  s->bytes += bytes;
}

static void putf(stream *s, const char *format, ...) GB_PRINTF(2, 3);
static void putf(stream *s, const char *format, ...) {
  char text[96];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  put(s, text, (size_t)n);
}

static gb_status finish(stream *s, char **text, size_t *bytes) {
  if (s->status != GB_OK) {
    gb_counted_free(s->text);
    return s->status;
  }
  *text = s->text;
  *bytes = s->bytes;
  return GB_OK;
}

enum { SHADES = 6, TONES = SHADES * SHADES * SHADES };

/* The color of a pixel among the 216. */
static int tone_at(const gb_canvas *canvas, int x, int y) {
  const uint8_t *p = canvas->pixels + 3 * ((size_t)y * (size_t)canvas->width + (size_t)x);
  return ((p[0] + 25) / 51 * SHADES + (p[1] + 25) / 51) * SHADES + (p[2] + 25) / 51;
}

/* A run of equal columns. */
static void put_run(stream *s, int bits, int times) {
  char c = (char)(63 + bits);
  if (times > 3) putf(s, "!%d%c", times, c);
  else
    for (int i = 0; i < times; i++) put(s, &c, 1);
}

/* Six rows from y on, in one color. */
static void put_band(stream *s, const gb_canvas *canvas, int y, int tone) {
  int bits = 0, times = 0;
  putf(s, "#%d", tone);
  for (int x = 0; x < canvas->width; x++) {
    int now = 0;
    for (int k = 0; k < 6 && y + k < canvas->height; k++) now |= (tone_at(canvas, x, y + k) == tone) << k;
    if (now != bits && times) put_run(s, bits, times), times = 0;
    bits = now;
    times++;
  }
  if (bits) put_run(s, bits, times);
  put(s, "$", 1);
}

gb_status gb_canvas_sixel(gb_canvas *canvas, char **text, size_t *bytes) {
  stream s = { .context = canvas->context, .status = GB_OK };
  putf(&s, "\033Pq\"1;1;%d;%d", canvas->width, canvas->height);
  for (int i = 0; i < TONES; i++)
    putf(&s, "#%d;2;%d;%d;%d", i, i / (SHADES * SHADES) * 20, i / SHADES % SHADES * 20, i % SHADES * 20);
  for (int y = 0; y < canvas->height && s.status == GB_OK; y += 6) {
    bool used[TONES] = { false };
    for (int k = 0; k < 6 && y + k < canvas->height; k++)
      for (int x = 0; x < canvas->width; x++) used[tone_at(canvas, x, y + k)] = true;
    for (int i = 0; i < TONES && s.status == GB_OK; i++) {
      if (!used[i]) continue;
      put_band(&s, canvas, y, i);
      gb_status polled = gb_poll_work(canvas->context, &canvas->work, (int64_t)canvas->width * 16);
      if (s.status == GB_OK) s.status = polled;
    }
    put(&s, "-", 1);
  }
  put(&s, "\033\\", 2);
  return finish(&s, text, bytes);
}

/* Three bytes as four letters; fewer are filled up. */
static void put_base64(stream *s, const uint8_t *data, size_t bytes) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes; i += 3) {
    uint32_t three = (uint32_t)data[i] << 16 | (i + 1 < bytes ? (uint32_t)data[i + 1] << 8 : 0) |
        (i + 2 < bytes ? data[i + 2] : 0);
    char four[4] = { letters[three >> 18], letters[three >> 12 & 63], i + 1 < bytes ? letters[three >> 6 & 63] : '=',
                     i + 2 < bytes ? letters[three & 63] : '=' };
    put(s, four, 4);
  }
}

enum { KITTY_BYTES = 3072 };     /* of a piece, which may have 4096 letters */

gb_status gb_canvas_kitty(gb_canvas *canvas, char **text, size_t *bytes) {
  stream s = { .context = canvas->context, .status = GB_OK };
  uint8_t *png = NULL;
  size_t size = 0;
  GB_TRY(gb_png_encode(canvas->context, canvas->pixels, canvas->width, canvas->height, 3, &png, &size));
  for (size_t at = 0; at < size; at += KITTY_BYTES) {
    bool last = at + KITTY_BYTES >= size;
    putf(&s, "\033_G%sm=%d;", at ? "" : "a=T,f=100,", !last);
    put_base64(&s, png + at, last ? size - at : KITTY_BYTES);
    put(&s, "\033\\", 2);
  }
  gb_counted_free(png);
  return finish(&s, text, bytes);
}

/* ====} */
