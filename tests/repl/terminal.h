/* terminal.h - a program on a pseudo-terminal, driven as by somebody who types and reads.
 *
 * What the program writes is kept twice: raw, and as text without escape sequences, carriage returns and bells.
 * `expect` waits until a text comes after what was expected before; it gives up after long, which is a failure and not
 * a measurement. */
#ifndef GB_TESTS_TERMINAL_H
#define GB_TESTS_TERMINAL_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { TERMINAL_PATIENCE = 30 }; /* seconds */

typedef struct terminal {
  int fd;
  pid_t pid;
  char *raw, *text;
  size_t raw_size, text_size, mark; /* mark: in text, behind what was expected last */
  int escape;                       /* where in an escape sequence the raw bytes are */
} terminal;

/* Start argv with the environment of this program and the settings "NAME=value" of the NULL-ended list. Without a
 * terminal the test ends here. */
static inline terminal terminal_start(char *const argv[], char *const settings[]) {
  terminal t = { .fd = posix_openpt(O_RDWR | O_NOCTTY), .raw = calloc(1, 1), .text = calloc(1, 1) };
  if (t.fd < 0 || grantpt(t.fd) || unlockpt(t.fd)) {
    perror("this test needs a pseudo terminal (is /dev/pts mounted?)");
    exit(1);
  }
  ioctl(t.fd, TIOCSWINSZ, &(struct winsize){ .ws_row = 24, .ws_col = 80 });
  const char *name = ptsname(t.fd);
  t.pid = fork();
  if (t.pid) return t;
  setsid();
  int slave = open(name, O_RDWR); /* becomes the controlling terminal */
  for (int i = 0; i < 3; i++) dup2(slave, i);
  if (slave > 2) close(slave);
  close(t.fd);
  for (; settings && *settings; settings++) putenv(*settings);
  execv(argv[0], argv);
  _exit(127);
}

/* Add a byte to the text, unless it belongs to an escape sequence; a backspace takes one away. */
static inline void terminal_add(terminal *t, char c) {
  if (t->escape == 1) t->escape = c == '[' || c == ']' ? 2 : c == '(' ? 3 : 0;
  else if (t->escape == 2) t->escape = (c >= '@' && c <= '~') || c == '\a' ? 0 : 2;
  else if (t->escape == 3) t->escape = 0;
  else if (c == '\033') t->escape = 1;
  else if (c != '\r' && c != '\a' && c != '\b') t->text[t->text_size++] = c;
}

/* Take in what the program has written, waiting at most `milliseconds` for it; false: there is nothing, or it has
 * ended. */
static inline bool terminal_read(terminal *t, int milliseconds) {
  char buffer[4096];
  struct pollfd wait = { .fd = t->fd, .events = POLLIN };
  if (poll(&wait, 1, milliseconds) <= 0) return false;
  ssize_t n = read(t->fd, buffer, sizeof buffer);
  if (n <= 0) return false;
  t->raw = realloc(t->raw, t->raw_size + (size_t)n + 1);
  t->text = realloc(t->text, t->text_size + (size_t)n + 1);
  memcpy(t->raw + t->raw_size, buffer, (size_t)n);
  t->raw_size += (size_t)n;
  t->raw[t->raw_size] = '\0';
  for (ssize_t i = 0; i < n; i++) terminal_add(t, buffer[i]);
  t->text[t->text_size] = '\0';
  return true;
}

/* Type a text. What the program writes meanwhile is taken in, or both would wait for each other. */
static inline void terminal_send(terminal *t, const char *text) {
  for (size_t left = strlen(text); left;) {
    struct pollfd wait = { .fd = t->fd, .events = POLLOUT | POLLIN };
    if (poll(&wait, 1, 1000 * TERMINAL_PATIENCE) <= 0) return;
    if (wait.revents & POLLIN) terminal_read(t, 0);
    if (!(wait.revents & POLLOUT)) continue;
    ssize_t n = write(t->fd, text, left < 64 ? left : 64);
    if (n <= 0) return;
    text += n;
    left -= (size_t)n;
  }
}

/* Wait for a text. */
static inline bool terminal_expect(terminal *t, const char *text) {
  time_t start = time(NULL);
  for (;;) {
    const char *found = strstr(t->text + t->mark, text);
    if (found) {
      t->mark = (size_t)(found - t->text) + strlen(text);
      return true;
    }
    if (!terminal_read(t, 1000) && time(NULL) - start >= TERMINAL_PATIENCE) break;
    if (time(NULL) - start >= TERMINAL_PATIENCE) break;
  }
  fprintf(stderr, "expected '%s', but the terminal shows after what was found before:\n%s\n", text, t->text + t->mark);
  return false;
}

/* The width changes under the program. */
static inline void terminal_resize(terminal *t, int columns) {
  ioctl(t->fd, TIOCSWINSZ, &(struct winsize){ .ws_row = 24, .ws_col = (unsigned short)columns });
}

/* Wait for the end; the status of waitpid. */
static inline int terminal_finish(terminal *t) {
  int status = -1;
  time_t start = time(NULL);
  while (waitpid(t->pid, &status, WNOHANG) == 0) {
    terminal_read(t, 20);
    if (time(NULL) - start < TERMINAL_PATIENCE) continue;
    kill(t->pid, SIGKILL);
    waitpid(t->pid, &status, 0);
  }
  while (terminal_read(t, 20)) continue;
  close(t->fd);
  free(t->raw);
  free(t->text);
  return status;
}

#endif
