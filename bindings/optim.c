/* optim.c - the native half of gb.optim: an object per optimizer. The Lua half (gibbous/optim.lua) wraps it in the
 * classes that recipes see.
 *
 * The optimizer holds its parameters in C; a list of their Lua values is kept as a user value, so that the same values
 * come back. */
#include <string.h>

#include "objects.h"
#include "reader.h"

static void release(void *object) { gb_optimizer_release(object); }

/* Raise: there is no such option. Names the nearest that this kind has. */
static void unknown_option(lua_State *L, gb_optimizer_kind kind, const char *name) {
  const gb_optimizer_info *info = gb_optimizer_info_of(kind);
  const char **known = lua_newuserdatauv(L, sizeof *known * (size_t)(info->n_hypers + 1), 0);
  for (int i = 0; i < info->n_hypers; i++) known[i] = info->hypers[i].name;
  known[info->n_hypers] = NULL;
  const char *near = gbl_nearest(name, known);
  gbl_error(L, "optimizer: there is no option '%s' of %s%s%s%s", name, info->name, near ? "; did you mean '" : "",
            near ? near : "", near ? "'?" : "");
}

/* A number that the hyperparameter can have. */
static double check_value(lua_State *L, int index, const gb_hyper *hyper) {
  double value = gbl_check_number(L, index, "optimizer", hyper->name);
  const char *must = gb_hyper_refuses(hyper, value);
  char got[40];
  if (must)
    gbl_error(L, "optimizer: '%s' must be %s, got %s", hyper->name, must, gbl_number_text(L, index, got, sizeof got));
  return value;
}

static void set_list(lua_State *L, const gb_hyper *hyper, double *at, int index) {
  double list[3];
  const char *count = hyper->count == 2 ? "two" : "three";
  if (!lua_istable(L, index))
    gbl_error(L, "optimizer: '%s' must be a list of %s numbers, got %s", hyper->name, count, gbl_type_name(L, index));
  for (int i = 0; i < hyper->count; i++) {
    if (lua_rawgeti(L, index, i + 1) != LUA_TNUMBER)
      gbl_error(L, "optimizer: '%s' must be a list of %s numbers, but [%d] is %s", hyper->name, count, i + 1,
                gbl_type_name(L, -1));
    list[i] = check_value(L, lua_gettop(L), hyper);
    lua_pop(L, 1);
  }
  memcpy(at, list, sizeof *at * (size_t)hyper->count);
}

/* A choice's word number `place`, and its length; NULL: there is none. */
static const char *word_of(const gb_hyper *hyper, int place, size_t *length) {
  const char *word = hyper->preset_text;
  while (place-- > 0)
    if ((word = strchr(word, '|')) != NULL) word++;
    else return NULL;
  *length = strcspn(word, "|");
  return word;
}

static void set_choice(lua_State *L, const gb_hyper *hyper, double *at, int index) {
  size_t given, length;
  if (lua_type(L, index) != LUA_TSTRING)
    gbl_error(L, "optimizer: '%s' must be one of %s, got %s", hyper->name, hyper->preset_text, gbl_type_name(L, index));
  const char *text = lua_tolstring(L, index, &given), *word;
  for (int i = 0; (word = word_of(hyper, i, &length)) != NULL; i++)
    if (given == length && !memcmp(text, word, length)) {
      *at = i;
      return;
    }
  gbl_error(L, "optimizer: '%s' must be one of %s, got '%s'", hyper->name, hyper->preset_text, text);
}

/* Set one hyperparameter from the value at index. */
static void set_option(lua_State *L, gb_optimizer_kind kind, gb_optim_options *options, const char *name, int index) {
  const gb_hyper *hyper = gb_optimizer_hyper(kind, name);
  if (!hyper) {
    unknown_option(L, kind, name);
    return;
  }
  double *at = &options->numbers.number[hyper->at];
  if (hyper->type == GB_HYPER_LIST) set_list(L, hyper, at, index);
  else if (hyper->type == GB_HYPER_CHOICE) set_choice(L, hyper, at, index);
  else if (hyper->type == GB_HYPER_NUMBER) *at = check_value(L, index, hyper);
  else {
    if (!lua_isboolean(L, index))
      gbl_error(L, "optimizer: '%s' must be true or false, got %s", name, gbl_type_name(L, index));
    *at = lua_toboolean(L, index);
  }
}

/* Push the value of a hyperparameter. */
static void push_option(lua_State *L, const gb_hyper *hyper, const gb_optim_options *options) {
  const double *at = &options->numbers.number[hyper->at];
  if (hyper->type == GB_HYPER_NUMBER) lua_pushnumber(L, *at);
  else if (hyper->type == GB_HYPER_FLAG) lua_pushboolean(L, *at != 0);
  else if (hyper->type == GB_HYPER_CHOICE) {
    size_t length;
    const char *word = word_of(hyper, (int)*at, &length);
    lua_pushlstring(L, word ? word : "", word ? length : 0);
  } else {
    lua_createtable(L, hyper->count, 0);
    for (int i = 0; i < hyper->count; i++) lua_pushnumber(L, at[i]), lua_rawseti(L, -2, i + 1);
  }
}

/* optimizer(kind): the kind by its name. */
static int new(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *name = luaL_checkstring(L, 1);
  int kind = 0;
  while (kind < GB_OPTIMIZERS && strcmp(gb_optimizer_info_of((gb_optimizer_kind)kind)->name, name)) kind++;
  if (kind == GB_OPTIMIZERS) return gbl_error(L, "optimizer: there is no kind '%s'", name);
  void **slot = gbl_new_object(L, &gbl_optimizer_type, 1);
  lua_newtable(L);
  lua_setiuservalue(L, -2, 1);
  gb_optimizer *optimizer = NULL;
  gb_status status = gb_optimizer_new(context, (gb_optimizer_kind)kind, &optimizer);
  *slot = optimizer;
  gbl_check_status(L, status);
  return 1;
}

/* Push the record of a kind: its options, what it is, their defaults, and an example. */
static void push_record(lua_State *L, const gb_optimizer_info *info) {
  static const char *const types[] = { [GB_HYPER_NUMBER] = "number", [GB_HYPER_LIST] = "list", [GB_HYPER_FLAG] = "bool",
                                       [GB_HYPER_CHOICE] = "string" };
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, "gb.optim.");
  luaL_addstring(&b, info->name);
  luaL_addstring(&b, "(params: any; ");
  for (int i = 0; i < info->n_hypers; i++) {
    lua_pushfstring(L, "%s%s?: %s", i ? ", " : "", info->hypers[i].name, types[info->hypers[i].type]);
    luaL_addvalue(&b);
  }
  luaL_addstring(&b, ") -> optimizer: ");
  luaL_addstring(&b, info->doc);
  luaL_addstring(&b, ", over a list of tensors, or of groups { params =, lr =, ... }. Defaults: ");
  for (int i = 0; i < info->n_hypers; i++) {
    lua_pushfstring(L, "%s%s = %s", i ? ", " : "", info->hypers[i].name, info->hypers[i].preset_text);
    luaL_addvalue(&b);
  }
  lua_pushfstring(L, ". Example: local opt = gb.optim.%s(%s, { %s = %s })", info->name,
                  info->shaped ? "{ gb.nn.Linear(2, 2).weight }" : "gb.nn.Linear(2, 2):parameters()",
                      info->hypers[0].name,
                  info->hypers[0].preset_text);
  luaL_addvalue(&b);
  luaL_pushresult(&b);
}

/* optimizer_kinds(): a list of { name =, record = }. */
static int kinds(lua_State *L) {
  lua_createtable(L, GB_OPTIMIZERS, 0);
  for (int i = 0; i < GB_OPTIMIZERS; i++) {
    const gb_optimizer_info *info = gb_optimizer_info_of((gb_optimizer_kind)i);
    lua_createtable(L, 0, 2);
    lua_pushstring(L, info->name);
    gbl_set_raw(L, -2, "name");
    push_record(L, info);
    gbl_set_raw(L, -2, "record");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* optimizer:add_group(parameters, names, options): lists and a table that the reader made. */
static int add_group(lua_State *L) {
  gbl_enter(L);
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  gb_optimizer_kind kind = gb_optimizer_get_kind(optimizer);
  gb_optim_options options;
  gb_optim_options_init(kind, &options, sizeof options);
  for (lua_pushnil(L); lua_next(L, 4); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) return gbl_error(L, "optimizer: the options of a group have names");
    set_option(L, kind, &options, gbl_check_name(L, -2, "optimizer"), lua_gettop(L));
  }
  int count;
  gb_tensor **parameters = gbl_check_tensors(L, 2, "optimizer", "parameters", &count);
  if (count == 0) return gbl_error(L, "optimizer: the list of parameters is empty");
  const char **names = lua_newuserdatauv(L, sizeof *names * (size_t)count, 0);
  lua_getiuservalue(L, 1, 1);
  lua_Integer held = (lua_Integer)lua_rawlen(L, -1);
  for (int i = 0; i < count; i++) {
    lua_rawgeti(L, 2, i + 1);
    gbl_share_tensor(L, lua_gettop(L));
    lua_rawseti(L, -2, ++held);
    names[i] = NULL;
    if (!lua_istable(L, 3)) continue;
    lua_rawgeti(L, 3, i + 1);
    if (lua_type(L, -1) == LUA_TSTRING) names[i] = gbl_check_name(L, -1, "optimizer"); /* the table of names keeps it */
    else if (!lua_isnil(L, -1))
      return gbl_error(L, "optimizer: names are strings, but [%d] is %s", i + 1, gbl_type_name(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  gb_status status = gb_optimizer_add_group(optimizer, parameters, names, count, &options);
  if (status == GB_ESTATE) { /* another optimizer has them: where nobody holds that one, it is collected */
    lua_gc(L, LUA_GCCOLLECT);
    status = gb_optimizer_add_group(optimizer, parameters, names, count, &options);
  }
  gbl_check_status(L, status);
  return 0;
}

static int step(lua_State *L, gbl_call *call) {
  gbl_note_step(L);
  gbl_check_status(L, gb_optimizer_step(gbl_object(call, "self")));
  gbl_collect(L);
  return 0;
}

static int zero_grad(lua_State *L, gbl_call *call) {
  gbl_step_boundary(L);
  gbl_check_status(L, gb_optimizer_zero_grad(gbl_object(call, "self")));
  return 0;
}

static const gbl_function public_methods[] = {
  { step, GB_SANDBOX_STRICT | GBL_CALLS,
    "Optimizer:step(): Change the parameters by their gradients; those without a gradient stay as they are. Example: "
    "loss:backward() opt:step()" },
  { zero_grad, GB_SANDBOX_STRICT | GBL_CALLS, "Optimizer:zero_grad(): Forget the gradients of all parameters. "
                                              "Example: opt:zero_grad()" },
  { NULL, 0, NULL },
};

static gb_optim_options *check_group(lua_State *L, gb_optimizer *optimizer) {
  lua_Integer i = luaL_checkinteger(L, 2);
  if (i < 1 || i > gb_optimizer_groups(optimizer)) gbl_error(L, "optimizer: there is no group %d", (int)i);
  return gb_optimizer_group(optimizer, (int)i - 1);
}

/* optimizer:get(group, name): a hyperparameter, or nil where there is none of that name; without a name a table of
 * all. */
static int get(lua_State *L) {
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  const gb_optim_options *options = check_group(L, optimizer);
  gb_optimizer_kind kind = gb_optimizer_get_kind(optimizer);
  const gb_optimizer_info *info = gb_optimizer_info_of(kind);
  if (lua_gettop(L) > 2) {
    const char *name = luaL_checkstring(L, 3);
    const gb_hyper *hyper = gb_optimizer_hyper(kind, name);
    if (!hyper || strlen(name) != lua_rawlen(L, 3)) return 0;
    push_option(L, hyper, options);
    return 1;
  }
  lua_createtable(L, 0, info->n_hypers);
  for (int i = 0; i < info->n_hypers; i++) {
    push_option(L, &info->hypers[i], options);
    gbl_set_raw(L, -2, info->hypers[i].name);
  }
  return 1;
}

static int set(lua_State *L) {
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  gb_optim_options *options = check_group(L, optimizer);
  luaL_checkany(L, 4);
  luaL_checkstring(L, 3);
  set_option(L, gb_optimizer_get_kind(optimizer), options, gbl_check_name(L, 3, "optimizer"), 4);
  return 0;
}

static int groups(lua_State *L) {
  lua_pushinteger(L, gb_optimizer_groups(gbl_check_object(L, 1, &gbl_optimizer_type)));
  return 1;
}

/* optimizer:params(): a list of { param =, group =, name = } in order of adoption. */
static int params(lua_State *L) {
  gbl_enter(L);
  const gb_optim_param *list;
  int count = gb_optimizer_params(gbl_check_object(L, 1, &gbl_optimizer_type), &list);
  lua_createtable(L, count, 0);
  for (int i = 0; i < count; i++) {
    lua_createtable(L, 0, 3);
    gb_tensor_retain(list[i].parameter);
    gbl_push_tensor_shared(L, list[i].parameter);
    gbl_set_raw(L, -2, "param");
    lua_pushinteger(L, list[i].group + 1);
    gbl_set_raw(L, -2, "group");
    lua_pushstring(L, list[i].name);
    gbl_set_raw(L, -2, "name");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* optimizer:state(i): the state of parameter i by name (tensors over the optimizer's own memory), and its steps. */
static int state(lua_State *L) {
  gbl_enter(L);
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  const gb_optim_param *list;
  lua_Integer i = luaL_checkinteger(L, 2);
  if (i < 1 || i > gb_optimizer_params(optimizer, &list))
    return gbl_error(L, "optimizer: there is no parameter %d", (int)i);
  enum { MOST = GB_OPTIM_STATE_TENSORS };
  gb_optim_state states[MOST];
  gbl_box *boxes[MOST];
  int64_t steps;
  lua_settop(L, 2);
  for (int k = 0; k < MOST; k++) boxes[k] = gbl_new_tensor(L); /* from 3 on: they hold what comes, whatever raises after
                                                                  that */
  int count = gb_optimizer_state(optimizer, (int)i - 1, states, &steps);
  for (int k = 0; k < count; k++) boxes[k]->tensor = states[k].tensor;
  if (count < 0) gbl_check_status(L, GB_EMEMORY);
  lua_createtable(L, 0, count);
  for (int k = 0; k < count; k++) {
    lua_pushvalue(L, 3 + k);
    gbl_set_raw(L, -2, states[k].name);
  }
  lua_pushinteger(L, steps);
  return 2;
}

static int set_steps(lua_State *L) {
  gb_optimizer *optimizer = gbl_check_object(L, 1, &gbl_optimizer_type);
  const gb_optim_param *list;
  lua_Integer i = luaL_checkinteger(L, 2), steps = luaL_checkinteger(L, 3);
  if (i < 1 || i > gb_optimizer_params(optimizer, &list))
    return gbl_error(L, "optimizer: the state names a parameter %d", (int)i);
  gbl_check_status(L, gb_optimizer_set_steps(optimizer, (int)i - 1, steps));
  return 0;
}

/* Of the native object, which recipes do not see. */
static const luaL_Reg methods[] = {
  { "add_group", add_group }, { "get", get }, { "set", set }, { "groups", groups }, { "params", params },
      { "state", state },
  { "set_steps", set_steps }, { NULL, NULL },
};

const gbl_type gbl_optimizer_type = { "gibbous.optimizer", release, methods, NULL, NULL };

/* {==== clipping ==== */

static int clip_grad_norm(lua_State *L, gbl_call *call) {
  const gbl_value *parameters = gbl_argument(call, "parameters");
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_clip_grad_norm_tensor(call->state->context, parameters->tensors, parameters->count,
                                               gbl_number(call, "max_norm"),
                                               gbl_number(call, "norm_type"), gbl_boolean(call, "error_if_nonfinite"),
                                                   &box->tensor));
  gbl_finish_measure(L);
  return 1;
}

static int clip_grad_value(lua_State *L, gbl_call *call) {
  (void)L;
  const gbl_value *parameters = gbl_argument(call, "parameters");
  gbl_check_status(L, gb_clip_grad_value(call->state->context, parameters->tensors, parameters->count,
                                         gbl_number(call, "value")));
  return 0;
}

static const gbl_function clipping[] = {
  { clip_grad_norm, GB_SANDBOX_STRICT,
    "gb.nn.utils.clip_grad_norm_(parameters: tensors, max_norm: number, norm_type: number = 2, error_if_nonfinite: "
    "bool = false) "
    "-> number: Scale the gradients so that their norm together is at most max_norm; returns the norm before, on a "
    "device as a "
    "tensor, so that nothing waits for it. Where it is inf or NaN and no scaler skips the step, gradients become 0 "
    "or NaN, as in "
    "PyTorch. Errors: such a norm, where error_if_nonfinite is true. Example: "
    "gb.nn.utils.clip_grad_norm_(model:parameters(), 1.0)" },
  { clip_grad_value, GB_SANDBOX_STRICT,
    "gb.nn.utils.clip_grad_value_(parameters: tensors, value: number): Limit each element of the gradients to "
    "-value .. value. "
    "Example: gb.nn.utils.clip_grad_value_(model:parameters(), 0.5)" },
  { NULL, 0, NULL },
};

/* ====} */

void gbl_open_optim(lua_State *L) {
  gbl_new_type(L, &gbl_optimizer_type);
  gbl_push_module(L, "optim");
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  lua_pushcfunction(L, new);
  gbl_set_raw(L, -2, "optimizer");
  lua_pushcfunction(L, kinds);
  gbl_set_raw(L, -2, "optimizer_kinds");
  gbl_push_module(L, "Optimizer"); /* the class, which the Lua half completes */
  gbl_define(L, public_methods);
  lua_pop(L, 2);
  gbl_push_module(L, "nn");
  gbl_push_module(L, "utils");
  gbl_define(L, clipping);
  lua_pop(L, 2);
}
