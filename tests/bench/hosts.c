/* hosts.c - sixteen hosts that train at once, each on a thread of its own, against one host that has the machine to
 * itself. Both do the same number of steps; the ratio is of their times. The processor time that both took is compared
 * too: it hardly depends on what else the machine does. Never a test.
 *
 *   hosts [steps of one host in the sixteen] */
#include <gibbous_lua.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HOSTS = 16, RUNS = 9 };

static const char recipe[] =
  "local gb = require 'gibbous'\n"
  "local nn = gb.nn\n"
  "local model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))\n"
  "local opt = gb.optim.AdamW(model:parameters(), { lr = 1e-3 })\n"
  "local x, y = gb.randn(64, 64), gb.randint(0, 10, { 64 })\n"
  "function train(steps)\n"
  "  for _ = 1, steps do\n"
  "    opt:zero_grad()\n"
  "    nn.functional.cross_entropy(model(x), y):backward()\n"
  "    opt:step()\n"
  "  end\n"
  "end\n";

typedef struct job { gb_host *host; int steps; gb_status status; } job;

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A host that has run the recipe and a few steps of it. threads: as in the options. */
static gb_host *open_host(int threads) {
  gb_host_options options;
  gb_host *host;
  char why[256];
  gb_value warm = gb_value_integer(20);
  gb_host_options_init(&options, sizeof options);
  options.threads = threads;
  if (gb_host_open(&options, &host, why, sizeof why) != GB_OK) {
    fprintf(stderr, "hosts: %s\n", why);
    return NULL;
  }
  if (gb_host_run_string(host, recipe, "hosts") == GB_OK && gb_host_call(host, "train", &warm, 1, NULL, 0) == GB_OK)
    return host;
  fprintf(stderr, "hosts: %s\n", gb_host_error(host));
  gb_host_close(host);
  return NULL;
}

static void *train(void *argument) {
  job *j = argument;
  gb_value steps = gb_value_integer(j->steps);
  j->status = gb_host_call(j->host, "train", &steps, 1, NULL, 0);
  return NULL;
}

/* What n hosts took for `steps` each, all at once: seconds of the clock and of processors. */
typedef struct cost { double clock, processors; bool failed; } cost;

static cost time_hosts(gb_host **hosts, int n, int steps) {
  job jobs[HOSTS];
  pthread_t threads[HOSTS];
  bool failed = false;
  double start = seconds(CLOCK_MONOTONIC), start_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
  int started = 0;
  for (; started < n; started++) {
    jobs[started] = (job){ hosts[started], steps, GB_OK };
    if (pthread_create(&threads[started], NULL, train, &jobs[started])) break;
  }
  for (int i = 0; i < started; i++) {
    pthread_join(threads[i], NULL);
    failed = failed || jobs[i].status != GB_OK;
  }
  return (cost){ seconds(CLOCK_MONOTONIC) - start, seconds(CLOCK_PROCESS_CPUTIME_ID) - start_cpu,
                 failed || started < n };
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Alternating runs; the ratio of each pair, and its median. */
static int compare(const char *what, gb_host **one, gb_host **many, int steps) {
  double clock[RUNS], processors[RUNS], rate = 0;
  for (int i = 0; i < RUNS; i++) {
    cost a = time_hosts(one, 1, steps * HOSTS), b = time_hosts(many, HOSTS, steps);
    if (a.failed || b.failed) return 1;
    clock[i] = a.clock / b.clock;
    processors[i] = b.processors / a.processors;
    rate = steps * HOSTS / a.clock;
  }
  qsort(clock, RUNS, sizeof *clock, by_value);
  qsort(processors, RUNS, sizeof *processors, by_value);
  printf("%-32s %5.2f  (%.2f .. %.2f)  %.2f of its processor time; it makes %.0f steps/s\n", what, clock[RUNS / 2],
         clock[0], clock[RUNS - 1],
         processors[RUNS / 2], rate);
  return 0;
}

int main(int argc, char **argv) {
  int steps = argc > 1 ? atoi(argv[1]) : 100, status = 1;
  gb_host *one[2] = { open_host(0), open_host(1) }, *many[HOSTS] = { NULL };
  bool ready = one[0] && one[1];
  for (int i = 0; i < HOSTS; i++) ready = (many[i] = open_host(1)) && ready;
  if (ready) {
    printf("throughput of %d hosts at once, one thread each, over that of one host\n", HOSTS);
    status = compare("one host with a thread per core", &one[0], many, steps) ||
        compare("one host with one thread", &one[1], many, steps);
  }
  for (int i = 0; i < HOSTS; i++) gb_host_close(many[i]);
  gb_host_close(one[0]);
  gb_host_close(one[1]);
  return status;
}
