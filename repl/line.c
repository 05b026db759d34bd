/* line.c - one line from the terminal, by libedit's own interface (histedit.h) where the build found it.
 *
 * Signals: while a line is read, SIGINT ends the read (the prompt then starts anew), SIGWINCH fits the line to the new
 * width, SIGCONT puts the terminal back into the editor's mode. Handlers only set flags. On a terminal signals are let
 * in while it is waited for input, by pselect, and at no other time: one that came just before would not end the wait.
 * A SIGINT between two reads is kept by its flag and ends the next one; on a terminal it takes along what was typed
 * ahead, as the key itself does. The locale is that of the user while a line is read, and C again for whatever runs:
 * Lua's numbers and character classes do not change. Where the environment names no locale, UTF-8 is assumed.
 *
 * Pastes: a terminal that can is asked to put brackets around what is pasted (xterm's mode 2004). What lies between
 * them, newlines too, is one text that Enter hands out. */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "history.h"

#ifdef GB_HAVE_LIBEDIT
#include <histedit.h>
#endif

#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"

struct line {
  bool terminal;
  bool brackets;            /* the terminal is asked for them */
  const char *prompt;
  char *history;            /* path of the file, or NULL */
  char *last;               /* line that was kept, not to keep it twice in a row */
  line_complete complete;
  void *user;
  locale_t locale;          /* of the user; (locale_t)0 where there is none */
  sigset_t outside;         /* the signals that are blocked while no line is read */
  struct sigaction before;  /* what SIGINT did before the lines were opened */
#ifdef GB_HAVE_LIBEDIT
  int input;                /* the terminal again, of which reads never wait: a Ctrl-C takes away what had made it
                               readable */
  EditLine *editor;         /* NULL: plain input */
  History *lines;
#endif
};

/* {==== Signals while a line is read ==== */

static volatile sig_atomic_t interrupted, resized, continued;

/* Only flags: what they ask for is done where the line is read. */
static void note_signal(int signal) {
  if (signal == SIGINT) interrupted = 1;
  else if (signal == SIGWINCH) resized = 1;
  else continued = 1;
}

static const int watched[] = { SIGINT, SIGWINCH, SIGCONT };
enum { WATCHED = sizeof watched / sizeof *watched };

/* Set the handlers, and keep what was set before. On a terminal the signals are held back. A SIGINT that came before is
 * not forgotten. */
static void watch(line *l, struct sigaction before[WATCHED]) {
  struct sigaction action = { .sa_handler = note_signal };
  sigset_t held;
  sigemptyset(&action.sa_mask);
  sigemptyset(&held);
  for (int i = 0; l->terminal && i < WATCHED; i++) sigaddset(&held, watched[i]);
  sigprocmask(SIG_BLOCK, &held, &l->outside);
  resized = continued = 0;
  for (int i = 0; i < WATCHED; i++) sigaction(watched[i], &action, &before[i]);
}

/* Set what was set before; a signal that was held back goes there. */
static void unwatch(const line *l, const struct sigaction before[WATCHED]) {
  for (int i = 0; i < WATCHED; i++) sigaction(watched[i], &before[i], NULL);
  sigprocmask(SIG_SETMASK, &l->outside, NULL);
}

/* SIGINT sets its flag between the reads too; other signals do what they did. */
static void keep_interrupts(line *l) {
  struct sigaction action = { .sa_handler = note_signal };
  sigemptyset(&action.sa_mask);
  interrupted = 0;
  sigaction(SIGINT, &action, &l->before);
}

/* An interrupt has ended a read: forget it, and what was typed ahead. */
static void forget_interrupt(const line *l) {
  interrupted = 0;
  if (l->terminal) tcflush(STDIN_FILENO, TCIFLUSH);
}

/* Wait for the terminal's input with the signals let in. false: one came. */
static bool wait_for_input(const line *l) {
  if (interrupted) return false;
  fd_set in;
  FD_ZERO(&in);
  FD_SET(STDIN_FILENO, &in);
  return pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &l->outside) >= 0 || errno != EINTR;
}

/* The user's locale for characters; UTF-8 where none is named. */
static locale_t user_locale(void) {
  const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
  const char *name = "C.UTF-8";
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    if (!value || !*value) continue;
    name = "";
    break;
  }
  return newlocale(LC_CTYPE_MASK, name, (locale_t)0);
}

/* ====} */

/* {==== Plain input ==== */

/* A row as the terminal, or the pipe, hands it out; its length, with its end, or -1. A window that changes its size
 * does not end it. */
static ssize_t read_row(const line *l, char **text, size_t *room) {
  ssize_t n;
  while (l->terminal && !interrupted && !wait_for_input(l)) continue;
  sigprocmask(SIG_SETMASK, &l->outside, NULL); /* a Ctrl-C takes the line away: then the read waits, and must be
                                                  interrupted */
  do {
    clearerr(stdin); /* an io.read that Ctrl-C ended leaves its mark */
    n = interrupted ? -1 : getline(text, room, stdin);
  } while (n < 0 && ferror(stdin) && errno == EINTR && !interrupted);
  return n;
}

/* Take the first of these marks out of a text; false: there is none. */
static bool take_out(char *text, const char *mark) {
  char *at = strstr(text, mark);
  if (at) memmove(at, at + strlen(mark), strlen(at + strlen(mark)) + 1);
  return at != NULL;
}

/* Rows that belong to a paste whose first one is *text: they are one line. false: the input ended, or was interrupted,
 * or there is no memory. */
static bool read_paste(const line *l, char **text) {
  char *row = NULL;
  size_t room = 0;
  bool whole = true;
  while (whole && take_out(*text, PASTE_BEGIN))
    while (whole && !take_out(*text, PASTE_END)) {
      whole = read_row(l, &row, &room) > 0;
      char *longer = whole ? realloc(*text, strlen(*text) + strlen(row) + 1) : NULL;
      whole = longer != NULL;
      if (longer) *text = strcat(longer, row);
    }
  free(row);
  return whole;
}

/* A line as the terminal, or the pipe, hands it out. */
static line_end read_plain(line *l, char **out) {
  char *text = NULL;
  size_t room = 0;
  if (l->terminal) fputs(l->prompt, stdout), fflush(stdout);
  ssize_t n = read_row(l, &text, &room);
  if (n > 0 && l->terminal) n = read_paste(l, &text) ? (ssize_t)strlen(text) : -1;
  if (n > 0) {
    if (text[n - 1] == '\n') text[n - 1] = '\0';
    *out = text;
    return LINE_READ;
  }
  free(text);
  if (l->terminal) putchar('\n');
  return interrupted ? LINE_INTERRUPTED : LINE_CLOSED;
}

/* ====} */

#ifdef GB_HAVE_LIBEDIT
/* {==== libedit ==== */

/* The line that an editor belongs to. */
static line *line_of(EditLine *editor) {
  line *l = NULL;
  el_get(editor, EL_CLIENTDATA, &l);
  return l;
}

/* libedit asks for the prompt each time it draws it. */
static char *give_prompt(EditLine *editor) { return (char *)(size_t)line_of(editor)->prompt; }

/* What signals asked for while the editor waited; false: the line is given up. */
static bool obey_signals(EditLine *editor) {
  if (interrupted) return false;
  if (resized) resized = 0, el_resize(editor);
  if (continued) continued = 0, el_set(editor, EL_PREP_TERM, 1), el_set(editor, EL_REFRESH);
  return true;
}

/* The next character; bytes that are none are left out. */
static int read_character(EditLine *editor, wchar_t *out) {
  mbstate_t state = { 0 };
  for (;;) {
    char byte;
    if (!wait_for_input(line_of(editor))) {
      if (obey_signals(editor)) continue;
      return -1;
    }
    ssize_t n = read(line_of(editor)->input, &byte, 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return (int)n;
    size_t length = mbrtowc(out, &byte, 1, &state);
    if (length <= 1) return 1;
    if (length == (size_t)-1) memset(&state, 0, sizeof state);
  }
}

/* Tab. After nothing but blanks it indents, so that pasted code with tabs arrives as it is. */
static unsigned char complete(EditLine *editor, wint_t character) {
  line *l = line_of(editor);
  const LineInfo *info = el_line(editor);
  size_t cursor = (size_t)(info->cursor - info->buffer), size = (size_t)(info->lastchar - info->buffer);
  (void)character;
  if (strspn(info->buffer, " ") >= cursor) return el_insertstr(editor, "  ") ? CC_ERROR : CC_REFRESH;
  char *text = malloc(size + 1);
  if (!text) return CC_ERROR;
  memcpy(text, info->buffer, size);
  text[size] = '\0';
  line_completion found = l->complete(l->user, text, cursor);
  unsigned char result = found.insert || found.list ? CC_REFRESH : CC_ERROR;
  if (found.insert && el_insertstr(editor, found.insert)) result = CC_ERROR;
  if (found.list) printf("\n%s", found.list), fflush(stdout), result = CC_REDISPLAY;
  free(found.insert);
  free(found.list);
  free(text);
  return result;
}

/* Add a pasted character: \r and \r\n, as some terminals send them, are newlines; other controls are no text. */
static size_t add_pasted(wchar_t *text, size_t n, wchar_t c, wchar_t before) {
  if (c == L'\n' && before == L'\r') return n;
  if (c == L'\r') c = L'\n';
  if ((c < L' ' && c != L'\n' && c != L'\t') || c == 0x7f) return n;
  text[n] = c;
  return n + 1;
}

/* Read up to the end of a paste. NULL: the input ended, or was interrupted, or there is no memory. */
static wchar_t *read_pasted(EditLine *editor) {
  static const wchar_t end[] = L"\033[201~";
  enum { END = sizeof end / sizeof *end - 1 };
  wchar_t *text = NULL, c, before = 0;
  size_t n = 0, room = 0, matched = 0;
  while (matched < END) {
    if (n + END + 1 >= room) {
      wchar_t *longer = realloc(text, sizeof *text * (room = 2 * room + 256));
      if (!longer) break;
      text = longer;
    }
    if (el_wgetc(editor, &c) <= 0) break;
    if (c == end[matched]) matched++;
    else {
      for (size_t i = 0; i < matched; i++) n = add_pasted(text, n, end[i], 0);
      matched = c == end[0];
      if (!matched) n = add_pasted(text, n, c, before);
    }
    before = c;
  }
  if (matched < END) return free(text), NULL;
  text[n] = L'\0';
  return text;
}

/* The bracket that opens a paste: what follows up to the other one goes in at the cursor as it is. The newline at its
 * end is left to the user. */
static unsigned char paste(EditLine *editor, wint_t character) {
  wchar_t *text = read_pasted(editor);
  (void)character;
  if (!text) return CC_EOF;
  size_t n = wcslen(text);
  if (n && text[n - 1] == L'\n') text[n - 1] = L'\0';
  unsigned char result = el_winsertstr(editor, text) ? CC_ERROR : CC_REFRESH;
  if (!*text) result = CC_NORM;
  free(text);
  return result;
}

/* The terminal of standard input, opened once more for reads that do not wait; standard input itself where that cannot
 * be. */
static int reopen_terminal(void) {
  char name[128];
  int fd = ttyname_r(STDIN_FILENO, name, sizeof name) ? -1 : open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  return fd >= 0 ? fd : STDIN_FILENO;
}

/* Keys: those of emacs, as libedit has them; ^R searches backwards, Tab completes. */
static bool open_editor(line *l, const char *program) {
  HistEvent event;
  l->editor = el_init(program, stdin, stdout, stderr);
  l->lines = history_init();
  if (!l->editor || !l->lines) return false;
  el_set(l->editor, EL_CLIENTDATA, l);
  el_set(l->editor, EL_SIGNAL, 0);
  el_set(l->editor, EL_EDITOR, "emacs");
  el_set(l->editor, EL_PROMPT, give_prompt);
  el_set(l->editor, EL_GETCFN, read_character);
  el_set(l->editor, EL_HIST, history, l->lines);
  /* wide: el_set would copy the names and lose them */
  el_wset(l->editor, EL_ADDFN, L"gb-complete", L"complete names", complete);
  el_wset(l->editor, EL_ADDFN, L"gb-paste", L"insert what is pasted", paste);
  el_set(l->editor, EL_BIND, "^I", "gb-complete", NULL);
  el_set(l->editor, EL_BIND, PASTE_BEGIN, "gb-paste", NULL);
  el_set(l->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(l->editor, EL_BIND, "\033[H", "ed-move-to-beg", NULL);
  el_set(l->editor, EL_BIND, "\033[F", "ed-move-to-end", NULL);
  el_set(l->editor, EL_BIND, "\033[3~", "ed-delete-next-char", NULL);
  history(l->lines, &event, H_SETSIZE, HISTORY_LINES);
  history(l->lines, &event, H_SETUNIQUE, 1);
  return true;
}

/* A line from the editor. After an interrupt the terminal is given back and the editor forgets the line. */
static line_end read_edited(line *l, char **out) {
  int n;
  el_set(l->editor, EL_PREP_TERM, 1); /* before the prompt is shown: what is typed as soon as it stands there belongs to
                                         the editor */
  const char *text = el_gets(l->editor, &n);
  if (interrupted || !text || n <= 0) {
    el_set(l->editor, EL_PREP_TERM, 0);
    fputs(interrupted ? "^C\n" : "\n", stdout);
    return interrupted ? el_reset(l->editor), LINE_INTERRUPTED : LINE_CLOSED;
  }
  *out = strdup(text);
  if (!*out) return LINE_CLOSED;
  (*out)[strlen(*out) - ((*out)[n - 1] == '\n')] = '\0'; /* what was recalled may have newlines inside */
  return LINE_READ;
}

/* A line for the editor's own list. */
static void enter_history(void *user, const char *text) {
  line *l = user;
  HistEvent event;
  if (l->editor) history(l->lines, &event, H_ENTER, text);
}

/* End the editor, or what there is of it. */
static void close_editor(line *l) {
  if (l->editor) el_end(l->editor);
  if (l->lines) history_end(l->lines);
  if (l->input != STDIN_FILENO) close(l->input);
  l->input = STDIN_FILENO;
  l->editor = NULL;
  l->lines = NULL;
}

/* ====} */
#endif

line *line_open(const char *program, line_complete complete_fn, void *user) {
  line *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->terminal = isatty(STDIN_FILENO);
  l->complete = complete_fn;
  l->user = user;
  l->locale = user_locale();
  if (l->terminal) l->history = history_path();
  const char *kind = getenv("TERM");
  l->brackets = l->terminal && isatty(STDOUT_FILENO) && kind && *kind && strcmp(kind, "dumb");
#ifdef GB_HAVE_LIBEDIT
  if (l->brackets) {
    locale_t before = l->locale ? uselocale(l->locale) : (locale_t)0;
    l->input = reopen_terminal();
    if (!open_editor(l, program)) close_editor(l);
    if (before) uselocale(before);
    if (l->history) history_load(l->history, enter_history, l);
  }
#else
  (void)program;
#endif
  keep_interrupts(l);
  return l;
}

void line_close(line *l) {
  sigaction(SIGINT, &l->before, NULL);
#ifdef GB_HAVE_LIBEDIT
  close_editor(l);
#endif
  if (l->locale) freelocale(l->locale);
  free(l->history);
  free(l->last);
  free(l);
}

line_end line_read(line *l, const char *prompt, char **out) {
  struct sigaction before[WATCHED];
  locale_t locale = l->locale ? uselocale(l->locale) : (locale_t)0;
  line_end end;
  *out = NULL;
  l->prompt = prompt;
  if (l->brackets) fputs("\033[?2004h", stdout), fflush(stdout);
  watch(l, before);
#ifdef GB_HAVE_LIBEDIT
  end = l->editor ? read_edited(l, out) : read_plain(l, out);
#else
  end = read_plain(l, out);
#endif
  if (l->brackets) fputs("\033[?2004l", stdout), fflush(stdout); /* whatever runs next may read the terminal itself */
  if (end == LINE_INTERRUPTED) forget_interrupt(l);
  unwatch(l, before);
  if (locale) uselocale(locale);
  return end;
}

void line_keep(line *l, const char *text) {
  if (!l->terminal || !text[strspn(text, " \t\n")] || (l->last && !strcmp(l->last, text))) return;
  free(l->last);
  l->last = strdup(text);
#ifdef GB_HAVE_LIBEDIT
  enter_history(l, text);
#endif
  if (l->history) history_append(l->history, text);
}

bool line_is_terminal(const line *l) { return l->terminal; }
