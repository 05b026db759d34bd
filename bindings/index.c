/* index.c - t[key] and t[key] = value.
 *
 * A key is a position, a tensor, or a table with an item per dimension: a position selects (the dimension goes), {} is
 * all, {a, b} and {a, b, step} are ranges with both ends included, a tensor picks. Positions count from 1, -1 is the
 * last; integers inside tensors count from 0; a bool tensor is a mask over the dimensions it covers. Selections and
 * ranges are views, so an assignment writes through them. */
#include <inttypes.h>
#include <string.h>

#include "binding.h"

/* Where a key has led: the view is the value at the top of the stack. */
typedef struct cursor {
  int dim;               /* of the view, that the next item is about */
  int item;              /* of the key, counted from 1, for error texts */
  gb_tensor *picked;     /* the key's tensor, borrowed; or NULL */
  int picked_dim;
} cursor;

enum { KEPT = 4 }; /* the place on the stack of the key's tensor, above tensor, key and value */

static gb_tensor *top(lua_State *L) { return gbl_check_tensor(L, lua_gettop(L)); }


/* {==== Items that make views ==== */

static int64_t size_here(lua_State *L, const cursor *c) {
  const gb_tensor *t = top(L);
  if (t->ndim == 0 && c->item == 1) gbl_error(L, "a 0-d tensor has no positions; its value is t:item()");
  if (c->dim >= t->ndim) gbl_error(L, "the index has more items than the tensor has dimensions (item %d)", c->item);
  return t->shape[c->dim];
}

/* A position from 0, checked against the size of the dimension. */
static int64_t locate(lua_State *L, const cursor *c, int64_t position, int64_t size) {
  if (position == 0) gbl_error(L, "position 0 in dimension %d: positions count from 1, and -1 is the last", c->item);
  int64_t from0 = position > 0 ? position - 1 : position + size;
  if (from0 < 0 || from0 >= size)
    gbl_error(L,
            "position %" PRId64 " is out of range: dimension %d has size %" PRId64 " (positions 1 .. %" PRId64
            ", or -1 for the last)%s", position,
              c->item, size, size, position == size + 1 ? ". To loop, use `for i = 1, #t` or `ipairs(t:unbind())`"
                  : "");
  return from0;
}

static void select_item(lua_State *L, cursor *c, int64_t position) {
  int64_t size = size_here(L, c);
  gb_attr attrs[] = { gb_attr_int(c->dim), gb_attr_int(locate(L, c, position, size)) };
  gbl_step(L, GB_OP_select, attrs, false);
}

static int64_t range_part(lua_State *L, int item, int which, int64_t otherwise) {
  if (lua_rawgeti(L, item, which) == LUA_TNIL) { lua_pop(L, 1); return otherwise; }
  int64_t value = gbl_check_integer(L, lua_gettop(L), "index", which == 1 ? "first" : which == 2 ? "last" : "step");
  lua_pop(L, 1);
  return value;
}

/* {}, {a}, {a, b} or {a, b, step} at stack index `item`. A range may end just before it starts: it is empty. */
static void range_item(lua_State *L, cursor *c, int item) {
  int64_t size = size_here(L, c), count = (int64_t)lua_rawlen(L, item);
  if (count > 3)
    gbl_error(L, "a range is {first, last} or {first, last, step}; pick positions with an integer tensor (item %d)",
              c->item);
  if (count > 0) {
    int64_t first = range_part(L, item, 1, 1), last = range_part(L, item, 2, first), step = range_part(L, item, 3, 1);
    if (step < 1) gbl_error(L, "a range's step is 1 or more, got %" PRId64 "; x:flip(dim) reverses", step);
    int64_t from = first < 0 ? first + size : first - 1, to = last < 0 ? last + size : last - 1;
    bool empty = first != 0 && to == from - 1 && from >= 0 && from <= size;
    if (!empty) {
      from = locate(L, c, first, size);
      to = locate(L, c, last, size);
      if (to < from)
        gbl_error(L, "the range {%" PRId64 ", %" PRId64 "} ends before it starts (dimension %d)", first, last, c->item);
    }
    gb_attr narrow[] = { gb_attr_int(c->dim), gb_attr_int(from), gb_attr_int(empty ? 0 : to - from + 1) };
    gb_attr slice[] = { gb_attr_int(c->dim), gb_attr_int(from), gb_attr_int(to), gb_attr_int(step) };
    bool plain = empty || step == 1;
    gbl_step(L, plain ? GB_OP_narrow : GB_OP_slice, plain ? narrow : slice, false);
  }
  c->dim++;
}

/* One item of the key, at the top of the stack; removed, and the view below it moved on. Views between the tensor at 1
 * and the last one end at once. */
static void take_item(lua_State *L, cursor *c) {
  int64_t position;
  int item = lua_gettop(L);
  gb_tensor *picked = gbl_test_tensor(L, item);
  lua_pushvalue(L, item - 1);
  if (picked) {
    lua_pushvalue(L, item); /* the key may be a weak table */
    lua_replace(L, KEPT);
    if (c->picked) gbl_error(L, "an index holds at most one tensor; use gather, index_select or several steps");
    size_here(L, c);
    c->picked = picked;
    c->picked_dim = c->dim;
    c->dim += picked->dtype == GB_BOOL ? picked->ndim : 1;
  } else if (gbl_test_integer(L, item, &position)) select_item(L, c, position);
  else if (lua_type(L, item) == LUA_TTABLE) range_item(L, c, item);
  else gbl_error(L, "item %d of an index is a position, a range {first, last}, {} for all, or a tensor; got %s",
                 c->item, gbl_type_name(L, item));
  bool ours = lua_touserdata(L, item - 1) != lua_touserdata(L, 1) && !lua_rawequal(L, -1, item - 1);
  if (ours) gbl_end_handle(L, item - 1);
  lua_replace(L, item - 1);
  lua_settop(L, item - 1);
}

/* Push the view of the tensor at 1 that the key at 2 leads to. */
static cursor walk(lua_State *L) {
  cursor c = { .item = 1 };
  int64_t position;
  lua_pushvalue(L, 1);
  if (gbl_test_integer(L, 2, &position)) select_item(L, &c, position);
  else if (lua_type(L, 2) == LUA_TTABLE) {
    int64_t count = (int64_t)lua_rawlen(L, 2);
    for (; c.item <= count; c.item++) {
      lua_rawgeti(L, 2, c.item);
      take_item(L, &c);
    }
  } else if (gbl_test_tensor(L, 2)) {
    lua_pushvalue(L, 2);
    take_item(L, &c);
  } else gbl_error(L, "a tensor is indexed by a position, a table of positions and ranges, or a tensor; got %s",
                   gbl_type_name(L, 2));
  return c;
}

/* ====} */

/* {==== Tensors as keys ==== */

static void check_mask(lua_State *L, const gb_tensor *x, const gb_tensor *mask, int dim) {
  char a[96], b[96];
  bool fits = mask->ndim > 0 && dim + mask->ndim <= x->ndim;
  for (int i = 0; fits && i < mask->ndim; i++) fits = mask->shape[i] == x->shape[dim + i];
  if (!fits)
    gbl_error(L, "a mask of shape %s does not match dimensions %d and on of a tensor of shape %s",
              gb_shape_text(mask->ndim, mask->shape, a, sizeof a), dim + 1,
                  gb_shape_text(x->ndim, x->shape, b, sizeof b));
}

/* Push the places (from 0) where a mask is true, its dimensions taken as one: an int64 vector. */
static void push_places(lua_State *L, gb_tensor *mask) {
  int64_t flat = -1;
  gb_attr shape = gb_attr_ints(1, &flat);
  gb_attr column[] = { gb_attr_int(1), gb_attr_int(0) };
  gbl_push_op(L, GB_OP_reshape, &mask, 1, &shape);
  gbl_step(L, GB_OP_nonzero, NULL, true);
  gbl_step(L, GB_OP_select, column, true);
}

/* Push the picks along dim of the tensor at the top, by an integer vector. */
static void push_selected(lua_State *L, int dim, gb_tensor *index) {
  gb_attr along = gb_attr_int(dim);
  gbl_push_op(L, GB_OP_index_select, (gb_tensor *[]){ top(L), index }, 2, &along);
}

static void pick_by_mask(lua_State *L, int dim, gb_tensor *mask) {
  gb_tensor *x = top(L);
  check_mask(L, x, mask, dim);
  if (mask->ndim == x->ndim) {
    gbl_push_op(L, GB_OP_masked_select, (gb_tensor *[]){ x, mask }, 2, NULL);
    return;
  }
  gb_attr joined[] = { gb_attr_int(dim), gb_attr_int(dim + mask->ndim - 1) };
  push_places(L, mask);
  gb_tensor *places = top(L);
  gbl_push_op(L, GB_OP_flatten, &x, 1, joined);
  push_selected(L, dim, places);
}

/* Integers of any shape: their shape takes the place of the dimension. */
static void pick_by_integers(lua_State *L, int dim, gb_tensor *index) {
  int64_t flat = -1;
  gb_attr shape = gb_attr_ints(1, &flat);
  gbl_push_op(L, GB_OP_reshape, &index, 1, &shape);
  gb_tensor *vector = top(L);
  lua_pushvalue(L, -2);
  push_selected(L, dim, vector);
  gb_attr first[] = { gb_attr_int(dim), gb_attr_int(0) },
      shaped[] = { gb_attr_int(dim), gb_attr_ints(index->ndim, index->shape) };
  if (index->ndim == 0) gbl_step(L, GB_OP_select, first, true);
  else if (index->ndim > 1) gbl_step(L, GB_OP_unflatten, shaped, true);
}

int gbl_index_get(lua_State *L) {
  gbl_upvalue(L);
  gbl_check_tensor(L, 1);
  lua_settop(L, 2);
  lua_settop(L, KEPT);
  cursor c = walk(L);
  if (c.picked && c.picked->dtype == GB_BOOL) pick_by_mask(L, c.picked_dim, c.picked);
  else if (c.picked) pick_by_integers(L, c.picked_dim, c.picked);
  return 1;
}

/* ====} */

/* {==== Assignment ==== */

/* Make the value at 3 a tensor, in its place: a number or boolean wrapped, nested lists in the dtype of t. */
static gb_tensor *value_as_tensor(lua_State *L, const gb_tensor *t) {
  gb_tensor *value = gbl_test_tensor(L, 3);
  if (value) return value;
  gb_context *context = gb_tensor_context(t);
  int type = lua_type(L, 3);
  if (type == LUA_TTABLE) gbl_push_data(L, 3, gb_tensor_dtype(t), gb_tensor_device(t));
  else if (type == LUA_TNUMBER || type == LUA_TBOOLEAN) {
    gbl_box *box = gbl_new_tensor(L);
    bool whole = type == LUA_TBOOLEAN || lua_isinteger(L, 3);
    int64_t integer = type == LUA_TBOOLEAN ? lua_toboolean(L, 3) : lua_tointeger(L, 3);
    gbl_check_status(L, whole ? gb_tensor_wrap_integer(context, integer, &box->tensor)
                              : gb_tensor_wrap_number(context, lua_tonumber(L, 3), &box->tensor));
  } else gbl_error(L, "cannot assign a %s into a tensor; assign a number, a tensor or a list of numbers",
                   gbl_type_name(L, 3));
  lua_replace(L, 3);
  return gbl_check_tensor(L, 3);
}

/* Run an op that writes into the view in[0]; its errors name what the recipe wrote. */
static void assign(lua_State *L, gb_op op, gb_tensor *const *in, int n_in, const gb_attr *attrs) {
  gb_context *context = gb_tensor_context(in[0]);
  context->op = "assignment";
  gb_status status = gb_apply_(context, op, in, n_in, attrs);
  context->op = NULL;
  gbl_check_status(L, status);
}

/* Every element of the view at the top. */
static void assign_all(lua_State *L) {
  gb_tensor *view = top(L);
  if (lua_type(L, 3) == LUA_TNUMBER || lua_type(L, 3) == LUA_TBOOLEAN) {
    gb_attr value = gbl_number_attr(L, 3);
    assign(L, GB_OP_fill, &view, 1, &value);
    return;
  }
  gb_tensor *in[] = { view, value_as_tensor(L, view) };
  assign(L, GB_OP_copy, in, 2, NULL);
}

/* Push `value` broadcast to the view's shape with `count` in place of dim. */
static gb_tensor *push_expanded(lua_State *L, const gb_tensor *view, int dim, int64_t count, gb_tensor *value) {
  int64_t sizes[GB_MAX_NDIM];
  memcpy(sizes, view->shape, sizeof sizes);
  sizes[dim] = count;
  gb_attr shape = gb_attr_ints(view->ndim, sizes);
  gbl_push_op(L, GB_OP_expand, &value, 1, &shape);
  return top(L);
}

/* Assign at an index tensor in dim: transpose the view so that dim comes first. */
static void assign_picked(lua_State *L, int dim, gb_tensor *index) {
  gb_tensor *view = top(L), *value = value_as_tensor(L, view);
  if (dim > 0) {
    if (index->ndim != 1)
      gbl_error(L, "an index tensor after the first dimension must be a vector in an assignment; this one has %d "
                   "dimensions", index->ndim);
    gb_attr swap[] = { gb_attr_int(0), gb_attr_int(dim) };
    if (value->ndim > 0) {
      push_expanded(L, view, dim, index->numel, value);
      gbl_step(L, GB_OP_transpose, swap, true);
      value = top(L);
    }
    gbl_push_op(L, GB_OP_transpose, &view, 1, swap);
    view = top(L);
  }
  gb_tensor *in[] = { view, index, value };
  assign(L, GB_OP_index_put, in, 3, NULL);
}

/* A mask over several dimensions from the first on: its elements in order. */
static void assign_masked(lua_State *L, gb_tensor *mask) {
  gb_tensor *view = top(L);
  int64_t sizes[GB_MAX_NDIM];
  for (int i = 0; i < view->ndim; i++) sizes[i] = i < mask->ndim ? mask->shape[i] : 1;
  gb_attr shape = gb_attr_ints(view->ndim, sizes);
  gbl_push_op(L, GB_OP_reshape, &mask, 1, &shape);
  gb_tensor *over = top(L);
  if (lua_type(L, 3) == LUA_TNUMBER || lua_type(L, 3) == LUA_TBOOLEAN) {
    gb_attr value = gbl_number_attr(L, 3);
    assign(L, GB_OP_masked_fill, (gb_tensor *[]){ view, over }, 2, &value);
    return;
  }
  gb_tensor *value = value_as_tensor(L, view);
  push_places(L, mask);
  sizes[0] = top(L)->numel; /* view[mask] is [count, what the mask does not cover] */
  int rest = view->ndim - mask->ndim;
  memcpy(sizes + 1, view->shape + mask->ndim, sizeof *sizes * (size_t)rest);
  gb_attr picked = gb_attr_ints(1 + rest, sizes);
  gbl_push_op(L, GB_OP_expand, &value, 1, &picked);
  assign(L, GB_OP_masked_scatter, (gb_tensor *[]){ view, over, top(L) }, 3, NULL);
}

int gbl_index_set(lua_State *L) {
  gbl_check_tensor(L, 1);
  lua_settop(L, 3);
  lua_settop(L, KEPT);
  cursor c = walk(L);
  if (!c.picked) assign_all(L);
  else if (c.picked->dtype != GB_BOOL) assign_picked(L, c.picked_dim, c.picked);
  else {
    check_mask(L, top(L), c.picked, c.picked_dim);
    if (c.picked->ndim > 1) {
      if (c.picked_dim > 0)
        return gbl_error(L, "a mask of several dimensions must start at the first dimension in an assignment");
      assign_masked(L, c.picked);
    } else {
      push_places(L, c.picked);
      gb_tensor *places = top(L);
      lua_pushvalue(L, -2);
      assign_picked(L, c.picked_dim, places);
    }
  }
  return 0;
}

/* ====} */
