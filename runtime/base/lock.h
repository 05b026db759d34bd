/* base/lock.h - a lock that is held for a few dozen instructions, by the one thread that runs a context and now and
 * then by another.
 *
 * A pthread mutex was a third of a small tensor's way through the pool. Who waits lets others run, since one of them
 * may have been stopped inside; and sleeps if that takes long: a host's thread of higher priority would else keep the
 * other from ever leaving. */
#ifndef GB_BASE_LOCK_H
#define GB_BASE_LOCK_H

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* Wait until nobody else holds it. */
static __attribute__((noinline, unused)) void gb_lock_wait(atomic_bool *locked) {
  const struct timespec pause = { .tv_nsec = 50000 };
  int error = errno;
  for (int tries = 0; atomic_exchange_explicit(locked, true, memory_order_acquire); tries++)
    if (tries < 64) sched_yield();
    else nanosleep(&pause, NULL);
  errno = error;
}

static inline void gb_lock(atomic_bool *locked) {
  if (atomic_exchange_explicit(locked, true, memory_order_acquire)) gb_lock_wait(locked);
}

static inline void gb_unlock(atomic_bool *locked) { atomic_store_explicit(locked, false, memory_order_release); }

#endif
