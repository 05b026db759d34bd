/* test_numerics.c - the op `numerics` against a plain loop in float64: all patterns of the 16-bit types, floats of
 * every size, the boundaries where rounding turns, and every layout of memory. Counts are integers and magnitudes are
 * elements, so all must be equal, on every device and at every level. */
#include "engine.h"
#include "base/numerics.h"

typedef struct numerics { int64_t counts[GB_NUMERICS_COUNTS]; double range[GB_NUMERICS_RANGE]; } numerics;

static const gb_dtype floats[] = { GB_FLOAT64, GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16 };
enum { FLOATS = 4 };

/* {==== the plain loop ==== */

/* Precision, and the exponents of the least and the largest normal number, from IEEE 754 and bfloat16's definition. */
static const struct { int bits, least, most; } formats[] = {
  [GB_FLOAT64] = { 53, -1022, 1023 }, [GB_FLOAT32] = { 24, -126, 127 }, [GB_FLOAT16] = { 11, -14, 15 },
      [GB_BFLOAT16] = { 8, -126, 127 },
};

/* A finite magnitude rounded to nearest even in a format; infinity beyond. */
static double rounded(double x, gb_dtype to) {
  int exponent = x > 0 ? ilogb(x) : 0, least = formats[to].least;
  if (exponent < least) exponent = least;
  int step = exponent - formats[to].bits + 1;
  double y = ldexp(rint(ldexp(x, -step)), step);
  return y >= ldexp(1, formats[to].most) * 2 ? INFINITY : y;
}

static void count_one(numerics *n, double x, gb_dtype to) {
  double size = fabs(x), y;
  if (isnan(x)) { n->counts[GB_NUMERICS_NAN]++; return; }
  if (isinf(x)) { n->counts[GB_NUMERICS_INFINITE]++; return; }
  if (size == 0) { n->counts[GB_NUMERICS_ZERO]++; return; }
  y = rounded(size, to);
  if (y == 0) n->counts[GB_NUMERICS_FLUSHED]++;
  else if (y < ldexp(1, formats[to].least)) n->counts[GB_NUMERICS_SUBNORMAL]++;
  else if (isinf(y)) n->counts[GB_NUMERICS_OVERFLOWED]++;
  int exponent = ilogb(size);
  if (exponent < -149) exponent = -149;
  if (exponent > 127) exponent = 127;
  n->counts[GB_NUMERICS_FIRST_BIN + exponent + 149]++;
  if (size > n->range[GB_NUMERICS_AMAX]) n->range[GB_NUMERICS_AMAX] = size;
  if (n->range[GB_NUMERICS_AMIN] == 0 || size < n->range[GB_NUMERICS_AMIN]) n->range[GB_NUMERICS_AMIN] = size;
}

static numerics expected(gb_dtype dtype, const void *elements, int64_t count, gb_dtype to) {
  numerics n = { { 0 }, { 0 } };
  for (int64_t i = 0; i < count; i++) count_one(&n, number_of(dtype, elements, i), to);
  return n;
}

/* ====} */

/* {==== the op ==== */

static numerics measured(gb_tensor *x, gb_dtype to) {
  numerics n = { { 0 }, { 0 } };
  gb_context *c = gb_tensor_context(x);
  gb_tensor *out[GB_MAX_OUT] = { NULL };
  gb_attr attr = gb_attr_int(to);
  gb_status status = gb_apply(c, GB_OP_numerics, &x, 1, &attr, out);
  if (status != GB_OK) fprintf(stderr, "%s\n", gb_error(c));
  CHECK(status == GB_OK);
  if (status != GB_OK) return n;
  CHECK(gb_tensor_read(out[0], n.counts, sizeof n.counts) == GB_OK &&
        gb_tensor_read(out[1], n.range, sizeof n.range) == GB_OK);
  gb_tensor_release(out[0]);
  gb_tensor_release(out[1]);
  return n;
}

static bool same(const numerics *got, const numerics *want, const char *what, gb_dtype dtype, gb_dtype to) {
  bool equal = true;
  for (int i = 0; i < GB_NUMERICS_COUNTS; i++) {
    if (got->counts[i] == want->counts[i]) continue;
    fprintf(stderr, "%s, %s in %s: count %d is %lld, not %lld\n", what, gb_dtype_name(dtype), gb_dtype_name(to), i,
            (long long)got->counts[i],
            (long long)want->counts[i]);
    equal = false;
  }
  for (int i = 0; i < GB_NUMERICS_RANGE; i++) {
    if (got->range[i] == want->range[i]) continue;
    fprintf(stderr, "%s, %s in %s: range %d is %a, not %a\n", what, gb_dtype_name(dtype), gb_dtype_name(to), i,
            got->range[i], want->range[i]);
    equal = false;
  }
  return equal;
}

/* A vector of these elements on the test device. */
static gb_tensor *vector(gb_context *c, gb_dtype dtype, const void *elements, int64_t count) {
  gb_tensor *x = NULL;
  CHECK(gb_tensor_new(c, dtype, 1, SHAPE(count), test_device(), &x) == GB_OK);
  CHECK(gb_tensor_write(x, elements, (size_t)count * gb_dtype_bytes(dtype)) == GB_OK);
  return x;
}

/* These elements in every format. */
static void check_all(gb_context *c, const char *what, gb_dtype dtype, const void *elements, int64_t count) {
  gb_tensor *x = vector(c, dtype, elements, count);
  for (int f = 0; f < FLOATS; f++) {
    numerics got = measured(x, floats[f]), want = expected(dtype, elements, count, floats[f]);
    CHECK(same(&got, &want, what, dtype, floats[f]));
  }
  gb_tensor_release(x);
}

/* ====} */

/* {==== numbers ==== */

static void test_all_patterns(gb_context *c) {
  uint16_t patterns[65536];
  for (int i = 0; i < 65536; i++) patterns[i] = (uint16_t)(i * 40503u); /* odd: every one, neighbours apart */
  check_all(c, "all patterns", GB_FLOAT16, patterns, 65536);
  check_all(c, "all patterns", GB_BFLOAT16, patterns, 65536);
}

/* Bits at random are floats of every exponent, with subnormals, infinities and NaN among them; masks make those
 * frequent. */
static void test_every_size(gb_context *c) {
  enum { N = 30011 };
  uint64_t *bits = malloc(N * sizeof *bits);
  if (!bits) abort();
  for (int mask = 0; mask < 3; mask++) {
    for (int64_t i = 0; i < N; i++) {
      uint64_t z = (uint64_t)(noise(1, i) * 0x1p40) * 0x9E3779B97F4A7C15u;
      z ^= z >> 29;
      z *= 0xBF58476D1CE4E5B9u;
      bits[i] = mask == 0 ? z : mask == 1 ? z & 0x800fffffffffffffu
          : z & 0xbfffffffffffffffu & ~(z << 1 & 0x3c00000000000000u);
    }
    check_all(c, "every size", GB_FLOAT64, bits, N);
    for (int64_t i = 0; i < N; i++) {
      uint32_t low = (uint32_t)(bits[i] >> 7) ^ (uint32_t)(bits[i] >> 32);
      ((uint32_t *)bits)[i] = mask == 1 && i % 3 ? low & 0x807fffffu : low;
    }
    check_all(c, "every size", GB_FLOAT32, bits, N);
  }
  free(bits);
}

/* A number and its neighbours on both sides, of both signs, as float64 and as float32. */
static void check_around(gb_context *c, double at) {
  double wide[6] = { at, nextafter(at, 0), nextafter(at, INFINITY), -at, -nextafter(at, 0), -nextafter(at, INFINITY) };
  float near = (float)at, narrow[6] = { near, nextafterf(near, 0), nextafterf(near, INFINITY), -near,
                                        -nextafterf(near, 0), -nextafterf(near, INFINITY) };
  check_all(c, "a boundary", GB_FLOAT64, wide, 6);
  check_all(c, "a boundary", GB_FLOAT32, narrow, 6);
}

/* Each format's ends: half its least subnormal, which goes to 0; the tie below its least normal, which goes to it; the
 * tie above its largest, which goes to infinity. What each must give is written out for float16, so that the plain loop
 * is checked too. */
static void test_boundaries(gb_context *c) {
  for (int f = 0; f < FLOATS; f++) {
    int bits = formats[floats[f]].bits, least = formats[floats[f]].least, most = formats[floats[f]].most;
    const double at[] = { ldexp(1, least - bits), ldexp(1, least - bits + 1), ldexp(3, least - bits),
                          ldexp(1, least) - ldexp(1, least - bits + 1),
                          ldexp(1, least) - ldexp(1, least - bits), ldexp(1, least),
                              ldexp(2 - ldexp(1, 1 - bits), most),
                          most < 1023 ? ldexp(2 - ldexp(1, -bits), most) : ldexp(1, 1023),
                              most < 1023 ? ldexp(2, most) : ldexp(1, 1022) };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) check_around(c, at[i]);
  }
  static const struct { float x; int place; } cases[] = {
    { 0x1p-25f, GB_NUMERICS_FLUSHED }, { 0x1.000002p-25f, GB_NUMERICS_SUBNORMAL }, { 0x1p-24f, GB_NUMERICS_SUBNORMAL },
    { 0x1.ffbffep-15f, GB_NUMERICS_SUBNORMAL }, { 0x1.ffcp-15f, -1 }, { 0x1p-14f, -1 }, { 65504, -1 },
        { 65519.99f, -1 },
    { 65520, GB_NUMERICS_OVERFLOWED }, { 65536, GB_NUMERICS_OVERFLOWED }, { 0x1p-149f, GB_NUMERICS_FLUSHED },
        { 0, GB_NUMERICS_ZERO },
    { INFINITY, GB_NUMERICS_INFINITE }, { NAN, GB_NUMERICS_NAN },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int sign = 1; sign >= -1; sign -= 2) {
      float x = sign * cases[i].x;
      gb_tensor *t = vector(c, GB_FLOAT32, &x, 1);
      numerics n = measured(t, GB_FLOAT16);
      for (int p = 0; p < GB_NUMERICS_FIRST_BIN; p++) CHECK(n.counts[p] == (p == cases[i].place));
      gb_tensor_release(t);
    }
}

/* ====} */

/* {==== layouts ==== */

/* A view, against its elements in row-major order. */
static void check_view(gb_context *c, const char *what, gb_tensor *x) {
  gb_tensor *flat = NULL;
  CHECK(GB_RUN(c, clone, &flat, .x = x) == GB_OK); /* dense in some order, which counts do not depend on */
  void *elements = malloc((size_t)x->numel * gb_dtype_bytes((gb_dtype)x->dtype) + 8);
  if (!elements) abort();
  peek_bits(flat, 0, x->numel, elements);
  numerics got = measured(x, GB_FLOAT16), want = expected((gb_dtype)x->dtype, elements, x->numel, GB_FLOAT16);
  CHECK(same(&got, &want, what, (gb_dtype)x->dtype, GB_FLOAT16));
  free(elements);
  gb_tensor_release(flat);
}

static void check_strided(gb_context *c, const char *what, gb_tensor *x, int ndim, const int64_t *shape,
                          const int64_t *strides, int64_t offset) {
  gb_tensor *view = NULL;
  CHECK(GB_RUN(c, as_strided, &view, .x = x, .shape = gb_attr_ints(ndim, shape), .strides = gb_attr_ints(ndim, strides),
               .offset = gb_attr_int(offset)) == GB_OK);
  if (view) check_view(c, what, view);
  gb_tensor_release(view);
}

/* Numbers from 2^-40 to 2^40 and zeros. */
static void make_spread(void *element, gb_dtype dtype, int64_t i, uint64_t key) {
  double x = noise(key, i) * ldexp(1, (int)(40 * noise(key + 1, i)));
  if (i % 7 == 0) x = 0;
  switch (dtype) {
    case GB_FLOAT64: *(double *)element = x; break;
    case GB_FLOAT32: *(float *)element = (float)x; break;
    case GB_FLOAT16: *(uint16_t *)element = gb_double_to_float16(x); break;
    default: *(uint16_t *)element = gb_double_to_bfloat16(x); break;
  }
}

static void test_layouts(gb_context *c) {
  for (int f = 0; f < FLOATS; f++) {
    gb_tensor *x = new_made(c, floats[f], 1, SHAPE(150000), make_spread, 5);
    check_view(c, "many chunks", x);
    check_strided(c, "every third", x, 1, SHAPE(49999), SHAPE(3), 2);
    check_strided(c, "a row from 1 on", x, 1, SHAPE(70001), SHAPE(1), 1);
    check_strided(c, "a transposed matrix", x, 2, SHAPE(300, 400), SHAPE(1, 300), 7);
    check_strided(c, "columns of a matrix", x, 2, SHAPE(500, 37), SHAPE(200, 1), 3);
    check_strided(c, "rows that overlap", x, 2, SHAPE(300, 40), SHAPE(20, 1), 0);
    check_strided(c, "four dims", x, 4, SHAPE(7, 5, 11, 13), SHAPE(1, 2000, 7, 90), 5);
    check_strided(c, "repeated columns", x, 2, SHAPE(500, 300), SHAPE(1, 0), 9);
    check_strided(c, "repeated rows", x, 3, SHAPE(9, 40, 300), SHAPE(0, 300, 1), 4);
    check_strided(c, "one element, often", x, 2, SHAPE(300, 500), SHAPE(0, 0), 8);
    check_strided(c, "no element", x, 2, SHAPE(0, 5), SHAPE(5, 1), 0);
    check_strided(c, "0-d", x, 0, SHAPE(1), SHAPE(1), 11);
    for (int64_t n = 1; n < 40; n++) check_strided(c, "short", x, 1, &n, SHAPE(1), n);
    gb_tensor_release(x);
  }
}

/* ====} */

static void test_refusals(gb_context *c) {
  gb_tensor *x = new_noise(c, GB_FLOAT32, 1, SHAPE(3), 1), *whole = NULL, *out[GB_MAX_OUT] = { NULL };
  gb_attr integer = gb_attr_int(GB_INT32), half = gb_attr_int(GB_FLOAT16);
  CHECK(gb_op_cast(c, x, GB_INT64, &whole) == GB_OK);
  CHECK(gb_apply(c, GB_OP_numerics, &x, 1, &integer, out) == GB_EDTYPE && !out[0] && strstr(gb_error(c), "int32") &&
        strstr(gb_error(c), "bfloat16"));
  CHECK(gb_apply(c, GB_OP_numerics, &whole, 1, &half, out) == GB_EDTYPE && !out[0]);
  gb_tensor_release(whole);
  gb_tensor_release(x);
}

/* Counting is no step of a graph, and autocast leaves the operand as it is. */
static void test_recording(gb_context *c) {
  gb_tensor *x = new_made(c, GB_FLOAT32, 1, SHAPE(1000), make_spread, 3), *out[GB_MAX_OUT] = { NULL };
  numerics plain = measured(x, GB_FLOAT16);
  CHECK(gb_tensor_set_requires_grad(x, true) == GB_OK);
  c->modes->autocast = true;
  c->modes->lower = GB_FLOAT16;
  numerics cast = measured(x, GB_FLOAT16);
  c->modes->autocast = false;
  CHECK(same(&cast, &plain, "under autocast", GB_FLOAT32, GB_FLOAT16));
  gb_attr half = gb_attr_int(GB_FLOAT16);
  CHECK(gb_apply(c, GB_OP_numerics, &x, 1, &half, out) == GB_OK && !out[0]->node && !out[1]->node);
  gb_tensor_release(out[0]);
  gb_tensor_release(out[1]);
  gb_tensor_release(x);
}

static void run_tests(int threads, const char *level) {
  gb_context *c = open_context(threads, level);
  if (!c) { fprintf(stderr, "this CPU, or this build, has no level %s: left out\n", level); return; }
  test_all_patterns(c);
  test_every_size(c);
  test_boundaries(c);
  test_layouts(c);
  test_refusals(c);
  test_recording(c);
  gb_context_close(c);
}

int main(void) {
  run_tests(3, NULL);
  if (test_device().type != GB_CPU) return check_report();
  run_tests(1, "baseline");
  run_tests(2, "v3");
  run_tests(2, "v4");
  return check_report();
}
