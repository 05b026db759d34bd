/* test_misuse.c - what a program can do wrong with the host API: NULL, numbers that cannot be meant, values of no kind,
 * handles that are gone or another host's, calls from another thread, from callbacks and while the host closes, and
 * stops at any time. Each is a status with a text, and leaves the host as it was; what the header calls a fault is not
 * tried. Run under the address and the thread sanitizer. */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "open_host.h"

/* {==== One wrong argument ==== */

static gb_status do_nothing(gb_call *call, void *user) {
  (void)call, (void)user;
  return GB_OK;
}

/* What the cases of the table call with: a good value of each kind, and bad ones. */
static gb_value some, table, function, out;
static gb_value odd = { .type = (gb_value_type)99 }, nowhere = { .type = GB_VALUE_STRING, .as.string = { NULL, 5 } },
                no_tensor = { .type = GB_VALUE_TENSOR }, foreign_table, foreign_tensor, stale_table, mistyped;
static int64_t number;

typedef gb_status (*attempt)(gb_host *host);

#define TRY(name, expression) static gb_status name(gb_host *host) { return expression; }
TRY(file_null, gb_host_run_file(host, NULL))
TRY(text_null, gb_host_run_string(host, NULL, NULL))
TRY(call_null, gb_host_call(host, NULL, NULL, 0, NULL, 0))
TRY(call_in_null, gb_host_call(host, "echo", NULL, 1, NULL, 0))
TRY(call_out_null, gb_host_call(host, "echo", NULL, 0, NULL, 1))
TRY(call_in_negative, gb_host_call(host, "echo", &some, -1, NULL, 0))
TRY(call_out_negative, gb_host_call(host, "echo", NULL, 0, &out, INT_MIN))
TRY(call_in_many, gb_host_call(host, "echo", &some, INT_MAX, NULL, 0))
TRY(call_out_many, gb_host_call(host, "echo", NULL, 0, &out, INT_MAX))
TRY(call_odd, gb_host_call(host, "echo", &odd, 1, &out, 1))
TRY(call_nowhere, gb_host_call(host, "echo", &nowhere, 1, &out, 1))
TRY(call_no_tensor, gb_host_call(host, "echo", &no_tensor, 1, &out, 1))
TRY(call_foreign, gb_host_call(host, "echo", &foreign_tensor, 1, &out, 1))
TRY(call_foreign_handle, gb_host_call(host, "echo", &foreign_table, 1, &out, 1))
TRY(call_stale, gb_host_call(host, "echo", &stale_table, 1, &out, 1))
TRY(call_mistyped, gb_host_call(host, "echo", &mistyped, 1, &out, 1))
TRY(value_null, gb_host_call_value(host, NULL, NULL, 0, NULL, 0))
TRY(value_odd, gb_host_call_value(host, &odd, NULL, 0, NULL, 0))
TRY(value_foreign, gb_host_call_value(host, &foreign_table, NULL, 0, NULL, 0))
TRY(value_in_null, gb_host_call_value(host, &function, NULL, 2, NULL, 0))
TRY(get_null, gb_host_get(host, NULL, &out))
TRY(get_out_null, gb_host_get(host, "echo", NULL))
TRY(set_null, gb_host_set(host, NULL, &some))
TRY(set_value_null, gb_host_set(host, "x", NULL))
TRY(set_odd, gb_host_set(host, "x", &odd))
TRY(set_stale, gb_host_set(host, "x", &stale_table))
TRY(new_null, gb_table_new(host, NULL))
TRY(table_get_null, gb_table_get(host, NULL, &some, &out))
TRY(table_get_key_null, gb_table_get(host, &table, NULL, &out))
TRY(table_get_out_null, gb_table_get(host, &table, &some, NULL))
TRY(table_get_of_number, gb_table_get(host, &some, &some, &out))
TRY(table_get_of_function, gb_table_get(host, &function, &some, &out))
TRY(table_get_stale, gb_table_get(host, &stale_table, &some, &out))
TRY(table_get_foreign, gb_table_get(host, &foreign_table, &some, &out))
TRY(table_set_null, gb_table_set(host, NULL, &some, &some))
TRY(table_set_key_null, gb_table_set(host, &table, NULL, &some))
TRY(table_set_value_null, gb_table_set(host, &table, &some, NULL))
TRY(table_set_odd, gb_table_set(host, &table, &some, &odd))
TRY(table_length_null, gb_table_length(host, NULL, &number))
TRY(table_length_out_null, gb_table_length(host, &table, NULL))
TRY(table_length_stale, gb_table_length(host, &stale_table, &number))
TRY(table_next_null, gb_table_next(host, NULL, &out, &some))
TRY(table_next_key_null, gb_table_next(host, &table, NULL, &out))
TRY(table_next_value_null, gb_table_next(host, &table, &out, NULL))
TRY(register_name_null, gb_host_register(host, NULL, do_nothing, NULL))
TRY(register_null, gb_host_register(host, "f", NULL, NULL))

static const struct { const char *name; attempt try; const char *says; } attempts[] = {
#define ROW(name, says) { #name, name, says }
  ROW(file_null, "path is NULL"), ROW(text_null, "text is NULL"), ROW(call_null, "NULL"),
      ROW(call_in_null, "in is NULL"),
  ROW(call_out_null, "out is NULL"), ROW(call_in_negative, "negative"), ROW(call_out_negative, "negative"),
      ROW(call_in_many, "stack"),
  ROW(call_out_many, "stack"), ROW(call_odd, "type 99"), ROW(call_nowhere, "string at NULL"),
      ROW(call_no_tensor, "tensor that is NULL"),
  ROW(call_foreign, "another host"), ROW(call_foreign_handle, "another host"), ROW(call_stale, "was released"),
      ROW(call_mistyped, "no function"),
  ROW(value_null, "NULL"), ROW(value_odd, "type 99"), ROW(value_foreign, "another host"),
      ROW(value_in_null, "in is NULL"), ROW(get_null, "NULL"),
  ROW(get_out_null, "NULL"), ROW(set_null, "NULL"), ROW(set_value_null, "NULL"), ROW(set_odd, "type 99"),
      ROW(set_stale, "released"),
  ROW(new_null, "NULL"), ROW(table_get_null, "NULL"), ROW(table_get_key_null, "NULL"), ROW(table_get_out_null, "NULL"),
  ROW(table_get_of_number, "a table is needed"), ROW(table_get_of_function, "a table is needed"),
      ROW(table_get_stale, "released"),
  ROW(table_get_foreign, "another host"), ROW(table_set_null, "NULL"), ROW(table_set_key_null, "NULL"),
      ROW(table_set_value_null, "NULL"),
  ROW(table_set_odd, "type 99"), ROW(table_length_null, "NULL"), ROW(table_length_out_null, "NULL"),
      ROW(table_length_stale, "released"),
  ROW(table_next_null, "NULL"), ROW(table_next_key_null, "NULL"), ROW(table_next_value_null, "NULL"),
      ROW(register_name_null, "NULL"),
  ROW(register_null, "NULL"),
#undef ROW
};
#define ATTEMPTS (sizeof attempts / sizeof *attempts)

/* Each with a host and without one. */
static void test_arguments(void) {
  gb_host *host = open_host(NULL), *other = open_host(NULL);
  CHECK(runs(host, "function echo(...) return ... end") && runs(other, "x = gb.ones(2)"));
  some = gb_value_integer(1);
  out = gb_value_nil();
  CHECK(gb_table_new(host, &table) == GB_OK && gb_host_get(host, "echo", &function) == GB_OK);
  CHECK(gb_table_new(other, &foreign_table) == GB_OK && gb_host_get(other, "x", &foreign_tensor) == GB_OK);
  gb_value released;
  CHECK(gb_table_new(host, &released) == GB_OK);
  stale_table = released;
  gb_value_release(host, &released);
  mistyped = table;
  mistyped.type = GB_VALUE_FUNCTION;
  for (size_t i = 0; i < ATTEMPTS; i++) {
    gb_status status = attempts[i].try(host);
    bool right = status == GB_EINVAL && strstr(gb_host_error(host), attempts[i].says) && out.type == GB_VALUE_NIL;
    if (!right) fprintf(stderr, "  %s gave %s: %s\n", attempts[i].name, gb_status_text(status), gb_host_error(host));
    CHECK(right);
    CHECK(attempts[i].try(NULL) == GB_EINVAL);
  }
  gb_value_release(other, &foreign_table);
  gb_value_release(other, &foreign_tensor);
  gb_value_release(host, &function);
  gb_value_release(host, &table);
  CHECK(runs(host, "assert(echo(1) == 1)"));
  gb_host_close(other);
  CHECK(gb_host_close(host) == GB_OK);
}

/* Functions that return no status give nothing. */
static void test_nothing(void) {
  gb_host_usage usage = { 1, 1, 1 };
  gb_value v = gb_value_integer(3);
  CHECK(gb_host_context(NULL) == NULL && *gb_host_error(NULL) && gb_host_close(NULL) == GB_OK);
  gb_host_get_usage(NULL, &usage);
  CHECK(usage.lua_bytes == 0 && usage.instructions == 0);
  gb_host_interrupt(NULL);
  gb_host_request_stop(NULL);
  gb_value_release(NULL, NULL);
  gb_value_release(NULL, &v);
  CHECK(v.type == GB_VALUE_NIL);
  CHECK(gb_call_host(NULL) == NULL && gb_call_count(NULL) == 0 && gb_call_get(NULL, 0, &v) == GB_EINVAL &&
        gb_call_return(NULL, &v) == GB_EINVAL);
  CHECK(gb_call_error(NULL, GB_EIO, "x") == GB_EIO);
  gb_host_options_init(NULL, 100);
  size_t size = 1;
  gb_host_options_init((gb_host_options *)(void *)&size, 4);
  CHECK(size == 1);
}

/* Options whose size is none, and what each field refuses. */
static void test_options(void) {
  char why[128];
  gb_host *host = NULL;
  static const size_t sizes[] = { 0, 1, 8, 12, sizeof(gb_host_options) - 1, sizeof(gb_host_options) - 3,
                                  offsetof(gb_host_options, root) + 4 };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    gb_host_options o = options_of(GB_SANDBOX_NONE);
    o.root = (const char *)(uintptr_t)8; /* half of it would be read */
    o.size = sizes[i];
    CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL && !host && strstr(why, "options.size"));
  }
  static const struct { int threads; double seconds; gb_sandbox sandbox; uint64_t file_bytes; const char *root,
                        *says; } wrong[] = {
    { .threads = -1, .says = "threads" }, { .threads = INT_MAX, .says = "threads" },
        { .seconds = -1, .says = "seconds" },
    { .seconds = 0.0 / 0.0, .says = "seconds" }, { .sandbox = (gb_sandbox)7, .says = "sandbox" },
        { .sandbox = (gb_sandbox)-1, .says = "sandbox" },
    { .file_bytes = 9, .says = "file_bytes" }, { .sandbox = GB_SANDBOX_FILES, .says = "root" },
        { .root = "/tmp", .says = "root" },
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    gb_host_options o = options_of(wrong[i].sandbox);
    o.threads = wrong[i].threads;
    o.seconds = wrong[i].seconds;
    o.file_bytes = wrong[i].file_bytes;
    o.root = wrong[i].root;
    CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL && !host && strstr(why, wrong[i].says));
  }
  CHECK(gb_host_open(NULL, NULL, why, sizeof why) == GB_EINVAL && strstr(why, "out is NULL"));
  CHECK(gb_host_open(NULL, NULL, NULL, 9) == GB_EINVAL);
}

/* Names as long as a recipe could make them. */
static void test_long_names(void) {
  gb_host *host = open_host(NULL);
  enum { LONG = 1 << 20 };
  char *name = malloc(LONG + 1);
  gb_value v = gb_value_integer(1);
  memset(name, 'n', LONG);
  name[LONG] = 0;
  CHECK(gb_host_call(host, name, NULL, 0, NULL, 0) == GB_ERECIPE && strlen(gb_host_error(host)) < 5000);
  CHECK(gb_host_set(host, name, &v) == GB_OK && gb_host_get(host, name, &v) == GB_OK && v.as.integer == 1);
  CHECK(gb_host_run_string(host, "error('x')", name) == GB_ERECIPE && gb_host_run_file(host, name) == GB_ERECIPE);
  CHECK(gb_host_register(host, name, do_nothing, NULL) == GB_OK && gb_host_call(host, name, NULL, 0, NULL, 0) == GB_OK);
  memset(name, '.', LONG);
  CHECK(gb_host_get(host, name, &v) == GB_OK && v.type == GB_VALUE_NIL);
  CHECK(gb_host_register(host, "", do_nothing, NULL) == GB_OK && runs(host, "return 1"));
  free(name);
  gb_host_close(host);
}

/* ====} */

/* {==== Handles ==== */

static void test_handles(void) {
  gb_host *host = open_host(NULL), *other = open_host(NULL);
  gb_value a, b, copy, next;
  CHECK(gb_table_new(host, &a) == GB_OK);
  copy = a;
  gb_value_release(host, &a);
  CHECK(gb_table_new(host, &b) == GB_OK);
  gb_value_release(host, &copy); /* a second time: nothing, and not the table that came after */
  int64_t length = -1;
  CHECK(gb_table_length(host, &b, &length) == GB_OK && length == 0);
  next = b;
  gb_value_release(other, &next); /* it is not of that host, which leaves it */
  CHECK(next.type == GB_VALUE_TABLE && next.owned && gb_table_length(host, &next, &length) == GB_OK);
  gb_value_release(host, &next);
  CHECK(gb_table_length(host, &b, &length) == GB_EINVAL);
  CHECK(gb_table_new(host, &a) == GB_OK);
  copy = a;
  gb_host_close(host);
  gb_value_release(NULL, &a); /* its host is gone */
  CHECK(a.type == GB_VALUE_NIL);
  for (int i = 0; i < 8; i++) { /* one of these may lie where that host lay */
    gb_host *fresh = open_host(NULL);
    CHECK(gb_table_length(fresh, &copy, &length) == GB_EINVAL);
    gb_host_close(fresh);
  }
  gb_host_close(other);
}

/* Many handles, in any order. */
static void test_many_handles(void) {
  gb_host *host = open_host(NULL);
  enum { MANY = 2000 };
  static gb_value many[MANY];
  for (int i = 0; i < MANY; i++) {
    gb_value key = gb_value_integer(1), value = gb_value_integer(i);
    CHECK(gb_table_new(host, &many[i]) == GB_OK && gb_table_set(host, &many[i], &key, &value) == GB_OK);
  }
  for (int i = 0; i < MANY; i += 2) gb_value_release(host, &many[i]);
  CHECK(runs(host, "collectgarbage()"));
  for (int i = 1; i < MANY; i += 2) {
    gb_value key = gb_value_integer(1), value;
    CHECK(gb_table_get(host, &many[i], &key, &value) == GB_OK && value.as.integer == i);
    gb_value_release(host, &many[i]);
  }
  gb_host_close(host);
}

/* ====} */

/* {==== A host function and its arguments ==== */

/* keep_alive(x, f): f frees x, whose memory must stay until this has returned. */
static gb_status use_after(gb_call *call, void *user) {
  gb_value x, f;
  float values[3] = { 0 };
  CHECK(gb_call_get(call, 0, &x) == GB_OK && gb_call_get(call, 1, &f) == GB_OK && x.type == GB_VALUE_TENSOR);
  CHECK(gb_host_call_value(gb_call_host(call), &f, NULL, 0, NULL, 0) == GB_OK);
  CHECK(gb_tensor_numel(x.as.tensor) == 3 && gb_tensor_read(x.as.tensor, values, sizeof values) == GB_OK &&
        values[1] == 1);
  *(int *)user += (int)values[2];
  return gb_call_return(call, &x);
}

static void test_arguments_stay(void) {
  gb_host *host = open_host(NULL);
  int sum = 0;
  CHECK(gb_host_register(host, "use", use_after, &sum) == GB_OK);
  CHECK(runs(host, "local x = gb.ones(3) local y = use(x, function() x:free() end) assert(not pcall(function() "
                   "return x + 1 end))"));
  CHECK(runs(host, "local x = gb.ones(3) use(x, function() debug.setlocal(2, 1, nil) x = nil collectgarbage() "
                   "collectgarbage() end)"));
  CHECK(runs(host, "local x = gb.ones(3) setmetatable({}, { __gc = function() x:free() end }) use(x, collectgarbage)"));
  CHECK(runs(host, "local x = gb.ones(3) coroutine.wrap(function() use(x, function() x:free() end) end)()"));
  CHECK(!runs(host, "use(gb.ones(3), function() end, error)") || sum == 5);
  gb_host_close(host);
}

/* Everything that a function may ask of its call, and should not. */
static gb_status misuse_call(gb_call *call, void *user) {
  gb_host *host = gb_call_host(call);
  gb_value v = gb_value_integer(7);
  (void)user;
  CHECK(gb_call_get(call, 0, NULL) == GB_EINVAL && strstr(gb_host_error(host), "out is NULL"));
  CHECK(gb_call_get(call, -1, &v) == GB_OK && v.type == GB_VALUE_NIL && gb_call_get(call, INT_MAX, &v) == GB_OK &&
        v.type == GB_VALUE_NIL);
  CHECK(gb_call_return(call, NULL) == GB_EINVAL && gb_call_return(call, &odd) == GB_EINVAL &&
        strstr(gb_host_error(host), "type 99"));
  CHECK(gb_host_close(host) == GB_ESTATE && strstr(gb_host_error(host), "close it when"));
  CHECK(gb_call_error(call, GB_EIO, NULL) == GB_EIO);
  v = gb_value_integer(7);
  return gb_call_return(call, &v);
}

/* A status that there is not. */
static gb_status unknown_status(gb_call *call, void *user) {
  (void)call, (void)user;
  return (gb_status)12345;
}

static void test_call(void) {
  gb_host *host = open_host(NULL);
  CHECK(gb_host_register(host, "misuse", misuse_call, NULL) == GB_OK &&
        gb_host_register(host, "unknown", unknown_status, NULL) == GB_OK);
  CHECK(runs(host, "assert(misuse() == 7 and select('#', misuse(1, 2)) == 1)"));
  CHECK(runs(host, "assert(coroutine.wrap(function() return misuse() end)() == 7)"));
  CHECK(gb_host_run_string(host, "unknown()", NULL) != GB_OK && strstr(gb_host_error(host), "unknown status"));
  gb_host_close(host);
}

/* ====} */

/* {==== Callbacks ==== */

typedef struct caller {
  gb_host *host;
  int prints, errors, events, files, memory;
  gb_status status; /* of the last call that was refused */
} caller;

static void print_calls(void *user, const char *text, size_t length) {
  caller *c = user;
  gb_value v;
  (void)text, (void)length;
  c->prints++;
  CHECK(runs(c->host, "printed = (printed or 0) + 1 inner = gb.ones(2):sum():item()"));
  CHECK(gb_host_get(c->host, "printed", &v) == GB_OK && v.as.integer == c->prints);
  CHECK(gb_host_close(c->host) == GB_ESTATE);
}

static void error_calls(void *user, gb_status status, const char *text) {
  caller *c = user;
  (void)status;
  if (!c->host) return; /* it has not opened */
  char before[64];
  snprintf(before, sizeof before, "%s", text);
  c->errors++;
  CHECK(gb_host_run_string(c->host, "error('within')", NULL) == GB_ERECIPE && strstr(gb_host_error(c->host), "within"));
  CHECK(!strncmp(before, text, 63));
}

static void event_calls(void *user, const gb_event *event) {
  caller *c = user;
  c->events++;
  CHECK(event->step >= 0 && runs(c->host, "local x = gb.ones(3) + 1"));
}

static gb_status file_calls(void *user, const char *path, bool write) {
  caller *c = user;
  (void)path, (void)write;
  c->files++;
  c->status = gb_host_run_string(c->host, "ran = true", NULL);
  return GB_OK;
}

static void *memory_calls(void *user, void *block, size_t before, size_t bytes) {
  caller *c = user;
  (void)before;
  if (c->host && c->memory++ == 0) c->status = gb_host_run_string(c->host, "ran = true", NULL);
  if (bytes) return realloc(block, bytes);
  free(block);
  return NULL;
}

static void test_callbacks(void) {
  caller c = { .host = NULL };
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  o.on_print = print_calls;
  o.on_error = error_calls;
  o.on_event = event_calls;
  o.on_file = file_calls;
  o.lua_alloc = memory_calls;
  o.user = o.alloc_user = &c;
  c.memory = 1;
  c.host = open_host(&o);
  CHECK(runs(c.host, "print('a') coroutine.wrap(function() print('b') coroutine.yield() end)()") && c.prints == 2);
  CHECK(fails(c.host, "error('outer')", GB_ERECIPE, "outer") && c.errors == 3); /* that of each close, and this one */
  CHECK(runs(c.host, "local bar = gb.progress(2, 'x') bar:update(1, { loss = 1 }) bar:close()") && c.events > 0);
  CHECK(fails(c.host, "gb.load('/nonexistent')", GB_EIO, NULL) && c.files == 1 && c.status == GB_ESTATE);
  c.memory = 0;
  c.status = GB_OK;
  CHECK(runs(c.host, "local t = {} for i = 1, 10 do t[i] = { i } end") && c.memory > 0 && c.status == GB_ESTATE);
  CHECK(runs(c.host, "assert(ran == nil and inner == 2)"));
  c.memory = 1;
  gb_host *host = c.host;
  CHECK(gb_host_close(host) == GB_OK);
}

/* A finaliser that closes the host while it closes, and one that goes on calling it. */
static gb_status close_again(gb_call *call, void *user) {
  *(gb_status *)user = gb_host_close(gb_call_host(call));
  CHECK(gb_host_run_string(gb_call_host(call), "local x = 1 + 1", NULL) == GB_OK);
  return GB_OK;
}

static void test_close_in_close(void) {
  gb_status status = GB_OK;
  gb_host *host = open_host(NULL);
  CHECK(gb_host_register(host, "close", close_again, &status) == GB_OK);
  CHECK(runs(host, "kept = setmetatable({}, { __gc = function() close() end })"));
  CHECK(gb_host_close(host) == GB_OK && status == GB_ESTATE);
}

/* The memory of one tensor ends others that hang on it, within whatever lets go of it. */
static void release_other(void *user) { gb_tensor_release(user); }

static void test_release_callback(void) {
  gb_host *host = open_host(NULL);
  static float memory[2];
  gb_tensor *x = NULL, *y = NULL;
  gb_context *context = gb_host_context(host);
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, (int64_t[]){ 2 }, (gb_device){ GB_CPU, 0 }, &y) == GB_OK);
  CHECK(gb_tensor_wrap(context, memory, GB_FLOAT32, 1, (int64_t[]){ 2 }, release_other, y, &x) == GB_OK);
  gb_value v = gb_value_tensor(x);
  CHECK(gb_host_set(host, "x", &v) == GB_OK);
  gb_tensor_release(x);
  CHECK(runs(host, "local y = x:clone() x = nil collectgarbage() assert(y:sum():item() == 0)"));
  gb_host_close(host);
}

/* ====} */

/* {==== Threads ==== */

/* A host whose call is held up until another thread has tried all it could. */
typedef struct held { gb_host *host; gb_value table; atomic_int stage; bool fine; } held;

static gb_status hold(gb_call *call, void *user) {
  held *h = user;
  (void)call;
  atomic_store(&h->stage, 1);
  while (atomic_load(&h->stage) != 2) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
  return GB_OK;
}

static void *run_held(void *user) {
  held *h = user;
  h->fine = runs(h->host, "hold()");
  return NULL;
}

static void test_wrong_thread(void) {
  held h = { .host = open_host(NULL) };
  pthread_t thread;
  gb_host_usage usage;
  CHECK(gb_host_register(h.host, "hold", hold, &h) == GB_OK && gb_table_new(h.host, &h.table) == GB_OK);
  CHECK(runs(h.host, "function echo(...) return ... end"));
  CHECK(fails(h.host, "error('mine')", GB_ERECIPE, "mine"));
  CHECK(pthread_create(&thread, NULL, run_held, &h) == 0);
  while (atomic_load(&h.stage) != 1) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);

  for (size_t i = 0; i < ATTEMPTS; i++) CHECK(attempts[i].try(h.host) == GB_ETHREAD);
  CHECK(gb_host_run_string(h.host, "return 1", NULL) == GB_ETHREAD &&
        !strcmp(gb_host_error(h.host), gb_status_text(GB_ETHREAD)));
  CHECK(gb_host_close(h.host) == GB_ETHREAD);
  gb_host_get_usage(h.host, &usage);
  CHECK(usage.lua_bytes == 0);
  gb_value copy = h.table;
  gb_value_release(h.host, &copy);
  CHECK(copy.type == GB_VALUE_TABLE && copy.owned); /* it is still there */
  CHECK(gb_host_context(h.host) != NULL);

  atomic_store(&h.stage, 2);
  pthread_join(thread, NULL);
  CHECK(h.fine);
  CHECK(strstr(gb_host_error(h.host), "mine")); /* what the other thread tried has left no trace */
  int64_t length;
  CHECK(gb_table_length(h.host, &h.table, &length) == GB_OK);
  gb_value_release(h.host, &h.table);
  CHECK(gb_host_close(h.host) == GB_OK);
}

/* Two threads that use one host as they please: each call runs whole, or not at all. */
typedef struct rivals { gb_host *host; atomic_int ran, wrong; } rivals;

static void *rival(void *user) {
  rivals *r = user;
  for (int i = 0; i < 300; i++) {
    gb_status status = gb_host_run_string(r->host, "count = (count or 0) + 1", NULL);
    atomic_fetch_add(&r->wrong, status != GB_OK && status != GB_ETHREAD);
    atomic_fetch_add(&r->ran, status == GB_OK);
    (void)gb_host_error(r->host);
  }
  return NULL;
}

static void test_rivals(void) {
  rivals r = { .host = open_host(NULL) };
  pthread_t threads[4];
  gb_value count;
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, rival, &r) == 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  CHECK(gb_host_get(r.host, "count", &count) == GB_OK && count.as.integer == atomic_load(&r.ran) &&
        count.as.integer > 0);
  CHECK(atomic_load(&r.wrong) == 0);
  gb_host_close(r.host);
}

/* Hosts that open, run, are stopped and close in many threads at once. */
static void *open_and_close(void *user) {
  atomic_int *wrong = user;
  for (int i = 0; i < 4; i++) {
    gb_host_options o = options_of(i & 1 ? GB_SANDBOX_STRICT : GB_SANDBOX_NONE);
    gb_host *host = NULL;
    atomic_fetch_add(wrong, gb_host_open(&o, &host, NULL, 0) != GB_OK);
    gb_host_request_stop(host); /* nothing runs */
    atomic_fetch_add(wrong,
                     !runs(host, "local x = gb.ones(8, 8):requires_grad_() local y = (x * x):sum() y:backward()"));
    gb_host_interrupt(host);
    atomic_fetch_add(wrong, gb_host_close(host) != GB_OK);
  }
  return NULL;
}

static void test_many(void) {
  pthread_t threads[8];
  atomic_int wrong = 0;
  for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, open_and_close, &wrong) == 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&wrong) == 0);
}

/* {---- stops that come at any time ---- */

static gb_host *_Atomic watched; /* whom the handler stops: NULL before a host is open */
static atomic_int signals;

static void on_signal(int signal) {
  (void)signal;
  atomic_fetch_add(&signals, 1);
  if (atomic_load(&signals) & 1) gb_host_interrupt(atomic_load(&watched));
  else gb_host_request_stop(atomic_load(&watched));
}

/* Sends signals to a thread until it is told to end. */
typedef struct storm { pthread_t thread; atomic_bool over; } storm;

static void *send_signals(void *user) {
  storm *s = user;
  while (!atomic_load(&s->over)) {
    pthread_kill(s->thread, SIGUSR1);
    nanosleep(&(struct timespec){ 0, 200000 }, NULL);
  }
  return NULL;
}

/* A handler on this thread knows the host from the moment it is open; while the close runs it still does, and that is
 * nothing. */
static void test_signals(void) {
  storm s = { .thread = pthread_self() };
  pthread_t thread;
  sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_signal, .sa_flags = SA_RESTART }, NULL);
  CHECK(pthread_create(&thread, NULL, send_signals, &s) == 0);
  for (int i = 0; i < 20; i++) {
    gb_host *host = NULL;
    gb_host_options o = options_of(GB_SANDBOX_NONE);
    o.interruptible = true;
    CHECK(gb_host_open(&o, &host, NULL, 0) == GB_OK);
    if (!host) continue;
    atomic_store(&watched, host);
    gb_status status = gb_host_run_string(host, "while true do local x = gb.ones(10) + 1 end", NULL);
    CHECK(status == GB_EINTERRUPT);
    status = gb_host_run_string(host, "kept = setmetatable({}, { __gc = function() for i = 1, 20000 do end end })",
                                NULL);
    CHECK(status == GB_OK || status == GB_EINTERRUPT);
    atomic_store(&watched, NULL);
    CHECK(gb_host_close(host) == GB_OK);
  }
  atomic_store(&s.over, true);
  pthread_join(thread, NULL);
  CHECK(atomic_load(&signals) > 0);
}

/* A finaliser, while the host closes, that is asked to stop. */
static gb_status stop_now(gb_call *call, void *user) {
  gb_host_interrupt(gb_call_host(call));
  gb_host_request_stop(gb_call_host(call));
  ++*(int *)user;
  return GB_OK;
}

static void test_stop_in_close(void) {
  gb_host *host = open_host(NULL);
  int calls = 0;
  CHECK(gb_host_register(host, "stop", stop_now, &calls) == GB_OK && runs(host, "kept = setmetatable({}, { __gc = "
                                                                                "function() stop() end })"));
  CHECK(gb_host_close(host) == GB_OK && calls == 1);
}

/* ----} */
/* ====} */

int main(void) {
  test_arguments();
  test_nothing();
  test_options();
  test_long_names();
  test_handles();
  test_many_handles();
  test_arguments_stay();
  test_call();
  test_callbacks();
  test_close_in_close();
  test_release_callback();
  test_wrong_thread();
  test_rivals();
  test_many();
  test_signals();
  test_stop_in_close();
  return check_report();
}
