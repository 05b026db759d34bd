/* recompute.c - gb.recompute: a part of the forward pass that keeps its inputs only, and is run again in backward.
 *
 * The first run records nothing. Where an op in it took anything that requires gradients, its floating results become
 * those of one node (graph/recompute.c), which keeps the tensors among the arguments and, through a callback, the
 * function and the other arguments. */
#include <stdlib.h>

#include "graph/autograd.h"
#include "reader.h"

/* One call. The callback's value is the table {function, arguments ...}, without its tensors. */
typedef struct recompute_call {
  gbl_callback *callback;
  int arguments, results;
  int n_in, n_out;
  int out[GB_MAX_OUT];           /* which results are floating tensors, from 1 */
  int in[];                      /* which arguments are tensors, from 1 */
} recompute_call;

static void call_release(void *user) {
  recompute_call *call = user;
  gbl_callback_release(call->callback);
  gb_counted_free(call);
}

/* The second run, on its way into Lua. */
typedef struct rerun { const recompute_call *call; gb_tensor *const *in; gb_tensor **out; } rerun;

/* Protected: call the function again with the arguments of the first run, and take its tensors. */
static int rerun_body(lua_State *L) {
  const rerun *r = lua_touserdata(L, 1);
  const recompute_call *call = r->call;
  luaL_checkstack(L, call->arguments + 8, GBL_NO_STACK);
  gbl_callback_push(L, call->callback);
  lua_rawgeti(L, 2, 1);
  for (int i = 1, k = 0; i <= call->arguments; i++) {
    if (k < call->n_in && call->in[k] == i) {
      gb_tensor_retain(r->in[k]);
      gbl_push_tensor(L, r->in[k++]);
    } else lua_rawgeti(L, 2, i + 1);
  }
  lua_call(L, call->arguments, LUA_MULTRET);
  int results = lua_gettop(L) - 2;
  if (results != call->results)
    return luaL_error(L, "recompute: the function returned %d values the first time and %d the second", call->results,
                      results);
  for (int i = 0; i < call->n_out; i++) {
    gb_tensor *t = gbl_test_tensor(L, 2 + call->out[i]);
    if (!t)
      return luaL_error(L, "recompute: value %d was a tensor at first and %s when the function ran again", call->out[i],
                        gbl_type_name(L, 2 + call->out[i]));
    gb_tensor_retain(r->out[i] = t);
  }
  lua_settop(L, 0);
  gbl_collect(L); /* the handles of what the function made on the way are dead */
  return 0;
}

static gb_status run_again(gb_context *context, void *user, gb_tensor *const *in, gb_tensor **out) {
  (void)context;
  const recompute_call *call = user;
  rerun r = { call, in, out };
  return gbl_protect(call->callback->state, rerun_body, &r);
}

/* The node of a call until the results hold it. */
static void node_release(void *object) { gb_node_release(object); }
static const gbl_type node_type = { "gibbous.recompute", node_release, NULL, NULL, NULL };

/* Push {function, arguments ...}: the function is at stack index 1, its arguments follow. */
static void push_parcel(lua_State *L, int arguments) {
  lua_createtable(L, arguments + 1, 0);
  for (int i = 0; i <= arguments; i++) {
    if (gbl_test_tensor(L, i + 1)) lua_pushboolean(L, false);
    else lua_pushvalue(L, i + 1);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Push the object that holds the new node of this call, with the tensors among the arguments as its inputs. */
static gb_node **push_node(lua_State *L, gb_context *context, int arguments, recompute_call **made) {
  gb_node **slot = (gb_node **)gbl_new_object(L, &node_type, 0);
  lua_toclose(L, lua_gettop(L)); /* an error ends the node, and with it the noting of what is read */
  gb_tensor **in = lua_newuserdatauv(L, sizeof *in * (size_t)(arguments + 1), 0);
  push_parcel(L, arguments);
  gbl_callback *callback = gbl_callback_new(L, lua_gettop(L));
  recompute_call *call = gb_counted_alloc(context, sizeof *call + sizeof *call->in * (size_t)arguments);
  if (!call) {
    gbl_callback_release(callback);
    gbl_check_status(L, gb_error_code(context));
    return NULL;
  }
  call->callback = callback;
  call->arguments = arguments;
  for (int i = 1; i <= arguments; i++) {
    gb_tensor *t = gbl_test_tensor(L, i + 1);
    if (t) call->in[call->n_in] = i, in[call->n_in++] = t;
  }
  *made = call;
  gbl_check_status(L, gb_recompute_begin(context, in, call->n_in, run_again, call, call_release, slot));
  lua_pop(L, 2);
  return slot;
}

/* The first run, without gradients; its results are from *first to the top. True when an op in it took what requires
 * gradients. */
static bool run_first(lua_State *L, gbl_state *state, int arguments, int *first) {
  bool before = state->context->graph->untracked;
  gbl_push_grad_scope(L, "gb.recompute", false);
  int scope = lua_gettop(L);
  lua_toclose(L, scope);
  for (int i = 0; i <= arguments; i++) lua_pushvalue(L, i + 1);
  state->context->graph->untracked = false;
  lua_call(L, arguments, LUA_MULTRET);
  gbl_note(L, state);
  bool needed = state->context->graph->untracked;
  state->context->graph->untracked |= before;
  gbl_end_scope(L, scope);
  *first = scope + 1;
  return needed;
}

static int recompute(lua_State *L, gbl_call *of) {
  gbl_state *state = of->state;
  gb_context *context = state->context;
  int arguments = of->top - 1;
  luaL_checkstack(L, 2 * arguments + 16, GBL_NO_STACK);
  lua_settop(L, of->top);
  if (!context->modes->grad) {
    lua_call(L, arguments, LUA_MULTRET);
    return lua_gettop(L);
  }
  recompute_call *call = NULL;
  gb_node **slot = push_node(L, context, arguments, &call);
  int first;
  bool needed = run_first(L, state, arguments, &first);
  call->results = lua_gettop(L) - first + 1;
  luaL_checkstack(L, 8, GBL_NO_STACK);
  gb_tensor *out[GB_MAX_OUT];
  for (int i = 0; needed && i < call->results; i++) {
    const gb_tensor *t = gbl_test_tensor(L, first + i);
    if (!t || !gb_dtype_is_float(gb_tensor_dtype(t))) continue;
    if (call->n_out == GB_MAX_OUT)
      return gbl_error(L, "recompute: the function gives more than %d floating tensors; join some of them", GB_MAX_OUT);
    gbl_separate_output(L, first + i);
    out[call->n_out] = gbl_check_tensor(L, first + i);
    call->out[call->n_out++] = i + 1;
  }
  if (call->n_out > 0) gbl_check_status(L, gb_recompute_end(*slot, out, call->n_out));
  gb_node *node = *slot;
  int results = call->results; /* the call may go with the node */
  *slot = NULL;
  gb_node_release(node);
  return results;
}

static int is_recomputing(lua_State *L, gbl_call *call) {
  lua_pushboolean(L, call->state->context->modes->recompute);
  return 1;
}

static const gbl_function functions[] = {
  { recompute, GB_SANDBOX_STRICT,
    "gb.recompute(fn: function, arguments...: any) -> any: What fn(...) gives, but of what it computes only the "
    "tensors among its "
    "arguments are kept; backward runs it again, in the autocast scope and with the random numbers of this call. fn "
    "must compute the "
    "same each time: tensors that it takes from elsewhere (upvalues, tables) and modules' train or eval mode must "
    "still be as they "
    "were; one that it reads and that was changed in place, by an optimizer's step too, is an error in backward. "
    "Counters that a second run must not move ask gb.is_recomputing(). It cannot yield, and gives at most six "
    "floating "
    "tensors. Example: local y = gb.recompute(model, x)" },
  { is_recomputing, GB_SANDBOX_STRICT,
    "gb.is_recomputing() -> bool: Is this the second run of a function given to gb.recompute? Example: "
    "print(gb.is_recomputing())" },
  { NULL, 0, NULL },
};

void gbl_open_recompute(lua_State *L) {
  gbl_new_type(L, &node_type);
  gbl_define(L, functions);
}
