/* data/resize.h - a part of an image of bytes made larger or smaller, as Pillow's Image.resize does with BILINEAR. */
#ifndef GB_DATA_RESIZE_H
#define GB_DATA_RESIZE_H

#include "base/workroom.h"

/* Rows from [height, width, channels], of which the part at (top, left) is resized into to [out_height, out_width,
 * channels]. Works in blocks `block` and block + 1 of the room. False: no memory. */
typedef struct gb_resize {
  const uint8_t *from;
  int64_t width;                       /* of a row of from, in pixels */
  int channels;
  int64_t top, left, height, width_of_part;
  uint8_t *to;
  int64_t out_height, out_width;
  const struct gb_context *stop;       /* when this context is stopping, the rest is left as it is; NULL: none */
} gb_resize;

bool gb_resize_bilinear(const gb_resize *r, gb_workroom *room, int block);
/* The same by the nearest pixel. */
void gb_resize_nearest(const gb_resize *r);

#endif
