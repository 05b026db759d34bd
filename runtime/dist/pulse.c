/* pulse.c - the thread that beats, and what it has heard. */
#include "dist/pulse.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { SILENT_MOST = 7 };             /* beats that may be missed: with BEAT, a bit over a second and a half */
#define BEAT 200000000L               /* nanoseconds */

enum { ALIVE, FAREWELL };            /* words of a beat */
typedef struct beat_text { int32_t word; gb_pulse_wait wait; } beat_text;

/* One other rank: the messages to it and from it that are under way, what it said last, and how many beats it has been
 * silent. */
typedef struct ear { void *out, *in; beat_text said, heard, last; int silent; } ear;

struct gb_pulse {
  gb_transport *transport;
  pthread_t thread;
  pthread_mutex_t lock;
  atomic_bool wants;                  /* the thread waits for the lock: others let it go first */
  pthread_mutex_t end_lock;
  pthread_cond_t ending;
  bool ends;                          /* under end_lock, like: */
  beat_text says;                     /* what the next beats say; under the lock */
  ear ears[];
};

/* Who waits for a message takes the lock again and again: a heartbeat that comes too late would be missed. */
void gb_pulse_lock(gb_pulse *pulse) {
  if (!pulse) return;
  for (int i = 0; i < 100 && atomic_load(&pulse->wants); i++) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
  pthread_mutex_lock(&pulse->lock);
}

void gb_pulse_unlock(gb_pulse *pulse) { if (pulse) pthread_mutex_unlock(&pulse->lock); }

/* Hear all that a rank has said since, and say one thing, unless the last one is still on its way. A rank that the
 * transport fails with is silent. */
static void listen_to(gb_pulse *pulse, int rank) {
  gb_transport *t = pulse->transport;
  ear *e = &pulse->ears[rank];
  size_t bytes;
  bool done = true;
  e->silent++;
  while (done) {
    if (!e->in && t->post(t, false, rank, GB_PULSE_TAG, &e->heard, sizeof e->heard, &e->in) != GB_OK) return;
    if (t->test(t, e->in, &bytes, &done) != GB_OK) { e->in = NULL; return; }
    if (done) e->in = NULL, e->silent = 0, e->last = e->heard;
  }
  if (e->out && t->test(t, e->out, &bytes, &done) != GB_OK) e->out = NULL;
  else if (e->out && done) e->out = NULL;
  if (!e->out) e->said = pulse->says;
  if (!e->out && t->post(t, true, rank, GB_PULSE_TAG, &e->said, sizeof e->said, &e->out) != GB_OK) e->out = NULL;
}

static void *beat(void *argument) {
  gb_pulse *pulse = argument;
  pthread_mutex_lock(&pulse->end_lock);
  while (!pulse->ends) {
    pthread_mutex_unlock(&pulse->end_lock);
    atomic_store(&pulse->wants, true);
    pthread_mutex_lock(&pulse->lock);
    atomic_store(&pulse->wants, false);
    for (int r = 0; r < pulse->transport->size; r++)
      if (r != pulse->transport->rank) listen_to(pulse, r);
    pthread_mutex_unlock(&pulse->lock);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += BEAT;
    if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
    pthread_mutex_lock(&pulse->end_lock);
    while (!pulse->ends && pthread_cond_timedwait(&pulse->ending, &pulse->end_lock, &until) == 0) continue;
  }
  pthread_mutex_unlock(&pulse->end_lock);
  return NULL;
}

/* The thread takes no signals: those of the recipe belong to the thread that runs it. */
static bool start(gb_pulse *pulse) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&pulse->thread, NULL, beat, pulse) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

gb_pulse *gb_pulse_begin(gb_transport *transport) {
  gb_pulse *pulse = calloc(1, sizeof *pulse + (size_t)transport->size * sizeof *pulse->ears);
  pthread_condattr_t clock;
  if (!pulse) return NULL;
  pulse->transport = transport;
  pthread_mutex_init(&pulse->lock, NULL);
  pthread_mutex_init(&pulse->end_lock, NULL);
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&pulse->ending, &clock);
  pthread_condattr_destroy(&clock);
  if (start(pulse)) return pulse;
  gb_pulse_free(pulse);
  return NULL;
}

void gb_pulse_end(gb_pulse *pulse) {
  if (!pulse) return;
  pthread_mutex_lock(&pulse->end_lock);
  pulse->ends = true;
  pthread_cond_signal(&pulse->ending);
  pthread_mutex_unlock(&pulse->end_lock);
  pthread_join(pulse->thread, NULL);
  gb_transport *t = pulse->transport;
  for (int r = 0; r < t->size; r++) {
    ear *e = &pulse->ears[r];
    if (e->in) t->drop(t, e->in);
    if (e->out) t->drop(t, e->out);
    e->in = e->out = NULL;
  }
}

void gb_pulse_free(gb_pulse *pulse) {
  if (!pulse) return;
  pthread_mutex_destroy(&pulse->lock);
  pthread_mutex_destroy(&pulse->end_lock);
  pthread_cond_destroy(&pulse->ending);
  free(pulse);
}

void gb_pulse_say_farewell(gb_pulse *pulse) {
  if (pulse) pulse->says.word = FAREWELL;
}

bool gb_pulse_has_left(const gb_pulse *pulse, int rank) { return pulse && pulse->ears[rank].last.word == FAREWELL; }

void gb_pulse_say_waiting(gb_pulse *pulse, const gb_pulse_wait *wait) {
  if (pulse) pulse->says.wait = *wait;
}

gb_pulse_wait gb_pulse_where(const gb_pulse *pulse, int rank) {
  return pulse ? pulse->ears[rank].last.wait : (gb_pulse_wait){ 0 };
}

int gb_pulse_lost(const gb_pulse *pulse, double *seconds) {
  for (int r = 0; pulse && r < pulse->transport->size; r++)
    if (pulse->ears[r].silent > SILENT_MOST) {
      *seconds = pulse->ears[r].silent * (BEAT * 1e-9);
      return r;
    }
  return -1;
}
