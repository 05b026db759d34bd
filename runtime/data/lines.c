/* data/lines.c - one walk over a file that notes where its lines are. See lines.h. */
#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"

#define PIECE ((size_t)1 << 16) /* bytes looked at once */
#define FIRST_ROOM 256          /* lines */

typedef struct line { uint64_t begin; uint32_t bytes; int64_t number; } line;

struct gb_lines {
  gb_context *context;
  char *path;
  gb_file_reader *file;
  line *line;
  int64_t count, room;
};

/* A line that is being walked over. */
typedef struct walk {
  uint64_t begin;
  size_t bytes, blanks;                /* blanks: at its end */
  int64_t number;
} walk;

/* Note a line, unless there is nothing in it. */
static gb_status add_line(gb_lines *lines, const walk *w, bool returned) {
  if (w->blanks == w->bytes) return GB_OK;
  if (lines->count == lines->room) {
    int64_t room = lines->room ? 2 * lines->room : FIRST_ROOM;
    line *grown = gb_counted_resize(lines->context, lines->line, (size_t)room * sizeof *grown);
    if (!grown) return gb_error_code(lines->context);
    lines->line = grown;
    lines->room = room;
  }
  lines->line[lines->count++] = (line){ w->begin, (uint32_t)(w->bytes - returned), w->number };
  return GB_OK;
}

/* Walk over a piece that begins at byte `at` of the file. last: the byte before. */
static gb_status walk_piece(gb_lines *lines, const char *piece, size_t bytes, uint64_t at, walk *w, char *last) {
  for (size_t i = 0; i < bytes; *last = piece[i++]) {
    char c = piece[i];
    if (c == '\n') {
      GB_TRY(add_line(lines, w, *last == '\r'));
      *w = (walk){ .begin = at + i + 1, .number = w->number + 1 };
      continue;
    }
    if (!c)
      return gb_fail(lines->context, GB_EFORMAT, "'%s', line %" PRId64 ", byte %" PRIu64 " of the file: a zero byte; "
                     "this is no text in UTF-8 or Latin-1, save the file as that", lines->path, w->number, at + i + 1);
    if (++w->bytes > GB_LINE_MOST)
      return gb_fail(lines->context, GB_EFORMAT, "'%s', line %" PRId64 " is longer than %zu bytes; this is no file of "
                     "lines, or they have to be cut", lines->path, w->number, GB_LINE_MOST);
    w->blanks = c == ' ' || c == '\t' || c == '\r' ? w->blanks + 1 : 0;
  }
  return GB_OK;
}

static gb_status walk_file(gb_lines *lines) {
  uint64_t size = gb_file_size(lines->file), at = 0;
  char *piece = gb_counted_alloc(lines->context, PIECE), last = '\n';
  walk w = { .number = 1 };
  gb_status status = piece ? GB_OK : gb_error_code(lines->context);
  int64_t work = 0;
  if (status == GB_OK && size >= 3) {
    status = gb_file_read(lines->file, 0, piece, 3);
    if (status == GB_OK && !memcmp(piece, "\xef\xbb\xbf", 3)) at = w.begin = 3;
  }
  for (size_t some; status == GB_OK && at < size; at += some) {
    some = size - at < PIECE ? (size_t)(size - at) : PIECE;
    status = gb_file_read(lines->file, at, piece, some);
    if (status == GB_OK) status = walk_piece(lines, piece, some, at, &w, &last);
    if (status == GB_OK) status = gb_poll_work(lines->context, &work, 4 * (int64_t)some);
  }
  if (status == GB_OK) status = add_line(lines, &w, last == '\r');
  gb_counted_free(piece);
  return status;
}

gb_status gb_lines_open(gb_context *context, const char *path, gb_lines **out) {
  gb_lines *lines = gb_counted_alloc(context, sizeof *lines);
  if (!lines) return gb_error_code(context);
  lines->context = context;
  lines->path = gb_counted_alloc(context, strlen(path) + 1);
  gb_status status = lines->path ? GB_OK : gb_error_code(context);
  if (status == GB_OK) strcpy(lines->path, path);
  if (status == GB_OK) status = gb_file_open(context, path, &lines->file);
  if (status == GB_OK) status = walk_file(lines);
  if (status != GB_OK) { gb_lines_close(lines); return status; }
  *out = lines;
  return GB_OK;
}

void gb_lines_close(gb_lines *lines) {
  if (!lines) return;
  gb_file_close(lines->file);
  gb_counted_free(lines->path);
  gb_counted_free(lines->line);
  gb_counted_free(lines);
}

int64_t gb_lines_count(const gb_lines *lines) { return lines->count; }
const char *gb_lines_path(const gb_lines *lines) { return lines->path; }
size_t gb_lines_bytes(const gb_lines *lines, int64_t i) { return lines->line[i].bytes; }
int64_t gb_lines_number(const gb_lines *lines, int64_t i) { return lines->line[i].number; }

gb_status gb_lines_read(gb_lines *lines, int64_t i, char *to) {
  return gb_file_read(lines->file, lines->line[i].begin, to, lines->line[i].bytes);
}
