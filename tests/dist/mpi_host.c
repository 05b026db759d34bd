/* mpi_host.c - a host that uses MPI itself: the transport leaves MPI running, and the host's way with errors as it was.
 *
 *     mpirun -n 2 mpi_host gibbous_mpi.so serialized    joins and leaves twice, then MPI still works
 *     mpirun -n 2 mpi_host gibbous_mpi.so funneled      is refused, with the cure
 *     mpirun -n 2 mpi_host gibbous_mpi.so alone         the transport starts MPI, and ends it
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "dist/transport.h"

/* Stands before MPI's: how errors of the world are handled while it is duplicated, and whether that fails. */
static MPI_Errhandler seen = MPI_ERRHANDLER_NULL;
static bool fails;
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
  MPI_Comm_get_errhandler(comm, &seen);
  return fails ? MPI_ERR_NO_MEM : PMPI_Comm_dup(comm, out);
}

/* Does MPI work in this process? */
static bool is_running(void) {
  int ready = 0, over = 0, sum = 0, one = 1, size = 0;
  MPI_Initialized(&ready);
  MPI_Finalized(&over);
  if (!ready || over) return false;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == size;
}

/* A byte to the next rank and from the one before, round the ring. */
static bool hands_on(gb_transport *t) {
  char mine = (char)t->rank, got = -1;
  int from = (t->rank + t->size - 1) % t->size;
  void *in = NULL, *out = NULL;
  size_t bytes = 0;
  bool done = false;
  if (t->post(t, false, from, 1, &got, 1, &in) != GB_OK) return false;
  if (t->post(t, true, (t->rank + 1) % t->size, 1, &mine, 1, &out) != GB_OK) return false;
  while (!done) if (t->test(t, in, &bytes, &done) != GB_OK) return false;
  for (done = false; !done;) if (t->test(t, out, &bytes, &done) != GB_OK) return false;
  return got == from;
}

/* The host started MPI, so that the transport may be opened and closed again and again. */
static void use(gb_transport_open_fn open) {
  gb_transport t;
  MPI_Errhandler after;
  fails = true;
  CHECK(open(GB_TRANSPORT_ABI, &t) == GB_EIO && strstr(t.error, "MPI: "));
  CHECK(seen == MPI_ERRORS_RETURN); /* else the error would have ended the process */
  fails = false;
  for (int turn = 0; turn < 2; turn++) {
    CHECK(open(GB_TRANSPORT_ABI, &t) == GB_OK);
    CHECK(hands_on(&t));
    t.close(&t, true);
    CHECK(is_running());
  }
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  CHECK(after == MPI_ERRORS_ARE_FATAL);
}

/* Calls of two threads in turn are not allowed. */
static void be_refused(gb_transport_open_fn open) {
  gb_transport t;
  CHECK(open(GB_TRANSPORT_ABI, &t) == GB_EUNSUPPORTED);
  CHECK(strstr(t.error, "MPI_THREAD_FUNNELED") && strstr(t.error, "MPI_Init_thread with MPI_THREAD_SERIALIZED"));
  CHECK(is_running());
}

/* Who starts MPI ends it, and says later that it is over. */
static void be_alone(gb_transport_open_fn open) {
  gb_transport t;
  int over = 0;
  CHECK(open(GB_TRANSPORT_ABI, &t) == GB_OK);
  CHECK(hands_on(&t));
  t.close(&t, true);
  MPI_Finalized(&over);
  CHECK(over);
  CHECK(open(GB_TRANSPORT_ABI, &t) == GB_ESTATE && strstr(t.error, "cannot be started again"));
}

int main(int argc, char **argv) {
  static const struct { const char *name; int level; void (*run)(gb_transport_open_fn open); } ways[] = {
    { "serialized", MPI_THREAD_SERIALIZED, use }, { "funneled", MPI_THREAD_FUNNELED, be_refused },
    { "alone", -1, be_alone },
  };
  void *plugin = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
  gb_transport_open_fn open;
  if (!plugin) return fprintf(stderr, "mpi_host PLUGIN WAY: %s\n", argc > 2 ? dlerror() : "two arguments"), 1;
  *(void **)&open = dlsym(plugin, "gb_transport_open");
  for (int i = 0; i < 3; i++) {
    int level = 0;
    if (strcmp(argv[2], ways[i].name)) continue;
    if (ways[i].level >= 0) CHECK(MPI_Init_thread(&argc, &argv, ways[i].level, &level) == MPI_SUCCESS);
    ways[i].run(open);
    if (ways[i].level >= 0) MPI_Finalize();
    return check_report();
  }
  return fprintf(stderr, "mpi_host: there is no way '%s'\n", argv[2]), 1;
}
