/* arguments.c - reading values that Lua passes: dtypes, devices, integers, shapes, positions, and the trailing table of
 * options.
 *
 * Positions count from 1 in Lua and from 0 in the engine, and this is the one place that converts. A float with an
 * integer value is an integer. Every error says which function and which argument. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "binding.h"

/* {==== options of PyTorch that have another name or form here ==== */

static const struct { const char *name, *here; } ported_options[] = {
  { "axis", "it is 'dim' here, counted from 1" },
  { "unbiased", "it is 'correction' here: 0 for unbiased = False" },
  { "inplace", "leave it out: in place are the methods of tensors that end in '_'" },
  { "T_max", "it is 'steps' here" }, { "eta_min", "it is 'last' here, a factor on the initial lr" },
  { "start_factor", "it is 'first' here" }, { "end_factor", "it is 'last' here" }, { "lr_lambda", "it is 'fn' here" },
  { "start_dim", "it is 'first' here, counted from 1" }, { "end_dim", "it is 'last' here" },
  { "size_average", "it is 'reduction' here: 'mean', 'sum' or 'none'" },
  { "reduce", "it is 'reduction' here: 'mean', 'sum' or 'none'" },
  { "device_type", "leave it out: a scope holds on every device" },
};

const char *gbl_ported_option(const char *name) {
  for (size_t i = 0; i < sizeof ported_options / sizeof *ported_options; i++)
    if (!strcmp(ported_options[i].name, name)) return ported_options[i].here;
  return NULL;
}

/* ====} */

/* {==== dtypes and devices ==== */

static const char *const dtype_names[] = {
#define NAME(NAME_, name, ...) #name,
  GB_DTYPE_LIST(NAME)
#undef NAME
  NULL
};

/* What PyTorch's methods and older names call a dtype. */
static const struct { const char *name; gb_dtype dtype; } ported_dtypes[] = {
  { "double", GB_FLOAT64 }, { "float", GB_FLOAT32 }, { "half", GB_FLOAT16 }, { "long", GB_INT64 }, { "int", GB_INT32 },
  { "short", GB_INT16 }, { "char", GB_INT8 }, { "byte", GB_UINT8 },
};

const char *gbl_check_name(lua_State *L, int arg, const char *who) {
  const char *name = lua_tostring(L, arg);
  if (strlen(name) != lua_rawlen(L, arg))
    gbl_error(L, "%s: the string '%s' goes on behind a NUL; no name holds one", who, name);
  return name;
}

gb_dtype gbl_check_dtype(lua_State *L, int arg, const char *who) {
  if (lua_type(L, arg) != LUA_TSTRING)
    gbl_error(L, "%s: expects the name of a dtype, such as 'float32', got %s", who, gbl_type_name(L, arg));
  const char *name = gbl_check_name(L, arg, who);
  gb_dtype dtype = gb_dtype_from_name(name);
  if (dtype != GB_DTYPE_NONE) return dtype;
  for (size_t i = 0; i < sizeof ported_dtypes / sizeof *ported_dtypes; i++)
    if (!strcmp(name, ported_dtypes[i].name))
      gbl_error(L, "%s: unknown dtype '%s'; it is '%s' here", who, name, gb_dtype_name(ported_dtypes[i].dtype));
  if (!strcmp(name, "cpu") || !strncmp(name, "cuda", 4))
    gbl_error(L, "%s: '%s' is a device; here stands a dtype, such as 'bfloat16'", who, name);
  const char *nearest = gbl_nearest(name, dtype_names);
  if (nearest) gbl_error(L, "%s: unknown dtype '%s'; did you mean '%s'?", who, name, nearest);
  luaL_Buffer known;
  luaL_buffinit(L, &known);
  for (int i = 0; dtype_names[i]; i++) {
    luaL_addchar(&known, ' ');
    luaL_addstring(&known, dtype_names[i]);
  }
  luaL_pushresult(&known);
  gbl_error(L, "%s: unknown dtype '%s'; known are%s", who, name, lua_tostring(L, -1));
  return dtype;
}

void gbl_push_dtype_name(lua_State *L, gb_dtype dtype) { lua_pushstring(L, gb_dtype_name(dtype)); }

gb_device gbl_check_device(lua_State *L, int arg) {
  gb_device device;
  if (lua_type(L, arg) != LUA_TSTRING) gbl_error(L, "expects a device, such as 'cpu', got %s", gbl_type_name(L, arg));
  gbl_check_status(L, gb_device_parse(gbl_context(L), gbl_check_name(L, arg, "device"), &device));
  return device;
}

void gbl_push_device_name(lua_State *L, gb_device device) {
  char text[32];
  lua_pushstring(L, gb_device_text(gbl_get_state(L)->context, device, text, sizeof text));
}

/* ====} */

/* {==== numbers, shapes, positions ==== */

bool gbl_test_integer(lua_State *L, int arg, int64_t *out) {
  if (lua_type(L, arg) != LUA_TNUMBER) return false;
  int exact;
  *out = lua_tointegerx(L, arg, &exact);
  return exact;
}

int64_t gbl_check_integer(lua_State *L, int arg, const char *who, const char *name) {
  int64_t value = 0;
  if (gbl_test_integer(L, arg, &value)) return value;
  char got[40];
  if (lua_type(L, arg) == LUA_TNUMBER)
    gbl_error(L, "%s: '%s' must be an integer, got %s", who, name, gbl_number_text(L, arg, got, sizeof got));
  gbl_error(L, "%s: '%s' must be an integer, got %s", who, name, gbl_type_name(L, arg));
  return 0;
}

double gbl_check_number(lua_State *L, int arg, const char *who, const char *name) {
  if (lua_type(L, arg) != LUA_TNUMBER)
    gbl_error(L, "%s: '%s' must be a number, got %s", who, name, gbl_type_name(L, arg));
  return lua_tonumber(L, arg);
}

int64_t gbl_position(lua_State *L, int64_t position, const char *who, const char *name) {
  if (position == 0) gbl_error(L, "%s: %s 0: positions count from 1, and -1 is the last", who, name);
  return position > 0 ? position - 1 : position;
}

static void too_deep(lua_State *L, const char *who, int64_t count) {
  if (count > GB_MAX_NDIM) gbl_error(L, "%s: a shape has at most %d dimensions, got %" PRId64, who, GB_MAX_NDIM, count);
}

/* Does the table have names and no list part? Then it holds options. */
static bool has_names(lua_State *L, int arg) {
  if (lua_rawlen(L, arg) > 0) return false;
  lua_pushnil(L);
  if (!lua_next(L, arg)) return false;
  lua_pop(L, 2);
  return true;
}

int gbl_check_shape(lua_State *L, int arg, const char *who, int64_t shape[GB_MAX_NDIM], int *next) {
  int count = 0;
  if (lua_type(L, arg) == LUA_TTABLE && !has_names(L, arg)) {
    int64_t length = (int64_t)lua_rawlen(L, arg);
    too_deep(L, who, length);
    for (; count < length; count++) {
      lua_rawgeti(L, arg, count + 1);
      shape[count] = gbl_check_integer(L, lua_gettop(L), who, "shape");
      lua_pop(L, 1);
    }
    *next = arg + 1;
    return count;
  }
  for (; lua_type(L, arg + count) == LUA_TNUMBER; count++) {
    too_deep(L, who, count + 1);
    shape[count] = gbl_check_integer(L, arg + count, who, "shape");
  }
  *next = arg + count;
  return count;
}

/* ====} */

/* {==== lists of tensors ==== */

/* The list is copied first, into a table that the buffer keeps: what it holds stays, whatever becomes of the recipe's
 * table. */
gb_tensor **gbl_check_tensors(lua_State *L, int arg, const char *who, const char *name, int *count) {
  gb_tensor *single = gbl_test_tensor(L, arg);
  if (!single && lua_type(L, arg) != LUA_TTABLE)
    gbl_error(L, "%s: '%s' must be a tensor or a list of tensors, got %s", who, name, gbl_type_name(L, arg));
  arg = lua_absindex(L, arg);
  int64_t n = single ? 1 : (int64_t)lua_rawlen(L, arg);
  if (n > 1 << 20) gbl_error(L, "%s: '%s' has too many elements", who, name);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  lua_createtable(L, (int)n, 0);
  for (int i = 1; i <= n && !single; i++) {
    lua_rawgeti(L, arg, i);
    lua_rawseti(L, -2, i);
  }
  gb_tensor **list = lua_newuserdatauv(L, sizeof *list * (size_t)(n > 0 ? n : 1), 1);
  *count = (int)n;
  if (single) list[0] = single;
  for (int i = 0; i < n && !single; i++) {
    lua_rawgeti(L, -2, i + 1);
    list[i] = gbl_test_tensor(L, lua_gettop(L));
    if (!list[i])
      gbl_error(L, "%s: '%s' must hold tensors, but [%d] is %s", who, name, i + 1, gbl_type_name(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_insert(L, -2);
  lua_setiuservalue(L, -2, 1);
  return list;
}

/* ====} */

/* {==== options ==== */

static bool is_known(const char *key, const char *const *known) {
  while (*known && strcmp(*known, key)) known++;
  return *known != NULL;
}

void gbl_check_options(lua_State *L, int arg, const char *who, const char *const *known) {
  if (lua_isnoneornil(L, arg)) return;
  if (lua_type(L, arg) != LUA_TTABLE)
    gbl_error(L, "%s: expects a table of options, got %s", who, gbl_type_name(L, arg));
  luaL_checkstack(L, 4, GBL_NO_STACK);
  lua_pushnil(L);
  while (lua_next(L, arg)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      gbl_error(L, "%s: options have names, such as {%s = ...}", who, *known ? *known : "name");
    const char *key = gbl_check_name(L, -2, who);
    const char *nearest = is_known(key, known) ? key : gbl_nearest(key, known), *here = gbl_ported_option(key);
    if (here && nearest != key) gbl_error(L, "%s: unknown option '%s'; %s", who, key, here);
    if (nearest && nearest != key) gbl_error(L, "%s: unknown option '%s'; did you mean '%s'?", who, key, nearest);
    if (!nearest) {
      luaL_Buffer names;
      luaL_buffinit(L, &names);
      for (const char *const *name = known; *name; name++) {
        if (name != known) luaL_addstring(&names, ", ");
        luaL_addstring(&names, *name);
      }
      luaL_pushresult(&names);
      gbl_error(L, "%s: unknown option '%s'; it takes %s", who, key, *known ? lua_tostring(L, -1) : "none");
    }
    lua_pop(L, 1);
  }
}

bool gbl_push_option(lua_State *L, int arg, const char *name) {
  if (lua_type(L, arg) != LUA_TTABLE) return false;
  luaL_checkstack(L, 2, GBL_NO_STACK);
  arg = lua_absindex(L, arg);
  lua_pushstring(L, name);
  if (lua_rawget(L, arg) != LUA_TNIL) return true;
  lua_pop(L, 1);
  return false;
}

double gbl_option_number(lua_State *L, int arg, const char *who, const char *name, double otherwise) {
  if (!gbl_push_option(L, arg, name)) return otherwise;
  double value = gbl_check_number(L, lua_gettop(L), who, name);
  lua_pop(L, 1);
  return value;
}

int64_t gbl_option_integer(lua_State *L, int arg, const char *who, const char *name, int64_t otherwise) {
  if (!gbl_push_option(L, arg, name)) return otherwise;
  int64_t value = gbl_check_integer(L, lua_gettop(L), who, name);
  lua_pop(L, 1);
  return value;
}

bool gbl_option_boolean(lua_State *L, int arg, const char *who, const char *name, bool otherwise) {
  if (!gbl_push_option(L, arg, name)) return otherwise;
  if (!lua_isboolean(L, -1))
    gbl_error(L, "%s: '%s' must be true or false, got %s", who, name, gbl_type_name(L, lua_gettop(L)));
  bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

gb_dtype gbl_option_dtype(lua_State *L, int arg, const char *who, const char *name, gb_dtype otherwise) {
  if (!gbl_push_option(L, arg, name)) return otherwise;
  gb_dtype value = gbl_check_dtype(L, lua_gettop(L), who);
  lua_pop(L, 1);
  return value;
}

gb_device gbl_option_device(lua_State *L, int arg, const char *who, const char *name, gb_device otherwise) {
  if (!gbl_push_option(L, arg, name)) return otherwise;
  if (lua_type(L, -1) != LUA_TSTRING)
    gbl_error(L, "%s: '%s' must be a device, such as 'cpu', got %s", who, name, gbl_type_name(L, lua_gettop(L)));
  gb_device value = gbl_check_device(L, lua_gettop(L));
  lua_pop(L, 1);
  return value;
}

/* ====} */
