/* create.c - tensors from nothing and from Lua values: gb.tensor, zeros, arange, rand, ..., their *_like and t:new_* forms.
 *
 * Shapes are arguments or one table, then what else the function takes, then {dtype =, device =, requires_grad =}. Integers in a list give
 * int64, as in PyTorch; one float among them gives the default dtype. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "binding.h"

/* {==== What all of them share ==== */

/* Where and as what a tensor is made. */
typedef struct target { const char *who; gb_dtype dtype; gb_device device; bool requires_grad; } target;

/* Read the options at arg over the defaults of t. */
static target read_target(lua_State *L, int arg, target t) {
  static const char *const known[] = { "dtype", "device", "requires_grad", NULL };
  gbl_check_options(L, arg, t.who, known);
  t.dtype = gbl_option_dtype(L, arg, t.who, "dtype", t.dtype);
  t.device = gbl_option_device(L, arg, t.who, "device", t.device);
  t.requires_grad = gbl_option_boolean(L, arg, t.who, "requires_grad", false);
  if (lua_gettop(L) > arg) gbl_error(L, "%s: too many arguments; dtype, device and requires_grad go in a table", t.who);
  return t;
}

static target defaults(lua_State *L, const char *who) {
  const gbl_state *state = gbl_enter(L);
  return (target){ .who = who, .dtype = state->default_dtype, .device = state->default_device };
}

/* The tensor at the top is complete: mark it as asked. */
static int finish(lua_State *L, const target *t) {
  if (!t->requires_grad) return 1;
  gbl_check_status(L, gb_tensor_set_requires_grad(gbl_check_tensor(L, lua_gettop(L)), true));
  gbl_share_tensor(L, -1);
  return 1;
}

static gb_tensor *push_new(lua_State *L, const target *t, int ndim, const int64_t *shape) {
  gbl_state *state = gbl_get_state(L);
  gbl_soft_mark(L, state);
  gbl_box *box = gbl_new_tensor(L);
  state->context->op = t->who; /* for the text, should it fail */
  gb_status status = gb_tensor_new(state->context, t->dtype, ndim, shape, t->device, &box->tensor);
  state->context->op = NULL;
  gbl_check_status(L, status);
  gbl_finish_tensor(L);
  return box->tensor;
}

/* Run an in-place row on a fresh tensor. */
static void make(lua_State *L, gb_tensor *x, gb_op op, const gb_attr *attrs) {
  gbl_check_status(L, gb_apply_(gb_tensor_context(x), op, &x, 1, attrs));
}

static void make_filled(lua_State *L, gb_tensor *x, gb_attr value) { make(L, x, GB_OP_fill, &value); }

/* ====} */

/* {==== gb.tensor ==== */

/* What nested lists hold. */
typedef struct survey { int ndim; int64_t shape[GB_MAX_NDIM]; bool has_float, has_integer, has_bool; uint64_t steps; } survey;

/* Follow the first elements down to learn the shape. */
static void measure(lua_State *L, int index, survey *s) {
  lua_pushvalue(L, index);
  while (lua_type(L, -1) == LUA_TTABLE) {
    if (s->ndim == GB_MAX_NDIM) gbl_error(L, "tensor: lists are nested deeper than %d", GB_MAX_NDIM);
    s->shape[s->ndim++] = (int64_t)lua_rawlen(L, -1);
    lua_rawgeti(L, -1, 1);
    lua_replace(L, -2);
  }
  lua_pop(L, 1);
}

/* Note the kind of one element, or say why it cannot be one. */
static void note_element(lua_State *L, int index, survey *s) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      if (lua_isinteger(L, index)) s->has_integer = true;
      else s->has_float = true;
      return;
    case LUA_TBOOLEAN: s->has_bool = true; return;
    case LUA_TTABLE: gbl_error(L, "tensor: the lists have different depths or lengths"); return;
    default:
      if (gbl_test_tensor(L, index)) gbl_error(L, "tensor: a list holds tensors; join them with gb.stack or gb.cat");
      gbl_error(L, "tensor: elements are numbers or booleans, got %s", gbl_type_name(L, index));
  }
}

/* Check that every list has the shape of the first, and see what the elements are. */
static void inspect(lua_State *L, int index, int dim, survey *s) {
  gbl_charge_step(L, &s->steps);
  if (dim == s->ndim) { note_element(L, index, s); return; }
  if (lua_type(L, index) != LUA_TTABLE || (int64_t)lua_rawlen(L, index) != s->shape[dim])
    gbl_error(L, "tensor: the lists have different depths or lengths (dimension %d has %" PRId64 " elements elsewhere)", dim + 1, s->shape[dim]);
  luaL_checkstack(L, 4, NULL);
  for (int64_t i = 1; i <= s->shape[dim]; i++) {
    lua_rawgeti(L, index, i);
    inspect(L, lua_gettop(L), dim + 1, s);
    lua_pop(L, 1);
  }
}

/* Write the elements in order, as float64 where there is a float among them, else as int64. */
static void write_elements(lua_State *L, int index, int dim, survey *s, void *to, int64_t *at) {
  gbl_charge_step(L, &s->steps);
  if (dim == s->ndim) {
    bool is_bool = lua_isboolean(L, index);
    if (s->has_float) ((double *)to)[*at] = is_bool ? lua_toboolean(L, index) : lua_tonumber(L, index);
    else ((int64_t *)to)[*at] = is_bool ? lua_toboolean(L, index) : lua_tointeger(L, index);
    ++*at;
    return;
  }
  for (int64_t i = 1; i <= s->shape[dim]; i++) {
    lua_rawgeti(L, index, i);
    write_elements(L, lua_gettop(L), dim + 1, s, to, at);
    lua_pop(L, 1);
  }
}

static gb_dtype natural_dtype(const gbl_state *state, const survey *s) {
  if (s->has_float) return state->default_dtype;
  if (s->has_integer) return GB_INT64;
  return s->has_bool ? GB_BOOL : state->default_dtype;
}

/* Replace the tensor at the top, which nobody else has, by one in dtype on device. */
static void convert_top(lua_State *L, gb_dtype dtype, gb_device device) {
  gb_tensor *x = gbl_check_tensor(L, lua_gettop(L));
  gb_attr to = gb_attr_int(dtype);
  if (gb_tensor_dtype(x) != dtype) gbl_step(L, GB_OP_cast, &to, true);
  x = gbl_check_tensor(L, lua_gettop(L));
  gb_device from = gb_tensor_device(x);
  if (from.type == device.type && from.index == device.index) return;
  gbl_box *box = gbl_new_tensor(L);
  if (from.type != GB_CPU) { /* by way of the CPU */
    gbl_check_status(L, gb_tensor_new(gb_tensor_context(x), dtype, x->ndim, x->shape, (gb_device){ GB_CPU, 0 }, &box->tensor));
    gbl_check_status(L, gb_tensor_read(x, gb_data(box->tensor), (size_t)x->numel * gb_dtype_bytes(dtype)));
    gbl_end_handle(L, -2);
    lua_replace(L, -2);
    convert_top(L, dtype, device);
    return;
  }
  gbl_check_status(L, gb_tensor_new(gb_tensor_context(x), dtype, x->ndim, x->shape, device, &box->tensor));
  gbl_check_status(L, gb_tensor_write(box->tensor, gb_data(x), (size_t)x->numel * gb_dtype_bytes(dtype)));
  gbl_end_handle(L, -2);
  lua_replace(L, -2);
}

void gbl_push_data(lua_State *L, int arg, gb_dtype dtype, gb_device device) {
  gbl_state *state = gbl_get_state(L);
  survey s = { 0 };
  int64_t at = 0;
  measure(L, arg, &s);
  inspect(L, arg, 0, &s);
  target wide = { .who = "tensor", .dtype = s.has_float ? GB_FLOAT64 : GB_INT64 };
  gb_tensor *x = push_new(L, &wide, s.ndim, s.shape);
  write_elements(L, arg, 0, &s, gb_data(x), &at);
  convert_top(L, dtype == GB_DTYPE_NONE ? natural_dtype(state, &s) : dtype, device);
}

/* gb.tensor(value, options?: options) -> tensor: A copy of what value holds: a number, a boolean, nested lists, or a tensor, which loses its
 * history. Integers give int64, one float among them the default dtype. options: dtype, device, requires_grad. Errors: lists of different lengths
 * or depths. Example: local x = gb.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "float32" }) */
static int tensor(lua_State *L) {
  target t = defaults(L, "tensor");
  gb_tensor *source = gbl_test_tensor(L, 1);
  t.dtype = source ? gb_tensor_dtype(source) : GB_DTYPE_NONE;
  luaL_checkany(L, 1);
  lua_settop(L, lua_gettop(L) < 2 ? 2 : lua_gettop(L));
  t = read_target(L, 2, t);
  if (!source) {
    gbl_push_data(L, 1, t.dtype, t.device);
    return finish(L, &t);
  }
  gbl_box *plain = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_detach(source, &plain->tensor));
  gbl_step(L, GB_OP_clone, NULL, true);
  convert_top(L, t.dtype, t.device);
  return finish(L, &t);
}

/* ====} */

/* {==== One value everywhere, or random ==== */

/* How the elements of a new tensor come about. */
typedef enum content { EMPTY, FILLED, RAND, RANDN } content;

static void fill_content(lua_State *L, gb_tensor *x, content what, gb_attr value) {
  switch (what) {
    case EMPTY: break;
    case FILLED: make_filled(L, x, value); break;
    case RAND: make(L, x, GB_OP_uniform, NULL); break;
    case RANDN: make(L, x, GB_OP_normal, NULL); break;
  }
}

/* who(shape, options), the shape from stack index `arg` on. */
static int shaped(lua_State *L, int arg, target t, content what, gb_attr value) {
  int64_t shape[GB_MAX_NDIM];
  int next, ndim = gbl_check_shape(L, arg, t.who, shape, &next);
  if (next == arg && !lua_isnoneornil(L, arg) && lua_type(L, arg) != LUA_TTABLE)
    return gbl_error(L, "%s: expects sizes, such as (2, 3) or ({2, 3}), got %s", t.who, gbl_type_name(L, arg));
  t = read_target(L, next, t);
  fill_content(L, push_new(L, &t, ndim, shape), what, value);
  return finish(L, &t);
}

/* gb.zeros(sizes: ints, options?: options) -> tensor: Zeros of a shape, given as numbers or as one list. options: dtype, device, requires_grad.
 * Example: local x = gb.zeros(2, 3, { dtype = "float16" }) */
static int zeros(lua_State *L) { return shaped(L, 1, defaults(L, "zeros"), FILLED, gb_attr_whole(0)); }
/* gb.ones(sizes: ints, options?: options) -> tensor: Ones of a shape. Example: local x = gb.ones(2, 3) */
static int ones(lua_State *L) { return shaped(L, 1, defaults(L, "ones"), FILLED, gb_attr_whole(1)); }
/* gb.empty(sizes: ints, options?: options) -> tensor: Memory for a shape, with whatever it holds. Example: local x = gb.empty(2, 3) */
static int empty(lua_State *L) { return shaped(L, 1, defaults(L, "empty"), EMPTY, gb_attr_whole(0)); }
/* gb.rand(sizes: ints, options?: options) -> tensor: Uniform random numbers in [0, 1). Example: local x = gb.rand(2, 3) */
static int rand_uniform(lua_State *L) { return shaped(L, 1, defaults(L, "rand"), RAND, gb_attr_whole(0)); }
/* gb.randn(sizes: ints, options?: options) -> tensor: Normal random numbers of mean 0 and deviation 1. Example: local x = gb.randn(2, 3) */
static int rand_normal(lua_State *L) { return shaped(L, 1, defaults(L, "randn"), RANDN, gb_attr_whole(0)); }

/* who(tensor, options), in the tensor's layout. */
static int like(lua_State *L, const char *who, content what, gb_attr value) {
  gbl_enter(L);
  const gb_tensor *of = gbl_check_tensor(L, 1);
  target t = { .who = who, .dtype = gb_tensor_dtype(of), .device = gb_tensor_device(of) };
  lua_settop(L, lua_gettop(L) < 2 ? 2 : lua_gettop(L));
  t = read_target(L, 2, t);
  if (t.device.type != gb_tensor_device(of).type) fill_content(L, push_new(L, &t, of->ndim, of->shape), what, value);
  else {
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, gb_tensor_new_like(of, t.dtype, GB_MEM_OTHER, &box->tensor));
    gbl_finish_tensor(L);
    fill_content(L, box->tensor, what, value);
  }
  return finish(L, &t);
}

/* gb.zeros_like(x: tensor, options?: options) -> tensor: Zeros in the shape, dtype, device and memory order of x. Example: local y =
 * gb.zeros_like(x) */
static int zeros_like(lua_State *L) { return like(L, "zeros_like", FILLED, gb_attr_whole(0)); }
/* gb.ones_like(x: tensor, options?: options) -> tensor: Ones in the shape, dtype, device and memory order of x. Example: local y =
 * gb.ones_like(x) */
static int ones_like(lua_State *L) { return like(L, "ones_like", FILLED, gb_attr_whole(1)); }
/* gb.empty_like(x: tensor, options?: options) -> tensor: Memory in the shape, dtype, device and memory order of x. Example: local y =
 * gb.empty_like(x) */
static int empty_like(lua_State *L) { return like(L, "empty_like", EMPTY, gb_attr_whole(0)); }
/* gb.rand_like(x: tensor, options?: options) -> tensor: Uniform random numbers in [0, 1), in the shape, dtype, device and memory order of x.
 * Example: local y = gb.rand_like(x) */
static int rand_like(lua_State *L) { return like(L, "rand_like", RAND, gb_attr_whole(0)); }
/* gb.randn_like(x: tensor, options?: options) -> tensor: Normal random numbers in the shape, dtype, device and memory order of x. Example: local
 * y = gb.randn_like(x) */
static int randn_like(lua_State *L) { return like(L, "randn_like", RANDN, gb_attr_whole(0)); }

static target as_self(lua_State *L, const char *who) {
  gbl_enter(L);
  const gb_tensor *self = gbl_check_tensor(L, 1);
  return (target){ .who = who, .dtype = gb_tensor_dtype(self), .device = gb_tensor_device(self) };
}

/* tensor:new_zeros(sizes: ints, options?: options) -> tensor: Zeros in the dtype and on the device of this tensor. Example: local y =
 * x:new_zeros(2, 3) */
static int new_zeros(lua_State *L) { return shaped(L, 2, as_self(L, "new_zeros"), FILLED, gb_attr_whole(0)); }
/* tensor:new_ones(sizes: ints, options?: options) -> tensor: Ones in the dtype and on the device of this tensor. Example: local y = x:new_ones(2,
 * 3) */
static int new_ones(lua_State *L) { return shaped(L, 2, as_self(L, "new_ones"), FILLED, gb_attr_whole(1)); }
/* tensor:new_empty(sizes: ints, options?: options) -> tensor: Memory in the dtype and on the device of this tensor. Example: local y =
 * x:new_empty(2, 3) */
static int new_empty(lua_State *L) { return shaped(L, 2, as_self(L, "new_empty"), EMPTY, gb_attr_whole(0)); }

/* A value to fill with, and the dtype it suggests. */
static gb_attr fill_value(lua_State *L, int arg, target *t, bool decide_dtype) {
  if (lua_isboolean(L, arg)) {
    if (decide_dtype) t->dtype = GB_BOOL;
    return gbl_number_attr(L, arg);
  }
  gbl_check_number(L, arg, t->who, "value");
  if (decide_dtype && lua_isinteger(L, arg)) t->dtype = GB_INT64;
  return gbl_number_attr(L, arg);
}

/* who(shape table, value, options) from stack index `arg` on. */
static int filled(lua_State *L, int arg, target t, bool decide_dtype) {
  int64_t shape[GB_MAX_NDIM];
  if (lua_type(L, arg) != LUA_TTABLE) return gbl_error(L, "%s: the shape is a table: gb.full({2, 3}, value)", t.who);
  int next, ndim = gbl_check_shape(L, arg, t.who, shape, &next);
  gb_attr value = fill_value(L, next, &t, decide_dtype);
  t = read_target(L, next + 1, t);
  make_filled(L, push_new(L, &t, ndim, shape), value);
  return finish(L, &t);
}

/* gb.full(shape: list, value: number, options?: options) -> tensor: value everywhere; the shape is a list. An integer gives int64, a boolean
 * bool. Example: local x = gb.full({ 2, 3 }, 0.5) */
static int full(lua_State *L) { return filled(L, 1, defaults(L, "full"), true); }
/* tensor:new_full(shape: list, value: number, options?: options) -> tensor: value everywhere, in the dtype and on the device of this tensor.
 * Example: local y = x:new_full({ 2, 3 }, 0.5) */
static int new_full(lua_State *L) { return filled(L, 2, as_self(L, "new_full"), false); }

/* gb.full_like(x: tensor, value: number, options?: options) -> tensor: value everywhere, in the shape, dtype, device and memory order of x.
 * Example: local y = gb.full_like(x, 0.5) */
static int full_like(lua_State *L) {
  target t = as_self(L, "full_like");
  gb_attr value = fill_value(L, 2, &t, false);
  lua_remove(L, 2);
  return like(L, "full_like", FILLED, value);
}

/* tensor:new_tensor(value, options?: options) -> tensor: gb.tensor in the dtype and on the device of this tensor. Example: local y = x:new_tensor
 * { 1, 2, 3 } */
static int new_tensor(lua_State *L) {
  lua_settop(L, lua_gettop(L) < 3 ? 3 : lua_gettop(L));
  target t = read_target(L, 3, as_self(L, "new_tensor"));
  gbl_push_data(L, 2, t.dtype, t.device);
  return finish(L, &t);
}

/* ====} */

/* {==== Sequences, integers, the identity ==== */

/* How many integers first, first + step, ... lie before last; the step is not 0. */
static int64_t integers_between(int64_t first, int64_t last, int64_t step) {
  if (step > 0 ? first >= last : first <= last) return 0;
  uint64_t way = step > 0 ? (uint64_t)last - (uint64_t)first : (uint64_t)first - (uint64_t)last;
  uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = (way - 1) / stride + 1;
  return count < INT64_MAX ? (int64_t)count : INT64_MAX;
}

/* gb.arange(first?: number, last: number, step?: number, options?: options) -> tensor: first, first + step, ... below last. First is 0 and step 1
 * where they are left out: it is data, so it counts from 0. Whole numbers give int64. Errors: a step of 0. Example: local x = gb.arange(10) */
static int arange(lua_State *L) {
  target t = defaults(L, "arange");
  double value[3] = { 0, 0, 1 };
  int count = 0;
  bool whole = true;
  for (; count < 3 && lua_type(L, count + 1) == LUA_TNUMBER; count++) {
    value[count] = lua_tonumber(L, count + 1);
    whole &= lua_isinteger(L, count + 1) != 0;
  }
  if (count == 0) return gbl_error(L, "arange: expects a number, got %s", gbl_type_name(L, 1));
  if (count == 1) value[1] = value[0], value[0] = 0;
  if (whole) t.dtype = GB_INT64;
  t = read_target(L, count + 1, t);
  double steps = ceil((value[1] - value[0]) / value[2]);
  if (!(value[2] != 0) || !isfinite(steps)) return gbl_error(L, "arange: cannot go from %g to %g in steps of %g", value[0], value[1], value[2]);
  int64_t n = steps > 0 ? (steps < 0x1p62 ? (int64_t)steps : INT64_MAX) : 0;
  gb_attr attrs[] = { gbl_number_attr(L, 1), gb_attr_num(value[2]) };
  if (count == 1) attrs[0] = gb_attr_whole(0);
  if (whole) attrs[1] = gb_attr_whole(count == 3 ? lua_tointeger(L, 3) : 1);
  if (whole) n = integers_between(attrs[0].exact, lua_tointeger(L, count > 1 ? 2 : 1), attrs[1].exact);
  make(L, push_new(L, &t, 1, &n), GB_OP_sequence, attrs);
  return finish(L, &t);
}

/* gb.linspace(first: number, last: number, steps: int, options?: options) -> tensor: steps numbers at equal distances, both ends included.
 * Example: local x = gb.linspace(0, 1, 11) */
static int linspace(lua_State *L) {
  target t = defaults(L, "linspace");
  double first = gbl_check_number(L, 1, t.who, "first"), last = gbl_check_number(L, 2, t.who, "last");
  int64_t n = gbl_check_integer(L, 3, t.who, "steps");
  t = read_target(L, 4, t);
  gb_attr attrs[] = { gb_attr_num(first), gb_attr_num(n > 1 ? (last - first) / (double)(n - 1) : 0) };
  make(L, push_new(L, &t, 1, &n), GB_OP_sequence, attrs);
  return finish(L, &t);
}

/* gb.eye(rows: int, columns?: int, options?: options) -> tensor: Ones on the diagonal of a matrix of zeros. Example: local x = gb.eye(3) */
static int eye(lua_State *L) {
  target t = defaults(L, "eye");
  int64_t n = gbl_check_integer(L, 1, t.who, "rows"), m = n;
  bool given = gbl_test_integer(L, 2, &m);
  t = read_target(L, given ? 3 : 2, t);
  gb_tensor *x = push_new(L, &t, 2, (int64_t[]){ n, m });
  make_filled(L, x, gb_attr_whole(0));
  gbl_push_op(L, GB_OP_diagonal, &x, 1, NULL);
  make_filled(L, gbl_check_tensor(L, lua_gettop(L)), gb_attr_whole(1));
  gbl_end_handle(L, -1);
  lua_pop(L, 1);
  return finish(L, &t);
}

/* gb.randint(low?: int, high: int, shape: list, options?: options) -> tensor: Random integers low .. high - 1 as int64; data, so low is 0 unless
 * it is given. Example: local x = gb.randint(10, { 2, 3 }) */
static int randint(lua_State *L) {
  target t = defaults(L, "randint");
  t.dtype = GB_INT64;
  int64_t low = 0, high = gbl_check_integer(L, 1, t.who, "high"), shape[GB_MAX_NDIM];
  int arg = 2, next;
  if (gbl_test_integer(L, 2, &shape[0])) low = high, high = shape[0], arg = 3;
  if (lua_type(L, arg) != LUA_TTABLE) return gbl_error(L, "randint: the shape is a table: gb.randint(low, high, {2, 3})");
  int ndim = gbl_check_shape(L, arg, t.who, shape, &next);
  t = read_target(L, next, t);
  gb_attr attrs[] = { gb_attr_int(low), gb_attr_int(high) };
  make(L, push_new(L, &t, ndim, shape), GB_OP_random_integers, attrs);
  return finish(L, &t);
}

/* gb.randperm(n: int, options?: options) -> tensor: 0 .. n-1 in random order, as int64. Example: local order = gb.randperm(10) */
static int randperm(lua_State *L) {
  target t = defaults(L, "randperm");
  int64_t n = gbl_check_integer(L, 1, t.who, "n");
  gb_device device = read_target(L, 2, t).device;
  t.dtype = GB_INT64;
  t.device = device;
  make(L, push_new(L, &t, 1, &n), GB_OP_permutation, NULL);
  return 1;
}

/* gb.meshgrid(xs...: tensor) -> tensors: Each vector spread over the grid of all, the first along dimension 1. Example: local x, y =
 * gb.meshgrid(gb.arange(3), gb.arange(4)) */
static int meshgrid(lua_State *L) {
  gbl_enter(L);
  int count = lua_gettop(L);
  int64_t shape[GB_MAX_NDIM], one[GB_MAX_NDIM];
  if (count < 1 || count > GB_MAX_NDIM) return gbl_error(L, "meshgrid: expects 1 to %d vectors, got %d", GB_MAX_NDIM, count);
  for (int i = 0; i < count; i++) {
    const gb_tensor *x = gbl_check_tensor(L, i + 1);
    if (x->ndim > 1) return gbl_error(L, "meshgrid: expects vectors, argument %d has %d dimensions", i + 1, x->ndim);
    shape[i] = x->numel;
    one[i] = 1;
  }
  luaL_checkstack(L, count + 4, NULL);
  for (int i = 0; i < count; i++) {
    gb_tensor *x = gbl_check_tensor(L, i + 1);
    one[i] = shape[i];
    gb_attr column = gb_attr_ints(count, one), grid = gb_attr_ints(count, shape);
    one[i] = 1;
    gbl_push_op(L, GB_OP_view, &x, 1, &column);
    gbl_step(L, GB_OP_expand, &grid, true);
  }
  return count;
}

/* ====} */

void gbl_open_create(lua_State *L) {
  static const luaL_Reg functions[] = {
    { "tensor", tensor }, { "zeros", zeros }, { "ones", ones }, { "empty", empty }, { "full", full }, { "rand", rand_uniform },
    { "randn", rand_normal }, { "zeros_like", zeros_like }, { "ones_like", ones_like }, { "empty_like", empty_like },
    { "full_like", full_like }, { "rand_like", rand_like }, { "randn_like", randn_like }, { "arange", arange }, { "linspace", linspace },
    { "eye", eye }, { "randint", randint }, { "randperm", randperm }, { "meshgrid", meshgrid }, { NULL, NULL },
  };
  static const luaL_Reg methods[] = {
    { "new_zeros", new_zeros }, { "new_ones", new_ones }, { "new_empty", new_empty }, { "new_full", new_full }, { "new_tensor", new_tensor },
    { NULL, NULL },
  };
  gbl_set_functions(L, functions);
  gbl_push_methods(L);
  gbl_set_functions(L, methods);
  lua_pop(L, 1);
}
