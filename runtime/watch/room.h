/* watch/room.h - what the watch keeps with a context. */
#ifndef GB_WATCH_ROOM_H
#define GB_WATCH_ROOM_H

#include "watch/trace.h"

struct gb_audit;
struct gb_profile;

typedef struct gb_watch_room {
  struct gb_audit *audit;    /* the one that runs; NULL: none */
  struct gb_profile *profile; /* the same */
  gb_trace trace;
} gb_watch_room;

gb_status gb_watch_open(gb_context *context);
void gb_watch_close(gb_context *context);

#endif
