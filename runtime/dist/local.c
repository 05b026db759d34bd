/* local.c - the transport between threads of one process: a box of letters for each rank. */
#include "dist/local.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct letter {
  struct letter *next;
  int from, tag;
  size_t bytes;
  char data[];
} letter;

/* gone: the rank closed, and not cleanly. */
typedef struct box { letter *first, **last; bool gone; } box;

struct gb_local_world {
  pthread_mutex_t lock;
  int size, refs;                     /* refs: the opener, and one for each transport */
  box boxes[];
};

/* A message that is waited for; one that was sent is done at once. */
typedef struct message { struct message *next; bool sends; int peer, tag; void *data; size_t bytes; } message;

/* waiting: what is to be received, in the order of the posts, under the world's lock. */
typedef struct place { gb_local_world *world; int rank; message *waiting; } place;

gb_local_world *gb_local_open(int size) {
  gb_local_world *world = calloc(1, sizeof *world + (size_t)size * sizeof *world->boxes);
  if (!world) return NULL;
  pthread_mutex_init(&world->lock, NULL);
  world->size = size;
  world->refs = 1;
  for (int i = 0; i < size; i++) world->boxes[i].last = &world->boxes[i].first;
  return world;
}

/* One reference less; the last one frees the letters that nobody read. */
static void release(gb_local_world *world) {
  pthread_mutex_lock(&world->lock);
  int refs = --world->refs;
  pthread_mutex_unlock(&world->lock);
  if (refs) return;
  for (int i = 0; i < world->size; i++)
    for (letter *l = world->boxes[i].first, *next; l; l = next) next = l->next, free(l);
  pthread_mutex_destroy(&world->lock);
  free(world);
}

void gb_local_close(gb_local_world *world) { if (world) release(world); }

/* Put a copy of the message into the peer's box. */
static gb_status deliver(const place *p, int peer, int tag, const void *data, size_t bytes) {
  letter *l = malloc(sizeof *l + bytes);
  if (!l) return GB_EMEMORY;
  *l = (letter){ .from = p->rank, .tag = tag, .bytes = bytes };
  if (bytes) memcpy(l->data, data, bytes);
  pthread_mutex_lock(&p->world->lock);
  box *b = &p->world->boxes[peer];
  *b->last = l;
  b->last = &l->next;
  pthread_mutex_unlock(&p->world->lock);
  return GB_OK;
}

static void expect(place *p, message *m) {
  pthread_mutex_lock(&p->world->lock);
  message **at = &p->waiting;
  while (*at) at = &(*at)->next;
  *at = m;
  pthread_mutex_unlock(&p->world->lock);
}

/* Under the world's lock. */
static void forget(place *p, const message *m) {
  for (message **at = &p->waiting; *at; at = &(*at)->next)
    if (*at == m) {
      *at = m->next;
      return;
    }
}

/* Is it the first that waits for what that rank sends with that tag? Messages do not overtake each other. */
static bool is_first(const place *p, const message *m) {
  const message *other = p->waiting;
  while (other != m && (other->peer != m->peer || other->tag != m->tag)) other = other->next;
  return other == m;
}

static gb_status post(gb_transport *t, bool sends, int peer, int tag, void *data, size_t bytes, void **out) {
  place *p = t->state;
  message *m = malloc(sizeof *m);
  gb_status status = m ? GB_OK : GB_EMEMORY;
  if (status == GB_OK && sends) status = deliver(p, peer, tag, data, bytes);
  if (status != GB_OK) {
    free(m);
    snprintf(t->error, sizeof t->error, "out of memory for a message of %zu bytes", bytes);
    return status;
  }
  *m = (message){ NULL, sends, peer, tag, data, bytes };
  if (!sends) expect(p, m);
  *out = m;
  return GB_OK;
}

/* Take the first letter from that rank with that tag out of the box; NULL: none is there. */
static letter *take(box *b, int from, int tag) {
  for (letter **at = &b->first; *at; at = &(*at)->next) {
    letter *l = *at;
    if (l->from != from || l->tag != tag) continue;
    *at = l->next;
    if (!l->next) b->last = at;
    return l;
  }
  return NULL;
}

static gb_status test(gb_transport *t, void *which, size_t *bytes, bool *done) {
  place *p = t->state;
  message *m = which;
  letter *l = NULL;
  bool gone = false;
  if (!m->sends) {
    pthread_mutex_lock(&p->world->lock);
    if (is_first(p, m)) {
      l = take(&p->world->boxes[p->rank], m->peer, m->tag);
      gone = p->world->boxes[m->peer].gone;
    }
    if (l || gone) forget(p, m);
    pthread_mutex_unlock(&p->world->lock);
    if (!l && !gone) return *done = false, GB_OK;
  }
  if (!m->sends && !l) {
    snprintf(t->error, sizeof t->error, "rank %d is gone", m->peer);
    free(m);
    return GB_EIO;
  }
  if (l && l->bytes > m->bytes) {
    snprintf(t->error, sizeof t->error, "rank %d sent %zu bytes where %zu were expected", m->peer, l->bytes, m->bytes);
    free(l);
    free(m);
    return GB_EIO;
  }
  if (l && l->bytes) memcpy(m->data, l->data, l->bytes);
  *bytes = l ? l->bytes : m->bytes;
  *done = true;
  free(l);
  free(m);
  return GB_OK;
}

static void drop(gb_transport *t, void *m) {
  place *p = t->state;
  pthread_mutex_lock(&p->world->lock);
  forget(p, m);
  pthread_mutex_unlock(&p->world->lock);
  free(m);
}

static void close_place(gb_transport *t, bool clean) {
  place *p = t->state;
  pthread_mutex_lock(&p->world->lock);
  p->world->boxes[p->rank].gone = !clean;
  pthread_mutex_unlock(&p->world->lock);
  release(p->world);
  free(p);
}

void gb_local_transport(gb_local_world *world, int rank, gb_transport *out) {
  place *p = malloc(sizeof *p);
  *out = (gb_transport){ .name = "threads", .rank = rank, .size = world->size, .local_rank = rank, .state = p,
                         .post = post, .test = test, .drop = drop, .close = close_place };
  if (!p) { out->size = 0; return; }
  *p = (place){ world, rank, NULL };
  pthread_mutex_lock(&world->lock);
  world->refs++;
  pthread_mutex_unlock(&world->lock);
}
