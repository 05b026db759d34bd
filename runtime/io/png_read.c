/* io/png_read.c - PNG files, by libpng: every colour type, depth and interlacing.
 *
 * As Pillow's convert() makes them: alpha and tRNS are left out, 16 bits of colour become their upper 8, 16 bits of
 * gray are clipped at 255. libpng jumps back on an error to where it was called, in this file; its memory is
 * counted. */
#include "io/image.h"

#ifdef GB_HAVE_PNG

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

typedef struct reading {
  gb_decoding *d;
  png_structp png;
  png_infop info;
  size_t at;                         /* bytes that were read */
} reading;

/* What stands before memory of libpng. */
typedef struct head { _Alignas(max_align_t) size_t bytes; } head;

static png_voidp take(png_structp png, png_alloc_size_t bytes) {
  gb_budget *budget = ((reading *)png_get_mem_ptr(png))->d->room->budget;
  if (bytes > SIZE_MAX / 2 || !gb_budget_take(budget, bytes + sizeof(head))) return NULL;
  head *block = malloc(bytes + sizeof *block);
  if (!block) return gb_budget_give_back(budget, bytes + sizeof(head)), NULL;
  block->bytes = bytes + sizeof *block;
  return block + 1;
}

static void give_back(png_structp png, png_voidp block) {
  head *h = block ? (head *)block - 1 : NULL;
  if (!h) return;
  gb_budget_give_back(((reading *)png_get_mem_ptr(png))->d->room->budget, h->bytes);
  free(h);
}

static void on_error(png_structp png, png_const_charp text) {
  reading *r = png_get_error_ptr(png);
  if (r->d->status == GB_OK)
    gb_decoding_fail(r->d, strstr(text, "memory") ? GB_EMEMORY : GB_EFORMAT, "the PNG is damaged near byte %zu of %zu: "
                     "%s; copy it again, or save it anew with another program", r->at, r->d->bytes, text);
  png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

static void on_read(png_structp png, png_bytep to, size_t bytes) {
  reading *r = png_get_io_ptr(png);
  if (bytes > r->d->bytes - r->at) {
    gb_decoding_fail(r->d, GB_EFORMAT, "the PNG ends at byte %zu, before its image does; copy it again", r->d->bytes);
    png_error(png, "cut off");
  }
  memcpy(to, r->d->data + r->at, bytes);
  r->at += bytes;
}

/* All passes of all rows, as libpng gives them, into the image found. */
static void read_rows(reading *r, size_t row_bytes) {
  int passes = png_set_interlace_handling(r->png);
  png_read_update_info(r->png, r->info);
  for (int pass = 0; pass < passes; pass++)
    for (int64_t y = 0; y < r->d->found.height; y++) {
      if (r->d->stop && (y & 63) == 0 && gb_is_stopping(r->d->stop)) {
        gb_decoding_fail(r->d, GB_EINTERRUPT, "interrupted");
        png_error(r->png, "interrupted");
      }
      png_read_row(r->png, r->d->found.pixels + (size_t)y * row_bytes, NULL);
    }
}

/* Colours in place of indices; from the end, since they are longer. What the palette lacks is black. */
static void look_up(gb_image *image, const png_color *palette, int colours) {
  for (int64_t i = image->height * image->width - 1; i >= 0; i--) {
    int c = image->pixels[i];
    png_color colour = c < colours ? palette[c] : (png_color){ 0, 0, 0 };
    uint8_t *to = image->pixels + 3 * i;
    to[0] = colour.red, to[1] = colour.green, to[2] = colour.blue;
  }
}

/* 16 bits of gray, of which what is above 255 becomes 255. */
static void clip(gb_image *image) {
  for (int64_t i = 0, n = image->height * image->width; i < n; i++)
    image->pixels[i] = image->pixels[2 * i] ? 255 : image->pixels[2 * i + 1];
}

static void decode(reading *r) {
  png_uint_32 width, height;
  int depth, type, colours = 0;
  png_colorp palette = NULL;
  png_bytep exif;
  png_uint_32 exif_bytes;
  png_read_info(r->png, r->info);
  png_get_IHDR(r->png, r->info, &width, &height, &depth, &type, NULL, NULL, NULL);
  bool indexed = type == PNG_COLOR_TYPE_PALETTE, wide = type == PNG_COLOR_TYPE_GRAY && depth == 16;
  bool to_colours = indexed && r->d->mode != GB_IMAGE_INDEX;
  int channels = type & PNG_COLOR_MASK_COLOR && (!indexed || to_colours) ? 3 : 1;
  if (!gb_decoding_room(r->d, height, width, channels, wide ? 2 : 1)) png_error(r->png, "too large");
  if (indexed) png_set_packing(r->png);
  else if (depth < 8) png_set_expand_gray_1_2_4_to_8(r->png);
  if (depth == 16 && !wide) png_set_strip_16(r->png);
  if (type & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(r->png);
  read_rows(r, (size_t)width * (size_t)(indexed ? 1 : channels) * (wide ? 2 : 1));
  png_read_end(r->png, r->info);
  if (to_colours) {
    png_get_PLTE(r->png, r->info, &palette, &colours);
    look_up(&r->d->found, palette, colours);
  }
  if (wide) clip(&r->d->found);
  if (png_get_eXIf_1(r->png, r->info, &exif_bytes, &exif)) r->d->orientation = gb_exif_orientation(exif, exif_bytes);
}

gb_status gb_png_decode(gb_decoding *d) {
  reading r = { .d = d };
  r.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning, &r, take, give_back);
  r.info = r.png ? png_create_info_struct(r.png) : NULL;
  if (!r.info) gb_decoding_fail(d, GB_EMEMORY, "out of memory for a decoder of PNG");
  else if (!setjmp(png_jmpbuf(r.png))) {
    png_set_read_fn(r.png, &r, on_read);
    png_set_user_limits(r.png, (png_uint_32)GB_IMAGE_MOST_PIXELS, (png_uint_32)GB_IMAGE_MOST_PIXELS);
    decode(&r);
  }
  png_destroy_read_struct(&r.png, &r.info, NULL);
  return d->status;
}

#else

gb_status gb_png_decode(gb_decoding *d) {
  return gb_decoding_fail(d, GB_EUNSUPPORTED, "this build reads no PNG files: install libpng-dev and build again with "
                          "GIBBOUS_IMAGES=ON");
}

#endif
