/* tensor.c - the Lua value of a tensor: its metatable, fields and plain methods. Ops come from ops.c, indexing from
 * index.c.
 *
 * A tensor has one known Lua value (t->binding, and a weak table from tensors to values) where C hands it out again:
 * leaves, gradients, what hooks see. Temporaries are never entered there and pay one comparison. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "late.h"
#include "reader.h"

static const char shared_key = 0, methods_key = 0; /* of the registry */
static const char tensor_meta[] = "gibbous.tensor", shape_meta[] = "gibbous.shape";

/* {==== Values ==== */

/* A light userdata has no length; no recipe writes into a full one. */
static gbl_box *box_at(lua_State *L, const gbl_state *state, int arg) {
  gbl_box *box = lua_touserdata(L, arg);
  return box && lua_rawlen(L, arg) == sizeof *box && box->meta == state->tensor_meta ? box : NULL;
}

gb_tensor *gbl_tensor_at(lua_State *L, const gbl_state *state, int arg) {
  gbl_box *box = box_at(L, state, arg);
  return box ? box->tensor : NULL;
}

gb_tensor *gbl_test_tensor(lua_State *L, int arg) { return gbl_tensor_at(L, gbl_get_state(L), arg); }

gb_tensor *gbl_check_tensor(lua_State *L, int arg) {
  gbl_box *box = box_at(L, gbl_get_state(L), arg);
  if (!box && !luaL_testudata(L, arg, tensor_meta))
    gbl_error(L, "expects a tensor as argument %d, got %s", arg, gbl_type_name(L, arg));
  if (!box || !box->tensor) gbl_error(L, "this tensor was freed");
  return box->tensor;
}

gb_tensor *gbl_opt_tensor(lua_State *L, int arg) { return lua_isnoneornil(L, arg) ? NULL : gbl_check_tensor(L, arg); }

gbl_box *gbl_new_tensor_in(lua_State *L, const gbl_state *state) {
  if (state->closing) gbl_error(L, "the host is closing, so nothing new is made");
  gbl_box *box = lua_newuserdatauv(L, sizeof *box, 0);
  box->tensor = NULL;
  box->meta = state->tensor_meta;
  lua_rawgeti(L, LUA_REGISTRYINDEX, state->tensor_reference);
  lua_setmetatable(L, -2);
  return box;
}

gbl_box *gbl_new_tensor(lua_State *L) { return gbl_new_tensor_in(L, gbl_get_state(L)); }

/* Push the known value of a tensor, or nothing. */
static bool push_known(lua_State *L, const gb_tensor *tensor) {
  if (!tensor->binding) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &shared_key);
  if (lua_rawgetp(L, -1, tensor) == LUA_TNIL) {
    lua_pop(L, 2);
    return false;
  }
  lua_remove(L, -2);
  return true;
}

void gbl_finish_tensor(lua_State *L) {
  gbl_box *box = lua_touserdata(L, -1);
  gb_tensor *tensor = box->tensor;
  if (!tensor) return;
  gbl_state *state = gb_tensor_context(tensor)->reclaim_user;
  state->made.bytes += tensor->base ? 0 : tensor->storage->bytes;
  state->made.handles++;
  if (!tensor->binding || tensor->binding == box || !push_known(L, tensor)) return;
  box->tensor = NULL;
  gb_tensor_release(tensor);
  lua_replace(L, -2);
}

/* Protected: the light userdata at 1 becomes a box. */
static int box_tensor(lua_State *L) {
  gb_tensor *tensor = lua_touserdata(L, 1);
  gbl_new_tensor(L)->tensor = tensor;
  return 1;
}

void gbl_push_tensor(lua_State *L, gb_tensor *tensor) {
  if (!tensor) { lua_pushnil(L); return; }
  if (push_known(L, tensor)) { gb_tensor_release(tensor); return; }
  lua_pushcfunction(L, box_tensor);
  lua_pushlightuserdata(L, tensor);
  if (lua_pcall(L, 1, 1, 0) == LUA_OK) return;
  gb_tensor_release(tensor);
  lua_error(L);
}

void gbl_share_tensor(lua_State *L, int index) {
  gb_tensor *tensor = gbl_check_tensor(L, index);
  if (push_known(L, tensor)) { lua_pop(L, 1); return; }
  index = lua_absindex(L, index);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &shared_key);
  lua_pushvalue(L, index);
  lua_rawsetp(L, -2, tensor);
  lua_pop(L, 1);
  tensor->binding = lua_touserdata(L, index);
}

void gbl_push_tensor_shared(lua_State *L, gb_tensor *tensor) {
  gbl_push_tensor(L, tensor);
  if (tensor) gbl_share_tensor(L, -1);
}

/* Let go of a box's tensor. The coroutine that runs is noted, since callbacks may go with the tensor. */
static void empty_box(lua_State *L, gbl_box *box) {
  gb_tensor *tensor = box->tensor;
  if (!tensor) return;
  box->tensor = NULL;
  if (tensor->binding == box) tensor->binding = NULL;
  gbl_state *state = gb_tensor_context(tensor)->reclaim_user;
  lua_State *outer = state ? state->running : NULL;
  if (state) state->running = L;
  gb_tensor_release(tensor);
  if (state) state->running = outer;
}

static int tensor_gc(lua_State *L) {
  gbl_box *box = box_at(L, lua_touserdata(L, lua_upvalueindex(1)), 1);
  if (!box) return 0;
  empty_box(L, box);
  box->meta = NULL; /* the next userdata of this size may lie here, and not set all of it */
  return 0;
}

/* Also the end of a to-be-closed variable. */
static int free_handle(lua_State *L) {
  gbl_box *box = luaL_checkudata(L, 1, tensor_meta);
  if (box->tensor && box->tensor->binding == box) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &shared_key);
    lua_pushnil(L);
    lua_rawsetp(L, -2, box->tensor);
  }
  if (box->tensor) gbl_keep_late(L, gb_tensor_context(box->tensor)->reclaim_user, box->tensor);
  empty_box(L, box);
  return 0;
}

static int tensor_free(lua_State *L, gbl_call *call) {
  (void)call;
  return free_handle(L);
}

void gbl_push_op(lua_State *L, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs) {
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_apply(gb_tensor_context(in[0]), op, in, n_in, attrs, &box->tensor));
  gbl_finish_tensor(L);
}

/* A known value is the recipe's, even where an op gave its input back. Nobody sees another one again, so it needs no
 * finaliser either. */
void gbl_end_handle(lua_State *L, int index) {
  gbl_box *box = lua_touserdata(L, index);
  if (!box->tensor || box->tensor->binding == box) return;
  empty_box(L, box);
  box->meta = NULL;
  index = lua_absindex(L, index);
  lua_pushnil(L);
  lua_setmetatable(L, index);
}

void gbl_step(lua_State *L, gb_op op, const gb_attr *attrs, bool own) {
  gb_tensor *x = gbl_check_tensor(L, lua_gettop(L));
  gbl_push_op(L, op, &x, 1, attrs);
  if (own && !lua_rawequal(L, -1, -2)) gbl_end_handle(L, -2);
  lua_replace(L, -2);
}

/* ====} */

void gbl_finish_measure(lua_State *L) {
  gb_tensor *measure = gbl_check_tensor(L, lua_gettop(L));
  double number;
  if (gb_tensor_device(measure).type != GB_CPU) return;
  gbl_check_status(L, gb_tensor_item(measure, &number, NULL));
  lua_pushnumber(L, number);
  lua_replace(L, -2);
}

/* {==== Fields ==== */

typedef enum field {
  FIELD_SHAPE = 1, FIELD_DTYPE, FIELD_DEVICE, FIELD_GRAD, FIELD_REQUIRES_GRAD, FIELD_NDIM, FIELD_IS_LEAF,
      FIELD_IS_PARAMETER, FIELD_RETAINS_GRAD, FIELD_NBYTES
} field;

static const char *const field_records[] = {
  "tensor.shape -> list: The sizes of the dimensions. Example: print(x.shape[1])",
  "tensor.dtype -> string: The type of the elements, such as \"float32\". Example: print(x.dtype)",
  "tensor.device -> string: Where the elements lie, such as \"cpu\" or \"cuda:0\". Example: print(x.device)",
  "tensor.grad -> tensor: The gradient that backward added up, or nil; may be set to nil or a tensor of the same "
  "shape and dtype (of a "
  "16-bit one in float32 too, as an optimizer keeps them). Example: x.grad = nil",
  "tensor.requires_grad -> bool: True if gradients with respect to this tensor are wanted, or if it was computed "
  "from such a tensor. May "
  "be set. Example: print(x.requires_grad)",
  "tensor.ndim -> int: The number of dimensions. Example: print(x.ndim)",
  "tensor.is_leaf -> bool: True if the recipe made it, not an op that is recorded. Example: print(x.is_leaf)",
  "tensor.retains_grad -> bool: True for a result of ops that keeps its gradient, as retain_grad() asks for. Example: "
  "print(x.retains_grad)",
  "tensor.nbytes -> int: The bytes of its elements. Example: print(x.nbytes)",
  "tensor.is_parameter -> bool: True if modules discover it and optimizers train it. Example: print(x.is_parameter)",
  NULL,
};

static const struct { const char *name; field field; } fields[] = {
  { "shape", FIELD_SHAPE }, { "dtype", FIELD_DTYPE }, { "device", FIELD_DEVICE }, { "grad", FIELD_GRAD },
  { "requires_grad", FIELD_REQUIRES_GRAD }, { "ndim", FIELD_NDIM }, { "is_leaf", FIELD_IS_LEAF },
      { "is_parameter", FIELD_IS_PARAMETER }, { "retains_grad", FIELD_RETAINS_GRAD }, { "nbytes", FIELD_NBYTES },
};

/* A shape is a plain list that prints as one and compares by its elements. */
static void push_sizes(lua_State *L, int count, const int64_t *sizes) {
  lua_createtable(L, count, 0);
  for (int i = 0; i < count; i++) {
    lua_pushinteger(L, sizes[i]);
    lua_rawseti(L, -2, i + 1);
  }
  luaL_setmetatable(L, shape_meta);
}

/* A key that the list does not have. Behind its end there is nothing, as in any list. */
static int shape_index(lua_State *L) {
  int64_t position;
  if (gbl_test_integer(L, 2, &position) && position <= 0)
    return gbl_error(L, "position %" PRId64 " of a shape: it is a list from 1 on; x:size(-1) is the last size",
                     position);
  return lua_pushnil(L), 1;
}

static int shape_text(lua_State *L) {
  luaL_Buffer text;
  uint64_t steps = 0;
  int64_t count = (int64_t)lua_rawlen(L, 1);
  luaL_buffinit(L, &text);
  luaL_addchar(&text, '{');
  for (int64_t i = 1; i <= count; i++) {
    gbl_charge_step(L, &steps);
    if (i > 1) luaL_addstring(&text, ", ");
    lua_rawgeti(L, 1, i);
    lua_pushfstring(L, "%I", lua_tointeger(L, -1));
    lua_remove(L, -2);
    luaL_addvalue(&text);
  }
  luaL_addchar(&text, '}');
  luaL_pushresult(&text);
  return 1;
}

static int shape_equal(lua_State *L) {
  bool equal = lua_istable(L, 1) && lua_istable(L, 2) && lua_rawlen(L, 1) == lua_rawlen(L, 2);
  uint64_t steps = 0;
  for (int64_t i = 1; equal && i <= (int64_t)lua_rawlen(L, 1); i++) {
    gbl_charge_step(L, &steps);
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 2, i);
    equal = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
  }
  lua_pushboolean(L, equal);
  return 1;
}

/* `..` of a tensor or a shape with anything: both as tostring shows them, which a sandbox has replaced. */
static int concat(lua_State *L) {
  for (int i = 1; i <= 2; i++) {
    gbl_push_own_name(L, "tostring");
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
  }
  lua_concat(L, 2);
  return 1;
}

static int push_field(lua_State *L, gb_tensor *t, field which) {
  switch (which) {
    case FIELD_SHAPE: push_sizes(L, t->ndim, t->shape); break;
    case FIELD_DTYPE: gbl_push_dtype_name(L, gb_tensor_dtype(t)); break;
    case FIELD_DEVICE: gbl_push_device_name(L, gb_tensor_device(t)); break;
    case FIELD_GRAD: gbl_push_tensor_shared(L, gb_tensor_grad(t)); break;
    case FIELD_REQUIRES_GRAD: lua_pushboolean(L, gb_tensor_requires_grad(t)); break;
    case FIELD_NDIM: lua_pushinteger(L, t->ndim); break;
    case FIELD_IS_LEAF: lua_pushboolean(L, !t->node); break;
    case FIELD_IS_PARAMETER: lua_pushboolean(L, t->is_parameter); break;
    case FIELD_RETAINS_GRAD: lua_pushboolean(L, t->node && t->retain_grad); break;
    case FIELD_NBYTES: lua_pushinteger(L, t->numel * (int64_t)gb_bytes_of(gb_tensor_dtype(t))); break;
  }
  return 1;
}

/* What PyTorch calls what tensors have by another name, or in another form. */
static const struct { const char *name, *here; } ported[] = {
  { "T", "x:t(), or x:transpose(a, b)" }, { "mT", "x:transpose(-2, -1)" }, { "data", "x:detach()" },
  { "numpy", "x:tolist(), or gb.io.save_npy(path, x)" }, { "repeat", "x:tile(...)" },
  { "values", "the first result: local values, indices = x:max(dim)" },
  { "indices", "the second result: local values, indices = x:max(dim)" },
  { "is_cuda", "x.device ~= \"cpu\"" }, { "ndimension", "x:dim()" }, { "nelement", "x:numel()" },
  { "type", "x.dtype, or x:to(dtype)" }, { "new", "x:new_empty(sizes)" }, { "grad_fn", "x.is_leaf, false for results" },
};

/* A name that tensors do not have. */
static int unknown_name(lua_State *L, const char *name) {
  const char *best = gbl_nearest_key(L, lua_upvalueindex(2), name);
  for (size_t i = 0; i < sizeof ported / sizeof *ported; i++)
    if (!strcmp(ported[i].name, name))
      return gbl_error(L, "a tensor has no field or method '%s'; it is %s here", name, ported[i].here);
  if (best) return gbl_error(L, "a tensor has no field or method '%s'; did you mean '%s'?", name, best);
  return gbl_error(L, "a tensor has no field or method '%s'", name);
}

/* t.name, t:name or t[key]. Upvalues: the state, the method table (functions, and fields as their number). */
static int tensor_index(lua_State *L) {
  if (lua_type(L, 2) != LUA_TSTRING) return gbl_index_get(L);
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  int type = lua_rawget(L, lua_upvalueindex(2));
  if (type == LUA_TFUNCTION) return 1;
  if (type == LUA_TNIL) { /* a method of a chunk that has not run, or none */
    gbl_load_name(L, "tensor", lua_tostring(L, 2));
    lua_pushvalue(L, 2);
    return lua_rawget(L, lua_upvalueindex(2)) == LUA_TFUNCTION ? 1 : unknown_name(L, lua_tostring(L, 2));
  }
  field which = (field)lua_tointeger(L, -1);
  gbl_upvalue(L);
  return push_field(L, gbl_check_tensor(L, 1), which);
}

static int tensor_newindex(lua_State *L) {
  gbl_upvalue(L);
  if (lua_type(L, 2) != LUA_TSTRING) return gbl_index_set(L);
  gb_tensor *t = gbl_check_tensor(L, 1);
  const char *name = lua_tostring(L, 2);
  if (!strcmp(name, "grad")) {
    if (!lua_isnil(L, 3) && !gbl_test_tensor(L, 3))
      return gbl_error(L, "the field 'grad' takes a tensor or nil, got %s", gbl_type_name(L, 3));
    gb_tensor *grad = gbl_opt_tensor(L, 3);
    if (grad) gbl_share_tensor(L, 3); /* reading it gives the same value */
    gbl_check_status(L, gb_tensor_set_grad(t, grad));
  } else if (!strcmp(name, "requires_grad") && lua_isboolean(L, 3)) {
    gbl_check_status(L, gb_tensor_set_requires_grad(t, lua_toboolean(L, 3)));
    gbl_share_tensor(L, 1);
  } else return gbl_error(L, "cannot set '%s' of a tensor to %s; only grad and requires_grad can be set", name,
                          gbl_type_name(L, 3));
  return 0;
}

/* ====} */

/* {==== Asking ==== */

/* The dimension that the argument `dim` names, from 0. */
static int check_dim(const gbl_call *call, const gb_tensor *t) {
  int64_t dim = gbl_integer(call, "dim");
  if (dim >= t->ndim || dim < -t->ndim)
    gbl_refuse(call, "dimension %" PRId64 " is out of range for a tensor of %d dimensions", dim < 0 ? dim : dim + 1,
               t->ndim);
  return (int)(dim < 0 ? dim + t->ndim : dim);
}

static int tensor_size(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  if (!gbl_given(call, "dim")) return push_field(L, t, FIELD_SHAPE);
  lua_pushinteger(L, t->shape[check_dim(call, t)]);
  return 1;
}

static int tensor_stride(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  if (!gbl_given(call, "dim")) push_sizes(L, t->ndim, t->stride);
  else lua_pushinteger(L, t->stride[check_dim(call, t)]);
  return 1;
}

static int tensor_dim(lua_State *L, gbl_call *call) { return push_field(L, gbl_tensor(call, "self"), FIELD_NDIM); }

static int tensor_numel(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, gbl_tensor(call, "self")->numel);
  return 1;
}

static int tensor_element_size(lua_State *L, gbl_call *call) {
  lua_pushinteger(L, (lua_Integer)gb_dtype_bytes(gb_tensor_dtype(gbl_tensor(call, "self"))));
  return 1;
}

static int tensor_is_contiguous(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, gb_is_contiguous(gbl_tensor(call, "self")));
  return 1;
}

static int tensor_is_floating_point(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, gb_dtype_is_float(gb_tensor_dtype(gbl_tensor(call, "self"))));
  return 1;
}

static int tensor_len(lua_State *L) {
  gb_tensor *t = gbl_check_tensor(L, 1);
  if (t->ndim == 0) return gbl_error(L, "a 0-d tensor has no length; its value is t:item()");
  lua_pushinteger(L, t->shape[0]);
  return 1;
}

/* A number or boolean from its place in a host copy. */
static void push_value(lua_State *L, gb_dtype dtype, double number, int64_t integer) {
  if (gb_dtype_is_float(dtype)) lua_pushnumber(L, number);
  else if (dtype == GB_BOOL) lua_pushboolean(L, integer != 0);
  else lua_pushinteger(L, integer);
}

static int tensor_item(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  double number = 0;
  int64_t integer = 0;
  gbl_check_status(L, gb_tensor_item(t, &number, &integer));
  push_value(L, gb_tensor_dtype(t), number, integer);
  return 1;
}

/* Is every element of one tensor close to that of the other? */
static int all_close(lua_State *L, gbl_call *call, const char *first) {
  gb_tensor *pair[] = { gbl_tensor(call, first), gbl_tensor(call, "y") };
  gb_attr attrs[] = { gb_attr_num(gbl_number(call, "rtol")), gb_attr_num(gbl_number(call, "atol")),
                      gb_attr_int(gbl_boolean(call, "equal_nan")) };
  gb_attr over[] = { { .given = false }, gb_attr_int(0) };
  double number = 0;
  int64_t all = 0;
  gbl_push_op(L, GB_OP_isclose, pair, 2, attrs);
  gb_tensor *close = gbl_check_tensor(L, -1);
  gbl_push_op(L, GB_OP_all, &close, 1, over);
  gbl_check_status(L, gb_tensor_item(gbl_check_tensor(L, -1), &number, &all));
  lua_pushboolean(L, all != 0);
  return 1;
}

static int tensor_allclose(lua_State *L, gbl_call *call) { return all_close(L, call, "self"); }
static int gb_allclose(lua_State *L, gbl_call *call) { return all_close(L, call, "x"); }

/* The elements in order as float64 or int64, in a buffer pushed on the stack. */
static void *push_host_copy(lua_State *L, gb_tensor *t) {
  gb_context *context = gb_tensor_context(t);
  gb_dtype wide = gb_dtype_is_float(gb_tensor_dtype(t)) ? GB_FLOAT64 : GB_INT64;
  void *host = lua_newuserdatauv(L, (size_t)t->numel * 8 + 8, 0);
  gbl_box *box = gbl_new_tensor(L);
  bool grad = gb_set_grad_enabled(context, false);
  gb_status status = gb_op_cast(context, t, wide, &box->tensor);
  if (status == GB_OK) status = gb_tensor_read(box->tensor, host, (size_t)t->numel * 8);
  gb_set_grad_enabled(context, grad);
  gbl_check_status(L, status);
  empty_box(L, box);
  lua_pop(L, 1);
  return host;
}

/* Push dimension `dim` of the copy as nested lists, advancing *at. */
static void push_nested(lua_State *L, const gb_tensor *t, int dim, const void *host, int64_t *at, uint64_t *steps) {
  gbl_charge_step(L, steps);
  if (dim == t->ndim) {
    gb_dtype dtype = gb_tensor_dtype(t);
    bool is_float = gb_dtype_is_float(dtype);
    push_value(L, dtype, is_float ? ((const double *)host)[*at] : 0, is_float ? 0 : ((const int64_t *)host)[*at]);
    ++*at;
    return;
  }
  luaL_checkstack(L, 4, GBL_NO_STACK);
  lua_createtable(L, t->shape[dim] < INT32_MAX ? (int)t->shape[dim] : 0, 0);
  for (int64_t i = 1; i <= t->shape[dim]; i++) {
    push_nested(L, t, dim + 1, host, at, steps);
    lua_rawseti(L, -2, i);
  }
}

static int tensor_tolist(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  int64_t at = 0;
  uint64_t steps = 0;
  const void *host = push_host_copy(L, t);
  push_nested(L, t, 0, host, &at, &steps);
  return 1;
}

static int tensor_stats(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  bool is_float = gb_dtype_is_float(gb_tensor_dtype(t));
  const void *host = push_host_copy(L, t);
  double least = INFINITY, most = -INFINITY, mean = 0, squares = 0;
  int64_t finite = 0, nans = 0, zeros = 0;
  uint64_t steps = 0;
  for (int64_t i = 0; i < t->numel; i++) {
    gbl_charge_step(L, &steps);
    double x = is_float ? ((const double *)host)[i] : (double)((const int64_t *)host)[i];
    nans += isnan(x) != 0;
    zeros += x == 0;
    if (!isfinite(x)) continue;
    if (x < least) least = x;
    if (x > most) most = x;
    double before = mean; /* Welford's running mean and squared distance */
    mean += (x - before) / (double)++finite;
    squares += (x - before) * (x - mean);
  }
  lua_createtable(L, 0, 8);
  gbl_set_integer(L, "numel", t->numel);
  gbl_set_integer(L, "nan", nans);
  gbl_set_integer(L, "inf", t->numel - finite - nans);
  gbl_set_integer(L, "zero", zeros);
  if (!finite) return 1;
  gbl_set_number(L, "min", least);
  gbl_set_number(L, "max", most);
  gbl_set_number(L, "mean", mean);
  gbl_set_number(L, "std", finite > 1 ? sqrt(squares / (double)(finite - 1)) : 0);
  return 1;
}

/* Text that must be freed, put into a buffer of Lua's. */
static int push_text(lua_State *L) {
  lua_pushstring(L, lua_touserdata(L, 1));
  return 1;
}

static int tensor_tostring(lua_State *L) {
  const gbl_box *box = luaL_checkudata(L, 1, tensor_meta);
  gbl_state *state = gbl_upvalue(L);
  if (!box->tensor) { lua_pushliteral(L, "tensor (freed)"); return 1; }
  char *text = NULL;
  gbl_check_status(L, gb_tensor_text(box->tensor, &state->print, &text));
  lua_pushcfunction(L, push_text);
  lua_pushlightuserdata(L, text);
  int failed = lua_pcall(L, 1, 1, 0);
  free(text);
  return failed ? lua_error(L) : 1;
}

static int not_called(lua_State *L) {
  return gbl_error(L, "a tensor is no function and no iterator; loop over its rows with: for i, row in "
                     "ipairs(x:unbind()) do");
}

static int not_ordered(lua_State *L) {
  return gbl_error(L, "tensors cannot be compared with < <= > >=: Lua would turn the result into one boolean; "
                     "use x:lt(y), x:le(y), x:gt(y), x:ge(y)");
}

/* ====} */

/* {==== Conversions ==== */

/* Replace the tensor at the top by the same one on another device. */
static void move_top(lua_State *L, gb_device device) {
  gb_tensor *t = gbl_check_tensor(L, lua_gettop(L));
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_op_to_device(gb_tensor_context(t), t, device, &box->tensor));
  gbl_finish_tensor(L);
  lua_remove(L, -2);
}

/* Push t in another dtype and on another device; t's own value where nothing changes. */
static int push_converted(lua_State *L, gb_tensor *t, gb_dtype dtype, gb_device device) {
  gb_device here = gb_tensor_device(t);
  lua_pushvalue(L, 1);
  if (dtype != gb_tensor_dtype(t)) {
    gb_attr to = gb_attr_int(dtype);
    gbl_step(L, GB_OP_cast, &to, false);
  }
  if (device.type != here.type || device.index != here.index) move_top(L, device);
  return 1;
}

/* What a precision, or a table {dtype =, device =}, asks for: its dtype is for floating tensors and leaves that of
 * others. */
static void read_target_table(lua_State *L, const gbl_call *call, int arg, bool floating, gb_dtype *dtype,
                              gb_device *device) {
  if (gbl_push_private(L, arg, "precision")) gbl_raw_field(L, -1, "parameters");
  else if (lua_type(L, arg) != LUA_TTABLE || luaL_getmetafield(L, arg, "__index") != LUA_TNIL)
    gbl_refuse(call, "expects a dtype, a device, a tensor or a precision, got %s", gbl_type_name(L, arg));
  else {
    static const char *const known[] = { "dtype", "device", NULL };
    gbl_check_options(L, arg, gbl_who(call), known);
    if (gbl_raw_field(L, arg, "device") != LUA_TNIL)
      *device = gbl_option_device(L, arg, gbl_who(call), "device", *device);
    gbl_raw_field(L, arg, "dtype");
  }
  if (!lua_isnil(L, -1) && floating) *dtype = gbl_check_dtype(L, lua_gettop(L), gbl_who(call));
  lua_settop(L, call->top);
}

/* What one value of a conversion asks for. */
static void read_target(lua_State *L, const gbl_call *call, int arg, bool floating, gb_dtype *dtype,
                        gb_device *device) {
  const gb_tensor *other = gbl_test_tensor(L, arg);
  if (other) {
    *dtype = gb_tensor_dtype(other);
    *device = gb_tensor_device(other);
  } else if (lua_type(L, arg) == LUA_TSTRING && !gbl_push_private(L, arg, "precision")) {
    gb_dtype named = gb_dtype_from_name(gbl_check_name(L, arg, gbl_who(call)));
    bool is_device = !strncmp(lua_tostring(L, arg), "cpu", 3) || !strncmp(lua_tostring(L, arg), "cuda", 4);
    if (named != GB_DTYPE_NONE || !is_device)
      *dtype = gbl_check_dtype(L, arg, "to: no device (cpu, cuda or cuda:N) and no dtype");
    else *device = gbl_check_device(L, arg);
  } else if (!lua_isnil(L, arg)) read_target_table(L, call, arg, floating, dtype, device);
}

static int tensor_to(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  gb_dtype dtype = gb_tensor_dtype(t);
  gb_device device = gb_tensor_device(t);
  bool floating = gb_dtype_is_float(dtype);
  for (int arg = 2; arg <= call->top; arg++) read_target(L, call, arg, floating, &dtype, &device);
  return push_converted(L, t, dtype, device);
}

static int tensor_type_as(lua_State *L, gbl_call *call) {
  const gb_tensor *other = gbl_tensor(call, "other");
  return push_converted(L, gbl_tensor(call, "self"), gb_tensor_dtype(other), gb_tensor_device(other));
}

static int convert(lua_State *L, const gbl_call *call, gb_dtype dtype) {
  gb_tensor *t = gbl_tensor(call, "self");
  return push_converted(L, t, dtype, gb_tensor_device(t));
}

static int tensor_double(lua_State *L, gbl_call *call) { return convert(L, call, GB_FLOAT64); }
static int tensor_float(lua_State *L, gbl_call *call) { return convert(L, call, GB_FLOAT32); }
static int tensor_half(lua_State *L, gbl_call *call) { return convert(L, call, GB_FLOAT16); }
static int tensor_bfloat16(lua_State *L, gbl_call *call) { return convert(L, call, GB_BFLOAT16); }
static int tensor_long(lua_State *L, gbl_call *call) { return convert(L, call, GB_INT64); }
static int tensor_int(lua_State *L, gbl_call *call) { return convert(L, call, GB_INT32); }
static int tensor_bool(lua_State *L, gbl_call *call) { return convert(L, call, GB_BOOL); }

static int tensor_cpu(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  return push_converted(L, t, gb_tensor_dtype(t), (gb_device){ GB_CPU, 0 });
}

static int tensor_cuda(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  if (gbl_given(call, "index")) lua_pushfstring(L, "cuda:%I", (LUAI_UACINT)gbl_integer(call, "index"));
  else lua_pushliteral(L, "cuda");
  gb_device device = gbl_check_device(L, lua_gettop(L));
  return push_converted(L, t, gb_tensor_dtype(t), device);
}

static int tensor_detach(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_detach(t, &box->tensor));
  return 1;
}

/* ====} */

/* {==== Shapes by another tensor; parts ==== */

static int shaped_as(lua_State *L, const gbl_call *call, gb_op op) {
  gb_tensor *t = gbl_tensor(call, "self"), *other = gbl_tensor(call, "other");
  gb_attr shape = gb_attr_ints(other->ndim, other->shape);
  gbl_push_op(L, op, &t, 1, &shape);
  return 1;
}

static int tensor_view_as(lua_State *L, gbl_call *call) { return shaped_as(L, call, GB_OP_view); }
static int tensor_reshape_as(lua_State *L, gbl_call *call) { return shaped_as(L, call, GB_OP_reshape); }
static int tensor_expand_as(lua_State *L, gbl_call *call) { return shaped_as(L, call, GB_OP_expand); }

/* Append t[start .. start + length - 1] along dim to the list at the top. */
static void append_part(lua_State *L, gb_tensor *t, int dim, int64_t start, int64_t length) {
  gb_attr attrs[] = { gb_attr_int(dim), gb_attr_int(start), gb_attr_int(length) };
  gbl_push_op(L, GB_OP_narrow, &t, 1, attrs);
  lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

static int part_dim(const gbl_call *call, const gb_tensor *t) {
  if (t->ndim == 0) gbl_refuse(call, "a 0-d tensor has no dimensions");
  return check_dim(call, t);
}

static void append_equal_parts(lua_State *L, gb_tensor *t, int dim, int64_t length) {
  for (int64_t at = 0; at < t->shape[dim]; at += length) {
    int64_t rest = t->shape[dim] - at;
    append_part(L, t, dim, at, rest < length ? rest : length);
  }
}

static int tensor_split(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  const gbl_value *length = gbl_argument(call, "length");
  int dim = part_dim(call, t);
  lua_newtable(L);
  if (strcmp(length->kind, "list")) {
    if (length->integer < 1)
      return gbl_refuse(call, "the length of a part must be positive, got %" PRId64, length->integer);
    append_equal_parts(L, t, dim, length->integer);
    return 1;
  }
  int64_t at = 0;
  for (int i = 1; i <= length->count; i++) {
    lua_rawgeti(L, length->index, i);
    int64_t part = gbl_check_integer(L, lua_gettop(L), "split", "length");
    lua_pop(L, 1);
    append_part(L, t, dim, at, part);
    at += part;
  }
  if (at != t->shape[dim])
    return gbl_refuse(call, "the lengths add up to %" PRId64 ", the dimension has %" PRId64, at, t->shape[dim]);
  return 1;
}

static int tensor_chunk(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  int dim = part_dim(call, t);
  int64_t count = gbl_integer(call, "chunks");
  if (count < 1) return gbl_refuse(call, "the number of chunks must be positive, got %" PRId64, count);
  lua_newtable(L);
  int64_t length = t->shape[dim] / count + (t->shape[dim] % count != 0);
  append_equal_parts(L, t, dim, length > 0 ? length : 1);
  return 1;
}

static int tensor_unbind(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  int dim = part_dim(call, t);
  lua_newtable(L);
  for (int64_t i = 0; i < t->shape[dim]; i++) {
    gb_attr attrs[] = { gb_attr_int(dim), gb_attr_int(i) };
    gbl_push_op(L, GB_OP_select, &t, 1, attrs);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int tensor_tile(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  const gbl_value *given = gbl_argument(call, "counts");
  const int64_t *counts = given->ints;
  int n = given->count;
  lua_pushvalue(L, 1);
  for (int i = t->ndim; i < n; i++)
    gbl_step(L, GB_OP_unsqueeze, &(gb_attr){ .given = true, .integer = 0 }, i > t->ndim);
  int ndim = n > t->ndim ? n : t->ndim;
  for (int i = 0; i < n; i++) {
    if (counts[i] == 1) continue;
    if (counts[i] < 0 || counts[i] > 1 << 20)
      return gbl_refuse(call, "a count is 0 .. %d, got %" PRId64, 1 << 20, counts[i]);
    gb_tensor *x = gbl_check_tensor(L, lua_gettop(L)),
        **list = lua_newuserdatauv(L, sizeof *list * (size_t)counts[i], 0);
    for (int64_t j = 0; j < counts[i]; j++) list[j] = x;
    gb_attr none[] = { gb_attr_int(ndim - n + i), gb_attr_int(0), gb_attr_int(0) };
    if (counts[i] == 0) gbl_push_op(L, GB_OP_narrow, &x, 1, none);
    else gbl_push_op(L, GB_OP_cat, list, (int)counts[i], none);
    lua_replace(L, -3);
    lua_pop(L, 1);
  }
  return 1;
}

static int tensor_positions(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  if (gb_dtype_is_float(gb_tensor_dtype(t)) || t->dtype == GB_BOOL)
    return gbl_refuse(call, "expects an integer tensor of indices, got %s", gb_dtype_name(gb_tensor_dtype(t)));
  gbl_box *one = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_wrap_integer(call->state->context, 1, &one->tensor));
  gbl_push_op(L, GB_OP_add, (gb_tensor *[]){ t, one->tensor }, 2, NULL);
  return 1;
}

/* ====} */

static int tensor_zero_(lua_State *L, gbl_call *call) {
  gb_tensor *t = gbl_tensor(call, "self");
  gb_attr zero = gb_attr_num(0);
  gbl_check_status(L, gb_apply_(call->state->context, GB_OP_fill, &t, 1, &zero));
  gb_tensor_tag_zero(t);
  lua_settop(L, 1);
  return 1;
}

void gbl_push_methods(lua_State *L) { lua_rawgetp(L, LUA_REGISTRYINDEX, &methods_key); }

/* The weak table from tensors to their known values. */
static void make_shared_table(lua_State *L) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  gbl_set_raw(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &shared_key);
}

static const gbl_function methods[] = {
  { tensor_free, GB_SANDBOX_STRICT,
    "tensor:free(): Release this handle now; the memory is freed when nothing else holds it. Also the end of a "
    "to-be-closed "
    "variable. Example: local y = gb.zeros(2) y:free()" },
  { tensor_size, GB_SANDBOX_STRICT,
    "tensor:size(dim?: dim) -> any: The size of a dimension, or the list of all. Example: local rows = x:size(1)" },
  { tensor_stride, GB_SANDBOX_STRICT,
    "tensor:stride(dim?: dim) -> any: The elements between neighbours along a dimension, or the list of all. "
    "Example: print(x:stride(1))" },
  { tensor_dim, GB_SANDBOX_STRICT,
    "tensor:dim() -> int: The number of dimensions. Example: print(x:dim())" },
  { tensor_numel, GB_SANDBOX_STRICT,
    "tensor:numel() -> int: The number of elements. Example: print(x:numel())" },
  { tensor_element_size, GB_SANDBOX_STRICT,
    "tensor:element_size() -> int: The bytes of one element. Example: print(x:element_size())" },
  { tensor_is_contiguous, GB_SANDBOX_STRICT,
    "tensor:is_contiguous() -> bool: Do the elements lie in memory row by row, without gaps? Example: "
    "print(x:is_contiguous())" },
  { tensor_is_floating_point, GB_SANDBOX_STRICT,
    "tensor:is_floating_point() -> bool: Is the dtype a floating one? Example: print(x:is_floating_point())" },
  { tensor_item, GB_SANDBOX_STRICT,
    "tensor:item() -> number: The value of the only element. Errors: several elements. Example: "
    "print(x:sum():item())" },
  { tensor_allclose, GB_SANDBOX_STRICT,
    "tensor:allclose(y: tensor, rtol: number = 1e-5, atol: number = 1e-8, equal_nan: bool = false;) -> bool: Is every "
    "element as close to y's as isclose asks? Example: print(x:allclose(x + 1e-9))" },
  { tensor_tolist, GB_SANDBOX_STRICT,
    "tensor:tolist() -> any: Nested lists of the elements; the value alone of a 0-d tensor. Example: local rows = "
    "x:tolist()" },
  { tensor_stats, GB_SANDBOX_STRICT,
    "tensor:stats() -> table: numel; min, max, mean, std of the finite elements; how many are nan, inf and zero. "
    "Example: print(x:stats().max)" },
  { tensor_to, GB_SANDBOX_STRICT,
    "tensor:to(targets...: any) -> tensor: Convert to another dtype or device, or to those of another tensor, in any "
    "order; the tensor itself where nothing changes. Errors: a device that is not there. Example: local y = "
    "x:to(\"float16\")" },
  { tensor_type_as, GB_SANDBOX_STRICT,
    "tensor:type_as(other: tensor) -> tensor: In the dtype and on the device of another tensor. Example: local y = "
    "x:type_as(gb.zeros(1))" },
  { tensor_double, GB_SANDBOX_STRICT,
    "tensor:double() -> tensor: In float64. Example: local y = x:double()" },
  { tensor_float, GB_SANDBOX_STRICT,
    "tensor:float() -> tensor: In float32. Example: local y = x:float()" },
  { tensor_half, GB_SANDBOX_STRICT,
    "tensor:half() -> tensor: In float16. Example: local y = x:half()" },
  { tensor_bfloat16, GB_SANDBOX_STRICT,
    "tensor:bfloat16() -> tensor: In bfloat16. Example: local y = x:bfloat16()" },
  { tensor_long, GB_SANDBOX_STRICT,
    "tensor:long() -> tensor: In int64. Example: local y = x:long()" },
  { tensor_int, GB_SANDBOX_STRICT,
    "tensor:int() -> tensor: In int32. Example: local y = x:int()" },
  { tensor_bool, GB_SANDBOX_STRICT,
    "tensor:bool() -> tensor: In bool: true where not zero. Example: local y = x:bool()" },
  { tensor_cpu, GB_SANDBOX_STRICT,
    "tensor:cpu() -> tensor: On the CPU; the tensor itself when it is there. Example: local y = x:cpu()" },
  { tensor_cuda, GB_SANDBOX_STRICT,
    "tensor:cuda(index?: int) -> tensor: On a GPU. Errors: there is none. Example: if gb.cuda.is_available() then "
    "local y = x:cuda() end" },
  { tensor_detach, GB_SANDBOX_STRICT,
    "tensor:detach() -> tensor: A tensor over the same memory, without history. Example: local y = x:detach()" },
  { tensor_view_as, GB_SANDBOX_STRICT,
    "tensor:view_as(other: tensor) -> tensor: view in the shape of another tensor. Example: local y = x:view_as(x)" },
  { tensor_reshape_as, GB_SANDBOX_STRICT,
    "tensor:reshape_as(other: tensor) -> tensor: reshape to the shape of another tensor. Example: local y = "
    "x:reshape_as(x)" },
  { tensor_expand_as, GB_SANDBOX_STRICT,
    "tensor:expand_as(other: tensor) -> tensor: expand to the shape of another tensor. Example: local y = "
    "x:expand_as(x)" },
  { tensor_split, GB_SANDBOX_STRICT,
    "tensor:split(length: int|list, dim: dim = 1) -> list: Views of length positions along dim, the last perhaps "
    "shorter; or of the lengths in a list. Errors: lengths that do not add up to the dimension. Example: local "
    "parts = x:split(2)" },
  { tensor_chunk, GB_SANDBOX_STRICT,
    "tensor:chunk(chunks: int, dim: dim = 1) -> list: At most this many views of equal length along dim, the last "
    "one perhaps shorter. Example: local halves = x:chunk(2)" },
  { tensor_unbind, GB_SANDBOX_STRICT,
    "tensor:unbind(dim: dim = 1) -> list: The views at each position along dim. Example: local rows = x:unbind()" },
  { tensor_tile, GB_SANDBOX_STRICT,
    "tensor:tile(counts: sizes) -> tensor: Each dimension repeated, as blocks; more counts than dimensions add "
    "dimensions in front. Example: local y = x:tile(2, 3)" },
  { tensor_positions, GB_SANDBOX_STRICT,
    "tensor:positions() -> tensor: Indices that count from 0 made Lua's positions, which count from 1. Errors: a "
    "tensor that is not of integers. Example: local at = x:argmax():positions():item()" },
  { tensor_zero_, GB_SANDBOX_STRICT,
    "tensor:zero_() -> tensor: Every element becomes 0. Example: gb.ones(2):zero_()" },
  { NULL, 0, NULL },
};

static const gbl_function functions[] = {
  { gb_allclose, GB_SANDBOX_STRICT,
    "gb.allclose(x: tensor, y: tensor, rtol: number = 1e-5, atol: number = 1e-8, equal_nan: bool = false;) -> bool: Is "
    "every element of x as close to y's as isclose asks? Example: print(gb.allclose(x, x + 1e-9))" },
  { NULL, 0, NULL },
};

static void make_methods(lua_State *L) {
  lua_newtable(L);
  gbl_define(L, methods);
  gbl_describe(L, field_records);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    lua_pushinteger(L, fields[i].field);
    gbl_set_raw(L, -2, fields[i].name);
  }
  lua_rawsetp(L, LUA_REGISTRYINDEX, &methods_key);
}

void gbl_open_tensor(lua_State *L) {
  static const luaL_Reg meta[] = {
    { "__newindex", tensor_newindex }, { "__len", tensor_len }, { "__tostring", tensor_tostring },
        { "__gc", tensor_gc },
    { "__close", free_handle }, { "__concat", concat }, { "__lt", not_ordered }, { "__le", not_ordered },
    { "__call", not_called }, { "__pairs", not_called },
        { NULL, NULL },
  };
  static const luaL_Reg shape[] = { { "__index", shape_index }, { "__tostring", shape_text },
                                    { "__eq", shape_equal }, { "__concat", concat },
                                    { NULL, NULL } };
  gbl_state *state = gbl_get_state(L);
  gbl_define(L, functions);
  make_shared_table(L);
  make_methods(L);
  luaL_newmetatable(L, shape_meta);
  gbl_set_functions(L, shape);
  lua_pop(L, 1);
  luaL_newmetatable(L, tensor_meta);
  state->tensor_meta = lua_topointer(L, -1);
  lua_pushvalue(L, -1);
  state->tensor_reference = luaL_ref(L, LUA_REGISTRYINDEX);
  gbl_set_functions(L, meta);
  lua_pushboolean(L, true);
  gbl_set_raw(L, -2, "__uncallable");
  lua_pushlightuserdata(L, state);
  gbl_push_methods(L);
  lua_pushcclosure(L, tensor_index, 2);
  gbl_set_raw(L, -2, "__index");
  lua_pushliteral(L, "gibbous.tensor");
  gbl_set_raw(L, -2, "__metatable");
  lua_pop(L, 1);
}
