/* test_history.c - several prompts append to one history file while it is being shortened: no line is lost, none is
 * broken, none is doubled. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../repl/history.h"
#include "../c/check.h"

enum { WRITERS = 4, LINES = 3000 };

/* What has been read: how many lines, and the last number of each writer. */
typedef struct reading { int lines, last[WRITERS]; bool whole; } reading;

/* Each writer's lines must follow each other without a gap; the oldest may have been dropped. */
static void take_line(void *user, const char *text) {
  reading *r = user;
  int writer, number, end = 0;
  r->lines++;
  if (sscanf(text, "writer %d line %d.%n", &writer, &number, &end) != 2 || text[end] || writer < 0 || writer >= WRITERS)
    {
    r->whole = false;
    return;
  }
  if (r->last[writer] >= 0 && number != r->last[writer] + 1) r->whole = false;
  r->last[writer] = number;
}

/* One prompt. */
static void write_lines(const char *path, int writer) {
  char text[64];
  for (int i = 0; i < LINES; i++) {
    snprintf(text, sizeof text, "writer %d line %d.", writer, i);
    history_append(path, text);
  }
  _exit(0);
}

static void take_no_line(void *user, const char *text) {
  (void)text;
  *(int *)user += 1;
}

static void take_last(void *user, const char *text) { snprintf(user, 64, "%s", text); }

int main(void) {
  char folder[] = "/tmp/gibbous-history-XXXXXX", command[64];
  CHECK(mkdtemp(folder) != NULL);
  CHECK(setenv("XDG_STATE_HOME", folder, 1) == 0);
  char *path = history_path();
  CHECK(path && !strncmp(path, folder, strlen(folder)) && !strcmp(path + strlen(folder), "/gibbous/history"));

  for (int i = 0; i < WRITERS; i++)
    if (fork() == 0) write_lines(path, i);
  for (int i = 0, status; i < WRITERS; i++) CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  reading r = { .last = { -1, -1, -1, -1 }, .whole = true };
  history_load(path, take_line, &r);
  CHECK(r.whole);
  CHECK(r.lines >= HISTORY_LINES && r.lines <= 2 * HISTORY_LINES);
  /* one that was done early may be all gone */
  for (int i = 0; i < WRITERS; i++) CHECK(r.last[i] == LINES - 1 || r.last[i] == -1);

  history_append(path, "function f()\n  return 1\nend"); /* lines of one entry */
  char last[64] = "";
  history_load(path, take_last, last);
  CHECK(!strcmp(last, "function f()\n  return 1\nend"));

  struct stat info;
  CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600); /* what was typed is nobody else's business */
  CHECK(setenv("XDG_STATE_HOME", "not/absolute", 1) == 0 && unsetenv("HOME") == 0);
  CHECK(history_path() == NULL);
  int lines = 0;
  history_load("/nonexistent/history", take_no_line, &lines);
  history_append("/nonexistent/history", "nowhere"); /* a comfort that is missing is no failure */
  CHECK(lines == 0);
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  CHECK(system(command) == 0);
  free(path);
  return check_report();
}
