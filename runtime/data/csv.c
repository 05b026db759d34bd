/* data/csv.c - tables of text as datasets (RFC 4180): columns of numbers become a row of float32, columns of anything
 * else ids of categories.
 *
 * The file is split in its own memory: each field is unquoted where it lies and ended by a NUL, so a field never passes
 * what is still to be read. One walk over the fields tells numbers from categories and sums, one fills the tensors.
 * What was learned from the columns, their means and categories, is the dataset's gb_fields; a dataset that is `fitted`
 * to another uses that one's. Left out: thousands separators, dates, comments, separators of more than one byte. */
#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/csv.h"
#include "data/readers.h"
#include "io/file.h"

#define FIELD_MOST ((size_t)1 << 16) /* bytes; more is a quote that was never closed */
#define COLUMNS_MOST (1 << 20)
#define NUMBER_MOST 128              /* characters of a number */
#define WORK 64                      /* of a field that is looked at, towards a piece */

/* What stands for a value that is missing: what pandas.read_csv takes for one. */
static const char *const markers[] = { "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
                                       "1.#QNAN", "<NA>", "N/A",
                                       "NA", "NULL", "NaN", "None", "n/a", "nan", "null", NULL };

/* What a recipe may want of a column. */
enum { UNSAID, NUMBER, CATEGORY, SKIP };
static const char *const wishes[] = { [NUMBER] = "number", [CATEGORY] = "category", [SKIP] = "skip" };

typedef struct column {
  const char *name;
  int wish, field;                   /* field: which one of the fit it is, -1: none */
  bool is_text;
  int64_t values;                    /* how many are there */
  double mean, squares;              /* running, by Welford's method */
} column;

/* The file while it is read. */
typedef struct table {
  gb_context *context;
  const char *path;
  char *text, separator;
  size_t bytes;
  bool quotes, decimal_comma, refuse_missing;
  const gb_option *more_markers;
  int64_t columns, rows, room, here, work;   /* here: the line that is read; work: since the last look for a stop */
  int64_t *line;                     /* of each row, the header among them */
  int64_t first;                     /* the first row that is data */
  const char *cells;                 /* its first field */
  column *column;
  char *numbers;                     /* names of columns that have none */
} table;

/* What was learned; a gb_fields to the outside. */
typedef struct fit {
  gb_fields fields;
  struct fit *of;                    /* whose names and categories these are; NULL: its own */
  bool standardize;
  int target;                        /* -1: none */
  char *names;
  gb_field field[];
} fit;

static void release_fit(gb_fields *fields) {
  fit *f = (fit *)fields;
  for (int i = 0; i < fields->count && !f->of; i++) gb_counted_free((void *)f->field[i].words);
  if (f->of) gb_fields_release(&f->of->fields);
  gb_counted_free(f->names);
  gb_counted_free(f);
}

/* {==== Errors ==== */

static GB_PRINTF(3, 4) gb_status bad_line(table *t, int64_t line, const char *format, ...) {
  char text[640];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return gb_fail(t->context, GB_EFORMAT, "'%s', line %" PRId64 ": %s", t->path, line, text);
}

static GB_PRINTF(4, 5) gb_status bad_cell(table *t, int64_t row, int64_t c, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return bad_line(t, t->line[row], "column %" PRId64 " ('%.60s'): %s", c + 1, t->column[c].name, text);
}

/* ====} */

/* {==== Splitting ==== */

enum { END, SEPARATOR, LINE };

static bool is_line_end(char c) { return c == '\n' || c == '\r'; }

/* Move *at past the end of a line, of one or two bytes. */
static void pass_line(table *t, size_t *at) {
  *at += 1 + (t->text[*at] == '\r' && t->text[*at + 1] == '\n');
  t->here++;
}

/* The inside of the quoted field whose quote is at *at; it is left behind the closing quote. */
static gb_status read_quoted(table *t, size_t *at, size_t *to) {
  char *text = t->text;
  size_t i = *at + 1, start = *to;
  int64_t opened = t->here;
  for (;; i++) {
    if (text[i] == '"' && text[++i] != '"') break;
    if (i >= t->bytes || *to - start > FIELD_MOST)
      return bad_line(t, opened, "a quote is opened and not closed within %zu bytes; quotes within a field are written "
                      "twice, and with quotes = false they mean nothing", i - *at);
    if (!text[i]) return bad_line(t, t->here, "a zero byte: this is no text in UTF-8; save the file as that");
    t->here += text[i] == '\n' || (text[i] == '\r' && text[i + 1] != '\n');
    text[(*to)++] = text[i];
  }
  *at = i;
  if (i == t->bytes || text[i] == t->separator || is_line_end(text[i])) return GB_OK;
  return bad_line(t, t->here, "text behind a closing quote; quotes within a field are written twice, and with quotes = "
                  "false they mean nothing");
}

static gb_status read_plain(table *t, size_t *at, size_t *to) {
  char *text = t->text;
  size_t i = *at;
  for (; i < t->bytes && text[i] != t->separator && !is_line_end(text[i]); i++) {
    if (text[i] == '"' && t->quotes)
      return bad_line(t, t->here, "a quote within a field that does not begin with one; quote the whole field and "
                      "write quotes within it twice, or say quotes = false");
    if (!text[i]) return bad_line(t, t->here, "a zero byte: this is no text in UTF-8; save the file as that");
    if (i - *at > FIELD_MOST) return bad_line(t, t->here, "a field of more than %zu bytes", FIELD_MOST);
    text[(*to)++] = text[i];
  }
  *at = i;
  return GB_OK;
}

/* Read the field at *at; its text goes to *to. Gives what ended it. */
static gb_status read_field(table *t, size_t *at, size_t *to, int *end) {
  size_t before = *at;
  GB_TRY(t->quotes && t->text[*at] == '"' ? read_quoted(t, at, to) : read_plain(t, at, to));
  *end = *at >= t->bytes ? END : t->text[*at] == t->separator ? SEPARATOR : LINE;
  if (*end == SEPARATOR) ++*at;
  if (*end == LINE) pass_line(t, at);
  t->text[(*to)++] = '\0';
  return gb_poll_work(t->context, &t->work, (int64_t)(*at - before) + 1);
}

/* One more row, which began on this line and has so many fields. */
static gb_status add_row(table *t, int64_t line, int64_t fields) {
  if (t->rows == 0) t->columns = fields;
  if (fields > COLUMNS_MOST)
    return bad_line(t, line, "%" PRId64 " fields; at most %d are possible", fields, COLUMNS_MOST);
  if (fields != t->columns)
    return bad_line(t, line, "%" PRId64 " fields, but line %" PRId64 " has %" PRId64 "; quote fields that hold a '%c', "
                    "or choose another separator", fields, t->line[0], t->columns, t->separator);
  if (t->rows == t->room) {
    t->room = t->room ? 2 * t->room : 256;
    int64_t *grown = gb_counted_resize(t->context, t->line, (size_t)t->room * sizeof *grown);
    if (!grown) return t->context->error_code;
    t->line = grown;
  }
  t->line[t->rows++] = line;
  return GB_OK;
}

/* Split the text into rows of fields. Empty lines are passed over, and a byte order mark. */
static gb_status split(table *t) {
  size_t at = t->bytes >= 3 && !memcmp(t->text, "\xef\xbb\xbf", 3) ? 3 : 0, to = 0;
  t->here = 1;
  while (at < t->bytes) {
    if (is_line_end(t->text[at])) {
      pass_line(t, &at);
      GB_TRY(gb_poll_work(t->context, &t->work, 1));
      continue;
    }
    int64_t line = t->here, fields = 0;
    for (int end = SEPARATOR; end == SEPARATOR; fields++) GB_TRY(read_field(t, &at, &to, &end));
    GB_TRY(add_row(t, line, fields));
  }
  return t->rows ? GB_OK : gb_fail(t->context, GB_EFORMAT, "'%s' is empty", t->path);
}

/* ====} */

/* {==== Values ==== */

/* The field without blanks around it. */
static const char *trim(const char *cell, size_t *length) {
  while (*cell == ' ' || *cell == '\t') cell++;
  *length = strlen(cell);
  while (*length && (cell[*length - 1] == ' ' || cell[*length - 1] == '\t')) --*length;
  return cell;
}

static bool is_missing(const table *t, const char *cell) {
  size_t length;
  cell = trim(cell, &length);
  for (int i = 0; markers[i] && (!length || strchr("#-1<Nn", *cell)); i++)
    if (strlen(markers[i]) == length && !memcmp(cell, markers[i], length)) return true;
  for (int i = 0; i < t->more_markers->count; i++)
    if (t->more_markers->list[i].length == length && !memcmp(cell, t->more_markers->list[i].string,
                                                             length)) return true;
  return false;
}

static size_t digits(const char *at) { return strspn(at, "0123456789"); }

static bool is_infinity(const char *cell, size_t length) {
  static const char *const words[] = { "inf", "Inf", "INF", "infinity", "Infinity", "INFINITY" };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (length == strlen(words[i]) && !memcmp(cell, words[i], length)) return true;
  return false;
}

/* Is the field a number? Infinities are: whoever holds one says where. Up to 15 digits are a whole number of a double,
 * and its quotient by a power of ten that is one too is rounded right (Clinger 1990); for the rest there is strtod,
 * which wants the point of the host's locale. */
static bool parse_number(const table *t, const char *cell, double *value) {
  static const double tens[] = { 1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
  size_t length, part = 0, exponent = 0;
  cell = trim(cell, &length);
  size_t sign = *cell == '-' || *cell == '+', whole = digits(cell + sign), end = sign + whole;
  const char *fraction = cell + end + 1;
  if (!length || length > NUMBER_MOST) return false;
  if (is_infinity(cell + sign, length - sign)) return *value = *cell == '-' ? -INFINITY : INFINITY, true;
  if (cell[end] == (t->decimal_comma ? ',' : '.')) {
    part = digits(fraction);
    end += 1 + part;
  }
  if (whole + part == 0) return false;
  if (cell[end] == 'e' || cell[end] == 'E') {
    exponent = 1 + (cell[end + 1] == '-' || cell[end + 1] == '+');
    if (!digits(cell + end + exponent)) return false;
    exponent += digits(cell + end + exponent);
  }
  if (end + exponent != length) return false;
  if (whole + part <= 15 && !exponent) {
    int64_t n = 0;
    for (size_t i = 0; i < whole; i++) n = 10 * n + (cell[sign + i] - '0');
    for (size_t i = 0; i < part; i++) n = 10 * n + (fraction[i] - '0');
    *value = (double)n / tens[part] * (*cell == '-' ? -1 : 1);
    return true;
  }
  char text[NUMBER_MOST + 16];
  snprintf(text, sizeof text, "%.*s%s%.*s%.*s", (int)(sign + whole), cell, part ? localeconv()->decimal_point : "",
           (int)part, fraction,
           (int)exponent, cell + end);
  *value = strtod(text, NULL);
  return true;
}

static const char *next_cell(const char *cell) { return cell + strlen(cell) + 1; }

/* ====} */

/* {==== Columns ==== */

/* The names: given, or of the header, or 1, 2, ... */
static gb_status name_columns(table *t, const gb_reading *given) {
  const gb_option *names = gb_reading_option(given, "names");
  bool header = gb_reading_bool(given, "header");
  t->column = gb_counted_alloc(t->context, (size_t)t->columns * sizeof *t->column);
  if (!header) t->numbers = gb_counted_alloc(t->context, (size_t)t->columns * 24);
  if (!t->column || (!header && !t->numbers)) return t->context->error_code;
  if (names->kind == GB_OPTION_LIST && names->count != t->columns)
    return gb_fail(t->context, GB_EINVAL, "csv: there are %d names, and '%s' has %" PRId64 " columns", names->count,
                   t->path, t->columns);
  t->cells = t->text;
  for (int64_t c = 0; c < t->columns; c++) {
    t->column[c] = (column){ .name = t->cells, .field = -1 };
    if (header) t->cells = next_cell(t->cells);
    else {
      t->column[c].name = t->numbers + 24 * c;
      snprintf(t->numbers + 24 * c, 24, "%" PRId64, c + 1);
    }
  }
  for (int i = 0; i < names->count; i++) {
    const gb_option *name = &names->list[i];
    if (name->kind != GB_OPTION_STRING || strlen(name->string) != name->length || name->position < 1
        || name->position > t->columns)
      return gb_fail(t->context, GB_EINVAL, "csv: 'names' is a list of strings, one for each column");
    t->column[name->position - 1].name = name->string;
  }
  t->first = header;
  return t->rows > t->first ? GB_OK : gb_fail(t->context, GB_EFORMAT, "'%s' has no rows below its header", t->path);
}

/* Which rows of data are kept, by their positions: the cells of the others are taken out, their order stays. */
static gb_status keep_rows(table *t, const gb_option *rows) {
  int64_t count = t->rows - t->first, kept = 0;
  if (rows->kind == GB_OPTION_NONE) return GB_OK;
  bool *keep = gb_counted_alloc(t->context, (size_t)count);
  gb_status status = keep ? GB_OK : t->context->error_code;
  for (int i = 0; i < rows->count && status == GB_OK; i++) {
    double row = rows->list[i].kind == GB_OPTION_NUMBER ? rows->list[i].number : 0;
    if (row >= 1 && row <= (double)count && row == floor(row)) keep[(int64_t)row - 1] = true;
    else status = gb_fail(t->context, GB_EINVAL, "csv: 'rows' is a list of positions from 1 to %" PRId64 ", the rows "
                          "of '%s'; element %" PRId64 " is %s", count, t->path, rows->list[i].position,
                          rows->list[i].kind == GB_OPTION_NUMBER ? "none" : "no number");
    if (status == GB_OK) status = gb_poll_work(t->context, &t->work, 1);
  }
  char *to = (char *)t->cells;
  const char *cell = t->cells;
  for (int64_t row = 0; row < count && status == GB_OK; row++) {
    const char *begin = cell;
    for (int64_t c = 0; c < t->columns; c++) cell = next_cell(cell);
    status = gb_poll_work(t->context, &t->work, cell - begin + 1);
    if (!keep[row]) continue;
    memmove(to, begin, (size_t)(cell - begin));
    to += cell - begin;
    t->line[t->first + kept++] = t->line[t->first + row];
  }
  gb_counted_free(keep);
  t->rows = t->first + kept;
  if (status != GB_OK || kept) return status;
  return gb_fail(t->context, GB_EINVAL, "csv: 'rows' names no row of '%s'", t->path);
}

static int64_t find_name(const table *t, const char *name) {
  for (int64_t c = 0; c < t->columns; c++)
    if (!strcmp(t->column[c].name, name)) return c;
  return -1;
}

/* The column of that name, or position. */
static gb_status find_column(table *t, const char *option, const char *name, size_t length, double position,
                             int64_t *out) {
  GB_TRY(gb_poll_work(t->context, &t->work, t->columns));
  if (name && strlen(name) == length) *out = find_name(t, name);
  else *out = !name && fabs(position) >= 1 && fabs(position) <= (double)t->columns ? (int64_t)position - 1 : -1;
  if (!name && *out < -1) *out += t->columns + 1;
  if (*out >= 0) return GB_OK;
  if (name)
    return gb_fail(t->context, GB_EINVAL, "csv: '%s' names '%.60s', which is no column of '%s'; it has %" PRId64 ", "
                   "'%.60s' first and '%.60s' last", option, name, t->path, t->columns, t->column[0].name,
                   t->column[t->columns - 1].name);
  return gb_fail(t->context, GB_EINVAL, "csv: '%s' names column %.17g; '%s' has %" PRId64 ", counted from 1, or from "
                 "-1 for the last", option, position, t->path, t->columns);
}

/* What the recipe wants of columns. */
static gb_status read_wishes(table *t, const gb_option *columns) {
  for (int i = 0; i < columns->count; i++) {
    const gb_option *o = &columns->list[i];
    int64_t c;
    GB_TRY(find_column(t, "columns", o->name, o->name ? strlen(o->name) : 0, (double)o->position, &c));
    for (int w = NUMBER; w <= SKIP; w++)
      if (o->kind == GB_OPTION_STRING && !strcmp(o->string, wishes[w])) t->column[c].wish = w;
    if (t->column[c].wish == UNSAID)
      return gb_fail(t->context, GB_EINVAL, "csv: 'columns' says of each column \"number\", \"category\" or \"skip\"; "
                     "of '%.60s' it says %.40s", t->column[c].name,
                     o->kind == GB_OPTION_STRING ? o->string : "something that is no string");
  }
  return GB_OK;
}

/* Tell numbers from text, and sum. */
static gb_status study(table *t) {
  const char *cell = t->cells;
  for (int64_t row = t->first; row < t->rows; row++)
    for (int64_t c = 0; c < t->columns; c++, cell = next_cell(cell)) {
      column *k = &t->column[c];
      double value;
      GB_TRY(gb_poll_work(t->context, &t->work, WORK));
      if (k->wish == SKIP || is_missing(t, cell)) continue;
      k->values++;
      if (k->is_text || k->wish == CATEGORY) continue;
      if (!parse_number(t, cell, &value)) {
        k->is_text = true;
        if (k->wish == NUMBER)
          return bad_cell(t, row, c, "'%.40s' is no number; leave the column out (\"skip\"), make it a \"category\", "
                          "or list it in markers if it stands for a missing value", cell);
        continue;
      }
      double off = value - k->mean;
      k->mean += off / (double)k->values;
      k->squares += off * (value - k->mean);
    }
  return GB_OK;
}

/* ====} */

/* {==== Categories ==== */

/* Sort words[0 .. n-1] and drop what is there twice; room is as long. Gives how many are left. */
static gb_status sort_words(table *t, const char **words, int64_t n, const char **room, int64_t *left) {
  int64_t low, high, half = n / 2, i = 0, k = 0;
  *left = n;
  if (n < 2) return GB_OK;
  GB_TRY(sort_words(t, words, half, room, &low));
  GB_TRY(sort_words(t, words + half, n - half, room, &high));
  for (int64_t j = half; i < low || j < half + high; k++) {
    int order = i == low ? 1 : j == half + high ? -1 : strcmp(words[i], words[j]);
    room[k] = order > 0 ? words[j] : words[i];
    i += order <= 0;
    j += order >= 0;
    GB_TRY(gb_poll_work(t->context, &t->work, WORK));
  }
  memcpy(words, room, (size_t)k * sizeof *words);
  *left = k;
  return GB_OK;
}

/* Names must differ: columns are found by them. */
static gb_status check_names(table *t) {
  size_t count = (size_t)t->columns;
  int64_t left = 0;
  const char **names = gb_counted_alloc(t->context, 2 * count * sizeof *names);
  if (!names) return t->context->error_code;
  for (size_t c = 0; c < count; c++) names[c] = t->column[c].name;
  gb_status status = sort_words(t, names, t->columns, names + count, &left);
  gb_counted_free(names);
  if (status != GB_OK || left == t->columns) return status;
  for (int64_t c = 0; c < t->columns; c++) {
    int64_t first = find_name(t, t->column[c].name);
    if (first < c)
      return bad_line(t, t->line[0], "columns %" PRId64 " and %" PRId64 " have one name, '%.60s'; give names = { ... } "
                      "of your own", first + 1, c + 1, t->column[c].name);
    GB_TRY(gb_poll_work(t->context, &t->work, c + 1));
  }
  return GB_OK;
}

/* The words of a field for good: pointers, and the texts behind them. */
static gb_status keep_words(table *t, gb_field *field, const char *const *words, int64_t count) {
  size_t bytes = (size_t)count * sizeof *words;
  for (int64_t i = 0; i < count; i++) bytes += strlen(words[i]) + 1;
  const char **kept = gb_counted_alloc(t->context, bytes);
  if (!kept) return t->context->error_code;
  field->words = kept;
  char *text = (char *)(kept + count);
  for (int64_t i = 0; i < count; i++) {
    size_t length = strlen(words[i]) + 1;
    kept[i] = memcpy(text, words[i], length);
    text += length;
    GB_TRY(gb_poll_work(t->context, &t->work, WORK));
  }
  field->count = count;
  return GB_OK;
}

/* The categories of every field that has some, from one walk. words: of all these fields, one behind the other, and as
 * many more to sort in. */
static gb_status learn_categories(table *t, fit *f, const char **words, int64_t all) {
  const char *cell = t->cells;
  int64_t at = 0, left;
  for (int64_t c = 0; c < t->columns; c++) { /* values becomes where the next word of the column goes */
    if (t->column[c].field < 0 || !f->field[t->column[c].field].is_category) continue;
    int64_t values = t->column[c].values;
    t->column[c].values = at;
    at += values;
  }
  for (int64_t row = t->first; row < t->rows; row++)
    for (int64_t c = 0; c < t->columns; c++, cell = next_cell(cell)) {
      GB_TRY(gb_poll_work(t->context, &t->work, WORK));
      if (t->column[c].field < 0 || !f->field[t->column[c].field].is_category || is_missing(t, cell)) continue;
      words[t->column[c].values++] = cell;
    }
  at = 0;
  for (int64_t c = 0; c < t->columns; c++) {
    if (t->column[c].field < 0 || !f->field[t->column[c].field].is_category) continue;
    GB_TRY(sort_words(t, words + at, t->column[c].values - at, words + all, &left));
    GB_TRY(keep_words(t, &f->field[t->column[c].field], words + at, left));
    at = t->column[c].values;
  }
  return GB_OK;
}

/* The id of a word; as many as there are where it is none of them. */
static int64_t id_of(const gb_field *field, const char *word) {
  int64_t low = 0, high = field->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int order = strcmp(word, field->words[middle]);
    if (order == 0) return middle;
    if (order > 0) low = middle + 1;
    else high = middle;
  }
  return field->count;
}

/* ====} */

/* {==== Fits ==== */

static fit *new_fit(table *t, int count) {
  fit *f = gb_counted_alloc(t->context, sizeof *f + (size_t)count * sizeof *f->field);
  if (!f) return NULL;
  atomic_init(&f->fields.refs, 1);
  f->fields.count = count;
  f->fields.field = f->field;
  f->fields.release = release_fit;
  f->target = -1;
  return f;
}

/* Fill in the fields of a new fit, from what was found in the columns. */
static gb_status fill_fit(table *t, fit *f, int64_t target) {
  size_t bytes = 1;
  int64_t words = 0;
  int n = 0;
  for (int64_t c = 0; c < t->columns; c++) bytes += t->column[c].wish == SKIP ? 0 : strlen(t->column[c].name) + 1;
  f->names = gb_counted_alloc(t->context, bytes);
  if (!f->names) return t->context->error_code;
  char *name = f->names;
  for (int64_t c = 0; c < t->columns; c++) {
    column *k = &t->column[c];
    if (k->wish == SKIP) continue;
    if (!k->values)
      return gb_fail(t->context, GB_EFORMAT, "'%s': column %" PRId64 " ('%.60s') has no value in any row; leave it "
                     "out: columns = { [%" PRId64 "] = \"skip\" }", t->path, c + 1, k->name, c + 1);
    bool is_category = k->is_text || k->wish == CATEGORY;
    double std = sqrt(k->squares / (double)k->values);
    f->field[n] = (gb_field){ .name = strcpy(name, k->name), .tensor = c == target ? "y" : is_category ? "ids" : "x",
                              .is_category = is_category, .mean = is_category ? 0 : k->mean,
                              .std = is_category ? 0 : std };
    name += strlen(name) + 1;
    if (c == target) f->target = n;
    if (is_category) words += k->values;
    k->field = n++;
  }
  if (!words) return GB_OK;
  const char **memory = gb_counted_alloc(t->context, 2 * (size_t)words * sizeof *memory);
  if (!memory) return t->context->error_code;
  gb_status status = learn_categories(t, f, memory, words);
  gb_counted_free(memory);
  return status;
}

/* Learn what the columns are. */
static gb_status learn(table *t, const gb_reading *given, fit **out) {
  const gb_option *target = gb_reading_option(given, "target");
  int64_t at = -1;
  int count = 0;
  GB_TRY(read_wishes(t, gb_reading_option(given, "columns")));
  if (target->kind != GB_OPTION_NONE) {
    GB_TRY(find_column(t, "target", target->string, target->length, target->number, &at));
    if (t->column[at].wish == SKIP)
      return gb_fail(t->context, GB_EINVAL, "csv: the column '%.60s' is the target, and 'columns' leaves it out",
                     t->column[at].name);
  }
  GB_TRY(study(t));
  for (int64_t c = 0; c < t->columns; c++) count += t->column[c].wish != SKIP;
  if (count - (at >= 0) == 0)
    return gb_fail(t->context, GB_EINVAL, "csv: '%s' has no column beside the target and those that are left out",
                   t->path);
  *out = new_fit(t, count);
  if (!*out) return t->context->error_code;
  (*out)->standardize = gb_reading_bool(given, "standardize");
  return fill_fit(t, *out, at);
}

/* Take over what another dataset learned; its columns are found by their names, and the target may be absent. */
static gb_status take_fit(table *t, const gb_reading *given, const gb_dataset *other, fit **out) {
  static const char *const learned[] = { "target", "columns", "standardize" };
  for (size_t i = 0; i < sizeof learned / sizeof *learned; i++)
    if (gb_reading_option(given, learned[i])->kind != GB_OPTION_NONE)
      return gb_fail(t->context, GB_EINVAL, "csv: '%s' comes with 'fitted'; leave it out", learned[i]);
  if (!other->fields || other->fields->release != release_fit)
    return gb_fail(t->context, GB_EINVAL, "csv: 'fitted' must be a dataset of gb.data.csv, or a part of one");
  fit *from = (fit *)other->fields, *root = from->of ? from->of : from, *f = new_fit(t, from->fields.count);
  if (!f) return t->context->error_code;
  f->of = root;
  gb_fields_retain(&root->fields);
  f->standardize = root->standardize;
  f->target = root->target;
  *out = f;
  for (int i = 0; i < root->fields.count; i++) {
    int64_t c = find_name(t, root->field[i].name);
    GB_TRY(gb_poll_work(t->context, &t->work, t->columns));
    f->field[i] = root->field[i];
    f->field[i].missing = f->field[i].unseen = 0;
    if (c >= 0) t->column[c].field = i;
    else if (i == f->target) f->field[i].tensor = NULL;
    else return gb_fail(t->context, GB_EFORMAT, "'%s' has no column '%.60s', which the fitted data has", t->path,
                        root->field[i].name);
  }
  return GB_OK;
}

/* ====} */

/* {==== Samples ==== */

/* Columns of samples: the tensor, and a sample's next place in it. */
typedef struct samples { gb_tensor *x, *ids, *y; float *next_x; int64_t *next_id; void *next_y; } samples;

/* A row of so many for each sample; -1: a single one; 0: no tensor. */
static gb_status make_tensor(table *t, gb_dtype dtype, int64_t width, gb_tensor **out) {
  if (!width) return GB_OK;
  int64_t shape[2] = { t->rows - t->first, width };
  return gb_tensor_new(t->context, dtype, width < 0 ? 1 : 2, shape, (gb_device){ GB_CPU, 0 }, out);
}

/* The value of a field that is missing, or an error. */
static gb_status fill_missing(table *t, fit *f, int64_t row, int64_t c) {
  int i = t->column[c].field;
  if (i == f->target) return bad_cell(t, row, c, "the target is missing; take such rows out of the file");
  if (t->refuse_missing) return bad_cell(t, row, c, "the value is missing; missing = \"fill\" takes the mean, or an id "
                                         "of its own, in its place");
  f->field[i].missing++;
  return GB_OK;
}

static gb_status add_number(table *t, fit *f, samples *s, int64_t row, int64_t c, const char *cell) {
  const gb_field *field = &f->field[t->column[c].field];
  double value = field->mean;
  bool is_target = t->column[c].field == f->target, missing = is_missing(t, cell);
  if (missing) GB_TRY(fill_missing(t, f, row, c));
  else if (!parse_number(t, cell, &value))
    return bad_cell(t, row, c, "'%.40s' is no number, and the fitted data has numbers here", cell);
  bool is_finite = fabs(value) <= FLT_MAX;
  if (f->standardize && !is_target) value = (value - field->mean) / (field->std > 0 ? field->std : 1);
  if (!missing && !(is_finite && fabs(value) <= FLT_MAX))
    return bad_cell(t, row, c, "'%.40s' is not finite in float32; correct it, or list it in markers if it stands for a "
                    "missing value", cell);
  if (!is_target) *s->next_x++ = (float)value;
  else *(float *)s->next_y = (float)value, s->next_y = (float *)s->next_y + 1;
  return GB_OK;
}

static gb_status add_category(table *t, fit *f, samples *s, int64_t row, int64_t c, const char *cell) {
  gb_field *field = &f->field[t->column[c].field];
  bool is_target = t->column[c].field == f->target, missing = is_missing(t, cell);
  int64_t id = missing ? field->count : id_of(field, cell);
  if (missing) GB_TRY(fill_missing(t, f, row, c));
  else if (id == field->count) {
    if (is_target || t->refuse_missing)
      return bad_cell(t, row, c, "'%.40s' is none of the %" PRId64 " categories of the fitted data", cell,
                      field->count);
    field->unseen++;
  }
  if (!is_target) *s->next_id++ = id;
  else *(int64_t *)s->next_y = id, s->next_y = (int64_t *)s->next_y + 1;
  return GB_OK;
}

/* Walk over the data once more. order: the columns that count, in the order of the fit's fields. */
static gb_status fill_samples(table *t, fit *f, samples *s, const char **cells, const int64_t *order) {
  const char *cell = t->cells;
  for (int64_t row = t->first; row < t->rows; row++) {
    for (int64_t c = 0; c < t->columns; c++, cell = next_cell(cell))
      if (t->column[c].field >= 0) cells[t->column[c].field] = cell;
    for (int i = 0; i < f->fields.count; i++) {
      if (order[i] < 0) continue;
      GB_TRY(gb_poll_work(t->context, &t->work, WORK));
      GB_TRY((f->field[i].is_category ? add_category : add_number)(t, f, s, row, order[i], cells[i]));
    }
    GB_TRY(gb_poll_work(t->context, &t->work, t->columns));
  }
  return GB_OK;
}

/* The tensors of all samples, in s. */
static gb_status make_samples(table *t, fit *f, samples *s) {
  int64_t numbers = 0, categories = 0;
  bool has_y = f->target >= 0 && f->field[f->target].tensor;
  for (int i = 0; i < f->fields.count; i++) {
    if (i == f->target) continue;
    if (f->field[i].is_category) categories++;
    else numbers++;
  }
  GB_TRY(make_tensor(t, GB_FLOAT32, numbers, &s->x));
  GB_TRY(make_tensor(t, GB_INT64, categories, &s->ids));
  GB_TRY(make_tensor(t, has_y && f->field[f->target].is_category ? GB_INT64 : GB_FLOAT32, has_y ? -1 : 0, &s->y));
  s->next_x = s->x ? (float *)gb_data(s->x) : NULL;
  s->next_id = s->ids ? (int64_t *)gb_data(s->ids) : NULL;
  s->next_y = s->y ? gb_data(s->y) : NULL;
  size_t count = (size_t)f->fields.count;
  int64_t *order = gb_counted_alloc(t->context, count * (sizeof *order + sizeof(char *)));
  if (!order) return t->context->error_code;
  for (size_t i = 0; i < count; i++) order[i] = -1;
  for (int64_t c = 0; c < t->columns; c++)
    if (t->column[c].field >= 0) order[t->column[c].field] = c;
  gb_status status = fill_samples(t, f, s, (const char **)(order + count), order);
  gb_counted_free(order);
  return status;
}

/* A dataset over the samples that knows the fit, which it takes. */
static gb_status make_dataset(table *t, fit *f, gb_dataset **out) {
  samples s = { .x = NULL };
  gb_tensor *columns[3];
  int n = 0;
  gb_status status = make_samples(t, f, &s);
  if (s.x) columns[n++] = s.x;
  if (s.ids) columns[n++] = s.ids;
  if (s.y) columns[n++] = s.y;
  if (status == GB_OK) status = gb_dataset_tensors(t->context, columns, n, out);
  for (int i = 0; i < n; i++) gb_tensor_release(columns[i]);
  if (status == GB_OK) (*out)->fields = &f->fields;
  else gb_fields_release(&f->fields);
  return status;
}

/* ====} */

/* {==== Fits that were kept elsewhere ==== */

/* No sample is there to be asked for. */
static gb_status no_samples(void *user, const int64_t *indices, int64_t n, void *const *out, char *error,
                            size_t error_size) {
  (void)user, (void)indices, (void)n, (void)out;
  return snprintf(error, error_size, "the dataset is empty"), GB_EINDEX;
}

/* A field that makes sense, with the words of a category sorted and different. */
static gb_status check_field(gb_context *context, const gb_field *field, int64_t *work) {
  if (!field->is_category && !(isfinite(field->mean) && isfinite(field->std) && field->std >= 0))
    return gb_fail(context, GB_EINVAL, "csv: the column '%.60s' has the mean %g and the standard deviation %g, which "
                   "no data has", field->name, field->mean, field->std);
  if (field->is_category && !field->count)
    return gb_fail(context, GB_EINVAL, "csv: the column '%.60s' has no categories", field->name);
  for (int64_t i = 1; i < field->count; i++) {
    GB_TRY(gb_poll_work(context, work, WORK));
    if (strcmp(field->words[i - 1], field->words[i]) >= 0)
      return gb_fail(context, GB_EINVAL, "csv: the categories of '%.60s' are not in the order of bytes: '%.60s' stands "
                     "before '%.60s'", field->name, field->words[i - 1], field->words[i]);
  }
  return GB_OK;
}

/* Copy fields into a new fit. */
static gb_status copy_fields(table *t, fit *f, const gb_field *fields, int count) {
  size_t bytes = 1;
  for (int i = 0; i < count; i++) bytes += strlen(fields[i].name) + 1;
  f->names = gb_counted_alloc(t->context, bytes);
  if (!f->names) return t->context->error_code;
  char *name = f->names;
  for (int i = 0; i < count; i++) {
    GB_TRY(check_field(t->context, &fields[i], &t->work));
    bool is_target = fields[i].tensor && *fields[i].tensor == 'y';
    if (is_target && f->target >= 0) return gb_fail(t->context, GB_EINVAL, "csv: two columns are the target");
    if (is_target) f->target = i;
    f->field[i] = (gb_field){ .name = strcpy(name, fields[i].name), .is_category = fields[i].is_category,
                              .tensor = is_target ? "y" : fields[i].is_category ? "ids" : "x",
                              .mean = fields[i].mean, .std = fields[i].std };
    name += strlen(name) + 1;
    if (fields[i].is_category) GB_TRY(keep_words(t, &f->field[i], fields[i].words, fields[i].count));
  }
  return count - (f->target >= 0) > 0 ? GB_OK
      : gb_fail(t->context, GB_EINVAL, "csv: there is no column beside the target");
}

gb_status gb_csv_fitted(gb_context *context, const gb_field *fields, int count, bool standardize, gb_dataset **out) {
  table t = { .context = context };
  fit *f = new_fit(&t, count);
  if (!f) return context->error_code;
  f->standardize = standardize;
  gb_status status = copy_fields(&t, f, fields, count);
  if (status == GB_OK)
    status = gb_dataset_new(context, &(gb_dataset){ .columns = 1, .column = { { .dtype = GB_FLOAT32 } },
                                                    .get_batch = no_samples }, out);
  if (status == GB_OK) (*out)->fields = &f->fields;
  else gb_fields_release(&f->fields);
  return status;
}

/* ====} */

/* {==== The reader ==== */

/* Options about the text itself. */
static gb_status read_format(table *t, const gb_reading *given) {
  const gb_option *separator = gb_reading_option(given, "separator");
  t->quotes = gb_reading_bool(given, "quotes");
  t->decimal_comma = gb_reading_bool(given, "decimal_comma");
  t->refuse_missing = !strcmp(gb_reading_option(given, "missing")->string, "error");
  t->more_markers = gb_reading_option(given, "markers");
  t->separator = separator->string[0];
  if (separator->length != 1 || !t->separator || is_line_end(t->separator) || (t->separator == '"' && t->quotes))
    return gb_fail(t->context, GB_EINVAL, "csv: 'separator' is one byte, such as ',', ';' or a tab, and no quote or "
                   "end of a line");
  for (int i = 0; i < t->more_markers->count; i++)
    if (t->more_markers->list[i].kind != GB_OPTION_STRING)
      return gb_fail(t->context, GB_EINVAL, "csv: 'markers' is a list of strings");
  return GB_OK;
}

static gb_status read_table(table *t, const gb_reading *given, gb_dataset **out) {
  const gb_option *fitted = gb_reading_option(given, "fitted");
  fit *f = NULL;
  GB_TRY(read_format(t, given));
  GB_TRY(gb_file_load(t->context, t->path, &t->text, &t->bytes));
  GB_TRY(split(t));
  GB_TRY(name_columns(t, given));
  GB_TRY(check_names(t));
  GB_TRY(keep_rows(t, gb_reading_option(given, "rows")));
  gb_status status = fitted->kind == GB_OPTION_DATASET ? take_fit(t, given, fitted->dataset, &f) : learn(t, given, &f);
  if (status == GB_OK) return make_dataset(t, f, out);
  if (f) gb_fields_release(&f->fields);
  return status;
}

static gb_status open_csv(gb_context *context, const gb_reading *given, gb_dataset **out) {
  table t = { .context = context, .path = given->path[0] };
  gb_status status = read_table(&t, given, out);
  gb_counted_free(t.text);
  gb_counted_free(t.line);
  gb_counted_free(t.column);
  gb_counted_free(t.numbers);
  return status;
}

const gb_reader gb_reader_csv = {
  "gb.data.csv(path: path; target?: string|int, columns?: table, header: bool = true, names?: list, separator: "
  "string = \",\", decimal_comma: bool = false, quotes: bool = true, missing: \"fill\"|\"error\" = \"fill\", "
  "markers?: list, standardize?: bool, fitted?: dataset, rows?: list) -> dataset: A table of text. A sample is x, a "
  "float32 row of the columns that hold numbers; ids, an int64 row of those that hold anything else, by categories "
  "in the order of bytes, from 0; and y, the column target (its name or position; float32, or int64 of a category). "
  "What there is none of is left out. columns says of a column, by name or position, \"number\", \"category\" or "
  "\"skip\". Missing (empty, NA, NaN, null and the like, and markers): a number becomes the column's mean, a "
  "category the id after the last, as does one that the fitted data lacks. standardize: numbers in x become (x - "
  "mean) / std, by the standard deviation of all rows, or 1 where it is 0. fitted = other uses the columns, means "
  "and categories of another dataset of gb.data.csv, and a file without the target gives no y. rows = { ... } takes "
  "only the rows of these positions, in the order of the file. dataset:columns() tells what was learned. Errors: "
  "rows of different lengths, text that a quote opens and none closes, a target that is missing, a number that is "
  "not finite.",
  open_csv,
};

/* ====} */
