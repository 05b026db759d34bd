/* opcases.h - ops on fixed numbers, forward and backward, for the tests that run the same work twice and compare: by
 * threads, by level.
 *
 * A case names an op, the shapes of its inputs and its attributes; collecting one appends its outputs and its leaves'
 * gradients to a list of float64, which holds every float32 and 16-bit value exactly. Sizes are odd, and large enough
 * for several chunks of parallel work. */
#ifndef GB_TESTS_OPCASES_H
#define GB_TESTS_OPCASES_H

#include "engine.h"

/* kind: 'x' a leaf, 'f' float32 without a gradient, 'p' the same in [0, 1), 'i' indices below limit, 'o' ones of
 * int64, 'b' bool, 0 absent. */
typedef struct case_input { char kind; int ndim; int64_t shape[4]; int64_t limit; } case_input;
enum { CASE_INPUTS = 6 };
typedef struct op_case { const char *name; gb_op op; case_input in[CASE_INPUTS]; gb_attr attrs[GB_MAX_ATTRS]; } op_case;

#define LEAF(n, ...) { 'x', n, { __VA_ARGS__ }, 0 }
#define PLAIN(n, ...) { 'f', n, { __VA_ARGS__ }, 0 }
#define INDEX(below, n, ...) { 'i', n, { __VA_ARGS__ }, below }
#define ABSENT { 0, 0, { 0 }, 0 }
#define A_INT(v) { .given = true, .integer = (v) }
#define A_NUMBER(v) { .given = true, .number = (v) }
#define A_INTS(n, ...) { .given = true, .count = (n), .ints = { __VA_ARGS__ } }
#define A_TEXT(v) { .given = true, .text = v }
#define A_DEFAULT { .given = false }

static const op_case op_cases[] = {
  { "matmul", GB_OP_matmul, { LEAF(3, 2, 130, 97), LEAF(3, 2, 97, 61) }, { A_DEFAULT } },
  { "matmul, large", GB_OP_matmul, { LEAF(2, 300, 520), LEAF(2, 520, 270) }, { A_DEFAULT } },
  { "matmul, matrix by vector", GB_OP_matmul, { LEAF(2, 301, 517), LEAF(1, 517) }, { A_DEFAULT } },
  { "linear", GB_OP_linear, { LEAF(3, 3, 77, 65), LEAF(2, 129, 65), LEAF(1, 129) }, { A_TEXT("gelu_tanh") } },
  { "mlp", GB_OP_mlp, { LEAF(2, 150, 40), LEAF(2, 90, 40), LEAF(1, 90), LEAF(2, 40, 90), LEAF(1, 40) }, { A_DEFAULT } },
  { "conv2d", GB_OP_conv2d, { LEAF(4, 5, 3, 17, 19), LEAF(4, 8, 3, 3, 3), LEAF(1, 8) }, { A_DEFAULT, A_INTS(1, 1) } },
  { "conv2d, strided, grouped", GB_OP_conv2d, { LEAF(4, 3, 6, 15, 13), LEAF(4, 9, 2, 3, 2) },
    { A_INTS(2, 2, 1), A_INTS(2, 1, 0), A_DEFAULT, A_INT(3) } },
  { "conv2d, relu", GB_OP_conv2d, { LEAF(4, 7, 4, 14, 14), LEAF(4, 6, 4, 3, 3), LEAF(1, 6) },
    { A_DEFAULT, A_INTS(1, 1), A_DEFAULT, A_DEFAULT, A_TEXT("relu") } },
  { "conv2d, depthwise", GB_OP_conv2d, { LEAF(4, 11, 21, 9, 12), LEAF(4, 21, 1, 5, 3) },
    { A_DEFAULT, A_INTS(2, 2, 1), A_DEFAULT, A_INT(21) } },
  { "conv2d, depthwise, strided", GB_OP_conv2d, { LEAF(4, 3, 32, 13, 11), LEAF(4, 32, 1, 3, 11) },
    { A_INTS(2, 1, 2), A_INTS(2, 3, 11), A_INTS(2, 2, 1), A_INT(32) } },
  { "max_pool2d", GB_OP_max_pool2d, { LEAF(4, 6, 5, 18, 16) }, { A_INTS(1, 2) } },
  { "avg_pool2d", GB_OP_avg_pool2d, { LEAF(4, 6, 5, 18, 16) }, { A_INTS(1, 3), A_INTS(1, 2), A_INTS(1, 1) } },
  { "adaptive_max_pool2d", GB_OP_adaptive_max_pool2d, { LEAF(4, 6, 5, 17, 16) }, { A_INTS(1, 4) } },
  { "max_pool2d, dilation", GB_OP_max_pool2d, { LEAF(4, 6, 5, 18, 16) },
    { A_INTS(1, 2), A_INTS(1, 1), A_INTS(1, 1), A_INTS(1, 3) } },
  { "adaptive_avg_pool2d", GB_OP_adaptive_avg_pool2d, { LEAF(4, 6, 5, 17, 16) }, { A_INTS(1, 4) } },
  { "softmax", GB_OP_softmax, { LEAF(2, 211, 133) }, { A_INT(-1) } },
  { "softmax, first dim", GB_OP_softmax, { LEAF(2, 211, 133) }, { A_INT(0) } },
  { "log_softmax", GB_OP_log_softmax, { LEAF(3, 11, 77, 33) }, { A_INT(1) } },
  { "layer_norm", GB_OP_layer_norm, { LEAF(2, 333, 130), LEAF(1, 130), LEAF(1, 130) }, { A_INTS(1, 130) } },
  { "rms_norm", GB_OP_rms_norm, { LEAF(2, 333, 130), LEAF(1, 130) }, { A_INTS(1, 130) } },
  { "add_layer_norm", GB_OP_add_layer_norm, { LEAF(2, 333, 64), LEAF(2, 333, 64), LEAF(1, 64), LEAF(1, 64) },
    { A_INTS(1, 64) } },
  { "batch_norm", GB_OP_batch_norm, { LEAF(4, 9, 6, 13, 11), PLAIN(1, 6), PLAIN(1, 6), LEAF(1, 6), LEAF(1, 6) },
    { A_INT(1) } },
  { "batch_norm, residual and relu", GB_OP_batch_norm,
    { LEAF(4, 9, 6, 13, 11), PLAIN(1, 6), PLAIN(1, 6), LEAF(1, 6), LEAF(1, 6), LEAF(4, 9, 6, 13, 11) },
    { A_INT(1), A_DEFAULT, A_DEFAULT, A_TEXT("relu") } },
  { "group_norm", GB_OP_group_norm, { LEAF(4, 9, 6, 13, 11), LEAF(1, 6), LEAF(1, 6) }, { A_INT(3) } },
  { "group_norm, large", GB_OP_group_norm, { LEAF(4, 2, 4, 301, 103), LEAF(1, 4), LEAF(1, 4) }, { A_INT(2) } },
  { "sum", GB_OP_sum, { LEAF(2, 401, 333) }, { A_DEFAULT } },
  { "sum, first dim", GB_OP_sum, { LEAF(2, 2001, 67) }, { A_INTS(1, 0) } },
  { "sum, last dim", GB_OP_sum, { LEAF(2, 67, 2001) }, { A_INTS(1, -1) } },
  { "mean", GB_OP_mean, { LEAF(3, 31, 77, 21) }, { A_INTS(2, 0, 2) } },
  { "var", GB_OP_var, { LEAF(2, 67, 2001) }, { A_DEFAULT } },
  { "logsumexp", GB_OP_logsumexp, { LEAF(2, 201, 333) }, { A_INTS(1, 1) } },
  { "norm", GB_OP_norm, { LEAF(2, 201, 333) }, { A_DEFAULT } },
  { "cumsum", GB_OP_cumsum, { LEAF(2, 201, 333) }, { A_INT(1) } },
  { "cumprod", GB_OP_cumprod, { LEAF(2, 201, 333) }, { A_INT(1) } },
  { "cummax, first dim", GB_OP_cummax, { LEAF(2, 201, 333) }, { A_INT(0) } },
  { "cummin", GB_OP_cummin, { LEAF(2, 201, 333) }, { A_INT(1) } },
  { "search_rows", GB_OP_search_rows, { PLAIN(1, 333), PLAIN(2, 201, 333) }, { A_INT(0) } },
  { "amax", GB_OP_amax, { LEAF(2, 201, 333) }, { A_INTS(1, 0) } },
  { "gelu", GB_OP_gelu, { LEAF(1, 70001) }, { A_DEFAULT } },
  { "tanh", GB_OP_tanh, { LEAF(1, 70001) }, { A_DEFAULT } },
  { "exp", GB_OP_exp, { LEAF(1, 70001) }, { A_DEFAULT } },
  { "mul, broadcast", GB_OP_mul, { LEAF(3, 41, 1, 67), LEAF(2, 53, 1) }, { A_DEFAULT } },
  { "dropout", GB_OP_dropout, { LEAF(1, 70001) }, { A_NUMBER(0.3) } },
  { "attention", GB_OP_scaled_dot_product_attention,
    { LEAF(4, 2, 3, 77, 24), LEAF(4, 2, 3, 77, 24), LEAF(4, 2, 3, 77, 24) }, { A_INT(1) } },
  { "attention, cross", GB_OP_scaled_dot_product_attention,
    { LEAF(4, 2, 2, 130, 16), LEAF(4, 2, 2, 99, 16), LEAF(4, 2, 2, 99, 16) }, { A_INT(0) } },
  { "cross_entropy", GB_OP_cross_entropy, { LEAF(2, 333, 97), INDEX(97, 1, 333) }, { A_DEFAULT } },
  { "linear_cross_entropy", GB_OP_linear_cross_entropy,
    { LEAF(2, 333, 40), LEAF(2, 97, 40), INDEX(97, 1, 333), LEAF(1, 97) }, { A_DEFAULT } },
  { "mse_loss", GB_OP_mse_loss, { LEAF(2, 333, 97), PLAIN(2, 333, 97) }, { A_DEFAULT } },
  { "ctc_loss", GB_OP_ctc_loss, { LEAF(3, 60, 9, 40), INDEX(40, 2, 9, 12), INDEX(61, 1, 9), INDEX(13, 1, 9) },
    { A_DEFAULT, A_DEFAULT, A_INT(1) } },
  { "resample, along a dim", GB_OP_resample, { LEAF(3, 30, 41, 35) }, { A_INT(1), A_INT(63), A_TEXT("bicubic") } },
  { "resample, the last dim", GB_OP_resample, { LEAF(2, 300, 97) }, { A_INT(1), A_INT(150), A_TEXT("linear") } },
  { "resample_planes, growing", GB_OP_resample_planes, { LEAF(3, 40, 41, 35) },
    { A_INTS(2, 63, 70), A_TEXT("bicubic") } },
  { "resample_planes, shrinking", GB_OP_resample_planes, { LEAF(3, 40, 61, 97) },
    { A_INTS(2, 30, 44), A_TEXT("linear") } },
  { "resample_planes, doubled", GB_OP_resample_planes, { LEAF(3, 40, 23, 41) },
    { A_INTS(2, 46, 82), A_TEXT("linear") } },
  { "resample_planes, nearest", GB_OP_resample_planes, { LEAF(3, 40, 41, 35) }, { A_INTS(2, 82, 70) } },
  { "sum_taps", GB_OP_sum_taps, { LEAF(3, 2, 37, 301), INDEX(302, 3, 2, 4, 500), LEAF(3, 2, 4, 500) }, { A_DEFAULT } },
  { "sum_taps, few places", GB_OP_sum_taps, { LEAF(3, 2, 37, 3001), INDEX(3002, 3, 2, 4, 50), LEAF(3, 2, 4, 50) },
    { A_DEFAULT } },
  { "fft_real, rows beside each other", GB_OP_fft_real, { LEAF(2, 83, 240) }, { A_NUMBER(0.05) } },
  { "fft_real, a chirp", GB_OP_fft_real, { LEAF(2, 3, 4099) }, { A_NUMBER(0.01), A_INT(1) } },
  { "fft_half", GB_OP_fft_half, { LEAF(3, 7, 2501, 2) }, { A_INT(5000), A_NUMBER(0.01) } },
  { "embedding", GB_OP_embedding, { INDEX(57, 2, 31, 67), LEAF(2, 57, 33) }, { A_DEFAULT } },
  { "embedding_sum", GB_OP_embedding_sum, { INDEX(57, 2, 31, 67), LEAF(2, 57, 33) }, { A_DEFAULT } },
  { "embedding_sum, wide", GB_OP_embedding_sum, { INDEX(57, 2, 5, 37), LEAF(2, 57, 301) }, { A_DEFAULT } },
  { "index_select", GB_OP_index_select, { LEAF(2, 57, 301), INDEX(57, 1, 400) }, { A_INT(0) } },
  { "scatter_add", GB_OP_scatter_add, { LEAF(2, 57, 41), INDEX(57, 2, 300, 41), LEAF(2, 300, 41) }, { A_INT(0) } },
  { "sort", GB_OP_sort, { LEAF(2, 77, 501) }, { A_INT(-1) } },
  { "recurrent, lstm", GB_OP_recurrent, { LEAF(3, 3, 101, 280), LEAF(2, 280, 70), ABSENT, LEAF(2, 101, 70),
                                          LEAF(2, 101, 70), INDEX(4, 1, 101) }, { A_TEXT("lstm"), A_INT(1) } },
  { "recurrent, gru", GB_OP_recurrent, { LEAF(3, 3, 7, 399), LEAF(2, 399, 133), LEAF(1, 399), LEAF(2, 7, 133) },
    { A_TEXT("gru") } },
  { "recurrent, tanh", GB_OP_recurrent, { LEAF(3, 2, 1, 61), LEAF(2, 61, 61), ABSENT, LEAF(2, 1, 61) },
    { A_TEXT("tanh") } },
  { "recurrent, relu", GB_OP_recurrent, { LEAF(3, 4, 5, 6), LEAF(2, 6, 6), LEAF(1, 6), LEAF(2, 5, 6), ABSENT,
                                          INDEX(5, 1, 5) }, { A_TEXT("relu"), A_INT(1) } },
};
enum { OP_CASES = sizeof op_cases / sizeof *op_cases };

/* Numbers of a run, one after another. */
typedef struct bag { double *values; int64_t count, room; } bag;

static inline void bag_add(bag *b, gb_tensor *t) {
  gb_tensor *wide = NULL;
  gb_context *context = gb_tensor_context(t);
  if (b->count + t->numel > b->room) {
    b->room = 2 * (b->count + t->numel);
    b->values = realloc(b->values, sizeof *b->values * (size_t)b->room);
  }
  bool grad = gb_set_grad_enabled(context, false);
  CHECK(gb_op_cast(context, t, GB_FLOAT64, &wide) == GB_OK);
  CHECK(gb_tensor_read(wide, b->values + b->count, sizeof(double) * (size_t)t->numel) == GB_OK);
  gb_set_grad_enabled(context, grad);
  b->count += t->numel;
  gb_tensor_release(wide);
}

static inline void make_share(void *element, gb_dtype dtype, int64_t i, uint64_t key) {
  (void)dtype;
  *(float *)element = (float)fabs(noise(key, i));
}

static inline void make_bool(void *element, gb_dtype dtype, int64_t i, uint64_t key) {
  (void)dtype;
  *(uint8_t *)element = noise(key, i) > 0;
}

static inline void make_one(void *element, gb_dtype dtype, int64_t i, uint64_t key) {
  (void)dtype, (void)i, (void)key;
  *(int64_t *)element = 1;
}

static inline gb_tensor *case_tensor(gb_context *c, const case_input *in, uint64_t key) {
  gb_tensor *t = NULL;
  if (in->kind == 0) return NULL;
  if (in->kind == 'p') return new_made(c, GB_FLOAT32, in->ndim, in->shape, make_share, key);
  if (in->kind == 'o') return new_made(c, GB_INT64, in->ndim, in->shape, make_one, key);
  if (in->kind == 'b') return new_made(c, GB_BOOL, in->ndim, in->shape, make_bool, key);
  if (in->kind != 'i') {
    t = new_noise(c, GB_FLOAT32, in->ndim, in->shape, key);
    if (t && in->kind == 'x') CHECK(gb_tensor_set_requires_grad(t, true) == GB_OK);
    return t;
  }
  return new_made(c, GB_INT64, in->ndim, in->shape, make_index, (uint64_t)in->limit);
}

/* Run the case, forward and backward with fixed incoming gradients, and append what came out. */
static inline void case_collect(gb_context *c, const op_case *k, bag *into) {
  gb_tensor *in[CASE_INPUTS], *out[GB_MAX_OUT] = { NULL };
  const gb_op_info *info = gb_op_get(c, k->op);
  gb_manual_seed(c, 3);
  for (int i = 0; i < CASE_INPUTS; i++) in[i] = case_tensor(c, &k->in[i], (uint64_t)i + 1);
  gb_status status = gb_apply(c, k->op, in, info->n_in, k->attrs, out);
  if (status != GB_OK) fprintf(stderr, "%s: %s\n", k->name, gb_error(c));
  CHECK(status == GB_OK);
  for (int o = 0; o < GB_MAX_OUT && out[o]; o++) {
    bag_add(into, out[o]);
    if (!out[o]->node) continue;
    gb_tensor *up = new_noise(c, GB_FLOAT32, out[o]->ndim, out[o]->shape, 99);
    status = gb_backward(out[o], up, true, false);
    if (status != GB_OK) fprintf(stderr, "%s, backward: %s\n", k->name, gb_error(c));
    CHECK(status == GB_OK);
    gb_tensor_release(up);
  }
  for (int i = 0; i < CASE_INPUTS; i++) {
    gb_tensor *grad = in[i] ? gb_tensor_grad(in[i]) : NULL;
    if (grad) bag_add(into, grad);
    gb_tensor_release(grad);
    gb_tensor_release(in[i]);
  }
  for (int o = 0; o < GB_MAX_OUT; o++) gb_tensor_release(out[o]);
}

/* The largest distance between two lists, in units of the size of the elements (1 for small ones); NaN meets NaN, and
 * an infinity itself. */
static inline double bag_distance(const bag *a, const bag *b) {
  double worst = a->count == b->count ? 0 : INFINITY;
  for (int64_t i = 0; a->count == b->count && i < a->count; i++) {
    if (a->values[i] == b->values[i] || (isnan(a->values[i]) && isnan(b->values[i]))) continue;
    double distance = fabs(a->values[i] - b->values[i]) / (1 + fabs(b->values[i]));
    if (!(distance <= worst)) worst = distance;
  }
  return worst;
}

#endif
