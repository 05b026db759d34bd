/* cpu/lapack.c - loads LAPACK, and with it BLAS, when linear algebra is first wanted. */
#include "cpu/lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

gb_lapack_table gb_lapack;
static bool is_open;

/* Tell OpenBLAS, where it is what was loaded, to leave threads to us. */
static void quiet_blas(void *library) {
  void *found = dlsym(library, "openblas_set_num_threads");
  void (*set)(int) = NULL;
  memcpy(&set, &found, sizeof set);
  if (set) set(1);
}

/* The address of a routine; *missing is set where there is none. */
static void *find(void *library, const char *name, bool *missing) {
  void *found = dlsym(library, name);
  *missing |= !found;
  return found;
}

/* It stays loaded: threads may be inside it when the process ends. */
static void open_once(void) {
  static const char *const names[] = { "liblapack.so.3", "liblapack.so", "libopenblas.so.0" };
  void *library = NULL, *found;
  bool missing = false;
  for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
#define FIND(p, name) \
  found = find(library, #p #name "_", &missing); \
  memcpy(&gb_lapack.p##name, &found, sizeof found);
  GB_LAPACK_ROUTINES(FIND, s)
  GB_LAPACK_ROUTINES(FIND, d)
#undef FIND
  quiet_blas(library);
  is_open = !missing;
}

bool gb_lapack_open(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_once);
  return is_open;
}
