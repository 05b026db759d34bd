/* local.h - ranks within one process: the stand-in for a job, for tests and for the thread sanitizer.
 *
 * Each rank is a thread of the test with a context of its own. A message is a letter: sending copies it into the box of
 * the rank that it is for, receiving copies it out. */
#ifndef GB_DIST_LOCAL_H
#define GB_DIST_LOCAL_H

#include "dist/transport.h"

typedef struct gb_local_world gb_local_world;

gb_local_world *gb_local_open(int size); /* NULL: no memory */
/* The transport of one rank; it may be closed after the world, and by another thread. */
void gb_local_transport(gb_local_world *world, int rank, gb_transport *out);
void gb_local_close(gb_local_world *world);

#endif
