/* data/tokens.c - files of token ids, which are larger than memory: every window is read when it is wanted, and the
 * system keeps what is hot.
 *
 * Read and not mapped: a file that shrinks while it is mapped kills the process, a read gives an error. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/data.h"
#include "io/file.h"

/* 256 little-endian int32: magic, version, number of ids, zeros (karpathy/llm.c, dev/data/data_common.py) */
#define HEADER_BYTES 1024
#define HEADER_MAGIC 20240520u
#define HEADER_VERSION 1u            /* 16-bit ids */
#define PIECE 2048                   /* ids read at once, on the stack */

struct gb_tokens {
  _Atomic int32_t refs;
  gb_file_reader *file;
  int width;                         /* bytes of an id */
  uint64_t start;                    /* of the first id, in bytes */
  int64_t length;
};

/* One id of this width. */
static int64_t decode(const unsigned char *at, int width) {
  if (width == 1) return at[0];
  if (width == 2) return at[0] | at[1] << 8;
  return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* Pass over the header of a file of 16-bit ids, if there is one. */
static gb_status read_header(gb_context *context, gb_tokens *tokens, const char *path) {
  unsigned char head[12];
  uint64_t size = gb_file_size(tokens->file);
  if (tokens->width != 2 || size < HEADER_BYTES) return GB_OK;
  GB_TRY(gb_file_read(tokens->file, 0, head, sizeof head));
  if ((uint32_t)decode(head, 4) != HEADER_MAGIC) return GB_OK;
  uint32_t version = (uint32_t)decode(head + 4, 4), count = (uint32_t)decode(head + 8, 4);
  if (version != HEADER_VERSION)
    return gb_fail(context, GB_EFORMAT, "'%s' has a token header of version %" PRIu32 "; version %u can be read", path,
                   version, HEADER_VERSION);
  if (size - HEADER_BYTES != (uint64_t)count * 2)
    return gb_fail(context, GB_EFORMAT, "'%s' has %" PRIu64 " bytes of ids, its header says %" PRIu32 " ids of 2 bytes",
                   path, size - HEADER_BYTES, count);
  tokens->start = HEADER_BYTES;
  return GB_OK;
}

/* Open the file and see how many ids it holds. */
static gb_status measure(gb_context *context, gb_tokens *tokens, const char *path) {
  GB_TRY(gb_file_open(context, path, &tokens->file));
  GB_TRY(read_header(context, tokens, path));
  uint64_t bytes = gb_file_size(tokens->file) - tokens->start;
  if (bytes % (uint64_t)tokens->width)
    return gb_fail(context, GB_EFORMAT, "'%s' has %" PRIu64 " bytes, which is not a multiple of %d, the size of an id",
                   path, bytes, tokens->width);
  tokens->length = (int64_t)(bytes / (uint64_t)tokens->width);
  return GB_OK;
}

gb_status gb_tokens_open(gb_context *context, const char *path, gb_token_kind kind, gb_tokens **out) {
  static const int widths[GB_TOKEN_KINDS] = { 1, 2, 4 };
  gb_tokens *tokens = gb_counted_alloc(context, sizeof *tokens);
  if (!tokens) return context->error_code;
  atomic_init(&tokens->refs, 1);
  tokens->width = widths[kind];
  gb_status status = measure(context, tokens, path);
  if (status != GB_OK) { gb_tokens_release(tokens); return status; }
  *out = tokens;
  return GB_OK;
}

void gb_tokens_retain(gb_tokens *tokens) { atomic_fetch_add_explicit(&tokens->refs, 1, memory_order_relaxed); }

void gb_tokens_release(gb_tokens *tokens) {
  if (!tokens || atomic_fetch_sub_explicit(&tokens->refs, 1, memory_order_acq_rel) != 1) return;
  gb_file_close(tokens->file);
  gb_counted_free(tokens);
}

int64_t gb_tokens_length(const gb_tokens *tokens) { return tokens->length; }

gb_status gb_tokens_read(const gb_tokens *tokens, int64_t first, int64_t count, int64_t *ids, char *error,
                         size_t error_size) {
  unsigned char piece[PIECE * 4];
  for (int64_t done = 0; done < count; done += PIECE) {
    int64_t some = count - done < PIECE ? count - done : PIECE;
    uint64_t offset = tokens->start + (uint64_t)(first + done) * (uint64_t)tokens->width;
    GB_TRY(gb_file_read_plain(tokens->file, offset, piece, (size_t)some * (size_t)tokens->width, error, error_size));
    for (int64_t i = 0; i < some; i++) ids[done + i] = decode(piece + i * tokens->width, tokens->width);
  }
  return GB_OK;
}
