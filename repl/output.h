/* output.h - what was printed must have arrived: a full disk must not pass for success.
 *
 * `print` and io.write in a script go on where standard output cannot be written, as they do under `lua`; the program
 * then ends with a line on standard error and status 1, whatever ends it. A reader that went away ends it by SIGPIPE,
 * as it does other tools, or in this same way where that signal is ignored. A terminal is not asked: a write to it that
 * Ctrl-C broke off is no lost output, and who closes it looks at no status. */
#ifndef GB_REPL_OUTPUT_H
#define GB_REPL_OUTPUT_H

void output_check_at_exit(const char *program);

#endif
