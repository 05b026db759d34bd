/* test_universes.c - Lua states with the library in several threads: each trains, with batches read ahead, as if it
 * were alone; and a request from another thread interrupts one of them, which goes on when asked. Meant for the thread
 * sanitizer too. */
#include <lualib.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "binding.h"
#include "check.h"
#include "device.h"

enum { UNIVERSES = 2, TEXT = 256 };

/* train(epochs) gives numbers that depend on every bit of the weights. */
static const char recipe[] =
  ON_TEST_DEVICE
  "local gb = require 'gibbous'\n"
  "local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data\n"
  "function train(epochs)\n"
  "  gb.manual_seed(3)\n"
  "  local precision = amp.precision('16-mixed')\n"
  "  local model = nn.Sequential(nn.Linear(16, 192, { activation = 'relu' }), nn.Dropout(0.25), nn.Linear(192, 4))\n"
  "  local opt, scaler = optim.AdamW(model:parameters(), { lr = 1e-2 }), amp.GradScaler(precision)\n"
  "  local set = data.TensorDataset(gb.randn(256, 16):to('cpu'), gb.arange(256):to('cpu') % 4)\n"
  "  local loader = data.DataLoader(set, { batch_size = 64, shuffle = true, prefetch = 3 })\n"
  "  for epoch = 1, epochs do\n"
  "    for x, y in loader:iter() do\n"
  "      x, y = x:to(gb.get_default_device()), y:to(gb.get_default_device())\n"
  "      opt:zero_grad()\n"
  "      scaler:scale(amp.autocast(precision, function() return F.cross_entropy(model(x), y) end)):backward()\n"
  "      scaler:step(opt, { clip = 1 })\n"
  "      scaler:update()\n"
  "    end\n"
  "  end\n"
  "  local text = {}\n"
  "  for i, p in ipairs(model:parameters()) do text[i] = ('%a'):format(p:detach():double():sum():item()) end\n"
  "  return table.concat(text, ' ')\n"
  "end\n";

/* A Lua state, what its thread shall call, and what came of it. */
typedef struct universe { lua_State *L; int epochs; bool good; char text[TEXT]; } universe;

static int prepare(lua_State *L) {
  gb_context_options options;
  luaL_openlibs(L);
  gb_context_options_init(&options, sizeof options);
  options.threads = 2;
  options.plugins = getenv("GIBBOUS_PLUGINS");
  gbl_set_context_options(L, &options);
  luaL_requiref(L, "gibbous", luaopen_gibbous, 0);
  if (luaL_loadstring(L, recipe) != LUA_OK) return lua_error(L);
  lua_call(L, 0, 0);
  return 0;
}

static bool universe_open(universe *u, int epochs) {
  *u = (universe){ .L = luaL_newstate(), .epochs = epochs };
  if (!u->L) return false;
  lua_pushcfunction(u->L, prepare);
  bool good = lua_pcall(u->L, 0, 0, 0) == LUA_OK;
  if (!good) fprintf(stderr, "%s\n", lua_tostring(u->L, -1));
  return good;
}

static void *train(void *arg) {
  universe *u = arg;
  lua_getglobal(u->L, "train");
  lua_pushinteger(u->L, u->epochs);
  u->good = lua_pcall(u->L, 1, 1, 0) == LUA_OK;
  snprintf(u->text, sizeof u->text, "%s", lua_tostring(u->L, -1));
  lua_settop(u->L, 0);
  return NULL;
}

static void test_each_is_as_if_alone(void) {
  universe alone, u[UNIVERSES];
  pthread_t thread[UNIVERSES];
  CHECK(universe_open(&alone, 4));
  train(&alone);
  CHECK(alone.good);
  for (int i = 0; i < UNIVERSES; i++) CHECK(universe_open(&u[i], 4));
  for (int i = 0; i < UNIVERSES; i++) CHECK(!pthread_create(&thread[i], NULL, train, &u[i]));
  for (int i = 0; i < UNIVERSES; i++) {
    pthread_join(thread[i], NULL);
    CHECK(u[i].good && !strcmp(u[i].text, alone.text));
    lua_close(u[i].L);
  }
  lua_close(alone.L);
}

/* A state may be born and closed in a thread of its own, while others train. */
static void *whole_life(void *arg) {
  universe *u = arg;
  if (!universe_open(u, 2)) return NULL;
  train(u);
  lua_close(u->L);
  return NULL;
}

static void test_lives(void) {
  universe u[UNIVERSES] = { { .L = NULL } };
  pthread_t thread[UNIVERSES];
  for (int i = 0; i < UNIVERSES; i++) CHECK(!pthread_create(&thread[i], NULL, whole_life, &u[i]));
  for (int i = 0; i < UNIVERSES; i++) {
    pthread_join(thread[i], NULL);
    CHECK(u[i].good && !strcmp(u[i].text, u[0].text));
  }
}

static void test_interrupt(void) {
  universe u;
  pthread_t thread;
  CHECK(universe_open(&u, 2));
  train(&u);
  char before[TEXT];
  memcpy(before, u.text, sizeof before);
  gb_context *context = gbl_context(u.L);
  CHECK(u.good);
  u.epochs = 1 << 30;
  CHECK(!pthread_create(&thread, NULL, train, &u));
  nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
  gb_interrupt(context);
  pthread_join(thread, NULL);
  CHECK(!u.good && strstr(u.text, "interrupted"));
  gb_interrupt_clear(context);
  u.epochs = 2;
  train(&u);
  CHECK(u.good && !strcmp(u.text, before));
  lua_close(u.L);
}

/* Userdata of a host's or a library's may have the size of a tensor's box, and lie, as yet unset, where one was. */
static void test_unset_userdata_is_no_tensor(void) {
  enum { COUNT = 1000 };
  universe u;
  int taken = 0;
  CHECK(universe_open(&u, 1));
  CHECK(luaL_dostring(u.L, "local gb = require 'gibbous' local x = gb.ones(1) for i = 1, 1000 do local _ = x + x "
                           "end collectgarbage()") == LUA_OK);
  CHECK(lua_checkstack(u.L, COUNT + 1));
  for (int i = 0; i < COUNT; i++) {
    lua_newuserdatauv(u.L, sizeof(gbl_box), 0);
    taken += ((const gbl_box *)lua_touserdata(u.L, -1))->meta == gbl_get_state(u.L)->tensor_meta;
  }
  CHECK(taken == 0);
  lua_close(u.L);
}

int main(void) {
  test_unset_userdata_is_no_tensor();
  test_each_is_as_if_alone();
  test_lives();
  test_interrupt();
  return check_report();
}
