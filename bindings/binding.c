/* binding.c - the state of one Lua universe, errors with the recipe's position, callbacks from the engine, and
 * collection.
 *
 * The state outlives the universe while the engine still holds callbacks: their release then finds no context and lets
 * the value be. */
#include "watch/audit.h"
#include "watch/profile.h"
#include "base/stack.h"
#include "base/text.h"
#include "dist/room.h"
#include "binding.h"
#include "reader.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Keys of the registry, by address. */
static const char state_key = 0, owner_key = 0, noted_key = 0, error_key = 0, options_key = 0;

#define SOFT_MARK_LEAST ((size_t)64 << 20) /* live bytes below which nothing is collected for its bytes alone */
#define SOFT_MARK_STEP ((size_t)8 << 20)   /* how often the pool is asked: per bytes made */
#define COLLECT_SHARE 0.005                /* of the time may go into full collections at steps */
#define COLLECT_HANDLES 256                /* that may be dead make a minor collection worth it */
/* bytes that may be dead below which it is not for their sake: a collection costs as much as a small op */
#define COLLECT_LEAST ((size_t)16 << 10)
/* handles of small tensors, which with what they hold are not a tenth of a cache of the second level */
#define GENERATION 128
#define GENERATION_MOST 16384
#define GENERATION_BYTES 1024              /* of a tensor that counts as small, on the average of a generation */
#define FRAMES_NEAR 200                    /* innermost frames in which the recipe's line is looked for, */
#define FRAMES_FAR 8                       /* and outermost ones */
#define GENERATION_AFTER 8192              /* handles made since a place where little is alive */

/* {==== The state ==== */

gbl_state *gbl_get_state(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
  gbl_state *state = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (!state) luaL_error(L, "gibbous was not opened in this Lua state; call require 'gibbous' first");
  return state;
}

gbl_state *gbl_enter(lua_State *L) { return gbl_note(L, gbl_get_state(L)); }

gb_context *gbl_context(lua_State *L) { return gbl_enter(L)->context; }

/* The registry keeps the noted thread alive, so that no new thread can have its address. */
void gbl_switch(lua_State *L, gbl_state *state) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  if (state->reclaims) luaL_error(L, "a finaliser cannot use gb while an op waits for memory");
  gbl_modes *modes = gbl_modes_of(L);
  lua_pushthread(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &noted_key);
  state->noted = L;
  state->modes = modes;
  state->context->modes = &modes->now;
  gb_audit *audit = gb_audit_running(state->context); /* of a coroutine that an error ended: nothing of it is unwound */
  if (audit && lua_status(state->audited) > LUA_YIELD) gb_audit_end(audit);
  gb_profile *profile = gb_profile_running(state->context);
  if (profile && lua_status(state->profiled) > LUA_YIELD) gb_profile_end(profile);
}

static void state_release(gbl_state *state) {
  if (--state->refs == 0) free(state);
}

/* The universe closes: the context may live on in tensors that others hold, but calls back no more. */
static int owner_gc(lua_State *L) {
  gbl_state **owner = lua_touserdata(L, 1), *state = *owner;
  if (!state) return 0;
  *owner = NULL;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
  if (lua_touserdata(L, -1) == state) { /* not that of a second opening, after a first that Lua had no memory for */
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
  }
  gb_context *context = state->context;
  state->context = NULL;
  for (int i = 0; i < 2; i++) gb_tensor_release(state->numbers[i]);
  gbl_end_late(state);
  if (context) {
    context->modes = &context->default_modes;
    context->reclaim = NULL;
    context->reclaim_user = NULL;
    context->where = NULL;
    gb_dist_finalize(context, true);
    gb_set_num_threads(context, 1); /* tensors that a host holds keep the context, not its threads */
    gb_context_close(context);
  }
  state_release(state);
  return 0;
}

/* The engine has no memory: collect what Lua has let go of, on the coroutine that runs. An op is under way, so
 * finalisers of the recipe that would start another, or change what this one reads, get an error: no coroutine counts
 * as noted, and gbl_switch refuses. */
static void reclaim(void *user) {
  gbl_state *state = user;
  if (!state->running || state->reclaims) return;
  lua_State *noted = state->noted;
  state->reclaims = true;
  state->noted = NULL;
  lua_gc(state->running, LUA_GCCOLLECT);
  state->noted = noted;
  state->reclaims = false;
}

/* Is this frame one of a chunk of the recipe's, with a line? */
static bool is_recipe(lua_State *L, lua_Debug *frame) {
  lua_getinfo(L, "Sl", frame);
  return *frame->what != 'C' && strncmp(frame->source, "=gibbous/", 9) != 0 && frame->currentline > 0;
}

/* The innermost frame whose chunk is the recipe's; raises nothing and allocates nothing. lua_getstack walks to a level
 * from the innermost one, so a search level by level is quadratic in the depth. Beyond FRAMES_NEAR only the outermost
 * frames are looked at, where the recipe began; how deep they lie is found by doubling and halving. */
static bool find_recipe(lua_State *L, lua_Debug *frame) {
  int level = 0, low = FRAMES_NEAR, high = FRAMES_NEAR;
  for (; level < FRAMES_NEAR; level++) {
    if (!lua_getstack(L, level, frame)) return false;
    if (is_recipe(L, frame)) return true;
  }
  while (lua_getstack(L, high, frame)) low = high, high *= 2;
  while (low < high) { /* low .. high - 1 may be levels; those from high on are none */
    int middle = low + (high - low) / 2;
    if (lua_getstack(L, middle, frame)) low = middle + 1;
    else high = middle;
  }
  level = high - FRAMES_FAR > FRAMES_NEAR ? high - FRAMES_FAR : FRAMES_NEAR;
  for (; lua_getstack(L, level, frame); level++)
    if (is_recipe(L, frame)) return true;
  return false;
}

/* The engine asks for the recipe's line. */
static void where(void *user, char *text, size_t size) {
  gbl_state *state = user;
  lua_Debug frame;
  if (state->running && find_recipe(state->running, &frame))
    snprintf(text, size, "%s:%d", frame.short_src, frame.currentline);
}

void gbl_set_context_options(lua_State *L, const gb_context_options *options) {
  lua_pushlightuserdata(L, (void *)options);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &options_key);
}

/* The executable's -E. */
static bool ignores_environment(lua_State *L) {
  gbl_raw_field(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  bool ignores = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return ignores;
}

/* Opening may fail at any allocation of Lua's and be tried again: then a state that was registered serves, and what was
 * not is collected. */
gbl_state *gbl_open_state(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key) == LUA_TLIGHTUSERDATA) return gbl_note(L, lua_touserdata(L, -1));
  lua_rawgetp(L, LUA_REGISTRYINDEX, &options_key);
  const gb_context_options *options = lua_touserdata(L, -1);
  lua_pop(L, 2);
  lua_pushboolean(L, false);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  gbl_state **owner = lua_newuserdatauv(L, sizeof *owner, 0);
  *owner = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, owner_gc);
  gbl_set_raw(L, -2, "__gc");
  lua_setmetatable(L, -2);
  gbl_state *state = *owner = calloc(1, sizeof *state);
  if (!state) luaL_error(L, "gibbous: out of memory");
  state->refs = 1;
  gb_context_options own; /* who opens the module without options may name folders of plugins in the environment */
  gb_context_options_init(&own, sizeof own);
  own.plugins = options || ignores_environment(L) ? NULL : getenv("GIBBOUS_PLUGINS");
  gb_status status = gb_context_open(options ? options : &own, &state->context);
  if (status != GB_OK) luaL_error(L, "gibbous: the engine does not open: %s", gb_status_text(status));
  state->default_dtype = GB_FLOAT32;
  state->soft_mark = SOFT_MARK_LEAST;
  state->generation = GENERATION;
  state->young_end = GENERATION_AFTER;
  gb_print_options_init(&state->print);
  state->context->reclaim = reclaim;
  state->context->reclaim_user = state;
  state->context->where = where;
  state->context->where_user = state;
  lua_rawsetp(L, LUA_REGISTRYINDEX, &owner_key);
  lua_pushlightuserdata(L, state);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
  return gbl_note(L, state);
}

/* ====} */

/* {==== Errors ==== */

void gbl_push_where(lua_State *L) {
  lua_Debug frame;
  if (find_recipe(L, &frame)) lua_pushfstring(L, "%s:%d: ", frame.short_src, frame.currentline);
  else lua_pushliteral(L, "");
}

int gbl_error(lua_State *L, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  gb_text_plain_nan(text);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  gbl_push_where(L);
  lua_pushstring(L, text);
  lua_concat(L, 2);
  return lua_error(L);
}

void gbl_check_stack(lua_State *L) {
  if (gb_stack_left() < GB_STACK_LEAST)
    gbl_error(L, "stack overflow: too many calls within each other for this thread's stack");
}

int gbl_check_status(lua_State *L, gb_status status) {
  if (status == GB_OK) return 0;
  gbl_state *state = gbl_get_state(L);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  if (status == GB_EINTERRUPT || status == GB_EMEMORY || status == GB_EFILEBYTES) gbl_interrupt_stick(L, status);
  if (status == GB_ECALLBACK && state->has_error) {
    state->has_error = false;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key);
    lua_pushboolean(L, false);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
    return lua_error(L);
  }
  gbl_push_where(L);
  lua_pushstring(L, gb_error(state->context));
  lua_concat(L, 2);
  return lua_error(L);
}

int gbl_bad_argument(lua_State *L, const char *who, const char *name,
                     const char *text) { return gbl_error(L, "%s: '%s' %s", who, name, text); }

bool gbl_is_callable(lua_State *L, int arg) {
  if (lua_type(L, arg) == LUA_TFUNCTION) return true;
  if (luaL_getmetafield(L, arg, "__call") == LUA_TNIL) return false;
  bool is_refusal = luaL_getmetafield(L, arg, "__uncallable") != LUA_TNIL;
  lua_pop(L, is_refusal ? 2 : 1);
  return !is_refusal;
}

const char *gbl_type_name(lua_State *L, int arg) {
  if (gbl_test_tensor(L, arg)) return "a tensor";
  if (luaL_testudata(L, arg, "gibbous.tensor")) return "a tensor that was freed";
  if (luaL_getmetafield(L, arg, "__name") == LUA_TSTRING) {
    const char *name = lua_tostring(L, -1);
    lua_pop(L, 1); /* the metatable keeps it */
    return name;
  }
  switch (lua_type(L, arg)) {
    case LUA_TNONE: return "nothing";
    case LUA_TNIL: return "nil";
    /* whose sign, which printf shows, means nothing */
    case LUA_TNUMBER: return isnan(lua_tonumber(L, arg)) ? "nan" : "number";
    default: return luaL_typename(L, arg);
  }
}

/* Changes that make one short word the other: a letter more, less or another, or two neighbours exchanged. */
static int edit_distance(const char *a, const char *b) {
  enum { LONGEST = 48 };
  int rows[3][LONGEST + 1], n = (int)strlen(b), m = (int)strlen(a);
  if (n > LONGEST || m > LONGEST) return LONGEST;
  for (int j = 0; j <= n; j++) rows[0][j] = j;
  for (int i = 1; i <= m; i++) {
    int *row = rows[i % 3], *above = rows[(i + 2) % 3], *twice = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= n; j++) {
      int least = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < least) least = above[j] + 1;
      if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
      bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged && twice[j - 2] + 1 < least) least = twice[j - 2] + 1;
      row[j] = least;
    }
  }
  return rows[m % 3][n];
}

/* Copy name in small letters and without underscores, so that RandomCrop is random_crop; false if it is too long. */
static bool fold(const char *name, char *folded, size_t bytes) {
  for (; *name; name++) {
    if (*name == '_') continue;
    if (--bytes == 0) return false;
    *folded++ = (char)tolower((unsigned char)*name);
  }
  *folded = '\0';
  return true;
}

/* The longest of the names, of four letters or more, that this one has in it: Cosine of CosineAnnealingLR. */
static const char *longest_inside(const char *name, const char *const *known) {
  char folded[64], part[64];
  if (!fold(name, folded, sizeof folded)) return NULL;
  const char *longest = NULL;
  size_t most = 3;
  for (; *known; known++) {
    if (!fold(*known, part, sizeof part) || strlen(part) <= most || !strstr(folded, part)) continue;
    most = strlen(part), longest = *known;
  }
  return longest;
}

const char *gbl_nearest(const char *name, const char *const *known) {
  const char *const *first = known;
  int limit = (int)strlen(name) / 3;
  int best = limit < 1 ? 2 : limit + 1;
  const char *nearest = NULL;
  for (; *known; known++) {
    int distance = edit_distance(name, *known);
    if (distance < best) best = distance, nearest = *known;
  }
  return nearest ? nearest : longest_inside(name, first);
}

/* Of two equally near the first in the alphabet is taken: a table's order is no order. */
const char *gbl_nearest_key(lua_State *L, int index, const char *name) {
  const char *best = NULL;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    const char *known = lua_tostring(L, -2), *one = best ? best : known, *two = best ? known : NULL;
    const char *a = gbl_nearest(name, (const char *[]){ one, two, NULL }),
        *b = two ? gbl_nearest(name, (const char *[]){ two, one, NULL }) : a;
    if (a && b) best = strcmp(a, b) <= 0 ? a : b;
  }
  return best;
}

/* ====} */

/* {==== Callbacks ==== */

gbl_callback *gbl_callback_new(lua_State *L, int index) {
  gbl_state *state = gbl_enter(L);
  lua_pushvalue(L, index);
  int reference = luaL_ref(L, LUA_REGISTRYINDEX);
  gbl_callback *callback = gb_counted_alloc(state->context, sizeof *callback);
  if (!callback) {
    luaL_unref(L, LUA_REGISTRYINDEX, reference);
    gbl_check_status(L, gb_error_code(state->context));
  }
  *callback = (gbl_callback){ state, reference };
  state->refs++;
  return callback;
}

/* Runs wherever the last reference goes, a finaliser included; the coroutine that runs is the one noted by whoever
 * called the engine. */
void gbl_callback_release(void *user) {
  gbl_callback *callback = user;
  gbl_state *state = callback->state;
  if (state->context && state->running && lua_checkstack(state->running, 4))
    luaL_unref(state->running, LUA_REGISTRYINDEX, callback->reference);
  gb_counted_free(callback);
  state_release(state);
}

void gbl_callback_push(lua_State *L, const gbl_callback *callback) { lua_rawgeti(L, LUA_REGISTRYINDEX,
    callback->reference); }

/* Keep the error value at the top of the stack for gbl_check_status, and say so to the engine. */
static gb_status keep_error(lua_State *L, gbl_state *state) {
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is no text";
  gb_status status = gb_fail(state->context, GB_ECALLBACK, "%s", text);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key); /* the key is there since the state was opened: no allocation */
  state->has_error = true;
  return status;
}

/* Close the scopes of one kind that were opened since `top` was the innermost and were left open. */
static void close_scopes(gbl_modes *modes, int kind, const gbl_scope *top) {
  const gbl_scope *scope = modes->top[kind];
  while (scope && scope != top) scope = scope->below;
  if (scope != top) return; /* the callback closed a scope of its caller */
  while (modes->top[kind] != top) gbl_close_top(modes, (gbl_scope_kind)kind);
}

/* What must be as it was when a callback returns. */
typedef struct guard {
  lua_State *L;
  gbl_modes *modes;              /* of the coroutine that runs */
  gb_modes before, *outer;       /* what they were, and what the context pointed to: backward has modes of its own */
  gbl_scope *top[GBL_SCOPE_KINDS];
  const char *op;
} guard;

/* The callback runs in the coroutine's modes, which for that time have the values that count in the engine. */
static guard guard_begin(gbl_state *state) {
  gb_context *context = state->context;
  gbl_modes *modes = state->modes;
  guard g = { state->running, modes, modes->now, context->modes, { NULL }, context->op };
  memcpy(g.top, modes->top, sizeof g.top);
  modes->now = *context->modes;
  context->modes = &modes->now;
  context->op = NULL;
  return g;
}

static gb_status guard_end(gbl_state *state, const guard *g, int failed) {
  gb_context *context = state->context;
  state->running = g->L;
  if (state->noted != g->L) {
    lua_pushthread(g->L);
    lua_rawsetp(g->L, LUA_REGISTRYINDEX, &noted_key);
    state->noted = g->L;
    state->modes = g->modes;
  }
  for (int kind = 0; kind < GBL_SCOPE_KINDS; kind++) close_scopes(g->modes, kind, g->top[kind]);
  g->modes->now = g->before;
  context->modes = g->outer;
  gb_status status = failed ? keep_error(g->L, state) : GB_OK;
  context->op = g->op;
  return status;
}

gb_status gbl_protect(gbl_state *state, lua_CFunction body, void *argument) {
  lua_State *L = state->running;
  if (!lua_checkstack(L, LUA_MINSTACK)) return gb_fail_memory(state->context, sizeof(void *) * LUA_MINSTACK);
  guard g = guard_begin(state);
  lua_pushcfunction(L, body);
  lua_pushlightuserdata(L, argument);
  return guard_end(state, &g, lua_pcall(L, 1, 0, 0));
}

gb_status gbl_call_function(lua_State *L, int arguments, int results) {
  gbl_state *state = gbl_note(L, gbl_get_state(L));
  guard g = guard_begin(state);
  return guard_end(state, &g, lua_pcall(L, arguments, results, 0));
}

/* ====} */

/* {==== Collection ==== */

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static gbl_made made_since(const gbl_state *state, gbl_made before) {
  return (gbl_made){ state->made.handles - before.handles, state->made.bytes - before.bytes };
}

/* Is there enough to gain: a tenth of the live bytes that is more than a trifle, or many handles? Two minor collections
 * close together would make old, and so keep, what is alive at both. */
static bool worth_it(const gbl_state *state) {
  gb_memory_stats stats;
  gbl_made since = made_since(state, state->collected);
  if (since.handles >= COLLECT_HANDLES) return true;
  if (since.bytes < COLLECT_LEAST) return false;
  gb_memory_get_stats(state->context, &stats);
  return since.bytes > stats.current_total / 10;
}

/* Does Lua collect in steps, as stock Lua does, or because the recipe asked for it? Only asking for the other way
 * tells. */
static bool is_incremental(lua_State *L) {
  if (lua_gc(L, LUA_GCGEN, 0, 0) == LUA_GCGEN) return false;
  lua_gc(L, LUA_GCINC, 0, 0, 0);
  return true;
}

/* A generation has ended where no place comes that is known to have little alive. Lua would let garbage lie until its
 * heap has grown by a fifth, and much longer when handles are most of it, since it counts what finalisers are still to
 * see as alive: by then what small tensors hold is out of the cache. The debt that is asked for makes Lua see whether a
 * full collection is due. What takes as long as what ran in between (large weak tables are looked through every time)
 * is done less often. */
static void end_generation(lua_State *L, gbl_state *state) {
  gbl_made since = made_since(state, state->young);
  state->young = state->made;
  state->young_end = state->generation ? state->made.handles + state->generation : INT64_MAX;
  if (!state->generation || since.bytes / GENERATION_BYTES > (size_t)since.handles) return;
  if (lua_gc(L, LUA_GCISRUNNING) <= 0) return; /* stopped, or this is a finaliser, where Lua answers nothing else
                                                  either */
  if (is_incremental(L)) {
    state->generation = 0;
    return;
  }
  double start = seconds(), ran = start - state->minor_end;
  lua_gc(L, LUA_GCSTEP, lua_gc(L, LUA_GCCOUNT) + 1);
  state->minor_end = seconds();
  double cost = state->minor_end - start;
  if (cost > ran && state->generation < GENERATION_MOST) state->generation *= 2;
  else if (cost < ran / 2 && state->generation > GENERATION) state->generation /= 2;
  state->collected = state->made;
}

/* A minor collection (one step in a stock Lua) where it is worth it. That alone is not enough: what lives through two
 * of them (a loss, where steps are short) counts as old, and the collector, which does not see tensor memory, would
 * leave it for hours. A full one is as cheap as the Lua heap is small, so one is run instead whenever all of them take
 * less than COLLECT_SHARE of the time. */
void gbl_collect(lua_State *L) {
  gbl_state *state = gbl_get_state(L);
  state->young = state->made;
  state->young_end = state->made.handles + GENERATION_AFTER;
  if (state->made.handles == state->collected.handles) return;
  double start = seconds();
  if (start - state->full_end >= state->full_cost / COLLECT_SHARE) {
    lua_gc(L, LUA_GCCOLLECT);
    state->full_end = seconds();
    state->full_cost = state->full_end - start;
  } else if (worth_it(state)) lua_gc(L, LUA_GCSTEP, 0);
  else return;
  state->collected = state->made;
}

void gbl_keep_late(lua_State *L, gbl_state *state, gb_tensor *tensor) {
  if (!state || lua_gc(L, LUA_GCISRUNNING) >= 0) return; /* within a finaliser Lua answers nothing */
  gb_tensor **late = realloc(state->late, sizeof(gb_tensor *) * ((size_t)state->late_count + 1));
  if (!late) gbl_check_status(L, gb_fail_memory(state->context, sizeof(gb_tensor *)));
  state->late = late;
  gb_tensor_retain(late[state->late_count++] = tensor);
}

void gbl_end_late(gbl_state *state) {
  gb_tensor **late = state->late;
  int count = state->late_count;
  state->late = NULL;
  state->late_count = 0;
  for (int i = 0; i < count; i++) gb_tensor_release(late[i]);
  free(late);
}

void gbl_soft_mark(lua_State *L, gbl_state *state) {
  if (state->made.handles >= state->young_end) end_generation(L, state);
  if (state->made.bytes - state->soft_looked < SOFT_MARK_STEP) return;
  gb_memory_stats stats;
  state->soft_looked = state->made.bytes;
  gb_memory_get_stats(state->context, &stats);
  if (stats.current_total <= state->soft_mark || lua_gc(L, LUA_GCCOLLECT) < 0) return;
  state->collected = state->made;
  gb_memory_get_stats(state->context, &stats);
  size_t mark = stats.current_total + stats.current_total / 2;
  state->soft_mark = mark > SOFT_MARK_LEAST ? mark : SOFT_MARK_LEAST;
}

/* ====} */
