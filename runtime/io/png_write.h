/* io/png_write.h - pictures as PNG, by libpng; without it (no GB_HAVE_PNG) every call says that it is missing. */
#ifndef GB_IO_PNG_WRITE_H
#define GB_IO_PNG_WRITE_H

#include "tensor/context.h"

/* The sides of a picture, at most: what readers take too. */
enum { GB_PNG_MOST_SIDE = 65535 };

/* Pixels in rows from the top, `channels` bytes each: 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA. The PNG is counted
 * memory of the context; the caller ends it by gb_counted_free. */
gb_status gb_png_encode(gb_context *context, const uint8_t *pixels, int64_t width, int64_t height, int channels,
                        uint8_t **data, size_t *bytes);
/* The same to a file, which appears whole or not at all. */
gb_status gb_png_save(gb_context *context, const char *path, const uint8_t *pixels, int64_t width, int64_t height,
                      int channels);

#endif
