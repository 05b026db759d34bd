/* native.c - small things that the Lua half needs and recipes do not see: parameters, clocks, terminals, the table of
 * ops. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/numerics.h"
#include "base/text.h"
#include "binding.h"
#include "graph/rules.h"
#include "io/file.h"
#include "io/path.h"
#include "objects.h"
#include "ops/rnn.h"
#include "reader.h"
#include "step/room.h"
#include "watch/audit.h"

/* fail(text): raise with the recipe's line, however deep in the Lua half this is. */
static int fail(lua_State *L) { return gbl_error(L, "%s", luaL_checkstring(L, 1)); }

/* is_parameter(value) */
static int is_parameter(lua_State *L) {
  const gb_tensor *t = gbl_test_tensor(L, 1);
  lua_pushboolean(L, t && t->is_parameter);
  return 1;
}

/* parameter(tensor, requires_grad): the tensor itself, marked. A result of ops is detached first. */
static int parameter(lua_State *L) {
  gbl_enter(L);
  gb_tensor *t = gbl_check_tensor(L, 1);
  if (t->node || t->base) {
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, GB_RUN(gb_tensor_context(t), clone, &box->tensor, .x = t));
    gb_tensor *plain;
    gbl_check_status(L, gb_tensor_detach(box->tensor, &plain));
    gb_tensor_release(box->tensor);
    box->tensor = t = plain;
    gbl_finish_tensor(L);
  } else lua_settop(L, 2), lua_pushvalue(L, 1);
  if (gb_dtype_is_float((gb_dtype)t->dtype)) gbl_check_status(L, gb_tensor_set_requires_grad(t, lua_toboolean(L, 2)));
  t->is_parameter = true;
  if (t->storage->category == GB_MEM_OTHER && t->storage->block) {
    gb_pool_set_category(gb_context_pool(t->storage->context, t->storage->device), t->storage->block,
                         GB_MEM_PARAMETERS);
    t->storage->category = GB_MEM_PARAMETERS;
  }
  gbl_share_tensor(L, lua_gettop(L));
  return 1;
}

static int is_dtype(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  lua_pushboolean(L, strlen(name) == lua_rawlen(L, 1) && gb_dtype_from_name(name) != GB_DTYPE_NONE);
  return 1;
}

/* dtypes(): the table of dtypes as a list of { name, file }; file is its name in safetensors files. */
static int dtypes(lua_State *L) {
  static const struct { const char *name, *file; } rows[] = {
#define ROW(NAME, name, type, reading, category, digits, least, most, file, ...) { #name, file },
    GB_DTYPE_LIST(ROW)
#undef ROW
  };
  lua_createtable(L, GB_DTYPE_COUNT, 0);
  for (int i = 0; i < GB_DTYPE_COUNT; i++) {
    lua_createtable(L, 0, 2);
    lua_pushstring(L, rows[i].name), gbl_set_raw(L, -2, "name");
    lua_pushstring(L, rows[i].file), gbl_set_raw(L, -2, "file");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(const char *const *)a,
                                                                       *(const char *const *)b); }

enum { NEAREST_MOST = 4096 }; /* keys that are compared, each for about a microsecond */

/* nearest(text, table): "; did you mean 'x'?" for the nearest key of the table (of equals the first in the alphabet),
 * or "", as for a table of very many keys. */
static int nearest(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1))
    if (++n > NEAREST_MOST) return lua_pushliteral(L, ""), 1;
  const char **known = lua_newuserdatauv(L, sizeof *known * (n + 1), 0);
  n = 0;
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1))
    if (lua_type(L, -2) == LUA_TSTRING) known[n++] = lua_tostring(L, -2); /* the table keeps it */
  known[n] = NULL;
  qsort(known, n, sizeof *known, compare_texts);
  const char *near = gbl_nearest(text, known);
  if (near) lua_pushfstring(L, "; did you mean '%s'?", near);
  else lua_pushliteral(L, "");
  return 1;
}

/* convert_(tensor, device or nil, dtype or nil): in place, the tensor stays the one it is. */
static int convert(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_tensor *t = gbl_check_tensor(L, 1);
  gb_dtype dtype = lua_isnoneornil(L, 3) ? (gb_dtype)t->dtype : gbl_check_dtype(L, 3, "to");
  gb_device device = lua_isnoneornil(L, 2) ? t->storage->device : gbl_check_device(L, 2);
  bool move = device.type != t->storage->device.type || device.index != t->storage->device.index;
  if (dtype == (gb_dtype)t->dtype && !move) return 0;
  gbl_box *box = gbl_new_tensor(L);
  bool grad = gb_set_grad_enabled(context, false);
  gb_status status = gb_op_cast(context, t, dtype, &box->tensor);
  gb_set_grad_enabled(context, grad);
  gbl_check_status(L, status);
  if (move) {
    gbl_box *moved = gbl_new_tensor(L);
    gbl_check_status(L, gb_tensor_on(box->tensor, device, &moved->tensor));
    box = moved;
  }
  gbl_check_status(L, gb_tensor_set_data(t, box->tensor));
  return 0;
}

/* channels_last(x): a tensor of x's values whose memory is ordered n, h, w, c. */
static int channels_last(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_tensor *x = gbl_check_tensor(L, 1);
  if (x->ndim != 4) return gbl_error(L, "channels_last: the tensor has %d dimensions, it needs 4", x->ndim);
  int64_t c = x->shape[1], h = x->shape[2], w = x->shape[3];
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_new_as(context, (gb_dtype)x->dtype, 4, x->shape, (int64_t[]){ h * w * c, 1, w * c, c },
                                       x->storage->device,
                                       GB_MEM_OTHER, &box->tensor));
  gbl_check_status(L, gb_apply_(context, GB_OP_copy, (gb_tensor *[]){ box->tensor, x }, 2, NULL));
  gbl_finish_tensor(L);
  return 1;
}

/* Seconds of a clock that only goes forward. */
static int clock_seconds(lua_State *L) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  lua_pushnumber(L, (lua_Number)now.tv_sec + 1e-9 * (lua_Number)now.tv_nsec);
  return 1;
}

/* synchronize(): waits until every device has done what it was asked to. */
static int synchronize(lua_State *L) {
  gb_context *context = gbl_context(L);
  for (int slot = 0; slot < GB_DEVICE_SLOTS; slot++) gbl_check_status(L, gb_synchronize(context, gb_slot_device(slot)));
  return 0;
}

/* drop(value): the handle of a tensor that nobody else can have ends; any other value is let be. */
static int drop(lua_State *L) {
  if (gbl_tensor_at(L, gbl_upvalue(L), 1)) gbl_end_handle(L, 1);
  return 0;
}

/* is_watched(): does a tool want ranges, or an audit the modules that are called? */
static int is_watched(lua_State *L) {
  const gb_context *context = gbl_upvalue(L)->context;
  lua_pushboolean(L, context->ranges || gb_audit_running(context));
  return 1;
}

/* range_push(name), range_pop(): a range of the Lua half in the timeline. */
static int range_push(lua_State *L) {
  gb_range_push(gbl_get_state(L)->context, luaL_checkstring(L, 1));
  return 0;
}

static int range_pop(lua_State *L) {
  gb_range_pop(gbl_get_state(L)->context);
  return 0;
}

/* Is somebody looking at standard error? In a host it is not ours. */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, !gbl_enter(L)->host && isatty(STDERR_FILENO));
  return 1;
}

/* step_boundary(): between two batches. What the last one was made into is dead where nothing was trained (evaluation),
 * so that it need not add up until the loop ends. */
static int step_boundary(lua_State *L) {
  gbl_step_boundary(L);
  gbl_collect(L);
  return 0;
}

/* flush(): what was printed is to be seen; in a host, print writes to no stream. */
static int flush(lua_State *L) {
  if (!gbl_enter(L)->host) fflush(stdout);
  return 0;
}

/* finish(): ends the script without a failure; the executable knows the value. */
static int finish(lua_State *L) {
  gbl_raw_field(L, LUA_REGISTRYINDEX, "gibbous.finish");
  return lua_error(L);
}

/* command_line(): the table arg as scripts get it, of which [0] is the script; a copy, empty where there is none. */
static int command_line(lua_State *L) {
  if (gbl_push_global(L, "arg") == LUA_TTABLE) gbl_push_copy(L, -1, false, "args");
  else lua_newtable(L);
  return 1;
}

/* shown(value): the text of a value of a recipe for an error: of tables and objects what they are, without a call of
 * a metamethod. */
static int shown(lua_State *L) {
  int type = lua_type(L, 1);
  lua_settop(L, 1);
  if (type == LUA_TNUMBER && fabs(lua_tonumber(L, 1)) >= 1e14) {
    char text[40];
    lua_pushstring(L, gbl_number_text(L, 1, text, sizeof text));
  } else if (type == LUA_TNUMBER) lua_tostring(L, 1);
  else if (type == LUA_TBOOLEAN) lua_pushstring(L, lua_toboolean(L, 1) ? "true" : "false");
  else if (type != LUA_TSTRING) lua_pushstring(L, gbl_type_name(L, 1));
  return 1;
}

/* plain_nan(text): the text with each "-nan" in it as "nan". */
static int plain_nan(lua_State *L) {
  size_t length;
  const char *text = luaL_checklstring(L, 1, &length);
  char *copy = lua_newuserdatauv(L, length + 1, 0);
  memcpy(copy, text, length + 1);
  gb_text_plain_nan(copy);
  lua_pushstring(L, copy);
  return 1;
}

/* scale_of(value): the scale of a GradScaler, and how many steps it skipped; nothing where value is none. */
static int scale_of(lua_State *L) {
  gb_scaler_stats stats;
  gb_scaler *scaler = gbl_test_object(L, 1, &gbl_scaler_type);
  if (!scaler) return 0;
  gbl_check_status(L, gb_scaler_get_stats(scaler, &stats));
  lua_pushnumber(L, gb_scaler_get_options(scaler)->enabled ? stats.scale : 1);
  lua_pushinteger(L, stats.skipped);
  return 2;
}

/* versions_of(tensors): a text that changes when values of one of these leaves may have, as in a replay of a graph,
 * which counts no versions; nothing where nobody knows whether they do: of results of ops, of memory that somebody else
 * may write to or has the rest of, and while nothing runs. */
static int versions_of(lua_State *L) {
  const gb_context *context = gbl_context(L);
  lua_Integer count = (lua_Integer)lua_rawlen(L, 1);
  luaL_Buffer text;
  if (context->capturing) return 0;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  luaL_buffinit(L, &text);
  luaL_addlstring(&text, (const char *)&context->step->graph_turns, sizeof context->step->graph_turns);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, 1, i);
    const gb_tensor *t = gbl_check_tensor(L, -1);
    const gb_storage *s = t->storage;
    uint64_t version = gb_tensor_version(t);
    bool known = !t->node && !t->base && s->away == GB_HERE && !atomic_load(&s->exposed) && !atomic_load(&s->exports);
    lua_pop(L, 1);
    if (!known) return 0;
    luaL_addlstring(&text, (const char *)&version, sizeof version);
  }
  luaL_pushresult(&text);
  return 1;
}

/* has_library(x, h, c, lengths, weights, cell, layers, bidirectional, bias): the dtype in which a library of the device
 * runs such layers, and whether in TF32; nothing where none does. h, c: nil where they are 0. lengths: are there any?
 * weights: the op's list. */
static int has_library(lua_State *L) {
  gb_context *context = gbl_context(L);
  const gb_tensor *x = gbl_check_tensor(L, 1), *first[] = { NULL, NULL };
  const lua_Integer count = (lua_Integer)lua_rawlen(L, 5);
  const bool autocast = context->modes->autocast;
  gb_dtype dtype = autocast && gb_autocast_eligible(x) ? context->modes->lower : (gb_dtype)x->dtype;
  for (lua_Integer i = -2; i < count; i++) { /* h, c and the weights */
    if (i >= 0) lua_rawgeti(L, 5, i + 1);
    const gb_tensor *t = i < 0 ? gbl_opt_tensor(L, (int)i + 4) : gbl_check_tensor(L, -1);
    if (i >= 0) lua_pop(L, 1);
    if (i >= 0 && i < 2) first[i] = t;
    if (!t) continue;
    const gb_device device = t->storage->device, of_x = x->storage->device;
    gb_dtype meets = autocast && gb_autocast_eligible(t) ? context->modes->lower : (gb_dtype)t->dtype;
    if (meets != dtype || device.type != of_x.type || device.index != of_x.index) return 0;
  }
  if (!gb_dtype_is_float(dtype) || count < 2 || first[0]->ndim != 2 || first[1]->ndim != 2) return 0;
  gb_rnn_room room;
  gb_rnn rnn = { .cell = gb_word_find(luaL_checkstring(L, 6)), .layers = luaL_checkinteger(L, 7), .dtype = dtype,
                 .bidirectional = lua_toboolean(L, 8), .bias = lua_toboolean(L, 9), .tf32 = context->tf32 };
  rnn = gb_rnn_of_x(gb_rnn_of_weights(rnn, first[0], first[1]), x, NULL);
  rnn.lengths = lua_toboolean(L, 4);
  if (!gb_rnn_is_served(context, x->storage->device, &rnn, &room)) return 0;
  lua_pushstring(L, gb_dtype_name(dtype));
  lua_pushboolean(L, context->tf32);
  return 2;
}

static int file_exists(lua_State *L) {
  lua_pushboolean(L, gb_path_exists(gbl_context(L), gbl_check_path(L, 1, "file_exists")));
  return 1;
}

/* why_unwritable(path): nothing where a file could be written, else the reason. A file that is there stays as it is. */
static int why_unwritable(lua_State *L) {
  gb_context *context = gbl_context(L);
  gb_file_writer *file = NULL;
  if (gb_file_create(context, gbl_check_path(L, 1, "why_unwritable"), &file) == GB_OK) return gb_file_abandon(file), 0;
  lua_pushstring(L, gb_error(context));
  return 1;
}

/* remove_file(path), make_folder(path): under the policy on files. */
static int remove_file(lua_State *L) {
  return gbl_check_status(L, gb_path_remove(gbl_context(L), gbl_check_path(L, 1, "remove_file")));
}

static int make_folder(lua_State *L) {
  return gbl_check_status(L, gb_path_make_folder(gbl_context(L), gbl_check_path(L, 1, "make_folder")));
}

static int get_rng(lua_State *L) {
  uint64_t seed, offset;
  gb_get_rng_state(gbl_context(L), &seed, &offset);
  lua_pushinteger(L, (lua_Integer)seed);
  lua_pushinteger(L, (lua_Integer)offset);
  return 2;
}

static int set_rng(lua_State *L) {
  gb_set_rng_state(gbl_context(L), (uint64_t)luaL_checkinteger(L, 1), (uint64_t)luaL_checkinteger(L, 2));
  return 0;
}

/* same_bits(a, b): equal dtype, shape and bytes. */
static int same_bits(lua_State *L) {
  gbl_enter(L);
  gb_tensor *a = gbl_check_tensor(L, 1), *b = gbl_check_tensor(L, 2);
  bool same = a->dtype == b->dtype && a->ndim == b->ndim &&
      !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim);
  if (same) {
    size_t bytes = (size_t)a->numel * gb_dtype_bytes((gb_dtype)a->dtype);
    char *room = lua_newuserdatauv(L, 2 * bytes + 1, 0);
    gbl_check_status(L, gb_tensor_read(a, room, bytes));
    gbl_check_status(L, gb_tensor_read(b, room + bytes, bytes));
    for (size_t at = 0, piece; same && at < bytes; at += piece) {
      piece = bytes - at < GB_PIECE ? bytes - at : GB_PIECE;
      same = !memcmp(room + at, room + bytes + at, piece);
      gbl_check_status(L, gb_poll(a->storage->context));
    }
  }
  lua_pushboolean(L, same);
  return 1;
}

/* environment(name): a variable from outside, or nil; always nil where Lua was told to ignore the environment (-E). */
static int environment(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  gbl_raw_field(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  lua_pushstring(L, lua_toboolean(L, -1) ? NULL : getenv(name));
  return 1;
}

/* methods(type): the methods of a kind of userdata ("gibbous.tensor", "gibbous.scaler", ...) as a table, or nil where
 * none was made yet. Those of tensors have fields among them, which are numbers. */
static int methods(lua_State *L) {
  const char *type = luaL_checkstring(L, 1);
  if (luaL_getmetatable(L, type) != LUA_TTABLE) return 1;
  if (!strcmp(type, "gibbous.tensor")) gbl_push_methods(L);
  else gbl_raw_field(L, -1, "__index");
  return 1;
}

/* kinds(): { [name] = methods } of every kind of object that has a table of methods and was made so far; without
 * "gibbous.". */
static int kinds(lua_State *L) {
  static const char prefix[] = "gibbous.";
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, LUA_REGISTRYINDEX); lua_settop(L, 2)) {
    const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (strncmp(name, prefix, sizeof prefix - 1) || !lua_istable(L, 3) || gbl_raw_field(L, 3, "__index") != LUA_TTABLE)
      continue;
    gbl_set_raw(L, 1, name + sizeof prefix - 1);
  }
  return 1;
}

/* Push the list of an op's other names. */
static void push_aliases(lua_State *L, gb_op op) {
  const gbl_alias *alias;
  int count = 0;
  lua_newtable(L);
  for (int i = 0; (alias = gbl_alias_at(i)); i++) {
    if (alias->op != op) continue;
    lua_pushstring(L, alias->name);
    lua_rawseti(L, -2, ++count);
  }
}

/* ops(): the table of ops as a list of { name, family, kind, autocast, derivative, signature, doc, where, public,
 * aliases }; where has a letter for each place that it appears in: G gb.name, M x:name, F F.name, I x:name_ in
 * place. */
static int ops(lua_State *L) {
  static const char *const kinds[] = { "kernel", "view", "composite", "backward" };
  static const char *const classes[] = { "keep", "lower", "float32", "widest", "banned" };
  static const char *const derivatives[] = { "no", "once", "twice" };
  gb_context *context = gbl_context(L);
  lua_createtable(L, GB_OP_COUNT, 0);
  for (int i = 0; i < GB_OP_COUNT; i++) {
    const gb_op_info *info = gb_op_get(context, i);
    lua_createtable(L, 0, 10);
    lua_pushstring(L, info->name), gbl_set_raw(L, -2, "name");
    lua_pushstring(L, info->family), gbl_set_raw(L, -2, "family");
    lua_pushstring(L, kinds[info->kind]), gbl_set_raw(L, -2, "kind");
    lua_pushstring(L, classes[info->autocast]), gbl_set_raw(L, -2, "autocast");
    lua_pushstring(L, derivatives[info->derivative]), gbl_set_raw(L, -2, "derivative");
    lua_pushstring(L, GB_SIGNATURE(info)), gbl_set_raw(L, -2, "signature");
    lua_pushstring(L, info->doc), gbl_set_raw(L, -2, "doc");
    lua_pushfstring(L, "%s%s%s%s", info->where & GB_WHERE_GB ? "G" : "", info->where & GB_WHERE_METHOD ? "M" : "",
                    info->where & GB_WHERE_F ? "F" : "", info->where & GB_WHERE_INPLACE ? "I" : "");
    gbl_set_raw(L, -2, "where");
    lua_pushboolean(L, info->where != GB_WHERE_NONE), gbl_set_raw(L, -2, "public");
    push_aliases(L, i), gbl_set_raw(L, -2, "aliases");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void gbl_push_numerics(lua_State *L, gb_dtype dtype, gb_dtype format, int64_t numel, const int64_t *counts,
                       const double *range) {
  static const char *const names[GB_NUMERICS_FIRST_BIN] = { "zero", "infinite", "nan", "flushed", "subnormal",
                                                            "overflowed" };
  lua_createtable(L, 0, 16);
  lua_pushinteger(L, (lua_Integer)numel), gbl_set_raw(L, -2, "numel");
  gbl_push_dtype_name(L, dtype), gbl_set_raw(L, -2, "dtype");
  gbl_push_dtype_name(L, format), gbl_set_raw(L, -2, "format");
  lua_pushnumber(L, range[GB_NUMERICS_AMAX]), gbl_set_raw(L, -2, "amax");
  lua_pushnumber(L, range[GB_NUMERICS_AMIN]), gbl_set_raw(L, -2, "amin");
  lua_createtable(L, 0, GB_NUMERICS_FIRST_BIN);
  for (int i = 0; i < GB_NUMERICS_FIRST_BIN; i++)
    lua_pushinteger(L, (lua_Integer)counts[i]), gbl_set_raw(L, -2, names[i]);
  gbl_set_raw(L, -2, "counts");
  lua_newtable(L);
  for (int i = 0; i < GB_NUMERICS_BINS; i++)
    if (counts[GB_NUMERICS_FIRST_BIN + i])
      lua_pushinteger(L, (lua_Integer)counts[GB_NUMERICS_FIRST_BIN + i]), lua_rawseti(L, -2, GB_NUMERICS_LEAST + i);
  gbl_set_raw(L, -2, "exponents");
}

/* numerics(tensor, format): what the op numerics counts, as a table. Waits for the tensor's device. */
static int numerics(lua_State *L) {
  int64_t counts[GB_NUMERICS_COUNTS];
  double range[GB_NUMERICS_RANGE];
  gbl_call_op(L, gbl_enter(L), GB_OP_numerics, 1, false);
  int top = lua_gettop(L);
  gbl_check_status(L, gb_tensor_read(gbl_check_tensor(L, top - 1), counts, sizeof counts));
  gbl_check_status(L, gb_tensor_read(gbl_check_tensor(L, top), range, sizeof range));
  const gb_tensor *x = gbl_check_tensor(L, 1);
  gbl_push_numerics(L, (gb_dtype)x->dtype, gbl_check_dtype(L, 2, "numerics"), x->numel, counts, range);
  return 1;
}

/* float_format(dtype): precision in bits, and the exponents of its least and largest normal numbers; nothing where it
 * is no floating one. */
static int float_format(lua_State *L) {
  gb_dtype dtype = lua_type(L, 1) == LUA_TSTRING ? gb_dtype_from_name(lua_tostring(L, 1)) : GB_DTYPE_NONE;
  if (!gb_dtype_is_float(dtype)) return 0;
  gb_float_format format = gb_float_format_of(dtype);
  lua_pushinteger(L, format.bits);
  lua_pushinteger(L, format.least);
  lua_pushinteger(L, format.most);
  return 3;
}

static const luaL_Reg functions[] = {
  { "fail", fail }, { "is_parameter", is_parameter }, { "parameter", parameter }, { "is_dtype", is_dtype },
      { "dtypes", dtypes }, { "nearest", nearest }, { "convert_", convert },
  { "channels_last", channels_last }, { "clock", clock_seconds }, { "synchronize", synchronize }, { "drop", drop },
      { "is_watched", is_watched },
  { "range_push", range_push }, { "range_pop", range_pop }, { "is_terminal", is_terminal }, { "flush", flush },
  { "step_boundary", step_boundary }, { "remove_file", remove_file },
      { "make_folder", make_folder }, { "stop_handler", gbl_stop_handler },
      { "limits_left", gbl_limits_left }, { "hold_stop", gbl_hold_stop },
      { "offer_stop", gbl_offer_stop }, { "stop_asked", gbl_stop_asked },
      { "pass_on_stop", gbl_pass_on_stop }, { "take_saves", gbl_take_saves }, { "save_asked", gbl_save_asked },
      { "finish", finish }, { "environment", environment },
      { "file_exists", file_exists },
  { "why_unwritable", why_unwritable }, { "get_rng", get_rng }, { "set_rng", set_rng }, { "same_bits", same_bits },
      { "ops", ops }, { "methods", methods },
  { "kinds", kinds }, { "numerics", numerics }, { "float_format", float_format }, { "command_line", command_line },
      { "scale_of", scale_of }, { "shown", shown }, { "plain_nan", plain_nan }, { "versions_of", versions_of },
      { "has_library", has_library }, { NULL, NULL },
};

void gbl_open_native(lua_State *L) {
  lua_newtable(L);
  gbl_set_raw(L, LUA_REGISTRYINDEX, "gibbous.finish");
  gbl_push_module(L, "_native");
  gbl_set_functions(L, functions);
  lua_pop(L, 1);
}
