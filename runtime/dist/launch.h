/* launch.h - which rank of how many this process is, and the transport between them. */
#ifndef GB_DIST_LAUNCH_H
#define GB_DIST_LAUNCH_H

#include "dist/comm.h"

/* What init is told; -1: not given. */
typedef struct gb_launch { int64_t rank, size, local_rank; double timeout; } gb_launch;

/* Join the job that this process was started in: by the numbers that are given, else by what torchrun, OpenMPI or SLURM
 * put into the environment; a process that nobody started with others is a job of one, which needs no plugin. Numbers
 * and transport must agree. */
gb_status gb_comm_join(gb_context *context, const gb_launch *launch, gb_comm **out);

/* The GPU that "cuda" means in this process: its local rank where torchrun has started it with others, else 0. */
int gb_launch_device(void);

/* How many processes gb_comm_join would look for; a failure where the environment is no answer. */
gb_status gb_launch_size(gb_context *context, int64_t *size);

#endif
