/* sandbox.c - --sandbox: the program is a host like any other (gibbous_lua.h), whose recipes may compute and print.
 *
 * Statements and the script run as they do without it, but for what the sandbox takes away; arguments are in the table
 * arg alone. There are no modules to require but gibbous, no prompt, and LUA_INIT is not read. */
#include "sandbox.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ctrl_c.h"
#include "host.h"

static gb_host *watched; /* for the handler of SIGINT, which has no other way to it */

/* A recipe that wants to be asked is asked first; the second time it is interrupted in any case. */
static void on_interrupt(int signal) {
  static volatile sig_atomic_t asked;
  (void)signal;
  gb_host_request_stop(watched);
  if (asked) ctrl_c_insist();
  asked = 1;
}

/* What recipes print. */
static void print_line(void *user, const char *text, size_t length) {
  (void)user;
  fwrite(text, 1, length, stdout);
  putchar('\n');
  fflush(stdout);
}

/* Where warnings stand: switched on; in the middle of one that comes in pieces. */
typedef struct warnings { bool on, inside; } warnings;

/* Warnings as `lua` writes them: a whole one that begins with '@' is a switch. */
static void write_warning(void *user, const char *text, int more) {
  warnings *w = user;
  if (!w->inside && !more && *text == '@') {
    if (!strcmp(text, "@on")) w->on = true;
    if (!strcmp(text, "@off")) w->on = false;
    return;
  }
  if (w->on) fprintf(stderr, "%s%s%s", w->inside ? "" : "Lua warning: ", text, more ? "" : "\n");
  w->inside = more;
}

/* All of standard input, NUL-terminated, to be freed; NULL: no memory. A first line that begins with # is not Lua. */
static char *read_input(size_t *length) {
  size_t size = 0, room = 1 << 16;
  char *text = malloc(room);
  while (text) {
    size += fread(text + size, 1, room - size - 1, stdin);
    if (size + 1 < room) break;
    char *larger = realloc(text, room *= 2);
    if (!larger) free(text);
    text = larger;
  }
  if (!text) return NULL;
  text[size] = '\0';
  *length = size;
  if (*text == '#') memset(text, ' ', strcspn(text, "\n"));
  return text;
}

/* The table arg. */
static gb_status set_arg(gb_host *host, const options *o) {
  gb_value table;
  gb_status status = gb_table_new(host, &table);
  int script = o->script < o->argc ? o->script : 0;
  for (int i = 0; status == GB_OK && i < o->argc; i++) {
    gb_value key = gb_value_integer(i - script), value = gb_value_string(o->argv[i]);
    status = gb_table_set(host, &table, &key, &value);
  }
  if (status == GB_OK) status = gb_host_set(host, "arg", &table);
  gb_value_release(host, &table);
  return status;
}

/* -e and -W, in order. */
static gb_status run_statements(gb_host *host, const options *o) {
  gb_status status = GB_OK;
  for (int i = 1; status == GB_OK && i < o->script; i++) {
    if (o->argv[i][1] == 'W') lua_warning(host->main, "@on", 0);
    const char *text = options_value(o, 'e', &i);
    if (text) status = gb_host_run_string(host, text, "(command line)");
  }
  return status;
}

/* Standard input, whose failure is said here where the host has none to say. */
static gb_status run_input(gb_host *host, const options *o) {
  size_t length = 0;
  char *text = read_input(&length);
  const char *bad = !text ? "there is no memory for standard input" : strlen(text) != length
      ? "standard input holds a zero byte: it is no Lua text" : NULL;
  gb_status status = bad ? (text ? GB_EINVAL : GB_EMEMORY) : gb_host_run_string(host, text, "stdin");
  if (status != GB_OK) options_complain(o, bad ? bad : gb_host_error(host));
  free(text);
  return status;
}

/* A script by its name. Behind "--", "-" is a file's. */
static gb_status run_script(gb_host *host, const options *o) {
  gb_status status = gb_host_run_file(host, o->argv[o->script]);
  if (status != GB_OK) options_complain(o, gb_host_error(host));
  return status;
}

/* The script, or standard input. */
static gb_status run_rest(gb_host *host, const options *o) {
  bool has_script = o->script < o->argc;
  if (!has_script) return o->statements ? GB_OK : run_input(host, o);
  bool standard_input = !strcmp(o->argv[o->script], "-") && strcmp(o->argv[o->script - 1], "--");
  return standard_input ? run_input(host, o) : run_script(host, o);
}

/* What a sandbox has no place for. */
static bool check(const options *o) {
  const char *lacks = o->interactive ? "-i" : o->modules ? "-l" : NULL;
  char text[80];
  if (!lacks) return true;
  snprintf(text, sizeof text, "%s does not go with --sandbox", lacks);
  options_complain(o, text);
  return false;
}

script_end sandbox_run(const options *o, const limits *l) {
  gb_host_options settings;
  char why[1024];
  if (!check(o)) return SCRIPT_FAILED;
  gb_host_options_init(&settings, sizeof settings);
  settings.sandbox = GB_SANDBOX_STRICT;
  settings.device = o->device;
  settings.threads = l->engine.threads;
  settings.lua_bytes = settings.tensor_bytes = l->most;
  settings.seconds = l->seconds;
  settings.on_print = print_line;
  if (gb_host_open(&settings, &watched, why, sizeof why) != GB_OK) return options_complain(o, why), SCRIPT_FAILED;
  struct sigaction action = { .sa_handler = on_interrupt };
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  warnings w = { .on = false };
  lua_setwarnf(watched->main, write_warning, &w); /* the host API has none */
  gb_status status = set_arg(watched, o);
  if (status == GB_OK) status = run_statements(watched, o);
  if (status != GB_OK) options_complain(o, gb_host_error(watched));
  else status = run_rest(watched, o);
  action.sa_handler = SIG_DFL;
  sigaction(SIGINT, &action, NULL);
  gb_host_close(watched);
  return status == GB_OK ? SCRIPT_DONE : status == GB_EINTERRUPT ? SCRIPT_INTERRUPTED : SCRIPT_FAILED;
}
