/* io/json.c - the reader decodes strings in place in a copy of the text (no escape is shorter than what it stands for)
 * and takes its values from chunks; the writer appends to one growing buffer. */
#include "io/json.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tensor/context.h"

#define CHUNK_VALUES 64
#define NUMBER_MOST 512 /* characters of a number */
#define STEP_WORK 16 /* of a character, a value or a comparison, towards a piece */

typedef struct chunk {
  struct chunk *next;
  gb_json values[CHUNK_VALUES];
} chunk;

/* What gb_json_free gets: the root is its first member. */
typedef struct document {
  gb_json root;
  gb_context *context;
  char *text;
  chunk *chunks;
  int used;                          /* values of the newest chunk */
  int64_t count;
} document;

typedef struct parser {
  document *document;
  char *at, *end;                    /* *end is NUL */
  int depth;
  int64_t work;                      /* since the last look for a stop */
  char *error;
  size_t error_size;
} parser;

/* {==== Reader ==== */

/* Say what is wrong, and where. */
static gb_status fail(parser *p, const char *format, ...) GB_PRINTF(2, 3);
static gb_status fail(parser *p, const char *format, ...) {
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(p->error, p->error_size, "JSON, byte %td: %s", p->at - p->document->text, text);
  return GB_EFORMAT;
}

static gb_status fail_memory(parser *p) {
  snprintf(p->error, p->error_size, "out of memory for JSON");
  return GB_EMEMORY;
}

/* One more step; now and then a look for a stop. */
static gb_status step(parser *p) {
  gb_status status = gb_poll_work(p->document->context, &p->work, STEP_WORK);
  if (status != GB_OK) snprintf(p->error, p->error_size, "interrupted");
  return status;
}

/* An unset value. */
static gb_status new_value(parser *p, gb_json **out) {
  document *d = p->document;
  if (++d->count > GB_JSON_MOST_VALUES) return fail(p, "more than %d values", GB_JSON_MOST_VALUES);
  GB_TRY(step(p));
  if (!d->chunks || d->used == CHUNK_VALUES) {
    chunk *c = gb_counted_alloc(d->context, sizeof *c);
    if (!c) return fail_memory(p);
    c->next = d->chunks;
    d->chunks = c;
    d->used = 0;
  }
  *out = &d->chunks->values[d->used++];
  return GB_OK;
}

static gb_status skip_space(parser *p) {
  for (; *p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'; p->at++) GB_TRY(step(p));
  return GB_OK;
}

/* Four hexadecimal digits, or -1. */
static int32_t hex4(const char *s) {
  int32_t value = 0;
  for (int i = 0; i < 4; i++) {
    char c = s[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' &&
        c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* The escape at p->at, which is a backslash; its bytes go to *to. */
static gb_status parse_escape(parser *p, char **to) {
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  const char *name = p->at[1] ? strchr(names, p->at[1]) : NULL;
  if (name) {
    *(*to)++ = values[name - names];
    p->at += 2;
    return GB_OK;
  }
  if (p->at[1] != 'u') return fail(p, "unknown escape");
  int32_t code = hex4(p->at + 2), low;
  if (code < 0) return fail(p, "\\u needs four hexadecimal digits");
  if (code >= 0xd800 && code < 0xe000) {
    low = code < 0xdc00 && p->at[6] == '\\' && p->at[7] == 'u' ? hex4(p->at + 8) : -1;
    if (low < 0xdc00 || low > 0xdfff) return fail(p, "half of a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    p->at += 6;
  }
  p->at += 6;
  *to += gb_utf8_encode((uint32_t)code, *to);
  return GB_OK;
}

/* The string at p->at, which is a quote. */
static gb_status parse_string(parser *p, const char **text, size_t *length) {
  char *to = ++p->at, *start = to;
  while (*p->at != '"') {
    uint32_t code;
    GB_TRY(step(p));
    if (*p->at == '\\') {
      gb_status status = parse_escape(p, &to);
      if (status != GB_OK) return status;
      continue;
    }
    if (p->at == p->end) return fail(p, "a string does not end");
    if ((unsigned char)*p->at < 0x20) return fail(p, "a control character in a string");
    int bytes = gb_utf8_decode(p->at, (size_t)(p->end - p->at), &code);
    if (!bytes) return fail(p, "malformed UTF-8");
    memmove(to, p->at, (size_t)bytes);
    to += bytes;
    p->at += bytes;
  }
  p->at++;
  *to = 0;
  *text = start;
  *length = (size_t)(to - start);
  return GB_OK;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* No further than a number may go, which is more digits than 64 bits have. */
static char *skip_digits(char *at) {
  for (char *last = at + NUMBER_MOST; at < last && is_digit(*at);) at++;
  return at;
}

/* The digits from first to last as an integer of 64 bits. */
static gb_status parse_integer(parser *p, const char *first, const char *last, bool negative, gb_json *out) {
  uint64_t value = 0;
  for (; first < last; first++)
    if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*first - '0'), &value))
      return fail(p, "an integer of more than 64 bits");
  if (negative && value > (uint64_t)1 << 63) return fail(p, "an integer of more than 64 bits");
  out->type = GB_JSON_INTEGER;
  out->negative = negative && value;
  out->as.magnitude = value;
  return GB_OK;
}

/* A number with a point or an exponent. strtod wants the point of the host's locale. */
static gb_status parse_real(parser *p, const char *first, const char *last, gb_json *out) {
  char digits[NUMBER_MOST];
  const char *point = memchr(first, '.', (size_t)(last - first));
  int whole = (int)((point ? point : last) - first), rest = point ? (int)(last - point) - 1 : 0;
  if (last - first > NUMBER_MOST - 16) return fail(p, "a number of more than %d characters", NUMBER_MOST - 16);
  snprintf(digits, sizeof digits, "%.*s%s%.*s", whole, first, point ? localeconv()->decimal_point : "", rest,
           point ? point + 1 : "");
  out->type = GB_JSON_NUMBER;
  out->as.number = strtod(digits, NULL);
  return isfinite(out->as.number) ? GB_OK : fail(p, "a number that is too large");
}

static gb_status parse_number(parser *p, gb_json *out) {
  char *start = p->at, *digits = start + (*start == '-'), *end = skip_digits(digits);
  if (end == digits || (*digits == '0' && end > digits + 1)) return fail(p, "a malformed number");
  char *whole = end;
  if (*end == '.') {
    end = skip_digits(whole + 1);
    if (end == whole + 1) return fail(p, "a malformed number");
  }
  if (*end == 'e' || *end == 'E') {
    char *exponent = end + 1 + (end[1] == '+' || end[1] == '-');
    end = skip_digits(exponent);
    if (end == exponent) return fail(p, "a malformed number");
  }
  p->at = end;
  return end == whole ? parse_integer(p, digits, end, *start == '-', out) : parse_real(p, start, end, out);
}

static gb_status parse_value(parser *p, gb_json *out);

/* The order of two keys: below, at or above 0. */
static int compare_keys(const gb_json *x, const gb_json *y) {
  size_t least = x->key_length < y->key_length ? x->key_length : y->key_length;
  int order = memcmp(x->key, y->key, least);
  return order ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

/* Merge two sorted runs, members[0 .. a) and members[a .. n), into `to`. No two keys may be the same. */
static gb_status merge_keys(parser *p, const gb_json **to, const gb_json *const *members, size_t a, size_t n) {
  size_t i = 0, j = a;
  for (size_t k = 0; k < n; k++) {
    int order = i == a ? 1 : j == n ? -1 : compare_keys(members[i], members[j]);
    if (!order) return fail(p, "the key \"%.80s\" comes twice", members[i]->key);
    GB_TRY(step(p));
    to[k] = order < 0 ? members[i++] : members[j++];
  }
  return GB_OK;
}

/* Sort n members, with room for as many behind them, by merging; qsort could not be stopped. Equal keys meet in some
 * merge. */
static gb_status sort_keys(parser *p, const gb_json **members, size_t n) {
  const gb_json **from = members, **to = members + n;
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t i = 0; i < n; i += 2 * width) {
      size_t left = n - i;
      GB_TRY(merge_keys(p, to + i, from + i, left < width ? left : width, left < 2 * width ? left : 2 * width));
    }
    const gb_json **sorted = to;
    to = from;
    from = sorted;
  }
  return GB_OK;
}

/* No two members of an object have the same key. */
static gb_status check_keys(parser *p, const gb_json *object) {
  size_t n = (size_t)object->as.list.count, i = 0;
  if (n < 2) return GB_OK;
  const gb_json *few[32], **members = n <= 16 ? few : gb_counted_alloc(p->document->context, 2 * n * sizeof *members);
  if (!members) return fail_memory(p);
  for (const gb_json *m = object->as.list.first; m; m = m->next) members[i++] = m;
  gb_status status = sort_keys(p, members, n);
  if (members != few) gb_counted_free((void *)members);
  return status;
}

/* "key" : in front of a member's value. */
static gb_status parse_key(parser *p, gb_json *member) {
  if (*p->at != '"') return fail(p, "expected a key");
  gb_status status = parse_string(p, &member->key, &member->key_length);
  if (status != GB_OK) return status;
  GB_TRY(skip_space(p));
  if (*p->at != ':') return fail(p, "expected ':'");
  p->at++;
  return GB_OK;
}

/* An array or an object, from its bracket on. */
static gb_status parse_list(parser *p, gb_json *out, char close) {
  gb_json **link = &out->as.list.first;
  out->type = close == '}' ? GB_JSON_OBJECT : GB_JSON_ARRAY;
  if (++p->depth > GB_JSON_MOST_DEPTH) return fail(p, "nested deeper than %d", GB_JSON_MOST_DEPTH);
  p->at++;
  GB_TRY(skip_space(p));
  while (*p->at != close || out->as.list.count) {
    gb_json *value = NULL;
    gb_status status = new_value(p, &value);
    if (status == GB_OK && close == '}') status = parse_key(p, value);
    if (status == GB_OK) status = parse_value(p, value);
    if (status != GB_OK) return status;
    *link = value;
    link = &value->next;
    out->as.list.count++;
    if (*p->at == close) break;
    if (*p->at != ',') return fail(p, "expected ',' or '%c'", close);
    p->at++;
    GB_TRY(skip_space(p));
  }
  p->at++;
  p->depth--;
  return close == '}' ? check_keys(p, out) : GB_OK;
}

/* null, true or false. */
static gb_status parse_word(parser *p, gb_json *out) {
  static const struct { const char *word; gb_json_type type; bool value; } words[] = {
    { "null", GB_JSON_NULL, false }, { "true", GB_JSON_BOOL, true }, { "false", GB_JSON_BOOL, false },
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t length = strlen(words[i].word);
    if (strncmp(p->at, words[i].word, length)) continue;
    out->type = words[i].type;
    out->as.boolean = words[i].value;
    p->at += length;
    return GB_OK;
  }
  return fail(p, p->at == p->end ? "the text ends too early" : "expected a value");
}

/* One value and the white space around it. */
static gb_status parse_value(parser *p, gb_json *out) {
  gb_status status;
  GB_TRY(skip_space(p));
  switch (*p->at) {
    case '{': status = parse_list(p, out, '}'); break;
    case '[': status = parse_list(p, out, ']'); break;
    case '"':
      out->type = GB_JSON_STRING;
      status = parse_string(p, &out->as.string.text, &out->as.string.length);
      break;
    default: status = *p->at == '-' || is_digit(*p->at) ? parse_number(p, out) : parse_word(p, out);
  }
  return status == GB_OK ? skip_space(p) : status;
}

gb_status gb_json_parse(gb_context *context, const char *text, size_t bytes, gb_json **out, char *error,
                        size_t error_size) {
  document *d = gb_counted_alloc(context, sizeof *d);
  parser p = { .document = d, .error = error, .error_size = error_size };
  if (d) d->text = gb_counted_resize(context, NULL, bytes + 1);
  if (!d || !d->text) { gb_counted_free(d); return fail_memory(&p); }
  d->context = context;
  memcpy(d->text, text, bytes);
  d->text[bytes] = 0;
  p.at = d->text;
  p.end = d->text + bytes;
  gb_status status = parse_value(&p, &d->root);
  if (status == GB_OK && p.at != p.end) status = fail(&p, "something follows the value");
  if (status != GB_OK) { gb_json_free(&d->root); return status; }
  *out = &d->root;
  return GB_OK;
}

void gb_json_free(gb_json *root) {
  if (!root) return;
  document *d = (document *)root;
  while (d->chunks) {
    chunk *next = d->chunks->next;
    gb_counted_free(d->chunks);
    d->chunks = next;
  }
  gb_counted_free(d->text);
  gb_counted_free(d);
}

const gb_json *gb_json_get(const gb_json *object, const char *key) {
  if (!object || object->type != GB_JSON_OBJECT) return NULL;
  size_t length = strlen(key);
  for (const gb_json *m = object->as.list.first; m; m = m->next)
    if (m->key_length == length && !memcmp(m->key, key, length)) return m;
  return NULL;
}

bool gb_json_int64(const gb_json *value, int64_t *out) {
  if (!value || value->type != GB_JSON_INTEGER) return false;
  if (!value->negative && value->as.magnitude > INT64_MAX) return false;
  *out = value->negative ? (int64_t)(0 - value->as.magnitude) : (int64_t)value->as.magnitude;
  return true;
}

bool gb_json_double(const gb_json *value, double *out) {
  if (!value || (value->type != GB_JSON_NUMBER && value->type != GB_JSON_INTEGER)) return false;
  if (value->type == GB_JSON_NUMBER) *out = value->as.number;
  else *out = value->negative ? -(double)value->as.magnitude : (double)value->as.magnitude;
  return true;
}

/* ====} */

/* {==== Writer ==== */

/* Append bytes; the buffer doubles. */
static void put(gb_json_writer *w, const char *text, size_t length) {
  if (w->status != GB_OK) return;
  if (w->capacity - w->length < length + 1) {
    size_t capacity = (w->capacity + length + 64) * 2;
    char *grown = gb_counted_resize(w->context, w->text, capacity);
    if (!grown) { w->status = GB_EMEMORY; return; }
    w->text = grown;
    w->capacity = capacity;
  }
  memcpy(w->text + w->length, text, length);
  w->text[w->length += length] = 0;
}

/* A comma where one value follows another. */
static void put_separator(gb_json_writer *w) {
  if (w->comma) put(w, ",", 1);
  w->comma = true;
}

static void put_value(gb_json_writer *w, const char *text) {
  put_separator(w);
  put(w, text, strlen(text));
}

/* A quoted string: what must be escaped is, everything else stays UTF-8. */
static void put_quoted(gb_json_writer *w, const char *text, size_t length) {
  put(w, "\"", 1);
  for (size_t i = 0; i < length && w->status == GB_OK;) {
    uint32_t code;
    char escape[8];
    int bytes = gb_utf8_decode(text + i, length - i, &code);
    if (!bytes) { w->status = GB_EINVAL; return; }
    if (code == '"' || code == '\\') put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\%c", (char)code));
    else if (code < 0x20) put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code));
    else put(w, text + i, (size_t)bytes);
    i += (size_t)bytes;
  }
  put(w, "\"", 1);
}

void gb_json_open(gb_json_writer *w, char bracket) {
  put_separator(w);
  put(w, &bracket, 1);
  w->comma = false;
}

void gb_json_close(gb_json_writer *w, char bracket) {
  put(w, &bracket, 1);
  w->comma = true;
}

void gb_json_key(gb_json_writer *w, const char *text, size_t length) {
  put_separator(w);
  put_quoted(w, text, length);
  put(w, ":", 1);
  w->comma = false;
}

void gb_json_string(gb_json_writer *w, const char *text, size_t length) {
  put_separator(w);
  put_quoted(w, text, length);
}

void gb_json_integer(gb_json_writer *w, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  put_value(w, text);
}

void gb_json_unsigned(gb_json_writer *w, uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRIu64, value);
  put_value(w, text);
}

void gb_json_number(gb_json_writer *w, double value) {
  char text[48];
  const char *local = localeconv()->decimal_point;
  if (!isfinite(value)) { w->status = w->status == GB_OK ? GB_EINVAL : w->status; return; }
  snprintf(text, sizeof text - 2, "%.17g", value);
  char *point = strstr(text, local);
  if (point) {
    *point = '.';
    memmove(point + 1, point + strlen(local), strlen(point + strlen(local)) + 1);
  } else if (!strchr(text, 'e')) strcat(text, ".0");
  put_value(w, text);
}

void gb_json_bool(gb_json_writer *w, bool value) { put_value(w, value ? "true" : "false"); }
void gb_json_null(gb_json_writer *w) { put_value(w, "null"); }

void gb_json_writer_free(gb_json_writer *w) {
  gb_counted_free(w->text);
  *w = (gb_json_writer){ .context = w->context };
}

/* ====} */
