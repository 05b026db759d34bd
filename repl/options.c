/* options.c - reads the command line.
 *
 * Options of one dash are those of `lua`, and what is said of a bad one is what `lua` says, to the letter: scripts that
 * check messages and exit codes must not see a difference. Options of two dashes are ours; all of them are checked
 * before anything runs. */
#include "options.h"

#include <stddef.h>
#include <string.h>

#include "binding.h"

#define SLOT(field) offsetof(options, field)
enum { LUA = 0 }; /* the slot of those that `lua` has */

const option option_table[] = {
  { "-e", "stat", LUA, "execute string 'stat'" },
  { "-i", NULL, LUA, "enter interactive mode after executing 'script'" },
  { "-l", "mod", LUA, "require library 'mod' into global 'mod'" },
  { "-l", "g=mod", LUA, "require library 'mod' into global 'g'" },
  { "-v", NULL, LUA, "show version information" },
  { "-E", NULL, LUA, "ignore environment variables" },
  { "-W", NULL, LUA, "turn warnings on" },
  { "--", NULL, LUA, "stop handling options" },
  { "-", NULL, LUA, "stop handling options and execute stdin" },
  { "--device", "D", SLOT(device), "make tensors on device D where none is named: cpu, cuda or cuda:N" },
  { "--threads", "N", SLOT(threads), "run kernels on N threads; the default is one per core" },
  { "--sandbox", NULL, SLOT(sandbox), "computation only: no files, processes, native modules or bytecode" },
  { "--memory", "N", SLOT(memory), "stop when Lua or tensors would hold more than N bytes (or 500K, 200M, 2G)" },
  { "--time", "N", SLOT(time), "stop after N seconds; without --sandbox not inside one pattern match or finaliser" },
  { "--doctor", NULL, SLOT(doctor), "show what this machine can do, and what is wrong with it" },
  { "--json", NULL, SLOT(json), "with --doctor: for machines" },
  { "--recipes", NULL, SLOT(recipes), "list the recipes that came with gibbous" },
  { "--help", NULL, SLOT(help), "show this list" },
  { "--version", NULL, SLOT(about), "show the versions of Gibbous and of Lua" },
  { NULL, NULL, 0, NULL },
};

void options_complain(const options *o, const char *text) {
  if (o->program) fprintf(stderr, "%s: ", o->program);
  fprintf(stderr, "%s\n", text);
  fflush(stderr);
}

/* The rows of the table: all, or those of `lua`, as it lays them out. */
static void list_rows(FILE *to, bool ours) {
  for (const option *row = option_table; row->name; row++) {
    if (!ours && row->slot != LUA) continue;
    int used = fprintf(to, "  %s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
    fprintf(to, "%*s%s\n", (ours ? 16 : 12) - used, "", row->doc);
  }
}

void options_list(FILE *to) {
  fputs("usage: gibbous [options] [script [args]]\nWithout a script and -e, gibbous is interactive on a terminal "
        "and runs standard input elsewhere.\n", to);
  list_rows(to, true);
}

/* What `lua` says of an option that it cannot use. */
static bool usage(const options *o, const char *bad) {
  bool lacks = bad[1] == 'e' || bad[1] == 'l';
  fprintf(stderr, lacks ? "%s: '%s' needs argument\n" : "%s: unrecognized option '%s'\n", o->program, bad);
  fprintf(stderr, "usage: %s [options] [script [args]]\nAvailable options are:\n", o->program);
  list_rows(stderr, false);
  return false;
}

/* What is said of a bad option of two dashes: with the cure. */
static bool unknown(const options *o, const char *word, const char *why) {
  const char *known[sizeof option_table / sizeof *option_table + 1];
  size_t n = 0;
  for (const option *row = option_table; row->name; row++)
    if (row->slot != LUA) known[n++] = row->name;
  known[n] = NULL;
  const char *near = why ? NULL : gbl_nearest(word, known);
  fprintf(stderr, "%s: %s '%s'", o->program, why ? why : "unrecognized option", word);
  if (near) fprintf(stderr, "; did you mean '%s'?", near);
  fputs(why ? "\n" : "\n(gibbous --help lists the options)\n", stderr);
  return false;
}

/* An option of ours at argv[*i]: --name, --name value, --name=value. */
static bool read_long(options *o, int *i) {
  const char *word = o->argv[*i];
  const char *equals = strchr(word, '=');
  size_t length = equals ? (size_t)(equals - word) : strlen(word);
  const option *row = option_table;
  while (row->name && (row->slot == LUA || strlen(row->name) != length || strncmp(row->name, word, length))) row++;
  if (!row->name) return unknown(o, word, NULL);
  if (!row->value && equals) return unknown(o, word, "no value is taken by");
  const char *value = equals ? equals + 1 : row->value ? o->argv[++*i] : row->name;
  if (!value || !*value) return unknown(o, row->name, "a value is missing after");
  *(const char **)((char *)o + row->slot) = value;
  return true;
}

/* An option of `lua` at argv[*i]. */
static bool read_short(options *o, int *i) {
  const char *word = o->argv[*i];
  bool takes = word[1] == 'e' || word[1] == 'l';
  if (!strchr("eilvEW", word[1]) || (!takes && word[2])) return usage(o, word);
  if (takes && !word[2]) {
    const char *next = o->argv[++*i];
    if (!next || *next == '-') return usage(o, word);
  }
  if (word[1] == 'e') o->statements = true;
  if (word[1] == 'l') o->modules = true;
  if (word[1] == 'E') o->no_environment = true;
  if (word[1] == 'i') o->interactive = o->version = true;
  if (word[1] == 'v') o->version = true;
  return true;
}

/* Does the option take the word after it as its value? */
static bool takes_next(const char *word) {
  if (word[1] != '-') return (word[1] == 'e' || word[1] == 'l') && !word[2];
  const option *row = option_table;
  while (row->name && (row->slot == LUA || strcmp(row->name, word))) row++;
  return row->name && row->value;
}

const char *options_value(const options *o, char kind, int *i) {
  const char *word = o->argv[*i];
  bool next = takes_next(word);
  if (next) ++*i;
  if (word[1] != kind) return NULL;
  return next ? o->argv[*i] : word + 2;
}

bool options_read(options *o, int argc, char **argv) {
  *o = (options){ .argc = argc, .argv = argv, .program = argc > 0 && argv[0][0] ? argv[0] : "gibbous" };
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    if (!strcmp(argv[i], "--")) { i++; break; }
    if (!(argv[i][1] == '-' ? read_long(o, &i) : read_short(o, &i))) return false;
  }
  o->script = i < argc ? i : argc;
  if (o->json && !o->doctor) return unknown(o, "--json", "nothing is written for machines without --doctor:");
  return true;
}
