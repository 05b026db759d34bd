/* ops/fft.c - Fourier transforms of real signals, and of windows of them.
 *
 * There is no complex dtype: a last dimension of two has real and imaginary parts. Two kernels do the work, one each
 * way, over rows; each is the other's gradient, so both can be differentiated as often as one likes. In half a
 * transform most numbers stand for themselves and for their mirror image: `doubled` says that they count for both. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/fft.h"
#include "graph/chain.h"

/* {==== the kernels' ops ==== */

static gb_status check_contiguous(gb_op_call *call, const gb_tensor *x) {
  if (gb_is_contiguous(x)) return GB_OK;
  return gb_call_fail(call, GB_EINVAL, "x is not contiguous; use contiguous()");
}

/* x [..., n] -> [..., n / 2 + 1, 2]. */
static gb_status fft_real_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, fft_real)->x;
  int64_t shape[GB_MAX_NDIM];
  GB_TRY(gb_require_float(call, GB_IN_AT(fft_real, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(fft_real, x), 1, GB_MAX_NDIM - 1));
  GB_TRY(check_contiguous(call, x));
  int last = x->ndim - 1;
  if (x->shape[last] < 1 || x->shape[last] > GB_FFT_MOST)
    return gb_call_fail(call, GB_ESHAPE, "rows of %" PRId64 " elements have no transform", x->shape[last]);
  memcpy(shape, x->shape, sizeof shape);
  shape[last] = gb_fft_half(x->shape[last]), shape[last + 1] = 2;
  return gb_call_output(call, GB_OUT_AT(fft_real, y), x->ndim + 1, shape, gb_call_dtype(call, (gb_dtype)x->dtype));
}

/* x [..., n / 2 + 1, 2] -> [..., n]. */
static gb_status fft_half_check(gb_op_call *call) {
  const gb_tensor *x = GB_IN(call, fft_half)->x;
  int64_t n = GB_ATTRS(call, fft_half)->n.integer, shape[GB_MAX_NDIM];
  char text[96];
  GB_TRY(gb_require_float(call, GB_IN_AT(fft_half, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(fft_half, x), 2, GB_MAX_NDIM));
  GB_TRY(check_contiguous(call, x));
  int last = x->ndim - 1;
  if (x->shape[last] != 2 || n > GB_FFT_MOST || x->shape[last - 1] != gb_fft_half(n))
    return gb_call_fail(call, GB_ESHAPE, "x has shape %s; rows of %" PRId64 " are made of [..., %" PRId64 ", 2]",
                        gb_shape_text(x->ndim, x->shape, text, sizeof text), n, gb_fft_half(n));
  memcpy(shape, x->shape, sizeof shape);
  shape[last - 1] = n;
  return gb_call_output(call, GB_OUT_AT(fft_half, y), last, shape, gb_call_dtype(call, (gb_dtype)x->dtype));
}

static gb_status fft_real_gradient(gb_grad_call *grad) {
  const gb_attrs_fft_real *attrs = GB_ATTRS(grad, fft_real);
  const gb_edge *edge = GB_EDGE(grad, fft_real, x);
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *g = GB_CHAIN(&c, contiguous, .x = GB_GRAD_OUT(grad, fft_real)->y);
  gb_tensor *dx = GB_CHAIN(&c, fft_half, .x = g, .n = gb_attr_int(edge->shape[edge->ndim - 1]), .scale = attrs->scale,
                           .doubled = gb_attr_int(attrs->doubled.integer));
  return gb_chain_end(&c, dx, &GB_GRAD_IN(grad, fft_real)->x);
}

static gb_status fft_half_gradient(gb_grad_call *grad) {
  const gb_attrs_fft_half *attrs = GB_ATTRS(grad, fft_half);
  gb_chain c;
  gb_chain_begin(&c, grad->context);
  gb_tensor *g = GB_CHAIN(&c, contiguous, .x = GB_GRAD_OUT(grad, fft_half)->y);
  gb_tensor *dx = GB_CHAIN(&c, fft_real, .x = g, .scale = attrs->scale,
                           .doubled = gb_attr_int(attrs->doubled.integer));
  return gb_chain_end(&c, dx, &GB_GRAD_IN(grad, fft_half)->x);
}

/* ====} */

/* {==== steps ==== */

static gb_tensor *part(gb_chain *c, gb_tensor *x, int dim, int64_t start, int64_t length) {
  return GB_CHAIN(c, narrow, .x = x, .dim = gb_attr_int(dim), .start = gb_attr_int(start),
                  .length = gb_attr_int(length));
}

static gb_tensor *moved(gb_chain *c, gb_tensor *x, int64_t from, int64_t to) {
  if (from == to) return x;
  return GB_CHAIN(c, movedim, .x = x, .source = gb_attr_ints(1, &from), .destination = gb_attr_ints(1, &to));
}

/* x with `before` and `after` zeros, or fewer elements where negative, around the last dim or the one before it. */
static gb_tensor *padded(gb_chain *c, gb_tensor *x, int from_last, int64_t before, int64_t after) {
  const int64_t pad[4] = { 0, 0, before, after };
  if (before == 0 && after == 0) return x;
  return GB_CHAIN(c, pad, .x = x, .pad = from_last ? gb_attr_ints(4, pad) : gb_attr_ints(2, pad + 2));
}

/* What a transform of n is multiplied by: `whole` is the norm that divides this way by n. */
static double scale_of(int64_t norm, int64_t whole, int64_t n) {
  return norm == whole ? 1 / (double)n : norm == GB_WORD_ortho ? 1 / sqrt((double)n) : 1;
}

/* ====} */

/* {==== one dimension ==== */

static gb_status rfft_compose(gb_op_call *call) {
  const gb_attrs_rfft *attrs = GB_ATTRS(call, rfft);
  gb_tensor *x = GB_IN(call, rfft)->x;
  int dim, last = x->ndim - 1;
  GB_TRY(gb_require_ndim(call, GB_IN_AT(rfft, x), 1, GB_MAX_NDIM - 1));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  int64_t size = x->shape[dim], n = attrs->n.given ? attrs->n.integer : size;
  if (n < 1) return gb_call_fail(call, GB_ESHAPE, "dimension %d of x has no elements; give n", dim + 1);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  if (!gb_dtype_is_float((gb_dtype)x->dtype)) x = gb_chain_cast(&c, x, GB_FLOAT32);
  gb_tensor *rows = GB_CHAIN(&c, contiguous, .x = padded(&c, moved(&c, x, dim, last), 0, 0, n - size));
  gb_tensor *y = GB_CHAIN(&c, fft_real, .x = rows,
                          .scale = gb_attr_num(scale_of(attrs->norm.integer, GB_WORD_forward, n)));
  return gb_chain_end(&c, moved(&c, y, last, dim), &GB_OUT(call, rfft)->y);
}

/* The last dimension of x has the parts of complex numbers. */
static gb_status check_parts(gb_op_call *call, const gb_tensor *x) {
  char text[96];
  if (x->shape[x->ndim - 1] == 2) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "x has shape %s; its last dimension must be 2, the real and imaginary parts",
                      gb_shape_text(x->ndim, x->shape, text, sizeof text));
}

static gb_status irfft_compose(gb_op_call *call) {
  const gb_attrs_irfft *attrs = GB_ATTRS(call, irfft);
  gb_tensor *x = GB_IN(call, irfft)->x;
  int dim, last = x->ndim - 1;
  GB_TRY(gb_require_float(call, GB_IN_AT(irfft, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(irfft, x), 2, GB_MAX_NDIM));
  GB_TRY(check_parts(call, x));
  GB_TRY(gb_call_dim(call, attrs->dim.integer, x->ndim, &dim));
  if (dim == last)
    return gb_call_fail(call, GB_EINDEX, "dim %d has the real and imaginary parts; name another", dim + 1);
  int64_t size = x->shape[dim], n = attrs->n.given ? attrs->n.integer : 2 * (size - 1);
  if (n < 1)
    return gb_call_fail(call, GB_ESHAPE, "dimension %d of x has %" PRId64 " elements, of which no signal comes; give n",
                        dim + 1, size);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *rows = padded(&c, moved(&c, x, dim, last - 1), 1, 0, gb_fft_half(n) - size);
  gb_tensor *y = GB_CHAIN(&c, fft_half, .x = GB_CHAIN(&c, contiguous, .x = rows), .n = gb_attr_int(n),
                          .scale = gb_attr_num(scale_of(attrs->norm.integer, GB_WORD_backward, n)));
  return gb_chain_end(&c, moved(&c, y, last - 1, dim), &GB_OUT(call, irfft)->y);
}

/* ====} */

/* {==== windows of a signal ==== */

/* The sizes that stft and istft share. */
typedef struct frames { int64_t n, hop, width; } frames;

/* The attributes of either begin alike. */
_Static_assert(GB_ATTR_AT(istft, n_fft) == GB_ATTR_AT(stft, n_fft) &&
               GB_ATTR_AT(istft, hop_length) == GB_ATTR_AT(stft, hop_length) &&
               GB_ATTR_AT(istft, win_length) == GB_ATTR_AT(stft, win_length) &&
               GB_IN_AT(istft, window) == GB_IN_AT(stft, window), "read as stft");

static gb_status frames_of(gb_op_call *call, frames *f) {
  const gb_attrs_stft *attrs = GB_ATTRS(call, stft);
  const gb_tensor *window = GB_IN(call, stft)->window;
  char text[96];
  f->n = attrs->n_fft.integer;
  f->hop = attrs->hop_length.given ? attrs->hop_length.integer : f->n / 4;
  f->width = attrs->win_length.given ? attrs->win_length.integer : f->n;
  if (f->hop < 1) return gb_call_fail(call, GB_EINVAL, "hop_length is n_fft / 4 = 0; give one");
  if (f->width > f->n)
    return gb_call_fail(call, GB_EINVAL, "win_length is %" PRId64 ", n_fft %" PRId64 "; a window lies within n_fft "
                                         "samples", f->width, f->n);
  if (window) GB_TRY(gb_require_float(call, GB_IN_AT(stft, window)));
  if (window && (window->ndim != 1 || window->numel != f->width))
    return gb_call_fail(call, GB_ESHAPE, "window has shape %s; it is a vector of win_length = %" PRId64 " elements",
                        gb_shape_text(window->ndim, window->shape, text, sizeof text), f->width);
  return GB_OK;
}

/* The window in the middle of n samples; ones of win_length where none is given, or NULL where they fill n. */
static gb_tensor *window_of(gb_chain *c, const frames *f, gb_tensor *window, const gb_tensor *x, bool always) {
  int64_t before = (f->n - f->width) / 2;
  if (!window && f->width == f->n && !always) return NULL;
  if (!window) window = gb_chain_full(c, (gb_dtype)x->dtype, 1, &f->width, x->storage->device, 1);
  return padded(c, window, 0, before, f->n - f->width - before);
}

/* All n numbers of transforms [..., n / 2 + 1, 2]: the rest are mirror images. */
static gb_tensor *both_sides(gb_chain *c, gb_tensor *y, int64_t n) {
  if (!y) return NULL;
  int64_t rest = n - gb_fft_half(n), dim = y->ndim - 2;
  gb_tensor *mirrored = GB_CHAIN(c, flip, .x = part(c, y, (int)dim, 1, rest), .dim = gb_attr_ints(1, &dim));
  gb_tensor *re = part(c, mirrored, (int)dim + 1, 0, 1), *im = part(c, mirrored, (int)dim + 1, 1, 1);
  gb_tensor *turned = GB_CHAIN(c, cat, .xs = ((gb_tensor *[]){ re, GB_CHAIN(c, neg, .x = im) }), .count = 2,
                               .dim = gb_attr_int(-1));
  return GB_CHAIN(c, cat, .xs = ((gb_tensor *[]){ y, turned }), .count = 2, .dim = gb_attr_int(dim));
}

static gb_status stft_compose(gb_op_call *call) {
  const gb_attrs_stft *attrs = GB_ATTRS(call, stft);
  gb_tensor *x = GB_IN(call, stft)->x;
  frames f;
  GB_TRY(gb_require_float(call, GB_IN_AT(stft, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(stft, x), 1, 2));
  GB_TRY(frames_of(call, &f));
  bool center = attrs->center.integer != 0;
  int64_t side = center ? f.n / 2 : 0, pad[2] = { side, side }, size = x->shape[x->ndim - 1] + 2 * side;
  if (f.n > size)
    return gb_call_fail(call, GB_ESHAPE, "x has %" PRId64 " samples%s, fewer than n_fft = %" PRId64, size,
                        center ? " with what is padded" : "", f.n);
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *window = window_of(&c, &f, GB_IN(call, stft)->window, x, false);
  if (center) x = GB_CHAIN(&c, pad, .x = x, .pad = gb_attr_ints(2, pad), .mode = attrs->pad_mode);
  gb_tensor *rows = GB_CHAIN(&c, unfold, .x = x, .dim = gb_attr_int(-1), .size = gb_attr_int(f.n),
                             .step = gb_attr_int(f.hop));
  rows = window ? GB_CHAIN(&c, mul, .x = rows, .y = window) : rows;
  double scale = attrs->normalized.integer ? 1 / sqrt((double)f.n) : 1;
  gb_tensor *y = GB_CHAIN(&c, fft_real, .x = GB_CHAIN(&c, contiguous, .x = rows), .scale = gb_attr_num(scale));
  if (!attrs->onesided.integer) y = both_sides(&c, y, f.n);
  y = GB_CHAIN(&c, transpose, .x = y, .first = gb_attr_int(-3), .second = gb_attr_int(-2));
  return gb_chain_end(&c, y, &GB_OUT(call, stft)->y);
}

/* Rows [batch, count, n] laid over each other, hop apart, and added: [batch, size]. */
static gb_tensor *laid_over(gb_chain *c, gb_tensor *rows, int64_t hop, int64_t size) {
  if (!rows) return NULL;
  const int64_t shape[2] = { rows->shape[0], size }, strides[2] = { size, 1 }, steps[3] = { size, hop, 1 };
  return GB_CHAIN(c, as_strided_backward, .grad = rows, .shape = gb_attr_ints(2, shape),
                  .strides = gb_attr_ints(2, strides), .view_shape = gb_attr_ints(3, rows->shape),
                  .view_strides = gb_attr_ints(3, steps), .view_offset = gb_attr_int(0));
}

/* What each of `count` samples from `start` on is divided by: the windows' squares that lie over it. None may be 0. */
static gb_status weights_over(gb_op_call *call, const frames *f, gb_tensor *window, int64_t windows, int64_t size,
                              int64_t start, int64_t count, gb_tensor **out) {
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *square = GB_CHAIN(&c, mul, .x = window, .y = window);
  gb_tensor *all = GB_CHAIN(&c, expand, .x = square, .shape = gb_attr_ints(3, (int64_t[]){ 1, windows, f->n }));
  gb_tensor *sums = part(&c, laid_over(&c, GB_CHAIN(&c, contiguous, .x = all), f->hop, size), 1, start, count);
  gb_tensor *low = GB_CHAIN(&c, gt, .x = GB_CHAIN(&c, amin, .x = gb_chain_detach(&c, sums)),
                            .y = gb_chain_wrap(&c, 1e-11));
  int64_t fine = 0;
  if (c.status == GB_OK) c.status = gb_tensor_item(low, NULL, &fine);
  GB_TRY(gb_chain_end(&c, sums, out));
  if (fine) return GB_OK;
  gb_drop(out);
  return gb_call_fail(call, GB_EINVAL, "the windows leave samples out that no window covers: use a smaller hop_length, "
                                       "center = true, or a window without zeros");
}

/* The shape of x, and which of the signal's samples come out. */
static gb_status istft_sizes(gb_op_call *call, const frames *f, int64_t *size, int64_t *start, int64_t *end) {
  const gb_attrs_istft *attrs = GB_ATTRS(call, istft);
  const gb_tensor *x = GB_IN(call, istft)->x;
  int64_t rows = attrs->onesided.integer ? gb_fft_half(f->n) : f->n, windows = x->shape[x->ndim - 2];
  char text[96];
  if (x->shape[x->ndim - 3] != rows || windows < 1)
    return gb_call_fail(call, GB_ESHAPE, "x has shape %s; n_fft = %" PRId64 " takes [..., %" PRId64 " frequencies, "
                                         "windows, 2]", gb_shape_text(x->ndim, x->shape, text, sizeof text), f->n,
                        rows);
  if (windows > (INT64_C(1) << 50) / f->hop)
    return gb_call_fail(call, GB_ESHAPE, "%" PRId64 " windows, %" PRId64 " samples apart, are too long a signal",
                        windows, f->hop);
  *size = f->n + f->hop * (windows - 1);
  *start = attrs->center.integer ? f->n / 2 : 0;
  *end = attrs->length.given ? *start + attrs->length.integer : *size - *start;
  if (*end > *size) *end = *size;
  if (*end > *start) return GB_OK;
  return gb_call_fail(call, GB_ESHAPE, "%" PRId64 " windows of %" PRId64 " samples leave nothing between the padded "
                                       "ends", windows, f->n);
}

static gb_status istft_compose(gb_op_call *call) {
  const gb_attrs_istft *attrs = GB_ATTRS(call, istft);
  gb_tensor *x = GB_IN(call, istft)->x, *over = NULL;
  frames f;
  int64_t size = 0, start = 0, end = 0;
  GB_TRY(gb_require_float(call, GB_IN_AT(istft, x)));
  GB_TRY(gb_require_ndim(call, GB_IN_AT(istft, x), 3, 4));
  GB_TRY(check_parts(call, x));
  GB_TRY(frames_of(call, &f));
  GB_TRY(istft_sizes(call, &f, &size, &start, &end));
  bool batched = x->ndim == 4;
  int64_t windows = x->shape[x->ndim - 2], missing = attrs->length.given ? attrs->length.integer - (end - start) : 0;
  gb_chain c;
  gb_chain_begin(&c, call->context);
  gb_tensor *window = window_of(&c, &f, GB_IN(call, istft)->window, x, true);
  gb_tensor *rows = gb_chain_cast(&c, x, window ? gb_promote((gb_dtype)x->dtype, (gb_dtype)window->dtype) : GB_FLOAT32);
  rows = GB_CHAIN(&c, transpose, .x = rows, .first = gb_attr_int(-3), .second = gb_attr_int(-2));
  if (!batched) rows = GB_CHAIN(&c, unsqueeze, .x = rows, .dim = gb_attr_int(0));
  if (!attrs->onesided.integer) rows = part(&c, rows, 2, 0, gb_fft_half(f.n));
  double scale = attrs->normalized.integer ? 1 / sqrt((double)f.n) : 1 / (double)f.n;
  gb_tensor *signals = GB_CHAIN(&c, fft_half, .x = GB_CHAIN(&c, contiguous, .x = rows), .n = gb_attr_int(f.n),
                                .scale = gb_attr_num(scale));
  signals = laid_over(&c, GB_CHAIN(&c, mul, .x = signals, .y = window), f.hop, size);
  if (c.status == GB_OK) c.status = weights_over(call, &f, window, windows, size, start, end - start, &over);
  gb_tensor *y = GB_CHAIN(&c, div, .x = part(&c, signals, 1, start, end - start), .y = over);
  if (missing > 0) y = padded(&c, y, 0, 0, missing);
  if (!batched) y = GB_CHAIN(&c, squeeze, .x = y, .dim = gb_attr_ints(1, &(int64_t){ 0 }));
  gb_status status = gb_chain_end(&c, y, &GB_OUT(call, istft)->y);
  gb_drop(&over);
  return status;
}

/* ====} */

const gb_op_impl gb_family_fft[] = {
  { .op = GB_OP_fft_real, .check = fft_real_check, .gradient = fft_real_gradient },
  { .op = GB_OP_fft_half, .check = fft_half_check, .gradient = fft_half_gradient },
  { .op = GB_OP_rfft, .compose = rfft_compose },
  { .op = GB_OP_irfft, .compose = irfft_compose },
  { .op = GB_OP_stft, .compose = stft_compose },
  { .op = GB_OP_istft, .compose = istft_compose },
  { .op = GB_OP_COUNT },
};
