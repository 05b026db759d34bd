/* test_rnn.c - recurrent layers by a device's library, through the ops themselves: what does not fit together is
 * refused with a reason, and where there is no library all of it is. GIBBOUS_TEST_DEVICE names the device. */
#include "engine.h"
#include "ops/rnn.h"

enum { TIME = 3, BATCH = 2, INPUT = 4, HIDDEN = 5, GATES = 4 * HIDDEN, WEIGHTS = 4 };

/* Operands of an LSTM, and what a call says of it. */
typedef struct layer {
  gb_tensor *x, *h, *c, *lengths, *packed, *weights[WEIGHTS];
  int count;
  int64_t layers, bias;
} layer;

static gb_attr lstm(void) { return gb_attr_text("lstm"); }

static gb_tensor *lengths_of(gb_context *context, gb_dtype dtype, gb_device device, int64_t first) {
  gb_tensor *t = NULL;
  const int64_t wide[] = { first, TIME };
  const int32_t narrow[] = { (int32_t)first, TIME };
  CHECK(gb_tensor_new(context, dtype, 1, SHAPE(BATCH), device, &t) == GB_OK);
  CHECK(gb_tensor_write(t, dtype == GB_INT64 ? (const void *)wide : narrow,
                        BATCH * (dtype == GB_INT64 ? sizeof *wide : sizeof *narrow)) == GB_OK);
  return t;
}

static gb_status pack(gb_context *context, const layer *l, gb_tensor **out) {
  return GB_RUN(context, rnn_pack, out, .weights = (gb_tensor **)l->weights, .count = l->count, .cell = lstm(),
                .layers = gb_attr_int(l->layers), .bias = gb_attr_int(l->bias));
}

static gb_status run(gb_context *context, const layer *l) {
  gb_out_rnn out = { 0 };
  gb_status status = GB_RUN(context, rnn, &out.y, .x = l->x, .h = l->h, .c = l->c, .lengths = l->lengths,
                            .packed = l->packed, .weights = (gb_tensor **)l->weights, .count = l->count,
                            .cell = lstm(), .layers = gb_attr_int(l->layers), .bias = gb_attr_int(l->bias));
  gb_drop(&out.y), gb_drop(&out.last_h), gb_drop(&out.last_c);
  return status;
}

static layer new_layer(gb_context *context) {
  layer l = { .x = new_noise(context, GB_FLOAT32, 3, SHAPE(TIME, BATCH, INPUT), 1),
              .h = new_noise(context, GB_FLOAT32, 3, SHAPE(1, BATCH, HIDDEN), 2),
              .c = new_noise(context, GB_FLOAT32, 3, SHAPE(1, BATCH, HIDDEN), 3),
              .lengths = lengths_of(context, GB_INT64, CPU, 1),
              .weights = { new_noise(context, GB_FLOAT32, 2, SHAPE(GATES, INPUT), 4),
                           new_noise(context, GB_FLOAT32, 2, SHAPE(GATES, HIDDEN), 5),
                           new_noise(context, GB_FLOAT32, 1, SHAPE(GATES), 6),
                           new_noise(context, GB_FLOAT32, 1, SHAPE(GATES), 7) },
              .count = WEIGHTS, .layers = 1, .bias = true };
  return l;
}

static void free_layer(layer *l) {
  gb_drop(&l->x), gb_drop(&l->h), gb_drop(&l->c), gb_drop(&l->lengths), gb_drop(&l->packed);
  for (int i = 0; i < WEIGHTS; i++) gb_drop(&l->weights[i]);
}

/* The call fails so, and says why. */
static void expect_refused(gb_context *context, gb_status is, gb_status status, const char *why) {
  bool right = is == status && strstr(gb_error(context), why);
  if (!right) fprintf(stderr, "  got %s: %s; expected %s\n", gb_status_text(is), gb_error(context), why);
  CHECK(right);
}

/* One operand is exchanged for another, which ends here. */
static void expect_refused_with(gb_context *context, layer *l, gb_tensor **operand, gb_tensor *other, gb_status status,
                                const char *why) {
  gb_tensor *own = *operand;
  *operand = other;
  expect_refused(context, run(context, l), status, why);
  *operand = own;
  gb_drop(&other);
}

static void test_operands(gb_context *context, layer *l) {
  gb_tensor *others[] = { new_noise(context, GB_FLOAT32, 3, SHAPE(TIME, BATCH, INPUT + 1), 8),
                          new_noise(context, GB_FLOAT32, 2, SHAPE(TIME, BATCH), 8),
                          new_noise(context, GB_FLOAT32, 3, SHAPE(2, BATCH, HIDDEN), 8),
                          new_noise(context, GB_FLOAT32, 3, SHAPE(1, BATCH, HIDDEN + 1), 8),
                          new_noise(context, GB_FLOAT32, 1, SHAPE(GATES), 8),
                          new_noise(context, GB_FLOAT64, 1, SHAPE(l->packed->numel), 8),
                          new_noise(context, GB_FLOAT32, 1, SHAPE(GATES + 1), 8) };
  CHECK(run(context, l) == GB_OK);
  expect_refused_with(context, l, &l->x, others[0], GB_ESHAPE, "'x' has shape 3x2x5, expected 3x2x4");
  expect_refused_with(context, l, &l->x, others[1], GB_ESHAPE, "x");
  expect_refused_with(context, l, &l->h, others[2], GB_ESHAPE, "'h' has shape 2x2x5, expected 1x2x5");
  expect_refused_with(context, l, &l->c, others[3], GB_ESHAPE, "'c' has shape 1x2x6, expected 1x2x5");
  expect_refused_with(context, l, &l->c, NULL, GB_EINVAL, "'c' is for the cell 'lstm', which needs it");
  expect_refused_with(context, l, &l->h, NULL, GB_EINVAL, "'c' comes with 'h', which is absent");
  expect_refused_with(context, l, &l->packed, others[4], GB_EINVAL, "'packed' are no packed weights");
  expect_refused_with(context, l, &l->packed, others[5], GB_EINVAL, "'packed' are no packed weights");
  expect_refused_with(context, l, &l->weights[2], others[6], GB_ESHAPE, "weight 3 has shape 21, expected 20");
  const gb_device here = l->x->storage->device;
  expect_refused_with(context, l, &l->lengths, lengths_of(context, GB_INT64, CPU, TIME + 1), GB_EINDEX,
                      "a length of 4 is out of range 0 .. 3");
  expect_refused_with(context, l, &l->lengths, lengths_of(context, GB_INT64, CPU, -1), GB_EINDEX, "a length of -1");
  expect_refused_with(context, l, &l->lengths, lengths_of(context, GB_INT64, here, 1), GB_EINVAL,
                      "'lengths' is an int64 vector on the CPU");
  expect_refused_with(context, l, &l->lengths, lengths_of(context, GB_INT32, CPU, 1), GB_EINVAL,
                      "'lengths' is an int64 vector on the CPU");
}

static void test_numbers(gb_context *context, layer *l) {
  gb_tensor *out = NULL;
  gb_attr one = gb_attr_int(1), many = gb_attr_int(INT64_MAX), huge = gb_attr_int(INT64_MAX / 2);
  gb_attr input = gb_attr_int(INPUT), hidden = gb_attr_int(HIDDEN);
  layer spoilt = *l;
  spoilt.layers = 2;
  expect_refused(context, run(context, &spoilt), GB_EINVAL, "2 layers have 4 weights for each direction, got 4 in all");
  spoilt.layers = INT64_MAX;
  expect_refused(context, pack(context, &spoilt, &out), GB_EINVAL, "layers have 4 weights");
  spoilt = *l;
  spoilt.bias = false;
  expect_refused(context, run(context, &spoilt), GB_EINVAL, "1 layers have 2 weights");
  spoilt.count = 1;
  expect_refused(context, pack(context, &spoilt, &out), GB_EINVAL, "weights begin with two matrices");
  gb_status status = GB_RUN(context, rnn_unpack, &out, .packed = l->packed, .cell = lstm(), .input = input,
                            .hidden = hidden, .state = hidden, .layers = one, .bias = one, .which = gb_attr_int(4));
  expect_refused(context, status, GB_EINDEX, "weight 4 is out of range 0 .. 3");
  status = GB_RUN(context, rnn_unpack, &out, .packed = l->packed, .cell = lstm(), .input = huge, .hidden = huge,
                  .state = huge, .layers = many, .bias = one, .which = many);
  expect_refused(context, status, GB_EUNSUPPORTED, "has no library for these recurrent layers");
  status = GB_RUN(context, rnn_unpack, &out, .packed = l->packed, .cell = gb_attr_text("gru"), .input = input,
                  .hidden = hidden, .state = hidden, .layers = one, .bias = one, .which = one);
  expect_refused(context, status, GB_EINVAL, "'packed' are no packed weights of these layers, 165 elements");
}

/* What was packed comes back, weight by weight, in another dtype too. */
static void test_weights(gb_context *context, const layer *l) {
  for (int i = 0; i < WEIGHTS; i++) {
    gb_tensor *out = NULL;
    gb_attr one = gb_attr_int(1), hidden = gb_attr_int(HIDDEN);
    CHECK(GB_RUN(context, rnn_unpack, &out, .packed = l->packed, .cell = lstm(), .input = gb_attr_int(INPUT),
                 .hidden = hidden, .state = hidden, .layers = one, .bias = one, .which = gb_attr_int(i),
                 .dtype = gb_attr_int(GB_FLOAT64)) == GB_OK);
    CHECK(out && out->dtype == GB_FLOAT64 && out->numel == l->weights[i]->numel);
    for (int64_t k = 0; out && k < out->numel; k++) CHECK(at(out, k) == at(l->weights[i], k));
    gb_drop(&out);
  }
}

/* Forward and backward, with gradients of everything. */
static gb_status train(gb_context *context, const layer *l) {
  gb_out_rnn out = { 0 };
  gb_tensor *sum = NULL;
  gb_status status = GB_RUN(context, rnn, &out.y, .x = l->x, .h = l->h, .c = l->c, .lengths = l->lengths,
                            .packed = l->packed, .weights = (gb_tensor **)l->weights, .count = l->count,
                            .cell = lstm(), .layers = gb_attr_int(1), .bias = gb_attr_int(true));
  if (status == GB_OK) status = GB_RUN(context, sum, &sum, .x = out.y);
  if (status == GB_OK) status = gb_backward(sum, NULL, false, false);
  gb_drop(&out.y), gb_drop(&out.last_h), gb_drop(&out.last_c), gb_drop(&sum);
  return status;
}

static int64_t bytes_in_use(gb_context *context) {
  gb_memory_stats stats;
  gb_memory_get_stats(context, &stats);
  return (int64_t)stats.current_total;
}

/* A failed allocation is tried once more: it fails then, too. */
static void fail_again(void *pool) { gb_pool_fail_after(pool, 1); }

/* Wherever memory ends, the call says so, and leaves nothing behind but gradients that had come. */
static void test_memory(gb_context *context, layer *l) {
  gb_tensor *leaves[] = { l->x, l->h, l->c, l->weights[0], l->weights[1], l->weights[2], l->weights[3] };
  const int n_leaves = (int)(sizeof leaves / sizeof *leaves);
  for (int i = 0; i < n_leaves; i++) CHECK(gb_tensor_set_requires_grad(leaves[i], true) == GB_OK);
  const int64_t before = bytes_in_use(context);
  gb_pool *pool = context->pool[gb_device_slot(test_device())];
  gb_status status = GB_EMEMORY;
  uint64_t n = 0;
  context->reclaim = fail_again, context->reclaim_user = pool;
  while (status != GB_OK && ++n < 100) {
    gb_pool_fail_after(pool, n);
    status = train(context, l);
    gb_pool_fail_after(pool, 0);
    CHECK(status == GB_OK || status == GB_EMEMORY);
    for (int i = 0; i < n_leaves; i++) CHECK(gb_tensor_set_grad(leaves[i], NULL) == GB_OK);
    CHECK(bytes_in_use(context) == before);
  }
  context->reclaim = NULL;
  CHECK(status == GB_OK && n > 15);
}

int main(void) {
  gb_context *context = open_context(1, NULL);
  layer l = new_layer(context);
  gb_rnn_room room;
  gb_rnn rnn = { .cell = GB_WORD_lstm, .layers = 1, .time = TIME, .batch = BATCH, .input = INPUT, .hidden = HIDDEN,
                 .state = HIDDEN, .dtype = GB_FLOAT32, .bias = true };
  if (gb_rnn_is_served(context, test_device(), &rnn, &room)) {
    CHECK(pack(context, &l, &l.packed) == GB_OK);
    test_operands(context, &l);
    test_numbers(context, &l);
    test_weights(context, &l);
    test_memory(context, &l);
  } else expect_refused(context, pack(context, &l, &l.packed), GB_EUNSUPPORTED, "has no library");
  free_layer(&l);
  gb_context_close(context);
  return check_report();
}
