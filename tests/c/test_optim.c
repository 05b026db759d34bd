/* test_optim.c - optim/: adoption into slabs, steps against plain formulas in double, 16-bit masters and copies,
 * clipping.
 *
 * Parameters are longer than a chunk of the kernels, so that chunk borders are crossed; every step is compared with a
 * few lines of the textbook. Tolerances are float32 roundings per step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "step/weights.h"
#include "base/float.h"
#include "check.h"
#include "device.h"
#include "step/optim.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

#define LONG 40000

static gb_context *context;

/* {==== helpers ==== */

/* A number in [-1, 1) that depends on the index and a salt. */
static double noise(int64_t i, int salt) {
  uint64_t x = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u ^ ((uint64_t)salt + 7) * 0xD1B54A32D192ED03u;
  x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
  return (double)(x >> 40) / (double)(1 << 23) - 1;
}

static gb_tensor *make(gb_dtype dtype, int ndim, const int64_t *shape, int salt) {
  gb_tensor *wide = NULL, *t = NULL;
  CHECK(gb_tensor_new(context, GB_FLOAT64, ndim, shape, test_device(), &wide) == GB_OK);
  double *numbers = malloc((size_t)(wide->numel + 1) * sizeof *numbers);
  for (int64_t i = 0; i < wide->numel; i++) numbers[i] = noise(i, salt);
  CHECK(gb_tensor_write(wide, numbers, (size_t)wide->numel * sizeof *numbers) == GB_OK);
  free(numbers);
  CHECK(gb_op_cast(context, wide, dtype, &t) == GB_OK);
  gb_tensor_release(wide);
  return t;
}

static gb_tensor *vector(gb_dtype dtype, int64_t n, int salt) { return make(dtype, 1, &n, salt); }

static gb_tensor *parameter(gb_dtype dtype, int64_t n, int salt) {
  gb_tensor *t = vector(dtype, n, salt);
  t->requires_grad = t->is_parameter = true;
  return t;
}

/* Element i in memory order, whatever the dtype. */
static double at(const gb_tensor *t, int64_t i) { return peek(t, i); }

static void give_grad(gb_tensor *p, int salt) {
  gb_tensor *g = vector(p->dtype == GB_FLOAT64 ? GB_FLOAT64 : GB_FLOAT32, p->numel, salt);
  CHECK(gb_tensor_set_grad(p, g) == GB_OK);
  gb_tensor_release(g);
}

static gb_optim_options defaults(gb_optimizer_kind kind) {
  gb_optim_options o;
  gb_optim_options_init(kind, &o, sizeof o);
  return o;
}

/* A hyperparameter by its name: the k-th number of it; 0 where this kind has none. */
static double option(gb_optimizer_kind kind, const gb_optim_options *o, const char *name, int k) {
  const gb_hyper *hyper = gb_optimizer_hyper(kind, name);
  return hyper ? o->numbers.number[hyper->at + k] : 0;
}

static gb_optimizer *adopt(gb_optimizer_kind kind, gb_tensor *const *parameters, int count,
                           const gb_optim_options *options) {
  gb_optimizer *opt = NULL;
  CHECK(gb_optimizer_new(context, kind, &opt) == GB_OK);
  CHECK(gb_optimizer_add_group(opt, parameters, NULL, count, options) == GB_OK);
  return opt;
}

static bool fails_with(gb_status status, gb_status expected, const char *word) {
  if (status == expected && strstr(gb_error(context), word)) return true;
  fprintf(stderr, "status %s, text: %s\n", gb_status_text(status), gb_error(context));
  return false;
}

/* ====} */

/* {==== steps against the textbook ==== */

/* What PyTorch's documentation writes, for one element, in double. */
typedef struct reference { double w, m, v; int64_t steps; } reference;

static void step_reference(reference *r, double g, gb_optimizer_kind kind, const gb_optim_options *o) {
  double lr = option(kind, o, "lr", 0), decay = option(kind, o, "weight_decay", 0),
      momentum = option(kind, o, "momentum", 0);
  double beta1 = option(kind, o, "betas", 0), beta2 = option(kind, o, "betas", 1);
  if (option(kind, o, "maximize", 0)) g = -g;
  if (kind == GB_AdamW || kind == GB_Lion) r->w *= 1 - lr * decay;
  else g += decay * r->w;
  r->steps++;
  if (kind == GB_SGD) {
    if (momentum != 0) {
      r->m = r->steps == 1 ? g : r->m * momentum + (1 - option(kind, o, "dampening", 0)) * g;
      g = option(kind, o, "nesterov", 0) ? g + momentum * r->m : r->m;
    }
    r->w -= lr * g;
    return;
  }
  if (kind == GB_Lion) {
    double along = beta1 * r->m + (1 - beta1) * g;
    r->w -= lr * ((along > 0) - (along < 0));
    r->m = beta2 * r->m + (1 - beta2) * g;
    return;
  }
  r->m = beta1 * r->m + (1 - beta1) * g;
  r->v = beta2 * r->v + (1 - beta2) * g * g;
  double m = r->m / (1 - pow(beta1, (double)r->steps)), v = r->v / (1 - pow(beta2, (double)r->steps));
  r->w -= lr * m / (sqrt(v) + option(kind, o, "eps", 0));
}

/* Ten steps over two parameters, the short one without a gradient at step 4. tolerance: of the parameter after ten
 * steps. */
static void compare(gb_dtype dtype, gb_optimizer_kind kind, gb_optim_options o, double tolerance) {
  gb_tensor *p[2] = { parameter(dtype, LONG, 1), parameter(dtype, 70, 2) };
  reference *r[2];
  for (int k = 0; k < 2; k++) {
    r[k] = calloc((size_t)p[k]->numel, sizeof **r);
    double *w = peek_all(p[k]);
    for (int64_t i = 0; i < p[k]->numel; i++) r[k][i].w = w[i];
    free(w);
  }
  gb_optimizer *opt = adopt(kind, p, 2, &o);
  for (int step = 0; step < 10; step++) {
    CHECK(gb_optimizer_zero_grad(opt) == GB_OK);
    for (int k = 0; k < 2; k++) {
      if (step == 4 && k == 1) continue;
      give_grad(p[k], 10 + 2 * step + k);
      gb_tensor *g = gb_tensor_grad(p[k]);
      double *slope = peek_all(g);
      for (int64_t i = 0; i < p[k]->numel; i++) step_reference(&r[k][i], slope[i], kind, &o);
      free(slope);
      gb_tensor_release(g);
    }
    CHECK(gb_optimizer_step(opt) == GB_OK);
  }
  gb_optim_state state[GB_OPTIM_STATE_TENSORS];
  int64_t steps;
  for (int k = 0; k < 2; k++) {
    double worst = 0, rounding = dtype == GB_BFLOAT16 ? 0x1p-8 : dtype == GB_FLOAT16 ? 0x1p-11 : 0;
    double *w = peek_all(p[k]);
    for (int64_t i = 0; i < p[k]->numel; i++) worst = fmax(worst, fabs(w[i] - r[k][i].w) - rounding * fabs(r[k][i].w));
    free(w);
    CHECK(worst <= tolerance);
    if (worst > tolerance)
      fprintf(stderr, "  %s kind %d parameter %d: off by %g\n", gb_dtype_name(dtype), (int)kind, k, worst);
    int n = gb_optimizer_state(opt, k, state, &steps);
    CHECK(steps == 10 - k);
    for (int i = 0; i < n; i++) {
      double *numbers = peek_all(state[i].tensor);
      bool master = !strcmp(state[i].name, "master");
      for (int64_t j = 0; master && j < p[k]->numel; j += 7) CHECK(fabs(numbers[j] - r[k][j].w) <= tolerance);
      free(numbers);
      gb_tensor_release(state[i].tensor);
    }
    CHECK(n == (kind == GB_SGD ? o.numbers.SGD.momentum != 0 : kind == GB_Lion ? 1 : 2) + gb_is_16bit(dtype));
  }
  gb_optimizer_release(opt);
  for (int k = 0; k < 2; k++) gb_tensor_release(p[k]), free(r[k]);
}

static void test_steps(void) {
  static const gb_dtype dtypes[] = { GB_FLOAT32, GB_FLOAT64, GB_FLOAT16, GB_BFLOAT16 };
  for (size_t d = 0; d < 4; d++) {
    double tolerance = dtypes[d] == GB_FLOAT64 ? 1e-13 : 3e-6;
    gb_optim_options o = defaults(GB_SGD);
    gb_SGD_hyper *sgd = &o.numbers.SGD;
    sgd->lr = 0.1;
    compare(dtypes[d], GB_SGD, o, tolerance);
    sgd->momentum = 0.9, sgd->dampening = 0.3, sgd->weight_decay = 0.01;
    compare(dtypes[d], GB_SGD, o, tolerance);
    sgd->dampening = 0, sgd->nesterov = true, sgd->maximize = true;
    compare(dtypes[d], GB_SGD, o, tolerance);
    o = defaults(GB_Adam);
    gb_Adam_hyper *adam = &o.numbers.Adam;
    adam->lr = 0.01;
    compare(dtypes[d], GB_Adam, o, tolerance);
    adam->beta1 = 0.3, adam->beta2 = 0.95, adam->weight_decay = 0.1, adam->maximize = true;
    compare(dtypes[d], GB_Adam, o, tolerance);
    o = defaults(GB_AdamW);
    o.numbers.AdamW.lr = 0.01, o.numbers.AdamW.weight_decay = 0.1;
    compare(dtypes[d], GB_AdamW, o, tolerance);
    o = defaults(GB_Lion);
    compare(dtypes[d], GB_Lion, o, tolerance);
    o.numbers.Lion.lr = 0.01, o.numbers.Lion.weight_decay = 0.1, o.numbers.Lion.beta1 = 0.4,
        o.numbers.Lion.maximize = true;
    compare(dtypes[d], GB_Lion, o, tolerance);
  }
}

/* ====} */

/* {==== adoption ==== */

static void test_adoption(void) {
  gb_tensor *w = make(GB_FLOAT32, 2, (int64_t[]){ 6, 5 }, 1), *tied, *view;
  w->requires_grad = true;
  CHECK(gb_tensor_detach(w, &tied) == GB_OK);
  tied->requires_grad = true;
  CHECK(gb_tensor_view(w, 2, (int64_t[]){ 5, 6 }, (int64_t[]){ 1, 5 }, 0, &view) == GB_OK);
  double before = at(w, 7);
  gb_optimizer *opt = adopt(GB_SGD, (gb_tensor *[]){ w, tied, w }, 3, NULL);
  const gb_optim_param *params;
  CHECK(gb_optimizer_params(opt, &params) == 1 && params[0].parameter == w && params[0].segment->size == 30);
  CHECK(w->slab && w->slab == tied->slab && w->segment == tied->segment);
  CHECK(w->storage->slab == w->slab->parameters->storage && !w->storage->block);
  CHECK(at(w, 7) == before && gb_data(tied) == gb_data(w) && gb_data(view) == gb_data(w));
  gb_tensor *g = make(GB_FLOAT32, 2, w->shape, 2);
  CHECK(gb_tensor_set_grad(tied, g) == GB_OK); /* the one gradient of both */
  CHECK(gb_optimizer_step(opt) == GB_OK);
  CHECK(fabs(at(w, 7) - (before - 1e-3 * at(g, 7))) < 1e-7 && at(view, 7) == at(w, 7));

  gb_optimizer *other;
  CHECK(gb_optimizer_new(context, GB_Adam, &other) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(other, &w, (const char *[]){ "head.weight" }, 1, NULL), GB_ESTATE,
                   "head.weight"));
  gb_tensor *alias;
  CHECK(gb_tensor_detach(w, &alias) == GB_OK); /* the same memory through a tensor nobody adopted */
  CHECK(fails_with(gb_optimizer_add_group(other, &alias, NULL, 1, NULL), GB_ESTATE, "parameter 1"));
  CHECK(gb_optimizer_groups(other) == 0);

  gb_optimizer_release(opt);
  CHECK(!w->slab && !tied->slab && w->grad && !tied->grad && at(w->grad, 3) == at(g, 3));
  CHECK(fabs(at(w, 7) - (before - 1e-3 * at(g, 7))) < 1e-7);
  CHECK(gb_optimizer_add_group(other, &w, NULL, 1, NULL) == GB_OK); /* and may be adopted again, gradient and all */
  CHECK(!w->grad && w->slab->segments[0].has_grad && at(w->slab->segments[0].grad, 3) == at(g, 3));
  CHECK(gb_data(view) == gb_data(w) && gb_data(tied) == gb_data(w));
  gb_optimizer_release(other);
  for (int i = 0; i < 5; i++) gb_tensor_release((gb_tensor *[]){ w, tied, view, g, alias }[i]);
}

static void test_refusals(void) {
  gb_optimizer *opt;
  CHECK(gb_optimizer_new(context, GB_AdamW, &opt) == GB_OK);
  gb_tensor *whole = parameter(GB_FLOAT32, 30, 1), *part, *matrix, *integer = NULL, *sum = NULL;
  CHECK(gb_tensor_view(whole, 1, (int64_t[]){ 10 }, (int64_t[]){ 1 }, 5, &part) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, &part, NULL, 1, NULL), GB_EINVAL, "clone"));
  CHECK(gb_tensor_view(whole, 2, (int64_t[]){ 5, 6 }, (int64_t[]){ 6, 1 }, 0, &matrix) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, (gb_tensor *[]){ whole, matrix }, NULL, 2, NULL), GB_EINVAL,
                   "share their memory"));
  CHECK(gb_op_cast(context, part, GB_INT64, &integer) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, &integer, NULL, 1, NULL), GB_EDTYPE, "int64"));
  CHECK(GB_RUN(context, add, &sum, .x = whole, .y = whole) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, &sum, NULL, 1, NULL), GB_EINVAL, "leaves"));
  float memory[4] = { 0 };
  gb_tensor *lent;
  CHECK(gb_tensor_over(context, memory, GB_FLOAT32, 1, (int64_t[]){ 4 }, free, NULL, &lent) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, &lent, NULL, 1, NULL), GB_EINVAL, "host"));
  CHECK(fails_with(gb_optimizer_add_group(opt, NULL, NULL, 0, NULL), GB_EINVAL, "empty"));
  gb_optim_options o = defaults(GB_AdamW);
  o.numbers.AdamW.lr = -1;
  CHECK(fails_with(gb_optimizer_add_group(opt, &whole, NULL, 1, &o), GB_EINVAL, "lr"));
  CHECK(!whole->slab && gb_optimizer_groups(opt) == 0);
  CHECK(gb_optimizer_add_group(opt, &whole, NULL, 1, NULL) == GB_OK);
  gb_optimizer_group(opt, 0)->numbers.AdamW.beta2 = 1;
  give_grad(whole, 3);
  CHECK(fails_with(gb_optimizer_step(opt), GB_EINVAL, "betas"));
  gb_optimizer_release(opt);
  for (int i = 0; i < 6; i++) gb_tensor_release((gb_tensor *[]){ whole, part, matrix, integer, sum, lent }[i]);
}

/* Every declaration: the rows cover the numbers once, defaults lie within their bounds and agree with one another,
 * names are not used twice. */
static void test_declarations(void) {
  for (int k = 0; k < GB_OPTIMIZERS; k++) {
    gb_optimizer_kind kind = (gb_optimizer_kind)k;
    const gb_optimizer_info *info = gb_optimizer_info_of(kind);
    gb_optim_options o = defaults(kind);
    int next = 0;
    for (int i = 0; i < info->n_hypers; i++) {
      const gb_hyper *hyper = &info->hypers[i];
      int count = hyper->count;
      CHECK(hyper->at == next && gb_optimizer_hyper(kind, hyper->name) == hyper);
      for (int j = 0; j < count; j++) {
        CHECK(o.numbers.number[hyper->at + j] == hyper->preset[j] && !gb_hyper_refuses(hyper, hyper->preset[j]));
        if (!hyper->bound) continue;
        CHECK((hyper->bound->least < 0 || gb_hyper_refuses(hyper, -1)) && gb_hyper_refuses(hyper, NAN) &&
              gb_hyper_refuses(hyper, INFINITY));
      }
      next += count;
    }
    CHECK(next <= GB_OPTIM_NUMBERS && info->n_states <= GB_OPTIM_STATES && !gb_optimizer_needs(kind, &o.numbers));
    CHECK(gb_optimizer_hyper(kind, "lr") && gb_optimizer_hyper(kind, "maximize") &&
          !gb_optimizer_hyper(kind, "nonsense"));
    CHECK(!gb_optimizer_uses(kind, &o.numbers, info->n_states));
  }
}

/* Hyperparameters that contradict each other are named with their values; a state comes with the setting that needs it,
 * and one that was there before stays as it is while no step uses it. */
static void test_needs(void) {
  gb_tensor *p = parameter(GB_FLOAT32, 3, 1);
  gb_optim_options o = defaults(GB_SGD);
  o.numbers.SGD.nesterov = true;
  gb_optimizer *opt;
  CHECK(gb_optimizer_new(context, GB_SGD, &opt) == GB_OK);
  CHECK(fails_with(gb_optimizer_add_group(opt, &p, NULL, 1, &o), GB_EINVAL, "nesterov needs a momentum above 0"));
  CHECK(strstr(gb_error(context), "momentum 0") && strstr(gb_error(context), "nesterov 1"));
  CHECK(gb_optimizer_add_group(opt, &p, NULL, 1, NULL) == GB_OK && !p->slab->state[0]);
  gb_SGD_hyper *sgd = &gb_optimizer_group(opt, 0)->numbers.SGD;
  give_grad(p, 2);
  CHECK(gb_optimizer_step(opt) == GB_OK && !p->slab->state[0]);
  sgd->momentum = 0.5;
  CHECK(gb_optimizer_step(opt) == GB_OK && p->slab->state[0]);
  double before = at(p->slab->state[0], 0), weight = at(p, 0);
  sgd->momentum = 0;
  CHECK(gb_optimizer_step(opt) == GB_OK && at(p->slab->state[0], 0) == before && at(p, 0) != weight);
  gb_optimizer_release(opt);
  gb_tensor_release(p);
}

/* Strides stay, for a parameter and its gradient; padding and other parameters are left alone. */
static void test_layout(void) {
  gb_tensor *conv, *bias = parameter(GB_FLOAT32, 3, 4);
  static const int64_t shape[] = { 4, 3, 2, 2 }, strides[] = { 12, 1, 6, 3 };
  CHECK(gb_tensor_new_as(context, GB_FLOAT32, 4, shape, strides, test_device(), GB_MEM_PARAMETERS, &conv) == GB_OK);
  for (int i = 0; i < 48; i++) poke(conv, i, i);
  conv->requires_grad = true;
  gb_optimizer *opt = adopt(GB_SGD, (gb_tensor *[]){ conv, bias }, 2, NULL);
  CHECK(conv->slab->segments[1].offset == 64 && conv->slab->elements == 128);
  CHECK(!memcmp(conv->stride, strides, sizeof strides) &&
        !memcmp(conv->slab->segments[0].grad->stride, strides, sizeof strides));
  CHECK(at(conv, 31) == 31);
  gb_tensor *g = make(GB_FLOAT32, 4, shape, 5);
  CHECK(gb_tensor_set_grad(conv, g) == GB_OK);
  /* the same logical element, row-major */
  double expected = 31 - 1e-3 * at(g, (31 / 12 * 3 + 31 % 3) * 4 + 31 % 12 / 3);
  CHECK(gb_optimizer_step(opt) == GB_OK);
  CHECK(fabs(at(conv, 31) - expected) < 1e-5);
  for (int64_t i = 48; i < 64; i++) CHECK(at(conv->slab->parameters, i) == 0);
  gb_optimizer_release(opt);
  for (int i = 0; i < 3; i++) gb_tensor_release((gb_tensor *[]){ conv, bias, g }[i]);
}

/* Two groups with rates of their own, and dtypes mixed in one of them. */
static void test_groups(void) {
  gb_tensor *p[3] = { parameter(GB_FLOAT32, 100, 1), parameter(GB_BFLOAT16, 100, 2), parameter(GB_FLOAT64, 100, 3) };
  gb_tensor *q = parameter(GB_FLOAT32, 9, 4);
  gb_optim_options o = defaults(GB_SGD);
  o.numbers.SGD.lr = 0.5;
  gb_optimizer *opt = adopt(GB_SGD, p, 3, &o);
  o.numbers.SGD.lr = 0.25;
  CHECK(gb_optimizer_add_group(opt, &q, NULL, 1, &o) == GB_OK);
  CHECK(gb_optimizer_groups(opt) == 2 && p[0]->slab != p[1]->slab && p[1]->slab->gradients->dtype == GB_FLOAT32);
  double before = at(q, 3), first = at(p[0], 3);
  for (int i = 0; i < 3; i++) give_grad(p[i], 9);
  give_grad(q, 9);
  CHECK(gb_optimizer_step(opt) == GB_OK);
  CHECK(fabs(at(q, 3) - (before - 0.25 * noise(3, 9))) < 1e-6 &&
        fabs(at(p[0], 3) - (first - 0.5 * noise(3, 9))) < 1e-6);
  gb_optimizer_release(opt);
  for (int i = 0; i < 3; i++) gb_tensor_release(p[i]);
  gb_tensor_release(q);
}

/* Whatever allocation fails while parameters are adopted, they stay as they were. */
static void test_no_memory(void) {
  gb_tensor *p[2] = { parameter(GB_BFLOAT16, 100, 1), parameter(GB_FLOAT32, 30, 2) };
  bool done = false;
  for (uint64_t n = 1; !done && n < 100; n++) {
    void *data = gb_data(p[0]);
    gb_optimizer *opt;
    CHECK(gb_optimizer_new(context, GB_Adam, &opt) == GB_OK);
    gb_pool_fail_after(gb_context_pool(context, test_device()), n);
    gb_status status = gb_optimizer_add_group(opt, p, NULL, 2, NULL);
    gb_pool_fail_after(gb_context_pool(context, test_device()), 0);
    CHECK(status == GB_OK || status == GB_EMEMORY);
    if (status == GB_EMEMORY) CHECK(!p[0]->slab && gb_data(p[0]) == data && fabs(at(p[1], 4) - noise(4, 2)) < 1e-6);
    done = n > 40;
    gb_optimizer_release(opt);
  }
  for (int i = 0; i < 2; i++) gb_tensor_release(p[i]);
}

/* ====} */

/* {==== copies and masters ==== */

static bool copy_is_right(gb_tensor *p, gb_dtype dtype) {
  gb_tensor *copy, *fresh = NULL;
  if (gb_weight_get(context, p, dtype, &copy) != GB_OK) return false;
  gb_set_grad_enabled(context, false);
  CHECK(gb_op_cast(context, p, dtype, &fresh) == GB_OK);
  gb_set_grad_enabled(context, true);
  bool same = copy->dtype == dtype && copy->ndim == p->ndim && !copy->node;
  double *is = peek_all(copy), *should_be = peek_all(fresh);
  for (int64_t i = 0; same && i < p->numel; i++) same = is[i] == should_be[i];
  free(is);
  free(should_be);
  gb_tensor_release(copy);
  gb_tensor_release(fresh);
  return same;
}

static void test_copies(void) {
  gb_tensor *p[2] = { parameter(GB_FLOAT32, LONG, 1), parameter(GB_FLOAT32, 77, 2) };
  CHECK(gb_weight_is_cached(p[0]) && copy_is_right(p[0], GB_FLOAT16)); /* before there is an optimizer */
  gb_optimizer *opt = adopt(GB_AdamW, p, 2, NULL);
  for (int step = 0; step < 2; step++) {
    for (int k = 0; k < 2; k++) CHECK(copy_is_right(p[k], GB_FLOAT16) && copy_is_right(p[k], GB_BFLOAT16));
    CHECK(p[0]->copies[1].tensor->storage->slab == p[0]->slab->copy[1]->storage);
    for (int k = 0; k < 2; k++) give_grad(p[k], 5 + k);
    uint64_t version = gb_tensor_version(p[0]), copied = gb_tensor_version(p[0]->copies[1].tensor);
    CHECK(gb_optimizer_step(opt) == GB_OK);
    CHECK(gb_tensor_version(p[0]) == version + 1 && p[0]->copies[1].version == version + 1);
    /* no cast was needed */
    CHECK(copy_is_right(p[0], GB_BFLOAT16) && gb_tensor_version(p[0]->copies[1].tensor) == copied);
  }
  gb_set_grad_enabled(context, false);
  /* stale at once */
  CHECK(gb_apply_(context, GB_OP_fill, &p[1], 1, &(gb_attr){ .given = true, .number = 3 }) == GB_OK);
  gb_set_grad_enabled(context, true);
  CHECK(copy_is_right(p[1], GB_BFLOAT16));
  gb_tensor *view, *copy;
  CHECK(gb_tensor_view(p[0], 1, (int64_t[]){ 10 }, (int64_t[]){ 3 }, 100, &view) == GB_OK);
  CHECK(gb_weight_is_cached(view) && gb_weight_get(context, view, GB_BFLOAT16, &copy) == GB_OK);
  CHECK(copy->stride[0] == 3 &&
        at(copy, 3) == (double)gb_bfloat16_to_float(gb_float_to_bfloat16((float)at(p[0], 103))));
  gb_tensor_release(copy);
  gb_optimizer_release(opt);
  CHECK(!p[0]->copies[0].tensor && copy_is_right(p[0], GB_BFLOAT16));
  for (int i = 0; i < 3; i++) gb_tensor_release((gb_tensor *[]){ p[0], p[1], view }[i]);
}

/* A 16-bit parameter that is loaded between steps takes its master along; elsewhere masters keep the bits below the
 * rounding. */
static void test_masters(void) {
  gb_tensor *p = parameter(GB_BFLOAT16, 100, 1);
  gb_optim_options o = defaults(GB_SGD);
  o.numbers.SGD.lr = 0x1p-12;
  gb_optimizer *opt = adopt(GB_SGD, &p, 1, &o);
  gb_tensor *one = vector(GB_FLOAT32, 100, 0);
  for (int i = 0; i < 100; i++) poke(one, i, 1);
  double before = at(p, 9);
  for (int step = 0; step < 4; step++) {
    CHECK(gb_tensor_set_grad(p, one) == GB_OK && gb_optimizer_step(opt) == GB_OK);
  }
  gb_optim_state state[GB_OPTIM_STATE_TENSORS];
  CHECK(gb_optimizer_state(opt, 0, state, NULL) == 1 && !strcmp(state[0].name, "master"));
  CHECK(fabs(at(state[0].tensor, 9) - (before - 0x1p-10)) < 1e-7);
  poke(p, 5, 2); /* somebody loads one element */
  gb_tensor_bump(p);
  CHECK(gb_optimizer_step(opt) == GB_OK);
  CHECK(at(state[0].tensor, 5) == 2 - 0x1p-12 && fabs(at(state[0].tensor, 9) - (before - 5 * 0x1p-12)) < 1e-7);
  gb_tensor_release(state[0].tensor);
  gb_optimizer_release(opt);
  gb_tensor_release(one);
  gb_tensor_release(p);
}

/* ====} */

/* {==== clipping ==== */

static double norm_of(gb_tensor *const *p, int count, double type) {
  double sum = 0;
  for (int k = 0; k < count; k++) {
    gb_tensor *g = gb_tensor_grad(p[k]);
    if (!g) continue;
    double *numbers = peek_all(g);
    for (int64_t i = 0; i < g->numel; i++)
      sum = isinf(type) ? fmax(sum, fabs(numbers[i])) : sum + pow(fabs(numbers[i]), type);
    free(numbers);
    gb_tensor_release(g);
  }
  return isinf(type) ? sum : pow(sum, 1 / type);
}

static void test_clipping(void) {
  gb_tensor *p[4] = { parameter(GB_FLOAT32, LONG, 1), parameter(GB_BFLOAT16, 300, 2), parameter(GB_FLOAT32, 50, 3),
                      parameter(GB_FLOAT16, 20, 4) };
  gb_optimizer *opt = adopt(GB_SGD, p, 2, NULL); /* the other two belong to nobody */
  for (int k = 0; k < 3; k++) give_grad(p[k], 5 + k);
  gb_tensor *half = vector(GB_FLOAT16, 20, 8);
  CHECK(gb_tensor_set_grad(p[3], half) == GB_OK);
  double norm, types[] = { 2, 1, 3, INFINITY };
  for (int i = 0; i < 4; i++) {
    double expected = norm_of(p, 4, types[i]);
    CHECK(gb_clip_grad_norm(context, (gb_tensor *[]){ p[0], p[1], p[0], p[2], p[3] }, 5, 1e9, types[i], &norm) ==
          GB_OK);
    CHECK(fabs(norm - expected) <= 1e-9 * expected);
  }
  double first = at(p[1]->slab->segments[0].grad, 7), full = norm_of(p, 4, 2);
  CHECK(gb_clip_grad_norm(context, p, 4, 2, 2, &norm) == GB_OK && fabs(norm - full) <= 1e-9 * full);
  CHECK(fabs(norm_of(p, 4, 2) - 2) < 1e-4 && fabs(at(p[1]->slab->segments[0].grad, 7) - first * 2 / full) < 1e-7);
  CHECK(gb_clip_grad_value(context, p, 4, 0.001) == GB_OK);
  CHECK(fabs(norm_of(p, 4, INFINITY) - 0.001) < 1e-6);
  CHECK(gb_optimizer_zero_grad(opt) == GB_OK);
  CHECK(gb_clip_grad_norm(context, p, 2, 1, 2, &norm) == GB_OK && norm == 0);
  give_grad(p[0], 5);
  poke(p[0]->slab->segments[0].grad, 20000, NAN);
  double kept = at(p[0]->slab->segments[0].grad, 3);
  gb_tensor *finite = NULL; /* asked for: an error, before anything is changed */
  CHECK(fails_with(gb_clip_grad_norm_tensor(context, p, 2, 1, 2, true, &finite), GB_EINVAL, "nan") && !finite);
  CHECK(at(p[0]->slab->segments[0].grad, 3) == kept);
  CHECK(gb_clip_grad_norm(context, p, 2, 1, 2, &norm) == GB_OK && isnan(norm) &&
        isnan(at(p[0]->slab->segments[0].grad, 3)));
  CHECK(gb_clip_grad_norm(context, p, 2, 1, INFINITY, &norm) == GB_OK && isnan(norm));
  CHECK(fails_with(gb_clip_grad_norm(context, p, 2, -1, 2, &norm), GB_EINVAL, "max_norm"));
  CHECK(fails_with(gb_clip_grad_value(context, p, 2, 0), GB_EINVAL, "above 0"));
  gb_optimizer_release(opt);
  for (int k = 0; k < 4; k++) gb_tensor_release(p[k]);
  gb_tensor_release(half);
}

/* Norms, steps and copies are the same bits for any number of threads. */
static void test_threads(void) {
  double norms[2];
  float last[2][64];
  for (int run = 0; run < 2; run++) {
    CHECK(gb_set_num_threads(context, run ? 3 : 1) == GB_OK);
    gb_tensor *p[2] = { parameter(GB_FLOAT32, 5 * LONG, 1), parameter(GB_FLOAT32, 1000, 2) };
    gb_optimizer *opt = adopt(GB_AdamW, p, 2, NULL);
    for (int step = 0; step < 3; step++) {
      for (int k = 0; k < 2; k++) give_grad(p[k], 4 + step + k);
      CHECK(gb_clip_grad_norm(context, p, 2, 1, 2, &norms[run]) == GB_OK && gb_optimizer_step(opt) == GB_OK);
    }
    for (int i = 0; i < 64; i++) last[run][i] = (float)at(p[0], 3001 * i);
    gb_optimizer_release(opt);
    for (int k = 0; k < 2; k++) gb_tensor_release(p[k]);
  }
  CHECK(norms[0] == norms[1] && !memcmp(last[0], last[1], sizeof last[0]));
}

/* ====} */

int main(void) {
  context = open_on_device();
  test_steps();
  test_adoption();
  test_refusals();
  test_declarations();
  test_needs();
  test_layout();
  test_groups();
  test_no_memory();
  test_copies();
  test_masters();
  test_clipping();
  test_threads();
  gb_memory_stats stats;
  gb_memory_get_stats(context, &stats);
  CHECK(stats.current_total == 0); /* nothing leaks */
  gb_context_close(context);
  return check_report();
}
