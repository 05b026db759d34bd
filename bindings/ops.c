/* ops.c - one Lua function per row of the op table: gb.<op>, x:<op>, F.<op> and x:<op>_ in place, and the operators.
 *
 * Arguments are read by the row's signature: positional ones in order, then a table of options, in which any argument
 * may also be named. Everything that can raise comes first; then the outputs' boxes, then wrapped numbers, then the
 * engine. `x + y` allocates its result and nothing else. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reader.h"

/* The arguments of one call, read but not yet acted on. */
typedef struct arguments {
  lua_State *L;
  gbl_state *state;
  const gb_op_info *info;
  bool in_place;
  int first, last;                 /* stack indices of the recipe's arguments */
  int n_in;
  gb_tensor *in[GB_MAX_IN], **list;/* inputs, borrowed; list: a row of "xs..." has all of its in a buffer on the
                                      stack */
  int at[GB_MAX_IN];               /* stack index of each input, 0: not there */
  bool number[GB_MAX_IN];          /* a Lua number at at[i], to be wrapped */
  gb_attr attrs[GB_MAX_ATTRS];
} arguments;

/* {==== Errors ==== */

/* Raise "op: text (signature)". */
static int reject(const arguments *a, const char *format, ...) GB_PRINTF(2, 3);
static int reject(const arguments *a, const char *format, ...) {
  char text[512];
  va_list list;
  gbl_check_dot(a->L, a->first, a->info->name);
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (gbl_is_library(a->L, a->first))
    return gbl_error(a->L, "%s: called with a colon; it is a function: gb.%s(...)", a->info->name, a->info->name);
  return gbl_error(a->L, "%s%s: %s (%s)", a->info->name, a->in_place ? "_" : "", text, GB_SIGNATURE(a->info));
}

static const char *const expected[] = {
  [GB_ARG_INT] = "an integer", [GB_ARG_DIM] = "a position (from 1; -1 is the last)",
      [GB_ARG_INTS] = "an integer or a list of integers",
  [GB_ARG_DIMS] = "a dimension or a list of dimensions (from 1; -1 is the last)", [GB_ARG_NUMBER] = "a number",
      [GB_ARG_BOOL] = "true or false",
  [GB_ARG_CHOICE] = "a string", [GB_ARG_TEXT] = "a string", [GB_ARG_DTYPE] = "the name of a dtype",
};

/* Of two tensors, element by element: what PyTorch has under the name of a reduction. */
static const struct { gb_op op; const char *of_two; } elementwise[] = {
  { GB_OP_max, "gb.maximum(x, y)" }, { GB_OP_min, "gb.minimum(x, y)" },
};

static int wrong_type(const arguments *a, const gb_attr_info *attr, int index) {
  for (size_t i = 0; i < sizeof elementwise / sizeof *elementwise; i++)
    if (a->info->op == elementwise[i].op && gbl_test_tensor(a->L, index))
      return reject(a, "'%s' must be %s, got a tensor; of two tensors, element by element, it is %s", attr->name,
                    expected[attr->type], elementwise[i].of_two);
  char got[40];
  if (lua_type(a->L, index) == LUA_TNUMBER)
    return reject(a, "'%s' must be %s, got %s", attr->name, expected[attr->type],
                  gbl_number_text(a->L, index, got, sizeof got));
  return reject(a, "'%s' must be %s, got %s", attr->name, expected[attr->type], gbl_type_name(a->L, index));
}

/* ====} */

/* {==== Attributes ==== */

static int64_t dim_value(const arguments *a, const gb_attr_info *attr, int64_t value) {
  if (value == 0)
    reject(a, "%s 0 for '%s': positions count from 1, and -1 is the last",
           strstr(attr->name, "dim") ? "dimension" : "position", attr->name);
  return value > 0 ? value - 1 : value;
}

/* One element of a list attribute. */
static void add_int(const arguments *a, const gb_attr_info *attr, gb_attr *out, int index) {
  int64_t value;
  if (!gbl_test_integer(a->L, index, &value)) wrong_type(a, attr, index);
  if (out->count == GB_MAX_NDIM) reject(a, "'%s' has more than %d elements", attr->name, GB_MAX_NDIM);
  out->ints[out->count++] = attr->type == GB_ARG_DIMS ? dim_value(a, attr, value) : value;
}

static void read_ints(const arguments *a, const gb_attr_info *attr, gb_attr *out, int index) {
  lua_State *L = a->L;
  *out = gb_attr_empty();
  if (lua_type(L, index) != LUA_TTABLE) { add_int(a, attr, out, index); return; }
  int64_t count = (int64_t)lua_rawlen(L, index);
  for (int64_t i = 1; i <= count; i++) {
    lua_rawgeti(L, index, i);
    add_int(a, attr, out, lua_gettop(L));
    lua_pop(L, 1);
  }
}

/* The string stays on the stack during the call, and a text of C ends at its first NUL. */
static void read_string(const arguments *a, const gb_attr_info *attr, gb_attr *out, int index) {
  size_t length;
  if (lua_type(a->L, index) != LUA_TSTRING) wrong_type(a, attr, index);
  *out = gb_attr_text(lua_tolstring(a->L, index, &length));
  if (strlen(out->text) != length) reject(a, "'%s' has a NUL in it", attr->name);
}

gb_attr gbl_number_attr(lua_State *L, int index) {
  if (lua_isboolean(L, index)) return gb_attr_whole(lua_toboolean(L, index));
  return lua_isinteger(L, index) ? gb_attr_whole(lua_tointeger(L, index)) : gb_attr_num(lua_tonumber(L, index));
}

const char *gbl_number_text(lua_State *L, int index, char *text, size_t size) {
  gb_attr number = gbl_number_attr(L, index);
  return gb_number_text(&number, text, size);
}

static void read_attr(arguments *a, int which, int index) {
  lua_State *L = a->L;
  const gb_attr_info *attr = &a->info->attrs[which];
  gb_attr *out = &a->attrs[which];
  int64_t integer;
  out->given = true;
  switch (attr->type) {
    case GB_ARG_INT:
    case GB_ARG_DIM:
      if (!gbl_test_integer(L, index, &integer)) wrong_type(a, attr, index);
      out->integer = attr->type == GB_ARG_DIM ? dim_value(a, attr, integer) : integer;
      break;
    case GB_ARG_INTS:
    case GB_ARG_DIMS:
      if (!attr->choices || lua_type(L, index) != LUA_TSTRING) { read_ints(a, attr, out, index); break; }
      read_string(a, attr, out, index);
      integer = gb_word_find(out->text);
      if (integer == GB_WORD_UNKNOWN) reject(a, "'%s' is '%s'; it is %s, or one of %s", attr->name, out->text,
                                             expected[attr->type], attr->choices);
      *out = gb_attr_empty();
      out->exact = integer;
      break;
    case GB_ARG_NUMBER:
      /* mask fills */
      if (lua_type(L, index) != LUA_TNUMBER && !(lua_isboolean(L, index) && !strcmp(attr->name, "value")))
        wrong_type(a, attr, index);
      *out = gbl_number_attr(L, index);
      break;
    case GB_ARG_BOOL:
      if (!lua_isboolean(L, index)) wrong_type(a, attr, index);
      out->integer = lua_toboolean(L, index);
      break;
    case GB_ARG_CHOICE:
    case GB_ARG_TEXT: read_string(a, attr, out, index); break;
    case GB_ARG_DTYPE: out->integer = gbl_check_dtype(L, index, a->info->name); break;
  }
}

/* ====} */

/* {==== Tensors ==== */

static void read_tensor(arguments *a, int which, int index) {
  lua_State *L = a->L;
  const gb_input_info *info = &a->info->in[which];
  a->at[which] = index;
  if ((a->in[which] = gbl_tensor_at(L, a->state, index))) return;
  if (info->number && lua_type(L, index) == LUA_TNUMBER && !(a->in_place && which == 0)) a->number[which] = true;
  else if (luaL_testudata(L, index, "gibbous.tensor")) reject(a, "'%s' is a tensor that was freed", info->name);
  else reject(a, "'%s' must be a tensor%s, got %s", info->name, info->number ? " or a number" : "",
              gbl_type_name(L, index));
}

/* "xs...": one table of tensors, or tensors one after another, behind room for the row's other tensors. Returns how
 * many arguments they took. */
static int read_list(arguments *a, int index) {
  lua_State *L = a->L;
  int before = a->info->list, count = 0;
  if (!gbl_test_tensor(L, index)) {
    gb_tensor **all = gbl_check_tensors(L, index, a->info->name, a->info->in[before].name, &count);
    a->list = all;
    if (before > 0) {
      a->list = lua_newuserdatauv(L, sizeof *a->list * (size_t)(before + count), 0);
      memcpy(a->list + before, all, sizeof *all * (size_t)count);
    }
    a->n_in = before + count;
    return 1;
  }
  while (index + count <= a->last && gbl_test_tensor(L, index + count)) count++;
  a->list = lua_newuserdatauv(L, sizeof *a->list * (size_t)(before + count), 0);
  for (int i = 0; i < count; i++) a->list[before + i] = gbl_check_tensor(L, index + i);
  a->n_in = before + count;
  return count;
}

/* ====} */

/* {==== The whole call ==== */

/* Is the value at index a table of options, rather than a list? An empty table is options unless a list is expected. */
static bool is_options(const arguments *a, int index, bool list_expected) {
  lua_State *L = a->L;
  if (index != a->last || lua_type(L, index) != LUA_TTABLE || lua_rawlen(L, index) > 0) return false;
  lua_pushnil(L);
  if (!lua_next(L, index)) return !list_expected;
  lua_pop(L, 2);
  return true;
}

/* A list that is named: a table of tensors. */
static void read_list_option(arguments *a, int index) {
  int last = a->last;
  a->last = index;
  read_list(a, index);
  a->last = last;
}

/* The option's argument: attributes by name, then tensors. false: there is none. */
static bool read_option(arguments *a, const char *name, int index) {
  const gb_op_info *info = a->info;
  for (int i = 0; i < info->n_attrs; i++)
    if (!strcmp(info->attrs[i].name, name)) { read_attr(a, i, index); return true; }
  for (int i = 0; i < info->n_in; i++)
    if (!strcmp(info->in[i].name, name)) {
      if (a->at[i]) reject(a, "'%s' is given twice", name);
      if (i == info->list && a->list) reject(a, "'%s' is given twice", name);
      if (i == info->list) read_list_option(a, index);
      else read_tensor(a, i, index);
      if (!a->number[i]) a->at[i] = 0;
      return true;
    }
  return false;
}

static void read_options(arguments *a, int index) {
  lua_State *L = a->L;
  const gb_op_info *info = a->info;
  luaL_checkstack(L, 2 * (GB_MAX_IN + GB_MAX_ATTRS) + 8, GBL_NO_STACK);
  for (lua_pushnil(L); lua_next(L, index);) { /* values stay on the stack: the table may be weak */
    if (lua_type(L, -2) != LUA_TSTRING)
      reject(a, "options have names, such as {%s = ...}", info->n_attrs ? info->attrs[0].name : "name");
    const char *name = gbl_check_name(L, -2, info->name), *known[GB_MAX_IN + GB_MAX_ATTRS + 1];
    int key = lua_gettop(L) - 1;
    if (read_option(a, name, key + 1)) { lua_pushvalue(L, key); continue; }
    int count = 0;
    for (int i = 0; i < info->n_attrs; i++) known[count++] = info->attrs[i].name;
    for (int i = 0; i < info->n_in; i++)
      if (info->in[i].optional) known[count++] = info->in[i].name;
    known[count] = NULL;
    const char *nearest = gbl_nearest(name, known), *here = gbl_ported_option(name);
    if (here) reject(a, "unknown option '%s'; %s", name, here);
    if (nearest) reject(a, "unknown option '%s'; did you mean '%s'?", name, nearest);
    reject(a, "unknown option '%s'", name);
  }
}

/* A shape or dimensions as the last positional argument may be written out: x:view(2, 3), x:permute(2, 1). Sizes of
 * windows may not, since what follows them is a stride elsewhere. */
static bool may_spread(const gb_op_info *info, int position) {
  const gb_attr_info *attr = &info->attrs[info->position[position].index];
  return position == info->n_positions - 1 &&
      (attr->type == GB_ARG_DIMS || (attr->type == GB_ARG_INTS && !strcmp(attr->name, "shape")));
}

/* Read the positional argument p at stack index `index`; how many values it took, or -1 where the options begin. */
static int read_position(arguments *a, int p, int index) {
  lua_State *L = a->L;
  const gb_op_info *info = a->info;
  int which = info->position[p].index;
  if (!info->position[p].is_attr) {
    if (info->in[which].list) return read_list(a, index);
    if (lua_isnil(L, index)) return 1;
    if (is_options(a, index, false)) return -1;
    read_tensor(a, which, index);
    return 1;
  }
  gb_arg_type type = info->attrs[which].type;
  bool list = type == GB_ARG_INTS || type == GB_ARG_DIMS;
  if (lua_isnil(L, index)) return 1;
  if (is_options(a, index, list && info->attrs[which].required)) return -1;
  read_attr(a, which, index);
  int count = 1;
  if (list && lua_type(L, index) == LUA_TNUMBER && may_spread(info, p))
    for (; index + count <= a->last && lua_type(L, index + count) == LUA_TNUMBER; count++)
      add_int(a, &info->attrs[which], &a->attrs[which], index + count);
  return count;
}

/* What is left after the positional arguments: options, nils, or too much. */
static void read_rest(arguments *a, int index) {
  lua_State *L = a->L;
  while (a->last >= index && lua_isnil(L, a->last)) a->last--;
  if (index > a->last) return;
  if (is_options(a, index, false)) { read_options(a, index); return; }
  int named = 0;
  while (named < a->info->n_attrs && a->info->attrs[named].positional) named++;
  if (named < a->info->n_attrs)
    reject(a, "too many arguments; what comes after the first %d is named, in a table: {%s = ...}",
           a->info->n_positions, a->info->attrs[named].name);
  reject(a, "too many arguments: it takes %d", a->info->n_positions);
}

static void check_complete(const arguments *a) {
  const gb_op_info *info = a->info;
  if (info->n_in && (info->where & GB_WHERE_METHOD) && a->last < a->first)
    reject(a, "'%s' is missing; a method is called with a colon, %s:%s(...)", info->in[0].name, info->in[0].name,
           info->name);
  for (int i = 0; i < info->n_in; i++)
    if (i == info->list ? !a->list : !a->in[i] && !a->number[i] && !info->in[i].optional)
      reject(a, "'%s' is missing", info->in[i].name);
  for (int i = 0; i < info->n_attrs; i++)
    if (info->attrs[i].required && !a->attrs[i].given)
      reject(a, "'%s' is missing%s", info->attrs[i].name, strcmp(info->attrs[i].name, "shape") ? "" :
             "; that of one element without dimensions is {}");
}

/* Most calls, and operators: a tensor for every input, in order, and nothing else. False: read them one by one. */
static bool read_tensors(arguments *a) {
  const gb_op_info *info = a->info;
  if (a->last - a->first + 1 != info->n_in || !info->takes_tensors) return false;
  for (int i = 0; i < info->n_in; i++) {
    if (!(a->in[i] = gbl_tensor_at(a->L, a->state, a->first + i))) return false;
    a->at[i] = a->first + i;
  }
  return true;
}

static void read_arguments(arguments *a) {
  const gb_op_info *info = a->info;
  a->n_in = info->n_in;
  a->list = NULL;
  for (int i = 0; i < info->n_in; i++) a->in[i] = NULL, a->at[i] = 0, a->number[i] = false;
  for (int i = 0; i < info->n_attrs; i++) a->attrs[i].given = false;
  int index = a->first;
  if (read_tensors(a)) return;
  for (int p = 0; p < info->n_positions && index <= a->last; p++) {
    int taken = read_position(a, p, index);
    if (taken < 0) break;
    index += taken;
  }
  if (index <= a->last) read_rest(a, index);
  check_complete(a);
}

/* The number at index as a wrapped 0-d tensor. Most ops do not keep theirs, so the last one is used again, when nobody
 * else holds it. */
static gb_status wrap_number(lua_State *L, gbl_state *state, int index, gb_tensor **out) {
  bool whole = lua_isinteger(L, index);
  gb_tensor *last = state->numbers[whole];
  if (last && atomic_load(&last->refs) == 1 && atomic_load(&last->storage->refs) == 1 && !last->node &&
      !last->requires_grad) {
    if (whole) *(int64_t *)gb_data(last) = lua_tointeger(L, index);
    else *(double *)gb_data(last) = lua_tonumber(L, index);
  } else {
    gb_status status = whole ? gb_tensor_wrap_integer(state->context, lua_tointeger(L, index), &last)
                             : gb_tensor_wrap_number(state->context, lua_tonumber(L, index), &last);
    if (status != GB_OK) return status;
    gb_tensor_release(state->numbers[whole]);
    state->numbers[whole] = last;
  }
  gb_tensor_retain(*out = last);
  return GB_OK;
}

/* Replace numbers by wrapped tensors, which the caller releases; tensors before a list go in front of it. */
static gb_status wrap_numbers(arguments *a) {
  for (int i = 0; i < a->info->n_in; i++)
    if (a->number[i]) GB_TRY(wrap_number(a->L, a->state, a->at[i], &a->in[i]));
  for (int i = 0; i < a->info->list; i++) a->list[i] = a->in[i];
  return GB_OK;
}

static void release_numbers(arguments *a) {
  for (int i = 0; i < a->info->n_in; i++)
    if (a->number[i]) gb_drop(&a->in[i]);
}

/* The output in the box at `slot` becomes a value: the input's own where an op gave its input back, the known one, or
 * the box. */
static void finish_output(const arguments *a, int slot, gb_tensor *out) {
  lua_State *L = a->L;
  for (int i = 0; i < a->info->n_in && !a->list; i++) {
    if (a->in[i] != out || !a->at[i]) continue;
    ((gbl_box *)lua_touserdata(L, slot))->tensor = NULL;
    gb_tensor_release(out);
    lua_pushvalue(L, a->at[i]);
    lua_replace(L, slot);
    return;
  }
  if (slot == lua_gettop(L)) { gbl_finish_tensor(L); return; }
  lua_pushvalue(L, slot);
  gbl_finish_tensor(L);
  lua_replace(L, slot);
}

static int run_in_place(arguments *a) {
  gb_status status = wrap_numbers(a);
  if (status == GB_OK) status = gb_apply_(a->state->context, a->info->op, a->list ? a->list : a->in, a->n_in, a->attrs);
  release_numbers(a);
  gbl_check_status(a->L, status);
  lua_pushvalue(a->L, a->first);
  return 1;
}

static int run(arguments *a) {
  lua_State *L = a->L;
  int visible = a->info->n_out - a->info->n_hidden, base = lua_gettop(L);
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gbl_box *box[GB_MAX_OUT];
  for (int i = 0; i < visible; i++) box[i] = gbl_new_tensor_in(L, a->state);
  gb_status status = wrap_numbers(a);
  if (status == GB_OK)
    status = gb_apply(a->state->context, a->info->op, a->list ? a->list : a->in, a->n_in, a->attrs, out);
  release_numbers(a);
  gbl_check_status(L, status);
  while (visible > 1 && !out[visible - 1]) visible--; /* max without a dimension gives no indices */
  for (int i = 0; i < visible; i++) box[i]->tensor = out[i];
  for (int i = 0; i < visible; i++)
    if (out[i]) finish_output(a, base + 1 + i, out[i]);
  lua_settop(L, base + visible);
  return visible;
}

int gbl_call_op(lua_State *L, gbl_state *state, gb_op op, int first, bool in_place) {
  arguments a;
  a.L = L;
  a.state = state;
  a.info = gb_op_get(state->context, op);
  a.in_place = in_place;
  a.first = first;
  a.last = lua_gettop(L);
  luaL_checkstack(L, 16, GBL_NO_STACK);
  if (state->late && lua_gc(L, LUA_GCISRUNNING) >= 0) gbl_end_late(state);
  gbl_soft_mark(L, state); /* first: finalisers run, which may free what is given here */
  read_arguments(&a);
  return in_place ? run_in_place(&a) : run(&a);
}

/* ====} */

/* {==== Functions and operators ==== */

/* The op is a light userdata, which is read faster than a number. */
static gb_op upvalue_op(lua_State *L) { return (gb_op)(uintptr_t)lua_touserdata(L, lua_upvalueindex(2)); }

static int call_op(lua_State *L) { return gbl_call_op(L, gbl_upvalue(L), upvalue_op(L), 1, false); }
static int call_op_in_place(lua_State *L) { return gbl_call_op(L, gbl_upvalue(L), upvalue_op(L), 1, true); }

/* A gradient that is filled with 0 has no scale any more, as one that is zeroed. */
static int call_fill(lua_State *L) {
  bool zero = lua_type(L, 2) == LUA_TNUMBER && lua_tonumber(L, 2) == 0;
  int results = call_op_in_place(L);
  gb_tensor *filled = gbl_test_tensor(L, -1);
  if (zero && filled) gb_tensor_tag_zero(filled);
  return results;
}

/* Lua passes the operand of a unary operator twice. */
static int call_unary(lua_State *L) {
  lua_settop(L, 1);
  return call_op(L);
}

/* Where only the second may be a number and the order does not matter. */
static int call_commutative(lua_State *L) {
  lua_settop(L, 2);
  if (lua_type(L, 1) == LUA_TNUMBER) lua_insert(L, 1);
  return call_op(L);
}

/* Set the function `name` of a row into the table at `table`. */
static void set_op(lua_State *L, int table, const char *name, gb_op op, lua_CFunction function) {
  lua_pushlightuserdata(L, gbl_get_state(L));
  lua_pushlightuserdata(L, (void *)(uintptr_t)op);
  lua_pushcclosure(L, function, 2);
  gbl_set_raw(L, table, name);
}

/* PyTorch's second names of ops: those of NumPy, mostly. sgn is sign where no number is complex. */
static const gbl_alias aliases[] = {
  { "absolute", GB_OP_abs }, { "arccos", GB_OP_acos }, { "arccosh", GB_OP_acosh }, { "arcsin", GB_OP_asin },
  { "arcsinh", GB_OP_asinh }, { "arctan", GB_OP_atan }, { "arctan2", GB_OP_atan2 }, { "arctanh", GB_OP_atanh },
  { "clip", GB_OP_clamp }, { "concat", GB_OP_cat }, { "concatenate", GB_OP_cat }, { "divide", GB_OP_div },
  { "true_divide", GB_OP_div }, { "fix", GB_OP_trunc }, { "greater", GB_OP_gt }, { "greater_equal", GB_OP_ge },
  { "less", GB_OP_lt }, { "less_equal", GB_OP_le }, { "multiply", GB_OP_mul }, { "negative", GB_OP_neg },
  { "not_equal", GB_OP_ne }, { "sgn", GB_OP_sign }, { "subtract", GB_OP_sub }, { "swapaxes", GB_OP_transpose },
  { "swapdims", GB_OP_transpose }, { "moveaxis", GB_OP_movedim }, { "argwhere", GB_OP_nonzero },
  { "ravel", GB_OP_flatten },
};
enum { ALIASES = sizeof aliases / sizeof *aliases };

const gbl_alias *gbl_alias_at(int i) { return i < ALIASES ? &aliases[i] : NULL; }

bool gbl_is_op(const char *name) {
  for (int i = 0; i < ALIASES; i++)
    if (!strcmp(aliases[i].name, name)) return true;
  return gb_op_named(name) >= 0;
}

/* Set an op under a name wherever its row says: gb is the index of the library's table, F and methods follow. */
static void set_everywhere(lua_State *L, int gb, const gb_op_info *info, const char *name) {
  if (info->where & GB_WHERE_GB) set_op(L, gb, name, info->op, call_op);
  if (info->where & GB_WHERE_F) set_op(L, gb + 2, name, info->op, call_op);
  if (info->where & GB_WHERE_METHOD) set_op(L, gb + 3, name, info->op, call_op);
  if (!(info->where & GB_WHERE_INPLACE)) return;
  lua_pushfstring(L, "%s_", name);
  set_op(L, gb + 3, lua_tostring(L, -1), info->op, call_op_in_place);
  lua_pop(L, 1);
}

static void set_operators(lua_State *L) {
  static const struct { const char *event; gb_op op; lua_CFunction function; } operators[] = {
    { "__add", GB_OP_add, call_op }, { "__sub", GB_OP_sub, call_op }, { "__mul", GB_OP_mul, call_op },
        { "__div", GB_OP_div, call_op },
    { "__idiv", GB_OP_floor_divide, call_op }, { "__mod", GB_OP_remainder, call_op }, { "__pow", GB_OP_pow, call_op },
    { "__unm", GB_OP_neg, call_unary }, { "__band", GB_OP_bitwise_and, call_commutative },
        { "__bor", GB_OP_bitwise_or, call_commutative },
    { "__bxor", GB_OP_bitwise_xor, call_commutative }, { "__bnot", GB_OP_bitwise_not, call_unary },
  };
  luaL_getmetatable(L, "gibbous.tensor");
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
    set_op(L, lua_gettop(L), operators[i].event, operators[i].op, operators[i].function);
  lua_pop(L, 1);
}

/* Rows that have no name of their own in a recipe, but are methods in place. */
static const char *const in_place_records[] = {
  "tensor:copy_(source: tensor) -> tensor: The values of source, broadcast and converted. Example: "
  "gb.zeros(2):copy_(gb.ones(2))",
  "tensor:fill_(value: number) -> tensor: Every element becomes value. Example: gb.zeros(2):fill_(1)",
  "tensor:uniform_(low?: number, high?: number) -> tensor: Uniform random numbers in [low, high), 0 and 1 unless "
  "given. "
  "Example: gb.zeros(2):uniform_()",
  "tensor:normal_(mean?: number, std?: number) -> tensor: Normal random numbers, of mean 0 and deviation 1 unless "
  "given. "
  "Example: gb.zeros(2):normal_()",
  "tensor:random_integers_(low: int, high: int) -> tensor: Random integers low .. high - 1. "
  "Example: gb.zeros(2):random_integers_(0, 10)",
  NULL,
};

/* The ops that functions of the Lua half are made of, as native.inner: rows without a place of their own. */
static void set_inner_ops(lua_State *L, const gb_context *context) {
  gbl_push_module(L, "_native");
  gbl_push_module(L, "inner");
  for (int op = 0; op < GB_OP_COUNT; op++) {
    const gb_op_info *info = gb_op_get(context, op);
    if (!strcmp(info->family, "linalg") || !strcmp(info->family, "recurrent"))
      set_op(L, lua_gettop(L), info->name, info->op, call_op);
  }
  lua_pop(L, 2);
}

void gbl_open_ops(lua_State *L) {
  static const struct { const char *name; gb_op op; } in_place[] = {
    { "copy_", GB_OP_copy }, { "fill_", GB_OP_fill }, { "uniform_", GB_OP_uniform }, { "normal_", GB_OP_normal },
    { "random_integers_", GB_OP_random_integers },
  };
  gb_context *context = gbl_context(L);
  int gb = lua_gettop(L);
  gbl_push_module(L, "nn");
  gbl_push_module(L, "functional");
  gbl_push_methods(L);
  for (int op = 0; op < GB_OP_COUNT; op++) {
    const gb_op_info *info = gb_op_get(context, op);
    set_everywhere(L, gb, info, info->name);
  }
  for (int i = 0; i < ALIASES; i++) set_everywhere(L, gb, gb_op_get(context, aliases[i].op), aliases[i].name);
  for (size_t i = 0; i < sizeof in_place / sizeof *in_place; i++)
    set_op(L, gb + 3, in_place[i].name, in_place[i].op, in_place[i].op == GB_OP_fill ? call_fill : call_op_in_place);
  lua_settop(L, gb);
  set_inner_ops(L, context);
  gbl_describe(L, in_place_records);
  set_operators(L);
}

/* ====} */
