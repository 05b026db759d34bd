/* watch/products.h - the matrix products of a call: their sizes, and whether Tensor Cores can run them. Pure: reads the
 * call.
 *
 * The rule is that of NVIDIA's guides. In 16 bits M, N and K must be multiples of 8 (16 bytes); in float32 rounded to
 * TF32, of 4. Other sizes are padded or copied by the library, which costs time, or run on ordinary units. */
#ifndef GB_WATCH_PRODUCTS_H
#define GB_WATCH_PRODUCTS_H

#include "graph/ops.h"

/* One product, or a batch of equal ones: [m, k] by [k, n]. The sizes that must be multiples are checked, under the
 * names that a report gives them. */
typedef struct gb_product_shape {
  int64_t batch, m, n, k;
  int n_checked;
  struct { char name[12]; int64_t size; } checked[3];
} gb_product_shape;

enum { GB_PRODUCTS_MOST = 8 }; /* of one call: the gradients of recurrent layers with projections */

typedef struct gb_product_list {
  int count;                 /* 0: the op multiplies no matrices */
  gb_product_shape shapes[GB_PRODUCTS_MOST];
  int8_t dtype;              /* that the operands are multiplied in */
  bool mixed;                /* they have two dtypes: one is converted first */
  bool copied;               /* one lies so that it is copied first */
} gb_product_list;

/* Of a call that ran; `list` is zeroed. */
void gb_products_of(const gb_op_call *call, gb_product_list *list);

#endif
