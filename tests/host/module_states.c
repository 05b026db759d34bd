/* module_states.c - the module gibbous.so in an interpreter that is not ours: required twice, in states that open and
 * close again and again after work on many threads, with allocators of the interpreter's own.
 *
 * The program embeds a stock Lua 5.4 and knows nothing of Gibbous; its argument is the folder where gibbous.so lies. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "check.h"
#include "process.h"

/* {==== Looking at the process ==== */

/* Is the module's code mapped? */
static bool is_mapped(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  bool found = false;
  if (!maps) return false;
  while (!found && fgets(line, sizeof line, maps)) found = strstr(line, "/gibbous.so") != NULL;
  fclose(maps);
  return found;
}

/* ====} */

/* {==== States ==== */

/* Libraries, and the folder of the module. false: no memory. */
static int open_libraries(lua_State *L) {
  luaL_openlibs(L);
  lua_getglobal(L, "package");
  lua_pushfstring(L, "%s/?.so", (const char *)lua_touserdata(L, 1));
  lua_setfield(L, -2, "cpath");
  return 0;
}

static lua_State *open_state(lua_Alloc allocate, void *user, const char *folder) {
  lua_State *L = lua_newstate(allocate, user);
  if (!L) return NULL;
  lua_pushcfunction(L, open_libraries);
  lua_pushlightuserdata(L, (void *)folder);
  if (lua_pcall(L, 1, 0, 0) == LUA_OK) return L;
  lua_close(L);
  return NULL;
}

/* Run a chunk; its error is printed. */
static bool run(lua_State *L, const char *chunk) {
  if (luaL_dostring(L, chunk) == LUA_OK) return true;
  fprintf(stderr, "%s\n", lua_tostring(L, -1));
  return false;
}

/* What a block costs, from the allocator that every test here uses. */
typedef struct heap { size_t live, most, limit; bool lied; } heap;

/* An allocator that moves every block, spoils what it leaves, knows each block's size and compares it with what Lua
 * says. */
static void *move(void *user, void *block, size_t before, size_t after) {
  heap *h = user;
  size_t *old = block ? (size_t *)block - 2 : NULL, *new = NULL;
  if (old && *old != before) h->lied = true;
  size_t live = h->live - (old ? *old : 0) + after;
  if (after) {
    if (h->limit && live > h->limit) return NULL;
    new = malloc(after + 2 * sizeof *new);
    if (!new) return NULL;
    *new = after;
    if (old) memcpy(new + 2, block, *old < after ? *old : after);
  }
  if (old) {
    memset(old, 0xdd, *old + 2 * sizeof *old);
    free(old);
  }
  h->live = live;
  if (live > h->most) h->most = live;
  return new ? new + 2 : NULL;
}

/* ====} */

/* Forward and backward on four threads, and a loader that still prefetches when the state closes. */
static const char parallel_work[] =
  "gb = require 'gibbous'\n"
  "gb.set_num_threads(4)\n"
  "local model = gb.nn.Sequential(gb.nn.Linear(128, 256), gb.nn.ReLU(), gb.nn.Linear(256, 10))\n"
  "opt = gb.optim.AdamW(model:parameters(), { lr = 1e-3 })\n"
  "local data = gb.data.TensorDataset(gb.randn(512, 128), gb.randint(0, 10, { 512 }))\n"
  "loader = gb.data.DataLoader(data, { batch_size = 64, shuffle = true })\n"
  "half = coroutine.wrap(function()\n"
  "  for x, y in loader:iter() do\n"
  "    opt:zero_grad()\n"
  "    loss = gb.nn.functional.cross_entropy(model(x), y)\n"
  "    loss:backward()\n"
  "    opt:step()\n"
  "    coroutine.yield()\n"
  "  end\n"
  "end)\n"
  "for _ = 1, 3 do half() end\n"
  "assert(loss:item() == loss:item())\n";

static void test_two_requires(const char *folder) {
  heap h = { 0 };
  lua_State *L = open_state(move, &h, folder);
  CHECK(run(L, "local gb = require 'gibbous'\n"
               "assert(require 'gibbous' == gb, 'the same table')\n"
               "local x = gb.tensor{ 1, 2 }\n"
               "package.loaded.gibbous = nil\n"
               "assert(require 'gibbous' == gb, 'and after it was forgotten')\n"
               "assert((x + gb.tensor{ 1, 1 }):sum():item() == 5)"));
  lua_close(L);
  CHECK(h.live == 0);
}

static void test_closes_twenty_times(const char *folder) {
  int before = count_threads();
  for (int i = 0; i < 20; i++) {
    heap h = { 0 };
    lua_State *L = open_state(move, &h, folder);
    CHECK(run(L, parallel_work));
    CHECK(count_threads() > before);
    lua_close(L);
    CHECK(threads_become(before));
    CHECK(h.live == 0 && !h.lied);
    CHECK(is_mapped());
  }
}

/* Two universes share the code and nothing else, whichever closes first. */
static void test_two_states(const char *folder) {
  int before = count_threads();
  for (int first = 0; first < 2; first++) {
    heap h[2] = { { 0 }, { 0 } };
    lua_State *L[2] = { open_state(move, &h[0], folder), open_state(move, &h[1], folder) };
    CHECK(run(L[0], parallel_work));
    CHECK(run(L[1], parallel_work));
    CHECK(run(L[0], "gb.manual_seed(1) a = gb.rand(3):tolist()"));
    CHECK(run(L[1], "gb.manual_seed(2) gb.set_default_dtype('float64')"));
    CHECK(run(L[0], "gb.manual_seed(1) assert(gb.rand(3):tolist()[1] == a[1] and gb.rand(1).dtype == 'float32')"));
    lua_close(L[first]);
    CHECK(run(L[1 - first], "for _ = 1, 2 do half() end"));
    lua_close(L[1 - first]);
    CHECK(h[0].live == 0 && h[1].live == 0);
    CHECK(threads_become(before));
  }
}

/* An interpreter that allows little memory: require fails as Lua fails, and works once there is enough. */
static void test_little_memory(const char *folder) {
  bool opened = false;
  int refused = 0;
  for (size_t limit = 64 << 10; !opened && limit < (size_t)64 << 20; limit *= 2) {
    heap h = { .limit = limit };
    lua_State *L = open_state(move, &h, folder);
    CHECK(L != NULL);
    if (!L) return;
    opened = luaL_dostring(L, "require 'gibbous'") == LUA_OK;
    if (!opened) {
      CHECK(strstr(lua_tostring(L, -1), "not enough memory") != NULL);
      refused++;
    }
    lua_close(L);
    CHECK(h.live == 0);
  }
  CHECK(opened && refused > 0);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: module_states FOLDER\n"), 2;
  test_two_requires(argv[1]);
  test_closes_twenty_times(argv[1]);
  test_two_states(argv[1]);
  test_little_memory(argv[1]);
  return check_report();
}
