/* autograd.c - backward, gb.grad, gb.Function, hooks, and what a tensor says of its gradient.
 *
 * Backward begins with a minor collection: handles of intermediates that the forward pass dropped are dead by then, and
 * nothing that lives is made old. Functions of the recipe run inside gbl_protect; they cannot yield. */
#include <stdlib.h>
#include <string.h>

#include "graph/autograd.h"
#include "reader.h"
#include "step/firsts.h"

/* {==== backward and grad ==== */

/* Backward of which only the leaves in `inputs` get gradients, each once. */
static int backward_to(lua_State *L, gbl_call *call, gb_tensor *self, gb_tensor *gradient, bool retain, bool create) {
  const gbl_value *inputs = gbl_argument(call, "inputs");
  int n = inputs->count;
  if (n < 1) return gbl_refuse(call, "'inputs' is empty");
  for (int i = 0; i < n; i++)
    if (inputs->tensors[i]->node)
      return gbl_refuse(call, "tensor %d of 'inputs' is a result of ops; backward adds to leaves, and gb.grad gives "
                              "other gradients", i + 1);
  gb_tensor **results = lua_newuserdatauv(L, sizeof *results * (size_t)(n + 1), 0);
  int *first = lua_newuserdatauv(L, sizeof *first * (size_t)n, 0);
  gbl_collect(L);
  memset(results, 0, sizeof *results * (size_t)(n + 1));
  gbl_check_status(L, gb_find_firsts(call->state->context, (const void *const *)inputs->tensors, n, first));
  gb_status status = gb_grad(&self, gradient ? &gradient : NULL, 1, inputs->tensors, n, retain, create, true, results);
  for (int i = 0; i < n; i++) {
    if (status == GB_OK && results[i] && first[i] == i) {
      status = gb_accumulate_leaf(call->state->context, inputs->tensors[i], results[i], create);
      if (status == GB_OK) status = gb_run_after_hooks(call->state->context, inputs->tensors[i]);
    }
    if (results[i]) gb_tensor_release(results[i]);
  }
  gbl_check_status(L, status);
  return 0;
}

static int tensor_backward(lua_State *L, gbl_call *call) {
  bool create = gbl_boolean(call, "create_graph");
  bool retain = gbl_given(call, "retain_graph") ? gbl_boolean(call, "retain_graph") : create;
  gb_tensor *self = gbl_tensor(call, "self"), *gradient = gbl_tensor(call, "gradient");
  if (gbl_given(call, "inputs")) return backward_to(L, call, self, gradient, retain, create);
  gbl_collect(L);
  gbl_check_status(L, gb_backward(self, gradient, retain, create));
  return 0;
}

/* Push a list of n empty boxes. */
static void push_boxes(lua_State *L, int n) {
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    gbl_new_tensor(L);
    lua_rawseti(L, -2, i);
  }
}

static int grad(lua_State *L, gbl_call *call) {
  const gbl_value *outputs = gbl_argument(call, "outputs"), *inputs = gbl_argument(call, "inputs"),
      *given = gbl_argument(call, "grad_outputs");
  int n_out = outputs->count, n_in = inputs->count;
  bool create = gbl_boolean(call, "create_graph"), single = lua_type(L, inputs->index) == LUA_TUSERDATA;
  bool retain = gbl_given(call, "retain_graph") ? gbl_boolean(call, "retain_graph") : create;
  if (n_out == 0) return gbl_refuse(call, "'outputs' is empty");
  if (given->given && given->count != n_out)
    return gbl_refuse(call, "there are %d outputs and %d grad_outputs", n_out, given->count);
  gb_tensor **results = lua_newuserdatauv(L, sizeof *results * (size_t)(n_in + 1), 0);
  push_boxes(L, n_in);
  gbl_collect(L);
  memset(results, 0, sizeof *results * (size_t)(n_in + 1));
  gbl_check_status(L, gb_grad(outputs->tensors, given->tensors, n_out, inputs->tensors, n_in, retain, create,
                              gbl_boolean(call, "allow_unused"), results));
  for (int i = 0; i < n_in; i++) {
    lua_rawgeti(L, -1, i + 1);
    ((gbl_box *)lua_touserdata(L, -1))->tensor = results[i];
    lua_pop(L, 1);
  }
  for (int i = 0; i < n_in; i++) {
    lua_rawgeti(L, -1, i + 1);
    gbl_finish_tensor(L);
    if (!results[i]) lua_pop(L, 1), lua_pushnil(L);
    lua_rawseti(L, -2, i + 1);
  }
  if (single) lua_rawgeti(L, -1, 1);
  return 1;
}

/* ====} */

/* {==== A tensor and its gradient ==== */

static int tensor_requires_grad_(lua_State *L, gbl_call *call) {
  gbl_check_status(L, gb_tensor_set_requires_grad(gbl_tensor(call, "self"), gbl_boolean(call, "on")));
  gbl_share_tensor(L, 1);
  lua_pushvalue(L, 1);
  return 1;
}

static int tensor_retain_grad(lua_State *L, gbl_call *call) {
  gbl_check_status(L, gb_tensor_retain_grad(gbl_tensor(call, "self")));
  gbl_share_tensor(L, 1);
  lua_pushvalue(L, 1);
  return 1;
}

/* A hook's call, on its way into Lua. */
typedef struct hook_call { const gbl_callback *callback; gb_tensor **grad; } hook_call;

/* Protected: fn(grad) gives nothing, or a tensor that takes the gradient's place. */
static int hook_body(lua_State *L) {
  const hook_call *call = lua_touserdata(L, 1);
  gbl_callback_push(L, call->callback);
  gb_tensor_retain(*call->grad);
  gbl_push_tensor_shared(L, *call->grad);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) return 0;
  gb_tensor *replacement = gbl_test_tensor(L, lua_gettop(L)), *old = *call->grad;
  if (!replacement) return gbl_error(L, "a hook returns nothing or a tensor, got %s", gbl_type_name(L, lua_gettop(L)));
  if (replacement->ndim != old->ndim || memcmp(replacement->shape, old->shape, sizeof *old->shape * (size_t)old->ndim))
    {
    char a[96], b[96];
    return gbl_error(L, "a hook returned a gradient of shape %s for one of shape %s",
                      gb_shape_text(replacement->ndim, replacement->shape, a, sizeof a),
                          gb_shape_text(old->ndim, old->shape, b, sizeof b));
  }
  gb_tensor_retain(replacement);
  *call->grad = replacement;
  gb_tensor_release(old);
  return 0;
}

static gb_status run_hook(gb_context *context, void *user, gb_tensor **gradient) {
  (void)context;
  gbl_callback *callback = user;
  hook_call call = { callback, gradient };
  return gbl_protect(callback->state, hook_body, &call);
}

/* What register_hook returns. Collecting it leaves the hook in place. */
typedef struct hook_handle { gb_tensor *tensor; int64_t id; } hook_handle;

static void hook_handle_release(void *object) {
  hook_handle *handle = object;
  gb_tensor_release(handle->tensor);
  gb_counted_free(handle);
}

static const gbl_type hook_type;

static int hook_remove(lua_State *L, gbl_call *call) {
  (void)L;
  const hook_handle *handle = gbl_object(call, "self");
  gb_tensor_remove_hook(handle->tensor, handle->id);
  return 0;
}

static const gbl_function hook_functions[] = {
  { hook_remove, GB_SANDBOX_STRICT,
    "hook:remove(): The function that register_hook was given is called no more. Example: local hook = gb.ones(2, { "
    "requires_grad = true }):register_hook(print) hook:remove()" },
  { NULL, 0, NULL },
};

static const gbl_type hook_type = {
  .name = "gibbous.hook", .release = hook_handle_release, .functions = hook_functions,
  .closes = "hook:close(): Release the handle; the hook stays. "
            "Example: gb.ones(2, { requires_grad = true }):register_hook(print):close()",
};

/* Called with the leaf itself: what it returns does not count. */
static int after_hook_body(lua_State *L) {
  const hook_call *call = lua_touserdata(L, 1);
  gbl_callback_push(L, call->callback);
  gb_tensor_retain(*call->grad);
  gbl_push_tensor_shared(L, *call->grad);
  lua_call(L, 1, 0);
  return 0;
}

static gb_status run_after_hook(gb_context *context, void *user, gb_tensor **leaf) {
  (void)context;
  gbl_callback *callback = user;
  hook_call call = { callback, leaf };
  return gbl_protect(callback->state, after_hook_body, &call);
}

/* Hang fn on the tensor by one of the two ways to register. */
static int register_by(lua_State *L, gbl_call *call, gb_hook_fn run,
                       gb_status (*hang)(gb_tensor *, gb_hook_fn, void *, void (*)(void *), int64_t *)) {
  gb_tensor *t = gbl_tensor(call, "self");
  if (!t->node) gbl_share_tensor(L, 1);
  void **slot = gbl_new_object(L, &hook_type, 0);
  gb_context *context = gb_tensor_context(t);
  hook_handle *handle = *slot = gb_counted_alloc(context, sizeof *handle);
  if (!handle) return gbl_check_status(L, gb_error_code(context));
  gbl_callback *callback = gbl_callback_new(L, gbl_argument(call, "fn")->index);
  gb_status status = hang(t, run, callback, gbl_callback_release, &handle->id);
  if (status != GB_OK) gbl_callback_release(callback);
  gbl_check_status(L, status);
  gb_tensor_retain(t);
  handle->tensor = t;
  return 1;
}

static int tensor_register_hook(lua_State *L, gbl_call *call) {
  return register_by(L, call, run_hook, gb_tensor_register_hook);
}

static int tensor_register_after_hook(lua_State *L, gbl_call *call) {
  return register_by(L, call, run_after_hook, gb_tensor_register_after_hook);
}

/* ====} */

/* {==== gb.Function: forward and backward in Lua ==== */

/* What a tensor looked like: for zeros where no gradient comes, and to check what backward returns. */
typedef struct likeness { gb_dtype dtype; gb_device device; int ndim; int64_t shape[GB_MAX_NDIM]; } likeness;

/* One call of a custom function, kept by its node. The callback's value is the table {spec, ctx}. */
typedef struct custom_call {
  gbl_callback *callback;
  int arguments;                 /* of forward */
  int n_in, n_out;
  likeness out[GB_MAX_OUT];
  struct { int argument; bool wanted; likeness like; } in[]; /* tensors among the arguments; which need a gradient */
} custom_call;

static likeness look_at(const gb_tensor *t) {
  likeness l = { gb_tensor_dtype(t), gb_tensor_device(t), t->ndim, { 0 } };
  memcpy(l.shape, t->shape, sizeof l.shape);
  return l;
}

/* Does backward owe this argument a gradient? */
static bool wants_gradient(const gb_tensor *t) {
  return gb_dtype_is_float(gb_tensor_dtype(t)) && gb_tensor_in_graph(t);
}

static void custom_release(void *user) {
  custom_call *call = user;
  gbl_callback_release(call->callback);
  gb_counted_free(call);
}

/* What is kept of the context that a recipe sees: the list `saved`, of their versions `versions`, and how many,
 * `count`. */
static int ctx_save(lua_State *L, gbl_call *call) {
  const gbl_value *xs = gbl_argument(call, "xs");
  gbl_push_private(L, 1, "ctx");
  int private = lua_gettop(L);
  lua_createtable(L, xs->count, 0);
  lua_createtable(L, xs->count, 0);
  for (int i = 0; i < xs->count; i++) {
    int at = xs->index + i;
    const gb_tensor *t = gbl_test_tensor(L, at);
    if (!t && !lua_isnil(L, at))
      return gbl_refuse(call, "it saves tensors and nil, but value %d is %s", i + 1, gbl_type_name(L, at));
    lua_pushvalue(L, at);
    lua_rawseti(L, -3, i + 1);
    lua_pushinteger(L, t ? (lua_Integer)gb_tensor_version(t) : 0);
    lua_rawseti(L, -2, i + 1);
  }
  gbl_set_raw(L, private, "versions");
  gbl_set_raw(L, private, "saved");
  lua_pushinteger(L, xs->count);
  gbl_set_raw(L, private, "count");
  return 0;
}

static int ctx_saved(lua_State *L, gbl_call *call) {
  gbl_push_private(L, 1, "ctx");
  int private = lua_gettop(L);
  gbl_raw_field(L, private, "count");
  int count = (int)lua_tointeger(L, -1);
  if (count == 0) return 0;
  gbl_raw_field(L, private, "saved");
  gbl_raw_field(L, private, "versions");
  luaL_checkstack(L, count + 4, GBL_NO_STACK);
  int saved = private + 2, versions = private + 3;
  for (int i = 1; i <= count; i++) {
    lua_rawgeti(L, saved, i);
    const gb_tensor *t = gbl_opt_tensor(L, lua_gettop(L));
    lua_rawgeti(L, versions, i);
    if (t && (lua_Integer)gb_tensor_version(t) != lua_tointeger(L, -1))
      return gbl_refuse(call, "saved tensor %d was changed in place after forward", i);
    lua_pop(L, 1);
  }
  return count;
}

static const gbl_function ctx_functions[] = {
  { ctx_save, GB_SANDBOX_STRICT,
    "ctx:save_for_backward(xs...: any): In the forward of a gb.Function: tensors that backward needs; changing them "
    "in place before "
    "it is an error then. Example: gb.Function { forward = function(ctx, x) ctx:save_for_backward(x) return x * x "
    "end, backward = "
    "function(ctx, g) return g * 2 * ctx:saved_tensors() end }" },
  { ctx_saved, GB_SANDBOX_STRICT,
    "ctx:saved_tensors() -> tensors: In the backward of a gb.Function: what forward saved, as several values." },
  { NULL, 0, NULL },
};

/* Push a context, and keep its private table. */
static void push_ctx(lua_State *L) {
  lua_newtable(L);
  luaL_setmetatable(L, "gibbous.ctx");
  gbl_own(L, -1, "ctx");
  lua_pop(L, 1);
}

/* What the engine hands to backward. */
typedef struct custom_gradients { custom_call *call; gb_tensor *const *out; gb_tensor **in; } custom_gradients;

/* Push the gradient of output i: zeros where none came. */
static void push_output_gradient(lua_State *L, const custom_call *call, int i, gb_tensor *gradient) {
  if (gradient) {
    gb_tensor_retain(gradient);
    gbl_push_tensor(L, gradient);
    return;
  }
  const likeness *like = &call->out[i];
  gb_context *context = gbl_get_state(L)->context;
  gb_attr zero = gb_attr_num(0);
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_new(context, like->dtype, like->ndim, like->shape, like->device, &box->tensor));
  gbl_check_status(L, gb_apply_(context, GB_OP_fill, &box->tensor, 1, &zero));
}

/* Protected: backward(ctx, gradients of the outputs ...) gives one gradient, or nil, for each argument of forward. One
 * that was forgotten must not pass for nil: the sum would lack it without a word. */
static int custom_body(lua_State *L) {
  const custom_gradients *g = lua_touserdata(L, 1);
  const custom_call *call = g->call;
  gbl_callback_push(L, call->callback);
  lua_rawgeti(L, 2, 1);
  gbl_raw_field(L, 3, "backward");
  lua_rawgeti(L, 2, 2);
  for (int i = 0; i < call->n_out; i++) push_output_gradient(L, call, i, g->out[i]);
  lua_call(L, call->n_out + 1, LUA_MULTRET);
  int results = lua_gettop(L) - 3;
  if (results > call->arguments)
    return gbl_error(L, "backward returned %d gradients, forward had %d arguments", results, call->arguments);
  for (int i = 0; i < call->n_in; i++) {
    int at = 3 + call->in[i].argument;
    if (call->in[i].argument > results && !call->in[i].wanted) continue;
    if (call->in[i].argument > results)
      return gbl_error(L, "backward returned %d gradient%s, and argument %d of forward needs one too; return nil where "
                       "there is none", results, results == 1 ? "" : "s", call->in[i].argument);
    if (lua_isnil(L, at)) continue;
    gb_tensor *gradient = gbl_test_tensor(L, at);
    const likeness *like = &call->in[i].like;
    if (!gradient)
      return gbl_error(L, "backward returned %s as gradient %d; it must be a tensor or nil", gbl_type_name(L, at),
                       call->in[i].argument);
    if (gradient->ndim != like->ndim || memcmp(gradient->shape, like->shape, sizeof *like->shape * (size_t)like->ndim))
      {
      char a[96], b[96];
      return gbl_error(L, "backward returned a gradient of shape %s for argument %d of shape %s",
                        gb_shape_text(gradient->ndim, gradient->shape, a, sizeof a), call->in[i].argument,
                        gb_shape_text(like->ndim, like->shape, b, sizeof b));
    }
    gb_tensor_retain(gradient);
    g->in[i] = gradient;
  }
  return 0;
}

static gb_status custom_backward(gb_context *context, void *user, gb_tensor *const *out, int n_out, gb_tensor **in,
                                 int n_in) {
  (void)context, (void)n_out;
  custom_gradients g = { user, out, in };
  gb_status status = gbl_protect(g.call->callback->state, custom_body, &g);
  for (int i = 0; status != GB_OK && i < n_in; i++) gb_drop(&in[i]);
  return status;
}

void gbl_separate_output(lua_State *L, int index) {
  gb_tensor *t = gbl_check_tensor(L, index);
  if (!gb_tensor_in_graph(t) && !t->binding && !t->base) return;
  gbl_box *box = gbl_new_tensor(L);
  gbl_check_status(L, gb_tensor_detach(t, &box->tensor));
  lua_replace(L, index);
}

/* A saved output would hold the node that holds it: it is kept as an alias without history. */
static void separate_saved(lua_State *L, int ctx, int first, int count) {
  gbl_push_private(L, ctx, "ctx");
  if (gbl_raw_field(L, -1, "saved") == LUA_TTABLE) {
    int saved = lua_gettop(L);
    for (int i = 1; i <= (int)lua_rawlen(L, saved); i++) {
      lua_rawgeti(L, saved, i);
      for (int j = 0; j < count; j++) {
        if (!lua_rawequal(L, -1, first + j)) continue;
        gbl_box *box = gbl_new_tensor(L);
        gbl_check_status(L, gb_tensor_detach(gbl_check_tensor(L, first + j), &box->tensor));
        lua_rawseti(L, saved, i);
      }
      lua_settop(L, saved);
    }
  }
  lua_pop(L, 2);
}

/* Attach a node from the tensor arguments (positions at[]) to the outputs at first .. . The table {spec, ctx} is at the
 * top. */
static void attach(lua_State *L, gb_context *context, const char *name, int arguments, int n_in, const int *at,
                   int first, int n_out) {
  gb_tensor **in = lua_newuserdatauv(L, sizeof *in * (size_t)(n_in + 1), 0), *out[GB_MAX_OUT];
  lua_insert(L, -2);
  for (int i = 0; i < n_in; i++) in[i] = gbl_check_tensor(L, at[i]);
  for (int i = 0; i < n_out; i++) out[i] = gbl_check_tensor(L, first + i);
  gbl_callback *callback = gbl_callback_new(L, lua_gettop(L));
  custom_call *call = gb_counted_alloc(context, sizeof *call + sizeof *call->in * (size_t)n_in);
  if (!call) {
    gbl_callback_release(callback);
    gbl_check_status(L, gb_error_code(context));
    return;
  }
  call->callback = callback;
  call->arguments = arguments;
  call->n_in = n_in;
  call->n_out = n_out;
  for (int i = 0; i < n_in; i++) {
    call->in[i].argument = at[i];
    call->in[i].wanted = wants_gradient(in[i]);
    call->in[i].like = look_at(in[i]);
  }
  for (int i = 0; i < n_out; i++) call->out[i] = look_at(out[i]);
  gbl_check_status(L, gb_custom_function(context, name, in, n_in, out, n_out, custom_backward, call, custom_release));
}

/* Push the ctx of a call with `arguments` arguments; at[]: where the tensors among them are. Returns how many, and
 * whether one of them is in the graph. */
static int push_call_ctx(lua_State *L, int arguments, int *at, bool *needed) {
  int n_in = 0;
  *needed = false;
  push_ctx(L);
  lua_createtable(L, arguments, 0);
  for (int i = 1; i <= arguments; i++) {
    const gb_tensor *t = gbl_test_tensor(L, i);
    bool wanted = t && wants_gradient(t);
    if (t) at[n_in++] = i;
    *needed |= wanted;
    lua_pushboolean(L, wanted);
    lua_rawseti(L, -2, i);
  }
  gbl_set_raw(L, -2, "needs_input_grad");
  return n_in;
}

/* Call forward(ctx, arguments ...) with gradients off. Returns the index of the first result; they are at the top. */
static int call_forward(lua_State *L, gbl_state *state, int arguments, int ctx) {
  gbl_push_grad_scope(L, "gb.Function", false);
  int scope = lua_gettop(L);
  lua_toclose(L, scope);
  gbl_raw_field(L, lua_upvalueindex(2), "forward");
  lua_pushvalue(L, ctx);
  for (int i = 1; i <= arguments; i++) lua_pushvalue(L, i);
  lua_call(L, arguments + 1, LUA_MULTRET);
  gbl_note(L, state);
  gbl_end_scope(L, scope);
  return scope + 1;
}

/* f(...) of f = gb.Function{...}: forward without gradients, then a node when one is needed. Upvalues: the state, the
 * spec. */
static int function_call(lua_State *L) {
  gbl_state *state = gbl_upvalue(L);
  int arguments = lua_gettop(L);
  bool needed;
  luaL_checkstack(L, arguments + 16, GBL_NO_STACK);
  int *at = lua_newuserdatauv(L, sizeof *at * (size_t)(arguments + 1), 0);
  int n_in = push_call_ctx(L, arguments, at, &needed), ctx = lua_gettop(L);
  int first = call_forward(L, state, arguments, ctx), n_out = lua_gettop(L) - first + 1;
  luaL_checkstack(L, n_out + 16, GBL_NO_STACK);
  for (int i = 0; i < n_out; i++)
    if (!gbl_test_tensor(L, first + i))
      return gbl_error(L, "forward of a gb.Function returns tensors, got %s", gbl_type_name(L, first + i));
  if (!needed || n_out == 0 || !state->context->modes->grad) return n_out;
  if (n_out > GB_MAX_OUT)
    return gbl_error(L, "forward of a gb.Function returns at most %d tensors, got %d", GB_MAX_OUT, n_out);
  separate_saved(L, ctx, first, n_out);
  for (int i = 0; i < n_out; i++) gbl_separate_output(L, first + i);
  gbl_raw_field(L, lua_upvalueindex(2), "name");
  lua_createtable(L, 2, 0);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_rawseti(L, -2, 1);
  lua_pushvalue(L, ctx);
  lua_rawseti(L, -2, 2);
  attach(L, state->context, lua_tostring(L, -2), arguments, n_in, at, first, n_out);
  lua_settop(L, first + n_out - 1);
  return n_out;
}

static int function_new(lua_State *L, gbl_call *call) {
  static const char *const parts[] = { "forward", "backward", "name" };
  lua_pushlightuserdata(L, call->state);
  lua_createtable(L, 0, 3);
  for (int i = 0; i < 3; i++) {
    const gbl_value *part = gbl_argument(call, parts[i]);
    if (part->given) lua_pushvalue(L, part->index);
    else lua_pushstring(L, part->string);
    gbl_set_raw(L, -2, parts[i]);
  }
  lua_pushcclosure(L, function_call, 2);
  return 1;
}

/* ====} */

static const gbl_function functions[] = {
  { grad, GB_SANDBOX_STRICT | GBL_CALLS,
    "gb.grad(outputs: tensors, inputs: tensors; grad_outputs?: tensors, retain_graph?: bool, create_graph: bool = "
    "false, "
    "allow_unused: bool = false) -> any: The gradient of outputs by one tensor, or the list of those by a list; "
    "leaves' .grad stays as "
    "it is. retain_graph is create_graph unless given; with allow_unused an input that was not used gives nil. "
    "Example: local w = "
    "gb.ones(2, { requires_grad = true }) local g = gb.grad((w * w):sum(), w)" },
  { function_new, GB_SANDBOX_STRICT,
    "gb.Function(; forward: function, backward: function, name: string = \"function\") -> function: A function that "
    "gradients pass "
    "through: forward(ctx, ...), backward(ctx, gradients...), which returns a gradient for each tensor argument, "
    "and a name. Example: "
    "local double = gb.Function { name = \"double\", forward = function(ctx, x) return x * 2 end, backward = "
    "function(ctx, g) return g "
    "* 2 end }" },
  { NULL, 0, NULL },
};

static const gbl_function methods[] = {
  { tensor_backward, GB_SANDBOX_STRICT | GBL_CALLS,
    "tensor:backward(gradient?: tensor; retain_graph?: bool, create_graph: bool = false, inputs?: tensors): "
    "Compute the gradients of this tensor with respect to every leaf that requires them, and add them to "
    "leaf.grad; gradient is 1 for a single element. retain_graph is create_graph unless given. inputs: only these "
    "leaves get gradients. With "
    "create_graph leaf.grad has the graph, which holds the leaf: set it to nil when you are done, or ask gb.grad, "
    "else both stay until "
    "the host closes. What fails or is interrupted has added some of it, so zero the gradients before the next try. "
    "Errors: no graph, a graph "
    "that was freed, a value that was changed in place. Example: loss:backward()" },
  { tensor_requires_grad_, GB_SANDBOX_STRICT,
    "tensor:requires_grad_(on: bool = true) -> tensor: Turn gradients with respect to this tensor on or off. "
    "Errors: integers; false for a "
    "result of ops. Example: local w = gb.zeros(2):requires_grad_()" },
  { tensor_retain_grad, GB_SANDBOX_STRICT,
    "tensor:retain_grad() -> tensor: Keep the gradient of a result of ops in .grad. Example: local y = gb.ones(2, { "
    "requires_grad = "
    "true }) * 2 y:retain_grad()" },
  { tensor_register_hook, GB_SANDBOX_STRICT,
    "tensor:register_hook(fn: function) -> hook: fn(grad) is called with each gradient that reaches this tensor; a "
    "tensor that it "
    "returns takes the gradient's place. Example: local hook = gb.ones(2, { requires_grad = true "
    "}):register_hook(function(g) return g "
    "* 2 end)" },
  { tensor_register_after_hook, GB_SANDBOX_STRICT,
    "tensor:register_post_accumulate_grad_hook(fn: function) -> hook: fn(leaf) is called when a backward has added to "
    "the gradient of this leaf, which fn may use and set to nil; gb.grad calls none. Errors: a result of ops. Example: "
    "local hook = gb.ones(2, { requires_grad = true }):register_post_accumulate_grad_hook(function(p) p.grad = nil "
    "end)" },
  { NULL, 0, NULL },
};

/* The metatable of the contexts of gb.Function. */
static void make_ctx_meta(lua_State *L) {
  luaL_newmetatable(L, "gibbous.ctx");
  lua_newtable(L);
  gbl_define(L, ctx_functions);
  gbl_set_raw(L, -2, "__index");
  lua_pop(L, 1);
}

void gbl_open_autograd(lua_State *L) {
  gbl_new_type(L, &hook_type);
  make_ctx_meta(L);
  gbl_define(L, functions);
  gbl_push_methods(L);
  gbl_define(L, methods);
  lua_pop(L, 1);
}
