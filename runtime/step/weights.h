/* step/weights.h - 16-bit copies of float32 weights, owned by the parameter. */
#ifndef GB_STEP_WEIGHTS_H
#define GB_STEP_WEIGHTS_H

#include "graph/ops.h"

/* Can a 16-bit copy of t be kept? Yes for a float32 parameter (or a leaf that asks for gradients), and a view of
 * one. */
bool gb_weight_is_cached(const gb_tensor *t);
/* The copy of weight t (a parameter, or a view of one: then the same view of the copy) in dtype, made or refreshed when
 * stale. New reference. */
gb_status gb_weight_get(gb_context *context, gb_tensor *t, gb_dtype dtype, gb_tensor **out);
/* Drop a parameter's copies. */
void gb_weight_drop(gb_tensor *parameter);
/* Set to = from, converted, without autograd and autocast: for memory that belongs to no graph. */
gb_status gb_weight_copy_values(gb_tensor *to, gb_tensor *from);

#endif
