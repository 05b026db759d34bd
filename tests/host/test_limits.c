/* test_limits.c - limits hold for what is no op and no Lua instruction: each test counts, none takes the time.
 *
 * lua_getstack is wrapped by the linker: how many levels all its calls walked is what a search for the recipe's line costs. */
#include <lua.h>

#include "open_host.h"

/* {==== The recipe's line ==== */

static int64_t levels_walked;
int __real_lua_getstack(lua_State *L, int level, lua_Debug *frame);
int __wrap_lua_getstack(lua_State *L, int level, lua_Debug *frame);
int __wrap_lua_getstack(lua_State *L, int level, lua_Debug *frame) {
  levels_walked += level + 1;
  return __real_lua_getstack(L, level, frame);
}

/* The text runs with that status; gives the levels that were walked. */
static int64_t levels_of(gb_host *host, const char *text) {
  levels_walked = 0;
  CHECK(runs(host, text));
  return levels_walked;
}

/* Frames of a chunk that calls itself one of ours are none of the recipe's: an error below many of them looks through the stack, once. */
static void test_frames(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  gb_host *host = open_host(&o);
  CHECK(runs(host, "dive = load('local function dive(n) if n == 0 then gb.zeros(-1) end dive(n - 1) return 1 end return dive', '=gibbous/x')()"));
  int64_t shallow = levels_of(host, "local ok, why = pcall(dive, 100)\nassert(not ok and why:find(':1: ', 1, true), why)");
  CHECK(shallow > 100 && shallow < 100 * 200);
  int64_t deep = levels_of(host, "local ok, why = pcall(dive, 150000)\nassert(not ok and why:find(':1: ', 1, true), why)");
  CHECK(deep > 150000 && deep < 30 * 150000); /* level by level it were 150,000^2 / 2 */
  gb_host_close(host);
}

/* ====} */

int main(void) {
  test_frames();
  return check_report();
}
