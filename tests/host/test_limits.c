/* test_limits.c - limits hold for what is no op and no Lua instruction: each test counts, none takes the time.
 *
 * lua_getstack is wrapped by the linker: how many levels all its calls walked is what a search for the recipe's line
 * costs. */
#include <lua.h>

#include "open_host.h"
#include "tensor/context.h"

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

/* Frames of a chunk that calls itself one of ours are none of the recipe's: an error below many of them looks through
 * the stack, once. */
static void test_frames(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  gb_host *host = open_host(&o);
  CHECK(runs(host, "dive = load('local function dive(n) if n == 0 then gb.zeros(-1) end dive(n - 1) return 1 end "
                   "return dive', '=gibbous/x')()"));
  int64_t shallow = levels_of(host, "local ok, why = pcall(dive, 100)\nassert(not ok and why:find(':1: ', 1, true), "
                                    "why)");
  CHECK(shallow > 100 && shallow < 100 * 200);
  int64_t deep = levels_of(host, "local ok, why = pcall(dive, 150000)\nassert(not ok and why:find(':1: ', 1, true), "
                                 "why)");
  CHECK(deep > 150000 && deep < 30 * 150000); /* level by level it were 150,000^2 / 2 */
  gb_host_close(host);
}

/* ====} */

/* {==== JSON ==== */

/* used(): bytes that count against the limit on tensor bytes. */
static gb_status used(gb_call *call, void *user) {
  (void)user;
  gb_value bytes = gb_value_integer((int64_t)gb_host_context(gb_call_host(call))->budget.used);
  return gb_call_return(call, &bytes);
}

/* What a recipe decodes and encodes is counted while it is used, and is let go of at once, not by the collector. */
static void test_json(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.tensor_bytes = (size_t)32 << 20;
  gb_host *host = open_host(&o);
  CHECK(gb_host_register(host, "used", used, NULL) == GB_OK);
  CHECK(runs(host, "local text, before = '[' .. ('1,'):rep(100000) .. '1]', used()\n"
                   "local t = gb.io.json_decode(text) assert(#t == 100001 and used() == "
                   "before)\ngb.io.json_encode(t) assert(used() == before)"));
  CHECK(fails(host, "gb.io.json_decode('[' .. ('1,'):rep(1000000) .. '1]')", GB_ETENSORBYTES, NULL));
  CHECK(fails(host, "local t = {} for i = 1, 100 do t[i] = ('x'):rep(1000000) end gb.io.json_encode(t)",
              GB_ETENSORBYTES, NULL));
  CHECK(runs(host, "assert(gb.io.json_decode('[1]')[1] == 1)"));
  gb_host_close(host);
}

/* ====} */

/* {==== Functions that are no ops ==== */

/* Work that takes few Lua instructions is charged: each text reaches a limit that the instructions which it runs are
 * far below. */
static void test_charges(void) {
  static const char *const texts[] = {
    "local row, all = {}, {} for i = 1, 1000 do row[i] = 1 end for i = 1, 1000 do all[i] = row end gb.tensor(all)",
    "gb.ones(1000000):tolist()",
    "gb.ones(1000000):stats()",
    "local list = {} for i = 1, 20000 do list[i] = 1 end local set = gb.data.TensorDataset(gb.ones(8))\nfor i = 1, "
    "10 do set:subset(list) end",
    "local list = {} for i = 1, 10000 do list[i] = {} end for i = 1, 20 do gb.io.json_encode(list) end",
    "local text = '[' .. ('1,'):rep(200000) .. '1]' gb.io.json_decode(text)",
    "local shape = gb.ones(2).shape for i = 1, 10000 do shape[i] = 1 end for i = 1, 20 do tostring(shape) end",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    gb_host_options o = options_of(GB_SANDBOX_STRICT);
    o.instructions = 150000;
    gb_host *host = open_host(&o);
    CHECK(fails(host, texts[i], GB_EINSTRUCTIONS, NULL));
    gb_host_close(host);
  }
}

/* ====} */

int main(void) {
  test_charges();
  test_frames();
  test_json();
  return check_report();
}
