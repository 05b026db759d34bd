/* io/image.h - images in files: JPEG and PNG as rows of bytes, as Pillow reads them.
 *
 * A decoder belongs to one thread at a time and is used again for image after image. It looks at nothing of the context
 * but its budget, and its wish to stop where it is told so; failures are texts without the name of the file. */
#ifndef GB_IO_IMAGE_H
#define GB_IO_IMAGE_H

#include "base/workroom.h"
#include "tensor/context.h"

#define GB_IMAGE_MOST_PIXELS ((int64_t)178956970) /* Pillow turns down more as a bomb: twice its MAX_IMAGE_PIXELS */

/* What a pixel becomes: red, green and blue; its luma; or the number it has in the palette, and luma where there is no
 * palette. */
typedef enum gb_image_mode { GB_IMAGE_RGB, GB_IMAGE_GRAY, GB_IMAGE_INDEX } gb_image_mode;

/* pixels: [height, width, channels]; of the decoder, until its next image. */
typedef struct gb_image { int64_t height, width; int channels; uint8_t *pixels; } gb_image;

typedef struct gb_image_decoder gb_image_decoder;

/* NULL: no memory. The budget outlives it. */
gb_image_decoder *gb_image_decoder_open(gb_budget *budget);
void gb_image_decoder_close(gb_image_decoder *decoder);       /* NULL is fine */

/* Decode a whole file and turn it upright as its EXIF data says. stop: NULL, or the context whose wish to stop ends
 * it. */
gb_status gb_image_decode(gb_image_decoder *decoder, const gb_context *stop, const void *data, size_t bytes,
                          gb_image_mode mode, gb_image *out, char *error, size_t error_size);

/* An image file as a new tensor uint8 [height, width, 3 or 1]; the name of data is for errors. */
gb_status gb_image_read(gb_context *context, const void *data, size_t bytes, const char *name, gb_image_mode mode,
                        gb_tensor **out);

/* {==== For the formats: jpeg.c, png_read.c ==== */

enum { GB_IMAGE_RAW, GB_IMAGE_MADE, GB_IMAGE_ROW };           /* blocks of the room */

/* One image that is decoded. found is what the file holds, before it is turned and made what was asked for. */
typedef struct gb_decoding {
  gb_workroom *room;
  const gb_context *stop;
  const uint8_t *data;
  size_t bytes, counted;             /* counted: bytes of the format's library, towards the budget */
  gb_image_mode mode;
  gb_image found;
  int orientation;                   /* as EXIF has it, 1: upright */
  gb_status status;
  char *error;
  size_t error_size;
} gb_decoding;

/* Write the failure; gives the status. */
gb_status gb_decoding_fail(gb_decoding *d, gb_status status, const char *format, ...) GB_PRINTF(3, 4);
/* See that so many pixels may be, and make room for them: false: they may not be, the failure is written. */
bool gb_decoding_room(gb_decoding *d, uint64_t height, uint64_t width, int channels, size_t sample_bytes);
/* The orientation in EXIF data that begins with its TIFF header; 1 where it has none. */
int gb_exif_orientation(const uint8_t *tiff, size_t bytes);

/* *state: of the decoder, NULL at first, and released by gb_jpeg_close. */
gb_status gb_jpeg_decode(void **state, gb_decoding *d);
void gb_jpeg_close(void *state);
gb_status gb_png_decode(gb_decoding *d);

/* ====} */

#endif
