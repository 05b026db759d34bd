/* test_host.c - the host API by example: opening, running, values of every type both ways, tables, host functions,
 * callbacks, limits, and what stays usable after a failure. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "open_host.h"

/* {==== Opening and running ==== */

static void test_open(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  gb_host *host = NULL;
  char why[128];
  o.device = "toaster";
  CHECK(gb_host_open(&o, &host, why, sizeof why) != GB_OK && host == NULL && strstr(why, "toaster"));
  o.device = NULL;
  o.root = "/tmp";
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL && strstr(why, "root"));
  o.root = NULL;
  o.lua_bytes = 1000;
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_ELUABYTES);
  CHECK(gb_host_open(&o, &host, NULL, 0) == GB_ELUABYTES);
  o.lua_bytes = 100000;
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_ELUABYTES);

  host = open_host(NULL); /* the defaults */
  CHECK(runs(host, "assert(require 'gibbous' == gb and (gb.ones(2) + 1):sum():item() == 4)"));
  gb_host_close(host);
  gb_host_close(NULL);

  o = options_of(GB_SANDBOX_NONE);
  o.device = "cpu";
  o.seed = 7;
  host = open_host(&o);
  CHECK(runs(host, "assert(gb.best_device() == 'cpu' and gb.seed() == 7 and gb.get_num_threads() == 1)"));
  gb_host_close(host);

  /* a caller that knows the first fields alone */
  struct { size_t size; gb_sandbox sandbox; } old = { sizeof old, GB_SANDBOX_NONE };
  host = open_host((const gb_host_options *)(const void *)&old);
  CHECK(runs(host, "assert(io)"));
  gb_host_close(host);

  o = (gb_host_options){ .sandbox = GB_SANDBOX_STRICT }; /* without gb_host_options_init: it must not open without the
                                                            sandbox */
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL && host == NULL && strstr(why, "gb_host_options_init"));
}

static void test_run(void) {
  gb_host *host = open_host(NULL);
  CHECK(!strcmp(gb_host_error(host), ""));
  CHECK(fails(host, "\nlocal x = 1 = 2", GB_ERECIPE, "recipe:2"));
  CHECK(fails(host, "\nerror('no')", GB_ERECIPE, "recipe:2: no"));
  CHECK(strstr(gb_host_error(host), "stack traceback"));
  CHECK(fails(host, "error({})", GB_ERECIPE, "table"));
  CHECK(fails(host, "error(nil)", GB_ERECIPE, "nil"));
  CHECK(fails(host, "gb.ones(2) + gb.ones(3)", GB_ERECIPE, "unexpected symbol"));
  CHECK(fails(host, "local x = gb.ones(2) + gb.ones(3)", GB_ESHAPE, "recipe:1"));
  CHECK(fails(host, "gb.no_grad()", GB_ERECIPE, "still open"));
  CHECK(fails(host, "\x1bLua", GB_ERECIPE, "binary"));
  CHECK(fails(host, "os.exit(3)", GB_ERECIPE, "another program"));
  CHECK(fails(host, "os.setlocale('')", GB_ERECIPE, "locale"));
  CHECK(runs(host, "assert(os.getenv('PATH') == nil and gb.is_grad_enabled())"));
  CHECK(runs(host, "gb.args({}, { '--help' }) error('never here')"));
  CHECK(gb_host_run_file(host, "/nonexistent.lua") == GB_ERECIPE && strstr(gb_host_error(host), "nonexistent"));

  char path[] = "/tmp/gibbous-host-XXXXXX";
  FILE *file = fdopen(mkstemp(path), "w");
  fputs("#!/usr/bin/env gibbous\nran = 41 + 1\n", file);
  fclose(file);
  gb_value ran;
  CHECK(gb_host_run_file(host, path) == GB_OK && gb_host_get(host, "ran", &ran) == GB_OK && ran.as.integer == 42);
  unlink(path);
  gb_host_close(host);

  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.environment = true;
  host = open_host(&o);
  CHECK(runs(host, "assert(os.getenv('PATH'))"));
  gb_host_close(host);
}

/* ====} */

/* {==== Values ==== */

/* Through the recipe and back. */
static gb_value echo(gb_host *host, gb_value in) {
  gb_value out = gb_value_nil();
  CHECK(gb_host_call(host, "echo", &in, 1, &out, 1) == GB_OK);
  return out;
}

static void test_values(void) {
  gb_host *host = open_host(NULL);
  CHECK(runs(host, "function echo(...) return ... end"));
  gb_value v = echo(host, gb_value_nil());
  CHECK(v.type == GB_VALUE_NIL && !v.owned);
  v = echo(host, gb_value_boolean(true));
  CHECK(v.type == GB_VALUE_BOOLEAN && v.as.boolean);
  v = echo(host, gb_value_integer(INT64_MIN));
  CHECK(v.type == GB_VALUE_INTEGER && v.as.integer == INT64_MIN);
  v = echo(host, gb_value_number(1e308));
  CHECK(v.type == GB_VALUE_NUMBER && v.as.number == 1e308);
  v = echo(host, gb_value_bytes("a\0b", 3));
  CHECK(v.type == GB_VALUE_STRING && v.owned && v.as.string.length == 3 && !memcmp(v.as.string.data, "a\0b", 4));
  gb_value_release(host, &v);
  CHECK(v.type == GB_VALUE_NIL && !v.owned);
  gb_value_release(host, &v);
  CHECK(gb_value_string(NULL).type == GB_VALUE_NIL && gb_value_tensor(NULL).type == GB_VALUE_NIL);

  gb_value in[3] = { gb_value_integer(1), gb_value_integer(2), gb_value_integer(3) }, out[5];
  CHECK(gb_host_call(host, "echo", in, 3, out, 5) == GB_OK && out[2].as.integer == 3 && out[3].type == GB_VALUE_NIL);
  CHECK(gb_host_call(host, "echo", in, 3, NULL, 0) == GB_OK);
  out[0] = gb_value_integer(7);
  CHECK(gb_host_call(host, "nobody", NULL, 0, out, 1) == GB_ERECIPE && strstr(gb_host_error(host), "nobody") &&
        out[0].as.integer == 7);
  CHECK(gb_host_call(host, "gb.nn.nobody", NULL, 0, NULL, 0) == GB_ERECIPE && strstr(gb_host_error(host), "nobody"));
  CHECK(gb_host_call(host, "gb.version", NULL, 0, NULL, 0) == GB_ERECIPE && strstr(gb_host_error(host), "call"));
  gb_value wrong = { .type = (gb_value_type)99 };
  CHECK(gb_host_call(host, "echo", &wrong, 1, NULL, 0) == GB_EINVAL);
  gb_host_close(host);
}

static void test_tensors(void) {
  gb_host *host = open_host(NULL), *other = open_host(NULL);
  gb_context *context = gb_host_context(host);
  gb_tensor *x = NULL;
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, (int64_t[]){ 3 }, (gb_device){ GB_CPU, 0 }, &x) == GB_OK);
  CHECK(gb_tensor_write(x, (float[]){ 1, 2, 3 }, 12) == GB_OK);
  CHECK(runs(host, "function double(x) return x * 2 end\nfunction same(a, b) return rawequal(a, b) end\nfunction "
                   "keep(x) kept = x end"));
  gb_value in[2] = { gb_value_tensor(x), gb_value_tensor(x) }, y, same;
  CHECK(gb_host_call(host, "double", in, 1, &y, 1) == GB_OK && y.type == GB_VALUE_TENSOR && y.owned);
  float values[3] = { 0 };
  CHECK(gb_tensor_read(y.as.tensor, values, sizeof values) == GB_OK && values[2] == 6);
  CHECK(gb_host_call(host, "same", in, 2, &same, 1) == GB_OK && same.as.boolean); /* one Lua value for one tensor */
  gb_value foreign = gb_value_tensor(x);
  CHECK(gb_host_set(other, "x", &foreign) == GB_EINVAL && strstr(gb_host_error(other), "another host"));
  gb_host_close(other);

  gb_tensor *result = y.as.tensor; /* outlives the host, as a value of a tensor may */
  gb_tensor_retain(result);
  gb_value_release(host, &y);
  CHECK(gb_host_call(host, "keep", in, 1, NULL, 0) == GB_OK);
  gb_host_close(host);
  CHECK(gb_tensor_read(result, values, sizeof values) == GB_OK && values[0] == 2);
  gb_tensor_release(result);
  gb_tensor_release(x);
}

static void test_handles(void) {
  gb_host *host = open_host(NULL);
  gb_value table, key, value, function, out, global;
  CHECK(gb_table_new(host, &table) == GB_OK && table.type == GB_VALUE_TABLE && table.owned);
  key = gb_value_string("lr");
  value = gb_value_number(0.5);
  CHECK(gb_table_set(host, &table, &key, &value) == GB_OK);
  for (int i = 1; i <= 3; i++) {
    key = gb_value_integer(i);
    value = gb_value_integer(i * i);
    CHECK(gb_table_set(host, &table, &key, &value) == GB_OK);
  }
  int64_t length = 0, sum = 0, entries = 0;
  CHECK(gb_table_length(host, &table, &length) == GB_OK && length == 3);
  key = gb_value_nil();
  while (gb_table_next(host, &table, &key, &value) == GB_OK && key.type != GB_VALUE_NIL) {
    entries++;
    if (key.type == GB_VALUE_INTEGER) sum += value.as.integer;
    gb_value_release(host, &value);
  }
  CHECK(entries == 4 && sum == 14);
  key = gb_value_nil();
  CHECK(gb_table_set(host, &table, &key, &value) == GB_ERECIPE);

  CHECK(gb_host_set(host, "config", &table) == GB_OK);
  gb_value_release(host, &table);
  CHECK(runs(host, "assert(config.lr == 0.5 and #config == 3)\nconfig.inner = { deep = 'yes' }\nfunction add(a) "
                   "return function(b) return a + b end end\n"
                   "co = coroutine.create(print)"));
  CHECK(gb_host_get(host, "config.inner.deep", &value) == GB_OK && !strcmp(value.as.string.data, "yes"));
  gb_value_release(host, &value);
  CHECK(gb_host_get(host, "config.none.deep", &value) == GB_OK && value.type == GB_VALUE_NIL);
  value = gb_value_integer(9);
  CHECK(gb_host_set(host, "config.inner.deep", &value) == GB_OK && runs(host, "assert(config.inner.deep == 9)"));
  CHECK(gb_host_set(host, "config.none.deep", &value) == GB_ERECIPE && strstr(gb_host_error(host), "no table"));

  gb_value two = gb_value_integer(2), three = gb_value_integer(3);
  CHECK(gb_host_call(host, "add", &two, 1, &function, 1) == GB_OK && function.type == GB_VALUE_FUNCTION);
  CHECK(gb_host_call_value(host, &function, &three, 1, &out, 1) == GB_OK && out.as.integer == 5);
  gb_value_release(host, &function);
  CHECK(gb_host_call_value(host, &two, NULL, 0, NULL, 0) == GB_ERECIPE);
  CHECK(gb_host_get(host, "co", &global) == GB_OK && global.type == GB_VALUE_OBJECT);
  CHECK(gb_host_set(host, "again", &global) == GB_OK && runs(host, "assert(again == co)"));
  gb_value_release(host, &global);
  gb_host_close(host);
}

/* ====} */

/* {==== Host functions ==== */

/* sum(...) of integers; count how often in *user. */
static gb_status sum_of(gb_call *call, void *user) {
  int64_t sum = 0;
  for (int i = 0; i < gb_call_count(call); i++) {
    gb_value v;
    gb_status status = gb_call_get(call, i, &v);
    if (status != GB_OK) return status;
    if (v.type != GB_VALUE_INTEGER) return gb_call_error(call, GB_EINVAL, "sum: argument %d is no integer", i + 1);
    sum += v.as.integer;
  }
  ++*(int *)user;
  gb_value out = gb_value_integer(sum), name = gb_value_string("sum");
  gb_status status = gb_call_return(call, &out);
  return status == GB_OK ? gb_call_return(call, &name) : status;
}

/* apply(f, x): calls back into Lua, on whatever coroutine this is. */
static gb_status apply(gb_call *call, void *user) {
  gb_value f, x, y;
  (void)user;
  gb_call_get(call, 0, &f);
  gb_call_get(call, 1, &x);
  gb_status status = gb_host_call_value(gb_call_host(call), &f, &x, 1, &y, 1);
  if (status != GB_OK) return gb_call_error(call, status, "inside: %s", gb_host_error(gb_call_host(call)));
  status = gb_call_return(call, &y);
  gb_value_release(gb_call_host(call), &y);
  return status;
}

/* Returns through a handle that was released; *user is its status. */
static gb_status stale(gb_call *call, void *user) {
  gb_value table, copy;
  CHECK(gb_table_new(gb_call_host(call), &table) == GB_OK);
  copy = table;
  gb_value_release(gb_call_host(call), &table);
  *(gb_status *)user = gb_call_return(call, &copy);
  return *(gb_status *)user;
}

static gb_status quiet_failure(gb_call *call, void *user) {
  (void)call, (void)user;
  return GB_EIO;
}

/* What a recipe's metatables would say is not asked: fields are read and set raw, and methods are found as classes have
 * them. */
static void test_raw(void) {
  gb_host *host = open_host(NULL);
  gb_value table, key = gb_value_string("field"), value = gb_value_integer(1), out;
  CHECK(runs(host, "function touched() error('touched') end\n"
                   "trap = setmetatable({ inner = 5 }, { __index = touched, __newindex = touched, __len = touched })\n"
                   "Net = gb.nn.Module:extend('Net') function Net:predict() return 7 end model = Net()\n"
                   "loop = {} setmetatable(loop, { __index = loop })"));
  CHECK(gb_host_get(host, "trap", &table) == GB_OK);
  CHECK(gb_table_get(host, &table, &key, &out) == GB_OK && out.type == GB_VALUE_NIL);
  CHECK(gb_table_set(host, &table, &key, &value) == GB_OK && gb_table_get(host, &table, &key, &out) == GB_OK &&
        out.as.integer == 1);
  CHECK(gb_host_get(host, "trap.none", &out) == GB_OK && out.type == GB_VALUE_NIL);
  CHECK(gb_host_get(host, "trap.inner", &out) == GB_OK && out.as.integer == 5);
  CHECK(gb_host_set(host, "trap.more", &value) == GB_OK && gb_host_get(host, "trap.more", &out) == GB_OK &&
        out.as.integer == 1);
  CHECK(gb_host_get(host, "loop.none", &out) == GB_OK && out.type == GB_VALUE_NIL);
  gb_value_release(host, &table);
  CHECK(gb_host_get(host, "model", &table) == GB_OK);
  CHECK(gb_host_call(host, "model.predict", &table, 1, &out, 1) == GB_OK && out.as.integer == 7);
  gb_value_release(host, &table);
  CHECK(runs(host, "local old = tostring tostring = error print(1, gb.ones(1) .. '') tostring = old"));
  gb_host_close(host);
}

static void test_functions(void) {
  gb_host *host = open_host(NULL);
  int calls = 0;
  CHECK(gb_host_register(host, "math2.sum", sum_of, &calls) == GB_OK);
  CHECK(gb_host_register(host, "apply", apply, NULL) == GB_OK);
  CHECK(gb_host_register(host, "quiet", quiet_failure, NULL) == GB_OK);
  CHECK(runs(host, "local n, name = math2.sum(1, 2, 3)\nassert(n == 6 and name == 'sum' and select('#', "
                   "math2.sum()) == 2)"));
  CHECK(calls == 2);
  CHECK(fails(host, "\nmath2.sum('x')", GB_EINVAL, "recipe:2: sum: argument 1 is no integer"));
  CHECK(runs(host, "local ok, why = pcall(math2.sum, {})\nassert(not ok and why:find('no integer'))"));
  CHECK(fails(host, "quiet()", GB_EIO, "recipe:1"));
  CHECK(runs(host, "assert(apply(function(x) return x .. '!' end, 'a') == 'a!')"));
  CHECK(runs(host, "assert(coroutine.wrap(function() return apply(function(x) return coroutine.wrap(function() "
                   "return x + 1 end)() end, 1) end)() == 2)"));
  CHECK(runs(host, "local t = apply(function(x) return x end, { 5 })\nassert(t[1] == 5)"));
  CHECK(runs(host, "local x = gb.ones(2)\nassert(rawequal(apply(function(y) return y end, x), x))"));
  CHECK(fails(host, "apply(function() error('deep') end)", GB_ERECIPE, "inside: recipe:1: deep"));
  CHECK(runs(host, "local ok = pcall(apply, error, 'x')\nassert(not ok)"));
  CHECK(fails(host, "apply(function() apply(function() gb.ones(2, 'x') end) end)", GB_ERECIPE,
              "inside: recipe:1: inside: recipe:1: ones"));
  gb_status status = GB_OK;
  gb_value freed = { .type = GB_VALUE_FUNCTION, .as.handle = { -2, host } };
  CHECK(gb_host_register(host, "stale", stale, &status) == GB_OK);
  CHECK(!runs(host, "stale()") && status != GB_OK && strstr(gb_host_error(host), "recipe:1"));
  CHECK(gb_host_call_value(host, &freed, NULL, 0, NULL, 0) != GB_OK &&
        strstr(gb_host_error(host), "the handle stands for no function"));
  CHECK(gb_host_call(host, "apply", &freed, 1, NULL, 0) != GB_OK &&
        strstr(gb_host_error(host), "the handle stands for no function"));
  /* the depth ends before the stack does */
  CHECK(fails(host, "local function f() return apply(f) end f()", GB_ERECIPE, NULL));
  CHECK(runs(host, "return 1"));
  gb_host_close(host);
}

/* ====} */

/* {==== Callbacks ==== */

typedef struct heard {
  char text[256];
  int errors, events;
  gb_status status;
  gb_event last;
} heard;

static void on_print(void *user, const char *text, size_t length) {
  heard *h = user;
  snprintf(h->text, sizeof h->text, "%.*s", (int)length, text);
}

static void on_error(void *user, gb_status status, const char *text) {
  heard *h = user;
  h->errors++;
  h->status = status;
  snprintf(h->text, sizeof h->text, "%s", text);
}

static void on_event(void *user, const gb_event *event) {
  heard *h = user;
  h->events++;
  h->last = *event;
}

static void test_callbacks(void) {
  heard h = { .status = GB_OK };
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.on_print = on_print;
  o.on_error = on_error;
  o.on_event = on_event;
  o.user = &h;
  gb_host *host = open_host(&o);
  CHECK(runs(host, "print('a', 1, nil, gb.ones(1):sum():item())") && !strcmp(h.text, "a\t1\tnil\t1.0"));
  CHECK(runs(host, "print()") && !strcmp(h.text, "") && h.errors == 0);
  CHECK(fails(host, "error('x')", GB_ERECIPE, NULL) && h.errors == 1 && h.status == GB_ERECIPE &&
        strstr(h.text, "recipe:1: x"));
  CHECK(runs(host, "local scaler = gb.amp.GradScaler()\nlocal bar = gb.progress(3, 'epoch 1')\n"
                   "for i = 1, 3 do bar:update(1, { loss = gb.ones(1):sum() / i, scale = scaler }) end\nbar:close()"));
  CHECK(h.events == 4 && h.last.step == 3 && h.last.total == 3 && fabs(h.last.loss - 1 / 3.0) < 1e-6 &&
        h.last.scale == 65536 && h.last.skipped == 0);
  CHECK(runs(host, "gb.progress(1):update(1)") && isnan(h.last.loss) && isnan(h.last.scale) && h.last.skipped == -1);
  gb_host_close(host);
}

/* ====} */

/* {==== Limits and interrupts ==== */

/* Every way to hold on to what must end. %s is what runs without end. */
static const char *const holds[] = {
  "%s",
  "coroutine.wrap(function() %s end)() while true do end",
  "while true do pcall(function() %s end) end",
  "while true do coroutine.wrap(function() pcall(function() %s end) end)() end",
  "local t <close> = setmetatable({}, { __close = function() while true do end end }) %s",
  "xpcall(function() %s end, function() while true do end end) while true do end",
};

/* The same end for each of them, and a host that goes on after it. */
static void hold_all(gb_host *host, const char *loop, gb_status expected) {
  char text[512];
  for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
    snprintf(text, sizeof text, holds[i], loop);
    CHECK(fails(host, text, expected, NULL));
    CHECK(runs(host, "local t = {} for i = 1, 100 do t[i] = gb.ones(3) end assert(gb.is_grad_enabled() and "
                     "gb.stack(t):sum():item() == 300)"));
  }
}

/* Each makes the engine hold something that is no tensor's memory, without end. The limit on Lua's bytes is far
 * away. */
static const char *const growing[] = {
  "while true do gb.no_grad() end",
  "while true do gb.amp.autocast() end",
  "local f = gb.Function { forward = function(ctx, x) return x * 2 end, backward = function(ctx, g) return g end }\n"
  "local x = gb.ones(1):requires_grad_() while true do x = f(x) end",
  "local x = gb.ones(1):requires_grad_() while true do x = gb.recompute(function(x) return x * 2 end, x) end",
  "local x, t = gb.ones(1):requires_grad_(), {} while true do t[#t + 1] = x:register_hook(print) end",
  "local t = {} while true do t[#t + 1] = gb.amp.GradScaler() end",
  "local t = {} while true do t[#t + 1] = gb.nn.Linear(1, 1) end",
  "local t = {} while true do t[#t + 1] = gb.optim.SGD(gb.nn.Linear(1, 1):parameters(), { lr = 1 }) end",
  "local name, t = ('x'):rep(1e5), {}\n"
  "while true do t[#t + 1] = gb.optim.SGD({ { params = { gb.ones(1):requires_grad_() }, names = { name } } }, { lr "
  "= 1 }) end",
  "local t, x = {}, gb.ones(1) while true do t[#t + 1] = gb.data.TensorDataset(x) end",
  "local t, d = {}, gb.data.TensorDataset(gb.ones(1)) while true do t[#t + 1] = gb.data.DataLoader(d, { prefetch = "
  "10 }) t[#t]:iter()() end",
  /* batches that are kept are kept in memory of the loader's */
  "local t, d = {}, gb.data.DataLoader(gb.data.TensorDataset(gb.ones(10000)), { batch_size = 1000, prefetch = 0 })\n"
  "while true do for x in d:iter() do t[#t + 1] = x end end",
  "local t, d = {}, gb.data.DataLoader(gb.data.TensorDataset(gb.ones(10000)), { batch_size = 1000, prefetch = 2, "
  "shuffle = true })\n"
  "while true do for x in d:iter() do t[#t + 1] = x end end",
};

static void test_limits(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.instructions = 200000;
  gb_host *host = open_host(&o);
  hold_all(host, "while true do end", GB_EINSTRUCTIONS);
  hold_all(host, "while true do coroutine.wrap(function() end)() end", GB_EINSTRUCTIONS);
  hold_all(host, "while true do local x = ('x'):rep(1e5) end", GB_EINSTRUCTIONS);
  gb_host_usage usage;
  CHECK(runs(host, "for i = 1, 1e5 do end"));
  gb_host_get_usage(host, &usage);
  CHECK(usage.instructions > 50000 && usage.instructions < 200000 && usage.lua_peak >= usage.lua_bytes &&
        usage.lua_bytes > 100000);
  gb_host_close(host);

  o = options_of(GB_SANDBOX_NONE);
  o.seconds = 0.3; /* and time for what runs afterwards, under sanitizers beside other work too */
  host = open_host(&o);
  hold_all(host, "while true do end", GB_ETIME);
  hold_all(host, "while true do gb.randn(64, 64):matmul(gb.ones(64, 64)) end", GB_ETIME);
  hold_all(host, "while true do gb.ones(8):requires_grad_():exp():sum():backward() end", GB_ETIME);
  gb_host_close(host);

  o = options_of(GB_SANDBOX_NONE);
  o.lua_bytes = 16 << 20;
  host = open_host(&o);
  hold_all(host, "local s = 'x' while true do s = s .. s end", GB_ELUABYTES);
  hold_all(host, "local t = {} while true do t[#t + 1] = {} end", GB_ELUABYTES);
  hold_all(host, "local t = {} while true do t[#t + 1] = coroutine.create(print) end", GB_ELUABYTES);
  gb_host_close(host);

  o = options_of(GB_SANDBOX_NONE);
  o.tensor_bytes = 8 << 20;
  host = open_host(&o);
  hold_all(host, "local t = {} while true do t[#t + 1] = gb.ones(1000) end", GB_ETENSORBYTES);
  hold_all(host, "while true do gb.ones(1e7) end", GB_ETENSORBYTES);
  gb_host_close(host);

  o.tensor_bytes = 1 << 20; /* what describes tensors, graphs and hooks counts too */
  host = open_host(&o);
  CHECK(fails(host, "local x = gb.ones(2) local t = {} while true do t[#t + 1] = x[1] end", GB_ETENSORBYTES, NULL));
  CHECK(fails(host, "local x = gb.ones(1):requires_grad_() while true do x = x + 1 end", GB_ETENSORBYTES, NULL));
  CHECK(fails(host, "local x = gb.ones(1):requires_grad_() while true do x:register_hook(print) end", GB_ETENSORBYTES,
              NULL));
  CHECK(runs(host,
             "local x = gb.ones(1):requires_grad_() for i = 1, 1e4 do (x * i):exp():backward() x.grad = nil end"));
  CHECK(fails(host, "gb.no_grad() gb.amp.autocast() error('no')", GB_ERECIPE, "no") &&
        runs(host, "assert(gb.is_grad_enabled() and not gb.amp.is_enabled())"));
  for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
    CHECK(fails(host, growing[i], GB_ETENSORBYTES, "tensor bytes"));
    CHECK(runs(host, "collectgarbage() local t = gb.ones(1000) local loader = "
                     "gb.data.DataLoader(gb.data.TensorDataset(t), { batch_size = 10 })\n"
                     "for i = 1, 50 do for x in loader:iter() do x = nil end end"));
  }
  gb_host_close(host);
}

static void *interrupt_soon(void *host) {
  nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
  gb_host_interrupt(host);
  return NULL;
}

static void test_interrupts(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.interruptible = true;
  gb_host *host = open_host(&o);
  gb_host_interrupt(host); /* nothing runs */
  CHECK(runs(host, "for i = 1, 1e5 do end"));
  for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
    char text[512];
    pthread_t thread;
    snprintf(text, sizeof text, holds[i], "while true do gb.ones(2):exp() end");
    CHECK(pthread_create(&thread, NULL, interrupt_soon, host) == 0);
    CHECK(fails(host, text, GB_EINTERRUPT, "interrupted"));
    pthread_join(thread, NULL);
    CHECK(runs(host, "for i = 1, 1e4 do end assert(gb.ones(2):sum():item() == 2)"));
  }
  gb_host_close(host);
}

/* ====} */

/* {==== A graceful end ==== */

static void *ask_soon(void *host) {
  nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
  gb_host_request_stop(host);
  return NULL;
}

/* Run a text, and ask it to stop while it does. */
static gb_status run_asked(gb_host *host, const char *text) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, ask_soon, host) == 0);
  gb_status status = gb_host_run_string(host, text, NULL);
  pthread_join(thread, NULL);
  return status;
}

static void test_request_stop(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.interruptible = true;
  gb_host *host = open_host(&o);
  CHECK(runs(host, "model = gb.nn.Linear(2, 1)\nopt = gb.optim.SGD(model:parameters(), { lr = 0.01 })\n"
                   "loader = gb.data.DataLoader(gb.data.TensorDataset(gb.randn(64, 2)), { batch_size = 2 })\n"
                   "function train()\n  while true do\n    for x in loader:iter() do\n      fetched = (fetched or "
                   "0) + 1 opt:zero_grad()\n"
                  "      model(x):square():sum():backward() opt:step() steps = (steps or 0) + 1\n    end\n  end\nend"));
  CHECK(run_asked(host, "gb.on_stop(function() saved = steps at = fetched end) train()") == GB_EINTERRUPT);
  CHECK(runs(host, "assert(saved == steps and at == fetched, 'between two steps, with no batch lost')"));
  CHECK(run_asked(host, "train()") == GB_EINTERRUPT); /* the handler went with its run */
  CHECK(run_asked(host,
                  "gb.on_stop(function() while true do end end, { grace = 0.02 }) while true do pcall(train) end") ==
      GB_EINTERRUPT);
  CHECK(run_asked(host, "gb.on_stop(function() end) gb.on_stop(nil) while true do end") == GB_EINTERRUPT);
  CHECK(run_asked(host, "gb.on_stop(function() error('no room') end) train()") == GB_ERECIPE &&
        strstr(gb_host_error(host), "no room"));
  CHECK(fails(host, "gb.on_stop(1)", GB_ERECIPE, "on_stop: 'fn' must be a function, got 1"));
  CHECK(fails(host, "gb.on_stop(print, { grace = -1 })", GB_ERECIPE, "grace"));
  CHECK(runs(host, "opt:zero_grad() opt:zero_grad()"));
  gb_host_close(host);
}

typedef struct told {
  int steps, validations, skipped;
  double loss, scale, val_loss, accuracy, norm, lr;
  int64_t last_step;
} told;

/* The value of that name; NAN where there is none. */
static double value_of(const gb_event *event, const char *name) {
  for (int64_t i = 0; i < event->count; i++)
    if (!strcmp(event->names[i], name)) return event->values[i];
  return NAN;
}

static void on_training(void *user, const gb_event *event) {
  told *t = user;
  CHECK(event->size == sizeof *event && event->count >= 0);
  for (int64_t i = 1; i < event->count; i++) CHECK(strcmp(event->names[i - 1], event->names[i]) < 0);
  if (!isnan(value_of(event, "val_accuracy"))) t->accuracy = value_of(event, "val_accuracy");
  if (!isnan(value_of(event, "norm"))) t->norm = value_of(event, "norm"), t->lr = value_of(event, "lr");
  if (!strcmp(event->title, "validate")) {
    if (!isnan(event->loss)) t->validations++, t->val_loss = value_of(event, "val_loss");
  } else if (event->step > 0) {
    t->steps++;
    t->loss = event->loss;
    t->scale = event->scale;
    t->skipped = (int)event->skipped;
    t->last_step = event->step;
  }
}

/* A Trainer in a strict sandbox: the host is told of steps, scale, skips and validations; files are refused, and limits
 * and requests to stop reach it. */
static void test_trainer(void) {
  static const char setup[] =
    "function make(more)\n"
    "  gb.manual_seed(1)\n"
    "  local options = { model = gb.nn.Linear(4, 2), optimizer = 'SGD', loss = gb.nn.functional.cross_entropy,\n"
    "    precision = '16-mixed', device = 'cpu', sanity = 0, epochs = 2, metrics = { 'accuracy' },\n"
    "    scaler = gb.amp.GradScaler({ init_scale = 2.0 ^ 30 }) }\n"
    "  for key, value in pairs(more or {}) do options[key] = value end\n"
    "  return gb.Trainer(options)\n"
    "end\n"
    "batches = {}\n"
    "for i = 1, 8 do batches[i] = { gb.rand(4, 4), gb.zeros(4, { dtype = 'int64' }) } end";
  told t = { .steps = 0 };
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.on_event = on_training;
  o.user = &t;
  o.seconds = 20;
  o.tensor_bytes = (size_t)1 << 20;
  gb_host *host = open_host(&o);
  CHECK(runs(host, setup));
  CHECK(runs(host, "make():fit(batches, { batches[1] })"));
  CHECK(t.steps == 16 && t.last_step == 8 && t.validations == 2 && t.loss > 0 && t.val_loss > 0);
  CHECK(t.skipped > 5 && t.skipped < 16 && t.scale < 0x1p30);
  CHECK(t.accuracy >= 0 && t.accuracy <= 1 && t.norm > 0 && t.lr == 1e-3);
  told before = t;
  t.accuracy = t.norm = -1;
  CHECK(runs(host, "make({ progress = false }):fit(batches, { batches[1] })"));
  CHECK(t.steps == 2 * before.steps && t.validations == 4 && t.last_step == 16 && t.loss == before.loss);
  CHECK(t.accuracy >= 0 && t.norm == before.norm);
  CHECK(fails(host, "make({ checkpoint = 'runs' }):fit(batches)", GB_EIO, "files are not allowed here"));
  CHECK(run_asked(host, "local t = make({ epochs = 1 << 40, on = { step = function() stepped = true end } })\n"
                        "gb.on_stop(function() saved = t.step end) t:fit(batches)") == GB_EINTERRUPT);
  CHECK(runs(host, "assert(math.type(saved) == 'integer')"));
  CHECK(run_asked(host, "make({ epochs = 1 << 40 }):fit(batches)") == GB_EINTERRUPT);
  CHECK(fails(host, "make({ loss = function(y) return gb.rand(1 << 20):sum() + y:sum() end }):fit(batches)",
              GB_ETENSORBYTES, NULL));
  CHECK(runs(host, "make():fit(batches)")); /* the host goes on */
  gb_host_close(host);
  o.seconds = 0.2;
  host = open_host(&o);
  CHECK(runs(host, setup));
  CHECK(fails(host, "make({ epochs = 1 << 40 }):fit(batches)", GB_ETIME, NULL));
  gb_host_close(host);
}

/* ====} */

int main(void) {
  test_open();
  test_run();
  test_values();
  test_tensors();
  test_handles();
  test_raw();
  test_functions();
  test_callbacks();
  test_limits();
  test_interrupts();
  test_request_stop();
  test_trainer();
  return check_report();
}
