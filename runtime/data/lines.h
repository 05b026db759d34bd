/* data/lines.h - a file of text, line by line: where its lines begin is found once, each is read when it is wanted.
 *
 * A line ends by "\n" or "\r\n"; empty ones and those of blanks alone are passed over, but counted, and so is a byte
 * order mark. A zero byte, and a line of more than GB_LINE_MOST bytes, are errors: such a file is no text. */
#ifndef GB_DATA_LINES_H
#define GB_DATA_LINES_H

#include "tensor/context.h"

#define GB_LINE_MOST ((size_t)1 << 24) /* bytes */

typedef struct gb_lines gb_lines;

gb_status gb_lines_open(gb_context *context, const char *path, gb_lines **out);
void gb_lines_close(gb_lines *lines);                          /* NULL is fine */
int64_t gb_lines_count(const gb_lines *lines);                 /* of those that hold something */
const char *gb_lines_path(const gb_lines *lines);
/* Of line i, from 0: its bytes without the end, and its number in the file, from 1. */
size_t gb_lines_bytes(const gb_lines *lines, int64_t i);
int64_t gb_lines_number(const gb_lines *lines, int64_t i);
/* Its bytes, without a NUL behind them. */
gb_status gb_lines_read(gb_lines *lines, int64_t i, char *to);

#endif
