/* data/tokens.c - files of token ids, which are larger than memory: every window is read when it is wanted, and the
 * system keeps what is hot, once for all processes that read the file.
 *
 * Read and not mapped: where a mapped file shrinks, or its disk fails, the next look at a lost page is a SIGBUS that
 * ends the process, and no check before can rule that out. A handler of that signal is the host's to have, Linux seals
 * only files in memory, and a private mapping has the same pages. A read of a window gives an error instead, and costs
 * a microsecond more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Say how an id that is lost can be had again. */
static gb_status refuse(const gb_tokens *tokens, int64_t first, int64_t count, gb_status status, char *error,
                        size_t error_size) {
  size_t used = strlen(error);
  snprintf(error + used, error_size - used, ", for ids %" PRId64 " to %" PRId64 " of the %" PRId64 " that it had when "
           "it was opened; write it whole, and open it again", first + 1, first + count, tokens->length);
  return status;
}

gb_status gb_tokens_read(const gb_tokens *tokens, int64_t first, int64_t count, int64_t *ids, int64_t *next,
                         char *error, size_t error_size) {
  unsigned char piece[PIECE * 4];
  int width = tokens->width;
  int64_t all = count + (next != NULL);
  for (int64_t done = 0; done < all; done += PIECE) {
    int64_t some = all - done < PIECE ? all - done : PIECE, wanted = count - done < some ? count - done : some;
    uint64_t offset = tokens->start + (uint64_t)(first + done) * (uint64_t)width;
    size_t bytes = (size_t)some * (size_t)width;
    gb_status status = gb_file_read_plain(tokens->file, offset, piece, bytes, error, error_size);
    if (status != GB_OK) return refuse(tokens, first, all, status, error, error_size);
    for (int64_t i = 0; i < wanted; i++) ids[done + i] = decode(piece + i * width, width);
    if (wanted < some) *next = decode(piece + wanted * width, width);
  }
  return GB_OK;
}
