/* reader.c - the one reader of arguments, and the records of public functions. reader.h says how signatures are written
 * and what a call may rely on; here are the kinds of arguments, each with what it takes and what it leaves in a
 * gbl_value. */
#include "reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "embedded.h"
#include "host.h"
#include "late.h"
#include "objects.h"

static const char records_key = 0; /* of the registry: the texts and levels of all records */
static const char kind_mark = 0;   /* of what is kept of an object: the name of its kind, by its address */
static const char precision_of_key = 0; /* of the registry: the function that makes a precision of its name */

enum {
  MOST_KINDS = 6,                /* that one argument may have */
  MOST_DEPTH = 100,              /* of tables in tables that are copied */
  MOST_ELEMENTS = 1 << 20,       /* of a list of tensors */
};

/* {==== Signatures ==== */

typedef struct kind kind;

/* One kind that an argument may have. word: the text of a word in quotes, or the name of a kind of objects. */
typedef struct choice { const kind *kind; const char *word; } choice;

typedef struct parameter {
  const char *name;
  choice choices[MOST_KINDS];
  int count;                     /* of choices */
  bool optional, named, rest, is_self;
  bool spreads;                  /* its sizes may be written out: zeros(2, 3) */
  const char *preset;            /* the default as it is written, or NULL; and as it is when it is not given */
  gbl_value otherwise;
} parameter;

/* text: a copy of the record's, cut into the names that the parameters point to. */
struct gbl_signature {
  const char *who, *shown;       /* the last part of the path; the signature as it is written */
  int count, positional;
  bool has_options, holds;       /* holds: it has objects among its arguments */
  parameter parameter[GBL_MOST_ARGUMENTS];
  char text[];
};

/* What an argument of this kind takes. read: false where the value at index is of another kind; what is at fault inside
 * a value of this kind is an error at once. takes_table: a table in its place is no table of options. */
struct kind {
  const char *name, *expected;
  bool (*read)(gbl_call *call, const parameter *p, int index, gbl_value *out);
  enum { NO_TABLE, LIST, ANY_TABLE } table;
};

/* Objects by the name of their kind, the class that paths of methods name, and the words of errors. The kind of a
 * userdata is "gibbous." and the name; an object of the Lua half is one that own() was told of. */
static const struct { const char *name, *class, *expected; } object_kinds[] = {
  { "optimizer", "Optimizer", "an optimizer of gb.optim" }, { "scaler", "GradScaler", "a GradScaler" },
  { "schedule", "Schedule", "a schedule of gb.optim.lr" }, { "lbfgs", "LBFGS", "an optimizer of gb.optim.LBFGS" },
      { "average", "Average", "an average of gb.optim.Average or EMA" }, { "loader", "DataLoader", "a DataLoader" },
  { "transform", "transform", "a transform of gb.data.transforms" },
  { "dataset", "dataset", "a dataset of gb.data" }, { "text", "text", "a text of gb.data" },
      { "tokens", "tokens", "a token file of gb.data" },
  { "samples", "Dataset", "a dataset of gb.data.Dataset" }, { "sampler", "Sampler", "a sampler of gb.data" },
  { "vocabulary", "Vocabulary", "a vocabulary of gb.data" },
  { "preparation", "Preparation", "a gb.data.Preparation" },
  { "hook", "hook", "what register_hook returned" }, { "policy", "policy", "a policy of gb.amp.policy" },
  { "precision", "precision", "a precision of gb.amp.precision or its name" },
  { "progress", "progress", "a bar of gb.progress" },
  { "graph", "graph", "a graph of gb.cuda.graph" }, { "ctx", "ctx", "the context of a gb.Function" },
  { "group", "group", "a group of gb.dist.new_group" },
  { "handle", "handle", "a handle of a call of gb.dist with async = true" },
  { "expect", "expect", "what gb.test.expect returned" }, { "numerics", "numerics", "a record of gb.amp.numerics" },
  { "audit", "audit", "a record of gb.amp.audit" },
  { "logger", "Logger", "a logger of gb.Logger" },
  { "trainer", "Trainer", "a Trainer" }, { "early_stopping", "EarlyStopping", "a gb.EarlyStopping" },
  { "checkpoints", "Checkpoints", "a gb.Checkpoints" }, { "metrics", "Metrics", "a gb.Metrics" },
  { NULL, NULL, NULL },
};

static int find_object_kind(const char *name, bool by_class) {
  for (int i = 0; object_kinds[i].name; i++)
    if (!strcmp(by_class ? object_kinds[i].class : object_kinds[i].name, name)) return i;
  return -1;
}

/* ====} */

/* {==== Errors ==== */

const char *gbl_who(const gbl_call *call) { return call->signature->who; }

int gbl_refuse(const gbl_call *call, const char *format, ...) {
  char text[768];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  bool is_self = call->signature->count > 0 && call->signature->parameter[0].is_self;
  if (call->top > 0 && !is_self && gbl_is_library(call->L, 1))
    return gbl_error(call->L, "%s: called with a colon; it is a function: gb.%s(...)", call->signature->who,
                     call->signature->who);
  return gbl_error(call->L, "%s: %s", call->signature->who, text);
}

void gbl_check_dot(lua_State *L, int index, const char *who) {
  if (lua_type(L, index) != LUA_TTABLE || !lua_getmetatable(L, index)) return;
  bool is_module = lua_rawgetp(L, -1, gbl_module_mark) != LUA_TNIL;
  lua_pop(L, 2);
  if (!is_module) return;
  luaL_getmetafield(L, index, "__library");
  const char *path = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "gb";
  gbl_error(L, "%s: call it with a dot, %s.%s(...), not with a colon", who, path, who);
}

/* What the argument must be, in words. */
static const char *push_expected(lua_State *L, const parameter *p) {
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  for (int i = 0; i < p->count; i++) {
    const choice *c = &p->choices[i];
    if (i > 0) luaL_addstring(&text, i == p->count - 1 ? " or " : ", ");
    int object = c->kind->expected || !c->word ? -1 : find_object_kind(c->word, false);
    if (c->kind->expected) luaL_addstring(&text, c->kind->expected);
    else if (object >= 0) luaL_addstring(&text, object_kinds[object].expected);
    else {
      luaL_addchar(&text, '\'');
      luaL_addstring(&text, c->word);
      luaL_addchar(&text, '\'');
    }
  }
  luaL_pushresult(&text);
  return lua_tostring(L, -1);
}

/* Raise: the value at index is none of the kinds that p may have. */
static int wrong_kind(const gbl_call *call, const parameter *p, int index) {
  lua_State *L = call->L;
  char got[96];
  luaL_checkstack(L, 8, GBL_NO_STACK);
  if (lua_type(L, index) == LUA_TNUMBER) gbl_number_text(L, index, got, sizeof got);
  else if (lua_type(L, index) == LUA_TSTRING)
    snprintf(got, sizeof got, "string '%.60s'", gbl_check_name(L, index, gbl_who(call)));
  else snprintf(got, sizeof got, "%.80s", gbl_type_name(L, index));
  const char *expected = push_expected(L, p);
  if (p->is_self)
    return gbl_refuse(call, "it is a method of %s, called with a colon: object:%s(...); got %s", expected,
                      call->signature->who, got);
  return gbl_refuse(call, "'%s' must be %s, got %s", p->name, expected, got);
}

/* ====} */

/* {==== Kinds ==== */

static bool read_any(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)call, (void)p, (void)index, (void)out;
  return true;
}

static bool read_tensor(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  out->tensor = gbl_tensor_at(call->L, call->state, index);
  /* it may come twice */
  if (!out->tensor && !strcmp(gbl_who(call), "free")) return luaL_testudata(call->L, index, "gibbous.tensor") != NULL;
  return out->tensor != NULL;
}

/* Replace the string at the top, such as "16-mixed", by the precision that it names; false where it cannot be one:
 * names of dtypes have no dash, those of devices begin otherwise, none holds a NUL. An error where it is unknown. */
static bool make_named_precision(lua_State *L) {
  const char *text = lua_tostring(L, -1);
  bool whole = strlen(text) == lua_rawlen(L, -1);
  if (!whole || !strchr(text, '-') || !strncmp(text, "cpu", 3) || !strncmp(text, "cuda", 4)) return false;
  gbl_load_name(L, "gb.amp", "precision"); /* whose chunk sets the function */
  lua_rawgetp(L, LUA_REGISTRYINDEX, &precision_of_key);
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  return true;
}

/* gbl_push_private, for who has the state and an index that is absolute. */
static bool push_private(lua_State *L, const gbl_state *state, int index, const char *name) {
  int type = lua_type(L, index);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  if (type == LUA_TSTRING && name && !strcmp(name, "precision")) {
    lua_pushvalue(L, index);
    bool found = make_named_precision(L) && push_private(L, state, lua_gettop(L), name);
    lua_remove(L, found ? -2 : -1);
    return found;
  }
  if (type != LUA_TTABLE) return false;
  lua_rawgeti(L, LUA_REGISTRYINDEX, state->private_reference);
  lua_pushvalue(L, index);
  if (lua_rawget(L, -2) != LUA_TTABLE) {
    lua_pop(L, 2);
    return false;
  }
  lua_replace(L, -2);
  if (!name) return true;
  lua_rawgetp(L, -1, &kind_mark);
  const char *kept = lua_touserdata(L, -1);
  if (!kept) { /* of no kind that arguments are of */
    gbl_raw_field(L, -2, "kind");
    kept = lua_tostring(L, -1); /* the table keeps it */
    lua_pop(L, 1);
  }
  bool is_it = kept && (kept == name || !strcmp(kept, name));
  lua_pop(L, is_it ? 1 : 2);
  return is_it;
}

/* Raise where the table at index is a module, a class or another object of the library: to a raw reader it would be an
 * empty table. */
static void refuse_object(const gbl_call *call, const char *name, int index) {
  lua_State *L = call->L;
  luaL_checkstack(L, 6, GBL_NO_STACK);
  if (luaL_getmetafield(L, index, "__module") != LUA_TNIL)
    gbl_refuse(call, "'%s' is a module; give model:parameters(), model:state_dict() or a list that holds it", name);
  bool is_class = gbl_raw_field(L, index, "__values") == LUA_TTABLE;
  lua_pop(L, 1);
  if (is_class) gbl_refuse(call, "'%s' is a class; make a module with it first", name);
  if (!gbl_push_private(L, index, NULL)) return;
  gbl_raw_field(L, -1, "kind");
  gbl_refuse(call, "'%s' is an object (%s), no table", name, lua_tostring(L, -1));
}

/* A list has no names: what has nothing else is another thing. */
static void refuse_names(const gbl_call *call, const parameter *p, int index) {
  lua_State *L = call->L;
  refuse_object(call, p->name, index);
  if (lua_rawlen(L, index) > 0) return;
  lua_pushnil(L);
  if (!lua_next(L, index)) return;
  gbl_refuse(call, "'%s' must be a list, got a table with the key %s", p->name,
             lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : luaL_typename(L, -2));
}

/* How many elements a list has, by its raw length; an error where they are too many to be meant. */
static int list_length(const gbl_call *call, const parameter *p, int index) {
  refuse_names(call, p, index);
  lua_Unsigned n = lua_rawlen(call->L, index);
  if (n > MOST_ELEMENTS) gbl_refuse(call, "'%s' has more than %d elements", p->name, MOST_ELEMENTS);
  if (n > 0) gbl_charge(call->L, n);
  return (int)n;
}

/* Push a list of the first n elements of the table at index: what it holds stays, whatever becomes of the table. */
static int push_elements(lua_State *L, int index, int n) {
  luaL_checkstack(L, 4, GBL_NO_STACK);
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, index, i);
    lua_rawseti(L, -2, i);
  }
  return lua_gettop(L);
}

/* A tensor, or a list of tensors. */
static bool read_tensors(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  lua_State *L = call->L;
  gb_tensor *single = gbl_tensor_at(L, call->state, index);
  if (!single && lua_type(L, index) != LUA_TTABLE) return false;
  int n = single ? 1 : list_length(call, p, index);
  if (!single) out->index = push_elements(L, index, n);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  out->tensors = lua_newuserdatauv(L, sizeof *out->tensors * ((size_t)n + 1), 0);
  out->count = n;
  if (single) out->tensors[0] = single;
  for (int i = 0; i < n && !single; i++) {
    lua_rawgeti(L, out->index, i + 1);
    out->tensors[i] = gbl_tensor_at(L, call->state, lua_gettop(L));
    if (!out->tensors[i])
      gbl_refuse(call, "'%s' must hold tensors, but [%d] is %s", p->name, i + 1, gbl_type_name(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return true;
}

static bool read_list(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  if (lua_type(call->L, index) != LUA_TTABLE) return false;
  out->count = list_length(call, p, index);
  out->index = push_elements(call->L, index, out->count);
  return true;
}

static bool read_table(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  if (lua_type(call->L, index) != LUA_TTABLE) return false;
  refuse_object(call, p->name, index);
  gbl_push_copy(call->L, index, !strcmp(p->choices[0].kind->name, "tree"), gbl_who(call));
  out->index = lua_gettop(call->L);
  return true;
}

static bool read_int(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (!gbl_test_integer(call->L, index, &out->integer)) return false;
  out->number = (double)out->integer;
  return true;
}

static bool read_size(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  return read_int(call, p, index, out) && out->integer >= 1;
}

static bool read_count(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  return read_int(call, p, index, out) && out->integer >= 0;
}

/* A position from 1 made one from 0; a negative one stays. */
static int64_t from_zero(const gbl_call *call, const parameter *p, int64_t value) {
  if (value == 0)
    gbl_refuse(call, "%s 0 for '%s': positions count from 1, and -1 is the last",
               strstr(p->name, "dim") ? "dimension" : "position", p->name);
  return value > 0 ? value - 1 : value;
}

static bool read_position(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  if (!read_int(call, p, index, out)) return false;
  out->integer = from_zero(call, p, out->integer);
  return true;
}

static void add_int(gbl_call *call, const parameter *p, int index, gbl_value *out, bool dims) {
  int64_t value;
  if (!gbl_test_integer(call->L, index, &value)) wrong_kind(call, p, index);
  if (out->count == GB_MAX_NDIM) gbl_refuse(call, "'%s' has more than %d elements", p->name, GB_MAX_NDIM);
  out->ints[out->count++] = dims ? from_zero(call, p, value) : value;
}

static bool read_int_list(gbl_call *call, const parameter *p, int index, gbl_value *out, bool dims) {
  lua_State *L = call->L;
  out->count = 0;
  if (lua_type(L, index) == LUA_TNUMBER) { add_int(call, p, index, out, dims); return true; }
  if (lua_type(L, index) != LUA_TTABLE) return false;
  refuse_names(call, p, index);
  lua_Unsigned n = lua_rawlen(L, index);
  luaL_checkstack(L, 2, GBL_NO_STACK);
  for (lua_Unsigned i = 1; i <= n; i++) {
    lua_rawgeti(L, index, (lua_Integer)i);
    add_int(call, p, lua_gettop(L), out, dims);
    lua_pop(L, 1);
  }
  return true;
}

static bool read_ints(gbl_call *call, const parameter *p, int index,
                      gbl_value *out) { return read_int_list(call, p, index, out, false); }
/* A list of sizes, where numbers that are written out would pass for what follows. */
static bool read_shape(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  return lua_type(call->L, index) == LUA_TTABLE && read_int_list(call, p, index, out, false);
}
static bool read_dims(gbl_call *call, const parameter *p, int index,
                      gbl_value *out) { return read_int_list(call, p, index, out, true); }

static bool read_number(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (lua_type(call->L, index) != LUA_TNUMBER) return false;
  out->number = lua_tonumber(call->L, index);
  gbl_test_integer(call->L, index, &out->integer);
  return true;
}

static bool read_bool(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (!lua_isboolean(call->L, index)) return false;
  out->number = (double)(out->integer = lua_toboolean(call->L, index));
  return true;
}

static bool read_string(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (lua_type(call->L, index) != LUA_TSTRING) return false;
  out->string = lua_tolstring(call->L, index, &out->length);
  return true;
}

static bool read_path(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  if (!read_string(call, p, index, out)) return false;
  gbl_check_path(call->L, index, gbl_who(call));
  if (!out->length) gbl_refuse(call, "'%s' is empty", p->name);
  return true;
}

static bool read_dtype(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (lua_type(call->L, index) != LUA_TSTRING) return false;
  out->dtype = gbl_check_dtype(call->L, index, gbl_who(call));
  out->integer = out->dtype;
  return true;
}

static bool read_device(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p;
  if (lua_type(call->L, index) != LUA_TSTRING) return false;
  out->device = gbl_check_device(call->L, index);
  return true;
}

/* A function, or what has __call. */
static bool read_function(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p, (void)out;
  return gbl_is_callable(call->L, index);
}

/* A module; extend is called on a class too. */
static bool read_module(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)out;
  if (p->is_self && lua_type(call->L, index) == LUA_TTABLE && !strcmp(gbl_who(call), "extend")) {
    bool is_class = gbl_raw_field(call->L, index, "__values") == LUA_TTABLE;
    lua_pop(call->L, 1);
    if (is_class) return true;
  }
  if (lua_type(call->L, index) != LUA_TTABLE || luaL_getmetafield(call->L, index, "__module") == LUA_TNIL) return false;
  bool is_module = lua_toboolean(call->L, -1);
  lua_pop(call->L, 1);
  return is_module;
}

static bool read_scope(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)p, (void)out;
  return luaL_testudata(call->L, index, "gibbous.scope") != NULL;
}

/* A word in quotes is matched by the reader itself. */
static bool read_word(gbl_call *call, const parameter *p, int index,
                      gbl_value *out) { return read_string(call, p, index, out); }

/* Objects are read by read_object, which has the name of their kind. */
static bool read_nothing(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  (void)call, (void)p, (void)index, (void)out;
  return false;
}

static const kind kinds[] = {
  { "tensor", "a tensor", read_tensor, NO_TABLE },
  { "tensors", "a tensor or a list of tensors", read_tensors, LIST },
  { "int", "an integer", read_int, NO_TABLE },
  { "size", "a whole number from 1", read_size, NO_TABLE },
  { "count", "a whole number from 0", read_count, NO_TABLE },
  { "dim", "a dimension (from 1; -1 is the last)", read_position, NO_TABLE },
  { "position", "a position (from 1; -1 is the last)", read_position, NO_TABLE },
  { "ints", "an integer or a list of integers", read_ints, LIST },
  { "sizes", "integers, such as 2, 3 or { 2, 3 }", read_ints, LIST },
  { "shape", "a list of integers, such as { 2, 3 }", read_shape, LIST },
  { "dims", "a dimension or a list of dimensions (from 1; -1 is the last)", read_dims, LIST },
  { "number", "a number", read_number, NO_TABLE },
  { "bool", "true or false", read_bool, NO_TABLE },
  { "string", "a string", read_string, NO_TABLE },
  { "path", "the path of a file or folder, a string", read_path, NO_TABLE },
  { "dtype", "the name of a dtype, such as 'float32'", read_dtype, NO_TABLE },
  { "device", "a device, such as 'cpu'", read_device, NO_TABLE },
  { "function", "a function", read_function, ANY_TABLE },
  { "list", "a list", read_list, LIST },
  { "table", "a table", read_table, ANY_TABLE },
  { "tree", "a table", read_table, ANY_TABLE },
  { "module", "a module of gb.nn", read_module, ANY_TABLE },
  { "scope", "a scope", read_scope, NO_TABLE },
  { "class", "a class", read_any, ANY_TABLE },
  { "any", "a value", read_any, ANY_TABLE },
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static const kind word_kind = { "word", NULL, read_word, NO_TABLE },
    object_kind = { "object", NULL, read_nothing, ANY_TABLE };

/* The object at index, where it is one of this kind: the userdata itself, or the native object that the Lua half keeps
 * for it. */
static bool read_object(gbl_call *call, const char *name, int index, gbl_value *out) {
  lua_State *L = call->L;
  char type[48];
  luaL_checkstack(L, 4, GBL_NO_STACK);
  bool closing = !strcmp(gbl_who(call), "close"); /* which may come twice */
  if (lua_type(L, index) == LUA_TUSERDATA) {
    snprintf(type, sizeof type, "gibbous.%s", name);
    if (!luaL_testudata(L, index, type)) return false;
    out->native = index;
    out->object = gbl_held_object(L, index);
    if (!out->object && !closing) gbl_refuse(call, "this %s was closed", name);
    return true;
  }
  if (!push_private(L, call->state, index, name)) return false;
  out->own = lua_gettop(L);
  if (gbl_raw_field(L, out->own, "native") != LUA_TUSERDATA) lua_pop(L, 1);
  else {
    out->native = lua_gettop(L);
    out->object = gbl_held_object(L, out->native);
    if (!out->object && !closing) gbl_refuse(call, "this %s was closed", name);
  }
  return true;
}

/* Read the value at index as the first of p's kinds that it is; an error where it is none of them. */
static void read_value(gbl_call *call, const parameter *p, int index, gbl_value *out) {
  lua_State *L = call->L;
  out->given = true;
  out->index = index;
  for (int i = 0; i < p->count; i++) {
    const choice *c = &p->choices[i];
    bool is_it = c->kind == &object_kind ? read_object(call, c->word, index, out) : c->kind->read(call, p, index, out);
    if (is_it && c->kind == &word_kind) is_it = !strcmp(out->string, c->word) && strlen(out->string) == out->length;
    if (!is_it) continue;
    out->kind = c->kind == &object_kind ? c->word : c->kind->name;
    return;
  }
  if (lua_type(L, index) == LUA_TSTRING && p->choices[0].kind == &word_kind) { /* a misspelt word */
    const char *known[MOST_KINDS + 1];
    int n = 0;
    for (int i = 0; i < p->count; i++)
      if (p->choices[i].kind == &word_kind) known[n++] = p->choices[i].word;
    known[n] = NULL;
    const char *near = gbl_nearest(gbl_check_name(L, index, gbl_who(call)), known), *expected = push_expected(L, p);
    gbl_refuse(call, "'%s' must be %s, got '%.60s'%s%s%s", p->name, expected, lua_tostring(L, index),
               near ? "; did you mean '" : "",
               near ? near : "", near ? "'?" : "");
  }
  wrong_kind(call, p, index);
}

/* ====} */

/* {==== Parsing a signature ==== */

static const kind *find_kind(const char *name) {
  for (int i = 0; i < KINDS; i++)
    if (!strcmp(kinds[i].name, name)) return &kinds[i];
  return NULL;
}

static int bad_signature(lua_State *L, const char *text, const char *why) {
  return luaL_error(L, "gibbous: the record '%s' has a signature that cannot be read: %s", text, why);
}

/* Skip blanks. */
static char *skip(char *at) {
  while (*at == ' ') at++;
  return at;
}

/* Read `word` or `kind` at *at into c, and move on. */
static void parse_choice(lua_State *L, const char *record, char **at, choice *c) {
  char *start = skip(*at);
  if (*start == '"') {
    char *end = strchr(++start, '"');
    if (!end) bad_signature(L, record, "a word has no end");
    *end = '\0';
    *c = (choice){ &word_kind, start };
    *at = end + 1;
    return;
  }
  char *end = start + strspn(start, "abcdefghijklmnopqrstuvwxyz0123456789_"), after = *end;
  *end = '\0';
  const kind *known = find_kind(start);
  if (known) *c = (choice){ known, NULL };
  else if (find_object_kind(start, false) >= 0)
    *c = (choice){ &object_kind, object_kinds[find_object_kind(start, false)].name };
  else bad_signature(L, record, start);
  *end = after;
  *at = end;
}

/* What the argument is when it is not given: the default as it is written. */
static gbl_value preset_of(const parameter *p) {
  gbl_value v = { .kind = p->choices[0].kind->name, .dtype = GB_DTYPE_NONE };
  const char *text = p->preset;
  if (!text) return v;
  if (*text == '"') {
    v.string = text + 1;
    v.length = strlen(v.string);
  } else if (!strcmp(text, "true") || !strcmp(text, "false")) v.number = (double)(v.integer = *text == 't');
  else {
    v.number = strtod(text, NULL);
    v.integer = strtoll(text, NULL, 10);
    if (p->choices[0].kind->read == read_position) v.integer -= v.integer > 0;
    for (int i = 0; i < GB_MAX_NDIM; i++) v.ints[i] = v.integer;
  }
  return v;
}

/* One argument, between start and the comma, semicolon or end behind it, which has become a NUL. */
static void parse_parameter(lua_State *L, const char *record, char *at, parameter *p) {
  at = skip(at);
  p->name = at;
  at += strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  char *name_end = at;
  if (at == p->name) bad_signature(L, record, "an argument has no name");
  if (*at == '?') p->optional = true, at++;
  else if (!strncmp(at, "...", 3)) p->rest = p->optional = true, at += 3;
  at = skip(at);
  if (*at == ':') {
    do {
      at++;
      if (p->count == MOST_KINDS) bad_signature(L, record, "an argument has too many kinds");
      parse_choice(L, record, &at, &p->choices[p->count++]);
      at = skip(at);
    } while (*at == '|');
  } else p->choices[p->count++].kind = find_kind("tensor");
  if (*at == '=') {
    char *preset = skip(at + 1), *end = preset + strlen(preset);
    while (end > preset && end[-1] == ' ') *--end = '\0';
    if (*preset == '"' && end > preset + 1) end[-1] = '\0';
    p->preset = preset;
    p->optional = true;
  } else if (*at) bad_signature(L, record, at);
  *name_end = '\0';
  p->spreads = !p->named && !strcmp(p->choices[0].kind->name, "sizes");
  p->otherwise = preset_of(p);
}

/* The kind of the self of a method of this class. */
static choice self_choice(const char *class) {
  int object = find_object_kind(class, true);
  if (object >= 0) return (choice){ &object_kind, object_kinds[object].name };
  const kind *known = find_kind(class);
  return (choice){ known ? known : find_kind("module"), NULL }; /* a method of a layer: any module, since classes
                                                                   descend from it */
}

/* The last comma or semicolon before which arguments end, outside quotes and brackets; or the end. */
static char *argument_end(char *at) {
  int depth = 0;
  bool quoted = false;
  for (; *at; at++) {
    if (*at == '"') quoted = !quoted;
    else if (!quoted && strchr("{[(", *at)) depth++;
    else if (!quoted && strchr("}])", *at)) depth--;
    else if (!quoted && depth == 0 && (*at == ',' || *at == ';')) break;
  }
  return at;
}

/* Push the signature of a record, parsed. method: it has a self, a module, though its path does not say so
 * (constructors of layers). */
static gbl_signature *push_signature(lua_State *L, const char *record, bool method) {
  const char *open = strchr(record, '('), *close = open;
  for (int depth = 0; close && *close; close++) {
    if (*close == '(') depth++;
    if (*close == ')' && --depth == 0) break;
  }
  if (!open || !close || !*close) bad_signature(L, record, "it has no arguments in parentheses");
  size_t length = (size_t)(close - record) + 1, bytes = 3 * length + 3;
  gbl_signature *s = lua_newuserdatauv(L, sizeof *s + bytes, 0);
  memset(s, 0, sizeof *s + bytes);
  char *path = s->text, *arguments = path + length + 1, *shown = arguments + length + 1;
  memcpy(path, record, (size_t)(open - record));
  memcpy(arguments, open + 1, (size_t)(close - open - 1));
  memcpy(shown, open, (size_t)(close - open) + 1);
  s->shown = shown;
  char *colon = strchr(path, ':'), *dot = strrchr(path, '.');
  bool forward = colon && !strcmp(colon, ":forward"); /* which is called by the module's own name */
  s->who = forward ? path : colon ? colon + 1 : dot ? dot + 1 : path;
  if (colon || method) {
    if (colon) *colon = '\0';
    s->parameter[s->count] = (parameter){ .name = "self", .count = 1, .is_self = true };
    s->parameter[s->count++].choices[0] = self_choice(colon ? path : "module");
  }
  bool named = false;
  for (char *at = skip(arguments); *at;) {
    char *end = argument_end(at), mark = *end;
    if (s->count == GBL_MOST_ARGUMENTS) bad_signature(L, record, "it has too many arguments");
    *end = '\0';
    if (*skip(at)) {
      parameter *p = &s->parameter[s->count++];
      p->named = named;
      parse_parameter(L, record, at, p);
      if (named) p->optional |= p->preset != NULL;
    }
    if (mark == ';') named = s->has_options = true;
    if (!mark) break;
    at = skip(end + 1);
  }
  while (s->positional < s->count && !s->parameter[s->positional].named) s->positional++;
  for (int i = 0; i < s->count; i++)
    for (int c = 0; c < s->parameter[i].count; c++) s->holds |= s->parameter[i].choices[c].kind == &object_kind;
  return s;
}

/* ====} */

/* {==== Reading a call ==== */

/* Does the table at index have a key, and are its keys names alone? */
static bool has_names(lua_State *L, int index) {
  if (lua_rawlen(L, index) > 0) return false;
  luaL_checkstack(L, 3, GBL_NO_STACK);
  lua_pushnil(L);
  if (!lua_next(L, index)) return false;
  lua_pop(L, 2);
  return true;
}

/* Is the table at index, in the place of p, the table of options? */
static bool is_options(gbl_call *call, const parameter *p, int index, int last) {
  lua_State *L = call->L;
  if (!call->signature->has_options || index != last || lua_type(L, index) != LUA_TTABLE) return false;
  bool list = false, sizes = false;
  for (int i = 0; i < p->count; i++) {
    const choice *c = &p->choices[i];
    list |= c->kind->table == LIST;
    sizes |= c->kind->read == read_shape || !strcmp(c->kind->name, "sizes"); /* {} is a shape */
    if (c->kind->table != ANY_TABLE) continue;
    if (c->kind == &object_kind) {
      if (!gbl_push_private(L, index, c->word)) continue;
      lua_pop(L, 1);
      return false;
    }
    if (c->kind->read != read_function && c->kind->read != read_module) return false;
    if (luaL_getmetafield(L, index, c->kind->read == read_function ? "__call" : "__module") == LUA_TNIL) continue;
    lua_pop(L, 1);
    return false;
  }
  if (!list) return true;
  if (has_names(L, index)) return true;
  return lua_rawlen(L, index) == 0 && p->optional && !sizes;
}

/* The names of the arguments that have no default, and so no name in the table: "inputs, outputs". */
static const char *positional_names(gbl_call *call) {
  const gbl_signature *s = call->signature;
  luaL_Buffer names;
  luaL_buffinit(call->L, &names);
  int count = 0;
  for (int i = 0; i < s->count; i++) {
    const parameter *p = &s->parameter[i];
    if (p->optional || p->named || p->is_self || p->rest) continue;
    if (count++) luaL_addstring(&names, ", ");
    luaL_addstring(&names, p->name);
  }
  luaL_pushresult(&names);
  return lua_tostring(call->L, -1);
}

/* Raise: there is no option of that name. */
static int unknown_option(gbl_call *call, const char *name) {
  const gbl_signature *s = call->signature;
  const char *known[GBL_MOST_ARGUMENTS + 1];
  int n = 0;
  for (int i = 0; i < s->count; i++)
    if (s->parameter[i].optional || s->parameter[i].named) known[n++] = s->parameter[i].name;
  known[n] = NULL;
  const char *near = gbl_nearest(name, known), *here = gbl_ported_option(name);
  if (here) return gbl_refuse(call, "unknown option '%.60s'; %s", name, here);
  if (near) return gbl_refuse(call, "unknown option '%.60s'; did you mean '%s'?", name, near);
  luaL_Buffer names;
  luaL_buffinit(call->L, &names);
  for (int i = 0; i < n; i++) {
    if (i > 0) luaL_addstring(&names, ", ");
    luaL_addstring(&names, known[i]);
  }
  luaL_pushresult(&names);
  const char *list = n ? lua_tostring(call->L, -1) : "none", *first = positional_names(call);
  if (*first)
    return gbl_refuse(call, "unknown option '%.60s'; it takes %s, and %s before the table", name, list, first);
  return gbl_refuse(call, "unknown option '%.60s'; it takes %s", name, list);
}

/* Read the table of options: what it holds stays on the stack below its keys. */
static void read_options(gbl_call *call, int index) {
  lua_State *L = call->L;
  const gbl_signature *s = call->signature;
  refuse_object(call, "options", index);
  luaL_checkstack(L, 4 * GBL_MOST_ARGUMENTS + 8, GBL_NO_STACK);
  for (lua_pushnil(L); lua_next(L, index);) {
    if (lua_type(L, -2) != LUA_TSTRING)
      gbl_refuse(call, "options have names, such as { %s = ... }", s->parameter[s->count - 1].name);
    const char *name = gbl_check_name(L, -2, gbl_who(call));
    int key = lua_gettop(L) - 1, i = 0;
    while (i < s->count && (!(s->parameter[i].optional || s->parameter[i].named) || s->parameter[i].rest ||
                            strcmp(s->parameter[i].name, name))) i++;
    if (i == s->count) unknown_option(call, name);
    if (call->value[i].given) gbl_refuse(call, "'%s' is given twice", name);
    read_value(call, &s->parameter[i], key + 1, &call->value[i]);
    lua_pushvalue(L, key);
  }
}

/* `name...`: what follows, each of the argument's kind. Tensors become a list. */
static void read_rest(gbl_call *call, const parameter *p, int index, int last, gbl_value *out) {
  lua_State *L = call->L;
  bool tensors = p->choices[0].kind->read == read_tensor;
  *out = (gbl_value){ .kind = p->choices[0].kind->name, .given = last >= index, .index = index,
                      .count = last - index + 1 };
  if (out->count < 0) out->count = 0;
  luaL_checkstack(L, 4, GBL_NO_STACK);
  if (tensors) out->tensors = lua_newuserdatauv(L, sizeof *out->tensors * ((size_t)out->count + 1), 0);
  for (int i = 0; i < out->count; i++) {
    gbl_value one = { .count = 0 };
    read_value(call, p, index + i, &one);
    if (tensors) out->tensors[i] = one.tensor;
  }
}

/* Sizes that are written out: zeros(2, 3). Returns how many values they took. */
static int read_written_out(gbl_call *call, const parameter *p, int index, int last, gbl_value *out) {
  int taken = 0;
  for (; index + taken <= last && lua_type(call->L, index + taken) == LUA_TNUMBER; taken++)
    add_int(call, p, index + taken, out, false);
  out->kind = "sizes";
  out->given = true;
  out->index = index;
  return taken;
}

static int too_many(gbl_call *call, int index) {
  const gbl_signature *s = call->signature;
  if (lua_type(call->L, index) == LUA_TTABLE && has_names(call->L, index)) { /* options where there are none */
    lua_pushnil(call->L);
    lua_next(call->L, index);
    const char *name = lua_type(call->L, -2) == LUA_TSTRING ? lua_tostring(call->L, -2) : "";
    const char *here = gbl_ported_option(name);
    if (here) return gbl_refuse(call, "it takes no option '%s'; %s", name, here);
  }
  int most = s->positional - (s->count > 0 && s->parameter[0].is_self);
  if (s->positional < s->count)
    return gbl_refuse(call, "too many arguments; what comes after the first %d is named, in a table: { %s = ... }",
                      most, s->parameter[s->positional].name);
  return gbl_refuse(call, "too many arguments: it takes %d (%s%s)", most, s->who, s->shown);
}

/* Is the first argument any value, a module of the library among them? */
static bool takes_any(const gbl_signature *s) { return s->count > 0 &&
                                                s->parameter[0].choices[0].kind->read == read_any; }

/* Raise where a list that is written out, as in zeros(2, 3), has something else among its integers. */
static void check_written_out(gbl_call *call, const parameter *p, int index, int last) {
  int type = lua_type(call->L, index);
  if (!p->spreads || type == LUA_TTABLE || (type == LUA_TNIL && index == last)) return;
  int self = call->signature->parameter[0].is_self;
  gbl_refuse(call, "'%s' are integers, got %s as argument %d", p->name, gbl_type_name(call->L, index), index - self);
}

/* Read all arguments of the call, which are the whole stack. */
static void read_arguments(gbl_call *call) {
  lua_State *L = call->L;
  const gbl_signature *s = call->signature;
  int last = lua_gettop(L), index = 1, i = 0;
  luaL_checkstack(L, 16, GBL_NO_STACK);
  for (int k = 0; k < s->count; k++) call->value[k] = s->parameter[k].otherwise;
  bool has_rest = s->positional > 0 && s->parameter[s->positional - 1].rest;
  while (last > 0 && !has_rest && lua_isnil(L, last)) last--;
  if (last > 0 && !takes_any(s)) gbl_check_dot(L, 1, s->who);
  for (; i < s->positional && index <= last; i++) {
    const parameter *p = &s->parameter[i];
    gbl_value *out = &call->value[i];
    if (p->rest) {
      int end = s->has_options && lua_type(L, last) == LUA_TTABLE && last >= index &&
          p->choices[0].kind->read != read_any ? last - 1 : last;
      read_rest(call, p, index, end, out);
      index = end + 1;
    } else if (lua_isnil(L, index)) {
      if (index < last && lua_type(L, index + 1) == LUA_TNUMBER) check_written_out(call, p, index, last);
      index++;
    } else if (is_options(call, p, index, last)) break;
    else if (p->spreads && lua_type(L, index) == LUA_TNUMBER) index += read_written_out(call, p, index, last, out);
    else read_value(call, p, index++, out);
  }
  if (index <= last) {
    if (i > 0) check_written_out(call, &s->parameter[i - 1], index, last);
    if (index == last && s->has_options && lua_type(L, index) == LUA_TTABLE) read_options(call, index);
    else if (index == last && s->has_options)
      gbl_refuse(call, "expects a table of options, such as { %s = ... }, got %s",
                 s->parameter[s->positional < s->count ? s->positional : s->count - 1].name, gbl_type_name(L, index));
    else too_many(call, index);
  }
  for (int k = 0; k < s->count; k++) {
    const parameter *p = &s->parameter[k];
    if (call->value[k].given || p->optional) continue;
    if (p->is_self) {
      lua_pushnil(L);
      wrong_kind(call, p, lua_gettop(L));
    }
    gbl_refuse(call, "'%s' is missing (%s%s)", p->name, s->who, s->shown);
  }
}

const gbl_value *gbl_argument(const gbl_call *call, const char *name) {
  const gbl_signature *s = call->signature;
  for (int i = 0; i < s->count; i++)
    if (*s->parameter[i].name == *name && !strcmp(s->parameter[i].name, name)) return &call->value[i];
  luaL_error(call->L, "gibbous: %s has no argument '%s'", s->who, name);
  return NULL;
}

/* ====} */

/* {==== Calling ==== */

/* Has the call objects that must stay open while it runs? */
static bool has_objects(const gbl_call *call) {
  for (int i = 0; call->signature->holds && i < call->signature->count; i++)
    if (call->value[i].object) return true;
  return false;
}

/* Pin the objects of a call and retain its tensors, or undo both. */
static void hold(gbl_call *call, lua_State *L, bool on) {
  for (int i = 0; i < call->signature->count; i++) {
    gbl_value *v = &call->value[i];
    if (v->object) gbl_pin_object(L, v->native, on ? 1 : -1);
    if (v->tensor && on) gb_tensor_retain(v->tensor);
    if (v->tensor && !on) gb_tensor_release(v->tensor);
    for (int k = 0; v->tensors && k < v->count; k++) {
      if (on) gb_tensor_retain(v->tensors[k]);
      else gb_tensor_release(v->tensors[k]);
    }
  }
}

/* Protected: the arguments, and the call. */
static int run_body(lua_State *L) {
  gbl_call *call = lua_touserdata(L, -1);
  lua_pop(L, 1);
  call->L = L;
  return call->function->body(L, call);
}

/* Run the body with what it was given held, whatever it calls; an error is raised again when all is let go. */
static int run_held(lua_State *L, gbl_call *call) {
  int n = lua_gettop(L);
  luaL_checkstack(L, n + 4, GBL_NO_STACK);
  hold(call, L, true);
  lua_pushcfunction(L, run_body);
  for (int i = 1; i <= n; i++) lua_pushvalue(L, i);
  lua_pushlightuserdata(L, call);
  int status = lua_pcall(L, n + 1, LUA_MULTRET, 0);
  gbl_note(L, call->state);
  hold(call, L, false);
  if (status != LUA_OK) return lua_error(L);
  return lua_gettop(L) - n;
}

/* What every function does first. Upvalues: the state, what the caller's own is, the signature once it is parsed. */
static void begin_call(lua_State *L, gbl_call *call, const char *text, bool method) {
  gbl_state *state = gbl_note(L, lua_touserdata(L, lua_upvalueindex(1)));
  call->L = L;
  call->state = state;
  call->top = lua_gettop(L);
  if (state->late && lua_gc(L, LUA_GCISRUNNING) >= 0) gbl_end_late(state);
  call->signature = lua_touserdata(L, lua_upvalueindex(3));
  if (!call->signature) {
    luaL_checkstack(L, 4, GBL_NO_STACK);
    call->signature = push_signature(L, text, method);
    lua_replace(L, lua_upvalueindex(3));
  }
  read_arguments(call);
}

/* A function in C: upvalue 2 is its record. */
static int call_native(lua_State *L) {
  gbl_call call;
  gbl_check_stack(L); /* the call lies there, and may go into Lua */
  call.function = lua_touserdata(L, lua_upvalueindex(2));
  begin_call(L, &call, call.function->text, false);
  if (call.function->level & GBL_CALLS || has_objects(&call)) return run_held(L, &call);
  return call.function->body(L, &call);
}

/* A list of our own: the recipe's may change. Positions, which were read as from 0, count from 1 again. */
static void push_ints(lua_State *L, const gbl_value *v, bool positions) {
  lua_createtable(L, v->count, 0);
  for (int i = 0; i < v->count; i++) {
    lua_pushinteger(L, v->ints[i] + (positions && v->ints[i] >= 0));
    lua_rawseti(L, -2, i + 1);
  }
}

/* Push the value of an argument for a function in Lua: what was read, or the default. */
static void push_value(lua_State *L, const gbl_call *call, int i) {
  const parameter *p = &call->signature->parameter[i];
  const gbl_value *v = &call->value[i];
  if (!v->given) {
    if (!p->preset || !strcmp(p->preset, "nil")) lua_pushnil(L);
    else if (*p->preset == '"') lua_pushlstring(L, v->string, v->length);
    else if (!strcmp(p->preset, "true") || !strcmp(p->preset, "false")) lua_pushboolean(L, v->integer != 0);
    else lua_stringtonumber(L, p->preset);
    return;
  }
  if (v->kind && (!strcmp(v->kind, "int") || !strcmp(v->kind, "size") || !strcmp(v->kind, "count")))
    lua_pushinteger(L, v->integer);
  else if (v->kind && !strcmp(v->kind, "ints") && lua_type(L, v->index) == LUA_TNUMBER) lua_pushinteger(L, v->ints[0]);
  else if (v->kind && (!strcmp(v->kind, "sizes") || !strcmp(v->kind, "shape") ||
                       (!strcmp(v->kind, "ints") && lua_type(L, v->index) == LUA_TTABLE))) push_ints(L, v, false);
  else if (v->kind && !strcmp(v->kind, "dims") && lua_type(L, v->index) == LUA_TTABLE) push_ints(L, v, true);
  else lua_pushvalue(L, v->index);
}

static int finish_lua(lua_State *L, int status, lua_KContext base) {
  (void)status;
  return lua_gettop(L) - (int)base;
}

/* A function in Lua: upvalue 2 is its text, 4 the function, 5 whether it has a self that its path does not name. It
 * gets its positional arguments and then, where it has options, a table of them all with the defaults filled in. Tables
 * are copies, so no metatable of the recipe's is reached through them. */
static int call_lua(lua_State *L) {
  gbl_check_stack(L); /* the call lies there, and goes into Lua */
  gbl_call call;
  call.function = NULL;
  begin_call(L, &call, lua_tostring(L, lua_upvalueindex(2)), lua_toboolean(L, lua_upvalueindex(5)));
  const gbl_signature *s = call.signature;
  int base = lua_gettop(L);
  bool rest = s->positional > 0 && s->parameter[s->positional - 1].rest;
  luaL_checkstack(L, s->count + 8 + (rest ? call.value[s->positional - 1].count : 0), GBL_NO_STACK);
  lua_pushvalue(L, lua_upvalueindex(4));
  for (int i = 0; i < s->positional - rest; i++) push_value(L, &call, i);
  if (s->has_options) {
    lua_createtable(L, 0, s->count - s->positional);
    for (int i = s->positional; i < s->count; i++) {
      lua_pushstring(L, s->parameter[i].name);
      push_value(L, &call, i);
      lua_rawset(L, -3);
    }
  }
  if (rest) {
    const gbl_value *v = &call.value[s->positional - 1];
    for (int k = 0; k < v->count; k++) lua_pushvalue(L, v->index + k);
  }
  lua_callk(L, lua_gettop(L) - base - 1, LUA_MULTRET, base, finish_lua);
  return finish_lua(L, LUA_OK, base);
}

/* ====} */

/* {==== Records ==== */

/* Note a record for help(), the reference and the allow-list; its text is at the top of the stack, and is popped. */
static void note_record(lua_State *L, int level) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &records_key);
  lua_insert(L, -2);
  lua_Integer n = (lua_Integer)lua_rawlen(L, -2);
  lua_rawseti(L, -2, n + 1);
  lua_pushinteger(L, level);
  lua_rawseti(L, -2, n + 2);
  lua_pop(L, 1);
}

/* Push the last part of a record's path. */
static void push_last_name(lua_State *L, const char *text) {
  size_t path = strcspn(text, "( ");
  const char *start = text + path;
  while (start > text && start[-1] != '.' && start[-1] != ':') start--;
  lua_pushlstring(L, start, (size_t)(text + path - start));
}

void gbl_define(lua_State *L, const gbl_function *functions) {
  int table = lua_gettop(L);
  gbl_state *state = gbl_get_state(L);
  luaL_checkstack(L, 8, GBL_NO_STACK);
  for (const gbl_function *f = functions; f->body; f++) {
    push_last_name(L, f->text);
    lua_pushlightuserdata(L, state);
    lua_pushlightuserdata(L, (void *)f);
    lua_pushnil(L);
    lua_pushcclosure(L, call_native, 3);
    lua_rawset(L, table);
    lua_pushlightuserdata(L, (void *)f->text);
    note_record(L, f->level & ~GBL_CALLS);
  }
}

void gbl_describe(lua_State *L, const char *const *texts) {
  luaL_checkstack(L, 4, GBL_NO_STACK);
  for (; *texts; texts++) {
    lua_pushlightuserdata(L, (void *)*texts);
    note_record(L, GB_SANDBOX_STRICT);
  }
}

static const char *const level_names[] = { "none", "files", "strict", NULL };
static const gb_sandbox levels[] = { GB_SANDBOX_NONE, GB_SANDBOX_FILES, GB_SANDBOX_STRICT };

/* define(text, level, fn, method?) -> function: fn behind the reader; level is "none", "files" or "strict"; method: fn
 * has a self, a module, as constructors of layers do. */
static int define(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  gb_sandbox level = levels[luaL_checkoption(L, 2, NULL, level_names)];
  luaL_checktype(L, 3, LUA_TFUNCTION);
  lua_settop(L, 4);
  lua_pushvalue(L, 1);
  note_record(L, (int)level);
  lua_pushlightuserdata(L, gbl_get_state(L));
  lua_pushvalue(L, 1);
  lua_pushnil(L);
  lua_pushvalue(L, 3);
  lua_pushboolean(L, lua_toboolean(L, 4));
  lua_pushcclosure(L, call_lua, 5);
  return 1;
}

/* describe(text, level): the record of what is no function: a class, a field. */
static int describe(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  int level = (int)levels[luaL_checkoption(L, 2, NULL, level_names)];
  lua_settop(L, 1);
  note_record(L, level);
  return 0;
}

void gbl_push_levels(lua_State *L) {
  luaL_checkstack(L, 8, GBL_NO_STACK);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &records_key);
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  lua_createtable(L, 0, (int)n / 2);
  for (lua_Integer i = 1; i < n; i += 2) {
    lua_rawgeti(L, -2, i);
    const char *text = lua_islightuserdata(L, -1) ? lua_touserdata(L, -1) : lua_tostring(L, -1);
    lua_pushlstring(L, text, strcspn(text, "( "));
    lua_rawgeti(L, -4, i + 1);
    lua_rawset(L, -4);
    lua_pop(L, 1);
  }
  for (int i = 0; i < gbl_late_count; i++) {
    const gbl_late_row *row = &gbl_late_rows[i];
    if (row->level < 0) continue;
    lua_pushfstring(L, "%s.%s", row->path, row->name);
    lua_pushinteger(L, row->level);
    lua_rawset(L, -3);
  }
  lua_remove(L, -2);
}

int gbl_count_records(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &records_key);
  int count = (int)lua_rawlen(L, -1);
  lua_pop(L, 1);
  return count;
}

void gbl_drop_records(lua_State *L, int count) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &records_key);
  for (int i = (int)lua_rawlen(L, -1); i > count; i--) {
    lua_pushnil(L);
    lua_rawseti(L, -2, i);
  }
  lua_pop(L, 1);
}

/* records() -> { text, level, text, level, ... } of all chunks. */
static int records(lua_State *L) {
  gbl_load_all(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &records_key);
  int all = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, all);
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, all, i);
    if (lua_islightuserdata(L, -1)) {
      lua_pushstring(L, lua_touserdata(L, -1));
      lua_remove(L, -2);
    }
    lua_rawseti(L, -2, i);
  }
  return 1;
}

/* ====} */

/* {==== Tables, and what objects keep ==== */

int gbl_raw_field(lua_State *L, int table, const char *name) {
  table = lua_absindex(L, table);
  lua_pushstring(L, name);
  return lua_rawget(L, table);
}

/* Copy the table at index; `seen` is the index of a table from originals to copies. */
static void copy_table(lua_State *L, int index, bool deep, int depth, int seen, const char *who) {
  if (depth == MOST_DEPTH) gbl_error(L, "%s: a table is nested deeper than %d tables", who, MOST_DEPTH);
  luaL_checkstack(L, 8, GBL_NO_STACK);
  lua_newtable(L);
  int copy = lua_gettop(L);
  if (deep) {
    lua_pushvalue(L, index);
    lua_pushvalue(L, copy);
    lua_rawset(L, seen);
  }
  uint64_t entries = 0;
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    if (deep && lua_type(L, -1) == LUA_TTABLE) {
      lua_pushvalue(L, -1);
      if (lua_rawget(L, seen) == LUA_TNIL) {
        lua_pop(L, 1);
        copy_table(L, lua_gettop(L), deep, depth + 1, seen, who);
      }
      lua_replace(L, -2);
    }
    lua_pushvalue(L, -2);
    lua_pushvalue(L, -2);
    lua_rawset(L, copy);
    entries++;
  }
  if (entries) gbl_charge(L, entries);
  lua_settop(L, copy);
}

void gbl_push_copy(lua_State *L, int index, bool deep, const char *who) {
  index = lua_absindex(L, index);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  if (deep) lua_newtable(L);
  copy_table(L, index, deep, 0, deep ? lua_gettop(L) : 0, who);
  if (deep) lua_remove(L, -2);
}

bool gbl_push_private(lua_State *L, int index, const char *name) {
  return push_private(L, gbl_get_state(L), lua_absindex(L, index), name);
}

/* The private table at the top is kept for the object at index. */
static void keep_private(lua_State *L, int index, const char *name) {
  int known = find_object_kind(name, false);
  lua_pushstring(L, name);
  gbl_set_raw(L, -2, "kind");
  if (known >= 0) { /* its name is told by its address */
    lua_pushlightuserdata(L, (void *)object_kinds[known].name);
    lua_rawsetp(L, -2, &kind_mark);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, gbl_get_state(L)->private_reference);
  lua_pushvalue(L, index);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

void gbl_own(lua_State *L, int index, const char *name) {
  index = lua_absindex(L, index);
  luaL_checkstack(L, 6, GBL_NO_STACK);
  lua_newtable(L);
  keep_private(L, index, name);
}

/* own(object, kind, private) -> object: private is what the library keeps of this object; what is a native object there
 * is its field native. */
static int own(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const char *name = luaL_checkstring(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  keep_private(L, 1, name);
  lua_settop(L, 1);
  return 1;
}

/* private(object, kind?) -> table or nil */
static int private(lua_State *L) {
  luaL_checkany(L, 1);
  if (!gbl_push_private(L, 1, lua_isnoneornil(L, 2) ? NULL : luaL_checkstring(L, 2))) lua_pushnil(L);
  return 1;
}

/* precision_by(fn): fn(name) makes the precision that a string stands for where one is asked for. */
static int precision_by(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &precision_of_key);
  return 0;
}

/* copy(table, deep?) -> table: what the table holds, without metatables. */
static int copy(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  gbl_push_copy(L, 1, lua_toboolean(L, 2), "copy");
  return 1;
}

void gbl_open_reader(lua_State *L) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k"); /* weak keys: it goes with the object */
  gbl_set_raw(L, -2, "__mode");
  lua_setmetatable(L, -2);
  gbl_get_state(L)->private_reference = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &records_key);
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "define", define }, { "describe", describe }, { "own", own },
                                           { "private", private }, { "precision_by", precision_by },
                                           { "records", records }, { "copy", copy }, { NULL, NULL } });
  lua_pop(L, 1);
}

/* ====} */
