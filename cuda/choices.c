/* cuda/choices.c - the table of measured algorithms. See choices.h. It knows nothing of the library, and takes no text
 * on trust: whether an algorithm is one, gemm.c asks the library. */
#include "cuda/choices.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gemm.h"

#define TITLE "gibbous products 1"
#define LINE 1024                      /* bytes of one, at most */

/* {==== rows in memory ==== */

void gb_choices_close(gb_choices *choices) {
  free(choices->rows);
  *choices = (gb_choices){ .rows = NULL };
}

const gb_choice *gb_choices_find(const gb_choices *choices, const gb_product_key *key) {
  for (int i = 0; i < choices->count; i++)
    if (!memcmp(&choices->rows[i].key, key, sizeof *key)) return &choices->rows[i];
  return NULL;
}

bool gb_choices_put(gb_choices *choices, const gb_choice *choice) {
  const gb_choice *old = gb_choices_find(choices, &choice->key);
  if (old) {
    choices->rows[old - choices->rows] = *choice;
    return true;
  }
  if (choices->count == GB_CHOICES_MOST) return false;
  if (choices->count == choices->room) {
    int room = choices->room ? 2 * choices->room : 32;
    gb_choice *rows = realloc(choices->rows, (size_t)room * sizeof *rows);
    if (!rows) return false;
    choices->rows = rows, choices->room = room;
  }
  choices->rows[choices->count++] = *choice;
  return true;
}

/* ====} */

/* {==== fields ==== */

/* A whole number of the key: where it lies, how long it is, and its bounds. */
typedef struct field { const char *name; size_t at, size; int64_t least, most; } field;
#define LONG(name, least) { #name, offsetof(gb_product_key, name), sizeof(int64_t), least, INT64_C(1) << 48 }
#define SHORT(name, least, most) { #name, offsetof(gb_product_key, name), sizeof(int16_t), least, most }
static const field fields[] = {
  LONG(m, 1), LONG(n, 1), LONG(k, 1),
  { "batch", offsetof(gb_product_key, batch), sizeof(int64_t), 1, GB_GEMM_BATCH },
  LONG(lda, 1), LONG(ldb, 1), LONG(ldc, 1), LONG(a_stride, 0), LONG(b_stride, 0), LONG(c_stride, 0),
  SHORT(operands, 0, GB_DTYPE_COUNT - 1), SHORT(dtype, 0, GB_DTYPE_COUNT - 1),
  SHORT(a_transposed, 0, 1), SHORT(b_transposed, 0, 1), SHORT(tf32, 0, 1),
  SHORT(epilogue, 0, GB_GEMM_EPILOGUES - 1), SHORT(bias, 0, 1), SHORT(aux, 0, 1),
  SHORT(a_align, 1, 256), SHORT(b_align, 1, 256), SHORT(c_align, 1, 256), SHORT(aux_align, 1, 256),
  SHORT(bias_align, 1, 256),
};
#undef LONG
#undef SHORT
#define FIELDS (sizeof fields / sizeof *fields)

/* Dtypes stand by name, since their numbers are this program's. */
static const char *const dtypes[GB_DTYPE_COUNT] = { [GB_FLOAT64] = "float64", [GB_FLOAT32] = "float32",
                                                    [GB_FLOAT16] = "float16", [GB_BFLOAT16] = "bfloat16" };
static bool is_dtype(const field *f) {
  return f->at == offsetof(gb_product_key, operands) || f->at == offsetof(gb_product_key, dtype);
}

static int64_t value_of(const gb_product_key *key, const field *f) {
  int64_t wide = 0;
  int16_t narrow = 0;
  memcpy(f->size == sizeof wide ? (void *)&wide : &narrow, (const char *)key + f->at, f->size);
  return wide + narrow;
}

static void set_value(gb_product_key *key, const field *f, int64_t value) {
  int16_t narrow = (int16_t)value;
  memcpy((char *)key + f->at, f->size == sizeof value ? (const void *)&value : &narrow, f->size);
}

/* ====} */

/* {==== reading ==== */

/* A text that is read from the front; `failed` stays once it is set. */
typedef struct reading { const char *at, *end; int line; bool failed; char *error; size_t error_size; } reading;

static bool refuse(reading *r, const char *format, ...) {
  if (r->failed) return false;
  int used = r->line ? snprintf(r->error, r->error_size, "line %d: ", r->line) : 0;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->error + used, r->error_size - (size_t)used, format, arguments);
  va_end(arguments);
  r->failed = true;
  return false;
}

/* Step over a text that has to be there. */
static bool expect(reading *r, const char *text) {
  size_t length = strlen(text);
  if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length)) return refuse(r, "expects '%s'", text);
  r->at += length;
  return true;
}

/* name=, and a whole number in decimals. */
static bool read_number(reading *r, const char *name, int64_t least, int64_t most, int64_t *out) {
  char *end;
  if (!expect(r, name) || !expect(r, "=")) return false;
  if (r->at == r->end || *r->at < '0' || *r->at > '9') return refuse(r, "'%s' is no whole number", name);
  long long value = strtoll(r->at, &end, 10); /* too long ones are the largest, which is above all bounds */
  if (value < least || value > most)
    return refuse(r, "'%s' is %lld, expects %" PRId64 " .. %" PRId64, name, value, least, most);
  r->at = end, *out = value;
  return true;
}

static bool read_dtype(reading *r, const char *name, int64_t *out) {
  if (!expect(r, name) || !expect(r, "=")) return false;
  for (int i = 0; i < GB_DTYPE_COUNT; i++) {
    size_t length = dtypes[i] ? strlen(dtypes[i]) : 0;
    if (length && (size_t)(r->end - r->at) > length && !memcmp(r->at, dtypes[i], length) && r->at[length] == ' ') {
      r->at += length, *out = i;
      return true;
    }
  }
  return refuse(r, "'%s' is no dtype of products", name);
}

/* name=, and microseconds: digits, a point, digits. */
static bool read_time(reading *r, const char *name, double *out) {
  int64_t whole, thousandths = 0;
  if (!read_number(r, name, 0, 1000000000, &whole) || !expect(r, ".")) return false;
  for (int i = 0; i < 3; i++, r->at++) {
    if (r->at == r->end || *r->at < '0' || *r->at > '9') return refuse(r, "'%s' wants three digits", name);
    thousandths = thousandths * 10 + (*r->at - '0');
  }
  *out = (double)whole + (double)thousandths / 1000;
  return true;
}

static int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static bool read_algorithm(reading *r, uint64_t *words) {
  if (!expect(r, "algorithm=")) return false;
  for (int i = 0; i < GB_ALGORITHM_WORDS; i++) {
    words[i] = 0;
    for (int j = 0; j < 16; j++, r->at++) {
      int digit = r->at < r->end ? digit_of(*r->at) : -1;
      if (digit < 0) return refuse(r, "'algorithm' wants %d hexadecimal digits", 16 * GB_ALGORITHM_WORDS);
      words[i] = words[i] << 4 | (uint64_t)digit;
    }
  }
  return true;
}

/* What fields may not be together: rows that overlap, an epilogue of a batch. */
static bool check_row(reading *r, const gb_product_key *key) {
  if (key->lda < (key->a_transposed ? key->m : key->k) || key->ldb < (key->b_transposed ? key->k : key->n) ||
      key->ldc < key->n) return refuse(r, "a row of a matrix is longer than the way to the next");
  if (key->batch > 1 && (key->epilogue != GB_GEMM_PLAIN || key->bias))
    return refuse(r, "a batch of products has no epilogue");
  return true;
}

static bool read_row(reading *r, gb_choice *row) {
  memset(row, 0, sizeof *row);
  for (size_t i = 0; i < FIELDS; i++) {
    const field *f = &fields[i];
    int64_t value;
    if (!(is_dtype(f) ? read_dtype(r, f->name, &value) : read_number(r, f->name, f->least, f->most, &value)) ||
        !expect(r, " ")) return false;
    set_value(&row->key, f, value);
  }
  return read_time(r, "first", &row->first) && expect(r, " ") && read_time(r, "best", &row->best) && expect(r, " ") &&
      read_algorithm(r, row->algorithm) && check_row(r, &row->key);
}

static bool read_place(reading *r, gb_choice_place *place) {
  if (!expect(r, "device ") || !read_number(r, "library", 0, INT32_MAX, &place->library) || !expect(r, " ") ||
      !read_number(r, "compute", 0, 99, &place->major) || !expect(r, ".")) return false;
  if (r->at == r->end || *r->at < '0' || *r->at > '9') return refuse(r, "'compute' is two numbers, as in 9.0");
  place->minor = *r->at++ - '0';
  return expect(r, " ") && read_number(r, "multiprocessors", 1, 4096, &place->multiprocessors);
}

static bool same_place(const gb_choice_place *a, const gb_choice_place *b) {
  return a->library == b->library && a->major == b->major && a->minor == b->minor &&
      a->multiprocessors == b->multiprocessors;
}

/* The rows of all lines that hold here. */
static bool read_lines(reading *r, const gb_choice_place *here, gb_choices *out) {
  const char *text_end = r->end;
  gb_choice_place place = { -1, 0, 0, 0 };
  gb_choice row;
  int rows = 0;
  for (; r->at < text_end; r->at++) {
    const char *line_end = memchr(r->at, '\n', (size_t)(text_end - r->at));
    r->line++;
    if (!line_end) return refuse(r, "does not end: the table was cut off");
    if (line_end - r->at > LINE) return refuse(r, "has more than %d bytes", LINE);
    r->end = line_end;
    if (r->line == 1) expect(r, TITLE);
    else if (r->at < line_end && *r->at == '#') r->at = line_end;
    else if (r->at < line_end && *r->at == 'd') read_place(r, &place);
    else if (place.library < 0) refuse(r, "a row before the first device");
    else if (++rows > GB_CHOICES_MOST) refuse(r, "a table has at most %d rows", GB_CHOICES_MOST);
    else if (read_row(r, &row) && same_place(&place, here) && !gb_choices_put(out, &row)) refuse(r, "out of memory");
    if (!r->failed && r->at != line_end) refuse(r, "has more than it should");
    if (r->failed) return false;
  }
  return r->line > 0 || refuse(r, "the table is empty");
}

bool gb_choices_read(gb_choices *choices, const char *text, size_t bytes, const gb_choice_place *here, char *error,
                     size_t error_size) {
  reading r = { .at = text, .end = text + bytes, .error = error, .error_size = error_size };
  gb_choices made = { .rows = NULL };
  bool fine = bytes <= GB_CHOICES_BYTES ? read_lines(&r, here, &made)
      : refuse(&r, "%zu bytes, a table has at most %d", bytes, GB_CHOICES_BYTES);
  gb_choices all = { .rows = NULL };
  for (int i = 0; fine && i < choices->count; i++) fine = gb_choices_put(&all, &choices->rows[i]);
  for (int i = 0; fine && i < made.count; i++) fine = gb_choices_put(&all, &made.rows[i]);
  if (!fine) refuse(&r, "no memory for more than %d rows", all.count);
  gb_choices_close(&made);
  if (fine) {
    gb_choices_close(choices);
    *choices = all;
  } else gb_choices_close(&all);
  return fine;
}

/* ====} */

/* {==== writing ==== */

/* A text that grows as far as it has room, and counts on. */
typedef struct writing { char *out; size_t room, used; } writing;

static void put(writing *w, const char *format, ...) {
  va_list arguments;
  bool fits = w->out && w->used < w->room;
  va_start(arguments, format);
  int length = vsnprintf(fits ? w->out + w->used : NULL, fits ? w->room - w->used : 0, format, arguments);
  va_end(arguments);
  w->used += (size_t)length;
}

size_t gb_choices_write(const gb_choices *choices, const gb_choice_place *here, char *out, size_t room) {
  writing w = { out, room, 0 };
  put(&w, TITLE "\ndevice library=%" PRId64 " compute=%" PRId64 ".%" PRId64 " multiprocessors=%" PRId64 "\n",
      here->library, here->major, here->minor, here->multiprocessors);
  for (int i = 0; i < choices->count; i++) {
    const gb_choice *c = &choices->rows[i];
    for (size_t j = 0; j < FIELDS; j++) {
      int64_t value = value_of(&c->key, &fields[j]);
      if (is_dtype(&fields[j])) put(&w, "%s=%s ", fields[j].name, dtypes[value]);
      else put(&w, "%s=%" PRId64 " ", fields[j].name, value);
    }
    put(&w, "first=%.3f best=%.3f algorithm=", fmin(c->first, 1e9), fmin(c->best, 1e9));
    for (int j = 0; j < GB_ALGORITHM_WORDS; j++) put(&w, "%016" PRIx64, c->algorithm[j]);
    put(&w, "\n");
  }
  return w.used;
}

/* ====} */
