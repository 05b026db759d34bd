/* stream.c - a program that trains on its own ring buffer. A sensor thread writes samples into the ring; the main
 * thread lends windows of it to a recipe, which makes one step of training on each, and reads the weights where they
 * lie. No sample and no weight is copied.
 *
 *   stream stream.lua */
#include <gibbous_lua.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"

enum { INPUTS = 16, COLUMNS = INPUTS + 1, WINDOW = 64, WINDOWS = 8, ROWS = WINDOW * WINDOWS, STEPS = 600 };

/* Samples between head and tail are the reader's, the rest is the writer's; both count samples ever written or read. */
typedef struct ring {
  float rows[ROWS][COLUMNS];
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  long written, read;
  bool stop;
} ring;

/* What the sensor measures: output = truth . inputs + offset. */
static const float truth[INPUTS] = { 1, -2, 3, 0, 0.5f, -0.5f, 4, 1, -1, 2, -3, 0.25f, 0, 1.5f, -4, 1 };
static const float offset = 0.75f;

/* {==== The sensor ==== */

/* A number in [-1, 1) from a generator of the sensor's own. */
static float noise(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1;
}

static void measure(float *row, uint32_t *state) {
  row[INPUTS] = offset;
  for (int i = 0; i < INPUTS; i++) {
    row[i] = noise(state);
    row[INPUTS] += truth[i] * row[i];
  }
}

/* The life of the sensor thread: fill whatever window is free. */
static void *sense(void *argument) {
  ring *r = argument;
  uint32_t state = 1;
  pthread_mutex_lock(&r->mutex);
  while (!r->stop) {
    if (r->written - r->read > ROWS - WINDOW) {
      pthread_cond_wait(&r->changed, &r->mutex);
      continue;
    }
    long first = r->written % ROWS;
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < WINDOW; i++) measure(r->rows[first + i], &state);
    pthread_mutex_lock(&r->mutex);
    r->written += WINDOW;
    pthread_cond_signal(&r->changed);
  }
  pthread_mutex_unlock(&r->mutex);
  return NULL;
}

/* Wait for a full window and give its first row; give_back returns it to the sensor. */
static float *take_window(ring *r) {
  pthread_mutex_lock(&r->mutex);
  while (r->written - r->read < WINDOW) pthread_cond_wait(&r->changed, &r->mutex);
  float *row = r->rows[r->read % ROWS];
  pthread_mutex_unlock(&r->mutex);
  return row;
}

static void give_back(ring *r) {
  pthread_mutex_lock(&r->mutex);
  r->read += WINDOW;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

/* ====} */

/* {==== Training ==== */

/* Call a function of the recipe with a window on loan. Once it has returned, the loan has ended, whatever the recipe
 * did with the tensor. */
static gb_status call_with_window(gb_host *host, const char *function, float *rows, gb_value *out, int n_out) {
  const int64_t shape[2] = { WINDOW, COLUMNS };
  gb_tensor *window;
  gb_status status = gb_tensor_wrap(gb_host_context(host), rows, GB_FLOAT32, 2, shape, NULL, NULL, &window);
  if (status != GB_OK) return status;
  gb_value argument = gb_value_tensor(window);
  status = gb_host_call(host, function, &argument, 1, out, n_out);
  gb_tensor_revoke(window);
  gb_tensor_release(window);
  return status;
}

/* The largest distance of a weight from the truth. */
static float distance(const float *weight, const float *bias) {
  float most = fabsf(*bias - offset);
  for (int i = 0; i < INPUTS; i++) most = fmaxf(most, fabsf(weight[i] - truth[i]));
  return most;
}

/* Train on the stream; the weights are looked at while they change. parameters: weight and bias, the caller's to
 * release. */
static void train(gb_host *host, ring *r, gb_value parameters[2]) {
  gb_value loss = gb_value_nil();
  const float *weight = NULL, *bias = NULL;
  float first = 0, before = 0;
  for (int step = 1; step <= STEPS; step++) {
    bool trained = call_with_window(host, "train", take_window(r), &loss, 1) == GB_OK;
    give_back(r);
    if (!trained) { fprintf(stderr, "%s\n", gb_host_error(host)); break; }
    if (step == 1) { /* the optimizer has laid the parameters side by side: from now on they stay where they are */
      first = (float)loss.as.number;
      CHECK(gb_host_call(host, "weights", NULL, 0, parameters, 2) == GB_OK);
      weight = (const float *)gb_tensor_data(parameters[0].as.tensor);
      bias = (const float *)gb_tensor_data(parameters[1].as.tensor);
      before = distance(weight, bias);
    }
    if (step % 100 == 0)
      printf("step %d  loss %.2e  largest error of a weight %.2e\n", step, loss.as.number,
             (double)distance(weight, bias));
  }
  CHECK(weight && (float)loss.as.number < 1e-3f * first);
  CHECK(weight && before > 1 && distance(weight, bias) < 0.05f); /* the same addresses, other numbers */
  CHECK(weight && gb_tensor_data(parameters[0].as.tensor) == weight);
}

/* A recipe that keeps a window finds it gone, and the host goes on. */
static void keep_a_window(gb_host *host, ring *r) {
  gb_value loss;
  CHECK(call_with_window(host, "keep", take_window(r), NULL, 0) == GB_OK);
  CHECK(gb_host_call(host, "use_kept", NULL, 0, &loss, 1) == GB_ESTATE);
  CHECK(strstr(gb_host_error(host), "stream.lua") && strstr(gb_host_error(host), "loan"));
  CHECK(call_with_window(host, "train", take_window(r), &loss, 1) == GB_OK);
  give_back(r);
}

/* ====} */

int main(int argc, char **argv) {
  static ring r = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
  gb_host_options options;
  gb_host *host;
  gb_value parameters[2] = { gb_value_nil(), gb_value_nil() };
  pthread_t sensor;
  char why[256];
  if (argc != 2) return fputs("usage: stream stream.lua\n", stderr), 2;
  gb_host_options_init(&options, sizeof options);
  options.seed = 1;
  if (gb_host_open(&options, &host, why, sizeof why) != GB_OK) return fprintf(stderr, "%s\n", why), 1;
  if (gb_host_run_file(host, argv[1]) != GB_OK) return fprintf(stderr, "%s\n", gb_host_error(host)), 1;
  if (pthread_create(&sensor, NULL, sense, &r)) return fputs("no thread for the sensor\n", stderr), 1;
  train(host, &r, parameters);
  keep_a_window(host, &r);
  pthread_mutex_lock(&r.mutex);
  r.stop = true;
  pthread_cond_signal(&r.changed);
  pthread_mutex_unlock(&r.mutex);
  pthread_join(sensor, NULL);
  gb_host_close(host);
  if (parameters[0].type == GB_VALUE_TENSOR) { /* tensors outlive their host */
    CHECK(distance(gb_tensor_data(parameters[0].as.tensor), gb_tensor_data(parameters[1].as.tensor)) < 0.05f);
    gb_tensor_release(parameters[0].as.tensor);
    gb_tensor_release(parameters[1].as.tensor);
  }
  return check_report();
}
