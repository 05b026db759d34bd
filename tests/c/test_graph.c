/* test_graph.c - the graph: versions, changes in place with gradients checked numerically, hooks, retained graphs,
 * second derivatives, unused inputs, and chains so long that nothing may recurse over them. */
#include "graph/autograd.h"
#include "engine.h"

static gb_tensor *leaf(gb_context *c, int ndim, const int64_t *shape, uint64_t key) {
  gb_tensor *t = new_noise(c, GB_FLOAT64, ndim, shape, key);
  CHECK(gb_tensor_set_requires_grad(t, true) == GB_OK);
  return t;
}

static gb_tensor *narrow(gb_tensor *x, int dim, int64_t start, int64_t length) {
  gb_tensor *part = NULL;
  CHECK(GB_RUN(gb_tensor_context(x), narrow, &part, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
               .length = gb_attr_int(length)) == GB_OK);
  return part;
}

static void apply_(gb_op op, gb_tensor *x, gb_tensor *y, const gb_attr *attrs) {
  gb_context *c = gb_tensor_context(x);
  gb_status status = gb_apply_(c, op, (gb_tensor *[]){ x, y }, y ? 2 : 1, attrs);
  if (status != GB_OK) fprintf(stderr, "%s\n", gb_error(c));
  CHECK(status == GB_OK);
}

/* sum(x * noise): a scalar in which every element counts differently. x ends. */
static gb_tensor *weigh(gb_tensor *x) {
  gb_tensor *weight = new_noise(gb_tensor_context(x), GB_FLOAT64, x->ndim, x->shape, 77);
  gb_tensor *product = run2(GB_OP_mul, x, weight, NULL), *sum = run1(GB_OP_sum, product, NULL);
  gb_tensor_release(x);
  gb_tensor_release(weight);
  gb_tensor_release(product);
  return sum;
}

/* {==== versions ==== */

static void test_versions(gb_context *c) {
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 6), 1), *view = narrow(x, 1, 1, 2), *other = NULL,
      *clone = run1(GB_OP_clone, x, NULL);
  uint64_t start = gb_tensor_version(x);
  CHECK(gb_tensor_version(view) == start);
  apply_(GB_OP_neg, view, NULL, NULL);
  CHECK(gb_tensor_version(x) == start + 1 && gb_tensor_version(view) == start + 1);
  apply_(GB_OP_add, x, clone, NULL);
  CHECK(gb_tensor_version(view) == start + 2);
  CHECK(gb_tensor_detach(x, &other) == GB_OK);
  apply_(GB_OP_neg, other, NULL, NULL);
  CHECK(gb_tensor_version(x) == start + 3); /* detached, and yet the same memory */
  uint64_t apart = gb_tensor_version(clone);
  apply_(GB_OP_neg, x, NULL, NULL);
  CHECK(gb_tensor_version(clone) == apart);
  float values[24] = { 0 };
  uint64_t before = gb_tensor_version(x);
  CHECK(gb_tensor_write(x, values, sizeof values) == GB_OK && gb_tensor_version(x) > before);
  CHECK(gb_tensor_read(x, values, sizeof values) == GB_OK);
  before = gb_tensor_version(x);
  gb_tensor_release(run1(GB_OP_exp, x, NULL));
  CHECK(gb_tensor_version(x) == before); /* reading changes nothing */
  gb_tensor *all[] = { x, view, other, clone };
  for (int i = 0; i < 4; i++) gb_tensor_release(all[i]);
}

static void test_saved_tensors_are_guarded(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(5), 1), *y = run1(GB_OP_exp, x, NULL), *part = narrow(y, 0, 0, 2),
      *sum = run1(GB_OP_sum, y, NULL);
  bool grad = gb_set_grad_enabled(c, false);
  apply_(GB_OP_neg, part, NULL, NULL); /* exp keeps its result */
  gb_set_grad_enabled(c, grad);
  CHECK(gb_backward(sum, NULL, true, false) == GB_EAUTOGRAD && says(c, "exp") && says(c, "in place") &&
        says(c, "clone"));
  CHECK(gb_tensor_grad(x) == NULL);
  gb_tensor *shifted = run2(GB_OP_add, x, x, NULL), *total = NULL; /* add keeps nothing */
  apply_(GB_OP_neg, shifted, NULL, NULL);
  total = run1(GB_OP_sum, shifted, NULL);
  CHECK(gb_backward(total, NULL, false, false) == GB_OK);
  gb_tensor *g = gb_tensor_grad(x);
  CHECK(at(g, 2) == -2);
  gb_tensor *all[] = { x, y, part, sum, shifted, total, g };
  for (int i = 0; i < 7; i++) gb_tensor_release(all[i]);
}

static void test_leaves_in_place(gb_context *c) {
  gb_tensor *x = leaf(c, 2, SHAPE(3, 3), 1), *view = narrow(x, 0, 0, 1);
  CHECK(gb_apply_(c, GB_OP_neg, &x, 1, NULL) == GB_EAUTOGRAD && says(c, "neg") && says(c, "no_grad"));
  CHECK(gb_apply_(c, GB_OP_neg, &view, 1, NULL) == GB_EAUTOGRAD && says(c, "view"));
  bool grad = gb_set_grad_enabled(c, false);
  double before = at(x, 0);
  CHECK(gb_apply_(c, GB_OP_neg, &view, 1, NULL) == GB_OK && gb_apply_(c, GB_OP_neg, &x, 1, NULL) == GB_OK);
  gb_set_grad_enabled(c, grad);
  CHECK(at(x, 0) == before && gb_tensor_requires_grad(x));
  gb_tensor *expanded = NULL, *row = leaf(c, 2, SHAPE(1, 3), 2), *twice = run2(GB_OP_add, row, row, NULL);
  CHECK(GB_RUN(c, expand, &expanded, .x = twice, .shape = gb_attr_ints(2, SHAPE(4, 3))) == GB_OK);
  CHECK(gb_apply_(c, GB_OP_neg, &expanded, 1, NULL) == GB_EINVAL && says(c, "clone") && says(c, "dim 1"));
  gb_tensor *all[] = { x, view, expanded, row, twice };
  for (int i = 0; i < 5; i++) gb_tensor_release(all[i]);
}

/* ====} */

/* {==== changes in place, against differences ==== */

/* A function of two leaves, x [4, 6] and w [4, 2], to a scalar. */
typedef gb_tensor *(*scalar_fn)(gb_tensor *x, gb_tensor *w);

static gb_tensor *twice(gb_tensor *x) { return run2(GB_OP_add, x, x, NULL); }

static gb_tensor *change_a_view(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = run1(GB_OP_sin, x, NULL), *part = narrow(y, 1, 2, 2);
  apply_(GB_OP_mul, part, w, NULL);
  gb_tensor_release(part);
  return weigh(y);
}

/* The view is read after its base was changed, and the base after the view. */
static gb_tensor *read_both_ways(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = twice(x), *part = narrow(y, 1, 0, 2);
  apply_(GB_OP_sin, y, NULL, NULL);                        /* the base */
  apply_(GB_OP_mul, part, w, NULL);                        /* the view, with the base's new history */
  gb_tensor *cube = run2(GB_OP_mul, part, part, NULL), *from_view = weigh(cube),
      *from_base = weigh(run1(GB_OP_cos, y, NULL));
  gb_tensor *sum = then2(GB_OP_add, from_view, from_base, NULL);
  gb_tensor_release(from_base);
  gb_tensor_release(part);
  gb_tensor_release(y);
  return sum;
}

/* A view of a view, transposed, changed twice. */
static gb_tensor *view_of_a_view(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = twice(x), *part = narrow(y, 1, 1, 4), *turned = run1(GB_OP_t, part, NULL),
      *rows = narrow(turned, 0, 1, 2), *wt = run1(GB_OP_t, w, NULL);
  apply_(GB_OP_mul, rows, wt, NULL);
  apply_(GB_OP_cos, turned, NULL, NULL);
  apply_(GB_OP_add, rows, wt, NULL);
  gb_tensor *sum = weigh(run2(GB_OP_mul, y, y, NULL));
  gb_tensor *all[] = { y, part, turned, rows, wt };
  for (int i = 0; i < 5; i++) gb_tensor_release(all[i]);
  return sum;
}

/* A tensor outside the graph takes in a part that is in it. */
static gb_tensor *copy_into_zeros(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = NULL;
  gb_context *c = gb_tensor_context(x);
  CHECK(gb_tensor_new(c, GB_FLOAT64, 2, SHAPE(4, 8), test_device(), &y) == GB_OK);
  apply_(GB_OP_fill, y, NULL, &(gb_attr){ .given = true, .number = 2 });
  gb_tensor *left = narrow(y, 1, 0, 6), *right = narrow(y, 1, 6, 2), *overlap = narrow(y, 1, 5, 2);
  apply_(GB_OP_copy, left, x, NULL);
  apply_(GB_OP_copy, right, w, NULL);
  apply_(GB_OP_mul, overlap, w, NULL);
  gb_tensor *sum = weigh(run1(GB_OP_sin, y, NULL));
  gb_tensor *all[] = { y, left, right, overlap };
  for (int i = 0; i < 4; i++) gb_tensor_release(all[i]);
  return sum;
}

/* What was written over has no gradient. */
static gb_tensor *fill_a_view(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = run1(GB_OP_sin, x, NULL), *part = narrow(y, 0, 1, 2), *column = narrow(y, 1, 0, 2);
  apply_(GB_OP_fill, part, NULL, &(gb_attr){ .given = true, .number = 3 });
  apply_(GB_OP_add, column, w, NULL);
  gb_tensor *sum = weigh(run2(GB_OP_mul, y, y, NULL));
  gb_tensor_release(y);
  gb_tensor_release(part);
  gb_tensor_release(column);
  return sum;
}

/* y *= y's own part: the operand is read before it is overwritten. */
static gb_tensor *operand_overlaps(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = run1(GB_OP_sin, x, NULL), *a = narrow(y, 1, 0, 4), *b = narrow(y, 1, 2, 4),
      *first = narrow(y, 1, 0, 2);
  apply_(GB_OP_mul, a, b, NULL);
  apply_(GB_OP_add, first, w, NULL);
  gb_tensor *sum = weigh(run1(GB_OP_cos, y, NULL));
  gb_tensor *all[] = { y, a, b, first };
  for (int i = 0; i < 4; i++) gb_tensor_release(all[i]);
  return sum;
}

/* A row without a derivative writes over the graph's values too. */
static gb_tensor *round_a_view(gb_tensor *x, gb_tensor *w) {
  gb_tensor *y = twice(x), *part = narrow(y, 0, 0, 1), *column = narrow(y, 1, 1, 2);
  apply_(GB_OP_floor, part, NULL, NULL);
  apply_(GB_OP_mul, column, w, NULL);
  gb_tensor *sum = weigh(run1(GB_OP_sin, y, NULL));
  gb_tensor_release(y);
  gb_tensor_release(part);
  gb_tensor_release(column);
  return sum;
}

static const struct { const char *name; scalar_fn fn; } functions[] = {
  { "change a view", change_a_view }, { "read both ways", read_both_ways }, { "a view of a view", view_of_a_view },
  { "copy into zeros", copy_into_zeros }, { "fill a view", fill_a_view }, { "the operand overlaps", operand_overlaps },
  { "round a view", round_a_view },
};

static double value_at(gb_context *c, scalar_fn fn, int which, int64_t i, double step) {
  gb_tensor *x = new_noise(c, GB_FLOAT64, 2, SHAPE(4, 6), 1), *w = new_noise(c, GB_FLOAT64, 2, SHAPE(4, 2), 2);
  poke(which ? w : x, i, peek(which ? w : x, i) + step);
  bool grad = gb_set_grad_enabled(c, false);
  double value = take_item(fn(x, w));
  gb_set_grad_enabled(c, grad);
  gb_tensor_release(x);
  gb_tensor_release(w);
  return value;
}

static void test_in_place_gradients(gb_context *c) {
  for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
    gb_tensor *x = leaf(c, 2, SHAPE(4, 6), 1), *w = leaf(c, 2, SHAPE(4, 2), 2), *y = functions[f].fn(x, w);
    gb_status status = gb_backward(y, NULL, false, false);
    if (status != GB_OK) fprintf(stderr, "%s: %s\n", functions[f].name, gb_error(c));
    CHECK(status == GB_OK);
    gb_tensor *grads[] = { gb_tensor_grad(x), gb_tensor_grad(w) };
    for (int which = 0; which < 2; which++) {
      CHECK(grads[which] != NULL);
      for (int64_t i = 0; grads[which] && i < grads[which]->numel; i++) {
        double h = 0x1p-17,
            numeric = (value_at(c, functions[f].fn, which, i, h) - value_at(c, functions[f].fn, which, i, -h)) /
            (2 * h);
        bool close = near(at(grads[which], i), numeric, 1e-7);
        if (!close)
          fprintf(stderr, "%s: gradient %d at %d is %.10g, differences say %.10g\n", functions[f].name, which, (int)i,
                  at(grads[which], i), numeric);
        CHECK(close);
      }
      gb_tensor_release(grads[which]);
    }
    gb_tensor_release(x);
    gb_tensor_release(w);
    gb_tensor_release(y);
  }
}

/* ====} */

/* {==== backward and grad ==== */

static void test_backward_errors(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(4), 1), *plain = new_noise(c, GB_FLOAT64, 1, SHAPE(4), 2),
      *y = run2(GB_OP_mul, x, x, NULL), *sum = run1(GB_OP_sum, y, NULL);
  CHECK(gb_backward(plain, NULL, false, false) == GB_EAUTOGRAD && says(c, "does not require"));
  CHECK(gb_backward(y, NULL, false, false) == GB_EAUTOGRAD && says(c, "shape 4"));
  CHECK(gb_backward(y, sum, false, false) == GB_ESHAPE && says(c, "scalar") && says(c, "4"));
  CHECK(gb_backward(sum, NULL, false, false) == GB_OK);
  CHECK(gb_backward(sum, NULL, false, false) == GB_EAUTOGRAD && says(c, "retain_graph"));
  CHECK(gb_tensor_set_requires_grad(y, false) == GB_EAUTOGRAD && says(c, "detach"));
  gb_tensor *index = NULL;
  CHECK(gb_tensor_new(c, GB_INT64, 1, SHAPE(4), test_device(), &index) == GB_OK);
  CHECK(gb_tensor_set_requires_grad(index, true) == GB_EDTYPE && says(c, "int64"));
  CHECK(gb_tensor_set_grad(x, sum) == GB_ESHAPE);
  gb_tensor *all[] = { x, plain, y, sum, index };
  for (int i = 0; i < 5; i++) gb_tensor_release(all[i]);
}

static void test_retain_graph_accumulates(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(4), 1), *y = run1(GB_OP_exp, x, NULL), *sum = run1(GB_OP_sum, y, NULL);
  for (int i = 1; i <= 3; i++) {
    CHECK(gb_backward(sum, NULL, i < 3, false) == GB_OK);
    gb_tensor *g = gb_tensor_grad(x);
    CHECK(near(at(g, 1), i * at(y, 1), 1e-12));
    gb_tensor_release(g);
  }
  gb_memory_stats stats;
  gb_memory_get_stats(c, &stats);
  CHECK(stats.current[GB_MEM_SAVED] == 0); /* what the last walk freed */
  CHECK(gb_tensor_set_grad(x, NULL) == GB_OK && gb_tensor_grad(x) == NULL);
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_tensor_release(sum);
}

/* The op of a layer's gradients, called as backward does not: whatever is missing or does not fit is an error, and no
 * memory is written. */
static void test_layer_gradients_are_checked(gb_context *c) {
  gb_tensor *g = new_noise(c, GB_FLOAT32, 2, SHAPE(3, 4), 1), *x = new_noise(c, GB_FLOAT32, 2, SHAPE(3, 5), 2),
      *w = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 5), 3);
  gb_tensor *sum = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 5), 4), *odd = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 6), 5),
      *half = new_noise(c, GB_FLOAT16, 2, SHAPE(4, 5), 6);
  gb_tensor *before = run1(GB_OP_clone, sum, NULL), *turned = run1(GB_OP_t, odd, NULL);
  const gb_attr none = { .given = false }, f32 = gb_attr_int(GB_FLOAT32), yes = gb_attr_int(true);
  const struct { gb_tensor *in[4], *dweight_in; gb_attr dx, dweight,
                 add; const char *activation; gb_status status; } cases[] = {
    { { g, x, w }, NULL, f32, f32, none, "none", GB_OK },       { { g }, NULL, none, none, none, "none", GB_OK },
    { { g, x, w }, sum, none, none, none, "none", GB_EINVAL },  { { g }, NULL, f32, none, none, "none", GB_EINVAL },
    { { g }, NULL, none, f32, none, "none", GB_EINVAL },
        { { g, x, w }, NULL, f32, none, none, "relu", GB_EINVAL },
    { { g, x, w }, NULL, none, f32, yes, "none", GB_EINVAL },   { { g, x, w }, NULL, f32, none, none, "?", GB_EINVAL },
    { { g, g, w }, NULL, f32, f32, none, "none", GB_ESHAPE },
        { { g, x, odd }, NULL, f32, f32, none, "none", GB_ESHAPE },
    { { g, x, w, g }, NULL, f32, none, none, "relu", GB_ESHAPE }, { { g, x }, odd, none, f32, yes, "none", GB_ESHAPE },
    { { g, x }, half, none, f32, yes, "none", GB_EINVAL },
        { { g, odd }, turned, none, f32, yes, "none", GB_ESHAPE },
    { { g, x, w }, w, none, f32, yes, "none", GB_EINVAL },
        { { g, x, w }, NULL, gb_attr_int(GB_INT64), none, none, "none", GB_EDTYPE },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gb_tensor *out[3] = { NULL };
    gb_attr attrs[] = { gb_attr_text(cases[i].activation), cases[i].dx, cases[i].dweight, none, cases[i].add };
    gb_tensor *const given[] = { NULL, cases[i].dweight_in, NULL };
    CHECK(gb_apply_out(c, GB_OP_linear_backward, cases[i].in, 4, attrs, given, out) == cases[i].status);
    for (int k = 0; k < 3; k++) gb_tensor_release(out[k]);
  }
  for (int i = 0; i < 20; i++) CHECK(at(sum, i) == at(before, i));
  gb_tensor *all[] = { g, x, w, sum, odd, half, before, turned };
  for (int i = 0; i < 8; i++) gb_tensor_release(all[i]);
}

/* An op writes into a given tensor the bits that it would have made one of, and counts a version; what cannot be is an
 * error. */
static void test_given_outputs(gb_context *c) {
  gb_tensor *x = new_noise(c, GB_FLOAT32, 2, SHAPE(3, 4), 1), *y = new_noise(c, GB_FLOAT32, 2, SHAPE(3, 4), 2);
  gb_tensor *to = new_noise(c, GB_FLOAT32, 2, SHAPE(3, 4), 3), *whole = run2(GB_OP_add, x, y, NULL),
      *out[GB_MAX_OUT] = { NULL };
  uint64_t version = gb_tensor_version(to);
  CHECK(gb_apply_out(c, GB_OP_add, (gb_tensor *[]){ x, y }, 2, NULL, &to, out) == GB_OK && out[0] == to);
  for (int i = 0; i < 12; i++) CHECK(at(to, i) == at(whole, i));
  CHECK(gb_tensor_version(to) == version + 1);
  gb_drop(&out[0]);

  gb_tensor *shorter = new_noise(c, GB_FLOAT32, 1, SHAPE(4), 4), *wide = new_noise(c, GB_FLOAT64, 2, SHAPE(3, 4), 5);
  gb_tensor *tall = new_noise(c, GB_FLOAT32, 2, SHAPE(4, 3), 6), *turned = run1(GB_OP_t, tall, NULL),
      *leaf_x = leaf(c, 2, SHAPE(3, 4), 7), *leaf_to = NULL;
  CHECK(gb_tensor_new(c, GB_FLOAT64, 2, SHAPE(3, 4), test_device(), &leaf_to) == GB_OK);
  const struct { gb_op op; gb_tensor *x, *to; gb_status status; const char *says; } cases[] = {
    { GB_OP_exp, x, shorter, GB_ESHAPE, "3x4" },    { GB_OP_exp, x, wide, GB_EINVAL, "float32" },
    { GB_OP_exp, x, turned, GB_EINVAL, "dense" },   { GB_OP_exp, x, x, GB_EINVAL, "shares memory" },
    { GB_OP_exp, leaf_x, leaf_to, GB_EINVAL, "no_grad" }, { GB_OP_t, x, tall, GB_EINVAL, "does not write" },
    { GB_OP_flatten, x, to, GB_EINVAL, "other ops" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gb_tensor *in = cases[i].x, *given = cases[i].to;
    version = gb_tensor_version(given);
    CHECK(gb_apply_out(c, cases[i].op, &in, 1, NULL, &given, out) == cases[i].status && says(c, cases[i].says));
    CHECK(out[0] == NULL && gb_tensor_version(given) == version);
  }
  gb_tensor *all[] = { x, y, to, whole, shorter, wide, tall, turned, leaf_x, leaf_to };
  for (int i = 0; i < 10; i++) gb_tensor_release(all[i]);
}

/* d2/dx2 of sum(x^3) is 6 x; dropout has no second derivative and says so. */
static void test_second_derivatives(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(5), 1), *square = run2(GB_OP_mul, x, x, NULL),
      *cube = then2(GB_OP_mul, square, x, NULL), *sum = run1(GB_OP_sum, cube, NULL);
  gb_tensor *first = NULL, *second = NULL;
  CHECK(gb_grad(&sum, NULL, 1, &x, 1, false, true, false, &first) == GB_OK);
  gb_tensor *total = run1(GB_OP_sum, first, NULL);
  CHECK(gb_grad(&total, NULL, 1, &x, 1, false, false, false, &second) == GB_OK);
  for (int i = 0; i < 5; i++)
    CHECK(near(at(first, i), 3 * at(x, i) * at(x, i), 1e-12) && near(at(second, i), 6 * at(x, i), 1e-12));
  CHECK(gb_tensor_grad(x) == NULL); /* gb_grad accumulates nowhere */

  gb_tensor *soft = run1(GB_OP_dropout, x, NULL), *soft_sum = run1(GB_OP_sum, soft, NULL), *none = NULL;
  CHECK(gb_grad(&soft_sum, NULL, 1, &x, 1, false, true, false, &none) == GB_EAUTOGRAD && none == NULL &&
        says(c, "dropout") && says(c, "second derivative"));
  gb_tensor *all[] = { x, cube, sum, first, second, total, soft, soft_sum };
  for (int i = 0; i < 8; i++) gb_tensor_release(all[i]);
}

static void test_grad_of_some(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(3), 1), *unused = leaf(c, 1, SHAPE(3), 2), *y = run1(GB_OP_sin, x, NULL),
      *z = run2(GB_OP_mul, y, y, NULL), *sum = run1(GB_OP_sum, z, NULL);
  gb_tensor *grads[3] = { NULL }, *inputs[] = { x, unused, y };
  CHECK(gb_grad(&sum, NULL, 1, inputs, 3, true, false, false, grads) == GB_EAUTOGRAD && says(c, "input 2") &&
        says(c, "allow_unused"));
  CHECK(!grads[0] && !grads[1] && !grads[2]);
  CHECK(gb_grad(&sum, NULL, 1, inputs, 3, true, false, true, grads) == GB_OK);
  CHECK(grads[0] && !grads[1] && grads[2]);
  for (int i = 0; i < 3; i++) {
    CHECK(near(at(grads[2], i), 2 * at(y, i), 1e-12)); /* of a result on the way */
    CHECK(near(at(grads[0], i), 2 * at(y, i) * cos(at(x, i)), 1e-12));
  }
  CHECK(!gb_tensor_grad(x) && !gb_tensor_grad(unused));
  gb_tensor *plain = new_noise(c, GB_FLOAT64, 1, SHAPE(3), 3), *none = NULL, *two[] = { sum, z },
      *ups[] = { NULL, plain }, *again = NULL;
  CHECK(gb_grad(&sum, NULL, 1, &plain, 1, true, false, true, &none) == GB_EAUTOGRAD && says(c, "input 1"));
  /* two results at once: their gradients add */
  CHECK(gb_grad(two, ups, 2, &x, 1, true, false, false, &again) == GB_OK);
  for (int i = 0; i < 3; i++) CHECK(near(at(again, i), (1 + at(plain, i)) * 2 * at(y, i) * cos(at(x, i)), 1e-12));
  gb_tensor *all[] = { x, unused, y, z, sum, grads[0], grads[2], plain, again };
  for (int i = 0; i < 9; i++) gb_tensor_release(all[i]);
}

static void test_nothing_recorded_under_no_grad(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(3), 1);
  CHECK(gb_set_grad_enabled(c, false) == true && !gb_is_grad_enabled(c));
  gb_tensor *y = run1(GB_OP_exp, x, NULL);
  CHECK(gb_set_grad_enabled(c, true) == false);
  CHECK(!y->node && !gb_tensor_requires_grad(y));
  gb_tensor *z = run2(GB_OP_floor_divide, x, x, NULL); /* not differentiable: no history */
  CHECK(!z->node);
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_tensor_release(z);
}

/* ====} */

/* {==== hooks ==== */

typedef struct calls { int count, released; double seen; bool fails, replaces; } calls;

static gb_status note(gb_context *context, void *user, gb_tensor **grad) {
  calls *k = user;
  k->count++;
  k->seen = at(*grad, 0);
  if (k->fails) return gb_fail(context, GB_ECALLBACK, "the hook does not like it");
  if (!k->replaces) return GB_OK;
  gb_tensor *more = NULL;
  GB_TRY(gb_op_number(context, GB_OP_mul, *grad, 10, &more));
  gb_tensor_release(*grad);
  *grad = more;
  return GB_OK;
}

static void let_go(void *user) { ((calls *)user)->released++; }

static void test_hooks(gb_context *c) {
  calls on_leaf = { 0 }, on_result = { .replaces = true }, second = { 0 }, bad = { .fails = true };
  int64_t id[4];
  gb_tensor *x = leaf(c, 1, SHAPE(3), 1), *y = run2(GB_OP_add, x, x, NULL), *sum = run1(GB_OP_sum, y, NULL);
  CHECK(gb_tensor_register_hook(x, note, &on_leaf, let_go, &id[0]) == GB_OK);
  CHECK(gb_tensor_register_hook(y, note, &on_result, let_go, &id[1]) == GB_OK);
  CHECK(gb_tensor_register_hook(y, note, &second, let_go, &id[2]) == GB_OK);
  CHECK(gb_tensor_retain_grad(y) == GB_OK);
  CHECK(gb_backward(sum, NULL, true, false) == GB_OK);
  /* in order, each sees what the last one left */
  CHECK(on_result.count == 1 && on_result.seen == 1 && second.count == 1 && second.seen == 10);
  CHECK(on_leaf.count == 1 && on_leaf.seen == 20); /* x is used twice: its hook sees the sum, once */
  gb_tensor *gx = gb_tensor_grad(x), *gy = gb_tensor_grad(y);
  CHECK(at(gx, 0) == 20 && at(gy, 0) == 10);
  gb_tensor_remove_hook(y, id[1]);
  CHECK(on_result.released == 1);
  gb_tensor_remove_hook(y, id[1]); /* once more does nothing */
  CHECK(gb_tensor_set_grad(x, NULL) == GB_OK && gb_backward(sum, NULL, true, false) == GB_OK);
  gb_tensor_release(gx);
  gx = gb_tensor_grad(x);
  CHECK(at(gx, 0) == 2 && on_result.count == 1 && second.count == 2);

  CHECK(gb_tensor_register_hook(y, note, &bad, let_go, &id[3]) == GB_OK);
  CHECK(gb_backward(sum, NULL, false, false) == GB_ECALLBACK && says(c, "does not like it"));
  CHECK(c->modes == &c->default_modes && c->modes->grad);
  gb_tensor *plain = new_noise(c, GB_FLOAT64, 1, SHAPE(3), 3);
  CHECK(gb_tensor_register_hook(plain, note, &bad, let_go, &id[3]) == GB_EAUTOGRAD);
  gb_tensor *all[] = { sum, y, x, gx, gy, plain };
  for (int i = 0; i < 6; i++) gb_tensor_release(all[i]);
  CHECK(on_leaf.released == 1 && second.released == 1 && bad.released == 1);
}

/* A tensor that retains its gradient and is gone when backward comes is not written to. */
static void test_retained_and_gone(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(3), 1), *y = run1(GB_OP_exp, x, NULL), *sum = run1(GB_OP_sum, y, NULL);
  CHECK(gb_tensor_retain_grad(y) == GB_OK);
  gb_tensor_release(y);
  CHECK(gb_backward(sum, NULL, false, false) == GB_OK);
  gb_tensor_release(x);
  gb_tensor_release(sum);
}

/* ====} */

/* {==== custom functions ==== */

static gb_status triple(gb_context *context, void *user, gb_tensor *const *out, int n_out, gb_tensor **in, int n_in) {
  (void)n_out, (void)n_in;
  ((calls *)user)->count++;
  return gb_op_number(context, GB_OP_mul, out[0], 3, &in[0]);
}

static void test_custom_function(gb_context *c) {
  calls k = { 0 };
  gb_tensor *x = leaf(c, 1, SHAPE(3), 1), *y = new_noise(c, GB_FLOAT64, 1, SHAPE(3), 1);
  CHECK(gb_custom_function(c, "triple", &x, 1, &y, 1, triple, &k, let_go) == GB_OK);
  gb_tensor *sum = run1(GB_OP_sum, y, NULL);
  CHECK(gb_backward(sum, NULL, false, false) == GB_OK);
  gb_tensor *g = gb_tensor_grad(x);
  CHECK(k.count == 1 && at(g, 0) == 3);
  gb_tensor *all[] = { x, y, sum, g };
  for (int i = 0; i < 4; i++) gb_tensor_release(all[i]);
  CHECK(k.released == 1);
}

/* ====} */

/* {==== long chains ==== */

/* x -> -x -> x -> ...: `count` nodes, of which nobody holds a result but the last. */
static gb_tensor *long_chain(gb_tensor *x, gb_op op, int64_t count) {
  gb_context *c = gb_tensor_context(x);
  gb_tensor_retain(x);
  gb_status status = GB_OK;
  for (int64_t i = 0; status == GB_OK && i < count; i++) {
    gb_tensor *out[GB_MAX_OUT] = { NULL };
    status = gb_apply(c, op, &x, 1, NULL, out);
    gb_tensor_release(x);
    x = out[0];
  }
  CHECK(status == GB_OK);
  return x;
}

/* On a device a tenth of that, since an emulated launch is slow: a walk by recursion overflows the stack there too. */
static void test_a_million_nodes(gb_context *c) {
  int nodes = test_device().type == GB_CPU ? 1000000 : 100000;
  gb_tensor *x = leaf(c, 1, SHAPE(1), 1), *y = long_chain(x, GB_OP_neg, nodes);
  CHECK(at(y, 0) == at(x, 0));
  CHECK(gb_backward(y, NULL, false, false) == GB_OK);
  gb_tensor *g = gb_tensor_grad(x);
  CHECK(at(g, 0) == 1);
  gb_tensor_release(y);
  gb_tensor_release(g);
  gb_tensor *dropped = long_chain(x, GB_OP_neg, nodes); /* let go of without a walk */
  gb_tensor_release(dropped);
  gb_tensor *saved = long_chain(x, GB_OP_sin, nodes / 20), *grad = NULL; /* each node keeps its input */
  CHECK(gb_grad(&saved, NULL, 1, &x, 1, false, false, false, &grad) == GB_OK && isfinite(at(grad, 0)));
  gb_tensor_release(saved);
  gb_tensor_release(grad);
  gb_tensor_release(x);
}

/* Every node twice an input: 2^40 paths, 40 nodes. */
static void test_shared_paths_are_walked_once(gb_context *c) {
  gb_tensor *x = leaf(c, 1, SHAPE(2), 1), *y = x;
  gb_tensor_retain(x);
  for (int i = 0; i < 40; i++) y = then2(GB_OP_add, y, y, NULL);
  gb_tensor *sum = run1(GB_OP_sum, y, NULL);
  CHECK(gb_backward(sum, NULL, false, false) == GB_OK);
  gb_tensor *g = gb_tensor_grad(x);
  CHECK(at(g, 0) == 0x1p40);
  gb_tensor_release(y);
  gb_tensor_release(sum);
  gb_tensor_release(g);
  gb_tensor_release(x);
}

/* ====} */

/* Inner ops of interpolate, which C can reach: a scale that leads out of the row is refused, forward and backward. */
static void test_resample_scale(gb_context *c) {
  gb_tensor *x = leaf(c, 3, SHAPE(2, 4, 6), 1), *y = NULL;
  static const double bad[] = { 4.1, 46e6, 1e300, INFINITY };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const gb_attr scale = gb_attr_num(bad[i]), linear = gb_attr_text("linear"), yes = gb_attr_int(1);
    const gb_attr size = gb_attr_ints(2, SHAPE(2, 2)), one = gb_attr_int(2), dim = gb_attr_int(2);
    CHECK(GB_RUN(c, resample_planes, &y, .x = x, .size = size, .mode = linear, .antialias = yes, .scale = scale) ==
          GB_EINVAL && says(c, "scale") && says(c, "or 0"));
    CHECK(GB_RUN(c, resample, &y, .x = x, .dim = dim, .size = one, .mode = linear, .antialias = yes,
                 .scale = scale) == GB_EINVAL && says(c, "scale"));
    CHECK(GB_RUN(c, resample_planes_backward, &y, .grad = x, .size = size, .mode = linear, .scale = scale) ==
          GB_EINVAL && says(c, "scale"));
    CHECK(GB_RUN(c, resample_backward, &y, .grad = x, .dim = dim, .size = one, .scale = scale) == GB_EINVAL);
  }
  CHECK(GB_RUN(c, resample_planes, &y, .x = x, .size = gb_attr_ints(2, SHAPE(2, 3)), .scale = gb_attr_num(2)) == GB_OK);
  gb_tensor_release(y);
  gb_tensor_release(x);
}

int main(void) {
  gb_context *c = open_context(2, NULL);
  void (*const tests[])(gb_context *) = {
    test_versions, test_saved_tensors_are_guarded, test_leaves_in_place, test_in_place_gradients, test_backward_errors,
        test_retain_graph_accumulates,
    test_layer_gradients_are_checked, test_given_outputs, test_second_derivatives,
    test_grad_of_some, test_nothing_recorded_under_no_grad, test_hooks, test_retained_and_gone, test_custom_function,
    test_a_million_nodes, test_shared_paths_are_walked_once, test_resample_scale,
  };
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    tests[i](c);
    if (live_bytes(c) != 0) fprintf(stderr, "test %d leaves %zu bytes\n", (int)i, live_bytes(c));
    CHECK(live_bytes(c) == 0);
  }
  gb_context_close(c);
  return check_report();
}
