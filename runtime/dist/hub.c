/* hub.c - matches messages. One thread, and sockets that never wait. */
#define _GNU_SOURCE /* pipe2 */
#include "dist/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10)

/* {==== Buffers ==== */

/* Room for so many bytes more. */
static bool make_room(gb_stream_buffer *b, size_t bytes) {
  if (b->begin == b->end) b->begin = b->end = 0;
  if (b->room - b->end >= bytes) return true;
  if (b->begin) memmove(b->data, b->data + b->begin, b->end - b->begin);
  b->end -= b->begin;
  b->begin = 0;
  if (b->room - b->end >= bytes) return true;
  size_t room = 2 * (b->end + bytes);
  char *data = realloc(b->data, room);
  if (!data) return false;
  b->data = data;
  b->room = room;
  return true;
}

int gb_buffer_put(gb_stream_buffer *b, const void *data, size_t bytes) {
  if (!make_room(b, bytes)) return 0;
  if (bytes) memcpy(b->data + b->end, data, bytes);
  b->end += bytes;
  return 1;
}

static bool is_for_later(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int gb_buffer_send(gb_stream_buffer *b, int socket) {
  while (b->begin < b->end) {
    ssize_t n = send(socket, b->data + b->begin, b->end - b->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return is_for_later();
    b->begin += (size_t)n;
  }
  return 1;
}

int gb_buffer_receive(gb_stream_buffer *b, int socket) {
  for (;;) {
    if (!make_room(b, READ_BYTES)) return 0;
    ssize_t n = recv(socket, b->data + b->end, b->room - b->end, MSG_DONTWAIT);
    if (n == 0) return 0;
    if (n < 0) return is_for_later();
    b->end += (size_t)n;
    if (b->end < b->room) return 1;
  }
}

int gb_buffer_take(gb_stream_buffer *b, gb_packet *out, const char **content) {
  if (b->end - b->begin < sizeof *out) return 0;
  memcpy(out, b->data + b->begin, sizeof *out);
  size_t more = gb_packet_carries(out) ? (size_t)out->bytes : 0;
  if (out->word < 0 || out->word > GB_WORD_UNLIKE || more > GB_PACKET_BYTES) return -1;
  if (b->end - b->begin < sizeof *out + more) return 0;
  *content = b->data + b->begin + sizeof *out;
  b->begin += sizeof *out + more;
  return 1;
}

void gb_buffer_free(gb_stream_buffer *b) {
  free(b->data);
  *b = (gb_stream_buffer){ NULL, 0, 0, 0 };
}

/* ====} */

/* What one side wants. fits: the message's content is here. */
typedef struct wish { struct wish *next; int peer, tag; bool fits; uint32_t id; uint64_t bytes; char content[]; } wish;

/* One rank. sends: to it, by others; receives: its own; peer is the other side in both. */
typedef struct member {
  int socket;                         /* -1: it has gone, or left */
  gb_stream_buffer in, out;
  wish *sends, **last_send, *receives, **last_receive;
  bool moves;                         /* it takes part in the round that is being put together */
  bool sums;                          /* it waits for the others' sum: */
  gb_packet sum;
} member;

struct gb_hub {
  pthread_t thread;
  int wake[2];                        /* closed: end */
  int size, left;                     /* left: how many are still there */
  _Atomic double patience;            /* seconds that the others have to leave, once the pipe has ended */
  struct pollfd *polls;
  member members[];
};

/* {==== Telling ==== */

typedef enum going { LEFT, GONE, FAILED } going;

static void lose(gb_hub *h, int rank, going how);

/* A member that cannot be told anything is lost. */
static void tell(gb_hub *h, int rank, const gb_packet *packet, const void *content) {
  member *m = &h->members[rank];
  if (m->socket < 0) return;
  if (!gb_buffer_put(&m->out, packet, sizeof *packet) || (content && !gb_buffer_put(&m->out, content, packet->bytes)))
    lose(h, rank, GONE);
}

static void tell_of(gb_hub *h, int rank, gb_word word, uint32_t id, uint64_t bytes, const void *content) {
  gb_packet p = { .word = (int32_t)word, .id = id, .bytes = bytes };
  tell(h, rank, &p, content);
}

static void drop_wishes(wish **first, wish ***last) {
  for (wish *w = *first, *next; w; w = next) next = w->next, free(w);
  *first = NULL;
  *last = first;
}

/* A member is no longer here; the others hear of it, unless it has come to its end. */
static void lose(gb_hub *h, int rank, going how) {
  member *m = &h->members[rank];
  if (m->socket < 0) return;
  close(m->socket);
  m->socket = -1;
  m->moves = false;
  h->left--;
  drop_wishes(&m->receives, &m->last_receive);
  for (int r = 0; how != LEFT && r < h->size; r++)
    tell(h, r, &(gb_packet){ .word = GB_WORD_GONE, .peer = rank, .tag = how == FAILED }, NULL);
}

/* ====} */

/* {==== Matching ==== */

static void take_part(gb_hub *h, int rank, uint32_t id) {
  tell_of(h, rank, GB_WORD_MOVE, id, 0, NULL);
  h->members[rank].moves = h->members[rank].socket >= 0;
}

/* The round is complete. */
static void go(gb_hub *h) {
  for (int r = 0; r < h->size; r++) {
    if (h->members[r].moves) tell_of(h, r, GB_WORD_GO, 0, 0, NULL);
    h->members[r].moves = false;
  }
}

/* Both sides are there. */
static void match(gb_hub *h, int from, int to, const wish *sent, const wish *wanted) {
  bool fits = sent->fits;
  if (fits && sent->bytes <= wanted->bytes) tell_of(h, to, GB_WORD_GIVE, wanted->id, sent->bytes, sent->content);
  else if (!fits && sent->bytes == wanted->bytes) take_part(h, from, sent->id), take_part(h, to, wanted->id);
  else {
    tell_of(h, to, GB_WORD_LENGTH, wanted->id, sent->bytes, NULL);
    if (!fits) tell_of(h, from, GB_WORD_LENGTH, sent->id, sent->bytes, NULL);
  }
}

/* Take the first wish of this peer and tag out of the list; NULL: there is none. */
static wish *find(wish **first, wish ***last, int peer, int tag) {
  for (wish **at = first; *at; at = &(*at)->next) {
    wish *w = *at;
    if (w->peer != peer || w->tag != tag) continue;
    *at = w->next;
    if (!w->next) *last = at;
    return w;
  }
  return NULL;
}

static wish *keep(const gb_packet *p, int peer, const char *content) {
  size_t bytes = gb_packet_carries(p) ? (size_t)p->bytes : 0;
  wish *w = malloc(sizeof *w + bytes);
  if (!w) return NULL;
  *w = (wish){ .peer = peer, .tag = p->tag, .fits = gb_packet_carries(p), .id = p->id, .bytes = p->bytes };
  if (bytes) memcpy(w->content, content, bytes);
  return w;
}

/* false: there is no memory. */
static bool want_to_send(gb_hub *h, int from, const gb_packet *p, const char *content) {
  member *to = &h->members[p->peer];
  wish *sent = keep(p, from, content);
  if (!sent) return false;
  wish *wanted = find(&to->receives, &to->last_receive, from, p->tag);
  if (!wanted) return *to->last_send = sent, to->last_send = &sent->next, true;
  match(h, from, p->peer, sent, wanted);
  free(sent);
  free(wanted);
  return true;
}

static bool want_to_receive(gb_hub *h, int rank, const gb_packet *p) {
  member *m = &h->members[rank];
  wish *wanted = keep(p, p->peer, NULL);
  if (!wanted) return false;
  wish *sent = find(&m->sends, &m->last_send, p->peer, p->tag);
  if (!sent) return *m->last_receive = wanted, m->last_receive = &wanted->next, true;
  match(h, p->peer, rank, sent, wanted);
  free(sent);
  free(wanted);
  return true;
}

/* A wish of this rank and number goes, if it has not been matched. */
static void forget(gb_hub *h, int rank, const gb_packet *p) {
  for (int receives = 0; receives < 2; receives++) {
    member *m = &h->members[receives ? rank : p->peer];
    wish **first = receives ? &m->receives : &m->sends;
    for (wish **at = first; *at; at = &(*at)->next) {
      wish *w = *at;
      if (w->id != p->id || w->peer != (receives ? p->peer : rank)) continue;
      *at = w->next;
      if (!w->next) *(receives ? &m->last_receive : &m->last_send) = at;
      free(w);
      return;
    }
  }
}

/* Sums wait for all ranks, and have a round of their own. */
static void want_sum(gb_hub *h, int rank, const gb_packet *p) {
  bool alike = true;
  h->members[rank].sums = true;
  h->members[rank].sum = *p;
  for (int r = 0; r < h->size; r++) {
    const member *m = &h->members[r];
    if (!m->sums) return;
    alike = alike && m->sum.bytes == p->bytes && m->sum.tag == p->tag;
  }
  go(h);
  for (int r = 0; r < h->size; r++) {
    h->members[r].sums = false;
    if (alike) take_part(h, r, h->members[r].sum.id);
    else tell_of(h, r, GB_WORD_UNLIKE, h->members[r].sum.id, 0, NULL);
  }
  go(h);
}

/* ====} */

/* {==== Hearing ==== */

/* false: this makes no sense, or there is no memory. */
static bool obey(gb_hub *h, int rank, const gb_packet *p, const char *content) {
  bool has_peer = p->word == GB_WORD_SEND || p->word == GB_WORD_OFFER || p->word == GB_WORD_RECEIVE;
  if (has_peer && (p->peer < 0 || p->peer >= h->size || p->peer == rank)) return false;
  switch (p->word) {
    case GB_WORD_SEND: case GB_WORD_OFFER: return want_to_send(h, rank, p, content);
    case GB_WORD_RECEIVE: return want_to_receive(h, rank, p);
    case GB_WORD_DROP: return p->peer >= 0 && p->peer < h->size && (forget(h, rank, p), true);
    case GB_WORD_SUM: return !h->members[rank].sums && (want_sum(h, rank, p), true);
    case GB_WORD_LEAVE: lose(h, rank, p->tag ? FAILED : LEFT); return true;
    default: return false;
  }
}

static void hear(gb_hub *h, int rank) {
  member *m = &h->members[rank];
  gb_packet packet;
  const char *content;
  bool open = gb_buffer_receive(&m->in, m->socket);
  int taken = 1;
  while (m->socket >= 0 && (taken = gb_buffer_take(&m->in, &packet, &content)) > 0)
    if (!obey(h, rank, &packet, content)) taken = -1, lose(h, rank, GONE);
  if (!open || taken < 0) lose(h, rank, GONE);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Serve until all have left, or the end was asked for. */
static void *serve(void *argument) {
  gb_hub *h = argument;
  double until = 0;                   /* 0: the end was not asked for */
  while (h->left && !(until != 0 && seconds() > until)) {
    for (int r = 0; r < h->size; r++) {
      const member *m = &h->members[r];
      h->polls[r] = (struct pollfd){ m->socket, (short)(POLLIN | (m->out.begin < m->out.end ? POLLOUT : 0)), 0 };
    }
    h->polls[h->size] = (struct pollfd){ until == 0 ? h->wake[0] : -1, POLLIN, 0 };
    if (poll(h->polls, (nfds_t)h->size + 1, until == 0 ? -1 : 100) < 0) continue;
    if (h->polls[h->size].revents) until = seconds() + h->patience;
    for (int r = 0; r < h->size; r++)
      if (h->members[r].socket >= 0 && h->polls[r].revents & (POLLIN | POLLHUP | POLLERR)) hear(h, r);
    go(h);
    for (int r = 0; r < h->size; r++)
      if (h->members[r].socket >= 0 && !gb_buffer_send(&h->members[r].out, h->members[r].socket)) lose(h, r, GONE);
  }
  return NULL;
}

/* ====} */

/* The thread takes no signals: those of the recipe belong to the thread that runs it. */
static bool start(gb_hub *h) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&h->thread, NULL, serve, h) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void free_hub(gb_hub *h) {
  for (int r = 0; r < h->size; r++) {
    member *m = &h->members[r];
    drop_wishes(&m->sends, &m->last_send);
    drop_wishes(&m->receives, &m->last_receive);
    gb_buffer_free(&m->in);
    gb_buffer_free(&m->out);
  }
  for (int i = 0; i < 2; i++)
    if (h->wake[i] >= 0) close(h->wake[i]);
  free(h->polls);
  free(h);
}

gb_hub *gb_hub_open(int size, const int *sockets, const void *id, size_t id_bytes) {
  gb_hub *h = calloc(1, sizeof *h + (size_t)size * sizeof *h->members);
  if (!h) return NULL;
  h->size = h->left = size;
  h->wake[0] = h->wake[1] = -1;
  h->polls = malloc(((size_t)size + 1) * sizeof *h->polls);
  bool good = h->polls && pipe2(h->wake, O_CLOEXEC) == 0;
  gb_packet p = { .word = GB_WORD_ID, .bytes = id_bytes };
  for (int r = 0; r < size; r++) {
    member *m = &h->members[r];
    m->socket = sockets[r];
    m->last_send = &m->sends;
    m->last_receive = &m->receives;
    good = good && gb_buffer_put(&m->out, &p, sizeof p) && gb_buffer_put(&m->out, id, id_bytes);
  }
  if (good && start(h)) return h;
  free_hub(h);
  return NULL;
}

void gb_hub_close(gb_hub *h, double patience) {
  if (!h) return;
  h->patience = patience;
  close(h->wake[1]);
  h->wake[1] = -1;
  pthread_join(h->thread, NULL);
  for (int r = 0; r < h->size; r++)
    if (h->members[r].socket >= 0) close(h->members[r].socket);
  free_hub(h);
}
