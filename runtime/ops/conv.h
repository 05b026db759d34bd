/* ops/conv.h - sizes of convolution and pooling, which checks and kernels read from a call in the same way. Lists are
 * of the spatial dims, in order: (height, width). The attributes are as dispatch leaves them: one value per dim, within
 * the bounds of the row, which keep products of them from overflowing. */
#ifndef GB_OPS_CONV_H
#define GB_OPS_CONV_H

#include "graph/ops.h"

#define GB_CONV_DIMS 3                         /* spatial ones, at most */
#define GB_CONV_LIMIT ((int64_t)1 << 30)       /* for sizes of images and kernels, as for the attributes */

typedef struct gb_conv_sizes {
  int64_t dims;                                /* spatial ones, of which the lists have as many values; then zeros */
  int64_t n, c, in[GB_CONV_DIMS];              /* x [n, c, in...] */
  int64_t o, kernel[GB_CONV_DIMS];             /* weight [o, c / groups, kernel...] */
  int64_t out[GB_CONV_DIMS];                   /* y [n, o, out...] */
  int64_t stride[GB_CONV_DIMS], padding[GB_CONV_DIMS], dilation[GB_CONV_DIMS];
  int64_t groups;
} gb_conv_sizes;

/* These attributes of a row that has them: GB_CONV_ATTRS(GB_ATTRS(call, conv2d)). */
typedef struct gb_conv_attrs { const gb_attr *stride, *padding, *dilation, *groups; } gb_conv_attrs;
/* dilation, ceil_mode: NULL where a row has none. */
typedef struct gb_pool_attrs { const gb_attr *kernel_size, *stride, *padding, *dilation, *ceil_mode; } gb_pool_attrs;
#define GB_CONV_ATTRS(attrs)                                                                                           \
  ((gb_conv_attrs){ &(attrs)->stride, &(attrs)->padding, &(attrs)->dilation, &(attrs)->groups })
#define GB_POOL_ATTRS(attrs)                                                                                           \
  ((gb_pool_attrs){ &(attrs)->kernel_size, &(attrs)->stride, &(attrs)->padding, NULL, NULL })
#define GB_MAX_POOL_ATTRS(attrs)                                                                                       \
  ((gb_pool_attrs){ &(attrs)->kernel_size, &(attrs)->stride, &(attrs)->padding, &(attrs)->dilation,                    \
                    &(attrs)->ceil_mode })
#define GB_MEAN_POOL_ATTRS(attrs)                                                                                      \
  ((gb_pool_attrs){ &(attrs)->kernel_size, &(attrs)->stride, &(attrs)->padding, NULL, &(attrs)->ceil_mode })

/* How many windows fit along one dimension; 0 when not even one does. */
static inline int64_t gb_window_count(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

/* The same, where windows may begin in the input, or in the padding before it, and end beyond the padding (`ceil`). */
static inline int64_t gb_window_count_of(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                                         bool ceil) {
  int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1, more = ceil ? stride - 1 : 0;
  if (room + more < 0) return 0;
  int64_t count = (room + more) / stride + 1;
  return ceil && (count - 1) * stride >= in + padding ? count - 1 : count;
}

/* The padding behind the input that the windows reach into: as much as before it, or, with a stride of 1, what the
 * last window needs, which for padding = "same" may be one more. */
static inline int64_t gb_padding_after(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                                       int64_t dilation) {
  return stride == 1 ? out + dilation * (kernel - 1) - in - padding : padding;
}

/* The sizes of a convolution over so many spatial dims of x by weight. */
static inline gb_conv_sizes gb_conv_sizes_of(int dims, const int64_t *x, const int64_t *weight, gb_conv_attrs attrs) {
  gb_conv_sizes s = { .dims = dims, .n = x[0], .c = x[1], .o = weight[0], .groups = attrs.groups->integer };
  for (int i = 0; i < dims; i++) {
    s.in[i] = x[2 + i], s.kernel[i] = weight[2 + i];
    s.stride[i] = attrs.stride->ints[i], s.padding[i] = attrs.padding->ints[i], s.dilation[i] = attrs.dilation->ints[i];
    s.out[i] = gb_window_count(s.in[i], s.kernel[i], s.stride[i], s.padding[i], s.dilation[i]);
    if (attrs.padding->exact == GB_WORD_same) s.padding[i] = s.dilation[i] * (s.kernel[i] - 1) / 2, s.out[i] = s.in[i];
  }
  return s;
}

/* The sizes of a pooling over so many spatial dims of x. The stride is kernel_size unless given. */
static inline gb_conv_sizes gb_pool_sizes_of(int dims, const int64_t *x, gb_pool_attrs attrs) {
  gb_conv_sizes s = { .dims = dims, .n = x[0], .c = x[1], .o = x[1], .groups = 1 };
  const gb_attr *stride = attrs.stride->given ? attrs.stride : attrs.kernel_size;
  for (int i = 0; i < dims; i++) {
    s.in[i] = x[2 + i], s.kernel[i] = attrs.kernel_size->ints[i], s.stride[i] = stride->ints[i];
    s.padding[i] = attrs.padding->ints[i], s.dilation[i] = attrs.dilation ? attrs.dilation->ints[i] : 1;
    s.out[i] = gb_window_count_of(s.in[i], s.kernel[i], s.stride[i], s.padding[i], s.dilation[i],
                                  attrs.ceil_mode && attrs.ceil_mode->integer);
  }
  return s;
}

/* Strides of [n, c, h, w] with the channels last in memory; of a weight, with the input channels last. Of a shape that
 * is too large for any tensor, which whoever allocates it turns down, they are meaningless numbers. */
static inline void gb_channels_last_strides(const int64_t *shape, int64_t *strides) {
  uint64_t row = (uint64_t)shape[1] * (uint64_t)shape[3];
  strides[1] = 1;
  strides[3] = shape[1];
  strides[2] = (int64_t)row;
  strides[0] = (int64_t)(row * (uint64_t)shape[2]);
}

/* Convolutions that are made of those over two dimensions: conv_more.c. */
gb_status gb_conv1d_compose(gb_op_call *call);
gb_status gb_conv3d_compose(gb_op_call *call);
gb_status gb_conv_transpose1d_compose(gb_op_call *call);
gb_status gb_conv_transpose2d_compose(gb_op_call *call);
gb_status gb_conv_transpose3d_compose(gb_op_call *call);

/* Poolings of the positions in an image, and those that are made of others: pool.c. */
gb_status gb_scatter_places(gb_context *c, gb_tensor *grad, gb_tensor *places, const int64_t *shape, gb_tensor **out);
gb_status gb_max_pool1d_compose(gb_op_call *call);
gb_status gb_max_pool3d_compose(gb_op_call *call);
gb_status gb_avg_pool1d_compose(gb_op_call *call);
gb_status gb_avg_pool3d_compose(gb_op_call *call);
gb_status gb_adaptive_avg_pool1d_compose(gb_op_call *call);
gb_status gb_adaptive_avg_pool3d_compose(gb_op_call *call);
gb_status gb_adaptive_max_pool1d_compose(gb_op_call *call);
gb_status gb_adaptive_max_pool3d_compose(gb_op_call *call);
gb_status gb_lp_pool1d_compose(gb_op_call *call);
gb_status gb_lp_pool2d_compose(gb_op_call *call);
gb_status gb_lp_pool3d_compose(gb_op_call *call);
gb_status gb_max_unpool1d_compose(gb_op_call *call);
gb_status gb_max_unpool2d_compose(gb_op_call *call);
gb_status gb_max_unpool3d_compose(gb_op_call *call);

#endif
