/* ops/pool.c - poolings that are made of those over two dimensions, their inverses, and gradients by indices.
 *
 * One dimension is two of which the first has size 1. Three are pooled in two steps, the images first and then along
 * the depth: means and maxima come apart like that, and the first of equal elements stays the first. 16-bit means of
 * two steps are rounded once. Indices count the positions of an image or a volume from 0, row by row. */
#include <inttypes.h>
#include <string.h>

#include "graph/chain.h"
#include "ops/conv.h"

/* {==== Steps ==== */

static gb_tensor *shaped(gb_chain *chain, gb_tensor *x, int ndim, const int64_t *shape) {
  return GB_CHAIN(chain, reshape, .x = x, .shape = gb_attr_ints(ndim, shape));
}

static gb_tensor *turned(gb_chain *chain, gb_tensor *x) {
  return GB_CHAIN(chain, permute, .x = x, .dims = gb_attr_ints(5, (int64_t[]){ 0, 2, 1, 3, 4 }));
}

/* Volumes [n, c, d, h, w] and whether their channels lie side by side: then the slices of a volume are images of c
 * channels, else of c * d. Nothing is copied of volumes as convolutions make them, nor of contiguous ones. */
typedef struct volumes { int64_t n, c, d; bool by_slices; } volumes;
static volumes volumes_of(const gb_tensor *x) {
  return (volumes){ x->shape[0], x->shape[1], x->shape[2], x->stride[1] == 1 && x->shape[1] > 1 };
}

/* The images of x. */
static gb_tensor *images_of_volumes(gb_chain *chain, gb_tensor *x) {
  const volumes v = volumes_of(x);
  const int64_t h = x->shape[3], w = x->shape[4];
  if (!v.by_slices) return shaped(chain, x, 4, (int64_t[]){ v.n, v.c * v.d, h, w });
  return shaped(chain, turned(chain, x), 4, (int64_t[]){ v.n * v.d, v.c, h, w });
}

/* What images of volumes were pooled to, as images [n, c, d, places]. */
static gb_tensor *along_depth(gb_chain *chain, gb_tensor *y, volumes v) {
  if (chain->status != GB_OK) return NULL;
  const int64_t h = y->shape[2], w = y->shape[3];
  if (v.by_slices) y = turned(chain, shaped(chain, y, 5, (int64_t[]){ v.n, v.d, v.c, h, w }));
  return shaped(chain, y, 4, (int64_t[]){ v.n, v.c, v.d, h * w });
}

/* x [n, c, length] as images of one row, and back. */
static gb_tensor *with_row(gb_chain *chain, gb_tensor *x) {
  return GB_CHAIN(chain, unsqueeze, .x = x, .dim = gb_attr_int(2));
}
static gb_tensor *without_row(gb_chain *chain, gb_tensor *y) {
  return y ? GB_CHAIN(chain, squeeze, .x = y, .dim = gb_attr_ints(1, (int64_t[]){ 2 })) : NULL;
}

/* A list of one or three as a list of two: `first` and value `at`. What is not given stays so. */
static gb_attr pair_at(const gb_attr *list, int64_t first, int at) {
  gb_attr pair = gb_attr_ints(2, (int64_t[]){ first, list->ints[at] });
  pair.given = list->given;
  return pair;
}

/* Of a list of three: the two of an image; and the one of the depth, with `second` for what is pooled already. */
static gb_attr image_of(const gb_attr *list) { return pair_at(list, list->ints[1], 2); }
static gb_attr depth_of(const gb_attr *list, int64_t second) {
  gb_attr pair = gb_attr_ints(2, (int64_t[]){ list->ints[0], second });
  pair.given = list->given;
  return pair;
}

/* What a maximum gives: y, and the indices or NULL. The chain owns both. */
typedef struct best { gb_tensor *y, *indices; } best;

/* Take over what an op with two outputs made. */
static best keep_both(gb_chain *chain, gb_status status, gb_tensor *y, gb_tensor *indices) {
  best b = { y, indices };
  chain->status = status;
  if (y) chain->made[chain->count++] = y;
  if (indices) chain->made[chain->count++] = indices;
  return status == GB_OK ? b : (best){ NULL, NULL };
}

static gb_status end_both(gb_chain *chain, best b, gb_tensor **y, gb_tensor **indices) {
  if (chain->status == GB_OK && b.indices) gb_tensor_retain(*indices = b.indices);
  return gb_chain_end(chain, b.y, y);
}

/* Maxima of images; size given: adaptive. */
typedef struct max_windows { gb_attr kernel_size, stride, padding, dilation, ceil_mode, size; } max_windows;

static best largest(gb_chain *chain, gb_tensor *x, const max_windows *w, bool indices) {
  if (chain->status != GB_OK) return (best){ NULL, NULL };
  gb_out_max_pool2d made = { 0 };
  gb_out_adaptive_max_pool2d adaptive = { 0 };
  gb_attr want = gb_attr_int(indices);
  if (w->size.given) {
    gb_status status = GB_RUN(chain->context, adaptive_max_pool2d, &adaptive.y, .x = x, .size = w->size,
                              .return_indices = want);
    return keep_both(chain, status, adaptive.y, adaptive.indices);
  }
  gb_status status = GB_RUN(chain->context, max_pool2d, &made.y, .x = x, .kernel_size = w->kernel_size,
                            .stride = w->stride, .padding = w->padding, .dilation = w->dilation,
                            .ceil_mode = w->ceil_mode, .return_indices = want);
  return keep_both(chain, status, made.y, made.indices);
}

/* Maxima of the volumes x [n, c, d, h, w]: of images, then along the depth. */
static best largest_of_volumes(gb_chain *chain, gb_tensor *x, const max_windows *images, const max_windows *depth,
                               bool indices) {
  const int64_t *s = x->shape;
  const volumes v = volumes_of(x);
  best flat = largest(chain, images_of_volumes(chain, x), images, indices);
  if (chain->status != GB_OK) return flat;
  const int64_t h = flat.y->shape[2], w = flat.y->shape[3];
  max_windows along = *depth;
  if (along.size.given) along.size.ints[1] = h * w;
  best deep = largest(chain, along_depth(chain, flat.y, v), &along, indices);
  if (chain->status != GB_OK) return deep;
  const int64_t d = deep.y->shape[2], shape[5] = { s[0], s[1], d, h, w };
  best made = { shaped(chain, deep.y, 5, shape), NULL };
  if (!indices) return made;
  gb_tensor *slice = GB_CHAIN(chain, floor_divide, .x = deep.indices,
                              .y = gb_chain_full(chain, GB_INT64, 0, NULL, gb_tensor_device(x), (double)(h * w)));
  gb_tensor *from = shaped(chain, along_depth(chain, flat.indices, v), 3, (int64_t[]){ s[0], s[1], s[2] * h * w });
  gb_tensor *inside = GB_CHAIN(chain, gather, .x = from, .dim = gb_attr_int(2),
                               .index = shaped(chain, deep.indices, 3, (int64_t[]){ s[0], s[1], d * h * w }));
  gb_tensor *before = GB_CHAIN(chain, mul, .x = slice, .y = gb_chain_full(chain, GB_INT64, 0, NULL, gb_tensor_device(x),
                                                                       (double)(s[3] * s[4])));
  made.indices = GB_CHAIN(chain, add, .x = shaped(chain, before, 5, shape), .y = shaped(chain, inside, 5, shape));
  return made;
}

/* Every pooling begins with x, floats of so many dimensions. */
static gb_status check_x(gb_op_call *call, int ndim) {
  GB_TRY(gb_require_ndim(call, 0, ndim, ndim));
  GB_TRY(gb_require_float(call, 0));
  const gb_tensor *x = GB_IN(call, max_pool1d)->x;
  char text[96];
  for (int i = 1; i < ndim; i++)
    if (x->shape[i] == 0 || x->shape[i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE, "dimension %d of 'x' (%s) has size %" PRId64 "; only the batch may be empty",
                          i + 1, gb_shape_text(ndim, x->shape, text, sizeof text), x->shape[i]);
  return GB_OK;
}
#define GB_BEGINS_WITH_X(op) _Static_assert(GB_IN_AT(op, x) == 0 && GB_OUT_AT(op, y) == 0, "check_x reads it")
GB_BEGINS_WITH_X(max_pool1d);
GB_BEGINS_WITH_X(max_pool3d);
GB_BEGINS_WITH_X(avg_pool1d);
GB_BEGINS_WITH_X(avg_pool3d);
GB_BEGINS_WITH_X(adaptive_avg_pool1d);
GB_BEGINS_WITH_X(adaptive_avg_pool3d);
GB_BEGINS_WITH_X(adaptive_max_pool1d);
GB_BEGINS_WITH_X(adaptive_max_pool3d);
GB_BEGINS_WITH_X(lp_pool1d);
GB_BEGINS_WITH_X(lp_pool2d);
GB_BEGINS_WITH_X(lp_pool3d);
GB_BEGINS_WITH_X(max_unpool1d);
GB_BEGINS_WITH_X(max_unpool2d);
GB_BEGINS_WITH_X(max_unpool3d);

/* ====} */

/* {==== Maxima ==== */

gb_status gb_max_pool1d_compose(gb_op_call *call) {
  const gb_attrs_max_pool1d *a = GB_ATTRS(call, max_pool1d);
  GB_TRY(check_x(call, 3));
  const max_windows w = { pair_at(&a->kernel_size, 1, 0), pair_at(&a->stride, 1, 0), pair_at(&a->padding, 0, 0),
                          pair_at(&a->dilation, 1, 0), a->ceil_mode, { .given = false } };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  best b = largest(&chain, with_row(&chain, GB_IN(call, max_pool1d)->x), &w, a->return_indices.integer);
  b = (best){ without_row(&chain, b.y), without_row(&chain, b.indices) };
  return end_both(&chain, b, &GB_OUT(call, max_pool1d)->y, &GB_OUT(call, max_pool1d)->indices);
}

gb_status gb_adaptive_max_pool1d_compose(gb_op_call *call) {
  const gb_attrs_adaptive_max_pool1d *a = GB_ATTRS(call, adaptive_max_pool1d);
  GB_TRY(check_x(call, 3));
  const max_windows w = { .size = pair_at(&a->size, 1, 0) };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  best b = largest(&chain, with_row(&chain, GB_IN(call, adaptive_max_pool1d)->x), &w, a->return_indices.integer);
  b = (best){ without_row(&chain, b.y), without_row(&chain, b.indices) };
  return end_both(&chain, b, &GB_OUT(call, adaptive_max_pool1d)->y, &GB_OUT(call, adaptive_max_pool1d)->indices);
}

gb_status gb_max_pool3d_compose(gb_op_call *call) {
  const gb_attrs_max_pool3d *a = GB_ATTRS(call, max_pool3d);
  GB_TRY(check_x(call, 5));
  const max_windows images = { image_of(&a->kernel_size), image_of(&a->stride), image_of(&a->padding),
                               image_of(&a->dilation), a->ceil_mode, { .given = false } };
  const max_windows depth = { depth_of(&a->kernel_size, 1), depth_of(&a->stride, 1), depth_of(&a->padding, 0),
                              depth_of(&a->dilation, 1), a->ceil_mode, { .given = false } };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  best b = largest_of_volumes(&chain, GB_IN(call, max_pool3d)->x, &images, &depth, a->return_indices.integer);
  return end_both(&chain, b, &GB_OUT(call, max_pool3d)->y, &GB_OUT(call, max_pool3d)->indices);
}

gb_status gb_adaptive_max_pool3d_compose(gb_op_call *call) {
  const gb_attrs_adaptive_max_pool3d *a = GB_ATTRS(call, adaptive_max_pool3d);
  GB_TRY(check_x(call, 5));
  const max_windows images = { .size = image_of(&a->size) }, depth = { .size = depth_of(&a->size, 1) };
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  best b = largest_of_volumes(&chain, GB_IN(call, adaptive_max_pool3d)->x, &images, &depth, a->return_indices.integer);
  return end_both(&chain, b, &GB_OUT(call, adaptive_max_pool3d)->y, &GB_OUT(call, adaptive_max_pool3d)->indices);
}

gb_status gb_scatter_places(gb_context *c, gb_tensor *grad, gb_tensor *places, const int64_t *shape, gb_tensor **out) {
  const int64_t *s = grad->shape, from[3] = { s[0], s[1], s[2] * s[3] };
  const int64_t to[3] = { s[0], s[1], gb_size_times(shape[2], shape[3]) };
  gb_chain chain;
  gb_chain_begin(&chain, c);
  gb_tensor *wide = gb_chain_widen(&chain, grad), *dx = NULL;
  if (chain.status == GB_OK)
    dx = gb_chain_full(&chain, (gb_dtype)wide->dtype, 3, to, gb_tensor_device(grad), 0);
  dx = GB_CHAIN(&chain, scatter_add, .x = dx, .dim = gb_attr_int(2), .index = shaped(&chain, places, 3, from),
                .source = shaped(&chain, wide, 3, from));
  return gb_chain_end(&chain, gb_chain_cast(&chain, shaped(&chain, dx, 4, shape), (gb_dtype)grad->dtype), out);
}

/* ====} */

/* {==== Means ==== */

gb_status gb_avg_pool1d_compose(gb_op_call *call) {
  const gb_attrs_avg_pool1d *a = GB_ATTRS(call, avg_pool1d);
  GB_TRY(check_x(call, 3));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = GB_CHAIN(&chain, avg_pool2d, .x = with_row(&chain, GB_IN(call, avg_pool1d)->x),
                          .kernel_size = pair_at(&a->kernel_size, 1, 0), .stride = pair_at(&a->stride, 1, 0),
                          .padding = pair_at(&a->padding, 0, 0), .ceil_mode = a->ceil_mode,
                          .count_include_pad = a->count_include_pad);
  return gb_chain_end(&chain, without_row(&chain, y), &GB_OUT(call, avg_pool1d)->y);
}

/* A divisor that is given divides in the second step, and the first one sums. */
gb_status gb_avg_pool3d_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, avg_pool3d)->x;
  const gb_attrs_avg_pool3d *a = GB_ATTRS(call, avg_pool3d);
  GB_TRY(check_x(call, 5));
  const int64_t *s = x->shape;
  gb_attr one = gb_attr_int(1);
  one.given = a->divisor_override.given;
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *wide = gb_chain_widen(&chain, x);
  if (chain.status != GB_OK) return gb_chain_end(&chain, NULL, &GB_OUT(call, avg_pool3d)->y);
  const volumes v = volumes_of(wide);
  gb_tensor *y = GB_CHAIN(&chain, avg_pool2d, .x = images_of_volumes(&chain, wide),
                          .kernel_size = image_of(&a->kernel_size), .stride = image_of(&a->stride),
                          .padding = image_of(&a->padding), .ceil_mode = a->ceil_mode,
                          .count_include_pad = a->count_include_pad, .divisor_override = one);
  if (chain.status != GB_OK) return gb_chain_end(&chain, NULL, &GB_OUT(call, avg_pool3d)->y);
  const int64_t h = y->shape[2], w = y->shape[3];
  y = GB_CHAIN(&chain, avg_pool2d, .x = along_depth(&chain, y, v),
               .kernel_size = depth_of(&a->kernel_size, 1), .stride = depth_of(&a->stride, 1),
               .padding = depth_of(&a->padding, 0), .ceil_mode = a->ceil_mode,
               .count_include_pad = a->count_include_pad, .divisor_override = a->divisor_override);
  if (chain.status == GB_OK) y = shaped(&chain, y, 5, (int64_t[]){ s[0], s[1], y->shape[2], h, w });
  return gb_chain_end(&chain, gb_chain_cast(&chain, y, (gb_dtype)x->dtype), &GB_OUT(call, avg_pool3d)->y);
}

gb_status gb_adaptive_avg_pool1d_compose(gb_op_call *call) {
  GB_TRY(check_x(call, 3));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = GB_CHAIN(&chain, adaptive_avg_pool2d, .x = with_row(&chain, GB_IN(call, adaptive_avg_pool1d)->x),
                          .size = pair_at(&GB_ATTRS(call, adaptive_avg_pool1d)->size, 1, 0));
  return gb_chain_end(&chain, without_row(&chain, y), &GB_OUT(call, adaptive_avg_pool1d)->y);
}

gb_status gb_adaptive_avg_pool3d_compose(gb_op_call *call) {
  gb_tensor *x = GB_IN(call, adaptive_avg_pool3d)->x;
  GB_TRY(check_x(call, 5));
  const gb_attr *size = &GB_ATTRS(call, adaptive_avg_pool3d)->size;
  const int64_t *s = x->shape, d = size->ints[0], h = size->ints[1], w = size->ints[2];
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *wide = gb_chain_widen(&chain, x);
  if (chain.status != GB_OK) return gb_chain_end(&chain, NULL, &GB_OUT(call, adaptive_avg_pool3d)->y);
  gb_tensor *y = GB_CHAIN(&chain, adaptive_avg_pool2d, .x = images_of_volumes(&chain, wide), .size = image_of(size));
  gb_tensor *columns = along_depth(&chain, y, volumes_of(wide));
  y = GB_CHAIN(&chain, adaptive_avg_pool2d, .x = columns, .size = depth_of(size, h * w));
  y = shaped(&chain, y, 5, (int64_t[]){ s[0], s[1], d, h, w });
  return gb_chain_end(&chain, gb_chain_cast(&chain, y, (gb_dtype)x->dtype), &GB_OUT(call, adaptive_avg_pool3d)->y);
}

/* ====} */

/* {==== Norms ==== */

/* (the sum over each window of x^p)^(1/p), for the window of an image or, of three sizes, of a volume. As in PyTorch, a
 * sum of 0 has no gradient. */
static gb_tensor *norms(gb_chain *chain, gb_tensor *x, double p, gb_attr kernel, gb_attr stride, gb_attr ceil_mode) {
  gb_tensor *powers = gb_chain_number(chain, GB_OP_pow, x, p);
  int64_t places = kernel.ints[0] * kernel.ints[1];
  gb_tensor *sum = kernel.count == 3
      ? GB_CHAIN(chain, avg_pool3d, .x = powers, .kernel_size = kernel, .stride = stride, .ceil_mode = ceil_mode)
      : GB_CHAIN(chain, avg_pool2d, .x = powers, .kernel_size = kernel, .stride = stride, .ceil_mode = ceil_mode);
  if (kernel.count == 3) places *= kernel.ints[2];
  gb_tensor *size = GB_CHAIN(chain, relu, .x = GB_CHAIN(chain, abs, .x = sum));
  sum = GB_CHAIN(chain, mul, .x = GB_CHAIN(chain, sign, .x = sum), .y = size);
  sum = gb_chain_number(chain, GB_OP_mul, sum, (double)places);
  return gb_chain_number(chain, GB_OP_pow, sum, 1 / p);
}

gb_status gb_lp_pool1d_compose(gb_op_call *call) {
  const gb_attrs_lp_pool1d *a = GB_ATTRS(call, lp_pool1d);
  GB_TRY(check_x(call, 3));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *y = norms(&chain, with_row(&chain, GB_IN(call, lp_pool1d)->x), a->norm_type.number,
                       pair_at(&a->kernel_size, 1, 0), pair_at(&a->stride, 1, 0), a->ceil_mode);
  return gb_chain_end(&chain, without_row(&chain, y), &GB_OUT(call, lp_pool1d)->y);
}

/* What lp_pool2d and lp_pool3d do, of an x with this many dimensions. */
static gb_status norms_of(gb_op_call *call, int ndim, gb_tensor *x, double p, const gb_attr *kernel,
                          const gb_attr *stride, gb_attr ceil_mode, gb_tensor **y) {
  GB_TRY(check_x(call, ndim));
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  return gb_chain_end(&chain, norms(&chain, x, p, *kernel, *stride, ceil_mode), y);
}

gb_status gb_lp_pool2d_compose(gb_op_call *call) {
  const gb_attrs_lp_pool2d *a = GB_ATTRS(call, lp_pool2d);
  return norms_of(call, 4, GB_IN(call, lp_pool2d)->x, a->norm_type.number, &a->kernel_size, &a->stride, a->ceil_mode,
                  &GB_OUT(call, lp_pool2d)->y);
}

gb_status gb_lp_pool3d_compose(gb_op_call *call) {
  const gb_attrs_lp_pool3d *a = GB_ATTRS(call, lp_pool3d);
  return norms_of(call, 5, GB_IN(call, lp_pool3d)->x, a->norm_type.number, &a->kernel_size, &a->stride, a->ceil_mode,
                  &GB_OUT(call, lp_pool3d)->y);
}

/* ====} */

/* {==== Unpooling ==== */

/* The attributes of max_unpool1d, 2d and 3d, and how many dimensions they are of. */
typedef struct unpool { int dims; const gb_attr *kernel_size, *stride, *padding, *output_size; } unpool;
#define UNPOOL(dims, attrs)                                                                                            \
  ((unpool){ dims, &(attrs)->kernel_size, &(attrs)->stride, &(attrs)->padding, &(attrs)->output_size })

/* The shape of the result: output_size, within a stride of what the windows say. */
static gb_status unpooled_shape(gb_op_call *call, const unpool *u, const gb_tensor *x, int64_t *shape) {
  const gb_attr *stride = u->stride->given ? u->stride : u->kernel_size;
  shape[0] = x->shape[0], shape[1] = x->shape[1];
  for (int i = 0; i < u->dims; i++) {
    int64_t step = stride->ints[i];
    int64_t size = (x->shape[2 + i] - 1) * step - 2 * u->padding->ints[i] + u->kernel_size->ints[i];
    shape[2 + i] = u->output_size->given ? u->output_size->ints[i] : size;
    if (u->output_size->given && (shape[2 + i] <= size - step || shape[2 + i] >= size + step))
      return gb_call_fail(call, GB_ESHAPE, "output_size is %" PRId64 " along dimension %d; it must be above %" PRId64
                          " and below %" PRId64, shape[2 + i], 3 + i, size - step, size + step);
    if (shape[2 + i] <= 0 || shape[2 + i] > GB_CONV_LIMIT)
      return gb_call_fail(call, GB_ESHAPE, "the result would have size %" PRId64 " along dimension %d", shape[2 + i],
                          3 + i);
  }
  return GB_OK;
}

/* Elements of all planes go into one vector of zeros. An index outside its plane becomes one outside the vector. */
static gb_status unpool_compose(gb_op_call *call, const unpool *u) {
  gb_tensor *x = GB_IN(call, max_unpool2d)->x, *indices = GB_IN(call, max_unpool2d)->indices;
  int64_t shape[5], each = 1, from = 1;
  char a[96], b[96];
  GB_TRY(check_x(call, u->dims + 2));
  GB_TRY(gb_require_integer(call, GB_IN_AT(max_unpool2d, indices)));
  if (indices->ndim != x->ndim || memcmp(indices->shape, x->shape, (size_t)x->ndim * sizeof *x->shape))
    return gb_call_fail(call, GB_ESHAPE, "x has shape %s and indices %s; they must be equal",
                        gb_shape_text(x->ndim, x->shape, a, sizeof a),
                        gb_shape_text(indices->ndim, indices->shape, b, sizeof b));
  GB_TRY(unpooled_shape(call, u, x, shape));
  for (int i = 2; i < u->dims + 2; i++) each = gb_size_times(each, shape[i]), from *= x->shape[i];
  const int64_t planes = shape[0] * shape[1], all = gb_size_times(planes, each), flat = planes * from;
  const gb_device device = gb_tensor_device(x);
  gb_chain chain;
  gb_chain_begin(&chain, call->context);
  gb_tensor *first = gb_chain_full(&chain, GB_INT64, 1, &planes, device, 0);
  if (chain.status == GB_OK)
    chain.status = GB_RUN(chain.context, sequence, NULL, .x = first, .step = gb_attr_whole(each));
  gb_tensor *given = gb_chain_cast(&chain, shaped(&chain, indices, 2, (int64_t[]){ planes, from }), GB_INT64);
  gb_tensor *limit = gb_chain_full(&chain, GB_INT64, 0, NULL, device, (double)each);
  gb_tensor *zero = gb_chain_full(&chain, GB_INT64, 0, NULL, device, 0);
  gb_tensor *inside = GB_CHAIN(&chain, logical_and, .x = GB_CHAIN(&chain, lt, .x = given, .y = limit),
                               .y = GB_CHAIN(&chain, ge, .x = given, .y = zero));
  gb_tensor *at = GB_CHAIN(&chain, add, .x = given,
                           .y = GB_CHAIN(&chain, unsqueeze, .x = first, .dim = gb_attr_int(1)));
  gb_tensor *outside = gb_chain_full(&chain, GB_INT64, 0, NULL, device, (double)all);
  at = GB_CHAIN(&chain, where, .condition = inside, .x = at, .y = outside);
  gb_tensor *y = gb_chain_full(&chain, (gb_dtype)x->dtype, 1, &all, device, 0);
  y = GB_CHAIN(&chain, index_put, .x = y, .index = shaped(&chain, at, 1, &flat), .source = shaped(&chain, x, 1, &flat));
  return gb_chain_end(&chain, shaped(&chain, y, u->dims + 2, shape), &GB_OUT(call, max_unpool2d)->y);
}
_Static_assert(GB_IN_AT(max_unpool1d, indices) == GB_IN_AT(max_unpool2d, indices) &&
               GB_IN_AT(max_unpool3d, indices) == GB_IN_AT(max_unpool2d, indices), "read as max_unpool2d");

gb_status gb_max_unpool1d_compose(gb_op_call *call) {
  return unpool_compose(call, &UNPOOL(1, GB_ATTRS(call, max_unpool1d)));
}
gb_status gb_max_unpool2d_compose(gb_op_call *call) {
  return unpool_compose(call, &UNPOOL(2, GB_ATTRS(call, max_unpool2d)));
}
gb_status gb_max_unpool3d_compose(gb_op_call *call) {
  return unpool_compose(call, &UNPOOL(3, GB_ATTRS(call, max_unpool3d)));
}

/* ====} */
