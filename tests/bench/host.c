/* host.c - what embedding costs: opening and closing a host, calls across the border, the time until an interrupt is
 * heeded. Prints medians of this machine; never a test. Many hosts at once are measured by hosts.c. */
#include <gibbous_lua.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 31

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return values[n / 2];
}

/* A host with one thread for kernels, or NULL with a line that says why not. */
static gb_host *open_host(gb_sandbox sandbox) {
  gb_host_options o;
  char why[256];
  gb_host *host;
  gb_host_options_init(&o, sizeof o);
  o.sandbox = sandbox;
  o.threads = 1;
  if (gb_host_open(&o, &host, why, sizeof why) == GB_OK) return host;
  printf("cannot open a host: %s\n", why);
  return NULL;
}

static void bench_open(gb_sandbox sandbox, const char *name) {
  double times[RUNS];
  for (int i = 0; i < RUNS; i++) {
    double start = now();
    gb_host_close(open_host(sandbox));
    times[i] = now() - start;
  }
  printf("open + close, sandbox %-6s %8.2f ms\n", name, 1e3 * median(times, RUNS));
}

static gb_status nothing(gb_call *call, void *user) {
  (void)call, (void)user;
  return GB_OK;
}

/* Seconds of one of `count` calls, at the median. */
static double time_calls(gb_host *host, const char *name, const gb_value *in, int n_in, int count) {
  double times[RUNS];
  for (int r = 0; r < RUNS; r++) {
    double start = now();
    for (int i = 0; i < count; i++) gb_host_call(host, name, in, n_in, NULL, 0);
    times[r] = (now() - start) / count;
  }
  return median(times, RUNS);
}

static void bench_calls(gb_sandbox sandbox, const char *name) {
  gb_host *host = open_host(sandbox);
  gb_tensor *x = NULL, *y = NULL;
  if (!host) return;
  gb_tensor_new(gb_host_context(host), GB_FLOAT32, 1, (int64_t[]){ 4 }, (gb_device){ GB_CPU, 0 }, &x);
  gb_tensor_new(gb_host_context(host), GB_FLOAT32, 1, (int64_t[]){ 4 }, (gb_device){ GB_CPU, 0 }, &y);
  gb_host_register(host, "nothing", nothing, NULL);
  gb_host_run_string(host, "function take(a, b) end\nfunction back() for i = 1, 1000 do nothing() end end", NULL);
  gb_value in[2] = { gb_value_tensor(x), gb_value_tensor(y) };
  printf("a call into Lua, no values, sandbox %-6s %8.0f ns\n", name, 1e9 * time_calls(host, "take", NULL, 0, 1000));
  printf("a call into Lua, two tensors, sandbox %-6s %6.0f ns\n", name, 1e9 * time_calls(host, "take", in, 2, 1000));
  printf("a host function called from Lua, sandbox %-6s %3.0f ns\n", name, 1e6 * time_calls(host, "back", NULL, 0, 10));
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_host_close(host);
}

/* {==== Interrupts ==== */

typedef struct request { gb_host *host; double sent; } request;

static void *interrupt_later(void *user) {
  request *r = user;
  nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
  r->sent = now();
  gb_host_interrupt(r->host);
  return NULL;
}

static void bench_interrupts(void) {
  static const struct { const char *name, *text; } cases[] = {
    { "a tight loop", "while true do end" },
    { "a loop in a coroutine", "coroutine.wrap(function() while true do end end)()" },
    { "a loop of pcalls", "while true do pcall(function() while true do end end) end" },
    { "nested coroutines", "local function nest(n) if n == 0 then while true do end end "
                           "pcall(coroutine.wrap(function() nest(n - 1) end))\n"
                           "while true do end end nest(20)" },
    { "a training loop", "local m = gb.nn.Linear(64, 64) local o = gb.optim.AdamW(m:parameters(), { lr = 1e-3 })\n"
                         "while true do o:zero_grad() m(gb.ones(64, 64)):sum():backward() o:step() end" },
    { "a pattern match", "(('a'):rep(1e6)):find(('.*'):rep(9) .. 'b')" },
    { "a product of 3000 x 3000", "local x = gb.ones(3000, 3000) while true do x:matmul(x) end" },
  };
  gb_host *host = open_host(GB_SANDBOX_STRICT);
  for (size_t c = 0; host && c < sizeof cases / sizeof *cases; c++) {
    double worst = 0;
    for (int i = 0; i < 5; i++) {
      request r = { host, 0 };
      pthread_t thread;
      if (pthread_create(&thread, NULL, interrupt_later, &r)) continue;
      gb_host_run_string(host, cases[c].text, NULL);
      double took = now() - r.sent;
      pthread_join(thread, NULL);
      if (took > worst) worst = took;
    }
    printf("interrupt of %-26s %8.2f ms at worst\n", cases[c].name, 1e3 * worst);
  }
  gb_host_close(host);
}

/* ====} */

int main(void) {
  bench_open(GB_SANDBOX_NONE, "none");
  bench_open(GB_SANDBOX_STRICT, "strict");
  bench_calls(GB_SANDBOX_NONE, "none");
  bench_calls(GB_SANDBOX_STRICT, "strict");
  bench_interrupts();
  return 0;
}
