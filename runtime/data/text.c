/* data/text.c - texts as ids. A table from code point to id, as long as the largest code point that occurs, serves both
 * kinds: for bytes it is the identity over 256. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "data/data.h"
#include "io/file.h"

#define NO_ID 0xffffu                /* so at most 65,535 ids */
#define UNIT_WORK 4                  /* of a character that is read or written, towards a piece */

struct gb_text {
  _Atomic int32_t refs;
  gb_text_kind kind;
  uint32_t *codes;                   /* of each id */
  int64_t size;                      /* how many ids there are */
  uint16_t *id_of;                   /* of each code point below limit; NO_ID: none */
  uint32_t limit;
  uint16_t *ids;
  int64_t length;
  char *vocabulary;                  /* UTF-8; NULL for bytes */
  size_t vocabulary_bytes;
};

/* The next unit of the text, as a code; 0 when it is malformed. */
static int next_code(gb_text_kind kind, const char *data, size_t left, uint32_t *code) {
  if (kind == GB_TEXT_CHARACTERS) return gb_utf8_decode(data, left, code);
  *code = (unsigned char)*data;
  return 1;
}

/* Check the text; count its units and find the largest code, plus one. */
static gb_status measure(gb_context *context, gb_text_kind kind, const char *data, size_t bytes, int64_t *length,
                         uint32_t *limit) {
  int64_t work = 0;
  *length = 0;
  *limit = 0;
  for (size_t i = 0; i < bytes; ++*length) {
    uint32_t code;
    GB_TRY(gb_poll_work(context, &work, UNIT_WORK));
    int step = next_code(kind, data + i, bytes - i, &code);
    if (!step)
      return gb_fail(context, GB_EFORMAT, "the text is not UTF-8 at byte %zu; read it as bytes instead", i + 1);
    if (code >= *limit) *limit = code + 1;
    i += (size_t)step;
  }
  return GB_OK;
}

/* The table for all codes of `data`, in increasing order; for bytes, of all 256. */
static gb_status make_table(gb_context *context, gb_text *text, const char *data, size_t bytes) {
  int64_t length = 0, at = 0, work = 0;
  text->limit = 256;
  if (text->kind == GB_TEXT_CHARACTERS) GB_TRY(measure(context, text->kind, data, bytes, &length, &text->limit));
  text->id_of = gb_counted_alloc(context, ((size_t)text->limit + 1) * sizeof *text->id_of);
  if (!text->id_of) return context->error_code;
  memset(text->id_of, text->kind == GB_TEXT_BYTES ? 0 : 0xff, (size_t)text->limit * sizeof *text->id_of);
  for (size_t i = 0; text->kind == GB_TEXT_CHARACTERS && i < bytes;) {
    uint32_t code = 0;
    i += (size_t)gb_utf8_decode(data + i, bytes - i, &code);
    text->id_of[code] = 0;
    GB_TRY(gb_poll_work(context, &work, UNIT_WORK));
  }
  for (uint32_t code = 0; code < text->limit; code++) text->size += text->id_of[code] != NO_ID;
  if (text->size >= NO_ID)
    return gb_fail(context, GB_EUNSUPPORTED, "the text has %" PRId64 " different characters; at most %u are "
                                                                     "possible: read it as bytes", text->size,
                   NO_ID - 1);
  text->codes = gb_counted_alloc(context, ((size_t)text->size + 1) * sizeof *text->codes);
  if (!text->codes) return context->error_code;
  for (uint32_t code = 0; code < text->limit; code++) {
    if (text->id_of[code] == NO_ID) continue;
    text->id_of[code] = (uint16_t)at;
    text->codes[at++] = code;
  }
  return GB_OK;
}

/* The vocabulary as text. */
static gb_status make_vocabulary(gb_context *context, gb_text *text) {
  if (text->kind == GB_TEXT_BYTES) return GB_OK;
  text->vocabulary = gb_counted_alloc(context, (size_t)text->size * 4 + 1);
  if (!text->vocabulary) return context->error_code;
  char *end = text->vocabulary;
  for (int64_t i = 0; i < text->size; i++) end += gb_utf8_encode(text->codes[i], end);
  *end = 0;
  text->vocabulary_bytes = (size_t)(end - text->vocabulary);
  return GB_OK;
}

/* The id at data[i], moving i on. */
static gb_status next_id(gb_context *context, const gb_text *text, const char *data, size_t bytes, size_t *i,
                         uint16_t *id) {
  uint32_t code;
  int step = next_code(text->kind, data + *i, bytes - *i, &code);
  if (!step) return gb_fail(context, GB_EFORMAT, "the text is not UTF-8 at byte %zu", *i + 1);
  *id = code < text->limit ? text->id_of[code] : NO_ID;
  if (*id == NO_ID)
    return gb_fail(context, GB_EINVAL,
                   "the character '%.*s' (U+%04" PRIX32 ", byte %zu) is not among the %" PRId64 " of the vocabulary",
        step,
                   data + *i, code, *i + 1, text->size);
  *i += (size_t)step;
  return GB_OK;
}

/* The ids of the text itself. */
static gb_status make_ids(gb_context *context, gb_text *text, const char *data, size_t bytes) {
  uint32_t limit;
  GB_TRY(measure(context, text->kind, data, bytes, &text->length, &limit));
  text->ids = gb_counted_alloc(context, ((size_t)text->length + 1) * sizeof *text->ids);
  if (!text->ids) return context->error_code;
  int64_t n = 0, work = 0;
  for (size_t i = 0; i < bytes;) {
    GB_TRY(next_id(context, text, data, bytes, &i, &text->ids[n++]));
    GB_TRY(gb_poll_work(context, &work, UNIT_WORK));
  }
  return GB_OK;
}

gb_status gb_text_new(gb_context *context, const char *data, size_t bytes, gb_text_kind kind, const char *vocabulary,
                      size_t vocabulary_bytes,
                      gb_text **out) {
  gb_text *text = gb_counted_alloc(context, sizeof *text);
  if (!text) return context->error_code;
  atomic_init(&text->refs, 1);
  text->kind = kind;
  gb_status status = make_table(context, text, vocabulary ? vocabulary : data, vocabulary ? vocabulary_bytes : bytes);
  if (status == GB_OK) status = make_vocabulary(context, text);
  if (status == GB_OK) status = make_ids(context, text, data, bytes);
  if (status != GB_OK) { gb_text_release(text); return status; }
  *out = text;
  return GB_OK;
}

gb_status gb_text_open(gb_context *context, const char *path, gb_text_kind kind, const char *vocabulary,
                       size_t vocabulary_bytes, gb_text **out) {
  char *data;
  size_t bytes;
  GB_TRY(gb_file_load(context, path, &data, &bytes));
  gb_status status = gb_text_new(context, data, bytes, kind, vocabulary, vocabulary_bytes, out);
  gb_counted_free(data);
  return status == GB_EFORMAT ? gb_fail(context, status, "'%s': %s", path, gb_error(context)) : status;
}

void gb_text_retain(gb_text *text) { atomic_fetch_add_explicit(&text->refs, 1, memory_order_relaxed); }

void gb_text_release(gb_text *text) {
  if (!text || atomic_fetch_sub_explicit(&text->refs, 1, memory_order_acq_rel) != 1) return;
  gb_counted_free(text->codes);
  gb_counted_free(text->id_of);
  gb_counted_free(text->ids);
  gb_counted_free(text->vocabulary);
  gb_counted_free(text);
}

int64_t gb_text_length(const gb_text *text) { return text->length; }
const uint16_t *gb_text_ids(const gb_text *text) { return text->ids; }
int64_t gb_text_vocabulary_size(const gb_text *text) { return text->size; }

const char *gb_text_vocabulary(const gb_text *text, size_t *bytes) {
  *bytes = text->vocabulary_bytes;
  return text->vocabulary;
}

gb_status gb_text_encode(gb_context *context, const gb_text *text, const char *data, size_t bytes, int64_t *ids,
                         int64_t *count) {
  int64_t n = 0, work = 0;
  for (size_t i = 0; i < bytes;) {
    uint16_t id;
    GB_TRY(gb_poll_work(context, &work, UNIT_WORK));
    GB_TRY(next_id(context, text, data, bytes, &i, &id));
    ids[n++] = id;
  }
  *count = n;
  return GB_OK;
}

/* Write what the ids stand for; returns how many bytes in *used. Every id was checked. */
static gb_status write_text(gb_context *context, const gb_text *text, const int64_t *ids, int64_t count, char *to,
                            size_t *used) {
  int64_t work = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t code = text->codes[ids[i]];
    GB_TRY(gb_poll_work(context, &work, UNIT_WORK));
    if (text->kind == GB_TEXT_BYTES) to[(*used)++] = (char)code;
    else *used += (size_t)gb_utf8_encode(code, to + *used);
  }
  to[*used] = 0;
  return GB_OK;
}

gb_status gb_text_decode(gb_context *context, const gb_text *text, const int64_t *ids, int64_t count, char **data,
                         size_t *bytes) {
  int64_t work = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= text->size)
      return gb_fail(context, GB_EINDEX, "id %" PRId64 " is out of range; the vocabulary has ids 0 .. %" PRId64, ids[i],
                     text->size - 1);
    GB_TRY(gb_poll_work(context, &work, 1));
  }
  char *decoded = malloc((size_t)count * 4 + 1);
  if (!decoded) return gb_fail_memory(context, (size_t)count * 4 + 1);
  *bytes = 0;
  gb_status status = write_text(context, text, ids, count, decoded, bytes);
  if (status == GB_OK) *data = decoded;
  else free(decoded);
  return status;
}
