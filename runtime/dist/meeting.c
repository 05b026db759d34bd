/* meeting.c - listening, calling, and saying who one is. No call waits longer than a tenth of a second, so that a stop
 * is seen. */
#define _GNU_SOURCE /* SOCK_NONBLOCK, accept4 */
#include "dist/meeting.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLICE = 100, LISTENERS = 8, GUESTS_MORE = 64, BACKLOG = 1024 };
#define HELLO_SECONDS 10.0            /* that a guest has to say who it is */

/* Both in the byte order of the machines, which is the same on all that have GPUs. */
typedef struct hello { char magic[8]; uint32_t version; int32_t rank, size, local_rank; uint64_t job; } hello;
typedef struct answer { char magic[8]; uint32_t version, taken; char text[240]; } answer;

static const char magic[8] = { 'g', 'i', 'b', 'b', 'o', 'u', 's', 1 };
enum { VERSION = 1 };

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Packets are small, and waited for. */
static void set_prompt(int s) {
  int on = 1;
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void shut(int *socket) {
  if (*socket >= 0) close(*socket);
  *socket = -1;
}

/* The addresses that the name stands for. */
static gb_status find_addresses(gb_context *context, const gb_meeting *m, struct addrinfo **out) {
  char port[16];
  const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
  snprintf(port, sizeof port, "%d", m->port);
  int code = getaddrinfo(m->host, port, &hints, out);
  if (code == 0) return GB_OK;
  return gb_fail(context, GB_EIO, "dist.init: cannot find the host of MASTER_ADDR=%.100s: %s; give the name or address "
                                  "of the machine of rank 0, as torchrun --master-addr does", m->host,
                 code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
}

/* {==== Rank 0 ==== */

/* Someone who has called, and what it has said so far. */
typedef struct guest { int socket; double since; size_t got; hello said; } guest;

typedef struct host {
  gb_context *context;
  const gb_meeting *meeting;
  int *sockets, missing;
  int listeners[LISTENERS], n_listeners;
  guest *guests;
  int n_guests, most_guests;
  struct pollfd *polls;
  char refused[300];                  /* who was sent away last, and why */
} host;

static bool is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
  return address->sa_family == AF_INET6 &&
      IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

/* A socket that listens; -1: errno says why not. both: of an IPv6 address, for IPv4 too. */
static int listen_at(const struct sockaddr *address, socklen_t length, bool both) {
  int on = 1, only = !both, s = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s < 0) return -1;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6) setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  if (bind(s, address, length) == 0 && listen(s, BACKLOG) == 0) return s;
  int code = errno;
  close(s);
  errno = code;
  return -1;
}

/* At every address of this machine: its name may stand for another one inside than outside. */
static int listen_everywhere(int port) {
  struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any };
  struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
  int s = listen_at((struct sockaddr *)&six, sizeof six, true);
  return s >= 0 || errno == EADDRINUSE ? s : listen_at((struct sockaddr *)&four, sizeof four, false);
}

/* Does the name itself say this machine alone? A machine's own name may be a loopback address to itself and another one
 * to others. */
static bool is_near(const char *name) {
  return !strcmp(name, "localhost") || !strcmp(name, "::1") || !strncmp(name, "127.", 4);
}

/* What is for this machine alone is heard on this machine alone. 0, or why not. */
static int listen_once(host *h, const struct addrinfo *list) {
  int code = 0;
  bool near = is_near(h->meeting->host);
  for (const struct addrinfo *a = list; a; a = a->ai_next) near = near && is_loopback(a->ai_addr);
  for (const struct addrinfo *a = list; near && a && h->n_listeners < LISTENERS; a = a->ai_next) {
    int s = listen_at(a->ai_addr, a->ai_addrlen, false);
    if (s >= 0) h->listeners[h->n_listeners++] = s;
    else if (!code || errno == EADDRINUSE) code = errno;
  }
  if (!near) {
    int s = listen_everywhere(h->meeting->port);
    if (s >= 0) h->listeners[h->n_listeners++] = s;
    else code = errno;
  }
  if (code != EADDRINUSE && h->n_listeners) return 0; /* a machine may lack one of IPv4 and IPv6 */
  while (h->n_listeners) shut(&h->listeners[--h->n_listeners]);
  return code;
}

static void rest(void) { nanosleep(&(struct timespec){ 0, SLICE * 1000000L / 2 }, NULL); }

/* A port that another process has just let go of may be free in a moment. */
static gb_status begin_listening(host *h) {
  const gb_meeting *m = h->meeting;
  struct addrinfo *list;
  GB_TRY(find_addresses(h->context, m, &list));
  int code = listen_once(h, list);
  gb_status status = GB_OK;
  for (int i = 0; i < 20 && code == EADDRINUSE && status == GB_OK; i++) {
    status = gb_poll(h->context);
    rest();
    code = listen_once(h, list);
  }
  freeaddrinfo(list);
  if (status != GB_OK || code == 0) return status;
  return gb_fail(h->context, GB_EIO, "dist.init: rank 0 cannot listen at port %d of %.100s: %s; another job may meet "
                                     "there: give each one a port of its own, as torchrun --master-port does, or "
                                     "GIBBOUS_MEETING_PORT", m->port, m->host, strerror(code));
}

/* Why this guest cannot be taken; false: it can. */
static bool refuse(const host *h, const hello *said, char *text, size_t size) {
  const gb_meeting *m = h->meeting;
  if (said->version != VERSION)
    snprintf(text, size, "it is of another version of gibbous than rank 0; install the same one on all machines");
  else if (said->job != m->job)
    snprintf(text, size, "another job meets at this port; give each one a port of its own");
  else if (said->size != m->size)
    snprintf(text, size, "it has WORLD_SIZE=%d, and rank 0 has WORLD_SIZE=%d; start all with the same", said->size,
             m->size);
  else if (said->rank <= 0 || said->rank >= m->size)
    snprintf(text, size, "it has RANK=%d of %d processes, which is %s", said->rank, m->size,
             said->rank == 0 ? "that of another process" : "none of theirs");
  else if (h->sockets[said->rank] >= 0)
    snprintf(text, size, "RANK=%d has come already; each process has a rank of its own", said->rank);
  else return false;
  return true;
}

/* The guest has said who it is. */
static void receive(host *h, guest *g) {
  answer a = { .version = VERSION };
  memcpy(a.magic, magic, sizeof magic);
  a.taken = !refuse(h, &g->said, a.text, sizeof a.text);
  if (!a.taken) snprintf(h->refused, sizeof h->refused, "; rank %d was sent away: %s", g->said.rank, a.text);
  bool told = send(g->socket, &a, sizeof a, MSG_NOSIGNAL) == (ssize_t)sizeof a; /* a fresh socket has room for it */
  if (!a.taken || !told) return;
  set_prompt(g->socket);
  h->sockets[g->said.rank] = g->socket;
  g->socket = -1;
  h->missing--;
}

/* Read on; a guest that says something else, leaves or takes too long is dropped. */
static void hear(host *h, guest *g) {
  ssize_t n = recv(g->socket, (char *)&g->said + g->got, sizeof g->said - g->got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) g->got += (size_t)n;
  size_t known = g->got < sizeof magic ? g->got : sizeof magic;
  bool good = n > 0 && !memcmp(g->said.magic, magic, known);
  if (good && g->got < sizeof g->said) return;
  if (good) receive(h, g);
  shut(&g->socket);
}

/* Those who are here no longer make room. */
static void tidy(host *h, double now) {
  int kept = 0;
  for (int i = 0; i < h->n_guests; i++) {
    guest *g = &h->guests[i];
    if (g->socket >= 0 && now - g->since > HELLO_SECONDS) shut(&g->socket);
    if (g->socket >= 0) h->guests[kept++] = *g;
  }
  h->n_guests = kept;
}

static void welcome(host *h, int listener, double now) {
  while (h->n_guests < h->most_guests) {
    int s = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (s < 0) return;
    h->guests[h->n_guests++] = (guest){ .socket = s, .since = now };
  }
}

/* Wait a moment for callers and for what guests say. */
static void attend(host *h) {
  int count = 0, guests = h->n_guests;
  for (int i = 0; i < guests; i++) h->polls[count++] = (struct pollfd){ h->guests[i].socket, POLLIN, 0 };
  for (int i = 0; i < h->n_listeners && guests < h->most_guests; i++)
    h->polls[count++] = (struct pollfd){ h->listeners[i], POLLIN, 0 };
  if (poll(h->polls, (nfds_t)count, SLICE) < 0) return;
  double now = seconds();
  for (int i = 0; i < guests; i++)
    if (h->polls[i].revents) hear(h, &h->guests[i]);
  for (int i = guests; i < count; i++)
    if (h->polls[i].revents) welcome(h, h->polls[i].fd, now);
  tidy(h, now);
}

/* The text lists the first of those who did not come. */
static gb_status nobody_came(const host *h) {
  char list[80] = "";
  int named = 0;
  for (int r = 1; r < h->meeting->size && named < 8; r++) {
    size_t used = strlen(list);
    if (h->sockets[r] < 0) snprintf(list + used, sizeof list - used, "%s%d", named++ ? ", " : " ", r);
  }
  return gb_fail(h->context, GB_EIO, "dist.init: rank 0 waited %g s at port %d of %.100s, and %d of %d processes did "
                                     "not come: rank%s%s%s%s", h->meeting->timeout, h->meeting->port, h->meeting->host,
                 h->missing, h->meeting->size, h->missing > 1 ? "s" : "", list, h->missing > named ? " and more" : "",
                 h->refused);
}

static gb_status receive_all(host *h) {
  double until = seconds() + h->meeting->timeout;
  GB_TRY(begin_listening(h));
  while (h->missing) {
    GB_TRY(gb_poll(h->context));
    if (seconds() > until) return nobody_came(h);
    attend(h);
  }
  return GB_OK;
}

static gb_status be_host(gb_context *context, const gb_meeting *meeting, int *sockets) {
  host h = { .context = context, .meeting = meeting, .sockets = sockets, .missing = meeting->size - 1,
             .most_guests = meeting->size + GUESTS_MORE };
  h.guests = malloc((size_t)h.most_guests * sizeof *h.guests);
  h.polls = malloc((size_t)(h.most_guests + LISTENERS) * sizeof *h.polls);
  gb_status status = h.guests && h.polls ? receive_all(&h) : gb_fail_memory(context, 0);
  for (int i = 0; i < h.n_guests; i++) shut(&h.guests[i].socket);
  while (h.n_listeners) shut(&h.listeners[--h.n_listeners]);
  free(h.guests);
  free(h.polls);
  return status;
}

/* ====} */

/* {==== The others ==== */

/* Wait until the socket is ready for it, as long as there is time. */
static gb_status await(gb_context *context, int s, short what, double until, bool *ready) {
  struct pollfd one = { s, what, 0 };
  for (*ready = false; !*ready && seconds() < until;) {
    GB_TRY(gb_poll(context));
    *ready = poll(&one, 1, SLICE) > 0;
  }
  return GB_OK;
}

/* Where nobody listens, a caller may reach its own socket, if its port happens to be this one. */
static bool is_self(int s) {
  struct sockaddr_storage here, there;
  socklen_t here_length = sizeof here, there_length = sizeof there;
  memset(&here, 0, sizeof here);
  memset(&there, 0, sizeof there);
  return getsockname(s, (struct sockaddr *)&here, &here_length) == 0 &&
      getpeername(s, (struct sockaddr *)&there, &there_length) == 0 && here_length == there_length &&
      !memcmp(&here, &there, here_length);
}

/* Call one address; *out -1: nobody answers there yet. */
static gb_status call_address(gb_context *context, const struct addrinfo *a, double until, int *out) {
  int code = 0, s = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof code;
  double soon = seconds() + 5;
  bool ready = true;
  gb_status status = GB_OK;
  *out = -1;
  if (s < 0) return GB_OK;
  if (connect(s, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) ready = false;
  else status = await(context, s, POLLOUT, soon < until ? soon : until, &ready);
  ready = status == GB_OK && ready && getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &length) == 0 && code == 0 &&
      !is_self(s);
  if (ready) *out = s;
  else close(s);
  return status;
}

/* Read the answer of rank 0; *got is less where it hung up. */
static gb_status read_answer(gb_context *context, int s, double until, answer *a, size_t *got) {
  for (*got = 0; *got < sizeof *a;) {
    bool ready;
    GB_TRY(await(context, s, POLLIN, until, &ready));
    ssize_t n = ready ? recv(s, (char *)a + *got, sizeof *a - *got, 0) : 0;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return GB_OK;
    *got += (size_t)n;
    if (memcmp(a->magic, magic, *got < sizeof magic ? *got : sizeof magic)) return GB_OK;
  }
  a->text[sizeof a->text - 1] = 0;
  return GB_OK;
}

/* Say who this is. *taken: rank 0 has taken it. It may have hung up, as where it failed to start: then it is called
 * again. */
static gb_status introduce(gb_context *context, const gb_meeting *m, int s, double until, bool *taken) {
  hello h = { .version = VERSION, .rank = m->rank, .size = m->size, .local_rank = m->local_rank, .job = m->job };
  answer a;
  size_t got = 0;
  *taken = false;
  memcpy(h.magic, magic, sizeof magic);
  if (send(s, &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h) return GB_OK;
  GB_TRY(read_answer(context, s, until, &a, &got));
  if (got && memcmp(a.magic, magic, got < sizeof magic ? got : sizeof magic))
    return gb_fail(context, GB_EIO, "dist.init: what listens at port %d of %.100s is no rank 0 of gibbous; give the "
                                    "job another port, as torchrun --master-port does, or GIBBOUS_MEETING_PORT",
                   m->port, m->host);
  if (got < sizeof a) return GB_OK;
  *taken = a.taken == 1;
  return *taken ? GB_OK : gb_fail(context, GB_EINVAL, "dist.init: rank 0, at port %d of %.100s, has sent rank %d away: "
                                                      "%s", m->port, m->host, m->rank, a.text);
}

/* Call every address once. */
static gb_status call_round(gb_context *context, const gb_meeting *m, const struct addrinfo *list, double until,
                            int *out) {
  for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) {
    int s = -1;
    bool taken = false;
    GB_TRY(call_address(context, a, until, &s));
    if (s < 0) continue;
    gb_status status = introduce(context, m, s, until, &taken);
    if (taken) set_prompt(*out = s);
    else close(s);
    if (status != GB_OK) return status;
  }
  return GB_OK;
}

static gb_status be_guest(gb_context *context, const gb_meeting *m, int *out) {
  double until = seconds() + m->timeout;
  struct addrinfo *list;
  GB_TRY(find_addresses(context, m, &list));
  gb_status status = GB_OK;
  while (status == GB_OK && *out < 0 && seconds() < until) {
    status = call_round(context, m, list, until, out);
    if (status == GB_OK && *out < 0) status = gb_poll(context), rest();
  }
  freeaddrinfo(list);
  if (status != GB_OK || *out >= 0) return status;
  return gb_fail(context, GB_EIO, "dist.init: rank %d waited %g s for rank 0 at port %d of %.100s, which did not "
                                  "answer; MASTER_ADDR is the machine of rank 0, whose port others must reach", m->rank,
                 m->timeout, m->port, m->host);
}

/* ====} */

gb_status gb_meeting_hold(gb_context *context, const gb_meeting *meeting, int *sockets) {
  int count = meeting->rank == 0 ? meeting->size : 1;
  for (int i = 0; i < count; i++) sockets[i] = -1;
  gb_status status = meeting->rank == 0 ? be_host(context, meeting, sockets) : be_guest(context, meeting, &sockets[0]);
  for (int i = 0; i < count && status != GB_OK; i++) shut(&sockets[i]);
  return status;
}
