/* amp.c - gb.amp.GradScaler. Autocast scopes live in modes.c, precisions in gibbous/amp.lua. */
#include <math.h>
#include <string.h>

#include "binding.h"
#include "objects.h"

static void release(void *object) { gb_scaler_release(object); }

static gb_scaler *check(lua_State *L) { return gbl_check_object(L, 1, &gbl_scaler_type); }

static const char *const option_names[] = { "enabled", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale",
                                            "max_skips", "hysteresis", "per_loss", "scale", NULL };

/* {---- a scale by schedule: a Lua function ---- */

/* A callback at work: the function, the step it is asked about, and its answer. */
typedef struct schedule_call { const gbl_callback *callback; int64_t step; double *scale; } schedule_call;

static int schedule_body(lua_State *L) {
  schedule_call *call = lua_touserdata(L, 1);
  gbl_callback_push(L, call->callback);
  lua_pushinteger(L, call->step);
  lua_call(L, 1, 1);
  int is_number = 0;
  *call->scale = lua_tonumberx(L, -1, &is_number);
  if (!is_number) return gbl_error(L, "GradScaler: the function given as 'scale' must return a number, it returned %s", gbl_type_name(L, -1));
  return 0;
}

static gb_status run_schedule(gb_context *context, void *user, int64_t step, double *scale) {
  (void)context;
  schedule_call call = { user, step, scale };
  return gbl_protect(call.callback->state, schedule_body, &call);
}

/* ----} */

/* Is this option given in the table at arg, if there is one? */
static bool has_option(lua_State *L, int arg, const char *name) {
  if (!lua_istable(L, arg)) return false;
  bool given = lua_getfield(L, arg, name) != LUA_TNIL;
  lua_pop(L, 1);
  return given;
}

/* Read the options of a new scaler, which are left at 1. A precision object in front of them says whether a scaler is needed; scale makes it
 * static, or scheduled. */
static void read_options(lua_State *L, gb_scaler_options *options) {
  const char *who = "GradScaler";
  bool needed = true;
  gb_scaler_options_init(options, sizeof *options);
  if (lua_istable(L, 1) && lua_getfield(L, 1, "autocast") != LUA_TNIL) {
    lua_getfield(L, 1, "scaler");
    needed = lua_toboolean(L, -1);
    lua_pop(L, 2);
    lua_remove(L, 1);
  } else if (lua_isnil(L, 1)) lua_remove(L, 1);
  if (!lua_isnoneornil(L, 2)) gbl_error(L, "%s: takes a precision and one table of options; there is one argument more", who);
  lua_settop(L, 1);
  gbl_check_options(L, 1, who, option_names);
  options->enabled = gbl_option_boolean(L, 1, who, "enabled", true) && needed;
  bool scheduled = lua_istable(L, 1) && lua_getfield(L, 1, "scale") == LUA_TFUNCTION;
  lua_settop(L, 1);
  options->dynamic = !scheduled && !has_option(L, 1, "scale");
  if (options->dynamic) options->init_scale = gbl_option_number(L, 1, who, "init_scale", options->init_scale);
  else options->init_scale = scheduled ? 1 : gbl_option_number(L, 1, who, "scale", 1);
  options->growth_factor = gbl_option_number(L, 1, who, "growth_factor", options->growth_factor);
  options->backoff_factor = gbl_option_number(L, 1, who, "backoff_factor", options->backoff_factor);
  options->growth_interval = gbl_option_integer(L, 1, who, "growth_interval", options->growth_interval);
  options->min_scale = gbl_option_number(L, 1, who, "min_scale", options->min_scale);
  options->max_scale = gbl_option_number(L, 1, who, "max_scale", options->max_scale);
  options->max_skips = gbl_option_integer(L, 1, who, "max_skips", options->max_skips);
  options->hysteresis = gbl_option_integer(L, 1, who, "hysteresis", options->hysteresis);
  options->per_loss = gbl_option_boolean(L, 1, who, "per_loss", false);
}

/* Where the option `scale` is a function, the scaler asks it, the first time at once. */
static void read_schedule(lua_State *L, gb_scaler *scaler) {
  if (!lua_istable(L, 1) || lua_getfield(L, 1, "scale") != LUA_TFUNCTION) return;
  gbl_callback *callback = gbl_callback_new(L, lua_gettop(L));
  gbl_check_status(L, gb_scaler_set_schedule(scaler, run_schedule, callback, gbl_callback_release));
}

/* gb.amp.GradScaler(precision?, options?: table) -> scaler: What scales losses so that float16 gradients do not vanish, and skips steps whose
 * gradients are not finite. precision (of amp.precision) says whether one is needed; a disabled scaler passes everything on. options: enabled,
 * init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000, min_scale, max_scale, max_skips = 64, hysteresis = 1,
 * per_loss, scale (a number: static; a function of the step: scheduled). Errors: at step, after max_skips skips in a row. Example: local scaler =
 * gb.amp.GradScaler(gb.amp.precision("16-mixed")) */
static int new(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_scaler_options options;
  read_options(L, &options);
  void **slot = gbl_new_object(L, &gbl_scaler_type, 0);
  gb_scaler *scaler = NULL;
  gb_status status = gb_scaler_new(context, &options, &scaler);
  *slot = scaler;
  gbl_check_status(L, status);
  int at = lua_gettop(L);
  read_schedule(L, scaler);
  lua_settop(L, at);
  return 1;
}

/* GradScaler:scale(loss) -> tensor: The loss, or a list of losses, times the scale, in float32; their gradients carry the scale with them.
 * Example: scaler:scale(loss):backward() */
static int scale(lua_State *L) {
  gbl_enter(L);
  gb_scaler *scaler = check(L);
  if (lua_istable(L, 2)) {
    lua_Integer n = luaL_len(L, 2);
    lua_createtable(L, (int)n, 0);
    for (lua_Integer i = 1; i <= n; i++) {
      lua_geti(L, 2, i);
      gb_tensor *loss = gbl_check_tensor(L, lua_gettop(L));
      gbl_box *box = gbl_new_tensor(L);
      gbl_check_status(L, gb_scaler_scale(scaler, loss, &box->tensor));
      gbl_finish_tensor(L);
      lua_seti(L, -3, i);
      lua_pop(L, 1);
    }
    return 1;
  }
  gb_tensor *loss = gbl_check_tensor(L, 2);
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_scaler_scale(scaler, loss, &box->tensor));
  gbl_finish_tensor(L);
  return 1;
}

/* GradScaler:unscale_(optimizer: optimizer): Divide the gradients by the scale in place, before they are clipped or read, and measure their
 * 2-norm on the way: clip_grad_norm_ over the same gradients, untouched since, needs no pass for it. Errors: twice between two updates.
 * Example: scaler:scale(loss):backward() scaler:unscale_(opt) */
static int unscale(lua_State *L) {
  gbl_enter(L);
  gbl_check_status(L, gb_scaler_unscale(check(L), gbl_check_optimizer(L, 2)));
  return 0;
}

/* GradScaler:step(optimizer: optimizer, options?: table) -> number: The optimizer's step, unless a gradient is not finite. options: clip
 * (max_norm), norm_type = 2: with clip, all that unscale_, clip_grad_norm_ and step do, bit for bit, the clip within the update itself: grad is
 * unscaled and clipped afterwards; returns the norm before, on a device as a tensor. Errors: max_skips skips in a row, with the report.
 * Example: scaler:scale(loss):backward() scaler:step(opt) scaler:update() */
static int step(lua_State *L) {
  static const char *const known[] = { "clip", "norm_type", NULL };
  gbl_enter(L);
  gb_scaler *scaler = check(L);
  gb_optimizer *optimizer = gbl_check_optimizer(L, 2);
  gbl_check_options(L, 3, "step", known);
  double clip = gbl_option_number(L, 3, "step", "clip", HUGE_VAL), norm_type = gbl_option_number(L, 3, "step", "norm_type", 2);
  bool clips = has_option(L, 3, "clip");
  if (!clips && has_option(L, 3, "norm_type")) return gbl_error(L, "step: 'norm_type' is of the norm that 'clip' limits; give clip too");
  gbl_note_step(L);
  gbl_box *box = clips ? gbl_new_tensor(L) : NULL;
  gbl_check_status(L, clips ? gb_scaler_step_clipped(scaler, optimizer, clip, norm_type, &box->tensor) : gb_scaler_step(scaler, optimizer));
  if (clips) gbl_finish_measure(L);
  gbl_collect(L);
  return clips;
}

/* GradScaler:update(new_scale?: number): After the steps of an iteration: grow the scale, or back off after a skip. Example:
 * scaler:scale(loss):backward() scaler:step(opt) scaler:update() */
static int update(lua_State *L) {
  gbl_enter(L);
  double new_scale = lua_isnoneornil(L, 2) ? 0 : gbl_check_number(L, 2, "update", "new_scale");
  if (!lua_isnoneornil(L, 2) && !(new_scale > 0)) return gbl_error(L, "update: the new scale must be above 0, got %g", new_scale);
  gbl_check_status(L, gb_scaler_update(check(L), new_scale));
  return 0;
}

static gb_scaler_stats stats_of(lua_State *L) {
  gbl_enter(L);
  gb_scaler_stats stats;
  gbl_check_status(L, gb_scaler_get_stats(check(L), &stats));
  return stats;
}

/* GradScaler:get_scale() -> number: The scale; 1 when the scaler is disabled, as PyTorch's. Example: print(scaler:get_scale()) */
static int get_scale(lua_State *L) {
  lua_pushnumber(L, gb_scaler_get_options(check(L))->enabled ? stats_of(L).scale : 1);
  return 1;
}

/* GradScaler:is_enabled() -> bool: Does it scale at all? Example: print(scaler:is_enabled()) */
static int is_enabled(lua_State *L) {
  lua_pushboolean(L, gb_scaler_get_options(check(L))->enabled);
  return 1;
}

/* GradScaler:stats() -> table: scale, steps, skipped, skipped_in_a_row, growth_tracker, last_skipped. Example: print(scaler:stats().skipped) */
static int stats(lua_State *L) {
  gb_scaler_stats s = stats_of(L);
  lua_createtable(L, 0, 6);
  gbl_set_number(L, "scale", s.scale);
  gbl_set_integer(L, "steps", s.steps);
  gbl_set_integer(L, "skipped", s.skipped);
  gbl_set_integer(L, "skipped_in_a_row", s.skipped_in_a_row);
  gbl_set_integer(L, "growth_tracker", s.growth_tracker);
  lua_pushboolean(L, s.last_skipped), lua_setfield(L, -2, "last_skipped");
  return 1;
}

/* GradScaler:report() -> string, string: The names of the parameters whose gradients were not finite at the last skip, "" when there was none;
 * and from the second skip in a row on what made the first such value: the op, the recipe's line, whether it is finite at half the scale.
 * Example: print(scaler:report()) */
static int report(lua_State *L) {
  gbl_enter(L);
  gb_scaler *scaler = check(L);
  const char *cause = gb_scaler_cause(scaler);
  lua_pushstring(L, gb_scaler_report(scaler));
  lua_pushstring(L, *cause ? cause : NULL);
  return 2;
}

/* {---- options that may change between steps, by getters and setters as PyTorch has them ---- */

/* GradScaler:get_growth_factor() -> number: What the scale is multiplied by after growth_interval finite steps. Example:
 * print(scaler:get_growth_factor()) */
static int get_growth_factor(lua_State *L) { return lua_pushnumber(L, gb_scaler_get_options(check(L))->growth_factor), 1; }
/* GradScaler:get_backoff_factor() -> number: What the scale is multiplied by after a skip. Example: print(scaler:get_backoff_factor()) */
static int get_backoff_factor(lua_State *L) { return lua_pushnumber(L, gb_scaler_get_options(check(L))->backoff_factor), 1; }
/* GradScaler:get_growth_interval() -> int: How many finite steps in a row let the scale grow. Example: print(scaler:get_growth_interval()) */
static int get_growth_interval(lua_State *L) { return lua_pushinteger(L, gb_scaler_get_options(check(L))->growth_interval), 1; }

static int set_options(lua_State *L, gb_scaler_options options) {
  gbl_enter(L);
  gbl_check_status(L, gb_scaler_set_options(check(L), &options));
  return 0;
}

/* GradScaler:set_growth_factor(factor: number): What the scale is multiplied by after growth_interval finite steps. Errors: a factor that is not
 * above 1. Example: scaler:set_growth_factor(2) */
static int set_growth_factor(lua_State *L) {
  gb_scaler_options options = *gb_scaler_get_options(check(L));
  options.growth_factor = gbl_check_number(L, 2, "set_growth_factor", "factor");
  return set_options(L, options);
}

/* GradScaler:set_backoff_factor(factor: number): What the scale is multiplied by after a skip. Errors: a factor that is not between 0 and 1.
 * Example: scaler:set_backoff_factor(0.5) */
static int set_backoff_factor(lua_State *L) {
  gb_scaler_options options = *gb_scaler_get_options(check(L));
  options.backoff_factor = gbl_check_number(L, 2, "set_backoff_factor", "factor");
  return set_options(L, options);
}

/* GradScaler:set_growth_interval(interval: int): How many finite steps in a row let the scale grow. Errors: an interval below 1. Example:
 * scaler:set_growth_interval(2000) */
static int set_growth_interval(lua_State *L) {
  gb_scaler_options options = *gb_scaler_get_options(check(L));
  options.growth_interval = gbl_check_integer(L, 2, "set_growth_interval", "interval");
  return set_options(L, options);
}

/* ----} */

/* GradScaler:state_dict() -> table: PyTorch's keys, and the counters that schedules and hysteresis go on from; empty when disabled. Example:
 * local state = scaler:state_dict() */
static int state_dict(lua_State *L) {
  const gb_scaler_options *options = gb_scaler_get_options(check(L));
  lua_createtable(L, 0, 8);
  if (!options->enabled) return 1;
  gb_scaler_stats s = stats_of(L);
  gbl_set_number(L, "scale", s.scale);
  gbl_set_number(L, "growth_factor", options->growth_factor);
  gbl_set_number(L, "backoff_factor", options->backoff_factor);
  gbl_set_integer(L, "growth_interval", options->growth_interval);
  gbl_set_integer(L, "_growth_tracker", s.growth_tracker);
  gbl_set_integer(L, "_steps", s.steps);
  gbl_set_integer(L, "_skipped", s.skipped);
  gbl_set_integer(L, "_skipped_in_a_row", s.skipped_in_a_row);
  return 1;
}

static double state_number(lua_State *L, const char *name) {
  lua_getfield(L, 2, name);
  if (!lua_isnumber(L, -1)) gbl_error(L, "load_state_dict: the scaler's state has no number '%s'", name);
  double value = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return value;
}

/* A counter: a whole number. */
static int64_t state_count(lua_State *L, const char *name) {
  int64_t value = 0;
  lua_getfield(L, 2, name);
  if (!gbl_test_integer(L, -1, &value)) gbl_error(L, "load_state_dict: the scaler's state has no whole number '%s'", name);
  lua_pop(L, 1);
  return value;
}

/* All that a state holds; what is refused changes nothing. */
static gb_status restore(gb_scaler *scaler, const gb_scaler_options *options, const gb_scaler_stats *to) {
  const gb_scaler_options options_before = *gb_scaler_get_options(scaler);
  gb_scaler_stats before;
  GB_TRY(gb_scaler_get_stats(scaler, &before));
  GB_TRY(gb_scaler_set_counts(scaler, to->steps, to->skipped, to->skipped_in_a_row));
  gb_status status = gb_scaler_set_options(scaler, options);
  if (status == GB_OK) status = gb_scaler_set_state(scaler, to->scale, to->growth_tracker);
  if (status != GB_OK) gb_scaler_set_options(scaler, &options_before), to = &before;
  gb_scaler_set_counts(scaler, to->steps, to->skipped, to->skipped_in_a_row); /* set_state begins a new row of skips */
  return status;
}

/* GradScaler:load_state_dict(state: table): Go on from a state, ours or one that PyTorch wrote. Errors: a state without the numbers, or of a
 * disabled scaler. Example: scaler:load_state_dict(scaler:state_dict()) */
static int load_state_dict(lua_State *L) {
  gbl_enter(L);
  gb_scaler *scaler = check(L);
  gb_scaler_options options = *gb_scaler_get_options(scaler);
  if (!options.enabled) return 0;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_pushnil(L);
  if (!lua_next(L, 2)) return gbl_error(L, "load_state_dict: the scaler's state is empty; it was saved from a disabled scaler");
  lua_settop(L, 2);
  gb_scaler_stats to = { .scale = state_number(L, "scale") };
  options.growth_factor = state_number(L, "growth_factor");
  options.backoff_factor = state_number(L, "backoff_factor");
  options.growth_interval = state_count(L, "growth_interval");
  to.growth_tracker = state_count(L, "_growth_tracker");
  if (has_option(L, 2, "_steps")) { /* PyTorch's state does not have them */
    to.steps = state_count(L, "_steps");
    to.skipped = state_count(L, "_skipped");
    to.skipped_in_a_row = state_count(L, "_skipped_in_a_row");
  }
  gbl_check_status(L, restore(scaler, &options, &to));
  return 0;
}

static const luaL_Reg methods[] = {
  { "scale", scale }, { "unscale_", unscale }, { "step", step }, { "update", update }, { "get_scale", get_scale }, { "is_enabled", is_enabled },
  { "stats", stats }, { "report", report }, { "state_dict", state_dict }, { "load_state_dict", load_state_dict },
  { "get_growth_factor", get_growth_factor }, { "get_backoff_factor", get_backoff_factor }, { "get_growth_interval", get_growth_interval },
  { "set_growth_factor", set_growth_factor }, { "set_backoff_factor", set_backoff_factor }, { "set_growth_interval", set_growth_interval },
  { NULL, NULL },
};

const gbl_type gbl_scaler_type = { "gibbous.scaler", release, methods };

/* gb.amp.cache_info() -> table: bytes and peak_bytes of the 16-bit weight copies that parameters keep. Example: print(gb.amp.cache_info().bytes) */
static int cache_info(lua_State *L) {
  gb_memory_stats memory;
  gb_memory_get_stats(gbl_context(L), &memory);
  lua_createtable(L, 0, 2);
  gbl_set_integer(L, "bytes", (int64_t)memory.current[GB_MEM_WEIGHT_COPIES]);
  gbl_set_integer(L, "peak_bytes", (int64_t)memory.peak[GB_MEM_WEIGHT_COPIES]);
  return 1;
}

void gbl_open_amp(lua_State *L) {
  gbl_new_type(L, &gbl_scaler_type);
  gbl_push_module(L, "amp");
  gbl_set_functions(L, (const luaL_Reg[]){ { "GradScaler", new }, { "cache_info", cache_info }, { NULL, NULL } });
  lua_pop(L, 1);
}
