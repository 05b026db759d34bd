/* ops/families.h - what each family gives for its ops: lists that end with {GB_OP_COUNT}. */
#ifndef GB_OPS_FAMILIES_H
#define GB_OPS_FAMILIES_H

#include "graph/ops.h"

/* A file of checks, gradients and composites each: ops/NAME.c. */
#define GB_FAMILIES(X) \
  X(elementwise) \
  X(gated) \
  X(reduce) \
  X(view) \
  X(create) \
  X(matmul) \
  X(linalg) \
  X(conv) \
  X(norm) \
  X(loss) \
  X(losses) \
  X(ctc) \
  X(distance) \
  X(index) \
  X(vision) \
  X(attention) \
  X(recurrent) \
  X(arrange) \
  X(product) \
  X(order) \
  X(scan) \
  X(scatter) \
  X(fft)

#define GB_DECLARE(name) extern const gb_op_impl gb_family_##name[];
GB_FAMILIES(GB_DECLARE)
#undef GB_DECLARE

/* Composites in files of their own. */
gb_status gb_rotary_embedding_compose(gb_op_call *call);

#endif
