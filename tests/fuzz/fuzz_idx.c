/* fuzz_idx.c - any bytes as an idx file, gzipped or not: refused with a text, or an array whose bytes are those of its
 * shape. */
#include <string.h>
#include <zlib.h>

#include "data/data.h"
#include "fuzz.h"

/* What a gzip file of these bytes holds, into `to`; 0 where it is none. What is damaged gives what came before. */
static size_t inflate_all(const uint8_t *data, size_t size, uint8_t *to, size_t most) {
  z_stream z = { .next_in = (Bytef *)data, .avail_in = (uInt)size, .next_out = to, .avail_out = (uInt)most };
  if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) return 0;
  inflate(&z, Z_FINISH);
  size_t length = most - z.avail_out;
  inflateEnd(&z);
  return length;
}

/* A gzip file of these bytes, its blocks stored, with fixed or with dynamic Huffman codes as seed says; 0 where it does
 * not fit. */
static size_t deflate_all(const uint8_t *data, size_t size, uint8_t *to, size_t most, unsigned seed) {
  static const struct { int level, strategy; } ways[] = { { 0, Z_DEFAULT_STRATEGY }, { 9, Z_FIXED },
                                                          { 9, Z_DEFAULT_STRATEGY }, { 1, Z_HUFFMAN_ONLY },
      { 6, Z_RLE } };
  z_stream z = { .next_in = (Bytef *)data, .avail_in = (uInt)size, .next_out = to, .avail_out = (uInt)most };
  size_t way = seed % (sizeof ways / sizeof *ways);
  if (deflateInit2(&z, ways[way].level, Z_DEFLATED, 16 + MAX_WBITS, 9, ways[way].strategy) != Z_OK) return 0;
  bool whole = deflate(&z, Z_FINISH) == Z_STREAM_END;
  size_t length = most - z.avail_out;
  deflateEnd(&z);
  return whole ? length : 0;
}

/* Half of the time what changes is what lies inside a gzip file, which is packed again with its right check sum; a
 * plain file may become one. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  static uint8_t inside[1 << 16];
  size_t length = inflate_all(data, size, inside, sizeof inside);
  if (seed % 2 || size > sizeof inside) return LLVMFuzzerMutate(data, size, most);
  if (!length) memcpy(inside, data, length = size);
  if (seed % 8) length = LLVMFuzzerMutate(inside, length, sizeof inside);
  size_t packed = deflate_all(inside, length, data, most, seed / 8);
  return packed ? packed : LLVMFuzzerMutate(data, size, most);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  gb_idx idx = { 0 };
  if (gb_idx_read(context, fuzz_file(data, size), &idx) != GB_OK) {
    CLAIM(*gb_error(context));
    return 0;
  }
  size_t bytes = gb_dtype_bytes(idx.dtype);
  for (int i = 0; i < idx.ndim; i++) bytes *= (size_t)idx.shape[i];
  CLAIM(bytes == idx.bytes);
  volatile uint8_t last = bytes ? ((const uint8_t *)idx.data)[bytes - 1] : 0;
  (void)last;
  gb_counted_free(idx.data);
  return 0;
}
