/* ops/conv.h - sizes of 2-D convolution and pooling, which checks and kernels read from a call in the same way. Pairs are
 * (height, width). The attributes were checked by themselves (strides and kernels at least 1, nothing above GB_CONV_LIMIT) before. */
#ifndef GB_OPS_CONV_H
#define GB_OPS_CONV_H

#include "graph/ops.h"

/* Larger strides, paddings and kernels than this are refused, so that no product below overflows. */
#define GB_CONV_LIMIT ((int64_t)1 << 30)

typedef struct gb_conv_sizes {
  int64_t n, c, in[2];                         /* x [n, c, in[0], in[1]] */
  int64_t o, kernel[2];                        /* weight [o, c / groups, kernel[0], kernel[1]] */
  int64_t out[2];                              /* y [n, o, out[0], out[1]] */
  int64_t stride[2], padding[2], dilation[2];
  int64_t groups;
} gb_conv_sizes;

/* An attribute that is one number for height and width, or one for each. */
static inline void gb_pair(const gb_attr *attr, int64_t pair[2]) {
  pair[0] = attr->ints[0];
  pair[1] = attr->count > 1 ? attr->ints[1] : attr->ints[0];
}

/* How many windows fit along one dimension; 0 when not even one does. */
static inline int64_t gb_window_count(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

/* The sizes of a convolution; attrs are stride, padding, dilation and groups, in this order. */
static inline gb_conv_sizes gb_conv_sizes_of(const int64_t *x, const int64_t *weight, const gb_attr *attrs) {
  gb_conv_sizes s = { .n = x[0], .c = x[1], .in = { x[2], x[3] }, .o = weight[0], .kernel = { weight[2], weight[3] }, .groups = attrs[3].integer };
  gb_pair(&attrs[0], s.stride);
  gb_pair(&attrs[1], s.padding);
  gb_pair(&attrs[2], s.dilation);
  for (int i = 0; i < 2; i++) s.out[i] = gb_window_count(s.in[i], s.kernel[i], s.stride[i], s.padding[i], s.dilation[i]);
  return s;
}

/* The sizes of a pooling of x's shape; attrs are kernel_size, stride and padding, in this order. */
static inline gb_conv_sizes gb_pool_sizes_of(const int64_t *x, const gb_attr *attrs) {
  gb_conv_sizes s = { .n = x[0], .c = x[1], .in = { x[2], x[3] }, .o = x[1], .dilation = { 1, 1 }, .groups = 1 };
  gb_pair(&attrs[0], s.kernel);
  gb_pair(attrs[1].given ? &attrs[1] : &attrs[0], s.stride);
  gb_pair(&attrs[2], s.padding);
  for (int i = 0; i < 2; i++) s.out[i] = gb_window_count(s.in[i], s.kernel[i], s.stride[i], s.padding[i], 1);
  return s;
}

/* Strides of [n, c, h, w] with the channels last in memory; of a weight, with the input channels last. */
static inline void gb_channels_last_strides(const int64_t *shape, int64_t *strides) {
  strides[1] = 1;
  strides[3] = shape[1];
  strides[2] = shape[1] * shape[3];
  strides[0] = shape[1] * shape[3] * shape[2];
}

#endif
