/* pairs.c - one rank's side: what it wants, what the hub has said, and the rounds of moves. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "dist/pairs.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dist/hub.h"

/* A rank that fails has its reason: who has the same one finds it in this time, as a heartbeat that is missing, and
 * tells that. As long rank 0 goes on serving the others, and who finds that the library has failed waits for word of a
 * rank that is gone. */
#define REASON_SECONDS 1.0
#define LEAVE_SECONDS 10.0            /* that the others have to come to their end, once rank 0 has */

/* Of a message. WANTED: the hub knows of it. MOVES: it takes part in a round, or will. */
typedef enum stage { WANTED, MOVES, DONE, FAILED } stage;

/* dropped: nobody asks for it any more, but the hub or the library may still know of it. */
typedef struct message {
  struct message *next;
  struct message *following;          /* in its round */
  bool sends, sums, dropped, near;    /* near: it lies on the mover's device */
  stage stage;
  int peer, tag;                      /* tag: of a sum its dtype */
  uint32_t id;
  void *data;
  size_t bytes, length;
  const char *fault;
} message;

/* Messages that run at once. */
typedef struct round { struct round *next; message *first, **last; int count; } round;

typedef struct pairs {
  gb_mover mover;
  gb_hub *hub;                        /* on rank 0 */
  int socket, size;
  gb_stream_buffer in, out;
  message *messages;
  uint32_t ids;
  round *rounds, **last_round;        /* that have begun or may begin, the first one is under way; then the one that is
                                         being put together */
  bool runs;                          /* the first round is under way */
  bool broken;                        /* the library, or memory, has failed: fault says how */
  double broken_at;
  bool lost;                          /* the connection to rank 0 has ended */
  int gone;                           /* the rank that went first; -1: none */
  bool failed;                        /* it said that it fails */
  double gone_at;
  bool known;                         /* the id has come */
  char id[GB_MOVER_ID];
  char fault[256];
} pairs;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void break_down(pairs *p, const char *why) {
  if (p->broken) return;
  snprintf(p->fault, sizeof p->fault, "%s", why);
  p->broken = true;
  p->broken_at = seconds();
}

/* Is a rank gone, and known to be the reason why nothing goes on? */
static bool has_lost_one(const pairs *p) {
  return p->gone >= 0 && (!p->failed || seconds() - p->gone_at > REASON_SECONDS);
}

/* {==== Rounds ==== */

static round *open_round(pairs *p) {
  round *r = calloc(1, sizeof *r);
  if (!r) return break_down(p, "out of memory for a message"), NULL;
  r->last = &r->first;
  *p->last_round = r;
  p->last_round = &r->next;
  return r;
}

/* The round that is being put together is the last one: all before it are complete. */
static round *forming(pairs *p) {
  round *r = p->rounds;
  while (r && r->next) r = r->next;
  return r ? r : open_round(p);
}

static void take_part(pairs *p, message *m) {
  round *r = forming(p);
  if (!r) return;
  m->stage = MOVES;
  *r->last = m;
  r->last = &m->following;
  r->count++;
}

static gb_status start_round(pairs *p, const round *r) {
  const message *m = r->first;
  if (m->sums) {
    size_t each = gb_dtype_bytes((gb_dtype)m->tag);
    return p->mover.sum(&p->mover, (gb_dtype)m->tag, m->data, (int64_t)(m->bytes / each));
  }
  gb_move *moves = malloc((size_t)r->count * sizeof *moves);
  if (!moves) return snprintf(p->mover.error, sizeof p->mover.error, "out of memory for a round"), GB_EMEMORY;
  for (int i = 0; i < r->count; i++, m = m->following)
    moves[i] = (gb_move){ m->sends, m->peer, m->data, m->bytes };
  gb_status status = p->mover.start(&p->mover, moves, r->count);
  free(moves);
  return status;
}

/* The first round is over. */
static void end_round(pairs *p) {
  round *r = p->rounds;
  for (message *m = r->first; m; m = m->following) m->stage = DONE, m->length = m->bytes;
  p->rounds = r->next;
  p->runs = false;
  free(r);
}

/* Go on with the rounds that are complete. */
static void move(pairs *p) {
  gb_status status = GB_OK;
  while (status == GB_OK && !p->broken && p->rounds && p->rounds->next) {
    bool done = false;
    if (!p->rounds->first) done = true;
    else if (!p->runs) status = start_round(p, p->rounds), p->runs = status == GB_OK;
    if (p->runs) status = p->mover.test(&p->mover, &done);
    if (!done) break;
    end_round(p);
  }
  if (status != GB_OK) break_down(p, p->mover.error);
}

/* ====} */

/* A round whose other side is gone would never end, and whoever waits for the device would wait for it. */
static void give_up(pairs *p) {
  if (!has_lost_one(p) && !p->lost && !p->broken) return;
  break_down(p, "the job has lost a rank");
  p->mover.close(&p->mover, false);
}

/* {==== What the hub says ==== */

static message *find(pairs *p, uint32_t id) {
  message *m = p->messages;
  while (m && m->id != id) m = m->next;
  return m;
}

static void finish(message *m, size_t length) {
  m->stage = DONE;
  m->length = length;
}

/* The content of a message, to where it is wanted. */
static void deliver(pairs *p, const message *m, const char *content, size_t bytes) {
  if (!m->near) memcpy(m->data, content, bytes);
  else if (p->mover.put(&p->mover, m->data, content, bytes) != GB_OK) break_down(p, p->mover.error);
}

/* Of a message that is not there nobody wants to know. A dropped one takes part in a round all the same, since the
 * other side waits for it; its memory is still there. */
static void obey(pairs *p, const gb_packet *packet, const char *content) {
  message *m = packet->word >= GB_WORD_GIVE ? find(p, packet->id) : NULL;
  switch (packet->word) {
    case GB_WORD_ID:
      p->known = packet->bytes == sizeof p->id;
      if (p->known) memcpy(p->id, content, sizeof p->id);
      break;
    case GB_WORD_GIVE:
      if (!m || m->sends || packet->bytes > m->bytes) break;
      if (packet->bytes && !m->dropped && m->bytes <= GB_PACKET_BYTES) deliver(p, m, content, packet->bytes);
      finish(m, packet->bytes);
      break;
    case GB_WORD_LENGTH: if (m) finish(m, packet->bytes); break;
    case GB_WORD_MOVE: if (m) take_part(p, m); break;
    case GB_WORD_GO: (void)open_round(p); break; /* what was being put together is complete */
    case GB_WORD_GONE:
      if (packet->peer < 0 || packet->peer >= p->size || (p->gone >= 0 && (!p->failed || packet->tag))) break;
      p->gone = packet->peer;
      p->failed = packet->tag;
      p->gone_at = seconds();
      break;
    case GB_WORD_UNLIKE:
      if (m) m->stage = FAILED, m->fault = "the ranks add up unlike numbers; each must make the same calls, with "
                                           "tensors of the same shape and dtype";
      break;
    default: break;
  }
}

/* Send and receive what goes without waiting. What came before the connection ended still counts. */
static void talk(pairs *p) {
  gb_packet packet;
  const char *content;
  int taken;
  if (!p->lost && !gb_buffer_send(&p->out, p->socket)) p->lost = true;
  bool open = p->lost || gb_buffer_receive(&p->in, p->socket);
  while ((taken = gb_buffer_take(&p->in, &packet, &content)) > 0) obey(p, &packet, content);
  if (!open || taken < 0) p->lost = true;
}

static gb_status tell(pairs *p, gb_word word, const message *m) {
  gb_packet packet = { (int32_t)word, m->peer, m->tag, m->id, m->bytes };
  if (gb_buffer_put(&p->out, &packet, sizeof packet) &&
      (!gb_packet_carries(&packet) || gb_buffer_put(&p->out, m->data, m->bytes))) return GB_OK;
  return GB_EMEMORY;
}

/* ====} */

/* {==== The transport ==== */

static gb_status want(gb_transport *t, const message *like, gb_word word, void **out) {
  pairs *p = t->state;
  message *m = malloc(sizeof *m);
  if (m) *m = *like, m->id = ++p->ids;
  if (!m || tell(p, word, m) != GB_OK) {
    free(m);
    snprintf(t->error, sizeof t->error, "out of memory for a message of %zu bytes", like->bytes);
    return GB_EMEMORY;
  }
  m->next = p->messages;
  p->messages = m;
  *out = m;
  if (word != GB_WORD_RECEIVE) talk(p); /* receives go with what is sent next, or looked for */
  return GB_OK;
}

static gb_status post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **out) {
  message like = { .sends = sends, .peer = peer, .tag = tag, .data = data, .bytes = bytes };
  pairs *p = t->state;
  like.near = p->mover.near && bytes && bytes <= GB_PACKET_BYTES && p->mover.holds(&p->mover, data);
  bool carries = sends && bytes <= GB_PACKET_BYTES && !like.near;
  if (carries) like.stage = DONE, like.length = bytes; /* it was copied */
  return want(t, &like, !sends ? GB_WORD_RECEIVE : like.near ? GB_WORD_OFFER : GB_WORD_SEND, out);
}

static gb_status sum(gb_transport *t, gb_dtype dtype, void *data, int64_t count, void **out) {
  message like = { .sends = true, .sums = true, .tag = dtype, .data = data,
                   .bytes = (size_t)count * gb_dtype_bytes(dtype) };
  return want(t, &like, GB_WORD_SUM, out);
}

/* Nobody asks for it any more. What the hub or the library may know stays until the end. */
static void let_go(pairs *p, message *m) {
  if (m->stage == WANTED || m->stage == MOVES) { m->dropped = true; return; }
  message **at = &p->messages;
  while (*at != m) at = &(*at)->next;
  *at = m->next;
  free(m);
}

/* Why the message cannot come to its end; NULL: it may. Whoever went first is the reason why others go. */
static const char *fault_of(const pairs *p, const message *m, char *text, size_t size) {
  if (m->stage == DONE) return NULL;
  if (m->stage == FAILED) return m->fault;
  if (has_lost_one(p)) {
    snprintf(text, size, p->failed ? "rank %d has left the job by a failure, which its own error tells"
                                   : "rank %d is gone: its connection to rank 0 has ended", p->gone);
    return text;
  }
  if (p->lost) return "rank 0 is gone: the connection to it has ended";
  return p->broken && seconds() - p->broken_at > REASON_SECONDS ? p->fault : NULL;
}

static gb_status test(gb_transport *t, void *which, size_t *bytes, bool *done) {
  pairs *p = t->state;
  message *m = which;
  char text[128];
  if (m->stage != DONE) {
    talk(p);
    move(p);
    give_up(p);
  }
  const char *fault = fault_of(p, m, text, sizeof text);
  *done = m->stage == DONE;
  *bytes = m->length;
  if (fault) snprintf(t->error, sizeof t->error, "%s", fault);
  if (fault || *done) let_go(p, m);
  return fault ? GB_EIO : GB_OK;
}

static void drop(gb_transport *t, void *which) {
  pairs *p = t->state;
  message *m = which;
  if (m->stage == WANTED && !m->sums && tell(p, GB_WORD_DROP, m) == GB_OK) talk(p);
  let_go(p, m);
}

/* Say that this is the end, and wait for a moment until it is said. */
static void say_farewell(pairs *p, bool clean) {
  gb_packet packet = { .word = GB_WORD_LEAVE, .tag = !clean };
  struct pollfd one = { p->socket, POLLOUT, 0 };
  if (!gb_buffer_put(&p->out, &packet, sizeof packet)) return;
  for (int i = 0; i < 50 && !p->lost; i++) {
    p->lost = !gb_buffer_send(&p->out, p->socket);
    if (p->out.begin == p->out.end) return;
    poll(&one, 1, 100);
  }
}

static void free_pairs(pairs *p) {
  for (message *m = p->messages, *next; m; m = next) next = m->next, free(m);
  for (round *r = p->rounds, *next; r; r = next) next = r->next, free(r);
  gb_buffer_free(&p->in);
  gb_buffer_free(&p->out);
  if (p->socket >= 0) close(p->socket);
  free(p);
}

static void close_pairs(gb_transport *t, bool clean) {
  pairs *p = t->state;
  p->mover.close(&p->mover, clean && !p->broken);
  if (p->socket >= 0) say_farewell(p, clean);
  gb_hub *hub = p->hub;
  free_pairs(p);
  gb_hub_close(hub, clean ? LEAVE_SECONDS : 2 * REASON_SECONDS);
}

/* ====} */

/* {==== The beginning ==== */

/* Rank 0 opens the hub over its own socket and the others'. */
static gb_status open_hub(gb_context *context, pairs *p, int *sockets) {
  int own[2];
  if (p->mover.identify(&p->mover, p->id) != GB_OK)
    return gb_fail(context, GB_EDEVICE, "dist.init: %s", p->mover.error);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, own) != 0)
    return gb_fail(context, GB_EIO, "dist.init: no socket is left; raise ulimit -n");
  p->socket = own[0];
  sockets[0] = own[1];
  p->hub = gb_hub_open(p->size, sockets, p->id, sizeof p->id);
  return p->hub ? GB_OK : gb_fail_memory(context, 0);
}

static gb_status meet(gb_context *context, const gb_meeting *meeting, pairs *p) {
  int count = meeting->rank == 0 ? meeting->size : 1;
  int *sockets = malloc((size_t)count * sizeof *sockets);
  if (!sockets) return gb_fail_memory(context, 0);
  gb_status status = gb_meeting_hold(context, meeting, sockets);
  if (status == GB_OK && meeting->rank) p->socket = sockets[0];
  else if (status == GB_OK) status = open_hub(context, p, sockets);
  for (int i = 0; i < count && status != GB_OK; i++)
    if (sockets[i] >= 0) close(sockets[i]);
  free(sockets);
  return status;
}

/* Wait until it is so, or a rank goes, or time is over. */
static gb_status wait_for(gb_context *context, pairs *p, double until, bool joined) {
  bool done = false;
  gb_status status = GB_OK;
  while (!done) {
    talk(p);
    if (p->gone >= 0)
      return gb_fail(context, GB_EIO, "dist.init: rank %d is gone before the job began; its error says why", p->gone);
    if (p->lost) return gb_fail(context, GB_EIO, "dist.init: rank 0 is gone before the job began; its error says why");
    if (!joined) done = p->known;
    else status = p->mover.test(&p->mover, &done);
    if (status != GB_OK) return gb_fail(context, GB_EDEVICE, "dist.init: %s", p->mover.error);
    GB_TRY(gb_poll(context));
    if (!done && seconds() > until)
      return gb_fail(context, GB_EIO, "dist.init: %s did not come together within the time; NCCL_DEBUG=INFO shows what "
                                      "it waits for", p->mover.name);
    struct pollfd one = { p->socket, POLLIN, 0 };
    if (!done) poll(&one, 1, 2);
  }
  return GB_OK;
}

static gb_status join(gb_context *context, const gb_meeting *meeting, pairs *p) {
  double until = seconds() + meeting->timeout;
  GB_TRY(meet(context, meeting, p));
  GB_TRY(wait_for(context, p, until, false));
  if (p->mover.join(&p->mover, meeting->rank, meeting->size, p->id) != GB_OK)
    return gb_fail(context, GB_EDEVICE, "dist.init: %s", p->mover.error);
  return wait_for(context, p, until, true);
}

gb_status gb_pairs_open(gb_context *context, const gb_meeting *meeting, const gb_mover *mover, gb_transport *out) {
  pairs *p = calloc(1, sizeof *p);
  *out = (gb_transport){ .name = mover->name, .rank = meeting->rank, .size = meeting->size,
                         .local_rank = meeting->local_rank, .state = p, .post = post, .test = test, .drop = drop,
                         .sum = sum, .close = close_pairs };
  if (!p) {
    gb_mover gone = *mover;
    gone.close(&gone, false);
    return gb_fail_memory(context, 0);
  }
  p->mover = *mover;
  out->mover = &p->mover;
  p->size = meeting->size;
  p->socket = p->gone = -1;
  p->last_round = &p->rounds;
  gb_status status = join(context, meeting, p);
  if (status != GB_OK) close_pairs(out, false);
  return status;
}

/* ====} */
