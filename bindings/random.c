/* random.c - the random stream as numbers: gb.random, which draws for recipes what math.random would.
 *
 * Every draw takes one place in the stream of the context, as an op does, so get_rng_state and checkpoints keep it.
 * manual_seed seeds math.random too, for recipes that use it; but Lua's state cannot be read, so no checkpoint can keep
 * that one. */
#include <inttypes.h>
#include <math.h>

#include "base/philox.h"
#include "reader.h"

/* {==== math.random ==== */

static const char seed_key = 0; /* of the registry: Lua's own math.randomseed */

/* Keep math.randomseed as it is when the library opens: recipes may replace it. */
static void keep_seeding(lua_State *L) {
  gbl_raw_field(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  bool has_math = gbl_raw_field(L, -1, "math") == LUA_TTABLE;
  if (has_math && gbl_raw_field(L, -1, "randomseed") == LUA_TFUNCTION) {
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &seed_key);
  }
  lua_pop(L, has_math ? 3 : 2);
}

void gbl_seed_math(lua_State *L, int64_t seed) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &seed_key) != LUA_TFUNCTION) {
    lua_pop(L, 1);
    return;
  }
  lua_pushinteger(L, (lua_Integer)seed);
  lua_call(L, 1, 0);
}

/* ====} */

/* {==== gb.random ==== */

/* The words at one place of the stream, two at a time. */
typedef struct words { uint64_t seed, offset, index; uint32_t block[4]; int used; } words;

static words take_words(gb_context *context) {
  words w = { .used = 4 };
  gb_get_rng_state(context, &w.seed, &w.offset);
  w.offset = gb_rng_take(context);
  return w;
}

static uint64_t next_word(words *w) {
  if (w->used == 4) gb_philox(w->seed, w->offset, w->index++, w->block), w->used = 0;
  uint64_t word = (uint64_t)w->block[w->used] << 32 | w->block[w->used + 1];
  w->used += 2;
  return word;
}

/* Each of 0 .. most with the same probability: words above the last whole multiple of their number are drawn again. */
static uint64_t draw_below(words *w, uint64_t most) {
  if (most == UINT64_MAX) return next_word(w);
  uint64_t count = most + 1, beyond = (UINT64_MAX % count + 1) % count, word;
  do word = next_word(w);
  while (word > UINT64_MAX - beyond);
  return word % count;
}

/* One end of the range: it must be finite. */
static double finite_number(const gbl_call *call, const char *name) {
  const gbl_value *v = gbl_argument(call, name);
  if (!v->given) gbl_refuse(call, "'%s' is missing; give both ends, or none", name);
  if (!isfinite(v->number)) gbl_refuse(call, "'%s' must be finite, got %f", name, v->number);
  return v->number;
}

static int number(lua_State *L, gbl_call *call) {
  double low = 0, high = 1;
  if (gbl_given(call, "low") || gbl_given(call, "high"))
    low = finite_number(call, "low"), high = finite_number(call, "high");
  if (high < low) return gbl_refuse(call, "high is below low: %f and %f", low, high);
  words w = take_words(call->state->context);
  double u = (double)(next_word(&w) >> 11) * 0x1p-53, range = high - low;
  double value = isfinite(range) ? low + u * range : (1 - u) * low + u * high;
  if (value >= high && high > low) value = nextafter(high, low); /* rounding must not reach the end that is left out */
  lua_pushnumber(L, value);
  return 1;
}

static int integer(lua_State *L, gbl_call *call) {
  int64_t low = gbl_integer(call, "low"), high = gbl_integer(call, "high");
  if (high < low) return gbl_refuse(call, "high is below low: %" PRId64 " and %" PRId64, low, high);
  words w = take_words(call->state->context);
  lua_pushinteger(L, (lua_Integer)((uint64_t)low + draw_below(&w, (uint64_t)high - (uint64_t)low)));
  return 1;
}

/* In place, so it takes the recipe's own table, past metatables. */
static int shuffle(lua_State *L, gbl_call *call) {
  if (lua_type(L, 1) != LUA_TTABLE) return gbl_refuse(call, "'list' must be a list, got %s", gbl_type_name(L, 1));
  words w = take_words(call->state->context);
  for (lua_Integer i = (lua_Integer)lua_rawlen(L, 1); i > 1; i--) { /* Fisher and Yates, from the end */
    lua_Integer k = 1 + (lua_Integer)draw_below(&w, (uint64_t)i - 1);
    if (i % 4096 == 0) gbl_charge(L, 4096 * 8);
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 1, k);
    lua_rawseti(L, 1, i);
    lua_rawseti(L, 1, k);
  }
  return 1;
}

/* ====} */

static const gbl_function functions[] = {
  { number, GB_SANDBOX_STRICT,
    "gb.random.number(low?: number, high?: number) -> number: A random number in [low, high), in [0, 1) where "
    "neither is given; 53 "
    "bits of it are random. It comes from the stream of manual_seed, which checkpoints keep. Errors: only one end, "
    "an end that is not "
    "finite, high below low. Example: local x = gb.random.number(-1, 1)" },
  { integer, GB_SANDBOX_STRICT,
    "gb.random.integer(low: int, high: int) -> int: A random integer low .. high, both ends included as in "
    "math.random(low, high), "
    "each equally likely. It comes from the stream of manual_seed, which checkpoints keep. Errors: high below low. "
    "Example: local die = gb.random.integer(1, 6)" },
  { shuffle, GB_SANDBOX_STRICT,
    "gb.random.shuffle(list: any) -> list: Put the elements 1 .. #list in random order, each order equally likely, "
    "and return the "
    "list, which is the same table. Metamethods are not asked. The order comes from the stream of manual_seed, "
    "which checkpoints "
    "keep. Example: local order = gb.random.shuffle({ \"a\", \"b\", \"c\" })" },
  { NULL, 0, NULL },
};

void gbl_open_random(lua_State *L) {
  keep_seeding(L);
  gbl_push_module(L, "random");
  gbl_define(L, functions);
  lua_pop(L, 1);
}
