/* test_scaler.c - step/scaler.h: the arithmetic of the scale, stages and their errors, tags, skips and the report,
 * clipping in between. */
#include <math.h>
#include <string.h>

#include "step/scaler.h"
#include "base/float.h"
#include "check.h"
#include "device.h"
#include "tensor/context.h"

static gb_context *context;

/* {==== helpers ==== */

static bool fails_with(gb_status status, gb_status expected, const char *word) {
  if (status == expected && strstr(gb_error(context), word)) return true;
  fprintf(stderr, "status %s, text: %s\n", gb_status_text(status), gb_error(context));
  return false;
}

static gb_tensor *filled(int64_t n, double value) {
  gb_tensor *t = NULL;
  CHECK(gb_tensor_new(context, GB_FLOAT32, 1, &n, test_device(), &t) == GB_OK);
  for (int64_t i = 0; i < n; i++) poke(t, i, value);
  return t;
}

static gb_tensor *parameter(int64_t n, double value) {
  gb_tensor *t = filled(n, value);
  t->requires_grad = true;
  return t;
}

static float at(const gb_tensor *t, int64_t i) { return (float)peek(t, i); }
static float grad_at(gb_tensor *p, int64_t i) { return at(p->slab->segments[p->segment].grad, i); }

static gb_optimizer *sgd(gb_tensor *const *p, const char *const *names, int count, double lr) {
  gb_optimizer *opt = NULL;
  gb_optim_options o;
  gb_optim_options_init(GB_SGD, &o, sizeof o);
  o.numbers.SGD.lr = lr;
  CHECK(gb_optimizer_new(context, GB_SGD, &opt) == GB_OK && gb_optimizer_add_group(opt, p, names, count, &o) == GB_OK);
  return opt;
}

static gb_scaler *scaler_with(double init, double growth, double backoff, int64_t interval) {
  gb_scaler_options o;
  gb_scaler_options_init(&o, sizeof o);
  o.init_scale = init, o.growth_factor = growth, o.backoff_factor = backoff, o.growth_interval = interval,
      o.min_scale = 0;
  gb_scaler *scaler = NULL;
  CHECK(gb_scaler_new(context, &o, &scaler) == GB_OK);
  return scaler;
}

/* Backward of sum(p * slope), scaled unless scaler is NULL: every gradient becomes slope (times the scale). */
static gb_status backward(gb_scaler *scaler, gb_tensor *p, double slope) {
  gb_tensor *product = NULL, *loss = NULL, *scaled = NULL;
  CHECK(gb_op_number(context, GB_OP_mul, p, slope, &product) == GB_OK &&
        GB_RUN(context, sum, &loss, .x = product) == GB_OK);
  if (scaler) CHECK(gb_scaler_scale(scaler, loss, &scaled) == GB_OK);
  gb_status status = gb_backward(scaled ? scaled : loss, NULL, false, false);
  gb_drop(&product);
  gb_drop(&loss);
  gb_drop(&scaled);
  return status;
}

/* What gradients are multiplied with, which the scalars have where the scaler's device is. */
static double inverse_of(gb_scaler *scaler) {
  gb_scale_state scalars = { .inverse = NAN };
  gb_backend *backend = gb_context_backend(context, test_device());
  CHECK(backend->read(backend->state, &scalars, gb_scaler_scale_state(scaler), sizeof scalars) == GB_OK);
  return scalars.inverse;
}

static double scale_of(gb_scaler *scaler) {
  gb_scaler_stats stats;
  CHECK(gb_scaler_get_stats(scaler, &stats) == GB_OK);
  return stats.scale;
}

static int64_t tracker_of(gb_scaler *scaler) {
  gb_scaler_stats stats;
  CHECK(gb_scaler_get_stats(scaler, &stats) == GB_OK);
  return stats.growth_tracker;
}

/* ====} */

/* {==== the scale ==== */

/* One step whose gradients overflow or not, and the update, whose news is waited for: from a device it may come a step
 * late. */
static gb_status drive(gb_scaler *scaler, gb_optimizer *opt, gb_tensor *p, bool overflow) {
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(scaler, p, overflow ? (double)INFINITY : 0) == GB_OK);
  CHECK(gb_scaler_step(scaler, opt) == GB_OK);
  gb_status status = gb_scaler_update(scaler, 0);
  return status == GB_OK ? gb_scaler_settle(scaler) : status;
}

static void test_traces(void) {
  gb_tensor *p = parameter(3, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0);

  gb_scaler *s = scaler_with(4, 2, 0.25, 2);
  CHECK(drive(s, opt, p, false) == GB_OK && scale_of(s) == 4 && tracker_of(s) == 1);
  CHECK(drive(s, opt, p, false) == GB_OK && scale_of(s) == 8 && tracker_of(s) == 0);
  CHECK(drive(s, opt, p, true) == GB_OK && scale_of(s) == 2 && tracker_of(s) == 0);
  gb_scaler_release(s);

  s = scaler_with(128, 2, 0.5, 1);
  for (int i = 0; i < 4; i++) CHECK(drive(s, opt, p, i == 2) == GB_OK);
  CHECK(scale_of(s) == 512);
  gb_scaler_release(s);

  s = scaler_with(1e38, 16, 0.5, 1);
  /* would be infinite: stays */
  CHECK(drive(s, opt, p, false) == GB_OK && scale_of(s) == (double)1e38f && tracker_of(s) == 0);
  gb_scaler_release(s);

  s = scaler_with(65536, 2, 0.5, 2000); /* the collapse that ends in NaN weights elsewhere: never 0, and the inverse
                                           stays finite */
  gb_scaler_options o = *gb_scaler_get_options(s);
  o.max_skips = 0;
  CHECK(gb_scaler_set_options(s, &o) == GB_OK);
  for (int i = 0; i < 17; i++) CHECK(drive(s, opt, p, true) == GB_OK);
  CHECK(scale_of(s) == 0.5);
  for (int i = 17; i < 200; i++) CHECK(drive(s, opt, p, true) == GB_OK);
  CHECK(scale_of(s) == 0x1p-126 && isfinite(inverse_of(s)) && at(p, 0) == 1);
  gb_scaler_release(s);

  s = scaler_with(16, 2, 0.5, 1000); /* an interval lowered below the count grows at the next good step */
  for (int i = 0; i < 5; i++) CHECK(drive(s, opt, p, false) == GB_OK);
  o = *gb_scaler_get_options(s);
  o.growth_interval = 3;
  CHECK(gb_scaler_set_options(s, &o) == GB_OK && drive(s, opt, p, false) == GB_OK && scale_of(s) == 32);
  CHECK(gb_scaler_set_state(s, 64, 2) == GB_OK && scale_of(s) == 64 && drive(s, opt, p, false) == GB_OK &&
        scale_of(s) == 128);
  CHECK(gb_scaler_update(s, 8) == GB_OK && scale_of(s) == 8);
  gb_scaler_release(s);

  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

static void test_hysteresis(void) {
  static const bool found[] = { true, true, true, false, true, false, true, true };
  static const double expected[] = { 1024, 512, 256, 256, 256, 256, 256, 128 };
  gb_tensor *p = parameter(3, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0);
  gb_scaler *s = scaler_with(1024, 2, 0.5, 1000);
  gb_scaler_options o = *gb_scaler_get_options(s);
  o.hysteresis = 2;
  CHECK(gb_scaler_set_options(s, &o) == GB_OK);
  for (int i = 0; i < 8; i++) CHECK(drive(s, opt, p, found[i]) == GB_OK && scale_of(s) == expected[i]);
  o.hysteresis = 0;
  CHECK(fails_with(gb_scaler_set_options(s, &o), GB_EINVAL, "hysteresis"));
  gb_scaler_release(s);
  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

/* What a schedule saw: the last step it was asked about, and whether it was let go of. */
typedef struct seen { int64_t step; bool fails, released; } seen;

static gb_status schedule(gb_context *c, void *user, int64_t step, double *scale) {
  seen *s = user;
  s->step = step;
  *scale = (double)(1 << step);
  return s->fails ? gb_fail(c, GB_ECALLBACK, "no scale today") : GB_OK;
}

static void release_schedule(void *user) { ((seen *)user)->released = true; }

static void test_schedule(void) {
  gb_tensor *p = parameter(3, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0);
  gb_scaler_options o;
  gb_scaler_options_init(&o, sizeof o);
  o.dynamic = false;
  gb_scaler *s;
  seen first = { 0 }, second = { .fails = true };
  CHECK(gb_scaler_new(context, &o, &s) == GB_OK && gb_scaler_set_schedule(s, schedule, &first, release_schedule) ==
        GB_OK);
  CHECK(first.step == 1 && scale_of(s) == 2);
  CHECK(drive(s, opt, p, false) == GB_OK && first.step == 2 && scale_of(s) == 4);
  CHECK(drive(s, opt, p, true) == GB_OK && first.step == 2 && scale_of(s) == 4); /* a skip is no step */
  first.fails = true;
  CHECK(fails_with(drive(s, opt, p, false), GB_ECALLBACK, "no scale today") && first.step == 3 && scale_of(s) == 4);
  first.fails = false;
  CHECK(drive(s, opt, p, false) == GB_OK && first.step == 4 && scale_of(s) == 16);
  CHECK(fails_with(gb_scaler_set_schedule(s, schedule, &second, release_schedule), GB_ECALLBACK, "no scale") &&
        first.released && !second.released);
  gb_scaler_release(s);
  CHECK(second.released);
  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

static void test_bounds(void) {
  gb_tensor *p = parameter(3, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0);
  gb_scaler_options o;
  gb_scaler_options_init(&o, sizeof o);
  o.init_scale = 1, o.max_scale = 3, o.growth_interval = 1, o.max_skips = 20;
  gb_scaler *s;
  CHECK(gb_scaler_new(context, &o, &s) == GB_OK);
  for (int i = 0; i < 3; i++) CHECK(drive(s, opt, p, false) == GB_OK);
  CHECK(scale_of(s) == 3);
  for (int i = 0; i < 19; i++) CHECK(drive(s, opt, p, true) == GB_OK);
  CHECK(scale_of(s) == 0x1p-14);
  CHECK(fails_with(drive(s, opt, p, true), GB_EOVERFLOW, "parameter 1") && strstr(gb_error(context), "20 steps"));
  CHECK(drive(s, opt, p, false) == GB_OK); /* and a good step ends the row */
  gb_scaler_stats stats;
  CHECK(gb_scaler_get_stats(s, &stats) == GB_OK && stats.steps == 4 && stats.skipped == 20 &&
        stats.skipped_in_a_row == 0 && !stats.last_skipped);
  gb_scaler_release(s);

  o.dynamic = false, o.init_scale = 128;
  CHECK(gb_scaler_new(context, &o, &s) == GB_OK);
  CHECK(drive(s, opt, p, true) == GB_OK && drive(s, opt, p, false) == GB_OK && scale_of(s) == 128);
  CHECK(gb_scaler_get_stats(s, &stats) == GB_OK && stats.steps == 1 && stats.skipped == 1 &&
        !strcmp(gb_scaler_report(s), "parameter 1"));
  gb_scaler_release(s);

  gb_scaler *bad;
  o.growth_factor = 1;
  CHECK(fails_with(gb_scaler_new(context, &o, &bad), GB_EINVAL, "growth_factor"));
  o.growth_factor = 2, o.backoff_factor = 1;
  CHECK(fails_with(gb_scaler_new(context, &o, &bad), GB_EINVAL, "backoff_factor"));
  o.backoff_factor = 0.5, o.init_scale = 0;
  CHECK(fails_with(gb_scaler_new(context, &o, &bad), GB_EINVAL, "init_scale"));
  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

/* ====} */

/* {==== one step ==== */

static void test_step(void) {
  gb_tensor *p[2] = { parameter(5, 1), parameter(70, 2) };
  gb_optimizer *opt = sgd(p, (const char *[]){ "a", "b" }, 2, 0.5);
  gb_scaler *s = scaler_with(1024, 2, 0.5, 2000);

  CHECK(backward(s, p[0], 0.25) == GB_OK && grad_at(p[0], 0) == 256);
  /* b has no gradient: untouched */
  CHECK(gb_scaler_step(s, opt) == GB_OK && at(p[0], 4) == 0.875f && at(p[1], 0) == 2);
  CHECK(gb_scaler_update(s, 0) == GB_OK && !gb_scaler_report(s)[0]);

  /* b overflows */
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK && backward(s, p[1], 1e38) == GB_OK);
  uint64_t version = gb_tensor_version(p[0]);
  CHECK(gb_scaler_step(s, opt) == GB_OK && at(p[0], 4) == 0.875f);
  if (test_device().type == GB_CPU) /* elsewhere the host does not wait to know of the skip */
    CHECK(gb_tensor_version(p[0]) == version && p[0]->slab->segments[0].steps == 1 &&
          !strcmp(gb_scaler_report(s), "b"));
  CHECK(gb_scaler_update(s, 0) == GB_OK && scale_of(s) == 512 && !strcmp(gb_scaler_report(s), "b"));

  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK);
  CHECK(gb_scaler_unscale(s, opt) == GB_OK && grad_at(p[0], 0) == 0.25f);
  double norm;
  CHECK(gb_clip_grad_norm(context, p, 2, 1e-3, 2, &norm) == GB_OK && fabs(norm - 0.25 * sqrt(5)) < 1e-9);
  CHECK(gb_scaler_step(s, opt) == GB_OK && fabsf(at(p[0], 0) - (0.875f - 0.5f * 1e-3f / sqrtf(5))) < 1e-7f &&
        gb_scaler_update(s, 0) == GB_OK);

  /* clipped while scaled, stepped without the scaler */
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK);
  CHECK(gb_clip_grad_norm(context, p, 2, 1e9, 2, &norm) == GB_OK && fabs(norm - 0.25 * sqrt(5)) < 1e-9 &&
        grad_at(p[0], 0) == 128);
  CHECK(gb_clip_grad_value(context, p, 2, 0.125) == GB_OK && grad_at(p[0], 0) == 64);
  float before = at(p[0], 0);
  CHECK(gb_optimizer_step(opt) == GB_OK && at(p[0], 0) == before - 0.0625f);

  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK && gb_scaler_unscale(s, opt) == GB_OK);
  poke(p[0]->slab->segments[0].grad, 2, INFINITY); /* broken after unscale_: the norm tells the scaler */
  before = at(p[0], 0);
  CHECK(gb_clip_grad_norm(context, p, 2, 1, 2, &norm) == GB_OK && isinf(norm) && gb_scaler_step(s, opt) == GB_OK &&
        at(p[0], 0) == before);
  CHECK(gb_scaler_update(s, 0) == GB_OK && scale_of(s) == 256);

  gb_scaler_release(s);
  gb_optimizer_release(opt);
  for (int i = 0; i < 2; i++) gb_tensor_release(p[i]);
}

/* How often each step ran. */
static gb_status count_step(void *user, const gb_step_call *call) {
  ((int *)user)[call->step]++;
  return GB_OK;
}

/* Passes over gradients: unscale_ measures on its way, a clip takes that norm where nothing can have changed, and a
 * step clips by itself. */
static void test_passes(void) {
  gb_tensor *p[2] = { parameter(3000, 1), parameter(70, 2) };
  gb_optimizer *opt = sgd(p, NULL, 2, 0.5);
  gb_scaler *s = scaler_with(1024, 2, 0.5, 2000);
  int ran[GB_STEP_COUNT] = { 0 };
  gb_observer observer = { .step = count_step, .user = ran };
  gb_observer_add(context, &observer);
  double norm, full = 0.25 * sqrt(3070);
  gb_tensor *total = NULL;
  int again = test_device().type != GB_CPU; /* there nobody knows whether a clip has written, so the next one
                                               measures */

  CHECK(backward(s, p[0], 0.25) == GB_OK && backward(s, p[1], 0.25) == GB_OK && gb_scaler_unscale(s, opt) == GB_OK);
  CHECK(gb_clip_grad_norm(context, p, 2, 1e9, 2, &norm) == GB_OK && fabs(norm - full) < 1e-9);
  CHECK(ran[GB_STEP_UNSCALE] == 1 && ran[GB_STEP_CHECK] == 0 && ran[GB_STEP_CLIP] == 1);
  CHECK(gb_clip_grad_norm(context, p, 2, 1e9, 2, &norm) == GB_OK && fabs(norm - full) < 1e-9 &&
        ran[GB_STEP_CHECK] == again);
  /* not all of them */
  CHECK(gb_clip_grad_norm(context, p, 1, 1e9, 2, &norm) == GB_OK && ran[GB_STEP_CHECK] == 1 + again);
  CHECK(gb_clip_grad_norm(context, p, 2, 1e9, INFINITY, &norm) == GB_OK && norm == 0.25 &&
        ran[GB_STEP_CHECK] == 2 + again);
  CHECK(gb_scaler_step_clipped(s, opt, 1, 2, &total) == GB_OK && ran[GB_STEP_CHECK] == 2 + 2 * again &&
        ran[GB_STEP_UPDATE] == 1);
  gb_drop(&total);
  CHECK(fabsf(at(p[0], 2999) - (float)(1 - 0.5 * 0.25 / full)) < 1e-7f && gb_scaler_update(s, 0) == GB_OK);

  memset(ran, 0, sizeof ran);
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK &&
        gb_scaler_step_clipped(s, opt, 1, 2, NULL) == GB_OK);
  CHECK(ran[GB_STEP_CHECK] == 1 && ran[GB_STEP_UNSCALE] == 0 && ran[GB_STEP_CLIP] == 0 && ran[GB_STEP_UPDATE] == 1);
  CHECK(fabsf(grad_at(p[0], 7) - (float)(1 / sqrt(3000))) < 1e-7f && grad_at(p[0], 7) == grad_at(p[0], 8) &&
        gb_scaler_update(s, 0) == GB_OK);

  memset(ran, 0, sizeof ran);
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p[0], 0.25) == GB_OK && backward(s, p[1], 0.25) == GB_OK);
  CHECK(gb_scaler_unscale(s, opt) == GB_OK);
  gb_tensor *grad = gb_tensor_grad(p[1]);
  float *numbers = gb_tensor_data(grad); /* from now on nobody counts what is written there */
  if (test_device().type == GB_CPU) numbers[0] = 3, full = sqrt(full * full - 0.0625 + 9);
  CHECK(gb_clip_grad_norm(context, p, 2, 1e9, 2, &norm) == GB_OK && fabs(norm - full) < 1e-9 &&
        ran[GB_STEP_CHECK] == 1);
  gb_tensor_release(grad);

  gb_observer_remove(context, &observer);
  gb_scaler_release(s);
  gb_optimizer_release(opt);
  for (int i = 0; i < 2; i++) gb_tensor_release(p[i]);
}

static void test_stages(void) {
  gb_tensor *p = parameter(5, 1), *q = parameter(5, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0.5), *other = sgd(&q, NULL, 1, 0.5);
  gb_scaler *s = scaler_with(8, 2, 0.5, 2000), *t = scaler_with(8, 2, 0.5, 2000);
  CHECK(fails_with(gb_scaler_unscale(s, opt), GB_ESTATE, "scaler:scale(loss)"));
  CHECK(fails_with(gb_scaler_update(s, 0), GB_ESTATE, "step"));
  CHECK(backward(s, p, 1) == GB_OK);
  CHECK(fails_with(gb_scaler_step(s, other), GB_ESTATE, "has a gradient"));
  CHECK(gb_scaler_unscale(s, opt) == GB_OK && fails_with(gb_scaler_unscale(s, opt), GB_ESTATE, "already"));
  CHECK(backward(s, p, 1) == GB_OK && fails_with(gb_scaler_step(s, opt), GB_ESTATE, "after unscale_()"));
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p, 1) == GB_OK &&
        fails_with(gb_scaler_step(s, opt), GB_ESTATE, "after unscale_()"));
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(NULL, p, 1) == GB_OK);
  CHECK(gb_scaler_step(s, opt) == GB_OK && fails_with(gb_scaler_step(s, opt), GB_ESTATE, "update()"));
  CHECK(fails_with(gb_scaler_unscale(s, opt), GB_ESTATE, "after step()"));
  CHECK(gb_scaler_update(s, 0) == GB_OK);

  CHECK(fails_with(gb_scaler_step(s, opt), GB_ESTATE, "not scaled"));
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p, 1) == GB_OK &&
        fails_with(gb_scaler_step(t, opt), GB_ESTATE, "nothing was scaled"));
  CHECK(backward(t, q, 1) == GB_OK && fails_with(gb_scaler_step(t, opt), GB_ESTATE, "another GradScaler"));
  CHECK(gb_scaler_step(t, other) == GB_OK && gb_scaler_update(t, 0) == GB_OK);
  CHECK(gb_scaler_update(s, 4) == GB_OK && fails_with(gb_scaler_step(s, opt), GB_ESTATE,
                                                      "before the last scaler:update()"));
  CHECK(fails_with(gb_optimizer_step(opt), GB_ESTATE, "before scaler:update()"));
  CHECK(backward(s, p, 1) == GB_OK && fails_with(gb_scaler_step(s, opt), GB_ESTATE, "before and after"));
  CHECK(fails_with(gb_optimizer_step(opt), GB_ESTATE, "before and after"));
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK && backward(s, p, 1) == GB_OK);
  gb_scaler_release(s);
  CHECK(fails_with(gb_optimizer_step(opt), GB_ESTATE, "gone"));
  gb_scaler_release(t);
  gb_optimizer_release(opt);
  gb_optimizer_release(other);
  gb_tensor_release(p);
  gb_tensor_release(q);
}

/* Each optimizer decides its own step; any overflow backs the one scale off. */
static void test_two_optimizers(void) {
  gb_tensor *p = parameter(5, 1), *q = parameter(5, 1);
  gb_optimizer *opt = sgd(&p, (const char *[]){ "p" }, 1, 0.5), *other = sgd(&q, (const char *[]){ "q" }, 1, 0.5);
  gb_scaler *s = scaler_with(8, 2, 0.5, 2000);
  CHECK(backward(s, p, 1) == GB_OK && backward(s, q, NAN) == GB_OK);
  CHECK(gb_scaler_step(s, opt) == GB_OK && gb_scaler_step(s, other) == GB_OK);
  CHECK(at(p, 0) == 0.5f && at(q, 0) == 1 && gb_scaler_update(s, 0) == GB_OK && scale_of(s) == 4 &&
        !strcmp(gb_scaler_report(s), "q"));
  gb_scaler_release(s);
  gb_optimizer_release(opt);
  gb_optimizer_release(other);
  gb_tensor_release(p);
  gb_tensor_release(q);
}

static void test_disabled(void) {
  gb_tensor *p = parameter(5, 1);
  gb_optimizer *opt = sgd(&p, NULL, 1, 0.5);
  gb_scaler_options o;
  gb_scaler_options_init(&o, sizeof o);
  o.enabled = false;
  gb_scaler *s;
  CHECK(gb_scaler_new(context, &o, &s) == GB_OK && scale_of(s) == 1);
  CHECK(backward(s, p, 1) == GB_OK && grad_at(p, 0) == 1);
  CHECK(gb_scaler_unscale(s, opt) == GB_OK && gb_scaler_step(s, opt) == GB_OK && gb_scaler_update(s, 0) == GB_OK &&
        at(p, 0) == 0.5f);
  gb_scaler_release(s);
  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

/* ====} */

int main(void) {
  context = open_on_device();
  test_traces();
  test_hysteresis();
  test_schedule();
  test_bounds();
  test_step();
  test_passes();
  test_stages();
  test_two_optimizers();
  test_disabled();
  gb_memory_stats stats;
  gb_memory_get_stats(context, &stats);
  CHECK(stats.current_total == 0);
  gb_context_close(context);
  return check_report();
}
