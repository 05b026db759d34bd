/* cpu/conv_winograd.h - convolutions by 3 x 3 kernels with a stride of 1, in 4 multiplications for each result instead
 * of 9. */
#ifndef GB_CPU_CONV_WINOGRAD_H
#define GB_CPU_CONV_WINOGRAD_H

#include "cpu/cpu.h"
#include "ops/conv.h"

#define gb_winograd_takes GB_CPU_NAME(winograd_takes)
#define gb_winograd_forward GB_CPU_NAME(winograd_forward)
#define gb_winograd_weight GB_CPU_NAME(winograd_weight)

/* Is it quicker here than a direct sum? */
bool gb_winograd_takes(const gb_conv_sizes *s);
/* y [n, o, oh, ow] = x [n, c, h, w] * krsc [o][3][3][c] + bias [o] (or NULL), then max(y, 0) where relu; turned: krsc
 * is [c][3][3][o], and its taps are turned about. x in any layout, y with its channels last; each of float32 or 16
 * bits. *finite: no sum was infinite or NaN; else what a single one did is not kept apart from its neighbours, and y
 * has to be made in another way. */
gb_status gb_winograd_forward(gb_op_call *call, const gb_conv_sizes *s, const gb_tensor *x, const float *krsc,
                              bool turned, const float *bias, bool relu, const gb_tensor *y, bool *finite);
/* The weight's gradient from x and y's gradient, into krsc; *finite as above. */
gb_status gb_winograd_weight(gb_op_call *call, const gb_conv_sizes *s, const gb_tensor *x, const gb_tensor *grad,
                             float *krsc, bool *finite);

#endif
