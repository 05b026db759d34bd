/* data/idx.c - reads idx files through zlib, which passes plain files on as they are, and makes a dataset of images and
 * labels.
 *
 * Memory grows with what the file really holds, not with what its header claims; a file that ends early, goes on, or
 * fails its checksum is GB_EFORMAT. Layout: two zero bytes, a type, a rank, a 32-bit big-endian size per dimension, the
 * elements, big-endian. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "data/readers.h"
#include "io/file.h"

#define FIRST_READ ((size_t)1 << 20)
#define BYTES_MOST ((size_t)1 << 40)

/* The element types of the format that the engine has. */
static const struct { unsigned char code; gb_dtype dtype; } types[] = {
  { 0x08, GB_UINT8 }, { 0x0c, GB_INT32 }, { 0x0d, GB_FLOAT32 }, { 0x0e, GB_FLOAT64 },
};

/* Exactly so many bytes, or a failure that says which. */
static gb_status read_bytes(gb_context *context, gzFile file, const char *path, void *to, size_t bytes) {
  char *at = to;
  int64_t work = 0;
  while (bytes) {
    GB_TRY(gb_poll_work(context, &work, FIRST_READ));
    int done = gzread(file, at, bytes < FIRST_READ ? (unsigned)bytes : (unsigned)FIRST_READ), code = Z_OK;
    if (done > 0) {
      at += done;
      bytes -= (size_t)done;
      continue;
    }
    const char *reason = gzerror(file, &code);
    if (code == Z_ERRNO) return gb_fail(context, GB_EIO, "cannot read '%s': %s", path, reason);
    if (code != Z_OK && code != Z_BUF_ERROR) return gb_fail(context, GB_EFORMAT, "'%s' is damaged: %s", path, reason);
    return gb_fail(context, GB_EFORMAT, "'%s' ends too early: %zu bytes more were expected", path, bytes);
  }
  return GB_OK;
}

/* Type, rank and sizes; *bytes is what the elements take. */
static gb_status read_header(gb_context *context, gzFile file, const char *path, gb_idx *out, size_t *bytes) {
  unsigned char magic[4], size[4];
  GB_TRY(read_bytes(context, file, path, magic, sizeof magic));
  out->dtype = GB_DTYPE_NONE;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].code == magic[2]) out->dtype = types[i].dtype;
  if (magic[0] || magic[1])
    return gb_fail(context, GB_EFORMAT, "'%s' is not an idx file: it must begin with two zero bytes", path);
  if (out->dtype == GB_DTYPE_NONE)
    return gb_fail(context, GB_EFORMAT, "'%s': element type 0x%02x; idx files of uint8, int32, float32 and float64 "
                                        "can be read", path, magic[2]);
  if (magic[3] < 1 || magic[3] > GB_MAX_NDIM)
    return gb_fail(context, GB_EFORMAT, "'%s' has %d dimensions; 1 to %d can be read", path, magic[3], GB_MAX_NDIM);
  out->ndim = magic[3];
  *bytes = gb_dtype_bytes(out->dtype);
  bool overflow = false;
  for (int d = 0; d < out->ndim; d++) {
    GB_TRY(read_bytes(context, file, path, size, sizeof size));
    out->shape[d] = (int64_t)size[0] << 24 | (int64_t)size[1] << 16 | (int64_t)size[2] << 8 | size[3];
    overflow |= __builtin_mul_overflow(*bytes, (size_t)out->shape[d], bytes);
  }
  if (overflow || *bytes > BYTES_MOST)
    return gb_fail(context, GB_EFORMAT, "'%s' claims more elements than memory can hold", path);
  return GB_OK;
}

/* The elements, into memory that doubles while there is something to read. */
static gb_status read_elements(gb_context *context, gzFile file, const char *path, size_t bytes, gb_idx *out) {
  size_t room = bytes < FIRST_READ ? bytes : FIRST_READ, have = 0;
  for (;;) {
    void *grown = gb_counted_resize(context, out->data, room ? room : 1);
    if (!grown) return context->error_code;
    out->data = grown;
    GB_TRY(read_bytes(context, file, path, (char *)out->data + have, room - have));
    have = room;
    if (have == bytes) return GB_OK;
    room = bytes / 2 < room ? bytes : room * 2;
  }
}

/* Nothing may follow, and a gzip stream must end with its checksum. */
static gb_status check_end(gb_context *context, gzFile file, const char *path) {
  char more;
  int done = gzread(file, &more, 1), code = Z_OK;
  const char *reason = gzerror(file, &code);
  if (done > 0) return gb_fail(context, GB_EFORMAT, "'%s' holds more than its header says", path);
  if (done < 0 || (code != Z_OK && code != Z_STREAM_END))
    return gb_fail(context, GB_EFORMAT, "'%s' is damaged: %s", path, reason);
  return GB_OK;
}

/* Big-endian elements into the machine's order. */
static gb_status swap_elements(gb_context *context, gb_idx *idx) {
  size_t width = gb_dtype_bytes(idx->dtype);
  unsigned char *at = idx->data;
  int64_t work = 0;
  if (width == 1 || __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) return GB_OK;
  for (size_t i = 0; i < idx->bytes; i += width) {
    GB_TRY(gb_poll_work(context, &work, (int64_t)width));
    for (size_t low = i, high = i + width - 1; low < high; low++, high--) {
      unsigned char moved = at[low];
      at[low] = at[high];
      at[high] = moved;
    }
  }
  return GB_OK;
}

gb_status gb_idx_read(gb_context *context, const char *path, gb_idx *out) {
  gb_idx idx = { 0 };
  int fd;
  GB_TRY(gb_file_open_regular(context, path, &fd, NULL));
  gzFile file = gzdopen(fd, "rb");
  if (!file) {
    close(fd);
    return gb_fail_memory(context, 0);
  }
  gb_status status = read_header(context, file, path, &idx, &idx.bytes);
  if (status == GB_OK) status = read_elements(context, file, path, idx.bytes, &idx);
  if (status == GB_OK) status = check_end(context, file, path);
  if (gzclose_r(file) != Z_OK && status == GB_OK) status = gb_fail(context, GB_EFORMAT, "'%s' ends too early", path);
  if (status == GB_OK) status = swap_elements(context, &idx);
  if (status != GB_OK) { gb_counted_free(idx.data); return status; }
  *out = idx;
  return GB_OK;
}

/* {==== Images and labels as a dataset ==== */

typedef struct images {
  unsigned char *pixels, *labels;      /* labels NULL: none */
  int64_t size;                        /* pixels of an image */
  float value[256];                    /* of each pixel value, normalised */
} images;

static gb_status images_get(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                            size_t error_size) {
  const images *set = user;
  float *x = out[0];
  (void)error, (void)error_size;
  for (int64_t i = 0; i < n; i++) {
    const unsigned char *pixels = set->pixels + indices[i] * set->size;
    for (int64_t p = 0; p < set->size; p++) *x++ = set->value[pixels[p]];
    if (set->labels) ((int64_t *)out[1])[i] = set->labels[indices[i]];
  }
  return GB_OK;
}

static void images_release(void *user) {
  images *set = user;
  gb_counted_free(set->pixels);
  gb_counted_free(set->labels);
  gb_counted_free(set);
}

/* An idx file of uint8 with this rank. */
static gb_status read_uint8(gb_context *context, const char *path, int ndim, const char *what, gb_idx *out) {
  GB_TRY(gb_idx_read(context, path, out));
  if (out->dtype == GB_UINT8 && out->ndim == ndim) return GB_OK;
  gb_counted_free(out->data);
  out->data = NULL;
  return gb_fail(context, GB_EFORMAT, "'%s' holds %d-dimensional %s; %s are expected", path, out->ndim,
                 gb_dtype_name(out->dtype), what);
}

/* Both files, which must have as many labels as images. */
static gb_status read_pair(gb_context *context, const char *images_path, const char *labels_path, gb_idx *pixels,
                           gb_idx *labels) {
  GB_TRY(read_uint8(context, images_path, 3, "images [n, height, width] of uint8", pixels));
  if (!labels_path) return GB_OK;
  GB_TRY(read_uint8(context, labels_path, 1, "labels [n] of uint8", labels));
  if (labels->shape[0] == pixels->shape[0]) return GB_OK;
  return gb_fail(context, GB_EFORMAT, "'%s' has %" PRId64 " images, '%s' has %" PRId64 " labels", images_path,
                 pixels->shape[0], labels_path,
                 labels->shape[0]);
}

gb_status gb_dataset_images(gb_context *context, const char *images_path, const char *labels_path, double mean,
                            double std, gb_dataset **out) {
  gb_idx pixels = { 0 }, labels = { 0 };
  if (!(std > 0)) return gb_fail(context, GB_EINVAL, "std must be above 0; it divides the pixels");
  gb_status status = read_pair(context, images_path, labels_path, &pixels, &labels);
  images *set = status == GB_OK ? gb_counted_alloc(context, sizeof *set) : NULL;
  if (!set) {
    gb_counted_free(pixels.data);
    gb_counted_free(labels.data);
    return status == GB_OK ? context->error_code : status;
  }
  set->pixels = pixels.data;
  set->labels = labels.data;
  set->size = pixels.shape[1] * pixels.shape[2];
  for (int v = 0; v < 256; v++) set->value[v] = ((float)v / 255.0f - (float)mean) / (float)std;
  return gb_dataset_new(context, &(gb_dataset){
    .count = pixels.shape[0], .columns = labels_path ? 2 : 1,
    .column = { { .dtype = GB_FLOAT32, .ndim = 3, .shape = { 1, pixels.shape[1], pixels.shape[2] } },
                { .dtype = GB_INT64 } },
    .get_batch = images_get, .release = images_release, .user = set }, out);
}

static gb_status open_images(gb_context *context, const gb_reading *given, gb_dataset **out) {
  return gb_dataset_images(context, given->path[0], given->path[1], gb_reading_number(given, "mean"),
                           gb_reading_number(given, "std"), out);
}

const gb_reader gb_reader_idx = {
  "gb.data.idx(images: path, labels?: path; mean: number = 0, std: number = 1) -> dataset: Files in MNIST's format, "
  "gzipped or not: "
  "images scaled to 0 .. 1, then normalised; labels as int64. Errors: a file that is not of this format, or damaged.",
  open_images,
};

/* ====} */
