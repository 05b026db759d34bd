/* test_loans.c - a loan that was taken back: every way to its memory is a failure that names the cure, whatever holds
 * it. Tables of ops, of functions of the library, and of what may keep a loan. The memory is freed at once, so the
 * address sanitizer sees whoever reads it. */
#include <stdlib.h>

#include "open_host.h"
#include "graph/ops.h"

#define CURE "taken its memory back; clone"

/* A loan of n floats in memory that free ends, as the global `name`; the reference is the caller's. */
static gb_tensor *lend(gb_host *host, const char *name, int n, float **memory) {
  gb_tensor *x = NULL;
  *memory = malloc((size_t)n * sizeof **memory);
  for (int i = 0; i < n; i++) (*memory)[i] = (float)(i + 1);
  CHECK(gb_tensor_wrap(gb_host_context(host), *memory, GB_FLOAT32, 1, (int64_t[]){ n }, NULL, NULL, &x) == GB_OK);
  gb_value v = gb_value_tensor(x);
  CHECK(gb_host_set(host, name, &v) == GB_OK);
  return x;
}

/* Take the loan back and free its memory. */
static void take_back(gb_tensor *x, float *memory) {
  CHECK(gb_tensor_revoke(x) == GB_OK);
  free(memory);
  CHECK(gb_tensor_data(x) == NULL);
  gb_tensor_release(x);
}

/* What a recipe does with the loan x of four floats, and what it does after x was taken back, which must fail. */
static const struct { const char *before, *after; } uses[] = {
  { "", "local y = x + 1" },
  { "", "x:add_(1)" },
  { "v = x[{ {2, 3} }]", "local y = v:sum()" },
  { "v = x:reshape(2, 2):t()", "v:fill_(3)" },
  { "", "local s = tostring(x)" },
  { "", "local s = x:tolist()" },
  { "", "local s = x[1]:item()" },
  { "", "x[1] = 2" },
  { "", "local y = x[gb.tensor({ 1, 2 })]" },
  { "", "local y = x:clone()" },
  { "", "local y = x:to('float64')" },
  { "", "local y = x:to('bfloat16')" },
  { "", "local y = gb.cat({ gb.ones(4), x })" },
  { "", "local y = gb.stack({ x, x })" },
  { "", "gb.save('/tmp/gibbous-never', { x = x })" },
  { "", "gb.ones(4):copy_(x)" },
  /* as a gradient */
  { "p = gb.ones(4):requires_grad_() p.grad = x", "gb.nn.utils.clip_grad_norm_({ p }, 0.5)" },
  { "p = gb.ones(4):requires_grad_() p.grad = x", "gb.nn.utils.clip_grad_norm_({ p }, 0.5, math.huge)" },
  { "p = gb.ones(4):requires_grad_() p.grad = x", "gb.nn.utils.clip_grad_value_({ p }, 0.5)" },
  { "p = gb.ones(2, 2):t():requires_grad_() p.grad = x:reshape(2, 2)", "gb.nn.utils.clip_grad_norm_({ p }, 0.5)" },
  { "p = gb.ones(2):requires_grad_() p.grad = x:reshape(2, 2)[{ {}, 2 }]", "gb.nn.utils.clip_grad_norm_({ p }, 0.5)" },
  { "p = gb.ones(4):requires_grad_() p.grad = x", "(p * 2):sum():backward()" },
  { "p = gb.ones(4):requires_grad_() p.grad = x", "local g = p.grad * 1" },
  { "p = gb.ones(4):requires_grad_() p.grad = x", "gb.optim.SGD({ p }, { lr = 1 })" },
  { "p = gb.ones(4):requires_grad_() opt = gb.optim.SGD({ p }, { lr = 1 })", "p.grad = x" },
  { "p = gb.ones(4):requires_grad_() opt = gb.optim.Adam({ p }, { lr = 1 })", "(p * 2):backward(x)" },
  { "p = gb.ones(4):requires_grad_()", "(p * 2):backward(x)" },
  { "w = gb.ones(4, 4):requires_grad_() w.grad = x:reshape(1, 4):expand(4, 4) y = "
    "gb.nn.functional.linear(gb.ones(2, 4), w)", "y:sum():backward()" },
  /* saved for backward */
  { "p = gb.ones(4):requires_grad_() loss = (p * x):sum()", "loss:backward()" },
  { "p = gb.ones(4):requires_grad_() loss = (p * x[2]):sum()", "loss:backward()" },
  { "x:requires_grad_() y = (x * x):sum()", "local g = gb.grad(y, { x })" },
  /* as a weight, whose 16-bit copy was made */
  { "w = x:reshape(1, 4):detach():requires_grad_() a = gb.ones(2, 4):requires_grad_()\n"
    "loss = gb.amp.autocast(function() return gb.nn.functional.linear(a, w) end):sum()", "loss:backward()" },
  { "w = x:reshape(1, 4):detach():requires_grad_() a = gb.ones(2, 4)\n"
    "gb.amp.autocast(function() return gb.nn.functional.linear(a, w) end)",
    "gb.amp.autocast(function() return gb.nn.functional.linear(a, w) end)" },
  /* in a model */
  { "m = gb.nn.Linear(4, 1) m.weight.grad = x:reshape(1, 4) scaler = gb.amp.GradScaler()",
    "gb.nn.utils.clip_grad_norm_(m:parameters(), 1)" },
  { "b = gb.nn.BatchNorm2d(4) b.running_mean:copy_(x)", "b.running_mean:copy_(x)" },
  { "state = { weight = x:reshape(1, 4), bias = gb.ones(1) } m = gb.nn.Linear(4, 1)", "m:load_state_dict(state)" },
};

static void test_uses(void) {
  for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
    gb_host_options o = options_of(GB_SANDBOX_NONE);
    gb_host *host = open_host(&o);
    float *memory;
    gb_tensor *x = lend(host, "x", 4, &memory);
    bool ready = runs(host, uses[i].before);
    CHECK(ready);
    take_back(x, memory);
    bool right = fails(host, uses[i].after, GB_ESTATE, CURE);
    if (!right) fprintf(stderr, "  after %s\n", uses[i].before);
    CHECK(right);
    CHECK(runs(host, "x, v, y, p, w, loss = nil collectgarbage() assert(gb.ones(2):sum():item() == 2)"));
    gb_host_close(host);
  }
}

/* Code of a recipe that backward runs again finds it gone: the failure is the recipe's, with the same text. */
static void test_recompute(void) {
  gb_host *host = open_host(NULL);
  float *memory;
  gb_tensor *x = lend(host, "x", 4, &memory);
  CHECK(runs(host, "p = gb.ones(4):requires_grad_() loss = gb.recompute(function(a, b) return (a * b):exp() end, p, "
                   "x):sum()"));
  take_back(x, memory);
  CHECK(fails(host, "loss:backward()", GB_ERECIPE, CURE));
  gb_host_close(host);
}

/* Gradients of others are as they were where one of the list is gone: nothing is clipped in part. */
static void test_clip_whole(void) {
  gb_host *host = open_host(NULL);
  float *memory;
  gb_tensor *x = lend(host, "x", 4, &memory);
  CHECK(runs(host,
             "a = gb.ones(4):requires_grad_() a.grad = gb.ones(4) * 8 b = gb.ones(4):requires_grad_() b.grad = x"));
  take_back(x, memory);
  CHECK(fails(host, "gb.nn.utils.clip_grad_value_({ a, b }, 1)", GB_ESTATE, "clip_grad_value_: the tensor was a loan"));
  CHECK(fails(host, "gb.nn.utils.clip_grad_norm_({ a, b }, 1)", GB_ESTATE, "clip_grad_norm_: the tensor was a loan"));
  CHECK(runs(host, "assert(a.grad[1]:item() == 8) b.grad = nil gb.nn.utils.clip_grad_value_({ a, b }, 1) "
                   "assert(a.grad[1]:item() == 1)"));
  gb_host_close(host);
}

/* Every row of the table of ops with revoked loans for all its tensors, by value and in place. */
static void test_ops(void) {
  gb_host *host = open_host(NULL);
  gb_context *context = gb_host_context(host);
  float *memory;
  gb_tensor *x = lend(host, "x", 4, &memory), *in[GB_MAX_IN], *out[GB_MAX_OUT];
  for (int i = 0; i < GB_MAX_IN; i++) in[i] = x;
  gb_tensor_retain(x);
  take_back(x, memory);
  int tried = 0;
  for (int op = 0; op < GB_OP_COUNT; op++) {
    const gb_op_info *info = gb_op_get(context, op);
    if (!info->n_in) continue;
    tried++;
    for (int in_place = 0; in_place < 2; in_place++) {
      gb_status status = in_place ? gb_apply_(context, (gb_op)op, in, info->n_in, NULL)
          : gb_apply(context, (gb_op)op, in, info->n_in, NULL, out);
      bool right = status == GB_ESTATE && strstr(gb_error(context), CURE) && strstr(gb_error(context), info->name);
      if (!right) fprintf(stderr, "  %s gave %s: %s\n", info->name, gb_status_text(status), gb_error(context));
      CHECK(right);
    }
  }
  CHECK(tried > 100);
  gb_tensor_release(x);
  gb_host_close(host);
}

/* What the C API does with one. */
static void test_api(void) {
  gb_host *host = open_host(NULL);
  gb_context *context = gb_host_context(host);
  float *memory, room[4] = { 0 };
  gb_tensor *x = lend(host, "x", 4, &memory), *p = NULL;
  struct DLManagedTensorVersioned *managed = NULL;
  double number = 7;
  gb_tensor_retain(x);
  take_back(x, memory);
  CHECK(gb_tensor_read(x, room, sizeof room) == GB_ESTATE && gb_tensor_write(x, room, sizeof room) == GB_ESTATE);
  CHECK(gb_tensor_item(x, &number, NULL) == GB_ESHAPE && number == 7);
  CHECK(gb_tensor_to_dlpack(x, &managed) == GB_ESTATE && !managed);
  CHECK(gb_tensor_numel(x) == 4 && gb_tensor_ndim(x) == 1 && gb_tensor_shape(x)[0] == 4);
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, (int64_t[]){ 4 }, (gb_device){ GB_CPU, 0 }, &p) == GB_OK);
  CHECK(gb_tensor_write(p, room, sizeof room) == GB_OK && gb_tensor_set_requires_grad(p, true) == GB_OK);
  CHECK(gb_backward(p, x, false, false) == GB_ESTATE && !gb_tensor_grad(p));
  CHECK(gb_tensor_revoke(x) == GB_OK); /* once more is nothing */
  CHECK(gb_tensor_revoke(p) == GB_EINVAL && strstr(gb_error(context), "no loan"));
  gb_tensor_release(p);
  gb_tensor_release(x);
  gb_host_close(host);
}

/* {==== Taken back in the middle ==== */

/* What a host function takes back: the loan, and the status that gave. */
typedef struct taking { gb_tensor *loan; gb_status status; int calls; } taking;

static gb_status take(gb_call *call, void *user) {
  taking *t = user;
  (void)call;
  t->calls++;
  t->status = gb_tensor_revoke(t->loan);
  return GB_OK;
}

/* A finaliser that runs because an op needs memory would take the loan back that this op reads: it reaches no function
 * of the host. */
static void test_in_the_middle(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.tensor_bytes = (size_t)8 << 20;
  gb_host *host = open_host(&o);
  enum { N = 1 << 19 };
  float *memory;
  taking t = { .loan = lend(host, "x", N, &memory) };
  CHECK(gb_host_register(host, "take", take, &t) == GB_OK);
  CHECK(runs(host, "collectgarbage('stop')\n"
                   "local function litter() local big = gb.ones(3 * 2^18) setmetatable({ big }, { __gc = function() "
                   "take() end }) end\n"
                   "for i = 1, 2 do litter() end\n"
                   "y = x + 1\nassert(y[4]:item() == 5)"));
  CHECK(t.calls == 0);
  CHECK(gb_tensor_revoke(t.loan) == GB_OK);
  free(memory);
  gb_tensor_release(t.loan);
  CHECK(fails(host, "local z = x + 1", GB_ESTATE, CURE) && runs(host, "assert(y[5]:item() == 6)"));
  gb_host_close(host);
}

/* ====} */

int main(void) {
  test_uses();
  test_recompute();
  test_clip_whole();
  test_ops();
  test_api();
  test_in_the_middle();
  return check_report();
}
