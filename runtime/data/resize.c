/* data/resize.c - Pillow's resampling of bytes (libImaging/Resample.c) to the bit: weights of 22 bits, rows first, each
 * direction rounded to bytes. A result pixel is a mean over all that its triangle covers, so that nothing is lost when
 * an image becomes smaller. */
#include "data/resize.h"

#include <math.h>

#include "tensor/context.h"

#define WEIGHT_BITS 22

/* The weights of one direction: result i is the sum over pixels first[i] .. first[i] + taps - 1. Where fewer count the
 * others' weights are 0, so that all sums are of one length. */
typedef struct weights { int64_t *first; int32_t *weight; int64_t taps; } weights;

static size_t weights_bytes(int64_t in, int64_t out, int64_t *taps) {
  double scale = (double)in / (double)out;
  *taps = (int64_t)(2 * (scale < 1 ? 1 : scale)) + 1;
  if (*taps > in) *taps = in;
  return (size_t)out * (sizeof(int64_t) + (size_t)*taps * sizeof(int32_t));
}

static void fill_weights(weights *w, int64_t in, int64_t out) {
  double scale = (double)in / (double)out, stretch = scale < 1 ? 1 : scale;
  for (int64_t i = 0; i < out; i++) {
    double centre = ((double)i + 0.5) * scale, total = 0;
    int64_t first = (int64_t)(centre - stretch + 0.5), end = (int64_t)(centre + stretch + 0.5);
    if (first < 0) first = 0;
    if (end > in) end = in;
    w->first[i] = first + w->taps <= in ? first : in - w->taps;
    int32_t *weight = w->weight + i * w->taps - w->first[i];
    for (int64_t k = 0; k < w->taps; k++) weight[w->first[i] + k] = 0;
    for (int pass = 0; pass < 2; pass++)
      for (int64_t k = first; k < end; k++) {
        double x = fabs(((double)k - centre + 0.5) / stretch), value = x < 1 ? 1 - x : 0;
        if (!pass) total += value;
        else weight[k] = (int32_t)(0.5 + value / total * (1 << WEIGHT_BITS));
      }
  }
}

/* Weights of one direction, in memory that has room for them. */
static weights weights_at(void *memory, int64_t in, int64_t out) {
  weights w;
  weights_bytes(in, out, &w.taps);
  w.first = memory;
  w.weight = (int32_t *)(w.first + out);
  fill_weights(&w, in, out);
  return w;
}

static uint8_t rounded(int32_t sum) {
  int32_t value = sum >> WEIGHT_BITS;
  return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

enum { HALF = 1 << (WEIGHT_BITS - 1) };

/* One row of colours. */
static void row_of_3(const uint8_t *from, const weights *w, int64_t out, uint8_t *to) {
  for (int64_t x = 0; x < out; x++, to += 3) {
    const uint8_t *p = from + 3 * w->first[x];
    const int32_t *weight = w->weight + x * w->taps;
    int32_t red = HALF, green = HALF, blue = HALF;
    for (int64_t k = 0; k < w->taps; k++, p += 3) {
      red += p[0] * weight[k];
      green += p[1] * weight[k];
      blue += p[2] * weight[k];
    }
    to[0] = rounded(red), to[1] = rounded(green), to[2] = rounded(blue);
  }
}

static void row_of_1(const uint8_t *from, const weights *w, int64_t out, uint8_t *to) {
  for (int64_t x = 0; x < out; x++) {
    const uint8_t *p = from + w->first[x];
    const int32_t *weight = w->weight + x * w->taps;
    int32_t sum = HALF;
    for (int64_t k = 0; k < w->taps; k++) sum += p[k] * weight[k];
    to[x] = rounded(sum);
  }
}

/* A piece of a row of the result at a time: sums that stay in registers. */
static void columns(const uint8_t *from, int64_t row_bytes, const int32_t *weight, int64_t count, int64_t bytes,
                    uint8_t *to) {
  enum { PIECE = 32 };
  for (int64_t x = 0; x < bytes; x += PIECE) {
    int32_t sum[PIECE];
    int n = bytes - x < PIECE ? (int)(bytes - x) : PIECE;
    for (int i = 0; i < PIECE; i++) sum[i] = HALF;
    for (int64_t k = 0; k < count; k++) {
      const uint8_t *p = from + k * row_bytes + x;
      if (n == PIECE) for (int i = 0; i < PIECE; i++) sum[i] += p[i] * weight[k];
      else for (int i = 0; i < n; i++) sum[i] += p[i] * weight[k];
    }
    for (int i = 0; i < n; i++) to[x + i] = rounded(sum[i]);
  }
}

/* Looked at every few rows. */
static bool stops(const gb_resize *r, int64_t y) { return (y & 15) == 0 && r->stop && gb_is_stopping(r->stop); }

bool gb_resize_bilinear(const gb_resize *r, gb_workroom *room, int block) {
  int64_t taps, row_bytes = r->out_width * r->channels;
  size_t across = weights_bytes(r->width_of_part, r->out_width, &taps), down = weights_bytes(r->height, r->out_height,
                                                                                             &taps);
  uint8_t *rows = gb_workroom_get(room, block, (size_t)(r->height * row_bytes));
  void *memory = gb_workroom_get(room, block + 1, across > down ? across : down);
  if (!rows || !memory) return false;
  weights w = weights_at(memory, r->width_of_part, r->out_width);
  for (int64_t y = 0; y < r->height; y++) {
    if (stops(r, y)) return true;
    const uint8_t *from = r->from + ((r->top + y) * r->width + r->left) * r->channels;
    if (r->channels == 3) row_of_3(from, &w, r->out_width, rows + y * row_bytes);
    else row_of_1(from, &w, r->out_width, rows + y * row_bytes);
  }
  w = weights_at(memory, r->height, r->out_height);
  for (int64_t y = 0; y < r->out_height; y++) {
    if (stops(r, y)) return true;
    columns(rows + w.first[y] * row_bytes, row_bytes, w.weight + y * w.taps, w.taps, row_bytes,
            r->to + y * row_bytes);
  }
  return true;
}

void gb_resize_nearest(const gb_resize *r) {
  uint8_t *to = r->to;
  for (int64_t y = 0; y < r->out_height && !stops(r, y); y++) {
    int64_t row = r->top + (int64_t)(((double)y + 0.5) * (double)r->height / (double)r->out_height);
    for (int64_t x = 0; x < r->out_width; x++) {
      int64_t column = r->left + (int64_t)(((double)x + 0.5) * (double)r->width_of_part / (double)r->out_width);
      const uint8_t *from = r->from + (row * r->width + column) * r->channels;
      for (int c = 0; c < r->channels; c++) *to++ = from[c];
    }
  }
}
