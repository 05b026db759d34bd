/* history.h - the file of lines that were entered: $XDG_STATE_HOME/gibbous/history, one line each, oldest first. */
#ifndef GB_REPL_HISTORY_H
#define GB_REPL_HISTORY_H

enum { HISTORY_LINES = 2000 }; /* that are kept */

/* The file's path, its folders made where they are missing; to be freed. NULL: there is no place for it, and no history is kept. */
char *history_path(void);
/* Give each line of the file, oldest first. */
void history_load(const char *path, void (*line)(void *user, const char *text), void *user);
/* Append a line. Two programs may do so at a time, and one of them may be shortening the file. */
void history_append(const char *path, const char *text);

#endif
