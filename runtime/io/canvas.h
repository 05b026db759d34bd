/* io/canvas.h - a picture to draw on: antialiased lines, boxes, text and smaller pictures, in 8-bit RGB.
 *
 * Coordinates are pixels from the upper left corner; the middle of the first pixel is (0.5, 0.5). What lies outside the
 * clip box is not drawn. The font is a table of strokes (font.h), so text has any size, and a quarter turn to the
 * left. Blending is in the stored values, without gamma. */
#ifndef GB_IO_CANVAS_H
#define GB_IO_CANVAS_H

#include "tensor/context.h"

enum { GB_CANVAS_MOST_SIDE = 8192 };

typedef struct gb_canvas gb_canvas;
typedef struct gb_ink { uint8_t red, green, blue; double alpha; } gb_ink;

/* White. */
gb_status gb_canvas_open(gb_context *context, int width, int height, gb_canvas **out);
void gb_canvas_close(gb_canvas *canvas);           /* NULL is fine */
void gb_canvas_clip(gb_canvas *canvas, double left, double top, double right, double bottom);
/* A line through n points (x, y), with round joins and ends. One point is a disc. */
gb_status gb_canvas_stroke(gb_canvas *canvas, const double *points, size_t n, double width, gb_ink ink);
void gb_canvas_fill(gb_canvas *canvas, double left, double top, double right, double bottom, gb_ink ink);
/* UTF-8 from (x, y) on, the left end of the base line; size is that of an em. turned: upwards. */
gb_status gb_canvas_text(gb_canvas *canvas, double x, double y, double size, bool turned, const char *text,
                         gb_ink ink);
double gb_canvas_text_width(const char *text, double size);
/* RGB pixels into a box, each the nearest one. */
void gb_canvas_image(gb_canvas *canvas, double left, double top, double right, double bottom, const uint8_t *pixels,
                     int width, int height);
/* The picture as the escape sequence of terminals that speak sixel, in 216 colors; or in kitty's protocol, as a PNG in
 * base 64. Counted memory, which the caller ends by gb_counted_free. */
gb_status gb_canvas_sixel(gb_canvas *canvas, char **text, size_t *bytes);
gb_status gb_canvas_kitty(gb_canvas *canvas, char **text, size_t *bytes);
const uint8_t *gb_canvas_pixels(const gb_canvas *canvas, int *width, int *height);

#endif
