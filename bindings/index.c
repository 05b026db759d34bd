/* index.c - t[key] and t[key] = value.
 *
 * A key is a position, a tensor, or a table with an item per dimension: a position selects (the dimension goes), {} is
 * all, {a, b} and {a, b, step} are ranges with both ends included, a tensor picks. Positions count from 1, -1 is the
 * last; integers inside tensors count from 0; a bool tensor is a mask over the dimensions it covers. Selections and
 * ranges are views, so an assignment writes through them. Several tensors broadcast, and name elements together, as in
 * PyTorch: their shape stands where the first of them did if they are beside each other, else in front. Among several,
 * an integer tensor without dimensions is a selection, also as there. */
#include <inttypes.h>
#include <string.h>

#include "binding.h"

/* Where a key has led: the view is the value at the top of the stack. */
typedef struct cursor {
  int dim;               /* of the view, that the next item is about */
  int item;              /* of the key, counted from 1, for error texts */
  int tensors;           /* how many the key has; */
  int n;                 /* of these, how many pick */
  gb_tensor *picked[GB_MAX_NDIM]; /* these, borrowed */
  int picked_dim[GB_MAX_NDIM];    /* the dims of the view, from 0, that they begin at */
} cursor;

enum { KEPT = 4 }; /* the place on the stack of the key's tensor, or a list of several, above tensor, key and value */

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

/* Hold the key's tensor at index `item`: the key may be a weak table. */
static void keep(lua_State *L, const cursor *c, int item) {
  if (c->n == 1) {
    lua_newtable(L);
    lua_pushvalue(L, KEPT);
    lua_rawseti(L, -2, 1);
    lua_replace(L, KEPT);
  }
  lua_pushvalue(L, item);
  if (c->n == 0) lua_replace(L, KEPT);
  else lua_rawseti(L, KEPT, c->n + 1);
}

/* Note a tensor of the key that picks, at index `item`. */
static void note_picked(lua_State *L, cursor *c, int item, gb_tensor *picked) {
  size_here(L, c);
  if (picked->dtype == GB_BOOL && picked->ndim == 0)
    gbl_error(L, "item %d of the index is a bool tensor without dimensions; a mask covers one or more", c->item);
  if (c->n == GB_MAX_NDIM) gbl_error(L, "an index has at most %d tensors (item %d)", GB_MAX_NDIM, c->item);
  keep(L, c, item);
  c->picked[c->n] = picked;
  c->picked_dim[c->n++] = c->dim;
  c->dim += picked->dtype == GB_BOOL ? picked->ndim : 1;
}

/* Is it a selection, and of which place from 0? */
static bool is_place(lua_State *L, const cursor *c, gb_tensor *picked, int64_t *place) {
  if (c->tensors < 2 || picked->ndim || picked->dtype == GB_BOOL || gb_dtype_is_float((gb_dtype)picked->dtype))
    return false;
  gbl_check_status(L, gb_tensor_item(picked, NULL, place));
  int64_t size = size_here(L, c);
  if (*place < 0 || *place >= size)
    gbl_error(L, "index %" PRId64 " of item %d is out of range: its dimension has size %" PRId64
              ", and integers in tensors count from 0", *place, c->item, size);
  return true;
}

/* One item of the key, at the top of the stack; removed, and the view below it moved on. Views between the tensor at 1
 * and the last one end at once. */
static void take_item(lua_State *L, cursor *c) {
  int64_t position;
  int item = lua_gettop(L);
  gb_tensor *picked = gbl_test_tensor(L, item);
  lua_pushvalue(L, item - 1);
  if (picked && is_place(L, c, picked, &position)) select_item(L, c, position + 1);
  else if (picked) note_picked(L, c, item, picked);
  else if (gbl_test_integer(L, item, &position)) select_item(L, c, position);
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
    for (int64_t i = 1; i <= count && c.tensors < 2; i++, lua_pop(L, 1)) {
      lua_rawgeti(L, 2, i);
      c.tensors += gbl_test_tensor(L, lua_gettop(L)) != NULL;
    }
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

/* Push t op an integer. */
static gb_tensor *push_with(lua_State *L, gb_op op, gb_tensor *t, int64_t number) {
  gbl_box *wrapped = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_wrap_integer(gb_tensor_context(t), number, &wrapped->tensor));
  gbl_push_op(L, op, (gb_tensor *[]){ t, wrapped->tensor }, 2, NULL);
  return top(L);
}

/* Push what one of two masks marks; x: NULL where there is none. */
static gb_tensor *push_either(lua_State *L, gb_tensor *x, gb_tensor *y) {
  if (!x) return y;
  gbl_push_op(L, GB_OP_logical_or, (gb_tensor *[]){ x, y }, 2, NULL);
  return top(L);
}

/* Push tensor k of the key as int64: the places of a mask are taken one by one. */
static gb_tensor *push_integers(lua_State *L, const gb_tensor *x, const cursor *c, int k) {
  gb_tensor *picked = c->picked[k];
  gb_attr dtype = gb_attr_int(GB_INT64);
  if (gb_dtype_is_float(gb_tensor_dtype(picked)))
    gbl_error(L, "an index tensor holds integers, or is a mask of bool; tensor %d of the index is %s", k + 1,
              gb_dtype_name(gb_tensor_dtype(picked)));
  if (picked->dtype == GB_BOOL) {
    if (picked->ndim != 1) gbl_error(L, "a mask of several dimensions is the only tensor of an index");
    check_mask(L, x, picked, c->picked_dim[k]);
    push_places(L, picked);
  } else gbl_push_op(L, GB_OP_cast, &picked, 1, &dtype);
  return top(L);
}

/* On the CPU, raise where tensor k of the key names no place of its dimension. */
static void check_places(lua_State *L, gb_tensor *index, int k, int64_t size) {
  int64_t ends[2];
  if (index->numel == 0) return;
  for (int i = 0; i < 2; i++) {
    gbl_push_op(L, i ? GB_OP_amax : GB_OP_amin, &index, 1, NULL);
    gbl_check_status(L, gb_tensor_item(top(L), NULL, &ends[i]));
    lua_pop(L, 1);
  }
  if (ends[0] < 0 || ends[1] >= size)
    gbl_error(L, "index %" PRId64 " of tensor %d of the index is out of range: its dimension has size %" PRId64
              ", and integers in tensors count from 0", ends[0] < 0 ? ends[0] : ends[1], k + 1, size);
}

/* Push where the key's tensors lead together: places in all of their dimensions as one. On a device, which is not
 * waited for, a place that there is not becomes -1, which its kernels report. */
static gb_tensor *push_together(lua_State *L, const gb_tensor *x, const cursor *c) {
  const bool on_cpu = gb_tensor_device(x).type == GB_CPU;
  int64_t sizes[GB_MAX_NDIM];
  int ndim = 0;
  gb_tensor *total = NULL, *wrong = NULL;
  for (int k = 0; k < c->n; k++) {
    char a[96], b[96];
    const int64_t size = x->shape[c->picked_dim[k]];
    gb_tensor *index = push_integers(L, x, c, k);
    const int before = ndim;
    if (!gb_broadcast(&ndim, sizes, index->ndim, index->shape))
      gbl_error(L, "the tensors of an index have the shapes %s and %s, which do not broadcast",
                gb_shape_text(before, sizes, a, sizeof a), gb_shape_text(index->ndim, index->shape, b, sizeof b));
    if (on_cpu) check_places(L, index, k, size);
    else wrong = push_either(L, wrong, push_either(L, push_with(L, GB_OP_lt, index, 0),
                                                   push_with(L, GB_OP_ge, index, size)));
    if (total) {
      gb_tensor *sum[] = { push_with(L, GB_OP_mul, total, size), index };
      gbl_push_op(L, GB_OP_add, sum, 2, NULL);
      total = top(L);
    } else total = index;
  }
  gb_attr none = gb_attr_num(-1);
  if (wrong) gbl_push_op(L, GB_OP_masked_fill, (gb_tensor *[]){ total, wrong }, 2, &none);
  return wrong ? top(L) : total;
}

/* Are the key's tensors beside each other? */
static bool is_together(const cursor *c) { return c->picked_dim[c->n - 1] - c->picked_dim[0] == c->n - 1; }

/* Push x with the key's dimensions beside each other, from `place` on. */
static void push_gathered(lua_State *L, gb_tensor *x, const cursor *c, int place) {
  int64_t order[GB_MAX_NDIM];
  for (int i = 0, at = 0, k = 0; i < x->ndim; i++) {
    if (at == place) for (int j = 0; j < c->n; j++) order[at++] = c->picked_dim[j];
    if (k < c->n && c->picked_dim[k] == i) k++;
    else order[at++] = i;
  }
  gb_attr dims = gb_attr_ints(x->ndim, order);
  gbl_push_op(L, GB_OP_permute, &x, 1, &dims);
}

static void pick_by_several(lua_State *L, const cursor *c) {
  gb_tensor *x = top(L);
  const int place = is_together(c) ? c->picked_dim[0] : 0;
  luaL_checkstack(L, 16 * GB_MAX_NDIM, "index");
  gb_tensor *together = push_together(L, x, c);
  push_gathered(L, x, c, place);
  gb_attr joined[] = { gb_attr_int(place), gb_attr_int(place + c->n - 1) };
  gbl_step(L, GB_OP_flatten, joined, true);
  pick_by_integers(L, place, together);
}

int gbl_index_get(lua_State *L) {
  gbl_upvalue(L);
  gbl_check_tensor(L, 1);
  lua_settop(L, 2);
  lua_settop(L, KEPT);
  cursor c = walk(L);
  if (c.n > 1) pick_by_several(L, &c);
  else if (c.n && c.picked[0]->dtype == GB_BOOL) pick_by_mask(L, c.picked_dim[0], c.picked[0]);
  else if (c.n) pick_by_integers(L, c.picked_dim[0], c.picked[0]);
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

/* Push the value for picks of shape `index` that stand behind `place` dims: these shape the value's first dims then. */
static gb_tensor *push_in_front(lua_State *L, const gb_tensor *view, const cursor *c, int place,
                                const gb_tensor *index, gb_tensor *value) {
  int64_t sizes[GB_MAX_NDIM], order[GB_MAX_NDIM];
  const int rest = view->ndim - place - c->n, ndim = place + index->ndim + rest;
  if (ndim > GB_MAX_NDIM) gbl_error(L, "the index picks something of %d dimensions; there are %d", ndim, GB_MAX_NDIM);
  for (int i = 0; i < ndim; i++) {
    sizes[i] = i < place ? view->shape[i]
        : i < place + index->ndim ? index->shape[i - place] : view->shape[i - index->ndim + c->n];
    order[i] = i < index->ndim ? place + i : i < index->ndim + place ? i - index->ndim : i;
  }
  gb_attr shape = gb_attr_ints(ndim, sizes), dims = gb_attr_ints(ndim, order);
  gbl_push_op(L, GB_OP_expand, &value, 1, &shape);
  gbl_step(L, GB_OP_permute, &dims, true);
  return top(L);
}

/* Where the key's dimensions do not lie as one, a copy is written and brought back. */
static void assign_several(lua_State *L, const cursor *c) {
  gb_tensor *view = top(L), *value = value_as_tensor(L, view);
  const int place = is_together(c) ? c->picked_dim[0] : 0;
  luaL_checkstack(L, 16 * GB_MAX_NDIM, "index");
  gb_tensor *together = push_together(L, view, c);
  if (place > 0 && value->ndim > 0) value = push_in_front(L, view, c, place, together, value);
  push_gathered(L, view, c, 0);
  gb_tensor *gathered = top(L);
  gb_attr joined[] = { gb_attr_int(0), gb_attr_int(c->n - 1) };
  gbl_push_op(L, GB_OP_flatten, &gathered, 1, joined);
  gb_tensor *flat = top(L);
  assign(L, GB_OP_index_put, (gb_tensor *[]){ flat, together, value }, 3, NULL);
  if (flat->storage == view->storage) return;
  gb_attr parted[] = { gb_attr_int(0), gb_attr_ints(c->n, gathered->shape) };
  gbl_step(L, GB_OP_unflatten, parted, true);
  assign(L, GB_OP_copy, (gb_tensor *[]){ gathered, top(L) }, 2, NULL);
}

int gbl_index_set(lua_State *L) {
  gbl_check_tensor(L, 1);
  lua_settop(L, 3);
  lua_settop(L, KEPT);
  cursor c = walk(L);
  gb_tensor *picked = c.n ? c.picked[0] : NULL;
  if (!picked) assign_all(L);
  else if (c.n > 1) assign_several(L, &c);
  else if (picked->dtype != GB_BOOL) assign_picked(L, c.picked_dim[0], picked);
  else {
    check_mask(L, top(L), picked, c.picked_dim[0]);
    if (picked->ndim > 1) {
      if (c.picked_dim[0] > 0)
        return gbl_error(L, "a mask of several dimensions must start at the first dimension in an assignment");
      assign_masked(L, picked);
    } else {
      push_places(L, picked);
      gb_tensor *places = top(L);
      lua_pushvalue(L, -2);
      assign_picked(L, c.picked_dim[0], places);
    }
  }
  return 0;
}

/* ====} */
