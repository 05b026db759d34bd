/* data/idx.c - reads idx files through zlib, which passes plain files on as they are.
 *
 * Memory grows with what the file really holds, not with what its header claims; a file that ends early, goes on, or fails its checksum
 * is GB_EFORMAT. Layout: two zero bytes, a type, a rank, a 32-bit big-endian size per dimension, the elements, big-endian. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "data/data.h"
#include "io/place.h"

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
  if (magic[0] || magic[1]) return gb_fail(context, GB_EFORMAT, "'%s' is not an idx file: it must begin with two zero bytes", path);
  if (out->dtype == GB_DTYPE_NONE)
    return gb_fail(context, GB_EFORMAT, "'%s': element type 0x%02x; idx files of uint8, int32, float32 and float64 can be read", path, magic[2]);
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
  if (overflow || *bytes > BYTES_MOST) return gb_fail(context, GB_EFORMAT, "'%s' claims more elements than memory can hold", path);
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
  if (done < 0 || (code != Z_OK && code != Z_STREAM_END)) return gb_fail(context, GB_EFORMAT, "'%s' is damaged: %s", path, reason);
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
  GB_TRY(gb_place_open(context, path, O_RDONLY, &fd));
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
