/* fuzz_checkpoint.c - any bytes as a checkpoint: loaded or refused with a text, and either way the run that asked can
 * go on and save again. */
#include <lualib.h>
#include <string.h>

#include "binding.h"
#include "fuzz.h"
#include "mutate_parts.h"

/* Gives a function that loads a path into a fresh run, which must train on, save, and load what it saved. */
static const char script[] =
  "local gb = require 'gibbous'\n"
  "local nn, optim, data, amp = gb.nn, gb.optim, gb.data, gb.amp\n"
  "local set = data.TensorDataset(gb.arange(12):reshape(6, 2):float())\n"
  "return function(path)\n"
  "  local model = nn.Linear(2, 2)\n"
  "  local opt = optim.AdamW(model:parameters())\n"
  "  local parts = { model = model, optimizer = opt, scaler = amp.GradScaler(), schedule = optim.lr.Cosine(opt, { "
  "steps = 9 }),\n"
  "                  loader = data.DataLoader(set, { batch_size = 2, shuffle = true, prefetch = 0 }) }\n"
  "  local ok, why = pcall(gb.io.load_checkpoint, path, parts)\n"
  "  assert(ok or type(why) == 'string' and #why > 0, 'an error without a text')\n"
  "  local x = parts.loader:iter()() or gb.ones(2, 2)\n"
  "  parts.scaler:scale(model(x):sum()):backward()\n"
  "  parts.scaler:step(opt)\n"
  "  parts.scaler:update()\n"
  "  parts.schedule:step()\n"
  "  parts.extra = ok and why or nil\n"
  "  gb.io.save_checkpoint(again, parts)\n"
  "  gb.io.load_checkpoint(again, parts)\n"
  "  os.remove(again)\n"
  "  return ok\n"
  "end\n";

/* The Lua of the run, with the function above on its stack. */
static lua_State *fuzz_lua(void) {
  static lua_State *L;
  gb_context_options options;
  if (L) return L;
  L = luaL_newstate();
  CLAIM(L);
  luaL_openlibs(L);
  gb_context_options_init(&options, sizeof options);
  options.threads = 1;
  options.tensor_bytes = (size_t)64 << 20;
  gbl_set_context_options(L, &options);
  luaL_requiref(L, "gibbous", luaopen_gibbous, 0);
  lua_pop(L, 1);
  lua_pushfstring(L, "%s/gibbous-fuzz-again-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
  lua_setglobal(L, "again");
  CLAIM(luaL_loadstring(L, script) == LUA_OK && lua_pcall(L, 0, 1, 0) == LUA_OK);
  return L;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                               unsigned seed) { return mutate_parts(data, size, most, seed); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  lua_State *L = fuzz_lua();
  lua_pushvalue(L, 1);
  lua_pushstring(L, fuzz_file(data, size));
  int status = lua_pcall(L, 1, 1, 0);
  if (status != LUA_OK) fprintf(stderr, "%s\n", lua_tostring(L, -1));
  CLAIM(status == LUA_OK);
  lua_settop(L, 1);
  return 0;
}
