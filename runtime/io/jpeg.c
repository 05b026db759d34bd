/* io/jpeg.c - JPEG files, by libjpeg-turbo: baseline, progressive, gray, YCbCr, RGB, CMYK and YCCK.
 *
 * libjpeg's handler of errors ends the process. Here it jumps back to where the library was called, in this file: all
 * that a call keeps lies in the struct, and nothing of ours is left between the jump and its target. What libjpeg calls
 * a warning is an error where it means that pixels are lost. */
#include "io/image.h"

#ifdef GB_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* Of a progressive file; more only cost time (each goes over the whole image). Those that are meant have about ten. */
#define MOST_SCANS 200

typedef struct jpeg {
  struct jpeg_decompress_struct c;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf out;
  gb_decoding *d;                    /* of the call that runs */
  bool made;
} jpeg;

static jpeg *jpeg_of(j_common_ptr c) { return c->client_data; }

/* Byte of the file where the library stands. */
static size_t place(const jpeg *j) { return j->d->bytes - j->source.bytes_in_buffer; }

static void leave(jpeg *j, gb_status status, const char *text) {
  if (status == GB_EFORMAT)
    gb_decoding_fail(j->d, status, "the JPEG is damaged near byte %zu of %zu: %s; copy it again, or save it anew with "
                     "another program", place(j), j->d->bytes, text);
  else gb_decoding_fail(j->d, status, "%s", text);
  longjmp(j->out, 1);
}

static void on_error(j_common_ptr c) {
  char text[JMSG_LENGTH_MAX];
  c->err->format_message(c, text);
  leave(jpeg_of(c), c->err->msg_code == JERR_OUT_OF_MEMORY ? GB_EMEMORY : GB_EFORMAT, text);
}

/* level -1: a warning. */
static void on_message(j_common_ptr c, int level) {
  static const int lost[] = { JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE, JWRN_JPEG_EOF,
                              JWRN_MUST_RESYNC };
  for (size_t i = 0; level < 0 && i < sizeof lost / sizeof *lost; i++)
    if (c->err->msg_code == lost[i]) on_error(c);
}

static void on_output(j_common_ptr c) { (void)c; }
static void source_begin(j_decompress_ptr c) { (void)c; }

static boolean source_fill(j_decompress_ptr c) {
  jpeg *j = jpeg_of((j_common_ptr)c);
  gb_decoding_fail(j->d, GB_EFORMAT, "the JPEG ends at byte %zu, before its image does; copy it again", j->d->bytes);
  longjmp(j->out, 1);
}

static void source_skip(j_decompress_ptr c, long count) {
  if (count <= 0) return;
  if ((size_t)count > c->src->bytes_in_buffer) source_fill(c);
  c->src->next_input_byte += count;
  c->src->bytes_in_buffer -= (size_t)count;
}

/* Called for every row of blocks. */
static void on_progress(j_common_ptr c) {
  jpeg *j = jpeg_of(c);
  if (j->d->stop && gb_is_stopping(j->d->stop)) leave(j, GB_EINTERRUPT, "interrupted");
  if (j->c.input_scan_number > MOST_SCANS) leave(j, GB_EFORMAT, "it has more than 200 scans");
}

/* Make the library's struct, once for each decoder. */
static void make(jpeg *j) {
  if (j->made) return;
  j->c.err = jpeg_std_error(&j->errors);
  j->errors.error_exit = on_error;
  j->errors.emit_message = on_message;
  j->errors.output_message = on_output;
  j->c.client_data = j;
  if (setjmp(j->out)) return;
  jpeg_create_decompress(&j->c);
  j->source = (struct jpeg_source_mgr){ .init_source = source_begin, .fill_input_buffer = source_fill,
                                        .skip_input_data = source_skip, .resync_to_restart = jpeg_resync_to_restart,
                                        .term_source = source_begin };
  j->c.src = &j->source;
  j->progress.progress_monitor = on_progress;
  j->made = true;
}

/* The orientation, from the first EXIF block before the image. Found here and not by libjpeg's saved markers, whose
 * memory a file of nothing but markers makes ten times its size. The header was read, so lengths make sense. */
static int find_orientation(const gb_decoding *d) {
  enum { APP1 = 0xe1, SOS = 0xda };
  const uint8_t *at = d->data + 2, *end = d->data + d->bytes;
  while (end - at >= 4 && at[0] == 0xff && at[1] != SOS) {
    if (at[1] == 0xff) { at++; continue; } /* filling */
    size_t length = (size_t)at[2] << 8 | at[3];
    if (length < 2 || (size_t)(end - at) < 2 + length) return 1;
    if (at[1] == APP1 && length > 8 && !memcmp(at + 4, "Exif\0\0", 6)) return gb_exif_orientation(at + 10, length - 8);
    at += 2 + length;
  }
  return 1;
}

/* Count what the library will take: rows of blocks, and all coefficients where scans come one over the other. */
static void count_memory(jpeg *j) {
  uint64_t width = j->c.image_width + 64u, height = j->c.image_height + 64u, comps = (uint64_t)j->c.num_components;
  uint64_t bytes = width * comps * 64 + j->d->bytes;
  if (jpeg_has_multiple_scans(&j->c)) bytes += width * height * comps * sizeof(JCOEF);
  if (!gb_budget_take(j->d->room->budget, bytes)) leave(j, GB_EMEMORY, "out of memory for the coefficients of a JPEG");
  j->d->counted = bytes;
}

/* libImaging/Convert.c, cmyk2rgb: files of Adobe's programs, which are all that there are, hold inverted values. */
static void rgb_of_cmyk(const uint8_t *from, int64_t width, uint8_t *to) {
  for (int64_t x = 0; x < width; x++, from += 4, to += 3)
    for (int c = 0; c < 3; c++) {
      unsigned product = (255u - from[c]) * from[3] + 128, part = ((product >> 8) + product) >> 8;
      to[c] = part > from[3] ? 0 : (uint8_t)(from[3] - part);
    }
}

/* Every row, into the image found. */
static void read_rows(jpeg *j) {
  gb_image *image = &j->d->found;
  int64_t row_bytes = image->width * image->channels;
  while (j->c.output_scanline < j->c.output_height) {
    uint8_t *row = image->pixels + (int64_t)j->c.output_scanline * row_bytes;
    JDIMENSION left = j->c.output_height - j->c.output_scanline, count = left < 4 ? left : 4;
    JSAMPROW rows[4];
    for (JDIMENSION i = 0; i < count; i++) rows[i] = row + (int64_t)i * row_bytes;
    if (j->c.output_components != 4) {
      jpeg_read_scanlines(&j->c, rows, count);
      continue;
    }
    rows[0] = gb_workroom_get(j->d->room, GB_IMAGE_ROW, (size_t)image->width * 4);
    if (!rows[0]) leave(j, GB_EMEMORY, "out of memory for a row of a JPEG");
    jpeg_read_scanlines(&j->c, rows, 1);
    rgb_of_cmyk(rows[0], image->width, row);
  }
}

static void decode(jpeg *j) {
  j->c.progress = &j->progress;
  j->source.next_input_byte = j->d->data;
  j->source.bytes_in_buffer = j->d->bytes;
  jpeg_read_header(&j->c, TRUE);
  int channels = j->c.num_components;
  if (channels != 1 && channels != 3 && channels != 4) leave(j, GB_EFORMAT, "it has neither 1, 3 nor 4 channels");
  j->c.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  j->d->orientation = find_orientation(j->d);
  if (!gb_decoding_room(j->d, j->c.image_height, j->c.image_width, channels == 1 ? 1 : 3, 1)) longjmp(j->out, 1);
  count_memory(j);
  jpeg_start_decompress(&j->c);
  read_rows(j);
}

gb_status gb_jpeg_decode(void **state, gb_decoding *d) {
  jpeg *const j = *state ? *state : (*state = calloc(1, sizeof *j));
  if (j) j->d = d, make(j);
  if (!j || !j->made) return gb_decoding_fail(d, GB_EMEMORY, "out of memory for a decoder of JPEG");
  if (!setjmp(j->out)) decode(j);
  jpeg_abort_decompress(&j->c); /* gives the memory of this image back, whether it was read or not */
  gb_budget_give_back(d->room->budget, d->counted);
  return d->status;
}

void gb_jpeg_close(void *state) {
  jpeg *j = state;
  if (j && j->made) jpeg_destroy_decompress(&j->c);
  free(j);
}

#else

gb_status gb_jpeg_decode(void **state, gb_decoding *d) {
  (void)state;
  return gb_decoding_fail(d, GB_EUNSUPPORTED, "this build reads no JPEG files: install libjpeg62-turbo-dev and build "
                          "again with GIBBOUS_IMAGES=ON");
}

void gb_jpeg_close(void *state) { (void)state; }

#endif
