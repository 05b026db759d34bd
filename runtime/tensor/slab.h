/* tensor/slab.h - places in a slab's vectors, seen as tensors. What a slab is stands in tensor/step_state.h. */
#ifndef GB_TENSOR_SLAB_H
#define GB_TENSOR_SLAB_H

#include "tensor/step_state.h"

/* The elements of `vector` from `offset` on, as a tensor with the shape and the (dense) strides of `like`. It keeps the vector's memory, and
 * counts versions of its own. */
gb_status gb_slab_place(gb_tensor *vector, int64_t offset, const gb_tensor *like, gb_tensor **out);

#endif
