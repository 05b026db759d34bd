/* test_meeting.c - how the processes of a job over NCCL find each other, and whose messages move when: ranks are
 * threads that meet at a port of this machine, and a library of this test's moves the bytes. Beside them comes whoever
 * finds the port: with rubbish, with nothing, half a word, or what belongs to another job. Meant for the thread
 * sanitizer too. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "dist/comm.h"
#include "dist/hub.h"
#include "dist/pairs.h"
#include "engine.h"

enum { RANKS = 4, NUMBERS = 5000 };

static gb_context *contexts[RANKS];
static int port;

static void rest(long milliseconds) { nanosleep(&(struct timespec){ 0, milliseconds * 1000000L }, NULL); }

/* {==== A library between threads: a message is over once both sides have started it ==== */

/* What a rank has started. */
typedef struct place { gb_move moves[16]; bool over[16]; int count; bool sums; } place;
static struct { pthread_mutex_t lock; place places[RANKS]; int sizes[RANKS], started; } library = {
  .lock = PTHREAD_MUTEX_INITIALIZER };

static gb_status identify(gb_mover *m, void *id) { return (void)m, memset(id, 7, GB_MOVER_ID), GB_OK; }

static gb_status join(gb_mover *m, int rank, int size, const void *id) {
  m->state = &library.places[rank];
  pthread_mutex_lock(&library.lock);
  library.sizes[rank] = ((const char *)id)[GB_MOVER_ID - 1] == 7 ? size : 0;
  pthread_mutex_unlock(&library.lock);
  return GB_OK;
}

static gb_status start(gb_mover *m, const gb_move *moves, int count) {
  place *mine = m->state;
  pthread_mutex_lock(&library.lock);
  *mine = (place){ .count = count };
  memcpy(mine->moves, moves, (size_t)count * sizeof *moves);
  library.started += count;
  pthread_mutex_unlock(&library.lock);
  return GB_OK;
}

static gb_status sum(gb_mover *m, gb_dtype dtype, void *data, int64_t count) {
  (void)dtype, (void)data, (void)count;
  return snprintf(m->error, sizeof m->error, "no sums"), GB_EUNSUPPORTED;
}

/* The first move of the other side that is the counterpart; -1: it has not started it. */
static int counterpart(const place *other, int rank, const gb_move *move) {
  for (int i = 0; i < other->count; i++) {
    const gb_move *its = &other->moves[i];
    if (!other->over[i] && its->sends && its->peer == rank && its->bytes == move->bytes) return i;
  }
  return -1;
}

static gb_status test(gb_mover *m, bool *done) {
  place *mine = m->state;
  int rank = (int)(mine - library.places);
  *done = true;
  pthread_mutex_lock(&library.lock);
  for (int i = 0; i < mine->count; i++) {
    const gb_move *move = &mine->moves[i];
    place *other = &library.places[move->peer];
    int at = mine->over[i] || move->sends ? -1 : counterpart(other, rank, move);
    if (at >= 0) {
      memcpy(move->data, other->moves[at].data, move->bytes);
      mine->over[i] = other->over[at] = true;
    }
    *done = *done && mine->over[i];
  }
  pthread_mutex_unlock(&library.lock);
  return GB_OK;
}

static void close_mover(gb_mover *m, bool clean) { (void)m, (void)clean; }

static const gb_mover mover = { .name = "threads", .identify = identify, .join = join, .start = start, .sum = sum,
                                .test = test, .close = close_mover };

/* ====} */

/* {==== Ranks ==== */

typedef struct rank {
  gb_meeting meeting;
  gb_status status;
  int bad;
  void (*body)(struct rank *r, gb_comm *comm);
  pthread_t thread;
} rank;

static void *run_rank(void *argument) {
  rank *r = argument;
  gb_context *context = contexts[r->meeting.rank];
  gb_transport transport;
  gb_comm *comm;
  r->status = gb_pairs_open(context, &r->meeting, &mover, &transport);
  if (r->status == GB_OK) r->status = gb_comm_new(context, &transport, 20, &comm);
  if (r->status != GB_OK) return NULL;
  if (r->body) r->body(r, comm);
  gb_comm_close(comm, r->bad == 0);
  return NULL;
}

static void begin(rank *ranks, int i, int size, void (*body)(rank *, gb_comm *)) {
  ranks[i] = (rank){ .meeting = { "127.0.0.1", port, i, size, i, 42, 20 }, .body = body };
}

static void finish(rank *ranks, int count) {
  for (int i = 0; i < count; i++) pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]);
  for (int i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
}

#define EXPECT(r, expression)                                                                                         \
  do {                                                                                                                \
    if (expression) break;                                                                                            \
    (r)->bad++;                                                                                                       \
    fprintf(stderr, "%s:%d: rank %d failed: %s\n", __FILE__, __LINE__, (r)->meeting.rank, #expression);               \
  } while (0)

/* Messages of several lengths to all, begun in another order than they are received in; those who receive begin before
 * or after. */
static void cross(rank *r, gb_comm *comm) {
  static const size_t lengths[] = { 0, 8, GB_PACKET_BYTES, GB_PACKET_BYTES + 8, NUMBERS * 8 };
  int me = comm->rank, size = comm->size, count = 0;
  int64_t *out = malloc(NUMBERS * 8), *in = calloc((size_t)(size * 5) * NUMBERS, 8);
  gb_post posts[2 * 5 * RANKS];
  for (int64_t i = 0; i < NUMBERS; i++) out[i] = me * 1000000 + i;
  for (int turn = 0; turn < 2; turn++)
    for (int k = 0; k < 5 * size; k++) {
      int peer = (me + k / 5) % size, l = turn == me % 2 ? k % 5 : 4 - k % 5;
      bool sends = turn == me % 2;
      void *data = sends ? (void *)out : (void *)(in + (size_t)(peer * 5 + l) * NUMBERS);
      if (peer == me) continue;
      EXPECT(r, gb_comm_post(comm, (gb_tag)l, sends, peer, data, lengths[l], &posts[count++]) == GB_OK);
    }
  EXPECT(r, gb_comm_wait(comm, posts, count) == GB_OK);
  for (int peer = 0; peer < size; peer++)
    for (int l = 0; l < 5 && peer != me; l++) {
      const int64_t *got = in + (size_t)(peer * 5 + l) * NUMBERS;
      int64_t good = 0, count_of = (int64_t)lengths[l] / 8;
      while (good < count_of && got[good] == peer * 1000000 + good) good++;
      EXPECT(r, good == count_of);
    }
  for (int turn = 0; turn < 20; turn++) EXPECT(r, gb_comm_barrier(comm) == GB_OK);
  free(out);
  free(in);
}

/* Rank 1 sends another length than rank 0 expects: that rank learns of it, and the library never hears of it. */
static void differ(rank *r, gb_comm *comm) {
  char *data = calloc(1, 9000);
  gb_status status = gb_comm_transfer(comm, GB_TAG_USER, comm->rank == 1, 1 - comm->rank, data,
                                      comm->rank == 1 ? 5000 : 9000);
  EXPECT(r, comm->rank == 1 ? status == GB_OK : status == GB_EIO);
  if (comm->rank == 0)
    EXPECT(r, strstr(gb_error(comm->context), "rank 1 sent 5000 bytes where rank 0 expected 9000"));
  free(data);
}

/* ====} */

/* {==== Strangers ==== */

static int call(void) {
  struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 200; i++) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (struct sockaddr *)&there, sizeof there) == 0) return s;
    close(s);
    rest(20);
  }
  return -1;
}

typedef struct hello { char magic[8]; uint32_t version; int32_t rank, size, local_rank; uint64_t job; } hello;

/* What rank 0 answers; "": it hangs up. */
static void ask(const void *said, size_t bytes, char *text) {
  int s = call();
  struct { char magic[8]; uint32_t version, taken; char text[240]; } a;
  memset(&a, 0, sizeof a);
  text[0] = 0;
  struct timeval limit = { 5, 0 };
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  bool told = send(s, said, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
  if (told && recv(s, &a, sizeof a, MSG_WAITALL) == sizeof a && !a.taken) memcpy(text, a.text, sizeof a.text);
  close(s);
}

static void come_strangely(void) {
  const hello good = { { 'g', 'i', 'b', 'b', 'o', 'u', 's', 1 }, 1, 1, 3, 1, 42 };
  char text[240], rubbish[4096];
  for (size_t i = 0; i < sizeof rubbish; i++) rubbish[i] = (char)(i * 2654435761u >> 7);
  ask("GET / HTTP/1.1\r\n\r\n", 18, text);
  CHECK(!text[0]);
  ask(rubbish, sizeof rubbish, text);
  CHECK(!text[0]);
  close(call());
  hello it = good;
  it.version = 99;
  ask(&it, sizeof it, text);
  CHECK(strstr(text, "another version"));
  it = good, it.job = 43;
  ask(&it, sizeof it, text);
  CHECK(strstr(text, "another job"));
  it = good, it.size = 9;
  ask(&it, sizeof it, text);
  CHECK(strstr(text, "WORLD_SIZE=9, and rank 0 has WORLD_SIZE=3"));
  static const int32_t ranks[] = { 0, 3, -1, INT32_MAX, INT32_MIN };
  for (int i = 0; i < 5; i++) {
    it = good, it.rank = ranks[i];
    ask(&it, sizeof it, text);
    CHECK(strstr(text, "of 3 processes"));
  }
}

/* Rank 0 waits for two others. Strangers come first, and some stay and say nothing; then the two. */
static void test_strangers(void) {
  rank ranks[3];
  int silent[40];
  for (int i = 0; i < 3; i++) begin(ranks, i, 3, cross);
  pthread_create(&ranks[0].thread, NULL, run_rank, &ranks[0]);
  come_strangely();
  for (int i = 0; i < 40; i++) {
    silent[i] = call();
    if (i % 2) (void)!send(silent[i], "gibb", 4, MSG_NOSIGNAL);
  }
  finish(ranks + 1, 2);
  pthread_join(ranks[0].thread, NULL);
  for (int i = 0; i < 40; i++) close(silent[i]);
  for (int i = 0; i < 3; i++) CHECK(ranks[i].status == GB_OK && ranks[i].bad == 0);
}

/* ====} */

/* {==== A hub that is told nonsense ==== */

/* Rank 1 of two, by hand: what it says ends its connection, and rank 0 hears that it is gone. */
static void be_nonsense(const void *said, size_t bytes) {
  int pairs[2][2];
  char id[GB_MOVER_ID] = "";
  for (int i = 0; i < 2; i++) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
  int sockets[2] = { pairs[0][0], pairs[1][0] };
  gb_hub *hub = gb_hub_open(2, sockets, id, sizeof id);
  gb_packet p = { .word = -1 };
  struct { gb_packet packet; char id[GB_MOVER_ID]; } first;
  CHECK(recv(pairs[0][1], &first, sizeof first, MSG_WAITALL) == sizeof first && first.packet.word == GB_WORD_ID);
  CHECK(send(pairs[1][1], said, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
  CHECK(recv(pairs[0][1], &p, sizeof p, MSG_WAITALL) == sizeof p && p.word == GB_WORD_GONE && p.peer == 1);
  for (int i = 0; i < 2; i++) close(pairs[i][1]);
  gb_hub_close(hub, 1);
}

static void test_nonsense(void) {
  static const gb_packet packets[] = {
    { .word = -5 }, { .word = 1000 }, { .word = GB_WORD_ID, .bytes = 128 },
    { .word = GB_WORD_GIVE, .bytes = UINT64_MAX },
    { .word = GB_WORD_SEND, .peer = 2, .bytes = 4096 }, { .word = GB_WORD_SEND, .peer = -1, .bytes = 4096 },
    { .word = GB_WORD_RECEIVE, .peer = 1 }, { .word = GB_WORD_DROP, .peer = INT32_MIN }, { .word = GB_WORD_GO },
  };
  char content[sizeof packets[0] + 128];
  for (size_t i = 0; i < sizeof packets / sizeof *packets; i++) {
    memset(content, 0, sizeof content);
    memcpy(content, &packets[i], sizeof packets[i]);
    be_nonsense(content, sizeof content);
  }
}

/* ====} */

/* Two of one rank, a port that is taken, and a rank that does not come. */
static void test_refusals(void) {
  rank first;
  int sockets[3], taken;
  begin(&first, 0, 3, NULL);
  first.meeting.timeout = 3;
  gb_meeting one = first.meeting;
  one.rank = 1;
  pthread_create(&first.thread, NULL, run_rank, &first);
  CHECK(gb_meeting_hold(contexts[1], &one, sockets) == GB_OK);
  taken = sockets[0];
  CHECK(gb_meeting_hold(contexts[2], &one, sockets) == GB_EINVAL);
  CHECK(strstr(gb_error(contexts[2]), "RANK=1 has come already"));
  CHECK(gb_meeting_hold(contexts[3], &first.meeting, sockets) == GB_EIO);
  CHECK(strstr(gb_error(contexts[3]), "cannot listen at port"));
  pthread_join(first.thread, NULL);
  CHECK(first.status == GB_EIO);
  CHECK(strstr(gb_error(contexts[0]), "1 of 3 processes did not come: rank 2; rank 1 was sent away"));
  close(taken);
}

int main(void) {
  rank ranks[RANKS];
  port = 10000 + (int)(getpid() % 20000);
  for (int i = 0; i < RANKS; i++) contexts[i] = open_context(1, NULL);
  for (int size = 2; size <= RANKS; size++) {
    for (int i = 0; i < size; i++) begin(ranks, i, size, cross);
    finish(ranks, size);
    for (int i = 0; i < size; i++) CHECK(ranks[i].status == GB_OK && ranks[i].bad == 0 && library.sizes[i] == size);
  }
  CHECK(library.started > 0);
  library.started = 0;
  for (int i = 0; i < 2; i++) begin(ranks, i, 2, differ);
  finish(ranks, 2);
  for (int i = 0; i < 2; i++) CHECK(ranks[i].status == GB_OK && ranks[i].bad == 0);
  CHECK(library.started == 0);
  test_strangers();
  test_nonsense();
  test_refusals();
  for (int i = 0; i < RANKS; i++) gb_context_close(contexts[i]);
  return check_report();
}
