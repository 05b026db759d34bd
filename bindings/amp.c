/* amp.c - gb.amp.GradScaler. Autocast scopes live in modes.c, precisions in gibbous/amp.lua. */
#include <math.h>
#include <string.h>

#include "objects.h"
#include "reader.h"

static void release(void *object) { gb_scaler_release(object); }

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
  if (!is_number)
    return gbl_error(L, "GradScaler: the function given as 'scale' must return a number, it returned %s",
                     gbl_type_name(L, -1));
  return 0;
}

static gb_status run_schedule(gb_context *context, void *user, int64_t step, double *scale) {
  (void)context;
  schedule_call call = { user, step, scale };
  return gbl_protect(call.callback->state, schedule_body, &call);
}

/* ----} */

/* The options of a new scaler. A precision in front of them says whether a scaler is needed; scale makes it static, or
 * scheduled. */
static gb_scaler_options read_options(lua_State *L, const gbl_call *call) {
  gb_scaler_options options;
  gb_scaler_options_init(&options, sizeof options);
  const gbl_value *precision = gbl_argument(call, "precision"), *scale = gbl_argument(call, "scale");
  options.enabled = gbl_boolean(call, "enabled");
  if (precision->given) {
    gbl_push_private(L, precision->index, "precision");
    gbl_raw_field(L, -1, "scaler");
    options.enabled &= lua_toboolean(L, -1);
    lua_pop(L, 2);
  }
  options.dynamic = !scale->given;
  options.init_scale = options.dynamic ? gbl_number(call, "init_scale") : !strcmp(scale->kind, "number") ? scale->number
      : 1;
  options.growth_factor = gbl_number(call, "growth_factor");
  options.backoff_factor = gbl_number(call, "backoff_factor");
  options.growth_interval = gbl_integer(call, "growth_interval");
  if (gbl_given(call, "min_scale")) options.min_scale = gbl_number(call, "min_scale");
  if (gbl_given(call, "max_scale")) options.max_scale = gbl_number(call, "max_scale");
  options.max_skips = gbl_integer(call, "max_skips");
  options.hysteresis = gbl_integer(call, "hysteresis");
  options.per_loss = gbl_boolean(call, "per_loss");
  return options;
}

static int new(lua_State *L, gbl_call *call) {
  gb_scaler_options options = read_options(L, call);
  const gbl_value *scale = gbl_argument(call, "scale");
  void **slot = gbl_new_object(L, &gbl_scaler_type, 0);
  gb_scaler *scaler = NULL;
  gb_status status = gb_scaler_new(call->state->context, &options, &scaler);
  *slot = scaler;
  gbl_check_status(L, status);
  if (scale->given && !strcmp(scale->kind, "function")) { /* it is asked for the first time at once */
    gbl_callback *callback = gbl_callback_new(L, scale->index);
    gbl_check_status(L, gb_scaler_set_schedule(scaler, run_schedule, callback, gbl_callback_release));
  }
  return 1;
}

static void push_scaled(lua_State *L, gb_scaler *scaler, gb_tensor *loss) {
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_scaler_scale(scaler, loss, &box->tensor));
  gbl_finish_tensor(L);
}

static int scale(lua_State *L, gbl_call *call) {
  gb_scaler *scaler = gbl_object(call, "self");
  const gbl_value *loss = gbl_argument(call, "loss");
  if (lua_type(L, loss->index) == LUA_TUSERDATA) return push_scaled(L, scaler, loss->tensors[0]), 1;
  lua_createtable(L, loss->count, 0);
  for (int i = 0; i < loss->count; i++) {
    push_scaled(L, scaler, loss->tensors[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* LBFGS compares losses and slopes of several calls of its closure, which one scale of all gradients cannot serve. */
static int refuse_lbfgs(const gbl_call *call) {
  if (strcmp(gbl_argument(call, "optimizer")->kind, "lbfgs") != 0) return 0;
  return gbl_refuse(call, "LBFGS takes no GradScaler: its closure runs several times in a step, and it compares losses "
                          "and slopes that a scale would change; train in 32-true or bf16-mixed, and call "
                          "opt:step(closure)");
}

static int unscale(lua_State *L, gbl_call *call) {
  refuse_lbfgs(call);
  return gbl_check_status(L, gb_scaler_unscale(gbl_object(call, "self"), gbl_object(call, "optimizer")));
}

static int step(lua_State *L, gbl_call *call) {
  gb_scaler *scaler = gbl_object(call, "self");
  refuse_lbfgs(call);
  gb_optimizer *optimizer = gbl_object(call, "optimizer");
  bool clips = gbl_given(call, "clip");
  if (!clips && gbl_given(call, "norm_type")) return gbl_refuse(call, "'norm_type' needs 'clip'");
  gbl_note_step(L);
  gbl_box *box = clips ? gbl_new_tensor(L) : NULL;
  gbl_check_status(L, clips ? gb_scaler_step_clipped(scaler, optimizer, gbl_number(call, "clip"),
                                                     gbl_number(call, "norm_type"), &box->tensor)
                            : gb_scaler_step(scaler, optimizer));
  if (clips) gbl_finish_measure(L);
  gbl_collect(L);
  return clips;
}

static int update(lua_State *L, gbl_call *call) {
  const gbl_value *to = gbl_argument(call, "new_scale");
  if (to->given && !(to->number > 0)) return gbl_refuse(call, "the new scale must be above 0, got %g", to->number);
  return gbl_check_status(L, gb_scaler_update(gbl_object(call, "self"), to->given ? to->number : 0));
}

static gb_scaler_stats stats_of(lua_State *L, const gbl_call *call) {
  gb_scaler_stats stats;
  gbl_check_status(L, gb_scaler_get_stats(gbl_object(call, "self"), &stats));
  return stats;
}

static const gb_scaler_options *options_of(const gbl_call *call) { return gb_scaler_get_options(gbl_object(call,
    "self")); }

static int get_scale(lua_State *L, gbl_call *call) {
  lua_pushnumber(L, options_of(call)->enabled ? stats_of(L, call).scale : 1);
  return 1;
}

static int is_enabled(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, options_of(call)->enabled);
  return 1;
}

static int stats(lua_State *L, gbl_call *call) {
  gb_scaler_stats s = stats_of(L, call);
  lua_createtable(L, 0, 6);
  gbl_set_number(L, "scale", s.scale);
  gbl_set_integer(L, "steps", s.steps);
  gbl_set_integer(L, "skipped", s.skipped);
  gbl_set_integer(L, "skipped_in_a_row", s.skipped_in_a_row);
  gbl_set_integer(L, "growth_tracker", s.growth_tracker);
  lua_pushboolean(L, s.last_skipped);
  gbl_set_raw(L, -2, "last_skipped");
  return 1;
}

static int report(lua_State *L, gbl_call *call) {
  gb_scaler *scaler = gbl_object(call, "self");
  const char *cause = gb_scaler_cause(scaler);
  lua_pushstring(L, gb_scaler_report(scaler));
  lua_pushstring(L, *cause ? cause : NULL);
  return 2;
}

static int scaler_text(lua_State *L) {
  const gb_scaler *scaler = gbl_test_object(L, 1, &gbl_scaler_type);
  if (!scaler) lua_pushliteral(L, "GradScaler (closed)");
  else if (!gb_scaler_get_options(scaler)->enabled) lua_pushliteral(L, "GradScaler (disabled)");
  else lua_pushfstring(L, "GradScaler (%s)", gb_scaler_get_options(scaler)->dynamic ? "dynamic"
                       : "static or scheduled");
  return 1;
}

/* {---- options that may change between steps, by getters and setters as PyTorch has them ---- */

static int get_growth_factor(lua_State *L, gbl_call *call) { return lua_pushnumber(L, options_of(call)->growth_factor),
                                                             1; }
static int get_backoff_factor(lua_State *L,
                              gbl_call *call) { return lua_pushnumber(L, options_of(call)->backoff_factor), 1; }
static int get_growth_interval(lua_State *L,
                               gbl_call *call) { return lua_pushinteger(L, options_of(call)->growth_interval), 1; }

static int set_options(lua_State *L, const gbl_call *call, gb_scaler_options options) {
  return gbl_check_status(L, gb_scaler_set_options(gbl_object(call, "self"), &options));
}

static int set_growth_factor(lua_State *L, gbl_call *call) {
  gb_scaler_options options = *options_of(call);
  options.growth_factor = gbl_number(call, "factor");
  return set_options(L, call, options);
}

static int set_backoff_factor(lua_State *L, gbl_call *call) {
  gb_scaler_options options = *options_of(call);
  options.backoff_factor = gbl_number(call, "factor");
  return set_options(L, call, options);
}

static int set_growth_interval(lua_State *L, gbl_call *call) {
  gb_scaler_options options = *options_of(call);
  options.growth_interval = gbl_integer(call, "interval");
  return set_options(L, call, options);
}

/* ----} */

static int state_dict(lua_State *L, gbl_call *call) {
  const gb_scaler_options *options = options_of(call);
  lua_createtable(L, 0, 8);
  if (!options->enabled) return 1;
  gb_scaler_stats s = stats_of(L, call);
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

static double state_number(lua_State *L, const gbl_call *call, const char *name) {
  if (gbl_raw_field(L, gbl_argument(call, "state")->index, name) != LUA_TNUMBER)
    gbl_refuse(call, "the scaler's state has no number '%s'", name);
  double value = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return value;
}

/* A counter: a whole number. */
static int64_t state_count(lua_State *L, const gbl_call *call, const char *name) {
  int64_t value = 0;
  gbl_raw_field(L, gbl_argument(call, "state")->index, name);
  if (!gbl_test_integer(L, -1, &value)) gbl_refuse(call, "the scaler's state has no whole number '%s'", name);
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

static int load_state_dict(lua_State *L, gbl_call *call) {
  gb_scaler *scaler = gbl_object(call, "self");
  gb_scaler_options options = *gb_scaler_get_options(scaler);
  int state = gbl_argument(call, "state")->index;
  if (!options.enabled) return 0;
  lua_pushnil(L);
  if (!lua_next(L, state)) return gbl_refuse(call, "the scaler's state is empty; it was saved from a disabled scaler");
  lua_pop(L, 2);
  gb_scaler_stats to = { .scale = state_number(L, call, "scale") };
  options.growth_factor = state_number(L, call, "growth_factor");
  options.backoff_factor = state_number(L, call, "backoff_factor");
  options.growth_interval = state_count(L, call, "growth_interval");
  to.growth_tracker = state_count(L, call, "_growth_tracker");
  bool ours = gbl_raw_field(L, state, "_steps") != LUA_TNIL; /* PyTorch's state does not have them */
  lua_pop(L, 1);
  if (ours) {
    to.steps = state_count(L, call, "_steps");
    to.skipped = state_count(L, call, "_skipped");
    to.skipped_in_a_row = state_count(L, call, "_skipped_in_a_row");
  }
  return gbl_check_status(L, restore(scaler, &options, &to));
}

static const gbl_function scaler_functions[] = {
  { scale, GB_SANDBOX_STRICT,
    "GradScaler:scale(loss: tensors) -> tensor: The loss, or a list of losses, times the scale, in float32; their "
    "gradients carry the "
    "scale with them. Example: scaler:scale(loss):backward()" },
  { unscale, GB_SANDBOX_STRICT,
    "GradScaler:unscale_(optimizer: optimizer|lbfgs): Divide the gradients by the scale in place, before they are "
    "clipped or read, and "
    "measure their 2-norm on the way: clip_grad_norm_ over the same gradients, untouched since, needs no pass for "
    "it. Errors: twice "
    "between two updates. Example: scaler:scale(loss):backward() scaler:unscale_(opt)" },
  { step, GB_SANDBOX_STRICT,
    "GradScaler:step(optimizer: optimizer|lbfgs; clip?: number, norm_type: number = 2) -> number: The optimizer's "
    "step, unless a gradient is "
    "not finite. With clip, the largest norm, all that unscale_, clip_grad_norm_ and step do, bit for bit, the clip "
    "within the update "
    "itself: grad is unscaled and clipped afterwards; returns the norm before, on a device as a tensor. Errors: "
    "max_skips skips in a "
    "row, with the report. Example: scaler:scale(loss):backward() scaler:step(opt) scaler:update()" },
  { update, GB_SANDBOX_STRICT,
    "GradScaler:update(new_scale?: number): After the steps of an iteration: grow the scale, or back off after a "
    "skip. Example: "
    "scaler:scale(loss):backward() scaler:step(opt) scaler:update()" },
  { get_scale, GB_SANDBOX_STRICT,
    "GradScaler:get_scale() -> number: The scale; 1 if the scaler is disabled. Example: print(scaler:get_scale())" },
  { is_enabled, GB_SANDBOX_STRICT, "GradScaler:is_enabled() -> bool: True if it scales. Example: "
                                   "print(scaler:is_enabled())" },
  { stats, GB_SANDBOX_STRICT,
    "GradScaler:stats() -> table: scale, steps, skipped, skipped_in_a_row, growth_tracker, last_skipped. Example: "
    "print(scaler:stats().skipped)" },
  { report, GB_SANDBOX_STRICT,
    "GradScaler:report() -> string, string: The names of the parameters whose gradients were not finite at the last "
    "skip, \"\" when "
    "there was none; and from the second skip in a row on what made the first such value: the op, the recipe's "
    "line, whether it is "
    "finite at half the scale. Example: print(scaler:report())" },
  { get_growth_factor, GB_SANDBOX_STRICT,
    "GradScaler:get_growth_factor() -> number: What the scale is multiplied by after growth_interval finite steps. "
    "Example: "
    "print(scaler:get_growth_factor())" },
  { get_backoff_factor, GB_SANDBOX_STRICT,
    "GradScaler:get_backoff_factor() -> number: What the scale is multiplied by after a skip. Example: "
    "print(scaler:get_backoff_factor())" },
  { get_growth_interval, GB_SANDBOX_STRICT,
    "GradScaler:get_growth_interval() -> int: How many finite steps in a row let the scale grow. Example: "
    "print(scaler:get_growth_interval())" },
  { set_growth_factor, GB_SANDBOX_STRICT,
    "GradScaler:set_growth_factor(factor: number): What the scale is multiplied by after growth_interval finite "
    "steps. Errors: a "
    "factor that is not above 1. Example: scaler:set_growth_factor(2)" },
  { set_backoff_factor, GB_SANDBOX_STRICT,
    "GradScaler:set_backoff_factor(factor: number): What the scale is multiplied by after a skip. Errors: a factor "
    "that is not between "
    "0 and 1. Example: scaler:set_backoff_factor(0.5)" },
  { set_growth_interval, GB_SANDBOX_STRICT,
    "GradScaler:set_growth_interval(interval: int): How many finite steps in a row let the scale grow. Errors: an "
    "interval below 1. "
    "Example: scaler:set_growth_interval(2000)" },
  { state_dict, GB_SANDBOX_STRICT,
    "GradScaler:state_dict() -> table: PyTorch's keys, and the counters that schedules and hysteresis go on from; "
    "empty when disabled. "
    "Example: local state = scaler:state_dict()" },
  { load_state_dict, GB_SANDBOX_STRICT,
    "GradScaler:load_state_dict(state: table): Go on from a state, ours or one that PyTorch wrote. Errors: a state "
    "without the "
    "numbers, or of a disabled scaler. Example: scaler:load_state_dict(scaler:state_dict())" },
  { NULL, 0, NULL },
};

static const luaL_Reg scaler_events[] = { { "__tostring", scaler_text }, { NULL, NULL } };
const gbl_type gbl_scaler_type = {
  "gibbous.scaler", release, scaler_events, scaler_functions,
  "GradScaler:close(): Release the scaler now instead of when it is collected; using it then is an error. "
  "Example: gb.amp.GradScaler():close()",
};

static int cache_info(lua_State *L, gbl_call *call) {
  gb_memory_stats memory;
  gb_memory_get_stats(call->state->context, &memory);
  lua_createtable(L, 0, 2);
  gbl_set_integer(L, "bytes", (int64_t)memory.current[GB_MEM_WEIGHT_COPIES]);
  gbl_set_integer(L, "peak_bytes", (int64_t)memory.peak[GB_MEM_WEIGHT_COPIES]);
  return 1;
}

static const gbl_function functions[] = {
  { new, GB_SANDBOX_STRICT,
    "gb.amp.GradScaler(precision?: precision; enabled: bool = true, init_scale: number = 65536, growth_factor: "
    "number = 2, "
    "backoff_factor: number = 0.5, growth_interval: int = 2000, min_scale?: number, max_scale?: number, max_skips: "
    "int = 64, "
    "hysteresis: int = 1, per_loss: bool = false, scale?: number|function) -> scaler: Scales losses so that float16 "
    "gradients do "
    "not vanish, and skips steps whose gradients are not finite. precision (of amp.precision) says whether one is "
    "needed; a disabled "
    "scaler passes everything on. scale is a number (static) or a function of the step (scheduled). Errors: at "
    "step, after max_skips "
    "skips in a row. Example: local scaler = gb.amp.GradScaler(gb.amp.precision(\"16-mixed\"))" },
  { cache_info, GB_SANDBOX_STRICT,
    "gb.amp.cache_info() -> table: bytes and peak_bytes of the 16-bit weight copies that parameters keep. Example: "
    "print(gb.amp.cache_info().bytes)" },
  { NULL, 0, NULL },
};

void gbl_open_amp(lua_State *L) {
  gbl_new_type(L, &gbl_scaler_type);
  gbl_push_module(L, "amp");
  gbl_define(L, functions);
  lua_pop(L, 1);
}
