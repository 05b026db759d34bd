/* meeting.h - where the processes of a job that torchrun has started find each other: rank 0 listens at an address and
 * a port, and the others come.
 *
 * Who comes says who it is (gb_hello), and is told why it is sent away. What is no hello is dropped, and holds nobody
 * up. Hosts trust their network: there is no secret. */
#ifndef GB_DIST_MEETING_H
#define GB_DIST_MEETING_H

#include "tensor/context.h"

typedef struct gb_meeting {
  const char *host;                   /* a name, or an IPv4 or IPv6 address */
  int port;
  int rank, size, local_rank;
  uint64_t job;                       /* a number that other jobs do not have */
  double timeout;                     /* seconds until all must have come */
} gb_meeting;

/* All have come: sockets[r] leads to rank r on rank 0, but for itself; elsewhere sockets[0] leads to rank 0. The rest
 * is -1, and so is all of it after a failure. */
gb_status gb_meeting_hold(gb_context *context, const gb_meeting *meeting, int *sockets);

#endif
