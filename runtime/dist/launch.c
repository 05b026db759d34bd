/* launch.c - finds out how this process was started, and opens the transport that goes with it. */
#include "dist/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MPI_PLUGIN "gibbous_mpi.so"
#define START "start the job with: mpirun -n 4 gibbous recipe.lua"

/* Variables that say it, in the order in which they count. torchrun's are for NCCL, which is for GPUs. */
typedef struct starter { const char *name, *rank, *size, *local_rank; bool nccl; } starter;
static const starter starters[] = {
  { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", true },
  { "OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", false },
  { "SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false },
};

/* A whole number from 0 on; *out stays what it is where the variable is not set. */
static gb_status read_number(gb_context *context, const char *variable, int64_t *out) {
  const char *text = getenv(variable);
  char *end;
  if (!text || !*text) return GB_OK;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || value < 0 || value > INT_MAX)
    return gb_fail(context, GB_EINVAL, "dist.init: the environment says %s=%.40s, which is no number of processes; "
                                       "unset it, or " START, variable, text);
  *out = value;
  return GB_OK;
}

/* The numbers, and who gave them (NULL: nobody). */
static gb_status read_launch(gb_context *context, gb_launch *launch, const starter **by) {
  *by = NULL;
  if (launch->rank >= 0 || launch->size >= 0) {
    if (launch->rank < 0 || launch->size < 1)
      return gb_fail(context, GB_EINVAL, "dist.init: rank and world_size go together; give both, or none and " START);
    return GB_OK;
  }
  for (size_t i = 0; i < sizeof starters / sizeof *starters; i++) {
    const starter *s = &starters[i];
    gb_launch found = { -1, -1, -1, 0 };
    GB_TRY(read_number(context, s->rank, &found.rank));
    GB_TRY(read_number(context, s->size, &found.size));
    GB_TRY(read_number(context, s->local_rank, &found.local_rank));
    if (found.rank < 0 || found.size < 1) continue;
    launch->rank = found.rank;
    launch->size = found.size;
    if (launch->local_rank < 0) launch->local_rank = found.local_rank;
    *by = s;
    return GB_OK;
  }
  launch->rank = 0;
  launch->size = 1;
  return GB_OK;
}

static gb_status open_mpi(gb_context *context, int64_t size, gb_transport *out) {
  char path[4096];
  if (!gb_plugin_find(context, MPI_PLUGIN, path, sizeof path))
    return gb_fail(context, GB_EDEVICE, "dist.init: %lld processes need MPI, and its plugin (" MPI_PLUGIN ") is not "
                                        "installed: build where mpi.h is (Debian and Ubuntu: libopenmpi-dev). One "
                                        "process works without it", (long long)size);
  /* OpenMPI's own plugins take its symbols from the process. */
  void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (!handle) return gb_fail(context, GB_EDEVICE, "dist.init: cannot open the MPI plugin: %s", dlerror());
  gb_transport_open_fn open;
  *(void **)&open = dlsym(handle, "gb_transport_open");
  gb_status status = open ? open(GB_TRANSPORT_ABI, out) : GB_EDEVICE;
  if (status != GB_OK)
    gb_fail(context, status, "dist.init: %s: %s", path, open ? out->error : "it does not export gb_transport_open");
  dlclose(handle); /* it stays in the process */
  return status;
}

/* What MPI says must be what the launch says: started without mpirun, it says that the job has one process. */
static gb_status check_transport(gb_context *context, const gb_launch *launch, const char *by,
                                 const gb_transport *t) {
  if (t->size == launch->size && t->rank == launch->rank) return GB_OK;
  return gb_fail(context, GB_EINVAL, "dist.init: %s says rank %lld of %lld, and MPI rank %d of %d%s; " START, by,
                 (long long)launch->rank, (long long)launch->size, t->rank, t->size,
                 t->size == 1 ? ", as it does where it was started without mpirun" : "");
}

gb_status gb_comm_join(gb_context *context, const gb_launch *given, gb_comm **out) {
  gb_launch launch = *given;
  const starter *by;
  gb_transport transport = { .name = "one process", .size = 1, .local_rank = -1 };
  GB_TRY(read_launch(context, &launch, &by));
  if (launch.rank >= launch.size)
    return gb_fail(context, GB_EINVAL, "dist.init: rank %lld of %lld processes: ranks count from 0, so the last is "
                                       "%lld", (long long)launch.rank, (long long)launch.size,
                   (long long)launch.size - 1);
  if (launch.size > 1 && by && by->nccl)
    return gb_fail(context, GB_EUNSUPPORTED, "dist.init: RANK and WORLD_SIZE=%lld in the environment are %s's, which "
                                             "is for GPUs and NCCL; this version exchanges by MPI: " START,
                   (long long)launch.size, by->name);
  if (launch.size > 1) {
    GB_TRY(open_mpi(context, launch.size, &transport));
    gb_status status = check_transport(context, &launch, by ? by->name : "the call", &transport);
    if (status != GB_OK) return transport.close(&transport, true), status;
  }
  if (launch.local_rank >= 0) transport.local_rank = (int)launch.local_rank;
  return gb_comm_new(context, &transport, launch.timeout, out);
}

gb_status gb_launch_size(gb_context *context, int64_t *size) {
  gb_launch launch = { -1, -1, -1, 0 };
  const starter *by;
  gb_status status = read_launch(context, &launch, &by);
  *size = launch.size;
  return status;
}
