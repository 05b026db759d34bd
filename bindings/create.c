/* create.c - tensors from nothing and from Lua values: gb.tensor, zeros, arange, rand, ..., their *_like and t:new_*
 * forms.
 *
 * Integers in a list give int64, as in PyTorch; one float among them gives the default dtype. Errors of the ops that
 * fill a new tensor carry the name of the function that the recipe called. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/formats.h"
#include "reader.h"

/* {==== What all of them share ==== */

/* What every record of this file ends its signature with. */
#define OPTIONS "; dtype?: dtype, device?: device, requires_grad: bool = false) -> tensor: "

/* Where and as what a tensor is made. */
typedef struct target { const gbl_call *call; gb_dtype dtype; gb_device device; } target;

/* What the options say, over a dtype and a device that hold where they say nothing. */
static target read_target(const gbl_call *call, gb_dtype dtype, gb_device device) {
  const gbl_value *as = gbl_argument(call, "dtype"), *on = gbl_argument(call, "device");
  return (target){ call, as->given ? as->dtype : dtype, on->given ? on->device : device };
}

static target defaults(const gbl_call *call) { return read_target(call, call->state->default_dtype,
                                                                  call->state->default_device); }

/* As a tensor is. */
static target like_tensor(const gbl_call *call,
                          const gb_tensor *x) { return read_target(call, gb_tensor_dtype(x), gb_tensor_device(x)); }

/* The tensor at the top is complete: mark it as asked. */
static int finish(lua_State *L, const target *t) {
  if (!gbl_boolean(t->call, "requires_grad")) return 1;
  gbl_check_status(L, gb_tensor_set_requires_grad(gbl_check_tensor(L, lua_gettop(L)), true));
  gbl_share_tensor(L, -1);
  return 1;
}

static gb_tensor *push_new(lua_State *L, const target *t, int ndim, const int64_t *shape) {
  gbl_state *state = t->call->state;
  gbl_soft_mark(L, state);
  gbl_box *box = gbl_new_tensor(L);
  state->context->op = gbl_who(t->call); /* for the text, should it fail */
  gb_status status = gb_tensor_new(state->context, t->dtype, ndim, shape, t->device, &box->tensor);
  state->context->op = NULL;
  gbl_check_status(L, status);
  gbl_finish_tensor(L);
  return box->tensor;
}

/* Run an in-place row on a fresh tensor. */
static void make(lua_State *L, const target *t, gb_tensor *x, gb_op op, const gb_attr *attrs) {
  gb_context *context = t->call->state->context;
  context->op = gbl_who(t->call);
  gb_status status = gb_apply_(context, op, &x, 1, attrs);
  context->op = NULL;
  gbl_check_status(L, status);
}

static void make_filled(lua_State *L, const target *t, gb_tensor *x,
                        gb_attr value) { make(L, t, x, GB_OP_fill, &value); }

/* ====} */

/* {==== gb.tensor ==== */

/* What nested lists hold. */
typedef struct survey { int ndim; int64_t shape[GB_MAX_NDIM]; bool has_float, has_integer,
                        has_bool; uint64_t steps; } survey;

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
      if (gbl_test_tensor(L, index)) gbl_error(L, "tensor: the list holds tensors; join them with gb.stack or gb.cat");
      gbl_error(L, "tensor: elements must be numbers or booleans, got %s", gbl_type_name(L, index));
  }
}

/* Check that every list has the shape of the first, and see what the elements are. */
static void inspect(lua_State *L, int index, int dim, survey *s) {
  gbl_charge_step(L, &s->steps);
  if (dim == s->ndim) { note_element(L, index, s); return; }
  if (lua_type(L, index) != LUA_TTABLE || (int64_t)lua_rawlen(L, index) != s->shape[dim])
    gbl_error(L, "tensor: the lists have different depths or lengths (dimension %d has %" PRId64 " elements elsewhere)",
              dim + 1, s->shape[dim]);
  luaL_checkstack(L, 4, GBL_NO_STACK);
  for (int64_t i = 1; i <= s->shape[dim]; i++) {
    lua_rawgeti(L, index, i);
    inspect(L, lua_gettop(L), dim + 1, s);
    lua_pop(L, 1);
  }
}

/* The lists are read twice, and memory is allocated in between, so a finaliser may have changed them. */
static void check_unchanged(lua_State *L, int index, int dim, const survey *s) {
  int type = lua_type(L, index);
  bool same = dim < s->ndim ? type == LUA_TTABLE && (int64_t)lua_rawlen(L, index) == s->shape[dim]
            : type == LUA_TBOOLEAN || (type == LUA_TNUMBER && (s->has_float || lua_isinteger(L, index)));
  if (!same) gbl_error(L, "tensor: the lists changed while they were read");
}

/* Write the elements in order, as float64 where there is a float among them, else as int64. */
static void write_elements(lua_State *L, int index, int dim, survey *s, void *to, int64_t *at) {
  gbl_charge_step(L, &s->steps);
  check_unchanged(L, index, dim, s);
  if (dim == s->ndim) {
    bool is_bool = lua_isboolean(L, index);
    if (s->has_float) ((double *)to)[*at] = is_bool ? lua_toboolean(L, index) : lua_tonumber(L, index);
    else ((int64_t *)to)[*at] = is_bool ? lua_toboolean(L, index) : lua_tointeger(L, index);
    ++*at;
    return;
  }
  luaL_checkstack(L, 4, GBL_NO_STACK);
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
    gbl_check_status(L, gb_tensor_new(gb_tensor_context(x), dtype, x->ndim, x->shape, (gb_device){ GB_CPU, 0 },
                                      &box->tensor));
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
  gbl_soft_mark(L, state);
  gbl_box *box = gbl_new_tensor(L);
  state->context->op = "tensor";
  gb_status status = gb_tensor_new(state->context, s.has_float ? GB_FLOAT64 : GB_INT64, s.ndim, s.shape,
                                   (gb_device){ GB_CPU, 0 }, &box->tensor);
  state->context->op = NULL;
  gbl_check_status(L, status);
  write_elements(L, arg, 0, &s, gb_data(box->tensor), &at);
  convert_top(L, dtype == GB_DTYPE_NONE ? natural_dtype(state, &s) : dtype, device);
}

static int tensor(lua_State *L, gbl_call *call) {
  int value = gbl_argument(call, "value")->index;
  gb_tensor *source = gbl_test_tensor(L, value);
  if (!source) {
    target t = read_target(call, GB_DTYPE_NONE, call->state->default_device);
    gbl_push_data(L, value, t.dtype, t.device);
    return finish(L, &t);
  }
  target t = read_target(call, gb_tensor_dtype(source), call->state->default_device);
  gbl_box *plain = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_detach(source, &plain->tensor));
  gbl_step(L, GB_OP_clone, NULL, true);
  convert_top(L, t.dtype, t.device);
  return finish(L, &t);
}

static int new_tensor(lua_State *L, gbl_call *call) {
  target t = like_tensor(call, gbl_tensor(call, "self"));
  gbl_push_data(L, gbl_argument(call, "value")->index, t.dtype, t.device);
  return finish(L, &t);
}

/* ====} */

/* {==== One value everywhere, or random ==== */

/* How the elements of a new tensor are set. */
typedef enum content { EMPTY, FILLED, RAND, RANDN } content;

static void fill_content(lua_State *L, const target *t, gb_tensor *x, content what, gb_attr value) {
  switch (what) {
    case EMPTY: break;
    case FILLED: make_filled(L, t, x, value); break;
    case RAND: make(L, t, x, GB_OP_uniform, NULL); break;
    case RANDN: make(L, t, x, GB_OP_normal, NULL); break;
  }
}

/* A tensor of the shape in the argument of that name. */
static int shaped(lua_State *L, const char *name, target t, content what, gb_attr value) {
  const gbl_value *sizes = gbl_argument(t.call, name);
  fill_content(L, &t, push_new(L, &t, sizes->count, sizes->ints), what, value);
  return finish(L, &t);
}

static int zeros(lua_State *L, gbl_call *call) { return shaped(L, "sizes", defaults(call), FILLED, gb_attr_whole(0)); }
static int ones(lua_State *L, gbl_call *call) { return shaped(L, "sizes", defaults(call), FILLED, gb_attr_whole(1)); }
static int empty(lua_State *L, gbl_call *call) { return shaped(L, "sizes", defaults(call), EMPTY, gb_attr_whole(0)); }
static int rand_uniform(lua_State *L, gbl_call *call) { return shaped(L, "sizes", defaults(call), RAND,
                                                                      gb_attr_whole(0)); }
static int rand_normal(lua_State *L, gbl_call *call) { return shaped(L, "sizes", defaults(call), RANDN,
                                                                     gb_attr_whole(0)); }

static target as_self(const gbl_call *call) { return like_tensor(call, gbl_tensor(call, "self")); }

static int new_zeros(lua_State *L, gbl_call *call) { return shaped(L, "sizes", as_self(call), FILLED, gb_attr_whole(0));
                                                     }
static int new_ones(lua_State *L, gbl_call *call) { return shaped(L, "sizes", as_self(call), FILLED, gb_attr_whole(1));
                                                    }
static int new_empty(lua_State *L, gbl_call *call) { return shaped(L, "sizes", as_self(call), EMPTY, gb_attr_whole(0));
                                                     }

/* In the layout of x. */
static int like(lua_State *L, const gbl_call *call, content what, gb_attr value) {
  const gb_tensor *of = gbl_tensor(call, "x");
  target t = like_tensor(call, of);
  if (t.device.type != gb_tensor_device(of).type)
    fill_content(L, &t, push_new(L, &t, of->ndim, of->shape), what, value);
  else {
    gbl_box *box = gbl_new_tensor(L);
    gbl_check_status(L, gb_tensor_new_like(of, t.dtype, GB_MEM_OTHER, &box->tensor));
    gbl_finish_tensor(L);
    fill_content(L, &t, box->tensor, what, value);
  }
  return finish(L, &t);
}

static int zeros_like(lua_State *L, gbl_call *call) { return like(L, call, FILLED, gb_attr_whole(0)); }
static int ones_like(lua_State *L, gbl_call *call) { return like(L, call, FILLED, gb_attr_whole(1)); }
static int empty_like(lua_State *L, gbl_call *call) { return like(L, call, EMPTY, gb_attr_whole(0)); }
static int rand_like(lua_State *L, gbl_call *call) { return like(L, call, RAND, gb_attr_whole(0)); }
static int randn_like(lua_State *L, gbl_call *call) { return like(L, call, RANDN, gb_attr_whole(0)); }

/* The value to fill with; an integer keeps all its bits. */
static gb_attr fill_value(lua_State *L, const gbl_call *call) { return gbl_number_attr(L,
    gbl_argument(call, "value")->index); }

static int full(lua_State *L, gbl_call *call) {
  int value = gbl_argument(call, "value")->index;
  gb_dtype natural = lua_isboolean(L, value) ? GB_BOOL : lua_isinteger(L, value) ? GB_INT64
      : call->state->default_dtype;
  return shaped(L, "shape", read_target(call, natural, call->state->default_device), FILLED, fill_value(L, call));
}

static int new_full(lua_State *L, gbl_call *call) { return shaped(L, "shape", as_self(call), FILLED,
                                                                  fill_value(L, call)); }
static int full_like(lua_State *L, gbl_call *call) { return like(L, call, FILLED, fill_value(L, call)); }

/* ====} */

/* {==== Sequences, integers, the identity ==== */

/* How many integers first, first + step, ... lie before last; the step is not 0. */
static int64_t integers_between(int64_t first, int64_t last, int64_t step) {
  if (step > 0 ? first >= last : first <= last) return 0;
  uint64_t way = step > 0 ? (uint64_t)last - (uint64_t)first : (uint64_t)first - (uint64_t)last;
  uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = (way - 1) / stride + 1;
  return count < INT64_MAX ? (int64_t)count : INT64_MAX;
}

/* Numbers that are all integers count in integers, which double could not hold. */
static int arange(lua_State *L, gbl_call *call) {
  const gbl_value *first = gbl_argument(call, "first"), *last = gbl_argument(call, "last"),
      *step = gbl_argument(call, "step");
  const gbl_value zero = { .given = false };
  if (!last->given) last = first, first = &zero;
  const gbl_value *all[] = { first, last, step };
  bool whole = true;
  for (int i = 0; i < 3; i++) whole &= !all[i]->given || lua_isinteger(L, all[i]->index);
  target t = read_target(call, whole ? GB_INT64 : call->state->default_dtype, call->state->default_device);
  double steps = ceil((last->number - first->number) / step->number);
  if (!(step->number != 0) || !isfinite(steps))
    return gbl_refuse(call, "cannot go from %g to %g in steps of %g", first->number, last->number, step->number);
  int64_t n = steps > 0 ? (steps < 0x1p62 ? (int64_t)steps : INT64_MAX) : 0;
  gb_attr attrs[] = { first->given ? gbl_number_attr(L, first->index) : gb_attr_whole(0), gb_attr_num(step->number) };
  if (whole) attrs[1] = gb_attr_whole(step->integer);
  if (whole) n = integers_between(first->integer, last->integer, step->integer);
  make(L, &t, push_new(L, &t, 1, &n), GB_OP_sequence, attrs);
  return finish(L, &t);
}

static int linspace(lua_State *L, gbl_call *call) {
  target t = defaults(call);
  double first = gbl_number(call, "first"), last = gbl_number(call, "last");
  int64_t n = gbl_integer(call, "steps");
  gb_attr attrs[] = { gb_attr_num(first), gb_attr_num(n > 1 ? (last - first) / (double)(n - 1) : 0) };
  make(L, &t, push_new(L, &t, 1, &n), GB_OP_sequence, attrs);
  return finish(L, &t);
}

static int eye(lua_State *L, gbl_call *call) {
  target t = defaults(call);
  int64_t n = gbl_integer(call, "rows"), m = gbl_given(call, "columns") ? gbl_integer(call, "columns") : n;
  gb_tensor *x = push_new(L, &t, 2, (int64_t[]){ n, m });
  make_filled(L, &t, x, gb_attr_whole(0));
  gbl_push_op(L, GB_OP_diagonal, &x, 1, NULL);
  make_filled(L, &t, gbl_check_tensor(L, lua_gettop(L)), gb_attr_whole(1));
  gbl_end_handle(L, -1);
  lua_pop(L, 1);
  return finish(L, &t);
}

/* (high, shape) or (low, high, shape). */
static int randint(lua_State *L, gbl_call *call) {
  const gbl_value *low = gbl_argument(call, "low"), *high = gbl_argument(call, "high"),
      *shape = gbl_argument(call, "shape");
  const gbl_value zero = { .given = false };
  if (!strcmp(high->kind, "shape")) {
    if (shape->given)
      return gbl_refuse(call,
                        "the shape is given twice: gb.randint(high, { 2, 3 }) or gb.randint(low, high, { 2, 3 })");
    shape = high, high = low, low = &zero;
  } else if (!shape->given) return gbl_refuse(call, "pass the shape as a table: gb.randint(low, high, { 2, 3 })");
  target t = read_target(call, GB_INT64, call->state->default_device);
  gb_attr attrs[] = { gb_attr_int(low->integer), gb_attr_int(high->integer) };
  make(L, &t, push_new(L, &t, shape->count, shape->ints), GB_OP_random_integers, attrs);
  return finish(L, &t);
}

/* The integer up to which a dtype holds all. */
static int64_t most_of(gb_dtype dtype) {
  return gb_is_float(dtype) ? gb_whole_of(dtype) : gb_format_of(dtype)->most;
}

static int randperm(lua_State *L, gbl_call *call) {
  int64_t n = gbl_integer(call, "n");
  const gbl_value *device = gbl_argument(call, "device"), *dtype = gbl_argument(call, "dtype");
  if (dtype->given && n > 0 && n - 1 > most_of(dtype->dtype))
    return gbl_refuse(call, "%s does not hold all integers up to %" PRId64, gb_dtype_name(dtype->dtype), n - 1);
  target t = { call, GB_INT64, device->given ? device->device : call->state->default_device };
  make(L, &t, push_new(L, &t, 1, &n), GB_OP_permutation, NULL);
  gb_attr to = gb_attr_int((int64_t)dtype->dtype);
  if (dtype->given && dtype->dtype != GB_INT64) gbl_step(L, GB_OP_cast, &to, true);
  return 1;
}

/* The dim along which vector i runs; swapped: the first two change places. */
static int place_in_grid(int i, bool swapped) { return swapped && i < 2 ? 1 - i : i; }

static int meshgrid(lua_State *L, gbl_call *call) {
  const gbl_value *xs = gbl_argument(call, "xs");
  int count = xs->count;
  bool swapped = count > 1 && !strcmp(gbl_string(call, "indexing"), "xy");
  int64_t shape[GB_MAX_NDIM], one[GB_MAX_NDIM];
  if (count < 1 || count > GB_MAX_NDIM) return gbl_refuse(call, "expects 1 to %d vectors, got %d", GB_MAX_NDIM, count);
  for (int i = 0; i < count; i++) {
    const gb_tensor *x = xs->tensors[i];
    if (x->ndim > 1) return gbl_refuse(call, "expects vectors, argument %d has %d dimensions", i + 1, x->ndim);
    shape[place_in_grid(i, swapped)] = x->numel;
    one[i] = 1;
  }
  luaL_checkstack(L, count + 4, GBL_NO_STACK);
  for (int i = 0; i < count; i++) {
    gb_tensor *x = xs->tensors[i];
    int place = place_in_grid(i, swapped);
    one[place] = shape[place];
    gb_attr column = gb_attr_ints(count, one), grid = gb_attr_ints(count, shape);
    one[place] = 1;
    gbl_push_op(L, GB_OP_view, &x, 1, &column);
    gbl_step(L, GB_OP_expand, &grid, true);
  }
  return count;
}

/* ====} */

static const gbl_function functions[] = {
  { tensor, GB_SANDBOX_STRICT,
    "gb.tensor(value: any" OPTIONS "A copy of what value holds: a number, a boolean, nested lists, or a tensor, "
                                   "which loses its "
    "history. Integers give int64, one float among them the default dtype. Errors: lists of different lengths or "
    "depths. "
    "Example: local x = gb.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = \"float32\" })" },
  { zeros, GB_SANDBOX_STRICT,
    "gb.zeros(sizes?: sizes" OPTIONS "Zeros of a shape, given as numbers or as one list. "
    "Example: local x = gb.zeros(2, 3, { dtype = \"float16\" })" },
  { ones, GB_SANDBOX_STRICT, "gb.ones(sizes?: sizes" OPTIONS "Ones of a shape. Example: local x = gb.ones(2, 3)" },
  { empty, GB_SANDBOX_STRICT,
    "gb.empty(sizes?: sizes" OPTIONS "Memory for a shape, with whatever it holds. Example: local x = gb.empty(2, 3)" },
  { full, GB_SANDBOX_STRICT,
    "gb.full(shape: shape, value: number|bool" OPTIONS "value everywhere; the shape is a list. An integer gives "
                                                       "int64, a boolean bool. "
    "Example: local x = gb.full({ 2, 3 }, 0.5)" },
  { rand_uniform, GB_SANDBOX_STRICT,
    "gb.rand(sizes?: sizes" OPTIONS "Uniform random numbers in [0, 1). Example: local x = gb.rand(2, 3)" },
  { rand_normal, GB_SANDBOX_STRICT,
    "gb.randn(sizes?: sizes" OPTIONS "Normal random numbers of mean 0 and deviation 1. Example: local x = "
                                     "gb.randn(2, 3)" },
  { zeros_like, GB_SANDBOX_STRICT,
    "gb.zeros_like(x: tensor" OPTIONS "Zeros in the shape, dtype, device and memory order of x. Example: local y = "
                                      "gb.zeros_like(x)" },
  { ones_like, GB_SANDBOX_STRICT,
    "gb.ones_like(x: tensor" OPTIONS "Ones in the shape, dtype, device and memory order of x. Example: local y = "
                                     "gb.ones_like(x)" },
  { empty_like, GB_SANDBOX_STRICT,
    "gb.empty_like(x: tensor" OPTIONS "Memory in the shape, dtype, device and memory order of x. Example: local y = "
                                      "gb.empty_like(x)" },
  { full_like, GB_SANDBOX_STRICT,
    "gb.full_like(x: tensor, value: number|bool" OPTIONS "value everywhere, in the shape, dtype, device and memory "
                                                         "order of x. "
    "Example: local y = gb.full_like(x, 0.5)" },
  { rand_like, GB_SANDBOX_STRICT,
    "gb.rand_like(x: tensor" OPTIONS "Uniform random numbers in [0, 1), in the shape, dtype, device and memory "
                                     "order of x. "
    "Example: local y = gb.rand_like(x)" },
  { randn_like, GB_SANDBOX_STRICT,
    "gb.randn_like(x: tensor" OPTIONS "Normal random numbers in the shape, dtype, device and memory order of x. "
    "Example: local y = gb.randn_like(x)" },
  { arange, GB_SANDBOX_STRICT,
    "gb.arange(first: number, last?: number, step: number = 1" OPTIONS "first, first + step, ... below last. A "
                                                                       "single number is last, "
    "and first is 0: it is data, so it counts from 0. Whole numbers give int64. Errors: a step of 0. Example: local "
    "x = gb.arange(10)" },
  { linspace, GB_SANDBOX_STRICT,
    "gb.linspace(first: number, last: number, steps: int" OPTIONS "steps numbers at equal distances, both ends "
                                                                  "included. "
    "Example: local x = gb.linspace(0, 1, 11)" },
  { eye, GB_SANDBOX_STRICT,
    "gb.eye(rows: int, columns?: int" OPTIONS
    "Ones on the diagonal of a matrix of zeros. Example: local x = gb.eye(3)" },
  { randint, GB_SANDBOX_STRICT,
    "gb.randint(low: int, high: int|shape, shape?: shape" OPTIONS "Random integers low .. high - 1 as int64; the "
                                                                  "shape is a list. In "
    "gb.randint(high, shape) low is 0, since it is data. Errors: high not above low. Example: local x = "
    "gb.randint(10, { 2, 3 })" },
  { randperm, GB_SANDBOX_STRICT,
    "gb.randperm(n: int; dtype?: dtype, device?: device) -> tensor: 0 .. n-1 in random order, as int64 unless a dtype "
    "is given. Errors: a dtype that does not hold n-1. Example: local order = gb.randperm(10)" },
  { meshgrid, GB_SANDBOX_STRICT,
    "gb.meshgrid(xs...: tensor; indexing: \"ij\"|\"xy\" = \"ij\") -> tensors: Each vector spread over the grid of all, "
    "the first along dimension 1; indexing \"xy\": the first along dimension 2, the second along 1. "
    "Example: local x, y = gb.meshgrid(gb.arange(3), gb.arange(4))" },
  { NULL, 0, NULL },
};

static const gbl_function methods[] = {
  { new_zeros, GB_SANDBOX_STRICT,
    "tensor:new_zeros(sizes?: sizes" OPTIONS "Zeros in the dtype and on the device of this tensor. Example: local y "
                                             "= x:new_zeros(2, 3)" },
  { new_ones, GB_SANDBOX_STRICT,
    "tensor:new_ones(sizes?: sizes" OPTIONS "Ones in the dtype and on the device of this tensor. Example: local y = "
                                            "x:new_ones(2, 3)" },
  { new_empty, GB_SANDBOX_STRICT,
    "tensor:new_empty(sizes?: sizes" OPTIONS "Memory in the dtype and on the device of this tensor. "
    "Example: local y = x:new_empty(2, 3)" },
  { new_full, GB_SANDBOX_STRICT,
    "tensor:new_full(shape: shape, value: number|bool" OPTIONS "value everywhere, in the dtype and on the device of "
                                                               "this tensor. "
    "Example: local y = x:new_full({ 2, 3 }, 0.5)" },
  { new_tensor, GB_SANDBOX_STRICT,
    "tensor:new_tensor(value: any" OPTIONS "gb.tensor in the dtype and on the device of this tensor. "
    "Example: local y = x:new_tensor { 1, 2, 3 }" },
  { NULL, 0, NULL },
};

void gbl_open_create(lua_State *L) {
  gbl_define(L, functions);
  gbl_push_methods(L);
  gbl_define(L, methods);
  lua_pop(L, 1);
}
