/* test_device.c - the backend's table as the engine uses it, on the device that GIBBOUS_TEST_DEVICE names: what is
 * written is there in order, the host is at most one step ahead, and what a capture forbids is refused with a
 * reason. */
#include "device.h"

enum { STEPS = 64, BYTES = 1 << 20 };

/* Bytes of the host may change as soon as write has returned, and reads are ordered behind it. */
static void test_writes(gb_backend *b) {
  unsigned char *host = malloc(BYTES), *back = malloc(BYTES);
  void *device = b->alloc(b->state, BYTES, 256), *other = b->alloc(b->state, BYTES, 256);
  for (int run = 1; run <= 40; run++) {
    memset(host, run, BYTES);
    CHECK(b->write(b->state, device, host, BYTES) == GB_OK);
    memset(host, 255, BYTES);
    CHECK(b->write(b->state, other, host, 8) == GB_OK);
    if (run % 8) continue;
    CHECK(b->read(b->state, back, device, BYTES) == GB_OK && back[0] == run && back[BYTES / 2] == run &&
          back[BYTES - 1] == run);
    CHECK(b->read(b->state, back, other, 8) == GB_OK && back[0] == 255);
  }
  b->free(b->state, device, BYTES);
  b->free(b->state, other, BYTES);
  free(host);
  free(back);
}

/* Each step posts its number; how many had not come when the step after it was issued. */
static int behind(gb_backend *b, int64_t *posted, bool paced) {
  int64_t *numbers = b->alloc(b->state, STEPS * sizeof *numbers, 256);
  int missing = 0;
  memset(posted, 0, STEPS * sizeof *posted);
  for (int64_t step = 0; step < STEPS; step++) {
    int64_t number = step + 1;
    CHECK(b->write(b->state, numbers + step, &number, sizeof number) == GB_OK);
    CHECK(b->post(b->state, posted + step, numbers + step, sizeof number) == GB_OK);
    if (paced) CHECK(b->pace(b->state) == GB_OK);
    if (step > 0) missing += posted[step - 1] != step;
  }
  CHECK(b->synchronize(b->state) == GB_OK);
  for (int64_t step = 0; step < STEPS; step++) CHECK(posted[step] == step + 1);
  b->free(b->state, numbers, STEPS * sizeof *numbers);
  return missing;
}

static void test_lead(gb_backend *b) {
  int64_t *posted = b->pin(b->state, STEPS * sizeof *posted);
  gb_device_info info;
  const char *late = getenv("GIBBOUS_CUDA_LATE");
  CHECK(b->describe(b->state, &info) == GB_OK);
  CHECK(behind(b, posted, true) == 0);
  /* how late a GPU is nobody knows */
  bool runs_late = !strcmp(info.name, "emulated on the CPU") && !(late && !strcmp(late, "0"));
  CHECK(behind(b, posted, false) > 0 || !runs_late);
  b->unpin(b->state, posted);
}

static void test_refusals(gb_context *context, gb_backend *b) {
  int64_t number = 1, *device = b->alloc(b->state, sizeof number, 256);
  void *graph = NULL;
  bool there = true;
  CHECK(b->write(b->state, device, &number, sizeof number) == GB_OK && b->capture_begin(b->state) == GB_OK);
  CHECK(b->write(b->state, device, &number, sizeof number) == GB_ESTATE &&
        strstr(gb_error(context), "while a graph is captured"));
  CHECK(b->read(b->state, &number, device, sizeof number) == GB_ESTATE && b->synchronize(b->state) == GB_ESTATE);
  CHECK(b->arrive(b->state, true, &there) == GB_ESTATE && b->arrive(b->state, false, &there) == GB_OK && !there);
  CHECK(b->fetch(b->state, device, b->state, device, sizeof number) == GB_ESTATE);
  CHECK(b->pace(b->state) == GB_OK); /* steps are paced by their replays */
  CHECK(b->clear(b->state, device, sizeof number) == GB_OK);
  CHECK(b->capture_end(b->state, &graph) == GB_OK && graph); /* what was refused did not spoil it */
  CHECK(b->read(b->state, &number, device, sizeof number) == GB_OK && number == 1);
  CHECK(b->replay(b->state, graph, 0, 0) == GB_OK && b->read(b->state, &number, device, sizeof number) == GB_OK &&
        number == 0);
  b->graph_close(b->state, graph);
  b->free(b->state, device, sizeof number);
}

/* There and back, and written over at once on both sides. */
static void test_fetch(gb_context *context, gb_backend *b) {
  gb_device second = { GB_CUDA, 1 };
  if (b->devices < 2) {
    CHECK(gb_context_open_device(context, second) == GB_EDEVICE && strstr(gb_error(context), "there are 1"));
    return;
  }
  CHECK(gb_context_open_device(context, second) == GB_OK && gb_context_open_device(context, second) == GB_OK);
  CHECK(gb_context_open_device(context, (gb_device){ GB_CUDA, (int16_t)b->devices }) == GB_EDEVICE);
  CHECK(gb_context_open_device(context, (gb_device){ GB_CUDA, GB_DEVICES_MOST }) == GB_EDEVICE);
  gb_backend *other = gb_context_backend(context, second);
  int64_t *here = b->alloc(b->state, sizeof *here, 256), *away = other->alloc(other->state, sizeof *away, 256),
      wrong = 0;
  for (int64_t run = 1; run <= STEPS; run++) {
    int64_t back = 0;
    CHECK(b->write(b->state, here, &run, sizeof run) == GB_OK &&
          other->fetch(other->state, away, b->state, here, sizeof run) == GB_OK);
    CHECK(b->clear(b->state, here, sizeof run) == GB_OK &&
          b->fetch(b->state, here, other->state, away, sizeof run) == GB_OK);
    CHECK(other->clear(other->state, away, sizeof run) == GB_OK &&
          b->read(b->state, &back, here, sizeof back) == GB_OK);
    wrong += back != run;
  }
  CHECK(wrong == 0);
  b->free(b->state, here, sizeof *here);
  other->free(other->state, away, sizeof *away);
}

/* A process that torchrun started as the second one of two opens the second device, and the first one where that is
 * asked for. */
static void test_own_device(int there) {
  static const char *const job[][2] = { { "RANK", "1" }, { "WORLD_SIZE", "2" }, { "LOCAL_RANK", "1" } };
  for (int i = 0; i < 3; i++) setenv(job[i][0], job[i][1], 1);
  gb_context *context = open_on_device();
  gb_device device, first = { GB_CUDA, 0 };
  CHECK(gb_device_parse(context, "cuda", &device) == GB_OK && device.index == (there > 1));
  CHECK((gb_context_backend(context, first) == NULL) == (there > 1));
  CHECK(gb_device_parse(context, "cuda:0", &device) == GB_OK && device.index == 0);
  CHECK(gb_context_backend(context, first) && context->devices[GB_CUDA] == there);
  gb_context_close(context);
  setenv("LOCAL_RANK", "31", 1);
  context = open_on_device();
  CHECK(gb_device_parse(context, "cuda:0", &device) == GB_OK);
  CHECK((gb_device_parse(context, "cuda", &device) == GB_OK) == (there == 1));
  gb_context_close(context);
  for (int i = 0; i < 3; i++) unsetenv(job[i][0]);
  static const char *const mpi[] = { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK" };
  for (int i = 0; i < 3; i++) setenv(mpi[i], job[i][1], 1);
  context = open_on_device();
  CHECK(gb_device_parse(context, "cuda", &device) == GB_OK && device.index == 0);
  gb_context_close(context);
  for (int i = 0; i < 3; i++) unsetenv(mpi[i]);
}

int main(void) {
  gb_context *context = open_on_device();
  gb_backend *backend = gb_context_backend(context, test_device());
  CHECK(backend);
  if (backend) test_writes(backend);
  if (backend && test_device().type == GB_CUDA) {
    test_lead(backend);
    test_refusals(context, backend);
    test_fetch(context, backend);
    test_own_device(context->devices[GB_CUDA]);
  }
  gb_context_close(context);
  return check_report();
}
