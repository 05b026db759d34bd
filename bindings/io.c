/* io.c - JSON, and safetensors for the Lua half: whole files in and out. gb.save, gb.load and checkpoints are in
 * gibbous/io.lua. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "reader.h"

const char *gbl_check_path(lua_State *L, int arg, const char *who) {
  size_t length;
  if (lua_type(L, arg) != LUA_TSTRING)
    gbl_error(L, "%s takes the path of a file, a string, got %s", who, gbl_type_name(L, arg));
  const char *path = lua_tolstring(L, arg, &length);
  if (strlen(path) != length) gbl_error(L, "%s: the path holds a NUL after '%s'; no file can be named so", who, path);
  return path;
}

#define INSTRUCTIONS_PER_KEY 64 /* of sorting names */

/* {==== safetensors ==== */

static const char sort_key = 0; /* of the registry: table.sort as it was when the library opened */

/* The keys of the table at index, sorted, as a list that is pushed: files do not depend on the order of a table. */
static lua_Integer push_sorted_keys(lua_State *L, int index, const char *what) {
  lua_newtable(L);
  lua_Integer n = 0;
  uint64_t steps = 0;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    gbl_charge_step(L, &steps);
    if (lua_type(L, -2) != LUA_TSTRING)
      gbl_error(L, "%s are named by strings, not by a %s", what, luaL_typename(L, -2));
    lua_pushvalue(L, -2);
    lua_rawseti(L, -4, ++n);
  }
  gbl_charge(L, (uint64_t)n * INSTRUCTIONS_PER_KEY);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &sort_key);
  lua_pushvalue(L, -2);
  lua_call(L, 1, 0);
  return n;
}

/* The string at the top as C text; whoever holds the string keeps it. */
static const char *check_text(lua_State *L, const char *what) {
  const char *text = lua_tostring(L, -1);
  if (strlen(text) != lua_rawlen(L, -1)) gbl_error(L, "%s holds a NUL: '%s'...", what, text);
  return text;
}

/* save_tensors(path, { name = tensor }, { key = string }): tables of our own. */
static int save_tensors(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "save");
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  lua_Integer count = push_sorted_keys(L, 2, "save: tensors");   /* 4 */
  lua_Integer metadata = push_sorted_keys(L, 3, "save: metadata"); /* 5 */
  lua_newtable(L);                                                /* 6: the values */
  const char **texts = lua_newuserdatauv(L, sizeof *texts * (size_t)(count + 2 * metadata + 1), 0);
  gb_tensor **tensors = lua_newuserdatauv(L, sizeof *tensors * (size_t)(count + 1), 0);
  for (lua_Integer i = 0; i < count; i++) {
    lua_rawgeti(L, 4, i + 1);
    texts[i] = check_text(L, "save: the name of a tensor");
    lua_rawget(L, 2);
    tensors[i] = gbl_check_tensor(L, lua_gettop(L));
    lua_rawseti(L, 6, i + 1);
  }
  for (lua_Integer i = 0; i < metadata; i++) {
    lua_rawgeti(L, 5, i + 1);
    texts[count + i] = check_text(L, "save: the name of metadata");
    lua_rawget(L, 3);
    if (lua_type(L, -1) != LUA_TSTRING)
      return gbl_error(L, "save: the metadata '%s' is a %s; it must be a string", texts[count + i],
                       luaL_typename(L, -1));
    texts[count + metadata + i] = check_text(L, "save: metadata");
    lua_rawseti(L, 6, count + i + 1);
  }
  gbl_check_status(L, gb_safetensors_save(context, path, texts, tensors, count, texts + count, texts + count + metadata,
                                          metadata));
  return 0;
}

static void close_file(void *file) { gb_safetensors_close(file); }
static const gbl_type file_type = { "gibbous.safetensors", close_file, (const luaL_Reg[]){ { NULL, NULL } }, NULL,
                                    NULL };

/* For the table at the top, of what is left out: [name] = { dtype =, shape =, message = }. */
static void note_left_out(lua_State *L, gb_context *context, const gb_safetensors *file, int64_t i) {
  int ndim;
  const int64_t *shape = gb_safetensors_shape(file, i, &ndim);
  lua_createtable(L, 0, 3);
  lua_pushstring(L, gb_safetensors_dtype_name(file, i));
  gbl_set_raw(L, -2, "dtype");
  lua_pushstring(L, gb_error(context));
  gbl_set_raw(L, -2, "message");
  lua_createtable(L, ndim, 0);
  for (int d = 0; d < ndim; d++) {
    lua_pushinteger(L, (lua_Integer)shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
  gbl_set_raw(L, -2, "shape");
  gbl_set_raw(L, -2, gb_safetensors_name(file, i));
}

/* Push { key = string } of the file. */
static void push_metadata(lua_State *L, const gb_safetensors *file) {
  lua_newtable(L);
  for (int64_t i = 0; i < gb_safetensors_metadata_count(file); i++) {
    lua_pushstring(L, gb_safetensors_metadata_value(file, i));
    gbl_set_raw(L, -2, gb_safetensors_metadata_key(file, i));
  }
}

/* load_metadata(path): { key = string } of a file whose tensors are all there; they are not read. */
static int load_metadata(lua_State *L) {
  const char *path = gbl_check_path(L, 1, "load");
  void **slot = gbl_new_object(L, &file_type, 0);
  gb_safetensors *file = NULL;
  gb_status status = gb_safetensors_open(gbl_context(L), path, &file);
  *slot = file;
  gbl_check_status(L, status);
  push_metadata(L, file);
  *slot = NULL;
  gb_safetensors_close(file);
  return 1;
}

/* load_tensors(path): { name = tensor }, { key = string }, and what the engine has no dtype or too few dimensions
 * for. */
static int load_tensors(lua_State *L) {
  gb_context *context = gbl_context(L);
  const char *path = gbl_check_path(L, 1, "load");
  void **slot = gbl_new_object(L, &file_type, 0);
  gb_safetensors *file = NULL;
  gb_status status = gb_safetensors_open(context, path, &file);
  *slot = file;
  gbl_check_status(L, status);
  int64_t count = gb_safetensors_count(file);
  lua_newtable(L);
  lua_newtable(L);
  int tensors = lua_gettop(L) - 1, left_out = tensors + 1;
  for (int64_t i = 0; i < count; i++) {
    gbl_box *box = gbl_new_tensor(L);
    status = gb_safetensors_load(file, i, &box->tensor);
    if (status == GB_EDTYPE || status == GB_EUNSUPPORTED) {
      lua_settop(L, left_out);
      note_left_out(L, context, file, i);
      continue;
    }
    gbl_check_status(L, status);
    gbl_finish_tensor(L);
    gbl_set_raw(L, tensors, gb_safetensors_name(file, i));
  }
  push_metadata(L, file);
  lua_insert(L, left_out);
  *slot = NULL; /* nothing can fail between here and the end */
  gb_safetensors_close(file);
  return 3;
}

/* ====} */

/* {==== JSON ==== */

static void free_json(void *json) { gb_json_free(json); }
static const gbl_type json_type = { "gibbous.json", free_json, (const luaL_Reg[]){ { NULL, NULL } }, NULL, NULL };

/* Push a parsed value: arrays count from 1, null is nil. The depth is limited by the parser. */
static void push_json(lua_State *L, const gb_json *v, uint64_t *steps) {
  luaL_checkstack(L, 4, "JSON is nested too deep");
  gbl_charge_step(L, steps);
  int64_t integer;
  double number;
  lua_Integer n = 0;
  switch (v->type) {
    case GB_JSON_NULL: lua_pushnil(L); break;
    case GB_JSON_BOOL: lua_pushboolean(L, v->as.boolean); break;
    case GB_JSON_INTEGER:
    case GB_JSON_NUMBER:
      if (gb_json_int64(v, &integer)) lua_pushinteger(L, integer);
      else lua_pushnumber(L, gb_json_double(v, &number) ? number : 0);
      break;
    case GB_JSON_STRING: lua_pushlstring(L, v->as.string.text, v->as.string.length); break;
    case GB_JSON_ARRAY:
      lua_newtable(L);
      for (const gb_json *e = v->as.list.first; e; e = e->next) {
        push_json(L, e, steps);
        lua_rawseti(L, -2, ++n);
      }
      break;
    case GB_JSON_OBJECT:
      lua_newtable(L);
      for (const gb_json *e = v->as.list.first; e; e = e->next) {
        lua_pushlstring(L, e->key, e->key_length);
        push_json(L, e, steps);
        lua_rawset(L, -3);
      }
      break;
  }
}

bool gbl_push_parsed(lua_State *L, const char *text, size_t length, char *why, size_t why_size) {
  gb_context *context = gbl_context(L);
  uint64_t steps = 0;
  void **slot = gbl_new_object(L, &json_type, 0);
  gb_json *json = NULL;
  gb_status status = gb_json_parse(context, text, length, &json, why, why_size);
  if (status == GB_EFORMAT) return lua_pop(L, 1), false;
  gbl_check_status(L, status);
  *slot = json;
  push_json(L, json, &steps);
  *slot = NULL; /* the tree goes now, not when it is collected */
  gb_json_free(json);
  return true;
}

static int json_decode(lua_State *L, gbl_call *call) {
  const gbl_value *text = gbl_argument(call, "text");
  char why[160];
  if (!gbl_push_parsed(L, text->string, text->length, why, sizeof why)) return gbl_refuse(call, "%s", why);
  return 1;
}

/* A text that is being written, and how many values went into it. */
typedef struct writer { gb_json_writer json; uint64_t steps; } writer;

static void free_writer(void *object) {
  writer *w = object;
  gb_json_writer_free(&w->json);
  gb_counted_free(w);
}
static const gbl_type writer_type = { "gibbous.json_writer", free_writer, (const luaL_Reg[]){ { NULL, NULL } }, NULL,
                                      NULL };

static void write_json(lua_State *L, writer *to, int depth);

/* Are the table's keys 1 .. n, with n above 0? */
static bool is_array(lua_State *L, int table, lua_Integer n) {
  lua_Integer keys = 0;
  uint64_t steps = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    gbl_charge_step(L, &steps);
    if (lua_isinteger(L, -2) && lua_tointeger(L, -2) >= 1 && lua_tointeger(L, -2) <= n) keys++;
    else return lua_pop(L, 2), false;
  }
  return n > 0 && keys == n;
}

/* A table: an array where its keys are 1 .. n, else an object with sorted keys. */
static void write_table(lua_State *L, writer *to, int depth) {
  gb_json_writer *w = &to->json;
  int table = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, table), keys;
  if (is_array(L, table, n)) {
    gb_json_open(w, '[');
    for (lua_Integer i = 1; i <= n; i++) {
      lua_rawgeti(L, table, i);
      write_json(L, to, depth + 1);
      lua_pop(L, 1);
    }
    gb_json_close(w, ']');
    return;
  }
  keys = push_sorted_keys(L, table, "json_encode: values");
  gb_json_open(w, '{');
  for (lua_Integer i = 1; i <= keys; i++) {
    lua_rawgeti(L, -1, i);
    size_t length;
    const char *key = lua_tolstring(L, -1, &length);
    gb_json_key(w, key, length);
    lua_rawget(L, table);
    write_json(L, to, depth + 1);
    lua_pop(L, 1);
  }
  gb_json_close(w, '}');
  lua_pop(L, 1);
}

/* Numbers that JSON cannot hold (inf, nan) are an error here; checkpoints write them in a form of their own
 * (gibbous/io.lua). */
static void write_json(lua_State *L, writer *to, int depth) {
  gb_json_writer *w = &to->json;
  size_t length;
  const char *text;
  gbl_charge_step(L, &to->steps);
  if (depth > GB_JSON_MOST_DEPTH - 1)
    gbl_error(L, "json_encode: the value is nested deeper than %d tables, or holds itself", GB_JSON_MOST_DEPTH - 1);
  luaL_checkstack(L, 8, "the value is nested too deep");
  switch (lua_type(L, -1)) {
    case LUA_TNIL: gb_json_null(w); break;
    case LUA_TBOOLEAN: gb_json_bool(w, lua_toboolean(L, -1)); break;
    case LUA_TNUMBER:
      if (lua_isinteger(L, -1)) gb_json_integer(w, lua_tointeger(L, -1));
      else gb_json_number(w, lua_tonumber(L, -1));
      break;
    case LUA_TSTRING:
      text = lua_tolstring(L, -1, &length);
      gbl_charge(L, length / 32);
      gb_json_string(w, text, length);
      break;
    case LUA_TTABLE: write_table(L, to, depth); break;
    default: gbl_error(L, "json_encode: a %s cannot be written", luaL_typename(L, -1));
  }
}

static int json_encode(lua_State *L, gbl_call *call) {
  lua_settop(L, 1);
  void **slot = gbl_new_object(L, &writer_type, 0);
  gb_context *context = call->state->context;
  writer *made = gb_counted_alloc(context, sizeof *made);
  if (!made) return gbl_check_status(L, gb_error_code(context));
  *slot = made;
  gb_json_writer *w = &made->json;
  w->context = context;
  lua_pushvalue(L, 1);
  write_json(L, made, 0);
  if (w->status == GB_EMEMORY) gbl_check_status(L, w->status);
  if (w->status != GB_OK) return gbl_refuse(call, "%s (numbers must be finite, text UTF-8)", gb_status_text(w->status));
  lua_pushlstring(L, w->text, w->length);
  *slot = NULL;
  free_writer(made);
  return 1;
}

static const gbl_function functions[] = {
  { json_decode, GB_SANDBOX_STRICT,
    "gb.io.json_decode(text: string) -> any: The Lua value of JSON text: arrays count from 1, integers stay "
    "integers. Errors: text that "
    "is not JSON, with the place. Example: local value = gb.io.json_decode('{\"a\": [1, 2]}')" },
  { json_encode, GB_SANDBOX_STRICT,
    "gb.io.json_encode(value?: any) -> string: A Lua value as JSON text; metamethods are not asked. Errors: a value "
    "that JSON cannot "
    "hold. Example: print(gb.io.json_encode { a = { 1, 2 } })" },
  { NULL, 0, NULL },
};

/* ====} */

/* Keep table.sort as it is now: recipes may replace it. */
static void keep_sort(lua_State *L) {
  gbl_raw_field(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  if (gbl_raw_field(L, -1, "table") == LUA_TTABLE) {
    gbl_raw_field(L, -1, "sort");
    lua_rawsetp(L, LUA_REGISTRYINDEX, &sort_key);
  }
  lua_pop(L, 2);
}

void gbl_open_io(lua_State *L) {
  keep_sort(L);
  gbl_new_type(L, &file_type);
  gbl_new_type(L, &json_type);
  gbl_new_type(L, &writer_type);
  gbl_push_module(L, "io");
  gbl_define(L, functions);
  lua_pop(L, 1);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "save_tensors", save_tensors }, { "load_tensors", load_tensors },
                                           { "load_metadata", load_metadata },
                                           { NULL, NULL } });
  lua_pop(L, 1);
}
