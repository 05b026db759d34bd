/* frames.c - a program with a loop of its own, sixty frames a second, in which a recipe trains beside it in a thread.
 * The loop shows how far training has come, cancels it as a player would who closes the menu, and resumes it later from
 * the checkpoint that the cancelled run wrote.
 *
 *   frames frames.lua FOLDER        FOLDER is where the checkpoint goes; the recipe can write nowhere else */
#include <gibbous_lua.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { FPS = 60, STEPS = 1000, CANCEL_AT = 300, REST_FRAMES = 15, MOST_FRAMES = FPS * 120 };

/* {==== The trainer: a host in a thread ==== */

typedef struct trainer {
  gb_host *host;
  pthread_t thread;
  bool resume;
  atomic_bool running;
  gb_status status;            /* how the run ended */
  gb_tensor *weights;          /* what it gave, or NULL */
  pthread_mutex_t mutex;       /* guards what follows: training writes it, the loop reads it */
  int64_t first, step;         /* of this run: the first and the last step heard of */
  double loss;
} trainer;

/* Called by the training thread at each step. */
static void on_event(void *user, const gb_event *event) {
  trainer *t = user;
  pthread_mutex_lock(&t->mutex);
  if (t->first == 0) t->first = event->step; /* the event of step 0 says that training begins */
  t->step = event->step;
  t->loss = event->loss;
  pthread_mutex_unlock(&t->mutex);
}

static gb_status open_trainer(trainer *t, const char *recipe, const char *folder, char *why, size_t size) {
  gb_host_options options;
  gb_host_options_init(&options, sizeof options);
  options.sandbox = GB_SANDBOX_FILES;
  options.root = folder;
  options.threads = 1; /* the other cores belong to the frames */
  options.on_event = on_event;
  options.user = t;
  gb_status status = gb_host_open(&options, &t->host, why, size);
  if (status != GB_OK) return status;
  status = gb_host_run_file(t->host, recipe);
  if (status != GB_OK) snprintf(why, size, "%s", gb_host_error(t->host));
  return status;
}

/* One run of the recipe, to its end or until it is stopped. */
static void run(trainer *t) {
  gb_value in[3] = { gb_value_integer(STEPS), gb_value_string("aim.checkpoint"), gb_value_boolean(t->resume) }, out;
  t->first = 0;
  t->weights = NULL;
  t->status = gb_host_call(t->host, "train", in, 3, &out, 1);
  if (t->status == GB_OK) t->weights = out.as.tensor;
  else if (t->status != GB_EINTERRUPT) fprintf(stderr, "%s\n", gb_host_error(t->host));
}

static void *run_thread(void *argument) {
  trainer *t = argument;
  run(t);
  atomic_store(&t->running, false);
  return NULL;
}

static bool start(trainer *t, bool resume) {
  t->resume = resume;
  atomic_store(&t->running, true);
  return pthread_create(&t->thread, NULL, run_thread, t) == 0;
}

/* ====} */

/* {==== The loop ==== */

/* What a frame shows, as of its beginning. */
typedef struct view { int64_t step; double loss; } view;

static view look(trainer *t) {
  pthread_mutex_lock(&t->mutex);
  view v = { t->step, t->loss };
  pthread_mutex_unlock(&t->mutex);
  return v;
}

/* Wait for the time of the next frame; gives by how many milliseconds this frame is late. */
static double wait_for_frame(struct timespec *next) {
  struct timespec now;
  next->tv_nsec += 1000000000L / FPS;
  if (next->tv_nsec >= 1000000000L) next->tv_nsec -= 1000000000L, next->tv_sec++;
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, NULL);
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)(now.tv_sec - next->tv_sec) + 1e-6 * (double)(now.tv_nsec - next->tv_nsec);
}

typedef enum act { TRAINING, CANCELLING, RESTING, RESUMED, DONE } act;

/* The program: train, cancel, rest, resume, and draw all the while. */
static act loop(trainer *t) {
  struct timespec next;
  act now = TRAINING;
  int frame = 0, rest = 0, busy = 0;
  double latest = 0;
  if (!start(t, false)) return now;
  clock_gettime(CLOCK_MONOTONIC, &next);
  for (; frame < MOST_FRAMES && now != DONE; frame++) {
    double late = wait_for_frame(&next);
    view v = look(t);
    latest = late > latest ? late : latest;
    busy += atomic_load(&t->running);
    if (frame % 30 == 0) printf("frame %4d  step %4d of %d  loss %.4f\n", frame, (int)v.step, STEPS, v.loss);
    switch (now) {
      case TRAINING:
        if (v.step < CANCEL_AT) break;
        gb_host_request_stop(t->host);
        now = CANCELLING;
        break;
      case CANCELLING:
        if (atomic_load(&t->running)) break;
        pthread_join(t->thread, NULL);
        CHECK(t->status == GB_EINTERRUPT && t->step >= CANCEL_AT && t->step < STEPS);
        printf("frame %4d  cancelled at step %d\n", frame, (int)t->step);
        now = RESTING;
        break;
      case RESTING:
        if (++rest < REST_FRAMES) break;
        if (!start(t, true)) return now;
        now = RESUMED;
        break;
      case RESUMED:
        if (atomic_load(&t->running)) break;
        pthread_join(t->thread, NULL);
        now = DONE;
        break;
      case DONE: break;
    }
  }
  printf("%d frames, %d of them beside training; the latest began %.1f ms after its time\n", frame, busy, latest);
  return now;
}

/* ====} */

/* A run that was cancelled and resumed ends with the bits of one that was left alone. */
static void check_weights(trainer *t) {
  gb_tensor *resumed = t->weights;
  int64_t first = t->first;
  t->resume = false;
  run(t);
  CHECK(t->status == GB_OK && first >= CANCEL_AT && t->first == 1);
  CHECK(resumed && t->weights && !memcmp(gb_tensor_data(resumed), gb_tensor_data(t->weights),
                                         (size_t)gb_tensor_numel(resumed) * sizeof(float)));
  CHECK(t->step == STEPS && t->loss < 0.01);
  gb_tensor_release(t->weights);
  gb_tensor_release(resumed);
}

int main(int argc, char **argv) {
  static trainer t = { .mutex = PTHREAD_MUTEX_INITIALIZER };
  char why[256];
  if (argc != 3) return fputs("usage: frames frames.lua FOLDER\n", stderr), 2;
  if (open_trainer(&t, argv[1], argv[2], why, sizeof why) != GB_OK) return fprintf(stderr, "%s\n", why), 1;
  CHECK(loop(&t) == DONE);
  CHECK(t.status == GB_OK);
  check_weights(&t);
  gb_host_close(t.host);
  return check_report();
}
