/* line.h - reads lines from whoever sits at the terminal: with editing, history and completion where libedit is there,
 * plainly where not. */
#ifndef GB_REPL_LINE_H
#define GB_REPL_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct line line;

/* What Tab does: `insert` goes in at the cursor, `list` is shown below the line. Either may be NULL; both are freed by
 * the reader. */
typedef struct line_completion { char *insert, *list; } line_completion;
typedef line_completion (*line_complete)(void *user, const char *text, size_t cursor);

typedef enum line_end { LINE_READ, LINE_INTERRUPTED, LINE_CLOSED } line_end;

/* NULL: no memory. Editing is for terminals only: elsewhere neither prompts nor history. Until the lines are closed
 * SIGINT ends the program no more, but the read that is going on, or else the next one. */
line *line_open(const char *program, line_complete complete, void *user);
void line_close(line *l);
/* *out is the line without its end, to be freed; NULL unless LINE_READ. What was pasted at once, and what was recalled,
 * has newlines inside. */
line_end line_read(line *l, const char *prompt, char **out);
/* Put a line into the history, and into its file. */
void line_keep(line *l, const char *text);
/* Is there a prompt, since somebody sits there? */
bool line_is_terminal(const line *l);

#endif
