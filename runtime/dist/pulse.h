/* pulse.h - a heartbeat between the ranks of a job: a thread that tells all others, five times a second, that this
 * process lives, and listens to them.
 *
 * It runs while the recipe computes, so a rank that is silent is gone, or stopped, and not just slow. Silence is
 * counted in beats of one's own: a process that was stopped itself does not find the others silent. Calls of a
 * transport come from one thread at a time, so whoever makes one holds the lock. */
#ifndef GB_DIST_PULSE_H
#define GB_DIST_PULSE_H

#include "dist/transport.h"

enum { GB_PULSE_TAGS = 8, GB_PULSE_TAG = 7 }; /* each channel has so many tags; that of the messages no call uses */

typedef struct gb_pulse gb_pulse;

/* NULL: there is no memory, or no thread; then nobody listens. */
gb_pulse *gb_pulse_begin(gb_transport *transport);
/* The thread ends. The memory stays until gb_pulse_free, since messages may reach it until the transport has closed. */
void gb_pulse_end(gb_pulse *pulse);
void gb_pulse_free(gb_pulse *pulse);
/* NULL is fine. */
void gb_pulse_lock(gb_pulse *pulse);
void gb_pulse_unlock(gb_pulse *pulse);
/* The next beats say that this process is leaving: its recipe came to the end, and it will send nothing more but what
 * ends the job. Has a rank said so? Both under the lock. */
void gb_pulse_say_farewell(gb_pulse *pulse);
bool gb_pulse_has_left(const gb_pulse *pulse, int rank);
/* Where this rank's recipe waits for another, which the next beats tell too; and where that of a rank did last. Both
 * under the lock. */
typedef struct gb_pulse_wait {
  int32_t peer;               /* 1 above the rank that it waits for; 0: it does not */
  int32_t number;             /* of the messages */
  uint32_t turn;              /* from 1: another one for every wait of the rank */
  char operation[28];
} gb_pulse_wait;
void gb_pulse_say_waiting(gb_pulse *pulse, const gb_pulse_wait *wait);
gb_pulse_wait gb_pulse_where(const gb_pulse *pulse, int rank);
/* A rank that has been silent for too long, and for how many seconds; -1: none. Under the lock. */
int gb_pulse_lost(const gb_pulse *pulse, double *seconds);

#endif
