/* ops/reduce.h - what the checks and the kernels of the reduce family both ask of a call's attributes. */
#ifndef GB_OPS_REDUCE_H
#define GB_OPS_REDUCE_H

#include "graph/ops.h"

/* The first attribute of that type, or NULL. In this family a row has at most one dim, one dtype, and its one flag is
 * keepdim. */
static inline const gb_attr *gb_reduce_attr(const gb_op_info *info, const gb_attr *attrs, gb_arg_type type) {
  for (int i = 0; i < info->n_attrs; i++)
    if (info->attrs[i].type == type) return &attrs[i];
  return NULL;
}

/* The dims that are reduced, as bits: those named, all where none is. The check has seen that they are in range. */
static inline uint32_t gb_reduce_mask(const gb_op_info *info, const gb_attr *attrs, int ndim) {
  const gb_attr *dims = gb_reduce_attr(info, attrs, GB_ARG_DIMS), *dim = gb_reduce_attr(info, attrs, GB_ARG_DIM);
  uint32_t mask = 0;
  if (ndim == 0) return 0;
  if (dim && dim->given) return 1u << (dim->integer < 0 ? dim->integer + ndim : dim->integer);
  if (!dims || !dims->given || dims->count == 0) return (1u << ndim) - 1u;
  for (int i = 0; i < dims->count; i++) mask |= 1u << (dims->ints[i] < 0 ? dims->ints[i] + ndim : dims->ints[i]);
  return mask;
}

static inline bool gb_reduce_keepdim(const gb_op_info *info, const gb_attr *attrs) {
  const gb_attr *keep = gb_reduce_attr(info, attrs, GB_ARG_BOOL);
  return keep && keep->integer;
}

/* The dtype that the caller named, or GB_DTYPE_NONE. */
static inline gb_dtype gb_reduce_dtype(const gb_op_info *info, const gb_attr *attrs) {
  const gb_attr *dtype = gb_reduce_attr(info, attrs, GB_ARG_DTYPE);
  return dtype && dtype->given ? (gb_dtype)dtype->integer : GB_DTYPE_NONE;
}

/* How many elements become one. */
static inline int64_t gb_reduce_length(uint32_t mask, int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int i = 0; i < ndim; i++)
    if (mask >> i & 1u) n *= shape[i];
  return n;
}

#endif
