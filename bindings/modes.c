/* modes.c - gradients on or off and autocast, per coroutine, and the scopes that change them.
 *
 * Each coroutine has modes of its own, keyed weakly by the thread object. A scope is a value (local _ <close> =
 * gb.no_grad()) or a call (gb.no_grad(fn, ...), which may yield). Scopes of one kind form a list from the innermost
 * outwards; one that is closed out of order hands what it would restore to the scope just inside it, so what is open
 * keeps its effect and the end is as it was before all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"

/* Of the registry: the weak table from threads to modes, and the modes of the coroutine that opened a scope last. */
static const char modes_key = 0, noted_modes_key = 0;
static const char modes_meta[] = "gibbous.modes", scope_meta[] = "gibbous.scope";

/* {==== Modes of a coroutine ==== */

static int modes_gc(lua_State *L) {
  gbl_modes *modes = lua_touserdata(L, 1);
  for (int kind = 0; kind < GBL_SCOPE_KINDS; kind++)
    while (modes->top[kind]) gbl_close_top(modes, (gbl_scope_kind)kind);
  gb_counted_free(modes->spare);
  modes->spare = NULL;
  return 0;
}

static void push_table(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) != LUA_TNIL) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  gbl_set_raw(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &modes_key);
}

/* Push the modes of the thread at the top of the stack in its place; made as a copy of `from` where it has none. */
static gbl_modes *push_modes(lua_State *L, const gb_modes *from) {
  push_table(L);
  lua_pushvalue(L, -2);
  if (lua_rawget(L, -2) == LUA_TNIL) {
    lua_pop(L, 1);
    gbl_modes *modes = lua_newuserdatauv(L, sizeof *modes, 0);
    *modes = (gbl_modes){ .now = *from };
    if (luaL_newmetatable(L, modes_meta)) {
      lua_pushcfunction(L, modes_gc);
      gbl_set_raw(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -3);
    lua_pushvalue(L, -2);
    lua_rawset(L, -4);
  }
  lua_replace(L, -3);
  lua_pop(L, 1);
  return lua_touserdata(L, -1);
}

gbl_modes *gbl_modes_of(lua_State *L) {
  lua_pushthread(L);
  gbl_modes *modes = push_modes(L, gbl_get_state(L)->context->modes);
  lua_pop(L, 1);
  return modes;
}

void gbl_modes_inherit(lua_State *L, lua_State *co) {
  gbl_state *state = gbl_enter(L);
  luaL_checkstack(L, 8, GBL_NO_STACK);
  if (!lua_checkstack(co, 1)) gbl_error(L, "too many values on a coroutine's stack");
  lua_pushthread(co);
  lua_xmove(co, L, 1);
  push_modes(L, state->context->modes);
  lua_pop(L, 1);
}

/* ====} */

/* {==== Scopes ==== */

/* The fields of one kind. */
static void restore(gb_modes *to, const gb_modes *from, gbl_scope_kind kind) {
  if (kind == GBL_SCOPE_GRAD) to->grad = from->grad;
  else if (kind == GBL_SCOPE_ANOMALY) to->anomaly = from->anomaly;
  else to->autocast = from->autocast, to->lower = from->lower;
}

/* A scope is over. One is kept, since the next comes as soon as the next step. */
static void end_scope(gbl_modes *modes, gbl_scope *scope) {
  gb_counted_free(modes->spare);
  modes->spare = scope;
}

void gbl_close_top(gbl_modes *modes, gbl_scope_kind kind) {
  gbl_scope *scope = modes->top[kind];
  restore(&modes->now, &scope->before, kind);
  modes->top[kind] = scope->below;
  end_scope(modes, scope);
}

bool gbl_close_scopes(gbl_modes *modes, int64_t before) {
  bool any = false;
  for (int kind = 0; kind < GBL_SCOPE_KINDS; kind++)
    for (; modes->top[kind] && modes->top[kind]->number > before; any = true)
      gbl_close_top(modes, (gbl_scope_kind)kind);
  return any;
}

/* What Lua holds of a scope. Its user value is the modes. meta tells it from other userdata of its size. */
typedef struct handle { gbl_modes *modes; gbl_scope_kind kind; int64_t number; const void *meta; } handle;

/* The handle at index 1, or an error. A light userdata has no length; no recipe writes into a full one. */
static const handle *check_scope(lua_State *L) {
  const handle *h = lua_touserdata(L, 1);
  if (h && lua_rawlen(L, 1) == sizeof *h && h->meta == scope_meta) return h;
  return luaL_checkudata(L, 1, scope_meta);
}

/* Close the scope that the handle stands for; nothing when it is closed already. True when gradients came back on by
 * it. */
static bool close_handle(const handle *h) {
  gbl_modes *modes = h->modes;
  gbl_scope *inside = NULL, *scope = modes->top[h->kind];
  while (scope && scope->number != h->number) inside = scope, scope = scope->below;
  if (!scope) return false;
  bool grad = modes->now.grad;
  if (!inside) gbl_close_top(modes, h->kind);
  else {
    restore(&inside->before, &scope->before, h->kind);
    inside->below = scope->below;
    end_scope(modes, scope);
  }
  return modes->now.grad && !grad;
}

/* Also its end as a to-be-closed variable. */
static int scope_close(lua_State *L) {
  const handle *h = check_scope(L);
  if (close_handle(h)) gbl_collect(L);
  return 0;
}

static int scope_method_close(lua_State *L, gbl_call *call) {
  (void)call;
  return scope_close(L);
}

static const gbl_function scope_functions[] = {
  { scope_method_close, GB_SANDBOX_STRICT,
    "scope:close(): End the scope: what was before it holds again. Closing twice does nothing; so does collecting "
    "an open scope. Also "
    "its end as a to-be-closed variable. Example: local scope = gb.no_grad() scope:close()" },
  { NULL, 0, NULL },
};

static int scope_text(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, scope_meta);
  const gbl_scope *scope = h->modes->top[h->kind];
  while (scope && scope->number != h->number) scope = scope->below;
  if (scope) lua_pushfstring(L, "scope of %s", scope->what);
  else lua_pushliteral(L, "scope (closed)");
  return 1;
}

static void push_scope_meta(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, scope_meta) != LUA_TNIL) return;
  lua_pop(L, 1);
  if (!luaL_newmetatable(L, scope_meta)) return;
  static const luaL_Reg functions[] = { { "__close", scope_close }, { "__tostring", scope_text }, { NULL, NULL } };
  luaL_setfuncs(L, functions, 0);
  lua_createtable(L, 0, 1);
  gbl_define(L, scope_functions);
  gbl_set_raw(L, -2, "__index");
  lua_pushboolean(L, false);
  gbl_set_raw(L, -2, "__metatable");
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, scope_meta); /* found faster than by its name */
}

/* Push the modes of L, which is noted. They are kept at hand, for the coroutine that was noted last. */
static gbl_modes *push_noted_modes(lua_State *L, const gbl_state *state) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &noted_modes_key);
  if (state->noted == L && lua_touserdata(L, -1) == state->modes) return state->modes;
  lua_pop(L, 1);
  lua_pushthread(L);
  gbl_modes *modes = push_modes(L, state->context->modes);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &noted_modes_key);
  return modes;
}

/* Open a scope that sets the fields of its kind to those of `to`, and push its value. */
static void push_scope(lua_State *L, const gbl_state *state, gbl_scope_kind kind, const char *what, gb_modes to,
                       bool note_line) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  handle *h = lua_newuserdatauv(L, sizeof *h, 1);
  push_scope_meta(L);
  lua_setmetatable(L, -2);
  gbl_modes *modes = push_noted_modes(L, state);
  lua_setiuservalue(L, -2, 1);
  *h = (handle){ modes, kind, modes->scopes + 1, scope_meta };
  if (note_line) gbl_push_where(L);
  gbl_scope *scope = modes->spare ? modes->spare : gb_counted_alloc(state->context, sizeof *scope);
  if (!scope) gbl_check_status(L, gb_error_code(state->context));
  modes->spare = NULL;
  scope->below = modes->top[kind];
  scope->number = ++modes->scopes;
  scope->before = modes->now;
  scope->what = what;
  *scope->where = '\0';
  if (note_line) {
    strncat(scope->where, lua_tostring(L, -1), sizeof scope->where - 1);
    lua_pop(L, 1);
  }
  modes->top[kind] = scope;
  restore(&modes->now, &to, kind);
}

/* The function of a scope returned, perhaps after yields: what is above the scope, which lies at the bottom of the
 * stack and ends as this returns, is returned. */
static int finish_call(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  return lua_gettop(L) - 1;
}

/* Give out a scope; or, with a function at the index `fn`, call it inside the scope with the arguments after it. An
 * error inside ends the scope by its __close, with the traceback whole. */
static int scope_or_call(lua_State *L, const gbl_call *call, int fn, gbl_scope_kind kind, const char *what,
                         gb_modes to) {
  if (!fn) {
    if (gbl_argument(call, "arguments")->count > 0) return gbl_refuse(call, "'fn' is nil, but arguments for it follow");
    push_scope(L, call->state, kind, what, to, true);
    return 1;
  }
  lua_settop(L, call->top);
  push_scope(L, call->state, kind, what, to, false);
  lua_insert(L, 1);
  for (int i = 1; i < fn; i++) lua_remove(L, 2);
  lua_toclose(L, 1);
  lua_callk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, finish_call);
  return finish_call(L, LUA_OK, 0);
}

void gbl_push_grad_scope(lua_State *L, const char *what, bool grad) {
  gb_modes to = { .grad = grad };
  push_scope(L, gbl_get_state(L), GBL_SCOPE_GRAD, what, to, false);
}

void gbl_end_scope(lua_State *L, int index) { close_handle(lua_touserdata(L, index)); }

bool gbl_push_open_scope(lua_State *L) {
  gbl_modes *modes = gbl_modes_of(L);
  const gbl_scope *last = NULL;
  for (int kind = 0; kind < GBL_SCOPE_KINDS; kind++)
    if (modes->top[kind] && (!last || modes->top[kind]->number > last->number)) last = modes->top[kind];
  if (!last) return false;
  lua_pushfstring(L, "%sthe scope of %s that was opened here is still open at the end of the chunk; write 'local _ "
                     "<close> = %s()', "
                     "or call its :close()", last->where, last->what, last->what);
  return true;
}

/* ====} */

/* {==== Gradients ==== */

static int no_grad(lua_State *L, gbl_call *call) {
  return scope_or_call(L, call, gbl_argument(call, "fn")->index, GBL_SCOPE_GRAD, "gb.no_grad",
                       (gb_modes){ .grad = false });
}

static int enable_grad(lua_State *L, gbl_call *call) {
  return scope_or_call(L, call, gbl_argument(call, "fn")->index, GBL_SCOPE_GRAD, "gb.enable_grad",
                       (gb_modes){ .grad = true });
}

static int anomaly(lua_State *L, gbl_call *call) {
  return scope_or_call(L, call, gbl_argument(call, "fn")->index, GBL_SCOPE_ANOMALY, "gb.anomaly",
                       (gb_modes){ .anomaly = true });
}

static int set_grad_enabled(lua_State *L, gbl_call *call) {
  (void)L;
  gb_set_grad_enabled(call->state->context, gbl_boolean(call, "on"));
  return 0;
}

static int is_grad_enabled(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, gb_is_grad_enabled(call->state->context));
  return 1;
}

static const gbl_function gradient_functions[] = {
  { no_grad, GB_SANDBOX_STRICT,
    "gb.no_grad(fn?: function, arguments...: any) -> any: Inside it nothing is recorded for gradients. With a "
    "function: calls it with "
    "the arguments that follow and returns what it returns; without: a scope, which :close() or a to-be-closed "
    "variable ends. Example: "
    "local y = gb.no_grad(function() return model(x) end)" },
  { enable_grad, GB_SANDBOX_STRICT,
    "gb.enable_grad(fn?: function, arguments...: any) -> any: Inside it ops are recorded for gradients; forms as "
    "no_grad's. Example: "
    "local y = gb.enable_grad(function() return model(x) end)" },
  { anomaly, GB_SANDBOX_STRICT,
    "gb.anomaly(fn?: function, arguments...: any) -> any: Report mistakes where they were made, at the cost of speed. "
    "Devices wait after every op, so that what a kernel found wrong is the error of that op, on the recipe's own "
    "line; and backward "
    "stops at the first gradient that is NaN, with the op and the line that called it. Forms as no_grad's. Errors: "
    "capturing a graph "
    "inside. Example: gb.anomaly(function() local x = gb.ones(2, { requires_grad = true }) x:sum():backward() end)" },
  { set_grad_enabled, GB_SANDBOX_STRICT,
    "gb.set_grad_enabled(on: bool): Recording for gradients on or off from here on, for the prompt. Example: "
    "gb.set_grad_enabled(true)" },
  { is_grad_enabled, GB_SANDBOX_STRICT,
    "gb.is_grad_enabled() -> bool: Are ops recorded for gradients here? Example: print(gb.is_grad_enabled())" },
  { NULL, 0, NULL },
};

/* ====} */

/* {==== Autocast ==== */

/* The dtype of a scope: float16 or bfloat16. */
static gb_dtype check_lower(const gbl_call *call, gb_dtype dtype) {
  if (!gb_is_16bit(dtype)) gbl_refuse(call, "the dtype is 'float16' or 'bfloat16', not '%s'", gb_dtype_name(dtype));
  return dtype;
}

/* {dtype =, enabled =}: the table at index is a copy. */
static gb_modes read_autocast_options(lua_State *L, const gbl_call *call, int index) {
  static const char *const known[] = { "dtype", "enabled", NULL };
  gbl_check_options(L, index, gbl_who(call), known);
  gb_modes to = { .autocast = gbl_option_boolean(L, index, gbl_who(call), "enabled", true) };
  to.lower = check_lower(call, gbl_option_dtype(L, index, gbl_who(call), "dtype", GB_BFLOAT16));
  return to;
}

/* What a precision asks for: by the field `autocast` of what is kept of it, which is false or a dtype. */
static gb_modes read_precision(lua_State *L, const gbl_call *call, const gbl_value *p) {
  gb_modes to = { .autocast = false, .lower = GB_BFLOAT16 };
  if (gbl_raw_field(L, p->own, "autocast") == LUA_TSTRING) {
    to.autocast = true;
    to.lower = check_lower(call, gbl_check_dtype(L, lua_gettop(L), gbl_who(call)));
  }
  lua_pop(L, 1);
  return to;
}

/* What the argument `precision` asks for: nothing (bfloat16), a dtype, true or false, options, or a precision. */
static gb_modes read_autocast(lua_State *L, const gbl_call *call, const gbl_value *p) {
  gb_modes to = { .autocast = true, .lower = GB_BFLOAT16 };
  if (!p->given || !strcmp(p->kind, "function")) return to;
  if (!strcmp(p->kind, "dtype")) to.lower = check_lower(call, p->dtype);
  else if (!strcmp(p->kind, "bool")) to.autocast = p->integer != 0;
  else if (!strcmp(p->kind, "precision")) return read_precision(L, call, p);
  else return read_autocast_options(L, call, p->index);
  return to;
}

static int autocast(lua_State *L, gbl_call *call) {
  const gbl_value *precision = gbl_argument(call, "precision"), *fn = gbl_argument(call, "fn");
  bool leads = precision->given && !strcmp(precision->kind, "function"); /* autocast(fn, ...) */
  if (!leads && fn->given && !gbl_is_callable(L, fn->index))
    return gbl_refuse(call, "'fn' must be a function, got %s", gbl_type_name(L, fn->index));
  return scope_or_call(L, call, leads ? precision->index : fn->index, GBL_SCOPE_AUTOCAST, "amp.autocast",
                       read_autocast(L, call, precision));
}

static int disable(lua_State *L, gbl_call *call) {
  gb_modes to = *call->state->context->modes;
  to.autocast = false;
  return scope_or_call(L, call, gbl_argument(call, "fn")->index, GBL_SCOPE_AUTOCAST, "amp.disable", to);
}

static int set_autocast(lua_State *L, gbl_call *call) {
  gb_modes to = read_autocast(L, call, gbl_argument(call, "precision"));
  restore(call->state->context->modes, &to, GBL_SCOPE_AUTOCAST);
  return 0;
}

static int is_enabled(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, call->state->context->modes->autocast);
  return 1;
}

static int autocast_dtype(lua_State *L, gbl_call *call) {
  const gb_modes *modes = call->state->context->modes;
  if (modes->autocast) gbl_push_dtype_name(L, modes->lower);
  else lua_pushnil(L);
  return 1;
}

static const gbl_function autocast_functions[] = {
  { autocast, GB_SANDBOX_STRICT,
    "gb.amp.autocast(precision?: precision|dtype|function|table, fn?: any, arguments...: any) -> any: Inside it "
    "each op runs in "
    "the dtype of its autocast class. precision: nothing (bfloat16), a dtype's name, { dtype =, enabled = }, or "
    "what amp.precision "
    "gave. With a function: calls it with the arguments that follow and returns what it returns; without: a scope. "
    "Errors: a dtype "
    "that is not float16 or bfloat16. Example: local y = gb.amp.autocast({ dtype = \"float16\" }, function() return "
    "model(x) end)" },
  { disable, GB_SANDBOX_STRICT,
    "gb.amp.disable(fn?: function, arguments...: any) -> any: Inside it autocast is off; forms as no_grad's. "
    "Example: local y = "
    "gb.amp.disable(function() return model(x) end)" },
  { set_autocast, GB_SANDBOX_STRICT,
    "gb.amp.set_autocast(precision: bool|precision|dtype|table): Autocast from here on: false, true (bfloat16), or "
    "what autocast "
    "takes; for the prompt. Example: gb.amp.set_autocast(false)" },
  { is_enabled, GB_SANDBOX_STRICT, "gb.amp.is_enabled() -> bool: True if autocast is on here. Example: "
                                   "print(gb.amp.is_enabled())" },
  { autocast_dtype, GB_SANDBOX_STRICT,
    "gb.amp.dtype() -> string: What ops of the class `lower` run in here, or nil where autocast is off. Example: "
    "print(gb.amp.dtype())" },
  { NULL, 0, NULL },
};

/* ====} */

/* {==== coroutine.create, resume, wrap and close that hand modes on exactly and note what runs ====
 * As in the standard library (lcorolib.c), with two additions: a coroutine that is resumed for the first time gets a
 * copy of the modes of
 * whoever resumes it (elsewhere, in a stock Lua, it gets those of the coroutine that last called the library), and who
 * runs is noted, for
 * requests to stop. */

/* Move arguments over, resume, and move results back; their number, or -1 with an error value. */
static int resume_with(lua_State *L, lua_State *co, int arguments) {
  if (!lua_checkstack(co, arguments)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  if (lua_status(co) == LUA_OK && lua_gettop(co) > 0) gbl_modes_inherit(L, co);
  lua_xmove(L, co, arguments);
  gbl_state *state = gbl_get_state(L);
  gbl_note_current(state, co);
  int results, status = lua_resume(co, L, arguments, &results);
  gbl_note_current(state, L);
  if (status == LUA_OK || status == LUA_YIELD) {
    if (lua_checkstack(L, results + 1)) {
      lua_xmove(co, L, results);
      return results;
    }
    lua_pop(co, results);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  lua_xmove(co, L, 1);
  return -1;
}

static int resume(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  luaL_argexpected(L, co, 1, "thread");
  int results = resume_with(L, co, lua_gettop(L) - 1);
  lua_pushboolean(L, results >= 0);
  if (results < 0) results = 1;
  lua_insert(L, -(results + 1));
  return results + 1;
}

/* Close co's pending variables, which runs code in co; an error value is left on its stack. */
static int reset(lua_State *L, lua_State *co) {
  gbl_state *state = gbl_get_state(L);
  if (lua_checkstack(co, 8)) gbl_modes_of(co)->handler = NULL; /* its frames are gone before variables close */
  gbl_note_current(state, co);
  int status = lua_resetthread(co);
  gbl_note_current(state, L);
  return status;
}

/* coroutine.close(co). One that runs, or waits for another one, is refused in the words of the standard library. */
static int close_coroutine(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  lua_Debug frame;
  luaL_argexpected(L, co, 1, "thread");
  if (lua_status(co) == LUA_OK && (co == L || lua_getstack(co, 0, &frame)))
    return luaL_error(L, "cannot close a %s coroutine", co == L ? "running" : "normal");
  bool closed = reset(L, co) == LUA_OK;
  lua_pushboolean(L, closed);
  if (closed) return 1;
  lua_xmove(co, L, 1);
  return 2;
}

/* What coroutine.wrap returns: an error is passed on, with the position, after the coroutine was closed. */
static int wrapped(lua_State *L) {
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  int results = resume_with(L, co, lua_gettop(L));
  if (results >= 0) return results;
  int status = lua_status(co);
  if (status != LUA_OK && status != LUA_YIELD) {
    reset(L, co);
    lua_xmove(co, L, 1);
  }
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int create(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  gbl_charge_coroutine(L);
  lua_State *co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  return 1;
}

static int wrap(lua_State *L) {
  create(L);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

void gbl_replace_coroutine(lua_State *L) {
  if (gbl_push_global(L, "coroutine") == LUA_TTABLE) {
    lua_pushcfunction(L, resume);
    gbl_set_raw(L, -2, "resume");
    lua_pushcfunction(L, wrap);
    gbl_set_raw(L, -2, "wrap");
    lua_pushcfunction(L, create);
    gbl_set_raw(L, -2, "create");
    lua_pushcfunction(L, close_coroutine);
    gbl_set_raw(L, -2, "close");
  }
  lua_pop(L, 1);
  gbl_replace_xpcall(L);
}

/* ====} */

void gbl_open_modes(lua_State *L) {
  push_scope_meta(L); /* now, so that its records are there */
  lua_pop(L, 1);
  gbl_define(L, gradient_functions);
  gbl_push_module(L, "amp");
  gbl_define(L, autocast_functions);
  lua_pop(L, 1);
}
