/* test_ranks.c - the scripts of tests/dist on jobs of 1, 2, 3, 4 and 8 ranks, each a thread with a Lua state of its
 * own. A script may return a text, which must be the same on every rank of every job. Meant for the thread sanitizer
 * too; arguments name scripts, without them all run but those of optimizers, which take as long as all others. */
#include <lualib.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "check.h"
#include "dist/local.h"
#include "dist/room.h"

enum { RANKS_MOST = 8 };

typedef struct rank { lua_State *L; const char *script; gb_transport transport; bool good; } rank;

/* What a program around can do: may it have a pointer to the tensor's values? Else why not. */
static int take_pointer(lua_State *L) {
  gb_tensor *tensor = gbl_check_tensor(L, 1);
  lua_pushboolean(L, gb_tensor_data(tensor) != NULL);
  lua_pushstring(L, gb_error(gb_tensor_context(tensor)));
  return 2;
}

/* The library with one thread per rank, in a job over the stand-in transport; then the script. */
static int run_script(lua_State *L) {
  const rank *r = lua_touserdata(L, 1);
  gb_context_options options;
  gb_launch launch = { -1, -1, -1, 120 };
  luaL_openlibs(L);
  gb_context_options_init(&options, sizeof options);
  options.threads = 1;
  options.plugins = getenv("GIBBOUS_PLUGINS");
  gbl_set_context_options(L, &options);
  luaL_requiref(L, "gibbous", luaopen_gibbous, 0);
  gb_context *context = gbl_get_state(L)->context;
  gb_dist_give(context, &r->transport);
  gbl_check_status(L, gb_dist_init(context, &launch));
  lua_register(L, "take_pointer", take_pointer);
  if (luaL_loadfile(L, r->script) != LUA_OK) return lua_error(L);
  lua_call(L, 0, 1);
  return 1;
}

/* The emulated device does what this thread has asked for on this thread alone: memory that another one frees later,
 * when it closes the state, would still be in use. */
static void settle(gb_context *context) {
  const gb_device device = { GB_CUDA, 0 };
  if (gb_context_backend(context, device)) (void)gb_synchronize(context, device);
}

static void *run_rank(void *argument) {
  rank *r = argument;
  lua_pushcfunction(r->L, run_script);
  lua_pushlightuserdata(r->L, r);
  r->good = lua_pcall(r->L, 1, 1, 0) == LUA_OK;
  settle(gbl_get_state(r->L)->context);
  if (r->good) return gb_dist_finalize(gbl_get_state(r->L)->context, true), NULL;
  fprintf(stderr, "%s: rank %d of %d: %s\n", r->script, r->transport.rank, r->transport.size,
          lua_tostring(r->L, -1));
  gbl_note_end(r->L, true);
  gb_dist_finalize(gbl_get_state(r->L)->context, false); /* the others need not wait for the timeout */
  return NULL;
}

/* One job. *digest is what the script returned on every rank: as the jobs before had it, or, of the first, new. */
static void run_job(const char *script, int size, char **digest) {
  rank ranks[RANKS_MOST];
  pthread_t threads[RANKS_MOST];
  gb_local_world *world = gb_local_open(size);
  for (int i = 0; i < size; i++) {
    ranks[i] = (rank){ .L = luaL_newstate(), .script = script };
    gb_local_transport(world, i, &ranks[i].transport);
    pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
  }
  for (int i = 0; i < size; i++) {
    pthread_join(threads[i], NULL);
    CHECK(ranks[i].good);
    const char *text = ranks[i].good ? lua_tostring(ranks[i].L, -1) : NULL;
    if (text && !*digest) *digest = strdup(text);
    if (text) CHECK(!strcmp(text, *digest));
    if (text && strcmp(text, *digest)) fprintf(stderr, "%s, rank %d of %d:\n%s\n", script, i, size, text);
    lua_close(ranks[i].L);
  }
  gb_local_close(world);
}

int main(int argc, char **argv) {
  static const int sizes[] = { 1, 2, 3, 4, 8 };
  static const char *const scripts[] = { "tests/dist/collectives.lua", "tests/dist/digests.lua",
                                         "tests/dist/disagree.lua", "tests/dist/free.lua",
                                         "tests/dist/leave.lua", "tests/dist/models.lua",
                                         "tests/dist/loader.lua", "tests/dist/sync_norm.lua",
                                         "tests/dist/trainer.lua", "tests/dist/pointers.lua", NULL };
  int only = argc > 1 ? atoi(argv[1]) : 0; /* a number before the scripts: jobs of that many ranks alone */
  if (only) argc--, argv++;
  for (int s = 0; argc > 1 ? s < argc - 1 : scripts[s] != NULL; s++) {
    char *digest = NULL;
    for (int i = 0; i < 5; i++)
      if (!only || sizes[i] == only) run_job(argc > 1 ? argv[s + 1] : scripts[s], sizes[i], &digest);
    if (digest && argc > 1) printf("%s\n", digest);
    free(digest);
  }
  return check_report();
}
