/* test_host_threads.c - sixteen hosts in sixteen threads, each with kernel threads of its own: the same recipe gives
 * the same bits in each, requests from other threads stop whom they mean, a host may move from thread to thread, and
 * tensors may end on another one. Run under the thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>

#include "open_host.h"

#define HOSTS 16

static const char recipe[] =
  "gb.manual_seed(3)\n"
  "local model = gb.nn.Sequential(gb.nn.Linear(8, 32, { activation = 'relu' }), gb.nn.LayerNorm(32), "
  "gb.nn.Linear(32, 4))\n"
  "local opt, scaler = gb.optim.AdamW(model:parameters(), { lr = 1e-2 }), gb.amp.GradScaler()\n"
  "local x, y = gb.randn(64, 8), gb.randint(0, 4, { 64 })\n"
  "function train(steps)\n"
  "  local loss\n"
  "  for step = 1, steps do\n"
  "    opt:zero_grad()\n"
  "    loss = gb.amp.autocast({ dtype = 'float16' }, function() return gb.nn.functional.cross_entropy(model(x), y) "
  "end)\n"
  "    scaler:scale(loss):backward()\n"
  "    scaler:step(opt) scaler:update()\n"
  "  end\n"
  "  return loss:item(), model:parameters()[1]:detach():clone()\n"
  "end\n"
  "function forever() print('forever') while true do pcall(train, 1) end end\n";

/* One thread's host and what came of it. */
typedef struct work {
  pthread_t thread;
  gb_host *host;
  atomic_bool endless;           /* the recipe is in its loop without end */
  double loss;
  gb_tensor *weight;
  gb_status status, stopped;
} work;

/* The recipe prints once it is in its loop. */
static void on_print(void *user, const char *text, size_t length) {
  if (length == 7 && !memcmp(text, "forever", 7)) atomic_store(&((work *)user)->endless, true);
}

/* Open, train, and run until stopped from the main thread; the host and a tensor of it are left for that one to end. */
static void *live(void *user) {
  work *w = user;
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  char why[128];
  o.threads = 2;
  o.on_print = on_print;
  o.user = w;
  gb_value steps = gb_value_integer(10), out[2];
  w->status = gb_host_open(&o, &w->host, why, sizeof why);
  if (w->status == GB_OK) w->status = gb_host_run_string(w->host, recipe, NULL);
  if (w->status == GB_OK) w->status = gb_host_call(w->host, "train", &steps, 1, out, 2);
  if (w->status == GB_OK) {
    w->loss = out[0].as.number;
    w->weight = out[1].as.tensor; /* the reference is the main thread's now */
    w->stopped = gb_host_call(w->host, "forever", NULL, 0, NULL, 0);
  }
  atomic_store(&w->endless, true);
  return NULL;
}

static bool same_bits(gb_tensor *a, gb_tensor *b) {
  float left[256], right[256];
  size_t bytes = (size_t)gb_tensor_numel(a) * sizeof(float);
  return bytes <= sizeof left && gb_tensor_read(a, left, bytes) == GB_OK && gb_tensor_read(b, right, bytes) == GB_OK &&
      !memcmp(left, right, bytes);
}

int main(void) {
  static work all[HOSTS];
  for (int i = 0; i < HOSTS; i++) CHECK(pthread_create(&all[i].thread, NULL, live, &all[i]) == 0);
  for (int i = 0; i < HOSTS; i++) {
    while (!atomic_load(&all[i].endless)) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    if (i % 2) gb_host_interrupt(all[i].host);
    else gb_host_request_stop(all[i].host);
  }
  for (int i = 0; i < HOSTS; i++) {
    work *w = &all[i];
    pthread_join(w->thread, NULL);
    CHECK(w->status == GB_OK && w->stopped == GB_EINTERRUPT);
    if (w->status != GB_OK) fprintf(stderr, "  %s\n", w->host ? gb_host_error(w->host) : "no host");
    CHECK(w->weight && all[0].weight && w->loss == all[0].loss && same_bits(w->weight, all[0].weight));
  }
  for (int i = 0; i < HOSTS; i++) { /* on this thread now; the model is made anew, since the stop may have come between
                                       scaler:step and update */
    gb_value steps = gb_value_integer(1), loss;
    bool goes_on = gb_host_run_string(all[i].host, recipe, NULL) == GB_OK &&
        gb_host_call(all[i].host, "train", &steps, 1, &loss, 1) == GB_OK;
    if (!goes_on) fprintf(stderr, "  %s\n", gb_host_error(all[i].host));
    CHECK(goes_on);
    if (i % 2) gb_tensor_release(all[i].weight);
    gb_host_close(all[i].host);
    if (i % 2 == 0) gb_tensor_release(all[i].weight);
  }
  return check_report();
}
