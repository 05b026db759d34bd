/* cpu/conv_winograd.h - convolutions by kernels of 3 x 3 and 1 x 3 with a stride of 1, and of 4 x 4 with a stride of 2,
 * in fewer multiplications. */
#ifndef GB_CPU_CONV_WINOGRAD_H
#define GB_CPU_CONV_WINOGRAD_H

#include "cpu/cpu.h"
#include "ops/conv.h"

#define gb_winograd_takes GB_CPU_NAME(winograd_takes)
#define gb_winograd_forward GB_CPU_NAME(winograd_forward)
#define gb_winograd_input GB_CPU_NAME(winograd_input)
#define gb_winograd_weight GB_CPU_NAME(winograd_weight)

typedef enum gb_winograd_kind { GB_WINOGRAD_FORWARD, GB_WINOGRAD_INPUT, GB_WINOGRAD_WEIGHT } gb_winograd_kind;

/* Is it, or is its gradient by x or by the weight, quicker here than a direct sum: worth its transformations, and by no
 * more than that share of the multiplications? large: with tiles of 6 x 6 for kernels of 3 x 3, a quarter of the
 * multiplications and some five times a direct sum's error, which operands of 16 bits hardly show. */
bool gb_winograd_takes(const gb_conv_sizes *s, gb_winograd_kind kind, bool large, double most_share);

/* Each gives *finite: no sum was infinite or NaN, nor, of large tiles, an element far larger than the others. Else what
 * a single one did is not kept apart from its neighbours, and the result has to be made in another way. Tensors that
 * are read have any layout, those that are written have their channels last; all are of float32 or 16 bits. */

/* y [n, o, oh, ow] = x [n, c, h, w] * krsc [o][kh][kw][c] + bias [o] (or NULL), then max(y, 0) where relu. */
gb_status gb_winograd_forward(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *x,
                              const float *krsc, const float *bias, bool relu, const gb_tensor *y, bool *finite);
/* The gradient by x from y's. */
gb_status gb_winograd_input(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *grad,
                            const float *krsc, const gb_tensor *dx, bool *finite);
/* The weight's gradient from x and y's gradient, into krsc. */
gb_status gb_winograd_weight(gb_op_call *call, const gb_conv_sizes *s, bool large, const gb_tensor *x,
                             const gb_tensor *grad, float *krsc, bool *finite);

#endif
