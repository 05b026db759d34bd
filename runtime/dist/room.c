/* room.c - joins a job and leaves it. */
#include "dist/room.h"

#include <stdlib.h>

gb_status gb_dist_open(gb_context *context) {
  context->dist = calloc(1, sizeof *context->dist);
  context->own_cuda = gb_launch_device();
  return context->dist ? GB_OK : GB_EMEMORY;
}

void gb_dist_close(gb_context *context) {
  if (!context->dist) return;
  gb_dist_finalize(context, false);
  if (context->dist->given.size) context->dist->given.close(&context->dist->given, false);
  free(context->dist);
  context->dist = NULL;
}

void gb_dist_give(gb_context *context, const gb_transport *transport) { context->dist->given = *transport; }

gb_status gb_dist_init(gb_context *context, const gb_launch *launch) {
  gb_dist_room *room = context->dist;
  if (room->comm)
    return gb_fail(context, GB_ESTATE, "dist.init: this process is rank %d of %d already; gb.dist.finalize() leaves "
                                       "the job", room->comm->rank, room->comm->size);
  if (!room->given.size) return gb_comm_join(context, launch, &room->comm);
  gb_transport given = room->given;
  room->given.size = 0;
  return gb_comm_new(context, &given, launch->timeout, &room->comm);
}

void gb_dist_finalize(gb_context *context, bool clean) {
  gb_comm_close(context->dist->comm, clean && !context->dist->failing);
  context->dist->comm = NULL;
}
