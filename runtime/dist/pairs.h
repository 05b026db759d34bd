/* pairs.h - the transport of a library that moves bytes between GPUs (gb_mover: NCCL), which knows no tags, cannot wait
 * for a message that may never come, and must not be asked by two ranks in different orders.
 *
 * So the hub of rank 0 (hub.h) brings both sides of a message together first, and says what moves next; what it says
 * goes by TCP, as do heartbeats and messages of some numbers. A message that nobody sends so never reaches the
 * library, and a length that differs is an error like any other. */
#ifndef GB_DIST_PAIRS_H
#define GB_DIST_PAIRS_H

#include "dist/meeting.h"
#include "dist/transport.h"

/* Meet, and join the library's job; the mover is the transport's then, and is closed with it or by a failure. */
gb_status gb_pairs_open(gb_context *context, const gb_meeting *meeting, const gb_mover *mover, gb_transport *out);

#endif
