/* test_numbers.c - what results are made of: promotion and broadcasting as in PyTorch, and the random words of
 * Random123. */
#include "base/random.h"
#include "engine.h"

/* {==== promotion: the tables of torch.promote_types and torch.result_type (2.x), one letter per dtype in the order of
 * gb_dtype ==== */

static const char letters[] = "DFHBLIUOSC"; /* float64 float32 float16 bfloat16 int64 int32 uint8 bool int16 int8 */
static const char *const two_tensors[] = { "DDDDDDDDDD", "DFFFFFFFFF", "DFHFHHHHHH", "DFFBBBBBBB", "DFHBLLLLLL",
                                           "DFHBLIIIII", "DFHBLIUUSS", "DFHBLIUOSC", "DFHBLISSSS", "DFHBLISCSC" };
static const char *const with_scalar[] = { "DDDDDDDDDD", "FFFFFFFFFF", "HHHHHHHHHH", "BBBBBBBBBB", "DFHBLLLLLL",
                                           "DFHBIIIIII", "DFHBUUUUUU", "DFHBLIUOSC", "DFHBSSSSSS", "DFHBCCCCCC" };
/* with a number that has a fraction, and with a whole one */
static const char *const with_number[] = { "DD", "FF", "HH", "BB", "FL", "FI", "FU", "FL", "FS", "FC" };

static gb_dtype dtype_of(char letter) { return (gb_dtype)(strchr(letters, letter) - letters); }

static gb_tensor *new_ones(gb_context *c, gb_dtype dtype, int ndim, const int64_t *shape) {
  gb_tensor *t = NULL;
  CHECK(gb_tensor_new(c, dtype, ndim, shape, CPU, &t) == GB_OK);
  CHECK(gb_apply_(c, GB_OP_fill, &t, 1, &(gb_attr){ .given = true, .number = 1 }) == GB_OK);
  return t;
}

/* The dtype of x + y, which both end. */
static gb_dtype sum_dtype(gb_tensor *x, gb_tensor *y) {
  gb_tensor *z = run2(GB_OP_add, x, y, NULL);
  gb_dtype dtype = z ? gb_tensor_dtype(z) : GB_DTYPE_NONE;
  gb_tensor_release(x);
  gb_tensor_release(y);
  gb_tensor_release(z);
  return dtype;
}

static void test_promotion(gb_context *c) {
  for (int a = 0; a < GB_DTYPE_COUNT; a++) {
    for (int b = 0; b < GB_DTYPE_COUNT; b++) {
      CHECK(gb_promote((gb_dtype)a, (gb_dtype)b) == dtype_of(two_tensors[a][b]));
      CHECK(sum_dtype(new_ones(c, (gb_dtype)a, 1, SHAPE(2)), new_ones(c, (gb_dtype)b, 1, SHAPE(2))) ==
            dtype_of(two_tensors[a][b]));
      CHECK(sum_dtype(new_ones(c, (gb_dtype)a, 0, NULL), new_ones(c, (gb_dtype)b, 0, NULL)) ==
            dtype_of(two_tensors[a][b]));
      CHECK(sum_dtype(new_ones(c, (gb_dtype)a, 1, SHAPE(2)), new_ones(c, (gb_dtype)b, 0, NULL)) ==
            dtype_of(with_scalar[a][b]));
      CHECK(sum_dtype(new_ones(c, (gb_dtype)b, 0, NULL), new_ones(c, (gb_dtype)a, 2, SHAPE(1, 1))) ==
            dtype_of(with_scalar[a][b]));
    }
    for (int ndim = 0; ndim < 2; ndim++) {
      gb_tensor *fraction = NULL, *whole = NULL;
      CHECK(gb_tensor_wrap_number(c, 1.5, &fraction) == GB_OK && gb_tensor_wrap_integer(c, 1, &whole) == GB_OK);
      CHECK(sum_dtype(new_ones(c, (gb_dtype)a, ndim, SHAPE(2)), fraction) == dtype_of(with_number[a][0]));
      CHECK(sum_dtype(whole, new_ones(c, (gb_dtype)a, ndim, SHAPE(2))) == dtype_of(with_number[a][1]));
    }
  }
}

/* Comparisons are bool, division of integers is float32, sums of integers are int64, a mean of integers is an error. */
static void test_result_dtypes(gb_context *c) {
  for (int d = 0; d < GB_DTYPE_COUNT; d++) {
    gb_dtype dtype = (gb_dtype)d;
    gb_tensor *x = new_ones(c, dtype, 2, SHAPE(2, 3)), *out[GB_MAX_OUT] = { NULL };
    gb_tensor *less = run2(GB_OP_lt, x, x, NULL), *quotient = run2(GB_OP_div, x, x, NULL),
        *sum = run1(GB_OP_sum, x, NULL), *argmax = run1(GB_OP_argmax, x, NULL);
    CHECK(gb_tensor_dtype(less) == GB_BOOL);
    CHECK(gb_tensor_dtype(quotient) == (gb_dtype_is_float(dtype) ? dtype : GB_FLOAT32));
    CHECK(gb_tensor_dtype(sum) == (gb_dtype_is_float(dtype) ? dtype : GB_INT64));
    CHECK(gb_tensor_dtype(argmax) == GB_INT64);
    gb_status status = gb_apply(c, GB_OP_mean, &x, 1, NULL, out);
    CHECK(status == (gb_dtype_is_float(dtype) ? GB_OK : GB_EDTYPE));
    gb_tensor *all[] = { x, less, quotient, sum, argmax, out[0] };
    for (int i = 0; i < 6; i++) gb_tensor_release(all[i]);
  }
}

/* A result in place keeps its tensor's dtype, or is an error where it would lose its kind. */
static void test_in_place_dtypes(gb_context *c) {
  for (int a = 0; a < GB_DTYPE_COUNT; a++) {
    for (int b = 0; b < GB_DTYPE_COUNT; b++) {
      gb_tensor *x = new_ones(c, (gb_dtype)a, 1, SHAPE(3)), *y = new_ones(c, (gb_dtype)b, 1, SHAPE(3));
      bool fits = gb_dtype_category((gb_dtype)b) <= gb_dtype_category((gb_dtype)a);
      gb_status status = gb_apply_(c, GB_OP_mul, (gb_tensor *[]){ x, y }, 2, NULL);
      CHECK(status == (fits ? GB_OK : GB_EDTYPE));
      CHECK(gb_tensor_dtype(x) == (gb_dtype)a && at(x, 0) == 1);
      gb_tensor_release(x);
      gb_tensor_release(y);
    }
  }
}

/* ====} */

/* {==== what is made of the table of dtypes ==== */

static void test_formats(void) {
  CHECK(gb_largest_of(GB_FLOAT16) == 65504 && gb_largest_of(GB_BFLOAT16) == 0x1.fep127 &&
        gb_largest_of(GB_FLOAT32) == 0x1.fffffep127);
  CHECK(gb_whole_of(GB_FLOAT16) == 2048 && gb_whole_of(GB_BFLOAT16) == 256 &&
        gb_whole_of(GB_FLOAT64) == (int64_t)1 << 53);
  for (int k = 0; k < GB_COPIES; k++) CHECK(gb_copy_slot(gb_copy_dtype(k)) == k && gb_is_16bit(gb_copy_dtype(k)));
  for (int d = 0; d < GB_DTYPE_COUNT; d++) {
    gb_dtype dtype = (gb_dtype)d;
    int category = gb_dtype_category(dtype);
    CHECK(gb_is_float(d) == (category == GB_CATEGORY_FLOAT) && gb_is_int(d) == (category == GB_CATEGORY_INT));
    CHECK(gb_dtype_from_name(gb_dtype_name(dtype)) == dtype && gb_bytes_of(d) == gb_format_of(dtype)->bytes);
  }
  CHECK(!gb_is_float(GB_DTYPE_NONE) && !gb_is_int(GB_DTYPE_NONE) && !gb_is_byte(GB_DTYPE_NONE));
}

/* ====} */

/* {==== broadcasting ==== */

typedef struct shapes { int n_a, n_b, n_out; int64_t a[4], b[4], out[4]; } shapes; /* n_out -1: they do not fit */

static void test_broadcasting(gb_context *c) {
  static const shapes list[] = {
    { 2, 2, 2, { 2, 3 }, { 2, 3 }, { 2, 3 } },    { 2, 1, 2, { 2, 3 }, { 3 }, { 2, 3 } },
        { 2, 2, 2, { 2, 1 }, { 1, 3 }, { 2, 3 } },
    { 0, 3, 3, { 0 }, { 4, 1, 2 }, { 4, 1, 2 } }, { 3, 2, 3, { 4, 1, 2 }, { 5, 1 }, { 4, 5, 2 } },
        { 2, 2, 2, { 0, 3 }, { 1, 3 }, { 0, 3 } },
    { 1, 1, 1, { 1 }, { 0 }, { 0 } },             { 0, 0, 0, { 0 }, { 0 }, { 0 } },
        { 2, 1, -1, { 2, 3 }, { 2 }, { 0 } },
    { 2, 2, -1, { 2, 3 }, { 3, 3 }, { 0 } },      { 1, 1, -1, { 0 }, { 2 }, { 0 } },
        { 3, 3, -1, { 1, 2, 3 }, { 2, 2, 2 }, { 0 } },
    { 4, 1, 4, { 2, 1, 3, 1 }, { 5 }, { 2, 1, 3, 5 } },
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const shapes *s = &list[i];
    int64_t shape[GB_MAX_NDIM];
    int ndim = s->n_a;
    memcpy(shape, s->a, sizeof s->a);
    bool fits = gb_broadcast(&ndim, shape, s->n_b, s->b);
    CHECK(fits == (s->n_out >= 0));
    if (fits) CHECK(ndim == s->n_out && !memcmp(shape, s->out, sizeof *shape * (size_t)ndim));

    gb_tensor *x = new_noise(c, GB_FLOAT32, s->n_a, s->a, 1), *y = new_noise(c, GB_FLOAT32, s->n_b, s->b, 2),
        *out[GB_MAX_OUT] = { NULL };
    gb_status status = gb_apply(c, GB_OP_sub, (gb_tensor *[]){ x, y }, 2, NULL, out);
    CHECK(status == (fits ? GB_OK : GB_ESHAPE));
    if (!fits) CHECK(says(c, "sub"));
    for (int64_t e = 0; status == GB_OK && e < out[0]->numel; e++) { /* against an element-wise walk */
      int64_t rest = e, from_x = 0, from_y = 0, step_x = 1, step_y = 1;
      for (int d = 1; d <= s->n_out; d++) {
        int64_t size = s->out[s->n_out - d], position = rest % size;
        rest /= size;
        if (d <= s->n_a) from_x += s->a[s->n_a - d] == 1 ? 0 : position * step_x, step_x *= s->a[s->n_a - d];
        if (d <= s->n_b) from_y += s->b[s->n_b - d] == 1 ? 0 : position * step_y, step_y *= s->b[s->n_b - d];
      }
      CHECK((float)at(out[0], e) == (float)noise(1, from_x) - (float)noise(2, from_y));
    }
    gb_tensor_release(x);
    gb_tensor_release(y);
    gb_tensor_release(out[0]);
  }
}

/* ====} */

/* {==== Philox: the known answers of Random123 (philox4x32, 10 rounds), and the stream made of it ==== */

static void test_philox(void) {
  static const struct { uint32_t counter[4], key[2], word[4]; } known[] = {
    { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
  };
  for (int i = 0; i < 3; i++) {
    uint32_t word[4];
    uint64_t seed = known[i].key[0] | (uint64_t)known[i].key[1] << 32,
        index = known[i].counter[0] | (uint64_t)known[i].counter[1] << 32;
    gb_philox(seed, known[i].counter[2] | (uint64_t)known[i].counter[3] << 32, index, word);
    CHECK(!memcmp(word, known[i].word, sizeof word));
  }
  CHECK(gb_uniform(0) == 0 && gb_uniform(0xffffffff) < 1 && gb_uniform(0x80000000) == 0.5f);
  CHECK(gb_uniform64(0, 0) == 0 && gb_uniform64(0xffffffff, 0xffffffff) < 1);
}

/* What is made of the outermost words stays in its range, and half of them is the middle. */
static void test_numbers_of_words(void) {
  static const uint32_t none[4] = { 0 }, most[4] = { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX };
  static const uint32_t half[4] = { 0x80000000, 0, 0x80000000, 0 };
  static const uint64_t ranges[] = { 1, 2, 6, 1000003, INT64_MAX, UINT64_MAX };
  for (int digits = 8; digits <= 24; digits++) {
    CHECK(gb_uniform_f32(0, digits, -1, 3) == -1 && gb_uniform_f32(0x80000000, digits, -1, 3) == 1);
    CHECK(gb_uniform_f32(UINT32_MAX, digits, 0, 1) == 1 - ldexpf(1, -digits));
  }
  CHECK(gb_below_f32(3, -1, 3) == -1 && gb_below_f32(2, -1, 3) == 2);
  CHECK(gb_uniform_f64(none, -1, 3) == -1 && gb_uniform_f64(half, -1, 3) == 1);
  CHECK(gb_uniform_f64(most, 0, 1) == 1 - 0x1p-53);
  CHECK(gb_uniform_f64(most, 1, 1 + 0x1p-52) == 1); /* rounded up to high, so low */
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    CHECK(gb_random_below(none, ranges[i]) == 0 && gb_random_below(half, ranges[i]) == ranges[i] / 2);
    CHECK(gb_random_below(most, ranges[i]) == ranges[i] - 1);
  }
  float pair[2];
  double wide[2];
  gb_normal_pair_f32(none, 0, 1, pair); /* the largest radius, at angle 0 */
  CHECK(near(pair[0], sqrt(2 * 33 * log(2)), 1e-5) && pair[1] == 0);
  gb_normal_pair_f64(half, 5, 2, wide); /* radius sqrt(2 log 2), half a turn */
  CHECK(near(wide[0], 5 - 2 * sqrt(2 * log(2)), 1e-12) && near(wide[1], 5, 1e-12));
  CHECK(!gb_bernoulli(0, 0) && gb_bernoulli(UINT32_MAX, 1));
  CHECK(!gb_bernoulli(0x80000000, 0.5) && gb_bernoulli(0x7fffffff, 0.5));
  CHECK(gb_is_dropped(UINT32_MAX, gb_drop_bound(1)) && !gb_is_dropped(0, gb_drop_bound(0)));
  CHECK(gb_is_dropped(0x7fffff00, gb_drop_bound(0.5)) && !gb_is_dropped(0x80000000, gb_drop_bound(0.5)));
  CHECK(gb_is_dropped(0x199999ff, gb_drop_bound(0.1)) && !gb_is_dropped(0x19999a00, gb_drop_bound(0.1)));
  CHECK(gb_dropout_f32(UINT32_MAX, 3, 1, 0) == 0 && gb_dropout_f32(0, 3, 0, 1) == 3);
  CHECK(gb_dropout_f32(0x80000000, 3, 0.5f, 2) == 6 && gb_dropout_f64(0x7fffffff, 3, 0.5f, 2) == 0);
}

/* Element i of uniform is word i % 4 at index i / 4, in logical order, whatever the layout: the words are what a GPU
 * would make. */
static void test_uniform_is_philox(gb_context *c) {
  gb_tensor *x = NULL, *turned = NULL;
  CHECK(gb_tensor_new(c, GB_FLOAT32, 2, SHAPE(37, 129), CPU, &x) == GB_OK);
  CHECK(gb_tensor_new_as(c, GB_FLOAT32, 2, SHAPE(37, 129), SHAPE(1, 37), CPU, GB_MEM_OTHER, &turned) == GB_OK);
  gb_set_rng_state(c, 0x123456789abcdefu, 42);
  CHECK(gb_apply_(c, GB_OP_uniform, &x, 1, NULL) == GB_OK);
  uint64_t seed, offset;
  gb_get_rng_state(c, &seed, &offset);
  CHECK(seed == 0x123456789abcdefu && offset == 43);
  int same = 0;
  for (int64_t i = 0; i < 37 * 129; i++) {
    uint32_t word[4];
    gb_philox(seed, 42, (uint64_t)i / 4, word);
    same += ((float *)gb_data(x))[i] == gb_uniform(word[i % 4]);
  }
  CHECK(same == 37 * 129);
  gb_set_rng_state(c, 0x123456789abcdefu, 42);
  CHECK(gb_apply_(c, GB_OP_uniform, &turned, 1, NULL) == GB_OK);
  CHECK(hash_tensor(x, 1) == hash_tensor(turned, 1));
  gb_tensor_release(x);
  gb_tensor_release(turned);
}

/* ====} */

int main(void) {
  gb_context *c = open_context(2, NULL);
  test_formats();
  test_promotion(c);
  test_result_dtypes(c);
  test_in_place_dtypes(c);
  test_broadcasting(c);
  test_philox();
  test_numbers_of_words();
  test_uniform_is_philox(c);
  CHECK(live_bytes(c) == 0);
  gb_context_close(c);
  return check_report();
}
