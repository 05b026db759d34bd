/* launch.c - finds out how this process was started, and opens the transport that goes with it. */
#include "dist/launch.h"

#include "dist/pairs.h"
#include "tensor/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MPI_PLUGIN "gibbous_mpi.so"
#define START "start the job with: mpirun -n 4 gibbous recipe.lua"

/* Variables that say it, in the order in which they count. torchrun's are for NCCL, which is for GPUs; it and many
 * other launchers give the address of rank 0 too. */
typedef struct starter { const char *name, *rank, *size, *local_rank; bool nccl; } starter;
static const starter starters[] = {
  { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", true },
  { "OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", false },
  { "SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false },
};

/* A whole number from `least` on; *out stays what it is where the variable is not set. */
static gb_status read_number(gb_context *context, const char *variable, int64_t least, int64_t *out) {
  const char *text = getenv(variable);
  char *end;
  if (!text || !*text) return GB_OK;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || value < least || value > INT_MAX)
    return gb_fail(context, GB_EINVAL, "dist.init: the environment says %s=%.40s, which is no such number; "
                                       "unset it, or " START, variable, text);
  *out = value;
  return GB_OK;
}

/* Where nobody has given both numbers: of torchrun's variables one alone is a mistake, with which each process would
 * train by itself. Of SLURM's a shell of an allocation has one alone. */
static gb_status check_alone(gb_context *context) {
  const starter *s = &starters[0];
  const char *rank = getenv(s->rank), *size = getenv(s->size);
  bool has_rank = rank && *rank, has_size = size && *size;
  if (has_rank == has_size) return GB_OK;
  return gb_fail(context, GB_EINVAL, "dist.init: %s is set, and %s is not; set both, or unset it and " START,
                 has_rank ? s->rank : s->size, has_rank ? s->size : s->rank);
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
    GB_TRY(read_number(context, s->rank, 0, &found.rank));
    GB_TRY(read_number(context, s->size, 1, &found.size));
    GB_TRY(read_number(context, s->local_rank, 0, &found.local_rank));
    if (found.rank < 0 || found.size < 1) continue;
    launch->rank = found.rank;
    launch->size = found.size;
    if (launch->local_rank < 0) launch->local_rank = found.local_rank;
    *by = s;
    return GB_OK;
  }
  launch->rank = 0;
  launch->size = 1;
  return check_alone(context);
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

/* {==== NCCL, for processes that torchrun has started ==== */

/* The GPU of this process: that of its local rank, or the only one that it is shown. */
static gb_status find_device(gb_context *context, const gb_launch *launch, int *out) {
  const char *why;
  if (!gb_context_has_device(context, GB_CUDA, &why))
    return gb_fail(context, GB_EUNSUPPORTED, "dist.init: RANK and WORLD_SIZE=%lld in the environment are torchrun's, "
                                             "whose jobs exchange by NCCL, between GPUs; here is none: %s. Without "
                                             "GPUs " START, (long long)launch->size, why);
  int64_t there = context->devices[GB_CUDA];
  int64_t local = launch->local_rank >= 0 ? launch->local_rank : launch->rank;
  if (local >= there && there > 1)
    return gb_fail(context, GB_EINVAL, "dist.init: LOCAL_RANK=%lld, and this machine has %lld GPUs; start as many "
                                       "processes on it as it has GPUs (torchrun --nproc-per-node %lld)",
                   (long long)local, (long long)there, (long long)there);
  *out = there == 1 ? 0 : (int)local;
  return gb_context_open_device(context, (gb_device){ GB_CUDA, (int16_t)*out });
}

/* A number of the job's own (FNV-1a): a process that an earlier start has left behind is not taken for one of this. */
static uint64_t job_number(void) {
  static const char *const names[] = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" };
  uint64_t hash = 0xCBF29CE484222325u;
  for (int i = 0; i < 2; i++)
    for (const char *at = getenv(names[i]); at && *at; at++) hash = (hash ^ (unsigned char)*at) * 0x100000001B3u;
  return hash;
}

/* Where the processes meet: at MASTER_PORT, or next to it where torchrun's own store listens there. */
static gb_status find_place(gb_context *context, gb_meeting *meeting) {
  const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
  int64_t port = -1, own = -1;
  meeting->host = getenv("MASTER_ADDR");
  GB_TRY(read_number(context, "MASTER_PORT", 0, &port));
  GB_TRY(read_number(context, "GIBBOUS_MEETING_PORT", 0, &own));
  if (own < 0 && port >= 0 && store && !strcmp(store, "True")) own = port == 65535 ? port - 1 : port + 1;
  if (own < 0) own = port;
  if (!meeting->host || !*meeting->host || own < 0)
    return gb_fail(context, GB_EINVAL, "dist.init: RANK and WORLD_SIZE=%d are set, but not MASTER_ADDR and "
                                       "MASTER_PORT, where rank 0 is met; torchrun sets all of them: torchrun "
                                       "--nproc-per-node %d --no-python gibbous recipe.lua", meeting->size,
                   meeting->size);
  if (own < 1 || own > 65535)
    return gb_fail(context, GB_EINVAL, "dist.init: port %lld of MASTER_PORT or GIBBOUS_MEETING_PORT: ports are 1 to "
                                       "65535", (long long)own);
  meeting->port = (int)own;
  return GB_OK;
}

static gb_status open_nccl(gb_context *context, const gb_launch *launch, gb_transport *out) {
  gb_meeting meeting = { .rank = (int)launch->rank, .size = (int)launch->size, .local_rank = (int)launch->local_rank,
                         .job = job_number(), .timeout = launch->timeout };
  gb_mover mover = { .name = "nccl" };
  gb_mover_open_fn open;
  int device = 0;
  GB_TRY(find_device(context, launch, &device));
  GB_TRY(find_place(context, &meeting));
  *(void **)&open = dlsym(context->plugin[GB_CUDA], "gb_mover_open");
  gb_status status = open ? open(GB_MOVER_ABI, device, &mover) : GB_EDEVICE;
  if (status != GB_OK)
    return gb_fail(context, status, "dist.init: %s", open ? mover.error : "the CUDA plugin is of another "
                                                                         "version; build both together");
  return gb_pairs_open(context, &meeting, &mover, out);
}

int gb_launch_device(void) {
  gb_launch found = { -1, -1, -1, 0 };
  const struct { const char *name; int64_t *out; } list[] = {
    { "RANK", &found.rank }, { "WORLD_SIZE", &found.size }, { "LOCAL_RANK", &found.local_rank },
  };
  for (int i = 0; i < 3; i++) {
    const char *text = getenv(list[i].name);
    if (text && *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 6) *list[i].out = atoi(text);
  }
  return found.rank >= 0 && found.size > 1 && found.local_rank >= 0 ? (int)found.local_rank : 0;
}

/* ====} */

gb_status gb_comm_join(gb_context *context, const gb_launch *given, gb_comm **out) {
  gb_launch launch = *given;
  const starter *by;
  gb_transport transport = { .name = "one process", .size = 1, .local_rank = -1 };
  GB_TRY(read_launch(context, &launch, &by));
  if (launch.rank >= launch.size)
    return gb_fail(context, GB_EINVAL, "dist.init: rank %lld of %lld processes: ranks count from 0, so the last is "
                                       "%lld", (long long)launch.rank, (long long)launch.size,
                   (long long)launch.size - 1);
  if (launch.size > 1 && by && by->nccl) GB_TRY(open_nccl(context, &launch, &transport));
  else if (launch.size > 1) {
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
