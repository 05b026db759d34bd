/* room.h - what the job keeps with a context: the processes that it belongs to. */
#ifndef GB_DIST_ROOM_H
#define GB_DIST_ROOM_H

#include "dist/comm.h"
#include "dist/launch.h"

typedef struct gb_dist_room {
  gb_comm *comm;                      /* NULL: no job was joined, so this process is alone */
  gb_transport given;                 /* what gb_dist_give left for gb_dist_init; size 0: nothing */
  bool failing;                       /* the recipe failed: nobody is waited for at the end */
} gb_dist_room;

gb_status gb_dist_open(gb_context *context);
void gb_dist_close(gb_context *context);

/* Use this transport, which is taken over, at the next gb_dist_init: the stand-in of a test. */
void gb_dist_give(gb_context *context, const gb_transport *transport);
gb_status gb_dist_init(gb_context *context, const gb_launch *launch);
/* Leave the job; cleanly, MPI waits for all. Nothing where there is none. */
void gb_dist_finalize(gb_context *context, bool clean);
/* The job, or NULL. */
static inline gb_comm *gb_dist_comm(const gb_context *context) { return context->dist->comm; }

#endif
