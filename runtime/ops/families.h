/* ops/families.h - what each family gives for its ops: lists that end with {GB_OP_COUNT}. */
#ifndef GB_OPS_FAMILIES_H
#define GB_OPS_FAMILIES_H

#include "graph/ops.h"

extern const gb_op_impl gb_family_elementwise[], gb_family_reduce[], gb_family_view[], gb_family_create[], gb_family_matmul[],
    gb_family_conv[], gb_family_norm[], gb_family_loss[], gb_family_index[], gb_family_attention[],
    gb_family_composed[];

#endif
