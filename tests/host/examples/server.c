/* server.c - a server of small fine-tunes. Sixteen tenants have a sandboxed host each; a pool of threads takes their
 * jobs in turn, so that a host is used now by one thread and now by another, never by two at once. Among the jobs are
 * recipes that nobody trusts: each must end with the status that says why, and leave its own host and its neighbours as
 * they were.
 *
 *   server server.lua */
#include <gibbous_lua.h>
#include <pthread.h>
#include <string.h>

#include "check.h"

enum { TENANTS = 16, WORKERS = 4, IN = 12, OUT = 6, SAMPLES = 48, STEPS = 60, JOBS = 3 };

/* {==== What tenants send ==== */

/* A recipe, and how it must end. */
typedef struct untrusted { const char *text; gb_status ends; } untrusted;

static const untrusted sent[] = {
  { "while true do end", GB_EINSTRUCTIONS },
  { "while true do pcall(function() while true do end end) end", GB_EINSTRUCTIONS },
  { "while true do coroutine.wrap(function() while true do end end)() end", GB_EINSTRUCTIONS },
  { "string.find(('a'):rep(10000), ('a-'):rep(30) .. 'b')", GB_EINSTRUCTIONS },
  { "local s = 'x' while true do s = s .. s end", GB_ELUABYTES },
  { "local t = {} while true do t[#t + 1] = {} end", GB_ELUABYTES },
  { "local t = {} while true do t[#t + 1] = coroutine.create(print) end", GB_ELUABYTES },
  { "return require 'gibbous'.zeros(1 << 40)", GB_ETENSORBYTES },
  { "local gb, t = require 'gibbous', {} while true do t[#t + 1] = gb.zeros(65536) end", GB_ETENSORBYTES },
  { "local gb, x = require 'gibbous' x = gb.zeros(512, 512) while true do x = gb.matmul(x, x) end", GB_ETIME },
  { "return io.open('/etc/passwd')", GB_ERECIPE },
  { "os.exit(1)", GB_ERECIPE },
  { "return load(string.dump(function() end), '', 'b')()", GB_ERECIPE },
  { "return debug.getregistry()", GB_ERECIPE },
  { "package.loadlib('libc.so.6', '*')", GB_ERECIPE },
  { "return require 'gibbous'.load('/tmp/weights.safetensors')", GB_ERECIPE },
};

/* ====} */

/* {==== Jobs ==== */

typedef struct tenant {
  gb_host *host;
  const untrusted *recipe;
  float x[SAMPLES][IN], y[SAMPLES][OUT];
  int done;                       /* jobs */
  gb_status status[JOBS];
  double before, after;           /* the loss of the last fine-tune */
  float update[IN][OUT];          /* and what it learned */
} tenant;

/* Tenants that have jobs left, each at most once. */
typedef struct server {
  tenant tenants[TENANTS];
  const char *recipe;             /* path of server.lua */
  float base[IN][OUT];            /* the matrix that all share */
  int queue[TENANTS], waiting, unfinished;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
} server;

/* A number in [-1, 1). */
static float noise(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1;
}

static gb_status wrap(gb_host *host, void *data, int64_t rows, int64_t columns, gb_value *out) {
  gb_tensor *t = NULL;
  gb_status status = gb_tensor_wrap(gb_host_context(host), data, GB_FLOAT32, 2, (int64_t[]){ rows, columns }, NULL,
                                    NULL, &t);
  *out = gb_value_tensor(t);
  return status;
}

/* Run the recipe that the server trusts on the tenant's data. The tensors lie in the server's memory, on loan for this
 * call. */
static gb_status finetune(server *s, tenant *t) {
  gb_value in[4] = { gb_value_nil(), gb_value_nil(), gb_value_nil(), gb_value_integer(STEPS) }, out[3];
  gb_status status = wrap(t->host, s->base, IN, OUT, &in[0]);
  if (status == GB_OK) status = wrap(t->host, t->x, SAMPLES, IN, &in[1]);
  if (status == GB_OK) status = wrap(t->host, t->y, SAMPLES, OUT, &in[2]);
  if (status == GB_OK) status = gb_host_call(t->host, "finetune", in, 4, out, 3);
  for (int i = 0; i < 3; i++) {
    if (in[i].type != GB_VALUE_TENSOR) continue;
    gb_tensor_revoke(in[i].as.tensor);
    gb_tensor_release(in[i].as.tensor);
  }
  if (status != GB_OK) return status;
  t->before = out[0].as.number;
  t->after = out[1].as.number;
  status = gb_tensor_read(out[2].as.tensor, t->update, sizeof t->update);
  gb_value_release(t->host, &out[2]);
  return status;
}

/* The tenant's next job: a fine-tune, what it sent, and a fine-tune again. */
static void do_job(server *s, tenant *t) {
  t->status[t->done] = t->done == 1 ? gb_host_run_string(t->host, t->recipe->text, "tenant") : finetune(s, t);
  t->done++;
}

/* A strict host with limits. */
static gb_status open_tenant(server *s, tenant *t, char *why, size_t size) {
  gb_host_options options;
  gb_host_options_init(&options, sizeof options);
  options.sandbox = GB_SANDBOX_STRICT;
  options.threads = 1;
  options.lua_bytes = (size_t)8 << 20;
  options.tensor_bytes = (size_t)32 << 20;
  options.instructions = 20000000;
  options.seconds = t->recipe->ends == GB_ETIME ? 2 : 60;
  gb_status status = gb_host_open(&options, &t->host, why, size);
  if (status != GB_OK) return status;
  status = gb_host_run_file(t->host, s->recipe);
  if (status != GB_OK) snprintf(why, size, "%s", gb_host_error(t->host));
  return status;
}

/* ====} */

/* {==== The pool ==== */

/* The life of a worker: take a tenant, do its next job, and put it back if there is another. */
static void *work(void *argument) {
  server *s = argument;
  pthread_mutex_lock(&s->mutex);
  while (s->unfinished > 0) {
    if (s->waiting == 0) {
      pthread_cond_wait(&s->changed, &s->mutex);
      continue;
    }
    int who = s->queue[0];
    memmove(s->queue, s->queue + 1, sizeof *s->queue * (size_t)--s->waiting);
    pthread_mutex_unlock(&s->mutex);
    do_job(s, &s->tenants[who]);
    pthread_mutex_lock(&s->mutex);
    if (s->tenants[who].done < JOBS) s->queue[s->waiting++] = who;
    else s->unfinished--;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

/* Let the pool do all jobs. */
static void serve(server *s) {
  pthread_t workers[WORKERS];
  int started = 0;
  s->unfinished = TENANTS;
  for (s->waiting = 0; s->waiting < TENANTS; s->waiting++) s->queue[s->waiting] = s->waiting;
  while (started < WORKERS && !pthread_create(&workers[started], NULL, work, s)) started++;
  if (started == 0) work(s);
  for (int i = 0; i < started; i++) pthread_join(workers[i], NULL);
}

/* ====} */

/* A tenant's data: a matrix of its own, which differs from the base by a product of two vectors. */
static void make_data(const server *s, tenant *t, uint32_t seed) {
  float row[IN], column[OUT];
  for (int i = 0; i < IN; i++) row[i] = noise(&seed);
  for (int j = 0; j < OUT; j++) column[j] = noise(&seed);
  for (int n = 0; n < SAMPLES; n++) {
    for (int i = 0; i < IN; i++) t->x[n][i] = noise(&seed);
    for (int j = 0; j < OUT; j++) {
      t->y[n][j] = 0;
      for (int i = 0; i < IN; i++) t->y[n][j] += t->x[n][i] * (s->base[i][j] + row[i] * column[j]);
    }
  }
}

/* The same fine-tune in a host that has seen nothing else and has no neighbours gives the same bits. */
static void check_tenant(server *s, tenant *t) {
  static tenant alone;
  char why[256];
  CHECK(t->status[0] == GB_OK && t->status[2] == GB_OK);
  CHECK(t->after < 0.1 * t->before);
  CHECK(t->status[1] == t->recipe->ends);
  if (t->status[1] != t->recipe->ends)
    fprintf(stderr, "%s\n  gave: %s\n", t->recipe->text, gb_status_text(t->status[1]));
  alone = *t;
  CHECK(open_tenant(s, &alone, why, sizeof why) == GB_OK);
  CHECK(finetune(s, &alone) == GB_OK && !memcmp(alone.update, t->update, sizeof t->update));
  gb_host_close(alone.host);
}

int main(int argc, char **argv) {
  static server s = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
  uint32_t seed = 1;
  char why[256];
  if (argc != 2) return fputs("usage: server server.lua\n", stderr), 2;
  s.recipe = argv[1];
  for (int i = 0; i < IN * OUT; i++) s.base[i / OUT][i % OUT] = noise(&seed);
  for (int i = 0; i < TENANTS; i++) {
    s.tenants[i].recipe = &sent[i % (int)(sizeof sent / sizeof *sent)];
    make_data(&s, &s.tenants[i], (uint32_t)i + 2);
    if (open_tenant(&s, &s.tenants[i], why, sizeof why) != GB_OK) return fprintf(stderr, "%s\n", why), 1;
  }
  serve(&s);
  for (int i = 0; i < TENANTS; i++) {
    const tenant *t = &s.tenants[i];
    printf("tenant %2d  loss %.4f -> %.4f  its recipe: %s\n", i + 1, t->before, t->after, gb_status_text(t->status[1]));
    check_tenant(&s, &s.tenants[i]);
    gb_host_close(t->host);
  }
  return check_report();
}
