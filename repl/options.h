/* options.h - the command line: what `lua` takes, with its meaning, and what gibbous adds. */
#ifndef GB_REPL_OPTIONS_H
#define GB_REPL_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

/* The command line, read. A long option that was not given is NULL; a flag that was given is its own name. */
typedef struct options {
  int argc;
  char **argv;
  const char *program;       /* before messages: argv[0]; NULL at the prompt */
  int script;                /* index of the script's name in argv; argc: none */
  bool interactive, version, no_environment, statements, modules;
  const char *device, *threads, *sandbox, *memory, *time, *doctor, *json, *recipes, *help, *about;
} options;

/* One row: how an option is written, what follows it, its line in the list. Rows with one dash are those of `lua`. */
typedef struct option { const char *name, *value; size_t slot; const char *doc; } option;
extern const option option_table[]; /* ended by a NULL name */

/* Read the command line. False: it was not understood, which has been said on standard error. */
bool options_read(options *o, int argc, char **argv);
/* The value of the option -kind (e or l) at argv[*i], or NULL where another one stands there; *i moves to the option's
 * last word. */
const char *options_value(const options *o, char kind, int *i);
/* "program: text" on standard error. */
void options_complain(const options *o, const char *text);
/* The list of all options. */
void options_list(FILE *to);

#endif
