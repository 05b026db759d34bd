/* history.h - the file of what was entered: $XDG_STATE_HOME/gibbous/history, an entry a line, oldest first. The lines
 * of one entry are parted by the byte 31 (the "unit separator") there, so a file that knows nothing of such entries is
 * read as ever. */
#ifndef GB_REPL_HISTORY_H
#define GB_REPL_HISTORY_H

enum { HISTORY_LINES = 2000 }; /* that are kept */

/* The file's path, its folders made where they are missing; to be freed. NULL: there is no place for it, and no history
 * is kept. */
char *history_path(void);
/* Give each entry of the file, oldest first. */
void history_load(const char *path, void (*line)(void *user, const char *text), void *user);
/* Append an entry. Two programs may do so at a time, and one of them may be shortening the file. */
void history_append(const char *path, const char *text);

#endif
