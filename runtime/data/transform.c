/* data/transform.c - the steps of transforms: how each draws, and what it does to image and mask.
 *
 * Arithmetic is torchvision's for tensors of bytes (transforms/_functional_tensor.py): float32, results cut off to
 * bytes where it casts and rounded where it rounds. Pictures change places between two blocks of the room. Steps that
 * are written for bytes come before to_float; compose and apply see to that. */
#include "data/transform.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "data/resize.h"
#include "io/image.h"
#include "tensor/tensor.h"

enum { IMAGE_BLOCKS = 0, MASK_BLOCKS = 2, SCRATCH = 4, FIELDS = 6 };   /* of the room */
#define STREAM_AUGMENT ((uint64_t)7 << 61)   /* beside those of data/shuffle.c */
#define MOST_STEPS 64
#define PI 3.14159265358979323846

/* value: what a byte of a channel becomes by to_float and the normalize behind it, where they are done as one. */
struct gb_transform { _Atomic int32_t refs; int64_t count; float value[3][256]; gb_augment step[]; };

static GB_PRINTF(3, 4) gb_status fail(gb_applying *a, gb_status status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(a->error, a->error_size, format, list);
  va_end(list);
  return status;
}

/* {==== Draws ==== */

/* In [0, 1), the next of this step. */
static double draw(gb_applying *a) {
  uint32_t word[4];
  gb_philox(a->seed, STREAM_AUGMENT | a->epoch, a->index << 32 | (uint64_t)a->step << 24 | a->drawn++, word);
  return gb_uniform64(word[0], word[1]);
}

static double between(gb_applying *a, gb_range r) { return r.low + (r.high - r.low) * draw(a); }
/* 0 .. limit - 1 */
static int64_t below(gb_applying *a, int64_t limit) { return (int64_t)(draw(a) * (double)limit); }
static bool happens(gb_applying *a, double p) { return draw(a) < p; }

/* ====} */

/* {==== Pictures ==== */

static int64_t pixels_of(const gb_picture *p) { return p->height * p->width; }
static bool is_mask(const gb_applying *a, const gb_picture *p) { return p == &a->mask; }

/* Memory for a picture in place of p: the block that p does not lie in. NULL: the failure is written. */
static void *fresh(gb_applying *a, const gb_picture *p, int64_t height, int64_t width, int channels, size_t bytes) {
  int block = is_mask(a, p) ? MASK_BLOCKS : IMAGE_BLOCKS;
  if (height > GB_IMAGE_MOST_PIXELS / width) {
    fail(a, GB_EINVAL, "%" PRId64 " x %" PRId64 " pixels are too many; %" PRId64 " are the most", width, height,
         GB_IMAGE_MOST_PIXELS);
    return NULL;
  }
  if (p->data == a->room->block[block].data) block++;
  bytes *= (size_t)(height * width) * (size_t)channels;
  void *data = gb_workroom_get(a->room, block, bytes);
  if (!data) fail(a, GB_EMEMORY, "out of memory: %zu bytes were asked for", bytes);
  return data;
}

/* The result of fresh in the picture's place. */
static gb_status replace(gb_picture *p, int64_t height, int64_t width, void *data) {
  p->height = height, p->width = width, p->data = data;
  return GB_OK;
}

static gb_status poll(gb_applying *a) {
  return a->stop && gb_is_stopping(a->stop) ? fail(a, GB_EINTERRUPT, "interrupted") : GB_OK;
}

/* Cut 0 .. n - 1 into pieces, at .. end - 1, with a look for a stop before each. */
enum { PIECE_PIXELS = 1 << 16 };
#define PIECES(a, at, end, n)                                                                              \
  for (int64_t at = 0, end; at < (n); at = end)                                                            \
    if (end = (n) - at < PIECE_PIXELS ? (n) : at + PIECE_PIXELS, poll(a) != GB_OK) return GB_EINTERRUPT; \
    else

/* Do `what` to the image, and to the mask where there is one. */
#define BOTH(a, what)                                  \
  do {                                                 \
    gb_picture *p = &(a)->image;                       \
    GB_TRY(what);                                      \
    p = &(a)->mask;                                    \
    if (p->data) GB_TRY(what);                         \
  } while (0)

/* ====} */

/* {==== Cropping and resizing ==== */

/* i, reflected at 0 and at size - 1 until it lies between. */
static int64_t reflected(int64_t i, int64_t size) {
  int64_t period = 2 * (size - 1);
  if (size == 1) return 0;
  i %= period;
  if (i < 0) i += period;
  return i < size ? i : period - i;
}

/* The part at (top, left), which may lie partly or all outside: there pixels are fill, or reflected. */
static gb_status crop(gb_applying *a, gb_picture *p, int64_t top, int64_t left, int64_t height, int64_t width,
                      bool reflect, double fill) {
  int n = p->channels;
  uint8_t *made = fresh(a, p, height, width, n, 1), *to = made;
  const uint8_t *from = p->data;
  if (!made) return GB_EMEMORY;
  int value = is_mask(a, p) ? 0 : (int)fill;
  int64_t first = left < 0 ? -left : 0, end = p->width - left < width ? p->width - left : width;
  if (first > width) first = width;
  if (end < first) end = first;
  for (int64_t y = 0; y < height; y++, to += width * n) {
    if ((y & 63) == 0) GB_TRY(poll(a));
    int64_t row = reflect ? reflected(top + y, p->height) : top + y;
    if (row < 0 || row >= p->height) { memset(to, value, (size_t)(width * n)); continue; }
    const uint8_t *line = from + row * p->width * n;
    memcpy(to + first * n, line + (left + first) * n, (size_t)((end - first) * n));
    if (!reflect) {
      memset(to, value, (size_t)(first * n));
      memset(to + end * n, value, (size_t)((width - end) * n));
      continue;
    }
    for (int64_t x = 0; x < width; x++)
      if (x < first || x >= end) memcpy(to + x * n, line + reflected(left + x, p->width) * n, (size_t)n);
  }
  return replace(p, height, width, made);
}

/* The part of a picture that lies in it, resized: the mask by its nearest pixels. */
static gb_status resize(gb_applying *a, gb_picture *p, int64_t top, int64_t left, int64_t part_height,
                        int64_t part_width, int64_t height, int64_t width) {
  if (part_height == height && part_width == width && p->height == height && p->width == width) return GB_OK;
  gb_resize r = { p->data, p->width, p->channels, top, left, part_height, part_width,
                  fresh(a, p, height, width, p->channels, 1), height, width, a->stop };
  if (!r.to) return GB_EMEMORY;
  if (is_mask(a, p)) gb_resize_nearest(&r);
  else if (!gb_resize_bilinear(&r, a->room, SCRATCH)) return fail(a, GB_EMEMORY, "out of memory for resizing");
  GB_TRY(poll(a));
  return replace(p, height, width, r.to);
}

static gb_status do_random_crop(gb_applying *a, const gb_augment *s) {
  int64_t down = a->image.height + 2 * s->padding - s->height, across = a->image.width + 2 * s->padding - s->width;
  if (down < 0 || across < 0)
    return fail(a, GB_ESHAPE, "random_crop: %" PRId64 " x %" PRId64 " pixels (height x width) cannot be cut out of %"
                PRId64 " x %" PRId64 " with a padding of %" PRId64 "; resize first, or pad more", s->height, s->width,
                a->image.height, a->image.width, s->padding);
  int64_t top = below(a, down + 1) - s->padding, left = below(a, across + 1) - s->padding;
  BOTH(a, crop(a, p, top, left, s->height, s->width, s->reflect, s->fill));
  return GB_OK;
}

/* Where a part begins so that it lies in the middle: as torchvision pads and as Python rounds. */
static int64_t middle(int64_t size, int64_t part) {
  return part > size ? -((part - size) / 2) : (int64_t)nearbyint((double)(size - part) / 2);
}

static gb_status do_center_crop(gb_applying *a, const gb_augment *s) {
  int64_t top = middle(a->image.height, s->height), left = middle(a->image.width, s->width);
  BOTH(a, crop(a, p, top, left, s->height, s->width, false, 0));
  return GB_OK;
}

/* The size of the result: both sides are given, or the shorter one, and the other follows. */
static gb_status do_resize(gb_applying *a, const gb_augment *s) {
  int64_t h = a->image.height, w = a->image.width, height = s->height, width = s->width;
  if (!width && h <= w) width = (int64_t)((double)s->height * (double)w / (double)h);
  else if (!width) width = s->height, height = (int64_t)((double)s->height * (double)h / (double)w);
  BOTH(a, resize(a, p, 0, 0, p->height, p->width, height, width));
  return GB_OK;
}

/* A part of random area and shape (Szegedy et al. 2014); after ten that do not fit, the largest in the middle. */
static gb_status do_resized_crop(gb_applying *a, const gb_augment *s) {
  int64_t h = a->image.height, w = a->image.width, height = 0, width = 0, top = 0, left = 0;
  double area = (double)h * (double)w;
  for (int i = 0; i < 10 && !height; i++) {
    double target = area * between(a, s->scale), ratio = exp(between(a, (gb_range){ log(s->ratio.low),
                                                                                  log(s->ratio.high) }));
    int64_t across = (int64_t)nearbyint(sqrt(target * ratio)), down = (int64_t)nearbyint(sqrt(target / ratio));
    if (across < 1 || down < 1 || across > w || down > h) continue;
    height = down, width = across;
    top = below(a, h - height + 1), left = below(a, w - width + 1);
  }
  if (!height) {
    double ratio = (double)w / (double)h;
    height = h, width = w;
    if (ratio < s->ratio.low) height = (int64_t)nearbyint((double)w / s->ratio.low);
    else if (ratio > s->ratio.high) width = (int64_t)nearbyint((double)h * s->ratio.high);
    if (height < 1) height = 1;
    if (width < 1) width = 1;
    top = (h - height) / 2, left = (w - width) / 2;
  }
  BOTH(a, resize(a, p, top, left, height, width, s->height, s->width));
  return GB_OK;
}

/* A row of pixels of three bytes from its end: each moves as four bytes, of which the next one writes over the last,
 * but for the first and the last, whose fourth byte may lie outside. */
static void turn_row_of_3(const uint8_t *row, int64_t width, uint8_t *to) {
  memcpy(to, row + 3 * (width - 1), 3);
  for (int64_t x = 1; x < width - 1; x++) memcpy(to + 3 * x, row + 3 * (width - 1 - x), 4);
  memcpy(to + 3 * (width - 1), row, 3);
}

/* Turned round in place. */
static gb_status flip(gb_applying *a, gb_picture *p, bool vertical) {
  int n = p->channels;
  int64_t w = p->width;
  uint8_t *made = fresh(a, p, p->height, w, n, 1), *to = made;
  if (!made) return GB_EMEMORY;
  for (int64_t y = 0; y < p->height; y++) {
    if ((y & 63) == 0) GB_TRY(poll(a));
    const uint8_t *row = (const uint8_t *)p->data + (vertical ? p->height - 1 - y : y) * w * n;
    if (vertical) memcpy(to, row, (size_t)(w * n));
    else if (n == 3) turn_row_of_3(row, w, to);
    else for (int64_t x = 0; x < w; x++) to[x] = row[w - 1 - x];
    to += w * n;
  }
  return replace(p, p->height, w, made);
}

static gb_status do_flip(gb_applying *a, const gb_augment *s) {
  BOTH(a, flip(a, p, s->vertical));
  return GB_OK;
}

/* ====} */

/* {==== Warping ==== */

/* Where the pixels of a result come from: a map of the plane, or a field of displacements, from -1 .. 1 coordinates. */
typedef struct warp {
  float map[6];                        /* x' = map[0] x + map[1] y + map[2], from the middle, in pixels */
  const float *move_x, *move_y;        /* or these, NULL: none, of the image's size */
  bool bilinear;
  float fill;
} warp;

/* The pixel at (x, y) as F.grid_sample takes it: what lies outside counts as nothing, and as fill in what is mixed. */
static void sample(const gb_picture *p, float x, float y, const warp *w, uint8_t fill, uint8_t *to) {
  const uint8_t *from = p->data;
  int n = p->channels;
  if (!(x > -2 && y > -2 && x < (float)p->width + 1 && y < (float)p->height + 1)) {
    memset(to, fill, (size_t)n);
    return;
  }
  if (!w->bilinear) {
    int64_t column = (int64_t)nearbyintf(x), row = (int64_t)nearbyintf(y);
    bool inside = column >= 0 && row >= 0 && column < p->width && row < p->height;
    for (int c = 0; c < n; c++) to[c] = inside ? from[(row * p->width + column) * n + c] : fill;
    return;
  }
  int64_t left = (int64_t)floorf(x), top = (int64_t)floorf(y);
  float right = x - (float)left, down = y - (float)top, sum[3] = { 0 }, there = 0;
  const float share[4] = { (1 - right) * (1 - down), right * (1 - down), (1 - right) * down, right * down };
  for (int k = 0; k < 4; k++) {
    int64_t column = left + (k & 1), row = top + (k >> 1);
    if (column < 0 || row < 0 || column >= p->width || row >= p->height) continue;
    there += share[k];
    for (int c = 0; c < n; c++) sum[c] += share[k] * from[(row * p->width + column) * n + c];
  }
  for (int c = 0; c < n; c++) {
    float value = nearbyintf(sum[c] * there + (1 - there) * fill);
    to[c] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
  }
}

/* A warped picture, in coordinates as F.affine_grid and F.grid_sample (align_corners = false) compute them. */
static gb_status apply_warp(gb_applying *a, gb_picture *p, const warp *given) {
  warp w = *given;
  if (is_mask(a, p)) w.bilinear = false, w.fill = 0;
  float half_x = 0.5f * (float)p->width, half_y = 0.5f * (float)p->height, scaled[6];
  for (int i = 0; i < 6; i++) scaled[i] = w.map[i] / (i < 3 ? half_x : half_y);
  uint8_t *made = fresh(a, p, p->height, p->width, p->channels, 1), *to = made;
  if (!made) return GB_EMEMORY;
  for (int64_t y = 0; y < p->height; y++) {
    if ((y & 63) == 0) GB_TRY(poll(a));
    for (int64_t x = 0; x < p->width; x++, to += p->channels) {
      float gx, gy;
      if (w.move_x) {
        gx = (2 * (float)x + 1) / (float)p->width - 1 + w.move_x[y * p->width + x];
        gy = (2 * (float)y + 1) / (float)p->height - 1 + w.move_y[y * p->width + x];
      } else {
        float from_x = (float)x + 0.5f - half_x, from_y = (float)y + 0.5f - half_y;
        gx = from_x * scaled[0] + from_y * scaled[1] + scaled[2];
        gy = from_x * scaled[3] + from_y * scaled[4] + scaled[5];
      }
      sample(p, ((gx + 1) * (float)p->width - 1) * 0.5f, ((gy + 1) * (float)p->height - 1) * 0.5f, &w,
             (uint8_t)w.fill, to);
    }
  }
  return replace(p, p->height, p->width, made);
}

/* What torchvision calls an affine transformation: degrees, pixels; centre is from the middle of the image. */
typedef struct affine { double angle, move_x, move_y, scale, shear_x, shear_y, centre_x, centre_y; } affine;

/* Its inverse: where a pixel of the result comes from. */
static void invert(const affine *t, float *map) {
  double rotation = t->angle * PI / 180, sx = t->shear_x * PI / 180, sy = t->shear_y * PI / 180;
  double k = cos(rotation - sy) / cos(sy), l = sin(rotation - sy) / cos(sy);
  double m[6] = { -l * tan(sx) + cos(rotation), k * tan(sx) + sin(rotation), 0, -l, k, 0 };
  for (int i = 0; i < 6; i++) m[i] /= t->scale;
  m[2] = m[0] * (-t->centre_x - t->move_x) + m[1] * (-t->centre_y - t->move_y) + t->centre_x;
  m[5] = m[3] * (-t->centre_x - t->move_x) + m[4] * (-t->centre_y - t->move_y) + t->centre_y;
  for (int i = 0; i < 6; i++) map[i] = (float)m[i];
}

static gb_status do_affine_of(gb_applying *a, const affine *t, bool bilinear, double fill) {
  warp w = { .bilinear = bilinear, .fill = (float)fill };
  invert(t, w.map);
  BOTH(a, apply_warp(a, p, &w));
  return GB_OK;
}

static gb_status do_rotate(gb_applying *a, const gb_augment *s) {
  return do_affine_of(a, &(affine){ .angle = -between(a, s->degrees), .scale = 1 }, s->bilinear, s->fill);
}

static gb_status do_affine(gb_applying *a, const gb_augment *s) {
  affine t = { .angle = between(a, s->degrees) };
  t.move_x = nearbyint(between(a, s->move_x) * (double)a->image.width);
  t.move_y = nearbyint(between(a, s->move_y) * (double)a->image.height);
  t.scale = between(a, s->scale);
  t.shear_x = between(a, s->shear_x);
  t.shear_y = between(a, s->shear_y);
  return do_affine_of(a, &t, s->bilinear, s->fill);
}

/* One direction of a Gaussian blur, reflected at the edges: lines of n numbers, `step` apart, from `from` into `to`. */
static void blur_line(const float *from, float *to, int64_t n, int64_t step, const float *kernel, int64_t half) {
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
    for (int64_t k = -half; k <= half; k++) {
      int64_t at = i + k;
      sum += kernel[k + half] * from[(at >= 0 && at < n ? at : reflected(at, n)) * step];
    }
    to[i * step] = sum;
  }
}

/* A random field of displacements, smoothed (Simard et al. 2003): 4 sigma to each side, as torchvision has it. */
static gb_status do_elastic(gb_applying *a, const gb_augment *s) {
  int64_t h = a->image.height, w = a->image.width, n = h * w, half = (int64_t)(8 * s->sigma + 1) / 2;
  float *field = gb_workroom_get(a->room, FIELDS, sizeof *field * (size_t)(3 * n + 2 * half + 1));
  if (!field) return fail(a, GB_EMEMORY, "out of memory for the displacements of elastic");
  float *turn = field + 2 * n, *kernel = turn + n, total = 0;
  for (int64_t k = -half; k <= half; k++) {
    double x = (double)k / s->sigma;
    total += kernel[k + half] = (float)exp(-0.5 * x * x);
  }
  for (int64_t k = 0; k <= 2 * half; k++) kernel[k] /= total;
  for (int64_t i = 0; i < 2 * n; i++) {
    if ((i & 0xffff) == 0) GB_TRY(poll(a));
    field[i] = (float)(2 * draw(a) - 1);
  }
  for (int plane = 0; plane < 2; plane++) {
    float *at = field + plane * n, scale = (float)(s->alpha / (double)(plane ? w : h));
    for (int64_t y = 0; y < h; y++) {
      if ((y & 15) == 0) GB_TRY(poll(a));
      blur_line(at + y * w, turn + y * w, w, 1, kernel, half);
    }
    for (int64_t x = 0; x < w; x++) {
      if ((x & 15) == 0) GB_TRY(poll(a));
      blur_line(turn + x, at + x, h, w, kernel, half);
    }
    for (int64_t i = 0; i < n; i++) at[i] *= scale;
  }
  warp wp = { .move_x = field, .move_y = field + n, .bilinear = s->bilinear, .fill = (float)s->fill };
  BOTH(a, apply_warp(a, p, &wp));
  return GB_OK;
}

/* ====} */

/* {==== Colours ==== */

static uint8_t cut(float value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

static float gray_of(const uint8_t *p, int channels) {
  return channels == 1 ? p[0] : floorf(0.2989f * p[0] + 0.587f * p[1] + 0.114f * p[2]);
}

/* The image, to be written where it lies: what was given is not ours. NULL: the failure is written. */
static uint8_t *own(gb_applying *a) {
  gb_picture *p = &a->image;
  if (p->data == a->room->block[IMAGE_BLOCKS].data || p->data == a->room->block[IMAGE_BLOCKS + 1].data) return p->data;
  uint8_t *made = fresh(a, p, p->height, p->width, p->channels, 1);
  if (made) p->data = memcpy(made, p->data, (size_t)pixels_of(p) * (size_t)p->channels);
  return made;
}

/* ratio * x + (1 - ratio) * other, of every byte. */
static uint8_t blend(float x, float other, float ratio) { return cut(ratio * x + (1 - ratio) * other); }

static gb_status brighten(gb_applying *a, double factor) {
  uint8_t *p = own(a), made[256];
  if (!p) return GB_EMEMORY;
  for (int v = 0; v < 256; v++) made[v] = blend((float)v, 0, (float)factor);
  int64_t n = pixels_of(&a->image) * a->image.channels;
  PIECES(a, at, end, n) for (int64_t i = at; i < end; i++) p[i] = made[p[i]];
  return GB_OK;
}

static gb_status contrast(gb_applying *a, double factor) {
  int channels = a->image.channels;
  int64_t n = pixels_of(&a->image);
  uint8_t *p = own(a), made[256];
  double sum = 0;
  if (!p) return GB_EMEMORY;
  PIECES(a, at, end, n) for (int64_t i = at; i < end; i++) sum += gray_of(p + i * channels, channels);
  float mean = (float)(sum / (double)n);
  for (int v = 0; v < 256; v++) made[v] = blend((float)v, mean, (float)factor);
  PIECES(a, at, end, n * channels) for (int64_t i = at; i < end; i++) p[i] = made[p[i]];
  return GB_OK;
}

static gb_status saturate(gb_applying *a, double factor) {
  uint8_t *p = own(a);
  if (!p) return GB_EMEMORY;
  for (int64_t i = 0, n = a->image.channels == 3 ? pixels_of(&a->image) : 0; i < n; i++, p += 3) {
    if ((i & 0xffff) == 0) GB_TRY(poll(a));
    float gray = gray_of(p, 3);
    for (int c = 0; c < 3; c++) p[c] = blend(p[c], gray, (float)factor);
  }
  return GB_OK;
}

static float share(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

/* Turn the hue of one pixel, as _rgb2hsv and _hsv2rgb do. */
static void turn_hue(uint8_t *p, float turn) {
  float r = p[0] / 255.0f, g = p[1] / 255.0f, b = p[2] / 255.0f;
  float most = fmaxf(r, fmaxf(g, b)), least = fminf(r, fminf(g, b)), range = most - least;
  float s = range / (range == 0 ? 1 : most), d = range == 0 ? 1 : range;
  float rc = (most - r) / d, gc = (most - g) / d, bc = (most - b) / d;
  float sector = most == r ? bc - gc : most == g ? 2 + rc - bc : 4 + gc - rc;
  float h = fmodf(sector / 6 + 1, 1) + turn;
  h -= floorf(h);
  int i = (int)floorf(h * 6);
  float f = h * 6 - (float)i, v = most;
  float x = share(v * (1 - s)), q = share(v * (1 - s * f)), t = share(v * (1 - s * (1 - f)));
  const float wheel[6][3] = { { v, t, x }, { q, v, x }, { x, v, t }, { x, q, v }, { t, x, v }, { v, x, q } };
  for (int c = 0; c < 3; c++) p[c] = cut(wheel[i % 6][c] * (256 - 1e-3f));
}

static gb_status change_hue(gb_applying *a, double turn) {
  uint8_t *p = own(a);
  if (!p) return GB_EMEMORY;
  for (int64_t i = 0, n = a->image.channels == 3 ? pixels_of(&a->image) : 0; i < n; i++) {
    if ((i & 0xffff) == 0) GB_TRY(poll(a));
    turn_hue(p + 3 * i, (float)turn);
  }
  return GB_OK;
}

/* In a random order; what changes nothing is not done. */
static gb_status do_color_jitter(gb_applying *a, const gb_augment *s) {
  gb_status (*const change[4])(gb_applying *, double) = { brighten, contrast, saturate, change_hue };
  const gb_range range[4] = { s->brightness, s->contrast, s->saturation, s->hue };
  int order[4] = { 0, 1, 2, 3 };
  for (int i = 3; i > 0; i--) {
    int64_t other = below(a, i + 1);
    int moved = order[i];
    order[i] = order[other], order[other] = moved;
  }
  for (int i = 0; i < 4; i++) {
    int k = order[i];
    double factor = between(a, range[k]);
    if (factor != (k == 3 ? 0 : 1)) GB_TRY(change[k](a, factor));
  }
  return GB_OK;
}

static gb_status do_grayscale(gb_applying *a, const gb_augment *s) {
  (void)s;
  uint8_t *p = own(a);
  if (!p) return GB_EMEMORY;
  for (int64_t i = 0, n = a->image.channels == 3 ? pixels_of(&a->image) : 0; i < n; i++, p += 3) {
    if ((i & 0xffff) == 0) GB_TRY(poll(a));
    p[0] = p[1] = p[2] = (uint8_t)gray_of(p, 3);
  }
  return GB_OK;
}

static gb_status posterize(gb_applying *a, int64_t bits) {
  uint8_t *p = own(a), keep = (uint8_t)(0xff << (8 - bits));
  if (!p) return GB_EMEMORY;
  int64_t n = pixels_of(&a->image) * a->image.channels;
  PIECES(a, at, end, n) for (int64_t i = at; i < end; i++) p[i] &= keep;
  return GB_OK;
}

static gb_status solarize(gb_applying *a, double threshold) {
  uint8_t *p = own(a);
  if (!p) return GB_EMEMORY;
  int64_t n = pixels_of(&a->image) * a->image.channels;
  PIECES(a, at, end, n) for (int64_t i = at; i < end; i++) if (p[i] >= threshold) p[i] ^= 255;
  return GB_OK;
}

/* Blend with a blurred copy: the 3 x 3 mean in which the middle counts five times; edges stay. */
static gb_status sharpen(gb_applying *a, double factor) {
  gb_picture *p = &a->image;
  int n = p->channels;
  int64_t w = p->width * n;
  if (p->height < 3 || p->width < 3) return GB_OK;
  uint8_t *made = fresh(a, p, p->height, p->width, n, 1);
  const uint8_t *from = p->data;
  if (!made) return GB_EMEMORY;
  memcpy(made, from, (size_t)(p->height * w));
  for (int64_t y = 1; y < p->height - 1; y++) {
    if ((y & 63) == 0) GB_TRY(poll(a));
    for (int64_t x = n; x < w - n; x++) {
      const uint8_t *at = from + y * w + x;
      int sum = 4 * at[0];
      for (int row = -1; row <= 1; row++) sum += at[row * w - n] + at[row * w] + at[row * w + n];
      made[y * w + x] = blend(at[0], nearbyintf((float)sum / 13), (float)factor);
    }
  }
  return replace(p, p->height, p->width, made);
}

/* Put every byte of a channel through a table. */
static gb_status look_up(gb_applying *a, uint8_t *p, int c, const uint8_t *table) {
  int channels = a->image.channels;
  PIECES(a, at, end, pixels_of(&a->image))
    for (int64_t i = at; i < end; i++) p[i * channels + c] = table[p[i * channels + c]];
  return GB_OK;
}

static gb_status count_values(gb_applying *a, const uint8_t *p, int c, int64_t *count) {
  int channels = a->image.channels;
  memset(count, 0, 256 * sizeof *count);
  PIECES(a, at, end, pixels_of(&a->image)) for (int64_t i = at; i < end; i++) count[p[i * channels + c]]++;
  return GB_OK;
}

static gb_status stretch(gb_applying *a) {
  uint8_t *p = own(a), table[256];
  int64_t count[256];
  if (!p) return GB_EMEMORY;
  for (int c = 0; c < a->image.channels; c++) {
    int least = 0, most = 255;
    GB_TRY(count_values(a, p, c, count));
    while (!count[least]) least++;
    while (!count[most]) most--;
    float scale = most > least ? 255.0f / (float)(most - least) : 1;
    for (int v = 0; v < 256; v++) table[v] = most > least ? cut((float)(v - least) * scale) : (uint8_t)v;
    GB_TRY(look_up(a, p, c, table));
  }
  return GB_OK;
}

static gb_status equalize(gb_applying *a) {
  uint8_t *p = own(a), table[256];
  int64_t count[256];
  if (!p) return GB_EMEMORY;
  for (int c = 0; c < a->image.channels; c++) {
    int most = 255;
    GB_TRY(count_values(a, p, c, count));
    while (!count[most]) most--;
    int64_t step = (pixels_of(&a->image) - count[most]) / 255, sum = 0;
    if (!step) continue;
    for (int v = 0; v < 256; v++) {
      int64_t value = (sum + step / 2) / step;
      table[v] = v == 0 ? 0 : (uint8_t)(value > 255 ? 255 : value);
      sum += count[v];
    }
    GB_TRY(look_up(a, p, c, table));
  }
  return GB_OK;
}

static gb_status do_posterize(gb_applying *a, const gb_augment *s) { return posterize(a, s->bits); }
static gb_status do_solarize(gb_applying *a, const gb_augment *s) { return solarize(a, s->threshold); }
static gb_status do_sharpness(gb_applying *a, const gb_augment *s) { return sharpen(a, between(a, s->factor)); }
static gb_status do_autocontrast(gb_applying *a, const gb_augment *s) { return (void)s, stretch(a); }
static gb_status do_equalize(gb_applying *a, const gb_augment *s) { return (void)s, equalize(a); }

/* ====} */

/* {==== RandAugment (Cubuk et al. 2019), with torchvision's ranges ==== */

static gb_status shear(gb_applying *a, double x, double y, double fill) {
  affine t = { .scale = 1, .shear_x = atan(x) * 180 / PI, .shear_y = atan(y) * 180 / PI,
               .centre_x = -0.5 * (double)a->image.width, .centre_y = -0.5 * (double)a->image.height };
  return do_affine_of(a, &t, false, fill);
}

static gb_status shift(gb_applying *a, double x, double y, double fill) {
  return do_affine_of(a, &(affine){ .scale = 1, .move_x = trunc(x), .move_y = trunc(y) }, false, fill);
}

/* One of the fourteen, at a share of its greatest strength; those that have a direction go either way. */
static gb_status augment(gb_applying *a, int which, double strength, double fill) {
  double sign = which >= 1 && which <= 9 && happens(a, 0.5) ? -1 : 1, signed_strength = sign * strength;
  switch (which) {
    case 0: return GB_OK;
    case 1: return shear(a, 0.3 * signed_strength, 0, fill);
    case 2: return shear(a, 0, 0.3 * signed_strength, fill);
    case 3: return shift(a, 150.0 / 331 * (double)a->image.width * signed_strength, 0, fill);
    case 4: return shift(a, 0, 150.0 / 331 * (double)a->image.height * signed_strength, fill);
    case 5: return do_affine_of(a, &(affine){ .angle = -30 * signed_strength, .scale = 1 }, false, fill);
    case 6: return brighten(a, 1 + 0.9 * signed_strength);
    case 7: return saturate(a, 1 + 0.9 * signed_strength);
    case 8: return contrast(a, 1 + 0.9 * signed_strength);
    case 9: return sharpen(a, 1 + 0.9 * signed_strength);
    case 10: return posterize(a, 8 - (int64_t)nearbyint(4 * strength));
    case 11: return solarize(a, 255 * (1 - strength));
    case 12: return stretch(a);
    default: return equalize(a);
  }
}

static gb_status do_rand_augment(gb_applying *a, const gb_augment *s) {
  for (int64_t i = 0; i < s->count; i++) GB_TRY(augment(a, (int)below(a, 14), s->magnitude / 30, s->fill));
  return GB_OK;
}

/* ====} */

/* {==== Numbers ==== */

/* What to_float makes of a byte. */
static float float_of(int byte) { return (float)byte / 255.0f; }
/* What normalize makes of a number of channel c. */
static float normalized(const gb_augment *s, int c, float x) {
  if (s->channels == 1) c = 0;
  return (x - (float)s->mean[c]) / (float)s->std[c];
}

/* Bytes as floats, each channel by its table of 256; in the place that is asked for, if they fit there. */
static gb_status look_up_floats(gb_applying *a, const float (*value)[256]) {
  gb_picture *p = &a->image;
  int64_t n = pixels_of(p);
  bool fits = a->out && a->is_last && (size_t)n * (size_t)p->channels * sizeof(float) == a->out_bytes;
  float *made = fits ? a->out : fresh(a, p, p->height, p->width, p->channels, sizeof *made);
  const uint8_t *from = p->data;
  if (!made) return GB_EMEMORY;
  PIECES(a, at, end, n) {
    if (p->channels == 1) for (int64_t i = at; i < end; i++) made[i] = value[0][from[i]];
    else
      for (int64_t i = at; i < end; i++) {
        made[i] = value[0][from[3 * i]];
        made[n + i] = value[1][from[3 * i + 1]];
        made[2 * n + i] = value[2][from[3 * i + 2]];
      }
  }
  p->is_float = true;
  return replace(p, p->height, p->width, made);
}

static gb_status do_to_float(gb_applying *a, const gb_augment *s) {
  float value[3][256];
  (void)s;
  for (int v = 0; v < 256; v++) value[0][v] = value[1][v] = value[2][v] = float_of(v);
  return look_up_floats(a, value);
}

/* Floats, to be written where they lie. */
static float *own_floats(gb_applying *a) {
  gb_picture *p = &a->image;
  if (p->data == a->room->block[IMAGE_BLOCKS].data || p->data == a->room->block[IMAGE_BLOCKS + 1].data) return p->data;
  float *made = fresh(a, p, p->height, p->width, p->channels, sizeof *made);
  if (made) p->data = memcpy(made, p->data, sizeof *made * (size_t)pixels_of(p) * (size_t)p->channels);
  return made;
}

static gb_status do_normalize(gb_applying *a, const gb_augment *s) {
  int64_t n = pixels_of(&a->image);
  float *x = own_floats(a);
  if (!x) return GB_EMEMORY;
  if (s->channels != 1 && s->channels != a->image.channels)
    return fail(a, GB_ESHAPE, "normalize: mean and std are of %d channels, the image has %d", s->channels,
                a->image.channels);
  for (int c = 0; c < a->image.channels; c++, x += n)
    PIECES(a, at, end, n) for (int64_t i = at; i < end; i++) x[i] = normalized(s, c, x[i]);
  return GB_OK;
}

/* Fill a part of the image that may lie partly outside. */
static gb_status erase(gb_applying *a, int64_t top, int64_t left, int64_t height, int64_t width, double fill) {
  gb_picture *p = &a->image;
  void *data = p->is_float ? (void *)own_floats(a) : own(a);
  if (!data) return GB_EMEMORY;
  int64_t bottom = top + height < p->height ? top + height : p->height, right = left + width < p->width ? left + width
      : p->width;
  if (top < 0) top = 0;
  if (left < 0) left = 0;
  for (int c = 0; c < p->channels; c++)
    for (int64_t y = top; y < bottom; y++) {
      if ((y & 63) == 0) GB_TRY(poll(a));
      for (int64_t x = left; x < right; x++)
        if (p->is_float) ((float *)data)[(c * p->height + y) * p->width + x] = (float)fill;
        else ((uint8_t *)data)[(y * p->width + x) * p->channels + c] = cut((float)fill);
    }
  return GB_OK;
}

/* A square around a random pixel (DeVries, Taylor 2017). */
static gb_status do_cutout(gb_applying *a, const gb_augment *s) {
  int64_t y = below(a, a->image.height), x = below(a, a->image.width);
  return erase(a, y - s->height / 2, x - s->width / 2, s->height, s->width, s->fill);
}

/* A part of random area and shape (Zhong et al. 2017); nothing where ten in a row do not fit. */
static gb_status do_erase(gb_applying *a, const gb_augment *s) {
  int64_t h = a->image.height, w = a->image.width;
  for (int i = 0; i < 10; i++) {
    double target = (double)h * (double)w * between(a, s->scale);
    double ratio = exp(between(a, (gb_range){ log(s->ratio.low), log(s->ratio.high) }));
    int64_t down = (int64_t)nearbyint(sqrt(target * ratio)), across = (int64_t)nearbyint(sqrt(target / ratio));
    if (down >= h || across >= w) continue;
    int64_t top = below(a, h - down + 1), left = below(a, w - across + 1);
    return erase(a, top, left, down, across, s->fill);
  }
  return GB_OK;
}

/* ====} */

/* {==== Transforms ==== */

enum { BYTES, FLOATS, ANY };

static const struct {
  const char *name;
  int takes;
  gb_status (*apply)(gb_applying *a, const gb_augment *s);
} kinds[] = {
  [GB_AUGMENT_TO_FLOAT] = { "to_float", BYTES, do_to_float },
  [GB_AUGMENT_NORMALIZE] = { "normalize", FLOATS, do_normalize },
  [GB_AUGMENT_RANDOM_CROP] = { "random_crop", BYTES, do_random_crop },
  [GB_AUGMENT_CENTER_CROP] = { "center_crop", BYTES, do_center_crop },
  [GB_AUGMENT_RESIZE] = { "resize", BYTES, do_resize },
  [GB_AUGMENT_RESIZED_CROP] = { "resized_crop", BYTES, do_resized_crop },
  [GB_AUGMENT_FLIP] = { "flip", BYTES, do_flip },
  [GB_AUGMENT_ROTATE] = { "rotate", BYTES, do_rotate },
  [GB_AUGMENT_AFFINE] = { "affine", BYTES, do_affine },
  [GB_AUGMENT_COLOR_JITTER] = { "color_jitter", BYTES, do_color_jitter },
  [GB_AUGMENT_GRAYSCALE] = { "grayscale", BYTES, do_grayscale },
  [GB_AUGMENT_CUTOUT] = { "cutout", ANY, do_cutout },
  [GB_AUGMENT_ERASE] = { "random_erasing", ANY, do_erase },
  [GB_AUGMENT_ELASTIC] = { "elastic", BYTES, do_elastic },
  [GB_AUGMENT_RAND_AUGMENT] = { "rand_augment", BYTES, do_rand_augment },
  [GB_AUGMENT_POSTERIZE] = { "posterize", BYTES, do_posterize },
  [GB_AUGMENT_SOLARIZE] = { "solarize", BYTES, do_solarize },
  [GB_AUGMENT_SHARPNESS] = { "sharpness", BYTES, do_sharpness },
  [GB_AUGMENT_AUTOCONTRAST] = { "autocontrast", BYTES, do_autocontrast },
  [GB_AUGMENT_EQUALIZE] = { "equalize", BYTES, do_equalize },
};
_Static_assert(sizeof kinds / sizeof *kinds == GB_AUGMENT_KINDS, "every kind has its row");

const char *gb_augment_name(gb_augment_kind kind) { return kinds[kind].name; }
int64_t gb_transform_count(const gb_transform *transform) { return transform->count; }
gb_augment_kind gb_transform_kind(const gb_transform *transform, int64_t i) { return transform->step[i].kind; }

static gb_transform *transform_new(gb_context *context, int64_t count) {
  gb_transform *t = gb_counted_alloc(context, sizeof *t + (size_t)count * sizeof *t->step);
  if (!t) return NULL;
  atomic_init(&t->refs, 1);
  t->count = count;
  return t;
}

gb_status gb_transform_new(gb_context *context, const gb_augment *step, gb_transform **out) {
  gb_transform *t = transform_new(context, 1);
  if (!t) return context->error_code;
  t->step[0] = *step;
  *out = t;
  return GB_OK;
}

/* Are steps i and i + 1 to_float and a normalize that is always done? Then one table does both, in one pass. */
static bool are_one(const gb_transform *t, int64_t i) {
  const gb_augment *s = &t->step[i];
  return i + 1 < t->count && s[0].kind == GB_AUGMENT_TO_FLOAT && s[0].p >= 1 && s[1].kind == GB_AUGMENT_NORMALIZE &&
         s[1].p >= 1;
}

/* Make that table; there is one to_float at most. */
static void fill_values(gb_transform *t) {
  for (int64_t i = 0; i < t->count; i++)
    for (int k = 0; are_one(t, i) && k < 3 * 256; k++)
      t->value[k / 256][k % 256] = normalized(&t->step[i + 1], k / 256, float_of(k % 256));
}

/* Steps for bytes come before to_float, steps for floats behind it. */
static gb_status check_order(gb_context *context, const gb_transform *t) {
  int stage = ANY;
  for (int64_t i = 0; i < t->count; i++) {
    gb_augment_kind kind = t->step[i].kind;
    int takes = kinds[kind].takes;
    if (takes == FLOATS && stage == BYTES)
      return gb_fail(context, GB_EINVAL, "compose: %s works on floats; put to_float() before it", kinds[kind].name);
    if (kind == GB_AUGMENT_TO_FLOAT && stage == FLOATS)
      return gb_fail(context, GB_EINVAL, "compose: to_float() comes once, and before what works on floats (normalize)");
    if (takes == BYTES && stage == FLOATS)
      return gb_fail(context, GB_EINVAL, "compose: %s works on bytes; put it before to_float() and normalize()",
                     kinds[kind].name);
    if (takes != ANY) stage = takes;
    if (kind == GB_AUGMENT_TO_FLOAT) stage = FLOATS;
  }
  return GB_OK;
}

gb_status gb_transform_compose(gb_context *context, gb_transform *const *parts, int64_t count, gb_transform **out) {
  int64_t all = 0;
  for (int64_t i = 0; i < count && all <= MOST_STEPS; i++) all += parts[i]->count;
  if (!all || all > MOST_STEPS)
    return gb_fail(context, GB_EINVAL, "compose takes 1 to %d steps, not %s", MOST_STEPS, all ? "more" : "none");
  gb_transform *t = transform_new(context, all);
  if (!t) return context->error_code;
  gb_augment *to = t->step;
  for (int64_t i = 0; i < count; to += parts[i]->count, i++)
    memcpy(to, parts[i]->step, (size_t)parts[i]->count * sizeof *to);
  gb_status status = check_order(context, t);
  if (status == GB_OK) fill_values(t), *out = t;
  else gb_transform_release(t);
  return status;
}

void gb_transform_retain(gb_transform *t) { atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }

void gb_transform_release(gb_transform *t) {
  if (t && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) gb_counted_free(t);
}

gb_status gb_transform_apply(const gb_transform *t, gb_applying *a) {
  for (int64_t i = 0; i < t->count; i++) {
    const gb_augment *s = &t->step[i];
    a->step = (uint32_t)i;
    a->drawn = 0;
    GB_TRY(poll(a));
    if (kinds[s->kind].takes != ANY && (kinds[s->kind].takes == FLOATS) != a->image.is_float)
      return fail(a, GB_EDTYPE, "%s takes %s", kinds[s->kind].name, a->image.is_float ?
                  "bytes, uint8 [height, width, channels]: put it before to_float()" :
                  "float32 [channels, height, width]: put to_float() before it");
    if (s->p < 1 && !happens(a, s->p)) continue;
    bool one = are_one(t, i) && (s[1].channels == 1 || s[1].channels == a->image.channels);
    a->is_last = i + one == t->count - 1;
    GB_TRY(one ? look_up_floats(a, t->value) : kinds[s->kind].apply(a, s));
    i += one;
  }
  return GB_OK;
}

/* A tensor as a picture; the tensor is contiguous. */
static gb_status picture_of(gb_context *context, const gb_tensor *t, gb_picture *out) {
  bool is_float = t->dtype == GB_FLOAT32;
  if (t->ndim == 3 && (is_float || t->dtype == GB_UINT8))
    *out = (gb_picture){ t->shape[is_float], t->shape[1 + is_float], 0, is_float, gb_data(t) };
  int64_t channels = t->ndim == 3 ? t->shape[is_float ? 0 : 2] : 0;
  if (!out->data || (channels != 1 && channels != 3) || out->height < 1 || out->width < 1)
    return gb_fail(context, GB_ESHAPE, "an image is uint8 [height, width, 1 or 3] or float32 [1 or 3, height, width]; "
                   "got %s of %d dimensions and %" PRId64 " elements", gb_dtype_name((gb_dtype)t->dtype), t->ndim,
                   t->numel);
  out->channels = (int)channels;
  if (out->height <= GB_IMAGE_MOST_PIXELS / out->width) return GB_OK;
  return gb_fail(context, GB_ESHAPE, "an image has at most %" PRId64 " pixels", GB_IMAGE_MOST_PIXELS);
}

/* A new tensor of a picture. */
static gb_status tensor_of(gb_context *context, const gb_picture *p, int ndim, gb_tensor **out) {
  int64_t bytes_shape[3] = { p->height, p->width, p->channels }, floats_shape[3] = { p->channels, p->height,
                                                                                   p->width };
  GB_TRY(gb_tensor_new(context, p->is_float ? GB_FLOAT32 : GB_UINT8, ndim, p->is_float ? floats_shape : bytes_shape,
                       (gb_device){ GB_CPU, 0 }, out));
  memcpy(gb_data(*out), p->data, (size_t)(*out)->numel * (p->is_float ? sizeof(float) : 1));
  return GB_OK;
}

gb_status gb_transform_tensor(gb_context *context, const gb_transform *t, uint64_t seed, uint64_t epoch,
                              gb_tensor *image, gb_tensor *mask, gb_tensor **out_image, gb_tensor **out_mask) {
  char error[256] = "";
  gb_workroom room = { .budget = &context->budget };
  gb_applying a = { .room = &room, .stop = context, .seed = seed, .epoch = epoch, .error = error,
                    .error_size = sizeof error };
  GB_TRY(picture_of(context, image, &a.image));
  if (mask) {
    if (mask->ndim != 2 || mask->dtype != GB_UINT8 || mask->shape[0] != a.image.height
        || mask->shape[1] != a.image.width)
      return gb_fail(context, GB_ESHAPE, "the mask of an image of %" PRId64 " x %" PRId64 " is uint8 [height, width], "
                     "as large; got %s of %d dimensions", a.image.height, a.image.width,
                     gb_dtype_name((gb_dtype)mask->dtype), mask->ndim);
    a.mask = (gb_picture){ a.image.height, a.image.width, 1, false, gb_data(mask) };
  }
  gb_status status = gb_transform_apply(t, &a);
  if (status != GB_OK) gb_fail(context, status, "%s", error);
  if (status == GB_OK) status = tensor_of(context, &a.image, 3, out_image);
  if (status == GB_OK && mask) status = tensor_of(context, &a.mask, 2, out_mask);
  gb_workroom_clear(&room);
  return status;
}

/* ====} */
