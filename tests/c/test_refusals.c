/* test_refusals.c - the C API of the engine with what cannot be meant: NULL, numbers out of range, tensors of another
 * context, attributes of no type. Each is a status, or nothing where none is returned; then every op that has a name in
 * gb, with arguments that are thrown together. */
#include "engine.h"
#include "tensor/dlpack.h"

/* Statuses of a call with NULL for one argument or all of them. */
static void test_null(void) {
  gb_context *c = open_context(1, NULL), *nowhere = NULL;
  gb_tensor *x = new_noise(c, GB_FLOAT32, 1, SHAPE(4), 1), *out = NULL;
  struct DLManagedTensorVersioned *managed = NULL,
      struct_of = { .version = { 1, 0 }, .dl_tensor = { .ndim = 2, .device = { GB_DLPACK_CPU, 0 },
                                                                                                  .dtype =
                                                                                                      { GB_DLPACK_FLOAT,
                                                                                                      32, 1 } } };
  float memory[4] = { 0 };
  const gb_status refused[] = {
    gb_context_open(NULL, NULL), gb_set_num_threads(NULL, 1), gb_context_load_backend(NULL, "x"),
        gb_context_load_backend(c, NULL),
    gb_synchronize(NULL, CPU), gb_tensor_new(NULL, GB_FLOAT32, 0, NULL, CPU, &out),
        gb_tensor_new(c, GB_FLOAT32, 0, NULL, CPU, NULL),
    gb_tensor_new(c, GB_FLOAT32, 2, NULL, CPU, &out), gb_tensor_scalar(NULL, GB_FLOAT32, 1, &out),
        gb_tensor_scalar(c, GB_FLOAT32, 1, NULL),
    gb_tensor_wrap(NULL, memory, GB_FLOAT32, 0, NULL, NULL, NULL, &out),
        gb_tensor_wrap(c, memory, GB_FLOAT32, 0, NULL, NULL, NULL, NULL),
    gb_tensor_wrap(c, memory, GB_FLOAT32, 1, NULL, NULL, NULL, &out),
        gb_tensor_wrap(c, NULL, GB_FLOAT32, 0, NULL, NULL, NULL, &out),
    gb_tensor_revoke(NULL), gb_tensor_to_dlpack(NULL, &managed), gb_tensor_to_dlpack(x, NULL),
        gb_tensor_from_dlpack(NULL, &struct_of, &out),
    gb_tensor_from_dlpack(c, NULL, &out), gb_tensor_from_dlpack(c, &struct_of, NULL),
        gb_tensor_from_dlpack(c, &struct_of, &out),
    gb_tensor_write(NULL, memory, 16), gb_tensor_write(x, NULL, 16), gb_tensor_read(NULL, memory, 16),
        gb_tensor_read(x, NULL, 16),
    gb_tensor_item(NULL, NULL, NULL), gb_tensor_set_requires_grad(NULL, true), gb_tensor_set_grad(NULL, x),
        gb_backward(NULL, NULL, false, false),
    gb_grad(NULL, NULL, 1, &x, 1, false, false, false, &out), gb_grad(&x, NULL, 0, &x, 1, false, false, false, &out),
    gb_grad(&x, NULL, -1, &x, 1, false, false, false, &out), gb_grad(&x, NULL, 1, NULL, 1, false, false, false, &out),
    gb_grad(&x, NULL, 1, &x, 1, false, false, false, NULL), gb_grad(&x, NULL, 1, &x, -1, false, false, false, &out),
    gb_grad((gb_tensor *[]){ x, NULL }, NULL, 2, &x, 1, false, false, false, &out),
        gb_grad(&x, NULL, 1, (gb_tensor *[]){ NULL }, 1, false, false, false, &out),
    gb_apply(NULL, GB_OP_neg, &x, 1, NULL, &out), gb_apply(c, GB_OP_neg, NULL, 1, NULL, &out),
        gb_apply(c, GB_OP_neg, &x, -1, NULL, &out),
    gb_apply(c, GB_OP_COUNT, &x, 1, NULL, &out), gb_apply(c, (gb_op)-1, &x, 1, NULL, &out),
        gb_apply_(c, GB_OP_COUNT, &x, 1, NULL),
    gb_apply_(NULL, GB_OP_neg, &x, 1, NULL),
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    if (refused[i] != GB_EINVAL) fprintf(stderr, "  call %zu gave %s\n", i, gb_status_text(refused[i]));
    CHECK(refused[i] == GB_EINVAL);
  }
  CHECK(!out && !managed && !nowhere);

  gb_memory_stats stats;
  uint64_t seed = 9, offset = 9;
  memset(&stats, 1, sizeof stats);
  gb_memory_get_stats(NULL, &stats);
  CHECK(stats.current_total == 0);
  gb_memory_get_stats(c, NULL);
  gb_memory_get_device_stats(NULL, CPU, &stats);
  gb_memory_get_device_stats(c, (gb_device){ 99, -3 }, &stats);
  gb_memory_get_device_stats(c, CPU, NULL);
  gb_memory_reset_peaks(NULL);
  gb_memory_empty_cache(NULL);
  gb_manual_seed(NULL, 1);
  gb_get_rng_state(NULL, &seed, &offset);
  CHECK(seed == 0 && offset == 0);
  gb_get_rng_state(c, NULL, NULL);
  gb_interrupt(NULL);
  gb_interrupt_clear(NULL);
  gb_tensor_retain(NULL);
  gb_tensor_release(NULL);
  CHECK(*gb_error(NULL) && gb_error_code(NULL) == GB_EINVAL && !*gb_error_op(NULL) && gb_get_num_threads(NULL) == 0);
  CHECK(!gb_set_grad_enabled(NULL, true) && !gb_is_grad_enabled(NULL));
  CHECK(!gb_tensor_context(NULL) && gb_tensor_dtype(NULL) == GB_DTYPE_NONE && gb_tensor_ndim(NULL) == 0 &&
        !gb_tensor_shape(NULL));
  CHECK(!gb_tensor_strides(NULL) && gb_tensor_numel(NULL) == 0 && gb_tensor_size(NULL, 0) == 0 &&
        !gb_tensor_is_contiguous(NULL));
  CHECK(!gb_tensor_data(NULL) && !gb_tensor_requires_grad(NULL) && !gb_tensor_grad(NULL) &&
        gb_tensor_device(NULL).type == GB_CPU);
  CHECK(gb_tensor_size(x, -1) == 4 && gb_tensor_size(x, 1) == 0 && gb_tensor_size(x, -2) == 0 &&
        gb_tensor_size(x, INT32_MIN) == 0);
  CHECK(gb_dtype_from_name(NULL) == GB_DTYPE_NONE && gb_dtype_bytes((gb_dtype)77) == 0 && gb_dtype_name((gb_dtype)-9) &&
        !gb_dtype_is_float((gb_dtype)99));
  CHECK(gb_status_text((gb_status)-1) && gb_status_text((gb_status)1000));
  gb_tensor_release(x);
  gb_context_close(c);
}

static void *take_memory(void *user, size_t bytes, size_t alignment) {
  (void)user, (void)bytes, (void)alignment;
  return NULL;
}

static void test_options(void) {
  gb_context_options good, o;
  gb_context *c = NULL;
  gb_context_options_init(NULL, 100);
  gb_context_options_init(&good, sizeof good);
  static const size_t sizes[] = { 0, 1, 8, sizeof good - 1, sizeof good - 3 };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    o = good;
    o.size = sizes[i];
    CHECK(gb_context_open(&o, &c) == GB_EINVAL && !c);
  }
  o = good;
  o.threads = -1;
  CHECK(gb_context_open(&o, &c) == GB_EINVAL && !c);
  o.threads = 1000000;
  CHECK(gb_context_open(&o, &c) == GB_EINVAL && !c);
  o = good;
  o.alloc = take_memory;
  CHECK(gb_context_open(&o, &c) == GB_EINVAL && !c);
}

/* Tensors of two contexts do not meet. */
static void test_other_context(void) {
  gb_context *c = open_context(1, NULL), *d = open_context(1, NULL);
  gb_tensor *x = new_noise(c, GB_FLOAT32, 1, SHAPE(4), 1), *y = new_noise(d, GB_FLOAT32, 1, SHAPE(4), 1), *out = NULL;
  CHECK(gb_apply(c, GB_OP_add, (gb_tensor *[]){ x, y }, 2, NULL, &out) == GB_EINVAL && !out &&
        strstr(gb_error(c), "another context"));
  CHECK(gb_apply(d, GB_OP_neg, &x, 1, NULL, &out) == GB_EINVAL &&
        gb_apply_(c, GB_OP_copy, (gb_tensor *[]){ x, y }, 2, NULL) == GB_EINVAL);
  CHECK(gb_tensor_set_grad(x, y) == GB_EINVAL && gb_tensor_set_requires_grad(x, true) == GB_OK &&
        gb_backward(x, y, false, false) == GB_EINVAL);
  CHECK(gb_grad(&x, NULL, 1, &y, 1, false, false, false, &out) == GB_EINVAL && strstr(gb_error(c), "another context"));
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_context_close(c);
  gb_context_close(d);
}

/* {==== Every op with arguments thrown together ==== */

static uint64_t state = 1;
static uint64_t next(uint64_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % below;
}

/* A small tensor of any dtype and shape; indices are small too. */
static gb_tensor *any_tensor(gb_context *c) {
  int64_t shape[GB_MAX_NDIM];
  int ndim = (int)next(5);
  gb_tensor *t = NULL;
  for (int i = 0; i < ndim; i++) shape[i] = (int64_t)next(4);
  CHECK(gb_tensor_new(c, (gb_dtype)next(GB_DTYPE_COUNT), ndim, shape, test_device(), &t) == GB_OK);
  gb_attr value = { .given = true, .number = (double)next(4) };
  if (t) CHECK(gb_apply_(c, GB_OP_fill, &t, 1, &value) == GB_OK);
  if (t && next(3) == 0 && gb_dtype_is_float(gb_tensor_dtype(t))) CHECK(gb_tensor_set_requires_grad(t, true) == GB_OK);
  return t;
}

/* A value as its type has it, often one at the edge, or bytes of any kind. */
static gb_attr any_attr(gb_arg_type type) {
  static const int64_t edges[] = { 0, 1, -1, 2, 3, 8, -9, INT64_MAX, INT64_MIN, 1ll << 40, 77 };
  static const double numbers[] = { 0, 1, -1, 0.5, 1e308, -1e308, 1e-320, 0.0 / 0.0, 1.0 / 0.0 };
  static const char *const words[] = { "", "none", "mean", "sum", "relu", "gelu", "constant", "no such word" };
  gb_attr a = { .given = next(3) > 0 };
  if (type != GB_ARG_CHOICE && type != GB_ARG_TEXT && next(8) == 0) {
    memset(&a, (int)next(256), sizeof a);
    a.given = true;
    a.whole = next(2); /* a bool holds 0 or 1 */
    return a;
  }
  if (type == GB_ARG_NUMBER) a.number = numbers[next(9)];
  /* no word, or another choice's */
  else if (type == GB_ARG_CHOICE && next(4) == 0) a.integer = edges[next(11)], a.count = 1;
  else if (type == GB_ARG_CHOICE || type == GB_ARG_TEXT) a.text = words[next(8)];
  else if (type == GB_ARG_INTS || type == GB_ARG_DIMS) {
    a.count = (int8_t)next(5);
    for (int i = 0; i < GB_MAX_NDIM; i++) a.ints[i] = edges[next(next(4) ? 6 : 11)];
  } else a.integer = edges[next(next(4) ? 6 : 11)];
  return a;
}

static void test_thrown_together(void) {
  enum { ROUNDS = 60 };
  gb_context *c = open_context(1, NULL);
  int64_t done = 0;
  for (int op = 0; op < GB_OP_COUNT; op++) {
    const gb_op_info *info = gb_op_get(c, op);
    if (info->kind == GB_KIND_BACKWARD || !info->where) continue; /* the engine's own, which trust who calls them */
    for (int round = 0; round < ROUNDS; round++) {
      gb_tensor *in[GB_MAX_IN] = { NULL }, *out[GB_MAX_OUT] = { NULL };
      gb_attr attrs[GB_MAX_ATTRS];
      int n = next(20) ? info->n_in : (int)next(GB_MAX_IN);
      for (int i = 0; i < n; i++) in[i] = i && next(3) == 0 ? in[0] : next(12) ? any_tensor(c) : NULL;
      for (int i = 1; i < n; i++)
        if (in[i] && in[i] == in[0]) gb_tensor_retain(in[i]);
      for (int i = 0; i < info->n_attrs; i++) attrs[i] = any_attr(info->attrs[i].type);
      bool in_place = next(3) == 0 && (info->where & GB_WHERE_INPLACE);
      gb_status status = in_place ? gb_apply_(c, (gb_op)op, in, n, attrs) : gb_apply(c, (gb_op)op, in, n, attrs, out);
      done += status == GB_OK;
      for (int i = 0; i < GB_MAX_OUT; i++) {
        if (status != GB_OK) CHECK(!out[i]);
        gb_tensor_release(out[i]);
      }
      for (int i = 0; i < n; i++) gb_tensor_release(in[i]);
    }
  }
  CHECK(done > 1000);
  gb_context_close(c);
}

/* ====} */

/* Calls by name: an id that the caller did not get from here, and a list longer than any. */
static void test_names(void) {
  gb_context *c = open_context(1, NULL);
  gb_tensor *x = new_noise(c, GB_FLOAT32, 1, SHAPE(4), 1), *y = NULL;
  for (int i = 0; i < 2; i++) {
    int32_t id = i ? -1 : GB_OP_COUNT + 1;
    CHECK(gb_run_arguments(c, &id, "softmax", "", &(gb_arguments_softmax){ .x = x }, &y) == GB_EINVAL && !y);
  }
  CHECK(GB_RUN(c, cat, &y, .xs = &x, .count = INT32_MAX) == GB_EINVAL && !y);
  CHECK(GB_RUN(c, cat, &y, .xs = &x, .count = -1) == GB_EINVAL && !y);
  /* A position that no tensor has. */
  CHECK(GB_RUN(c, select, &y, .x = x, .dim = gb_attr_int(0), .position = gb_attr_int(INT64_MAX)) == GB_EINDEX && !y);
  CHECK(GB_RUN(c, narrow, &y, .x = x, .dim = gb_attr_int(0), .start = gb_attr_int(INT64_MAX),
               .length = gb_attr_int(1)) == GB_EINDEX && !y);
  gb_tensor_release(x);
  gb_context_close(c);
}

int main(void) {
  test_null();
  test_options();
  test_names();
  test_other_context();
  test_thrown_together();
  return check_report();
}
