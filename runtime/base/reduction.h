/* base/reduction.h - how two numbers become one, in sums over processes (dist/tree.h) on both backends. */
#ifndef GB_BASE_REDUCTION_H
#define GB_BASE_REDUCTION_H

/* A maximum is NaN where a number is, and the left one of two that are equal; OR is of int64 alone. */
typedef enum gb_reduction { GB_REDUCE_SUM, GB_REDUCE_MAX, GB_REDUCE_OR } gb_reduction;

#endif
