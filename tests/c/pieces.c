/* pieces.c - how much every op does between two looks for a stop, by count: the engine that this is linked with was
 * compiled so that each basic block calls __sanitizer_cov_trace_pc, and with a small GB_PIECE, so that long rows need
 * not be large. No time is measured.
 *
 * The calls between two looks are what is bounded: a look is a call of gb_is_stopping or gb_poll, which the linker
 * wraps. An op runs on one long row (and on the small cases that other tests share), forward and backward. Every kernel
 * of the CPU must have run at the end, but for those of an optimizer's step, which runs to its end. What is in no block
 * is not seen: copies and clears by the C library, which move a dozen bytes in the time of a block, and oneDNN, whose
 * convolutions are counted by their sizes. */
#include "opcases.h"
#include "ops/conv.h"

/* Blocks of an element at most, for passes over it with several blocks each: an exponential in float32 is about ten. A
 * row has more elements than that in pieces, so one pass over it without a look is seen. */
enum { BLOCKS = 20 };
#define ROW (24 * GB_PIECE)

/* {==== Counting ==== */

static int64_t blocks, most_blocks;
static bool ran[GB_OP_COUNT];

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  if (++blocks > most_blocks) most_blocks = blocks;
}

bool __real_gb_is_stopping(const gb_context *context);
bool __wrap_gb_is_stopping(const gb_context *context);
bool __wrap_gb_is_stopping(const gb_context *context) {
  blocks = 0;
  return __real_gb_is_stopping(context);
}

gb_status __real_gb_poll(gb_context *context);
gb_status __wrap_gb_poll(gb_context *context);
gb_status __wrap_gb_poll(gb_context *context) {
  blocks = 0;
  return __real_gb_poll(context);
}

static gb_status note_op(void *user, const gb_op_call *call) {
  (void)user;
  ran[call->op] = true;
  return GB_OK;
}

/* ====} */

#define LONG LEAF(1, ROW)
#define WIDE LEAF(2, 2, ROW)
#define TALL LEAF(2, ROW, 2)

/* Ops on long rows. Chunks are cut by shape, so a row, a column, a line, an image or a sum that is long is what may be
 * one piece. */
static const op_case long_cases[] = {
  { "sum", GB_OP_sum, { LONG }, { A_DEFAULT } },
  { "sum, columns", GB_OP_sum, { TALL }, { A_INTS(1, 0) } },
  { "sum of ones", GB_OP_sum, { LEAF(2, ROW, 1) }, { A_INTS(1, 1) } },
  { "mean", GB_OP_mean, { WIDE }, { A_INTS(1, 1) } },
  { "prod", GB_OP_prod, { PLAIN(1, ROW) }, { A_DEFAULT } },
  { "var", GB_OP_var, { WIDE }, { A_INTS(1, 1) } },
  { "std of ones", GB_OP_std, { PLAIN(2, ROW, 1) }, { A_INTS(1, 1) } },
  { "logsumexp", GB_OP_logsumexp, { WIDE }, { A_INTS(1, 1) } },
  { "logsumexp of ones", GB_OP_logsumexp, { LEAF(2, ROW, 1) }, { A_INTS(1, 1) } },
  { "norm", GB_OP_norm, { LONG }, { A_DEFAULT } },
  { "amax", GB_OP_amax, { LONG }, { A_DEFAULT } },
  { "amin", GB_OP_amin, { LONG }, { A_DEFAULT } },
  { "max", GB_OP_max, { WIDE }, { A_INT(1) } },
  { "max, columns", GB_OP_max, { TALL }, { A_INT(0) } },
  { "min", GB_OP_min, { WIDE }, { A_INT(1) } },
  { "argmax", GB_OP_argmax, { PLAIN(1, ROW) }, { A_INT(0) } },
  { "argmin, flat", GB_OP_argmin, { PLAIN(1, ROW) }, { A_DEFAULT } },
  { "cumsum", GB_OP_cumsum, { WIDE }, { A_INT(1) } },
  { "cumsum, columns", GB_OP_cumsum, { TALL }, { A_INT(0) } },
  { "cumprod", GB_OP_cumprod, { WIDE }, { A_INT(1) } },
  { "cumprod, columns", GB_OP_cumprod, { TALL }, { A_INT(0) } },
  { "cummax", GB_OP_cummax, { WIDE }, { A_INT(1) } },
  { "cummin, columns", GB_OP_cummin, { TALL }, { A_INT(0) } },
  { "search_rows", GB_OP_search_rows, { PLAIN(1, ROW), PLAIN(1, ROW) }, { A_INT(1) } },
  { "softmax", GB_OP_softmax, { WIDE }, { A_INT(1) } },
  { "softmax, columns", GB_OP_softmax, { TALL }, { A_INT(0) } },
  { "log_softmax", GB_OP_log_softmax, { WIDE }, { A_INT(1) } },
  { "sort", GB_OP_sort, { WIDE }, { A_INT(1) } },
  { "topk", GB_OP_topk, { WIDE }, { A_INT(ROW / 8), A_INT(1) } },
  { "layer_norm", GB_OP_layer_norm, { WIDE, LEAF(1, ROW), LEAF(1, ROW) }, { A_INTS(1, ROW) } },
  { "rms_norm", GB_OP_rms_norm, { WIDE, LEAF(1, ROW) }, { A_INTS(1, ROW) } },
  { "add_layer_norm", GB_OP_add_layer_norm, { WIDE, WIDE, LEAF(1, ROW), LEAF(1, ROW) }, { A_INTS(1, ROW) } },
  { "batch_norm, many channels", GB_OP_batch_norm, { LEAF(2, 2, ROW), ABSENT, ABSENT, LEAF(1, ROW), LEAF(1, ROW) },
    { A_INT(1) } },
  { "batch_norm, many rows", GB_OP_batch_norm, { TALL, PLAIN(1, 2), PLAIN(1, 2), LEAF(1, 2), LEAF(1, 2) },
    { A_INT(1) } },
  { "batch_norm, residual and relu", GB_OP_batch_norm,
    { LEAF(2, 2, ROW), ABSENT, ABSENT, ABSENT, ABSENT, LEAF(2, 2, ROW) },
    { A_INT(1), A_DEFAULT, A_DEFAULT, A_TEXT("relu") } },
  { "cross_entropy", GB_OP_cross_entropy, { WIDE, INDEX(ROW, 1, 2) }, { A_DEFAULT } },
  { "cross_entropy, smoothed", GB_OP_cross_entropy, { WIDE, INDEX(ROW, 1, 2) },
    { A_DEFAULT, A_DEFAULT, A_NUMBER(0.1) } },
  { "cross_entropy, many rows", GB_OP_cross_entropy, { TALL, INDEX(2, 1, ROW) }, { A_DEFAULT } },
  { "nll_loss", GB_OP_nll_loss, { WIDE, INDEX(ROW, 1, 2) }, { A_DEFAULT } },
  { "nll_loss, many rows", GB_OP_nll_loss, { TALL, INDEX(2, 1, ROW) }, { A_DEFAULT } },
  { "linear_cross_entropy", GB_OP_linear_cross_entropy, { LEAF(2, 2, 3), LEAF(2, ROW / 8, 3), INDEX(ROW / 8, 1, 2) },
    { A_DEFAULT } },
  { "ctc_loss, many classes", GB_OP_ctc_loss,
    { LEAF(3, 3, 1, ROW / 4), INDEX(9, 2, 1, 1), INDEX(3, 1, 1), INDEX(2, 1, 1) },
    { A_DEFAULT, A_DEFAULT, A_INT(1) } },
  { "ctc_loss, long target", GB_OP_ctc_loss,
    { LEAF(3, 4, 1, 2), INDEX(2, 2, 1, ROW / 64), INDEX(4, 1, 1), INDEX(ROW / 64, 1, 1) },
    { A_DEFAULT, A_DEFAULT, A_INT(1) } },
  { "matmul, long k", GB_OP_matmul, { LEAF(2, 3, ROW / 8), LEAF(2, ROW / 8, 3) }, { A_DEFAULT } },
  { "matmul, vectors", GB_OP_matmul, { LONG, LONG }, { A_DEFAULT } },
  { "matmul, vector", GB_OP_matmul, { LEAF(2, 4, ROW / 4), LEAF(1, ROW / 4) }, { A_DEFAULT } },
  { "matmul, square", GB_OP_matmul, { LEAF(2, 400, 400), LEAF(2, 400, 400) }, { A_DEFAULT } },
  { "linear", GB_OP_linear, { LEAF(2, 3, ROW / 8), LEAF(2, 4, ROW / 8), LEAF(1, 4) }, { A_TEXT("gelu") } },
  { "conv2d, one image", GB_OP_conv2d, { LEAF(4, 1, 16, 96, 96), LEAF(4, 32, 16, 3, 3), LEAF(1, 32) },
    { A_DEFAULT, A_INTS(1, 1) } },
  { "conv2d, one strided image", GB_OP_conv2d, { LEAF(4, 1, 16, 128, 128), LEAF(4, 32, 16, 3, 3) },
    { A_INTS(1, 2), A_INTS(1, 1) } },
  { "conv2d, many channels", GB_OP_conv2d, { LEAF(4, 1, 512, 8, 8), LEAF(4, 64, 512, 3, 3) },
    { A_DEFAULT, A_INTS(1, 1) } },
  { "conv2d, depthwise", GB_OP_conv2d, { LEAF(4, 1, 64, 128, 128), LEAF(4, 64, 1, 5, 5) },
    { A_DEFAULT, A_INTS(1, 2), A_DEFAULT, A_INT(64) } },
  { "max_pool2d, one window", GB_OP_max_pool2d, { LEAF(4, 1, 1, 200, 1000) }, { A_INTS(2, 15, 15), A_INTS(2, 1, 1) } },
  { "avg_pool2d, one window", GB_OP_avg_pool2d, { LEAF(4, 1, 1, 800, 1000) }, { A_INTS(2, 800, 1000) } },
  { "adaptive_avg_pool2d", GB_OP_adaptive_avg_pool2d, { LEAF(4, 1, 1, 800, 1000) }, { A_INTS(1, 1) } },
  { "adaptive_max_pool2d", GB_OP_adaptive_max_pool2d, { LEAF(4, 1, 1, 800, 1000) }, { A_INTS(1, 1) } },
  { "attention, long", GB_OP_scaled_dot_product_attention,
    { LEAF(4, 1, 1, 100, 16), LEAF(4, 1, 1, 20000, 16), LEAF(4, 1, 1, 20000, 16) }, { A_INT(0) } },
  { "attention, one query", GB_OP_scaled_dot_product_attention,
    { LEAF(4, 1, 1, 1, 4), LEAF(4, 1, 1, 200000, 4), LEAF(4, 1, 1, 200000, 4) }, { A_INT(0) } },
  { "embedding, one row", GB_OP_embedding, { INDEX(1, 1, ROW / 4), LEAF(2, 1, 4) }, { A_DEFAULT } },
  { "embedding, long rows", GB_OP_embedding, { INDEX(2, 1, 2), LEAF(2, 2, ROW / 4) }, { A_DEFAULT } },
  { "embedding, many rows", GB_OP_embedding, { INDEX(2, 1, 2), LEAF(2, ROW, 1) }, { A_DEFAULT } },
  { "gather", GB_OP_gather, { WIDE, INDEX(ROW, 2, 2, ROW) }, { A_INT(1) } },
  { "scatter_add", GB_OP_scatter_add, { WIDE, INDEX(ROW, 2, 2, ROW), WIDE }, { A_INT(1) } },
  { "index_select", GB_OP_index_select, { LONG, INDEX(ROW, 1, ROW) }, { A_INT(0) } },
  { "index_add", GB_OP_index_add, { LONG, INDEX(ROW, 1, ROW), LONG }, { A_INT(0) } },
  { "index_put", GB_OP_index_put, { LONG, INDEX(ROW, 1, ROW), LONG }, { A_DEFAULT } },
  { "one_hot", GB_OP_one_hot, { INDEX(2, 1, 2) }, { A_INT(ROW) } },
  { "nonzero", GB_OP_nonzero, { PLAIN(1, ROW) }, { A_DEFAULT } },
  { "flip", GB_OP_flip, { LONG }, { A_INTS(1, 0) } },
  { "multinomial", GB_OP_multinomial, { { 'p', 1, { ROW }, 0 } }, { A_INT(ROW / 8), A_INT(1) } },
  { "multinomial, all", GB_OP_multinomial, { { 'p', 1, { ROW }, 0 } }, { A_INT(ROW / 8), A_INT(0) } },
  { "multinomial, many rows", GB_OP_multinomial, { { 'p', 2, { ROW / 8, 2 }, 0 } }, { A_INT(1), A_INT(1) } },
  { "bernoulli", GB_OP_bernoulli, { { 'p', 1, { ROW }, 0 } }, { A_DEFAULT } },
  { "permutation", GB_OP_permutation, { INDEX(1, 1, ROW) }, { A_DEFAULT } },
  { "random_integers", GB_OP_random_integers, { INDEX(1, 1, ROW) }, { A_INT(0), A_INT(9) } },
  { "numerics", GB_OP_numerics, { PLAIN(1, ROW) }, { A_INT(GB_FLOAT16) } },
  { "uniform", GB_OP_uniform, { PLAIN(1, ROW) }, { A_NUMBER(0), A_NUMBER(1) } },
  { "normal", GB_OP_normal, { PLAIN(1, ROW) }, { A_NUMBER(0), A_NUMBER(1) } },
  { "masked_scatter", GB_OP_masked_scatter, { LONG, { 'b', 1, { ROW }, 0 }, LONG }, { A_DEFAULT } },
  { "recurrent, many steps", GB_OP_recurrent, { LEAF(3, ROW / 256, 1, 4), LEAF(2, 4, 1), ABSENT, LEAF(2, 1, 1),
                                                LEAF(2, 1, 1) }, { A_TEXT("lstm") } },
  { "recurrent, many rows", GB_OP_recurrent, { LEAF(3, 2, ROW / 64, 6), LEAF(2, 6, 2), ABSENT, LEAF(2, ROW / 64, 2) },
    { A_TEXT("gru") } },
  { "resample", GB_OP_resample, { LEAF(2, 1, ROW) }, { A_INT(1), A_INT(2 * ROW), A_TEXT("linear") } },
  { "resample, bicubic", GB_OP_resample, { LEAF(2, 1, ROW / 4) }, { A_INT(1), A_INT(ROW / 2), A_TEXT("bicubic") } },
  { "resample, one window", GB_OP_resample, { LEAF(2, 1, ROW) },
    { A_INT(1), A_INT(1), A_TEXT("linear"), A_INT(0), A_INT(1) } },
  { "resample_planes", GB_OP_resample_planes, { LEAF(2, 1, ROW) }, { A_INTS(2, 2, 2 * ROW), A_TEXT("linear") } },
  { "resample_planes, nearest", GB_OP_resample_planes, { LEAF(2, 2, ROW) }, { A_INTS(2, 4, 2 * ROW) } },
  { "resample_planes, one window", GB_OP_resample_planes, { LEAF(2, ROW / 4, 4) },
    { A_INTS(2, 1, 1), A_TEXT("linear"), A_INT(0), A_INT(1) } },
  { "fft_real", GB_OP_fft_real, { LONG }, { A_DEFAULT } },
  { "fft_real, a chirp", GB_OP_fft_real, { LEAF(1, ROW / 8 * 7 + 1) }, { A_DEFAULT } },
  { "fft_real, short rows", GB_OP_fft_real, { LEAF(2, ROW / 8, 8) }, { A_DEFAULT } },
  { "fft_half", GB_OP_fft_half, { LEAF(2, ROW / 8 + 1, 2) }, { A_INT(ROW / 4) } },
  { "linalg_cholesky", GB_OP_linalg_cholesky, { { 'p', 3, { ROW, 1, 1 }, 0 } }, { A_DEFAULT } },
  { "linalg_inv", GB_OP_linalg_inv, { LEAF(3, ROW / 16, 4, 4) }, { A_DEFAULT } },
  { "linalg_inv of numbers", GB_OP_linalg_inv, { { 'p', 3, { ROW, 1, 1 }, 0 } }, { A_DEFAULT } },
  { "linalg_solve", GB_OP_linalg_solve, { LEAF(2, 4, 4), LEAF(3, ROW / 65536, 4, 16384) }, { A_DEFAULT } },
  { "linalg_solve_triangular", GB_OP_linalg_solve_triangular, { LEAF(2, 4, 4), LEAF(3, ROW / 65536, 4, 16384) },
    { A_INT(1) } },
  { "linalg_ldl_factor", GB_OP_linalg_ldl_factor, { { 'p', 3, { ROW, 1, 1 }, 0 } }, { A_DEFAULT } },
  { "linalg_ldl_solve", GB_OP_linalg_ldl_solve,
    { { 'p', 3, { ROW, 1, 1 }, 0 }, { 'o', 2, { ROW, 1 }, 0 }, { 'p', 3, { ROW, 1, 1 }, 0 } }, { A_DEFAULT } },
  { "linalg_det", GB_OP_linalg_det, { LEAF(3, ROW / 16, 4, 4) }, { A_DEFAULT } },
  { "linalg_slogdet", GB_OP_linalg_slogdet, { LEAF(3, ROW / 16, 4, 4) }, { A_DEFAULT } },
  { "linalg_qr", GB_OP_linalg_qr, { LEAF(3, ROW / 65536, 4, 16384) }, { A_DEFAULT } },
  { "linalg_qr, tall", GB_OP_linalg_qr, { LEAF(3, ROW / 65536, 16384, 4) }, { A_DEFAULT } },
  { "linalg_svd", GB_OP_linalg_svd, { LEAF(3, ROW / 65536, 4, 16384) }, { A_INT(0) } },
  { "linalg_pinv", GB_OP_linalg_pinv, { LEAF(3, ROW / 65536, 16384, 4) }, { A_NUMBER(1e-6) } },
  { "linalg_eigh", GB_OP_linalg_eigh, { LEAF(3, ROW / 16, 4, 4) }, { A_DEFAULT } },
};

/* Run one case; nothing that it does between two looks may be more than a piece. */
static void run_case(gb_context *c, const op_case *k) {
  bag results = { NULL, 0, 0 };
  blocks = most_blocks = 0;
  case_collect(c, k, &results);
  if (most_blocks > BLOCKS * GB_PIECE)
    fprintf(stderr, "%s: %.1f blocks for each element of a piece\n", k->name, (double)most_blocks / (double)GB_PIECE);
  CHECK(most_blocks <= BLOCKS * GB_PIECE);
  free(results.values);
}

/* An op that no case above named, on rows of the first of these kinds that it takes: elementwise ops and their like
 * need no more. */
static void run_generic(gb_context *c, gb_op op) {
  static const char *const kinds[] = { "ffff", "fbff", "bfff", "bbbb", "iiii", "fiff" };
  const gb_op_info *info = gb_op_get(c, op);
  gb_status status = GB_EINVAL;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds && status != GB_OK; k++)
    for (int dims = 1; dims <= 2 && status != GB_OK; dims++) {
      gb_tensor *in[4], *out[GB_MAX_OUT] = { NULL };
      gb_attr attrs[GB_MAX_ATTRS] = { 0 };
      int64_t row[2] = { dims == 2 ? 2 : ROW, ROW / 2 };
      for (int i = 0; i < info->n_attrs; i++)
        if (info->attrs[i].required && info->attrs[i].type != GB_ARG_CHOICE && info->attrs[i].type != GB_ARG_TEXT)
          attrs[i] = gb_attr_int(0);
      for (int i = 0; i < 4; i++)
        in[i] = case_tensor(c, &(case_input){ kinds[k][i], dims, { row[0], row[1] }, 2 }, (uint64_t)i);
      blocks = most_blocks = 0;
      status = info->n_in <= 4 ? gb_apply(c, op, in, info->list == 0 ? 2 : info->n_in, attrs, out) : GB_EINVAL;
      CHECK(most_blocks <= BLOCKS * GB_PIECE);
      if (most_blocks > BLOCKS * GB_PIECE)
        fprintf(stderr, "%s: %.1f blocks\n", info->name, (double)most_blocks / (double)GB_PIECE);
      for (int i = 0; i < 4; i++) gb_tensor_release(in[i]);
      for (int i = 0; i < GB_MAX_OUT; i++) gb_tensor_release(out[i]);
    }
}

/* max_pool2d_gather runs where a gradient of max_pool2d is differentiated. */
static void run_twice(gb_context *c) {
  gb_tensor *x = case_tensor(c, &(case_input)LEAF(4, 1, 1, 1000, 1000), 1),
      *y = run1(GB_OP_max_pool2d, x, (gb_attr[GB_MAX_ATTRS]){ A_INTS(1, 2) });
  gb_tensor *up = case_tensor(c, &(case_input)LEAF(4, 1, 1, 500, 500), 2), *grad;
  CHECK(gb_backward(y, up, true, true) == GB_OK && (grad = gb_tensor_grad(x)) != NULL);
  CHECK(gb_backward(grad, x, false, false) == GB_OK);
  gb_tensor_release(grad);
  gb_tensor_set_grad(x, NULL);
  gb_tensor_release(up);
  gb_tensor_release(y);
  gb_tensor_release(x);
}

/* The sizes that oneDNN is asked for are at most a piece of products: the call is wrapped too. */
static double most_products;
const struct gb_onednn_conv *__real_gb_onednn_find(gb_context *context, int kind, const gb_conv_sizes *s, bool bias,
                                                   bool half);
const struct gb_onednn_conv *__wrap_gb_onednn_find(gb_context *context, int kind, const gb_conv_sizes *s, bool bias,
                                                   bool half);
const struct gb_onednn_conv *__wrap_gb_onednn_find(gb_context *context, int kind, const gb_conv_sizes *s, bool bias,
                                                   bool half) {
  double products = (double)s->n * (double)(s->out[0] * s->out[1]) * (double)s->o *
      (double)(s->c / s->groups * s->kernel[0] * s->kernel[1]);
  if (products > most_products) most_products = products;
  return __real_gb_onednn_find(context, kind, s, bias, half);
}

#ifdef GB_HAVE_LAPACK
enum { HAVE_LAPACK = 1 };
#else
enum { HAVE_LAPACK = 0 };
#endif

int main(void) {
  gb_context *c = open_context(1, NULL);
  gb_observer observer = { .op = note_op };
  if (!c) return 1;
  gb_observer_add(c, &observer);
  for (int i = 0; i < OP_CASES; i++) run_case(c, &op_cases[i]);
  for (size_t i = 0; i < sizeof long_cases / sizeof *long_cases; i++) run_case(c, &long_cases[i]);
  run_twice(c);
  const gb_backend *cpu = gb_context_backend(c, (gb_device){ GB_CPU, 0 });
  for (int op = 0; op < GB_OP_COUNT; op++)
    if (!ran[op]) run_generic(c, (gb_op)op);
  for (int op = 0; op < GB_OP_COUNT; op++) {
    const gb_op_info *info = gb_op_get(c, (gb_op)op);
    if (!HAVE_LAPACK && !strcmp(info->family, "linalg")) { fprintf(stderr, "skipped: %s\n", info->name); continue; }
    bool seen = ran[op] || info->kind == GB_KIND_VIEW || info->kind == GB_KIND_COMPOSITE || !cpu->run[op];
    if (!seen) fprintf(stderr, "%s was not counted\n", info->name);
    CHECK(seen);
  }
  CHECK(most_products > 0 && most_products <= (double)GB_PIECE_PRODUCTS);
  gb_observer_remove(c, &observer);
  gb_context_close(c);
  return check_report();
}
